"""Part of an engine script: the end of all processes that an engine started."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_PATIENCE_S = 8.0
_POLL_S = 0.05


def adopt() -> None:
    """Become the parent of processes whose own parent dies, so that none is lost (Linux)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants(root: int | None = None) -> list[int]:
    """Processes below one (this one if none is given), without the trackers of Python, which end by themselves."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                state, parent = entry.joinpath("stat").read_text().rpartition(")")[2].split()[:2]
                if state != "Z":
                    parents.setdefault(int(parent), []).append(int(entry.name))
    found, left = [], [os.getpid() if root is None else root]
    while left:
        below = parents.get(left.pop(), [])
        left += below
        found += [pid for pid in below if not _is_tracker(pid)]
    return found


def end_children(patience_s: float = _PATIENCE_S) -> list[int]:
    """End all processes below this one: asked first, then killed.

    Returns
    -------
    list of int
        Those that had to be killed.
    """
    killed: list[int] = []
    for how, patience in ((signal.SIGTERM, patience_s), (signal.SIGKILL, patience_s)):
        left = descendants()
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, how)
        if how == signal.SIGKILL:
            killed = left
        until = time.monotonic() + patience
        while left and time.monotonic() < until:
            _reap(left)
            time.sleep(_POLL_S)
            left = descendants()
        if not left:
            break
    return killed


def _reap(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def _is_tracker(pid: int) -> bool:
    try:
        return b"resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
