"""Kinds of layers: by hand-built steps, and on recordings of hybrids with and without the names
of their modules.
"""

from pathlib import Path

import polars as pl
import pytest

import llmprof
from benchmarks.fidelity import against, compare, share, without_modules
from llmprof.analyze import layer_gaps, layers
from llmprof.trace import Trace
from tests.analyze.builders import (
    ATTENTION,
    CACHE,
    DENSE,
    GEMM,
    NORM,
    ROPE,
    SILU,
    forward,
    kernels,
    labels,
)

RECORDED = Path(__file__).parent / "labelled"
MLP = [NORM, GEMM, SILU, GEMM]
MOE = [NORM, GEMM, "topkGating", "fused_moe_kernel", SILU, "fused_moe_kernel", "moe_sum_kernel"]
FLASH_3 = "FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90<2, C<128>, 64, bf16, float, cutlass::arch::Sm90, {} >"
FLASH_2 = "void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<(int)128, half_t>{}>, {}, (bool)0, (bool)1>"
UPDATE = ["_causal_conv1d_update_kernel", "_selective_scan_update_kernel"]
CHUNKS = [
    "_causal_conv1d_fwd_kernel",
    "_chunk_cumsum_fwd_kernel",
    "_state_passing_fwd_kernel",
    "_chunk_scan_fwd_kernel",
]


def attends(*names):
    return [NORM, GEMM, ROPE, CACHE, *names, GEMM]


def scans(*names):
    return [NORM, GEMM, *names, NORM, GEMM]


def kinds_of(*steps):
    """Kind by step and layer."""
    parts = [kernels(names, start=100_000 * i, first=1000 * i) for i, names in enumerate(steps)]
    marks = [("execute_new_0_cached_4", 100_000 * i - 50, 90_000) for i in range(len(steps))]
    found = layers(Trace({"kernels": pl.concat(parts), "markers": labels(marks, on_device=True)}))
    return {
        (step, layer): kind
        for step, layer, kind in found.select("step", "layer", "kind").iter_rows()
    }


@pytest.mark.parametrize(
    ("layer", "kind"),
    [
        (DENSE, "attention + MLP"),
        ([*attends(ATTENTION), *MOE], "attention + MoE"),
        ([*attends(ATTENTION), NORM, GEMM, "topk_moe_cuda<64>", GEMM, GEMM], "attention + MoE"),
        ([*attends(FLASH_3.format("true, true, false")), *MLP], "sliding attention + MLP"),
        ([*attends(FLASH_3.format("(bool)0, (bool)1, (bool)0")), *MLP], "sliding attention + MLP"),
        ([*attends(FLASH_3.format("true, false, true")), *MLP], "attention + MLP"),
        ([*attends(FLASH_2.format(" ", "(bool)1, (bool)1")), *MLP], "sliding attention + MLP"),
        ([*attends(FLASH_2.format("", "(bool)1, (bool)0")), *MLP], "attention + MLP"),
        (
            [*attends(FLASH_3.format("true, false, false, true, true, false, true, false")), *MOE],
            "latent attention + MoE",
        ),
        (
            ["rms_norm", GEMM, ROPE, "concat_and_cache_mla_kernel", ATTENTION, GEMM, *MLP],
            "latent attention + MLP",
        ),
        (
            [*attends("sm90_fp8_mqa_logits", "topKPerRowDecode", ATTENTION), *MOE],
            "sparse attention + MoE",
        ),
        ([*scans(*CHUNKS), *MLP], "Mamba-2 + MLP"),
        ([*scans(*UPDATE), *MLP], "state space + MLP"),
        ([*scans("causal_conv1d_fwd", "selective_scan_fwd_kernel"), *MLP], "Mamba-1 + MLP"),
        (
            [
                *scans(
                    "_causal_conv1d_update_kernel", "fused_recurrent_gated_delta_rule_fwd_kernel"
                ),
                *MOE,
            ],
            "gated delta net + MoE",
        ),
        (
            [*scans("kda_gate_fwd_kernel", "fused_recurrent_gated_delta_rule_fwd_kernel"), *MOE],
            "KDA + MoE",
        ),
        (
            [
                *scans(
                    "_fwd_diag_kernel",
                    "_fwd_kv_parallel",
                    "_fwd_kv_reduce",
                    "_fwd_none_diag_kernel",
                ),
                *MLP,
            ],
            "lightning attention + MLP",
        ),
        ([NORM, GEMM, UPDATE[0], GEMM, *MLP], "short convolution + MLP"),
        ([NORM, GEMM, *UPDATE, SILU, GEMM, *attends(ATTENTION)[1:], *MLP], "parallel hybrid + MLP"),
    ],
)
def test_a_layer_has_the_kind_of_its_kernels(layer, kind):
    assert set(kinds_of(forward(4, layer)).values()) == {kind}


