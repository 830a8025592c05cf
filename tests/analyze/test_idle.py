"""Gaps of the device and of single streams, with hand-made causes."""

import polars as pl
import pytest

import llmprof
from llmprof.analyze import idle
from llmprof.analyze.idle import idle_of, is_synchronising, stream_gaps_of
from llmprof.analyze.idle.host import holds_the_device, innermost_within, longest_spans
from llmprof.errors import NotCapturedError
from llmprof.trace import Trace
from tests.analyze.builders import types_of

SCHEMA = types_of(
    *("event", "rank", "device", "stream", "step", "start_ns", "dur_ns", "name", "source"),
    *("launch_start_ns", "launch_end_ns", "launch_thread"),
)
US = 1_000


def us(frame):
    """Times that are written in us, in ns."""
    return frame.with_columns(pl.col("^.*_ns$") * US)


# In us. Rank 0: the gaps of the device are [20,30) [40,50) [60,70) [80,90) [100,130); stream 7 also
# waits [10,15) while 8 works. The usual time from a launch that found the device idle to its event:
# median of 5, 4 and 28, which is 5.
EVENTS = us(
    pl.DataFrame(
        [
            (0, 0, 0, 7, 0, 0, 10, "a", "kernel", -9, -8, 1),
            (1, 0, 0, 8, 0, 5, 15, "b", "kernel", 1, 2, 1),
            (2, 0, 0, 7, 0, 15, 5, "c", "kernel", 2, 3, 1),
            (
                3,
                0,
                0,
                8,
                0,
                30,
                10,
                "d",
                "kernel",
                12,
                13,
                1,
            ),  # launched at 12, before the gap began: queued
            (
                4,
                0,
                0,
                7,
                0,
                50,
                10,
                "e",
                "kernel",
                45,
                46,
                1,
            ),  # launched in the gap: the host came late
            (
                5,
                0,
                0,
                7,
                1,
                70,
                10,
                "f",
                "kernel",
                66,
                67,
                1,
            ),  # launched after the synchronisation [52,64) ended
            (6, 0, 0, 7, None, 90, 10, "g", "kernel", None, None, None),
            (
                7,
                0,
                0,
                7,
                1,
                130,
                10,
                "h",
                "kernel",
                102,
                108,
                1,
            ),  # late, then 6 in the launch, then held
            (8, 1, 1, 7, 0, 0, 10, "a", "kernel", 0, 1, 2),
            (
                9,
                1,
                1,
                7,
                0,
                12,
                3,
                "b",
                "copy",
                11,
                12,
                2,
            ),  # the synchronising call is another thread's
        ],
        schema=SCHEMA,
        orient="row",
    )
)
SPANS = us(
    pl.DataFrame(
        [
            (0, 1, 39, 8, "aten::mm", "op"),
            (0, 1, 40, 2, "aten::empty", "op"),
            (0, 1, 52, 12, "cudaStreamSynchronize", "call"),
            (
                0,
                1,
                53,
                2,
                "cuStreamSynchronize",
                "call",
            ),  # inside the other one; it ends before the gap begins
            (0, 1, 38, 1, "cudaMemcpyAsync", "call"),
            (0, 5, 104, 40, "cudaMalloc", "call"),
            (1, 3, 5, 6, "cudaDeviceSynchronize", "call"),
        ],
        schema=types_of("rank", "thread", "start_ns", "dur_ns", "name", "kind"),
        orient="row",
    )
)


def at(event=None, **us):
    """Times in us as columns (ns) of an event, or of all rows."""
    found = {name: pl.lit(value * US, dtype=pl.Int64) for name, value in us.items()}
    every = pl.lit(value=True) if event is None else pl.col("event") == event
    return [pl.when(every).then(value).otherwise(name).alias(name) for name, value in found.items()]


