"""Memory and step time of training: optimizer and gradients by ZeRO stage, activations,
recomputation.

Mixed precision with Adam takes 16 bytes per parameter: 2 for the weight, 2 for its gradient, 12 for
the optimizer (fp32 weight, momentum, variance). ZeRO (Rajbhandari et al. 2020, arXiv 1910.02054)
distributes over the data-parallel ranks the optimizer from stage 1 on, gradients from stage 2 on,
and weights in stage 3.

Activations that the backward pass needs are counted tensor by tensor for each layer, after
Korthikanti et al. 2022 (arXiv 2205.05198), without dropout (these models have none) and with an
attention that keeps no scores (FlashAttention). For GPT's shape, the paper counts 34 bytes per
token and hidden unit with dropout masks; this module counts 28.
"""

from __future__ import annotations

from typing import Final, Literal

import polars as pl
from msgspec import Struct

from llmprof.errors import LlmprofError
from llmprof.theory.bound import Machine
from llmprof.theory.memory import weight_bytes
from llmprof.theory.plan import BYTES, Plan, prefill
from llmprof.theory.shapes import Shape
from llmprof.theory.work import step_operators

Recompute = Literal["none", "full"]
OPTIMIZER_BYTES: Final = 12.0
"""Bytes of optimizer state per parameter: Adam with an fp32 copy of the weights."""


class Training(Struct, frozen=True):
    """Memory (bytes on a rank) and parts of a step (s) of training; FLOPs of all ranks, without
    recomputation.
    """

    weights: float
    gradients: float
    optimizer: float
    activations: float
    forward_s: float
    backward_s: float
    recompute_s: float
    communication_s: float
    optimizer_s: float
    tokens_per_step: float
    flops_per_step: float
    ranks: int

    @property
    def memory_bytes(self) -> float:
        """Total memory on a rank (bytes)."""
        return self.weights + self.gradients + self.optimizer + self.activations

    @property
    def step_s(self) -> float:
        """Seconds of a step, if the exchange of gradients does not overlap with the backward
        pass.
        """
        return (
            self.forward_s
            + self.backward_s
            + self.recompute_s
            + self.communication_s
            + self.optimizer_s
        )

    def frame(self) -> pl.DataFrame:
        """All values as a frame ``quantity, value, unit``."""
        rows = [
            (name, getattr(self, name), "B")
            for name in ("weights", "gradients", "optimizer", "activations")
        ]
        rows.append(("memory_bytes", self.memory_bytes, "B"))
        times = (
            "forward_s",
            "backward_s",
            "recompute_s",
            "communication_s",
            "optimizer_s",
            "step_s",
        )
        rows += [(name, getattr(self, name), "s") for name in times]
        rows += [
            ("tokens_per_step", self.tokens_per_step, "1"),
            ("flops_per_step", self.flops_per_step, "FLOP"),
        ]
        return pl.DataFrame(
            rows,
            schema={"quantity": pl.String, "value": pl.Float64, "unit": pl.String},
            orient="row",
        )


def training(
    shape: Shape,
    machine: Machine,
    *,
    batch_size: int,
    seq_len: int,
    ds_zero: int = 0,
    recompute: Recompute = "none",
    micro_batches: int = 1,
) -> Training:
    """Compute memory and lower bound of the step time of training.

    The backward pass takes twice the time of the forward pass. ZeRO's exchange of gradients has two
    times their bytes, three times in stage 3 (Rajbhandari et al. 2020, section 7).
    """
    if ds_zero not in (0, 1, 2, 3):
        raise LlmprofError(f"ds_zero={ds_zero!r}", expected="0, 1, 2 or 3")
    if recompute not in ("none", "full"):
        raise LlmprofError(f"recompute={recompute!r}", expected="'none' or 'full'")
    plan = machine.plan
    parameters = weight_bytes(shape, plan) / plan.low_bytes
    share = [1 / plan.dp if ds_zero >= stage else 1.0 for stage in (1, 2, 3)]
    work = step_operators(shape, prefill(batch_size, seq_len), plan, all_logits=True)
    work = [operator for operator in work if operator.stage != "sampling"]
    times = micro_batches * (1 + (plan.pp - 1) / micro_batches) / plan.pp
    forward = machine.total(work) * times
    layers = [
        operator
        for operator in work
        if operator.stage not in ("embedding", "final_norm", "lm_head")
    ]
    again = machine.total(layers) * times
    gradient_bytes = parameters * 2.0
    ranks = plan.dp * plan.tp * plan.pp
    volume = (3 if ds_zero == 3 else 2) * gradient_bytes * (plan.dp - 1) / plan.dp
    exchange = volume / machine.link(ranks) if plan.dp > 1 else 0.0
    updated = parameters * share[0] * (OPTIMIZER_BYTES * 2 + 4)
    flops = sum(
        operator.flops * operator.layers
        for operator in step_operators(shape, prefill(batch_size, seq_len), Plan(), all_logits=True)
    )
    return Training(
        weights=parameters * plan.low_bytes * share[2],
        gradients=gradient_bytes * share[1],
        optimizer=parameters * OPTIMIZER_BYTES * share[0],
        activations=activations(shape, plan, batch_size * seq_len, recompute)
        * min(plan.pp, micro_batches),
        forward_s=forward,
        backward_s=2 * forward,
        recompute_s=again if recompute == "full" else 0.0,
        communication_s=exchange,
        optimizer_s=updated / machine.bandwidth,
        tokens_per_step=batch_size * seq_len * micro_batches * plan.dp,
        flops_per_step=3 * flops * micro_batches * plan.dp,
        ranks=ranks,
    )


def activations(shape: Shape, plan: Plan, tokens: float, recompute: Recompute = "none") -> float:
    """Bytes of the activations that a rank keeps from a micro batch for its backward pass."""
    act, hidden, tp = BYTES[plan.activations], shape.hidden, plan.tp
    total = 0.0
    for layer, count in shape.kinds:
        if recompute == "full":
            total += count * hidden / plan.sp
            continue
        a, f, r = layer.attention, layer.feed_forward, layer.recurrent
        # inputs of the norms and of the projections after them
        outside = (layer.norms + 2) * hidden / plan.sp
        inside = (a.heads + a.kv_heads) * (a.head_dim + a.value_dim) if a else 0
        inside += r.projected + 2 * r.inner if r else 0
        fed = (3 if f.gated else 2) * (f.inner * max(f.active, 1) + f.shared_inner) if f else 0
        total += count * (outside + (inside + fed) / tp)
    return tokens * (total * act / plan.pp + shape.vocab / tp * 4)
