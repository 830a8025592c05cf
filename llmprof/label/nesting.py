"""Nesting of intervals: intervals inside other intervals, and the innermost interval at a
moment.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import polars as pl

from llmprof.label.groups import last_before, row_numbers
from llmprof.label.intervals import GroupLine, lay, place_on_line


def inside(inner: pl.DataFrame, outer: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """All pairs of an interval and another interval of its group that contains it, including
    equal ends.
    """
    groups = (
        pl.concat([inner.select(by), outer.select(by)])
        .unique(maintain_order=True)
        .with_row_index("_group")
    )
    end = pl.col("start_ns") + pl.col("dur_ns").clip(0)
    bounds = pl.concat([f.select("start_ns", end=end) for f in (inner, outer)])
    if not inner.height or not outer.height:
        return pl.DataFrame(schema={"inner": pl.UInt32, "outer": pl.UInt32})
    low, high = bounds.select(pl.min("start_ns"), pl.max("end")).row(0)
    base = pl.col("_group").cast(pl.Int64) * (high - low + 1) - low

    def place_rows(frame: pl.DataFrame, row: str) -> pl.DataFrame:
        placed = frame.select(*by, "start_ns", end=end).with_row_index(row)
        placed = placed.join(
            groups, on=list(by), how="left", nulls_equal=True, maintain_order="left"
        )
        return placed.select(row, from_=base + pl.col("start_ns"), to=base + pl.col("end"))

    points = place_rows(inner, "inner").sort("from_", maintain_order=True)
    spans = place_rows(outer, "outer")
    spans = spans.with_columns(
        pl.Series(
            "first", points["from_"].search_sorted(spans["from_"], side="left"), dtype=pl.Int64
        ),
        pl.Series("stop", points["from_"].search_sorted(spans["to"], side="right"), dtype=pl.Int64),
    ).filter(pl.col("first") < pl.col("stop"))
    pairs = spans.select("outer", "to", at=pl.int_ranges("first", "stop")).explode("at")
    point_row = pairs["at"]
    return pairs.with_columns(
        points["inner"].gather(point_row), inner_to=points["to"].gather(point_row)
    ).filter(pl.col("inner_to") <= pl.col("to"))[["inner", "outer"]]


def innermost(
    points: pl.DataFrame, spans: pl.DataFrame, by: Sequence[str], *, at: str, name: str
) -> pl.DataFrame:
    """Innermost span that covers each point; where two spans of a group overlap without nesting,
    there may be none.
    """
    after = _changes(spans, by)
    last = last_before(points, after.rename({"_time": at}), by, at=at)
    return points.with_columns(after["_inner"][last].alias(name))


def holds_any(spans: pl.DataFrame, times: pl.Series) -> np.ndarray:
    """Whether any of the times lies in a span, whatever its group: fewer spans are nested
    sooner.
    """
    moments = np.append(np.sort(times.to_numpy()), np.iinfo(np.int64).max)
    start, size = spans["start_ns"].to_numpy(), spans["dur_ns"].fill_null(0).to_numpy()
    return np.asarray(moments[np.searchsorted(moments[:-1], start)] <= start + size)


def innermost_pieces(spans: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Time of each group in pieces, each with the innermost span that covers it."""
    after = _changes(spans, by)
    until = pl.when(pl.col("_group") == pl.col("_group").shift(-1)).then(pl.col("_time").shift(-1))
    return after.select(
        *by, start_ns="_time", dur_ns=until - pl.col("_time"), span="_inner"
    ).filter(pl.col("span").is_not_null() & (pl.col("dur_ns") > 0))


def pieces_within(
    windows: pl.DataFrame, spans: pl.DataFrame, by: Sequence[str]
) -> tuple[pl.DataFrame, pl.Series]:
    """Time of each window, which may overlap others, in pieces with the innermost span that
    covers each: ``window, span, start_ns, dur_ns``, by window; and the parents of the spans.
    """
    edges, line = _nest_spans(spans, by)
    last, inner = _changes_of(edges)
    at = edges.at[last]
    bounds = {"_low": pl.col("first_ns"), "_high": pl.col("last_ns")}
    shifted = {name: bound + pl.col("_shift") for name, bound in bounds.items()}
    placed = place_on_line(windows, line.groups.with_columns(**shifted), by)
    first = np.maximum(np.searchsorted(at, placed.start, side="right") - 1, 0)
    count = np.searchsorted(at, placed.end, side="left") - first
    count[placed.start >= placed.end] = 0
    window = np.repeat(np.arange(windows.height, dtype=np.uint32), count)
    change = np.arange(len(window)) + np.repeat(first - (count.cumsum() - count), count)
    some = np.flatnonzero(inner[change] >= 0)
    window, change = window[some], change[some]
    begin = np.maximum(at[change], placed.start[window])
    # after the last change of all no span is open
    length = np.minimum(at[change + 1], placed.end[window]) - begin
    columns = {
        "window": window,
        "span": inner[change].astype(np.uint32),
        "start_ns": begin - placed.shift[window],
        "dur_ns": length,
    }
    return pl.DataFrame(columns), _parents_of(edges, spans.height)


def _changes_of(edges: _Edges) -> tuple[np.ndarray, np.ndarray]:
    """Edges after which another span is the innermost one, in order, and this span (-1: none)."""
    at = edges.at
    last = np.flatnonzero(np.append(at[1:] != at[:-1], len(at) > 0))
    return last, np.where(edges.begins[last], edges.span[last], edges.parent[last])


