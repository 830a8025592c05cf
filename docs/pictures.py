"""Pictures of the explorers for the pages:

``python docs/pictures.py [--to FOLDER] [NAME ...]``.

Each is a screenshot of the live widget in Chromium on a bundled sample, light, and dark where the
name ends in ``_dark``. Look at each before it is committed, with its colours reduced to 256 of
which the legends' are exact. ``card`` is what a notebook shows of a trace; the picture of the
requests is cut from what the tests keep of a real JupyterLab.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import llmprof  # noqa: E402
from llmprof import analyze, explore  # noqa: E402
from tests.browser.conftest import CHROMIUM, FLAGS  # noqa: E402
from tests.browser.host import Host  # noqa: E402

WIDTH = 962
SHOWN = {
    "explore_kernels": 1290,
    "explore_compare": 1500,
    "explore_all_reduce": 950,
    "explore_layers": 1100,
}
"""Height (px) after which a long one is cut off."""
TP4 = "torch_tp4_eager_nccl"


def timeline(host: Callable[..., Host]) -> Host:
    """An all-reduce of a decode layer is selected: rank 0 waits for rank 3."""
    trace = llmprof.sample(TP4)
    widget = explore.timeline(trace, notes=_notes("timeline"), height=520)
    shown = host(widget, height=1000)
    shown.wait(lambda: widget._data.found, seconds=120)
    widget.arrangement = {"open": [0]}
    widget.go(step=5, layer=5, rank=0)
    inside = trace.events.filter(rank=0, step=5, layer=5, stage="all_reduce")
    widget.select(int(inside["event"][0]))
    shown.page.get_by_role("button", name="Go to launch").wait_for()
    return shown


def flame(host: Callable[..., Host]) -> Host:
    """A range of decode steps is selected; below it its flame graph by stage."""
    widget = explore.timeline(
        llmprof.sample("torch_tp1_moe_eager"), notes=_notes("flame"), height=330
    )
    shown = host(widget, height=1200)
    shown.wait(lambda: widget._data.found, seconds=120)
    steps = analyze.steps(widget.trace).filter(phase="decode").drop_nulls("start_ns")
    first, last = steps.row(1, named=True), steps.row(3, named=True)
    widget.show((first["start_ns"], last["start_ns"] + last["dur_ns"]))
    shown.page.locator(".lpt-names tr[data-row]").first.wait_for()
    shown.page.locator(".lpt-main canvas").press("t")
    shown.page.wait_for_function("document.querySelector('.lpt-flame').dataset.of")
    return shown


def overlap(host: Callable[..., Host]) -> Host:
    """A decode step: nearly all of the exposed communication is waiting."""
    trace = llmprof.sample(TP4)
    widget = explore.overlap(trace)
    shown = host(widget, height=1100)
    widget._on_steps(rank=0, first=5, last=5)
    shown.wait(lambda: shown.page.get_by_text("exposed transfer").count() > 1)
    return shown


def layers(host: Callable[..., Host]) -> Host:
    """Time of each layer in each step; the next outlier is picked."""
    shown = _drawn(host(explore.layers(llmprof.sample(TP4)), height=1100))
    shown.page.get_by_role("button", name="Next outlier").click()
    shown.page.locator("canvas[aria-label^='Time of each stage']").wait_for()
    return _drawn(shown)


def all_reduce(host: Callable[..., Host]) -> Host:
    """Waiting and transfer of the all-reduces of each rank."""
    return _drawn(host(explore.collectives(llmprof.sample(TP4)), height=1200))


def kernels(host: Callable[..., Host]) -> Host:
    """A kernel with hardware metrics is picked: its launches, shapes and speed of light."""
    metrics = llmprof.sample_metrics("ncu_tp1_eager")
    shown = host(explore.kernels(llmprof.sample("torch_tp1_eager"), metrics=metrics), height=1400)
    rows = shown.page.locator("tr[data-row]")
    rows.first.wait_for()
    for number in range(rows.count()):
        rows.nth(number).click()
        shown.page.wait_for_timeout(1500)
        if shown.page.get_by_text("Speed of light").count():
            break
    return _drawn(shown)


def compare(host: Callable[..., Host]) -> Host:
    """The same model with two kinds of all-reduce: what a decode step gains and loses."""
    traces = [llmprof.sample(name) for name in ("torch_tp4_eager_custom_allreduce", TP4)]
    shown = host(explore.compare(*traces, names=("custom", "nccl")), height=1500)
    shown.page.locator("tr[data-row] td").first.wait_for()
    return _drawn(shown)


def what_if(host: Callable[..., Host]) -> Host:
    """Two changes, and the decode step that the replay predicts with them."""
    widget = explore.what_if(llmprof.sample(TP4))
    shown = host(widget, height=1300)
    shown.page.get_by_role("button", name="+ No rank late").click()
    shown.wait(lambda: len(widget.changes) == 1)
    shown.page.get_by_role("button", name="+ Faster or slower").click()
    shown.page.get_by_text("changes.scale(").wait_for()
    shown.quiet()
    return shown


def critical_path(host: Callable[..., Host]) -> Host:
    """The critical path above the rows of all ranks, in a decode step."""
    trace = llmprof.sample(TP4)
    widget = explore.timeline(trace, notes=_notes("path"), height=420)
    shown = host(widget, height=1000)
    shown.wait(lambda: widget._data.found, seconds=120)
    widget.go(step=5, layer=5, rank=0)
    shown.page.get_by_role("button", name="Critical path").click()
    shown.page.locator(".lpt-pinned .lpt-name", has_text="critical path").wait_for()
    return _drawn(shown)


def card(host: Callable[..., Host]) -> Host:
    """What a notebook shows of a trace."""
    shown = host(explore.layers(llmprof.sample(TP4)), height=600)
    html = llmprof.sample(TP4)._repr_html_()
    shown.page.evaluate(
        "html => { document.querySelector('#host').innerHTML = html; }",
        f"<div style='font-family: sans-serif'>{html}</div>",
    )
    return shown


PICTURES = {
    "card": card,
    "explore_timeline": timeline,
    "explore_path": critical_path,
    "explore_flame": flame,
    "explore_overlap": overlap,
    "explore_layers": layers,
    "explore_all_reduce": all_reduce,
    "explore_kernels": kernels,
    "explore_compare": compare,
    "explore_what_if": what_if,
}


def _drawn(shown: Host) -> Host:
    shown.page.locator("canvas").first.wait_for()
    shown.page.wait_for_function("!document.querySelector('.lp-working')")
    return shown


def _notes(name: str) -> Path:
    return Path(tempfile.mkdtemp(prefix="llmprof-")) / f"{name}.json"


def main(wanted: list[str], folder: Path) -> None:
    """Write the pictures of these names, the light ones of all explorers if none is given."""
    folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        for name in wanted or PICTURES:
            theme = "dark" if name.endswith("_dark") else "light"

            def host(widget: Any, theme: str = theme, **options: Any) -> Host:
                return Host(browser, widget, width=WIDTH, theme=theme, **options)

            shown = PICTURES[name.removesuffix("_dark")](host)
            shown.page.wait_for_timeout(600)
            if shown.problems:
                raise RuntimeError(f"{name}: {shown.problems}")
            box = shown.page.locator("#host").bounding_box()
            box["height"] = min(box["height"], SHOWN.get(name.removesuffix("_dark"), box["height"]))
            shown.page.screenshot(path=folder / f"{name}.png", clip=box, full_page=True)
            shown.page.close()
            shown.widget.close()
        browser.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(PICTURES))
    parser.add_argument("--to", type=Path, default=HERE, help="folder of the pictures")
    options = parser.parse_args()
    main(options.names, options.to)
