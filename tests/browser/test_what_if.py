"""Explorer of what would be gained, in a page: changes by pointer and key, sliders, and what
they predict.
"""

import pytest
from playwright.sync_api import expect

from llmprof import explore
from tests.analyze.test_replay import device_bound
from tests.browser import drawn


def settled(shown, changes):
    """Wait until the widget has drawn the prediction of these changes."""
    drawn.settled(shown, ".lp-what_if", changes=changes)


@pytest.mark.smoke
def test_changes_are_made_with_sliders_and_predicted(host):
    widget = explore.what_if(device_bound())
    shown = host(widget, width=1000, height=1300)
    page = shown.page
    settled(shown, [])
    page.get_by_text("A step of decode (mean) takes 99.7 us.").wait_for()
    expect(page.get_by_role("button", name="+ No rank late")).to_be_disabled()

    # faster GEMMs shorten the last step alone, since the host does not wait for them; the slider by
    # key, then other work
    page.get_by_role("button", name="+ Faster or slower").click()
    settled(shown, ["scale:gemm:0.5"])
    page.get_by_text("A step of decode (mean): 99.7 us recorded").wait_for()
    work = page.get_by_role("combobox", name="of", exact=True)
    slider = page.get_by_role("slider", name="takes")
    slider.press("ArrowRight")
    settled(shown, ["scale:gemm:0.55"])
    work.select_option("norm")
    settled(shown, ["scale:norm:0.55"])
    # of 49 us of norm 26.95 us are left; the last of three steps takes 99 us to its own end
    assert widget.selected["predicted_ns"].item() == pytest.approx(51_000 + 26_950 - 1_000 / 3)
    page.get_by_text("99.7 us recorded, 77.6 us predicted").wait_for()

    # kernels by a name that nothing has: said, and left out
    work.select_option(label="kernels by name …")
    name = page.get_by_label("of: part of a kernel's name")
    name.fill("at::nothing")
    name.press("Enter")
    settled(shown, ["scale:at..nothing:0.55"])
    page.get_by_text("Left out: the change 'at..nothing' matches nothing").wait_for()
    page.get_by_text("Add a change to see what it would bring").wait_for()

    # what Python sets is shown; the code gives the same
    widget.changes = ["scale:norm:0.25", "remove:gemm"]
    settled(shown, ["scale:norm:0.25", "remove:gemm"])
    expect(slider).to_have_value("0.25")
    page.get_by_text("changes.remove('gemm'),").wait_for()
    page.get_by_text("llmprof what-if PATH scale:norm:0.25 remove:gemm").wait_for()
    assert shown.faults() == []
    shown.shot("what_if-light")
    page.get_by_role("button", name="Remove: Without", exact=True).click()
    settled(shown, ["scale:norm:0.25"])
    assert list(widget.changes) == ["scale:norm:0.25"]
