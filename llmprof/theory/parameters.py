"""Parameters of a model, part by part, exactly as transformers builds it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import polars as pl

from llmprof.theory.shapes import Attention, FeedForward, Layer, Shape

SCHEMA: Final = {
    "component": pl.String,
    "stage": pl.String,
    "layers": pl.Int64,
    "parameters_per_layer": pl.Int64,
    "parameters": pl.Int64,
    "active_parameters": pl.Int64,
    "quantizable": pl.Boolean,
}


def parameters(shape: Shape) -> pl.DataFrame:
    """Parameters of each part of a model.

    Parameters
    ----------
    shape : Shape
        A model.

    Returns
    -------
    polars.DataFrame
        ``component, stage`` (the stage of :func:`llmprof.analyze.attribute` that reads it)``, layers`` (1 outside the
        layers)``, parameters_per_layer, parameters`` (of all its layers)``, active_parameters`` (that one token goes
        through: the experts that it is sent to)`` , quantizable`` (whether quantized models store it in their low
        precision). A tied output projection has no row.

    Examples
    --------
    >>> from llmprof.theory import shape
    >>> parameters(shape("Llama-2-70b-hf"))["parameters"].sum()
    68976648192
    """
    rows = []
    for name, stage, count, size, active, low in _parts(shape):
        if size:
            rows.append((name, stage, count, size, count * size, count * active, low))
    frame = pl.DataFrame(rows, schema=SCHEMA, orient="row")
    # the same part of layers of several kinds (a window or none, dense or experts) is one row if its size is the same
    return (
        frame.group_by("component", "stage", "parameters_per_layer", "quantizable", maintain_order=True)
        .agg(pl.col("layers", "parameters", "active_parameters").sum())
        .select(list(SCHEMA))
    )


def total(shape: Shape) -> int:
    """Parameters of the whole model.

    Examples
    --------
    >>> from llmprof.theory import shape
    >>> total(shape("Qwen2.5-0.5B"))
    494032768
    """
    return sum(count * size for _, _, count, size, _, _ in _parts(shape))


def active(shape: Shape) -> int:
    """Parameters that one token goes through: everything but the experts that it is not sent to.

    Examples
    --------
    >>> from llmprof.theory import shape
    >>> round(active(shape("Qwen3-30B-A3B")) / 1e9, 2)
    3.35
    """
    return sum(count * used for _, _, count, _, used, _ in _parts(shape))


def _parts(shape: Shape) -> Iterator[tuple[str, str, int, int, int, bool]]:
    """Component, stage, layers, parameters a layer, active ones, whether a quantized model has it in low precision."""
    hidden, norm = shape.hidden, shape.hidden * (2 if shape.norm_bias else 1)
    width = shape.embedding_width
    embedding = shape.vocab * width
    yield "embedding", "embedding", 1, embedding, embedding, False
    yield "positions", "embedding", 1, shape.position_parameters, shape.position_parameters, False
    if width != hidden:
        yield "embedding_projections", "embedding", 1, 2 * width * hidden, 2 * width * hidden, False
    for layer, count in shape.kinds:
        for name, stage, size, used, low in _of_layer(layer, hidden, norm):
            yield name, stage, count, size, used, low
    if shape.final_norm:
        yield "final_norm", "final_norm", 1, norm, norm, False
    head = (0 if shape.tied else embedding) + (shape.vocab if shape.head_bias else 0)
    yield "lm_head", "lm_head", 1, head, head, False


def _of_layer(layer: Layer, hidden: int, norm: int) -> Iterator[tuple[str, str, int, int, bool]]:
    yield "norms", "norm", layer.norms * norm, layer.norms * norm, False
    for name, stage, size in attention_weights(layer.attention, hidden):
        yield name, stage, size, size, name not in ("qk_norm", "biases")
    yield from _feed_forward(layer.feed_forward, hidden)


def attention_weights(attention: Attention, hidden: int) -> list[tuple[str, str, int]]:
    """Component, stage and weights of each part of a layer's attention."""
    a = attention
    query, value = a.heads * a.head_dim, a.heads * a.value_dim
    if a.latent:
        nope = a.head_dim - a.rope_dim
        q = hidden * a.q_rank + a.q_rank * query if a.q_rank else hidden * query
        down = hidden * (a.kv_rank + a.rope_dim)
        up = a.kv_rank * a.heads * (nope + a.value_dim)
        bias = (a.q_rank + a.kv_rank + a.rope_dim if a.bias_qkv else 0) + (hidden if a.bias_out else 0)
        parts = [("q_proj", "qkv_proj", q), ("kv_a_proj", "qkv_proj", down), ("kv_b_proj", "qkv_proj", up)]
    else:
        key, keyed = a.kv_heads * a.head_dim, a.kv_heads * a.value_dim
        bias = (query + key + keyed if a.bias_qkv else 0) + (hidden if a.bias_out else 0)
        parts = [("q_proj", "qkv_proj", hidden * query), ("k_proj", "qkv_proj", hidden * key)]
        parts.append(("v_proj", "qkv_proj", hidden * keyed))
    parts.append(("o_proj", "o_proj", value * hidden))
    return [*parts, ("qk_norm", "norm", a.norm_parameters), ("biases", "qkv_proj", bias)]


def _feed_forward(part: FeedForward, hidden: int) -> Iterator[tuple[str, str, int, int, bool]]:
    columns = 2 if part.gated else 1
    up, down = hidden * part.inner * columns, part.inner * hidden
    if not part.experts:
        yield "gate_up_proj", "gate_up_proj", up, up, True
        yield "down_proj", "down_proj", down, down, True
        biases = part.inner * columns + hidden if part.bias else 0
        yield "biases", "gate_up_proj", biases, biases, False
        return
    yield "router", "router", hidden * part.experts, hidden * part.experts, False
    yield "experts", "experts", part.experts * (up + down), part.active * (up + down), True
    shared = hidden * part.shared_inner * (columns + 1)
    yield "shared_experts", "experts", shared, shared, True
    gate = hidden if part.shared_gate else 0
    yield "shared_gate", "router", gate, gate, False
