"""Overlap against hand-computed answers and a count of nanoseconds."""

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmprof.analyze import collectives, overlap
from llmprof.analyze.overlap import EXPOSED, overlap_of
from llmprof.errors import AnalysisError, NotCapturedError
from llmprof.trace import Trace
from tests.analyze.builders import ALL_GATHER, ALL_REDUCE, GEMM, NCCL_ALL_REDUCE, kernels, types_of

SCHEMA = types_of("rank", "step", "stream", "category", "start_ns", "dur_ns")
PARTS = (
    "total",
    "compute",
    "communication",
    "copy",
    "exposed_communication",
    "hidden_communication",
    "exposed_copy",
)
TIMES = [f"{part}_ns" for part in (*PARTS, "idle", "other")]

# Rank 0, step 0:  compute [0,10) [8,20) [40,50), collective [15,30) [25,35), copy [32,45), fill
# [60,62).
#   compute 20+10 = 30; communication [15,35) = 20, hidden [15,20) = 5, exposed 15; copy [32,45) + 2
#     = 15,
#   exposed [35,40) + 2 = 7; total 62; idle [50,60) = 10: 30 + 15 + 7 + 10 = 62.
# Rank 0, step 1:  compute [100,110) twice at once on two streams. Rank 1, step 0:  collective [5,9)
# only.
EVENTS = [
    (0, 0, 7, "gemm", 0, 10),
    (0, 0, 7, "norm", 8, 12),
    (0, 0, 7, "attention", 40, 10),
    (0, 0, 9, "collective", 15, 15),
    (0, 0, 9, "collective", 25, 10),
    (0, 0, 7, "copy", 32, 13),
    (0, 0, 7, "fill", 60, 2),
    (0, 1, 7, "gemm", 100, 10),
    (0, 1, 8, "gemm", 100, 10),
    (1, 0, 7, "collective", 5, 4),
]


def frame_of(rows):
    frame = pl.DataFrame(rows, schema=SCHEMA, orient="row")
    moves = pl.col("category").is_in(["copy", "fill"])
    return frame.with_columns(
        source=pl.when(moves).then(pl.lit("copy")).otherwise(pl.lit("kernel"))
    )


def test_two_ranks_by_hand():
    got = overlap_of(frame_of(EVENTS))
    assert got.columns == ["rank", "step", *TIMES]
    assert got.rows() == [
        (0, 0, 62, 30, 20, 15, 15, 5, 7, 10, 0),
        (0, 1, 10, 10, 0, 0, 0, 0, 0, 0, 0),
        (1, 0, 4, 0, 4, 0, 4, 0, 0, 0, 0),
    ]
    # Stream 9 works [15,35); stream 7 spans [0,62) with [20,32) left to stream 9.
    got = overlap_of(
        frame_of(EVENTS).filter(pl.col("step") == 0, pl.col("rank") == 0), ["rank", "stream"]
    )
    assert got.select("stream", "total_ns", "idle_ns", "other_ns").rows() == [
        (7, 50, 10, 12),
        (9, 20, 0, 0),
    ]


def test_work_of_another_group_is_not_idle_time():
    # decode [0,10), prefill [12,20), decode [25,30): decode's idle is [10,12) and [20,25); 8 ns
    # belong to prefill
    rows = frame_of(
        [(0, n, 7, "gemm", *span) for n, span in enumerate([(0, 10), (12, 8), (25, 5)])]
    )
    rows = rows.with_columns(phase=pl.Series(["decode", "prefill", "decode"]))
    got = overlap_of(rows, ["rank", "phase"]).select(
        "phase", "total_ns", "compute_ns", "idle_ns", "other_ns"
    )
    assert got.rows() == [("decode", 22, 15, 7, 8), ("prefill", 8, 8, 0, 0)]


def test_trace_with_kernels_and_copies():
    kernels = pl.DataFrame(
        {
            "rank": [0, 0, 1],
            "device": [0, 0, 1],
            "stream": [7, 8, 7],
            "start_ns": [0, 5, 0],
            "dur_ns": [10, 10, 3],
            "name": [
                "ampere_bf16_s16816gemm_bf16_128x64",
                "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)",
                "gemm",
            ],
        }
    )
    copies = pl.DataFrame(
        {
            "rank": [0],
            "start_ns": [20],
            "dur_ns": [4],
            "name": ["Memcpy HtoD (Pageable -> Device)"],
            "kind": ["HtoD"],
        }
    )
    got = overlap(Trace({"kernels": kernels, "copies": copies}), by=("rank",))
    assert got.rows() == [(0, 24, 10, 10, 4, 5, 5, 4, 5, 0), (1, 3, 3, 0, 0, 0, 0, 0, 0, 0)]
    unknown = overlap(Trace({"kernels": kernels}), by=("rank",))
    assert unknown["copy_ns"].to_list() == unknown["exposed_copy_ns"].to_list() == [None, None]
    assert unknown["idle_ns"].to_list() == [0, 0]


def test_kernels_that_copy_are_compute():
    """Beside a copy of an engine at [20, 24): a kernel that copies at [0, 10), one that fills at
    [8, 12).
    """
    copying = pl.DataFrame(
        {
            "rank": [0, 0],
            "stream": [7, 8],
            "start_ns": [0, 8],
            "dur_ns": [10, 4],
            "name": ["copy_kernel", "fill_kernel"],
        }
    )
    copies = pl.DataFrame(
        {"rank": [0], "start_ns": [20], "dur_ns": [4], "name": ["Memcpy DtoD"], "kind": ["DtoD"]}
    )
    got = overlap(Trace({"kernels": copying, "copies": copies}), by=("rank",)).row(0, named=True)
    assert (got["compute_ns"], got["copy_ns"], got["exposed_copy_ns"], got["idle_ns"]) == (
        12,
        4,
        4,
        8,
    )


