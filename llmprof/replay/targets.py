"""Operators and what of their time lies beyond a target share of their bound."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal, NamedTuple

import polars as pl

from llmprof.analyze.operators import with_events
from llmprof.theory.hardware import Device
from llmprof.theory.shapes import Shape
from llmprof.trace import Trace
from llmprof.trace.kept import per_trace

TARGET: Final = 0.8
"""Share of its bound that a good kernel reaches."""

ROW_KEYS: Final = ("rank", "phase", "stage")
"""What operators are told apart by: a rank may be slower than others."""

To = float | Literal["best"]


class TargetOperators(NamedTuple):
    """Operators with what of their time is beyond the target, and the device events that they
    are made of.
    """

    rows: pl.DataFrame
    """The frame of :func:`operators` by :data:`ROW_KEYS`, with ``row, saved`` (share of the time
    beyond the target).
    """
    events: pl.DataFrame
    """``rank, device, start_ns, dur_ns, event`` (of :func:`attribute`), ``call, row``."""


def operators_below_target(
    trace: Trace,
    to: To = TARGET,
    baseline: Trace | None = None,
    device: str | Path | Device | None = None,
    model: Shape | None = None,
) -> TargetOperators:
    """Operators of a trace and what of their time is beyond the target."""
    rows, events = operators_with_bounds(trace, device, model)
    target = pl.lit(to)
    if to == "best":
        of = ["kind", "bound_by", "fits_cache"]
        seen = (
            [rows]
            if baseline is None
            else [rows, operators_with_bounds(baseline, device, model)[0]]
        )
        best = pl.concat(frame.select(*of, target="bound_share") for frame in seen).filter(
            pl.col("target") <= 1
        )
        best = best.group_by(of).agg(pl.max("target"))
        rows, target = rows.join(best, on=of, how="left", nulls_equal=True), pl.col("target")
    rows = rows.with_columns(saved=(1 - pl.col("bound_share") / target).clip(0))
    return TargetOperators(rows, events)


@per_trace
def operators_with_bounds(
    trace: Trace, device: str | Path | Device | None = None, model: Shape | None = None
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Operators by :data:`ROW_KEYS` against their bounds, and the events that they are made of."""
    rows, events = with_events(trace, ROW_KEYS, device, model)
    return rows, events[["rank", "device", "start_ns", "dur_ns", "event", "call", "row"]]


ANY_STAGE: Final = ("other", "copy")
"""Stages that hold work of any operator, and do not name it."""

_ROW_COLUMNS: Final = (
    "row",
    "operator",
    "kind",
    "shapes",
    "kernel",
    "bound_by",
    "bound_share",
    "saved",
    "reason",
)
KEY: Final = ("operator", "kind", "_stage", "_shapes", "_known")


def add_keys(events: pl.DataFrame, found: TargetOperators) -> pl.DataFrame:
    """Events (with their ``row``) with the columns of their operator and what an opportunity is
    one of.
    """
    stage = pl.when(~pl.col("stage").is_in(ANY_STAGE)).then("stage")
    rows = found.rows.select(
        *_ROW_COLUMNS,
        _stage=stage,
        _shapes=pl.when(stage.is_null()).then("shapes"),
        _known=pl.col("bound_ns").is_not_null(),
    )
    return events.join(rows, on="row", how="left", maintain_order="left")


def saved_of(events: pl.DataFrame, found: TargetOperators) -> pl.DataFrame:
    """Device events of a replay (their ``row`` is ``node``) with the columns of their operator,
    where it has one.
    """
    nodes = events.filter(where="device").select("event", node="row")
    return add_keys(nodes.join(found.events[["event", "row"]], on="event", how="inner"), found)
