"""The synthetic recording of two NPUs: both forms give the same frames, and analyses give its
ground truth.
"""

import json
import shutil
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import llmprof
from llmprof import analyze, names
from llmprof import synthetic_npu as make
from llmprof.errors import LlmprofError, TraceWarning
from llmprof.readers.ascend import tables
from llmprof.readers.ascend.files import ns_of_text
from llmprof.readers.bundled import SYNTHETIC_VARIANTS
from llmprof.trace import schema
from tests.readers.databases import as_view


def one_form(folder, target, form):
    """A copy of a recording with its text files only, or its databases only."""
    shutil.copytree(folder, target)
    for file in target.rglob("*"):
        if (
            file.is_file()
            and file.parent.name == "ASCEND_PROFILER_OUTPUT"
            and (file.suffix == ".db") != (form == "db")
        ):
            file.unlink()
    return target


@pytest.fixture(scope="module")
def forms(synthetic_npu, tmp_path_factory):
    folder = tmp_path_factory.mktemp("forms")
    copies = [one_form(synthetic_npu("both"), folder / form, form) for form in ("text", "db")]
    text, database = (llmprof.read(copy, cache=False) for copy in copies)
    return text, database


@pytest.mark.parametrize("table", list(schema.TABLES))
def test_text_and_database_give_the_same_frames(forms, table):
    text, database = forms
    if table not in database.tables:
        pytest.skip("not in this recording")
    assert table in text.tables
    one, other = text.table(table), database.table(table)
    shared = [c for c in one.columns if c in other.columns]
    # identifiers count rows of the file, and the text has no device, step times or kinds of
    # counters of the database
    left_out = {
        "op_id",
        "device",
        "ascend_queue_id",
        "ascend_task_type",
        "ascend_cube_utilization_pct",
    }
    columns = [c for c in shared if c not in left_out]
    if table == "counters":
        one, other = (f.filter(pl.col("name") == "AI Core Freq") for f in (one, other))
    key = [
        c
        for c in ("rank", "start_ns", "time_ns", "stream", "thread", "dur_ns", "name", "kind")
        if c in columns
    ]
    one, other = (f.select(columns).sort(key, nulls_last=True) for f in (one, other))
    assert set(one.columns) ^ set(text.table(table).columns) <= left_out | {"ascend_op_state"}
    assert_frame_equal(one, other, check_exact=False, rel_tol=1e-9, abs_tol=1.0)


def databases(folder):
    return list(folder.rglob("ascend_pytorch_profiler*.db"))


def test_a_view_of_a_database_is_named(synthetic_npu, tmp_path):
    other = one_form(synthetic_npu("both"), tmp_path / "other", "db")
    assert [as_view(path, "TASK") for path in databases(other)]
    with pytest.warns(TraceWarning) as warned:
        trace = llmprof.read(other, cache=False)
    assert any("TASK is a view" in str(warning.message) for warning in warned)
    assert trace.ops.height
    assert not trace.has("kernels")


@pytest.mark.parametrize("variant", SYNTHETIC_VARIANTS)
def test_layers_stages_and_overlap_equal_the_ground_truth(synthetic_npu, variant):
    folder = synthetic_npu(variant)
    truth = json.loads((folder / "truth.json").read_text())
    trace = llmprof.read(folder, cache=False)
    known = pl.DataFrame(truth["kernels"], infer_schema_length=None)
    found = trace.events
    shift = found["start_ns"].min() - known["start_ns"].min()
    known = known.with_columns(pl.col("start_ns") + shift)
    both = known.join(found, on=["rank", "start_ns", "name"], suffix="_found")
    assert both.height == known.height == found.height
    assert both["layer"].equals(both["layer_found"].cast(pl.Int64), null_equal=True)
    assert both["stage"].to_list() == both["stage_found"].to_list()
    assert both["step"].to_list() == both["step_found"].to_list()
    ours = analyze.overlap(trace).filter(pl.col("step").is_not_null()).sort("rank", "step")
    until_next = analyze.steps(trace).sort("rank", "step")["dur_ns"].to_list()
    for said, row, dur in zip(truth["steps"], ours.iter_rows(named=True), until_next, strict=True):
        assert (row["rank"], row["step"]) == (said["rank"], said["step"])
        assert row["compute_ns"] == pytest.approx(said["computing_ns"], abs=50)
        assert row["communication_ns"] == pytest.approx(said["communication_ns"], abs=50)
        assert row["exposed_communication_ns"] == pytest.approx(
            said["communication_not_overlapped_ns"], abs=50
        )
        assert row["hidden_communication_ns"] == pytest.approx(said["overlapped_ns"], abs=50)
        own = said["computing_ns"] + said["communication_not_overlapped_ns"] + said["free_ns"]
        after = 0 if dur is None else dur - own
        assert row["idle_ns"] == pytest.approx(said["free_ns"] + after, abs=50)


def test_the_synthetic_recording_says_that_it_is_one(synthetic_npu):
    trace = llmprof.read(synthetic_npu("baseline"), cache=False)
    assert "synthetic" in trace.meta["device"]
    assert [part["rank"] for part in trace.meta["ranks"]] == [0, 1]
    assert trace.meta["world_size"] == 2
    assert trace.coverage["warnings"] == []
    with pytest.raises(LlmprofError, match="no variant 'fast'"):
        make("fast", Path("nowhere"))


