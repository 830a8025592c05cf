"""What else happens on the device of a trial: other processes, and clocks that are held down."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import polars as pl

from llmprof.errors import LlmprofError
from llmprof.run.launch import ExperimentConfig
from llmprof.run.launch.doctor.doctor import GpuProcess, ask_gpus
from llmprof.run.launch.monitors import table
from llmprof.run.launch.monitors.nvml import reasons_of
from llmprof.units import format_share

_MASK: Final = "gpu.throttle_reasons"
_SLOW: Final = (
    "sw_power_cap",
    "hw_slowdown",
    "sw_thermal_slowdown",
    "hw_thermal_slowdown",
    "hw_power_brake_slowdown",
)
"""Reasons of a lower clock that come and go by themselves; the others are settings, or an idle
device.
"""


def device_processes(config: ExperimentConfig) -> set[GpuProcess]:
    """Processes that compute on the devices of a configuration, without their memory, as far as
    the driver says.
    """
    name = "CUDA_VISIBLE_DEVICES"
    gpus = ask_gpus(None, config.environment.get(name, os.environ.get(name))).get("gpus") or ()
    return {
        GpuProcess(pid=one.pid, name=one.name)
        for gpu in gpus[: config.devices]
        for one in gpu.processes or ()
    }


def process_names(found: set[GpuProcess]) -> str:
    """Processes by name and number."""
    return ", ".join(
        f"{one.name or 'a process'} ({one.pid})" for one in sorted(found, key=lambda one: one.pid)
    )


def slowed(samples: Path) -> str:
    """Reasons that held clocks down, each with its share of the samples; empty if there were
    none or no samples.
    """
    if not samples.is_file():
        return ""
    try:
        masks = table.read(samples).filter(name=_MASK)["value"].cast(pl.Int64).to_list()
    except LlmprofError:
        return ""
    found = [(reason, sum(reason in reasons_of(mask) for mask in masks)) for reason in _SLOW]
    return ", ".join(
        f"{reason} in {format_share(n / len(masks))} of the samples" for reason, n in found if n
    )
