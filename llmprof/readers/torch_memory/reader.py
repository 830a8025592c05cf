"""Readers of PyTorch's memory: snapshots of its allocator (pickle or JSON), and memory timelines of its profiler."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import msgspec
import polars as pl

from llmprof.errors import ReadError
from llmprof.readers.common.reader import Probe, Reader, Request
from llmprof.readers.common.summaries import MOST_NS, bytes_of, trace_of
from llmprof.readers.torch_memory import snapshot
from llmprof.readers.torch_memory.plain import data_of
from llmprof.trace import Trace

_PICKLE: Final = re.compile(rb"\x80[\x02-\x05]")
_SNAPSHOT_JSON: Final = re.compile(rb'\{\s*"(?:segments|device_traces)"\s*:\s*\[')
_TIMELINE: Final = re.compile(rb"\[\s*\[\s*\d{12,}\s*,[\s\d,-]*(?:\]\s*,\s*\[|$)")
_RAW: Final = re.compile(rb"\[\s*\[\s*-?\d+\s*,\s*[1-4]\s*,\s*-?\d+\s*,\s*[0-7]\s*\]")

_CATEGORIES: Final = (
    "parameter", "optimizer state", "input", "temporary", "activation", "gradient", "autograd detail", "unknown",
)  # fmt: skip
"""Categories of ``torch.profiler._memory_profiler`` in the order of its exports."""

_BEFORE, _CREATE, _VERSION, _DESTROY = 1, 2, 3, 4


def _is_snapshot(probe: Probe) -> bool:
    start = probe.start
    if _PICKLE.match(start):
        return b"segments" in start or b"device_traces" in start
    return _SNAPSHOT_JSON.match(start.lstrip()) is not None


def _read_snapshot(path: Path, request: Request) -> Trace:
    data, damage = bytes_of(path)
    document = data_of(data) if _PICKLE.match(data) else _json(path, data)
    if not snapshot.is_snapshot(document):
        raise ReadError(
            f"{path.name} is no snapshot", expected="a dictionary with the lists segments and device_traces"
        )
    tables, notes, events = snapshot.tables(document)
    return trace_of(path, "torch-snapshot", tables, events=events, notes=notes, damage=damage)


def _json(path: Path, data: bytes) -> Any:
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ReadError(f"{path.name} is no whole JSON: {error}", hint="export it again") from error


def _is_timeline(probe: Probe) -> bool:
    start = probe.start.lstrip()
    return (_RAW.match(start) or _TIMELINE.match(start)) is not None


def _read_timeline(path: Path, request: Request) -> Trace:
    data, damage = bytes_of(path)
    document = _json(path, data)
    if not isinstance(document, list) or not all(isinstance(row, list) for row in document):
        raise ReadError(f"{path.name} is no memory timeline", expected="lists of numbers")
    if len(document) == 2 and (not document[1] or isinstance(document[1][0], list)):
        tables, lost = _sums(*document)
    else:
        tables, lost = _events(document)
    notes = [f"{lost:,} row(s) are not as torch writes them and were left out"] if lost else []
    notes.append("a memory timeline names categories, not operators or addresses, and no device")
    return trace_of(path, "torch-memory-timeline", tables, notes=notes, damage=damage)


def _sums(times: list[Any], sizes: list[Any]) -> tuple[dict[str, pl.DataFrame], int]:
    """``[times in us, sizes by category]``, where the first of the sizes is always 0."""
    whole = [
        (at * 1000, *row[1:9])
        for at, row in zip(times, sizes, strict=False)
        if _whole(at) and at * 1000 < MOST_NS and isinstance(row, list) and len(row) == 9 and all(map(_whole, row))
    ]
    schema = {"time_ns": pl.Int64, **dict.fromkeys(_CATEGORIES, pl.Int64)}
    frame = pl.DataFrame(whole, schema=schema, orient="row")
    memory = frame.select(
        "time_ns",
        allocated_bytes=pl.sum_horizontal(_CATEGORIES),
        on_device=pl.lit(value=True),
        torch_action=pl.lit("sample"),
    )
    return {"memory": memory, "counters": _by_category(frame)}, max(len(times), len(sizes)) - len(whole)


def _events(rows: list[Any]) -> tuple[dict[str, pl.DataFrame], int]:
    """``[time in ns, action, bytes, category]``; -1 is a time before the recording."""
    whole = [row for row in rows if len(row) == 4 and all(map(_whole, row)) and row[0] < MOST_NS]
    schema = {"time_ns": pl.Int64, "action": pl.Int64, "bytes": pl.Int64, "category": pl.Int64}
    frame = pl.DataFrame(whole, schema=schema, orient="row").filter(
        pl.col("action").is_between(1, 4) & pl.col("category").is_between(0, 7)
    )
    first = frame.filter(pl.col("time_ns") > 0)["time_ns"].min()
    frame = frame.with_columns(time_ns=pl.when(pl.col("time_ns") < 0).then(first or 0).otherwise("time_ns"))
    frame = frame.sort("time_ns", maintain_order=True)
    names = dict(enumerate(_CATEGORIES))
    action = pl.col("action").replace_strict(
        {_BEFORE: "held", _CREATE: "alloc", _VERSION: "new version", _DESTROY: "free_requested"}, return_dtype=pl.String
    )
    memory = frame.select(
        "time_ns",
        "bytes",
        allocated_bytes=pl.col("bytes").cum_sum(),
        on_device=pl.lit(value=True),
        torch_action=action,
        torch_category=pl.col("category").replace_strict(names, return_dtype=pl.String),
    )
    parts = [
        frame.filter(pl.col("category") == number).select(
            "time_ns",
            name=pl.lit(f"memory: {name}"),
            value=pl.col("bytes").cum_sum().cast(pl.Float64),
            unit=pl.lit("B"),
        )
        for number, name in names.items()
    ]
    return {"memory": memory, "counters": pl.concat(parts)}, len(rows) - frame.height


def _by_category(frame: pl.DataFrame) -> pl.DataFrame:
    used = [name for name in _CATEGORIES if frame[name].max()]
    long = frame.unpivot(used, index="time_ns", variable_name="name", value_name="value")
    return long.select(
        "time_ns", name=pl.format("memory: {}", "name"), value=pl.col("value").cast(pl.Float64), unit=pl.lit("B")
    )


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < MOST_NS


READERS: Final = (
    Reader(
        name="torch-snapshot",
        version=1,
        what="a snapshot of PyTorch's allocator (torch.cuda.memory._dump_snapshot)",
        sniff=_is_snapshot,
        read=_read_snapshot,
        alone=True,
    ),
    Reader(
        name="torch-memory-timeline",
        version=1,
        what="a memory timeline of PyTorch's profiler (export_memory_timeline)",
        sniff=_is_timeline,
        read=_read_timeline,
        alone=True,
    ),
)
