"""Ten tasks of an engineer, in as many actions as benchmarks/ten_tasks.md says; and each by the
keyboard alone.
"""

import json
import re

import polars as pl
import pytest
from playwright.sync_api import expect

import llmprof
from llmprof import analyze
from llmprof.analyze import changes, layer_gaps
from llmprof.units import format_ns
from tests.browser.drawn import painted

NAMES = ["torch_tp4_eager_nccl", "torch_tp4_eager_custom_allreduce"]
CELLS = [
    f"import llmprof\nimport polars as pl\nfrom llmprof import explore\ntrace, other = map(llmprof.sample, {NAMES})",
    "w = explore.open(trace, other=other)\nw",
]
GAP = """with k as (
  select rank, start_ns, lag(start_ns + dur_ns) over (partition by rank order by start_ns) as last from kernels)
select rank, last as start_ns, start_ns - last as dur_ns from k where start_ns > last order by dur_ns desc limit 1"""
HEAT = "Heat map of layers over steps"
AT = "one => one === document.activeElement || (one.getRootNode().activeElement ?? null) === one"


class Hand:
    """Does what a user does, and counts it: a click, a drag, a text that is typed, a chord of
    keys.
    """

    def __init__(self, opened, *, pointer):
        self.opened, self.page, self.pointer, self.actions = opened, opened.page, pointer, 0

    def reach(self, target):
        """Move the focus to something by Tab or Shift + Tab; the arrows lead on inside of a bar
        or a list.
        """
        target.wait_for()
        behind = "one => Boolean(one.compareDocumentPosition(document.activeElement) & Node.DOCUMENT_POSITION_FOLLOWING)"
        inside = """one => one.closest('.lp-menubox') === document.activeElement.closest('.lp-menubox')
            && Boolean(one.closest('.lp-menubox, [role=toolbar], [role=tablist]')?.contains(document.activeElement))"""
        button = "document.activeElement.matches('button, summary, [role=tab]')"
        key = "Shift+Tab" if target.evaluate(behind) else "Tab"
        for _ in range(90):
            for _ in range(40 if target.evaluate(inside) and self.page.evaluate(button) else 0):
                if target.evaluate(AT):
                    return
                self.page.keyboard.press(
                    "ArrowDown"
                    if target.evaluate("one => one.closest('.lp-menubox')")
                    else "ArrowRight"
                )
            if target.evaluate(AT):
                return
            self.page.keyboard.press(key)
        at = self.page.evaluate("document.activeElement.outerHTML.slice(0, 200)")
        raise AssertionError(f"no key leads to {target}; the focus is on {at}")

    def press(self, target):
        """Press a button, a tab or a row."""
        self.actions += 1
        if self.pointer:
            target.click()
        else:
            self.reach(target)
            self.page.keyboard.press("Enter")

    def press_here(self):
        """Click where the pointer is."""
        self.actions += 1
        self.page.mouse.down()
        self.page.mouse.up()

    def key(self, keys):
        """Press a chord of keys."""
        self.actions += 1
        self.page.keyboard.press(keys)

    def write(self, text):
        """Type a text in place of what is in the field."""
        self.actions += 1
        self.page.keyboard.press("Control+a")
        self.page.keyboard.insert_text(text)


def tab(opened, name):
    return opened.output(1).get_by_role("tab", name=name, exact=True)


def visible(opened):
    """The explorer of the tab that is shown."""
    one = opened.output(1).locator(".lp:not(.lph):visible").first
    one.wait_for()
    return one


def late_rank(hand, trace):
    late = analyze.collectives(trace, by=["kind", "rank"]).sort("last_count", descending=True)[
        "rank"
    ][0]
    expect(hand.opened.output(1).locator(".llmprof-front .title").first).to_contain_text(
        f"rank {late}"
    )


def why_late(hand, trace):
    hand.press(hand.opened.output(1).get_by_role("button", name="Show me").first)
    hand.opened.wait("w.titles[w.selected_index] == 'Timeline' and w['timeline'].span is not None")
    grid = visible(hand.opened).get_by_role("grid", name="Names in the selection")
    grid.locator("tr[data-row]").nth(3).wait_for()
    assert hand.opened.python("w['timeline'].rank") == 3
    totals = grid.locator("tr[data-row] td:nth-child(3)").all_inner_texts()
    assert len(totals) > 3  # what the host did, the longest first


