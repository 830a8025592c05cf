"""The table of operators: what each does, how its work follows from its arguments, and how it can
be run alone.

A line is a name or a family of names. To add an operator, add a line; the places in it are those of
its arguments in the published signature that the line names.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Final

import polars as pl

from llmprof import plugins
from llmprof.errors import LlmprofError, checked, listed
from llmprof.names import CATEGORIES
from llmprof.names.matching import by_distinct, by_unique_name
from llmprof.theory.calls.attention import (
    SECOND_FLAG,
    cached_attention,
    dense_attention,
    flash_attention,
    latent_attention,
)
from llmprof.theory.calls.call import NoWorkError, OperatorCall
from llmprof.theory.calls.elements import (
    arange,
    as_type,
    cache_write,
    chosen,
    compiled_kernel,
    concatenation,
    elementwise,
    embedding_backward,
    embedding_bags,
    foreach,
    four_bits,
    gather,
    half_of,
    indexing,
    indices,
    latent_rope,
    mask_of,
    mean_of,
    moves,
    norm_rope,
    optimizer_step,
    rope,
    rounded,
    row_bytes,
    scatter,
    slots_of,
)
from llmprof.theory.calls.experts import (
    expert_products,
    expert_runner,
    expert_sum,
    grouped_product,
    packed_experts,
    routed_experts,
    tensorrt_experts,
)
from llmprof.theory.calls.npu import (
    npu_attention,
    npu_moves,
    npu_product,
)
from llmprof.theory.calls.products import (
    convolution,
    convolution_backward,
    packed_product,
    product,
    quantized_product,
    sized_product,
)
from llmprof.theory.calls.rows import (
    dequantize,
    grid_sampling,
    norm_backward,
    padded,
    picked_loss,
    pooling,
    reduction,
    rms_norm,
    sized,
    sorted_values,
    top_values,
    upsampling,
)
from llmprof.theory.calls.scans import (
    LEAST,
    causal_convolution,
    gated_delta,
    kimi_delta,
    linear_attention,
    mamba_mixer,
    selective_scan,
    split_scan,
)
from llmprof.theory.calls.work import CallWork, Cost

Content = tuple[str, int, int] | tuple[str, int] | tuple[str]
"""Content of a tensor of integers.

