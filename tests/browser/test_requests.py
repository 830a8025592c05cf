"""The explorer of slow requests, and requests in the timeline, on a server that queued on an
H200, in a browser.
"""

import pytest
from playwright.sync_api import expect

from llmprof import explore
from llmprof.readers import bundled
from llmprof.run import launch


@pytest.fixture(scope="module")
def run():
    return launch.open_run(bundled.notebook_data("h200") / "served_queue")


@pytest.mark.parametrize("theme", [pytest.param("light", marks=pytest.mark.smoke), "dark"])
def test_requests_are_sorted_picked_and_explained(host, run, theme):
    widget = explore.requests(run)
    shown = host(widget, width=1500, height=1100, theme=theme)
    rows = shown.page.locator("tr[data-row]")
    rows.first.wait_for()
    expect(shown.page.get_by_role("grid")).to_have_attribute("aria-rowcount", "41")
    shown.page.get_by_text("time to the first token is prefill of others").wait_for()
    shown.page.get_by_role("button", name="end to end", exact=True).click()
    shown.wait(lambda: widget.sort == "-e2e_ns")
    first = widget.table["request"][0]
    shown.wait(lambda: rows.first.locator("td").first.inner_text() == str(first))
    # the bar of the longest request is full
    bar = rows.first.locator(".lp-parts")
    widths = bar.locator("i").evaluate_all(
        "parts => parts.map((part) => part.getBoundingClientRect().width)"
    )
    assert sum(widths) == pytest.approx(300, abs=2)
    assert "waiting behind the prefill of others" in (bar.get_attribute("aria-label") or "")
    rows.first.click()
    shown.wait(lambda: widget.picked == first)
    shown.page.get_by_role("heading", name=f"Request {first}").wait_for()
    shown.page.get_by_role("heading", name="Why step").wait_for()
    assert widget.selected["request"].unique().to_list() == [first]
    shown.quiet()
    shown.shot(f"requests_{theme}")
