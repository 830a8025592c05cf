"""Work of operators that read and write elements: elementwise, copies, gathers, caches, compiled
kernels.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from typing import Any, Final

from llmprof.names.dtypes import NUMBERED, type_format
from llmprof.theory.calls.call import CallTensor, NoWorkError, OperatorCall, widest
from llmprof.theory.calls.work import RESULTS, CallWork, cost, new_result

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


@cost
def elementwise(call: OperatorCall) -> CallWork:
    """1 an element of the result, where numbers are floats; each input and the result once, a
    broadcast input with its own size.

    One operation for each element of the result; a function such as exp counts as one.
    """
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


"""Bytes of a result that is not among the arguments."""


@cost
def moves(
    call: OperatorCall,
    places: str,
    flops: float = 0.0,
    *,
    of: str = "",
    per: int | None = None,
    matrix: int | None = None,
    unless: int | None = None,
    assumed: str = "",
    new: Sequence[Any] = (),
) -> CallWork:
    """So many operations an element; inputs and results once.

    Places of the arguments read, then ``>`` and of those written. The first of either and those
    marked by ``!`` have to be tensors, unless they are marked by ``?``; the others may be.
    Operations are those for each element of the first one read, or of others (``of``), times the
    last size of the argument ``per``. The matrix unit computes in the type of the argument
    ``matrix``. A tensor at the place ``unless`` holds how many rows count, or which.
    """
    if unless is not None and isinstance(call.get(unless), CallTensor):
        raise NoWorkError(
            f"how many rows of {call.operator} count is the value of argument {unless}"
        )
    reads, writes = (_at(call, part) for part in places.split(">"))
    elements = sum(each.elements for each in (_at(call, of) if of else reads[:1]))
    work = flops * elements * (1 if per is None else call.tensor(per).shape[-1])
    results = sum(each.stored for each in writes) + (RESULTS[new[0]](call, *new[1:]) if new else 0)
    unit = "" if matrix is None else call.tensor(matrix).format
    return CallWork(work, sum(each.bytes for each in reads), results, unit, assumed)


def _at(call: OperatorCall, places: str) -> list[CallTensor]:
    """The tensors at places, of which the first and those marked by ``!`` have to be tensors, but
    not those marked by ``?``.
    """
    found: list[CallTensor] = []
    for number, place in enumerate(places.split()):
        given = int(place.rstrip("!?"))
        if place.endswith("?"):
            found += filter(None, (call.optional(given),))
        elif not number or place.endswith("!") or isinstance(call.get(given), CallTensor):
            found.append(call.tensor(given))
    return found


@new_result
def mask_of(call: OperatorCall) -> float:
    """A byte for each element of the first argument."""
    return call.tensor(0).elements


@new_result
def half_of(call: OperatorCall) -> float:
    """Half of the elements of the first argument: one half times a function of the other."""
    x = call.tensor(0)
    return x.elements // 2 * x.width


@new_result
def rounded(call: OperatorCall, group: int | None = None, parts: int = 1) -> float:
    """A byte for each element of the first argument, or of a part, with a scale of 32 bits a row,
    or a group of the size at a place.
    """
    x = call.tensor(0)
    size = x.shape[-1] // parts if group is None else call.number(group)
    out = x.elements // parts
    return out + 4 * out / max(1, size)


@new_result
def as_type(call: OperatorCall, place: int) -> float:
    """As many elements as the first argument has, of the type that is asked for at a place."""
    return call.tensor(0).elements * width_asked(call, place, call.tensor(0).width)


def width_asked(call: OperatorCall, place: int, usual: float) -> float:
    """Bytes of an element of the result by the type that is asked for at a place; a usual one if
    none is.
    """
    asked = call.get(place)
    if isinstance(asked, bool):
        return 4 if asked else usual  # half to float
    return NUMBERED.get(int(asked), usual) if isinstance(asked, int | float) else usual


@new_result
def chosen(call: OperatorCall, number: int) -> float:
    """Eight bytes (a weight and a place of 32 bits, or a place of 64) for each of those that a row
    of the first argument chooses, whose number is at a place.
    """
    x = call.tensor(0)
    return (x.elements // max(1, x.shape[-1]) if x.shape else 1) * call.number(number) * 8


@new_result
def slots_of(call: OperatorCall, places: str, cache: int) -> float:
    """As many elements as arguments have, of the type of another one."""
    return sum(each.elements for each in _at(call, places)) * call.tensor(cache).width


@new_result
def mean_of(call: OperatorCall, place: int) -> float:
    """One element, or all if the number at a place asks for no mean."""
    x = call.tensor(0)
    return (x.elements if call.number(place, 1) == 0 else 1) * x.width


@new_result
def indices(call: OperatorCall, values: int) -> float:
    """A place for each value of an argument, of 32 bits if the third argument says so."""
    return call.tensor(values).elements * (4 if call.get(2) is True else 8)


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


@cost
def foreach(call: OperatorCall) -> CallWork:
    """1 an element (copies: 0); each list and the result once, in place read and written.

    One operation for each element of the lists, into the first one or one like it; a norm is
    a number a tensor.
    """
    (first, *others), assumed = _lists(call)
    name = call.operator.removeprefix("aten::_foreach_").rstrip("_")
    sources = [] if name == "zero" else others if name == "copy" else [first, *others]
    written = float(first[0]) if name not in ("norm", "max") else len(call.arguments[0])  # type: ignore[arg-type]
    read = sum(size * width for size, width in sources)
    return CallWork(
        0.0 if name in ("copy", "zero") else float(first[0]), read, written * first[1], "", assumed
    )


@cost
def optimizer_step(call: OperatorCall) -> CallWork:
    """Not known; weights, gradients and states read, weights and states written.

    ``(weights, gradients, states …, steps)``: all but the steps are read; weights and states
    are written.
    """
    lists, assumed = _lists(call)
    bytes_ = [size * width for size, width in (lists if "sgd" in call.operator else lists[:-1])]
    return CallWork(None, sum(bytes_), sum(bytes_) - bytes_[1], "", assumed)


@cost
def arange(call: OperatorCall) -> CallWork:
    """0; the result once.

    ``(start, end, step or number of steps, out)``: a number for each step.
    """
    start, end, step = (call.number(place) for place in range(3))
    if call.operator == "aten::linspace":
        return CallWork(0.0, 0.0, step * call.tensor(3).width)
    if not step:
        raise NoWorkError(f"the step of {call.operator} is 0")
    return CallWork(0.0, 0.0, max(0, math.ceil((end - start) / step)) * call.tensor(3).width)


_WIDTH_IN_NAME: Final = re.compile(r"OpaqueType<(?:\(unsigned int\)|\(unsigned\))?(\d+)u?>")


@cost
def concatenation(call: OperatorCall, out: int | None = None) -> CallWork:
    """0; inputs and result once.

    Tensors one after another; profilers do not write their types, but the kernel's name has their
    width, or the result ``out``, which may have room that fills chunks.
    """
    if out is not None:
        result = call.tensor(out)
        read = sum(each.elements for each in call.tensors()[:-1]) * result.width
        written = result.stored
        return CallWork(0.0, read, written, "", "inputs of the type of the result")
    parts = [each for each in call.tensors() if each.elements]
    assumed = ""
    if any(not each.width for each in parts):
        named = _WIDTH_IN_NAME.search(call.kernel)
        if named is None:
            raise NoWorkError("types of the tensors in a list are not recorded")
        parts = [CallTensor(each.shape, each.format, int(named[1])) for each in parts]
        assumed = "width of an element from the kernel's name"
    read = sum(each.stored for each in parts)
    formats = {each.format for each in parts}
    width = (
        widest(parts)[1]
        if len(formats) > 1 and all(formats)
        else max((each.width for each in parts), default=0)
    )
    return CallWork(0.0, read, sum(each.elements for each in parts) * width, "", assumed)


@cost
def gather(call: OperatorCall) -> CallWork:
    """0; indices, the elements that they name (at most the whole source) and the result once.

    Elements of a tensor by an index for each (aten::gather), or rows by an index.
    """
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


@cost
def scatter(call: OperatorCall, *, lists: bool = False) -> CallWork:
    """0, or 1 a value that is added; index, values and as many elements of the target once, read if
    added to.

    ``(target, axis, index, source or number)``: an index for each element, or for each row of
    the axis; with ``lists`` ``(target, indices, values, whether they are added)``, and of the
    indices a recording has neither number nor type.
    """
    target, source = call.tensor(0), call.tensor(2) if lists else call.optional(3)
    if lists:
        elements, places = call.tensor(2).elements, 0.0
        adds, assumed = call.get(3) in (True, 1), "places left out"
    else:
        index, assumed = call.tensor(2), _DISTINCT
        elements, places = index.elements, index.bytes
        if "index_" in call.operator:
            elements = source.elements if source else _named(call, index)
        adds = "_add" in call.operator or "_reduce" in call.operator
    changed = elements * target.width
    values = elements * source.width if source else 0
    read = places + values + (changed if adds else 0)
    return CallWork(float(elements) if adds else 0.0, read, changed, "", assumed)


@cost
def embedding_backward(call: OperatorCall) -> CallWork:
    """1 an element of the gradient; gradient, index and as many rows of the result once.

    ``(gradient, index, rows of the table)``: the gradient is added to the rows that are
    named.
    """
    grad, index = call.tensor(0), call.tensor(1)
    rows = min(index.elements, call.number(2, index.elements))
    written = rows * (grad.shape[-1] if grad.shape else 1) * grad.width
    return CallWork(float(grad.elements), grad.bytes + index.bytes, written, "", _DISTINCT)


@cost
def embedding_bags(call: OperatorCall) -> CallWork:
    """1 an element that is added; index, offsets, the rows that they name (at most the whole table)
    and the result once.

    ``(table, index, offsets, …)``: the sum of the rows of each bag.
    """
    table, index, offsets = call.tensor(0, 2), call.tensor(1), call.tensor(2)
    summed, size = index.elements * table.shape[1], table.shape[1] * table.width
    count = offsets.elements - (call.get(7) is True)
    read = min(summed * table.width, table.bytes) + index.bytes + offsets.bytes
    return CallWork(float(summed), read, count * size)


@cost
def indexing(call: OperatorCall) -> CallWork:
    """0; indices, the elements that they name (at most the whole source) and the result once.

    ``source[indices]``, with an index for each of the first axes; other axes whole.

    Types in a list are not recorded: an index that could be a mask, of which the number of results
    depends on its values, has no work.
    """
    source, lists = call.tensor(0), call.listed(1)
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


@cost
def rope(call: OperatorCall) -> CallWork:
    """3 an element; positions and rows of the cache once, queries and keys twice (in place).

    Rotation of queries and keys in place, with a row of the cache for each position: three
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


