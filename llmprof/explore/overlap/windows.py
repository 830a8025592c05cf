"""Lanes of a window that the explorer of overlap shows: classes of events, idle time, and streams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

from llmprof.analyze.activity import activity
from llmprof.analyze.intervals import clip, gaps, length_within, merge
from llmprof.analyze.layers.attribution import attribute
from llmprof.analyze.overlap import COMMUNICATION, COPY, overlap, overlap_within
from llmprof.analyze.steps.steps import steps
from llmprof.explore.base.wire import Buffers, array
from llmprof.trace import Trace

CLASSES = ("compute", "communication", "copy")
"""Classes of device events, as :func:`llmprof.analyze.overlap` tells them apart."""

PARTS = {
    "compute": pl.col("compute_ns") - pl.col("hidden_communication_ns"),
    "hidden communication": pl.col("hidden_communication_ns"),
    "exposed communication": pl.col("exposed_communication_ns"),
    "exposed copy": pl.col("exposed_copy_ns").fill_null(0),
    "idle": pl.col("idle_ns"),
}
"""Parts of a bar in order; they add up to its total."""

MAX_BARS = 300
"""Bars of steps that are sent."""

Window = tuple[int, int]
Side = tuple[Trace, int, Window]
"""A trace, one of its ranks, and a window of it."""


def whole_ns(window: Sequence[float]) -> Window:
    """A window in whole ns that is not empty."""
    first, last = round(window[0]), round(window[1])
    return first, max(last, first + 1)


def with_class(events: pl.DataFrame) -> pl.DataFrame:
    """Device events with ``class``, from their category."""
    category = pl.col("category")
    communication = pl.when(category.is_in(COMMUNICATION)).then(pl.lit("communication"))
    kind = communication.when(category.is_in(COPY)).then(pl.lit("copy")).otherwise(pl.lit("compute"))
    return events.with_columns(kind.alias("class"))


def span_of(trace: Trace, rank: int) -> Window | None:
    """First start and last end on the device of a rank (ns); None if nothing ran."""
    mine = activity(trace).filter(pl.col("rank") == rank)
    if mine.is_empty():
        return None
    first, last = mine.select(pl.col("start_ns").min(), last=(pl.col("start_ns") + pl.col("dur_ns")).max()).row(0)
    return int(first), max(int(last), int(first) + 1)


def step_bars(trace: Trace, *, rank: int, phase: str | None = None) -> pl.DataFrame:
    """Bars of the steps of a rank.

    ``first, last`` (steps), ``phase, start_ns, end_ns`` (on the device), ``total_ns`` and the parts of the bar (ns). Of
    more than ``MAX_BARS`` steps, consecutive ones share a bar, which has the means.
    """
    where = steps(trace).select("rank", "step", "phase", "start_ns", end_ns=pl.col("start_ns") + pl.col("dur_ns"))
    found = overlap(trace).filter(pl.col("rank") == rank, pl.col("step").is_not_null())
    found = found.join(where, on=["rank", "step"], how="left", maintain_order="left")
    if phase is not None:
        found = found.filter(pl.col("phase") == phase)
    size = max(1, -(-found.height // MAX_BARS))
    return (
        found.with_columns(bar=pl.int_range(pl.len()) // size, **PARTS)
        .group_by("bar", maintain_order=True)
        .agg(
            pl.col("step").min().alias("first"),
            pl.col("step").max().alias("last"),
            pl.col("phase").drop_nulls().mode().sort().first(),
            pl.col("start_ns").min(),
            pl.col("end_ns").max(),
            pl.col("total_ns", *PARTS).mean(),
        )
        .drop("bar")
    )


def step_window(trace: Trace, *, rank: int, step: int) -> Window | None:
    """Device span of a step (ns); None where the rank has no such step or ran nothing in it."""
    found = steps(trace).filter(pl.col("rank") == rank, pl.col("step") == step).drop_nulls("start_ns")
    if found.is_empty():
        return None
    first, length = found.select("start_ns", "dur_ns").row(0)
    return int(first), int(first) + max(1, int(length))


def steps_window(trace: Trace, *, rank: int, first: int, last: int) -> Window | None:
    """From the start of one step to the end of another, or of that one of them that ran; None if neither did."""
    found = [step_window(trace, rank=rank, step=step) for step in (first, last)]
    known = [span for span in found if span is not None]
    return (min(span[0] for span in known), max(span[1] for span in known)) if known else None


def aligned(
    window: Window, mine: tuple[Trace, int], theirs: tuple[Trace, int], step: int | None = None
) -> Window | None:
    """Window of another trace and rank that begins as far into the step as this one does.

    Where not both have the step, or none is given, as far into what they recorded of the ranks.
    """
    spans = [step_window(trace, rank=rank, step=step) if step is not None else None for trace, rank in (mine, theirs)]
    if None in spans:
        spans = [span_of(trace, rank) for trace, rank in (mine, theirs)]
    here, there = spans
    if here is None or there is None:
        return None
    return window[0] + there[0] - here[0], window[1] + there[0] - here[0]


def events_in(trace: Trace, rank: int, window: Window) -> pl.DataFrame:
    """Rows of ``attribute`` of a rank that overlap a window, with their ``class``."""
    first, last = window
    inside = (pl.col("start_ns") < last) & (pl.col("start_ns") + pl.col("dur_ns") > first)
    events = attribute(trace).filter(pl.col("rank") == rank, inside)
    return with_class(events)


def summary(trace: Trace, rank: int, window: Window) -> pl.DataFrame:
    """Parts of the time of a rank in a window: ``part, ns, share`` (of the window), then ``total``."""
    found = overlap_within(trace, window=window, ranks=[rank])
    wide = found.select(**PARTS, total=pl.col("total_ns"))
    long = wide.unpivot(variable_name="part", value_name="ns")
    return long.with_columns(share=(pl.col("ns") / (window[1] - window[0])).round(9))


def compared(*sides: pl.DataFrame) -> pl.DataFrame:
    """One summary or two beside each other: ``part, a_ns, a_share``, and ``b_ns, b_share, delta_ns`` (b - a)."""
    if not sides:
        return pl.DataFrame()
    both = sides[0].select("part", a_ns="ns", a_share="share")
    if len(sides) > 1:
        right = sides[1].select("part", b_ns="ns", b_share="share")
        both = both.join(right, on="part", how="left", maintain_order="left")
        both = both.with_columns(delta_ns=pl.col("b_ns") - pl.col("a_ns"))
    return both


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
