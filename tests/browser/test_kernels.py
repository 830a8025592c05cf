"""The explorer of kernels in a page: sorted, narrowed, picked, with hardware metrics and
without.
"""

import polars as pl
import pytest
from playwright.sync_api import expect

from llmprof import explore, sample_metrics
from tests.samples import sample

SEEN = """all => all.map((row) => {
  const place = row.cells[0].querySelector("[aria-hidden]") ?? row.cells[0].querySelector("span");
  const [text, range] = [place.firstChild, document.createRange()];
  const room = row.cells[0].getBoundingClientRect().right - 8;
  const end = (count) => {
    range.setStart(text, 0);
    range.setEnd(text, count);
    return range.getBoundingClientRect().right;
  };
  if (end(text.length) <= room) return text.data;
  let count = text.length;
  while (count && end(count) > room - 12) count -= 1;
  return `${text.data.slice(0, count)}…`;
})"""
"""What a reader sees of the names of rows: the style sheet cuts what is too long."""


@pytest.mark.smoke
def test_sort_filter_pick_and_hardware_metrics(host):
    widget = explore.kernels(sample("torch_tp1_eager"), metrics=sample_metrics("ncu_tp1_eager"))
    shown = host(widget, height=2300)
    page = shown.page
    rows = page.locator("[aria-busy=false] tr[data-row]")
    rows.first.wait_for()
    expect(page.get_by_role("grid").first).to_have_attribute(
        "aria-rowcount", str(widget.table.height + 1)
    )
    assert page.locator("tr[data-row] span").first.get_attribute("title") == widget.table["name"][0]

    # a head sorts, and says so
    head = page.get_by_role("button", name="launches", exact=True)
    for sort, said in (("-count", "descending"), ("count", "ascending")):
        head.click()
        shown.wait(lambda sort=sort: widget.sort == sort)
        page.locator(f"th[aria-sort={said}]", has_text="launches").wait_for()

    # filters narrow what the frame holds
    page.get_by_label("category").select_option("attention")
    shown.wait(lambda: set(widget.table["category"]) == {"attention"})
    page.get_by_label("category").select_option("all")
    page.get_by_label("Search kernels").fill("FlashAttnFwdSm90")
    shown.wait(lambda: widget.category is None and 0 < widget.table.height < 5)
    shown.quiet()
    rows.first.click()
    shown.wait(lambda: "FlashAttn" in (widget.kernel or ""))
    assert set(widget.selected["name"]) == {widget.kernel}

    # the hardware metrics of the picked kernel
    page.get_by_text("Advice of Nsight Compute").wait_for()
    page.get_by_role("button", name="long_scoreboard").first.click()
    page.get_by_text("Good:").first.wait_for()
    page.get_by_label("Search metrics").fill("dram__bytes_read.sum")
    page.get_by_text("dram__bytes_read.sum", exact=True).first.wait_for()
    shown.quiet()
    shown.shot("kernels_metrics")

    # a launch on the chart: the frame holds it, and the window goes there
    chart = page.get_by_label("Launches over time")
    for key in ("ArrowRight", "ArrowRight", "Enter"):
        chart.press(key)
    shown.wait(lambda: widget.event is not None)
    assert widget.selected.select("event", "name").rows() == [(widget.event, widget.kernel)]
    assert widget.window[0] < widget.selected["start_ns"][0] < widget.window[1]
    assert shown.faults() == []


def test_a_point_of_the_roofline_of_operators_picks_its_kernel(host):
    trace = sample("torch_transformers_generate")
    widget = explore.kernels(trace)
    widget.kernel = widget.table["name"][0]
    shown = host(widget, height=2000)
    shown.page.get_by_text("Operators under the roofs of H200").wait_for()
    canvas = shown.page.get_by_label("Roofline of all operators")
    before = widget.kernel
    canvas.press("ArrowRight")  # the marks of the picked kernel come last
    canvas.press("Enter")
    shown.wait(lambda: widget.kernel != before)
    assert widget.kernel in set(trace.kernels["name"])
    shown.wait(lambda: widget.event is not None)  # its longest launch, in the window
    picked = trace.events.row(by_predicate=pl.col("event") == widget.event, named=True)
    assert picked["name"] == widget.kernel
    assert widget.window[0] < picked["start_ns"] < widget.window[1]
    shown.quiet()
    assert shown.faults() == []


