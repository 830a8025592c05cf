"""Shape of a decoder-only model: the numbers from a ``config.json`` that the formulas need.

A layer is what the model counts as one: attention or a recurrent mixer (or both side by side) with
a feed-forward part, or, in Nemotron-H, one of these alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from llmprof.errors import LlmprofError
from llmprof.theory import catalog


class Attention(Struct, frozen=True):
    """Attention of a layer.

    ``q_rank, kv_rank, rope_dim`` are sizes of latent attention (0: not compressed). ``gated``: the
    query projection also gives a gate of the result. ``index_heads`` of ``index_dim`` choose the
    ``top_k`` tokens that are attended. ``shared``: keys and values are those of an earlier layer.
    ``tied_values``: values are the keys before their rotation. ``compress``: beyond the window one
    entry stands for so many tokens (0: none); keys are the values there, too, and the result is
    projected in ``out_groups`` groups to ``out_rank`` numbers each, then to the hidden size.
    """

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
    gated: bool = False
    sinks: bool = False
    index_heads: int = 0
    index_dim: int = 0
    top_k: int | None = None
    shared: bool = False
    tied_values: bool = False
    compress: int = 0
    out_groups: int = 0
    out_rank: int = 0

    @property
    def entry_width(self) -> int:
        """Numbers that a token's part of a compressed entry is made of; choosing layers mix two
        windows of tokens.
        """
        return self.head_dim * (2 if self.index_heads else 1) if self.compress else 0

    @property
    def latent(self) -> bool:
        """Whether keys and values are cached as one compressed vector (MLA)."""
        return self.kv_rank > 0

    def cached_per_token(self, context: float | None = None, ranks: int = 1) -> float:
        """Count of numbers that a token occupies in the KV cache of a layer on one of so many
        ranks.
        """
        if self.shared:
            return 0
        if self.latent:
            return self.kv_rank + self.rope_dim + self.index_dim
        share = 1.0 if context is None or self.window is None else min(1.0, self.window / context)
        if self.out_rank:
            return share * self.head_dim + (
                (self.head_dim + self.index_dim) / self.compress if self.compress else 0
            )
        return share * max(self.kv_heads / ranks, 1) * (self.head_dim + self.value_dim)

    @property
    def kind(self) -> str:
        """``sparse``, ``compressed``, ``latent``, ``sliding`` or ``full`` attention."""
        kinds = (
            ("sparse", self.top_k),
            ("compressed", self.compress),
            ("latent", self.latent),
            ("sliding", self.window),
        )
        return next((name for name, has in kinds if has), "full") + "_attention"


class Recurrent(Struct, frozen=True):
    """Mixer with a state of constant size for each request: state space, linear attention or a
    short convolution.

    The state is ``heads`` matrices of ``key_dim`` x ``value_dim``, and the last ``taps - 1`` inputs
    of a causal convolution over ``channels``. ``groups`` heads of keys and queries (B and C of
    Mamba) serve all heads. ``projected`` is the width of the input projections, ``inside`` the
    number of weights of the projections behind them, and ``small`` that of all that is no matrix:
    convolution, decay, biases, norms.
    """

    kind: str
    heads: int
    groups: int
    key_dim: int
    value_dim: int
    projected: int
    channels: int
    taps: int
    inside: int = 0
    small: int = 0
    state_format: str | None = None

    @property
    def inner(self) -> int:
        """Width of the result, which the output projection takes."""
        return self.heads * self.value_dim

    @property
    def state(self) -> int:
        """Count of numbers of a request's state, without the inputs of the convolution."""
        return self.heads * self.key_dim * self.value_dim

    @property
    def products(self) -> int:
        """Products with each number of the state for a token: update and read, and the delta
        rule's look-up.
        """
        return 3 if self.kind in ("gated_delta_net", "kda") else 2


class FeedForward(Struct, frozen=True):
    """Feed-forward part of a layer; ``inner`` is that of one expert, ``active`` how many each token
    is sent to.

    Experts work in ``latent`` dimensions in place of the hidden size, if it is not 0.
    """

    inner: int
    gated: bool = True
    bias: bool = False
    experts: int = 0
    active: int = 0
    shared_inner: int = 0
    shared_gate: bool = False
    latent: int = 0


class Extra(Struct, frozen=True):
    """Work on the residual stream beside attention and feed-forward part, such as per-layer inputs
    or several streams.

    A token is multiplied with ``weights`` numbers, takes ``more`` multiply-adds, and reads and
    writes ``moved`` numbers at least (half of both together). ``small`` counts the weights that are
    no matrix; of a ``table`` each token reads a row of ``row`` numbers.
    """

    component: str
    weights: int = 0
    small: int = 0
    more: int = 0
    moved: int = 0
    table: int = 0
    row: int = 0


