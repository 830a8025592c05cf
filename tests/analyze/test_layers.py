"""Spans of layers and stages on the device and on the host, by hand."""

import polars as pl
import pytest

from llmprof.analyze import layers
from llmprof.errors import AnalysisError
from tests.analyze.builders import (
    ALL_REDUCE,
    ATTENTION,
    CACHE,
    DENSE,
    DENSE_STAGES,
    EMBEDDING,
    GEMM,
    NORM,
    ROPE,
    SILU,
    forward,
    kernels,
    launches,
    ops,
    step_of,
)


def test_spans_on_the_device():
    # kernels of 10 ns, 2 ns apart: input and embedding take [0, 22), then 10 kernels a layer
    found = layers(step_of(kernels(forward(2), pause=2)))
    assert found.select(
        "rank", "step", "phase", "layer", "start_ns", "dur_ns", "busy_ns", "kernels"
    ).rows() == [
        (0, 0, "decode", 0, 24, 118, 100, 10),
        (0, 0, "decode", 1, 144, 118, 100, 10),
    ]
    by_stage = layers(step_of(kernels(forward(2), pause=2)), stages=True)
    first = by_stage.filter(pl.col("layer") == 0)
    assert first["stage"].to_list() == DENSE_STAGES
    assert first["start_ns"].to_list() == [24 + 12 * n for n in range(10)]
    assert first["dur_ns"].unique().to_list() == [10]
    run = kernels(forward(1))
    second = pl.col("name") == ROPE
    run = run.with_columns(
        start_ns=pl.when(second).then(pl.col("start_ns") - 6).otherwise("start_ns")
    )
    found = layers(step_of(run)).row(0, named=True)
    assert (found["dur_ns"], found["busy_ns"], found["kernels"]) == (100, 94, 10)
    with pytest.raises(AnalysisError, match="no column 'kernel'"):
        layers(step_of(kernels(DENSE)), by="kernel")


def test_sums_of_layers_and_stages():
    trace = step_of(kernels(forward(2), pause=2))
    assert layers(trace, by="layer").select("layer", "count", "total_ns", "share").rows() == [
        (0, 1, 118, 0.5),
        (1, 1, 118, 0.5),
    ]
    stages = layers(trace, by=["phase", "stage"])
    assert stages["count"].sum() == 2 * len(DENSE_STAGES)
    assert stages.filter(stage="attention").select("total_ns", "mean_ns", "kernels").row(0) == (
        20,
        10.0,
        2,
    )


def test_a_stage_that_comes_twice_has_occurrences():
    layer = [
        NORM,
        GEMM,
        ROPE,
        CACHE,
        ATTENTION,
        GEMM,
        ALL_REDUCE,
        NORM,
        GEMM,
        SILU,
        GEMM,
        ALL_REDUCE,
    ]
    found = layers(step_of(kernels([EMBEDDING, *layer * 2, NORM, GEMM])), stages=True)
    twice = found.filter(pl.col("stage").is_in(["norm", "all_reduce"])).sort("start_ns")
    assert twice.select("layer", "stage", "occurrence").rows() == [
        (layer, stage, n) for layer in (0, 1) for n in (0, 1) for stage in ("norm", "all_reduce")
    ]
    assert found.filter(~pl.col("stage").is_in(["norm", "all_reduce"]))[
        "occurrence"
    ].unique().to_list() == [0]


def test_the_host_side_reaches_from_operator_to_operator():
    # each kernel is launched 5 before it starts, inside an operator from 8 before it to 1 before it
    run = kernels(forward(2), pause=10)
    calls = [
        (f"aten::op{n}", row["start_ns"] - 8, 7, n)
        for n, row in enumerate(run.iter_rows(named=True))
    ]
    inner = [
        ("aten::inner", row["start_ns"] - 7, 5, 100 + n)
        for n, row in enumerate(run.iter_rows(named=True))
    ]
    found = layers(step_of(run, ops=ops([*calls, *inner])))
    # layer 0 begins with the third kernel, at 40, and ends with the twelfth, at 220
    assert found.select("host_start_ns", "host_dur_ns").rows() == [
        (40 - 8, 219 - 32),
        (240 - 8, 419 - 232),
    ]
    # without operators it reaches from call to call
    found = layers(step_of(run))
    assert found.select("host_start_ns", "host_dur_ns").rows() == [(35, 217 - 35), (235, 417 - 235)]


def test_the_host_side_of_graphs():
    run = kernels(forward(2)).with_columns(correlation=pl.lit(1, dtype=pl.Int64))
    call = launches(run.head(1), name="cudaGraphLaunch")
    found = layers(step_of(run, runtime=call))
    assert found.height == 2
    assert found["host_start_ns"].null_count() == 2
    assert found["host_dur_ns"].null_count() == 2
    run = kernels(forward(2))
    layer = (pl.col("start_ns") - 20) // 100  # two kernels of 10 before the layers, ten in each
    run = run.with_columns(correlation=layer.cast(pl.Int64))
    calls = launches(run.unique("correlation", keep="first", maintain_order=True))
    calls = calls.with_columns(name=pl.lit("cudaGraphLaunch"))
    assert layers(step_of(run, runtime=calls))["host_dur_ns"].to_list() == [2, 2]


def test_a_layer_on_the_host_takes_the_time_that_the_article_measured(
    sample_trace,
):
    """About 700 us of Python and dispatch a layer, the device a fraction of that; graphs have no
    such cost.
    """
    eager = layers(sample_trace("torch_tp1_eager")).filter(pl.col("phase") == "decode")
    assert eager["host_dur_ns"].null_count() == 0
    host = eager["host_dur_ns"].median()
    busy = eager["busy_ns"].median()
    assert isinstance(host, float)
    assert isinstance(busy, float)
    assert 500_000 < host < 1_500_000
    assert busy < host / 5
    graph = layers(sample_trace("torch_tp1_cudagraph")).filter(pl.col("phase") == "decode")
    assert graph["host_dur_ns"].null_count() == graph.height
