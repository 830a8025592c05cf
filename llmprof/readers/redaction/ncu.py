"""Redacted copies of Nsight Compute's CSV: its pages, without names of hosts and the output of
the program.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Final

from llmprof.errors import ReadError, UnknownFormatError
from llmprof.readers.ncu import reader
from llmprof.readers.ncu.reader import LAUNCH, Segment, split_pages
from llmprof.readers.redaction.chrome import process_name
from llmprof.trace.storage.pseudonyms import Ledger, writing

_COLUMNS: Final = frozenset(LAUNCH) | {
    "Section Name",
    "Metric Name",
    "Metric Unit",
    "Metric Value",
    "Body Item Label",
    "Rule Name",
    "Rule Type",
    "Rule Description",
    "Estimated Speedup Type",
    "Estimated Speedup",
    "Device Name",
}
REPORT_HINT: Final = (
    "ncu --import FILE.ncu-rep --csv --page raw --print-units base > raw.csv, then redact the CSV"
)
_NAMES: Final = frozenset(
    {"Kernel Name", "Metric Name", "Rule Name", "Section Name", "Metric Value"}
)
"""Columns that hold names; in others only known words stay."""
_HIDDEN: Final = frozenset({"Host Name", "Process Name", "Kernel Time"})


def copy_ncu(source: Path, target: Path, ledger: Ledger) -> None:
    """Write a copy of CSV of ``ncu --csv``."""
    data, _ = reader.content(source)
    if reader.file_kind(data[: reader.HEAD]) == "report":
        raise ReadError(
            f"{source.name} is a report of Nsight Compute, which is not redacted", hint=REPORT_HINT
        )
    pages = split_pages(reader.decode_text(data))
    if not pages.segments:
        raise UnknownFormatError(
            f"{source.name} holds no page of Nsight Compute", expected=reader.EXPECTED
        )
    for segment in pages.segments:
        _learn(segment, ledger)
    ledger.leave_out("text", "lines that are not rows", pages.other_lines)
    with writing(target), target.open("w", encoding="utf-8", newline="") as file:
        for segment in pages.segments:
            file.write(_page(segment, ledger))


def _learn(segment: Segment, ledger: Ledger) -> None:
    for name in ("Host Name", "Process Name"):
        if name in segment.header:
            column = segment.header.index(name)
            cells = {row[column] for row in segment.rows if len(row) > column}
            ledger.names.know(cells, identity=name == "Host Name")


def _page(segment: Segment, ledger: Ledger) -> str:
    out = io.StringIO()
    write = csv.writer(
        out, quoting=csv.QUOTE_ALL if segment.quoted else csv.QUOTE_MINIMAL, lineterminator="\n"
    )
    known = _COLUMNS | _HIDDEN
    write.writerow(
        [name if name in known else ledger.text(name, "headings") for name in segment.header]
    )
    is_open = set(segment.open_rows)
    for i, row in enumerate(segment.rows):
        if i in is_open and segment.is_long:
            ledger.leave_out("rows", "rows that are cut off")
            continue
        cells = (
            row[:-1] if i in is_open else row
        )  # the last cell of a row that is cut off may be incomplete
        if not cells:
            continue
        if len(cells) > len(segment.header) and not segment.is_long:
            ledger.leave_out("rows", "rows that are broken")
            continue
        names = [*segment.header, *[""] * (len(cells) - len(segment.header))]
        write.writerow(
            [_cell(name, cell, ledger) for name, cell in zip(names, cells, strict=False)]
        )
    return out.getvalue()


def _cell(name: str, cell: str, ledger: Ledger) -> str:
    if name == "Process Name" and cell:
        return process_name(cell, ledger, name)
    if name in _HIDDEN and cell:
        ledger.leave_out(name, "values", example=cell)
        return ledger.names.name("host", cell) if name == "Host Name" else ""
    return ledger.text(cell, name if name in _COLUMNS else "metrics", free=name not in _NAMES)
