"""Changes of a recording whose effect on the step time a replay predicts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
from msgspec import Struct

from llmprof.analyze.collectives.collectives import collectives
from llmprof.analyze.roofline import roofline
from llmprof.errors import AnalysisError, listed
from llmprof.replay.graph import COLLECTIVE, LOADING, SCHEDULED, SYNCHRONISE, graph
from llmprof.replay.plan import ReplayPlan, calls_of_rows, new_transfer
from llmprof.replay.targets import TARGET, operators_below_target, saved_of
from llmprof.theory.hardware import Device
from llmprof.trace import Trace
from llmprof.trace.kept import per_trace

GRAPH_GAP_NS: Final = (300.0, 450.0, 900.0)
"""Gap between kernels of a replayed CUDA graph: low, expected, high, in ns.

Tenth, fiftieth and ninetieth percentile in llmprof's own captures of CUDA graphs on H200: 0.29 to
0.38, 0.42 to 0.45 and 0.70 to 0.90 us in three captures.
"""

GRAPH_LAUNCH_NS: Final = (10_000.0, 30_000.0, 700_000.0)
"""Time of the host's call that replays a graph of a whole step: low, expected, high, in ns.

The high value is what the call took in the same captures, where the profiler records every node of
the graph.
"""

REST_OF_HOST: Final = (0.5, 1.0, 1.0)
"""How long the host takes for what remains of its work, as a share of what was recorded: low,
expected, high.

Of one operator outside of the layers with the same shapes (``aten::argmax``, ``aten::index``,
FlashAttention's scheduler metadata and five more) the medians in llmprof's seven captures of vLLM
on H200 differ by 1.7 to 2.7 times: how busy the host is differs from run to run, and a recording
whose host is busy does not say how fast it could be.
"""

KERNEL_FIXED_NS: Final = (0.0, 3_000.0, 9_000.0)
"""Part of a kernel's time that does not shrink with its share of the work: low, expected, high, in
ns.

In decode steps of Qwen2.5-7B on H200 at TP=2 and TP=4 (``benchmarks/what_if.py``) it is 1.9 us
(down_proj), 3.1 and 3.2 us (qkv_proj, o_proj), 5.8 us (attention: all of its time), 7.9 us
(lm_head) and 9.1 us (gate_up_proj).
"""

GRAPH_KERNELS: Final = (0.96, 1.0, 1.0)
"""Time of the kernels in a graph, as a share of that without one: low, expected, high.

In decode steps of three pairs of recordings (``benchmarks/what_if.py``) it is 0.97, 0.98 and 1.00
in all.
"""

OTHER_RUN: Final = (0.8, 1.0, 1.25)
"""How long the host takes in another run of the same kind, as a share: low, expected, high.

The operators of two eager recordings of Qwen2.5-7B at TP=4 on H200 differ by 4 %, their steps by 3
%. In a pair of other people's recordings with the same kernels (``mfu`` in
``benchmarks/what_if.py``) launches differ by 1.5 times, steps by 15 %.
"""

NOT_WHOLE_GRAPHS: Final = ("prefill", "mixed")
"""Phases that engines do not run as one graph, but piece by piece or eagerly."""

MODEL_STAGES: Final = ("embedding", "final_norm")
"""Stages outside of the layers that a graph of the model's forward pass holds, too."""

CUSTOM_ALL_REDUCE: Final = "cross_device_reduce"
"""Part of the name of vLLM's own all-reduce, which copies into a registered buffer first unless a
graph is captured (``custom_all_reduce.py``: ``registered=False``).
"""


class ReplayChange(Struct, frozen=True):
    """One change of a recording."""

    words: str
    """Description of the change in the results."""
    unknown: str
    apply: Callable[[ReplayPlan, Trace], None]


