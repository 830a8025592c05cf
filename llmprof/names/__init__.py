"""Categories of kernels, found by ordered patterns of their names; the first match
wins.

The tables are data. :func:`register` puts a pattern in front of them::

    llmprof.names.register("attention", r"my_fused_attention")

Patterns are regular expressions of the Rust ``regex`` crate (Polars), matched anywhere in the name
and without regard to case.
"""

from __future__ import annotations

from functools import cache

import polars as pl

from llmprof import plugins
from llmprof.errors import checked
from llmprof.errors import LlmprofError, listed
from llmprof.names import kernels
from llmprof.names.dtypes import SIZES
from llmprof.names.matching import by_distinct, check_pattern, remembered
from llmprof.names.matching import by_unique_name as by_unique_name
from llmprof.names.matching import decides as decides
from llmprof.names.matching import match as match
from llmprof.names.readable import readable as readable
from llmprof.names.readable import without_common_start as without_common_start

CATEGORIES = (
    *(
        "attention",
        "scan",
        "gemm",
        "conv",
        "norm",
        "rope",
        "kv_cache_write",
        "activation",
        "moe_routing",
        "moe_experts",
    ),
    *("embedding", "sampling", "quantize", "collective", "elementwise", "copy", "fill", "other"),
)

_COLLECTIVE = (
    r"\bnccl|ncclDevKernel|ncclKernel|cross_device_reduce|multimem_(?:all|one_shot|two_shot)|"
    r"(?:one|two)_shot_all_reduce|allreduce_fusion|all[_-]?reduce|all[_-]?gather|reduce[_-]?scatter|all[_-]?to[_-]?all|"
    r"collective-permute|"
    r"\bhcom_|\bhccl|deep_ep::|internode::|intranode::(?:dispatch|combine)|"
    r"lamport(?:_style)?_|quickreduce|mscclpp|rccl|oneccl|symm_mem|SendRecv|"
    r"nvshmem(?:x|i)?_.*(?:put|get|barrier|transfer|signal)|\bpplx::|\ba2a_(?:dispatch|combine|push|scatter|tma)|"
    r"moeA2A|\bEp(?:Dispatch|Combine)\w*Kernel|hybrid_ep::|nixl_ep::|"
    r"userbuffers_|"
    r"shm_(?:allreduce|all_gather|gather|send_tensor|recv_tensor)|c10d::|gloo:"
)

DISPATCH = r"^(?:\(anonymous namespace\)|[^(<])*(?:dispatch|get_dispatch_layout|SanitizeExpertIds)"
"""Functions that send tokens to the ranks of their experts, by their own name, not that of an
argument.
"""

RETURN = r"^(?:\(anonymous namespace\)|[^(<])*combine"
"""Functions that bring the results of experts back."""

_RECURRENCE = (
    r"selective_scan|selective_state_update|_chunk_(?:scan|state|cumsum)_fwd|_state_passing_fwd|_bmm_chunk_fwd|"
    r"causal_conv1d|gated_delta|chunk_fwd_kernel|chunk_delta|fused_recurrent|recompute_w_u|solve_tril|"
    r"chunk_local_cumsum|chunk_scaled_dot|merge_16x16_to_|gating_delta|prepare_wy_repr|lightning_attention|"
    r"\bkda_gate|chunk_kda|chunk_gla_fwd|_fused_post_conv|_fwd_(?:none_)?diag_kernel|_fwd_kv_(?:parallel|reduce)|"
    r"_linear_attn_decode|gated_linear_attn|\bssm_(?:scan|conv)_|\brwkv_wkv"
)
"""Kernels of state-space and linear-attention layers, which take the place of attention."""

LORA = r"lora_(?:shrink|expand)|(?:^|[^a-z])[sb]gmv_|_lora_[ab]_kernel|moe_lora"
"""Products with the two small matrices of an adapter:

Punica's kernels, those of vLLM and of SGLang.
"""

KV_TRANSFER = (
    r"\blmc::|load_and_reshape_(?:multi_layer|flash)|(?:single|multi)_layer_kv_transfer|"
    r"\btransfer_(?:page_head_)?kernel_impl|(?:^|[^a-z])swap_blocks"
)
"""Keys and values on their way between engines, or to and from another memory:

LMCache, SGLang, vLLM.
"""

