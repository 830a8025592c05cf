"""The rules behind findings, as data: what each measures, from which share on it speaks, and in which words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from llmprof import names
from llmprof.analyze.collectives.collectives import collectives
from llmprof.analyze.findings.scope import Scope
from llmprof.analyze.idle import idle, launch_delay
from llmprof.analyze.layers.layers import layers
from llmprof.units import format_bytes, format_ns, format_share


def total(frame: pl.DataFrame, column: str) -> float:
    """Sum of a column; 0 where it has no value."""
    return float(frame[column].cast(pl.Float64).sum())


def middle(frame: pl.DataFrame, column: str) -> float | None:
    """Median of a column; None where it has no value."""
    value = frame[column].cast(pl.Float64).median()
    return float(value) if isinstance(value, int | float) else None


def largest(frame: pl.DataFrame, column: str) -> float | None:
    """Largest value of a column; None where it has none."""
    value = frame[column].cast(pl.Float64).max()
    return float(value) if isinstance(value, int | float) else None


SHORT_KERNEL_NS = 5_000
"""A kernel shorter than this costs the host about as long to launch (a few us a call) as the device to run."""

MANY_KERNELS = 0.3
"""Share of kernels from which on short ones are worth a word."""

UNEVEN_RATIO = 1.1
"""Compute time of a rank against that of another from which on they are uneven."""

CUSTOM_ALL_REDUCE_BYTES = 8 << 20
"""Largest message of vLLM's custom all-reduce (its default ``max_size`` on NVLink, vLLM custom_all_reduce.py)."""


@dataclass(frozen=True)
class Measure:
    """A figure, the share of the scope's time it stands for, and the words that go into the sentences."""

    figure: float
    share: float
    words: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Rule:
    """What is measured, when it is worth saying, and how it is said."""

    name: str
    measure: Callable[[Scope], Measure | None]
    title: str
    detail: str
    suggestion: str
    evidence: str
    unit: str
    minimum_share: float = 0.01
    info: bool = False


PIPELINE = ("broadcast", "send_recv")
"""Communication between pipeline stages, where data are sent at all: waiting in it is the pipeline's dependency."""


def arrival_skew(scope: Scope) -> Measure | None:
    """Waiting in collectives for the rank that comes last."""
    return _waiting(scope, pipeline=False)


def pipeline_wait(scope: Scope) -> Measure | None:
    """Waiting of one pipeline stage for another."""
    return _waiting(scope, pipeline=True)


def _waiting(scope: Scope, *, pipeline: bool) -> Measure | None:
    every = scope.within(collectives(scope.trace))
    is_pipeline = pl.col("kind").is_in(PIPELINE) & pl.lit((every["kind"] == "send_recv").any())
    calls = every.filter(pl.col("wait_ns").is_not_null() & (pl.col("world") > 1) & (is_pipeline == pipeline))
    if not calls.height:
        return None
    kind = (
        calls.group_by("kind").agg(pl.col("wait_ns").sum()).sort("wait_ns", "kind", descending=[True, False]).row(0)[0]
    )
    calls = calls.filter(pl.col("kind") == kind)
    once = calls.unique("call", keep="first", maintain_order=True)
    lasts = once["last_rank"].value_counts().sort("count", "last_rank", descending=[True, False])
    late, times = lasts.row(0)
    others = calls.filter(pl.col("rank") != late)
    waited = total(others, "wait_ns") / max(1.0, total(others, "dur_ns"))
    share = min(1.0, total(calls, "wait_ns") / scope.span_ns)
    offset = largest(calls.with_columns(pl.col("clock_offset_ns").abs()), "clock_offset_ns")
    words = {
        "kind": kind.replace("_", "-"),
        "late": late,
        "late_share": format_share(times / once.height),
        "calls": f"{once.height:,}",
        "waited": format_share(waited),
        # the rest of a kernel's duration is its own transfer; the one of the last rank has no waiting in it
        "transfer": format_ns(middle(calls, "transfer_ns")),
        "seen": format_ns(middle(others, "dur_ns")),
        "skew": format_ns(middle(once, "arrival_skew_ns")),
        "spread": format_ns(middle(once, "end_spread_ns")),
        "clocks": f"after a correction of their clocks by up to {format_ns(offset)}"
        if offset
        else "their clocks agree",
        "share": format_share(share),
    }
    return Measure(waited, share, words)


