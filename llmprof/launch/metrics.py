"""Metrics of the requests of a run: latencies, throughput, how far repeats agree, and what the profiler costs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from llmprof.errors import NotCapturedError
from llmprof.launch._requests import LATENCIES, METRICS, PHASES, repeats, request_metrics
from llmprof.launch._statistics import noise, over_repeats
from llmprof.units import format_share

__all__ = ["disagreements", "document", "overhead", "repeats", "request_metrics", "summarize"]

TOLERANCE = 0.1
"""Spread over the repeats, as a share of the mean, up to which they agree."""

_JUDGED = ("wall_ns", "ttft_ns", "tpot_ns", "e2e_ns")
_SUMMARY = {
    "phase": pl.String,
    "metric": pl.String,
    "unit": pl.String,
    **dict.fromkeys(("mean", "std", "ci95_low", "ci95_high", "p50", "p90", "p99"), pl.Float64),
    "n": pl.Int64,
    "repeats": pl.Int64,
    "spread": pl.Float64,
    "agree": pl.Boolean,
}
_OVERHEAD = {
    "metric": pl.String,
    "unit": pl.String,
    **dict.fromkeys(("plain", "profiled", "overhead", "noise"), pl.Float64),
    "clear": pl.Boolean,
}


def summarize(frame: pl.DataFrame, *, tolerance: float = TOLERANCE) -> pl.DataFrame:
    """Every metric over the requests and the repeats of each phase; the warm-up does not count.

    Parameters
    ----------
    frame : polars.DataFrame
        Rows of :func:`request_metrics`.
    tolerance : float
        Repeats agree while their largest and smallest figure differ by at most this share of the mean.

    Returns
    -------
    polars.DataFrame
        ``phase, metric, unit`` (``ns``, ``tokens/s`` or ``requests/s``); ``mean, std, ci95_low, ci95_high`` over the
        repeats, each of which is the mean of its requests (std and interval are null for one repeat);
        ``p50, p90, p99`` over all requests of the phase (of ``itl_ns`` over all tokens; of ``wall_ns`` and the rates
        over the repeats); ``n`` values behind the percentiles; ``repeats``; ``spread`` (largest minus smallest over
        mean) and ``agree``. A metric that the engine does not tell has no row.
    """
    each = repeats(frame)
    rows = []
    for phase in PHASES[1:]:
        runs, requests = each.filter(phase=phase), frame.filter(phase=phase)
        for metric in METRICS:
            means = runs[metric].drop_nulls().to_list()
            if not means:
                continue
            values = requests[metric] if metric in LATENCIES else runs[metric]
            values = (values.explode() if metric == "itl_ns" else values).drop_nulls()
            row = {"phase": phase, "metric": metric, "unit": _unit(metric), "n": values.len(), "repeats": len(means)}
            row |= {f"p{q}": values.quantile(q / 100, interpolation="linear") for q in (50, 90, 99)}
            over = over_repeats(means)
            agree = None if over["spread"] is None else over["spread"] <= tolerance
            rows.append(row | over | {"agree": agree})
    return pl.DataFrame(rows, schema=_SUMMARY, orient="row")


def _unit(metric: str) -> str:
    if metric.endswith("_ns"):
        return "ns"
    return "requests/s" if metric == "requests_per_s" else "tokens/s"


def disagreements(summary: pl.DataFrame) -> list[str]:
    """A sentence for each phase whose repeats disagree, naming the metric that differs most.

    Judged are the whole batch, the first token, the time a token and end to end: a queue of microseconds may vary.

    Parameters
    ----------
    summary : polars.DataFrame
        Rows of :func:`summarize`.
    """
    apart = (
        summary.filter(~pl.col("agree") & pl.col("metric").is_in(_JUDGED))
        .sort("spread", descending=True)
        .unique("phase", keep="first")
    )
    return [
        f"the {row['repeats']} {row['phase']} repeats disagree: {row['metric'].removesuffix('_ns')} differs by "
        f"{format_share(row['spread'])} of its mean; repeat more often, and look for other work on the machine and "
        "for clocks that change"
        for row in apart.sort("phase").iter_rows(named=True)
    ]


def overhead(frame: pl.DataFrame, *, reference: pl.DataFrame | None = None) -> pl.DataFrame:
    """What the profiler costs: the profiled repeats against repeats without a profiler.

    With ``m(phase)`` the mean over the repeats of a phase, each of which is the mean over its requests,
    ``overhead = m(profiled) / m(plain) - 1``. It is ``clear`` where ``|m(profiled) - m(plain)|`` exceeds the half
    width of the 95 % prediction interval of one more plain repeat, ``t(n - 1) * std(plain) * sqrt(1 + 1 / n)``.
    For a rate (per second) a negative overhead is the loss.

    Parameters
    ----------
    frame : polars.DataFrame
        Rows of :func:`request_metrics` of the profiled run.
    reference : polars.DataFrame, optional
        Rows of a run in mode ``inference_only``. Without it the plain repeats of the same run are the reference;
        under nsys and ncu these run beside the tool, so what the tool costs outside its capture is not seen.

    Returns
    -------
    polars.DataFrame
        ``metric, unit, plain, profiled, overhead`` (share of plain), ``noise`` (half width, in the unit) and
        ``clear``; the last two are null where there is only one plain repeat.

    Raises
    ------
    NotCapturedError
        There are no plain or no profiled repeats.
    """
    both = repeats(frame)
    base = (both if reference is None else repeats(reference)).filter(phase="plain")
    profiled = both.filter(phase="profiled")
    if base.is_empty() or profiled.is_empty():
        raise NotCapturedError(
            f"the run has no {'plain' if base.is_empty() else 'profiled'} repeats",
            hint="run with plain=True in a mode that profiles, or give a run in mode inference_only as the reference",
        )
    rows = []
    for metric in METRICS:
        without, under = base[metric].drop_nulls().to_list(), profiled[metric].drop_nulls().to_list()
        if not without or not under:
            continue
        plain, cost, half = sum(without) / len(without), sum(under) / len(under), noise(without)
        more = cost / plain - 1 if plain else None
        rows.append(
            (metric, _unit(metric), plain, cost, more, half, None if half is None else abs(cost - plain) > half)
        )
    return pl.DataFrame(rows, schema=_OVERHEAD, orient="row")


def document(worker: Mapping[str, Any]) -> dict[str, Any]:
    """What ``metrics.json`` holds: values of JSON only, times in ns.

    Returns
    -------
    dict
        ``requests`` (rows of :func:`request_metrics`), ``repeats``, ``summary``, ``overhead`` (empty where the run
        has only one kind of repeat), ``warnings`` (sentences), and ``kv_cache`` and ``peak_memory_bytes`` as the
        worker told them.
    """
    frame = request_metrics(worker)
    summary = summarize(frame)
    try:
        cost = overhead(frame)
    except NotCapturedError:
        cost = pl.DataFrame(schema=_OVERHEAD)
    return {
        "requests": frame.to_dicts(),
        "repeats": repeats(frame).to_dicts(),
        "summary": summary.to_dicts(),
        "overhead": cost.to_dicts(),
        "warnings": disagreements(summary),
        "kv_cache": worker.get("kv_cache"),
        "peak_memory_bytes": worker.get("peak_memory_bytes"),
    }
