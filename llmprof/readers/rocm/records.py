"""Reader of the JSON of rocprofv3, which holds the records of rocprofiler-sdk's buffers, and the texts they refer to.

Times are ns of one clock. Grids count work items and are converted to blocks.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import polars as pl

from llmprof.errors import ReadError
from llmprof.readers.common.reader import Part
from llmprof.readers.common.summaries import MOST_NS, bytes_of
from llmprof.text import left_out

START: Final = re.compile(rb'^\s*\{\s*"rocprofiler-sdk-tool"\s*:')
_MOST_BYTES: Final = 4 << 30
_HIDDEN: Final = re.compile(r" \[clone [^]]*\]$|\.kd$")
_CALLS: Final = ("hip_api", "hsa_api", "rccl_api", "rocdecode_api", "rocjpeg_api")
_DIRECTIONS: Final = {
    "HOST_TO_DEVICE": "HtoD", "DEVICE_TO_HOST": "DtoH", "DEVICE_TO_DEVICE": "DtoD", "HOST_TO_HOST": "HtoH",
}  # fmt: skip
_GPU: Final = 2
"""Type of agents that are devices."""


class _Handle(msgspec.Struct, frozen=True, gc=False):
    handle: int | None = None


class _Correlation(msgspec.Struct, frozen=True, gc=False):
    internal: int | None = None


class _Size(msgspec.Struct, frozen=True, gc=False):
    x: int | None = None
    y: int | None = None
    z: int | None = None


class _Dispatch(msgspec.Struct, frozen=True, gc=False):
    agent_id: _Handle = _Handle()
    queue_id: _Handle = _Handle()
    kernel_id: int | None = None
    group_segment_size: int | None = None
    workgroup_size: _Size = _Size()
    grid_size: _Size = _Size()


class _Record(msgspec.Struct, frozen=True, gc=False):
    kind: int | None = None
    operation: int | None = None
    thread_id: int | None = None
    correlation_id: _Correlation = _Correlation()
    start_timestamp: int | None = None
    end_timestamp: int | None = None
    dispatch_info: _Dispatch = _Dispatch()
    stream_id: _Handle = _Handle()
    src_agent_id: _Handle = _Handle()
    dst_agent_id: _Handle = _Handle()
    bytes: int | None = None


class _Kind(msgspec.Struct, frozen=True, gc=False):
    kind: str = ""
    operations: list[str] = []


class _Text(msgspec.Struct, frozen=True, gc=False):
    key: int | None = None
    value: str | None = None


class _Strings(msgspec.Struct, frozen=True, gc=False):
    buffer_records: list[_Kind] = []
    marker_api: list[_Text] = []


class _Symbol(msgspec.Struct, frozen=True, gc=False):
    kernel_id: int | None = None
    formatted_kernel_name: str = ""
    demangled_kernel_name: str = ""
    kernel_name: str = ""


class _Agent(msgspec.Struct, frozen=True, gc=False):
    id: _Handle = _Handle()
    type: int | None = None
    name: str = ""
    product_name: str = ""
    logical_node_type_id: int | None = None


class _Metadata(msgspec.Struct, frozen=True, gc=False):
    pid: int | None = None


class _Process(msgspec.Struct, frozen=True, gc=False):
    metadata: _Metadata = _Metadata()
    agents: list[_Agent] = []
    strings: _Strings = _Strings()
    kernel_symbols: list[_Symbol] = []
    buffer_records: dict[str, list[_Record]] = {}


class _Document(msgspec.Struct, frozen=True, gc=False):
    processes: list[_Process] = msgspec.field(default=[], name="rocprofiler-sdk-tool")


def read(path: Path) -> list[Part]:
    """A part for each process of the file."""
    data, damage = bytes_of(path, most=_MOST_BYTES)
    try:
        document = msgspec.json.decode(data, type=_Document)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ReadError(
            f"{path.name} is not the whole JSON of rocprofv3: {damage or error}",
            hint="the run may have been interrupted: record again, or write CSV (--output-format csv), "
            "of which the beginning can be read",
        ) from error
    parts = [_part(path, process, len(data)) for process in document.processes]
    if not any(part.coverage["events"] for part in parts):
        raise ReadError(f"{path.name} has no event", hint="rocprofv3 --sys-trace --output-format json -- PROGRAM")
    return [part for part in parts if part.coverage["events"]]


def _part(path: Path, process: _Process, size: int) -> Part:
    records, texts = process.buffer_records, process.strings
    gpus = [agent for agent in process.agents if agent.type == _GPU]
    number = {
        agent.id.handle: place if agent.logical_node_type_id is None else agent.logical_node_type_id
        for place, agent in enumerate(gpus)
    }
    said = {text.key: text.value for text in texts.marker_api}

    operations: dict[tuple[int | None, int | None], str] = {
        (kind, place): name for kind, of in enumerate(texts.buffer_records) for place, name in enumerate(of.operations)
    }

    def operation(record: _Record) -> str | None:
        return operations.get((record.kind, record.operation))

    called = {
        symbol.kernel_id: _HIDDEN.sub(
            "", symbol.formatted_kernel_name or symbol.demangled_kernel_name or symbol.kernel_name
        )
        for symbol in process.kernel_symbols
    }
    dispatches = records.get("kernel_dispatch", [])
    kernels = _timed(
        dispatches,
        name=[called.get(r.dispatch_info.kernel_id) or "unnamed kernel" for r in dispatches],
        device=[number.get(r.dispatch_info.agent_id.handle) for r in dispatches],
        stream=[_first(r.stream_id.handle, r.dispatch_info.queue_id.handle) for r in dispatches],
        shared_bytes=[r.dispatch_info.group_segment_size for r in dispatches],
        **{
            f"{what}_{axis}": [_blocks(r.dispatch_info, axis, of_grid=what == "grid") for r in dispatches]
            for what in ("grid", "block")
            for axis in "xyz"
        },
    )
    moves = records.get("memory_copy", [])
    words = [(operation(r) or "unnamed copy").removeprefix("MEMORY_COPY_") for r in moves]
    copies = _timed(
        moves,
        name=words,
        kind=[_DIRECTIONS.get(word, "unknown") for word in words],
        device=[_first(number.get(r.dst_agent_id.handle), number.get(r.src_agent_id.handle)) for r in moves],
        stream=[r.stream_id.handle for r in moves],
        bytes=[r.bytes for r in moves],
    )
    calls = [r for api in _CALLS for r in records.get(api, [])]
    ranges = records.get("marker_api", [])
    tables = {
        "kernels": kernels,
        "copies": copies,
        "runtime": _on_host(calls, process, name=[operation(r) or "unnamed call" for r in calls]).with_columns(
            api=pl.lit("runtime")
        ),
        "markers": _on_host(
            ranges,
            process,
            name=[said.get(r.correlation_id.internal) or operation(r) or "unnamed range" for r in ranges],
        )
        .drop("correlation")
        .with_columns(domain=pl.lit("roctx"), on_device=pl.lit(value=False)),
    }
    events = sum(map(len, (dispatches, moves, calls, ranges)))
    kept = sum(frame.height for frame in tables.values())
    notes = [left_out(events - kept, "event", "without a complete time")] if kept < events else []
    coverage = {"file": path.name, "events": events, "kept": kept, "bytes": size, "notes": notes}
    devices = sorted({agent.product_name or agent.name for agent in gpus})
    recorded = {name: frame for name, frame in tables.items() if frame.height or name in ("kernels", "copies")}
    return Part(path, recorded, {"devices": devices, "device_count": len(gpus), "absolute": False}, coverage)


def _first(*values: int | None) -> int | None:
    return next((value for value in values if value is not None), None)


def _blocks(dispatch: _Dispatch, axis: str, *, of_grid: bool) -> int | None:
    group: int | None = getattr(dispatch.workgroup_size, axis)
    size: int | None = getattr(dispatch.grid_size, axis)
    if not of_grid:
        return group
    return -(-size // group) if group and size is not None else None


_TYPES: Final[dict[str, type[pl.DataType]]] = {"name": pl.String, "kind": pl.String, "device": pl.Int32}


def _timed(records: Sequence[_Record], **columns: list[Any]) -> pl.DataFrame:
    """Records with a complete time."""
    times = {
        "start_ns": [r.start_timestamp for r in records],
        "end": [r.end_timestamp for r in records],
        "correlation": [r.correlation_id.internal for r in records],
    }
    frame = pl.DataFrame(
        {name: pl.Series(values, dtype=_TYPES.get(name, pl.Int64)) for name, values in (times | columns).items()}
    )
    start, end = pl.col("start_ns"), pl.col("end")
    whole = frame.filter(start.is_between(0, MOST_NS) & end.is_between(start, MOST_NS))
    return whole.with_columns(dur_ns=end - start).drop("end")


def _on_host(records: Sequence[_Record], process: _Process, *, name: list[str]) -> pl.DataFrame:
    frame = _timed(records, name=name, thread=[r.thread_id for r in records])
    return frame.with_columns(process=pl.lit(process.metadata.pid, dtype=pl.Int64))
