"""The base of the explorers: requests and answers, windows, links and the picture to keep."""

import json
import os
import re
import shutil
import struct
import subprocess
import threading
import zlib
from pathlib import Path
from types import SimpleNamespace

import anywidget
import numpy as np
import polars as pl
import pytest
import traitlets

from llmprof import charts, explore
from llmprof.errors import AnalysisError, ArgumentError
from llmprof.explore.base.messages import array, pack
from llmprof.explore.base.widget import BUNDLES, Explorer, request_handler, smaller
from llmprof.trace import Trace
from tests.charts import frames
from tests.charts.specs import pixels


class Probe(Explorer):
    """A widget that answers a few requests and keeps what it sends."""

    _esm = "export default { render() {} }"

    def __init__(self, trace=None, **traits):
        self.sent = []
        self.gate = threading.Event()
        self.done = threading.Event()
        super().__init__(trace or Trace({}), **traits)

    def send(self, content, buffers=None):
        self.sent.append((content, buffers))
        self.done.set()

    @request_handler(number=int)
    def _on_twice(self, number: int):
        return {"number": 2 * number}, [b"ab"]

    @request_handler()
    def _on_refuse(self):
        raise AnalysisError("no steps were found", hint="record some")

    @request_handler()
    def _on_break(self):
        raise RuntimeError("a bug")

    @request_handler(busy="counting kernels", slow=bool)
    def _on_slow(self):
        self.gate.wait(10)
        return {"slow": True}, []

    def ask(self, what, **args):
        self._receive(self, {"kind": "ask", "what": what, "id": "v-1", "args": args}, [])


def test_a_request_is_answered_by_its_method():
    widget = Probe()
    widget.ask("twice", number=21)
    assert widget.sent == [
        ({"kind": "answer", "what": "twice", "id": "v-1", "msg": {"number": 42}}, [b"ab"])
    ]
    with pytest.raises(RuntimeError, match="a bug"):
        widget.ask("break")
    assert "unexpected failure" in widget.sent[1][0]["msg"]["error"]


@pytest.mark.parametrize(
    ("what", "args", "text"),
    [
        ("refuse", {}, "no steps were found; record some."),
        (
            "twice",
            {"size": 1},
            "'twice' does not fit its declaration: Object contains unknown field `size`",
        ),
        ("twice", {"number": "7"}, "Expected `int`, got `str` - at `$.number`"),
        ("twice", {}, "Object missing required field `number`"),
        ("nothing", {}, "does not answer 'nothing'"),
    ],
    ids=["explained", "unknown field", "wrong type", "missing field", "unknown"],
)
def test_errors_come_back_as_text(what, args, text):
    widget = Probe()
    widget.ask(what, **args)
    assert text in widget.sent[0][0]["msg"]["error"]


def test_a_slow_request_says_so_and_does_not_hold_up_others():
    widget = Probe()
    widget.ask("slow")
    assert widget.busy == "counting kernels"
    widget._progress("slow", "counting launches")
    assert widget.busy == "counting launches"
    widget.ask("twice", number=1)
    assert widget.sent[0][0]["msg"] == {"number": 2}
    widget.done.clear()
    widget.gate.set()
    assert widget.done.wait(10)
    assert widget.sent[1][0]["msg"] == {"slow": True}


def test_a_cancelled_request_is_not_answered():
    widget = Probe()
    widget.ask("slow")
    before = threading.enumerate()
    widget._receive(widget, {"kind": "cancel", "what": "slow"}, [])
    assert widget.busy == ""
    widget.gate.set()
    for thread in before:
        if thread.daemon and "_answer" in thread.name:
            thread.join(10)
    assert widget.sent == []


@pytest.mark.parametrize(
    "window", [[2, 1], [1], [0, float("inf")]], ids=["reversed", "one number", "infinite"]
)
def test_a_window_that_is_none_is_refused(window):
    with pytest.raises(ArgumentError, match="first <= last"):
        Probe(window=window)
    with pytest.raises(traitlets.TraitError, match="first <= last"):
        Probe().window = window


