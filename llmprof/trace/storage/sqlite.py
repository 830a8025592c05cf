"""Read-only access to the SQLite files of profilers: lists tables, reads columns as frames, and
answers SQL queries.

The readers use it, and users who write their own SQL. Nothing here ever writes to a file.
"""

from __future__ import annotations

import os
import re
import sqlite3
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import polars as pl

from llmprof.errors import ReadError, TraceWarning
from llmprof.trace.storage import arrow_stream, bounded
from llmprof.trace.storage.files import PathLike, regular

MAGIC = b"SQLite format 3\x00"
BATCH_ROWS = 1 << 16
RANGE_ROWS = 1 << 18
"""Fewest rows of a range; several threads read the ranges of a larger table."""
MOST_RANGES = 32
MOST_THREADS = 8


def uri(path: PathLike) -> str:
    """URI that opens a file read-only; a file that is still being written is read as it is on
    disk.
    """
    # A database in WAL mode whose `-wal` file has content is still being written or was not closed.
    # It can be read with that file; if its folder cannot be written, SQLite cannot do so, and only
    # the main file is read.
    target = regular(Path(path)).resolve()
    wal = target.with_name(target.name + "-wal")
    mode = "mode=ro"
    if not (wal.exists() and wal.stat().st_size) and _in_wal_mode(target):
        # else SQLite would write its -shm and -wal beside the user's file, and lock out others
        mode = "immutable=1"
    elif wal.exists() and wal.stat().st_size and not os.access(target.parent, os.W_OK):
        warnings.warn(
            f"{target.name} was not closed by its profiler, and its folder cannot be written: the"
            f" content of {wal.name} is not read",
            TraceWarning,
            stacklevel=3,
        )
        mode = "immutable=1"
    return f"file:{quote(str(target))}?{mode}"


def _in_wal_mode(path: Path) -> bool:
    """Whether the header of a database states that it is written through a log (file format 2)."""
    try:
        with path.open("rb") as file:
            return file.read(20)[18:20] == b"\x02\x02"
    except OSError:
        return False


@contextmanager
def connect(path: PathLike) -> Iterator[sqlite3.Connection]:
    """Connection to a file, read-only, closed at the end of the block."""
    source = Path(path)
    if not source.exists():
        raise ReadError(f"{source} does not exist", hint="check the path")
    refused: list[str] = []
    try:
        connection = sqlite3.connect(uri(source), uri=True)
        try:
            for pragma in _CAREFUL:
                connection.execute(pragma)
            connection.text_factory = _text
            connection.set_authorizer(_authorizer(refused))
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            yield connection
        finally:
            connection.close()
    except sqlite3.Error as error:
        if (
            _DENIED.search(str(error)) and not refused
        ):  # Python drops what is raised in an authorizer, also Ctrl-C
            raise KeyboardInterrupt from error
        raise _explain(source, str(error)) from error
    except UnicodeDecodeError as error:  # SQLite's own message quotes text that is not UTF-8
        raise _explain(source, _text(error.object)) from error


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


class ColumnNames(list[str]):
    """Names of columns, in order. As in SQLite, upper and lower case are the same."""

    def spelled(self, name: str) -> str | None:
        """A name as the file spells it; None if it has no such name."""
        return next((own for own in self if own.lower() == name.lower()), None)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.spelled(name) is not None


class DatabaseTables(dict[str, ColumnNames]):
    """Columns by table, in any case; views and virtual tables, which may never end, are
    ``refused``.
    """

    def __init__(self, columns_of: Mapping[str, Iterable[str]], views: Iterable[str] = ()) -> None:
        super().__init__({name: ColumnNames(names) for name, names in columns_of.items()})
        self._own = {name.lower(): name for name in self}
        self._views = {name.lower(): name for name in views}
        self.refused: set[str] = set()

    def spelled(self, name: str) -> str | None:
        """A name as the file spells it; None if it has no such table."""
        own = self._own.get(name.lower())
        if own is None and (view := self._views.get(name.lower())):
            self.refused.add(view)
        return own

    def matching(self, pattern: re.Pattern[str]) -> list[str]:
        """Names of tables that a pattern describes.

        If there are none, views that it describes are refused.
        """
        if found := [own for own in self if pattern.fullmatch(own)]:
            return found
        self.refused |= {view for view in self._views.values() if pattern.fullmatch(view)}
        return []

    def notes(self) -> list[str]:
        """One sentence for each view that was looked up."""
        return [
            f"{name} is a view, not a table: it is not read. Copy its rows into a table (CREATE"
            " TABLE … AS SELECT) to have it read"
            for name in sorted(self.refused)
        ]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.spelled(name) is not None

    def __getitem__(self, name: str) -> ColumnNames:
        return super().__getitem__(self.spelled(name) or name)

    def get(self, name: str, default: Any = None) -> Any:
        """Columns of a table."""
        own = self.spelled(name)
        return default if own is None else super().__getitem__(own)


