"""Work of attention: FLOPs from the pairs of a query and a key that it sees."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from llmprof.theory.calls.call import Call, Lengths, NoWorkError, Tensor
from llmprof.theory.calls.work import Kind, Work


def pairs_of(queries: int, keys: int, *, causal: bool) -> float:
    """Pairs of a query and a key: with a causal mask half of a square, as FlashAttention counts them."""
    if not causal:
        return float(queries * keys)
    if queries <= keys:
        return queries * queries / 2  # the mask begins at the first key
    return keys * keys / 2 + (queries - keys) * keys


_CAUSAL: Final = {
    "aten::scaled_dot_product_attention": 5, "aten::_scaled_dot_product_flash_attention": 4,
    "aten::_scaled_dot_product_flash_attention_for_cpu": 4, "aten::_scaled_dot_product_efficient_attention": 6,
    "aten::_scaled_dot_product_cudnn_attention": 6, "aten::_scaled_dot_product_fused_attention_overrideable": 5,
    "aten::_cudnn_attention_forward": 10, "aten::_flash_attention_forward": 8, "aten::_efficient_attention_forward": 9,
    "aten::_scaled_dot_product_flash_attention_backward": 11,
    "aten::_scaled_dot_product_efficient_attention_backward": 11,
    "aten::_scaled_dot_product_cudnn_attention_backward": 14, "aten::_flash_attention_backward": 11,
}  # fmt: skip
"""Place of the argument that says whether the mask is causal."""


def _sizes(call: Call, q: Tensor, k: Tensor, v: Tensor, *, heads_last: bool) -> tuple[int, int, int, int, int, int]:
    """Batch, heads, queries, keys, and sizes of a key and of a value."""
    if len(q.shape) != 4 or len(k.shape) != 4 or len(v.shape) != 4:
        raise NoWorkError(f"{call.operator} has a query of the shape {list(q.shape)}", expected="four axes")
    heads, tokens = (2, 1) if heads_last else (1, 2)
    return q.shape[0], q.shape[heads], q.shape[tokens], k.shape[tokens], q.shape[3], v.shape[3]


def _causal(call: Call) -> tuple[bool, str]:
    stated = call.get(_CAUSAL[call.operator])
    known = isinstance(stated, bool | int | float)
    return bool(stated) if known else False, "" if known else "no causal mask, as far as was recorded"


def dense(call: Call) -> Work:
    """Attention of a batch of sequences of one length."""
    q, k, v = (call.tensor(place) for place in range(3))
    last = call.operator in ("aten::_flash_attention_forward", "aten::_efficient_attention_forward")
    if last and call.optional(3 if "flash" in call.operator else 4):
        return _varlen_of_torch(call, q, k, v)
    batch, heads, queries, keys, size, value = _sizes(call, q, k, v, heads_last=last)
    causal, assumed = _causal(call)
    flops = 2.0 * batch * heads * pairs_of(queries, keys, causal=causal) * (size + value)
    bias = call.optional(3)
    read = q.bytes + k.bytes + v.bytes + (bias.bytes if bias else 0)
    result = None if causal else (batch * heads, queries, value)  # behind a causal mask tiles have less to do
    return Work(flops, read, batch * heads * queries * value * q.width, q.format, assumed, result=result)


def _varlen_of_torch(call: Call, q: Tensor, k: Tensor, v: Tensor) -> Work:
    places = (3, 5, 6) if "flash" in call.operator else (4, 6, 7)
    ends, longest, longest_key = call.tensor(places[0], 1), call.number(places[1]), call.number(places[2])
    q, k, v = (Tensor(each.shape[-3:], each.format, each.width) for each in (q, k, v))
    lengths = _uniform(q.shape[0], ends.shape[0] - 1, longest, longest_key, causal=_causal(call)[0])
    if lengths is None:
        raise NoWorkError("the lengths of the sequences are not recorded, and differ")
    return _of_lengths(q, k, v, lengths)


def backward(call: Call) -> Work:
    """Backward pass: five products where forward has two, with the scores computed again."""
    q, k, v = (call.tensor(place) for place in (1, 2, 3))
    batch, heads, queries, keys, size, value = _sizes(
        call, q, k, v, heads_last=call.operator == "aten::_flash_attention_backward"
    )
    causal, assumed = _causal(call)
    flops = 2.0 * batch * heads * pairs_of(queries, keys, causal=causal) * (3 * size + 2 * value)
    out = batch * heads * queries * value * q.width
    return Work(flops, q.bytes + k.bytes + v.bytes + 2 * out, q.bytes + k.bytes + v.bytes, q.format, assumed)


def _uniform(tokens: float, requests: int, longest: float, longest_key: float, *, causal: bool) -> Lengths | None:
    """Lengths that follow from the longest: of one sequence, or where all must be as long as the longest."""
    if requests == 1:
        queries, keys = tokens, longest_key
    elif requests * longest == tokens and longest_key == longest:
        queries, keys = longest, longest
    else:
        return None
    pairs = queries * keys - (queries * queries / 2 if causal and queries > 1 else 0)
    return Lengths(tokens, requests * keys, requests * pairs, source="shapes")


def _of_lengths(q: Tensor, k: Tensor, v: Tensor, lengths: Lengths) -> Work:
    """Attention of ``q`` (tokens, heads, size) over keys and values of (…, heads, size)."""
    tokens, heads, size = q.shape
    kv_heads, value, width = k.shape[-2], v.shape[-1], k.width
    flops = 2.0 * heads * (size + value) * lengths.pairs
    read = tokens * heads * size * q.width + lengths.keys * kv_heads * (size + value) * width
    matrix = q.format if q.format == "fp8" or width > 1 else "fp8"
    return Work(flops, read, tokens * heads * value * (2 if q.format == "fp8" else q.width), matrix, lengths.assumed,
                lengths.source)  # fmt: skip


_PAGED: Final = {
    "_vllm_fa3_C::fwd": (7, 12, 13), "_vllm_fa2_C::varlen_fwd": (4, 10, 11), "aiter::mha_batch_prefill": (3, 6, 7),
}  # fmt: skip
"""Places of the ends of the queries, of the longest query and of the most keys."""


def paged(call: Call) -> Work:
    """Attention over a paged cache of (pages, page, heads, size), or of (tokens, heads, size)."""
    q, k, v = call.tensor(0, 3), call.tensor(1), call.tensor(2)
    if len(k.shape) not in (3, 4):
        raise NoWorkError(f"{call.operator} has a cache of the shape {list(k.shape)}")
    at, longest, most = _PAGED[call.operator]
    ends = call.optional(at)
    found = None
    if ends and isinstance(call.get(longest), float | int) and isinstance(call.get(most), float | int):
        found = _uniform(q.shape[0], ends.shape[0] - 1, call.number(longest), call.number(most), causal=True)
    lengths = found or _step(call, q.shape[0])
    work = _of_lengths(q, k, v, lengths)
    latent = call.optional(5) if call.operator == "_vllm_fa3_C::fwd" else None
    if latent is None or len(latent.shape) != 3:
        return work
    # latent attention: queries meet the values, which are the compressed keys, too
    more = 2.0 * q.shape[1] * latent.shape[2] * lengths.pairs
    return replace(work, flops=(work.flops or 0) + more, read=work.read + latent.bytes)


def ragged(call: Call) -> Work:
    """SGLang on AMD: ``(out, workspace, queries, keys, values, …)`` over a cache of (tokens, 1, heads, size)."""
    q, k, v = call.tensor(2, 3), call.tensor(3), call.tensor(4)
    return _of_lengths(q, k, v, _step(call, q.shape[0]))


def _step(call: Call, tokens: int) -> Lengths:
    """Lengths of the step; a graph pads the tokens, so there may be more than the step has."""
    if call.lengths is None:
        raise NoWorkError("the lengths of the sequences are recorded neither in the call nor in the step's label")
    if call.lengths.tokens > tokens:
        raise NoWorkError(f"the step's label says {call.lengths.tokens:g} tokens, the call has {tokens}")
    return call.lengths


def unified(call: Call) -> Work:
    """Attention of vLLM with new keys and values, whose cache is not among its arguments."""
    q, k, v = (call.tensor(place, 3) for place in range(3))
    work = _of_lengths(q, k, v, _step(call, q.shape[0]))
    said = "cache of the type of the new keys, no sliding window, as far as was recorded"
    return replace(work, assumed=f"{work.assumed}; {said}")


_FLASH: Final = "FlashAttention, benchmarks/benchmark_flash_attention.py"
_FORMULA: Final = "2 heads pairs (size of a key + size of a value); queries, keys, values and result once"

KINDS: Final = [
    Kind("attention", "aten::_scaled_dot_product_flash_attention aten::_scaled_dot_product_efficient_attention "
         "aten::_scaled_dot_product_cudnn_attention aten::_scaled_dot_product_flash_attention_for_cpu "
         "aten::_scaled_dot_product_fused_attention_overrideable", dense,
         f"{_FORMULA}; a causal mask leaves half of the pairs", _FLASH, whole=True),
    Kind("attention", "aten::scaled_dot_product_attention aten::_cudnn_attention_forward "
         "aten::_flash_attention_forward aten::_efficient_attention_forward", dense,
         f"{_FORMULA}; a causal mask leaves half of the pairs", _FLASH),
    Kind("attention backward", "aten::_scaled_dot_product_flash_attention_backward "
         "aten::_scaled_dot_product_efficient_attention_backward aten::_scaled_dot_product_cudnn_attention_backward",
         backward, "2 heads pairs (3 x size of a key + 2 x size of a value); inputs, result, its gradient and three "
         "gradients once", _FLASH, whole=True),
    Kind("attention", "_vllm_fa3_C::fwd _vllm_fa2_C::varlen_fwd aiter::mha_batch_prefill", paged,
         f"{_FORMULA}, of the cache as many keys as the sequences have", _FLASH, lengths=True),
    Kind("attention", "sglang_profiler::attention_paged_attention_ragged* aiter::paged_attention_ragged", ragged,
         f"{_FORMULA}, of the cache as many keys as the sequences have", _FLASH, lengths=True),
    Kind("attention", "vllm::unified_attention_with_output vllm::unified_attention", unified,
         f"{_FORMULA}, of the cache as many keys as the sequences have", _FLASH, lengths=True),
]  # fmt: skip
