"""Labels follow from the best witness: the module of the launch, then its operator, then the
kernel's name.
"""

import functools
import sys
import warnings
from pathlib import Path

import polars as pl
import pytest

import llmprof
from llmprof.analyze import collectives, stream_gaps
from llmprof.errors import TraceWarning
from llmprof.label.modules import module_calls
from llmprof.trace import Trace
from tests.analyze.builders import DENSE_STAGES, kernels

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import fidelity

GEMMS = [
    "nvjet_sm90_tst_192x8_64x8_4x1_v_bz_splitK_TNT",
    "void gemv2T_kernel_val<int, int, __nv_bfloat16, __nv_bfloat16, __nv_bfloat16, float, 128, 16, 4, 4, false, true>",
    "triton_tem_fused_addmm_relu_5",
    "void acme_unheard_of<float>(float*)",
]
"""Names of GEMMs as libraries have them, also of GEMMs for other uses, and one that no pattern
knows.
"""


@functools.cache
def read(path):
    with warnings.catch_warnings(action="ignore"):
        return llmprof.read(path)


def renamed(trace, kernels, name):
    """The trace with another name for some kernels, given by their number."""
    frame = trace.kernels.with_row_index("_row")
    new = pl.when(pl.col("_row").is_in(kernels.implode())).then(pl.lit(name)).otherwise("name")
    return Trace(
        {**trace.tables, "kernels": frame.with_columns(name=new).drop("_row")},
        trace.meta,
        trace.coverage,
    )


def gemms_of(trace, by):
    """Numbers of the kernels that are GEMMs, as their operators say (or their names, where
    modules are known).
    """
    events = trace.events.filter(pl.col("source") == "kernel").with_row_index("_row")
    gemm = (pl.col("category") == "gemm") & pl.col("name").str.contains("nvjet|gemm")
    return events.filter(gemm & (pl.col("category_by") == by))["_row"]


@pytest.mark.parametrize("name", GEMMS)
def test_the_name_of_a_gemm_changes_no_label_where_operators_are_known(name, sample_trace):
    trace = sample_trace("torch_tp1_eager")
    kernels = gemms_of(trace, "operator")
    assert kernels.len() > 1500
    columns = ["category", "layer", "stage", "confidence"]
    assert renamed(trace, kernels, name).events.select(columns).equals(trace.events.select(columns))


@pytest.mark.slow
@pytest.mark.parametrize("name", GEMMS)
def test_the_name_of_a_gemm_changes_no_label_where_modules_are_known(name, shared):
    trace = read(shared / "captures" / "nsys_tp1_layer_nvtx")
    inside = trace.events.filter((pl.col("source") == "kernel") & (pl.col("evidence") == "module"))
    linear = inside.filter(
        (pl.col("category") == "gemm") & ~pl.col("name").str.contains("splitK(?:reduce)")
    )
    numbers = (
        trace.events.filter(pl.col("source") == "kernel")
        .with_row_index("_row")
        .join(linear, on="event")["_row"]
    )
    assert numbers.len() > 800
    columns = ["category", "layer", "stage"]
    found = renamed(trace, numbers, name).events
    assert found.select(columns).equals(trace.events.select(columns))


HOST = {"rank": 0, "process": 1, "thread": 1, "on_device": False, "domain": "module"}


def modules(spans):
    rows = [
        {**HOST, "start_ns": start, "dur_ns": dur, "name": f"nn.Module: {name}"}
        for start, dur, name in spans
    ]
    return pl.DataFrame(rows)


def layer_of(number, at):
    """Calls of a layer: norm, attention with two linear modules, MLP with two and an activation."""
    first = 4 * number
    return [
        (at, 190, f"AcmeLayer_{number}"),
        (at + 1, 8, f"RMSNorm_{number}"),
        (at + 10, 80, f"AcmeAttention_{number}"),
        (at + 11, 20, f"Linear_{first}"),
        (at + 60, 20, f"Linear_{first + 1}"),
        (at + 100, 80, f"AcmeMLP_{number}"),
        (at + 101, 20, f"Linear_{first + 2}"),
        (at + 130, 10, f"SiLU_{number}"),
        (at + 150, 20, f"Linear_{first + 3}"),
    ]


