"""Forward passes that no step holds, such as those of padding on a data-parallel rank without
requests.
"""

from __future__ import annotations

import polars as pl

from llmprof.label.steps.stored import tokens_of
from llmprof.trace import Trace
from llmprof.trace.kept import per_trace
from llmprof.trace.schema import END


@per_trace
def with_passes(trace: Trace) -> pl.DataFrame:
    """The frame of :func:`attribute` whose kernels of passes outside of steps have a ``step`` of
    their own, below 0.
    """
    events = trace.events
    outside = events.filter(pl.col("step").is_null() & pl.col("layer").is_not_null())
    if outside.is_empty():
        return events
    layer = pl.col("layer")
    begins = layer.shift(1).over("rank") - layer > layer.max().over("rank") / 2
    numbered = outside.sort("rank", "start_ns", maintain_order=True).select(
        "event", passed=(-1 - begins.fill_null(False).cum_sum().over("rank")).cast(pl.Int32)
    )
    joined = events.join(numbered, on="event", how="left", maintain_order="left")
    # outside of steps all that a module of experts launches has its stage
    within = (
        pl.col("passed").is_not_null()
        & (pl.col("stage") == "experts")
        & (pl.col("category") == "activation")
    )
    stage = pl.when(within).then(pl.lit("activation")).otherwise("stage")
    return joined.with_columns(stage=stage, step=pl.coalesce("step", "passed")).drop("passed")


@per_trace
def passes(trace: Trace) -> pl.DataFrame:
    """``rank, step`` (below 0), ``start_ns, dur_ns, tokens`` of whole passes whose kernels say
    how many tokens.
    """
    inside = with_passes(trace).drop_nulls("layer")
    layers = inside.group_by("rank").agg(most=pl.n_unique("layer"))
    key, end = ["rank", "step"], END
    outside = inside.filter(pl.col("step") < 0)
    spans = outside.group_by(key).agg(
        pl.min("start_ns"),
        dur_ns=end.max() - pl.min("start_ns"),
        layers=pl.n_unique("layer"),
    )
    found = spans.join(tokens_of(outside, key, trace), on=key).join(layers, on="rank")
    whole = (pl.col("layers") == pl.col("most")) & (pl.col("stores") == pl.col("layers"))
    return (
        found.filter(whole)
        .select(*key, "start_ns", "dur_ns", "tokens")
        .sort(key, descending=[False, True])
    )
