"""Operators against their bounds, on a trace whose answers were computed by hand, and against
TraceLens' references.
"""

import ast
import json
from pathlib import Path

import polars as pl
import pytest

import llmprof
from llmprof import analyze
from llmprof.analyze.operator_arguments import IN_GRAPH
from llmprof.errors import AnalysisError, LlmprofError, NotCapturedError
from llmprof.theory.hardware import Device
from llmprof.trace import Trace
from tests.analyze.test_roofline import TINY, two_steps
from tests.building import table_of
from tests.samples import sample

DEVICE = Device("mine", r"(?!)", {"bf16": 1e12}, 1e9, None, None, None, cache_bytes=200.0)
"""1,000 FLOPs and a byte in a nanosecond."""

MM, ADD = ("[[40, 80], [80, 20]]", '["c10::BFloat16", "c10::BFloat16"]'), ("[[8]]", '["float"]')

# The attention of PyTorch holds the operator that launches, and an abs; the operator of a library
# that nobody knows launches one kernel itself and one inside of an abs.
OPS = table_of(
    "start_ns dur_ns name op_id shapes dtypes",
    [
        (0, 10, "aten::mm", 1, *MM),
        (20, 10, "aten::mm", 2, *MM),
        (40, 10, "aten::abs", 3, *ADD),
        (
            60,
            40,
            "aten::_scaled_dot_product_flash_attention",
            4,
            "[[1, 1, 4, 8], [1, 1, 4, 8], [1, 1, 4, 8], [], []]",
            '["c10::BFloat16", "c10::BFloat16", "c10::BFloat16", "Scalar", "Scalar"]',
        ),
        (65, 10, "aten::_flash_attention_forward", 5, None, None),
        (80, 10, "aten::abs", 6, *ADD),
        (110, 40, "acme::mine", 7, *ADD),
        (120, 10, "aten::abs", 8, *ADD),
        (160, 10, "aten::copy_", 9, *ADD),
    ],
).with_columns(rank=0, thread=1, kind=pl.lit("op"))
KERNELS = table_of(
    "start_ns dur_ns name op_id",
    [
        (1000, 8000, "gemm", 1),
        (10000, 2000, "reduce", 1),
        (20000, 14000, "gemm", 2),
        (40000, 100, "abs", 3),
        (50000, 600, "flash", 5),
        (60000, 50, "abs", 6),
        (70000, 500, "mine", 7),
        (80000, 100, "abs", 8),
        (90000, 300, "nobody", None),
    ],
).with_columns(rank=0, device=0, stream=7)
COPIES = pl.DataFrame(
    {
        "rank": [0],
        "start_ns": [95000],
        "dur_ns": [200],
        "name": ["Memcpy HtoD (Pageable -> Device)"],
        "kind": ["HtoD"],
        "op_id": [9],
    }
)
TRACE = Trace({"kernels": KERNELS, "copies": COPIES, "ops": OPS}, {"device": "acme 3000"})


def row(frame, operator):
    return frame.filter(pl.col("operator").eq_missing(pl.lit(operator))).row(0, named=True)


