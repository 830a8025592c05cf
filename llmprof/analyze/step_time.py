"""Time of the steps: compute, communication, copies and idle time, by phase."""

from __future__ import annotations

import polars as pl

from llmprof.analyze.overlap import overlap
from llmprof.trace import Trace

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
