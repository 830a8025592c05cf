import json

import polars as pl
import pytest
from playwright.sync_api import expect

import llmprof
from llmprof import explore
from tests.browser import drawn

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
    rows = opened.wait("w.phase == 'decode' and w.table.height")
    expect(widget.get_by_role("grid")).to_have_attribute("aria-rowcount", str(rows + 1))
    opened.shot("compare", widget)

    widget.get_by_role("button", name="vanished").click()
    opened.wait("w.status == 'only_a' and set(w.table['status']) == {'only_a'}")
    widget.get_by_role("button", name="vanished").click()
    opened.wait("w.status is None")
    opened.wait("w.phase == 'decode' and set(w.table['phase']) == {'decode'}")
    widget.get_by_role("combobox", name="phase").select_option("prefill")
    opened.wait("w.phase == 'prefill' and set(w.table['phase']) == {'prefill'}")
    widget.get_by_text("A step of prefill takes").wait_for()
    widget.get_by_role("combobox", name="rank").select_option("2")
    opened.wait("w.rank == 2")
    widget.get_by_role("combobox", name="rank").select_option("all, their mean")
    opened.wait("w.rank is None")
    widget.get_by_role("combobox", name="phase").select_option("decode")
    opened.wait("w.phase == 'decode'")
    widget.get_by_role("button", name="change", exact=True).click()
    opened.wait("w.sort == 'delta_ns'")
    widget.get_by_role("button", name="change", exact=True).click()
    opened.wait("w.sort == '-delta_ns'")
    widget.locator("[aria-busy=false] tr[data-row]").first.click()  # a click means the rows on the screen
    opened.wait("w.picked == w.table.select('phase', 'stage', 'name').row(0, named=True)")
    widget.get_by_text("In every step of the phase").wait_for()
    # the largest change is the custom kernel, which only one run has
    assert opened.python("sorted(set(w.selected['trace']))") == ["custom"]
    assert opened.python("set(w.selected['name']) == {w.picked['name']}")
    drawn.painted(opened.page)
    opened.shot("compare_picked", widget)

    # the bars are reached with the keyboard, once they are those of what is chosen
    story = "JSON.parse(document.querySelector('[data-story]').dataset.story)"
    opened.page.wait_for_function(f"{story}.phase === 'decode' && {story}.rank === null")
    bars = widget.get_by_label("From custom to nccl, a bar a part")
    bars.focus()
    for key in ("ArrowRight", "ArrowDown", "Enter"):
        opened.page.keyboard.press(key)
    opened.wait("w.picked is not None and set(w.picked) == {'phase', 'stage'}")
    assert opened.python("w.picked['stage'] == w.waterfall['part'][1] and w.selected.height > 0")

    widget.get_by_role("combobox", name="align by").select_option("name")
    opened.wait("w.by == ['name'] and 'name' in w.table.columns")
    widget.get_by_role("columnheader", name="kernel").wait_for()
    widget.get_by_label("Search rows").fill("cross_device_reduce")
    opened.wait("0 < w.table.height < 4 and set(w.table['status']) == {'only_a'}")
    opened.wait("w.status is None")
    assert opened.faults(".lp") == []


def aligned(shown):
    shown.page.wait_for_function("document.querySelector('[data-tracks]') && document.querySelector('[data-story]')")
    return json.loads(shown.page.locator("[data-tracks]").get_attribute("data-tracks"))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_timelines_are_aligned_zoomed_and_moved(host, sample_trace, theme):
    a, b = sample_trace("torch_tp1_eager"), sample_trace("torch_tp1_cudagraph")
    widget = explore.compare(a, b)
    shown = host(widget, height=1800, theme=theme)
    page = shown.page
    assert aligned(shown)["window"] is None
    number = page.get_by_role("spinbutton", name="step of the phase")
    first = int(number.input_value())
    page.get_by_role("button", name="Next step").click()
    shown.wait(lambda: widget.place == first + 1)
    page.get_by_role("button", name="Step before").click()
    shown.wait(lambda: widget.place == first)
    number.fill("7")
    number.press("Enter")
    shown.wait(lambda: widget.place == 7)
    page.get_by_role("combobox", name="aligned at").select_option("layer 3")
    shown.wait(lambda: widget.layer == 3 and aligned(shown)["layer"] == 3)
    page.get_by_text("Both timelines, aligned").wait_for()
    canvas = page.get_by_label("Timelines of both runs, aligned")
    canvas.focus()
    canvas.press("+")
    near = shown.wait(lambda: widget.zoom)
    canvas.press("d")
    shown.wait(lambda: widget.zoom[0] > near[0])
    canvas.press("-")
    shown.wait(lambda: widget.zoom[1] - widget.zoom[0] > 1.5 * (near[1] - near[0]))
    canvas.press("0")
    shown.wait(lambda: widget.zoom is None)
    box = canvas.bounding_box()
    drawn.drag(page, (box["x"] + 300, box["y"] + 60), (box["x"] + 500, box["y"] + 60))
    shown.wait(lambda: widget.zoom is not None)
    for name in ("Zoom in (+)", "Zoom out (-)", "Earlier (a)", "Later (d)"):
        before = widget.zoom
        page.get_by_role("button", name=name).click()
        shown.wait(lambda before=before: widget.zoom != before)
    page.get_by_role("button", name="The whole step (0)").click()
    shown.wait(lambda: widget.zoom is None and widget.layer is None)
    page.keyboard.down("Control")
    page.mouse.move(box["x"] + 400, box["y"] + 60)
    page.mouse.wheel(0, -200)
    page.keyboard.up("Control")
    shown.wait(lambda: widget.zoom is not None)
    canvas.focus()
    for key in ("ArrowRight", "ArrowDown"):
        canvas.press(key)
    expect(page.locator(".lp-panel [aria-live]").filter(has_text="duration")).to_have_count(1)


