"""Work of attention: FLOPs from the pairs of a query and a key that it sees."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Final, NamedTuple

from llmprof.theory.calls.call import CallTensor, Lengths, NoWorkError, OperatorCall
from llmprof.theory.calls.work import CallWork, OperatorKind


def pairs_of(queries: int, keys: int, *, causal: bool) -> float:
    """Pairs of a query and a key: with a causal mask half of a square, as FlashAttention counts
    them.
    """
    if not causal:
        return float(queries * keys)
    if queries <= keys:
        return queries * queries / 2  # the mask begins at the first key
    return keys * keys / 2 + (queries - keys) * keys


def seen(queries: float, keys: float, left: float | None, right: float | None) -> float:
    """Pairs where a query sees so many keys before and behind its place (None: all), the last query
    at the last key.

    A causal mask is ``right=0``; half of a square counts for a triangle, as in :func:`pairs_of`.
    """
    if queries == 1 and right == 0:
        return keys if left is None else min(keys, left + 1)

    def before(
        place: float,
    ) -> float:  # pairs with a key before the place of the query, moved by so many
        end, begin = (min(max(keys - step + place, 0.0), keys) ** 2 / 2 for step in (0.0, queries))
        beyond = min(max(place, 0.0), queries) * keys  # these queries see all keys
        return end - begin + beyond

    return (queries * keys if right is None else before(right)) - (
        0.0 if left is None else before(-left)
    )


_CAUSAL: Final = {
    "aten::scaled_dot_product_attention": 5,
    "aten::_scaled_dot_product_flash_attention": 4,
    "aten::_scaled_dot_product_flash_attention_for_cpu": 4,
    "aten::_scaled_dot_product_efficient_attention": 6,
    "aten::_scaled_dot_product_cudnn_attention": 6,
    "aten::_scaled_dot_product_fused_attention_overrideable": 5,
    "aten::_cudnn_attention_forward": 10,
    "aten::_scaled_dot_product_flash_attention_backward": 11,
    "aten::_scaled_dot_product_efficient_attention_backward": 11,
    "aten::_scaled_dot_product_cudnn_attention_backward": 14,
}
"""Place of the argument that says whether the mask is causal."""


def _sizes(
    call: OperatorCall, q: CallTensor, k: CallTensor, v: CallTensor
) -> tuple[int, int, int, int, int, int]:
    """Batch, heads, queries, keys, and sizes of a key and of a value."""
    if len(q.shape) != 4 or len(k.shape) != 4 or len(v.shape) != 4:
        raise NoWorkError(
            f"{call.operator} has a query of the shape {list(q.shape)}", expected="four axes"
        )
    return q.shape[0], q.shape[1], q.shape[2], k.shape[2], q.shape[3], v.shape[3]


def _causal(call: OperatorCall) -> tuple[bool, str]:
    stated = call.get(_CAUSAL[call.operator])
    known = isinstance(stated, bool | int | float)
    return bool(stated) if known else False, (
        "" if known else "no causal mask, as far as was recorded"
    )


def _dense(call: OperatorCall) -> CallWork:
    """Attention of a batch of sequences of one length."""
    q, k, v = (call.tensor(place) for place in range(3))
    batch, heads, queries, keys, size, value = _sizes(call, q, k, v)
    causal, assumed = _causal(call)
    flops = 2.0 * batch * heads * pairs_of(queries, keys, causal=causal) * (size + value)
    bias = call.optional(3)
    read = q.bytes + k.bytes + v.bytes + (bias.bytes if bias else 0)
    result = (
        None if causal else (batch * heads, queries, value)
    )  # behind a causal mask tiles have less to do
    return CallWork(
        flops, read, batch * heads * queries * value * q.width, q.format, assumed, result=result
    )


def _backward(call: OperatorCall) -> CallWork:
    """Backward pass: five products where forward has two, with the scores computed again."""
    q, k, v = (call.tensor(place) for place in (1, 2, 3))
    batch, heads, queries, keys, size, value = _sizes(call, q, k, v)
    causal, assumed = _causal(call)
    flops = 2.0 * batch * heads * pairs_of(queries, keys, causal=causal) * (3 * size + 2 * value)
    out = batch * heads * queries * value * q.width
    return CallWork(
        flops, q.bytes + k.bytes + v.bytes + 2 * out, q.bytes + k.bytes + v.bytes, q.format, assumed
    )


def _of_lengths(q: CallTensor, k: CallTensor, v: CallTensor, lengths: Lengths) -> CallWork:
    """Attention of ``q`` (tokens, heads, size) over keys and values of (…, heads, size)."""
    tokens, heads, size = q.shape
    kv_heads, value, width = k.shape[-2], v.shape[-1], k.width
    flops = 2.0 * heads * (size + value) * lengths.pairs
    read = tokens * heads * size * q.width + lengths.keys * kv_heads * (size + value) * width
    matrix = q.format if q.format == "fp8" or width > 1 else "fp8"
    return CallWork(
        flops,
        read,
        tokens * heads * value * (2 if q.format == "fp8" else q.width),
        matrix,
        lengths.assumed,
        lengths.source,
    )


class _Places(NamedTuple):
    """Places of the arguments of a function of FlashAttention; keys and values follow the
    queries.
    """

    query: int = 0
    causal: int | None = None
    """Whether the mask is causal; it is where this is None, or where a cache has no such
    argument.
    """
    window: int | None = None
    """How many keys before its place a query sees; how many behind it follows."""
    ends: int | None = None
    """Ends of the sequences of packed queries; those of packed keys follow."""
    longest: int = 0
    """Queries of the longest sequence; its keys follow."""
    pages: int | None = None
    """The table of pages, where keys and values are a cache."""


_SECOND_FLAG: Final = -1
"""The place of the second flag after the longest sequence: versions of AITER have other
arguments before it.
"""

_THREE: Final = _Places(0, 24, 25, 7, 12, 14)
_DENSE: Final = _Places(0, 5, 6)
_FORWARD: Final = {
    "aten::_flash_attention_forward": _Places(0, 8, 11, 3, 5, 15),
    "aten::_efficient_attention_forward": _Places(0, 9, None, 4, 6),
    "FlashAttnFunc": _Places(0, 5),
    "FlashAttnVarlenFunc": _Places(0, 9, None, 3, 5),
    "flash_attn::_flash_attn_forward": _DENSE,
    "flash_attn::_flash_attn_varlen_forward": _Places(0, 9, 10, 3, 5, 15),
    "flashattn::_flash_attn_forward": _DENSE,
    "flashattn::_flash_attn_varlen_forward": _Places(0, 9, 10, 3, 5, 15),
    "flash_attn_3::fwd": _THREE,
    "flash_attn_3::_flash_attn_forward": _THREE,
    "sgl_kernel::fwd": _THREE,
    "_vllm_fa3_C::fwd": _THREE,
    "_vllm_fa2_C::varlen_fwd": _Places(0, 15, 16, 4, 10, 8),
    "aiter::_flash_attn_forward": _DENSE,
    "aiter::wrapper_fmha_v3_fwd": _DENSE,
    "aiter::mha_fwd": _DENSE,
    "aiter::fmha_v3_fwd": _DENSE,
    "aiter::mha_varlen_fwd": _Places(0, _SECOND_FLAG, None, 3, 5),
    "aiter::mha_batch_prefill": _Places(0, None, None, 3, 6, 5),
}
_BACKWARD: Final = {
    "aten::_flash_attention_backward": _Places(1, 11, 15, 6, 8),
    "aten::_efficient_attention_backward": _Places(1, 14, None, 6, 8),
    "flash_attn::_flash_attn_backward": _Places(1, 11, 12),
    "flashattn::_flash_attn_backward": _Places(1, 11, 12),
    "flash_attn::_flash_attn_varlen_backward": _Places(1, 15, 16, 9, 11),
    "flashattn::_flash_attn_varlen_backward": _Places(1, 15, 16, 9, 11),
    "flash_attn_3::bwd": _Places(1, 16, 17, 9, 13),
    "flash_attn_3::_flash_attn_backward": _Places(1, 16, 17, 6, 10),
    "aiter::_flash_attn_backward": _Places(1, 12, 13),
    "aiter::mha_bwd": _Places(1, 8, 9),
    "aiter::fmha_v3_bwd": _Places(1, 8, 9),
    "aiter::mha_varlen_bwd": _Places(1, _SECOND_FLAG, None, 6, 8),
}


def _flash(call: OperatorCall) -> CallWork:
    """Functions of FlashAttention: a batch of sequences of one length, packed ones, or a paged
    cache.
    """
    at = _FORWARD[call.operator]
    q, k, v = (call.tensor(at.query + n) for n in range(3))
    lengths = _lengths(call, at, q, k)
    work = _of_lengths(
        CallTensor((math.prod(q.shape[:-2]), *q.shape[-2:]), q.format, q.width), k, v, lengths
    )
    latent = call.optional(5) if at == _THREE else None
    if latent is None or len(latent.shape) != 3:
        return work
    # latent attention: queries meet the values, which are the compressed keys, too
    more = 2.0 * q.shape[1] * latent.shape[2] * lengths.pairs
    return replace(work, flops=(work.flops or 0) + more, read=work.read + latent.bytes)


def _flash_backward(call: OperatorCall) -> CallWork:
    """Their gradients, as :func:`_backward`."""
    at = _BACKWARD[call.operator]
    q, k, v = (call.tensor(at.query + n) for n in range(3))
    lengths = _lengths(call, at, q, k)
    flops = 2.0 * q.shape[-2] * lengths.pairs * (3 * q.shape[-1] + 2 * v.shape[-1])
    inputs = q.bytes + k.bytes + v.bytes
    out = math.prod(q.shape[:-1]) * v.shape[-1] * q.width
    return CallWork(flops, inputs + 2 * out, inputs, q.format, lengths.assumed, lengths.source)


_BY_NAME: Final = re.compile(
    r"flash_(?:fwd|bwd)\w*_kernel<.*?> ?>, (?:\(bool\))?\w+, (?:\(bool\))?(?:true|1)\b"
)
"""Kernels of FlashAttention 2 with a causal mask, the second of their flags."""


def _lengths(call: OperatorCall, at: _Places, q: CallTensor, k: CallTensor) -> Lengths:
    """Lengths of the sequences of a call, of its step where it does not say them."""
    tokens, ends = math.prod(q.shape[:-2]), None if at.ends is None else call.optional(at.ends)
    is_cache = (at.pages is not None and call.optional(at.pages) is not None) or (
        len(q.shape) == 3 and len(k.shape) == 4
    )
    if at.causal == _SECOND_FLAG:
        flags = [
            n for n in range(at.longest + 2, len(call.arguments)) if isinstance(call.get(n), bool)
        ]
        second = flags[1] if len(flags) > 1 else len(call.arguments)
        at = at._replace(causal=second, window=second + 1)
    stated = None if at.causal is None else call.get(at.causal)
    said = isinstance(stated, int | float)
    causal = (
        bool(stated)
        if said
        else at.causal is None or is_cache or bool(_BY_NAME.search(call.kernel))
    )
    left, right = (None if at.window is None else call.get(at.window + n) for n in range(2))
    before, behind = (
        float(n) if isinstance(n, int | float) and n >= 0 else None for n in (left, right)
    )
    behind = 0.0 if causal else behind
    longest, most = (call.get(at.longest + n) for n in range(2))
    assumed = "" if said or causal else "no causal mask, as far as was recorded"
    each: list[tuple[float, float, float]] = []  # number of sequences, queries and keys
    if ends is None and not is_cache:
        if len(q.shape) != 4 or len(k.shape) != 4:
            raise NoWorkError(
                f"{call.operator} has queries of {len(q.shape)} axes and keys of {len(k.shape)}"
            )
        each = [(q.shape[0], q.shape[1], k.shape[1])]
    elif ends is not None and isinstance(longest, int | float) and isinstance(most, int | float):
        count, keys = ends.shape[0] - 1, math.prod(k.shape[:-2])
        if count == 1:
            each = [(1, tokens, most if is_cache else keys)]
        elif count * longest == tokens and (longest == most if is_cache else count * most == keys):
            each = [(count, longest, most)]
        elif not is_cache and count > 1:
            each = [
                (1, longest, most),
                (count - 1, (tokens - longest) / (count - 1), (keys - most) / (count - 1)),
            ]
            assumed = "; ".join(
                filter(None, (assumed, "besides the longest all sequences have one length"))
            )
    if not each:
        return _in_window(_step(call, tokens), before)
    visible = [
        keys if before is None else keys - max(0.0, keys - queries - before)
        for _, queries, keys in each
    ]
    pairs = sum(n * seen(queries, keys, before, behind) for n, queries, keys in each)
    return Lengths(
        tokens,
        sum(n * keys for (n, *_), keys in zip(each, visible, strict=True)),
        pairs,
        assumed,
        "shapes",
    )


def _in_window(lengths: Lengths, before: float | None) -> Lengths:
    """Lengths of a step where each query sees so many keys before its place."""
    if before is None or lengths.pairs <= lengths.tokens * (before + 1):
        return lengths
    pairs = lengths.tokens * (before + 1)
    assumed = "; ".join(filter(None, (lengths.assumed, "each query sees a whole window")))
    return replace(lengths, pairs=pairs, keys=min(lengths.keys, pairs), assumed=assumed)


_DECODES: Final = {
    "_C::paged_attention_v1": (1, 4),
    "_C::paged_attention_v2": (4, 7),
    "_rocm_C::paged_attention": (4, 7),
}
"""Places of the queries, before two caches, and of the number of heads of keys."""


def _decode(call: OperatorCall) -> CallWork:
    """A query of each sequence over a cache, whose layout differs by version; heads are of one
    size.
    """
    query, heads = _DECODES[call.operator]
    q, cache = call.tensor(query, 3), call.tensor(query + 1)
    kv = CallTensor((int(call.number(heads)), q.shape[2]), cache.format, cache.width)
    return _of_lengths(q, kv, kv, _step(call, q.shape[0]))


_LATENTS: Final = {
    "sgl_kernel::cutlass_mla_decode": (1, 2, 3),
    "_C::sm100_cutlass_mla_decode": (2, 3, 4),
    "_flashmla_C::fwd_kvcache_mla": (0, None, 1),
    "sgl_kernel::fwd_kvcache_mla": (0, None, 1),
}
"""Places of the queries, of the part of them that meets turned keys where it is apart, and of
the cache.
"""


def _latent(call: OperatorCall) -> CallWork:
    """Decode with latent attention: all heads meet one compressed key, whose first part is the
    value as well.
    """
    first, second, at = _LATENTS[call.operator]
    q, cache = call.tensor(first), call.tensor(at)
    turned = None if second is None else call.tensor(second)
    tokens, heads = math.prod(q.shape[:-2]), q.shape[-2]
    size = q.shape[-1] + (turned.shape[-1] if turned else 0)
    value = q.shape[-1] if turned else int(call.number(2))
    if not value < size == cache.shape[-1] or any(
        isinstance(each, CallTensor) for each in call.arguments[9:]
    ):
        raise NoWorkError(
            f"{call.operator} has a cache of {cache.shape[-1]} a token, or chooses keys"
        )
    lengths = _step(call, tokens)
    read = tokens * heads * size * q.width + lengths.keys * size * cache.width
    flops = 2.0 * heads * (size + value) * lengths.pairs
    return CallWork(
        flops, read, tokens * heads * value * q.width, q.format, lengths.assumed, lengths.source
    )


def _ragged(call: OperatorCall) -> CallWork:
    """SGLang on AMD:

    ``(out, workspace, queries, keys, values, …)`` over a cache of (tokens, 1, heads, size).
    """
    q, k, v = call.tensor(2, 3), call.tensor(3), call.tensor(4)
    return _of_lengths(q, k, v, _step(call, q.shape[0]))


def _step(call: OperatorCall, tokens: int) -> Lengths:
    """Lengths of the step; a graph pads the tokens, so there may be more than the step has."""
    if call.lengths is None:
        raise NoWorkError(
            "the lengths of the sequences are recorded neither in the call nor in the step's label"
        )
    if call.lengths.tokens > tokens:
        raise NoWorkError(
            f"the step's label says {call.lengths.tokens:g} tokens, the call has {tokens}"
        )
    return call.lengths


def _unified(call: OperatorCall) -> CallWork:
    """Attention of vLLM with new keys and values, whose cache is not among its arguments."""
    q, k, v = (call.tensor(place, 3) for place in range(3))
    work = _of_lengths(q, k, v, _step(call, q.shape[0]))
    said = "cache of the type of the new keys, no sliding window, as far as was recorded"
    return replace(work, assumed=f"{work.assumed}; {said}")


_FLASH: Final = "FlashAttention, benchmarks/benchmark_flash_attention.py"
_FORMULA: Final = (
    "2 heads pairs (size of a key + size of a value); queries, keys, values and result once"
)

KINDS: Final = [
    OperatorKind(
        "attention",
        "aten::_scaled_dot_product_flash_attention aten::_scaled_dot_product_efficient_attention"
        " aten::_scaled_dot_product_cudnn_attention"
        " aten::_scaled_dot_product_flash_attention_for_cpu"
        " aten::_scaled_dot_product_fused_attention_overrideable",
        _dense,
        f"{_FORMULA}; a causal mask leaves half of the pairs",
        _FLASH,
        whole=True,
    ),
    OperatorKind(
        "attention",
        "aten::scaled_dot_product_attention aten::_cudnn_attention_forward",
        _dense,
        f"{_FORMULA}; a causal mask leaves half of the pairs",
        _FLASH,
    ),
    OperatorKind(
        "attention backward",
        "aten::_scaled_dot_product_flash_attention_backward"
        " aten::_scaled_dot_product_efficient_attention_backward"
        " aten::_scaled_dot_product_cudnn_attention_backward",
        _backward,
        "2 heads pairs (3 x size of a key + 2 x size of a value); inputs, result, its gradient and"
        " three gradients once",
        _FLASH,
        whole=True,
    ),
    OperatorKind(
        "attention",
        " ".join(_FORWARD),
        _flash,
        f"{_FORMULA}, of a cache as many keys as the sequences have; a causal "
        "mask or a window leaves the pairs that it shows",
        _FLASH,
        lengths=True,
    ),
    OperatorKind(
        "attention backward",
        " ".join(_BACKWARD),
        _flash_backward,
        "as above, of these pairs",
        _FLASH,
    ),
    OperatorKind(
        "attention",
        "sglang_profiler::attention_paged_attention_ragged* aiter::paged_attention_ragged",
        _ragged,
        f"{_FORMULA}, of the cache as many keys as the sequences have",
        _FLASH,
        lengths=True,
    ),
    OperatorKind(
        "attention",
        " ".join(_DECODES),
        _decode,
        f"{_FORMULA}, of the cache as many keys as the sequences have",
        "vllm/csrc/torch_bindings.cpp",
        lengths=True,
    ),
    OperatorKind(
        "attention",
        " ".join(_LATENTS),
        _latent,
        f"{_FORMULA}, of the cache the latents of the sequences once",
        "vllm/csrc/torch_bindings.cpp, sgl-kernel/csrc",
        lengths=True,
    ),
    OperatorKind(
        "attention",
        "vllm::unified_attention_with_output vllm::unified_attention",
        _unified,
        f"{_FORMULA}, of the cache as many keys as the sequences have",
        _FLASH,
        lengths=True,
    ),
]