def test_kinds_of_layers_that_differ():
    blocks = [*scans(*CHUNKS), *MLP, *scans(*CHUNKS), *attends(ATTENTION), *scans(*CHUNKS), *MOE]
    found = kinds_of([*forward(0)[:2], *blocks, *forward(0)[2:]])
    assert list(found.values()) == ["Mamba-2", "MLP", "Mamba-2", "attention", "Mamba-2", "MoE"]
    blocks = [*scans(*CHUNKS), *MLP, *MOE, *attends(ATTENTION), *MOE, *MLP, *scans(*CHUNKS)]
    found = kinds_of([*forward(0)[:2], *blocks, *forward(0)[2:]])
    assert list(found.values()) == ["Mamba-2", "MLP", "MoE", "attention", "MoE", "MLP", "Mamba-2"]
    window, full = (
        [*attends(FLASH_3.format(f"true, {flag}, false")), *MLP] for flag in ("true", "false")
    )
    found = kinds_of([*forward(0)[:2], *window, *full, *window, *full, *forward(0)[2:]])
    assert list(found.values()) == ["sliding attention + MLP", "full attention + MLP"] * 2
    prefill, decode = (forward(3, [*scans(*mixer), *MLP]) for mixer in (CHUNKS, UPDATE))
    assert set(kinds_of(decode, prefill, decode).values()) == {"Mamba-2 + MLP"}
    guessed = [NORM, GEMM, ROPE, CACHE, ATTENTION, GEMM, NORM, GEMM, "triton_poi_fused_3", GEMM]
    assert set(kinds_of(forward(4, guessed)).values()) == {None}


def test_a_layer_is_compared_with_those_of_its_kind():
    slow = [*scans(*CHUNKS)[:-1], (GEMM, 110)]
    blocks = [*[*scans(*CHUNKS), *MLP] * 3, *slow, *MLP, *attends(ATTENTION), *MLP]
    run = kernels([*forward(0)[:2], *blocks, *forward(0)[2:]])
    trace = Trace(
        {
            "kernels": run,
            "markers": labels([("execute_new_0_cached_4", -50, 9_000)], on_device=True),
        }
    )
    gaps = layer_gaps(trace).select("kind", "dur_ns", "typical_ns", "outlier").rows()
    assert gaps == [
        *[("Mamba-2 + MLP", 120, 120, False)] * 3,
        ("Mamba-2 + MLP", 220, 120, True),
        ("attention + MLP", 100, 100, False),
    ]


