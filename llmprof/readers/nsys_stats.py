"""Reader of the tables that ``nsys stats`` prints, as CSV or as text, where the recording is not at
hand: a file with one or several tables, or a folder of such files.

Sums of kernels, copies, calls and ranges become the table ``totals``, the rows of a GPU trace
kernels and copies. Units are in the headings: ``Total Time (ns)``.
"""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import polars as pl

from llmprof.names.matching import first_true
from llmprof.readers.common.reader import (
    Probe,
    Reader,
    Request,
    bytes_of,
    table_of,
    text_of,
    trace_of,
)
from llmprof.text import left_out
from llmprof.trace import Trace

_HEADING: Final = re.compile(
    r"^(?=.*\b(?:Total Time|Duration) \((?:[num]s|[num]?sec|s)\))(?=.*\b(?:Name|Operation|Range)\b)"
    r' *"?(?:Time ?\(%\)|Start \()[^\n]*',
    re.MULTILINE,
)
_DASHES: Final = re.compile(r" *-+(?: +-+)+ *")
"""The line below the heading of a table of text, which shows its columns."""
_UNIT: Final = re.compile(r"(.*) \(([num]?)s(?:ec)?\)")
_FACTORS: Final = {"": 10**9, "m": 10**6, "u": 10**3, "n": 1}
_COUNTS: Final = ("Instances", "Num Calls", "Count", "Calls")
_NAMES: Final = ("Name", "Operation", "Range", "NVTX Range")
_MEMORY: Final = r"^\[?CUDA mem"
_COPY: Final = r"memcpy (?:Host|Device|Peer|\w)\w*?-?to-?(?:Host|Device|Peer|\w)"
_SHAPE: Final = {
    "grid_x": "GrdX",
    "grid_y": "GrdY",
    "grid_z": "GrdZ",
    "block_x": "BlkX",
    "block_y": "BlkY",
    "block_z": "BlkZ",
    "registers": "Reg/Trd",
}


def _number(frame: pl.DataFrame, column: str, dtype: Any = pl.Int64) -> pl.Expr:
    """A column as whole numbers; null where it is missing or has none."""
    if column not in frame.columns:
        return pl.lit(None, dtype)
    plain = pl.col(column).str.replace_all(",", "").cast(pl.Float64, strict=False)
    return plain.round().cast(dtype, strict=False)


def _in_ns(frame: pl.DataFrame) -> pl.DataFrame:
    """Columns of times in ns, under their names without a unit."""
    times = {column: match for column in frame.columns if (match := _UNIT.fullmatch(column))}
    return frame.with_columns(
        (
            pl.col(column).str.replace_all(",", "").cast(pl.Float64, strict=False)
            * _FACTORS[match[2]]
        )
        .round()
        .cast(pl.Int64, strict=False)
        .alias(match[1])
        for column, match in times.items()
    )


def _sums(rows: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """A table of sums by name."""
    name = next(column for column in _NAMES if column in rows.columns)
    counts = next((column for column in _COUNTS if column in rows.columns), "")
    kinds = {
        "call": pl.lit(counts in ("Num Calls", "Calls")),
        "range": pl.lit(name.endswith("Range")),
        "copy": pl.col(name).str.contains(_MEMORY),
    }
    columns = {"total_ns": "Total Time", "median_ns": "Med", "min_ns": "Min", "max_ns": "Max"}
    times = {column: pl.col(said) for column, said in columns.items() if said in rows.columns}
    found = rows.select(
        kind=first_true(kinds, "kernel"), name=name, count=_number(rows, counts), **times
    )
    return {"totals": found.drop_nulls(["name", "total_ns"])}


def _events(rows: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """The rows of a GPU trace."""
    device = {
        "start_ns": pl.col("Start"),
        "dur_ns": pl.col("Duration"),
        "name": pl.col("Name"),
        "stream": _number(rows, "Strm"),
        "correlation": _number(rows, "CorrId"),
    }
    if "Device" in rows.columns:
        device["device"] = pl.col("Device").str.extract(r"\((\d{1,4})\)\s*$").cast(pl.Int32)
    rows = rows.drop_nulls(["Start", "Duration", "Name"])
    moved = rows["Name"].str.contains(_MEMORY)
    ends = pl.col("Name").str.extract_groups(r"(?i)\b([HDP])\w*?[- ]?to[- ]?([HDP])\w*")
    kind = pl.format("{}to{}", ends.struct[0], ends.struct[1])
    fills = pl.col("Name").str.contains("(?i)memset")
    copies = rows.filter(moved).select(
        **device,
        kind=pl.when(fills).then(pl.lit("memset")).otherwise(kind).fill_null("unknown"),
    )
    shape = {to: _number(rows, said, pl.Int32) for to, said in _SHAPE.items()}
    kernels = rows.filter(~moved).select(**device, **shape)
    return {"kernels": kernels, "copies": copies}


def _table(text: str) -> tuple[pl.DataFrame, int]:
    """Rows of a table as text, and the number of those with other columns than its heading."""
    heading, *lines = text.splitlines()
    if not lines or not _DASHES.fullmatch(lines[0]):
        return table_of(text)
    spans = [match.span() for match in re.finditer("-+", lines[0])]
    columns = [slice(*span) for span in spans[:-1]] + [slice(spans[-1][0], None)]
    rows = [[line[column].strip() or None for column in columns] for line in lines[1:]]
    names = [heading[column].strip() for column in columns]
    return pl.DataFrame(rows, schema=dict.fromkeys(names, pl.String), orient="row"), 0


def _read(path: Path, request: Request) -> Trace:
    files = _files(path) if path.is_dir() else [path]
    found: dict[str, list[pl.DataFrame]] = {}
    damages, notes, rows = [], [], 0
    for file in files:
        data, damage = bytes_of(file)
        damages += [damage] if damage else []
        text = text_of(data)
        begins = [match.start() for match in _HEADING.finditer(text)]
        for begin, end in pairwise([*begins, len(text)]):
            table, ragged = _table(re.split(r"\r?\n[ \t]*\r?\n", text[begin:end])[0])
            rows += table.height
            notes += [left_out(ragged, "row", "with other columns than its heading")] * bool(ragged)
            frame = _in_ns(table)
            made = _sums(frame) if "Total Time" in frame.columns else _events(frame)
            for name, part in made.items():
                found.setdefault(name, []).append(part)
    tables = {name: pl.concat(parts, how="diagonal_relaxed") for name, parts in found.items()}
    tables = {name: frame for name, frame in tables.items() if frame.height}
    return trace_of(
        path,
        "nsys-stats",
        tables,
        head={"absolute": False},
        events=rows,
        notes=notes,
        damage="; ".join(damages),
    )


def _files(folder: Path) -> list[Path]:
    """Tables in a folder: as CSV, or as text where there is none."""
    return sorted(folder.glob("*.csv")) or sorted(folder.glob("*.txt"))


def _sniff(probe: Probe) -> bool:
    """Whether a file has a table of ``nsys stats``, or a folder of reports some such files."""
    if probe.is_folder:
        inside = [file for file in probe.path.iterdir() if file.is_file()]
        reports = all(file.suffix in (".csv", ".txt") for file in inside)
        return reports and any(_sniff(Probe(file)) for file in _files(probe.path))
    return _HEADING.search(probe.start.decode("utf-8", "replace")) is not None


READER: Final = Reader(
    name="nsys-stats",
    version=1,
    what="a table of nsys stats",
    sniff=_sniff,
    read=_read,
    suffixes=(".csv", ".txt"),
    alone=True,
)
