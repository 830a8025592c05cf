"""Time by module, by hand."""

import polars as pl
import pytest

from llmprof import analyze
from llmprof.errors import NotCapturedError
from llmprof.trace import Trace
from tests.analyze.builders import GEMM, NORM, kernels, labels, launches


def trace(ranges, domain="module"):
    """Kernels at 10, 30, 50, 70 and 90 of 4, 5, 6, 7 and 8 ns, each launched 5 before."""
    runs = [
        kernels([(name, 4 + i)], start=10 + 20 * i, first=1 + i)
        for i, name in enumerate([NORM, GEMM, GEMM, NORM, GEMM])
    ]
    work = pl.concat(runs)
    marks = labels(ranges).with_columns(thread=pl.lit(1, dtype=pl.Int64), domain=pl.lit(domain))
    return Trace({"kernels": work, "runtime": launches(work), "markers": marks})


def test_classes_around_each_other():
    found = analyze.modules(
        trace(
            [
                ("nn.Module: Model_0", 0, 80),
                ("nn.Module: Block_0", 20, 40),
                ("nn.Module: Linear_0", 24, 3),
                ("nn.Module: Linear_1", 44, 3),
            ]
        )
    )
    assert found.drop("rank").rows() == [
        ("Model", 0, 1, 80, 22, 4 + 7, 4),
        ("Model/Block", 1, 1, 40, 11, 0, 2),
        ("Model/Block/Linear", 2, 2, 6, 11, 11, 2),
    ]


def test_paths_of_layers():
    ranges = [
        ("layer::model", 0, 80),
        ("layer::model.layers.0.mlp", 20, 20),
        ("layer::model.layers.1.mlp", 40, 20),
    ]
    whole = analyze.modules(trace(ranges, "NVTX"))
    assert whole.select("path", "count", "device_ns", "kernels").rows() == [
        ("model", 1, 22, 4),
        ("model.layers.*.mlp", 2, 11, 2),
    ]
    each = analyze.modules(trace(ranges, "NVTX"), by="layer")
    assert each.select("path", "layer", "device_ns").rows() == [
        ("model", None, 22),
        ("model.layers.0.mlp", 0, 5),
        ("model.layers.1.mlp", 1, 6),
    ]
    with pytest.raises(NotCapturedError):
        analyze.modules(trace([("something", 0, 50)]))
