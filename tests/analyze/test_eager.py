"""Operators of replayed kernels from eager steps, on traces built by hand."""

import json

import polars as pl
import pytest

from llmprof import analyze
from llmprof.analyze.eager import LEAST_RUN
from llmprof.errors import NotCapturedError
from llmprof.trace import Trace
from tests.building import table_of


def steps_of(labels):
    """Ranges of an engine, one each microsecond."""
    return pl.DataFrame(
        {
            "rank": 0,
            "thread": 1,
            "start_ns": [1000 * n for n in range(len(labels))],
            "dur_ns": 900,
            "name": [f"execute_{label}" for label in labels],
            "on_device": False,
            "domain": "user_annotation",
        }
    )


def eager(labels, each, grid=4):
    """Steps of (kernel, shapes of the aten::mm that launched it)."""
    kernels, ops = [], []
    for step, launched in enumerate(each):
        for place, (name, shapes) in enumerate(launched):
            at, number = 1000 * step + 10 + 20 * place, 100 * step + place + 1
            ops.append((at, 10, "aten::mm", number, shapes))
            kernels.append((at + 5, 5, name, number, number, grid))
    return made(labels, kernels, ops, "cudaLaunchKernel")


def made(labels, kernels, ops, call):
    frame = table_of("start_ns dur_ns name op_id correlation grid_x", kernels).with_columns(
        rank=0, device=0, stream=7, grid_y=1, grid_z=1
    )
    of_ops = pl.DataFrame(
        ops,
        orient="row",
        schema={
            "start_ns": pl.Int64,
            "dur_ns": pl.Int64,
            "name": pl.String,
            "op_id": pl.Int64,
            "shapes": pl.String,
        },
    ).with_columns(rank=0, thread=1, kind=pl.lit("op"), dtypes=pl.lit('["float", "float"]'))
    runtime = frame.unique("correlation").select(
        "rank", "correlation", start_ns=pl.col("start_ns") - 3
    )
    runtime = runtime.with_columns(
        thread=1, process=1, dur_ns=2, api=pl.lit("runtime"), name=pl.lit(call)
    )
    return Trace({"kernels": frame, "ops": of_ops, "runtime": runtime, "markers": steps_of(labels)})


def graph(labels, each, grid=4):
    """Steps that replay a graph of the named kernels."""
    kernels = [
        (1000 * step + 15 + 20 * place, 5, name, None, step + 1, grid)
        for step, names in enumerate(each)
        for place, name in enumerate(names)
    ]
    return made(labels, kernels, [], "cudaGraphLaunch")


DECODE = "context_0(0)_generation_2(2)"
LARGER = "context_0(0)_generation_4(4)"
SMALL, WIDE = "[[2, 8], [8, 4]]", "[[2, 4], [4, 16]]"


def found(trace):
    rows = trace.kernels.sort("start_ns")
    return list(rows.select("name", "torch_capture_shapes").iter_rows())


def test_steps_of_equal_batch_with_as_many_kernels_of_a_name():
    known = eager(
        [LARGER, DECODE],
        [[("gemm", "[[4, 8], [8, 4]]")] * 2, [("gemm", SMALL), ("gemm", WIDE), ("odd", SMALL)]],
    )
    replayed = graph([DECODE], [["gemm", "fused", "gemm", "odd", "odd"]])
    got = analyze.add_operators(replayed, eager=known)
    # the second batch is equal; "odd" runs twice here and once there, "fused" only here
    assert found(got) == [
        ("gemm", SMALL),
        ("fused", None),
        ("gemm", WIDE),
        ("odd", None),
        ("odd", None),
    ]
    rows = analyze.operators(got).filter(operator="aten::mm").sort("shapes")
    assert rows.select("shapes", "count", "flops").rows() == [
        (WIDE, 1, 2 * 2 * 4 * 16),
        (SMALL, 1, 2 * 2 * 8 * 4),
    ]
    assert rows["source"].str.contains("eager").all()
    assert analyze.operators(known)["source"].str.contains("eager").any() is False


