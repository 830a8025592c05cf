"""Analyses of operator timings (mode ``ops``): layers, operators, communication, and the cost of
timing itself.
"""

from __future__ import annotations

from typing import Any, Final

import polars as pl

from llmprof.analyze.collectives.collectives import bus_factor
from llmprof.errors import NotCapturedError
from llmprof.readers.ops import ENTRIES
from llmprof.trace import Trace
from llmprof.trace.schema import END

NEAR_NS: Final = 50_000
"""If the device ends a call this soon (ns) after the host launched it, the device was waiting
for the host.
"""

_PHASE: Final = ["rank", "phase", "method"]


def refuse_samples(trace: Trace, what: str) -> None:
    """Raise for a trace of mode ``ops``, which samples steps and records nothing between
    modules.
    """
    if trace.meta.get("format") == "ops":
        found = f"timings of operators are samples of steps, and do not say {what}"
        hint = (
            "llmprof.analyze.operator_times shows what they say; profile_mode torch or nsys records"
            " everything"
        )
        raise NotCapturedError(found, expected="a recording of everything that ran", hint=hint)


def timers(trace: Trace) -> dict[int, dict[str, Any]]:
    """What the timer of each rank says of itself: model, clock, own layers, options, collectives
    seen, notes.
    """
    if trace.meta.get("format") != "ops":
        found = "this trace has no timings of operators"
        raise NotCapturedError(found, hint="record them by a run in profile_mode ops")
    return {facts["rank"]: facts["timer"] for facts in trace.meta["ranks"]}


def timed_steps(trace: Trace) -> pl.DataFrame:
    """Steps that were timed:

    ``rank, step, phase, method`` (``+hold``: the device waited first), start and duration.
    """
    timers(trace)
    return trace.markers.drop_nulls("timer_step").select(
        "rank",
        step="timer_step",
        label="name",
        phase="timer_phase",
        method="timer_method",
        start_ns="start_ns",
        dur_ns="dur_ns",
    )


def timed_calls(trace: Trace) -> pl.DataFrame:
    """Calls of the model, its layers, modules and functions, also of those with others inside
    (``nested``).
    """
    steps = timed_steps(trace)[["rank", "step", "phase", "method"]]
    own = [column for column in trace.ops.columns if column.startswith("timer_")]
    calls = trace.ops.select(
        "rank",
        pl.col(own).name.map(lambda name: name.removeprefix("timer_")),
        "start_ns",
        "dur_ns",
        "shapes",
        operator="name",
        nested=pl.col("kind") == "python",
    )
    return steps.join(calls, on=["rank", "step"])


def layer_times(trace: Trace) -> pl.DataFrame:
    """Time of each layer, by rank and phase."""
    # If a layer was timed both with and without its operators, only the calls without them count,
    # since timing inside a call makes it longer.
    keys = [*_PHASE, "layer"]
    calls = timed_calls(trace).filter(kind="layer")
    return _grouped(
        calls.filter(pl.col("nested") == pl.min("nested").over(keys)), keys, trace
    ).sort(keys)


def operator_times(trace: Trace) -> pl.DataFrame:
    """Time of each operator of the layers, and of the modules outside them, by rank and phase."""
    keys = [*_PHASE, "kind", "operator"]
    calls = timed_calls(trace).filter(~pl.col("kind").is_in(["layer", "model"]))
    layers = pl.col("layer").drop_nulls()
    sampled = pl.struct("step", "layer").filter(pl.col("layer").is_not_null()).n_unique()
    grouped = _grouped(
        calls,
        keys,
        trace,
        layers=pl.n_unique("layer").cast(pl.Int64),
        _sampled=sampled,
        _inside=layers.len() > 0,
    )
    steps = timed_steps(trace).group_by(_PHASE).agg(_steps=pl.len(), _step_ns=pl.median("dur_ns"))
    grouped = grouped.join(steps, on=_PHASE, how="left").with_columns(
        calls_a_step=pl.when("_inside")
        .then(pl.col("count") / pl.col("_sampled") * _own_layers(trace))
        .otherwise(pl.col("count") / pl.col("_steps"))
    )
    grouped = grouped.with_columns(step_ns=pl.col("median_ns") * pl.col("calls_a_step"))
    return (
        grouped.with_columns(share=pl.col("step_ns") / pl.col("_step_ns"))
        .select(pl.exclude("^_.*$"))
        .sort("rank", "phase", "step_ns", descending=[False, False, True])
    )


def _own_layers(trace: Trace) -> pl.Expr:
    own = {rank: len(facts["layers"]) for rank, facts in timers(trace).items()}
    return pl.col("rank").replace_strict(own, default=1, return_dtype=pl.Int64)


def on_device(trace: Trace) -> bool:
    """Whether the times are times of a GPU."""
    return any(facts["platform"] == "cuda" for facts in timers(trace).values())