def test_steps_phases_and_collectives_over_both_ranks(synthetic_npu):
    trace = llmprof.read(synthetic_npu("baseline"), cache=False)
    steps = analyze.steps(trace)
    assert steps["phase"].to_list() == ["prefill", "decode", "decode"] * 2
    assert steps.filter(pl.col("rank") == 0)["prefill_tokens"].to_list() == [4096, 0, 0]
    calls = analyze.collectives(trace)
    assert calls["call"].null_count() == 0
    assert calls["ranks"].unique().to_list() == [2]
    assert set(calls["kind"]) == {"all_reduce", "all_gather"}
    # hand: an all-reduce of 4,096 x 7,168 bf16 is 58,720,256 bytes
    first = calls.filter((pl.col("rank") == 0) & (pl.col("kind") == "all_reduce")).row(
        0, named=True
    )
    assert first["bytes"] == 4096 * 7168 * 2
    # its transfer: 12 us and 58,720,256 B at 60 GB/s = 990.671 us
    assert first["transfer_ns"] == pytest.approx(12_000 + 58_720_256 / 60, abs=20)


def test_kernels_carry_what_the_profiler_knows_of_them(synthetic_npu):
    trace = llmprof.read(synthetic_npu("baseline"), cache=False)
    kernels = trace.kernels.filter(pl.col("ascend_op_type") == "GroupedMatmul")
    assert kernels["ascend_core"].unique().to_list() == ["AI_CORE"]
    assert kernels["ascend_input_shapes"][0] == "2048,7168;8,7168,4096;8"
    assert kernels["ascend_input_dtypes"][0] == "DT_BF16;DT_BF16;DT_BF16"
    assert 0 < kernels["ascend_aic_mac_ratio"].min() <= kernels["ascend_aic_mac_ratio"].max() <= 1
    vector = trace.kernels.filter(pl.col("ascend_core") == "AI_VECTOR_CORE")
    assert vector["ascend_aiv_vec_ratio"].unique().to_list() == [0.25]


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("1736408883704643.212", 1736408883704643212),
        ("1736408883704643", 1736408883704643000),
        ("0.02", 20),
        ("840.07675", 840077),
        ("-1.5", -1500),
        ("1e-05", 0),
        ("99999999999999999999.5", None),
        ("9999999999999999999", None),
        ("1e999", None),
        ("N/A", None),
        ("", None),
    ],
)
def test_times_keep_their_digits(text, ns):
    assert pl.select(ns_of_text(pl.lit(text))).item() == ns


@pytest.mark.parametrize(
    ("name", "task_type", "kind"),
    [
        ("aclnnMm_MatMulCommon_MatMulV2", "AI_CORE", "kernel"),
        ("Default/dropout/DropoutGenMask-op2", "AI_CPU", "kernel"),
        ("aclnnInplaceZero_ZerosLikeAiCore_ZerosLike", "Other", "kernel"),
        ("MEMCPY_ASYNC", "SDMA_SQE", "copy"),
        ("EVENT_WAIT", "EVENT_WAIT_SQE", "event_wait"),
        ("EVENT_RECORD", "PLACE_HOLDER_SQE", "event_record"),
        ("Notify Wait", "Notify Wait", "notify_wait"),
        ("Write Value", "Write Value", "notify_record"),
        ("REDUCE_ASYNC_V2", "REDUCE_ASYNC_V2", "transfer"),
        ("MODEL_EXECUTE", "MODEL_EXECUTE", "control"),
    ],
)
def test_kind_of_device_tasks(name, task_type, kind):
    assert pl.select(tables.task_kind(pl.lit(name), pl.lit(task_type))).item() == kind


@pytest.mark.parametrize(
    ("name", "category"),
    [
        ("aclnnMatmul_MatMulCommon_MatMulV2_mix_aic", "gemm"),
        ("Default/network/fc3-Dense/MatMul-op259", "gemm"),
        ("aclnnAlltoAllAllGatherBatchMatMul_x_AlltoAllAllGatherBatchMatMul", "gemm"),
        ("aclnnFlashAttentionScore_FlashAttentionScore_FlashAttentionScore", "attention"),
        ("aclnnMoeGatingTopKSoftmax_MoeGatingTopKSoftmax_MoeGatingTopKSoftmax", "moe_routing"),
        ("aclnnGroupedMatmulV4_GroupedMatmul_GroupedMatmul", "moe_experts"),
        (
            "aclnnMoeDistributeDispatchV2_MoeDistributeDispatchV2_MoeDistributeDispatchV2",
            "collective",
        ),
        ("Default/AllReduce-op534_0", "collective"),
        ("aclnnKvRmsNormRopeCache_KvRmsNormRopeCache_KvRmsNormRopeCache", "kv_cache_write"),
        ("aclnnAddRmsNorm_AddRmsNorm_AddRmsNorm", "norm"),
        ("aclnnRotaryMul_RotaryMul_RotaryMul", "rope"),
        ("aclnnSwiGlu_SwiGlu_SwiGlu", "activation"),
        ("aclnnDynamicQuant_DynamicQuant_DynamicQuant", "quantize"),
        ("Default/grad_reducer/TransData-op363", "elementwise"),
        ("aclnnCast_CastAiCpu_Cast", "elementwise"),
        ("aclnnSomething_New_UnheardOf", "other"),
        # what other vendors call by like words keeps its own meaning
        ("splitKreduce_kernel", "gemm"),
        ("indexSelectLargeIndex", "embedding"),
        ("expandInputRowsKernel", "moe_routing"),
        ("cast_to_fp8_kernel", "quantize"),
    ],
)
def test_category_of_ascend_names(name, category):
    assert names.categories(pl.Series([name])).item() == category
