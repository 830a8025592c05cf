"""The decode steps that represent a run: without start-up, warm-up and outliers."""

from __future__ import annotations

import polars as pl

from llmprof.analyze.analysis import Analysis, per_trace
from llmprof.analyze.overlap import overlap
from llmprof.analyze.steps.steps import steps
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

    Examples
    --------
    >>> analyze.steady_state(trace)["phase"].unique().to_list()
    ['decode']
    """
    found = steps(trace).filter((pl.col("phase") != "empty") & pl.col("dur_ns").is_not_null())
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
    span = pl.col("dur_ns")
    middle = span.median().over("rank")
    spread = (span - middle).abs().median().over("rank") * MAD_TO_SIGMA
    limit = pl.max_horizontal(spread * MAX_DEVIATIONS, middle * 0.1)
    return found.filter((span - middle).abs() <= limit).drop("_run", "_first")


PARTS = {
    "compute": pl.col("compute_ns") - pl.col("hidden_communication_ns"),
    "hidden communication": pl.col("hidden_communication_ns"),
    "exposed communication": pl.col("exposed_communication_ns"),
    "exposed copy": pl.col("exposed_copy_ns"),
    "idle": pl.col("idle_ns"),
}
"""Parts of the time of a step, which add up to it."""

SCHEMA = {
    "phase": pl.String,
    "part": pl.String,
    "ns": pl.Int64,
    "share": pl.Float64,
    "steps": pl.Int64,
    "ranks": pl.Int64,
}


def step_time(trace: Trace) -> pl.DataFrame:
    """Time of the steps by phase and part, over all ranks.

    Parameters
    ----------
    trace : Trace
        Any trace.

    Returns
    -------
    polars.DataFrame
        ``phase``; ``part``: ``compute`` (alone), ``hidden communication`` (beside compute), ``exposed communication``,
        ``exposed copy``, ``idle``; ``ns``, summed over the ranks and steps of the phase; ``share`` of the phase's
        time; ``steps`` and ``ranks``. Steps without work are left out, and so is the time between steps.

    Examples
    --------
    >>> analyze.step_time(trace).columns
    ['phase', 'part', 'ns', 'share', 'steps', 'ranks']
    """
    rows = overlap(trace, by=("rank", "step", "phase"))
    rows = rows.filter(pl.col("step").is_not_null() & (pl.col("phase") != "empty"))
    sums = rows.group_by("phase").agg(
        *(part.fill_null(0).sum().cast(pl.Int64).alias(name) for name, part in PARTS.items()),
        steps=pl.col("step").n_unique().cast(pl.Int64),
        ranks=pl.col("rank").n_unique().cast(pl.Int64),
    )
    long = sums.unpivot(list(PARTS), index=["phase", "steps", "ranks"], variable_name="part", value_name="ns")
    share = pl.when(pl.col("ns").sum().over("phase") > 0).then(pl.col("ns") / pl.col("ns").sum().over("phase"))
    places = {name: i for i, name in enumerate(PARTS)}
    return (
        long.with_columns(share=share)
        .sort("phase", pl.col("part").replace_strict(places, return_dtype=pl.Int64))
        .select(*SCHEMA)
        .cast(SCHEMA)  # type: ignore[arg-type]
    )


ANALYSIS = Analysis(
    function=steady_state,
    question="Which steps represent the run?",
    help="the decode steps that represent the run",
    view="steady",
    columns=("rank", "step", "phase", "start_ns", "dur_ns", "host_dur_ns", "generation_requests", "source"),
)
STEP_TIME = Analysis(
    function=step_time,
    question="What is a step's time made of?",
    help="time of steps by phase and part",
    view="step-time",
)