_INDUCTOR: list[tuple[str, str]] = [
    (category, rf"^triton_(?:poi|red|per|for)_fused_{operators}")
    for category, operators in (
        ("norm", r"\w*(?:rms_norm|layer_norm|rsqrt)"),
        ("activation", r"\w*(?:silu|gelu|swiglu|relu)"),
        ("rope", r"\w*(?:rotary|rope|cos\w*sin)"),
        ("quantize", r"\w*(?:quant|fp8|float8)"),
        ("embedding", r"\w*embedding"),
        ("sampling", r"\w*(?:argmax|multinomial|exponential)"),
        ("copy", r"(?:_to_copy|clone|cat|constant_pad_nd|moe_forward|_)*_\d"),
        ("elementwise", ""),
    )
]
"""Kernels that torch.compile generated.

Their names also list neighbouring operators (the all_reduce before, the moe_forward after), but
they only compute element by element or along rows.
"""

_LOOKS_UP = r"\bk_get_rows|(?:^|dequantize\d*_)take\d*_kernel"
"""Look-ups of rows of a table, in the words of llama.cpp and of TVM."""

KERNEL_PATTERNS: list[tuple[str, str]] = [
    *_INDUCTOR,
    *kernels.PATTERNS,
    ("collective", _COLLECTIVE),
    ("gemm", LORA),
    ("copy", rf"^memcpy|{KV_TRANSFER}"),
    ("fill", r"^memset"),
    (
        "other",
        r"prepare_varlen_num_blocks|get_scheduler_metadata|get_mla_metadata|fbgemm_gpu::permute|bounds_check_ind|"
        r"kv_indices|kv_indptr|mqa_logits_metadata|compute_position|compute_slot_mapping|prepare_(?:inputs|next_token|pos)|req_to_token",
    ),
    (
        "copy",
        r"marlin_repack|awq_repack|permute_cols_kernel|__amd_rocclr_copy|swap_blocks|copy_blocks",
    ),
    ("fill", r"__amd_rocclr_fill|SubTensorOpWithScalar"),
    ("embedding", rf"{_LOOKS_UP}|tensorrt_llm::\w+::lookup_kernel|compute_grad_weight"),
    ("activation", r"silu_(?:and_)?mul|gelu_(?:\w+_)?and_mul|act_and_mul|swiglu_\w*(?:quant|cast)"),
    ("rope", r"RopeQuantize|kn_entry_\dc_sbhd"),
    (
        "moe_routing",
        r"_fwd_kernel_ep_(?:scatter|gather)|moe_deepep_(?:permute|unpermute)|_sort_chunks_by_map|append_shared_experts|"
        r"expand_to_fused|reduce_fused_impl|get_fused_mapping|count_expert|get_dispatch_layout",
    ),
    (
        "copy",
        r"(?:grouped_gemm|deep_gemm|deep_ep)::(?:\w+::)*(?:transpose|utils::transpose)|batched_transpose_\d|^transpose_[NCHW]{4}2",
    ),
    (
        "quantize",
        r"cast_to_fp[48]|per_(?:token|channel)_cast|cast_back_impl|cvt_\w*fp[468]|convert\w*_fp4|quantize_with_block_size|fp4_quant|_to_mx|mxfp[48]_quant",
    ),
    (
        "attention",
        r"FlashAttn(?:Fwd)?Combine|merge_?(?:attn_)?states?|attention_reduce|combine_attn",
    ),
    (
        "kv_cache_write",
        r"reshape_and_cache|concat_and_cache|append_paged_kv|kv_cache(?:_\w+)?_append|store_kv_?cache|set_kv_buffer|"
        r"set_mla_kv|UpdateKVCache|AppendPagedKV|\bk_set_rows|rope_cat_and_cache|rope_concat_\w*cache|"
        r"indexer_k_quant_and_cache|unified_kv_cache_update|write_to_paged_cache|kv_cache_update|fused_rope_and_cache|cache_kernel",
    ),
    (
        "attention",
        r"flash_?att(?:entio)?n|flash_fprop|_sdpa_|flash_fwd|flash_bwd|fmha|paged_attention|mla_|_attn_fwd|attn_fwd|"
        r"unified_attention|BatchPrefillWith|BatchDecodeWith|SinglePrefillWith|SingleDecodeWith|scaled_dot_product|"
        r"PagedAttention|_fwd_grouped_kernel|_fwd_kernel_stage|flash::|cpu_attention|FlashAttention|flex_attention|"
        r"FusedInferAttention|IncreFlash|PromptFlash|aiter.*pa_|attention_kernel|attention_with_kv_cache|"
        r"masked_softmax_(?:warp|kernel)|sage_?attn|\bsage_fwd|qk_int\d_sv|cutlass_mla|flash_?mla|FlashMLA|Sm100Mla|\bmla::|"
        r"mha_(?:varlen_)?(?:fwd|batch_prefill)|fmha_v\d|_attn_kernel\b|kernel_mha|decode_attn|prefill_attn|"
        r"multihead_attention|masked_multihead|XqaKernel|\bxqa|_fwd_kernel_flash|PrefillWithKVCache|BatchMLAPage|"
        r"\battend_ker|mqa_logits|topk_transform|topKPerRow|index_(?:block_)?score|topk_index|batch_(?:decode|prefill|verify)_\w*kv|tree_attn|_gqa_sparse|topk_attn|flex_decoding",
    ),
    ("scan", _RECURRENCE),
    (
        "moe_routing",
        r"topk_?gating|gating_?topk|topk_?softmax|topk_?moe|mm_ids_helper|moe_cumsum|moe_align|moe_?permute|moe_?unpermute|moe_weighted_reduction|expand_?input_?rows|grouped_topk|"
        r"finalize_?moe_?routing|moe_sum|count_and_sort_expert|moe_?sort|routing(?:Indices|Main|Cluster)|biased_grouped|"
        r"moe::dev::(?:routing|finalize|permute)|moe_fused_gate|compute_expert_offsets|MoeGating|MoeInit|"
        r"_combined_routing_|_topk_forward|_bitmatrix_|_finalize_matmul|_reduce_grouped|_expt_data",
    ),
    (
        "moe_experts",
        r"moe_mxgemm|batched_triton_kernel|fused_?moe|moe_forward|m_grouped|group(?:ed)?_?gemm(?:[^:\w]|_|\d|$)|GroupProblemShape|moe_gemm|marlin_moe|ck_moe|"
        r"moe_ck2stages|fmoe_|GroupedMatmul|^bmm_\w+_dynB|bmm_.*(?:moe|swiglu)|_matmul_ogs|GemmType\)[12]|"
        r"moe_?flatmm|moe_wna16|moe_(?:up|down)_|gemm_moe|cutlass_moe|_p_matmul_ogs|expert_gemm",
    ),
    (
        "norm",
        r"rms_?norm|layer_?norm|l2_?norm|group_?norm|batch_?norm|RowwiseMoments|GammaBetaBackward|cudnn::bn_|_norm_kernel|fused_add_rms|add_norm_|\bnorm_f32",
    ),
    (
        "conv",
        r"(?:cudnn|cutlass|xmma|cask).*(?:conv\d?d|wgrad|dgrad|fprop)|\d(?:wgrad|dgrad|fprop)|winograd|scudnn|"
        r"(?:wgrad|dgrad|fprop)(?:\dd|_(?:alg|optimized|analytic|implicit|grouped))|implicit_conv|miopen\w*conv|cudnn::cnn|"
        r"cudnn.*convolve|\bigemm_(?:fwd|bwd|wrw)|Im(?:2d)?2Col|Col2Im|vol2col|col2vol|(?:^|[^a-z])convolve|"
        r"(?:^|[^a-z])(?:naive|slow|grouped|depthwise|direct|gen\d*|xe\w*|brg|ref|implicit_gemm|nhwc)_?conv(?:[^e]|$)|"
        r"conv(?:[^e\W]\w*)?_(?:fwd|bwd|forward|backward)|conv_?(?:depthwise|transpose)\w*\dd|"
        r"(?:Grouped)?Conv(?:Fwd|Bwd|Nd|\dd|Uni|Direct)|\bconvolution|_convolution|^(?:fused_)*conv\dd|aten::conv\w*$",
    ),
    # the epilogue in a GEMM's name (relu, gelu, a conversion) does not decide its category, nor do
    # types that are changed
    (
        "gemm",
        r"mul_mat_|(?:quant|relu|gelu|silu|swish|swiglu)\w*(?:gem[mv]|matmul)|(?:gem[mv]|matmul)\w*(?:quant|relu|gelu|silu|swish|swiglu)|"
        r"cutlass::gemm|4gemm6kernel|dequant\w*(?:gem[mv]|matmul)|gemm\w*dequant|fused_\w*matmul|nvjet_|Cijk_|_xmma_gemm|s\d+gemm|\w+_[sdhcz]gemm_|tensorop_\w*gemm|simt_\w*gemm|cublasLt::|fp8_gemm|"
        r"triton_tem_fused_\w*mm_|gemm_universal|GemmUniversal|DeviceGemm|gemm_xdl|kernel_gemm|GemmKernel|gemm_kernel|\bgemm_\w+_(?:nt|nn|tn)\b",
    ),
    (
        "activation",
        r"act_and_mul|silu|swiglu|gelu|swish|relu|geglu|gated_act|xielu|activation_kernel|MIOpen(?:Neuron|Active)|doActivation|"
        r"moe::dev::activation",
    ),
    (
        "quantize",
        r"quantiz|quant_kernel|VectorQuant|QuantInt8|quant_per_block|cast_transpose|reconstruct_(?:exllama|gptq)|"
        r"downcast_to_\w*fp|per_token_group|per_token_quant|scaled_fp[48]|_quant_|dequant|fp8_cast|float8_copy",
    ),
    ("rope", r"rotary|rope_|_rope|\brope|RotaryPos|apply_rot"),
    (
        "sampling",
        r"argmax|top_?[kp]_|topKStage|addBiasSoftMax|TopKTopP|sampling|sampler|(?:^|[^a-z])sample_|multinomial|gumbel|_penalt|logits|logit_bias|"
        r"chunk_lse|softmax_with_chunked|gather_probs|rejection|"
        r"distribution_|exponential_|min_p_|_topk_|verify_tree|build_tree|"
        r"tree_speculative|sample_recovered|expand_batch_to_tokens",
    ),
    ("embedding", r"embedding|vectorized_gather|indexSelect|index_select|VocabParallel|GatherV"),
    (
        "gemm",
        r"nvjet|^triton_b?mm|(?:^|[^b])gemm|gemv|cublas|triton_tem_|cutlass_\d+|splitK|split_k|xmma|matmul|Cijk_|_mm_|"
        r"\bdot(?:_general)?(?:[._]\d+)*$|wvSplitK|dot_kernel|marlin|machete|aten::(?:addmm|mm|linear|bmm|baddbmm|einsum)$|"
        r"weight_packed_linear|onednn_mm|linear_kernel|cask_cudnn",
    ),
    ("fill", r"FillFunctor|\bfill_kernel|zero_kernel|aten::(?:zero_|fill_|zeros|full)$"),
    (
        "copy",
        r"copy_kernel|\bcpy_\w+|convert_unary|write_req_to_token|CatArrayBatchedCopy|_copy_|index_copy|aten::(?:copy_|cat|contiguous|clone|to|_to_copy)$|"
        r"nchwToNhwc|nhwcToNchw|transpose_readWrite|batched_transpose|copy_device_to_device|tensorTransformGeneric|SubTensorOp",
    ),
    (
        "elementwise",
        r"at::native::.*(?:elementwise|reduce_kernel|softmax|multi_tensor_apply|welford|scan_\w*kernel|"
        r"scatter_gather|index_\w*kernel|triu_tril|masked_\w+)|elementwise_kernel_with_index|softmax_warp_|"
        r"cunn_\w*SoftMax|CUDAFunctor|BinaryFunctor|multi_tensor_apply|^triton_|OpTensor|\bOp[1-5]dTensor|"
        r"k_bin_bcast|soft_max_f|(?:scale|softcap|reduce_rows|k_sum_rows|pad)_f32|\bk_repeat|(?:^|_)fusion(?:[._]\d+)*$|cupy_\w+__|cub::.*Device(?:Reduce|Scan)|pointwise|nvfuser_|\bvectorized_elementwise|scalePackedTensor|"
        r"aten::(?:add|sub|rsub|mul|div|pow|rsqrt|neg|mean|sum|cumsum|max|min|where|masked_fill|sin|cos|exp|sigmoid|"
        r"softmax|_softmax|eq|ne|lt|le|gt|ge|index|index_put_|arange|all|any|bitwise_\w+|logical_\w+)_?$",
    ),
]
"""Ordered ``(category, pattern)`` for kernels and for operators that stand in for them on CPU.

A convolution stays one if its name says how it multiplies; a fused kernel counts as its main
purpose (norm or activation, not the quantization at its end).
"""

