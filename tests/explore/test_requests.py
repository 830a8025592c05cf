"""The explorer of slow requests without a browser, on the run by hand of
``tests/analyze/test_requests``.
"""

import pytest
import traitlets

from llmprof import analyze, explore
from llmprof.errors import AnalysisError, LlmprofError
from tests.analyze.test_requests import MS, made
from tests.explore.asking import ask


@pytest.fixture
def run():
    return made()


def test_the_table_is_that_of_the_analysis_in_the_order_that_was_asked_for(run):
    widget = explore.requests(run)
    assert widget.table.equals(analyze.requests(run).sort("ttft_ns", descending=True))
    assert widget.table["request"].to_list() == [1, 2, 0]  # first tokens after 49, 41 and 26 ms
    answer, _ = ask(widget, "table", "-e2e_ns", 60)
    assert [(row["request"], row["e2e_ns"]) for row in answer["rows"]] == [
        (1, 100 * MS),
        (0, 81 * MS),
        (2, 51 * MS),
    ]
    assert (answer["total"], answer["longest"]) == (3, 100 * MS)
    # parts that no request has are not in the legend; the bar of a row is as long as its latency
    names = [part["name"] for part in answer["parts"]]
    assert "left_out_ns" not in names
    for row in answer["rows"]:
        assert sum(row[name] for name in names) == row["e2e_ns"]
    widget.sort = "start_ns"
    assert widget.table["request"].to_list() == [0, 1, 2]
    rows, _ = ask(widget, "rows", "start_ns", 1, 5)
    assert ([row["request"] for row in rows["rows"]], rows["offset"]) == ([1, 2], 1)


def test_a_picked_request_gives_its_spans_and_moves_what_is_linked(run):
    widget = explore.requests(run)
    assert widget.selected.height == 0
    line = widget.timeline()
    ask(widget, "pick", "-ttft_ns", 0)
    assert widget.picked == 1
    assert widget.selected.equals(analyze.requests(run, by="span").filter(request=1))
    assert widget.window == line.window == [12.0 * MS, 112.0 * MS]
    assert explore.requests(run, picked=2).timeline().window == [80.0 * MS, 131.0 * MS]


def test_what_is_known_of_a_request_and_of_its_slowest_step(run):
    answer, _ = ask(explore.requests(run), "details", 1)
    facts = dict(answer["facts"])
    assert facts["first token"] == "49.0 ms"
    assert facts["tokens"] == "300 in, 5 out"
    assert facts["waited behind the prefill of"] == "0"
    assert "preempted" not in facts
    assert answer["parts"][0] == ("its own decode", "40.0 ms (40.0 %)")
    assert answer["step"] == 1  # 30 ms, where the median of steps with prefill takes 20
    titles = analyze.findings(run.trace, step=1)["title"].to_list()
    assert [reason["title"] for reason in answer["reasons"]] == titles[:4]


def test_what_is_not_there_is_refused(run):
    widget = explore.requests(run)
    for name, value in (("sort", "colour"), ("picked", 7)):
        with pytest.raises(traitlets.TraitError):
            setattr(widget, name, value)
    with pytest.raises(AnalysisError, match="there is no request 7"):
        ask(widget, "details", 7)
    with pytest.raises(AnalysisError, match=r"disagree by 3\.00 ms"):
        explore.requests(made(apart_ms=3.0))
    with pytest.raises(LlmprofError, match=r"a run of llmprof\.launch"):
        explore.requests(run.trace)
    assert widget.picture().startswith(b"\x89PNG")
