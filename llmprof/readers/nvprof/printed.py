"""CSV that nvprof prints: summaries, the trace of the GPU, the trace of the API.

Units stand in a row of their own under the heading, or in each cell (``542.36ms``). Lines that begin with ``=`` are
nvprof's own words; the program's output may stand between them.
"""

from __future__ import annotations

import csv
import math
import re
from pathlib import Path
from typing import Final, NamedTuple

import polars as pl

from llmprof.errors import ReadError
from llmprof.readers.common.summaries import MOST_NS, bytes_of, text_of, trace_of
from llmprof.trace import Trace

SUMMARY: Final = ("Time", "Calls", "Avg", "Min", "Max", "Name")
TRACE: Final = ("Start", "Duration", "Name")
_FACTORS: Final = {"s": 1e9, "ms": 1e6, "us": 1e3, "ns": 1.0}
_SIZES: Final = {"B": 1, "KB": 2**10, "MB": 2**20, "GB": 2**30}
_CELL: Final = re.compile(r"\s*([\d.,]+(?:e[+-]?\d+)?)\s*([a-zA-Z%/]*)\s*")
_DEVICE: Final = re.compile(r"(?P<name>.*\S)\s*\((?P<number>\d{1,4})\)")
_CALL: Final = re.compile(r"(?:cuda|cu|acc|nvtx|vector)[A-Z_]\w*")
_CORRELATED: Final = re.compile(r"\s*\[\d+\]$")


class _Table(NamedTuple):
    """A heading, the units of its columns, and its rows."""

    heading: list[str]
    units: list[str]
    rows: list[list[str]]


def is_heading(cells: list[str]) -> bool:
    """Whether cells are a heading of nvprof's CSV."""
    return all(name in cells for name in SUMMARY) or all(name in cells for name in TRACE)


def rows_of(text: str) -> list[list[str]]:
    """Lines of a text as cells; a line that is no CSV is one cell."""
    try:
        return list(csv.reader(line for line in text.splitlines() if line.strip() and not line.startswith("=")))
    except csv.Error as error:
        raise ReadError(f"the table cannot be read: {error}", expected="CSV of nvprof") from error


def read(path: Path) -> Trace:
    """Read what ``nvprof --csv`` printed.

    Raises
    ------
    ReadError
        There is no table of times in it.
    """
    data, damage = bytes_of(path)
    tables = _tables(rows_of(text_of(data)))
    if not tables:
        raise ReadError(
            f"{path.name} holds no table of times",
            expected="a summary, a GPU trace or an API trace of nvprof",
            hint="nvprof --csv --print-gpu-trace --log-file FILE PROGRAM",
        )
    notes: list[str] = []
    rows: dict[str, list[dict[str, object]]] = {name: [] for name in ("total", "kernel", "copy", "call")}
    devices: set[str] = set()
    lost = 0
    for table in tables:
        for row in table.rows:
            if len(row) > len(table.heading) and table.heading[-1] == "Name":  # a name with commas, not quoted
                row[len(table.heading) - 1 :] = [", ".join(row[len(table.heading) - 1 :])]
            if len(row) != len(table.heading):
                lost += 1
                continue
            cells = dict(zip(table.heading, row, strict=True))
            units = dict(zip(table.heading, table.units, strict=True))
            if "Calls" in cells:
                made = _total(cells, units)
                rows["total"] += [made] if made else []
                lost += not made
                continue
            event = _event(cells, units)
            if event is None:
                lost += 1
                continue
            kind, values, device = event
            rows[kind].append(values)
            devices |= {device} if device else set()
    if lost:
        notes.append(f"{lost:,} row(s) could not be read and were left out")
    frames = {
        "totals": _frame(rows["total"], _TOTALS),
        "kernels": _frame(rows["kernel"], _KERNELS),
        "copies": _frame(rows["copy"], _COPIES),
        "runtime": _frame(rows["call"], _CALLS),
    }
    held = {name: frame for name, frame in frames.items() if frame.height}
    head = {"devices": sorted(devices), "absolute": False}
    events = lost + sum(frame.height for frame in frames.values())
    return trace_of(path, "nvprof", held, head=head, events=events, notes=notes, damage=damage)


