"""A query that grows without bound ends in our error: its process ends, this one lives and asks
again.
"""

import datetime
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing

import polars as pl
import psutil
import pytest
from polars.testing import assert_frame_equal

from llmprof.cli import agents
from llmprof.errors import AnalysisError
from llmprof.trace import Trace
from llmprof.trace.storage import bounded, sql, sqlite
from tests.processes import gone

LONG = "x" * 20
KERNELS = pl.DataFrame(
    {
        "rank": [0] * 500 + [1] * 500,
        "start_ns": range(1000),
        "dur_ns": range(1000),
        "name": [LONG] * 1000,
    },
    schema_overrides={"rank": pl.Int32},
)


def nested(form, times, inner="name"):
    for _ in range(times):
        inner = form.format(inner)
    return inner


def steps(form, times):
    """A query whose n-th part is made of the part before it."""
    parts = ", ".join(f"t{i + 1} as ({form.format(f't{i}')})" for i in range(times))
    return f"with t0 as (select name as s from kernels), {parts} select * from t{times}"


TEXTS = {
    "replace": (f"replace({{0}}, 'x', '{LONG}')", 6),
    "regexp_replace": (f"regexp_replace({{0}}, 'x', '{LONG}', 'g')", 6),
    "concat": ("concat({0}, {0}, {0}, {0}, {0}, {0}, {0}, {0})", 4),
    "||": ("({0} || {0})", 12),
    "lpad": ("lpad({0}, 1000000000000, 'x')", 1),
    "rpad": ("rpad({0}, 1000000000, name)", 1),
    "array_to_string": (f"array_to_string(string_to_array({{0}}, ''), '{LONG}')", 6),
}
GROWTH = {
    **{
        name: f"select {nested(form, times)} as r from kernels"
        for name, (form, times) in TEXTS.items()
    },
    **{
        name: steps(
            f"select {name}(s{', s' * (name != 'array_agg')}) as s from (select a.s from {{0}} a, kernels)",
            3,
        )
        for name in ("string_agg", "group_concat", "listagg", "array_agg")
    },
    "unnest": f"select unnest(string_to_array({nested(TEXTS['replace'][0], 3)}, '')) as c from kernels",
    "cross join": "select a.name from kernels a cross join kernels b cross join kernels c",
    "join": "select a.name from kernels a join kernels b on a.rank = b.rank join kernels c on c.rank = a.rank",
    "join by order": "select a.name, c.rank from kernels a join kernels b on a.rank <= b.rank, kernels c",
    "union all": steps("select * from {0} union all select * from {0}", 16),
    "recursive": "with recursive r as (select 1 as n union all select n + 1 as n from r, kernels) select max(n) from r",
    "range": "select * from range(1000000000000)",
    "generate_series": "select count(distinct g.generate_series) from generate_series(1, 1000000000000) as g",
    "columns": f"select {', '.join(f'a.name as c{i}' for i in range(2000))} from kernels a, kernels b",
    "chain": f"select {'rank || ' * 6000}rank as x from kernels",
    "unions": f"select name from kernels{' union select name from kernels' * 2000}",
    "rows without bytes": "select null as a from kernels a, kernels b, kernels c",
    "parentheses": f"select {'(' * 20_000}1{')' * 20_000} as a from kernels",
    "characters": f"select '{'x' * 200_000}' as a from kernels",
}
GROWTH_OF_A_FILE = {
    "replace": f"select {nested(TEXTS['replace'][0], 6)} from kernels",
    "zeroblob": "select zeroblob(900000000) from kernels",
    "printf": "select printf('%900000000s', name) from kernels",
    "group_concat": f"select group_concat({nested(TEXTS['replace'][0], 3)}) from kernels a",
    "join": "select a.name from kernels a, kernels b, kernels c",
    "recursive": "with recursive r(n) as (select 'x' union all select n || n from r) select n from r",
    "sorted": "with recursive r(n) as (select 1 union all select n + 1 from r) select n from r order by -n",
}


@pytest.fixture
def small(monkeypatch):
    """Limits that are reached soon."""
    monkeypatch.setattr(bounded, "MOST_BYTES", 192 << 20)
    monkeypatch.setattr(bounded, "MOST_RESULT", 8 << 20)
    monkeypatch.setattr(bounded, "MOST_S", 20.0)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("file") / "a.sqlite"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("create table kernels (name text)")
        connection.executemany("insert into kernels values (?)", [(LONG,)] * 1000)
    return path


