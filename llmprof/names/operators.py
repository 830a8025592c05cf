"""Categories and roles of operators and modules, which also describe the kernels that they
launched.

Operators and modules are better evidence than the names of kernels.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache, wraps
from typing import Any, Concatenate, Final, NamedTuple, ParamSpec

import numpy as np
import polars as pl

DOMAIN: Final = "module"

CALL: Final = r"^nn\.Module: (.+?)(?:_(\d+))?$"
"""Pattern of the name of such a marker: the class of the module, and the number of the object in
its class.
"""

PATHS: Final = (
    r"^\{'Module': '([^']+)'",
    r"^layer::(.+)$",
    r"^((?:[A-Za-z_]\w*\.)+(?:layers|h|blocks)\.\d+(?:\.\w+)*)$",
)
"""Patterns of markers that name a module's path in the model: vLLM's layerwise NVTX, its
annotations, other ranges.
"""

LAYER: Final = r"(?:^|\.)(?:layers?|h|blocks?|decoder_layers)[._](\d+)(?:\.|$)"

SHARED: Final = r"rotary|rope"
"""Modules whose single object serves all layers: the number in their path is not the layer that
calls them.
"""

ENCODER: Final = (
    r"(?i)(?:^|\.)(?:visual|vision\w*|image_encoder|audio\w*|speech_encoder)(?:\.|$)"
    r"|(?:Vision|Visual|Siglip|Clip|Audio|Whisper)\w*(?:Transformer|Tower|Encoder|Model)$"
    r"|Text(?:Transformer|Encoder)$"
)
"""Modules that encode images, sound or the text that is compared with them: paths, and classes
of the outermost one.
"""

SHARED_EXPERTS: Final = r"shared_?(?:experts?|mlp)"
"""Modules of experts that every token goes to; without chosen ones beside them they are a plain
feed-forward part.
"""

ROLES: Final[list[tuple[str, str]]] = [
    ("rope", r"(?i)rotary|^rope$|RoPE"),
    ("norm", r"(?i)norm(?:\d?d?)$|norm_?\d*$|^ln_|_ln$|^norm"),
    ("lm_head", r"(?i)^lm_?head|LogitsProcessor|ParallelLMHead|^embed_out$|logits_processor"),
    ("embedding", r"(?i)embed"),
    ("sampling", r"(?i)sampler$|^sampler"),
    (
        "qkv_proj",
        r"(?i)qkv|^(?:q|k|v)_(?:[ab]_)?proj|^(?:q|k|v|query|key|value)$|^kv_[ab]_proj|^c_attn$|W_pack|query_key_value",
    ),
    (
        "gate_up_proj",
        r"(?i)gate_?up|^(?:gate|up)_proj$|^fc_?1$|^fc_in$|^w[13]$|MergedColumn|^c_fc$|_h_to_4h$|^linear_fc1$|^wi(?:_\d)?$|^input_linear$",
    ),
    (
        "down_proj",
        r"(?i)down_proj$|^fc_?2$|^fc_out$|^w2$|_4h_to_h$|^linear_fc2$|^wo_ff$|^output_linear$",
    ),
    ("in_proj", r"(?i)^in_proj|^x_proj$|^dt_proj$|^[bfg]_(?:[ab]_)?proj$"),
    ("o_proj", r"(?i)^o_proj$|^out_proj$|^out_lin$|^wo$|^to_out"),
    ("activation", r"(?i)act_fn$|^act$|AndMul$|activation$|^(?:silu|gelu|relu|swish|swiglu)\w*$"),
    ("router", r"(?i)router$|^gate$|TopK\w{0,64}Router|^topk$|MoEGate$"),
    ("experts", r"(?i)^experts$|FusedMoE|\wExperts$|SharedFusedMoE|GroupedExperts|^MoERunner"),
    (
        "attention",
        r"(?i)^attn$|^Attention$|RadixAttention|core_attention|FlashAttention|MLAAttention|^mla_attn$|PagedAttention",
    ),
]
"""Ordered ``(role, pattern)`` of modules with a single purpose; the first match wins."""

BLOCKS: Final[list[tuple[str, str]]] = [
    ("o_proj", r"SelfOutput$"),
    (
        "head",
        r"(?i)LMHead$|prediction_?head|mlm_?head|OnlyMLM|classifier$|pooler$|^score$|HeadTransform",
    ),
    ("embeddings", r"(?i)embeddings?$|PatchEmbed"),
    # the attention of a model with experts may have "moe" in its name, too (Qwen3MoeAttention)
    ("attention", r"(?i)moe\w{0,64}(?:attn|attention)"),
    ("experts", r"(?i)moe|experts|sparse_?moe"),
    ("attention", r"(?i)attn|attention|mixer|mamba|deltanet|mha$|short_?conv|^conv$"),
    ("up", r"Intermediate$"),
    ("down", r"(?<!Self)(?<!Model)(?<!Attention)Output$"),
    ("feed_forward", r"(?i)mlp|feed_?forward|ffn?$|DenseGated|DenseAct"),
]
"""Ordered ``(block, pattern)`` of modules that contain others; the head of a whole model is not
a block.
"""

GENERIC: Final = r"Linear\w{0,64}$|LinearBase|^Conv1D$|^dense$|^c_proj$"
"""Linear modules whose role depends on the block that they are in."""

MODEL: Final = r"For[A-Z]\w{1,64}$|Model$|LMHeadModel$|Transformer$"

LAYER_CLASS: Final = r"(?:Layer|Block)(?:V?\d+)?$"
"""Pattern of classes of whole layers, if they are not a block."""

_WHOLE_LAYER: Final = r"(?:Decoder|Encoder|Transformer)\w{0,64}(?:Layer|Block)$"
"""Pattern of classes of layers whose name also states their content, such as a mixture of
experts.
"""


class Purpose(NamedTuple):
    """Purpose of a module: its own role, its block, and whether it is a linear module with a
    generic name.
    """

    role: str | None
    block: str | None
    generic: bool


def module_purpose(name: str) -> Purpose:
    """Purpose of a module by its class, or by the last part of its path."""
    if re.search(MODEL, name) or re.search(_WHOLE_LAYER, name):
        return Purpose(None, None, generic=False)
    role = next((role for role, pattern in ROLES if re.search(pattern, name)), None)
    block = next((block for block, pattern in BLOCKS if re.search(pattern, name)), None)
    if role == "embedding" and block == "embeddings" and name.endswith("ddings"):
        role = None
    return Purpose(role, block, generic=role is None and re.search(GENERIC, name) is not None)


def match(name: pl.Expr, patterns: list[tuple[str, str]], default: str | None) -> pl.Expr:
    """Value of the first pattern that a name matches."""
    tests = [
        pl.when(name.str.contains(f"(?i){pattern}")).then(pl.lit(value))
        for value, pattern in patterns
    ]
    return pl.coalesce(*tests, pl.lit(default, dtype=pl.String))


def first_true(cases: Mapping[str, pl.Expr], otherwise: str | None = None) -> pl.Expr:
    """The first text whose condition holds for a row."""
    texts = [pl.when(condition).then(pl.lit(text)) for text, condition in cases.items()]
    return pl.coalesce(*texts, pl.lit(otherwise, dtype=pl.String))


P = ParamSpec("P")

_AT_ONCE: Final = 1 << 16
"""Distinct names that are matched together: more take memory for each pattern."""
_FEW: Final = 1 << 12
"""Most names whose meaning is kept: more than a recording of one model has."""


def remembered(
    meaning: Callable[Concatenate[tuple[str, ...], P], pl.Series],
) -> Callable[Concatenate[tuple[str, ...], P], pl.Series]:
    """Decorator: keep what few names mean, because compiling patterns takes longer than matching
    the names of a trace.

    What it returns is shared, and must not be changed.
    """
    kept: Any = lru_cache(maxsize=64)(meaning)

    @wraps(meaning)
    def looked_up(names: tuple[str, ...], /, *args: P.args, **options: P.kwargs) -> pl.Series:
        found: pl.Series = (kept if len(names) <= _FEW else meaning)(names, *args, **options)
        return found

    return looked_up


def by_unique_name(
    names: pl.Series, patterns: list[tuple[str, str]], default: str | None
) -> pl.Series:
    """Like :func:`match`, but each distinct name is matched once."""
    table = tuple(patterns)
    return by_distinct(names, lambda each: _values(each, table, default))


def by_distinct(names: pl.Series, meaning: Callable[[tuple[str, ...]], pl.Series]) -> pl.Series:
    """Values of names, from a function that sees each distinct name once."""
    coded = names.cast(pl.Categorical)
    if coded.null_count() == coded.len():
        return meaning(()).extend_constant(None, coded.len())
    codes = coded.to_physical()
    rows = one_of_each(codes)
    distinct = coded[rows].cast(pl.String)
    values = pl.concat(
        [meaning(tuple(distinct[i : i + _AT_ONCE])) for i in range(0, len(rows), _AT_ONCE)]
    )
    row_of_code = np.zeros(int(codes.max()) + 1, dtype=np.uint32)  # type: ignore[arg-type]
    row_of_code[codes[rows].to_numpy()] = np.arange(len(rows), dtype=np.uint32)
    numbers = pl.Series(row_of_code[codes.fill_null(0).to_numpy()])
    return values.gather(numbers.set(codes.is_null(), None) if codes.null_count() else numbers)


def contains(names: pl.Series, pattern: str) -> pl.Series:
    """Whether each name matches a regular expression, which is looked for once in each distinct
    name.
    """
    return by_distinct(
        names, lambda distinct: pl.Series(distinct, dtype=pl.String).str.contains(pattern)
    )


def one_of_each(codes: pl.Series) -> np.ndarray:
    """A row for each distinct number (from 0, not far more than there are rows), in the order of
    the numbers.
    """
    rows = np.arange(codes.len())
    if codes.null_count():
        rows, codes = rows[codes.is_not_null().to_numpy()], codes.drop_nulls()
    if not len(rows):
        return rows
    row_of = np.full(int(codes.max()) + 1, -1)  # type: ignore[arg-type]
    row_of[codes.to_numpy()] = rows
    return row_of[row_of >= 0]


@remembered
def _values(
    names: tuple[str, ...], patterns: tuple[tuple[str, str], ...], default: str | None
) -> pl.Series:
    """Value of each name."""
    ascii_only = all(name.isascii() for name in names)
    usable = [(value, _of_ascii(pattern) if ascii_only else pattern) for value, pattern in patterns]
    frame = pl.DataFrame({"name": pl.Series(names, dtype=pl.String)})
    return frame.select(value=match(pl.col("name"), usable, default))["value"]


def _of_ascii(pattern: str) -> str:
    """Pattern with ASCII character classes, which matches ASCII names equally and compiles four
    times as fast.
    """
    return re.sub(
        r"\\(b\{[a-z-]+\}|.)",
        lambda escape: _ASCII.get(escape[1], escape[0]),
        pattern,
        flags=re.DOTALL,
    )


_ASCII = {"w": "[0-9A-Za-z_]", "d": "[0-9]", "s": r"[\t\n\x0b\x0c\r ]", "b": r"(?-u:\b)"}

_SEVERAL = ""

_ONNX: list[tuple[str, str]] = [
    (category, rf"^(?:{types})$")
    for category, types in (
        ("attention", r"(?:MultiHead|GroupQuery|Packed\w*|Decoder\w*|Sparse)?Attention|QAttention"),
        (
            "gemm",
            r"(?:Fused|\w*Quantize|Q)?MatMul\w*|(?:Fused|Q)?Gemm\w*|(?:Fused|Q|Nhwc)?Conv\w*|Einsum",
        ),
        ("norm", r"(?:Skip)?(?:Simplified)?(?:Skip)?\w*(?:Layer|Batch|Group|Instance|RMS)Norm\w*"),
        ("rope", r"RotaryEmbedding"),
        (
            "activation",
            r"Relu|\w*Gelu|QuickGelu|Swish|Silu|HardSwish|Elu|Selu|PRelu|LeakyRelu|Mish",
        ),
        ("moe_experts", r"Q?MoE"),
        ("quantize", r"(?:Dynamic)?QuantizeLinear|DequantizeLinear"),
        ("embedding", r"\w*EmbedLayer\w*"),
        (
            "copy",
            r"Cast|Concat|Transpose|Reshape|Slice|Split|Expand|Tile|Identity|Memcpy\w+|Pad|\w*squeeze|Reorder\w+",
        ),
        (
            "elementwise",
            r"Add|Sub|Mul|Div|Pow|Sqrt|Erf|Tanh|Sigmoid|Softmax|LogSoftmax|BiasSoftmax|Where|Neg|Exp|Log|"
            r"Reduce\w+|Clip|Min|Max|Mean|Sum|Equal|Less|Greater|Not|And|Or|CumSum|Gather\w*|Scatter\w*|ArgMax|ArgMin",
        ),
    )
]

OPERATOR_PATTERNS: list[tuple[str, str]] = [
    *_ONNX,
    (
        _SEVERAL,
        r"scheduler_metadata|get_mla_metadata|moe_forward|fused_moe$|fused_experts|::moe_(?:layer|impl)|^CompiledFunction|"
        r"^Torch-Compiled|(?:rope|lora)\w*(?:attn|attention)",
    ),
    (
        "collective",
        r"^c10d::|^record_param_comms|^nccl:|^symm_mem::|^_c10d_functional::|^vllm::(?:all_reduce|all_gather|"
        r"reduce_scatter)|^_C_custom_ar::|^sgl_kernel::all_reduce|^sglang::.*all_reduce|outplace_all_reduce|"
        r"inplace_all_reduce|^flashinfer::.*all_?reduce",
    ),
    (
        "moe_experts",
        r"grouped_mm$|_grouped_gemm|::fused_moe_gemm|::moe_wna16_gemm|cutlass_moe_mm|moe_wna16_marlin_gemm",
    ),
    (
        "kv_cache_write",
        r"reshape_and_cache|concat_and_cache|store_(?:kv)?_?cache|kv_cache_update|set_kv_buffer|append_paged_kv",
    ),
    (
        "attention",
        r"scaled_dot_product|^aten::_(?:flash|efficient|cudnn)_attention|^aten::_(?:fused_sdp|transformer_encoder)|"
        r"^flash_attn\w*::|^_flash_attn|^vllm_flash_attn|^_vllm_fa\d?_C::|unified_(?:mla_)?attention|^FlashAttn|"
        r"(?:^|::)(?:paged|radix|mha|mla)_?(?:attention|fwd|decode|prefill)\w*|^aiter::(?:fmha|mha|pa_|mla_)|"
        r"^sageattn|sage_attention|^xformers\w*::\w*attention|^_C::paged_attention|^flashinfer::.*(?:prefill|decode)_run|"
        r"^sgl_kernel::(?:fwd|cutlass_mla|flash_mla)|^_flashmla_C::",
    ),
    (
        "rope",
        r"(?:^|::|_)(?:rotary_embedding|apply_rope|apply_rotary|rotary_pos_emb|fused_rope|rope)\w*$",
    ),
    (
        "norm",
        r"(?:^|::|_)(?:rms_?norm|layer_?norm|group_norm|batch_norm|instance_norm|l2_?norm)\w*$|^_C::\w*rms_norm\w*|"
        r"^aten::(?:native|cudnn|miopen)_(?:layer|batch|group)_norm|^aten::_fused_rms_norm|^aiter::\w*norm\w*",
    ),
    (
        "activation",
        r"(?:silu|gelu|swiglu|relu|swish|geglu)\w*_and_mul\w*$|"
        r"^aten::(?:silu|gelu|relu|relu6|leaky_relu|elu|selu|celu|mish|hardswish|hardsigmoid|hardtanh|threshold|glu|"
        r"prelu|softplus)_?$|^_C::(?:gelu|silu|mul_and_silu|fatrelu|xielu)\w*",
    ),
    (
        "gemm",
        r"^aten::(?:addmm|mm|bmm|baddbmm|addbmm|linear|matmul|mv|addmv|dot|einsum|_scaled_mm|_scaled_mm_v2|_int_mm|"
        r"_addmm_activation|_convolution|convolution|cudnn_convolution|miopen_convolution|"
        r"cudnn_convolution_relu|conv[123]d|_slow_conv2d_forward|thnn_conv2d|mkldnn_convolution|mkldnn_linear|"
        r"_weight_int\w+mm\w*)_?(?:\.\w+)?$|"
        r"^(?:_C|_rocm_C|vllm|sgl_kernel|sglang|aiter|torchao|fbgemm|quantized|onednn|cublas|deep_gemm|mkldnn)::"
        r"\w*(?:gemm|scaled_mm|linear|_mm$|wvSplitK|LLMM)\w*$|^fp8_gemm|^deep_gemm|^cublas\w*mm",
    ),
    ("embedding", r"^aten::(?:embedding|embedding_bag|_embedding_bag\w*)$"),
    (
        "sampling",
        r"^aten::(?:argmax|multinomial|exponential_|_sample_dirichlet)$|^flashinfer::.*sampling",
    ),
    (
        "quantize",
        r"scaled_fp[48]_quant|(?:per_token|per_tensor|per_group|per_token_group)\w*quant|quantize_per|dynamic_quant|"
        r"scaled_int8_quant|cast_to_fp8|_quant_fp[48]",
    ),
    ("fill", r"^aten::(?:fill_?|zero_?|zeros\w*|ones\w*|full\w*|new_zeros|new_full)$"),
    (
        "copy",
        r"^aten::(?:copy_|_to_copy|to|clone|contiguous|cat|_cat|stack|constant_pad_nd|pad|repeat|repeat_interleave|"
        r"roll|reshape|index_copy_?|_local_scalar_dense|item|_reshape_copy|expand_copy|flip)$",
    ),
    (
        "elementwise",
        r"^aten::(?:_?log_?softmax|_?softmax|add|sub|rsub|mul|div|pow|rsqrt|sqrt|square|neg|abs|sign|exp|expm1|log|"
        r"log1p|log2|sin|cos|tanh|sigmoid|erf|reciprocal|floor|ceil|round|trunc|clamp|clamp_min|clamp_max|maximum|"
        r"minimum|mean|sum|prod|var|var_mean|std|norm|linalg_vector_norm|cumsum|max|min|amax|amin|any|all|where|"
        r"masked_fill|eq|ne|lt|le|gt|ge|bitwise_\w+|logical_\w+|__\w+__|arange|remainder|fmod|floor_divide|addcmul|"
        r"addcdiv|lerp|triu|tril|dropout|native_dropout|bernoulli|_foreach_\w+|isnan|isinf|isfinite|nan_to_num|"
        r"polar|complex|atan2|gather|scatter|scatter_add|index_put|_index_put_impl|index|index_select|take_along_dim|nonzero|rand\w*|normal|"
        r"uniform|random)_?$|^(?:autograd::engine::evaluate_function:"
        r" )?torch::autograd::AccumulateGrad$",
    ),
]
"""Ordered ``(category, pattern)`` of operators with one purpose (or, with an empty category,
several); the first match wins.

