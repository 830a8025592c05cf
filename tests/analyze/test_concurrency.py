"""Kinds of work that run side by side, by hand."""

import polars as pl

from llmprof import analyze
from llmprof.trace import Trace
from tests.analyze.builders import ALL_REDUCE, GEMM, NORM
from tests.building import table_of

ROWS = [
    (1, 0, 100, GEMM, 33),  # a quarter of the 132 multiprocessors
    (1, 100, 50, GEMM, 264),
    (2, 40, 80, ALL_REDUCE, 66),
    (2, 130, 10, NORM, 132),
    (3, 10, 20, GEMM, 33),
]
KERNELS = table_of("stream start_ns dur_ns name grid_x", ROWS).with_columns(
    rank=pl.lit(0), device=pl.lit(0), grid_y=pl.lit(1), grid_z=pl.lit(1)
)
TRACE = Trace({"kernels": KERNELS}, {"device": "NVIDIA H100 80GB HBM3"})


def test_by_category_and_by_stream():
    found = analyze.concurrency(TRACE)
    assert found.select(
        "first_name", "second_name", "together_ns", "first_ns", "second_ns"
    ).rows() == [
        ("collective", "gemm", 80, 80, 150),
        ("gemm", "gemm", 20, 150, 150),  # each moment counts once
        ("gemm", "norm", 10, 150, 10),
    ]
    assert found.select("first_share", "second_share").row(0) == (1.0, 80 / 150)
    gemms = (100 * 0.25 + 50 * 1 + 20 * 0.25) / 170
    assert found.select("first_sms", "second_sms").rows() == [
        (0.5, gemms),
        (gemms, gemms),
        (gemms, 1.0),
    ]
    found = analyze.concurrency(Trace({"kernels": KERNELS}))
    assert found["first_sms"].null_count() == found.height == 3
    found = analyze.concurrency(TRACE, by="stream", top=1)
    assert found.select("first_name", "second_name", "together_ns").rows() == [
        ("(others)", "1", 20 + 80 + 10)
    ]