NEMOTRON = dict(zip("M*-E", ("Mamba-2", "attention", "MLP", "MoE"), strict=True))
HYBRIDS = {
    "nemotron_h_named": [NEMOTRON[block] for block in "M-M-M*-M-M-"],
    "nemotron_h_moe_named": [NEMOTRON[block] for block in "MEMEM*EM*E"],
    "nemotron_mixed_named": [NEMOTRON[block] for block in "M*M-MM*-M-*E"],
    "granite4_named": [f"{'attention' if i in (3, 7) else 'Mamba-2'} + MoE" for i in range(9)],
    "jamba_named": [
        f"{'attention' if i in (2, 6) else 'Mamba-1'} + {'MoE' if i % 2 else 'MLP'}"
        for i in range(8)
    ],
    "qwen3_next_named": [
        f"{'attention' if i in (3, 7) else 'gated delta net'} + MoE" for i in range(8)
    ],
    "kimi_linear_named": [
        f"{'latent attention' if i in (3, 7) else 'KDA'} + {'MoE' if i else 'MLP'}"
        for i in range(8)
    ],
    "falcon_h1_named": ["parallel hybrid + MLP"] * 8,
    "nemotron_pairs_named": [NEMOTRON[block] for block in "*M-MME*--MEM"],
    "minimax_m3_named": [
        f"{'attention' if i in (0, 3, 6) else 'sparse attention'} + {'MoE' if i > 1 else 'MLP'}"
        for i in range(8)
    ],
    "ring_named": [
        f"{'latent attention' if i % 3 == 2 else 'lightning attention'} + {'MoE' if i else 'MLP'}"
        for i in range(9)
    ],
    "lfm2_moe_named": [
        f"{'attention' if i in (1, 4, 6, 7) else 'short convolution'} + {'MoE' if i > 1 else 'MLP'}"
        for i in range(10)
    ],
    "glm4_moe_named": [f"attention + {'MoE' if i > 1 else 'MLP'}" for i in range(8)],
    "gpt_oss_named": [f"{'full' if i % 2 else 'sliding'} attention + MoE" for i in range(8)],
}
"""Kinds of the layers of each recording, from the configuration that ran."""


def some_quick(names):
    """Every fourth recording; the others are slow tests."""
    return [
        pytest.param(name, marks=[pytest.mark.slow] if n % 4 else [])
        for n, name in enumerate(names)
    ]


@pytest.mark.parametrize("name", some_quick(HYBRIDS))
def test_hybrids_have_the_kinds_of_their_configuration_and_the_labels_of_their_modules(
    name,
):
    trace = llmprof.read(RECORDED / f"{name}.pt.trace.json.gz")
    both = compare(trace)
    assert both.filter("said")["right_layer"].all()
    assert share(both, "right_stage") > 0.98
    for recording in (trace, without_modules(trace)):
        found = layers(recording).group_by("layer").agg(pl.col("kind").unique()).sort("layer")
        assert found["kind"].to_list() == [[kind] for kind in HYBRIDS[name]]


GRAPHS = sorted(path.name.split(".")[0] for path in RECORDED.glob("*_graph.*"))


@pytest.mark.parametrize(
    "name", some_quick(name for name in GRAPHS if not name.startswith("annotated"))
)
def test_under_cuda_graphs_layers_and_stages_are_those_of_the_eager_run(name):
    replayed = llmprof.read(RECORDED / f"{name}.pt.trace.json.gz")
    name = name.replace("_graph", "_named")
    found = layers(replayed).select("layer", "kind").unique().sort("layer")["kind"].to_list()
    # a recording of decode steps alone does not say which state space it is
    assert found == [
        kind.replace("Mamba-1", "state space").replace("Mamba-2", "state space")
        for kind in HYBRIDS[name]
    ]
    both = against(replayed, llmprof.read(RECORDED / f"{name}.pt.trace.json.gz"))
    assert both["step"].n_unique() == 2
    assert both["dur_ns"].sum() > 0.8 * both["known"][0]
    assert both.filter("said")["right_layer"].all()
    assert share(both, "right_stage") > 0.98


@pytest.mark.parametrize("sizes", [(10, 30), (30, 10)])
def test_of_two_products_between_attention_and_scan_the_larger_goes_into_the_scan(
    sizes,
):
    beside = [
        *attends(ATTENTION)[:-1],
        *[(GEMM, size) for size in sizes],
        *UPDATE,
        SILU,
        GEMM,
        *MLP,
    ]
    run = kernels([*forward(0)[:2], *beside * 4, *forward(0)[2:]])
    trace = Trace(
        {
            "kernels": run,
            "markers": labels([("execute_new_0_cached_4", -50, 9_000)], on_device=True),
        }
    )
    found = layers(trace, stages=True).filter(pl.col("stage").is_in(["o_proj", "in_proj"]))
    assert set(found.select("stage", "busy_ns").rows()) == {("o_proj", 10), ("in_proj", 30)}