def test_linked_explorers_follow_each_other_until_unlinked():
    a, b, c = Probe(), Probe(window=[5, 9], rank=1), Probe(step=3)
    link = explore.link(a, b, c)
    assert (a.window, c.rank, a.step, b.step) == ([5.0, 9.0], 1, 3, 3)
    a.window = [6, 7]
    assert b.window == c.window == [6.0, 7.0]
    c.layer, b.stage = 4, "attention"
    assert (a.layer, a.stage) == (4, "attention")
    link.unlink()
    a.rank = 0
    assert b.rank == 1


def test_columns_are_packed_as_numbers_and_codes():
    frame = pl.DataFrame(
        {"ns": [1, None, 3], "name": ["b", "a", None], "late": [True, None, False]}
    )
    columns, buffers = pack(frame)
    assert columns == [
        {"name": "ns", "dtype": "f8"},
        {"name": "name", "dtype": "u4", "values": ["b", "a"]},
        {"name": "late", "dtype": "u1"},
    ]
    assert np.frombuffer(buffers[0], "<f8").tolist()[::2] == [1.0, 3.0]
    assert np.isnan(np.frombuffer(buffers[0], "<f8")[1])
    assert np.frombuffer(buffers[1], "<u4").tolist() == [0, 1, 0xFFFFFFFF]
    assert bytes(buffers[2]) == b"\x01\x00\x00"
    assert bytes(array(pl.Series([1, 256]), "u2")) == b"\x01\x00\x00\x01"


def test_the_picture_is_kept_with_the_widget():
    class Drawn(Probe):
        def picture(self):
            return b"PNG"

    class Empty(Probe):
        def picture(self):
            raise AnalysisError("nothing to draw")

    data, metadata = Drawn()._repr_mimebundle_()
    assert data["image/png"] == "UE5H"
    assert metadata["image/png"] == {"width": 1000}
    assert "application/vnd.jupyter.widget-view+json" in data
    assert "image/png" not in Empty()._repr_mimebundle_()[0]


def test_a_notebook_gets_the_picture_and_the_widget_as_two_outputs(monkeypatch):
    class Drawn(Probe):
        def picture(self):
            return b"PNG"

    outputs = []
    monkeypatch.setattr(
        "IPython.display.display", lambda data, **options: outputs.append((data, options))
    )
    for no_notebook in (None, object()):  # Python, and IPython in a terminal
        monkeypatch.setattr("IPython.core.getipython.get_ipython", lambda shell=no_notebook: shell)
        with pytest.raises(NotImplementedError):  # IPython then shows it in its own way
            Drawn()._ipython_display_()
    monkeypatch.setattr(
        "IPython.core.getipython.get_ipython", lambda: SimpleNamespace(kernel=object())
    )
    with pytest.raises(NotImplementedError):
        Probe()._ipython_display_()
    assert outputs == []
    Drawn()._ipython_display_()
    (picture, how), (style, _), (live, _) = outputs
    assert picture == {"image/png": "UE5H"}
    assert how == {"metadata": {"image/png": {"width": 1000}}, "raw": True}
    assert 'class="llmprof-kept"' in style["text/html"]
    assert set(live) == {"text/plain", "application/vnd.jupyter.widget-view+json"}


def test_no_trait_hides_what_a_widget_can_do(sample_trace):
    explorers = [
        explore.timeline,
        explore.layers,
        explore.overlap,
        explore.collectives,
        explore.kernels,
    ]
    explorers += [explore.what_if, explore.ranks, lambda trace: explore.compare(trace, trace)]
    can = {
        name for name in dir(anywidget.AnyWidget) if name not in anywidget.AnyWidget.class_traits()
    }
    for make in explorers:
        widget = make(sample_trace("torch_tp1_eager"))
        assert can.isdisjoint(widget.class_trait_names())
        widget.close()
        assert widget.comm is None


# --- images of widgets: smaller, and the same to the pixel


def plain_pixels(image: bytes) -> np.ndarray:
    """Pixels (height, width, 3) of a PNG of one chunk of data whose rows have no filter."""
    width, height, depth, colour = struct.unpack(">IIBB", image[16:26])
    (length,) = struct.unpack_from(">I", image, 33)
    assert (depth, colour, image[37:41]) == (8, 2, b"IDAT")
    rows = np.frombuffer(zlib.decompress(image[41 : 41 + length]), np.uint8).reshape(
        height, 1 + 3 * width
    )
    assert not rows[:, 0].any()
    return rows[:, 1:].reshape(height, width, 3)


