"""Queues of streams by hand."""

import polars as pl

from llmprof import analyze
from llmprof.trace import Trace
from tests.analyze.builders import types_of

KERNELS = pl.DataFrame(
    [
        (0, 0, 7, 20, 30, "a", 1),
        (0, 0, 7, 50, 30, "b", 2),
        (0, 0, 7, 80, 10, "c", 3),
        (0, 0, 9, 30, 5, "d", 4),
        (0, 0, 9, 40, 5, "e", 4),  # of the same launch: a graph
        (0, 0, 9, 90, 5, "f", None),
    ],
    schema=types_of("rank", "device", "stream", "start_ns", "dur_ns", "name", "correlation"),
    orient="row",
)
CALLS = pl.DataFrame(
    [
        (0, 10, 2, "launch", 1),
        (0, 14, 2, "launch", 2),
        (0, 18, 22, "launch", 3),
        (0, 25, 2, "cudaGraphLaunch", 4),
    ],
    schema=types_of("rank", "start_ns", "dur_ns", "name", "correlation"),
    orient="row",
).with_columns(api=pl.lit("runtime"), thread=pl.lit(1))
TRACE = Trace({"kernels": KERNELS, "runtime": CALLS})


def test_over_time_and_in_sum():
    found = analyze.queue_length(TRACE, by="time")
    assert found.filter(stream=7).select("time_ns", "length").rows() == [
        (10, 1),
        (14, 2),
        (18, 3),
        (20, 2),
        (50, 1),
        (80, 0),
    ]
    assert found.filter(stream=9).select("time_ns", "length").rows() == [(25, 1), (30, 0)]
    busy, side = analyze.queue_length(TRACE, full=2).rows(named=True)
    assert (busy["count"], busy["missing_count"], busy["max_length"]) == (3, 0, 3)
    assert busy["mean_length"] == (4 * 1 + 4 * 2 + 2 * 3 + 30 * 2 + 30 * 1) / 70
    assert busy["full_ns"] == 50 - 14
    assert (
        busy["wait_ns"] == 2 + 22
    )  # the second call from 14 on, and the third, which lasts until 40
    assert (side["count"], side["missing_count"], side["max_length"]) == (1, 1, 1)
    assert (side["mean_length"], side["full_ns"], side["wait_ns"]) == (1.0, 0, 0)
    early = TRACE.kernels.filter(pl.col("correlation") == 1).with_columns(start_ns=pl.lit(8))
    found = analyze.queue_length(Trace({"kernels": early, "runtime": CALLS}), by="time")
    assert found["length"].to_list() == [0]
