"""Work of matrix products and convolutions."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import zip_longest
from typing import Final

from msgspec.structs import replace

from llmprof.names.dtypes import FLOAT_WIDTHS
from llmprof.theory.calls.call import CallTensor, NoWorkError, OperatorCall
from llmprof.theory.calls.work import CallWork, cost

_HALF_IN: Final = {"fp8", "fp4", "int8", "uint8"}
"""Formats whose products have results of 16 bits unless the call says otherwise."""


def _matrix_format(call: OperatorCall, tensor: CallTensor) -> str:
    """Format that the matrix unit computes in; products of fp32 are those of tf32 where the
    kernel's name says so.
    """
    if tensor.format == "fp32" and re.search(
        r"tf32|_s1688gemm_f32|3xbf16", call.kernel, re.IGNORECASE
    ):
        return "tf32"
    return tensor.format


def _product(
    call: OperatorCall,
    a: CallTensor,
    b: CallTensor,
    mnk: tuple[int, int, int],
    *,
    batch: int = 1,
    bias: CallTensor | None = None,
    width: float = 0,
    more: float = 0,
) -> CallWork:
    """``batch`` products of m x k with k x n, with an addend of the result; ``more`` bytes are
    read besides.
    """
    m, n, k = mnk
    added = bias.bytes if bias else 0.0
    out = width or (2 if a.format in _HALF_IN else a.width)
    flops = batch * m * n * (2.0 * k + (1 if bias else 0))
    return CallWork(
        flops,
        a.bytes + b.bytes + added + more,
        batch * m * n * out,
        _matrix_format(call, a),
        result=(batch, m, n),
    )


def _agree(call: OperatorCall, one: int, other: int) -> int:
    if one != other:
        raise NoWorkError(f"the inner sizes {one} and {other} of {call.operator} differ")
    return one


@cost
def product(
    call: OperatorCall,
    a: int = 0,
    b: int = 1,
    *,
    addend: int | None = None,
    scales: Sequence[int] = (),
    out: int | None = None,
    dtypes: Sequence[int] = (),
    width: float = 0,
    turned: bool = False,
) -> CallWork:
    """2 m n k, and m n for an addend; a, b, the addend, scales and the result once.

    Broadcast operands count once. Weights are n x k if they are ``turned``. The result has the type
    of the tensor ``out``, or of the first of ``dtypes`` that is a number of torch's types.
    """
    x, weight = call.tensor(a), call.tensor(b)
    if turned:
        weight = call.tensor(b, 2)
        k = _agree(call, x.shape[-1] if x.shape else 0, weight.shape[1])
        batch, sizes = 1, (math.prod(x.shape[:-1]), weight.shape[0], k)
    elif len(x.shape) < 2 or not weight.shape:
        raise NoWorkError(f"{call.operator} has operands that are no matrices")
    else:
        *others, inner, n = weight.shape if len(weight.shape) > 1 else (*weight.shape, 1)
        pairs = list(zip_longest(x.shape[-3::-1], others[::-1], fillvalue=1))
        if any(one != other and 1 not in (one, other) for one, other in pairs):
            raise NoWorkError(f"the batches of {call.operator} differ")
        batch = math.prod(max(pair) for pair in pairs)
        sizes = (x.shape[-2], n, _agree(call, x.shape[-1], inner))
    bias = call.optional(addend) if addend is not None and (addend or call.number(3, 1)) else None
    numbers = (call.get(place) for place in dtypes)
    said = (FLOAT_WIDTHS.get(int(each), 0) for each in numbers if isinstance(each, float))
    width = call.tensor(out).width if out is not None else next(filter(None, said), width)
    more = call.bytes_at(*scales)
    return _product(call, x, weight, sizes, batch=batch, bias=bias, width=width, more=more)


@cost
def sized_product(
    call: OperatorCall, out: int = 0, a: int = 1, b: int = 2, scales: Sequence[int] = (3, 4)
) -> CallWork:
    """2 m n k; a, b, scales and the result once.

    Each of the three matrices may be turned: m, n and k follow from their sizes.
    """
    result, x, weight = call.tensor(out), call.tensor(a), call.tensor(b)
    m, n = math.prod(result.shape[:-1]), result.shape[-1] if result.shape else 0
    first, second = (math.prod(each.shape[:-1]) * row_of(each) for each in (x, weight))
    k = first // max(1, m)
    if (m * k, n * k) != (first, second):
        raise NoWorkError(
            f"the sizes {list(result.shape)}, {list(x.shape)} and {list(weight.shape)} do not fit"
        )
    work = _product(call, x, weight, (m, n, k), width=result.width, more=call.bytes_at(*scales))
    return replace(work, matrix="fp4") if row_of(x) != x.shape[-1] else work


@cost
def quantized_product(call: OperatorCall, width: float = 2) -> CallWork:
    """2 m n k; a, b, scales and the result once.

    ``x`` (…, k) and ``weight`` (n, k) of narrow numbers come in order, scales and a result
    anywhere. Where the format is of 4 bits, or unsigned bytes stand for it, an element holds two
    numbers.
    """
    given = [each for each in call.tensors() if len(each.shape) > 1]
    x, rest = given[0], given[1:]
    k = row_of(x)
    weight = next((each for each in rest if k in (each.shape[-1], row_of(each))), None)
    if weight is None or len(weight.shape) != 2:
        raise NoWorkError(
            f"no weight of {k} columns was recorded among the arguments of {call.operator}"
        )
    m, n = math.prod(x.shape[:-1]), weight.shape[0]
    out = next((each for each in rest if each is not weight and each.shape[-2:] == (m, n)), None)
    more = sum(
        each.bytes
        for each in call.tensors()
        if each is not x and each is not weight and each is not out
    )
    work = _product(call, x, weight, (m, n, k), width=out.width if out else width, more=more)
    return replace(work, matrix="fp4") if k != x.shape[-1] else work


def row_of(tensor: CallTensor) -> int:
    """Numbers of a row; two of 4 bits are in an element, for which unsigned bytes may stand."""
    return tensor.shape[-1] * (2 if tensor.format in ("fp4", "uint8") else 1)


_PACKED: Final = (2, 3, 4, 8)
"""Bits of a weight in the packed matrices of GPTQ, AWQ, Marlin and Machete."""


@cost
def packed_product(call: OperatorCall, scales: int | None = None, axis: int = 0) -> CallWork:
    """2 m n k in the type of a; a, packed weights, scales, zero points, bias, order of the inputs
    and the result once.

    Whole numbers hold several weights each; scales have a size for each column of the result, the
    place and the axis of which torch's operators fix. Of the other arguments, matrices (zero
    points), biases and orders of the inputs are read; a workspace is not.
    """
    a = call.tensor(0)
    k, m = a.shape[-1] if a.shape else 0, math.prod(a.shape[:-1])
    if scales is not None:
        found = call.tensor(scales)
        n = found.shape[axis] if axis < len(found.shape) else 0
        return _product(call, a, call.tensor(1), (m, n, k), more=found.bytes)
    given = call.given(1)
    at = next(
        (n for n, each in enumerate(given) if "int" in each.format and len(each.shape) == 2), None
    )
    if at is None or not k:
        raise NoWorkError(f"no packed weights were recorded among the arguments of {call.operator}")
    weights, after = given[at], given[at + 1 :]
    scaled = (each for each in after if len(each.shape) == 2 and "int" not in each.format)
    n = next((each.shape[1] for each in scaled), 0)
    if not n or weights.stored * 8 / (k * n) not in _PACKED:
        raise NoWorkError(
            f"the packed weights {list(weights.shape)} of {call.operator} are not those of {k}"
            f" x {n}"
        )
    more = sum(each.bytes for each in after if len(each.shape) == 2 or each.shape in ((n,), (k,)))
    return _product(call, a, weights, (m, n, k), more=more)


@cost
def convolution(
    call: OperatorCall,
    sizes: Sequence[int] = (3, 4, 5),
    groups: int = 8,
    *,
    transposed: int | None = None,
) -> CallWork:
    """2 x elements of the result x taps of a filter; input, weight, bias and result once.

    ``sizes`` are the places of stride, padding and dilation; the padding of the result of a
    transposed one follows that flag.
    """
    x, weight = call.tensor(0), call.tensor(1)
    if len(x.shape) != len(weight.shape) or len(x.shape) < 3:
        raise NoWorkError(f"an input of {len(x.shape)} axes and a weight of {len(weight.shape)}")
    turned = transposed is not None and bool(call.number(transposed, 0))
    many, space = int(call.number(groups, 1)), len(x.shape) - 2
    given = [call.numbers(place) for place in sizes]
    given.append(call.numbers(transposed + 1) if turned and transposed else (0.0,))
    given = [each * space if len(each) == 1 else each for each in given]
    channels = weight.shape[0] if turned else weight.shape[1] * many
    if any(len(each) != space for each in given) or x.shape[1] != channels:
        raise NoWorkError("strides, padding, dilation or groups do not fit the shapes")
    read = x.bytes + weight.bytes + call.bytes_at(2)
    taps, unit = math.prod(weight.shape[1:]), _matrix_format(call, x)
    axes = zip(x.shape[2:], weight.shape[2:], *given, strict=True)
    if turned:  # each element of the input is spread over the taps of a filter
        outs = [
            int((size - 1) * by - 2 * pad + step * (wide - 1) + end + 1)
            for size, wide, by, pad, step, end in axes
        ]
        elements = x.shape[0] * weight.shape[1] * many * math.prod(outs)
        return CallWork(2.0 * x.elements * taps, read, elements * x.width, unit)
    outs = [
        int((size + 2 * pad - step * (wide - 1) - 1) // by + 1)
        for size, wide, by, pad, step, _ in axes
    ]
    elements = x.shape[0] * weight.shape[0] * math.prod(outs)
    result = (many, elements // weight.shape[0], weight.shape[0] // many) if elements else None
    return CallWork(2.0 * elements * taps, read, elements * x.width, unit, result=result)


@cost
def convolution_backward(call: OperatorCall) -> CallWork:
    """As forward for each gradient, of the input and of the weight; gradients, input and weight
    once.
    """
    grad, x, weight = call.tensor(0), call.tensor(1), call.tensor(2)
    masks = call.get(10)
    wanted = masks if isinstance(masks, tuple) and len(masks) == 3 else (1.0, 1.0, 0.0)
    each = 2.0 * grad.elements * math.prod(weight.shape[1:])
    read = grad.bytes + (weight.bytes if wanted[0] else 0) + (x.bytes if wanted[1] else 0)
    written = (x.bytes if wanted[0] else 0) + (weight.bytes if wanted[1] else 0)
    assumed = "" if masks is not None else "both gradients are computed"
    return CallWork(
        each * (bool(wanted[0]) + bool(wanted[1])),
        read,
        written,
        _matrix_format(call, grad),
        assumed,
    )
