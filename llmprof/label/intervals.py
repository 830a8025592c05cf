"""Arithmetic on sets of half-open time intervals, as whole-column operations.

An interval is ``start_ns <= t < start_ns + dur_ns``; a negative duration counts as zero. ``by``
names the columns that divide the rows into groups with separate timelines; null is a value like any
other. Every function sorts at most once and is otherwise linear in the rows; rows that are in order
are not sorted again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl

from llmprof.errors import AnalysisError, listed
from llmprof.label.groups import first_of_runs, group_values, groups_of
from llmprof.trace.schema import END

LOWEST = pl.lit(-(2**63), dtype=pl.Int64)
"""A time before all others."""

INTERVAL = ("start_ns", "dur_ns")


class GroupLine(NamedTuple):
    """Intervals of all groups on one line.

    ``rows``: ``_group, _start, _end`` and the kept columns, in the order of ``_start``. ``groups``:
    the keys, ``_group, first_ns, last_ns, _shift``; a time of the group plus ``_shift`` is its
    position on the line.
    """

    rows: pl.DataFrame
    groups: pl.DataFrame


def lay(
    frame: pl.DataFrame, by: Sequence[str], keep: Mapping[str, pl.Expr] | None = None
) -> GroupLine:
    """Put the groups of ``by`` one after another on one line."""
    by, kept = list(by), dict(keep or {})
    start, end = _times(require_columns(frame, by))
    if end.null_count():  # intervals whose times are unknown are on no line
        frame = frame.filter(end.is_not_null())
        start, end = _times(frame)
    begins, keys, number = groups_of(frame, by)
    if not len(begins):
        nothing = {"_group": pl.UInt32, "_start": pl.Int64, "_end": pl.Int64}
        bounds = {
            "_group": pl.UInt32,
            "first_ns": pl.Int64,
            "last_ns": pl.Int64,
            "_shift": pl.Int64,
        }
        rows = pl.DataFrame(schema=nothing).hstack(_kept(frame, kept))
        return GroupLine(rows, keys.hstack(pl.DataFrame(schema=bounds)))
    starts, ends = start.to_numpy(), end.to_numpy()
    first, last = np.minimum.reduceat(starts, begins), np.maximum.reduceat(ends, begins)
    if number is not None:
        order = np.argsort(number, kind="stable")
        of_group = np.searchsorted(number[order], np.arange(keys.height))
        first, last = (
            np.minimum.reduceat(first[order], of_group),
            np.maximum.reduceat(last[order], of_group),
        )
    shift = np.append(0, (last - first + 1).cumsum()[:-1]) - first
    groups = keys.hstack(
        [
            pl.Series("_group", np.arange(keys.height, dtype=np.uint32)),
            pl.Series("first_ns", first),
            pl.Series("last_ns", last),
            pl.Series("_shift", shift),
        ]
    )
    number = np.arange(len(begins), dtype=np.uint32) if number is None else number
    lengths = np.diff(begins, append=frame.height)
    moved = np.repeat(shift[number], lengths)
    starts = starts + moved
    rows = pl.DataFrame(
        [
            pl.Series("_group", np.repeat(number, lengths)),
            pl.Series("_start", starts),
            pl.Series("_end", ends + moved),
        ]
    )
    rows = rows.hstack(_kept(frame, kept))
    in_order = (starts[1:] >= starts[:-1]).all()
    return GroupLine(rows if in_order else rows.sort("_start", maintain_order=True), groups)


def _kept(frame: pl.DataFrame, kept: dict[str, pl.Expr]) -> pl.DataFrame:
    """Further columns, with a row for each row of the frame, also where they are constants."""
    return frame.select("start_ns", **kept)[list(kept)] if kept else pl.DataFrame()


def _times(frame: pl.DataFrame) -> tuple[pl.Series, pl.Series]:
    """Start and end of each interval (ns)."""
    start, length = frame["start_ns"].cast(pl.Int64), frame["dur_ns"].cast(pl.Int64)
    if (length.min() or 0) < 0:  # type: ignore[operator]
        length = length.clip(0)
    return start, start + length


def merge_line(line: GroupLine) -> pl.DataFrame:
    """Union of the intervals:

    ``_group, _start, _end``, disjoint, in order; kept columns are of the first.
    """
    rows, opens, until = _unions(line)
    union = rows[opens]
    return union.replace_column(union.get_column_index("_end"), pl.Series("_end", until))


def _unions(line: GroupLine) -> tuple[pl.DataFrame, np.ndarray, np.ndarray]:
    """Rows that are not empty, those of them that open a union (by number), and the end of each
    union.
    """
    rows = line.rows
    lasts = rows["_end"] > rows["_start"]
    rows = rows if lasts.all() else rows.filter(lasts)
    if not rows.height:
        return rows, np.empty(0, dtype=np.uint32), np.empty(0, dtype=np.int64)
    reach = np.maximum.accumulate(rows["_end"].to_numpy())
    opens = np.append(0, np.flatnonzero(rows["_start"].to_numpy()[1:] > reach[:-1]) + 1)
    return rows, opens.astype(np.uint32), reach[np.append(opens[1:], rows.height) - 1]


def off_line(intervals: pl.DataFrame, line: GroupLine, by: Sequence[str]) -> pl.DataFrame:
    """Intervals of the line (``_group, _start, _end``) back in their groups:

    ``<by...>, start_ns, dur_ns``.
    """
    at, start = intervals["_group"], intervals["_start"]
    keys = line.groups[[*by, "_shift"]][at]
    return keys.drop("_shift").hstack(
        [(start - keys["_shift"]).alias("start_ns"), (intervals["_end"] - start).alias("dur_ns")]
    )


class Placed(NamedTuple):
    """Other intervals on a line:

    ``known`` is whether their group is on it; where it is not, the times are 0.
    """

    start: np.ndarray
    end: np.ndarray
    shift: np.ndarray
    known: np.ndarray


def place_on_line(frame: pl.DataFrame, groups: pl.DataFrame, by: Sequence[str]) -> Placed:
    """Put other intervals onto the line, cut to ``_low <= t <= _high`` of their group."""
    begins = first_of_runs(require_columns(frame, by), by)
    lengths = np.diff(begins, append=frame.height)
    groups = groups.select(*by, "_shift", "_low", "_high")
    values = group_values(frame[["start_ns", *by]][begins], groups, by)
    known = np.repeat(values[0].is_not_null().to_numpy(), lengths)
    # where there is no group, the bounds are 0, and so are the times
    shift, low, high = (np.repeat(value.fill_null(0).to_numpy(), lengths) for value in values)
    times = _times(frame)
    if times[1].null_count():
        timed = times[1].is_not_null().to_numpy()
        known &= timed
        low[~timed] = high[~timed] = 0
        times = (times[0].fill_null(0), times[1].fill_null(0))
    placed = [time.to_numpy() + shift for time in times]
    for time in placed:
        np.clip(time, low, high, out=time)
    return Placed(placed[0], placed[1], shift, known)


def require_columns(frame: pl.DataFrame, columns: Sequence[str]) -> pl.DataFrame:
    """Check that a frame has the columns and those of an interval, and return it."""
    if missing := [c for c in (*columns, *INTERVAL) if c not in frame.columns]:
        raise AnalysisError(
            f"the frame has no columns {listed(missing)}",
            expected=f"some of {listed(frame.columns)}",
        )
    return frame


def union_lengths(frame: pl.DataFrame, by: Sequence[str] = (), **subsets: pl.Expr) -> pl.DataFrame:
    """Time covered by the union of intervals of several subsets of the rows; other set
    operations follow.
    """
    line = lay(frame, by, {name: within.fill_null(False) for name, within in subsets.items()})
    start, end, names = pl.col("_start"), pl.col("_end"), list(subsets)
    if not by and frame.is_empty():
        row = {"first_ns": None, "last_ns": None, **dict.fromkeys(names, 0)}
        return pl.DataFrame([row], schema=dict.fromkeys(row, pl.Int64()))
    added = []
    for name in names:
        reach = (
            pl.when(pl.col(name)).then(end).otherwise(LOWEST).cum_max().shift(1, fill_value=LOWEST)
        )
        new = (end - pl.max_horizontal(start, reach)).clip(lower_bound=0)
        added.append(pl.when(pl.col(name)).then(new).otherwise(0).alias(name))
    sums = (
        line.rows.lazy()
        .select(pl.col("_group").set_sorted(), *added)
        .group_by("_group")
        .agg(pl.col(names).sum())
    )
    out = line.groups.lazy().join(sums, on="_group", maintain_order="left")
    return out.select(*by, "first_ns", "last_ns", *names).collect()


def union_length(frame: pl.DataFrame, by: Sequence[str] = ()) -> pl.DataFrame:
    """Time covered by the union of the intervals of each group: overlapping parts count once."""
    return union_lengths(frame, by, busy_ns=pl.lit(True)).drop("first_ns", "last_ns")


def merge(frame: pl.DataFrame, by: Sequence[str] = ()) -> pl.DataFrame:
    """Union of the intervals of each group as disjoint intervals; touching ones become one."""
    line = lay(frame, by)
    return off_line(merge_line(line), line, by)


def gaps(frame: pl.DataFrame, by: Sequence[str] = (), **following: pl.Expr) -> pl.DataFrame:
    """Time between the intervals of each group that none of them covers."""
    line = lay(frame, by, following)
    union = merge_line(line)
    between = _gaps_between(union)
    return off_line(between, line, by).hstack(between.select(*following))


def _gaps_between(union: pl.DataFrame) -> pl.DataFrame:
    """Time between unions of the same group: the row of the later one, with other times."""
    group, until = union["_group"].to_numpy(), union["_end"].to_numpy()
    at = np.flatnonzero(group[1:] == group[:-1]).astype(np.uint32)
    between = union[at + 1]
    between.replace_column(between.get_column_index("_end"), between["_start"].alias("_end"))
    return between.replace_column(
        between.get_column_index("_start"), pl.Series("_start", until[at])
    )


def gaps_between(frame: pl.DataFrame, by: Sequence[str] = ()) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The gaps of :func:`gaps`, with the intervals at both ends of each."""
    line = lay(frame, by, {"row": pl.int_range(pl.len(), dtype=pl.UInt32)})
    rows, opens, until = _unions(line)
    union = rows[opens]
    between = _gaps_between(
        union.replace_column(union.get_column_index("_end"), pl.Series("_end", until))
    )
    # the gap after each union; none after the last one of a group
    group = union["_group"].to_numpy()
    inner = group[1:] == group[:-1]
    gap = np.append(np.where(inner, inner.cumsum() - 1, -1), np.full(min(1, len(group)), -1))
    of_row = np.repeat(np.arange(len(opens)), np.diff(opens, append=rows.height))
    last = np.flatnonzero((rows["_end"].to_numpy() == until[of_row]) & (gap[of_row] >= 0))
    ends = {"gap": gap[of_row[last]].astype(np.uint32), "row": rows["row"].to_numpy()[last]}
    return off_line(between, line, by).hstack([between["row"].alias("next")]), pl.DataFrame(ends)


