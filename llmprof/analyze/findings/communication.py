"""Rules about communication: waiting for another rank, transfer that nothing hides, and NCCL for small messages."""

from __future__ import annotations

import polars as pl

from llmprof.analyze.collectives.collectives import collectives
from llmprof.analyze.findings.measures import Measure, largest, middle, total, worst
from llmprof.analyze.findings.scope import Scope
from llmprof.units import format_bytes, format_ns, format_share

CUSTOM_ALL_REDUCE_BYTES = 8 << 20
"""Largest message of vLLM's custom all-reduce (its default ``max_size`` on NVLink, vLLM custom_all_reduce.py)."""

PIPELINE = ("broadcast", "send_recv")
"""Communication between pipeline stages, where the run is a pipeline: waiting in it is the pipeline's dependency."""

_PIPELINE_GROUP = r"(?i)pipe|\bpp\b|pp_|_pp|:pp"


def arrival_skew(scope: Scope) -> Measure | None:
    """Waiting in collectives for the rank that comes last."""
    return _waiting(scope, pipeline=False)


def pipeline_wait(scope: Scope) -> Measure | None:
    """Waiting of one pipeline stage for another."""
    return _waiting(scope, pipeline=True)


def is_pipeline(scope: Scope, calls: pl.DataFrame) -> bool:
    """Whether a run passes data on from stage to stage: its groups say so, or it is vLLM's and sends at all."""
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
    lasts = once["last_rank"].value_counts().sort("count", "last_rank", descending=[True, False])
    late, times = lasts.row(0)
    others = calls.filter(pl.col("rank") != late)
    offset = largest(calls.with_columns(pl.col("clock_offset_ns").abs()), "clock_offset_ns")
    sure = calls["match_confidence"].min()
    rank, window = worst(calls.with_columns(dur_ns="wait_ns"))
    words = {
        "kind": kind.replace("_", "-"),
        "late": late,
        "late_share": format_share(times / once.height),
        "calls": f"{once.height:,}",
        "waited": format_share(total(others, "wait_ns") / max(1.0, total(others, "dur_ns"))),
        # the rest of a kernel's duration is its own transfer; the one of the last rank has no waiting in it
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
    # waiting beside compute costs nothing, so of the exposed part each kind has its share
    ns = scope.time("communication", "wait") * mine / whole
    return Measure(ns, words, where=f"kind = '{kind}'", rank=rank, window_ns=window)


def exposed_communication(scope: Scope) -> Measure | None:
    """Transfer with no compute beside it; the waiting is what other rules speak of, where it is known."""
    transfer = scope.time("communication", "transfer", "wait or transfer")
    calls = scope.begun(collectives(scope.trace))
    if not transfer or not calls.height:
        return None
    known = calls["wait_ns"].is_not_null().any()
    why = calls["unmatched"].drop_nulls().mode().sort()
    kinds = (
        calls.with_columns(pl.col("kind").fill_null("other"))
        .group_by("kind")
        .agg(pl.col("dur_ns").sum())
        .sort("dur_ns", "kind", descending=[True, False])
    )
    everything = total(calls, "transfer_ns") if known else total(calls, "dur_ns")
    rank, window = worst(calls.with_columns(dur_ns=pl.coalesce("transfer_ns", "dur_ns")))
    words = {
        "what": "Transfer" if known else "Communication (transfer, and waiting that cannot be told from it)",
        "hidden": format_share(max(0.0, 1 - transfer / everything) if everything else None),
        "kinds": ", ".join(kind.replace("_", "-") for kind in kinds["kind"].head(2)),
        "calls": f"{calls.height / scope.parts:,.0f}",
        "why": "" if known or not why.len() else f" Waiting is not known: {why[0]}.",
    }
    return Measure(transfer, words, rank=rank, window_ns=window)


def nccl_for_small(scope: Scope) -> Measure | None:
    """All-reduces by NCCL of a size that vLLM's custom all-reduce takes, in a run of vLLM."""
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
