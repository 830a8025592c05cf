"""Record type of a reader, the request that it gets, the part of a trace that it returns, and its errors."""

from __future__ import annotations

import csv
import lzma
import re
import sqlite3
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import polars as pl

from llmprof import communication, schema
from llmprof.errors import LlmprofError, ReadError, SchemaError, listed
from llmprof.progress import Progress
from llmprof.readers.common.event_stream import Blocks
from llmprof.storage import files
from llmprof.text import counted, left_out
from llmprof.trace import Trace

_RANK_IN_NAME = (
    re.compile(r"(?<![a-z])rank[-_.]?(\d{1,5})(?!\d)", re.IGNORECASE),
    re.compile(r"(?<![a-z])worker[-_.]?(\d{1,4})(?!\d)", re.IGNORECASE),  # longer ones are processes and times
    re.compile(r"(?<![a-z])TP-(\d{1,4})(?!\d)(?!.*(?:DP|PP|EP)-[1-9])"),  # SGLang
)

MOST_RANKS = 1 << 17
"""Largest accepted number of ranks; a larger number in a file is ignored, so that it cannot cost memory."""


@dataclass(slots=True)
class Part:
    """Tables of one file, without the column ``rank`` and with absolute times in ns, and facts about the file."""

    path: Path
    tables: dict[str, pl.DataFrame]
    head: dict[str, Any]
    """Facts that the file states: ``rank``, ``world_size``, ``backend``, ``devices``, ``device_count``, ``groups``,
    ``versions`` and ``options``; unknown ones are missing."""
    coverage: dict[str, Any]
    """Counts of what was read and lost: ``events``, ``kept``, ``matched`` (told by two files, and counted once),
    ``skipped``, ``bytes``, ``lost_bytes``, ``lost_pieces``; and ``notes``, which become warnings."""

    @property
    def says_rank(self) -> bool:
        """Whether the file itself states its rank."""
        rank = self.head.get("rank")
        return isinstance(rank, int) and 0 <= rank < MOST_RANKS

    @property
    def rank(self) -> int | None:
        """Rank that the file states, else the rank in its name, else None; a front end has no rank."""
        if self.head.get("front_end"):
            return None
        if self.says_rank:
            return int(self.head["rank"])
        for pattern in _RANK_IN_NAME:
            if match := pattern.search(self.path.name):
                return int(match[1])
        return None

    @property
    def on_device(self) -> bool:
        """Whether the file has kernels or copies."""
        return any(self.tables[t].height for t in ("kernels", "copies") if t in self.tables)

    def span_ns(self) -> tuple[int, int] | None:
        """First start and last end of the events in the file (absolute ns); None if it is empty."""
        spans: list[tuple[Any, Any]] = [
            (frame["start_ns"].min(), (frame["start_ns"] + frame["dur_ns"]).max())
            for frame in self.tables.values()
            if "start_ns" in frame.columns and frame.height
        ]
        if not spans:
            tables = [self.tables[name] for name in ("samples", "memory") if name in self.tables]
            sampled = [frame["time_ns"].drop_nulls() for frame in tables if "time_ns" in frame.columns]
            spans = [(times.min(), times.max()) for times in sampled if times.len()]
        return (min(s[0] for s in spans), max(s[1] for s in spans)) if spans else None

    @property
    def rows(self) -> dict[str, int]:
        """Number of rows by table."""
        return {name: frame.height for name, frame in self.tables.items()}

    def processes(self) -> set[int]:
        """Ids of the host processes that the events belong to."""
        tables = [self.tables[name] for name in ("ops", "runtime", "markers") if name in self.tables]
        numbers = [frame["process"].drop_nulls().unique() for frame in tables if "process" in frame.columns]
        return {number for column in numbers for number in column if number > 0}

    def launches(self) -> bool:
        """Whether the file has calls that launch kernels."""
        calls = self.tables.get("runtime")
        return calls is not None and bool(calls["name"].str.contains("(?i)launch").any())

    def losses(self) -> list[str]:
        """Sentences about content that was lost or changed while reading."""
        c, name, out = self.coverage, self.path.name, []
        out += [f"{name}: {note}" for note in c.get("notes", [])]
        if reason := c.get("truncated") or ("parts of it are not valid JSON" if c.get("lost_bytes") else ""):
            out.append(
                f"{name}: {reason}; {c.get('lost_bytes', 0):,} of {c.get('bytes', 0):,} bytes (about "
                f"{counted(c.get('lost_pieces', 0), 'event')}) were lost, and {counted(c.get('events', 0), 'event')} "
                f"{'was' if c.get('events') == 1 else 'were'} read"
            )
        if c.get("unread_bytes"):
            out.append(f"{name}: the last {c['unread_bytes']:,} bytes of the file could not be read")
        if c.get("repaired"):
            out.append(f"{name}: NaN, control characters or invalid UTF-8 were replaced")
        if c.get("wrong_types"):
            out.append(f"{name}: {left_out(c['wrong_types'], 'field', 'of a wrong type')}")
        for key in ("rank", "world_size"):
            number = self.head.get(key)
            if isinstance(number, int) and number > MOST_RANKS:
                out.append(f"{name} states the {key.replace('_', ' ')} {number:,}, which is too large: it is ignored")
        if lost := c.get("skipped", {}).get(NO_TIME):
            out.append(f"{name}: {left_out(lost, 'event', 'without a time or name')}")
        if "events" in c and not c["events"]:
            out.append(f"{name} has no event: was the profiler ever active?")
        elif "events" in c and not c.get("kept"):
            out.append(f"{name}: none of its {c['events']:,} events belongs to a table")
        return out


