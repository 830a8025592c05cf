"""Redacted copies of Nsight Systems' exports: only tables and columns that are known to hold
measurements.

Nsight Systems stores the environment of the profiled processes (with API keys), command lines,
users, hosts and paths. They are in META_DATA_CAPTURE (of which the options of the recording and the
rank are kept), META_DATA_EXPORT, TARGET_INFO_SYSTEM_ENV, PROCESSES, ProcessStreams, ANALYSIS_FILE,
DIAGNOSTIC_EVENT, and in rows of StringIds that no event refers to. Rows are copied one by one into
a new file, because free pages of the old one may hold deleted texts.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Final

import polars as pl

from llmprof.errors import ReadError
from llmprof.readers.redaction.chrome import process_name
from llmprof.readers.redaction.kept import kept_names
from llmprof.trace.storage import sqlite
from llmprof.trace.storage.pseudonyms import Ledger, writing

_TABLES: Final = re.compile(
    r"CUPTI_ACTIVITY_KIND_(?:KERNEL|MEMCPY|MEMSET|RUNTIME|SYNCHRONIZATION|GRAPH_TRACE|CUDA_EVENT|OVERHEAD|OPENACC_\w{4,6})|"
    r"ENUM_[A-Z0-9_]{3,60}|NVTX_EVENTS|CUDA_(?:GPU_MEMORY_USAGE_EVENTS|GRAPH_EVENTS|GRAPH_NODE_EVENTS|"
    r"UM_[CG]PU_PAGE_FAULT_EVENTS)|GPU_(?:METRICS|CONTEXT_SWITCH_EVENTS|VIDEO_ENGINE_WORKLOAD)|OSRT_API|SCHED_EVENTS|"
    r"COMPOSITE_EVENTS|MPI_(?:OTHER|P2P|COLLECTIVES|START_WAIT|RANKS|COMMUNICATORS)\w{0,20}|CUDNN_EVENTS|CUBLAS_EVENTS|"
    r"PROFILER_OVERHEAD|ANALYSIS_DETAILS|TARGET_INFO_(?:GPU|GPU_METRICS|SESSION_START_TIME|CUDA_DEVICE|CUDA_STREAM|"
    r"CUDA_CONTEXT_INFO|CUDA_NULL_STREAM)|META_DATA_(?:EXPORT|CAPTURE)|EXPORT_META_DATA|PROCESSES|StringIds"
)
_NUMBERS: Final = kept_names("nsys_columns")
_TEXTS: Final = frozenset({"text", "value", "name", "label", "metricName", "chipName"})
_STRING_IDS: Final = (
    "nameId",
    "textId",
    "demangledName",
    "shortName",
    "mangledName",
    "kernelName",
    "funcName",
)
_EXPORT_KEYS: Final = re.compile(
    r"EXPORT_(?:PRODUCT_(?:NAME|VERSION|DATE)|SCHEMA_VERSION(?:_[A-Z]{3,6})?)"
)
_ASKED: Final = re.compile(
    r"(?:PROCESS_\d{1,6}:|MPI_TRACE_OPTIONS:)?COLLECT_[A-Z0-9_]{1,60}=(?:true|false)"
)
_EVENTS: Final = re.compile(r"CAPTURE_EVENT_TYPE=[A-Za-z]{2,30}")
_NUMBERED: Final = re.compile(
    r"(?:PROCESS_\d{1,6}:)?ENVIRONMENT_VARIABLE=\w{1,40}(?:RANK|SIZE|NODEID|PROCID|NTASKS|RANKID)=\d{1,7}|"
    r"(?:PROCESS_\d{1,6}:)?ENVIRONMENT_VARIABLE=(?:RANK|WORLD_SIZE)=\d{1,7}"
)
_TYPES: Final = re.compile(
    r"(?i)(?:(?:TINY|SMALL|BIG)?INT|INTEGER|TEXT|(?:VAR)?CHAR|REAL|DOUBLE|FLOAT|BLOB|NUM|NUMERIC)?"
)
_PLAIN: Final = re.compile(r"[\w. +-]{0,64}")
_WHOLE: Final = re.compile(r"\s*[+-]?\d{1,18}(?!\d)")
_ABOUT: Final = ("META_DATA_EXPORT", "EXPORT_META_DATA", "META_DATA_CAPTURE")
_SECRET_TABLES: Final = (
    "META_DATA_CAPTURE",
    "TARGET_INFO_SYSTEM_ENV",
    "META_DATA_EXPORT",
    "EXPORT_META_DATA",
)
_IDENTITY: Final = re.compile(r"(?i)host|user|login|(?:^|[:_])(?:WORKING_DIR|COMMAND|ARG)")

_SPELLED: Final = {name.lower(): name for name in (*_NUMBERS, *_TEXTS, *_STRING_IDS, "StringIds")}

SqliteRow = tuple[object, ...]


def copy_nsys(source: Path, target: Path, ledger: Ledger) -> None:
    """Write a copy of an SQLite export into a fresh file."""
    with sqlite.connect(source) as old:
        old.text_factory = lambda data: data.decode("utf-8", "replace")
        listed = old.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
        )
        names = [name for (name,) in listed if isinstance(name, str)]
        tables = sqlite.DatabaseTables(
            {_as_nsys(name): map(_as_nsys, sqlite.table_columns(old, name)) for name in names}
        )
        _learn(old, tables, ledger)
        with writing(target):
            new = sqlite3.connect(target)
        try:
            with writing(target):
                new.execute("PRAGMA journal_mode = OFF")
                new.execute("PRAGMA synchronous = OFF")
            _Copier(old, new, target, ledger).copy(tables)
            with writing(target):
                new.commit()
        finally:
            new.close()


def _as_nsys(name: str) -> str:
    """Name of a table or column as nsys spells it, whatever its case; other names stay as they
    are.
    """
    upper = name.upper()
    return _SPELLED.get(name.lower(), upper if _TABLES.fullmatch(upper) else name)


def _kept_pair(table: str, name: object, value: object) -> bool:
    """Whether a row of the capture's metadata holds only options of the recording or the rank."""
    if table == "META_DATA_CAPTURE":
        pair = f"{name}={value}"
        return any(pattern.fullmatch(pair) for pattern in (_ASKED, _EVENTS, _NUMBERED))
    return bool(_EXPORT_KEYS.fullmatch(str(name)) and _PLAIN.fullmatch(str(value)))


