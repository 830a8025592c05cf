"""Overlap: compute, communication behind it and beside it, copies and idle time of each rank."""

from __future__ import annotations

import altair as alt
import polars as pl

from llmprof.charts.base.bars import stacked_bars
from llmprof.charts.base.data import nothing, number, require
from llmprof.charts.base.theme import (
    COMMUNICATION,
    COMPUTE,
    COPY,
    HIDDEN,
    IDLE,
    PADDING,
    PHASES,
    WIDTH,
    finish,
    heading,
    layered,
    percent,
    spread,
    time_unit,
)

_SOURCE = "llmprof.analyze.overlap(trace)"
_COLUMNS = (
    "rank",
    "total_ns",
    "compute_ns",
    "exposed_communication_ns",
    "hidden_communication_ns",
    "exposed_copy_ns",
    "idle_ns",
)
PARTS: dict[str, str] = {
    "compute": COMPUTE,
    "hidden communication": HIDDEN,
    "exposed communication": COMMUNICATION,
    "exposed copy": COPY,
    "idle": IDLE,
}
"""Parts of a bar in order, and their colours."""

_PLOT = WIDTH - 2 * PADDING - 76
_ROW = 34


def overlap(frame: pl.DataFrame, *, title: str | None = None) -> alt.VConcatChart:
    """Bars of each rank: compute alone, hidden communication, exposed communication, exposed copies, idle.

    The parts of a bar add up to its total. Steps of a rank are added up; a frame with phases gets a panel for each.

    Parameters
    ----------
    frame : polars.DataFrame
        Rows of ``overlap(trace)``, by rank and, if wanted, step or phase.
    title : str, optional
        Title instead of the one that says what is shown.

    Returns
    -------
    altair.VConcatChart
        900 px wide. Each phase has a time axis of its own, all in one unit.

    Raises
    ------
    AnalysisError
        A column is missing, or all totals are zero.

    Examples
    --------
    >>> chart = charts.overlap(analyze.overlap(trace, by=("rank",)))
    """
    require(frame, _COLUMNS, chart="overlap", made_by=_SOURCE)
    phase = pl.col("phase").fill_null("no phase") if "phase" in frame.columns else pl.lit("")
    sums = frame.group_by("rank", phase=phase).agg(pl.col(_COLUMNS[1:]).sum()).filter(pl.col("total_ns") > 0)
    if sums.is_empty():
        raise nothing("overlap", "the totals are zero", _SOURCE)
    unit = time_unit(number(sums["total_ns"].max()))
    parts = _parts(sums.sort("rank"))
    phases = sorted(sums["phase"].unique(), key=_phase_order)
    panels = []
    for name in phases:
        rows = parts.filter(phase=name)
        axis = "device time" if name == phases[-1] else None
        panel = layered(*stacked_bars(rows, PARTS, width=_PLOT, title=axis, unit=unit))
        panel = panel.properties(width=_PLOT, height=_ROW * rows["row"].n_unique())
        panels.append(panel.properties(title=heading(name)) if name else panel)
    notes = ["Communication is hidden while compute runs beside it, and exposed while it does not."]
    if "step" in frame.columns:
        notes.append("Steps are added up, without the time between them.")
    if frame["exposed_copy_ns"].null_count() == frame.height:
        notes.append("Copies were not captured.")
    return finish(alt.vconcat(*panels, spacing=14), title or _headline(sums), notes)


def _phase_order(phase: str) -> tuple[int, str]:
    return (list(PHASES).index(phase) if phase in PHASES else len(PHASES), phase)


def _parts(sums: pl.DataFrame) -> pl.DataFrame:
    """The wide frame made long: ``phase, row, part, ns``."""
    hidden = pl.col("hidden_communication_ns")
    wide = sums.select(
        "phase",
        (pl.col("compute_ns") - hidden).alias("compute"),
        hidden.alias("hidden communication"),
        pl.col("exposed_communication_ns").alias("exposed communication"),
        pl.col("exposed_copy_ns").alias("exposed copy"),
        pl.col("idle_ns").alias("idle"),
        row=pl.format("rank {}", "rank"),
    )
    return wide.unpivot(list(PARTS), index=["phase", "row"], variable_name="part", value_name="ns")


def _headline(sums: pl.DataFrame) -> str:
    """Exposed communication and idle time, as the range over the ranks."""
    by_rank = sums.group_by("rank").agg(pl.col(_COLUMNS[1:]).sum())
    words = []
    for column, name in (("exposed_communication_ns", "exposed communication"), ("idle_ns", "idle")):
        shares = 100 * by_rank[column] / by_rank["total_ns"]
        words.append(f"{name} {spread(percent(number(shares.min())), percent(number(shares.max())))}")
    whose = "a rank's time" if by_rank.height > 1 else f"the time of rank {by_rank['rank'][0]}"
    return f"Of {whose}: {words[0]}, {words[1]}"
