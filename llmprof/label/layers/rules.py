"""What a transformer layer looks like: rules that name the events from one attention to the next.

Whatever the engine fuses, attention (or the scan of a state-space or linear-attention layer) occurs
once in every layer, so each begins a stretch that reaches to the next one. A stretch holds the rest
of one layer and the beginning of the next: the layer ends with the GEMM after its activation (or
with the last GEMM of its experts) and what finishes that one; the rest belongs to the next layer. A
recording has few distinct stretches, so the rules are plain Python. A block of a layer is one
function that names its own events and leaves the others (None) to the next block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import accumulate, takewhile
from typing import Final, NamedTuple

from llmprof.label.layers.kernels import Kernel

_MAX_PRODUCT: Final = 3
"""The product of gate and up projection has at most this number of kernels."""
_MAX_GATE: Final = 3
"""Kernels of a shared expert's gate after its product: sigmoid, product, and the sum of all
experts.
"""
_MIN_NORM: Final = 3
"""A norm that the framework computes kernel by kernel (square, mean, root, product) has more
than this.
"""
_MAX_ANGLES: Final = 4
"""Most kernels between the last sine of rope's angles and the first norm."""
_EXCHANGES: Final = (
    "all_to_all",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "send_recv",
)
_PRODUCT_FOLLOWERS: Final = ("gemm", "collective", "moe_routing")

BODY, PROLOGUE, EPILOGUE, PREAMBLE = range(4)
"""Places in a stretch: the rest of its layer, the beginning of the next one, after the last
layer, before the first.
"""


def _scan_stage(kernel: Kernel) -> str:
    return "conv" if kernel.does("convolves before") else "scan"


class LayerEnd(NamedTuple):
    """Where a layer ends, counted in rows of its stretch."""

    row: int
    own_norm: bool | None
    """Whether a norm of the layer's own output follows, as in Gemma and OLMo 2; None if nothing
    follows.
    """
    row_with_norm: int
    next_gemm: int | None


class Usual(NamedTuple):
    """What the other layers say of one."""

    last: int
    """Number of the GEMM that ends the layer."""
    end: int
    """Row that ends it."""
    lead: int
    """Rows from the end of a layer to the next GEMM."""
    qkv: int
    """GEMMs before an attention."""
    next_scans: bool
    """Whether the next layer mixes its tokens by a scan."""
    own_layers: bool
    """Whether feed-forward parts are layers of their own."""


