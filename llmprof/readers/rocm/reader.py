"""Readers of ROCm's profilers: CSV of rocprofv3 (a file or a folder), databases of rpd and rocprofv3."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from llmprof.readers.common.reader import Part, Probe, Reader, Request
from llmprof.readers.rocm import database, printed
from llmprof.storage import sqlite


def _is_printed(probe: Probe) -> bool:
    if probe.is_folder:
        return bool(printed.files(probe.path))
    return printed.kind_of(printed.cells_of(probe.start.split(b"\n", 1)[0])) is not None


def _read_printed(path: Path, request: Request) -> list[Part]:
    if not path.is_dir():
        return [printed.part([path])]
    return [printed.part(paths) for paths in printed.files(path).values()]


def _is_database(probe: Probe) -> bool:
    return probe.start.startswith(sqlite.MAGIC) and database.is_database(probe.path)


def _read_database(path: Path, request: Request) -> list[Part]:
    return database.read(path)


READERS: Final = (
    Reader(
        name="rocprof",
        version=1,
        what="CSV of rocprofv3 (a file, or the folder of a run)",
        sniff=_is_printed,
        read=_read_printed,
    ),
    Reader(
        name="rpd",
        version=1,
        what="a database of rpd or of rocprofv3 (rocpd)",
        sniff=_is_database,
        read=_read_database,
        suffixes=(".rpd", ".db"),
        database=lambda path, _: path,
    ),
)
