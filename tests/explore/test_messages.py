"""Messages between Python and the browser's side: every request is asked, and what comes back is
what was declared.
"""

import re
from pathlib import Path

import pytest

from docs.declarations import ROOMS, declarations, written
from llmprof import explore, sample_metrics
from llmprof.errors import LlmprofError
from llmprof.explore.base.messages import FrameColumn, Message, MessageRecord
from tests.analyze.test_requests import made as served_run

SHOWN = {"by": [], "search": "", "sort": "-total_ns", "window": None, "in_window": False}
COMPARED = {"pair": [0, 1], "by": ["stage", "category"], "tolerance": 0.05}
SHAPED = {"view": SHOWN, "kernel": "", "of": {}}


@pytest.fixture(scope="module")
def widgets(sample_trace):
    """A widget of each room, ready to be asked."""
    trace, other = (
        sample_trace("torch_tp4_eager_nccl"),
        sample_trace("torch_tp4_eager_custom_allreduce"),
    )
    single = sample_trace("torch_tp1_eager")
    made = {
        "header": explore.open(trace).header,
        "timeline": explore.timeline(trace),
        "layers": explore.layers(trace),
        "overlap": explore.overlap(trace, other=other),
        "collectives": explore.collectives(trace),
        "kernels": explore.kernels(single, metrics=sample_metrics("ncu_tp1_eager")),
        "compare": explore.compare(trace, other),
        "requests": explore.requests(served_run()),
        "ranks": explore.ranks(trace, picked=[1, 2], ranks_per_node=2),
        "what_if": explore.what_if(trace),
    }
    made["timeline"]._on_find()
    for name in ("layers", "overlap", "collectives"):
        made[name]._on_choices()
    return made


REQUESTS = {
    "header": {
        "go": [{"by": -1}, {"by": 1}],
        "remove": [{"name": "rank"}, {"name": "no such"}],
        "clear": [{}],
    },
    "timeline": {
        "rows": [{}],
        "find": [{}],
        "follow": [{}],
        "view": [{"window": [0, 1e9], "width": 800, "rows": [0, 1, 2, 3, 4], "color_by": "stage"}],
        "overview": [{"width": 800.5, "color_by": "category"}],
        "span": [
            {"span": [0, 5e8], "rows": None},
            {"span": [0, 5e8], "rows": [0]},
            {"span": [1, 1], "rows": [4, 5]},
            {"span": [0, 5e8], "rows": [0, 4], "kind": "flows"},
        ],
        "names": [{"numbers": [0, 1, 999_999]}],
        "describe": [{"row": row, "id": 0} for row in range(5)],
        "hover": [{"row": 4, "id": 3}],
        "pick": [
            {"row": 4, "level": 0, "time": 3e8, "reach": 1e6},
            {"row": 4, "level": 9, "time": 0, "reach": 0},
        ],
        "neighbour": [{"row": 4, "level": 0, "id": 3, "by": 1}],
        "search": [
            {"text": "reduce", "after": 0, "index": None},
            {"text": "no such name", "after": 0},
        ],
        "list": [
            {"text": "reduce", "first": 0, "count": 60, "where": "everywhere", "sort": "start"},
            {
                "text": "reduce",
                "first": 3,
                "count": 9,
                "where": "found",
                "rank": 1,
                "window": [0, 1e9],
                "sort": "-dur",
            },
            {"text": "", "first": 0, "count": 60, "where": "host", "sort": "name"},
        ],
        "goto": [{"step": 2, "layer": 3, "rank": 1}, {}],
        "flame": [{"by": "stage"}, {"by": "module"}],
        "speedscope": [{"by": "stage"}],
        "tables": [{}],
        "query": [
            {"text": "select nam from kernels"},
            {"text": "select rank, start_ns, dur_ns from kernels"},
        ],
        "queried": [{"first": 0, "count": 3, "sort": "-dur_ns"}],
        "csv": [{"sort": ""}],
        "export": [{"window": [0, 5e8]}],
        "place": [{"row": 0, "sort": ""}],
        "track": [{}],
    },
    "layers": {
        "choices": [{}],
        "cells": [
            {"measure": measure, "rank": 0, "stage": None, "phase": None, "steps": steps}
            for measure, steps in (("time", None), ("gap", [2, 3]), ("host", [77, 78]))
        ],
        "pick": [{"rank": 0, "step": 1, "layer": 3}],
        "cell": [
            {"rank": 0, "step": 1, "layer": 3, "stage": "attention"},
            {"rank": 0, "step": 77, "layer": 1},
        ],
        "slack": [{}],
    },
    "overlap": {
        "choices": [{}],
        "bars": [{"rank": 0, "phase": None, "against": "other:1"}],
        "lanes": [
            {"rank": 0, "window": [0, 1e8], "against": "rank:1", "step": 2, "pixels": 300.5},
            {"rank": 99, "window": None, "against": "", "step": None, "pixels": 50},
        ],
        "steps": [{"rank": 0, "first": 1, "last": 2}],
    },
    "collectives": {
        "choices": [{}],
        "view": [
            {"kind": "all_reduce", "rank": None},
            {"kind": "all_reduce", "rank": 1, "window": [0, 1.0]},
        ],
        "call": [
            {"call": None, "kind": "all_reduce", "phase": None},
            {"call": 5, "kind": "all_reduce", "ranks": [1]},
        ],
        "spread": [
            {"measure": "late", "kind": "all_reduce", "call": None, "ranks": None},
            {
                "measure": "transfer",
                "kind": "all_reduce",
                "window": [0, 1.0],
                "call": 5,
                "ranks": [1, 2],
            },
        ],
        "pick": [{"call": 5}],
    },
    "kernels": {
        "table": [
            {"view": SHOWN, "count": 60, "kernel": None},
            {"view": {**SHOWN, "rank": 7}, "count": 60},
        ],
        "rows": [{"view": {**SHOWN, "by": ["phase"]}, "offset": 5, "count": 60}],
        "pick": [{"view": SHOWN, "row": 0}],
        "launch": [{"event": 5}],
        "kernel": [SHAPED],
        "shapes": [{"kernel": "", "rank": None}],
        "operator": [{"event": -1}, {"event": 3}],
        "slack": [{}],
        "metrics": [{"kernel": "no such kernel"}, {"kernel": "PROFILED"}],
        "values": [{"kernel_id": 0, "search": "dram"}],
        "explain": [{"metric": "long_scoreboard"}, {"metric": "no such thing"}],
        "command": [SHAPED | {"program": "python serve.py"}],
    },
    "ranks": {
        "choices": [{}],
        "cells": [
            {"measure": "step", "phase": None, "steps": None, "rank_range": None},
            {"measure": "wait", "phase": "decode", "steps": [1, 3], "rank_range": [0, 2]},
            {"measure": "idle", "phase": None, "steps": [99, 99], "rank_range": None},
        ],
        "pick": [
            {"measure": "exposed", "step": 1, "rank_range": [0, 1]},
            {"measure": "step", "step": 77, "rank_range": [9, 9]},
        ],
        "picked": [{}],
    },
    "compare": {
        "story": [
            {"pair": [0, 1], "phase": None, "rank": None},
            {"pair": [1, 0], "phase": "prefill", "rank": 2},
        ],
        "tracks": [
            {
                "pair": [0, 1],
                "phase": "decode",
                "rank": None,
                "place": None,
                "layer": None,
                "window": None,
            },
            {
                "pair": [0, 1],
                "phase": "decode",
                "rank": 3,
                "place": 2,
                "layer": 5,
                "window": [0, 1e6],
            },
            {"pair": [0, 1], "phase": None, "layer": 99},
        ],
        "table": [{"view": COMPARED, "count": 60}],
        "rows": [{"view": COMPARED, "offset": 1, "count": 5}],
        "pick": [{"view": COMPARED, "row": 0}],
        "details": [
            {
                "picked": {"phase": "decode", "stage": "norm"},
                "tolerance": 0.05,
                "pair": [0, 1],
                "rank": None,
            }
        ],
    },
    "what_if": {
        "choices": [{}],
        "predict": [
            {"changes": []},
            {"changes": ["no-host-delay", "scale:attention:0.5", "remove:no such work"]},
        ],
    },
    "requests": {
        "table": [{"sort": "-ttft_ns", "count": 60}],
        "rows": [{"sort": "reason", "offset": 1, "count": 5}],
        "pick": [{"sort": "-ttft_ns", "row": 0}, {"sort": "-ttft_ns", "row": 99}],
        "details": [{"request": 1}],
    },
}


