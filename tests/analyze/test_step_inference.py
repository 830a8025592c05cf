"""Steps without labels: found by embedding, by sampling, by size; and compared with the labels
of real recordings.
"""

import polars as pl
import pytest

from llmprof.analyze import layers, steps
from llmprof.trace import Trace
from tests.analyze.builders import (
    ATTENTION,
    DENSE,
    EMBEDDING,
    GEMM,
    NORM,
    end,
    forward,
    kernels,
    labels,
    launches,
    ops,
)


def test_kernels_only_three_forward_passes():
    # 2 layers: 2 + 20 + 5 = 27 kernels of 10 ns without a pause; each pass begins with its input
    # kernel
    frames = [kernels(forward(2), start=1000 * n) for n in range(3)]
    trace = Trace({"kernels": pl.concat(frames)})
    found = steps(trace)
    assert found["start_ns"].to_list() == [0, 1000, 2000]
    assert found["dur_ns"].to_list() == [1000, 1000, 270]
    assert found["source"].unique().to_list() == ["inferred"]
    assert found["phase"].unique().to_list() == ["other"]  # kernels do not say what is in a batch
    for unknown in (
        "host_start_ns",
        "host_dur_ns",
        "name",
        "prefill_requests",
        "decode_tokens",
    ):
        assert found[unknown].null_count() == 3
    assert trace.events["step"].to_list() == [0] * 27 + [1] * 27 + [2] * 27
    assert layers(trace).group_by("step").len()["len"].to_list() == [2, 2, 2]


def test_embedding_operator_names_the_batch():
    run = pl.concat([kernels(forward(2), start=1000 * n, first=100 * n) for n in range(3)])
    embedding = run.filter(pl.col("name") == EMBEDDING)
    run = run.with_columns(
        op_id=pl.when(pl.col("name") == EMBEDDING).then(
            pl.col("correlation") + 1000
        )  # the inner operator
    )
    calls = []
    for n, row in enumerate(embedding.iter_rows(named=True)):
        shape = "[[151936, 1536], [4, 128]]" if n == 0 else "[[151936, 1536], [4, 1]]"
        calls.append(("aten::embedding", row["start_ns"] - 8, 6, row["correlation"], shape))
        calls.append(
            ("aten::index_select", row["start_ns"] - 6, 4, row["correlation"] + 1000, None)
        )
    found = steps(Trace({"kernels": run, "runtime": launches(run, lead=5), "ops": ops(calls)}))
    batch = found.select(
        "phase", "prefill_requests", "prefill_tokens", "decode_requests", "decode_tokens"
    )
    assert batch.rows() == [
        ("prefill", 4, 512, 0, 0),
        ("decode", 0, 0, 4, 4),
        ("decode", 0, 0, 4, 4),
    ]
    assert found["start_ns"].to_list() == [0, 1000, 2000]


def test_tokens_of_an_engine_that_samples_on_the_host():
    """Each begins with a look-up; the products after a router are its experts."""
    layer = [
        *("rms_norm_f32<512>", "mul_mat_vec_q<8>", "rope_norm<false>", "k_set_rows<float>"),
        *("flash_attn_tile<64>", "mul_mat_vec_q<8>", "k_bin_bcast<op_add>", "rms_norm_f32<512>"),
        *("mul_mat_vec_f<half>", "topk_moe_cuda<32>", "mul_mat_vec_q<6>", "mul_mat_vec_q<2>"),
        "k_bin_bcast<op_add>",
    ]
    token = ["k_get_rows<16>", *layer * 3, "rms_norm_f32<512>", "mul_mat_vec_q<8>"]
    run = [kernels(token, start=1000 * n, first=100 * n) for n in range(4)]
    trace = Trace({"kernels": pl.concat(run)})
    assert steps(trace)["start_ns"].to_list() == [0, 1000, 2000, 3000]
    found = layers(trace, by="stage").select("stage", "count", "kernels").rows()
    sums = {stage: (count, size) for stage, count, size in found}
    assert sums["router"] == (12, 24)
    assert sums["experts"] == (12, 24)
    assert sums["combine"] == sums["residual"] == (12, 12)


