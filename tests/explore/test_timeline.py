"""The timeline's Python side: rows, views, selection, search, places and the picture, on traces made by hand."""

from __future__ import annotations

import math
import time

import numpy as np
import polars as pl
import pytest
import traitlets

import llmprof
from llmprof import analyze, explore, schema
from llmprof.errors import AnalysisError, LlmprofError
from llmprof.explore.timeline import data
from llmprof.trace import Trace
from tests.analyze.builders import ATTENTION, GEMM, NORM, forward, kernels, labels, launches, ops
from tests.analyze.test_requests import MS
from tests.analyze.test_requests import made as served_run

DTYPES = {"start": "<f4", "dur": "<f4", "code": "u1", "name": "<u4", "id": "<u4", "busy": "u1", "main": "u1",
          "samples": "<f4"}  # fmt: skip


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
    host = ops([("aten::linear", 90, 25, 1, "[[4, 8]]"), ("aten::mm", 92, 6, 2), ("aten::add", 120, 5, 3)])
    return Trace({"kernels": run, "runtime": launches(run), "markers": marks, "ops": host, **more})


def ask(widget, what, **args):
    message, buffers = getattr(widget, f"_on_{what}")(**args)
    return message, buffers


def view_of(widget, window, *, width=1000, rows=None, by="category"):
    rows = range(len(widget._data.rows)) if rows is None else rows
    message, buffers = ask(widget, "view", window=window, width=width, rows=list(rows), colour_by=by)
    columns = {name: np.frombuffer(raw, dtype) for (name, dtype), raw in zip(DTYPES.items(), buffers, strict=True)}
    return message, columns


def row_of(widget, kind, rank=0):
    return next(n for n, row in enumerate(widget._data.rows) if (row.kind, row.rank) == (kind, rank))


def test_rows_of_a_rank_are_found_in_two_goes():
    widget = explore.timeline(whole_trace())
    described, _ = ask(widget, "rows")
    assert [row["kind"] for row in described["rows"]] == [
        "steps", "layers", "collectives", "idle", "stream", "markers", "ops", "runtime",
    ]  # fmt: skip
    assert not described["found"]
    assert [row["count"] for row in described["rows"]] == [0, 0, 0, 0, 54, 2, 3, 54]
    ask(widget, "find")
    described, _ = ask(widget, "rows")
    assert described["found"]
    counts = {row["kind"]: row["count"] for row in described["rows"]}
    assert counts["steps"] == analyze.steps(widget.trace).height == 2
    assert counts["layers"] == 4 + analyze.layers(widget.trace).height
    assert counts["idle"] == analyze.idle(widget.trace).height
    notes = {row["kind"]: row["note"] for row in described["rows"]}
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
    keys = widget._data.keys.described()
    assert [keys[code]["name"] for code in found["code"]][2:] == ["norm", "linear"]


def test_a_far_view_has_bins_and_the_events_that_are_wide():
    run = pl.concat([kernels([(GEMM, 5)] * 1000, pause=5), kernels([(NORM, 20_000)], start=10_000, first=5000)])
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
        {"rank": [0] * 4, "device": [0] * 4, "time_ns": [0, 10, 12, 30], "name": ["gpu.power"] * 4,
         "value": [1.0, 5.0, 2.0, 4.0], "unit": ["W"] * 4}
    )  # fmt: skip
    widget = explore.timeline(Trace({"counters": schema.conform(samples, "counters")}))
    described, _ = ask(widget, "rows")
    assert [(row["label"], row["unit"], row["range"]) for row in described["rows"]] == [("gpu.power", "W", [0.0, 5.0])]
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
    assert widget.selected.equals(analyze.attribute(widget.trace)[8])
    assert widget.selected["name"].item() == NORM
    assert (widget.rank, widget.step, widget.layer, widget.stage) == (0, None, None, None)
    ask(widget, "find")
    widget.select(6)
    assert widget.selected["name"].item() == ATTENTION
    assert (widget.rank, widget.step, widget.layer, widget.stage) == (0, 0, 0, "attention")