def _grouped(calls: pl.DataFrame, keys: list[str], trace: Trace, **more: pl.Expr) -> pl.DataFrame:
    near = (pl.col("behind_ns") < NEAR_NS).mean()
    time = pl.col("dur_ns")
    return calls.group_by(keys, maintain_order=True).agg(
        count=pl.len().cast(pl.Int64),
        total_ns=time.sum(),
        mean_ns=time.mean(),
        median_ns=time.median(),
        min_ns=time.min(),
        max_ns=time.max(),
        nested=pl.col("nested").any(),
        waiting=near if on_device(trace) else pl.lit(None, pl.Float64),
        **more,
    )


def communication_times(trace: Trace) -> pl.DataFrame:
    """Collectives and messages by kind, group and size."""
    keys, of_phase = ["rank", "phase", "group", "kind", "bytes"], ["rank", "phase"]
    detailed = timed_calls(trace).filter((pl.col("kind") == "layer") & pl.col("nested"))
    pairs = detailed.group_by(of_phase).agg(_pairs=pl.struct("step", "layer").n_unique())
    steps = timed_steps(trace)
    means = steps.group_by(of_phase).agg(_steps=pl.len(), _step_ns=pl.median("dur_ns"))
    time = pl.col("dur_ns")
    # an empty message, or a duration below the clock's resolution, has no bandwidth
    speed = pl.when((pl.col("bytes") > 0) & (time > 0)).then(pl.col("bytes") / time)
    # a call outside the layers stands for itself, one inside for those of the layers that were not
    # sampled
    weight = pl.when(pl.col("timer_layer").is_not_null() & pl.col("_pairs").is_not_null()).then(
        _own_layers(trace) * pl.col("_steps") / pl.col("_pairs")
    )
    rows = trace.collectives.rename({"timer_step": "step"}).join(
        steps[["rank", "step", "phase"]], on=["rank", "step"]
    )
    rows = rows.join(pairs, on=of_phase, how="left").join(means, on=of_phase, how="left")
    rows = rows.with_columns(
        _weight=weight.fill_null(1.0), _bus=speed * bus_factor(pl.col("world")), kind="recorded_as"
    )
    grouped = rows.group_by(keys).agg(
        count=pl.len().cast(pl.Int64),
        total_ns=time.sum(),
        median_ns=time.median(),
        min_ns=time.min(),
        algorithm_gbps=speed.median(),
        bus_gbps=pl.median("_bus"),
        waits=pl.col("timer_waits").any(),
        per_step=(pl.col("_weight") / pl.col("_steps")).sum(),
        step_ns=(time * pl.col("_weight") / pl.col("_steps")).sum(),
        _step_ns=pl.first("_step_ns"),
    )
    fits = pl.sum("step_ns").over(of_phase) <= pl.col("_step_ns")
    grouped = grouped.with_columns(share=pl.when(fits).then(pl.col("step_ns") / pl.col("_step_ns")))
    return grouped.drop("_step_ns").sort(
        "rank", "phase", "step_ns", descending=[False, False, True]
    )


_FEWEST_FOR_AN_INTERVAL: Final = 6
"""Between the least and the largest of fewer values the median lies in less than 95 of 100
cases.
"""


def median_interval(values: pl.Expr) -> tuple[pl.Expr, pl.Expr]:
    """Bounds of the 95 % interval of the median (sign test, normal limit), inside of an
    aggregation.
    """
    # of n values the median lies between those at n / 2 -+ 0.98 sqrt(n) in 95 of 100 cases
    count, ordered = values.len().cast(pl.Float64), values.sort()
    low = (count / 2 - 0.98 * count.sqrt()).floor().clip(0).cast(pl.Int64)
    high = pl.min_horizontal((count / 2 + 0.98 * count.sqrt()).ceil(), count - 1).cast(pl.Int64)
    return ordered.get(low, null_on_oob=True), ordered.get(high, null_on_oob=True)


def timing_overhead(trace: Trace) -> pl.DataFrame:
    """Time from step to step of decode, by the method of timing: what the timing itself costs."""
    blocks = all(
        min((n for _, n in facts["options"].get("cycle") or ()), default=1) > 1
        for facts in timers(trace).values()
    )
    rows = (
        trace.markers.filter(domain=ENTRIES)
        .sort("rank", "start_ns")
        .with_columns(
            method="timer_method",
            step_ns=pl.col("start_ns").shift(-1).over("rank") - pl.col("start_ns"),
            then=pl.col("name").shift(-1).over("rank"),
            same=(pl.col("timer_method") == pl.col("timer_method").shift().over("rank")).fill_null(
                value=False
            ),
        )
    )
    rows = rows.filter(
        (pl.col("name") == "decode")
        & (pl.col("then") == "decode")
        & (pl.lit(not blocks) | pl.col("same"))
    )
    time, untimed = pl.col("step_ns"), pl.when(pl.col("method") == "none").then("step_ns")
    rows = rows.with_columns(
        _before=untimed.forward_fill().over("rank"), _after=untimed.backward_fill().over("rank")
    )
    more = pl.when(pl.col("method") != "none").then(
        time / pl.mean_horizontal("_before", "_after") - 1
    )
    many = pl.col("_more").count() >= _FEWEST_FOR_AN_INTERVAL
    low, high = median_interval(pl.col("_more").drop_nulls())
    return (
        rows.with_columns(_more=more)
        .group_by("rank", "method")
        .agg(
            steps=pl.len().cast(pl.Int64),
            median_ns=time.median(),
            mean_ns=time.mean(),
            low_ns=time.quantile(0.25),
            high_ns=time.quantile(0.75),
            overhead=pl.median("_more"),
            overhead_low=pl.when(many).then(low),
            overhead_high=pl.when(many).then(high),
        )
        .sort("rank", pl.col("method") != "none", "method")
    )


