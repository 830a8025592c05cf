from __future__ import annotations

import sqlite3

import polars as pl
import pytest

from llmprof import sqlite
from llmprof.errors import ReadError


@pytest.fixture
def database(tmp_path):
    path = tmp_path / "a b#c?.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute('CREATE TABLE "odd ""name""; --" ("a b" INTEGER, text TEXT, real REAL)')
        rows = [(None, None, None), (1, "x", 0.5), (2**40, "<b>é", 2.0), ("three", 4, 5)]
        connection.executemany('INSERT INTO "odd ""name""; --" VALUES (?, ?, ?)', rows)
        connection.execute("CREATE VIEW seen AS SELECT 7 AS n")
    connection.close()
    return path


def test_tables_and_columns_have_the_names_of_the_file(database):
    with sqlite.connect(database) as connection:
        assert sqlite.tables(connection) == {'odd "name"; --': ["a b", "text", "real"], "seen": ["n"]}
        assert sqlite.columns(connection, "no such") == []


def test_columns_are_read_in_the_types_wanted_and_what_is_missing_is_left_out(database):
    types = {"text": pl.String(), "a b": pl.Int64(), "real": pl.Float64(), "none": pl.Int64()}
    frame = sqlite.read(database, 'odd "name"; --', types)
    assert frame.schema == {"text": pl.String, "a b": pl.Int64, "real": pl.Float64}
    assert frame["text"].to_list() == [None, "x", "<b>é", "4"]
    assert frame["a b"].to_list() == [None, 1, 2**40, 0]
    assert frame["real"].to_list() == [None, 0.5, 2.0, 5.0]


def test_text_that_begins_after_many_nulls_is_read(tmp_path):
    path = tmp_path / "nulls.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE t (text TEXT, n INTEGER)")
        rows = [(None, None)] * (sqlite.BATCH_ROWS + 10) + [("late", 3)]
        connection.executemany("INSERT INTO t VALUES (?, ?)", rows)
    connection.close()
    frame = sqlite.read(path, "t", {"text": pl.String(), "n": pl.Int64()})
    assert frame.height == len(rows)
    assert frame.row(-1) == ("late", 3)


def test_a_query_answers_as_a_frame_and_cannot_write(database):
    assert sqlite.query(database, "SELECT n + 1 AS m FROM seen").rows() == [(8,)]
    before = database.read_bytes()
    for sql in ("DROP VIEW seen", "INSERT INTO seen VALUES (1)", "CREATE TABLE t (a)"):
        with pytest.raises(ReadError):
            sqlite.query(database, sql)
    assert database.read_bytes() == before
    with pytest.raises(ReadError, match=r"no such table.*llmprof\.sqlite\.tables"):
        sqlite.query(database, "SELECT * FROM nowhere")
    with pytest.raises(ReadError, match="no table nothing"):
        sqlite.read(database, "nothing", ["a"])


def test_files_that_are_no_database_say_so(tmp_path):
    text = tmp_path / "report.sqlite"
    text.write_text("this is text, and long enough to be looked at by sqlite as a header of a file" * 3)
    for function in (lambda: sqlite.query(text, "SELECT 1 FROM sqlite_master"), lambda: sqlite.read(text, "t", ["a"])):
        with pytest.raises(ReadError, match="not a database"):
            function()
    with pytest.raises(ReadError, match="does not exist"):
        sqlite.query(tmp_path / "none.sqlite", "SELECT 1")
    with pytest.raises(ReadError, match="does not exist"), sqlite.connect(tmp_path / "none.sqlite"):
        pass


def test_a_locked_database_is_a_clear_error(database):
    writer = sqlite3.connect(database, isolation_level=None)
    try:
        writer.execute("BEGIN EXCLUSIVE")
        with pytest.raises(ReadError, match=r"locked.*wait until it has finished"):
            sqlite.read(database, 'odd "name"; --', ["a b"])
    finally:
        writer.close()


def test_a_database_that_is_still_written_shows_what_was_committed(tmp_path):
    path = tmp_path / "wal.sqlite"
    writer = sqlite3.connect(path, isolation_level=None)
    try:
        writer.execute("PRAGMA journal_mode = WAL")
        writer.execute("CREATE TABLE t (a)")
        writer.execute("INSERT INTO t VALUES (1)")
        writer.execute("BEGIN")
        writer.execute("INSERT INTO t VALUES (2)")
        assert sqlite.read(path, "t", ["a"])["a"].to_list() == [1]
    finally:
        writer.close()
