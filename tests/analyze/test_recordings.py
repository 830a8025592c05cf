"""Layers, stages and collectives of our own recordings, against what their shapes, annotations
and raw events say.
"""

import gzip
import json
import re
import statistics
from decimal import Decimal

import polars as pl
import pytest

from llmprof.analyze import collectives, layers, steps
from llmprof.readers import bundled

LAYERS = {
    "torch_cpu_tp2_layer_annotations": 4,
    "torch_pp2_eager": 14,  # of 28, on each of two ranks
    "torch_tp1_cudagraph": 28,
    "torch_tp1_eager": 28,
    "torch_tp1_moe_eager": 48,
    "torch_tp4_cudagraph": 28,
    "torch_tp4_eager_custom_allreduce": 28,
    "torch_tp4_eager_nccl": 28,
    "torch_transformers_generate": 8,
}
TENSOR_PARALLEL = [name for name in LAYERS if "_tp4_" in name or "_tp2_" in name]


def working_steps(trace):
    return set(steps(trace).filter(pl.col("phase") != "empty").select("rank", "step").iter_rows())


@pytest.mark.parametrize("name", LAYERS)
def test_every_step_with_work_has_all_layers(name, sample_trace):
    trace = sample_trace(name)
    found = layers(trace)
    numbers = found.group_by("rank", "step").agg(pl.col("layer").sort())
    assert set(numbers.select("rank", "step").iter_rows()) == working_steps(trace)
    assert numbers["layer"].unique().to_list() == [list(range(LAYERS[name]))]
    assert found["confidence"].unique().to_list() == [1.0]


@pytest.mark.parametrize("name", TENSOR_PARALLEL)
def test_every_layer_has_two_all_reduces(name, sample_trace):
    events = sample_trace(name).events.filter(
        (pl.col("category") == "collective") & (pl.col("stage") == "all_reduce")
    )
    inside = events.filter(pl.col("layer").is_not_null())
    each = inside.group_by("rank", "step", "layer").len()
    assert each["len"].unique().to_list() == [2]
    assert each.height == LAYERS[name] * len(working_steps(sample_trace(name)))
    # and the embedding has one a step
    outside = events.filter(pl.col("layer").is_null()).group_by("rank", "step").len()
    assert set(outside.select("rank", "step").iter_rows()) == working_steps(sample_trace(name))
    assert outside["len"].unique().to_list() == [1]


QWEN_7B_TP4 = {
    (3584, 1152): "qkv_proj",
    (896, 3584): "o_proj",
    (3584, 9472): "gate_up_proj",
    (4736, 3584): "down_proj",
    (3584, 38016): "lm_head",
}
WEIGHTS = {
    "torch_tp4_eager_custom_allreduce": QWEN_7B_TP4,
    "torch_tp4_eager_nccl": QWEN_7B_TP4,
    "torch_pp2_eager": {
        (3584, 4608): "qkv_proj",
        (3584, 3584): "o_proj",
        (3584, 37888): "gate_up_proj",
        (18944, 3584): "down_proj",
        (3584, 152064): "lm_head",
    },
    "torch_tp1_eager": {
        (1536, 2048): "qkv_proj",
        (1536, 1536): "o_proj",
        (1536, 17920): "gate_up_proj",
        (8960, 1536): "down_proj",
        (1536, 151936): "lm_head",
    },
    "torch_tp1_moe_eager": {
        (2048, 5120): "qkv_proj",
        (4096, 2048): "o_proj",
        (2048, 128): "router",
        (2048, 151936): "lm_head",
    },
    "torch_transformers_generate": {
        (1536, 256): "qkv_proj",
        (1536, 8960): "gate_up_proj",
        (8960, 1536): "down_proj",
        (1536, 151936): "lm_head",
    },
}
"""Stage of the GEMM with each weight, from the models' configurations (hidden, heads,
intermediate, vocabulary).
"""

NOT_TOLD_APART = {"torch_transformers_generate": {(1536, 1536): {"qkv_proj", "o_proj"}}}
"""The projections of q and of the output have one shape; an addmm (with bias) is q's."""