_OWN = len(KERNEL_PATTERNS)

ATTENTION_HELPERS = (
    r"FlashAttn(?:Fwd)?Combine|merge_?(?:attn_)?states?|attention_reduce|combine_attn|combine_kernel|"
    r"mqa_logits|topk_transform|topKPerRow|index_(?:block_)?score|topk_index|topk_attn|mla_reduce|stream_k_fixup|combine_results|mla_combine|reduce_segments|_fwd_kernel_stage2|paged_attention.*reduce|unified_kv_cache|causal_conv1d"
)
"""Helper kernels of attention, which do not count as attention calls."""

BACKWARD = r"bwd|backward"

GRADIENT = rf"(?i){BACKWARD}|_grad_"
"""Kernels of attention, norms and activations that only training runs."""

OPTIMIZER = (
    r"multi_tensor_apply.*(?:adam|sgd|lamb)|fused_?(?:adam|sgd|lamb|adagrad)|\b_?multi_tensor_adam|"
    r"^Apply(?:Adam|Momentum|FusedEmaAdam)|ApplyMomentum|aclnnApply(?:Adam|FusedEmaAdam)"
)

EMBEDDING = rf"embedding|indexSelect|VocabParallel|{_LOOKS_UP}"

SPLIT_K = (
    r"splitKreduce|reduce_?split_?k|split_?k_?reduce|gemvNSP_reduce|_gemm_\w*reduce_kernel|PostGSU"
    r"|mul_mat_q_stream_k_fixup"
)
"""Kernels of the category gemm that add up the parts of a GEMM that was split along its inner
dimension.
"""

