"""The explorer that compares two traces, in a real JupyterLab."""

from __future__ import annotations

import pytest

from llmprof import explore

SETUP = """import llmprof
from llmprof import explore
a = llmprof.sample("torch_tp4_eager_custom_allreduce")
b = llmprof.sample("torch_tp4_eager_nccl")"""
SHOW = """w = explore.compare(a, b, names=("custom", "nccl"))
w"""


def ready(opened):
    widget = opened.output().locator(".lp")
    widget.locator("tr[data-row] td").first.wait_for()
    return widget


def test_verdicts_rows_and_bars(notebook):
    opened = notebook([SETUP, SHOW], height=1700)
    widget = ready(opened)
    assert widget.get_by_role("grid").get_attribute("aria-rowcount") == str(opened.python("w.table.height + 1"))
    opened.page.wait_for_timeout(200)
    opened.shot("compare", widget)

    widget.get_by_role("button", name="vanished").click()
    opened.wait("w.status == 'only_a' and set(w.table['status']) == {'only_a'}")
    widget.get_by_role("button", name="vanished").click()
    opened.wait("w.status is None")
    widget.get_by_role("combobox", name="phase").select_option("decode")
    opened.wait("w.phase == 'decode' and set(w.table['phase']) == {'decode'}")
    widget.get_by_role("button", name="change", exact=True).click()
    opened.wait("w.sort == 'delta_ns'")
    widget.get_by_role("button", name="change", exact=True).click()
    opened.wait("w.sort == '-delta_ns'")
    widget.locator("[aria-busy=false] tr[data-row]").first.click()  # a click means the rows on the screen
    opened.wait("w.picked == w.table.select('phase', 'stage', 'category').row(0, named=True)")
    widget.get_by_text("In every step of the phase").wait_for()
    assert opened.python("sorted(set(w.selected['trace']))") == ["custom", "nccl"]
    assert opened.python("set(w.selected['stage']) == {w.picked['stage']}")
    opened.page.wait_for_timeout(300)
    opened.shot("compare_picked", widget)

    # the bars are reached with the keyboard
    bars = widget.get_by_label("Time of a step by stage in both traces")
    bars.focus()
    for key in ("ArrowRight", "ArrowRight", "Enter"):
        opened.page.keyboard.press(key)
    opened.wait("w.picked is not None and set(w.picked) == {'phase', 'stage'}")
    assert opened.python("w.selected.height > 0")

    widget.get_by_role("combobox", name="align by").select_option("name")
    opened.wait("w.by == ['name'] and 'name' in w.table.columns")
    widget.get_by_role("columnheader", name="kernel").wait_for()
    widget.get_by_label("Search rows").fill("cross_device_reduce")
    opened.wait("0 < w.table.height < 4 and set(w.table['status']) == {'only_a'}")
    assert opened.faults(".lp") == []
    assert opened.problems == []
    assert opened.asked == set()


def test_a_click_that_comes_while_the_table_is_drawn_anew_counts(host, sample_trace):
    widget = explore.compare(
        sample_trace("torch_tp4_eager_custom_allreduce"), sample_trace("torch_tp4_eager_nccl"), names=("custom", "nccl")
    )
    shown = host(widget, height=1400)
    rows = shown.page.locator("tr[data-row]")
    rows.first.wait_for()
    # pressed, then other rows come, then released: the click means the row that was on the screen
    second = widget.table.select("phase", "stage", "category").row(1, named=True)
    box = rows.nth(1).bounding_box()
    shown.page.mouse.move(box["x"] + 10, box["y"] + 10)
    shown.page.mouse.down()
    widget.sort = "stage"
    shown.wait(lambda: rows.nth(0).inner_text() and widget.busy == "")
    shown.page.wait_for_timeout(300)
    shown.page.mouse.up()
    assert shown.wait(lambda: widget.picked) == second
    shown.page.locator("tr[data-row='0']", has_text=widget.table["stage"][0]).wait_for()

    # clicks right after each other: the next one does not wait for the rows of the one before
    pressed = """button => [1, 2, 3].map(() => { button.click(); return button.getAttribute("aria-pressed"); })"""
    assert shown.page.get_by_role("button", name="vanished").evaluate(pressed) == ["true", "false", "true"]
    shown.wait(lambda: widget.status == "only_a")
    head = shown.page.get_by_role("button", name="change", exact=True)
    head.evaluate("button => { button.click(); button.click(); }")
    shown.wait(lambda: widget.sort == "delta_ns")
    assert shown.problems == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_python_moves_the_widget_in_a_narrow_page(notebook, theme):
    opened = notebook([SETUP, SHOW], width=620, height=1800, theme=theme)
    widget = ready(opened)
    opened.run("w.phase = 'decode'; w.picked = {'phase': 'decode', 'stage': 'all_reduce'}")
    widget.get_by_text("Its kernels").wait_for()
    opened.page.wait_for_timeout(300)
    opened.shot(f"compare_narrow_{theme}", widget)
    assert widget.evaluate("el => el.scrollWidth <= el.clientWidth + 1")
    assert opened.faults(".lp") == []
    assert opened.problems == []


def test_hostile_names_and_a_trace_without_devices(notebook):
    opened = notebook(
        [
            SETUP,
            """import polars as pl
bad = "<img src=x onerror='window.hacked=1'><script>window.hacked=2</script>"
tables = {name: a.table(name) for name in ("kernels", "runtime", "markers")}
norm = pl.col("name").str.contains("rms")
tables["kernels"] = tables["kernels"].with_columns(name=pl.when(norm).then(pl.lit(bad)).otherwise("name"))
w = explore.compare(llmprof.Trace(tables), a, names=("<b>x</b>", "y"), by=["name"], search="onerror")
w""",
            "missing = explore.compare(a, llmprof.Trace({}))\nmissing",
        ],
        height=1600,
    )
    opened.output().get_by_text("holds no kernels").wait_for()
    widget = opened.output(1).locator(".lp")
    widget.locator("tr[data-row]").first.click()
    opened.wait("w.picked is not None")
    widget.get_by_text("Its kernels").wait_for()
    assert widget.locator("img, script, b:has-text('x')").count() == 0
    assert opened.page.evaluate("window.hacked") is None
    assert opened.python("missing.selected.height") == 0
