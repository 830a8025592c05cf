"""Lanes of a window that the explorer of overlap shows: classes of events, idle time, and streams."""

from __future__ import annotations

from typing import Any

import polars as pl

from llmprof.analyze.intervals import clip, gaps, length_within, merge
from llmprof.explore._overlap_steps import CLASSES, Window, events_in
from llmprof.explore._pack import Buffers, array
from llmprof.trace import Trace


def lanes(trace: Trace, rank: int, window: Window, *, pixels: int) -> tuple[dict[str, Any], Buffers]:
    """Lanes of a window: first those of the classes and of idle time, then the streams.

    A lane with at most as many intervals as pixels has them as ``spans``: pairs of float64, ns from the start of the
    window. A fuller one has ``bins``: for each pixel a float32 a class, the share of it that is covered. Streams name
    the event of each span (``names`` and a uint32 each) and its class (uint8).
    """
    events = events_in(trace, rank, window)
    cut = events.select("stream", "class", "name", "start_ns", "dur_ns").with_columns(_cut(window))
    made = [_class_lane(name, rows, window, pixels) for name, rows in _classes(cut, window).items()]
    names = cut["name"].unique(maintain_order=True)
    for (stream,), rows in cut.sort("stream", nulls_last=True).group_by("stream", maintain_order=True):
        made.append(_stream_lane(stream, rows, names, window, pixels))
    buffers: Buffers = []
    heads = []
    for head, parts in made:
        heads.append({**head, "buffers": list(range(len(buffers), len(buffers) + len(parts)))})
        buffers += parts
    shown = any(head["kind"] == "spans" and head["stream"] for head in heads)
    whole = {"rank": rank, "window": list(window), "lanes": heads, "names": names.to_list() if shown else []}
    return whole, buffers


def _cut(window: Window) -> list[pl.Expr]:
    first, last = window
    start, end = pl.col("start_ns"), pl.col("start_ns") + pl.col("dur_ns")
    begin = start.clip(first, last)
    return [begin.alias("start_ns"), (end.clip(first, last) - begin).alias("dur_ns")]


def _classes(cut: pl.DataFrame, window: Window) -> dict[str, pl.DataFrame]:
    """Disjoint intervals of compute, communication without and with compute beside it, copies, and of nothing."""
    union = {name: merge(cut.filter(pl.col("class") == name)) for name in CLASSES}
    whole = pl.DataFrame({"start_ns": [window[0]], "dur_ns": [window[1] - window[0]]})
    return {
        "compute": union["compute"],
        "exposed communication": _without(union["communication"], union["compute"], window),
        "hidden communication": clip(union["communication"], union["compute"]).drop("window"),
        "copy": union["copy"],
        "idle": _without(whole, cut.select("start_ns", "dur_ns"), window),
    }


def _without(whole: pl.DataFrame, part: pl.DataFrame, window: Window) -> pl.DataFrame:
    """Intervals of ``whole`` where no interval of ``part`` is; all lie in the window."""
    beyond = pl.DataFrame({"start_ns": [window[0] - 1, window[1]], "dur_ns": [1, 1]})
    free = gaps(pl.concat([part, beyond]))
    return clip(whole, free).drop("window")


def _class_lane(name: str, rows: pl.DataFrame, window: Window, pixels: int) -> tuple[dict[str, Any], Buffers]:
    head = {"name": name, "stream": False, "count": rows.height, "total_ns": int(rows["dur_ns"].sum())}
    if rows.height <= pixels:
        return {**head, "kind": "spans"}, [_pairs(rows, window)]
    return {**head, "kind": "bins", "classes": [name]}, [array(_covered(rows, window, pixels), "f4")]


def _stream_lane(
    stream: object, rows: pl.DataFrame, names: pl.Series, window: Window, pixels: int
) -> tuple[dict[str, Any], Buffers]:
    head = {
        "name": "host" if stream is None else f"stream {stream}",
        "stream": True,
        "count": rows.height,
        "total_ns": int(rows["dur_ns"].sum()),
    }
    if rows.height <= pixels:
        rows = rows.sort("start_ns", maintain_order=True)
        index = pl.DataFrame({"name": names}).with_row_index("_name")
        which = rows.select("name").join(index, on="name", how="left", maintain_order="left")["_name"]
        kinds = rows["class"].replace_strict({c: n for n, c in enumerate(CLASSES)}, return_dtype=pl.UInt8)
        return {**head, "kind": "spans"}, [
            _pairs(rows, window),
            array(which, "u4"),
            array(kinds, "u1"),
        ]
    parts = [_covered(rows.filter(pl.col("class") == name), window, pixels) for name in CLASSES]
    return {**head, "kind": "bins", "classes": list(CLASSES)}, [array(pl.concat(parts), "f4")]


def _pairs(rows: pl.DataFrame, window: Window) -> memoryview:
    begin = pl.col("start_ns") - window[0]
    both = rows.select(pl.concat_list(begin, begin + pl.col("dur_ns")).explode().cast(pl.Float64))
    return array(both.to_series(), "f8")


def _covered(rows: pl.DataFrame, window: Window, pixels: int) -> pl.Series:
    """Share of each pixel that the intervals cover."""
    length = window[1] - window[0]
    edge = (pl.int_range(pixels + 1, eager=True).cast(pl.Float64) * (length / pixels)).round().cast(pl.Int64)
    bins = pl.DataFrame({"start_ns": edge[:-1] + window[0], "dur_ns": edge.diff()[1:]})
    covered = length_within(bins, rows.select("start_ns", "dur_ns"))
    return covered.select((pl.col("busy_ns") / pl.col("dur_ns")).fill_nan(0.0)).to_series()
