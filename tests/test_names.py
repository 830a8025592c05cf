"""What names mean: real kernel names of several vendors and years, and the user's own patterns."""

import polars as pl
import pytest

from llmprof import names
from llmprof.errors import LlmprofError
from llmprof.trace import Trace

AT = "void at::native::"

# As profilers wrote them, shortened behind the part that matters.
CATEGORIES = {
    "scan": [
        "_chunk_scan_fwd_kernel",
        "fused_recurrent_gated_delta_rule_fwd_kernel",
        "kda_gate_fwd_kernel",
        "void ssm_scan_f32<256, 16>(float const*)",
        "void gated_delta_net_cuda<64>(float const*)",
    ],
    "attention": [
        "void cutlass::device_kernel<flash::FlashAttnFwdCombine<cute::tuple<cute::C<8>, cute::C<128> >, 5, 256, 1, fal",
        "attn_fwd",
        "kernel_unified_attention_2d",
        "triton_tem_fused_flex_attention_0",
        "void qk_int_sv_f8_attn_kernel<128u, 64u, 32u, 64u, 128u, (DataType)1>(signed char*)",
        "cutlass_mla_decode",
        "sage_fwd",
        "batch_prefill_ragged_kv_kernel",
        "tree_attn_paged_kv_kernel",
        "merge_state_inplace_kernel",
    ],
    "gemm": [
        "void cutlass::Kernel<cutlass::gemm::kernel::Gemm<X, cutlass::epilogue::thread::HardSwish>>(P)",
        "dequantize_and_gemm_awq_kernel",
        "fused_fused_dequantize8_NT_matmul3_add2_kernel",
        "fused_NT_matmul2_gelu1_kernel",
        "dequantize_gemv_kernel",
        "dot_general.7",
        "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>(cutlass_80_simt_sgemm_128x32_8x5_nn_align1)",
        "void gemmk1_kernel<int, float, 256, 5, true, false, false, false, cublasGemvTensorStridedBatched<float const>",
        "volta_sgemm_128x32_nt",
        "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x64_64x6_tn_align8>(cutlass_80",
        "void cutlass::device_kernel<dpsk::grouped_gemm::cuda::fp8_ptp128c_outfmt_head::GemmKernel>(dpsk::x::y",
        "_C::weight_packed_linear",
        "aten::addmm",
        "aten::mm",
        "triton_tem_fused_addmm_5",
        # with an activation or another type in the epilogue, or weights of another type
        "sm80_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize64x64x64_relu",
        "ampere_fp16_s16816gemm_fp16_128x128_ldg8_relu_f2f_stages_32x5_tn",
        "ampere_sgemm_128x64_relu_tn",
        "nvjet_tst_128x64_64x7_2x1_v_bz_bias_gelu_TNT",
        "Cijk_Alik_Bljk_HHS_BH_Bias_GeluAux_UserArgs_MT64x64x64",
        "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_64x64_32x6_tn_align8>(...)",
        "fused_dequantize1_NT_matmul5_kernel",
        "fused_fused_dequantize2_NT_matmul6_silu_kernel",
        "fused_dequantize_gemv_kernel",
        "void dequantize_mul_mat_vec<32, 1, &(dequantize_q4_0)>(...)",
        "w4a16_dequant_matmul_kernel",
        "matmul_silu_kernel",
        "gemm_bias_gelu_kernel",
        "linear_gelu_gemm_fused",
        "triton_tem_fused_addmm_relu_3",
        "quant_matmul_kernel_w8a8",
        "aclnnQuantMatmulV4_QuantBatchMatmulV3_QuantBatchMatmulV3",
        "awq_gemm_kernel_dequant",
        "void gemv_silu_fused<half>(...)",
        "MatMul_op_fused_gelu_matmul",
    ],
    "conv": [
        "igemm_fwd_gtcx3_nhwc_fp16_bx0_ex1_bt256x128x32_wt32x32x8_ws1x1_wr2x2",
        "cudnn_infer_volta_scudnn_128x64_relu_small_nn_v1",
        "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x128x16_stage4_warpsize2x2x1_g1_tensor16x8x8_kernel_cudnn",
        "sm90_xmma_wgrad_implicit_gemm_indexed_bf16bf16_bf16f32_f32",
        "void cutlass__5x_cudnn::Kernel<cutlass_tensorop_s1688fprop_optimized_tf32_64x64_16x10_nhwc_align4>(...)",
        "void cutlass::Kernel2<cutlass_80_tensorop_s16816dgrad_optimized_bf16_128x64_nhwc_unity_stride_align8>(...)",
        "ampere_scudnn_128x64_relu_xregs_large_nn_v1",
        "ampere_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1",
        "void implicit_convolve_sgemm<float, float, 1024, 5, 5, 3, 3, 3, 1, false, false, true>(int, int, int)",
        "void cudnn::cnn::conv2d_grouped_direct_kernel<false, true>(...)",
        "void dgrad2d_grouped_direct_kernel<float>(...)",
        "void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>(...)",
        "void at::native::(anonymous namespace)::conv_depthwise2d_forward_kernel<3, float, int>(...)",
        "miopenSp3AsmConv_v30_3_1_gfx9_fp32_f3x2_stride1",
        "MIOpenConvUni",
        "gridwise_convolution_implicit_gemm_v4r4_nchw_kcyx_nkhw",
        "igemm_fwd_gtcx3_nhwc_fp16_bx0_ex1",
        "naive_conv_ab_nonpacked_fwd_nchw_float",
        "void ck::kernel_grouped_conv_fwd_multiple_abd_xdl_cshuffle<...>",
        "Conv2D1",
        "aclnnConvolution_Conv2D_Conv2D",
        "aclnnConvolution_Conv2DV2_Conv2DV2",
        "aclnnConvolutionBackward_Conv2DBackpropInput_Conv2DBackpropInput",
        "gen_conv",
        "xehpg_conv_fwd",
        "ref_convolution_fwd",
        "triton_tem_fused_convolution_12",
        "%convolution.3",
        "aten::conv2d",
        "aten::cudnn_convolution",
        "aten::convolution_backward",
        "fused_conv2d_bias_relu_kernel",
        "void cudnn::ops::convolve_common_engine_float_NHWC<...>",
    ],
    "norm": [
        "triton_red_fused_fused_add_rms_norm_2",
        "fuse_add_norm_prefill_kernel",
        "void norm_f32<256>(float const*)",
        "triton_red_fused__to_copy_embedding_rms_norm_0",
        "triton_red_fused__to_copy_add_all_reduce_mean_mul_pow_rsqrt_3",
    ],
    "rope": ["triton_poi_fused_cat_cos_mul_neg_sin_4"],
    "kv_cache_write": [
        "void (anonymous namespace)::store_kvcache<2048l, 4, false, long>((anonymous namespace)::StoreKVCacheParams)",
        "vllm::unified_kv_cache_update",
        "tir_kv_cache_transpose_append_mla_kernel",
    ],
    "activation": [],
    "moe_routing": [
        "void vllm::moe::topkGating<8, 128, 4, 16, 32, int, __nv_bfloat16, (vllm::moe::ScoringFunc)0>(__nv_bfloat16)",
        "void vllm::moe::moe_sum_vec_kernel<c10::BFloat16, int, 8, false>(c10::BFloat16*, c10::BFloat16 const*)",
        "_topk_forward",
        "void topk_moe_cuda<256, true>(float const*)",
        "gating_topk_kernel",
        "void mm_ids_helper<4>(int const*)",
        "_sum_bitmatrix_rows",
        "_combined_routing_compute",
        "_finalize_matmul_scatter_bf16",
    ],
    "moe_experts": [
        "fused_moe_kernel",
        "dequantize_group_gemm_kernel",
        "_matmul_ogs_NNT_bf16xbf16xmxfp4_128x128x128x1_swiglu",
        "_ZN7ck_tile6kentryINS_15MoeFlatmmKernelINS_25GemmSpatiallyLocalTilePartitioner",
        "void deep_gemm::fp8_m_grouped_gemm_nt_contiguous",
        "bmm_Bfloat16_MxE2m1MxE4m3_castBfloat16_Fp32_t128x8x512_et128x8_m128x8x32_swiGlu_dynBatch_sm100f",
    ],
    "quantize": [
        "void vllm::scaled_fp8_quant_kernel_strided_dynamic<c10::BFloat16>",
        "void cuda::per_token_cast_to_fp8_with_channels<__nv_bfloat16, 128, 8>",
        "void vllm::cvt_fp16_to_fp4<__nv_bfloat16, false>(int, int, __nv_bfloat16 const*, float const*, unsigned int*)",
    ],
    "embedding": [
        f"{AT}(anonymous namespace)::indexSelectSmallIndex<c10::BFloat16, long, unsigned int, 2, 2, -2>",
        f"{AT}vectorized_gather_kernel<16, long>(char*, char*, long*, int, long, long, long, long, bool)",
        "void k_get_rows<32, 1, dequantize_q4_0>(void const*)",
        "fused_dequantize3_take2_kernel",
        "triton_poi_fused_add_bitwise_and_bitwise_not_bitwise_or_embedding_ge_lt_masked_fill_mul_sub_unsqueeze_0",
    ],
    "sampling": [
        "_gumbel_sample_kernel",
        "softmax_with_chunked_sum_kernel",
        f"{AT}reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::ArgMaxOps<float>, unsigned int, long, 4>",
    ],
    "collective": [
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "multimem_all_reduce_kernel<c10::BFloat16>",
        "hcom_allReduce__271_0_1",
        "_C::shm_allreduce",
        "all-gather-start.3",
    ],
    "elementwise": [
        "void at::native::elementwise_add<float>(float*, float*)",
        "triton__0d1d2d3d4de",
        "loop_multiply_fusion.2",
        "void scale_f32(float const*)",
        "void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, true, false>(float*, float const*)",
        f"{AT}(anonymous namespace)::cunn_SoftMaxForward<8, c10::BFloat16, float, c10::BFloat16>(c10::BFloat16*)",
        f"{AT}vectorized_elementwise_kernel<8, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul> >",
    ],
    "copy": [
        "Memcpy DtoD (Device -> Device)",
        f"{AT}elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::direct_copy_kernel_cuda(at::T",
        f"{AT}(anonymous namespace)::CatArrayBatchedCopy<at::native::(anonymous namespace)::OpaqueType<2u>, unsigned",
        "triton_poi_fused__to_copy_1",
        "triton_poi_fused_constant_pad_nd_moe_forward_0",
        "aten::to",
    ],
    "fill": [
        "Memset (Device)",
        f"{AT}vectorized_elementwise_kernel<4, at::native::FillFunctor<int>, std::array<char*, 1ul> >(int)",
    ],
    "other": [
        "_post_update_kernel",
        "void fbgemm_gpu::permute_2D_lengths_kernel<int>(int, int, int const*, int const*, int*)",
        "void linearize_index_kernel<long>(at::GenericPackedTensorAccessor<long, 1ul, at::RestrictPtrTraits, int>)",
        "void cub::DeviceRadixSortSingleTileKernel<cub::DeviceRadixSortPolicy<long, int, int>::Policy800, false>",
        f"{AT}upsample_bilinear2d_out_frame<c10::BFloat16, float>",
        "",
    ],
}


