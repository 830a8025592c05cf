"""Work of operators that read and write elements: elementwise, copies, gathers, caches, compiled
kernels.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from llmprof.names.dtypes import type_format
from llmprof.theory.calls.call import CallTensor, NoWorkError, OperatorCall, widest
from llmprof.theory.calls.work import CallWork, OperatorKind

_COMPARES: Final = tuple(
    f"aten::{name}"
    for name in (
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "logical_not",
        "logical_and",
        "logical_or",
        "logical_xor",
        "isnan",
        "isinf",
        "isposinf",
        "isneginf",
        "isfinite",
        "signbit",
    )
)


_OF_ONE: Final = re.compile(
    r"aten::(?:nan_to_num|sqrt|rsqrt|square|neg|abs|expm?\d?|log\w{0,2}|a?(?:sin|cos|tan)h?|reciprocal|\w+_not|erf\w{0,3}|"
    r"floor|ceil|round|trunc|frac|sign|sgn|signbit|lgamma|digamma|silu|gelu|relu|sigmoid|hardswish|hardsigmoid|mish)"
)
"""Functions of one tensor: another one of its shape is where the result goes."""


_DIVIDES: Final = re.compile(
    r"aten::(?:div|r?sqrt|expm?\d?|log\w{0,2}|a?(?:sin|cos|tan)h?|reciprocal|sigmoid|erf\w{0,3}|lgamma|digamma)"
)
"""Functions whose results of whole numbers are of 32 bits; a rounding is another argument of a
division.
"""


def _broadcast(shapes: list[tuple[int, ...]]) -> tuple[int, ...]:
    """Shape of an elementwise result."""
    turned = itertools.zip_longest(*(shape[::-1] for shape in shapes), fillvalue=1)
    sizes = [next((size for size in axis if size != 1), 1) for axis in turned]
    if any(
        size not in (1, whole)
        for shape in shapes
        for size, whole in zip(shape[::-1], sizes, strict=False)
    ):
        raise NoWorkError(
            f"the shapes {', '.join(str(list(shape)) for shape in shapes)} do not broadcast"
        )
    return tuple(sizes[::-1])


_OF_THREE: Final = frozenset(
    f"aten::{name}" for name in ("where", "lerp", "addcmul", "addcdiv", "clamp")
)
"""Functions that take three tensors."""


def _inputs(call: OperatorCall) -> list[CallTensor]:
    """Tensors that a function reads: one after two arguments is where the result of a function
    of two goes.
    """
    if not any(
        isinstance(each, tuple) or (isinstance(each, CallTensor) and each.shape)
        for each in call.arguments
    ):
        scalars = [
            each for each in call.arguments if isinstance(each, CallTensor)
        ]  # tensors without axes: an element each
        return scalars or call.tensors()
    third = call.optional(2) or call.optional(3)
    if third is None or call.operator.removesuffix("_") in _OF_THREE or call.optional(0) is None:
        found = call.tensors()
        return [
            each for each in found if each.shape != (0,)
        ] or found  # a result that is not yet of its size
    given = [each for place in range(2) if (each := call.optional(place)) is not None]
    return given if _broadcast([each.shape for each in given]) == third.shape else call.tensors()


def _elementwise(call: OperatorCall) -> CallWork:
    """One operation for each element of the result; a function such as exp counts as one."""
    inputs = _inputs(call)
    of_one = _OF_ONE.fullmatch(call.operator) or (
        call.operator == "aten::pow" and call.optional(1) is None
    )
    if of_one and len(inputs) == 2 and inputs[1].shape == inputs[0].shape:
        inputs = inputs[:1]
    own = call.operator.endswith("_") and not call.operator.endswith("__")
    shape = call.tensor(0).shape if own else _broadcast([each.shape for each in inputs])
    width = (
        call.tensor(0).width
        if own
        else 1
        if call.operator in _COMPARES
        else widest(_values(call, inputs))[1]
    )
    elements = math.prod(shape)
    floats = any(each.format.startswith(("fp", "bf")) for each in inputs)
    if not (floats or own) and _DIVIDES.fullmatch(call.operator) and len(call.arguments) <= 2:
        floats, width = True, 4
    return CallWork(
        float(elements) if floats else 0.0, sum(each.bytes for each in inputs), elements * width
    )


def _values(call: OperatorCall, inputs: list[CallTensor]) -> list[CallTensor]:
    """The tensors whose types decide that of the result: not the condition of a choice."""
    return [each for each in inputs if each.format != "bool"] or inputs


def movement(
    places: str, flops: float = 0.0, *, of: str = "", unless: int | None = None, assumed: str = ""
) -> Callable[[OperatorCall], CallWork]:
    """Work of operators that move whole arguments: places of those read, then ``>`` and of those
    written.

    The first of either has to be a tensor, the others may be. Operations are those for each element
    of the first one read, or of others (``of``). A tensor at the place ``unless`` holds how many
    rows count, or which.
    """
    reads, writes, counted = (
        [int(place) for place in part.split()] for part in (*places.split(">"), of)
    )

    def work(call: OperatorCall) -> CallWork:
        if unless is not None and isinstance(call.get(unless), CallTensor):
            raise NoWorkError(
                f"how many rows of {call.operator} count is the value of argument {unless}"
            )
        sources, targets = _at(call, reads), _at(call, writes)
        elements = sum(each.elements for each in _at(call, counted or reads[:1]))
        results = sum(each.elements * each.width for each in targets)
        return CallWork(flops * elements, sum(each.bytes for each in sources), results, "", assumed)

    return work


def placed(
    name: str, operators: str, places: str, flops: float, source: str, **more: Any
) -> OperatorKind:
    """A kind of operators of which :func:`movement` is the work."""
    formula = (
        f"{flops:g} an element; inputs and results"
        f" once{more.get('assumed', '') and '; ' + more['assumed']}"
    )
    return OperatorKind(name, operators, movement(places, flops, **more), formula, source)


def _at(call: OperatorCall, places: list[int]) -> list[CallTensor]:
    """The tensors at places, of which the first has to be one."""
    first = [call.tensor(place) for place in places[:1]]
    return first + [each for place in places[1:] if isinstance(each := call.get(place), CallTensor)]


def rounded(
    places: str, flops: float, *, group: int | None = None, halves: bool = False
) -> Callable[[OperatorCall], CallWork]:
    """As :func:`movement`, and a new result of a byte an element with a scale of 32 bits a row, or
    a group of a size.
    """
    rest = movement(places, flops)

    def work(call: OperatorCall) -> CallWork:
        x, found = call.tensor(0), rest(call)
        size = x.shape[-1] // (1 + halves) if group is None else call.number(group)
        out = x.elements // (1 + halves)
        return replace(found, written=found.written + out + 4 * out / max(1, size))

    return work


def _dropout(call: OperatorCall) -> CallWork:
    """The result, and a mask with a byte for each element."""
    x = call.tensor(0)
    return CallWork(float(x.elements), x.bytes, x.elements * (x.width + 1))


def _halved(call: OperatorCall) -> CallWork:
    """One half times the sigmoid, or another function, of the other half: two operations an
    element of the result.
    """
    x = call.tensor(0)
    return CallWork(float(x.elements), x.bytes, x.elements // 2 * x.width)


_OF_LIST: Final = re.compile(
    r"(Copy)?Functor<(float|double|int|long|c10::BFloat16|c10::Half)\b(?:, ([\w:]+))?"
)
"""Types of elements in the name of a kernel of lists of tensors: of the result, and for a copy
of the source.
"""


def _lists(call: OperatorCall) -> tuple[list[tuple[int, float]], str]:
    """Elements and bytes of an element of each list of tensors, and what was assumed."""
    given = (
        [each for each in part if isinstance(each, CallTensor)]
        for part in call.arguments
        if isinstance(part, tuple)
    )
    lists = [(sum(each.elements for each in part), part[0].width) for part in given if part]
    if not lists:
        raise NoWorkError("the shapes of the tensors in a list are not recorded")
    if all(width for _, width in lists):
        return lists, ""
    named = _OF_LIST.search(call.kernel)
    if named is None:
        raise NoWorkError("types of the tensors in a list are not recorded")
    width = type_format(named[2])[1]
    source = type_format(named[3] or "")[1] if named[1] else width
    widths = [width, *[source] * (len(lists) - 1)]
    return [
        (size, each) for (size, _), each in zip(lists, widths, strict=True)
    ], "types from the kernel's name"


def _foreach(call: OperatorCall) -> CallWork:
    """One operation for each element of the lists, into the first one or one like it; a norm is
    a number a tensor.
    """
    (first, *others), assumed = _lists(call)
    name = call.operator.removeprefix("aten::_foreach_").rstrip("_")
    sources = [] if name == "zero" else others if name == "copy" else [first, *others]
    written = float(first[0]) if name not in _REDUCED else len(call.arguments[0])  # type: ignore[arg-type]
    read = sum(size * width for size, width in sources)
    return CallWork(
        0.0 if name in ("copy", "zero") else float(first[0]), read, written * first[1], "", assumed
    )


def _optimizer(call: OperatorCall) -> CallWork:
    """``(weights, gradients, states …, steps)``: all but the steps are read; weights and states
    are written.
    """
    lists, assumed = _lists(call)
    bytes_ = [size * width for size, width in (lists if "sgd" in call.operator else lists[:-1])]
    return CallWork(None, sum(bytes_), sum(bytes_) - bytes_[1], "", assumed)


def _arange(call: OperatorCall) -> CallWork:
    """``(start, end, step or number of steps, out)``: a number for each step."""
    start, end, step = (call.number(place) for place in range(3))
    if call.operator == "aten::linspace":
        return CallWork(0.0, 0.0, step * call.tensor(3).width)
    if not step:
        raise NoWorkError(f"the step of {call.operator} is 0")
    return CallWork(0.0, 0.0, max(0, math.ceil((end - start) / step)) * call.tensor(3).width)


def _fill(call: OperatorCall) -> CallWork:
    """A number into every element; a random one by the chance of each, if there is a tensor of
    them.
    """
    target, chances = call.tensor(0), call.optional(1)
    return CallWork(0.0, chances.bytes if chances else 0.0, target.elements * target.width)


_WIDTH_IN_NAME: Final = re.compile(r"OpaqueType<(?:\(unsigned int\)|\(unsigned\))?(\d+)u?>")


def _cat(call: OperatorCall) -> CallWork:
    """Tensors one after another; profilers do not write their types, but the kernel's name has
    their width.
    """
    parts = [each for each in call.tensors() if each.elements]
    assumed = ""
    if any(not each.width for each in parts):
        named = _WIDTH_IN_NAME.search(call.kernel)
        if named is None:
            raise NoWorkError("types of the tensors in a list are not recorded")
        parts = [CallTensor(each.shape, each.format, int(named[1])) for each in parts]
        assumed = "width of an element from the kernel's name"
    read = sum(each.elements * each.width for each in parts)
    formats = {each.format for each in parts}
    width = (
        widest(parts)[1]
        if len(formats) > 1 and all(formats)
        else max((each.width for each in parts), default=0)
    )
    return CallWork(0.0, read, sum(each.elements for each in parts) * width, "", assumed)


def _chunk_cat(call: OperatorCall) -> CallWork:
    """``(tensors, axis, chunks, result)``: pieces of all tensors one after the other, with room
    that fills chunks.
    """
    out, read = call.tensor(3), sum(each.elements for each in call.tensors()[:-1])
    return CallWork(
        0.0, read * out.width, out.elements * out.width, "", "inputs of the type of the result"
    )


def _gather(call: OperatorCall) -> CallWork:
    """Elements of a tensor by an index for each (aten::gather), or rows by an index."""
    source = call.tensor(0)
    place = 1 if call.operator == "aten::embedding" else 2
    index = call.get(place)
    if not isinstance(index, CallTensor):
        raise NoWorkError("the index was not recorded as a tensor")
    if call.operator == "aten::gather":
        elements = index.elements
    else:
        elements = _named(call, index, 0 if place == 1 else None)
    moved = elements * source.width
    return CallWork(0.0, min(moved, source.bytes) + index.bytes, moved)


def _named(call: OperatorCall, index: CallTensor, axis: int | None = None) -> int:
    """Elements of the first argument that an index of one axis names, by default of the second
    argument's.
    """
    shape = call.tensor(0).shape
    axis = int(call.number(1, 0 if len(shape) == 1 else None)) if axis is None else axis
    if not -len(shape) <= axis < len(shape):
        raise NoWorkError(f"there is no axis {axis} of {list(shape)}")
    return index.elements * math.prod(shape) // max(1, shape[axis])


_DISTINCT: Final = "each index names another place"


def _scatter(call: OperatorCall) -> CallWork:
    """``(target, axis, index, source or number)``: an index for each element, or for each row of
    the axis.
    """
    target, index, source = call.tensor(0), call.tensor(2), call.optional(3)
    elements = index.elements
    if "index_" in call.operator:
        elements = source.elements if source else _named(call, index)
    adds = "_add" in call.operator or "_reduce" in call.operator
    changed = elements * target.width
    read = index.bytes + (elements * source.width if source else 0) + (changed if adds else 0)
    return CallWork(float(elements) if adds else 0.0, read, changed, "", _DISTINCT)


def _embedding_backward(call: OperatorCall) -> CallWork:
    """``(gradient, index, rows of the table)``: the gradient is added to the rows that are
    named.
    """
    grad, index = call.tensor(0), call.tensor(1)
    rows = min(index.elements, call.number(2, index.elements))
    written = rows * (grad.shape[-1] if grad.shape else 1) * grad.width
    return CallWork(float(grad.elements), grad.bytes + index.bytes, written, "", _DISTINCT)


def _bags(call: OperatorCall) -> CallWork:
    """``(table, index, offsets, …)``: the sum of the rows of each bag."""
    table, index, offsets = call.tensor(0, 2), call.tensor(1), call.tensor(2)
    summed, size = index.elements * table.shape[1], table.shape[1] * table.width
    count = offsets.elements - (call.get(7) is True)
    read = min(summed * table.width, table.bytes) + index.bytes + offsets.bytes
    return CallWork(float(summed), read, count * size)


def _indexed(call: OperatorCall) -> CallWork:
    """``source[indices]``, with an index for each of the first axes; other axes whole.

    Types in a list are not recorded: an index that could be a mask, of which the number of results
    depends on its values, has no work.
    """
    source, given = call.tensor(0), call.get(1)
    lists = (
        tuple(each for each in given if isinstance(each, CallTensor))
        if isinstance(given, tuple)
        else ()
    )
    if not lists and len(call.inside) == 1 and "vectorized_gather" in call.kernel:
        # the kernel takes whole rows by one index, whose shape is changed inside of the call
        index = call.inside[0].tensor(0)
        moved = index.elements * math.prod(source.shape[1:]) * source.width
        assumed = (
            "one index of the first axis by the kernel's name, as long as in the first of these"
            " calls"
        )
        return CallWork(
            0.0, min(moved, source.bytes) + index.bytes, moved, "", assumed, "shapes inside"
        )
    if not lists or any(not each.shape for each in lists):
        raise NoWorkError("the indices are a list of tensors whose shapes were not all recorded")
    if len(lists) > len(source.shape) or any(each.format in ("bool", "uint8") for each in lists):
        raise NoWorkError("an index is a mask, whose values say how many elements it names")
    if any(
        not each.format and each.shape == source.shape[at : at + len(each.shape)]
        for at, each in enumerate(lists)
    ):
        raise NoWorkError("an index may be a mask, whose values say how many elements it names")
    named = math.prod(_broadcast([each.shape for each in lists]))
    moved = named * math.prod(source.shape[len(lists) :]) * source.width
    places = sum(each.elements * (each.width or _INDEX) for each in lists)
    assumed = (
        ""
        if all(each.width for each in lists)
        else "indices of 8 bytes, one for each of the first axes"
    )
    return CallWork(0.0, min(moved, source.bytes) + places, moved, "", assumed)


_INDEX: Final = 8
"""Bytes of torch's usual index."""


