"""What the charts of a sweep share: the parameter along the axis, and the lines of the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import altair as alt
import polars as pl

from llmprof.errors import AnalysisError

_COLOURS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#8B6F47",
    "#56B4E9",
    "#332288",
    "#B2182B",
    "#999933",
    "#44AA99",
)


@dataclass(frozen=True, slots=True)
class Axes:
    """Rows with ``x`` and ``series``, the channel of x, and the colours of the series."""

    data: pl.DataFrame
    x: alt.X
    table: dict[str, str]


def swept(frame: pl.DataFrame, parameters: Sequence[str] | None) -> list[str]:
    """Parameters of a sweep: those given, or the columns between the label of a point and its state.

    Raises
    ------
    AnalysisError
        One of them is no column, or there is none.
    """
    columns = frame.columns
    found = list(parameters or ())
    if not found and {"label", "state"} <= set(columns):
        found = columns[columns.index("label") + 1 : columns.index("state")]
    if not found or (missing := [name for name in found if name not in columns]):
        what = f"has no parameter {missing[0]!r}" if found else "has no parameters"
        raise AnalysisError(f"the sweep {what}", expected="columns of sweep.comparison, such as batch_size")
    return found


def axes(frame: pl.DataFrame, parameters: Sequence[str]) -> Axes:
    """The first parameter along the axis, each value in the order of the sweep; the others as lines.

    Parameters
    ----------
    frame : polars.DataFrame
        ``sweep.comparison``.
    parameters : sequence of str
        Parameters of the sweep.
    """
    first, others = parameters[0], list(parameters[1:])
    text = pl.col(first).cast(pl.String).fill_null("none")
    names = [pl.concat_str(pl.lit(name.replace("_", " ") + " "), _text(name)) for name in others]
    series = pl.concat_str(names, separator=", ") if names else pl.lit("")
    data = frame.with_columns(x=text, series=series)
    places = data["x"].unique(maintain_order=True).to_list()
    listed = data["series"].unique(maintain_order=True).to_list()
    table = {name: _COLOURS[i % len(_COLOURS)] for i, name in enumerate(listed)}
    axis = alt.Axis(title=first.replace("_", " "), labelAngle=0, grid=False)
    x = alt.X("x:N", sort=None, scale=alt.Scale(type="point", domain=places, padding=0.5), axis=axis)
    return Axes(data, x, table)


def _text(name: str) -> pl.Expr:
    return pl.col(name).cast(pl.String).fill_null("no")


def series_colour(over: Axes) -> alt.Color:
    """Colour of the lines, with a legend above where there are several."""
    scale = alt.Scale(domain=list(over.table), range=list(over.table.values()))
    if len(over.table) < 2:
        return alt.Color("series:N", scale=scale, legend=None)
    legend = alt.Legend(title=None, orient="top", direction="horizontal", symbolType="circle", columns=4)
    return alt.Color("series:N", scale=scale, sort=None, legend=legend)
