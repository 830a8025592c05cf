"""What the explorer of overlap shows of steps and windows: bars, spans, events and sums."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from llmprof.analyze.activity import activity
from llmprof.analyze.attribution import attribute
from llmprof.analyze.overlap import COMMUNICATION, COPY, overlap
from llmprof.analyze.overlap_within import overlap_within
from llmprof.analyze.steps import steps
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
    where = steps(trace).select(
        "rank", "step", "phase", start_ns="device_start_ns", end_ns=pl.col("device_start_ns") + pl.col("device_dur_ns")
    )
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
    found = steps(trace).filter(pl.col("rank") == rank, pl.col("step") == step).drop_nulls("device_start_ns")
    if found.is_empty():
        return None
    first, length = found.select("device_start_ns", "device_dur_ns").row(0)
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
    found = overlap_within(trace, window, ranks=[rank])
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