def _put(call: OperatorCall) -> CallWork:
    """Values into places of the first argument; of the places a recording has neither number nor
    type.
    """
    target, values = call.tensor(0), call.tensor(2)
    accumulates = call.get(3) in (True, 1)
    moved = values.elements * target.width
    read = values.bytes + (moved if accumulates else 0)
    return CallWork(
        float(values.elements) if accumulates else 0.0, read, moved, "", "places left out"
    )


def _rope(call: OperatorCall) -> CallWork:
    """Rotation of queries and keys in place, with a row of the cache for each position: three
    operations an element.

    The row is as long as the part of a head that is turned.
    """
    positions, query, cache = call.tensor(0), call.tensor(1), call.tensor(4, 2)
    key = call.optional(2)
    part = min(1.0, cache.shape[1] / max(1.0, call.number(3, cache.shape[1])))
    turned = part * (query.bytes + (key.bytes if key else 0))
    rows = min(positions.elements, cache.shape[0]) * cache.shape[1] * cache.width
    elements = part * (query.elements + (key.elements if key else 0))
    return CallWork(3.0 * elements, turned + positions.bytes + rows, turned)


def _norm_rope(call: OperatorCall) -> CallWork:
    """``(q k v of all heads, heads of q, of k, of v, size, …)``: norm and rotation of q and k in
    place.
    """
    x = call.tensor(0)
    heads = [call.number(place) for place in (1, 2, 3)]
    part = sum(heads[:2]) / max(1.0, sum(heads))
    return CallWork(7.0 * part * x.elements, part * x.bytes, part * x.bytes)


