"""The decode steps that represent a run: without start-up, warm-up and outliers."""

from __future__ import annotations

import polars as pl

from llmprof.analyze._memo import per_trace
from llmprof.analyze.steps import steps
from llmprof.trace import Trace

MAX_DEVIATIONS = 4.0
MAD_TO_SIGMA = 1.4826
"""The median absolute deviation times this is the standard deviation of a normal distribution."""


@per_trace
def steady_state(trace: Trace) -> pl.DataFrame:
    """Decode steps that represent the run.

    Of each rank, the decode steps with the batch size that most decode steps have, in the longest stretch of the
    run that holds no other phase; a step whose device span is more than four robust standard deviations (and 10 %)
    off the median is a warm-up or a disturbance and left out, and so is the first decode step after a prefill where
    at least three others stay. Model load, graph captures, prefill and empty steps are never in it.

    Parameters
    ----------
    trace : Trace
        Any trace with device activity or operators.

    Returns
    -------
    polars.DataFrame
        Rows of :func:`~llmprof.analyze.steps.steps`; none for a rank without decode steps.

    Raises
    ------
    NotCapturedError
        The trace has neither kernels nor copies nor operators.
    """
    found = steps(trace).filter((pl.col("phase") != "empty") & pl.col("device_dur_ns").is_not_null())
    decode = pl.col("phase") == "decode"
    after_other = decode & (pl.col("phase").shift(1).over("rank") != "decode").fill_null(value=True)
    found = found.with_columns(_run=after_other.cum_sum().over("rank"), _first=after_other).filter(decode)
    if not found.height:
        return found.drop("_run", "_first")
    batch = pl.col("generation_requests").mode().min().over("rank")
    found = found.filter(pl.col("generation_requests").eq_missing(batch))
    length = pl.len().over("rank", "_run")
    found = found.filter(length == length.max().over("rank"))
    found = found.filter(pl.col("_run") == pl.col("_run").min().over("rank"))
    found = found.filter(~pl.col("_first") | (pl.len().over("rank") <= 3))
    span = pl.col("device_dur_ns")
    middle = span.median().over("rank")
    spread = (span - middle).abs().median().over("rank") * MAD_TO_SIGMA
    limit = pl.max_horizontal(spread * MAX_DEVIATIONS, middle * 0.1)
    return found.filter((span - middle).abs() <= limit).drop("_run", "_first")
