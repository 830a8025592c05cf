"""The timeline's Python side: rows, views, selection, search, places and the picture, on traces
made by hand.
"""

import json
import math

import numpy as np
import polars as pl
import pytest
import traitlets
from hypothesis import given
from hypothesis import strategies as st

import llmprof
from llmprof import analyze, charts, explore
from llmprof.errors import AnalysisError, ArgumentError, LlmprofError, NotCapturedError
from llmprof.explore.timeline import data, rows
from llmprof.explore.timeline.rows import VISIBLE, Lane, levels
from llmprof.trace import Trace, schema
from tests.analyze.builders import (
    ATTENTION,
    GEMM,
    NCCL_ALL_REDUCE,
    NORM,
    forward,
    kernels,
    labels,
    launches,
    ops,
)
from tests.analyze.test_replay import US, host_bound, two_ranks
from tests.analyze.test_requests import MS
from tests.analyze.test_requests import made as served_run
from tests.explore.asking import ask

DTYPES = {
    "start": "<f4",
    "dur": "<f4",
    "code": "u1",
    "name": "<u4",
    "id": "<u4",
    "busy": "u1",
    "main": "u1",
    "samples": "<f4",
    "waits": "u1",
    "held": "u1",
}


def decode(layers=2, *, steps=2, rank=0):
    """Kernels of some steps, ``10`` long and ``10`` apart, and the labels of the steps."""
    run, marks, at = [], [], 100
    for step in range(steps):
        names = forward(layers)
        run.append(kernels(names, start=at, pause=10, rank=rank, first=1 + 1000 * step))
        marks.append((f"execute_new_0_cached_{4 + step}", at - 50, 20 * len(names)))
        at += 20 * len(names) + 400
    return pl.concat(run), labels(marks, rank=rank).with_columns(thread=pl.lit(1, dtype=pl.Int64))


def whole_trace(**more):
    run, marks = decode()
    host = ops(
        [("aten::linear", 90, 25, 1, "[[4, 8]]"), ("aten::mm", 92, 6, 2), ("aten::add", 120, 5, 3)]
    )
    return Trace({"kernels": run, "runtime": launches(run), "markers": marks, "ops": host, **more})


def described(widget):
    """What the browser is told of the rows."""
    return ask(widget, "rows")[0]


def view_of(widget, window, *, width=1000, rows=None, by="category"):
    rows = range(len(described(widget)["rows"])) if rows is None else rows
    message, buffers = ask(widget, "view", window=window, width=width, rows=list(rows), color_by=by)
    columns = {
        name: np.frombuffer(raw, dtype)
        for (name, dtype), raw in zip(DTYPES.items(), buffers, strict=True)
    }
    return message, columns


def row_of(widget, kind, rank=0):
    rows = described(widget)["rows"]
    return next(n for n, row in enumerate(rows) if (row["kind"], row["rank"]) == (kind, rank))


def test_rows_of_a_rank_are_found_in_two_goes():
    widget = explore.timeline(whole_trace())
    told = described(widget)
    assert [row["kind"] for row in told["rows"]] == [
        "steps",
        "layers",
        "collectives",
        "idle",
        "stream",
        "markers",
        "ops",
        "runtime",
    ]
    assert not told["found"]
    assert [row["count"] for row in told["rows"]] == [0, 0, 0, 0, 54, 2, 3, 54]
    ask(widget, "find")
    told = described(widget)
    assert told["found"]
    counts = {row["kind"]: row["count"] for row in told["rows"]}
    assert counts["steps"] == analyze.steps(widget.trace).height == 2
    assert counts["layers"] == 4 + analyze.layers(widget.trace, stages=True).height
    assert counts["idle"] == analyze.idle(widget.trace).height
    notes = {row["kind"]: row["note"] for row in told["rows"]}
    assert notes["collectives"] == "no communication was recorded"
    assert notes["steps"] == ""


def test_a_near_view_has_the_events_themselves():
    widget = explore.timeline(whole_trace())
    stream = row_of(widget, "stream")
    message, found = view_of(widget, [100, 160], rows=[stream])
    assert message["window"] == [85, 175]
    assert message["lanes"] == [[stream, 0, 0, 4, -1]]
    assert found["start"].tolist() == [15, 35, 55, 75]
    assert found["dur"].tolist() == [10] * 4
    assert found["id"].tolist() == [0, 1, 2, 3]
    names = [widget._data.names.full[n] for n in found["name"]]
    assert names == forward(2)[:4]
    keys = described(widget)["keys"]
    assert [keys[code]["name"] for code in found["code"]][2:] == ["norm", "gemm"]


def test_a_far_view_has_bins_and_the_events_that_are_wide():
    run = pl.concat(
        [kernels([(GEMM, 5)] * 1000, pause=5), kernels([(NORM, 20_000)], start=10_000, first=5000)]
    )
    widget = explore.timeline(Trace({"kernels": run}))
    stream = row_of(widget, "stream")
    message, found = view_of(widget, [0, 40_000], width=100, rows=[stream])
    assert message["columns"] == 150
    assert message["lanes"] == [[stream, 0, 0, 1, 0]]
    assert found["dur"].tolist() == [20_000]
    first = round((0 - message["window"][0]) / 400)
    assert found["busy"][first : first + 25].tolist() == [128] * 25
    assert found["busy"][first + 25 : first + 75].tolist() == [255] * 50
    assert found["busy"][first + 80 :].max() == 0