def _latent_rope(call: OperatorCall) -> CallWork:
    """``(q, q to turn, latents, keys to turn, cache, result for q)``: rotation, and the joined q
    and keys in place.
    """
    parts, cache, out = [call.tensor(place) for place in range(4)], call.tensor(4), call.tensor(0)
    given = call.optional(5)
    if given is not None and given.elements == parts[0].elements + parts[1].elements:
        out = given
    query, key = (sum(each.elements for each in pair) for pair in (parts[:2], parts[2:]))
    turned = parts[1].elements + parts[3].elements
    return CallWork(
        3.0 * turned, sum(each.bytes for each in parts), query * out.width + key * cache.width
    )


def _cache_write(call: OperatorCall) -> CallWork:
    """New keys and values into their slots of the cache."""
    key, value, cache = (call.tensor(place) for place in range(3))
    slots = call.tensor(6 if "quant" in call.operator else 4)  # after scales
    elements = key.elements + value.elements
    return CallWork(0.0, key.bytes + value.bytes + slots.bytes, elements * cache.width)


def _latent_write(call: OperatorCall) -> CallWork:
    """Latents and turned keys of new tokens, one after the other, into a slot of the cache each."""
    latent, turned, cache, slots = (
        call.tensor(0, 2),
        call.tensor(1),
        call.tensor(2, 3),
        call.tensor(3, 1),
    )
    read = slots.elements * (
        latent.shape[1] * latent.width + turned.shape[-1] * turned.width + slots.width
    )
    return CallWork(0.0, read, slots.elements * cache.shape[2] * cache.width)


