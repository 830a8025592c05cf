"""Dependencies, critical path and predictions of hand-built recordings, with answers computed by
hand.
"""

import gzip
import itertools
import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from msgspec.structs import replace

import llmprof
from llmprof import analyze
from llmprof.analyze import changes, critical_path, slack, what_if
from llmprof.errors import AnalysisError, LlmprofError, NotCapturedError
from llmprof.replay.graph import (
    ASSUMED,
    COLLECTIVE,
    EVIDENCE,
    HANDED_OVER,
    LAUNCH,
    LOADING,
    SCHEDULED,
    STREAM_WAIT,
    SYNCHRONISE,
    graph,
)
from llmprof.replay.plan import ReplayPlan
from llmprof.replay.schedule import NEVER, Chains, earliest
from llmprof.replay.slack import known_slack, unknown_slack
from llmprof.replay.what_if import lasting_gains, moved_in_words, replay_changes
from llmprof.trace import Trace
from llmprof.trace.kept import keep
from tests.analyze.builders import GEMM, NCCL_ALL_REDUCE, NORM, kernels, labels, launches, ops
from tests.samples import sample

US = 1_000

CALL = "cudaLaunchKernel"


def host(rows, thread=1):
    """Calls from ``(rank, start, duration, name, correlation)`` in us."""
    return pl.DataFrame(
        [
            (rank, thread, start * US, dur * US, name, "runtime", launch)
            for rank, start, dur, name, launch in rows
        ],
        schema={
            "rank": pl.Int32,
            "thread": pl.Int64,
            "start_ns": pl.Int64,
            "dur_ns": pl.Int64,
            "name": pl.String,
            "api": pl.String,
            "correlation": pl.Int64,
        },
        orient="row",
    )


def device(rows):
    """Kernels from ``(rank, stream, start, duration, name, correlation)`` in us."""
    return pl.DataFrame(
        [
            (rank, 0, stream, start * US, dur * US, name, c)
            for rank, stream, start, dur, name, c in rows
        ],
        schema={
            "rank": pl.Int32,
            "device": pl.Int32,
            "stream": pl.Int64,
            "start_ns": pl.Int64,
            "dur_ns": pl.Int64,
            "name": pl.String,
            "correlation": pl.Int64,
        },
        orient="row",
    )


def step_labels(starts, dur, rank=0):
    return labels(
        [("execute_context_0(0)_generation_1(1)", start * US, dur * US) for start in starts],
        rank=rank,
    )


def host_bound():
    """Three steps of 100 us: the host launches two kernels, 40 us apart; each takes 10 us and
    begins 5 us after.
    """
    calls, work = [], []
    for step in range(3):
        for n in range(2):
            at, correlation = step * 100 + 10 + n * 40, step * 2 + n + 1
            calls.append((0, at, 4, CALL, correlation))
            work.append((0, 7, at + 5, 10, [NORM, GEMM][n], correlation))
    return Trace(
        {"kernels": device(work), "runtime": host(calls), "markers": step_labels([0, 100, 200], 90)}
    )


def device_bound():
    """Three steps of 100 us: two kernels of 49 us, 1 us apart, launched long before; the host
    waits for each step.
    """
    calls, work = [], []
    for step in range(3):
        for n in range(2):
            correlation = step * 2 + n + 1
            calls.append((0, step * 100 + 2 * n, 1, CALL, correlation))
            work.append((0, 7, step * 100 + 5 + n * 50, 49, [NORM, GEMM][n], correlation))
        calls.append((0, step * 100 + 10, 85, "cudaStreamSynchronize", None))
    # the wait ends 95 us into each step, though its work ends at 104: the next launch does not wait
    # for it
    return Trace(
        {"kernels": device(work), "runtime": host(calls), "markers": step_labels([0, 100, 200], 99)}
    )


def two_ranks():
    """One all-reduce: rank 1 comes 60 us after rank 0, since its host is late; the transfer
    takes 5 us.
    """
    work = [
        (0, 7, 10, 20, GEMM, 1),
        (0, 7, 31, 64, NCCL_ALL_REDUCE, 2),
        (0, 7, 96, 10, NORM, 3),
        (1, 7, 70, 19, GEMM, 1),
        (1, 7, 90, 5, NCCL_ALL_REDUCE, 2),
        (1, 7, 96, 10, NORM, 3),
    ]
    calls = [(0, 2, 2, CALL, 1), (0, 6, 2, CALL, 2), (0, 10, 2, CALL, 3)]
    calls += [(1, 62, 2, CALL, 1), (1, 66, 2, CALL, 2), (1, 70, 2, CALL, 3)]
    kernels = device(work)
    table = kernels.filter(pl.col("name") == NCCL_ALL_REDUCE).with_columns(
        kind=pl.lit("all_reduce"),
        evidence=pl.lit("metadata"),
        bytes_source=pl.lit("metadata"),
        on_device=pl.lit(value=True),
        world=pl.lit(2, dtype=pl.Int32),
        bytes=pl.lit(1_000_000, dtype=pl.Int64),
        group=pl.lit("tp"),
    )
    return Trace(
        {"kernels": kernels, "runtime": host(calls), "collectives": table}, {"world_size": 2}
    )


def test_a_cycle_is_refused():
    cycle = Chains(
        bounds=np.array([0, 2, 4]),
        weight=np.zeros(4, dtype=np.int64),
        origin=np.array([0, NEVER, 0, NEVER]),
        source=np.array([1, 3]),
        target=np.array([2, 0]),
        delay=np.zeros(2, dtype=np.int64),
    )
    with pytest.raises(AnalysisError, match="cycle"):
        earliest(cycle)
    with pytest.raises(NotCapturedError):
        graph(Trace({}))


@pytest.mark.parametrize("build", [host_bound, device_bound, two_ranks])
def test_without_a_change_the_recorded_times_come_out(build):
    built = graph(build())
    assert earliest(built.schedule()).tolist() == built.time.tolist()
    assert (built.rest >= 0).all()
    assert set(built.kind.tolist()) <= set(range(8))


