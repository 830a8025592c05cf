"""Time of the steps by phase and part, with answers computed by hand."""

from __future__ import annotations

import polars as pl
import pytest

from llmprof import analyze
from llmprof.errors import NotCapturedError
from llmprof.trace import Trace
from tests.analyze.builders import ALL_REDUCE, ATTENTION, GEMM, kernels, labels


def step(start: int, *, first: int, rank: int = 0) -> pl.DataFrame:
    """20 ns of compute, a pause of 5, and 10 ns of communication, twice; 20 ns of compute: 85 ns without an end."""
    names = [(GEMM, 20), (ALL_REDUCE, 10), (ATTENTION, 20), (ALL_REDUCE, 10), (GEMM, 20)]
    return kernels(names, start=start, pause=5, first=first, rank=rank)


@pytest.fixture
def trace() -> Trace:
    """A prefill and two decode steps on two ranks, and an empty step."""
    rows, marks = [], []
    for rank in range(2):
        for i, name in enumerate(
            ("execute_context_1(8)_generation_0(0)", *["execute_context_0(0)_generation_1(1)"] * 2)
        ):
            rows.append(step(1_000 * i + 10, first=100 * i + 1, rank=rank))
            marks.append(labels([(name, 1_000 * i, 200)], rank=rank, on_device=True))
        marks.append(labels([("execute_context_0(0)_generation_0(0)", 5_000, 10)], rank=rank, on_device=True))
    return Trace({"kernels": pl.concat(rows), "markers": pl.concat(marks)}, {"world_size": 2})


def test_parts_add_up_to_the_steps(trace):
    frame = analyze.step_time(trace)
    assert frame.columns == ["phase", "part", "ns", "share", "steps", "ranks"]
    assert frame["phase"].unique(maintain_order=True).to_list() == ["decode", "prefill"]
    decode = dict(frame.filter(phase="decode").select("part", "ns").rows())
    overlap = analyze.overlap(trace, by=("rank", "step", "phase")).filter(phase="decode")
    assert sum(decode.values()) == overlap["total_ns"].sum()
    # 60 ns of compute and 20 of communication a step, 2 steps on 2 ranks
    assert decode["compute"] == 240
    assert decode["exposed communication"] == 80
    assert decode["hidden communication"] == decode["exposed copy"] == 0
    prefill = frame.filter(phase="prefill")
    assert prefill["share"].sum() == pytest.approx(1)
    assert prefill["steps"].unique().to_list() == [1]
    assert frame.filter(phase="decode")["steps"].unique().to_list() == [2]
    assert frame["ranks"].unique().to_list() == [2]


def test_without_device_activity():
    with pytest.raises(NotCapturedError):
        analyze.step_time(Trace({"markers": labels([("execute_context_0(0)_generation_1(1)", 0, 9)])}))
