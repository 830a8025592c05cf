"""Work of operators along rows: norms, softmax, reductions, top-k."""

from __future__ import annotations

import math
from typing import Final

from llmprof.names.dtypes import NUMBERED
from llmprof.theory.calls.call import NoWorkError, OperatorCall
from llmprof.theory.calls.elements import width_asked
from llmprof.theory.calls.work import CallWork, cost, new_result


@cost
def rms_norm(call: OperatorCall) -> CallWork:
    """4 an element; input, weight and result once.

    ``(out, input, weight)`` of vLLM and SGLang; ``(input, weight)`` where the second is the
    weight.
    """
    out, second = call.tensor(0), call.tensor(1)
    x, weight = (out, second) if len(second.shape) == 1 else (second, call.optional(2))
    return CallWork(
        4.0 * x.elements, x.bytes + (weight.bytes if weight else 0), x.elements * out.width
    )


@cost
def norm_backward(call: OperatorCall, flops: float = 13.0) -> CallWork:
    """13 an element (RMS norm: 9); gradient, input, weight, and the gradients of input and weight
    once.

    ``(gradient, input, …, weight)``: gradients of input, weight and bias.
    """
    grad, x = call.tensor(0), call.tensor(1)
    weights = [
        each for each in call.tensors()[2:] if len(each.shape) == 1 and each.shape[0] < x.elements
    ]
    weight = max((each.bytes for each in weights), default=0)
    return CallWork(flops * x.elements, grad.bytes + x.bytes + weight, x.stored + weight)