def parts(frame):
    """Rank, gap, start and length in us, cause."""
    return frame.select("rank", "gap", pl.col("start_ns", "dur_ns") // US, "cause").rows()


def test_causes_by_hand():
    got = idle_of(EVENTS, SPANS)
    assert parts(got) == [
        (0, 0, 20, 10, "queued"),
        (0, 1, 40, 5, "host_bound"),
        (0, 1, 45, 5, "launch"),
        (0, 2, 60, 6, "sync"),
        (0, 2, 66, 4, "launch"),
        (0, 3, 80, 10, "unknown"),
        (0, 4, 100, 2, "host_bound"),
        (0, 4, 102, 6, "launch"),
        (0, 4, 108, 22, "queued"),
        (1, 5, 10, 1, "host_bound"),
        (1, 5, 11, 1, "launch"),
    ]
    assert got.group_by("gap").agg(pl.col("dur_ns").sum() - pl.col("gap_ns").first())[
        "dur_ns"
    ].unique().to_list() == [0]
    ends = got.select(
        "rank", "device", "step", "in_step", "next_event", "next_name", "launch_start_ns"
    ).unique(maintain_order=True)
    assert ends.rows() == [
        (0, 0, 0, True, 3, "d", 12 * US),
        (0, 0, 0, True, 4, "e", 45 * US),
        (0, 0, 1, False, 5, "f", 66 * US),
        (0, 0, None, None, 6, "g", None),
        (0, 0, 1, True, 7, "h", 102 * US),
        (1, 1, 0, True, 9, "b", 11 * US),
    ]
    assert got.filter(pl.col("call").is_not_null())["gap"].to_list() == [2]


def test_a_short_wait_is_not_the_cause_of_a_long_gap(shared):
    """After a copy of 2.6 ms the host loads code for 2.7 s: without the copy it would have been
    ahead by 2.6 ms.
    """
    found = idle(llmprof.read(shared / "real/rocm/rpd_matmul_result.rpd"), min_ns=1_000_000_000)
    causes = dict(found.select("cause", "dur_ns").rows())
    assert causes["sync"] == 2_645_932  # the length of hipMemcpyWithStream in the recording
    assert (
        causes["host_bound"] == 3_087_109_415 - 349_563_056 - 2_645_932
    )  # from the gap's start to the launch
    assert found["call"].to_list()[0] == "hipMemcpyWithStream"
    apart = EVENTS.filter(pl.col("event").is_in([0, 2])).with_columns(at(2, start_ns=500))
    got = idle_of(apart)
    assert got.select("cause", "waited_kind", "after_name").rows() == [("queued", None, "a")]


def test_what_the_host_did_and_what_held_the_device():
    got = idle_of(EVENTS, SPANS)
    late = got.filter(gap=1).row(0, named=True)
    assert (late["host_name"], late["host_kind"]) == ("aten::mm", "op")
    assert late["host_share"] == pytest.approx(
        3 / 5
    )  # of [40, 45) two are in the operator inside of it
    sync = got.filter(gap=2).row(0, named=True)
    assert (sync["host_name"], sync["host_share"]) == (
        "cudaStreamSynchronize",
        pytest.approx(4 / 6),
    )
    held = got.filter(pl.col("cause") == "queued").select(
        "gap", "waited_name", "waited_kind", "after_name", "after_stream"
    )
    assert held.rows() == [
        (0, "b", "stream", "b", 8),  # b and c end when the gap begins; d follows b on its stream
        (4, "cudaMalloc", "call", "g", 7),
    ]


def test_a_range_that_outlasts_the_call_that_it_began_in_says_nothing_of_the_thread():
    spans = pl.DataFrame(
        [
            (0, 1, 2, 4, "c10d::send", "op"),
            (0, 1, 5, 21, "gloo:send", "range"),  # ends at 26, long after the call
            (0, 1, 8, 1, "aten::mm", "op"),
            (0, 1, 39, 12, "forward", "range"),
            (0, 1, 42, 2, "aten::mm", "op"),
        ],
        schema=SPANS.schema,
        orient="row",
    )
    windows = pl.DataFrame(
        {"rank": [0] * 3, "thread": [1] * 3, "start_ns": [0, 20, 40], "dur_ns": [10, 10, 10]}
    )
    windows = windows.cast({"rank": pl.Int32})
    got = longest_spans(windows, *innermost_within(windows, spans, ["rank", "thread"]))
    assert got.select("host_name", "host_kind", "host_share").rows() == [
        ("c10d::send", "op", 0.4),
        (None, None, None),
        ("forward", "range", 0.8),
    ]


def test_a_stream_that_was_told_to_wait_for_an_event():
    wait = SPANS.head(1).with_columns(
        at(start_ns=11, dur_ns=1), name=pl.lit("cudaStreamWaitEvent"), kind=pl.lit("call")
    )
    got = idle_of(EVENTS, wait).filter(gap=0)
    assert got.select("cause", "waited_kind").rows() == [("queued", "event")]
    # a wait before the stream's last launch was for that one
    early = wait.with_columns(at(start_ns=0))
    assert "event" not in idle_of(EVENTS, early)["waited_kind"].to_list()


def test_a_copy_that_waits_for_itself_is_no_long_launch():
    # a blocking copy is launched at 12 and runs at [40, 50): its call lasts to 55
    blocking = at(4, start_ns=60, launch_start_ns=41, launch_end_ns=65)
    copy = EVENTS.filter(pl.col("event").is_in([3, 4])).with_columns(blocking)
    another = EVENTS.filter(event=7).with_columns(
        at(start_ns=73, launch_start_ns=72, launch_end_ns=73)
    )
    more = another.with_columns(
        at(start_ns=86, launch_start_ns=84, launch_end_ns=85), event=pl.lit(9, dtype=pl.UInt32())
    )
    call = SPANS.head(1).with_columns(
        at(start_ns=41, dur_ns=24), name=pl.lit("hipMemcpyWithStream"), kind=pl.lit("call")
    )
    got = idle_of(pl.concat([copy, another, more]), call).filter(gap=0)
    assert parts(got) == [
        (0, 0, 40, 1, "host_bound"),
        (0, 0, 41, 2, "launch"),
        (0, 0, 43, 17, "queued"),
    ]
    assert got["waited_name"].to_list() == [None, None, "hipMemcpyWithStream"]


def test_a_call_in_progress_covers_the_gap_only_if_the_launch_came_after_it():
    # The synchronisation ends at 64; a launch at 62 did not wait for it (a call of the same thread
    # cannot overlap, but clocks are not perfect), so the cause is not claimed.
    early = EVENTS.with_columns(at(5, launch_start_ns=62))
    assert "sync" not in idle_of(early, SPANS)["cause"].to_list()


def test_without_runtime_calls_or_launches():
    assert "sync" not in idle_of(EVENTS)["cause"].to_list()
    blind = EVENTS.with_columns(launch_start_ns=pl.lit(None, dtype=pl.Int64))
    got = idle_of(blind)
    assert got.height == 6
    assert set(got["cause"]) == {"unknown"}
    ops = EVENTS.with_columns(source=pl.lit("op"), launch_start_ns=pl.col("start_ns"))
    assert set(idle_of(ops)["cause"]) == {"unknown"}
    with pytest.raises(NotCapturedError):
        idle(Trace({}))


def test_a_gap_on_one_stream_is_not_an_idle_device():
    got = stream_gaps_of(EVENTS.filter(pl.col("rank") == 0))
    of_seven = got.filter(pl.col("stream") == 7)
    rows = of_seven.select(
        pl.col("start_ns", "dur_ns") // US,
        "next_name",
        pl.col("busy_ns") // US,
        "busy_share",
    ).rows()
    assert rows == [
        (10, 5, "c", 5, 1.0),
        (20, 30, "e", 10, pytest.approx(1 / 3)),
        (60, 10, "f", 0, 0.0),
        (80, 10, "g", 0, 0.0),
        (100, 30, "h", 0, 0.0),
    ]
    assert got.filter(pl.col("stream") == 8)["busy_ns"].to_list() == [0]


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
def test_names_of_synchronising_calls(name, expected):
    assert pl.select(is_synchronising(pl.lit(name))).item() is expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("hipMemcpyWithStream", True),
        ("cudaMalloc_v3020", True),
        ("cudaFree", True),
        ("cuModuleLoadData", True),
        ("cudaGraphInstantiateWithFlags_v11040", True),
        ("AscendCL@aclrtMalloc", True),
        ("cudaStreamSynchronize", False),  # waits for the device and does not hold it
        ("cudaMallocAsync", False),
        ("cudaMemcpyAsync", False),
        ("cudaLaunchKernel", False),
    ],
)
def test_names_of_calls_that_hold_the_device(name, expected):
    assert pl.select(holds_the_device(pl.lit(name))).item() is expected


def test_causes_in_recordings(sample_trace):
    found = idle(sample_trace("torch_transformers_generate"))
    # sums of whole gaps that a separate script found in the file's events, by what their launch
    # says
    late = found.filter(pl.col("launch_start_ns") > pl.col("start_ns").min().over("gap"))
    by_sync = late.group_by("gap").agg(
        pl.col("gap_ns").first(), sync=(pl.col("cause") == "sync").any()
    )
    sums = dict(by_sync.group_by("sync").agg(pl.col("gap_ns").sum()).rows())
    assert sums == {False: 82_939_323, True: 1_128_097}
    assert found["dur_ns"].sum() == 82_939_323 + 1_128_097 + 212_961
    # The thread that waits for the output on rank 0 spends 0.56 s in cudaEventSynchronize; the
    # launching thread none.
    assert "sync" not in idle(sample_trace("torch_tp4_eager_custom_allreduce"))["cause"].to_list()
