"""What one run of a sweep came to: values of JSON that its row in the comparison is made of."""

from __future__ import annotations

from typing import Any

import polars as pl

from llmprof import analyze
from llmprof.errors import LlmprofError, NotCapturedError
from llmprof.launch import Run
from llmprof.launch.metrics import disagreements, overhead, summarize

MEANS = (
    "wall_ns", "ttft_ns", "tpot_ns", "itl_ns", "queue_ns", "prefill_ns", "decode_ns", "e2e_ns",
    "output_tokens_per_s", "tokens_per_s", "requests_per_s",
)  # fmt: skip
TAILS = ("ttft_ns", "itl_ns", "e2e_ns")
SCHEMA: dict[str, pl.DataType | type[pl.DataType]] = {
    "measured": pl.String,
    "repeats": pl.Int64,
    "agree": pl.Boolean,
    **dict.fromkeys(MEANS, pl.Float64),
    "output_tokens_per_s_ci95_low": pl.Float64,
    "output_tokens_per_s_ci95_high": pl.Float64,
    **{f"{name.removesuffix('_ns')}_p99_ns": pl.Float64 for name in TAILS},
    "overhead": pl.Float64,
    "peak_memory_bytes": pl.Int64,
    "kv_cache_tokens": pl.Int64,
    "ranks": pl.Int64,
}


def measures(run: Run) -> dict[str, Any]:
    """Latencies, rates and shares of a finished run.

    Returns
    -------
    dict
        ``measures`` (keys of :data:`SCHEMA`; the means are of the repeats without profiler where there are any),
        ``where`` (rows of ``analyze.step_time``) and ``note`` (why there are no rows, or empty).
    """
    found: dict[str, Any] = dict.fromkeys(SCHEMA)
    summary = summarize(run.metrics)
    phases = summary["phase"].unique().to_list()
    if phases:
        found["measured"] = phase = "plain" if "plain" in phases else phases[0]
        rows = {row["metric"]: row for row in summary.filter(phase=phase).iter_rows(named=True)}
        found |= {name: rows[name]["mean"] for name in MEANS if name in rows}
        found |= {f"{name.removesuffix('_ns')}_p99_ns": rows[name]["p99"] for name in TAILS if name in rows}
        found["repeats"] = max(row["repeats"] for row in rows.values())
        found["agree"] = not disagreements(summary.filter(phase=phase)) if found["repeats"] > 1 else None
        rate = rows.get("output_tokens_per_s", {})
        found |= {f"output_tokens_per_s_{end}": rate.get(end) for end in ("ci95_low", "ci95_high")}
    found["overhead"] = _overhead(run.metrics)
    peaks = run.worker.get("peak_memory_bytes") or {}
    found["peak_memory_bytes"] = max(peaks.values(), default=None)
    found["kv_cache_tokens"] = (run.worker.get("kv_cache") or {}).get("tokens")
    rows_of, note = _where(run)
    if rows_of:
        found["ranks"] = max(row["ranks"] for row in rows_of)
    return {"measures": found, "where": rows_of, "note": note}


def _overhead(metrics: pl.DataFrame) -> float | None:
    try:
        rows = overhead(metrics).filter(metric="wall_ns")
    except NotCapturedError:
        return None
    return rows["overhead"][0] if rows.height else None


def _where(run: Run) -> tuple[list[dict[str, Any]], str]:
    try:
        return analyze.step_time(run.trace).to_dicts(), ""
    except LlmprofError as error:
        return [], str(error)
