"""Requests over time: what each waited for, its prefill and its decode."""

from __future__ import annotations

import altair as alt
import polars as pl

from llmprof.analyze.requests.requests import slowest
from llmprof.charts.base.data import inline, nothing, number, require
from llmprof.charts.base.theme import (
    COMMUNICATION,
    INK,
    NUMBER,
    PADDING,
    PHASES,
    REST,
    TEXT_PX,
    WAIT,
    WIDTH,
    colour,
    finish,
    layered,
    row_axis,
    text_px,
    time_unit,
)
from llmprof.units import format_ns

_SOURCE = "analyze.requests(run)"
_COLUMNS = (
    *("request", "start_ns", "first_step_ns", "first_token_ns", "end_ns", "ttft_ns", "queue_prefill_ns"),
    *("queue_decode_ns", "queue_other_ns", "e2e_ns", "reason"),
)
_TABLE = {
    "waits behind prefill of others": COMMUNICATION,
    "waits behind decode of others": WAIT,
    "waits, no step runs": REST,
    "prefill": PHASES["prefill"],
    "decode": PHASES["decode"],
}
_ROW, _MOST = 15, 60


def request_waterfall(frame: pl.DataFrame, *, title: str | None = None) -> alt.VConcatChart:
    """Requests over time, one a row: waiting, prefill and decode.

    Parameters
    ----------
    frame : polars.DataFrame
        Rows of :func:`llmprof.analyze.requests`.
    title : str, optional
        Title instead of the one that says what the slow first tokens are made of.

    Returns
    -------
    altair.VConcatChart
        900 px wide, a row a request by arrival; of more than 60 the 60 with the latest first token. The parts of the
        waiting stand in one order and not when they were; prefill ends with the first token.

    Raises
    ------
    AnalysisError
        A column is missing, or there are no requests.
    """
    require(frame, _COLUMNS, chart="request_waterfall", made_by=_SOURCE)
    if frame.is_empty():
        raise nothing("request_waterfall", "there are no requests", _SOURCE)
    shown = frame.sort("ttft_ns", descending=True).head(_MOST).sort("start_ns", "request")
    first = int(number(shown["start_ns"].min()))
    unit = time_unit(number(shown["end_ns"].max()) - first)
    rows = [f"request {one}" for one in shown["request"]]
    bars = _bars(shown, first).with_columns(start=pl.col("start") / unit.ns, end=pl.col("end") / unit.ns)
    said = {name: fill for name, fill in _TABLE.items() if name in set(bars["part"])}
    width = WIDTH - 2 * PADDING - 20 - round(max(text_px(row, TEXT_PX) for row in rows))
    top = number(bars["end"].max())
    scale = alt.Scale(domain=[0, top * 1.02 or 1], nice=False)
    axis = alt.Axis(title=f"time since the first arrival ({unit.symbol})", format=NUMBER, tickCount=8)
    x, y = alt.X("start:Q", scale=scale, axis=axis), row_axis(rows)
    tips = [
        alt.Tooltip("row:N", title="request"),
        alt.Tooltip("part:N"),
        alt.Tooltip("long:N", title="time"),
        alt.Tooltip("reason:N", title="mostly"),
    ]
    base = alt.Chart(inline(bars))
    marks = base.mark_bar(height=_ROW - 5).encode(x=x, x2="end:Q", y=y, color=colour("part", said), tooltip=tips)
    tokens = pl.DataFrame({"row": rows, "at": ((shown["first_token_ns"] - first) / unit.ns).to_list()})
    ticks = alt.Chart(inline(tokens)).mark_tick(color=INK, thickness=2, height=_ROW - 3)
    ticks = ticks.encode(x=alt.X("at:Q", scale=scale, axis=axis), y=y)
    chart = layered(marks, ticks).properties(width=width, height=_ROW * len(rows) + 6)
    note = "Black: the first token. The parts of the waiting stand in one order, not when they were."
    if frame.height > _MOST:
        note += f" The {_MOST} of {frame.height} requests with the latest first token are shown."
    done = finish(alt.vconcat(chart), title or slowest(frame)["title"], note)
    done["title"]["frame"] = "bounds"
    return done


def _bars(shown: pl.DataFrame, first: int) -> pl.DataFrame:
    """Bars of each request, one after the other: ``row, part, start, end, long, reason``."""
    names = list(_TABLE)
    found = []
    for row in shown.iter_rows(named=True):
        at = min(row["start_ns"], row["first_step_ns"]) - first
        parts = [row["queue_prefill_ns"], row["queue_decode_ns"], row["queue_other_ns"]]
        parts += [row["first_token_ns"] - row["first_step_ns"], row["end_ns"] - row["first_token_ns"]]
        for name, part in zip(names, parts, strict=True):
            if part > 0:
                text = format_ns(part)
                found.append((f"request {row['request']}", name, at, at + part, text, row["reason"]))
            at += max(0, part)
    return pl.DataFrame(found, schema=["row", "part", "start", "end", "long", "reason"], orient="row")
