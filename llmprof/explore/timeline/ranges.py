"""A selected range of time of some rows: its events as a frame, and its names in a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import polars as pl

from llmprof.explore.timeline.data import TimelineData
from llmprof.explore.timeline.rows import Row
from llmprof.units import format_ns

MOST: Final = 500
"""Most names in the table; those with the most time."""

QUANTILE: Final = 0.99


def chosen_rows(data: TimelineData, rows: Sequence[int] | None) -> list[Row]:
    """Rows that a selection is of: those given, else all streams; of a mixed choice that has streams the streams.

    A strip of a closed rank is drawn from several rows; what was meant is what ran on the device.
    """
    chosen = data.rows if rows is None else [data.row(number) for number in rows]
    streams = [row for row in chosen if row.kind == "stream"]
    if streams:
        return streams
    spans = [row for row in chosen if row.lanes]
    kinds = list(dict.fromkeys(row.kind for row in spans))
    return [row for row in spans if row.kind == kinds[0]] if kinds else []


def events(data: TimelineData, span: Sequence[float], rows: Sequence[int] | None) -> pl.DataFrame:
    """What touches a range of time, as rows of the frame that the rows count.

    Parameters
    ----------
    data : TimelineData
        The rows.
    span : (float, float)
        First and last time (ns).
    rows : sequence of int, optional
        Numbers of the rows; all streams if not given.

    Returns
    -------
    polars.DataFrame
        Rows of ``analyze.attribute`` for streams, else of the trace's table or of the analysis of the row's kind.
    """
    chosen = chosen_rows(data, rows)
    if not chosen:
        return data.events.clear()
    touched = [lane.id[slice(*lane.within(span[0], span[1]))] for row in chosen for lane in row.lanes]
    numbers = np.unique(np.concatenate(touched)) if touched else np.empty(0, np.uint32)
    frame = data.frame(chosen[0].kind)
    return frame[numbers.tolist()] if len(numbers) else frame.clear()


def table(data: TimelineData, span: Sequence[float], rows: Sequence[int] | None) -> dict[str, Any]:
    """Names of what touches a range of time, those with the most time first.

    Parameters
    ----------
    data, span, rows
        As for :func:`events`.

    Returns
    -------
    dict
        ``title`` and ``facts``: what the table is of; ``rows``: ``name, code`` (of the color)``, count, total_ns`` (the
        parts inside the range)``, mean_ns, p99_ns`` (of whole spans) and ``share`` (of the summed ``total_ns``);
        ``total``: number of names.
    """
    lo, hi = span
    chosen = chosen_rows(data, rows)
    parts = [pl.DataFrame(schema={"name": pl.UInt32, "code": pl.UInt8, "start": pl.Int64, "end": pl.Int64})]
    for row in chosen:
        for lane in row.lanes:
            part = slice(*lane.within(lo, hi))
            columns = {"name": lane.name[part], "code": lane.code("stage")[part]}
            parts.append(pl.DataFrame(columns | {"start": lane.start[part], "end": lane.end[part]}))
    spans = pl.concat(parts)
    inside = pl.min_horizontal(pl.col("end"), pl.lit(hi)) - pl.max_horizontal(pl.col("start"), pl.lit(lo))
    length = pl.col("end") - pl.col("start")
    names = (
        spans.group_by("name", maintain_order=True)
        .agg(
            code=pl.col("code").first(),
            count=pl.len(),
            total_ns=inside.clip(0).sum(),
            mean_ns=length.mean(),
            p99_ns=length.quantile(QUANTILE, "linear"),
        )
        .sort("total_ns", "name", descending=[True, False])
    )
    whole = float(names["total_ns"].sum() or 0)
    shown = names.head(MOST).with_columns(share=pl.lit(None, pl.Float64) if whole <= 0 else pl.col("total_ns") / whole)
    more = f" and {len(chosen) - 2} more" if len(chosen) > 2 else ""
    title = ", ".join(_named(row, data) for row in chosen[:2]) + more
    return {
        "title": title,
        "facts": [["length", format_ns(hi - lo)], ["spans", f"{spans.height:,}"], ["summed time", format_ns(whole)]],
        "rows": [row | {"name": data.names.short[row["name"]]} for row in shown.to_dicts()],
        "total": names.height,
    }


def _named(row: Row, data: TimelineData) -> str:
    several = len(data.trace.ranks) > 1
    place = "host" if row.rank < 0 else f"rank {row.rank}"
    return f"{place} · {row.label}" if several else row.label