class Layer(Struct, frozen=True):
    """A decoder layer; ``norms`` is the number of its norms over the hidden size."""

    attention: Attention | None
    feed_forward: FeedForward | None
    norms: int = 2
    recurrent: Recurrent | None = None
    extras: tuple[Extra, ...] = ()

    @property
    def kind(self) -> str:
        """What mixes tokens, such as ``full_attention`` or ``full_attention+mamba2``; else
        ``moe`` or ``mlp``.
        """
        mixers = [part.kind for part in (self.attention, self.recurrent) if part is not None]
        fed = "moe" if self.feed_forward is not None and self.feed_forward.experts else "mlp"
        return "+".join(mixers) or fed


_OF_MIXERS: Final = ("qkv_proj", "o_proj", "indexer", "in_proj", "out_proj")
"""Stages of projections beside the feed-forward part."""

_NOT_ROUTED: Final = (*_OF_MIXERS, "shared_experts")
"""Stages of projections beside the routed experts."""


class Shape(Struct, frozen=True):
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
        Width of the embedding. It differs from the hidden size if the embedding is projected to it
        (some OPT models).
    head_bias, final_norm : bool
        Whether the output projection has a bias, and whether a norm precedes it.
    max_positions : int
        Longest sequence that the config states; 0 if it states none.
    weight_format : str
        ``fp8``, ``int8``, ``int4``, ``mxfp4`` or ``nvfp4`` if the config has a quantization,
        otherwise the dtype of the config.
    weight_bytes : float or None
        Bytes of a quantized weight with its share of scales and zero points, where the config
        states their groups.
    only_experts : bool
        Whether the config leaves attention as it is, so that only experts and other feed-forward
        parts are quantized.
    other_format : str or None
        Format of the projections beside the routed experts, if the experts are quantized in one of
        their own.
    before, after : tuple of Extra
        Work on the residual stream before the first and after the last layer.
    lower_bound : bool
        Whether something in the config is not understood, so that parameters, FLOPs and bytes are
        the least.
    notes : tuple of str
        Assumptions that were made, and what in the config is not understood.
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
    weight_bytes: float | None = None
    only_experts: bool = False
    other_format: str | None = None
    before: tuple[Extra, ...] = ()
    after: tuple[Extra, ...] = ()
    lower_bound: bool = False
    notes: tuple[str, ...] = ()

    @property
    def kinds(self) -> tuple[tuple[Layer, int], ...]:
        """Distinct layers and their counts, in the order of first occurrence."""
        counts: dict[Layer, int] = {}
        for layer in self.layers:
            counts[layer] = counts.get(layer, 0) + 1
        return tuple(counts.items())

    def quantizes(self, stage: str) -> bool:
        """Whether the projections of a stage have the format of the weights."""
        return not (
            stage in _NOT_ROUTED if self.other_format else self.only_experts and stage in _OF_MIXERS
        )


_LLAMA_LIKE: Final = {
    "llama",
    "mistral",
    "mixtral",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
    "gemma",
    "gemma2",
    "gemma3_text",
    "phi3",
    "olmo2",
    "olmoe",
    "deepseek_v2",
    "deepseek_v3",
    "deepseek_v32",
    "glm4_moe",
    "glm_moe_dsa",
    "gpt_oss",
    "llama4_text",
    "minimax_m2",
    "ministral3",
    "gemma3n_text",
    "gemma4_text",
    "deepseek_v4",
}
_GATED_DELTA: Final = {"qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"}
_HYBRID: Final = {
    "bamba",
    "falcon_h1",
    "granitemoehybrid",
    "kimi_linear",
    "lfm2",
    "minimax",
    "nemotron_h",
    *_GATED_DELTA,
}
FAMILIES: Final = frozenset(
    _LLAMA_LIKE | _HYBRID | {"phi", "gpt2", "opt", "gpt_neox", "starcoder2"}
)
"""Values of ``model_type`` for which tests compare the parameter counts with those of
transformers.
"""

_SAME_FORM: Final = {
    "kimi_k2": "deepseek_v3",
    "kimi_k25": "deepseek_v3",
    "mistral4": "deepseek_v3",
    "glm4_moe_lite": "deepseek_v3",
    "minimax_text_01": "minimax",
}
"""Families that have the form of another under a name of their own."""

_PER_LAYER_INPUTS: Final = {"gemma3n_text": 5, "gemma4_text": 6}
"""Families whose layers take an input of their own each; one of so many layers attends to all
tokens.
"""

_COMPRESSED: Final = {
    0: "sliding_attention",
    4: "compressed_sparse_attention",
    128: "heavily_compressed_attention",
}
"""DeepSeek-V4's kinds of layer by the tokens of a compressed entry."""