def test_counters_are_lines_between_their_least_and_greatest_value():
    samples = pl.DataFrame(
        {
            "rank": [0] * 4,
            "device": [0] * 4,
            "time_ns": [0, 10, 12, 30],
            "name": ["gpu.power"] * 4,
            "value": [1.0, 5.0, 2.0, 4.0],
            "unit": ["W"] * 4,
        }
    )
    widget = explore.timeline(Trace({"counters": schema.conform(samples, "counters")}))
    told = described(widget)
    assert [(row["label"], row["unit"], row["range"]) for row in told["rows"]] == [
        ("gpu.power", "W", [0.0, 5.0])
    ]
    message, found = view_of(widget, [0, 40], width=4)
    assert message["window"] == [-10, 50]
    assert message["lanes"] == [[0, 0, 0, 0, 0]]
    assert widget.picture().startswith(b"\x89PNG")
    least, most = found["samples"].reshape(2, 6).tolist()
    assert math.isnan(least[0])
    assert least[1:] == [1, 1, 2, 2, 4]
    assert most[1:] == [1, 5, 2, 4, 4]


def test_a_selected_kernel_is_its_row_of_the_attribution():
    widget = explore.timeline(whole_trace())
    assert widget.selected.height == 0
    widget.select(8)
    assert widget.selected.equals(widget.trace.events[8])
    assert widget.selected["name"].item() == NORM
    assert (widget.rank, widget.step, widget.layer, widget.stage) == (0, None, None, None)
    ask(widget, "find")
    widget.select(6)
    assert widget.selected["name"].item() == ATTENTION
    assert (widget.rank, widget.step, widget.layer, widget.stage) == (0, 0, 0, "attention")
    with pytest.raises(AnalysisError, match=r"there is no event 500; expected 0 to 53"):
        widget.select(500)
    with pytest.raises(traitlets.TraitError, match="the row and id of a span"):
        widget.selection = {"row": 4, "id": 500}
    with pytest.raises(LlmprofError, match="got a dict as trace; expected Trace"):
        explore.timeline({})


def test_a_range_of_time_selects_the_events_that_touch_it():
    widget = explore.timeline(whole_trace())
    widget.span = [105, 141]
    assert widget.selected["event"].to_list() == [0, 1, 2]
    # inside the range: 105 to 110 of the first kernel, all of the second, 140 to 141 of the third
    answer, _ = ask(widget, "span", span=[105, 141], rows=None)
    assert answer["title"] == "stream 7"
    assert answer["facts"] == [
        ["length", "36 ns"],
        ["spans", "3"],
        ["summed time", "16 ns"],
        ["mean", "10 ns"],
        ["median", "10 ns"],
        ["p99", "10 ns"],
        ["longest", "10 ns"],
    ]
    rows = [
        [row[name] for name in ("name", "count", "total_ns", "share")] for row in answer["rows"]
    ]
    assert rows == [
        ["indexSelectSmallIndex", 1, 10, 10 / 16],
        ["_prepare_inputs_kernel", 1, 5, 5 / 16],
        ["fused_add_rms_norm_kernel", 1, 1, 1 / 16],
    ]
    assert {(row["mean_ns"], row["p50_ns"], row["p99_ns"]) for row in answer["rows"]} == {
        (10.0, 10.0, 10.0)
    }
    ask(widget, "find")
    keys = described(widget)["keys"]
    for by in ("stage", "category"):
        rows = ask(widget, "span", span=[105, 141], rows=None, color_by=by)[0]["rows"]
        # what has no stage is coloured by its category
        assert {keys[row["code"]]["kind"] for row in rows} <= {by, "category"}


def test_a_window_is_saved_as_a_trace(tmp_path):
    widget = explore.timeline(whole_trace())
    answer, (content,) = ask(widget, "export", window=[104.5, 141])
    (tmp_path / answer["file"]).write_bytes(content)
    again = llmprof.read(tmp_path / answer["file"])
    starts = widget.trace.kernels["start_ns"]
    assert again.kernels.height == starts.is_between(104, 140).sum() > 0
    with pytest.raises(AnalysisError, match="nothing starts"):
        ask(widget, "export", window=[1e15, 2e15])


def test_an_area_has_a_part_for_each_kind_of_row():
    counted = pl.DataFrame(
        {
            "rank": [0] * 3,
            "device": [0] * 3,
            "time_ns": [0, 110, 130],
            "name": ["power"] * 3,
            "value": [10.0, 20.0, 60.0],
            "unit": ["W"] * 3,
        }
    )
    widget = explore.timeline(whole_trace(counters=counted))
    ask(widget, "find")
    rows = [row_of(widget, kind) for kind in ("ops", "counter", "stream", "runtime")]
    widget.span, widget.span_rows = [105, 141], rows
    answer, _ = ask(widget, "span", span=[105, 141], rows=rows)
    count = {part["kind"]: part["count"] for part in answer["kinds"]}
    calls = widget.trace.table("runtime").filter(
        pl.col("start_ns") < 141, pl.col("start_ns") + pl.col("dur_ns") > 105
    )
    assert list(count) == ["stream", "ops", "counter", "runtime", "flows"]
    assert (count["stream"], count["ops"], count["counter"]) == (3, 2, 3)
    assert (count["runtime"], count["flows"]) == (calls.height, 3)
    assert answer["kind"] == "stream"  # as for .selected, unless another kind is chosen
    # 10 W until 110, 20 W until 130, then 60 W: (5 x 10 + 20 x 20 + 11 x 60) / 36
    answer, _ = ask(widget, "span", span=[105, 141], rows=rows, kind="counter")
    assert answer["counters"] == [
        {
            "name": "power",
            "unit": "W",
            "count": 3,
            "least": 10.0,
            "mean": pytest.approx(1110 / 36),
            "most": 60.0,
            "first": 10.0,
            "last": 60.0,
        }
    ]
    widget.span_kind = "counter"
    assert widget.selected["value"].to_list() == [10.0, 20.0, 60.0]
    answer, _ = ask(widget, "span", span=[105, 141], rows=rows, kind="flows")
    events = widget.trace.events.head(3)
    delays = (events["start_ns"] - events["launch_start_ns"]).to_list()
    assert sorted(row["mean_ns"] for row in answer["flows"]) == sorted(
        float(delay) for delay in delays
    )
    widget.span_kind = "flows"
    assert widget.selected["event"].to_list() == [0, 1, 2]
    widget.span_kind = "ops"
    assert widget.selected["name"].to_list() == ["aten::linear", "aten::add"]
    answer, _ = ask(widget, "span", span=[1, 2], rows=rows[2:])  # a selection of nothing
    assert (answer["total"], answer["kinds"], answer["rows"]) == (0, [], [])