def test_a_row_and_its_bound_by_hand():
    found = row(analyze.operators(TRACE, device=DEVICE), "aten::mm")
    flops, read, written = 2 * 40 * 80 * 20, (40 * 80 + 80 * 20) * 2, 40 * 20 * 2
    # 11,200 bytes at a byte a nanosecond take longer than 128,000 FLOPs at 1,000
    assert (found["count"], found["kernels"], found["kernel"], found["kind"]) == (
        2,
        1.5,
        "gemm",
        "gemm",
    )
    assert (found["total_ns"], found["median_ns"], found["p10_ns"], found["p90_ns"]) == (
        24000,
        12000,
        10400,
        13600,
    )
    assert (found["flops"], found["read_bytes"], found["written_bytes"]) == (flops, read, written)
    assert found["intensity"] == pytest.approx(128000 / 11200)
    assert found["flop_per_s"] == pytest.approx(2 * 128000 / 24000 * 1e9)
    assert found["bytes_per_s"] == pytest.approx(2 * 11200 / 24000 * 1e9)
    assert (found["bound_ns"], found["bound_by"], found["fits_cache"]) == (11200, "memory", False)
    assert found["bound_share"] == pytest.approx(22400 / 24000)
    assert (found["gap_ns"], found["source"], found["reason"]) == (1600, "shapes", None)
    assert found["share"] == pytest.approx(24000 / KERNELS["dur_ns"].extend(COPIES["dur_ns"]).sum())
    fast = Device("mine", r"(?!)", {"bf16": 1e12}, 1e15, None, None, None)
    found = analyze.operators(TRACE, device=fast)
    assert row(found, "aten::mm")["bound_ns"] == 128
    assert row(found, "aten::mm")["bound_by"] == "bf16"
    # of the shortest kernel, 50 ns: one for an abs, two for the attention
    assert (row(found, "aten::abs")["bound_ns"], row(found, "aten::abs")["bound_by"]) == (
        50,
        "launch",
    )
    assert row(found, "aten::_scaled_dot_product_flash_attention")["bound_ns"] == 100
    assert found["fits_cache"].null_count() == found.height
    slow = Device("mine", r"(?!)", {"bf16": 1e15}, 1e8, None, None, None, cache_bytes=200.0)
    found = analyze.operators(TRACE, device=slow)
    mm, add = row(found, "aten::mm"), row(found, "aten::abs")
    assert mm["bound_share"] == pytest.approx(224000 / 24000)
    assert add["bound_share"] == pytest.approx(2 * 640 / 200)
    assert mm["reason"]
    assert add["reason"]
    assert mm["reason"] != add["reason"]  # only the second fits into the cache
    assert mm["gap_ns"] < 0
    # where arithmetic sets the bound, no cache explains it
    slow = Device("mine", r"(?!)", {"bf16": 1e9}, 1e15, None, None, None, cache_bytes=1e9)
    other = row(analyze.operators(TRACE, device=slow), "aten::mm")
    assert (other["bound_by"], other["fits_cache"], other["reason"]) == ("bf16", True, mm["reason"])
    for found in (
        analyze.operators(TRACE),
        analyze.operators(Trace({"kernels": KERNELS, "ops": OPS})),
    ):
        mm = row(found, "aten::mm")
        assert mm["flops"] == 128000
        assert mm["flop_per_s"] is not None
        assert [mm[name] for name in ("bound_ns", "bound_by", "bound_share", "gap_ns")] == [
            None
        ] * 4
        assert mm["reason"]
    with pytest.raises(LlmprofError):
        analyze.operators(TRACE, device="acme 3000")


def test_a_part_belongs_to_the_whole_and_an_unknown_operator_leaves_known_ones_theirs():
    found = analyze.operators(TRACE, device=DEVICE)
    attention = row(found, "aten::_scaled_dot_product_flash_attention")
    assert (attention["total_ns"], attention["kernels"], attention["count"]) == (650, 2, 1)
    assert attention["flops"] == 2 * 16 * 16
    assert (row(found, "aten::abs")["count"], row(found, "aten::abs")["total_ns"]) == (2, 200)
    mine = row(found, "acme::mine")
    assert (mine["total_ns"], mine["bound_ns"], mine["flops"], mine["kind"]) == (
        500,
        None,
        None,
        None,
    )
    assert row(found, None)["kernel"] == "nobody"
    without = found.filter(pl.col("bound_ns").is_null())
    assert without["reason"].null_count() == 0
    assert set(without["operator"]) == {"acme::mine", "aten::copy_", None}
    assert found["total_ns"].sum() == KERNELS["dur_ns"].sum() + 200


