"""What an operator of the host says about the kernels that it launched: a better witness than their names.

An operator that does one thing (``aten::addmm``, ``_C::rms_norm``) decides alone. One that does several
(``vllm::moe_forward``) says nothing; its kernels are told apart by their names.
"""

from __future__ import annotations

import polars as pl

from llmprof.names.matching import by_unique_name

_SEVERAL = ""

OPERATOR_PATTERNS: list[tuple[str, str]] = [
    (
        _SEVERAL,
        r"scheduler_metadata|get_mla_metadata|moe_forward|fused_moe$|fused_experts|::moe_(?:layer|impl)|^CompiledFunction|^Torch-Compiled",
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
        "linear",
        r"^aten::(?:addmm|mm|bmm|baddbmm|addbmm|linear|matmul|mv|addmv|dot|einsum|_scaled_mm|_scaled_mm_v2|_int_mm|"
        r"_addmm_activation|_convolution|convolution|cudnn_convolution|miopen_convolution|"
        r"cudnn_convolution_relu|conv[123]d|_slow_conv2d_forward|thnn_conv2d|mkldnn_convolution|mkldnn_linear|"
        r"_weight_int\w+mm\w*)_?(?:\.\w+)?$|"
        r"^(?:_C|_rocm_C|vllm|sgl_kernel|sglang|aiter|torchao|fbgemm|quantized|onednn|cublas|deep_gemm|mkldnn)::"
        r"\w*(?:gemm|scaled_mm|linear|_mm$|wvSplitK|LLMM)\w*$|^fp8_gemm|^deep_gemm|^cublas\w*mm",
    ),
    ("embedding", r"^aten::(?:embedding|embedding_bag|_embedding_bag\w*|index_select)$"),
    ("sampling", r"^aten::(?:argmax|multinomial|exponential_|_sample_dirichlet)$|^flashinfer::.*sampling"),
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
        r"polar|complex|atan2|gather|scatter|scatter_add|index_put|_index_put_impl|index|take_along_dim|nonzero)_?$",
    ),
]
"""Ordered ``(category, pattern)`` of operators that do one thing (or, with an empty category, several); the first
match wins.

``aten::index`` and other gathers are element by element: only a look-up in a table of vectors is an embedding."""

_KEPT = {
    "linear": ("fill", "quantize"),
    "attention": ("kv_cache_write", "quantize", "fill", "rope", "norm", "copy", "collective", "other"),
    "copy": ("quantize", "fill", "kv_cache_write"),
    "collective": ("copy", "fill", "norm", "quantize", "elementwise"),
    "kv_cache_write": ("rope", "norm", "fill"),
    "moe_experts": ("moe_routing", "quantize", "fill", "copy", "activation"),
    "norm": ("quantize", "fill", "collective"),
    "activation": ("quantize", "fill"),
    "rope": ("kv_cache_write", "norm", "fill"),
    "embedding": ("fill", "copy", "collective"),
    "sampling": ("fill", "copy"),
    "elementwise": ("fill", "embedding"),
}
"""By the operator's category: those of kernels that keep their own, since they prepare or finish its work."""


def operator_categories(names: pl.Series) -> pl.Series:
    """Category that each operator gives to its kernels; null for one that does several things or is not known.

    Parameters
    ----------
    names : polars.Series
        Names of operators.

    Returns
    -------
    polars.Series
        One of :data:`~llmprof.names.CATEGORIES` each, or null.

    Examples
    --------
    >>> operator_categories(pl.Series(["aten::addmm", "vllm::moe_forward"])).to_list()
    ['linear', None]
    """
    found = by_unique_name(names, OPERATOR_PATTERNS, None)
    return found.replace({_SEVERAL: None}).alias("category")


def decides(by_operator: pl.Expr, by_name: pl.Expr) -> pl.Expr:
    """Whether the operator's category counts and not that of the kernel's own name.

    Parameters
    ----------
    by_operator, by_name : polars.Expr
        Categories, null where not known.

    Returns
    -------
    polars.Expr
        False where the operator says nothing, and where the kernel only prepares or finishes the operator's work
        (a cleared workspace of a GEMM, the quantization of its input).
    """
    keeps = pl.any_horizontal((by_operator == category) & by_name.is_in(kept) for category, kept in _KEPT.items())
    return by_operator.is_not_null() & ~keeps.fill_null(value=False)
