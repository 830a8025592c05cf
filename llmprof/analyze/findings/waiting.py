"""Rules about waiting: an idle device (late launches, synchronisation, calls that hold it) and communication."""

from __future__ import annotations

import polars as pl

from llmprof.analyze.collectives.collectives import collectives
from llmprof.analyze.findings.host import advice_for, calls_advice, doing_advice, doing_words, in_another_call
from llmprof.analyze.findings.scope import Measure, Scope, largest, middle, most, total, worst
from llmprof.analyze.idle import idle, launch_delay
from llmprof.analyze.idle.host import call_kinds
from llmprof.analyze.layers.layers import layers
from llmprof.analyze.ranks import late_groups_of, latest_group, rank_groups
from llmprof.text import counted, ranks_in_words
from llmprof.units import format_bytes, format_ns, format_share

LATE = ("host_bound", "launch")
"""Causes of idle time that earlier launches, or fewer calls, would remove."""

IN_GRAPHS = 0.5
"""If at least this share of the kernels comes from replayed graphs, the advice is not to use graphs."""

_GRAPHS = (
    "Most kernels come from replayed graphs already, so what is late is what the host does between the replays, above "
    "all {doing}: do it for the next step while the device works on this one (asynchronous scheduling), or take it out "
    "of the step."
)
_EAGER_ENGINE = (
    "Let one call launch a whole step: {use_graphs}, or {compile}. Then look at the Python time of a "
    "layer on that rank, the CPU's governor and clocks, and the profiler's own overhead. The thread is longest in "
    "{doing}.{ahead}"
)
_EAGER = (
    "Launch more work with each call: {compile}, fused operators, a larger batch, or {graphs} where shapes repeat. "
    "The thread is longest in {doing}; the profiler's own overhead is part of it.{ahead}"
)
_EAGER_ANY_PROGRAM = (
    "Launch more work with each call: fewer and larger kernels, or {graphs} where the same launches repeat. The thread "
    "is longest in {doing}; the profiler's own overhead is part of it."
)


def host_bound(scope: Scope) -> Measure | None:
    """Idle time before a kernel that the host had not launched yet, including the launching calls."""
    gaps = _idle(scope, *LATE)
    spans = scope.windows.group_by("rank").agg(span=pl.col("dur_ns").sum()).filter(pl.col("span") > 0)
    by_rank = (
        spans.join(gaps.group_by("rank").agg(gap=pl.col("dur_ns").sum()), on="rank", how="left")
        .with_columns(share=pl.col("gap").fill_null(0) / pl.col("span"))
        .sort("share", "rank", descending=[True, False])
    )
    if not gaps.height or not by_rank.height:
        return None
    worst_share = by_rank.row(0, named=True)["share"]
    bound = by_rank.filter(pl.col("share") >= worst_share / 2)["rank"].sort().to_list()
    rank, window = worst(gaps)
    delays = scope.within(launch_delay(scope.trace))
    replayed = share_in_graphs(scope)
    steps = scope.steps
    engine = steps is not None and bool(steps["source"].is_in(["vllm", "sglang"]).any())
    eager = _EAGER_ENGINE if engine else _EAGER if scope.of_torch else _EAGER_ANY_PROGRAM
    advice = _GRAPHS if replayed >= IN_GRAPHS else eager
    doing = doing_words(scope, gaps)
    words = {
        "who": _ranks(bound, by_rank.height),
        "host": _host_words(scope, bound),
        "calls": _per_part(delays, "calls", scope),
        "kernels": _per_part(delays, "kernels", scope),
        "launching": format_share(total(gaps.filter(pl.col("cause") == "launch"), "dur_ns") / total(gaps, "dur_ns")),
        "doing": doing,
        "replayed": f"; {format_share(replayed)} of the kernels come from replayed graphs" if replayed else "",
    }
    return Measure(
        scope.time("idle", *LATE),
        words,
        where="cause IN ('host_bound', 'launch')",
        rank=rank,
        window_ns=window,
        suggestion=in_another_call(scope, gaps) or advice + doing_advice(scope, doing),
        change="scale:host:0.5"
        if replayed >= IN_GRAPHS
        else "no-host-delay:decode"
        if scope.decoding
        else "no-host-delay",
    )


def synchronisation(scope: Scope) -> Measure | None:
    """Idle time after a synchronising call of the launching thread, until the next launch."""
    gaps = _idle(scope, "sync")
    if not gaps.height:
        return None
    call, _ = most(gaps, "sync_name")
    rank, window = worst(gaps)
    words = {
        "call": call,
        "pauses": counted(gaps.height / scope.parts, "such pause"),
        "doing": doing_words(scope, gaps),
    }
    return Measure(
        scope.time("idle", "sync"),
        words,
        where="cause = 'sync'",
        rank=rank,
        window_ns=window,
        change=_without(call),
    )


