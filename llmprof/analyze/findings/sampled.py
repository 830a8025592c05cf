"""What sampled counters say of the work that takes the most time."""

from __future__ import annotations

from typing import Final

import polars as pl

from llmprof.analyze.counters import averages
from llmprof.analyze.findings.scope import Measure, Scope, total, worst
from llmprof.analyze.overlap import COMMUNICATION, COPY

UNITS: Final = {
    "multiprocessors": r"^SMs? Active|^gpu\.sm_active$",
    "tensor cores": r"^Tensor Active|^gpu\.tensor_active$",
    "device memory": r"^DRAM (?:Active|Read Bandwidth|Write Bandwidth)|^gpu\.dram_active$",
}
"""Counters in % of each unit; those of reading and writing add up."""

LEAST_SAMPLES: Final = 30
LEAST_OWN: Final = 0.5
"""With fewer samples, or samples mostly of other work, a mean says too little."""


def units(scope: Scope) -> Measure | None:
    """How busy the units of the device are in the stage with the most compute time."""
    if not scope.trace.has("counters"):
        return None
    name, label = pl.col("name"), pl.col("stage").fill_null("other")
    known = pl.any_horizontal(name.str.contains(pattern) for pattern in UNITS.values())
    samples = scope.trace.counters.filter(known & (pl.col("unit") == "%"))
    work = scope.events.filter(~pl.col("category").is_in([*COMMUNICATION, *COPY])).with_columns(stage=label)
    times = work.group_by("stage").agg(pl.col("dur_ns").sum()).sort("dur_ns", "stage", descending=[True, False])
    if samples.is_empty() or times.is_empty() or times["stage"][0] == "other":
        return None
    rows = work.filter(pl.col("stage") == times["stage"][0])
    means = averages(rows, samples, ["stage"])
    means = means.filter((pl.col("samples") >= LEAST_SAMPLES) & (pl.col("own_share") >= LEAST_OWN))
    share = (pl.col("mean") * pl.col("known_ns")).sum() / pl.col("known_ns").sum() / 100
    of_counter = means.group_by("counter").agg(share, pl.col("samples").sum(), pl.col("own_share").min())
    busy = {
        unit: min(1.0, total(of, "mean"))
        for unit, pattern in UNITS.items()
        if (of := of_counter.filter(pl.col("counter").str.contains(pattern))).height
    }
    if not busy:
        return None
    figures = {
        "stage": times["stage"][0],
        "units": busy,
        "samples": of_counter["samples"].max(),
        "own_share": of_counter["own_share"].min(),
    }
    rank, window = worst(rows)
    length = min(total(rows, "dur_ns"), scope.span_ns)
    return Measure(length, figures, gain_ns=0.0, where="counter IS NOT NULL", rank=rank, window_ns=window)
