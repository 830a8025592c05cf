"""Counters: what the monitors sampled beside a run."""

from __future__ import annotations

import altair as alt
import polars as pl

from llmprof.charts._counter_rows import Scale, condense, headline, lines_of, panels_of, scale_of, throttled
from llmprof.charts._data import constant, inline, nothing, number, require
from llmprof.charts._palette import CAUSES, COMPUTE, MUTED
from llmprof.charts._theme import NUMBER, PADDING, WIDTH, beside, colour, finish, layered
from llmprof.units import NS_PER_S

_SOURCE = "trace.counters of a run with monitor_hz, or of a monitor's file"
_COLUMNS = ("time_ns", "name", "value", "unit")
_SPACE, _AXIS, _HEIGHT, _MOST_PANELS = 26, 44, 92, 15
_LINES = (COMPUTE, "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#8B6F47", CAUSES["sync"], "#B2182B")


def counters(frame: pl.DataFrame, *, title: str | None = None) -> alt.VConcatChart:
    """A small panel for each counter over the time of the run, a line a device.

    Parameters
    ----------
    frame : polars.DataFrame
        Counters of a trace. Those that are always zero, and those beyond the first 15, are named below the title
        instead.
    title : str, optional
        Title instead of the one that says what is shown.

    Returns
    -------
    altair.VConcatChart
        900 px wide; one axis of time for all panels, on which 0 is the start of the trace. Where there are more
        samples than pixels, lines are means and a band goes from the least to the greatest value.

    Raises
    ------
    AnalysisError
        A column is missing, or there is nothing but zeros.
    """
    require(frame, _COLUMNS, chart="counters", made_by=_SOURCE)
    chart, left = counters_panel(frame, WIDTH - 2 * PADDING)
    if chart is None:
        raise nothing("counters", "all counters stay at zero", _SOURCE)
    start = (
        "; the dashed line is the start of the trace, before it the engine gets ready"
        if number(frame["time_ns"].min()) < 0
        else ""
    )
    notes = [f"{frame.height:,} samples{start}."]
    if slowed := throttled(frame):
        notes.append(f"The clocks were held back by {slowed}.")
    moving = frame.filter(pl.col("value") != 0)["name"]
    if still := sorted(set(frame["name"].unique()) - set(moving.unique())):
        notes.append(f"Always zero: {', '.join(still)}.")
    if left:
        notes.append(f"Not shown: {', '.join(left)}.")
    return finish(chart, title or headline(frame), notes)


def counters_panel(
    frame: pl.DataFrame, width: int, most: int = _MOST_PANELS
) -> tuple[alt.VConcatChart | None, list[str]]:
    """Panels side by side, and the names of the counters that were left out."""
    names = panels_of(frame)
    if not names:
        return None, []
    shown, left = names[:most], names[most:]
    rows = lines_of(frame.filter(pl.col("name").is_in(shown)))
    low, high = number(rows["time_ns"].min()) / NS_PER_S, number(rows["time_ns"].max()) / NS_PER_S
    domain = (low, max(high, low + 0.1))
    table = {line: _LINES[i % len(_LINES)] for i, line in enumerate(rows["line"].unique(maintain_order=True))}
    across = 3 if len(shown) > 4 else min(2, len(shown))
    plot = (width + _SPACE) // across - _SPACE - _AXIS
    panels = []
    for i, name in enumerate(shown):
        bottom = i + across >= len(shown)
        panels.append(_panel(rows.filter(name=name), plot, domain, table, bottom=bottom))
    grid = [
        alt.hconcat(*panels[i : i + across], spacing=_SPACE + _AXIS, bounds="flush")
        for i in range(0, len(panels), across)
    ]
    return alt.vconcat(*grid, spacing=24), left


def _panel(
    rows: pl.DataFrame, plot: int, domain: tuple[float, float], table: dict[str, str], *, bottom: bool
) -> alt.LayerChart:
    scale = scale_of(rows)
    data = condense(rows, plot).with_columns(pl.col("low", "mean", "high") / scale.size)
    title = "time (s)" if bottom else None
    x_axis = alt.Axis(title=title, labels=bottom, ticks=bottom, tickCount=4, format=NUMBER, grid=False)
    x = alt.X("time:Q", scale=alt.Scale(domain=list(domain), nice=False), axis=x_axis)
    ends, y_axis = _ends(data, scale)
    y_scale = alt.Scale(domain=list(ends), nice=False)
    shade = colour("line", table)
    if len(table) > 1:
        for key, value in {"symbolType": "stroke", "symbolStrokeWidth": 3, "symbolOpacity": 1}.items():
            shade["legend"][key] = value
    else:
        shade["legend"] = None
    marks = []
    if domain[0] < 0 < domain[1]:
        rule = alt.Chart(constant({"time": 0})).mark_rule(color=MUTED, strokeDash=[3, 3], strokeWidth=1)
        marks.append(rule.encode(x=x))
    if not data["low"].equals(data["high"]):
        low = alt.Y("low:Q", scale=y_scale, axis=y_axis)
        band = alt.Chart(inline(data)).mark_area(opacity=0.25)
        marks.append(band.encode(x=x, y=low, y2="high:Q", color=shade))
    tips = [alt.Tooltip(f"{field}:Q", format=",.4~r") for field in ("time", "low", "mean", "high")]
    mean = alt.Y("mean:Q", scale=y_scale, axis=y_axis)
    line = alt.Chart(inline(data)).mark_line(
        strokeWidth=1.6, point=data.height < 8, interpolate="step-after" if scale.switch else "linear"
    )
    marks.append(line.encode(x=x, y=mean, color=shade, tooltip=[alt.Tooltip("line:N"), *tips]))
    return layered(*marks, beside(scale.title)).properties(width=plot, height=_HEIGHT)


def _ends(data: pl.DataFrame, scale: Scale) -> tuple[tuple[float, float], alt.Axis]:
    """Ends of the vertical axis, and the axis; shares go to 100 %, switches are on or off."""
    if scale.switch:
        return (-0.05, 1.05), alt.Axis(title=None, values=[0, 1], format=NUMBER, minExtent=_AXIS - 8)
    low, high = number(data["low"].min()), number(data["high"].max())
    if scale.percent and low >= 0 and high <= 100:
        return (0.0, 100.0), alt.Axis(title=None, values=[0, 50, 100], format=NUMBER, minExtent=_AXIS - 8)
    return (min(0.0, 1.1 * low), 1.1 * high or 1.0), alt.Axis(
        title=None, tickCount=3, format=NUMBER, minExtent=_AXIS - 8
    )