def host_bound(scope: Scope) -> Measure | None:
    """Idle time that ends with a kernel which the host had not launched yet."""
    gaps = scope.within(idle(scope.trace)).filter(pl.col("cause").is_in(["host_bound", "launch"]) & pl.col("in_step"))
    spans = scope.overlap.group_by("rank").agg(span=pl.col("total_ns").sum()).filter(pl.col("span") > 0)
    by_rank = (
        spans.join(gaps.group_by("rank").agg(gap=pl.col("dur_ns").sum()), on="rank", how="left")
        .with_columns(share=pl.col("gap").fill_null(0) / pl.col("span"))
        .sort("share", "rank", descending=[True, False])
    )
    if not by_rank.height or not gaps.height:
        return None
    worst = by_rank.row(0, named=True)["share"]
    bound = by_rank.filter(pl.col("share") >= worst / 2)["rank"].sort().to_list()
    slow = by_rank.filter(pl.col("rank").is_in(bound))
    delays = scope.within(launch_delay(scope.trace))
    words = {
        "who": _ranks(bound, by_rank.height),
        "share": format_share(total(slow, "gap") / total(slow, "span")),
        "host": _host_words(scope, bound),
        "calls": _mean_words(delays, "calls"),
        "kernels": _mean_words(delays, "kernels"),
    }
    return Measure(worst, total(gaps, "dur_ns") / scope.span_ns, words)


def _mean_words(frame: pl.DataFrame, column: str) -> str:
    mean = frame[column].cast(pl.Float64).mean()
    return f"{mean:,.0f}" if isinstance(mean, float) else "an unknown number of"


def _host_words(scope: Scope, bound: list[int]) -> str:
    rows = scope.within(layers(scope.trace, per="layer")).filter(pl.col("host_dur_ns").is_not_null())
    if not rows.height:
        return "The host time of a layer was not captured"
    here = middle(rows.filter(pl.col("rank").is_in(bound)), "host_dur_ns")
    there = middle(rows.filter(~pl.col("rank").is_in(bound)), "host_dur_ns")
    text = f"The host side takes {format_ns(here)} a layer"
    return text + (f", that of the other ranks {format_ns(there)}" if there is not None else "")


def exposed_communication(scope: Scope) -> Measure | None:
    """Communication with no compute beside it; its share leaves out the waiting that other rules speak of."""
    exposed = total(scope.overlap, "exposed_communication_ns")
    communication = total(scope.overlap, "communication_ns")
    if not communication:
        return None
    calls = scope.within(collectives(scope.trace))
    waited = total(calls, "wait_ns")
    known = calls["wait_ns"].is_not_null().any()
    words = {
        "share": format_share(exposed / scope.span_ns),
        "hidden": format_share(1 - exposed / communication),
        "mean": format_ns(communication / scope.parts),
        "part": scope.part,
        "waited": format_share(min(1.0, waited / communication)) if known else "an unknown share",
    }
    return Measure(exposed / scope.span_ns, max(0.0, exposed - waited) / scope.span_ns, words)


def nccl_for_small(scope: Scope) -> Measure | None:
    """All-reduces by NCCL of a size that vLLM's custom all-reduce takes, in a run of vLLM."""
    if scope.steps is None or not (scope.steps["source"] == "vllm").any():
        return None
    calls = scope.within(collectives(scope.trace)).filter(
        (pl.col("kind") == "all_reduce")
        & pl.col("name").str.contains("(?i)nccl")
        & (pl.col("bytes") <= CUSTOM_ALL_REDUCE_BYTES)
        & (pl.col("transfer_ns") > 0)
        & pl.col("world").is_between(2, 8)
    )
    if not calls.height:
        return None
    words = {
        "size": format_bytes(middle(calls, "bytes")),
        "algorithm": calls["algorithm"].mode().sort()[0] or "an unknown algorithm",
        "transfer": format_ns(middle(calls, "transfer_ns")),
        "calls": f"{calls.height / scope.parts:,.0f}",
        "part": scope.part,
        "bus": f"{middle(calls, 'bus_gbps'):,.1f} GB/s",
    }
    return Measure(middle(calls, "transfer_ns") or 0.0, total(calls, "transfer_ns") / scope.span_ns, words)


def short_kernels(scope: Scope) -> Measure | None:
    """Kernels that are shorter than their own launch."""
    kernels = scope.events.filter(pl.col("source") == "kernel")
    if not kernels.height:
        return None
    short = kernels.filter(pl.col("dur_ns") < SHORT_KERNEL_NS)
    share = short.height / kernels.height
    words = {
        "count": f"{short.height / scope.parts:,.0f}",
        "of": f"{kernels.height / scope.parts:,.0f}",
        "part": scope.part,
        "share": format_share(share),
        "limit": format_ns(SHORT_KERNEL_NS),
        "median": format_ns(middle(kernels, "dur_ns")),
        "time": format_ns(total(short, "dur_ns") / scope.parts),
    }
    return Measure(share, total(short, "dur_ns") / scope.span_ns, words) if share >= MANY_KERNELS else None


