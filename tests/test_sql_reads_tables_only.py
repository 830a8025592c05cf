"""A query reads the tables of the trace and nothing else: no file is opened and no connection made,
however it asks.
"""

import ctypes
import itertools
import os
import socket
import sqlite3
from contextlib import closing

import polars as pl
import pytest

from llmprof.errors import LlmprofError, ReadError
from llmprof.trace import Trace
from llmprof.trace.storage import sql, sqlite

CANARY = "the content of the canary"
IN_OPEN = 0x20
TABLE_FUNCTIONS = ("read_csv", "read_ipc", "read_json", "read_ndjson", "read_parquet", "scan_csv")
QUOTED = [
    "{}",
    '"{}"',
    "'{}'",
    "`{}`",
    "[{}]",
    "$${}$$",
    "$q${}$q$",
    "E'{}'",
    'U&"{}"',
    "N'{}'",
    'main."{}"',
    "main.{}",
    "{}/**/",
    "/* /* */ */{}",
    "{}\n--\n",
    "lateral {}",
    "table({}",
    "{{fn {}",
]
NESTED = [
    "select * from {}",
    "select {} from kernels",
    "select name from kernels where exists (select 1 from {})",
    "select name from kernels where name in (select * from {})",
    "with k as (select * from {}) select * from k",
    "with k as (select 1 as one), l as (select * from k, {}) select * from l",
    "select * from kernels join {} as x on true",
    "select * from kernels cross join lateral {}",
    "select name from kernels union all select * from {}",
    "select (select max(x) from {} as t) as x from kernels",
    "from {} select *",
    "explain select * from {}",
    "select * from kernels order by (select count(*) from {})",
    "select $$'$$ as a, * from {} where $$'$$='x'",
    "select '\\' as a, * from {} --'",
    "select /* ' */ * from {} -- '",
    'select "a" as "\'", * from {}',
]


class Watch:
    """Counts how often anything in a folder is opened, and connections to a port of this
    machine.
    """

    def __init__(self, folder):
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._notes = self._libc.inotify_init1(os.O_NONBLOCK)
        assert self._notes >= 0
        assert self._libc.inotify_add_watch(self._notes, os.fsencode(folder), IN_OPEN) >= 0
        self._server = socket.create_server(("127.0.0.1", 0))
        self._server.setblocking(False)
        self.url = f"http://127.0.0.1:{self._server.getsockname()[1]}/leak"

    def seen(self):
        """Whether anything was opened, and whether a connection was made, since the last call."""
        try:
            opened = bool(os.read(self._notes, 1 << 16))
        except BlockingIOError:
            opened = False
        try:
            self._server.accept()[0].close()
        except BlockingIOError:
            return opened, False
        return opened, True

    def close(self):
        os.close(self._notes)
        self._server.close()


@pytest.fixture
def folder(tmp_path):
    frame = pl.DataFrame({"text": [CANARY]})
    frame.write_csv(tmp_path / "canary.csv")
    frame.write_parquet(tmp_path / "canary.parquet")
    frame.write_ipc(tmp_path / "canary.ipc")
    frame.write_ndjson(tmp_path / "canary.json")
    return tmp_path


@pytest.fixture
def watch(folder):
    with closing(Watch(folder)) as watch:
        yield watch


@pytest.fixture
def trace():
    kernels = pl.DataFrame(
        {"rank": [0, 1], "start_ns": [0, 5], "dur_ns": [4, 5], "name": ["a", "b"]}
    )
    return Trace({"kernels": kernels.with_columns(pl.col("rank").cast(pl.Int32))})


def asked(trace, query):
    try:  # in this process, as it starts one for each query
        return str(sql.compute_select(trace.tables, sql._checked(query)).to_dicts())
    except LlmprofError as error:
        return str(error)


@pytest.mark.slow
def test_no_function_however_written_opens_a_file_or_connects(folder, watch, trace):
    paths = sorted(map(str, folder.iterdir()))
    files = itertools.cycle([*paths, str(folder / "*"), watch.url])
    watch.seen()  # the listing of the folder
    ways = [(quoted, nested) for quoted in QUOTED for nested in NESTED]
    for name in TABLE_FUNCTIONS:
        for (quoted, nested), _ in itertools.product(ways, range(2)):
            called = (
                quoted.format(name if "U" in quoted else name.swapcase()) + f"('{next(files)}')"
            )
            assert CANARY not in asked(trace, nested.format(called)), (name, quoted, nested)
            called = quoted.format(name) + f"('{next(files)}')"
            assert CANARY not in asked(trace, nested.format(called)), (name, quoted, nested)
    for name in sql.FUNCTIONS | sql.CALLABLE:
        for quoted, nested in itertools.product(QUOTED[:4], NESTED):
            called = f"{quoted.format(name)}('{next(files)}')"
            assert CANARY not in asked(trace, nested.format(called)), (name, quoted, nested)
    for path in paths:  # a file as a table
        for name, nested in itertools.product((f"'{path}'", f'"{path}"', f"`{path}`"), NESTED):
            assert CANARY not in asked(trace, nested.format(name))
    assert watch.seen() == (False, False)


