"""Theory over a range of batch sizes, lengths or tensor-parallel sizes, and files of measured
steps to compare with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Final, Literal

import polars as pl
from msgspec.structs import replace

from llmprof.errors import LlmprofError, listed
from llmprof.theory.bound import find_device
from llmprof.theory.calibration import Calibration, Observation
from llmprof.theory.hardware import Device
from llmprof.theory.memory import (
    activation_bytes,
    kv_bytes_per_token,
    state_bytes_per_request,
    weight_bytes,
)
from llmprof.theory.plan import Plan, decode, number_format, positive, prefill
from llmprof.theory.profiler import Profile, base_of, machine_for
from llmprof.theory.shapes import Shape, shape
from llmprof.theory.work import step_operators
from llmprof.trace.storage import typed

Over = Literal["batch_size", "seq_len", "generate_len", "tp_size"]
SCHEMA: Final = {
    "over": pl.String,
    "value": pl.Int64,
    "tp": pl.Int64,
    "batch_size": pl.Int64,
    "seq_len": pl.Int64,
    "generate_len": pl.Int64,
    "prefill_s": pl.Float64,
    "decode_s": pl.Float64,
    "tokens_per_s": pl.Float64,
    "predicted_prefill_s": pl.Float64,
    "predicted_decode_s": pl.Float64,
    "weights_bytes": pl.Float64,
    "kv_cache_bytes": pl.Float64,
    "activations_bytes": pl.Float64,
    "device_bytes": pl.Float64,
    "fits": pl.Boolean,
}


def sweep(
    model: str | Path | Mapping[str, Any] | Shape | Profile,
    device: str | Path | Device | None = None,
    *,
    over: Over = "batch_size",
    values: Sequence[int] | None = None,
    calibration: Calibration | None = None,
    **options: Any,
) -> pl.DataFrame:
    """Lower bounds of latencies, throughput and memory over a range of one parameter.

    Parameters
    ----------
    model, device
        As for :func:`llmprof.theory.profile`; or a profile (without a device) that gives all other
        parameters.
    over : {"batch_size", "seq_len", "generate_len", "tp_size"}
        Parameter that changes.
    values : sequence of int, optional
        Values of the parameter; powers of two if not given. A ``tp_size`` that the model cannot be
        split by is left out.
    calibration : Calibration, optional
        Adds predicted times, which are not bounds.
    **options
        Further arguments of :func:`llmprof.theory.profile`.

    Returns
    -------
    polars.DataFrame
        ``over, value, tp, batch_size, seq_len, generate_len``; the lower bounds ``prefill_s`` and
        ``decode_s``; ``tokens_per_s``, the most output tokens per second of a replica while it
        decodes; ``predicted_prefill_s`` and ``predicted_decode_s``, null without a calibration;
        ``weights_bytes, kv_cache_bytes, activations_bytes, device_bytes`` of a rank; ``fits``, null
        if the size of the device's memory is not stated.

    Raises
    ------
    LlmprofError
        As for :func:`llmprof.theory.profile`; also if ``over`` is unknown, or the model cannot be
        split by any value.

    Examples
    --------
    >>> sweep("Qwen3-8B", "H200", values=[1, 2])["decode_s"].is_sorted()
    True
    """
    if over not in ("batch_size", "seq_len", "generate_len", "tp_size"):
        raise LlmprofError(
            f"over={over!r}", expected="batch_size, seq_len, generate_len or tp_size"
        )
    smallest = {"tp_size": max(values)} if over == "tp_size" and values else {}
    base = base_of(model, device, **(options | smallest))
    steps = values or _DEFAULTS[over]
    rows = [row for value in steps if (row := _point(base, over, value, calibration)) is not None]
    if not rows:
        raise LlmprofError(f"{base.shape.name} cannot be split over any of {listed(steps)} ranks")
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


_DEFAULTS: Final = {
    "batch_size": [1, 2, 4, 8, 16, 32, 64, 128, 256, 512],
    "seq_len": [128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768],
    "generate_len": [1, 16, 64, 256, 1024, 4096],
    "tp_size": [1, 2, 4, 8],
}


def _point(
    base: Profile, over: str, value: int, calibration: Calibration | None
) -> tuple[Any, ...] | None:
    positive(over, value)
    sizes = {
        "batch_size": base.batch_size,
        "seq_len": base.seq_len,
        "generate_len": base.generate_len,
    }
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
    bounds = [machine.total(step_operators(base.shape, step, plan)) for step in steps]
    predicted = [
        calibration.step_s(base.shape, step, machine) if calibration else None for step in steps
    ]
    weights = weight_bytes(base.shape, plan)
    length = prompt + out
    cache = length * kv_bytes_per_token(base.shape, plan, context=length) + state_bytes_per_request(
        base.shape, plan
    )
    cache *= batch
    # vLLM reads prompts in steps of at most this many tokens
    active = activation_bytes(base.shape, plan, min(batch * prompt, 16384), batch)
    limit = base.memory.device
    fits = None if limit is None else weights + cache + active <= limit
    point = (over, value, plan.tp, batch, prompt, out)
    return (*point, *bounds, batch / bounds[1], *predicted, weights, cache, active, limit, fits)


MEASURED_SCHEMA: Final = {
    "model": pl.String,
    "tp": pl.Int64,
    "dtype": pl.String,
    "phase": pl.String,
    "batch": pl.Int64,
    "prompt": pl.Int64,
    "out": pl.Int64,
    "measured_s": pl.Float64,
    "spread": pl.Float64,
    "repeats": pl.Int64,
}
MOST_PREFILL_TOKENS: Final = 16384
"""Most tokens of the prompts of a batch that one prefill step reads; longer prompts take several
steps.
"""


SAME_STEP: Final = 0.02
"""First tokens of one step arrive within this share of its time."""


def read_steps(path: str | Path) -> pl.DataFrame:
    """Read measured decode steps and prefills from a JSON file of a grid over batch size and prompt
    length.

    The file has ``rows`` with ``model, tp, dtype, quant, batch, prompt, out, decode_step_s,
    prefill_last_s, rep``. For ``batch`` requests with prompts of ``prompt`` tokens,
    ``decode_step_s`` is the mean time of a decode step over ``out`` output tokens, and
    ``prefill_last_s`` the longest time from scheduling to the first token of a request. The
    shortest such time (``prefill_first_s``) and the time from the first scheduling to the last
    first token (``prefill_span_s``) may be there, too: if they differ, the engine read the prompts
    in several steps, and the repeat measures no prefill.

    Returns
    -------
    polars.DataFrame
        ``model``; ``tp``; ``dtype``, the format of the weights (the quantization, if there is one);
        ``phase``, decode or prefill; ``batch, prompt, out``; ``measured_s``, the median of the
        repeats (of two, the smaller one); ``spread``, largest minus smallest over the median;
        ``repeats``. Prefills of more than :data:`MOST_PREFILL_TOKENS` tokens are left out.

    Raises
    ------
    LlmprofError
        The file cannot be read, or has no such rows.
    """
    rows = typed.read(
        Path(path), typed.StepsJson, error=LlmprofError, hint="give a file of measured steps"
    )["rows"]
    if not rows:
        raise LlmprofError(
            f"{Path(path).name} has no measured steps", expected="rows of measured steps"
        )
    known = [
        {name: row[name] for name in typed.StepJson.__annotations__ if name in row} for row in rows
    ]
    frame = pl.DataFrame(known, infer_schema_length=None)
    defaults = {"tp": pl.lit(1), "dtype": pl.lit("bfloat16"), "out": pl.lit(2)}
    frame = frame.with_columns(
        value.alias(name) for name, value in defaults.items() if name not in frame.columns
    )
    if "quant" in frame.columns:
        frame = frame.with_columns(dtype=pl.coalesce(pl.col("quant").cast(pl.String), "dtype"))
    if "prefill_first_s" in frame.columns:
        longest = pl.max_horizontal(pl.col("^prefill_(last|span)_s$").cast(pl.Float64))
        in_one_step = pl.col("prefill_first_s") >= (1 - SAME_STEP) * longest
        frame = frame.with_columns(prefill_last_s=pl.when(in_one_step).then("prefill_last_s"))
    keys = ["model", "tp", "dtype", "batch", "prompt", "out"]
    parts = []
    for phase, column in (("decode", "decode_step_s"), ("prefill", "prefill_last_s")):
        value: pl.Expr = pl.col(column).cast(pl.Float64)
        sums = (
            frame.filter(value > 0)
            .group_by(keys, maintain_order=True)
            .agg(
                measured_s=value.quantile(0.5, interpolation="lower"),
                spread=(value.max() - value.min()) / value.median(),
                repeats=pl.len().cast(pl.Int64),
            )
        )
        if phase == "prefill":
            sums = sums.filter(pl.col("batch") * pl.col("prompt") <= MOST_PREFILL_TOKENS)
        parts.append(sums.with_columns(phase=pl.lit(phase)))
    return pl.concat(parts).select(
        [pl.col(name).cast(kind) for name, kind in MEASURED_SCHEMA.items()]
    )


def measured_steps(device: str | Device) -> pl.DataFrame:
    """Measured decode steps and prefills of vLLM that come with the package, with the columns of
    :func:`read_steps`.

    They were measured with random weights in bf16 and vLLM 0.26.0 with CUDA graphs, two or three
    repeats: on an H200 six models with twelve combinations of batch size and prompt length each, on
    an H100 two with twelve and eight. Random weights distribute tokens about evenly over the
    experts of a mixture.

    Raises
    ------
    LlmprofError
        The package has no measured steps of this device.

    Examples
    --------
    >>> measured_steps("H200")["model"].n_unique()
    6
    """
    name = find_device(device).name
    file = resources.files("llmprof.theory").joinpath(
        "calibrations", f"{name.lower().replace(' ', '_')}_steps.csv"
    )
    if not file.is_file():
        raise LlmprofError(f"there are no measured steps of {name}", expected="H100 SXM or H200")
    return pl.read_csv(file.read_bytes(), schema=MEASURED_SCHEMA)


def observations(steps: pl.DataFrame, models: dict[str, Any] | None = None) -> list[Observation]:
    """Observations for :func:`llmprof.theory.calibrate` from measured steps.

    Parameters
    ----------
    steps : polars.DataFrame
        Rows of :func:`read_steps`.
    models : dict, optional
        Configs of models that the catalogue lacks, by name, in any form that
        :func:`llmprof.theory.shape` reads.

    Returns
    -------
    list of Observation
        An observation for each row. A decode step has the context of the middle of the output. The
        weight is ``1 / (1 + (spread / 0.1)²)``, so repeats that differ count less.

    Examples
    --------
    >>> len(observations(measured_steps("H200").head(2)))
    2
    """
    measured = []
    for row in steps.iter_rows(named=True):
        model = (models or {}).get(row["model"], row["model"])
        low = number_format(row["dtype"] or "bf16")
        plan = Plan(tp=row["tp"], weights="bf16" if low == "fp16" else low)
        middle = row["prompt"] + row["out"] / 2
        batch = (
            prefill(row["batch"], row["prompt"])
            if row["phase"] == "prefill"
            else decode(row["batch"], middle)
        )
        weight = 1 / (1 + (row["spread"] / 0.1) ** 2)
        read = shape(model, name=row["model"])
        measured.append(
            Observation(read, plan, batch, row["phase"], row["measured_s"], weight=weight)
        )
    return measured