GEMM_HELPERS = rf"{SPLIT_K}|compute\w*Offsets|{LORA}"
"""Kernels of the category gemm that finish or prepare another GEMM, or add to its result."""

_KINDS: list[tuple[str, str]] = [
    (
        "all_reduce",
        r"all[_-]?reduce|cross_device_reduce|(?:one|two)_shot|quickreduce|multimem_all_reduce|lamport",
    ),
    ("reduce_scatter", r"reduce[_-]?scatter"),
    ("all_gather", r"all[_-]?gather|shm_gather"),
    ("all_to_all", r"all[_-]?to[_-]?all|dispatch|combine"),
    ("broadcast", r"broadcast"),
    ("send_recv", r"send|recv|batch_?isend|collective-permute"),
    ("reduce", r"reduce"),
]

COLLECTIVE_KINDS = (*(kind for kind, _ in _KINDS), "other")

_ALGORITHMS: list[tuple[str, str]] = [
    ("custom_1stage", r"cross_device_reduce_1stage"),
    ("custom_2stage", r"cross_device_reduce_2stage"),
    ("flashinfer_fused", r"allreduce_fusion|lamport"),
    ("multimem_one_shot", r"multimem_one_shot|multimem_all_reduce"),
    ("multimem_two_shot", r"multimem_two_shot"),
    ("one_shot", r"one_shot"),
    ("two_shot", r"two_shot"),
    ("quickreduce", r"quickreduce"),
    ("hybrid_ep", r"hybrid_ep::"),
    ("nixl_ep", r"nixl_ep::"),
    ("deepep", r"deep_ep|internode(?:_ll)?::|intranode::"),
    ("flashinfer_a2a", r"moeA2A"),
    ("mori", r"\bEp(?:Dispatch|Combine)\w*Kernel"),
    ("pplx", r"pplx::|\ba2a_"),
    ("shared_memory", r"shm_"),
]