def test_a_trace_without_device_activity_is_refused():
    with pytest.raises(NotCapturedError):
        overlap(Trace({}), by=("rank",))


events = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.one_of(st.none(), st.integers(0, 2)),
        st.integers(7, 8),
        st.sampled_from(["gemm", "norm", "collective", "copy", "fill"]),
        st.integers(0, 60),
        st.integers(0, 12),
    ),
    max_size=30,
)


@given(
    events,
    st.sampled_from([("rank", "step"), ("rank",), ("rank", "stream"), ("rank", "step", "stream")]),
)
def test_parts_add_up_and_equal_the_count_of_nanoseconds(data, by):
    names = list(SCHEMA)
    got = {tuple(r[k] for k in by): r for r in overlap_of(frame_of(data), by).iter_rows(named=True)}
    groups = {}
    for row in data:
        groups.setdefault(tuple(row[names.index(k)] for k in by), []).append(row)
    assert set(got) == set(groups)
    for key, rows in groups.items():
        ticks = {"compute": set(), "communication": set(), "copy": set()}
        for _, _, _, category, start, dur in rows:
            kind = {"collective": "communication", "copy": "copy", "fill": "copy"}.get(
                category, "compute"
            )
            ticks[kind].update(range(start, start + dur))
        compute, communication, copy = ticks["compute"], ticks["communication"], ticks["copy"]
        span = set(range(min(r[4] for r in rows), max(r[4] + r[5] for r in rows)))
        of_rank = {t for r in data if r[0] == key[0] for t in range(r[4], r[4] + r[5])}
        expected = {
            "compute_ns": compute,
            "communication_ns": communication,
            "copy_ns": copy,
            "exposed_communication_ns": communication - compute,
            "hidden_communication_ns": communication & compute,
            "exposed_copy_ns": copy - compute - communication,
            "idle_ns": span - of_rank,
            "other_ns": (span & of_rank) - compute - communication - copy,
        }
        row = got[key]
        assert {name: row[name] for name in expected} == {
            name: len(times) for name, times in expected.items()
        }
        parts = ("compute_ns", "exposed_communication_ns", "exposed_copy_ns", "idle_ns")
        assert row["total_ns"] == sum(row[part] for part in parts) == len(span) - row["other_ns"]


def test_exposed_communication_is_waiting_and_transfer():
    """Rank 0 computes [0, 20) us and reduces [10, 104), rank 1 computes [0, 100) and reduces [100,
    104).

    Rank 0 waits [10, 100), of which [20, 100) is exposed, then 4 us of transfer. Each rank ends
    with a broadcast whose group the recording does not hold in full.
    """
    us = 1_000
    frame = pl.concat(
        [
            kernels([(GEMM, 20 * us)], rank=0, first=1),
            kernels([(NCCL_ALL_REDUCE, 94 * us)], rank=0, start=10 * us, stream=9, first=2),
            kernels([(GEMM, 100 * us)], rank=1, first=3),
            kernels([(NCCL_ALL_REDUCE, 4 * us)], rank=1, start=100 * us, stream=9, first=4),
            kernels([(ALL_GATHER, 6 * us)], rank=0, start=110 * us, stream=9, first=5),
        ]
    )
    trace = Trace({"kernels": frame}, {"world_size": 2})
    assert collectives(trace).filter(kind="all_gather")["wait_ns"].to_list() == [None]
    rows = overlap(trace, by=("rank",), waits=True)
    assert rows.select("rank", "exposed_communication_ns", *EXPOSED).rows() == [
        (0, 90 * us, 80 * us, 4 * us, 6 * us),
        (1, 4 * us, 0, 4 * us, 0),
    ]
    assert rows.drop(EXPOSED).equals(overlap(trace, by=("rank",)))
    window = overlap(trace, window=(50 * us, 102 * us), waits=True)
    assert window.select("exposed_communication_ns", *EXPOSED).row(0) == (
        52 * us,
        50 * us,
        2 * us,
        0,
    )


RUN = pl.concat(
    [
        kernels([(GEMM, 40), (GEMM, 20)], pause=20),  # [0, 40) [60, 80)
        kernels([(ALL_REDUCE, 40)], start=30, stream=9),  # [30, 70)
        kernels([(GEMM, 10)], rank=1, start=200),
    ]
)
WINDOW = (20, 100)


def test_overlap_in_a_window(sample_trace):
    found = overlap(Trace({"kernels": RUN}), window=WINDOW)
    assert found.columns == overlap(Trace({"kernels": RUN}), by=("rank",)).columns
    assert found.row(0) == (0, 80, 40, 40, None, 20, 20, None, 20, 0)
    found = overlap(Trace({"kernels": RUN}), window=WINDOW).row(1, named=True)
    assert (found["rank"], found["compute_ns"], found["idle_ns"]) == (1, 0, 80)
    with pytest.raises(AnalysisError, match="with a window"):
        overlap(Trace({"kernels": RUN}), by="step", window=WINDOW)
    trace = sample_trace("torch_tp4_eager_nccl").select(rank=0)
    first = trace.kernels["start_ns"].min(), trace.copies["start_ns"].min()
    ends = [(f["start_ns"] + f["dur_ns"]).max() for f in (trace.kernels, trace.copies)]
    within = overlap(trace, window=(min(first), max(ends)))
    assert within.to_dicts() == overlap(trace, by=("rank",)).to_dicts()
