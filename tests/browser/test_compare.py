import json

from playwright.sync_api import expect

import llmprof
from llmprof import explore
from tests.browser import drawn


def aligned(shown):
    shown.page.wait_for_function(
        "document.querySelector('[data-tracks]') && document.querySelector('[data-story]')"
    )
    return json.loads(shown.page.locator("[data-tracks]").get_attribute("data-tracks"))


def test_timelines_are_aligned_zoomed_and_moved(host, sample_trace):
    widget = explore.compare(sample_trace("torch_tp1_eager"), sample_trace("torch_tp1_cudagraph"))
    shown = host(widget, height=1800)
    page = shown.page
    assert aligned(shown)["window"] is None
    page.get_by_role("combobox", name="aligned at").select_option("layer 3")
    shown.wait(lambda: widget.layer == 3 and aligned(shown)["layer"] == 3)
    canvas = page.get_by_label("Timelines of both runs, aligned")
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


def test_what_a_user_has_in_hand_stays_while_the_widget_is_drawn_anew(host, sample_trace):
    widget = explore.compare(sample_trace("torch_tp1_eager"), sample_trace("torch_tp1_cudagraph"))
    shown = host(widget, height=1800)
    page = shown.page
    aligned(shown)

    def drawn(place):
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
    widget.only = {"rank": 0}
    page.wait_for_function(
        "JSON.parse(document.querySelector('[data-story]').dataset.story).rank === 0"
    )
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


def test_runs_that_differ_are_laid_side_by_side_as_far_as_they_can_be(host, shared):
    a, b = (
        llmprof.read(shared / f"captures/{name}")
        for name in ("torch_tp1_moe_eager", "nsys_tp2_cudagraph")
    )
    shown = host(explore.compare(a, b, names=("moe", "dense"), layer=40), height=1800)
    aligned(shown)
    shown.page.get_by_text("Only moe has steps of mixed: they are not compared.").wait_for()
    shown.page.get_by_text("What differs between the runs").click()
    layers = shown.page.get_by_text(
        "layers of a rank: 48 in moe, 28 in dense; those with the same number"
    )
    layers.wait_for()
    shown.page.get_by_role("combobox", name="phase").select_option("mixed")
    shown.page.get_by_text("dense shares no mixed with moe.").wait_for()
    expect(layers).to_be_visible()


def test_a_click_that_comes_while_the_table_is_drawn_anew_counts(host, sample_trace):
    widget = explore.compare(
        sample_trace("torch_tp4_eager_custom_allreduce"),
        sample_trace("torch_tp4_eager_nccl"),
        names=("custom", "nccl"),
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
    assert shown.page.get_by_role("button", name="vanished").evaluate(pressed) == [
        "true",
        "false",
        "true",
    ]
    shown.wait(lambda: widget.status == "only_a")
    head = shown.page.get_by_role("button", name="change", exact=True)
    head.evaluate("button => { button.click(); button.click(); }")
    shown.wait(lambda: widget.sort == "delta_ns")
