"""Counters: what the monitors sampled beside a run."""

from __future__ import annotations

import altair as alt
import polars as pl

from llmprof.charts._data import inline, nothing, number, require
from llmprof.charts._palette import CAUSES, COMPUTE
from llmprof.charts._theme import NUMBER, PADDING, WIDTH, beside, colour, finish, layered
from llmprof.units import NS_PER_S

_SOURCE = "trace.counters of a run with monitor_hz"
_COLUMNS = ("time_ns", "name", "value", "unit")
_SPACE, _HEIGHT, _MOST_PANELS, _MOST_POINTS = 30, 92, 12, 400
_LINES = (COMPUTE, "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#8B6F47", CAUSES["sync"], "#B2182B")
_FIRST = (
    "gpu.utilization", "gpu.memory_used", "gpu.power", "gpu.sm_clock", "gpu.temperature", "run.cpu", "run.memory",
    "cpu.utilization", "memory.used",
)  # fmt: skip
_SCALES = {"B": (2**30, "GiB"), "bytes": (2**30, "GiB"), "B/s": (2**20, "MiB/s"), "Hz": (1e6, "MHz"), "W": (1, "W")}


def counters(frame: pl.DataFrame, *, title: str | None = None) -> alt.VConcatChart:
    """A small panel for each counter over the time of the run, a line a device.

    Parameters
    ----------
    frame : polars.DataFrame
        Counters of a trace; those that never change from zero are left out.
    title : str, optional
        Title instead of the one that says what is shown.

    Returns
    -------
    altair.VConcatChart
        900 px wide; time begins with the trace, what is before it is negative.

    Raises
    ------
    AnalysisError
        A column is missing, or there is no sample.
    """
    require(frame, _COLUMNS, chart="counters", made_by=_SOURCE)
    chart, left = counters_panel(frame, WIDTH - 2 * PADDING)
    if chart is None:
        raise nothing("counters", "all counters stay at zero", _SOURCE)
    seconds = (number(frame["time_ns"].max()) - number(frame["time_ns"].min())) / NS_PER_S
    head = f"{frame['name'].n_unique()} counters over {seconds:,.1f} s around the trace"
    notes = ["Time 0 is the start of the trace."]
    if left:
        notes.append(f"Not shown: {', '.join(left)}.")
    return finish(chart, title or head, " ".join(notes))


def counters_panel(
    frame: pl.DataFrame, width: int, most: int = _MOST_PANELS
) -> tuple[alt.VConcatChart | None, list[str]]:
    """Panels side by side, and the names of the counters that were left out."""
    known = frame.filter(pl.col("value").is_finite())
    moving = known.group_by("name", maintain_order=True).agg(most=pl.col("value").abs().max())
    names = sorted(moving.filter(pl.col("most") > 0)["name"].to_list(), key=_place)
    if not names:
        return None, []
    shown, left = names[:most], names[most:]
    across = 3 if len(shown) > 4 else min(2, len(shown))
    plot = (width + _SPACE) // across - _SPACE - 46
    low, high = (number(known["time_ns"].min()) / NS_PER_S, number(known["time_ns"].max()) / NS_PER_S)
    lines = known.select(_line(known)).to_series().unique().sort().to_list()
    table = {line: _LINES[i % len(_LINES)] for i, line in enumerate(lines)}
    panels = []
    for i, name in enumerate(shown):
        last = i + across >= len(shown)
        rows = known.filter(name=name).with_columns(line=_line(known))
        panels.append(_panel(rows, plot, (low, max(high, low + 0.1)), table, axis=last))
    grid = [alt.hconcat(*panels[i : i + across], spacing=_SPACE) for i in range(0, len(panels), across)]
    return alt.vconcat(*grid, spacing=18), left


def _panel(
    rows: pl.DataFrame, plot: int, domain: tuple[float, float], table: dict[str, str], *, axis: bool
) -> alt.LayerChart:
    unit = str(rows["unit"][0] or "")
    size, symbol = _SCALES.get(unit, (1, unit))
    every = -(-rows.height // (_MOST_POINTS * rows["line"].n_unique()))
    thinned = rows.sort("line", "time_ns").filter(pl.int_range(pl.len()).over("line") % every == 0)
    data = thinned.select("line", time=pl.col("time_ns") / NS_PER_S, value=pl.col("value") / size)
    top = number(data["value"].max())
    ends = [0, 100] if unit == "%" else [min(0.0, number(data["value"].min())), top * 1.1 or 1]
    x_axis = alt.Axis(title="s" if axis else None, labels=axis, ticks=axis, tickCount=4, format=NUMBER, grid=False)
    x = alt.X("time:Q", scale=alt.Scale(domain=list(domain), nice=False), axis=x_axis)
    y = alt.Y(
        "value:Q",
        scale=alt.Scale(domain=ends, nice=False),
        axis=alt.Axis(title=None, tickCount=3, format=NUMBER, minExtent=34),
    )
    shade = colour("line", table)
    if len(table) > 1:
        shade["legend"]["symbolType"], shade["legend"]["symbolStrokeWidth"] = "stroke", 3
    else:
        shade["legend"] = None
    tips = [alt.Tooltip("line:N"), alt.Tooltip("time:Q", format=".2f"), alt.Tooltip("value:Q", format=",.4~r")]
    line = alt.Chart(inline(data)).mark_line(strokeWidth=1.6, point=data.height < 8)
    name = f"{rows['name'][0]}{f' ({symbol})' if symbol else ''}"
    return layered(line.encode(x=x, y=y, color=shade, tooltip=tips), beside(name)).properties(
        width=plot, height=_HEIGHT
    )


def _place(name: str) -> tuple[int, str]:
    """What tells most comes first."""
    return (_FIRST.index(name) if name in _FIRST else len(_FIRST), name)


def _line(rows: pl.DataFrame) -> pl.Expr:
    if "device" not in rows.columns:
        return pl.lit("host").alias("line")
    device = pl.format("device {}", pl.col("device"))
    return pl.when(pl.col("device").is_null()).then(pl.lit("host")).otherwise(device).alias("line")