def test_a_range_of_time_can_be_of_some_rows_only():
    widget = explore.timeline(whole_trace())
    ask(widget, "find")
    operators = row_of(widget, "ops")
    widget.span, widget.span_rows = [105, 141], [operators]
    # aten::linear is from 90 to 115, aten::mm ends before, aten::add is from 120 to 125
    assert widget.selected["name"].to_list() == ["aten::linear", "aten::add"]
    answer, _ = ask(widget, "span", span=[105, 141], rows=[operators], kind="ops")
    assert [(row["name"], row["total_ns"]) for row in answer["rows"]] == [
        ("aten::linear", 10),
        ("aten::add", 5),
    ]
    # of a mixed choice with a stream, as a closed rank's strip is one, the stream is meant
    widget.span_rows = [row_of(widget, "steps"), row_of(widget, "stream"), row_of(widget, "idle")]
    assert widget.selected["event"].to_list() == [0, 1, 2]
    widget.span_rows = [row_of(widget, "steps")]
    assert widget.selected["step"].to_list() == analyze.steps(widget.trace)["step"].to_list()[:1]
    widget.span = [0, 1]
    assert widget.selected.height == 0
    answer, _ = ask(widget, "span", span=[0, 1], rows=None)
    assert (answer["rows"], answer["total"]) == ([], 0)


def test_very_many_host_spans_of_several_ranks_come_after_the_first_picture(
    sample_trace, monkeypatch
):
    trace = sample_trace("torch_tp4_eager_nccl")
    at_once = explore.timeline(trace)
    monkeypatch.setattr(data, "LATER", 1)
    widget = explore.timeline(trace)
    assert widget.picture() == at_once.picture()
    before, after = (described(one) for one in (widget, at_once))
    assert not before["found"]
    assert [row["count"] for row in before["rows"]] == [row["count"] for row in after["rows"]]
    operators = row_of(at_once, "ops")
    message, _ = ask(
        widget, "view", window=before["whole"], width=1000, rows=[operators], color_by="stage"
    )
    assert message["lanes"] == []
    for one in (widget, at_once):
        ask(one, "find")
    mine, other = (
        view_of(one, before["whole"], rows=[operators, row_of(at_once, "runtime", 2)])
        for one in (widget, at_once)
    )
    assert mine[0] == other[0]
    assert all(np.array_equal(mine[1][name], other[1][name]) for name in ("start", "busy"))
    early = explore.timeline(trace)  # whoever needs them before has them at once
    early.selection = {"row": operators, "id": 0}
    assert early.selected["name"].to_list() == trace.ops["name"].head(1).to_list()


def test_every_kind_of_row_can_be_described(sample_trace):
    widget = explore.timeline(sample_trace("torch_tp4_eager_nccl"))
    ask(widget, "find")
    for number, row in enumerate(widget._data.rows):
        lane = row.lanes[-1]
        message, _ = ask(widget, "describe", row=number, id=int(lane.id[0]))
        assert message["hit"]["start"] >= 0
        assert message["facts"][0][0] == "duration"
        widget.selection = {"row": number, "id": int(lane.id[0])}
        assert widget.selected.height == 1


def test_search_and_picking():
    widget = explore.timeline(whole_trace())
    row = row_of(widget, "stream")
    picked = lambda time, reach: ask(widget, "pick", row=row, level=0, time=time, reach=reach)[0][  # noqa: E731
        "hit"
    ]
    assert picked(105, 1)["id"] == 0
    assert picked(113, 1) is None
    assert picked(113, 5)["id"] == 0
    assert ask(widget, "pick", row=row, level=7, time=105, reach=1)[0]["hit"] is None
    stream, operators = row_of(widget, "stream"), row_of(widget, "ops")
    found, _ = ask(widget, "search", text="ATTN", after=0)
    assert found["count"] == 4
    assert (found["index"], found["hit"]["row"], found["hit"]["start"]) == (0, stream, 220)
    later, _ = ask(widget, "search", text="attn", after=500)
    assert later["index"] == 2
    last, _ = ask(widget, "search", text="attn", after=0, index=-1)
    assert last["index"] == 3
    again, _ = ask(widget, "search", text="attn", after=0, index=4)
    assert again["hit"] == found["hit"]
    operator, _ = ask(widget, "search", text="aten::m", after=0)
    assert (operator["count"], operator["hit"]["row"]) == (1, operators)
    assert ask(widget, "search", text="a.*n", after=0)[0]["count"] == 0
    assert ask(widget, "search", text=" ", after=0)[0] == {
        "count": 0,
        "index": -1,
        "hit": None,
        "names": [],
    }


def test_going_to_a_step_and_to_a_layer():
    widget = explore.timeline(whole_trace())
    widget.go(step=1)
    steps = analyze.steps(widget.trace).filter(step=1)
    assert widget.window == [steps["start_ns"].item(), (steps["start_ns"] + steps["dur_ns"]).item()]
    layer = analyze.layers(widget.trace).filter(step=1, layer=1)
    window = [layer["start_ns"].item(), (layer["start_ns"] + layer["dur_ns"]).item()]
    assert ask(widget, "goto", step=1, layer=1)[0] == {"window": window}
    with pytest.raises(AnalysisError, match=r"there is no step 7; expected a step from 0 to 1"):
        widget.go(step=7)
    with pytest.raises(
        AnalysisError, match=r"there is no step 1, layer 9; expected a layer from 0 to 1"
    ):
        widget.go(step=1, layer=9)


