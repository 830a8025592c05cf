"""Recipes of Nsight Systems: each run of one kernel side by side over the ranks, and the device's use over time."""

from __future__ import annotations

import polars as pl

from llmprof.analyze.activity import activity
from llmprof.analyze.catalog import Analysis
from llmprof.analyze.intervals import length_within, time_bins
from llmprof.errors import AnalysisError
from llmprof.trace import Trace


@Analysis(
    question="Do the ranks keep pace?",
    help="nsys: runs of the heaviest kernel, side by side",
    view="cuda_gpu_kern_pace",
    recorded="kernels",
)
def cuda_gpu_kern_pace(trace: Trace, *, name: str | None = None) -> pl.DataFrame:
    """Runs of one kernel, numbered on each rank, with the pause before each and the lag behind the first rank.

    The n-th run on one rank is compared with the n-th run on the others. This is the same work if all ranks run the
    kernel equally often; check the largest ``instance`` of each rank.

    Parameters
    ----------
    name : str, optional
        The full name of a kernel. By default the kernel with the longest total time among those that run on all ranks
        with kernels.

    Returns
    -------
    polars.DataFrame
        ``instance`` (from 0, by start), ``rank, start_ns, dur_ns, pause_ns`` (from the end of the run before on this
        rank to the start of this one; negative where they overlap, null for the first), ``pace_ns`` (from start to
        start), ``lag_ns`` (behind the first rank to start this instance), ``name``. In the order of instance and rank.

    Raises
    ------
    AnalysisError
        No kernel has the name, or none runs on all ranks.
    """
    kernels = trace.kernels
    chosen = _heaviest(kernels) if name is None else name
    runs = kernels.filter(pl.col("name") == chosen).select("rank", "start_ns", "dur_ns", "name")
    if runs.is_empty():
        raise AnalysisError(
            f"no kernel has the name {chosen!r}",
            expected="a whole name as in cuda_gpu_kern_sum",
            hint="look it up with trace.kernels['name'].unique()",
        )
    start, end = pl.col("start_ns"), pl.col("start_ns") + pl.col("dur_ns")
    return (
        runs.sort("rank", "start_ns", maintain_order=True)
        .with_columns(
            instance=pl.int_range(pl.len(), dtype=pl.UInt32).over("rank"),
            pause_ns=(start - end.shift(1)).over("rank"),
            pace_ns=(start - start.shift(1)).over("rank"),
        )
        .with_columns(lag_ns=start - start.min().over("instance"))
        .sort("instance", "rank")
        .select("instance", "rank", "start_ns", "dur_ns", "pause_ns", "pace_ns", "lag_ns", "name")
    )


def _heaviest(kernels: pl.DataFrame) -> str:
    by_name = kernels.group_by("name").agg(ranks=pl.col("rank").n_unique(), total=pl.col("dur_ns").sum())
    everywhere = by_name.filter(pl.col("ranks") == kernels["rank"].n_unique()).sort(
        "total", "name", descending=[True, False]
    )
    if everywhere.is_empty():
        raise AnalysisError("no kernel runs on all ranks", hint="give the name of one: name='…'")
    return str(everywhere["name"][0])


@Analysis(
    question="When is the device busy?",
    help="nsys: busy share of the device by bin of time",
    view="gpu_time_util_map",
    recorded="device activity or operators",
)
def gpu_time_util_map(
    trace: Trace, *, bins: int = 30, bin_ns: int | None = None, kernels_only: bool = True
) -> pl.DataFrame:
    """Share of the time in which a device runs something, per rank, device and bin of time.

    Kernels that run at the same time count once. The bins are the same for all devices and reach from the first start
    to the last end of any of them; the last one is cut at that end.

    Parameters
    ----------
    bins : int
        Number of bins.
    bin_ns : int, optional
        Width of a bin (ns), in place of ``bins``.
    kernels_only : bool
        Whether copies are left out, as nsys's recipe of this name does.

    Returns
    -------
    polars.DataFrame
        ``rank, device, bin, start_ns, dur_ns, busy_ns, share`` (of the bin), in that order; times in ns.

    Raises
    ------
    AnalysisError
        There is no bin, or there are more than a million.
    """
    events = activity(trace).filter(pl.col("source") != ("copy" if kernels_only else ""))
    grid = time_bins(events, ["rank", "device"], bins=bins, bin_ns=bin_ns)
    return length_within(grid, events, ["rank", "device"]).with_columns(share=pl.col("busy_ns") / pl.col("dur_ns"))
