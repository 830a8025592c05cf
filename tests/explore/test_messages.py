"""Messages between Python and the browser's side: every request is asked, and what comes back is
what was declared.
"""

import importlib
import re
from pathlib import Path

import pytest

from docs.declarations import ROOMS, declarations, written
from llmprof import explore
from llmprof.errors import LlmprofError
from llmprof.explore.base.messages import FrameColumn, Message, MessageRecord
from tests.explore.asking import ask


@pytest.fixture(scope="module")
def timeline(sample_trace):
    """A timeline that is ready to be asked."""
    made = explore.timeline(sample_trace("torch_tp4_eager_nccl"))
    ask(made, "find")
    return made


REQUESTS = {
    "hover": [{"row": 4, "id": 3}],
    "names": [{"numbers": [0, 1, 999_999]}],
    "describe": [{"row": row, "id": 0} for row in range(5)],
    "neighbour": [{"row": 4, "level": 0, "id": 3, "by": 1}],
    "span": [
        {"span": [1, 1], "rows": [4, 5]},
        {"span": [0, 5e8], "rows": [0, 4], "kind": "flows"},
    ],
    "speedscope": [{"by": "stage"}],
    "tables": [{}],
    "query": [
        {"text": "select nam from kernels"},
        {"text": "select rank, start_ns, dur_ns from kernels"},
    ],
    "queried": [{"first": 0, "count": 3, "sort": "-dur_ns"}],
    "csv": [{"sort": ""}],
    "export": [{"window": [0, 5e8]}],
    "flame": [{"by": "module"}],
    "follow": [{}],
    "place": [{"row": 0, "sort": ""}],
    "track": [{}],
}
"""Requests that no other test makes."""


@pytest.mark.parametrize("what", REQUESTS)
def test_an_answer_is_what_was_declared(timeline, what):
    if what in ("queried", "csv", "place", "track"):
        ask(timeline, "query", **REQUESTS["query"][-1])
    for asked in REQUESTS[what]:
        ask(timeline, what, **asked)


ALL_REDUCES = ("torch_tp4_eager_nccl", "torch_tp4_eager_custom_allreduce")


def test_explorers_of_recordings_answer_as_declared(sample_trace):
    trace, other = map(sample_trace, ALL_REDUCES)
    overlap, layers, what_if = (
        explore.overlap(trace, other=other),
        explore.layers(trace),
        explore.what_if(trace),
    )
    ask(overlap, "bars", rank=0, against="other:1")
    ask(overlap, "lanes", rank=0, window=[0, 1e8], against="rank:1", step=2, pixels=300.5)
    for measure, steps in (("time", None), ("gap", [2, 3]), ("host", [77, 78])):
        ask(layers, "cells", measure=measure, rank=0, steps=steps)
    ask(layers, "cell", rank=0, step=1, layer=3, stage="attention")
    ask(what_if, "choices")
    ask(what_if, "predict", ["no-host-delay", "scale:attention:0.5", "remove:no such work"])


def test_the_header_answers_as_declared(sample_trace):
    header = explore.open(sample_trace("torch_tp1_eager")).header
    for what, value in (("go", -1), ("go", 1), ("remove", "rank"), ("remove", "no such")):
        ask(header, what, value)
    ask(header, "clear")


@pytest.mark.parametrize("room", ROOMS)
def test_declarations_for_typescript_are_those_of_the_messages(room):
    assert written(room).read_text("utf-8") == declarations(room), "run make bundles"


@pytest.mark.parametrize("room", ROOMS)
def test_the_browsers_side_asks_for_what_is_answered(room):
    folder = Path(written(room)).parent
    sources = "\n".join(path.read_text("utf-8") for path in folder.glob("*.mjs"))
    asking = r'(?:ask\(\s*(?:this\.)?model,|\brequest\(|this\.get\(|timeline\.get\()\s*"(\w+)"'
    module = importlib.import_module(f"llmprof.explore.{room}.explorer")
    asked, answered = set(re.findall(asking, sources)), set(getattr(module, ROOMS[room]).handlers)
    assert asked <= answered
    assert answered - {"hover", "selection"} <= asked or room == "timeline"


def test_a_type_in_typescript():
    class Inner(MessageRecord):
        """Inside."""

        name: str
        times: list[float | None]
        side: FrameColumn | None = None

    fields = {
        "inner": Inner,
        "pair": tuple[int, str] | None,
        "many": tuple[bool, ...],
        "by": dict[str, list[int]],
    }
    message = Message("test", asks=fields)
    assert message.arguments(
        {"inner": {"name": "a", "times": [1, None]}, "many": [], "by": {"x": [1]}}
    ) == {
        "inner": {"name": "a", "times": [1.0, None], "side": None},
        "pair": None,
        "many": (),
        "by": {"x": [1]},
    }
    with pytest.raises(LlmprofError, match=r"unknown field `extra` - at `\$\.inner`"):
        message.arguments({"inner": {"name": "a", "times": [], "extra": 1}, "many": [], "by": {}})


@pytest.mark.parametrize(
    "answer", [{"n": float("nan")}, {"n": "1"}, {}, {"n": 1, "m": 2}, {"n": object()}]
)
def test_an_answer_that_does_not_fit_is_found(answer):
    with pytest.raises(LlmprofError, match="the answer to 'test' does not fit"):
        Message("test", answers={"n": float}).check(answer)
