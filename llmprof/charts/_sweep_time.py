"""Where the time went at each point of a sweep."""

from __future__ import annotations

import altair as alt
import polars as pl

from llmprof.charts._bars import stacked_bars
from llmprof.charts._data import nothing, number, require
from llmprof.charts._overlap import PARTS
from llmprof.charts._palette import PHASES
from llmprof.charts._theme import (
    PADDING,
    TEXT_PX,
    WIDTH,
    finish,
    heading,
    layered,
    percent,
    shorten,
    text_px,
    time_unit,
)

_SOURCE = "llmprof.BatchRunner(config).run_parameter_sweep(...).where"
_COLUMNS = ("point", "label", "phase", "part", "ns", "steps", "ranks")
_ROW, _MAX_NAME = 28, 44
MAX_POINTS = 40


def sweep_time(frame: pl.DataFrame, *, title: str | None = None) -> alt.VConcatChart:
    """Bars of one step at each point: compute, communication, copies and idle time, a panel a phase.

    Parameters
    ----------
    frame : polars.DataFrame
        ``sweep.where``.
    title : str, optional
        Title instead of the one that says what is shown.

    Returns
    -------
    altair.VConcatChart
        900 px wide; each phase has an axis of time of its own. At most 40 points.

    Raises
    ------
    AnalysisError
        A column is missing, or all times are zero.
    """
    require(frame, _COLUMNS, chart="sweep_time", made_by=_SOURCE)
    each = pl.col("ns") / (pl.col("steps") * pl.col("ranks"))
    points = frame["point"].unique().sort().head(MAX_POINTS)
    shown = pl.col("point").is_in(points.implode()) & pl.col("part").is_in(list(PARTS)) & (pl.col("steps") > 0)
    rows = frame.filter(shown).with_columns(
        ns=each, row=pl.col("label").map_elements(lambda text: shorten(text, _MAX_NAME), return_dtype=pl.String)
    )
    if not number(rows["ns"].sum()) > 0:
        raise nothing("sweep_time", "the times add up to zero", _SOURCE)
    places = {name: i for i, name in enumerate(PHASES)}
    phases = sorted(rows["phase"].unique(), key=lambda phase: (places.get(phase, len(places)), phase))
    table = {name: fill for name, fill in PARTS.items() if number(rows.filter(part=name)["ns"].sum()) > 0}
    width = WIDTH - 2 * PADDING - 20 - round(max(text_px(row, TEXT_PX) for row in rows["row"]))
    panels = []
    for phase in phases:
        part = rows.filter(phase=phase).sort("point").select("row", "part", "ns")
        unit = time_unit(number(part.group_by("row").agg(pl.col("ns").sum())["ns"].max()))
        bars = layered(*stacked_bars(part, table, width=width, title="time of one step", unit=unit))
        panels.append(bars.properties(width=width, height=_ROW * part["row"].n_unique(), title=heading(phase)))
    notes = ["Mean over the ranks and steps of a phase, under the profiler. Time between steps is not in it."]
    if frame["point"].n_unique() > len(points):
        notes.append(f"The first {len(points)} of {frame['point'].n_unique()} points are shown.")
    done = finish(alt.vconcat(*panels, spacing=20), title or _headline(rows, phases), notes)
    done["title"]["frame"] = "bounds"
    return done


def _headline(rows: pl.DataFrame, phases: list[str]) -> str:
    phase = "decode" if "decode" in phases else phases[-1]
    steps = rows.filter(phase=phase)
    total = pl.col("ns").sum().over("point")
    idle = steps.with_columns(share=100 * pl.col("ns") / total).filter(part="idle").sort("point")
    if idle.is_empty():
        return "Where the time of a step goes at each point"
    low, high = idle.sort("share").row(0, named=True), idle.sort("share").row(-1, named=True)
    if low["point"] == high["point"] or percent(low["share"]) == percent(high["share"]):
        return f"Idle for {percent(high['share'])} of a {phase} step at every point"
    least, most = f"{percent(low['share'])} of a {phase} step at {low['row']}", percent(high["share"])
    return f"Idle for {least}, for {most} at {high['row']}"
