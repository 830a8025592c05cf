"""Queries of a timeline: results as rows, places and rows of the timeline; what is wrong says
where.
"""

import polars as pl
import pytest

from llmprof import explore
from llmprof.errors import AnalysisError
from llmprof.explore.timeline.query import statement
from tests.explore.asking import ask
from tests.explore.test_timeline import described, row_of, whole_trace


@pytest.fixture(scope="module")
def widget():
    return explore.timeline(whole_trace())


def test_the_result_is_what_trace_sql_gives(widget):
    text = "select name, count(*) as n, sum(dur_ns) as total_ns from kernels group by name order by total_ns, name"
    answer, _ = ask(widget, "query", text=text)
    frame = widget.trace.sql(text)
    assert widget.queried.equals(frame)
    assert (answer["total"], answer["problem"], answer["places"]) == (frame.height, "", False)
    assert [(field["name"], field["number"]) for field in answer["columns"]] == [
        ("name", False),
        ("n", True),
        ("total_ns", True),
    ]
    assert answer["rows"][0] == [str(value) for value in frame.row(0)]
    assert eval(answer["python"], {"trace": widget.trace}).equals(frame)
    rows, _ = ask(widget, "queried", first=0, count=2, sort="-name")
    assert [row[0] for row in rows["rows"]] == frame["name"].sort(descending=True).head(2).to_list()
    assert ask(widget, "csv", sort="-name")[0]["content"].splitlines()[0] == "name,n,total_ns"


@pytest.mark.parametrize(
    "text", ["select 'it''s' as a", 'select "name"\nfrom kernels', "select 'a\\b'\nas c", 'x\n"""']
)
def test_a_statement_of_python_says_the_same_text(text):
    class Said:
        def sql(self, given):
            return given.strip()

    assert eval(statement(text), {"trace": Said()}) == text.strip()


@pytest.mark.parametrize(
    ("text", "line", "column", "words"),
    [
        ("select nam from kernels", 1, 8, "perhaps name"),
        ("select name\nfrom kernel", 2, 6, "perhaps kernels"),
        ("select name frm kernels", 1, 17, "end of statement"),
        ("select cout(name) from kernels", 1, 8, "count"),
        ("select * from read_csv('/etc/passwd')", 1, 15, "files are not read"),
        ("delete from kernels", None, None, "SELECT"),
        ("", None, None, "begins with nothing"),
    ],
)
def test_a_wrong_query_says_where_and_what_is_meant(widget, text, line, column, words):
    before = widget.queried
    answer, _ = ask(widget, "query", text=text)
    assert (answer["line"], answer["column"]) == (line, column)
    assert words in answer["problem"]
    assert widget.queried.equals(before)  # the last result stays


def test_a_row_of_the_result_is_a_place_on_the_timeline(widget):
    ask(widget, "query", text="select rank, name, start_ns, dur_ns from kernels")
    ask(widget, "place", row=1, sort="-start_ns")
    last = widget.trace.kernels.sort("start_ns", descending=True).row(1, named=True)
    assert list(widget.span) == [last["start_ns"], last["start_ns"] + last["dur_ns"]]
    assert widget.rank == 0
    with pytest.raises(AnalysisError, match="no time"):
        ask(widget, "place", row=999, sort="")
    ask(widget, "query", text="select name as start_ns from kernels")
    with pytest.raises(AnalysisError, match="no time"):
        ask(widget, "place", row=0, sort="")


def test_a_result_becomes_a_row_of_its_own():
    widget = explore.timeline(whole_trace())
    ask(widget, "find")
    before = len(described(widget)["rows"])
    ask(
        widget,
        "query",
        text="select name, start_ns, dur_ns, grid_x from kernels where name like '%rms%'",
    )
    answer, _ = ask(widget, "track")
    told = described(widget)
    assert answer["row"] == before
    assert told["rows"][before]["count"] == widget.queried.height > 0
    assert told["groups"][0]["label"] == "my rows"
    again = explore.timeline(widget.trace, view=widget.view)  # a saved view makes its rows again
    assert again.queries == widget.queries
    assert described(again)["rows"][before]["count"] == widget.queried.height
    with pytest.raises(AnalysisError, match="perhaps name"):
        explore.timeline(widget.trace, view={**widget.view, "queries": ["select nam from kernels"]})
    widget.selection = {"row": before, "id": 1}
    assert widget.selected.equals(widget.queried[1])
    facts = dict(ask(widget, "describe", row=before, id=1)[0]["facts"])
    assert facts["name"] == widget.queried["name"][1]
    widget.selection = None
    widget.span, widget.span_rows = described(widget)["whole"], [before]
    assert widget.selected.equals(widget.queried)
    assert widget.rank is None
    assert row_of(widget, "stream") < before  # numbers of other rows stay
    for text, words in (
        ("select name from kernels", "no column start_ns"),
        ("select start_ns, dur_ns from kernels where dur_ns < 0", "no rows"),
    ):
        ask(widget, "query", text=text)
        with pytest.raises(AnalysisError, match=words):
            ask(widget, "track")


def test_tables_and_columns_are_known_for_completion(widget):
    known, _ = ask(widget, "tables")
    columns = {table["name"]: table["columns"] for table in known["tables"]}
    assert columns["kernels"] == widget.trace.kernels.columns
    assert {"select", "group by", "count"} - set(known["words"]) <= {"count"}
    assert isinstance(widget.queried, pl.DataFrame)
