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
    opened["layers"].only = {"layer": 3}
    kernels.only, kernels.search = {**kernels.only, "stage": "attention"}, "flash"
    opened["timeline"].only = {**kernels.only, "window": [2e6, 5e6]}
    assert chips(opened) == {
        "layer": "layer 3",
        "stage": "stage attention",
        "window": "window 3.00 ms from 2.00 ms",
        "kernels.search": "Kernels: search flash",
    }
    opened.header.remove("layer")
    opened.header.remove("kernels.search")
    assert (set(opened["layers"].only), kernels.search) == ({"stage", "window"}, "")
    opened.header.remove("theme")  # no filter
    opened.header.clear()
    assert chips(opened) == {}
    assert kernels.only == opened["timeline"].only == {}


def test_a_pick_narrows_nothing_until_it_is_asked_for(opened):
    kernels, layers, timeline = opened["kernels"], opened["layers"], opened["timeline"]
    rows = kernels.table.height
    calls = kernels.table["count"].sum()
    timeline.window = [2e6, 5e6]
    timeline.rank, timeline.step, timeline.layer, timeline.stage = 0, 2, 3, "attention"
    assert (layers.step, layers.layer, kernels.stage) == (2, 3, "attention")
    assert (chips(opened), kernels.table.height) == ({}, rows)
    opened.header.narrow()
    assert set(chips(opened)) == {"rank", "step", "layer", "stage"}  # its window says no more
    assert kernels.table["count"].sum() < calls
    assert opened.header.picked == ""
    layers.layer = 4
    assert opened.header.picked == "layer 4"
    assert kernels.only["layer"] == 3
    opened.header.clear()
    assert (kernels.table.height, layers.layer, timeline.window) == (rows, None, None)
    timeline.window = [2e6, 5e6]
    opened.header.narrow()
    assert set(chips(opened)) == {"window"}


@pytest.mark.parametrize(
    ("tab", "narrowed"),
    [
        ("kernels", {"rank", "stage", "window", "kernels.search"}),
        ("collectives", {"rank", "window"}),
        ("layers", {"stage"}),
        ("timeline", set()),
        ("findings", set()),
    ],
)
def test_a_chip_says_where_it_narrows_nothing(opened, tab, narrowed):
    opened[tab] if tab != "findings" else None
    opened["kernels"].only = {"rank": 0, "stage": "attention", "window": [2e6, 5e6]}
    opened["kernels"].search = "flash"
    opened.show(tab)
    held = opened.header.chips
    assert len(held) == 4
    assert {chip["name"] for chip in held if not chip["idle"]} == narrowed


def test_what_a_tab_has_to_show_one_of_is_no_filter(opened):
    opened["collectives"].kind = "all_gather"
    opened["timeline"].search = "flash"  # hits are marked, nothing is left out
    assert chips(opened) == {}
    opened["collectives"].phase = "decode"
    assert chips(opened) == {"collectives.phase": "Collectives: phase decode"}
    opened.header.clear()
    assert (opened["collectives"].phase, chips(opened)) == (None, {})


def test_back_and_forward_lead_through_tabs_filters_and_selections(opened):
    kernels, timeline = opened["kernels"], opened["timeline"]
    assert not opened.header.back
    opened.show("timeline")
    timeline.window = [0.0, 1e6]
    opened.show("kernels")
    kernels.only = {"stage": "attention"}
    opened.header.go(-1)
    assert (kernels.only, opened.selected_index) == ({}, opened.titles.index("Kernels"))
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
