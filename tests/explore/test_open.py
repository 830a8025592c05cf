"""All explorers in tabs: made when shown, linked, prepared in the background, cancelled."""

import html
import threading

import polars as pl
import pytest

import llmprof
import llmprof.readers.bundled
from llmprof import analyze, explore
from llmprof.errors import LlmprofError
from llmprof.explore.served import ServedFiles, tabs_page
from llmprof.explore.tabs import PANELS, filters_of
from llmprof.explore.timeline.data import HOST
from llmprof.findings.card import chain_findings
from llmprof.findings.cause import readable_name
from llmprof.trace import Trace
from llmprof.units import format_ns
from tests.analyze.test_requests import MS
from tests.analyze.test_requests import made as served_run
from tests.explore.asking import ask
from tests.samples import sample


@pytest.fixture(scope="module")
def trace():
    return sample("torch_tp1_eager")


def shown(opened, name):
    """Bring a tab to the front and wait until it is there."""
    opened.show(name)
    if name in opened._preparing:
        opened._preparing[name].join(60)
    assert name in opened.explorers


def test_tabs_are_made_when_they_are_first_shown(trace):
    opened = explore.open(trace)
    assert list(opened.titles) == [
        "Findings",
        "Timeline",
        "Layers",
        "Overlap",
        "Collectives",
        "What if",
        "Kernels",
    ]
    assert list(opened.explorers) == ["timeline"]
    for name in ("layers", "overlap", "collectives", "what_if", "kernels"):
        shown(opened, name)
        assert opened.tabs.children[opened.selected_index].children == (opened[name],)
    kernels = opened["kernels"]
    opened.show("timeline")
    opened.show("kernels")
    assert opened["kernels"] is kernels


def test_explorers_are_linked(trace):
    opened = explore.open(trace, other=trace)
    shown(opened, "compare")
    kernels, layers = opened["kernels"], opened["layers"]
    layers.layer = 3
    assert kernels.layer == opened["timeline"].layer == 3
    opened["timeline"].window = [0.0, 1e6]
    assert kernels.window == [0.0, 1e6]
    assert opened["overlap"].layer == 3


def test_unknown_tab_and_no_trace(trace):
    with pytest.raises(LlmprofError, match="no tab 'colours'"):
        explore.open(trace).show("colours")
    with pytest.raises(LlmprofError, match=r"open.. got 'trace.json' as trace"):
        explore.open("trace.json")
    opened = explore.open(Trace({}))
    for name in ("layers", "overlap", "collectives", "kernels"):
        shown(opened, name)
    assert opened["kernels"].selected.is_empty()


def test_a_cancelled_tab_can_go_on(trace, monkeypatch):
    began, go_on = threading.Event(), threading.Event()

    def slow():
        began.set()
        go_on.wait(10)

    stages = {panel.name: panel for panel in PANELS}["layers"]
    monkeypatch.setitem(
        stages.__dict__,
        "stages",
        lambda _given: [("counting sheep", slow), ("the rest", lambda: None)],
    )
    opened = explore.open(trace)
    opened.show("layers")
    assert began.wait(10)
    words, bar, cancel = opened.tabs.children[2].children[0].children
    assert words.value == "Layers: counting sheep"
    assert (bar.value, bar.max) == (0, 2)
    running = opened._preparing["layers"]
    cancel.click()
    go_on.set()
    running.join(10)
    assert "layers" not in opened.explorers
    said, again = opened.tabs.children[2].children[0].children
    assert said.value == "Layers: cancelled"
    began.clear()
    again.click()
    opened._preparing["layers"].join(10) if "layers" in opened._preparing else None
    assert "layers" in opened.explorers


def test_a_run_adds_a_tab_of_its_requests_and_rows_to_the_timeline():
    run = served_run()
    opened = explore.open(run.trace, run=run)
    assert list(opened.titles)[:3] == ["Findings", "Timeline", "Requests"]
    assert opened["timeline"].window is not None
    assert opened.header.picked == "", "the timeline begins there, and nobody picked it"
    shown(opened, "requests")
    assert opened["timeline"]._data.rows[0].label == "request 0"
    opened["requests"].picked = 2
    assert opened["timeline"].window == [80.0 * MS, 131.0 * MS]
    assert opened.selected["part"].to_list() == ["waiting", "prefill", "decode"]


