"""Captures of graphs and their replays, as SGLang and vLLM record them on AMD devices, and by
hand.
"""

import functools
import json
import warnings
from pathlib import Path

import polars as pl
import pytest

import llmprof
from llmprof.analyze import add_operators, operators
from llmprof.analyze.captures import captured
from llmprof.errors import AnalysisError, TraceWarning
from llmprof.trace import Trace
from tests.building import table_of

OWN = Path(__file__).parent / "labelled"
SGLANG = "inference__sglang_decode__sglang_Qwen3*", "inference__sglang_decode__capture*"
VLLM = (
    "inference__vllm_prefilldecode_piecewise__graph_ex*",
    "inference__vllm_prefilldecode_piecewise__capture*",
)


@functools.cache
def pair(shared, patterns):
    """A run and the trace of its captures."""
    folder = shared / "real/chrome/tracelens"
    with warnings.catch_warnings(action="ignore"):
        run, capture = (llmprof.read(next(iter(folder.glob(pattern)))) for pattern in patterns)
    return run, capture


def with_table(trace, name, frame):
    return Trace({**trace.tables, name: frame}, trace.meta, trace.coverage)


QWEN3_8B = {  # hidden 4096, 32 query and 8 key heads of 128, 12288 inside, vocabulary 151936
    (4096, 6144): "qkv_proj",
    (4096, 4096): "o_proj",
    (4096, 24576): "gate_up_proj",
    (12288, 4096): "down_proj",
    (4096, 151936): "lm_head",
}


@pytest.mark.slow
def test_a_graph_of_a_whole_step(shared):
    run, capture = pair(shared, SGLANG)
    found = captured(run, capture)
    assert found.height == 544  # 15 a layer and 4 more
    assert set(found["confidence"]) == {1.0}
    assert found.filter(pl.col("op") == "aten::mm").height == 4 * 36 + 1
    for shapes, stage in (
        found.filter(pl.col("op") == "aten::mm").select("shapes", "stage").iter_rows()
    ):
        rows, weight = json.loads(shapes)
        assert rows[0] == 32
        assert QWEN3_8B[tuple(weight)] == stage
    layers = found.filter(pl.col("layer").is_not_null()).group_by("layer").len().sort("layer")
    assert layers["layer"].to_list() == list(range(36))


def test_without_names_order_and_repetitions_decide(shared):
    """As on NVIDIA devices, where the launches of a capture name no kernel."""
    run, capture = pair(shared, SGLANG)
    nameless = with_table(capture, "runtime", capture.runtime.drop("rocm_kernel"))
    named, found = captured(run, capture), captured(run, nameless)
    assert set(found["confidence"]) == {0.9}
    assert found.drop("confidence").equals(named.drop("confidence"))
    # of 36 GEMMs of a size 18 have another name
    two = run.kernels.filter(pl.col("name").str.starts_with("Cijk"))["name"].value_counts(
        sort=True
    )["name"][:2]
    swapped = run.kernels.with_row_index("row").with_columns(
        name=pl.when((pl.col("name") == two[0]) & (pl.col("row") % 2 == 0))
        .then(pl.lit("Cijk_other"))
        .otherwise("name")
    )
    assert (
        captured(with_table(run, "kernels", swapped.drop("row")), capture)[
            "confidence"
        ].null_count()
        == 18
    )


@pytest.mark.slow
@pytest.mark.parametrize("change", ["one missing", "one more", "another order"])
def test_another_sequence_is_unknown(change, shared):
    run, capture = pair(shared, SGLANG)
    kernels = run.kernels.sort("start_ns")
    if change == "one missing":
        kernels = pl.concat([kernels.head(100), kernels.slice(101)])
    elif change == "one more":
        kernels = pl.concat([kernels, kernels.slice(100, 1)])
    else:
        names = kernels["name"].to_list()
        names[100], names[101] = names[101], names[100]
        kernels = kernels.with_columns(name=pl.Series(names))
    found = captured(with_table(run, "kernels", kernels), capture)
    unknown = found.filter(pl.col("confidence").is_null())
    assert unknown.height == (2 if change == "another order" else found.height)
    assert unknown["op"].null_count() == unknown["reason"].count() == unknown.height
    with pytest.warns(TraceWarning, match=f"{unknown.height} of {found.height} replayed kernels"):
        labels = add_operators(with_table(run, "kernels", kernels), captures=capture).events
    if unknown.height == found.height:
        assert labels.equals(with_table(run, "kernels", kernels).events)


