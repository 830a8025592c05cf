"""Analyses of operator timings (mode ``ops``): layers, operators, communication, and the cost of timing itself."""

from __future__ import annotations

from typing import Final

import polars as pl

from llmprof.errors import NotCapturedError
from llmprof.readers.ops import Timings
from llmprof.trace import Trace

NEAR_NS: Final = 50_000
"""If the device ends a call this soon (ns) after the host launched it, the device was waiting for the host."""


def refuse_samples(trace: Trace, what: str) -> None:
    """Raise for a trace of mode ``ops``, which samples steps and records nothing between modules."""
    if trace.meta.get("format") == "ops":
        raise NotCapturedError(
            f"timings of operators are samples of steps, and do not say {what}",
            expected="a recording of everything that ran",
            hint="llmprof.analyze.operator_times shows what they say; profile_mode torch or nsys records everything",
        )


def layer_times(timings: Timings) -> pl.DataFrame:
    """Time of each layer, by rank and phase.

    If a layer was timed both with and without its operators, only the calls without them count, since timing inside a
    call makes it longer.
    """
    keys = ["rank", "phase", "method", "held", "layer"]
    calls = timings.calls.filter(pl.col("kind") == "layer")
    calls = calls.filter(pl.col("nested") == pl.col("nested").min().over(keys))
    return _grouped(calls, [*keys], timings).sort(keys)


def operator_times(timings: Timings) -> pl.DataFrame:
    """Time of each operator of the layers, and of the modules outside them, by rank and phase."""
    keys = ["rank", "phase", "method", "held", "kind", "operator"]
    calls = timings.calls.filter(~pl.col("kind").is_in(["layer", "model"]))
    grouped = _grouped(calls, keys, timings, pl.col("layer").n_unique().alias("layers"))
    steps = timings.steps.group_by("rank", "phase", "method", "held").agg(
        _steps=pl.len(), _step_ns=pl.col("dur_ns").median()
    )
    own = {facts["rank"]: len(facts["layers"]) for facts in timings.ranks}
    inside = calls.filter(pl.col("layer").is_not_null()).group_by(keys).agg(
        _detailed=pl.struct("step", "layer").n_unique()
    )  # fmt: skip
    grouped = grouped.join(inside, on=keys, how="left").join(steps, on=["rank", "phase", "method", "held"], how="left")
    every = pl.col("rank").replace_strict(own, default=1, return_dtype=pl.Int64)
    grouped = grouped.with_columns(
        calls_a_step=pl.when(pl.col("_detailed").is_null())
        .then(pl.col("count") / pl.col("_steps"))
        .otherwise(pl.col("count") / pl.col("_detailed") * every)
    ).with_columns(step_ns=pl.col("median_ns") * pl.col("calls_a_step"))
    grouped = grouped.with_columns(share=pl.col("step_ns") / pl.col("_step_ns"), layers=pl.col("layers").cast(pl.Int64))
    return grouped.drop("_detailed", "_steps", "_step_ns").sort(
        "rank", "phase", "step_ns", descending=[False, False, True]
    )


def _grouped(calls: pl.DataFrame, keys: list[str], timings: Timings, *more: pl.Expr) -> pl.DataFrame:
    near = pl.col("behind_ns") < NEAR_NS
    waiting = near.mean() if timings.on_device else pl.lit(None, dtype=pl.Float64)
    time = pl.col("dur_ns")
    return calls.group_by(keys, maintain_order=True).agg(
        *more, count=pl.len().cast(pl.Int64), total_ns=time.sum(), mean_ns=time.mean(), median_ns=time.median(),
        min_ns=time.min(), max_ns=time.max(), nested=pl.col("nested").any(), waiting=waiting,
    )  # fmt: skip


def communication_times(timings: Timings) -> pl.DataFrame:
    """Collectives and messages by kind, group and size."""
    keys = ["rank", "phase", "group", "kind", "bytes"]
    own = {facts["rank"]: len(facts["layers"]) for facts in timings.ranks}
    of_phase = ["rank", "phase"]
    detailed = timings.calls.filter((pl.col("kind") == "layer") & pl.col("nested"))
    pairs = detailed.group_by(of_phase).agg(_pairs=pl.struct("step", "layer").n_unique())
    steps = timings.steps.group_by(of_phase).agg(_steps=pl.len(), _step_ns=pl.col("dur_ns").median())
    rows = timings.collectives.join(pairs, on=of_phase, how="left").join(steps, on=of_phase, how="left")
    layers = pl.col("rank").replace_strict(own, default=1, return_dtype=pl.Int64)
    # a call outside the layers stands for itself, one inside for those of the layers that were not sampled
    weight = pl.when(pl.col("layer").is_not_null() & pl.col("_pairs").is_not_null()).then(
        layers * pl.col("_steps") / pl.col("_pairs")
    )
    rows = rows.with_columns(_weight=weight.fill_null(1.0))
    grouped = rows.group_by(keys).agg(
        count=pl.len().cast(pl.Int64), total_ns=pl.col("dur_ns").sum(), median_ns=pl.col("dur_ns").median(),
        min_ns=pl.col("dur_ns").min(), algorithm_gbps=pl.col("algorithm_gbps").median(),
        bus_gbps=pl.col("bus_gbps").median(), waits=pl.col("waits").any(),
        a_step=(pl.col("_weight") / pl.col("_steps")).sum(),
        step_ns=(pl.col("dur_ns") * pl.col("_weight") / pl.col("_steps")).sum(), _step_ns=pl.col("_step_ns").first(),
    )  # fmt: skip
    fits = pl.col("step_ns").sum().over(of_phase) <= pl.col("_step_ns")
    grouped = grouped.with_columns(share=pl.when(fits).then(pl.col("step_ns") / pl.col("_step_ns")))
    return grouped.drop("_step_ns").sort("rank", "phase", "step_ns", descending=[False, False, True])