def test_another_batch_or_another_grid_gives_nothing():
    known = eager([DECODE], [[("gemm", SMALL)]])
    assert found(analyze.add_operators(graph([LARGER], [["gemm"]]), eager=known)) == [
        ("gemm", None)
    ]
    assert found(analyze.add_operators(graph([DECODE], [["gemm"]], grid=5), eager=known)) == [
        ("gemm", None)
    ]
    known = eager([DECODE], [[("void acme::mine<1>(int)", SMALL)]], grid=5)
    got = analyze.add_operators(graph([DECODE], [["void acme::mine<2>(int)"]]), eager=known)
    assert found(got) == [("void acme::mine<2>(int)", SMALL)]


@pytest.mark.parametrize("differing", [False, True])
def test_kernels_from_before_the_recording_that_it_repeats(differing):
    names = [f"kernel{n}" for n in range(LEAST_RUN)]
    ops, kernels = [], []
    for turn in range(3):
        for place, name in enumerate(names):
            at, number = 10000 * turn + 20 * place, 1000 * turn + place + 1
            size = 3 if differing and turn == 2 and place == 0 else 2
            if turn:
                ops.append((at, 10, "aten::mm", number, json.dumps([[size, 8], [8, 4]])))
            kernels.append((at + 5, 5, name, number if turn else None, number if turn else None, 4))
    trace = made([], kernels, ops, "cudaLaunchKernel")
    trace = Trace({name: frame for name, frame in trace.tables.items() if name != "markers"})
    got = found(analyze.add_operators(trace))[:LEAST_RUN]
    assert got[0] == ("kernel0", None if differing else "[[2, 8], [8, 4]]")
    assert got[1:] == [(name, "[[2, 8], [8, 4]]") for name in names[1:]]
    short = Trace({**trace.tables, "kernels": trace.kernels.filter(pl.col("start_ns") > 30)})
    assert {shapes for _, shapes in found(analyze.add_operators(short))} == {None}


@pytest.mark.parametrize("grid", [4, 5, None])
def test_a_recording_without_operators_beside_one_of_another_profiler(grid):
    names = [f"void at::native::<unnamed>::op{n}<(int)4, T1>(T1 *)" for n in range(LEAST_RUN)]
    spelled = [
        f"void at::native::(anonymous namespace)::op{n}<4, float>(float*)" for n in range(LEAST_RUN)
    ]
    # the last two kernels are of one call
    called = [min(n, LEAST_RUN - 2) for n in range(LEAST_RUN)]
    ops = [(20 * n, 15, "aten::mm", n + 1, SMALL if n else WIDE) for n in range(LEAST_RUN - 1)]
    kernels = [(20 * n + 5, 5, name, called[n] + 1, n + 1, 4) for n, name in enumerate(spelled)]
    known = made([], kernels, ops, "cudaLaunchKernel")
    bare = made(
        [],
        [(70 * n, 8, name, None, n + 1, grid) for n, name in enumerate(names)],
        [],
        "cudaLaunchKernel",
    )
    bare = Trace({"kernels": bare.kernels, "runtime": bare.runtime})
    with pytest.raises(NotCapturedError):
        analyze.operators(bare)
    # names of profilers differ, so that every grid must say that the kernels are the same
    got = analyze.add_operators(bare, eager=known)
    if grid != 4:
        assert {shapes for _, shapes in found(got)} == {None}
        return
    assert [shapes for _, shapes in found(got)] == [WIDE, *[SMALL] * (LEAST_RUN - 1)]
    rows = analyze.operators(got, device="H100 SXM").sort("count")
    assert rows["count"].to_list() == [1, LEAST_RUN - 2]
    assert rows["total_ns"].to_list() == [8, 8 * (LEAST_RUN - 1)]
    assert rows["flops"].to_list() == [2 * 2 * 4 * 16, 2 * 2 * 8 * 4]
    # ((2 x 4 + 4 x 16) + 2 x 16) floats: bound by the shortest kernel of the recording
    assert rows["read_bytes"][0] + rows["written_bytes"][0] == (8 + 64 + 32) * 4
    assert rows["bound_ns"][0] == 8.0
    assert (
        analyze.opportunities(got, device="H100 SXM").filter(part="step")["gap_ns"].item()
        is not None
    )


