"""Arithmetic on sets of half-open time intervals, as whole-column operations.

An interval is ``start_ns <= t < start_ns + dur_ns``; a negative duration counts as zero. ``by`` names the columns that
divide the rows into groups with separate timelines; null is a value like any other. Every function sorts at most once
and is otherwise linear in the rows; rows that are in order are not sorted again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl

from llmprof.errors import AnalysisError, listed

LOWEST = pl.lit(-(2**63), dtype=pl.Int64)
"""A time before all others."""

INTERVAL = ("start_ns", "dur_ns")


class Line(NamedTuple):
    """Intervals of all groups on one line.

    ``rows``: ``_group, _start, _end`` and the kept columns, in the order of ``_start``. ``groups``: the keys, ``_group,
    first_ns, last_ns, _shift``; a time of the group plus ``_shift`` is its position on the line.
    """

    rows: pl.DataFrame
    groups: pl.DataFrame


def lay(frame: pl.DataFrame, by: Sequence[str], keep: Mapping[str, pl.Expr] | None = None) -> Line:
    """Put the groups of ``by`` one after another on one line.

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
        # if rows are nearly in order, there are far fewer runs of one key than rows
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
    run = rows["_run"]
    shift = of_run["_shift"].gather(run)
    rows = rows.select(
        of_run["_group"].gather(run).alias("_group"),
        pl.col("_start") + shift,
        pl.col("_end") + shift,
        *kept,
    )
    return Line(rows if rows["_start"].is_sorted() else rows.sort("_start", maintain_order=True), groups.drop("_run"))


def merged(line: Line) -> pl.DataFrame:
    """Union of the intervals on the line: ``_group, _start, _end``, disjoint, not empty, not touching, in order.

    Kept columns have the values of the first interval of each union.
    """
    rows = line.rows.filter(pl.col("_end") > pl.col("_start")).with_columns(_reach=pl.col("_end").cum_max())
    opens = rows.select(pl.col("_start") > pl.col("_reach").shift(1, fill_value=LOWEST)).to_series()
    ends = rows["_reach"].filter(opens.shift(-1, fill_value=True))
    return rows.filter(opens).drop("_reach").with_columns(ends.alias("_end"))


def off_line(intervals: pl.DataFrame, line: Line, by: Sequence[str]) -> pl.DataFrame:
    """Intervals of the line (``_group, _start, _end``) back in their groups: ``<by...>, start_ns, dur_ns``."""
    group = intervals["_group"]
    return intervals.select(
        *(line.groups[key].gather(group) for key in by),
        (pl.col("_start") - line.groups["_shift"].gather(group)).alias("start_ns"),
        (pl.col("_end") - pl.col("_start")).alias("dur_ns"),
    )


