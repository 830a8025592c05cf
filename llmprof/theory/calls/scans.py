"""Work of state-space and linear-attention scans: a state for each sequence, updated and read by
each token.
"""

from __future__ import annotations

import math
from typing import Final

from llmprof.theory.calls.call import CallTensor, NoWorkError, OperatorCall
from llmprof.theory.calls.work import CallWork, cost

_LEAST: Final = "token by token: chunked kernels do more"


@cost
def selective_scan(call: OperatorCall) -> CallWork:
    """8 channels states a token; inputs and result once, and the state of each sequence that has
    one read and written.

    Mamba's ``(u, delta, A, B, C, D, z, …, ends, …, states)``: inputs of (…, channels, tokens),
    states of a channel.

    Without states and ends each sequence of a batch begins with none.
    """
    u, delta, decay = call.tensor(0), call.tensor(1), call.tensor(2, 2)
    ends, states = call.optional(9), call.optional(12)
    if len(u.shape) not in (2, 3) or decay.shape[0] != u.shape[-2]:
        raise NoWorkError(
            f"{call.operator} has inputs {list(u.shape)} and states {list(decay.shape)}"
        )
    size, batched = decay.shape[1], len(u.shape) == 3
    sequences = max(0, ends.shape[0] - 1) if ends else u.shape[0] if batched else 1
    kept = (
        0.0
        if batched and not states
        else sequences * decay.elements * (states.width if states else decay.width)
    )
    read = u.bytes + delta.bytes + decay.bytes + call.bytes_at(6)
    read += sum(call.tensor(place).bytes for place in (3, 4))
    return CallWork(8.0 * u.elements * size, read + kept, u.stored + kept)


@cost
def split_scan(call: OperatorCall) -> CallWork:
    """4 heads size states a token; inputs and result once.

    Mamba-2 between its projections, ``(projected, taps, bias, …, A, D, chunk, …, heads' size,
    groups, …)``.

    Channels of the projection are z, x, B, C and delta; the convolution has those of x, B and C.
    Profilers leave out the name of the activation, so the groups are known as the last number.
    """
    projected, taps, decay = call.tensor(0, 3), call.tensor(1, 2), call.tensor(4, 1)
    batch, tokens, width = projected.shape
    inner = width - taps.shape[0] - decay.shape[0]
    groups = int(next((each for each in call.arguments[:6:-1] if isinstance(each, float)), 0))
    state, rest = divmod(taps.shape[0] - inner, max(1, 2 * groups))
    if groups < 1 or inner <= 0 or state <= 0 or rest:
        raise NoWorkError(f"the sizes of {call.operator} do not fit each other")
    weights = taps.bytes + call.bytes_at(7)
    return CallWork(
        4.0 * batch * tokens * inner * state,
        projected.bytes + weights,
        batch * tokens * inner * projected.width,
        projected.format,
        _LEAST,
    )


@cost
def causal_convolution(call: OperatorCall) -> CallWork:
    """2 taps a channel and token; inputs, result and taps once, and the last inputs of each
    sequence that has them read and written.

    A causal convolution of each channel, ``(x, taps, bias, …)`` or ``(x, states, taps, bias,
    …)`` of one step.

    Inputs are (batch, channels, tokens), or (channels, tokens) of sequences one after the other; a
    step may have one token for each of the batch.
    """
    x, step = call.tensor(0), "update" in call.operator
    taps = call.tensor(2 if step else 1, 2)
    channels, wide = taps.shape
    if channels not in x.shape or len(x.shape) not in (2, 3):
        raise NoWorkError(f"{call.operator} has inputs {list(x.shape)} and {channels} channels")
    if call.operator.startswith("DaoAILab::") and not step:
        kept = [call.bytes_at(4), call.bytes_at(6)]
    else:
        states = call.tensor(1) if step else call.optional(3)
        ends = None if step else call.optional(4)
        sequences = (
            max(0, ends.shape[0] - 1) if ends else x.shape[0] if step or len(x.shape) == 3 else 1
        )
        kept = [sequences * channels * (wide - 1) * (states.width if states else 0)] * 2
    read = x.bytes + taps.bytes + call.bytes_at(3 if step else 2) + kept[0]
    return CallWork(2.0 * x.elements * wide, read, x.stored + kept[1])


@cost
def mamba_mixer(call: OperatorCall) -> CallWork:
    """6 heads size states and 2 taps channels a token; inputs and result once, and the states of
    each sequence written, and read where it generates.

    Mamba-2 of vLLM between its projections, ``(projected, out)``: convolution and scan of each
    token.

    Sizes are those of the states inside: (heads, size, states of a head) of the scan, (taps - 1,
    channels) of the convolution.
    """
    projected, out = call.tensor(0, 2), call.tensor(1, 2)
    tokens, width = out.shape
    scans: set[tuple[tuple[int, ...], float]] = set()
    convolutions: set[tuple[int, ...]] = set()
    prompts = 0
    for each in call.inside:
        first = each.get(0)
        if not isinstance(first, CallTensor):
            continue
        shape = first.shape
        if (
            each.operator == "aten::_index_put_impl_"
            and len(shape) == 4
            and shape[1] * shape[2] == width
        ):
            scans.add((shape[1:], first.width))
            prompts = each.tensor(2).elements // max(1, math.prod(shape[1:]))
        elif each.operator == "aten::to" and len(shape) == 3 and shape[0] * shape[1] == width:
            scans.add((shape, 0.0))
        elif (
            each.operator == "aten::transpose"
            and len(shape) == 3
            and width < shape[2] <= projected.shape[1]
        ):
            convolutions.add(shape[1:])
    if len({sizes for sizes, _ in scans}) != 1 or len(convolutions) != 1:
        raise NoWorkError(
            "the sizes of the states are recorded neither in the call nor inside of it"
        )
    (heads, size, state), _ = next(iter(scans))
    kept = max(width for _, width in scans) or projected.width
    taps, channels = convolutions.pop()
    sequences = prompts or tokens
    flops = tokens * (6.0 * heads * size * state + 2.0 * (taps + 1) * channels)
    states = sequences * (heads * size * state * kept + taps * channels * projected.width)
    read = tokens * (channels + heads) * projected.width + (0 if prompts else states)
    said = _LEAST
    if prompts:
        said += "; states of sequences that generate beside prompts left out"
    return CallWork(
        flops, read, tokens * width * out.width + states, projected.format, said, "shapes inside"
    )


