"""Work of mixtures of experts: routing, and the products of the experts that the tokens choose."""

from __future__ import annotations

from typing import Final

from llmprof.theory.calls.call import Call, NoWorkError
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


_GATES: Final = ("_C::silu_and_mul", "_C::gelu_and_mul", "_C::gelu_tanh_and_mul")


def fused(call: Call) -> Work:
    """Both products of the chosen experts; their sizes are those of the routing and the activation inside."""
    hidden, logits = call.tensor(0, 2), call.tensor(1, 2)
    routing, gate = (
        call.inside.get("_moe_C::topk_softmax"),
        next((call.inside[n] for n in _GATES if n in call.inside), None),
    )
    if routing is None or gate is None:
        raise NoWorkError("the sizes of the experts are recorded neither in the call nor inside of it")
    experts, active = routing.tensor(3, 2).shape[1], routing.tensor(0, 2).shape[1]
    inner = gate.tensor(0, 2).shape[1]
    tokens, size = hidden.shape
    if logits.shape[0] != tokens or gate.tensor(0, 2).shape[0] != tokens * active or not tokens:
        raise NoWorkError("the rows of the activation are not those of the routed tokens")
    routed = tokens * active
    touched = distinct_experts(experts, active, tokens)
    weights = touched * 3 * inner * size * hidden.width
    read = weights + (tokens * size + routed * inner) * hidden.width
    written = routed * (2 * inner + size) * hidden.width
    assumed = f"even routing ({touched:.0f} of {experts} experts), weights of the type of the tokens"
    return Work(2.0 * routed * 3 * inner * size, read, written, hidden.format, assumed, "shapes inside")


KINDS: Final = [
    Kind("moe_routing", "_moe_C::topk_softmax", choose, "5 a logit; logits and results once", "vllm/csrc/moe"),
    Kind("moe_routing", "_moe_C::moe_sum sgl_kernel::moe_sum", add_up, "an addition for each part but the first; "
         "parts and result once", "vllm/csrc/moe"),
    Kind("moe_experts", "vllm::moe_forward vllm::moe_forward_shared vllm::fused_experts", fused,
         "2 x routed tokens x 3 size x inner size; tokens, activations and the weights of E (1 - (1 - k/E)^T) of E "
         "experts once", "llmprof.theory.work", inside=f"_moe_C::topk_softmax {' '.join(_GATES)}"),
]  # fmt: skip