def test_groups_and_missing_tables():
    two = pl.concat([KERNELS, KERNELS.with_columns(rank=1)])
    ops = pl.concat([OPS, OPS.with_columns(rank=1)])
    found = analyze.operators(Trace({"kernels": two, "ops": ops}), by=("rank",), device=DEVICE)
    assert found.group_by("rank").agg(pl.col("share").sum().round(9)).sort("rank").rows() == [
        (0, 1.0),
        (1, 1.0),
    ]
    assert analyze.operators(Trace({"kernels": two, "ops": ops}), device=DEVICE).filter(
        operator="aten::mm"
    )["count"].to_list() == [4]
    with pytest.raises(AnalysisError):
        analyze.operators(TRACE, by=("nothing",))
    for table in ("kernels", "ops"):
        with pytest.raises(NotCapturedError):
            analyze.operators(
                Trace({name: frame for name, frame in TRACE.tables.items() if name != table})
            )


def test_a_replayed_kernel_without_a_capture_says_so():
    found = analyze.operators(llmprof.sample("torch_tp1_cudagraph")).filter(
        pl.col("operator").is_null()
    )
    assert found.row(0, named=True)["reason"] == IN_GRAPH


TRACELENS = "real/chrome/tracelens/"
REFERENCES = {
    "h100_falconsai": (f"{TRACELENS}h100__Falconsai_nsfw_image_detection__1016002.json.gz", 6),
    "h100_qwen1.5": (f"{TRACELENS}h100__Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz", 6),
    "mi300_bert": (f"{TRACELENS}mi300__gaunernst_bert-small-uncased__1016001.json.gz", 5),
    "mi300_qwen1.5": (f"{TRACELENS}mi300__Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz", 6),
    "mi300_owlv2": (
        "strangers/chrome/mi300__google_owlv2-large-patch14-ensemble__1016001.json.gz",
        19,
    ),
    "sglang_prefilldecode": (
        f"{TRACELENS}inference__sglang_prefilldecode__sglang_Qwen3-8B_prefilldecode.json.gz",
        5,
    ),
    "vllm_piecewise": (
        f"{TRACELENS}inference__vllm_prefilldecode_piecewise__graph_execution.json.gz",
        4,
    ),
    "vllm_decode_full": (
        "strangers/chrome/inference__vllm_decode_full__graph_execution.json.gz",
        1,
    ),
}
"""Recordings, and the rows of matrix products, convolutions and attention of TraceLens that are
compared.

Three of the last one were replayed from a graph whose capture is not among the files.
"""
CAPTURE = (
    f"{TRACELENS}inference__vllm_prefilldecode_piecewise__capture_traces__graph_capture_rank_0.1773709679453551615."
    "pt.trace.json.gz"
)


def test_a_stage_has_the_work_of_the_model_for_the_tokens_of_its_steps():
    trace = two_steps()
    found = analyze.operators(trace, model=TINY)
    assert found["total_ns"].sum() == trace.kernels["dur_ns"].sum()
    gate_up = found.row(by_predicate=pl.col("kind") == "gate_up_proj", named=True)
    # two layers in steps of 10 and 2 tokens: 4 calls of 6 tokens on the mean; gate and up are one
    # product of 16 bits
    hidden, wide = TINY["hidden_size"], 2 * TINY["intermediate_size"]
    assert (gate_up["count"], gate_up["operator"], gate_up["total_ns"]) == (4, None, 40_000)
    assert gate_up["flops"] == 2 * 6 * hidden * wide
    assert (gate_up["read_bytes"], gate_up["written_bytes"]) == (
        2 * hidden * (wide + 6),
        2 * 6 * wide,
    )
    assert gate_up["source"] == "model and step label"
    assert "tensor parallel 1" in gate_up["assumed"]
    # the shortest kernel takes longer than these bytes at 4.8 TB/s
    assert (gate_up["bound_by"], gate_up["bound_ns"], gate_up["cause"]) == ("launch", 5_000, None)
    with pytest.raises(AnalysisError):  # other layers than the trace has
        analyze.operators(trace, model=TINY | {"num_hidden_layers": 9})
    # the same model in the notes of the run; of one that does not fit nothing is known
    noted = {"name": "tiny", "config": TINY, "by": "as configured"}
    by_notes = analyze.operators(Trace(trace.tables, trace.meta | {"model": noted}))
    assert by_notes.drop("assumed").equals(found.drop("assumed"))
    for other in (TINY | {"num_hidden_layers": 9}, "no such model", None):
        with pytest.raises(NotCapturedError):
            analyze.operators(
                Trace(trace.tables, trace.meta | {"model": noted | {"config": other}})
            )