def test_what_a_user_has_in_hand_stays_while_the_widget_is_drawn_anew(host, sample_trace):
    widget = explore.compare(sample_trace("torch_tp1_eager"), sample_trace("torch_tp1_cudagraph"))
    shown = host(widget, height=1800)
    page = shown.page
    aligned(shown)

    def drawn(place: int) -> None:
        shown.wait(lambda: aligned(shown)["place"] == place)

    # half a number is not written over, and counts when it is finished
    number = page.get_by_role("spinbutton", name="step of the phase")
    number.fill("7")
    widget.place = 3
    drawn(3)
    expect(number).to_have_value("7")
    number.press("Enter")
    shown.wait(lambda: widget.place == 7)
    widget.place = 4
    drawn(4)
    expect(number).to_have_value("4")
    # the focus stays, and so do details that were opened
    button = page.get_by_role("button", name="Zoom in (+)")
    button.focus()
    widget.place = 5
    drawn(5)
    expect(button).to_be_focused()
    summary = page.get_by_text("What differs between the runs")
    summary.click()
    summary.focus()
    widget.rank = 0
    page.wait_for_function("JSON.parse(document.querySelector('[data-story]').dataset.story).rank === 0")
    expect(page.locator("details.lp-context")).to_have_attribute("open", "")
    expect(summary).to_be_focused()
    # a button that is pressed while it is drawn anew is clicked
    box = button.bounding_box()
    page.mouse.move(box["x"] + 4, box["y"] + 4)
    page.mouse.down()
    widget.place = 6
    drawn(6)
    page.mouse.up()
    shown.wait(lambda: widget.zoom is not None)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_three_runs_are_small_multiples_and_a_pair_is_chosen(host, sample_trace, theme):
    runs = [sample_trace(f"torch_tp1_{kind}") for kind in ("eager", "cudagraph", "eager")]
    widget = explore.compare(*runs, names=("eager", "graphs", "again"))
    shown = host(widget, height=1800, theme=theme)
    page = shown.page
    aligned(shown)
    for title in ("From eager to graphs", "From eager to again"):
        page.get_by_role("heading", name=title).wait_for()
    page.get_by_role("button", name="Look at this pair").click()
    shown.wait(lambda: widget.pair == [0, 2])
    page.get_by_text("A step of decode takes 33.0 ms in again against 33.0 ms in eager").wait_for()
    page.get_by_role("combobox", name="from").select_option("graphs")
    shown.wait(lambda: widget.pair == [1, 2])
    page.get_by_text("A step of decode takes 33.0 ms in again against 3.85 ms in graphs").wait_for()
    page.get_by_role("columnheader", name="graphs").first.wait_for()
    shown.quiet()
    assert shown.faults() == []


def test_runs_that_differ_are_laid_side_by_side_as_far_as_they_can_be(host, shared):
    a, b = (llmprof.read(shared / f"captures/{name}") for name in ("torch_tp1_moe_eager", "nsys_tp2_cudagraph"))
    shown = host(explore.compare(a, b, names=("moe", "dense"), layer=40), height=1800)
    aligned(shown)
    shown.page.get_by_text("Only moe has steps of mixed: they are not compared.").wait_for()
    shown.page.get_by_text("What differs between the runs").click()
    layers = shown.page.get_by_text("layers of a rank: 48 in moe, 28 in dense; those with the same number")
    layers.wait_for()
    shown.page.get_by_role("combobox", name="phase").select_option("mixed")
    shown.page.get_by_text("dense shares no mixed with moe.").wait_for()
    expect(layers).to_be_visible()


def test_a_click_that_comes_while_the_table_is_drawn_anew_counts(host, sample_trace):
    widget = explore.compare(
        sample_trace("torch_tp4_eager_custom_allreduce"), sample_trace("torch_tp4_eager_nccl"), names=("custom", "nccl")
    )
    shown = host(widget, height=2200)
    rows = shown.page.locator("tr[data-row]")
    aligned(shown)
    shown.page.locator("[aria-busy=false] tr[data-row]").first.wait_for()
    # pressed, then other rows come, then released: the click means the row that was on the screen
    second = widget.table.select("phase", "stage", "name").row(1, named=True)
    box = rows.nth(1).bounding_box()
    shown.page.mouse.move(box["x"] + 10, box["y"] + 10)
    shown.page.mouse.down()
    widget.sort = "stage"
    shown.page.locator("th[aria-sort=ascending]", has_text="stage").wait_for()
    shown.quiet()
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


def test_hostile_names_and_a_trace_without_devices(host, sample_trace):
    a = sample_trace("torch_tp4_eager_custom_allreduce")
    bad = "<img src=x onerror='window.hacked=1'><script>window.hacked=2</script>"
    tables = {name: a.table(name) for name in ("kernels", "runtime", "markers")}
    norm = pl.col("name").str.contains("rms")
    tables["kernels"] = tables["kernels"].with_columns(name=pl.when(norm).then(pl.lit(bad)).otherwise("name"))
    missing = explore.compare(a, llmprof.Trace({}))
    host(missing).page.get_by_text("holds no kernels").first.wait_for()
    assert missing.selected.height == 0
    hostile = llmprof.Trace(tables)
    widget = explore.compare(hostile, a, names=("<b>x</b>", "y"), by=["name"], search="onerror")
    shown = host(widget, height=1600)
    shown.page.locator("[aria-busy=false] tr[data-row]").first.click()
    shown.wait(lambda: widget.picked is not None)
    shown.page.get_by_text("Its kernels").wait_for()
    assert shown.page.locator("#host").locator("img, script, b:has-text('x')").count() == 0
    assert shown.page.evaluate("window.hacked") is None