def place(frame: pl.DataFrame, groups: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Put other intervals onto the line, cut to ``_low <= t <= _high`` of their group.

    Returns
    -------
    polars.DataFrame
        The rows of ``frame`` in order with ``_shift, _from, _to``, null where there is no such group.
    """
    shift, low, high = of_groups(need(frame, by), groups.select(*by, "_shift", "_low", "_high"), by)
    cut = {"_from": pl.col("start_ns").cast(pl.Int64), "_to": end_of()}
    return frame.with_columns(
        shift.alias("_shift"), *((expr + shift).clip(low, high).alias(name) for name, expr in cut.items())
    )


def of_groups(frame: pl.DataFrame, groups: pl.DataFrame, by: Sequence[str]) -> list[pl.Series]:
    """Values of the group of each row; null if there is no such group.

    Rows of one group are mostly consecutive, so a key is looked up once for each run of equal keys, not for each row.

    Parameters
    ----------
    frame : polars.DataFrame
        Rows with the columns of ``by``.
    groups : polars.DataFrame
        One row for each group: the columns of ``by`` and the values; without ``by`` a single row.
    by : sequence of str
        Keys of the groups; null is a key like any other.

    Returns
    -------
    list of polars.Series
        One for each further column of ``groups``, in the order of the rows of ``frame``.
    """
    keys, values = list(by), [column for column in groups.columns if column not in by]
    if not keys:
        return [groups[value].head(1).new_from_index(0, frame.height) for value in values]
    rows = frame.select(*keys, pl.struct(keys).rle_id().alias("_run"))
    run = rows["_run"]
    first = rows.filter((pl.col("_run") != pl.col("_run").shift(1)).fill_null(value=True))
    joined = first.join(groups, on=keys, how="left", nulls_equal=True, maintain_order="left")
    return [joined[value].gather(run) for value in values]


def last_before(points: pl.DataFrame, marks: pl.DataFrame, by: Sequence[str], *, at: str) -> pl.Series:
    """For each point, the last mark of its group that is not after it.

    Parameters
    ----------
    points : polars.DataFrame
        Moments in the column ``at`` (ns, null for none) and the columns of ``by``, in any order.
    marks : polars.DataFrame
        Moments in the column ``at`` (ns, not null) and the columns of ``by``, in any order.
    by : sequence of str
        Columns that divide both frames into groups; rows with a null there belong to no group.
    at : str
        Column of the moments.

    Returns
    -------
    polars.Series
        Row numbers in ``marks`` (u32), null if no mark comes before; of several marks at one moment the last row.
    """
    place = np.full(points.height, -1, dtype=np.int64)
    rows, times, of_key = _by_key(marks, by, at)
    order, keys, bounds = _runs(points, by)
    moments = points[at].fill_null(0).to_numpy()
    moments = moments if order is None else moments[order]
    for key, begin, end in zip(keys, bounds[:-1], bounds[1:], strict=True):
        if key in of_key:
            first, stop = of_key[key]
            before = np.searchsorted(times[first:stop], moments[begin:end], side="right")
            place[begin:end] = np.where(before > 0, before + (first - 1), -1)
    if order is not None:
        placed, place = place, np.empty_like(place)
        place[order] = placed
    known = pl.Series(place >= 0) & points[at].is_not_null()
    marked = place if rows is None else rows[place]
    return pl.Series("mark", marked.astype(np.uint32)).set(~known, None)


_Key = tuple[object, ...]

_FEW_RUNS = 1 / 16
"""With more runs of equal keys than this share of the rows, the rows are ordered by key."""


def _by_key(
    marks: pl.DataFrame, by: Sequence[str], at: str
) -> tuple[np.ndarray | None, np.ndarray, dict[_Key, tuple[int, int]]]:
    """Rows of marks by key and moment (None if they are in this order), their moments, and the part of each key."""
    order, keys, bounds = _runs(marks, by)
    times = marks[at].to_numpy()
    later = times[1:] >= times[:-1]
    later[[bound - 1 for bound in bounds[1:-1]]] = True
    if order is not None or len(set(keys)) < len(keys) or not later.all():
        order = marks.select(pl.arg_sort_by(*by, at, maintain_order=True)).to_series().to_numpy()
        _, keys, bounds = _runs(marks.select(by)[order], by, few=1)
        times = times[order]
    parts = zip(keys, bounds[:-1], bounds[1:], strict=True)
    return order, times, {key: (first, stop) for key, first, stop in parts if None not in key}


def _runs(
    frame: pl.DataFrame, by: Sequence[str], few: float = _FEW_RUNS
) -> tuple[np.ndarray | None, list[_Key], list[int]]:
    """Runs of equal keys: order of the rows in which there are few (None for that of the frame), keys and bounds."""
    if not by or not frame.height:
        return None, [()] * min(1, frame.height), [0, frame.height][: 1 + min(1, frame.height)]
    keys, order = frame.select(by), None
    run = keys.select(pl.struct(by).rle_id() if len(by) > 1 else pl.col(by).rle_id()).to_series().to_numpy()
    if run[-1] > max(64, few * len(run)):
        order = keys.select(pl.arg_sort_by(*by, maintain_order=True)).to_series().to_numpy()
        keys = keys[order]
        run = keys.select(pl.struct(by).rle_id()).to_series().to_numpy()
    begins = np.concatenate([[0], np.flatnonzero(run[1:] != run[:-1]) + 1])
    return order, keys[begins].rows(), [*begins.tolist(), len(run)]


def need(frame: pl.DataFrame, columns: Sequence[str]) -> pl.DataFrame:
    """Check that a frame has the columns and those of an interval, and return it.

    Raises
    ------
    AnalysisError
        It lacks some.
    """
    if missing := [c for c in (*columns, *INTERVAL) if c not in frame.columns]:
        raise AnalysisError(f"the frame has no columns {listed(missing)}", expected=f"some of {listed(frame.columns)}")
    return frame


def end_of() -> pl.Expr:
    """End of an interval (ns)."""
    return pl.col("start_ns").cast(pl.Int64) + pl.col("dur_ns").cast(pl.Int64).clip(lower_bound=0)


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
        (ns) a subset. One row for each group, in the order of ``by``, nulls last; without ``by`` always one row, with
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
        ``<by...>, busy_ns``, one row per group; without ``by`` always one row.
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
        Further result columns, from the interval that ends the gap (the first in the frame if several do).

    Returns
    -------
    polars.DataFrame
        ``<by...>, start_ns, dur_ns, <following...>`` in the order of ``by`` (nulls last) and time; time before the
        first interval of a group and after its last is not a gap.
    """
    line = lay(frame, by, following)
    union = merged(line)
    between = union.with_columns(_start=pl.col("_end").shift(1), _end=pl.col("_start"))
    between = between.filter(pl.col("_group") == pl.col("_group").shift(1))
    return off_line(between, line, by).with_columns(between.select(*following))


def gaps_between(frame: pl.DataFrame, by: Sequence[str] = ()) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The gaps of :func:`gaps`, with the intervals at both ends of each.

    Parameters
    ----------
    frame : polars.DataFrame
        Intervals: ``start_ns``, ``dur_ns`` (ns) and the columns of ``by``.
    by : sequence of str
        Columns that part the rows into groups; none for one group.

    Returns
    -------
    tuple of polars.DataFrame
        The gaps: ``<by...>, start_ns, dur_ns, next`` (row in ``frame`` of the interval that ends the gap); and
        ``gap, row``: for each gap by its row the intervals that end where it begins, at least one, in order.
    """
    line = lay(frame, by, {"row": pl.int_range(pl.len(), dtype=pl.UInt32)})
    rows = line.rows.filter(pl.col("_end") > pl.col("_start")).with_columns(_reach=pl.col("_end").cum_max())
    opens = rows.select(pl.col("_start") > pl.col("_reach").shift(1, fill_value=LOWEST)).to_series()
    union = rows.filter(opens).with_columns(rows["_reach"].filter(opens.shift(-1, fill_value=True)).alias("_until"))
    follows = (pl.col("_group") == pl.col("_group").shift(1)).fill_null(value=False)
    between = union.select(
        "_group", _start=pl.col("_until").shift(1), _end=pl.col("_start"), next="row", _follows=follows
    )
    # the gap after each union, by the number of the union; none after the last one of a group
    inner = between["_follows"].shift(-1, fill_value=False)
    gap = union.select(pl.when(inner).then(inner.cum_sum() - 1)).to_series()
    gap_row = opens.cum_sum() - 1
    ends = rows.select(gap=gap.gather(gap_row), row="row", _last=pl.col("_end") == union["_until"].gather(gap_row))
    between = between.filter("_follows")
    placed = off_line(between, line, by).with_columns(between["next"])
    return placed, ends.filter(pl.col("_last") & pl.col("gap").is_not_null()).drop("_last")


def length_within(
    windows: pl.DataFrame, frame: pl.DataFrame, by: Sequence[str] = (), *, name: str = "busy_ns"
) -> pl.DataFrame:
    """Time in each window that the union of its group's intervals covers.

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
    starts, ends = line.rows["_start"], line.rows["_end"]
    if (ends.shift(1) > starts).any():
        raise AnalysisError("two windows of one group overlap", expected="windows that do not overlap")
    if starts.is_empty():
        return need(frame, by).clear().with_columns(pl.lit(0, dtype=pl.UInt32).alias("window"))
    bounds = {"_low": pl.col("first_ns") + pl.col("_shift"), "_high": pl.col("last_ns") + pl.col("_shift")}
    placed = place(need(frame, by).select(*by, *INTERVAL), line.groups.with_columns(**bounds), by)
    cut = placed.select(pl.int_range(pl.len(), dtype=pl.UInt32).alias("row"), "_shift", "_from", "_to")
    cut = cut.filter(pl.col("_from") < pl.col("_to"))
    cut = cut.with_columns(
        pl.Series("_first", np.searchsorted(ends.to_numpy(), cut["_from"].to_numpy(), side="right")),
        pl.Series("_stop", np.searchsorted(starts.to_numpy(), cut["_to"].to_numpy(), side="left")),
    ).filter(pl.col("_first") < pl.col("_stop"))
    if (cut["_stop"] - cut["_first"] > 1).any():
        cut = cut.with_columns(_first=pl.int_ranges("_first", "_stop")).explode("_first")
    window_row = cut["_first"]
    low, high = pl.max_horizontal("_from", starts.gather(window_row)), pl.min_horizontal("_to", ends.gather(window_row))
    cut = cut.select(
        "row", start_ns=low - pl.col("_shift"), dur_ns=high - low, window=line.rows["window"].gather(window_row)
    )
    return frame[cut["row"]].with_columns(cut["start_ns"], cut["dur_ns"], cut["window"])


def _covered_until(union: pl.DataFrame, points: pl.Series) -> pl.Series:
    """Time that the union covers before each point of the line."""
    row = pl.Series(np.searchsorted(union["_start"].to_numpy(), points.to_numpy(), side="right")) - 1
    here = union.select(pl.col("_start", "_end", "_before").gather(row.clip(lower_bound=0)))
    return (
        here.with_columns(points.alias("_point"))
        .select(pl.col("_before") + pl.min_horizontal("_point", "_end") - pl.col("_start"))
        .to_series()
    )
