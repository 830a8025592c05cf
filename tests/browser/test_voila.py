"""``llmprof explore``: the same explorers in a browser tab without JupyterLab, ended with
Ctrl-C.
"""

import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest

from tests.browser.drawn import painted
from tests.browser.host import artefacts, faults

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def server():
    """The command, and the address that it says."""
    argv = [
        "-m",
        "llmprof",
        "explore",
        "sample:torch_tp1_eager",
        "--no-browser",
        "--json",
        "--no-progress",
    ]
    argv += ["--metrics", "sample:ncu_tp1_eager"]
    output = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, *argv], stdout=output, stderr=output, text=True, cwd=ROOT
    ) as running:
        lines = ""
        for line in running.stdout:
            lines += line
            if line.startswith("}"):
                break
        assert lines, running.stderr.read()
        yield running, json.loads(lines)["address"]
        if running.poll() is None:
            running.send_signal(signal.SIGINT)


def test_page_shows_the_explorers_and_ctrl_c_ends_everything(server, browser):
    running, address = server
    assert address.startswith("http://127.0.0.1:")
    children = psutil.Process(running.pid).children(recursive=True)
    page = browser.new_page(viewport={"width": 1300, "height": 1000})
    outside = set()
    page.on(
        "request",
        lambda r: r.url.startswith(("http://127.0.0.1", "data:", "blob:")) or outside.add(r.url),
    )
    page.goto(address)
    page.get_by_role("tab", name="Kernels").wait_for()
    page.get_by_role("button", name="Show me").first.wait_for()
    page.get_by_role("tab", name="Timeline").click()
    page.locator(".lp canvas").first.wait_for()
    page.get_by_role("tab", name="Kernels").click()
    page.locator("tr[data-row]").first.click()
    page.get_by_text("Launches over time").first.wait_for()
    painted(page)
    page.screenshot(path=artefacts() / "voila.png")
    assert faults(page, "body") == []
    assert outside == set()
    page.close()

    children += psutil.Process(running.pid).children(recursive=True)
    running.send_signal(signal.SIGINT)
    out, errors = running.communicate(timeout=180)
    assert running.returncode == 0, errors
    assert "Traceback" not in errors + out
    assert not [
        child
        for child in set(children)
        if child.is_running() and child.status() != psutil.STATUS_ZOMBIE
    ]


def test_nobody_without_the_token_gets_in(server):
    _, address = server
    bare = address.split("?")[0]
    with urllib.request.urlopen(bare, timeout=120) as answer:
        assert "/login" in answer.url
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(
            f"{bare}api/kernels/00000000-0000-0000-0000-000000000000/channels", timeout=120
        )
