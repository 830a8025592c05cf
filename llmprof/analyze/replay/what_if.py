"""What would be gained: the step time that a recording would have with a change, from a replay of its dependencies."""

from __future__ import annotations

import polars as pl

from llmprof.analyze.changes import Change
from llmprof.analyze.replay.graph import graph
from llmprof.analyze.replay.plan import LEVELS, Plan, periods
from llmprof.trace import Trace

_SCHEMA = {
    "phase": pl.String(),
    "steps": pl.UInt32(),
    "recorded_ns": pl.Float64(),
    "predicted_ns": pl.Float64(),
    "low_ns": pl.Float64(),
    "high_ns": pl.Float64(),
    "gain_ns": pl.Float64(),
    "speedup": pl.Float64(),
    "changes": pl.String(),
    "unknown": pl.String(),
}


def what_if(trace: Trace, *changes: Change) -> pl.DataFrame:
    """Predict the time of a step under changes, by replaying what was recorded.

    Every event begins again when all that it waited for is done: the host's program order, launches, streams,
    synchronisation, collectives (:mod:`llmprof.analyze.replay.graph`). What a change cannot know is chosen three
    times: so that the step is short, as expected, and so that it is long. Without a change the recorded times come
    out again.

    Parameters
    ----------
    trace : Trace
        A trace with device activity; what concerns the host needs its calls, what concerns ranks all of them.
    *changes : Change
        From :mod:`llmprof.analyze.changes`; applied in their order.

    Returns
    -------
    polars.DataFrame
        By ``phase``: ``steps`` (steps of all ranks that have one before them), ``recorded_ns, predicted_ns`` (median
        time of a step, from the end of the one before to its own end on the devices), ``low_ns, high_ns`` (the
        interval), ``gain_ns`` (recorded minus predicted), ``speedup``, ``changes`` and ``unknown`` (what the
        prediction cannot know, in words).

    Raises
    ------
    NotCapturedError
        The trace has no device activity.
    AnalysisError
        A change matches nothing.

    Examples
    --------
    >>> found = analyze.what_if(trace, analyze.changes.scale("attention", 0.5))
    >>> bool((found["gain_ns"] >= 0).all())
    True
    """
    built = graph(trace)
    recorded = _by_phase(periods(built, built.time), "recorded_ns")
    for level in LEVELS:
        plan = Plan(built, level)
        for change in changes:
            change.apply(plan, trace)
        recorded = recorded.join(_by_phase(periods(built, plan.times()), f"{level}_ns").drop("steps"), on="phase")
    middle, low, high = pl.col("middle_ns"), pl.col("low_ns"), pl.col("high_ns")
    return (
        recorded.with_columns(
            predicted_ns=middle,
            low_ns=pl.min_horizontal(low, middle, high),
            high_ns=pl.max_horizontal(low, middle, high),
            gain_ns=pl.col("recorded_ns") - middle,
            speedup=pl.col("recorded_ns") / middle,
            changes=pl.lit("; ".join(change.words for change in changes)),
            unknown=pl.lit("; ".join(change.unknown for change in changes)),
        )
        .select(*_SCHEMA)
        .cast(_SCHEMA)  # type: ignore[arg-type]
        .sort("phase")
    )


def _by_phase(rows: pl.DataFrame, name: str) -> pl.DataFrame:
    return rows.group_by("phase").agg(steps=pl.len(), **{name: pl.col("period_ns").median()})
