"""Measured steps from files, as observations for a calibration."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any, Final

import polars as pl

from llmprof.errors import LlmprofError
from llmprof.hardware import Device
from llmprof.theory.calibration import Observation
from llmprof.theory.devices import find_device
from llmprof.theory.plan import Plan, decode, number_format, prefill
from llmprof.theory.shapes import shape

SCHEMA: Final = {
    "model": pl.String, "tp": pl.Int64, "dtype": pl.String, "phase": pl.String, "batch": pl.Int64,
    "prompt": pl.Int64, "out": pl.Int64, "measured_s": pl.Float64, "spread": pl.Float64, "repeats": pl.Int64,
}  # fmt: skip
MOST_PREFILL_TOKENS: Final = 16384
"""Tokens of a batch's prompts beyond which its prefill takes several steps, so that its time is not one step's."""


def read_steps(path: str | Path) -> pl.DataFrame:
    """Measured decode steps and prefills from a JSON file of a grid over batch and prompt length.

    The file has ``rows`` with ``model, tp, dtype, quant, batch, prompt, out, decode_step_s, prefill_last_s, rep``: what
    ``batch`` requests of ``prompt`` tokens took a decode step on average over ``out`` tokens, and from scheduling to
    the first token of the last request.

    Parameters
    ----------
    path : str or pathlib.Path
        The file.

    Returns
    -------
    polars.DataFrame
        ``model, tp, dtype`` (of the weights: the quantization if there is one)``, phase`` (decode, prefill)``, batch,
        prompt, out, measured_s`` (median of the repeats, the lower of two)``, spread`` (largest minus smallest over the
        median)``, repeats``. Prefills of more than
        :data:`MOST_PREFILL_TOKENS` tokens are left out.

    Raises
    ------
    LlmprofError
        The file cannot be read, or has no such rows.
    """
    try:
        said: Any = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise LlmprofError(f"{Path(path).name} cannot be read as measured steps: {error}") from error
    rows = said.get("rows") if isinstance(said, dict) else None
    needed = {"model", "batch", "prompt", "decode_step_s", "prefill_last_s"}
    if not isinstance(rows, list) or not rows or needed - set(rows[0]):
        raise LlmprofError(f"{Path(path).name} has no measured steps", expected=f"rows with {sorted(needed)}")
    frame = pl.DataFrame(rows, infer_schema_length=None)
    defaults = {"tp": pl.lit(1), "dtype": pl.lit("bfloat16"), "out": pl.lit(2)}
    frame = frame.with_columns(value.alias(name) for name, value in defaults.items() if name not in frame.columns)
    if "quant" in frame.columns:
        frame = frame.with_columns(dtype=pl.coalesce(pl.col("quant").cast(pl.String), "dtype"))
    keys = ["model", "tp", "dtype", "batch", "prompt", "out"]
    parts = []
    for phase, column in (("decode", "decode_step_s"), ("prefill", "prefill_last_s")):
        value: pl.Expr = pl.col(column).cast(pl.Float64)
        found = (
            frame.filter(value > 0)
            .group_by(keys, maintain_order=True)
            .agg(
                measured_s=value.quantile(0.5, interpolation="lower"),
                spread=(value.max() - value.min()) / value.median(),
                repeats=pl.len().cast(pl.Int64),
            )
        )
        if phase == "prefill":
            found = found.filter(pl.col("batch") * pl.col("prompt") <= MOST_PREFILL_TOKENS)
        parts.append(found.with_columns(phase=pl.lit(phase)))
    return pl.concat(parts).select([pl.col(name).cast(kind) for name, kind in SCHEMA.items()])


def measured_steps(device: str | Device) -> pl.DataFrame:
    """Decode steps and prefills of vLLM that come with the package for a device, as :func:`read_steps` gives them.

    On an H200: six models with random weights in bf16, vLLM 0.26.0 with CUDA graphs, twelve points of batch and prompt
    each, two or three repeats. Random weights route the tokens of a mixture of experts about evenly.

    Raises
    ------
    LlmprofError
        There are none for this device.

    Examples
    --------
    >>> measured_steps("H200")["model"].n_unique()
    6
    """
    name = find_device(device).name
    file = resources.files("llmprof.theory").joinpath("calibrations", f"{name.lower().replace(' ', '_')}_steps.csv")
    if not file.is_file():
        raise LlmprofError(f"there are no measured steps of {name}", expected="H200")
    return pl.read_csv(file.read_bytes(), schema=SCHEMA)


def observations(steps: pl.DataFrame, models: dict[str, Any] | None = None) -> list[Observation]:
    """Observations from measured steps.

    Parameters
    ----------
    steps : polars.DataFrame
        Of :func:`read_steps`.
    models : dict, optional
        Config (or anything that :func:`llmprof.theory.shape` reads) of models that the catalogue has not.

    Returns
    -------
    list of Observation
        One a row; a decode step at the middle of its output. A point whose repeats differ counts less.

    Raises
    ------
    LlmprofError
        A model is unknown.
    """
    found = []
    for row in steps.iter_rows(named=True):
        given = (models or {}).get(row["model"], row["model"])
        low = number_format(row["dtype"] or "bf16")
        plan = Plan(tp=row["tp"], weights="bf16" if low == "fp16" else low)
        middle = row["prompt"] + row["out"] / 2
        batch = prefill(row["batch"], row["prompt"]) if row["phase"] == "prefill" else decode(row["batch"], middle)
        weight = 1 / (1 + (row["spread"] / 0.1) ** 2)
        read = shape(given, name=row["model"])
        found.append(Observation(read, plan, batch, row["phase"], row["measured_s"], weight=weight))
    return found
