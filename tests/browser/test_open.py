"""All explorers in tabs in a real JupyterLab: shown one after another, linked, and kept as a
picture.
"""

import pytest
from playwright.sync_api import expect

from tests.browser.drawn import painted

SETUP = """import llmprof
from llmprof import explore
trace = llmprof.sample("torch_tp4_eager_nccl")"""
TITLES = [
    "Findings",
    "Timeline",
    "Layers",
    "Overlap",
    "Collectives",
    "Ranks",
    "What if",
    "Kernels",
    "Compare",
]
SHOW = """w = explore.open(trace, other=llmprof.sample("torch_tp4_eager_custom_allreduce"), names=("nccl", "custom"))
w"""


@pytest.mark.parametrize("theme", [pytest.param("light", marks=pytest.mark.smoke), "dark"])
def test_every_tab_opens_once_and_they_are_linked(notebook, theme):
    opened = notebook([SETUP, SHOW], height=1300, theme=theme)
    tabs = opened.output().get_by_role("tablist")
    tabs.wait_for()
    expect(tabs.get_by_role("tab")).to_have_text(TITLES)
    button = opened.output().get_by_role("button", name="Show me").first
    button.wait_for()
    assert opened.python("list(w.explorers)") == ["timeline"]
    painted(opened.page)
    opened.shot(f"open_findings_{theme}", opened.output())
    assert opened.faults(".llmprof-findings") == []
    names = [
        "timeline",
        "layers",
        "overlap",
        "collectives",
        "ranks",
        "what_if",
        "kernels",
        "compare",
    ]
    for count, (title, name) in enumerate(zip(TITLES[1:], names, strict=True), 1):
        tabs.get_by_role("tab", name=title).click()
        opened.wait(f"{name!r} in w.explorers")
        assert opened.python("len(w.explorers)") == count
        shown = opened.output().locator(".lp:not(.lph):visible").first
        shown.locator("canvas:visible, tr[data-row]:visible").first.wait_for()
        painted(opened.page)
        opened.shot(f"open_{name}_{theme}", opened.output())

    # what is picked in one is shown in all
    opened.run("w['layers'].layer = 5; w['layers'].rank = 3")
    opened.wait("w['kernels'].layer == 5 and w['timeline'].rank == 3")
    tabs.get_by_role("tab", name="Kernels").click()
    kernels = opened.output().locator(".lp:not(.lph):visible").first
    layer = kernels.get_by_role("combobox", name="layer", exact=True)
    expect(layer).to_have_value("\0any")  # shown, and nothing is narrowed
    opened.output().get_by_role("button", name="Only this").click()
    expect(layer).to_have_value("5")
    kernels.locator("tr[data-row]").first.click()
    opened.wait("w.selected.height > 0 and set(w.selected['layer']) == {5}")


def test_chips_name_the_filters_and_alt_arrows_and_mouse_buttons_lead_back(notebook):
    opened = notebook([SETUP, "w = explore.open(trace)\nw"], height=1300)
    output = opened.output()
    tabs = output.get_by_role("tablist")
    tabs.get_by_role("tab", name="Kernels").click()
    output.locator("tr[data-row]").first.wait_for()
    chips = output.locator(".lph-chip")
    expect(chips).to_have_count(0)
    rows = opened.python("len(w['kernels'].table)")
    opened.page.wait_for_timeout(700)  # a view that was rested on
    output.get_by_role("combobox", name="stage", exact=True).select_option("attention")
    expect(chips).to_have_text(["stage attention×"])
    assert opened.python("len(w['kernels'].table)") < rows
    opened.page.wait_for_timeout(700)
    tabs.get_by_role("tab", name="Timeline").click()
    canvas = output.locator(".lp canvas:visible").first
    canvas.wait_for()
    output.locator(".lpt-main canvas").focus()
    opened.page.keyboard.press("Alt+ArrowLeft")
    expect(tabs.get_by_role("tab", name="Kernels")).to_have_attribute("aria-selected", "true")
    expect(chips).to_have_count(1)
    box = output.locator(".lp-gridbox:visible").bounding_box()
    opened.page.evaluate(
        """([x, y]) => document.elementFromPoint(x, y).dispatchEvent(
        new MouseEvent("mouseup", { button: 3, bubbles: true, cancelable: true }))""",
        [box["x"] + 40, box["y"] + 60],
    )
    expect(chips).to_have_count(0)
    opened.wait("w['kernels'].only == {}")
    output.get_by_role("button", name="Forward to the next view").click()
    opened.wait("w['kernels'].only == {'stage': 'attention'}")
    assert opened.faults(".lph") == []
    opened.run("w['layers'].layer, w['timeline'].rank = 5, 3")
    output.get_by_text("Picked: rank 3, layer 5").wait_for()
    expect(chips).to_have_count(1)
    output.get_by_role("button", name="Only this").click()
    expect(chips).to_have_count(3)
    tabs.get_by_role("tab", name="Timeline").click()
    expect(output.locator(".lph-idle")).to_have_count(3)  # it cannot be narrowed
    tabs.get_by_role("tab", name="Kernels").click()
    expect(output.locator(".lph-idle")).to_have_count(0)
    opened.page.set_viewport_size({"width": 390, "height": 1300})
    names = tabs.locator(".lm-TabBar-tabLabel")
    shown = names.evaluate_all("all => all.every((one) => one.scrollWidth <= one.clientWidth)")
    assert shown, "a tab's name is cut"
    opened.shot("open_chips_390", output)
    opened.page.set_viewport_size({"width": 1400, "height": 1300})
    opened.shot("open_chips_1400", output)
    output.get_by_role("button", name="Clear all").click()
    expect(chips).to_have_count(0)
    opened.wait("(w['layers'].layer, w['timeline'].rank, w['kernels'].only) == (None, None, {})")
