"""Gestures on the timeline, in a page of its own: ranks, wheel, selected ranges and their table."""

import json

import pytest
from playwright.sync_api import expect

from llmprof import explore
from tests.browser.drawn import FOCUSED, drag, exact, painted, still, tab_to

SAMPLE = "torch_tp4_eager_custom_allreduce"  # rank 3 is late


@pytest.fixture
def shown(host, sample_trace, request):
    """A timeline that has found its rows."""
    one = host(
        explore.timeline(sample_trace(SAMPLE)), theme=getattr(request, "param", "light"), height=900
    )
    one.wait(lambda: one.page.locator(".lpt-group", has_text="waits").count() == 4)
    exact(one.page)
    return one


def canvas(shown):
    return shown.page.locator(".lpt-main canvas").bounding_box()


def window(shown):
    return json.loads(shown.page.locator(".lpt").get_attribute("data-shown"))


def group(shown, rank):
    return shown.page.locator(".lpt-group", has_text=f"rank {rank}")


@pytest.mark.parametrize("shown", ["light", "dark"], indirect=True)
def test_all_ranks_are_seen_at_once_and_the_late_one_stands_out(shown):
    shares = [group(shown, rank).inner_text() for rank in range(4)]
    assert [float(text.split("waits")[1].strip(" %\n")) > 50 for text in shares] == [
        True,
        True,
        True,
        False,
    ]
    rows = shown.page.locator(".lpt-main .lpt-row")
    expect(rows).to_have_count(0)
    shown.wait(
        lambda: shown.page.locator(".lpt").evaluate(
            "el => el.getBoundingClientRect().bottom <= innerHeight"
        )
    )

    # a rank opens, all open and close; the host can be left out, ranks hidden and ordered
    group(shown, 3).click()
    some = shown.wait(lambda: rows.count() > 4 and rows.count())
    shown.page.get_by_role("button", name="Close all").click()
    shown.page.get_by_role("button", name="Open all").click()
    every = shown.wait(lambda: rows.count() > some and rows.count())
    shown.page.locator(".lp-menu summary", has_text="Rows").click()
    shown.page.get_by_label("devices only").check()
    shown.wait(lambda: 0 < rows.count() < every)
    shown.page.get_by_label("rank 0", exact=True).uncheck()
    expect(group(shown, 0)).to_have_count(0)
    shown.page.get_by_label("Order").select_option("waits")
    shown.wait(lambda: shown.page.locator(".lpt-group").first.inner_text().startswith("▾\nrank 3"))
    shown.page.keyboard.press("Escape")
    expect(shown.page.locator(".lpt-menubox").first).to_be_hidden()
    shown.page.get_by_role("button", name="Close all").click()
    expect(rows).to_have_count(0)


def test_the_plain_wheel_scrolls_and_with_ctrl_it_zooms(shown):
    before, area = window(shown), canvas(shown)
    shown.page.mouse.move(area["x"] + area["width"] * 0.25, area["y"] + 40)
    shown.page.evaluate(
        "addEventListener('wheel', (event) => { window.prevented = event.defaultPrevented; })"
    )
    shown.page.mouse.wheel(0, -300)
    shown.page.wait_for_function("window.prevented === false")
    painted(shown.page)
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
    low = shown.wait(lambda: window(shown)[0] > low and window(shown)[0])
    shown.wait(lambda: shown.widget.window is not None)
    shown.page.mouse.wheel(200, 0)  # a sideways wheel moves, too
    low = shown.wait(lambda: window(shown)[0] > low and window(shown)[0])
    # and so does dragging the axis of time: what was under the pointer comes along
    long = window(shown)[1] - low
    head = shown.page.locator(".lpt-head").bounding_box()
    y = head["y"] + head["height"] - 8
    drag(shown.page, (head["x"] + 300, y), (head["x"] + 450, y))
    moved = low - 150 / area["width"] * long
    shown.wait(lambda: abs(window(shown)[0] - moved) < 0.02 * long)
    assert abs(window(shown)[1] - window(shown)[0] - long) <= 2
    assert shown.widget.span is None


def test_rows_scroll_by_the_wheel_and_by_keys_and_then_the_page_does(shown):
    shown.page.get_by_role("button", name="Open all").click()
    pane = shown.page.locator(".lpt-main")
    shown.wait(lambda: pane.evaluate("el => el.scrollHeight - el.clientHeight") > 280)
    before = window(shown)
    main = shown.page.locator(".lpt-main canvas")
    top = "el => Math.round(el.scrollTop)"
    for key, wanted in (("ArrowDown", 60), ("ArrowDown", 120), ("ArrowUp", 60)):
        main.press(key)
        shown.wait(lambda wanted=wanted: pane.evaluate(top) == wanted)
    area = canvas(shown)
    shown.page.mouse.move(area["x"] + 300, area["y"] + 100)
    shown.page.mouse.wheel(0, 200)
    shown.wait(lambda: pane.evaluate(top) > 60)
    assert shown.page.evaluate("scrollY") == 0
    shown.page.set_viewport_size(
        {"width": 1200, "height": 500}
    )  # the widget is higher than the page
    pane.evaluate("el => el.scrollTo(0, el.scrollHeight)")
    shown.page.mouse.move(area["x"] + 300, area["y"] + 60)

    def page_scrolls():  # a wheel that began on the rows stays theirs for a moment
        shown.page.mouse.wheel(0, 100)
        return shown.page.evaluate("scrollY") > 0

    shown.wait(page_scrolls)
    assert window(shown) == before