def no_host_delay(*, phases: tuple[str, ...] | None = None) -> ReplayChange:
    """Let the model of each step run without waiting for the host, as under CUDA graphs.

    The replay removes the host's time between the first and the last launch of a step's model
    (embedding, layers, final norm). One call that replays a graph takes its place, and kernels
    follow each other with the gaps of a graph. It also removes the copy before vLLM's own
    all-reduce, which a captured graph does not need. Collectives take the time of their transfer
    after the last rank has arrived; waiting that late hosts caused is gone. The host's work before
    and after the model (inputs, sampling, scheduler) stays. Steps of prefill and mixed steps are
    not predicted: engines run these piece by piece or eagerly, and a recording does not say what
    then remains of the host's work.
    """
    if whole := sorted(set(phases or ()) & set(NOT_WHOLE_GRAPHS)):
        found = (
            f"there is no prediction for steps of {listed(whole)}: engines run no whole graph for"
            " them"
        )
        hint = (
            "in three pairs of recordings such steps take 0.6 to 1.7 times as long with graphs as"
            " without them"
        )
        raise AnalysisError(found, expected="other phases, such as decode", hint=hint)

    def apply(plan: ReplayPlan, trace: Trace) -> None:
        plan.left_out |= set(NOT_WHOLE_GRAPHS)
        calls = _launches_of_layers(trace, phases)
        launch, gap = int(plan.choose(*GRAPH_LAUNCH_NS)), plan.choose(*GRAPH_GAP_NS)
        plan.host_after(calls, plan.choose(*REST_OF_HOST))
        replaced = plan.one_launch(calls, launch)
        plan.set_gap(replaced, gap)
        plan.set_duration(
            replaced & ~plan.collectives(), plan.own_duration() * plan.choose(*GRAPH_KERNELS)
        )
        registered = (
            replaced
            & plan.before(replaced, CUSTOM_ALL_REDUCE)
            & (plan.events["source"] == "copy").to_numpy()
        )
        plan.set_duration(registered, np.zeros(len(registered)))
        plan.set_gap(registered, 0)

    return ReplayChange(
        "layers that do not wait for the host (as under graphs)",
        "kernels stay as recorded, at best 4 % shorter, though a compiler that captures graphs"
        " often fuses some; the time of the call that replays the graph; how fast the host is at"
        " what remains for it (as recorded, at best twice as fast); whether every batch size has a"
        " graph; prefill and mixed steps (engines run no whole graph for them)",
        apply,
    )


@per_trace
def _launches_of_layers(trace: Trace, phases: tuple[str, ...] | None) -> pl.DataFrame:
    """First and last host call that launched the model of each step with layers, by thread."""
    plan = ReplayPlan(graph(trace), "middle")
    of_steps = plan.device & plan.events["step"].is_not_null().to_numpy()
    layered = of_steps & plan.events["layer"].is_not_null().to_numpy()
    phase = plan.events["phase"]
    if phases is not None:
        layered &= phase.is_in(list(phases)).fill_null(False).to_numpy()
    layered &= ~phase.is_in(NOT_WHOLE_GRAPHS).fill_null(False).to_numpy()
    if not layered.any():
        raise AnalysisError(
            "no kernel of this recording is known to belong to a layer of a step"
            + (f" of the phases {listed(phases)}" if phases else ""),
            expected="steps with layers, whose launches the change takes away",
        )
    model = plan.events["layer"].is_not_null() | plan.events["stage"].is_in(MODEL_STAGES).fill_null(
        value=False
    )
    calls = plan.launches_by_step(of_steps & model.to_numpy())
    calls = calls.filter(
        pl.col("step").is_in(plan.events["step"].filter(pl.Series(layered)).unique().implode())
    )
    if not calls.height:
        found = "the host's calls that launched the layers were not recorded"
        raise AnalysisError(
            found, expected="calls of the device runtime, whose time the change takes away"
        )
    return calls


def scale(what: str, factor: float) -> ReplayChange:
    """Multiply the time of some work by ``factor``."""
    if not factor >= 0:
        raise AnalysisError(
            f"the factor is {factor}", expected="0 or more: 0.5 makes it twice as fast"
        )

    def apply(plan: ReplayPlan, trace: Trace) -> None:
        if what == "host":
            if plan.device.all():
                raise AnalysisError(
                    "the change 'host' matches nothing", expected="a recording with host activity"
                )
            plan.host(factor)
            return
        rows = plan.work(what)
        plan.set_duration(rows, plan.own_duration() * factor)

    return ReplayChange(
        f"{'host time' if what == 'host' else what} x {factor:g}",
        "whether it can be made so",
        apply,
    )


