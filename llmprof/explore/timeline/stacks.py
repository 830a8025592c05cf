"""Stacks of the selected events of a timeline, for a flame graph: by stage, by module, or by Python function."""

from __future__ import annotations

from typing import Any, Final, Literal

import numpy as np
import polars as pl

from llmprof.charts.flame import nodes_of, trunk_of
from llmprof.errors import NotCapturedError
from llmprof.explore.timeline.data import TimelineData
from llmprof.explore.timeline.rows import Row

By = Literal["stage", "module", "python"]
_ROWS: Final = {"module": "modules", "python": "python"}

DEPTH: Final = 80
"""Most frames of a stack that are sent, counted from the first frame in which stacks differ."""

LEAST: Final = 1 / 20_000
"""Narrowest frame that is sent, as a share of the whole; zooming in shows frames narrower than a pixel."""


def kinds_of(data: TimelineData) -> list[By]:
    """Kinds of stacks: by stage, and by module and Python function if the trace has them."""
    present = {row.kind for row in data.rows}
    return ["stage", *(by for by in ("module", "python") if _ROWS[by] in present)]


def flame_of(stacks: pl.DataFrame | None) -> dict[str, Any]:
    """Frames of stacks for a flame graph."""
    rows = None if stacks is None else stacks.filter(pl.col("value") > 0)
    if stacks is None or rows is None or rows.is_empty():
        empty: dict[str, Any] = {key: [] for key in ("trunk", "names", "name", "level", "start", "value")}
        return {**empty, "total": 0, "events": 0, "left_out": 0}
    total = int(rows["value"].sum())
    trunk = trunk_of(rows["stack"])
    nodes = nodes_of(rows.with_columns(pl.col("stack").list.slice(len(trunk))), DEPTH)
    nodes = nodes.filter(pl.col("value") >= LEAST * total)
    names = nodes["name"].unique(maintain_order=True)
    places = nodes["name"].replace_strict(names, pl.int_range(names.len(), eager=True), return_dtype=pl.Int64)
    return {
        "total": total,
        "events": int(stacks["count"].sum()),
        "trunk": trunk,
        "names": names.to_list(),
        "name": places.to_list(),
        "level": nodes["level"].to_list(),
        "start": nodes["x"].to_list(),
        "value": nodes["value"].to_list(),
        "left_out": total - int(nodes.filter(pl.col("level") == 0)["value"].sum()),
    }


def stacks_of(data: TimelineData, events: pl.DataFrame, by: By) -> pl.DataFrame:
    """Stacks of device events, with the kernel as the innermost frame."""
    names = pl.col("name").fill_null("?")
    if by == "stage":
        around = [pl.col("phase").fill_null("no step"), pl.col("stage").fill_null("other")]
        stack = pl.concat_list(*around, names)
        stacked = events.select("rank", thread=pl.col("launch_thread"), value="dur_ns", stack=stack)
    else:
        rows = [row for row in data.rows if row.kind == _ROWS[by]]
        if not rows:
            raise NotCapturedError(
                f"this trace holds no {'modules' if by == 'module' else 'Python functions'}",
                hint="record with with_stack=True (for modules with_modules=True, too), and read the trace without "
                "python_functions=False",
                table="ops",
            )
        parts = [_called(data, row, events) for row in rows]
        stacked = pl.concat([part for part in parts if part.height] or parts[:1])
    summed = stacked.group_by("rank", "thread", "stack").agg(pl.col("value").sum(), count=pl.len())
    text = pl.col("stack").list.join("\n")
    ordered = summed.sort("value", "rank", "thread", text, descending=[True, False, False, False], nulls_last=True)
    return ordered.select("rank", "thread", "stack", "value", unit=pl.lit("ns"), count="count")


def _called(data: TimelineData, row: Row, events: pl.DataFrame) -> pl.DataFrame:
    """Events that a thread launched, with the spans of its row that were open then."""
    own = events.filter(rank=row.rank).filter(pl.col("launch_thread").eq_missing(row.thread))
    own = own.drop_nulls("launch_start_ns")
    times = own["launch_start_ns"].to_numpy()
    frames = [_open(data, row, level, times) for level in range(len(row.lanes))]
    named = own.with_columns(frame.alias(f"frame {level}") for level, frame in enumerate(frames))
    stack = pl.concat_list(*(f"frame {level}" for level in range(len(frames))), pl.col("name").fill_null("?"))
    return named.select("rank", thread=pl.col("launch_thread"), value="dur_ns", stack=stack.list.drop_nulls())


def _open(data: TimelineData, row: Row, level: int, times: np.ndarray) -> pl.Series:
    """Name of the span of a level that is open at each time; null where there is none."""
    lane = row.lanes[level]
    before = np.searchsorted(lane.start, times, "right") - 1
    span = np.maximum(before, 0)
    inside = (before >= 0) & (times < lane.end[span])
    texts = pl.Series(data.names.full, dtype=pl.String).gather(lane.name[span])
    return pl.select(pl.when(pl.Series(inside)).then(texts)).to_series()