``("below", argument, axis)``: indices below the size of an axis of another argument;
``("below_axis", argument, number)``: the same, for the axis that a recorded number names;
``("below_value", argument)``: indices below a recorded number;
``("slots", argument)``: distinct slots of a paged cache;
``("pages", argument)``: pages of a paged cache;
``("ends", argument, longest)``: ends of the parts of an argument's first axis;
``("value", argument)``: a recorded number in every place;
``("ones",)``: ones; ``("fa3_metadata",)``: the plan of FlashAttention 3."""


@dataclass(frozen=True, slots=True)
class Timeable:
    """How an operator can be called alone, with tensors of random numbers."""

    stored: tuple[int, ...] = ()
    """Arguments that stay in memory between steps: weights and caches."""
    holds: Mapping[int, Content] = field(default_factory=lambda: MappingProxyType({}))
    """Content of arguments that cannot be filled with arbitrary random numbers."""
    usual: Mapping[int, float | int | bool | str] = field(
        default_factory=lambda: MappingProxyType({})
    )
    """Values of arguments that recordings lack, such as texts, which profilers do not write."""
    pages: tuple[int, ...] = ()
    """Arguments whose first axis is the number of pages of a cache; fewer pages are enough for a
    run.
    """
    assumed: str = ""
    """Assumption about facts that the recording lacks."""


@dataclass(frozen=True, slots=True)
class Operator:
    """A line of the table of operators.

    Parameters
    ----------
    kind : str
        What it does, in a word: a category of kernels, or a finer word.
    names : str
        Names of its operators, separated by spaces; a name that ends with ``*`` stands for all with
        this beginning.
    work : callable, optional
        From an :class:`OperatorCall` to its :class:`CallWork`; it raises :class:`NoWorkError` with
        the reason where it has none. Its docstring begins with FLOPs and bytes. Without it, the
        operator has no bound.
    timed : Timeable, optional
        How it can be run alone, if it can.
    source : str
        Where its signature is published, unless its namespace says it (:data:`SIGNATURES`).
    whole : bool
        Whether kernels of operators that it calls are part of it, whatever kinds these have.
    lengths : bool
        Whether its work depends on the lengths of the sequences of the step.
    inside : str
        Names of operators that it calls and whose arguments its work needs, separated by spaces.
    mixed : bool
        Whether its kernels have several purposes, so that it does not say their category.
    """

    kind: str
    names: str
    work: Callable[[OperatorCall], CallWork] | None = None
    timed: Timeable | None = None
    source: str = ""
    whole: bool = False
    lengths: bool = False
    inside: str = ""
    mixed: bool = False

    @property
    def signatures(self) -> str:
        """Where the signatures of its operators are published."""
        spaces = (name.split("::")[0] for name in self.names.split())
        return self.source or "; ".join(dict.fromkeys(SIGNATURES.get(each, "") for each in spaces))


_CATEGORIES: Final[Mapping[str, str]] = {
    **{kind: kind for kind in CATEGORIES if kind not in ("scan", "collective", "other")},
    **dict.fromkeys(("softmax", "reduction", "gather", "scatter", "foreach"), "elementwise"),
    "convolution": "conv",
    "all_reduce": "collective",
}
"""Category of the kernels of an operator by its kind; kernels of other kinds say their own."""

_LENGTHS: Final = (
    "lengths of sequences are not recorded: as many as possible are assumed to be as long as the"
    " longest"
)
_ROUTED: Final = "the experts of each token are not recorded: random ones are used"
_OWN_CACHE: Final = "cache of the type of the new keys, no sliding window, as far as was recorded"
_EPSILON: Final = 1e-6
_ALONE: Final = Timeable()
SIGNATURES: Final[Mapping[str, str]] = {
    "aten": "torch, aten/src/ATen/native/native_functions.yaml",
    "c10d": "torch, torch/csrc/distributed/c10d/Ops.cpp",
    "_C": "vllm, csrc/torch_bindings.cpp",
    "_C_cache_ops": "vllm, csrc/torch_bindings.cpp",
    "_C_custom_ar": "vllm, csrc/torch_bindings.cpp",
    "_moe_C": "vllm, csrc/moe/torch_bindings.cpp",
    "_rocm_C": "vllm, csrc/rocm/torch_bindings.cpp",
    "_vllm_fa2_C": "vllm-project/flash-attention, csrc/common/pybind.h",
    "_vllm_fa3_C": "vllm-project/flash-attention, hopper/flash_api_torch_lib.cpp",
    "_flashmla_C": "vllm-project/FlashMLA, csrc",
    "vllm": "vllm, functions that direct_register_custom_op names",
    "sgl_kernel": "sglang, sgl-kernel/csrc/common_extension.cc",
    "sglang": "sglang, functions that direct_register_custom_op names",
    "sglang_profiler": "sglang, the function that the name ends with",
    "aiter": "aiter, functions of aiter/ops",
    "flash_attn": "flash-attention, flash_attn/flash_attn_interface.py",
    "flash_attn_3": "flash-attention, hopper/flash_attn_interface.py",
    "flashinfer": "flashinfer, functions that register_custom_op names",
    "trtllm": "TensorRT-LLM, tensorrt_llm/_torch/custom_ops",
    "tex_ts": "TransformerEngine, transformer_engine/pytorch/csrc/ts_fp8_op.cpp",
    "DaoAILab": "causal-conv1d, causal_conv1d/cpp_functions.py",
    "bitsandbytes": "bitsandbytes, bitsandbytes/_ops.py",
    "fbgemm": "FBGEMM, fbgemm_gpu/src",
    "fb": "FBGEMM, fbgemm_gpu/src",
    "torch": "FBGEMM, fbgemm_gpu/src",
    "primus_turbo": "Primus-Turbo, primus_turbo/pytorch/kernels/grouped_gemm",
    "cann": "CANN, ops/built-in/op_proto",
}
"""Where the signatures of the operators of a namespace are published; a function without one has
its own source.
"""

OPERATORS: list[Operator] = [
    Operator("gemm", "aten::mm aten::matmul", product(), Timeable(stored=(1,))),
    Operator("gemm", "aten::_int_mm", product(width=4), Timeable(stored=(1,))),
    Operator(
        "gemm", "aten::addmm", product(1, 2, addend=0), Timeable(stored=(0, 2), usual={3: 1, 4: 1})
    ),
    Operator("gemm", "aten::_addmm_activation aten::baddbmm_", product(1, 2, addend=0)),
    Operator("gemm", "aten::bmm", product(), _ALONE),
    Operator("gemm", "aten::baddbmm", product(1, 2, addend=0), Timeable(usual={3: 1, 4: 1})),
    Operator("gemm", "aten::mv", product(), Timeable(stored=(0,))),
    Operator(
        "gemm", "aten::linear", product(addend=2, dtypes=(3,), turned=True), Timeable(stored=(1, 2))
    ),
    Operator(
        "gemm",
        "vllm::rocm_unquantized_gemm vllm::rocm_unquantized_gemm_impl aiter::gemm_a16w16",
        product(addend=2, dtypes=(3,), turned=True),
        whole=True,
    ),
    Operator("gemm", "_rocm_C::wvSplitK _rocm_C::LLMM1", product(1, 0, turned=True)),
    Operator(
        "gemm",
        "aten::_scaled_mm",
        product(addend=4, scales=(2, 3), dtypes=(4, 5, 6), width=2),
        Timeable(stored=(1,), holds={2: ("ones",), 3: ("ones",)}),
    ),
    Operator(
        "gemm",
        "_C::cutlass_scaled_mm",
        product(1, 2, addend=5, scales=(3, 4), out=0),
        Timeable(stored=(2,), holds={3: ("ones",), 4: ("ones",)}),
    ),
    Operator(
        "gemm",
        "sgl_kernel::fp8_scaled_mm sgl_kernel::int8_scaled_mm"
        " sgl_kernel::fp8_blockwise_scaled_mm trtllm::cublas_scaled_mm",
        product(addend=4, scales=(2, 3), dtypes=(4, 5, 6), width=2),
    ),
    Operator(
        "gemm",
        "vllm::w8a8_triton_block_scaled_mm_func vllm::w8a8_block_fp8_matmul_func"
        " vllm::padded_cutlass vllm::fp8_gemm_nt_op vllm::rocm_aiter_gemm_a8w8"
        " vllm::rocm_aiter_gemm_a8w8_blockscale"
        " vllm::rocm_aiter_triton_gemm_a8w8_blockscale"
        " vllm::_rocm_aiter_preshuffled_per_token_w8a8_gemm aiter::gemm_a8w8_ck"
        " aiter::gemm_a8w8_asm aiter::gemm_a8w8_bpreshuffle_ck"
        " aiter::gemm_a8w8_blockscale_ck aiter::gemm_a8w8_blockscale_cktile"
        " aiter::gemm_a8w8_blockscale_bpreshuffle_ck"
        " aiter::gemm_a8w8_blockscale_bpreshuffle_cktile"
        " aiter::flatmm_a8w8_blockscale_asm aiter::gemm_a4w4 aiter::_gemm_a4w4_asm"
        " aiter::gemm_a4w4_asm aiter::gemm_a4w4_blockscale",
        quantized_product(),
        whole=True,
    ),
    Operator("gemm", "bitsandbytes::int8_linear_matmul", quantized_product(4), whole=True),
    Operator(
        "gemm",
        "_C::cutlass_scaled_fp4_mm sgl_kernel::cutlass_scaled_fp4_mm"
        " _C::dsv3_fused_a_gemm sgl_kernel::dsv3_fused_a_gemm _moe_C::dsv3_router_gemm"
        " sgl_kernel::dsv3_router_gemm",
        sized_product(),
    ),
    Operator("gemm", "aten::dot", None, _ALONE),
    Operator("gemm", "_C::weight_packed_linear", None, Timeable(stored=(1,))),
    Operator(
        "gemm",
        "aten::addbmm aten::addmv aten::einsum aten::_scaled_mm_v2 aten::mkldnn_linear",
        None,
    ),
    Operator("gemm", "tex_ts::te_gemm_ts", sized_product(10, 5, 0, ())),
    Operator("gemm", "aten::_weight_int4pack_mm", packed_product(3, 1)),
    Operator("gemm", "aten::_weight_int8pack_mm", packed_product(2, 0)),
    Operator(
        "gemm",
        "_C::marlin_gemm _C::gptq_marlin_gemm _C::gptq_gemm _C::awq_gemm _C::machete_mm"
        " sgl_kernel::gptq_gemm sgl_kernel::awq_gemm sgl_kernel::gptq_marlin_gemm",
        packed_product(),
        whole=True,
    ),
    Operator(
        "gemm",
        "cann::MatMul cann::MatMulV2 cann::MatMulV3 cann::BatchMatMul"
        " cann::BatchMatMulV2 cann::BatchMatMulV3",
        npu_product(),
    ),
    Operator("convolution", "aten::convolution", convolution(transposed=6), whole=True),
    Operator("convolution", "aten::_convolution", convolution(transposed=6)),
    Operator("convolution", "aten::cudnn_convolution", convolution((3, 2, 4), 5, bias=None)),
    Operator("convolution", "aten::miopen_convolution", convolution((4, 3, 5), 6)),
    Operator(
        "convolution",
        "aten::conv1d aten::conv2d aten::conv3d aten::_slow_conv2d_forward"
        " aten::thnn_conv2d aten::mkldnn_convolution aten::cudnn_convolution_relu",
        None,
    ),
    Operator("convolution", "aten::convolution_backward", convolution_backward(), whole=True),
    Operator(
        "attention",
        "aten::_scaled_dot_product_flash_attention"
        " aten::_scaled_dot_product_flash_attention_for_cpu",
        dense_attention(4),
        _ALONE,
        whole=True,
    ),
    Operator(
        "attention",
        "aten::_scaled_dot_product_efficient_attention aten::_scaled_dot_product_cudnn_attention",
        dense_attention(6),
        _ALONE,
        whole=True,
    ),
    Operator(
        "attention",
        "aten::_scaled_dot_product_fused_attention_overrideable",
        dense_attention(5),
        whole=True,
    ),
    Operator("attention", "aten::scaled_dot_product_attention", dense_attention(5), _ALONE),
    Operator("attention", "aten::_cudnn_attention_forward", dense_attention(10)),
    Operator(
        "attention",
        "aten::_scaled_dot_product_flash_attention_backward"
        " aten::_scaled_dot_product_efficient_attention_backward",
        dense_attention(11, backward=True),
        whole=True,
    ),
    Operator(
        "attention",
        "aten::_scaled_dot_product_cudnn_attention_backward",
        dense_attention(14, backward=True),
        whole=True,
    ),
    Operator(
        "attention",
        "aten::_flash_attention_forward",
        flash_attention(8, 11, 3, 5, 15),
        lengths=True,
    ),
    Operator(
        "attention",
        "aten::_efficient_attention_forward",
        flash_attention(9, None, 4, 6),
        lengths=True,
    ),
    Operator(
        "attention",
        "FlashAttnFunc",
        flash_attention(5),
        source="flash-attention, flash_attn/flash_attn_interface.py",
        lengths=True,
    ),
    Operator(
        "attention",
        "FlashAttnVarlenFunc",
        flash_attention(9, None, 3, 5),
        source="flash-attention, flash_attn/flash_attn_interface.py",
        lengths=True,
    ),
    Operator(
        "attention",
        "flash_attn::_flash_attn_forward aiter::_flash_attn_forward"
        " aiter::wrapper_fmha_v3_fwd aiter::mha_fwd aiter::fmha_v3_fwd",
        flash_attention(5, 6),
        lengths=True,
    ),
    Operator(
        "attention",
        "flash_attn::_flash_attn_varlen_forward",
        flash_attention(9, 10, 3, 5, 15),
        lengths=True,
    ),
    Operator(
        "attention",
        "flash_attn_3::fwd flash_attn_3::_flash_attn_forward sgl_kernel::fwd",
        flash_attention(24, 25, 7, 12, 14, latent=5),
        lengths=True,
    ),
    Operator(
        "attention",
        "_vllm_fa3_C::fwd",
        flash_attention(24, 25, 7, 12, 14, latent=5),
        Timeable(
            stored=(1, 2),
            holds={
                7: ("ends", 0, 12),
                8: ("ends", 1, 13),
                11: ("value", 13),
                14: ("pages", 1),
                20: ("ones",),
                21: ("ones",),
                22: ("ones",),
                29: ("fa3_metadata",),
            },
            pages=(1, 2),
            assumed=_LENGTHS,
        ),
        lengths=True,
    ),
    Operator(
        "attention",
        "_vllm_fa2_C::varlen_fwd",
        flash_attention(15, 16, 4, 10, 8),
        Timeable(
            stored=(1, 2),
            holds={4: ("ends", 0, 10), 5: ("ends", 1, 11), 6: ("value", 11), 8: ("pages", 1)},
            pages=(1, 2),
            assumed=_LENGTHS,
        ),
        lengths=True,
    ),
    Operator(
        "attention", "aiter::mha_varlen_fwd", flash_attention(SECOND_FLAG, None, 3, 5), lengths=True
    ),
    Operator(
        "attention", "aiter::mha_batch_prefill", flash_attention(None, None, 3, 6, 5), lengths=True
    ),
    Operator(
        "attention", "aten::_flash_attention_backward", flash_attention(11, 15, 6, 8, backward=True)
    ),
    Operator(
        "attention",
        "aten::_efficient_attention_backward",
        flash_attention(14, None, 6, 8, backward=True),
    ),
    Operator(
        "attention", "flash_attn::_flash_attn_backward", flash_attention(11, 12, backward=True)
    ),
    Operator(
        "attention",
        "flash_attn::_flash_attn_varlen_backward",
        flash_attention(15, 16, 9, 11, backward=True),
    ),
    Operator("attention", "flash_attn_3::bwd", flash_attention(16, 17, 9, 13, backward=True)),
    Operator(
        "attention",
        "flash_attn_3::_flash_attn_backward",
        flash_attention(16, 17, 6, 10, backward=True),
    ),
    Operator("attention", "aiter::_flash_attn_backward", flash_attention(12, 13, backward=True)),
    Operator(
        "attention", "aiter::mha_bwd aiter::fmha_v3_bwd", flash_attention(8, 9, backward=True)
    ),
    Operator(
        "attention",
        "aiter::mha_varlen_bwd",
        flash_attention(SECOND_FLAG, None, 6, 8, backward=True),
    ),
    Operator(
        "attention",
        "sglang_profiler::attention_paged_attention_ragged* aiter::paged_attention_ragged",
        cached_attention(2),
        lengths=True,
    ),
    Operator("attention", "_C::paged_attention_v1", cached_attention(1, 4), lengths=True),
    Operator(
        "attention",
        "_C::paged_attention_v2 _rocm_C::paged_attention",
        cached_attention(4, 7),
        lengths=True,
    ),
    Operator(
        "attention", "sgl_kernel::cutlass_mla_decode", latent_attention(1, 3, 2), lengths=True
    ),
    Operator("attention", "_C::sm100_cutlass_mla_decode", latent_attention(2, 4, 3), lengths=True),
    Operator(
        "attention",
        "_flashmla_C::fwd_kvcache_mla sgl_kernel::fwd_kvcache_mla",
        latent_attention(0, 1),
        lengths=True,
    ),
    Operator(
        "attention",
        "vllm::unified_attention_with_output vllm::unified_attention",
        cached_attention(assumed=_OWN_CACHE),
        lengths=True,
    ),
    Operator(
        "attention",
        "_vllm_fa3_C::get_scheduler_metadata",
        moves("8 9 >", assumed="results left out"),
        mixed=True,
    ),
    Operator("attention", "_C::merge_attn_states", moves("2 3 4 5 > 0 1", 3)),
    Operator(
        "attention", "sgl_kernel::merge_state sgl_kernel::merge_state_v2", moves("0 1 2 3 > 4 5", 3)
    ),
    Operator("attention", "cann::FlashAttentionScore", npu_attention()),
    Operator("attention", "cann::FlashAttentionScoreGrad", npu_attention(backward=True)),
    Operator(
        "scan",
        "vllm::mamba_mixer2",
        mamba_mixer(),
        whole=True,
        inside="aten::_index_put_impl_ aten::to aten::transpose",
    ),
    Operator(
        "scan",
        "SelectiveScanFn",
        selective_scan(),
        source="mamba_ssm, csrc/selective_scan",
        whole=True,
    ),
    Operator("scan", "_C::selective_scan_fwd", selective_scan(), whole=True),
    Operator(
        "scan",
        "MambaChunkScanCombinedFn",
        moves("0 1! 3! 4! 7 9 > 0", 4, per=3, matrix=0, assumed=LEAST),
        source="mamba_ssm/ops/triton/ssd_combined.py",
        whole=True,
    ),
    Operator(
        "scan",
        "MambaSplitConv1dScanCombinedFn",
        split_scan(),
        source="mamba_ssm/ops/triton/ssd_combined.py",
    ),
    Operator(
        "scan",
        "DaoAILab::_causal_conv1d_fwd_cpp DaoAILab::_causal_conv1d_update_cpp"
        " _C::causal_conv1d_fwd _C::causal_conv1d_update sgl_kernel::causal_conv1d_fwd"
        " sgl_kernel::causal_conv1d_update trtllm::causal_conv1d_fwd"
        " trtllm::causal_conv1d_update",
        causal_convolution(),
    ),
    Operator("scan", "DaoAILab::_causal_conv1d_bwd_cpp", moves("0 1! 3! > 7? 8 9", 4, per=1)),
    Operator(
        "scan", "vllm::kda_attention", kimi_delta(), whole=True, inside="aten::_index_put_impl_"
    ),
    Operator(
        "scan",
        "vllm::gdn_attention_core vllm::qwen_gdn_attention_core"
        " aiter::linear_attention_with_output_base",
        gated_delta(),
        whole=True,
        inside="aten::_index_put_impl_ ChunkGatedDeltaRuleFunction FusedRecurrentFunction",
    ),
    Operator(
        "scan",
        "ChunkGatedDeltaRuleFunction ChunkDeltaRuleFunction ChunkKDAFunction"
        " FusedRecurrentFunction",
        linear_attention(),
        source="flash-linear-attention, fla/ops",
        whole=True,
    ),
    Operator(
        "scan",
        "ChunkGLAFunction ChunkSimpleGLAFunction ChunkRWKV6Function",
        linear_attention(products=2),
        source="flash-linear-attention, fla/ops",
        whole=True,
    ),
    Operator(
        "scan",
        "ChunkDPLRDeltaRuleFunction FusedRecurrentRWKV7Function",
        linear_attention(products=4),
        source="flash-linear-attention, fla/ops",
        whole=True,
    ),
    Operator(
        "scan",
        "sgl_kernel::lightning_attention_decode",
        moves("3 0! 1! 2! > 5 3", 4, of="3", matrix=0),
    ),
    Operator(
        "norm",
        "aten::layer_norm aten::native_layer_norm",
        moves("0 2 3 > 0", 7),
        Timeable(usual={4: 1e-5}),
    ),
    Operator(
        "norm",
        "FusedLayerNormAffineFunction",
        moves("0 2 3 > 0", 7),
        source="apex, apex/normalization/fused_layer_norm.py",
    ),
    Operator(
        "norm",
        "aten::native_group_norm aten::group_norm aiter::_groupnorm_run",
        moves("0 2 3 > 0", 7),
    ),
    Operator("norm", "_C::rms_norm sgl_kernel::rmsnorm", rms_norm(), Timeable(usual={3: _EPSILON})),
    Operator(
        "norm",
        "LigerRMSNormFunction FusedRMSNormAffineFunction",
        rms_norm(),
        source="Liger-Kernel/ops; apex, apex/normalization/fused_layer_norm.py",
    ),
    Operator(
        "norm",
        "aiter::rmsnorm aiter::rms_norm aiter::rmsnorm2d_fwd_ck aiter::rmsnorm2d_fwd"
        " aiter::rms_norm_cu sgl_kernel::gemma_rmsnorm flashinfer::rmsnorm"
        " flashinfer::gemma_rmsnorm trtllm::flashinfer_rmsnorm"
        " trtllm::flashinfer_gemma_rmsnorm",
        rms_norm(),
    ),
    Operator("norm", "aten::rms_norm", moves("0 2 > 0", 4)),
    Operator("norm", "aten::_fused_rms_norm", moves("0 2 > 0", 4), _ALONE),
    Operator(
        "norm",
        "_C::fused_add_rms_norm sgl_kernel::fused_add_rmsnorm",
        moves("0 1 2 > 0 1", 5),
        Timeable(usual={3: _EPSILON}),
    ),
    Operator(
        "norm",
        "sgl_kernel::gemma_fused_add_rmsnorm aiter::fused_add_rms_norm_cu"
        " flashinfer::fused_add_rmsnorm flashinfer::gemma_fused_add_rmsnorm"
        " trtllm::flashinfer_fused_add_rmsnorm"
        " trtllm::flashinfer_gemma_fused_add_rmsnorm",
        moves("0 1 2 > 0 1", 5),
    ),
    Operator(
        "norm",
        "aiter::add_rmsnorm aiter::rmsnorm2d_fwd_with_add_ck aiter::rmsnorm2d_fwd_with_add",
        moves("1 2 4 > 0 3", 5),
    ),
    Operator(
        "norm",
        "_C::rms_norm_static_fp8_quant",
        moves("1 2 3 > 0", 6),
        Timeable(holds={3: ("ones",)}, usual={4: _EPSILON}),
    ),
    Operator("norm", "flashinfer::rmsnorm_quant", moves("1 2 3 > 0", 6)),
    Operator(
        "norm",
        "_C::fused_add_rms_norm_static_fp8_quant",
        moves("1 2 3 4 > 0 2", 7),
        Timeable(holds={4: ("ones",)}, usual={5: _EPSILON}),
    ),
    Operator(
        "norm",
        "trtllm::flashinfer_fused_add_rmsnorm_quant flashinfer::fused_add_rmsnorm_quant",
        moves("1 2 3 4 > 0 2", 7),
    ),
    Operator(
        "norm",
        "_C::rms_norm_dynamic_per_token_quant _C::rms_norm_per_block_quant",
        moves("1 2 6 > 0 3 6", 6),
    ),
    Operator(
        "norm",
        "aiter::rmsnorm2d_fwd_with_dynamicquant"
        " aiter::rmsnorm2d_fwd_with_dynamicquant_ck aiter::rmsnorm_quant",
        moves("1 3 > 0 2", 6),
    ),
    Operator(
        "norm",
        "aiter::rmsnorm2d_fwd_with_add_dynamicquant"
        " aiter::rmsnorm2d_fwd_with_add_dynamicquant_ck aiter::add_rmsnorm_quant",
        moves("1 2 5 > 0 3 4", 7),
    ),
    Operator(
        "norm",
        "aiter::rmsnorm2d_fwd_with_smoothquant aiter::rmsnorm2d_fwd_with_smoothquant_ck",
        moves("1 2 4 > 0 3", 7),
    ),
    Operator(
        "norm",
        "aiter::rmsnorm2d_fwd_with_add_smoothquant aiter::rmsnorm2d_fwd_with_add_smoothquant_ck",
        moves("1 2 4 6 > 0 3 5", 8),
    ),
    Operator(
        "norm",
        "aiter::layer_norm aiter::layer_norm_ck aiter::layernorm2d_fwd aiter::layernorm2d_fwd_ck",
        moves("0 1 2 > 0", 7),
    ),
    Operator(
        "norm",
        "aiter::layernorm2d_fwd_with_add aiter::layernorm2d_fwd_with_add_ck",
        moves("1 2 4 5 > 0 3", 8),
    ),
    Operator("norm", "vllm::fused_mla_dual_rms_norm", moves("0 1 2 3 > 0 2", 4, of="0 2")),
    Operator(
        "norm",
        "vllm::rocm_aiter_triton_add_rmsnorm_pad",
        moves("0 1 3 > 0 3", 5, assumed="padding left out"),
    ),
    Operator(
        "norm", "vllm::rocm_aiter_rmsnorm_fused_dynamic_quant", moves("0 1 >", 6, new=rounded())
    ),
    Operator(
        "norm",
        "vllm::rocm_aiter_rmsnorm_fused_add_dynamic_quant",
        moves("0 1 2 > 1", 7, new=rounded()),
    ),
    Operator("norm", "vllm::rocm_aiter_rmsnorm_fp8_group_quant", moves("0 1 >", 6, new=rounded(3))),
    Operator(
        "norm",
        "vllm::rocm_aiter_rmsnorm_with_add_fp8_group_quant",
        moves("0 1 2 > 1", 7, new=rounded(4)),
    ),
    Operator(
        "norm",
        "vllm::rocm_aiter_fused_rms_gated_fp8_group_quant",
        moves("0 1 2 3 >", 8, new=rounded(7)),
    ),
    Operator(
        "norm", "aten::native_layer_norm_backward aten::native_group_norm_backward", norm_backward()
    ),
    Operator("norm", "aten::_fused_rms_norm_backward", norm_backward(9)),
    Operator(
        "norm",
        "aten::native_batch_norm aten::cudnn_batch_norm aten::miopen_batch_norm"
        " aten::_batch_norm_with_update aten::_native_batch_norm_legit"
        " aten::_native_batch_norm_legit_no_training aten::_batch_norm_no_update",
        moves("0 > 0", 7),
    ),
    Operator(
        "norm",
        "aten::native_batch_norm_backward aten::cudnn_batch_norm_backward"
        " aten::miopen_batch_norm_backward aten::batch_norm_backward",
        moves("0 1 > 0", 13),
    ),
    Operator("norm", "aten::batch_norm_elemt", moves("0 > 0", 4)),
    Operator("norm", "aten::batch_norm_stats", moves("0 >", 4)),
    Operator("norm", "aten::batch_norm_backward_reduce", moves("0 1 >", 5)),
    Operator("norm", "aten::batch_norm_backward_elemt", moves("0 1 > 0", 6)),
    Operator("norm", "aten::_weight_norm_interface", moves("0 1 > 0 1", 4)),
    Operator("norm", "aten::_weight_norm_interface_backward", moves("0 1 2 3 > 1 2", 6)),
    Operator(
        "norm",
        "cann::RmsNorm cann::AddRmsNorm cann::LayerNorm cann::LayerNormV3"
        " cann::LayerNormV4 cann::RmsNormGrad cann::LayerNormGrad cann::LayerNormGradV3"
        " cann::LayerNormV3Grad",
        npu_moves(),
    ),
    Operator("rope", "_C::rotary_embedding", rope(), Timeable(holds={0: ("below", 4, 0)})),
    Operator(
        "rope",
        "_C::batched_rotary_embedding sgl_kernel::rotary_embedding"
        " vllm::flashinfer_rotary_embedding vllm::rocm_aiter_triton_rotary_embedding"
        " trtllm::flashinfer_apply_rope_with_cos_sin_cache_inplace",
        rope(),
    ),
    Operator(
        "rope",
        "sgl_kernel::apply_rope_pos_ids_cos_sin_cache flashinfer::apply_rope_pos_ids_cos_sin_cache",
        moves("0 1 5 > 2 3", 3, of="0 1", assumed="the table left out"),
    ),
    Operator(
        "rope", "LigerRopeFunction", moves("0 1 2 3 > 0 1", 3, of="0 1"), source="Liger-Kernel/ops"
    ),
    Operator(
        "rope",
        "aiter::rope_cached_positions_2c_fwd_impl aiter::rope_cached_positions_offsets_2c_fwd_impl",
        moves("2 3 6 7 > 0 1", 3, of="2 3"),
    ),
    Operator(
        "rope",
        "aiter::rope_cached_positions_fwd_impl aiter::rope_cached_positions_offsets_fwd_impl",
        moves("1 4 5 > 0", 3, of="1"),
    ),
    Operator("rope", "aiter::rope_fwd_impl aiter::rope_bwd_impl", moves("1 2 > 0", 3, of="1")),
    Operator(
        "rope",
        "aiter::rope_cached_fwd_impl aiter::rope_cached_bwd_impl",
        moves("1 2 3 > 0", 3, of="1"),
    ),
    Operator(
        "rope", "aiter::rope_2c_fwd_impl aiter::rope_2c_bwd_impl", moves("2 3 4 > 0 1", 3, of="2 3")
    ),
    Operator(
        "rope",
        "aiter::rope_cached_2c_fwd_impl aiter::rope_cached_2c_bwd_impl",
        moves("2 3 4 5 > 0 1", 3, of="2 3"),
    ),
    Operator(
        "rope",
        "aiter::rope_thd_fwd_impl aiter::rope_thd_bwd_impl aiter::rope_2d_fwd_impl"
        " aiter::rope_2d_bwd_impl",
        moves("1 > 0", 3, of="1"),
    ),
    Operator("rope", "_C::fused_qk_norm_rope sgl_kernel::fused_qk_norm_rope", norm_rope()),
    Operator(
        "rope",
        "aiter::fused_qk_rope_cat_and_cache_mla aiter::fused_qk_rope_concat_and_cache_mla",
        latent_rope(),
    ),
    Operator(
        "rope",
        "cann::RotaryPositionEmbedding cann::RotaryPositionEmbeddingGrad"
        " cann::RotaryMul cann::RotaryMulGrad",
        npu_moves(),
    ),
    Operator(
        "kv_cache_write",
        "_C_cache_ops::reshape_and_cache_flash",
        moves("0 1! 4! >", new=slots_of("0 1", 2)),
        Timeable(
            stored=(2, 3),
            holds={4: ("slots", 2), 6: ("ones",), 7: ("ones",)},
            usual={5: "auto"},
            pages=(2, 3),
        ),
    ),
    Operator(
        "kv_cache_write",
        "_C_cache_ops::reshape_and_cache sglang::store_cache aiter::reshape_and_cache"
        " aiter::reshape_and_cache_flash",
        moves("0 1! 4! >", new=slots_of("0 1", 2)),
    ),
    Operator(
        "kv_cache_write",
        "aiter::reshape_and_cache_with_pertoken_quant",
        moves("0 1! 6! >", new=slots_of("0 1", 2)),
    ),
    Operator(
        "kv_cache_write",
        "_C_cache_ops::concat_and_cache_mla aiter::concat_and_cache_mla",
        cache_write("0 1", 2, 3),
    ),
    Operator(
        "kv_cache_write", "_C_cache_ops::indexer_k_quant_and_cache", cache_write("0", 1, 2, 2)
    ),
    Operator(
        "kv_cache_write",
        "vllm::unified_kv_cache_update",
        moves("0 1 > 0 1", assumed="a cache of the type of the keys"),
    ),
    Operator("kv_cache_write", "sgl_kernel::store_kv_cache", moves("3 4 2 > 3 4")),
    Operator(
        "activation",
        "aten::silu aten::silu_ aten::gelu aten::relu aten::relu_ aten::hardswish"
        " aten::mish aten::leaky_relu aten::softplus",
        elementwise(),
        _ALONE,
    ),
    Operator(
        "activation",
        "aten::gelu_ aten::hardswish_ aten::hardsigmoid aten::hardsigmoid_"
        " aten::hardtanh aten::hardtanh_ aten::mish_ aten::leaky_relu_ aten::elu"
        " aten::elu_ aten::threshold aten::threshold_",
        elementwise(),
    ),
    Operator(
        "activation",
        "_C::silu_and_mul _C::mul_and_silu _C::gelu_and_mul _C::gelu_tanh_and_mul"
        " sgl_kernel::silu_and_mul sgl_kernel::gelu_and_mul"
        " sgl_kernel::gelu_tanh_and_mul",
        moves("1 > 0", 2, of="0"),
        _ALONE,
    ),
    Operator(
        "activation",
        "_C::swigluoai_and_mul _C::fatrelu_and_mul aiter::silu_and_mul"
        " aiter::scaled_silu_and_mul aiter::gelu_and_mul aiter::gelu_tanh_and_mul",
        moves("1 > 0", 2, of="0"),
    ),
    Operator("activation", "_C::gelu_new _C::gelu_fast _C::gelu_quick", moves("1 > 0", 1), _ALONE),
    Operator(
        "activation", "_C::gelu_tanh sgl_kernel::gelu_quick aiter::gelu_fast", moves("1 > 0", 1)
    ),
    Operator(
        "activation",
        "trtllm::flashinfer_silu_and_mul trtllm::flashinfer_gelu_tanh_and_mul",
        moves("0 >", 1, new=half_of),
    ),
    Operator(
        "activation",
        "LigerSiLUMulFunction LigerGELUMulFunction",
        moves("0 1 > 0", 2),
        source="Liger-Kernel/ops",
    ),
    Operator(
        "activation",
        "_C::silu_and_mul_quant _C::silu_and_mul_per_block_quant",
        moves("1 > 0 2", 4, of="0"),
    ),
    Operator("activation", "_C::silu_and_mul_nvfp4_quant", moves("2 3 > 0 1", 2)),
    Operator(
        "activation",
        "vllm::rocm_aiter_act_mul_and_fp8_group_quant",
        moves("0 >", 2, new=rounded(1, parts=2)),
    ),
    Operator("activation", "aten::glu", moves("0 >", 1, new=half_of), _ALONE),
    Operator("activation", "aten::relu6 aten::selu aten::celu aten::prelu", None),
    Operator(
        "activation",
        "cann::SwiGlu cann::SwiGluGrad cann::Gelu cann::GeluV2 cann::GeluGrad"
        " cann::GeluGradV2 cann::FastGelu cann::FastGeluGrad cann::Swish cann::SwishGrad"
        " cann::Relu cann::ReluGrad cann::Sigmoid cann::SigmoidGrad cann::Tanh"
        " cann::TanhGrad",
        npu_moves(),
    ),
    Operator(
        "moe_routing",
        "_moe_C::topk_sigmoid _moe_C::topk_softplus_sqrt aiter::topk_softmax"
        " vllm::rocm_aiter_topk_softmax",
        moves("3 > 0 1 2", 5),
    ),
    Operator(
        "moe_routing",
        "sgl_kernel::topk_softmax sgl_kernel::topk_sigmoid aiter::topk_sigmoid"
        " aiter::topk_softplus vllm::rocm_aiter_topk_sigmoid",
        moves("2 3 > 0 1", 5),
    ),
    Operator(
        "moe_routing",
        "aiter::biased_grouped_topk_hip aiter::biased_grouped_topk"
        " aiter::moe_fused_gate vllm::rocm_aiter_biased_grouped_topk",
        moves("0 1 > 2 3", 5),
    ),
    Operator(
        "moe_routing",
        "aiter::grouped_topk aiter::grouped_topk_hip vllm::rocm_aiter_grouped_topk",
        moves("0 > 1 2", 5),
    ),
    Operator("moe_routing", "_moe_C::grouped_topk", moves("0 6 >", 5, new=chosen(3))),
    Operator("moe_routing", "sgl_kernel::moe_fused_gate", moves("0 1 >", 5, new=chosen(4))),
    Operator("moe_routing", "sgl_kernel::kimi_k2_moe_fused_gate", moves("0 1 >", 5, new=chosen(2))),
    Operator(
        "moe_routing",
        "_moe_C::moe_align_block_size",
        moves("0 > 0", assumed="rows to fill blocks left out"),
        Timeable(holds={0: ("below_value", 1)}, assumed=_ROUTED),
    ),
    Operator(
        "moe_routing",
        "sgl_kernel::moe_align_block_size aiter::moe_align_block_size",
        moves("0 > 0", assumed="rows to fill blocks left out"),
    ),
    Operator(
        "moe_routing",
        "aiter::moe_sorting_fwd",
        moves("0 1 > 0 1 6", assumed="rows to fill blocks left out"),
    ),
    Operator("moe_routing", "_moe_C::shuffle_rows sgl_kernel::shuffle_rows", moves("0 1 > 2")),
    Operator("moe_routing", "sgl_kernel::moe_sum_reduce aiter::moe_sum", moves("0 > 1", 1)),
    Operator("moe_routing", "sgl_kernel::apply_shuffle_mul_sum", moves("0 2 3 > 1", 2)),
    Operator("moe_routing", "_moe_C::topk_softmax", moves("3 > 0 1 2", 5), _ALONE),
    Operator("moe_routing", "_moe_C::moe_sum sgl_kernel::moe_sum", expert_sum(), _ALONE),
    Operator(
        "moe_experts",
        "vllm::moe_forward vllm::moe_forward_shared",
        routed_experts(),
        inside="_moe_C::topk_softmax _moe_C::grouped_topk aten::index"
        " _moe_C::moe_align_block_size _moe_C::moe_sum aten::empty _C::silu_and_mul"
        " _C::gelu_and_mul _C::gelu_tanh_and_mul _C::swigluoai_and_mul aten::relu_"
        " aten::relu aten::square _C::relu_squared",
        mixed=True,
    ),
    Operator(
        "moe_experts",
        "vllm::fused_experts vllm::inplace_fused_experts vllm::outplace_fused_experts"
        " sglang::inplace_fused_experts sglang::outplace_fused_experts",
        expert_products(),
        mixed=True,
    ),
    Operator(
        "moe_experts",
        "vllm::rocm_aiter_fused_moe",
        expert_products(fused=True),
        whole=True,
        mixed=True,
    ),
    Operator(
        "moe_experts",
        "vllm::rocm_aiter_asm_moe_tkw1 aiter::fused_moe_ aiter::ck_moe",
        expert_products(fused=True),
        whole=True,
    ),
    Operator(
        "moe_experts",
        "aiter::fmoe aiter::fmoe_g1u1 aiter::fmoe_g1u1_a16 aiter::fmoe_int8_g1u0"
        " aiter::fmoe_int8_g1u0_a16 aiter::fmoe_fp8_g1u1_a16"
        " aiter::fmoe_fp8_blockscale_g1u1",
        expert_products(x=1, first=2, second=3, chosen=8, fused=True),
        whole=True,
    ),
    Operator("moe_experts", "trtllm::fused_moe", tensorrt_experts(), whole=True, mixed=True),
    Operator(
        "moe_experts",
        "trtllm::fp8_block_scale_moe_runner trtllm::fp4_block_scale_moe_runner"
        " vllm::flashinfer_fused_moe_blockscale_fp8",
        expert_runner(),
        whole=True,
    ),
    Operator(
        "moe_experts",
        "vllm::flashinfer_fused_moe_bf16",
        expert_runner(first=3, second=4),
        whole=True,
    ),
    Operator(
        "moe_experts",
        "_moe_C::moe_wna16_gemm _moe_C::moe_wna16_marlin_gemm sgl_kernel::moe_wna16_marlin_gemm",
        packed_experts(),
    ),
    Operator(
        "moe_experts",
        "sglang_profiler::fused_moe_triton_kernels_invoke_fused_moe_kernel*",
        grouped_product(out=3, chosen=8),
    ),
    Operator(
        "moe_experts",
        "aiter::moe_cktile2stages_gemm1_ck aiter::moe_cktile2stages_gemm2_ck",
        grouped_product(out=2, chosen=6),
    ),
    Operator("moe_experts", "aiter::ck_moe_stage1", grouped_product(out=6, chosen=7)),
    Operator("moe_experts", "aiter::ck_moe_stage2", grouped_product(weight=2, out=6, chosen=7)),
    Operator(
        "moe_experts",
        "_C::cutlass_moe_mm _C::cutlass_fp4_group_mm _C::cutlass_mxfp4_group_mm"
        " _C::cutlass_w4a8_moe_mm _C::cutlass_blockwise_scaled_grouped_mm"
        " sgl_kernel::cutlass_fp4_group_mm sgl_kernel::cutlass_w4a8_moe_mm",
        grouped_product(x=1, weight=2, out=0),
    ),
    Operator(
        "moe_experts",
        "sgl_kernel::fp8_blockwise_scaled_grouped_mm",
        grouped_product(x=6, weight=7, out=0),
    ),
    Operator(
        "moe_experts",
        "aten::_grouped_mm aten::_scaled_grouped_mm"
        " fbgemm::bf16bf16bf16_grouped_stacked fbgemm::f8f8bf16_rowwise_grouped_stacked",
        grouped_product(),
    ),
    Operator("moe_experts", "GroupedGemm", grouped_product(flag=3), source="grouped_gemm/ops.py"),
    Operator(
        "moe_experts",
        "primus_turbo::grouped_gemm_impl primus_turbo::grouped_gemm_csrc_impl"
        " primus_turbo::grouped_gemm_fp8_impl primus_turbo::grouped_gemm_variable_k_impl"
        " primus_turbo::grouped_gemm_fp8_variable_k_impl",
        grouped_product(),
        whole=True,
    ),
    Operator(
        "embedding", "aten::embedding", gather(), Timeable(stored=(0,), holds={1: ("below", 0, 0)})
    ),
    Operator("embedding", "aten::embedding_dense_backward", embedding_backward()),
    Operator("embedding", "aten::embedding_bag", None),
    Operator(
        "embedding", "aten::_embedding_bag aten::_embedding_bag_forward_only", embedding_bags()
    ),
    Operator("sampling", "aten::argmax", reduction(), _ALONE),
    Operator("sampling", "aten::_sample_dirichlet", None),
    Operator("sampling", "_C::apply_repetition_penalties_", moves("0 1 2 3 > 0", 2)),
    Operator(
        "sampling",
        "sgl_kernel::top_k_renorm_probs sgl_kernel::top_p_renorm_probs"
        " sgl_kernel::top_k_mask_logits sgl_kernel::min_p_sampling_from_probs"
        " sgl_kernel::top_p_sampling_from_probs"
        " sgl_kernel::top_k_top_p_sampling_from_probs",
        moves("0 2 > 1", 1),
    ),
    Operator(
        "sampling",
        "aiter::greedy_sample aiter::random_sample aiter::mixed_sample",
        moves("1 2 > 0", 1),
    ),
    Operator(
        "sampling",
        "aiter::random_sample_outer_exponential aiter::mixed_sample_outer_exponential",
        moves("1 2 3 > 0", 3),
    ),
    Operator("sampling", "aten::multinomial", moves("0 >", 1, new=chosen(1))),
    Operator("sampling", "aten::exponential_", moves("1? > 0")),
    Operator(
        "quantize",
        "_C::awq_dequantize sgl_kernel::awq_dequantize bitsandbytes::dequantize_4bit",
        dequantize(),
    ),
    Operator(
        "quantize",
        "aten::fake_quantize_per_tensor_affine_cachemask"
        " aten::fake_quantize_per_channel_affine_cachemask",
        moves("0 > 0", 1, new=mask_of),
    ),
    Operator("quantize", "_C_cache_ops::convert_fp8", moves("1 > 0", 1)),
    Operator(
        "quantize", "_C::static_scaled_fp8_quant", moves("1 > 0", 2), Timeable(holds={2: ("ones",)})
    ),
    Operator(
        "quantize",
        "_C::dynamic_scaled_fp8_quant _C::dynamic_per_token_scaled_fp8_quant",
        moves("1 > 0", 2),
        _ALONE,
    ),
    Operator(
        "quantize", "_C::static_scaled_int8_quant _C::dynamic_scaled_int8_quant", moves("1 > 0", 2)
    ),
    Operator(
        "quantize",
        "_C::per_token_group_fp8_quant _C::per_token_group_quant_int8"
        " _C::per_token_group_fp8_quant_packed sgl_kernel::sgl_per_token_group_quant_fp8"
        " sgl_kernel::sgl_per_token_group_quant_int8"
        " sgl_kernel::sgl_per_token_group_quant_8bit"
        " sgl_kernel::sgl_per_tensor_quant_fp8 sgl_kernel::sgl_per_token_quant_fp8",
        moves("0 > 1 2", 2),
    ),
    Operator(
        "quantize", "sgl_kernel::sgl_per_token_group_quant_8bit_v2", moves("0 > 1 2", 2, unless=9)
    ),
    Operator(
        "quantize",
        "aiter::dynamic_per_tensor_quant aiter::dynamic_per_token_scaled_quant"
        " aiter::static_per_tensor_quant vllm::rocm_aiter_per_tensor_quant"
        " aiter::dynamic_per_group_scaled_quant"
        " aiter::dynamic_per_group_scaled_quant_fp4",
        moves("1 > 0 2", 2, unless=5),
    ),
    Operator(
        "quantize",
        "aiter::fused_dynamic_mx_quant_moe_sort_hip aiter::fused_dynamic_mxfp4_quant_moe_sort_hip",
        moves("2 > 0", 2, assumed="scales left out"),
    ),
    Operator("quantize", "_C::scaled_fp4_quant sgl_kernel::scaled_fp4_quant", four_bits()),
    Operator(
        "quantize",
        "vllm::rocm_aiter_group_fp8_quant vllm::triton_per_token_group_quant_fp8",
        moves("0 >", 2, new=rounded(1)),
    ),
    Operator("quantize", "vllm::rocm_aiter_per_token_quant", moves("0 >", 2, new=rounded())),
    Operator(
        "quantize",
        "fbgemm::FloatToFP8RowwiseQuantized fbgemm::FP8RowwiseQuantizedToFloat"
        " fbgemm::FloatToHFP8Quantized fbgemm::HFP8QuantizedToFloat",
        row_bytes(),
    ),
    Operator("all_reduce", "c10d::allreduce_ vllm::all_reduce _C::shm_allreduce", None, _ALONE),
    Operator("all_reduce", "_C_custom_ar::all_reduce", moves("1 > 1"), _ALONE),
    Operator(
        "elementwise",
        "aten::add aten::add_ aten::sub aten::sub_ aten::rsub aten::mul aten::mul_"
        " aten::div aten::div_ aten::pow aten::sqrt aten::rsqrt aten::square aten::neg"
        " aten::abs aten::exp aten::log aten::sin aten::cos aten::reciprocal aten::clamp"
        " aten::clamp_min aten::clamp_max aten::maximum aten::minimum aten::where"
        " aten::masked_fill aten::masked_fill_ aten::eq aten::ne aten::lt aten::le"
        " aten::gt aten::ge aten::bitwise_not aten::bitwise_and aten::bitwise_or"
        " aten::logical_not aten::logical_and aten::logical_or aten::floor_divide"
        " aten::remainder aten::addcmul aten::triu aten::tril aten::erf aten::floor"
        " aten::round aten::isnan aten::sigmoid aten::tanh",
        elementwise(),
        _ALONE,
    ),
    Operator(
        "elementwise",
        "aten::pow_ aten::sqrt_ aten::rsqrt_ aten::square_ aten::neg_ aten::abs_"
        " aten::exp_ aten::exp2 aten::exp2_ aten::expm1 aten::expm1_ aten::log_"
        " aten::log2 aten::log2_ aten::log1p aten::log1p_ aten::sin_ aten::cos_"
        " aten::reciprocal_ aten::clamp_ aten::clamp_min_ aten::clamp_max_ aten::eq_"
        " aten::ne_ aten::lt_ aten::le_ aten::gt_ aten::ge_ aten::bitwise_not_"
        " aten::bitwise_and_ aten::bitwise_or_ aten::logical_not_ aten::logical_and_"
        " aten::logical_or_ aten::floor_divide_ aten::remainder_ aten::fmod aten::fmod_"
        " aten::addcmul_ aten::addcdiv aten::addcdiv_ aten::lerp aten::lerp_ aten::triu_"
        " aten::tril_ aten::erf_ aten::floor_ aten::ceil aten::ceil_ aten::round_"
        " aten::trunc aten::trunc_ aten::sign aten::sign_ aten::isinf aten::isfinite"
        " aten::sigmoid_ aten::tanh_ aten::silu_backward aten::gelu_backward"
        " aten::sigmoid_backward aten::tanh_backward aten::threshold_backward"
        " aten::bitwise_xor aten::bitwise_xor_ aten::dropout aten::dropout_"
        " aten::_conj_physical aten::nan_to_num aten::nan_to_num_ aten::tan aten::tan_"
        " aten::asin aten::asin_ aten::acos aten::acos_ aten::atan aten::atan_"
        " aten::sinh aten::sinh_ aten::cosh aten::cosh_ aten::asinh aten::asinh_"
        " aten::acosh aten::acosh_ aten::atanh aten::atanh_ aten::erfc aten::erfc_"
        " aten::erfinv aten::erfinv_ aten::lgamma aten::lgamma_ aten::digamma"
        " aten::digamma_ aten::log10 aten::log10_ aten::logit aten::logit_ aten::sgn"
        " aten::sgn_ aten::frac aten::frac_ aten::signbit aten::isposinf aten::isneginf"
        " aten::logical_xor aten::logical_xor_ aten::fmax aten::fmin aten::atan2"
        " aten::atan2_ aten::hypot aten::hypot_ aten::copysign aten::copysign_"
        " aten::logaddexp aten::logaddexp2 aten::xlogy aten::xlogy_"
        " aten::log_sigmoid_forward aten::_prelu_kernel aten::bitwise_left_shift"
        " aten::bitwise_left_shift_ aten::bitwise_right_shift aten::bitwise_right_shift_"
        " aten::hardswish_backward aten::hardsigmoid_backward aten::hardtanh_backward"
        " aten::leaky_relu_backward aten::elu_backward aten::mish_backward"
        " aten::softplus_backward aten::logit_backward aten::log_sigmoid_backward"
        " aten::heaviside aten::heaviside_ aten::sinc aten::sinc_ aten::hardshrink"
        " aten::softshrink aten::hardshrink_backward aten::softshrink_backward aten::gcd"
        " aten::gcd_ aten::lcm aten::lcm_ aten::__lshift__ aten::__rshift__"
        " aten::__ilshift__ aten::__irshift__",
        elementwise(),
    ),
    Operator("elementwise", "aten::arange aten::linspace", arange()),
    Operator(
        "elementwise",
        "aten::normal_ aten::uniform_ aten::random_ aten::bernoulli_ aten::geometric_"
        " aten::cauchy_ aten::log_normal_",
        moves("1? > 0"),
    ),
    Operator(
        "elementwise", "aten::native_dropout aten::_fused_dropout", moves("0 > 0", 1, new=mask_of)
    ),
    Operator(
        "elementwise", "aten::native_dropout_backward aten::_masked_scale", moves("0 1 > 0", 1)
    ),
    Operator("elementwise", "aten::glu_backward", moves("0 1 > 1", 4)),
    Operator("elementwise", "aten::polar aten::complex", moves("0 1 > 0 1", 1)),
    Operator("elementwise", "aten::_amp_update_scale_", moves("0 1 2 > 0 1", 1)),
    Operator(
        "elementwise",
        "cann::Add cann::Adds cann::Sub cann::Subs cann::Mul cann::Muls cann::Div"
        " cann::RealDiv cann::Neg cann::Abs cann::Exp cann::Log cann::Sqrt cann::Rsqrt"
        " cann::Pow cann::Pows cann::Square cann::Reciprocal cann::Cos cann::Sin"
        " cann::Maximum cann::Minimum cann::Greater cann::GreaterEqual cann::Less"
        " cann::LessEqual cann::Equal cann::NotEqual cann::LogicalAnd cann::LogicalOr"
        " cann::LogicalNot cann::Cast cann::ForeachAddListV2 cann::ForeachMulScalarV2",
        npu_moves(),
    ),
    Operator(
        "softmax",
        "aten::_softmax aten::softmax aten::_log_softmax aten::log_softmax",
        moves("0 >", 5, new=as_type(2)),
        _ALONE,
    ),
    Operator(
        "softmax",
        "ScaledUpperTriangMaskedSoftmax",
        moves("0 >", 5, new=as_type(2)),
        source="apex, apex/transformer/functional/fused_softmax.py",
    ),
    Operator("softmax", "aten::_masked_softmax", moves("0 >", 5, new=as_type(2))),
    Operator("softmax", "aten::_masked_softmax_backward", moves("0 1 2 > 0", 4)),
    Operator(
        "softmax",
        "aten::_softmax_backward_data aten::_log_softmax_backward_data",
        moves("0 1! >", 4, new=as_type(3)),
    ),
    Operator(
        "softmax",
        "cann::SoftmaxV2 cann::SoftmaxGrad cann::LogSoftmaxV2 cann::LogSoftmaxGrad",
        npu_moves(),
    ),
    Operator(
        "reduction",
        "aten::mean aten::sum aten::amax aten::amin aten::max aten::min aten::argmin"
        " aten::prod aten::any aten::all aten::var aten::std aten::norm"
        " aten::linalg_vector_norm",
        reduction(),
        _ALONE,
    ),
    Operator("reduction", "aten::nansum aten::var_mean aten::std_mean aten::aminmax", reduction()),
    Operator("reduction", "aten::cumsum", reduction(keeps=True), _ALONE),
    Operator(
        "reduction",
        "aten::cumprod aten::logcumsumexp aten::cummax aten::cummin aten::cumsum_ aten::cumprod_",
        reduction(keeps=True),
    ),
    Operator(
        "reduction",
        "fbgemm::asynchronous_complete_cumsum fb::asynchronous_complete_cumsum",
        moves("0 > 0"),
    ),
    Operator(
        "reduction",
        "cann::ReduceSum cann::ReduceMean cann::ReduceMax cann::ReduceMin cann::LpNormV2",
        npu_moves(),
    ),
    Operator("top_k", "aten::topk", moves("0 >", new=top_values), _ALONE),
    Operator("top_k", "aten::sort", moves("0 >", new=sorted_values), _ALONE),
    Operator("top_k", "cann::Sort cann::TopKV2", npu_moves()),
    Operator(
        "gather",
        "aten::index_select",
        gather(),
        Timeable(stored=(0,), holds={2: ("below_axis", 0, 1)}),
    ),
    Operator("gather", "aten::gather", gather(), Timeable(holds={2: ("below_axis", 0, 1)})),
    Operator("gather", "aten::index", indexing(), inside="aten::reshape"),
    Operator(
        "gather",
        "fbgemm::permute_2D_sparse_data fbgemm::permute_sparse_features",
        moves("0 1 2 3 > 1 2 3", assumed="each row taken once"),
    ),
    Operator(
        "gather",
        "aten::masked_select aten::nonzero aten::bincount",
        moves("0 1 >", assumed="results left out"),
    ),
    Operator("gather", "cann::GatherV2", npu_moves("rows")),
    Operator(
        "scatter",
        "aten::scatter aten::scatter_ aten::scatter_add aten::scatter_add_"
        " aten::scatter_reduce aten::scatter_reduce_ aten::index_add aten::index_add_"
        " aten::index_fill_ aten::index_reduce_",
        scatter(),
    ),
    Operator("scatter", "aten::_index_put_impl_ aten::index_put_", scatter(lists=True)),
    Operator("search", "aten::bucketize", moves("0 1! >", new=indices(0))),
    Operator("search", "aten::searchsorted", moves("0 1! >", new=indices(1))),
    Operator("search", "fbgemm::bounds_check_indices", moves("0 1 2 >")),
    Operator(
        "copy",
        "aten::reflection_pad1d aten::reflection_pad2d aten::reflection_pad3d"
        " aten::replication_pad1d aten::replication_pad2d aten::replication_pad3d",
        moves("0 >", new=padded),
    ),
    Operator("copy", "aten::copy_", moves("1 > 0"), _ALONE),
    Operator(
        "copy",
        "aten::_local_scalar_dense aten::split_with_sizes_copy"
        " fbgemm::permute_pooled_embs fbgemm::permute_pooled_embs_auto_grad"
        " fbgemm::recat_embedding_grad_output_mixed_D_batch"
        " torch::autograd::CppNode<fbgemm_gpu::PermutePooledEmbsFunction*",
        moves("0 > 0"),
    ),
    Operator("copy", "aten::_chunk_cat", concatenation(3)),
    Operator(
        "copy",
        "aten::clone aten::contiguous aten::_to_copy aten::flip aten::roll",
        moves("0 > 0"),
        _ALONE,
    ),
    Operator("copy", "aten::cat aten::stack", concatenation(), _ALONE),
    Operator(
        "copy",
        "aten::repeat aten::repeat_interleave aten::constant_pad_nd aten::_unsafe_view",
        None,
        _ALONE,
    ),
    Operator(
        "copy",
        "aten::to aten::pad aten::reshape aten::item aten::_reshape_copy aten::expand_copy",
        None,
    ),
    Operator("copy", "aten::_cat", concatenation()),
    Operator(
        "copy", "_C_cache_ops::concat_mla_q sgl_kernel::concat_mla_absorb_q", moves("0 1 > 2")
    ),
    Operator("copy", "sgl_kernel::concat_mla_k", moves("1 2 > 0")),
    Operator("copy", "aten::index_copy aten::index_copy_", scatter()),
    Operator(
        "copy",
        "cann::TensorMove cann::Transpose cann::ConcatD cann::ConcatV2 cann::Split"
        " cann::SplitD cann::SplitV cann::SplitVD cann::Pack",
        npu_moves(),
    ),
    Operator(
        "copy",
        "cann::Slice cann::SliceD cann::StridedSlice cann::StridedSliceD",
        npu_moves("result"),
    ),
    Operator("fill", "aten::fill_ aten::zero_", moves("1? > 0"), _ALONE),
    Operator("fill", "cann::ZerosLike cann::OnesLike cann::Fill", npu_moves("nothing")),
    Operator(
        "foreach", "aten::_foreach_* aten::_amp_foreach_non_finite_check_and_unscale_", foreach()
    ),
    Operator(
        "optimizer",
        "aten::_fused_adam_ aten::_fused_adamw_ aten::_fused_adagrad_ aten::_fused_sgd_",
        optimizer_step(),
    ),
    Operator("optimizer", "cann::ApplyAdamWV2", npu_moves(in_place=3)),
    Operator(
        "loss",
        "aten::mse_loss aten::smooth_l1_loss aten::huber_loss",
        moves("0 1! >", 3, new=mean_of(2)),
    ),
    Operator("loss", "aten::binary_cross_entropy", moves("0 1! >", 3, new=mean_of(3))),
    Operator("loss", "aten::nll_loss_forward aten::nll_loss2d_forward", picked_loss()),
    Operator(
        "loss",
        "aten::nll_loss_backward aten::nll_loss2d_backward",
        moves("0 2! >", 1, of="2", new=slots_of("2", 1)),
    ),
    Operator(
        "loss",
        "aten::mse_loss_backward aten::smooth_l1_loss_backward"
        " aten::huber_loss_backward aten::binary_cross_entropy_backward",
        moves("1 2 0 > 1", 3),
    ),
    Operator(
        "pooling",
        "aten::max_pool2d_with_indices aten::max_pool3d_with_indices aten::avg_pool2d"
        " aten::avg_pool3d",
        pooling(),
    ),
    Operator(
        "pooling",
        "aten::_adaptive_avg_pool2d aten::_adaptive_avg_pool3d",
        moves("0 >", 1, new=sized()),
    ),
    Operator(
        "pooling",
        "aten::adaptive_max_pool2d aten::adaptive_max_pool3d",
        moves("0 >", 1, new=sized(places=True)),
    ),
    Operator(
        "pooling",
        "aten::_adaptive_avg_pool2d_backward aten::_adaptive_avg_pool3d_backward"
        " aten::avg_pool2d_backward aten::avg_pool3d_backward",
        moves("0 > 1", 1),
    ),
    Operator(
        "pooling",
        "aten::max_pool2d_with_indices_backward aten::max_pool3d_with_indices_backward",
        moves("0 7! > 1", 1),
    ),
    Operator(
        "pooling",
        "aten::adaptive_max_pool2d_backward aten::adaptive_max_pool3d_backward",
        moves("0 2! > 1", 1),
    ),
    Operator(
        "upsampling",
        "aten::upsample_nearest1d aten::upsample_nearest1d_backward"
        " aten::upsample_nearest2d aten::upsample_nearest2d_backward"
        " aten::upsample_nearest3d aten::upsample_nearest3d_backward"
        " aten::upsample_linear1d aten::upsample_linear1d_backward"
        " aten::upsample_bilinear2d aten::upsample_bilinear2d_backward"
        " aten::upsample_trilinear3d aten::upsample_trilinear3d_backward"
        " aten::upsample_bicubic2d aten::upsample_bicubic2d_backward"
        " aten::_upsample_nearest_exact1d aten::_upsample_nearest_exact1d_backward"
        " aten::_upsample_nearest_exact2d aten::_upsample_nearest_exact2d_backward"
        " aten::_upsample_nearest_exact3d aten::_upsample_nearest_exact3d_backward"
        " aten::_upsample_bilinear2d_aa aten::_upsample_bilinear2d_aa_backward"
        " aten::_upsample_bicubic2d_aa aten::_upsample_bicubic2d_aa_backward",
        upsampling(),
    ),
    Operator("upsampling", "aten::grid_sampler_2d aten::grid_sampler_3d", grid_sampling()),
    Operator(
        "compiled",
        "triton_poi_* triton_red_* triton_per_*",
        compiled_kernel(),
        source="torch/_inductor/codegen/triton.py",
    ),
]
"""The table; the first line that knows an operator's name counts."""

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