@pytest.mark.parametrize(
    ("tables", "kinds"),
    [
        ({}, []),
        ({"kernels": kernels([]), "runtime": schema.empty("runtime")}, []),
        ({"runtime": launches(kernels([GEMM]))}, ["runtime"]),
        ({"markers": labels([("train", 0, 10)])}, ["markers"]),
        (
            {"ops": ops([("aten::mm", 0, 10, 1)])},
            ["steps", "layers", "collectives", "idle", "stream", "ops"],
        ),
        (
            {"kernels": kernels([("mystery", 5)])},
            ["steps", "layers", "collectives", "idle", "stream"],
        ),
    ],
    ids=[
        "nothing",
        "nothing happened",
        "host calls only",
        "markers only",
        "no device",
        "nothing recognised",
    ],
)
def test_traces_that_lack_something_are_drawn_as_far_as_they_go(tables, kinds):
    widget = explore.timeline(Trace(tables))
    told = described(widget)
    assert [row["kind"] for row in told["rows"]] == kinds
    ask(widget, "find")
    told = described(widget)
    assert told["whole"][1] > told["whole"][0]
    view_of(widget, told["whole"])
    ask(widget, "overview", width=100, color_by="stage")
    ask(widget, "span", span=told["whole"], rows=None)
    assert widget.selected.height == 0
    assert (widget.picture() is None) == (not kinds)


def test_streams_of_a_device_without_a_number_are_streams_and_its_idle_time_is_drawn():
    run = kernels([GEMM, NORM], pause=30).with_columns(device=pl.lit(None, dtype=pl.Int32))
    on_host = Trace({"ops": ops([("aten::mm", 0, 10, 1), ("aten::add", 40, 10, 2)])})
    for trace, label, gaps in ((Trace({"kernels": run}), "stream 7", 1), (on_host, "thread 1", 0)):
        widget = explore.timeline(trace)
        ask(widget, "find")
        told = described(widget)
        shown = {row["kind"]: (row["label"], row["count"]) for row in told["rows"]}
        assert shown["stream"] == (label, 2)
        assert shown["idle"][1] == gaps


def test_markup_in_names_stays_text_in_the_picture():
    hostile = '<script>alert("1")</script>&\x00\x1b\n'
    widget = explore.timeline(Trace({"kernels": kernels([(hostile, 1000)])}))
    assert widget.picture().startswith(b"\x89PNG")
    run = pl.concat([kernels([GEMM]), kernels([GEMM], rank=2)])
    widget = explore.timeline(
        Trace({"kernels": run}, {"missing_ranks": [1], "world_size": 3, "device": "H200"})
    )
    groups = described(widget)["groups"]
    assert [(group["label"], group["detail"]) for group in groups] == [
        ("rank 0", "H200"),
        ("rank 1", "not in this trace"),
        ("rank 2", "H200"),
    ]


def test_metrics_are_facts_of_the_kernels_that_they_fit(sample_trace):
    metrics = llmprof.sample_metrics("ncu_tp1_eager")
    trace = sample_trace("torch_tp1_eager")
    widget = explore.timeline(trace, metrics=metrics)
    ask(widget, "find")
    event = int(analyze.ncu.join(trace, metrics).drop_nulls("event")["event"][0])
    facts = dict(ask(widget, "describe", row=row_of(widget, "stream"), id=event)[0]["facts"])
    assert facts["ncu: compute"].endswith("% of peak")
    assert facts["ncu: match"].startswith("confidence")


def test_requests_stand_on_top_a_row_each():
    run = served_run()
    widget = explore.timeline(run.trace, run=run)
    told = described(widget)
    group = told["groups"][0]
    assert (group["rank"], group["label"], group["detail"]) == (-2, "requests", "3")
    rows = [row for row in told["rows"] if row["kind"] == "requests"]
    assert [(row["label"], row["count"]) for row in rows] == [
        ("request 0", 5),
        ("request 1", 6),
        ("request 2", 3),
    ]
    # at first the window is that of the requests, not of the monitors that ran since the engine was
    # started
    assert widget.window == [5.0 * MS, 130.0 * MS]
    facts = dict(ask(widget, "describe", row=1, id=6)[0]["facts"])
    assert (facts["part"], facts["its tokens"], facts["step"], facts["duration"]) == (
        "prefill",
        "300",
        "1",
        "30.0 ms",
    )
    widget.selection = {"row": 1, "id": 6}
    assert widget.selected.select("request", "part", "step").row(0) == (1, "prefill", 1)
    assert (widget.step, widget.rank) == (1, None)
    widget.selection = {"row": 1, "id": 5}
    assert widget.selected["part"].to_list() == ["waiting"]
    widget.selection, widget.span, widget.span_rows = None, [61 * MS, 80 * MS], [0, 1]
    assert widget.selected.select("request", "part").rows() == [
        (0, "decode"),
        (0, "decode"),
        (1, "decode"),
        (1, "decode"),
    ]
    assert widget.picture().startswith(b"\x89PNG")
    assert described(explore.timeline(run.trace))["rows"][0]["kind"] != "requests"
    run = served_run(apart_ms=3.0)
    with pytest.raises(AnalysisError, match="clocks of requests and trace disagree"):
        explore.timeline(run.trace, run=run)


# --- modules and Python functions in the timeline: rows of their own, what is said of them, and
# stacks of a selection


FORWARD, NORMED = "model/layers.py(12): forward", "model/norm.py(3): <lambda>"


def nested(depth):
    """Functions that call each other, each 1 ns within the one around it."""
    return [(f"deep.py({level}): f", 300 + level, 200 - 2 * level) for level in range(depth)]


