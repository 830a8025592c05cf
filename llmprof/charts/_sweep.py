"""Sweeps: latencies and throughput over the values of a parameter."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import polars as pl

from llmprof.charts._data import inline, nothing, number, require
from llmprof.charts._palette import INK
from llmprof.charts._sweep_axes import Axes, axes, series_colour, swept
from llmprof.charts._theme import NUMBER, PADDING, WIDTH, beside, finish, layered, time_unit
from llmprof.units import format_ns

_SOURCE = "llmprof.BatchRunner(config).run_parameter_sweep(...).comparison"
_LATENCIES = {"ttft": "time to first token", "tpot": "time per output token", "e2e": "end to end"}
_RATES = {"output_tokens_per_s": "output tokens a second", "requests_per_s": "requests a second"}
_SPACE, _HEIGHT = 34, 230


def sweep_latency(
    frame: pl.DataFrame, *, parameters: Sequence[str] | None = None, title: str | None = None
) -> alt.HConcatChart:
    """Latencies over the first parameter, a line for each combination of the others.

    Parameters
    ----------
    frame : polars.DataFrame
        ``sweep.comparison``.
    parameters : sequence of str, optional
        Parameters in another order, or some of them; all of the sweep if not given.
    title : str, optional
        Title instead of the one that says what is shown.

    Returns
    -------
    altair.HConcatChart
        900 px wide; a panel for each latency that the engine told, with an axis of its own.

    Raises
    ------
    AnalysisError
        A column is missing, or no point has a latency.
    """
    wanted = [f"{name}_ns" for name in _LATENCIES]
    require(frame, ["label", *wanted], chart="sweep_latency", made_by=_SOURCE)
    shown = [name for name in _LATENCIES if number(frame[f"{name}_ns"].max()) > 0]
    if not shown:
        raise nothing("sweep_latency", "no point has a latency", _SOURCE)
    over = axes(frame, swept(frame, parameters))
    panels = []
    plot = (WIDTH - 2 * PADDING + _SPACE) // len(shown) - _SPACE - 44
    for name in shown:
        unit = time_unit(number(over.data[f"{name}_ns"].max()))
        tail = f"{name}_p99_ns" if f"{name}_p99_ns" in frame.columns else f"{name}_ns"
        data = over.data.drop_nulls(f"{name}_ns").with_columns(
            value=pl.col(f"{name}_ns") / unit.ns,
            tail=pl.max_horizontal(f"{name}_ns", tail) / unit.ns,
        )
        y_title = f"time ({unit.symbol})"
        panels.append(_panel(data, over, plot, _LATENCIES[name], y_title, tail=True))
    first = shown[-1]
    best = frame.drop_nulls(f"{first}_ns").sort(f"{first}_ns")
    low, high = format_ns(number(best[f"{first}_ns"][0])), format_ns(number(best[f"{first}_ns"][-1]))
    head = title or f"{_LATENCIES[first].capitalize()}: {low} at best, {high} at most"
    notes = f"{_measured(frame)}; thin lines go up to the 99th percentile. Each panel has its own axis."
    return finish(alt.hconcat(*panels, spacing=_SPACE), head, notes)


def sweep_throughput(
    frame: pl.DataFrame, *, parameters: Sequence[str] | None = None, title: str | None = None
) -> alt.HConcatChart:
    """Tokens and requests a second over the first parameter, a line for each combination of the others.

    Parameters
    ----------
    frame : polars.DataFrame
        ``sweep.comparison``.
    parameters : sequence of str, optional
        Parameters in another order, or some of them; all of the sweep if not given.
    title : str, optional
        Title instead of the one that says what is shown.

    Returns
    -------
    altair.HConcatChart
        900 px wide; time is in s.

    Raises
    ------
    AnalysisError
        A column is missing, or no point has a throughput.
    """
    require(frame, ["label", *_RATES], chart="sweep_throughput", made_by=_SOURCE)
    if not number(frame["output_tokens_per_s"].max()) > 0:
        raise nothing("sweep_throughput", "no point has a throughput", _SOURCE)
    over = axes(frame, swept(frame, parameters))
    plot = (WIDTH - 2 * PADDING + _SPACE) // 2 - _SPACE - 50
    panels = []
    for name, words in _RATES.items():
        data = over.data.drop_nulls(name).with_columns(value=pl.col(name))
        low, high = f"{name}_ci95_low", f"{name}_ci95_high"
        banded = low in data.columns and data[low].null_count() < data.height
        if banded:
            data = data.with_columns(low=pl.max_horizontal(pl.col(low), 0), tail=pl.col(high))
        panels.append(_panel(data, over, plot, words, "per s", tail=False, banded=banded))
    top = frame.sort("output_tokens_per_s", descending=True, nulls_last=True).row(0, named=True)
    head = title or f"Most output tokens: {top['output_tokens_per_s']:,.0f} a second at {top['label']}"
    note = f"{_measured(frame)}; thin lines: 95 % confidence interval of the mean over the repeats."
    return finish(alt.hconcat(*panels, spacing=_SPACE), head, note)


def _measured(frame: pl.DataFrame) -> str:
    plain = "measured" in frame.columns and set(frame["measured"].drop_nulls()) == {"plain"}
    return f"Means over requests and repeats{', without the profiler' if plain else ''}"


def _panel(
    data: pl.DataFrame, over: Axes, plot: int, name: str, y_title: str, *, tail: bool, banded: bool = False
) -> alt.LayerChart:
    top = number(data["tail"].max()) if tail else number(data["value"].max())
    scale = alt.Scale(domain=[0, top * 1.12 or 1], nice=False, clamp=True)
    y = alt.Y("value:Q", scale=scale, axis=alt.Axis(title=y_title, format=NUMBER, tickCount=5))
    shade = series_colour(over)
    columns = ["x", "series", "label", "value", *(["tail"] if tail or banded else []), *(["low"] if banded else [])]
    base = alt.Chart(inline(data.select(columns)))
    tips = [alt.Tooltip("label:N", title="point"), alt.Tooltip("value:Q", format=",.4~r")]
    lines = base.mark_line(strokeWidth=2).encode(x=over.x, y=y, color=shade, detail="series:N")
    dots = base.mark_circle(size=55, opacity=1).encode(x=over.x, y=y, color=shade, tooltip=tips)
    marks = [lines, dots]
    if tail:
        marks.insert(0, base.mark_rule(strokeWidth=1.2).encode(x=over.x, y=y, y2="tail:Q", color=shade))
    elif banded:
        low = alt.Y("low:Q", scale=scale)
        marks.insert(0, base.mark_rule(strokeWidth=1.2).encode(x=over.x, y=low, y2="tail:Q", color=shade))
    return layered(*marks, beside(name).encode(color=alt.value(INK))).properties(width=plot, height=_HEIGHT)
