from __future__ import annotations

import polars as pl
import pytest

from llmprof.names import kernels

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
    ("nvjet_sm90_tst_192x128_64x5_1x2_h_bz_coopB_TNT", "nvjet_sm90_tst_192x128_64x5_1x2_h_bz_coopB_TNT"),
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
    names = pl.Series("n", ["void f<4, float>(int)", "void f<8, float>(int)", "void g<4, float>(int)", None])
    out = kernels.comparable(names)
    assert out.n_unique() == 4
    assert out[3] is None
    assert out.name == "n"