def run_of(*, depth=0, python=True):
    """A GEMM at 100 and a norm at 150, launched 5 ns before by thread 1, inside functions."""
    run = kernels([(GEMM, 30), (NORM, 10)], start=100, pause=20)
    calls = [
        (FORWARD, 80, 100),
        ("nn.Module: Layer_0", 85, 90),
        ("nn.Module: Norm_0", 140, 20),
        (NORMED, 142, 16),
    ]
    functions = ops([*calls, *nested(depth)]).with_columns(kind=pl.lit("python"))
    host = ops([("aten::mm", 90, 10, 1, "[[4, 8]]")])
    return Trace(
        {
            "kernels": run,
            "runtime": launches(run),
            "ops": pl.concat([functions, host]) if python else host,
        }
    )


@pytest.fixture
def shown(tmp_path):
    made = explore.timeline(run_of(), notes=tmp_path / "notes.json")
    ask(made, "find")
    return made


def test_modules_and_functions_have_rows_facts_and_stacks(shown):
    counts = [(row["kind"], row["count"]) for row in described(shown)["rows"]]
    assert counts[-4:] == [("modules", 2), ("python", 2), ("ops", 1), ("runtime", 2)]
    shown.selection = {"row": row_of(shown, "python"), "id": 4}
    assert shown.selected["name"].to_list() == [NORMED]
    message, _ = ask(shown, "describe", row_of(shown, "python"), 0)
    facts = dict(message["facts"])
    assert (facts["file"], facts["line"], facts["function"]) == ("model/layers.py", "12", "forward")
    assert len(message["flows"]) == 2
    message, _ = ask(shown, "describe", row_of(shown, "stream"), 1)
    facts = dict(message["facts"])
    assert (facts["module"], facts["Python"]) == ("Norm_0", NORMED)
    ((launch, kernel),) = message["flows"]
    assert launch == {"row": row_of(shown, "runtime"), "level": 0, "time": 145}
    assert kernel == {"row": row_of(shown, "stream"), "level": 0, "time": 150}
    shown.selection = None
    by_module = shown.stacks("module")
    assert by_module["stack"].to_list() == [
        ["nn.Module: Layer_0", GEMM],
        ["nn.Module: Layer_0", "nn.Module: Norm_0", NORM],
    ]
    assert by_module["value"].to_list() == [30, 10]
    shown.span = (145, 160)
    assert shown.stacks("python")["stack"].to_list() == [[FORWARD, NORMED, NORM]]
    frame = shown.stacks()
    assert frame["stack"].list.last().to_list() == [NORM]
    assert frame.columns == ["rank", "thread", "stack", "value", "unit", "count"]
    shown.span = None
    assert shown.stacks("python")["value"].sum() == shown.trace.events["dur_ns"].sum() == 40
    assert charts.flame(shown.stacks("python")).to_dict()


def test_stacks_that_were_not_recorded_are_said(tmp_path):
    widget = explore.timeline(run_of(python=False), notes=tmp_path / "n.json")
    assert "python" not in [row["kind"] for row in described(widget)["rows"]]
    with pytest.raises(NotCapturedError, match="with_stack=True"):
        widget.stacks("python")
    widget.selection = {"row": row_of(widget, "ops"), "id": 0}
    with pytest.raises(NotCapturedError, match="not of kernels"):
        widget.stacks()


def test_a_flame_graph_of_operators_has_their_own_time():
    widget = explore.timeline(whole_trace())
    ask(widget, "find")
    # aten::linear is from 90 to 115 and calls aten::mm from 92 to 98; aten::add is from 120 to 125
    operators = row_of(widget, "ops")
    widget.span, widget.span_rows = [95, 141], [operators]
    stacks = {
        tuple(stack): value
        for stack, value in widget.stacks("host").select("stack", "value").iter_rows()
    }
    assert stacks == {("aten::linear",): 17, ("aten::linear", "aten::mm"): 3, ("aten::add",): 5}
    message, _ = ask(widget, "flame", by="stage")
    assert (message["kinds"], message["by"], message["total"]) == (["host"], "host", 25)
    widget.selection = {"row": operators, "id": 1}  # one alone, and what it calls
    stacks = widget.stacks("host")
    assert (stacks["stack"].to_list(), stacks["value"].to_list()) == ([["aten::mm"]], [6])
    widget.selection = {"row": row_of(widget, "steps"), "id": 0}
    first = widget.trace.events.filter(step=analyze.steps(widget.trace)["step"][0])
    assert widget.stacks()["value"].sum() == first["dur_ns"].sum()


def mine_stream(widget, row):
    return widget._data.rows[row].stream[1]


def test_waiting_is_a_share_of_the_bar_of_its_collective(sample_trace):
    trace = sample_trace("torch_tp4_eager_custom_allreduce")
    widget = explore.timeline(trace)
    ask(widget, "find")
    calls = analyze.collectives(trace).filter(rank=0).filter(pl.col("wait_ns") > 0)
    call = calls.row(0, named=True)
    window = [call["start_ns"] - 10.0, call["start_ns"] + call["dur_ns"] + 10.0]
    stream = row_of(widget, "stream")
    _, columns = view_of(widget, window, rows=[stream])
    event = trace.events.filter(rank=0, start_ns=call["start_ns"], dur_ns=call["dur_ns"])[
        "event"
    ].item()
    waits = dict(zip(columns["id"].tolist(), columns["waits"].tolist(), strict=True))
    assert waits[event] == round(255 * call["wait_ns"] / call["dur_ns"])
    assert set(waits.values()) - {waits[event]} <= {0}
    # from afar the columns say it: of the rank's busy time so much waits
    message, columns = view_of(widget, described(widget)["whole"], rows=[stream])
    assert all(lane[4] >= 0 for lane in message["lanes"][:1])
    mine = analyze.collectives(trace).filter(rank=0)
    busy = trace.events.filter(rank=0, stream=mine_stream(widget, stream))["dur_ns"].sum()
    share = columns["held"].astype(float).sum() / columns["busy"].astype(float).sum()
    assert share == pytest.approx(mine["wait_ns"].sum() / busy, abs=0.03)


