"""Kernel categories: what each kernel does for the model."""

from __future__ import annotations

import polars as pl

from llmprof.analyze._memo import per_trace
from llmprof.analyze.activity import activity
from llmprof.trace import Trace


@per_trace
def kernel_categories(trace: Trace) -> pl.DataFrame:
    """Category of each distinct kernel, with its count and time.

    The category comes from the kernel's name by an ordered table of patterns (``llmprof.names.KERNEL_PATTERNS``);
    ``llmprof.names.register(category, pattern)`` puts one's own in front. On a trace without a device the outermost
    operators stand in for kernels.

    Parameters
    ----------
    trace : Trace
        Any trace with kernels or operators.

    Returns
    -------
    polars.DataFrame
        ``name, category, count, total_ns, share``; the share is of the summed time of all rows, which counts
        overlapping kernels twice, and null if that is 0. Longest first.

    Raises
    ------
    NotCapturedError
        The trace has neither kernels nor operators.
    """
    events = activity(trace).filter(pl.col("source") != "copy")
    return (
        events.group_by("name", "category")
        .agg(count=pl.len(), total_ns=pl.col("dur_ns").sum())
        .with_columns(share=pl.when(pl.col("total_ns").sum() > 0).then(pl.col("total_ns") / pl.col("total_ns").sum()))
        .sort("total_ns", "name", descending=[True, False])
    )