FAMILIES: Final[list[tuple[str, str]]] = [
    *_ONNX,
    (
        "",
        r"scheduler_metadata|get_mla_metadata|moe_forward|fused_moe$|fused_experts|::moe_(?:layer|impl)|^CompiledFunction|"
        r"^Torch-Compiled|(?:rope|lora)\w*(?:attn|attention)",
    ),
    (
        "collective",
        r"^c10d::|^record_param_comms|^nccl:|^symm_mem::|^_c10d_functional::|^vllm::(?:all_gather|reduce_scatter)|"
        r"^_C_custom_ar::|^sgl_kernel::all_reduce|^sglang::.*all_reduce|outplace_all_reduce|"
        r"inplace_all_reduce|^flashinfer::.*all_?reduce",
    ),
    ("moe_experts", r"grouped_mm$|_grouped_gemm|::fused_moe_gemm|::moe_wna16_gemm|cutlass_moe_mm"),
    (
        "kv_cache_write",
        r"reshape_and_cache|concat_and_cache|store_(?:kv)?_?cache|kv_cache_update|set_kv_buffer|append_paged_kv",
    ),
    (
        "attention",
        r"scaled_dot_product|^aten::_(?:cudnn_attention|fused_sdp|transformer_encoder)|"
        r"^flash_attn\w*::|^_flash_attn|^vllm_flash_attn|^_vllm_fa\d?_C::|unified_(?:mla_)?attention|^FlashAttn|"
        r"(?:^|::)(?:paged|radix|mha|mla)_?(?:attention|fwd|decode|prefill)\w*|^aiter::(?:fmha|mha|pa_|mla_)|"
        r"^sageattn|sage_attention|^xformers\w*::\w*attention|^flashinfer::.*(?:prefill|decode)_run|"
        r"^sgl_kernel::(?:fwd|cutlass_mla|flash_mla)|^_flashmla_C::",
    ),
    (
        "rope",
        r"(?:^|::|_)(?:rotary_embedding|apply_rope|apply_rotary|rotary_pos_emb|fused_rope|rope)\w*$",
    ),
    (
        "norm",
        r"(?:^|::|_)(?:rms_?norm|layer_?norm|group_norm|batch_norm|instance_norm|l2_?norm)\w*$|^_C::\w*rms_norm\w*|"
        r"^aiter::\w*norm\w*",
    ),
    (
        "activation",
        r"(?:silu|gelu|swiglu|relu|swish|geglu)\w*_and_mul\w*$|^_C::(?:gelu|silu|mul_and_silu|fatrelu|xielu)\w*",
    ),
    (
        "gemm",
        r"^(?:_C|_rocm_C|vllm|sgl_kernel|sglang|aiter|torchao|fbgemm|quantized|onednn|cublas|deep_gemm|mkldnn)::"
        r"\w*(?:gemm|scaled_mm|linear|_mm$|wvSplitK|LLMM)\w*$|^fp8_gemm|^deep_gemm|^cublas\w*mm|^aten::_weight_int\w+mm",
    ),
    ("sampling", r"^flashinfer::.*sampling"),
    (
        "quantize",
        r"scaled_fp[48]_quant|(?:per_token|per_tensor|per_group|per_token_group)\w*quant|quantize_per|dynamic_quant|"
        r"scaled_int8_quant|cast_to_fp8|_quant_fp[48]",
    ),
    ("fill", r"^aten::(?:fill|zero|zeros\w*|ones\w*|full\w*|new_zeros|new_full)$"),
    (
        "elementwise",
        r"^aten::(?:bitwise_\w+|logical_\w+|__\w+__|_foreach_\w+|index_put|take_along_dim|bernoulli|rand\w*|normal|"
        r"uniform)_?$|^(?:autograd::engine::evaluate_function: )?torch::autograd::AccumulateGrad$",
    ),
]
"""Ordered ``(category, pattern)`` of operators that have no line (with an empty category they have
several purposes); the first match wins.

``aten::index`` and other gathers are element by element: only a look-up in a table of vectors is an
embedding.
"""


