"""Charts of timings of operators: layers, operators, compute and communication, memory, bottlenecks, bandwidth."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import altair as alt
import polars as pl

from llmprof.analyze.operator_times import communication_times, layer_times, operator_times
from llmprof.charts.base.draw import inline, nothing
from llmprof.charts.base.theme import COMMUNICATION, COMPUTE, PHASES, REST, finish, inner, time_unit
from llmprof.readers.ops import Timings
from llmprof.text import shorten

_SOURCE: Final = "llmprof.readers.ops.read_timings(path)"
_TOP: Final = 20
_GB: Final = 1e9


def layer_performance_heatmap(timings: Timings) -> Any:
    """Median time of each layer (x) on each rank and in each phase (y)."""
    rows = layer_times(timings)
    if rows.is_empty():
        raise nothing("layer_performance_heatmap", "no layer was timed", _SOURCE)
    rows = rows.group_by("rank", "phase", "layer").agg(pl.col("median_ns").median(), pl.col("count").sum())
    unit = time_unit(float(rows["median_ns"].max()))  # type: ignore[arg-type]
    rows = rows.with_columns(
        time=pl.col("median_ns") / unit.ns, row=pl.format("{}, rank {}", "phase", "rank")
    ).sort("phase", "rank", "layer")  # fmt: skip
    chart = alt.Chart(inline(rows)).mark_rect()
    phases = sorted(rows["phase"].unique())
    chart = chart.encode(
        x=alt.X("layer:O", title="layer", axis=alt.Axis(labelOverlap=True, labelAngle=0)),
        y=alt.Y("row:N", title=None),
        color=alt.Color("time:Q", title=unit.symbol, scale=alt.Scale(scheme="blues")),
        tooltip=[
            alt.Tooltip("row:N"),
            alt.Tooltip("layer:O"),
            alt.Tooltip("time:Q", title="median, " + unit.symbol, format=".3~f"),
            alt.Tooltip("count:Q"),
        ],
    )
    height = 28 * rows["row"].n_unique()
    least = int(rows.select(pl.col("count").min()).item())
    subtitle = f"Median of {least} or more calls each; phases: {', '.join(phases)}"
    return finish(chart.properties(width=inner() - 120, height=height), "Time of each layer", subtitle)


def operation_time_distribution(timings: Timings) -> Any:
    """Quartiles and extremes of the times of each operator in decode steps (in all steps if there are none)."""
    calls = timings.calls.filter(~pl.col("kind").is_in(["layer", "model"]))
    phase = "decode" if "decode" in set(calls["phase"]) else None
    calls = calls.filter(pl.col("phase") == phase) if phase else calls
    if calls.is_empty():
        raise nothing("operation_time_distribution", "no operator was timed", _SOURCE)
    time = pl.col("dur_ns")
    rows = (
        calls.group_by("operator")
        .agg(low=time.min(), q1=time.quantile(0.25), median=time.median(), q3=time.quantile(0.75), calls=pl.len())
        .sort("median", descending=True)
        .head(_TOP)
    )
    unit = time_unit(float(rows["q3"].max()))  # type: ignore[arg-type]
    rows = rows.with_columns(pl.col("low", "q1", "median", "q3") / unit.ns).with_columns(label=_short("operator"))
    y = alt.Y("label:N", sort=rows["label"].to_list(), title=None, axis=alt.Axis(labelLimit=320))
    base = alt.Chart(inline(rows))
    x = alt.X("q1:Q", title=unit.symbol)
    bars = base.mark_bar(color=COMPUTE, opacity=0.55, height=12).encode(x=x, x2=alt.X2("q3:Q"), y=y)
    ticks = base.mark_tick(color=COMPUTE, thickness=3, height=16).encode(
        x=alt.X("median:Q"),
        y=y,
        tooltip=[alt.Tooltip(field) for field in ("operator:N", "calls:Q", "low:Q", "q1:Q", "median:Q", "q3:Q")],
    )
    words = f"Middle half of the calls and their median{f', {phase} steps' if phase else ''}; operators nest"
    return finish((bars + ticks).properties(width=inner() - 300, height=22 * rows.height), "Times of operators", words)


def compute_vs_communication(timings: Timings) -> Any:
    """Time of a step in communication and in everything else, by rank and phase."""
    if timings.steps.is_empty():
        raise nothing("compute_vs_communication", "no step was timed", _SOURCE)
    steps = timings.steps.group_by("rank", "phase").agg(step=pl.col("dur_ns").median())
    shares_known = pl.col("share").is_not_null().all()
    calls = communication_times(timings).group_by("rank", "phase")
    comm = calls.agg(comm=pl.col("step_ns").sum(), known=shares_known)
    rows = steps.join(comm, on=["rank", "phase"], how="left")
    rows = rows.with_columns(pl.col("comm").fill_null(0.0), pl.col("known").fill_null(value=True))
    unit = time_unit(float(rows["step"].max()))  # type: ignore[arg-type]
    step, share = pl.col("step") / unit.ns, pl.col("comm") / unit.ns
    rows = rows.select(
        row=pl.format("{}, rank {}", "phase", "rank"),
        rest=pl.when("known").then(step - share), communication=pl.when("known").then(share),
        unknown=pl.when(~pl.col("known")).then(step),
    )  # fmt: skip
    names = {"rest": "compute, host and gaps", "communication": "communication", "unknown": "unknown"}
    colours = {"rest": COMPUTE, "communication": COMMUNICATION, "unknown": REST}
    if rows["unknown"].null_count() == rows.height:
        del names["unknown"], colours["unknown"]
    long = rows.unpivot(list(names), index="row", variable_name="part", value_name="time").drop_nulls("time")
    long = long.with_columns(pl.col("part").replace(names)).sort("row")
    scale = alt.Scale(domain=list(names.values()), range=list(colours.values()))
    chart = alt.Chart(inline(long)).mark_bar(height=18)
    chart = chart.encode(
        x=alt.X("time:Q", title=f"{unit.symbol} a step"),
        y=alt.Y("row:N", title=None),
        color=alt.Color("part:N", title=None, scale=scale, legend=alt.Legend(orient="top")),
        tooltip=[alt.Tooltip("row:N"), alt.Tooltip("part:N"), alt.Tooltip("time:Q", format=".3~f")],
    )
    words = "Median step; communication is the mean of the timed calls times all calls of a step"
    if "unknown" in names:
        words += "; unknown where that is longer than the step, since the timed calls waited longer than the rest"
    if timings.collectives.is_empty():
        words = "One device: there is no communication"
    return finish(chart.properties(width=inner() - 180, height=30 * rows.height), "Compute and communication", words)


def memory_usage_analysis(timings: Timings) -> Any:
    """Memory that is allocated at the end of each timed step, by rank."""
    steps = timings.steps.drop_nulls(["bytes_before", "bytes_after"])
    if steps.is_empty():
        raise nothing("memory_usage_analysis", "memory was not recorded (ops_options memory: off)", _SOURCE)
    first = pl.col("bytes_before").first().over("rank")
    rows = steps.select("step", "phase", mib=(pl.col("bytes_after") - first) / 2**20, rank=pl.format("rank {}", "rank"))
    begin = ", ".join(f"{value / _GB:,.3f} GB" for value in steps.group_by("rank").agg(pl.col("bytes_before").first())
                      .sort("rank")["bytes_before"])  # fmt: skip
    line = alt.Chart(inline(rows)).encode(
        x=alt.X("step:Q", title="step of the engine", axis=alt.Axis(tickMinStep=1)),
        y=alt.Y("mib:Q", title="MiB more than at first"),
        color=alt.Color("rank:N", title=None),
        tooltip=[
            alt.Tooltip("rank:N"),
            alt.Tooltip("step:Q"),
            alt.Tooltip("phase:N"),
            alt.Tooltip("mib:Q", format=".3~f"),
        ],
    )
    what = "device memory of PyTorch's allocator" if timings.on_device else "resident memory of the process"
    both = line.mark_line() + line.mark_point(filled=True)
    words = f"{what[0].upper()}{what[1:]}; at first {begin}"
    return finish(both.properties(width=inner() - 120, height=220), "Memory at the end of a step", words)


def performance_bottlenecks(timings: Timings) -> Any:
    """Operators by their time in a step, over all layers; operators that contain others are left out."""
    rows = operator_times(timings).filter(~pl.col("nested"))
    rows = rows.group_by("phase", "operator").agg(pl.col("step_ns", "share").mean())
    if rows.is_empty():
        raise nothing("performance_bottlenecks", "no operator was timed", _SOURCE)
    keep = rows.group_by("operator").agg(pl.col("share").max()).sort("share", descending=True).head(_TOP)["operator"]
    rows = rows.filter(pl.col("operator").is_in(keep.implode())).with_columns(label=_short("operator"))
    order = rows.group_by("label").agg(pl.col("share").max()).sort("share", descending=True)["label"].to_list()
    phases = [phase for phase in PHASES if phase in set(rows["phase"])]
    chart = alt.Chart(inline(rows.with_columns(pl.col("share") * 100))).mark_bar()
    chart = chart.encode(
        x=alt.X("share:Q", title="% of the median step"),
        y=alt.Y("label:N", sort=order, title=None, axis=alt.Axis(labelLimit=320)),
        yOffset=alt.YOffset("phase:N", sort=phases),
        color=alt.Color(
            "phase:N", title=None, scale=alt.Scale(domain=phases, range=[PHASES[one] for one in phases]),
            legend=alt.Legend(orient="top"),
        ),
        tooltip=[
            alt.Tooltip("operator:N"), alt.Tooltip("phase:N"), alt.Tooltip("share:Q", format=".2f"),
            alt.Tooltip("step_ns:Q"),
        ],
    )  # fmt: skip
    height = (14 * len(phases) + 8) * len(order)
    words = "Median of the timed calls, times the calls of a step; mean over ranks"
    return finish(chart.properties(width=inner() - 300, height=height), "Where a step's time goes", words)


def bandwidth_analysis(timings: Timings) -> Any:
    """Bus bandwidth of collectives and messages by size."""
    rows = communication_times(timings).drop_nulls("bus_gbps").filter(pl.col("bytes") > 0)
    if rows.is_empty():
        raise nothing("bandwidth_analysis", "there is no communication on one device", _SOURCE)
    rows = rows.with_columns(kib=pl.col("bytes") / 1024, what=pl.format("{} ({})", "kind", "phase"))
    chart = alt.Chart(inline(rows)).mark_point(filled=True, size=90, opacity=0.8)
    chart = chart.encode(
        x=alt.X("kib:Q", title="KiB of the message", scale=alt.Scale(type="log")),
        y=alt.Y("bus_gbps:Q", title="GB/s on the bus", scale=alt.Scale(type="log")),
        color=alt.Color("what:N", title=None),
        tooltip=[
            alt.Tooltip(field)
            for field in ("what:N", "group:N", "rank:Q", "bytes:Q", "count:Q", "median_ns:Q", "bus_gbps:Q")
        ],
    )  # fmt: skip
    words = "Medians of the timed calls; waiting for a late rank is part of their time"
    return finish(chart.properties(width=inner() - 120, height=260), "Bandwidth of communication", words)


CHARTS: Final[dict[str, Callable[[Timings], Any]]] = {
    "layer_performance_heatmap": layer_performance_heatmap,
    "operation_time_distribution": operation_time_distribution,
    "compute_vs_communication": compute_vs_communication,
    "memory_usage_analysis": memory_usage_analysis,
    "performance_bottlenecks": performance_bottlenecks,
    "bandwidth_analysis": bandwidth_analysis,
}
"""Charts of the results of mode ``ops``, by file name. Add your chart here, or pass it to one call."""


def _short(column: str) -> pl.Expr:
    return pl.col(column).map_elements(lambda name: shorten(name, 44), pl.String)
