"""Collectives over the ranks: the time that each rank waits for the last one, and the time of
the transfer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import polars as pl

from llmprof import names
from llmprof.analyze.catalog import Analysis
from llmprof.analyze.collectives.calls import (
    CLOCK_CALLS,
    LEAVES_EARLY,
    NEAR_NS,
    SURE,
    match_calls,
    with_inputs,
    with_sizes,
)
from llmprof.errors import Columns, LlmprofError, NotCapturedError, refuse_unknown
from llmprof.label.steps.steps import events_with_steps
from llmprof.names.matching import first_true
from llmprof.theory.hardware import device
from llmprof.trace import Trace, schema

COLUMNS = [
    "rank",
    "step",
    "phase",
    "layer",
    "call",
    "kind",
    "algorithm",
    "group",
    "world",
    "ranks",
    "bytes",
    "source",
    "dtype",
    "start_ns",
    "dur_ns",
    "arrival_skew_ns",
    "wait_ns",
    "transfer_ns",
    "last_rank",
    "end_spread_ns",
    "clock_offset_ns",
    "algorithm_gbps",
    "bus_gbps",
    "name",
    "evidence",
    "confidence",
    "reason",
]


@Analysis(
    question="How much of the communication is waiting, and for which rank?",
    help="every collective: waiting, transfer, bandwidth",
    view="collectives",
    recorded="device activity or operators",
)
def collectives(trace: Trace, *, by: Columns = ()) -> pl.DataFrame:
    """Every collective call on every rank, matched over the ranks, or sums of these.

    A collective cannot finish before its last rank has arrived: ``wait_ns`` runs from a rank's own
    start to the last start of the same call on any rank, and the rest of the duration is
    ``transfer_ns``. A rank that sends into a buffer and ends before the other one begins did not
    wait (send_recv, broadcast, reduce). Bandwidths are over the transfer: the algorithm's is
    ``bytes / transfer``; the bus's is this times ``2 (n - 1) / n`` for all_reduce, ``(n - 1) / n``
    for all_gather, reduce_scatter and all_to_all, and 1 for the rest (NVIDIA nccl-tests,
    doc/PERFORMANCE.md).

    Parameters
    ----------
    trace : Trace
        A trace with collectives; one rank is enough for durations and sizes.
    by : str or sequence of str
        Columns of the calls to sum them by, such as ``("kind", "rank")`` (which rank comes late?)
        or ``("kind", "algorithm", "bytes")`` (which message sizes reach which bandwidth?).

    Returns
    -------
    polars.DataFrame
        ``rank, step, phase, layer`` (null outside layers), ``call`` (the same number on all ranks
        of a call, null where it has no match), ``kind, algorithm, group, world`` (ranks in the
        group), ``ranks``, ``bytes, source`` (of the size: metadata, shapes or null), ``dtype,
        start_ns, dur_ns``, ``arrival_skew_ns`` (last start minus first start), ``wait_ns,
        transfer_ns`` (null where they cannot be told: ``reason`` says why), ``last_rank`` (who
        arrived last), ``end_spread_ns`` (last end minus first end: a few us where the clocks agree
        and the ranks leave at once, tens around a ring), ``clock_offset_ns`` (correction of this
        rank's clock, 0 on one host), ``algorithm_gbps, bus_gbps`` (GB/s), ``name``; ``evidence``
        (of the match: group: the recording names the group; ends: the ranks leave together),
        ``confidence`` (share of the calls of these ranks that overlap on all of them, as they must;
        null for kinds that a rank may leave early) and ``reason``.

        With ``by``: its columns, ``count, total_ns, median_ns, p10_ns, p90_ns`` (of ``dur_ns``),
        ``wait_ns, transfer_ns`` (sums), ``transfer_median_ns, transfer_p10_ns, transfer_p90_ns``,
        ``algorithm_gbps, bus_gbps`` (medians), ``peak_gbps`` (of the device's link in one
        direction; null where unknown) and ``peak_share`` (of the bus); of the calls whose ranks
        are all known ``last_count, last_share`` (in which a rank of the row arrives last) and
        ``late_median_ns, late_p90_ns, late_max_ns`` (start after the first rank).

    Raises
    ------
    NotCapturedError
        The trace holds no device activity or operators.
    AnalysisError
        ``by`` names an unknown column.

    Examples
    --------
    >>> calls = analyze.collectives(ranks)
    >>> calls["rank"].n_unique(), calls["kind"].unique().sort().to_list()
    (4, ['all_gather', 'all_reduce'])
    >>> arrivals = analyze.collectives(ranks, by=["kind", "rank"])
    >>> arrivals.sort("last_share")["rank"][-1]  # the rank that the others wait for
    3
    """
    if by:
        return sums_of_calls(collectives(trace), by, peak_gbps=link_peak_gbps(trace))
    return matched(recorded_calls(trace), trace.meta, trace.ranks)


def recorded_calls(trace: Trace) -> pl.DataFrame:
    """First part of :func:`collectives`, for each rank separately: its calls with step and
    layer.
    """
    return with_inputs(_recorded(trace), trace)


def called_together(trace: Trace) -> pl.DataFrame:
    """``rank, call`` of :func:`collectives`: found without labels of layers, if these change the
    kind of no call.
    """
    calls = _recorded(trace, stages=False)
    if calls["kind"].is_in(VAGUE).any():
        return collectives(trace)[["rank", "call"]]
    return (
        match_calls(calls)[["rank", "call"]]
        if calls.height
        else calls.select("rank", call=pl.lit(None))
    )


def matched(calls: pl.DataFrame, meta: Mapping[str, Any], ranks: Sequence[int]) -> pl.DataFrame:
    """Second part of :func:`collectives`, which needs all ranks: matched calls, waiting, and
    bandwidths.
    """
    if not calls.height:
        return pl.DataFrame(schema=_TYPES)
    calls = match_calls(calls).with_columns(world=_world(meta, ranks))
    # NCCL runs an all-to-all as point-to-point kernels on more than two ranks at once
    exchanges = (pl.col("kind") == "send_recv") & (pl.col("ranks_in_group") > 2)
    calls = calls.with_columns(kind=pl.when(exchanges).then(pl.lit("all_to_all")).otherwise("kind"))
    calls = with_sizes(calls)
    start = pl.col("start_ns") - pl.col("clock_offset_ns")
    calls = calls.with_columns(_start=start, _end=start + pl.col("dur_ns"))
    per_call = (
        calls.drop_nulls("call")
        .group_by("call")
        .agg(
            _last=pl.max("_start"),
            arrival_skew_ns=pl.max("_start") - pl.min("_start"),
            end_spread_ns=pl.max("_end") - pl.min("_end"),
            last_rank=pl.col("rank").get(pl.col("_start").arg_max()),
            ranks=pl.n_unique("rank").cast(pl.Int32),
            _first_end=pl.min("_end"),
        )
    )
    calls = calls.join(per_call, on="call", how="left", maintain_order="left")
    reason = _why_no_wait(meta, ranks)
    left_early = pl.col("kind").is_in(LEAVES_EARLY) & (pl.col("_end") < pl.col("_last"))
    wait = (
        pl.when(left_early)
        .then(0)
        .otherwise((pl.col("_last") - pl.col("_start")).clip(0, pl.col("dur_ns")))
    )
    factor = bus_factor(pl.col("world"))
    return (
        calls.with_columns(reason=reason)
        .with_columns(wait_ns=pl.when(pl.col("reason").is_null()).then(wait))
        .with_columns(transfer_ns=pl.col("dur_ns") - pl.col("wait_ns"))
        .with_columns(
            algorithm_gbps=pl.when(pl.col("transfer_ns") > 0).then(
                pl.col("bytes") / pl.col("transfer_ns")
            ),
            **{
                c: pl.when(pl.col("reason").is_null()).then(pl.col(c))
                for c in ("arrival_skew_ns", "end_spread_ns", "last_rank")
            },
        )
        .with_columns(bus_gbps=pl.col("algorithm_gbps") * factor)
        .with_columns(source="bytes_source", evidence="matched_by")
        .select(COLUMNS)
        .cast(_TYPES)
        .sort("rank", "start_ns", maintain_order=True)
    )


def bus_factor(ranks: pl.Expr) -> pl.Expr:
    """Ratio of the bus's bandwidth to the algorithm's, by ``kind`` (nccl-tests,
    doc/PERFORMANCE.md).
    """
    n = ranks.cast(pl.Float64)
    return (
        pl.when(pl.col("kind") == "all_reduce")
        .then(2 * (n - 1) / n)
        .when(pl.col("kind").is_in(["all_gather", "reduce_scatter", "all_to_all"]))
        .then((n - 1) / n)
        .otherwise(1.0)
    )


def _why_no_wait(meta: Mapping[str, Any], ranks: Sequence[int]) -> pl.Expr:
    """Reason why the waiting of a call is unknown, as text; null if it is known."""
    unrelated = meta.get("clock") == "unrelated"
    size = meta.get("world_size")
    of_run = "these calls do not say how many ranks take part"
    if isinstance(size, int) and size > len(ranks):
        of_run = f"the trace has {len(ranks)} of the {size} ranks of the run"
    few = pl.col("call").is_not_null().sum().over("rank", "group", "kind") < CLOCK_CALLS
    seen, world, sure = pl.col("ranks"), pl.col("world"), pl.col("confidence")
    apart = ~pl.col("kind").is_in(LEAVES_EARLY) & (pl.col("_last") > pl.col("_first_end") + NEAR_NS)
    return (
        pl.when(world == 1)
        .then(pl.lit(None, pl.String))
        .when(pl.col("call").is_null() | (seen < pl.col("ranks_in_group")))
        .then(pl.lit("the recording of another rank of the group lacks this call"))
        .when(pl.lit(unrelated) & few & (pl.col("ranks_in_group") > 1))
        .then(
            pl.lit(
                "the clocks of the ranks are unrelated, and so few calls do not tell how far they"
                " are apart"
            )
        )
        .when(world.is_null() & (pl.col("ranks_in_group") > 1))
        .then(pl.lit(f"ranks are missing, and {of_run}"))
        .when(world.is_null())
        .then(
            pl.coalesce(
                "reason", pl.lit(f"no other rank of this trace makes such calls, and {of_run}")
            )
        )
        .when(seen < world)
        .then(
            pl.coalesce(
                "reason", pl.format("the trace has {} of the {} ranks of the group", seen, world)
            )
        )
        .when(sure < SURE)
        .then(
            pl.format(
                "only {} % of these calls overlap on all ranks: the clocks differ in a way that is"
                " not known, or the calls are not the same",
                (sure * 100).round(0).cast(pl.Int64),
            )
        )
        .when(apart)
        .then(pl.lit("this call ends on one rank before it begins on another"))
    )


def _recorded(trace: Trace, *, stages: bool = True) -> pl.DataFrame:
    """Rows of the table of collectives with step and layer, and events that a registered pattern
    adds.
    """
    rows = trace.collectives if "collectives" in trace.table_names else schema.empty("collectives")
    try:
        events = trace.events if stages else events_with_steps(trace)
    except NotCapturedError:  # some profilers list the calls without the device's other work
        if not rows.height:
            raise
        return rows.with_columns(step=pl.lit(None), phase=pl.lit(None), layer=pl.lit(None))
    events = events.filter(category="collective")
    if not stages:
        events = events.with_columns(layer=pl.lit(None, pl.Int32), stage=pl.lit(None, pl.String))
    key = ["rank", "stream", "start_ns", "name"]
    on_host = not rows["on_device"].any() and rows.height > 0
    place = events.select(*key, "step", "phase", "layer", said="stage").unique(
        key, keep="first", maintain_order=True
    )
    if on_host:
        rows = rows.with_columns(stream=pl.lit(None, pl.Int64))
        place = place.with_columns(stream=pl.lit(None, pl.Int64))
    else:
        added = events.join(rows, on=key, how="anti", nulls_equal=True)
        added = added.with_columns(
            kind=names.collective_kinds(added["name"]),
            algorithm=names.collective_algorithms(added["name"]),
            on_device=pl.col("source") != "op",
        )
        shared = [c for c in rows.columns if c in added.columns]
        rows = pl.concat([rows, added.select(shared)], how="diagonal_relaxed")
    rows = rows.join(place, on=key, how="left", nulls_equal=True, maintain_order="left")
    return rows.with_columns(kind=_called()).drop("said")


VAGUE: Final = ("other", "send_recv", "broadcast", "reduce")
"""Kinds of kernels that may be part of a call of another kind."""


def _called() -> pl.Expr:
    """Kind of a whole call that NCCL runs as simpler kernels; the stage (``said``) shows it."""
    # Send and receive kernels make an all-to-all, and a kernel of RCCL serves any kind. If ranks
    # have different numbers of tokens, a broadcast from each rank gathers them for the experts, and
    # a reduction to each rank scatters the results.
    kind, stage = pl.col("kind"), pl.col("said")
    sends = kind == "send_recv"
    as_said = (kind == "other") & stage.is_in(names.COLLECTIVE_KINDS)
    as_said |= sends & stage.is_in(["all_to_all", "all_gather", "reduce_scatter"])
    of_experts = {
        "all_to_all": sends & stage.is_in(["expert_dispatch", "combine"]),
        "all_gather": (kind == "broadcast") & (stage == "expert_dispatch"),
        "reduce_scatter": (kind == "reduce") & (stage == "combine"),
    }
    return pl.coalesce(pl.when(as_said).then("said"), first_true(of_experts), "kind")


def _world(meta: Mapping[str, Any], ranks: Sequence[int]) -> pl.Expr:
    """Ranks in the group: from metadata or the kernel's name, or the size that all groups have, or
    else the number of ranks that call together.
    """
    # If the trace lacks ranks of the run, has only one, or consists of files of which none states
    # the number of ranks, more ranks may belong to the group.
    size = meta.get("world_size")
    absent = bool(meta.get("missing_ranks")) or (isinstance(size, int) and size > len(ranks))
    files = {about.get("file") for about in meta.get("ranks") or ()}
    absent |= meta.get("world_size_from") == "ranks" and len(files) > 1
    alone = size == 1 and meta.get("world_size_from") != "ranks"
    whole = not absent and (pl.lit(alone) | (pl.col("ranks_in_group") > 1))
    groups = [
        of for about in meta.get("ranks") or () for of in (about.get("groups") or {}).values()
    ]
    sizes = {len(members or ()) for members in groups}
    same = pl.lit(sizes.pop() if len(sizes) == 1 else None, dtype=pl.Int32)
    return pl.coalesce(
        "world",
        names.collective_world(pl.col("name")),
        pl.when(same > 0).then(same),
        pl.when(whole).then("ranks_in_group"),
    )


_TEXTS = (
    "phase",
    "kind",
    "algorithm",
    "group",
    "source",
    "dtype",
    "name",
    "evidence",
    "reason",
)
_TYPES = pl.Schema(
    dict.fromkeys(COLUMNS, pl.Int64())
    | dict.fromkeys(["rank", "step", "layer", "world", "ranks", "last_rank"], pl.Int32())
    | dict.fromkeys(_TEXTS, pl.String())
    | dict.fromkeys(["algorithm_gbps", "bus_gbps", "confidence"], pl.Float64())
)


def lateness(calls: pl.DataFrame) -> pl.DataFrame:
    """Rows of :func:`collectives` with ``late_ns`` after the first rank; null if a rank of the
    call is missing.
    """
    start = pl.col("start_ns") - pl.col("clock_offset_ns")
    complete = pl.col("arrival_skew_ns").is_not_null() & pl.col("call").is_not_null()
    return calls.with_columns(late_ns=pl.when(complete).then(start - start.min().over("call")))


def link_peak_gbps(trace: Trace) -> float | None:
    """Peak of the device's link in one direction (GB/s), half of what vendors state; None if
    unknown.
    """
    name = trace.meta.get("device")
    try:
        peak = device(name).link_bytes_per_s if isinstance(name, str) else None
    except LlmprofError:
        return None
    return peak / 2 / 1e9 if peak else None


def sums_of_calls(
    calls: pl.DataFrame, by: Sequence[str], *, peak_gbps: float | None = None
) -> pl.DataFrame:
    """The analysis of :func:`collectives` by columns, on rows of single calls."""
    refuse_unknown(by, calls.columns, "by")
    late, dur, transfer = pl.col("late_ns"), pl.col("dur_ns"), pl.col("transfer_ns")
    known, bus = pl.col("_known"), pl.col("bus_gbps")
    return (
        lateness(calls)
        .group_by(*by)
        .agg(
            count=pl.len(),
            total_ns=dur.sum(),
            **_middle("", dur),
            wait_ns=pl.sum("wait_ns"),
            transfer_ns=transfer.sum(),
            **_middle("transfer_", transfer),
            algorithm_gbps=pl.median("algorithm_gbps"),
            bus_gbps=bus.median(),
            last_count=((pl.col("last_rank") == pl.col("rank")) & late.is_not_null()).sum(),
            _known=late.count(),
            late_median_ns=late.median(),
            late_p90_ns=late.quantile(0.9, "linear"),
            late_max_ns=late.max(),
        )
        .with_columns(
            peak_gbps=pl.lit(peak_gbps, dtype=pl.Float64),
            last_share=pl.when(known > 0).then(pl.col("last_count") / known),
        )
        .with_columns(peak_share=bus / pl.col("peak_gbps"))
        .drop("_known")
        .sort(*by, nulls_last=True)
    )


def _middle(name: str, value: pl.Expr) -> dict[str, pl.Expr]:
    return {
        f"{name}median_ns": value.median(),
        f"{name}p10_ns": value.quantile(0.1, "linear"),
        f"{name}p90_ns": value.quantile(0.9, "linear"),
    }
