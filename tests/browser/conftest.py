"""A real JupyterLab and a real browser: notebooks are opened as a user would, and their kernel is
asked what it knows.

``notebook(cells)`` opens a notebook in JupyterLab, runs its cells and gives a :class:`Notebook`:
``page`` for gestures, ``python(expression)`` for the value in the same kernel. Screenshots go to
``.artefacts/`` (``LLMPROF_ARTEFACTS``).
"""

import ast
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

import nbformat
import pytest
from jupyter_client import BlockingKernelClient
from playwright.sync_api import (
    Error,
    Page,
    expect,
    sync_playwright,
)

from tests.browser.host import PATIENCE_S, SLOW, Host, artefacts, faults

CHROMIUM = next(
    (p for name in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(name))),
    None,
)
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
]
START_S, CELL_S = 180, 300
SHUT_DOWN = (
    "() => globalThis.jupyterapp?.shell.currentWidget?.sessionContext?.shutdown().catch(() => null)"
)
QUIET = ("favicon", "ResizeObserver loop", "WebSocket", "Download the React DevTools")
"""What the page may say on its console: it is JupyterLab's or the browser's, not ours."""
KERNELS = "/api/kernels?"
"""The list of kernels, which JupyterLab asks for regularly. jupyter_server answers with 500 while a
kernel starts: it is in the list before it has the time of its last activity.
"""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Browser tests but those of the smoke are slow, and share one JupyterLab: one process runs
    them. xdist reads the mark after this.
    """
    for item in items:
        if Path(__file__).parent in item.path.parents:
            if not item.get_closest_marker("smoke"):
                item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.xdist_group("browser"))
            if CHROMIUM is None:
                item.add_marker(
                    pytest.mark.skip(reason="no chromium on this machine: make browser")
                )


@dataclass(frozen=True)
class Lab:
    """A running JupyterLab: its address, its notebooks and where its kernels leave their
    connection files.
    """

    url: str
    notebooks: Path
    runtime: Path

    def kernel(self, path):
        """Id of the kernel of a notebook, once it has one."""
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            with urllib.request.urlopen(f"{self.url}/api/sessions", timeout=10) as answer:
                for session in json.load(answer):
                    if session["path"] == path:
                        return session["kernel"]["id"]
            time.sleep(0.1)
        raise TimeoutError(f"{path} has no kernel after {START_S} s")


@pytest.fixture(scope="session")
def lab(tmp_path_factory):
    """JupyterLab on a free port, with folders of its own and no token."""
    home = tmp_path_factory.mktemp("lab")
    notebooks = home / "notebooks"
    settings = home / "settings/@jupyterlab/apputils-extension"
    for folder in (notebooks, settings):
        folder.mkdir(parents=True)
    (settings / "notification.jupyterlab-settings").write_text(
        '{"fetchNews": "false", "checkForUpdates": false}'
    )
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    names = {
        "JUPYTER_CONFIG_DIR": "config",
        "JUPYTER_RUNTIME_DIR": "runtime",
        "JUPYTER_DATA_DIR": "data",
        "IPYTHONDIR": "ipython",
        "JUPYTERLAB_SETTINGS_DIR": "settings",
        "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
    }
    environment = os.environ | {name: str(home / folder) for name, folder in names.items()}
    options = [
        "--no-browser",
        "--allow-root",
        f"--port={port}",
        "--port-retries=0",
        "--ip=127.0.0.1",
        "--expose-app-in-browser",
        "--IdentityProvider.token=",
        f"--ServerApp.root_dir={notebooks}",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    ]
    log = home / "lab.log"
    with log.open("wb") as out:
        server = subprocess.Popen(
            [sys.executable, "-m", "jupyter", "lab", *options],
            stdout=out,
            stderr=out,
            env=environment,
            cwd=notebooks,
        )
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_for(url, server, log)
            yield Lab(url, notebooks, home / "runtime")
        finally:
            server.terminate()
            try:
                server.wait(30)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def _wait_for(url, server, log):
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            break
        try:
            urllib.request.urlopen(f"{url}/api/status", timeout=5).close()
        except OSError:
            time.sleep(0.2)
        else:
            return
    raise RuntimeError(f"JupyterLab did not start:\n{log.read_text('utf-8', 'replace')[-4000:]}")


def patient(page):
    """A page that waits long enough for a busy machine."""
    page.set_default_timeout(PATIENCE_S * 1000)
    if SLOW > 1:
        page.context.new_cdp_session(page).send("Emulation.setCPUThrottlingRate", {"rate": SLOW})
    return page


@pytest.fixture(scope="session")
def browser():
    """Chromium without a network."""
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        expect.set_options(timeout=PATIENCE_S * 1000)
        new_page = chromium.new_page
        chromium.new_page = lambda **options: patient(new_page(**options))
        yield chromium
        chromium.close()


@pytest.fixture
def host(browser):
    """Show a widget in a page of its own, without JupyterLab."""
    opened = []

    def show(widget, **options):
        opened.append(Host(browser, widget, **options))
        return opened[-1]

    yield show
    for one in opened:
        one.page.close()
        assert one.problems == []


@dataclass
class Notebook:
    """An open notebook: its page and its kernel."""

    page: Page
    client: BlockingKernelClient
    problems: list[str] = field(default_factory=list)
    """Errors of the page and of its console."""

    asked: set[str] = field(default_factory=set)
    """Addresses outside this machine that the page asked for."""

    def run(self, code):
        """Run code in the notebook's kernel, after what is queued there."""
        reply = self.client.execute_interactive(code, timeout=CELL_S, output_hook=lambda _: None)
        if reply["content"]["status"] != "ok":
            raise RuntimeError(
                "\n".join(reply["content"].get("traceback", [str(reply["content"])]))
            )

    def python(self, expression):
        """Value of an expression in the notebook's kernel; it must fit in JSON."""
        asked = {"value": f"__import__('json').dumps({expression})"}
        reply = self.client.execute_interactive(
            "",
            user_expressions=asked,
            timeout=CELL_S,
            output_hook=lambda _: None,
            store_history=False,
        )
        value = reply["content"]["user_expressions"]["value"]
        if value["status"] != "ok":
            raise RuntimeError(f"{expression}: {value['ename']}: {value['evalue']}")
        return json.loads(ast.literal_eval(value["data"]["text/plain"]))

    def wait(self, expression, *, seconds=PATIENCE_S):
        """The expression's value once it is true; gestures reach the kernel a moment later."""
        deadline = time.monotonic() + seconds
        while not (value := self.python(expression)):
            if time.monotonic() > deadline:
                raise AssertionError(f"after {seconds} s, {expression} is still {value!r}")
            self.page.wait_for_timeout(50)
        return value

    def output(self, cell=-1):
        """What a code cell has shown."""
        cells = self.page.locator(".jp-Notebook .jp-CodeCell")
        return (cells.last if cell == -1 else cells.nth(cell)).locator(".jp-OutputArea-output").last

    def shot(self, name, target=None):
        """Screenshot of the page or of a part, kept for people to look at."""
        path = artefacts() / f"{name}.png"
        (target or self.page).screenshot(path=path)
        return path

    def faults(self, selector):
        """Moderate, serious and critical accessibility faults that axe finds in a part of the
        page.
        """
        return faults(self.page, selector)


