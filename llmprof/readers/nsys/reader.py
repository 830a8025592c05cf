"""Reader of Nsight Systems exports (SQLite, Parquet, Arrow; schema 2.9 or newer): one part per process with events.

Any table may be missing, and columns depend on the version, so only existing tables and columns are read.
Times are ns from the start of the capture; ``TARGET_INFO_SESSION_START_TIME`` gives the epoch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import polars as pl

from llmprof.errors import ReadError
from llmprof.readers import cache
from llmprof.readers.common.reader import Part, Probe, Reader, Request, Wanted
from llmprof.readers.nsys.export import (
    GRAPH,
    KERNEL,
    LIBRARIES,
    MEMCPY,
    MEMORY,
    MEMSET,
    NVTX,
    RANGES,
    RUNTIME,
    TIMES,
    owner,
    rename,
    threads,
    with_columns_of,
)
from llmprof.readers.nsys.files import (
    ARROW_SUFFIX,
    FOLDER_ENDINGS,
    REPORT_SUFFIXES,
    export,
    is_arrow_export,
    is_folder_export,
    is_nsys_sqlite,
)
from llmprof.readers.nsys.ranks import DEVICES, PROCESSES, settle
from llmprof.readers.nsys.tables import DeviceTables, HostTables
from llmprof.storage import sqlite

_RANK_NAMES = (
    re.compile(r"Worker_(?:DP\d+_)?(?:PP(\d{1,3})(?!\d))?_?(?:TP(\d{1,3})(?!\d))?", re.IGNORECASE),
    re.compile(r"MPI Rank (\d{1,5})(?!\d)"),
)

_SOURCES = {
    "kernels": (KERNEL, GRAPH),
    "copies": (MEMCPY, MEMSET),
    "runtime": (RUNTIME,),
    "markers": (NVTX, "PROFILER_OVERHEAD"),
    "memory": (MEMORY,),
}
"""Tables of an export from which each table of a trace is made; their processes and times count for the whole trace."""


def read(path: Path, wanted: Wanted | None = None) -> list[Part]:
    """Read one export."""
    wanted = Wanted() if wanted is None else wanted
    source = _Export(path, wanted)
    frames = {name: source.frame(name) for name in _SOURCES}
    counters = source.counters() if "counters" in wanted else None
    identifiers = [frame["pid"].unique() for frame in frames.values() if frame is not None and frame.height]
    processes = pl.concat(identifiers).unique().drop_nulls().sort() if identifiers else pl.Series([], dtype=pl.Int64)
    ranks = source.ranks(processes, frames)
    parts = []
    for rank, tables in _by_rank(frames, ranks).items():
        kernels = tables.get("kernels")
        if counters is not None and rank >= 0:
            devices = kernels["device"].unique().to_list() if kernels is not None else []
            tables["counters"] = counters.filter(pl.col("device").is_in(devices))
        head, coverage = source.head(rank, ranks, tables), source.coverage(tables)
        parts.append(Part(path=path, tables=tables, head=head, coverage=coverage))
    if not parts:
        raise ReadError(
            "; ".join([f"{path.name} has no kernel, copy, CUDA call or NVTX range", *source.columns.notes()]),
            expected="an export with CUDA or NVTX activity",
            hint="record with nsys profile -t cuda,nvtx and check that the capture range was reached",
        )
    return parts


def _by_rank(frames: dict[str, pl.DataFrame | None], ranks: Mapping[int, int]) -> dict[int, dict[str, pl.DataFrame]]:
    """Tables of each rank; frames are removed from ``frames``, so that at most one is in memory twice."""
    order = sorted(set(ranks.values()), key=lambda r: (r < 0, r))
    processes = {rank: [pid for pid, r in ranks.items() if r == rank] for rank in order}
    tables: dict[int, dict[str, pl.DataFrame]] = {rank: {} for rank in order}
    for name in list(frames):
        frame = frames.pop(name)
        if frame is not None:
            for rank, pids in processes.items():
                tables[rank][name] = frame.filter(pl.col("pid").is_in(pids)).drop("pid")
    return tables


class _Export(DeviceTables, HostTables):
    """One export: its frames with a column ``pid`` (nsys's global process id), and facts about the run."""

    rank_from = DEVICES
    """Evidence for the ranks."""

    def frame(self, table: str) -> pl.DataFrame | None:
        """Frame of a table; if the table is not requested, only its times, devices and processes."""
        if table not in self.wanted:
            of_libraries = [t for p in LIBRARIES.values() for t in self.columns.matching(p)]
            return self._skeleton(*_SOURCES[table], *(of_libraries if table == "runtime" else ()))
        read: dict[str, Callable[[], pl.DataFrame | None]] = {
            "kernels": self.kernels,
            "copies": self.copies,
            "runtime": self.runtime,
            "markers": self.markers,
            "memory": self.memory,
        }
        return read[table]()

    def _skeleton(self, *tables: str) -> pl.DataFrame | None:
        frames = []
        for table in tables:
            of_threads = owner(table) == "globalTid"
            if table == MEMORY:
                frame = self._read(table, "start", "globalPid", "deviceId")
            elif table == NVTX:
                frame = self._read(table, "start", "end", "globalTid", "eventType")
            else:
                frame = self._read(table, "start", "end", owner(table), *(() if of_threads else ("deviceId",)))
            if frame is None:
                continue
            if table == NVTX:
                frame = frame.filter(pl.col("eventType").is_in(RANGES)).with_columns(end=pl.coalesce("end", "start"))
            if of_threads:
                frame = threads(frame).rename({"pid": "globalPid"})
            if table == MEMORY:
                frame = frame.rename({"start": "time_ns"})  # events without a duration do not count for the start
            else:
                frame = self._times(frame)
            frames.append(rename(frame, {"globalPid": "pid", "deviceId": "device", **TIMES}))
        return pl.concat(frames, how="diagonal_relaxed") if frames else None

    def recorded(self) -> set[str]:
        """Tables that were recorded, with or without rows: those in the file, and those that nsys had to record."""
        was_traced = self.capture.asked
        kernels, copies = (any(table in self.columns for table in _SOURCES[name]) for name in ("kernels", "copies"))
        recorded = {
            "kernels": kernels or bool(was_traced("cuda") and copies),
            "copies": copies or bool(was_traced("cuda") and kernels),
            "runtime": bool(was_traced("cuda")),
            "markers": bool(was_traced("nvtx")),
            "memory": self.capture.memory,
        }
        recorded["collectives"] = recorded["kernels"]
        return {name for name, was in recorded.items() if was}

    def ranks(self, processes: pl.Series, frames: dict[str, pl.DataFrame | None]) -> dict[int, int]:
        """Rank of each process, from the name of the worker or an MPI mark, else from the order of the devices."""
        work = [f.select("pid", "device") for n in ("kernels", "copies") if (f := frames[n]) is not None]
        if not work:
            return {pid: i for i, pid in enumerate(processes.to_list())}
        on_device = (
            pl.concat(work, how="vertical_relaxed").group_by("pid").agg(pl.col("device").min()).sort("device", "pid")
        )
        order = on_device["pid"].to_list()
        stated = self._ranks_by_name(frames["markers"])
        numbers = [stated.get(pid) for pid in order]
        recorded = self.capture.rank
        if None not in numbers and len(set(numbers)) == len(numbers):
            self.rank_from = PROCESSES
        elif len(order) == 1 and recorded is not None:
            numbers, self.rank_from = [recorded[0]], f"recorded environment ({recorded[1]})"
        else:
            numbers = list(range(len(order)))
        ranks = {pid: rank for pid, rank in zip(order, numbers, strict=True) if rank is not None}
        return ranks | {pid: -1 for pid in processes.to_list() if pid not in ranks}

    def _ranks_by_name(self, markers: pl.DataFrame | None) -> dict[int, int]:
        by_mpi: dict[int, int] = {}
        names = self._read("PROCESSES", "globalPid", text=("name",))
        rows = list(names.iter_rows()) if names is not None else []
        threads = self._read(NVTX, "globalTid", "eventType", "textId", text=("text",))
        if threads is not None:
            named = self._named(with_columns_of(threads, ("textId",)), "textId", default="").filter(
                ~pl.col("eventType").is_in(RANGES)
            )
            rows += named.select((pl.col("globalTid") // (1 << 24)) * (1 << 24), pl.coalesce("text", "name")).rows()
        stages: dict[int, tuple[int, int]] = {}
        for pid, name in rows:
            worker, mpi = _RANK_NAMES[0].search(name or ""), _RANK_NAMES[1].search(name or "")
            if worker and (worker[1] or worker[2]):
                stages[pid] = (int(worker[1] or 0), int(worker[2] or 0))
            elif mpi:
                by_mpi[pid] = int(mpi[1])
        width = 1 + max((tp for _, tp in stages.values()), default=0)
        return by_mpi | {pid: pp * width + tp for pid, (pp, tp) in stages.items()}

    def head(self, rank: int, ranks: dict[int, int], tables: dict[str, pl.DataFrame]) -> dict[str, Any]:
        """Facts about the run, in the form that all readers use."""
        gpus = self._read(
            "TARGET_INFO_GPU",
            *(["id"] if "id" in self.columns.get("TARGET_INFO_GPU", []) else ["deviceId"]),
            text=("name",),
        )
        used = tables["kernels"]["device"].unique().to_list() if "kernels" in tables else []
        names: list[str] = []
        if gpus is not None:
            key = gpus.columns[0]
            named = gpus.drop_nulls("name")
            names = named.filter(pl.col(key).is_in(used))["name"].to_list() or named["name"].unique().to_list()
        world = self.capture.world if self.rank_from not in (PROCESSES, DEVICES) else None
        return {
            "rank": rank if rank >= 0 else None,
            "rank_from": self.rank_from,
            "front_end": rank < 0,
            "world_size": max(max(ranks.values()) + 1, world) if world else None,
            "capture": self.capture,
            "recorded": self.recorded(),
            "devices": sorted(set(names)),
            "versions": {
                k: v
                for k, v in {
                    "nsys": self.meta.get("EXPORT_PRODUCT_VERSION"),
                    "nsys_schema": self.meta.get("EXPORT_SCHEMA_VERSION"),
                }.items()
                if v
            },
            "options": self.capture.options,
            "absolute": self.start_ns != 0,
        }

    def coverage(self, tables: dict[str, pl.DataFrame]) -> dict[str, Any]:
        """Counts, in the form that all readers use."""
        rows = sum(frame.height for frame in tables.values())
        return {
            "file": self.path.name,
            "events": rows,
            "kept": rows,
            "skipped": {},
            "bytes": _size(self.path),
            "lost_bytes": 0,
            "lost_pieces": 0,
            "truncated": "",
            "repaired": False,
            "wrong_types": 0,
            "notes": [*self.notes, *self.columns.notes()],
        }


def _size(path: Path) -> int:
    return sum(p.stat().st_size for p in path.iterdir()) if path.is_dir() else path.stat().st_size


def _sniff(probe: Probe) -> bool:
    if probe.is_folder:
        return is_folder_export(probe.path)
    if probe.path.suffix in REPORT_SUFFIXES:
        return True
    if is_arrow_export(probe.start):
        return probe.path.suffix == ARROW_SUFFIX
    return probe.start.startswith(sqlite.MAGIC) and is_nsys_sqlite(probe.path)


def _read(path: Path, request: Request) -> list[Part]:
    return read(_exported(path, request), request.wanted)


def _database(path: Path, request: Request) -> Path | None:
    return None if path.is_dir() or path.suffix == ARROW_SUFFIX else _exported(path, request)


def _exported(file: Path, request: Request) -> Path:
    """The SQLite export of a report, which is made once and kept in the cache; other files are returned unchanged."""
    if file.suffix not in REPORT_SUFFIXES:
        return file
    folder = cache.export_folder(file)
    exported = folder / f"{file.stem}.sqlite"
    if not exported.exists():
        size = file.stat().st_size
        if request.progress is not None:
            request.progress(f"{file.name} (nsys export)", 0, size)
        export(file, folder)
        if request.progress is not None:
            request.progress(f"{file.name} (nsys export)", size, size)
    return exported


def _choose(files: list[Path]) -> list[Path]:
    """For each recording, one of its files: the SQLite file, else a folder, else Arrow streams, else the report."""
    best: dict[str, tuple[int, Path]] = {}
    for path in files:
        name = _recording(path)
        order = 1 if path.is_dir() else 3 if path.suffix in REPORT_SUFFIXES else 2 if path.suffix == ARROW_SUFFIX else 0
        if name not in best or order < best[name][0]:
            best[name] = order, path
    chosen = {path for _, path in best.values()}
    return [path for path in files if path in chosen]


def _recording(path: Path) -> str:
    """Name of the report from which an export was made."""
    if not path.is_dir():
        return path.stem
    ending = next((ending for ending in FOLDER_ENDINGS if path.name.endswith(ending)), "")
    return path.name.removesuffix(ending)


READER = Reader(
    name="nsys",
    version=7,
    what="an export of Nsight Systems (SQLite, Parquet or Arrow) or its report",
    sniff=_sniff,
    read=_read,
    suffixes=(".sqlite", ARROW_SUFFIX, *REPORT_SUFFIXES),
    choose=_choose,
    settle=settle,
    database=_database,
)
