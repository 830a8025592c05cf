"""Experiment ``calibrate``: measured decode steps and prefills of one engine start become a calibration file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import polars as pl

from llmprof import hardware, theory
from llmprof.errors import LlmprofError
from llmprof.experiments.scaling import content_of, device_of, run_points
from llmprof.hardware import Device
from llmprof.launch import ExperimentConfig
from llmprof.progress import Progress
from llmprof.storage import files
from llmprof.theory import Calibration, Observation, Profile
from llmprof.theory.plan import decode, prefill

LENGTHS: Final = (128, 1024, 4096)
BATCHES: Final = (1, 8, 32, 64)
OUTPUTS: Final = (32,)
FILE: Final = "calibration.json"
MOST_TOKENS: Final = 8192
"""A prefill of more tokens takes several steps of vLLM, unless ``engine_args`` set ``max_num_batched_tokens``."""


def observations_of(points: pl.DataFrame, profile: Profile, *, most_tokens: int = MOST_TOKENS) -> list[Observation]:
    """A decode step of each point, at the middle of its output, and its prefill if that is one step."""
    found = []
    for row in points.iter_rows(named=True):
        batch, prompt = row["batch"], row["prompt"]
        if row["decode_step_s"]:
            middle = decode(batch, prompt + row["out"] / 2)
            found.append(Observation(profile.shape, profile.plan, middle, "decode", row["decode_step_s"]))
        if row["prefill_s"] and batch * prompt <= most_tokens:
            step = prefill(batch, prompt)
            found.append(Observation(profile.shape, profile.plan, step, "prefill", row["prefill_s"]))
    return found


def fitted(points: pl.DataFrame, content: Mapping[str, Any], device: Any, **options: Any) -> Calibration:
    """Calibration of a device from measured points of one model and layout."""
    row = points.row(0, named=True)
    profile = theory.profile(content, device, batch_size=1, tp_size=row["tp"], pp_size=row["pp"])
    source = f"llmprof experiment calibrate, {profile.shape.name}, {points.height} points"
    return theory.calibrate(observations_of(points, profile, **options), profile.device, source=source)


def _same(device: str | None, measured: str) -> Device:
    """The device that was asked for, if it may be the one that was measured; that one if none was asked for."""
    if measured == "CPU":
        raise LlmprofError("the points were measured on a CPU", expected="a GPU")
    if device is None:
        return hardware.device(measured)
    asked = hardware.device(device)
    try:
        known = hardware.device(measured).name
    except LlmprofError:  # a device of one's own, from a file with its numbers
        return asked
    if known != asked.name:
        raise LlmprofError(f"the points were measured on {known}, not on {asked.name}", hint="leave out --gpu")
    return asked


def run_calibration(
    config: ExperimentConfig,
    folder: str | Path,
    *,
    device: str | None = None,
    lengths: Sequence[int] = LENGTHS,
    batches: Sequence[int] = BATCHES,
    outputs: Sequence[int] = OUTPUTS,
    progress: Progress | None = None,
    check: bool = True,
) -> Calibration:
    """Measure a grid of batches and contexts in one start of the engine, and write the calibration fitted to it."""
    content = content_of(config)
    if content is None:
        raise LlmprofError(f"the configuration of {config.model} is not at hand", expected="a folder with config.json")
    if device is not None:
        hardware.device(device)  # an unknown one is refused before the engine starts
    points = run_points(
        config, folder, lengths=lengths, batches=batches, outputs=outputs, progress=progress, check=check
    )
    most = int(config.engine_args.get("max_num_batched_tokens", MOST_TOKENS))
    device_there = _same(device, device_of(Path(folder) / "points.json"))
    found = fitted(points, content, device_there, most_tokens=most)
    files.write(Path(folder) / FILE, found.to_json())
    return found
