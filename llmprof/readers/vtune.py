"""Reader of VTune's CSV reports: hotspots (one row per function) and top-down (one row per frame,
indented by depth).

Both come from ``vtune -report hotspots|top-down -r RESULT -format csv``. The separator is a comma
unless ``-csv-delimiter`` sets another; times are in seconds, with or without an ``s``. If a
top-down report has no column for the self time of a frame (``-column "CPU Time:Self"`` adds it), it
is the total time minus that of the callees.
"""

import re
from pathlib import Path
from typing import Final

import polars as pl

from llmprof.errors import ReadError
from llmprof.readers.common.reader import (
    Probe,
    Reader,
    Request,
    bytes_of,
    table_of,
    text_of,
    trace_of,
)
from llmprof.text import counted
from llmprof.trace import Trace

_SEPARATORS: Final = (",", "\t", ";", "|")
_FIRST: Final = (
    "Function",
    "Function Stack",
    "Source Function",
    "Source Function Stack",
    "Function / Call Stack",
)
_TIME: Final = re.compile(r"CPU Time(?:[: ]\s*(Total|Self))?(?: \(s\))?", re.IGNORECASE)
_NUMBER: Final = r"^\s*([\d.]+(?:[eE][+-]?\d+)?)\s*s?\s*$"
_UNKNOWN: Final = r"^\[Unknown\]$"
_DEEPEST: Final = 4096


def _heading(text: str) -> tuple[str, str] | None:
    """Separator and line of the heading; None if a text has none."""
    for line in text.splitlines()[:20]:
        for separator in _SEPARATORS:
            cells = [cell.strip().strip('"') for cell in line.split(separator)]
            if cells[0] in _FIRST and len(cells) > 1:
                return separator, line
    return None


def _sniff(probe: Probe) -> bool:
    if probe.is_folder or b"\0" in probe.start[:2] or not probe.start.strip()[:200]:
        return False
    heading = _heading(text_of(probe.start[: 1 << 14]))
    if heading is None:
        return False
    separator, line = heading
    cells = [cell.strip().strip('"') for cell in line.split(separator)]
    return any(
        _TIME.fullmatch(cell) or cell.startswith("Hardware Event Count:") for cell in cells[1:]
    )


def _read(path: Path, request: Request) -> Trace:
    data, damage = bytes_of(path)
    text = text_of(data)
    heading = _heading(text)
    if heading is None:
        raise ReadError(
            f"{path.name} has no heading of VTune",
            expected="Function or Function Stack in its first cell",
        )
    separator, line = heading
    table, ragged = table_of(text[text.index(line) :], separator=separator)
    first = table.columns[0]
    times = {
        (match[1] or "").lower(): name for name in table.columns if (match := _TIME.fullmatch(name))
    }
    if not times:
        found = f"{path.name} has no column of CPU time"
        expected = "the column CPU Time, CPU Time:Self or CPU Time:Total"
        raise ReadError(
            found, expected=expected, hint="vtune -report hotspots -r RESULT -format csv"
        )
    # the number of blanks before a cell is its depth; the cells of the table are stripped
    depths, names = _depths(text[text.index(line) :], separator)
    if len(names) != table.height:
        raise ReadError(f"{path.name} has rows of several lines", expected="one line per row")
    rows = table.with_columns(frame=pl.Series(names, dtype=pl.String))
    stacked = "Stack" in first
    notes = [f"the number of cells is wrong in {counted(ragged, 'row')}"] if ragged else []
    callers = _callers(depths)
    own = _own_time(rows, times, callers, stacked=stacked)
    stacks: list[str] = []
    for name, caller in zip(names, callers, strict=True):
        above = "" if caller is None or not stacked else stacks[caller]
        stacks.append(name if above in ("", "Total") else f"{above}\n{name}")
    samples = rows.select(
        name="frame",
        stack=pl.Series(stacks, dtype=pl.String),
        module=pl.col("Module").replace("[Unknown]", None)
        if "Module" in rows.columns
        else pl.lit(None, pl.String),
        event=pl.lit("CPU time"),
        value=own,
        unit=pl.lit("ns"),
    ).filter(pl.col("value").ne_missing(0) & (pl.col("name") != "Total"))
    return trace_of(
        path, "vtune", {"samples": samples}, events=table.height, notes=notes, damage=damage
    )


def _depths(text: str, separator: str) -> tuple[list[int], list[str]]:
    """Number of blanks before the first cell of each row, and the cell's text."""
    depths, names = [], []
    for line in text.splitlines()[1:]:
        if not line.strip() or not line.strip(separator).strip():
            continue
        cell = line[1:].partition('"')[0] if line.startswith('"') else line.partition(separator)[0]
        depths.append(min(_DEEPEST, len(cell) - len(cell.lstrip(" "))))
        names.append(cell.strip() or "[unknown]")
    return depths, names


def _own_time(
    rows: pl.DataFrame, times: dict[str, str], callers: list[int | None], *, stacked: bool
) -> pl.Series:
    """Self time of each row, without its callees (ns); null where it has none."""

    def ns(column: str) -> pl.Series:
        seconds = rows[column].str.extract(_NUMBER, 1).cast(pl.Float64, strict=False)
        return (seconds * 1e9).round().cast(pl.Int64, strict=False)

    if "self" in times or not stacked:
        return ns(times.get("self") or times.get("") or times["total"])
    whole = ns(times.get("total") or times[""])
    if not whole.null_count() < whole.len():
        hint = 'vtune -report top-down -r RESULT -format csv -column "CPU Time:Self"'
        raise ReadError(
            "the report has total times only as shares", expected="times in seconds", hint=hint
        )
    totals = whole.fill_null(0).to_list()
    own = list(totals)
    for total, caller in zip(totals, callers, strict=True):
        if caller is not None:
            own[caller] -= total
    return pl.Series([max(0, value) for value in own], dtype=pl.Int64).set(whole.is_null(), None)


def _callers(depths: list[int]) -> list[int | None]:
    """Number of the row that each row is called from."""
    callers: list[int | None] = []
    open_rows: list[int] = []
    for row, depth in enumerate(depths):
        while open_rows and depths[open_rows[-1]] >= depth:
            open_rows.pop()
        callers.append(open_rows[-1] if open_rows else None)
        open_rows.append(row)
    return callers


READER: Final = Reader(
    name="vtune",
    version=2,
    what="a CSV report of VTune (hotspots, top-down)",
    sniff=_sniff,
    read=_read,
    alone=True,
)
