"""Projection of ranges onto the device, by hand.

One thread of rank 0 has ``step`` 0-100 with ``layer`` 10-50 in it, which has ``mlp`` 20-30. Calls:
a at 5, b at 12, c at 20-30 (ends with ``mlp``), d at 45-55 (``layer`` ends before it does), e at
100 (``step`` ends with its start).
"""

import polars as pl
import pytest

from llmprof.analyze.nsys import nvtx_kernels
from llmprof.errors import AnalysisError, NotCapturedError
from llmprof.label.nesting import inside
from llmprof.trace import Trace
from tests.building import table_of


def markers(rows, **columns):
    """From ``(name, start, dur, thread)``."""
    frame = table_of("name start_ns dur_ns thread", rows)
    given = {"rank": 0, "process": 1, "domain": "nvtx", "on_device": False, **columns}
    return frame.with_columns(pl.lit(value).alias(name) for name, value in given.items())


def calls(rows, rank=0):
    """From ``(correlation, start, dur, thread)``."""
    frame = table_of("correlation start_ns dur_ns thread", rows)
    return frame.with_columns(
        rank=rank, process=1, name=pl.lit("cudaLaunchKernel"), api=pl.lit("runtime")
    )


def work(rows, rank=0):
    """From ``(name, start, dur, correlation)``."""
    frame = table_of("name start_ns dur_ns correlation", rows)
    return frame.with_columns(rank=pl.lit(rank), device=pl.lit(0))


MARKERS = markers([("step", 0, 100, 1), ("layer", 10, 40, 1), ("mlp", 20, 10, 1)])
CALLS = calls(
    [(1, 5, 2, 1), (2, 12, 3, 1), (3, 20, 10, 1), (4, 45, 10, 1), (5, 100, 1, 1), (6, 25, 1, 2)]
)
KERNELS = work(
    [
        ("a", 200, 10, 1),
        ("b", 205, 15, 2),
        ("c1", 230, 10, 3),
        ("c2", 260, 10, 3),
        ("d", 300, 10, 4),
        ("e", 400, 10, 5),
        ("other thread", 500, 10, 6),
        ("launch not in the window", 600, 10, 77),
    ]
)
TRACE = Trace({"markers": MARKERS, "runtime": CALLS, "kernels": KERNELS})


def test_every_range_of_nested_ones_has_the_work():
    got = nvtx_kernels(TRACE)
    assert got.columns == [
        "range",
        "parent",
        "rank",
        "process",
        "thread",
        "name",
        "domain",
        "kind",
        "depth",
        "start_ns",
        "dur_ns",
        "host_start_ns",
        "host_dur_ns",
        "launches",
        "kernels",
        "own_kernels",
        "busy_ns",
    ]
    assert got.select(
        "name", "range", "parent", "depth", "host_start_ns", "host_dur_ns"
    ).rows() == [
        ("step", 0, None, 0, 0, 100),
        ("layer", 1, 0, 1, 10, 40),
        ("mlp", 2, 1, 2, 20, 10),
    ]
    # step: a b c1 c2 d, 200-310; busy 200-220, 230-240, 260-270, 300-310. layer: b c1 c2, 205-270;
    # d is not in it
    assert got.select(
        "start_ns", "dur_ns", "launches", "kernels", "own_kernels", "busy_ns"
    ).rows() == [
        (200, 110, 4, 5, 2, 50),
        (205, 65, 2, 3, 1, 35),
        (230, 40, 1, 2, 2, 20),
    ]


def test_each_event_has_its_innermost_range():
    got = nvtx_kernels(TRACE, by="event")
    assert got.select("name", "range", "range_name", "domain", "depth").rows() == [
        ("a", 0, "step", "nvtx", 0),
        ("b", 1, "layer", "nvtx", 1),
        ("c1", 2, "mlp", "nvtx", 2),
        ("c2", 2, "mlp", "nvtx", 2),
        ("d", 0, "step", "nvtx", 0),
        ("e", None, None, None, None),
        ("other thread", None, None, None, None),
        ("launch not in the window", None, None, None, None),
    ]
    assert got.columns == [
        "event",
        "rank",
        "start_ns",
        "dur_ns",
        "name",
        "source",
        "range",
        "range_name",
        "domain",
        "depth",
    ]


