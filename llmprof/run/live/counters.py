"""Counters of a server: one table of Prometheus names for every engine, and what happened
between two readings.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import polars as pl

from llmprof.trace.storage.files import finite

GAUGES: Final[dict[str, tuple[str, ...]]] = {
    "running": ("vllm:num_requests_running", "sglang:num_running_reqs", "tgi_batch_current_size"),
    "waiting": (
        "vllm:num_requests_waiting",
        "sglang:num_queue_reqs",
        "tgi_queue_size",
        "trtllm_num_requests_waiting",
    ),
    "kv_usage": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage"),
    "hit_rate": ("sglang:cache_hit_rate",),
}
"""Values of the moment, and their names in vLLM (0.32 and older), SGLang,
text-generation-inference, TensorRT-LLM.
"""

TOTALS: Final[dict[str, tuple[str, ...]]] = {
    "prompt_tokens": ("vllm:prompt_tokens", "sglang:prompt_tokens"),
    "output_tokens": ("vllm:generation_tokens", "sglang:generation_tokens"),
    "requests": ("vllm:request_success", "sglang:num_requests", "tgi_request_success"),
    "preemptions": ("vllm:num_preemptions",),
    "hits": ("vllm:prefix_cache_hits",),
    "queries": ("vllm:prefix_cache_queries",),
}
"""Counters, which only rise until the server starts again."""

TIMES: Final[dict[str, tuple[str, ...]]] = {
    "ttft": (
        "vllm:time_to_first_token_seconds",
        "sglang:time_to_first_token_seconds",
        "trtllm_time_to_first_token_seconds",
    ),
    "tpot": (
        "vllm:inter_token_latency_seconds",
        "vllm:time_per_output_token_seconds",
        "sglang:inter_token_latency_seconds",
        "sglang:time_per_output_token_seconds",
        "tgi_request_mean_time_per_token_duration",
        "trtllm_time_per_output_token_seconds",
    ),
    "e2e": (
        "vllm:e2e_request_latency_seconds",
        "sglang:e2e_request_latency_seconds",
        "tgi_request_duration",
        "trtllm_e2e_request_latency_seconds",
    ),
    "queue": (
        "vllm:request_queue_time_seconds",
        "sglang:queue_time_seconds",
        "tgi_request_queue_duration",
    ),
    "prefill": ("vllm:request_prefill_time_seconds",),
    "decode": ("vllm:request_decode_time_seconds",),
}
"""Histograms of times in seconds."""

LENGTHS: Final[dict[str, tuple[str, ...]]] = {
    "prompt_length": (
        "vllm:request_prompt_tokens",
        "sglang:prompt_tokens_histogram",
        "tgi_request_input_length",
    ),
    "output_length": (
        "vllm:request_generation_tokens",
        "sglang:generation_tokens_histogram",
        "tgi_request_generated_tokens",
    ),
    "step_tokens": ("vllm:iteration_tokens_total",),
}
"""Histograms of numbers of tokens: of a prompt, of an answer, of a step of the engine."""

QUANTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99}

_SERIES: Final = pl.DataFrame(
    [
        (f"{name}{end}", part, key, turn)
        for table, ends in (
            (GAUGES, {"": "gauge"}),
            (TOTALS, {"": "total", "_total": "total"}),
            (TIMES | LENGTHS, {"_sum": "sum", "_count": "count", "_bucket": "bucket"}),
        )
        for key, names in table.items()
        for turn, name in enumerate(names)
        for end, part in ends.items()
    ],
    schema={"name": pl.String, "part": pl.String, "key": pl.String, "turn": pl.Int64},
    orient="row",
)
_OURS: Final = "^(?:vllm:|sglang:|tgi_|trtllm_)"
_LABEL: Final = (
    r'(?:le\s*=\s*"(?<le>[^"\\]*)"|[A-Za-z_][A-Za-z0-9_]*\s*=\s*"(?:[^"\\]|\\.)*")\s*,?\s*'
)
_LINE: Final = rf"^(?<name>[A-Za-z0-9_:]+)(?:\s*\{{\s*(?:{_LABEL})*\}}\s*|\s+)(?<value>[^\s{{}}]+)(?:\s+[-+]?[0-9.]+)?\s*$"  # noqa: E501
"""A sample in Prometheus' text format, with a time or none.