def test_edges_of_launches_and_of_a_wait():
    built = graph(device_bound())
    edges = pl.DataFrame(
        {"kind": built.kind, "source": built.source // 2, "target": built.target // 2}
    )
    names = built.events["name"]
    launches = edges.filter(pl.col("kind") == LAUNCH)
    assert launches.height == 6
    assert set(names.gather(launches["source"])) == {CALL}
    # 10 to 95 us of the first step: the norm (5 to 54) was launched before and done; the GEMM (55
    # to 104) was not
    waits = edges.filter(pl.col("kind") == SYNCHRONISE)
    assert names.gather(waits["source"]).to_list() == [NORM] * 3


def edges_of(built, kind):
    """Name at the source and at the target, delay in us, and evidence of the edges of a kind."""
    name = built.events["name"].to_list()
    return [
        (name[s // 2], name[t // 2], d // US, EVIDENCE[e])
        for s, t, d, k, e in zip(
            built.source, built.target, built.delay, built.kind, built.evidence, strict=True
        )
        if k == kind
    ]


def two_streams(*, recorded, told=True):
    """A GEMM of 30 us on stream 7, an event behind it, and a norm on stream 8 that waits for it: it
    begins 2 us after.

    Then another GEMM on stream 7, and the host waits for the event of the first one: it returns 4
    us after its end.
    """
    work = [(0, 7, 5, 30, GEMM, 1), (0, 8, 37, 10, NORM, 4), (0, 7, 60, 40, GEMM, 5)]
    calls = [
        (0, 0, 2, CALL, 1),
        (0, 3, 1, "cudaEventRecord", 2),
        (0, 5, 1, "cudaStreamWaitEvent", 3),
        (0, 7, 2, CALL, 4),
        (0, 10, 2, CALL, 5),
        (0, 13, 26, "cudaEventSynchronize", 6),
        (0, 40, 70, "cudaDeviceSynchronize", 7),
    ]
    runtime = host(calls)
    if recorded:
        call = 2 if told else None
        runtime = runtime.with_columns(
            torch_waiting_stream=pl.Series([None, None, 8, None, None, None, None], dtype=pl.Int64),
            torch_awaited_stream=pl.Series([None, None, 7, None, None, 7, None], dtype=pl.Int64),
            torch_awaited_call=pl.Series(
                [None, None, call, None, None, call, None], dtype=pl.Int64
            ),
        )
    return Trace({"kernels": device(work), "runtime": runtime})


@pytest.mark.parametrize("told", [True, False])
def test_a_recorded_wait_of_a_stream_is_an_edge(told):
    built = graph(two_streams(recorded=True, told=told))
    assert edges_of(built, STREAM_WAIT) == [(GEMM, NORM, 2, "recorded")]
    assert edges_of(built, ASSUMED) == []
    # both waits of the host are for what they name: the event of the first GEMM, and all there is
    waits = edges_of(built, SYNCHRONISE)
    assert waits == [
        (GEMM, "cudaEventSynchronize", 4, "recorded"),
        (GEMM, "cudaDeviceSynchronize", 10, "recorded"),
    ]
    assert (built.rest >= 0).all()
    # the launch does not hold the norm, the event does: with a GEMM of 15 us (5 to 20) it begins at
    # 22
    trace = two_streams(recorded=True, told=told)
    plan = ReplayPlan(built, "middle")
    changes.scale("nvjet", 0.5).apply(plan, trace)
    norm = built.events["name"].to_list().index(NORM)
    assert plan.times()[2 * norm] == 22 * US


def test_a_wait_between_streams_is_seen_in_the_calls_alone():
    # GEMM launched on stream 7, an event recorded, a stream made to wait, NORM launched on stream 8
    built = graph(two_streams(recorded=False))
    assert edges_of(built, ASSUMED) == [(GEMM, NORM, 2, "assumed")]
    # with a GEMM of 15 us (5 to 20) the norm begins at 22
    plan = ReplayPlan(built, "middle")
    changes.scale("nvjet", 0.5).apply(plan, two_streams(recorded=False))
    assert plan.times()[2 * built.events["name"].to_list().index(NORM)] == 22 * US
    # The norm begins 3 us after its launch, when the GEMM is long done; it would wait for a longer
    # one.
    work = [(0, 7, 5, 10, GEMM, 1), (0, 8, 53, 10, NORM, 4)]
    calls = [
        (0, 0, 2, CALL, 1),
        (0, 3, 1, "cudaEventRecord", 2),
        (0, 5, 1, "cudaStreamWaitEvent", 3),
    ]
    trace = Trace({"kernels": device(work), "runtime": host([*calls, (0, 50, 2, CALL, 4)])})
    built = graph(trace)
    # the time between the two, 38 us, is no wait for an event: that takes 1 us
    assert edges_of(built, ASSUMED) == [(GEMM, NORM, 1, "assumed")]
    plan = ReplayPlan(built, "middle")
    changes.scale("nvjet", 10).apply(plan, trace)
    assert plan.times()[2 * built.events["name"].to_list().index(NORM)] == (5 + 100 + 1) * US
    # A norm on stream 8 begins 2 us after a GEMM, and 1 us after a kernel that was launched when it
    # already waited.
    work = [
        (0, 7, 5, 100, GEMM, 1),
        (0, 8, 107, 10, NORM, 2),
        (0, 7, 105, 1, "elementwise_kernel", 3),
    ]
    calls = [(0, 0, 2, CALL, 1), (0, 7, 2, CALL, 2), (0, 20, 2, CALL, 3)]
    built = graph(Trace({"kernels": device(work), "runtime": host(calls)}))
    assert edges_of(built, ASSUMED) == [(GEMM, NORM, 2, "assumed")]


def waiting_thread():
    """A thread that only waits: for a GEMM of 50 us, then for a norm that was launched while it
    still did.
    """
    work = [(0, 7, 5, 50, GEMM, 1), (0, 7, 56, 44, NORM, 2), (0, 7, 205, 10, NORM, 3)]
    launches = host([(0, 0, 2, CALL, 1), (0, 10, 2, CALL, 2), (0, 200, 2, CALL, 3)])
    waits = host(
        [
            (0, at, dur, "cudaEventSynchronize", n)
            for at, dur, n in ((4, 53, 11), (60, 42, 12), (206, 12, 13))
        ],
        thread=2,
    )
    return Trace({"kernels": device(work), "runtime": pl.concat([launches, waits])})


def test_a_thread_that_still_waits_is_not_late_by_itself():
    trace = waiting_thread()
    built = graph(trace)
    # it began 4 and 6 us after two launches, and 50 us after the third, but 3 us after its own wait
    # before
    handed = sorted(delay for *_, delay, _ in edges_of(built, HANDED_OVER))
    assert handed == [4, 4, 6]
    plan = ReplayPlan(built, "middle")
    changes.scale("nvjet", 0.2).apply(plan, trace)
    begin = [
        2 * row for row, name in enumerate(built.events["name"]) if name == "cudaEventSynchronize"
    ]
    # the GEMM ends at 15 instead of 55, its wait at 17 and the next one begins at 20
    assert plan.times()[begin[1]] == 20 * US


def test_a_thread_begins_after_the_one_that_stopped_launching():
    """The main thread launches until 12 us, the backward thread from 500 to 522, the main thread
    again from 900.
    """
    main = host([(0, at, 2, CALL, at) for at in (1, 10, 900)])
    backward = host([(0, at, 2, CALL, at) for at in (500, 520)], thread=2)
    work = [(0, 7, at + 5, 3, GEMM, at) for at in (1, 10, 500, 520, 900)]
    trace = Trace({"kernels": device(work), "runtime": pl.concat([main, backward])})
    assert sorted(delay for *_, delay, _ in edges_of(graph(trace), HANDED_OVER)) == [378, 488]
    path = critical_path(trace)
    assert path["dur_ns"].sum() == 907 * US  # from the first call's begin to the last kernel's end
    assert path.filter(part="unexplained").is_empty()
    # without the first launch the threads begin as much later after each other
    plan = ReplayPlan(graph(trace), "middle")
    changes.scale("host", 0.5).apply(plan, trace)
    assert plan.times().max() < 0.55 * 908 * US


def test_where_the_host_is_slow_the_path_is_on_the_host():
    path = critical_path(host_bound())
    # from the end of one step's GEMM (65 us into the step) to the next one's: 100 us, all of them
    # the host's but for the launch (5) and the kernel (10) at the very end, which only the last
    # step has on its path
    by_step = path.group_by("step").agg(pl.col("dur_ns").sum()).sort("step")
    assert by_step["dur_ns"].to_list() == [65 * US - 10 * US, 100 * US, 100 * US]
    middle = path.filter(pl.col("step") == 1).group_by("part").agg(pl.col("dur_ns").sum())
    assert dict(middle.rows()) == {"host": 92 * US, "host call": 8 * US}
    last = dict(
        path.filter(pl.col("step") == 2).group_by("part").agg(pl.col("dur_ns").sum()).rows()
    )
    # 165 to 250 us, in which one call of 4 us lies
    assert last == {"host": 81 * US, "host call": 4 * US, "launch": 5 * US, "compute": 10 * US}


@pytest.mark.parametrize(
    ("name", "dur", "told"),
    [
        ("batch", 40, "batch"),
        ("batch", 20, None),
        ("ProfilerStep#3", 46, None),
    ],
)
def test_a_gap_before_the_first_call_of_a_thread_is_named_by_what_ran(name, dur, told):
    """A thread's first call comes at 50 us; it did not run before, and the other thread did not
    stop launching.
    """
    calls = pl.concat(
        [
            host([(0, 0, 2, CALL, 2), (0, 60, 2, CALL, 3)]),
            host([(0, 50, 2, "cudaMemsetAsync", 1)], thread=2),
        ]
    )
    work = device([(0, 8, 5, 1, NORM, 2), (0, 7, 55, 10, GEMM, 1), (0, 8, 63, 1, NORM, 3)])
    trace = Trace({"kernels": work, "runtime": calls, "ops": ops([(name, 3 * US, dur * US, 0)])})
    path = critical_path(trace).select("part", "name", "dur_ns").rows()
    assert path == [
        ("unexplained", told, 50 * US),
        ("launch", GEMM, 5 * US),
        ("compute", GEMM, 10 * US),
    ]


def test_a_wait_for_work_that_was_launched_before_the_recording():
    """GEMMs at 0, 30 and 60 us were launched before; the host waits for them from 10 to 92, then
    launches another.
    """
    calls = host([(0, 10, 82, "cudaStreamSynchronize", None), (0, 94, 2, CALL, 4)])
    work = device(
        [(0, 7, at, 30, GEMM, n) for n, at in enumerate((0, 30, 60))] + [(0, 7, 100, 10, NORM, 4)]
    )
    trace = Trace({"kernels": work, "runtime": calls})
    path = critical_path(trace)
    assert dict(path.group_by("part").agg(pl.col("dur_ns").sum()).rows()) == {
        "compute": 100 * US,
        "synchronise": 2 * US,
        "host": 2 * US,
        "launch": 6 * US,
    }
    # without them: the call begins at 10 and takes 10 of its own, then 2 of the host, 6 and 10
    # until the kernel ends
    plan = ReplayPlan(graph(trace), "middle")
    changes.scale("nvjet", 0.0).apply(plan, trace)
    assert plan.times().max() == 38 * US


def test_what_was_launched_before_the_recording_waits_for_nothing_that_was_launched_in_it():
    """Work on stream 8, the last of which is launched at 96 us, and a GEMM on stream 7 that ends
    at 35 us.
    """
    last, begun = (0, 8, 100, 10, NORM, 9), (0, 96, 2, CALL, 9)
    # a norm at 37 us was launched before the recording, so it does not wait for a GEMM that is
    # launched at 0
    work = device([(0, 7, 5, 30, GEMM, 1), (0, 8, 1, 3, NORM, 98), (0, 8, 37, 10, NORM, 99), last])
    calls = [(0, 0, 2, CALL, 1), begun]
    assert edges_of(graph(Trace({"kernels": work, "runtime": host(calls)})), ASSUMED) == []
    # nor does it wait for the event that stream 8 is told at 6 us to wait for, but the norm at 100
    # us does
    calls = [
        (0, 0, 2, CALL, 1),
        (0, 3, 1, "cudaEventRecord", 2),
        (0, 6, 1, "cudaStreamWaitEvent", 3),
        begun,
    ]
    streams = {"waiting": [None, None, 8, None], "awaited": [None, None, 7, None]}
    told = [pl.Series(f"torch_{name}_stream", values, pl.Int64) for name, values in streams.items()]
    built = graph(Trace({"kernels": work, "runtime": host(calls).with_columns(told)}))
    (edge,) = np.flatnonzero(built.kind == STREAM_WAIT)
    assert built.time[[built.source[edge], built.target[edge]]].tolist() == [35 * US, 100 * US]
    # a norm that is launched at 2 us waits for a GEMM that was launched before
    work = device([(0, 7, 5, 130, GEMM, 99), (0, 7, 160, 10, GEMM, 9), (0, 8, 137, 10, NORM, 1)])
    built = graph(Trace({"kernels": work, "runtime": host([(0, 2, 2, CALL, 1), begun])}))
    assert edges_of(built, ASSUMED) == [(GEMM, NORM, 2, "assumed")]
    # and a call that loads code waits for such work, although it begins only after this call
    work = device([(0, 7, 150, 900, GEMM, 99), (0, 7, 1_110, 10, NORM, 1)])
    calls = [(0, 100, 1_000, "cuKernelSetAttribute", None), (0, 1_102, 2, CALL, 1)]
    built = graph(Trace({"kernels": work, "runtime": host(calls)}))
    assert edges_of(built, LOADING) == [(GEMM, "cuKernelSetAttribute", 50, "assumed")]


@pytest.mark.parametrize(
    ("call", "part"), [("cudaFree", "device held"), ("cudaStreamSynchronize", "unexplained")]
)
def test_work_that_a_call_of_another_thread_holds_is_not_unexplained(call, part):
    """A GEMM is launched at 20 us and begins at 200; another thread is in a call from 30 to 198."""
    calls = pl.concat(
        [
            host([(0, 0, 2, CALL, 1), (0, 20, 2, CALL, 2)]),
            host([(0, 30, 168, call, None)], thread=2),
        ]
    )
    work = device([(0, 7, 5, 10, NORM, 1), (0, 7, 200, 10, GEMM, 2)])
    path = critical_path(Trace({"kernels": work, "runtime": calls}))
    assert path["dur_ns"].sum() == 210 * US
    (longest,) = path.sort("dur_ns").tail(1).select("part", "name", "evidence").rows()
    assert longest == (
        part,
        call if part == "device held" else GEMM,
        "assumed" if part == "device held" else None,
    )


def test_slack_of_kernels_and_why_it_is_unknown():
    # rank 0 waits in its all-reduce from 31 us for rank 1, which comes at 90: its GEMM may end at
    # 89 instead of 30
    found = slack(two_ranks(), by=("rank", "name", "category"))
    gemm = found.filter(pl.col("name") == GEMM).sort("rank")
    assert gemm["slack_ns"].to_list() == [59 * US, 0]
    assert known_slack(two_ranks())["reason"].null_count() == 6
    assert unknown_slack(two_ranks()) == ""

    # one rank alone: its all-reduce is not matched, so another rank may wait for what runs before
    # the end of it
    alone = Trace(
        {name: table.filter(rank=0) for name, table in two_ranks().tables.items()},
        {"world_size": 2},
    )
    known = known_slack(alone)
    assert known["slack_ns"].to_list() == [None, None, 0]
    assert known["reason"][0].startswith("a collective after it was not matched")

    # groups of the path: what is not known of one event is not known of its group
    shares = slack(alone, by=["name"]).select("name", "slack_ns", "pace_slack_ns")
    assert [row for row in shares.rows() if row[0] == GEMM] == [(GEMM, None, None)]
    assert slack(alone).select("slack_ns", "pace_slack_ns", "reason").row(2) == (0, 0, None)
    assert slack(two_ranks(), by=["name"])["slack_ns"].null_count() == 0

    # without the calls of the host nothing is known
    silent = Trace({"kernels": host_bound().kernels})
    assert known_slack(silent)["slack_ns"].null_count() == 6
    assert (
        unknown_slack(silent)
        == "the host's calls were not recorded, so what waits for it is not known"
    )


def test_a_late_rank_is_on_the_path():
    path = critical_path(two_ranks(), rank=0)
    # rank 0 waits in the all-reduce for rank 1, whose host launched late
    assert path.filter(pl.col("part") == "transfer").select("dur_ns").item() == 5 * US
    before = path.filter(pl.col("start_ns") < 90 * US)
    assert before["rank"].unique().to_list() == [1]
    assert path["dur_ns"].sum() == 106 * US - 2 * US
    with pytest.raises(LlmprofError, match="no rank 5"):
        critical_path(two_ranks(), rank=5)
    whole = two_ranks()
    tables = {name: frame.filter(pl.col("rank") == 0) for name, frame in whole.tables.items()}
    alone = Trace(tables, {"world_size": 2, "missing_ranks": [1]})
    path = critical_path(alone)
    assert set(path["rank"]) == {0}
    # the collective is as long as it was recorded: what of it was waiting cannot be known
    assert path.filter(pl.col("part") == "communication")["dur_ns"].to_list() == [64 * US]
    assert path.filter(pl.col("part") == "transfer").is_empty()
    assert slack(alone, by=["name"]).filter(name=NCCL_ALL_REDUCE)["path_ns"].to_list() == [64 * US]
    with pytest.raises(AnalysisError, match="no collective of this recording is matched"):
        what_if(alone, changes.balance())


def step(found):
    return found.select("recorded_ns", "predicted_ns", "low_ns", "high_ns").row(0, named=True)


def test_faster_kernels_change_nothing_where_the_host_sets_the_pace():
    got = step(what_if(host_bound(), changes.scale("norm", 0.5)))
    # of three steps the last lasts to its own end
    assert (got["recorded_ns"], got["predicted_ns"]) == (pytest.approx(250 * US / 3),) * 2
    got = step(what_if(host_bound(), changes.scale("host", 0.5)))
    assert got["predicted_ns"] == pytest.approx((2 * 50 + 30) * US / 3)


def eager_model():
    """Three steps of 700 us: seven calls of 1 us, 100 us apart, each for work of 2 us that begins 3
    us after it.

    In the order of a step: input, embedding, norm of a layer, copy, all-reduce of the layer, final
    norm, sampling.
    """
    names = [
        "input_kernel",
        "embedding_kernel",
        NORM,
        "Memcpy DtoD",
        "cross_device_reduce_1stage",
        NORM,
        "sample",
    ]
    calls = [(0, 700 * s + 100 * n, 1, CALL, 7 * s + n + 1) for s in range(3) for n in range(7)]
    work = [
        (0, 7, 700 * s + 100 * n + 3, 2, names[n], 7 * s + n + 1)
        for s in range(3)
        for n in range(7)
    ]
    trace = Trace(
        {
            "kernels": device(work),
            "runtime": host(calls),
            "markers": step_labels([0, 700, 1_400], 690),
        }
    )
    built = graph(trace)
    place = (pl.col("recorded_ns") // (100 * US)) % 7
    stages = [None, "embedding", "norm", "all_reduce", "all_reduce", "final_norm", "sampling"]
    events = built.events.with_columns(
        layer=pl.when((pl.col("where") == "device") & place.is_between(2, 4)).then(
            pl.lit(0, dtype=pl.Int32)
        ),
        stage=pl.when(pl.col("where") == "device").then(
            place.replace_strict(dict(enumerate(stages)))
        ),
        source=pl.when(pl.col("name") == "Memcpy DtoD").then(pl.lit("copy")).otherwise("source"),
        step=pl.when(pl.col("where") == "device").then(
            (pl.col("recorded_ns") // (700 * US)).cast(pl.Int32)
        ),
    )
    return replace(built, events=events), trace


@pytest.mark.parametrize(
    ("level", "period"),
    [
        # from the last launch of the model to the first of the next step: three gaps of 99 us and
        # two calls of 1 us
        ("low", 299 / 2 + 10),
        ("middle", 299 + 30),
        (
            "high",
            299 + 401,
        ),  # the call of the graph takes no longer than the five calls and four gaps it stands for
    ],
)
def test_the_model_runs_as_a_graph_from_embedding_to_final_norm(level, period):
    built, trace = eager_model()
    keep(trace, graph, built)
    plan = ReplayPlan(built, level)
    changes.no_host_delay().apply(plan, trace)
    times = plan.times()
    names = built.events["name"].to_list()
    samples = [times[2 * row] for row, name in enumerate(names) if name == "sample"]
    assert [after - before for before, after in itertools.pairwise(samples)] == [period * US] * 2
    if level == "middle":
        # embedding at the end of the call (130), norm 0.45 us after it, no copy, all-reduce 0.45 us
        # after the norm
        begin = [
            int(times[2 * names.index(name)])
            for name in ("embedding_kernel", NORM, "cross_device_reduce_1stage")
        ]
        assert begin == [130_000, 132_450, 134_900]


def test_without_a_late_rank_nobody_waits():
    trace = two_ranks()
    built = graph(trace)
    assert (built.kind == COLLECTIVE).sum() == 2
    got = what_if(trace, changes.balance())
    # rank 0: 10 to 30, gap 1, transfer 5, gap 1, norm 10: 10 to 47 = 37 us; rank 1 as recorded: 70
    # to 106 = 36 us
    assert got["predicted_ns"].to_list() == [36.5 * US]
    assert got["recorded_ns"].to_list() == [(96 + 36) / 2 * US]
    # The first step waits 60 us in an all-reduce. Without it only the end of this step moves.
    waits = two_ranks()
    more = device([(rank, 7, 200, 10, GEMM, 4) for rank in (0, 1)])
    kernels = pl.concat([waits.kernels.select(more.columns), more])
    calls = host([(rank, 190, 2, CALL, 4) for rank in (0, 1)])
    runtime = pl.concat([waits.runtime.select(calls.columns), calls])
    starts = pl.concat([step_labels([0, 180], 175, rank) for rank in (0, 1)])
    trace = Trace(
        {
            "kernels": kernels,
            "runtime": runtime,
            "collectives": waits.collectives,
            "markers": starts,
        },
        {"world_size": 2},
    )
    found = what_if(trace, changes.balance())
    # the next steps begin at 200 us: without waiting rank 0's first still lasts until then
    assert found["recorded_ns"].to_list() == found["predicted_ns"].to_list()
    assert moved_in_words(found.row(0, named=True)) == ""
    unchanged = what_if(trace).row(0, named=True)
    assert unchanged["moved"] == 0
    assert moved_in_words(unchanged) == ""


def code_loaded(*, recorded, device_idle=False):
    """One all-reduce, in which rank 0 waits 19 ms for rank 1; then each rank launches a kernel for
    the first time.

    Before this the host needs 1.998 ms. On rank 0 it also waits until its all-reduce has ended, and
    launches 0.095 ms after that. ``device_idle``: rank 0's host takes as long as before, but its
    device was idle long before the launch.
    """
    late = 2_000 if device_idle else 20_000
    work = [
        (0, 7, 1_005, late - 1_000, NCCL_ALL_REDUCE, 1),
        (0, 7, 20_105, 1_000, "sample", 2),
        (1, 7, late, 5, NCCL_ALL_REDUCE, 1),
        (1, 7, late + 2_002, 1_000, "sample", 2),
    ]
    calls = [
        (0, 1_000, 2, CALL, 1),
        (0, 20_100, 2, CALL, 2),
        (1, late - 5, 4, CALL, 1),
        (1, late + 1_997, 2, CALL, 2),
    ]
    if recorded:
        calls += [
            (0, 3_000, 17_100, "cuKernelSetAttribute", None),
            (1, late + 1_990, 1, "cuKernelSetAttribute", None),
        ]
    kernels = device(work)
    table = kernels.filter(pl.col("name") == NCCL_ALL_REDUCE).with_columns(
        kind=pl.lit("all_reduce"),
        evidence=pl.lit("metadata"),
        bytes_source=pl.lit("metadata"),
        on_device=pl.lit(value=True),
        world=pl.lit(2, dtype=pl.Int32),
        bytes=pl.lit(1_000_000, dtype=pl.Int64),
        group=pl.lit("tp"),
    )
    return Trace(
        {"kernels": kernels, "runtime": host(calls), "collectives": table}, {"world_size": 2}
    )


@pytest.mark.parametrize(("recorded", "call"), [(False, CALL), (True, "cuKernelSetAttribute")])
def test_a_host_that_loads_code_waits_for_its_device(recorded, call):
    trace = code_loaded(recorded=recorded)
    built = graph(trace)
    assert edges_of(built, LOADING) == [(NCCL_ALL_REDUCE, call, 95, "assumed")]
    plan = ReplayPlan(built, "middle")
    assert (plan.times() == built.time).all()
    changes.balance().apply(plan, trace)
    first = built.events.filter((pl.col("rank") == 0) & (pl.col("name") == "sample"))["row"][0]
    # rank 0's all-reduce ends at 1.010 ms. Without a recorded call the host needs 1.998 ms from
    # 1.002, and launches at 3.000; the recorded call begins at 3.000 and takes its own time, that
    # of the fastest tenth of its name
    own = int(
        built.events.filter(pl.col("name") == "cuKernelSetAttribute")["dur_ns"].quantile(0.1) or 0
    )
    assert plan.times()[2 * first] == 3_005 * US + min(own, 10_000)


def test_another_link_changes_the_transfer_alone():
    # 2 us and 1 MB at 100 GB/s, times 2 (n - 1) / n = 1: 12 us instead of 5
    got = what_if(two_ranks(), changes.transfer(bandwidth=100, latency=2))
    assert got["predicted_ns"].to_list() == [(96 + 36) / 2 * US + 7 * US]
    with pytest.raises(AnalysisError, match="got no change"):
        changes.transfer()


def test_work_can_be_removed_and_fused():
    kernels = device([(0, 7, 10 + 11 * n, 10, NORM, n + 1) for n in range(4)])
    calls = host([(0, n, 1, CALL, n + 1) for n in range(4)])
    trace = Trace({"kernels": kernels, "runtime": calls})
    # three gaps of 1 us and three kernels fall into one of 10 to 40 us
    got = step(what_if(trace, changes.fuse("rms_norm")))
    assert (got["recorded_ns"], got["low_ns"], got["predicted_ns"], got["high_ns"]) == (
        43 * US,
        10 * US,
        25 * US,
        40 * US,
    )
    got = step(what_if(trace, changes.remove("norm")))
    assert got["predicted_ns"] == 0
    with pytest.raises(AnalysisError, match="factor"):
        changes.scale("norm", -1)
    with pytest.raises(AnalysisError, match="group has 0 ranks"):
        changes.tensor_parallel(0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (changes.scale("no such stage", 0.5), "matches nothing"),
        (changes.scale("(", 0.5), "no regular expression"),
        (changes.balance(), "no collective"),
        (changes.transfer(bandwidth=100), "no collective"),
        (changes.fuse("gemm|nvjet"), "follow each other"),
        (changes.no_host_delay(phases=("decode",)), "no kernel"),
        (changes.tensor_parallel(2), "no stage"),
    ],
)
def test_a_change_that_matches_nothing_says_so(change, message):
    with pytest.raises(AnalysisError, match=message):
        what_if(host_bound(), change)


CAPTURES = [
    "torch_tp1_eager",
    "torch_tp1_cudagraph",
    "torch_tp1_moe_eager",
    "torch_tp4_eager_nccl",
    "torch_pp2_eager",
    "torch_tp4_eager_custom_allreduce",
    "torch_tp4_cudagraph",
    "torch_transformers_generate",
    "nsys_tp2_cudagraph",
    "nsys_tp4_eager_nccl",
    "nsys_tp1_layer_nvtx",
    "nsys_transformers_generate",
    "torch_cpu_tp2_layer_annotations",
]

REAL = [
    "chrome/hta/critical_path__alexnet__benchmark_result_2869224_1695835535_trace.json.gz",
    "chrome/hta/critical_path__cuda_event_sync_multi_stream__event_sync_trace.json.gz",
    "chrome/hta/critical_path__end_to_end__simple_add__input__trace.json.gz",
    "chrome/hta/nccl_parser_config__nccl_data.json.gz",
    "chrome/hta/timeline_analysis__sampled_rank-0.json.gz",
    "chrome/hta/trace_diff__test__test.json.gz",
    "chrome/hta/mtia_inference_trace__mtia_inference_rank_0.json.gz",
    "chrome/tracelens/b200__eager_trace.json.gz",
    "chrome/megatron_tp8",
    "nsys/nsysai_mfu_2gpu_after.sqlite",
]


@pytest.mark.filterwarnings("ignore::llmprof.errors.TraceWarning")
@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [f"captures/{name}" for name in CAPTURES] + [f"real/{name}" for name in REAL]
)
def test_every_recording_replays_to_its_own_times(shared, name):
    trace = llmprof.read(shared / name)
    found = what_if(trace)
    assert found.height
    assert (
        found.filter((pl.col("predicted_ns") / pl.col("recorded_ns") - 1).abs() > 0.02).height == 0
    )
    path = critical_path(trace)
    assert (path["dur_ns"] > 0).all()
    built = graph(trace)
    assert (built.rest >= 0).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", [f"captures/{name}" for name in CAPTURES])
@pytest.mark.parametrize("what", ["scale:.:0.5", "scale:.:0", "remove:copy"])
def test_no_removal_lengthens_a_step(shared, name, what):
    try:
        found = what_if(llmprof.read(shared / name), what)
    except AnalysisError:
        pytest.skip("no such work")
    assert (found["gain_ns"] >= 0).all()


@pytest.mark.parametrize(
    "name", ["inference__vllm_decode_full__graph_execution", "mi300__google_owlv2"]
)
def test_copies_gain_at_most_their_own_time(shared, name):
    [file] = (shared / "strangers" / "chrome").glob(f"{name}*")
    trace = llmprof.read(file)
    copies = trace.events.filter(category="copy")
    found = what_if(trace, "remove:copy")
    # the gap of about 1 us before each goes with it
    assert 0 <= found["gain_ns"].item() <= copies["dur_ns"].sum() + 1_000 * copies.height


@pytest.mark.parametrize("gap_us", [3.0, 4.4, 5.4, 20.0, 49.0, 60.0])
def test_a_blocking_copy_waits_for_its_stream_whatever_the_gap(gap_us):
    """20 GEMMs of 5 ms back to back, launched in 0.4 ms, and a blocking copy behind them."""
    gap, count, ms = int(gap_us * 1_000), 20, 1_000_000
    run = kernels([(GEMM, 5 * ms)] * count, start=2 * ms)
    end = int(run["start_ns"][-1]) + 5 * ms
    copy = kernels([("Memcpy DtoH", 3_000)], start=end + gap, first=900)
    copy = copy.with_columns(kind=pl.lit("DtoH"))
    begun = 2 * ms + 400_000
    blocking = launches(copy, lead=end + gap - begun, dur=end + gap + 3_000 - begun)
    blocking = blocking.with_columns(name=pl.lit("cudaMemcpy"))
    issued = launches(run).with_columns(start_ns=pl.int_range(count) * 20_000, dur_ns=5_000)
    trace = Trace(
        {
            "kernels": run,
            "copies": copy,
            "runtime": pl.concat([issued, blocking], how="diagonal_relaxed"),
        }
    )
    found = what_if(trace, "scale:gemm:0.5")
    assert found["gain_ns"].item() == pytest.approx(50 * ms, rel=0.01)


def test_work_after_an_all_reduce_of_another_stream_waits_for_it(shared):
    """Rank 3 is last in every all-reduce, which others wait up to 11 ms for; work follows 17.5
    us after its end.
    """
    trace = llmprof.read(
        shared / "strangers" / "chrome" / "amd_hpctraining__merged_all_events.json.gz"
    )
    assert what_if(trace, changes.balance())["gain_ns"].item() > 1e6
    assert (
        critical_path(trace).filter(part="unexplained")["dur_ns"].sum() < 17e6
    )  # most of it before the first call


def test_a_long_gap_of_the_host_is_not_named_after_a_short_operator(shared):
    [file] = (shared / "strangers" / "chrome").glob("resnet50_num_workers_0*")
    host = critical_path(llmprof.read(file)).filter(
        (pl.col("part") == "host") & (pl.col("dur_ns") > 50e6)
    )
    assert not host["name"].fill_null("").str.contains("nll_loss_backward").any()


def test_prefill_and_mixed_steps_get_no_whole_graph(shared):
    trace = llmprof.read(shared / "captures" / "torch_tp1_eager")
    assert what_if(trace, "no-host-delay")["phase"].to_list() == ["decode"]
    for phase in ("mixed", "prefill"):
        with pytest.raises(AnalysisError, match="no whole graph"):
            what_if(trace, f"no-host-delay:{phase}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("eager", "graphs", "error"),
    # at TP=4 the same operators take 0.52 of the time on the host of the second recording:
    # benchmarks/what_if.md
    [
        ("torch_tp1_eager", "torch_tp1_cudagraph", 0.1),
        ("torch_tp4_eager_custom_allreduce", "torch_tp4_cudagraph", 0.9),
    ],
)
def test_graphs_are_predicted_from_an_eager_recording(shared, eager, graphs, error):
    decode = pl.col("phase") == "decode"
    predicted = what_if(llmprof.read(shared / "captures" / eager), changes.no_host_delay()).filter(
        decode
    )
    recorded = (
        what_if(llmprof.read(shared / "captures" / graphs)).filter(decode)["recorded_ns"].item()
    )
    assert predicted["low_ns"].item() <= recorded <= predicted["high_ns"].item()
    assert predicted["predicted_ns"].item() == pytest.approx(recorded, rel=error)
    assert predicted["recorded_ns"].item() > 7 * recorded


def test_a_thread_that_synchronises_in_each_step_needs_no_scheduler(shared):
    built = graph(llmprof.read(shared / "captures" / "torch_tp1_moe_eager"))
    assert not (built.kind == SCHEDULED).any()


PAIRS = [
    ("nsys_tp2_cudagraph", "tensor-parallel:4", 2.813e6),
    ("nsys_tp2_cudagraph", "tensor-parallel:1", 4.675e6),
    ("torch_tp4_cudagraph", "tensor-parallel:2", 3.908e6),
    ("torch_tp4_cudagraph", "tensor-parallel:1", 4.675e6),
    ("torch_tp4_eager_nccl", "torch_tp4_eager_custom_allreduce", 58.875e6),
    ("torch_tp4_eager_custom_allreduce", "torch_tp4_eager_nccl", 57.185e6),
]
"""A capture, its change (or the capture whose transfers it gets), and a decode step measured
with the change, in ns.
"""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "change", "measured"), PAIRS)
def test_what_was_measured_lies_in_the_interval(shared, name, change, measured):
    other = shared / "captures" / change
    made = changes.transfer(like=llmprof.read(other)) if other.exists() else change
    found = (
        what_if(llmprof.read(shared / "captures" / name), made)
        .filter(phase="decode")
        .row(0, named=True)
    )
    assert found["low_ns"] <= measured <= found["high_ns"]


def test_the_path_agrees_with_the_overlay_of_another_tool(shared):
    """HTA's own test trace, in which it marked the events of the critical path that it found
    (``critical``).
    """
    folder = shared / "real" / "chrome" / "hta"
    file = (
        folder
        / "critical_path__end_to_end__simple_add__output__overlaid_critical_path_trace.json.gz"
    )
    trace = llmprof.read(file)
    events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    on_device = [
        e
        for e in events
        if e.get("ph") == "X" and e["cat"] in {"kernel", "gpu_memcpy", "gpu_memset"}
    ]
    start = min(e["ts"] for e in events if e.get("ph") == "X" and e["cat"] != "Trace")
    marked = {(e["ts"] - start) * US: e["name"] for e in on_device if e["args"].get("critical")}
    path = critical_path(trace).filter(pl.col("part").is_in(["compute", "copy"]))
    own = set(path["start_ns"])
    assert len(marked) == 32
    assert len(own) == 16
    assert own <= set(marked)
    rest = sorted(set(marked) - own)
    # six copies that ended in the first microseconds of a cudaStreamSynchronize, which takes 9 us
    # without waiting too
    assert [marked[at][:11] for at in rest[:6]] == ["Memcpy HtoD"] * 6
    # and ten kernels around a gap of 11.9 ms that the overlay bridges as a delay between kernels:
    # the host is in cudaMalloc for 12.0 ms of it and launches the memset behind the gap only
    # afterwards
    behind = rest[6:]
    gap = max(b - a for a, b in itertools.pairwise(behind))
    assert len(behind) == 10
    assert 11_000 * US < gap < 12_000 * US
    held = trace.runtime.filter(pl.col("name") == "cudaMalloc").sort("dur_ns")
    assert (
        held.filter(pl.col("start_ns").is_between(behind[4], behind[7]))["dur_ns"].max()
        == 11_986 * US
    )


def test_a_call_can_be_taken_away_with_its_waiting():
    """Two kernels of 30 us; between their launches the host waits for the first one."""
    work = [(0, 7, 5, 30, GEMM, 1), (0, 7, 45, 30, NORM, 3)]
    calls = [(0, 0, 2, CALL, 1), (0, 3, 36, "cudaStreamSynchronize", 2), (0, 41, 2, CALL, 3)]
    trace = Trace({"kernels": device(work), "runtime": host(calls)})
    # recorded 5 to 75; without the wait the second is launched at 5 us and begins 1 us after the
    # first ends, at 36
    found = what_if(trace, changes.without_call("StreamSynchronize"))
    assert found.select("recorded_ns", "predicted_ns").row(0) == (70 * US, 61 * US)
    with pytest.raises(AnalysisError, match="no call of the host in this recording is named"):
        what_if(trace, changes.without_call("cudaNothing"))
    # Both kernels are launched by 12 us, but the second stands still during cudaFree, until 80 us.
    work = [(0, 7, 5, 15, GEMM, 1), (0, 7, 81, 10, NORM, 2)]
    calls = [(0, 0, 2, CALL, 1), (0, 10, 2, CALL, 2), (0, 15, 65, "cudaFree", 3)]
    trace = Trace({"kernels": device(work), "runtime": host(calls)})
    # recorded 5 to 91. The first kernel ends at 20; a device's own gap is 5 us at most, and 1 us is
    # after the call
    found = what_if(trace, changes.without_call("^cudaFree$"))
    assert found.select("recorded_ns", "predicted_ns").row(0) == (86 * US, (86 - 55) * US)


def test_more_events_than_are_replayed(monkeypatch):
    """Ten steps of 40 us, and as many in the middle as have the events that are replayed: five."""
    work = [(0, 7, 40 * n + 5, 10, NORM, n + 1) for n in range(10)]
    calls = [(0, 40 * n, 2, CALL, n + 1) for n in range(10)]
    trace = Trace(
        {
            "kernels": device(work),
            "runtime": host(calls),
            "markers": step_labels([40 * n for n in range(10)], 39),
        }
    )
    monkeypatch.setattr(llmprof.replay.part, "MAX_EVENTS", 10)
    found = what_if(trace, changes.scale("host", 0.5))
    # of steps 2 to 6 none follows the last
    assert found.select("steps", "recorded_ns", "predicted_ns").row(0) == (3, 40 * US, 20 * US)
    assert found["assumed"][0].endswith(
        "only 5 of 10 steps were replayed, since there are more than 10 events"
    )
    rows = replay_changes(trace, ("scale:host:0.5",))["scale:host:0.5"]
    assert isinstance(rows, pl.DataFrame)
    assert rows["step"].to_list() == [2, 3, 4, 5]


def test_ranks_whose_clocks_do_not_match_are_replayed_alone_and_it_is_said():
    """Rank 1 of the all-reduce is 10 ms late: no kernel lasts so long, so clocks differ, and
    nobody knows how far.
    """
    whole = two_ranks()
    moved = pl.col("start_ns") + pl.when(pl.col("rank") == 1).then(10_000 * US).otherwise(0)
    trace = Trace(
        {name: frame.with_columns(start_ns=moved) for name, frame in whole.tables.items()},
        {"world_size": 2},
    )
    assert not (graph(trace).kind == COLLECTIVE).any()
    # each rank has its own path: rank 0 from its launch at 2 us to its end at 106, rank 1 from 62
    # us to 106 of its own
    for rank, begin, end in ((0, 2, 106), (1, 10_062, 10_106)):
        path = critical_path(trace, rank=rank)
        assert path["rank"].unique().to_list() == [rank]
        assert (path["start_ns"].min(), path["dur_ns"].sum()) == (begin * US, (end - begin) * US)
    # and without a change each takes as long as it was recorded to
    found = what_if(trace)
    assert found.select("recorded_ns", "predicted_ns").row(0) == (
        (96 + 36) / 2 * US,
        (96 + 36) / 2 * US,
    )
    assert found["assumed"][0].startswith(
        "what ranks wait for of each other, so each is replayed alone: only 0 % of"
    )
    with pytest.raises(AnalysisError, match="no collective of this recording is matched"):
        what_if(trace, changes.balance())


def test_time_without_the_profiler_is_that_of_a_faster_host():
    """A token takes 100 us under the profiler and 60 without: the host, which sets the pace,
    takes 0.6 of its time.
    """
    recorded, wanted = host_bound(), {"plain_ns": 60 * US, "profiled_ns": 100 * US}
    trace = Trace(recorded.capture.recorded, {"without_profiler": wanted})

    def times(*made):
        found = what_if(trace, *made)
        return found.select("^plain_.*_ns$").row(0)

    assert times()[:2] == pytest.approx((60 * US,) * 2)
    assert times("scale:host:0.5")[:2] == pytest.approx((60 * US, 32 * US), rel=0.05)
    assert times("scale:norm:0")[:2] == pytest.approx((60 * US,) * 2, rel=0.02)


def test_findings_are_told_in_time_without_the_profiler_where_it_is_known():
    """As if steps took 0.6 of the time without the profiler: then that is what the remedy is
    taken from.
    """
    recorded = sample("torch_tp1_eager")
    ns = what_if(recorded).filter(phase="decode")["recorded_ns"].item()
    tokens = {"without_profiler": {"plain_ns": 0.6 * ns, "profiled_ns": ns}}
    trace = Trace(recorded.capture.recorded, recorded.meta | tokens, recorded.coverage)
    found, as_recorded = (
        analyze.findings(one).filter(change="no-host-delay:decode") for one in (trace, recorded)
    )
    assert found["predicted_plain"].all()
    assert not as_recorded["predicted_plain"].any()
    assert found["figure"].equals(as_recorded["figure"])
    told = what_if(trace, "no-host-delay").filter(phase="decode").row(0, named=True)
    gain = told["plain_recorded_ns"] - told["plain_predicted_ns"]
    assert found["predicted_ns"][0] == pytest.approx(gain, rel=0.05)  # a mean and a median
    assert told["plain_low_ns"] < told["plain_predicted_ns"] < told["plain_high_ns"]
    assert found["predicted_ns"][0] < 0.6 * ns < as_recorded["predicted_ns"][0]


@pytest.mark.parametrize("parallel", [{}, {"parallel": {"pp": 1}}, {"parallel": {"pp": 2}}])
def test_a_token_takes_a_step_where_labels_say_it_and_ranks_are_no_stages(parallel):
    """A token takes 200 us under the profiler, which also stops in the meantime, and 60 without."""
    measured = {"plain_ns": 60 * US, "profiled_ns": 200 * US}
    meta = {"without_profiler": measured} | parallel
    found = what_if(Trace(host_bound().capture.recorded, meta))["plain_recorded_ns"]
    known = parallel.get("parallel", {}).get("pp") == 1
    assert found.to_list() == ([pytest.approx(60 * US)] if known else [None])


def test_any_host_is_possible_where_none_is_as_fast_as_the_plain_step():
    """A step takes 100 us, 20 at the least with the fastest host, and 10 without the profiler: the
    devices are faster, too. Of half of the host's time 5 us of these 10 stay if it is as slow as
    recorded, and up to all if it is faster.
    """
    measured = {"plain_ns": 10 * US, "profiled_ns": 100 * US}
    trace = Trace(host_bound().capture.recorded, {"without_profiler": measured})
    found = what_if(trace, "scale:host:0.5").row(0, named=True)
    assert found["plain_recorded_ns"] == pytest.approx(10 * US)
    assert found["plain_low_ns"] < 5 * US
    assert found["plain_predicted_ns"] < found["plain_high_ns"]


@pytest.mark.parametrize(
    ("plain", "profiled"),
    [(60, 200), (160, 100)],
    ids=["tokens take no step", "slower without"],
)
def test_time_without_the_profiler_is_unknown_where_a_token_takes_no_step(plain, profiled):
    trace = Trace(
        host_bound().capture.recorded,
        {"without_profiler": {"plain_ns": plain * US, "profiled_ns": profiled * US}},
    )
    assert what_if(trace)["plain_predicted_ns"].to_list() == [None]
    assert True not in analyze.findings(trace)["predicted_plain"]


def test_time_without_the_profiler_where_the_device_sets_the_pace():
    """The sample's tokens take 4.65 ms, and 4.80 ms under the profiler; its devices set the
    pace.
    """
    folder = Path(__file__).parents[2] / "sample_traces" / "run_torch_tp1"
    found = (
        what_if(llmprof.read(folder), "scale:host:0.5").filter(phase="decode").row(0, named=True)
    )
    assert found["plain_recorded_ns"] == pytest.approx(4_647_633, rel=1e-4)
    assert found["plain_predicted_ns"] == pytest.approx(found["plain_recorded_ns"], rel=1e-3)
    assert found["plain_low_ns"] <= found["plain_predicted_ns"] <= found["plain_high_ns"]
    assert what_if(sample("torch_tp1_eager"))["plain_predicted_ns"].null_count() > 0


def test_a_step_gains_no_more_than_its_own_time():
    """The second step takes 10 ns after the first; changed, it ends 10 ns before the first, on
    another stream.
    """
    steps = pl.DataFrame(
        {"rank": [0] * 3, "block": [0] * 3, "end_ns": [100, 110, 150], "period_ns": [40, 10, 40]}
    )
    changed = steps.with_columns(
        end_ns=pl.Series([100, 90, 130]), period_ns=pl.Series([40, -10, 40])
    )
    assert lasting_gains(steps, changed).to_list() == [0, 10, 0]
