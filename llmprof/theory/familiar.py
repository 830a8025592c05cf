"""The function ``llm_profile`` with argument names, keys and printed sections that many know
from other tools.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal

import polars as pl

from llmprof.errors import LlmprofError, listed
from llmprof.theory.profiler import Profile, profile

_FORMATS: Final = {4.0: "fp32", 2.0: None, 1.0: "int8", 0.5: "int4"}
"""Number formats by their bytes; that of two bytes depends on the device."""
_GROUPS: Final = {
    "qkvo_proj": ("qkv_proj", "o_proj"),
    "attn_kernel": ("attention", "rope"),
    "mlp": ("gate_up_proj", "activation", "down_proj", "router", "experts", "shared_experts"),
    "rmsnorm": ("norm",),
    "final_rmsnorm": ("final_norm",),
    "tp_comm": ("all_reduce", "all_gather"),
    "input_embedding": ("embedding",),
    "output_embedding": ("lm_head", "sampling"),
}

_PHASES: Final = ("prefill", "decode")
_PARTS: Final = ("qkvo_proj", "attn_kernel", "mlp", "rmsnorm", "tp_comm", "kv_cache_rw")
"""Parts of a step whose times stand by themselves, too."""
_OF_FLOPS: Final = {"attention": "attention_kernel", "rope": "positional_embedding"}
"""Stages whose FLOPs have other names than their times."""


def llm_profile(  # noqa: PLR0917  the order of the arguments is the familiar one
    model_name: str = "llama-13b",
    gpu_name: str = "v100-sxm-32gb",
    bytes_per_param: float = 2,
    bs: int = 1,
    seq_len: int = 522,
    generate_len: int = 1526,
    ds_zero: int = 0,
    dp_size: int = 1,
    tp_size: int = 1,
    pp_size: int = 1,
    sp_size: int = 1,
    use_kv_cache: bool = True,
    layernorm_dtype_bytes: float = 2,
    kv_cache_dtype_bytes: float = 2,
    flops_efficiency: float = 0.9,
    hbm_memory_efficiency: float = 0.9,
    intra_node_memory_efficiency: float = 0.9,
    inter_node_memory_efficiency: float = 0.9,
    mode: Literal["inference", "training"] = "inference",
    print_flag: bool = True,
    *,
    batch_size: int | None = None,
    kv_cache_bytes: float | None = None,
) -> dict[str, Any]:
    """Parameters, FLOPs, memory and latency of a model, with the argument names in common use.

    Parameters
    ----------
    model_name, gpu_name : str
        As for :func:`llmprof.theory.profile`: catalogue names in any spelling (``llama2-70b``), or
        files.
    bytes_per_param, layernorm_dtype_bytes, kv_cache_dtype_bytes : float
        Bytes of a weight, of an activation (2 or 4) and of a number in the KV cache.
    bs : int
        Number of requests.
    seq_len, generate_len, ds_zero, dp_size, tp_size, pp_size, sp_size, use_kv_cache, mode
        As for :func:`llmprof.theory.profile`.
    flops_efficiency, hbm_memory_efficiency : float
        Assumed shares of the peaks of the device, in (0, 1].
    intra_node_memory_efficiency, inter_node_memory_efficiency : float
        Assumed shares of the peaks of the links, in (0, 1].
    print_flag : bool
        Whether the sections of :func:`_sections` are printed.
    batch_size, kv_cache_bytes
        Other names of ``bs`` and ``kv_cache_dtype_bytes``.

    Returns
    -------
    dict
        Settings: ``inference_config, gpu_config``. Parameters: ``model_params`` (also
        ``params_model``), ``active_params, params_per_layer``. FLOPs of the whole model:
        ``prefill_flops_per_layer, prefill_flops`` (also ``model_flops`` and ``prefill
        flops_model``), ``decode_flops_per_step``. Memory in bytes: ``weight_memory_per_gpu,
        kv_cache_memory_per_gpu, prefill_act_memory_per_gpu, decode_act_memory_per_gpu``;
        ``decode_memory_total`` of weights, cache and a decode step, ``consume_memory_per_gpu`` with
        the larger activations of a prefill. Largest batches: ``prefill_max_bs, decode_max_bs,
        max_batch_total_tokens``. Times in seconds: ``prefill_latency_parts``, which add up to
        ``TTFT`` (also ``prefill_first_token_latency`` and ``prefill_latency``), and
        ``decode_latency_parts``, which add up to ``TTOT`` (also ``decode_per_token_latency`` and
        ``decode_latency``); each part also by itself, as ``prefill_mlp``; ``kv_cache_latency,
        total_infer_latency``. In the parts, ``kv_cache_rw`` is the time by which reads and writes
        of the KV cache lengthen the step: 0 where arithmetic takes longer. ``kv_cache_latency`` is
        the time of the reads alone. With ``mode="training"`` also ``training``.

    Raises
    ------
    LlmprofError
        As :func:`llmprof.theory.profile`.

    Examples
    --------
    >>> values = llm_profile("llama2-70b", "a100-sxm-40gb", tp_size=8, bs=20, seq_len=1024, print_flag=False)
    >>> values["model_params"]
    68976648192
    """  # noqa: E501
    cached = kv_cache_dtype_bytes if kv_cache_bytes is None else kv_cache_bytes
    read = profile(
        model_name,
        gpu_name,
        batch_size=bs if batch_size is None else batch_size,
        seq_len=seq_len,
        generate_len=generate_len,
        tp_size=tp_size,
        pp_size=pp_size,
        dp_size=dp_size,
        sp_size=sp_size,
        dtype=_FORMATS.get(bytes_per_param),
        bytes_per_param=bytes_per_param,
        kv_cache_dtype=_format("kv_cache_dtype_bytes", cached, 1, 2, 4),
        activation_dtype=_format("layernorm_dtype_bytes", layernorm_dtype_bytes, 2, 4),
        use_kv_cache=use_kv_cache,
        ds_zero=ds_zero,
        flops_efficiency=flops_efficiency,
        hbm_efficiency=hbm_memory_efficiency,
        intra_node_efficiency=intra_node_memory_efficiency,
        inter_node_efficiency=inter_node_memory_efficiency,
        mode=mode,
    )
    values = as_dict(read)
    if print_flag:
        print(_sections(values))  # noqa: T201  the function is known for printing
    return values


def as_dict(result: Profile) -> dict[str, Any]:
    """Dict of a profile with the keys that :func:`llm_profile` returns."""
    plan, device, memory = result.plan, result.device, result.memory
    table = result.parameter_table.with_columns(group=_group())
    layers = len(result.shape.layers)
    per_layer = {
        str(name): value
        for name, value in (
            table.group_by("group", maintain_order=True)
            .agg(
                pl.when(pl.col("layers") > 1)
                .then(pl.col("parameters") / layers)
                .otherwise("parameters")
                .sum()
            )
            .iter_rows()
        )
    }
    flops, parts = _flops(result), {name: _latencies(result, name) for name in _PHASES}
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
            "memory_GPU_in_GB": _stated(device.memory_bytes, 1e9, "GB"),
            "gpu_hbm_bandwidth": _stated(device.memory_bytes_per_s, 1e9, "GB/s"),
            "gpu_intra_node_bandwidth": _stated(device.link_bytes_per_s, 1e9, "GB/s"),
            "gpu_fp16_TFLOPS": _stated(device.flop_per_s.get("fp16"), 1e12, "TFLOPS"),
        },
        "model_params": result.parameters,
        "params_model": result.parameters,
        "active_params": result.active_parameters,
        "params_per_layer": per_layer,
        "prefill_flops_per_layer": flops,
        "prefill_flops": (model_flops := float(result.totals()["flops"][0]) * plan.tp),
        "model_flops": model_flops,
        "prefill flops_model": model_flops,
        "decode_flops_per_step": float(result.totals()["flops"][1]) * plan.tp,
        "weight_memory_per_gpu": memory.weights,
        "kv_cache_memory_per_gpu": memory.kv_cache,
        "prefill_act_memory_per_gpu": memory.prefill_activations,
        "decode_act_memory_per_gpu": memory.decode_activations,
        "decode_memory_total": memory.weights + memory.kv_cache + memory.decode_activations,
        "consume_memory_per_gpu": memory.total,
        "prefill_max_bs": memory.largest_prefill_batch,
        "decode_max_bs": memory.largest_decode_batch,
        "max_batch_total_tokens": memory.max_batch_total_tokens,
        **{f"{phase}_latency_parts": of for phase, of in parts.items()},
        **{f"{phase}_{name}": of.get(name, 0.0) for phase, of in parts.items() for name in _PARTS},
        "prefill_latency": result.prefill_latency_s,
        "decode_latency": result.decode_latency_s,
        "TTFT": result.prefill_latency_s,
        "TTOT": result.decode_latency_s,
        "prefill_first_token_latency": result.prefill_latency_s,
        "decode_per_token_latency": result.decode_latency_s,
        "kv_cache_latency": result.kv_cache_latency_s,
        "total_infer_latency": result.total_latency_s,
    }
    if result.training is not None:
        values["training"] = {
            row["quantity"]: row["value"] for row in result.training.frame().iter_rows(named=True)
        }
    return values


def _sections(named: dict[str, Any]) -> str:
    """Text of the printed sections of a dict of :func:`as_dict`, with units."""
    parts: list[tuple[str, list[tuple[str, Any]], Callable[[Any], str]]] = [
        (
            "LLM main infer config",
            [*named["inference_config"].items(), *named["gpu_config"].items()],
            str,
        ),
        (
            "LLM infer performance analysis",
            [
                *(
                    (k, quantity(named[k], ""))
                    for k in ("model_params", "prefill_flops", "decode_flops_per_step")
                ),
                *(
                    (k, format_seconds(named[k]))
                    for k in (
                        "prefill_first_token_latency",
                        "decode_per_token_latency",
                        "kv_cache_latency",
                        "total_infer_latency",
                    )
                ),
            ],
            str,
        ),
        (
            "LLM Params per_layer analysis",
            [*named["params_per_layer"].items(), ("params_model", named["model_params"])],
            lambda n: quantity(n, ""),
        ),
        (
            "LLM Prefill Flops per_layer analysis",
            [
                *named["prefill_flops_per_layer"].items(),
                ("prefill flops_model", named["prefill_flops"]),
                ("decode flops_per_step", named["decode_flops_per_step"]),
            ],
            lambda n: quantity(n, ""),
        ),
        (
            "LLM Memory analysis",
            [
                (k, named[k])
                for k in (
                    "weight_memory_per_gpu",
                    "kv_cache_memory_per_gpu",
                    "prefill_act_memory_per_gpu",
                    "decode_act_memory_per_gpu",
                    "decode_memory_total",
                    "consume_memory_per_gpu",
                )
            ],
            lambda n: quantity(n, "B"),
        ),
        (
            "LLM largest batches",
            [(k, named[k]) for k in ("prefill_max_bs", "decode_max_bs", "max_batch_total_tokens")],
            str,
        ),
        (
            "LLM Latency analysis (Prefill)",
            [*named["prefill_latency_parts"].items(), ("TTFT", named["TTFT"])],
            format_seconds,
        ),
        (
            "LLM Latency analysis (Decode)",
            [
                *named["decode_latency_parts"].items(),
                ("kv_cache_latency", named["kv_cache_latency"]),
                ("TTOT", named["TTOT"]),
                ("total_infer_latency", named["total_infer_latency"]),
            ],
            format_seconds,
        ),
    ]
    if "training" in named:
        parts.append(
            ("LLM Training analysis", list(named["training"].items()), lambda n: f"{n:.4g}")
        )
    lines: list[str] = []
    for title, rows, write in parts:
        lines += [
            f"{'-' * 26} {title} {'-' * 26}",
            *(f"    {name:<28}{write(value)}" for name, value in rows),
            "",
        ]
    return "\n".join(lines).rstrip()


def quantity(value: float | None, unit: str) -> str:
    """Text of a number with a decimal prefix: ``68.98 G``; ``unknown`` for None."""
    if value is None:
        return "unknown"
    for scale, prefix in (
        (1e18, "E"),
        (1e15, "P"),
        (1e12, "T"),
        (1e9, "G"),
        (1e6, "M"),
        (1e3, "k"),
    ):
        if abs(value) >= scale:
            return f"{value / scale:.2f} {prefix}{unit}"
    return f"{value:.4g} {unit}".rstrip()


def format_seconds(value: float | None) -> str:
    """Text of a time (s) with a fitting unit: ``14.58 ms``; ``unknown`` for None."""
    if value is None:
        return "unknown"
    if value == 0:
        return "0 s"
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if abs(value) >= scale:
            return f"{value / scale:.2f} {unit}"
    return f"{value / 1e-9:.2f} ns"


def _format(name: str, size: float, *known: float) -> str | None:
    """Number format of an option in bytes."""
    if size not in known:
        raise LlmprofError(f"{name} is {size!r}", expected=f"one of {listed(known)}")
    return _FORMATS[size]


def _stated(value: float | None, scale: float, unit: str) -> str:
    return "unknown" if value is None else f"{value / scale:g} {unit}"


def _group() -> pl.Expr:
    named = {stage: group for group, stages in _GROUPS.items() for stage in stages}
    return pl.col("stage").replace_strict(named, default="other").alias("group")


def _flops(result: Profile) -> dict[str, float]:
    """FLOPs of each part of a layer in the prefill, of the whole model and not of a rank."""
    stage = pl.col("stage").replace(_OF_FLOPS)
    group = pl.when(stage.is_in(list(_OF_FLOPS.values()))).then(stage).otherwise(_group())
    prefill = result.components.filter(phase="prefill")
    frame = prefill.group_by(group=group, maintain_order=True).agg(pl.sum("flops_per_layer"))
    sums = {str(name): float(value) * result.plan.tp for name, value in frame.iter_rows()}
    kept = {"rmsnorm", "positional_embedding", "input_embedding"}  # elementwise: none are counted
    return {name: value for name, value in sums.items() if value or name in kept}


def _latencies(result: Profile, phase: str) -> dict[str, float]:
    """Seconds of each group in a phase; what the cached keys and values add to them is apart, as
    ``kv_cache_rw``.
    """
    uncached = (
        pl.when(pl.col("memory_bytes") > 0)
        .then(1 - pl.col("kv_read_bytes") / pl.col("memory_bytes"))
        .clip(0)
    )
    frame = result.components.filter(phase=phase).select(
        _group(),
        "latency_s",
        without=pl.max_horizontal("compute_s", "communication_s", pl.col("memory_s") * uncached),
    )
    sums = frame.group_by("group", maintain_order=True).agg(pl.sum("without"))
    parts = {str(name): float(value) for name, value in sums.iter_rows() if value}
    return parts | {"kv_cache_rw": float((frame["latency_s"] - frame["without"]).sum())}
