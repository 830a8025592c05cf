"""Theoretical profile of a model on a machine: parameters, FLOPs, bytes, memory and lower bounds
of times.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

import polars as pl
from msgspec import Struct

from llmprof.errors import LlmprofError
from llmprof.theory import memory as counted
from llmprof.theory import shapes
from llmprof.theory.bound import INTER_NODE_BYTES_PER_S, Machine, nearest_device
from llmprof.theory.hardware import Device
from llmprof.theory.memory import Memory, estimate_memory, weight_bytes
from llmprof.theory.plan import (
    BYTES,
    Batch,
    Efficiency,
    Plan,
    Requests,
    decode,
    number_format,
    positive,
    prefill,
)
from llmprof.theory.shapes import Shape
from llmprof.theory.training import Recompute, Training, training
from llmprof.theory.work import step_operators

COLUMNS: Final = {
    "phase": pl.String,
    "component": pl.String,
    "stage": pl.String,
    "layers": pl.Int64,
    "flops_per_layer": pl.Float64,
    "flops": pl.Float64,
    "weight_bytes": pl.Float64,
    "kv_read_bytes": pl.Float64,
    "kv_write_bytes": pl.Float64,
    "activation_bytes": pl.Float64,
    "bytes_read": pl.Float64,
    "bytes_written": pl.Float64,
    "message_bytes": pl.Float64,
    "memory_bytes": pl.Float64,
    "compute_s": pl.Float64,
    "memory_s": pl.Float64,
    "communication_s": pl.Float64,
    "latency_per_layer_s": pl.Float64,
    "latency_s": pl.Float64,
    "intensity": pl.Float64,
    "bound": pl.String,
}
"""Columns of :func:`_components`; all numbers are those of one rank."""


def _components(shape: Shape, batch: Batch, machine: Machine, *, phase: str = "") -> pl.DataFrame:
    """Work and lower bound of the time of each component of a step on one rank."""
    rows = []
    for operator in step_operators(shape, batch, machine.plan):
        t, n = machine.time(operator), operator.layers
        moved = operator.bytes_read + operator.bytes_written
        row = {
            "phase": phase,
            "component": operator.component,
            "stage": operator.stage,
            "layers": n,
            "flops_per_layer": operator.flops,
            "activation_bytes": (operator.input_bytes + operator.output_bytes) * n,
            "latency_per_layer_s": t.latency_s,
            "intensity": operator.flops / moved if operator.flops and moved else None,
            "bound": t.bound,
        }
        summed = [name for name in COLUMNS if name not in row]
        rows.append(
            row | {c: getattr(operator if hasattr(operator, c) else t, c) * n for c in summed}
        )
    return pl.DataFrame(rows, schema=COLUMNS)


_NUMBERS: Final = ("batch_size", "seq_len", "generate_len", "parameters", "active_parameters")
_TIMES: Final = (
    "prefill_latency_s",
    "decode_latency_s",
    "kv_cache_latency_s",
    "total_latency_s",
    "tokens_per_s",
)


class Profile(Struct, frozen=True):
    """Theoretical profile of a model on a machine.

    All latencies are at the given efficiencies; at 1.0 they are lower bounds.

    Parameters
    ----------
    shape, device, plan, efficiency
        Model, device, layout and efficiencies.
    batch_size, seq_len, generate_len : int
        Requests of a replica, and prompt tokens and output tokens of each.
    components : polars.DataFrame
        Result of :func:`_components` for the prefill of the whole batch and for the decode step in
        the middle of the output.
    parameter_table : polars.DataFrame
        Result of :func:`llmprof.theory.memory.parameters`.
    memory : Memory
        Bytes on a rank, and the largest batches.
    training : Training or None
        Result of :func:`llmprof.theory.training.training` for ``mode="training"``.
    notes : tuple of str
        Assumptions that were made.
    """

    shape: Shape
    device: Device
    plan: Plan
    efficiency: Efficiency
    batch_size: int
    seq_len: int
    generate_len: int
    use_kv_cache: bool
    components: pl.DataFrame
    parameter_table: pl.DataFrame
    memory: Memory
    training: Training | None = None
    notes: tuple[str, ...] = ()

    @property
    def parameters(self) -> int:
        """Number of parameters of the model."""
        return counted.total_parameters(self.shape)

    @property
    def active_parameters(self) -> int:
        """Number of parameters that one token uses."""
        return counted.active_parameters(self.shape)

    @property
    def prefill_latency_s(self) -> float:
        """Seconds until the first token (TTFT), if one step reads all prompts of the batch."""
        return self._sum("prefill", "latency_s")

    @property
    def decode_latency_s(self) -> float:
        """Seconds of a decode step in the middle of the output (TPOT)."""
        return self._sum("decode", "latency_s")

    @property
    def total_latency_s(self) -> float:
        """Seconds from the start to the last token; the prefill generates the first one, decode
        steps the others.
        """
        return self.prefill_latency_s + max(self.generate_len - 1, 0) * self.decode_latency_s

    @property
    def kv_cache_latency_s(self) -> float:
        """Seconds of a decode step for reading cached keys, values and states at the bandwidth
        of the device memory.
        """
        bandwidth = (self.device.memory_bytes_per_s or 0) * self.efficiency.memory
        return self._sum("decode", "kv_read_bytes") / bandwidth

    @property
    def weights_per_gpu_bytes(self) -> float:
        """Bytes of weights on a rank."""
        return self.memory.weights

    @property
    def max_batch_total_tokens(self) -> int | None:
        """Number of tokens that fit in the KV cache; None if the size of the device's memory is
        not stated.
        """
        return self.memory.max_batch_total_tokens

    @property
    def tokens_per_s(self) -> float:
        """Output tokens per second of all replicas, from the start to the last token."""
        return self.batch_size * self.generate_len * self.plan.dp / self.total_latency_s

    def _sum(self, phase: str, column: str) -> float:
        return float(self.components.filter(phase=phase)[column].sum())

    def totals(self) -> pl.DataFrame:
        """Sums of each phase on one rank.

        ``phase, flops, bytes_read, bytes_written, memory_bytes, message_bytes, compute_s, memory_s,
        communication_s, latency_s, intensity, bound`` (the resource that bounds most of
        the time).
        """
        moved = ("bytes_read", "bytes_written", "memory_bytes", "message_bytes")
        names = ["flops", *moved, "compute_s", "memory_s", "communication_s", "latency_s"]
        sums = self.components.group_by("phase", maintain_order=True).agg(pl.col(names).sum())
        bound = self.components.group_by("phase", "bound").agg(pl.sum("latency_s"))
        bound = bound.sort("latency_s", descending=True).unique(
            "phase", keep="first", maintain_order=True
        )
        bound = bound.select("phase", "bound")
        intensity = pl.col("flops") / (pl.col("bytes_read") + pl.col("bytes_written"))
        sums = sums.with_columns(intensity=intensity)
        return sums.join(bound, on="phase", how="left", maintain_order="left")

    def summary(self) -> dict[str, Any]:
        """Main numbers as a flat dict; the names of the keys state their SI units."""
        m, plan = self.memory, self.plan
        numbers: dict[str, Any] = {
            "model": self.shape.name,
            "device": self.device.name,
            **{name: getattr(plan, name) for name in ("tp", "pp", "dp", "weights", "kv_cache")},
            **{name: getattr(self, name) for name in _NUMBERS},
            **{
                f"{phase}_flops_per_gpu": self._sum(phase, "flops")
                for phase in ("prefill", "decode")
            },
            **{name: getattr(self, name) for name in _TIMES},
            "weights_per_gpu_bytes": m.weights,
            "kv_cache_per_gpu_bytes": m.kv_cache,
            "kv_cache_bytes_per_token": m.kv_per_token,
            "state_bytes_per_request": m.state_per_request,
            "prefill_activations_bytes": m.prefill_activations,
            "decode_activations_bytes": m.decode_activations,
            "largest_prefill_batch": m.largest_prefill_batch,
            "largest_decode_batch": m.largest_decode_batch,
            "max_batch_total_tokens": m.max_batch_total_tokens,
            "fits": m.fits,
            "notes": list(self.notes),
        }
        if self.training is not None:
            numbers["training"] = {
                row["quantity"]: row["value"] for row in self.training.frame().iter_rows(named=True)
            }
        return numbers


def machine_for(
    shape: Shape,
    device: Device,
    plan: Plan,
    efficiency: Efficiency | None = None,
    *,
    inter_node_bytes_per_s: float = INTER_NODE_BYTES_PER_S,
) -> Machine:
    """Machine for a model; ``resident`` is set if the model's weights fit in the device's last
    cache.
    """
    small = device.cache_bytes is not None and weight_bytes(shape, plan) <= device.cache_bytes
    return Machine(
        device, plan, efficiency, inter_node_bytes_per_s=inter_node_bytes_per_s, resident=small
    )


def profile(
    model: str | Path | Mapping[str, Any] | Shape,
    device: str | Path | Device,
    *,
    batch_size: int = 1,
    seq_len: int = 1024,
    generate_len: int = 128,
    tp_size: int = 1,
    pp_size: int = 1,
    dp_size: int = 1,
    sp_size: int = 1,
    expert_parallel: bool = False,
    dtype: str | None = None,
    bytes_per_param: float | None = None,
    kv_cache_dtype: str | None = None,
    activation_dtype: str | None = None,
    use_kv_cache: bool = True,
    ds_zero: int = 0,
    recompute: Recompute = "none",
    micro_batches: int = 1,
    mode: Literal["inference", "training"] = "inference",
    flops_efficiency: float = 1.0,
    hbm_efficiency: float = 1.0,
    intra_node_efficiency: float = 1.0,
    inter_node_efficiency: float = 1.0,
    inter_node_bytes_per_s: float = INTER_NODE_BYTES_PER_S,
    memory_utilization: float = 1.0,
) -> Profile:
    """Compute the theoretical profile of a model on a machine from the model's shape.

    Parameters
    ----------
    model : str, path, mapping or Shape
        Name in the catalogue, a ``config.json``, its folder or its content.
    device : str, path or Device
        Name (``H200``, ``a100-sxm-40gb``), YAML file or device. Of a family (``H100``) the first is
        taken, with a note.
    batch_size, seq_len, generate_len : int
        Requests of a replica, and prompt tokens and output tokens of each.
    tp_size, pp_size, dp_size, sp_size : int
        Tensor, pipeline and data parallel sizes; sequence parallelism uses the tensor-parallel
        ranks.
    expert_parallel : bool
        Whether whole experts are spread over the tensor-parallel ranks.
    dtype : str, optional
        Number format of the weights (bf16, fp16, fp8, int8, int4, fp32). The default is that of the
        config if the device has it.
    bytes_per_param : float, optional
        Bytes of a weight, if they differ from those of the format.
    kv_cache_dtype, activation_dtype : str, optional
        Number formats of the KV cache and of the activations; 16 bits if not given.
    use_kv_cache : bool
        Whether there is a KV cache; without one, every step computes the whole sequence again.
    ds_zero, recompute, micro_batches
        Options of training: stage of ZeRO, recomputation of layers (``none`` or ``full``), micro
        batches of a step.
    mode : {"inference", "training"}
        ``training`` adds memory and step time of training.
    flops_efficiency, hbm_efficiency, intra_node_efficiency, inter_node_efficiency : float
        Assumed shares of the peaks, in (0, 1].
    inter_node_bytes_per_s : float
        Network bandwidth of a device (bytes/s, both directions together).
    memory_utilization : float
        Share of the device memory that may be used.

    Returns
    -------
    Profile
        Latencies, memory and frames of the model.

    Raises
    ------
    LlmprofError
        The model or device is unknown (the error names the nearest ones); a field of the config is
        missing; ``tp_size`` does not divide the heads; the weights do not fit (the error says by
        how much, and the smallest tp that fits); a size is not positive; an efficiency is outside
        (0, 1].

    Examples
    --------
    >>> result = profile("Llama-2-70b-hf", "a100-sxm-40gb", tp_size=8, batch_size=20, generate_len=1024)
    >>> result.parameters
    68976648192
    >>> result.components.filter(result.components["stage"] == "qkv_proj").height
    2
    """  # noqa: E501
    for name, value in {
        "batch_size": batch_size,
        "seq_len": seq_len,
        "generate_len": generate_len,
    }.items():
        positive(name, value)
    positive("micro_batches", micro_batches)
    if mode not in ("inference", "training"):
        raise LlmprofError(f"mode={mode!r}", expected="'inference' or 'training'")
    if inter_node_bytes_per_s <= 0:
        raise LlmprofError(
            f"inter_node_bytes_per_s={inter_node_bytes_per_s!r}", expected="a number above 0"
        )
    read, (target, taken) = shapes.shape(model), nearest_device(device)
    half = "bf16" if target.flop_per_s.get("bf16") or not target.flop_per_s.get("fp16") else "fp16"
    weights = number_format(dtype) if dtype else read.weight_format
    if dtype is None and (bytes_per_param or BYTES[weights]) == BYTES["bf16"]:
        weights = half
    plan = Plan(
        tp=tp_size,
        pp=pp_size,
        dp=dp_size,
        sp=sp_size,
        expert_parallel=expert_parallel,
        weights=weights,
        kv_cache=number_format(kv_cache_dtype) if kv_cache_dtype else half,
        activations=(
            number_format(activation_dtype)
            if activation_dtype
            else ("fp32" if weights == "fp32" else half)
        ),
        weight_bytes=(
            read.weight_bytes if bytes_per_param is None and not dtype else bytes_per_param
        ),
    )
    efficiency = Efficiency(
        flops_efficiency, hbm_efficiency, intra_node_efficiency, inter_node_efficiency
    )
    machine = machine_for(
        read, target, plan, efficiency, inter_node_bytes_per_s=inter_node_bytes_per_s
    )
    middle = seq_len + max(generate_len, 1) / 2
    first = prefill(batch_size, seq_len)
    then: Batch = (
        decode(batch_size, middle)
        if use_kv_cache
        else (Requests(batch_size, middle, middle, "prefill"),)
    )
    frames = [
        _components(read, first, machine, phase="prefill"),
        _components(read, then, machine, phase="decode"),
    ]
    sizes: dict[str, Any] = {"batch_size": batch_size, "seq_len": seq_len}
    rank_memory = estimate_memory(
        read, plan, target, **sizes, generate_len=generate_len, utilization=memory_utilization
    )
    steps: dict[str, Any] = {
        "ds_zero": ds_zero,
        "recompute": recompute,
        "micro_batches": micro_batches,
    }
    return Profile(
        **{"shape": read, "device": target, "plan": plan, "efficiency": efficiency, **sizes},
        generate_len=generate_len,
        use_kv_cache=use_kv_cache,
        components=pl.concat(frames),
        parameter_table=counted.parameters(read),
        memory=rank_memory,
        training=training(read, machine, **sizes, **steps) if mode == "training" else None,
        notes=(*filter(None, [taken]), *read.notes, *machine.notes),
    )


def base_of(
    model: str | Path | Mapping[str, Any] | Shape | Profile,
    device: str | Path | Device | None,
    **options: Any,
) -> Profile:
    """The profile that is given, or that of a model on a device."""
    if isinstance(model, Profile):
        return model
    if device is None:
        raise LlmprofError("no device is given", expected="a model with a device, or a profile")
    return profile(model, device, **options)
