"""What a user keeps of a timeline: marks with notes, the list of hits, rows as they were
arranged, a view as Python.
"""

import json
import re

import pytest
from playwright.sync_api import expect

from llmprof import explore
from tests.browser.drawn import exact
from tests.explore.test_timeline import late_of

SAMPLE = "torch_tp4_eager_custom_allreduce"


@pytest.fixture
def shown(host, sample_trace, request, tmp_path):
    """A timeline that has found its rows, whose notes are in a folder of the test."""
    widget = explore.timeline(sample_trace(SAMPLE), notes=tmp_path / "notes.json")
    one = host(widget, theme=getattr(request, "param", "light"), height=1000)
    one.wait(lambda: one.page.locator(".lpt-group", has_text="waits").count() == 4)
    exact(one.page)
    return one


def window(shown):
    return json.loads(shown.page.locator(".lpt").get_attribute("data-shown"))


@pytest.mark.parametrize("shown", ["light", "dark"], indirect=True)
def test_marks_with_their_distance_and_notes(shown, tmp_path):
    area = shown.page.locator(".lpt-main canvas").bounding_box()
    shown.page.locator(".lpt-main canvas").focus()
    for x in (300, 700):
        shown.page.mouse.move(area["x"] + x, area["y"] + 30)
        shown.page.keyboard.press("m")
    marks = shown.wait(lambda: shown.widget.marks if len(shown.widget.marks) == 2 else None)
    low, high = window(shown)
    scale = (high - low) / area["width"]
    assert marks[1]["time"] - marks[0]["time"] == pytest.approx(400 * scale, rel=0.02)
    panel = shown.page.get_by_role("group", name="Marks and notes")
    note = panel.get_by_label("Note of mark 2")
    expect(panel).to_contain_text(re.compile(r"Δ \d"))
    note.fill("here it <b>begins</b>")
    shown.widget.marks = [*shown.widget.marks, {"time": marks[1]["time"] + 1_000_000, "text": ""}]
    shown.page.wait_for_function("model.get('marks').length === 3")
    expect(note).to_have_value("here it <b>begins</b>")  # the list waits for what is half written
    note.press("Enter")
    shown.wait(lambda: shown.widget.marks[1]["text"] == "here it <b>begins</b>")
    panel.get_by_label("Note of mark 3").wait_for()
    shown.widget.marks = shown.widget.marks[:2]
    panel.get_by_label("Note of mark 3").wait_for(state="detached")
    assert "here it" in (tmp_path / "notes.json").read_text()
    panel.get_by_role("button", name="Go to mark 1").click()
    shown.wait(
        lambda: shown.widget.marks[0]["time"] == pytest.approx(sum(window(shown)) / 2, rel=0.5)
    )
    assert shown.faults() == []
    panel.get_by_role("button", name="Remove mark 1").click()
    shown.wait(lambda: len(shown.widget.marks) == 1)
    panel.get_by_role("button", name="Remove mark 1").click()
    panel.wait_for(state="hidden")


def test_damaged_notes_are_named(host, sample_trace, tmp_path):
    (tmp_path / "notes.json").write_text("{")
    one = host(explore.timeline(sample_trace(SAMPLE), notes=tmp_path / "notes.json"))
    one.page.get_by_role("alert").filter(has_text="notes.json are not shown").wait_for()
    one.page.get_by_role("button", name="Set a mark").click()
    one.page.get_by_role("button", name="Go to mark 1").wait_for()
    assert (tmp_path / "notes.json").read_text() == "{"


def test_few_tab_stops_lie_before_the_rows(shown):
    shown.page.keyboard.press("Tab")
    stops = []
    while shown.page.evaluate("document.activeElement.tagName") != "CANVAS":
        stops.append(
            shown.page.evaluate(
                "document.activeElement.ariaLabel || document.activeElement.textContent"
            )
        )
        shown.page.keyboard.press("Tab")
        assert len(stops) < 7, stops
    assert "Search names" in stops
    # the buttons of the bar are one stop; the arrows move between them
    shown.page.locator(".lpt-bar button[tabindex='0']:not(details *)").focus()
    seen = []
    for _ in range(18):
        seen.append(shown.page.evaluate("document.activeElement.textContent"))
        shown.page.keyboard.press("ArrowRight")
    assert {"List", "Go", "Mark", "Whole", "?"} <= set(seen)
    # the heads of the rows are one stop, behind the rows
    shown.page.locator(".lpt-main canvas").focus()
    shown.page.keyboard.press("Tab")
    assert "rank 0" in shown.page.evaluate("document.activeElement.textContent")
    shown.page.keyboard.press("ArrowDown")
    assert "rank 1" in shown.page.evaluate("document.activeElement.textContent")
    shown.page.keyboard.press("Enter")
    shown.wait(lambda: shown.page.locator(".lpt-main .lpt-row").count() > 0)


