"""Why warps waited, by Nsight Compute's warp states."""

from __future__ import annotations

from typing import Final

import polars as pl

from llmprof.metrics_data import Metrics

_RATIO: Final = r"^smsp__average_warps?_(?:latency_)?issue_stalled_(\w+?)(?:_per_issue_active)?\.ratio$"
_SAMPLED: Final = r"^smsp__pcsamp_warps_issue_stalled_(\w+?)$"
_NO_STALL: Final = ("selected", "not_selected")
_SAME: Final = {"gmma": "warpgroup_arrive", "no_instruction": "no_instructions"}
"""One reason, two names: of the counters and of the sampler."""


def stalls(metrics: Metrics) -> pl.DataFrame:
    """Stall reasons of each launch.

    Parameters
    ----------
    metrics : Metrics
        Hardware metrics with the section WarpStateStats, or warp samples (SourceCounters).

    Returns
    -------
    polars.DataFrame
        ``kernel_id, reason, share``: share of the time between two instructions of a warp (with samples: of its
        samples) that the warp spent in this state, largest first. ``selected`` and ``not_selected``, in which a warp
        could run, count in the whole but are no rows.
    """
    frame = metrics.metrics.filter(pl.col("value").is_not_null())
    frame = frame.filter(~pl.col("metric").str.ends_with("_not_issued"))
    found = [
        frame.filter(pl.col("metric").str.contains(pattern)).select(
            "kernel_id", "value", reason=pl.col("metric").str.extract(pattern, 1).replace(_SAME), order=pl.lit(order)
        )
        for order, pattern in enumerate((_RATIO, _SAMPLED))
    ]
    states = pl.concat(found)
    states = states.filter(pl.col("order") == pl.col("order").min().over("kernel_id"))
    states = states.with_columns(share=pl.col("value") / pl.col("value").sum().over("kernel_id"))
    waiting = ~pl.col("reason").is_in(_NO_STALL) & (pl.col("share") > 0) & pl.col("share").is_finite()
    return (
        states.filter(waiting)
        .sort("kernel_id", "share", "reason", descending=[False, True, False])
        .select("kernel_id", "reason", "share")
    )
