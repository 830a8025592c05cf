"""Rules about waiting: an idle device (late launches, synchronisation, calls that hold it) and
communication.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import polars as pl

from llmprof.analyze.collectives.collectives import collectives
from llmprof.analyze.idle import launch_delay
from llmprof.analyze.idle.host import call_kinds, host_spans, innermost_within
from llmprof.analyze.layers import layers
from llmprof.analyze.overlap import COMMUNICATION
from llmprof.analyze.ranks import late_groups_of, latest_group, rank_places
from llmprof.analyze.step_times import IDLE_NOT_RECORDED
from llmprof.findings.host import CALLS, MOSTLY, doing, in_another_call, kind_of
from llmprof.findings.reasons import REASONS
from llmprof.findings.scope import (
    STEADY,
    Measure,
    Scope,
    apart,
    largest,
    middle,
    most,
    parts_of,
    total,
)
from llmprof.findings.work import uneven_rule
from llmprof.label.intervals import union_length
from llmprof.names.operators import first_true
from llmprof.replay.changes import NOT_WHOLE_GRAPHS

LATE = ("host_bound", "launch")
"""Causes of idle time that earlier launches, or fewer calls, would remove."""

LONG_PAUSE_NS: Final = 1_000_000
"""A launch and what a framework does around it take 5 to 500 us: fewer launches do not shorten
longer pauses.
"""

IN_GRAPHS = 0.5
"""If at least this share of the kernels comes from replayed graphs, the remedy is not to use
graphs.
"""

LAUNCHED_ALONE = 100
"""More kernels than these for each replay are a part of the step that runs eagerly; an engine
has 10 to 50 between.
"""


def host_bound(scope: Scope) -> Measure | None:
    """Idle time before a kernel that the host had not launched yet, including the launching
    calls.
    """
    gaps = _idle(scope, *LATE)
    if not gaps.height:
        return None
    of, late = _most_of(scope, gaps)
    bound = pl.col("rank").is_in(of.windows["rank"].unique().implode())
    whole = parts_of(late)
    long = total(whole.filter(pl.col("dur_ns") >= LONG_PAUSE_NS), "dur_ns") / total(late, "dur_ns")
    delays = scope.within(launch_delay(scope.trace)).filter(bound)
    replayed, eager_part = share_in_graphs(scope, late)
    in_graphs = replayed >= IN_GRAPHS and not eager_part
    steps = scope.steps
    engine = steps is not None and bool(steps["source"].is_in(["vllm", "sglang"]).any())
    layer_times = scope.within(layers(scope.trace)).filter(pl.col("host_dur_ns").is_not_null())
    figures = {
        "ranks": scope.windows["rank"].n_unique(),
        "has_layer_times": bool(layer_times.height),
        "layer_ns": middle(layer_times.filter(bound), "host_dur_ns"),
        "layer_of_others_ns": middle(layer_times.filter(~bound), "host_dur_ns"),
        "calls": total(delays, "calls") / of.parts if delays.height else None,
        "kernels": total(delays, "kernels") / of.parts if delays.height else None,
        "launching_share": total(late.filter(pl.col("cause") == "launch"), "dur_ns")
        / total(late, "dur_ns"),
        "long_share": long,
        "host": doing(scope, late),
        "elsewhere": in_another_call(scope, late),
        "replayed_share": replayed,
        "in_graphs": in_graphs,
        "engine": engine,
        "reads_prompts": bool(scope.windows["phase"].is_in(NOT_WHOLE_GRAPHS).all()),
    }
    launching = "no-host-delay:decode" if scope.words == STEADY else "no-host-delay"
    change = "scale:host:0.5" if in_graphs else launching if long < MOSTLY else None
    where = "cause IN ('host_bound', 'launch')"
    return Measure.of(
        whole, figures, ns=total(gaps, "dur_ns"), where=where, change=change, by_rank=gaps
    )


def _most_of(scope: Scope, gaps: pl.DataFrame) -> tuple[Scope, pl.DataFrame]:
    """The ranks with most of some gaps, which their finding is about, and their gaps."""
    ranks, _ = apart(scope, gaps)
    return scope.of(ranks), gaps.filter(pl.col("rank").is_in(ranks))


def by_reason(reason: str) -> Callable[[Scope], Measure | None]:
    """A rule about the pauses in which the device waits for one kind of call or function of the
    host.
    """

    def measured(scope: Scope) -> Measure | None:
        if scope.trace.capture.on_host:
            return None
        gaps = scope.pauses.filter(pl.col("reason") == reason)
        if not gaps.height:
            return None
        of, own = _most_of(scope, gaps)
        who, share = most(own, "who")
        whole = parts_of(own)
        calls = (
            of.begun(scope.trace.runtime).filter(pl.col("name").eq_missing(who))
            if scope.trace.has("runtime")
            else None
        )
        of_calls = calls is not None and calls.height
        figures = {
            "who": who,
            "by_who_share": share,
            "pauses": whole.height / of.parts,
            "max_ns": largest(whole, "dur_ns"),
            "calls": calls.height if calls is not None and of_calls else None,
            "calls_ns": total(calls, "dur_ns") if calls is not None and of_calls else None,
            "first_launches": reason == "loading"
            and kind_of(who, {"": REASONS["loading"][1]}) is None,
        }
        named = str(who).replace("'", "''")
        where = f"doing = '{named}' OR held_by = '{named}' OR sync_name = '{named}'"
        removable = reason in ("allocation", "compilation") and bool(of_calls)
        change = _without(who) if removable else None
        return Measure.of(
            whole, figures, ns=total(gaps, "dur_ns"), where=where, change=change, by_rank=gaps
        )

    return measured


def synchronisation(scope: Scope) -> Measure | None:
    """Idle time after a synchronising call of the launching thread, until the next launch."""
    gaps = _idle(scope, "sync")
    if not gaps.height:
        return None
    of, own = _most_of(scope, gaps)
    call, _ = most(own, "sync_name")
    whole = parts_of(own)
    figures = {"call": call, "pauses": whole.height / of.parts, "host": doing(scope, own)}
    ns = total(gaps, "dur_ns")
    return Measure.of(
        whole, figures, ns=ns, where="cause = 'sync'", change=_without(call), by_rank=gaps
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
    whole = parts_of(gaps)
    figures = {
        "call": call,
        "by_call_share": share,
        "kind": kind_of(call, CALLS),
        "pauses": whole.height / scope.parts,
        "max_ns": largest(whole, "dur_ns"),
    }
    where = "cause = 'queued' AND held_kind = 'call'"
    return Measure.of(whole, figures, where=where, change=_without(call))


def between_queued(scope: Scope) -> Measure | None:
    """Short pauses between events that were launched in time."""
    gaps = _idle(scope, "queued").filter(
        pl.col("held_kind").is_in(["graph", "stream", "copy", "event"])
    )
    if not gaps.height:
        return None
    of, own = _most_of(scope, gaps)
    kind, share = most(own, "held_kind")
    figures = {
        "pauses": own.height / of.parts,
        "median_ns": middle(own, "dur_ns"),
        "kind": kind,
        "by_kind_share": share,
    }
    where = "cause = 'queued' AND held_kind IN ('graph', 'stream', 'copy', 'event')"
    return Measure.of(own, figures, ns=total(gaps, "dur_ns"), where=where, by_rank=gaps)


def unexplained(scope: Scope) -> Measure | None:
    """Idle time that nothing recorded explains."""
    gaps, beyond = _without_cause(scope)
    gaps = gaps.with_columns(pl.col("dur_ns") - beyond).filter(pl.col("dur_ns") > 0)
    if not gaps.height:
        return None
    of, own = _most_of(scope, gaps)
    launched = total(own.filter(pl.col("cause") == "queued"), "dur_ns")
    figures = {
        "launched_share": launched / max(1.0, total(own, "dur_ns")),
        "pauses": own.height / of.parts,
    }
    return Measure.of(own, figures, ns=total(gaps, "dur_ns"), where=UNKNOWN, by_rank=gaps)


def left_out(scope: Scope) -> Measure | None:
    """Time between events in which others ran that are not in the file, or may have run, as none
    of their kind is.
    """
    gaps, beyond = _without_cause(scope)
    gaps = gaps.with_columns(dur_ns=beyond).filter(pl.col("dur_ns") > 0)
    if not gaps.height:
        return None
    figures = {"pauses": gaps.height / scope.parts, "copies_only": not _has_kernels(scope)}
    return Measure.of(gaps, figures, gain_ns=0.0, where=UNKNOWN)


UNKNOWN: Final = "cause = 'unknown' OR (cause = 'queued' AND held_kind IS NULL)"


def _without_cause(scope: Scope) -> tuple[pl.DataFrame, pl.Expr]:
    """Idle time that nothing explains, and the part of it in which the device was not idle, or
    may not have been.
    """
    gaps = _idle(scope, "queued", "unknown").filter(
        (pl.col("cause") == "unknown") | pl.col("held_kind").is_null()
    )
    if not _has_kernels(scope):
        return gaps, pl.when(pl.col("cause") == "unknown").then("dur_ns").otherwise(0)
    beyond = pl.col("dur_ns") - pl.col("waited_ns")
    # two records of one pause differ by the time that the profiler takes
    return gaps, pl.when(beyond >= pl.col("dur_ns") / 2).then(beyond).otherwise(0)


def _has_kernels(scope: Scope) -> bool:
    return bool((scope.events["source"] == "kernel").any())


def outside(scope: Scope) -> Measure | None:
    """Recorded time before the first and after the last event of a device, or operator of a host
    without one.
    """
    if scope.steps is not None:
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
    before = both.select("rank", "start_ns", dur_ns="before")
    pieces, spans = innermost_within(
        before, host_spans(scope.trace).with_columns(thread=0), ["rank"]
    )
    who, share = most(pieces.with_columns(spans["name"][pieces["span"]].alias("who")), "who")
    in_who = share * total(pieces, "dur_ns") / max(1.0, total(before, "dur_ns"))
    figures = {
        "started_in": who if in_who >= MOSTLY else None,
        "started_in_share": in_who,
        "before_ns": total(both, "before") / scope.parts,
        "after_ns": total(both, "after") / scope.parts,
    }
    return Measure.of(both, figures, ns=scope.time("idle", "outside"))


def between_operators(scope: Scope) -> Measure | None:
    """Time of a run on CPU in which none of its operators runs, from the first to the last of
    them.
    """
    if not scope.trace.capture.on_host:
        return None
    gaps = scope.pauses
    figures = {
        "pauses": gaps.height / scope.parts,
        "median_ns": middle(gaps, "dur_ns"),
        "in_python": bool(scope.events["name"].str.starts_with("aten::").any()),
    }
    # what comes before the first operator and after the last is start-up and end: see outside
    return Measure.of(gaps, figures, ns=scope.time("idle") - scope.time("idle", IDLE_NOT_RECORDED))


def share_in_graphs(scope: Scope, late: pl.DataFrame) -> tuple[float, bool]:
    """Share of the kernels that a replayed graph launched, and whether most of the late time is
    in an eager part.
    """
    kernels = scope.events.select("rank", "launch_start_ns").filter(
        scope.events["source"] == "kernel"
    )
    if not kernels.height or not scope.trace.has("runtime"):
        return 0.0, False
    calls = scope.trace.runtime.select("rank", "name", launch_start_ns="start_ns")
    replays = (
        calls.filter(call_kinds(calls["name"])["replays"])
        .select("rank", "launch_start_ns")
        .unique()
    )
    launch = ["rank", "launch_start_ns"]
    in_graphs = kernels.join(replays, on=launch, how="semi")
    alone = kernels.height - in_graphs.height
    before = total(late.join(replays, on=launch, how="anti"), "dur_ns")
    eager_part = alone > LAUNCHED_ALONE * in_graphs.n_unique() and before > 0.5 * total(
        late, "dur_ns"
    )
    return in_graphs.height / kernels.height, eager_part


def _idle(scope: Scope, *causes: str) -> pl.DataFrame:
    if scope.trace.capture.on_host:
        return scope.pauses.clear()
    return scope.pauses.filter(pl.col("cause").is_in(causes) & pl.col("reason").is_null())


CUSTOM_ALL_REDUCE_BYTES = 8 << 20
"""Largest message of vLLM's custom all-reduce (its default ``max_size`` on NVLink, vLLM
custom_all_reduce.py).
"""

PIPELINE = ("broadcast", "send_recv")
"""Communication between stages of a pipeline: waiting in it comes from the pipeline's
dependency.
"""

_PIPELINE_GROUP = r"(?i)pipe|\bpp\b|pp_|_pp|:pp"


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
    calls = every.filter(
        pl.col("wait_ns").is_not_null() & (pl.col("world") > 1) & (passes == pipeline)
    )
    whole = total(every, "wait_ns")
    kind, _ = most(calls, "kind", "wait_ns")
    if kind is None:
        return None
    own = calls
    calls = calls.filter(pl.col("kind") == kind)
    once = calls.unique("call", keep="first", maintain_order=True)
    waits = calls.group_by("call").agg(pl.col("last_rank").first(), pl.col("wait_ns").sum())
    lasts = (
        waits.filter(pl.col("wait_ns") > 0)  # where nobody waits nobody is late
        .group_by("last_rank")
        .agg(count=pl.len(), waited=pl.col("wait_ns").sum())
        .sort("waited", "count", "last_rank", descending=[True, True, False])
    )
    late, times, waited = lasts.row(0)
    of_waiting = waited / max(1.0, total(lasts, "waited"))
    others = calls.filter(pl.col("rank") != late)
    figures = {
        "kind": kind.replace("_", "-"),
        "late": late,
        "late_share": times / once.height,
        "late_wait_share": of_waiting,
        "group": None
        if pipeline
        else latest_group(late_groups_of(calls, rank_places(scope.trace))),
        "calls": once.height,
        "waited_share": total(others, "wait_ns") / max(1.0, total(others, "dur_ns")),
        # the rest of a kernel's duration is its transfer; the kernel of the last rank has no
        # waiting
        "transfer_ns": middle(calls, "transfer_ns"),
        "seen_ns": middle(others, "dur_ns"),
        "skew_ns": middle(once, "arrival_skew_ns"),
        "spread_ns": middle(once, "end_spread_ns"),
        "clock_offset_ns": largest(
            calls.with_columns(pl.col("clock_offset_ns").abs()), "clock_offset_ns"
        ),
        "overlapping_share": calls["match_confidence"].cast(pl.Float64).min(),
    }
    # waiting at the same time as compute costs nothing, so each kind gets its share of the exposed
    # part
    of_rank = pl.col("wait_ns").sum()
    shares = (
        every.group_by("rank")
        .agg(every=of_rank)
        .join(own.group_by("rank").agg(mine=of_rank), on="rank")
    )
    by_rank = (
        scope.by_rank("communication", "wait")
        .join(shares.filter(pl.col("every") > 0), on="rank")
        .select("rank", dur_ns=pl.col("ns") * pl.col("mine") / pl.col("every"))
    )
    late_ranks = lasts.filter(pl.col("waited") >= waited / 2)["last_rank"]
    most_of_it = total(lasts.filter(pl.col("waited") >= waited / 2), "waited") >= MOSTLY * total(
        lasts, "waited"
    )
    cause = (
        None
        if pipeline or not most_of_it
        else _why_late(scope, late_ranks.to_list(), whole / scope.parts)
    )
    return Measure.of(
        calls.with_columns(dur_ns="wait_ns"),
        figures | {"cause": cause},
        ns=total(by_rank, "dur_ns"),
        where=f"kind = '{kind}'",
        change=None if pipeline or cause else "balance",
        by_rank=by_rank,
        follows_from=cause,
    )


EXPLAINS: Final = 0.25
"""Least share of the others' waiting that late ranks spend more than they do, for that to be
named as the cause.
"""


def _why_late(scope: Scope, late: list[int], waited_ns: float) -> str | None:
    """The rule about what the late ranks spend most time on beyond the others; None if it
    explains little.
    """
    of_work = pl.concat(
        scope.by_rank(kind).with_columns(rule=pl.lit(rule))
        for kind, rule in (("compute", uneven_rule(scope)), ("copy", "copies"))
    )
    held = (pl.col("cause") == "queued") & (pl.col("held_kind") == "call")
    cause = pl.col("cause")
    of_cause = first_true(
        {"host_bound": cause.is_in(LATE), "synchronisation": cause == "sync", "device_held": held}
    )
    of_host = scope.pauses.select("rank", ns="dur_ns", rule=pl.coalesce("reason", of_cause))
    sums = pl.concat([of_work, of_host.cast({"ns": pl.Int64})], how="vertical_relaxed").filter(
        pl.col("rule").is_not_null()
    )
    steps_of = scope.windows.group_by("rank").agg(parts=pl.len())
    each = sums.group_by("rule", "rank").agg(pl.col("ns").sum())
    each = (
        each.select("rule")
        .unique()
        .join(steps_of, how="cross")
        .join(each, on=["rule", "rank"], how="left")
    )
    mean = pl.col("ns").fill_null(0) / pl.col("parts")
    own, other = (
        mean.filter(pl.col("rank").is_in(late) == is_late).mean() for is_late in (True, False)
    )
    more = (
        each.group_by("rule")
        .agg(ns=own - other)
        .drop_nulls()
        .sort("ns", "rule", descending=[True, False])
    )
    if not more.height or more["ns"][0] < EXPLAINS * waited_ns:
        return None
    return str(more["rule"][0])


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
    any_call = union_length(scope.events.filter(pl.col("category").is_in(COMMUNICATION)), ["rank"])
    rows = calls.with_columns(dur_ns=pl.coalesce("transfer_ns", "dur_ns"))
    figures = {
        "waits_known": bool(waits_known),
        "hidden_share": 1 - scope.time("communication") / total(any_call, "busy_ns"),
        "kinds": [kind.replace("_", "-") for kind in kinds["kind"].head(2)],
        "calls": calls.height / scope.parts,
        "why": None if waits_known or not why.len() else why[0],
        "has_layers": scope.has_layers,
    }
    by_rank = scope.by_rank("communication", "transfer", "wait or transfer").rename(
        {"ns": "dur_ns"}
    )
    return Measure.of(rows, figures, ns=transfer, by_rank=by_rank)


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
    figures = {
        "message_bytes": middle(calls, "bytes"),
        "most_bytes": CUSTOM_ALL_REDUCE_BYTES,
        "algorithm": calls["algorithm"].mode().sort()[0],
        "transfer_ns": middle(calls, "transfer_ns"),
        "calls": calls.height / scope.parts,
        "bus_gbps": middle(calls, "bus_gbps"),
    }
    where = f"kind = 'all_reduce' AND bytes <= {CUSTOM_ALL_REDUCE_BYTES}"
    return Measure.of(calls.with_columns(dur_ns="transfer_ns"), figures, where=where)
