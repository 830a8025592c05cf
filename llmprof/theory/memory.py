"""Parameters of each part of a model, and memory on a device: weights, KV cache, activations,
largest batches.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from llmprof.errors import LlmprofError
from llmprof.theory.hardware import Device
from llmprof.theory.plan import BYTES, Plan
from llmprof.theory.shapes import Attention, Extra, FeedForward, Layer, Recurrent, Shape

SCHEMA: Final = {
    "component": pl.String,
    "stage": pl.String,
    **dict.fromkeys(
        ("layers", "parameters_per_layer", "parameters", "active_parameters"), pl.Int64
    ),
    "quantizable": pl.Boolean,
}


def parameters(shape: Shape) -> pl.DataFrame:
    """Parameters of each part of a model."""
    rows = [
        (name, stage, count, size, count * size, count * active, low)
        for name, stage, count, size, active, low in _parts(shape)
        if size
    ]
    frame = pl.DataFrame(rows, schema=SCHEMA, orient="row")
    # layers of different kinds (with or without a window, dense or experts) share a row for a part
    # of equal size
    return (
        frame.group_by(
            "component", "stage", "parameters_per_layer", "quantizable", maintain_order=True
        )
        .agg(pl.sum("layers", "parameters", "active_parameters"))
        .select(list(SCHEMA))
    )


def total_parameters(shape: Shape) -> int:
    """Parameters of the whole model."""
    return sum(count * size for _, _, count, size, _, _ in _parts(shape))


def active_parameters(shape: Shape) -> int:
    """Parameters that one token uses: all but the experts that it is not sent to."""
    return sum(count * used for _, _, count, _, used, _ in _parts(shape))


def _parts(shape: Shape) -> Iterator[tuple[str, str, int, int, int, bool]]:
    """Component, stage, number of layers, parameters and active parameters per layer, whether
    quantizable.
    """
    hidden, norm = shape.hidden, shape.hidden * (2 if shape.norm_bias else 1)
    width = shape.embedding_width
    embedding = shape.vocab * width
    yield "embedding", "embedding", 1, embedding, embedding, False
    yield "positions", "embedding", 1, shape.position_parameters, shape.position_parameters, False
    if width != hidden:
        yield "embedding_projections", "embedding", 1, 2 * width * hidden, 2 * width * hidden, False
    for name, stage, size in _extras((*shape.before, *shape.after)):
        yield name, stage, 1, size, size, False
    for layer, count in shape.kinds:
        for name, stage, size, used, low in _of_layer(layer, hidden, norm):
            yield name, stage, count, size, used, low
    if shape.final_norm:
        yield "final_norm", "final_norm", 1, norm, norm, False
    head = (0 if shape.tied else embedding) + (shape.vocab if shape.head_bias else 0)
    yield "lm_head", "lm_head", 1, head, head, False


def _extras(extras: tuple[Extra, ...]) -> Iterator[tuple[str, str, int]]:
    for one in extras:
        yield (
            one.component,
            "embedding" if one.table else "residual",
            one.weights + one.small + one.table,
        )


def _of_layer(layer: Layer, hidden: int, norm: int) -> Iterator[tuple[str, str, int, int, bool]]:
    for name, stage, size in _extras(layer.extras):
        yield name, stage, size, size, False
    yield "norms", "norm", layer.norms * norm, layer.norms * norm, False
    if layer.attention is not None:
        for name, stage, size in _attention_weights(layer.attention, hidden):
            yield (
                name,
                stage,
                size,
                size,
                name not in ("qk_norm", "indexer_norm", "biases", "compressor"),
            )
    if layer.recurrent is not None:
        for name, stage, size in _recurrent_weights(layer.recurrent, hidden):
            yield name, stage, size, size, name != "recurrence"
    if layer.feed_forward is not None:
        yield from _feed_forward(layer.feed_forward, hidden)


def _recurrent_weights(r: Recurrent, hidden: int) -> list[tuple[str, str, int]]:
    """Component, stage and number of weights of each part of a recurrent mixer."""
    return [
        ("in_proj", "in_proj", hidden * r.projected),
        ("inner_proj", "in_proj", r.inside),
        ("recurrence", "scan", r.small),
        ("out_proj", "out_proj", r.inner * hidden),
    ]


def _attention_weights(attention: Attention, hidden: int) -> list[tuple[str, str, int]]:
    """Component, stage and number of weights of each part of a layer's attention."""
    a = attention
    query, value = a.heads * a.head_dim * (2 if a.gated else 1), a.heads * a.value_dim
    sinks = a.heads if a.sinks else 0
    if a.latent:
        nope = a.head_dim - a.rope_dim
        q = hidden * a.q_rank + a.q_rank * query if a.q_rank else hidden * query
        down = hidden * (a.kv_rank + a.rope_dim)
        up = a.kv_rank * a.heads * (nope + a.value_dim)
        bias = (a.q_rank + a.kv_rank + a.rope_dim if a.bias_qkv else 0) + (
            hidden if a.bias_out else 0
        )
        parts = [
            ("q_proj", "qkv_proj", q),
            ("kv_a_proj", "qkv_proj", down),
            ("kv_b_proj", "qkv_proj", up),
        ]
        if a.index_heads:
            index = a.q_rank * a.index_heads * a.index_dim + hidden * (a.index_dim + a.index_heads)
            parts += [("indexer", "indexer", index), ("indexer_norm", "indexer", 2 * a.index_dim)]
    elif a.out_rank:
        bias = 0
        parts = [
            ("q_proj", "qkv_proj", hidden * a.q_rank + a.q_rank * query),
            ("kv_a_proj", "qkv_proj", hidden * a.head_dim),
        ]
        if a.compress:
            made = (2 * hidden + a.compress) * a.entry_width + a.head_dim
            parts.append(("compressor", "qkv_proj", made))
        if a.index_heads:
            made = (
                (2 * hidden + a.compress) * 2 * a.index_dim + a.index_dim + hidden * a.index_heads
            )
            parts += [
                ("compressor", "indexer", made),
                ("indexer", "indexer", a.q_rank * a.index_heads * a.index_dim),
            ]
        parts.append(("o_a_proj", "o_proj", value * a.out_rank))
        value = a.out_groups * a.out_rank
    else:
        key = 0 if a.shared else a.kv_heads * a.head_dim
        keyed = 0 if a.shared or a.tied_values else a.kv_heads * a.value_dim
        bias = (query + key + keyed if a.bias_qkv else 0) + (hidden if a.bias_out else 0)
        parts = [("q_proj", "qkv_proj", hidden * query), ("k_proj", "qkv_proj", hidden * key)]
        parts.append(("v_proj", "qkv_proj", hidden * keyed))
    parts.append(("o_proj", "o_proj", value * hidden))
    return [*parts, ("qk_norm", "norm", a.norm_parameters), ("biases", "qkv_proj", bias + sinks)]