@pytest.mark.parametrize("category", CATEGORIES)
def test_real_names(category):
    found = names.categories(pl.Series(CATEGORIES[category], dtype=pl.String))
    wrong = [
        (name, got)
        for name, got in zip(CATEGORIES[category], found, strict=True)
        if got != category
    ]
    assert not wrong


def test_order_and_repetitions_stay():
    found = names.categories(pl.Series(["fused_moe_kernel", "x", "fused_moe_kernel"]))
    assert found.to_list() == ["moe_experts", "other", "moe_experts"]
    assert found.name == "category"
    assert names.categories(pl.Series([], dtype=pl.String)).to_list() == []


@pytest.mark.parametrize(
    ("name", "kind", "algorithm"),
    [
        (
            "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 4>(vllm::RankData*)",
            "all_reduce",
            "custom_1stage",
        ),
        (
            "void vllm::cross_device_reduce_2stage<__nv_bfloat16, 4>(vllm::RankData*)",
            "all_reduce",
            "custom_2stage",
        ),
        (
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            "all_reduce",
            "ring_ll",
        ),
        (
            "ncclDevKernel_AllReduce_Sum_bf16_TREE_LL128(ncclDevKernelArgs)",
            "all_reduce",
            "tree_ll128",
        ),
        (
            "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long)",
            "all_reduce",
            "ring_ll",
        ),
        (
            "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            "all_gather",
            "ring_ll",
        ),
        (
            "ncclDevKernel_ReduceScatter_Sum_bf16_NVLS_SIMPLE(ncclDevKernelArgs)",
            "reduce_scatter",
            "nvls_simple",
        ),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "send_recv", None),
        (
            "ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            "broadcast",
            "ring_ll",
        ),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL(ncclDevKernelArgs)", "reduce", "ring_ll"),
        ("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", "other", None),
        ("multimem_all_reduce_kernel<c10::BFloat16>", "all_reduce", "multimem_one_shot"),
        ("void deep_ep::intranode::dispatch<8, 768, 8192>(int4*)", "all_to_all", "deepep"),
        ("_C::shm_allreduce", "all_reduce", "shared_memory"),
        ("_C::shm_send_tensor_list", "send_recv", "shared_memory"),
        ("hcom_allGather__271_0_1", "all_gather", None),
    ],
)
def test_kinds_and_algorithms(name, kind, algorithm):
    assert names.collective_kinds(pl.Series([name])).to_list() == [kind]
    assert names.collective_algorithms(pl.Series([name])).to_list() == [algorithm]


