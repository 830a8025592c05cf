"""Readers of nvprof: CSV that it printed, and its sessions (SQLite with CUPTI's records).

In CSV, the units are in a separate row below the heading or in each cell (``542.36ms``). Lines that
begin with ``=`` are messages of nvprof, and the output of the program may be between them.

In sessions, calls have numbers (``cbid``) instead of names; only numbers with a certain name get
one here. Times of sessions are ns since the epoch.
"""

import csv
import re
from pathlib import Path
from typing import Final, NamedTuple

import polars as pl

from llmprof.errors import ReadError
from llmprof.readers.common.cupti import COPY_KINDS, LAUNCH_SHAPE
from llmprof.readers.common.reader import (
    FilePart,
    Probe,
    Reader,
    Request,
    bytes_of,
    ns,
    text_of,
    trace_of,
)
from llmprof.text import counted, left_out
from llmprof.trace import Trace, schema
from llmprof.trace.storage import sqlite

SUMMARY: Final = ("Time", "Calls", "Avg", "Min", "Max", "Name")
TRACE: Final = ("Start", "Duration", "Name")
_FACTORS: Final = {"s": 1e9, "ms": 1e6, "us": 1e3, "ns": 1.0}
_SIZES: Final = {"B": 1, "KB": 2**10, "MB": 2**20, "GB": 2**30}
_CELL: Final = re.compile(r"\s*+(-?(?:inf|nan|[\d.,]+(?:e[+-]?\d+)?))\s*+([a-zA-Z%/]*)\s*+")
_DEVICE: Final = re.compile(r"(?P<name>.*\S)\s*\((?P<number>\d{1,4})\)")
_CALL: Final = re.compile(r"(?:cuda|cu|acc|nvtx|vector)[A-Z_]\w*")
_CORRELATED: Final = re.compile(r"(?<!\s)\s*+\[\d+\]$")


class _Table(NamedTuple):
    """A heading, the units of its columns, and its rows."""

    heading: list[str]
    units: list[str]
    rows: list[list[str]]


def _is_heading(cells: list[str]) -> bool:
    """Whether cells are a heading of nvprof's CSV."""
    return all(name in cells for name in SUMMARY) or all(name in cells for name in TRACE)


def _rows_of(text: str) -> list[list[str]]:
    """Lines of a text as cells; a line that is not CSV is one cell."""
    try:
        return list(
            csv.reader(
                line for line in text.splitlines() if line.strip() and not line.startswith("=")
            )
        )
    except csv.Error as error:
        raise ReadError(f"the table cannot be read: {error}", expected="CSV of nvprof") from error


def _read_printed(path: Path, request: Request) -> Trace:
    """Read the output of ``nvprof --csv``."""
    data, damage = bytes_of(path)
    tables = _tables(_rows_of(text_of(data)))
    if not tables:
        problem = f"{path.name} has no table of times"
        expected = "a summary, a GPU trace or an API trace of nvprof"
        raise ReadError(
            problem,
            expected=expected,
            hint="nvprof --csv --print-gpu-trace --log-file FILE PROGRAM",
        )
    notes: list[str] = []
    rows: dict[str, list[dict[str, object]]] = {
        name: [] for name in ("totals", "kernels", "copies", "runtime")
    }
    devices: set[str] = set()
    lost = 0
    for table in tables:
        for row in table.rows:
            if (
                len(row) > len(table.heading) and table.heading[-1] == "Name"
            ):  # an unquoted name with commas
                row[len(table.heading) - 1 :] = [", ".join(row[len(table.heading) - 1 :])]
            if len(row) != len(table.heading):
                lost += 1
                continue
            cells = dict(zip(table.heading, row, strict=True))
            units = dict(zip(table.heading, table.units, strict=True))
            if "Calls" in cells:
                total = _total(cells, units)
                rows["totals"] += [total] if total else []
                lost += not total
                continue
            event = _event(cells, units)
            if event is None:
                lost += 1
                continue
            kind, values, device = event
            rows[kind].append(values)
            devices |= {device} if device else set()
    if lost:
        notes.append(left_out(lost, "row", "that could not be read"))
    frames = {
        name: pl.DataFrame(
            found, {column: schema.TABLES[name].schema[column] for column in found[0]}
        )
        for name, found in rows.items()
        if found
    }
    head = {"devices": sorted(devices), "absolute": False}
    events = lost + sum(frame.height for frame in frames.values())
    return trace_of(path, "nvprof", frames, head=head, events=events, notes=notes, damage=damage)


_SHAPE: Final = {
    "Grid X": "grid_x",
    "Grid Y": "grid_y",
    "Grid Z": "grid_z",
    "Block X": "block_x",
    "Block Y": "block_y",
    "Block Z": "block_z",
    "Registers Per Thread": "registers",
}


