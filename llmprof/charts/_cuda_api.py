"""CUDA API: where the host spends its time inside the runtime and the driver."""

from __future__ import annotations

import altair as alt
import polars as pl

from llmprof.charts._data import nothing, number, require
from llmprof.charts._palette import CAUSES, COPY, REST
from llmprof.charts._ranking import ranking
from llmprof.charts._theme import PADDING, WIDTH, finish, percent, shorten
from llmprof.units import format_ns

_SOURCE = "llmprof.analyze.cuda_api_sum(trace)"
_COLUMNS = ("name", "total_ns", "calls", "median_ns")
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
    require(frame, _COLUMNS, chart="cuda_api", made_by=_SOURCE)
    named = frame.with_columns(pl.col("name").str.replace(r"_v\d{4,}$", ""))  # nsys adds the version of the call
    sums = named.group_by("name").agg(
        ns=pl.col("total_ns").sum(), calls=pl.col("calls").sum().cast(pl.Int64), median_ns=pl.col("median_ns").max()
    )
    sums = sums.filter(pl.col("ns") > 0).sort("ns", "name", descending=[True, False])
    if sums.is_empty():
        raise nothing("cuda_api", "the times add up to zero", _SOURCE)
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