Rust's expressions take time in proportion to the text.
"""
_SHARES: Final = ("kv_usage", "hit_rate")


@dataclass(slots=True)
class Histogram:
    """Sum, count and cumulative counts by upper bound of a histogram, added up over its labels."""

    sum: float = 0.0
    count: float = 0.0
    buckets: dict[float, float] = field(default_factory=dict)


@dataclass(slots=True)
class Scrape:
    """One reading of a server's counters."""

    time_ns: int
    """Time since the epoch."""
    at_s: float
    """Time of a clock that never jumps."""
    gauges: dict[str, float] = field(default_factory=dict)
    totals: dict[str, float] = field(default_factory=dict)
    histograms: dict[str, Histogram] = field(default_factory=dict)
    unread: int = 0
    """Number of lines that could not be read."""


def parsed(text: str, *, time_ns: int | None = None, at_s: float | None = None) -> Scrape:
    """Values of the table in a Prometheus text; lines that cannot be read and values that are not
    finite are left out.

    Values of several engines of one server (data parallel ranks) are added up, shares (KV cache,
    hit rate) averaged. Of several names of a value the first one of the table counts.
    """
    scrape = Scrape(
        time.time_ns() if time_ns is None else time_ns, time.monotonic() if at_s is None else at_s
    )
    lines = (
        pl.Series("line", [text])
        .str.split("\n")
        .explode()
        .to_frame()
        .filter(pl.col("line").str.contains(_OURS))
    )
    rows = (
        lines.select(pl.col("line").str.extract_groups(_LINE).struct.unnest())
        .with_columns(pl.col("le", "value").cast(pl.Float64, strict=False))
        .join(_SERIES, on="name", how="left")
        .with_columns(le=pl.when(part="bucket").then("le").fill_nan(None))
    )
    bad = pl.col("value").is_null() | (
        pl.col("le").is_null() & (pl.col("part") == "bucket")
    ).fill_null(False)
    scrape.unread = rows.select(bad.sum()).item()
    sums = (
        rows.filter(~bad & pl.col("value").is_finite() & pl.col("key").is_not_null())
        .filter(pl.col("turn") == pl.min("turn").over("key"))
        .group_by("part", "key", "le", maintain_order=True)
        .agg(
            pl.when(pl.col("key").is_in(_SHARES).first())
            .then(pl.mean("value"))
            .otherwise(pl.sum("value"))
        )
        .filter(pl.col("value").is_finite())
    )
    for part, key, bound, value in sums.iter_rows():
        if part == "gauge":
            scrape.gauges[key] = value
        elif part == "total":
            scrape.totals[key] = value
        else:
            histogram = scrape.histograms.setdefault(key, Histogram())
            if part == "bucket":
                histogram.buckets[bound] = value
            else:
                setattr(histogram, part, value)
    for part in ("prompt", "output"):  # text-generation-inference counts tokens in histograms only
        if f"{part}_tokens" not in scrape.totals and f"{part}_length" in scrape.histograms:
            scrape.totals[f"{part}_tokens"] = scrape.histograms[f"{part}_length"].sum
    return scrape


SAMPLE: Final[dict[str, Any]] = {
    "time_ns": pl.Int64,
    "seconds": pl.Float64,
    **dict.fromkeys(("running", "waiting", "kv_usage", "hit_rate"), pl.Float64),
    **dict.fromkeys(
        (
            "prompt_tokens_per_s",
            "output_tokens_per_s",
            "requests_per_s",
            "arrivals_per_s",
            "preemptions_per_s",
        ),
        pl.Float64,
    ),
    **{f"{name}_{part}": pl.Float64 for name in TIMES for part in (*QUANTILES, "mean")},
    **{f"{name}_mean": pl.Float64 for name in LENGTHS},
    **{f"{name}_count": pl.Float64 for name in (*TIMES, *LENGTHS)},
}
"""Columns of the history: time since the epoch, seconds that a row covers, values of the moment,
rates (1/s), times in seconds (quantiles and mean of what ended within the row) with the number of
values, and mean lengths in tokens. ``requests`` are those that ended; ``arrivals`` those that came,
which is the load, also if the server falls behind.
"""


