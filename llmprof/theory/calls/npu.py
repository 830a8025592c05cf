"""Work of kernels of Huawei's CANN, whose profiler records the shapes of each kernel's own inputs
and results.

A call is called ``cann::`` and the type of the kernel. Its two arguments are the list of its inputs
and the list of its results, as msprof's ``kernel_details.csv`` has them; an entry without a shape
(a scalar, or an optional one that is not given) has no elements. Arguments of the operators: CANN's
operator prototypes (``ops/built-in/op_proto``).
"""

from __future__ import annotations

import math
from typing import Final

from llmprof.theory.calls.attention import pairs_of
from llmprof.theory.calls.call import CallTensor, NoWorkError, OperatorCall
from llmprof.theory.calls.work import CallWork, cost

PREFIX: Final = "cann::"
_SOURCE: Final = "shapes of the kernel"
_IN_PLACE: Final = "nothing is written in place, as far as was recorded"

_MASK: Final = (2048, 2048)
"""Shape of the mask that ``sparse_mode`` 2, 3 and 4 of ``npu_fusion_attention`` take for any
lengths.
"""


def _given(call: OperatorCall, place: int, number: int) -> CallTensor:
    found = call.listed(place)
    if number >= len(found) or not found[number].elements:
        raise NoWorkError(
            f"{'input' if place == 0 else 'result'} {number} of {call.operator} was not recorded"
        )
    return found[number]


def _bytes(tensors: tuple[CallTensor, ...]) -> float:
    return sum(each.bytes for each in tensors)


def _matrix(tensor: CallTensor) -> str:
    """Format of the matrix unit; products of fp32 run in one of several (HF32), which is not
    recorded.
    """
    return "" if tensor.format == "fp32" else tensor.format


@cost
def npu_product(call: OperatorCall) -> CallWork:
    """2 m n k; inputs and result once, of the shapes of the kernel.

    ``a b (+ bias)``; whether an operand is transposed follows from the shape of the result.
    """
    a, b, out = _given(call, 0, 0), _given(call, 0, 1), _given(call, 1, 0)
    if min(len(a.shape), len(b.shape), len(out.shape)) < 2:
        raise NoWorkError(f"{call.operator} has operands that are no matrices")
    *batches, m, n = out.shape
    k = a.shape[-2] * a.shape[-1] // max(1, m)
    if sorted(a.shape[-2:]) != sorted((m, k)) or sorted(b.shape[-2:]) != sorted((k, n)):
        raise NoWorkError(
            f"the shapes {list(a.shape)}, {list(b.shape)} and {list(out.shape)} are not those of a"
            " product"
        )
    batch = math.prod(batches)
    flops = 2.0 * batch * m * n * k
    return CallWork(
        flops, _bytes(call.listed(0)), out.bytes, _matrix(a), "", _SOURCE, (batch, m, n)
    )


@cost
def npu_moves(call: OperatorCall, part: str = "", in_place: int = 0) -> CallWork:
    """Not known (copies: 0); inputs and results once, of the shapes of the kernel.

    A part of the operators read only as much as the ``result`` has, ``nothing``, or of a table and
    indices these and the ``rows`` that they name (at most the whole table). Where an operator
    writes its first inputs in place, ``in_place`` is their number.
    """
    inputs, results = call.listed(0), call.listed(1)
    if part:
        out = _given(call, 1, 0).bytes
        read = 0.0 if part == "nothing" else out
        if part == "rows":
            read = min(_given(call, 0, 0).bytes, out) + _given(call, 0, 1).bytes
        return CallWork(0.0, read, out, "", "", _SOURCE)
    if in_place:
        results = tuple(_given(call, 0, place) for place in range(in_place))
    if not _bytes(inputs + results):
        raise NoWorkError(f"neither inputs nor results of {call.operator} were recorded")
    written = _bytes(results)
    return CallWork(None, _bytes(inputs), written, "", "" if written else _IN_PLACE, _SOURCE)


def _sizes(
    call: OperatorCall, q: CallTensor, k: CallTensor, v: CallTensor, sums: CallTensor
) -> tuple[int, int, int, int, int, int]:
    """Batch, heads, queries, keys, and sizes of a key and of a value, from the sums of the
    softmax and the layout.
    """
    if len(sums.shape) != 4:  # sequences of several lengths, which are not recorded, in one axis
        raise NoWorkError(
            f"the sums of {call.operator} have the shape {list(sums.shape)}, not one for each query"
        )
    batch, heads, queries = sums.shape[:3]
    size = q.elements // (batch * heads * queries)
    layouts = {
        (queries, batch, heads * size): 0,
        (batch, queries, heads * size): 1,
        (batch, heads, queries, size): 2,
        (batch, queries, heads, size): 1,
    }
    axis = layouts.get(q.shape)
    if axis is None or len(k.shape) != len(q.shape):
        raise NoWorkError(
            f"the layout of the queries {list(q.shape)} of {call.operator} is not known"
        )
    keys = k.shape[axis]
    shared = k.elements // (batch * keys * size)  # heads of keys
    return batch, heads, queries, keys, size, v.elements // (batch * keys * max(1, shared))


def _pairs(call: OperatorCall, queries: int, keys: int, mask: int) -> tuple[float, str]:
    """Pairs of a query and a key: all without a mask, those of a causal one if the mask is the
    one for any lengths.
    """
    inputs = call.listed(0)
    given = inputs[mask] if mask < len(inputs) else None
    if given is None or not given.elements:
        return pairs_of(queries, keys, causal=False), ""
    if given.shape != _MASK or min(queries, keys) < _MASK[0]:
        raise NoWorkError(f"which keys the mask of {call.operator} leaves was not recorded")
    return pairs_of(queries, keys, causal=True), "the mask for any lengths is causal"


@cost
def npu_attention(call: OperatorCall, *, backward: bool = False) -> CallWork:
    """2 heads pairs (size of a key + size of a value), backward 2 heads pairs (3 x size of a key
    + 2 x size of a value); queries, keys, values and results once, backward all inputs but the mask
    and the gradients; the mask of 2048 x 2048 for any lengths leaves half of the pairs.

    ``(q, k, v, pse, drop, padding, mask, …)`` into ``(maxima, sums, …, result)``, backward ``(q, k,
    v, dy, mask, maxima, sums, …, result, …)`` into three gradients.
    """
    q, k, v = (_given(call, 0, place) for place in range(3))
    sums = _given(call, 0, 5) if backward else _given(call, 1, 0)
    batch, heads, queries, keys, size, value = _sizes(call, q, k, v, sums)
    pairs, assumed = _pairs(call, queries, keys, 4 if backward else 6)
    inputs = call.listed(0)
    read, weight = _bytes(inputs[:3]), size + value
    if backward:
        read, weight = _bytes(inputs[:4]) + _bytes(inputs[5:]), 3 * size + 2 * value
    flops = 2.0 * batch * heads * pairs * weight
    return CallWork(flops, read, _bytes(call.listed(1)), _matrix(q), assumed, _SOURCE)