NO_TIME = "event without a time or name"
"""Reason for leaving out an event, as a key of ``coverage["skipped"]``."""


Tables = str | Iterable[str] | Mapping[str, Iterable[str] | None]


@dataclass(frozen=True, slots=True)
class Wanted:
    """Tables and columns that the caller of :func:`llmprof.read` wants to keep."""

    asked: Mapping[str, frozenset[str] | None] | None = None
    """Columns by table, where None means all columns of a table; None instead of the mapping means all tables."""

    @classmethod
    def of(cls, tables: Tables | None) -> Wanted:
        """Tables and columns in the argument ``tables`` of :func:`llmprof.read`."""
        if tables is None:
            return cls()
        if isinstance(tables, str):
            tables = (tables,)
        columns_by_table = tables if isinstance(tables, Mapping) else dict.fromkeys(tables)
        if not columns_by_table:
            raise LlmprofError("tables= is empty", expected=f"some of {listed(schema.TABLES)}")
        if unknown := [name for name in columns_by_table if name not in schema.TABLES]:
            raise LlmprofError(f"there is no table {listed(unknown)}", expected=f"some of {listed(schema.TABLES)}")
        columns_asked = {
            name: None if columns is None else frozenset(columns) for name, columns in columns_by_table.items()
        }
        for name, columns in columns_asked.items():
            columns_known = schema.TABLES[name].schema
            if unknown := sorted(
                c for c in columns or () if c not in columns_known and not c.startswith(schema.VENDOR_PREFIXES)
            ):
                raise LlmprofError(
                    f"table {name} has no column {listed(unknown)}", expected=f"some of {listed(columns_known)}"
                )
        return cls(columns_asked)

    def __contains__(self, table: str) -> bool:
        return self.asked is None or table in self.asked

    def has(self, table: str, column: str) -> bool:
        """Whether a column of a table is needed."""
        if self.asked is None:
            return True
        columns = self.asked.get(table, frozenset())
        return columns is None or column in columns

    def columns_of(self, table: str) -> frozenset[str] | None:
        """Needed columns of a table; None for all."""
        return None if self.asked is None else self.asked[table]

    def narrowed(self, frame: pl.DataFrame, table: str) -> pl.DataFrame:
        """The frame with the needed columns and those that are never null."""
        columns = self.columns_of(table)
        if columns is None:
            return frame
        needed = {c.name for c in schema.TABLES[table].columns if not c.nullable}
        return frame.select(c for c in frame.columns if c in columns or c in needed)

    def with_sources(self) -> Wanted:
        """The tables that have to be read: for collectives, also kernels and operators."""
        if self.asked is None or "collectives" not in self.asked:
            return self
        asked = dict(self.asked)
        for name, columns in communication.SOURCES.items():
            columns_of_table = asked.get(name, frozenset())
            asked[name] = None if columns_of_table is None else columns_of_table | columns
        return Wanted(asked)

    def part_of(self, trace: Trace, *, database: Path | None = None) -> Trace:
        """The needed part of a trace that was read :meth:`with_sources`."""
        if self.asked is None:
            return Trace(trace.recorded, trace.meta, trace.coverage, database=database) if database else trace
        tables = dict(trace.recorded)
        if "collectives" in self and trace.asked in (None, self.with_sources().listed()):
            collectives = communication.collectives(tables, trace.device_ranks)
            tables |= {} if collectives is None else {"collectives": collectives}
        tables = {name: self.narrowed(frame, name) for name, frame in tables.items() if name in self}
        return Trace(tables, trace.meta, trace.coverage | self.covered(tables), database=database)

    def covered(self, tables: Mapping[str, pl.DataFrame]) -> dict[str, Any]:
        """Entries of the coverage: the tables that were requested, and the rows that were kept."""
        if self.asked is None:
            return {}
        return {
            "asked": self.listed(),
            "kept": sum(frame.height for name, frame in tables.items() if name != "collectives"),
        }

    def listed(self) -> dict[str, list[str] | None] | None:
        """Needed tables and columns as lists, for the coverage and the key of the cache."""
        if self.asked is None:
            return None
        return {
            name: None if self.asked[name] is None else sorted(self.asked[name] or ()) for name in sorted(self.asked)
        }


START_BYTES: Final = 64 << 10
"""Number of bytes at the beginning of a file that a reader gets first."""

_MOST_BYTES: Final = 16 << 20