def _tables(rows: list[list[str]]) -> list[_Table]:
    tables: list[_Table] = []
    for cells in rows:
        stripped = [cell.strip() for cell in cells]
        if _is_heading(stripped):
            tables.append(_Table(stripped, [""] * len(stripped), []))
        elif tables and not tables[-1].rows and any(stripped) and set(stripped) <= _UNITS:
            tables[-1].units[:] = (stripped + [""] * len(tables[-1].units))[: len(tables[-1].units)]
        elif tables:
            tables[-1].rows.append(stripped)
    return tables


_UNITS: Final = {"", *_FACTORS, *_SIZES, "%", "GB/s", "MB/s", "KB/s", "B/s"}


def _quantity(cell: str, unit: str, factors: dict[str, float] | dict[str, int]) -> int | None:
    """Value of a cell in the base unit; the unit is in the cell, else ``unit`` of its column."""
    match = _CELL.fullmatch(cell)
    factor = factors.get(match[2] or unit) if match else None
    if match is None or factor is None:
        return None
    try:
        value = float(match[1].replace(",", "")) * factor
    except ValueError:
        return None
    return ns(value)


def _total(cells: dict[str, str], units: dict[str, str]) -> dict[str, object] | None:
    """Values of a row of a summary; None if it has no time or no name."""
    name = cells["Name"]
    times = {
        column: _quantity(cells[source], units[source], _FACTORS)
        for column, source in (("total_ns", "Time"), ("min_ns", "Min"), ("max_ns", "Max"))
    }
    if times["total_ns"] is None or not name:
        return None
    count = cells["Calls"].replace(",", "")
    group = cells.get("Type", "")
    if name.startswith("[CUDA mem"):
        kind = "copy"
    elif group == "API calls" or (not group and _CALL.fullmatch(name)):
        kind = "call"
    elif group.startswith("Range") or "NVTX" in group:
        kind = "range"
    else:
        kind = "kernel"
    return {"kind": kind, "name": name, "count": int(count) if count.isdecimal() else None, **times}


def _event(
    cells: dict[str, str], units: dict[str, str]
) -> tuple[str, dict[str, object], str] | None:
    """Kind, values and device name of a row of a trace; None if it has no time or no name."""
    start = _quantity(cells["Start"], units["Start"], _FACTORS)
    length = _quantity(cells["Duration"], units["Duration"], _FACTORS)
    name = _CORRELATED.sub("", cells["Name"])
    if start is None or length is None or not name:
        return None
    correlation = cells.get("Correlation_ID", "")
    shared = {
        "start_ns": start,
        "dur_ns": length,
        "name": name,
        "correlation": int(correlation)
        if correlation.isdecimal() and len(correlation) < 18
        else None,
    }
    if "Device" not in cells:
        return (
            "runtime",
            {**shared, "api": "driver" if re.match(r"cu[A-Z]", name) else "runtime"},
            "",
        )
    match = _DEVICE.fullmatch(cells["Device"])
    stream = cells.get("Stream", "")
    shared |= {
        "device": int(match["number"]) if match else None,
        "stream": int(stream) if stream.isdecimal() and len(stream) < 18 else None,
    }
    device = match["name"] if match else cells["Device"]
    if name.startswith("[CUDA mem"):
        kind = (
            name.removeprefix("[CUDA memcpy ").removesuffix("]") if "memcpy" in name else "memset"
        )
        kind = kind if kind in ("HtoD", "DtoH", "DtoD", "PtoP", "HtoH", "memset") else "unknown"
        sizes = {
            "kind": kind,
            "bytes": _quantity(cells.get("Size", ""), units.get("Size", ""), _SIZES),
            "src_kind": cells.get("SrcMemType", "").lower() or None,
            "dst_kind": cells.get("DstMemType", "").lower() or None,
        }
        return "copies", {**shared, **sizes}, device
    shape = {
        column: int(text) if (text := cells.get(title, "")).isdecimal() and len(text) < 10 else None
        for title, column in _SHAPE.items()
    }
    static = _quantity(cells.get("Static SMem", ""), units.get("Static SMem", ""), _SIZES)
    dynamic = _quantity(cells.get("Dynamic SMem", ""), units.get("Dynamic SMem", ""), _SIZES)
    memory = None if static is None and dynamic is None else (static or 0) + (dynamic or 0)
    return "kernels", {**shared, **shape, "shared_bytes": memory}, device