def test_columns_are_chosen_and_kept_and_the_first_one_stays(host):
    widget = explore.kernels(sample("torch_tp1_eager"))
    shown = host(widget, width=390, height=1200)
    grid = shown.page.get_by_role("grid", name="Kernels")
    grid.locator("tr[data-row] td").first.wait_for()
    shown.quiet()
    first = grid.locator("tr[data-row] td").first
    before = first.bounding_box()
    box = shown.page.locator(".lp-gridbox").first
    assert before["width"] < 0.5 * box.bounding_box()["width"]  # there is room for others beside it
    box.evaluate("el => el.scrollTo(400, 0)")
    shown.wait(
        lambda: (now := first.bounding_box()) and abs(now["x"] - before["x"]) < 1
    )  # rows are made anew
    shown.shot("kernels_frozen_390")
    shown.page.locator(".lp-menu summary").click()
    shown.page.get_by_role("checkbox", name="over time").uncheck()
    shown.page.get_by_role("checkbox", name="slack").uncheck()
    shown.wait(lambda: widget.hidden_columns == ["series", "slack_ns"])
    heads = grid.get_by_role("columnheader")
    expect(heads.filter(has_text="slack")).to_have_count(0)
    assert heads.count() == grid.locator("tr[data-row]").first.locator("td").count()
    shown.shot("kernels_columns_390")
    shown.page.keyboard.press("Escape")
    expect(shown.page.get_by_role("checkbox", name="slack")).to_be_hidden()
    assert shown.faults() == []
    widget.hidden_columns = []
    expect(heads.filter(has_text="slack")).to_have_count(1)


@pytest.mark.parametrize("width", [390, 1400])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_no_two_kernels_look_alike(host, width, theme):
    widget = explore.kernels(sample("torch_transformers_generate"), sort="name")
    shown = host(widget, width=width, height=900, theme=theme)
    rows = shown.page.locator("[aria-busy=false] tr[data-row]")
    rows.first.wait_for()
    grid = shown.page.get_by_role("grid", name="Kernels")
    seen = {}

    def look():
        found = rows.evaluate_all("all => all.map((row) => row.dataset.row)")
        seen.update(zip(found, rows.evaluate_all(SEEN), strict=True))
        return len(seen) == widget.table.height

    while not look():
        last = max(map(int, seen))
        shown.page.locator(".lp-gridbox").first.evaluate("box => box.scrollBy(0, 200)")
        shown.wait(lambda last=last: rows.last.get_attribute("data-row") != str(last))
        shown.quiet()
    alike = {text for text in seen.values() if list(seen.values()).count(text) > 1}
    assert alike == set()
    # the whole name is there for who listens
    told = grid.locator(".lp-told").evaluate_all(
        "all => all.map((one) => [...one.children].map((part) => part.innerText))"
    )
    assert told or width > 390
    assert all("…" in visible and len(heard) > len(visible) for visible, heard in told)
    assert shown.faults() == []
    shown.shot(f"kernels-names-{width}-{theme}")


def test_a_narrower_page_tells_names_apart_again(host):
    widget = explore.kernels(sample("torch_transformers_generate"), sort="name")
    shown = host(widget, width=1400, height=900)
    rows = shown.page.locator("[aria-busy=false] tr[data-row]")
    rows.first.wait_for()
    shown.quiet()
    before = rows.evaluate_all(SEEN)
    shown.page.set_viewport_size({"width": 390, "height": 900})
    shown.wait(lambda: rows.evaluate_all(SEEN) != before)
    shown.wait(lambda: len(set(now := rows.evaluate_all(SEEN))) == len(now))
