"""Shape of a decoder-only model: the numbers from a ``config.json`` that the formulas need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from llmprof.errors import LlmprofError
from llmprof.theory import catalog


@dataclass(frozen=True)
class Attention:
    """Attention of a layer; ``q_rank, kv_rank, rope_dim`` are sizes of latent attention (0: not compressed)."""

    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    window: int | None = None
    bias_qkv: bool = False
    bias_out: bool = False
    norm_parameters: int = 0
    q_rank: int = 0
    kv_rank: int = 0
    rope_dim: int = 0

    @property
    def latent(self) -> bool:
        """Whether keys and values are cached as one compressed vector (MLA)."""
        return self.kv_rank > 0

    @property
    def cached_per_token(self) -> int:
        """Count of numbers that a token occupies in the KV cache of a layer, over all heads."""
        return self.kv_rank + self.rope_dim if self.latent else self.kv_heads * (self.head_dim + self.value_dim)


@dataclass(frozen=True)
class FeedForward:
    """Feed-forward part of a layer; ``inner`` is that of one expert, ``active`` how many each token is sent to."""

    inner: int
    gated: bool = True
    bias: bool = False
    experts: int = 0
    active: int = 0
    shared_inner: int = 0
    shared_gate: bool = False


@dataclass(frozen=True)
class Layer:
    """A decoder layer; ``norms`` is the number of its norms over the hidden size."""

    attention: Attention
    feed_forward: FeedForward
    norms: int = 2


@dataclass(frozen=True)
class Shape:
    """A decoder-only model.

    Parameters
    ----------
    name : str
        Name of the model.
    family : str
        ``model_type`` of its config.
    hidden, vocab : int
        Hidden size and size of the vocabulary.
    layers : tuple of Layer
        Layers in order.
    tied : bool
        Whether the output projection is the embedding matrix.
    norm_bias : bool
        Whether norms have a bias beside their weight.
    position_parameters : int
        Number of weights of learned positions.
    embedding_width : int
        Width of the embedding. It differs from the hidden size if the embedding is projected to it (some OPT models).
    head_bias, final_norm : bool
        Whether the output projection has a bias, and whether a norm precedes it.
    max_positions : int
        Longest sequence that the config states; 0 if it states none.
    weight_format : str
        ``fp8``, ``int8`` or ``int4`` if the config has a quantization, otherwise the dtype of the config.
    notes : tuple of str
        Assumptions that were made.
    """

    name: str
    family: str
    hidden: int
    vocab: int
    layers: tuple[Layer, ...]
    tied: bool = False
    norm_bias: bool = False
    position_parameters: int = 0
    embedding_width: int = 0
    head_bias: bool = False
    final_norm: bool = True
    max_positions: int = 0
    weight_format: str = "bf16"
    notes: tuple[str, ...] = ()

    @property
    def kinds(self) -> tuple[tuple[Layer, int], ...]:
        """Distinct layers and their counts, in the order of first occurrence."""
        counts: dict[Layer, int] = {}
        for layer in self.layers:
            counts[layer] = counts.get(layer, 0) + 1
        return tuple(counts.items())


_LLAMA_LIKE: Final = {
    "llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "gemma", "gemma2", "gemma3_text",
    "phi3", "olmo2", "olmoe", "deepseek_v2", "deepseek_v3",
}  # fmt: skip
FAMILIES: Final = frozenset(_LLAMA_LIKE | {"phi", "gpt2", "opt", "gpt_neox", "starcoder2"})
"""Values of ``model_type`` for which tests compare the parameter counts with those of transformers."""

_OTHER_STATE: Final = ("state_size", "ssm_cfg", "mamba_d_state", "linear_num_value_heads", "linear_attn_config")
_DTYPES: Final = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


def shape(model: str | Path | Mapping[str, Any] | Shape, *, name: str | None = None) -> Shape:
    """Read the shape of a model.

    Parameters
    ----------
    model : str, path, mapping or Shape
        Name in the catalogue (:func:`llmprof.theory.catalog.names`), a ``config.json``, its folder, or its content.
        A shape is returned unchanged.
    name : str, optional
        Name of the result. The default is the name in the catalogue or the config's ``_name_or_path``.

    Returns
    -------
    Shape
        The shape. A family that is not in :data:`FAMILIES` but has the fields of a Llama is treated as one, and
        ``notes`` says so.

    Raises
    ------
    LlmprofError
        The model is unknown or is not a decoder with attention in every layer, or its config lacks a required field or
        has an invalid value.

    Examples
    --------
    >>> shape("Qwen3-8B").hidden
    4096
    """
    if isinstance(model, Shape):
        return replace(model, name=name) if name else model
    config, called = _config(model)
    inner = config.get("text_config")
    if isinstance(inner, dict) and "hidden_size" in inner:
        kind = inner.get("model_type", f"{config.get('model_type', '')}_text")
        config = {**{k: config[k] for k in ("quantization_config",) if k in config}, **inner, "model_type": kind}
    return _Reader(config, name or called).read()


def _config(model: str | Path | Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    if isinstance(model, Mapping):
        config = dict(model)
        return config, str(config.get("_name_or_path") or config.get("model_type") or "model")
    text = str(model)
    path = Path(text).expanduser()
    if isinstance(model, Path) or path.suffix == ".json" or (text and path.is_dir()):
        return catalog.read_config(path), path.parent.name if path.suffix == ".json" else path.name
    return catalog.config_of(text), catalog.known(text)


class _Reader:
    """Fields of one config, with errors that name what is missing."""

    def __init__(self, config: dict[str, Any], name: str) -> None:
        self.config, self.name = config, name
        self.family = str(config.get("model_type", ""))
        self.notes: list[str] = []

    def read(self) -> Shape:
        """Shape that the config describes."""
        self._refuse_other_kinds()
        if self.family not in FAMILIES:
            self.notes.append(f"model_type {self.family!r} is not known: treated as a decoder with the form of Llama")
        hidden = self.number("hidden_size", "n_embd")
        count = self.number("num_hidden_layers", "n_layer")
        layers = tuple(
            Layer(self._attention(hidden, n, count), self._feed_forward(hidden, n), self._norms()) for n in range(count)
        )
        opt = self.family == "opt"
        positions = self.number("max_position_embeddings", "n_positions", default=0)
        learned = {"gpt2": positions, "opt": positions + 2}.get(self.family, 0)
        return Shape(
            name=self.name,
            family=self.family,
            hidden=hidden,
            vocab=self.number("vocab_size"),
            layers=layers,
            tied=bool(self.config.get("tie_word_embeddings", self.family in ("gpt2", "opt", "gemma", "gemma2"))),
            norm_bias=self.family in ("gpt2", "opt", "phi", "gpt_neox", "starcoder2"),
            position_parameters=learned * hidden,
            embedding_width=self.number("word_embed_proj_dim", default=hidden) if opt else hidden,
            head_bias=self.family == "phi",
            final_norm=not opt or bool(self.config.get("do_layer_norm_before", True)),
            max_positions=positions,
            weight_format=self._weight_format(),
            notes=tuple(self.notes),
        )

    def number(self, *fields: str, default: int | None = None, least: int = 1) -> int:
        """Value of the first of these fields that the config has, an integer of at least ``least``."""
        for field in fields:
            value = self.config.get(field)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < (0 if default == 0 else least):
                raise LlmprofError(
                    f"the config of {self.name} has {field}={value!r}", expected=f"a whole number of at least {least}"
                )
            return value
        if default is None:
            raise LlmprofError(
                f"the config of {self.name} has no {' or '.join(fields)}",
                expected="the config.json of a decoder-only model",
                hint="AutoConfig(...).save_pretrained of transformers writes a config with all fields that are needed",
                missing=fields,
            )
        return default

    def _refuse_other_kinds(self) -> None:
        matching = [field for field in _OTHER_STATE if field in self.config]
        if matching or self.config.get("is_encoder_decoder"):
            kind = ", ".join(matching) or "encoder-decoder"
            raise LlmprofError(
                f"{self.name} is not a decoder with attention in every layer ({kind})",
                expected="a dense or mixture-of-experts decoder",
            )

    def _norms(self) -> int:
        return {"gemma2": 4, "gemma3_text": 4, "phi": 1}.get(self.family, 2)

    def _window(self, n: int) -> int | None:
        window = self.config.get("sliding_window")
        if not isinstance(window, int) or window <= 0 or self.config.get("use_sliding_window") is False:
            return None
        kinds = self.config.get("layer_types")
        if isinstance(kinds, list) and n < len(kinds):
            return window if kinds[n] == "sliding_attention" else None
        if self.family == "gemma2":
            return window if n % 2 == 0 else None
        if self.family == "gemma3_text":
            return None if (n + 1) % int(self.config.get("sliding_window_pattern", 6)) == 0 else window
        if self.family.startswith("qwen2"):
            return window if n >= int(self.config.get("max_window_layers", 0)) else None
        return window

    def _attention(self, hidden: int, n: int, count: int) -> Attention:
        heads = self.number("num_attention_heads", "n_head")
        bias_default = self.family in ("qwen2", "qwen2_moe", "gpt2", "phi", "gpt_neox")
        bias = bool(self.config.get({"starcoder2": "use_bias", "opt": "enable_bias"}.get(self.family, "attention_bias"),
                                    bias_default or self.family in ("opt", "starcoder2")))  # fmt: skip
        if self.config.get("kv_lora_rank"):
            nope, rope = self.number("qk_nope_head_dim"), self.number("qk_rope_head_dim")
            q_rank, kv_rank = self.number("q_lora_rank", default=0), self.number("kv_lora_rank")
            return Attention(
                heads, heads, nope + rope, self.number("v_head_dim"), norm_parameters=q_rank + kv_rank,
                bias_qkv=bias, bias_out=bias, q_rank=q_rank, kv_rank=kv_rank, rope_dim=rope,
            )  # fmt: skip
        if "head_dim" not in self.config and hidden % heads:
            raise LlmprofError(
                f"the config of {self.name} has hidden_size {hidden}, which {heads} heads do not divide",
                expected="a field head_dim, or a number of heads that divides hidden_size",
            )
        dim = self.number("head_dim", default=hidden // heads)
        kv_heads = self.number("num_key_value_heads", default=heads)
        if heads % kv_heads:
            raise LlmprofError(
                f"the config of {self.name} has {heads} heads and {kv_heads} heads of keys and values",
                expected="a number of heads that is a multiple of the heads of keys and values",
            )
        norms = {"qwen3": 2 * dim, "qwen3_moe": 2 * dim, "gemma3_text": 2 * dim}.get(self.family, 0)
        if self.family in ("olmoe", "olmo2"):
            norms = (heads + kv_heads) * dim
        out_bias = bias and self.family not in ("qwen2", "qwen2_moe")
        return Attention(heads, kv_heads, dim, dim, self._window(n), bias, out_bias, norms)

    def _feed_forward(self, hidden: int, n: int) -> FeedForward:
        experts = self.number("num_experts", "num_local_experts", "n_routed_experts", default=0)
        gated = self.family not in ("phi", "gpt2", "opt", "gpt_neox", "starcoder2")
        bias = bool(self.config.get("mlp_bias", not gated and self.config.get("use_bias", True)))
        if experts and self._has_experts(n):
            inner = self.number("moe_intermediate_size", "intermediate_size")
            shared = self.number("shared_expert_intermediate_size", default=0)
            shared += self.number("n_shared_experts", default=0) * inner
            active = self.number("num_experts_per_tok")
            if active > experts:
                raise LlmprofError(f"the config of {self.name} sends a token to {active} of {experts} experts")
            return FeedForward(inner, True, False, experts, active, shared, self.family == "qwen2_moe")
        inner = self.number("intermediate_size", "ffn_dim", "n_inner", default=4 * hidden)
        if self.family not in ("gpt2", "opt") and "intermediate_size" not in self.config:
            self.number("intermediate_size")
        return FeedForward(inner, gated, bias)

    def _has_experts(self, n: int) -> bool:
        if n in (self.config.get("mlp_only_layers") or []):
            return False
        if n < int(self.config.get("first_k_dense_replace", 0)):
            return False
        step = int(self.config.get("decoder_sparse_step", 1) or 1)
        frequency = int(self.config.get("moe_layer_freq", 1) or 1)
        return (n + 1) % step == 0 and n % frequency == 0

    def _weight_format(self) -> str:
        quantized = self.config.get("quantization_config")
        if isinstance(quantized, dict):
            method, bits = str(quantized.get("quant_method", "")).lower(), quantized.get("bits", quantized.get("w_bit"))
            if method == "fp8":
                return "fp8"
            if bits in (4, 8) or quantized.get("load_in_4bit") or quantized.get("load_in_8bit"):
                return "int4" if bits == 4 or quantized.get("load_in_4bit") else "int8"
            self.notes.append(f"the quantization {method!r} is not known: weights are treated as not quantized")
        dtype = self.config.get("dtype", self.config.get("torch_dtype"))
        return _DTYPES.get(str(dtype).removeprefix("torch."), "bf16") if dtype != "float32" else "bf16"
