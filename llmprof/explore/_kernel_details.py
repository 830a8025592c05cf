"""What the explorer of kernels shows of one kernel: its launches over time, the shapes and the grids it ran with."""

from __future__ import annotations

from typing import Any, Final

import polars as pl

from llmprof.analyze import attribute, ops_to_kernels
from llmprof.errors import NotCapturedError
from llmprof.explore._pack import Buffers, pack
from llmprof.trace import Trace

MOST_POINTS: Final = 8_000
"""Launches that are drawn one by one; more are drawn as the range of each part of the time."""

PARTS: Final = 600
_MOST_ROWS: Final = 50
_GRID: Final = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "registers", "shared_bytes")


def launches(events: pl.DataFrame) -> tuple[dict[str, Any], Buffers]:
    """Launches over time, packed: one by one, or least, middle and longest of each part of the time.

    Parameters
    ----------
    events : polars.DataFrame
        Rows of :func:`~llmprof.analyze.attribute` of one kernel.

    Returns
    -------
    message : dict
        ``condensed``, ``columns`` as of :func:`~llmprof.explore._pack.pack`, ``span`` (first start, last end; ns).
    buffers : list of bytes
        ``event, rank, step, layer, start_ns, dur_ns``; condensed ``start_ns, end_ns, least_ns, middle_ns, most_ns,
        count``.
    """
    if events.is_empty():
        return {"condensed": False, "columns": [], "span": None}, []
    ends = pl.col("start_ns") + pl.col("dur_ns")
    span = events.select(pl.col("start_ns").min(), end_ns=ends.max()).row(0)
    if events.height <= MOST_POINTS:
        frame = events.select("event", "rank", "step", "layer", "stage", "start_ns", "dur_ns")
    else:
        length = max(1, -(-(span[1] - span[0]) // PARTS))
        dur = pl.col("dur_ns")
        frame = (
            events.group_by(part=(pl.col("start_ns") - span[0]) // length)
            .agg(least_ns=dur.min(), middle_ns=dur.median(), most_ns=dur.max(), count=pl.len())
            .sort("part")
            .with_columns(start_ns=span[0] + pl.col("part") * length, end_ns=span[0] + (pl.col("part") + 1) * length)
            .drop("part")
        )
    columns, buffers = pack(frame)
    return {"condensed": events.height > MOST_POINTS, "columns": columns, "span": list(span)}, buffers


def shapes(trace: Trace, name: str, rank: int | None) -> dict[str, Any]:
    """Operators and shapes that a kernel was launched from: ``rows``, or ``why`` there are none.

    The rows are those of :func:`~llmprof.analyze.ops_to_kernels`, of all ranks together if none is given.
    """
    try:
        frame = ops_to_kernels(trace)
    except NotCapturedError as error:
        return {"rows": [], "why": str(error)}
    found = frame.filter((pl.col("kernel") == name) & (pl.lit(rank is None) | (pl.col("rank") == (rank or 0))))
    rows = (
        found.group_by("op", "shapes")
        .agg(pl.col("count").sum(), pl.col("total_ns").sum())
        .with_columns(mean_ns=pl.col("total_ns") / pl.col("count"))
        .sort("total_ns", "op", "shapes", descending=[True, False, False], nulls_last=True)
    )
    why = "" if rows.height else "No operator was recorded for its launches."
    return {"rows": rows.head(_MOST_ROWS).to_dicts(), "why": why, "total": rows.height}


def grids(trace: Trace, events: pl.DataFrame) -> list[dict[str, Any]]:
    """Grids and blocks that launches ran with: ``grid, block, registers, shared_bytes, count, mean_ns``."""
    if not trace.has("kernels") or events.is_empty():
        return []
    key = ["rank", "stream", "start_ns", "name"]
    known = trace.kernels.select(*key, *_GRID).drop_nulls(["grid_x"]).unique(key, keep="first")
    found = events.select(*key, "dur_ns").join(known, on=key, nulls_equal=True)
    triple = [
        pl.format("{} x {} x {}", *(pl.col(f"{side}_{axis}").fill_null(1) for axis in "xyz")).alias(side)
        for side in ("grid", "block")
    ]
    return (
        found.group_by("registers", "shared_bytes", *triple)
        .agg(count=pl.len(), mean_ns=pl.col("dur_ns").mean())
        .sort("count", "grid", "block", descending=[True, False, False])
        .head(_MOST_ROWS)
        .to_dicts()
    )


def nothing_of(trace: Trace) -> pl.DataFrame:
    """No row of :func:`~llmprof.analyze.attribute`; no columns either where the trace has no events at all."""
    try:
        return attribute(trace).clear()
    except NotCapturedError:
        return pl.DataFrame()