def test_an_engine_that_embeds_and_samples_on_the_host():
    """Passes end where the device's result is read; attention is a softmax between products, and
    of one query a sequence where its products multiply a vector.
    """
    bias, product = "k_bin_bcast<op_add, float>", "mul_mat_f<bf16, 32, 4>"
    first = ["rms_norm_f32<1024>", *((product, bias, "rope_neox<true>") * 2), product, bias]
    last = [product, bias, "rms_norm_f32<1024>", product, product, "unary_gated_op_kernel<op_silu>"]
    tail = ["k_get_rows_float<float>", "rms_norm_f32<1024>", product]

    def one(number, reads):
        by = "cutlass_80_tensorop_s16816gemm" if reads else "mul_mat_vec_f<half, float, 1>"
        attention = ["k_set_rows<float>"] * 2 + [by, "soft_max_f32<true>", by]
        layer = [*first, *attention, *last, product, bias]
        return kernels([*layer * 3, *tail], start=2000 * number + 20, first=200 * number)

    runs = [one(number, number == 0) for number in range(6)]
    ends = [end(run) for run in runs]
    kinds = ["Memcpy HtoD (Pinned -> Device)", "Memcpy DtoH (Device -> Pinned)"]
    copies = pl.DataFrame(
        {
            "rank": 0,
            "device": 0,
            "stream": 7,
            "start_ns": [2000 * n + 10 for n in range(6)] + ends,
            "dur_ns": 5,
            "name": [kind for kind in kinds for _ in range(6)],
            "kind": [kind.split()[1] for kind in kinds for _ in range(6)],
        }
    )
    trace = Trace({"kernels": pl.concat(runs), "copies": copies})
    found = steps(trace)
    assert found["start_ns"].to_list() == [2000 * n + 10 for n in range(6)]
    assert found["phase"].to_list() == ["prefill", *["decode"] * 5]
    events = trace.events.filter(pl.col("layer").is_not_null(), step=2)
    assert events.group_by("layer").len()["len"].to_list() == [len(first) + 5 + len(last) + 2] * 3
    stages = events.filter(layer=1)["stage"].to_list()
    expected = ["norm", *("qkv_proj", "qkv_proj", "rope") * 2, "qkv_proj", "qkv_proj"]
    assert stages[: len(first)] == expected
    assert stages[len(first) : len(first) + 5] == ["kv_cache_write"] * 2 + ["attention"] * 3
    assert stages[-2:] == ["down_proj", "residual"]


@pytest.mark.parametrize("seen", [5, 1])
def test_the_pass_of_a_vision_tower_is_no_prefill(seen):
    # a request is decoded, then an image is encoded, and its prompt of 96 tokens is read; the tower
    # looks up no token
    sees = [
        NORM,
        GEMM,
        ATTENTION,
        GEMM,
        NORM,
        GEMM,
        "void vllm::gelu_quick_kernel<c10::BFloat16>",
        GEMM,
    ]
    passes = [forward(3), forward(3), ["patches_kernel", *sees * seen], forward(3), forward(3)]
    run = pl.concat([kernels(p, start=1000 * n, first=100 * n) for n, p in enumerate(passes)])
    lengths = iter([1, 1, 96, 1])
    calls = [
        (
            "aten::embedding",
            row["start_ns"] - 8,
            6,
            row["correlation"],
            f"[[151936, 1536], [1, {next(lengths)}]]",
        )
        for row in run.filter(pl.col("name") == EMBEDDING).iter_rows(named=True)
    ]
    run = run.with_columns(op_id=pl.when(pl.col("name") == EMBEDDING).then("correlation"))
    found = steps(Trace({"kernels": run, "runtime": launches(run, lead=5), "ops": ops(calls)}))
    assert found["phase"].to_list() == ["decode", "decode", "other", "prefill", "decode"]
    assert found["prefill_tokens"].to_list() == [0, 0, None, 96, 0]


def test_a_stage_in_the_middle_of_a_pipeline_is_parted_by_size():
    # no embedding, no lm_head: between two passes stand 4 kernels more than between two layers
    passes = [["recv", *DENSE * 3, "send", "update_kernel", "write_kernel"]] * 4
    run = pl.concat([kernels(p, start=1000 * n) for n, p in enumerate(passes)])
    found = steps(Trace({"kernels": run}))
    assert found["start_ns"].to_list() == [0, 1000, 2000, 3000]
    assert layers(Trace({"kernels": run})).group_by("step").len()["len"].to_list() == [3] * 4