_OTHER_STATE: Final = (
    "state_size",
    "ssm_cfg",
    "ssm_state_size",
    "mamba_d_state",
    "linear_num_value_heads",
    "linear_attn_config",
    "rwkv_version",
)
_NOT_QUANTIZED: Final = ("modules_to_not_convert", "ignore", "ignored_layers", "exclude_modules")
_OF_ATTENTION: Final = re.compile(r"self_attn|attention|\battn\b|mixer")
_LINEAR: Final = {"linear_attention", "mamba", "mamba2", "conv", "M", "linear", "0"}
_FULL: Final = {
    "full_attention",
    "sliding_attention",
    "chunked_attention",
    "attention",
    "hybrid",
    "*",
    "1",
    *_COMPRESSED.values(),
}
_NO_WORK: Final = re.compile(
    r"token|rope|rotary|theta|dropout|initializer|_eps$|epsilon|dtype|^_|activation|hidden_act|softcap|scalar|aux|logit"
    r"|^norm_topk|topk_group|n_group|topk_method|scoring|scaling|router_|transformers|architectures|auto_map|use_cache"
    r"|vision|image|audio|video|label|summary|task|nextn|mtp|_clip|gradient|model_type|pdrop|n_ctx|original_max"
    r"|correct_scale|sinkhorn|hash_layers|_limit$|elementwise_affine|residual|is_decoder|expand$|_d_head$"
    r"|first_k_dense|intermediate_size_mlp|num_key_value_heads|qk_norm|routing_bias|ep_size|pretraining_tp|max_window"
    r"|window_pattern|implementation|multiplier|chunk_size|time_step|mamba_kernels|attn_scale|floor_scale|temperature"
    r"|scale_attn|upcast"
)
"""Fields of a config that add no matrix and no cached number: training, sampling, rotation, scales,
other inputs, and layers that only draft (theory.speculate counts them).
"""
_DTYPES: Final = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


