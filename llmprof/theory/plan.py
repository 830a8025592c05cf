"""Layout of a model on devices (parallel sizes, number formats, efficiencies), and the batch of
one step.
"""

from __future__ import annotations

import math
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import asdict

from llmprof.errors import LlmprofError, listed
from llmprof.theory.shapes import Shape

BYTES: Final[dict[str, float]] = {
    "fp32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "int4": 0.5 + 2 / 128,
    "mxfp4": 0.5 + 1 / 32,
    "nvfp4": 0.5 + 1 / 16,
}
"""Bytes of a number in each format with its scales.

int4: 16 bits for each group of 128, as AWQ and GPTQ store it without zero points. mxfp4: 8 bits for
each 32 numbers (OCP Microscaling Formats specification 1.0, table 1). nvfp4: 8 bits for each 16
numbers (NVIDIA Transformer Engine, NVFP4); its 32-bit scale of a whole tensor counts nothing.
"""

ALIASES: Final = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float32": "fp32",
    "float": "fp32",
    "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8",
    "w8a8": "int8",
    "w4a16": "int4",
    "awq": "int4",
    "gptq": "int4",
    "fp4": "nvfp4",
}


_MULTIPLIED: Final = {"fp8": "fp8", "int8": "int8", "nvfp4": "fp4"}


def number_format(name: str) -> str:
    """Key of :data:`BYTES` for a common name of a number format."""
    plain = ALIASES.get(str(name).lower().removeprefix("torch."), str(name).lower())
    if plain not in BYTES:
        raise LlmprofError(
            f"there is no number format {name!r}", expected=f"one of {', '.join(BYTES)}"
        )
    return plain


class Efficiency(Struct, frozen=True):
    """Assumed shares of a device's peaks, each in (0, 1].

    Parameters
    ----------
    flops, memory : float
        Shares of the arithmetic rate and of the bandwidth of the device memory.
    intra_node, inter_node : float
        Shares of the bandwidth of the links inside a machine and between machines.
    """

    flops: float = 1.0
    memory: float = 1.0
    intra_node: float = 1.0
    inter_node: float = 1.0

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not isinstance(value, (int, float)) or not 0 < value <= 1:
                raise LlmprofError(
                    f"the {name} efficiency is {value!r}", expected="a share above 0 and at most 1"
                )


