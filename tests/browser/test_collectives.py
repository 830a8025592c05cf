from llmprof import explore
from tests.browser import drawn
from tests.explore.test_collectives import forty_ranks


def settled(shown, **shows):
    """Wait until the widget has drawn, and drawn this."""
    drawn.settled(shown, ".lp-collectives", "call", **shows)


def test_many_ranks_are_a_histogram_whose_bars_pick_them(host):
    widget = explore.collectives(forty_ranks())
    shown = host(widget, width=1000, height=2000)
    settled(shown, spread=["late", None, None])
    shown.page.get_by_text("39 of 40 ranks lie between 0 ns and 20.0 us").wait_for()
    bars = shown.page.locator("canvas[aria-label^='How many ranks']")
    # two bars, at the ends: the keys walk over them, and Enter picks and gives back
    for key in ("ArrowRight", "ArrowRight", "Enter"):
        bars.press(key)
    shown.wait(lambda: list(widget.picked) == [39])
    shown.page.get_by_text("1 rank is picked").wait_for()
    shown.shot("all_reduce-many-light")
    bars.press("Enter")
    shown.wait(lambda: list(widget.picked) == [])
    # a drag over the left bar picks its ranks, and only these are shown then
    bars.scroll_into_view_if_needed()
    box = bars.bounding_box()
    drawn.drag(shown.page, (box["x"] + 20, box["y"] + 60), (box["x"] + 80, box["y"] + 60))
    shown.wait(lambda: list(widget.picked) == [*range(39)])
    shown.page.get_by_role("button", name="Only the picked ranks").click()
    settled(shown, spread=["late", None, 39])
    shown.page.get_by_role("combobox", name="Show", exact=True).select_option("wait")
    settled(shown, spread=["wait", None, 39])
    assert widget.spread == "wait"
    assert shown.faults() == []