_TOTALS: Final = {
    "kind": pl.String, "name": pl.String, "count": pl.Int64, "total_ns": pl.Int64, "min_ns": pl.Int64,
    "max_ns": pl.Int64,
}  # fmt: skip
_CALLS: Final = {
    "start_ns": pl.Int64, "dur_ns": pl.Int64, "name": pl.String, "api": pl.String, "correlation": pl.Int64,
}  # fmt: skip
_DEVICE_COLUMNS: Final = {
    "device": pl.Int32, "stream": pl.Int64, "start_ns": pl.Int64, "dur_ns": pl.Int64, "name": pl.String,
    "correlation": pl.Int64,
}  # fmt: skip
_COPIES: Final = {**_DEVICE_COLUMNS, "kind": pl.String, "bytes": pl.Int64, "src_kind": pl.String, "dst_kind": pl.String}
_SHAPE: Final = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "registers")
_KERNELS: Final = {**_DEVICE_COLUMNS, **dict.fromkeys(_SHAPE, pl.Int32), "shared_bytes": pl.Int64}


def _frame(rows: list[dict[str, object]], schema: dict[str, type[pl.DataType]]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=schema, orient="row")


def _tables(rows: list[list[str]]) -> list[_Table]:
    tables: list[_Table] = []
    for cells in rows:
        stripped = [cell.strip() for cell in cells]
        if is_heading(stripped):
            tables.append(_Table(stripped, [""] * len(stripped), []))
        elif tables and not tables[-1].rows and _are_units(stripped):
            tables[-1].units[:] = (stripped + [""] * len(tables[-1].units))[: len(tables[-1].units)]
        elif tables:
            tables[-1].rows.append(stripped)
    return tables


def _are_units(cells: list[str]) -> bool:
    there = {cell for cell in cells if cell}
    return bool(there) and there <= {*_FACTORS, *_SIZES, "%", "GB/s", "MB/s", "KB/s", "B/s"}


def _quantity(cell: str, unit: str, factors: dict[str, float] | dict[str, int]) -> int | None:
    """A cell with its own unit or that of its column, in the base unit."""
    match = _CELL.fullmatch(cell)
    factor = factors.get(match[2] or unit) if match else None
    if match is None or factor is None:
        return None
    try:
        value = float(match[1].replace(",", "")) * factor
    except ValueError:
        return None
    return round(value) if math.isfinite(value) and value < MOST_NS else None


def _total(cells: dict[str, str], units: dict[str, str]) -> dict[str, object] | None:
    """A row of a summary."""
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


def _event(cells: dict[str, str], units: dict[str, str]) -> tuple[str, dict[str, object], str] | None:
    """A row of a trace: its kind, its values and the name of its device."""
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
        "correlation": int(correlation) if correlation.isdecimal() and len(correlation) < 18 else None,
    }
    if "Device" not in cells:
        return "call", {**shared, "api": "driver" if re.match(r"cu[A-Z]", name) else "runtime"}, ""
    match = _DEVICE.fullmatch(cells["Device"])
    stream = cells.get("Stream", "")
    shared |= {
        "device": int(match["number"]) if match else None,
        "stream": int(stream) if stream.isdecimal() and len(stream) < 18 else None,
    }
    device = match["name"] if match else cells["Device"]
    if name.startswith("[CUDA mem"):
        kind = name.removeprefix("[CUDA memcpy ").removesuffix("]") if "memcpy" in name else "memset"
        kind = kind if kind in ("HtoD", "DtoH", "DtoD", "PtoP", "HtoH", "memset") else "unknown"
        sizes = {
            "kind": kind,
            "bytes": _quantity(cells.get("Size", ""), units.get("Size", ""), _SIZES),
            "src_kind": cells.get("SrcMemType", "").lower() or None,
            "dst_kind": cells.get("DstMemType", "").lower() or None,
        }
        return "copy", {**shared, **sizes}, device
    shape = {
        column: int(text) if (text := cells.get(title, "")).isdecimal() and len(text) < 10 else None
        for column, title in zip(
            _SHAPE,
            ("Grid X", "Grid Y", "Grid Z", "Block X", "Block Y", "Block Z", "Registers Per Thread"),
            strict=True,
        )
    }
    static = _quantity(cells.get("Static SMem", ""), units.get("Static SMem", ""), _SIZES)
    dynamic = _quantity(cells.get("Dynamic SMem", ""), units.get("Dynamic SMem", ""), _SIZES)
    memory = None if static is None and dynamic is None else (static or 0) + (dynamic or 0)
    return "kernel", {**shared, **shape, "shared_bytes": memory}, device
