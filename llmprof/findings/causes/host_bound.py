"""Host-bound: a device is idle before kernels that its host has not launched yet."""

from __future__ import annotations

from typing import Final

import polars as pl
from msgspec import field

from llmprof.analyze.idle import launch_delay
from llmprof.analyze.idle.host import call_kinds
from llmprof.analyze.layers import host_times
from llmprof.findings.card import USUAL_STEPS
from llmprof.findings.cause import Cause, Context, Figures, Measurement
from llmprof.findings.host import (
    MOSTLY,
    HostActivity,
    OtherCall,
    advice_on,
    host_activity,
    other_call,
)
from llmprof.findings.scope import (
    HOST_LATE,
    STEADY,
    Scope,
    max_of,
    median_of,
    sum_of,
    whole_pauses,
    worst_ranks,
)
from llmprof.label.steps.labels import ENGINES
from llmprof.text import PART_WORDS
from llmprof.units import format_ns, format_share

LONG_PAUSE_NS: Final = 1_000_000
"""A launch and what a framework does around it take 5 to 500 us: fewer launches do not shorten
longer pauses.
"""

MIN_IN_GRAPHS: Final = 0.5
"""If at least this share of the kernels comes from replayed graphs, the remedy is not to use
graphs.
"""

ONE: Final = 1.5
"""Up to this mean number of replays, one launches a step."""

MAX_LAUNCHED_ALONE: Final = 100
"""More kernels than these for each replay are a part of the step that runs eagerly; an engine
has 10 to 50 between.
"""