def test_element_bytes():
    types = [
        "BFloat16",
        "c10::Half",
        "Float",
        "long int",
        "unsigned char",
        "Float8_e4m3fn",
        "Complex",
        None,
    ]
    found = pl.DataFrame({"t": types}).select(names.element_bytes(pl.col("t"))).to_series()
    assert found.to_list() == [2, 2, 4, 8, 1, 1, None, None]


@pytest.fixture
def own_table():
    """Whatever a test registers is gone after it."""
    before = list(names.KERNEL_PATTERNS)
    yield
    names.KERNEL_PATTERNS[:] = before


@pytest.mark.usefixtures("own_table")
def test_a_pattern_of_ones_own_wins_and_what_was_computed_is_computed_again():
    kernels = pl.DataFrame(
        {"rank": 0, "start_ns": [0, 10], "dur_ns": [5, 5], "name": ["acme_mixer", "nvjet_tst"]}
    )
    trace = Trace({"kernels": kernels})
    assert trace.events["category"].to_list() == ["other", "gemm"]
    first = trace.events
    assert trace.events.equals(first)

    names.register("attention", "ACME_.*mix")
    names.register("norm", "nvjet")
    assert dict(trace.events.select("name", "category").rows()) == {
        "acme_mixer": "attention",
        "nvjet_tst": "norm",
    }
    names.register("rope", "acme")
    assert trace.events["category"].to_list() == ["rope", "norm"]
    del names.KERNEL_PATTERNS[:3]
    assert trace.events.equals(first)


