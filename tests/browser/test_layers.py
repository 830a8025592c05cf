import re

from tests.browser import drawn

SETUP = (
    "import llmprof\nfrom llmprof import explore\ntrace = llmprof.sample('torch_tp4_eager_nccl')"
)
LEFT, TOP, ROW = 38, 46 + 3 * 16, 15
"""Where the cells of 28 layers and three phases begin, and how tall they are (px)."""


def settled(shown, **shows):
    """Wait until the widget has drawn, and drawn this."""
    drawn.settled(shown, ".lp-layers", **shows)


def heat(shown):
    return shown.output().locator("canvas[aria-label^='Heat map']")


def cell(shown, column, layer, *, columns=12):
    """Middle of a cell."""
    across = min(heat(shown).bounding_box()["width"] - LEFT - 12, columns * 92)
    return {"x": LEFT + (column + 0.5) * across / columns, "y": TOP + (layer + 0.5) * ROW}


def test_gestures_end_in_frames(notebook):
    shown = notebook([SETUP, "w = explore.layers(trace)\nw"], width=1250, height=1500)
    settled(shown)

    # hover: a card; click: a cell, its window, and what is inside
    heat(shown).hover(position=cell(shown, 4, 5))
    shown.output().get_by_text(re.compile("^layer 5.*, step 4$")).wait_for()
    heat(shown).click(position=cell(shown, 4, 5))
    assert shown.wait("w.layer == 5 and [w.rank, w.step, w.layer]") == [0, 4, 5]
    assert shown.python("w.selected.select('rank', 'step', 'layer').unique().rows()") == [[0, 4, 5]]
    assert shown.python(
        "[w.selected['start_ns'].min(), (w.selected['start_ns'] + w.selected['dur_ns']).max()] == w.window"
    )
    shown.output().get_by_role("cell", name="vllm::all_reduce").first.wait_for()
    settled(shown, cell=[0, 4, 5, None])
    shown.shot("layers-light", shown.output())

    # a bar of the breakdown chooses its stage; again: the whole layer
    bars = shown.output().locator("canvas[aria-label^='Time of each stage']")
    bars.click(position={"x": 60, "y": 6 * 22 + 11})  # all_reduce is the seventh
    shown.wait("w.stage == 'all_reduce'")
    assert shown.python("w.selected['category'].unique().to_list()") == ["collective"]
    settled(shown, stage=None, cell=[0, 4, 5, "all_reduce"])
    bars.click(position={"x": 60, "y": 6 * 22 + 11})
    shown.wait("w.stage is None")

    # keys: to the next layer and step, Enter
    settled(shown, stage=None, cell=[0, 4, 5, None])
    heat(shown).hover(position=cell(shown, 4, 5))
    heat(shown).focus()
    for key in ("ArrowDown", "ArrowRight", "Enter"):
        heat(shown).press(key)
    assert shown.wait("w.step == 5 and [w.step, w.layer]") == [5, 6]
    settled(shown, cell=[0, 5, 6, None])

    # outliers one after the other
    shown.output().get_by_role("button", name="Next outlier").click()
    assert shown.wait("w.step != 5 and [w.step, w.layer]") == [7, 6]
    gaps = "llmprof.analyze.layer_gaps(trace, stage=None, measure='dur_ns').filter(rank=0, step=w.step, layer=w.layer)"
    assert shown.python(f"{gaps}['outlier'].to_list()") == [True]

    # selectors, and dragging over steps
    shown.output().get_by_label("Show").select_option("gap")
    shown.output().get_by_label("Rank").select_option("3")
    assert shown.wait("w.rank == 3 and w.measure") == "gap"
    settled(shown, measure="gap", rank=3)
    shown.shot("layers-gap", shown.output())
    shown.output().get_by_label("Phase").select_option("prefill")
    assert shown.wait("w.phase") == "prefill"
    shown.output().get_by_label("Phase").select_option("")
    settled(shown, phase=None)
    box = heat(shown).bounding_box()
    a, b = cell(shown, 2, 3), cell(shown, 4, 3)
    drawn.drag(
        shown.page, (box["x"] + a["x"], box["y"] + a["y"]), (box["x"] + b["x"], box["y"] + b["y"])
    )
    settled(shown, steps=[2, 4])
    there = cell(shown, 1, 0, columns=3)
    heat(shown).hover(position=there | {"y": there["y"] - 16})  # two phases are left
    shown.output().get_by_text(re.compile("^layer 0.*, step 3$")).wait_for()
    assert shown.faults(".lp-layers") == []
