"""Studies: latency against throughput of all points, and each setting alone."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import polars as pl

from llmprof.charts.base import compose, draw, theme
from llmprof.sentences import SLO_WORDS
from llmprof.text import shorten
from llmprof.units import format_metric, format_ns

_PICKED = "chosen"
_KINDS = {"best": "#0072B2", "start": "#D55E00", _PICKED: "#CC79A7"} | dict(
    zip(SLO_WORDS.values(), ("#56B4E9", "#9CA3AF", "#56B4E9"), strict=True)
)
_HEIGHT = 300
_LONGEST = 40


@draw.chart_of("study.pareto", "label latency rate kind front", refuses="no point has a latency and a rate")
def study_pareto(
    frame: pl.DataFrame,
    *,
    latency: str = "latency",
    rate: str = "requests",
    picked: Sequence[int] = (),
    title: str | None = None,
) -> alt.LayerChart:
    """Latency against throughput of the points of a study; the line joins those that no other one betters in both.

    Up and to the left is better.

    Parameters
    ----------
    latency, rate : str
        What the columns ``latency`` (ns) and ``rate`` (1/s) are, for the axes.
    picked : sequence of int
        Points (column ``point``) that stand out with their names.
    """
    if picked:
        chosen = pl.col("point").is_in(list(picked)) & ~pl.col("kind").is_in(["best", "start"])
        frame = frame.with_columns(kind=pl.when(chosen).then(pl.lit(_PICKED)).otherwise("kind"))
    known = frame.drop_nulls(["latency", "rate"])
    if known.is_empty():
        raise draw.nothing("study_pareto", "no point has a latency and a rate")
    unit = theme.time_unit(draw.number(known["latency"].max()))
    data = known.with_columns(x=pl.col("latency") / unit.ns, text=pl.col("latency").map_elements(format_ns, pl.String))
    most, top = draw.number(data["x"].max()), draw.number(data["rate"].max())
    x_title = f"{latency.removesuffix('_ns').replace('_', ' ')} ({unit.symbol})"
    y_title = f"{rate.replace('_', ' ')} a second"
    x = alt.X("x:Q", scale=theme.span(0, 1.1 * most or 1), axis=theme.axis(x_title))
    y = alt.Y("rate:Q", scale=theme.span(0, 1.12 * top or 1), axis=theme.axis(y_title))
    shade = theme.colour("kind", {name: _KINDS[name] for name in _KINDS if name in data["kind"].to_list()})
    base = alt.Chart(draw.inline(data.select("label", "x", "rate", "kind", "text")))
    tips = draw.tips(("label:N", "point"), ("rate:Q", y_title, ",.4~r"), ("text:N", latency))
    dots = base.mark_circle(size=90, opacity=1).encode(x=x, y=y, color=shade, tooltip=tips)
    front = data.filter(pl.col("front")).sort("x")
    line = alt.Chart(draw.inline(front.select("x", "rate"))).mark_line(strokeWidth=1.4, color=theme.MUTED)
    named = data.filter(pl.col("kind").is_in(["best", "start", _PICKED])).with_columns(
        short=pl.col("label").map_elements(lambda text: shorten(text, _LONGEST), pl.String)
    )
    words = []
    for rows, right in (
        (named.filter(pl.col("x") <= 0.35 * most), False),
        (named.filter(pl.col("x") > 0.35 * most), True),
    ):
        text = alt.Chart(draw.inline(rows.select("x", "rate", "short"))).mark_text(
            align="right" if right else "left", dx=-7 if right else 7, dy=-9, fontSize=theme.TEXT_PX, color=theme.INK
        )
        words += [text.encode(x=x, y=y, text="short:N")] if rows.height else []
    chart = theme.layered(line.encode(x=x, y=y), dots, *words).properties(width=theme.inner() - 44, height=_HEIGHT)
    best = data.filter(kind="best")
    shown = (best if best.height else data.sort("rate", descending=True)).row(0, named=True)
    head = f"{shown['label']}: {format_metric('rate', shown['rate'])} {y_title} at {shown['text']}"
    note = "Each dot is a measured point; up and to the left is better. Line: no other point is better in both."
    return theme.finish(chart, title or head, note)


@draw.chart_of("study.slices", "setting value objective holds", refuses="no setting was measured alone")
def study_slices(frame: pl.DataFrame, *, objective: str = "objective", title: str | None = None) -> alt.VConcatChart:
    """Objective over the values of each setting, all others as at the start.

    A time is in ns, a rate per s.

    Parameters
    ----------
    objective : str
        What the column ``objective`` is; a name that ends in ``_ns`` or a quantile of a latency is a time.
    """
    known = frame.drop_nulls("objective")
    if known.is_empty():
        raise draw.nothing("study_slices", "no setting was measured alone")
    rate = objective.endswith("_per_s") or objective in {"goodput", "objective"}
    top = draw.number(known["objective"].max())
    unit = None if rate else theme.time_unit(top)
    size, symbol = (1.0, "a second") if unit is None else (float(unit.ns), f"({unit.symbol})")
    name = f"{objective.removesuffix('_per_s').removesuffix('_ns').replace('_', ' ')} {symbol}"
    scale = theme.span(0, 1.12 * top / size or 1)
    x = alt.X("amount:Q", scale=scale, axis=theme.axis(name))
    data = known.with_columns(
        amount=pl.col("objective") / size,
        kind=pl.col("holds").replace_strict(SLO_WORDS, return_dtype=pl.String),
        row=pl.col("value").map_elements(lambda text: shorten(text, _LONGEST), pl.String),
    )
    kinds = {one: _KINDS[one] for one in _KINDS if one in data["kind"].to_list()}
    widest = max(theme.text_px(row, theme.TEXT_PX) for row in data["row"])
    width = theme.inner() - 30 - round(widest)
    panels = []
    for setting in data["setting"].unique(maintain_order=True):
        rows = data.filter(setting=setting).with_row_index("place")
        y = theme.row_axis(rows["row"].to_list())
        base = alt.Chart(draw.inline(rows.select("row", "amount", "kind")))
        tips = draw.tips(("row:N", setting), ("amount:Q", name, ",.4~r"))
        bars = (
            base.transform_calculate(zero="0")
            .mark_rule(strokeWidth=3, opacity=0.4)
            .encode(x=alt.X("zero:Q", scale=scale), x2="amount:Q", y=y, color=theme.colour("kind", kinds, opaque=True))
        )
        dots = base.mark_circle(size=90, opacity=1).encode(
            x=x, y=y, color=theme.colour("kind", kinds, opaque=True), tooltip=tips
        )
        panel = theme.layered(bars, dots).properties(width=width, height=28 * rows.height, title=theme.heading(setting))
        panels.append(panel)
    by = data.group_by("setting", maintain_order=True).agg(
        apart=(pl.col("amount").max() - pl.col("amount").min()) / pl.col("amount").max()
    )
    most = by.sort("apart", descending=True).row(0, named=True)
    head = title or f"{most['setting']} alone changes it by up to {100 * most['apart']:.0f} %"
    return theme.finish(
        compose.rows(*panels, spacing=18), head, "One setting changed, all others as at the start; one run for each."
    )