def database_tables(connection: sqlite3.Connection) -> DatabaseTables:
    """Tables of a database with their columns, found in upper and lower case, without views."""
    listed = connection.execute(
        "SELECT name, type = 'table' AND rootpage > 0 FROM sqlite_master WHERE type IN ('table',"
        " 'view')"
    )
    names = {name: is_table for name, is_table in listed if isinstance(name, str)}
    return DatabaseTables(
        {name: table_columns(connection, name) for name, is_table in names.items() if is_table},
        [name for name, is_table in names.items() if not is_table],
    )


def table_columns(connection: sqlite3.Connection, table: str) -> ColumnNames:
    """Columns of a table, in order; empty if there is no such table."""
    return ColumnNames(
        row[0] for row in connection.execute("SELECT name FROM pragma_table_info(?)", (table,))
    )


def quoted(name: str) -> str:
    """A name as an SQL identifier, whatever characters it has."""
    return '"' + name.replace('"', '""') + '"'


def read(
    path: PathLike, table: str, columns_read: Mapping[str, pl.DataType] | Sequence[str]
) -> pl.DataFrame:
    """Existing columns in the given order and types (Int64 for a sequence); what does not fit is
    null.
    """
    types = (
        dict(columns_read)
        if isinstance(columns_read, Mapping)
        else dict.fromkeys(columns_read, pl.Int64())
    )
    with connect(path) as connection:
        stored = connection.execute(
            "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND rootpage > 0 AND name = ?"
            " COLLATE NOCASE",
            (table,),
        ).fetchone()
        present = table_columns(connection, table) if stored[0] else ColumnNames()
    if not present:
        raise ReadError(
            f"{Path(path).name} has no table {table}", expected="a table of the profiler's export"
        )
    types = {name: dtype for name, dtype in types.items() if name in present}
    if not types:
        return pl.DataFrame()
    try:  # without casting integers first: it is faster, and profilers write nothing else
        return _select(path, table, types, cast=False)
    except ReadError:
        return _select(path, table, types, cast=True)


def _select(
    path: PathLike, table: str, types: Mapping[str, pl.DataType], *, cast: bool
) -> pl.DataFrame:
    """Columns of a table; a large table is read in ranges of rows, several at once."""
    picked = ", ".join(
        f"{quoted(name) if dtype.is_integer() and not cast else _cast(name, dtype)} AS"
        f" {quoted(name)}"
        for name, dtype in types.items()
    )
    sql = f"SELECT {picked} FROM {quoted(table)}"  # noqa: S608 (names are quoted)
    integers = [] if cast else [name for name, dtype in types.items() if dtype.is_integer()]

    def typed(batch: pl.DataFrame) -> pl.DataFrame:
        if batch.height and any(batch.schema[name] != pl.Int64 for name in integers):
            raise ReadError(
                f"table {table} has values that are not integers",
                expected=f"integers in {integers}",
            )
        return batch.select(
            (
                pl.when(pl.col(name).cast(pl.String) != "")
                .then(pl.col(name).cast(pl.String))
                .alias(name)
                if dtype == pl.String()
                else pl.col(name).cast(dtype, strict=False)
            )
            for name, dtype in types.items()
        )

    ranges = _row_ranges(path, table)
    if not ranges:
        return _answer(path, sql, typed)
    with ThreadPoolExecutor(min(os.cpu_count() or 1, MOST_THREADS)) as threads:
        return pl.concat(
            threads.map(lambda rows: _answer(path, f"{sql} WHERE {rows}", typed), ranges)
        )