@pytest.fixture(scope="module")
def chart() -> bytes:
    return charts.to_png_bytes(charts.kernels(frames.summed()), scale=1)


def test_what_is_no_such_png_stays(chart: bytes) -> None:
    for image in (b"", b"no image", chart[:8], chart[:40]):
        assert smaller(image) == image
    made = smaller(chart)
    assert len(made) < 0.6 * len(chart)
    assert np.array_equal(pixels(made), pixels(chart))
    assert smaller(made) == made


# --- the browser's side: bundles are those of the sources and load nothing; sources are linted,
# typed and tested


ROOT = Path(__file__).parents[2]
SCRIPTS = Path(__file__).parent / "js"
WIDGETS = sorted(path.stem for path in BUNDLES.glob("*.js"))
ROOMS = (
    "collectives",
    "compare",
    "header",
    "kernels",
    "layers",
    "overlap",
    "ranks",
    "requests",
    "timeline",
    "what_if",
)
INSTALLED = (ROOT / "node_modules/.bin/esbuild").exists()
needs_tools = pytest.mark.skipif(
    not INSTALLED and not (os.environ.get("CI") and shutil.which("npm")),
    reason="the tools of the browser's side are not installed: make web",
)


def _node() -> str:
    """Node from PATH, else the one that playwright's package carries."""
    if found := shutil.which("node"):
        return found
    import playwright

    return str(Path(playwright.__file__).parent / "driver/node")


def npm(script: str) -> None:
    """Run a script of package.json; the test fails with what it says."""
    done = subprocess.run(
        ["npm", "run", "--silent", script], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_widget_has_its_bundle():
    assert tuple(WIDGETS) == ROOMS
    assert {path.name for path in BUNDLES.iterdir()} == {
        f"{room}.{kind}" for room in ROOMS for kind in ("js", "css")
    }


@needs_tools
def test_bundles_are_those_of_the_sources():
    npm("check")


@needs_tools
@pytest.mark.parametrize("script", ["lint", "types"])
def test_sources_are_formatted_linted_and_typed(script):
    npm(script)


@pytest.mark.parametrize("name", WIDGETS)
def test_a_bundle_is_one_module_that_loads_nothing(name, tmp_path):
    source = (BUNDLES / f"{name}.js").read_text("utf-8")
    assert not re.search(r"(?:^|[;}\s])import[\s{(*]", source)
    assert not re.search(
        r"https?://|\binnerHTML\b|\bouterHTML\b|insertAdjacentHTML|document\.write|\beval\(", source
    )
    assert re.search(r"export\{[\w$]+ as default\}", source)
    assert len(source) < 100_000
    target = tmp_path / "widget.mjs"
    target.write_text(source, "utf-8")
    checked = subprocess.run([_node(), "--check", target], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
    style = (BUNDLES / f"{name}.css").read_text("utf-8")
    assert not re.search(r"@import|url\(", style)
    assert ".lp" in style


def test_the_lock_file_is_of_package_json_and_names_no_registry():
    package = json.loads((ROOT / "package.json").read_text())
    lock = json.loads((ROOT / "package-lock.json").read_text())
    assert lock["packages"][""]["devDependencies"] == package["devDependencies"]
    assert "://" not in re.sub(r'"url": "[^"]*"', "", (ROOT / "package-lock.json").read_text())
    every = [entry for name, entry in lock["packages"].items() if name]
    assert every
    assert all(
        "resolved" not in entry and entry["integrity"].startswith("sha512-") for entry in every
    )


def test_npm_test_runs_every_test_of_the_pure_functions():
    """The command of ``npm test``, as npm runs it: by the shell, which expands the pattern for
    every Node.
    """
    command = json.loads((ROOT / "package.json").read_text())["scripts"]["test"]
    path = os.pathsep.join([str(Path(_node()).parent), os.environ.get("PATH", "")])
    ran = subprocess.run(
        ["sh", "-c", command],
        cwd=ROOT,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    call = re.compile(r"^test\(", re.MULTILINE)
    written = sum(
        len(call.findall(script.read_text("utf-8"))) for script in SCRIPTS.glob("*.test.mjs")
    )
    assert re.findall(r"^\S tests (\d+)$", ran.stdout, re.MULTILINE) == [str(written)]