def split_k(scope: Scope) -> Measure | None:
    """The second kernel of GEMMs that split their inner dimension."""
    linear = scope.events.filter(pl.col("category") == "linear")
    reduce = linear.filter(pl.col("name").str.contains(f"(?i){names.SPLIT_K}"))
    if not reduce.height:
        return None
    share = total(reduce, "dur_ns") / total(linear, "dur_ns")
    words = {
        "share": format_share(share),
        "count": f"{reduce.height / scope.parts:,.0f}",
        "time": format_ns(total(reduce, "dur_ns") / scope.parts),
        "part": scope.part,
    }
    return Measure(share, total(reduce, "dur_ns") / scope.span_ns, words)


def synchronisation(scope: Scope) -> Measure | None:
    """Idle time under a synchronising call."""
    gaps = scope.within(idle(scope.trace)).filter((pl.col("cause") == "sync") & pl.col("in_step"))
    if not gaps.height:
        return None
    calls = gaps.group_by("sync_name").agg(pl.col("dur_ns").sum()).sort("dur_ns", "sync_name", descending=[True, False])
    share = total(gaps, "dur_ns") / scope.span_ns
    words = {
        "share": format_share(share),
        "call": calls.row(0)[0],
        "count": f"{gaps.height / scope.parts:,.1f}",
        "part": scope.part,
    }
    return Measure(share, share, words)


def heaviest_stage(scope: Scope) -> Measure | None:
    """The stage that most of the computing goes to."""
    compute = scope.events.filter((pl.col("category") != "collective") & (pl.col("source") != "copy"))
    stages = compute.filter(pl.col("stage").is_not_null()).group_by("stage").agg(pl.col("dur_ns").sum())
    if stages.height < 2 or not stages.filter(pl.col("stage") != "other").height:
        return None
    stages = stages.sort("dur_ns", descending=True)
    whole = total(compute, "dur_ns")
    top = [f"{stage} {format_share(ns / whole)}" for stage, ns in stages.head(4).iter_rows()]
    stage, ns = stages.row(0)
    words = {
        "stage": stage,
        "share": format_share(ns / whole),
        "next": ", ".join(top[1:]),
        "compute": format_share(total(scope.overlap, "compute_ns") / scope.span_ns),
    }
    return Measure(ns / whole, ns / scope.span_ns, words)


def uneven_compute(scope: Scope) -> Measure | None:
    """Ranks that compute longer than others."""
    by_rank = scope.overlap.group_by("rank").agg(pl.col("compute_ns", "total_ns").mean()).sort("compute_ns", "rank")
    if by_rank.height < 2 or not by_rank["compute_ns"][0]:
        return None
    least, most = by_rank.row(0, named=True), by_rank.row(-1, named=True)
    ratio = most["compute_ns"] / least["compute_ns"]
    words = {"most": most["rank"], "least": least["rank"], "ratio": f"{ratio:.2f}"}
    share = (most["compute_ns"] - least["compute_ns"]) / total(by_rank, "total_ns") * by_rank.height
    return Measure(ratio, share, words) if ratio >= UNEVEN_RATIO else None


def unnamed(scope: Scope) -> Measure | None:
    """Device time without a step or stage."""
    whole = total(scope.events, "dur_ns")
    named = pl.col("step").is_not_null() & pl.col("stage").is_not_null() & (pl.col("stage") != "other")
    missing = scope.events.filter(~named)
    if not whole:
        return None
    words = {"share": format_share(total(missing, "dur_ns") / whole), "count": f"{missing.height:,}"}
    return Measure(total(missing, "dur_ns") / whole, total(missing, "dur_ns") / whole, words)


def _ranks(ranks: list[int], all_ranks: int) -> str:
    if all_ranks == 1:
        return "the only rank"
    if len(ranks) == all_ranks:
        return "every rank"
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


