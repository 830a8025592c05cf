"""Kernel categories of a trace, by hand."""

from __future__ import annotations

import polars as pl
import pytest

from llmprof.analyze import kernel_categories
from llmprof.trace import Trace
from tests.analyze.builders import ATTENTION, GEMM, kernels


def test_counts_and_shares() -> None:
    run = pl.concat([kernels([(GEMM, 30), (ATTENTION, 10), (GEMM, 30)]), kernels([("acme", 30)], rank=1)])
    copy = kernels([("Memcpy DtoH", 500)]).with_columns(kind=pl.lit("DtoH"))
    found = kernel_categories(Trace({"kernels": run, "copies": copy}))
    assert found.rows() == [
        (GEMM, "linear", 2, 60, pytest.approx(0.6)),
        ("acme", "other", 1, 30, pytest.approx(0.3)),
        (ATTENTION, "attention", 1, 10, pytest.approx(0.1)),
    ]


def test_no_time_has_no_share() -> None:
    assert kernel_categories(Trace({"kernels": kernels([(GEMM, 0)])}))["share"].to_list() == [None]
