"""What the host does while a device waits, where a call or function says it: it allocates memory,
compiles or loads kernels, sets up the device, loads data or prepares inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import polars as pl

from llmprof.findings.cause import Cause, Context, Figures, Measurement, longest_in
from llmprof.findings.host import advice_on, first_match
from llmprof.findings.reasons import BEFORE, REASONS
from llmprof.findings.scope import (
    Scope,
    change_without,
    heaviest,
    max_of,
    sum_of,
    whole_pauses,
    worst_ranks,
)
from llmprof.text import counted, shorten
from llmprof.units import format_ns, format_share

SHOWN: Final = 20
"""Longest pauses that its evidence shows in any case."""

SETS_UP_NS: Final = 100_000_000
"""Calls that take as long on average do more than to give or take memory or to load code."""

_WORK: Final = {
    "allocation": "allocates or frees memory",
    "compilation": "compiles kernels",
    "loading": "loads kernel code",
    "device_set_up": "sets up the device",
    "data_loading": "loads data",
    "input_preparation": "prepares inputs",
}


def host_work_words(reason: str) -> str:
    """What the host does for a reason, with its verb."""
    return _WORK[reason]


def advice_for(reason: str, of: Context) -> str:
    """What helps against it."""
    if reason == "data_loading":
        if of.of_torch:
            return (
                "Load batches while the device works: more workers (num_workers), prefetch_factor,"
                " persistent_workers, pinned memory with non_blocking copies; decode and resize"
                " less for each sample."
            )
        return "Load the next batch while the device works, with more workers."
    if reason == "input_preparation":
        return (
            "Prepare the next inputs while the device works (other processes), or on the device,"
            " and cache what is prepared again and again."
        )
    if reason == "device_set_up":
        return "Make streams and events once, before the work that repeats, and warm up first."
    kinds = {"allocation": "memory", "compilation": "compiling", "loading": "loading"}
    return advice_on(kinds[reason], of)


class HostWork(Figures, frozen=True):
    """Pauses are of one step or rank, calls of all."""

    reason: str
    who: str
    """The call or function with most of it."""
    by_who_share: float
    pauses: float
    max_ns: float | None
    calls: int | None = None
    calls_ns: float | None = None
    first_launches: bool = False
    """Whether kernels were loaded at the first launch of each."""

    def title(self, of: Context) -> str:
        who = longest_in(shorten(self.who, 100), self.by_who_share)
        likely = "likely " if self.who.startswith(BEFORE) else ""
        work = host_work_words(self.reason)
        return f"{of.device_is} idle {of.amount}: the host {likely}{work}, {who}."

    def detail(self, of: Context) -> str:
        text = (
            f"{counted(self.pauses, 'such pause')} {of.per}, the longest of"
            f" {format_ns(self.max_ns)}; {format_share(self.by_who_share)} of it is in"
            f" {shorten(self.who, 100)}."
        )
        if self.first_launches:
            text += " These are first launches of kernels."
        if self.calls is None:
            return text
        return f"{text} {counted(self.calls, 'call')} of it took {format_ns(self.calls_ns)} in all."

    def advice(self, of: Context) -> str:
        if self.calls and (self.calls_ns or 0) >= SETS_UP_NS * self.calls:
            return (
                "A call this long sets up the device or a library at its first use: warm up before"
                " the profiler starts."
            )
        return advice_for(self.reason, of)


def _measure_of(reason: str) -> Callable[[Scope], Measurement | None]:
    def measure(scope: Scope) -> Measurement | None:
        if scope.trace.capture.on_host:
            return None
        gaps = scope.pauses.filter(reason=reason)
        if not gaps.height:
            return None
        of, own = worst_ranks(scope, gaps)
        who, share = heaviest(own, "who")
        whole = whole_pauses(own)
        calls = pl.DataFrame()
        if scope.trace.has("runtime"):
            calls = of.begun(scope.trace.runtime).filter(pl.col("name").eq_missing(who))
        figures = HostWork(
            reason,
            str(who),
            share,
            pauses=whole.height / of.parts,
            max_ns=max_of(whole, "dur_ns"),
            calls=calls.height or None,
            calls_ns=sum_of(calls, "dur_ns") if calls.height else None,
            first_launches=reason == "loading"
            and first_match(who, {"": REASONS["loading"][1]}) is None,
        )
        name = str(who).removeprefix(BEFORE)
        quoted = name.replace("'", "''")
        # a pause may hold other work of the host for longer
        longest = ", ".join(map(str, whole.top_k(SHOWN, by="dur_ns")["start_ns"]))
        where = (
            f"host_name = '{quoted}' OR waited_name = '{quoted}' OR call = '{quoted}'"
            f" OR start_ns IN ({longest})"
        )
        removable = reason in ("allocation", "compilation") and calls.height
        change = change_without(who) if removable else None
        ns = sum_of(gaps, "dur_ns")
        return Measurement.of(
            whole,
            figures,
            ns=ns,
            where=where,
            change=change,
            by_rank=gaps,
            about=name,
            unsure=str(who).startswith(BEFORE),
        )

    return measure


HOST_WORK: Final = tuple(Cause(reason, _measure_of(reason), "idle") for reason in REASONS)
