"""SQL over the tables of a trace: it answers, and it only reads."""

import polars as pl
import pytest

from llmprof.errors import AnalysisError, NotCapturedError
from llmprof.trace import Trace

KERNELS = pl.DataFrame(
    {
        "rank": [0, 0, 1],
        "start_ns": [0, 10, 5],
        "dur_ns": [4, 6, 5],
        "name": ["gemm", "norm", "read_csv('x')"],
    },
    schema_overrides={"rank": pl.Int32},
)


@pytest.fixture
def trace():
    return Trace({"kernels": KERNELS, "copies": KERNELS.clear().with_columns(kind=pl.lit("HtoD"))})


def test_groups_and_sums(trace):
    asked = "select rank, count(*) as count, sum(dur_ns) as total_ns from kernels group by rank order by rank"
    assert trace.sql(asked).rows() == [(0, 2, 10), (1, 1, 5)]
    assert (
        trace.sql("with k as (select * from kernels where dur_ns > 4) select name from k")[
            "name"
        ].len()
        == 2
    )
    assert trace.sql("show tables")["name"].sort().to_list() == ["collectives", "copies", "kernels"]
    assert trace.sql("select * from copies").height == 0


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("drop table kernels", "begins with DROP"),
        ("create table x as select * from kernels", "begins with CREATE"),
        ("attach database 'x' as y", "begins with ATTACH"),
        ("copy kernels to 'x.csv'", "begins with COPY"),
        ("", "begins with nothing"),
        ("select 1; drop table kernels", "one statement"),
        ("select * from read_csv('/etc/hostname')", "calls read_csv"),
        ("select * from\nREAD_PARQUET ('https://example.org/x')", "calls READ_PARQUET"),
        ("select nope from kernels", "nope"),
        ("select * from memory", "memory"),
        ("selec name from kernels", "begins with SELEC"),
    ],
)
def test_what_does_not_read_is_refused(trace, tmp_path, monkeypatch, asked, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AnalysisError, match=message):
        trace.sql(asked)
    assert trace.kernels.height == 3
    assert list(tmp_path.iterdir()) == []


def test_the_file_of_a_trace_that_has_none(trace):
    with pytest.raises(NotCapturedError, match="not read from one SQLite file"):
        trace.sql("select 1", on="file")
    with pytest.raises(AnalysisError, match="on='disk' is not known; expected 'tables' or 'file'"):
        trace.sql("select 1", on="disk")
