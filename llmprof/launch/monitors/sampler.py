"""The thread that samples beside a run."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from llmprof.errors import ConfigError, OutputError
from llmprof.launch.monitors import table
from llmprof.launch.monitors.host import Processes
from llmprof.launch.monitors.registry import monitors
from llmprof.launch.monitors.table import Source, Watched

MOST_HZ: Final = 100.0
"""Samples a second beyond which the sampler itself would be in the way."""

_JOIN_S: Final = 10.0


class Sampler:
    """Samples GPUs, host and the run's processes in a thread, and writes them to a file when it ends.

    On a machine with two processors and 90 processes, following a run of three processes at 10 Hz took 1.7 % of one
    processor (Python 3.11, without GPUs), and 0.5 % at 2 Hz; a GPU adds ten short NVML calls a sample. The thread
    starts no process. Samples are kept in memory (18 bytes each) until the end.

    Parameters
    ----------
    path : path
        Parquet file to write: ``time_ns`` (since the epoch), ``device`` (null for the host), ``name``, ``unit``,
        ``value``; what could not be sampled is in its metadata (:func:`llmprof.launch.monitors.table.about`).
    hz : float
        Samples a second, at most 100.
    pids : iterable of int, optional
        Processes to follow with their children; :meth:`watch` adds more.
    visible : str, optional
        ``CUDA_VISIBLE_DEVICES`` of the run; that of this process if not given.
    sources : sequence of Source, optional
        Instead of NVML and psutil.

    Attributes
    ----------
    notes : list of str
        What could not be sampled, and why.
    late : int
        Turns that were left out because the one before took too long.

    Raises
    ------
    ConfigError
        The rate is not between 0 and 100 Hz.

    Examples
    --------
    >>> with Sampler("run/monitors.parquet", hz=2) as sampler:  # doctest: +SKIP
    ...     sampler.watch(process.pid)
    ...     process.wait()
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        hz: float = 2.0,
        pids: Iterable[int] | None = None,
        visible: str | None = None,
        sources: Sequence[Source] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not 0 < hz <= MOST_HZ:
            raise ConfigError(
                f"the monitors are to sample {hz:g} times a second", expected=f"more than 0, at most {MOST_HZ:g}"
            )
        self.path = Path(path)
        self.hz = float(hz)
        self.late = 0
        self._clock = clock
        self._visible = os.environ.get("CUDA_VISIBLE_DEVICES") if visible is None else visible
        self._processes = Processes(pids or ())
        self._given = sources
        self._sources: list[Source] = []
        self._own_notes: list[str] = []
        self._table = table.Table()
        self._end = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def notes(self) -> list[str]:
        """What could not be sampled, and why."""
        return [*self._own_notes, *(note for source in self._sources for note in source.notes)]

    def watch(self, pid: int) -> None:
        """Follow a process and its children from now on."""
        self._processes.add(pid)

    def start(self) -> Self:
        """Begin to sample; the first sample is taken at once."""
        if self._given is not None:
            self._sources = list(self._given)
        else:
            opened = [one.open(Watched(self._visible, self._processes)) for one in monitors()]
            self._own_notes += [why for _, why in opened if why]
            self._sources = [source for source, _ in opened if source is not None]
        self._thread = threading.Thread(target=self._run, name="llmprof monitors", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> Path:
        """Take a last sample, end the thread and write the file.

        Returns
        -------
        pathlib.Path
            The file.

        Raises
        ------
        OutputError
            It cannot be written.
        """
        self._end.set()
        if self._thread is not None:
            self._thread.join(_JOIN_S)
            if self._thread.is_alive():
                self._own_notes.append("the sampler was still waiting for an answer when the run ended")
            else:
                for source in self._sources:
                    source.close()
            self._thread = None
        about = {"hz": self.hz, "late": self.late, "notes": self.notes}
        table.write(self._table.frame(), self.path, about)
        return self.path

    def _run(self) -> None:
        begin, turn, last = self._clock(), 0, False
        while True:
            time_ns = time.time_ns()
            for source in self._sources:
                for value in source.sample(self._clock()):
                    self._table.add(time_ns, value)
            if len(self._table) >= table.MAX_ROWS:
                self._own_notes.append(f"sampling ended after {table.MAX_ROWS:,} samples")
                return
            if last:
                return
            due = int((self._clock() - begin) * self.hz) + 1
            self.late += max(0, due - turn - 1)
            turn = due
            last = self._end.wait(max(0.0, begin + turn / self.hz - self._clock()))

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.stop()
        except OutputError as why:
            if error is None:
                raise
            error.add_note(str(why))