class HostBound(Figures, frozen=True):
    """Counts are of one step or rank; shares are of the waiting, but the last of all kernels."""

    launching_share: float
    long_share: float
    """Share of pauses that fewer launches do not shorten."""
    replayed_share: float
    """Share of the kernels that a replayed graph launched."""
    host: HostActivity = field(default_factory=HostActivity)
    other: OtherCall | None = None
    calls: float | None = None
    kernels: float | None = None
    layer_ns: float | None = None
    """Time of the host for a layer, on the ranks that it is about, and on others."""
    layer_of_others_ns: float | None = None
    in_graphs: bool = False
    engine: bool = False
    could_run_ahead: bool = False
    """Whether the host waits for the device for most of the pauses between steps, and begins few
    steps before the device ends those before.
    """
    reads_prompts: bool = False
    """Whether all steps read prompts, which engines do not run as whole graphs."""
    between_share: float = 0.0
    """Share of pauses that lie between steps."""
    between_ns: float | None = None
    """Median of these."""
    once: bool = False
    """Whether most of it is one pause of a recording without steps."""
    replays: float = 0.0
    """Replayed graphs of a step or rank."""

    def title(self, of: Context) -> str:
        host = "their hosts launch" if of.on and len(of.on) > 1 else "its host launches"
        return f"{of.device_is} {PART_WORDS['host_bound']}: idle {of.amount} until {host} kernels."

    @property
    def is_between_steps(self) -> bool:
        """Whether pauses between steps are most of it, and not the launches in them."""
        return self.between_share >= MOSTLY and not self.in_graphs

    def detail(self, of: Context) -> str:
        text = (
            f"Meanwhile the launching thread is longest in {self.host}. The launching calls"
            f" themselves are {format_share(self.launching_share)} of the waiting."
        )
        if self.is_between_steps:
            return (
                f"{text} {format_share(self.between_share)} of it lies between steps, in pauses of"
                f" {format_ns(self.between_ns)} in the median."
            )
        if self.calls is not None and self.kernels is not None:
            text += f" {self.calls:,.0f} calls launch {self.kernels:,.0f} kernels {of.per}."
        else:
            text += " How many calls launch the kernels is not known."
        if self.replayed_share:
            text += f" Replayed graphs launch {format_share(self.replayed_share)} of them."
        if self.layer_ns is None:
            return text
        text += f" The host launches a layer in {format_ns(self.layer_ns)}"
        if self.layer_of_others_ns is not None and self.layer_ns > self.layer_of_others_ns:
            text += f", on the other ranks in {format_ns(self.layer_of_others_ns)}"
        return f"{text}."

    def advice(self, of: Context) -> str:
        if self.other is not None:
            return _advise_other_call(self.other, of)
        advice = self._advise_launches(of)
        if of.of_torch and self.host.set_up == "operators":
            return (
                f"{advice} This call compiles operators while the step waits:"
                " torch.npu.set_compile_mode(jit_compile=False) takes compiled ones."
            )
        if self.host.set_up in ("loading", "compiling"):
            return f"{advice} {advice_on(self.host.set_up, of)}"
        return advice

    def _advise_launches(self, of: Context) -> str:
        words = of.words
        already = "Most kernels come from replayed graphs already."
        if self.in_graphs:
            ahead = (
                "Launch the next step while the device works on this one (asynchronous"
                " scheduling). "
                if self.between_share >= MOSTLY and self.could_run_ahead
                else ""
            )
            is_code = self.host.name and self.host.kind != "call"
            named = f" {self.host.name}" if is_code else " what the host does"
            less = f"Shorten{named} before, between and after the replays."
            if self.launching_share >= MOSTLY:
                less = (
                    "Replay fewer or smaller graphs."
                    if self.replays > ONE
                    else "One replay launches a step already."
                )
                less += (
                    f" A profiler that records each kernel of a graph{of.words['each_node']} makes"
                    " its launch longer: measure without it first."
                )
            return f"{ahead}{less} {already}"
        if self.once:
            return (
                "Most of it is one pause: record more of the run, with functions of the host, to"
                " see whether it comes again and what the host does then."
            )
        is_named = (self.host.share or 0) >= MOSTLY and self.host.kind in (
            "range",
            "ranges",
            "call",
        )
        if self.is_between_steps and not (is_named and self.long_share >= MOSTLY):
            return (
                "Prepare and launch the next step while the device works on this one: scheduling,"
                " sampling and inputs. Fewer launches in a step do not shorten it."
            )
        if self.long_share >= MOSTLY:
            few = (
                f"Fewer launches gain little: {format_share(self.long_share)} of the waiting is"
                " pauses of 1 ms or more."
            )
            if is_named:
                return f"{_do_meanwhile(f'what the thread is in ({self.host.innermost})')} {few}"
            return (
                "Sample the CPU of the launching thread, or record its functions, to see what it"
                f" does then. {few}"
            )
        if self.engine and self.reads_prompts:
            return (
                f"Launch more work with each call: {words['compile']}, or more tokens of prompts in"
                f" a step. Engines run whole graphs for decode alone.{words['ahead']}"
            )
        if self.engine:
            return (
                f"Let one call launch a whole step: {words['use_graphs']}, or {words['compile']}."
                " Then look at the Python time of a layer, the CPU's governor and clocks, and the"
                f" profiler's own overhead.{words['ahead']}"
            )
        if of.of_torch:
            return (
                f"Launch more work with each call: {words['compile']}, fused operators, a larger"
                f" batch, or {words['graphs']} where shapes repeat. The profiler's own overhead is"
                f" part of it.{words['ahead']}"
            )
        return (
            f"Launch more work with each call: fewer and larger kernels, or {words['graphs']} where"
            " the same launches repeat. The profiler's own overhead is part of it."
        )


def _do_meanwhile(what: str) -> str:
    return (
        f"Do {what} while the device works, on another thread or after the launches. Or find out"
        " what it waits for: a file, another thread or process."
    )


def _advise_other_call(other: OtherCall, of: Context) -> str:
    text = _do_meanwhile(other.call) if other.set_up is None else advice_on(other.set_up, of)
    text += f" Fewer launches do not shorten {other.call} ({format_share(other.share)})."
    if other.once:
        text += " Most of it is one pause: if it comes only once, start the profiler after it."
    return text