def test_the_page_of_a_run_folder_knows_its_requests(monkeypatch):
    folder = llmprof.readers.bundled.notebook_data("h200") / "served_queue"
    monkeypatch.setattr("llmprof.explore.served._at", lambda opened, finding: opened._given)
    given = tabs_page(ServedFiles([str(folder)], [], [], ["a", "b"]).environment())
    assert given.run.requests.filter(phase="profiled").height == 40
    assert given.tried is given.run
    monkeypatch.setattr("llmprof.explore.served._has_requests", lambda run: False)
    offline = tabs_page(ServedFiles([str(folder)], [], [], ["a", "b"]).environment())
    assert offline.run is None
    assert offline.tried.folder.path == folder
    trace = ServedFiles(
        [str(llmprof.readers.bundled.samples_folder() / "torch_tp1_cudagraph")], [], [], ["a", "b"]
    )
    assert tabs_page(trace.environment()).tried is None


def front(opened):
    """The first tab, once it is there."""
    if "findings" in opened._preparing:
        opened._preparing["findings"].join(600)
    return opened._front


def test_findings_come_first_each_with_a_button_that_shows_it():
    opened = explore.open(sample("torch_tp4_eager_nccl"))
    page = front(opened)
    found = analyze.findings(opened._given.trace)
    assert opened.selected_index == 0
    assert opened.selected.is_empty()
    assert len(page.buttons) == found.height
    ran = page.children[-1].value
    for words in ("vLLM", "4 x NVIDIA H200", "4 requests in decode", "name unknown, 28 layers"):
        assert words in ran
    first = found.filter(rule="arrival_skew").row(0, named=True)
    causes, effects, facts = chain_findings(found)
    lines = [line for line in page.children if len(getattr(line, "children", ())) == 2]
    shown = [line.children[1].value.replace("\N{NO-BREAK SPACE}", " ") for line in lines]
    of_causes = [one for one in shown if 'class="figure"' in one]
    assert len(of_causes) == len(
        causes
    )  # facts and what follows from others have no number of their own
    assert len(shown) - len(of_causes) == len(facts) + sum(map(len, effects.values())) > 0
    gained = causes[0]
    assert (
        f'<span class="figure">{format_ns(gained["predicted_ns"])}</span> saved a step'
        in of_causes[0]
    )
    assert html.escape(gained["prediction"]) in of_causes[0]
    timed = next(row for row in causes if not row["predicted_ns"])
    number = next(n for n, row in enumerate(causes) if row is timed)
    assert (
        f'<span class="figure">{format_ns(timed["figure"])}</span> a mixed step'
        in of_causes[number]
    )
    picture = next(
        line.value for line in page.children if "llmprof-bars" in getattr(line, "value", "")[:60]
    )
    assert [f">rank {rank}<" in picture for rank in range(4)] == [True] * 4

    page.buttons[first["order"] - 1].click()
    assert opened.titles[opened.selected_index] == "Collectives"
    timeline, collectives = opened["timeline"], opened["collectives"]
    assert timeline.rank == first["rank"]
    # the whole step in which it is worst, not only its longest piece
    steps = analyze.steps(opened._given.trace).filter(rank=first["rank"], start_ns=timeline.span[0])
    assert steps["dur_ns"].to_list() == [timeline.span[1] - timeline.span[0]]
    assert timeline.span[0] <= first["start_ns"] < first["end_ns"] <= timeline.span[1]
    assert (collectives.rank, collectives.kind) == (first["rank"], "all_reduce")
    assert collectives.window == timeline.window
    assert opened.header.chips == []  # a finding is picked, and narrows no tab
    opened.selected_index = 0
    assert opened.selected.height == collectives_of(opened._given.trace)

    idle = found.filter(rule="host_bound").row(0, named=True)
    opened.show_finding(idle["order"])
    assert opened.titles[opened.selected_index] == "Timeline"
    assert timeline.rank == idle["rank"]
    assert timeline.window[0] < idle["start_ns"] < idle["end_ns"] < timeline.window[1]
    with pytest.raises(LlmprofError, match="there is no finding 99"):
        opened.show_finding(99)


