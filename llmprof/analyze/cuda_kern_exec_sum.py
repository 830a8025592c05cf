"""Launch, wait and run time of kernels, as ``nsys stats`` sums them up."""

from __future__ import annotations

import polars as pl

from llmprof.analyze._memo import per_trace
from llmprof.analyze._summary import statistics
from llmprof.trace import Trace


@per_trace
def cuda_kern_exec_sum(trace: Trace) -> pl.DataFrame:
    """Launch, wait and run time of kernels by thread, device, launching call and name.

    Parameters
    ----------
    trace : Trace
        A trace with kernels and runtime calls.

    Returns
    -------
    polars.DataFrame
        ``rank, process, thread, device, count, queued_count`` (kernels that began after their launch call had
        returned), then mean, median, min, max and std (ns) of each of: ``total_*`` (from the start of the call to its
        end or the kernel's, whichever is later), ``api_*`` (the call), ``queue_*`` (from the call's end to the kernel's
        start, of the queued ones), ``kernel_*``; then ``api_name, name``. The longest mean total first. Kernels whose
        launch is not in the capture are left out; one whose launch was recorded twice counts twice, as in nsys.

    Raises
    ------
    NotCapturedError
        The trace lacks one of the tables.
    """
    calls = trace.runtime.filter(pl.col("correlation").is_not_null()).select(
        "rank", "correlation", "process", "thread", api_name="name", _begin="start_ns", _api="dur_ns"
    )
    returned = pl.col("_begin") + pl.col("_api")
    end = pl.col("start_ns") + pl.col("dur_ns")
    wait = pl.col("start_ns") - returned
    launched = trace.kernels.select("rank", "device", "correlation", "start_ns", "dur_ns", "name").join(
        calls, on=["rank", "correlation"]
    )
    keys, texts = ["rank", "process", "thread", "device"], pl.col("api_name", "name")
    return (
        launched.with_columns(
            texts.cast(pl.Categorical),
            _total=pl.max_horizontal(returned, end) - pl.col("_begin"),
            _queue=pl.when(wait >= 0).then(wait),
        )
        .group_by(*keys, "api_name", "name")
        .agg(
            pl.len().alias("count"),
            pl.col("_queue").count().alias("queued_count"),
            *statistics(pl.col("_total"), "ns", "total_"),
            *statistics(pl.col("_api"), "ns", "api_"),
            *statistics(pl.col("_queue"), "ns", "queue_"),
            *statistics(pl.col("dur_ns"), "ns", "kernel_"),
        )
        .with_columns(texts.cast(pl.String))
        .sort("total_mean_ns", *keys, "name", "api_name", descending=[True, *[False] * 6], nulls_last=True)
        .select(*keys, pl.exclude(*keys, "api_name", "name"), "api_name", "name")
    )