def _row_ranges(path: PathLike, table: str) -> list[str]:
    """SQL conditions that divide a large table into ranges of rows; empty for a small table or a
    view.
    """
    with connect(path) as connection:
        names = {name.lower() for name in table_columns(connection, table)}
        row_id = next((name for name in ("rowid", "_rowid_", "oid") if name not in names), None)
        if row_id is None:
            return []
        ends = "(SELECT {0}({1}) FROM {2})"
        try:
            first, last = connection.execute(
                f"SELECT {ends.format('min', row_id, quoted(table))},"
                f" {ends.format('max', row_id, quoted(table))}"
            ).fetchone()
        except sqlite3.OperationalError:  # a view, or a table without row ids
            return []
    count = 1 if first is None else min(MOST_RANGES, (last - first) // RANGE_ROWS + 1)
    if count < 2:
        return []
    cuts = [first + (last + 1 - first) * i // count for i in range(count + 1)]
    return [f"{row_id} >= {low} AND {row_id} < {high}" for low, high in pairwise(cuts)]


def _cast(name: str, dtype: pl.DataType) -> str:
    # the driver takes the type of a column from its first rows: without a null first, text stays
    # text
    if dtype == pl.String():
        return f"coalesce(CAST({quoted(name)} AS TEXT), '')"
    number = f"CAST({quoted(name)} AS {'REAL' if dtype.is_float() else 'INTEGER'})"
    # text that does not begin with a number becomes null, where SQLite would give 0; an infinity is
    # no text
    text = f"CAST({quoted(name)} AS TEXT) GLOB '[-+0-9.]*'"
    return f"CASE WHEN typeof({quoted(name)}) = 'real' OR {text} THEN {number} END"


def query(path: PathLike, sql: str) -> pl.DataFrame:
    """Result of one ``SELECT`` (``WITH``, ``VALUES``) on a file; what does more than read is
    refused.
    """
    with connect(path):  # says here what is wrong with the file
        return bounded.compute_bounded(
            compute_query, {"path": str(Path(path).resolve()), "sql": sql}, {}
        )


def compute_query(_: object, path: str, sql: str) -> pl.DataFrame:
    """Result of a query of a file, in this process."""
    _check(path, sql)
    try:
        return _answer(path, sql)
    except ReadError as error:
        if _LIMITED.search(error.found):  # what is wrong is not the file
            raise MemoryError(error.found) from error
        raise


_LIMITED: Final = re.compile("out of memory|the stream failed|too big|disk I/O error")
"""What SQLite and its driver say when a limit of the process is reached."""


def _check(path: PathLike, sql: str) -> None:
    """Have SQLite compile a query, and check each of its actions."""
    begin = _BEGIN.match(sql)
    word = begin[1].upper() if begin else ""
    hint = "copy the file and open the copy with sqlite3 to change it"
    if word not in _READING_WORDS:
        found = (
            f"the query does more than read ({word})" if word else "the query holds no statement"
        )
        raise ReadError(found, expected="one SELECT", hint=hint)
    refused: list[str] = []
    with connect(path) as connection:
        connection.set_authorizer(_authorizer(refused))
        try:
            connection.execute(f"EXPLAIN {sql}").close()
        except sqlite3.ProgrammingError as error:
            raise ReadError(
                f"the query cannot be run: {error}", expected="one statement"
            ) from error
        except sqlite3.DatabaseError as error:
            if not refused:
                raise
            found = f"the query does more than read ({refused[0]})"
            raise ReadError(found, expected="one SELECT", hint=hint) from error


_CAREFUL: Final = (
    "PRAGMA query_only = 1",
    "PRAGMA trusted_schema = 0",
    "PRAGMA cell_size_check = 1",
)
"""First statements of every connection: it writes nothing, and functions in a file's schema have
no side effect.
"""

_READING_PRAGMAS: Final = frozenset(
    {
        "table_info",
        "table_xinfo",
        "table_list",
        "index_list",
        "index_info",
        "index_xinfo",
        "foreign_key_list",
        "database_list",
        "collation_list",
        "function_list",
        "compile_options",
        "encoding",
        "page_count",
        "page_size",
        "freelist_count",
        "schema_version",
        "user_version",
        "application_id",
        "data_version",
    }
)
_BEGIN: Final = re.compile(r"(?:\s|;|--[^\n]*(?:\n|$)|/\*.*?\*/)*([A-Za-z]+)", re.DOTALL)
_READING_WORDS: Final = frozenset({"SELECT", "WITH", "VALUES", "PRAGMA"})
_REFUSED_FUNCTIONS: Final = frozenset(
    {"load_extension", "writefile", "readfile", "edit", "fts3_tokenizer"}
)
_ACTIONS: Final = {
    sqlite3.SQLITE_ATTACH: "ATTACH",
    sqlite3.SQLITE_DETACH: "DETACH",
    sqlite3.SQLITE_INSERT: "INSERT",
    sqlite3.SQLITE_UPDATE: "UPDATE",
    sqlite3.SQLITE_DELETE: "DELETE",
    sqlite3.SQLITE_PRAGMA: "a PRAGMA that changes something",
    sqlite3.SQLITE_TRANSACTION: "a transaction",
    sqlite3.SQLITE_FUNCTION: "a function that reaches beyond the file",
}


_DENIED: Final = re.compile(r"not authorized|is prohibited")
"""SQLite's message when an authorizer denied an action."""


def _authorizer(refused: list[str]) -> Callable[..., int]:
    """An authorizer for a connection that also adds what it denies to a list."""

    def authorize(action: int, first: str | None, second: str | None, *_: str | None) -> int:
        answer = _authorize(action, first, second)
        if answer != sqlite3.SQLITE_OK:
            refused.append(_ACTIONS.get(action, first or "something else"))
        return answer

    return authorize


def _authorize(action: int, first: str | None, second: str | None) -> int:
    """Allow actions that read, and deny all others."""
    if action in {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE}:
        return sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_FUNCTION:
        refused = (second or "").lower() in _REFUSED_FUNCTIONS
        return sqlite3.SQLITE_DENY if refused else sqlite3.SQLITE_OK
    if (
        action == sqlite3.SQLITE_UPDATE and first == "sqlite_master"
    ):  # so table-valued pragmas declare columns
        return sqlite3.SQLITE_OK  # cannot change a file that is open read-only
    if action == sqlite3.SQLITE_PRAGMA:
        return (
            sqlite3.SQLITE_OK if (first or "").lower() in _READING_PRAGMAS else sqlite3.SQLITE_DENY
        )
    return sqlite3.SQLITE_DENY


def _answer(
    path: PathLike, sql: str, each: Callable[[pl.DataFrame], pl.DataFrame] | None = None
) -> pl.DataFrame:
    """Result of a query, with a function applied to each batch."""
    # imported here, so that other formats are read without
    from adbc_driver_manager import AdbcConnection, AdbcStatement, Error
    from adbc_driver_sqlite import connect as adbc_connect

    source = Path(path)
    if not source.exists():
        raise ReadError(f"{source} does not exist", hint="check the path")
    try:
        with (
            adbc_connect(uri(source)) as database,
            AdbcConnection(database) as connection,
            AdbcStatement(connection) as statement,
        ):
            statement.set_sql_query("PRAGMA trusted_schema = 0")
            statement.execute_update()
            statement.set_options(**{"adbc.sqlite.query.batch_rows": str(BATCH_ROWS)})
            statement.set_sql_query(sql)
            stream, _ = statement.execute_query()
            batches = map(_valid_text, arrow_stream.frames(stream))
            return pl.concat(batches if each is None else map(each, batches))
    except Error as error:
        raise _explain(source, str(error)) from error
    except OSError as error:
        raise _explain(source, error.strerror or str(error)) from error


def _valid_text(batch: pl.DataFrame) -> pl.DataFrame:
    """The batch with valid UTF-8 texts:

    SQLite passes on the stored bytes, and Arrow does not check them.
    """
    for name, dtype in batch.schema.items():
        if dtype != pl.String:
            continue
        data = batch[name].cast(pl.Binary)
        try:
            data.cast(pl.String)
        except pl.exceptions.ComputeError:
            texts = [None if value is None else value.decode("utf-8", "replace") for value in data]
            batch = batch.with_columns(pl.Series(name, texts, dtype=pl.String))
    return batch


def _explain(path: Path, message: str) -> ReadError:
    lower = message.lower()
    if "locked" in lower or "busy" in lower:
        hint = (
            "the profiler or another program is writing to it: wait until it has finished, or read"
            " a copy"
        )
    elif "not a database" in lower or "malformed" in lower:
        hint = "it is damaged or not a database: export it again"
    elif "no such" in lower or "syntax" in lower:
        hint = "llmprof.trace.storage.sqlite.database_tables lists the tables and columns of a file"
    else:
        hint = "check the file and its permissions"
    return ReadError(
        f"cannot read {path.name}: {message.splitlines()[0]}",
        expected="an SQLite database",
        hint=hint,
    )