@pytest.mark.parametrize(("kind", "name"), [("ops", "aten::add"), ("runtime", "cudaLaunchKernel"), ("steps", None)])
def test_what_is_selected_comes_from_the_frame_of_its_row(kind, name):
    widget = explore.timeline(whole_trace())
    ask(widget, "find")
    widget.selection = {"row": row_of(widget, kind), "id": 1 if kind == "steps" else 2}
    if name is None:
        assert widget.selected.equals(analyze.steps(widget.trace)[1])
        assert widget.step == 1
    else:
        assert widget.selected["name"].item() == name


def test_a_range_of_time_selects_the_events_that_touch_it():
    widget = explore.timeline(whole_trace())
    widget.span = [105, 141]
    assert widget.selected["event"].to_list() == [0, 1, 2]
    # inside the range: 105 to 110 of the first kernel, all of the second, 140 to 141 of the third
    answer, _ = ask(widget, "span", span=[105, 141], rows=None)
    assert answer["title"] == "stream 7"
    assert answer["facts"] == [["length", "36 ns"], ["spans", "3"], ["summed time", "16 ns"]]
    rows = [[row[name] for name in ("name", "count", "total_ns", "share")] for row in answer["rows"]]
    assert rows == [
        ["indexSelectSmallIndex", 1, 10, 10 / 16],
        ["_prepare_inputs_kernel", 1, 5, 5 / 16],
        ["fused_add_rms_norm_kernel", 1, 1, 1 / 16],
    ]
    assert {(row["mean_ns"], row["p99_ns"]) for row in answer["rows"]} == {(10.0, 10.0)}


def test_a_range_of_time_can_be_of_some_rows_only():
    widget = explore.timeline(whole_trace())
    ask(widget, "find")
    operators = row_of(widget, "ops")
    widget.span, widget.span_rows = [105, 141], [operators]
    # aten::linear is from 90 to 115, aten::mm ends before, aten::add is from 120 to 125
    assert widget.selected["name"].to_list() == ["aten::linear", "aten::add"]
    answer, _ = ask(widget, "span", span=[105, 141], rows=[operators])
    assert [(row["name"], row["total_ns"]) for row in answer["rows"]] == [("aten::linear", 10), ("aten::add", 5)]
    # of a mixed choice with a stream, as a closed rank's strip is one, the stream is meant
    widget.span_rows = [row_of(widget, "steps"), row_of(widget, "stream"), row_of(widget, "idle")]
    assert widget.selected["event"].to_list() == [0, 1, 2]
    widget.span_rows = [row_of(widget, "steps")]
    assert widget.selected["step"].to_list() == analyze.steps(widget.trace)["step"].to_list()[:1]
    widget.span = [0, 1]
    assert widget.selected.height == 0
    answer, _ = ask(widget, "span", span=[0, 1], rows=None)
    assert (answer["rows"], answer["total"]) == ([], 0)


def test_what_is_not_there_cannot_be_selected():
    widget = explore.timeline(whole_trace())
    with pytest.raises(AnalysisError, match=r"there is no event 500; expected 0 to 53"):
        widget.select(500)
    with pytest.raises(traitlets.TraitError, match="the row and id of a span"):
        widget.selection = {"row": 4, "id": 500}
    with pytest.raises(LlmprofError, match="got a dict as trace; expected a Trace"):
        explore.timeline({})


def test_facts_of_a_kernel_and_the_arrow_from_its_launch():
    widget = explore.timeline(whole_trace())
    ask(widget, "find")
    message, _ = ask(widget, "describe", row=row_of(widget, "stream"), id=0)
    facts = dict(message["facts"])
    assert facts["duration"] == "10 ns"
    assert facts["launch delay"] == "5 ns"
    assert facts["operator"] == "aten::mm"
    assert message["flows"] == [
        [
            {"row": row_of(widget, "runtime"), "level": 0, "time": 95},
            {"row": row_of(widget, "stream"), "level": 0, "time": 100},
        ]
    ]


