"""Summaries of kernels, API calls and copies under the names of ``nsys stats``, from any trace.

Columns have the order and meaning of nsys's with three differences: shares are fractions and not percentages, means
are not rounded, and byte counts are bytes. ``by=("rank",)`` and the like group by columns of the table first.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from llmprof.analyze._memo import per_trace
from llmprof.analyze._summary import summarise
from llmprof.trace import Trace

_OPERATIONS = {
    "HtoD": "[CUDA memcpy Host-to-Device]",
    "DtoH": "[CUDA memcpy Device-to-Host]",
    "DtoD": "[CUDA memcpy Device-to-Device]",
    "HtoH": "[CUDA memcpy Host-to-Host]",
    "PtoP": "[CUDA memcpy Peer-to-Peer]",
    "memset": "[CUDA memset]",
}


@per_trace
def cuda_gpu_kern_sum(trace: Trace, *, by: Sequence[str] = ()) -> pl.DataFrame:
    """Time of each kernel by name.

    A CUDA graph that was traced as a whole counts as one kernel a launch, ``[CUDA graph N]``; nsys leaves it out.

    Parameters
    ----------
    trace : Trace
        A trace with kernels.
    by : sequence of str
        Columns of the kernels to group by first.

    Returns
    -------
    polars.DataFrame
        ``<by...>, share`` (of the summed duration of all kernels), ``total_ns, instances, mean_ns, median_ns, min_ns,
        max_ns, std_ns, name``; the longest first.

    Raises
    ------
    NotCapturedError
        The trace holds no kernels.
    AnalysisError
        ``by`` names an unknown column.
    """
    return summarise(trace.kernels, ["name"], value="dur_ns", unit="ns", count="instances", by=by)


@per_trace
def cuda_api_sum(trace: Trace, *, by: Sequence[str] = ()) -> pl.DataFrame:
    """Time of each call of the CUDA runtime and driver API by name.

    Parameters
    ----------
    trace : Trace
        A trace with runtime calls.
    by : sequence of str
        Columns of the runtime calls to group by first.

    Returns
    -------
    polars.DataFrame
        ``<by...>, share`` (of the summed duration of all calls; calls within calls count in full), ``total_ns, calls,
        mean_ns, median_ns, min_ns, max_ns, std_ns, name``; the longest first. A name has two rows where a wrapper
        library reported the calls a second time.

    Raises
    ------
    NotCapturedError
        The trace holds no runtime calls.
    AnalysisError
        ``by`` names an unknown column.
    """
    calls = trace.runtime.filter(pl.col("api") != "os")
    source = [column for column in ("nsys_event_class",) if column in calls.columns]
    calls = calls.with_columns(pl.col(source).cast(pl.String))
    return summarise(calls, [*source, "name"], value="dur_ns", unit="ns", count="calls", by=by).drop(source)


@per_trace
def cuda_gpu_mem_time_sum(trace: Trace, *, by: Sequence[str] = ()) -> pl.DataFrame:
    """Time of memory copies and memory sets on the device by kind.

    Parameters
    ----------
    trace : Trace
        A trace with copies.
    by : sequence of str
        Columns of the copies to group by first, such as ``("rank", "src_kind", "dst_kind")``.

    Returns
    -------
    polars.DataFrame
        ``<by...>, share`` (of the summed duration), ``total_ns, count, mean_ns, median_ns, min_ns, max_ns, std_ns,
        operation``; the longest first.

    Raises
    ------
    NotCapturedError
        The trace holds no copies.
    AnalysisError
        ``by`` names an unknown column.
    """
    return summarise(_operations(trace), ["operation"], value="dur_ns", unit="ns", count="count", by=by)


@per_trace
def cuda_gpu_mem_size_sum(trace: Trace, *, by: Sequence[str] = ()) -> pl.DataFrame:
    """Bytes of memory copies and memory sets on the device by kind.

    Parameters
    ----------
    trace : Trace
        A trace with copies.
    by : sequence of str
        Columns of the copies to group by first, such as ``("rank", "src_kind", "dst_kind")``.

    Returns
    -------
    polars.DataFrame
        ``<by...>, total_bytes, count, mean_bytes, median_bytes, min_bytes, max_bytes, std_bytes, operation``; the most
        bytes first.

    Raises
    ------
    NotCapturedError
        The trace holds no copies.
    AnalysisError
        ``by`` names an unknown column.
    """
    found = summarise(_operations(trace), ["operation"], value="bytes", unit="bytes", count="count", by=by)
    return found.drop("share")


def _operations(trace: Trace) -> pl.DataFrame:
    """Copies with nsys's name of what they do; other profilers' names also say the kinds of memory."""
    named = pl.col("name").str.starts_with("[CUDA mem")
    kind = pl.col("kind").replace_strict(_OPERATIONS, default="[CUDA memcpy Unknown]", return_dtype=pl.String)
    return trace.copies.with_columns(operation=pl.when(named).then("name").otherwise(kind))
