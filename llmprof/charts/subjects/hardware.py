"""Charts of experiments: bandwidth, matrix products, links, length and parallelism, history."""

from __future__ import annotations

from typing import Any, Final

import altair as alt
import polars as pl

from llmprof.charts.base import compose
from llmprof.charts.base.draw import inline, nothing, require, tips
from llmprof.charts.base.theme import COMMUNICATION, COMPUTE, finish_chart, inner, shades
from llmprof.text import layout_name

ALGORITHMS: Final = {
    "nccl": "NCCL",
    "nccl_graph": "NCCL in a graph",
    "vllm_custom": "vLLM's own",
    "vllm_custom_graph": "vLLM's own in a graph",
}
"""Ways to reduce over devices, in words; those in a graph are replayed from a CUDA graph."""

_TOKENS: Final = "datum.value % 1024 ? datum.value : datum.value / 1024 + 'k'"
_PHASES: Final = {"decode": "a token", "prefill": "prefill", "whole": "tokens a second"}
_GRADES: Final = {"good": "#009E73", "fair": "#E0A100", "poor": "#B2182B", "unknown": "#9AA5B1"}


def hardware_peaks(memory: pl.DataFrame, matmul: pl.DataFrame) -> Any:
    """Measured memory bandwidth and best matrix products, compared with the vendor's stated
    peaks.
    """
    made = "llmprof.run.experiments.bandwidth.read_bandwidth(path)"
    require(memory, ("kind", "gb_per_s", "peak_gb_per_s"), chart="hardware_peaks", made_by=made)
    if memory.is_empty() and matmul.is_empty():
        raise nothing("hardware_peaks", "nothing was measured", made)
    kind = pl.col("kind").str.replace_all("_", " ")
    slowest = memory.group_by(kind, maintain_order=True).agg(
        pl.min("gb_per_s"), pl.first("peak_gb_per_s")
    )
    rates = matmul.group_by("dtype", maintain_order=True).agg(
        pl.max("tflop_per_s"), pl.first("peak_tflop_per_s")
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
    rows = rows.with_columns(what=pl.format("{} → {}{} ({})", "src", "dst", both, "how"))
    return _by_size(rows, "gb_per_s", "GB/s", "Copies between devices", "what")


def all_reduce_bandwidth(rows: pl.DataFrame) -> Any:
    """Bus bandwidth of the all-reduce by size, for each algorithm."""
    if rows.is_empty():
        raise nothing(
            "all_reduce_bandwidth", "there is no all-reduce on one device", "read_bandwidth(path)"
        )
    names = pl.col("algorithm").replace(ALGORITHMS)
    rows = rows.with_columns(algorithm=names)
    return _by_size(rows, "bus_gbps", "GB/s on the bus", "All-reduce by size", "algorithm")


def _by_size(rows: pl.DataFrame, value: str, title: str, heading: str, by: str) -> Any:
    chart = alt.Chart(inline(rows)).mark_line(point=True)
    sizes = [1 << power for power in range(0, 41, 4)]
    rates = [10.0**power for power in range(-6, 7)]
    chart = chart.encode(
        x=alt.X(
            "bytes:Q",
            title="size of the message",
            scale=alt.Scale(type="log", base=2, nice=False, padding=8),
            axis=alt.Axis(values=_inside(rows["bytes"], sizes), labelExpr=_BYTES),
        ),
        y=alt.Y(
            f"{value}:Q",
            title=title,
            scale=alt.Scale(type="log"),
            axis=alt.Axis(values=_inside(rows[value], rates), format="~g"),
        ),
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


_BYTES: Final = (
    "datum.value < 1024 ? datum.value + ' B' : datum.value < 1048576 ? datum.value / 1024 + ' KiB'"
    " : datum.value < 1073741824 ? datum.value / 1048576 + ' MiB'"
    " : datum.value / 1073741824 + ' GiB'"
)
"""Label of a size on an axis of powers of two."""


def _with_layout(rows: pl.DataFrame) -> pl.DataFrame:
    """Rows with their layout in words."""
    names = [layout_name(*sizes, single="one device") for sizes in rows.select("tp", "pp").rows()]
    return rows.with_columns(layout=pl.Series(names, dtype=pl.String))


def _inside(column: pl.Series, ticks: list[Any]) -> list[Any]:
    """The ticks that an axis of a column needs: those in its range, and one beyond each end."""
    low, high = column.min(), column.max()
    below = [tick for tick in ticks if tick < low]
    return [*below[-1:], *(tick for tick in ticks if low <= tick <= high)]


def length_curves(points: pl.DataFrame) -> Any:
    """Prefill and decode step over the length of the prompt."""
    made = "llmprof.run.experiments.scaling.read_points(path)"
    require(
        points,
        ("tp", "pp", "prompt", "batch", "prefill_s", "decode_step_s"),
        chart="length_curves",
        made_by=made,
    )
    rows = points.filter(pl.col("out") == pl.min("out")).with_columns(
        pl.col("prefill_s", "decode_step_s") * 1e3
    )
    rows = _with_layout(rows)
    lengths = rows["prompt"].unique().sort().to_list()
    parts = []
    for column, title in (("prefill_s", "ms, prefill"), ("decode_step_s", "ms, decode step")):
        scale = alt.Scale(type="log") if column == "prefill_s" else alt.Scale(zero=True)
        base = alt.Chart(inline(rows)).encode(
            x=alt.X(
                "prompt:Q",
                title="prompt tokens",
                scale=alt.Scale(type="log", base=2, nice=False, padding=8),
                axis=alt.Axis(values=lengths, labelExpr=_TOKENS, labelOverlap="greedy"),
            ),
            y=alt.Y(f"{column}:Q", title=title, scale=scale, axis=alt.Axis(tickCount=5)),
            color=alt.Color("layout:N", title="layout"),
            detail="batch:O",
            tooltip=tips("layout:N", "batch:O", "prompt:Q", f"{column}:Q"),
        )
        lines = alt.Legend(symbolType="stroke", symbolStrokeColor="gray", symbolStrokeWidth=2)
        dash = alt.StrokeDash("batch:O", title="requests at once", legend=lines)
        both = base.mark_line().encode(strokeDash=dash) + base.mark_point(filled=True, size=40)
        parts.append(both.properties(width=290, height=280))
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
    phase = pl.col("phase").replace_strict(_PHASES, default=pl.col("phase"))
    rows = rows.sort("devices", "pp", "phase").with_columns(phase=phase)
    rows = _with_layout(rows).with_columns(row=pl.format("{}: {}", "layout", "phase"))
    order = rows["row"].unique(maintain_order=True).to_list()
    height, chart = 30 * len(order), alt.Chart(inline(rows))
    y = alt.Y("row:N", sort=order, title=None)
    points = chart.mark_point(filled=True, size=80).encode(
        x=alt.X("speedup:Q", title="times as fast as one device", scale=alt.Scale(zero=True)),
        y=y,
        color=alt.Color("grade:N", scale=shades(_GRADES), title="grade"),
        tooltip=tips(
            *("row:N", "prompt:Q", "batch:Q", "out:Q"),
            *("speedup:Q", "speedup_low:Q", "speedup_high:Q", "efficiency:Q", "grade:N"),
        ),
    )
    devices = chart.mark_tick(color=COMMUNICATION, thickness=3, height=22).encode(
        x="devices:Q", y=y
    )
    single = alt.Chart(inline(pl.DataFrame({"one": [1]}))).mark_rule(strokeDash=[4, 3])
    return finish_chart(
        (single.encode(x="one:Q") + devices.encode(x="devices:Q", y=y) + points).properties(
            width=inner() - 240, height=height
        ),
        "Several devices against one",
        "A point for each workload; dashed: one device; ticks: as many replicas as devices",
    )


def history(rows: pl.DataFrame, metric: str) -> Any:
    """One metric over the runs of ``watch``."""
    chosen_rows = rows.filter(metric=metric)
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