@cost
def norm_rope(call: OperatorCall) -> CallWork:
    """7 an element of queries and keys; these twice (in place).

    ``(q k v of all heads, heads of q, of k, of v, size, …)``: norm and rotation of q and k in
    place.
    """
    x = call.tensor(0)
    heads = [call.number(place) for place in (1, 2, 3)]
    part = sum(heads[:2]) / max(1.0, sum(heads))
    return CallWork(7.0 * part * x.elements, part * x.bytes, part * x.bytes)


@cost
def latent_rope(call: OperatorCall) -> CallWork:
    """3 a turned element; inputs, joined queries and as many slots of the cache once.

    ``(q, q to turn, latents, keys to turn, cache, result for q)``: rotation, and the joined q
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


@cost
def cache_write(
    call: OperatorCall, keys: str, cache: int, slot: int, flops: float = 0.0
) -> CallWork:
    """So many operations an element; rows and slots of the tokens, and as many slots of the cache
    once.

    Rows of keys, one after the other, go into a slot of the cache each; a graph pads the rows.
    """
    kept, tokens = call.tensor(cache, 3), call.tensor(slot, 1)
    given = _at(call, keys)
    row = sum(each.shape[-1] * each.width for each in given)
    return CallWork(
        flops * tokens.elements * given[0].shape[-1],
        tokens.elements * (row + tokens.width),
        tokens.elements * kept.shape[2] * kept.width,
    )


@cost
def four_bits(call: OperatorCall) -> CallWork:
    """2 an element; input, result and scales once.

    ``(input, scale, …)``, or the result and then the input; rows that fill the layout of the
    scales are left out.
    """
    source = call.tensor(1 if len(call.tensor(1).shape) > 1 else 0)
    return CallWork(
        2.0 * source.elements, source.bytes, source.elements / 2 + source.elements / _BLOCK
    )


_BLOCK: Final = 16
"""Elements of four bits with a scale of a byte."""


@cost
def row_bytes(call: OperatorCall) -> CallWork:
    """1 an element; input and result once, with 8 bytes a row of FP8.

    FBGEMM's numbers of a byte, with eight bytes for the scale of each row, from floats or
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


@cost
def compiled_kernel(call: OperatorCall) -> CallWork:
    """Not known; each tensor once, at most as many elements as the kernel has places.

    A kernel of torch.compile: each of its tensors moves once, the last one is the result.

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
