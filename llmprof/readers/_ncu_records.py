"""Cutting the output of ``ncu --csv`` into records, whatever else was printed in between."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

_HEADER: Final = re.compile(r'"ID","Process ID","Process Name"')
_HEADER_PLAIN: Final = re.compile(r"^ID,Process ID,")
_ROW: Final = re.compile(r'"\d+","\d+","|"","","')
_ROW_PLAIN: Final = re.compile(r"\d+,\d+,|,,")
_TOOL: Final = re.compile(r"==(PROF|WARNING|ERROR|LOG)==")
_LINE_BREAK: Final = "\x1e"
"""Stands for a line break inside a record while records are parsed together."""

_TOOLS_KEPT: Final = 20
_LONGEST: Final = 60_000
"""Characters after which a row whose quotes are open takes in no more lines; csv has a limit as well."""


@dataclass
class Segment:
    """Rows that follow one heading: one page of one run."""

    header: list[str]
    rows: list[list[str]] = field(default_factory=list)
    open_rows: list[int] = field(default_factory=list)
    """Numbers of the rows whose quotes do not close."""
    quoted: bool = True
    """Whether every cell is in quotes, as the profiler writes it; programs that rewrote the file may not."""

    @property
    def is_long(self) -> bool:
        """Whether it is the details page, a row a metric; else the raw page, a row a launch."""
        return "Metric Name" in self.header


@dataclass
class Found:
    """What a text holds: pages, what ncu said, and how many lines were neither."""

    segments: list[Segment] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    other_lines: int = 0


def split(text: str) -> Found:
    """Pages of a text.

    A row begins with the numbers of launch and process. A line that does not, continues a row whose quotes are open
    (the text of a rule), and otherwise was printed by the program or by ncu itself.
    """
    found = Found()
    records: list[str] = []
    segment: Segment | None = None
    quoted, is_open = True, False
    for line in _lines(text):
        if _HEADER.match(line) or _HEADER_PLAIN.match(line):
            _close(segment, records)
            quoted = line.startswith('"')
            segment = Segment(next(csv.reader([line])), quoted=quoted)
            found.segments.append(segment)
            records, is_open = [], False
        elif _TOOL.match(line):
            found.said = [*found.said, line][-_TOOLS_KEPT:]
            found.other_lines += 1
        elif segment is not None and (start := _row_start(line, quoted=quoted, is_open=is_open)) is not None:
            if start and not is_open:
                found.other_lines += 1
            records.append(line[start:])
            is_open = line.count('"', start) % 2 == 1
        elif is_open and len(records[-1]) < _LONGEST:
            records[-1] += _LINE_BREAK + line
            is_open = line.count('"') % 2 == 0
        elif line.strip():
            found.other_lines += 1
    _close(segment, records)
    return found


def _lines(text: str) -> Iterator[str]:
    """Lines; a heading that follows a row cut in its middle, as the output of a second run does, gets its own."""
    for line in text.lstrip("\ufeff").replace("\r\n", "\n").split("\n"):
        header = _HEADER.search(line)
        if header and header.start():
            yield line[: header.start()]
            yield line[header.start() :]
        else:
            yield line


def _row_start(line: str, *, quoted: bool, is_open: bool) -> int | None:
    """Where in a line a row begins: behind a progress bar that did not end its line, for instance."""
    if not quoted:
        return 0 if _ROW_PLAIN.match(line) else None
    if _ROW.match(line):
        return 0
    row = None if is_open else _ROW.search(line)
    return row.start() if row else None


def _close(segment: Segment | None, records: list[str]) -> None:
    """Parse the records of a segment that ended."""
    if segment is None:
        return
    segment.open_rows = [i for i, record in enumerate(records) if record.count('"') % 2]
    closed = [record for record in records if record.count('"') % 2 == 0]
    parsed = list(csv.reader(closed))
    if len(parsed) != len(closed):  # a quote in the wrong place joined rows
        parsed = [next(csv.reader([record]), []) for record in closed]
    rows = iter(parsed)
    is_open = set(segment.open_rows)
    for i, record in enumerate(records):
        row = next(csv.reader([record]), []) if i in is_open else next(rows)
        segment.rows.append([cell.replace(_LINE_BREAK, "\n") for cell in row] if _LINE_BREAK in record else row)
