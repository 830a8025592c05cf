"""Buttons, keys and gestures of the timeline one by one, on a recording of two kernels."""

import itertools
import json

import pytest
from playwright.sync_api import expect

from llmprof import explore
from tests.analyze.builders import GEMM, NORM
from tests.browser.drawn import drag, exact, still, tab_to
from tests.browser.host import row_of
from tests.explore.test_timeline import run_of

TEXTS = """() => { const paint = CanvasRenderingContext2D.prototype.fillText; window.painted = new Set();
CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
  window.painted.add(String(text)); return paint.call(this, text, ...rest); }; }"""

MIDDLES = """() => [...document.querySelectorAll(".lpt-bar :is(button, input, select, summary)")]
    .filter((one) => one.checkVisibility() && !one.closest(".lp-menubox"))
    .map((one) => one.getBoundingClientRect()).map((one) => (one.top + one.bottom) / 2)"""
OUTSIDE = """() => [...document.querySelectorAll(".lpt-bar *")].filter((one) => one.checkVisibility())
    .map((one) => one.getBoundingClientRect()).filter((one) => one.left < 0 || one.right > innerWidth).length"""


@pytest.fixture
def shown(host, request, tmp_path):
    """A timeline of a GEMM and a norm, launched inside of modules and Python functions, with all
    rows open.
    """
    widget = explore.timeline(run_of(), notes=tmp_path / "notes.json")
    one = host(widget, theme=getattr(request, "param", "light"), height=900)
    one.wait(
        lambda: (
            widget._data.found
            and one.page.locator(".lpt-main .lpt-name", has_text="CUDA calls").count() == 1
        )
    )
    one.wait(lambda: window(one)[0] > 0)
    return one


def window(shown):
    return json.loads(shown.page.locator(".lpt").get_attribute("data-shown") or "[0, 0]")


def button(shown, name):
    return shown.page.get_by_role("button", name=name, exact=True)


def place(shown, name):
    """Middle of a row, from the top of the page (px)."""
    box = still(shown.page.locator(".lpt-main .lpt-name").get_by_text(name, exact=True))
    return box["y"] + min(box["height"], 12) / 2


def x_of(shown, time):
    """Where a time lies, from the left of the page (px)."""
    area = shown.page.locator(".lpt-main canvas").bounding_box()
    low, high = (float(ns) for ns in shown.widget.window or shown.widget._data.whole)
    return area["x"] + (time - low) / (high - low) * area["width"]


def length(shown):
    low, high = window(shown)
    return high - low


def test_arrow_keys_in_the_menu_move_through_it_and_not_through_time(shown):
    button(shown, "Zoom in (W)").click()
    shown.wait(lambda: shown.widget.window)
    shown.page.locator("summary", has_text="Save").click()
    before = shown.widget.window
    for key, focused in (
        ("ArrowDown", "View"),
        ("ArrowDown", "Window"),
        ("ArrowRight", "Window"),
        ("ArrowUp", "View"),
    ):
        shown.page.keyboard.press(key)
        expect(shown.page.locator(".lp-menubox button:focus")).to_contain_text(focused)
    shown.page.keyboard.press("Escape")
    expect(shown.page.locator("summary:focus")).to_contain_text("Save")
    assert shown.widget.window == before


@pytest.mark.parametrize("way", ["button", "key"])
def test_from_a_kernel_to_its_launch_and_back(shown, way):
    stream, calls = row_of(shown, "stream"), row_of(shown, "runtime")

    def go(name):
        button(shown, name).wait_for()
        if way == "button":
            button(shown, name).click()
        else:
            shown.page.locator(".lpt-main canvas").press("g")

    shown.widget.window = [148.0, 160.0]  # the launch at 145 lies outside
    shown.wait(lambda: window(shown) == [148, 160])
    shown.widget.select(1)
    go("Go to launch")
    shown.wait(lambda: (shown.widget.selection or {}).get("row") == calls)
    assert shown.widget.selected["start_ns"].to_list() == [145]
    shown.wait(lambda: window(shown)[0] <= 145)  # the view has moved there
    go("Go to kernel")
    shown.wait(lambda: shown.widget.selection == {"row": stream, "id": 1})
    assert shown.widget.selected["name"].to_list() == [NORM]
    shown.page.locator(".lpt-details", has_text="Norm_0").wait_for()


