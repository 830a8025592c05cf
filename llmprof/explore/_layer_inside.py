"""What is inside a cell of the explorer of layers: its events, stages, kernels and operators."""

from __future__ import annotations

from typing import Any

import polars as pl

from llmprof.analyze.attribution import attribute
from llmprof.analyze.kernel_summary import kernel_summary_of
from llmprof.analyze.layer_gaps import layer_gaps
from llmprof.analyze.layers import layers
from llmprof.analyze.ops_to_kernels import operators_of
from llmprof.trace import Trace


def events_of(
    trace: Trace, *, rank: int | None, step: int | None, layer: int | None, stage: str | None = None
) -> pl.DataFrame:
    """Rows of ``attribute`` that lie in a cell, or in a step, or in a layer of every step; none if neither is given."""
    events = attribute(trace)
    if step is None and layer is None:
        return events.clear()
    chosen = {"rank": rank, "step": step, "layer": layer, "stage": stage}
    within = [pl.col(name) == value for name, value in chosen.items() if value is not None]
    return events.filter(*within)


def stages_of(trace: Trace, *, rank: int, step: int, layer: int) -> pl.DataFrame:
    """Stages of a cell beside those of the typical layer: ``stage, dur_ns, busy_ns, kernels, typical_ns, gap_ns``.

    A stage that comes twice is added up; the typical one is the median over the layers of the same rank and step. In
    the order in which they begin.
    """
    found = layers(trace).filter(pl.col("rank") == rank, pl.col("step") == step)
    sums = found.group_by("layer", "stage").agg(
        pl.col("start_ns").min(), pl.col("dur_ns", "busy_ns").sum(), pl.col("kernels").sum()
    )
    typical = sums.group_by("stage").agg(typical_ns=pl.col("dur_ns").median())
    mine = sums.filter(pl.col("layer") == layer).sort("start_ns", "stage")
    mine = mine.join(typical, on="stage", how="left", maintain_order="left")
    return mine.select(
        "stage", "dur_ns", "busy_ns", "kernels", "typical_ns", gap_ns=pl.col("dur_ns") - pl.col("typical_ns")
    )


def kernels_of(trace: Trace, events: pl.DataFrame) -> pl.DataFrame:
    """Kernels of device events with the operators that ran them: ``stage, op, name, category, count, total_ns, share``.

    ``op`` is null where operators were not recorded. ``share`` is of the summed time of the events. The longest first.
    """
    if trace.has("ops") and events.height:
        ranks = events["rank"].unique().to_list()
        events = operators_of(events, trace.ops.filter(pl.col("rank").is_in(ranks)))
    else:
        events = events.with_columns(op=pl.lit(None, dtype=pl.String))
    summary = kernel_summary_of(events, ("stage", "op"))
    whole = pl.col("total_ns").sum()
    return (
        summary.with_columns(share=pl.when(whole > 0).then(pl.col("total_ns") / whole))
        .sort("total_ns", "stage", "op", "name", descending=[True, False, False, False], nulls_last=True)
        .select("stage", "op", "name", "category", "count", "total_ns", "share")
    )


def cell_of(trace: Trace, *, rank: int, step: int, layer: int, stage: str | None = None) -> dict[str, Any] | None:
    """The row of ``layer_gaps`` of a cell; None where the layer has no such row."""
    found = layer_gaps(trace, stage=stage, measure="dur_ns").filter(
        pl.col("rank") == rank, pl.col("step") == step, pl.col("layer") == layer
    )
    return found.row(0, named=True) if found.height else None