def _without(call: str | None) -> str | None:
    """The change that removes a call; None if a change cannot hold its name."""
    return f"without-call:^{call}$" if call is not None and call.isidentifier() else None


def device_held(scope: Scope) -> Measure | None:
    """Idle time with launched work while a call of the host holds the device."""
    gaps = _idle(scope, "queued").filter(pl.col("held_kind") == "call")
    if not gaps.height:
        return None
    call, share = most(gaps, "held_by")
    rank, window = worst(gaps)
    words = {
        "call": call,
        "by_call": format_share(share),
        "pauses": counted(gaps.height / scope.parts, "such pause"),
        "longest": format_ns(float(gaps["dur_ns"].max() or 0)),  # type: ignore[arg-type]
    }
    where = "cause = 'queued' AND held_kind = 'call'"
    return Measure(
        total(gaps, "dur_ns"),
        words,
        where=where,
        rank=rank,
        window_ns=window,
        suggestion=advice_for(call, calls_advice(scope)) or None,
        change=_without(call),
    )


def between_queued(scope: Scope) -> Measure | None:
    """Short pauses between events that were launched in time."""
    gaps = _idle(scope, "queued").filter(pl.col("held_kind").is_in(["graph", "stream", "copy", "event"]))
    if not gaps.height:
        return None
    kind, share = most(gaps, "held_kind")
    rank, window = worst(gaps)
    names = {
        "graph": "between nodes of a replayed graph",
        "stream": "between events of one stream",
        "copy": "after a copy on the same stream",
        "event": "in an event wait of a stream for another one",
    }
    words = {
        "count": f"{gaps.height / scope.parts:,.0f}",
        "median": format_ns(middle(gaps, "dur_ns")),
        "kind": names[kind],
        "by_kind": format_share(share),
    }
    where = "cause = 'queued' AND held_kind IN ('graph', 'stream', 'copy', 'event')"
    return Measure(total(gaps, "dur_ns"), words, where=where, rank=rank, window_ns=window)


def unexplained(scope: Scope) -> Measure | None:
    """Idle time that nothing recorded explains."""
    if scope.on_host:
        return None
    gaps = _idle(scope, "queued", "unknown").filter((pl.col("cause") == "unknown") | pl.col("held_kind").is_null())
    if not gaps.height:
        return None
    rank, window = worst(gaps)
    launched = total(gaps.filter(pl.col("cause") == "queued"), "dur_ns")
    share = format_share(launched / max(1.0, total(gaps, "dur_ns")))
    known = f"in {share} of the time the next event had been launched already"
    words = {
        "launched": known if launched else "when the next events were launched is not known",
        "pauses": counted(gaps.height / scope.parts, "pause"),
    }
    where = "cause = 'unknown' OR (cause = 'queued' AND held_kind IS NULL)"
    return Measure(total(gaps, "dur_ns"), words, where=where, rank=rank, window_ns=window)


def outside(scope: Scope) -> Measure | None:
    """Recorded time before the first and after the last event of a device."""
    if scope.steps is not None or scope.on_host:
        return None
    events = scope.events
    ends = events.group_by("rank").agg(
        first=pl.col("start_ns").min(), last=(pl.col("start_ns") + pl.col("dur_ns")).max()
    )
    both = scope.windows.join(ends, on="rank").select(
        "rank",
        before=pl.col("first") - pl.col("start_ns"),
        after=pl.col("start_ns") + pl.col("dur_ns") - pl.col("last"),
        start_ns="start_ns",
        dur_ns=pl.col("first") - pl.col("start_ns"),
    )
    if not both.height:
        return None
    rank, window = worst(both)
    words = {
        "before": format_ns(total(both, "before") / scope.parts),
        "after": format_ns(total(both, "after") / scope.parts),
    }
    return Measure(scope.time("idle", "outside"), words, rank=rank, window_ns=window)


def between_operators(scope: Scope) -> Measure | None:
    """Time of a run on CPU in which none of its operators runs."""
    if not scope.on_host:
        return None
    gaps = scope.idle
    rank, window = worst(gaps)
    of_torch = bool(scope.events["name"].str.starts_with("aten::").any())
    words = {
        "count": f"{gaps.height / scope.parts:,.0f}",
        "median": format_ns(middle(gaps, "dur_ns")),
        "doing": "Python, or work" if of_torch else "work",
    }
    advice = None if of_torch else "Sample the host's CPU (perf record -g) to see what runs there."
    return Measure(scope.time("idle"), words, rank=rank, window_ns=window, suggestion=advice)