def test_recorded_shapes_come_before_the_model():
    trace = two_steps()
    events = trace.events.filter(stage="gate_up_proj").sort("start_ns")
    # an operator around the launch of the first of four; what it does is not what the model says
    launch = events["launch_start_ns"][0]
    ops = table_of(
        "start_ns dur_ns name op_id shapes dtypes", [(launch - 1, 2, "aten::mm", 1, *MM)]
    ).with_columns(rank=0, thread=events["launch_thread"][0], kind=pl.lit("op"))
    found = analyze.operators(Trace({**trace.tables, "ops": ops}, trace.meta), model=TINY)
    assert row(found, "aten::mm")["flops"] == 2 * 40 * 80 * 20
    assert found.filter(kind="gate_up_proj")["count"].to_list() == [3]
    # an operator of unknown work around two stages: the longer one has the work of both, and their
    # time
    some = trace.events.filter(layer=0, step=0).sort("start_ns")
    pair = some.filter(pl.col("stage").is_in(["gate_up_proj", "activation"]))
    first, last = pair["launch_start_ns"].min(), pair["launch_end_ns"].max()
    ops = ops.with_columns(name=pl.lit("acme::mlp"), start_ns=first - 1, dur_ns=last - first + 2)
    kernels = trace.kernels.with_columns(
        dur_ns=pl.when(pl.col("start_ns") == pair["start_ns"][0]).then(10_500).otherwise("dur_ns")
    )
    found = analyze.operators(
        Trace({**trace.tables, "kernels": kernels, "ops": ops}, trace.meta), model=TINY
    )
    assert found["total_ns"].sum() == kernels["dur_ns"].sum()
    both = found.filter(kind="gate_up_proj")
    assert both["total_ns"].sum() == 50_500
    assert found.filter(kind="activation")["count"].to_list() == [3]


def _as_recorded(operator, shapes):
    """A row of TraceLens as llmprof names it: inside of a capture it is the operator that
    launches.
    """
    return operator, json.dumps(shapes)


def _inside(operator, shapes):
    x, weight, bias = shapes
    return "aten::addmm", json.dumps([bias, x, weight[::-1], [], []])


@pytest.mark.slow
# a replay of which the capture has no graph
@pytest.mark.filterwarnings("ignore:.*replayed kernels get no labels")
@pytest.mark.parametrize("name", REFERENCES)
def test_work_and_rates_are_those_of_tracelens(name, shared):
    file, rows = REFERENCES[name]
    trace = llmprof.read(shared / file)
    if name.startswith("vllm"):
        trace = analyze.add_operators(trace, captures=llmprof.read(shared / CAPTURE))
    keys, time = ("operator", "shapes"), pl.col("total_ns").sum()
    found = analyze.operators(
        trace, device=None if trace.meta.get("device") in (H100, MI300X) else "MI300X"
    )
    found = found.filter(pl.col("flops").is_not_null()).with_columns(
        pl.col("flops", "read_bytes", "written_bytes") * pl.col("count")
    )
    found = found.group_by(keys).agg(
        pl.col("count", "flops").sum(),
        (pl.col("read_bytes") + pl.col("written_bytes")).sum().alias("bytes"),
        time,
    )
    ours = {(operator, shapes): rest for operator, shapes, *rest in found.iter_rows()}
    said = pl.read_csv(
        shared / f"strangers/tracelens_reference/{name}.unified_perf_summary.csv",
        infer_schema_length=None,
    ).filter(pl.col("op category").is_in(["GEMM", "CONV_fwd", "SDPA_fwd"]))
    said = said.group_by("name", "Input Dims").agg(
        count=pl.col("operation_count").sum(),
        flops=(pl.col("GFLOPS") * pl.col("operation_count")).sum() * 1e9,
        bytes=(pl.col("Data Moved (MB)") * pl.col("operation_count")).sum() * 2**20,
        ns=pl.col("Kernel Time (µs)_sum").sum() * 1e3,
    )
    compared = 0
    for operator, dims, count, flops, moved, ns in said.iter_rows():
        shapes = [list(each) for each in ast.literal_eval(dims)]
        mine = ours.get(_as_recorded(operator, shapes))
        if mine is None:
            mine = ours.get(_inside(operator, shapes))
        if mine is None:
            assert name == "vllm_decode_full", (operator, dims)
            continue
        left_out = (
            shapes[2][0] * 2 * count if operator == "aten::convolution" and shapes[2] else 0
        )  # its bias
        assert mine[0] == count
        assert mine[1] == pytest.approx(flops, rel=1e-9), (operator, dims)
        assert mine[2] == pytest.approx(moved + left_out, rel=1e-9), (operator, dims)
        assert mine[1] / mine[3] == pytest.approx(flops / ns, rel=0.01)
        compared += 1
    assert compared == rows