def test_layers_are_the_siblings_that_hold_attention():
    """Two layers of attention and MLP between an embedding and a norm; a head with two blocks of
    no attention.
    """
    spans = [
        (0, 1000, "AcmeForCausalLM_0"),
        (10, 20, "Embedding_0"),
        *layer_of(0, 100),
        *layer_of(1, 300),
    ]
    spans += [
        (600, 10, "RMSNorm_4"),
        (700, 50, "HeadBlock_0"),
        (701, 9, "Linear_8"),
        (760, 50, "HeadBlock_1"),
    ]
    spans += [(761, 9, "Linear_9")]
    found = module_calls(Trace({"markers": modules(spans)}))
    by_name = {(row["name"], row["start_ns"]): row for row in found.iter_rows(named=True)}
    assert [by_name["AcmeLayer", at]["layer"] for at in (100, 300)] == [0, 1]
    assert by_name["Linear", 311]["layer"] == 1
    assert by_name["Linear", 701]["layer"] is None
    assert by_name["RMSNorm", 600]["layer"] is None
    assert by_name["RMSNorm", 101]["role"] == "norm"
    assert [by_name["Linear", at]["last_linear"] for at in (111, 160, 201, 250)] == [
        False,
        True,
        False,
        True,
    ]
    assert by_name["Linear", 201]["block"] == "feed_forward"
    assert set(found["first_layer_ns"]) == {100}


def launched(spans, layers):
    """Labels of seven kernels of each layer, whose names say nothing but for the attention's."""
    launches = [(at + offset) for at in layers for offset in (2, 12, 40, 62, 102, 132, 152)]
    names = ["k1", "k2", "flash_fwd_kernel", "k3", "k4", "k5", "k6"] * len(layers)
    kernels = pl.DataFrame(
        {
            "rank": 0,
            "device": 0,
            "stream": 7,
            "start_ns": [t + 5 for t in launches],
            "dur_ns": 5,
            "name": names,
            "correlation": range(len(names)),
        }
    )
    runtime = pl.DataFrame(
        {
            "rank": 0,
            "process": 1,
            "thread": 1,
            "start_ns": launches,
            "dur_ns": 2,
            "name": "cudaLaunchKernel",
            "api": "runtime",
            "correlation": range(len(names)),
        }
    )
    step = {
        **HOST,
        "domain": "user_annotation",
        "start_ns": 0,
        "dur_ns": 2000,
        "name": "ProfilerStep#1",
    }
    marks = pl.concat([modules(spans), pl.DataFrame([step])], how="diagonal_relaxed")
    return Trace({"kernels": kernels, "runtime": runtime, "markers": marks}).events


OF_A_LAYER = ["norm", "qkv_proj", "attention", "o_proj", "gate_up_proj", "activation", "down_proj"]


def test_modules_decide_the_labels_of_what_they_launched():
    """A layer whose kernels have names that say nothing, after one that the modules do not hold."""
    events = launched([(0, 1000, "AcmeModel_0"), *layer_of(0, 100), *layer_of(1, 300)], (100, 300))
    assert events["layer"].to_list() == [0] * 7 + [1] * 7
    assert events["stage"].to_list() == OF_A_LAYER * 2
    assert events["category"].to_list()[1::7] == ["gemm", "gemm"]
    assert set(events["evidence"]) == {"module"}
    assert set(events["confidence"]) == {1.0}


@pytest.mark.parametrize(
    ("beside", "encodes"), [("AcmeTextTransformer_0", False), ("AcmeTextModel_0", True)]
)
def test_a_vision_tower_is_an_encoder_beside_a_language_model_only(beside, encodes):
    """Beside the text tower of a detector, which encodes as well, it is a part of the model with
    stages.
    """
    spans = [
        (0, 1900, "AcmeForAll_0"),
        (50, 500, "AcmeVisionTransformer_0"),
        *layer_of(0, 100),
        *layer_of(1, 300),
    ]
    spans += [(850, 600, beside), *layer_of(2, 900), *layer_of(3, 1100)]
    stages = launched(spans, (100, 300, 900, 1100))["stage"].to_list()
    assert stages[:14] == (["encoder"] * 14 if encodes else OF_A_LAYER * 2)
    assert stages[14:] == OF_A_LAYER * 2


