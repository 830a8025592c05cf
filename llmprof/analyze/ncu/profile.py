"""Profiles of Nsight Compute without a timeline: their reports, facts, and the limits of
kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import polars as pl

from llmprof.analyze.ncu.hardware import speed_of_light
from llmprof.errors import NotCapturedError, ReadError, UnknownFormatError
from llmprof.findings.hardware import findings, short_name, typical_limit
from llmprof.readers.ncu.source import read_source
from llmprof.trace.metrics.data import Metrics

NEEDS_TIMELINE: Final = (
    "steps, layers over time, overlap, idle time, collectives and the host",
    "record a timeline of the same program: llmprof run --profile-mode torch (or nsys)",
)
"""Data that hardware metrics cannot show, and the recording that would."""


def instruction_samples(report: Path | None) -> pl.DataFrame:
    """Samples of the instructions: :func:`llmprof.read_source`."""
    if report is None:
        found = "pages in CSV hold no samples of instructions"
        raise NotCapturedError(found, hint="pass the report itself, a file .ncu-rep")
    try:
        return read_source(report)
    except (ReadError, UnknownFormatError) as error:
        raise NotCapturedError(error.found, hint=error.hint) from error


@dataclass(frozen=True, slots=True)
class HardwareProfile:
    """Metrics of Nsight Compute, the report with their samples (if there is one), and the paths
    that a page shows.
    """

    metrics: Metrics
    path: Path | None = None
    name: str = "PATH"

    @property
    def source(self) -> pl.DataFrame:
        """Samples of the instructions."""
        return instruction_samples(self.path)

    @property
    def findings(self) -> pl.DataFrame:
        """Findings, with the hottest line where it is known."""
        try:
            source = self.source
        except NotCapturedError:
            return findings(self.metrics)
        return findings(self.metrics, source=source)


def kernel_limits(metrics: Metrics) -> pl.DataFrame:
    """Kernels by their time, with the limit that most of their time has."""
    length = pl.col("dur_ns")
    speed = speed_of_light(metrics)
    limit = typical_limit(speed)[
        ["kernel_name", "bound_by", "compute_share", "memory_share", "bound_share", "stall"]
    ]
    return (
        speed.sort(length, descending=True, nulls_last=True)
        .group_by("kernel_name", maintain_order=True)
        .agg(
            count=pl.len(),
            total_ns=length.sum(),
            median_ns=length.median(),
            min_ns=length.min(),
            max_ns=length.max(),
        )
        .join(limit, on="kernel_name", how="left", nulls_equal=True, maintain_order="left")
        .sort("total_ns", descending=True, maintain_order=True)
        .with_columns(share=pl.col("total_ns") / pl.sum("total_ns"))
        .select(
            *("kernel_name", "count", "total_ns", "share", "median_ns", "min_ns", "max_ns"),
            *("bound_by", "compute_share", "memory_share", "bound_share", "stall"),
        )
    )


def profile_facts(metrics: Metrics) -> list[tuple[str, str]]:
    """Facts about the profile, as names and values."""
    launches = metrics.kernels
    devices = ", ".join(sorted(set(launches["device_name"].drop_nulls().to_list())))
    sections = metrics.metrics["section"].drop_nulls().n_unique()
    processes = launches[["run", "process"]].unique().height
    where = f", in {sections:,} sections of the details page" if sections else ""
    rows = [
        ("Device", devices or "not named in these metrics"),
        ("Launches", f"{launches.height:,} of {launches['kernel_name'].n_unique():,} kernels"),
        ("Processes", f"{processes:,}" if processes > 1 else ""),
        ("Metrics", f"{metrics.metrics['metric'].n_unique():,} by name{where}"),
        ("Rules", f"{metrics.rules.height:,} results of the profiler's own rules"),
        ("Files", f"{metrics.coverage.get('files', 0):,}"),
    ]
    return [row for row in rows if row[1]]


def metrics_reading(metrics: Metrics) -> list[tuple[str, str]]:
    """Data that reading the files kept and lost."""
    coverage = metrics.coverage
    lost = {
        name: int(coverage.get(name) or 0)
        for name in ("cut_rows", "broken_rows", "lost_kernels", "lost_metrics")
    }
    words = ", ".join(
        f"{count:,} {name.replace('_', ' ')}" for name, count in lost.items() if count
    )
    timed = metrics.kernels["dur_ns"].count()
    return [
        ("Launches with a duration", f"{timed:,} of {metrics.kernels.height:,}"),
        ("Lost to damage", words or "nothing"),
    ]


def metrics_headline(metrics: Metrics) -> str:
    """Device and number of launches."""
    launches = metrics.kernels
    devices = (
        ", ".join(sorted(set(launches["device_name"].drop_nulls().to_list()))) or "device not named"
    )
    count = "one launch" if launches.height == 1 else f"{launches.height:,} launches"
    longest = launches.sort("dur_ns", descending=True, nulls_last=True)
    first = (
        f", most time in {short_name(longest['kernel_name'][0])}"
        if longest["dur_ns"].count()
        else ""
    )
    return f"Hardware metrics of {count} on {devices}{first}"
