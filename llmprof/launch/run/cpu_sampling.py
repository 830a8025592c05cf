"""Sampling of the host's call stacks beside a run: ``perf record`` or VTune wraps the engine.

perf samples by the monotonic clock, whose offset from the epoch is written down when the run starts. So the samples
share the clock of the timeline and can be cut to a step or to a gap of the device. VTune's report holds sums only.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import polars as pl

from llmprof.errors import LaunchError, ReadError
from llmprof.readers import perf, read
from llmprof.storage import files
from llmprof.trace import Trace

HZ: Final = 199
"""Samples a second of each busy processor: enough for a run of a few seconds, and no multiple of usual timers."""

TEXT: Final = "cpu_samples.txt"
TABLE: Final = "cpu_samples.csv"
CLOCK: Final = "cpu_clock.json"
_DATA, _RESULT = "perf.data", "vtune"
_REPORT_S: Final = 600.0
_GOT: Final = {
    "perf": "install the package linux-tools or perf of the distribution, or leave cpu_sampler out",
    "vtune": "install Intel VTune Profiler and put its bin64 folder on PATH, or leave cpu_sampler out",
}


def wrapped(sampler: str, folder: Path, program: Sequence[str], *, executable: str | None = None) -> list[str]:
    """The engine's command, wrapped by a sampler.

    Parameters
    ----------
    sampler : {"none", "perf", "vtune"}
        Which one.
    folder : pathlib.Path
        Folder of the run.
    program : sequence of str
        Command of the engine.
    executable : str, optional
        Path of the sampler's program; its name if not given.

    Returns
    -------
    list of str
        The command; nothing is started.
    """
    if sampler == "perf":
        options = ["record", "-F", str(HZ), "-g", "-k", "CLOCK_MONOTONIC", "-o", str(folder / _DATA), "--"]
        return [executable or "perf", *options, *program]
    if sampler == "vtune":
        options = ["-collect", "hotspots", "-result-dir", str(folder / _RESULT), "--"]
        return [executable or "vtune", *options, *program]
    return list(program)


def start(sampler: str, folder: Path) -> str:
    """Path of the sampler's program; the offset of its clock from the epoch is written into the run's folder.

    Raises
    ------
    LaunchError
        It is not on PATH.
    """
    program = shutil.which(sampler)
    if program is None:
        raise LaunchError(f"{sampler} is not on PATH", hint=_GOT[sampler])
    before = time.time_ns() - time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    files.write_json(folder / CLOCK, {"epoch_minus_monotonic_ns": before, "hz": HZ if sampler == "perf" else None})
    return program


def finish(sampler: str, folder: Path, note: Callable[[str], None]) -> None:
    """Have the sampler print its recording; if that fails, a note says why, and the rest of the run is kept."""
    executable = shutil.which(sampler) or sampler
    if sampler == "perf":
        argv = [executable, "script", "-i", str(folder / _DATA)]
        made = folder / TEXT
    else:
        argv = [executable, "-report", "top-down", "-result-dir", str(folder / _RESULT), "-format", "csv"]
        argv += ["-csv-delimiter", "comma", "-column", "CPU Time:Self,Module"]
        made = folder / TABLE
    try:
        with made.open("wb") as out:
            done = subprocess.run(argv, stdout=out, stderr=subprocess.PIPE, timeout=_REPORT_S, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired) as error:
        made.unlink(missing_ok=True)
        note(f"{sampler} gave no samples of the CPU: {error}")
        return
    if done.returncode or not made.stat().st_size:
        made.unlink(missing_ok=True)
        message = done.stderr.decode("utf-8", "replace").strip().splitlines()
        note(f"{sampler} gave no samples of the CPU: {message[-1][:300] if message else f'status {done.returncode}'}")
        return
    (folder / _DATA).unlink(missing_ok=True)


def beside(folder: Path, trace: Trace) -> Trace:
    """A timeline together with the samples of the CPU that were taken beside it.

    Parameters
    ----------
    folder : pathlib.Path
        Folder of the run.
    trace : Trace
        Its timeline.

    Returns
    -------
    Trace
        With the table ``samples``; their times are on the clock of the timeline, or null if that has no epoch.

    Raises
    ------
    ReadError
        The samples cannot be read.
    """
    if (folder / TEXT).is_file():
        rows, *_ = perf.samples(folder / TEXT)
        clock = files.read_json(folder / CLOCK)
        offset = clock.get("epoch_minus_monotonic_ns") if isinstance(clock, dict) else None
        epoch = trace.meta.get("start_epoch_ns")
        moved = pl.lit(None, dtype=pl.Int64)
        if isinstance(offset, int) and isinstance(epoch, int):
            moved = pl.col("time_ns") + (offset - epoch)
        rows = rows.with_columns(time_ns=moved, rank=pl.lit(trace.ranks[0] if trace.ranks else 0, dtype=pl.Int32))
    elif (folder / TABLE).is_file():
        rows = read(folder / TABLE, cache=False).samples
    else:
        return trace
    if not rows.height:
        raise ReadError("the sampler of the CPU printed no sample")
    return Trace({**trace.recorded, "samples": rows}, trace.meta, trace.coverage)
