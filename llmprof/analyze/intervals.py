"""Arithmetic on sets of half-open time intervals, as whole-column operations.

An interval is ``start_ns <= t < start_ns + dur_ns``; a negative duration counts as zero. ``by`` names the
columns that part the rows into groups, each with a timeline of its own; null is a value like any other.
Every function takes one sort at most and is linear in the rows after it; rows in order are not sorted again.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from llmprof.analyze._line import INTERVAL, LOWEST, lay, merged, need, off_line, place
from llmprof.errors import AnalysisError


def union_lengths(frame: pl.DataFrame, by: Sequence[str] = (), **subsets: pl.Expr) -> pl.DataFrame:
    """Time covered by the union of the intervals of several subsets of the rows, in one sweep.

    The lengths of all other set operations follow: ``|A and B| = |A| + |B| - |A or B|`` and
    ``|A minus B| = |A or B| - |B|``.

    Parameters
    ----------
    frame : polars.DataFrame
        Intervals: ``start_ns``, ``dur_ns`` (ns) and the columns that ``by`` and ``subsets`` use.
    by : sequence of str
        Columns that part the rows into groups; none for one group.
    **subsets : polars.Expr
        Name of a result column and the predicate of the rows that it measures; a null predicate is false.

    Returns
    -------
    polars.DataFrame
        ``<by...>, first_ns, last_ns`` (first start and last end of all rows of the group), then one column
        (ns) a subset. One row a group, in the order of ``by``, nulls last; without ``by`` always one row, with
        null bounds if there are no intervals.

    Raises
    ------
    AnalysisError
        The frame lacks a column.
    """
    line = lay(frame, by, {name: within.fill_null(False) for name, within in subsets.items()})
    start, end, names = pl.col("_start"), pl.col("_end"), list(subsets)
    if not by and frame.is_empty():
        row = {"first_ns": None, "last_ns": None, **dict.fromkeys(names, 0)}
        return pl.DataFrame([row], schema=dict.fromkeys(row, pl.Int64()))
    added = []
    for name in names:
        reach = pl.when(pl.col(name)).then(end).otherwise(LOWEST).cum_max().shift(1, fill_value=LOWEST)
        new = (end - pl.max_horizontal(start, reach)).clip(lower_bound=0)
        added.append(pl.when(pl.col(name)).then(new).otherwise(0).alias(name))
    sums = line.rows.select(pl.col("_group").set_sorted(), *added).group_by("_group").agg(pl.col(names).sum())
    return line.groups.join(sums, on="_group", maintain_order="left").select(*by, "first_ns", "last_ns", *names)


def union_length(frame: pl.DataFrame, by: Sequence[str] = ()) -> pl.DataFrame:
    """Time covered by the union of the intervals of each group: overlapping parts count once.

    Parameters
    ----------
    frame : polars.DataFrame
        Intervals: ``start_ns``, ``dur_ns`` (ns) and the columns of ``by``.
    by : sequence of str
        Columns that part the rows into groups; none for one group.

    Returns
    -------
    polars.DataFrame
        ``<by...>, busy_ns``, one row a group; without ``by`` always one row.
    """
    return union_lengths(frame, by, busy_ns=pl.lit(True)).drop("first_ns", "last_ns")


def pair_lengths(a: pl.DataFrame, b: pl.DataFrame, by: Sequence[str] = ()) -> pl.DataFrame:
    """Lengths of the set operations on two sets of intervals.

    Parameters
    ----------
    a, b : polars.DataFrame
        Intervals: ``start_ns``, ``dur_ns`` (ns) and the columns of ``by``.
    by : sequence of str
        Columns that part the rows into groups; none for one group.

    Returns
    -------
    polars.DataFrame
        ``<by...>, a_ns, b_ns, either_ns, both_ns, only_a_ns, only_b_ns``, one row for each group of either.
    """
    sides = [need(f, by).select(*by, *INTERVAL, pl.lit(side).alias("_a")) for f, side in ((a, True), (b, False))]
    lengths = union_lengths(pl.concat(sides), by, a_ns=pl.col("_a"), b_ns=~pl.col("_a"), either_ns=pl.lit(True))
    return lengths.drop("first_ns", "last_ns").with_columns(
        both_ns=pl.col("a_ns") + pl.col("b_ns") - pl.col("either_ns"),
        only_a_ns=pl.col("either_ns") - pl.col("b_ns"),
        only_b_ns=pl.col("either_ns") - pl.col("a_ns"),
    )


def merge(frame: pl.DataFrame, by: Sequence[str] = ()) -> pl.DataFrame:
    """Union of the intervals of each group as disjoint intervals; touching ones become one.

    Parameters
    ----------
    frame : polars.DataFrame
        Intervals: ``start_ns``, ``dur_ns`` (ns) and the columns of ``by``.
    by : sequence of str
        Columns that part the rows into groups; none for one group.

    Returns
    -------
    polars.DataFrame
        ``<by...>, start_ns, dur_ns`` in the order of ``by`` (nulls last) and time. No interval is empty, so a
        group of nothing but zero-length intervals has no row.
    """
    line = lay(frame, by)
    return off_line(merged(line), line, by)


def gaps(frame: pl.DataFrame, by: Sequence[str] = (), **following: pl.Expr) -> pl.DataFrame:
    """Time between the intervals of each group that none of them covers.

    Parameters
    ----------
    frame : polars.DataFrame
        Intervals: ``start_ns``, ``dur_ns`` (ns) and the columns of ``by``. Zero-length ones do not end a gap.
    by : sequence of str
        Columns that part the rows into groups; none for one group.
    **following : polars.Expr
        Further result columns, of the interval that ends the gap (the first one in the frame where several do).

    Returns
    -------
    polars.DataFrame
        ``<by...>, start_ns, dur_ns, <following...>`` in the order of ``by`` (nulls last) and time; what lies before
        the first interval of a group and after its last is no gap.
    """
    line = lay(frame, by, following)
    union = merged(line)
    between = union.with_columns(_start=pl.col("_end").shift(1), _end=pl.col("_start"))
    between = between.filter(pl.col("_group") == pl.col("_group").shift(1))
    return off_line(between, line, by).with_columns(between.select(*following))


def length_within(
    windows: pl.DataFrame, frame: pl.DataFrame, by: Sequence[str] = (), *, name: str = "busy_ns"
) -> pl.DataFrame:
    """Time of each window that the union of the intervals of its group covers.

    Parameters
    ----------
    windows : polars.DataFrame
        Windows: ``start_ns``, ``dur_ns`` (ns), the columns of ``by`` and any others; they may overlap.
    frame : polars.DataFrame
        Intervals: ``start_ns``, ``dur_ns`` (ns) and the columns of ``by``.
    by : sequence of str
        Columns that part both frames into groups; none for one group.
    name : str
        Name of the new column.

    Returns
    -------
    polars.DataFrame
        The windows in their order with the new column (ns); 0 where the group has no intervals.
    """
    line = lay(frame, by)
    union = merged(line)
    if union.is_empty():
        return need(windows, by).with_columns(pl.lit(0, dtype=pl.Int64).alias(name))
    length = pl.col("_end") - pl.col("_start")
    union = union.with_columns(_before=length.cum_sum() - length)
    bounds = union.group_by("_group").agg(_low=pl.col("_start").min(), _high=pl.col("_end").max())
    placed = place(windows.select(*by, *INTERVAL), line.groups.join(bounds, on="_group"), by)
    covered = [_covered_until(union, placed[side].fill_null(0)) for side in ("_from", "_to")]
    return windows.with_columns((covered[1] - covered[0]).alias(name))


def clip(frame: pl.DataFrame, windows: pl.DataFrame, by: Sequence[str] = ()) -> pl.DataFrame:
    """Parts of the intervals that lie in a window of their group.

    Parameters
    ----------
    frame : polars.DataFrame
        Intervals: ``start_ns``, ``dur_ns`` (ns), the columns of ``by`` and any others.
    windows : polars.DataFrame
        Windows that do not overlap: ``start_ns``, ``dur_ns`` (ns) and the columns of ``by``.
    by : sequence of str
        Columns that part both frames into groups; none for one group.

    Returns
    -------
    polars.DataFrame
        The columns of ``frame`` with ``start_ns`` and ``dur_ns`` cut to the window, and ``window`` (u32, the
        row in ``windows``). An interval has a row for each window that it enters, and none if it is empty.

    Raises
    ------
    AnalysisError
        Two windows of a group overlap.
    """
    numbered = need(windows, by).select(*by, *INTERVAL).with_row_index("window").filter(pl.col("dur_ns") > 0)
    line = lay(numbered, by, {"window": pl.col("window")})
    starts, ends, rows = line.rows["_start"], line.rows["_end"], need(frame, by)
    if (ends.shift(1) > starts).any():
        raise AnalysisError("two windows of one group overlap", expected="windows that do not overlap")
    if starts.is_empty():
        return frame.clear().with_columns(pl.lit(0, dtype=pl.UInt32).alias("window"))
    bounds = {"_low": pl.col("first_ns") + pl.col("_shift"), "_high": pl.col("last_ns") + pl.col("_shift")}
    placed = place(rows, line.groups.with_columns(**bounds), by).filter(pl.col("_from") < pl.col("_to"))
    placed = placed.with_columns(
        pl.Series("_first", ends.search_sorted(placed["_from"], side="right"), dtype=pl.Int64),
        pl.Series("_stop", starts.search_sorted(placed["_to"], side="left"), dtype=pl.Int64),
    ).filter(pl.col("_first") < pl.col("_stop"))
    placed = placed.with_columns(_at=pl.int_ranges("_first", "_stop")).explode("_at")
    at = placed["_at"]
    low, high = pl.max_horizontal("_from", starts.gather(at)), pl.min_horizontal("_to", ends.gather(at))
    return placed.with_columns(
        line.rows["window"].gather(at).alias("window"), start_ns=low - pl.col("_shift"), dur_ns=high - low
    ).select(*frame.columns, "window")


def _covered_until(union: pl.DataFrame, points: pl.Series) -> pl.Series:
    """Time that the union covers before each point of the line."""
    at = pl.Series(union["_start"].search_sorted(points, side="right"), dtype=pl.Int64) - 1
    here = union.select(pl.col("_start", "_end", "_before").gather(at.clip(lower_bound=0)))
    return (
        here.with_columns(points.alias("_point"))
        .select(pl.col("_before") + pl.min_horizontal("_point", "_end") - pl.col("_start"))
        .to_series()
    )
