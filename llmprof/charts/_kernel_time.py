"""Kernel time: the kernels that take the most of it."""

from __future__ import annotations

import altair as alt
import polars as pl

from llmprof import kernel_names
from llmprof.charts._data import nothing, number, require
from llmprof.charts._palette import colours
from llmprof.charts._ranking import ranking
from llmprof.charts._theme import PADDING, WIDTH, finish, percent, shorten
from llmprof.units import format_ns

_SOURCE = "llmprof.analyze.kernel_summary(trace)"
_COLUMNS = ("name", "category", "total_ns", "count")


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
    require(frame, _COLUMNS, chart="kernel_time", made_by=_SOURCE)
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
    function = kernel_names.function(names)
    inner = names.str.extract(r"device_kernel<(?:(?:\w+::)*enable_\w+<)?(?:\w+::)*(\w+)")
    return pl.select(
        pl.when(function == "device_kernel").then(pl.coalesce(inner, function)).otherwise(function)
    ).to_series()


def kernel_panel(rows: pl.DataFrame, width: int, title: str | None) -> alt.LayerChart:
    """Bars of :func:`kernel_rows`, coloured by category."""
    return ranking(rows, width=width, title=title, table=colours("category", rows["part"]))
