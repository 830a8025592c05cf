"""Two engines on one model: whether they can be compared, and what stands in each kernel's place."""

import polars as pl
import pytest

from llmprof.analyze import diff
from llmprof.analyze.compare.places import ALIGNED, kernel_places
from llmprof.analyze.compare.story import engine_of
from llmprof.errors import AnalysisError
from llmprof.trace import Trace
from tests.analyze.builders import (
    ARGMAX,
    ATTENTION,
    CACHE,
    EMBEDDING,
    GATHER,
    GEMM,
    NORM,
    ROPE,
    SAMPLE,
    SILU,
    kernels,
    labels,
    launches,
)

ADD = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16> >"
)
RMS = "void flashinfer::norm::RMSNormKernel<8, c10::BFloat16>"
BATCH = "void flashinfer::BatchDecodeWithPagedKVCacheKernel<bf16>"
ROPE_CACHE = "fused_rope_and_cache_kernel"

FP8 = "deep_gemm::fp8_gemm_kernel"

VLLM = "execute_new_0_cached_4"
SGLANG = "step[DECODE bs=4 toks=4]"
OF_VLLM = [
    *((NORM, 20), (GEMM, 100), (ROPE, 40), (CACHE, 10), (ATTENTION, 60), (GEMM, 80)),
    *((NORM, 20), (GEMM, 300), (SILU, 20), (GEMM, 200)),
]
OF_SGLANG = [
    *((RMS, 15), (GEMM, 100), (ROPE_CACHE, 45), (BATCH, 90), (GEMM, 70), (ADD, 15)),
    *((RMS, 15), (GEMM, 300), (SILU, 20), (GEMM, 200), (ADD, 15)),
]


def engine(layer, label, *, steps=6, layers=2, device="NVIDIA H200", every=3000):
    """Steps of an engine, a label and ``layers`` layers each."""
    names = ["_prepare_inputs_kernel", EMBEDDING, *layer * layers]
    names += [layer[0], GATHER, GEMM, SAMPLE, ARGMAX]
    starts = [1000 + n * every for n in range(steps)]
    made = pl.concat(kernels(names, start=at, first=1 + 100 * n) for n, at in enumerate(starts))
    marks = labels([(label, at - 50, 40) for at in starts])
    tables = {"kernels": made, "runtime": launches(made), "markers": marks}
    return Trace(tables, {"device": device, "format": "chrome"})


def places(a, b):
    frame = diff(a, b, part="kernels", names=("vllm", "sglang"))
    return {(row["run"], row["name"]): row for row in frame.iter_rows(named=True)}


def test_each_kernel_has_its_place_in_the_other_engine():
    found = places(engine(OF_VLLM, VLLM), engine(OF_SGLANG, SGLANG))
    # two layers: rope 2 x 40 and the cache 2 x 10 are one kernel of 2 x 45 there
    rope, fused = found["vllm", ROPE], found["sglang", ROPE_CACHE]
    assert (rope["ns"], rope["verdict"], rope["there"]) == (80, "fused", ROPE_CACHE)
    assert (fused["here_ns"], fused["there_ns"], fused["verdict"]) == (90, 100, "slower")
    # additions of the residual, 2 x 15 a layer, are part of vLLM's norm, 2 x 20 a layer
    add, norm = found["sglang", ADD], found["vllm", NORM]
    assert (add["ns"], add["verdict"], add["by"]) == (60, "fused", "name")
    assert (norm["here_ns"], norm["there_ns"], norm["verdict"]) == (80, 120, "slower")
    assert found["sglang", RMS]["verdict"] == "faster"
    attention = found["vllm", ATTENTION]
    assert (attention["here_ns"], attention["there_ns"], attention["verdict"]) == (
        120,
        180,
        "slower",
    )
    assert found["sglang", BATCH]["verdict"] == "faster"


def test_products_are_compared_by_stage_though_all_have_one_name():
    frame = diff(engine(OF_VLLM, VLLM), engine(OF_SGLANG, SGLANG), part="kernels")
    assert frame["share"].min() >= 0.01
    assert frame["share"].is_sorted(descending=True)
    products = frame.filter(name=GEMM)
    assert dict(products.select("stage", "verdict").iter_rows()) == {
        "gate_up_proj": "same",
        "down_proj": "same",
        "qkv_proj": "same",
        "o_proj": "faster",
    }


