import polars as pl
import pytest

from llmprof.analyze import launch_delay
from llmprof.analyze.idle import launch_delay_of
from llmprof.errors import NotCapturedError
from llmprof.trace import Trace
from tests.analyze.builders import types_of

SCHEMA = types_of(
    "rank", "step", "start_ns", "source", "launch_start_ns", "launch_end_ns", "launch_thread"
)
EVENTS = pl.DataFrame(
    [
        (0, 0, 100, "kernel", 90, 95, 1),  # delay 10
        (0, 0, 200, "kernel", 170, 180, 1),  # delay 30
        (0, 0, 300, "kernel", None, None, None),
        (0, 0, 400, "copy", 100, 110, 1),  # a copy does not count
        (0, 1, 500, "kernel", 450, 480, 1),  # one graph launch of three kernels: 50, 60 and 100
        (0, 1, 510, "kernel", 450, 480, 1),
        (0, 1, 550, "kernel", 450, 480, 1),
        (1, 0, 105, "kernel", None, None, None),
        (1, None, 10, "kernel", 12, 13, 5),  # the clocks disagree by at least 2 ns
    ],
    schema=SCHEMA,
    orient="row",
)


def test_two_ranks_by_hand():
    got = launch_delay_of(EVENTS)
    assert got.columns == [
        "rank",
        "step",
        "kernels",
        "launched",
        "launched_share",
        "launches",
        "host_dur_ns",
        "median_ns",
        "p95_ns",
        "max_ns",
        "min_ns",
    ]
    assert got.rows() == [
        (0, 0, 3, 2, 2 / 3, 2, 15, 20.0, 29.0, 30, 10),
        (0, 1, 3, 3, 1.0, 1, 30, 60.0, 96.0, 100, 50),
        (1, 0, 1, 0, 0.0, None, None, None, None, None, None),
        (1, None, 1, 1, 1.0, 1, 1, -2.0, -2.0, -2, -2),
    ]


def test_without_runtime_calls_or_kernels():
    kernels = pl.DataFrame({"rank": [0], "start_ns": [0], "dur_ns": [1], "name": ["gemm"]})
    with pytest.raises(NotCapturedError, match="no runtime"):
        launch_delay(Trace({"kernels": kernels}))
    with pytest.raises(NotCapturedError, match="no kernels"):
        launch_delay(Trace({}))