def remove(what: str) -> ReplayChange:
    """Remove some work with its launches."""

    def apply(plan: ReplayPlan, trace: Trace) -> None:
        rows = plan.work(what)
        plan.set_duration(rows, np.zeros(len(rows)))
        plan.set_gap(rows, 0)
        plan.rest[0::2][rows] = 0
        plan.without_call(rows)

    return ReplayChange(
        f"without {what}", "how much of the host's time before a launch belongs to it", apply
    )


def run_ahead() -> ReplayChange:
    """Let the host prepare the next step while the device works on this one, as asynchronous
    scheduling does.

    No call waits for the device any longer, and no step for the results of the one before; the host
    is as fast as it was. A step then takes as long as the host or the device needs for it,
    whichever is longer.
    """

    def apply(plan: ReplayPlan, trace: Trace) -> None:
        waits = np.isin(plan.built.kind, (LOADING, SYNCHRONISE, SCHEDULED))
        if not waits.any():
            expected = (
                "calls that synchronise, or steps that begin when the results of those before have"
                " arrived"
            )
            raise AnalysisError(
                "nothing in this recording is known to wait for the device", expected=expected
            )
        plan.kept[waits] = False

    return ReplayChange(
        "the host ahead of the device (asynchronous scheduling)",
        "whether the next step can be prepared without the results of this one, and how far ahead"
        " memory allows",
        apply,
    )


def without_call(name: str) -> ReplayChange:
    """Remove calls of the host, their waiting for the device, and the time by which they hold it.

    If launched work stood still on a device during such a call, and nothing else explains it, the
    work begins earlier by this time.
    """

    def apply(plan: ReplayPlan, trace: Trace) -> None:
        plan.call_gone(plan.calls(name))

    words = f"without {name.removeprefix('^').removesuffix('$')}"
    return ReplayChange(
        words, "whether the step needs what the call waits for, or what it brings", apply
    )


def balance() -> ReplayChange:
    """Remove the waiting between ranks in collectives: each rank runs as if the others arrived
    at the same time.
    """

    def apply(plan: ReplayPlan, trace: Trace) -> None:
        edges = plan.built.kind == COLLECTIVE
        if not edges.any():
            found = "no collective of this recording is matched over its ranks"
            raise AnalysisError(found, expected="a recording of all ranks whose clocks agree")
        plan.kept[edges] = False

    return ReplayChange(
        "no rank late",
        "the mean over the ranks is what balanced work would take; whether the work can be"
        " balanced",
        apply,
    )


def transfer(
    *, bandwidth: float | None = None, latency: float | None = None, like: Trace | None = None
) -> ReplayChange:
    """Give collectives another transfer time: that of a given link, or of another recording.

    Notes
    -----
    A transfer takes ``latency + factor * bytes / bandwidth``, with the factors of nccl-tests' bus
    bandwidth (doc/PERFORMANCE.md): ``2 (n - 1) / n`` for all_reduce, ``(n - 1) / n`` for
    all_gather, reduce_scatter and all_to_all, 1 for others.
    """
    if like is None and bandwidth is None and latency is None:
        raise AnalysisError("transfer() got no change", expected="bandwidth=, latency= or like=")

    def apply(plan: ReplayPlan, trace: Trace) -> None:
        rows = calls_of_rows(plan, trace)
        new = new_transfer(rows, bandwidth, latency, like)
        changed = new.drop_nulls("new_ns")
        if not changed.height:
            raise AnalysisError(
                "no collective of this recording can be given another transfer time",
                expected=(
                    "matched collectives whose size is known"
                    if like is None
                    else "collectives of a kind and size that the other recording has too"
                ),
            )
        dur = plan.own_duration()
        chosen = np.zeros(len(dur), dtype=bool)
        row = changed["row"].to_numpy()
        dur[row] = changed["new_ns"].to_numpy()
        chosen[row] = True
        plan.set_duration(chosen, dur)
        if like is not None:
            plan.host(plan.choose(*OTHER_RUN))

    values = ((bandwidth, "GB/s"), (latency, "us"))
    words = [f"{value:g} {unit}" for value, unit in values if value is not None]
    return ReplayChange(
        "collectives " + (" and ".join(words) if like is None else "as in the other recording"),
        (
            "collectives that share the link with other traffic"
            if like is None
            else "sizes that it does not have; how its host differs, beyond a factor of 1.25"
        ),
        apply,
    )


