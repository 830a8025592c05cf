"""Kernels: which of them take the time, how often they run and how long a launch takes."""

from __future__ import annotations

import altair as alt
import polars as pl

from llmprof import kernel_names
from llmprof.charts._data import inline, number, require
from llmprof.charts._palette import INK, REST, colours
from llmprof.charts._theme import (
    NUMBER,
    PADDING,
    TEXT_PX,
    WIDTH,
    colour,
    finish,
    layered,
    percent,
    row_axis,
    shorten,
    text_px,
    time_unit,
)
from llmprof.units import format_ns

_SOURCE = "llmprof.analyze.kernel_summary(trace)"
_COLUMNS = ("name", "category", "count", "total_ns", "share", "mean_ns")
_ROW, _MAX_NAME = 24, 40


def kernels(frame: pl.DataFrame, *, top: int = 18, title: str | None = None) -> alt.LayerChart:
    """Bars of the total time of kernels, the longest first, with their share, launches and mean.

    Parameters
    ----------
    frame : polars.DataFrame
        Rows of ``kernel_summary(trace)`` or ``kernels_within(trace)``, not told apart by further columns.
    top : int
        Bars; the rest is gathered in ``other (n)``.
    title : str, optional
        Title instead of the one that says what is shown.

    Returns
    -------
    altair.LayerChart
        900 px wide, coloured by category.

    Raises
    ------
    AnalysisError
        A column is missing, or there is no kernel.
    """
    require(frame, _COLUMNS, chart="kernels", made_by=_SOURCE)
    every = frame.select(_COLUMNS).sort("total_ns", "name", descending=[True, False], maintain_order=True)
    rows = _named(every.head(top))
    rest = every.slice(top)
    if rest.height:
        rows = pl.concat([rows, _gathered(rest)])
    unit = time_unit(number(rows["total_ns"].max()))
    table = colours("category", rows["category"].unique()) | ({"several": REST} if rest.height else {})
    said = [_said(row) for row in rows.select("share", "count", "mean_ns").iter_rows()]
    data = rows.with_columns(
        total=pl.col("total_ns") / unit.ns,
        label=pl.Series(said, dtype=pl.String),
        time=pl.col("total_ns").map_elements(format_ns, return_dtype=pl.String),
    )
    widest = min(270, max(text_px(row, TEXT_PX) for row in data["row"]))
    width = round(WIDTH - 2 * PADDING - widest - 30)
    room = max(text_px(label, TEXT_PX) for label in said) + 14
    domain = [0, number(data["total"].max()) * width / (width - room) or 1]
    axis = alt.Axis(title=f"device time in total ({unit.symbol})", format=NUMBER, tickCount=8)
    x = alt.X("total:Q", scale=alt.Scale(domain=domain, nice=False), axis=axis)
    y = row_axis(data["row"])
    tips = [alt.Tooltip("name:N", title="kernel"), alt.Tooltip("category:N"), alt.Tooltip("time:N", title="total")]
    tips.append(alt.Tooltip("label:N", title="launches"))
    bars = alt.Chart(inline(data)).mark_bar().encode(x=x, y=y, color=colour("category", table), tooltip=tips)
    texts = alt.Chart(inline(data.select("row", "total", "label")))
    labels = texts.mark_text(align="left", baseline="middle", dx=6, fontSize=TEXT_PX, color=INK)
    chart = layered(bars, labels.encode(x=x, y=y, text="label:N")).properties(width=width, height=_ROW * data.height)
    whole = format_ns(number(frame["total_ns"].sum()))
    note = f"Sum of the durations of all launches ({whole}); kernels that overlap count in full."
    return finish(chart, title or _headline(rows), note)


def _named(rows: pl.DataFrame) -> pl.DataFrame:
    """Rows with a name that is short and occurs once."""
    short = kernel_names.function(rows["name"]).fill_null("unnamed")
    seen: dict[str, int] = {}
    names = []
    for name in short:
        text = shorten(name or "unnamed", _MAX_NAME)
        seen[text] = seen.get(text, 0) + 1
        names.append(text if seen[text] == 1 else f"{text} #{seen[text]}")
    return rows.with_columns(row=pl.Series(names, dtype=pl.String))


def _gathered(rest: pl.DataFrame) -> pl.DataFrame:
    sums = rest.select(pl.col("count", "total_ns", "share").sum())
    return sums.select(
        pl.lit(f"other ({rest.height})").alias("name"),
        pl.lit("several").alias("category"),
        "count",
        "total_ns",
        "share",
        (pl.col("total_ns") / pl.col("count")).alias("mean_ns"),
        pl.lit(f"other ({rest.height})").alias("row"),
    )


def _said(row: tuple[float | None, int, float | None]) -> str:
    share, count, mean = row
    of_all = f"{percent(100 * share)}, " if share is not None else ""
    return f"{of_all}{count:,} x {format_ns(mean)}"


def _headline(rows: pl.DataFrame) -> str:
    first = rows.row(0, named=True)
    if first["share"] is None:
        return "No kernel takes any time"
    return f"{first['row']} takes {percent(100 * first['share'])} of the kernels' time"
