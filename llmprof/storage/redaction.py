"""Copies of profiler files without what they say of people and machines.

Nsight Systems stores the environment of the profiled processes (API keys among it), command lines, users, hosts and
paths: in META_DATA_CAPTURE, TARGET_INFO_SYSTEM_ENV, PROCESSES, ProcessStreams, ANALYSIS_FILE, DIAGNOSTIC_EVENT, and
as rows of StringIds that no event refers to. A copy is made of what is known to be measurements, never of a whole file
with pieces cut out, so nothing is left in free pages. Torch traces hold host names and paths.
"""

from __future__ import annotations

import gzip
import os
import re
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import polars as pl

from llmprof.errors import OutputError, ReadError
from llmprof.storage import sqlite

REMOVED = "<removed>"

PATH_PATTERN = (
    r"(?:/(?:home|root|Users|mnt|data|tmp|var|opt|usr|workspace|workdir|scratch|nfs|lustre|gpfs|srv|private)/|"
    r"[A-Za-z]:\\\\)[^\s\"'<>|,;:()\]}]*"
)
"""Absolute paths as they stand in names and messages."""

_KEPT_TABLES = re.compile(
    r"^(?:CUPTI_ACTIVITY_|ENUM_|NVTX_|CUDA_|GPU_|OSRT_API$|SCHED_EVENTS$|MPI_|CUDNN_|CUBLAS_|PROFILER_OVERHEAD$|"
    r"ANALYSIS_DETAILS$|TARGET_INFO_(?:GPU|GPU_METRICS|CUDA_\w+|SESSION_START_TIME)$|"
    r"META_DATA_EXPORT$|EXPORT_META_DATA$)"
)
_CAPTURE_KEYS = re.compile(r"^(?:CAPTURE_EVENT_TYPE$|RATE_HZ$|START_TRIGGER$|STOP_TRIGGER$|RUN_DURATION_MS$|"
                           r"(?:PROCESS_\d+:)?(?:CUDA_|COLLECT_))")  # fmt: skip
_SYSTEM_KEYS = re.compile(
    r"^(?:Cpu(?:Cores|SpeedMhz|Architecture)|NvDriverVersion|CudaDriverVersion|KernelVersion|Has|Supports)"
)
_PROCESS_NAME = re.compile(r"(?:VLLM::)?(?:Worker|EngineCore)[A-Za-z0-9_]{0,24}|\bpython[\d.]*(?=\s|$)")
_STRING_COLUMNS = ("nameId", "textId", "demangledName", "shortName", "mangledName")
_LEAST_SECRET = 6

Row = tuple[object, ...]
_COMMON_VALUES = re.compile(
    r"^(?:[\d.\s]*|true|false|local.*|x86_64.*|aarch64.*|linux.*|python3?|none|default)$", re.IGNORECASE
)

_HOST_KEYS = re.compile(
    rb'("(?:host_?name|user_?name|tw_user|mast_\w+|ai_rm_attribution|traceName|logical_server\w*|tw_\w+)"\s*:\s*)"(?:[^"\\]|\\.)*"'
)
_PATH = re.compile(PATH_PATTERN)
_JSON_PATH = re.compile(PATH_PATTERN.encode())