@pytest.mark.slow
def test_graphs_of_pieces_follow_each_other(shared):
    """One graph before the first attention, 23 alike between two, one after the last: 4 + 23 x
    15 + 12 kernels.
    """
    run, capture = pair(shared, VLLM)
    found = captured(run, capture)
    assert found.group_by("graph").len().sort("graph")["len"].to_list() == [4, *[15] * 23, 12]
    assert set(found["confidence"]) == {1.0}
    experts = found.filter(pl.col("name").str.starts_with("_matmul_ogs"))
    assert set(experts["op"]) == {"vllm::moe_forward"}
    assert {json.loads(shapes)[0][0] for shapes in experts["shapes"]} == {8192}
    events = add_operators(run, captures=capture).events
    from_capture = events.join(run.events.filter(pl.col("operator").is_null()), on="event")
    assert from_capture["operator"].count() == 361
    gemms = from_capture.filter(pl.col("name").str.starts_with("Cijk"))
    assert set(gemms["operator"]) == {"aten::addmm"}
    # the sizes of the experts are those of the calls inside: 8192 tokens, 4 of 32 experts of 2944
    # in 3072
    work = operators(add_operators(run, captures=capture), device="MI300X").filter(
        operator="vllm::moe_forward"
    )
    assert work["flops"].to_list() == [2 * 8192 * 4 * 3 * 2944 * 3072]
    assert work["bound_share"].is_between(0.1, 1).all()
    sizes = add_operators(run, captures=capture).kernels.filter(
        pl.col("name") == "triton_poi_fused_constant_pad_nd_moe_forward_0"
    )
    assert sizes.select("grid_x", "block_x").unique().rows() == [(12288, 256)]


def test_the_capture_of_another_model_fits_nothing(shared):
    found = captured(pair(shared, SGLANG)[0], pair(shared, VLLM)[1])
    assert found["confidence"].null_count() == found.height == 544


def own(name):
    with warnings.catch_warnings(action="ignore"):
        return llmprof.read(OWN / f"{name}.pt.trace.json.gz")


QWEN25_1B = {  # hidden 1536, 12 query and 2 key heads of 128, 8960 inside, vocabulary 151936
    (1536, 2048): "qkv_proj",
    (1536, 1536): "o_proj",
    (1536, 17920): "gate_up_proj",
    (8960, 1536): "down_proj",
    (1536, 151936): "lm_head",
}


def test_a_graph_of_vllm_on_an_nvidia_device():
    """Four decode steps of 123 kernels, whose capture has 123 launches without names; 10 layers."""
    run, capture = own("capture_full"), own("capture_full_of_graphs")
    found = captured(run, capture)
    assert found.height == 4 * 123
    assert set(found["confidence"]) == {0.9}
    multiplied = found.filter(
        pl.col("op").is_in(["aten::mm", "aten::addmm"]) & (pl.col("stage") != "other")
    )
    assert (
        multiplied.height == 4 * 10 * 5
    )  # one product is split, and its parts are added by a kernel
    for shapes, stage in multiplied.select("shapes", "stage").iter_rows():
        rows, weight = [shape for shape in json.loads(shapes) if len(shape) == 2][:2]
        assert rows[0] == 4
        assert QWEN25_1B[tuple(weight)] == stage
    by_place, by_module = run.events, add_operators(run, captures=capture).events
    known = by_module["evidence"] == "module"
    assert (known & by_module["replayed"]).sum() == 4 * 123
    for label in ("layer", "stage"):
        same = by_place.filter(known)[label].eq_missing(by_module.filter(known)[label])
        assert same.mean() > 0.99