_FEWEST_FOR_AN_INTERVAL: Final = 6
"""Between the least and the largest of fewer values the median lies in less than 95 of 100 cases."""


def median_interval(values: pl.Expr) -> tuple[pl.Expr, pl.Expr]:
    """Bounds of the 95 % interval of the median (sign test, normal limit), inside of an aggregation."""
    # of n values the median lies between those at n / 2 -+ 0.98 sqrt(n) in 95 of 100 cases
    count, ordered = values.len().cast(pl.Float64), values.sort()
    low = (count / 2 - 0.98 * count.sqrt()).floor().clip(0).cast(pl.Int64)
    high = pl.min_horizontal((count / 2 + 0.98 * count.sqrt()).ceil(), count - 1).cast(pl.Int64)
    return ordered.get(low, null_on_oob=True), ordered.get(high, null_on_oob=True)


def timing_overhead(timings: Timings) -> pl.DataFrame:
    """Time from step to step of decode, by the method of timing: what the timing itself costs."""
    same = pl.col("method") == pl.col("method").shift().over("rank")
    blocks = all(min((n for _, n in facts["options"].get("cycle") or ()), default=1) > 1 for facts in timings.ranks)
    rows = timings.entries.sort("rank", "at_ns").with_columns(
        step_ns=pl.col("at_ns").shift(-1).over("rank") - pl.col("at_ns"),
        then=pl.col("phase").shift(-1).over("rank"),
        same=same.fill_null(value=False),
    )
    rows = rows.filter((pl.col("phase") == "decode") & (pl.col("then") == "decode"))
    rows = rows.filter("same") if blocks else rows
    time, untimed = pl.col("step_ns"), pl.when(pl.col("method") == "none").then("step_ns")
    rows = rows.with_columns(_before=untimed.forward_fill().over("rank"), _after=untimed.backward_fill().over("rank"))
    more = pl.when(pl.col("method") != "none").then(time / pl.mean_horizontal("_before", "_after") - 1)
    many, (low, high) = (
        pl.col("_more").count() >= _FEWEST_FOR_AN_INTERVAL,
        median_interval(pl.col("_more").drop_nulls()),
    )
    return rows.with_columns(_more=more).group_by("rank", "method").agg(
        steps=pl.len().cast(pl.Int64), median_ns=time.median(), mean_ns=time.mean(), low_ns=time.quantile(0.25),
        high_ns=time.quantile(0.75), overhead=pl.col("_more").median(), overhead_low=pl.when(many).then(low),
        overhead_high=pl.when(many).then(high),
    ).sort("rank", pl.col("method") != "none", "method")  # fmt: skip


def against_trace(timings: Timings, trace: Trace) -> pl.DataFrame:
    """Compare layers measured by the timer with those of a profiler that recorded the same steps."""
    from llmprof.analyze.layers.attribution import attribute

    end = pl.col("start_ns") + pl.col("dur_ns")
    events = attribute(trace).filter(pl.col("source") == "kernel").sort("rank", "start_ns")
    if events.is_empty():
        raise NotCapturedError("this capture holds no kernels", hint="record it with profile_mode torch or nsys")
    events = events.with_columns(_before=end.cum_max().shift().over("rank", "device", "stream"), _end=end).drop_nulls(
        ["layer", "step"]
    )
    spans = events.group_by("rank", "step", "layer").agg(
        _first=pl.col("start_ns").min(), _before=pl.col("_before").first(), _last=pl.col("_end").max(),
        kernels_ns=pl.col("dur_ns").sum(),
    )  # fmt: skip
    spans = spans.with_columns(_order=pl.col("step").rank("dense").over("rank")).drop("step")
    calls = timings.calls.filter(pl.col("kind") == "layer")
    calls = calls.with_columns(_order=pl.col("step").rank("dense").over("rank"))
    paired = calls.join(spans, on=["rank", "_order", "layer"], how="inner").with_columns(
        device_ns=pl.col("_last") - pl.col("_before"), span_ns=pl.col("_last") - pl.col("_first")
    )
    paired = paired.with_columns(ratio=pl.col("dur_ns") / pl.col("device_ns")).rename({"dur_ns": "timed_ns"})
    return paired.select(
        "rank", "step", "phase", "held", "layer", "timed_ns", "device_ns", "span_ns", "kernels_ns", "ratio"
    ).sort("rank", "step", "layer")