RULES: tuple[Rule, ...] = (
    Rule(
        "arrival_skew",
        arrival_skew,
        "Waiting for the last rank takes {share} of the time: rank {late} arrives last in {late_share} of the "
        "{kind}s, the other ranks spend {waited} of theirs waiting, and the transfer itself takes {transfer} where "
        "their kernels suggest {seen}.",
        "{calls} calls; the first and the last rank arrive {skew} apart, and all leave a call within {spread} of each "
        "other (medians): {clocks}.",
        "Find out why that rank is late before touching communication: compare its host time and idle causes with "
        "the others', pin each worker to cores of its GPU's NUMA node, look for other processes on those cores, and "
        "take the launches off the critical path with CUDA graphs.",
        "collectives",
        "share of the time in these calls",
    ),
    Rule(
        "pipeline_wait",
        pipeline_wait,
        "Ranks that pass data on wait for each other for {share} of the time: in its {kind}s a rank waits {waited} of "
        "their duration, the transfer itself takes {transfer} where the kernels suggest {seen}.",
        "{calls} calls; rank {late} arrives last in {late_share}, {skew} after the first (median).",
        "In a pipeline, one batch in flight leaves every stage but one idle: keep as many batches in flight as there "
        "are stages, or use tensor parallelism inside a host.",
        "collectives",
        "share of the time in these calls",
    ),
    Rule(
        "host_bound",
        host_bound,
        "The host does not keep up: on {who} the device idles for {share} of the time because the next kernel was not "
        "launched yet.",
        "{host}; a step has {calls} launch calls for {kernels} kernels.",
        "Use CUDA graphs (not enforce_eager) or torch.compile, so that one call launches a whole step; look at the "
        "Python time of a layer on that rank, the CPU's governor and clocks, and the profiler's own overhead.",
        "idle",
        "share of that rank's time",
        0.02,
    ),
    Rule(
        "exposed_communication",
        exposed_communication,
        "Communication with no compute beside it takes {share} of the time; {hidden} of all communication is hidden.",
        "Communication takes {mean} of {part} on average; {waited} of it is waiting for another rank.",
        "First take out what is waiting (arrival_skew); then look at fewer or fused collectives, "
        "all-reduce fused with the norm, sequence parallelism, or a smaller tensor-parallel size.",
        "overlap",
        "share of the time",
        0.005,
    ),
    Rule(
        "nccl_for_small_messages",
        nccl_for_small,
        "All-reduces of {size} go through NCCL ({algorithm}): their transfer takes {transfer}, at {bus} on the bus.",
        "{calls} {part}; vLLM's custom all-reduce takes messages up to "
        f"{format_bytes(CUSTOM_ALL_REDUCE_BYTES)} between GPUs with peer access.",
        "Compare a run with the custom all-reduce (no disable_custom_all_reduce); if it is off by itself, check peer "
        "access between the GPUs.",
        "collectives",
        "ns of transfer, median",
        0.002,
    ),
    Rule(
        "short_kernels",
        short_kernels,
        "{share} of the kernels ({count} of {of} in {part}) run shorter than {limit}; the median is {median}.",
        "Together they take {time} of {part}; each costs a launch or a graph node.",
        "Fuse them (torch.compile, fused norm and rope kernels) or raise the batch, so that a launch does more work.",
        "kernel_summary",
        "share of kernels",
        0.0,
    ),
    Rule(
        "split_k",
        split_k,
        "Split-K reductions take {share} of the time of the GEMMs: {count} extra kernels and {time} in {part}.",
        "cuBLAS splits the inner dimension of a GEMM that is too small to fill the GPU, and adds a kernel for the sum.",
        "A larger batch needs no split; smaller tensor parallelism makes GEMMs wider; or tune the algorithm choice.",
        "kernel_summary",
        "share of GEMM time",
        0.001,
    ),
    Rule(
        "synchronisation",
        synchronisation,
        "The device idles {share} of the time inside steps under synchronising calls, mostly {call}.",
        "{count} such gaps in {part}.",
        "Find the .item(), .cpu() or synchronize() in the step (its operator is around the call) and take it out.",
        "idle",
        "share of the time",
        0.005,
    ),
    Rule(
        "uneven_compute",
        uneven_compute,
        "Rank {most} computes {ratio} times as long as rank {least}.",
        "Compute time without communication, copies and idle, mean of the steps.",
        "Look for uneven sharding, experts or stages, and for a slower or throttled GPU.",
        "overlap",
        "ratio",
        0.02,
    ),
    Rule(
        "heaviest_stage",
        heaviest_stage,
        "Of the compute, {stage} takes {share}; then {next}.",
        "Compute is {compute} of the time.",
        "Compare this stage with its bound (bytes of its weights over the memory bandwidth) before optimising it.",
        "layers",
        "share of compute",
        0.0,
        info=True,
    ),
    Rule(
        "unnamed_time",
        unnamed,
        "{share} of the device time has no step or stage ({count} events).",
        "Shares by stage leave it out.",
        'Teach llmprof the kernels: llmprof.names.register("attention", r"name of yours").',
        "coverage",
        "share of device time",
        0.01,
        info=True,
    ),
)
"""Every rule; their order decides among findings of equal weight."""
