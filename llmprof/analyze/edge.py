"""The edge of a recording: what a device still did of work from before it is part of no step."""

from __future__ import annotations

import polars as pl

from llmprof.analyze.idle.gaps import DISPATCH_NS, held_parts
from llmprof.label.steps.steps import UNTIL_NEXT, steps_of
from llmprof.trace import Trace
from llmprof.trace.kept import per_trace
from llmprof.trace.schema import END

LANE = ["rank", "device"]
"""Columns of a device of a rank, which has its own timeline."""


@per_trace
def edges(trace: Trace) -> pl.DataFrame:
    """Idle time of each device in which it still did what was launched before the recording."""
    first = pl.col("start_ns") == pl.min("start_ns").over(*LANE, "stream")
    gap = pl.col("start_ns") - END.cum_max().shift().over(LANE)
    may = trace.events.select(
        first & (gap > DISPATCH_NS) & pl.col("launch_start_ns").is_not_null()
    ).to_series()
    columns = [*LANE, "start_ns", "dur_ns"]
    if not may.any():
        return trace.events[columns].clear()
    before = pl.col("_next").is_in(may.arg_true().implode())
    return held_parts(trace, before).filter(waited_kind="before")[columns]


@per_trace
def rank_edges(trace: Trace) -> pl.DataFrame:
    """``rank, edge_ns``: when the first device of a rank had done all work from before."""
    lanes = trace.events.select(LANE).unique()
    ends = edges(trace).group_by(LANE).agg(edge_ns=END.max())
    rows = lanes.join(ends, on=LANE, how="left", nulls_equal=True)
    return (
        rows.group_by("rank")
        .agg(pl.col("edge_ns").fill_null(-1).min())
        .filter(pl.col("edge_ns") >= 0)
    )


def events_of_steps(trace: Trace) -> pl.DataFrame:
    """``trace.events``; what ended before the edge of its rank is of no step."""
    at = rank_edges(trace)
    if not at.height:
        return trace.events
    events = trace.events.join(at, on="rank", how="left", maintain_order="left")
    ended = (pl.col("edge_ns") >= END).fill_null(False)
    return events.with_columns(step=pl.when(~ended).then("step")).drop("edge_ns")


@per_trace
def whole_steps(trace: Trace) -> pl.DataFrame:
    """Steps, each from its first event on the device, after the edge of the recording, to that of
    the next step of its rank, so that idle time between steps is a part of them; the last one to
    its last event.
    """
    rows, at = steps_of(trace), rank_edges(trace)
    whole = rows.drop_nulls("start_ns").with_columns(
        dur_ns=pl.max_horizontal(UNTIL_NEXT - pl.col("start_ns"), 0)
    )
    if at.height:
        inside = pl.col("edge_ns").is_between(pl.col("start_ns"), END, closed="left")
        lost = pl.when(inside).then(pl.col("edge_ns") - pl.col("start_ns")).otherwise(0)
        whole = whole.join(at, on="rank", how="left", maintain_order="left")
        whole = whole.with_columns(pl.col("start_ns") + lost, pl.col("dur_ns") - lost)
    return rows.update(whole.select("rank", "step", "start_ns", "dur_ns"), on=["rank", "step"])