def test_the_flame_graph_in_the_widget_by_hand(shown):
    message, _ = ask(shown, "flame", "module")
    assert message["kinds"] == ["stage", "module", "python"]
    assert (message["of"], message["problem"]) == ("the whole trace", "")
    assert (message["total"], message["events"], message["left_out"]) == (40, 2, 0)
    assert message["trunk"] == ["nn.Module: Layer_0"]
    named = [message["names"][place] for place in message["name"]]
    frames = zip(named, message["level"], message["start"], message["value"], strict=True)
    assert set(frames) == {(GEMM, 0, 10, 30), ("nn.Module: Norm_0", 0, 0, 10), (NORM, 1, 0, 10)}
    shown.selection = {"row": row_of(shown, "python"), "id": 4}
    message, _ = ask(shown, "flame", "stage")
    assert (message["by"], message["problem"]) == ("host", "")
    assert message["total"] == shown.stacks("host")["value"].sum() > 0


# --- the critical path in the timeline: its parts, the ranks that it is on, and the events that
# they lead to


@pytest.fixture(autouse=True)
def notes(tmp_path, monkeypatch):
    monkeypatch.setenv("LLMPROF_NOTES", str(tmp_path))


def followed(trace):
    widget = explore.timeline(trace)
    ask(widget, "find")
    before = len(described(widget)["rows"])
    assert not any(row["kind"] == rows.PATH_KIND for row in described(widget)["rows"])
    ask(widget, "follow")
    ask(widget, "follow")  # asked twice it stays one row, behind all others
    assert len(described(widget)["rows"]) == before + 1
    return widget, before


