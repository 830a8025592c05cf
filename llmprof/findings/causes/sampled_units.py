"""How busy the units of the device are in the stage with the most compute time."""

from __future__ import annotations

from typing import Final

import polars as pl

from llmprof.analyze.counters import counter_means
from llmprof.analyze.overlap import COMMUNICATION, COPY
from llmprof.findings.cause import Cause, Context, Figures, Measurement
from llmprof.findings.scope import Scope, sum_of
from llmprof.text import counted, joined
from llmprof.units import format_share

UNITS: Final = {
    "multiprocessors": r"^SMs? Active|^gpu\.sm_active$|^sm__cycles_active\.avg\.pct",
    "tensor cores": r"^Tensor Active|^gpu\.tensor_active$|^sm__\w*pipe_tensor\w*\.\w+\.pct",
    "device memory": (
        r"^DRAM (?:Active|Read Bandwidth|Write Bandwidth)|^gpu\.dram_active$"
        r"|^(?:gpu__dram|dram_)_throughput\.avg\.pct"
    ),
}
"""Counters in % of each unit; those of reading and writing add up."""

MIN_SAMPLES: Final = 30
MIN_OWN: Final = 0.5
"""With fewer samples, or samples mostly of other work, a mean says too little."""

_MIN_BUSY: Final = 0.8


class SampledUnits(Figures, frozen=True):
    """Busy shares of units while a stage computes."""

    stage: str
    units: dict[str, float]
    samples: int
    own_share: float
    """Share of the sampled time in which this work ran."""

    def title(self, of: Context) -> str:
        unit, share = max(self.units.items(), key=lambda item: item[1])
        busy = f"the {unit} {'are' if unit.endswith('s') else 'is'} {format_share(share)} busy"
        return f"Compute of {self.stage}{of.where} takes {of.amount}; {busy}, as sampled."

    def detail(self, of: Context) -> str:
        busy = joined([f"the {unit} {format_share(share)}" for unit, share in self.units.items()])
        return (
            f"Busy, of the most compute of any kind: {busy}. Means over"
            f" {counted(self.samples, 'sample')} of the device's counters; this work ran in"
            f" {format_share(self.own_share)} of the time that they cover."
        )

    def advice(self, of: Context) -> str:
        if self.units.get("device memory", 0) >= _MIN_BUSY:
            return (
                "It moves bytes as fast as the memory can: only fewer bytes help (smaller types,"
                " larger batches for the same weights, fusion)."
            )
        if self.units.get("tensor cores", 0) >= _MIN_BUSY:
            return (
                "It computes as fast as the tensor cores can: only fewer FLOPs or smaller types"
                " help."
            )
        return (
            "Neither limit is near: look for too little work in flight, and for waiting inside it."
        )


def _measure(scope: Scope) -> Measurement | None:
    if not scope.trace.has("counters"):
        return None
    name, label = pl.col("name"), pl.col("stage").fill_null("other")
    known = pl.any_horizontal(name.str.contains(pattern) for pattern in UNITS.values())
    samples = scope.trace.counters.filter(known & (pl.col("unit") == "%"))
    work = scope.events.filter(~pl.col("category").is_in([*COMMUNICATION, *COPY]))
    work = work.with_columns(stage=label)
    times = (
        work.group_by("stage")
        .agg(pl.sum("dur_ns"))
        .sort("dur_ns", "stage", descending=[True, False])
    )
    if samples.is_empty() or times.is_empty() or times["stage"][0] == "other":
        return None
    stage = times["stage"][0]
    rows = work.filter(stage=stage)
    means = counter_means(rows, samples, ["stage"])
    means = means.filter((pl.col("count") >= MIN_SAMPLES) & (pl.col("own_share") >= MIN_OWN))
    share = (pl.col("mean_value") * pl.col("known_ns")).sum() / pl.sum("known_ns") / 100
    of_counter = means.group_by("counter").agg(share, pl.sum("count"), pl.min("own_share"))
    busy = {
        unit: min(1.0, sum_of(of, "mean_value"))
        for unit, pattern in UNITS.items()
        if (of := of_counter.filter(pl.col("counter").str.contains(pattern))).height
    }
    if not busy:
        return None
    figures = SampledUnits(
        stage,
        busy,
        int(of_counter["count"].max()),  # type: ignore[arg-type]
        float(of_counter["own_share"].min()),  # type: ignore[arg-type]
    )
    length = min(sum_of(rows, "dur_ns"), scope.span_ns)
    return Measurement.of(rows, figures, ns=length, gain_ns=0.0, where="counter IS NOT NULL")


SAMPLED_UNITS: Final = Cause("sampled_units", _measure, "counters", info=True)
