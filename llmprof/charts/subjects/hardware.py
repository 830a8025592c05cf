"""Charts of experiments: bandwidth, matrix products, links, length and parallelism, history."""

from __future__ import annotations

from typing import Any, Final

import altair as alt
import polars as pl

from llmprof.charts.base import compose
from llmprof.charts.base.draw import inline, nothing, require, tips
from llmprof.charts.base.theme import COMMUNICATION, COMPUTE, finish_chart, inner, shades

_GRADES: Final = {"good": "#009E73", "fair": "#E0A100", "poor": "#B2182B", "unknown": "#9AA5B1"}


def hardware_peaks(memory: pl.DataFrame, matmul: pl.DataFrame) -> Any:
    """Measured memory bandwidth and best matrix products, compared with the vendor's stated
    peaks.
    """
    made = "llmprof.run.experiments.bandwidth.read_bandwidth(path)"
    require(memory, ("kind", "gb_per_s", "peak_gb_per_s"), chart="hardware_peaks", made_by=made)
    if memory.is_empty() and matmul.is_empty():
        raise nothing("hardware_peaks", "nothing was measured", made)
    slowest = memory.group_by("kind", maintain_order=True).agg(
        pl.col("gb_per_s").min(), pl.col("peak_gb_per_s").first()
    )
    rates = matmul.group_by("dtype", maintain_order=True).agg(
        pl.col("tflop_per_s").max(), pl.col("peak_tflop_per_s").first()
    )
    parts = [
        _beside_peak(
            slowest.rename({"kind": "name", "gb_per_s": "value", "peak_gb_per_s": "peak"}), "GB/s"
        ),
        _beside_peak(
            rates.rename({"dtype": "name", "tflop_per_s": "value", "peak_tflop_per_s": "peak"}),
            "TFLOP/s",
        ),
    ]
    words = (
        "Bars: measured (the slowest device; the best size of product); ticks: stated by the vendor"
    )
    return finish_chart(compose.vconcat(*parts, spacing=24), "What the hardware reaches", words)


def _beside_peak(rows: pl.DataFrame, unit: str) -> Any:
    base = alt.Chart(inline(rows)).properties(width=inner() - 200, height=26 * max(1, rows.height))
    y = alt.Y("name:N", sort=rows["name"].to_list(), title=None)
    bars = base.mark_bar(color=COMPUTE).encode(
        x=alt.X("value:Q", title=unit), y=y, tooltip=tips("name:N", "value:Q", "peak:Q")
    )
    return bars + base.mark_tick(color=COMMUNICATION, thickness=3, height=20).encode(
        x=alt.X("peak:Q"), y=y
    )


def link_bandwidth(links: pl.DataFrame) -> Any:
    """Bandwidth between devices by the size of the message."""
    rows = links.filter(pl.col("bytes") >= 1 << 10)
    if rows.is_empty():
        raise nothing(
            "link_bandwidth",
            "links need two devices",
            "llmprof.run.experiments.bandwidth.read_bandwidth(path)",
        )
    both = pl.when("both").then(pl.lit(", both ways")).otherwise(pl.lit(""))
    rows = rows.with_columns(
        what=pl.format("{} → {}{} ({})", "src", "dst", both, "how"), mib=pl.col("bytes") / 2**20
    )
    return _by_size(rows, "gb_per_s", "GB/s", "Copies between devices", "what")


def all_reduce_bandwidth(rows: pl.DataFrame) -> Any:
    """Bus bandwidth of the all-reduce by size, for each algorithm."""
    if rows.is_empty():
        raise nothing(
            "all_reduce_bandwidth", "there is no all-reduce on one device", "read_bandwidth(path)"
        )
    return _by_size(
        rows.with_columns(mib=pl.col("bytes") / 2**20),
        "bus_gbps",
        "GB/s on the bus",
        "All-reduce by size",
        "algorithm",
    )


