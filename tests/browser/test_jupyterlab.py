"""One notebook in JupyterLab with every explorer and a chart: light, dark, opened again with its kernel and without."""

from __future__ import annotations

from playwright.sync_api import expect

from llmprof.charts.base.dark import in_the_dark
from llmprof.charts.base.theme import COMPUTE, INK, PAPER
from tests.browser.host import PATIENCE_S, artefacts

SETUP = """import llmprof
from llmprof import analyze, bundled, charts, explore, launch
trace = llmprof.sample("torch_tp4_eager_nccl")
run = launch.open_run(bundled.notebook_data("h200") / "served_queue")
charts.follow_theme()"""
SHOWN = [
    "explore.timeline(trace)",
    "explore.layers(trace)",
    "explore.overlap(trace)",
    "explore.all_reduce(trace)",
    "explore.ranks(trace)",
    "explore.kernels(trace)",
    "explore.requests(run)",
    "explore.compare(trace, llmprof.sample('torch_tp4_eager_custom_allreduce'))",
    "explore.open(trace)",
]
CHART = "charts.overlap(analyze.overlap(trace, by=('rank', 'step', 'phase'), waits=True).drop_nulls('step'))"

SEEN = """() => [...document.querySelectorAll(".jp-CodeCell")].slice(1, -1).map((cell) => {
  // what a cell shows: its picture, its widget once the kernel has answered it, words
  const seen = [...cell.querySelectorAll(".jp-OutputArea-output")].filter((one) => one.offsetHeight > 4
    && getComputedStyle(one).visibility === "visible" && getComputedStyle(one).display !== "none"
    && one.closest(".jp-OutputArea-child").offsetHeight > 4);
  return seen.map((one) => one.querySelector(".lp-live, .llmprof-explorers") ? "widget"
    : one.querySelector("img")?.naturalWidth ? "picture" : "words").join();
})"""
ALL_SEEN = f"wanted => JSON.stringify(({SEEN})()) === wanted"

DARK = """() => [...document.querySelectorAll(".lp")].filter((one) => one.offsetParent).every((root) => {
  const light = (r, g, b) => (r + g + b) / 765;
  const own = light(...getComputedStyle(root).backgroundColor.match(/[0-9.]+/g).slice(0, 3).map(Number));
  const corner = (one) => one.getContext("2d").getImageData(1, 1, 1, 1).data;
  const shown = [...root.querySelectorAll("canvas.lp-plot")].filter((one) => one.offsetParent);
  return own < 0.3 && shown.every((one) => { const [r, g, b, a] = corner(one); return !a || light(r, g, b) < 0.3; });
})"""
GROUND = """wanted => { const svg = document.querySelector(".vega-embed svg.marks");
  return svg && getComputedStyle(svg).backgroundColor === wanted; }"""
COUNT = """([kind, wanted]) => [...document.querySelectorAll(`.vega-embed svg.marks ${kind}`)]
  .filter((one) => getComputedStyle(one).fill === wanted).length"""


def seen(page, kind: str) -> None:
    """Wait until each cell shows its widget, or its picture, and nothing else."""
    page.wait_for_function(ALL_SEEN, arg=str([kind] * len(SHOWN)).replace("'", '"').replace(" ", ""))


def opened_again(shown, address: str) -> None:
    shown.page.goto(f"{address}?reset")
    shown.page.locator(".jp-Notebook .jp-CodeCell").first.wait_for()


def test_every_explorer_and_a_chart_in_one_notebook(notebook):
    shown = notebook([SETUP, *SHOWN, CHART], height=9000)
    page = shown.page
    seen(page, "widget")
    page.locator(".llmprof-explorers").get_by_role("button", name="Show me").first.wait_for()
    page.wait_for_function("!document.querySelector('.lp-working')", timeout=PATIENCE_S * 1000)
    for theme, change in (("light", str), ("dark", in_the_dark)):
        page.evaluate(
            "theme => jupyterapp.commands.execute('apputils:change-theme', {theme})", f"JupyterLab {theme.title()}"
        )
        page.wait_for_function(GROUND, arg=rgb(change(PAPER)))
        assert page.evaluate(COUNT, ["text", rgb(change(INK))]) > 0
        assert page.evaluate(COUNT, ["*", rgb(change(COMPUTE))]) > 0
        page.wait_for_function(DARK if theme == "dark" else f"!({DARK})()")
        page.screenshot(path=artefacts() / f"notebook_{theme}.png")
        assert shown.faults(".lp") == []
        assert shown.faults(".llmprof-explorers") == []
    assert shown.problems == []
    assert shown.asked == set()

    # opened again while the kernel still runs, then without it: first with the state of the widgets in the file
    state = "jupyterapp.commands.execute('@jupyter-widgets/jupyterlab-manager:saveWidgetState')"
    save = "jupyterapp.commands.execute('docmanager:save')"
    address = page.url.split("?")[0]
    page.evaluate(save)
    opened_again(shown, address)
    seen(page, "widget")
    page.evaluate(state)
    for kept in ("with their state", "without it"):
        page.evaluate(save)
        page.evaluate("() => jupyterapp.shell.currentWidget.sessionContext.shutdown()")
        opened_again(shown, address)
        seen(page, "picture")
        expect(page.get_by_text("Error displaying widget").locator("visible=true")).to_have_count(0)
        page.wait_for_function(GROUND, arg=rgb(in_the_dark(PAPER)))
        page.screenshot(path=artefacts() / f"notebook_without_kernel_{kept.replace(' ', '_')}.png")
        page.evaluate(state)  # it is a switch: off for the second turn, and on again
    page.evaluate(state)


def rgb(colour: str) -> str:
    """A colour as browsers say it."""
    return f"rgb({', '.join(str(int(colour[i : i + 2], 16)) for i in (1, 3, 5))})"