def _feed_forward(part: FeedForward, hidden: int) -> Iterator[tuple[str, str, int, int, bool]]:
    columns, width = 2 if part.gated else 1, part.latent or hidden
    up, down = width * part.inner * columns, part.inner * width
    biases = part.inner * columns + hidden if part.bias else 0
    if not part.experts:
        yield "gate_up_proj", "gate_up_proj", up, up, True
        yield "down_proj", "down_proj", down, down, True
        yield "biases", "gate_up_proj", biases, biases, False
        return
    router = (hidden + (1 if part.bias else 0)) * part.experts
    yield "router", "router", router, router, False
    yield "experts", "experts", part.experts * (up + down), part.active * (up + down), True
    yield "expert_biases", "experts", part.experts * biases, part.active * biases, False
    latent = 2 * hidden * part.latent
    yield "latent_proj", "experts", latent, latent, True
    shared = hidden * part.shared_inner * (columns + 1)
    yield "shared_experts", "shared_experts", shared, shared, True
    gate = hidden if part.shared_gate else 0
    yield "shared_gate", "router", gate, gate, False


def weight_bytes(shape: Shape, plan: Plan) -> float:
    """Bytes of the weights on a rank of the largest pipeline stage.

    Norms, routers and the down_proj of latent attention are on every rank. Heads of keys and values
    are repeated if there are fewer of them than ranks. All other matrices are split evenly. The
    first pipeline stage holds the embedding and the last one the output projection; the larger
    stage is returned.
    """
    layers = sum(_layer_bytes(layer, shape, plan) * count for layer, count in shape.kinds)
    layers *= math.ceil(len(shape.layers) / plan.pp) / len(shape.layers)
    frame = parameters(shape)
    beside = [
        sum(e.table / plan.tp + e.weights + e.small for e in extras) * plan.high_bytes
        for extras in (shape.before, shape.after)
    ]
    ends = {
        name: (
            sum(int(n) for n in frame.filter(frame["component"] == name)["parameters"])
            * plan.high_bytes
        )
        for name in ("embedding", "positions", "embedding_projections", "final_norm", "lm_head")
    }
    first = (
        ends["embedding"] / plan.tp + ends["positions"] + ends["embedding_projections"] + beside[0]
    )
    head = ends["lm_head"] or (ends["embedding"] if plan.pp > 1 else 0.0)
    last = head / plan.tp + ends["final_norm"] + beside[1]
    return layers + (first + last if plan.pp == 1 else max(first, last))