@cost
def pooling(call: OperatorCall) -> CallWork:
    """An operation for each tap of each result; input, results and places of the largest once.

    ``(input, taps, stride, padding, dilation if the largest, ceil)``: a result for each
    window, or its place too.
    """
    x, is_max = call.tensor(0), "max" in call.operator
    taps, stride, around = (call.numbers(place) for place in range(1, 4))
    dilation = call.numbers(4) if is_max else (1.0,)
    stride = stride or taps
    space = len(x.shape) - 2
    each = [one * space if len(one) == 1 else one for one in (taps, stride, around, dilation)]
    if space < 1 or any(len(one) != space for one in each):
        raise NoWorkError("windows do not fit the input")
    outs = [
        int((size + 2 * pad - wide * (tap - 1) - 1) // step + 1)
        for size, tap, step, pad, wide in zip(x.shape[2:], *each, strict=True)
    ]
    out = math.prod(x.shape[:2]) * math.prod(outs)
    assumed = (
        ""
        if call.get(5 if is_max else 4) in (False, 0)
        else "windows that begin inside of the input only"
    )
    return CallWork(
        float(out * math.prod(each[0])), x.bytes, out * (x.width + 8 * is_max), "", assumed
    )


def _sized(call: OperatorCall, place: int) -> int:
    """Elements with the sizes of the last axes at a place, and the others of the first argument."""
    shape, sizes = call.tensor(0).shape, call.numbers(place)
    if not sizes or len(sizes) > len(shape):
        raise NoWorkError(f"the sizes of the result of {call.operator} were not recorded")
    return math.prod(shape[: len(shape) - len(sizes)]) * int(math.prod(sizes))


@new_result
def sized(call: OperatorCall, places: bool = False) -> float:
    """Elements with the sizes of the last axes at the second place, maybe with a place of each."""
    return _sized(call, 1) * (call.tensor(0).width + 8 * places)


@cost
def upsampling(call: OperatorCall) -> CallWork:
    """2 a neighbour of a result (nearest: 0); input and result once.

    ``(input, sizes, …)``, or backward ``(gradient, sizes, sizes of the input, …)``: two
    operations a neighbour.
    """
    x = call.tensor(0)
    back = "backward" in call.operator
    out = int(math.prod(call.numbers(2))) if back else _sized(call, 1)
    taps = next((taps for name, taps in _NEIGHBOURS.items() if name in call.operator), 0)
    read = x.elements if back or "_aa" in call.operator else min(x.elements, max(taps, 1) * out)
    return CallWork(2.0 * taps * (x.elements if back else out), read * x.width, out * x.width)


@new_result
def padded(call: OperatorCall) -> float:
    """The first argument with rows around each axis by the second, the last axis first."""
    x, around = call.tensor(0), call.numbers(1)
    sizes = list(x.shape)
    for at in range(len(around) // 2):
        sizes[-1 - at] += int(sum(around[2 * at : 2 * at + 2]))
    return math.prod(sizes) * x.width


@cost
def grid_sampling(call: OperatorCall) -> CallWork:
    """2 a neighbour of a result; grid, input and result once.

    ``(input, grid)``: each place of the grid lies between the elements of a cell.
    """
    x, grid = call.tensor(0), call.tensor(1)
    out = grid.elements // max(1, grid.shape[-1]) * x.shape[1]
    near = 2 ** grid.shape[-1]
    return CallWork(
        2.0 * near * out, min(x.bytes, near * out * x.width) + grid.bytes, out * x.width
    )


_NEIGHBOURS: Final = {"bilinear": 4, "trilinear": 8, "bicubic": 16, "linear": 2}
"""Elements of the input that a result lies between."""


@cost
def picked_loss(call: OperatorCall) -> CallWork:
    """1 a target; targets, the logarithms that they name, and the result once.

    ``(logarithms, targets, weights, reduction)``: the one that each target names; their mean
    unless told not to.
    """
    x, target = call.tensor(0), call.tensor(1)
    out = target.elements if call.number(3, 1) == 0 else 1
    return CallWork(float(target.elements), target.bytes + target.elements * x.width, out * x.width)


_SUMS: Final = ("aten::sum", "aten::nansum", "aten::prod", "aten::cumsum", "aten::cumprod")
"""Sums of whole numbers are of 64 bits."""

_PAIRS: Final = ("aten::var_mean", "aten::std_mean", "aten::aminmax")
"""Reductions to two numbers."""


@cost
def reduction(call: OperatorCall, *, keeps: bool = False) -> CallWork:
    """1 an element of the input, where numbers are floats; input and result once.

    One operation an element of the input; the result has an element for each of the other
    axes, or as many as the input if it ``keeps`` them.
    """
    x = call.tensor(0)
    floats = x.format.startswith(("fp", "bf"))
    if keeps:
        width = (
            x.width + 8  # and its place
            if call.operator in ("aten::cummax", "aten::cummin")
            else width_asked(call, 2, x.width if floats else 8)
        )
        return CallWork(float(x.elements) if floats else 0.0, x.bytes, x.elements * width)
    everything = call.operator in (*_SUMS, "aten::mean") and len(call.arguments) == 2
    axes = None if everything else call.get(2 if "norm" in call.operator else 1)
    count = len(x.shape)
    given = axes if isinstance(axes, tuple) else (axes,)
    gone = {
        int(axis) % count
        for axis in given
        if axis is not True and axis is not False and isinstance(axis, int | float) and count
    }
    out = math.prod(size for axis, size in enumerate(x.shape) if gone and axis not in gone)
    out = out if gone else 1
    width = 8 if "arg" in call.operator or (call.operator in _SUMS and not floats) else x.width
    if call.operator in ("aten::any", "aten::all"):
        width = 1
    elif call.operator in (*_SUMS, "aten::mean"):
        width = width_asked(call, 1 if everything else 3, width)
    elif call.operator in ("aten::max", "aten::min") and gone:
        width += 8  # and its place
    elif call.operator in _PAIRS:
        width *= 2
    return CallWork(float(x.elements) if floats else 0.0, x.bytes, out * width)


@new_result
def top_values(call: OperatorCall) -> float:
    """As many values, with their places, as a number says, along an axis."""
    x, axis = call.tensor(0), call.number(2, -1)
    along = x.shape[int(axis)] if -len(x.shape) <= axis < len(x.shape) else 1
    return x.elements / max(1, along) * call.number(1) * (x.width + 8)


@new_result
def sorted_values(call: OperatorCall) -> float:
    """All values, with their places."""
    return call.tensor(0).elements * (call.tensor(0).width + 8)


@cost
def dequantize(call: OperatorCall) -> CallWork:
    """2 an element of the result; packed numbers, scales, zero points and result once.

    ``(numbers of four bits, scales, …)`` into numbers of the type of the scales, or of one
    that is asked for.
    """
    packed, scales = call.tensor(0), call.tensor(1)
    width = scales.width if "awq" in call.operator else NUMBERED.get(int(call.number(5)), 0)
    out = packed.stored * 2
    return CallWork(2.0 * out, packed.bytes + scales.bytes + call.bytes_at(2), out * width)