def _index_write(call: OperatorCall) -> CallWork:
    """Keys of an indexer, rounded, with their scales into a slot of the cache each."""
    key, cache, slots = call.tensor(0, 2), call.tensor(1, 3), call.tensor(2, 1)
    tokens, size = slots.elements, key.shape[1]
    return CallWork(
        2.0 * tokens * size,
        tokens * (size * key.width + slots.width),
        tokens * cache.shape[2] * cache.width,
    )


def _four_bits(call: OperatorCall) -> CallWork:
    """``(input, scale, …)``, or the result and then the input; rows that fill the layout of the
    scales are left out.
    """
    source = call.tensor(1 if len(call.tensor(1).shape) > 1 else 0)
    return CallWork(
        2.0 * source.elements, source.bytes, source.elements / 2 + source.elements / _BLOCK
    )


_BLOCK: Final = 16
"""Elements of four bits with a scale of a byte."""


def _row_bytes(call: OperatorCall) -> CallWork:
    """FBGEMM's numbers of a byte, with eight bytes for the scale of each row, from floats or
    back.
    """
    x = call.tensor(0)
    scales = (
        0 if "HFP8" in call.operator else 8 * x.elements // max(1, x.shape[-1] if x.shape else 1)
    )
    return CallWork(
        float(x.elements),
        x.bytes,
        (x.elements - scales) * 4 if "ToFloat" in call.operator else x.elements + scales,
    )


