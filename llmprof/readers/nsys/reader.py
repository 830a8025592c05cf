"""Reader of Nsight Systems exports (SQLite, Parquet, Arrow; schema 2.9 or newer): one part per
process with events.

Any table may be missing, and columns depend on the version, so only existing tables and columns are
read. Times are ns from the start of the capture; ``TARGET_INFO_SESSION_START_TIME`` gives the
epoch.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import polars as pl

from llmprof.errors import ReadError
from llmprof.readers import cache
from llmprof.readers.common.cupti import COPY_KINDS
from llmprof.readers.common.reader import (
    DEVICES,
    MOST_NS,
    MOST_RANKS,
    FilePart,
    Probe,
    Reader,
    Request,
    TableFilter,
)
from llmprof.readers.nsys import export as nsys
from llmprof.readers.nsys.export import label_threads
from llmprof.text import left_out
from llmprof.trace.storage import sqlite

PROCESSES: Final = "names of the processes"

_NUMBERS: Final = re.compile(r"(\d+)")
_OF_RANK: Final = re.compile(
    r"(?:^|[^a-z])(?:local_?|global_?|world_?|mpi_?)?(?:rank|procid|proc|node|worker|task|r)[-_.=]?$",
    re.IGNORECASE,
)


class _ReportFile(NamedTuple):
    """A report and its parts."""

    path: Path
    capture: nsys.CaptureFacts
    workers: list[FilePart]


class _Order(NamedTuple):
    """An order of the reports: their numbers, the evidence for them, and whether it is certain."""

    numbers: list[int]
    source: str
    sure: bool


def _settle(parts: Sequence[FilePart]) -> None:
    """Give the processes of several reports different ranks, and state how they were found."""
    files = _files(parts)
    if len(files) < 2:
        return
    _only_main_processes(files)
    files = [file for file in files if file.workers]
    workers = [part for file in files for part in file.workers]
    notes = _clocks(files)
    stated = [
        part.head["rank"] if part.head.get("rank_from") == PROCESSES else None for part in workers
    ]
    if None not in stated and len(set(stated)) == len(stated):
        order = None
    elif all(len(file.workers) == 1 for file in files):
        order = _of_processes(files)
        for file, number in zip(files, order.numbers, strict=True):
            file.workers[0].head |= {"rank": number, "rank_from": order.source}
    else:
        order = _of_nodes(files)
        ordered = [
            file
            for _, file in sorted(zip(order.numbers, files, strict=True), key=lambda pair: pair[0])
        ]
        firsts = accumulate((len(file.workers) for file in ordered), initial=0)
        for first, file in zip(firsts, ordered, strict=False):
            for place, part in enumerate(sorted(file.workers, key=lambda p: p.head["rank"])):
                part.head |= {"rank": first + place, "rank_from": f"{order.source}, then {DEVICES}"}
    if order is not None and not order.sure:
        notes.append(
            f"no report states its rank: the ranks of {len(files)} reports, {files[0].path.name}"
            f" and others, are assigned by {order.source}"
        )
    worlds = {file.capture.world for file in files} - {None}
    least = 1 + max((part.head["rank"] for part in workers), default=0)
    world = worlds.pop() if len(worlds) == 1 else None
    for part in parts:
        part.head["world_size"] = max(least, world or 0)
    # The nodes are numbered in the order of the ranks if all hosts are known, else as they were
    # recorded; names of hosts are only compared with each other, and are not kept.
    by_rank = sorted(files, key=lambda file: min(part.head["rank"] for part in file.workers))
    hosts = list(dict.fromkeys(file.capture.host for file in by_rank))
    for file in files:
        node = file.capture.node if "" in hosts else hosts.index(file.capture.host)
        for part in file.workers:
            part.head["node"] = node
    if parts and notes:
        parts[0].coverage["notes"] = [*parts[0].coverage.get("notes", []), *notes]


def _files(parts: Sequence[FilePart]) -> list[_ReportFile]:
    by_path: dict[Path, _ReportFile] = {}
    for part in parts:
        file = by_path.setdefault(part.path, _ReportFile(part.path, _capture(part), []))
        if not part.head.get("front_end"):
            file.workers.append(part)
    return list(by_path.values())


def _capture(part: FilePart) -> nsys.CaptureFacts:
    """Facts about the capture of a part; if the part was saved to a file, they are a mapping."""
    capture = part.head.get("capture", nsys.CaptureFacts())
    return msgspec.convert(capture, nsys.CaptureFacts) if isinstance(capture, dict) else capture


def _only_main_processes(files: Sequence[_ReportFile]) -> None:
    """If no report has device work, take only the process with the most events of each report as
    a rank.
    """
    if any(part.on_device for file in files for part in file.workers):
        return
    for file in files:
        if any(part.head.get("rank_from") == PROCESSES for part in file.workers):
            continue
        for part in sorted(file.workers, key=lambda p: -p.coverage["events"])[1:]:
            part.head |= {"rank": None, "front_end": True}
            file.workers.remove(part)


def _of_processes(files: Sequence[_ReportFile]) -> _Order:
    """Ranks of reports that each have one process."""
    stated = [file.capture.rank for file in files]
    ranks = [rank for rank in stated if rank is not None]
    if len({number for number, _ in ranks}) == len(files):
        return _Order(
            [number for number, _ in ranks], f"recorded environment ({ranks[0][1]})", sure=True
        )
    return _by_names(files)


def _of_nodes(files: Sequence[_ReportFile]) -> _Order:
    """Order of reports that each have several processes."""
    evidence: tuple[tuple[str, Callable[[nsys.CaptureFacts], int | None]], ...] = (
        ("number of the node in the recorded environment or command", lambda capture: capture.node),
        ("recorded environment", lambda capture: None if capture.rank is None else capture.rank[0]),
    )
    for source, number in evidence:
        numbers = [n for file in files if (n := number(file.capture)) is not None]
        if len(set(numbers)) == len(files):
            return _Order(numbers, source, sure=True)
    return _by_names(files)


def _by_names(files: Sequence[_ReportFile]) -> _Order:
    """Order by the names of the files, of their folders, or of the reports that they were
    exported from.
    """
    own = [re.sub(r"(?:\.sqlite|\.arrows|_pqtdir|_arwdir)$", "", file.path.name) for file in files]
    in_folders = [f"{file.path.parent.name}/{name}" for file, name in zip(files, own, strict=True)]
    reports = [file.capture.report for file in files]
    alike = ((own, "file name"), (in_folders, "folder"), (reports, "name of the report"))
    orders = [(*order, words) for names, words in alike if (order := numbered(names)) is not None]
    for numbers, sure, words in sorted(orders, key=lambda entry: not entry[1]):
        if sure:
            return _Order(numbers, words, sure=True)
        ordered = sorted(numbers)
        by_number = [ordered.index(number) for number in numbers]
        return _Order(by_number, f"the order of their numbers ({words})", sure=False)
    places = sorted(in_folders)
    if len(set(places)) < len(places):
        return _Order(list(range(len(files))), "the order in which they were given", sure=False)
    return _Order(
        [places.index(name) for name in in_folders], "the order of their names", sure=False
    )


def numbered(names: Sequence[str]) -> tuple[list[int], bool] | None:
    """The number in which otherwise equal names differ."""
    split = [_NUMBERS.split(name) for name in names]
    if len({tuple(pieces[::2]) for pieces in split}) != 1:
        return None
    fields = [
        i
        for i in range(1, len(split[0]), 2)
        if len({int(pieces[i]) for pieces in split}) == len(names)
    ]
    rank_fields = [i for i in fields if _OF_RANK.search(split[0][i - 1])]
    varying = [
        i for i in range(1, len(split[0]), 2) if len({int(pieces[i]) for pieces in split}) > 1
    ]
    if not fields or (not rank_fields and len(varying) > 1):
        return None
    numbers = [int(pieces[(rank_fields or fields)[0]]) for pieces in split]
    whole = sorted(numbers) == list(range(len(numbers)))
    return numbers, (whole or bool(rank_fields)) and max(numbers) < MOST_RANKS


def _clocks(files: Sequence[_ReportFile]) -> list[str]:
    """Notes on the clocks: the start time of each session is that of the clock of its host."""
    hosts = {file.capture.host for file in files}
    if len(hosts) == 1 and "" not in hosts:
        return []
    where = "hosts without a name" if "" in hosts else f"{len(hosts)} hosts"
    return [
        f"the reports come from {where}: times of different ranks agree only as well as the clocks"
        " of the hosts did when the sessions began"
    ]


_RANK_NAMES = (
    re.compile(r"Worker_(?:DP\d+_)?(?:PP(\d{1,3})(?!\d))?_?(?:TP(\d{1,3})(?!\d))?", re.IGNORECASE),
    re.compile(r"MPI Rank (\d{1,5})(?!\d)"),
)

_METRIC_UNIT = r" \[(?:Throughput )?(%|MHz)\]$"
"""Unit at the end of the name of a GPU metric."""

_LEAST_HZ = 1e6
"""Clocks are in Hz from here on, whatever the name of the metric says (nsys 2024.2), and in MHz
below.
"""

_SOURCES = {
    "kernels": (nsys.KERNEL, nsys.GRAPH),
    "copies": (nsys.MEMCPY, nsys.MEMSET),
    "runtime": (nsys.RUNTIME,),
    "markers": (nsys.NVTX, "PROFILER_OVERHEAD"),
    "memory": (nsys.MEMORY,),
}
"""Tables of an export from which each table of a trace is made; their processes and times count
for the whole trace.
"""


def read(path: Path, wanted: TableFilter | None = None) -> list[FilePart]:
    """Read one export."""
    source = _Export(path, TableFilter() if wanted is None else wanted)
    frames = {name: source.frame(name) for name in _SOURCES}
    counters = source.counters() if "counters" in source.wanted else None
    identifiers = [
        frame["pid"].unique() for frame in frames.values() if frame is not None and frame.height
    ]
    processes = (
        pl.concat(identifiers).unique().drop_nulls().sort()
        if identifiers
        else pl.Series([], dtype=pl.Int64)
    )
    ranks = source.ranks(processes, frames)
    parts = []
    for rank, tables in _by_rank(frames, ranks).items():
        kernels = tables.get("kernels")
        if counters is not None and rank >= 0:
            devices = kernels["device"].unique().to_list() if kernels is not None else []
            numbers = source.devices_of([pid for pid, of in ranks.items() if of == rank])
            mine = (
                counters.with_columns(pl.col("device").replace_strict(numbers, default=None))
                if numbers
                else counters
            )
            tables["counters"] = mine.filter(pl.col("device").is_in(devices))
        parts.append(
            FilePart(path, tables, source.head(rank, ranks, tables), source.coverage(tables))
        )
    if not parts:
        found = "; ".join(
            [f"{path.name} has no kernel, copy, CUDA call or NVTX range", *source.columns.notes()]
        )
        hint = "record with nsys profile -t cuda,nvtx and check that the capture range was reached"
        raise ReadError(found, expected="an export with CUDA or NVTX activity", hint=hint)
    return parts


def _by_rank(
    frames: dict[str, pl.DataFrame | None], ranks: Mapping[int, int]
) -> dict[int, dict[str, pl.DataFrame]]:
    """Tables of each rank; frames are removed from ``frames``, so that at most one is in memory
    twice.
    """
    order = sorted(set(ranks.values()), key=lambda r: (r < 0, r))
    processes = {rank: [pid for pid, r in ranks.items() if r == rank] for rank in order}
    tables: dict[int, dict[str, pl.DataFrame]] = {rank: {} for rank in order}
    for name in list(frames):
        frame = frames.pop(name)
        if frame is not None:
            for rank, pids in processes.items():
                tables[rank][name] = frame.filter(pl.col("pid").is_in(pids)).drop("pid")
    return tables


_SHARED_MEMORY = ("staticSharedMemory", "dynamicSharedMemory")
# CUPTI's CUpti_ActivityMemoryKind, as nsys numbers it in ENUM_CUDA_MEM_KIND; the table itself is
# absent in old exports
_MEMORY_KINDS = {
    0: "pageable",
    1: "pinned",
    2: "device",
    3: "array",
    4: "managed",
    5: "device",
    6: "managed",
}
_COPY_NAMES = {
    1: "Host-to-Device",
    2: "Device-to-Host",
    3: "Host-to-Array",
    4: "Array-to-Host",
    5: "Array-to-Array",
    6: "Array-to-Device",
    7: "Device-to-Array",
    8: "Device-to-Device",
    9: "Host-to-Host",
    10: "Peer-to-Peer",
    11: "Unified Host-to-Device",
    12: "Unified Device-to-Host",
    13: "Unified Device-to-Device",
}
_WAIT_COLUMNS = ("nsys_waiting_stream", "nsys_awaited_stream", "nsys_awaited_call")
_NO_STREAM = 2**32 - 1
"""CUPTI's value for "no stream" or "no event" (CUPTI_SYNCHRONIZATION_INVALID_VALUE)."""
_OS_CALL = 27
"""Class of the events that are calls of the operating system."""
_API_VERSION = r"_v\d{4}$"
"""Pattern of a suffix of API calls that nsys's summaries remove, and so do we; ``_v11060`` and
``_v2`` stay.
"""