def shape(model: str | Path | Mapping[str, Any] | Shape, *, name: str | None = None) -> Shape:
    """Read the shape of a model.

    Parameters
    ----------
    model : str, path, mapping or Shape
        Name in the catalogue (:func:`llmprof.theory.catalog.names`), a ``config.json``, its folder,
        or its content. A shape is returned unchanged.
    name : str, optional
        Name of the result. The default is the name in the catalogue or the config's
        ``_name_or_path``.

    Returns
    -------
    Shape
        The shape. A family that is not in :data:`FAMILIES` but has the fields of a Llama is treated
        as one, and ``notes`` says so.

    Raises
    ------
    LlmprofError
        The model is unknown or is not a decoder whose kinds of layer are known, or its config lacks
        a required field or has an invalid value.

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
        config = {
            **{k: config[k] for k in ("quantization_config",) if k in config},
            **inner,
            "model_type": kind,
        }
    return _Reader(config, name or called).read()


def _config(model: str | Path | Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    if isinstance(model, Mapping):
        config = dict(model)
        return config, str(config.get("_name_or_path") or config.get("model_type") or "model")
    text = str(model)
    path = Path(text).expanduser()
    if isinstance(model, Path) or path.suffix == ".json" or (text and path.is_dir()):
        return catalog.read_config(path), path.parent.name if path.suffix == ".json" else path.name
    return catalog.model_config(text), catalog.catalogue_name(text)


class _Fields(dict[str, Any]):
    """A config that knows which of its fields were asked for."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        self.asked: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        """Value of a field."""
        self.asked.add(key)
        return super().get(key, default)

    def left(self) -> list[str]:
        """Fields that hold something, were not asked for, and may mean work."""
        return [
            key
            for key, value in self.items()
            if value and key not in self.asked and not _NO_WORK.search(key)
        ]


class _Reader:
    """Fields of one config, with errors that name what is missing."""

    def __init__(self, config: dict[str, Any], name: str) -> None:
        self.config, self.name = _Fields(config), name
        called = str(config.get("model_type", ""))
        self.family = _SAME_FORM.get(called, called)
        self.notes: list[str] = []
        self.unknown_kinds: dict[str, int] = {}

    def read(self) -> Shape:
        """Shape that the config describes."""
        self._refuse_other_kinds()
        if self.family not in FAMILIES:
            self.notes.append(
                f"model_type {self.family!r} is not known: treated as a decoder with the form of"
                " Llama"
            )
        hidden = self.number("hidden_size", "n_embd")
        kinds = self._pattern()
        layers = tuple(self._layer(hidden, n, kind) for n, kind in enumerate(kinds))
        opt = self.family == "opt"
        positions = self.number("max_position_embeddings", "n_positions", default=0)
        learned = {"gpt2": positions, "opt": positions + 2}.get(self.family, 0)
        weight_format, weight_bytes, only_experts = self._weight_format()
        other = None
        if self.config.get("expert_dtype") == "fp4":
            weight_format, weight_bytes, other = "mxfp4", None, weight_format
        elif only_experts and any("shared_expert" in name for name in self._kept()):
            other = self._plain_format()
        tied = self.family in ("gpt2", "opt", "gemma", "gemma2", "lfm2", *_PER_LAYER_INPUTS)
        before, after = self._around(hidden, len(kinds))
        lower = [
            f"layers of the kind {kind!r} ({count})" for kind, count in self.unknown_kinds.items()
        ]
        model_shape = Shape(
            name=self.name,
            family=self.family,
            hidden=hidden,
            vocab=self.number("vocab_size"),
            layers=layers,
            before=before,
            after=after,
            other_format=other,
            tied=bool(
                self.config.get("tie_word_embeddings", self.config.get("tie_embedding", tied))
            ),
            norm_bias=self.family in ("gpt2", "opt", "phi", "gpt_neox", "starcoder2"),
            position_parameters=learned * hidden,
            embedding_width=self.number("word_embed_proj_dim", default=hidden) if opt else hidden,
            head_bias=self.family == "phi",
            final_norm=not opt or bool(self.config.get("do_layer_norm_before", True)),
            max_positions=positions,
            weight_format=weight_format,
            weight_bytes=weight_bytes,
            only_experts=only_experts,
        )
        if left := self.config.left():
            lower.append(f"the fields {', '.join(sorted(left))}")
        if lower:
            self.notes.append(
                f"not understood: {'; '.join(lower)}. Parameters, FLOPs and bytes are the least"
            )
        return replace(model_shape, lower_bound=bool(lower), notes=tuple(self.notes))

    def number(self, *fields: str, default: int | None = None, least: int = 1) -> int:
        """Value of the first of these fields that the config has, an integer of at least
        ``least``.
        """
        for field in fields:
            value = self.config.get(field)
            if value is None:
                continue
            if (
                isinstance(value, bool)
                or not isinstance(value, int)
                or value < (0 if default == 0 else least)
            ):
                found = f"the config of {self.name} has {field}={value!r}"
                raise LlmprofError(found, expected=f"a whole number of at least {least}")
            return value
        if default is None:
            found = f"the config of {self.name} has no {' or '.join(fields)}"
            hint = (
                "AutoConfig(...).save_pretrained of transformers writes a config with all fields"
                " that are needed"
            )
            raise LlmprofError(
                found, expected="the config.json of a decoder-only model", hint=hint, missing=fields
            )
        return default

    def _refuse_other_kinds(self) -> None:
        listed = self.config.get("layer_types") or self.config.get("layers_block_type")
        known = self.family in _HYBRID or listed
        matching = [] if known else [field for field in _OTHER_STATE if field in self.config]
        if matching or self.config.get("is_encoder_decoder"):
            kind = ", ".join(matching) or "encoder-decoder"
            found = f"{self.name} is not a decoder whose layers are known ({kind})"
            raise LlmprofError(
                found, expected=f"attention in every layer, or one of {', '.join(sorted(_HYBRID))}"
            )

    def _pattern(self) -> list[str]:
        """What each layer is, as the config says it; ``attention`` where it says nothing."""
        config = self.config
        listed = (
            config.get("layers_block_type")
            or config.get("hybrid_override_pattern")
            or config.get("layer_types")
        )
        listed = listed or config.get("attn_type_list")
        count = self.number("num_hidden_layers", "n_layer", default=len(listed) if listed else None)
        if self.family == "falcon_h1":
            return ["hybrid"] * count
        if isinstance(ratios := config.get("compress_ratios"), list):
            listed = [_COMPRESSED.get(ratio, f"compressed by {ratio}") for ratio in ratios[:count]]
        if not listed and self.family in _PER_LAYER_INPUTS:
            every = _PER_LAYER_INPUTS[self.family]
            listed = [
                "sliding_attention" if (n + 1) % every else "full_attention" for n in range(count)
            ]
            listed[-1] = "full_attention" if self.family == "gemma4_text" else listed[-1]
        full = (
            config.get("attn_layer_indices") or []
            if self.family == "bamba"
            else config.get("full_attn_idxs")
        )
        parts = config.get("linear_attn_config")
        if isinstance(parts, dict) and "full_attn_layers" in parts:
            full = [n - 1 for n in parts["full_attn_layers"]]  # counted from one
        if not listed and full is not None:
            listed = ["full_attention" if n in full else "linear_attention" for n in range(count)]
        if not listed and self.family in _HYBRID:
            every = self.number(
                "full_attention_interval", default=2 if self.family == "minimax" else 4
            )
            listed = [
                "linear_attention" if (n + 1) % every else "full_attention" for n in range(count)
            ]
        if not listed:
            return ["attention"] * count
        pattern = [str(one) for one in listed]
        if len(pattern) != count:
            found = (
                f"the config of {self.name} names the kinds of {len(pattern)} layers and has"
                f" {count} layers"
            )
            raise LlmprofError(found, expected="a kind for each layer")
        return pattern

    def _layer(self, hidden: int, n: int, kind: str) -> Layer:
        if self.family == "nemotron_h":
            recurrent = self._recurrent(hidden) if kind in _LINEAR else None
            attention = self._attention(hidden, n) if kind in _FULL else None
            experts = kind in ("moe", "E")
            feed_forward = (
                self._feed_forward(hidden, experts=experts)
                if experts or kind in ("mlp", "-")
                else None
            )
            if not (recurrent or attention or feed_forward):
                self._unknown(kind)
            return Layer(attention, feed_forward, 1, recurrent)
        shares = self._shares(n)
        feed_forward = self._feed_forward(hidden, n, experts=self._has_experts(n), wide=shares)
        both = self.family == "falcon_h1"
        attention = self._attention(hidden, n, kind) if both or kind in _FULL else None
        linear = kind in _LINEAR and self.family in _HYBRID
        recurrent = self._recurrent(hidden) if both or linear else None
        if attention is None and recurrent is None:
            self._unknown(kind)
        norms = {"gemma2": 4, "gemma3_text": 4, "gemma3n_text": 4, "gemma4_text": 4, "phi": 1}.get(
            self.family, 2
        )
        if self.family == "gemma4_text" and feed_forward.experts:
            norms = 7
        return Layer(
            attention, feed_forward, norms, recurrent, tuple(self._extras(hidden, feed_forward))
        )

    def _unknown(self, kind: str) -> None:
        self.unknown_kinds[kind] = self.unknown_kinds.get(kind, 0) + 1

    def _shares(self, n: int) -> bool:
        """Whether a layer reads the keys and values of an earlier one."""
        if self.family not in _PER_LAYER_INPUTS:
            return False
        return (
            n
            >= self.number("num_hidden_layers") - self.number("num_kv_shared_layers", default=0)
            > 0
        )

    def _extras(self, hidden: int, fed: FeedForward) -> Iterator[Extra]:
        """Work of a layer on the residual stream: of Gemma 3n and 4, and DeepSeek-V4's
        hyper-connections.
        """
        if self.family == "deepseek_v4":
            streams = self.number("hc_mult", default=4)
            mixed = (2 + streams) * streams
            # both halves of the layer collapse the streams into one, and mix them with their result
            yield Extra(
                "hyper_connections",
                2 * mixed * streams * hidden,
                2 * (mixed + 3),
                2 * streams * streams * hidden,
                2 * streams * hidden,
            )
        if self.family == "gemma3n_text":
            streams = self.number("altup_num_inputs", default=4)
            coefficients = streams**3 + streams**2
            # the router runs before and behind the layer; predicting mixes all streams
            yield Extra(
                "altup",
                streams * hidden + coefficients,
                2 * hidden,
                (streams + streams**2) * hidden,
                streams * hidden,
            )
            yield Extra(
                "laurel", 2 * hidden * self.number("laurel_rank", default=64), hidden, 0, hidden
            )
        if width := self._input_width():
            yield Extra("per_layer_input", 2 * hidden * width, hidden, 0, hidden)
        if self.family == "gemma4_text" and fed.experts:
            yield Extra("router_scales", 0, hidden + fed.experts)

    def _input_width(self) -> int:
        if self.family not in _PER_LAYER_INPUTS:
            return 0
        return self.number("hidden_size_per_layer_input", default=0)

    def _around(self, hidden: int, layers: int) -> tuple[tuple[Extra, ...], tuple[Extra, ...]]:
        """Work on the residual stream before the first and behind the last layer."""
        before, after = [], []
        if width := self._input_width() * layers:
            rows = self.number("vocab_size_per_layer_input", default=self.number("vocab_size"))
            before.append(Extra("per_layer_embedding", table=rows * width, row=width))
            before.append(
                Extra(
                    "per_layer_projection",
                    hidden * width,
                    width // layers,
                    0,
                    (hidden + width) // 2,
                )
            )
        if self.family == "gemma3n_text":
            streams = self.number("altup_num_inputs", default=4)
            more = (streams - 1) * hidden
            moved = streams * hidden // 2
            before.append(Extra("altup_projections", more * hidden, 0, 0, moved))
            after.append(Extra("altup_projections_back", more * hidden, 0, 0, moved))
        if self.family == "deepseek_v4":
            streams = self.number("hc_mult", default=4)
            after.append(
                Extra(
                    "hyper_head", streams**2 * hidden, streams + 1, 0, (streams + 1) * hidden // 2
                )
            )
        return tuple(before), tuple(after)

    def _recurrent(self, hidden: int) -> Recurrent:
        """Mixer of a layer that has no attention, or has it beside attention."""
        config, number = self.config, self.number
        state_format = _DTYPES.get(
            str(config.get("mamba_ssm_cache_dtype", config.get("mamba_ssm_dtype")))
        )
        if self.family == "lfm2":
            taps = number("conv_L_cache", default=3)
            for field in (
                "block_dim",
                "conv_dim",
                "conv_dim_out",
            ):  # of the published models, all as wide as the layer
                if number(field, default=hidden) != hidden:
                    self.unknown_kinds[f"short_conv with {field}"] = 1
            small = hidden * taps + (5 * hidden if config.get("conv_bias") else 0)
            return Recurrent("short_conv", hidden, hidden, 0, 1, 3 * hidden, hidden, taps, 0, small)
        if self.family == "minimax":
            heads, dim = number("num_attention_heads"), number("head_dim", default=0)
            dim = dim or hidden // heads
            return Recurrent(
                "lightning", heads, heads, dim, dim, 4 * heads * dim, 0, 1, 0, heads * dim, "fp32"
            )
        if self.family == "kimi_linear":
            parts = config.get("linear_attn_config") or {}
            own = {
                "num_heads": "linear_num_heads",
                "head_dim": "linear_head_dim",
                "short_conv_kernel_size": "linear_conv_kernel_dim",
            }
            heads, dim, taps = (int(parts.get(key) or number(field)) for key, field in own.items())
            width = heads * dim
            # decay and gate are given by two matrices each, over the size of a head
            small = 3 * width * taps + width + heads + dim
            projected = 3 * width + heads + 2 * dim
            return Recurrent(
                "kda",
                heads,
                heads,
                dim,
                dim,
                projected,
                3 * width,
                taps,
                2 * dim * width,
                small,
                "fp32",
            )
        if self.family in _GATED_DELTA:
            key_heads, heads = number("linear_num_key_heads"), number("linear_num_value_heads")
            key, value = number("linear_key_head_dim"), number("linear_value_head_dim")
            taps = number("linear_conv_kernel_dim")
            channels = 2 * key_heads * key + heads * value
            projected = channels + heads * value + 2 * heads
            small = channels * taps + 2 * heads + value
            kind = "gated_delta_net"
            return Recurrent(
                kind,
                heads,
                key_heads,
                key,
                value,
                projected,
                channels,
                taps,
                0,
                small,
                state_format,
            )
        heads, state = (
            number("mamba_num_heads", "mamba_n_heads"),
            number("ssm_state_size", "mamba_d_state"),
        )
        groups, taps = number("n_groups", "mamba_n_groups"), number("conv_kernel", "mamba_d_conv")
        inner = number("mamba_d_ssm", default=0) if self.family == "falcon_h1" else 0
        inner = inner or number("mamba_num_heads", default=0) * number("mamba_head_dim", default=0)
        inner = inner or number("expand", "mamba_expand", default=2) * hidden
        if inner % heads:
            raise LlmprofError(
                f"the config of {self.name} has {heads} heads for {inner} channels of its state"
                " space"
            )
        channels = inner + 2 * groups * state
        projected = inner + channels + heads
        small = channels * taps + (
            channels if config.get("use_conv_bias", config.get("mamba_conv_bias", True)) else 0
        )
        normed = config.get("mamba_rms_norm", False) if self.family == "falcon_h1" else True
        small += 3 * heads + (inner if normed else 0)
        biased = config.get("use_bias", config.get("mamba_proj_bias", False))
        small += projected if biased else 0
        small += hidden if config.get("projectors_bias", biased) else 0
        return Recurrent(
            "mamba2",
            heads,
            groups,
            state,
            inner // heads,
            projected,
            channels,
            taps,
            0,
            small,
            state_format,
        )

    def _window(self, n: int, kind: str) -> int | None:
        if self.family == "llama4_text":
            every = self.number("no_rope_layer_interval", default=4)
            local = self.config.get("no_rope_layers") or []
            rotated = bool(local[n]) if n < len(local) else (n + 1) % every != 0
            return self.number("attention_chunk_size", default=8192) if rotated else None
        window = self.config.get("sliding_window")
        if (
            not isinstance(window, int)
            or window <= 0
            or self.config.get("use_sliding_window") is False
        ):
            return None
        kinds = self.config.get("layer_types")
        if isinstance(kinds, list) and n < len(kinds):
            return window if kinds[n] == "sliding_attention" else None
        if self.family in _PER_LAYER_INPUTS:
            return window if kind == "sliding_attention" else None
        if self.family == "gpt_oss":
            return None if n % 2 else window
        if self.family == "gemma2":
            return window if n % 2 == 0 else None
        if self.family == "gemma3_text":
            return (
                None if (n + 1) % int(self.config.get("sliding_window_pattern", 6)) == 0 else window
            )
        if self.family.startswith("qwen2"):
            return window if n >= int(self.config.get("max_window_layers", 0)) else None
        return window

    def _attention(self, hidden: int, n: int, kind: str = "attention") -> Attention:
        heads = self.number("num_attention_heads", "n_head")
        if self.family == "deepseek_v4":
            return self._compressed(heads, kind)
        bias_default = self.family in ("qwen2", "qwen2_moe", "gpt2", "phi", "gpt_neox", "gpt_oss")
        bias = bool(
            self.config.get(
                {"starcoder2": "use_bias", "opt": "enable_bias"}.get(self.family, "attention_bias"),
                bias_default or self.family in ("opt", "starcoder2"),
            )
        )
        if self.config.get("kv_lora_rank"):
            nope, rope = self.number("qk_nope_head_dim"), self.number("qk_rope_head_dim")
            q_rank, kv_rank = self.number("q_lora_rank", default=0), self.number("kv_lora_rank")
            indexers = self.config.get("indexer_types") or []
            own = (
                n >= len(indexers) or indexers[n] != "shared"
            )  # else it attends to the choice of an earlier layer
            return Attention(
                heads,
                heads,
                nope + rope,
                self.number("v_head_dim"),
                norm_parameters=q_rank + kv_rank,
                bias_qkv=bias,
                bias_out=bias,
                q_rank=q_rank,
                kv_rank=kv_rank,
                rope_dim=rope,
                index_heads=own * self.number("index_n_heads", default=0),
                index_dim=own * self.number("index_head_dim", default=0),
                top_k=self.number("index_topk", default=0) or None,
            )
        if "head_dim" not in self.config and hidden % heads:
            found = (
                f"the config of {self.name} has hidden_size {hidden}, which {heads} heads do not"
                " divide"
            )
            raise LlmprofError(
                found, expected="a field head_dim, or a number of heads that divides hidden_size"
            )
        dim = self.number("head_dim", default=hidden // heads)
        kv_heads = self.number("num_key_value_heads", default=heads)
        whole = self.family == "gemma4_text" and kind == "full_attention"
        tied = whole and bool(self.config.get("attention_k_eq_v"))
        if whole:
            dim = self.number("global_head_dim", default=512)
            kv_heads = (
                self.number("num_global_key_value_heads", default=kv_heads) if tied else kv_heads
            )
        if heads % kv_heads:
            found = (
                f"the config of {self.name} has {heads} heads and {kv_heads} heads of keys and"
                " values"
            )
            raise LlmprofError(
                found,
                expected="a number of heads that is a multiple of the heads of keys and values",
            )
        normed = self.family.startswith(("qwen3", "gemma3", "gemma4")) or self.family == "lfm2"
        normed = normed or (self.family == "glm4_moe" and bool(self.config.get("use_qk_norm")))
        shares = self._shares(n)
        norms = (1 if shares else 2) * dim if normed else 0
        if self.family in ("olmoe", "olmo2", "minimax_m2"):
            norms = (heads + kv_heads) * dim
        out_bias = bias and self.family not in ("qwen2", "qwen2_moe", "glm4_moe")
        gated, sinks = self.family in _GATED_DELTA, self.family == "gpt_oss"
        window = self._window(n, kind)
        return Attention(
            heads,
            kv_heads,
            dim,
            dim,
            window,
            bias,
            out_bias,
            norms,
            gated=gated,
            sinks=sinks,
            shared=shares,
            tied_values=tied,
        )

    def _compressed(self, heads: int, kind: str) -> Attention:
        """Attention of DeepSeek-V4: one head of keys that are the values, a window, compressed
        entries behind it.
        """
        number, dim, q_rank = self.number, self.number("head_dim"), self.number("q_lora_rank")
        rates = {kind: rate for rate, kind in _COMPRESSED.items()} | dict(
            self.config.get("compress_rates") or {}
        )
        choosing = kind == "compressed_sparse_attention"
        index_heads, index_dim, top_k = (
            number(field) if choosing else 0
            for field in ("index_n_heads", "index_head_dim", "index_topk")
        )
        return Attention(
            heads,
            1,
            dim,
            dim,
            number("sliding_window"),
            norm_parameters=q_rank + dim,
            q_rank=q_rank,
            sinks=True,
            rope_dim=number("qk_rope_head_dim", default=dim // 8),
            index_heads=index_heads,
            index_dim=index_dim,
            top_k=top_k or None,
            compress=rates[kind],
            out_groups=number("o_groups"),
            out_rank=number("o_lora_rank"),
        )

    def _feed_forward(
        self, hidden: int, n: int = 0, *, experts: bool, wide: bool = False
    ) -> FeedForward:
        number = self.number
        if self.family == "gemma4_text" and self.config.get("enable_moe_block"):
            inner, count, active = (
                number(f) for f in ("moe_intermediate_size", "num_experts", "top_k_experts")
            )
            return FeedForward(
                inner, experts=count, active=active, shared_inner=number("intermediate_size")
            )
        if isinstance(sizes := self.config.get("intermediate_size"), list):
            if len(sizes) != number("num_hidden_layers"):
                raise LlmprofError(
                    f"the config of {self.name} names {len(sizes)} inner sizes",
                    expected="one a layer",
                )
            return FeedForward(int(sizes[n]))
        count = number("num_experts", "num_local_experts", "n_routed_experts", default=0)
        gated = self.family not in ("phi", "gpt2", "opt", "gpt_neox", "starcoder2", "nemotron_h")
        bias = bool(
            self.config.get(
                "mlp_bias", not gated and self.config.get("use_bias", self.family != "nemotron_h")
            )
        )
        if count and experts:
            inner = number("moe_intermediate_size", "intermediate_size")
            shared = number(
                "shared_expert_intermediate_size", "shared_intermediate_size", default=0
            )
            shared_count = number("n_shared_experts", "num_shared_experts", default=0)
            shared += shared_count * number("moe_shared_expert_intermediate_size", default=inner)
            active = number("num_experts_per_tok", "num_experts_per_token")
            if active > count:
                raise LlmprofError(
                    f"the config of {self.name} sends a token to {active} of {count} experts"
                )
            gate = self.family in ("qwen2_moe", *_GATED_DELTA)
            if self.family == "llama4_text":
                shared = inner
            bias = self.family == "gpt_oss"
            return FeedForward(
                inner,
                gated,
                bias,
                count,
                active,
                shared,
                gate,
                number("moe_latent_size", default=0),
            )
        dense = ("intermediate_size_mlp",) if self.family == "llama4_text" else ()
        dense = ("shared_intermediate_size",) if self.family == "granitemoehybrid" else dense
        inner = number(
            *dense, "block_ff_dim", "intermediate_size", "ffn_dim", "n_inner", default=4 * hidden
        )
        if wide and self.config.get("use_double_wide_mlp"):
            inner *= 2
        if self.family not in ("gpt2", "opt", "lfm2") and "intermediate_size" not in self.config:
            number("intermediate_size")
        if self.family == "lfm2" and self.config.get("block_auto_adjust_ff_dim", True):
            many = number("block_multiple_of", default=256)
            inner = int(float(self.config.get("block_ffn_dim_multiplier", 1.0)) * (2 * inner // 3))
            inner = -(-inner // many) * many
        return FeedForward(inner, gated, bias)

    def _has_experts(self, n: int) -> bool:
        kinds = self.config.get("mlp_layer_types")
        if isinstance(kinds, list) and n < len(kinds):
            return bool(kinds[n] == "sparse")
        if self.family == "llama4_text":
            chosen = self.config.get("moe_layers")
            step = self.number("interleave_moe_layer_step", default=1)
            return bool(n in chosen if chosen else (n + 1) % step == 0)
        if n in (self.config.get("mlp_only_layers") or []):
            return False
        dense_default = 1 if self.family == "kimi_linear" else 0
        if n < int(self.config.get("first_k_dense_replace", dense_default)):
            return False
        step = int(self.config.get("decoder_sparse_step", 1) or 1)
        frequency = int(self.config.get("moe_layer_freq", 1) or 1)
        return (n + 1) % step == 0 and n % frequency == 0

    def _plain_format(self) -> str:
        """Format of weights that are not quantized."""
        dtype = self.config.get("dtype", self.config.get("torch_dtype"))
        return (
            _DTYPES.get(str(dtype).removeprefix("torch."), "bf16") if dtype != "float32" else "bf16"
        )

    def _kept(self) -> list[str]:
        """Modules that the config leaves as they are where it quantizes the others."""
        quantized = self.config.get("quantization_config")
        listed = (
            [quantized.get(key) or () for key in _NOT_QUANTIZED]
            if isinstance(quantized, dict)
            else []
        )
        return [name for names in listed for name in names if isinstance(name, str)]

    def _weight_format(self) -> tuple[str, float | None, bool]:
        """Format of the weights, bytes of one where the config says more than the format, whether
        only experts have it.

        Scales: 32 bits for each block of FP8 (``weight_block_size``); 16 bits for each group of
        INT4, and with zero points (AWQ, GPTQ without ``sym``) another 4 bits.
        """
        quantized = self.config.get("quantization_config")
        plain = self._plain_format()
        if not isinstance(quantized, dict):
            return plain, None, False
        method = str(quantized.get("quant_method", "")).lower()
        groups = quantized.get("config_groups")
        group = next(iter(groups.values()), None) if isinstance(groups, dict) else None
        weights = group.get("weights") if isinstance(group, dict) else None
        stated = weights if isinstance(weights, dict) else quantized
        bits = stated.get("bits", stated.get("num_bits", stated.get("w_bit")))
        if quantized.get("load_in_4bit") or quantized.get("load_in_8bit"):
            bits = 4 if quantized.get("load_in_4bit") else 8
        algorithm = (
            f"{quantized.get('quant_algo', '')} {quantized.get('format', '')} {method}".lower()
        )
        floats = "float" in str(stated.get("type", "")).lower()
        experts = any(_OF_ATTENTION.search(name) for name in self._kept())
        size = stated.get("group_size")
        if "mxfp4" in algorithm:
            return "mxfp4", None, experts
        if "nvfp4" in algorithm or (floats and bits == 4):
            return "nvfp4", None, experts
        if "fp8" in algorithm.split() or (floats and bits == 8):
            block = stated.get("weight_block_size") or stated.get("block_structure")
            scales = 4 / (block[0] * block[1]) if isinstance(block, list) and len(block) == 2 else 0
            return "fp8", 1 + scales if scales else None, experts
        if bits == 4:
            zero = 0.0 if stated.get("sym", stated.get("symmetric", method != "awq")) else 0.5
            zero = 0.5 if stated.get("zero_point") else zero
            known = size if isinstance(size, int) and size > 0 else None
            return "int4", 0.5 + (2 + zero) / known if known else None, experts
        if bits == 8:
            return "int8", None, experts
        self.notes.append(
            f"the quantization {method!r} is not known: weights are treated as not quantized"
        )
        return plain, None, False