def test_the_heaviest_stage_opens_the_kernels_of_it():
    opened = explore.open(sample("torch_tp1_cudagraph"))
    found = analyze.findings(opened._given.trace)
    stage = found.filter(rule="heaviest_stage").row(0, named=True)
    opened.show_finding(stage["order"])
    assert opened.titles[opened.selected_index] == "Kernels"
    assert opened["kernels"].only == filters_of(stage)


def test_a_page_that_begins_to_ask_gets_the_first_tab_again(monkeypatch):
    """While a page puts its widgets together it misses what changes, which may be the end of the
    preparation.
    """
    opened = explore.open(sample("torch_tp1_eager"))
    front(opened)
    told = []
    monkeypatch.setattr(
        type(opened._box(opened._panels[0])), "send_state", lambda _box, key=None: told.append(key)
    )
    timeline = opened["timeline"]
    for what, times in (
        ("rows", 1),
        ("names", 1),
        ("rows", 2),
    ):  # a page that is loaded again asks the same again
        timeline._handle_custom_msg(
            {"kind": "ask", "what": what, "id": 1, "names": [], "numbers": []}, []
        )
        assert told == ["children"] * times


def test_show_me_opens_what_the_host_did():
    trace = sample("torch_tp4_eager_nccl")
    opened = explore.open(trace)
    late = analyze.findings(trace).filter(rule="host_bound").row(0, named=True)
    opened.show_finding(late["order"])
    timeline = opened["timeline"]
    rows = [timeline._data.row(number) for number in timeline.span_rows]
    assert {(row.rank, row.kind in HOST) for row in rows} == {(late["rank"], True)}
    assert len({row.thread for row in rows}) == 1
    answer, _ = ask(timeline, "span", timeline.span, timeline.span_rows)
    times = [row["total_ns"] for row in answer["rows"]]
    assert times == sorted(times, reverse=True)
    assert sum(times) == timeline.span[1] - timeline.span[0]  # each moment counts once
    assert sum(row["count"] for row in answer["rows"]) > 1
    assert not timeline.selected.is_empty()


def test_a_kernel_that_is_picked_in_one_tab_is_shown_in_the_others():
    opened = explore.open(sample("torch_tp1_eager"))
    kernels, timeline = opened["kernels"], opened["timeline"]
    name = kernels.table["name"][3]
    kernels.kernel = name
    assert opened["layers"].kernel == timeline.kernel == timeline.search == name
    assert opened.header.chips == []
    assert readable_name(name) in opened.header.picked
    events = opened._given.trace.events.filter(pl.col("name") != name, source="kernel")
    timeline.select(events["event"][0])
    assert kernels.kernel == events["name"][0]  # nothing else is highlighted by a click
    assert timeline.search == name
    opened.header.clear()
    assert kernels.kernel is None


@pytest.mark.parametrize("tab", ["timeline", "layers", "overlap", "collectives", "ranks"])
def test_the_selection_of_each_tab_is_a_frame_and_csv(tab):
    opened = explore.open(sample("torch_tp4_eager_nccl"))
    explorer = opened[tab]
    explorer.rank, explorer.step, explorer.layer = 1, 3, 2
    if tab == "timeline":
        explorer.select(1)
    if tab == "collectives":
        explorer.call = 5
    if tab == "ranks":
        explorer.picked = [1]
    rows = explorer.selected
    assert rows.height
    answer, _ = ask(explorer, "selection")
    lines = answer["content"].splitlines()
    assert (len(lines), lines[0].split(",")) == (rows.height + 1, rows.columns)


def collectives_of(trace):
    return analyze.collectives(trace).filter(kind="all_reduce").height


def test_a_trace_without_findings_says_so_and_names_are_escaped():
    opened = explore.open(Trace({}).called("<img src=x>"))
    page = front(opened)
    assert page.buttons == []
    assert "<img" not in page.children[-1].value
    assert "holds no" in page.children[-1].value
    assert "unknown: " in page.children[-1].value