def length_within(
    windows: pl.DataFrame, frame: pl.DataFrame, by: Sequence[str] = (), *, name: str = "busy_ns"
) -> pl.DataFrame:
    """Time in each window that the union of its group's intervals covers."""
    line = lay(frame if windows.height else frame.clear(), by)
    union = merge_line(line)
    if union.is_empty():
        return require_columns(windows, by).with_columns(pl.lit(0, dtype=pl.Int64).alias(name))
    group, start, end = (union[column].to_numpy() for column in ("_group", "_start", "_end"))
    before = np.append(0, (end - start).cumsum()[:-1])
    first = np.append(0, np.flatnonzero(group[1:] != group[:-1]) + 1)
    last = np.append(first[1:], len(group)) - 1
    bounds = {"_group": group[first], "_low": start[first], "_high": end[last]}
    placed = place_on_line(windows, line.groups.join(pl.DataFrame(bounds), on="_group"), by)
    covered = []
    for points in (placed.start, placed.end):
        at = np.maximum(np.searchsorted(start, points, side="right") - 1, 0)
        covered.append(before[at] + np.minimum(points, end[at]) - start[at])
    within = pl.Series(name, covered[1] - covered[0])
    return windows.with_columns(within)


def clip_intervals(
    frame: pl.DataFrame, windows: pl.DataFrame, by: Sequence[str] = ()
) -> pl.DataFrame:
    """Parts of the intervals that lie in a window of their group."""
    numbered = (
        require_columns(windows, by)
        .select(*by, *INTERVAL)
        .with_row_index("window")
        .filter(pl.col("dur_ns") > 0)
    )
    line = lay(numbered, by, {"window": pl.col("window")})
    starts, ends = line.rows["_start"].to_numpy(), line.rows["_end"].to_numpy()
    if (ends[:-1] > starts[1:]).any():
        raise AnalysisError(
            "two windows of one group overlap", expected="windows that do not overlap"
        )
    if not len(starts):
        return require_columns(frame, by).clear().with_columns(window=pl.lit(0, dtype=pl.UInt32))
    bounds = {
        "_low": pl.col("first_ns") + pl.col("_shift"),
        "_high": pl.col("last_ns") + pl.col("_shift"),
    }
    placed = place_on_line(require_columns(frame, by), line.groups.with_columns(**bounds), by)
    at = np.searchsorted(ends, placed.start, side="right")
    count = np.searchsorted(starts, placed.end, side="left") - at
    count[placed.start >= placed.end] = 0
    low, high, shift = placed.start, placed.end, placed.shift
    if (count != 1).any():  # an interval has a row for each window
        row = np.repeat(np.arange(frame.height, dtype=np.uint32), np.maximum(count, 0))
        frame, several = frame[row], count[count > 0]
        at = np.repeat(at[count > 0] - (several.cumsum() - several), several) + np.arange(
            several.sum()
        )
        low, high, shift = low[row], high[row], shift[row]
    low, high = np.maximum(low, starts[at]), np.minimum(high, ends[at])
    times = [pl.Series("start_ns", low - shift), pl.Series("dur_ns", high - low)]
    cut = [time for time in times if not time.equals(frame[time.name])]
    return frame.with_columns(*cut, line.rows["window"][pl.Series(at.astype(np.uint32))])


