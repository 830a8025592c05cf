"""All explorers in tabs: made when shown, linked, prepared in the background, cancelled."""

from __future__ import annotations

import threading

import pytest

import llmprof
import llmprof.bundled
from llmprof import explore
from llmprof.errors import LlmprofError, NotCapturedError
from llmprof.explore.tabs import PANELS, Given, Preparation, Wanted, page
from llmprof.trace import Trace
from tests.analyze.test_requests import MS
from tests.analyze.test_requests import made as served_run


@pytest.fixture(scope="module")
def trace() -> Trace:
    return llmprof.sample("torch_tp1_eager")


def shown(opened, name: str) -> None:
    """Bring a tab to the front and wait until it is there."""
    opened.show(name)
    if name in opened._preparing:
        opened._preparing[name].join(60)
    assert name in opened.explorers


def test_tabs_are_made_when_they_are_first_shown(trace: Trace) -> None:
    opened = explore.open(trace)
    assert list(opened.titles) == ["Timeline", "Layers", "Overlap", "Collectives", "Kernels"]
    assert list(opened.explorers) == ["timeline"]
    for name in ("layers", "overlap", "all_reduce", "kernels"):
        shown(opened, name)
        assert opened.children[opened.selected_index].children == (opened[name],)
    kernels = opened["kernels"]
    opened.show("timeline")
    opened.show("kernels")
    assert opened["kernels"] is kernels


def test_explorers_are_linked(trace: Trace) -> None:
    opened = explore.open(trace)
    kernels, layers = opened["kernels"], opened["layers"]
    layers.layer = 3
    assert kernels.layer == opened["timeline"].layer == 3
    opened["timeline"].window = [0.0, 1e6]
    assert kernels.window == [0.0, 1e6]
    assert opened["overlap"].layer == 3


def test_selected_is_that_of_the_tab_in_front(trace: Trace) -> None:
    opened = explore.open(trace)
    shown(opened, "kernels")
    opened["kernels"].kernel = opened["kernels"].table["name"][0]
    assert opened.selected.equals(opened["kernels"].selected)
    assert opened.selected.height > 0


def test_another_trace_adds_a_tab(trace: Trace) -> None:
    metrics = llmprof.sample_metrics("ncu_tp1_eager")
    opened = explore.open(
        trace, metrics=metrics, other=llmprof.sample("torch_tp1_cudagraph"), names=("eager", "graphs")
    )
    assert opened.titles[-1] == "Compare"
    assert list(opened["compare"].names) == ["eager", "graphs"]
    assert opened["kernels"].has_metrics


def test_unknown_tab_and_no_trace(trace: Trace) -> None:
    with pytest.raises(LlmprofError, match="no tab 'colours'"):
        explore.open(trace).show("colours")
    with pytest.raises(LlmprofError, match=r"open.. got the string 'trace.json' as trace"):
        explore.open("trace.json")


def test_a_trace_without_anything_still_opens() -> None:
    opened = explore.open(Trace({}))
    for name in ("layers", "overlap", "all_reduce", "kernels"):
        shown(opened, name)
    assert opened["kernels"].selected.is_empty()


def test_a_picture_goes_with_the_tabs(trace: Trace) -> None:
    data = explore.open(trace)._repr_mimebundle_()
    assert data["image/png"].startswith("iVBOR")
    assert "application/vnd.jupyter.widget-view+json" in data


def test_preparation_tells_and_ends() -> None:
    told: list[tuple[str, int, int]] = []
    ended = threading.Event()

    def fails() -> None:
        raise NotCapturedError("nothing was recorded")

    preparation = Preparation([("one", lambda: 1), ("two", fails)], lambda *what: told.append(what), ended.set)
    preparation.start()
    assert ended.wait(10)
    assert told == [("one", 0, 2), ("two", 1, 2)]


def test_preparation_stops_when_cancelled() -> None:
    began, go_on = threading.Event(), threading.Event()
    told: list[str] = []

    def slow() -> None:
        began.set()
        go_on.wait(10)

    preparation = Preparation([("slow", slow), ("never", told.clear)], lambda what, *_: told.append(what), told.clear)
    preparation.start()
    assert began.wait(10)
    preparation.cancel()
    go_on.set()
    preparation.join(10)
    assert told == ["slow"]


def test_a_cancelled_tab_can_go_on(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    began, go_on = threading.Event(), threading.Event()

    def slow() -> None:
        began.set()
        go_on.wait(10)

    stages = {panel.name: panel for panel in PANELS}["layers"]
    monkeypatch.setitem(stages.__dict__, "stages", lambda _given: [("counting sheep", slow)])
    opened = explore.open(trace)
    opened.show("layers")
    assert began.wait(10)
    words, bar, cancel = opened.children[1].children[0].children
    assert words.value == "Layers: counting sheep"
    assert (bar.value, bar.max) == (0, 1)
    running = opened._preparing["layers"]
    cancel.click()
    go_on.set()
    running.join(10)
    assert "layers" not in opened.explorers
    said, again = opened.children[1].children[0].children
    assert said.value == "Layers: cancelled"
    began.clear()
    again.click()
    opened._preparing["layers"].join(10) if "layers" in opened._preparing else None
    assert "layers" in opened.explorers


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel.name)
def test_stages_of_every_panel_compute(panel, trace: Trace) -> None:
    given = Given(trace, other=trace)
    for words, compute in panel.stages(given):
        assert words
        try:
            compute()
        except NotCapturedError:
            assert panel.name == "all_reduce"


def test_a_run_adds_a_tab_of_its_requests_and_rows_to_the_timeline() -> None:
    run = served_run()
    opened = explore.open(run.trace, run=run)
    assert list(opened.titles)[:2] == ["Timeline", "Requests"]
    shown(opened, "requests")
    assert opened["timeline"]._data.rows[0].label == "request 0"
    opened["requests"].picked = 2
    assert opened["timeline"].window == [80.0 * MS, 131.0 * MS]
    assert opened.selected["part"].to_list() == ["waiting", "prefill", "decode"]


def test_the_page_of_a_run_folder_knows_its_requests(monkeypatch) -> None:
    folder = llmprof.bundled.notebook_data("h200") / "served_queue"
    monkeypatch.setattr("llmprof.explore.tabs.open", lambda trace, **given: given["run"])
    wanted = Wanted([str(folder)], [], [], ["a", "b"])
    assert page(wanted.environment()).requests.filter(phase="profiled").height == 40
    offline = Wanted([str(llmprof.bundled.samples_folder() / "torch_tp1_cudagraph")], [], [], ["a", "b"])
    assert page(offline.environment()) is None
