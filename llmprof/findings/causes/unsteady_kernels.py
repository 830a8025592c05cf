"""A kernel that takes far longer in some steps than in others with as many of it."""

from __future__ import annotations

from typing import Final

import polars as pl

from llmprof.analyze.spikes import spikes
from llmprof.findings.cause import Cause, Context, Figures, Measurement, readable_name
from llmprof.findings.scope import Scope, heaviest, sum_of
from llmprof.label.steps.steps import steps_of
from llmprof.units import format_ns, format_share

PHASES: Final = ("decode", "other")
"""Steps that read prompts differ by the prompts' lengths."""


class UnsteadyKernels(Figures, frozen=True):
    """Counts are of all steps of the phase, not of the steady ones alone."""

    name: str
    by_name_share: float
    slow_steps: int
    steps: int
    ratio: float
    excess_ns: float
    """A slow step's time above the usual one, in the mean."""

    def title(self, of: Context) -> str:
        return (
            f"{readable_name(self.name)} takes {self.ratio:.1f} times its usual time in"
            f" {self.slow_steps} of {self.steps} steps: {format_share(of.share)} of their time."
        )

    def detail(self, of: Context) -> str:
        return (
            f"A slow step is {format_ns(self.excess_ns)} above the usual one by such kernels;"
            f" {format_share(self.by_name_share)} of it is this kernel."
        )

    def advice(self, of: Context) -> str:
        return (
            "Look at what these steps share: clocks and power of the device, another process on"
            " it, or other inputs of the kernel. Compare a slow and a usual step (charts.timeline)."
        )


def _measure(scope: Scope) -> Measurement | None:
    if scope.steps is None or scope.trace.capture.on_host:
        return None
    phases = scope.windows["phase"].unique()
    every = steps_of(scope.trace).filter(
        pl.col("phase").is_in(phases.implode()),
        pl.col("phase").is_in(PHASES),
        pl.col("dur_ns").is_not_null(),
    )
    if not every.height:
        return None
    found = spikes(scope.trace).join(every[["rank", "step"]], on=["rank", "step"])
    # collectives vary with the ranks that they wait for
    moving = scope.trace.events.filter(category="collective")["name"].unique()
    found = found.filter(~pl.col("name").is_in(moving.implode()))
    if not found.height:
        return None
    rows = found.select("rank", "step", "name", "start_ns", "ratio", dur_ns="gap_ns")
    name, by_name = heaviest(rows, "name")
    own = rows.filter(name=name)
    slow = own[["rank", "step"]].n_unique()
    # steady steps leave slow ones out: the share is that of all steps
    share = sum_of(rows, "dur_ns") / max(1.0, sum_of(every, "dur_ns"))
    figures = UnsteadyKernels(
        name,
        by_name,
        slow,
        every.height,
        float(own.select(pl.median("ratio")).item()),
        sum_of(rows, "dur_ns") / rows[["rank", "step"]].n_unique(),
    )
    each_ns = sum_of(rows, "dur_ns") / every.height
    ns = share * scope.span_ns
    return Measurement.of(own, figures, ns=ns, each_ns=each_ns, where="true", about=name)


POTENTIAL: Final = 0.8
"""Part that may be gained: the same kernel took less in most steps of the recording."""

UNSTEADY_KERNELS: Final = Cause(
    "unsteady_kernels", _measure, "spikes", min_share=0.02, potential=POTENTIAL
)