def between(before: Scrape, after: Scrape) -> dict[str, Any]:
    """What happened between two readings, as a row of the history.

    A counter that vanished, or is lower than before because the server started again, has no value;
    nothing is guessed.
    """
    row: dict[str, Any] = dict.fromkeys(SAMPLE)
    seconds = after.at_s - before.at_s
    row |= {"time_ns": after.time_ns, "seconds": seconds} | after.gauges
    if seconds <= 0:
        return row
    for name in ("prompt_tokens", "output_tokens", "requests", "preemptions"):
        gained = _gain(before.totals, after.totals, name)
        row[f"{name}_per_s"] = None if gained is None else gained / seconds
    inside = [
        [scrape.gauges.get(name) for name in ("running", "waiting")] for scrape in (before, after)
    ]
    if row["requests_per_s"] is not None and None not in (*inside[0], *inside[1]):
        gained = sum(inside[1]) - sum(inside[0])  # type: ignore[arg-type]
        row["arrivals_per_s"] = max(0.0, row["requests_per_s"] + gained / seconds)
    hits, queries = (_gain(before.totals, after.totals, name) for name in ("hits", "queries"))
    if hits is not None and queries:
        row["hit_rate"] = hits / queries
    for name in (*TIMES, *LENGTHS):
        a, b = before.histograms.get(name), after.histograms.get(name)
        if a is None or b is None or b.count < a.count or b.sum < a.sum:
            continue
        count = b.count - a.count
        row[f"{name}_count"] = count
        if not count:
            continue
        row[f"{name}_mean"] = (b.sum - a.sum) / count
        if name in TIMES:
            gains = {bound: total - a.buckets.get(bound, 0.0) for bound, total in b.buckets.items()}
            mean = row[f"{name}_mean"]
            for part, share in QUANTILES.items():
                value = quantile(gains, share)
                # the first bucket may be wide: times are not negative, so their mean bounds each
                # quantile
                row[f"{name}_{part}"] = None if value is None else min(value, mean / (1 - share))
    return finite(row)  # type: ignore[no-any-return]


def _gain(before: Mapping[str, float], after: Mapping[str, float], name: str) -> float | None:
    if name not in before or name not in after or after[name] < before[name]:
        return None
    return after[name] - before[name]


def quantile(buckets: Mapping[float, float], share: float) -> float | None:
    """Quantile of a histogram by its cumulative counts, linear within a bucket, as Prometheus does
    it.

    A quantile in the last bucket, which has no upper bound, is the lower bound of that bucket: at
    least this much. None if nothing was counted, or if the counts fall (the histogram began anew).

    >>> quantile({0.1: 50, 0.5: 90, float("inf"): 100}, 0.5), quantile({0.1: 50, 0.5: 90, float("inf"): 100}, 0.99)
    (0.1, 0.5)
    """  # noqa: E501
    bounds = sorted(buckets)
    counts = [buckets[bound] for bound in bounds]
    if (
        not bounds
        or counts[-1] <= 0
        or any(b < a for a, b in zip([0.0, *counts], counts, strict=False))
    ):
        return None
    rank = share * counts[-1]
    for i, (bound, count) in enumerate(zip(bounds, counts, strict=True)):
        if count >= rank:
            low, under = (bounds[i - 1], counts[i - 1]) if i else (0.0, 0.0)
            if math.isinf(bound):
                return low if i else None
            return (
                low + (bound - low) * (rank - under) / (count - under) if count > under else bound
            )
    return None