def _compiled(call: OperatorCall) -> CallWork:
    """A kernel of torch.compile: each of its tensors moves once, the last one is the result.

    A tensor with more elements than the kernel's sizes has room for is an indexed table, of which
    one element for each place is read. A pointwise kernel writes an element for each place: where
    the last tensor is smaller, the first with as many is read and written in place.
    """
    tensors = call.tensors()
    numbers = [
        each
        for each in call.arguments
        if isinstance(each, int | float) and not isinstance(each, bool) and each > 1
    ]
    most = (
        math.prod(int(each) for each in numbers)
        if numbers
        else max(each.elements for each in tensors[-1:])
    )
    moved = [min(each.elements, most) * each.width for each in tensors]
    whole = [tensor for tensor in tensors if tensor.elements == most]
    if call.operator.startswith("triton_poi_") and whole and tensors[-1].elements < most:
        assumed = f"each tensor moves once, and the one of {most:,} elements also holds the result"
        return CallWork(None, sum(moved), most * whole[0].width, "", assumed)
    assumed = "each tensor moves once, and the last one is the result"
    return CallWork(None, sum(moved[:-1]), moved[-1], "", assumed)


_BY_ELEMENT: Final = (
    "add sub rsub mul div pow sqrt rsqrt square neg abs exp exp2 expm1 log log2 log1p sin cos"
    " reciprocal clamp clamp_min clamp_max maximum minimum where masked_fill eq ne lt le gt ge"
    " bitwise_not bitwise_and bitwise_or logical_not logical_and logical_or floor_divide remainder"
    " fmod addcmul addcdiv lerp triu tril erf floor ceil round trunc sign isnan isinf isfinite silu"
    " gelu relu sigmoid tanh hardswish hardsigmoid hardtanh mish leaky_relu softplus elu"
    " silu_backward gelu_backward sigmoid_backward tanh_backward threshold_backward bitwise_xor"
    " dropout _conj_physical nan_to_num tan asin acos atan sinh cosh asinh acosh atanh erfc erfinv"
    " lgamma digamma log10 logit sgn frac signbit isposinf isneginf logical_xor fmax fmin atan2"
    " hypot copysign logaddexp logaddexp2 xlogy threshold log_sigmoid_forward _prelu_kernel"
    " bitwise_left_shift bitwise_right_shift hardswish_backward hardsigmoid_backward"
    " hardtanh_backward leaky_relu_backward elu_backward mish_backward softplus_backward"
    " logit_backward log_sigmoid_backward heaviside sinc hardshrink softshrink hardshrink_backward"
    " softshrink_backward gcd lcm"
)
_REDUCED: Final = ("norm", "max")
_ROPES: Final = (
    ("cached_positions_2c_fwd cached_positions_offsets_2c_fwd", "2 3 6 7 > 0 1", "2 3"),
    ("cached_positions_fwd cached_positions_offsets_fwd", "1 4 5 > 0", "1"),
    ("fwd bwd", "1 2 > 0", "1"),
    ("cached_fwd cached_bwd", "1 2 3 > 0", "1"),
    ("2c_fwd 2c_bwd", "2 3 4 > 0 1", "2 3"),
    ("cached_2c_fwd cached_2c_bwd", "2 3 4 5 > 0 1", "2 3"),
    ("thd_fwd thd_bwd 2d_fwd 2d_bwd", "1 > 0", "1"),
)
"""Middles of the names of aiter's rotations, with places of inputs and results, and of those
that are turned.
"""

_ONCE: Final = "each input and the result once, a broadcast input with its own size"

