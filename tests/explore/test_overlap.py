"""What the explorer of overlap shows and hands back, by hand and on recordings."""

import numpy as np
import polars as pl
import pytest

from llmprof import explore
from llmprof.errors import NotCapturedError
from llmprof.explore.overlap import explorer as steps_module
from llmprof.explore.overlap.explorer import PARTS, lanes, overlap_bars, window_summary
from llmprof.trace import Trace, schema
from tests.analyze.builders import ALL_REDUCE, GEMM, NCCL_ALL_REDUCE, kernels, labels, launches
from tests.explore.asking import ask

# stream 7: compute [100, 140) and [160, 180); stream 9: communication [130, 170); a copy at [190,
# 195)
RUN = pl.concat(
    [
        kernels([(GEMM, 40), (GEMM, 20)], start=100, pause=20),
        kernels([(ALL_REDUCE, 40)], start=130, stream=9, first=10),
        kernels([(GEMM, 10)], rank=1, start=100),
    ]
)
COPY = pl.DataFrame(
    {
        "rank": [0],
        "stream": [9],
        "start_ns": [190],
        "dur_ns": [5],
        "name": ["Memcpy DtoD"],
        "kind": ["DtoD"],
    }
)
ALL = {"window": None, "against": "", "step": None, "pixels": 100}


def trace():
    return Trace({"kernels": RUN, "copies": COPY})


def spans(head, buffers, name):
    lane = next(one for one in head["lanes"] if one["name"] == name)
    assert lane["kind"] == "spans"
    pairs = np.frombuffer(buffers[lane["buffers"][0]], "<f8").reshape(-1, 2)
    return [tuple(pair) for pair in pairs.tolist()]


def test_lanes_of_a_window():
    head, buffers = lanes(trace(), 0, (110, 200), pixels=100)
    assert spans(head, buffers, "compute") == [(0, 30), (50, 70)]
    assert spans(head, buffers, "exposed transfer or waiting") == [
        (30, 50)
    ]  # one rank has the collective
    assert spans(head, buffers, "hidden communication") == [(20, 30), (50, 60)]
    assert spans(head, buffers, "copy") == [(80, 85)]
    assert spans(head, buffers, "idle") == [(70, 80), (85, 90)]
    assert spans(head, buffers, "stream 7") == [(0, 30), (50, 70)]
    assert spans(head, buffers, "stream 9") == [(20, 60), (80, 85)]
    stream = next(one for one in head["lanes"] if one["name"] == "stream 9")
    names = np.frombuffer(buffers[stream["buffers"][1]], "<u4")
    assert [head["names"][n] for n in names] == [ALL_REDUCE, "Memcpy DtoD"]
    assert np.frombuffer(buffers[stream["buffers"][2]], "u1").tolist() == [1, 2]


def test_a_window_in_which_nothing_runs():
    head, buffers = lanes(trace(), 0, (1000, 1100), pixels=10)
    assert [lane["name"] for lane in head["lanes"]][-1] == "idle"
    assert spans(head, buffers, "idle") == [(0, 100)]
    assert spans(head, buffers, "compute") == []
    found = window_summary(trace(), 0, (110, 200))
    assert dict(found.select("part", "ns").iter_rows()) == {
        "compute": 30,
        "hidden communication": 20,
        "exposed waiting for ranks": 0,
        "exposed transfer": 0,
        "exposed transfer or waiting": 20,
        "exposed copy": 5,
        "idle": 15,
        "total": 90,
    }
    assert found["share"][-1] == 1.0


def test_waiting_and_transfer_have_lanes_of_their_own():
    """Rank 0 reduces [10, 104) us and computes [0, 20); rank 1 comes at 100: 80 us of waiting, 4
    of transfer.
    """
    us = 1_000
    frame = pl.concat(
        [
            kernels([(GEMM, 20 * us)], first=1),
            kernels([(NCCL_ALL_REDUCE, 94 * us)], start=10 * us, stream=9, first=2),
            kernels([(GEMM, 100 * us)], rank=1, first=3),
            kernels([(NCCL_ALL_REDUCE, 4 * us)], rank=1, start=100 * us, stream=9, first=4),
        ]
    )
    both = Trace({"kernels": frame})
    head, buffers = lanes(both, 0, (0, 104 * us), pixels=100)
    assert spans(head, buffers, "exposed waiting for ranks") == [(20 * us, 100 * us)]
    assert spans(head, buffers, "exposed transfer") == [(100 * us, 104 * us)]
    assert "exposed transfer or waiting" not in {lane["name"] for lane in head["lanes"]}
    assert ask(explore.overlap(both), "choices")[0]["parts"] == [
        "compute",
        "hidden communication",
        "exposed waiting for ranks",
        "exposed transfer",
        "idle",
    ]


