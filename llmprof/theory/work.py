"""Work of every operator of a step on one rank: FLOPs, bytes, messages, kernels.

Formulas for T new tokens, R requests, hidden size h, n heads of size d, g heads of keys and values, inner size i:

================ ============================================== ================================================
stage            FLOPs (a multiply-add is two)                  bytes beside its input and result
================ ============================================== ================================================
qkv_proj         2 T h (n + 2 g) d                              its weights
attention        4 n d x pairs of a query and a key it sees     keys and values of the context, once a request
o_proj           2 T n d h                                      its weights
gate_up, down    2 T h i each matrix                            its weights
experts          2 T k h i each matrix, k experts a token       the weights of the experts that the batch touches
lm_head          2 R h V (the last token of each request)       its weights
================ ============================================== ================================================

Only matrix products count as FLOPs, as in ``torch.utils.flop_counter``. T tokens that each choose k of E experts at
random are sent to E (1 - (1 - k/E)^T) different experts on average.

Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1) is computed in two ways, as in vLLM. Prefill
expands the latent vectors to heads (the products of kv_b_proj count in qkv_proj). Decode instead multiplies kv_b_proj
into the query and the result, and attends over the latent vectors themselves ("absorbed").
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from llmprof.theory.plan import BYTES, Batch, Plan, Requests
from llmprof.theory.shapes import Attention, FeedForward, Layer, Shape


@dataclass(frozen=True)
class Operator:
    """Work of one operator on one rank in one layer.

    ``kernels`` is how many vLLM usually launches for it; ``tiles`` is the least number of blocks of an attention.
    If ``fusable``, engines fuse it with its neighbours, and its activations never reach the memory.
    """

    component: str
    stage: str
    layers: int = 1
    flops: float = 0.0
    math: str = "bf16"
    weight_bytes: float = 0.0
    kv_read_bytes: float = 0.0
    kv_write_bytes: float = 0.0
    input_bytes: float = 0.0
    output_bytes: float = 0.0
    message_bytes: float = 0.0
    kernels: int = 1
    tiles: float = 0.0
    fusable: bool = False

    @property
    def bytes_read(self) -> float:
        """Bytes that the operator reads: weights, cached keys and values, activations."""
        return self.weight_bytes + self.kv_read_bytes + self.input_bytes

    @property
    def bytes_written(self) -> float:
        """Bytes that the operator writes."""
        return self.kv_write_bytes + self.output_bytes


def operators(
    shape: Shape, batch: Batch, plan: Plan, *, causal: bool = True, all_logits: bool = False, absorb: bool = True
) -> list[Operator]:
    """Operators of one step, in order."""
    before, inside, after = places(shape, batch, plan, causal=causal, all_logits=all_logits, absorb=absorb)
    return [*before, *(operator for parts in inside.values() for operator in parts), *after]


def places(
    shape: Shape, batch: Batch, plan: Plan, *, causal: bool = True, all_logits: bool = False, absorb: bool = True
) -> tuple[list[Operator], dict[Layer, list[Operator]], list[Operator]]:
    """Operators of one step before the layers, in each kind of layer, and after the layers."""
    plan.check(shape)
    step = _Step(shape, batch, plan, causal, absorb)
    inside = {
        layer: [replace(operator, layers=count) for operator in step.layer(layer)] for layer, count in shape.kinds
    }
    return list(step.before()), inside, list(step.after(all_logits))


def distinct_experts(experts: int, active: int, tokens: float) -> float:
    """Expected number of different experts, if ``tokens`` tokens each choose ``active`` of ``experts`` at random."""
    missed: float = (1 - active / experts) ** tokens
    return experts * (1 - missed)


class _Step:
    """Operators of a batch on one rank."""

    def __init__(self, shape: Shape, batch: Batch, plan: Plan, causal: bool, absorb: bool) -> None:
        self.shape, self.batch, self.plan, self.causal, self.absorb = shape, batch, plan, causal, absorb
        self.tokens = sum(part.tokens for part in batch)
        self.requests = sum(part.count for part in batch)
        self.act = BYTES[plan.activations]
        self.hidden_bytes = self.tokens * shape.hidden * self.act

    def before(self) -> Iterator[Operator]:
        """The embedding."""
        width = self.tokens * self.shape.embedding_width * self.plan.high_bytes
        yield Operator(
            "embedding",
            "embedding",
            input_bytes=width + 8 * self.tokens,
            output_bytes=self.hidden_bytes,
            math=self._math,
        )
        if self.shape.embedding_width != self.shape.hidden:
            yield self._projection(
                "project_in", "embedding", self.shape.embedding_width, self.shape.hidden, split=False
            )
        yield from self._all_reduce()

    def layer(self, layer: Layer) -> Iterator[Operator]:
        """One layer."""
        attended = list(self._attention(layer.attention))
        fed = list(self._feed_forward(layer.feed_forward))
        before, after = (1, 1) if layer.norms == 2 else (layer.norms // 2, layer.norms // 2)
        if layer.norms == 1:
            before, after = 1, 0
        if before:
            yield self._norm("input_norm", before)
        yield from attended
        yield from self._all_reduce()
        if after:
            yield self._norm("post_norm", after)
        yield from fed
        yield from self._all_reduce()

    def after(self, all_logits: bool) -> Iterator[Operator]:
        """Operators after the last layer: norm, output projection, sampling."""
        shape, plan, act = self.shape, self.plan, self.act
        if shape.final_norm:
            yield replace(self._norm("final_norm", 1), stage="final_norm")
        if shape.embedding_width != shape.hidden:
            yield self._projection("project_out", "lm_head", shape.hidden, shape.embedding_width, split=False)
        rows = self.tokens if all_logits else self.requests
        vocab = shape.vocab / plan.tp
        yield Operator(
            "lm_head",
            "lm_head",
            flops=2 * rows * shape.embedding_width * vocab,
            math=self._math,
            weight_bytes=shape.embedding_width * vocab * plan.high_bytes,
            input_bytes=rows * shape.embedding_width * act,
            output_bytes=rows * vocab * act,
        )
        if plan.tp > 1:
            yield Operator("gather_logits", "all_gather", message_bytes=rows * shape.vocab * act, math=self._math)
        logits = rows * shape.vocab
        yield Operator("sampling", "sampling", math="fp32", input_bytes=logits * act, output_bytes=8 * rows, kernels=8)
        if plan.pp > 1:
            hops = plan.pp - 1
            yield Operator(
                "pass_on", "send_recv", layers=hops, message_bytes=self.hidden_bytes / plan.tp, math=self._math
            )
            yield Operator("tell_tokens", "broadcast", message_bytes=8 * rows, math=self._math)

    @property
    def _math(self) -> str:
        return self.plan.activations

    def _attention(self, a: Attention) -> Iterator[Operator]:
        plan, hidden, act, t = self.plan, self.shape.hidden, self.act, self.tokens
        heads, kv_heads = a.heads / plan.tp, max(a.kv_heads / plan.tp, 1)
        if a.latent:
            yield from self._latent(a)
            return
        query, key, value = heads * a.head_dim, kv_heads * a.head_dim, kv_heads * a.value_dim
        yield self._linear("qkv_proj", "qkv_proj", hidden, query + key + value)
        # compiled engines fuse the norms of queries and keys with the rotation: one pass over both
        norms = 1 if a.norm_parameters else 0
        rotated = self.shape.family not in ("gpt2", "opt")
        if norms or rotated:
            moved = t * (query + key) * act
            kernels = norms + (1 if rotated else 0)
            yield Operator(
                "rope", "rope", input_bytes=moved, output_bytes=moved, math=self._math, kernels=kernels, fusable=True
            )
        cache = BYTES[plan.kv_cache] * (key + value)
        yield Operator(
            "kv_cache_write",
            "kv_cache_write",
            input_bytes=t * (key + value) * act,
            kv_write_bytes=t * cache,
            math=self._math,
            fusable=True,
        )
        pairs = sum(self._pairs(part, a.window) for part in self.batch)
        old = sum(part.keys(a.window) - part.tokens for part in self.batch)
        yield Operator(
            "attention",
            "attention",
            flops=2 * heads * (a.head_dim + a.value_dim) * pairs,
            math=self._math,
            kv_read_bytes=max(old, 0) * cache,
            input_bytes=t * query * act + t * cache,
            output_bytes=t * heads * a.value_dim * act,
            kernels=2,
            tiles=self.requests * kv_heads,
        )
        yield self._linear("o_proj", "o_proj", heads * a.value_dim, hidden)

    def _pairs(self, part: Requests, window: int | None) -> float:
        return part.pairs(window) if self.causal else part.tokens * part.context

    def _latent(self, a: Attention) -> Iterator[Operator]:
        """Multi-head latent attention. Every rank has both down_proj; the rest is split by heads."""
        plan, hidden, act, t = self.plan, self.shape.hidden, self.act, self.tokens
        heads, nope = a.heads / plan.tp, a.head_dim - a.rope_dim
        query, latent = heads * a.head_dim, a.kv_rank + a.rope_dim
        if a.q_rank:
            yield self._linear("qkv_a_proj", "qkv_proj", hidden, a.q_rank + latent, split=False)
            yield self._norm_of("qk_norm", a.q_rank + a.kv_rank)
            yield self._linear("q_b_proj", "qkv_proj", a.q_rank, query)
        else:
            yield self._linear("q_proj", "qkv_proj", hidden, query)
            yield self._linear("kv_a_proj", "qkv_proj", hidden, latent, split=False)
            yield self._norm_of("qk_norm", a.kv_rank)
        expanded = [part for part in self.batch if part.phase == "prefill" or not self.absorb]
        absorbed = [part for part in self.batch if part not in expanded]
        up = a.kv_rank * heads * (nope + a.value_dim)
        moved = t * (query + a.rope_dim) * act
        yield Operator("rope", "rope", input_bytes=moved, output_bytes=moved, math=self._math, fusable=True)
        cache = latent * BYTES[plan.kv_cache]
        yield Operator(
            "kv_cache_write",
            "kv_cache_write",
            input_bytes=t * latent * act,
            kv_write_bytes=t * cache,
            math=self._math,
            fusable=True,
        )
        if expanded:
            tokens = sum(part.tokens for part in expanded)
            # the cache holds latent vectors, which are expanded for the whole context
            reach = sum(part.keys() for part in expanded)
            yield Operator(
                "kv_b_proj",
                "qkv_proj",
                flops=2 * reach * up,
                math=plan.math,
                weight_bytes=up * plan.low_bytes,
                input_bytes=reach * a.kv_rank * act,
                output_bytes=reach * heads * (nope + a.value_dim) * act,
            )
            yield Operator(
                "attention",
                "attention",
                flops=2 * heads * (a.head_dim + a.value_dim) * sum(self._pairs(part, None) for part in expanded),
                math=self._math,
                kv_read_bytes=sum(part.keys() - part.tokens for part in expanded) * cache,
                input_bytes=(tokens * query + reach * heads * (a.head_dim + a.value_dim)) * act,
                output_bytes=tokens * heads * a.value_dim * act,
            )
        if absorbed:
            tokens = sum(part.tokens for part in absorbed)
            pairs = sum(self._pairs(part, None) for part in absorbed)
            yield Operator(
                "absorbed_kv_b",
                "attention",
                flops=2 * tokens * up,
                math=self._math,
                weight_bytes=up * plan.high_bytes,
                input_bytes=tokens * (query + heads * a.kv_rank) * act,
                output_bytes=tokens * heads * (latent + a.value_dim) * act,
                kernels=2,
            )
            yield Operator(
                "attention",
                "attention",
                flops=2 * heads * (latent + a.kv_rank) * pairs,
                math=self._math,
                kv_read_bytes=sum(part.keys() - part.tokens for part in absorbed) * cache,
                input_bytes=tokens * heads * latent * act + tokens * cache,
                output_bytes=tokens * heads * a.kv_rank * act,
                kernels=2,
                tiles=sum(part.count for part in absorbed),
            )
        yield self._linear("o_proj", "o_proj", heads * a.value_dim, hidden)

    def _feed_forward(self, f: FeedForward) -> Iterator[Operator]:
        plan, hidden, act, t = self.plan, self.shape.hidden, self.act, self.tokens
        columns = 2 if f.gated else 1
        if not f.experts:
            inner = f.inner / plan.tp
            yield self._linear("gate_up_proj", "gate_up_proj", hidden, columns * inner)
            moved = t * inner * act
            yield Operator("activation", "activation", input_bytes=columns * moved, output_bytes=moved, math=self._math)
            yield self._linear("down_proj", "down_proj", inner, hidden)
            return
        yield replace(self._projection("router", "router", hidden, f.experts, split=False), kernels=2)
        # without expert parallelism every rank has a part of each expert, with it some whole experts
        inner = f.inner if plan.expert_parallel else f.inner / plan.tp
        share = 1 / plan.tp if plan.expert_parallel else 1.0
        routed = t * f.active * share
        touched = distinct_experts(f.experts, f.active, t) * share
        size = hidden * inner * (columns + 1)
        ids = t * f.active * 8
        yield Operator(
            "expert_dispatch", "expert_dispatch", input_bytes=ids, output_bytes=ids, math=self._math, kernels=2
        )
        yield Operator(
            "experts",
            "experts",
            flops=2 * routed * size,
            math=plan.math,
            weight_bytes=touched * size * plan.low_bytes,
            input_bytes=(t * hidden + routed * inner) * act,
            output_bytes=routed * (columns * inner + hidden) * act,
            kernels=2,
        )
        moved = routed * inner * act
        yield Operator("activation", "activation", input_bytes=columns * moved, output_bytes=moved, math=self._math)
        yield Operator(
            "combine", "combine", input_bytes=routed * hidden * act, output_bytes=t * hidden * act, math=self._math
        )
        if f.shared_inner:
            shared = hidden * f.shared_inner / plan.tp * (columns + 1)
            moved = t * f.shared_inner / plan.tp * (columns + 1) * act
            yield Operator(
                "shared_experts",
                "experts",
                flops=2 * t * shared + (2 * t * hidden if f.shared_gate else 0),
                math=plan.math,
                weight_bytes=shared * plan.low_bytes,
                input_bytes=self.hidden_bytes + moved,
                output_bytes=self.hidden_bytes + moved,
                kernels=3,
            )

    def _linear(self, component: str, stage: str, inputs: float, outputs: float, *, split: bool = True) -> Operator:
        """Projection in a layer, whose weights have the low precision of a quantized model."""
        return replace(
            self._projection(component, stage, inputs, outputs, split=split),
            math=self.plan.math,
            weight_bytes=inputs * outputs * self.plan.low_bytes,
        )

    def _projection(self, component: str, stage: str, inputs: float, outputs: float, *, split: bool) -> Operator:
        del split  # sizes are those of the rank already; the argument documents at the call whether they were divided
        return Operator(
            component,
            stage,
            flops=2 * self.tokens * inputs * outputs,
            math=self._math,
            weight_bytes=inputs * outputs * self.plan.high_bytes,
            input_bytes=self.tokens * inputs * self.act,
            output_bytes=self.tokens * outputs * self.act,
        )

    def _norm(self, component: str, count: int) -> Operator:
        """Norms over the hidden size, each fused with the addition of the residual."""
        moved = 2 * self.hidden_bytes / self.plan.sp
        weights = self.shape.hidden * self.plan.high_bytes * (2 if self.shape.norm_bias else 1)
        return Operator(
            component,
            "norm",
            weight_bytes=count * weights,
            input_bytes=count * moved,
            output_bytes=count * moved,
            math=self._math,
            kernels=count,
        )

    def _norm_of(self, component: str, width: int) -> Operator:
        moved = self.tokens * width * self.act
        return Operator(component, "norm", input_bytes=moved, output_bytes=moved, math=self._math)

    def _all_reduce(self) -> Iterator[Operator]:
        """All-reduce over the tensor-parallel ranks of a result of the hidden size."""
        if self.plan.tp > 1:
            yield Operator("all_reduce", "all_reduce", message_bytes=self.hidden_bytes, math=self._math)