class _Export(nsys.Export):
    """One export: its frames with a column ``pid`` (nsys's global process id), and facts about
    the run.
    """

    rank_from = DEVICES
    """Evidence for the ranks."""

    def frame(self, table: str) -> pl.DataFrame | None:
        """Frame of a table; if the table is not requested, only its times, devices and
        processes.
        """
        if table not in self.wanted:
            of_libraries = [t for p in nsys.LIBRARIES.values() for t in self.columns.matching(p)]
            return self._skeleton(*_SOURCES[table], *(of_libraries if table == "runtime" else ()))
        frame: pl.DataFrame | None = getattr(self, table)()
        return frame

    def _skeleton(self, *tables: str) -> pl.DataFrame | None:
        frames = []
        for table in tables:
            of_threads = nsys.owner(table) == "globalTid"
            if table == nsys.MEMORY:
                frame = self._read(table, "start", "globalPid", "deviceId")
            elif table == nsys.NVTX:
                frame = self._read(table, "start", "end", "globalTid", "eventType")
            else:
                frame = self._read(
                    table, "start", "end", nsys.owner(table), *(() if of_threads else ("deviceId",))
                )
            if frame is None:
                continue
            if table == nsys.NVTX:
                frame = frame.filter(pl.col("eventType").is_in(nsys.RANGES)).with_columns(
                    end=pl.coalesce("end", "start")
                )
            if of_threads:
                frame = label_threads(frame).rename({"pid": "globalPid"})
            if table == nsys.MEMORY:
                frame = frame.rename(
                    {"start": "time_ns"}
                )  # events without a duration do not count for the start
            else:
                frame = self._times(frame)
            frames.append(
                nsys.rename(frame, {"globalPid": "pid", "deviceId": "device", **nsys.TIMES})
            )
        return pl.concat(frames, how="diagonal_relaxed") if frames else None

    def recorded(self) -> set[str]:
        """Tables that were recorded, with or without rows: those in the file, and those that
        nsys had to record.
        """
        was_traced = self.capture.asked
        kernels, copies = (
            any(table in self.columns for table in _SOURCES[name]) for name in ("kernels", "copies")
        )
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
        """Rank of each process, from the name of the worker or an MPI mark, else from the order
        of the devices.
        """
        work = [
            f.select("pid", "device") for n in ("kernels", "copies") if (f := frames[n]) is not None
        ]
        if not work:
            return {pid: i for i, pid in enumerate(processes.to_list())}
        on_device = pl.concat(work, how="vertical_relaxed").group_by("pid").agg(pl.min("device"))
        order = on_device.sort("device", "pid")["pid"].to_list()
        stated = self._ranks_by_name()
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

    def _ranks_by_name(self) -> dict[int, int]:
        by_mpi: dict[int, int] = {}
        names = self._read("PROCESSES", "globalPid", text=("name",))
        rows = list(names.iter_rows()) if names is not None else []
        threads = self._read(nsys.NVTX, "globalTid", "eventType", "textId", text=("text",))
        if threads is not None:
            named = self._named(nsys.with_columns_of(threads, ("textId",)), "textId", default="")
            named = named.filter(~pl.col("eventType").is_in(nsys.RANGES))
            rows += named.select(
                (pl.col("globalTid") // (1 << 24)) * (1 << 24), pl.coalesce("text", "name")
            ).rows()
        stages: dict[int, tuple[int, int]] = {}
        for pid, name in rows:
            worker, mpi = _RANK_NAMES[0].search(name or ""), _RANK_NAMES[1].search(name or "")
            if worker and (worker[1] or worker[2]):
                stages[pid] = (int(worker[1] or 0), int(worker[2] or 0))
            elif mpi:
                by_mpi[pid] = int(mpi[1])
        width = 1 + max((tp for _, tp in stages.values()), default=0)
        return by_mpi | {pid: pp * width + tp for pid, (pp, tp) in stages.items()}

    def head(
        self, rank: int, ranks: dict[int, int], tables: dict[str, pl.DataFrame]
    ) -> dict[str, Any]:
        """Facts about the run, in the form that all readers use."""
        key = "id" if "id" in self.columns.get("TARGET_INFO_GPU", []) else "deviceId"
        gpus = self._read("TARGET_INFO_GPU", key, text=("name",))
        used = tables["kernels"]["device"].unique().to_list() if "kernels" in tables else []
        names: list[str] = []
        if gpus is not None:
            named = gpus.drop_nulls("name")
            names = (
                named.filter(pl.col(key).is_in(used))["name"].to_list()
                or named["name"].unique().to_list()
            )
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
                name: version
                for name, of in (("nsys", "PRODUCT"), ("nsys_schema", "SCHEMA"))
                if (version := self.meta.get(f"EXPORT_{of}_VERSION"))
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
            "truncated": "",
            "repaired": False,
            "bytes": sum(
                p.stat().st_size
                for p in (self.path.iterdir() if self.path.is_dir() else [self.path])
            ),
            **dict.fromkeys(("lost_bytes", "lost_pieces", "wrong_types"), 0),
            "notes": [*self.notes, *self.columns.notes()],
        }

    def _kernel_rows(self) -> pl.DataFrame | None:
        wanted = [
            old for old, new in nsys.KERNEL_COLUMNS.items() if self.wanted.has("kernels", new)
        ]
        columns = ["start", "end", "deviceId", "globalPid", *wanted]
        if self.wanted.has("kernels", "shared_bytes"):
            columns += _SHARED_MEMORY
        # current versions of nsys write a full name for every kernel; the short name is read if it
        # is missing
        names = [
            c for c in ("demangledName", "shortName") if c in self.columns.get(nsys.KERNEL, [])
        ]
        frame = self._read(nsys.KERNEL, *columns, *names[:1])
        if frame is None:
            return None
        frame = self._texts(frame, *names[:1])
        if names[1:] and frame["name"].null_count():
            del frame
            rows = self._rows(nsys.KERNEL, dict.fromkeys([*columns, *names], pl.Int64()))
            if rows is None:
                return None
            frame = self._texts(rows, *names)
        return self.without_gaps(frame, "unnamed kernel")

    def kernels(self) -> pl.DataFrame | None:
        """Kernels; if only whole CUDA graphs were traced, one row for each launch of a graph."""
        frame = self._kernel_rows()
        graphs = self._read(
            nsys.GRAPH,
            "start",
            "end",
            "deviceId",
            "streamId",
            "correlationId",
            "globalPid",
            "graphId",
        )
        if frame is None and graphs is None:
            return None
        parts = []
        if frame is not None:
            memory_columns = [c for c in _SHARED_MEMORY if c in frame.columns]
            if shared := [c for c in memory_columns if c in self.columns[nsys.KERNEL]]:
                frame = frame.with_columns(
                    shared_bytes=pl.sum_horizontal(pl.col(shared).fill_null(0))
                )
            parts.append(frame.drop(memory_columns))
        if graphs is not None and graphs.height:
            graphs = graphs.with_columns(
                name=pl.format("[CUDA graph {}]", pl.col("graphId").fill_null(-1))
            )
            parts.append(graphs)
        if not parts:
            return None
        whole = self._times(
            parts[0] if len(parts) == 1 else pl.concat(parts, how="diagonal_relaxed")
        )
        same = {name: name for name in ("shared_bytes", "start_ns", "dur_ns", "name")}
        return nsys.rename(
            whole, {"deviceId": "device", "globalPid": "pid", **nsys.KERNEL_COLUMNS, **same}
        )

    def copies(self) -> pl.DataFrame | None:
        """Memory copies and memory sets."""
        both = (
            "start",
            "end",
            "deviceId",
            "streamId",
            "correlationId",
            "globalPid",
            "bytes",
            "graphNodeId",
        )
        copies = self._read(nsys.MEMCPY, *both, "copyKind", "srcKind", "dstKind")
        sets = self._read(nsys.MEMSET, *both, "memKind")
        if copies is None and sets is None:
            return None
        parts = []
        if copies is not None:
            copied = pl.col("copyKind")
            words = copied.replace_strict(_COPY_NAMES, default="Unknown", return_dtype=pl.String)
            copies = nsys.with_columns_of(copies, ("srcKind", "dstKind", "copyKind")).with_columns(
                kind=copied.replace_strict(COPY_KINDS, default="unknown", return_dtype=pl.String),
                src_kind=_memory_kind("srcKind"),
                dst_kind=_memory_kind("dstKind"),
                name=pl.format("[CUDA memcpy {}]", words),
            )
            parts.append(copies)
        if sets is not None:
            sets = nsys.with_columns_of(sets, ("memKind",)).with_columns(
                kind=pl.lit("memset"),
                dst_kind=_memory_kind("memKind"),
                name=pl.lit("[CUDA memset]"),
            )
            parts.append(sets)
        whole = self._times(pl.concat(parts, how="diagonal_relaxed"))
        same = {
            name: name
            for name in ("bytes", "kind", "src_kind", "dst_kind", "name", "start_ns", "dur_ns")
        }
        columns = {c: nsys.KERNEL_COLUMNS[c] for c in ("streamId", "correlationId", "graphNodeId")}
        return nsys.rename(whole, {"deviceId": "device", "globalPid": "pid", **columns, **same})

    def memory(self) -> pl.DataFrame | None:
        """Allocations and releases of device memory."""
        frame = self._read(
            "CUDA_GPU_MEMORY_USAGE_EVENTS",
            "start",
            "globalPid",
            "deviceId",
            "address",
            "bytes",
            "memoryOperationType",
        )
        if frame is None:
            return None
        # CUPTI_ACTIVITY_MEMORY_OPERATION_TYPE_ALLOCATION is 0, RELEASE is 1
        sign = pl.when(pl.col("memoryOperationType") == 1).then(-1).otherwise(1)
        return frame.select(
            pid="globalPid",
            device="deviceId",
            time_ns=pl.col("start") + self.start_ns,
            bytes=pl.col("bytes") * sign,
            address="address",
            on_device=pl.lit(True),
        )

    def counters(self) -> pl.DataFrame | None:
        """Samples of GPU metrics by device; the device is the low byte of the type."""
        frame = self._read("GPU_METRICS", "timestamp", "typeId", "metricId", "value")
        names = self._read("TARGET_INFO_GPU_METRICS", "metricId", "typeId", text=("metricName",))
        if frame is None or names is None:
            return None
        kept = frame.filter(
            pl.col("timestamp").is_between(-MOST_NS, MOST_NS) & pl.col("value").is_not_null()
        )
        if lost := frame.height - kept.height:
            self.note(left_out(lost, "row", "of GPU_METRICS without a time or a value"))
        frame = kept.join(
            names.unique(["typeId", "metricId"]), on=["typeId", "metricId"], how="left"
        )
        name = pl.coalesce("metricName", pl.lit("unnamed metric"))
        unit, value = name.str.extract(_METRIC_UNIT), pl.col("value").cast(pl.Float64)
        return frame.select(
            device=(pl.col("typeId") & 0xFF).cast(pl.Int32, strict=False),
            time_ns=pl.col("timestamp") + self.start_ns,
            name=name.str.replace(_METRIC_UNIT, ""),
            value=value * pl.when((unit == "MHz") & (value < _LEAST_HZ)).then(1e6).otherwise(1.0),
            unit=unit.replace("MHz", "Hz"),
        )

    def devices_of(self, pids: list[int]) -> dict[int, int]:
        """CUDA's number of each GPU in some processes, by nsys's number, where the export states
        both.
        """
        frame = self._read("TARGET_INFO_CUDA_DEVICE", "gpuId", "cudaId", "pid")
        if frame is None:
            return {}
        own = frame.filter(pl.col("pid").is_in([pid >> 24 & 0xFFFFFF for pid in pids]))
        return dict(
            own.select(pl.col("gpuId", "cudaId").cast(pl.Int32, strict=False))
            .drop_nulls()
            .iter_rows()
        )

    def runtime(self) -> pl.DataFrame | None:
        """Calls of the CUDA runtime and driver, and traced calls of the operating system and
        other libraries.
        """
        calls = self._read(
            nsys.RUNTIME, "start", "end", "eventClass", "globalTid", "correlationId", "nameId"
        )
        parts = []
        if calls is not None:
            calls = self._named(calls, "nameId", default="unnamed call", cut=_API_VERSION)
            driver = pl.col("name").str.contains(r"^cu[A-Z]")
            calls = calls.with_columns(
                api=pl.when(driver).then(pl.lit("driver")).otherwise(pl.lit("runtime"))
            )
            parts.append(self._with_waits(calls))
        for library, pattern in nsys.LIBRARIES.items():
            for table in self.columns.matching(pattern):
                rows = self._library_calls(table)
                if rows is not None and (rows.height or table == "OSRT_API"):
                    parts.append(rows.with_columns(api=pl.lit(library)))
        if not parts:
            return None
        whole = label_threads(self._times(pl.concat(parts, how="diagonal_relaxed")))
        # A separate event class marks calls that a wrapper library reported, which CUPTI reported
        # as well.
        columns = {"correlationId": "correlation"}
        if "eventClass" in self.columns.get(nsys.RUNTIME, []):
            columns["eventClass"] = "nsys_event_class"
        columns |= {
            c: c
            for c in (
                "pid",
                "process",
                "thread",
                "start_ns",
                "dur_ns",
                "name",
                "api",
                *_WAIT_COLUMNS,
            )
        }
        return nsys.rename(whole, columns)

    def _with_waits(self, calls: pl.DataFrame) -> pl.DataFrame:
        """Add to waiting calls what they wait for, if CUPTI recorded it: streams, and the call that
        recorded the event.

        The kind of a call is taken from its name, because versions of nsys number the kinds of
        synchronisation differently.
        """
        waits = self._read(
            nsys.WAITS, "correlationId", "streamId", "globalPid", "contextId", "eventId"
        )
        if waits is None or not waits.height:
            return calls
        key = ["globalPid", "correlationId"]
        calls = calls.with_columns(globalPid=(pl.col("globalTid") // (1 << 24)) * (1 << 24))
        valid_ids = [
            pl.when(pl.col(c) != _NO_STREAM).then(c).alias(c) for c in ("streamId", "eventId")
        ]
        on_stream, of_stream = (
            pl.col("name").str.contains("StreamWaitEvent"),
            pl.col("name").str.contains("StreamSync"),
        )
        of_event = pl.col("name").str.contains("EventSync")
        waits = waits.with_columns(valid_ids).join(calls.select(*key, "name", "start"), on=key)
        waits = waits.filter(on_stream | of_stream | of_event).unique(key)
        waits = waits.with_columns(
            nsys_waiting_stream=pl.when(on_stream).then("streamId"),
            streamId=pl.when(of_stream).then("streamId"),
        )
        records = self._read(
            nsys.RECORDS, "correlationId", "streamId", "globalPid", "contextId", "eventId"
        )
        if records is not None:
            event = ["globalPid", "contextId", "eventId"]
            records = records.join(calls.select(*key, "start"), on=key).select(
                *event, "start", record="streamId", nsys_awaited_call="correlationId"
            )
            waits = waits.sort("start").join_asof(
                records.sort("start"),
                on="start",
                by=event,
                allow_exact_matches=False,
                check_sortedness=False,
            )
            waits = waits.with_columns(streamId=pl.coalesce("streamId", "record"))
        waits = nsys.with_columns_of(waits, ("nsys_awaited_call",)).rename(
            {"streamId": "nsys_awaited_stream"}
        )
        waits = waits.select(*key, *_WAIT_COLUMNS)
        return calls.join(waits, on=key, how="left", maintain_order="left").drop("globalPid")

    def _library_calls(self, table: str) -> pl.DataFrame | None:
        """Calls of a library; those of OpenACC are named with their line of the program, as in
        nsys's summary.
        """
        ids = [c for c in ("nameId", "textId") if c in self.columns[table]][:1]
        lines = [c for c in ("srcFile", "lineNo") if c in self.columns[table]]
        classes = ("eventClass",) if table == "OSRT_API" else ()
        calls = self._read(
            table, "start", "end", "globalTid", *ids, *classes, *(lines if len(lines) == 2 else ())
        )
        if calls is None:
            return None
        if classes:  # other classes are marks of the profiler: begin and end of tracing, at once
            mark = (pl.col("eventClass") != _OS_CALL) & (pl.col("end") <= pl.col("start"))
            calls = calls.filter(~mark.fill_null(False)).drop(classes)
        calls = self._named(calls, *ids, default="unnamed call")
        if len(lines) == 2:
            file = self._texts(calls.select("srcFile"), "srcFile")["name"]
            with_line = pl.format(
                "{}@{}:{}", "name", file, pl.col("lineNo").cast(pl.String).fill_null("")
            )
            calls = calls.with_columns(
                name=pl.when(file.is_not_null()).then(with_line).otherwise("name")
            ).drop(lines)
        return calls.drop(ids)

    def markers(self) -> pl.DataFrame | None:
        """NVTX ranges and marks, the profiler's own overhead, and page faults of managed memory."""
        parts = (self._ranges(), self._overhead(), *self._page_faults())
        frames = [frame for frame in parts if frame is not None]
        if not frames:
            return None
        found = nsys.with_columns_of(pl.concat(frames, how="diagonal_relaxed"), ("device",))
        return found.with_columns(on_device=pl.col("device").is_not_null())

    def _page_faults(self) -> Iterator[pl.DataFrame]:
        """Faults of the processor, as marks that name the function, and of devices, as ranges on
        the device.
        """
        columns = {"pid": "globalPid", "start_ns": "start_ns", "dur_ns": "dur_ns", "name": "name"}
        faults = self._read("CUDA_UM_CPU_PAGE_FAULT_EVENTS", "start", "globalPid", "CpuInstruction")
        if faults is not None and faults.height:
            faults = self._named(faults, "CpuInstruction", default="unknown code").with_columns(
                end="start"
            )
            faults = self._times(faults).with_columns(
                name=pl.format("CPU page fault in {}", "name")
            )
            yield faults.select(
                **columns, domain=pl.lit("unified memory"), nsys_style=pl.lit("Mark")
            )
        faults = self._read(
            "CUDA_UM_GPU_PAGE_FAULT_EVENTS", "start", "end", "globalPid", "deviceId"
        )
        if faults is not None and faults.height:
            faults = self._times(faults.with_columns(name=pl.lit("GPU page fault")))
            yield faults.select(**columns, device="deviceId", domain=pl.lit("unified memory"))

    def _overhead(self) -> pl.DataFrame | None:
        overhead = self._read("PROFILER_OVERHEAD", "start", "end", "globalTid", "nameId")
        if overhead is None or not overhead.height:
            return None
        overhead = label_threads(
            self._times(self._named(overhead, "nameId", default="profiler overhead"))
        )
        return overhead.select(
            "pid", "process", "thread", "start_ns", "dur_ns", "name", domain=pl.lit("overhead")
        )

    def _ranges(self) -> pl.DataFrame | None:
        events = self._read(
            nsys.NVTX,
            "start",
            "end",
            "eventType",
            "globalTid",
            "endGlobalTid",
            "textId",
            "domainId",
            text=("text",),
        )
        if events is None:
            return None
        if "eventType" not in self.columns["NVTX_EVENTS"]:
            self.note(
                "NVTX_EVENTS has no column eventType, so it is unknown which rows are ranges: none"
                " was read"
            )
        elif unknown := events["eventType"].null_count():
            self.note(left_out(unknown, "row", "of NVTX_EVENTS without a known kind"))
        events = self._named(
            nsys.with_columns_of(events, ("textId", "domainId", "endGlobalTid")),
            "textId",
            default="",
        )
        events = label_threads(events.with_columns(name=pl.coalesce("text", "name")))
        domains = events.filter(eventType=nsys.DOMAIN).select("pid", "domainId", domain="name")
        domains = domains.unique(["pid", "domainId"], keep="first", maintain_order=True)
        ranges = events.filter(pl.col("eventType").is_in(nsys.RANGES))
        ranges = ranges.join(domains, on=["pid", "domainId"], how="left", maintain_order="left")
        # A range that was open when the capture stopped has no end; its end is the last known time.
        possible = [
            pl.when(pl.col(c).is_between(-MOST_NS, MOST_NS)).then(c) for c in ("start", "end")
        ]
        last = pl.max_horizontal(time.max() for time in possible)
        is_mark = pl.col("eventType") == nsys.MARK
        ranges = ranges.with_columns(
            end=pl.when(is_mark).then("start").otherwise(pl.coalesce("end", last))
        )
        default = (
            pl.when(pl.col("domainId").fill_null(0) == 0)
            .then(pl.lit("nvtx"))
            .otherwise(pl.lit("unnamed domain"))
        )
        return self._times(ranges).select(
            "pid",
            "process",
            "thread",
            "start_ns",
            "dur_ns",
            "name",
            domain=pl.coalesce("domain", default),
            nsys_style=pl.col("eventType").replace_strict(nsys.STYLES, return_dtype=pl.String),
            nsys_end_thread=pl.col("endGlobalTid") % (1 << 24),
        )


def _memory_kind(column: str) -> pl.Expr:
    return pl.col(column).replace_strict(_MEMORY_KINDS, default=None, return_dtype=pl.String)


def _sniff(probe: Probe) -> bool:
    if probe.is_folder:
        return nsys.is_folder_export(probe.path)
    if probe.path.suffix in nsys.REPORT_SUFFIXES:
        return True
    if nsys.is_arrow_export(probe.start):
        return probe.path.suffix == nsys.ARROW_SUFFIX
    return probe.start.startswith(sqlite.MAGIC) and nsys.is_nsys_sqlite(probe.path)


def _exported(file: Path, request: Request) -> Path:
    """The SQLite export of a report, which is made once and kept in the cache; other files are
    returned unchanged.
    """
    if file.suffix not in nsys.REPORT_SUFFIXES:
        return file
    folder = cache.export_folder(file)
    exported = folder / f"{file.stem}.sqlite"
    if not exported.exists():
        size = file.stat().st_size
        if request.progress is not None:
            request.progress(f"{file.name} (nsys export)", 0, size)
        nsys.export_sqlite(file, folder)
        if request.progress is not None:
            request.progress(f"{file.name} (nsys export)", size, size)
    return exported


def _choose(files: list[Path]) -> list[Path]:
    """For each recording, one of its files: the SQLite file, else a folder, else Arrow streams,
    else the report.
    """
    best: dict[str, tuple[int, Path]] = {}
    for path in files:
        ending = next((ending for ending in nsys.FOLDER_ENDINGS if path.name.endswith(ending)), "")
        name = path.name.removesuffix(ending) if path.is_dir() else path.stem
        order = (
            1
            if path.is_dir()
            else (
                3
                if path.suffix in nsys.REPORT_SUFFIXES
                else 2
                if path.suffix == nsys.ARROW_SUFFIX
                else 0
            )
        )
        if name not in best or order < best[name][0]:
            best[name] = order, path
    chosen = {path for _, path in best.values()}
    return [path for path in files if path in chosen]


READER = Reader(
    name="nsys",
    version=9,
    what="an export of Nsight Systems (SQLite, Parquet or Arrow) or its report",
    sniff=_sniff,
    read=lambda path, request: read(_exported(path, request), request.wanted),
    suffixes=(".sqlite", nsys.ARROW_SUFFIX, *nsys.REPORT_SUFFIXES),
    choose=_choose,
    settle=_settle,
    database=lambda path, request: (
        None if path.is_dir() or path.suffix == nsys.ARROW_SUFFIX else _exported(path, request)
    ),
)
