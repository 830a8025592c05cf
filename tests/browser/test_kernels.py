"""The explorer of kernels in a real JupyterLab: sorted, narrowed, picked, with hardware metrics and without."""

import polars as pl
import pytest
from playwright.sync_api import expect

from llmprof import analyze, explore, schema
from llmprof.trace import Trace
from tests.browser.drawn import painted
from tests.samples import sample

SETUP = """import llmprof
from llmprof import explore
trace = llmprof.sample("torch_tp1_eager")
metrics = llmprof.sample_metrics("ncu_tp1_eager")"""
SHOW = "w = explore.kernels(trace, metrics=metrics)\nw"


def ready(opened, cell: int = -1):
    """The widget of a cell, once its table has rows."""
    widget = opened.output(cell).locator(".lp")
    widget.locator("tr[data-row] td").first.wait_for()
    return widget


def names(widget) -> list[str]:
    cells = widget.locator("tr[data-row] td:first-child span").all()
    return [cell.get_attribute("title") for cell in cells]


@pytest.mark.smoke
def test_sort_filter_pick_and_hardware_metrics(notebook):
    opened = notebook([SETUP, SHOW], height=2300)
    widget = ready(opened)
    total = opened.python("w.table.height")
    grid = widget.get_by_role("grid")
    expect(grid).to_have_attribute("aria-rowcount", str(total + 1))
    assert names(widget)[0] == opened.python("w.table['name'][0]")
    opened.shot("kernels", widget)

    # a head sorts, and says so
    widget.get_by_role("button", name="launches", exact=True).click()
    opened.wait("w.sort == '-count'")
    head = widget.get_by_role("columnheader", name="launches")
    head.and_(opened.page.locator("[aria-sort=descending]")).wait_for()
    widget.get_by_role("button", name="launches", exact=True).click()
    opened.wait("w.sort == 'count'")
    assert opened.python("w.table['count'].is_sorted()")

    # filters narrow what the frame holds
    widget.get_by_label("category").select_option("attention")
    opened.wait("w.category == 'attention' and set(w.table['category']) == {'attention'}")
    widget.get_by_label("category").select_option("all")
    opened.wait("w.category is None")
    widget.get_by_label("split by").select_option("phase")
    opened.wait("w.by == ['phase'] and 'phase' in w.table.columns")
    widget.get_by_label("split by").select_option("nothing")
    widget.get_by_label("Search kernels").fill("FlashAttnFwdSm90")
    opened.wait("w.search == 'FlashAttnFwdSm90' and 0 < w.table.height < 5")
    widget.locator("[aria-busy=false] tr[data-row]").nth(0).click()  # a click means the rows on the screen
    opened.wait("w.kernel is not None and 'FlashAttn' in w.kernel")
    widget.locator("tr[data-row][aria-selected=true]").wait_for()
    assert opened.wait("w.selected.height") == opened.python("w.launches.height")
    assert opened.python("set(w.selected['name']) == {w.kernel}")

    # the hardware metrics of the picked kernel
    widget.get_by_text("Speed of light", exact=True).wait_for()
    widget.get_by_text("Advice of Nsight Compute").wait_for()
    widget.get_by_role("button", name="long_scoreboard").first.click()
    widget.get_by_text("Good:").first.wait_for()
    widget.get_by_label("Search metrics").fill("dram__bytes_read.sum")
    widget.get_by_text("dram__bytes_read.sum", exact=True).first.wait_for()
    painted(opened.page)
    opened.shot("kernels_metrics", widget)

    # a launch on the chart: the frame holds it, and the window goes there
    chart = widget.get_by_label("Launches over time")
    chart.focus()
    for key in ("ArrowRight", "ArrowRight", "Enter"):
        opened.page.keyboard.press(key)
    event = opened.wait("w.event")
    assert opened.python("w.selected.select('event', 'name').rows()") == [[event, opened.python("w.kernel")]]
    start = opened.python("w.selected['start_ns'][0]")
    assert opened.python("w.window[0]") < start < opened.python("w.window[1]")
    assert opened.faults(".lp") == []


def test_keyboard_picks_a_row_and_the_command_of_a_kernel_without_metrics_is_written(notebook):
    opened = notebook([SETUP, "w = explore.kernels(trace)\nw"], width=1100, height=1500)
    widget = ready(opened)
    opened.page.evaluate("navigator.clipboard.writeText = async text => { window.copied = text; }")
    widget.get_by_role("grid").focus()
    for key in ("End", "Home", "ArrowDown", "Enter"):
        opened.page.keyboard.press(key)
    opened.wait("w.kernel == w.table['name'][1]")
    widget.locator("tr[aria-selected=true]").wait_for()
    widget.get_by_label("Program and its arguments").fill("python serve.py --model 'my model'")
    widget.get_by_role("button", name="Write the ncu command").click()
    widget.get_by_label("ncu command", exact=True).wait_for()
    command = widget.get_by_label("ncu command", exact=True).text_content()
    assert command.startswith("ncu --target-processes all --profile-from-start off")
    assert command.endswith("python serve.py --model 'my model'")
    widget.get_by_role("button", name="Copy").click()
    opened.page.wait_for_function("window.copied !== undefined")
    assert opened.page.evaluate("window.copied") == command
    opened.shot("kernels_command", widget)
    widget.get_by_label("Program and its arguments").fill("python 'unclosed")
    widget.get_by_role("button", name="Write the ncu command").click()
    widget.get_by_text("cannot be read").wait_for()


HOSTILE = "\"><img src=x onerror='window.hacked=1'><script>window.hacked=2</script>${window.hacked=3}"


def test_names_are_text_and_thousands_of_rows_are_few_elements(host):
    every = [HOSTILE] + [f"kernel_{n}<T>" for n in range(5000)]
    times = {"rank": 0, "start_ns": range(len(every)), "dur_ns": range(9000, 9000 - len(every), -1)}
    rows = pl.DataFrame({**times, "name": every}, schema_overrides={"rank": pl.Int32})
    widget = explore.kernels(Trace({"kernels": rows, "ops": rows.with_columns(kind=pl.lit("op"))}))
    shown = host(widget)
    page = shown.page
    page.locator("tr[data-row] td").first.wait_for()
    assert names(page)[0] == HOSTILE
    assert page.locator("tr").count() < 80
    page.locator("tr[data-row]").first.click()
    shown.wait(lambda: widget.kernel is not None)
    page.locator("h3, code").filter(has_text="onerror").first.wait_for()
    page.get_by_role("grid").focus()
    page.keyboard.press("End")
    page.get_by_text("kernel_4999<T>", exact=True).wait_for()
    assert page.locator("tr").count() < 80
    assert page.evaluate("window.hacked") is None
    assert page.locator("img").count() == 0


@pytest.mark.parametrize(
    ("tables", "words"),
    [({}, "holds no kernels"), ({"kernels": schema.empty("kernels")}, "No kernel fits.")],
    ids=["not recorded", "empty"],
)
def test_nothing_to_show_is_said(host, tables, words):
    widget = explore.kernels(Trace(tables))
    shown = host(widget)
    shown.page.get_by_text(words).first.wait_for()
    assert widget.selected.height == 0


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
    picked = analyze.attribute(trace).row(by_predicate=pl.col("event") == widget.event, named=True)
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
    assert abs(first.bounding_box()["x"] - before["x"]) < 1
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
