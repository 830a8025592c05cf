"""Monitors of the host, through psutil: processors, memory, disks and network, and the processes
of a run.
"""

import contextlib
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from llmprof.errors import LaunchError
from llmprof.run.launch.monitors.table import MonitorValue, Rates, Source
from llmprof.units import NS_PER_S

try:
    import psutil
except ImportError as missing:
    raise LaunchError(
        "monitors need the package psutil, which is not installed",
        hint="pip install 'llmprof[launch]'",
    ) from missing

_TREE_EVERY_S: Final = 1.0
"""Seconds between two searches for new child processes; a search reads the state of every
process of the machine.
"""

_GONE: Final = (psutil.NoSuchProcess, psutil.ZombieProcess, psutil.AccessDenied)


class Host(Source):
    """Counters of the whole machine."""

    def __init__(self, api: Any = psutil) -> None:
        super().__init__()
        self._api = api
        self._rates = Rates()
        self._missing: set[str] = set()
        self._asked = False

    def sample(self, now_s: float) -> Iterator[MonitorValue]:
        """``cpu.utilization``, ``memory.used``, and rates of disks and network."""
        share = self._api.cpu_percent()
        if self._asked:  # its first value covers no interval
            yield MonitorValue("cpu.utilization", "%", share)
        self._asked = True
        yield MonitorValue("memory.used", "B", self._api.virtual_memory().used)
        for call, fields in (
            ("disk_io_counters", {"read_bytes": "disk.read", "write_bytes": "disk.written"}),
            ("net_io_counters", {"bytes_recv": "network.received", "bytes_sent": "network.sent"}),
        ):
            totals = self._totals(call)
            for field, name in fields.items() if totals is not None else ():
                rate = self._rates(name, getattr(totals, field), now_s)
                if rate is not None:
                    yield MonitorValue(name, "B/s", rate)

    def _totals(self, call: str) -> Any:
        """Totals of a kind of device.

        None if the machine has none or does not report it, which is noted once.
        """
        if call in self._missing:
            return None
        totals, why = None, ""
        try:
            totals = getattr(self._api, call)()
        except (OSError, RuntimeError, psutil.Error) as error:
            why = f": {error}"
        if totals is None:
            self._missing.add(call)
            self.notes.append(f"psutil has no {call} here{why}")
        return totals


class Processes(Source):
    """Counters of processes and all their children while at least one runs."""

    def __init__(self, pids: Iterable[int] = ()) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._roots: set[psutil.Process] = set()
        self._seen: dict[psutil.Process, float] = {}
        self._delays = Rates()
        self._looked_s = float("-inf")
        self._last_s: float | None = None
        for pid in pids:
            self.add(pid)

    def add(self, pid: int) -> None:
        """Follow a process and its children; if it has already ended, a note says so."""
        try:
            process = psutil.Process(pid)
        except psutil.NoSuchProcess:
            self.notes.append(f"process {pid} ended before its first sample")
            return
        with self._lock:
            self._roots.add(process)
            self._looked_s = float("-inf")

    def sample(self, now_s: float) -> Iterator[MonitorValue]:
        """``run.cpu``, ``run.delay``, ``run.memory``, ``run.processes``; nothing if no process
        is left.
        """
        if now_s - self._looked_s >= _TREE_EVERY_S:
            self._looked_s = now_s
            self._look()
        used_s, memory, alive = 0.0, 0, 0
        delays: list[float] = []
        for process, before_s in list(self._seen.items()):
            try:
                with process.oneshot():
                    times = process.cpu_times()
                    memory += process.memory_info().rss
            except _GONE:
                del self._seen[process]
                continue
            alive += 1
            used_s += max(0.0, times.user + times.system - before_s)
            self._seen[process] = times.user + times.system
            waited_ns = _waited_ns(process.pid)
            delay = None if waited_ns is None else self._delays(process.pid, waited_ns, now_s)
            delays += [] if delay is None else [delay]
        if alive:
            if self._last_s is not None and now_s > self._last_s:
                yield MonitorValue("run.cpu", "%", 100 * used_s / (now_s - self._last_s))
            if delays:
                yield MonitorValue("run.delay", "%", 100 * max(delays) / NS_PER_S)
            yield MonitorValue("run.memory", "B", memory)
            yield MonitorValue("run.processes", "1", alive)
        self._last_s = now_s if alive else None

    def _look(self) -> None:
        with self._lock:
            roots = list(self._roots)
        for root in roots:
            with contextlib.suppress(*_GONE):
                for process in (root, *root.children(recursive=True)):
                    if process not in self._seen:
                        with contextlib.suppress(*_GONE):
                            times = process.cpu_times()
                            self._seen[process] = times.user + times.system


def _waited_ns(pid: int) -> int | None:
    """Time in which the main thread of a process could have run, but no processor was free; None if
    unknown.

    The main thread runs the loop of an engine or of a server; to ask for all threads would take
    longer than the rest.
    """
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text("ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return None
