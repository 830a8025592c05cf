"""The timeline explorer in a real browser:

JupyterLab, Chromium, and a trace of millions of events.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from _process import HERE, Measured
from _table import seconds, size, table

WHEELS, PAN_S = 80, 60
_CELLS = [
    "import sys, time; sys.path.insert(0, {here!r})\nfrom _repeat import repeated_trace\nfrom llmprof import explore\n"
    "trace = repeated_trace({sample!r}, {kernels})\nevents = sum(trace.rows.values())",
    "began = time.time()\nshown = explore.timeline(trace)\nshown",
    "print('FACTS', events, began)",
]
_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--enable-precise-memory-info",
    "--js-flags=--expose-gc",
]


def measure(sample: str, millions: Sequence[float]) -> dict[str, Measured]:
    """Times (s), bytes and the browser's memory by number of events in millions."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    found: dict[str, Measured] = {}
    with TemporaryDirectory() as folder, _lab(Path(folder)) as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=_FLAGS)
        for count in millions:
            page = browser.new_page(viewport={"width": 1500, "height": 1000})
            found[f"{count:g}"] = _of(page, url, Path(folder), sample, count)
            page.close()
        browser.close()
    return found


def report(results: dict[str, Measured]) -> str:
    """Table with a row for each number of events."""
    rows = [
        [
            f"{found['events'] / 1e6:.2f} M events",
            seconds(found["first_s"]),
            seconds(found["picture_least_s"]),
            seconds(found["picture_p50_s"]),
            seconds(found["picture_p95_s"]),
            seconds(found["draw_p95_s"]),
            f"{found['view_bytes'] / 1e3:,.0f} kB",
            f"{size(found['heap_before'])} / {size(found['heap_after'])}",
            f"{found['load']:.1f}",
        ]
        for found in results.values()
    ]
    head = [
        "explore.timeline",
        "first picture",
        "wheel to picture, least",
        "median",
        "95 %",
        "drawing, 95 %",
        "most of a view",
        f"heap before / after {PAN_S} s of panning",
        "load",
    ]
    return table(head, rows)


def _of(page: Any, url: str, folder: Path, sample: str, millions: float) -> Measured:
    kernels = round(millions * 1e6 * _share_of_kernels(sample))
    values = {"here": str(HERE), "sample": sample, "kernels": kernels}
    cells = [cell.format(**values) for cell in _CELLS]
    name = f"explore-{millions:g}.ipynb"
    empty = {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None}
    source = [{**empty, "source": cell, "id": f"c{n}"} for n, cell in enumerate(cells)]
    notebook = {
        "cells": source,
        "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    (folder / name).write_text(json.dumps(notebook))
    page.goto(f"{url}/doc/tree/{name}?reset")
    page.locator(".jp-CodeCell").first.wait_for(timeout=90_000)
    ready = "jupyterapp.shell.currentWidget?.sessionContext?.session?.kernel?.status === 'idle'"
    page.wait_for_function(ready, timeout=90_000)
    page.evaluate("void jupyterapp.commands.execute('notebook:run-all-cells')")
    facts = page.get_by_text("FACTS").last
    page.locator(".lpt-main canvas").wait_for(timeout=600_000)
    page.wait_for_function(
        "document.querySelector('.lpt').llmprofTimings.first > 0", timeout=120_000
    )
    events, began = facts.text_content(timeout=120_000).split()[1:3]
    timings = "document.querySelector('.lpt').llmprofTimings"
    first = page.evaluate(f"{timings}.first") / 1000 - float(began)
    page.wait_for_function("!document.querySelector('.lpt .lp-working')", timeout=600_000)
    page.wait_for_timeout(1000)
    canvas = page.locator(".lpt-main canvas")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 120)
    page.evaluate(f"{timings}.exact.length = 0; {timings}.draw.length = 0")
    page.keyboard.down("Control")  # without it the wheel scrolls
    for turn in range(WHEELS):
        page.mouse.wheel(0, -160 if turn % 20 < 12 else 160)
        page.wait_for_timeout(180)
    page.keyboard.up("Control")
    pictures, draws = page.evaluate(f"[{timings}.exact, {timings}.draw]")
    before, after = _pan(page)
    return {
        "events": int(events),
        "first_s": first,
        "load": os.getloadavg()[0],
        "pictures": len(pictures),
        "picture_least_s": min(pictures) / 1000,
        "picture_p50_s": statistics.median(pictures) / 1000,
        "picture_p95_s": _p95(pictures) / 1000,
        "draw_p95_s": _p95(draws) / 1000,
        "view_bytes": page.evaluate(f"{timings}.bytes"),
        "heap_before": before,
        "heap_after": after,
    }


def _pan(page: Any) -> tuple[float, float]:
    """Memory of the page's heap after a little panning and after a minute of it."""
    heaps = []
    canvas = page.locator(".lpt-main canvas")
    canvas.focus()
    for duration in (5, PAN_S):
        until, key = time.monotonic() + duration, 0
        while time.monotonic() < until:
            page.keyboard.press("d" if key // 40 % 2 else "a")
            key += 1
            page.wait_for_timeout(60)
        page.evaluate("gc()")
        page.wait_for_timeout(500)
        heaps.append(page.evaluate("performance.memory.usedJSHeapSize"))
    return heaps[0], heaps[1]


def _p95(values: Sequence[float]) -> float:
    return sorted(values)[min(len(values) - 1, int(0.95 * len(values)))]


def _share_of_kernels(sample: str) -> float:
    from _repeat import repeated_trace

    rows = repeated_trace(sample, 1).rows
    return rows["kernels"] / sum(rows.values())


@contextlib.contextmanager
def _lab(folder: Path) -> Iterator[str]:
    """JupyterLab on a free port with settings of its own."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    environment = os.environ | {
        "JUPYTER_CONFIG_DIR": str(folder / "config"),
        "JUPYTER_DATA_DIR": str(folder / "data"),
    }
    options = [
        "--no-browser",
        "--allow-root",
        f"--port={port}",
        "--ip=127.0.0.1",
        "--IdentityProvider.token=",
        "--expose-app-in-browser",
        f"--ServerApp.root_dir={folder}",
    ]
    command = [sys.executable, "-m", "jupyter", "lab", *options]
    server = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
    )
    try:
        for _ in range(300):
            try:
                urllib.request.urlopen(f"{url}/api/status", timeout=5).close()
                break
            except OSError:
                time.sleep(0.2)
        yield url
    finally:
        server.terminate()
        server.wait(30)