def spans(widget, row, level=0):
    lane = widget._data.rows[row].lanes[level]
    names = [widget._data.names.full[n] for n in lane.name]
    return list(zip((lane.start // US).tolist(), (lane.end // US).tolist(), names, strict=True))


def parts(widget, row):
    keys = described(widget)["keys"]
    return [keys[code]["name"] for code in widget._data.rows[row].lanes[0].code("stage")]


def facts(widget, row, number):
    answer, _ = ask(widget, "describe", row, number)
    return dict(answer["facts"]), answer["target"]


def test_parts_of_a_path_that_the_host_sets():
    widget, row = followed(host_bound())
    call = "cudaLaunchKernel"
    # calls of 4 us at 10 and 50 of each 100 us, the host between them; at the end the last launch
    # and its kernel; the time between two calls is parted where a step ends on the device: at 65
    # and 165
    assert spans(widget, row) == [
        (10, 14, call),
        (14, 50, "host"),
        (50, 54, call),
        (54, 65, "host"),
        (65, 110, "host"),
        (110, 114, call),
        (114, 150, "host"),
        (150, 154, call),
        (154, 165, "host"),
        (165, 210, "host"),
        (210, 214, call),
        (214, 250, "host"),
        (250, 255, "launch"),
        (255, 265, GEMM),
    ]
    assert parts(widget, row)[:3] == ["host call", "host", "host call"]
    assert parts(widget, row)[-2:] == ["launch", "compute"]
    told = described(widget)
    names = [told["keys"][code]["name"] for code in told["present"]["path"]]
    assert names == ["compute", "launch", "host call", "host"]
    runtime, stream = row_of(widget, "runtime"), row_of(widget, "stream")
    said, target = facts(widget, row, 12)
    assert said["part"] == "launch: from the host's call to the start on the device"
    assert (said["step"], said["before"], said["evidence"]) == ("2 · decode", GEMM, "recorded")
    assert said["of its step"] == "5.0 %"  # 5 of the 100 us from 165 to 265
    assert (target["row"], target["id"], target["start"]) == (stream, 5, 255 * US)
    _, target = facts(widget, row, 2)
    assert (target["row"], target["start"], target["end"]) == (runtime, 50 * US, 54 * US)
    _, target = facts(widget, row, 1)  # without operators: the call that ended it
    assert (target["row"], target["start"]) == (runtime, 50 * US)
    widget.selection = {"row": row, "id": 13}
    assert widget.selected.select("part", "start_ns", "dur_ns").rows() == [
        ("compute", 255 * US, 10 * US)
    ]
    assert (widget.rank, widget.step) == (0, 2)
    widget.selection = None
    widget.span, widget.span_rows = [10.0 * US, 54.0 * US], [row]
    assert widget.selected["part"].to_list() == ["host call", "host", "host call"]
    answer, _ = ask(widget, "span", [10 * US, 54 * US], [row])
    assert [(one["name"], one["total_ns"]) for one in answer["rows"]] == [
        ("host", 36 * US),
        ("cudaLaunchKernel", 8 * US),
    ]
    # its parts are named as the events that they are, and are no hits beside them
    assert ask(widget, "search", "nvjet", 0)[0]["count"] == 3


def test_a_second_level_says_on_which_rank_the_path_is():
    trace = two_ranks()
    last = (pl.col("rank") == 0) & (pl.col("start_ns") == 96 * US)
    longer = trace.kernels.with_columns(dur_ns=pl.when(last).then(20 * US).otherwise("dur_ns"))
    widget, row = followed(Trace({**trace.tables, "kernels": longer}, trace.meta))
    # the last work is the norm of rank 0; the all-reduce before it waited for rank 1, which came at
    # 90
    assert spans(widget, row, 1) == [(2, 90, "rank 1"), (90, 116, "rank 0")]
    assert spans(widget, row)[-4:] == [
        (89, 90, "device gap"),
        (90, 95, NCCL_ALL_REDUCE),
        (95, 96, "device gap"),
        (96, 116, NORM),
    ]
    assert ask(widget, "pick", row, 1, 93 * US, 1)[0]["hit"]["level"] == 0
    answer, _ = ask(widget, "span", [2 * US, 116 * US], [row])
    assert (
        sum(one["total_ns"] for one in answer["rows"]) == 114 * US
    )  # the ranks are not counted again


def test_a_recording_that_is_too_large_or_takes_no_time_says_so(monkeypatch):
    monkeypatch.setattr(rows, "MAX_EVENTS", 11)
    widget, row = followed(host_bound())  # six kernels and six calls
    assert described(widget)["rows"][row]["count"] == 0
    assert described(widget)["rows"][row]["note"].startswith(
        "not computed: 12 events, by itself of 11 at most"
    )
    monkeypatch.undo()
    widget, row = followed(
        Trace({"kernels": kernels([(GEMM, 0)])})
    )  # one kernel that takes no time
    assert (
        described(widget)["rows"][row]["note"]
        == "no critical path: no step takes any time on a device"
    )
    widget, row = followed(
        Trace({"ops": ops([("aten::mm", 0, 10, 1)])})
    )  # on a CPU operators are the work
    assert parts(widget, row) == ["compute"]
    assert facts(widget, row, 0)[1]["name"] == "aten::mm"


def test_a_saved_view_shows_the_path_again():
    widget, row = followed(host_bound())
    widget.arrangement = {"path": True}
    widget.selection = {"row": row, "id": 3}
    again = explore.timeline(host_bound(), view=widget.view)
    assert again.arrangement["path"]
    assert again.selection is None  # the path is not computed yet
    widget.selection, widget.span, widget.span_rows = None, [0.0, 1.0], [0, row]
    assert explore.timeline(host_bound(), view=widget.view).span_rows == [0]
    assert again.picture() != explore.timeline(host_bound()).picture()


# --- saved views, marks with notes and the list of hits, on a trace made by hand


def saved_run(*, ranks=2, more=()):
    """Of each rank three GEMMs of 30 ns and two norms of 10 ns, in turn and 5 ns apart, then
    ``more``.
    """
    names = [(GEMM, 30), (NORM, 10), (GEMM, 30), (NORM, 10), (GEMM, 30), *more]
    run = pl.concat(
        [kernels(names, start=100 + rank, pause=5, rank=rank, first=1) for rank in range(ranks)]
    )
    return Trace({"kernels": run, "runtime": launches(run)})


@pytest.fixture
def file(tmp_path):
    return tmp_path / "run" / "notes.json"


@pytest.fixture
def shown_again(file):
    return explore.timeline(saved_run(), notes=file)


def test_a_view_is_shown_again_also_through_json(shown_again, file):
    shown_again.show((120, 180), rank=1, search="gemm")
    shown_again.color_by = "category"
    view = json.loads(json.dumps(shown_again.view))
    assert view["window"] == [117, 183]
    assert view["span"] == [120, 180]
    again = explore.timeline(saved_run(), notes=file, view=view)
    assert again.view == shown_again.view
    assert again.arrangement["open"] == [1]
    assert again.selected["rank"].unique().to_list() == [1]
    assert (
        explore.timeline(saved_run(), notes=file, view=json.dumps(view), search="norm").search
        == "norm"
    )


@pytest.mark.parametrize("other", [{"ranks": 1}, {"more": [(NORM, 10)]}, {"more": [(GEMM, 0)]}])
def test_a_view_of_another_trace_is_refused_with_words(shown_again, file, other):
    with pytest.raises(ArgumentError, match="view is of another trace"):
        explore.timeline(saved_run(**other), notes=file, view=shown_again.view)


@pytest.mark.parametrize(
    "view", ["", "[1]", "{}", {"trace": 3}, {"trace": "x", "windows": []}, {"window": [0, 1]}]
)
def test_what_is_no_view_is_refused_with_words(file, view):
    with pytest.raises(ArgumentError, match="no saved view"):
        explore.timeline(saved_run(), notes=file, view=view)


def test_marks_are_kept_in_a_file_and_come_back(shown_again, file, tmp_path):
    assert not file.exists()
    shown_again.mark(150, "second")
    shown_again.mark(120)
    assert shown_again.marks == [{"time": 120.0, "text": ""}, {"time": 150.0, "text": "second"}]
    assert shown_again.notes == str(file)
    again = explore.timeline(saved_run(), notes=file)
    assert again.marks == shown_again.marks
    again.marks = again.marks[1:]  # as the browser's side does
    assert [mark["text"] for mark in json.loads(file.read_text())["marks"]] == ["second"]
    assert again.notes_problem == ""
    with pytest.raises(AnalysisError, match="there is no rank 7"):
        shown_again.show((0, 1), rank=7)
    with pytest.raises(ArgumentError, match="order"):
        explore.timeline(saved_run(), arrangement={"order": "size"})
    (tmp_path / "taken").write_text("a file where a folder should be")
    shown_again = explore.timeline(saved_run(), notes=tmp_path / "taken" / "notes.json")
    assert "cannot be read" in shown_again.notes_problem
    for marks in (
        [{"text": "no time"}],
        [{"time": float("nan")}],
        [{"time": 1, "text": "x" * 2_001}],
    ):
        with pytest.raises(ArgumentError):
            explore.timeline(saved_run(), notes=tmp_path / "n.json", marks=marks)


OTHER_TRACE = b'{"version":1,"trace":"f","marks":[]}'


@pytest.mark.parametrize("content", [b'{"version": 1, "tra', b"", b"\xff\xfe", b"[]", OTHER_TRACE])
def test_a_damaged_file_of_notes_is_named_and_kept(file, content):
    file.parent.mkdir()
    file.write_bytes(content)
    shown_again = explore.timeline(saved_run(), notes=file)
    assert str(file) in shown_again.notes_problem
    assert "kept" in shown_again.notes_problem
    shown_again.marks = [{"time": 1}]
    with pytest.raises(LlmprofError, match=r"notes\.json"):
        shown_again.mark(2)
    assert file.read_bytes() == content


def test_notes_are_by_default_in_a_folder_of_the_user(monkeypatch, tmp_path):
    monkeypatch.setenv("LLMPROF_NOTES", str(tmp_path / "notes"))
    shown_again = explore.timeline(saved_run())
    shown_again.mark(120)
    assert [path.stem for path in (tmp_path / "notes").iterdir()] == [shown_again.view["trace"]]
    assert explore.timeline(saved_run(ranks=1)).marks == []


def listed(widget, **filters):
    answer, _ = ask(widget, "list", **{"text": "nvjet", **filters})
    return answer, [(one["rank"], one["hit"]["start"]) for one in answer["rows"]]


def test_all_hits_are_listed_with_totals(shown_again):
    # of rank 0 the GEMMs begin at 100, 150 and 200, of rank 1 one ns later
    answer, rows = listed(shown_again)
    assert rows == [(0, 100), (1, 101), (0, 150), (1, 151), (0, 200), (1, 201)]
    assert {name: answer[name] for name in ("total", "names", "sum_ns", "ranks")} == {
        "total": 6,
        "names": 1,
        "sum_ns": 180.0,
        "ranks": [0, 1],
    }
    assert listed(shown_again, sort="-start", first=1, count=2)[1] == [(0, 200), (1, 151)]
    assert listed(shown_again, rank=1, window=(130, 151.5))[1] == [(1, 101), (1, 151)]
    assert listed(shown_again, where="host")[0]["total"] == 0
    assert (
        listed(shown_again, text="")[0]["total"]
        == listed(shown_again, text="no such name")[0]["total"]
        == 0
    )
    by_name = ask(shown_again, "list", text="a", sort="-name")[0]["rows"]
    names = [one["hit"]["name"].casefold() for one in by_name]
    assert names == sorted(names, reverse=True)
    longest = ask(shown_again, "list", text="a", where="device", sort="-dur")[0]["rows"]
    lengths = [one["hit"]["end"] - one["hit"]["start"] for one in longest]
    assert lengths == sorted(lengths, reverse=True)


def test_the_rank_that_the_others_wait_for_is_said(sample_trace, tmp_path):
    shown_again = explore.timeline(
        sample_trace("torch_tp4_eager_custom_allreduce"), notes=tmp_path / "n.json"
    )
    assert [group["late"] for group in described(shown_again)["groups"]] == [False] * 4
    ask(shown_again, "find")
    assert [group["rank"] for group in described(shown_again)["groups"] if group["late"]] == [3]
    even = explore.timeline(saved_run(), notes=tmp_path / "m.json")
    ask(even, "find")
    assert not any(group["late"] for group in described(even)["groups"])


def late_of(ranks, late):
    """Six all-reduces of so many ranks, 1 ms apart, in which one starts 800 us after the others;
    all end together.
    """
    rows = [
        kernels(
            [(NCCL_ALL_REDUCE, 4_000 if rank == late else 804_000)],
            rank=rank,
            first=1_000 * rank + call,
            start=call * 1_000_000 + (800_000 if rank == late else 0),
        )
        for call in range(6)
        for rank in range(ranks)
    ]
    return Trace({"kernels": pl.concat(rows).sort("rank", "start_ns")})


# --- level of detail: bins and positions of a lane, by hand and against counting each nanosecond


def lane(spans, codes=None):
    start, end = (np.array([span[side] for span in spans], dtype=np.int64) for side in (0, 1))
    count = len(spans)
    code = np.array(codes if codes is not None else [0] * count, dtype=np.uint8)
    number = np.arange(count, dtype=np.uint32)
    return Lane(start, end, {"category": code}, number, number)


def test_what_is_much_shorter_than_a_column_stays_visible():
    busy, main = lane([(1_000, 1_001)], [2]).bins(0, 1_000_000, 10, "category")
    assert busy.tolist() == [VISIBLE, *[0] * 9]
    assert main[0] == 2


@given(
    gaps=st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 3)), min_size=1, max_size=30
    ),
    first=st.integers(-20, 60),
    columns=st.integers(1, 7),
    width=st.integers(1, 13),
)
def test_bins_agree_with_counting(gaps, first, columns, width):
    spans, codes, at = [], [], 0
    for gap, long, code in gaps:
        spans.append((at + gap, at + gap + long))
        codes.append(code)
        at += gap + long
    busy, main = lane(spans, codes).bins(first, first + columns * width, columns, "category")
    for column in range(columns):
        left = first + column * width
        time = np.zeros(4)
        begun = False
        for (start, end), code in zip(spans, codes, strict=True):
            time[code] += max(0, min(end, left + width) - max(start, left))
            begun = begun or left <= start < left + width
        share = int(np.ceil(time.sum() / width * 255 - 1e-9))
        assert share <= busy[column] <= max(share + 1, VISIBLE if begun else 0)
        if time.any():
            assert time[main[column]] == time.max()


@pytest.mark.parametrize(
    ("spans", "slack", "depths"),
    [
        ([(0, 10), (1, 9), (2, 3), (4, 5), (10, 12)], 0, [0, 1, 2, 2, 0]),
        ([(0, 10), (9, 20)], 0, [0, 1]),
        ([(0, 10), (9, 20)], 1, [0, 0]),
        ([(0, 10), (0, 5), (5, 10)], 0, [0, 1, 1]),
        ([(0, 0), (0, 0)], 0, [0, 0]),
    ],
    ids=["nested", "overlap", "overlap within the slack", "begin together", "no length"],
)
def test_levels_are_the_depth_of_nesting(spans, slack, depths):
    start, end = (np.array([span[side] for span in spans], dtype=np.int64) for side in (0, 1))
    assert levels(start, end, slack=slack).tolist() == depths


def test_threads_stand_above_the_streams_where_that_is_asked():
    widget = explore.timeline(whole_trace(), host_above=True)
    kinds = [described(widget)["rows"][n]["kind"] for n in widget.arrangement["moved"]]
    assert kinds.index("ops") < kinds.index("stream")
    assert sorted(widget.arrangement["moved"]) == list(range(len(kinds)))
    assert widget.picture() != explore.timeline(whole_trace()).picture()
