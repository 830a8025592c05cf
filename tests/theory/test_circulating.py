"""The table that circulates for Llama-2 70B: its rows from the formulas behind it, and ours
(benchmarks/theory.md).
"""

import re
from pathlib import Path

import pytest

from llmprof.theory import profile
from llmprof.theory.familiar import as_dict, format_seconds, quantity

DOCS = Path(__file__).parents[2] / "benchmarks" / "theory.md"
H, INNER, V, L, B, S, OUT, TP = 8192, 28672, 32000, 80, 20, 1024, 1024, 8
FLOPS, HBM, LINK = 0.9 * 312e12, 0.9 * 1555e9, 0.9 * 600e9

ATTENTION_WEIGHTS = 2 * H * H + 2 * H * 1024
FULL_SIZE_KV = 4 * H * H
MLP_WEIGHTS = 3 * H * INNER
THEIR_PARAMETERS = L * (ATTENTION_WEIGHTS + MLP_WEIGHTS + 2 * H) + H * V

# row: what is published, and the formula that gives it
THEIRS = {
    "parameters": (68.71e9, THEIR_PARAMETERS),
    "FLOPs of qkvo_proj": (11.0e12, 2 * B * S * FULL_SIZE_KV),
    "FLOPs of mlp": (28.86e12, 2 * B * S * MLP_WEIGHTS),
    "FLOPs of attention": (687.7e9, 4 * B * S * S * H + 3 * B * S * H),
    "FLOPs, decode step": (3.11e12, L * 2 * B * (FULL_SIZE_KV + MLP_WEIGHTS)),
    "weights": (17.18e9, 2 * THEIR_PARAMETERS / TP),
    "KV cache": (1.68e9, B * (S + OUT) * 2 * 1024 * 2 * L / TP),
    "activations, prefill": (1.34e9, 4 * B * S * H * 2),
    "activations, decode": (1.31e6, 4 * B * H * 2),
    "largest prefill batch": (340, (40e9 - 2 * THEIR_PARAMETERS / TP) // (4 * S * H * 2)),
    "qkvo_proj, prefill": (391.56e-3, L * 2 * B * S * FULL_SIZE_KV / TP / FLOPS),
    "mlp, prefill": (1.03, L * 2 * B * S * MLP_WEIGHTS / TP / FLOPS),
    "rmsnorm, prefill": (76.73e-3, L * 4 * B * S * H * 2 / HBM),
    "tp communication, prefill": (260.98e-3, L * 6 * B * S * H * (TP - 1) / TP * 2 / LINK),
    "tp communication, decode": (640e-6, L * 8e-6),
    "mlp, decode": (10.09e-3, L * MLP_WEIGHTS * 2 / TP / HBM),
    "qkvo_proj, decode": (2.18e-3, L * ATTENTION_WEIGHTS * 2 / TP / HBM),
    "attention of one request, decode": (2.42e-6, L * (4 * (S + OUT) * H + 3 * B * H) / TP / FLOPS),
    "KV cache of the prompts": (599.4e-6, B * S * 2 * 1024 * 2 * L / TP / HBM),
    "KV cache of the end": (1.2e-3, B * (S + OUT) * 2 * 1024 * 2 * L / TP / HBM),
}


@pytest.fixture(scope="module")
def ours():
    options = {"flops_efficiency": 0.9, "hbm_efficiency": 0.9, "intra_node_efficiency": 0.9}
    return as_dict(
        profile(
            "llama2-70b",
            "a100-sxm-40gb",
            tp_size=TP,
            batch_size=B,
            seq_len=S,
            generate_len=OUT,
            **options,
        )
    )


@pytest.mark.parametrize("row", THEIRS)
def test_the_published_figure_follows_from_its_formula(row):
    published, formula = THEIRS[row]
    assert formula == pytest.approx(published, rel=0.011)


def test_the_documented_figures_are_what_is_computed(ours):
    first, then = ours["prefill_latency_parts"], ours["decode_latency_parts"]
    computed = {
        "parameters": quantity(ours["model_params"], ""),
        "FLOPs of qkvo_proj, a layer, prefill": quantity(
            ours["prefill_flops_per_layer"]["qkvo_proj"], ""
        ),
        "FLOPs of mlp, a layer, prefill": quantity(ours["prefill_flops_per_layer"]["mlp"], ""),
        "weights a GPU": quantity(ours["weight_memory_per_gpu"], "B"),
        "KV cache a GPU": quantity(ours["kv_cache_memory_per_gpu"], "B"),
        "activations, prefill": quantity(ours["prefill_act_memory_per_gpu"], "B"),
        "activations, decode": quantity(ours["decode_act_memory_per_gpu"], "B"),
        "largest decode batch": f"{ours['decode_max_bs']}",
        "largest prefill batch": f"{ours['prefill_max_bs']}",
        "max_batch_total_tokens": f"{ours['max_batch_total_tokens']:,}",
        "qkvo_proj, prefill": format_seconds(first["qkvo_proj"]),
        "attention, prefill": format_seconds(first["attn_kernel"]),
        "mlp, prefill": format_seconds(first["mlp"]),
        "rmsnorm, prefill": format_seconds(first["rmsnorm"]),
        "tp communication, prefill": format_seconds(first["tp_comm"]),
        "first token": format_seconds(ours["TTFT"]),
        "qkvo_proj, decode": format_seconds(then["qkvo_proj"]),
        "attention, decode": format_seconds(then["attn_kernel"]),
        "KV cache, decode": f"{format_seconds(then['kv_cache_rw'])}, alone {format_seconds(ours['kv_cache_latency'])}",
        "mlp, decode": format_seconds(then["mlp"]),
        "decode step": format_seconds(ours["TTOT"]),
        "all tokens": format_seconds(ours["total_infer_latency"]),
    }
    text = DOCS.read_text(encoding="utf-8")
    written = {
        row: re.search(rf"^\| {re.escape(row)} \| [^|]+ \| ([^|]+) \|", text, re.MULTILINE).group(1)
        for row in computed
    }
    assert written == computed