def slowest_kernel(hand, trace):
    hand.press(tab(hand.opened, "Kernels"))
    row = visible(hand.opened).locator("[aria-busy=false] tr[data-row]").first
    row.wait_for()
    if hand.pointer:
        hand.press(row)
    else:
        hand.reach(visible(hand.opened).get_by_role("grid").first)
        hand.page.keyboard.press("ArrowDown")
        hand.key("Enter")
    name = hand.opened.wait("w['kernels'].kernel")
    assert name == analyze.kernels(trace).sort("total_ns", descending=True)["name"][0]
    visible(hand.opened).get_by_role("table", name="Operators and shapes").locator(
        "td"
    ).first.wait_for()


def exposed_in_layer_12(hand, trace):
    hand.press(tab(hand.opened, "Layers"))
    shown = visible(hand.opened)
    heat = shown.get_by_label(HEAT)
    hand.page.wait_for_function("document.querySelector('.lp-layers')?.dataset.shown")
    painted(hand.page)
    if hand.pointer:
        said = heat.locator("xpath=..").locator(".lp-tip")
        for y in range(200, 400, 5):  # pointing: the card says where the pointer is
            heat.hover(position={"x": 38 + 92 * 3.5, "y": y})
            if "layer 12" in (said.text_content() or ""):
                break
        hand.press_here()
    else:
        hand.reach(heat)
        for key in ["ArrowRight"] * 3 + ["ArrowDown"] * 14:
            hand.page.keyboard.press(key)
            if (
                " 12" in (said := heat.locator("xpath=..").locator("[aria-live]").inner_text())
                and "layer 12" in said
            ):
                break
        hand.page.keyboard.press("Enter")
    hand.opened.wait("w['layers'].layer is not None")
    rank, step, layer = hand.opened.python(
        "[w['layers'].rank, w['layers'].step, w['layers'].layer]"
    )
    assert layer == 12
    cell = layer_gaps(trace).row(
        by_predicate=pl.col("rank").eq(rank) & pl.col("step").eq(step) & pl.col("layer").eq(12),
        named=True,
    )
    shown.get_by_text(format_ns(cell["exposed_communication_ns"])).first.wait_for()


def cause_of_a_difference(hand, trace):
    hand.press(tab(hand.opened, "Compare"))
    shown = visible(hand.opened)
    hand.page.wait_for_function("document.querySelector('[data-story]')")
    parts = "w['compare'].waterfall.filter(pl.col('group') != 'total').select('delta_ns', 'label').rows()"
    change, part = max(hand.opened.python(parts))
    shown.get_by_text(f"{part} {format_ns(change)}").first.wait_for()


def export_a_window(hand, trace):
    hand.press(tab(hand.opened, "Timeline"))
    shown = visible(hand.opened)
    canvas = shown.locator(".lpt-main canvas")
    canvas.wait_for()
    painted(hand.page)
    if hand.pointer:
        box = canvas.bounding_box()
        hand.actions += 1
        hand.page.mouse.move(box["x"] + 300, box["y"] + 30)
        hand.page.mouse.down()
        hand.page.mouse.move(box["x"] + 340, box["y"] + 34, steps=4)
        hand.page.mouse.up()
        low, high = hand.opened.wait("w['timeline'].span")
    else:
        hand.reach(canvas)
        for _ in range(8):
            hand.key("w")
        painted(hand.page)
        low, high = json.loads(shown.get_attribute("data-shown"))
    hand.press(shown.locator("summary", has_text="Save"))
    with hand.page.expect_download() as saved:
        hand.press(shown.get_by_role("button", name="Save the selected range"))
    part = llmprof.read(saved.value.path().rename(saved.value.path().with_suffix(".json.gz")))
    inside = trace.kernels.filter(pl.col("start_ns").is_between(int(low) - 1, int(high) + 1))
    assert abs(part.kernels.height - inside.height) <= 4
    assert part.kernels.height > 0


def save_and_restore_a_view(hand, trace):
    hand.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    hand.press(tab(hand.opened, "Timeline"))
    shown = visible(hand.opened)
    hand.press(shown.locator("summary", has_text="Save"))
    hand.press(shown.get_by_role("button", name="Copy the view as Python"))
    shown.locator("[aria-live]", has_text="Copied: ").wait_for(state="attached")
    editor = hand.page.locator(".jp-Notebook .jp-CodeCell .cm-content").nth(2)
    if hand.pointer:
        hand.press(editor)
    else:  # from the cell of the widget to the one below, and into it
        hand.page.evaluate("jupyterapp.shell.currentWidget.content.activate()")
        for key in ("Escape", "ArrowDown", "Enter"):
            hand.page.keyboard.press(key)
    hand.key("Control+v")
    hand.key("Control+Enter")
    restored = hand.page.locator(".jp-Notebook .jp-CodeCell").nth(2).locator(".lpt-main canvas")
    restored.wait_for()
    hand.opened.wait(
        "type(_).__name__ == 'Timeline' and _.view['trace'] == w['timeline'].view['trace']"
    )