KINDS: Final = [
    OperatorKind(
        "elementwise",
        " ".join(f"aten::{name} aten::{name}_" for name in _BY_ELEMENT.split())
        + " aten::__lshift__ aten::__rshift__ aten::__ilshift__ aten::__irshift__",
        _elementwise,
        f"1 an element of the result, where numbers are floats; {_ONCE}",
        "their definition",
    ),
    OperatorKind(
        "activation",
        "_C::silu_and_mul _C::mul_and_silu _C::gelu_and_mul _C::gelu_tanh_and_mul"
        " _C::swigluoai_and_mul sgl_kernel::silu_and_mul sgl_kernel::gelu_and_mul"
        " sgl_kernel::gelu_tanh_and_mul _C::fatrelu_and_mul aiter::silu_and_mul"
        " aiter::scaled_silu_and_mul aiter::gelu_and_mul aiter::gelu_tanh_and_mul",
        movement("1 > 0", 2, of="0"),
        "2 an element of the result; input and result once",
        "vllm/csrc/activation_kernels.cu",
    ),
    placed(
        "activation",
        "_C::gelu_new _C::gelu_fast _C::gelu_quick _C::gelu_tanh sgl_kernel::gelu_quick "
        "aiter::gelu_fast",
        "1 > 0",
        1,
        "vllm/csrc/activation_kernels.cu",
    ),
    OperatorKind(
        "activation",
        "trtllm::flashinfer_silu_and_mul trtllm::flashinfer_gelu_tanh_and_mul",
        _halved,
        "2 an element of the result; input and result once",
        "tensorrt_llm/_torch/custom_ops",
    ),
    placed(
        "activation", "LigerSiLUMulFunction LigerGELUMulFunction", "0 1 > 0", 2, "Liger-Kernel/ops"
    ),
    placed(
        "activation",
        "_C::silu_and_mul_quant _C::silu_and_mul_per_block_quant",
        "1 > 0 2",
        4,
        "vllm/csrc/quantization",
        of="0",
    ),
    placed(
        "activation", "_C::silu_and_mul_nvfp4_quant", "2 3 > 0 1", 2, "vllm/csrc/quantization/fp4"
    ),
    OperatorKind(
        "activation",
        "vllm::rocm_aiter_act_mul_and_fp8_group_quant",
        rounded("0 >", 2, group=1, halves=True),
        "2 an element; input, result and scales once",
        "vllm/_aiter_ops.py",
    ),
    OperatorKind(
        "copy", "aten::copy_", movement("1 > 0"), "0; source and target once", "their definition"
    ),
    OperatorKind(
        "copy",
        "_C_custom_ar::all_reduce",
        movement("1 > 1"),
        "0; the input once, and once the buffer that all ranks see (its reduction is a row apart)",
        "vllm/csrc/custom_all_reduce.cu",
    ),
    OperatorKind(
        "copy",
        "aten::_local_scalar_dense",
        movement("0 > 0"),
        "0; an element read and written",
        "its definition",
    ),
    placed("copy", "aten::split_with_sizes_copy", "0 > 0", 0, "its definition"),
    OperatorKind(
        "copy", "aten::_chunk_cat", _chunk_cat, "0; inputs and result once", "its definition"
    ),
    OperatorKind(
        "fill", "aten::arange aten::linspace", _arange, "0; the result once", "its definition"
    ),
    OperatorKind(
        "copy",
        "aten::clone aten::contiguous aten::_to_copy aten::flip aten::roll",
        movement("0 > 0"),
        "0; source and result once, of one type",
        "their definition",
    ),
    OperatorKind(
        "copy",
        "aten::cat aten::stack aten::_cat",
        _cat,
        "0; inputs and result once",
        "their definition",
    ),
    OperatorKind(
        "fill",
        "aten::fill_ aten::zero_ aten::normal_ aten::uniform_ aten::random_ aten::bernoulli_ "
        "aten::exponential_ aten::geometric_ aten::cauchy_ aten::log_normal_",
        _fill,
        "0; the target once",
        "their definition",
    ),
    OperatorKind(
        "elementwise",
        "aten::native_dropout aten::_fused_dropout aten::fake_quantize_per_tensor_affine_cachemask"
        " aten::fake_quantize_per_channel_affine_cachemask",
        _dropout,
        "1 an element; input, result and a mask of bytes once",
        "their definition",
    ),
    placed(
        "elementwise",
        "aten::native_dropout_backward aten::_masked_scale",
        "0 1 > 0",
        1,
        "their definition",
    ),
    OperatorKind(
        "elementwise",
        "aten::glu",
        _halved,
        "2 an element of the result; input and result once",
        "its definition",
    ),
    placed("elementwise", "aten::glu_backward", "0 1 > 1", 4, "its definition"),
    OperatorKind(
        "foreach",
        "aten::_foreach_*",
        _foreach,
        "1 an element (copies: 0); each list and the result once, in place read and written",
        "their definition",
    ),
    placed("elementwise", "aten::polar aten::complex", "0 1 > 0 1", 1, "their definition"),
    placed("elementwise", "aten::_amp_update_scale_", "0 1 2 > 0 1", 1, "its definition"),
    OperatorKind(
        "foreach",
        "aten::_amp_foreach_non_finite_check_and_unscale_",
        _foreach,
        "1 an element; the list twice",
        "its definition",
    ),
    OperatorKind(
        "optimizer",
        "aten::_fused_adam_ aten::_fused_adamw_ aten::_fused_adagrad_ aten::_fused_sgd_",
        _optimizer,
        "not known; weights, gradients and states read, weights and states written",
        "their definition",
    ),
    OperatorKind(
        "gather",
        "aten::embedding aten::index_select aten::gather",
        _gather,
        "0; indices, the elements that they name (at most the whole source) and the result once",
        "their definition",
    ),
    OperatorKind(
        "gather",
        "aten::index",
        _indexed,
        "0; indices, the elements that they name (at most the whole source) and the result once",
        "their definition",
        inside="aten::reshape",
    ),
    OperatorKind(
        "rope",
        "_C::rotary_embedding _C::batched_rotary_embedding sgl_kernel::rotary_embedding "
        "vllm::flashinfer_rotary_embedding vllm::rocm_aiter_triton_rotary_embedding "
        "trtllm::flashinfer_apply_rope_with_cos_sin_cache_inplace",
        _rope,
        "3 an element; positions and rows of the cache once, queries and keys twice (in place)",
        "vllm/csrc/pos_encoding_kernels.cu",
    ),
    placed(
        "rope",
        "sgl_kernel::apply_rope_pos_ids_cos_sin_cache flashinfer::apply_rope_pos_ids_cos_sin_cache",
        "0 1 5 > 2 3",
        3,
        "flashinfer/rope.py",
        of="0 1",
        assumed="the table left out",
    ),
    placed("rope", "LigerRopeFunction", "0 1 2 3 > 0 1", 3, "Liger-Kernel/ops", of="0 1"),
    *(
        placed(
            "rope",
            " ".join(f"aiter::rope_{name}_impl" for name in names.split()),
            places,
            3,
            "aiter/ops/rope.py",
            of=of,
        )
        for names, places, of in _ROPES
    ),
    OperatorKind(
        "rope",
        "_C::fused_qk_norm_rope sgl_kernel::fused_qk_norm_rope",
        _norm_rope,
        "7 an element of queries and keys; these twice (in place)",
        "vllm/csrc/fused_qknorm_rope_kernel.cu",
    ),
    OperatorKind(
        "rope",
        "aiter::fused_qk_rope_cat_and_cache_mla aiter::fused_qk_rope_concat_and_cache_mla",
        _latent_rope,
        "3 a turned element; inputs, joined queries and as many slots of the cache once",
        "aiter/ops/triton/fusions",
    ),
    OperatorKind(
        "kv_cache_write",
        "_C_cache_ops::reshape_and_cache_flash _C_cache_ops::reshape_and_cache sglang::store_cache"
        " aiter::reshape_and_cache aiter::reshape_and_cache_flash"
        " aiter::reshape_and_cache_with_pertoken_quant",
        _cache_write,
        "0; keys, values, slots and as many slots of the cache once",
        "vllm/csrc/cache_kernels.cu",
    ),
    OperatorKind(
        "kv_cache_write",
        "_C_cache_ops::concat_and_cache_mla aiter::concat_and_cache_mla",
        _latent_write,
        "0; latents, turned keys and slots of the tokens, and as many slots of the cache once",
        "vllm/csrc/cache_kernels.cu",
    ),
    OperatorKind(
        "kv_cache_write",
        "_C_cache_ops::indexer_k_quant_and_cache",
        _index_write,
        "2 an element; keys and slots of the tokens, and as many slots of the cache once",
        "vllm/csrc/cache_kernels.cu",
    ),
    placed(
        "kv_cache_write",
        "vllm::unified_kv_cache_update",
        "0 1 > 0 1",
        0,
        "vllm/model_executor/layers/attention",
        assumed="a cache of the type of the keys",
    ),
    placed(
        "kv_cache_write", "sgl_kernel::store_kv_cache", "3 4 2 > 3 4", 0, "sgl-kernel/csrc/memory"
    ),
    placed(
        "copy",
        "_C_cache_ops::concat_mla_q sgl_kernel::concat_mla_absorb_q",
        "0 1 > 2",
        0,
        "vllm/csrc/cache_kernels.cu",
    ),
    placed("copy", "sgl_kernel::concat_mla_k", "1 2 > 0", 0, "sgl-kernel/csrc/elementwise"),
    placed("quantize", "_C_cache_ops::convert_fp8", "1 > 0", 1, "vllm/csrc/cache_kernels.cu"),
    OperatorKind(
        "quantize",
        "_C::static_scaled_fp8_quant _C::dynamic_scaled_fp8_quant"
        " _C::dynamic_per_token_scaled_fp8_quant _C::static_scaled_int8_quant"
        " _C::dynamic_scaled_int8_quant",
        movement("1 > 0", 2),
        "2 an element; input and result once",
        "vllm/csrc/quantization",
    ),
    OperatorKind(
        "quantize",
        "_C::per_token_group_fp8_quant _C::per_token_group_quant_int8 "
        "_C::per_token_group_fp8_quant_packed sgl_kernel::sgl_per_token_group_quant_fp8 "
        "sgl_kernel::sgl_per_token_group_quant_int8 sgl_kernel::sgl_per_token_group_quant_8bit "
        "sgl_kernel::sgl_per_tensor_quant_fp8 sgl_kernel::sgl_per_token_quant_fp8",
        movement("0 > 1 2", 2),
        "2 an element; input, result and scales once",
        "vllm/csrc/quantization",
    ),
    placed(
        "quantize",
        "sgl_kernel::sgl_per_token_group_quant_8bit_v2",
        "0 > 1 2",
        2,
        "sgl-kernel/csrc/gemm",
        unless=9,
    ),
    placed(
        "quantize",
        "aiter::dynamic_per_tensor_quant aiter::dynamic_per_token_scaled_quant"
        " aiter::static_per_tensor_quant vllm::rocm_aiter_per_tensor_quant"
        " aiter::dynamic_per_group_scaled_quant aiter::dynamic_per_group_scaled_quant_fp4",
        "1 > 0 2",
        2,
        "aiter/ops/quant.py",
        unless=5,
    ),
    placed(
        "quantize",
        "aiter::fused_dynamic_mx_quant_moe_sort_hip aiter::fused_dynamic_mxfp4_quant_moe_sort_hip",
        "2 > 0",
        2,
        "aiter/ops/quant.py",
        assumed="scales left out",
    ),
    OperatorKind(
        "quantize",
        "_C::scaled_fp4_quant sgl_kernel::scaled_fp4_quant",
        _four_bits,
        "2 an element; input, result and scales once",
        "vllm/csrc/quantization/fp4",
    ),
    OperatorKind(
        "quantize",
        "vllm::rocm_aiter_group_fp8_quant vllm::triton_per_token_group_quant_fp8",
        rounded("0 >", 2, group=1),
        "2 an element; input, result and scales once",
        "vllm/_aiter_ops.py",
    ),
    OperatorKind(
        "quantize",
        "vllm::rocm_aiter_per_token_quant",
        rounded("0 >", 2),
        "2 an element; input, result and scales once",
        "vllm/_aiter_ops.py",
    ),
    OperatorKind(
        "quantize",
        "fbgemm::FloatToFP8RowwiseQuantized fbgemm::FP8RowwiseQuantizedToFloat "
        "fbgemm::FloatToHFP8Quantized fbgemm::HFP8QuantizedToFloat",
        _row_bytes,
        "1 an element; input and result once, with 8 bytes a row of FP8",
        "fbgemm_gpu/src/quantize_ops",
    ),
    placed(
        "copy",
        "fbgemm::permute_pooled_embs fbgemm::permute_pooled_embs_auto_grad "
        "fbgemm::recat_embedding_grad_output_mixed_D_batch "
        "torch::autograd::CppNode<fbgemm_gpu::PermutePooledEmbsFunction*",
        "0 > 0",
        0,
        "fbgemm_gpu/src",
    ),
    placed(
        "reduction",
        "fbgemm::asynchronous_complete_cumsum fb::asynchronous_complete_cumsum",
        "0 > 0",
        0,
        "fbgemm_gpu/src/sparse_ops",
    ),
    placed("search", "fbgemm::bounds_check_indices", "0 1 2 >", 0, "fbgemm_gpu/codegen"),
    placed(
        "gather",
        "fbgemm::permute_2D_sparse_data fbgemm::permute_sparse_features",
        "0 1 2 3 > 1 2 3",
        0,
        "fbgemm_gpu/src/sparse_ops",
        assumed="each row taken once",
    ),
    OperatorKind(
        "scatter",
        "aten::scatter aten::scatter_ aten::scatter_add aten::scatter_add_ aten::scatter_reduce "
        "aten::scatter_reduce_ aten::index_add aten::index_add_ aten::index_copy aten::index_copy_ "
        "aten::index_fill_ aten::index_reduce_",
        _scatter,
        "0, or 1 a value that is added; index, values and as many elements of the target once, read"
        " if added to",
        "their definition",
    ),
    OperatorKind(
        "embedding backward",
        "aten::embedding_dense_backward",
        _embedding_backward,
        "1 an element of the gradient; gradient, index and as many rows of the result once",
        "its definition",
    ),
    OperatorKind(
        "gather",
        "aten::_embedding_bag aten::_embedding_bag_forward_only",
        _bags,
        "1 an element that is added; index, offsets, the rows that they name (at most the whole"
        " table) and the result once",
        "their definition",
    ),
    placed(
        "gather",
        "aten::masked_select aten::nonzero aten::bincount",
        "0 1 > ",
        0,
        "their definition",
        assumed="results left out",
    ),
    OperatorKind(
        "scatter",
        "aten::_index_put_impl_ aten::index_put_",
        _put,
        "0, or 1 a value that is added; values and as many elements of the target once",
        "their definition",
    ),
    OperatorKind(
        "compiled",
        "triton_poi_* triton_red_* triton_per_*",
        _compiled,
        "not known; each tensor once, at most as many elements as the kernel has places",
        "torch/_inductor/codegen/triton.py",
    ),
]
