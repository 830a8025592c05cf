"""Spans of each request over time, and the finding about slow first tokens."""

from __future__ import annotations

from typing import Any, Final

import polars as pl

from llmprof.analyze.requests.requests import Run, request_parts, request_steps, slowest
from llmprof.sentences import finding
from llmprof.units import format_ns

OTHERS_SHARE: Final = 0.1
"""A prefill counts as one with others if at least this share of the step's tokens is of other requests."""

FIRST_TOKENS: Final = "slow_first_tokens"
"""Rule of :func:`first_token_finding`."""


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


AT_ONCE = 0.05
"""Requests that arrive within this share of the slowest first token were submitted as one batch."""


def first_token_finding(frame: pl.DataFrame, *, quantile: float = 0.99) -> dict[str, Any] | None:
    """Parts of slow first tokens, as a row of :func:`llmprof.analyze.findings`; None without requests."""
    if frame.is_empty():
        return None
    slow = slowest(frame, quantile=quantile)
    parts: dict[str, float] = slow["parts"]
    whole = sum(parts.values())
    name, largest = max(parts.items(), key=lambda item: item[1])
    share = largest / whole if whole else 0.0
    own = name == "its own prefill"
    worst = frame.sort("ttft_ns", descending=True).row(0, named=True)
    arrived = frame["start_ns"].max() - frame["start_ns"].min()  # type: ignore[operator]
    figures = {
        "title": slow["title"],
        "part": name,
        "part_share": share,
        "others": [(other, ns) for other, ns in parts.items() if other != name and ns > 0],
        "at_once": frame.height > 1 and arrived < AT_ONCE * worst["ttft_ns"],
        "slowest": worst["request"],
        "slowest_ns": worst["ttft_ns"],
    }
    title, detail, suggestion = finding(FIRST_TOKENS, figures)
    numbers = ", ".join(str(number) for number in slow["requests"])
    count = len(slow["requests"])
    return {
        "rule": FIRST_TOKENS,
        "severity": "info" if own else "high" if share >= 0.2 else "medium",
        "title": title,
        "figure": largest,
        "unit": "ns a request",
        "share_of_time": share,
        "gain_ns": 0.0 if own else largest,
        "scope": f"the {count} slowest of {slow['of']} requests",
        "denominator": f"their time to the first token, {format_ns(whole)} on average",
        "evidence": "requests",
        "where": f"request IN ({numbers})",
        "rank": None,
        "start_ns": worst["start_ns"],
        "end_ns": worst["first_token_ns"],
        "detail": detail,
        "suggestion": suggestion,
    }
