"""Whether the ranks keep pace: each run of one kernel, side by side over the ranks."""

from __future__ import annotations

import polars as pl

from llmprof.analyze._memo import per_trace
from llmprof.errors import AnalysisError
from llmprof.trace import Trace


@per_trace
def cuda_gpu_kern_pace(trace: Trace, name: str | None = None) -> pl.DataFrame:
    """Runs of one kernel, numbered on each rank, with the pause before each and how far behind the first rank it is.

    The n-th run on one rank stands beside the n-th on the others, which is the same work as long as all ranks run the
    kernel equally often; see the largest ``instance`` of each rank.

    Parameters
    ----------
    trace : Trace
        A trace with kernels.
    name : str, optional
        The whole name of a kernel. Without it, the one with the longest total time of those that run on all ranks that
        run kernels at all.

    Returns
    -------
    polars.DataFrame
        ``instance`` (from 0, by start), ``rank, start_ns, dur_ns, pause_ns`` (from the end of the run before on this
        rank to the start of this one; negative where they overlap, null for the first), ``pace_ns`` (from start to
        start), ``lag_ns`` (behind the first rank to start this instance), ``name``. In the order of instance and rank.

    Raises
    ------
    NotCapturedError
        The trace holds no kernels.
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