def test_a_source_that_is_no_table_is_found_in_the_plan(folder, trace):
    for name in ("csv", "parquet", "ipc", "json"):
        with pytest.raises(LlmprofError, match=f"SCAN.*canary.{name}"):
            sql.compute_select(
                trace.tables, f"select * from kernels, read_{name}('{folder / f'canary.{name}'}')"
            )


@pytest.mark.parametrize(
    "query",
    [
        "select $$x$$ as a from kernels",
        "select E'a' as a from kernels",
        "select X'00' as a from kernels",
        "select {fn abs(rank)} from kernels",
        "select 1 as a, '\\' from kernels",
        "select /* /* */ */ 1 from kernels",
        "select 0x1F from kernels",
        "select 1 from kernels /* open",
        "select 'open from kernels",
        "select a\0b from kernels",
        "select least() from kernels",
        "explain select * from kernels",
        "values (1)",
        "select * from kernels as k(a, b)",
    ],
)
def test_what_could_be_read_in_two_ways_is_refused(trace, query):
    with pytest.raises(LlmprofError):
        trace.sql(query)


@pytest.mark.parametrize(
    ("query", "answer"),
    [
        ('select `rank` as "the rank" from kernels where "name" = \'a\' -- it\'s b', [(0,)]),
        (
            "select count(*) as n from kernels where name in ('a', 'it''s', '\\d') and not (rank > 1)",
            [(1,)],
        ),
        (
            "with k as (select rank, name from kernels) select * exclude (rank) from k order by rank limit 1",
            [("a",)],
        ),
        (
            "with k as (select rank from kernels union all (select rank from kernels)) select sum(rank) from k",
            [(2,)],
        ),
        (
            "select sum(dur_ns) over (partition by rank), cast(rank as decimal(10, 2))::int / 1e0 as f from kernels",
            [(4, 0.0), (5, 1.0)],
        ),
        (
            "select k.name from kernels as k where exists (select 1 from kernels l where l.rank = k.rank and l.rank = 1);",
            [("b",)],
        ),
        (
            "select case when(rank > 0) then upper(name) else(name) end as n\nfrom kernels where name ~ '^[ab]$'",
            [("a",), ("B",)],
        ),
    ],
)
def test_queries_of_users_are_answered(trace, query, answer):
    assert trace.sql(query).rows() == answer


def test_a_mistake_is_placed_and_the_nearest_name_said(trace):
    for query, words in (
        ("select\n  uper(name) from kernels", ["line 2, column 3", "upper"]),
        ("select nam from kernels", ["name"]),
        ("select * from kernel", ["kernels"]),
        ("select name fro kernels, where", ["Line: 1"]),
    ):
        with pytest.raises(LlmprofError) as caught:
            trace.sql(query)
        assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize(
    "query",
    [
        "attach '{}' as x",
        "select 1; attach '{}' as x",
        "select readfile('{}')",
        "select \"readfile\"('{}')",
        "select `load_extension`('{}')",
        "select [load_extension]('{}')",
        "select LOAD_EXTENSION('{}', 'x')",
        "select writefile('{}', 'x')",
        "select edit('{}')",
        "select * from fsdir('{}')",
        "select * from \"readfile\"('{}')",
        "select * from csv where filename = '{}'",
        "pragma temp_store_directory = '{}'",
        "select * from pragma_journal_mode('{}')",
        "with a as (select load_extension('{}')) select * from a",
        "values (load_extension('{}'))",
        "vacuum into '{}'",
        "create virtual table temp.x using csv(filename='{}')",
        "/* */ attach '{}' as x",
        "explain attach '{}' as x",
        "select fts3_tokenizer('x', '{}')",
        "select 1\0; attach '{}' as x",
        "select * from loaded where '{}' > ''",
        "select * from made where '{}' > ''",
    ],
)
def test_a_query_of_the_file_reads_that_file_alone(folder, watch, tmp_path_factory, query):
    path = tmp_path_factory.mktemp("database") / "a.sqlite"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("create table t (a)")
        connection.execute(
            f"create view loaded as select load_extension('{folder / 'canary.csv'}')"
        )
        connection.execute("pragma writable_schema = 1")
        made = f"create virtual table made using csv(filename='{folder / 'canary.csv'}')"
        connection.execute(
            "insert into sqlite_master values ('table', 'made', 'made', 0, ?)", (made,)
        )
    watch.seen()
    with pytest.raises(ReadError):
        sqlite.query(path, query.format(folder / "canary.csv"))
    assert watch.seen() == (False, False)
