"""Summaries of NVTX ranges and other annotations under the names of ``nsys stats``, from any trace."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from llmprof.analyze._memo import per_trace
from llmprof.analyze._nvtx import LABEL, host_ranges
from llmprof.analyze._summary import statistics, summarise
from llmprof.analyze.nvtx_kernels import nvtx_kernels
from llmprof.trace import Trace


@per_trace
def nvtx_sum(trace: Trace, *, by: Sequence[str] = ()) -> pl.DataFrame:
    """Time of the ranges that the program set, on the host, by name.

    Parameters
    ----------
    trace : Trace
        A trace with markers.
    by : sequence of str
        Columns of the markers to group by first.

    Returns
    -------
    polars.DataFrame
        ``<by...>, share`` (of the summed duration; ranges within ranges count in full), ``total_ns, instances, mean_ns,
        median_ns, min_ns, max_ns, std_ns, style`` (PushPop or StartEnd), ``name`` (``domain:name`` in a domain of its
        own); the longest first. Marks, the profiler's own overhead and projections onto the device are left out.

    Raises
    ------
    NotCapturedError
        The trace holds no markers.
    AnalysisError
        ``by`` names an unknown column.
    """
    ranges = host_ranges(trace).with_columns(name=LABEL)
    return summarise(ranges, ["style", "name"], value="dur_ns", unit="ns", count="instances", by=by)


@per_trace
def nvtx_gpu_proj_sum(trace: Trace, *, by: Sequence[str] = ()) -> pl.DataFrame:
    """Ranges that the program set, projected onto the device, by name.

    A range is projected from the start of the first to the end of the last piece of device work that was launched
    in it, as :func:`~llmprof.analyze.nvtx_kernels` does for each instance. Ranges that launched nothing are left out.

    Parameters
    ----------
    trace : Trace
        A trace with markers, runtime calls and device activity.
    by : sequence of str
        Columns of :func:`~llmprof.analyze.nvtx_kernels` to group by first.

    Returns
    -------
    polars.DataFrame
        ``<by...>, name`` (``domain:name`` in a domain of its own), ``style, total_projected_ns, total_range_ns``
        (on the host), ``instances, projected_mean_ns, projected_median_ns, projected_min_ns, projected_max_ns,
        projected_std_ns, launches`` (nsys: Total GPU Ops; a CUDA graph is one), ``mean_launches, mean_depth`` (0 is
        outermost), ``mean_children`` (ranges right below that launched something); the longest projection first.

    Raises
    ------
    NotCapturedError
        The trace lacks one of the tables.
    AnalysisError
        ``by`` names an unknown column.
    """
    ranges = nvtx_kernels(trace).with_columns(name=LABEL)
    keys = [*(column for column in by if column not in ("name", "style")), "name", "style"]
    projected = pl.col("projected_dur_ns")
    return (
        ranges.group_by(keys)
        .agg(
            projected.sum().alias("total_projected_ns"),
            pl.col("dur_ns").sum().alias("total_range_ns"),
            pl.len().alias("instances"),
            *statistics(projected, "ns", "projected_"),
            pl.col("launches").sum(),
            pl.col("launches").mean().alias("mean_launches"),
            pl.col("depth").mean().alias("mean_depth"),
            pl.col("children").mean().alias("mean_children"),
        )
        .sort(
            *keys[:-2],
            "total_projected_ns",
            "name",
            "style",
            descending=[False] * len(keys[:-2]) + [True, False, False],
        )
    )