def test_the_window_and_what_is_in_it():
    shown = explore.overlap(trace())
    assert shown.selected.height == 4  # the whole span of the lowest rank
    shown.window = [141, 160]
    assert shown.selected.select("name", "class").rows() == [(ALL_REDUCE, "communication")]
    shown.against = "rank:1"
    assert shown.summary.columns == ["part", "a_ns", "a_share", "b_ns", "b_share", "delta_ns"]
    assert shown.summary.row(by_predicate=pl.col("part") == "exposed transfer or waiting")[1:] == (
        19,
        1.0,
        0,
        0.0,
        -19,
    )
    assert shown.summary.row(by_predicate=pl.col("part") == "idle")[3] == 19


def stepped(start, lengths):
    """Steps of one kernel each, 100 ns apart."""
    parts, marks, at = [], [], start
    for n, length in enumerate(lengths):
        parts.append(kernels([(GEMM, length)], start=at, first=10 * n))
        marks.append(("execute_new_0_cached_4", at - 50, 40))
        at += length + 100
    frame = pl.concat(parts)
    return Trace({"kernels": frame, "runtime": launches(frame), "markers": labels(marks)})


def test_steps_as_bars_and_as_windows():
    a, b = stepped(100, [50, 60, 70]), stepped(1000, [50, 90, 70])
    bars = overlap_bars(a, rank=0)
    assert bars.select("first", "last", "phase", "start_ns", "end_ns", "total_ns", "compute").row(
        1
    ) == (
        1,
        1,
        "decode",
        250,
        410,
        160,
        60,
    )
    shown = explore.overlap(a, other=b, against="other:0")
    ask(shown, "steps", rank=0, first=1, last=1)
    assert (shown.rank, shown.step, shown.window) == (
        0,
        1,
        [250, 440],
    )  # as long as the longer of the two
    message, _ = ask(
        shown, "lanes", rank=0, window=shown.window, against="other:0", step=1, pixels=100
    )
    assert [side["window"] for side in message["sides"]] == [[250, 440], [1150, 1340]]
    assert [side["of"] for side in message["sides"]] == ["", "other trace"]
    shown.against = ""
    ask(shown, "steps", rank=0, first=0, last=2)
    assert shown.window == [100, 480]


def test_many_steps_share_bars(monkeypatch):
    monkeypatch.setattr(steps_module, "MAX_BARS", 2)
    bars = overlap_bars(stepped(100, [50, 60, 70]), rank=0)
    assert bars.select("first", "last", "total_ns").rows() == [(0, 1, 155.0), (2, 2, 70.0)]


def test_a_rank_that_is_missing(sample_trace):
    trace = sample_trace("torch_tp4_eager_nccl").select(rank=[0, 2])
    shown = explore.overlap(trace, rank=1)
    assert ask(shown, "choices")[0]["ranks"] == [0, 2]
    message, buffers = ask(shown, "lanes", rank=1, **ALL)
    assert (message["sides"], message["summary"], message["whole"], buffers) == ([], [], None, [])
    assert shown.selected.is_empty()
    message, _ = ask(shown, "bars", rank=1, phase=None, against="")
    assert message["sides"][0]["rank"] == 1


def test_recordings_without_events_or_steps():
    shown = explore.overlap(Trace({"kernels": schema.empty("kernels")}))
    assert ask(shown, "choices")[0]["ranks"] == []
    assert shown.selected.is_empty()
    assert {"event", "stage", "class"} <= set(shown.selected.columns)
    assert shown.summary.is_empty()
    assert "image/png" not in shown._repr_mimebundle_()[0]
    with pytest.raises(NotCapturedError):
        ask(explore.overlap(Trace({})), "choices")
    shown = explore.overlap(Trace({"kernels": kernels(["one", "two"])}))
    _, (first, *_) = ask(shown, "bars", rank=0, phase=None, against="")
    assert np.frombuffer(first, "<f8").tolist() == [-1]
    ask(shown, "steps", rank=0, first=-1, last=-1)
    assert (shown.step, shown.window) == (None, None)
    assert ask(shown, "lanes", rank=0, **ALL)[0]["sides"][0]["lanes"][0]["count"] == 1
    bars = overlap_bars(trace(), rank=0)
    assert bars.select("first", "last", "phase", "start_ns", "end_ns").rows() == [
        (-1, -1, None, 100, 195)
    ]
    [bar] = bars.select("total_ns", *PARTS).iter_rows(named=True)
    # idle is [180, 190): compute [100, 140) and [160, 180) of which 20 beside communication, [140,
    # 160) exposed, a copy
    assert (bar["total_ns"], bar["compute"], bar["hidden communication"], bar["idle"]) == (
        95,
        40,
        20,
        10,
    )
    assert (bar["exposed transfer or waiting"], bar["exposed copy"]) == (20, 5)
    assert overlap_bars(trace(), rank=0, phase="decode").is_empty()
    assert overlap_bars(trace(), rank=7).is_empty()