@pytest.mark.slow
def test_stages_of_a_model_have_the_work_of_tracelens_rows(shared):
    trace = llmprof.read(
        shared / f"{STRANGERS}inference__vllm_decode_full__graph_execution.json.gz"
    )
    found = analyze.operators(trace, model="gpt-oss-20b", device="MI300X")
    reference = pl.read_csv(
        shared / "strangers/tracelens_reference/vllm_decode_full.unified_perf_summary.csv"
    )
    known = reference.filter(pl.col("name").str.contains("unquantized_gemm|attention_with"))
    flops = {
        ast.literal_eval(dims): 1e9 * each
        for dims, each in known.select("Input Dims", "GFLOPS").iter_rows()
    }
    mine = dict(
        found.drop_nulls("kind")
        .filter(pl.col("operator").is_null())
        .select("kind", "flops")
        .iter_rows()
    )
    for stage, n, k in (("qkv_proj", 5120, 2880), ("o_proj", 2880, 4096), ("router", 32, 2880)):
        # the model counts no biases
        assert mine[stage] + 32 * n == pytest.approx(flops[(32, k), (n, k), (n,)])
    # half of the layers see 128 keys of each of the 32 sequences; the reference counts 55,086
    # everywhere
    whole = next(value for dims, value in flops.items() if dims[0] == (32, 64, 64))
    assert mine["attention"] == pytest.approx(whole * (1 + 32 * 128 / 55086) / 2)


H100, MI300X = "NVIDIA H100 80GB HBM3", "AMD Instinct MI300X"