_NCCL_ALGORITHM = r"(?i)nccl\w*_(RING|TREE|COLLNET\w*|NVLS\w*|PAT)_(LL128|LL|SIMPLE)"


@checked
def register(category: str, pattern: str) -> None:
    """Add a pattern to the front of the table, for this process.

    Parameters
    ----------
    category : str
        One of :data:`CATEGORIES`.
    pattern : str
        Regular expression, matched anywhere in the kernel's name and without regard to case.

    Raises
    ------
    LlmprofError
        The category is unknown, the pattern is not a regular expression, or it matches every name.
    """
    _check(category, pattern)
    patterns().insert(0, (category, pattern))


def _check(category: str, pattern: str) -> None:
    if category not in CATEGORIES:
        raise LlmprofError(
            f"there is no category {category!r}", expected=f"one of {listed(CATEGORIES)}"
        )
    check_pattern(pattern)


def patterns() -> list[tuple[str, str]]:
    """The table: patterns registered in this process, then those of the user's file and of
    plug-ins, then :data:`KERNEL_PATTERNS`.
    """
    _add_plugins()
    return KERNEL_PATTERNS


@cache
def _add_plugins() -> None:
    added: list[tuple[str, str]] = []
    for category, given in plugins.own()["kernels"].items():
        for pattern in given if isinstance(given, list) else [given]:
            _check(category, str(pattern))
            added.append((category, str(pattern)))
    for plugin in plugins.load(plugins.KERNEL_NAMES):
        described = f"{plugin.name!r} of {plugin.package}"
        for entry in plugin.value if isinstance(plugin.value, list | tuple) else [plugin.value]:
            try:
                with plugins.foreign():
                    category, pattern = entry
                    _check(category, pattern)
                added.append((category, pattern))
            except (plugins.FailedError, LlmprofError) as error:
                why = f"{entry!r} is no (category, pattern): {error}"
                plugins.warn_left_out(described, plugins.KERNEL_NAMES, why)
    registered_count = len(KERNEL_PATTERNS) - _OWN
    KERNEL_PATTERNS[registered_count:registered_count] = added


