"""Overlap in a window, by hand."""

from __future__ import annotations

import polars as pl
import pytest

from llmprof.analyze import overlap, overlap_within
from llmprof.errors import AnalysisError
from llmprof.trace import Trace
from tests.analyze.builders import ALL_REDUCE, GEMM, kernels

RUN = pl.concat(
    [
        kernels([(GEMM, 40), (GEMM, 20)], pause=20),  # [0, 40) [60, 80)
        kernels([(ALL_REDUCE, 40)], start=30, stream=9),  # [30, 70)
        kernels([(GEMM, 10)], rank=1, start=200),
    ]
)
WINDOW = (20, 100)


def test_events_are_cut_to_the_window() -> None:
    found = overlap_within(Trace({"kernels": RUN}), window=WINDOW).row(0, named=True)
    assert found == {
        "rank": 0,
        "total_ns": 80,
        "compute_ns": 40,
        "communication_ns": 40,
        "copy_ns": None,
        "exposed_communication_ns": 20,
        "hidden_communication_ns": 20,
        "exposed_copy_ns": None,
        "idle_ns": 20,
    }


def test_a_rank_without_events_in_the_window_is_idle() -> None:
    found = overlap_within(Trace({"kernels": RUN}), window=WINDOW).row(1, named=True)
    assert (found["rank"], found["compute_ns"], found["idle_ns"]) == (1, 0, 80)
    assert overlap_within(Trace({"kernels": RUN}), window=WINDOW, ranks=[1]).to_dicts() == [found]
    with pytest.raises(AnalysisError, match=r"ranks 7 are not in the trace"):
        overlap_within(Trace({"kernels": RUN}), window=WINDOW, ranks=[7])


def test_the_whole_span_of_a_rank_is_what_overlap_says(sample_trace) -> None:  # type: ignore[no-untyped-def]
    trace = sample_trace("torch_tp4_eager_nccl").select(ranks=0)
    first = trace.kernels["start_ns"].min(), trace.copies["start_ns"].min()
    ends = [(f["start_ns"] + f["dur_ns"]).max() for f in (trace.kernels, trace.copies)]
    within = overlap_within(trace, window=(min(first), max(ends)))
    assert within.to_dicts() == overlap(trace, by=("rank",)).drop("other_ns").to_dicts()
