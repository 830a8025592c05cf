"""Groups of rows with equal keys: rows mostly stand in runs of one key, so a key is looked up once
for each run.

Keys are columns such as rank, thread or step; null is a key like any other. Nothing here loops over
rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import polars as pl


def first_of_runs(frame: pl.DataFrame, by: Sequence[str]) -> np.ndarray:
    """First row of each run of rows with equal keys; null is a key like any other."""
    if not frame.height:
        return np.empty(0, dtype=np.int64)
    changes = np.zeros(frame.height - 1, dtype=np.bool_)
    others = []
    for column in map(frame.get_column, by):
        if column.dtype.is_integer() and not column.null_count():
            values = column.to_numpy()
            changes |= values[1:] != values[:-1]
        else:
            others.append(column)
    if others:
        for run in pl.select(pl.lit(column).rle_id().alias(column.name) for column in others):
            numbers = run.to_numpy()
            changes |= numbers[1:] != numbers[:-1]
    return np.append(0, np.flatnonzero(changes) + 1)


def is_sorted(frame: pl.DataFrame, by: Sequence[str]) -> bool:
    """Whether rows are in the order of these columns (numbers, not null); a look is faster than
    sorting once more.
    """
    tied = np.ones(max(0, frame.height - 1), dtype=np.bool_)
    for values in (frame[column].to_numpy() for column in by):
        if (tied & (values[1:] < values[:-1])).any():
            return False
        tied &= values[1:] == values[:-1]
    return True


def distinct_keys(frame: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Distinct keys of the rows, in the order of their first row."""
    return frame[list(by)][first_of_runs(frame, by)].unique(maintain_order=True)


def groups_of(
    frame: pl.DataFrame, by: Sequence[str]
) -> tuple[np.ndarray, pl.DataFrame, np.ndarray | None]:
    """Runs of equal keys and the groups that they belong to, in the order of the keys, nulls
    last.
    """
    begins = first_of_runs(frame, by)
    keys = frame[list(by)][begins] if by else pl.DataFrame(height=len(begins))
    if not by or len(begins) < 2:
        return begins, keys, None
    ordered = keys.with_row_index("_run").sort(by, nulls_last=True, maintain_order=True)
    first = first_of_runs(ordered, by)
    order = ordered["_run"].to_numpy()
    if len(first) == len(begins) and (order[1:] > order[:-1]).all():
        return begins, keys, None
    number = np.empty(len(begins), dtype=np.uint32)
    number[order] = np.repeat(
        np.arange(len(first), dtype=np.uint32), np.diff(first, append=len(begins))
    )
    return begins, ordered.drop("_run")[first], number


def group_values(frame: pl.DataFrame, groups: pl.DataFrame, by: Sequence[str]) -> list[pl.Series]:
    """Values of the group of each row, null if it has none; a key is looked up once for each run
    of equal keys.
    """
    keys, values = list(by), [column for column in groups.columns if column not in by]
    if not keys:
        return [groups[value].head(1).new_from_index(0, frame.height) for value in values]
    begins = first_of_runs(frame, keys)
    lengths = np.diff(begins, append=frame.height)
    runs = frame[keys][begins]
    if len(begins) + groups.height <= _FEW:  # a join takes longer to begin
        place = {key: row for row, key in enumerate(groups[keys].rows())}
        found = np.array([place.get(key, -1) for key in runs.rows()], dtype=np.int64)
        return groups[values][row_numbers(np.repeat(found, lengths))].get_columns()
    joined = runs.join(groups, on=keys, how="left", nulls_equal=True, maintain_order="left")
    run = np.repeat(np.arange(len(begins), dtype=np.uint32), lengths)
    return joined[values][pl.Series(run)].get_columns()


_FEW: Final = 1 << 8


def row_numbers(rows: np.ndarray, name: str = "") -> pl.Series:
    """Numbers of rows (u32), null where they are negative."""
    none = rows < 0
    numbers = pl.Series(
        name, np.where(none, 0, rows).astype(np.uint32)
    )  # Polars checks the bounds of nulls, too
    return numbers.set(pl.Series(none), None) if none.any() else numbers


