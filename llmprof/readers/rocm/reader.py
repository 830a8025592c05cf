"""Readers of ROCm's profilers: CSV (a file or a folder) and JSON of rocprofv3, databases of rpd and rocprofv3.

Databases of both have tables ``rocpd_…``. rpd has one set of tables; rocprofv3 adds an identifier of the recording to
each name, so one file may have several recordings. Times are ns of one clock of the host.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import polars as pl

from llmprof.errors import ReadError
from llmprof.readers.common.reader import Part, Probe, Reader, Request
from llmprof.readers.rocm import printed, records
from llmprof.storage import sqlite
from llmprof.text import left_out

_OF_RPD: Final = {"rocpd_op", "rocpd_api", "rocpd_string"}
_OF_ROCPD: Final = re.compile(r"rocpd_kernel_dispatch(_\w+)?", re.IGNORECASE)

# hipMemcpyKind of hip_runtime_api.h
_COPY_KINDS: Final = {0: "HtoH", 1: "HtoD", 2: "DtoH", 3: "DtoD", 4: "unknown"}
_GLOBAL_SIZE: Final = r"(?i)ExtModuleLaunch|hccModuleLaunch"
"""Launches whose grid counts work items; the grids of other launches count blocks."""

_COPY: Final = r"^(?:Copy|FillBuffer)"


def is_database(path: Path) -> bool:
    """Whether rpd or rocprofv3 wrote an SQLite file."""
    with sqlite.connect(path) as connection:
        names = sqlite.tables(connection)
    is_rpd = all(name in names for name in _OF_RPD)
    return is_rpd or bool(names.matching(_OF_ROCPD) or names.refused)


def read_database(path: Path, request: Request) -> list[Part]:
    """Read one database."""
    with sqlite.connect(path) as connection:
        columns_of = sqlite.tables(connection)
    if names := columns_of.matching(_OF_ROCPD):
        return [_rocpd(path, columns_of, name[len("rocpd_kernel_dispatch") :]) for name in sorted(names)]
    return [_part(path, columns_of, _rpd(path, columns_of), {"absolute": False})]


def _part(path: Path, columns_of: sqlite.Tables, tables: dict[str, pl.DataFrame], head: dict[str, object]) -> Part:
    events = sum(frame.height for frame in tables.values())
    if not events:
        raise ReadError(
            "; ".join([f"{path.name} has no event", *columns_of.notes()]),
            expected="a recording of rpd or rocprofv3",
        )
    whole = {name: printed.timed(frame) if "end" in frame.columns else frame for name, frame in tables.items()}
    kept = sum(frame.height for frame in whole.values())
    lost = events - kept
    coverage = {
        "file": path.name,
        "events": events,
        "kept": kept,
        "bytes": path.stat().st_size,
        "notes": [*([left_out(lost, "event", "without a complete time")] if lost else []), *columns_of.notes()],
    }
    return Part(path, whole, dict(head), coverage)


def _read(
    path: Path, columns_of: sqlite.Tables, table: str, *columns: str, texts: tuple[str, ...] = ()
) -> pl.DataFrame:
    """Columns of a table; a missing column is null, and a missing table has no rows."""
    types: dict[str, pl.DataType] = {**dict.fromkeys(columns, pl.Int64()), **dict.fromkeys(texts, pl.String())}
    if table not in columns_of:
        return pl.DataFrame(schema=types)
    frame = sqlite.read(path, table, types)
    return frame.with_columns(
        pl.lit(None, dtype=dtype).alias(name) for name, dtype in types.items() if name not in frame.columns
    ).select(list(types))


def _names(path: Path, columns_of: sqlite.Tables, table: str = "rocpd_string") -> dict[int, str]:
    return dict(_read(path, columns_of, table, "id", texts=("string",)).drop_nulls().iter_rows())


def _named(column: str, names: dict[int, str]) -> pl.Expr:
    name = pl.col(column).replace_strict(names, default=None, return_dtype=pl.String)
    return pl.when(name != "").then(name)


def _rpd(path: Path, columns_of: sqlite.Tables) -> dict[str, pl.DataFrame]:
    names = _names(path, columns_of)
    calls = _read(path, columns_of, "rocpd_api", "id", "pid", "tid", "start", "end", "apiName_id", "args_id")
    calls = calls.with_columns(name=_named("apiName_id", names), args=_named("args_id", names))
    links = _read(path, columns_of, "rocpd_api_ops", "api_id", "op_id").unique(
        "op_id", keep="first", maintain_order=True
    )
    ops = _read(path, columns_of, "rocpd_op", "id", "gpuId", "queueId", "start", "end", "description_id", "opType_id")
    ops = ops.with_columns(description=_named("description_id", names), type=_named("opType_id", names))
    ops = ops.join(links.rename({"op_id": "id", "api_id": "correlation"}), on="id", how="left", maintain_order="left")
    shapes = _read(
        path, columns_of, "rocpd_kernelapi", "api_ptr_id", "gridX", "gridY", "gridZ", "workgroupX", "workgroupY",
        "workgroupZ", "groupSegmentSize", "kernelName_id", texts=("stream",),
    ).rename({"api_ptr_id": "correlation"})  # fmt: skip
    moves = _read(path, columns_of, "rocpd_copyapi", "api_ptr_id", "size", "kind", texts=("stream",))
    moves = moves.rename({"api_ptr_id": "correlation"})
    is_copy = pl.col("type").str.contains(_COPY).fill_null(value=False)
    shared = {
        "device": pl.col("gpuId").cast(pl.Int32, strict=False),
        "stream": pl.col("queueId"),
        "start_ns": pl.col("start"),
        "end": pl.col("end"),
        "correlation": pl.col("correlation"),
    }
    kernels = ops.filter(~is_copy).join(shapes, on="correlation", how="left", maintain_order="left")
    kernels = kernels.join(
        calls.select(correlation="id", call="name"), on="correlation", how="left", maintain_order="left"
    )
    items = pl.col("call").str.contains(_GLOBAL_SIZE).fill_null(value=False)
    grid: dict[str, pl.Expr] = {}
    for axis in "XYZ":
        size, group = pl.col(f"grid{axis}"), pl.col(f"workgroup{axis}")
        blocks = pl.when(items & (group > 0)).then((size + group - 1) // group).otherwise(size)
        grid[f"grid_{axis.lower()}"], grid[f"block_{axis.lower()}"] = blocks, group
    kernels = kernels.with_columns(kernel=_named("kernelName_id", names))
    copies = ops.filter(is_copy).join(moves, on="correlation", how="left", maintain_order="left")
    fill = pl.col("type").str.starts_with("FillBuffer")
    kind = pl.col("kind").replace_strict(_COPY_KINDS, default="unknown", return_dtype=pl.String)
    ends = [pl.col("type").str.extract(r"^Copy(H|D)\w+To(H|D)(?:ost|evice)$", end) for end in (1, 2)]
    by_type = ends[0] + pl.lit("to") + ends[1]
    roctx = pl.col("name").is_in(["UserMarker", "roctxRangePush", "roctxMark"])
    tables = {
        "kernels": kernels.select(
            **shared, **grid, shared_bytes="groupSegmentSize",
            name=pl.coalesce("description", "kernel", "type", pl.lit("unnamed kernel")),
        ),
        "copies": copies.select(
            **shared, name=pl.coalesce("type", pl.lit("unnamed copy")), bytes="size",
            kind=pl.when(fill).then(pl.lit("memset")).otherwise(pl.coalesce(by_type, kind)),
        ),
        "runtime": calls.filter(~roctx.fill_null(value=False)).select(
            process="pid", thread="tid", start_ns="start", end="end",
            name=pl.col("name").fill_null("unnamed call"), correlation="id", api=pl.lit("runtime"),
        ),
        "markers": calls.filter(roctx.fill_null(value=False)).select(
            process="pid", thread="tid", start_ns="start", end="end",
            name=pl.coalesce("args", "name"), domain=pl.lit("roctx"), on_device=pl.lit(value=False),
        ),
    }  # fmt: skip
    samples = _read(path, columns_of, "rocpd_monitor", "deviceId", "start", texts=("monitorType", "value"))
    if samples.height:
        tables["counters"] = samples.select(
            device=pl.col("deviceId").cast(pl.Int32, strict=False), time_ns="start",
            name=pl.col("monitorType").fill_null("unnamed"), value=pl.col("value").cast(pl.Float64, strict=False),
        ).drop_nulls(["time_ns", "value"])  # fmt: skip
    return tables


def _rocpd(path: Path, columns_of: sqlite.Tables, suffix: str) -> Part:
    """One recording of rocprofv3."""
    names = _names(path, columns_of, f"rocpd_string{suffix}")
    symbols = _read(path, columns_of, f"rocpd_info_kernel_symbol{suffix}", "id", texts=("display_name", "kernel_name"))
    called = dict(symbols.select("id", pl.coalesce("display_name", "kernel_name")).drop_nulls().iter_rows())
    agents = _read(
        path, columns_of, f"rocpd_info_agent{suffix}", "id", "type_index", "logical_index",
        texts=("type", "name", "product_name"),
    ).filter(pl.col("type") == "GPU")  # fmt: skip
    number = dict(agents.select("id", pl.coalesce("type_index", "logical_index")).drop_nulls().iter_rows())
    processes = dict(_read(path, columns_of, f"rocpd_info_process{suffix}", "id", "pid").drop_nulls().iter_rows())
    threads = dict(_read(path, columns_of, f"rocpd_info_thread{suffix}", "id", "tid").drop_nulls().iter_rows())
    correlations = _read(path, columns_of, f"rocpd_event{suffix}", "id", "correlation_id", "stack_id")
    joined = dict(
        correlations.select("id", pl.coalesce(pl.col("correlation_id").replace(0, None), "stack_id"))
        .drop_nulls()
        .iter_rows()
    )

    def number_of(column: str, by: dict[int, int]) -> pl.Expr:
        return pl.col(column).replace_strict(by, default=None, return_dtype=pl.Int64)

    kernels = _read(
        path, columns_of, f"rocpd_kernel_dispatch{suffix}", "agent_id", "kernel_id", "stream_id", "start", "end",
        "event_id", "group_segment_size", *(f"{what}_size_{axis}" for what in ("workgroup", "grid") for axis in "xyz"),
    )  # fmt: skip
    grid: dict[str, pl.Expr] = {}
    for axis in "xyz":
        size, group = pl.col(f"grid_size_{axis}"), pl.col(f"workgroup_size_{axis}")
        grid[f"grid_{axis}"] = pl.when(group > 0).then((size + group - 1) // group)
        grid[f"block_{axis}"] = group
    copies = _read(
        path, columns_of, f"rocpd_memory_copy{suffix}", "start", "end", "name_id", "dst_agent_id", "src_agent_id",
        "size", "stream_id", "event_id",
    )  # fmt: skip
    ends = {
        end: pl.when(pl.col(f"{end}_agent_id").is_in(list(number))).then(pl.lit("D")).otherwise(pl.lit("H"))
        for end in ("src", "dst")
    }
    regions = _read(path, columns_of, f"rocpd_region{suffix}", "pid", "tid", "start", "end", "name_id", "event_id")
    calls = regions.select(
        process=number_of("pid", processes), thread=number_of("tid", threads), start_ns="start", end="end",
        name=_named("name_id", names).fill_null("unnamed call"), correlation=number_of("event_id", joined),
    )  # fmt: skip
    api = pl.col("name").str.contains(r"^(?:hip|hsa_|__hip|nccl|rccl)")
    tables = {
        "kernels": kernels.select(
            device=number_of("agent_id", number).cast(pl.Int32), stream="stream_id", start_ns="start", end="end",
            name=pl.col("kernel_id").replace_strict(called, default="unnamed kernel", return_dtype=pl.String),
            correlation=number_of("event_id", joined), shared_bytes="group_segment_size", **grid,
        ),
        "copies": copies.select(
            device=pl.coalesce(number_of("dst_agent_id", number), number_of("src_agent_id", number)).cast(pl.Int32),
            stream="stream_id", start_ns="start", end="end", bytes="size", correlation=number_of("event_id", joined),
            name=_named("name_id", names).fill_null("unnamed copy"), kind=ends["src"] + pl.lit("to") + ends["dst"],
        ),
        "runtime": calls.filter(api).with_columns(api=pl.lit("runtime")),
        "markers": calls.filter(~api).drop("correlation").with_columns(
            domain=pl.lit("roctx"), on_device=pl.lit(value=False)
        ),
    }  # fmt: skip
    devices = agents.select(pl.coalesce("product_name", "name")).to_series().drop_nulls().unique().sort().to_list()
    return _part(path, columns_of, tables, {"devices": devices, "absolute": False})


def _is_printed(probe: Probe) -> bool:
    if probe.is_folder:
        return bool(printed.files(probe.path))
    return printed.kind_of(printed.cells_of(probe.start.split(b"\n", 1)[0])) is not None


def _read_printed(path: Path, request: Request) -> list[Part]:
    if not path.is_dir():
        return [printed.part([path])]
    return [printed.part(paths) for paths in printed.files(path).values()]


READERS: Final = (
    Reader(
        name="rocprof",
        version=1,
        what="CSV of rocprofv3 (a file, or the folder of a run)",
        sniff=_is_printed,
        read=_read_printed,
    ),
    Reader(
        name="rocprof-json",
        version=1,
        what="JSON of rocprofv3",
        sniff=lambda probe: not probe.is_folder and records.START.match(probe.start) is not None,
        read=lambda path, _: records.read(path),
        suffixes=(".json", ".gz"),
    ),
    Reader(
        name="rpd",
        version=2,
        what="a database of rpd or of rocprofv3 (rocpd)",
        sniff=lambda probe: probe.start.startswith(sqlite.MAGIC) and is_database(probe.path),
        read=read_database,
        suffixes=(".rpd", ".db"),
        database=lambda path, _: path,
    ),
)
