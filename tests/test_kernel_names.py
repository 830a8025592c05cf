import polars as pl
import pytest

from llmprof import names as all_names
from llmprof.names import kernels
from llmprof.names.readable import distinct_labels

# the same kernels as ncu, ncu's report, CUPTI (torch, nsys) write them
SAME = [
    (
        "fused_add_rms_norm_kernel",
        "std::enable_if<T2>0&&vllm::_typeConvert<T1>::exists, void>::type "
        "vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8, 1>(T1 *, long, T1 *, const T1 *, float, int, int)",
        "std::enable_if<T2>(int)0&&vllm::_typeConvert<T1>::exists, void>::type "
        "vllm::fused_add_rms_norm_kernel<c10::BFloat16, (int)8, (bool)1>(T1 *, long, T1 *, float, int, int)",
        "std::enable_if<((8)>(0))&&vllm::_typeConvert<c10::BFloat16>::exists, void>::type "
        "vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8, true>(c10::BFloat16*, long, float, int, int)",
    ),
    (
        "vectorized_elementwise_kernel",
        "void at::vectorized_elementwise_kernel<4, at::FillFunctor<int>, std::array<char *, 1>>(int, T2, T3)",
        "void at::native::vectorized_elementwise_kernel<(int)4, at::native::FillFunctor<int>, "
        "std::array<char *, (unsigned long)1>>(int, T2, T3)",
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<int>, std::array<char*, 1ul> >"
        "(int, at::native::FillFunctor<int>, std::array<char*, 1ul>)",
    ),
    (
        "reshape_and_cache_flash_kernel",
        "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, __nv_bfloat16, 0>(const T1 *)",
        "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, __nv_bfloat16, (vllm::Fp8KVCacheDataType)0>(T1 *)",
    ),
    (
        "nvjet_sm90_tst_192x128_64x5_1x2_h_bz_coopB_TNT",
        "nvjet_sm90_tst_192x128_64x5_1x2_h_bz_coopB_TNT",
    ),
]


@pytest.mark.parametrize("names", SAME, ids=lambda names: names[0])
def test_one_kernel_written_in_several_ways_compares_equal(names):
    function, *written = names
    assert kernels.function(pl.Series(written)).to_list() == [function] * len(written)
    assert kernels.comparable(pl.Series(written)).n_unique() == 1


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("void (anonymous namespace)::elementwise<float>(int)", "elementwise"),
        ("void <unnamed>::elementwise<float>(int)", "elementwise"),
        ("triton_poi_fused_mul_silu_1", "triton_poi_fused_mul_silu_1"),
        ("void f<int, (lambda()#1)::operator()() const>(int) [clone .kd]", "f"),
        ("void cutlass::device_kernel<flash::enable<1>>(T1::Params)", "device_kernel"),
        ("", ""),
        ("<<<", "<<<"),
        ("(", "("),
    ],
)
def test_functions_of_names(name, function):
    assert kernels.function(pl.Series([name])).to_list() == [function]


def test_other_template_arguments_do_not_compare_equal():
    names = pl.Series(
        "n", ["void f<4, float>(int)", "void f<8, float>(int)", "void g<4, float>(int)", None]
    )
    out = kernels.comparable(names)
    assert out.n_unique() == 4
    assert out[3] is None
    assert out.name == "n"


FLASH = "void cutlass::device_kernel<flash::"
TUPLE = "cute::tuple<cute::C<1>, cute::C<1>, cute::C<1> >, cute::tuple<cute::C<64>, cute::C<128>, cute::C<{}> >, 128"