_WHOLE: Final = {
    "norms",
    "qk_norm",
    "kv_a_proj",
    "indexer",
    "indexer_norm",
    "router",
    "shared_gate",
    "latent_proj",
    "compressor",
    "hyper_connections",
    "altup",
    "laurel",
    "per_layer_input",
    "router_scales",
}
"""Parts of a layer that every rank holds whole."""


def _layer_bytes(layer: Layer, shape: Shape, plan: Plan) -> float:
    norm = shape.hidden * (2 if shape.norm_bias else 1)
    total = 0.0
    for name, stage, size, _, quantizable in _of_layer(layer, shape.hidden, norm):
        bytes_each = plan.stored(shape, stage)[0] if quantizable else plan.high_bytes
        ranks = 1 if name in _WHOLE else plan.tp
        a = layer.attention
        if a is not None and name in ("k_proj", "v_proj"):
            ranks = min(plan.tp, a.kv_heads)
        if a is not None and name == "q_proj" and a.q_rank:
            down = shape.hidden * a.q_rank  # every rank has it whole
            total += down * bytes_each
            size -= down
        total += size / ranks * bytes_each
    return total


def kv_bytes_per_token(shape: Shape, plan: Plan, *, context: float | None = None) -> float:
    """Bytes that a token occupies in a rank's KV cache, over the layers of a pipeline stage that
    have attention.
    """
    attended = (
        (layer.attention, count) for layer, count in shape.kinds if layer.attention is not None
    )
    total = sum(count * a.cached_per_token(context, plan.tp) for a, count in attended)
    return total * BYTES[plan.kv_cache] / plan.pp


def state_bytes_per_request(shape: Shape, plan: Plan) -> float:
    """Bytes of a request's recurrent states on a rank, over the layers of a pipeline stage;
    independent of its length.

    As vLLM keeps them: the states in the format of the config (``mamba_ssm_cache_dtype``, else that
    of the activations; fp32 for KDA and lightning attention), the last inputs of the convolutions
    in that of the activations.
    """
    act = BYTES[plan.activations]
    kinds = [
        (layer.recurrent, count) for layer, count in shape.kinds if layer.recurrent is not None
    ]
    sizes = (
        count
        * (r.state * BYTES[r.state_format or plan.activations] + r.channels * (r.taps - 1) * act)
        for r, count in kinds
    )
    return sum(sizes) / plan.tp / plan.pp


