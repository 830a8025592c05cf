"""Readers of ROCm's profilers:

CSV (a file or a folder) and JSON of rocprofv3, databases of rpd and rocprofv3.

Databases of both have tables ``rocpd_…``. rpd has one set of tables; rocprofv3 adds an identifier
of the recording to each name, so one file may have several recordings. Times are ns of one clock of
the host.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import polars as pl

from llmprof.errors import ReadError
from llmprof.names.matching import first_true
from llmprof.readers.common.reader import (
    FilePart,
    Probe,
    Reader,
    Request,
    bytes_of,
    table_of,
    text_of,
)
from llmprof.text import counted
from llmprof.trace.storage import sqlite
from llmprof.trace.storage.files import special

START: Final = re.compile(rb'^\s*\{\s*"rocprofiler-sdk-tool"\s*:')
_MOST_BYTES: Final = 4 << 30
_HIDDEN: Final = re.compile(r" \[clone [^]]*\]$|\.kd$")
_CALLS: Final = ("hip_api", "hsa_api", "rccl_api", "rocdecode_api", "rocjpeg_api")
_DIRECTIONS: Final = {
    "HOST_TO_DEVICE": "HtoD",
    "DEVICE_TO_HOST": "DtoH",
    "DEVICE_TO_DEVICE": "DtoD",
    "HOST_TO_HOST": "HtoH",
}
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


def _read_json(path: Path) -> list[FilePart]:
    """A part for each process of the file."""
    data, damage = bytes_of(path, most=_MOST_BYTES)
    try:
        document = msgspec.json.decode(data, type=_Document)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ReadError(
            f"{path.name} is not the whole JSON of rocprofv3: {damage or error}",
            hint=(
                "the run may have been interrupted: record again, or write CSV (--output-format"
                " csv), of which the beginning can be read"
            ),
        ) from error
    parts = [_part_of(path, process, len(data)) for process in document.processes]
    if not any(part.coverage["events"] for part in parts):
        raise ReadError(
            f"{path.name} has no event",
            hint="rocprofv3 --sys-trace --output-format json -- PROGRAM",
        )
    return [part for part in parts if part.coverage["events"]]


def _part_of(path: Path, process: _Process, size: int) -> FilePart:
    records, texts = process.buffer_records, process.strings
    gpus = [agent for agent in process.agents if agent.type == _GPU]
    number = {
        agent.id.handle: place if agent.logical_node_type_id is None else agent.logical_node_type_id
        for place, agent in enumerate(gpus)
    }
    said = {text.key: text.value for text in texts.marker_api}

    operations: dict[tuple[int | None, int | None], str] = {
        (kind, place): name
        for kind, of in enumerate(texts.buffer_records)
        for place, name in enumerate(of.operations)
    }

    def operation(record: _Record) -> str | None:
        return operations.get((record.kind, record.operation))

    called = {
        s.kernel_id: _HIDDEN.sub(
            "", s.formatted_kernel_name or s.demangled_kernel_name or s.kernel_name
        )
        for s in process.kernel_symbols
    }
    dispatches = records.get("kernel_dispatch", [])
    kernels = _timed(
        dispatches,
        name=[called.get(r.dispatch_info.kernel_id) or "unnamed kernel" for r in dispatches],
        device=[number.get(r.dispatch_info.agent_id.handle) for r in dispatches],
        stream=[_first(r.stream_id.handle, r.dispatch_info.queue_id.handle) for r in dispatches],
        shared_bytes=[r.dispatch_info.group_segment_size for r in dispatches],
        **{
            f"{what}_{axis}": [
                _blocks(r.dispatch_info, axis, of_grid=what == "grid") for r in dispatches
            ]
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
        device=[
            _first(number.get(r.dst_agent_id.handle), number.get(r.src_agent_id.handle))
            for r in moves
        ],
        stream=[r.stream_id.handle for r in moves],
        bytes=[r.bytes for r in moves],
    )
    calls = [r for api in _CALLS for r in records.get(api, [])]
    ranges = records.get("marker_api", [])
    names = [said.get(r.correlation_id.internal) or operation(r) or "unnamed range" for r in ranges]
    runtime = _on_host(calls, process, name=[operation(r) or "unnamed call" for r in calls])
    markers = _on_host(ranges, process, name=names).drop("correlation")
    tables = {
        "kernels": kernels,
        "copies": copies,
        "runtime": runtime.with_columns(api=pl.lit("runtime")),
        "markers": markers.with_columns(domain=pl.lit("roctx"), on_device=pl.lit(False)),
    }
    events = sum(map(len, (dispatches, moves, calls, ranges)))
    coverage = {"file": path.name, "events": events, "kept": events, "bytes": size}
    devices = sorted({agent.product_name or agent.name for agent in gpus})
    recorded = {
        name: frame
        for name, frame in tables.items()
        if frame.height or name in ("kernels", "copies")
    }
    return FilePart(
        path, recorded, {"devices": devices, "device_count": len(gpus), "absolute": False}, coverage
    )


def _first(*values: int | None) -> int | None:
    return next((value for value in values if value is not None), None)


def _blocks(dispatch: _Dispatch, axis: str, *, of_grid: bool) -> int | None:
    group: int | None = getattr(dispatch.workgroup_size, axis)
    size: int | None = getattr(dispatch.grid_size, axis)
    if not of_grid:
        return group
    return -(-size // group) if group and size is not None else None


_TYPES: Final[dict[str, type[pl.DataType]]] = {
    "name": pl.String,
    "kind": pl.String,
    "device": pl.Int32,
}


def _timed(records: Sequence[_Record], **columns: list[Any]) -> pl.DataFrame:
    """Records as a frame."""
    times = {
        "start_ns": [r.start_timestamp for r in records],
        "end": [r.end_timestamp for r in records],
        "correlation": [r.correlation_id.internal for r in records],
    }
    frame = pl.DataFrame(
        {
            name: pl.Series(values, dtype=_TYPES.get(name, pl.Int64))
            for name, values in (times | columns).items()
        }
    )
    return _with_duration(frame)


def _on_host(records: Sequence[_Record], process: _Process, *, name: list[str]) -> pl.DataFrame:
    frame = _timed(records, name=name, thread=[r.thread_id for r in records])
    return frame.with_columns(process=pl.lit(process.metadata.pid, dtype=pl.Int64))


_START, _END = "Start_Timestamp", "End_Timestamp"
_KINDS: Final = {
    "kernels": {"Kernel_Name", _START, _END},
    "copies": {"Direction", _START, _END},
    "runtime": {"Function", "Domain", _START, _END},
    "totals": {"Name", "Calls", "TotalDurationNs"},
    "counters": {"Counter_Name", "Counter_Value", "Kernel_Name"},
}
"""Columns that identify each kind of file, the most specific kind first."""

_PROCESS: Final = re.compile(
    r"(?P<run>.*?)_?(?:kernel|hip_api|hsa_api|hip_runtime_api|hip_compiler_api|memory_copy|marker_api|rccl_api|"
    r"rocdecode_api|rocjpeg_api|counter_collection|kernel_stats|hip_api_stats|hip_stats|hsa_stats|hsa_api_stats|"
    r"memory_copy_stats|domain_stats|marker_api_stats|agent_info|memory_allocation|scratch_memory)(?:_trace|_stats)?\.csv"
)


def _kind_of(heading: list[str]) -> str | None:
    """Kind of a file by its columns; None if it is not a file of rocprofv3."""
    names = set(heading)
    if "Counter_Name" in names:
        return "counters" if _KINDS["counters"] <= names else None
    return next((kind for kind, columns in _KINDS.items() if columns <= names), None)


def _files(folder: Path) -> dict[str, list[Path]]:
    """Files of rocprofv3 in a folder, by the process in their names."""
    by_process: dict[str, list[Path]] = defaultdict(list)
    for path in sorted(folder.glob("*.csv")):
        if (match := _PROCESS.fullmatch(path.name)) and _heading_of(path) is not None:
            by_process[match["run"]].append(path)
    return dict(by_process)


def _heading_of(path: Path) -> str | None:
    """Kind of a file by its first line; None if it is not a file of rocprofv3."""
    if special(path):
        return None
    try:
        with path.open("rb") as file:
            line = file.readline(1 << 14)
    except OSError:
        return None
    return _kind_of(_cells_of(line))


def _cells_of(line: bytes) -> list[str]:
    """Cells of a heading."""
    return [cell.strip().strip('"') for cell in text_of(line).split("\n", 1)[0].strip().split(",")]


def _csv_part(paths: list[Path]) -> FilePart:
    """Read the files of one process."""
    tables: dict[str, list[pl.DataFrame]] = defaultdict(list)
    notes: list[str] = []
    events = size = 0
    for path in paths:
        data, damage = bytes_of(path)
        size += len(data)
        try:  # the fast parser, if every row is complete
            raw, ragged = pl.read_csv(data, infer_schema=False, encoding="utf8"), 0
        except pl.exceptions.PolarsError:
            raw, ragged = table_of(text_of(data))
        kind = _kind_of(raw.columns)
        where = (
            "" if path == paths[0] else f"{path.name}: "
        )  # the first file's name is before all notes of the part
        if kind is None:
            notes.append(f"{where}the file is not from rocprofv3, so it is left out")
            continue
        events += raw.height
        try:
            frames_of = _READ[kind](raw)
        except ReadError as error:
            if len(paths) == 1:
                raise
            notes.append(f"{where}{error.found}, so it is left out")
            continue
        lost = raw.height - sum(frame.height for frame in frames_of.values())
        if lost or ragged:
            notes.append(
                f"{where}times or cells are missing in {counted(max(lost, ragged), 'row')}"
            )
        if damage:
            notes.append(f"{where}the file ends early: {damage}")
        for table, frame in frames_of.items():
            tables[table].append(frame)
    if not tables:
        found = f"{paths[0].name} has no event"
        raise ReadError(
            found,
            expected="CSV of rocprofv3",
            hint="rocprofv3 --sys-trace --output-format csv -- PROGRAM",
        )
    merged = {name: pl.concat(frames, how="diagonal_relaxed") for name, frames in tables.items()}
    kept = sum(frame.height for frame in merged.values())
    coverage = {
        "file": paths[0].name,
        "events": events,
        "kept": kept,
        "bytes": size,
        "notes": notes,
    }
    return FilePart(paths[0], merged, {"absolute": False}, coverage)


def _text(raw: pl.DataFrame, *names: str) -> pl.Expr:
    """The first of several columns that the file has."""
    return next((pl.col(name) for name in names if name in raw.columns), pl.lit(None, pl.String))


def _int(raw: pl.DataFrame, *names: str) -> pl.Expr:
    return _text(raw, *names).str.strip_chars().cast(pl.Int64, strict=False)


def _agent(raw: pl.DataFrame, name: str) -> pl.Expr:
    """Number of an agent; newer versions write it as ``Agent 4``."""
    return _text(raw, name).str.extract(r"(\d{1,4})\s*$", 1).cast(pl.Int32, strict=False)


def _with_duration(frame: pl.DataFrame) -> pl.DataFrame:
    """Events with ``dur_ns`` in place of ``end``."""
    return frame.with_columns(dur_ns=pl.col("end") - pl.col("start_ns")).drop("end")


def _kernels(raw: pl.DataFrame) -> dict[str, pl.DataFrame]:
    blocks: dict[str, pl.Expr] = {}
    for axis in "xyz":
        size, group = (
            _int(raw, f"Grid_Size_{axis.upper()}"),
            _int(raw, f"Workgroup_Size_{axis.upper()}"),
        )
        blocks[f"grid_{axis}"] = pl.when(group > 0).then((size + group - 1) // group)
        blocks[f"block_{axis}"] = group
    frame = raw.select(
        device=_agent(raw, "Agent_Id"),
        stream=pl.coalesce(_int(raw, "Stream_Id"), _int(raw, "Queue_Id")),
        start_ns=_int(raw, _START),
        end=_int(raw, _END),
        name=pl.col("Kernel_Name").fill_null("unnamed kernel"),
        correlation=_int(raw, "Correlation_Id"),
        shared_bytes=_int(raw, "LDS_Block_Size", "Group_Segment_Size"),
        registers=_int(raw, "VGPR_Count"),
        **blocks,
    )
    return {"kernels": _with_duration(frame)}


def _copies(raw: pl.DataFrame) -> dict[str, pl.DataFrame]:
    ends = pl.col("Direction").str.extract(
        r"(HOST_TO_DEVICE|DEVICE_TO_HOST|DEVICE_TO_DEVICE|HOST_TO_HOST)$", 1
    )
    kind = ends.replace_strict(_DIRECTIONS, default="unknown", return_dtype=pl.String)
    source, target = _agent(raw, "Source_Agent_Id"), _agent(raw, "Destination_Agent_Id")
    frame = raw.select(
        device=pl.when(kind == "DtoH").then(source).otherwise(target),
        stream=_int(raw, "Stream_Id"),
        start_ns=_int(raw, _START),
        end=_int(raw, _END),
        name=pl.col("Direction").fill_null("unnamed copy"),
        correlation=_int(raw, "Correlation_Id"),
        kind=kind,
    )
    return {"copies": _with_duration(frame)}


def _calls(raw: pl.DataFrame) -> dict[str, pl.DataFrame]:
    marker = pl.col("Domain").str.contains("MARKER").fill_null(False)
    frame = raw.select(
        process=_int(raw, "Process_Id"),
        thread=_int(raw, "Thread_Id"),
        start_ns=_int(raw, _START),
        end=_int(raw, _END),
        name=pl.col("Function").fill_null("unnamed call"),
        correlation=_int(raw, "Correlation_Id"),
        domain="Domain",
        marker=marker,
    )
    whole = _with_duration(frame)
    calls = (
        whole.filter(~pl.col("marker")).drop("marker", "domain").with_columns(api=pl.lit("runtime"))
    )
    ranges = whole.filter("marker").select(
        "process",
        "thread",
        "start_ns",
        "dur_ns",
        "name",
        domain=pl.lit("roctx"),
        on_device=pl.lit(False),
    )
    return {"runtime": calls} | ({"markers": ranges} if ranges.height else {})


def _totals(raw: pl.DataFrame) -> dict[str, pl.DataFrame]:
    name = pl.col("Name")
    kinds = {
        "call": name.str.contains(r"^(?:hip|hsa_|__hip)[A-Z_a-z]\w*$"),
        "copy": name.str.contains(r"^(?:MEMORY_COPY|Copy|FillBuffer)"),
        "range": name.str.contains(r"^(?:HIP|HSA|KERNEL|MARKER|RCCL|SCRATCH)_?\w*$"),
    }
    frame = raw.select(
        kind=first_true(kinds, "kernel"),
        name=name.fill_null("unnamed"),
        count=_int(raw, "Calls"),
        total_ns=_int(raw, "TotalDurationNs"),
        min_ns=_int(raw, "MinNs"),
        max_ns=_int(raw, "MaxNs"),
    )
    return {"totals": frame}


def _counters(raw: pl.DataFrame) -> dict[str, pl.DataFrame]:
    if _START not in raw.columns:
        found = "the file of counters has no times"
        hint = (
            "rocprofv3 --pmc COUNTER of ROCm 6.3 or later writes them; the kernels are in"
            " kernel_trace.csv"
        )
        raise ReadError(
            found, expected="a file with the columns Start_Timestamp and End_Timestamp", hint=hint
        )
    frame = raw.select(
        device=_agent(raw, "Agent_Id"),
        time_ns=_int(raw, _START),
        name="Counter_Name",
        value=pl.col("Counter_Value").cast(pl.Float64, strict=False),
        unit=pl.lit("1"),
    )
    return {"counters": frame.drop_nulls("name")}


_READ: Final = {
    "kernels": _kernels,
    "copies": _copies,
    "runtime": _calls,
    "totals": _totals,
    "counters": _counters,
}


_OF_RPD: Final = {"rocpd_op", "rocpd_api", "rocpd_string"}
_OF_ROCPD: Final = re.compile(r"rocpd_kernel_dispatch(_\w+)?", re.IGNORECASE)

# hipMemcpyKind of hip_runtime_api.h
_COPY_KINDS: Final = {0: "HtoH", 1: "HtoD", 2: "DtoH", 3: "DtoD", 4: "unknown"}
_GLOBAL_SIZE: Final = r"(?i)ExtModuleLaunch|hccModuleLaunch"
"""Launches whose grid counts work items; the grids of other launches count blocks."""

_COPY: Final = r"^(?:Copy|FillBuffer)"


def _is_database(path: Path) -> bool:
    """Whether rpd or rocprofv3 wrote an SQLite file."""
    with sqlite.connect(path) as connection:
        names = sqlite.database_tables(connection)
    is_rpd = all(name in names for name in _OF_RPD)
    return is_rpd or bool(names.matching(_OF_ROCPD) or names.refused)


def _read_database(path: Path, request: Request) -> list[FilePart]:
    """Read one database."""
    with sqlite.connect(path) as connection:
        columns_of = sqlite.database_tables(connection)
    if names := columns_of.matching(_OF_ROCPD):
        return [
            _rocpd(path, columns_of, name[len("rocpd_kernel_dispatch") :]) for name in sorted(names)
        ]
    return [_part(path, columns_of, _rpd(path, columns_of), {"absolute": False})]


def _part(
    path: Path,
    columns_of: sqlite.DatabaseTables,
    tables: dict[str, pl.DataFrame],
    head: dict[str, object],
) -> FilePart:
    events = sum(frame.height for frame in tables.values())
    if not events:
        found = "; ".join([f"{path.name} has no event", *columns_of.notes()])
        raise ReadError(found, expected="a recording of rpd or rocprofv3")
    whole = {
        name: _with_duration(frame) if "end" in frame.columns else frame
        for name, frame in tables.items()
    }
    counts = {"events": events, "kept": events, "bytes": path.stat().st_size}
    return FilePart(
        path, whole, dict(head), {"file": path.name, **counts, "notes": columns_of.notes()}
    )


def _read(
    path: Path,
    columns_of: sqlite.DatabaseTables,
    table: str,
    *columns: str,
    texts: tuple[str, ...] = (),
) -> pl.DataFrame:
    """Columns of a table; a missing column is null, and a missing table has no rows."""
    types: dict[str, pl.DataType] = {
        **dict.fromkeys(columns, pl.Int64()),
        **dict.fromkeys(texts, pl.String()),
    }
    if table not in columns_of:
        return pl.DataFrame(schema=types)
    frame = sqlite.read(path, table, types)
    return frame.with_columns(
        pl.lit(None, dtype).alias(name)
        for name, dtype in types.items()
        if name not in frame.columns
    ).select(list(types))


def _names(
    path: Path, columns_of: sqlite.DatabaseTables, table: str = "rocpd_string"
) -> dict[int, str]:
    return _pairs(_read(path, columns_of, table, "id", texts=("string",)))


def _pairs(frame: pl.DataFrame) -> dict[int, Any]:
    return dict(frame.drop_nulls().iter_rows())


def _named(column: str, names: dict[int, str]) -> pl.Expr:
    name = pl.col(column).replace_strict(names, default=None, return_dtype=pl.String)
    return pl.when(name != "").then(name)


def _rpd(path: Path, columns_of: sqlite.DatabaseTables) -> dict[str, pl.DataFrame]:
    names = _names(path, columns_of)
    calls = _read(
        path, columns_of, "rocpd_api", "id", "pid", "tid", "start", "end", "apiName_id", "args_id"
    )
    calls = calls.with_columns(name=_named("apiName_id", names), args=_named("args_id", names))
    links = _read(path, columns_of, "rocpd_api_ops", "api_id", "op_id")
    links = links.unique("op_id", keep="first", maintain_order=True)
    ops = _read(
        path,
        columns_of,
        "rocpd_op",
        "id",
        "gpuId",
        "queueId",
        "start",
        "end",
        "description_id",
        "opType_id",
    )
    ops = ops.with_columns(
        description=_named("description_id", names), type=_named("opType_id", names)
    )
    ops = ops.join(
        links.rename({"op_id": "id", "api_id": "correlation"}),
        on="id",
        how="left",
        maintain_order="left",
    )
    shapes = _read(
        path,
        columns_of,
        "rocpd_kernelapi",
        "api_ptr_id",
        "gridX",
        "gridY",
        "gridZ",
        "workgroupX",
        "workgroupY",
        "workgroupZ",
        "groupSegmentSize",
        "kernelName_id",
        texts=("stream",),
    ).rename({"api_ptr_id": "correlation"})
    moves = _read(
        path, columns_of, "rocpd_copyapi", "api_ptr_id", "size", "kind", texts=("stream",)
    )
    moves = moves.rename({"api_ptr_id": "correlation"})
    is_copy = pl.col("type").str.contains(_COPY).fill_null(False)
    shared = {
        "device": pl.col("gpuId").cast(pl.Int32, strict=False),
        "stream": pl.col("queueId"),
        "start_ns": pl.col("start"),
        "end": pl.col("end"),
        "correlation": pl.col("correlation"),
    }
    kernels = ops.filter(~is_copy).join(shapes, on="correlation", how="left", maintain_order="left")
    callers = calls.select(correlation="id", call="name")
    kernels = kernels.join(callers, on="correlation", how="left", maintain_order="left")
    items = pl.col("call").str.contains(_GLOBAL_SIZE).fill_null(False)
    grid: dict[str, pl.Expr] = {}
    for axis in "XYZ":
        size, group = pl.col(f"grid{axis}"), pl.col(f"workgroup{axis}")
        blocks = pl.when(items & (group > 0)).then((size + group - 1) // group).otherwise(size)
        grid[f"grid_{axis.lower()}"], grid[f"block_{axis.lower()}"] = blocks, group
    kernels = kernels.with_columns(kernel=_named("kernelName_id", names))
    copies = ops.filter(is_copy).join(moves, on="correlation", how="left", maintain_order="left")
    fill = pl.col("type").str.starts_with("FillBuffer")
    kind = pl.col("kind").replace_strict(_COPY_KINDS, default="unknown", return_dtype=pl.String)
    ends = [
        pl.col("type").str.extract(r"^Copy(H|D)\w+To(H|D)(?:ost|evice)$", end) for end in (1, 2)
    ]
    by_type = ends[0] + pl.lit("to") + ends[1]
    roctx = pl.col("name").is_in(["UserMarker", "roctxRangePush", "roctxMark"])
    tables = {
        "kernels": kernels.select(
            **shared,
            **grid,
            shared_bytes="groupSegmentSize",
            name=pl.coalesce("description", "kernel", "type", pl.lit("unnamed kernel")),
        ),
        "copies": copies.select(
            **shared,
            name=pl.coalesce("type", pl.lit("unnamed copy")),
            bytes="size",
            kind=pl.when(fill).then(pl.lit("memset")).otherwise(pl.coalesce(by_type, kind)),
        ),
        "runtime": (
            calls.filter(~roctx.fill_null(False)).select(
                process="pid",
                thread="tid",
                start_ns="start",
                end="end",
                name=pl.col("name").fill_null("unnamed call"),
                correlation="id",
                api=pl.lit("runtime"),
            )
        ),
        "markers": (
            calls.filter(roctx.fill_null(False)).select(
                process="pid",
                thread="tid",
                start_ns="start",
                end="end",
                name=pl.coalesce("args", "name"),
                domain=pl.lit("roctx"),
                on_device=pl.lit(False),
            )
        ),
    }
    samples = _read(
        path, columns_of, "rocpd_monitor", "deviceId", "start", texts=("monitorType", "value")
    )
    if samples.height:
        tables["counters"] = samples.select(
            device=pl.col("deviceId").cast(pl.Int32, strict=False),
            time_ns="start",
            name=pl.col("monitorType").fill_null("unnamed"),
            value=pl.col("value").cast(pl.Float64, strict=False),
        )
    return tables


def _rocpd(path: Path, columns_of: sqlite.DatabaseTables, suffix: str) -> FilePart:
    """One recording of rocprofv3."""
    names = _names(path, columns_of, f"rocpd_string{suffix}")
    symbols = _read(
        path,
        columns_of,
        f"rocpd_info_kernel_symbol{suffix}",
        "id",
        texts=("display_name", "kernel_name"),
    )
    called = _pairs(symbols.select("id", pl.coalesce("display_name", "kernel_name")))
    agents = _read(
        path,
        columns_of,
        f"rocpd_info_agent{suffix}",
        "id",
        "type_index",
        "logical_index",
        texts=("type", "name", "product_name"),
    ).filter(type="GPU")
    number = _pairs(agents.select("id", pl.coalesce("type_index", "logical_index")))
    processes = _pairs(_read(path, columns_of, f"rocpd_info_process{suffix}", "id", "pid"))
    threads = _pairs(_read(path, columns_of, f"rocpd_info_thread{suffix}", "id", "tid"))
    correlations = _read(
        path, columns_of, f"rocpd_event{suffix}", "id", "correlation_id", "stack_id"
    )
    joined = _pairs(
        correlations.select(
            "id", pl.coalesce(pl.col("correlation_id").replace(0, None), "stack_id")
        )
    )

    def number_of(column: str, by: dict[int, int]) -> pl.Expr:
        return pl.col(column).replace_strict(by, default=None, return_dtype=pl.Int64)

    kernels = _read(
        path,
        columns_of,
        f"rocpd_kernel_dispatch{suffix}",
        "agent_id",
        "kernel_id",
        "stream_id",
        "start",
        "end",
        "event_id",
        "group_segment_size",
        *(f"{what}_size_{axis}" for what in ("workgroup", "grid") for axis in "xyz"),
    )
    grid: dict[str, pl.Expr] = {}
    for axis in "xyz":
        size, group = pl.col(f"grid_size_{axis}"), pl.col(f"workgroup_size_{axis}")
        grid[f"grid_{axis}"] = pl.when(group > 0).then((size + group - 1) // group)
        grid[f"block_{axis}"] = group
    copies = _read(
        path,
        columns_of,
        f"rocpd_memory_copy{suffix}",
        "start",
        "end",
        "name_id",
        "dst_agent_id",
        "src_agent_id",
        "size",
        "stream_id",
        "event_id",
    )
    ends = {
        end: (
            pl.when(pl.col(f"{end}_agent_id").is_in(list(number)))
            .then(pl.lit("D"))
            .otherwise(pl.lit("H"))
        )
        for end in ("src", "dst")
    }
    regions = _read(
        path,
        columns_of,
        f"rocpd_region{suffix}",
        "pid",
        "tid",
        "start",
        "end",
        "name_id",
        "event_id",
    )
    calls = regions.select(
        process=number_of("pid", processes),
        thread=number_of("tid", threads),
        start_ns="start",
        end="end",
        name=_named("name_id", names).fill_null("unnamed call"),
        correlation=number_of("event_id", joined),
    )
    api = pl.col("name").str.contains(r"^(?:hip|hsa_|__hip|nccl|rccl)")
    tables = {
        "kernels": kernels.select(
            device=number_of("agent_id", number).cast(pl.Int32),
            stream="stream_id",
            start_ns="start",
            end="end",
            name=pl.col("kernel_id").replace_strict(
                called, default="unnamed kernel", return_dtype=pl.String
            ),
            correlation=number_of("event_id", joined),
            shared_bytes="group_segment_size",
            **grid,
        ),
        "copies": copies.select(
            device=pl.coalesce(
                number_of("dst_agent_id", number), number_of("src_agent_id", number)
            ).cast(pl.Int32),
            stream="stream_id",
            start_ns="start",
            end="end",
            bytes="size",
            correlation=number_of("event_id", joined),
            name=_named("name_id", names).fill_null("unnamed copy"),
            kind=ends["src"] + pl.lit("to") + ends["dst"],
        ),
        "runtime": calls.filter(api).with_columns(api=pl.lit("runtime")),
        "markers": (
            calls.filter(~api)
            .drop("correlation")
            .with_columns(domain=pl.lit("roctx"), on_device=pl.lit(False))
        ),
    }
    devices = (
        agents.select(pl.coalesce("product_name", "name"))
        .to_series()
        .drop_nulls()
        .unique()
        .sort()
        .to_list()
    )
    return _part(path, columns_of, tables, {"devices": devices, "absolute": False})


def _is_printed(probe: Probe) -> bool:
    if probe.is_folder:
        return bool(_files(probe.path))
    return _kind_of(_cells_of(probe.start.split(b"\n", 1)[0])) is not None


READERS: Final = (
    Reader(
        name="rocprof",
        version=2,
        what="CSV of rocprofv3 (a file, or the folder of a run)",
        sniff=_is_printed,
        read=lambda path, _: [
            _csv_part(paths) for paths in (_files(path).values() if path.is_dir() else [[path]])
        ],
    ),
    Reader(
        name="rocprof-json",
        version=2,
        what="JSON of rocprofv3",
        sniff=lambda probe: not probe.is_folder and START.match(probe.start) is not None,
        read=lambda path, _: _read_json(path),
        suffixes=(".json", ".gz"),
    ),
    Reader(
        name="rpd",
        version=3,
        what="a database of rpd or of rocprofv3 (rocpd)",
        sniff=lambda probe: probe.start.startswith(sqlite.MAGIC) and _is_database(probe.path),
        read=_read_database,
        suffixes=(".rpd", ".db"),
        database=lambda path, _: path,
    ),
)
