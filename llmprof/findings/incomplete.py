"""What the recording lacks: it stands before all that can be said of the rest."""

from __future__ import annotations

from typing import Any, Final

import polars as pl

from llmprof.label.completeness import (
    completeness,
    has_lost,
    incomplete_steps,
    left_out,
    lost_events,
)
from llmprof.label.steps.steps import steps_of
from llmprof.text import counted
from llmprof.trace import Trace
from llmprof.units import format_ns, format_share

INCOMPLETE: Final = "incomplete"


def incomplete_finding(trace: Trace) -> dict[str, Any] | None:
    """A row of :func:`llmprof.analyze.findings` where much that was launched was not recorded."""
    if not has_lost(trace):
        return _sample(trace)
    rows = completeness(trace)
    launched, missing, _ = lost_events(trace)
    of_steps = steps_of(trace)["step"].n_unique()
    lacking = rows.filter(~pl.col("complete"))["step"].drop_nulls().n_unique()
    first_ns = rows.select(pl.min("first_ns")).item()
    worst = rows.sort("missing", descending=True).row(0, named=True)
    began = (
        "How much of this rank is gone is not known."
        if first_ns is None
        else f"The first launch without its events is at {format_ns(first_ns)}."
    )
    unreal = int(trace.coverage.get("impossible", 0))
    if unreal >= missing:
        began = (
            f"{counted(unreal, 'event')} with impossible times, such as 0, are left out. {began}"
        )
    ran = trace.copies.height if trace.has("copies") else 0
    title = (
        f"The recording lacks {missing:,} of {launched:,} launched events on the device"
        f" ({format_share(missing / launched)})"
        + (f", in {lacking} of {of_steps} steps." if of_steps else ".")
    )
    if first_ns is None:
        title = (
            f"Several ranks wrote over each other: {missing:,} events of other devices stand where"
            " this rank's should be."
        )
    whole = of_steps - incomplete_steps(trace)["step"].n_unique()
    judged = (
        "None of it gets a cause."
        if not of_steps
        else f"No cause is given for them. Explained below: {counted(whole, 'complete step')}."
        if whole
        else "No step is complete with the start of the next, so no cause is given."
    )
    return {
        "rule": INCOMPLETE,
        "severity": "info",
        "title": title,
        "figure": float(missing),
        "unit": "events",
        "share": None,
        "scope": "whole recording",
        "denominator": "events that were launched",
        "evidence": "coverage",
        "rank": worst["rank"],
        "start_ns": first_ns,
        "detail": f"{began} {judged}",
        "suggestion": (
            "Record again, with a file of its own for each rank."
            if first_ns is None
            else f"Device activity was on, since {counted(ran, 'copy')} came back: use a version of"
            " the profiler that records kernels of this device, or another profiler."
            if missing == launched and ran
            else "Record again with another version of the profiler, which wrote these times."
            if unreal >= missing
            else f"Record again with {trace.capture.how_to_record('kernels')}."
            if missing == launched
            else "Record again: fewer steps at a time, or a larger or more often flushed buffer of"
            f" the profiler{', with --cuda-graph-trace=node' * (trace.capture.tool == 'nsys')}."
        ),
        "weight": float("inf"),
    }


def _sample(trace: Trace) -> dict[str, Any] | None:
    """The same for a sample, in which what launched and what ran are left out together."""
    if not (missing := left_out(trace)):
        return None
    return {
        "rule": INCOMPLETE,
        "severity": "info",
        "title": f"The recording is a sample: {missing:,} calls of the host are not in it.",
        "figure": float(missing),
        "unit": "events",
        "scope": "whole recording",
        "denominator": "calls by their ids",
        "evidence": "coverage",
        "rank": trace.ranks[0],
        "detail": "What they launched is not there, either: idle time may be that of missing work.",
        "suggestion": "Read the whole recording of which this is a part.",
        "weight": float("inf"),
    }