_SESSION_KERNELS: Final = ("CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL", "CUPTI_ACTIVITY_KIND_KERNEL")
_SESSION_COPIES: Final = ("CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMCPY2")
_SESSION_SETS: Final = "CUPTI_ACTIVITY_KIND_MEMSET"
_ON_DEVICE: Final = ("start", "end", "deviceId", "streamId", "correlationId")
_SESSION_CALLS: Final = {
    "CUPTI_ACTIVITY_KIND_RUNTIME": "runtime",
    "CUPTI_ACTIVITY_KIND_DRIVER": "driver",
}

_NAMED_CALLS: Final = {
    ("runtime", 13): "cudaLaunch",
    ("runtime", 164): "cudaDeviceReset",
    ("runtime", 211): "cudaLaunchKernel",
    ("driver", 307): "cuLaunchKernel",
}
"""Checked names of calls by their number in CUPTI's lists of callbacks."""

# CUPTI's CUpti_ActivityMemoryKind
_MEMORY_KINDS: Final = {1: "pageable", 2: "pinned", 3: "device", 4: "array", 5: "managed"}

_ACTIVITY: Final = re.compile(r"CUPTI_ACTIVITY_KIND_\w+", re.IGNORECASE)


def _is_session(probe: Probe) -> bool:
    """Whether an SQLite file is a session of nvprof: names are in its ``StringTable``, not in
    ``StringIds``.
    """
    if not probe.start.startswith(sqlite.MAGIC):
        return False
    with sqlite.connect(probe.path) as connection:
        names = sqlite.database_tables(connection)
    return (
        "StringTable" in names
        and "StringIds" not in names
        and bool(names.matching(_ACTIVITY) or names.refused)
    )


def _read_session(path: Path, request: Request) -> list[FilePart]:
    """Read one session."""
    with sqlite.connect(path) as connection:
        columns = sqlite.database_tables(connection)
    texts = sqlite.read(path, "StringTable", {"_id_": pl.Int64(), "value": pl.String()})
    session = _Session(path, columns, dict(texts.iter_rows()))
    tables = {
        "kernels": session.kernels(),
        "copies": session.copies(),
        "runtime": session.calls(),
        "markers": session.markers(),
    }
    recorded = {name: frame for name, frame in tables.items() if frame is not None}
    rows = sum(frame.height for frame in recorded.values())
    if not rows:
        found = "; ".join([f"{path.name} has no kernel, copy or call", *columns.notes()])
        expected = "a session of nvprof with CUDA activity"
        raise ReadError(
            found, expected=expected, hint="record again with nsys profile -t cuda,nvtx"
        )
    counts = {"events": rows + session.lost, "kept": rows, "bytes": path.stat().st_size}
    head = {"devices": session.devices(), "versions": {}, "options": {}}
    return [FilePart(path, recorded, head, {"file": path.name, **counts, "notes": session.notes()})]


