"""Theory over a range of batches, lengths or tensor-parallel sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal

import polars as pl

from llmprof.errors import LlmprofError
from llmprof.hardware import Device
from llmprof.theory.calibration import Calibration
from llmprof.theory.memory import activation_bytes, kv_bytes_per_token, weight_bytes
from llmprof.theory.plan import decode, positive, prefill
from llmprof.theory.profiler import Profile, machine_for, profile
from llmprof.theory.shapes import Shape
from llmprof.theory.work import operators

Over = Literal["batch_size", "seq_len", "generate_len", "tp_size"]
SCHEMA: Final = {
    "over": pl.String, "value": pl.Int64, "tp": pl.Int64, "batch_size": pl.Int64, "seq_len": pl.Int64,
    "generate_len": pl.Int64, "prefill_s": pl.Float64, "decode_s": pl.Float64, "tokens_per_s": pl.Float64,
    "predicted_prefill_s": pl.Float64, "predicted_decode_s": pl.Float64, "weights_bytes": pl.Float64,
    "kv_cache_bytes": pl.Float64, "activations_bytes": pl.Float64, "device_bytes": pl.Float64, "fits": pl.Boolean,
}  # fmt: skip


def sweep(
    model: str | Path | Mapping[str, Any] | Shape | Profile,
    device: str | Path | Device | None = None,
    *,
    over: Over = "batch_size",
    values: Sequence[int] | None = None,
    calibration: Calibration | None = None,
    **options: Any,
) -> pl.DataFrame:
    """Least latencies, throughput and memory over a range.

    Parameters
    ----------
    model, device
        As for :func:`llmprof.theory.profile`; or a profile, whose values hold for all that is not swept.
    over : {"batch_size", "seq_len", "generate_len", "tp_size"}
        What changes.
    values : sequence of int, optional
        Its values; powers of two if not given. A ``tp_size`` that the model cannot be split by is left out.
    calibration : Calibration, optional
        Adds predicted times, which are no bounds.
    **options
        Further arguments of :func:`llmprof.theory.profile`.

    Returns
    -------
    polars.DataFrame
        ``over, value, tp, batch_size, seq_len, generate_len, prefill_s, decode_s`` (least times)``, tokens_per_s``
        (output tokens of a replica while it decodes, at most)``, predicted_prefill_s, predicted_decode_s`` (null
        without a calibration)``, weights_bytes, kv_cache_bytes, activations_bytes, device_bytes`` (of a rank)``,
        fits``.

    Raises
    ------
    LlmprofError
        As :func:`llmprof.theory.profile`; or ``over`` is unknown, or no value is left.

    Examples
    --------
    >>> sweep("Qwen3-8B", "H200", values=[1, 2])["decode_s"].is_sorted()
    True
    """
    if over not in ("batch_size", "seq_len", "generate_len", "tp_size"):
        raise LlmprofError(f"over={over!r}", expected="batch_size, seq_len, generate_len or tp_size")
    if isinstance(model, Profile):
        base = model
    else:
        if device is None:
            raise LlmprofError("no device is given", expected="sweep(model, device)")
        smallest = {"tp_size": max(values)} if over == "tp_size" and values else {}
        base = profile(model, device, **(options | smallest))
    found = values or _DEFAULTS[over]
    rows = [row for value in found if (row := _point(base, over, value, calibration)) is not None]
    if not rows:
        raise LlmprofError(f"{base.shape.name} cannot be split over any of {list(found)} ranks")
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


_DEFAULTS: Final = {
    "batch_size": [1, 2, 4, 8, 16, 32, 64, 128, 256, 512],
    "seq_len": [128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768],
    "generate_len": [1, 16, 64, 256, 1024, 4096],
    "tp_size": [1, 2, 4, 8],
}


def _point(base: Profile, over: str, value: int, calibration: Calibration | None) -> tuple[Any, ...] | None:
    positive(over, value)
    sizes = {"batch_size": base.batch_size, "seq_len": base.seq_len, "generate_len": base.generate_len}
    plan = base.plan
    if over == "tp_size":
        plan = replace(plan, tp=value, sp=1)
        try:
            plan.check(base.shape)
        except LlmprofError:
            return None
    else:
        sizes[over] = value
    batch, prompt, out = sizes["batch_size"], sizes["seq_len"], sizes["generate_len"]
    machine = machine_for(base.shape, base.device, plan, base.efficiency)
    steps = prefill(batch, prompt), decode(batch, prompt + out / 2)
    least = [machine.total(operators(base.shape, step, plan)) for step in steps]
    predicted = [calibration.step_s(base.shape, step, machine) if calibration else None for step in steps]
    weights = weight_bytes(base.shape, plan)
    length = prompt + out
    cache = batch * length * kv_bytes_per_token(base.shape, plan, context=length)
    # vLLM reads prompts in steps of at most so many tokens
    active = activation_bytes(base.shape, plan, min(batch * prompt, 16384), batch)
    limit = base.memory.device
    fits = None if limit is None else weights + cache + active <= limit
    point = (over, value, plan.tp, batch, prompt, out)
    return (*point, *least, batch / least[1], *predicted, weights, cache, active, limit, fits)
