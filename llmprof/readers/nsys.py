"""Reader for Nsight Systems exports, SQLite or Parquet of any schema since 2.9: a part for each process that worked.

Any table may be missing and columns come and go with versions, so every table is probed and what exists is read.
Times are ns from the start of the capture; ``TARGET_INFO_SESSION_START_TIME`` gives the epoch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import polars as pl

from llmprof.errors import ReadError
from llmprof.readers import _communication
from llmprof.readers._nsys_files import open_tables
from llmprof.readers._part import Part
from llmprof.readers._wanted import Wanted

VERSION = 2
"""Raised whenever the same file would give other frames: part of the cache key."""

NEWEST_SCHEMA = (3, 25)
"""Newest schema that was tried; a newer one is read with a warning."""

_KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
_MEMCPY = "CUPTI_ACTIVITY_KIND_MEMCPY"
_MEMSET = "CUPTI_ACTIVITY_KIND_MEMSET"
_RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
_GRAPH = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"

PUSH_POP, START_END, MARK, DOMAIN = 59, 60, 34, 75
# 70 and 71 come from nvtxt files that were merged in
_STYLES = {PUSH_POP: "PushPop", START_END: "StartEnd", MARK: "Mark", 70: "PushPop", 71: "StartEnd"}
_RANGES = tuple(_STYLES)

_API_VERSION = r"_v\d{4}$"
"""What nsys takes off the names of API calls; ``_v11060`` and ``_v2`` stay in its summaries, and here."""

# CUPTI's CUpti_ActivityMemcpyKind and CUpti_ActivityMemoryKind, as nsys numbers them in ENUM_CUDA_MEMCPY_OPER and
# ENUM_CUDA_MEM_KIND; the tables themselves are absent in old exports
_COPY_KINDS = {
    1: "HtoD", 2: "DtoH", 3: "HtoD", 4: "DtoH", 5: "DtoD", 6: "DtoD", 7: "DtoD", 8: "DtoD", 9: "HtoH", 10: "PtoP",
    11: "HtoD", 12: "DtoH", 13: "DtoD",
}  # fmt: skip
_MEMORY_KINDS = {0: "pageable", 1: "pinned", 2: "device", 3: "array", 4: "managed", 5: "device", 6: "managed"}
_COPY_NAMES = {
    1: "Host-to-Device", 2: "Device-to-Host", 3: "Host-to-Array", 4: "Array-to-Host", 5: "Array-to-Array",
    6: "Array-to-Device", 7: "Device-to-Array", 8: "Device-to-Device", 9: "Host-to-Host", 10: "Peer-to-Peer",
    11: "Unified Host-to-Device", 12: "Unified Device-to-Host", 13: "Unified Device-to-Device",
}  # fmt: skip

_RANK_NAMES = (
    re.compile(r"Worker_(?:DP\d+_)?(?:PP(\d+))?_?(?:TP(\d+))?", re.IGNORECASE),
    re.compile(r"MPI Rank (\d+)"),
)


_SOURCES = {
    "kernels": (_KERNEL, _GRAPH),
    "copies": (_MEMCPY, _MEMSET),
    "runtime": (_RUNTIME, "OSRT_API"),
    "markers": ("NVTX_EVENTS", "PROFILER_OVERHEAD"),
    "memory": ("CUDA_GPU_MEMORY_USAGE_EVENTS",),
}
"""Tables of an export that a table of a trace is made of, whose processes and times count for the whole."""

_KERNEL_COLUMNS = {
    "streamId": "stream", "correlationId": "correlation", "graphNodeId": "graph_node", "gridX": "grid_x",
    "gridY": "grid_y", "gridZ": "grid_z", "blockX": "block_x", "blockY": "block_y", "blockZ": "block_z",
    "registersPerThread": "registers",
}  # fmt: skip
_TYPES = dict.fromkeys(("deviceId", *(c for c in _KERNEL_COLUMNS if c[:4] in ("grid", "bloc", "regi"))), pl.Int32())
"""What the schema keeps in four bytes, read as that."""
_SHARED_MEMORY = ("staticSharedMemory", "dynamicSharedMemory")
_TIMES = {"start_ns": "start_ns", "dur_ns": "dur_ns", "time_ns": "time_ns"}


def read(path: Path, wanted: Wanted | None = None) -> list[Part]:
    """Read one export.

    Parameters
    ----------
    path : pathlib.Path
        What ``nsys export --type sqlite`` (a file) or ``--type parquetdir`` (a folder) wrote.
    wanted : Wanted, optional
        The tables and columns to read. Of other tables that exist, only the times and processes are read: ranks and
        the start of the trace are the same whatever is wanted.

    Returns
    -------
    list of Part
        One a process with device work, in the order of their devices, then one (rank -1) for all others that called
        CUDA or set NVTX ranges; with absolute times.

    Raises
    ------
    ReadError
        The file cannot be read or is no export of nsys.
    """
    wanted = Wanted() if wanted is None else wanted
    export = _Export(path, wanted)
    frames = {name: export.frame(name) for name in _SOURCES}
    counters = export.counters() if "counters" in wanted else None
    found = [frame["pid"].unique() for frame in frames.values() if frame is not None and frame.height]
    processes = pl.concat(found).unique().drop_nulls().sort() if found else pl.Series([], dtype=pl.Int64)
    ranks = export.ranks(processes, frames)
    parts = []
    for rank, tables in _by_rank(frames, ranks).items():
        kernels = tables.get("kernels")
        if kernels is not None and "collectives" in wanted:
            no_op = pl.lit(None, dtype=pl.Int64).alias("op_id")
            collectives = _communication.find(kernels.with_columns(no_op), None)
            if collectives is not None:
                tables["collectives"] = collectives
        if counters is not None and rank >= 0:
            devices = kernels["device"].unique().to_list() if kernels is not None else []
            tables["counters"] = counters.filter(pl.col("device").is_in(devices))
        head, coverage = export.head(rank, ranks, tables), export.coverage(tables)
        parts.append(Part(path=path, tables=tables, head=head, coverage=coverage))
    if not parts:
        raise ReadError(
            f"{path.name} holds no kernel, copy, CUDA call or NVTX range",
            expected="an export with CUDA or NVTX activity",
            hint="record with nsys profile -t cuda,nvtx and check that the capture range was reached",
        )
    return parts


def _by_rank(frames: dict[str, pl.DataFrame | None], ranks: Mapping[int, int]) -> dict[int, dict[str, pl.DataFrame]]:
    """Tables of each rank; the frames are taken out, so that no more than one is there twice."""
    order = sorted(set(ranks.values()), key=lambda r: (r < 0, r))
    processes = {rank: [pid for pid, r in ranks.items() if r == rank] for rank in order}
    tables: dict[int, dict[str, pl.DataFrame]] = {rank: {} for rank in order}
    for name in list(frames):
        frame = frames.pop(name)
        if frame is not None:
            for rank, pids in processes.items():
                tables[rank][name] = frame.filter(pl.col("pid").is_in(pids)).drop("pid")
    return tables


class _Export:
    """One file: which tables it has, and its frames with a column ``pid`` (nsys's global process id)."""

    def __init__(self, path: Path, wanted: Wanted) -> None:
        self.path = path
        self.wanted = wanted
        self._tables = open_tables(path)
        self.columns = self._tables.columns
        if not {"StringIds", _KERNEL, _RUNTIME, "NVTX_EVENTS"} & set(self.columns):
            raise ReadError(
                f"{path.name} is no export of Nsight Systems: its tables are {sorted(self.columns)[:6]}",
                expected="StringIds and CUPTI_ACTIVITY_KIND_* or NVTX_EVENTS",
                hint="export the report with nsys export --type sqlite",
            )
        self.meta = self._pairs("META_DATA_EXPORT") | self._pairs("EXPORT_META_DATA")
        self.start_ns = self._start()
        self._strings: pl.DataFrame | None = None
        schema = tuple(int(n) for n in re.findall(r"\d+", str(self.meta.get("EXPORT_SCHEMA_VERSION", "")))[:2])
        self.notes: list[str] = []
        if schema > NEWEST_SCHEMA:
            self.notes.append(
                f"its schema {_dotted(schema)} is newer than {_dotted(NEWEST_SCHEMA)}, the newest that was tried: "
                "what is known is read; compare the counts with nsys stats"
            )
        if _KERNEL not in self.columns and _GRAPH in self.columns:
            self.notes.append(
                "CUDA graphs were recorded as wholes, their kernels are not in it; record with --cuda-graph-trace=node"
            )

    def _pairs(self, table: str) -> dict[str, str]:
        found = self._read(table, text=("name", "value"))
        return {} if found is None or found.width < 2 else dict(found.drop_nulls().iter_rows())

    def _start(self) -> int:
        found = self._read("TARGET_INFO_SESSION_START_TIME", "utcEpochNs")
        return 0 if found is None or not found.height else int(found.item(0, 0) or 0)

    def _read(self, table: str, *wanted: str, text: tuple[str, ...] = ()) -> pl.DataFrame | None:
        """Columns of a table; None if it is absent or lacks the first of them."""
        if (wanted or text)[0] not in self.columns.get(table, []):
            return None
        types = {name: _TYPES.get(name, pl.Int64()) for name in wanted} | dict.fromkeys(text, pl.String())
        return self._tables.read(table, types)

    @property
    def strings(self) -> pl.DataFrame:
        """Texts by id."""
        if self._strings is None:
            found = self._read("StringIds", "id", text=("value",))
            self._strings = pl.DataFrame(schema={"id": pl.Int64, "value": pl.String}) if found is None else found
        return self._strings

    def _texts(self, frame: pl.DataFrame, *ids: str, cut: str = "") -> pl.DataFrame:
        """Add ``name``: the text of the first of the id columns that has one, without what matches ``cut``; or null."""
        value = pl.col("value").str.replace(cut, "") if cut else pl.col("value")
        for column in (c for c in ids if c in frame.columns):
            more = "name" in frame.columns
            texts = self.strings.select(pl.col("id").alias(column), value.alias("_other" if more else "name"))
            frame = frame.join(texts, on=column, how="left", maintain_order="left")
            if more:
                frame = frame.with_columns(name=pl.coalesce("name", "_other")).drop("_other")
            if not frame["name"].null_count():
                return frame
        return frame if "name" in frame.columns else frame.with_columns(name=pl.lit(None, dtype=pl.String))

    def _named(self, frame: pl.DataFrame, *ids: str, default: str, cut: str = "") -> pl.DataFrame:
        """Add ``name`` as :meth:`_texts` does, with a default."""
        frame = self._texts(frame, *ids, cut=cut)
        return frame.with_columns(pl.col("name").fill_null(default)) if frame["name"].null_count() else frame

    def _times(self, frame: pl.DataFrame) -> pl.DataFrame:
        return frame.with_columns(
            start_ns=pl.col("start") + self.start_ns, dur_ns=(pl.col("end") - pl.col("start")).clip(0)
        ).drop("start", "end")

    def frame(self, table: str) -> pl.DataFrame | None:
        """Frame of a table, or of its times, devices and processes if it is not wanted."""
        if table not in self.wanted and not (table == "kernels" and "collectives" in self.wanted):
            return self._skeleton(*_SOURCES[table])
        read: dict[str, Callable[[], pl.DataFrame | None]] = {
            "kernels": self.kernels,
            "copies": self.copies,
            "runtime": self.runtime,
            "markers": self.markers,
            "memory": self.memory,
        }
        return read[table]()

    def _skeleton(self, *tables: str) -> pl.DataFrame | None:
        found = [self._read(t, "start", "end", "globalPid", "globalTid", "deviceId", "eventType") for t in tables]
        frames = []
        for frame in (f for f in found if f is not None):
            if "eventType" in frame.columns:
                frame = frame.filter(pl.col("eventType").is_in(_RANGES)).with_columns(
                    end=pl.coalesce("end", "start") if "end" in frame.columns else "start"
                )
            if "globalPid" not in frame.columns:
                frame = _threads(frame).rename({"pid": "globalPid"})
            if "end" not in frame.columns:
                frame = frame.rename({"start": "time_ns"})  # what has no duration does not count for the start
            else:
                frame = self._times(frame)
            frames.append(_rename(frame, {"globalPid": "pid", "deviceId": "device", **_TIMES}))
        return pl.concat(frames, how="diagonal_relaxed") if frames else None

    def _kernel_rows(self) -> pl.DataFrame | None:
        wanted = ["start", "end", "deviceId", "globalPid"]
        for old, new in _KERNEL_COLUMNS.items():
            collective = new in ("stream", "correlation") and "collectives" in self.wanted
            if collective or self.wanted.has("kernels", new):
                wanted.append(old)
        if self.wanted.has("kernels", "shared_bytes"):
            wanted += _SHARED_MEMORY
        # every kernel has a full name in what nsys writes today: the short one is read where one has none
        names = [c for c in ("demangledName", "shortName") if c in self.columns.get(_KERNEL, [])]
        frame = self._read(_KERNEL, *wanted, *names[:1])
        if frame is None:
            return None
        frame = self._texts(frame, *names[:1])
        if names[1:] and frame["name"].null_count():
            del frame
            frame = self._texts(self._tables.read(_KERNEL, dict.fromkeys([*wanted, *names], pl.Int64())), *names)
        return frame.with_columns(pl.col("name").fill_null("unnamed kernel")) if frame["name"].null_count() else frame

    def kernels(self) -> pl.DataFrame | None:
        """Kernels; where CUDA graphs were traced as wholes, one row a graph launch."""
        frame = self._kernel_rows()
        graphs = self._read(_GRAPH, "start", "end", "deviceId", "streamId", "correlationId", "globalPid", "graphId")
        if frame is None and graphs is None:
            return None
        parts = []
        if frame is not None:
            shared = [c for c in _SHARED_MEMORY if c in frame.columns]
            if shared:
                frame = frame.with_columns(shared_bytes=pl.sum_horizontal(pl.col(shared).fill_null(0))).drop(shared)
            parts.append(frame)
        if graphs is not None and graphs.height:
            graphs = graphs.with_columns(name=pl.format("[CUDA graph {}]", pl.col("graphId").fill_null(-1)))
            parts.append(graphs)
        if not parts:
            return None
        whole = self._times(parts[0] if len(parts) == 1 else pl.concat(parts, how="diagonal_relaxed"))
        return _rename(
            whole,
            {"deviceId": "device", "globalPid": "pid", **_KERNEL_COLUMNS, "shared_bytes": "shared_bytes", **_TIMES}
            | {"name": "name"},
        )

    def copies(self) -> pl.DataFrame | None:
        """Memory copies and memory sets."""
        copies = self._read(
            _MEMCPY, "start", "end", "deviceId", "streamId", "correlationId", "globalPid", "bytes", "copyKind",
            "srcKind", "dstKind", "graphNodeId",
        )  # fmt: skip
        sets = self._read(
            _MEMSET,
            "start",
            "end",
            "deviceId",
            "streamId",
            "correlationId",
            "globalPid",
            "bytes",
            "memKind",
            "graphNodeId",
        )
        if copies is None and sets is None:
            return None
        parts = []
        if copies is not None:
            kind = pl.col("copyKind").replace_strict(_COPY_KINDS, default="unknown", return_dtype=pl.String)
            copies = _with(copies, ("srcKind", "dstKind", "copyKind")).with_columns(
                kind=kind, src_kind=_memory_kind("srcKind"), dst_kind=_memory_kind("dstKind")
            )
            words = pl.col("copyKind").replace_strict(_COPY_NAMES, default="Unknown", return_dtype=pl.String)
            parts.append(copies.with_columns(name=pl.format("[CUDA memcpy {}]", words)))
        if sets is not None:
            sets = _with(sets, ("memKind",)).with_columns(
                kind=pl.lit("memset"), dst_kind=_memory_kind("memKind"), name=pl.lit("[CUDA memset]")
            )
            parts.append(sets)
        whole = self._times(pl.concat(parts, how="diagonal_relaxed"))
        return _rename(
            whole,
            {
                "deviceId": "device", "streamId": "stream", "correlationId": "correlation", "globalPid": "pid",
                "graphNodeId": "graph_node", "bytes": "bytes", "kind": "kind", "src_kind": "src_kind",
                "dst_kind": "dst_kind", "name": "name", "start_ns": "start_ns", "dur_ns": "dur_ns",
            },
        )  # fmt: skip

    def runtime(self) -> pl.DataFrame | None:
        """CUDA runtime and driver calls, and calls of the operating system where they were traced."""
        calls = self._read(_RUNTIME, "start", "end", "eventClass", "globalTid", "correlationId", "nameId")
        system = self._read("OSRT_API", "start", "end", "globalTid", "correlationId", "nameId")
        parts = []
        if calls is not None:
            calls = self._named(calls, "nameId", default="unnamed call", cut=_API_VERSION)
            driver = pl.col("name").str.contains(r"^cu[A-Z]")
            calls = calls.with_columns(api=pl.when(driver).then(pl.lit("driver")).otherwise(pl.lit("runtime")))
            parts.append(calls)
        if system is not None:
            parts.append(
                self._named(system.drop("correlationId", strict=False), "nameId", default="unnamed call").with_columns(
                    api=pl.lit("os")
                )
            )
        if not parts:
            return None
        whole = _threads(self._times(pl.concat(parts, how="diagonal_relaxed")))
        # an event class of its own marks calls that a wrapper library reported beside CUPTI: the same call twice
        columns = {"correlationId": "correlation", "eventClass": "nsys_event_class"}
        columns |= {c: c for c in ("pid", "process", "thread", "start_ns", "dur_ns", "name", "api")}
        return _rename(whole, columns)

    def markers(self) -> pl.DataFrame | None:
        """NVTX ranges and marks, and the profiler's own overhead."""
        events = self._read(
            "NVTX_EVENTS",
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
        events = self._named(_with(events, ("textId", "domainId", "endGlobalTid")), "textId", default="")
        events = _threads(events.with_columns(name=pl.coalesce("text", "name")))
        domains = (
            events.filter(pl.col("eventType") == DOMAIN)
            .select("pid", "domainId", domain="name")
            .unique(["pid", "domainId"], keep="first", maintain_order=True)
        )
        ranges = events.filter(pl.col("eventType").is_in(_RANGES)).join(
            domains, on=["pid", "domainId"], how="left", maintain_order="left"
        )
        # a range that was open when the capture stopped has no end: it reaches to the last one known
        last = pl.max_horizontal(pl.col("end").max(), pl.col("start").max())
        is_mark = pl.col("eventType") == MARK
        ranges = ranges.with_columns(end=pl.when(is_mark).then("start").otherwise(pl.coalesce("end", last)))
        ranges = self._times(ranges).with_columns(
            domain=pl.coalesce(
                "domain", pl.when(pl.col("domainId").fill_null(0) == 0).then(pl.lit("nvtx")), pl.lit("unnamed domain")
            )
        )
        ranges = ranges.with_columns(
            nsys_style=pl.col("eventType").replace_strict(_STYLES, return_dtype=pl.String),
            nsys_end_thread=pl.col("endGlobalTid") % (1 << 24),
        )
        columns = ("pid", "process", "thread", "start_ns", "dur_ns", "name", "domain", "nsys_style", "nsys_end_thread")
        found = [ranges.select(columns)]
        overhead = self._read("PROFILER_OVERHEAD", "start", "end", "globalTid", "nameId")
        if overhead is not None:
            overhead = _threads(self._times(self._named(overhead, "nameId", default="profiler overhead")))
            found.append(
                overhead.with_columns(domain=pl.lit("overhead")).select(
                    "pid", "process", "thread", "start_ns", "dur_ns", "name", "domain"
                )
            )
        return pl.concat(found, how="diagonal_relaxed").with_columns(on_device=pl.lit(value=False))

    def memory(self) -> pl.DataFrame | None:
        """Allocations and releases of device memory."""
        frame = self._read(
            "CUDA_GPU_MEMORY_USAGE_EVENTS", "start", "globalPid", "deviceId", "address", "bytes", "memoryOperationType"
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
            on_device=pl.lit(value=True),
        )

    def counters(self) -> pl.DataFrame | None:
        """Samples of GPU metrics by device; the low byte of the type names it."""
        frame = self._read("GPU_METRICS", "timestamp", "typeId", "metricId", "value")
        names = self._read("TARGET_INFO_GPU_METRICS", "metricId", "typeId", text=("metricName",))
        if frame is None or names is None:
            return None
        frame = frame.join(names.unique(["typeId", "metricId"]), on=["typeId", "metricId"], how="left")
        return frame.select(
            device=(pl.col("typeId") & 0xFF).cast(pl.Int32),
            time_ns=pl.col("timestamp") + self.start_ns,
            name=pl.coalesce("metricName", pl.lit("unnamed metric")),
            value=pl.col("value").cast(pl.Float64),
        )

    def ranks(self, processes: pl.Series, frames: dict[str, pl.DataFrame | None]) -> dict[int, int]:
        """Rank of each process: by the name of the worker, by an MPI mark, else by the order of its devices."""
        work = [f.select("pid", "device") for n in ("kernels", "copies") if (f := frames[n]) is not None]
        if not work:
            return {pid: i for i, pid in enumerate(processes.to_list())}
        on_device = (
            pl.concat(work, how="vertical_relaxed").group_by("pid").agg(pl.col("device").min()).sort("device", "pid")
        )
        order = on_device["pid"].to_list()
        said = self._said_ranks(frames["markers"])
        known = [said.get(pid) for pid in order]
        if None in known or len(set(known)) < len(known):
            known = list(range(len(order)))
        ranks = {pid: rank for pid, rank in zip(order, known, strict=True) if rank is not None}
        return ranks | {pid: -1 for pid in processes.to_list() if pid not in ranks}

    def _said_ranks(self, markers: pl.DataFrame | None) -> dict[int, int]:
        said: dict[int, int] = {}
        names = self._read("PROCESSES", "globalPid", text=("name",))
        rows = list(names.iter_rows()) if names is not None else []
        threads = self._read("NVTX_EVENTS", "globalTid", "eventType", "textId", text=("text",))
        if threads is not None:
            named = self._named(_with(threads, ("textId",)), "textId", default="").filter(
                ~pl.col("eventType").is_in(_RANGES)
            )
            rows += named.select((pl.col("globalTid") // (1 << 24)) * (1 << 24), pl.coalesce("text", "name")).rows()
        stages: dict[int, tuple[int, int]] = {}
        for pid, name in rows:
            worker, mpi = _RANK_NAMES[0].search(name or ""), _RANK_NAMES[1].search(name or "")
            if worker and (worker[1] or worker[2]):
                stages[pid] = (int(worker[1] or 0), int(worker[2] or 0))
            elif mpi:
                said[pid] = int(mpi[1])
        width = 1 + max((tp for _, tp in stages.values()), default=0)
        return said | {pid: pp * width + tp for pid, (pp, tp) in stages.items()}

    def head(self, rank: int, ranks: dict[int, int], tables: dict[str, pl.DataFrame]) -> dict[str, Any]:
        """What the file says of the run, in the form that all readers use."""
        gpus = self._read(
            "TARGET_INFO_GPU",
            *(["id"] if "id" in self.columns.get("TARGET_INFO_GPU", []) else ["deviceId"]),
            text=("name",),
        )
        used = tables["kernels"]["device"].unique().to_list() if "kernels" in tables else []
        names: list[str] = []
        if gpus is not None:
            key = gpus.columns[0]
            names = gpus.filter(pl.col(key).is_in(used))["name"].to_list() or gpus["name"].unique().to_list()
        return {
            "rank": rank if rank >= 0 else None,
            "front_end": rank < 0,
            "world_size": max(ranks.values()) + 1 if max(ranks.values()) >= 0 else 1,
            "devices": sorted(set(names)),
            "versions": {
                k: v
                for k, v in {
                    "nsys": self.meta.get("EXPORT_PRODUCT_VERSION"),
                    "nsys_schema": self.meta.get("EXPORT_SCHEMA_VERSION"),
                }.items()
                if v
            },
            "options": {},
            "absolute": self.start_ns != 0,
        }

    def coverage(self, tables: dict[str, pl.DataFrame]) -> dict[str, Any]:
        """Counts, in the form that all readers use."""
        rows = sum(frame.height for name, frame in tables.items() if name != "collectives")
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
            "notes": self.notes,
        }


def _rename(frame: pl.DataFrame, names: dict[str, str]) -> pl.DataFrame:
    return frame.select(pl.col(old).alias(new) for old, new in names.items() if old in frame.columns)


def _with(frame: pl.DataFrame, columns: tuple[str, ...]) -> pl.DataFrame:
    """The frame with missing columns as nulls."""
    return frame.with_columns(pl.lit(None, dtype=pl.Int64).alias(c) for c in columns if c not in frame.columns)


def _memory_kind(column: str) -> pl.Expr:
    return pl.col(column).replace_strict(_MEMORY_KINDS, default=None, return_dtype=pl.String)


def _threads(frame: pl.DataFrame) -> pl.DataFrame:
    """Parts of nsys's global thread id: host 16, process 24 and thread 24 bits."""
    tid = pl.col("globalTid")
    return frame.with_columns(
        pid=(tid // (1 << 24)) * (1 << 24), process=(tid // (1 << 24)) % (1 << 24), thread=tid % (1 << 24)
    )


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _size(path: Path) -> int:
    return sum(p.stat().st_size for p in path.iterdir()) if path.is_dir() else path.stat().st_size