class Plan(Struct, frozen=True):
    """Layout of a model on its devices.

    Parameters
    ----------
    tp : int
        Tensor-parallel size: number of ranks that split each layer.
    pp : int
        Number of pipeline stages, which share out the layers.
    dp : int
        Number of replicas of the model (data parallelism).
    sp : int
        Number of ranks that split the sequence between the tensor-parallel parts (Megatron's
        sequence parallelism): 1 or ``tp``.
    expert_parallel : bool
        Whether whole experts are spread over the ``tp`` ranks, instead of splitting each expert.
    weights, kv_cache, activations : str
        Number formats (:data:`BYTES`).
    weight_bytes : float or None
        Bytes of a weight if they differ from those of the format.
    devices_per_node : int
        Number of devices in a machine; larger parallel groups use the network.
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
            hint = "sequence parallelism shares the ranks of tensor parallelism"
            raise LlmprofError(
                f"sp={self.sp} with tp={self.tp}", expected="sp of 1, or the same as tp", hint=hint
            )
        for name in ("weights", "kv_cache", "activations"):
            if getattr(self, name) not in BYTES:
                raise LlmprofError(
                    f"{name}={getattr(self, name)!r}", expected=f"one of {', '.join(BYTES)}"
                )
        if self.activations not in ("bf16", "fp16", "fp32"):
            raise LlmprofError(f"activations={self.activations!r}", expected="bf16, fp16 or fp32")
        if self.weight_bytes is not None and not 0 < self.weight_bytes <= 8:
            raise LlmprofError(
                f"a weight has {self.weight_bytes!r} bytes",
                expected="a number above 0 and at most 8",
            )

    @property
    def low_bytes(self) -> float:
        """Bytes of a weight of the projections in the layers."""
        return BYTES[self.weights] if self.weight_bytes is None else self.weight_bytes

    @property
    def high_bytes(self) -> float:
        """Bytes of a weight that is not quantized: embeddings, norms, router, output projection."""
        return (
            max(self.low_bytes, BYTES[self.activations]) if self.low_bytes < 2 else self.low_bytes
        )

    @property
    def math(self) -> str:
        """Number format in which projections multiply: of 4-bit weights, that of the
        activations, but nvfp4 as fp4.
        """
        return _MULTIPLIED.get(self.weights, self.activations)

    def stored(self, shape: Shape, stage: str) -> tuple[float, str]:
        """Bytes of a weight of a stage's projections in the layers, and the format in which they
        multiply.
        """
        if shape.quantizes(stage):
            return self.low_bytes, self.math
        other = shape.other_format
        if other and self.weights == shape.weight_format:
            return BYTES[other], _MULTIPLIED.get(other, self.activations)
        return self.high_bytes, self.activations

    def check(self, shape: Shape) -> None:
        """Refuse, with an LlmprofError, parallel sizes by which the model cannot be split, as
        vLLM does.
        """
        for layer, _ in shape.kinds:
            a, f, r = layer.attention, layer.feed_forward, layer.recurrent
            for heads, what in (
                (a.heads if a else 0, "attention heads"),
                (r.heads if r else 0, "heads of the states"),
            ):
                if heads % self.tp:
                    fit = [n for n in range(1, heads + 1) if heads % n == 0 and n <= 64]
                    found = f"tp={self.tp} does not divide the {heads} {what} of {shape.name}"
                    hint = "vLLM does not start with this size; use a smaller tp together with pp"
                    raise LlmprofError(found, expected=f"one of {listed(fit)}", hint=hint)
            if a and not (a.latent or a.out_rank) and a.kv_heads % self.tp and self.tp % a.kv_heads:
                raise LlmprofError(
                    f"tp={self.tp} neither divides the {a.kv_heads} heads of keys and values of"
                    f" {shape.name}, nor is it a multiple of them",
                    expected=(
                        "a tp that divides them, or a multiple of them (they are repeated then)"
                    ),
                )
            if f is None:
                continue
            if self.expert_parallel and f.experts and f.experts % self.tp:
                raise LlmprofError(
                    f"tp={self.tp} does not divide the {f.experts} experts of {shape.name}"
                )
            inner = f.inner if not (f.experts and self.expert_parallel) else 0
            if inner % self.tp:
                raise LlmprofError(
                    f"tp={self.tp} does not divide the inner size {inner} of {shape.name}"
                )
        if self.pp > len(shape.layers):
            raise LlmprofError(
                f"pp={self.pp} is more than the {len(shape.layers)} layers of {shape.name}"
            )


class Requests(Struct, frozen=True):
    """Requests of equal size and phase in a step.

    Parameters
    ----------
    count : float
        Number of requests.
    query : float
        New tokens of each request in this step.
    context : float
        Tokens of each request that attention reads at the end of the step, including the new ones.
    phase : {"prefill", "decode"}
        Whether the step reads the prompt or generates a token.
    """

    count: float
    query: float
    context: float
    phase: Literal["prefill", "decode"] = "decode"

    def __post_init__(self) -> None:
        for name in ("count", "query", "context"):
            value = getattr(self, name)
            if not (isinstance(value, (int, float)) and math.isfinite(value) and value > 0):
                raise LlmprofError(
                    f"requests of a step have {name}={value!r}", expected="a number above 0"
                )
        if self.context < self.query:
            found = f"a context of {self.context} tokens cannot hold {self.query} new tokens"
            raise LlmprofError(found, expected="at least the number of new tokens")

    @property
    def tokens(self) -> float:
        """Number of new tokens of all requests."""
        return self.count * self.query

    def pairs(self, window: int | None = None) -> float:
        """Number of pairs of a query and a key that it sees: its own and all earlier ones, at
        most ``window``.
        """
        return self.count * (_seen(self.context, window) - _seen(self.context - self.query, window))

    def keys(self, window: int | None = None) -> float:
        """Number of tokens whose keys and values the requests read, including the new ones."""
        reach = self.context if window is None else min(self.context, window + self.query - 1)
        return self.count * reach

    def entries(self, rate: int, most: int | None = None) -> float:
        """Number of pairs of a query and an entry of ``rate`` tokens before it, at most ``most``
        a query.
        """
        return self.count * (
            _entries(self.context, rate, most) - _entries(self.context - self.query, rate, most)
        )


def _entries(length: float, rate: int, most: int | None) -> float:
    """Sum over the positions 1 to ``length`` of the number of entries of ``rate`` tokens that
    are complete by then.
    """
    if most is not None and length >= most * rate:
        return _entries(most * rate - 1, rate, None) + (length - most * rate + 1) * most
    whole = length // rate
    return float(rate * whole * (whole - 1) / 2 + whole * (length - whole * rate + 1))


def _seen(length: float, window: int | None) -> float:
    """Sum over the positions 1 to ``length`` of the number of keys that each one sees."""
    if window is None or length <= window:
        return length * (length + 1) / 2
    return window * (window + 1) / 2 + (length - window) * window


Batch = tuple[Requests, ...]
"""Requests of one step."""


def prefill(batch_size: float, seq_len: float) -> Batch:
    """Batch of a step that reads ``batch_size`` whole prompts of ``seq_len`` tokens."""
    return (Requests(batch_size, seq_len, seq_len, "prefill"),)


def decode(batch_size: float, context: float) -> Batch:
    """Batch of a step that generates a token for each of ``batch_size`` requests with
    ``context`` tokens at its end.
    """
    return (Requests(batch_size, 1, context, "decode"),)


def positive(name: str, value: object) -> None:
    """Refuse a size that is not an integer above 0."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise LlmprofError(f"{name}={value!r}", expected="a whole number of at least 1")