@cost
def linear_attention(call: OperatorCall, products: int = 3) -> CallWork:
    """2 K V a head and token for each of its products; inputs and result once, and the state of
    each sequence read and written.

    ``(q, k, v, gates …, states, ends, …)`` of (batch, tokens, heads, size): the least work,
    token by token.

    Gates have the axes of batch and tokens, too; states are (sequences, heads, key size, value
    size) or transposed.
    """
    q, k, v = (call.tensor(place, 4) for place in range(3))
    if (
        call.operator == "FusedRecurrentFunction"
    ):  # vLLM's has its scale after two gates and fla's after three
        products = 3 if isinstance(call.get(5), float) else 2
    *tokens, heads, value = v.shape
    more = call.given(3)
    gates = [each for each in more if len(each.shape) > 2 and [*each.shape[:2]] == tokens]
    states = [
        each
        for each in more
        if len(each.shape) == 4
        and each.shape[1] == heads
        and each not in gates
        and each.elements == each.shape[0] * heads * k.shape[3] * value
    ]
    ends = [each for each in more if len(each.shape) == 1 and "int" in each.format]
    sequences = (
        min(states[0].shape[0], ends[0].shape[0] - 1 if ends else math.prod(tokens))
        if states
        else 0
    )
    kept = sequences * heads * k.shape[3] * value * (states[0].width if states else 0)
    flops = 2.0 * products * math.prod(tokens) * heads * k.shape[3] * value
    read = sum(each.bytes for each in (q, k, v, *gates)) + kept
    return CallWork(flops, read, v.stored + kept, q.format, _LEAST)


@cost
def gated_delta(call: OperatorCall) -> CallWork:
    """6 K V a head and token; inputs and result once, and the state of each sequence written, and
    read where it generates.

    ``(queries, keys and values of a token, gates, gates, out, …)`` between projections;
    states are those inside.
    """
    mixed, out = call.tensor(0, 2), call.tensor(3, 3)
    tokens, heads, value = out.shape
    keys = (mixed.shape[1] - heads * value) // 2
    states: set[tuple[int, float]] = set()
    prompts = 0.0
    for each in call.inside:
        state, new = each.get(6 if each.operator.endswith("Function") else 0), each.get(2)
        if isinstance(state, CallTensor) and len(state.shape) == 4 and state.shape[1] == heads:
            size = math.prod(state.shape[2:]) // value
            if value in state.shape[2:] and size and keys % size == 0:
                states.add((size, state.width))
                if isinstance(new, CallTensor) and not each.operator.endswith("Function"):
                    prompts = new.elements * state.width
    if len({size for size, _ in states}) != 1:
        raise NoWorkError(
            "the sizes of the states are recorded neither in the call nor inside of it"
        )
    matrix = heads * value * next(iter(states))[0]
    kept = prompts or tokens * matrix * min(width for _, width in states)
    read = (
        mixed.bytes + sum(call.tensor(place).bytes for place in (1, 2)) + (0 if prompts else kept)
    )
    said = _LEAST + (
        "; states of sequences that generate beside prompts left out" if prompts else ""
    )
    return CallWork(
        6.0 * tokens * matrix,
        read,
        out.stored + kept,
        mixed.format,
        said,
        "shapes inside",
    )


@cost
def kimi_delta(call: OperatorCall) -> CallWork:
    """6 K V a head and token; inputs and result once, and the state of each sequence written, and
    read where it generates.

    Kimi's delta attention, ``(q, k, v, decay, beta, out)``: the least work, token by token.
    """
    q, k, v = (call.tensor(place, 2) for place in range(3))
    decay, beta, out = call.tensor(3, 4), call.tensor(4), call.tensor(5, 4)
    _, tokens, heads, key = decay.shape
    value = out.shape[3]
    puts = [each for each in call.inside if isinstance(each.get(2), CallTensor)]
    prompts = [put.tensor(2) for put in puts if put.tensor(2).shape[-3:] == (heads, key, value)]
    states = prompts[0].bytes if prompts else tokens * heads * key * value * 4.0
    read = sum(each.bytes for each in (q, k, v, decay, beta)) + (0 if prompts else states)
    said = _LEAST
    said += (
        "; states of sequences that generate beside prompts left out"
        if prompts
        else "; states of 4 bytes"
    )
    flops = 6.0 * tokens * heads * key * value
    return CallWork(flops, read, out.stored + states, q.format, said, "shapes inside")