OF_A_QUERY = ("queried", "csv", "place", "track")


def named(asked: dict, widget) -> dict:
    """The request with a kernel of the trace where it says none, and one that was profiled where
    it says so.
    """
    if asked.get("kernel") == "":
        return asked | {"kernel": widget.table["name"][0]}
    if asked.get("kernel") == "PROFILED":
        return asked | {"kernel": widget._matched().launches.drop_nulls("name")["name"][0]}
    return asked


@pytest.mark.parametrize(
    ("room", "kind"), [(room, kind) for room, kinds in REQUESTS.items() for kind in kinds]
)
def test_an_answer_is_what_was_declared(widgets, room, kind):
    widget = widgets[room]
    handlers = type(widget).handlers
    handler = handlers[kind]
    if kind in OF_A_QUERY:
        handlers["query"](widget, **REQUESTS[room]["query"][-1])
    for asked in REQUESTS[room][kind]:
        answer, buffers = handler(widget, **handler.message.arguments(named(asked, widget))) or (
            {},
            [],
        )
        handler.message.check(answer)
        assert bool(handler.message.buffers) or not buffers


@pytest.mark.parametrize("room", ROOMS)
def test_every_message_has_a_request_above(widgets, room):
    assert set(REQUESTS[room]) == set(type(widgets[room]).handlers)


@pytest.mark.parametrize("room", ROOMS)
def test_declarations_for_typescript_are_those_of_the_messages(room):
    assert written(room).read_text("utf-8") == declarations(room), "run make bundles"


@pytest.mark.parametrize("room", ROOMS)
def test_the_browsers_side_asks_for_nothing_else(room):
    folder = Path(written(room)).parent
    sources = "\n".join(path.read_text("utf-8") for path in folder.glob("*.mjs"))
    asked = set(
        re.findall(
            r'(?:ask\(\s*(?:this\.)?model,|\brequest\(|this\.get\(|timeline\.get\()\s*"(\w+)"',
            sources,
        )
    )
    assert asked <= set(REQUESTS[room])
    assert asked >= set(REQUESTS[room]) - {"hover"} or room == "timeline"


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