@pytest.mark.parametrize(
    ("name", "readable"),
    [
        (
            "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT128x192x64_MI16x16x1_SN_LDSB1",
            "hipBLASLt BF16 128x192x64",
        ),
        ("Cijk_Ailk_Bljk_HHS_BH_MT64x32x16_MI16x16x1_SN", "Tensile FP16 64x32x16"),
        ("nvjet_sm90_tst_192x8_64x8_4x1_v_bz_TNT", "nvjet sm90 192x8"),
        ("nvjet_sm90_tst_192x8_64x8_4x1_v_bz_splitK_TNT", "nvjet sm90 192x8 splitK"),
        ("nvjet_tst_128x8_64x12_2x1_v_bz_TNT", "nvjet 128x8"),
        (
            "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1",
            "xmma sm90 BF16 128x128x64",
        ),
        (
            "ampere_fp16_s16816gemm_fp16_128x128_ldg8_relu_f2f_stages_32x5_tn",
            "cuBLAS ampere FP16 128x128",
        ),
        ("volta_sgemm_64x64_nt", "cuBLAS volta FP32 64x64"),
        (
            "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x64_64x6_tn_align8>(x)",
            "CUTLASS sm80 BF16 128x64",
        ),
        (
            f"{FLASH}enable_sm90_or_later<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90<2, "
            + TUPLE.format(128),
            "FlashAttention-3 hdim128",
        ),
        (
            f"{FLASH}FlashAttnBwd<flash::CollectiveMainloopBwd<2, {TUPLE.format(192)}>>(x)",
            "FlashAttention-3 backward hdim192",
        ),
        (
            f"{FLASH}FlashAttnFwdCombine<cute::tuple<cute::C<8>, cute::C<128> >, 5>(x)",
            "FlashAttention-3 combine",
        ),
        (
            "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, 128, 4>>(x)",
            "FlashAttention-2 hdim64",
        ),
        ("aiter::fmha_fwd_hd128_bf16_rtz", "AITER fmha BF16 hdim128"),
        (
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4>)",
            "NCCL AllReduce Sum BF16 RING LL",
        ),
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>, x>(int)",
            "elementwise add",
        ),
        (
            "void at::native::vectorized_elementwise_kernel<8, at::native::BinaryFunctor<c10::BFloat16, c10::BFloat16, "
            "c10::BFloat16, at::native::binary_internal::MulFunctor<float> >, x>(int)",
            "elementwise mul",
        ),
        (
            "_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi64ELi8ELb0EEEvPT0_PT_",
            "add_rmsnorm_quant_kernel",
        ),
        ("_ZN7ck_tile6kentryILi2ENS_20FmhaFwdSplitKVKernelINS_", "FmhaFwdSplitKVKernel"),
        ("void vllm::rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*, long)", "rms_norm_kernel"),
        ("triton_poi_fused_mul_silu_1", "triton_poi_fused_mul_silu_1"),
        ("Memcpy HtoD (Pinned -> Device)", "Memcpy HtoD (Pinned -> Device)"),
        ("aten::mm", "aten::mm"),
        ("/model/layers.0/attn/q_proj/MatMul_kernel_time", "/model/layers.0/attn/q_proj/MatMul"),
        ("layer0/scores/MatmulTransposeFusion/_kernel_time", "layer0/scores/MatmulTransposeFusion"),
        ("void measure_kernel_time(float*)", "measure_kernel_time"),
        ("_Z25openacc_matrix_add_10_gpuPKfS0_Pfii", "openacc_matrix_add_10_gpu"),
        ("_ZN", "_ZN"),
        ("", ""),
        (None, None),
    ],
)
def test_names_that_people_read(name, readable):
    assert all_names.readable(pl.Series([name], dtype=pl.String)).to_list() == [readable]


def test_of_names_that_begin_alike_the_beginning_is_cut():
    long = [
        f"triton_red_fused_add_mul_native_layer_norm_{kind}_{number}"
        for kind, number in (("view", 1), ("cat", 22))
    ]
    assert all_names.without_common_start([*long, "gemm"], 20) == [
        "…layer_norm_view_1",
        "…layer_norm_cat_22",
        "gemm",
    ]
    assert all_names.without_common_start(["a" * 30], 10) == ["a" * 9 + "…"]
    said = {
        "gemm<bf16, 64, 128, true>": "gemm",
        "gemm<bf16, 64, 256, false>": "gemm",
        "gemm<bf16, 32, 256, false>": "gemm",
        "flash<1>": "flash",
        "flash<1, Paged>": "flash",
        "norm<4>": "norm",
    }
    told = distinct_labels(pl.Series(list(said)), pl.Series(list(said.values())))
    assert told == [
        "gemm · 64 128",
        "gemm · 64 256",
        "gemm · 32 256",
        "flash",
        "flash · Paged",
        "norm",
    ]
    # where the same few words stand for several, more are said of these
    said = {
        f"mul<{size}, {kinds}>": "mul"
        for size in (2, 4)
        for kinds in ("long, long", "bool", "half, half, half, a, b")
    }
    said |= {"mul<4, half, half, half, a, c>": "mul"}
    told = distinct_labels(pl.Series(list(said)), pl.Series(list(said.values())))
    assert len(set(told)) == len(said), told
    assert distinct_labels(pl.Series([], dtype=pl.String), pl.Series([], dtype=pl.String)) == []
