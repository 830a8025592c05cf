"""Idle time of the device: by cause and rank, and how long the gaps are."""

from __future__ import annotations

import altair as alt
import polars as pl

from llmprof.charts._bars import stacked_bars
from llmprof.charts._data import inline, nothing, number, require
from llmprof.charts._histogram import domain_of, log_axis, log_bins, log_unit
from llmprof.charts._palette import colours
from llmprof.charts._theme import (
    NUMBER,
    PADDING,
    WIDTH,
    Unit,
    beside,
    colour,
    finish,
    heading,
    layered,
    percent,
    spread,
    time_unit,
)
from llmprof.units import format_ns

_SOURCE = "llmprof.analyze.idle(trace)"
_MEANING = {
    "host_bound": "the host launched the next kernel too late",
    "sync": "the host was waiting in a synchronising call",
    "queued": "launched in time, started later",
    "unknown": "the launch was not captured",
}
_PLOT, _SPACE = WIDTH - 2 * PADDING - 76, 80


def idle(frame: pl.DataFrame, *, title: str | None = None) -> alt.VConcatChart:
    """Idle time of each rank by cause, and the gaps by length: how many, and how much time they hold.

    Parameters
    ----------
    frame : polars.DataFrame
        Rows of ``idle(trace)``: gaps in which no stream of a device ran anything.
    title : str, optional
        Title instead of the one that says what is shown.

    Returns
    -------
    altair.VConcatChart
        900 px wide.

    Raises
    ------
    AnalysisError
        A column is missing, or there is no gap.
    """
    require(frame, ("rank", "dur_ns", "cause"), chart="idle", made_by=_SOURCE)
    rows = frame.filter(pl.col("dur_ns") > 0).with_columns(pl.col("cause").fill_null("unknown"))
    if rows.is_empty():
        raise nothing("idle", "no gap is longer than zero", _SOURCE)
    palette = colours("cause", rows["cause"].unique())
    sums = rows.group_by("rank", part="cause").agg(ns=pl.col("dur_ns").sum(), gaps=pl.len()).sort("rank")
    sums = sums.with_columns(row=pl.format("rank {}", "rank"))
    bars = layered(*stacked_bars(sums, palette, width=_PLOT, title="idle time", extra=("gaps",)))
    height = 34 * sums["row"].n_unique()
    by_rank = bars.properties(width=_PLOT, height=height, title=heading("By cause and rank"))
    meanings = "; ".join(f"{cause}: {_MEANING[cause]}" for cause in palette if cause in _MEANING)
    notes = ["A gap counts when no stream of the device runs anything.", f"{meanings}."]
    chart = alt.vconcat(by_rank, _lengths(rows, palette), spacing=36)
    return finish(chart, title or _headline(rows), notes)


def _headline(rows: pl.DataFrame) -> str:
    causes = rows.group_by("cause").agg(pl.col("dur_ns").sum()).sort("dur_ns", "cause", descending=[True, False])
    ranks = rows.group_by("rank").agg(pl.col("dur_ns").sum())["dur_ns"]
    figures = spread(format_ns(number(ranks.min())), format_ns(number(ranks.max())))
    cause, longest = causes.row(0)
    share = percent(100 * longest / number(ranks.sum()))
    return f"The device is idle for {figures}{' a rank' if ranks.len() > 1 else ''}; {share} of that is {cause}"


def _lengths(rows: pl.DataFrame, palette: dict[str, str]) -> alt.HConcatChart:
    """Gaps by length on one axis: their number, and their time."""
    unit, total = log_unit(rows["dur_ns"]), time_unit(number(rows["dur_ns"].sum()))
    places = {cause: i for i, cause in enumerate(palette)}
    bins = log_bins(rows, "dur_ns", unit, by="cause", per_decade=12).with_columns(time=pl.col("sum_ns") / total.ns)
    bins = bins.sort("start", pl.col("cause").replace_strict(places, return_dtype=pl.Int64))
    many = _columns(bins, "n", "gaps", unit=unit, palette=palette, title="Number of gaps")
    axis = f"time ({total.symbol})"
    long = _columns(bins, "time", axis, unit=unit, palette=palette, title="Time in gaps of that length")
    return alt.hconcat(many, long, spacing=_SPACE, bounds="flush")


def _columns(
    bins: pl.DataFrame, field: str, axis: str, *, unit: Unit, palette: dict[str, str], title: str
) -> alt.LayerChart:
    upper = pl.col(field).cum_sum().over("start")
    stacked = bins.with_columns(bottom=upper - pl.col(field), top=upper)
    x = log_axis(domain_of(bins), f"length of the gap ({unit.symbol}, log scale)")
    y = alt.Y("bottom:Q", axis=alt.Axis(title=axis, format=NUMBER, tickCount=4))
    tips = [
        alt.Tooltip("cause:N"),
        alt.Tooltip("start:Q", title=f"from ({unit.symbol})", format=",.4~r"),
        alt.Tooltip("end:Q", title=f"to ({unit.symbol})", format=",.4~r"),
        alt.Tooltip(f"{field}:Q", title=axis, format=",.4~r"),
    ]
    bars = alt.Chart(inline(stacked)).mark_rect(stroke="#FFFFFF", strokeWidth=0.5)
    drawn = bars.encode(x=x, x2="end:Q", y=y, y2="top:Q", color=colour("cause", palette), tooltip=tips)
    return layered(drawn, beside(title)).properties(width=(_PLOT - _SPACE) // 2, height=150)
