"""Above the tabs: filters as chips, and the way back through the views."""

import pytest

from llmprof import explore
from llmprof.explore.header import explorer as header
from tests.samples import sample


@pytest.fixture
def opened(monkeypatch):
    """All tabs of a trace; each change is a view of its own."""
    monkeypatch.setattr(header, "TOGETHER_S", 0.0)
    return explore.open(sample("torch_tp1_eager"))


def chips(opened):
    return {chip["name"]: chip["text"] for chip in opened.header.chips}


def test_each_filter_is_a_chip_that_removes_it(opened):
    kernels = opened["kernels"]
    assert chips(opened) == {}
    opened["layers"].layer = 3
    kernels.stage, kernels.search = "attention", "flash"
    opened["timeline"].window = [2e6, 5e6]
    assert chips(opened) == {
        "layer": "layer 3",
        "stage": "stage attention",
        "window": "window 3.00 ms from 2.00 ms",
        "kernels.search": "Kernels: search flash",
    }
    opened.header.remove("layer")
    opened.header.remove("kernels.search")
    assert (kernels.layer, opened["layers"].layer, kernels.search) == (None, None, "")
    opened.header.remove("theme")  # no filter
    opened.header.clear()
    assert chips(opened) == {}
    assert (kernels.stage, opened["timeline"].window) == (None, None)


def test_the_kind_of_collective_that_comes_first_is_no_filter(opened):
    calls = opened["collectives"]
    assert calls.unfiltered("kind") is None
    calls._first_kind = calls.kind = "all_reduce"
    assert chips(opened) == {}
    calls.kind = "all_gather"
    assert chips(opened) == {"collectives.kind": "Collectives: kind all_gather"}
    opened.header.clear()
    assert (calls.kind, chips(opened)) == ("all_reduce", {})


def test_back_and_forward_lead_through_tabs_filters_and_selections(opened):
    kernels, timeline = opened["kernels"], opened["timeline"]
    assert not opened.header.back
    opened.show("timeline")
    timeline.window = [0.0, 1e6]
    opened.show("kernels")
    kernels.stage = "attention"
    opened.header.go(-1)
    assert (kernels.stage, opened.selected_index) == (None, opened.titles.index("Kernels"))
    opened.header.go(-1)
    assert (timeline.window, opened.titles[opened.selected_index]) == ([0.0, 1e6], "Timeline")
    opened.header.go(-1)
    assert timeline.window is None
    opened.header.go(1)
    assert timeline.window == [0.0, 1e6]
    assert (opened.header.back, opened.header.forward) == (True, True)
    timeline.window = [0.0, 2e6]  # another way from here
    assert not opened.header.forward
    for _ in range(9):
        opened.header.go(-1)
    assert (opened.selected_index, timeline.window, opened.header.back) == (0, None, False)


def test_changes_that_follow_at_once_are_one_view(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(header.time, "monotonic", lambda: now[0])
    views = header.ViewHistory({"n": 0})
    for n in (1, 2, 3):
        now[0] += 0.1
        views.note({"n": n})
    now[0] += 10
    views.note({"n": 4})
    assert [views.go(-1), views.go(-1), views.go(-1)] == [{"n": 3}, {"n": 0}, {"n": 0}]
    assert [views.go(2), views.go(9)] == [{"n": 4}, {"n": 4}]
    for n in range(2 * header.MOST):
        now[0] += 10
        views.note({"n": -n})
    assert views.go(-9 * header.MOST) == {"n": -header.MOST}
