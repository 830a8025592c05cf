"""How much of the device time of each recording has a bound, and why the rest has none: the table
of benchmarks/bounds.md.

``python benchmarks/bounds.py`` prints a row for each recording in :data:`RECORDINGS`; ``--only
TEXT`` some of them. Collectives are left out: they are compared with the links.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path
from typing import Final

import polars as pl

import llmprof
from llmprof import analyze
from llmprof.analyze.kernel_arguments import own_arguments
from llmprof.trace import Trace

SHARED: Final = Path(__file__).parents[2] / "shared"
SAMPLES: Final = Path(__file__).parents[1] / "sample_traces"
_TRACELENS: Final = SHARED / "real/chrome/tracelens"
_STRANGERS: Final = SHARED / "strangers/chrome"
_DECODE: Final = _STRANGERS / "inference__vllm_decode_full__graph_execution.json.gz"
_SAGE: Final = _STRANGERS / "inference__xdit_flux.1_aiter_sage__profile_trace_rank_0.json.gz"
_PIECES: Final = "inference__vllm_prefilldecode_piecewise__"

RECORDINGS: Final[tuple[tuple[str, Path, dict[str, str | Path]], ...]] = (
    ("vLLM, H200, eager, TP 1", SAMPLES / "torch_tp1_eager", {}),
    ("vLLM, H200, eager, experts", SAMPLES / "torch_tp1_moe_eager", {}),
    ("vLLM, H200, eager, PP 2", SAMPLES / "torch_pp2_eager", {}),
    ("vLLM, H200, eager, TP 4", SAMPLES / "torch_tp4_eager_nccl", {}),
    ("vLLM, H200, eager, TP 4, own all-reduce", SAMPLES / "torch_tp4_eager_custom_allreduce", {}),
    (
        "vLLM, H200, eager, data and expert parallel, shapes cut out",
        SAMPLES / "torch_ep2_dp2_eager",
        {"model": "Qwen3-30B-A3B"},
    ),
    ("vLLM, H200, graphs, TP 1", SAMPLES / "torch_tp1_cudagraph", {"model": "Qwen2.5-1.5B"}),
    (
        "the same, beside an eager run",
        SAMPLES / "torch_tp1_cudagraph",
        {"eager": SAMPLES / "torch_tp1_eager"},
    ),
    ("vLLM, H200, graphs, TP 4", SAMPLES / "torch_tp4_cudagraph", {"model": "Qwen2.5-7B"}),
    (
        "the same, beside an eager run",
        SAMPLES / "torch_tp4_cudagraph",
        {"eager": SAMPLES / "torch_tp4_eager_nccl"},
    ),
    (
        "vLLM, H200, graphs, a run of llmprof (names its model)",
        SAMPLES / "run_torch_tp1",
        {"model": "Qwen2.5-7B"},
    ),
    (
        "vLLM, H200, graphs, TP 2, nsys (no operators)",
        SAMPLES / "nsys_tp2_cudagraph",
        {"model": "Qwen2.5-7B"},
    ),
    (
        "vLLM, H200, nsys with NVTX (no operators)",
        SAMPLES / "nsys_tp1_layer_nvtx",
        {"model": "Qwen3-8B"},
    ),
    (
        "vLLM, H200, nsys, eager, TP 4 (no operators)",
        SHARED / "captures/nsys_tp4_eager_nccl",
        {"model": "Qwen2.5-7B"},
    ),
    ("transformers, H200", SAMPLES / "torch_transformers_generate", {}),
    (
        "the same, nsys, beside its operators",
        SAMPLES / "nsys_transformers_generate",
        {"eager": SAMPLES / "torch_transformers_generate"},
    ),
    ("vLLM, B200, gpt-oss, eager", _TRACELENS / "b200__eager_trace.json.gz", {}),
    (
        "vLLM, MI300X, gpt-oss, graph of a decode step",
        _DECODE,
        {"model": "gpt-oss-20b", "device": "MI300X"},
    ),
    (
        "vLLM, MI300X, gpt-oss, graphs in pieces, with captures",
        _TRACELENS / f"{_PIECES}graph_execution.json.gz",
        {
            "model": "gpt-oss-20b",
            "device": "MI300X",
            "captures": _TRACELENS
            / f"{_PIECES}capture_traces__graph_capture_rank_0.1773709679453551615.pt.trace.json.gz",
        },
    ),
    (
        "SGLang, MI300X, eager",
        _TRACELENS / "inference__sglang_prefilldecode__sglang_Qwen3-8B_prefilldecode.json.gz",
        {"device": "MI300X"},
    ),
    (
        "SGLang, MI300X, graph, with its capture",
        _TRACELENS / "inference__sglang_decode__sglang_Qwen3-8B_decode.json.gz",
        {
            "device": "MI300X",
            "captures": _TRACELENS
            / "inference__sglang_decode__capture_traces__bs_32_rank0.json.gz",
        },
    ),
    (
        "transformers, H100, Qwen1.5",
        _TRACELENS / "h100__Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz",
        {"eager": ""},
    ),
    (
        "transformers, MI300X, Qwen1.5",
        _TRACELENS / "mi300__Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz",
        {"eager": ""},
    ),
    (
        "transformers, MI300X, BERT",
        _TRACELENS / "mi300__gaunernst_bert-small-uncased__1016001.json.gz",
        {},
    ),
    (
        "transformers, MI300X, OWLv2",
        _STRANGERS / "mi300__google_owlv2-large-patch14-ensemble__1016001.json.gz",
        {},
    ),
    (
        "Megatron, A100, TP 8, one rank",
        SHARED / "real/chrome/megatron_tp8/megatron_kineto_0.json.gz",
        {},
    ),
    (
        "vLLM, MI300X, TP 4, shapes and labels not recorded",
        _STRANGERS / "tracemap_mi300x.pt.trace.json.gz",
        {"model": "Llama-3.1-70B"},
    ),
    (
        "vLLM, Hopper, nsys as JSON, labels without batches (as H200)",
        _STRANGERS / "gold_nsys_example.json",
        {"model": "Llama-3.1-8B", "device": "H200"},
    ),
    ("training of DeepSeek-V3, H800, shapes not recorded", _STRANGERS / "deepseek__train.json", {}),
    (
        "training of 28 layers, Ascend (as 910B2), shapes of the kernels",
        SHARED / "strangers/ascend/msinsight_st_level2",
        {"device": "Ascend 910B2"},
    ),
    ("Flux (images), MI300X", _TRACELENS / "hist__xdit_flux_aiter_rank0.json.gz", {}),
    ("Flux with SageAttention, MI300X", _SAGE, {}),
    ("layer of experts, B300", _STRANGERS / "tl_moe_05_large_capacity.json.gz", {}),
)


def read(path: Path, how: dict[str, str | Path]) -> Trace:
    """A recording with the operators of its graphs."""
    trace = llmprof.read(path)
    if "captures" in how:
        return analyze.add_operators(trace, captures=llmprof.read(how["captures"]))
    if "eager" in how:
        return analyze.add_operators(
            trace, eager=llmprof.read(how["eager"]) if how["eager"] else None
        )
    return trace


def row(path: Path, how: dict[str, str | Path]) -> str:
    """Cells of the table: shares of time with a bound without and with the model, above it, and
    the main reason.
    """
    trace = read(path, how)
    device = how.get("device")
    known = trace.has("ops") or "eager" in how or own_arguments(trace)
    frames = [analyze.operators(trace, device=device)] if known else []
    if "model" in how:
        frames.append(analyze.operators(trace, device=device, model=how["model"]))
    shares = []
    for frame in frames:
        work = frame.filter(pl.col("category").ne_missing("collective"))
        shares.append(
            work.filter(pl.col("bound_ns").is_not_null())["total_ns"].sum() / work["total_ns"].sum()
        )
    time = pl.col("total_ns").sum() / work["total_ns"].sum()
    over = work.filter(pl.col("bound_share") > 1.05).select(time).item() or 0.0
    rest = (
        work.filter(pl.col("bound_ns").is_null())
        .group_by("reason")
        .agg(time.alias("share"))
        .sort("share")
    )
    reason = (
        f"{rest['reason'][-1]} ({rest['share'][-1]:.1%})"
        if rest.height and rest["share"][-1] > 0.001
        else ""
    )
    without = f"{shares[0]:.1%}" if known else "–"
    named = f"{shares[-1]:.1%}" if "model" in how else ""
    return f"{without} | {named} | {over:.1%} | {reason}"


def main() -> None:
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="recordings whose name or path has this text"
    )
    only = parser.parse_args().only
    print(
        "| recording | with a bound | with the model named | above 105 % | main reason of the rest |"
    )
    print("|---|---:|---:|---:|---|")
    for name, path, how in RECORDINGS:
        if only in f"{name} {path}" and path.exists():
            print(f"| {name} | {row(path, how)} |", flush=True)


if __name__ == "__main__":
    main()