def test_a_layer_whose_modules_were_not_recorded_has_no_residual():
    """Only where the modules inside of a layer are known does what lies between them say that it
    is the residual.
    """
    spans = [(at, 90, f"layer::model.layers.{n}") for n, at in enumerate((100, 200))]
    inner = [(at + 10, 40, f"layer::model.layers.{n}.mlp") for n, at in enumerate((100, 200))]
    kernels = pl.DataFrame(
        {
            "rank": 0,
            "device": 0,
            "stream": 7,
            "start_ns": [125, 165, 225, 265],
            "dur_ns": 5,
            "name": "void at::native::vectorized_elementwise_kernel<4, at::native::AUnaryFunctor<float> >",
            "correlation": range(4),
        }
    )
    runtime = kernels.select(
        "rank",
        "correlation",
        start_ns=pl.col("start_ns") - 5,
        dur_ns=pl.lit(2),
        name=pl.lit("cudaLaunchKernel"),
        api=pl.lit("runtime"),
        thread=pl.lit(1),
    )
    step = {
        **HOST,
        "domain": "user_annotation",
        "start_ns": 0,
        "dur_ns": 1000,
        "name": "ProfilerStep#1",
    }

    def stages(marks):
        rows = [
            {**HOST, "domain": "user_annotation", "start_ns": s, "dur_ns": d, "name": n}
            for s, d, n in marks
        ]
        markers = pl.DataFrame([*rows, step])
        return (
            Trace({"kernels": kernels, "runtime": runtime, "markers": markers})
            .events["stage"]
            .to_list()
        )

    assert stages(spans) == ["other"] * 4
    assert stages(spans + inner) == ["activation", "residual"] * 2


OWN = Path(__file__).parent / "labelled"

LABELLED = {
    "moe_stacks": (1.0, 0.999),
    "graphs_stacks": (1.0, 0.999),
    "draft_stacks": (1.0, 0.999),
    "transformers_stacks": (1.0, 0.99),
    "fp8_stacks": (1.0, 0.998),
    "fp8_block_stacks": (1.0, 0.998),
    "llama_chunked_stacks": (1.0, 0.998),
    "qwen25_chunked_stacks": (1.0, 0.998),
    "mla_moe_stacks": (1.0, 0.998),
    "gemma3_stacks": (1.0, 0.998),
    "hf_gpt2": (1.0, 0.999),
    "hf_opt": (1.0, 0.999),
    "hf_gemma2": (1.0, 0.998),
    "hf_mixtral": (1.0, 0.992),
    "hf_falcon": (0.995, 0.992),
    "hf_phi": (0.995, 0.992),
    "falcon_h1_named": (1.0, 0.985),
    "gpt_oss_named": (1.0, 0.999),
    "granite4_named": (1.0, 0.985),
    "jamba_named": (1.0, 0.99),
    "kimi_linear_named": (1.0, 0.985),
    "nemotron_h_moe_named": (1.0, 0.999),
    "nemotron_h_named": (1.0, 0.999),
    "nemotron_mixed_named": (1.0, 0.999),
    "qwen3_next_named": (0.99, 0.99),
    "llama_nvtx.sqlite": (1.0, 0.999),
    "captures/nsys_tp1_layer_nvtx": (1.0, 0.999),
    "real/chrome/tracelens/b200__eager_trace.json.gz": (1.0, 0.999),
    "real/chrome/tracelens/h100__Falconsai_nsfw_image_detection__1016002.json.gz": (1.0, 0.995),
    "real/chrome/tracelens/h100__Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz": (1.0, 0.998),
    "real/chrome/tracelens/mi300__Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz": (1.0, 0.997),
    "real/chrome/tracelens/inference__sglang_prefilldecode__sglang_Qwen3-8B_prefilldecode.json.gz": (
        1.0,
        0.999,
    ),
}
"""Least share of device time whose layer and stage are right without the modules, as measured."""


