import contextlib
import functools
import sqlite3
from contextlib import closing

import polars as pl
import pytest

import llmprof
from llmprof.errors import ReadError
from llmprof.trace.storage import sqlite


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


def test_columns_are_read_in_the_types_wanted_and_what_is_missing_is_left_out(database):
    types = {"text": pl.String(), "a b": pl.Int64(), "real": pl.Float64(), "none": pl.Int64()}
    frame = sqlite.read(database, 'odd "name"; --', types)
    assert frame.schema == {"text": pl.String, "a b": pl.Int64, "real": pl.Float64}
    assert frame["text"].to_list() == [None, "x", "<b>é", "4"]
    assert frame["a b"].to_list() == [None, 1, 2**40, None]
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
    with pytest.raises(
        ReadError, match=r"no such table.*llmprof\.trace\.storage\.sqlite\.database_tables"
    ):
        sqlite.query(database, "SELECT * FROM nowhere")
    with pytest.raises(ReadError, match="no table nothing"):
        sqlite.read(database, "nothing", ["a"])


def test_files_that_are_no_database_say_so(tmp_path):
    text = tmp_path / "report.sqlite"
    text.write_text(
        "this is text, and long enough to be looked at by sqlite as a header of a file" * 3
    )
    for function in (
        lambda: sqlite.query(text, "SELECT 1 FROM sqlite_master"),
        lambda: sqlite.read(text, "t", ["a"]),
    ):
        with pytest.raises(ReadError, match="not a database"):
            function()
    with pytest.raises(ReadError, match="does not exist"):
        sqlite.query(tmp_path / "none.sqlite", "SELECT 1")
    with pytest.raises(ReadError, match="does not exist"), sqlite.connect(tmp_path / "none.sqlite"):
        pass


def test_a_locked_database_is_a_clear_error(database, monkeypatch):
    monkeypatch.setattr(sqlite3, "connect", functools.partial(sqlite3.connect, timeout=0.1))
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


@pytest.fixture
def many_threads(monkeypatch):
    """At most four ranges, of ten rows or more; the queries that are asked."""
    monkeypatch.setattr(sqlite, "RANGE_ROWS", 10)
    monkeypatch.setattr(sqlite, "MOST_RANGES", 4)
    asked = []
    answer = sqlite._answer
    monkeypatch.setattr(
        sqlite, "_answer", lambda path, sql, each=None: asked.append(sql) or answer(path, sql, each)
    )
    return asked


