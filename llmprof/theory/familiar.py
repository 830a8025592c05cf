"""The function ``llm_profile`` with argument names, keys and printed sections that many know from other tools."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import polars as pl

from llmprof.theory.plan import BYTES
from llmprof.theory.profiler import Profile, profile

_FORMATS: Final = {4.0: "fp32", 2.0: None, 1.0: "int8", 0.5: "int4"}
_GROUPS: Final = {
    "qkvo_proj": ("qkv_proj", "o_proj"),
    "attn_kernel": ("attention", "rope"),
    "mlp": ("gate_up_proj", "activation", "down_proj", "router", "experts"),
    "rmsnorm": ("norm",),
    "final_rmsnorm": ("final_norm",),
    "tp_comm": ("all_reduce", "all_gather"),
    "kv_cache_rw": ("kv_cache_write",),
    "input_embedding": ("embedding",),
    "output_embedding": ("lm_head", "sampling"),
}


def llm_profile(
    model_name: str = "llama-13b",
    gpu_name: str = "v100-sxm-32gb",
    *,
    bytes_per_param: float = 2,
    bs: int | None = None,
    batch_size: int | None = None,
    seq_len: int = 522,
    generate_len: int = 1526,
    ds_zero: int = 0,
    dp_size: int = 1,
    tp_size: int = 1,
    pp_size: int = 1,
    sp_size: int = 1,
    use_kv_cache: bool = True,
    layernorm_dtype_bytes: float = 2,
    kv_cache_bytes: float = 2,
    flops_efficiency: float = 1.0,
    hbm_memory_efficiency: float = 1.0,
    intra_node_memory_efficiency: float = 1.0,
    inter_node_memory_efficiency: float = 1.0,
    mode: str = "inference",
    print_sections: bool = True,
) -> dict[str, Any]:
    """Parameters, FLOPs, memory and latency of a model, with the argument names in common use.

    Parameters
    ----------
    model_name, gpu_name : str
        As for :func:`llmprof.theory.profile`: catalogue names in any spelling (``llama2-70b``), or files.
    bytes_per_param, layernorm_dtype_bytes, kv_cache_bytes : float
        Bytes of a weight, of an activation (2 or 4) and of a number in the KV cache.
    bs, batch_size : int, optional
        Number of requests, under either name; 1 if neither is given.
    seq_len, generate_len, ds_zero, dp_size, tp_size, pp_size, sp_size, use_kv_cache, mode
        As for :func:`llmprof.theory.profile`.
    flops_efficiency, hbm_memory_efficiency, intra_node_memory_efficiency, inter_node_memory_efficiency : float
        Assumed shares of the peaks, in (0, 1].
    print_sections : bool
        Whether the sections of :func:`sections` are printed.

    Returns
    -------
    dict
        Settings: ``inference_config, gpu_config``. Parameters: ``model_params, params_per_layer``. FLOPs of the whole
        model: ``prefill_flops_per_layer, prefill_flops, decode_flops_per_step``. Memory in bytes:
        ``weight_memory_per_gpu, kv_cache_memory_per_gpu, prefill_act_per_gpu, decode_act_per_gpu``. Largest batches:
        ``prefill_max_bs, decode_max_bs, max_batch_total_tokens``. Times in seconds: ``prefill_latency_parts,
        decode_latency_parts, TTFT, TTOT, kv_cache_latency, total_infer_latency``. With ``mode="training"`` also
        ``training``.

    Raises
    ------
    LlmprofError
        As :func:`llmprof.theory.profile`.

    Examples
    --------
    >>> values = llm_profile("llama2-70b", "a100-sxm-40gb", tp_size=8, bs=20, seq_len=1024, print_sections=False)
    >>> values["model_params"]
    68976648192
    """
    read = profile(
        model_name,
        gpu_name,
        batch_size=bs if bs is not None else batch_size if batch_size is not None else 1,
        seq_len=seq_len,
        generate_len=generate_len,
        tp_size=tp_size,
        pp_size=pp_size,
        dp_size=dp_size,
        sp_size=sp_size,
        dtype=_FORMATS.get(float(bytes_per_param)),
        bytes_per_param=bytes_per_param,
        kv_cache_dtype={1.0: "int8", 4.0: "fp32"}.get(float(kv_cache_bytes)),
        activation_dtype="fp32" if layernorm_dtype_bytes == BYTES["fp32"] else None,
        use_kv_cache=use_kv_cache,
        ds_zero=ds_zero,
        flops_efficiency=flops_efficiency,
        hbm_efficiency=hbm_memory_efficiency,
        intra_node_efficiency=intra_node_memory_efficiency,
        inter_node_efficiency=inter_node_memory_efficiency,
        mode="training" if mode == "training" else "inference",
    )
    values = as_dict(read)
    if print_sections:
        print(sections(values))  # noqa: T201  the function is known for printing
    return values


def as_dict(result: Profile) -> dict[str, Any]:
    """Dict of a profile with the keys that :func:`llm_profile` returns."""
    plan, device, memory = result.plan, result.device, result.memory
    table = result.parameter_table.with_columns(group=_group())
    layers = len(result.shape.layers)
    per_layer = {
        str(name): value
        for name, value in table.group_by("group", maintain_order=True)
        .agg(pl.when(pl.col("layers") > 1).then(pl.col("parameters") / layers).otherwise("parameters").sum())
        .iter_rows()
    }
    flops = _sums(result, "prefill", "flops_per_layer")
    first = {name: _sums(result, phase, "latency_s") for name, phase in (("prefill", "prefill"), ("decode", "decode"))}
    values: dict[str, Any] = {
        "inference_config": {
            "model_name": result.shape.name,
            "hidden_size": result.shape.hidden,
            "num_layers": layers,
            "vocab_size": result.shape.vocab,
            "bs": result.batch_size,
            "seq_len": result.seq_len,
            "generate_len": result.generate_len,
            "tp_size": plan.tp,
            "pp_size": plan.pp,
            "dp_size": plan.dp,
            "use_kv_cache": result.use_kv_cache,
        },
        "gpu_config": {
            "name": device.name,
            "memory_in_GB": (device.memory_bytes or 0) / 1e9 or None,
            "gpu_hbm_bw_GB_per_s": (device.memory_bytes_per_s or 0) / 1e9,
            "gpu_intra_node_bw_GB_per_s": (device.link_bytes_per_s or 0) / 1e9,
            "gpu_fp16_TFLOPS": (device.flop_per_s.get("fp16") or 0) / 1e12 or None,
        },
        "model_params": result.parameters,
        "active_params": result.active_parameters,
        "params_per_layer": per_layer,
        "prefill_flops_per_layer": flops,
        "prefill_flops": float(result.totals()["flops"][0]) * plan.tp,
        "decode_flops_per_step": float(result.totals()["flops"][1]) * plan.tp,
        "weight_memory_per_gpu": memory.weights,
        "kv_cache_memory_per_gpu": memory.kv_cache,
        "prefill_act_per_gpu": memory.prefill_activations,
        "decode_act_per_gpu": memory.decode_activations,
        "consume_memory_per_gpu": memory.total,
        "prefill_max_bs": memory.largest_prefill_batch,
        "decode_max_bs": memory.largest_decode_batch,
        "max_batch_total_tokens": memory.max_batch_total_tokens,
        "prefill_latency_parts": first["prefill"],
        "decode_latency_parts": first["decode"],
        "TTFT": result.prefill_latency_s,
        "TTOT": result.decode_latency_s,
        "kv_cache_latency": result.kv_cache_latency_s,
        "total_infer_latency": result.total_latency_s,
    }
    if result.training is not None:
        values["training"] = {row["quantity"]: row["value"] for row in result.training.frame().iter_rows(named=True)}
    return values


def sections(named: dict[str, Any]) -> str:
    """Text of the printed sections of a dict of :func:`as_dict`, with units."""
    parts: list[tuple[str, list[tuple[str, Any]], Callable[[Any], str]]] = [
        ("LLM main infer config", [*named["inference_config"].items(), *named["gpu_config"].items()], str),
        ("LLM Params per_layer analysis", [*named["params_per_layer"].items(), ("params_model", named["model_params"])],
         lambda n: quantity(n, "")),
        ("LLM Prefill Flops per_layer analysis",
         [*named["prefill_flops_per_layer"].items(), ("prefill flops_model", named["prefill_flops"]),
          ("decode flops_per_step", named["decode_flops_per_step"])], lambda n: quantity(n, "")),
        ("LLM Memory analysis",
         [(k, named[k]) for k in ("weight_memory_per_gpu", "kv_cache_memory_per_gpu", "prefill_act_per_gpu",
                                  "decode_act_per_gpu", "consume_memory_per_gpu")], lambda n: quantity(n, "B")),
        ("LLM largest batches", [(k, named[k]) for k in ("prefill_max_bs", "decode_max_bs", "max_batch_total_tokens")],
         str),
        ("LLM Latency analysis (Prefill)", [*named["prefill_latency_parts"].items(), ("TTFT", named["TTFT"])], seconds),
        ("LLM Latency analysis (Decode)",
         [*named["decode_latency_parts"].items(), ("kv_cache_latency", named["kv_cache_latency"]),
          ("TTOT", named["TTOT"]), ("total_infer_latency", named["total_infer_latency"])], seconds),
    ]  # fmt: skip
    if "training" in named:
        parts.append(("LLM Training analysis", list(named["training"].items()), lambda n: f"{n:.4g}"))
    lines: list[str] = []
    for title, rows, write in parts:
        lines += [f"{'-' * 26} {title} {'-' * 26}", *(f"    {name:<28}{write(value)}" for name, value in rows), ""]
    return "\n".join(lines).rstrip()


def quantity(value: float | None, unit: str) -> str:
    """Text of a number with a decimal prefix: ``68.98 G``; ``unknown`` for None."""
    if value is None:
        return "unknown"
    for scale, prefix in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= scale:
            return f"{value / scale:.2f} {prefix}{unit}"
    return f"{value:.4g} {unit}".rstrip()


def seconds(value: float | None) -> str:
    """Text of a time (s) with a fitting unit: ``14.58 ms``; ``unknown`` for None."""
    if value is None:
        return "unknown"
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if abs(value) >= scale:
            return f"{value / scale:.2f} {unit}"
    return f"{value / 1e-9:.2f} ns"


def _group() -> pl.Expr:
    named = {stage: group for group, stages in _GROUPS.items() for stage in stages}
    return pl.col("stage").replace_strict(named, default="other")


def _sums(result: Profile, phase: str, column: str) -> dict[str, float]:
    """Sums of a column over the groups of ``llm_profile`` in a phase; FLOPs are those of the model, not of a rank."""
    frame = result.components.filter(pl.col("phase") == phase).with_columns(group=_group())
    scale = result.plan.tp if column == "flops_per_layer" else 1
    rows = frame.group_by("group", maintain_order=True).agg(pl.col(column).sum() * scale).iter_rows()
    return {str(name): float(value) for name, value in rows if value}