def activation_bytes(shape: Shape, plan: Plan, tokens: float, logits: float) -> float:
    """Bytes of the activations that exist at the same time in a step on a rank.

    The larger of two sums, since layers reuse their buffers: two hidden states and the widest
    intermediate result with its inputs inside a layer; a hidden state and the logits, also in fp32
    for sampling, at the output projection.
    """
    act, hidden = BYTES[plan.activations], shape.hidden
    widest = 0.0
    for layer, _ in shape.kinds:
        a, f, r = layer.attention, layer.feed_forward, layer.recurrent
        if a is not None:
            attended = (
                a.heads / plan.tp * (2 * a.head_dim + a.value_dim)
                + max(a.kv_heads / plan.tp, 1) * a.value_dim
            )
            widest = max(widest, attended)
        if r is not None:
            widest = max(widest, (r.projected + r.inner) / plan.tp)
        if f is not None:
            columns = 3 if f.gated else 2
            fed = (
                columns * f.inner * (f.active if f.experts else 1) / plan.tp
                + columns * f.shared_inner / plan.tp
            )
            widest = max(widest, fed)
    inside = tokens * (2 * hidden / plan.sp + widest) * act
    head = tokens * hidden * act + logits * shape.vocab / plan.tp * (act + 4)
    return max(inside, head)


class Memory(Struct, frozen=True):
    """Bytes on a rank for a batch at its end, and the largest batches; None if the device's memory
    is not stated.

    ``kv_cache`` includes ``state_per_request`` of each request, the states of layers that have no
    keys and values.
    """

    weights: float
    kv_cache: float
    prefill_activations: float
    decode_activations: float
    kv_per_token: float
    state_per_request: float
    device: float | None
    largest_prefill_batch: int | None
    largest_decode_batch: int | None
    max_batch_total_tokens: int | None

    @property
    def total(self) -> float:
        """Bytes of the weights, the KV cache with the states, and the larger of the activations."""
        return self.weights + self.kv_cache + max(self.prefill_activations, self.decode_activations)

    @property
    def fits(self) -> bool | None:
        """Whether the batch fits; None if the size of the device's memory is not stated."""
        return None if self.device is None else self.total <= self.device


def estimate_memory(
    shape: Shape,
    plan: Plan,
    device: Device,
    *,
    batch_size: int,
    seq_len: int,
    generate_len: int,
    utilization: float = 1.0,
) -> Memory:
    """Memory of a rank for a batch, and the largest batches that fit."""
    if not 0 < utilization <= 1:
        raise LlmprofError(
            f"the memory utilization is {utilization!r}", expected="a share above 0 and at most 1"
        )
    length = seq_len + generate_len
    weights = weight_bytes(shape, plan)
    kv, state = (
        kv_bytes_per_token(shape, plan, context=length),
        state_bytes_per_request(shape, plan),
    )
    limit = None if device.memory_bytes is None else device.memory_bytes * utilization
    read = activation_bytes(shape, plan, seq_len, 1)
    activations = activation_bytes(shape, plan, 1, 1)
    prefill_batch = decode_batch = tokens = None
    if limit is not None:
        free = limit - weights
        if free <= 0:
            raise LlmprofError(
                f"the weights of {shape.name} take {weights / 1e9:.1f} GB on each device of"
                f" tp={plan.tp} pp={plan.pp}, {(weights - limit) / 1e9:.1f} GB more than the"
                f" {limit / 1e9:.1f} GB of {device.name}",
                hint=_advice(shape, plan, limit),
            )
        prefill_batch = int(free // (read + kv * seq_len + state))
        decode_batch = int(free // (activations + kv * length + state))
        left = free - decode_batch * (activations + state)
        tokens = (
            int(left // kv) if kv else decode_batch * length
        )  # a model without keys and values has no such limit
    cached, of_batch = (
        batch_size * (kv * length + state),
        (batch_size * read, batch_size * activations),
    )
    return Memory(weights, cached, *of_batch, kv, state, limit, prefill_batch, decode_batch, tokens)


def _advice(shape: Shape, plan: Plan, limit: float) -> str:
    for tp in range(plan.tp + 1, 65):
        larger = replace(plan, tp=tp, sp=1)
        try:
            larger.check(shape)
        except LlmprofError:
            continue
        if weight_bytes(shape, larger) < limit:
            return f"the smallest tp that fits is {tp}"
    return "no tp up to 64 fits: use pp, too, or weights of fewer bits"
