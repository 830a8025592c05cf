"""What the heat maps of layers and of ranks share: columns of steps, scales of colours, a
timeline of some ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import polars as pl

from llmprof.charts.base.draw import float_of
from llmprof.charts.base.theme import PHASES, in_order
from llmprof.charts.subjects.heatmaps import end_of_scale
from llmprof.errors import LlmprofError
from llmprof.trace import Trace

if TYPE_CHECKING:
    from llmprof.explore.timeline.explorer import Timeline


def timeline_of(
    trace: Trace, ranks: Sequence[int], window: Sequence[float] | None, *, hint: str
) -> Timeline:
    """Timeline of some ranks alone."""
    from llmprof.explore.timeline.explorer import timeline

    if not ranks:
        raise LlmprofError("no rank is picked", hint=hint)
    return timeline(trace.select(rank=list(ranks)), window=window)


def placed_in_columns(
    rows: pl.DataFrame, most: int
) -> tuple[pl.DataFrame, pl.DataFrame, list[str | None], int]:
    """Rows with their ``column``, the columns (``first, last, phase, scale``), their phases, and
    the steps in one.
    """
    order = rows.select("step").unique().sort("step").with_row_index("place")
    size = max(1, -(-order.height // most))
    placed = rows.join(order.with_columns(column=pl.col("place") // size), on="step")
    columns = placed.group_by("column").agg(
        first=pl.min("step"),
        last=pl.max("step"),
        phase=pl.col("phase").mode().sort().first(),
    )
    phases = in_order(columns["phase"], PHASES)
    scale = pl.col("phase").map_elements(phases.index, pl.Int64, skip_nulls=False)
    return placed, columns.with_columns(scale=scale).sort("column"), phases, size


def scales_of(
    full: pl.DataFrame, phases: Sequence[str | None], *, diverging: bool = False
) -> list[dict[str, Any]]:
    """Scale of the ``value`` of the cells of each phase."""
    values = ((name, full.filter(pl.col("phase").eq_missing(name))["value"]) for name in phases)
    return [{"phase": name} | colour_scale(known, diverging=diverging) for name, known in values]


def colour_scale(values: pl.Series, *, diverging: bool = False) -> dict[str, Any]:
    """Ends of a scale of colours, without the last 5 % of values if these are far away;
    logarithmic if necessary.
    """
    values = values.drop_nulls()
    if values.is_empty():
        return {"low": 0.0, "high": 1.0, "most": 0.0, "log": False}
    size = values.abs() if diverging else values
    high = end_of_scale(size)
    least = -high if diverging else float_of(values.min())
    log = not diverging and least > 0 and high > 8 * float_of(values.median())
    return {"low": least, "high": high or 1.0, "most": float_of(size.max()), "log": log}