def slowest_step(hand, trace):
    hand.press(tab(hand.opened, "Overlap"))
    shown = visible(hand.opened)
    hand.page.wait_for_function("document.querySelector('.lp-overlap')?.dataset.bars")
    hand.press(shown.get_by_role("button", name="Show the longest step"))
    rank = hand.opened.python(
        "w['overlap'].rank if w['overlap'].rank is not None else w['overlap'].default_rank"
    )
    steps = analyze.overlap(trace).filter(pl.col("rank") == rank, pl.col("step").is_not_null())
    longest = steps.sort("total_ns", descending=True).row(0, named=True)
    hand.opened.wait(f"w['overlap'].step == {longest['step']}")
    others = steps.filter(pl.col("step") != longest["step"])[
        "total_ns"
    ].median()  # no other step is of its phase
    shown.get_by_text(f"{format_ns(longest['total_ns'] - others)} more").wait_for()


def without_host_delay(hand, trace):
    hand.press(tab(hand.opened, "What if"))
    shown = visible(hand.opened)
    hand.press(shown.get_by_role("button", name="+ No waiting for the host"))
    hand.opened.wait("list(w['what_if'].changes) == ['no-host-delay']")
    row = analyze.what_if(trace, changes.no_host_delay()).row(
        by_predicate=pl.col("phase") == "decode", named=True
    )
    shown.get_by_text(re.compile(re.escape(format_ns(row["predicted_ns"])))).first.wait_for()


def longest_gap_in_sql(hand, trace):
    hand.press(tab(hand.opened, "Timeline"))
    shown = visible(hand.opened)
    hand.press(shown.get_by_role("button", name="Query the tables in SQL"))
    expect(shown.get_by_role("combobox", name="SQL query")).to_be_focused()
    hand.write(GAP)
    hand.key("Control+Enter")
    first = trace.sql(GAP).row(0, named=True)
    hand.opened.wait(
        f"w['timeline'].span == [{first['start_ns']}, {first['start_ns'] + first['dur_ns']}]"
    )


TASKS = {
    "find the late rank": late_rank,
    "why is it late": why_late,
    "which kernel takes most time, and its shapes": slowest_kernel,
    "exposed communication of layer 12 in a step": exposed_in_layer_12,
    "compare two runs and name the cause": cause_of_a_difference,
    "export a window": export_a_window,
    "save a view and restore it": save_and_restore_a_view,
    "which step is slowest, and why": slowest_step,
    "what would be gained without the delay of the host": without_host_delay,
    "the longest gap in SQL, and its place": longest_gap_in_sql,
}


def counts(root):
    """Actions of llmprof in the table of the docs."""
    rows = re.findall(
        r"^\| (.+?) \| (\d+) \|",
        (root / "benchmarks" / "ten_tasks.md").read_text("utf-8"),
        re.MULTILINE,
    )
    return {task: int(count) for task, count in rows}


@pytest.mark.parametrize("pointer", [True, False], ids=["pointer", "keyboard"])
def test_ten_tasks(notebook, root, sample_trace, pointer):
    said = counts(root)
    assert set(said) == set(TASKS)
    trace = sample_trace(NAMES[0])
    opened = notebook(CELLS, height=1300)
    opened.output(1).get_by_role("button", name="Show me").first.wait_for()
    opened.page.evaluate("jupyterapp.commands.execute('notebook:move-cursor-down')")
    opened.page.evaluate("jupyterapp.commands.execute('notebook:insert-cell-below')")
    for task, do in TASKS.items():
        opened.run("w.header.clear(); w['timeline'].span = None")
        opened.run("w.selected_index = 0")
        expect(tab(opened, "Findings")).to_have_attribute("aria-selected", "true")
        if not pointer:
            tab(opened, "Findings").focus()
        hand = Hand(opened, pointer=pointer)
        do(hand, trace)
        expect(opened.output(1).locator(".lph-chip")).to_have_count(0)  # nothing narrows unasked
        opened.shot(
            f"task-{task[:30].replace(' ', '_')}-{'pointer' if pointer else 'keyboard'}",
            opened.output(1),
        )
        if pointer:
            assert hand.actions == said[task], task
