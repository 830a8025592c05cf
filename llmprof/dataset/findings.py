"""Findings of many ranks: workers reduce each rank to the representative steps, then the rules look at all ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import polars as pl

from llmprof import schema
from llmprof.analyze import catalog
from llmprof.analyze.collectives.collectives import collectives
from llmprof.analyze.findings.findings import findings, ranked
from llmprof.analyze.findings.scope import STEADY, Choice, Scope, choose
from llmprof.analyze.findings.work import CORE_FACTS
from llmprof.analyze.idle.host import call_kinds, launch_delay
from llmprof.analyze.layers.attribution import attribute
from llmprof.analyze.layers.layers import layers
from llmprof.analyze.steps.summary import recorded_windows, steady_state, step_windows, time_parts
from llmprof.errors import NotCapturedError
from llmprof.trace import Trace

FIRST: Final = ("recorded_calls", *(catalog.declaration(findings).first or ()))
"""Functions of the first pass: they give the representative steps, and the rank that each call waits for."""

CALLS: Final = ("rank", "start_ns", "dur_ns", "name", "wait_ns", "unmatched")
"""Columns that a worker needs of the calls of its rank."""

_EVENTS: Final = (
    "rank", "device", "start_ns", "dur_ns", "name", "source", "category", "stage", "layer", "launch_start_ns",
)  # fmt: skip
_PAUSES: Final = (
    "rank", "device", "part", "start_ns", "dur_ns", "cause", "held_by", "held_kind", "doing", "doing_kind",
    "sync_name", "who", "reason", "waited_ns",
)  # fmt: skip


def scope_windows(trace: Trace, *, words: str) -> pl.DataFrame:
    """Representative windows of one rank (``words``: steady decode steps, steps (of a phase) or whole recording)."""
    if words == "whole recording":
        return recorded_windows(trace)
    windows = step_windows(trace)
    if words == "steps":
        return windows
    if words != STEADY:
        return windows.filter(pl.col("phase") == words.removesuffix(" steps"))
    chosen = steady_state(trace).select("rank", "step")
    return windows.join(chosen, on=["rank", "step"], how="semi", maintain_order="left")


def _scope(trace: Trace, words: str) -> Scope:
    return Scope(trace, words, None, scope_windows(trace, words=words), 0)


def scope_times(trace: Trace, *, words: str) -> pl.DataFrame:
    """Windows of one rank, divided into parts that add up to them."""
    return time_parts(trace, scope_windows(trace, words=words))


def scope_events(trace: Trace, *, words: str) -> pl.DataFrame:
    """Device events in the windows of one rank; texts are categorical, since few values repeat often."""
    return _numbered_texts(_scope(trace, words).events.select(_EVENTS))


def scope_bounds(trace: Trace, *, words: str) -> pl.DataFrame:
    """Operators of one rank with a bound, and their time in its windows."""
    return _scope(trace, words).bounds


def scope_pauses(trace: Trace, *, words: str) -> pl.DataFrame:
    """Pauses of the device in the windows of one rank."""
    return _numbered_texts(_scope(trace, words).pauses.select(_PAUSES))


def scope_hosts(trace: Trace) -> pl.DataFrame:
    """Whether one rank has operators of the host in place of device events: ``rank, events, operators``."""
    events = attribute(trace)
    return events.group_by("rank").agg(events=pl.len(), operators=(pl.col("source") == "op").sum())


def replays(trace: Trace) -> pl.DataFrame:
    """Calls of one rank that replay a graph."""
    if not trace.has("runtime"):
        return schema.empty("runtime")
    calls = trace.runtime
    return calls.filter(call_kinds(calls["name"])["replays"]).select(list(schema.TABLES["runtime"].schema))


def copies(trace: Trace) -> pl.DataFrame:
    """Copies of one rank."""
    return trace.copies.select(list(schema.TABLES["copies"].schema))


def measured_kernels(trace: Trace) -> pl.DataFrame:
    """Kernels of one rank with measured core metrics; no rows if the profiler measured none."""
    kernels = trace.kernels
    facts = [column for column in CORE_FACTS if column in kernels.columns]
    kept = ["rank", "device", "start_ns", "dur_ns", "name", *facts]
    return kernels.select(kept) if facts else kernels.select(kept).clear()


def layer_times(trace: Trace) -> pl.DataFrame:
    """Layers of one rank, without their stages."""
    return layers(trace, per="layer")


def _numbered_texts(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.with_columns(pl.col(pl.String).cast(pl.Categorical))


OF_SCOPE: Final[dict[str, Callable[..., pl.DataFrame]]] = {
    one.__name__: one for one in (scope_windows, scope_times, scope_events, scope_pauses, scope_bounds)
}
"""Functions of one rank that depend on the representative steps."""

OF_RANK: Final[dict[str, Callable[..., pl.DataFrame]]] = {
    one.__name__: one for one in (scope_hosts, replays, copies, measured_kernels, layer_times)
}
"""The other functions of one rank, except ``launch_delay``."""


def choices(first: Mapping[str, pl.DataFrame | None]) -> list[Choice]:
    """The representative parts of the run, from :data:`FIRST` of all ranks."""
    frames = {name: frame for name, frame in first.items() if frame is not None}
    if "recorded_windows" not in frames:
        raise NotCapturedError("no rank of the dataset holds kernels, copies or operators", table="kernels")
    return choose(frames["steps"], frames["step_windows"], frames["steady_state"])


def joined(
    trace: Trace, chosen: Choice, results: Mapping[str, pl.DataFrame | None], calls: pl.DataFrame | None
) -> pl.DataFrame:
    """Findings from the results of all ranks."""
    tables: dict[str, Any] = {name: results.get(result) for name, result in _TABLES.items()}
    # one row for each rank in a table that no rule looks at, so that it has the ranks of the dataset
    ranks = pl.Series(trace.ranks, dtype=pl.Int32)
    tables["counters"] = pl.DataFrame({"rank": ranks}).with_columns(time_ns=0, name=pl.lit(""), value=0.0)
    # a trace with the tables that the rules look into; all other results are stored with it here
    small = Trace({name: frame for name, frame in tables.items() if frame is not None}, trace.meta, trace.coverage)
    kept: list[tuple[Any, pl.DataFrame | None, dict[str, Any]]] = [
        (collectives, calls, {}),
        (launch_delay, results.get("launch_delay"), {}),
        (layers, results.get("layer_times"), {"per": "layer"}),
    ]
    for function, frame, options in kept:
        if frame is not None:
            catalog.keep(small, function, frame, **options)
    texts = pl.col(pl.Categorical).cast(pl.String)
    windows, events, gaps = (results[name] for name in ("scope_windows", "scope_events", "scope_pauses"))
    recorded = results["recorded_windows"]
    assert windows is not None and recorded is not None  # noqa: S101, PT018 - choice looked at them
    words, steps, of_ns = chosen
    scope = Scope(small, words, steps, windows, int(recorded["dur_ns"].sum()), of_ns)
    hosts = results["scope_hosts"]
    on_host = hosts is not None and hosts["events"].sum() > 0 and hosts["events"].sum() == hosts["operators"].sum()
    cut = None if gaps is None else gaps.with_columns(texts)
    scope.__dict__.update(  # set cached properties, which would otherwise read the whole trace
        events=None if events is None else events.with_columns(texts),
        pauses=cut,
        times=results["scope_times"],
        on_host=on_host,
    )
    if results["scope_bounds"] is not None:
        scope.__dict__["bounds"] = results["scope_bounds"]
    return ranked(scope, whole=trace)


_TABLES: Final = {"runtime": "replays", "copies": "copies", "kernels": "measured_kernels"}
"""Tables that the rules look into, and the functions that collect the needed rows."""