@pytest.mark.parametrize("kind", GROWTH)
def test_growth_is_our_error(small, kind):
    with pytest.raises(AnalysisError):
        sql.query_tables({"kernels": KERNELS}, GROWTH[kind])


@pytest.mark.skipif(sys.platform != "linux", reason="memory is not limited there")
@pytest.mark.parametrize("kind", GROWTH_OF_A_FILE)
def test_growth_in_a_file_is_our_error(small, file, kind):
    with pytest.raises(AnalysisError):
        sqlite.query(file, GROWTH_OF_A_FILE[kind])


def test_a_server_answers_on(small, monkeypatch, tmp_path):
    monkeypatch.setattr(agents, "MOST_BYTES", 1 << 20)
    Trace({"kernels": KERNELS}).save(tmp_path / "saved")
    tools = agents.Tools([tmp_path])
    for kind in ("replace", "cross join"):
        with pytest.raises(AnalysisError):
            tools.sql("saved", GROWTH[kind])
    with pytest.raises(AnalysisError):  # a result that a process may hold, and no answer
        tools.sql(
            "saved",
            f"select {nested(TEXTS['replace'][0], 2)} || name as n from kernels limit 700",
            limit=10**9,
        )
    assert tools.sql("saved", "select count(*) as n from kernels")["rows"] == [{"n": 1000}]


def test_time_is_bounded(monkeypatch):
    monkeypatch.setattr(bounded, "MOST_S", 2.0)
    with pytest.raises(AnalysisError, match="time"):
        sql.query_tables(
            {"k": KERNELS},
            "select sum(a.rank * b.rank + c.rank * d.rank) as s from k a, k b, k c, k d",
        )
    # children of other tests may have ended, and their commands with them
    below = [one.as_dict(["cmdline"], ad_value=()) for one in psutil.Process().children()]
    assert not [one for one in below if bounded.__name__ in one["cmdline"]]


def test_the_process_ends_in_time_also_when_nobody_waits_for_it(tmp_path):
    code = (
        "import polars as pl\nfrom llmprof.trace.storage import bounded, sql\nbounded.MOST_S = 5.0\n"
        "sql.query_tables({'k': pl.DataFrame({'n': range(1000)})}, 'select sum(a.n) from k a, k, k c, k d, k e')"
    )
    with subprocess.Popen([sys.executable, "-c", code]) as asking:
        try:
            while not (below := psutil.Process(asking.pid).children()):
                assert asking.poll() is None
        finally:
            os.kill(asking.pid, signal.SIGKILL)
    assert gone(below[0].pid)


def test_a_result_is_the_same_as_in_this_process():
    when = datetime.datetime(2026, 1, 2, 3, 4, 5)
    frame = pl.DataFrame(
        {
            "text": ["a", None, "ä" * 100],
            "kind": pl.Series(["a", "b", "a"], dtype=pl.Categorical),
            "one_of": pl.Series(["a", "b", "a"], dtype=pl.Enum(["a", "b"])),
            "lists": [["x"], None, []],
            "records": [{"a": 1, "b": [1.5]}, {"a": None, "b": None}, None],
            "bytes": [b"\0", b"", None],
            "time": [when, None, when],
            "span": [when - when, None, datetime.timedelta(days=2)],
            "small": pl.Series([1, 2, None], dtype=pl.UInt8),
            "large": pl.Series([2**100, None, -1], dtype=pl.Int128),
            "nothing": [None, None, None],
            "truth": [True, False, None],
            "number": [float("nan"), float("inf"), None],
        }
    )
    for query in ("select * from T", "select * from t where 1 = 0", 'select text from "t"'):
        got = sql.query_tables({"t": frame, "other": pl.DataFrame({"a": [1]})}, query)
        assert_frame_equal(got, sql.compute_select({"t": frame}, query))
    assert sql.query_tables({"t": frame, "other": frame}, "show tables")["name"].to_list() == [
        "other",
        "t",
    ]


def test_a_full_disk_is_our_error(monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pl.DataFrame, "write_ipc", full)
    with pytest.raises(AnalysisError, match="No space left"):
        sql.query_tables({"kernels": KERNELS}, "select * from kernels")
