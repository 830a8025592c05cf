"""The explorers and a report in Firefox, driven by the protocol that it speaks itself (WebDriver
BiDi).
"""

import base64
import json
import shutil
import subprocess
from itertools import count

import pytest
from websockets.sync.client import connect

from llmprof.report import write
from tests.browser.drawn import wait_until
from tests.browser.host import artefacts
from tests.browser.test_voila import server  # noqa: F401

FIREFOX = next((path for name in ("firefox", "firefox-esr") if (path := shutil.which(name))), None)
pytestmark = pytest.mark.skipif(FIREFOX is None, reason="no Firefox on this machine: make firefox")
PLACE = "(r => [r.x + r.width / 2, r.y + r.height / 2])({}.getBoundingClientRect())"
LANES = "[...document.querySelectorAll('.lp canvas')].filter(c => c.clientHeight > 100)[0]"


class Firefox:
    """A page of Firefox: values of its scripts, gestures and what it said on its console."""

    def __init__(self, socket):
        self.socket, self.numbers, self.problems = socket, count(1), []
        self.call("session.new", capabilities={})
        self.call("session.subscribe", events=["log.entryAdded"])
        self.page = self.call("browsingContext.getTree")["contexts"][0]["context"]
        self.call(
            "browsingContext.setViewport",
            context=self.page,
            viewport={"width": 1300, "height": 1000},
        )

    def call(self, method, **params):
        number = next(self.numbers)
        self.socket.send(json.dumps({"id": number, "method": method, "params": params}))
        while (said := json.loads(self.socket.recv(timeout=300))).get("id") != number:
            if said.get("method") == "log.entryAdded" and said["params"]["level"] == "error":
                self.problems.append(said["params"]["text"])
        assert said["type"] == "success", said
        return said["result"]

    def go(self, address):
        self.call("browsingContext.navigate", context=self.page, url=address, wait="complete")

    def ask(self, expression):
        target = {"context": self.page}
        told = self.call(
            "script.evaluate",
            expression=f"JSON.stringify({expression})",
            target=target,
            awaitPromise=True,
        )
        return json.loads(told.get("result", {}).get("value") or "null")

    def act(self, *sources):
        actions = [{"type": kind, "id": kind, "actions": ticks} for kind, ticks in sources]
        self.call("input.performActions", context=self.page, actions=actions)

    def click(self, element):
        x, y = map(int, wait_until(lambda: self.ask(f"{element} && {PLACE.format(element)}")))
        press = [{"type": "pointerDown", "button": 0}, {"type": "pointerUp", "button": 0}]
        self.act(("pointer", [{"type": "pointerMove", "x": x, "y": y}, *press]))
        return x, y

    def shot(self, name):
        picture = self.call("browsingContext.captureScreenshot", context=self.page)["data"]
        (artefacts() / f"{name}.png").write_bytes(base64.b64decode(picture))


@pytest.fixture
def firefox(tmp_path):
    (tmp_path / "profile").mkdir()
    options = [
        "--headless",
        "--no-remote",
        "--profile",
        str(tmp_path / "profile"),
        "--remote-debugging-port",
        "0",
    ]
    with subprocess.Popen([FIREFOX, *options], stderr=subprocess.PIPE, text=True) as running:
        try:
            line = next(
                line
                for line in iter(running.stderr.readline, "")
                if "WebDriver BiDi listening" in line
            )
            with connect(f"{line.split()[-1]}/session", max_size=None) as socket:
                opened = Firefox(socket)
                yield opened
            assert opened.problems == []
        finally:
            running.kill()


def tab(name):
    return f"[...document.querySelectorAll('[role=tab]')].find(one => one.textContent.trim() === '{name}')"


def test_explorers_draw_zoom_and_select(firefox, server):  # noqa: F811
    firefox.go(server[1])
    firefox.click(tab("Timeline"))
    x, y = firefox.click(LANES)
    shown = "JSON.parse([...document.querySelectorAll('.lp')].pop().dataset.shown ?? null)"
    start, end = wait_until(lambda: firefox.ask(shown))
    wheel = {"type": "scroll", "x": x, "y": y, "deltaX": 0, "deltaY": -400}
    control = [
        {"type": "keyDown", "value": "\ue009"},
        {"type": "pause"},
        {"type": "keyUp", "value": "\ue009"},
    ]
    firefox.act(("key", control), ("wheel", [{"type": "pause"}, wheel, {"type": "pause"}]))
    wait_until(lambda: (now := firefox.ask(shown)) and 0 < now[1] - now[0] < 0.8 * (end - start))
    firefox.shot("firefox_timeline")
    firefox.click(tab("Kernels"))
    firefox.click("document.querySelector('tr[data-row]')")
    wait_until(lambda: "Launches over time" in firefox.ask("document.body.innerText"))
    firefox.shot("firefox_kernels")


def test_a_report_draws_its_charts(firefox, sample_trace, tmp_path):
    write(sample_trace("torch_tp1_cudagraph"), tmp_path / "report")
    firefox.go((tmp_path / "report" / "index.html").as_uri())
    drawn = (
        "[...document.querySelectorAll('figure')].map(one => !!one.querySelector('svg, canvas'))"
    )
    wait_until(lambda: len(figures := firefox.ask(drawn)) > 8 and all(figures))
    firefox.shot("firefox_report")
