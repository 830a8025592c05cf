"""Recorded time before the first and after the last event of a device, or operator of a host
without one.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from llmprof.analyze.edge import edges
from llmprof.analyze.idle.host import host_spans, innermost_within
from llmprof.analyze.step_times import recorded_windows
from llmprof.findings.cause import Cause, Context, Figures, Measurement
from llmprof.findings.host import MOSTLY
from llmprof.findings.scope import Scope, heaviest, sum_of
from llmprof.text import shorten
from llmprof.trace.schema import END
from llmprof.units import format_ns, format_share


class RecordingEnds(Figures, frozen=True):
    """Times are of one rank."""

    before_ns: float
    after_ns: float
    started_in: str | None = None
    """What the host is in before the first event, if it is in that for most of the time."""
    started_in_share: float = 0.0

    def title(self, of: Context) -> str:
        if of.on_host:
            return f"No operator runs for {of.amount} before the first one and after the last."
        return (
            f"The {of.words['device']} runs nothing for {of.amount} before its first event and"
            " after its last."
        )

    def detail(self, of: Context) -> str:
        text = (
            f"{format_ns(self.before_ns)} before the first and {format_ns(self.after_ns)} after the"
            " last."
        )
        if self.started_in is None:
            return text
        share = format_share(self.started_in_share)
        return f"{text} Before the first the host is in {shorten(self.started_in, 100)} ({share})."

    def advice(self, of: Context) -> str:
        return (
            "Start the profiler after loading and warm-up, or look at what the host does there:"
            " this time is no part of a steady run."
        )


def _measure(scope: Scope) -> Measurement | None:
    if scope.steps is not None:
        return None
    ends = scope.events.group_by("rank").agg(first=pl.min("start_ns"), last=END.max())
    windows = recorded_windows(scope.trace)
    both = windows.join(ends, on="rank").select(
        "rank",
        before=pl.col("first") - pl.col("start_ns"),
        after=END - pl.col("last"),
        start_ns="start_ns",
        dur_ns=pl.col("first") - pl.col("start_ns"),
    )
    if not both.height:
        return None
    before = both.select("rank", "start_ns", dur_ns="before")
    pieces, spans = innermost_within(
        before, host_spans(scope.trace).with_columns(thread=0), ["rank"]
    )
    named = pieces.with_columns(who=spans["name"][pieces["span"]])
    who, share = heaviest(named, "who")
    in_who = share * sum_of(pieces, "dur_ns") / max(1.0, sum_of(before, "dur_ns"))
    figures = RecordingEnds(
        sum_of(both, "before") / scope.parts,
        sum_of(both, "after") / scope.parts,
        who if in_who >= MOSTLY else None,
        in_who,
    )
    ns = sum_of(both, "before") + sum_of(both, "after")
    return Measurement.of(both, figures, ns=ns, whole_ns=sum_of(windows, "dur_ns"))


IDLE_AT_THE_ENDS: Final = Cause("idle_at_the_ends", _measure, "events", min_share=0.05, info=True)


class WorkFromBefore(Figures, frozen=True):
    """Time of all ranks in which devices did what was launched before the recording."""

    before_ns: float

    def title(self, of: Context) -> str:
        return (
            f"The {of.words['device']} ran work from before the recording for"
            f" {format_ns(self.before_ns)}; no step holds that time."
        )

    def detail(self, of: Context) -> str:
        return "Nothing of it was recorded but the first event of the stream that waited for it."

    def advice(self, of: Context) -> str:
        return "Start the profiler between two steps, after waiting for the device."


def _work_from_before(scope: Scope) -> Measurement | None:
    rows = edges(scope.trace)
    figures = WorkFromBefore(sum_of(rows, "dur_ns"))
    return Measurement.of(rows, figures, gain_ns=0.0, where="waited_kind = 'before'")


WORK_FROM_BEFORE: Final = Cause("work_from_before", _work_from_before, "idle", info=True)