def _learn(old: sqlite3.Connection, tables: sqlite.DatabaseTables, ledger: Ledger) -> None:
    """Learn the values of the capture's metadata, so that they are replaced wherever they occur."""
    for table in _SECRET_TABLES:
        if not all(column in tables.get(table, ()) for column in ("name", "value")):
            continue
        for name, value in old.execute(f"SELECT name, value FROM {table}"):  # noqa: S608 (one of four)
            if (
                not isinstance(value, str)
                or _EXPORT_KEYS.fullmatch(str(name))
                or _kept_pair(table, name, value)
            ):
                continue
            ledger.names.know([value], identity=bool(_IDENTITY.search(str(name))))
            for part in re.split(r"[\0;\n]", value):
                ledger.names.know([part, part.partition("=")[2]])
    if "name" in tables.get("PROCESSES", ()):
        rows = old.execute("SELECT name FROM PROCESSES").fetchall()
        commands = [name for (name,) in rows if isinstance(name, str) and re.search(r"\s", name)]
        ledger.names.know(commands)


class _Copier:
    """Copies tables row by row into a new database."""

    def __init__(
        self, old: sqlite3.Connection, new: sqlite3.Connection, target: Path, ledger: Ledger
    ) -> None:
        self.old, self.new, self.target, self.ledger = old, new, target, ledger
        self.used: set[int] = set()

    def copy(self, tables: sqlite.DatabaseTables) -> None:
        """Copy all tables; StringIds is the last one, because the other tables tell which texts
        events refer to.
        """
        for name in sorted(tables, key=lambda name: name == "StringIds"):
            if not _TABLES.fullmatch(name):
                (count,) = self.old.execute(
                    f"SELECT count(*) FROM {sqlite.quoted(name)}"  # noqa: S608
                ).fetchone()
                self.ledger.leave_out("tables", "tables that no analysis needs", example=name)
                self.ledger.leave_out("tables", "rows of tables that no analysis needs", count)
                continue
            self._table(name, tables[name])

    def _table(self, name: str, columns: list[str]) -> None:
        kept = [column for column in columns if column in _NUMBERS or column in _TEXTS]
        if name in _ABOUT:
            kept = [column for column in kept if column in ("name", "value")]
        for column in set(columns) - set(kept):
            self.ledger.leave_out(name, "columns that no analysis needs", example=column)
        if not kept:
            return
        listed, table = ", ".join(map(sqlite.quoted, kept)), sqlite.quoted(name)
        with writing(self.target):
            self.new.execute(f"CREATE TABLE {table} ({self._declared(name, kept)})")
        insert = f"INSERT INTO {table} VALUES ({', '.join('?' * len(kept))})"  # noqa: S608
        clean = [self._cleaner(name, column) for column in kept]
        ids = [i for i, column in enumerate(kept) if column in _STRING_IDS]
        cursor = self.old.execute(f"SELECT {listed} FROM {table}")  # noqa: S608
        while rows := cursor.fetchmany(10_000):
            rows_kept = self._wanted(name, kept, rows)
            for i in ids:
                self.used.update(
                    value for row in rows_kept if isinstance(value := _number(row[i]), int)
                )
            with writing(self.target):
                self.new.executemany(
                    insert,
                    [
                        tuple(make(v) for make, v in zip(clean, row, strict=True))
                        for row in rows_kept
                    ],
                )

    def _declared(self, table: str, kept: list[str]) -> str:
        """Columns as the source declares them, without what a type or a default value could say
        in words.
        """
        rows = self.old.execute(
            'SELECT name, type, "notnull", pk FROM pragma_table_info(?)', (table,)
        ).fetchall()
        keys = [
            sqlite.quoted(_as_nsys(name))
            for name, *_, pk in sorted(rows, key=lambda row: row[3])
            if pk
        ]
        listed = [
            f"{sqlite.quoted(_as_nsys(name))}"
            f" {kind if _TYPES.fullmatch(kind) else ''}{' NOT NULL' * is_filled}"
            for name, kind, is_filled, _ in rows
            if _as_nsys(name) in kept
        ]
        if keys and set(keys) <= set(map(sqlite.quoted, kept)):
            listed.append(f"PRIMARY KEY ({', '.join(keys)})")
        return ", ".join(listed)

    def _wanted(self, name: str, columns: list[str], rows: list[SqliteRow]) -> list[SqliteRow]:
        if name == "StringIds" and "id" in columns:
            column = columns.index("id")
            rows_kept = [row for row in rows if _number(row[column]) in self.used]
        elif name in _ABOUT:
            if not {"name", "value"} <= set(columns):
                return []
            key, value = columns.index("name"), columns.index("value")
            rows_kept = [row for row in rows if _kept_pair(name, row[key], row[value])]
        else:
            return rows
        self.ledger.leave_out(name, "rows that no analysis needs", len(rows) - len(rows_kept))
        return rows_kept

    def _cleaner(self, table: str, column: str) -> Callable[[object], object]:
        if table == "PROCESSES" and column == "name":
            return lambda value: (
                process_name(value, self.ledger, table) if isinstance(value, str) else None
            )
        if table in _ABOUT:  # tables with known texts
            return lambda value: value if isinstance(value, str | int | float) else None
        if column in _TEXTS:
            return lambda value: self._text(value, table)
        return _number

    def _text(self, value: object, table: str) -> object:
        if isinstance(value, bytes):
            self.ledger.leave_out(table, "binary values")
            return ""
        return self.ledger.text(value, table) if isinstance(value, str) else value