@pytest.mark.smoke
def test_by_the_keyboard_alone_from_the_search_to_a_frame(shown):
    keys = shown.page.keyboard
    tab_to(shown.page, "Search names")
    keys.type("rms_norm")
    keys.press("Enter")
    found = shown.wait(lambda: list(shown.widget.selected["name"]))
    assert "rms_norm" in found[0]
    # the rows of its rank have opened; the keys of the rows act on it
    tab_to(shown.page, "Timeline.")
    before = window(shown)
    keys.press("f")
    shown.wait(lambda: window(shown) != before)
    chosen = shown.widget.selection
    keys.press("]")
    shown.wait(lambda: shown.widget.selection not in (None, chosen))
    # the colour, then the menu of rows, and the view as Python
    keys.press("/")
    assert shown.page.evaluate(FOCUSED) == "Search names"
    for _ in range(8):
        keys.press("Tab")
        if shown.page.evaluate("document.activeElement.tagName") == "SELECT":
            break
    keys.press("c")
    shown.wait(lambda: shown.widget.color_by == "category")
    tab_to(shown.page, "Copy as Python")
    keys.press("Enter")
    shown.page.locator("[aria-live]", has_text="Copied: explore.timeline(trace, view=").wait_for(
        state="attached"
    )
    tab_to(shown.page, "Clear")
    keys.press("Enter")
    shown.wait(lambda: shown.widget.selection is None)


@pytest.mark.parametrize("shown", ["light", "dark"], indirect=True)
def test_dragging_over_a_rank_selects_its_events_and_names_them(shown, tmp_path):
    place = still(group(shown, 3))
    area, y = canvas(shown), place["y"] + 24
    shown.page.mouse.move(area["x"] + 300, y)
    shown.page.mouse.down()
    shown.page.mouse.move(area["x"] + 700, y + 6, steps=4)
    painted(shown.page)
    shown.shot(tmp_path / "dragging.png")
    shown.page.mouse.up()
    low, high = shown.wait(lambda: shown.widget.span)
    assert shown.widget.span_rows
    frame = shown.widget.selected
    assert set(frame["rank"]) == {3}
    assert (
        frame.height
        == frame.filter(frame["start_ns"] < high, frame["start_ns"] + frame["dur_ns"] > low).height
    )

    # the table names them all; a head sorts, a row is looked for
    grid = shown.page.get_by_role("grid", name="Names in the selection")
    rows = grid.locator("tr[data-row]")
    rows.first.wait_for()
    totals = [
        int(text.replace(",", "")) for text in rows.locator("td:nth-child(2)").all_inner_texts()
    ]
    assert sum(totals) <= frame.height
    shown.page.get_by_role("button", name="count", exact=True).click()
    grid.locator("th[aria-sort=descending]", has_text="count").wait_for()
    counts = [
        int(text.replace(",", "")) for text in rows.locator("td:nth-child(2)").all_inner_texts()
    ]
    assert counts == sorted(counts, reverse=True)
    rows.first.click()
    shown.page.locator(".lpt-count", has_text="of").wait_for()

    # a range of one rank becomes one of all streams; the view as Python shows it again
    shown.page.get_by_role("button", name="Copy as Python").click()
    shown.page.locator(
        "[aria-live]", has_text=f'"span": [{round(low)}, {round(high)}], "span_rows": ['
    ).wait_for()
    shown.page.get_by_role("button", name="All streams").click()
    shown.wait(lambda: shown.widget.span_rows is None)
    assert set(shown.widget.selected["rank"]) == {0, 1, 2, 3}
    shown.page.get_by_role("button", name="Clear").click()
    shown.wait(lambda: shown.widget.span is None)


def test_zooms_are_undone_by_keys_buttons_and_the_mouse(shown):
    main, whole = shown.page.locator(".lpt-main canvas"), window(shown)
    main.focus()
    shown.page.keyboard.press("w")
    first = shown.wait(lambda: window(shown) != whole and window(shown))
    shown.page.wait_for_timeout(450)  # a window that was rested on
    shown.page.keyboard.press("d")
    second = shown.wait(lambda: window(shown) != first and window(shown))
    shown.page.keyboard.press("Control+z")
    shown.wait(lambda: window(shown) == first)
    shown.page.keyboard.press("Backspace")
    shown.wait(lambda: window(shown) == whole)
    shown.page.keyboard.press("Backspace")
    shown.page.locator("[aria-live]", has_text="Nothing to undo").wait_for(state="attached")
    shown.page.keyboard.press("Control+Shift+z")
    shown.wait(lambda: window(shown) == first)
    shown.page.keyboard.press("Alt+ArrowRight")
    shown.wait(lambda: window(shown) == second)
    main.dispatch_event("mouseup", {"button": 3})
    shown.wait(lambda: window(shown) == first)
    shown.page.get_by_role("button", name="Undo the zoom").click()
    shown.wait(lambda: window(shown) == whole)
    shown.wait(
        lambda: shown.widget.window is None or [round(ns) for ns in shown.widget.window] == whole
    )


