"""What measured results suggest: each rule needs its own figure, and says nothing without it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from llmprof.experiments.bandwidth import Bandwidth
from llmprof.units import format_share


@dataclass(frozen=True)
class Evidence:
    """What there is to judge by; what was not measured is None.

    Attributes
    ----------
    bandwidth : Bandwidth or None
        Of experiment ``bandwidth``.
    lengths : polars.DataFrame or None
        Of :func:`~llmprof.experiments.scaling.sequence_length`.
    layouts : polars.DataFrame or None
        Of :func:`~llmprof.experiments.scaling.parallelism`.
    layers : polars.DataFrame or None
        Of :func:`~llmprof.analyze.operator_times.layer_times`.
    memory_bytes : int or None
        Memory of a device.
    """

    bandwidth: Bandwidth | None = None
    lengths: pl.DataFrame | None = None
    layouts: pl.DataFrame | None = None
    layers: pl.DataFrame | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True)
class Rule:
    """A rule: what it looks at, and what follows."""

    name: str
    look: Callable[[Evidence], tuple[str, float] | None]
    """The finding in words and its figure; None where it has nothing to say or was not measured."""
    suggestion: str
    evidence: str


def suggestions(evidence: Evidence) -> pl.DataFrame:
    """What to try, from measured evidence only.

    Parameters
    ----------
    evidence : Evidence
        Results of experiments.

    Returns
    -------
    polars.DataFrame
        ``rule, title, figure, suggestion, evidence``; no row where nothing was measured.

    Examples
    --------
    >>> suggestions(Evidence()).height
    0
    """
    rows = [
        (rule.name, reason[0], reason[1], rule.suggestion, rule.evidence)
        for rule in RULES
        if (reason := rule.look(evidence)) is not None
    ]
    schema = {
        "rule": pl.String,
        "title": pl.String,
        "figure": pl.Float64,
        "suggestion": pl.String,
        "evidence": pl.String,
    }
    return pl.DataFrame(rows, schema=schema, orient="row")


def _median(frame: pl.DataFrame, column: str) -> float | None:
    median: Any = frame[column].median()
    return None if median is None else float(median)


def _layout(evidence: Evidence, phase: str, *, tp: bool) -> float | None:
    """Median efficiency of TP (without PP) or of PP (without TP) in a phase."""
    if evidence.layouts is None:
        return None
    one = (pl.col("pp") == 1) & (pl.col("tp") > 1) if tp else (pl.col("tp") == 1) & (pl.col("pp") > 1)
    return _median(evidence.layouts.filter(one & (pl.col("phase") == phase)), "efficiency")


def _tp_first(evidence: Evidence) -> tuple[str, float] | None:
    tp, pp = _layout(evidence, "decode", tp=True), _layout(evidence, "decode", tp=False)
    if tp is None or pp is None or tp <= pp:
        return None
    return f"In decode TP keeps {format_share(tp)} of its devices busy by speed-up, PP {format_share(pp)}.", tp / pp


def _pp_first(evidence: Evidence) -> tuple[str, float] | None:
    tp, pp = _layout(evidence, "decode", tp=True), _layout(evidence, "decode", tp=False)
    if tp is None or pp is None or pp <= tp:
        return None
    return f"In decode PP reaches an efficiency of {format_share(pp)}, TP {format_share(tp)}.", pp / tp


def _mixed(evidence: Evidence) -> tuple[str, float] | None:
    decode = _layout(evidence, "decode", tp=True)
    if evidence.layouts is None or decode is None:
        return None
    one = evidence.layouts.filter((pl.col("tp") == 1) & (pl.col("pp") > 1) & (pl.col("phase") == "prefill"))
    large = one.sort(pl.col("prompt") * pl.col("batch")).tail(1)
    best = _median(large, "efficiency")
    if best is None or best < 0.6:
        return None
    return (
        f"PP reaches {format_share(best)} efficiency in the largest prefill, TP {format_share(decode)} in decode.",
        best,
    )


def _batch(evidence: Evidence) -> tuple[str, float] | None:
    if evidence.lengths is None:
        return None
    one = evidence.lengths.filter((pl.col("tp") == 1) & (pl.col("pp") == 1) & (pl.col("out") == pl.col("out").min()))
    series = one.filter(pl.col("prompt") == pl.col("prompt").filter(pl.col("batch") > 1).min()).sort("batch")
    if series.height < 2:
        return None
    first, last = series.row(0, named=True), series.row(-1, named=True)
    grown, slower = last["batch"] / first["batch"], last["decode_step_s"] / first["decode_step_s"]
    if slower > grown / 2:
        return None
    words = f"A decode step of {last['batch']} requests takes {slower:.2f} times one of {first['batch']}"
    return f"{words} (prompts of {first['prompt']} tokens).", grown / slower


def _weights(evidence: Evidence) -> tuple[str, float] | None:
    """A flat decode over batch and length near its bound reads weights."""
    if evidence.lengths is None or evidence.lengths["decode_share"].null_count() == evidence.lengths.height:
        return None
    one = evidence.lengths.filter((pl.col("batch") == 1) & (pl.col("tp") == 1) & (pl.col("pp") == 1))
    share = _median(one, "decode_share")
    if share is None or share < 0.5:
        return None
    return f"A decode step of one request takes {1 / share:.2f} times what reading the weights needs.", share


def _launch_bound(evidence: Evidence) -> tuple[str, float] | None:
    if evidence.layers is None or evidence.layers["waiting"].null_count() == evidence.layers.height:
        return None
    share = _median(evidence.layers.filter(pl.col("phase") == "decode"), "waiting")
    if share is None or share < 0.5:
        return None
    return f"In {format_share(share)} of the timed decode calls the device had caught up with the host.", share


def _headroom(evidence: Evidence) -> tuple[str, float] | None:
    if evidence.lengths is None or evidence.memory_bytes is None or evidence.lengths["peak_bytes"].null_count():
        return None
    peak: Any = evidence.lengths["peak_bytes"].max()
    left = 1 - float(peak) / evidence.memory_bytes
    return (f"{format_share(left)} of a device's memory was never used.", left) if left > 0.2 else None


RULES: Final = (
    Rule("tensor_parallel_first", _tp_first, "Split layers before the stack: TP inside a host.", "parallelism"),
    Rule("pipeline_parallel_first", _pp_first, "Use pipeline stages: the links do not carry TP.", "parallelism"),
    Rule("mixed", _mixed, "For long prompts try TP × PP: stages overlap in the prefill.", "parallelism"),
    Rule("larger_batch", _batch, "Raise the batch: decode reads the weights once for all requests.", "sequence_length"),
    Rule("quantise", _weights, "Weights dominate: 8-bit weights halve the bytes of a step.", "sequence_length"),
    Rule("launch_bound", _launch_bound, "Use CUDA graphs (no eager), or fewer and larger kernels.", "ops"),
    Rule("memory_headroom", _headroom, "Give the cache more memory, or run a larger batch.", "sequence_length"),
)  # fmt: skip
"""Rules in the order in which they speak."""
