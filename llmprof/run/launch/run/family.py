"""Finds all processes of a run, also those that left its session; used by the runner, and as a
program by its guard.

Engines and profilers start new sessions, and they rename their processes, which hides the
environment from other processes. So a process belongs to a run if one of these holds: it descends
from a process of the run, it has the run's mark in its environment, it is in a session of the run,
or it writes to the run's log. This module imports only the standard library and psutil, so that the
guard starts quickly.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import psutil

MARK: Final = "LLMPROF_RUN_ID"
PATIENCE_S: Final = 10.0
_LAST_S: Final = 5.0

Known = dict[int, float]
"""Start times of processes by process id; the start time is needed because the system uses ids
again.
"""


class Family:
    """Processes of one run."""

    def __init__(self, root: int, mark: str, log: Path) -> None:
        self._root, self._mark, self._log = root, mark, str(log.resolve())
        self._known: Known = {}
        self._sessions = {root}
        self.look()

    def look(self) -> None:
        """Remember the descendants that run now; this is cheap and has to be called regularly."""
        parents: dict[int, list[psutil.Process]] = {}
        for process in psutil.process_iter(["ppid"]):
            parents.setdefault(process.info["ppid"], []).append(process)
        todo = [self._root, *self._known]
        seen: set[int] = set()
        while todo:
            number = todo.pop()
            if number in seen:
                continue
            seen.add(number)
            for child in parents.get(number, ()):
                self._add(child)
                todo.append(child.pid)

    def alive(self) -> list[psutil.Process]:
        """Processes of the run that still run, without the first one."""
        self.look()
        running = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if (
                    process.pid in {self._root, os.getpid()}
                    or process.status() == psutil.STATUS_ZOMBIE
                ):
                    continue
                if self._known.get(process.pid) == process.create_time() or self._belongs(process):
                    running.append(process)
        return running

    def end(self, *, patience_s: float = PATIENCE_S) -> list[str]:
        """End the processes that still run: by termination first, then by a kill."""
        ended: list[str] = []
        for how, wait in ((signal.SIGTERM, patience_s), (signal.SIGKILL, _LAST_S)):
            running = self.alive()
            if not running:
                break
            ended += [name for process in running if (name := _name(process)) not in ended]
            send_signal(running, how)
            psutil.wait_procs(running, timeout=wait)
        return ended

    def _add(self, process: psutil.Process) -> None:
        with contextlib.suppress(psutil.Error, OSError):
            self._known[process.pid] = process.create_time()
            self._sessions.add(os.getsid(process.pid))
            self._sessions.discard(os.getsid(0))

    def _belongs(self, process: psutil.Process) -> bool:
        with contextlib.suppress(psutil.Error, OSError):
            if os.getsid(process.pid) in self._sessions:
                return True
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(MARK) == self._mark:
                return True
        for number in (1, 2):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{process.pid}/fd/{number}") == self._log:  # noqa: PTH115
                    return True
        return False


def send_signal(processes: Iterable[psutil.Process], how: signal.Signals) -> None:
    """Send a signal to processes; processes that have ended are skipped."""
    for process in processes:
        with contextlib.suppress(psutil.Error, OSError):
            process.send_signal(how)


def _name(process: psutil.Process) -> str:
    try:
        return f"{process.name()} ({process.pid})"
    except psutil.Error:
        return str(process.pid)


def guard(root: int, mark: str, log: Path) -> None:
    """Wait for a message on the standard input; if it ends without one, the runner was killed:
    end its processes.
    """
    for how in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(how, signal.SIG_IGN)
    if sys.stdin.buffer.read(1):
        return
    family = Family(root, mark, log)
    with contextlib.suppress(psutil.Error):
        first = psutil.Process(root)
        if first.environ().get(MARK) == mark:
            send_signal([first], signal.SIGTERM)
            psutil.wait_procs([first], timeout=PATIENCE_S)
            send_signal([first], signal.SIGKILL)
    family.end()


if __name__ == "__main__":
    guard(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
