"""What a sweep has done, in its folder: ``sweep.json``, always whole, and one process at a time."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl

from llmprof import analyze
from llmprof.errors import LlmprofError, NotCapturedError, OutputError, ReadError
from llmprof.launch import Run
from llmprof.launch.run.requests import disagreements, overhead, summarize

FILE = "sweep.json"
LOCK = ".lock"
VERSION = 1
STATES = ("pending", "running", "finished", "failed", "interrupted")


def new(config: Mapping[str, Any], parameters: Mapping[str, Any], points: list[dict[str, Any]]) -> dict[str, Any]:
    """State of a sweep of which nothing has run."""
    blank = {"state": "pending", "run": None, "error": None, "started": None, "seconds": None}
    listed = [{"point": i, "values": values, **blank} for i, values in enumerate(points)]
    return {"version": VERSION, "config": dict(config), "parameters": dict(parameters), "points": listed}


def load(folder: Path) -> dict[str, Any]:
    """State of the sweep in a folder.

    Raises
    ------
    ReadError
        The folder holds no sweep, or its file is damaged.
    """
    path = folder / FILE
    try:
        state = json.loads(path.read_text("utf-8"))
    except FileNotFoundError as error:
        raise ReadError(f"there is no sweep in {folder}", expected=f"a folder with {FILE}") from error
    except (OSError, ValueError) as error:
        raise ReadError(f"{path} cannot be read: {error}", expected=f"the {FILE} of a sweep") from error
    if not isinstance(state, dict) or state.get("version") != VERSION or not _points_ok(state.get("points")):
        raise ReadError(f"{path} is not the state of a sweep", expected=f"version {VERSION} with a list of points")
    return state


def _points_ok(points: object) -> bool:
    return isinstance(points, list) and all(
        isinstance(p, dict) and isinstance(p.get("values"), dict) and p.get("state") in STATES for p in points
    )


def store(state: Mapping[str, Any], folder: Path) -> None:
    """Write the state: whoever reads it finds the old one or the new one.

    Raises
    ------
    OutputError
        The folder cannot be written.
    """
    path, work = folder / FILE, folder / f".{FILE}.{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        work.write_text(json.dumps(state, indent=1, ensure_ascii=False, default=os.fspath), encoding="utf-8")
        work.replace(path)
    except OSError as error:
        work.unlink(missing_ok=True)
        raise OutputError(
            f"cannot write {path}: {error.strerror or error}", hint="choose a folder with room that can be written"
        ) from error


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold the folder for this process.

    Raises
    ------
    LlmprofError
        Another process runs the sweep.
    OutputError
        The folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / LOCK).open("w")
    except OSError as error:
        raise OutputError(f"cannot write {folder}: {error.strerror or error}", hint="choose another folder") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise LlmprofError(
                f"another process runs the sweep in {folder}", hint="wait until it has ended, or choose another folder"
            ) from error
        yield


MEANS = (
    "wall_ns", "ttft_ns", "tpot_ns", "itl_ns", "queue_ns", "prefill_ns", "decode_ns", "e2e_ns",
    "output_tokens_per_s", "tokens_per_s", "requests_per_s",
)  # fmt: skip
TAILS = ("ttft_ns", "itl_ns", "e2e_ns")
SCHEMA: dict[str, pl.DataType | type[pl.DataType]] = {
    "measured": pl.String,
    "repeats": pl.Int64,
    "agree": pl.Boolean,
    **dict.fromkeys(MEANS, pl.Float64),
    "output_tokens_per_s_ci95_low": pl.Float64,
    "output_tokens_per_s_ci95_high": pl.Float64,
    **{f"{name.removesuffix('_ns')}_p99_ns": pl.Float64 for name in TAILS},
    "overhead": pl.Float64,
    "peak_memory_bytes": pl.Int64,
    "kv_cache_tokens": pl.Int64,
    "ranks": pl.Int64,
}


def measures(run: Run) -> dict[str, Any]:
    """Latencies, rates and shares of a finished run.

    Returns
    -------
    dict
        ``measures`` (keys of :data:`SCHEMA`; the means are of the repeats without profiler where there are any),
        ``where`` (rows of ``analyze.step_time``) and ``note`` (why there are no rows, or empty).
    """
    found: dict[str, Any] = dict.fromkeys(SCHEMA)
    summary = summarize(run.requests)
    phases = summary["phase"].unique().to_list()
    if phases:
        found["measured"] = phase = "plain" if "plain" in phases else phases[0]
        rows = {row["metric"]: row for row in summary.filter(phase=phase).iter_rows(named=True)}
        found |= {name: rows[name]["mean"] for name in MEANS if name in rows}
        found |= {f"{name.removesuffix('_ns')}_p99_ns": rows[name]["p99"] for name in TAILS if name in rows}
        found["repeats"] = max(row["repeats"] for row in rows.values())
        found["agree"] = not disagreements(summary.filter(phase=phase)) if found["repeats"] > 1 else None
        rate = rows.get("output_tokens_per_s", {})
        found |= {f"output_tokens_per_s_{end}": rate.get(end) for end in ("ci95_low", "ci95_high")}
    found["overhead"] = _overhead(run.requests)
    peaks = run.worker.get("peak_memory_bytes") or {}
    found["peak_memory_bytes"] = max(peaks.values(), default=None)
    found["kv_cache_tokens"] = (run.worker.get("kv_cache") or {}).get("tokens")
    rows_of, note = _where(run)
    if rows_of:
        found["ranks"] = max(row["ranks"] for row in rows_of)
    return {"measures": found, "where": rows_of, "note": note}


def _overhead(requests: pl.DataFrame) -> float | None:
    try:
        rows = overhead(requests).filter(metric="wall_ns")
    except NotCapturedError:
        return None
    return rows["overhead"][0] if rows.height else None


def _where(run: Run) -> tuple[list[dict[str, Any]], str]:
    try:
        return analyze.step_time(run.trace).to_dicts(), ""
    except LlmprofError as error:
        return [], str(error)
