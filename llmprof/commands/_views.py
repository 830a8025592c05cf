"""The analyses as the command line shows them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class View:
    """An analysis as the command line shows it: its name, what it says, the columns that people want, their order."""

    analysis: str
    help: str
    columns: tuple[str, ...] = ()
    longest_first: bool = False
    by: str = ""
    options: dict[str, Any] = field(default_factory=dict)


VIEWS: dict[str, View] = {
    "findings": View("findings", "what takes the time, most important first, and what to try"),
    "steps": View(
        "steps",
        "every step of the engine on every rank",
        (
            "rank", "step", "phase", "device_start_ns", "device_dur_ns", "dur_ns", "context_tokens",
            "generation_requests", "source",
        ),
    ),
    "steady": View(
        "steady_state",
        "the decode steps that represent the run",
        ("rank", "step", "phase", "device_start_ns", "device_dur_ns", "dur_ns", "generation_requests", "source"),
    ),
    "layers": View(
        "layers",
        "every layer of every step by stage",
        (
            "rank", "step", "phase", "layer", "stage", "occurrence", "start_ns", "dur_ns", "busy_ns", "kernels",
            "host_dur_ns",
        ),
        by="layer",
    ),
    "overlap": View(
        "overlap",
        "compute, exposed and hidden communication, copies and idle time",
        (
            "rank", "step", "phase", "stage", "total_ns", "compute_ns", "exposed_communication_ns",
            "hidden_communication_ns", "exposed_copy_ns", "idle_ns",
        ),
        by="columns",
        options={"by": ("rank", "step", "phase")},
    ),
    "idle": View(
        "idle",
        "gaps in which the device does nothing, and their causes",
        ("rank", "step", "start_ns", "dur_ns", "cause", "sync_name", "next_name"),
        longest_first=True,
    ),
    "stream-gaps": View(
        "stream_gaps",
        "gaps of single streams, and how much others worked meanwhile",
        ("rank", "stream", "step", "start_ns", "dur_ns", "share_busy_elsewhere", "next_name"),
        longest_first=True,
    ),
    "collectives": View(
        "collectives",
        "every collective: waiting, transfer, bandwidth",
        (
            "rank", "step", "layer", "call", "kind", "algorithm", "bytes", "dur_ns", "wait_ns", "transfer_ns",
            "last_rank", "bus_gbps",
        ),
    ),
    "launch-delay": View(
        "launch_delay",
        "from the host's launch call to the start of the kernel",
        (
            "rank", "step", "kernels", "calls", "share_launched", "host_call_ns", "median_ns", "p95_ns", "min_ns",
            "max_ns",
        ),
    ),
    "kernels": View(
        "kernel_summary",
        "time of each kernel",
        ("rank", "step", "phase", "stage", "total_ns", "share", "count", "median_ns", "max_ns", "category", "name"),
        by="columns",
    ),
    "ops": View(
        "ops_to_kernels",
        "operators of the host, their kernels and shapes",
        ("rank", "total_ns", "share", "count", "op", "kernel", "shapes"),
    ),
    "categories": View("kernel_categories", "category of each kernel name"),
    "coverage": View(
        "coverage",
        "share of the device time that has a step, a stage, a launch …",
        ("rank", "measure", "share", "covered_ns", "total_ns", "missing_events", "of"),
    ),
    "events": View(
        "attribute",
        "every device event with its step, layer and stage",
        ("rank", "stream", "step", "phase", "layer", "stage", "start_ns", "dur_ns", "name"),
    ),
}  # fmt: skip
"""What ``llmprof analyze --what`` takes."""
