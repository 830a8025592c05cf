"""Ranked horizontal bars: a name, a bar, and what it comes to behind it."""

from __future__ import annotations

import altair as alt
import polars as pl

from llmprof.charts._data import inline, number
from llmprof.charts._palette import INK
from llmprof.charts._theme import (
    NUMBER,
    TEXT_PX,
    colour,
    layered,
    shorten,
    text_px,
    time_unit,
)

ROW = 24
MAX_NAME = 44
MAX_NAME_PX = 320


def ranking(rows: pl.DataFrame, *, width: int, title: str | None, table: dict[str, str]) -> alt.LayerChart:
    """Bars in the order of the rows.

    Parameters
    ----------
    rows : polars.DataFrame
        ``row`` (name), ``part``, ``ns`` and ``label`` (behind the bar); all but ``ns`` become the tooltip.
    width : int
        Width of names and bars together (px).
    title : str or None
        What the axis shows; the unit is added.
    table : dict of str to str
        Colour by ``part``.
    """
    names = _unique([shorten(name, MAX_NAME) for name in rows["row"]])
    unit = time_unit(number(rows["ns"].max()))
    data = rows.with_columns(row=pl.Series(names, dtype=pl.String), time=pl.col("ns") / unit.ns)
    across = width - 16 - min(MAX_NAME_PX, round(max(text_px(name, TEXT_PX) * 1.06 for name in names)))
    behind = max(text_px(label) for label in rows["label"]) + 16
    room = number(data["time"].max()) * across / max(120.0, across - behind)
    axis = alt.Axis(title=title and f"{title} ({unit.symbol})", format=NUMBER, tickCount=6)
    x = alt.X("time:Q", scale=alt.Scale(domain=[0, room or 1], nice=False), axis=axis)
    names_axis = alt.Axis(
        title=None, ticks=False, domain=False, labelFontWeight="bold", labelPadding=8, labelLimit=MAX_NAME_PX
    )
    y = alt.Y("row:N", sort=None, scale=alt.Scale(domain=names), axis=names_axis)
    tips = [alt.Tooltip(f"{name}:N") for name in rows.columns if name != "ns"]
    shade = colour("part", table)
    drawn = alt.Chart(inline(data)).mark_bar().encode(x=x, y=y, color=shade, tooltip=tips)
    texts = alt.Chart(inline(data.select("row", "time", "label"))).mark_text(
        align="left", baseline="middle", dx=6, color=INK
    )
    return layered(drawn, texts.encode(x=x, y=y, text="label:N")).properties(width=across, height=ROW * len(names))


def _unique(names: list[str]) -> list[str]:
    """Names that differ, so that each has a bar of its own."""
    seen: dict[str, int] = {}
    out = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        out.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return out
