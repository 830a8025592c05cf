"""Delays from launch call to kernel, by hand."""

from __future__ import annotations

import polars as pl
import pytest

from llmprof.analyze.idle import launch_delay, launch_delay_of
from llmprof.errors import NotCapturedError
from llmprof.trace import Trace

SCHEMA = {
    "rank": pl.Int32(),
    "step": pl.Int32(),
    "start_ns": pl.Int64(),
    "source": pl.String(),
    "launch_start_ns": pl.Int64(),
    "launch_end_ns": pl.Int64(),
    "launch_thread": pl.Int64(),
}
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


def test_two_ranks_by_hand() -> None:
    got = launch_delay_of(EVENTS)
    assert got.rows(named=True) == [
        row(0, 0, kernels=3, launched=2, calls=2, host=15, median=20.0, p95=29.0, top=30, low=10),
        row(0, 1, kernels=3, launched=3, calls=1, host=30, median=60.0, p95=96.0, top=100, low=50),
        row(1, 0, kernels=1, launched=0, calls=None, host=None, median=None, p95=None, top=None, low=None),
        row(1, None, kernels=1, launched=1, calls=1, host=1, median=-2.0, p95=-2.0, top=-2, low=-2),
    ]


def row(
    rank: int,
    step: int | None,
    *,
    kernels: int,
    launched: int,
    calls: int | None,
    host: int | None,
    median: float | None,
    p95: float | None,
    top: int | None,
    low: int | None,
) -> dict[str, object]:
    return {
        "rank": rank,
        "step": step,
        "kernels": kernels,
        "launched": launched,
        "share_launched": launched / kernels,
        "calls": calls,
        "host_call_ns": host,
        "median_ns": median,
        "p95_ns": p95,
        "max_ns": top,
        "min_ns": low,
    }


def test_without_runtime_calls_or_kernels() -> None:
    kernels = pl.DataFrame({"rank": [0], "start_ns": [0], "dur_ns": [1], "name": ["gemm"]})
    with pytest.raises(NotCapturedError, match="no runtime"):
        launch_delay(Trace({"kernels": kernels}))
    with pytest.raises(NotCapturedError, match="no kernels"):
        launch_delay(Trace({}))
