"""Work of every operator of a step on one rank: FLOPs, bytes, messages, kernels.

Formulas for T new tokens, R requests, hidden size h, n heads of size d, g heads of keys and values,
inner size i:

================ ==============================================
================================================ stage            FLOPs (a multiply-add is two)
bytes beside its input and result ================ ==============================================
================================================ qkv_proj         2 T h (n + 2 g) d
its weights attention        4 n d x pairs of a query and a key it sees     keys and values of the
context, once a request o_proj           2 T n d h                                      its weights
gate_up, down    2 T h i each matrix                            its weights experts          2 T k h
i each matrix, k experts a token       the weights of the experts that the batch touches lm_head
2 R h V (the last token of each request)       its weights ================
============================================== ================================================

Only matrix products count as FLOPs, as in ``torch.utils.flop_counter``. T tokens that each choose k
of E experts at random are sent to E (1 - (1 - k/E)^T) different experts on average.

Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1) is computed in two ways, as
in vLLM. Prefill expands the latent vectors to heads (the products of kv_b_proj count in qkv_proj).
Decode instead multiplies kv_b_proj into the query and the result, and attends over the latent
vectors themselves ("absorbed").

Recurrent mixers keep a state of H heads with K x V numbers for each request, whatever its length.
Per token and head, Mamba-2 (arXiv 2405.21060, equation 1) and lightning attention (arXiv
2401.04658) update it with one outer product and read it with one product: 4 K V FLOPs. The delta
rule (arXiv 2412.06464, equation 10; KDA: arXiv 2510.26692) also looks up what the state holds for
the key: 6 K V. This is the least work; chunked kernels of prefill trade more of it for larger
products. A causal convolution of c channels and k taps has 2 T c k. A step reads and writes each
request's state once; a prompt that begins reads none. Sparse attention (DeepSeek-V3.2, arXiv
2512.02556) scores all keys with the heads of the indexer, 2 H d FLOPs a pair, and attends to the
best ``top_k``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from llmprof.theory.plan import BYTES, Batch, Plan, Requests
from llmprof.theory.shapes import Attention, Extra, FeedForward, Layer, Recurrent, Shape


class OperatorWork(Struct, frozen=True):
    """Work of one operator on one rank in one layer.

    ``kernels`` is how many vLLM usually launches for it; ``tiles`` is the least number of blocks of
    an attention. If ``fusable``, engines fuse it with its neighbours, and its activations never
    reach the memory. Bytes of ``kv`` are those of recurrent states, too; ``updates`` is the number
    of a Mamba state's elements that decoding updates.
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
    updates: float = 0.0
    fusable: bool = False

    @property
    def bytes_read(self) -> float:
        """Bytes that the operator reads: weights, cached keys and values, activations."""
        return self.weight_bytes + self.kv_read_bytes + self.input_bytes

    @property
    def bytes_written(self) -> float:
        """Bytes that the operator writes."""
        return self.kv_write_bytes + self.output_bytes


def step_operators(
    shape: Shape,
    batch: Batch,
    plan: Plan,
    *,
    causal: bool = True,
    all_logits: bool = False,
    absorb: bool = True,
) -> list[OperatorWork]:
    """Operators of one step, in order."""
    before, inside, after = placed_operators(
        shape, batch, plan, causal=causal, all_logits=all_logits, absorb=absorb
    )
    return [*before, *(operator for parts in inside.values() for operator in parts), *after]


def placed_operators(
    shape: Shape,
    batch: Batch,
    plan: Plan,
    *,
    causal: bool = True,
    all_logits: bool = False,
    absorb: bool = True,
) -> tuple[list[OperatorWork], dict[Layer, list[OperatorWork]], list[OperatorWork]]:
    """Operators of one step before the layers, in each kind of layer, and after the layers."""
    plan.check(shape)
    step = _Step(shape, batch, plan, causal, absorb)
    inside = {
        layer: [replace(operator, layers=count) for operator in step.layer(layer)]
        for layer, count in shape.kinds
    }
    return list(step.before()), inside, list(step.after(all_logits))