def made(path, create, rows):
    """Make the table ``t`` and read its columns ``n`` and ``text``."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(create)
        connection.executemany(f"INSERT INTO t VALUES ({', '.join('?' * len(rows[0]))})", rows)
    return sqlite.read(path, "t", {"n": pl.Int64(), "text": pl.String()})


@pytest.mark.parametrize(
    "keys", [range(-500, 500, 10), [1, *range(10**12, 10**12 + 60)], [-(2**63), 0, 2**63 - 1]]
)
def test_rows_with_gaps_in_their_numbers_are_all_read(many_threads, tmp_path, keys):
    rows = [(key, f"t{key}") for key in keys]
    assert (
        made(
            tmp_path / "a.sqlite", "CREATE TABLE t (n INTEGER PRIMARY KEY, text TEXT)", rows
        ).rows()
        == rows
    )
    assert len(many_threads) == 4


@pytest.mark.parametrize(
    "columns", ["n INTEGER PRIMARY KEY, text TEXT) WITHOUT ROWID", "n, text, RowId, _rowid_, oid)"]
)
def test_tables_without_numbers_of_rows_are_read_whole(many_threads, tmp_path, columns):
    rows = [(i, f"t{i}", *["x"] * (columns.count(",") - 1)) for i in range(100)]
    assert made(tmp_path / "a.sqlite", f"CREATE TABLE t ({columns}", rows).rows() == [
        row[:2] for row in rows
    ]
    assert len(many_threads) == 1


@pytest.mark.parametrize(
    ("odd", "whole"),
    [("12 apples", 12), (2.75, 2), (b"7", 7), (None, None)],
    ids=["text", "real", "blob", "null"],
)
@pytest.mark.parametrize("at", [0, 99])
def test_a_value_of_another_type_is_cast_wherever_it_is(many_threads, tmp_path, odd, whole, at):
    rows = [(odd if i == at else i, "x") for i in range(100)]
    frame = made(tmp_path / "a.sqlite", "CREATE TABLE t (n, text TEXT)", rows)
    assert frame["n"].to_list() == [whole if i == at else i for i in range(100)]


def test_a_view_is_no_table_of_a_profiler(many_threads, tmp_path):
    made(
        tmp_path / "a.sqlite",
        "CREATE TABLE t (n INTEGER, text TEXT)",
        [(i, "x") for i in range(100)],
    )
    with closing(sqlite3.connect(tmp_path / "a.sqlite")) as connection, connection:
        connection.execute("CREATE VIEW v AS SELECT n + 1 AS n FROM t")
    with pytest.raises(ReadError, match="no table v"):
        sqlite.read(tmp_path / "a.sqlite", "v", ["n"])
    assert sqlite.query(tmp_path / "a.sqlite", "SELECT max(n) FROM v").item() == 100


ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x FROM c"


def test_an_endless_view_is_not_looked_at(tmp_path):
    path = tmp_path / "a.sqlite"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
        connection.execute(
            f"CREATE VIEW NVTX_EVENTS AS SELECT x AS start, x AS end FROM ({ENDLESS})"
        )
    with pytest.raises(ReadError, match="has no kernel"):
        llmprof.read(path, cache=False)


@pytest.mark.parametrize(
    "asked", [sqlite3.SQLITE_SELECT, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_READ]
)
def test_an_interrupt_while_sqlite_asks_what_is_allowed_is_an_interrupt(
    database, monkeypatch, asked
):
    """Python drops what is raised in such a question, and SQLite then says that the action is
    not allowed.
    """

    def interrupted(action, *_):
        if action == asked:
            raise KeyboardInterrupt
        return sqlite3.SQLITE_OK

    monkeypatch.setattr(sqlite, "_authorize", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sqlite.compute_query({}, database, "SELECT max(rowid) FROM sqlite_master")
    with pytest.raises(KeyboardInterrupt), sqlite.connect(database) as connection:
        sqlite.database_tables(connection)


@pytest.mark.parametrize(
    "sql",
    [
        "ATTACH 'made.sqlite' AS other",
        "VACUUM INTO 'made.sqlite'",
        "VACUUM",
        "PRAGMA journal_mode = WAL",
        "PRAGMA writable_schema = 1",
        "PRAGMA temp_store_directory = '/tmp'",
        "SELECT load_extension('x')",
        "CREATE TEMP TABLE made (a)",
        'DELETE FROM "odd ""name""; --"',
        "BEGIN",
        "REINDEX",
        "ANALYZE",
        "SELECT 1; DROP VIEW seen",
        "SELECT 1; SELECT 2",
        "DETACH main",
        "ALTER VIEW seen RENAME TO x",
    ],
)
def test_a_query_only_reads(database, monkeypatch, sql):
    monkeypatch.chdir(database.parent)
    before = database.read_bytes()
    with pytest.raises(ReadError):
        sqlite.query(database, sql)
    assert database.read_bytes() == before
    assert [p.name for p in database.parent.iterdir()] == [database.name]


def test_refusals_say_what_was_asked_and_what_is_taken(database):
    with pytest.raises(ReadError, match=r"does more than read \(ATTACH\).*one SELECT"):
        sqlite.query(database, "ATTACH 'x' AS y")
    with pytest.raises(ReadError, match="one statement"):
        sqlite.query(database, "SELECT 1; SELECT 2")


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT upper('a') AS a",
        "WITH a AS (SELECT 1 AS n) SELECT * FROM a",
        "VALUES (1)",
        "SELECT 1;",
        "-- a comment\nSELECT 1",
        "PRAGMA table_info(seen)",
        "SELECT name FROM pragma_table_info('seen')",
        "SELECT json_extract('[1]', '$[0]')",
        "SELECT count(*) FROM sqlite_master",
    ],
)
def test_whatever_reads_is_answered(database, sql):
    assert sqlite.query(database, sql).height == 1


def test_a_value_of_another_type_in_a_later_batch_is_cast_too(monkeypatch, tmp_path):
    monkeypatch.setattr(sqlite, "BATCH_ROWS", 10)
    rows = [("12 apples" if i == 95 else i, "x") for i in range(100)]
    frame = made(tmp_path / "a.sqlite", "CREATE TABLE t (n, text TEXT)", rows)
    assert frame["n"].to_list() == [12 if i == 95 else i for i in range(100)]
    with pytest.raises(ReadError, match="Type mismatch"):
        sqlite.compute_query({}, str(tmp_path / "a.sqlite"), "SELECT n FROM t")
    made(
        tmp_path / "b.sqlite",
        "CREATE TABLE t (n INTEGER, text TEXT)",
        [(2**31 - 1, "x"), (2**31, "y"), (-5, "z")],
    )
    frame = sqlite.read(tmp_path / "b.sqlite", "t", {"n": pl.Int32()})
    assert frame.schema == {"n": pl.Int32}
    assert frame["n"].to_list() == [2**31 - 1, None, -5]


def test_reading_a_closed_database_in_wal_mode_leaves_nothing_beside_it(tmp_path):
    file = tmp_path / "wal.db"
    connection = sqlite3.connect(file)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("CREATE TABLE t (a)")
    connection.execute("INSERT INTO t VALUES (1)")
    connection.commit()
    connection.close()
    assert sqlite.query(file, "SELECT a FROM t")["a"].to_list() == [1]
    with sqlite.connect(file) as opened:
        assert sqlite.database_tables(opened) == {"t": ["a"]}
        assert [p.name for p in tmp_path.iterdir()] == ["wal.db"]


@pytest.mark.parametrize("stored", ["ff41fe", "c3", "eda080", "410042ff"])
def test_text_that_is_no_utf_8_becomes_text(tmp_path, stored):
    path = tmp_path / "a.sqlite"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE t (id INTEGER, text TEXT)")
        connection.execute(
            f"INSERT INTO t VALUES (1, 'kept'), (2, CAST(x'{stored}' AS TEXT)), (3, NULL)"
        )
    expected = ["kept", bytes.fromhex(stored).decode("utf-8", "replace").partition("\0")[0], None]
    for frame in (
        sqlite.read(path, "t", {"id": pl.Int64(), "text": pl.String()}),
        sqlite.query(path, "SELECT id, text FROM t"),
    ):
        texts = frame["text"].to_list()
        assert [text and text.partition("\0")[0] for text in texts] == expected
        frame.write_json()  # valid text: what is none panics in here
    with sqlite.connect(path) as connection:
        assert (
            connection.execute("SELECT text FROM t WHERE id = 2").fetchone()[0].partition("\0")[0]
            == expected[1]
        )


@pytest.mark.parametrize("word", [b"CREATE TABLE", b"first", b"INTEGER", b"second"])
def test_a_schema_that_is_no_utf_8(tmp_path, word):
    path = tmp_path / "a.sqlite"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE first (second INTEGER)")
        connection.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
    data = path.read_bytes()
    for at in (data.find(word), data.find(word) + len(word) - 1):
        path.write_bytes(data[:at] + b"\xff" + data[at + 1 :])
        with contextlib.suppress(ReadError), sqlite.connect(path) as connection:
            assert "StringIds" in sqlite.database_tables(connection)
        with pytest.raises(ReadError):
            llmprof.read(path, cache=False)