class Desk:
    """JupyterLab in a page that stays open: notebooks are opened and closed in it, one after the
    other.

    Loading JupyterLab is most of what a notebook costs a browser.
    """

    def __init__(self, lab, browser):
        self.lab, self.browser = lab, browser
        self.page = None
        self.shown = None
        self._ended = []
        """Kernels that were ended: what the page still asks of them is no problem of the
        notebook after.
        """

    def show(self, path, shown):
        """Open a notebook; its problems are those of the page from now on."""
        self.shown = shown
        if self.page is None:
            self.page = self._new_page()
            self.page.goto(f"{self.lab.url}/doc/tree/{path}?reset", timeout=START_S * 1000)
            self.page.wait_for_function(
                "globalThis.jupyterapp?.shell.currentWidget", timeout=START_S * 1000
            )
        else:
            self.page.evaluate(
                "path => void jupyterapp.commands.execute('docmanager:open', { path })", path
            )
        shown.page = self.page

    def _new_page(self):
        page = patient(self.browser.new_page())
        page.on("pageerror", lambda error: self.shown.problems.append(str(error)))
        page.on("console", self._keep)
        page.on(
            "request",
            lambda request: (
                request.url.startswith(("http://127.0.0.1", "data:", "blob:"))
                or self.shown.asked.add(request.url)
            ),
        )
        return page

    def _keep(self, message):
        if not any(
            kernel in message.text + message.location.get("url", "") for kernel in self._ended
        ):
            _keep(self.shown.problems, message)

    def clear(self):
        """Close the notebook and end its kernel: one that nobody asks any more keeps its memory."""
        if kernel := self.page.evaluate(
            "jupyterapp.shell.currentWidget?.sessionContext?.session?.kernel?.id"
        ):
            self._ended.append(kernel)
        self.page.evaluate(SHUT_DOWN)
        self.page.evaluate("for (const one of [...jupyterapp.shell.widgets('main')]) one.dispose()")
        self.page.locator(".jp-Notebook").wait_for(state="detached")
        self.page.mouse.move(0, 0)

    def leave(self):
        """Close the page: the next notebook is opened in a new one."""
        if self.page is not None:
            with contextlib.suppress(Error):  # it may have crashed
                self.page.evaluate(SHUT_DOWN)
            self.page.close()
            self.page = None


