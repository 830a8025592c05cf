"""Readers of nvprof: CSV that it printed, and its sessions."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from llmprof.errors import ReadError
from llmprof.readers.common.reader import Part, Probe, Reader, Request
from llmprof.readers.common.summaries import text_of
from llmprof.readers.nvprof import printed, session
from llmprof.storage import sqlite
from llmprof.trace import Trace


def _is_printed(probe: Probe) -> bool:
    if probe.is_folder or b"\0" in probe.start[:1024]:
        return False
    try:
        rows = printed.rows_of(text_of(probe.start[: 1 << 14]))
    except ReadError:
        return False
    return any(printed.is_heading([cell.strip() for cell in cells]) for cells in rows[:40])


def _is_session(probe: Probe) -> bool:
    return probe.start.startswith(sqlite.MAGIC) and session.is_session(probe.path)


def _read_printed(path: Path, request: Request) -> Trace:
    return printed.read(path)


def _read_session(path: Path, request: Request) -> list[Part]:
    return session.read(path)


READERS: Final = (
    Reader(
        name="nvprof-session",
        version=1,
        what="a session of nvprof (SQLite, .nvvp)",
        sniff=_is_session,
        read=_read_session,
        suffixes=(".nvvp", ".nvprof"),
        database=lambda path, _: path,
    ),
    Reader(
        name="nvprof",
        version=1,
        what="CSV that nvprof printed",
        sniff=_is_printed,
        read=_read_printed,
        alone=True,
    ),
)