def last_before(
    points: pl.DataFrame, marks: pl.DataFrame, by: Sequence[str], *, at: str
) -> pl.Series:
    """For each point, the last mark of its group that is not after it."""
    place = np.full(points.height, -1, dtype=np.int64)
    rows, times, of_key = _sort_by_key(marks, by, at)
    order, keys, bounds = _runs(points, by)
    times_of_points = points[at]
    unknown = times_of_points.null_count() > 0
    moments = (times_of_points.fill_null(0) if unknown else times_of_points).to_numpy()
    moments = moments if order is None else moments[order]
    for key, begin, end in zip(keys, bounds[:-1], bounds[1:], strict=True):
        if key in of_key:
            first, stop = of_key[key]
            before = np.searchsorted(times[first:stop], moments[begin:end], side="right")
            place[begin:end] = np.where(before > 0, before + (first - 1), -1)
    if order is not None:
        placed, place = place, np.empty_like(place)
        place[order] = placed
    if unknown:
        place[times_of_points.is_null().to_numpy()] = -1
    if rows is not None and len(rows):
        place = np.where(place < 0, place, rows[place])
    return row_numbers(place, "mark")


def last_with(points: pl.DataFrame, marks: pl.DataFrame, number: str) -> pl.Series:
    """For each point, the last mark of its rank with its number (a whole one); null if there is
    none.
    """
    place = np.full(points.height, -1, dtype=np.int64)
    wanted, of_rank = _numbers(points, number)
    ids, marks_of_rank = _numbers(marks, number)
    every = np.arange(marks.height, dtype=np.int32)
    for rank, rows in of_rank.items():
        if rank not in marks_of_rank or not len(own := ids[marks_of_rank[rank]]):
            continue
        low, high = int(own.min()), int(own.max())
        here = wanted[rows] - low
        distinct = None
        if high - low > 8 * len(own) + (1 << 20):  # far apart: number them
            distinct, own = np.unique(own, return_inverse=True)
            at = np.minimum(np.searchsorted(distinct, here + low), len(distinct) - 1)
            fits = distinct[at] == here + low
        else:
            own = own - low
            fits = (here >= 0) & (here <= high - low)
            at = here if fits.all() else np.where(fits, here, 0)
        row_of = np.full(high - low + 1 if distinct is None else len(distinct), -1, dtype=np.int32)
        row_of[own] = every[marks_of_rank[rank]]
        place[rows] = np.where(fits, row_of[at], -1)
    return row_numbers(place, "mark")


def _numbers(frame: pl.DataFrame, number: str) -> tuple[np.ndarray, dict[object, Any]]:
    """Numbers of the rows, and for each rank the rows in which it is known."""
    order, keys, bounds = _runs(frame, ["rank"])
    known = frame[number].is_not_null().to_numpy() if frame[number].null_count() else None
    parts: dict[object, Any] = {}
    for (rank,), begin, end in zip(keys, bounds[:-1], bounds[1:], strict=True):
        if known is None and order is None and rank not in parts:
            parts[rank] = slice(begin, end)
            continue
        part = np.arange(begin, end) if order is None else order[begin:end]
        part = part if known is None else part[known[part]]
        if isinstance(before := parts.get(rank, part[:0]), slice):
            before = np.arange(before.start, before.stop)
        parts[rank] = np.concatenate([before, part])
    return frame[number].fill_null(0).to_numpy(), parts


_Key = tuple[object, ...]

_FEW_RUNS = 1 / 16
"""With more runs of equal keys than this share of the rows, the rows are ordered by key."""


def _sort_by_key(
    marks: pl.DataFrame, by: Sequence[str], at: str
) -> tuple[np.ndarray | None, np.ndarray, dict[_Key, tuple[int, int]]]:
    """Rows of marks by key and moment (None if they are in this order), their moments, and the
    part of each key.
    """
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
    """Runs of equal keys: order of the rows in which there are few (None for that of the frame),
    keys and bounds.
    """
    if not by or not frame.height:
        return None, [()] * min(1, frame.height), [0, frame.height][: 1 + min(1, frame.height)]
    keys, order = frame[list(by)], None
    begins = first_of_runs(keys, by)
    if len(begins) > max(64, few * frame.height):
        order = keys.select(pl.arg_sort_by(*by, maintain_order=True)).to_series().to_numpy()
        keys = keys[order]
        begins = first_of_runs(keys, by)
    return order, keys[begins].rows(), [*begins.tolist(), frame.height]
