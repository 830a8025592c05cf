"""Work of mixtures of experts: routing, and the products of the experts that the tokens choose."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from llmprof.theory.calls.call import ALLOCATION, Argument, Call, NoWorkError, Tensor
from llmprof.theory.calls.work import Kind, Work
from llmprof.theory.work import distinct_experts


def choose(call: Call) -> Work:
    """``(weights, experts, rows, logits)``: a softmax over the experts, and the chosen ones."""
    weights, experts, rows, logits = call.tensor(0, 2), call.tensor(1, 2), call.tensor(2, 2), call.tensor(3, 2)
    written = sum(each.elements * each.width for each in (weights, experts, rows))
    return Work(5.0 * logits.elements, logits.bytes, written)


def add_up(call: Call) -> Work:
    """``(tokens, experts of a token, size)`` into ``(tokens, size)``."""
    parts, out = call.tensor(0, 3), call.tensor(1, 2)
    return Work(float(parts.elements - out.elements), parts.bytes, out.elements * out.width)


_ROUTES: Final = ("_moe_C::topk_softmax", "_moe_C::grouped_topk")
_GATED: Final = ("_C::silu_and_mul", "_C::gelu_and_mul", "_C::gelu_tanh_and_mul", "_C::swigluoai_and_mul")
_PLAIN: Final = ("aten::relu_", "aten::relu", "aten::square", "_C::relu_squared")
_MXFP4: Final = re.compile(r"(?i)mxfp4|MxE2m1")
_BLOCK_OF_4_BITS: Final = 17 / 32
"""Bytes of a weight of four bits with a scale of eight for each block of 32."""


def fused(call: Call) -> Work:
    """Both products of the chosen experts; their sizes are those of the routing and the activation inside."""
    hidden, logits = call.tensor(0, 2), call.tensor(1, 2)
    tokens, size = hidden.shape
    if logits.shape[0] != tokens or not tokens:
        raise NoWorkError("the routing has other rows than the tokens")
    experts = _experts(call, logits, size)
    if any(_is_map(each.get(_MAPS[each.operator]), experts) for each in call.inside if each.operator in _MAPS):
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
    return Work(2.0 * routed * (columns + 1) * inner * size, read, written, matrix, assumed, "shapes inside")


SPREAD: Final = "its experts are a part of all, and how many tokens chose them was not recorded (expert parallel)"
_MAPS: Final = {"aten::index": 0, "_moe_C::moe_align_block_size": 6, "_moe_C::moe_sum": 3}
"""Calls inside and their argument that says which experts of all are on a rank."""


def _is_map(given: Argument, experts: int) -> bool:
    """Whether an argument holds a whole number for each of all experts."""
    return isinstance(given, Tensor) and given.shape == (experts,) and "int" in given.format


def _experts(call: Call, logits: Tensor, size: int) -> int:
    """Number of experts: columns of what routes, which is inside where the second argument is the tokens again."""
    for each in call.inside:
        if each.operator in _ROUTES:
            return each.tensor(3 if "softmax" in each.operator else 0, 2).shape[1]
    if logits.shape[1] == size:
        raise NoWorkError("the number of experts is recorded neither in the call nor inside of it")
    return logits.shape[1]


def _active(call: Call, tokens: int, experts: int) -> int:
    """Experts of a token."""
    found: set[int] = set()
    for each in call.inside:
        if each.operator == "_moe_C::topk_softmax":
            found.add(each.tensor(0, 2).shape[1])
        elif each.operator == "_moe_C::moe_sum":
            found.add(each.tensor(0, 3).shape[1])
    found |= {n for rows, n in _allocated(call) if rows == tokens and 0 < n < min(experts, _MOST_ACTIVE)}
    if len(found) != 1:
        raise NoWorkError("the sizes of the experts are recorded neither in the call nor inside of it")
    return found.pop()


_MOST_ACTIVE: Final = 65


def _allocated(call: Call) -> Iterator[tuple[int, int]]:
    """Rows and columns of the matrices that are allocated inside, also in batches of one."""
    for each in call.inside:
        sizes = each.get(0) if each.operator == ALLOCATION else None
        if isinstance(sizes, tuple) and len(sizes) >= 2 and all(size == 1 for size in sizes[:-2]):
            rows, columns = sizes[-2:]
            if not isinstance(rows, Tensor) and not isinstance(columns, Tensor):
                yield int(rows), int(columns)


def _inner(call: Call, routed: int, size: int) -> tuple[int, int]:
    """Inner size of an expert, and whether its first product has two columns for each (a gate) or one."""
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
        raise NoWorkError("the sizes of the experts are recorded neither in the call nor inside of it")
    return inner.pop(), 2


def grouped(call: Call) -> Work:
    """Rows times the weights of their group: ``(rows, k)`` with ``(groups, k, n)``, by the ends of the groups."""
    x, weight = call.tensor(0, 2), call.tensor(1, 3)
    groups, k, n = weight.shape
    if x.shape[1] != k:
        raise NoWorkError(f"the inner sizes {x.shape[1]} and {k} of {call.operator} differ")
    rows = x.shape[0]
    used = min(groups, rows)
    read = x.bytes + used * k * n * weight.width
    assumed = f"rows for {used} of {groups} groups"
    return Work(2.0 * rows * k * n, read, rows * n * x.width, x.format, assumed)


def with_weights(call: Call) -> Work:
    """``(tokens, first weights, second weights, weights of the chosen, chosen, …)``: both products.

    Weights are (experts, 2 x inner size or inner size, size) and (experts, size, inner size).
    """
    x, first, second, chosen = call.tensor(0, 2), call.tensor(1, 3), call.tensor(2, 3), call.tensor(4, 2)
    (tokens, size), (experts, wide, k), inner = x.shape, first.shape, second.shape[2]
    if k != size or second.shape[:2] != (experts, size) or wide not in (inner, 2 * inner) or chosen.shape[0] != tokens:
        raise NoWorkError(f"the weights of {call.operator} do not fit its tokens")
    # a map of all experts to those here, their number, or SGLang's choice of the tokens for them
    more = [each for each in call.arguments[5:] if not isinstance(each, bool)]
    mapped = [each for each in more if isinstance(each, Tensor) and len(each.shape) == 1 and "int" in each.format]
    if call.operator.startswith("sglang::"):
        some = call.arguments[-1] is True
    else:
        some = any(isinstance(each, int | float) and each > experts for each in more)
    if some or any(each.elements != experts for each in mapped):
        raise NoWorkError(SPREAD)
    routed = tokens * chosen.shape[1]
    touched = distinct_experts(experts, chosen.shape[1], tokens)
    weights = touched / experts * (first.bytes + second.bytes) if experts else 0.0
    read = weights + (tokens * size + routed * inner) * x.width + chosen.bytes
    written = routed * (wide + size) * x.width
    matrix = first.format if first.width < x.width else x.format
    assumed = f"even routing ({touched:.0f} of {experts} experts)"
    return Work(2.0 * routed * (wide + inner) * size, read, written, matrix, assumed)


def packed(call: Call) -> Work:
    """Rows ``(…, k)`` into ``(…, n)`` with packed weights of each expert and scales of (experts, …, n) or (…, n, …)."""
    x, out = call.tensor(0, 2), call.tensor(1)
    given = [each for each in call.arguments[2:] if isinstance(each, Tensor) and len(each.shape) == 3]
    if len(given) < 2 or "int" not in given[0].format or not out.elements:
        raise NoWorkError(f"packed weights, scales and result of {call.operator} were not all recorded")
    (weights, *more), (tokens, k), n = given, x.shape, out.shape[-1]
    experts, rows = weights.shape[0], out.elements // n
    bits = weights.elements * weights.width * 8 / max(1, experts * k * n)
    if bits not in (4, 8) or n not in more[0].shape[1:] or rows % max(1, tokens):
        raise NoWorkError(f"the packed weights {list(weights.shape)} of {call.operator} are not those of {k} x {n}")
    touched = distinct_experts(experts, rows // tokens, tokens)
    read = x.bytes + touched / experts * sum(each.bytes for each in given)
    assumed = f"even routing ({touched:.0f} of {experts} experts)"
    return Work(2.0 * rows * n * k, read, out.elements * out.width, x.format, assumed)


KINDS: Final = [
    Kind("moe_routing", "_moe_C::topk_softmax", choose, "5 a logit; logits and results once", "vllm/csrc/moe"),
    Kind("moe_routing", "_moe_C::moe_sum sgl_kernel::moe_sum", add_up, "an addition for each part but the first; "
         "parts and result once", "vllm/csrc/moe"),
    Kind("moe_experts", "vllm::moe_forward vllm::moe_forward_shared vllm::fused_experts", fused,
         "2 x routed tokens x 3 size x inner size; tokens, activations and the weights of E (1 - (1 - k/E)^T) of E "
         "experts once", "llmprof.theory.work",
         inside=" ".join((*_ROUTES, *_MAPS, ALLOCATION, *_GATED, *_PLAIN))),
    Kind("moe_experts", "vllm::inplace_fused_experts vllm::outplace_fused_experts sglang::inplace_fused_experts "
         "sglang::outplace_fused_experts", with_weights, "2 x routed tokens x size x (both inner sizes); tokens, "
         "activations and the weights of E (1 - (1 - k/E)^T) of E experts once", "llmprof.theory.work"),
    Kind("moe_experts", "_moe_C::moe_wna16_gemm _moe_C::moe_wna16_marlin_gemm", packed, "2 rows k n; rows, result, and "
         "packed weights, scales and zero points of E (1 - (1 - k/E)^T) of E experts once", "vllm/_custom_ops.py"),
    Kind("moe_experts", "aten::_grouped_mm", grouped, "2 rows k n; rows, result and the weights of min(groups, rows) "
         "groups once", "torch/utils/flop_counter.py"),
]  # fmt: skip
