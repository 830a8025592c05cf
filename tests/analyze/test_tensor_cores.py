"""Tensor cores by names of kernels, by hand."""

import polars as pl
import pytest

from llmprof import analyze
from llmprof.analyze.tensor_cores import by_name
from llmprof.trace import Trace
from tests.analyze.builders import ATTENTION, COMBINE, GEMM, NORM, SPLIT_K, kernels

TOLD = {
    True: [
        GEMM,
        ATTENTION,
        "void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4, false, false>, false>",
        "ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_tn",
        "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x64_64x6_tn_align8>",
        "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize64x128x32_stage5_warpsize2x2x1_g1_tensor16x8x8",
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_cga1x1x1_kernel0_0",
        "Cijk_Ailk_Bljk_HHS_BH_MT16x16x64_MI16x16x16x1_SN_1LDSB0",
        "void paged_attention_ll4mi_QKV_mfma16_kernel<0, __hip_bfloat16>",
        "igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt128x128x32",
    ],
    False: [
        SPLIT_K,
        COMBINE,
        "void flash::flash_fwd_splitkv_combine_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4, false, false>, 8>",
        "void flash::flash_bwd_convert_dq_kernel<Flash_bwd_kernel_traits<128, 64, 128, 8>>",
        "ampere_sgemm_32x32_sliced1x4_tn",
        "volta_sgemm_128x128_tn",
        "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>",
        "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_warpsize2x2x1_ffma_aligna4_alignc4_execute_kernel",
        "std::enable_if<!(false), void>::type internal::gemvx::kernel<int, int, float>",
        "void paged_attention_ll4mi_reduce_kernel<__hip_bfloat16>",
        "Cijk_Ailk_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT1x4x256_SN_LDSB0",
        "Cijk_SB_BiasS_HAS_ScaleAlphaVec_PostGSU4_VW4",
    ],
    None: ["fused_moe_kernel", "kernel_unified_attention_2d", "attn_fwd", "sage_fwd"],
}


@pytest.mark.parametrize(
    ("told", "name"), [(told, name) for told, names in TOLD.items() for name in names]
)
def test_what_a_name_tells(told, name):
    assert by_name(pl.Series([name])).to_list() == [told]


def test_time_with_and_without():
    run = kernels(
        [(GEMM, 30), (SPLIT_K, 10), (NORM, 50), ("fused_moe_kernel", 20), (ATTENTION, 40)]
    )
    found = analyze.tensor_cores(Trace({"kernels": run}), by=("category",))
    assert found.select("category", "count", "total_ns", "known_share", "tensor_share").rows() == [
        ("attention", 1, 40, 1.0, 1.0),
        ("gemm", 2, 40, 1.0, 0.75),
        ("moe_experts", 1, 20, 0.0, None),
    ]


def test_a_share_of_a_small_part_is_unknown():
    found = analyze.tensor_cores(
        Trace({"kernels": kernels([(GEMM, 3), ("dpsk_gemm_kernel", 997)])}), by=()
    )
    assert found.select("tensor_share", "known_share").row(0) == (None, 0.003)
    assert analyze.tensor_cores(
        Trace({"kernels": kernels([(GEMM, 30), ("dpsk_gemm_kernel", 20)])}), by=()
    ).select("tensor_share", "known_share").row(0) == (1.0, 0.6)