MAX_BINS = 1_000_000
"""Most bins of all groups together; more are treated as a mistake in the arguments."""


def time_bins(
    frame: pl.DataFrame, by: Sequence[str], *, bins: int, bin_ns: int | None = None
) -> pl.DataFrame:
    """Bins of time, the same for each group, from the first start to the last end of any; the
    last is cut there.
    """
    if bins < 1 or (bin_ns is not None and bin_ns < 1):
        raise AnalysisError(
            f"bins={bins}, bin_ns={bin_ns} make no bin",
            expected="at least one bin of at least 1 ns",
        )
    groups = frame.select(by).unique().sort(by, nulls_last=True)
    first, last = frame.select(first=pl.min("start_ns"), last=END.max()).row(0)
    first, last = (0, 0) if first is None else (first, max(last, first + 1))
    width = -(-(last - first) // bins) if bin_ns is None else bin_ns
    count = -(-(last - first) // max(width, 1))
    if count * groups.height > MAX_BINS:
        found = f"{count:,} bins of {groups.height} groups are too many"
        expected = f"at most {MAX_BINS:,} over all of them"
        raise AnalysisError(
            found, expected=expected, hint="make the bins wider, or select a window of the trace"
        )
    start = pl.int_range(first, last, max(width, 1), dtype=pl.Int64, eager=True).alias("start_ns")
    row = (
        start.to_frame()
        .with_row_index("bin")
        .with_columns(dur_ns=(last - pl.col("start_ns")).clip(0, width))
    )
    return groups.join(row, how="cross")
