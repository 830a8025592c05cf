"""Scaling: how much faster a run gets as a parameter grows, against growing in step with it."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import polars as pl

from llmprof.charts._data import inline, nothing, number, require
from llmprof.charts._palette import INK, MUTED
from llmprof.charts._sweep_axes import axes, series_colour, swept
from llmprof.charts._theme import NUMBER, PADDING, WIDTH, beside, finish, layered, percent

_SOURCE = "llmprof.BatchRunner(config).run_parameter_sweep(...).comparison"
_PREFERRED = ("tensor_parallel_size", "pipeline_parallel_size", "batch_size", "max_tokens")
_SPACE, _HEIGHT = 34, 230


def sweep_scaling(
    frame: pl.DataFrame, *, parameters: Sequence[str] | None = None, over: str | None = None, title: str | None = None
) -> alt.HConcatChart:
    """Speed-up of the output tokens a second over its value at the smallest parameter, and the efficiency.

    With ``r(v)`` the rate at a value ``v`` of the parameter and ``v0`` its smallest, the speed-up is ``r(v) / r(v0)``
    and the efficiency ``speed-up / (v / v0)``.

    Parameters
    ----------
    frame : polars.DataFrame
        ``sweep.comparison``.
    parameters : sequence of str, optional
        Some of the parameters of the sweep; all if not given.
    over : str, optional
        The parameter that scales, a number; tensor or pipeline parallel size, batch size or the first number of them
        if not given.
    title : str, optional
        Title instead of the one that says what is shown.

    Returns
    -------
    altair.HConcatChart
        900 px wide.

    Raises
    ------
    AnalysisError
        A column is missing, or no parameter is a number with two values that ran.
    """
    require(frame, ["label", "output_tokens_per_s"], chart="sweep_scaling", made_by=_SOURCE)
    names = swept(frame, parameters)
    known = frame.filter(pl.col("output_tokens_per_s") > 0)
    numbers = [name for name in names if frame.schema[name].is_numeric() and known[name].n_unique() > 1]
    ordered = [over] if over else [*(name for name in _PREFERRED if name in numbers), *numbers]
    scaled = next((name for name in ordered if name in numbers), None)
    if scaled is None:
        raise nothing("sweep_scaling", "no parameter is a number with two values that ran", _SOURCE)
    shared = axes(known.sort(scaled), [scaled, *(name for name in names if name != scaled)])
    data = _speedups(shared.data, scaled)
    plot = (WIDTH - 2 * PADDING + _SPACE) // 2 - _SPACE - 50
    words = scaled.replace("_", " ")
    shade = series_colour(shared)
    panels = []
    for column, name, unit in (("speedup", "Speed-up", "times"), ("efficiency", "Efficiency", "%")):
        most = number(data[column].max())
        top = max(most, number(data["ideal"].max()) if column == "speedup" else 100.0) * 1.1
        scale = alt.Scale(domain=[0, top], nice=False)
        axis = alt.Axis(title=unit, format=NUMBER, tickCount=5)
        y = alt.Y(f"{column}:Q", scale=scale, axis=axis)
        ideal = data.select("x", "ideal").unique(maintain_order=True).with_columns(full=pl.lit(100.0))
        against = alt.Y(f"{'ideal' if column == 'speedup' else 'full'}:Q", scale=scale, axis=axis)
        dashed = alt.Chart(inline(ideal)).mark_line(strokeDash=[5, 4], strokeWidth=1.4, color=MUTED)
        base = alt.Chart(inline(data.select("x", "series", "label", column)))
        tips = [alt.Tooltip("label:N", title="point"), alt.Tooltip(f"{column}:Q", format=",.3~r")]
        lines = base.mark_line(strokeWidth=2).encode(x=shared.x, y=y, color=shade, detail="series:N")
        dots = base.mark_circle(size=55, opacity=1).encode(x=shared.x, y=y, color=shade, tooltip=tips)
        marks = (dashed.encode(x=shared.x, y=against), lines, dots, beside(name).encode(color=alt.value(INK)))
        panels.append(layered(*marks).properties(width=plot, height=_HEIGHT))
    last = data.filter(pl.col(scaled) == pl.col(scaled).max()).sort("speedup", descending=True).row(0, named=True)
    head = (
        f"At {words} {last['x']}: {last['speedup']:.2f} times the output tokens a second, "
        f"an efficiency of {percent(last['efficiency'])}"
    )
    note = f"Against the smallest {words} of each line; dashed: growing in step with it."
    return finish(alt.hconcat(*panels, spacing=_SPACE), title or head, note)


def _speedups(data: pl.DataFrame, scaled: str) -> pl.DataFrame:
    """Rows with ``speedup, ideal, efficiency`` (%) against the smallest value of the same line."""
    value, rate = pl.col(scaled), pl.col("output_tokens_per_s")
    ratio = rate / rate.sort_by(value).first().over("series")
    ideal = value / value.min().over("series")
    return data.with_columns(speedup=ratio, ideal=ideal, efficiency=100 * ratio / ideal)