def against_trace(timed: Trace, trace: Trace) -> pl.DataFrame:
    """Compare layers measured by the timer with those of a profiler that recorded the same
    steps.
    """
    events = trace.events.filter(source="kernel").sort("rank", "start_ns")
    if events.is_empty():
        raise NotCapturedError(
            "this capture holds no kernels", hint="record it with profile_mode torch or nsys"
        )
    events = events.with_columns(
        _before=END.cum_max().shift().over("rank", "device", "stream"), _end=END
    ).drop_nulls(["layer", "step"])
    spans = events.group_by("rank", "step", "layer").agg(
        _first=pl.min("start_ns"),
        _before=pl.first("_before"),
        _last=pl.max("_end"),
        kernels_ns=pl.sum("dur_ns"),
    )
    spans = spans.with_columns(_order=pl.col("step").rank("dense").over("rank")).drop("step")
    calls = timed_calls(timed).filter(kind="layer")
    calls = calls.with_columns(_order=pl.col("step").rank("dense").over("rank"))
    paired = calls.join(spans, on=["rank", "_order", "layer"], how="inner").with_columns(
        device_ns=pl.col("_last") - pl.col("_before"), span_ns=pl.col("_last") - pl.col("_first")
    )
    paired = paired.with_columns(ratio=pl.col("dur_ns") / pl.col("device_ns")).rename(
        {"dur_ns": "timed_ns"}
    )
    return paired[
        [
            "rank",
            "step",
            "phase",
            "method",
            "layer",
            "timed_ns",
            "device_ns",
            "span_ns",
            "kernels_ns",
            "ratio",
        ]
    ].sort("rank", "step", "layer")


DOMINATES: Final = 0.25
"""Least share of a step of an operator that dominates it."""

LAUNCH_BOUND: Final = 0.5
"""Least share of the calls of a phase whose end the device reached together with the host."""

ABOVE_BOUND: Final = 3.0
"""Least multiple of its bound of an operator that is far above it."""

LEAST_BOUND_NS: Final = 2_000
"""Least bound (ns) of a call: below it, the fixed cost of a kernel decides."""

WORTH: Final = 0.05
"""Least share of the timed operators that the time above the bound must take."""


def timing_suggestions(trace: Trace, bounds: pl.DataFrame | None = None) -> pl.DataFrame:
    """What to look at: ``rule, phase, operator, figure``."""
    # `dominates`: an operator without others inside takes this share of the median step (mean over
    # ranks); `launch_bound`: in this share of the timed calls the device had caught up with the
    # host; `above_bound`: the operator (a stage of the layers, without communication) takes so many
    # times its bound.
    operators = operator_times(trace).filter(~pl.col("nested"))
    steps = pl.sum("share").over("rank", "phase")
    means = operators.filter(steps <= 1).group_by("phase", "operator").agg(figure=pl.mean("share"))
    frames = [means.filter(pl.col("figure") >= DOMINATES).with_columns(rule=pl.lit("dominates"))]
    weighted = (pl.col("waiting") * pl.col("count")).sum() / pl.sum("count")
    waits = operators.filter(
        ~pl.col("method").str.contains("hold"), pl.col("waiting").is_not_null()
    )
    waits = waits.group_by("phase").agg(figure=weighted).filter(pl.col("figure") >= LAUNCH_BOUND)
    frames.append(waits.with_columns(rule=pl.lit("launch_bound")))
    if bounds is not None:
        above = bounds.filter(
            ~pl.col("communicates"),
            pl.col("times_bound") >= ABOVE_BOUND,
            pl.col("bound_ns") >= LEAST_BOUND_NS * pl.col("calls"),
            pl.col("total_ns") - pl.col("bound_ns") >= WORTH * pl.sum("total_ns").over("phase"),
        )
        above = above.select(
            "phase", operator="stage", figure="times_bound", rule=pl.lit("above_bound")
        )
        frames.append(above)
    schema = {"rule": pl.String, "phase": pl.String, "operator": pl.String, "figure": pl.Float64}
    found = pl.concat([pl.DataFrame(schema=schema), *frames], how="diagonal")
    return found.sort("phase", "rule", "figure", descending=[False, False, True])
