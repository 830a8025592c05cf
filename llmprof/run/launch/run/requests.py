"""Requests of a run: latencies, throughput, agreement of the repeats, and overhead of the
profiler.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

import polars as pl

from llmprof.errors import NotCapturedError
from llmprof.run.workers.job import t95
from llmprof.trace.storage import typed
from llmprof.units import NS_PER_S, format_share

PHASES = ("warmup", "plain", "profiled")
LATENCIES = (
    *("ttft_ns", "tpot_ns", "itl_ns", "queue_ns", "prefill_ns", "prefilled_ns", "decode_ns"),
    "e2e_ns",
)
RATES = ("output_tokens_per_s", "tokens_per_s", "requests_per_s")
METRICS = ("wall_ns", *LATENCIES, *RATES)
_SCHEMA = {
    "phase": pl.String,
    **dict.fromkeys(
        ("repeat", "request", "start_epoch_ns", "prompt_tokens", "output_tokens"), pl.Int64
    ),
    **{name: pl.List(pl.Int64) if name == "itl_ns" else pl.Int64 for name in LATENCIES},
    "wall_ns": pl.Int64,
    **dict.fromkeys(("finish_reason", "id"), pl.String),
    "arrived_ns": pl.Int64,
}
_STEPS = {
    "phase": pl.String,
    **dict.fromkeys(("step", "start_epoch_ns", "end_epoch_ns"), pl.Int64),
    "engine_id": pl.String,
    **dict.fromkeys(("tokens", "computed"), pl.Int64),
    "preempted": pl.Boolean,
    "engine": pl.Int64,
}


def requests_of(worker: Mapping[str, Any]) -> pl.DataFrame:
    """Every request of a run with its latencies."""
    typed.validated(worker, typed.WorkerJson, "worker.json")
    walls = {
        (stage["name"], stage.get("repeat")): stage["dur_ns"]
        for stage in worker.get("stages") or ()
    }
    frame = pl.DataFrame(
        [_row(request, walls) for request in worker["requests"]], schema=_SCHEMA, orient="row"
    )
    each = pl.when(pl.col("output_tokens") > 1).then(
        pl.col("decode_ns") / (pl.col("output_tokens") - 1)
    )
    return frame.with_columns(pl.col("tpot_ns").fill_null(each.round().cast(pl.Int64)))


def engine_steps_of(worker: Mapping[str, Any]) -> pl.DataFrame:
    """Steps of the engine as its worker recorded them: the requests that had tokens in each
    step.
    """
    rows = []
    for number, step in enumerate(worker.get("engine_steps") or ()):
        out, tokens, computed = set(step.get("preempted") or ()), step["tokens"], step["computed"]
        head = (step["phase"], number, step["start_ns"], step["end_ns"])
        names = dict.fromkeys([*tokens, *sorted(out)])
        engine = step.get("engine") or 0
        rows += [
            (*head, name, tokens.get(name, 0), computed.get(name, 0), name in out, engine)
            for name in names
        ]
    return pl.DataFrame(rows, schema=_STEPS, orient="row")


def _row(request: Mapping[str, Any], walls: Mapping[tuple[Any, Any], Any]) -> dict[str, Any]:
    kept = ("phase", "repeat", "request", "prompt_tokens", "output_tokens", "finish_reason", "id")
    times = {
        name: _ns(request.get(name.removesuffix("_ns") + "_s"))
        for name in (*LATENCIES, "arrived_ns")
    }
    wall = walls.get((request.get("phase"), request.get("repeat")))
    facts = {name: request.get(name) for name in kept}
    return facts | times | {"start_epoch_ns": request.get("start_ns"), "wall_ns": wall}


def _ns(seconds: Any) -> Any:
    if seconds is None:
        return None
    if isinstance(seconds, list):
        return [_ns(gap) for gap in seconds]
    return round(seconds * NS_PER_S)


def repeats(frame: pl.DataFrame) -> pl.DataFrame:
    """Requests, tokens, rates and mean latencies of each repeat of each phase."""
    sums = frame.group_by("phase", "repeat").agg(
        pl.len().cast(pl.Int64).alias("requests"),
        pl.sum("prompt_tokens", "output_tokens"),
        pl.first("wall_ns"),
        *(
            pl.col(name).explode().mean() if name == "itl_ns" else pl.col(name).mean()
            for name in LATENCIES
        ),
    )
    wall_s = pl.when(pl.col("wall_ns") > 0).then(pl.col("wall_ns") / NS_PER_S)
    places = {name: i for i, name in enumerate(PHASES)}
    order = pl.col("phase").replace_strict(places, default=len(PHASES), return_dtype=pl.Int64)
    return sums.sort(order, "repeat").with_columns(
        output_tokens_per_s=pl.col("output_tokens") / wall_s,
        tokens_per_s=(pl.col("output_tokens") + pl.col("prompt_tokens")) / wall_s,
        requests_per_s=pl.col("requests") / wall_s,
    )


def over_repeats(means: Sequence[float]) -> dict[str, float | None]:
    """Mean, standard deviation, confidence interval and spread of a metric over the repeats."""
    mean = fmean(means)
    if len(means) < 2:
        return {"mean": mean, "std": None, "ci95_low": None, "ci95_high": None, "spread": None}
    std = stdev(means)
    half = t95(len(means) - 1) * std / math.sqrt(len(means))
    spread = (max(means) - min(means)) / abs(mean) if mean else None
    return {
        "mean": mean,
        "std": std,
        "ci95_low": mean - half,
        "ci95_high": mean + half,
        "spread": spread,
    }


def noise(means: Sequence[float]) -> float | None:
    """Half of the 95 % prediction interval for one more repeat:

    ``t * std * sqrt(1 + 1 / n)``; None for one repeat.
    """
    return (
        None
        if len(means) < 2
        else t95(len(means) - 1) * stdev(means) * math.sqrt(1 + 1 / len(means))
    )


TOLERANCE = 0.1
"""Largest spread of repeats that agree, as a share of the mean."""

_JUDGED = ("wall_ns", "ttft_ns", "tpot_ns", "e2e_ns")
"""Metrics that have to agree; others, such as a queue time of microseconds, may vary."""
_SUMMARY = {
    **dict.fromkeys(("phase", "metric", "unit"), pl.String),
    **dict.fromkeys(("mean", "std", "ci95_low", "ci95_high", "p50", "p90", "p99"), pl.Float64),
    **dict.fromkeys(("n", "repeats"), pl.Int64),
    "spread": pl.Float64,
    "agree": pl.Boolean,
}
_OVERHEAD = {
    **dict.fromkeys(("metric", "unit"), pl.String),
    **dict.fromkeys(("plain", "profiled", "overhead", "noise"), pl.Float64),
    "clear": pl.Boolean,
}


def summarize(frame: pl.DataFrame, *, tolerance: float = TOLERANCE) -> pl.DataFrame:
    """Statistics of every metric over the requests and the repeats of each phase, without the
    warm-up.
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
            row = {
                "phase": phase,
                "metric": metric,
                "unit": _unit(metric),
                "n": values.len(),
                "repeats": len(means),
            }
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
    """A sentence for each phase whose repeats disagree, with the metric that differs most of
    those that count.
    """
    apart = summary.filter(~pl.col("agree") & pl.col("metric").is_in(_JUDGED)).sort(
        "spread", descending=True
    )
    return [
        f"the {row['repeats']} {row['phase']} repeats disagree: {row['metric'].removesuffix('_ns')}"
        f" differs by {format_share(row['spread'])} of its mean; repeat more often, and look for"
        " other work on the machine and for clocks that change"
        for row in apart.unique("phase", keep="first").sort("phase").iter_rows(named=True)
    ]