def _number(value: object) -> object:
    """The value as a number; for a text or bytes, the integer at the start, as SQLite casts it."""
    value = value.decode("latin-1") if isinstance(value, bytes) else value
    if isinstance(value, str):
        begin = _WHOLE.match(value)
        return int(begin[0]) if begin else 0
    return value if isinstance(value, int | float) else None


def copy_parquet(source: Path, target: Path, ledger: Ledger) -> None:
    """Write a redacted copy of a folder of Parquet files that ``nsys export --type parquetdir``
    wrote.
    """
    used: set[int] = set()
    paths = sorted(source.glob("*.parquet"), key=lambda path: path.stem == "StringIds")
    with writing(target):
        target.mkdir(mode=0o700)
    for path in paths:
        if not _TABLES.fullmatch(path.stem):
            ledger.leave_out("tables", "tables that no analysis needs", example=path.stem)
            continue
        try:
            columns = pl.read_parquet_schema(path)
            frame = pl.read_parquet(
                path, columns=[c for c in columns if c in _NUMBERS or c in _TEXTS]
            )
        except (pl.exceptions.PolarsError, OSError) as error:
            raise ReadError(
                f"{path.name} is damaged: {error}", hint="export the report again"
            ) from error
        for column in columns.keys() - set(frame.columns):
            ledger.leave_out(path.stem, "columns that no analysis needs", example=column)
        frame = _clean_frame(frame, path.stem, used, ledger)
        with writing(target):
            frame.write_parquet(target / path.name)


def _clean_frame(frame: pl.DataFrame, name: str, used: set[int], ledger: Ledger) -> pl.DataFrame:
    if name == "StringIds" and "id" in frame.columns:
        before = frame.height
        used_ids = pl.Series("id", sorted(used), dtype=pl.Int64, strict=False).implode()
        integers = frame.schema["id"].is_integer()
        ids = pl.col("id").cast(pl.Int64, strict=False)
        frame = frame.filter(ids.is_in(used_ids)) if integers else frame.clear()
        ledger.leave_out(name, "rows that no analysis needs", before - frame.height)
    if name in _ABOUT:
        if not {"name", "value"} <= set(frame.columns):
            return frame.clear()
        frame = frame.select(pl.col("name", "value").cast(pl.String, strict=False))
        kept = [_kept_pair(name, key, value) for key, value in frame.rows()]
        return frame.filter(pl.Series(kept, dtype=pl.Boolean))
    for column in frame.columns:
        series = frame[column]
        if column in _STRING_IDS and series.dtype.is_integer():
            used.update(series.drop_nulls().unique().to_list())
        if series.dtype.is_numeric() or series.dtype == pl.Boolean:
            continue
        if series.dtype == pl.Binary or column not in _TEXTS:
            ledger.leave_out(name, "values of an unexpected type", series.count())
            frame = frame.with_columns(pl.lit(None, pl.Int64).alias(column))
            continue
        texts = series.cast(pl.String, strict=False)
        cleaned = {
            text: (
                process_name(text, ledger, name) if name == "PROCESSES" else ledger.text(text, name)
            )
            for text in texts.drop_nulls().unique()
        }
        frame = frame.with_columns(texts.replace(cleaned) if cleaned else texts)
    return frame