def test_very_many_host_spans_of_several_ranks_come_after_the_first_picture(sample_trace, monkeypatch):
    trace = sample_trace("torch_tp4_eager_nccl")
    at_once = explore.timeline(trace)
    monkeypatch.setattr(data, "LATER", 1)
    widget = explore.timeline(trace)
    assert widget.picture() == at_once.picture()
    before, after = (ask(one, "rows")[0] for one in (widget, at_once))
    assert not before["found"]
    assert before["whole"] == after["whole"]
    alike = ("kind", "rank", "label", "count")
    assert [[row[name] for name in alike] for row in before["rows"]] == [
        [row[name] for name in alike] for row in after["rows"]
    ]
    operators = row_of(at_once, "ops")
    drawn = widget._data.drawn
    message, _ = ask(widget, "view", window=before["whole"], width=1000, rows=[operators], colour_by="stage")
    assert message["lanes"] == []
    assert not drawn[operators].lanes
    for one in (widget, at_once):
        ask(one, "find")
    assert all(row.waiting == 0 and row.note != "…" for row in drawn)
    rows = [operators, row_of(at_once, "runtime", 2)]
    mine, other = (view_of(one, before["whole"], rows=rows) for one in (widget, at_once))
    assert mine[0] == other[0]
    assert all(np.array_equal(mine[1][name], other[1][name]) for name in ("start", "busy"))
    assert ask(widget, "rows")[0]["found"]
    # whoever needs them before has them at once
    early = explore.timeline(trace)
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


def test_search_counts_and_goes_round():
    widget = explore.timeline(whole_trace())
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
    assert ask(widget, "search", text=" ", after=0)[0] == {"count": 0, "index": -1, "hit": None, "names": []}


def test_picking_takes_what_is_under_the_pointer_else_the_nearest():
    widget = explore.timeline(whole_trace())
    row = row_of(widget, "stream")
    picked = lambda time, reach: ask(widget, "pick", row=row, level=0, time=time, reach=reach)[0]["hit"]  # noqa: E731
    assert picked(105, 1)["id"] == 0
    assert picked(113, 1) is None
    assert picked(113, 5)["id"] == 0
    assert ask(widget, "pick", row=row, level=7, time=105, reach=1)[0]["hit"] is None


def test_going_to_a_step_and_to_a_layer():
    widget = explore.timeline(whole_trace())
    widget.go(step=1)
    steps = analyze.steps(widget.trace).filter(step=1)
    assert widget.window == [
        steps["start_ns"].item(),
        (steps["start_ns"] + steps["dur_ns"]).item(),
    ]
    layer = analyze.layers(widget.trace, per="layer").filter(step=1, layer=1)
    window = [layer["start_ns"].item(), (layer["start_ns"] + layer["dur_ns"]).item()]
    assert ask(widget, "goto", step=1, layer=1)[0] == {"window": window}
    with pytest.raises(AnalysisError, match=r"there is no step 7; expected a step from 0 to 1"):
        widget.go(step=7)
    with pytest.raises(AnalysisError, match=r"there is no step 1, layer 9; expected a layer from 0 to 1"):
        widget.go(step=1, layer=9)


@pytest.mark.parametrize(
    ("tables", "kinds"),
    [
        ({}, []),
        ({"kernels": kernels([]), "runtime": schema.empty("runtime")}, []),
        ({"runtime": launches(kernels([GEMM]))}, ["runtime"]),
        ({"markers": labels([("train", 0, 10)])}, ["markers"]),
        ({"ops": ops([("aten::mm", 0, 10, 1)])}, ["steps", "layers", "collectives", "idle", "stream", "ops"]),
        ({"kernels": kernels([("mystery", 5)])}, ["steps", "layers", "collectives", "idle", "stream"]),
    ],
    ids=["nothing", "nothing happened", "host calls only", "markers only", "no device", "nothing recognised"],
)
def test_traces_that_lack_something_are_drawn_as_far_as_they_go(tables, kinds):
    widget = explore.timeline(Trace(tables))
    described, _ = ask(widget, "rows")
    assert [row["kind"] for row in described["rows"]] == kinds
    ask(widget, "find")
    described, _ = ask(widget, "rows")
    assert described["whole"][1] > described["whole"][0]
    view_of(widget, described["whole"])
    ask(widget, "overview", width=100, colour_by="stage")
    ask(widget, "span", span=described["whole"], rows=None)
    assert widget.selected.height == 0
    assert (widget.picture() is None) == (not kinds)