def _measure(scope: Scope) -> Measurement | None:
    gaps = scope.idle(*HOST_LATE)
    if not gaps.height:
        return None
    # what is counted, is counted on the ranks with most of the waiting
    of, late = worst_ranks(scope, gaps)
    bound = pl.col("rank").is_in(of.windows["rank"].unique().implode())
    whole, late_ns = whole_pauses(late), sum_of(late, "dur_ns")
    long = sum_of(whole.filter(pl.col("dur_ns") >= LONG_PAUSE_NS), "dur_ns") / late_ns
    delays = scope.own_rows(launch_delay(scope.trace)).filter(bound)
    replays, replayed, eager_part = _share_in_graphs(scope, late)
    in_graphs = replayed >= MIN_IN_GRAPHS and not eager_part
    steps = scope.steps
    between = late.clear() if steps is None else late.remove("in_step")
    once = steps is None and (max_of(whole, "dur_ns") or 0) >= MOSTLY * late_ns
    layer_times = scope.own_rows(host_times(scope.trace))
    figures = HostBound(
        launching_share=sum_of(late.filter(cause="launch"), "dur_ns") / late_ns,
        long_share=long,
        replayed_share=replayed,
        host=host_activity(scope, late),
        other=other_call(late),
        calls=sum_of(delays, "launches") / of.parts if delays.height else None,
        kernels=sum_of(delays, "kernels") / of.parts if delays.height else None,
        layer_ns=median_of(layer_times.filter(bound), "host_dur_ns"),
        layer_of_others_ns=median_of(layer_times.filter(~bound), "host_dur_ns"),
        in_graphs=in_graphs,
        engine=steps is not None and bool(steps["source"].is_in([*ENGINES]).any()),
        could_run_ahead=in_graphs
        and not scope.starts_ahead
        and _waits_ns(of) >= MOSTLY * sum_of(between, "dur_ns"),
        reads_prompts=scope.reads_prompts,
        between_share=sum_of(between, "dur_ns") / late_ns,
        between_ns=median_of(whole_pauses(between), "dur_ns"),
        once=once,
        replays=replays / scope.parts,
    )
    of_decode = scope.words in (STEADY, USUAL_STEPS)
    launching = "no-host-delay:decode" if of_decode else "no-host-delay"
    change = "scale:host:0.5" if in_graphs else launching if long < MOSTLY else None
    where = "cause IN ('host_bound', 'launch')"
    return Measurement.of(
        whole,
        figures,
        ns=sum_of(gaps, "dur_ns"),
        where=where,
        change=change,
        by_rank=gaps,
        unsure=once,
    )


def _waits_ns(scope: Scope) -> float:
    """Time for which the host waits in calls for the device (ns): all that it could prepare in."""
    if not scope.trace.has("runtime"):
        return 0.0
    calls = scope.begun(scope.trace.runtime)
    return sum_of(calls.filter(call_kinds(calls["name"])["synchronises"]), "dur_ns")


def _share_in_graphs(scope: Scope, late: pl.DataFrame) -> tuple[int, float, bool]:
    """Number of replays, share of the kernels that a replayed graph launched, and whether most of
    the late time is in an eager part.
    """
    kernels = scope.events[["rank", "launch_start_ns"]].filter(scope.events["source"] == "kernel")
    if not kernels.height or not scope.trace.has("runtime"):
        return 0, 0.0, False
    calls = scope.trace.runtime.select("rank", "name", launch_start_ns="start_ns")
    replays = calls.filter(call_kinds(calls["name"])["replays"])[
        ["rank", "launch_start_ns"]
    ].unique()
    launch = ["rank", "launch_start_ns"]
    in_graphs = kernels.join(replays, on=launch, how="semi")
    alone = kernels.height - in_graphs.height
    before = sum_of(late.join(replays, on=launch, how="anti"), "dur_ns")
    eager_part = alone > MAX_LAUNCHED_ALONE * in_graphs.n_unique() and before > 0.5 * sum_of(
        late, "dur_ns"
    )
    return in_graphs.n_unique(), in_graphs.height / kernels.height, eager_part


HOST_BOUND: Final = Cause("host_bound", _measure, "idle")
