"""Layout of a model on devices (parallel sizes, number formats, efficiencies), and the batch of one step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

from llmprof.errors import LlmprofError, listed
from llmprof.theory.shapes import Shape

BYTES: Final[dict[str, float]] = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.5 + 2 / 128}
"""Bytes of a number of each format; int4 with one 16-bit scale for each group of 128, as AWQ and GPTQ store it."""

ALIASES: Final = {
    "bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32", "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8", "w8a8": "int8", "w4a16": "int4", "awq": "int4", "gptq": "int4",
}  # fmt: skip


def number_format(name: str) -> str:
    """One of :data:`BYTES` for a name in use.

    Raises
    ------
    LlmprofError
        The name is unknown.

    Examples
    --------
    >>> number_format("bfloat16")
    'bf16'
    """
    plain = ALIASES.get(str(name).lower().removeprefix("torch."), str(name).lower())
    if plain not in BYTES:
        raise LlmprofError(f"there is no number format {name!r}", expected=f"one of {', '.join(BYTES)}")
    return plain


@dataclass(frozen=True)
class Efficiency:
    """Assumed shares of a device's peaks, each in (0, 1].

    Parameters
    ----------
    flops, memory : float
        Of the arithmetic rate and of the bandwidth of the device memory.
    intra_node, inter_node : float
        Of the links inside a machine and between machines.
    """

    flops: float = 1.0
    memory: float = 1.0
    intra_node: float = 1.0
    inter_node: float = 1.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not isinstance(value, (int, float)) or not 0 < value <= 1:
                raise LlmprofError(f"the {name} efficiency is {value!r}", expected="a share above 0 and at most 1")


@dataclass(frozen=True)
class Plan:
    """Layout of a model on its devices.

    Parameters
    ----------
    tp, pp, dp, sp : int
        Ranks that split each layer, that split the layers, that repeat the model, and that split the sequence between
        the tensor-parallel parts (Megatron's sequence parallelism: 1 or ``tp``).
    expert_parallel : bool
        Whether experts are spread over the ``tp`` ranks whole instead of each being split.
    weights, kv_cache, activations : str
        Number formats (:data:`BYTES`).
    weight_bytes : float or None
        Bytes of a weight where it is not the format's own.
    devices_per_node : int
        Devices of one machine; parallel groups beyond it use the network.
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    sp: int = 1
    expert_parallel: bool = False
    weights: str = "bf16"
    kv_cache: str = "bf16"
    activations: str = "bf16"
    weight_bytes: float | None = None
    devices_per_node: int = 8

    def __post_init__(self) -> None:
        for name in ("tp", "pp", "dp", "sp", "devices_per_node"):
            positive(name, getattr(self, name))
        if self.sp not in (1, self.tp):
            raise LlmprofError(
                f"sp={self.sp} with tp={self.tp}",
                expected="sp of 1, or the same as tp",
                hint="sequence parallelism shares the ranks of tensor parallelism",
            )
        for name in ("weights", "kv_cache", "activations"):
            if getattr(self, name) not in BYTES:
                raise LlmprofError(f"{name}={getattr(self, name)!r}", expected=f"one of {', '.join(BYTES)}")
        if self.activations not in ("bf16", "fp16", "fp32"):
            raise LlmprofError(f"activations={self.activations!r}", expected="bf16, fp16 or fp32")
        if self.weight_bytes is not None and not 0 < self.weight_bytes <= 8:
            raise LlmprofError(f"{self.weight_bytes!r} bytes a weight", expected="a number above 0 and at most 8")

    @property
    def low_bytes(self) -> float:
        """Bytes of a weight of the layers' projections."""
        return BYTES[self.weights] if self.weight_bytes is None else self.weight_bytes

    @property
    def high_bytes(self) -> float:
        """Bytes of a weight that quantization leaves alone: embeddings, norms, router, output projection."""
        return max(self.low_bytes, BYTES[self.activations]) if self.low_bytes < 2 else self.low_bytes

    @property
    def math(self) -> str:
        """Format in which the projections multiply: weights of 4 bits are widened to the activations' format first."""
        return self.weights if self.weights in ("fp8", "int8") else self.activations

    def check(self, shape: Shape) -> None:
        """Refuse sizes that do not divide the model, as vLLM does.

        Raises
        ------
        LlmprofError
            ``tp`` does not divide the attention heads, or neither divides the heads of keys and values nor is a
            multiple of them, or ``pp`` is more than the layers, or ``tp`` does not divide the experts that it spreads.
        """
        for layer, _ in shape.kinds:
            a, f = layer.attention, layer.feed_forward
            if a.heads % self.tp:
                fit = [n for n in range(1, a.heads + 1) if a.heads % n == 0 and n <= 64]
                raise LlmprofError(
                    f"tp={self.tp} does not divide the {a.heads} attention heads of {shape.name}",
                    expected=f"one of {listed(fit)}",
                    hint="vLLM refuses to start with it; use pp for the rest",
                )
            if not a.latent and a.kv_heads % self.tp and self.tp % a.kv_heads:
                raise LlmprofError(
                    f"tp={self.tp} and the {a.kv_heads} heads of keys and values of {shape.name} do not divide",
                    expected="one that divides them, or a multiple of them (they are repeated then)",
                )
            if self.expert_parallel and f.experts and f.experts % self.tp:
                raise LlmprofError(f"the {f.experts} experts of {shape.name} do not spread over {self.tp} ranks evenly")
            inner = f.inner if not (f.experts and self.expert_parallel) else 0
            if inner % self.tp:
                raise LlmprofError(f"tp={self.tp} does not divide the inner size {inner} of {shape.name}")
        if self.pp > len(shape.layers):
            raise LlmprofError(f"pp={self.pp} for the {len(shape.layers)} layers of {shape.name}")


@dataclass(frozen=True)
class Requests:
    """Requests of one kind in a step.

    Parameters
    ----------
    count : float
        How many.
    query : float
        New tokens of each in this step.
    context : float
        Tokens of each that attention reaches at the end of the step, the new ones counted.
    phase : {"prefill", "decode"}
        Whether the prompt is being read or a token is generated.
    """

    count: float
    query: float
    context: float
    phase: Literal["prefill", "decode"] = "decode"

    def __post_init__(self) -> None:
        for name in ("count", "query", "context"):
            value = getattr(self, name)
            if not (isinstance(value, (int, float)) and math.isfinite(value) and value > 0):
                raise LlmprofError(f"{name}={value!r} of the requests of a step", expected="a number above 0")
        if self.context < self.query:
            raise LlmprofError(
                f"a context of {self.context} tokens with {self.query} new ones", expected="at least the new tokens"
            )

    @property
    def tokens(self) -> float:
        """New tokens together."""
        return self.count * self.query

    def pairs(self, window: int | None = None) -> float:
        """Pairs of a query and a key that it sees: all before it and itself, at most ``window``.

        Examples
        --------
        >>> Requests(1, 4, 4).pairs()
        10.0
        """
        return self.count * (_seen(self.context, window) - _seen(self.context - self.query, window))

    def keys(self, window: int | None = None) -> float:
        """Tokens whose keys and values the requests read, the new ones counted."""
        reach = self.context if window is None else min(self.context, window + self.query - 1)
        return self.count * reach


def _seen(length: float, window: int | None) -> float:
    """Sum over the positions 1 to ``length`` of the keys that each sees."""
    if window is None or length <= window:
        return length * (length + 1) / 2
    return window * (window + 1) / 2 + (length - window) * window


Batch = tuple[Requests, ...]
"""What one step computes."""


def prefill(batch_size: float, seq_len: float) -> Batch:
    """A step that reads ``batch_size`` whole prompts of ``seq_len`` tokens."""
    return (Requests(batch_size, seq_len, seq_len, "prefill"),)


def decode(batch_size: float, context: float) -> Batch:
    """A step that makes one token for each of ``batch_size`` requests whose context then is ``context`` tokens."""
    return (Requests(batch_size, 1, context, "decode"),)


def positive(name: str, value: object) -> None:
    """Refuse a size that is no whole number above 0."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise LlmprofError(f"{name}={value!r}", expected="a whole number of at least 1")
