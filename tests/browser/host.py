"""A page that shows one widget without JupyterLab: anywidget's model in the browser, the widget in
this process.

For gestures and pictures: a page is there in a second. What JupyterLab adds (kernels, its shortcuts
and themes) is tested in JupyterLab.
"""

import base64
import json
import os
import queue
import random
import time
from pathlib import Path

from axe_playwright_python.sync_playwright import Axe

PATIENCE_S = 120
"""How long a test waits for what it looks for: a busy machine is slow, and a wait that succeeds
costs nothing.
"""

SLOW = float(os.environ.get("LLMPROF_SLOW", "1"))
"""How many times slower the page computes; answers of Python then come up to 0.1 s times this
later. For debugging.
"""

PAINTED = (
    "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))"
)
"""True once what was drawn before is on the screen."""

PAGE = """<!doctype html><html><head><meta charset="utf-8"><style>{css}</style></head>
<body data-jp-theme-light="{light}" style="margin:0;background:{ground}"><div id="host"></div></body></html>"""

MODEL = """async () => {
  const state = JSON.parse(await pythonState());
  const listeners = new Map();
  const of = (name) => listeners.get(name) ?? [];
  const fire = (name, ...rest) => of(name).forEach((listener) => listener(...rest));
  let changed = {};
  const model = {
    get: (name) => state[name],
    set: (name, value) => {
      if (JSON.stringify(state[name]) === JSON.stringify(value)) return;
      changed[name] = state[name] = value;
      fire(`change:${name}`);
    },
    save_changes: () => { pythonSet(JSON.stringify(changed)); changed = {}; },
    send: (content) => pythonSend(JSON.stringify(content)),
    on: (names, listener) => names.split(" ").forEach((name) => listeners.set(name, [...of(name), listener])),
    off: () => listeners.clear(),
  };
  window.model = model;
  const bytes = (text) => new DataView(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer);
  const poll = async () => {
    for (const one of JSON.parse(await pythonNews())) {
      if (one.state) {
        for (const [name, value] of Object.entries(one.state)) {
          if (JSON.stringify(state[name]) === JSON.stringify(value)) continue;
          state[name] = value;
          fire(`change:${name}`);
        }
      } else fire("msg:custom", one.content, one.buffers.map(bytes));
    }
    setTimeout(poll, 15);
  };
  const source = new Blob([await pythonSource()], { type: "text/javascript" });
  const widget = (await import(URL.createObjectURL(source))).default;
  widget.render({ model, el: document.getElementById("host") });
  poll();
}"""