def test_help_is_not_covered_and_the_timeline_fills_the_screen(shown):
    area = canvas(shown)
    shown.page.mouse.move(area["x"] + 500, area["y"] + 20)
    card = shown.page.locator(".lpt-card")
    card.wait_for(state="visible")
    shown.page.locator(".lpt-main canvas").focus()
    shown.page.keyboard.press("?")
    expect(shown.page.get_by_role("dialog")).to_be_visible()
    expect(card).to_be_hidden()
    shown.page.mouse.move(area["x"] + 510, area["y"] + 22)
    painted(shown.page)
    expect(card).to_be_hidden()
    shown.page.keyboard.press("Escape")
    before = shown.page.locator(".lpt-main").bounding_box()["height"]
    shown.page.get_by_role("button", name="Fill the screen").click()
    shown.page.wait_for_function("document.fullscreenElement?.classList.contains('lpt')")
    shown.wait(lambda: shown.page.locator(".lpt-main").bounding_box()["height"] > before)
    box = shown.page.locator(".lpt").bounding_box()
    assert (box["x"], box["y"], box["width"]) == (0, 0, shown.page.evaluate("innerWidth"))
    shown.page.get_by_role("button", name="Fill the screen").click()
    shown.page.wait_for_function("!document.fullscreenElement")
    shown.wait(lambda: shown.page.locator(".lpt-main").bounding_box()["height"] == before)


@pytest.mark.parametrize("shown", ["light", "dark"], indirect=True)
def test_a_query_is_completed_run_mended_and_becomes_a_row(shown):
    keys = shown.page.keyboard
    shown.page.get_by_role("button", name="Query the tables in SQL").click()
    box = shown.page.get_by_role("combobox", name="SQL query")
    expect(box).to_be_focused()
    shown.quiet()
    keys.press("Control+a")
    keys.type("select name, start_ns, dur_ns, rank from ker")
    offers = shown.page.get_by_role("listbox", name="Tables, columns and words")
    expect(offers.get_by_role("option")).to_have_text(["kernels"])
    keys.press("Tab")
    keys.type(" where du")
    keys.press("ArrowDown")
    expect(offers.get_by_role("option", selected=True)).to_have_text("dur_ns")
    keys.press("Enter")
    keys.type(" > 1000000")
    expect(box).to_have_value(
        "select name, start_ns, dur_ns, rank from kernels where dur_ns > 1000000"
    )
    keys.press("Control+Enter")
    grid = shown.page.get_by_role("grid", name="Result of the query")
    grid.locator("tr[data-row]").first.wait_for()
    total = shown.widget.queried.height
    shown.page.get_by_text(f"{total:,} rows").wait_for()
    assert (
        total
        == shown.widget.trace.kernels.filter(
            shown.widget.trace.kernels["dur_ns"] > 1_000_000
        ).height
    )
    grid.get_by_role("button", name="dur_ns").click()
    grid.locator("th[aria-sort=descending]", has_text="dur_ns").wait_for()
    shown.quiet()
    grid.locator("tr[data-row]").first.click()
    longest = shown.widget.queried.sort("dur_ns", descending=True).row(0, named=True)
    shown.wait(
        lambda: shown.widget.span == [longest["start_ns"], longest["start_ns"] + longest["dur_ns"]]
    )
    assert shown.widget.rank == longest["rank"]
    shown.page.get_by_role("button", name="As a row").click()
    shown.page.locator(".lpt-name", has_text="query 1").wait_for()
    with shown.page.expect_download() as saved:
        shown.page.get_by_title("Save the result as a CSV file").click()
    assert saved.value.suggested_filename == "query.csv"
    shown.quiet()
    assert shown.faults() == []
    shown.shot("query_result")

    # a wrong one says where, and what is meant; the result before stays
    box.fill("select nam\nfrom kernels")
    box.press("Control+Enter")
    alert = shown.page.locator(".lpt-problem")
    expect(alert).to_contain_text("Line 1, column 8")
    expect(alert).to_contain_text("perhaps name")
    assert box.evaluate("el => el.value.slice(el.selectionStart, el.selectionEnd)") == "nam"
    expect(grid).to_be_visible()
    shown.shot("query_wrong")
    keys.type("name")
    keys.press("Escape")
    keys.press("Control+Enter")
    expect(alert).to_be_empty()
