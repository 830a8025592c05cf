"""Gaps of the device and of single streams, with hand-made causes."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from llmprof.analyze.idle import idle, idle_of, is_synchronising, stream_gaps_of
from llmprof.errors import NotCapturedError
from llmprof.trace import Trace

SCHEMA = {
    "event": pl.UInt32(),
    "rank": pl.Int32(),
    "device": pl.Int32(),
    "stream": pl.Int64(),
    "step": pl.Int32(),
    "start_ns": pl.Int64(),
    "dur_ns": pl.Int64(),
    "name": pl.String(),
    "source": pl.String(),
    "launch_start_ns": pl.Int64(),
    "launch_thread": pl.Int64(),
}
# Rank 0: the gaps of the device are [20,30) [40,50) [60,70) [80,90); stream 7 also waits [10,15) while 8 works.
EVENTS = pl.DataFrame(
    [
        (0, 0, 0, 7, 0, 0, 10, "a", "kernel", -9, 1),
        (1, 0, 0, 8, 0, 5, 15, "b", "kernel", 1, 1),
        (2, 0, 0, 7, 0, 15, 5, "c", "kernel", 2, 1),
        (3, 0, 0, 7, 0, 30, 10, "d", "kernel", 12, 1),  # launched at 12, before the gap began: queued
        (4, 0, 0, 7, 0, 50, 10, "e", "kernel", 45, 1),  # launched in the gap: the host came late
        (5, 0, 0, 7, 1, 70, 10, "f", "kernel", 66, 1),  # launched after the synchronisation [52,64) ended
        (6, 0, 0, 7, None, 90, 10, "g", "kernel", None, None),
        (7, 1, 1, 7, 0, 0, 10, "a", "kernel", 0, 2),
        (8, 1, 1, 7, 0, 12, 3, "b", "copy", 11, 2),  # the synchronising call is another thread's
    ],
    schema=SCHEMA,
    orient="row",
)
CALLS = pl.DataFrame(
    [
        (0, 1, 52, 12, "cudaStreamSynchronize"),
        (0, 1, 53, 2, "cuStreamSynchronize"),  # inside the other one; it ends before the gap begins
        (0, 1, 38, 3, "cudaMemcpyAsync"),
        (1, 3, 5, 6, "cudaDeviceSynchronize"),
    ],
    schema={
        "rank": pl.Int32(),
        "thread": pl.Int64(),
        "start_ns": pl.Int64(),
        "dur_ns": pl.Int64(),
        "name": pl.String(),
    },
    orient="row",
)


def test_causes_by_hand() -> None:
    got = idle_of(EVENTS, CALLS)
    assert got.rows() == [
        (0, 0, 0, True, 20, 10, "queued", 3, "d", 12, None),
        (0, 0, 0, True, 40, 10, "host_bound", 4, "e", 45, None),
        (0, 0, 1, False, 60, 10, "sync", 5, "f", 66, "cudaStreamSynchronize"),
        (0, 0, None, None, 80, 10, "unknown", 6, "g", None, None),
        (1, 1, 0, True, 10, 2, "host_bound", 8, "b", 11, None),
    ]


def test_a_call_in_progress_covers_the_gap_only_if_the_launch_came_after_it() -> None:
    # The synchronisation ends at 64; a launch at 62 did not wait for it (a call of the same thread cannot overlap,
    # but clocks are not perfect), so the cause is not claimed.
    early = EVENTS.with_columns(
        launch_start_ns=pl.when(pl.col("event") == 5).then(62).otherwise("launch_start_ns").cast(pl.Int64)
    )
    assert idle_of(early, CALLS)["cause"].to_list() == ["queued", "host_bound", "host_bound", "unknown", "host_bound"]


def test_without_runtime_calls_or_launches() -> None:
    assert "sync" not in idle_of(EVENTS)["cause"].to_list()
    blind = EVENTS.with_columns(launch_start_ns=pl.lit(None, dtype=pl.Int64))
    got = idle_of(blind)
    assert got.height == 5
    assert set(got["cause"]) == {"unknown"}


def test_operators_that_stand_in_for_the_device_have_no_cause() -> None:
    ops = EVENTS.with_columns(source=pl.lit("op"), launch_start_ns=pl.col("start_ns"))
    assert set(idle_of(ops)["cause"]) == {"unknown"}


def test_shortest_gap() -> None:
    assert idle_of(EVENTS, CALLS, min_ns=3)["dur_ns"].to_list() == [10] * 4
    assert idle_of(EVENTS.clear(), CALLS).height == 0


def test_order_of_the_rows_does_not_matter() -> None:
    shuffled = EVENTS.sample(fraction=1, shuffle=True, seed=3)
    assert_frame_equal(idle_of(shuffled, CALLS.reverse()), idle_of(EVENTS, CALLS))


def test_a_gap_on_one_stream_is_not_an_idle_device() -> None:
    got = stream_gaps_of(EVENTS.filter(pl.col("rank") == 0))
    of_seven = got.filter(pl.col("stream") == 7)
    assert of_seven.select("start_ns", "dur_ns", "next_name", "busy_elsewhere_ns", "share_busy_elsewhere").rows() == [
        (10, 5, "c", 5, 1.0),
        (20, 10, "d", 0, 0.0),
        (40, 10, "e", 0, 0.0),
        (60, 10, "f", 0, 0.0),
        (80, 10, "g", 0, 0.0),
    ]
    assert got.filter(pl.col("stream") == 8).height == 0


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cudaStreamSynchronize", True),
        ("cudaDeviceSynchronize_v3020", True),
        ("cuCtxSynchronize", True),
        ("hipEventSynchronize", True),
        ("aclrtSynchronizeStream", True),
        ("AscendCL@aclrtSynchronizeDevice", True),
        ("cudaMemcpy", True),
        ("cuMemcpyDtoH_v2", True),
        ("hipMemcpyWithStream", True),
        ("cudaFree", True),
        ("cudaMemcpyAsync", False),
        ("cudaMemcpy2DAsync_v3020", False),
        ("cuMemcpyDtoHAsync_v2", False),
        ("cudaStreamWaitEvent", False),
        ("cudaLaunchKernel", False),
        ("cudaFreeAsync", False),
        ("cudaFreeHost", False),
        ("cudaMemsetAsync", False),
    ],
)
def test_names_of_synchronising_calls(name: str, expected: bool) -> None:
    assert pl.select(is_synchronising(pl.lit(name))).item() is expected


def test_nothing_recorded() -> None:
    with pytest.raises(NotCapturedError):
        idle(Trace({}))


def test_causes_in_recordings(sample_trace: Callable[[str], Trace]) -> None:
    # Sums that a separate script found in the files' events.
    def causes(name: str) -> dict[str, int]:
        return dict(idle(sample_trace(name)).group_by("cause").agg(pl.col("dur_ns").sum()).rows())

    assert causes("torch_transformers_generate") == {"host_bound": 82_939_323, "sync": 1_128_097, "queued": 212_961}
    # The thread that waits for the output on rank 0 spends 0.56 s in cudaEventSynchronize; the launching thread none.
    assert "sync" not in causes("torch_tp4_eager_custom_allreduce")
