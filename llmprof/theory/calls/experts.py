"""Work of mixtures of experts: routing, and the products of the experts that the tokens choose."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Final

from llmprof.theory.calls.call import (
    ALLOCATION,
    CallArgument,
    CallTensor,
    NoWorkError,
    OperatorCall,
)
from llmprof.theory.calls.products import row_of
from llmprof.theory.calls.work import CallWork, cost
from llmprof.theory.work import distinct_experts


@cost
def expert_sum(call: OperatorCall) -> CallWork:
    """An addition for each part but the first; parts and result once.

    ``(tokens, experts of a token, size)`` into ``(tokens, size)``.
    """
    parts, out = call.tensor(0, 3), call.tensor(1, 2)
    return CallWork(float(parts.elements - out.elements), parts.bytes, out.stored)


_ROUTES: Final = ("_moe_C::topk_softmax", "_moe_C::grouped_topk")
_GATED: Final = (
    "_C::silu_and_mul",
    "_C::gelu_and_mul",
    "_C::gelu_tanh_and_mul",
    "_C::swigluoai_and_mul",
)
_PLAIN: Final = ("aten::relu_", "aten::relu", "aten::square", "_C::relu_squared")
_MXFP4: Final = re.compile(r"(?i)mxfp4|MxE2m1")
_BLOCK_OF_4_BITS: Final = 17 / 32
"""Bytes of a weight of four bits with a scale of eight for each block of 32."""


@cost
def routed_experts(call: OperatorCall) -> CallWork:
    """2 x routed tokens x 3 size x inner size; tokens, activations and the weights of E (1 - (1 -
    k/E)^T) of E experts once.

    Both products of the chosen experts; their sizes are those of the routing and the
    activation inside.
    """
    hidden, logits = call.tensor(0, 2), call.tensor(1, 2)
    tokens, size = hidden.shape
    if logits.shape[0] != tokens or not tokens:
        raise NoWorkError("the routing has other rows than the tokens")
    experts = _experts(call, logits, size)
    if any(
        _is_map(each.get(_MAPS[each.operator]), experts)
        for each in call.inside
        if each.operator in _MAPS
    ):
        raise NoWorkError(SPREAD)
    active = _active(call, tokens, experts)
    inner, columns = _inner(call, tokens * active, size)
    routed = tokens * active
    touched = distinct_experts(experts, active, tokens)
    narrow = _MXFP4.search(call.kernel)
    width = _BLOCK_OF_4_BITS if narrow else hidden.width
    matrix = "fp8" if narrow and "MxE4m3" in call.kernel else hidden.format
    weights = touched * (columns + 1) * inner * size * width
    read = weights + (tokens * size + routed * inner) * hidden.width
    written = routed * (columns * inner + size) * hidden.width
    kind = "4 bits by the kernel's name" if narrow else "the type of the tokens"
    assumed = f"even routing ({touched:.0f} of {experts} experts), weights of {kind}"
    return CallWork(
        2.0 * routed * (columns + 1) * inner * size, read, written, matrix, assumed, "shapes inside"
    )


SPREAD: Final = (
    "its experts are a part of all, and how many tokens chose them was not recorded (expert"
    " parallel)"
)
_MAPS: Final = {"aten::index": 0, "_moe_C::moe_align_block_size": 6, "_moe_C::moe_sum": 3}
"""Calls inside and their argument that says which experts of all are on a rank."""


def _is_map(given: CallArgument, experts: int) -> bool:
    """Whether an argument holds a whole number for each of all experts."""
    return isinstance(given, CallTensor) and given.shape == (experts,) and "int" in given.format


def _experts(call: OperatorCall, logits: CallTensor, size: int) -> int:
    """Number of experts: columns of what routes, which is inside where the second argument is
    the tokens again.
    """
    for each in call.inside:
        if each.operator in _ROUTES:
            return each.tensor(3 if "softmax" in each.operator else 0, 2).shape[1]
    if logits.shape[1] == size:
        raise NoWorkError("the number of experts is recorded neither in the call nor inside of it")
    return logits.shape[1]


def _active(call: OperatorCall, tokens: int, experts: int) -> int:
    """Experts of a token."""
    found: set[int] = set()
    for each in call.inside:
        if each.operator == "_moe_C::topk_softmax":
            found.add(each.tensor(0, 2).shape[1])
        elif each.operator == "_moe_C::moe_sum":
            found.add(each.tensor(0, 3).shape[1])
    found |= {
        n for rows, n in _allocated(call) if rows == tokens and 0 < n < min(experts, _MOST_ACTIVE)
    }
    if len(found) != 1:
        raise NoWorkError(
            "the sizes of the experts are recorded neither in the call nor inside of it"
        )
    return found.pop()


_MOST_ACTIVE: Final = 65


def _allocated(call: OperatorCall) -> Iterator[tuple[int, int]]:
    """Rows and columns of the matrices that are allocated inside, also in batches of one."""
    for each in call.inside:
        sizes = each.get(0) if each.operator == ALLOCATION else None
        if isinstance(sizes, tuple) and len(sizes) >= 2 and all(size == 1 for size in sizes[:-2]):
            rows, columns = sizes[-2:]
            if not isinstance(rows, CallTensor) and not isinstance(columns, CallTensor):
                yield int(rows), int(columns)


def _inner(call: OperatorCall, routed: int, size: int) -> tuple[int, int]:
    """Inner size of an expert, and whether its first product has two columns for each (a gate)
    or one.
    """
    for each in call.inside:
        if each.operator in (*_GATED, *_PLAIN):
            out = each.tensor(0)
            if len(out.shape) == 2 and out.shape[0] == routed:
                return out.shape[1], 2 if each.operator in _GATED else 1
    # activations of both products, in rows that are filled up to whole tiles for each expert
    pairs = list(_allocated(call))
    rows = {rows for rows, columns in pairs if rows >= routed and columns == size}
    inner = {columns for at, columns in pairs if at in rows and columns != size}
    if len(inner) != 1 or "swiglu" not in call.kernel.lower():
        raise NoWorkError(
            "the sizes of the experts are recorded neither in the call nor inside of it"
        )
    return inner.pop(), 2


_HELD: Final = {
    "fp4": (2,),
    "uint8": (2, 1),
    "int8": (1, 2),
    "int32": (8,),
    "uint32": (8,),
    "int64": (16,),
}
"""Weights that an element may hold, by its format; one in all others."""

_WHOLE: Final = ("int32", "int64")


def _layout(call: OperatorCall, weight: CallTensor, k: int) -> tuple[int, int, int]:
    """Experts, columns of an expert's product, and weights in an element:

    (experts, columns, k) or (experts, k, …).
    """
    experts, rows, columns = weight.shape
    for held in _HELD.get(weight.format, (1,)):
        if columns * held == k:
            return experts, rows, held
    if rows != k:
        raise NoWorkError(
            f"the weights {list(weight.shape)} of {call.operator} do not fit rows of {k}"
        )
    return experts, columns, 1


def _beside(call: OperatorCall, tokens: int, *weights: CallTensor) -> float:
    """Bytes of scales and biases: small tensors with a row for each expert, or for each column of
    each.

    As many tokens as experts could not be told from these.
    """
    rows = {size for each in weights for size in (each.shape[0], each.shape[0] * each.shape[1])} - {
        tokens
    }
    most = max(each.elements for each in weights) / 8
    given = [each for each in call.given() if len(each.shape) > 1]
    small = [each for each in given if each.shape[0] in rows and each.elements <= most]
    return sum(each.bytes for each in small if each.format not in _WHOLE)


def _matrix(x: CallTensor, weight: CallTensor) -> str:
    """Format of the products: rows of 16 bits meet narrower numbers in the type of these, which
    is never slower.
    """
    if x.format == "uint8":
        return "fp4"
    return (
        weight.format
        if weight.format in ("fp8", "fp4", "int8") and x.width > weight.width
        else x.format
    )


@cost
def grouped_product(
    call: OperatorCall,
    x: int = 0,
    weight: int = 1,
    out: int | None = None,
    chosen: int | None = None,
    *,
    flag: int | None = None,
) -> CallWork:
    """2 rows k n; rows, result and the weights with their scales of min(groups, rows) groups, or of
    the E (1 - (1 - k/E)^T) of E experts that the tokens choose, once.

    Rows times the weights of their group, ``(…, k)`` with ``(groups, k, n)`` or ``(groups, n,
    k)``.

    Where each token has several groups, ``chosen`` says their number, or has a row of them for each
    token. A result of half the columns is that of a gate.
    """
    if flag is not None and not isinstance(call.get(flag), bool):
        raise NoWorkError(f"this {call.operator} is not that of grouped_gemm")
    given, weights = call.tensor(x), call.tensor(weight)
    if len(weights.shape) == 2:
        return _gradient(call, given, weights)
    weights, k, rows = call.tensor(weight, 3), row_of(given), math.prod(given.shape[:-1])
    groups, n, _ = _layout(call, weights, k)
    written = rows * n * max(2, given.width)
    if out is not None:
        result = call.tensor(out)
        if not result.shape or n not in (result.shape[-1], 2 * result.shape[-1]):
            raise NoWorkError(
                f"the result {list(result.shape)} of {call.operator} has not {n} columns"
            )
        rows, written = max(rows, math.prod(result.shape[:-1])), result.stored
    used, assumed = float(min(groups, rows)), f"rows for {min(groups, rows)} of {groups} groups"
    if chosen is not None:
        active = _number_of(call, chosen)
        used = distinct_experts(groups, active, rows / active)
        assumed = f"even routing ({used:.0f} of {groups} experts)"
    held = weights.bytes + _beside(call, given.shape[0], weights)
    read = given.bytes + used / max(1, groups) * held
    return CallWork(2.0 * rows * k * n, read, written, _matrix(given, weights), assumed)


def _gradient(call: OperatorCall, a: CallTensor, b: CallTensor) -> CallWork:
    """Gradient of the weights of each group: its columns of a (torch) or its rows, times its
    rows of b.
    """
    ends = _lists(call)
    if not ends or len(a.shape) != 2:
        raise NoWorkError(f"the groups of {call.operator} were not recorded")
    m, rows = a.shape if call.operator.startswith("aten::") else a.shape[::-1]
    if b.shape[0] != rows:
        raise NoWorkError(f"the inner sizes {rows} and {b.shape[0]} of {call.operator} differ")
    n = b.shape[1]
    written = ends[0].elements * m * n * max(2, a.width)
    return CallWork(2.0 * rows * m * n, a.bytes + b.bytes, written, _matrix(a, b))


def _lists(call: OperatorCall, after: int = 0) -> list[CallTensor]:
    """Lists of whole numbers in memory: ends of groups, maps of experts."""
    return [each for each in call.given(after, axes=1) if each.format in _WHOLE]


def _number_of(call: OperatorCall, chosen: int) -> int:
    """Experts of a token: a number, or the columns of those that each token chose."""
    given = call.get(chosen)
    active = (
        call.tensor(chosen, 2).shape[1]
        if isinstance(given, CallTensor)
        else int(call.number(chosen))
    )
    if active < 1:
        raise NoWorkError(f"the tokens of {call.operator} have {active} experts")
    return active


@cost
def expert_products(
    call: OperatorCall,
    x: int = 0,
    first: int = 1,
    second: int = 2,
    chosen: int = 4,
    *,
    fused: bool = False,
) -> CallWork:
    """2 x routed tokens x size x (both inner sizes); tokens, result, activations unless fused, and
    the weights with their scales of E (1 - (1 - k/E)^T) of E experts once.

    Both products by ``(tokens, first weights, second weights, …, chosen, …)``.

    Weights are (experts, 2 x inner size or inner size, size) and (experts, size, inner size), maybe
    packed. If ``fused``, the activations between both products need not reach the memory.
    """
    given, one, two = call.tensor(x, 2), call.tensor(first, 3), call.tensor(second, 3)
    size, active = row_of(given), _number_of(call, chosen)
    experts, wide, held = _layout(call, one, size)
    inner = two.shape[2] * held
    by_token = call.optional(chosen)
    if (
        two.shape[:2] != (experts, size)
        or wide not in (inner, 2 * inner)
        or one.format != two.format
    ):
        raise NoWorkError(f"the weights of {call.operator} do not fit its tokens")
    if by_token and by_token.shape[0] != given.shape[0]:
        raise NoWorkError(f"the routing of {call.operator} has other rows than the tokens")
    # a map of all experts to those here, their number, or SGLang's choice of the tokens for them
    some = by_token is not None and any(
        each.elements != experts for each in _lists(call, chosen + 1)
    )
    if call.operator.startswith("sglang::"):
        some |= call.arguments[-1] is True
    elif call.operator.startswith("vllm::") and call.operator.endswith("fused_experts"):
        more = [each for each in call.arguments[chosen + 1 :] if isinstance(each, float)]
        some |= any(each > experts for each in more)
    if some:
        raise NoWorkError(SPREAD)
    return _both(call, given, (one, two), (experts, wide, inner), active, fused=fused)


def _both(
    call: OperatorCall,
    x: CallTensor,
    weights: tuple[CallTensor, CallTensor],
    sizes: tuple[int, int, int],
    active: int,
    *,
    fused: bool,
) -> CallWork:
    """Both products of the experts that an even routing reaches; sizes are experts and both
    inner sizes.
    """
    (tokens, size), (experts, wide, inner) = (x.shape[0], row_of(x)), sizes
    routed, touched = tokens * active, distinct_experts(experts, active, tokens)
    held = sum(each.bytes for each in weights) + _beside(call, tokens, *weights)
    ids = [each for each in call.given(1) if each.shape == (tokens, active)]
    read = (
        touched / max(1, experts) * held
        + x.bytes
        + sum(each.bytes for each in ids if each.format in _WHOLE)
    )
    width = max(2, x.width)
    written = tokens * size * width
    if not fused:
        read, written = read + routed * inner * width, routed * (wide + size) * width
    assumed = f"even routing ({touched:.0f} of {experts} experts)"
    return CallWork(
        2.0 * routed * (wide + inner) * size, read, written, _matrix(x, weights[1]), assumed
    )


@cost
def tensorrt_experts(call: OperatorCall) -> CallWork:
    """2 x routed tokens x size x (both inner sizes); tokens, result, activations unless fused, and
    the weights with their scales of E (1 - (1 - k/E)^T) of E experts once.

    As the products of experts; TensorRT-LLM's ``(tokens, chosen, …, first weights, [biases,]
    second weights, …, type, tp, rank, ep, …)``.
    """
    maybe = call.optional(4)  # biases have two axes
    second = 4 if maybe and len(maybe.shape) == 3 else 5
    numbers = [each for each in call.arguments[second + 1 :] if isinstance(each, float)]
    if len(numbers) < 4 or numbers[3] != 1:
        raise NoWorkError(SPREAD)
    return expert_products(call, 0, 3, second, 1, fused=True)


@cost
def expert_runner(call: OperatorCall, first: int = 4, second: int = 6) -> CallWork:
    """2 x routed tokens x size x (both inner sizes); tokens, result, activations unless fused, and
    the weights with their scales of E (1 - (1 - k/E)^T) of E experts once.

    ``(logits, bias, tokens, …, weights, …, experts, chosen, _, _, inner size, first expert,
    experts here, …)``.
    """
    x, one = call.tensor(2, 2), call.tensor(first)
    maybe = call.optional(second)  # biases have two axes
    two = maybe if maybe and len(maybe.shape) > 2 else call.tensor(10)
    at = next(
        (n for n, each in enumerate(call.arguments) if isinstance(each, float)), len(call.arguments)
    )
    everywhere, active, inner, experts = (int(call.number(at + place)) for place in (0, 1, 4, 6))
    if experts != everywhere:
        raise NoWorkError(SPREAD)
    held = [
        each
        for each in _HELD.get(two.format, (1,))
        if two.elements * each == experts * inner * row_of(x)
    ]
    if not held or not two.elements or one.elements not in (two.elements, 2 * two.elements):
        raise NoWorkError(f"the weights of {call.operator} do not fit its tokens")
    return _both(
        call,
        x,
        (one, two),
        (experts, one.elements // two.elements * inner, inner),
        active,
        fused=True,
    )


@cost
def packed_experts(call: OperatorCall) -> CallWork:
    """2 rows k n; rows, result, and zero points and the weights with their scales of E (1 - (1 -
    k/E)^T) of E experts once.

    Rows ``(…, k)`` into ``(…, n)`` with packed weights of each expert and scales of (experts,
    …, n) or (…, n, …).
    """
    x, out = call.tensor(0, 2), call.tensor(1)
    given = call.given(2, axes=3)
    if len(given) < 2 or "int" not in given[0].format or not out.elements:
        raise NoWorkError(
            f"packed weights, scales and result of {call.operator} were not all recorded"
        )
    (weights, *more), (tokens, k), n = given, x.shape, out.shape[-1]
    experts, rows = weights.shape[0], out.elements // n
    bits = weights.stored * 8 / max(1, experts * k * n)
    if bits not in (4, 8) or n not in more[0].shape[1:] or rows % max(1, tokens):
        raise NoWorkError(
            f"the packed weights {list(weights.shape)} of {call.operator} are not those of {k}"
            f" x {n}"
        )
    touched = distinct_experts(experts, rows // tokens, tokens)
    read = x.bytes + touched / experts * sum(each.bytes for each in given)
    assumed = f"even routing ({touched:.0f} of {experts} experts)"
    return CallWork(2.0 * rows * n * k, read, out.stored, x.format, assumed)