def redact(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> pl.DataFrame:
    """Write a copy of a profiler's file without secrets, users, hosts and paths.

    Parameters
    ----------
    source : path
        An SQLite export of Nsight Systems, or a Chrome trace (plain or gzip).
    target : path
        The copy; it must not exist.

    Returns
    -------
    polars.DataFrame
        ``place, what, count``: what was removed, never its content.

    Raises
    ------
    ReadError
        The source cannot be read.
    OutputError
        The target exists or cannot be written.
    """
    before, after = Path(source), Path(target)
    if not before.is_file():
        raise ReadError(f"{before} is no file", expected="a profiler's file")
    if after.exists():
        raise OutputError(f"{after} exists", hint="choose another name: a copy never replaces a file")
    try:
        handle, name = tempfile.mkstemp(prefix=f".{after.name}-", dir=after.parent)
        os.close(handle)
    except OSError as error:
        raise OutputError(f"cannot write to {after.parent}: {error.strerror or error}") from error
    work = Path(name)
    try:
        with before.open("rb") as file:
            is_database = file.read(len(sqlite.MAGIC)) == sqlite.MAGIC
        removed = _database(before, work) if is_database else _json(before, work)
        work.replace(after)
    finally:
        work.unlink(missing_ok=True)
    rows = [(place, what, count) for (place, what), count in sorted(removed.items()) if count]
    return pl.DataFrame(rows, schema={"place": pl.String, "what": pl.String, "count": pl.Int64}, orient="row")


def scrub(text: pl.Expr) -> pl.Expr:
    """Text without absolute paths."""
    return text.str.replace_all(PATH_PATTERN, REMOVED)


def _database(source: Path, target: Path) -> Counter[tuple[str, str]]:
    with sqlite.connect(source) as old:
        names = [name for (name,) in old.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        new = sqlite3.connect(target)
        try:
            copier = _Copier(old, new, _secrets(old, set(names)))
            for name in names:
                copier.copy(name)
            copier.copy_strings()
            new.commit()
        finally:
            new.close()
    return copier.removed


class _Copier:
    """Copies tables row by row into a new database, and counts what stays behind."""

    def __init__(self, old: sqlite3.Connection, new: sqlite3.Connection, secrets: re.Pattern[str] | None) -> None:
        self.old, self.new, self.secrets = old, new, secrets
        self.used: set[int] = set()
        self.removed: Counter[tuple[str, str]] = Counter()

    def copy(self, name: str) -> None:
        """Copy what is known to be harmless of a table; StringIds comes last, see :meth:`copy_strings`."""
        columns = sqlite.columns(self.old, name)
        if name in ("META_DATA_CAPTURE", "TARGET_INFO_SYSTEM_ENV") and "name" in columns:
            keys, at = (_CAPTURE_KEYS if name == "META_DATA_CAPTURE" else _SYSTEM_KEYS), columns.index("name")
            self._rows(name, columns, lambda row: row if keys.match(str(row[at])) else None)
        elif name == "PROCESSES" and "name" in columns:
            at = columns.index("name")
            self._rows(name, columns, lambda row: (*row[:at], _process_name(row[at]), *row[at + 1 :]))
        elif _KEPT_TABLES.match(name):
            self._rows(name, columns, lambda row: row)
        elif name != "StringIds":
            count = self.old.execute(f"SELECT count(*) FROM {sqlite.quoted(name)}").fetchone()  # noqa: S608
            self.removed[name, "whole table"] += count[0]

    def copy_strings(self) -> None:
        """Copy the texts that a copied row refers to."""
        columns = sqlite.columns(self.old, "StringIds")
        if "id" in columns:
            at = columns.index("id")
            self._rows("StringIds", columns, lambda row: row if row[at] in self.used else None)

    def _rows(self, name: str, columns: list[str], keep: Callable[[Row], Row | None]) -> None:
        listed, table = ", ".join(map(sqlite.quoted, columns)), sqlite.quoted(name)
        self.new.execute(f"CREATE TABLE {table} ({listed})")
        ids = [i for i, column in enumerate(columns) if column in _STRING_COLUMNS]
        insert = f"INSERT INTO {table} VALUES ({', '.join('?' * len(columns))})"  # noqa: S608
        cursor = self.old.execute(f"SELECT {listed} FROM {table}")  # noqa: S608
        while rows := cursor.fetchmany(10_000):
            kept = [found for row in rows if (found := keep(row)) is not None]
            self.removed[name, "rows"] += len(rows) - len(kept)
            if len(kept) == len(rows):
                self.removed[name, "names"] += sum(a != b for a, b in zip(rows, kept, strict=True))
            for i in ids:
                self.used.update(value for row in kept if isinstance(value := row[i], int))
            self.new.executemany(insert, [tuple(self._clean(value, name) for value in row) for row in kept])

    def _clean(self, value: object, place: str) -> object:
        if isinstance(value, bytes):
            self.removed[place, "binary values"] += 1
            return None
        if not isinstance(value, str):
            return value
        text, paths = _PATH.subn(REMOVED, value)
        found = 0
        if self.secrets is not None:
            text, found = self.secrets.subn(REMOVED, text)
        self.removed[place, "paths in text"] += paths
        self.removed[place, "values of the environment or of a command line in text"] += found
        return text


def _process_name(name: object) -> str:
    """What a process is for, without its command line: a worker with its rank, python, or just a process."""
    match = _PROCESS_NAME.search(str(name))
    return match[0] if match else "process"


def _secrets(connection: sqlite3.Connection, tables: set[str]) -> re.Pattern[str] | None:
    """Values that the capture's own metadata holds: whatever of them stands elsewhere goes, too."""
    values: set[str] = set()
    for table in ("META_DATA_CAPTURE", "TARGET_INFO_SYSTEM_ENV"):
        if table not in tables or "value" not in sqlite.columns(connection, table):
            continue
        keys = _CAPTURE_KEYS if table == "META_DATA_CAPTURE" else _SYSTEM_KEYS
        for name, value in connection.execute(f"SELECT name, value FROM {table}"):  # noqa: S608 (one of the two)
            if isinstance(value, str) and not keys.match(str(name)):
                values.add(value.strip())
                values.add(value.partition("=")[2].strip())
    kept = sorted((v for v in values if len(v) >= _LEAST_SECRET and not _COMMON_VALUES.match(v)), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, kept))) if kept else None


def _json(source: Path, target: Path) -> Counter[tuple[str, str]]:
    removed: Counter[tuple[str, str]] = Counter()
    with source.open("rb") as file:
        zipped = file.read(2) == b"\x1f\x8b"
    reading = gzip.open if zipped else open
    rest = b""
    try:
        with reading(source, "rb") as old, (gzip.open if zipped else open)(target, "wb") as new:
            while block := old.read(1 << 22):
                text = rest + block
                cut = max(text.rfind(b"\n"), text.rfind(b"{"))
                text, rest = (text[:cut], text[cut:]) if cut > 0 else (b"", text)
                new.write(_clean_json(text, removed))
            new.write(_clean_json(rest, removed))
    except (OSError, EOFError) as error:
        raise ReadError(f"cannot read {source.name}: {error}", hint="redact a whole file") from error
    return removed


def _clean_json(text: bytes, removed: Counter[tuple[str, str]]) -> bytes:
    text, names = _HOST_KEYS.subn(rb'\1"' + REMOVED.encode() + b'"', text)
    text, paths = _JSON_PATH.subn(REMOVED.encode(), text)
    removed["trace", "values of host, user and job keys"] += names
    removed["trace", "paths in text"] += paths
    return text