def labelled(name, request):
    if "/" in name:
        return read(request.getfixturevalue("shared") / name)
    return read(OWN / (name if name.endswith(".sqlite") else f"{name}.pt.trace.json.gz"))


@pytest.mark.slow
@pytest.mark.parametrize("name", LABELLED)
def test_labels_without_modules_agree_with_those_of_modules(name, request):
    both = fidelity.compare(labelled(name, request))
    layers, stages = LABELLED[name]
    assert both.height > 100
    assert fidelity.share(both.filter("said"), "right_layer") >= layers
    assert fidelity.share(both, "right_stage") >= stages
    sure = both.filter(pl.col("confidence") >= 0.9)
    assert sure["right_layer"].mean() >= 0.99


def test_replayed_layers_are_those_that_ran_eager(request):
    """With 5 requests the decode steps run eager, with 4 they replay a graph: the same kernels
    without modules.
    """
    events = labelled("graphs_stacks", request).events.filter(pl.col("layer").is_not_null())
    events = events.filter((pl.col("phase") == "decode") & (pl.col("source") == "kernel"))
    eager, replayed = events.filter(~pl.col("replayed")), events.filter("replayed")
    assert set(eager["evidence"]) == {"module"}
    assert "module" not in set(replayed["evidence"].drop_nulls())
    key = ["step", "layer"]
    stages = [
        f.group_by(key, maintain_order=True).agg("stage")["stage"].to_list()
        for f in (eager, replayed)
    ]
    assert len(stages[0]) == 28 * eager["step"].n_unique()
    assert len(stages[1]) == 28 * replayed["step"].n_unique()
    for one in (*stages[0][1:], *stages[1][1:]):
        assert [s for n, s in enumerate(one) if n == 0 or s != one[n - 1]] == DENSE_STAGES


def test_shared_experts_beside_have_the_layer_that_launched_them():
    """On a stream of their own, 5 of 6 layers in 4 steps: up, activation, down."""
    trace = fidelity.without_modules(read(OWN / "mla_moe_stacks.pt.trace.json.gz"))
    by_launch = trace.events
    beside = by_launch.filter((pl.col("stream") == 21) & pl.col("layer").is_not_null())
    each = beside.group_by("step", "layer", maintain_order=True).agg("stage")
    assert sorted(each.select("step", "layer").rows()) == [
        (step, layer) for step in range(4) for layer in range(1, 6)
    ]
    for stages in each["stage"]:
        assert set(stages) == {"shared_experts"}
    # what runs there long after the last layer belongs to none
    end = trace.kernels["start_ns"].max() + 10**9
    at = pl.lit(end, dtype=pl.Int64) + 10_000 * pl.int_range(3)
    late = trace.kernels.filter(stream=21).head(3)
    late = late.with_columns(start_ns=at, correlation=10**7 + pl.int_range(3), op_id=None)
    calls = trace.runtime.head(3).with_columns(
        name=pl.lit("cudaLaunchKernel"),
        start_ns=late["start_ns"] - 5_000,
        correlation=late["correlation"],
        op_id=None,
    )
    more = {
        "kernels": pl.concat([trace.kernels, late]),
        "runtime": pl.concat([trace.runtime, calls]),
    }
    found = Trace({**trace.tables, **more}, trace.meta, trace.coverage).events.filter(
        pl.col("start_ns") >= end
    )
    assert found["layer"].null_count() == found.height == 3


def test_a_draft_model_has_no_layers_of_its_own(request):
    """After each of the 9 passes of 12 layers, 2 passes of 4: 8 steps of decode and the prefill,
    by names alone.
    """
    found = fidelity.without_modules(labelled("draft_stacks", request)).events
    assert (
        found.drop_nulls("layer").group_by("step").agg(pl.col("layer").max())["layer"].to_list()
        == [11] * 9
    )
    drafted = found.filter(pl.col("stage") == "draft")
    assert set(drafted["reason"]) == {"draft model"}
    assert (
        drafted.filter(pl.col("name").str.contains("FwdSm90"), category="attention").height
        == 9 * 2 * 4
    )
    assert drafted["layer"].null_count() == drafted.height