def at_bound(
    model: Any, device: Any = None, *, stage: str | None = None, **options: Any
) -> ReplayChange:
    """Let stages take their least time by the theory."""

    def apply(plan: ReplayPlan, trace: Trace) -> None:
        joined = roofline(trace, model, device, **options).filter(
            (pl.col("bound_ns") > 0) & (pl.col("total_ns") > 0)
        )
        if stage is not None:
            joined = joined.filter(stage=stage)
        if not joined.height:
            found = "no stage of this recording has a bound" + (
                f" named {stage!r}" if stage else ""
            )
            raise AnalysisError(found, expected="a stage of roofline with bound_ns")
        factors = joined.select(
            "rank", "step", "stage", factor=(pl.col("bound_ns") / pl.col("total_ns")).clip(0, 1)
        )
        factor = (
            plan.events[["rank", "step", "stage"]]
            .join(factors, on=["rank", "step", "stage"], how="left", maintain_order="left")[
                "factor"
            ]
            .fill_null(1.0)
            .to_numpy()
        )
        plan.set_duration(plan.device & (factor < 1), plan.own_duration() * factor)

    return ReplayChange(
        f"{stage or 'every stage'} at the bound of the device",
        "no kernel reaches the bound: 80 to 90 % of it is a good one",
        apply,
    )


def to_bound(
    share: float = TARGET, what: str | None = None, *, device: str | Path | Device | None = None
) -> ReplayChange:
    """Let operators take no longer than at a share of the bound that follows from their recorded
    shapes.

    ``what`` is a stage, a kind of operator, or the name, after its ``::``, of an operator outside
    of stages; all operators if not given.
    """
    if not 0 < share <= 1:
        raise AnalysisError(f"the share of the bound is {share}", expected="above 0, at most 1")

    def apply(plan: ReplayPlan, trace: Trace) -> None:
        rows = saved_of(plan.events, operators_below_target(trace, share, device=device)).filter(
            pl.col("saved") > 0
        )
        if what is not None:
            name = pl.col("operator").str.split("::").list.last()
            outside = pl.col("_stage").is_null() & (name == what)
            rows = rows.filter(pl.any_horizontal(pl.col("_stage", "kind") == what, outside))
        if not rows.height:
            raise AnalysisError(
                f"no operator{f' of {what!r}' if what else ''} takes longer than at {share:.0%} of"
                " its bound",
                expected=(
                    "operators with shapes on a device whose peaks are known: see analyze.operators"
                ),
            )
        saved = np.zeros(len(plan.device))
        saved[rows["node"]] = rows["saved"]
        plan.set_duration(saved > 0, plan.own_duration() * (1 - saved))

    return ReplayChange(
        f"{what or 'every operator'} at {share:.0%} of its bound",
        "whether it can be made so",
        apply,
    )


def fuse(pattern: str) -> ReplayChange:
    """Fuse kernels that follow each other directly and match a pattern into one."""

    def apply(plan: ReplayPlan, trace: Trace) -> None:
        rows = plan.work(pattern)
        chain = plan.events["chain"].to_numpy()
        follows = np.zeros(len(rows), dtype=bool)
        follows[1:] = rows[1:] & rows[:-1] & (chain[1:] == chain[:-1])
        if not follows.any():
            found = f"no two kernels that match {pattern!r} follow each other directly"
            raise AnalysisError(found, expected="a chain of at least two")
        plan.make_one(rows, follows)

    return ReplayChange(
        f"{pattern} fused",
        "the fused kernel takes between its longest part and the sum of its parts: how many bytes"
        " between them are saved is not recorded",
        apply,
    )


