"""Work of state-space and linear-attention scans: a state for each sequence, updated and read by each token."""

from __future__ import annotations

import math
from typing import Final

from llmprof.theory.calls.call import Call, NoWorkError, Tensor
from llmprof.theory.calls.work import Kind, Work


def selective(call: Call) -> Work:
    """Mamba's ``(u, delta, A, B, C, D, z, …, ends, …, states)``: inputs of (channels, tokens), states of a channel."""
    u, delta, decay = call.tensor(0, 2), call.tensor(1, 2), call.tensor(2, 2)
    inputs = [call.tensor(place) for place in (3, 4)]
    gate, ends, states = call.optional(6), call.optional(9), call.optional(12)
    channels, tokens = u.shape
    if decay.shape[0] != channels:
        raise NoWorkError(f"{call.operator} has {channels} channels and states of {decay.shape[0]}")
    size = decay.shape[1]
    sequences = max(0, ends.shape[0] - 1) if ends else 1
    state = sequences * channels * size * (states.width if states else decay.width)
    read = u.bytes + delta.bytes + decay.bytes + sum(each.bytes for each in inputs) + (gate.bytes if gate else 0)
    written = tokens * channels * u.width
    return Work(8.0 * tokens * channels * size, read + state, written + state)


def mixer(call: Call) -> Work:
    """Mamba-2 of vLLM between its projections, ``(projected, out)``: convolution and scan of each token.

    Sizes are those of the states inside: (heads, size, states of a head) of the scan, (taps - 1, channels) of the
    convolution.
    """
    projected, out = call.tensor(0, 2), call.tensor(1, 2)
    tokens, width = out.shape
    scans: set[tuple[tuple[int, ...], float]] = set()
    convolutions: set[tuple[int, ...]] = set()
    prompts = 0
    for each in call.inside:
        first = each.get(0)
        if not isinstance(first, Tensor):
            continue
        shape = first.shape
        if each.operator == "aten::_index_put_impl_" and len(shape) == 4 and shape[1] * shape[2] == width:
            scans.add((shape[1:], first.width))
            prompts = each.tensor(2).elements // max(1, math.prod(shape[1:]))
        elif each.operator == "aten::to" and len(shape) == 3 and shape[0] * shape[1] == width:
            scans.add((shape, 0.0))
        elif each.operator == "aten::transpose" and len(shape) == 3 and width < shape[2] <= projected.shape[1]:
            convolutions.add(shape[1:])
    if len({sizes for sizes, _ in scans}) != 1 or len(convolutions) != 1:
        raise NoWorkError("the sizes of the states are recorded neither in the call nor inside of it")
    (heads, size, state), _ = next(iter(scans))
    kept = max(width for _, width in scans) or projected.width
    taps, channels = convolutions.pop()
    sequences = prompts or tokens
    flops = tokens * (6.0 * heads * size * state + 2.0 * (taps + 1) * channels)
    states = sequences * (heads * size * state * kept + taps * channels * projected.width)
    read = tokens * (channels + heads) * projected.width + (0 if prompts else states)
    said = "token by token: chunked kernels do more"
    if prompts:
        said += "; states of sequences that generate beside prompts left out"
    return Work(flops, read, tokens * width * out.width + states, projected.format, said, "shapes inside")


def delta_rule(call: Call) -> Work:
    """``(q, k, v, g, beta, scale, states, …)`` of (batch, tokens, heads, size): the least work, token by token."""
    q, k, v = (call.tensor(place, 4) for place in range(3))
    small = sum(each.bytes for place in (3, 4) if (each := call.optional(place)))
    states = call.optional(6)
    batch, tokens, heads, value = v.shape
    kept = states.bytes if states else 0.0
    flops = 6.0 * batch * tokens * heads * k.shape[3] * value
    return Work(flops, q.bytes + k.bytes + v.bytes + small + kept, v.elements * v.width + kept, q.format,
                "token by token: chunked kernels do more")  # fmt: skip


def kimi(call: Call) -> Work:
    """Kimi's delta attention, ``(q, k, v, decay, beta, out)``: the least work, token by token."""
    q, k, v = (call.tensor(place, 2) for place in range(3))
    decay, beta, out = call.tensor(3, 4), call.tensor(4), call.tensor(5, 4)
    _, tokens, heads, key = decay.shape
    value = out.shape[3]
    puts = [each for each in call.inside if isinstance(each.get(2), Tensor)]
    prompts = [put.tensor(2) for put in puts if put.tensor(2).shape[-3:] == (heads, key, value)]
    states = prompts[0].bytes if prompts else tokens * heads * key * value * 4.0
    read = sum(each.bytes for each in (q, k, v, decay, beta)) + (0 if prompts else states)
    said = "token by token: chunked kernels do more"
    said += "; states of sequences that generate beside prompts left out" if prompts else "; states of 4 bytes"
    flops = 6.0 * tokens * heads * key * value
    return Work(flops, read, out.elements * out.width + states, q.format, said, "shapes inside")


_WORK: Final = "llmprof.theory.work"

KINDS: Final = [
    Kind("scan", "vllm::mamba_mixer2", mixer, "6 heads size states and 2 taps channels a token; inputs and result "
         "once, and the states of each sequence written, and read where it generates", _WORK, whole=True,
         inside="aten::_index_put_impl_ aten::to aten::transpose"),
    Kind("scan", "_C::selective_scan_fwd", selective, "8 channels states a token; inputs and result once, "
         "and the state of each sequence read and written", "mamba_ssm, csrc/selective_scan", whole=True),
    Kind("scan", "vllm::kda_attention", kimi, "6 K V a head and token; inputs and result once, and the state of each "
         "sequence written, and read where it generates", _WORK, whole=True, inside="aten::_index_put_impl_"),
    Kind("scan", "ChunkGatedDeltaRuleFunction", delta_rule, "6 K V a head and token; inputs and result once, and the "
         "state of each sequence read and written", _WORK, whole=True),
]  # fmt: skip
