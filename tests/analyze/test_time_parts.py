"""The time of steps in parts, by hand, and on recordings: the parts add up to the time exactly."""

import polars as pl
import pytest

from llmprof.analyze.step_times import recorded_windows, step_windows, time_parts
from llmprof.trace import Trace
from tests.analyze.builders import GEMM, NCCL_ALL_REDUCE, kernels, labels, launches

DECODE = "execute_context_0(0)_generation_4(4)"


def run():
    """Two steps:

    GEMM [100,150), all-reduce [140,170) beside and after it, GEMM [200,220); GEMMs at 300 and 350.
    """
    compute = pl.concat(
        [
            kernels([(GEMM, 50)], start=100, first=1),
            kernels([(GEMM, 20)], start=200, first=2),
            kernels([(GEMM, 10)], start=300, first=3),
            kernels([(GEMM, 10)], start=350, first=4),
        ]
    )
    reduce = kernels([(NCCL_ALL_REDUCE, 30)], start=140, first=5, stream=9)
    calls = launches(pl.concat([compute, reduce]).sort("start_ns"), lead=10, dur=2)
    return Trace(
        {
            "kernels": pl.concat([compute, reduce]).sort("start_ns"),
            "runtime": calls,
            "markers": labels([(DECODE, 80, 5), (DECODE, 280, 5)]),
        }
    )


def test_windows_reach_from_step_to_step():
    found = step_windows(run())
    assert found.select("step", "phase", "start_ns", "dur_ns", "span_ns").rows() == [
        (0, "decode", 100, 200, 120),
        (1, "decode", 300, 60, 60),  # the last one ends with its own last event
    ]
    whole = recorded_windows(run())
    assert whole.select("start_ns", "dur_ns").rows() == [
        (80, 280)
    ]  # from the first label to the last kernel
    flush = labels([("CUDA profiling data flush", 400, 900)]).with_columns(
        domain=pl.lit("overhead")
    )
    trace = Trace(
        run().tables | {"markers": pl.concat([run().markers, flush], how="diagonal_relaxed")}
    )
    assert recorded_windows(trace)["dur_ns"].to_list() == [
        280
    ]  # what the profiler does is no part of it


def test_parts_by_hand():
    trace = run()
    parts = time_parts(trace, step_windows(trace))
    assert parts.rows() == [
        # [170,200) and [220,300) are idle: the launches come at 190 and 290, ten before the
        # kernels, as usual
        (0, "communication", "wait or transfer", 20),
        (0, "compute", "gemm", 70),
        (0, "idle", "host_bound", 90),
        (0, "idle", "launch", 20),
        (1, "compute", "gemm", 20),
        (1, "idle", "host_bound", 30),
        (1, "idle", "launch", 10),
    ]
    whole = time_parts(trace, recorded_windows(trace))
    assert whole.filter(part="outside")["ns"].to_list() == [20]
    assert whole["ns"].sum() == 280


@pytest.mark.parametrize(
    "name", ["torch_tp4_eager_nccl", "torch_tp4_cudagraph", "torch_pp2_eager", "nsys_tp2_cudagraph"]
)
def test_parts_add_up_exactly(name, sample_trace):
    trace = sample_trace(name)
    for windows in (step_windows(trace), recorded_windows(trace)):
        parts = time_parts(trace, windows)
        assert parts["ns"].min() > 0
        sums = parts.group_by("window").agg(pl.col("ns").sum()).sort("window")
        assert sums["ns"].to_list() == windows["dur_ns"].to_list()