def test_dragging_says_how_long_it_is_and_with_shift_it_moves(shown):
    page = shown.page
    page.evaluate(TEXTS)
    y = place(shown, "stream 7")
    page.mouse.move(x_of(shown, 110), y)
    page.mouse.down()
    page.mouse.move(x_of(shown, 150), y, steps=3)
    page.wait_for_function(
        r"[...window.painted].some((text) => /^(39|40|41)(\.\d+)? ns/.test(text))"
    )
    page.mouse.up()
    low, high = shown.wait(lambda: shown.widget.span)
    assert (low, high) == (pytest.approx(110, abs=1), pytest.approx(150, abs=1))
    page.locator(".lpt-main canvas").press("Escape")
    shown.wait(lambda: shown.widget.span is None)
    button(shown, "Zoom in (W)").click()
    shown.wait(lambda: shown.widget.window)
    before = shown.wait(lambda: window(shown) if length(shown) < 90 else None)
    page.keyboard.down("Shift")
    drag(page, (x_of(shown, 140), y), (x_of(shown, 150), y))
    page.keyboard.up("Shift")
    shown.wait(lambda: window(shown)[0] < before[0])
    assert shown.widget.span is None


def test_the_critical_path_is_shown_walked_and_hidden(shown):
    """Launch of the GEMM at 95, the GEMM to 130, a gap, the norm from 150 to 160."""
    stream = row_of(shown, "stream")
    toggle = button(shown, "Critical path: what set the pace of each step (X)")
    expect(toggle).to_have_attribute("aria-pressed", "false")
    toggle.click()
    shown.page.locator(".lpt-pinned .lpt-name", has_text="critical path").wait_for()
    expect(toggle).to_have_attribute("aria-pressed", "true")
    for part in ("compute", "launch", "device gap"):
        shown.page.locator(".lpt-parts .lpt-chip", has_text=part).wait_for()
    row = row_of(shown, "critical_path")
    track = shown.page.locator(".lpt-pinned canvas").bounding_box()
    details = shown.page.locator(".lpt-details")
    shown.page.mouse.click(x_of(shown, 115), track["y"] + 9)
    shown.wait(lambda: shown.widget.selection == {"row": row, "id": 1})
    details.get_by_text("compute: a kernel", exact=True).wait_for()
    button(shown, "Next").click()
    shown.wait(lambda: shown.widget.selected["part"].to_list() == ["device gap"])
    details.get_by_text("device gap: between two kernels of a stream", exact=True).wait_for()
    assert shown.faults() == []
    button(shown, "Go to event").click()
    shown.wait(lambda: shown.widget.selection == {"row": stream, "id": 1})
    button(shown, "Hide critical path").click()
    expect(toggle).to_have_attribute("aria-pressed", "false")
    shown.page.locator(".lpt-pinned").wait_for(state="hidden")
    shown.page.locator(".lpt-main canvas").press("x")
    shown.page.locator(".lpt-pinned .lpt-name", has_text="critical path").wait_for()
    shown.wait(lambda: (shown.widget.arrangement or {}).get("path"))


def flame(shown):
    return shown.page.get_by_role("group", name="Flame graph of the selection")


def drawn(shown, by, selected=None):
    """Wait until the flame graph shows stacks of a kind."""
    shown.page.wait_for_function(
        """([by, selected]) => { const of = document.querySelector('.lpt-flame').dataset.of;
        const shows = of ? JSON.parse(of) : {};
        return shows.by === by && (selected === null || shows.selected.includes(selected)); }""",
        arg=[by, selected],
    )