def overlap_with(collective: str, with_: str) -> ReplayChange:
    """Run collectives at the same time as later work of the same stream."""

    def apply(plan: ReplayPlan, trace: Trace) -> None:
        moved, beside = plan.work(collective), plan.work(with_)
        dur = plan.own_duration()
        chain = plan.events["chain"].to_numpy()
        order = np.arange(len(dur))
        following = np.full(len(dur), -1)
        beside_rows = order[beside & ~moved]
        position = np.searchsorted(beside_rows, order, side="right")
        inside = position < len(beside_rows)
        following[inside] = beside_rows[position[inside]]
        good = moved & (following >= 0)
        good &= chain[np.maximum(following, 0)] == chain
        hidden = np.zeros(len(dur), dtype=np.int64)
        hidden[good] = np.minimum(dur[good], dur[following[good]])
        kept = plan.choose(0.0, 0.2, 0.5)  # each slows the other down
        plan.set_duration(good, dur - hidden * (1 - kept))

    return ReplayChange(
        f"{collective} beside {with_}",
        "how much both slow each other down, and whether the work is independent of the"
        " collective's result",
        apply,
    )


def tensor_parallel(n: int, *, all_reduce_us: float | None = None) -> ReplayChange:
    """Divide the work of the layers among another number of GPUs.

    Collectives keep the transfer that the recording has for each size and kind, unless
    ``all_reduce_us`` is given; on one GPU there are none. The interval comes from the four pairs of
    ``benchmarks/what_if.md`` (Qwen2.5-7B on H200), all of which lie inside.
    """
    if n < 1:
        raise AnalysisError(f"the group has {n} ranks", expected="1 or more")

    def apply(plan: ReplayPlan, trace: Trace) -> None:
        calls = collectives(trace) if plan.collectives().any() else pl.DataFrame()
        world = int(calls["world"].max() or 1) if calls.height else 1  # type: ignore[arg-type]
        spread = (
            "qkv_proj",
            "attention",
            "o_proj",
            "gate_up_proj",
            "activation",
            "down_proj",
            "lm_head",
            "experts",
        )
        rows = (
            plan.events["stage"].is_in(spread).fill_null(False).to_numpy()
            & plan.device
            & ~plan.collectives()
        )
        if not rows.any():
            found = "no stage of this recording is spread by tensor parallelism"
            raise AnalysisError(found, expected=f"one of {listed(spread)}")
        least = plan.choose(*KERNEL_FIXED_NS)
        dur = plan.own_duration()
        plan.set_duration(rows, np.where(dur > least, (dur - least) * world / n + least, dur))
        plan.host(plan.choose(*REST_OF_HOST))
        reduce_us = 0.0 if n == 1 else all_reduce_us
        if world > 1:
            if reduce_us is not None:
                plan.set_duration(plan.collectives(), np.full(len(dur), reduce_us * 1e3))
            return
        if reduce_us is None:
            expected = (
                "all_reduce_us=, the time of one among the ranks (llmprof experiment bandwidth"
                " measures it)"
            )
            raise AnalysisError(
                "the recording has no all-reduce whose time could be taken", expected=expected
            )
        ends = (
            plan.events.with_columns(
                last=pl.col("stage").is_in(["o_proj", "down_proj"])
                & (pl.col("stage") != pl.col("stage").shift(-1).over("chain")).fill_null(True)
            )["last"]
            .fill_null(False)
            .to_numpy()
            & plan.device
        )
        plan.weight[1::2][ends] += int(reduce_us * 1e3)

    return ReplayChange(
        f"tensor parallel {n}",
        "kernels are taken to shrink with their share of the work but for a fixed cost of 0 to 9"
        " us; new waits between ranks; how fast the host is (as recorded, at best twice as fast)",
        apply,
    )