def distinct_experts(experts: int, active: int, tokens: float) -> float:
    """Expected number of different experts, if ``tokens`` tokens each choose ``active`` of
    ``experts`` at random.
    """
    missed: float = (1 - active / experts) ** tokens
    return experts * (1 - missed)


_IN_PROJECTIONS: Final = {"gated_delta_net": 2, "kda": 6}
"""Products that vLLM 0.26 makes one after the other:

(q, k, v, z), (b, a); q, k, v, b and two of low rank.
"""


class _Step:
    """Operators of a batch on one rank."""

    def __init__(self, shape: Shape, batch: Batch, plan: Plan, causal: bool, absorb: bool) -> None:
        self.shape, self.batch, self.plan, self.causal, self.absorb = (
            shape,
            batch,
            plan,
            causal,
            absorb,
        )
        self.tokens = sum(part.tokens for part in batch)
        self.requests = sum(part.count for part in batch)
        self.act = BYTES[plan.activations]
        self.hidden_bytes = self.tokens * shape.hidden * self.act

    def before(self) -> Iterator[OperatorWork]:
        """The embedding."""
        hidden, width = self.shape.hidden, self.shape.embedding_width
        yield self._moving(
            "embedding",
            self.tokens * width * self.plan.high_bytes + 8 * self.tokens,
            self.hidden_bytes,
        )
        if width != hidden:
            yield self._projection("project_in", width, hidden, stage="embedding")
        yield from self._extras(self.shape.before)
        yield from self._all_reduce()

    def layer(self, layer: Layer) -> Iterator[OperatorWork]:
        """One layer."""
        before, after = (layer.norms + 1) // 2, layer.norms // 2
        if before:
            yield self._norm("input_norm", before)
        if layer.attention is not None:
            yield from self._attention(layer.attention)
        if layer.recurrent is not None:
            yield from self._recurrent(layer.recurrent)
        if layer.attention is not None or layer.recurrent is not None:
            yield from self._all_reduce()
        if after:
            yield self._norm("post_norm", after)
        if layer.feed_forward is not None:
            yield from self._feed_forward(layer.feed_forward)
            yield from self._all_reduce()
        yield from self._extras(layer.extras)

    def _extras(self, extras: tuple[Extra, ...]) -> Iterator[OperatorWork]:
        """Work on the residual stream, which every rank does whole."""
        for one in extras:
            read = self.tokens * (one.moved * self.act + one.row * self.plan.high_bytes)
            yield self._moving(
                one.component,
                read,
                self.tokens * (one.moved + one.row) * self.act,
                stage="embedding" if one.table else "residual",
                flops=2 * self.tokens * (one.weights + one.more),
                weight_bytes=(one.weights + one.small) * self.plan.high_bytes,
            )

    def after(self, all_logits: bool) -> Iterator[OperatorWork]:
        """Operators after the last layer: norm, output projection, sampling."""
        shape, plan, act, width = self.shape, self.plan, self.act, self.shape.embedding_width
        yield from self._extras(shape.after)
        if shape.final_norm:
            yield replace(self._norm("final_norm", 1), stage="final_norm")
        if width != shape.hidden:
            yield self._projection("project_out", shape.hidden, width, stage="lm_head")
        rows = self.tokens if all_logits else self.requests
        yield self._projection("lm_head", width, shape.vocab / plan.tp, tokens=rows)
        logits = rows * shape.vocab * act
        if plan.tp > 1:
            yield self._message("gather_logits", "all_gather", logits)
        yield self._moving("sampling", logits, 8 * rows, math="fp32", kernels=8)
        if plan.pp > 1:
            passed = self._message("pass_on", "send_recv", self.hidden_bytes / plan.tp)
            yield replace(passed, layers=plan.pp - 1)
            yield self._message("tell_tokens", "broadcast", 8 * rows)

    def _attention(self, a: Attention) -> Iterator[OperatorWork]:
        plan, hidden, act, t = self.plan, self.shape.hidden, self.act, self.tokens
        heads, kv_heads = a.heads / plan.tp, max(a.kv_heads / plan.tp, 1)
        if a.latent or a.out_rank:
            yield from self._latent(a) if a.latent else self._compressed(a)
            return
        query, key, value = heads * a.head_dim, kv_heads * a.head_dim, kv_heads * a.value_dim
        gate = query if a.gated else 0
        made = 0 if a.shared else key if a.tied_values else key + value
        yield self._linear("qkv_proj", hidden, query + gate + made)
        # compiled engines fuse the norms of queries and keys with the rotation: one pass over both
        if kernels := bool(a.norm_parameters) + (self.shape.family not in ("gpt2", "opt")):
            moved = t * (query + (0 if a.shared else key)) * act
            yield self._moving("rope", moved, moved, kernels=kernels, fusable=True)
        cache = BYTES[plan.kv_cache] * (key + value)
        if not a.shared:
            yield self._cached(key + value)
        pairs = sum(self._pairs(part, a.window) for part in self.batch)
        old = sum(part.keys(a.window) - part.tokens for part in self.batch)
        yield self._moving(
            "attention",
            t * query * act + t * cache,
            t * heads * a.value_dim * act,
            flops=2 * heads * (a.head_dim + a.value_dim) * pairs,
            kv_read_bytes=max(old, 0) * cache,
            kernels=2,
            tiles=self.requests * kv_heads,
        )
        if gate:
            moved = t * heads * a.value_dim * act
            yield self._moving("attention_gate", 2 * moved, moved, stage="attention", fusable=True)
        yield self._linear("o_proj", heads * a.value_dim, hidden)

    def _recurrent(self, r: Recurrent) -> Iterator[OperatorWork]:
        """Projections, causal convolution, scan, gate with norm, and output projection, split by
        heads.
        """
        plan, act, t = self.plan, self.act, self.tokens
        inner, channels = r.inner / plan.tp, r.channels / plan.tp
        begun = sum(part.count for part in self.batch if part.context > part.query)
        decoding = sum(part.count for part in self.batch if part.phase == "decode")
        count = _IN_PROJECTIONS.get(r.kind, 1)
        yield replace(
            self._linear("in_proj", self.shape.hidden, r.projected / plan.tp), kernels=count
        )
        if r.taps > 1:
            kept = channels * (r.taps - 1) * act
            yield self._moving(
                "conv",
                t * channels * act,
                t * channels * act,
                flops=2 * t * channels * r.taps,
                kv_read_bytes=begun * kept,
                kv_write_bytes=self.requests * kept,
            )
        if r.inside:
            inputs = r.inside / (
                r.heads * r.key_dim
            )  # of matrices from the size of a head to all heads
            inside = self._linear(
                "inner_proj", inputs, r.inside / inputs / plan.tp, stage="in_proj"
            )
            yield replace(inside, kernels=2)
        if r.state:
            state = r.state / plan.tp * BYTES[r.state_format or plan.activations]
            yield self._moving(
                "scan",
                t * (channels or 3 * inner) * act,
                t * inner * act,
                flops=2 * r.products * t * r.state / plan.tp,
                kv_read_bytes=begun * state,
                kv_write_bytes=self.requests * state,
                tiles=self.requests * r.heads / plan.tp,
                updates=decoding * r.state / plan.tp if r.kind.startswith("mamba") else 0.0,
            )
            yield self._moving("gate_norm", 2 * t * inner * act, t * inner * act)
        yield self._linear("out_proj", inner, self.shape.hidden)

    def _pairs(self, part: Requests, window: int | None) -> float:
        return part.pairs(window) if self.causal else part.tokens * part.context

    def _latent(self, a: Attention) -> Iterator[OperatorWork]:
        """Multi-head latent attention.

        Every rank has both down_proj; the rest is split by heads.
        """
        plan, hidden, act, t = self.plan, self.shape.hidden, self.act, self.tokens
        heads, nope = a.heads / plan.tp, a.head_dim - a.rope_dim
        query, latent = heads * a.head_dim, a.kv_rank + a.rope_dim
        if a.q_rank:
            yield self._linear("qkv_a_proj", hidden, a.q_rank + latent, stage="qkv_proj")
        else:
            yield self._linear("q_proj", hidden, query, stage="qkv_proj")
            yield self._linear("kv_a_proj", hidden, latent, stage="qkv_proj")
        moved = t * (a.q_rank + a.kv_rank) * act
        yield self._moving("qk_norm", moved, moved, stage="norm")
        if a.q_rank:
            yield self._linear("q_b_proj", a.q_rank, query, stage="qkv_proj")
        expanded = [part for part in self.batch if part.phase == "prefill" or not self.absorb]
        absorbed = [part for part in self.batch if part not in expanded]
        moved = t * (query + a.rope_dim) * act
        yield self._moving("rope", moved, moved, fusable=True)
        cache = latent * BYTES[plan.kv_cache]
        yield self._cached(latent)
        if a.index_heads:
            yield from self._indexer(a)
        if expanded:
            tokens = sum(part.tokens for part in expanded)
            # the cache holds latent vectors, which are expanded for the whole context
            reach = sum(part.keys() for part in expanded)
            yield self._linear(
                "kv_b_proj", a.kv_rank, heads * (nope + a.value_dim), stage="qkv_proj", tokens=reach
            )
            yield self._moving(
                "attention",
                (tokens * query + reach * heads * (a.head_dim + a.value_dim)) * act,
                tokens * heads * a.value_dim * act,
                flops=2
                * heads
                * (a.head_dim + a.value_dim)
                * sum(self._pairs(part, a.top_k) for part in expanded),
                kv_read_bytes=(reach - tokens) * cache,
            )
        if absorbed:
            tokens = sum(part.tokens for part in absorbed)
            up = a.kv_rank * heads * (nope + a.value_dim)
            yield self._moving(
                "absorbed_kv_b",
                tokens * (query + heads * a.kv_rank) * act,
                tokens * heads * (latent + a.value_dim) * act,
                stage="attention",
                flops=2 * tokens * up,
                weight_bytes=up * plan.high_bytes,
                kernels=2,
            )
            yield self._moving(
                "attention",
                tokens * heads * latent * act + tokens * cache,
                tokens * heads * a.kv_rank * act,
                flops=2
                * heads
                * (latent + a.kv_rank)
                * sum(self._pairs(part, a.top_k) for part in absorbed),
                kv_read_bytes=sum(max(part.keys(a.top_k) - part.tokens, 0) for part in absorbed)
                * cache,
                kernels=2,
                tiles=sum(part.count for part in absorbed),
            )
        yield self._linear("o_proj", heads * a.value_dim, hidden)

    def _compressed(self, a: Attention) -> Iterator[OperatorWork]:
        """Attention to a window and, beyond it, to entries that stand for several tokens; keys are
        the values.

        Every rank makes the keys, the entries and the choice of entries; the rest is split by
        heads.
        """
        plan, hidden, act, t = self.plan, self.shape.hidden, self.act, self.tokens
        heads, dim = a.heads / plan.tp, a.head_dim
        yield self._linear("qkv_a_proj", hidden, a.q_rank + dim, stage="qkv_proj")
        moved = t * (a.q_rank + dim) * act
        yield self._moving("qk_norm", moved, moved, stage="norm")
        yield self._linear("q_b_proj", a.q_rank, heads * dim, stage="qkv_proj")
        moved = t * (heads + 1) * dim * act
        yield self._moving("rope", moved, moved, fusable=True)
        yield self._cached(dim)
        chosen = kept = made = 0.0
        if a.compress:
            made = t / a.compress
            yield self._projection("compressor", hidden, 2 * a.entry_width, stage="qkv_proj")
            written = made * dim * BYTES[plan.kv_cache]
            work: dict[str, Any] = {
                "stage": "kv_cache_write",
                "kv_write_bytes": written,
                "fusable": True,
            }
            yield self._moving("compress", 2 * t * a.entry_width * act, 0.0, **work)
            if a.index_heads:
                yield from self._indexer(a, made)
            chosen = sum(self._entries(part, a.compress, a.top_k) for part in self.batch)
            # a step reads an entry once for all queries of a request
            most = a.top_k or math.inf
            kept = sum(
                part.count * min(part.context // a.compress, part.query * most)
                for part in self.batch
            )
        pairs = sum(self._pairs(part, a.window) for part in self.batch)
        old = sum(part.keys(a.window) - part.tokens for part in self.batch)
        cache = dim * BYTES[plan.kv_cache]
        yield self._moving(
            "attention",
            t * heads * dim * act + t * cache,
            t * heads * dim * act,
            flops=4 * heads * dim * (pairs + chosen),
            kv_read_bytes=(max(old, 0) + kept) * cache,
            kernels=2,
            tiles=self.requests,
        )
        grouped = self._linear("o_a_proj", heads * dim, a.out_rank, stage="o_proj")
        width = a.out_groups / plan.tp * a.out_rank
        yield replace(grouped, output_bytes=t * width * act)
        yield self._linear("o_b_proj", width, hidden, stage="o_proj")

    def _entries(self, part: Requests, rate: int, most: int | None) -> float:
        if self.causal:
            return part.entries(rate, most)
        return part.tokens * min(part.context // rate, most or math.inf)

    def _indexer(self, a: Attention, made: float | None = None) -> Iterator[OperatorWork]:
        """Choice of the tokens, or of the ``made`` compressed entries, that are attended; every
        rank scores all.
        """
        act, t, width, hidden = (
            self.act,
            self.tokens,
            a.index_heads * a.index_dim,
            self.shape.hidden,
        )
        yield self._linear("index_q_proj", a.q_rank, width, stage="indexer")
        if made is None:
            keys = a.index_dim + a.index_heads
            yield self._linear("index_k_proj", hidden, keys, stage="indexer")
            pairs = sum(self._pairs(part, None) for part in self.batch)
            read, weighed = (
                sum(part.keys() - part.tokens for part in self.batch),
                width + a.index_heads,
            )
        else:
            keys = 4 * a.index_dim + a.index_heads
            yield self._projection("index_k_proj", hidden, keys, stage="indexer")
            pairs = sum(self._entries(part, a.compress, None) for part in self.batch)
            read, weighed = (
                sum(part.count * (part.context // a.compress) for part in self.batch),
                width,
            )
        cache = a.index_dim * BYTES[self.plan.kv_cache]
        yield self._moving(
            "index_scores",
            t * (width + keys) * act,
            4 * pairs,
            stage="indexer",
            flops=2 * weighed * pairs,
            kv_read_bytes=read * cache,
            kv_write_bytes=(t if made is None else made) * cache,
        )
        yield self._moving(
            "index_top_k", 4 * pairs, 4 * min(t * (a.top_k or 0), pairs), stage="top_k"
        )

    def _feed_forward(self, f: FeedForward) -> Iterator[OperatorWork]:
        plan, hidden, act, t = self.plan, self.shape.hidden, self.act, self.tokens
        columns = 2 if f.gated else 1
        if not f.experts:
            inner = f.inner / plan.tp
            yield self._linear("gate_up_proj", hidden, columns * inner)
            yield self._moving("activation", columns * t * inner * act, t * inner * act)
            yield self._linear("down_proj", inner, hidden)
            return
        yield replace(self._projection("router", hidden, f.experts), kernels=2)
        # without expert parallelism every rank has a part of each expert, with it some whole
        # experts
        inner = f.inner if plan.expert_parallel else f.inner / plan.tp
        share = 1 / plan.tp if plan.expert_parallel else 1.0
        routed = t * f.active * share
        touched = distinct_experts(f.experts, f.active, t) * share
        width = f.latent or hidden
        size = width * inner * (columns + 1)
        ids = t * f.active * 8
        yield self._moving("expert_dispatch", ids, ids, kernels=2)
        if f.latent:
            yield self._linear("latent_proj", hidden, f.latent, stage="experts")
        yield self._moving(
            "experts",
            (t * width + routed * inner) * act,
            routed * (columns * inner + width) * act,
            flops=2 * routed * size,
            math=plan.math,
            weight_bytes=touched * size * plan.low_bytes,
            kernels=2,
        )
        yield self._moving("activation", columns * routed * inner * act, routed * inner * act)
        yield self._moving("combine", routed * width * act, t * width * act)
        if f.latent:
            yield self._linear("latent_proj_back", f.latent, hidden, stage="experts")
        if f.shared_inner:
            shared = hidden * f.shared_inner / plan.tp * (columns + 1)
            moved = self.hidden_bytes + t * f.shared_inner / plan.tp * (columns + 1) * act
            flops = 2 * t * shared + (2 * t * hidden if f.shared_gate else 0)
            each, product = plan.stored(self.shape, "shared_experts")
            work = {"math": product, "weight_bytes": shared * each, "kernels": 3}
            yield self._moving("shared_experts", moved, moved, flops=flops, **work)

    def _moving(self, component: str, read: float, written: float, **work: Any) -> OperatorWork:
        """An operator that reads and writes so many bytes of activations; its stage has its name
        if none is given.
        """
        moved: dict[str, Any] = {"input_bytes": read, "output_bytes": written}
        return OperatorWork(
            component, **{"stage": component, "math": self.plan.activations, **moved, **work}
        )

    def _message(self, component: str, stage: str, size: float) -> OperatorWork:
        return self._moving(component, 0.0, 0.0, stage=stage, message_bytes=size)

    def _cached(self, width: float) -> OperatorWork:
        written = self.tokens * width * BYTES[self.plan.kv_cache]
        return self._moving(
            "kv_cache_write",
            self.tokens * width * self.act,
            0.0,
            kv_write_bytes=written,
            fusable=True,
        )

    def _linear(self, component: str, inputs: float, outputs: float, **work: Any) -> OperatorWork:
        """Projection in a layer, whose weights have the low precision of a quantized model."""
        whole = self._projection(component, inputs, outputs, **work)
        each, product = self.plan.stored(self.shape, whole.stage)
        return replace(whole, math=product, weight_bytes=inputs * outputs * each)

    def _projection(
        self,
        component: str,
        inputs: float,
        outputs: float,
        *,
        tokens: float | None = None,
        stage: str | None = None,
    ) -> OperatorWork:
        """Product of the activations of some tokens, else of all, with a matrix of the rank's
        own size.
        """
        rows = self.tokens if tokens is None else tokens
        return self._moving(
            component,
            rows * inputs * self.act,
            rows * outputs * self.act,
            stage=stage or component,
            flops=2 * rows * inputs * outputs,
            weight_bytes=inputs * outputs * self.plan.high_bytes,
        )

    def _norm(self, component: str, count: int) -> OperatorWork:
        """Norms over the hidden size, each fused with the addition of the residual."""
        moved = count * 2 * self.hidden_bytes / self.plan.sp
        weights = (
            count * self.shape.hidden * self.plan.high_bytes * (2 if self.shape.norm_bias else 1)
        )
        return self._moving(
            component, moved, moved, stage="norm", weight_bytes=weights, kernels=count
        )

    def _all_reduce(self) -> Iterator[OperatorWork]:
        """All-reduce over the tensor-parallel ranks of a result of the hidden size."""
        if self.plan.tp > 1:
            yield self._message("all_reduce", "all_reduce", self.hidden_bytes)