class Probe:
    """A file or folder that each reader inspects in turn; its beginning is read only once."""

    def __init__(self, path: Path) -> None:
        self.path = files.regular(path)
        self._blocks: Iterator[bytes] | None = None
        self._read = b""

    @cached_property
    def is_folder(self) -> bool:
        """Whether it is a folder."""
        return self.path.is_dir()

    @cached_property
    def start(self) -> bytes:
        """First 64 KiB of a file, decompressed if it is gzip; empty for a folder."""
        return b"" if self.is_folder else self._first(START_BYTES)[:START_BYTES]

    def growing(self) -> Iterator[bytes]:
        """The beginning of a file, 64 KiB of it, then each time twice as much, up to its end or 16 MiB."""
        size = START_BYTES
        while not self.is_folder:
            yield self._first(size)[:size]
            if size >= _MOST_BYTES or len(self._read) < size:
                return
            size *= 2

    def _first(self, size: int) -> bytes:
        if self._blocks is None:  # an empty file is not opened: the first read of one in /proc may never end
            self._blocks = iter(Blocks(self.path, START_BYTES) if self.path.stat().st_size else ())
        while len(self._read) < size and (block := next(self._blocks, b"")):
            self._read += block
        return self._read


@dataclass(frozen=True, slots=True)
class Request:
    """The options that the caller of :func:`llmprof.read` gave."""

    wanted: Wanted = Wanted()
    """Tables and columns to keep; a reader may also read others."""
    python_functions: bool = True
    """Whether to keep the Python functions of ``with_stack=True``."""
    progress: Progress | None = None
    """Called during reading with the name of a file, the bytes that were read, and its size."""
    workers: int = 1
    """Number of processes that may share the reading of one file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """Reader of one format.

    A reader is a constant ``READER`` in the module that reads the format; :mod:`llmprof.readers.registry` has one line
    for it. Another package names its reader in the group ``llmprof.readers`` of its entry points.
    """

    name: str
    """Name of the format: ``meta["format"]`` of its traces, and ``format=`` of :func:`llmprof.read`."""
    version: int
    """Version of the reader, a part of the cache's key; raise it whenever the same file would give other frames."""
    what: str
    """Description of the format, which can follow "a file of": ``Chrome trace JSON (PyTorch profiler)``."""
    sniff: Callable[[Probe], bool]
    """Function that tells by the content whether a file or folder has this format. It sees every file, so it must be
    quick."""
    read: Callable[[Path, Request], list[Part] | Trace] | None = None
    """Function that reads a file or folder. It returns parts with absolute times, which are joined with those of the
    other files, or a whole trace if :attr:`alone` is set. None if such files are not traces; :attr:`instead` then names
    the function that reads them."""
    instead: str = ""
    """Function to call for a format that is not a trace."""
    suffixes: tuple[str, ...] = ()
    """Suffixes of the files to look at in a folder; a folder in it is looked at whatever its name."""
    alone: bool = False
    """Whether one file is a whole trace: it is not put together with others, and not looked for in folders."""
    deferred: bool = False
    """Whether the tables of its traces are loaded on first access; such a trace is not kept in the cache."""
    choose: Callable[[list[Path]], list[Path]] | None = None
    """Which of the files of a folder to read, where some hold the same recording."""
    settle: Callable[[Sequence[Part]], None] | None = None
    """Looks at the parts of several files together, before they become a trace: gives them ranks that differ."""
    database: Callable[[Path, Request], Path | None] | None = None
    """SQLite file behind a file, for :meth:`llmprof.Trace.sql`."""
    one_core: bool = False
    """Whether it keeps one core busy, so that several files are read by several processes at the same time."""
    package: str = ""
    """Name and version of the package that a plug-in is in; set by the registry."""

    def options(self, request: Request) -> dict[str, Any]:
        """Facts that the content of a cached trace depends on, in addition to the file."""
        return {
            "reader": self.name,
            "version": self.version,
            "package": self.package,
            "python_functions": request.python_functions,
        }


BY_CONTENT: Final = (
    pl.exceptions.PolarsError,
    pl.exceptions.PanicException,  # not an Exception: a panic of Rust
    sqlite3.Error,
    csv.Error,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    EOFError,
    ArithmeticError,
    AttributeError,
    AssertionError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
"""Exceptions that unexpected content can raise in libraries and in our own code."""


@contextmanager
def border(what: str) -> Iterator[None]:
    """Turn exceptions that a file causes into a :class:`~llmprof.errors.ReadError` that names it."""
    try:
        yield
    except LlmprofError as error:
        if isinstance(error, ReadError | SchemaError):
            error.about(what)
        raise
    except MemoryError as error:
        raise ReadError(
            f"there is not enough memory to read {what}",
            hint="read fewer tables with tables=, or fewer ranks at a time",
        ) from error
    except OSError as error:
        raise ReadError(
            f"cannot read {what}: {error.strerror or error}",
            hint="check that it exists, that you may read it, and that no process replaces it meanwhile",
        ) from error
    except BY_CONTENT as error:
        message = str(error).strip().splitlines()
        raise ReadError(
            f"{what} has content that its reader does not understand "
            f"({type(error).__name__}{f': {message[0][:200]}' if message else ''})",
            expected="the file that a profiler wrote",
            hint="record or export it again; if nothing changed the file, send us a copy that llmprof redact made",
        ) from error
