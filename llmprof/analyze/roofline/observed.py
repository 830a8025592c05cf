"""Stages of a trace as observations for a calibration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from llmprof.analyze.roofline.batches import batches
from llmprof.analyze.roofline.join import IDLE, roofline_join
from llmprof.analyze.steps.steps import steps
from llmprof.hardware import Device
from llmprof.theory.calibration import Observation
from llmprof.theory.plan import Plan
from llmprof.theory.shapes import Shape, shape
from llmprof.trace import Trace

WAITING = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv")
"""Stages whose time is mostly that of waiting for others; only all-reduces are kept, of the last rank to arrive."""

_NEAR = 64
"""Tokens of context within which steps count as equal."""


def stage_observations(
    trace: Trace,
    model: str | Path | Mapping[str, Any] | Shape,
    device: str | Path | Device | None = None,
    *,
    tp_size: int = 1,
    weight: float = 0.2,
) -> list[Observation]:
    """Measured device time of each stage, the median over steps of equal batches, of the first rank.

    Steps that read prompts and generate at once are left out, as are collectives, whose time is mostly waiting; but
    all-reduces over ranks that are all in the trace are kept, as long as they took on the rank that waited least.

    Parameters
    ----------
    trace : Trace
        Any trace whose steps say their tokens.
    model : str, path, mapping or Shape
        What ran.
    device : str, path or Device, optional
        What it ran on.
    tp_size : int
        Tensor parallel ranks.
    weight : float
        What each stage counts beside a whole step.

    Returns
    -------
    list of Observation
        For :func:`llmprof.theory.calibrate`.

    Raises
    ------
    LlmprofError
        As :func:`llmprof.analyze.roofline_join`.
    """
    read = shape(model)
    joined = roofline_join(trace, read, device, tp_size=tp_size)
    rank = joined["rank"].min()
    known = {step: batch for (r, step), (batch, _) in batches(steps(trace)).items() if r == rank and len(batch) == 1}
    waited = pl.col("stage") == "all_reduce"
    joined = joined.with_columns(
        measured_ns=pl.when(waited).then(pl.col("measured_ns").min().over("step", "stage")).otherwise("measured_ns")
    )
    left_out = [stage for stage in WAITING if stage != "all_reduce" or joined["rank"].n_unique() < tp_size]
    rows = joined.filter(
        (pl.col("rank") == rank)
        & pl.col("explained")
        & ~pl.col("stage").is_in([IDLE, *left_out])
        & pl.col("step").is_in(list(known))
        & (pl.col("measured_ns") > 0)
    )
    near = {step: round(sum(part.context for part in batch) / _NEAR) for step, batch in known.items()}
    rows = rows.with_columns(near=pl.col("step").replace_strict(near, return_dtype=pl.Int64))
    groups = rows.group_by("phase", "tokens", "requests", "near", "stage", maintain_order=True).agg(
        pl.col("measured_ns").median(), step=pl.col("step").sort().get(pl.len() // 2)
    )
    plan = Plan(tp=tp_size)
    return [
        Observation(read, plan, known[row["step"]], "stage", row["measured_ns"] / 1e9, row["stage"], weight)
        for row in groups.iter_rows(named=True)
    ]
