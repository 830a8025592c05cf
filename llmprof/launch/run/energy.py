"""Energy of a run: joules per phase and per token, from the energy counter of the GPUs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import fmean, stdev
from typing import Any, Final

import polars as pl

from llmprof.errors import NotCapturedError
from llmprof.launch.engines._points import t95
from llmprof.units import NS_PER_S

COUNTER: Final = "gpu.energy"
LEAST_SAMPLES: Final = 3
"""Least samples of each GPU within a repeat: with fewer no energy is given, since the counter moves in steps."""

_SCHEMA = {
    "phase": pl.String,
    "repeat": pl.Int64,
    "joules": pl.Float64,
    "watts": pl.Float64,
    "output_tokens": pl.Int64,
    "joules_per_output_token": pl.Float64,
    "devices": pl.Int64,
    "samples": pl.Int64,
}


def energy(samples: pl.DataFrame, worker: Mapping[str, Any]) -> pl.DataFrame:
    """Energy of the GPUs in each repeat of a run.

    ``joules = sum over the GPUs of E(end) - E(start)``, where ``E`` is the counter of NVML
    (``nvmlDeviceGetTotalEnergyConsumption``, Volta and later), interpolated linearly between two samples. It is the
    energy of the whole board, including work of others on it.

    Parameters
    ----------
    samples : polars.DataFrame
        ``time_ns`` (epoch), ``device``, ``name``, ``value`` (J), as the monitors write them.
    worker : mapping
        What the engine's script wrote (``worker.json``): its stages and requests.

    Returns
    -------
    polars.DataFrame
        ``phase`` (``plain``, ``profiled``), ``repeat``, ``joules``, ``watts`` (mean power of all GPUs),
        ``output_tokens``, ``joules_per_output_token`` (null without tokens), ``devices``, ``samples`` (within the
        repeat, of the GPU with the fewest). Repeats with fewer than three samples are left out.

    Raises
    ------
    NotCapturedError
        The monitors have no counter of energy.
    """
    counter = samples.filter(pl.col("name") == COUNTER).sort("time_ns")
    if counter.is_empty():
        raise NotCapturedError(
            "the monitors have no counter of energy",
            hint="it needs an NVIDIA GPU from Volta on, nvidia-ml-py, and monitor_hz above 0",
        )
    tokens: dict[tuple[Any, Any], int] = {}
    for request in worker.get("requests") or ():
        key = (request.get("phase"), request.get("repeat"))
        tokens[key] = tokens.get(key, 0) + (request.get("output_tokens") or 0)
    rows = []
    for stage in worker.get("stages") or ():
        if stage["name"] not in {"plain", "profiled"}:
            continue
        first, last = stage["start_ns"], stage["start_ns"] + stage["dur_ns"]
        parts = [_between(one, first, last) for one in counter.partition_by("device")]
        fewest = min(inside for _, inside in parts)
        if fewest < LEAST_SAMPLES:
            continue
        joules, count = sum(part for part, _ in parts), tokens.get((stage["name"], stage["repeat"]), 0)
        seconds = stage["dur_ns"] / NS_PER_S
        each = joules / count if count else None
        rows.append((stage["name"], stage["repeat"], joules, joules / seconds, count, each, len(parts), fewest))
    return pl.DataFrame(rows, schema=_SCHEMA, orient="row")


def summary(frame: pl.DataFrame) -> list[dict[str, Any]]:
    """Joules per output token of each phase, with the 95 % interval of the mean over its repeats.

    Returns
    -------
    list of dict
        ``phase, joules_per_output_token, ci95_low, ci95_high, watts, repeats``; the interval is null for one repeat.
    """
    phases = []
    for (phase,), rows in frame.drop_nulls("joules_per_output_token").group_by("phase", maintain_order=True):
        values = rows["joules_per_output_token"].to_list()
        half = t95(len(values) - 1) * stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
        mean = fmean(values)
        phases.append(
            {
                "phase": phase,
                "joules_per_output_token": mean,
                "ci95_low": None if half is None else mean - half,
                "ci95_high": None if half is None else mean + half,
                "watts": fmean(rows["watts"].to_list()),
                "repeats": len(values),
            }
        )
    return phases


def _between(one: pl.DataFrame, first: int, last: int) -> tuple[float, int]:
    """Energy of one GPU between two times, and the number of samples in between."""
    times, values = one["time_ns"].to_list(), one["value"].to_list()
    inside = sum(first <= at <= last for at in times)
    return _at(times, values, last) - _at(times, values, first), inside


def _at(times: list[int], values: list[float], when: int) -> float:
    """Value at a time, interpolated linearly between the samples; outside of them the nearest one."""
    after = next((k for k, at in enumerate(times) if at >= when), len(times))
    if after == 0 or after == len(times):
        return float(values[min(after, len(times) - 1)])
    before = after - 1
    share = (when - times[before]) / (times[after] - times[before])
    return float(values[before] + share * (values[after] - values[before]))
