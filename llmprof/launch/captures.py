"""Where a run folder has its timeline."""

from __future__ import annotations

from pathlib import Path

from llmprof.errors import NotCapturedError
from llmprof.launch.folder import RunFolder


def is_run(path: Path) -> bool:
    """Whether a path is the folder of a run."""
    return (path / "state.json").is_file() and (path / "config.yaml").is_file()


def capture(path: Path) -> Path:
    """The timeline of a run: its SQLite export, or its folder of traces; any other path is what it is.

    Raises
    ------
    NotCapturedError
        The run has no timeline.
    """
    if not is_run(path):
        return path
    run = RunFolder.open(path)
    found = next((place for place in (run.sqlite, run.traces) if place.exists()), None)
    if found is None:
        raise NotCapturedError(
            f"the run {path.name} has no timeline", hint="run it in mode torch, nsys or nsys_ncu, and to its end"
        )
    return found
