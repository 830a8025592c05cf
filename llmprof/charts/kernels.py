"""Kernels: which of them take the time, how often they run and how long a launch takes."""

from __future__ import annotations

import altair as alt
import polars as pl

from llmprof.charts.base.bars import ranking
from llmprof.charts.base.data import inline, nothing, number, require
from llmprof.charts.base.theme import (
    CAUSES,
    COPY,
    INK,
    NUMBER,
    PADDING,
    REST,
    TEXT_PX,
    WIDTH,
    colour,
    colours,
    finish,
    layered,
    percent,
    row_axis,
    shorten,
    text_px,
    time_unit,
)
from llmprof.names import functions
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
    short = functions.function(rows["name"]).fill_null("unnamed")
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


_SOURCE = "llmprof.analyze.kernel_summary(trace)"
_KERNEL_TIME_COLUMNS = ("name", "category", "total_ns", "count")


def kernel_time(frame: pl.DataFrame, *, top: int = 15, title: str | None = None) -> alt.VConcatChart:
    """Bars of the kernels with the longest total time; variants of a kernel function are one bar.

    Parameters
    ----------
    frame : polars.DataFrame
        Rows of ``kernel_summary(trace)``.
    top : int
        Bars; the rest is gathered in one more.
    title : str, optional
        Title instead of the one that says what is shown.

    Returns
    -------
    altair.VConcatChart
        900 px wide.

    Raises
    ------
    AnalysisError
        A column is missing, or all times are zero.
    """
    require(frame, _KERNEL_TIME_COLUMNS, chart="kernel_time", made_by=_SOURCE)
    rows = kernel_rows(frame, top)
    if rows.is_empty():
        raise nothing("kernel_time", "the times add up to zero", _SOURCE)
    total = number(frame["total_ns"].sum())
    first = rows.row(0, named=True)
    head = f"{shorten(first['row'], 48)} takes {percent(100 * first['ns'] / total)} of the time"
    notes = f"Sums over all ranks and steps, {format_ns(total)} in total. A collective's time holds its waiting."
    chart = kernel_panel(rows, WIDTH - 2 * PADDING - 8, "total time")
    done = finish(alt.vconcat(chart), title or head, notes)
    done["title"]["frame"] = "bounds"
    return done


def kernel_rows(frame: pl.DataFrame, top: int) -> pl.DataFrame:
    """The longest kernels by function, and the rest in one row: ``row, part, ns, count, label``."""
    named = frame.with_columns(row=_names(frame["name"]), part=pl.col("category").fill_null("other"))
    sums = named.group_by("row", "part").agg(ns=pl.col("total_ns").sum(), count=pl.col("count").sum().cast(pl.Int64))
    sums = sums.filter(pl.col("ns") > 0).sort("ns", "row", descending=[True, False])
    rest = sums.slice(top)
    kept = sums.head(top)
    if rest.height:
        name = pl.lit(f"{rest.height} others").alias("row")
        kept = pl.concat([kept, rest.select(name, pl.lit("other").alias("part"), pl.col("ns", "count").sum())])
    total = number(sums["ns"].sum())
    labels = [
        f"{format_ns(ns)}, {percent(100 * ns / total)}, {count:,} ×" for ns, count in kept.select("ns", "count").rows()
    ]
    return kept.with_columns(label=pl.Series(labels, dtype=pl.String))


def _names(names: pl.Series) -> pl.Series:
    """Function of each kernel; what CUTLASS runs in its ``device_kernel`` is named by the first template of it."""
    function = functions.function(names)
    inner = names.str.extract(r"device_kernel<(?:(?:\w+::)*enable_\w+<)?(?:\w+::)*(\w+)")
    return pl.select(
        pl.when(function == "device_kernel").then(pl.coalesce(inner, function)).otherwise(function)
    ).to_series()


def kernel_panel(rows: pl.DataFrame, width: int, title: str | None) -> alt.LayerChart:
    """Bars of :func:`kernel_rows`, coloured by category."""
    return ranking(rows, width=width, title=title, table=colours("category", rows["part"]))


_CUDA_API_SOURCE = "llmprof.analyze.cuda_api_sum(trace)"
_CUDA_API_COLUMNS = ("name", "total_ns", "calls", "median_ns")
KINDS = {
    "launch": "#2F7F86",
    "wait": CAUSES["sync"],
    "copy": COPY,
    "memory": CAUSES["queued"],
    "other": REST,
}
"""What a call is for, and its colour."""

_PATTERNS = (
    ("launch", r"(?i)launch|graphlaunch"),
    ("wait", r"(?i)synchronize|streamwait|eventquery|streamquery"),
    ("copy", r"(?i)memcpy|memset"),
    ("memory", r"(?i)malloc|free|mem(alloc|map|unmap|create|release|address)|hostregister|hostalloc"),
)


def cuda_api(frame: pl.DataFrame, *, top: int = 15, title: str | None = None) -> alt.VConcatChart:
    """Bars of the API calls with the longest total time, coloured by what they are for.

    Parameters
    ----------
    frame : polars.DataFrame
        Rows of ``cuda_api_sum(trace)``.
    top : int
        Bars.
    title : str, optional
        Title instead of the one that says what is shown.

    Returns
    -------
    altair.VConcatChart
        900 px wide.

    Raises
    ------
    AnalysisError
        A column is missing, or all times are zero.
    """
    require(frame, _CUDA_API_COLUMNS, chart="cuda_api", made_by=_CUDA_API_SOURCE)
    named = frame.with_columns(pl.col("name").str.replace(r"_v\d{4,}$", ""))  # nsys adds the version of the call
    sums = named.group_by("name").agg(
        ns=pl.col("total_ns").sum(), calls=pl.col("calls").sum().cast(pl.Int64), median_ns=pl.col("median_ns").max()
    )
    sums = sums.filter(pl.col("ns") > 0).sort("ns", "name", descending=[True, False])
    if sums.is_empty():
        raise nothing("cuda_api", "the times add up to zero", _CUDA_API_SOURCE)
    total, kept = number(sums["ns"].sum()), sums.head(top)
    labels = [
        f"{format_ns(ns)}, {percent(100 * ns / total)}, {calls:,} × {format_ns(median)}"
        for ns, calls, median in kept.select("ns", "calls", "median_ns").rows()
    ]
    rows = kept.select("ns", "calls", row="name", part=_kind(), label=pl.Series(labels, dtype=pl.String))
    table = {name: fill for name, fill in KINDS.items() if name in rows["part"].to_list()}
    chart = ranking(rows, width=WIDTH - 2 * PADDING - 8, title="total time", table=table)
    first = rows.row(0, named=True)
    head = f"{shorten(first['row'], 48)} takes {percent(100 * first['ns'] / total)} of the time in API calls"
    notes = f"Sums over all host threads and ranks, {format_ns(total)} in total; count and median of one call."
    if (left := sums.height - kept.height) > 0:
        notes += f" {left} shorter calls are not shown."
    done = finish(alt.vconcat(chart), title or head, notes)
    done["title"]["frame"] = "bounds"
    return done


def _kind() -> pl.Expr:
    kind = pl.lit("other")
    for name, pattern in reversed(_PATTERNS):
        kind = pl.when(pl.col("name").str.contains(pattern)).then(pl.lit(name)).otherwise(kind)
    return kind
