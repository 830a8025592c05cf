"""Ranks wait in collectives: for the rank that comes last, or for a stage of a pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import polars as pl
from msgspec.structs import replace

from llmprof.analyze.collectives.collectives import collectives
from llmprof.analyze.ranks import late_groups_of, latest_group, rank_places
from llmprof.findings.cause import Cause, Context, Figures, Measurement
from llmprof.findings.host import MOSTLY
from llmprof.findings.ranks import NEARLY_ALL, cause_of_lateness
from llmprof.findings.scope import Scope, heaviest, max_of, median_of, sum_of
from llmprof.label.steps.steps import steps_of
from llmprof.text import ranks_in_words, sentence
from llmprof.trace.schema import END
from llmprof.units import format_ns, format_share

PIPELINE: Final = ("broadcast", "send_recv")
"""Communication between stages of a pipeline: waiting in it comes from the pipeline's
dependency.
"""

_PIPELINE_GROUP: Final = r"(?i)pipe|\bpp\b|pp_|_pp|:pp"

_CLEARLY: Final = 0.9
"""From this share of the waiting on, one rank causes it."""


class _Waiting(Figures, frozen=True):
    """Calls of one kind: shares of them and of their time, medians of their times."""

    kind: str
    late: list[int]
    """The ranks for which others wait most."""
    late_wait_share: float
    waited_share: float
    transfer_ns: float | None
    seen_ns: float | None
    skew_ns: float | None
    spread_ns: float | None
    clock_offset_ns: float | None = None
    overlapping_share: float | None = None
    group: Mapping[str, Any] | None = None
    """The ranks that come last together (:func:`llmprof.analyze.ranks`)."""
    explained_share: float = 1.0
    """Share of the waiting that the finding of its cause explains."""

    def detail(self, of: Context) -> str:
        text = (
            f"Most of it is in {self.kind}s: waiting is {format_share(self.waited_share)} of the"
            f" other ranks' time in them. {ranks_in_words(self.late).capitalize()}"
            f" {'causes' if len(self.late) == 1 else 'cause'} {format_share(self.late_wait_share)}"
            " of it. In the median a rank spends"
            f" {format_ns(self.seen_ns)} in a call, {format_ns(self.transfer_ns)} of it transfer."
            f" The first and the last rank arrive {format_ns(self.skew_ns)} apart. All leave"
            f" within {format_ns(self.spread_ns)} of each other"
        )
        text += (
            f", after their clocks were corrected by up to {format_ns(self.clock_offset_ns)}."
            if self.clock_offset_ns
            else ", so their clocks agree."
        )
        if self.overlapping_share is not None and self.overlapping_share < 1:
            share = format_share(self.overlapping_share)
            text += f" {share} of the calls overlap on all ranks, as they must."
        if self.group:
            text += (
                f" A rank of {self.group['who']} is last into"
                f" {format_share(self.group['last_share'])} of the calls. The middle one comes"
                f" {format_ns(self.group['late_median_ns'])} after the first rank of a call (groups"
                f" by {self.group['evidence']})."
            )
        return text


class ArrivalSkew(_Waiting, frozen=True):
    """Waiting for the rank that comes last."""

    def title(self, of: Context) -> str:
        if self.group:
            whom = f"the last rank, most often of {self.group['who']}"
        elif self.late_wait_share >= _CLEARLY:
            whom = ranks_in_words(self.late)
        elif self.late_wait_share >= MOSTLY:
            whom = f"the last rank, mostly {ranks_in_words(self.late)}"
        else:
            whom = "whichever rank comes last"
        wait = "Ranks wait" if of.on is None else f"Ranks {ranks_in_words(of.on)[6:]} wait"
        if of.on is not None and len(of.on) == 1:
            wait = f"Rank {of.on[0]} waits"
        return f"{wait} {of.amount} for {whom}."

    def advice(self, of: Context) -> str:
        if self.group:
            return (
                "Look for what these ranks share before touching communication. It may be their"
                " host (other processes, clocks, power and temperature limits), their switch, their"
                " part of the model or of the requests. All groups are compared by"
                " analyze.ranks(trace, by='group'); charts.ranks shows when it happens."
            )
        if of.follows_from:
            cause = of.follows_from.replace("_", " ")
            be = "is" if len(self.late) == 1 else "are"
            text = f"The finding {cause} says why {ranks_in_words(self.late)} {be} late"
            part = f": that is {format_share(self.explained_share)} of it"
            return f"{text}{part if self.explained_share < NEARLY_ALL else ''}."
        first = "Find out why that rank is late before touching communication: compare"
        if of.on_host:
            return (
                f"{first} the times of its operators with those of the others. Pin each rank to"
                " cores of its own, and look for other processes on those cores."
            )
        return (
            f"{first} its host time and idle causes with the others'."
            f" {sentence(of.words['pin'])} Look for other processes on those cores, and take the"
            f" launches off the critical path with {of.words['graphs']}."
        )


class PipelineWait(_Waiting, frozen=True):
    """Waiting of one pipeline stage for another."""

    step_ns: float | None = None
    """Longest mean step of a rank."""
    own_ns: float | None = None
    """The same without this waiting, but with the rest of the time in which a device is idle."""
    work_ns: float | None = None
    """Longest mean time from the first to the last product of a step on a rank, or of its host."""
    hosts_set_pace: bool = False
    """Whether more batches in flight would end little of the waiting, since this is so long."""

    def title(self, of: Context) -> str:
        return f"Waiting for another stage of the pipeline takes {of.amount}{of.where}."

    def advice(self, of: Context) -> str:
        if self.hosts_set_pace:
            return "Shorten what the hosts do first: with more batches in flight they set the pace."
        return (
            "Keep as many batches in flight as the pipeline has stages, or use tensor parallelism"
            " inside a host. One batch leaves every stage but one idle."
        )

    def detail(self, of: Context) -> str:
        least, most = format_ns(self.work_ns), format_ns(self.own_ns)
        return (
            f"With a batch in flight for each stage, one would end every {least} to {most} instead"
            f" of {format_ns(self.step_ns)}. The least is what the slowest stage's products or"
            f" host take, the most its step without this waiting. {super().detail(of)}"
        )


def _is_pipeline(scope: Scope, calls: pl.DataFrame) -> bool:
    """Whether a run is a pipeline: its groups say so, or it is a vLLM run with sends."""
    sends = calls.filter(kind="send_recv")
    if not sends.height:
        return False
    by_vllm = scope.steps is not None and bool((scope.steps["source"] == "vllm").any())
    return by_vllm or bool(sends["group"].str.contains(_PIPELINE_GROUP).any())


def _without_next_batch(scope: Scope, calls: pl.DataFrame) -> pl.DataFrame:
    """Calls of a pipeline without the waiting of those that are still open when products of another
    step begin on their rank: that batch was there, and did not wait for them.
    """
    products = (
        scope.trace.events.filter(category="gemm")
        .group_by("rank", next_step="step")
        .agg(begin_ns=pl.min("start_ns"))
        .sort("begin_ns")
    )
    following = calls.sort("start_ns").join_asof(
        products,
        left_on="start_ns",
        right_on="begin_ns",
        by="rank",
        strategy="forward",
        check_sortedness=False,
    )
    beside = (pl.col("begin_ns") < END) & (pl.col("next_step") != pl.col("step"))
    wait = pl.when(beside.fill_null(False)).then(0).otherwise("wait_ns")
    return following.with_columns(wait_ns=wait).drop("begin_ns", "next_step")


def _products_ns(scope: Scope) -> float:
    """Longest mean time of a rank from the first to the last product of a step; 0 without any."""
    products = scope.events.filter(category="gemm").group_by("rank", "window")
    spans = products.agg(ns=END.max() - pl.min("start_ns"))
    return max_of(spans.group_by("rank").agg(pl.mean("ns")), "ns") or 0.0


def _host_ns(scope: Scope) -> float:
    """Longest mean time that the host of a rank takes for a step; 0 if unknown."""
    if scope.steps is None:
        return 0.0
    steps = scope.own_rows(steps_of(scope.trace))
    return max_of(steps.group_by("rank").agg(ns=pl.mean("host_dur_ns")), "ns") or 0.0


def _measure_calls(scope: Scope, figures: type[_Waiting]) -> Measurement | None:
    every = scope.begun(collectives(scope.trace))
    pipeline = figures is PipelineWait
    passes = pl.col("kind").is_in(PIPELINE) & pl.lit(_is_pipeline(scope, every))
    own = every.filter(
        pl.col("wait_ns").is_not_null() & (pl.col("world") > 1) & (passes == pipeline)
    )
    if pipeline and own.height:
        own = _without_next_batch(scope, own)
    kind, _ = heaviest(own, "kind", "wait_ns")
    if kind is None:
        return None
    # the kind of call with most waiting, and the ranks that are last into it
    calls = own.filter(kind=kind)
    once = calls.unique("call", keep="first", maintain_order=True)
    waits = calls.group_by("call").agg(pl.first("last_rank"), pl.sum("wait_ns"))
    lasts = (
        waits.filter(pl.col("wait_ns") > 0)  # where nobody waits nobody is late
        .group_by("last_rank")
        .agg(count=pl.len(), waited=pl.sum("wait_ns"))
        .sort("waited", "count", "last_rank", descending=[True, True, False])
    )
    late_ranks = lasts.filter(pl.col("waited") >= lasts["waited"][0] / 2)
    if late_ranks.height == len(scope.ranks):
        late_ranks = lasts.head(1)
    late = late_ranks["last_rank"].sort().to_list()
    late_share = sum_of(late_ranks, "waited") / max(1.0, sum_of(lasts, "waited"))
    cause, explained = None, 1.0
    if not pipeline and late_share >= MOSTLY:
        waiting = scope.of([rank for rank in scope.ranks if rank not in late])
        each_ns = sum_of(every.filter(~pl.col("rank").is_in(late)), "wait_ns") / waiting.parts
        cause, explained = cause_of_lateness(scope, late, each_ns)
    others = calls.filter(~pl.col("rank").is_in(late))
    places = None if pipeline else late_groups_of(calls, rank_places(scope.trace))
    offsets = calls.with_columns(pl.col("clock_offset_ns").abs())
    measured = figures(
        kind=kind.replace("_", "-"),
        late=late,
        late_wait_share=late_share,
        waited_share=sum_of(others, "wait_ns") / max(1.0, sum_of(others, "dur_ns")),
        # the rest of a kernel's duration is its transfer; the kernel of the last rank has no
        # waiting
        transfer_ns=median_of(calls, "transfer_ns"),
        seen_ns=median_of(others, "dur_ns"),
        skew_ns=median_of(once, "arrival_skew_ns"),
        spread_ns=median_of(once, "end_spread_ns"),
        clock_offset_ns=max_of(offsets, "clock_offset_ns"),
        overlapping_share=calls["confidence"].cast(pl.Float64).min(),  # type: ignore[arg-type]
        group=None if places is None else latest_group(places),
        explained_share=explained,
    )
    # waiting at the same time as compute costs nothing, so each kind gets its share of the exposed
    # part
    of_rank = pl.sum("wait_ns")
    shares = (
        every.group_by("rank")
        .agg(every=of_rank)
        .join(own.group_by("rank").agg(mine=of_rank), on="rank")
    )
    by_rank = (
        scope.rank_times("communication", "wait")
        .join(shares.filter(pl.col("every") > 0), on="rank")
        .select("rank", dur_ns=pl.col("dur_ns") * pl.col("mine") / pl.col("every"))
    )
    return Measurement.of(
        calls.with_columns(dur_ns="wait_ns"),
        measured,
        ns=sum_of(by_rank, "dur_ns"),
        where=f"kind = '{kind}'",
        by_rank=by_rank,
        follows_from=cause,
    )


def _measure_arrival_skew(scope: Scope) -> Measurement | None:
    return _measure_calls(scope, ArrivalSkew)


def _measure_pipeline_wait(scope: Scope) -> Measurement | None:
    measured = _measure_calls(scope, PipelineWait)
    if measured is None or measured.by_rank is None:
        return measured
    # what a step would take with a batch in flight for each stage
    waited = dict(measured.by_rank.iter_rows())
    step_ns = {rank: span / parts for rank, (span, parts) in scope.ranks.items()}
    wait_ns = {rank: waited.get(rank, 0) / parts for rank, (_, parts) in scope.ranks.items()}
    work_ns = max(_products_ns(scope), _host_ns(scope))
    longest_ns = max(step_ns.values())
    little = longest_ns - work_ns < MOSTLY * max(wait_ns.values())
    figures = replace(
        measured.figures,
        step_ns=longest_ns,
        own_ns=max(work_ns, *(step_ns[rank] - wait_ns[rank] for rank in step_ns)),
        work_ns=work_ns,
        hosts_set_pace=little,
    )
    return replace(measured, figures=figures, unsure=little)


ARRIVAL_SKEW: Final = Cause("arrival_skew", _measure_arrival_skew, "collectives")
PIPELINE_WAIT: Final = Cause("pipeline_wait", _measure_pipeline_wait, "collectives")
