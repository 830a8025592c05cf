"""All groups of a set of intervals on one line, so that one sort and one running maximum answer for all.

Each group has a timeline of its own. They are laid end to end, at least 1 ns apart, in the order of their keys;
rows that come in that order are not sorted again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import polars as pl

from llmprof.errors import AnalysisError

LOWEST = pl.lit(-(2**63), dtype=pl.Int64)
"""Before every time."""

INTERVAL = ("start_ns", "dur_ns")


class Line(NamedTuple):
    """Intervals on the line.

    ``rows``: ``_group, _start, _end`` and the columns that were kept, in the order of ``_start``.
    ``groups``: the keys, ``_group, first_ns, last_ns, _shift``; a time of the group plus ``_shift`` is its place.
    """

    rows: pl.DataFrame
    groups: pl.DataFrame


def lay(frame: pl.DataFrame, by: Sequence[str], keep: Mapping[str, pl.Expr] | None = None) -> Line:
    """Lay the groups of ``by`` on one line.

    Parameters
    ----------
    frame : polars.DataFrame
        ``start_ns, dur_ns`` (ns) and the columns of ``by``.
    by : sequence of str
        Keys of the groups; null is a key like any other.
    keep : mapping of str to polars.Expr
        Further columns of ``rows``.

    Returns
    -------
    Line
        The intervals in order.
    """
    by, kept = list(by), dict(keep or {})
    rows = need(frame, by).select(
        *by,
        pl.col("start_ns").cast(pl.Int64).alias("_start"),
        end_of().alias("_end"),
        # runs of one key are far fewer than rows where the rows are nearly in order
        (pl.struct(by).rle_id() if by else pl.lit(0, dtype=pl.UInt32)).alias("_run"),
        **kept,
    )
    bounds = (pl.col("_start").min().alias("first_ns"), pl.col("_end").max().alias("last_ns"))
    runs = rows.group_by(pl.col("_run").set_sorted()).agg(pl.col(by).first(), *bounds)
    together = (pl.col("first_ns").min(), pl.col("last_ns").max(), pl.col("_run"))
    groups = (
        runs.group_by(by).agg(*together).sort(by, nulls_last=True) if by else runs.with_columns(pl.concat_list("_run"))
    )
    span = pl.col("last_ns") - pl.col("first_ns") + 1
    groups = groups.with_row_index("_group").with_columns(
        _shift=span.cum_sum().shift(1, fill_value=0) - pl.col("first_ns")
    )
    of_run = groups.select("_group", "_shift", "_run").explode("_run").sort("_run")
    at = rows["_run"]
    shift = of_run["_shift"].gather(at)
    rows = rows.select(
        of_run["_group"].gather(at).alias("_group"),
        pl.col("_start") + shift,
        pl.col("_end") + shift,
        *kept,
    )
    return Line(rows if rows["_start"].is_sorted() else rows.sort("_start", maintain_order=True), groups.drop("_run"))


def merged(line: Line) -> pl.DataFrame:
    """Union of the intervals on the line: ``_group, _start, _end``, disjoint, not empty, not touching, in order.

    Columns that the line kept are those of the interval that opens each one.
    """
    rows = line.rows.filter(pl.col("_end") > pl.col("_start")).with_columns(_reach=pl.col("_end").cum_max())
    opens = rows.select(pl.col("_start") > pl.col("_reach").shift(1, fill_value=LOWEST)).to_series()
    ends = rows["_reach"].filter(opens.shift(-1, fill_value=True))
    return rows.filter(opens).drop("_reach").with_columns(ends.alias("_end"))


def off_line(intervals: pl.DataFrame, line: Line, by: Sequence[str]) -> pl.DataFrame:
    """Intervals of the line (``_group, _start, _end``) back in their groups: ``<by...>, start_ns, dur_ns``."""
    at = intervals["_group"]
    return intervals.select(
        *(line.groups[key].gather(at) for key in by),
        (pl.col("_start") - line.groups["_shift"].gather(at)).alias("start_ns"),
        (pl.col("_end") - pl.col("_start")).alias("dur_ns"),
    )


def place(frame: pl.DataFrame, groups: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Other intervals onto the line of groups, cut to ``_low <= t <= _high`` of their group.

    Returns
    -------
    polars.DataFrame
        The rows of ``frame`` in order with ``_shift, _from, _to``, null where there is no such group.
    """
    known = groups.select(*by, "_shift", "_low", "_high")
    if by:
        rows = need(frame, by).join(known, on=list(by), how="left", nulls_equal=True, maintain_order="left")
    else:
        rows = need(frame, by).with_columns(pl.lit(known[c].first()).alias(c) for c in known.columns)
    cut = {"_from": pl.col("start_ns").cast(pl.Int64), "_to": end_of()}
    return rows.with_columns(
        (expr + pl.col("_shift")).clip(pl.col("_low"), pl.col("_high")).alias(name) for name, expr in cut.items()
    ).drop("_low", "_high")


def need(frame: pl.DataFrame, columns: Sequence[str]) -> pl.DataFrame:
    """The frame, if it has the columns and those of an interval.

    Raises
    ------
    AnalysisError
        It lacks some.
    """
    if missing := [c for c in (*columns, *INTERVAL) if c not in frame.columns]:
        raise AnalysisError(f"the frame lacks the columns {missing}", expected=f"some of {frame.columns}")
    return frame


def end_of() -> pl.Expr:
    """End of an interval (ns)."""
    return pl.col("start_ns").cast(pl.Int64) + pl.col("dur_ns").cast(pl.Int64).clip(lower_bound=0)
