"""Stacked horizontal bars: where the parts of a bar begin, what is written into them, and the total behind each."""

from __future__ import annotations

from collections.abc import Mapping

import altair as alt
import polars as pl

from llmprof.charts._data import inline, number
from llmprof.charts._palette import INK, ink_on
from llmprof.charts._theme import LABEL_PX, NUMBER, TEXT_PX, Unit, colour, percent, row_axis, text_px, time_unit
from llmprof.units import format_ns

TOTAL_PX = 68
"""Room behind the longest bar for its total."""


def stack(parts: pl.DataFrame, table: Mapping[str, str], unit: Unit) -> pl.DataFrame:
    """Where each part begins and ends on its bar.

    Parameters
    ----------
    parts : polars.DataFrame
        ``row, part, ns`` and more; the rows in the order in which they are to be drawn.
    table : mapping of str to str
        Colour by part; its order is that of the parts.
    unit : Unit
        Unit of ``start`` and ``end``.

    Returns
    -------
    polars.DataFrame
        The columns of ``parts``, and ``start, end`` (in the unit), ``percent`` (of the bar) and ``time`` (as text).
    """
    rows = {row: i for i, row in enumerate(parts["row"].unique(maintain_order=True))}
    places = {part: i for i, part in enumerate(table)}
    ordered = parts.sort(
        pl.col("row").replace_strict(rows, return_dtype=pl.Int64),
        pl.col("part").replace_strict(places, return_dtype=pl.Int64),
    )
    end = pl.col("ns").cum_sum().over("row")
    return ordered.with_columns(
        start=(end - pl.col("ns")) / unit.ns,
        end=end / unit.ns,
        percent=100 * pl.col("ns") / pl.col("ns").sum().over("row"),
        time=pl.col("ns").map_elements(format_ns, return_dtype=pl.String),
    )


def stacked_bars(
    parts: pl.DataFrame,
    table: Mapping[str, str],
    *,
    width: int,
    title: str | None,
    unit: Unit | None = None,
    inside: bool = True,
    extra: tuple[str, ...] = (),
) -> list[alt.Chart]:
    """Marks of stacked bars of time: parts, what fits into them, and the totals.

    Parameters
    ----------
    parts : polars.DataFrame
        ``row, part, ns``, in the order of the rows; parts of no length are left out.
    table : mapping of str to str
        Colour by part; its order is that of the parts.
    width : int
        Width of the panel (px).
    title : str or None
        What the axis shows; the unit is added.
    unit : Unit, optional
        Unit of the axis; chosen by the longest bar if not given.
    inside : bool
        Whether names and shares are written into the parts.
    extra : tuple of str
        Further columns for the tooltip.
    """
    filled = parts.filter(pl.col("ns") > 0)
    unit = unit or time_unit(number(filled.group_by("row").agg(pl.col("ns").sum())["ns"].max()))
    data = stack(filled, table, unit)
    room = number(data["end"].max()) * width / (width - TOTAL_PX)
    axis = alt.Axis(
        title=title and f"{title} ({unit.symbol})", format=NUMBER, tickCount=8 if width > 500 else 5, grid=False
    )
    x = alt.X("start:Q", scale=alt.Scale(domain=[0, room], nice=False), axis=axis)
    y = row_axis(parts["row"].unique(maintain_order=True))
    tips = [alt.Tooltip("row:N", title="bar"), alt.Tooltip("part:N"), alt.Tooltip("time:N")]
    tips += [alt.Tooltip("percent:Q", format=".2f", title="share (%)"), *(alt.Tooltip(f"{name}:Q") for name in extra)]
    bars = alt.Chart(inline(data)).mark_bar(stroke="#FFFFFF", strokeWidth=0.7)
    marks = [bars.encode(x=x, x2="end:Q", y=y, color=colour("part", table), tooltip=tips)]
    if inside:
        marks += _inside(data, table, x, y, width / room)
    ends = data.group_by("row", maintain_order=True).agg(start=pl.col("end").max(), ns=pl.col("ns").sum())
    ends = ends.with_columns(label=pl.col("ns").map_elements(format_ns, return_dtype=pl.String))
    totals = alt.Chart(inline(ends)).mark_text(align="left", baseline="middle", dx=6, fontSize=TEXT_PX, color=INK)
    return [*marks, totals.encode(x=x, y=y, text="label:N")]


def _inside(data: pl.DataFrame, table: Mapping[str, str], x: alt.X, y: alt.Y, px: float) -> list[alt.Chart]:
    """Name and share in the middle of a part, or its share, or nothing: whatever has room."""
    columns = data.select("part", "percent", pl.col("end") - pl.col("start")).iter_rows()
    labels = [fitting((f"{part} {percent(share)}", percent(share)), length * px) for part, share, length in columns]
    texts = data.select(
        "row",
        start=(pl.col("start") + pl.col("end")) / 2,
        label=pl.Series(labels, dtype=pl.String),
        ink=pl.col("part").replace_strict({n: ink_on(c) for n, c in table.items()}, return_dtype=pl.String),
    )
    return centred(texts.drop_nulls("label"), x, y)


def centred(texts: pl.DataFrame, x: alt.X, y: alt.Y) -> list[alt.Chart]:
    """Texts centred at their places: ``label, ink`` and what the axes need."""
    marks = []
    for (ink,), group in texts.group_by("ink", maintain_order=True):
        base = alt.Chart(inline(group.drop("ink"))).mark_text(clip=True, baseline="middle", color=str(ink))
        marks.append(base.encode(x=x, y=y, text="label:N"))
    return marks


def fitting(texts: tuple[str, ...], room: float, margin: float = 8) -> str | None:
    """First of the texts that has room (px) with a margin around it."""
    return next((text for text in texts if text_px(text, LABEL_PX) + margin <= room), None)