@checked
def register_operator(operator: Operator) -> None:
    """Add a line to the front of the table, for this process.

    Parameters
    ----------
    operator : Operator
        Names of operators, their kind, and the function of their work.

    Raises
    ------
    LlmprofError
        It names no operator.
    """
    if not operator.names.split():
        raise LlmprofError(
            f"the operator of the kind {operator.kind!r} has no name",
            expected="names separated by spaces",
        )
    OPERATORS.insert(0, operator)
    forget_operators()


def forget_operators() -> None:
    """Read the table and the plug-ins again."""
    for kept in (_by_name, _families, operator_named, timeable_operators, _category_by_name):
        kept.cache_clear()


def _own() -> list[Operator]:
    """Operators of the user's file: a rule of the table at other places."""
    costs = [line.work for line in OPERATORS if isinstance(line.work, Cost)]
    rules = {each.rule.__name__: each.rule for each in costs}
    found = []
    for name, given in plugins.own()["operators"].items():
        try:
            named = dict(given)
            kind, rule, places = (
                named.pop("kind"),
                rules[named.pop("rule")],
                named.pop("places", ()),
            )
            inspect.signature(rule).bind(None, *places, **named)
        except (KeyError, TypeError, ValueError) as error:
            raise LlmprofError(
                f"{os.environ[plugins.OWN]} has {name!r} = {given!r}: {error}",
                expected=f"kind, places and options of a rule, one of {listed(rules)}",
            ) from error
        if kind not in {line.kind for line in OPERATORS}:
            kinds = listed(sorted({line.kind for line in OPERATORS}))
            raise LlmprofError(
                f"{os.environ[plugins.OWN]} has {name!r} of the kind {kind!r}",
                expected=f"one of {kinds}",
            )
        found.append(Operator(kind, name, Cost(rule, tuple(places), named)))
    return found


