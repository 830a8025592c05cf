"""What a sweep has done, in its folder: ``sweep.json``, always whole, and one process at a time."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from llmprof.errors import LlmprofError, OutputError, ReadError

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
