"""Copies by the kinds of memory at both ends, with the call that began them, and their rate over
time.
"""

from __future__ import annotations

from typing import Literal

import polars as pl

from llmprof.analyze.catalog import Analysis
from llmprof.analyze.idle.host import is_synchronising
from llmprof.errors import AtLeastOne
from llmprof.label.intervals import clip_intervals, time_bins
from llmprof.trace import Trace

_ENDS = ["kind", "src_kind", "dst_kind"]


@Analysis(
    question="Between which kinds of memory is how much copied, and how fast?",
    help="copies by kinds of memory (pageable, pinned), and their rates",
    view="copies",
    recorded="copies",
)
def copies(
    trace: Trace, *, by: Literal["kind", "time"] = "kind", bins: AtLeastOne = 50
) -> pl.DataFrame:
    """Bytes, time and rate of copies and memory sets by direction and kinds of memory, in sum or
    over time.

    Parameters
    ----------
    trace : Trace
        A trace with copies.
    by : {"kind", "time"}
        A row for each kind of copy and call, or for each kind in each bin of time.
    bins : int
        Number of bins of time, from the first copy to the last.

    Returns
    -------
    polars.DataFrame
        ``rank, kind, src_kind, dst_kind`` (pageable, pinned, device …; null where the profiler does
        not say), then

        - per kind: ``call`` (of the host that began them; null if not recorded), ``waits`` (whether
          this call returns only when the copy is done, by its name; an asynchronous copy of
          pageable memory waits, too, which no name says), ``count, bytes, total_ns`` (of copies
          that run side by side each counts), ``gbps`` (1e9 B/s: all bytes in all that time),
          ``median_gbps, max_gbps`` (of single copies); by rank, the longest time first;
        - per time: ``start_ns, dur_ns, bytes`` (each copy at an even rate), ``gbps`` (1e9
          B/s over the bin). Bins without a copy of the kind are zero.

        Copies of unknown size are in no rate. Times in ns.

    Raises
    ------
    NotCapturedError
        The trace holds no copies.
    AnalysisError
        There is no bin, or there are more than a million.
    """
    rows = trace.copies
    rate = pl.col("bytes") / pl.col("dur_ns")  # bytes a ns are GB a s
    sized = pl.col("bytes").is_not_null() & (pl.col("dur_ns") > 0)
    if by == "time":
        return _over_time(rows.filter(sized), bins, rate)
    calls = pl.DataFrame(schema={"rank": pl.Int32, "correlation": pl.Int64, "call": pl.String})
    if trace.has("runtime"):
        calls = trace.runtime.select("rank", "correlation", call="name").drop_nulls("correlation")
        calls = calls.unique(["rank", "correlation"], keep="first", maintain_order=True)
    return (
        rows.join(calls, on=["rank", "correlation"], how="left")
        .group_by("rank", *_ENDS, "call")
        .agg(
            count=pl.len(),
            bytes=pl.when(pl.col("bytes").count() > 0).then(pl.sum("bytes")),
            total_ns=pl.sum("dur_ns"),
            gbps=pl.col("bytes").filter(sized).sum() / pl.col("dur_ns").filter(sized).sum(),
            median_gbps=rate.filter(sized).median(),
            max_gbps=rate.filter(sized).max(),
        )
        .with_columns(pl.col("gbps").fill_nan(None), waits=is_synchronising(pl.col("call")))
        .sort(
            "rank",
            "total_ns",
            *_ENDS,
            "call",
            descending=[False, True, *[False] * 4],
            nulls_last=True,
        )
        .select(
            "rank",
            *_ENDS,
            "call",
            "waits",
            "count",
            "bytes",
            "total_ns",
            "gbps",
            "median_gbps",
            "max_gbps",
        )
    )


def _over_time(rows: pl.DataFrame, bins: int, rate: pl.Expr) -> pl.DataFrame:
    key = ["rank", *_ENDS]
    grid = time_bins(rows, key, bins=bins)
    windows = grid[["rank", "bin", "start_ns", "dur_ns"]].unique()
    parts = clip_intervals(rows.with_columns(_each=rate), windows, ["rank"])
    parts = parts.with_columns(
        windows["bin"].gather(parts["window"]), bytes=pl.col("_each") * pl.col("dur_ns")
    )
    sums = parts.group_by(*key, "bin").agg(pl.sum("bytes"))
    grid = grid.join(sums, on=[*key, "bin"], how="left", nulls_equal=True, maintain_order="left")
    grid = grid.drop("bin").with_columns(pl.col("bytes").fill_null(0.0))
    return grid.with_columns(gbps=rate)
