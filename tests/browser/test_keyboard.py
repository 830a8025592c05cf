"""Explorers without a pointer: from the first Tab to a frame, in light and dark."""

import threading

import pytest

from llmprof import explore
from llmprof.explore.layers import explorer
from tests.analyze.test_ranks import on_hosts, run_of
from tests.browser import drawn
from tests.browser.drawn import tab_to
from tests.browser.host import PATIENCE_S

SAMPLE = "torch_tp4_eager_nccl"

SAID = "document.activeElement.closest('.lp-panel').querySelector('[aria-live]').textContent"


@pytest.fixture(params=["light", pytest.param("dark", marks=pytest.mark.slow)])
def show(host, request):
    """Show a widget in one of the themes."""
    return lambda widget: host(widget, width=1100, height=2000, theme=request.param)


def press(shown, *keys):
    for key in keys:
        shown.page.keyboard.press(key)


def test_layers_stay_at_a_bar_while_slack_is_found(show, sample_trace, monkeypatch):
    """Slack comes later than the rest of a cell; who is at a bar of its stages then stays there."""
    known = threading.Event()
    monkeypatch.setattr(
        explorer, "unknown_slack", lambda trace: known.wait(PATIENCE_S) and "It is not known here."
    )
    widget = explore.layers(sample_trace(SAMPLE), rank=3)
    shown = show(widget)
    drawn.settled(shown, ".lp-layers", rank=3)
    tab_to(shown.page, "Heat map of layers")
    press(shown, "ArrowRight", "ArrowDown", "Enter")
    shown.page.wait_for_function("document.querySelector('.lp-layers')?.dataset.cell")
    tab_to(shown.page, "Time of each stage")
    press(shown, "ArrowDown", "ArrowDown")
    at = shown.page.evaluate(SAID)
    assert at
    known.set()
    shown.page.get_by_text("It is not known here.").wait_for()
    assert shown.page.evaluate(SAID) == at
    press(shown, "Enter")
    assert at.startswith(shown.wait(lambda: widget.stage))


@pytest.mark.smoke
def test_layers(show, sample_trace):
    widget = explore.layers(sample_trace(SAMPLE))
    shown = show(widget)
    drawn.settled(shown, ".lp-layers", rank=0)
    tab_to(shown.page, "Show")
    press(shown, "b")  # the choice that begins so
    drawn.settled(shown, ".lp-layers", measure="busy")
    tab_to(shown.page, "Rank")
    press(shown, "3")
    drawn.settled(shown, ".lp-layers", rank=3)
    tab_to(shown.page, "Heat map of layers")
    press(shown, "ArrowRight", "ArrowDown", "Enter")
    step, layer = shown.wait(lambda: widget.layer is not None and (widget.step, widget.layer))
    assert set(widget.selected.select("rank", "step", "layer").rows()) == {(3, step, layer)}
    drawn.settled(shown, ".lp-layers", cell=[3, step, layer, None])
    tab_to(shown.page, "Time of each stage")
    press(shown, "ArrowDown", "Enter")
    stage = shown.wait(lambda: widget.stage)
    assert set(widget.selected["stage"]) == {stage}
    drawn.settled(shown, ".lp-layers", stage=None, cell=[3, step, layer, stage])


@pytest.mark.smoke
def test_overlap(show, sample_trace):
    widget = explore.overlap(sample_trace(SAMPLE))
    shown = show(widget)
    drawn.settled(shown, ".lp-overlap", "bars", window=None)
    tab_to(shown.page, "Compare with")
    press(shown, "r")
    against = shown.wait(lambda: widget.against)
    drawn.settled(shown, ".lp-overlap", "bars", against=against)
    tab_to(shown.page, "Parts of the time")
    press(shown, "ArrowRight", "ArrowRight", "Enter")
    shown.wait(lambda: widget.step is not None and widget.window)
    drawn.settled(shown, ".lp-overlap", "bars", window=list(widget.window))
    whole = widget.window[1] - widget.window[0]
    tab_to(shown.page, "Lanes of the window")
    press(shown, "+")
    near = shown.wait(
        lambda: widget.window if widget.window[1] - widget.window[0] < whole else None
    )
    drawn.settled(shown, ".lp-overlap", window=list(near))
    press(shown, "d")
    shown.wait(lambda: widget.window[0] > near[0])
    assert 0 < widget.selected.height < widget.trace.kernels.height
    press(shown, "0")
    shown.wait(lambda: widget.window is None)
    drawn.settled(shown, ".lp-overlap", "bars", window=None)


