"""Steps in which a kernel or a range takes much longer than it does in other steps."""

from __future__ import annotations

from typing import Literal

import polars as pl

from llmprof.analyze.catalog import Analysis
from llmprof.analyze.nsys.nvtx import nvtx_kernels
from llmprof.label.steps.steps import steps_of
from llmprof.trace import Trace

_LEAST_STEPS = 5
"""With fewer steps there is no usual time."""


@Analysis(
    question="In which steps does a kernel or a range take unusually long?",
    help="times of kernels or ranges in single steps beside their usual time",
    view="spikes",
    recorded="kernels and steps",
)
def spikes(
    trace: Trace, *, by: Literal["kernel", "range"] = "kernel", min_ratio: float = 1.5
) -> pl.DataFrame:
    """Steps in which a kernel or a range takes longer than in most steps with equally many of it.

    Parameters
    ----------
    trace : Trace
        A trace with kernels and steps; for ranges with markers and launches.
    by : {"kernel", "range"}
        What is compared over the steps: kernels by name, or the device work of ranges by name (from
        the first start to the last end of what each launched).
    min_ratio : float
        Least ratio to the usual time.

    Returns
    -------
    polars.DataFrame
        ``rank, step, phase, name, count`` (in the step), ``start_ns`` (of the longest one),
        ``dur_ns`` (of all of them in the step), ``typical_ns`` (median of this over the steps of
        the rank and phase with the same count, of which there must be five), ``ratio`` (to it),
        ``gap_ns`` (above it), by rank, the greatest excess first. In ns.

    Raises
    ------
    NotCapturedError
        The trace holds no device activity and no operators, or no markers (for ranges).

    Examples
    --------
    >>> analyze.spikes(trace).columns[:4]
    ['rank', 'step', 'phase', 'name']
    """
    if by == "kernel":
        events = trace.events.filter(pl.col("source") != "copy")
    else:
        ranges = nvtx_kernels(trace).filter(pl.col("kernels") > 0).sort("rank", "host_start_ns")
        spans = steps_of(trace).drop_nulls("host_start_ns").sort("rank", "host_start_ns")
        spans = spans.select(
            "rank",
            "step",
            "phase",
            "host_start_ns",
            _end=pl.col("host_start_ns") + pl.col("host_dur_ns"),
        )
        events = ranges.join_asof(spans, on="host_start_ns", by="rank", check_sortedness=False)
        events = events.filter(pl.col("host_start_ns") < pl.col("_end")).sort("start_ns")
    sums = (
        events.drop_nulls("step")
        .select("rank", "step", "phase", "start_ns", "dur_ns", pl.col("name").cast(pl.Categorical))
        .group_by("rank", "step", "phase", "name")
        .agg(
            count=pl.len(),
            start_ns=pl.col("start_ns").get(pl.col("dur_ns").arg_max()),
            dur_ns=pl.sum("dur_ns"),
        )
    )
    alike = ["rank", "phase", "name", "count"]
    usual = pl.median("dur_ns").over(alike)
    return (
        sums.with_columns(typical_ns=usual, _steps=pl.len().over(alike))
        .filter((pl.col("_steps") >= _LEAST_STEPS) & (pl.col("typical_ns") > 0))
        .with_columns(
            ratio=pl.col("dur_ns") / pl.col("typical_ns"),
            gap_ns=pl.col("dur_ns") - pl.col("typical_ns"),
        )
        .filter(pl.col("ratio") >= min_ratio)
        .with_columns(pl.col("name").cast(pl.String))
        .sort("rank", "gap_ns", "step", "name", descending=[False, True, False, False])[
            [
                "rank",
                "step",
                "phase",
                "name",
                "count",
                "start_ns",
                "dur_ns",
                "typical_ns",
                "ratio",
                "gap_ns",
            ]
        ]
    )