def share_in_graphs(scope: Scope) -> float:
    """Share of the kernels of the scope that a replayed graph launched."""
    kernels = scope.events.select("rank", "launch_start_ns").filter(scope.events["source"] == "kernel")
    if not kernels.height or not scope.trace.has("runtime"):
        return 0.0
    calls = scope.trace.runtime.select("rank", "name", launch_start_ns="start_ns")
    replays = calls.filter(call_kinds(calls["name"])["replays"]).select("rank", "launch_start_ns")
    return kernels.join(replays.unique(), on=["rank", "launch_start_ns"], how="semi").height / kernels.height


def _idle(scope: Scope, *causes: str) -> pl.DataFrame:
    if scope.on_host:
        return idle(scope.trace).clear()
    return scope.idle.filter(pl.col("cause").is_in(causes))


def _per_part(frame: pl.DataFrame, column: str, scope: Scope) -> str:
    return f"{total(frame, column) / scope.parts:,.0f}" if frame.height else "an unknown number of"


def _host_words(scope: Scope, bound: list[int]) -> str:
    rows = scope.within(layers(scope.trace, per="layer")).filter(pl.col("host_dur_ns").is_not_null())
    if not rows.height:
        return ""
    late = middle(rows.filter(pl.col("rank").is_in(bound)), "host_dur_ns")
    others = middle(rows.filter(~pl.col("rank").is_in(bound)), "host_dur_ns")
    text = f" The host side takes {format_ns(late)} a layer"
    return text + (f", that of the other ranks {format_ns(others)}." if others is not None else ".")


def _ranks(ranks: list[int], all_ranks: int) -> str:
    if all_ranks == 1:
        return "the only rank"
    if len(ranks) == all_ranks:
        return "every rank"
    return ranks_in_words(ranks)


CUSTOM_ALL_REDUCE_BYTES = 8 << 20
"""Largest message of vLLM's custom all-reduce (its default ``max_size`` on NVLink, vLLM custom_all_reduce.py)."""

_LATE_ON_HOST = (
    "Find out why that rank is late before touching communication: compare the times of its operators with those of "
    "the others, pin each rank to cores of its own, and look for other processes on those cores."
)
_NO_LAYERS = "Fewer or fused collectives, larger messages, or compute beside them."
"""Advice if no layers of a transformer were found, so that tensor parallelism is unknown."""

PIPELINE = ("broadcast", "send_recv")
"""Communication between stages of a pipeline: waiting in it comes from the pipeline's dependency."""

_PIPELINE_GROUP = r"(?i)pipe|\bpp\b|pp_|_pp|:pp"


_TOGETHER = (
    "Look for what these ranks share before touching communication: their host (other processes, clocks, power and "
    "temperature limits), their switch, their part of the model or of the requests. analyze.late_groups compares all "
    "groups, charts.rank_heatmap shows when it happens."
)
"""Advice if a group of ranks comes late."""


def arrival_skew(scope: Scope) -> Measure | None:
    """Waiting in collectives for the rank that comes last."""
    return _waiting(scope, pipeline=False)


def pipeline_wait(scope: Scope) -> Measure | None:
    """Waiting of one pipeline stage for another."""
    return _waiting(scope, pipeline=True)


def is_pipeline(scope: Scope, calls: pl.DataFrame) -> bool:
    """Whether a run is a pipeline: its groups say so, or it is a vLLM run with sends."""
    sends = calls.filter(pl.col("kind") == "send_recv")
    if not sends.height:
        return False
    by_vllm = scope.steps is not None and bool((scope.steps["source"] == "vllm").any())
    return by_vllm or bool(sends["group"].str.contains(_PIPELINE_GROUP).any())


