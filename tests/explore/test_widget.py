"""The base of the explorers: requests and answers, windows, links and the picture to keep."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import anywidget
import numpy as np
import polars as pl
import pytest
import traitlets

from llmprof import explore
from llmprof.errors import AnalysisError, ArgumentError
from llmprof.explore.base.messages import Message, array, pack
from llmprof.explore.base.widget import Explorer, answers
from llmprof.trace import Trace


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

    @answers(Message("twice", asks={"number": int}, answers={"number": int}))
    def _on_twice(self, number):
        return {"number": 2 * number}, [b"ab"]

    @answers(Message("refuse"))
    def _on_refuse(self):
        raise AnalysisError("no steps were found", hint="record some")

    @answers(Message("break"))
    def _on_break(self):
        raise RuntimeError("a bug")

    @answers(Message("slow", answers={"slow": bool}, busy="counting kernels"))
    def _on_slow(self):
        self.gate.wait(10)
        return {"slow": True}, []

    def ask(self, what, **args):
        self._receive(self, {"kind": "ask", "what": what, "id": "v-1", "args": args}, [])


def test_a_request_is_answered_by_its_method():
    widget = Probe()
    widget.ask("twice", number=21)
    assert widget.sent == [({"kind": "answer", "what": "twice", "id": "v-1", "msg": {"number": 42}}, [b"ab"])]


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


def test_a_bug_is_answered_and_not_hidden():
    widget = Probe()
    with pytest.raises(RuntimeError, match="a bug"):
        widget.ask("break")
    assert "unexpected failure" in widget.sent[0][0]["msg"]["error"]


def test_a_slow_request_says_so_and_does_not_hold_up_others():
    widget = Probe()
    widget.ask("slow")
    assert widget.busy == "counting kernels"
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


@pytest.mark.parametrize("window", [[2, 1], [1], [0, float("inf")]], ids=["reversed", "one number", "infinite"])
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
    frame = pl.DataFrame({"ns": [1, None, 3], "name": ["b", "a", None], "late": [True, None, False]})
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
    monkeypatch.setattr("IPython.display.display", lambda data, **options: outputs.append((data, options)))
    for no_notebook in (None, object()):  # Python, and IPython in a terminal
        monkeypatch.setattr("IPython.core.getipython.get_ipython", lambda shell=no_notebook: shell)
        with pytest.raises(NotImplementedError):  # IPython then shows it in its own way
            Drawn()._ipython_display_()
    monkeypatch.setattr("IPython.core.getipython.get_ipython", lambda: SimpleNamespace(kernel=object()))
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
    explorers = [explore.timeline, explore.layers, explore.overlap, explore.all_reduce, explore.kernels]
    explorers += [explore.what_if, explore.ranks, lambda trace: explore.compare(trace, trace)]
    can = {name for name in dir(anywidget.AnyWidget) if name not in anywidget.AnyWidget.class_traits()}
    for make in explorers:
        widget = make(sample_trace("torch_tp1_eager"))
        assert can.isdisjoint(widget.class_trait_names())
        widget.close()
        assert widget.comm is None
