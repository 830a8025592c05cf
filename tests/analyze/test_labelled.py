"""The analyses of device events on one labelled trace: that each finds steps, launches and calls
in a `Trace`.
"""

import polars as pl
import pytest

from llmprof import analyze
from llmprof.analyze import idle, launch_delay, overlap, stream_gaps
from llmprof.errors import AnalysisError
from llmprof.trace import Trace
from tests.building import table_of


def trace_of(scale=1):
    """One prefill and two decode steps of a norm and a GEMM on one rank; times in units of `scale`
    ns.

    Host: labels at 0, 100 and 200; launches 10 and 20 after each. Device: norm [20,30), GEMM
    [40,60) after each; a collective [50,65) on a second stream in the last step.
    """
    steps = ["execute_context_1(64)_generation_0(0)", *["execute_context_0(0)_generation_1(1)"] * 2]
    at = [0, 100, 200]
    markers = pl.DataFrame({"start_ns": at, "dur_ns": [50] * 3, "name": steps})
    kernels = table_of(
        "stream start_ns dur_ns name",
        [
            (7, t + start, dur, name)
            for t in at
            for start, dur, name in ((20, 10, "rms_norm_kernel"), (40, 20, "gemm"))
        ]
        + [(9, 250, 15, "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)")],
    ).with_columns(correlation=pl.int_range(pl.len()))
    launches = [t + n for t in at for n in (10, 20)] + [225]
    runtime = pl.DataFrame({"start_ns": launches, "dur_ns": [4] * 7, "correlation": range(7)})
    runtime = runtime.with_columns(name=pl.lit("cudaLaunchKernel"), api=pl.lit("runtime"))
    frames = {
        "markers": markers.with_columns(
            domain=pl.lit("user_annotation"), on_device=pl.lit(value=False)
        ),
        "kernels": kernels.with_columns(device=pl.lit(0)),
        "runtime": runtime.with_columns(thread=pl.lit(1)),
        "copies": pl.DataFrame(
            schema={"start_ns": pl.Int64, "dur_ns": pl.Int64, "name": pl.String, "kind": pl.String}
        ),
    }
    time = pl.col("^start_ns|dur_ns$") * scale
    return Trace({name: frame.with_columns(time, rank=pl.lit(0)) for name, frame in frames.items()})


def test_overlap_by_step():
    got = overlap(trace_of())
    assert got.rows() == [
        (0, 0, 100, 30, 0, 0, 0, 0, 0, 70, 0),
        (0, 1, 100, 30, 0, 0, 0, 0, 0, 70, 0),
        (0, 2, 45, 30, 15, 0, 5, 10, 0, 10, 0),
    ]
    by_phase = overlap(trace_of(), by=("rank", "phase")).select("phase", "total_ns", "idle_ns")
    assert by_phase.rows() == [("decode", 145, 10 + 10 + 60), ("prefill", 40, 10)]


def test_idle_knows_steps_and_launches():
    got = idle(trace_of()).select("step", "in_step", "start_ns", "dur_ns", "cause", "next_name")
    assert got.rows() == [
        (0, True, 30, 10, "queued", "gemm"),
        (1, False, 60, 50, "host_bound", "rms_norm_kernel"),
        (1, False, 110, 10, "launch", "rms_norm_kernel"),
        (1, True, 130, 10, "queued", "gemm"),
        (2, False, 160, 50, "host_bound", "rms_norm_kernel"),
        (2, False, 210, 10, "launch", "rms_norm_kernel"),
        (2, True, 230, 10, "queued", "gemm"),
    ]
    assert idle(trace_of(), min_ns=11)["gap"].n_unique() == 2
    assert stream_gaps(trace_of()).height == 5


def test_launch_delay_by_step():
    got = launch_delay(trace_of()).select(
        "step", "kernels", "launched_share", "host_dur_ns", "median_ns", "max_ns"
    )
    assert got.rows() == [
        (0, 2, 1.0, 8, 15.0, 20),
        (1, 2, 1.0, 8, 15.0, 20),
        (2, 3, 1.0, 12, 20.0, 25),
    ]


def test_kernel_summary_by_phase():
    got = analyze.kernels(trace_of(), by=("phase",)).select(
        "phase", "category", "count", "total_ns"
    )
    assert got.rows() == [
        ("decode", "gemm", 2, 40),
        ("decode", "norm", 2, 20),
        ("decode", "collective", 1, 15),
        ("prefill", "gemm", 1, 20),
        ("prefill", "norm", 1, 10),
    ]


def test_an_unknown_column_is_named():
    with pytest.raises(AnalysisError, match=r"no column 'weather'.*phase"):
        overlap(trace_of(), by=("rank", "weather"))
