"""Gestures on the timeline, in a page of its own: ranks, wheel, selected ranges and their table."""

from __future__ import annotations

import json

import pytest
from playwright.sync_api import expect

from llmprof import explore
from tests.browser.drawn import still

SAMPLE = "torch_tp4_eager_custom_allreduce"  # rank 3 is late


@pytest.fixture
def shown(host, sample_trace, request):
    """A timeline that has found its rows."""
    one = host(explore.timeline(sample_trace(SAMPLE)), theme=getattr(request, "param", "light"), height=900)
    one.wait(lambda: one.page.locator(".lpt-group", has_text="waits").count() == 4)
    one.page.wait_for_timeout(200)
    return one


def canvas(shown):
    return shown.page.locator(".lpt-main canvas").bounding_box()


def window(shown) -> list[int]:
    return json.loads(shown.page.locator(".lpt").get_attribute("data-shown"))


def group(shown, rank: int):
    return shown.page.locator(".lpt-group", has_text=f"rank {rank}")


@pytest.mark.parametrize("shown", ["light", "dark"], indirect=True)
def test_all_ranks_are_seen_at_once_and_the_late_one_stands_out(shown):
    shares = [group(shown, rank).inner_text() for rank in range(4)]
    assert [float(text.split("waits")[1].strip(" %\n")) > 50 for text in shares] == [True, True, True, False]
    rows = shown.page.locator(".lpt-main .lpt-row")
    expect(rows).to_have_count(0)
    shown.wait(lambda: shown.page.locator(".lpt").evaluate("el => el.getBoundingClientRect().bottom <= innerHeight"))

    # a rank opens, all open and close; the host can be left out, ranks hidden and ordered
    group(shown, 3).click()
    some = shown.wait(lambda: rows.count() > 4 and rows.count())
    shown.page.get_by_role("button", name="Close all").click()
    shown.page.get_by_role("button", name="Open all").click()
    every = shown.wait(lambda: rows.count() > some and rows.count())
    shown.page.locator(".lpt-menu summary").click()
    shown.page.get_by_label("devices only").check()
    shown.wait(lambda: 0 < rows.count() < every)
    shown.page.get_by_label("rank 0", exact=True).uncheck()
    expect(group(shown, 0)).to_have_count(0)
    shown.page.get_by_label("Order").select_option("waits")
    shown.wait(lambda: shown.page.locator(".lpt-group").first.inner_text().startswith("▾\nrank 3"))
    shown.page.keyboard.press("Escape")
    expect(shown.page.locator(".lpt-menubox")).to_be_hidden()
    shown.page.get_by_role("button", name="Close all").click()
    expect(rows).to_have_count(0)
    assert shown.problems == []


def test_the_plain_wheel_scrolls_and_with_ctrl_it_zooms(shown):
    before, area = window(shown), canvas(shown)
    shown.page.mouse.move(area["x"] + area["width"] * 0.25, area["y"] + 40)
    shown.page.mouse.wheel(0, -300)
    shown.page.wait_for_timeout(200)
    assert window(shown) == before
    shown.page.keyboard.down("Control")
    shown.page.mouse.wheel(0, -300)
    shown.page.keyboard.up("Control")
    shown.wait(lambda: window(shown)[1] - window(shown)[0] < 0.8 * (before[1] - before[0]))
    low, high = window(shown)
    fixed = before[0] + 0.25 * (before[1] - before[0])  # the time under the pointer stays
    assert abs(low + 0.25 * (high - low) - fixed) < 0.01 * (high - low)
    shown.page.keyboard.down("Shift")
    shown.page.mouse.wheel(0, 200)
    shown.page.keyboard.up("Shift")
    shown.wait(lambda: window(shown)[0] > low)
    shown.wait(lambda: shown.widget.window is not None)
    assert shown.problems == []


@pytest.mark.parametrize("shown", ["light", "dark"], indirect=True)
def test_dragging_over_a_rank_selects_its_events_and_names_them(shown, tmp_path):
    place = still(group(shown, 3))
    area, y = canvas(shown), place["y"] + 24
    shown.page.mouse.move(area["x"] + 300, y)
    shown.page.mouse.down()
    shown.page.mouse.move(area["x"] + 700, y + 6, steps=4)
    shown.page.wait_for_timeout(100)
    shown.shot(tmp_path / "dragging.png")
    shown.page.mouse.up()
    low, high = shown.wait(lambda: shown.widget.span)
    assert shown.widget.span_rows
    frame = shown.widget.selected
    assert set(frame["rank"]) == {3}
    assert frame.height == frame.filter(frame["start_ns"] < high, frame["start_ns"] + frame["dur_ns"] > low).height

    # the table names them all; a head sorts, a row is looked for
    grid = shown.page.get_by_role("grid", name="Names in the selection")
    rows = grid.locator("tr[data-row]")
    rows.first.wait_for()
    totals = [int(text.replace(",", "")) for text in rows.locator("td:nth-child(2)").all_inner_texts()]
    assert sum(totals) <= frame.height
    shown.page.get_by_role("button", name="count", exact=True).click()
    grid.locator("th[aria-sort=descending]", has_text="count").wait_for()
    counts = [int(text.replace(",", "")) for text in rows.locator("td:nth-child(2)").all_inner_texts()]
    assert counts == sorted(counts, reverse=True)
    rows.first.click()
    shown.page.locator(".lpt-count", has_text="of").wait_for()

    # a range of one rank becomes one of all streams; the view as Python shows it again
    shown.page.get_by_role("button", name="Copy as Python").click()
    shown.page.locator("[aria-live]", has_text=f'"span": [{round(low)}, {round(high)}], "span_rows": [').wait_for()
    shown.page.get_by_role("button", name="All streams").click()
    shown.wait(lambda: shown.widget.span_rows is None)
    assert set(shown.widget.selected["rank"]) == {0, 1, 2, 3}
    shown.page.get_by_role("button", name="Clear").click()
    shown.wait(lambda: shown.widget.span is None)
    assert shown.problems == []