@pytest.mark.parametrize("name", WEIGHTS)
def test_every_gemm_has_the_stage_of_its_weight(name, sample_trace):
    trace = sample_trace(name)
    operators = trace.ops.filter(pl.col("name").is_in(["aten::mm", "aten::addmm"])).unique(
        ["rank", "op_id"]
    )
    calls = operators.select("rank", "op_id", "shapes", op="name")
    linear = trace.events.filter(pl.col("category") == "gemm").join(calls, on=["rank", "op_id"])
    wrong, seen = [], set()
    for op, stage, shapes in linear.select("op", "stage", "shapes").iter_rows():
        k, n = [shape for shape in json.loads(shapes) if len(shape) == 2][-1]
        either = NOT_TOLD_APART.get(name, {}).get((k, n))
        want = WEIGHTS[name].get((k, n)) or (
            "qkv_proj" if op == "aten::addmm" else "o_proj" if either else None
        )
        seen.add(want)
        if stage != want:
            wrong.append(((k, n), op, stage, want))
    assert not wrong
    assert seen == set(WEIGHTS[name].values()) | (
        {"qkv_proj", "o_proj"} if name in NOT_TOLD_APART else set()
    )
    assert linear.height > 0.9 * trace.events.filter(pl.col("category") == "gemm").height


def all_reduces_by_hand(name):
    """Start and end (ns) of the all-reduce kernels of each rank, from the raw files with nothing
    of llmprof.
    """
    ranks = []
    for path in bundled.sample_files(name):
        document = json.loads(gzip.decompress(path.read_bytes()), parse_float=str)
        base = int(document["baseTimeNanoseconds"])
        calls = [
            (
                base + int(Decimal(e["ts"]) * 1000),
                base + int((Decimal(e["ts"]) + Decimal(e["dur"])) * 1000),
            )
            for e in document["traceEvents"]
            if e.get("cat") == "kernel" and re.search("cross_device_reduce|AllReduce", e["name"])
        ]
        ranks.append(sorted(calls))
    return ranks


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "figures"),
    [
        ("torch_tp4_eager_custom_allreduce", (627, 4.26, 1.0, 0.993)),
        ("torch_tp4_eager_nccl", (684, 12.05, 0.96, 0.985)),
    ],
)
def test_all_reduces_as_a_hand_calculation_finds_them(name, figures, sample_trace):
    count, transfer_us, last_three, waited = figures
    ranks = all_reduces_by_hand(name)
    assert [len(calls) for calls in ranks] == [count] * 4
    calls = list(zip(*ranks, strict=True))
    starts = [[start for start, _ in call] for call in calls]
    ends = [[end for _, end in call] for call in calls]
    # all ranks leave together, so their clocks agree; the transfer is what remains after the last
    # one has come
    assert max(max(e) - min(e) for e in ends) <= 4_000
    transfer = statistics.median(min(e) - max(s) for s, e in zip(starts, ends, strict=True))
    assert transfer == pytest.approx(transfer_us * 1000, rel=0.01)
    assert sum(s[3] == max(s) for s in starts) / count >= last_three
    for rank in (0, 1, 2):
        waiting = sum(max(s) - s[rank] for s in starts)
        assert waiting / sum(e[rank] - s[rank] for s, e in zip(starts, ends, strict=True)) >= waited

    found = (
        collectives(sample_trace(name)).filter(pl.col("kind") == "all_reduce").sort("call", "rank")
    )
    assert found["world"].unique().to_list() == [4]
    assert found["clock_offset_ns"].unique().to_list() == [0]
    origin = found["start_ns"].min() - min(map(min, starts))
    got = found.with_columns(
        pl.col("start_ns") - origin, end=pl.col("start_ns") - origin + pl.col("dur_ns")
    )
    by_call = got.group_by("call", maintain_order=True).agg(
        "start_ns", "end", "wait_ns", "transfer_ns"
    )
    ordered = by_call.sort(pl.col("end").list.min())
    want = [
        (s, e, [max(s) - start for start in s], [end - max(s) for end in e])
        for s, e in zip(starts, ends, strict=True)
    ]
    off = [
        abs(x - y)
        for a, b in zip(ordered.drop("call").iter_rows(), want, strict=True)
        for u, v in zip(a, b, strict=True)
        for x, y in zip(u, v, strict=True)
    ]
    assert len(off) == count * 16
    assert max(off) <= 4  # a start and a duration are each rounded to whole nanoseconds
    assert found["end_spread_ns"].max() <= 4_000
    assert found["last_rank"].mode().to_list() == [3]


@pytest.mark.parametrize("name", TENSOR_PARALLEL)
def test_all_calls_are_matched(name, sample_trace):
    found = collectives(sample_trace(name))
    assert found["call"].null_count() == 0
    assert found["wait_ns"].null_count() == 0
    assert found.select((pl.col("ranks") == pl.col("world")).all()).item()
    assert found.select(
        (pl.col("wait_ns") + pl.col("transfer_ns") == pl.col("dur_ns")).all()
    ).item()
    assert (found["transfer_ns"] > 0).all()
