"""Functions for readers of text: the content of a file as text, CSV as columns of text, and the trace of one file."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import polars as pl

from llmprof.errors import ReadError
from llmprof.readers.common.combine import combine
from llmprof.readers.common.event_stream import Blocks
from llmprof.readers.common.reader import Part
from llmprof.trace import Trace

MOST_TEXT_BYTES: Final = 1 << 30
"""Largest size of a report, since reports are read as a whole."""

MOST_NS: Final = 2**62
"""Largest accepted time in ns."""


def bytes_of(path: Path, *, most: int = MOST_TEXT_BYTES) -> tuple[bytes, str]:
    """Content of a file, plain or gzip, and the reason why it ends early (empty if it is complete)."""
    blocks, held, size = Blocks(path), [], 0
    for block in blocks:
        held.append(block)
        size += len(block)
        if size > most:
            raise ReadError(
                f"{path.name} has more than {most >> 20} MiB",
                expected="a report of a profiler",
                hint="export a part of the recording",
            )
    return b"".join(held), blocks.damage


def json_of(path: Path, expected: str) -> tuple[Any, str]:
    """JSON document of a file, plain or gzip, and the reason why the file ends early (empty if it is complete)."""
    data, damage = bytes_of(path)
    try:
        return msgspec.json.decode(data), damage
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ReadError(
            f"{path.name} is not complete JSON: {error}", expected=expected, hint="record or export it again"
        ) from error


def text_of(data: bytes) -> str:
    """Bytes as text: UTF-8, or UTF-16 if they begin with its mark; invalid bytes are replaced."""
    name = "utf-16" if data.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig"
    return data.decode(name, errors="replace").replace("\0", "")


def table_of(text: str, *, separator: str = ",") -> tuple[pl.DataFrame, int]:
    """Rows of CSV with a heading as text, and the number of rows with surplus (dropped) or missing (null) cells."""
    rows = csv.reader(text.splitlines(), delimiter=separator)
    try:
        heading = next(rows, [])
        body = [row for row in rows if row]
    except csv.Error as error:
        raise ReadError(f"the table cannot be read: {error}", expected="CSV with a heading") from error
    names = [name.strip() for name in heading]
    if not any(names):
        raise ReadError("the table has no heading", expected="CSV with a heading")
    width = len(names)
    ragged = sum(len(row) != width for row in body)
    unique = [name if names.index(name) == place else f"{name} ({place})" for place, name in enumerate(names)]
    columns = {
        name: [row[place].strip() or None if place < len(row) else None for row in body]
        for place, name in enumerate(unique)
    }
    return pl.DataFrame(columns, schema=dict.fromkeys(unique, pl.String)), ragged


def trace_of(
    path: Path,
    name: str,
    tables: Mapping[str, pl.DataFrame],
    *,
    head: Mapping[str, Any] | None = None,
    events: int = 0,
    notes: list[str] | None = None,
    damage: str = "",
) -> Trace:
    """Make the trace of one file that is a whole trace."""
    kept = sum(frame.height for frame in tables.values())
    notes = [*(notes or []), *([f"the file ends early: {damage}"] if damage else [])]
    coverage = {
        "file": path.name,
        "events": max(events, kept),
        "kept": kept,
        "bytes": path.stat().st_size if path.is_file() else 0,
        "notes": notes,
    }
    return Trace(*combine([Part(path, dict(tables), dict(head or {}), coverage)], name))
