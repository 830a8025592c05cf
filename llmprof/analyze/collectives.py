"""Collectives over the ranks: how long each rank waits for the last one, and how long the transfer itself takes."""

from __future__ import annotations

import polars as pl

from llmprof import names, schema
from llmprof.analyze._collective_calls import LEAVES_EARLY, match_calls
from llmprof.analyze._collective_sizes import with_sizes
from llmprof.analyze._memo import per_trace
from llmprof.analyze.attribution import attribute
from llmprof.trace import Trace

COLUMNS = [
    "rank", "step", "phase", "layer", "call", "kind", "algorithm", "group", "world", "ranks_seen", "bytes",
    "bytes_source", "dtype", "start_ns", "dur_ns", "arrival_skew_ns", "wait_ns", "transfer_ns", "last_rank",
    "end_spread_ns", "clock_offset_ns", "algorithm_gbps", "bus_gbps", "name",
]  # fmt: skip


@per_trace
def collectives(trace: Trace) -> pl.DataFrame:
    """Every collective call on every rank, matched over the ranks.

    A collective cannot finish before its last rank has arrived, so on the other ranks its duration is mostly
    waiting: ``wait_ns`` runs from a rank's own start to the last start of the same call on any rank, and the rest of
    the duration is ``transfer_ns``. A rank that sends into a buffer and is done before the other one has begun did
    not wait (send_recv, broadcast, reduce). Bandwidths are over the transfer, as in nccl-tests: the algorithm's is
    ``bytes / transfer``; the bus's is that times ``2 (n - 1) / n`` for all_reduce, ``(n - 1) / n`` for all_gather,
    reduce_scatter and all_to_all, and 1 for the rest (NVIDIA nccl-tests, doc/PERFORMANCE.md).

    Parameters
    ----------
    trace : Trace
        A trace with collectives; one rank is enough for durations and sizes.

    Returns
    -------
    polars.DataFrame
        ``rank, step, phase, layer`` (null outside layers), ``call`` (the same number on all ranks of a call, null
        where it has no match), ``kind, algorithm, group, world`` (ranks in the group), ``ranks_seen``, ``bytes,
        bytes_source`` (metadata, shapes or null), ``dtype, start_ns, dur_ns``, ``arrival_skew_ns`` (last start minus
        first start), ``wait_ns, transfer_ns`` (null unless all ranks of the group are in the trace), ``last_rank``
        (who arrived last), ``end_spread_ns`` (last end minus first end: a few us where the clocks agree),
        ``clock_offset_ns`` (correction of this rank's clock, 0 on one host), ``algorithm_gbps, bus_gbps`` (GB/s)
        and ``name``.

    Raises
    ------
    NotCapturedError
        The trace has no device activity and no operators, so communication was not recorded.
    """
    found = _found(trace)
    if not found.height:
        return pl.DataFrame(schema=_TYPES)
    found = match_calls(found).with_columns(world=_world(trace))
    # point-to-point kernels on more than two ranks at once are how NCCL exchanges all with all
    exchanges = (pl.col("kind") == "send_recv") & (pl.col("ranks_in_group") > 2)
    found = found.with_columns(kind=pl.when(exchanges).then(pl.lit("all_to_all")).otherwise("kind"))
    found = with_sizes(found, trace)
    start = pl.col("start_ns") - pl.col("clock_offset_ns")
    found = found.with_columns(_start=start, _end=start + pl.col("dur_ns"))
    per_call = (
        found.filter(pl.col("call").is_not_null())
        .group_by("call")
        .agg(
            _last=pl.col("_start").max(),
            arrival_skew_ns=pl.col("_start").max() - pl.col("_start").min(),
            end_spread_ns=pl.col("_end").max() - pl.col("_end").min(),
            last_rank=pl.col("rank").get(pl.col("_start").arg_max()),
            ranks_seen=pl.col("rank").n_unique().cast(pl.Int32),
        )
    )
    found = found.join(per_call, on="call", how="left", maintain_order="left")
    complete = (pl.col("ranks_seen") >= pl.col("world")).fill_null(value=False)
    left_early = pl.col("kind").is_in(LEAVES_EARLY) & (pl.col("_end") < pl.col("_last"))
    wait = pl.when(left_early).then(0).otherwise((pl.col("_last") - pl.col("_start")).clip(0, pl.col("dur_ns")))
    n = pl.col("world").cast(pl.Float64)
    factor = (
        pl.when(pl.col("kind") == "all_reduce")
        .then(2 * (n - 1) / n)
        .when(pl.col("kind").is_in(["all_gather", "reduce_scatter", "all_to_all"]))
        .then((n - 1) / n)
        .otherwise(1.0)
    )
    return (
        found.with_columns(wait_ns=pl.when(complete).then(wait))
        .with_columns(transfer_ns=pl.col("dur_ns") - pl.col("wait_ns"))
        .with_columns(
            algorithm_gbps=pl.when(pl.col("transfer_ns") > 0).then(pl.col("bytes") / pl.col("transfer_ns")),
            **{c: pl.when(complete).then(pl.col(c)) for c in ("arrival_skew_ns", "end_spread_ns", "last_rank")},
        )
        .with_columns(bus_gbps=pl.col("algorithm_gbps") * factor)
        .select(COLUMNS)
        .cast(_TYPES)
        .sort("rank", "start_ns", maintain_order=True)
    )


def _found(trace: Trace) -> pl.DataFrame:
    """Rows of the table of collectives with their place in the run, and events that a pattern of the user's adds."""
    events = attribute(trace).filter(pl.col("category") == "collective")
    if "collectives" in trace.tables:
        found = trace.collectives
    else:
        found = schema.empty("collectives")
    key = ["rank", "stream", "start_ns", "name"]
    on_host = not found["on_device"].any() and found.height > 0
    place = events.select(*key, "step", "phase", "layer").unique(key, keep="first", maintain_order=True)
    if on_host:
        found = found.with_columns(stream=pl.lit(None, dtype=pl.Int64))
        place = place.with_columns(stream=pl.lit(None, dtype=pl.Int64))
    else:
        added = events.join(found, on=key, how="anti", nulls_equal=True)
        added = added.with_columns(
            kind=names.collective_kinds(added["name"]),
            algorithm=names.collective_algorithms(added["name"]),
            on_device=pl.col("source") != "op",
        )
        known = [c for c in found.columns if c in added.columns]
        found = pl.concat([found, added.select(known)], how="diagonal_relaxed")
    return found.join(place, on=key, how="left", nulls_equal=True, maintain_order="left")


def _world(trace: Trace) -> pl.Expr:
    """Ranks in the group: from metadata or the kernel's name, else as many as call together.

    If ranks of the run are missing in the trace, or only one is there, those who call together may not be all.
    """
    size = trace.meta.get("world_size")
    whole = not trace.meta.get("missing_ranks") and (pl.lit(size == 1) | (pl.col("ranks_in_group") > 1))
    return pl.coalesce("world", names.collective_world(pl.col("name")), pl.when(whole).then("ranks_in_group"))


_TYPES = pl.Schema(
    {
        **dict.fromkeys(COLUMNS, pl.Int64()),
        **dict.fromkeys(["rank", "step", "layer", "world", "ranks_seen", "last_rank"], pl.Int32()),
        **dict.fromkeys(["phase", "kind", "algorithm", "group", "bytes_source", "dtype", "name"], pl.String()),
        **dict.fromkeys(["algorithm_gbps", "bus_gbps"], pl.Float64()),
    }
)