@cache
def _by_name() -> dict[str, Operator]:
    added = [operator for _, operator in plugins.records(plugins.OPERATORS, Operator)]
    table: dict[str, Operator] = {}
    for operator in [*_own(), *OPERATORS, *added]:
        for name in operator.names.split():
            table.setdefault(name, operator)
    return table


@cache
def _families() -> dict[str, Operator]:
    """The line of each family, by the beginning of its names."""
    return {name[:-1]: line for name, line in _by_name().items() if name.endswith("*")}


@cache
def operator_named(name: str) -> Operator | None:
    """The line of an operator, or None."""
    of_family = (line for start, line in _families().items() if name.startswith(start))
    return _by_name().get(name) or next(of_family, None)


def costed_operator(name: str) -> Operator | None:
    """The line of an operator whose work is known, or None."""
    found = operator_named(name)
    return found if found and found.work else None


@cache
def timeable_operators() -> Mapping[str, tuple[str, Timeable]]:
    """Kind of each operator that can be run alone, and how; a script calls no other."""
    table = _by_name().items()
    return {name: (each.kind, each.timed) for name, each in table if each.timed is not None}


def work_of(call: OperatorCall) -> CallWork:
    """Work of a call.

    Parameters
    ----------
    call : OperatorCall
        From :func:`parse_call`.

    Raises
    ------
    NoWorkError
        The operator is not known, or the recording does not say enough.

    Examples
    --------
    >>> from llmprof.theory.calls import parse_call
    >>> call = parse_call("aten::mm", "[[4, 8], [8, 2]]", '["c10::BFloat16", "c10::BFloat16"]')
    >>> work_of(call)
    CallWork(flops=128.0, read=96.0, written=16, matrix='bf16', assumed='', source='shapes',
    result=(1, 4, 2))
    """
    operator = operator_named(call.operator)
    if operator is None or operator.work is None:
        raise NoWorkError(f"llmprof does not know the work of {call.operator}")
    try:
        with plugins.foreign():
            return operator.work(call)
    except plugins.FailedError as error:
        raise NoWorkError(f"the work of {call.operator} cannot be computed: {error}") from error