@pytest.mark.parametrize(
    ("between", "attention"),
    [
        (["scale", "softmax", "cast"], True),
        (["softmax"], True),
        (["softmax", "topk"], False),
        (["softmax", "norm"], False),
        (["softmax_backward"], False),
    ],
)
def test_a_softmax_between_two_products_is_attention(between, attention):
    named = {
        "scale": "void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<float> >",
        "softmax": "void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, false, false>",
        "softmax_backward": "void (anonymous namespace)::softmax_warp_backward<float, float, float, 10, false>",
        "cast": "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda>",
        "topk": "void at::native::sbtopk::gatherTopK<float, unsigned int, 2, false>",
        "norm": "void vllm::rms_norm_kernel<c10::BFloat16>",
    }
    gemm = "ampere_sgemm_128x64_tn"
    chain = [gemm, *(named[n] for n in between), gemm]
    found = Trace({"kernels": kernels(chain, pause=5)}).events
    assert set(found["category"] == "attention") == {attention}


def test_annotations_of_graph_kernels_are_modules():
    """Two replays of a graph whose capture was annotated, as torch 2.13's exporter writes it.

    Made by hand out of `graphs_stacks`: numbers of graph and nodes were added and the GEMMs
    renamed, then `torch.cuda._annotate_cuda_graph_trace.annotate_trace` wrote the annotations and
    lanes into the file.
    """
    with pytest.warns(TraceWarning, match="lanes of the program, not streams of the device"):
        trace = llmprof.read(OWN / "annotated_graph.pt.trace.json.gz", cache=False)
    in_graph = trace.kernels.filter(pl.col("graph_node").is_not_null())
    assert set(in_graph["torch_lane"]) == {7, 20, 21}
    assert set(in_graph["stream"]) == {None}
    assert set(stream_gaps(trace)["stream"]) == {7, 13}  # 13 copies to the host
    noted = trace.kernels.filter(pl.col("torch_annotation").is_not_null())
    assert noted.height == 2 * 28 * 12
    assert set(noted["graph_node"].cast(pl.Int64) // 2**32) == {7}
    assert trace.markers.filter(pl.col("domain") == "graph_host_node").height == 1
    found = trace.events.filter(pl.col("name") == "acme_kernel")
    assert set(found["evidence"]) == {"module"}
    assert set(found["category"]) == {"gemm"}
    each = found.group_by("step", "layer", maintain_order=True).agg("stage")
    assert each.height == 2 * 28
    assert (
        each["stage"].to_list()
        == [["qkv_proj", "o_proj", "gate_up_proj", "down_proj", "down_proj"]] * 56
    )


def test_what_was_launched_before_the_recording_has_a_stage_but_no_layer(shared):
    [path] = (shared / "real/chrome/tracelens").glob("h100__Qwen_Qwen1.5*")
    found = read(path).events
    before = found.filter(pl.col("step").is_null())
    assert set(before["reason"]) == {"no step"}
    assert before["layer"].null_count() == before.height
    unknown = found.filter(pl.col("stage").is_null() | (pl.col("stage") == "other"))
    assert unknown["dur_ns"].sum() < 0.05 * found["dur_ns"].sum()  # measured: 0.9 %
    counts = dict(before.filter(pl.col("category") == "gemm").group_by("stage").len().iter_rows())
    assert counts["qkv_proj"] == 3 * counts["o_proj"]


def test_an_exchange_made_of_sends_is_what_its_call_says(shared):
    """NCCL's kernels of all-to-all are called SendRecv; 42 calls of it and 18 all-reduces, as
    the ranges around say.
    """
    trace = read(shared / "real/chrome/hta/trace_diff__control__control.json.gz")
    assert trace.markers.filter(pl.col("name") == "nccl:all_to_all").height == 42
    kinds = trace.events.filter(pl.col("category") == "collective").group_by("stage").len()
    assert dict(kinds.iter_rows()) == {"all_to_all": 42, "all_reduce": 18}
    assert dict(collectives(trace).group_by("kind").len().iter_rows()) == {
        "all_to_all": 42,
        "all_reduce": 18,
    }
