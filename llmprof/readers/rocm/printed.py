"""Reader of the CSV of rocprofv3, which writes one file for each process and kind of event, in a folder of the host.

Columns depend on the version; the kind of a file follows from its columns. Times are ns of one clock. The grids in the
files count work items and are converted to blocks. The files of one process have the same beginning of their names
(``123_kernel_trace.csv``, ``123_hip_api_trace.csv``); the numbers of agents count the host's processors and devices.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Final

import polars as pl

from llmprof.errors import ReadError
from llmprof.readers.common.reader import Part
from llmprof.readers.common.summaries import MOST_NS, bytes_of, table_of, text_of
from llmprof.storage.files import special
from llmprof.text import counted

_START, _END = "Start_Timestamp", "End_Timestamp"
_KINDS: Final = {
    "kernels": {"Kernel_Name", _START, _END},
    "copies": {"Direction", _START, _END},
    "runtime": {"Function", "Domain", _START, _END},
    "totals": {"Name", "Calls", "TotalDurationNs"},
    "counters": {"Counter_Name", "Counter_Value", "Kernel_Name"},
}
"""Columns that identify each kind of file, the most specific kind first."""

_DIRECTIONS: Final = {
    "HOST_TO_DEVICE": "HtoD", "DEVICE_TO_HOST": "DtoH", "DEVICE_TO_DEVICE": "DtoD", "HOST_TO_HOST": "HtoH",
}  # fmt: skip
_PROCESS: Final = re.compile(
    r"(?P<run>.*?)_?(?:kernel|hip_api|hsa_api|hip_runtime_api|hip_compiler_api|memory_copy|marker_api|rccl_api|"
    r"rocdecode_api|rocjpeg_api|counter_collection|kernel_stats|hip_api_stats|hip_stats|hsa_stats|hsa_api_stats|"
    r"memory_copy_stats|domain_stats|marker_api_stats|agent_info|memory_allocation|scratch_memory)(?:_trace|_stats)?\.csv"
)


def kind_of(heading: list[str]) -> str | None:
    """Kind of a file by its columns; None if it is not a file of rocprofv3."""
    names = set(heading)
    if "Counter_Name" in names:
        return "counters" if _KINDS["counters"] <= names else None
    return next((kind for kind, columns in _KINDS.items() if columns <= names), None)


def files(folder: Path) -> dict[str, list[Path]]:
    """Files of rocprofv3 in a folder, by the process in their names."""
    by_process: dict[str, list[Path]] = defaultdict(list)
    for path in sorted(folder.glob("*.csv")):
        if (match := _PROCESS.fullmatch(path.name)) and heading_of(path) is not None:
            by_process[match["run"]].append(path)
    return dict(by_process)


def heading_of(path: Path) -> str | None:
    """Kind of a file by its first line; None if it is not a file of rocprofv3."""
    if special(path):
        return None
    try:
        with path.open("rb") as file:
            line = file.readline(1 << 14)
    except OSError:
        return None
    return kind_of(cells_of(line))


def cells_of(line: bytes) -> list[str]:
    """Cells of a heading."""
    return [cell.strip().strip('"') for cell in text_of(line).split("\n", 1)[0].strip().split(",")]


def part(paths: list[Path]) -> Part:
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
        kind = kind_of(raw.columns)
        where = "" if path == paths[0] else f"{path.name}: "  # the first file's name is before all notes of the part
        if kind is None:
            notes.append(f"{where}the file is not from rocprofv3, so it is left out")
            continue
        events += raw.height
        frames_of = _READ[kind](raw)
        lost = raw.height - sum(frame.height for frame in frames_of.values())
        if lost or ragged:
            notes.append(f"{where}times or cells are missing in {counted(max(lost, ragged), 'row')}")
        if damage:
            notes.append(f"{where}the file ends early: {damage}")
        for table, frame in frames_of.items():
            tables[table].append(frame)
    if not tables:
        raise ReadError(
            f"{paths[0].name} has no event",
            expected="CSV of rocprofv3",
            hint="rocprofv3 --sys-trace --output-format csv -- PROGRAM",
        )
    merged = {name: pl.concat(frames, how="diagonal_relaxed") for name, frames in tables.items()}
    kept = sum(frame.height for frame in merged.values())
    coverage = {"file": paths[0].name, "events": events, "kept": kept, "bytes": size, "notes": notes}
    return Part(paths[0], merged, {"absolute": False}, coverage)


def _text(raw: pl.DataFrame, *names: str) -> pl.Expr:
    """The first of several columns that the file has."""
    return next((pl.col(name) for name in names if name in raw.columns), pl.lit(None, pl.String))


def _int(raw: pl.DataFrame, *names: str) -> pl.Expr:
    return _text(raw, *names).str.strip_chars().cast(pl.Int64, strict=False)


def _agent(raw: pl.DataFrame, name: str) -> pl.Expr:
    """Number of an agent; newer versions write it as ``Agent 4``."""
    return _text(raw, name).str.extract(r"(\d{1,4})\s*$", 1).cast(pl.Int32, strict=False)


def timed(frame: pl.DataFrame) -> pl.DataFrame:
    """Events with valid times, with ``dur_ns`` in place of ``end``."""
    start, end = pl.col("start_ns"), pl.col("end")
    whole = frame.filter(start.is_between(0, MOST_NS) & end.is_between(start, MOST_NS))
    return whole.with_columns(dur_ns=end - start).drop("end")


def _kernels(raw: pl.DataFrame) -> dict[str, pl.DataFrame]:
    blocks: dict[str, pl.Expr] = {}
    for axis in "xyz":
        size, group = _int(raw, f"Grid_Size_{axis.upper()}"), _int(raw, f"Workgroup_Size_{axis.upper()}")
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
    return {"kernels": timed(frame)}


def _copies(raw: pl.DataFrame) -> dict[str, pl.DataFrame]:
    ends = pl.col("Direction").str.extract(r"(HOST_TO_DEVICE|DEVICE_TO_HOST|DEVICE_TO_DEVICE|HOST_TO_HOST)$", 1)
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
    return {"copies": timed(frame)}


def _calls(raw: pl.DataFrame) -> dict[str, pl.DataFrame]:
    marker = pl.col("Domain").str.contains("MARKER").fill_null(value=False)
    frame = raw.select(
        process=_int(raw, "Process_Id"),
        thread=_int(raw, "Thread_Id"),
        start_ns=_int(raw, _START),
        end=_int(raw, _END),
        name=pl.col("Function").fill_null("unnamed call"),
        correlation=_int(raw, "Correlation_Id"),
        domain=pl.col("Domain"),
        marker=marker,
    )
    whole = timed(frame)
    calls = whole.filter(~pl.col("marker")).drop("marker", "domain").with_columns(api=pl.lit("runtime"))
    ranges = whole.filter("marker").select(
        "process", "thread", "start_ns", "dur_ns", "name", domain=pl.lit("roctx"), on_device=pl.lit(value=False)
    )
    return {"runtime": calls} | ({"markers": ranges} if ranges.height else {})


def _totals(raw: pl.DataFrame) -> dict[str, pl.DataFrame]:
    name = pl.col("Name")
    kind = (
        pl.when(name.str.contains(r"^(?:hip|hsa_|__hip)[A-Z_a-z]\w*$"))
        .then(pl.lit("call"))
        .when(name.str.contains(r"^(?:MEMORY_COPY|Copy|FillBuffer)"))
        .then(pl.lit("copy"))
        .when(name.str.contains(r"^(?:HIP|HSA|KERNEL|MARKER|RCCL|SCRATCH)_?\w*$"))
        .then(pl.lit("range"))
        .otherwise(pl.lit("kernel"))
    )
    frame = raw.select(
        kind=kind,
        name=name.fill_null("unnamed"),
        count=_int(raw, "Calls"),
        total_ns=_int(raw, "TotalDurationNs"),
        min_ns=_int(raw, "MinNs"),
        max_ns=_int(raw, "MaxNs"),
    )
    return {"totals": frame.filter(pl.col("total_ns").is_between(0, MOST_NS))}


def _counters(raw: pl.DataFrame) -> dict[str, pl.DataFrame]:
    if _START not in raw.columns:
        raise ReadError(
            "the file of counters has no times",
            expected="a file with the columns Start_Timestamp and End_Timestamp",
            hint="rocprofv3 --pmc COUNTER of ROCm 6.3 or later writes them; the kernels are in kernel_trace.csv",
        )
    frame = raw.select(
        device=_agent(raw, "Agent_Id"),
        time_ns=_int(raw, _START),
        name=pl.col("Counter_Name"),
        value=pl.col("Counter_Value").cast(pl.Float64, strict=False),
        unit=pl.lit("1"),
    )
    return {"counters": frame.drop_nulls(["time_ns", "name", "value"])}


_READ: Final = {"kernels": _kernels, "copies": _copies, "runtime": _calls, "totals": _totals, "counters": _counters}