def overhead(frame: pl.DataFrame) -> pl.DataFrame:
    """Overhead of the profiler: profiled repeats compared with repeats without a profiler.

    ``m(phase)`` is the mean over the repeats of a phase, and the value of a repeat is the mean over
    its requests. Then ``overhead = m(profiled) / m(plain) - 1``. It is ``clear`` if ``|m(profiled)
    - m(plain)|`` exceeds half of the 95 % prediction interval for one more plain repeat, ``t(n - 1)
    * std(plain) * sqrt(1 + 1 / n)``. For a rate (per second) an overhead below 0 is a loss.
    """
    both = repeats(frame)
    base, profiled = both.filter(phase="plain"), both.filter(phase="profiled")
    if base.is_empty() or profiled.is_empty():
        hint = "run with plain=True in a mode that profiles"
        raise NotCapturedError(
            f"the run has no {'plain' if base.is_empty() else 'profiled'} repeats", hint=hint
        )
    rows = []
    for metric in METRICS:
        without, under = (
            base[metric].drop_nulls().to_list(),
            profiled[metric].drop_nulls().to_list(),
        )
        if not without or not under:
            continue
        plain, cost, half = fmean(without), fmean(under), noise(without)
        clear = None if half is None else abs(cost - plain) > half
        rows.append(
            (metric, _unit(metric), plain, cost, cost / plain - 1 if plain else None, half, clear)
        )
    return pl.DataFrame(rows, schema=_OVERHEAD, orient="row")


def document(worker: Mapping[str, Any]) -> dict[str, Any]:
    """Content of ``metrics.json``: plain JSON values, times in ns."""
    frame = requests_of(worker)
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