def by_hand(order, graphs):
    """A run that replays graphs in some order, and the capture of these: launches with operator
    and shapes.
    """
    calls, ops, at = [], [], 0
    for graph in graphs:
        calls.append((at, "cudaStreamBeginCapture"))
        for op, shapes in graph:
            at += 10
            ops.append((at, op, shapes))
            calls.append((at + 1, "cudaLaunchKernel"))
        at += 10
        calls.append((at, "cudaStreamEndCapture"))
        at += 10
    runtime = pl.DataFrame(calls, schema=["start_ns", "name"], orient="row")
    runtime = runtime.with_columns(rank=0, thread=1, dur_ns=2, api=pl.lit("runtime"))
    operators = table_of("start_ns name shapes", ops)
    operators = operators.with_columns(rank=0, thread=1, dur_ns=8, kind=pl.lit("op"))
    launches = pl.DataFrame(
        {"start_ns": range(0, 100 * len(order), 100), "correlation": range(len(order))}
    )
    launches = launches.with_columns(
        rank=0, thread=1, dur_ns=5, name=pl.lit("cudaGraphLaunch"), api=pl.lit("runtime")
    )
    rows = [
        (100 * n + 10 * k + 10, n, name)
        for n, names in enumerate(order)
        for k, name in enumerate(names.split())
    ]
    kernels = table_of("start_ns correlation name", rows)
    kernels = kernels.with_columns(rank=0, stream=7, dur_ns=5)
    return Trace({"runtime": launches, "kernels": kernels}), Trace(
        {"runtime": runtime, "ops": operators}
    )


def test_what_differs_between_the_captures_that_fit_is_unknown():
    small = [("aten::mm", "[[4, 8], [8, 8]]"), ("aten::silu", "[[4, 8]]")]
    large = [("aten::mm", "[[9, 8], [8, 8]]"), ("aten::silu", "[[9, 8]]")]
    run, capture = by_hand(["nvjet_a silu_kernel"], [small, large])
    found = captured(run, capture)
    assert found.select("op", "shapes", "graph", "confidence").rows() == [
        ("aten::mm", None, None, 0.9),
        ("aten::silu", None, None, 0.9),
    ]
    # what an operator says is not so cannot be its kernel
    run, capture = by_hand(["silu_kernel nvjet_a"], [small])
    assert (
        captured(run, capture)["reason"].to_list()
        == ["no capture has this sequence of kernels"] * 2
    )


@pytest.mark.parametrize("launches", ["one for all", "none", "one each"])
@pytest.mark.parametrize("other", [0, 2])
def test_several_replays_of_one_capture(launches, other):
    """A capture of 40 kernels, each with a name of its own, is replayed four times; two of its
    names are not those that ran.
    """
    graph = [("aten::mm", f"[[{n}, 8], [8, 8]]") for n in range(40)]
    ran = [f"kernel_{n}" if n >= other else f"tuned_{n}" for n in range(40)]
    run, capture = by_hand([" ".join(ran)] * 4, [graph])
    named = capture.runtime.with_row_index("n").with_columns(
        rocm_kernel=pl.when(pl.col("name") == "cudaLaunchKernel").then(
            pl.format("kernel_{}", pl.col("n") - 1)
        )
    )
    capture = with_table(capture, "runtime", named.drop("n"))
    kernels = run.kernels.sort("correlation", "start_ns")
    kernels = kernels.with_columns(start_ns=pl.int_range(pl.len()) * 10 + 100)
    run = with_table(run, "kernels", kernels)
    if launches != "one each":
        of_all = pl.lit(0 if launches == "one for all" else None, dtype=pl.Int64)
        run = Trace(
            {
                "kernels": kernels.with_columns(correlation=of_all),
                "runtime": run.runtime.head(1 if launches == "one for all" else 0),
            }
        )
    found = captured(run, capture)
    assert found.height == 4 * 40
    known = found.filter(pl.col("confidence").is_not_null())
    assert known.height == 4 * (40 - other)
    assert set(known["confidence"]) == {(40 - other) / 40}
    assert known["shapes"].to_list() == [f"[[{n}, 8], [8, 8]]" for n in range(other, 40)] * 4
    assert found.filter(pl.col("confidence").is_null())["reason"].count() == 4 * other
    if other:
        with pytest.warns(TraceWarning, match="8 of 160 replayed kernels"):
            add_operators(run, captures=capture)


def test_no_capture():
    run, _ = by_hand(["nvjet_a"], [])
    with pytest.raises(AnalysisError, match="no graph was captured"):
        captured(run, run)
    eager, capture = by_hand([], [[("aten::mm", "[]")]])
    kernels = pl.DataFrame({"rank": 0, "stream": 7, "start_ns": [0], "dur_ns": 1, "name": "gemm"})
    alone = captured(Trace({"kernels": kernels}), capture)  # order alone is too little
    assert alone.select("name", "confidence").rows() == [("gemm", None)]
    assert (
        captured(Trace({**eager.tables, "kernels": kernels}), capture).columns
        == captured(run, capture).columns
    )