def test_start_up_before_the_first_pass_is_no_step():
    load = kernels(["weights_kernel"], start=0)
    run = pl.concat([load, *(kernels(forward(2), start=5000 + 1000 * n) for n in range(3))])
    found = steps(Trace({"kernels": run}))
    assert found["start_ns"].to_list() == [5010, 6000, 7000]
    assert Trace({"kernels": run}).events.filter(pl.col("step").is_null())["name"].to_list() == [
        "weights_kernel",
        "_prepare_inputs_kernel",
    ]


@pytest.mark.parametrize(
    "names",
    [
        ["volta_sgemm_128x32_nt", "relu_kernel"] * 50,  # no attention
        [ATTENTION],  # nothing repeats
        [GEMM, ATTENTION, GEMM, "void flash::flash_bwd_dq_dk_dv_loop_kernel<>", GEMM]
        * 4,  # training
        [NORM, GEMM, ATTENTION, GEMM, NORM, GEMM, ATTENTION, *[GEMM] * 9]
        * 6,  # two kinds of layers, no embedding
        [],
    ],
)
def test_no_steps_are_made_up(names):
    trace = Trace({"kernels": kernels(names)})
    assert steps(trace).is_empty()
    assert trace.events["step"].null_count() == len(names)
    assert steps(trace).schema == steps(Trace({"kernels": kernels(forward(2))})).schema


def test_only_ranks_without_labels_are_inferred():
    zero, one = kernels(forward(2), rank=0), kernels(forward(2), rank=1, first=100)
    run = pl.concat([zero, one])
    trace = Trace(
        {
            "kernels": run,
            "runtime": launches(run),
            "markers": labels([("execute_context_0(0)_generation_4(4)", -20, 300)], rank=1),
        }
    )
    assert steps(trace).select("rank", "source", "phase").rows() == [
        (0, "inferred", "other"),
        (1, "vllm", "decode"),
    ]


RECORDINGS = {
    "torch_cpu_tp2_layer_annotations": (9, 0.99),
    "torch_tp1_eager": (17, 0.99),
    "torch_tp1_cudagraph": (17, 0.97),
    "torch_tp1_moe_eager": (7, 0.99),
    "torch_tp4_eager_custom_allreduce": (11, 0.99),
    "torch_tp4_eager_nccl": (12, 0.99),
    "torch_tp4_cudagraph": (52, 0.97),
    "torch_pp2_eager": (10, 0.97),
}
"""Steps with work on a rank, and the least share of events that must be in the step that the
label gives them.
"""


@pytest.mark.parametrize(
    ("name", "host"),
    [(name, host) for name in RECORDINGS for host in (True, False) if host or "cpu" not in name],
)
def test_inferred_steps_agree_with_the_labels(name, host, sample_trace):
    count, least = RECORDINGS[name]
    trace = sample_trace(name)
    tables = trace.tables
    tables["markers"] = tables["markers"].filter(~pl.col("name").str.contains("^execute_"))
    if not host:
        tables = {t: tables[t] for t in ("kernels", "copies", "collectives")}
    blind = Trace(tables, trace.meta)
    assert steps(blind).group_by("rank").len()["len"].unique().to_list() == [count]
    worked = (
        trace.events.filter(pl.col("step").is_not_null())
        .select("rank", "step")
        .unique()
        .sort("rank", "step")
    )
    if (
        name == "torch_pp2_eager"
    ):  # a send launched after an empty step's label counts for the step after it
        worked = worked.join(
            layers(trace).select("rank", "step").unique(), on=["rank", "step"], how="semi"
        ).sort("rank", "step")
    truth = trace.events.join(
        worked.with_columns(nth=pl.int_range(pl.len(), dtype=pl.Int32).over("rank")),
        on=["rank", "step"],
        how="left",
    )
    both = truth.select("event", "nth").join(blind.events.select("event", "step"), on="event")
    assert both.select(pl.col("nth").eq_missing(pl.col("step")).mean()).item() >= least
