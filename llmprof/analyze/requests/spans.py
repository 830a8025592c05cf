"""Spans of each request over time, and the finding about slow first tokens."""

from __future__ import annotations

from typing import Final

import polars as pl

from llmprof.analyze.requests.requests import Run, request_parts, request_steps

OTHERS_SHARE: Final = 0.1
"""A prefill counts as one with others if at least this share of the step's tokens is of other requests."""


def request_spans(run: Run, *, phase: str = "profiled") -> pl.DataFrame:
    """Consecutive spans of each request, from its arrival to its last step."""
    joined = request_parts(run, phase)
    steps = request_steps(run, phase=phase).join(joined.select("request", "id"), on="request").sort("request", "step")
    shared = pl.col("tokens") < (1 - OTHERS_SHARE) * (pl.col("context_tokens") + pl.col("generation_tokens"))
    prefill = pl.when(shared).then(pl.lit("prefill with others")).otherwise(pl.lit("prefill"))
    beside = pl.when(pl.col("context_tokens") > 0).then(pl.lit("decode beside prefill")).otherwise(pl.lit("decode"))
    before = pl.col("end_ns").shift(1).over("request")
    missed = pl.col("step") > pl.col("step").shift(1).over("request") + 1
    columns = ("request", "id", "part", "start_ns", "dur_ns", "step", "tokens", "context_tokens", "generation_tokens")
    carried = steps.with_columns(
        part=pl.when(pl.col("part") == "prefill").then(prefill).otherwise(beside),
        dur_ns=pl.col("end_ns") - pl.col("start_ns"),
        step=pl.col("trace_step"),
    ).select(*columns, "preempted")
    left_out = (
        steps.with_columns(before=before, missed=missed)
        .filter(pl.col("missed") & (pl.col("start_ns") > pl.col("before")))
        .select(
            "request", "id", part=pl.lit("left out"), start_ns="before", dur_ns=pl.col("start_ns") - pl.col("before")
        )
    )
    begun = pl.min_horizontal("start_ns", "first_step_ns")
    waiting = joined.select(
        "request", "id", part=pl.lit("waiting"), start_ns=begun, dur_ns=pl.col("first_step_ns") - begun
    ).filter(pl.col("dur_ns") > 0)
    every = pl.concat([waiting, carried, left_out], how="diagonal").sort("request", "start_ns", maintain_order=True)
    return every.select(*columns, "preempted")
