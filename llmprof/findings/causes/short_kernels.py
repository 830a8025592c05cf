"""Kernels that are shorter than their own launch."""

from __future__ import annotations

from typing import Final

import polars as pl

from llmprof.findings.cause import FUSED, Cause, Context, Figures, Measurement
from llmprof.findings.scope import Scope, median_of
from llmprof.units import format_ns, format_share

SHORT_KERNEL_NS: Final = 5_000
"""Launching a kernel shorter than this takes the host about as long (a few us) as running it
takes the device.
"""

NOT_TO_FUSE: Final = ("gemm", "conv", "attention", "moe_experts", "collective")
"""Categories whose short kernels cannot be fused into a neighbour."""

MIN_KERNELS: Final = 10
"""With fewer kernels than this no statement on short kernels is made."""

MIN_SHORT: Final = 0.3
"""Least share of short kernels for a finding."""


class ShortKernels(Figures, frozen=True):
    """Counts are of one step or rank."""

    short: float
    kernels: float
    of_kernels_share: float
    median_ns: float | None

    def title(self, of: Context) -> str:
        return (
            f"Kernels shorter than {format_ns(SHORT_KERNEL_NS)} take {of.amount}{of.where}:"
            f" {self.short:,.0f} of {self.kernels:,.0f}."
        )

    def detail(self, of: Context) -> str:
        return (
            f"They are {format_share(self.of_kernels_share)} of all kernels, and neither GEMM,"
            f" attention nor communication. The median kernel takes {format_ns(self.median_ns)};"
            " each also costs a launch or a graph node."
        )

    def advice(self, of: Context) -> str:
        if of.of_torch:
            return (
                f"Fuse them ({of.words['fuse']}) or raise the batch, so that each does more work."
            )
        return "Fuse them with their neighbours, or give each more work."


def _measure(scope: Scope) -> Measurement | None:
    kernels = scope.events.filter(source="kernel")
    if kernels.height < MIN_KERNELS:
        return None
    short = kernels.filter(
        (pl.col("dur_ns") < SHORT_KERNEL_NS) & ~pl.col("category").is_in(NOT_TO_FUSE)
    )
    share = short.height / kernels.height
    figures = ShortKernels(
        short.height / scope.parts,
        kernels.height / scope.parts,
        share,
        median_of(kernels, "dur_ns"),
    )
    kept = ", ".join(f"'{category}'" for category in NOT_TO_FUSE)
    where = f"dur_ns < {SHORT_KERNEL_NS} AND source = 'kernel' AND category NOT IN ({kept})"
    return Measurement.of(short, figures, where=where) if share >= MIN_SHORT else None


SHORT_KERNELS: Final = Cause("short_kernels", _measure, "events", min_share=0.05, potential=FUSED)