CAPTURES, STRANGERS = "captures/", "strangers/chrome/"
BOUNDED = [
    (f"{CAPTURES}torch_tp1_eager", None), (f"{CAPTURES}torch_tp1_moe_eager", None),
    (f"{CAPTURES}torch_pp2_eager", None),
    (f"{CAPTURES}torch_tp4_eager_nccl", None), (f"{CAPTURES}torch_transformers_generate", None),
    (f"{TRACELENS}b200__eager_trace.json.gz", None),
    ("real/chrome/megatron_tp8/megatron_kineto_0.json.gz", None),
    (f"{TRACELENS}inference__sglang_prefilldecode__sglang_Qwen3-8B_prefilldecode.json.gz", None),
    (f"{STRANGERS}mi300__google_owlv2-large-patch14-ensemble__1016001.json.gz", None),
    (f"{TRACELENS}mi300__gaunernst_bert-small-uncased__1016001.json.gz", None),
    # launched before the recording began, and repeated in it
    (f"{TRACELENS}h100__Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz", ""),
    (f"{TRACELENS}mi300__Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz", ""),
    # graphs: from a capture, and from a run without graphs
    (f"{TRACELENS}inference__sglang_decode__sglang_Qwen3-8B_decode.json.gz",
     f"{TRACELENS}inference__sglang_decode__capture_traces__bs_32_rank0.json.gz"),
    (f"{CAPTURES}torch_tp1_cudagraph", f"{CAPTURES}torch_tp1_eager"),
    (f"{CAPTURES}torch_tp4_cudagraph", f"{CAPTURES}torch_tp4_eager_nccl"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::llmprof.errors.TraceWarning")
@pytest.mark.parametrize(("file", "beside"), BOUNDED)
def test_most_of_the_time_has_a_bound(file, beside, shared):
    """Of the time outside of collectives, which are compared with the links."""
    trace = llmprof.read(shared / file)
    least = 0.9
    if beside is not None:
        other = llmprof.read(shared / beside) if beside else None
        captured = other is not None and "capture" in Path(beside).name
        trace = (
            analyze.add_operators(trace, captures=other)
            if captured and other
            else analyze.add_operators(trace, eager=other)
        )
        least = 0.9 if captured or not beside else 0.8
    named = trace.meta.get("device")
    known = named and "B200" not in named and "Graphics" not in named
    found = analyze.operators(trace, device=None if known else "MI300X").filter(
        pl.col("category") != "collective"
    )
    bounded = found.filter(pl.col("bound_ns").is_not_null())["total_ns"].sum()
    assert bounded >= least * found["total_ns"].sum()
    assert found.filter((pl.col("bound_share") > 1.05) & pl.col("reason").is_null()).is_empty()


def test_a_run_that_spreads_its_experts_has_no_work_by_their_shapes():
    read = llmprof.sample("torch_tp1_moe_eager")
    spread = {"model": {"name": "unknown", "expert_parallel": True}}
    for meta, known in (({}, True), (spread, False)):
        found = analyze.operators(Trace(read.tables, read.meta | meta)).filter(kind="moe_experts")
        assert found.height
        assert (found["bound_ns"].null_count() == 0) is known
        assert found["bound_ns"].is_not_null().all() is known


def test_experts_of_replicas_have_the_tokens_of_all_ranks():
    trace = sample("torch_ep2_dp2_eager")
    found = analyze.operators(trace, by=("rank", "step", "stage"), model="Qwen3-30B-A3B")
    experts = found.filter(pl.col("kind") == "experts", pl.col("bound_ns").is_not_null())
    per_token = (
        2 * 8 / 2 * 3 * 2048 * 768
    )  # 8 experts of a token, half of them on each of two ranks
    # 291 and 2 tokens at the same time; then 6 beside a pass of padding, which has one and no step
    experts = experts.sort("rank", "step", nulls_last=True)
    assert experts.select("rank", "step", pl.col("flops") / per_token, "count").rows() == [
        (0, 0, 293, 48),
        (0, 1, 7, 48),
        (1, 0, 293, 48),
        (1, None, 7, 48),
    ]
    work = found.filter(pl.col("category").ne_missing("collective"))
    assert (
        work.filter(pl.col("bound_ns").is_not_null())["total_ns"].sum()
        > 0.98 * work["total_ns"].sum()
    )
    assert experts["bound_share"].is_between(0.2, 1).all()
    # what an operator exchanges is apart from what it computes
    exchanged = found.filter(category="collective")
    assert (
        exchanged["total_ns"].sum()
        == trace.kernels.filter(pl.col("name").str.contains("nccl"))["dur_ns"].sum()
    )


def test_a_symbolic_shape_inside_of_a_call_refuses_this_call_alone():
    index = (200, 40, "aten::index", 10, "[[100, 16], []]", '["float", ""]')
    inside = (210, 5, "aten::reshape", 11, '[["s0"], []]', '["long int", ""]')
    more = pl.DataFrame([index, inside], schema=OPS.columns[:6], orient="row")
    gather = pl.DataFrame(
        [(99000, 100, "vectorized_gather_kernel", 10)], schema=KERNELS.columns[:4], orient="row"
    )
    tables = {
        "ops": pl.concat([OPS, more.with_columns(rank=0, thread=1, kind=pl.lit("op"))]),
        "kernels": pl.concat([KERNELS, gather.with_columns(rank=0, device=0, stream=7)]),
    }
    found = analyze.operators(Trace(tables, TRACE.meta), device=DEVICE)
    assert row(found, "aten::index")["bound_ns"] is None
    assert row(found, "aten::index")["reason"] is not None
    assert row(found, "aten::mm")["bound_ns"] == (40 * 80 + 80 * 20) * 2 + 40 * 20 * 2
