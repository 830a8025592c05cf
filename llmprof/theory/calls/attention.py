"""Work of attention: FLOPs from the pairs of a query and a key that it sees."""

from __future__ import annotations

import math
import re
from typing import Final, NamedTuple

from msgspec.structs import replace

from llmprof.theory.calls.call import CallTensor, Lengths, NoWorkError, OperatorCall
from llmprof.theory.calls.work import CallWork, cost


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


def _sizes(
    call: OperatorCall, q: CallTensor, k: CallTensor, v: CallTensor
) -> tuple[int, int, int, int, int, int]:
    """Batch, heads, queries, keys, and sizes of a key and of a value."""
    if len(q.shape) != 4 or len(k.shape) != 4 or len(v.shape) != 4:
        raise NoWorkError(
            f"{call.operator} has a query of the shape {list(q.shape)}", expected="four axes"
        )
    return q.shape[0], q.shape[1], q.shape[2], k.shape[2], q.shape[3], v.shape[3]


def _gradients(q: CallTensor, k: CallTensor, v: CallTensor, out: float) -> tuple[float, float]:
    """Bytes that a backward pass reads (inputs, the result and its gradient) and writes."""
    inputs = q.bytes + k.bytes + v.bytes
    return inputs + 2 * out, inputs


@cost
def dense_attention(call: OperatorCall, causal: int, *, backward: bool = False) -> CallWork:
    """2 heads pairs (size of a key + size of a value), backward 2 heads pairs (3 x size of a key
    + 2 x size of a value); queries, keys, values and result once, backward their gradients too; a
    causal mask leaves half of the pairs.

    Sequences of a batch have one length. Backward has five products where forward has two, with
    the scores computed again. ``causal`` is the place of the argument that says the mask.
    """
    q, k, v = (call.tensor(place + backward) for place in range(3))
    batch, heads, queries, keys, size, value = _sizes(call, q, k, v)
    stated = call.get(causal)
    known = isinstance(stated, bool | int | float)
    assumed = "" if known else "no causal mask, as far as was recorded"
    pairs = batch * heads * pairs_of(queries, keys, causal=known and bool(stated))
    out = batch * heads * queries * value * q.width
    if backward:
        read, written = _gradients(q, k, v, out)
        flops = 2.0 * pairs * (3 * size + 2 * value)
        return CallWork(flops, read, written, q.format, assumed)
    read = q.bytes + k.bytes + v.bytes + call.bytes_at(3)
    # behind a causal mask tiles have less to do
    result = None if known and stated else (batch * heads, queries, value)
    return CallWork(2.0 * pairs * (size + value), read, out, q.format, assumed, result=result)


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


@cost
def flash_attention(  # noqa: PLR0917 - places in the order of their meaning
    call: OperatorCall,
    causal: int | None = None,
    window: int | None = None,
    ends: int | None = None,
    longest: int = 0,
    pages: int | None = None,
    *,
    backward: bool = False,
    latent: int | None = None,
) -> CallWork:
    """2 heads pairs (size of a key + size of a value), backward 2 heads pairs (3 x size of a key
    + 2 x size of a value); queries, keys, values and result once, backward their gradients too, of
    a cache as many keys as the sequences have; a causal mask or a window leaves the pairs that it
    shows.

    A batch of sequences of one length, packed ones, or a paged cache. With ``latent``, queries meet
    the values, which are the compressed keys, too.
    """
    at = _Places(int(backward), causal, window, ends, longest, pages)
    q, k, v = (call.tensor(at.query + n) for n in range(3))
    lengths = _lengths(call, at, q, k)
    if backward:
        flops = 2.0 * q.shape[-2] * lengths.pairs * (3 * q.shape[-1] + 2 * v.shape[-1])
        read, written = _gradients(q, k, v, math.prod(q.shape[:-1]) * v.shape[-1] * q.width)
        return CallWork(flops, read, written, q.format, lengths.assumed, lengths.source)
    queries = CallTensor((math.prod(q.shape[:-2]), *q.shape[-2:]), q.format, q.width)
    work = _of_lengths(queries, k, v, lengths)
    more = None if latent is None else call.optional(latent)
    if more is None or len(more.shape) != 3:
        return work
    flops = 2.0 * q.shape[1] * more.shape[2] * lengths.pairs
    return replace(work, flops=(work.flops or 0) + flops, read=work.read + more.bytes)


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


@cost
def cached_attention(
    call: OperatorCall, query: int = 0, heads: int | None = None, assumed: str = ""
) -> CallWork:
    """2 heads pairs (size of a key + size of a value); queries and result once, of the cache as
    many keys and values as the sequences have.

    Queries stand before keys and values, or before two caches whose layout differs by version:
    ``heads`` is the place of the number of heads of keys then, which are of one size.
    """
    q, k, v = call.tensor(query, 3), call.tensor(query + 1), call.tensor(query + 2)
    if heads is not None:
        k = v = CallTensor((int(call.number(heads)), q.shape[2]), k.format, k.width)
    work = _of_lengths(q, k, v, _step(call, q.shape[0]))
    return replace(work, assumed=f"{work.assumed}; {assumed}") if assumed else work


@cost
def latent_attention(
    call: OperatorCall, query: int, cache: int, turned: int | None = None
) -> CallWork:
    """2 heads pairs (size of a key + size of a value); queries and result once, of the cache the
    latents of the sequences once.

    All heads meet one compressed key, whose first part is the value as well. ``turned`` is the part
    of the queries that meets turned keys, where it is apart.
    """
    q, kept = call.tensor(query), call.tensor(cache)
    tokens, heads = math.prod(q.shape[:-2]), q.shape[-2]
    size = q.shape[-1] + (0 if turned is None else call.tensor(turned).shape[-1])
    value = int(call.number(2)) if turned is None else q.shape[-1]
    if not value < size == kept.shape[-1] or call.given(9):
        raise NoWorkError(
            f"{call.operator} has a cache of {kept.shape[-1]} a token, or chooses keys"
        )
    lengths = _step(call, tokens)
    read = tokens * heads * size * q.width + lengths.keys * size * kept.width
    flops = 2.0 * heads * (size + value) * lengths.pairs
    return CallWork(
        flops, read, tokens * heads * value * q.width, q.format, lengths.assumed, lengths.source
    )


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
