"""Sampler thread that runs the monitors beside a run, and the conversion of its samples to the
clock of a trace.
"""

import datetime as dt
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import polars as pl

from llmprof.errors import AnalysisError, ConfigError, OutputError
from llmprof.run.launch.monitors import table
from llmprof.run.launch.monitors.host import Host, Processes
from llmprof.run.launch.monitors.nvml import REASONS, open_gpus
from llmprof.run.launch.monitors.table import Source
from llmprof.trace import Trace

MOST_HZ: Final = 100.0
"""Most samples a second: at a higher rate the sampler would disturb the run."""

_JOIN_S: Final = 10.0


class Sampler:
    """Samples GPUs, host and the run's processes in a thread, and writes them to a file when it
    ends.

    On a machine with two processors and 90 processes, following a run of three processes at 10 Hz
    took 1.7 % of one processor (Python 3.11, without GPUs), and 0.5 % at 2 Hz; a GPU adds ten short
    NVML calls a sample. The thread starts no process. Samples stay in memory (18 bytes each) until
    the end.
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
            found = f"the sampling rate of the monitors is {hz:g} Hz"
            raise ConfigError(found, expected=f"more than 0 and at most {MOST_HZ:g} Hz")
        self.path = Path(path)
        self.hz = float(hz)
        self.late = 0
        self._clock = clock
        self._visible = os.environ.get("CUDA_VISIBLE_DEVICES") if visible is None else visible
        self._processes = Processes(pids or ())
        self._given = sources
        self._sources: list[Source] = []
        self._own_notes: list[str] = []
        self._table = table.SampleTable()
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
            gpus, why = open_gpus(self._visible)
            self._own_notes += [why] if why else []
            self._sources = [*([gpus] if gpus is not None else []), Host(), self._processes]
        self._thread = threading.Thread(target=self._run, name="llmprof monitors", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> Path:
        """Take a last sample, end the thread and write the file."""
        self._end.set()
        if self._thread is not None:
            self._thread.join(_JOIN_S)
            if self._thread.is_alive():
                self._own_notes.append(
                    "when the run ended, the sampler was still waiting for a monitor"
                )
            else:
                for source in self._sources:
                    source.close()
            self._thread = None
        table.write(
            self._table.frame(), self.path, {"hz": self.hz, "late": self.late, "notes": self.notes}
        )
        return self.path

    def _run(self) -> None:
        begin, turn, last = self._clock(), 0, False
        while True:
            time_ns = time.time_ns()
            for source in self._sources:
                for value in source.sample(self._clock()):
                    self._table.add(time_ns, value)
            full = len(self._table) >= table.MAX_ROWS
            if full:
                self._own_notes.append(f"sampling ended after {table.MAX_ROWS:,} samples")
            if full or last:
                return
            due = int((self._clock() - begin) * self.hz) + 1
            self.late += max(0, due - turn - 1)
            turn = due
            last = self._end.wait(max(0.0, begin + turn / self.hz - self._clock()))

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        try:
            self.stop()
        except OutputError as why:
            if error is None:
                raise
            error.add_note(str(why))


_MASK: Final = "gpu.throttle_reasons"


def counters(
    samples: pl.DataFrame | Trace,
    trace: Trace,
    *,
    zone: str | None = None,
    date: dt.date | None = None,
) -> Trace:
    """Put samples of monitors on the clock of a trace."""
    start = trace.meta.get("start_epoch_ns")
    if not isinstance(start, int):
        found = "the trace does not say when it began"
        hint = "record with a profiler that writes the time of day (PyTorch from 2.1 on, nsys)"
        raise AnalysisError(
            found, expected="a trace whose start is known in time since the epoch", hint=hint
        )
    if isinstance(samples, Trace):
        frame = samples.counters.with_columns(
            pl.col("time_ns") + _epoch_ns(samples, zone, date)
        ).drop("rank")
    else:
        frame = samples
    on_clock = _spread(frame).with_columns(pl.col("time_ns") - start, rank=_rank(trace))
    tables = trace.tables
    own = [tables["counters"]] if "counters" in tables else []
    on_clock = on_clock.select("rank", "device", "time_ns", "name", "value", "unit")
    tables["counters"] = pl.concat([*own, on_clock], how="diagonal_relaxed")
    return Trace(tables, trace.meta, trace.coverage, database=trace._database)


def _spread(frame: pl.DataFrame) -> pl.DataFrame:
    """The samples, in which a counter for each reason replaces the bit mask."""
    masks = frame.filter(name=_MASK).with_columns(pl.col("value").cast(pl.Int64))
    reasons = [
        masks.with_columns(name=pl.lit(f"gpu.throttle.{reason}"), value=active.cast(pl.Float64))
        for bit, reason in REASONS.items()
        if masks.select((active := (pl.col("value") & bit) != 0).any()).item()
    ]
    return pl.concat([frame.filter(pl.col("name") != _MASK), *reasons], how="vertical_relaxed")


def _rank(trace: Trace) -> pl.Expr:
    """Rank of a device: the only rank with work on it, else -1."""
    tables = trace.tables
    work = [
        tables[name].select("rank", "device") for name in ("kernels", "copies") if name in tables
    ]
    if not work:
        return pl.lit(-1, pl.Int32)
    owners = (
        pl.concat(work)
        .drop_nulls()
        .unique()
        .group_by("device")
        .agg(pl.first("rank"), ranks=pl.len())
    )
    rank_of = dict(owners.filter(ranks=1).select("device", "rank").iter_rows())
    return pl.col("device").replace_strict(rank_of, default=-1, return_dtype=pl.Int32).fill_null(-1)


def _epoch_ns(samples: Trace, zone: str | None, date: dt.date | None) -> int:
    """Time since the epoch at which the samples of a monitor's file begin."""
    meta: dict[str, Any] = samples.meta
    if isinstance(meta.get("start_epoch_ns"), int):
        return int(meta["start_epoch_ns"])
    local = meta.get("start_local")
    if local is None:
        found = "the monitor's file has no times"
        raise AnalysisError(
            found, hint="record with times (dmon -o DT, --query-gpu=timestamp, dstat -T)"
        )
    if "T" not in local:
        if date is None:
            raise AnalysisError(
                "the monitor's file has no date", hint="pass date=, the day of its first sample"
            )
        local = f"{date.isoformat()}T{local}"
    if zone is None:
        found = "the monitor's file has local times without their time zone"
        raise AnalysisError(
            found, hint='pass zone=, such as "Europe/Berlin" or "UTC"', start_local=local
        )
    try:
        when = dt.datetime.fromisoformat(local).replace(tzinfo=ZoneInfo(zone))
    except (ZoneInfoNotFoundError, ValueError) as error:
        found = f"there is no time zone {zone!r}"
        raise AnalysisError(found, expected='a name such as "Europe/Berlin" or "UTC"') from error
    return round(when.timestamp() * 1e3) * 1_000_000