def _changes(spans: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Moments at which the innermost span changes, in order:

    ``_group, <by...>, _time, _inner`` (null for none).
    """
    edges, line = _nest_spans(spans, by)
    last, inner = _changes_of(edges)
    group = pl.Series("_group", edges.group[last])
    of_group = line.groups[[*by, "_shift"]][group]
    return of_group[list(by)].hstack(
        [
            group,
            pl.Series("_time", edges.at[last] - of_group["_shift"].to_numpy()),
            row_numbers(inner, "_inner"),
        ]
    )


def outermost(spans: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Spans that do not begin inside an earlier one of their group."""
    line = _timed_line(spans, by)
    return spans.filter(_outer_rows(*(line[name].to_numpy() for name in line.columns)))


def _timed_line(spans: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Start, end and row of the spans in the order of their position; one of unknown length has
    none.
    """
    timed = spans.select(*by, "start_ns", pl.col("dur_ns").fill_null(0))
    return lay(timed, by, {"_row": pl.int_range(pl.len())}).rows[["_start", "_end", "_row"]]


def _outer_rows(start: np.ndarray, end: np.ndarray, row: np.ndarray) -> np.ndarray:
    """Whether each row is that of a span that does not begin inside an earlier one."""
    reach = np.maximum.accumulate(end)
    chosen = np.zeros(len(row), dtype=np.bool_)
    chosen[row[np.append(True, start[1:] >= reach[:-1])[: len(row)]]] = True
    return chosen


def outermost_ops(ops: pl.DataFrame) -> pl.DataFrame:
    """Operators that are not inside another one of their thread."""
    ops = ops.filter(kind="op")
    line = _timed_line(ops, ["rank", "thread"])
    start, end, row = (line[name].to_numpy() for name in line.columns)
    # of several that begin together, the longest is around the others
    same = start[1:] == start[:-1]
    tied = np.flatnonzero(np.append(same, False) | np.append(False, same))
    order = tied[np.lexsort((-end[tied], start[tied]))]
    end, row = end.copy(), row.copy()
    end[tied], row[tied] = end[order], row[order]
    return ops.filter(_outer_rows(start, end, row)).sort(
        "rank",
        "thread",
        "start_ns",
        "dur_ns",
        descending=[False, False, False, True],
        maintain_order=True,
    )


def parents(spans: pl.DataFrame, by: Sequence[str]) -> pl.Series:
    """Row of the span directly around each span; null for the outermost spans and for spans of
    no length.
    """
    return _parents_of(_nest_spans(spans, by)[0], spans.height)


def _parents_of(edges: _Edges, height: int) -> pl.Series:
    parent = np.full(height, -1)
    parent[edges.span[edges.begins]] = edges.parent[edges.begins]
    return row_numbers(parent, "parent")


class _Edges(NamedTuple):
    """Begins and ends of spans in order; ``span`` and ``parent`` are rows of the spans, -1 for
    no parent.
    """

    group: np.ndarray
    at: np.ndarray
    begins: np.ndarray
    span: np.ndarray
    parent: np.ndarray


def _nest_spans(spans: pl.DataFrame, by: Sequence[str]) -> tuple[_Edges, GroupLine]:
    """Begins and ends of spans in order of their position on the line of all groups."""
    line = lay(spans, by, {"_span": pl.int_range(pl.len(), dtype=pl.UInt32)})
    start, end = line.rows["_start"].to_numpy(), line.rows["_end"].to_numpy()
    some = np.flatnonzero(end > start)
    start, end = start[some], end[some]
    count = len(some)
    size = end - start
    # At one moment spans end before others begin; the longer of two begins first and ends last, and
    # of two that are the same the first: begins stand in the order of their rows, ends against it.
    at = np.concatenate([start, end[::-1]])
    turn = np.concatenate([_LONGEST - size, size[::-1] - _LONGEST])
    order = np.argsort(at, kind="stable")
    same = at[order[1:]] == at[order[:-1]]
    if same.any():
        tied = np.flatnonzero(np.append(same, False) | np.append(False, same))
        of_tied = order[tied]
        order[tied] = of_tied[np.lexsort((turn[of_tied], at[of_tied]))]
    begins = order < count
    number = np.where(begins, order, 2 * count - 1 - order)
    depth = np.where(begins, 1, -1).cumsum()  # 0 where a group ends
    # the span around another one is the last to begin before it that is less deep by one
    opened = np.flatnonzero(begins)
    deep = depth[opened]
    key = deep * (2 * count + 1) + opened
    # numpy sorts small numbers in a time that is linear in their count
    by_depth = np.argsort(
        deep.astype(np.uint16) if count and deep.max() < 2**16 else deep, kind="stable"
    )
    outer = np.searchsorted(key[by_depth], key - (2 * count + 1)) - 1
    around = by_depth[np.maximum(outer, 0)] if count else outer
    known = (outer >= 0) & (deep[around] == deep - 1) if count else outer >= 0
    row = line.rows["_span"].to_numpy()[some].astype(np.int64)
    parent = np.full(count, -1)
    parent[number[opened]] = np.where(known, row[number[opened]][around], -1)
    group = line.rows["_group"].to_numpy()[some]
    return _Edges(group[number], at[order], begins, row[number], parent[number]), line


_LONGEST = 1 << 62
"""More than the length of any span (ns)."""


def lookup_column(small: pl.DataFrame, name: str, key: str) -> pl.Expr:
    """Expression that looks up ``name`` in ``small``: the column ``key`` has its row numbers
    (dense, from 0).
    """
    return pl.lit(small[name]).gather(pl.col(key))