``aten::index`` and other gathers are element by element: only a look-up in a table of vectors is an
embedding.
"""

_VAGUE = ("elementwise", "other", "embedding", "sampling")
"""Categories of kernels that serve several purposes: gathers, choices among values, arithmetic.

Any other category of a kernel's own name is sure, whatever operator launched it.
"""

_KEPT = {"attention": ("other",), "collective": ("elementwise",)}
"""For categories of operators: vague kernels that stay, because they prepare or finish its work."""

_BACKWARD: Final = r"^(?:autograd::engine::evaluate_function: )?(\w+)Backward\d*$"
"""Pattern of the node that computes an operator's gradients."""


def categories_of_operators(names: pl.Series) -> pl.Series:
    """Category of each operator, for its kernels; null if the operator has several purposes or
    is unknown.
    """
    # The node that computes the gradients of an operator has that operator's category.
    return by_distinct(names, _of_operators).alias("category")


def _of_operators(distinct: tuple[str, ...]) -> pl.Series:
    names = pl.Series("name", distinct, dtype=pl.String)
    forward = (
        names.str.extract(_BACKWARD)
        .str.replace_all("([a-z0-9])([A-Z])", "${1}_$2")
        .str.to_lowercase()
    )
    forward = pl.select(
        pl.when(forward.is_not_null()).then(pl.format("aten::{}", forward))
    ).to_series()
    own, of_forward = (by_unique_name(each, OPERATOR_PATTERNS, None) for each in (names, forward))
    return pl.select(pl.coalesce(own, of_forward).replace({_SEVERAL: None})).to_series()


def decides(by_operator: pl.Expr, by_name: pl.Expr) -> pl.Expr:
    """Whether the operator says the category: it takes precedence only over a name that is
    vague, or agrees.
    """
    vague = by_name.is_null() | by_name.is_in(_VAGUE) | (by_operator == by_name)
    vague |= (by_operator == "moe_experts") & (by_name == "gemm")
    keeps = pl.any_horizontal(
        (by_operator == category) & by_name.is_in(kept) for category, kept in _KEPT.items()
    )
    return by_operator.is_not_null() & vague & ~keeps.fill_null(value=False)