class _Session:
    """A session: its file, its tables and its texts by identifier."""

    def __init__(self, path: Path, columns: sqlite.DatabaseTables, texts: dict[int, str]) -> None:
        self.path, self.columns, self.texts = path, columns, texts
        self.lost = 0
        self.unnamed = 0

    def notes(self) -> list[str]:
        """Sentences about content that was lost or is unknown."""
        sentences = [left_out(self.lost, "record", "without a complete time")] if self.lost else []
        sentences += self.columns.notes()
        if self.unnamed:
            calls = counted(self.unnamed, "call")
            sentences.append(
                f"the file has only numbers for {calls}: the number is used as the name"
            )
        return sentences

    def _rows(self, table: str, *columns: str) -> pl.DataFrame | None:
        if table not in self.columns:
            return None
        frame = sqlite.read(self.path, table, dict.fromkeys(columns, pl.Int64()))
        return frame.with_columns(
            pl.lit(None, pl.Int64).alias(name) for name in columns if name not in frame.columns
        )

    def _timed(self, frame: pl.DataFrame) -> pl.DataFrame:
        whole = frame.filter(pl.col("start") > 0)
        self.lost += frame.height - whole.height
        return whole.with_columns(start_ns="start", dur_ns=pl.col("end") - pl.col("start"))

    def _named(self, column: str, default: str) -> pl.Expr:
        return pl.col(column).replace_strict(self.texts, default=default, return_dtype=pl.String)

    def kernels(self) -> pl.DataFrame | None:
        """Kernels of both tables: recorded concurrently, or one after the other."""
        numbers = (
            *_ON_DEVICE,
            "name",
            "staticSharedMemory",
            "dynamicSharedMemory",
            *LAUNCH_SHAPE,
        )
        matching = [
            rows for table in _SESSION_KERNELS if (rows := self._rows(table, *numbers)) is not None
        ]
        if not matching:
            return None
        rows = self._timed(pl.concat(matching))
        return rows.select(
            "start_ns",
            "dur_ns",
            name=self._named("name", "unnamed kernel"),
            device="deviceId",
            stream="streamId",
            correlation="correlationId",
            shared_bytes=pl.sum_horizontal("staticSharedMemory", "dynamicSharedMemory"),
            **{new: pl.col(old) for old, new in LAUNCH_SHAPE.items()},
        )

    def copies(self) -> pl.DataFrame | None:
        """Copies, also those between devices, and memory sets."""
        copied = pl.col("copyKind").replace_strict(
            COPY_KINDS, default="unknown", return_dtype=pl.String
        )
        parts = []
        for table in (*_SESSION_COPIES, _SESSION_SETS):
            rows = self._rows(table, *_ON_DEVICE, "bytes", "copyKind", "srcKind", "dstKind")
            if rows is not None:
                kind = pl.lit("memset") if table == _SESSION_SETS else copied
                parts.append(self._timed(rows).with_columns(kind=kind))
        if not parts:
            return None
        rows = pl.concat(parts)
        ends = {
            new: pl.col(old).replace_strict(_MEMORY_KINDS, default=None, return_dtype=pl.String)
            for new, old in (("src_kind", "srcKind"), ("dst_kind", "dstKind"))
        }
        filled = pl.when(pl.col("kind") == "memset").then(pl.lit("[CUDA memset]"))
        name = filled.otherwise(pl.format("[CUDA memcpy {}]", "kind"))
        return rows.select(
            "start_ns",
            "dur_ns",
            "kind",
            "bytes",
            name=name,
            device="deviceId",
            stream="streamId",
            correlation="correlationId",
            **ends,
        )

    def calls(self) -> pl.DataFrame | None:
        """Calls of the runtime and the driver."""
        parts = []
        for table, api in _SESSION_CALLS.items():
            rows = self._rows(
                table, "cbid", "start", "end", "processId", "threadId", "correlationId"
            )
            if rows is None:
                continue
            names = {
                cbid: name for (name_api, cbid), name in _NAMED_CALLS.items() if name_api == api
            }
            named = pl.col("cbid").replace_strict(names, default=None, return_dtype=pl.String)
            rows = self._timed(rows).with_columns(named=named)
            self.unnamed += rows["named"].null_count()
            name = pl.coalesce("named", pl.format(f"{api} call {{}}", pl.col("cbid").fill_null(-1)))
            parts.append(
                rows.select(
                    "start_ns",
                    "dur_ns",
                    name=name,
                    api=pl.lit(api),
                    process="processId",
                    thread="threadId",
                    correlation="correlationId",
                )
            )
        return pl.concat(parts) if parts else None

    def markers(self) -> pl.DataFrame | None:
        """NVTX ranges and marks; the records of begin and end of a range have the same number."""
        rows = self._rows("CUPTI_ACTIVITY_KIND_MARKER", "flags", "timestamp", "id", "name")
        if rows is None:
            return None
        # CUpti_ActivityFlag: 1 is a mark, 2 the begin and 4 the end of a range
        begins = rows.filter(pl.col("flags") & 2 != 0)
        ends = rows.filter(pl.col("flags") & 4 != 0).select("id", end="timestamp")
        marks = rows.filter(pl.col("flags") & 1 != 0).with_columns(end="timestamp")
        both = begins.join(ends.unique("id"), on="id", how="inner").select(*rows.columns, "end")
        self.lost += begins.height - both.height
        whole = self._timed(
            pl.concat([both, marks.select(both.columns)]).rename({"timestamp": "start"})
        )
        return whole.select(
            "start_ns",
            "dur_ns",
            name=self._named("name", "unnamed range"),
            domain=pl.lit("nvtx"),
            on_device=pl.lit(False),
        )

    def devices(self) -> list[str]:
        """Names of the devices."""
        rows = self._rows("CUPTI_ACTIVITY_KIND_DEVICE", "name")
        return (
            []
            if rows is None
            else sorted({self.texts[n] for n in rows["name"].to_list() if n in self.texts})
        )


def _is_printed(probe: Probe) -> bool:
    if probe.is_folder or b"\0" in probe.start[:1024]:
        return False
    try:
        rows = _rows_of(text_of(probe.start[: 1 << 14]))
    except ReadError:
        return False
    return any(_is_heading([cell.strip() for cell in cells]) for cells in rows[:40])


READERS: Final = (
    Reader(
        name="nvprof-session",
        version=3,
        what="a session of nvprof (SQLite, .nvvp)",
        sniff=_is_session,
        read=_read_session,
        suffixes=(".nvvp", ".nvprof"),
        database=lambda path, _: path,
    ),
    Reader(
        name="nvprof",
        version=2,
        what="CSV that nvprof printed",
        sniff=_is_printed,
        read=_read_printed,
        alone=True,
    ),
)