def test_a_rank_that_is_missing_is_named():
    run = pl.concat([kernels([GEMM]), kernels([GEMM], rank=2)])
    widget = explore.timeline(Trace({"kernels": run}, {"missing_ranks": [1], "world_size": 3, "device": "H200"}))
    groups = ask(widget, "rows")[0]["groups"]
    assert [(group["label"], group["detail"]) for group in groups] == [
        ("rank 0", "H200"), ("rank 1", "not in this trace"), ("rank 2", "H200"),
    ]  # fmt: skip


def test_markup_in_names_stays_text_in_the_picture():
    hostile = '<script>alert("1")</script>&\x00\x1b\n'
    widget = explore.timeline(Trace({"kernels": kernels([(hostile, 1000)])}))
    assert widget.picture().startswith(b"\x89PNG")


def test_metrics_are_facts_of_the_kernels_that_they_fit(sample_trace):
    metrics = llmprof.sample_metrics("ncu_tp1_eager")
    trace = sample_trace("torch_tp1_eager")
    widget = explore.timeline(trace, metrics=metrics)
    ask(widget, "find")
    event = int(analyze.ncu_join(trace, metrics).drop_nulls("event")["event"][0])
    facts = dict(ask(widget, "describe", row=row_of(widget, "stream"), id=event)[0]["facts"])
    assert facts["ncu: compute"].endswith("% of peak")
    assert facts["ncu: match"].startswith("confidence")


def test_finding_says_what_it_does_and_happens_once(monkeypatch):
    widget = explore.timeline(whole_trace())
    said = []
    widget.observe(lambda change: said.append(change["new"]), "busy")
    monkeypatch.setattr(widget, "send", lambda *_: None)
    widget._receive(widget, {"kind": "ask", "what": "find", "id": "a"}, [])
    deadline = time.monotonic() + 180
    while not (said and said[-1] == "") and time.monotonic() < deadline:
        time.sleep(0.01)
    assert said[0] == "finding steps and layers"
    assert {"finding steps", "finding layers", "finding collectives", "finding idle", ""} <= set(said)


def test_requests_stand_on_top_a_row_each():
    run = served_run()
    widget = explore.timeline(run.trace, run=run)
    described, _ = ask(widget, "rows")
    assert next((group["rank"], group["label"], group["detail"]) for group in described["groups"]) == (
        -2,
        "requests",
        "3",
    )
    rows = [row for row in described["rows"] if row["kind"] == "requests"]
    assert [(row["label"], row["count"]) for row in rows] == [("request 0", 5), ("request 1", 6), ("request 2", 3)]
    # at first the window is that of the requests, not of the monitors that ran since the engine was started
    assert widget.window == [5.0 * MS, 130.0 * MS]
    said, _ = ask(widget, "describe", row=1, id=6)
    assert said["hit"]["name"] == "prefill of 300 tokens, step 1"
    facts = dict(said["facts"])
    assert (facts["part"], facts["its tokens"], facts["step"], facts["duration"]) == ("prefill", "300", "1", "30.0 ms")
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
    title, _ = ask(widget, "span", span=widget.span, rows=[0, 1])
    assert title["title"] == "request 0, request 1"
    assert widget.picture().startswith(b"\x89PNG")
    assert explore.timeline(run.trace)._data.rows[0].kind != "requests"


def test_requests_of_a_run_that_cannot_be_joined_are_refused():
    run = served_run(apart_ms=3.0)
    with pytest.raises(AnalysisError, match="clocks of requests and trace disagree"):
        explore.timeline(run.trace, run=run)