@cache
def _category_by_name() -> dict[str, str]:
    """Category of the kernels of each operator with a line; empty for one with several purposes."""
    said = {
        name: "" if operator.mixed else _CATEGORIES.get(operator.kind)
        for name, operator in _by_name().items()
    }
    return {name: category for name, category in said.items() if category is not None}


_BACKWARD: Final = r"^(?:autograd::engine::evaluate_function: )?(\w+)Backward\d*$"
"""Pattern of the node that computes an operator's gradients."""


@checked
def operator_categories(names: pl.Series) -> pl.Series:
    """Category of each operator, for its kernels; null if the operator has several purposes or
    is unknown.
    """
    # The node that computes the gradients of an operator has that operator's category.
    return by_distinct(names, _of_operators).alias("category")


def _of_operators(distinct: tuple[str, ...]) -> pl.Series:
    own = pl.Series("name", distinct, dtype=pl.String)
    forward = (
        own.str.extract(_BACKWARD)
        .str.replace_all("([a-z0-9])([A-Z])", "${1}_$2")
        .str.to_lowercase()
    )
    forward = pl.select(
        pl.when(forward.is_not_null()).then(pl.format("aten::{}", forward))
    ).to_series()
    said = [
        part
        for each in (own, forward)
        for part in (
            each.replace_strict(_category_by_name(), default=None, return_dtype=pl.String),
            by_unique_name(each, FAMILIES, None),
        )
    ]
    return pl.select(pl.coalesce(said).replace({"": None})).to_series()