def _waiting(scope: Scope, *, pipeline: bool) -> Measure | None:
    every = scope.begun(collectives(scope.trace))
    passes = pl.col("kind").is_in(PIPELINE) & pl.lit(is_pipeline(scope, every))
    calls = every.filter(pl.col("wait_ns").is_not_null() & (pl.col("world") > 1) & (passes == pipeline))
    whole = total(every, "wait_ns")
    if not calls.height or not whole:
        return None
    mine = total(calls, "wait_ns")
    kind = (
        calls.group_by("kind").agg(pl.col("wait_ns").sum()).sort("wait_ns", "kind", descending=[True, False]).row(0)[0]
    )
    calls = calls.filter(pl.col("kind") == kind)
    once = calls.unique("call", keep="first", maintain_order=True)
    waits = calls.group_by("call").agg(pl.col("last_rank").first(), pl.col("wait_ns").sum())
    lasts = (
        waits.filter(pl.col("wait_ns") > 0)  # where nobody waits nobody is late
        .group_by("last_rank")
        .agg(count=pl.len(), waited=pl.col("wait_ns").sum())
        .sort("count", "waited", "last_rank", descending=[True, True, False])
    )
    late, times, _ = lasts.row(0)
    others = calls.filter(pl.col("rank") != late)
    offset = largest(calls.with_columns(pl.col("clock_offset_ns").abs()), "clock_offset_ns")
    sure = calls["match_confidence"].min()
    rank, window = worst(calls.with_columns(dur_ns="wait_ns"))
    alone = f"rank {late} arrives last in {format_share(times / once.height)}"
    group = None if pipeline else latest_group(late_groups_of(calls, rank_groups(scope.trace)))
    words = {
        "kind": kind.replace("_", "-"),
        "late": late,
        "late_share": format_share(times / once.height),
        "who_is_late": f"{group['who']} arrive last in {format_share(group['share_last'])}" if group else alone,
        "within": f" The middle one of these ranks comes {format_ns(group['late_median_ns'])} after the first rank of "
        f"a call (groups by {group['evidence']})."
        if group
        else "",
        "calls": f"{once.height:,}",
        "waited": format_share(total(others, "wait_ns") / max(1.0, total(others, "dur_ns"))),
        # the rest of a kernel's duration is its transfer; the kernel of the last rank has no waiting
        "transfer": format_ns(middle(calls, "transfer_ns")),
        "seen": format_ns(middle(others, "dur_ns")),
        "skew": format_ns(middle(once, "arrival_skew_ns")),
        "spread": format_ns(middle(once, "end_spread_ns")),
        "clocks": f"after a correction of their clocks by up to {format_ns(offset)}"
        if offset
        else "their clocks agree",
        "sure": f"; {format_share(float(sure))} of the calls overlap on all ranks, as they must"  # type: ignore[arg-type]
        if sure is not None
        else "",
    }
    # waiting at the same time as compute costs nothing, so each kind gets its share of the exposed part
    ns = scope.time("communication", "wait") * mine / whole
    advice = _TOGETHER if group else _LATE_ON_HOST if scope.on_host and not pipeline else None
    change = None if pipeline else "balance"
    return Measure(ns, words, where=f"kind = '{kind}'", rank=rank, window_ns=window, suggestion=advice, change=change)


def exposed_communication(scope: Scope) -> Measure | None:
    """Transfer without concurrent compute; known waiting belongs to other rules."""
    transfer = scope.time("communication", "transfer", "wait or transfer")
    calls = scope.begun(collectives(scope.trace))
    if not transfer or not calls.height:
        return None
    waits_known = calls["wait_ns"].is_not_null().any()
    why = calls["unmatched"].drop_nulls().mode().sort()
    kinds = (
        calls.with_columns(pl.col("kind").fill_null("other"))
        .group_by("kind")
        .agg(pl.col("dur_ns").sum())
        .sort("dur_ns", "kind", descending=[True, False])
    )
    everything = total(calls, "transfer_ns") if waits_known else total(calls, "dur_ns")
    rank, window = worst(calls.with_columns(dur_ns=pl.coalesce("transfer_ns", "dur_ns")))
    words = {
        "what": "Transfer" if waits_known else "Communication (transfer, and waiting that cannot be told from it)",
        "hidden": format_share(max(0.0, 1 - transfer / everything) if everything else None),
        "kinds": ", ".join(kind.replace("_", "-") for kind in kinds["kind"].head(2)),
        "calls": f"{calls.height / scope.parts:,.0f}",
        "why": "" if waits_known or not why.len() else f" Waiting is not known: {why[0]}.",
    }
    advice = None if scope.events["layer"].is_not_null().any() else _NO_LAYERS
    return Measure(transfer, words, rank=rank, window_ns=window, suggestion=advice)


def nccl_for_small(scope: Scope) -> Measure | None:
    """NCCL all-reduces of a size that vLLM's custom all-reduce supports, in a vLLM run."""
    if scope.steps is None or not (scope.steps["source"] == "vllm").any():
        return None
    calls = scope.begun(collectives(scope.trace)).filter(
        (pl.col("kind") == "all_reduce")
        & pl.col("name").str.contains("(?i)nccl")
        & (pl.col("bytes") <= CUSTOM_ALL_REDUCE_BYTES)
        & (pl.col("transfer_ns") > 0)
        & pl.col("world").is_between(2, 8)
    )
    if not calls.height:
        return None
    rank, window = worst(calls.with_columns(dur_ns="transfer_ns"))
    words = {
        "size": format_bytes(middle(calls, "bytes")),
        "algorithm": calls["algorithm"].mode().sort()[0] or "an unknown algorithm",
        "transfer": format_ns(middle(calls, "transfer_ns")),
        "calls": f"{calls.height / scope.parts:,.0f}",
        "bus": f"{middle(calls, 'bus_gbps'):,.1f} GB/s",
    }
    where = f"kind = 'all_reduce' AND bytes <= {CUSTOM_ALL_REDUCE_BYTES}"
    return Measure(total(calls, "transfer_ns"), words, where=where, rank=rank, window_ns=window)
