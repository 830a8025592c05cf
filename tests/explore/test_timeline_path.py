"""The critical path in the timeline: its parts, the ranks that it is on, and the events that they lead to."""

from __future__ import annotations

import polars as pl
import pytest

from llmprof import explore
from llmprof.explore.timeline import path as timeline_path
from llmprof.trace import Trace
from tests.analyze.builders import GEMM, NCCL_ALL_REDUCE, NORM, kernels, ops
from tests.analyze.test_replay import US, host_bound, two_ranks


@pytest.fixture(autouse=True)
def notes(tmp_path, monkeypatch):
    monkeypatch.setenv("LLMPROF_NOTES", str(tmp_path))


def followed(trace):
    widget = explore.timeline(trace)
    widget._on_find()
    before = len(widget._data.rows)
    assert not any(row.kind == timeline_path.PATH_KIND for row in widget._data.rows)
    widget._on_follow()
    widget._on_follow()  # asked twice it stays one row, behind all others
    assert len(widget._data.rows) == before + 1
    return widget, before


def spans(widget, row, level=0):
    lane = widget._data.rows[row].lanes[level]
    names = [widget._data.names.full[n] for n in lane.name]
    return list(zip((lane.start // US).tolist(), (lane.end // US).tolist(), names, strict=True))


def parts(widget, row):
    keys = widget._data.keys.described()
    return [keys[code]["name"] for code in widget._data.rows[row].lanes[0].code("stage")]


def facts(widget, row, number):
    answer, _ = widget._on_describe(row, number)
    return dict(answer["facts"]), answer["target"]


def test_parts_of_a_path_that_the_host_sets():
    widget, row = followed(host_bound())
    call = "cudaLaunchKernel"
    # calls of 4 us at 10 and 50 of each 100 us, the host between them; at the end the last launch and its kernel; the
    # time between two calls is parted where a step ends on the device: at 65 and 165
    assert spans(widget, row) == [
        (10, 14, call), (14, 50, "host"), (50, 54, call), (54, 65, "host"),
        (65, 110, "host"), (110, 114, call), (114, 150, "host"), (150, 154, call), (154, 165, "host"),
        (165, 210, "host"), (210, 214, call), (214, 250, "host"), (250, 255, "launch"), (255, 265, GEMM),
    ]  # fmt: skip
    assert parts(widget, row)[:3] == ["host call", "host", "host call"]
    assert parts(widget, row)[-2:] == ["launch", "compute"]
    described, _ = widget._on_rows()
    names = [described["keys"][code]["name"] for code in described["present"]["path"]]
    assert names == ["compute", "launch", "host call", "host"]


def test_a_part_leads_to_its_event_and_says_what_it_is():
    widget, row = followed(host_bound())
    runtime = next(n for n, one in enumerate(widget._data.rows) if one.kind == "runtime")
    stream = next(n for n, one in enumerate(widget._data.rows) if one.kind == "stream")
    said, target = facts(widget, row, 12)
    assert said["part"] == "launch: from the host's call to the start on the device"
    assert (said["step"], said["before"], said["evidence"]) == ("2 · decode", GEMM, "recorded")
    assert said["of its step"] == "5.0 %"  # 5 of the 100 us from 165 to 265
    assert (target["row"], target["id"], target["start"]) == (stream, 5, 255 * US)
    _, target = facts(widget, row, 2)
    assert (target["row"], target["start"], target["end"]) == (runtime, 50 * US, 54 * US)
    _, target = facts(widget, row, 1)  # without operators: the call that ended it
    assert (target["row"], target["start"]) == (runtime, 50 * US)


def test_a_part_is_selected_as_a_row_of_the_analysis():
    widget, row = followed(host_bound())
    widget.selection = {"row": row, "id": 13}
    assert widget.selected.select("part", "start_ns", "dur_ns").rows() == [("compute", 255 * US, 10 * US)]
    assert (widget.rank, widget.step) == (0, 2)
    widget.selection = None
    widget.span, widget.span_rows = [10.0 * US, 54.0 * US], [row]
    assert widget.selected["part"].to_list() == ["host call", "host", "host call"]
    answer, _ = widget._on_span([10 * US, 54 * US], [row])
    assert [(one["name"], one["total_ns"]) for one in answer["rows"]] == [
        ("host", 36 * US),
        ("cudaLaunchKernel", 8 * US),
    ]
    # its parts are named as the events that they are, and are no hits beside them
    assert widget._on_search("nvjet", 0)[0]["count"] == 3


def test_a_second_level_says_on_which_rank_the_path_is():
    trace = two_ranks()
    last = (pl.col("rank") == 0) & (pl.col("start_ns") == 96 * US)
    longer = trace.kernels.with_columns(dur_ns=pl.when(last).then(20 * US).otherwise("dur_ns"))
    widget, row = followed(Trace({**trace.tables, "kernels": longer}, trace.meta))
    # the last work is the norm of rank 0; the all-reduce before it waited for rank 1, which came at 90
    assert spans(widget, row, 1) == [(2, 90, "rank 1"), (90, 116, "rank 0")]
    assert spans(widget, row)[-4:] == [
        (89, 90, "device gap"), (90, 95, NCCL_ALL_REDUCE), (95, 96, "device gap"), (96, 116, NORM),
    ]  # fmt: skip
    assert widget._on_pick(row, 1, 93 * US, 1)[0]["hit"]["level"] == 0
    answer, _ = widget._on_span([2 * US, 116 * US], [row])
    assert sum(one["total_ns"] for one in answer["rows"]) == 114 * US  # the ranks are not counted again


def test_a_recording_that_is_too_large_or_takes_no_time_says_so(monkeypatch):
    monkeypatch.setattr(timeline_path, "MOST_EVENTS", 11)
    widget, row = followed(host_bound())  # six kernels and six calls
    assert widget._data.rows[row].count == 0
    assert widget._data.rows[row].note.startswith("not computed: 12 events, by itself of 11 at most")
    monkeypatch.undo()
    widget, row = followed(Trace({"kernels": kernels([(GEMM, 0)])}))  # one kernel that takes no time
    assert widget._data.rows[row].note == "no critical path: no step takes any time on a device"
    widget, row = followed(Trace({"ops": ops([("aten::mm", 0, 10, 1)])}))  # on a CPU operators are the work
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