def names(shown):
    """Names of the rows of rank 1, from the top; rank 1 alone is open."""
    return shown.page.locator(".lpt-main .lpt-name").all_inner_texts()


def ranks(shown):
    return shown.page.locator(".lpt-main .lpt-group strong").all_inner_texts()


def test_rows_and_ranks_are_moved_by_keys(shown, host, sample_trace, tmp_path):
    shown.page.locator(".lpt-group", has_text="rank 1").click()
    before = shown.wait(lambda: names(shown))
    stream = next(name for name in before if name.startswith("stream"))
    at = before.index(stream)
    shown.page.get_by_role("button", name=f"Fold {stream}").focus()
    shown.page.keyboard.press("Alt+ArrowUp")
    moved = [*before[: at - 1], before[at], before[at - 1], *before[at + 1 :]]
    shown.wait(lambda: names(shown) == moved)
    assert (
        shown.page.evaluate("document.activeElement.getAttribute('aria-label')") == f"Fold {stream}"
    )
    shown.page.locator("[aria-live]", has_text=f"{stream} moved up").wait_for(state="attached")
    shown.page.keyboard.press("Alt+ArrowDown")
    shown.wait(lambda: names(shown) == before)
    shown.page.keyboard.press("Alt+ArrowUp")
    shown.wait(lambda: names(shown) == moved)

    # a rank by its name; Python and a saved view keep both
    shown.page.locator(".lpt-group", has_text="rank 3").focus()
    for place in (2, 1, 0):
        shown.page.keyboard.press("Alt+ArrowUp")
        shown.wait(lambda place=place: ranks(shown).index("rank 3") == place)
    shown.wait(lambda: (shown.widget.arrangement or {}).get("ranks", [None])[0] == 3)
    again = host(
        explore.timeline(sample_trace(SAMPLE), notes=tmp_path / "n.json", view=shown.widget.view)
    )
    again.wait(lambda: again.page.locator(".lpt-main .lpt-name").count() == len(moved))
    assert (names(again), ranks(again)[0]) == (moved, "rank 3")
    again.page.locator(".lp-menu summary", has_text="Rows").click()
    again.page.get_by_role("button", name="Undo moves").click()
    again.wait(lambda: names(again) == before and ranks(again)[0] == "rank 0")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_late_rank_of_many_is_on_the_first_screen(host, tmp_path, theme):
    one = host(
        explore.timeline(late_of(40, 33), notes=tmp_path / "n.json"), height=700, theme=theme
    )
    one.wait(lambda: ranks(one)[:2] == ["rank 33", "rank 0"], seconds=60)
    one.shot(tmp_path / "many.png")
    one.page.locator(".lp-menu summary", has_text="Rows").click()
    one.page.get_by_label("Order").select_option("rank")
    one.wait(lambda: ranks(one)[0] == "rank 0")
    one.page.keyboard.press("Escape")
    head = one.page.locator(".lpt-group", has_text="rank 33")
    pane = one.page.locator(".lpt-main").bounding_box()
    below = pane["y"] + pane["height"]
    one.wait(
        lambda: (box := head.bounding_box()) and box["y"] > below
    )  # by rank it is further down; the button goes there
    one.page.get_by_role("button", name="Late: rank 33").click()
    one.wait(lambda: (box := head.bounding_box()) and box["y"] < below)
    assert head.evaluate("el => el === document.activeElement")
    assert one.faults() == []


TOPS = """() => {
  window.tops = new Set();
  const look = () => {
    window.tops.add(document.querySelector(".lpt-head").getBoundingClientRect().top);
    requestAnimationFrame(look);
  };
  look();
}"""


def test_nothing_moves_under_the_pointer_while_more_is_found(host, sample_trace, tmp_path):
    """Neither the line that says what is computed nor the button to the late rank makes room
    above the rows.
    """
    trace = sample_trace("torch_tp4_eager_nccl")
    explorer = explore.timeline(trace, notes=tmp_path / "notes.json")
    shown = host(explorer)
    shown.page.locator(".lpt-group").first.wait_for()
    shown.page.evaluate(TOPS)
    shown.page.get_by_role("button", name="Late: rank 3").wait_for()
    for window in ((200_000_000, 201_000_000), None):
        explorer.window = window
        first, last = window or trace.span_ns
        shown.page.wait_for_function(
            f"document.querySelector('.lpt').dataset.shown === '[{first},{last}]'"
        )
    assert shown.page.evaluate("[...window.tops].length") == 1