class Stretch:
    """Events from one attention to the next, or before the first attention of a pass.

    ``n`` counts the GEMMs up to each event. ``latent`` and ``fused``: whether the rank has latent
    attention, and activations in one kernel.
    """

    def __init__(
        self, kernels: Sequence[Kernel], *, attends: bool, latent: bool, fused: bool, hybrid: bool
    ) -> None:
        self.kernels, self.attends, self.latent, self.fused = kernels, attends, latent, fused
        self.rows = range(len(kernels))
        mixing = self.role_rows("attends") if attends else []
        self.scans = bool(mixing) and kernels[mixing[0]].category == "scan"
        """Whether the layer begins with a scan, not with attention."""
        self.ends_in_scan = bool(mixing) and kernels[mixing[-1]].category == "scan"
        # attention and scan side by side in one layer, or a batch's prefill and decode scanned
        # apart: the projections between them are part of the mixer
        self.mixed = mixing[-1] if any(kernels[i].category == "scan" for i in mixing) else -1
        self.n = list(
            accumulate(int(k.does("gemm") and i > self.mixed) for i, k in enumerate(kernels))
        )
        self.gemms = self.n[-1]
        scanned = mixing[-1] if self.ends_in_scan else -1
        self.gated = next((i for i in self.rows if i > scanned and self._gates(i)), len(kernels))
        """Where the gate and the norm of a scan's result begin."""
        experts = self.of("moe_experts") or self._products_after_router()
        self.expert_rows = frozenset(experts)
        parts = [] if fused else [i for i in self.role_rows("bends") if self.n[i]]
        activations = sorted(
            {*(i for i in self.of("activation") if self.n[i] or not attends), *parts}
        )
        self.first_expert = self.n[experts[0]] if experts else None
        self.last_expert = self.n[experts[-1]] if experts else None
        first_activation, activation = (
            (self.n[activations[i]] if activations else None) for i in (0, -1)
        )
        # GEMMs between attention and feed-forward part; a norm after the activation does not part
        # these
        parted = next((self.n[i] for i in self.rows if self.n[i] and self._ends_part(i)), None)
        limit = next(n for n in (first_activation, self.first_expert, self.gemms) if n is not None)
        self.out_gemms = parted if parted is not None and parted < limit else 1
        # lightning attention: the projection of its gate and a norm stand between the scan and the
        # output projection
        norms = [self.n[i] for i in self.of("norm") if self.n[i] < limit]
        self.gated_separately = self.ends_in_scan and norms[:2] == [1, 2]
        self.out_gemms += self.gated_separately
        # a choice among values before the experts chooses them; one after the last GEMM of a layer
        # is sampling
        begin = self.first_expert if activation is None or experts else activation + 1
        chosen = next((self.n[i] for i in self.role_rows("chooses") if self.n[i]), None)
        self.chosen = (
            chosen
            if attends and chosen is not None and begin is not None and chosen < begin
            else None
        )
        ends = [
            n for n in (self.last_expert, self._end_of_feed_forward(activation)) if n is not None
        ]
        after = self.rows[experts[-1] :] if experts else []
        self.shared = self.of(
            "activation", among=takewhile(lambda i: self.kernels[i].category != "norm", after)
        )
        self.shared = [i for i in self.shared if self.n[i] > (self.last_expert or 0)]
        """Activations of experts that every token goes to, after the chosen ones."""
        feeds = bool(ends)
        ends = ends or [self.out_gemms] * hybrid
        self.seen = min(max(ends), self.gemms) if ends and attends else None
        """Number of the GEMM that ends the layer, by its activation or experts."""
        self.parts = (
            self._parts(sorted([*activations, *experts])) if feeds and attends and hybrid else []
        )
        """Rows at which feed-forward parts begin, in models with scans, whose layers may have
        none or several.
        """

    def of(self, *categories: str, among: Iterable[int] | None = None) -> list[int]:
        """Rows of some categories."""
        return [
            i
            for i in (self.rows if among is None else among)
            if self.kernels[i].category in categories
        ]

    def role_rows(self, role: str, among: Iterable[int] | None = None) -> list[int]:
        """Rows with a role."""
        return [i for i in (self.rows if among is None else among) if self.kernels[i].does(role)]

    def _products_after_router(self) -> list[int]:
        """Products of experts whose names do not say so: from a router to the next norm."""
        first = next(iter(self.role_rows("routes")), len(self.kernels))
        after = takewhile(lambda i: self.kernels[i].category != "norm", self.rows[first:])
        return self.role_rows("gemm", after)

    def _gates(self, row: int) -> bool:
        """Whether an event begins to gate or norm the result of a scan (a conversion of its type
        before that does).
        """
        k, following = self.kernels[row], self._kernel_at(row + 1)
        starts = k.among("norm", "activation") or k.does("powers") or k.does("bends")
        return starts or (
            k.category == "copy" and following is not None and following.among("activation")
        )

    def _kernel_at(self, row: int) -> Kernel | None:
        return self.kernels[row] if 0 <= row < len(self.kernels) else None

    def _next_to(self, row: int, *categories: str) -> bool:
        k = self._kernel_at(row)
        return k is not None and k.category in categories

    def _ends_part(self, row: int) -> bool:
        k = self.kernels[row]
        return k.among("norm", "collective", "moe_routing") or k.does("adds")

    def _follows_product(self, row: int) -> bool:
        """Whether the event before (or before a memory copy) is a GEMM or what finishes one."""
        before = self._kernel_at(row - 1)
        if before is not None and before.source == "copy":
            before = self._kernel_at(row - 2)
        return before is not None and (before.does("gemm") or before.category in _PRODUCT_FOLLOWERS)

    def _end_of_feed_forward(self, activation: int | None) -> int | None:
        """The GEMM after the activation, or the second one if the gate is activated before the
        up projection.
        """
        # Then the element-wise product of both follows the GEMM after the activation, and not a
        # norm or a collective.
        if activation is None:
            return None
        product = [
            i
            for i in self.rows
            if self.n[i] == activation + 1
            and not self.kernels[i].does("gemm")
            and self.kernels[i].category != "gemm"
        ]
        gated_separately = (
            self.gemms > activation + 1
            and len(product) <= _MAX_PRODUCT
            and any(self.kernels[i].does("multiplies") for i in product)
            and not any(map(self._ends_part, product))
        )
        # the gate of an expert that every token goes to has a GEMM of its own, whose result is bent
        shared = self.last_expert is not None and self.last_expert < activation < self.gemms - 1
        own_gate = self.kernels[self.n.index(activation + 2) + 1 :][:1] if shared else []
        return activation + 1 + (gated_separately or any(k.does("bends") for k in own_gate))

    # The end of the layer.

    def end(self, last: int) -> LayerEnd:
        """Row that ends the layer, if GEMM number ``last`` is its last."""
        tail = [i for i in self.rows if self.n[i] == last]
        # the next layer begins with its norm, even if a collective comes between that and the next
        # GEMM
        closing = list(takewhile(lambda i: self.kernels[i].category != "norm", tail))
        # nothing but a conversion precedes a norm of one kernel in its own layer: sums and scales
        # end the one before
        sums = [
            i for i in closing if self.kernels[i].does("adds") or self.kernels[i].does("multiplies")
        ]
        end = max(
            [i for i in closing if self._closes(i)] + sums * (len(closing) < len(tail)), default=0
        )
        # a shared expert's own gate: sigmoid and product, then the sum with the chosen experts
        gate = [i for i in closing if end < i <= end + _MAX_GATE]
        if self.role_rows("bends", gate[:1]):
            end = max(self.role_rows("adds", gate), default=end)
        added, root = self.role_rows("adds", tail)[:1], self.role_rows("roots", tail)[:1]
        if self.chosen is not None and added and (not root or added < root):
            end = added[
                0
            ]  # the results of the chosen experts are weighted and added after their last GEMM
        own, with_norm = self._norm_at_end([i for i in tail if i > end])
        return LayerEnd(end, own, with_norm, self.n.index(last + 1) if last < self.gemms else None)

    def _closes(self, row: int) -> bool:
        """Whether an event belongs to the end of a layer: its last GEMM, or what finishes that
        one.
        """
        k = self.kernels[row]
        return (
            k.does("gemm")
            or k.among("gemm", "collective", "moe_routing", "moe_experts")
            or (k.does("adds") and self._follows_product(row))
            or (
                k.source == "copy"
                and (
                    self._next_to(row + 1, "collective")
                    or self._next_to(row - 1, "moe_routing", "collective")
                )
            )
        )

    def _norm_at_end(self, after: list[int]) -> tuple[bool | None, int]:
        """Whether a layer norms its own output before it is added, and the row that ends the
        layer then.
        """
        # Two norms follow its last GEMM (the second is the next layer's), or one norm whose result
        # is then added.
        norms = self.role_rows("roots", after)
        if not norms:
            return (False if after else None), 0
        first = norms[0]
        later = [i for i in after if i > first and (len(norms) == 1 or i < norms[1])]
        own = list(takewhile(lambda i: not self.kernels[i].does("powers"), later))
        adds = self.role_rows("adds", after)
        added_later = bool(self.role_rows("adds", own)) and adds[0] >= first
        is_own = not self.kernels[first].does("fuses add") and (len(norms) > 1 or added_later)
        scaled = self.role_rows("multiplies", own)
        end = scaled[-1] if scaled and self.kernels[first].category != "norm" else first
        # the conversion and the addition that follow it belong to it
        end += end + 1 in self.of("copy", among=after)
        end += end + 1 in adds
        return is_own, end

    def _parts(self, bends: list[int]) -> list[int]:
        """Row after the mixer, and each norm between the last GEMM of a feed-forward part and
        the bend of the next.
        """
        parts = [self.end(self.out_gemms).row + 1]
        for row in self.of("norm"):
            done = [i for i in bends if parts[-1] <= i < row]
            after = [i for i in bends if i > row]
            multiplied = (
                done and self.n[done[-1]] - (done[-1] in self.of("moe_experts")) < self.n[row]
            )
            if multiplied and after and self.n[row] < self.n[after[0]]:
                parts.append(row)
        return parts

    # The stages.

    def _part_by_part(self, usual: Usual, *, is_last: bool) -> tuple[list[int], list[str]]:
        """As :meth:`named`, each feed-forward part named as if it alone followed the mixer."""
        head = list(self.kernels[: self.parts[0]])
        places: list[int] = []
        stages: list[str] = []
        properties = {"attends": True, "latent": self.latent, "fused": self.fused, "hybrid": True}
        for begin, end in zip(self.parts, [*self.parts[1:], len(self.kernels)], strict=True):
            part = Stretch([*head, *self.kernels[begin:end]], **properties)
            cut, final = begin - len(head), end == len(self.kernels)
            fewer = self.n[begin - 1] - self.n[len(head) - 1]
            last, row = (
                (usual.last - fewer, usual.end - cut)
                if final
                else (part.seen or 0, len(part.kernels) - 1)
            )
            found = part.named(
                usual._replace(last=last, end=row, own_layers=False), is_last=is_last and final
            )
            own = slice(len(head) if places else 0, None)
            places += found[0][own]
            stages += found[1][own]
        return places, stages

    def named(self, usual: Usual, *, is_last: bool) -> tuple[list[int], list[str]]:
        """Place and stage of each event."""
        if usual.own_layers and len(self.parts) > 1:
            return self._part_by_part(usual, is_last=is_last)
        rules = {
            BODY: self._body,
            PROLOGUE: self._prologue,
            EPILOGUE: self._stage_after_layers,
            PREAMBLE: self._stage_before_layers,
        }
        self._find_prologue(usual)
        places = [self._place(i, usual, is_last=is_last) for i in self.rows]
        stages = []
        for i, place in enumerate(places):
            named = self._named_stage(i) or self._communication(i, place)
            if named is None and not (is_last and place == PREAMBLE):
                named = rules[place](i, usual)
            stages.append(named or ("copy" if self.kernels[i].source == "copy" else "other"))
        # what only prepares the next event has its stage, unless it follows an attention
        following: int | None = None
        for i in reversed(self.rows):
            if not self.kernels[i].does("prepares") or (i and self.kernels[i - 1].does("attends")):
                following = i
            elif following is not None and places[i] == places[following] != PREAMBLE:
                stages[i] = stages[following]
        return places, stages

    def _find_prologue(self, usual: Usual) -> None:
        """Where inputs, embedding and rope's angles end, and the first layer begins, in a
        stretch before the layers.
        """
        self.last_rope = max(self.of("rope"), default=None)
        self.cached = max(self.of("kv_cache_write"), default=None)
        computes = set(self.rows).difference(self.of("copy", "kv_cache_write"))
        self.last_compute = max(computes, default=len(self.rows))
        first_qkv = self.gemms - usual.qkv + 1
        unnamed = self.of(
            "norm", "other", "elementwise", among=(i for i in self.rows if self.n[i] == self.gemms)
        )
        unnamed = [i for i in unnamed if not self.kernels[i].does("prepares")]
        self.norms_qk = bool(unnamed) and self.last_rope is not None and unnamed[0] < self.last_rope
        """Whether q and k are normed between their projection and rope."""
        first_row = next(
            (i for i in self.rows if self.n[i] >= self._first_qkv(usual)), len(self.rows)
        )
        turning = self.of("other", "elementwise", among=self.rows[first_row:])
        plain = self.role_rows("framework", turning)
        turned = all(self.role_rows(role, plain) for role in ("multiplies", "adds")) or len(
            plain
        ) < len(turning)
        self.rotary = self.last_rope is not None or turned
        """Whether the unnamed kernels after the projections rotate q and k: no scaling or
        copying alone does.
        """
        self.angles = range(0)
        if turns := self.role_rows("rotates"):
            begin = min(
                turns + [i for i in self.role_rows("single") if not self.kernels[i].does("gemm")]
            )
            units = (
                [i - 1 for i in self.of("norm") if i > turns[-1]],
                [i - 2 for i in self.role_rows("powers") if i > turns[-1]],
            )
            unit = min(units[0][:1] + units[1][:1], default=len(self.rows) + _MAX_ANGLES)
            # the scale and the types of sine and cosine come after them
            self.angles = range(begin, (unit if unit - turns[-1] <= _MAX_ANGLES else turns[-1]) + 1)
        early = [i for i in self.rows if self.n[i] < first_qkv]
        # images have a convolution or a projection of their patches in place of a look-up
        looked_up = self.role_rows("embeds") or self.of("embedding")
        no_image = self.attends or self.role_rows("embeds_and_norms")
        patches = [] if no_image else self.of("gemm", "conv", among=early)
        self.patches = [] if looked_up else patches
        self.embedding = min((looked_up or patches)[:1], default=len(self.rows))
        while patches and self.embedding and self.kernels[self.embedding - 1].among("copy", "fill"):
            self.embedding -= 1  # another layout of an image for its convolution
        # the embedding's own collective comes before the first norm; one after that is the first
        # layer's
        gathered, norm_row = (
            self.of("collective", among=early)[:1],
            self.of("norm", among=early)[:1],
        )
        gathered = gathered if not norm_row or gathered < norm_row else []
        inputs = [*self.of("embedding", among=early)[-1:], *gathered, self.angles.stop - 1]
        qkv_row = self.n.index(first_qkv) - usual.lead if 0 < first_qkv <= self.gemms else 0
        self.begin = max(qkv_row, *(i + 1 for i in inputs))

    def _place(self, row: int, usual: Usual, *, is_last: bool) -> int:
        if self.attends:
            return BODY if row <= usual.end else EPILOGUE if is_last else PROLOGUE
        return PROLOGUE if not is_last and row >= self.begin else PREAMBLE

    def _named_stage(self, row: int) -> str | None:
        """Stage of an event whose name says it, wherever it is."""
        k = self.kernels[row]
        said = {
            "adapts": "lora",
            "transfers": "kv_transfer",
            "dispatches": "expert_dispatch",
            "returns": "combine",
        }
        return next((stage for role, stage in said.items() if k.does(role)), None)

    def _communication(self, row: int, place: int) -> str | None:
        """Stage of a collective and of the copies into and out of its buffer: its kind, or what
        experts exchange.
        """
        k, n = self.kernels[row], self.n[row]
        if k.category == "collective":
            if k.kind in _EXCHANGES and self.first_expert is not None and place == BODY and n:
                if n < self.first_expert:
                    return "expert_dispatch"
                if n >= (self.last_expert or 0):
                    return "combine"
            return k.kind or "other"
        if k.source == "copy":
            into, before, two_before = (
                self._kernel_at(row + 1),
                self._kernel_at(row - 1),
                self._kernel_at(row - 2),
            )
            if into is not None and into.category == "collective":
                return into.kind
            if (
                before is not None
                and before.category == "collective"
                and two_before
                and two_before.source == "copy"
            ):
                return before.kind
        return None

    def _body(self, row: int, usual: Usual) -> str:
        """From a layer's attention to its end."""
        gates = self.ends_in_scan and self.n[row] <= self.gated_separately
        if chosen := self._chooses_keys(row):
            return chosen
        if self.kernels[row].among("norm", "kv_cache_write") and not gates:
            return self.kernels[row].category
        return next(stage for block in _blocks() if (stage := block(self, row, usual)))

    def _chooses_keys(self, row: int) -> str | None:
        """Stage of a kernel of sparse attention that scores keys or chooses some."""
        k = self.kernels[row]
        return "indexer" if k.does("scores") else "top_k" if k.does("selects") else None

    def mixer(self, row: int, usual: Usual) -> str | None:
        """Attention and its output projection; latent attention multiplies with its absorbed
        projections first.
        """
        k, n = self.kernels[row], self.n[row]
        if row <= self.mixed:
            return self._side_by_side(row)
        if n == 0 and self.ends_in_scan:
            return _scan_stage(k) if row < self.gated else "gate_norm"
        if n == 1 and self.gated_separately:
            return "in_proj" if k.category == "gemm" else "gate_norm"
        if k.category == "attention" or n == 0:
            return "attention"
        if k.category == "gemm" and n <= self.out_gemms:
            return (
                "out_proj"
                if self.ends_in_scan
                else "attention"
                if self.latent and n < self.out_gemms
                else "o_proj"
            )
        return None

    def _side_by_side(self, row: int) -> str:
        """Attention and scan of one layer, each with its projections, one after the other."""
        k, mixing = self.kernels[row], self.role_rows("attends")
        before = max((i for i in mixing if i < row), default=row)
        scanned, scans = (
            self.kernels[i].category == "scan"
            for i in (before, next(i for i in mixing if i >= row))
        )
        projected = sum(self.kernels[i].does("gemm") for i in range(before + 1, row))
        if k.category == "gemm" and not projected and scanned != scans:
            return "out_proj" if scanned else "o_proj"
        if k.category == "gemm":
            return "in_proj" if scans else "qkv_proj"
        if k.category == "scan":
            return _scan_stage(k)
        if k.among("rope", "attention", "kv_cache_write", "norm"):
            return k.category
        if projected < 2 and scanned != scans:
            return "gate_norm" if scanned and not projected else "residual"
        return "scan" if scans else "attention"

    def shared_experts(self, row: int, usual: Usual) -> str | None:
        """Experts that every token goes to, before or after the chosen ones: their GEMMs,
        activation and gate.
        """
        if self.first_expert is None or self.last_expert is None:
            return None
        k, n = self.kernels[row], self.n[row]
        before = [
            i for i in self.of("activation") if self.out_gemms + 1 < self.n[i] < self.first_expert
        ]
        mine = before if n < self.first_expert else self.shared if n > self.last_expert else []
        product = next(i for i in reversed(range(row + 1)) if self.kernels[i].does("gemm") or not i)
        near = (
            n > self.out_gemms + (n < self.first_expert)
            and self.kernels[product].category == "gemm"
        )
        gated = k.does("multiplies") and self.role_rows("bends", range(product, row))
        computes = k.among("gemm", "activation") or k.does("bends") or gated
        return "shared_experts" if mine and near and computes else None

    def experts(self, row: int, usual: Usual) -> str | None:
        """Router, dispatch, experts and combine, also if kernels of the framework choose the
        experts.
        """
        k, n, linear = self.kernels[row], self.n[row], self.kernels[row].category == "gemm"
        if row in self.expert_rows:
            return "experts"
        if k.does("routes"):
            return "router"
        if k.category == "activation":
            return None
        if (
            k.category == "copy"
            and n == self.out_gemms
            and self._next_to(row - 1, "norm")
            and self.first_expert
        ):
            return "router"  # its input in another precision
        if (
            self.shared
            and row > self.shared[-1]
            and self.role_rows("adds", range(self.shared[-1], row))
        ):
            return "residual"  # after the sum of all experts
        if self.last_expert is not None and n >= self.last_expert:
            return "combine"
        if n == self.chosen and k.among("gemm", "elementwise", "copy", "other"):
            return "router"
        if self.chosen is not None and n >= usual.last and not linear and not k.does("adds"):
            return "combine"
        if self.first_expert is None:
            return None
        if linear:
            routes = n < self.first_expert and n == self.out_gemms + 1
            return (
                "router"
                if routes
                else "down_proj"
                if self._next_to(row - 1, "activation")
                else None
            )
        if n >= self.first_expert:
            return "experts"
        return "expert_dispatch" if n > self.out_gemms else None

    def feed_forward(self, row: int, usual: Usual) -> str:
        """Projections up and down with the activation between them, and the norms and sums
        around it.
        """
        k, n = self.kernels[row], self.n[row]
        if k.category == "activation":
            return "activation"
        if k.category == "gemm":
            return "gate_up_proj" if n < usual.last else "down_proj"
        if k.does("adds") and (n >= usual.last or self._follows_product(row)):
            return "residual"
        return "norm" if n <= self.out_gemms or n >= usual.last else "activation"

    def _prologue(self, row: int, usual: Usual) -> str:
        """From the end of a layer to the next attention: norm, projections of q, k and v, rope,
        cache.
        """
        k, first_qkv = self.kernels[row], self._first_qkv(usual)
        absorbed = (
            k.category == "gemm" and self.latent and self.cached is not None and row > self.cached
        )
        before_rope = self.last_rope is not None and row <= self.last_rope
        if chosen := self._chooses_keys(row):
            return chosen
        if k.does("readies") or absorbed:
            return "attention"
        if k.category == "scan":
            return _scan_stage(k)
        if k.category == "gemm":
            return "in_proj" if usual.next_scans else "qkv_proj"
        if usual.next_scans and self.n[row] >= first_qkv and k.category != "norm":
            return "scan"
        if k.among("norm", "rope", "kv_cache_write", "attention"):
            return k.category
        if self.n[row] >= first_qkv and k.does("adds") and self._follows_product(row):
            return "qkv_proj"  # its bias
        # without a rope kernel the unnamed kernels are the rope; with one, kernels before it norm q
        # and k
        if self.n[row] < first_qkv or (before_rope and self.norms_qk):
            return "norm"
        if row >= self.last_compute and k.does("caches"):
            return "kv_cache_write"
        last = k.category == "copy" and row >= self.last_compute and not before_rope
        return "attention" if last or not self.rotary else "rope"

    def _first_qkv(self, usual: Usual) -> int:
        return usual.last + 1 if self.attends else self.gemms - usual.qkv + 1

    def _stage_after_layers(self, row: int, usual: Usual) -> str | None:
        """After the last layer: norm, head and sampling."""
        k, n, head = self.kernels[row], self.n[row], usual.last + 1
        if n < head and (self.gemms >= head or k.category == "norm"):
            return "final_norm"
        if n >= head:
            if n < self.gemms or k.category == "gemm":
                return "lm_head"
            # an embedding model has a head, too, but chooses no token
            return "sampling" if self.of("sampling") else None
        # a norm made of many kernels, as between the layers
        of_many = usual.lead >= _MIN_NORM and row <= usual.end + usual.lead and k.source != "copy"
        return "final_norm" if of_many else None

    def _stage_before_layers(self, row: int, usual: Usual) -> str:
        """Before the first layer."""
        if row in self.angles:
            return "rope"
        if self.kernels[row].category == "gemm" and row not in self.patches:
            return "other"  # its place alone does not tell what a product is
        return "embedding" if row >= self.embedding else "prepare_inputs"


Block = Callable[[Stretch, int, Usual], str | None]


@cache
def _blocks() -> tuple[Block, ...]:
    """The blocks of a layer, each asked in turn; the last one names whatever is left."""
    return (
        Stretch.mixer,
        Stretch.shared_experts,
        Stretch.experts,
        Stretch.feed_forward,
    )
