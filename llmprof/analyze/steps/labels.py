"""Step labels: what the engines write, as patterns, and what they say of a step's batch."""

from __future__ import annotations

import polars as pl

_VLLM = r"^execute_(?:\d+_)?context_(\d+)\(([^)]*)\)_generation_(\d+)\(([^)]*)\)"
_VLLM_2025 = r"^execute_new_(\d+)_cached_(\d+)"
_SGLANG = r"^step\[([A-Z_0-9]+)\b(?:[^\]]*?\bbs=(\d+))?(?:[^\]]*?\btoks=(\d+))?[^\]]*\]"
_CAPTURE = r"^capture_(\d+)_(\w+)"
_PROFILER_STEP = r"^ProfilerStep#(\d+)"

SOURCES = {
    "vllm": f"(?:{_VLLM})|(?:{_VLLM_2025})",
    "sglang": _SGLANG,
    "capture": _CAPTURE,
    "profiler_step": _PROFILER_STEP,
}
"""Pattern of each source's labels; where a rank has several, the first one counts."""

ANY = "|".join(f"(?:{pattern})" for pattern in SOURCES.values())
"""Matches every known step label."""


def parse(labels: pl.DataFrame) -> pl.DataFrame:
    """What step labels say.

    vLLM writes ``execute_context_R(T)_generation_R(T)`` from 0.14 on: R requests with T tokens in their prefill and
    in their decode part. With ``detailed_trace_annotation`` the total of tokens comes first and the parentheses hold
    sums such as ``sq256sk256sqsq16384sqsk16384`` (sums of query lengths, key lengths and their products); a form with
    an underscore, ``(888_788544)``, holds query tokens and the sum of query times key lengths. 0.11 to 0.13 write
    ``execute_new_N_cached_M``. SGLang writes ``step[MODE bs=R toks=T]`` with the mode of its forward pass: the
    extending ones (EXTEND, DRAFT_EXTEND, SPLIT_PREFILL) are prefill, DECODE and TARGET_VERIFY are decode.
    ``capture_BS_MODE`` is the capture of a CUDA graph, ``ProfilerStep#N`` a step of the profiler's schedule.

    Parameters
    ----------
    labels : polars.DataFrame
        Any frame with a column ``name`` of labels.

    Returns
    -------
    polars.DataFrame
        The frame with ``source`` (vllm, sglang, capture, profiler_step or null for no label), ``phase`` (prefill,
        decode, mixed, empty or other), ``context_requests, context_tokens, generation_requests,
        generation_tokens`` (null where the label does not say).
    """
    name, source = pl.col("name"), pl.col("source")
    detailed = name.str.contains(_VLLM)
    mode = pl.when(source == "sglang").then(name.str.extract(_SGLANG, 1))
    requests, tokens = _int(name.str.extract(_SGLANG, 2)), _int(name.str.extract(_SGLANG, 3))
    extends, decodes = mode.str.contains("EXTEND|PREFILL"), mode.is_in(["DECODE", "TARGET_VERIFY"])
    nothing = decodes | extends | (mode == "IDLE")
    labels = labels.with_columns(
        source=pl.coalesce(pl.when(name.str.contains(pattern)).then(pl.lit(s)) for s, pattern in SOURCES.items())
    ).with_columns(
        context_requests=pl.when(detailed)
        .then(_int(name.str.extract(_VLLM, 1)))
        .when(source == "vllm")
        .then(_int(name.str.extract(_VLLM_2025, 1)))
        .when(extends)
        .then(requests)
        .when(nothing)
        .then(0),
        context_tokens=pl.when(detailed)
        .then(_tokens(name.str.extract(_VLLM, 2)))
        .when(extends)
        .then(tokens)
        .when(nothing)
        .then(0),
        generation_requests=pl.when(detailed)
        .then(_int(name.str.extract(_VLLM, 3)))
        .when(source == "vllm")
        .then(_int(name.str.extract(_VLLM_2025, 2)))
        .when(decodes)
        .then(requests)
        .when(nothing)
        .then(0),
        generation_tokens=pl.when(detailed)
        .then(_tokens(name.str.extract(_VLLM, 4)))
        .when(decodes)
        .then(pl.coalesce(tokens, requests))
        .when(nothing)
        .then(0),
    )
    counted = phase(pl.col("context_requests"), pl.col("generation_requests"))
    return labels.with_columns(
        phase=pl.when(mode == "MIXED")
        .then(pl.lit("mixed"))
        .when(extends)
        .then(pl.lit("prefill"))
        .when(decodes)
        .then(pl.lit("decode"))
        .otherwise(counted)
    )


def phase(context_requests: pl.Expr, generation_requests: pl.Expr) -> pl.Expr:
    """Phase of a batch: prefill, decode, mixed or empty; other where the numbers are not known."""
    return (
        pl.when((context_requests > 0) & (generation_requests > 0))
        .then(pl.lit("mixed"))
        .when(context_requests > 0)
        .then(pl.lit("prefill"))
        .when(generation_requests > 0)
        .then(pl.lit("decode"))
        .when((context_requests == 0) & (generation_requests == 0))
        .then(pl.lit("empty"))
        .otherwise(pl.lit("other"))
    )


def _int(text: pl.Expr) -> pl.Expr:
    return text.cast(pl.Int64, strict=False)


def _tokens(inside: pl.Expr) -> pl.Expr:
    """Tokens from what stands in the parentheses: ``128``, ``sq256sk256…`` or ``888_788544``."""
    return _int(inside.str.extract(r"^(?:sq)?(\d+)", 1))