def registered() -> list[tuple[str, str]]:
    """Patterns of this process that do not come with llmprof (registered ones and those of
    plug-ins), in order.
    """
    return patterns()[: len(patterns()) - _OWN]


def table_fingerprint() -> int:
    """Fingerprint of the table of patterns; it is part of the key of results that depend on the
    table.
    """
    return hash(tuple(patterns()))


@checked
def named_categories(names: pl.Series) -> pl.Series:
    """Category of each kernel or operator name, null where no pattern matches it."""
    return by_unique_name(names, patterns(), None).alias("category")


@checked
def categories(names: pl.Series) -> pl.Series:
    """One of :data:`CATEGORIES` for each name of a kernel or operator."""
    return by_unique_name(names, patterns(), "other").alias("category")


@checked
def collective_kinds(names: pl.Series) -> pl.Series:
    """Kind of collective of each name: all_reduce, all_gather … or other."""
    return by_unique_name(names, _KINDS, "other").alias("kind")


@checked
def collective_algorithms(names: pl.Series) -> pl.Series:
    """Algorithm of each collective if its name states it (``custom_1stage``, ``ring_ll`` …),
    else null.
    """
    return by_distinct(names, _algorithms).alias("algorithm")


@remembered
def _algorithms(distinct: tuple[str, ...]) -> pl.Series:
    """Algorithm that each name states."""
    names = pl.Series("name", distinct, dtype=pl.String)
    frame = pl.DataFrame({"named": by_unique_name(names, _ALGORITHMS, None), "name": names})
    parts = (pl.col("name").str.extract(_NCCL_ALGORITHM, group) for group in (1, 2))
    nccl = pl.concat_str(*parts, separator="_").str.to_lowercase()
    return frame.select(pl.coalesce("named", nccl)).to_series()


@checked
def collective_world(name: pl.Expr) -> pl.Expr:
    """Number of ranks of a collective if its name states it: a template argument of vLLM's
    custom all-reduce.
    """
    return name.str.extract(r"cross_device_reduce_\dstage<[^<>]*,\s*(?:\(int\))?(\d+)>", 1).cast(
        pl.Int32
    )


@checked
def element_bytes(dtype: pl.Expr) -> pl.Expr:
    """Bytes of an element of a type; null for an unknown name."""
    return (
        dtype.str.to_lowercase()
        .str.replace(r"^c10::", "")
        .replace_strict(SIZES, default=None, return_dtype=pl.Int64)
    )
