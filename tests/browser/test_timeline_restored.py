"""Colours and saved views of the timeline: on a desk and on a telephone, what was chosen by
gesture comes back.
"""

import pytest
from playwright.sync_api import expect

from llmprof import explore
from tests.browser.drawn import exact, painted

SAMPLE = "torch_tp4_eager_custom_allreduce"
OUTSIDE = """() => [...document.querySelectorAll(".lpt-chip, .lpt-bar button, .lpt-bar select, .lpt-bar input")]
    .filter((one) => one.offsetParent && one.getBoundingClientRect().right > innerWidth)
    .map((one) => one.getAttribute("aria-label") ?? one.textContent)"""
PIXELS = """() => [...document.querySelectorAll(".lpt-head, .lpt-pane:not([hidden]) canvas")]
    .map((one) => one.toDataURL())"""


def named(shown):
    """Colour of each entry of the legend."""
    return dict(
        shown.page.locator(".lpt-legend .lpt-chip").evaluate_all(
            "all => all.map((one) => [one.innerText, getComputedStyle(one.querySelector('i')).backgroundColor])"
        )
    )


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_colours_are_chosen_and_named_at_390_px(host, sample_trace, tmp_path, theme):
    trace, notes = sample_trace(SAMPLE), tmp_path / "notes.json"
    shown = host(explore.timeline(trace, notes=notes), width=390, height=900, theme=theme)
    exact(shown.page)
    by_stage = named(shown)
    assert {"attention", "qkv proj", "waiting for ranks"} <= set(by_stage)
    assert shown.page.evaluate(OUTSIDE) == []

    shown.page.get_by_role("combobox", name="Colour").select_option("category")
    shown.wait(lambda: shown.widget.color_by == "category" and "gemm" in named(shown))
    exact(shown.page)
    by_category = named(shown)
    assert "qkv proj" not in by_category
    for one in (by_stage, by_category):
        assert len(set(one.values())) == len(one)  # no colour stands for two entries
    assert shown.page.evaluate(OUTSIDE) == []
    assert shown.page.evaluate("document.documentElement.scrollWidth") == 390
    assert shown.faults() == []
    shown.shot(f"timeline-390-{theme}")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_view_made_by_gestures_is_restored_by_its_python(host, sample_trace, tmp_path, theme):
    trace = sample_trace(SAMPLE)
    shown = host(explore.timeline(trace, notes=tmp_path / "notes.json"), height=1000, theme=theme)
    page, widget = shown.page, shown.widget
    exact(page)
    page.get_by_role("combobox", name="Colour").select_option("category")
    page.locator(".lpt-group", has_text="rank 3").click()
    page.get_by_role("button", name="Pin collectives").first.click()
    area = page.locator(".lpt-main canvas").bounding_box()
    page.mouse.move(area["x"] + 400, area["y"] + 30)
    page.keyboard.down("Control")
    page.mouse.wheel(0, -600)
    page.keyboard.up("Control")
    page.mouse.down()
    page.mouse.move(area["x"] + 620, area["y"] + 34, steps=4)
    page.mouse.up()
    shown.wait(
        lambda: (
            widget.span and widget.window and widget.arrangement and widget.color_by == "category"
        )
    )
    page.get_by_label("Search names").fill("norm")
    shown.wait(lambda: widget.search == "norm")
    page.get_by_role("button", name="Copy as Python").click()
    copied = page.locator("[aria-live]", has_text="Copied: ").inner_text().removeprefix("Copied: ")
    exact(page)
    shown.quiet()

    given = {"explore": explore, "trace": trace}
    text = copied.replace("trace, view", f"trace, notes={str(tmp_path / 'other.json')!r}, view")
    again = host(eval(text, given), height=1000, theme=theme)
    exact(again.page)
    again.quiet()
    expect(again.page.get_by_role("combobox", name="Colour")).to_have_value("category")
    expect(again.page.get_by_label("Search names")).to_have_value("norm")
    again.page.mouse.move(2, 2)
    page.mouse.move(2, 2)
    painted(page)
    again.wait(lambda: again.page.evaluate(PIXELS) == page.evaluate(PIXELS))
    assert again.widget.selected.equals(widget.selected)
    assert named(again) == named(shown)
