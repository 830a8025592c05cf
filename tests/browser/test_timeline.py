"""The timeline in a real JupyterLab: gestures, and what the kernel knows after each."""

import json

import pytest
from playwright.sync_api import expect

from tests.browser.drawn import drag, exact, wait_until

SETUP = "import llmprof, polars as pl\nfrom llmprof import explore\ntrace = llmprof.sample('torch_tp4_eager_nccl')"
SHOWN = "timeline = explore.timeline(trace)\ntimeline"


def settled(shown, nth=0):
    """The widget, once it shows its window in full."""
    host = shown.page.locator(".lpt").nth(nth)
    host.locator(".lpt-main canvas").wait_for()
    exact(shown.page, nth)
    return host


def window(host):
    low, high = json.loads(host.get_attribute("data-shown"))
    return low, high


def box(host):
    host.scroll_into_view_if_needed()
    return host.locator(".lpt-main canvas").bounding_box()


def row(host, name):
    """Middle of the first row of a name, from the top of the canvas (px)."""
    return host.evaluate(
        """(host, name) => { const row = [...host.querySelectorAll('.lpt-main .lpt-row')]
            .find(one => one.querySelector('.lpt-name').textContent === name);
        return row.offsetTop + Math.min(row.offsetHeight, 20) / 2; }""",
        name,
    )


@pytest.mark.smoke
def test_zooming_panning_and_the_window_of_the_kernel(notebook):
    shown = notebook([SETUP, SHOWN])
    host = settled(shown)
    first, last = window(host)
    assert (first, last) == tuple(shown.python("trace.span_ns"))
    shown.shot("timeline-whole", host)

    # the wheel zooms with Ctrl at the pointer: the time under it stays
    area = box(host)
    shown.page.mouse.move(area["x"] + area["width"] * 0.25, area["y"] + 60)
    shown.page.keyboard.down("Control")
    for _ in range(4):
        shown.page.mouse.wheel(0, -400)
    shown.page.keyboard.up("Control")
    # four turns of the wheel: each to exp(-0.3) of the window before
    wanted = (
        f"timeline.window[1] - timeline.window[0] < {0.31 * (last - first)} and timeline.window"
    )
    low, high = shown.wait(f"timeline.window and {wanted}")
    assert abs((low + 0.25 * (high - low)) - (first + 0.25 * (last - first))) < 0.01 * (
        last - first
    )

    # keys pan, zoom and go back to the whole; so does the page of the pointer with shift
    host.locator(".lpt-main canvas").focus()
    shown.page.keyboard.press("d")
    shown.wait(f"timeline.window[0] > {low} + 0.15 * {high - low}")
    shown.page.keyboard.down("Shift")
    shown.page.mouse.wheel(0, -600)
    shown.page.keyboard.up("Shift")
    shown.wait(f"timeline.window[0] < {low}")
    shown.page.keyboard.press("0")
    shown.wait(f"timeline.window == [{first}, {last}]")

    # the kernel moves the picture
    shown.run("timeline.window = (200_000_000, 201_000_000)")
    shown.page.wait_for_function(
        "document.querySelector('.lpt').dataset.shown === '[200000000,201000000]'"
    )
    shown.run("timeline.window = (210_000_000, 211_000_000)")
    shown.page.wait_for_function(
        "document.querySelector('.lpt').dataset.shown === '[210000000,211000000]'"
    )
    shown.run("timeline.window = None")
    shown.page.wait_for_function(
        f"document.querySelector('.lpt').dataset.shown === '[{first},{last}]'"
    )
    # the pointer rests on a span: its facts are asked for by the view in which it was pointed at
    assert not any(host.locator(".lp-error").all_inner_texts())

    # the minimap: dragging its window's end, then a click beside the window
    settled(shown)
    map_ = host.locator(".lpt-head").bounding_box()
    drag(
        shown.page,
        (map_["x"] + map_["width"] - 1, map_["y"] + 15),
        (map_["x"] + map_["width"] / 2, map_["y"] + 15),
    )
    shown.wait(
        f"timeline.window and abs(timeline.window[1] - {(first + last) / 2}) < {0.02 * (last - first)}"
    )
    shown.page.mouse.click(map_["x"] + map_["width"] * 0.9, map_["y"] + 15)
    shown.wait(f"timeline.window[1] > {last} - 1000")

    # going to a step and a layer
    host.get_by_role("spinbutton", name="step").fill("3")
    host.get_by_role("spinbutton", name="layer").fill("5")
    host.get_by_role("button", name="Go to the step or layer").click()
    shown.wait("timeline.window[1] - timeline.window[0] < 3e6")
    layer = "analyze.layers(trace).filter(rank=0, step=3, layer=5)['start_ns'].item()"
    shown.run("from llmprof import analyze")
    assert shown.python(f"timeline.window[0] < {layer} < timeline.window[1]")
    settled(shown)
    shown.shot("timeline-layer", host)


def test_what_is_pointed_at_and_selected(notebook):
    shown = notebook([SETUP, SHOWN], theme="dark")
    host = settled(shown)
    shown.run("timeline.go(step=3, layer=5, rank=0)")
    shown.page.wait_for_function("JSON.parse(document.querySelector('.lpt').dataset.shown)[0] > 0")
    settled(shown)

    host.get_by_role("button", name="Open all").click()
    settled(shown)

    # hovering shows what it is; a click selects: its row of the attribution, and its place
    area = box(host)
    at = area["x"] + area["width"] * 0.3, area["y"] + row(host, "stream 19")
    shown.page.mouse.move(*at)
    host.locator(".lpt-card").get_by_text("launch delay").wait_for()
    expect(host.locator(".lpt-card")).to_contain_text("ncclDevKernel_AllReduce")
    shown.shot("timeline-dark", host)
    shown.page.mouse.click(*at)
    shown.wait("timeline.selected.height == 1")
    assert shown.python("timeline.selected['category'].item()") == "collective"
    assert shown.python("[timeline.rank, timeline.step, timeline.layer, timeline.stage]") == [
        0,
        3,
        5,
        "all_reduce",
    ]
    host.get_by_role("group", name="Selection").get_by_text("launch delay").wait_for()

    # help, and the way out of everything
    shown.page.keyboard.press("Escape")
    shown.page.keyboard.press("?")
    host.get_by_role("dialog").wait_for()
    assert shown.faults(".lpt") == []
    shown.page.keyboard.press("Escape")
    host.get_by_role("dialog").wait_for(state="hidden")
    shown.page.keyboard.press("Escape")
    shown.wait("timeline.selection is None")


def test_a_widget_whose_kernel_is_gone_says_so_and_keeps_its_picture(notebook):
    shown = notebook([SETUP, SHOWN])
    host = settled(shown)
    shown.page.evaluate(
        "void jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()"
    )
    host.get_by_text("The kernel of this widget is gone").wait_for()
    before = window(host)
    host.locator(".lpt-main canvas").focus()
    shown.page.keyboard.press("w")
    wait_until(lambda: window(host) != before)
    colours = host.locator(".lpt-main canvas").evaluate(
        """canvas => { const pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, 60).data;
        return new Set(new Uint32Array(pixels.buffer)).size; }"""
    )
    assert colours > 5
    shown.problems.clear()  # of requests to the kernel that is gone
