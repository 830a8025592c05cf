"""What a user does while Python has not answered yet is neither lost nor undone.

Answers are kept back on purpose.
"""

import pytest
from playwright.sync_api import expect

from llmprof import explore
from tests.analyze.builders import GEMM
from tests.browser import drawn
from tests.browser.host import row_of
from tests.explore.test_timeline import FORWARD, NORMED, run_of

SAMPLE = "torch_tp4_eager_nccl"
AT_ONCE = """([field, text, then]) => {
  field.value = text;
  field.dispatchEvent(new Event("input", { bubbles: true }));
  then.click();
}"""
"""Type a text and click elsewhere, with no time in between."""


@pytest.fixture
def shown(host, tmp_path):
    """A timeline of a GEMM and a norm, launched inside of modules and Python functions, with all
    rows open.
    """
    widget = explore.timeline(run_of(), notes=tmp_path / "notes.json")
    one = host(widget)
    one.page.locator(".lpt[data-found]").wait_for()
    one.page.locator(".lpt-main .lpt-name", has_text="CUDA calls").wait_for()
    return one


def button(shown, name):
    return shown.page.get_by_role("button", name=name, exact=True)


def title(shown, text):
    return shown.page.locator(".lpt-details strong").get_by_text(text, exact=True)


def asked(shown, what, count=1):
    shown.wait(lambda: shown.held(what) >= count)


def test_a_key_acts_on_what_the_key_before_it_selects(shown):
    canvas = shown.page.locator(".lpt-main canvas")
    shown.widget.selection = {"row": row_of(shown, "stream"), "id": 0}
    title(shown, GEMM).wait_for()
    shown.hold("pick")
    canvas.press("j")  # to the modules
    canvas.press("c")
    canvas.press("p")
    asked(shown, "pick")
    expect(button(shown, "Unfold stream 7")).to_have_count(0)
    shown.let_go()
    button(shown, "Unpin rank 0 · modules").wait_for()
    assert (
        shown.widget.arrangement["folded"]
        == shown.widget.arrangement["pinned"]
        == [row_of(shown, "modules")]
    )


@pytest.mark.smoke
def test_of_two_keys_in_a_row_both_count(shown):
    canvas = shown.page.locator(".lpt-main canvas")
    shown.widget.select(0)
    title(shown, GEMM).wait_for()
    shown.hold("neighbour")
    canvas.press("]")
    canvas.press("[")
    asked(shown, "neighbour")
    chosen = []
    shown.widget.observe(lambda change: chosen.append(change["new"]["id"]), "selection")
    shown.let_go()
    shown.wait(lambda: chosen == [1, 0])
    title(shown, GEMM).wait_for()

    # and of two times Enter in the search
    search = shown.page.get_by_label("Search names")
    search.fill("model")
    shown.page.locator(".lpt-count", has_text="1 of 2").wait_for()
    shown.hold("search")
    search.press("Enter")
    search.press("Enter")
    asked(shown, "search")
    shown.let_go()
    shown.wait(lambda: shown.widget.selected["name"].to_list() == [NORMED])
    shown.page.locator(".lpt-count", has_text="2 of 2").wait_for()


def test_a_click_makes_the_key_before_it_void(shown):
    canvas = shown.page.locator(".lpt-main canvas")
    shown.widget.select(0)
    title(shown, GEMM).wait_for()
    shown.hold("neighbour")
    canvas.press("]")
    asked(shown, "neighbour")
    area = canvas.bounding_box()
    low, high = (float(ns) for ns in shown.widget._data.whole)
    label = shown.widget._data.rows[row_of(shown, "python")].label
    name = drawn.still(shown.page.locator(".lpt-main .lpt-name").get_by_text(label, exact=True))
    shown.page.mouse.click(area["x"] + (90 - low) / (high - low) * area["width"], name["y"] + 6)
    title(shown, FORWARD).wait_for()
    shown.let_go()
    canvas.press("f")  # its request goes after the late answer
    shown.wait(lambda: shown.widget.window is not None)
    expect(title(shown, FORWARD)).to_have_count(1)
    assert shown.widget.selected["name"].to_list() == [FORWARD]


def test_what_is_typed_before_the_rows_have_come_is_looked_for(host, tmp_path):
    shown = host(explore.timeline(run_of(), notes=tmp_path / "notes.json"), hold=["rows"])
    search = shown.page.get_by_label("Search names")
    search.fill("model")
    search.press("Enter")
    asked(shown, "rows")
    shown.let_go()
    shown.page.locator(".lpt-count", has_text="1 of 2").wait_for()
    expect(search).to_have_value("model")
    shown.wait(lambda: shown.widget.search == "model")


def test_a_note_goes_to_its_mark_though_another_comes_before_it(shown):
    shown.widget.mark(120, "")
    note = shown.page.get_by_label("Note of mark 1")
    note.fill("slow")
    shown.widget.mark(100, "first")
    shown.page.wait_for_function("model.get('marks').length === 2")
    note.press("Enter")
    shown.wait(lambda: [mark["text"] for mark in shown.widget.marks] == ["first", "slow"])
    shown.page.get_by_label("Note of mark 2").wait_for()


@pytest.mark.parametrize("room", ["kernels", "compare"])
def test_a_search_that_is_typed_right_before_a_click_is_not_lost(room, host, sample_trace):
    one, other = sample_trace(SAMPLE), sample_trace("torch_tp4_eager_custom_allreduce")
    widget = explore.kernels(one) if room == "kernels" else explore.compare(one, other)
    shown = host(widget, height=2200)
    page = shown.page
    page.locator("[aria-busy=false] tr[data-row]").first.wait_for()
    field = page.get_by_label(
        "Search kernels" if room == "kernels" else "Search rows"
    ).element_handle()
    head = page.get_by_role("grid").get_by_role("button").first.element_handle()
    before = widget.sort
    page.evaluate(AT_ONCE, [field, "norm", head])
    shown.wait(lambda: widget.search == "norm" and widget.sort != before)
    assert field.input_value() == "norm"
    page.locator("[aria-busy=false] tr[data-row]", has_text="norm").first.wait_for()


def test_two_times_next_outlier_is_the_second(host, sample_trace):
    widget = explore.layers(sample_trace(SAMPLE))
    shown = host(widget, height=1400)
    drawn.settled(shown, ".lp-layers")
    places = []
    widget.observe(lambda _: places.append((widget.step, widget.layer)), ["step", "layer"])
    following = button(shown, "Next outlier (n)")
    expected = []
    for _ in range(2):
        at = len(places)
        following.click()
        shown.wait(
            lambda at=at: (
                len(places) > at and shown.page.evaluate("model.get('layer')") == widget.layer
            )
        )
        drawn.settled(shown, ".lp-layers", cell=[widget.rank, widget.step, widget.layer, None])
        expected.append((widget.step, widget.layer))
    widget.step = widget.layer = None
    shown.page.wait_for_function("model.get('layer') === null")
    shown.hold("pick")
    following.evaluate("button => [1, 2].forEach(() => button.click())")
    asked(shown, "pick")
    shown.let_go()
    shown.wait(lambda: (widget.step, widget.layer) == expected[1])