@pytest.mark.parametrize(
    ("kernel", "others", "verdict", "by"),
    [
        (("norm", "elementwise", "add"), [("norm", "norm", "rms")], "fused", "stage"),
        (("experts", "moe_experts", "fused_moe"), [("norm", "norm", "rms")], "absent", None),
        ((None, "other", "odd"), [(None, "other", "strange")], "unknown", None),
        (
            (None, "gemm", "sgemm"),
            [(None, "gemm", "hgemm")],
            "slower",
            "stage and category",
        ),
        (("rope", "rope", "rope"), [("norm", "norm", "norm_rope_fused")], "fused", "name"),
    ],
)
def test_places_by_hand(kernel, others, verdict, by):
    labelled = [*ALIGNED, "a_ns", "a_count", "b_ns", "b_count"]
    rows = [(*kernel, 10.0, 2.0, 0.0, 0.0), *((*each, 0.0, 0.0, 30.0, 1.0) for each in others)]
    if kernel[0] == "norm":
        rows.append(("norm", "norm", "other_rms", 5.0, 1.0, 0.0, 0.0))
    events = pl.DataFrame(rows, schema=labelled, orient="row").with_columns(phase=pl.lit("decode"))
    steps = pl.DataFrame({"phase": ["decode"], "a_ns": [100.0], "b_ns": [100.0]})
    frame = kernel_places(events, steps, tolerance=0.05, runs=("a", "b"))
    row = frame.row(by_predicate=pl.col("name") == kernel[2], named=True)
    assert (row["run"], row["verdict"], row["by"]) == ("a", verdict, by)


UNLIKE = {
    "device": {"device": "NVIDIA A100"},
    "layers": {"layers": 3},
    "decode batch": {"label": "step[DECODE bs=8 toks=8]"},
    "phases": {"label": "step[EXTEND bs=1 toks=64]"},
    "precision": {"layer": [(name.replace(GEMM, FP8), ns) for name, ns in OF_SGLANG]},
}


@pytest.mark.parametrize("what", UNLIKE)
def test_engines_that_did_other_work_are_refused_with_the_reason(what):
    a = engine(OF_VLLM, VLLM)
    b = engine(**({"layer": OF_SGLANG, "label": SGLANG} | UNLIKE[what]))
    row = diff(a, b, part="context").row(by_predicate=pl.col("what") == what, named=True)
    assert row["same"] is False
    for part in ("all", "kernels"):
        with pytest.raises(AnalysisError) as refused:
            diff(a, b, part=part)
        assert all(row[side] in str(refused.value) for side in "ab")
    assert diff(a, b, part="times").height
    assert diff(a, engine(OF_VLLM, VLLM, steps=3)).height  # one engine is not held to that


def test_a_phase_of_other_work_is_left_out():
    def served(layer, decode, prefill, tokens):
        made, first = engine(layer, decode), engine(layer, prefill.format(tokens), steps=1)
        last = made.table("kernels")["start_ns"].max() + 3000
        later = [
            frame.with_columns(pl.col("start_ns") + last)
            for frame in (first.table(name) for name in ("kernels", "runtime", "markers"))
        ]
        move = pl.col("correlation") + 9000
        later[:2] = [frame.with_columns(move) for frame in later[:2]]
        tables = {
            name: pl.concat([made.table(name), frame])
            for name, frame in zip(("kernels", "runtime", "markers"), later, strict=True)
        }
        return Trace(tables, made.meta)

    a = served(OF_VLLM, VLLM, "execute_context_1({})_generation_0(0)", 64)
    for tokens, phases in ((64, {"decode", "prefill"}), (256, {"decode"})):
        b = served(OF_SGLANG, SGLANG, "step[EXTEND bs=1 toks={}]", tokens)
        assert set(diff(a, b)["phase"]) == phases
        assert set(diff(a, b, part="kernels")["phase"]) == phases


def test_an_engine_without_labels_is_known_by_its_kernels():
    llama = kernels(["void mul_mat_vec_q<(ggml_type)12, 1, false, false>", "k_bin_bcast<&op_add>"])
    assert engine_of(Trace({"kernels": llama})) == "llama.cpp"
    assert engine_of(Trace({"kernels": kernels([NORM, GEMM])})) is None


def test_the_command_says_both(run, tmp_path):
    for name, trace in {
        "a": engine(OF_VLLM, VLLM),
        "b": engine(OF_SGLANG, SGLANG),
        "c": engine(OF_SGLANG, SGLANG, device="NVIDIA A100"),
    }.items():
        trace.save(tmp_path / name)
    code, out, _ = run(f"diff {tmp_path / 'a'} {tmp_path / 'b'}")
    assert code == 0
    assert ROPE_CACHE in out
    code, _, err = run(f"diff {tmp_path / 'a'} {tmp_path / 'c'}")
    assert code == 2
    assert "NVIDIA A100" in err


def test_the_format_of_products_that_a_library_codes():
    """A cache's enumeration in the name of attention is no format of the run."""
    product = "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_MT64x32x256_MI16x16x1"
    cached = "paged_attention_kernel<__hip_bfloat16, (vllm::Fp8KVCacheDataType)0>"
    run = kernels([product, (cached, 1_000)] * 4)
    context = diff(Trace({"kernels": run}), Trace({"kernels": run}), part="context")
    assert context.row(by_predicate=pl.col("what") == "precision", named=True)["a"] == "bf16"
