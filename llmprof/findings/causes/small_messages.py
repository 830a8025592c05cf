"""NCCL all-reduces of a size that vLLM's custom all-reduce supports, in a vLLM run."""

from __future__ import annotations

from typing import Final

import polars as pl

from llmprof.analyze.collectives.collectives import collectives
from llmprof.findings.cause import Cause, Context, Figures, Measurement
from llmprof.findings.scope import Scope, median_of
from llmprof.units import format_bytes, format_ns

CUSTOM_ALL_REDUCE_BYTES: Final = 8 << 20
"""Largest message of vLLM's custom all-reduce (its default ``max_size`` on NVLink, vLLM
custom_all_reduce.py).
"""


class SmallMessages(Figures, frozen=True):
    """Medians of the calls, which are counted in one step or rank."""

    calls: float
    message_bytes: float | None
    transfer_ns: float | None
    bus_gbps: float | None = None
    algorithm: str | None = None

    def title(self, of: Context) -> str:
        size = format_bytes(self.message_bytes)
        return (
            f"Transfer of all-reduces of {size} through {of.words['communication']} takes"
            f" {of.amount}{of.where}."
        )

    def detail(self, of: Context) -> str:
        rate = "" if self.bus_gbps is None else f" at {self.bus_gbps:,.1f} GB/s on the bus"
        return (
            f"{self.calls:,.0f} {of.per}, {format_ns(self.transfer_ns)} each{rate}, by"
            f" {self.algorithm or 'an unknown algorithm'}. The custom one of vLLM takes messages"
            f" up to {format_bytes(CUSTOM_ALL_REDUCE_BYTES)} between {of.words['device']}s with"
            " peer access."
        )

    def advice(self, of: Context) -> str:
        return (
            "Compare a run with the custom all-reduce (no disable_custom_all_reduce); if it is off"
            f" by itself, check peer access between the {of.words['device']}s."
        )


def _measure(scope: Scope) -> Measurement | None:
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
    figures = SmallMessages(
        calls.height / scope.parts,
        median_of(calls, "bytes"),
        median_of(calls, "transfer_ns"),
        median_of(calls, "bus_gbps"),
        calls["algorithm"].mode().sort()[0],
    )
    where = f"kind = 'all_reduce' AND bytes <= {CUSTOM_ALL_REDUCE_BYTES}"
    return Measurement.of(calls.with_columns(dur_ns="transfer_ns"), figures, where=where)


SMALL_MESSAGES: Final = Cause(
    "nccl_for_small_messages",
    _measure,
    "collectives",
    min_share=0.002,
    follows_from="exposed_communication",
)