@pytest.fixture(scope="session")
def desk(lab, browser):
    """JupyterLab in a page, for one notebook after the other."""
    desk = Desk(lab, browser)
    yield desk
    desk.leave()


FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    """Note in a test that it failed."""
    report = yield
    item.stash[FAILED] = item.stash.get(FAILED, False) or report.failed
    return report


@pytest.fixture
def notebook(lab, desk, request):
    """Open a notebook made of cells and run them all; one at a time."""
    opened = []

    def open_notebook(
        cells,
        *,
        width=1400,
        height=1000,
        theme="light",
        reduced_motion=True,
    ):
        assert not opened, "one notebook at a time"
        name = f"test-{time.time_ns()}.ipynb"
        kernel = {
            "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}
        }
        content = nbformat.v4.new_notebook(
            cells=[nbformat.v4.new_code_cell(cell) for cell in cells], metadata=kernel
        )
        nbformat.write(content, lab.notebooks / name)
        shown = Notebook(None, BlockingKernelClient())
        desk.show(name, shown)
        page = shown.page
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(reduced_motion="reduce" if reduced_motion else "no-preference")
        page.locator(".jp-Notebook .jp-CodeCell").first.wait_for(timeout=START_S * 1000)
        page.evaluate(
            "theme => jupyterapp.commands.execute('apputils:change-theme', {theme})",
            {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}[theme],
        )
        page.wait_for_function(
            "jupyterapp.shell.currentWidget?.sessionContext?.session?.kernel?.status === 'idle'",
            timeout=START_S * 1000,
        )
        kernel_id = lab.kernel(name)
        shown.client.load_connection_file(str(lab.runtime / f"kernel-{kernel_id}.json"))
        shown.client.hb_channel.time_to_dead = START_S  # a busy machine is no dead kernel
        shown.client.start_channels()
        opened.append(shown.client)
        shown.client.wait_for_ready(timeout=START_S)
        page.evaluate("jupyterapp.commands.execute('notebook:run-all-cells')")
        page.wait_for_function(
            """count => [...document.querySelectorAll('.jp-Notebook .jp-CodeCell .jp-InputArea-prompt')]
                .filter(prompt => /\\[\\d+\\]/.test(prompt.textContent)).length >= count""",
            arg=len(cells),
            timeout=CELL_S * 1000,
        )
        return shown

    yield open_notebook
    for client in opened:
        client.stop_channels()
    if request.node.stash.get(FAILED, False):
        desk.leave()  # nobody knows what it left there
    elif opened:
        problems, asked = [*desk.shown.problems], desk.shown.asked
        desk.clear()
        assert (problems, asked) == ([], set())


def _keep(problems, message):
    url = message.location.get("url", "")
    if KERNELS in url and "status of 500" in message.text:
        return
    if message.type == "error" and not any(
        words in message.text + str(message.location) for words in QUIET
    ):
        problems.append(f"{message.text} ({message.location.get('url', '')[-80:]})")