@pytest.mark.usefixtures("own_table")
@pytest.mark.parametrize(
    ("category", "pattern", "message"),
    [
        ("attn", "x", "there is no category 'attn'"),
        ("attention", "(", "is not a regular expression"),
        ("attention", "(?!x)y", "look-around"),
        ("attention", "x|", "matches every name"),
        ("attention", "", "matches every name"),
    ],
)
def test_register_refuses(category, pattern, message):
    before = list(names.KERNEL_PATTERNS)
    with pytest.raises(LlmprofError, match=message.replace("(", r"\(")):
        names.register(category, pattern)
    assert before == names.KERNEL_PATTERNS


@pytest.mark.parametrize(
    "given",
    [[], [None], [None, "ncclDevKernel", None], ["a", "ncclDevKernel", "a"]],
    ids=lambda v: f"{len(v)} {v[:1]}",
)
def test_names_are_looked_up_by_name_and_null_stays_null(given):
    found = names.by_unique_name(
        pl.Series(given, dtype=pl.String), [("collective", "NCCL")], "other"
    )
    assert found.dtype == pl.String
    assert found.to_list() == [
        None if n is None else "collective" if n.startswith("nccl") else "other" for n in given
    ]


def test_classes_of_letters_also_hold_letters_beyond_ascii():
    patterns = [
        ("word", r"^\w+_kernel\b"),
        ("digit", r"^x\d$"),
        ("space", r"^a\s+b$"),
        ("other", r"^[^:\w]"),
    ]
    plain = ["my_kernel", "my_kernels", "x7", "a \t b", "-y", "é", "z"]
    assert names.by_unique_name(pl.Series(plain), patterns, None).to_list() == [
        "word",
        None,
        "digit",
        "space",
        "other",
        None,
        None,
    ]
    assert names.by_unique_name(pl.Series(plain[:5]), patterns, None).to_list() == [
        "word",
        None,
        "digit",
        "space",
        "other",
    ]
    assert names.by_unique_name(pl.Series(["größe_kernel", "x٣"]), patterns, None).to_list() == [
        "word",
        "digit",
    ]