def test_nsys_beside_the_profiler_of_torch(sample_trace):
    known = sample_trace("torch_transformers_generate")
    got = analyze.add_operators(sample_trace("nsys_transformers_generate"), eager=known)
    sums = [
        analyze.operators(trace)
        .filter(pl.col("operator").is_not_null() & (pl.col("category") != "copy"))
        .group_by("operator", "shapes", "dtypes")
        .agg(pl.col("count").sum(), flops=pl.col("flops").mean())
        .sort("operator", "shapes", "dtypes")
        for trace in (known, got)
    ]
    assert sums[0].filter(operator="aten::mm")["count"].sum() > 50
    for name in ("aten::mm", "aten::addmm", "aten::scaled_dot_product_attention", "aten::add"):
        assert sums[0].filter(operator=name).equals(sums[1].filter(operator=name))


def test_what_a_call_holds_comes_with_it():
    """Experts whose sizes only the calls inside of them say."""
    tokens, logits, gate = (
        "[[4, 10], [4, 8]]",
        "[[8, 16], [8, 32]]",
        "[[4, 2], [4, 2], [4, 2], [4, 8]]",
    )
    known = eager([DECODE], [[("experts", tokens)]])
    inner = [("_moe_C::topk_softmax", gate), ("_C::silu_and_mul", logits)]
    floats = [json.dumps(["float"] * len(json.loads(shapes))) for _, shapes in inner]
    more = known.ops.clear(2).with_columns(
        rank=0,
        thread=1,
        start_ns=pl.Series([12, 14]),
        dur_ns=1,
        kind=pl.lit("op"),
        dtypes=pl.Series(floats),
        name=pl.Series([name for name, _ in inner]),
        shapes=pl.Series([shapes for _, shapes in inner]),
    )
    ops = known.ops.with_columns(name=pl.lit("vllm::moe_forward"))
    ops = pl.concat([ops, more.select(ops.columns).cast(dict(ops.schema))])
    known = Trace({**known.tables, "ops": ops})
    got = analyze.operators(analyze.add_operators(graph([DECODE], [["experts"]]), eager=known))
    # both products of 4 tokens and 2 of 8 experts each
    assert got.select("operator", "flops").rows() == [("vllm::moe_forward", 2 * 8 * 3 * 16 * 10)]


def test_what_a_capture_said_stays():
    known = eager([DECODE], [[("gemm", SMALL)]])
    replayed = graph([DECODE], [["gemm"]])
    said = replayed.kernels.with_columns(
        torch_capture_op=pl.lit("aten::mm"), torch_capture_shapes=pl.lit(WIDE)
    )
    absent = ("dtypes", "strides", "inputs", "category", "stage", "evidence")
    said = said.with_columns(
        *(pl.lit(None, dtype=pl.String).alias(f"torch_capture_{name}") for name in absent),
        torch_capture_call=pl.lit(1, dtype=pl.UInt32),
        torch_capture_layer=pl.lit(None, dtype=pl.Int32),
        torch_capture_confidence=pl.lit(1.0),
    )
    got = analyze.add_operators(Trace({**replayed.tables, "kernels": said}), eager=known)
    assert found(got) == [("gemm", WIDE)]


def test_a_graph_is_called_what_its_platform_calls_it():
    replayed = graph([DECODE], [["gemm"]])
    for device, graph_of in (
        ("AMD Instinct MI300X", "HIP graph"),
        ("NVIDIA H100 80GB HBM3", "CUDA graph"),
    ):
        why = analyze.operators(Trace(replayed.tables, {"device": device}))["reason"].item()
        assert graph_of in why
