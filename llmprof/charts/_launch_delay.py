"""Launch delay: how far the host is ahead of the device, step by step."""

from __future__ import annotations

import altair as alt
import polars as pl

from llmprof.charts._data import inline, nothing, number, ranks_shown, require
from llmprof.charts._histogram import log_ticks
from llmprof.charts._palette import COMPUTE
from llmprof.charts._theme import (
    NUMBER,
    PADDING,
    WIDTH,
    Unit,
    beside,
    colour,
    finish,
    layered,
    percent,
    spread,
    time_unit,
)
from llmprof.units import format_ns

_SOURCE = "llmprof.analyze.launch_delay(trace)"
_COLUMNS = ("rank", "step", "median_ns", "p95_ns", "max_ns", "min_ns")
MAX_RANKS = 16
_SPACE, _LOG_RATIO = 26, 30
_TABLE = {"median": COMPUTE, "least to 95th percentile": "#A9CBE3"}


def launch_delay(frame: pl.DataFrame, *, title: str | None = None) -> alt.VConcatChart:
    """Time from the host's launch call to the start of the kernel over the steps, a panel a rank.

    Parameters
    ----------
    frame : polars.DataFrame
        Rows of ``launch_delay(trace)``; those outside steps are left out.
    title : str, optional
        Title instead of the one that says what is shown.

    Returns
    -------
    altair.VConcatChart
        900 px wide; one scale of time for all ranks.

    Raises
    ------
    AnalysisError
        A column is missing, or no step has a launch.
    """
    require(frame, _COLUMNS, chart="launch_delay", made_by=_SOURCE)
    rows, ranks, left_out = ranks_shown(frame.drop_nulls(["step", "median_ns"]), MAX_RANKS)
    if rows.is_empty():
        raise nothing("launch_delay", "no step has a kernel whose launch was captured", _SOURCE)
    unit = time_unit(number(rows["median_ns"].max()))
    measures = (pl.col(f"{name}_ns").truediv(unit.ns).alias(name) for name in ("median", "p95", "min"))
    data = rows.select("rank", "step", *measures)
    medians = rows.group_by("rank").agg(pl.col("median_ns").median())["median_ns"]
    scale, axis = _scale(data, unit, number(medians.max()) / max(1.0, number(medians.min())))
    quiet = alt.Axis(title=None, labels=False, ticks=False, domain=False, values=axis.values)
    across = min(4, len(ranks))
    plot = (WIDTH - 2 * PADDING - 64 + _SPACE) // across - _SPACE
    panels = []
    for i, rank in enumerate(ranks):
        y, title_x = (axis if i % across == 0 else quiet), ("step" if i + across >= len(ranks) else None)
        panels.append(_panel(data.filter(rank=rank), alt.Y("min:Q", axis=y, scale=scale), plot, title_x, rank))
    lines = [
        alt.hconcat(*panels[i : i + across], spacing=_SPACE, bounds="flush") for i in range(0, len(panels), across)
    ]
    between = spread(format_ns(number(medians.min())), format_ns(number(medians.max())))
    who = "median, by rank" if len(ranks) > 1 else "median"
    notes = ["A long delay: the host is ahead and work is queued. A few us: the device waits for the host."]
    if "share_launched" in rows.columns and (share := number(rows["share_launched"].mean())) < 0.995:
        notes.append(f"Of the kernels in these steps {percent(100 * share)} have a launch in the capture.")
    text = title or f"A kernel starts {between} after its launch call ({who})"
    return finish(alt.vconcat(*lines, spacing=30), text, [*notes, left_out])


def _scale(data: pl.DataFrame, unit: Unit, ratio: float) -> tuple[alt.Scale, alt.Axis]:
    """Vertical scale of all panels; logarithmic where the ranks are worlds apart."""
    low, high = number(data["min"].min()), number(data["p95"].max())
    if low > 0 and ratio > _LOG_RATIO:
        low, high = low / 1.3, high * 1.3
        ticks = log_ticks(low, high)
        axis = alt.Axis(title=f"launch to start ({unit.symbol}, log scale)", format=NUMBER, values=ticks)
        return alt.Scale(type="log", domain=[low, high], nice=False), axis
    axis = alt.Axis(title=f"launch to start ({unit.symbol})", format=NUMBER, tickCount=5)
    return alt.Scale(domain=[min(0.0, low), high], nice=True), axis


def _panel(data: pl.DataFrame, y: alt.Y, plot: int, title_x: str | None, rank: int) -> alt.LayerChart:
    axis = alt.Axis(title=title_x, format="d", tickMinStep=1, tickCount=5, grid=False)
    x = alt.X("step:Q", axis=axis, scale=alt.Scale(nice=False, zero=False, padding=12))
    tips = [alt.Tooltip("step:Q"), *(alt.Tooltip(f"{name}:Q", format=",.4~r") for name in ("min", "median", "p95"))]
    shade = colour("part", _TABLE)
    bars = data.select("step", "min", "p95", part=pl.lit(list(_TABLE)[1]))
    middle = data.select("step", "min", "median", "p95", part=pl.lit("median"))
    size = max(6.0, min(32.0, 700 / data.height))
    thick = max(1.5, min(8.0, plot / data.height * 0.45))
    band = alt.Chart(inline(bars)).mark_rule(strokeWidth=thick).encode(x=x, y=y, y2="p95:Q", color=shade)
    line = alt.Chart(inline(middle)).mark_line(point=alt.OverlayMarkDef(size=size), strokeWidth=2)
    drawn = line.encode(x=x, y=alt.Y("median:Q"), color=shade, tooltip=tips)
    return layered(band, drawn, beside(f"rank {rank}")).properties(width=plot, height=180)