def _by_size(rows: pl.DataFrame, value: str, title: str, heading: str, by: str) -> Any:
    chart = alt.Chart(inline(rows)).mark_line(point=True)
    chart = chart.encode(
        x=alt.X("mib:Q", title="MiB", scale=alt.Scale(type="log")),
        y=alt.Y(f"{value}:Q", title=title, scale=alt.Scale(type="log")),
        color=alt.Color(f"{by}:N", title=None, legend=alt.Legend(labelLimit=260)),
        tooltip=[
            alt.Tooltip(field) for field in (f"{by}:N", "bytes:Q", "latency_us:Q", f"{value}:Q")
        ],
    )
    return finish_chart(
        chart.properties(width=inner() - 260, height=280),
        heading,
        "Both axes are logarithmic; medians",
    )


def length_curves(points: pl.DataFrame) -> Any:
    """Prefill and decode step over the length of the prompt."""
    made = "llmprof.run.experiments.scaling.read_points(path)"
    require(
        points,
        ("tp", "pp", "prompt", "batch", "prefill_s", "decode_step_s"),
        chart="length_curves",
        made_by=made,
    )
    rows = points.filter(pl.col("out") == pl.col("out").min()).with_columns(
        pl.col("prefill_s", "decode_step_s") * 1e3,
        series=pl.format("TP {} PP {}, batch {}", "tp", "pp", "batch"),
    )
    parts = []
    for column, title in (("prefill_s", "ms, prefill"), ("decode_step_s", "ms, decode step")):
        scale = alt.Scale(type="log") if column == "prefill_s" else alt.Scale(zero=True)
        parts.append(
            alt.Chart(inline(rows))
            .mark_line(point=True)
            .encode(
                x=alt.X("prompt:Q", title="prompt tokens", scale=alt.Scale(type="log", base=2)),
                y=alt.Y(f"{column}:Q", title=title, scale=scale),
                color=alt.Color("series:N", title=None),
                tooltip=[alt.Tooltip(field) for field in ("series:N", "prompt:Q", f"{column}:Q")],
            )
            .properties(width=290, height=280)
        )
    return finish_chart(
        compose.hconcat(*parts, spacing=30),
        "Prefill and decode over the length of the prompt",
        "Medians of repeats",
    )


def parallel_efficiency(rows: pl.DataFrame) -> Any:
    """Speed-up over one device, coloured by grade."""
    if rows.is_empty():
        found = "parallel_efficiency"
        raise nothing(
            found,
            "there is nothing to compare",
            "llmprof.run.experiments.scaling.parallelism(points)",
        )
    rows = rows.with_columns(
        layout=pl.format("TP {} PP {}, {}", "tp", "pp", "phase"),
        tokens=pl.col("batch") * pl.col("prompt"),
    )
    chart = alt.Chart(inline(rows)).mark_point(filled=True, size=80)
    chart = chart.encode(
        x=alt.X("speedup:Q", title="speed-up over one device", scale=alt.Scale(zero=True)),
        y=alt.Y("layout:N", title=None),
        color=alt.Color("grade:N", scale=shades(_GRADES), title="grade"),
        tooltip=tips(
            "layout:N", "prompt:Q", "batch:Q", "out:Q", "speedup:Q", "efficiency:Q", "grade:N"
        ),
    )
    height = 34 * rows["layout"].n_unique()
    return finish_chart(
        chart.properties(width=inner() - 240, height=height),
        "Several devices against one",
        "A point for each workload",
    )


def history(rows: pl.DataFrame, metric: str) -> Any:
    """One metric over the runs of ``watch``."""
    chosen_rows = rows.filter(pl.col("metric") == metric)
    if chosen_rows.is_empty():
        raise nothing(
            "history",
            f"the history has no {metric}",
            "llmprof.run.experiments.history.read_history(path)",
        )
    base = alt.Chart(inline(chosen_rows)).properties(width=inner() - 200, height=220)
    x = alt.X("run:O", title="run")
    points = base.mark_point(color=COMPUTE, opacity=0.5).encode(
        x=x, y=alt.Y("value:Q", title=metric), tooltip=tips("run:O", "value:Q")
    )
    return finish_chart(
        points + base.mark_line(color=COMPUTE).encode(x=x, y=alt.Y("median(value):Q")),
        f"{metric} over the runs",
    )
