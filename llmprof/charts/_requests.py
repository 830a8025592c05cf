"""Requests: their latencies, without and under the profiler."""

from __future__ import annotations

import altair as alt
import polars as pl

from llmprof.charts._data import inline, nothing, number, require
from llmprof.charts._histogram import log_ticks
from llmprof.charts._palette import COMPUTE, INK
from llmprof.charts._theme import (
    NUMBER,
    PADDING,
    TEXT_PX,
    WIDTH,
    colour,
    finish,
    layered,
    row_axis,
    text_px,
    time_unit,
)
from llmprof.units import format_ns

_SOURCE = "llmprof.launch.metrics.summarize(run.metrics)"
_COLUMNS = ("phase", "metric", "mean", "p50", "p99", "n")
LATENCIES = {
    "ttft_ns": "time to first token",
    "tpot_ns": "time per output token",
    "itl_ns": "inter-token latency",
    "queue_ns": "queue",
    "prefill_ns": "prefill",
    "decode_ns": "decode",
    "e2e_ns": "end to end",
}
"""Metrics of a request in the order of the chart, and what they are called."""

_PHASES = {"plain": ("without profiler", COMPUTE), "profiled": ("under the profiler", "#D55E00")}
_ROW = 42


def requests(frame: pl.DataFrame, *, title: str | None = None) -> alt.VConcatChart:
    """Median and 99th percentile of each latency, without and under the profiler.

    Parameters
    ----------
    frame : polars.DataFrame
        Rows of ``launch.metrics.summarize(run.metrics)``.
    title : str, optional
        Title instead of the one that says what is shown.

    Returns
    -------
    altair.VConcatChart
        900 px wide; the axis of time is logarithmic.

    Raises
    ------
    AnalysisError
        A column is missing, or the engine told no latency.
    """
    require(frame, _COLUMNS, chart="requests", made_by=_SOURCE)
    chart = requests_panel(frame, WIDTH - 2 * PADDING - 8)
    if chart is None:
        raise nothing("requests", "the engine told no latency of a request", _SOURCE)
    shown = frame.filter(pl.col("metric").is_in(list(LATENCIES)))
    words = [
        f"{name} {format_ns(number(rows['p50'][0]))}"
        for metric, name in (("ttft_ns", "first token"), ("tpot_ns", "each further one"), ("e2e_ns", "end to end"))
        if (rows := shown.filter(metric=metric).sort("phase")).height
    ]
    head = f"Median latencies: {', '.join(words)}" if words else "Latencies of the requests"
    counts = ", ".join(
        f"{number(rows['n'].min()):,.0f} requests {name}"
        for phase, (name, _) in _PHASES.items()
        if (rows := shown.filter((pl.col("phase") == phase) & (pl.col("metric") != "itl_ns"))).height
    )
    done = finish(alt.vconcat(chart), title or head, f"Dot: median; line: to the 99th percentile. {counts}.")
    done["title"]["frame"] = "bounds"
    return done


def requests_panel(frame: pl.DataFrame, width: int) -> alt.LayerChart | None:
    """Dots and lines of the latencies; None where there are none above zero."""
    rows = frame.filter(
        pl.col("metric").is_in(list(LATENCIES)) & pl.col("phase").is_in(list(_PHASES)) & (pl.col("p50") > 0)
    )
    if rows.is_empty():
        return None
    names = [name for metric, name in LATENCIES.items() if metric in rows["metric"].to_list()]
    table = {name: fill for phase, (name, fill) in _PHASES.items() if phase in rows["phase"].to_list()}
    unit = time_unit(number(rows["p50"].median()))
    data = rows.select(
        row=pl.col("metric").replace_strict(LATENCIES, return_dtype=pl.String),
        part=pl.col("phase").replace_strict({p: n for p, (n, _) in _PHASES.items()}, return_dtype=pl.String),
        middle=pl.col("p50") / unit.ns,
        high=pl.max_horizontal("p50", "p99") / unit.ns,
        label=pl.col("p50").map_elements(format_ns, return_dtype=pl.String),
    )
    across = width - 20 - round(max(text_px(name, TEXT_PX) for name in names))
    low, high = number(data["middle"].min()) / 1.6, number(data["high"].max()) * 2.2
    scale = alt.Scale(type="log", domain=[low, high], nice=False)
    axis = alt.Axis(title=f"time ({unit.symbol}, log scale)", format=NUMBER, values=log_ticks(low, high))
    x, y, shade = alt.X("middle:Q", scale=scale, axis=axis), row_axis(names), colour("part", table)
    shade["legend"]["symbolOpacity"] = 1
    shade["legend"]["symbolType"] = "circle"
    shift = alt.YOffset("part:N", sort=None, scale=alt.Scale(domain=list(table), paddingOuter=0.3))
    tips = [alt.Tooltip("row:N"), alt.Tooltip("part:N"), alt.Tooltip("label:N", title="median")]
    base = alt.Chart(inline(data))
    lines = base.mark_rule(strokeWidth=3, opacity=0.5).encode(x=x, x2="high:Q", y=y, yOffset=shift, color=shade)
    dots = base.mark_circle(size=80, opacity=1).encode(x=x, y=y, yOffset=shift, color=shade, tooltip=tips)
    texts = base.mark_text(align="left", baseline="middle", dx=8, color=INK)
    labels = texts.encode(x=alt.X("high:Q", scale=scale), y=y, yOffset=shift, text="label:N")
    return layered(lines, dots, labels).properties(width=across, height=_ROW * len(names))