class Host:
    """One widget in a page of its own, in a theme; answers to the kinds of requests in ``hold``
    are kept back.
    """

    def __init__(
        self,
        browser,
        widget,
        *,
        width=1200,
        height=900,
        theme="light",
        hold=(),
    ):
        self.widget = widget
        self._asked = {}
        """Requests of the page that have not been answered, and their kinds."""
        self._count = 0
        self._held = set(hold)
        self._kept = []
        self.problems = []
        self._news = queue.SimpleQueue()
        self._given = {}
        self._due = []
        self.page = browser.new_page(
            viewport={"width": width, "height": height}, reduced_motion="reduce"
        )
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on(
            "console",
            lambda message: message.type == "error" and self.problems.append(message.text),
        )
        synced = [
            name
            for name in widget.traits(sync=True)
            if not name.startswith("_") and name not in SKIPPED
        ]
        widget.observe(self._changed, synced)
        object.__setattr__(widget, "send", self._send)
        state = json.dumps({name: getattr(widget, name) for name in synced})
        self.page.expose_function("pythonState", lambda: state)
        self.page.expose_function("pythonSource", lambda: str(widget._esm))
        self.page.expose_function("pythonSet", self._set)
        self.page.expose_function("pythonSend", self._receive)
        self.page.expose_function("pythonNews", self._poll)
        light, ground = ("true", "#ffffff") if theme == "light" else ("false", "#111111")
        self.page.set_content(
            PAGE.format(css=str(getattr(widget, "_css", "")), light=light, ground=ground)
        )
        self.page.evaluate(MODEL)

    def _changed(self, change):
        name, value = change["name"], change["new"]
        if (
            self._given.get(name, self) == value
        ):  # the page knows: an echo would undo what it has set meanwhile
            return
        self._tell({"state": {change["name"]: change["new"]}})

    def _send(self, content, buffers=()):
        texts = [base64.b64encode(bytes(buffer)).decode("ascii") for buffer in buffers or ()]
        if content.get("what") in self._held:
            self._kept.append((content, texts))
        else:
            self._tell({"content": content, "buffers": texts})

    def hold(self, *whats):
        """Keep back the answers to these kinds of requests, as a busy kernel does."""
        self._held |= set(whats)

    def held(self, what):
        """Number of answers to requests of this kind that are kept back."""
        return sum(content["what"] == what for content, _ in self._kept)

    def let_go(self):
        """Send the answers that were kept back, and keep back no more."""
        kept, self._kept, self._held = self._kept, [], set()
        for content, texts in kept:
            self._tell({"content": content, "buffers": texts})

    def _tell(self, news):
        late = random.uniform(0, 0.1 * SLOW) if SLOW > 1 else 0
        self._news.put((time.monotonic() + late, news))

    def _set(self, text):
        for name, value in json.loads(text).items():
            self._given = {name: value}
            setattr(self.widget, name, value)
        self._given = {}

    def _receive(self, text):
        content = json.loads(text)
        if content.get("kind") == "ask":
            self._count += 1
            self._asked[content["id"]] = content["what"]
        elif content.get("kind") == "cancel":
            self._asked = {
                key: what for key, what in self._asked.items() if what != content["what"]
            }
        self.widget._handle_custom_msg(content, [])

    def _poll(self):
        while not self._news.empty():
            self._due.append(self._news.get())
        news = []
        while self._due and self._due[0][0] <= time.monotonic():
            news.append(self._due.pop(0)[1])
            self._asked.pop(news[-1].get("content", {}).get("id"), None)
        return json.dumps(news)

    def quiet(self):
        """Wait until every request is answered, and what the answers brought is painted."""

        def calm():
            count = self._count
            if self._asked or self._due or not self._news.empty():
                return False
            self.page.evaluate(PAINTED)
            return count == self._count and not self._asked and not self._due and self._news.empty()

        self.wait(calm)

    def wait(self, true, *, seconds=PATIENCE_S):
        """What ``true()`` gives, once it is true."""
        deadline = time.monotonic() + seconds
        while not (value := true()):
            if time.monotonic() > deadline:
                raise AssertionError(f"after {seconds} s it is still {value!r}")
            self.page.wait_for_timeout(30)
        return value

    def faults(self):
        """Moderate, serious and critical faults of accessibility that axe finds in the widget."""
        return faults(self.page, "#host")

    def shot(self, path):
        """Screenshot of the widget: into a file, or under a name where people look at them."""
        where = artefacts() / f"{path}.png" if isinstance(path, str) else path
        where.parent.mkdir(parents=True, exist_ok=True)
        self.page.locator("#host").screenshot(path=where)
        return where


def until(page, expression, arg=None):
    """Wait until an expression is true in a page whose security policy forbids `eval`, as that of a
    report does.

    Playwright's own ``wait_for_function`` evaluates the expression inside the page from the second
    time on, so on such a page it fails unless the expression is true at once.
    """
    deadline = time.monotonic() + PATIENCE_S
    while not page.evaluate(expression, arg):
        if time.monotonic() > deadline:
            raise AssertionError(f"after {PATIENCE_S} s it is still not true: {expression}")
        page.wait_for_timeout(30)


def artefacts():
    """Folder of the pictures that tests keep for people to look at."""
    folder = Path(
        os.environ.get("LLMPROF_ARTEFACTS", Path(__file__).resolve().parents[2] / ".artefacts")
    )
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def faults(page, selector, impacts=("moderate", "serious", "critical")):
    """Faults of accessibility that axe finds in a part of a page."""
    found = Axe().run(page, context={"include": [[selector]]}).response["violations"]
    return [
        f"{fault['id']}: {fault['help']}: {fault['nodes'][0]['html'][:200]}"
        for fault in found
        if fault["impact"] in impacts
    ]


SKIPPED = {"comm", "keys", "layout", "tabbable", "tooltip", "tooltips"}


def row_of(shown, kind):
    """Number of the first row of a kind."""
    return next(number for number, row in enumerate(shown.widget._data.rows) if row.kind == kind)