@pytest.mark.parametrize("shown", ["light", "dark"], indirect=True)
def test_a_flame_graph_of_the_selection(shown, tmp_path):
    page = shown.page
    page.evaluate(TEXTS)
    button(shown, "Flame graph of the selection (T)").click()
    drawn(shown, "stage")
    flame(shown).get_by_text("40 ns of 2 kernels and copies in the whole trace").wait_for()
    assert (
        button(shown, "Flame graph of the selection (T)").get_attribute("aria-expanded") == "true"
    )
    flame(shown).get_by_label("By").select_option("module")
    drawn(shown, "module")
    page.wait_for_function("window.painted.has('Norm_0')")
    flame(shown).get_by_text(
        "All stacks begin with 1 frame, down to nn.Module: Layer_0."
    ).wait_for()
    shown.shot(tmp_path / "flame.png")
    assert shown.faults() == []

    # it follows the selection
    shown.widget.span, shown.widget.span_rows = [145.0, 170.0], None
    drawn(shown, "module", "[145,170]")
    flame(shown).get_by_text("10 ns of 1 kernel or copy in the selection").wait_for()
    shown.widget.span = None
    drawn(shown, "module", "[null")

    # speedscope has the same stacks
    with page.expect_download() as coming:
        flame(shown).get_by_role("button", name="Save for speedscope").click()
    assert coming.value.suggested_filename.endswith("-module.speedscope.json")
    saved = json.loads(coming.value.path().read_text())
    (profile,) = saved["profiles"]
    names = [frame["name"] for frame in saved["shared"]["frames"]]
    stacks = [[names[frame] for frame in stack] for stack in profile["samples"]]
    assert dict(zip(map(tuple, stacks), profile["weights"], strict=True)) == {
        ("nn.Module: Layer_0", GEMM): 30,
        ("nn.Module: Layer_0", "nn.Module: Norm_0", NORM): 10,
    }
    flame(shown).get_by_role("button", name="Close").click()
    flame(shown).wait_for(state="hidden")


def rows_above(shown):
    """Rows of tools above the timeline."""
    middles = sorted(shown.page.evaluate(MIDDLES))
    return 1 + sum(below - above > 10 for above, below in itertools.pairwise(middles))


def actions(shown):
    """Names of all tools."""
    return sorted(
        shown.page.locator(".lpt-bar :is(button, input, select, summary)").evaluate_all(
            "all => all.map((one) => one.ariaLabel || one.closest('label')?.innerText || one.textContent)"
        )
    )


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_two_rows_of_tools_stand_above_the_timeline_at_390_px(host, tmp_path, theme):
    shown = host(
        explore.timeline(run_of(), notes=tmp_path / "notes.json"),
        width=1400,
        height=900,
        theme=theme,
    )
    page = shown.page
    exact(page)
    shown.wait(lambda: rows_above(shown) == 1)
    summaries = page.locator(".lpt-bar summary")
    assert summaries.all_inner_texts() == ["Rows", "Save"]
    on_a_desk = actions(shown)

    page.set_viewport_size({"width": 390, "height": 900})
    shown.wait(lambda: rows_above(shown) == 2)
    exact(page)
    assert [name for name in actions(shown) if name != "More"] == on_a_desk
    page.get_by_label("Search names").fill("a")
    page.locator(".lpt-count", has_text="of").wait_for()
    assert rows_above(shown) == 2
    assert page.evaluate(OUTSIDE) == 0
    shown.shot(f"timeline-tools-390-{theme}")

    # what is rarely used is reached with the keyboard
    more = page.locator("summary", has_text="More")
    tab_to(page, "Previous hit")
    for _ in range(9):
        if more.evaluate("one => one === document.activeElement"):
            break
        page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    page.keyboard.press("ArrowDown")
    expect(page.get_by_label("step", exact=True)).to_be_focused()
    tab_to(page, "Go to the step or layer")
    for _ in range(2):
        page.keyboard.press("ArrowDown")
    expect(page.locator("summary", has_text="Rows")).to_be_focused()
    page.keyboard.press("Enter")
    page.get_by_label("Rows named").wait_for()
    shown.shot(f"timeline-more-390-{theme}")
    assert page.evaluate(OUTSIDE) == 0
    assert shown.faults() == []
    page.keyboard.press("Escape")
    page.get_by_label("Rows named").wait_for(state="hidden")
    page.keyboard.press("ArrowDown")
    toggle = button(shown, "Critical path: what set the pace of each step (X)")
    expect(toggle).to_be_focused()
    page.keyboard.press("Enter")
    shown.wait(lambda: (shown.widget.arrangement or {}).get("path"))
    expect(more).to_be_focused()
    expect(toggle).to_be_hidden()

    page.set_viewport_size({"width": 1400, "height": 900})
    shown.wait(lambda: rows_above(shown) == 1)
    expect(more).to_have_count(0)
    expect(toggle).to_have_attribute("aria-pressed", "true")