@pytest.mark.smoke
def test_collectives(show, sample_trace):
    widget = explore.collectives(sample_trace(SAMPLE))
    shown = show(widget)
    drawn.settled(shown, ".lp-collectives", "call")
    tab_to(shown.page, "Phase")
    press(shown, "d")
    drawn.settled(shown, ".lp-collectives", phase="decode")
    tab_to(shown.page, "Wait and transfer over time")
    press(shown, "ArrowRight", "ArrowRight", "Enter")
    call = shown.wait(lambda: widget.call is not None and [widget.call])[0]
    assert set(widget.selected["call"]) == {call}
    assert widget.selected["rank"].to_list() == [0, 1, 2, 3]
    drawn.settled(shown, ".lp-collectives", call=call)
    tab_to(shown.page, "Next call")
    press(shown, "Enter")
    shown.wait(lambda: widget.call not in (None, call))
    drawn.settled(shown, ".lp-collectives", call=widget.call)


@pytest.mark.smoke
def test_ranks(show):
    widget = explore.ranks(run_of(**on_hosts()))
    shown = show(widget)
    drawn.settled(shown, ".lp-ranks", measure="step")
    tab_to(shown.page, "Show")
    press(shown, "w")
    drawn.settled(shown, ".lp-ranks", measure="wait")
    tab_to(shown.page, "Heat map of ranks")
    press(shown, "ArrowRight", "ArrowDown", "Enter")
    rank, step = shown.wait(lambda: widget.picked and (widget.picked[0], widget.step))
    assert widget.selected.select("rank", "step").rows() == [(rank, step)]
    drawn.settled(shown, ".lp-ranks", picked=[[rank], step])
    tab_to(shown.page, "Only the picked ranks")
    press(shown, "Enter")
    drawn.settled(shown, ".lp-ranks", rank_range=[rank, rank])
    assert shown.faults() == []


def test_kernels(show, sample_trace):
    widget = explore.kernels(sample_trace("torch_tp1_eager"))
    shown = show(widget)
    shown.page.locator("[aria-busy=false] tr[data-row]").first.wait_for()
    tab_to(shown.page, "Search")
    shown.page.keyboard.type("norm")
    shown.wait(lambda: widget.search == "norm" and 0 < widget.table.height < 9)
    tab_to(shown.page, "stage")
    press(shown, "n")
    stage = shown.wait(lambda: widget.only.get("stage"))
    tab_to(shown.page, "launches")
    press(shown, "Enter")
    shown.wait(lambda: widget.sort == "-count")
    shown.page.locator("[aria-busy=false] tr[data-row]").first.wait_for()
    shown.quiet()
    shown.page.get_by_role("grid").focus()
    press(shown, "ArrowDown", "Enter")
    shown.wait(lambda: widget.kernel is not None)
    assert set(widget.selected.select("stage", "name").rows()) == {(stage, widget.kernel)}


@pytest.mark.smoke
def test_compare(show, sample_trace):
    widget = explore.compare(sample_trace("torch_tp1_eager"), sample_trace("torch_tp1_cudagraph"))
    shown = show(widget)
    page = shown.page
    page.wait_for_function(
        "document.querySelector('[data-tracks]') && document.querySelector('[data-story]')"
    )
    page.locator("[aria-busy=false] tr[data-row]").first.wait_for()
    tab_to(page, "phase")
    press(shown, "p")  # the choice that begins so
    shown.wait(lambda: widget.phase == "prefill")
    page.wait_for_function(
        "JSON.parse(document.querySelector('[data-story]').dataset.story).phase === 'prefill'"
    )
    tab_to(page, "Next step")
    press(shown, "Enter")
    shown.wait(lambda: widget.place is not None)
    tab_to(page, "Timelines of both runs")
    press(shown, "+")
    near = shown.wait(lambda: widget.zoom)
    press(shown, "d")
    shown.wait(lambda: widget.zoom != near)
    press(shown, "0")
    shown.wait(lambda: widget.zoom is None)
    for name, trait, values in (
        ("vanished", "status", ("only_a", None)),
        ("change", "sort", ("delta_ns", "-delta_ns")),
    ):
        tab_to(page, name)
        for value in values:
            press(shown, "Enter")
            shown.wait(lambda trait=trait, value=value: getattr(widget, trait) == value)
    page.locator("[aria-busy=false] tr[data-row]").first.wait_for()
    page.get_by_role("grid").focus()
    press(shown, "ArrowDown", "Enter")
    shown.wait(lambda: widget.picked is not None and widget.selected.height > 0)