def test_ranks_processes_and_threads_are_apart():
    frames = [
        markers([("step", 0, 100, 1)], rank=rank, process=process)
        for rank, process in ((0, 1), (1, 1), (1, 2))
    ]
    kernels = [work([("k", 10 + rank, 5, 1)], rank) for rank in (0, 1)]
    runtime = [calls([(1, 5, 2, 1)], rank) for rank in (0, 1)]
    trace = Trace(
        {"markers": pl.concat(frames), "runtime": pl.concat(runtime), "kernels": pl.concat(kernels)}
    )
    got = nvtx_kernels(trace)
    assert got.select("rank", "process", "start_ns").rows() == [(0, 1, 10), (1, 1, 11)]
    rows = markers([("one", 0, 22, 1), ("two", 10, 50, 1)], nsys_style="StartEnd")
    got = nvtx_kernels(Trace({"markers": rows, "runtime": CALLS, "kernels": KERNELS}))
    # a and b in one; b, c and d in two; b is nearer to one, the shorter
    assert got.select("name", "depth", "launches", "own_kernels").rows() == [
        ("one", 0, 2, 2),
        ("two", 0, 3, 3),
    ]


def test_what_is_no_range_of_the_host_is_left_out():
    rows = pl.concat(
        [
            markers([("step", 0, 100, 1)], on_device=True),
            markers([("pause", 0, 100, 1)], domain="overhead"),
            markers([("mark", 5, 0, 1)], nsys_style="Mark"),
            markers([("elsewhere", 0, 100, 1)], nsys_style="StartEnd", nsys_end_thread=2),
            markers([("request", 0, 100, 1)], nsys_style="StartEnd"),
        ],
        how="diagonal_relaxed",
    )
    got = nvtx_kernels(Trace({"markers": rows, "runtime": CALLS, "kernels": KERNELS}))
    assert got.select("name", "kind", "range").rows() == [("request", "StartEnd", 3)]


def test_recorded_but_nothing_there():
    for empty in (
        {"markers": MARKERS.clear()},
        {"runtime": CALLS.clear()},
        {"kernels": KERNELS.clear()},
    ):
        trace = Trace({"markers": MARKERS, "runtime": CALLS, "kernels": KERNELS, **empty})
        got = nvtx_kernels(trace)
        assert got.height == 0
        assert got.schema == nvtx_kernels(TRACE).schema
        events = nvtx_kernels(trace, by="event")
        assert events.height == trace.kernels.height
        assert events["range"].null_count() == events.height
        assert events.schema == nvtx_kernels(TRACE, by="event").schema


def test_errors():
    for lacking in ("markers", "runtime"):
        with pytest.raises(NotCapturedError):
            nvtx_kernels(Trace({k: v for k, v in TRACE.tables.items() if k != lacking}))
    with pytest.raises(NotCapturedError):
        nvtx_kernels(Trace({"markers": MARKERS, "runtime": CALLS}))
    with pytest.raises(AnalysisError, match="by='stack'"):
        nvtx_kernels(TRACE, by="stack")


def test_inside_by_brute_force():
    frame = pl.DataFrame(
        {
            "key": [None, 1, 1, None, 1, 2, None, 1, 2, 1],
            "start_ns": [0, 5, 5, 3, -7, 0, 3, 9, 4, 5],
            "dur_ns": [10, 5, 0, 4, 20, 9, 4, 1, 5, 5],
        }
    )
    rows = frame.rows()
    want = [
        (i, o)
        for i, (ki, si, di) in enumerate(rows)
        for o, (ko, so, do) in enumerate(rows)
        if ki == ko and so <= si and si + di <= so + do
    ]
    assert sorted(inside(frame, frame, ["key"]).rows()) == sorted(want)
