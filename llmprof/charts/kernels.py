"""Kernels: which of them take the time, how often they run and how long a launch takes."""

from __future__ import annotations

from typing import Final

import altair as alt
import polars as pl

from llmprof.arguments import AtLeastOne
from llmprof.charts.base.bars import ranking
from llmprof.charts.base.data import nothing, number, require
from llmprof.charts.base.theme import CAUSES, COPY, PADDING, REST, WIDTH, colours, finish, percent, shorten
from llmprof.names import functions
from llmprof.units import format_ns

_SOURCE = "llmprof.analyze.kernel_summary(trace)"
_COLUMNS = ("name", "category", "total_ns", "count")


def kernels(
    frame: pl.DataFrame, *, top: AtLeastOne = 15, variants: bool = False, title: str | None = None
) -> alt.VConcatChart:
    """Bars of the kernels with the longest total time, with their share, launches and mean.

    Parameters
    ----------
    frame : polars.DataFrame
        Rows of ``kernel_summary(trace)`` or ``kernels_within(trace)``.
    top : int
        Bars; the rest is gathered in one more.
    variants : bool
        Give each row of the frame a bar of its own; else all variants of a kernel function are one bar.
    title : str, optional
        Title instead of the one that says what is shown.

    Returns
    -------
    altair.VConcatChart
        900 px wide, coloured by category.

    Raises
    ------
    AnalysisError
        A column is missing, there is no row, or all times are zero.

    Examples
    --------
    >>> chart = charts.kernels(analyze.kernel_summary(trace))
    """
    require(frame, _COLUMNS, chart="kernels", made_by=_SOURCE)
    rows = kernel_rows(frame, top, variants=variants)
    if rows.is_empty():
        raise nothing("kernels", "the times add up to zero", _SOURCE)
    total = number(frame["total_ns"].sum())
    first = rows.row(0, named=True)
    head = f"{shorten(first['row'], 48)} takes {percent(100 * first['ns'] / total)} of the kernels' time"
    note = (
        f"Sum of the durations of all launches ({format_ns(total)}): kernels that overlap count in full, "
        "a collective with its waiting."
    )
    done = finish(alt.vconcat(kernel_panel(rows, WIDTH - 2 * PADDING - 8, "total time")), title or head, note)
    done["title"]["frame"] = "bounds"
    return done


def kernel_rows(frame: pl.DataFrame, top: int, *, variants: bool = False) -> pl.DataFrame:
    """The longest kernels, and the rest in one row: ``row, name, part, ns, count, label``."""
    named = frame.select("name", "count", row=_names(frame["name"]), part=_part(), ns="total_ns")
    if variants:
        sums = named.with_columns(pl.col("count").cast(pl.Int64))
    else:
        sums = named.group_by("row", "part").agg(
            pl.col("name").sort_by("ns", "name", descending=[True, False]).first(),
            pl.col("count").sum().cast(pl.Int64),
            pl.col("ns").sum(),
        )
    sums = sums.filter(pl.col("ns") > 0).sort("ns", "row", "name", descending=[True, False, False])
    sums = sums.select("row", "name", "part", "ns", "count")
    rest, kept = sums.slice(top), sums.head(top)
    if rest.height:
        name = pl.lit(f"{rest.height} others")
        kept = pl.concat([kept, rest.select(name.alias("row"), name.alias("name"), _REST, pl.col("ns", "count").sum())])
    total = number(sums["ns"].sum())
    labels = [
        f"{percent(100 * ns / total)}, {count:,} × {format_ns(ns / count) if count else '0 ns'}"
        for ns, count in kept.select("ns", "count").rows()
    ]
    return kept.with_columns(label=pl.Series(labels, dtype=pl.String))


_REST: Final = pl.lit("other").alias("part")


def _part() -> pl.Expr:
    return pl.col("category").fill_null("other")


def _names(names: pl.Series) -> pl.Series:
    """Function of each kernel; what CUTLASS runs in its ``device_kernel`` is named by the first template of it."""
    function = functions.function(names).fill_null("unnamed")
    inner = names.str.extract(r"device_kernel<(?:(?:\w+::)*enable_\w+<)?(?:\w+::)*(\w+)")
    return pl.select(
        pl.when(function == "device_kernel").then(pl.coalesce(inner, function)).otherwise(function)
    ).to_series()


def kernel_panel(rows: pl.DataFrame, width: int, title: str | None) -> alt.LayerChart:
    """Bars of :func:`kernel_rows`, coloured by category."""
    return ranking(rows, width=width, title=title, table=colours("category", rows["part"]))


_CUDA_API_SOURCE = "llmprof.analyze.nsys.cuda_api_sum(trace)"
_CUDA_API_COLUMNS = ("name", "total_ns", "count", "median_ns")
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


def cuda_api(frame: pl.DataFrame, *, top: AtLeastOne = 15, title: str | None = None) -> alt.VConcatChart:
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

    Examples
    --------
    >>> chart = charts.cuda_api(analyze.nsys.cuda_api_sum(trace))
    """
    require(frame, _CUDA_API_COLUMNS, chart="cuda_api", made_by=_CUDA_API_SOURCE)
    named = frame.with_columns(pl.col("name").str.replace(r"_v\d{4,}$", ""))  # nsys adds the version of the call
    sums = named.group_by("name").agg(
        ns=pl.col("total_ns").sum(), count=pl.col("count").sum().cast(pl.Int64), median_ns=pl.col("median_ns").max()
    )
    sums = sums.filter(pl.col("ns") > 0).sort("ns", "name", descending=[True, False])
    if sums.is_empty():
        raise nothing("cuda_api", "the times add up to zero", _CUDA_API_SOURCE)
    total, kept = number(sums["ns"].sum()), sums.head(top)
    labels = [
        f"{format_ns(ns)}, {percent(100 * ns / total)}, {count:,} × {format_ns(median)}"
        for ns, count, median in kept.select("ns", "count", "median_ns").rows()
    ]
    rows = kept.select("ns", "count", row="name", part=_kind(), label=pl.Series(labels, dtype=pl.String))
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
