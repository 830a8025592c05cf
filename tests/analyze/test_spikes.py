"""Steps in which a kernel or a range takes long, by hand."""

import polars as pl

from llmprof import analyze
from llmprof.trace import Trace
from tests.analyze.builders import ATTENTION, GEMM, kernels, labels, launches

STEPS = 6


def trace(slow, *, steps=STEPS):
    """Steps of a GEMM of 10 and attention of 20; in the third the GEMM takes ``slow``."""
    runs = [
        kernels(
            [(GEMM, slow if i == 2 else 10), (ATTENTION, 20)], start=1000 * i + 20, first=1 + 2 * i
        )
        for i in range(steps)
    ]
    work = pl.concat(runs)
    marks = [(f"execute_context_0(0)_generation_{4}(4)", 1000 * i, 200) for i in range(steps)]
    marks += [("gemm", 1000 * i + 10, 10) for i in range(steps)]
    ranges = labels(marks).with_columns(thread=pl.lit(1, dtype=pl.Int64))
    return Trace({"kernels": work, "runtime": launches(work, lead=8), "markers": ranges})


def test_kernels_and_ranges():
    found = analyze.spikes(trace(30))
    row = found.row(0, named=True)
    assert found.height == 1
    assert (row["step"], row["name"], row["count"], row["start_ns"]) == (2, GEMM, 1, 2020)
    assert (row["dur_ns"], row["typical_ns"], row["ratio"], row["gap_ns"]) == (30, 10.0, 3.0, 20.0)
    assert analyze.spikes(trace(30), min_ratio=3.5).is_empty()
    assert analyze.spikes(trace(30, steps=4)).is_empty()  # too few to know what is usual
    found = analyze.spikes(trace(30), by="range")
    assert found.select("step", "name", "dur_ns", "typical_ns").rows() == [
        (2, "execute_context_0(0)_generation_4(4)", 50, 30.0),
        (2, "gemm", 30, 10.0),
    ]
