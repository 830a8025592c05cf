"""Work of recorded operator calls, against numbers computed by hand and torch's own counter."""

import inspect
import json
import subprocess

import polars as pl
import pytest
from msgspec.structs import replace

from llmprof.errors import LlmprofError
from llmprof.theory import calls
from llmprof.theory.calls import CallWork, Lengths, NoWorkError, Operator, parse_call, work_of
from tests.theory.notation import call


@pytest.mark.parametrize(
    ("given", "flops", "read", "written", "matrix"),
    [
        # 4 x 8 times 8 x 2: 64 multiply-adds
        (call("aten::mm", "bf16[4,8] bf16[8,2]"), 128, 64 + 32, 16, "bf16"),
        (call("aten::addmm", "bf16[2] bf16[4,8] bf16[8,2] 1*2"), 136, 4 + 64 + 32, 16, "bf16"),
        (call("aten::addmm", "bf16[2] bf16[4,8] bf16[8,2] 0 1"), 128, 64 + 32, 16, "bf16"),
        (call("aten::bmm", "f32[3,4,8] f32[3,8,2]"), 384, 3 * (128 + 64), 96, "fp32"),
        # one matrix for the whole batch is read once
        (call("aten::bmm", "f32[3,4,8] f32[3,8,2]{0,2,1}"), 384, 3 * 128 + 64, 96, "fp32"),
        (call("aten::bmm", "f32[1,4,8] f32[1,8,2]", kernel="sm90_xmma_tf32"), 128, 192, 32, "tf32"),
        (call("aten::linear", "bf16[5,4,8] bf16[2,8] bf16[2]"), 680, 320 + 32 + 4, 80, "bf16"),
        (call("aten::matmul", "bf16[5,4,8] bf16[8,2]"), 640, 320 + 32, 80, "bf16"),
        (call("aten::mv", "bf16[4,8] bf16[8]"), 64, 64 + 16, 8, "bf16"),
        # 8 bits in, 16 out
        (
            call("aten::_scaled_mm", "f8[4,8] f8[8,2] f32[1]*2 None*2 15 False"),
            128,
            32 + 16 + 8,
            16,
            "fp8",
        ),
        (
            call("_C::cutlass_scaled_mm", "bf16[4,2] f8[4,8] f8[8,2] f32[4,1] f32[2] None"),
            128,
            32 + 16 + 16 + 8,
            16,
            "fp8",
        ),
        # 3 rows of 64 times 64 x 32 weights of 4 bits: 1,024 bytes in whole numbers of 4; two
        # groups of 16-bit scales
        (
            call(
                "_C::marlin_gemm",
                "bf16[3,64] None i32[4,64] None bf16[2,32] None*2 i32[2,4] i32[128] 1 3 32 64",
            ),
            2 * 3 * 32 * 64,
            3 * 64 * 2 + 1024 + 2 * 32 * 2 + 2 * 4 * 4,
            3 * 32 * 2,
            "bf16",
        ),
        # Marlin's older form with an order of the inputs, and its result among the arguments
        (
            call(
                "_C::gptq_marlin_gemm",
                "bf16[3,64] bf16[3,32] i32[4,64] bf16[32] bf16[2,32] None*3 i32[64]*2 i32[128] 1 3 32 64",
            ),
            2 * 3 * 32 * 64,
            3 * 64 * 2 + 1024 + 32 * 2 + 2 * 32 * 2 + 2 * 64 * 4,
            3 * 32 * 2,
            "bf16",
        ),
        (
            call("_C::gptq_gemm", "f16[3,64] i32[8,32] i32[2,4] f16[2,32] i32[64] True False 4"),
            2 * 3 * 32 * 64,
            384 + 1024 + 32 + 128 + 256,
            192,
            "fp16",
        ),
        (
            call("_C::awq_gemm", "f16[3,64] i32[64,4] f16[2,32] i32[2,4] 8"),
            2 * 3 * 32 * 64,
            384 + 1024 + 128 + 32,
            192,
            "fp16",
        ),
        # weights of 8 bits
        (
            call("_C::machete_mm", "bf16[3,64] i32[16,32] 1 None bf16[1,32]"),
            2 * 3 * 32 * 64,
            384 + 2048 + 64,
            192,
            "bf16",
        ),
        # 2 tokens, each to 1 of 4 experts: 4 (1 - (3/4)^2) = 1.75 of them, with 8 x 16 weights of 4
        # bits and 8 scales
        (
            call("_moe_C::moe_wna16_gemm", "bf16[2,16] bf16[2,1,8] u8[4,8,8] bf16[4,8,1]"),
            2 * 2 * 8 * 16,
            2 * 16 * 2 + 1.75 * (64 + 16),
            2 * 8 * 2,
            "bf16",
        ),
        # 2 tokens of 8 to 1 of 4 experts with inner size 3 and a gate: 1.75 x (6 x 8 + 8 x 3)
        # weights of 2 bytes
        (
            call(
                "vllm::outplace_fused_experts",
                "bf16[2,8] bf16[4,6,8] bf16[4,8,3] f32[2,1] i64[2,1]",
            ),
            2 * 2 * 8 * (6 + 3),
            1.75 * 72 * 2 + (16 + 6) * 2 + 16,
            2 * (6 + 8) * 2,
            "bf16",
        ),
        # 5 of 100 rows of 16
        (call("aten::index", "bf16[100,16]", ([[5]], ["long int"])), 0, 5 * 16 * 2 + 40, 160, ""),
        # places of two axes, 3 x 1 with 2: 6 rows of 4 out of 10 x 10
        (
            call("aten::index", "f32[10,10,4]", ([[3, 1], [2]], ["long int", "long int"])),
            0,
            6 * 16 + 5 * 8,
            96,
            "",
        ),
        # filters of 3 x 3 over 6 x 6 with stride 2 and padding 1 give 3 x 3
        (
            call(
                "aten::convolution",
                "bf16[2,4,6,6] bf16[8,4,3,3] bf16[8] [2,2] [1,1]*2 False [0,0] 1",
            ),
            2 * 2 * 8 * 9 * 36,
            576 + 576 + 16,
            288,
            "bf16",
        ),
        (
            call("aten::cudnn_convolution", "bf16[2,4,6,6] bf16[8,2,3,3] [1,1] [2,2] [1,1] 2"),
            2 * 2 * 8 * 9 * 18,
            576 + 288,
            288,
            "bf16",
        ),
        (
            call(
                "aten::convolution_backward",
                "bf16[2,8,3,3] bf16[2,4,6,6] bf16[8,4,3,3] [8] [2,2] [1,1]*2 False [0,0] 1 [True,True,False]",
            ),
            2 * 2 * 2 * 8 * 9 * 36,
            288 + 576 + 576,
            576 + 576,
            "bf16",
        ),
        # 2 sequences, 3 heads, 4 queries, 4 keys of size 8: 16 pairs, 8 of them with a mask
        (
            call("aten::_scaled_dot_product_flash_attention", "bf16[2,3,4,8]*3 0. False*2"),
            2 * 6 * 16 * 16,
            3 * 384,
            384,
            "bf16",
        ),
        (
            call("aten::_scaled_dot_product_flash_attention", "bf16[2,3,4,8]*3 0. True False"),
            2 * 6 * 8 * 16,
            3 * 384,
            384,
            "bf16",
        ),
        # heads last, two heads of keys for four of queries
        (
            call(
                "aten::_flash_attention_forward",
                "bf16[1,1,4,8] bf16[1,9,2,8]*2 None*2 1 9 0. False",
            ),
            2 * 4 * 9 * 16,
            64 + 2 * 288,
            64,
            "bf16",
        ),
        (
            call(
                "aten::_scaled_dot_product_flash_attention_backward",
                "bf16[2,3,4,8]*5 f32[2,3,4] None*2 4*2 0. False",
            ),
            2 * 6 * 16 * 40,
            5 * 384,
            3 * 384,
            "bf16",
        ),
        (call("aten::add", "bf16[4,8] bf16[8] 1"), 32, 64 + 16, 64, ""),
        (call("aten::add", "bf16[4,8] f32[4,8] 1"), 32, 64 + 128, 128, ""),
        (call("aten::add_", "bf16[4,8] f32[4,8] 1"), 32, 64 + 128, 64, ""),
        (call("aten::mul", "bf16[4,1] bf16[1,8]"), 32, 8 + 16, 64, ""),
        # tensors without axes have an element
        (call("aten::eq", "i64[] 512"), 0, 8, 1, ""),
        (call("aten::mul", "f32[]*2"), 1, 8, 4, ""),
        (call("aten::_local_scalar_dense", "i64[]"), 0, 8, 8, ""),
        (call("aten::arange", "1 8 2 i64[0]"), 0, 0, 4 * 8, ""),
        # a copy for the other ranks of 4 x 8 in 16 bits
        (call("_C_custom_ar::all_reduce", "63 bf16[4,8]*2 26 83"), 0, 64, 64, ""),
        # into a given result, which is not read
        (call("aten::mul", "f32[4,8] None f32[4,8]"), 32, 128, 128, ""),
        (call("aten::add", "f32[4,8] f32[8] 1 f32[4,8]"), 32, 128 + 32, 128, ""),
        (call("aten::addcmul", "f32[4,8]*3"), 32, 3 * 128, 128, ""),
        (call("aten::mul", "bf16[4,8] bf16[4,8]{1,0}"), 32, 64 + 8, 64, ""),
        (call("aten::eq", "i64[4,8] 3"), 0, 256, 32, ""),
        (call("aten::pow", "bf16[4,8] 2 bf16[4,8]"), 32, 64, 64, ""),
        (call("aten::pow", "bf16[4,8]*2"), 32, 128, 64, ""),
        (call("aten::square", "bf16[4,8]*2"), 32, 64, 64, ""),  # into the second
        (call("aten::where", "bool[4,8] f32[] bf16[4,8]"), 32, 32 + 64, 64, ""),
        (call("aten::silu", "bf16[0,8]"), 0, 0, 0, ""),
        (call("aten::copy_", "bf16[4,8] f32[4,8] False"), 0, 128, 64, ""),
        (call("aten::copy_", "f32[4,8] f32[4,8]{0,1} False"), 0, 32, 128, ""),
        (
            call(
                "aten::cat",
                ([[4, 8], [2, 8]], "TensorList"),
                "0",
                kernel="CatArrayBatchedCopy<OpaqueType<2u>, 1>",
            ),
            0,
            96,
            96,
            "",
        ),
        (call("aten::embedding", "bf16[100,8] i64[2,3] -1"), 0, 96 + 48, 96, ""),
        (call("aten::index_select", "bf16[4,8] 1 i64[3]"), 0, 24 + 24, 24, ""),
        (call("aten::gather", "bf16[4,8] 1 i64[4,2] False"), 0, 16 + 64, 16, ""),
        (call("aten::mean", "f32[4,8] [-1] True None"), 32, 128, 16, ""),
        # results of another type than the input: sums of whole numbers, a type that is asked for,
        # true division
        (call("aten::sum", "i32[4,8] [1] False None"), 0, 128, 32, ""),
        (call("aten::sum", "bf16[4,8] [1] False 6"), 32, 64, 16, ""),
        (call("aten::sum", "bf16[4,8] 6"), 32, 64, 4, ""),
        (call("aten::cumsum", "bool[4,8] 1 None"), 0, 32, 256, ""),
        (call("aten::max", "bf16[4,8] 1 False"), 32, 64, 40, ""),
        (call("aten::_softmax", "bf16[4,8] -1 True"), 160, 64, 128, ""),
        (call("aten::div", "i64[4,8]*2"), 32, 512, 128, ""),
        (call("aten::div", "i64[4,8]*2 floor"), 0, 512, 256, ""),
        (call("aten::add", "i64[4,8] bf16[8]"), 32, 256 + 16, 64, ""),
        (call("aten::cat", ([[4, 8], [2, 8]], ["c10::BFloat16", "float"]), "0"), 0, 128, 192, ""),
        # no tokens: weights are not multiplied, and no sequence has a state
        (call("aten::mm", "bf16[0,8] bf16[8,2]"), 0, 32, 0, "bf16"),
        (
            call(
                "_C::selective_scan_fwd",
                "bf16[8,0]*2 f32[8,4] bf16[1,4,0]*2 f32[8] None*2 True i32[0] None*2 bf16[9,8,4]",
            ),
            0,
            128,
            0,
            "",
        ),
        (call("aten::argmax", "f32[4,8] -1 False"), 32, 128, 32, ""),
        (call("aten::_softmax", "bf16[4,8] -1 False"), 160, 64, 64, ""),
        (call("aten::native_layer_norm", "bf16[4,8] [8] bf16[8]*2 1e-5"), 224, 96, 64, ""),
        (call("_C::rms_norm", "bf16[4,8]*2 bf16[8] 1e-6"), 128, 64 + 16, 64, ""),
        (call("aiter::rms_norm", "bf16[4,8] bf16[8] 1e-6"), 128, 64 + 16, 64, ""),
        (call("_C::fused_add_rms_norm", "bf16[4,8]*2 bf16[8] 1e-6"), 160, 128 + 16, 128, ""),
        (call("_C::silu_and_mul", "bf16[4,8] bf16[4,16]"), 64, 128, 64, ""),
        (
            call("_C::rotary_embedding", "i64[4] bf16[4,32] bf16[4,8] 8 bf16[99,8] True"),
            3 * 160,
            320 + 32 + 64,
            320,
            "",
        ),
        # keys of 16 bits into a cache of 8
        (
            call("_C_cache_ops::reshape_and_cache_flash", "bf16[4,2,8]*2 f8[9,16,2,8]*2 i64[4]"),
            0,
            256 + 32,
            128,
            "",
        ),
        # three latents of 16 and turned keys of 8 into slots of 8 bits, with scales; a fourth row
        # only fills up
        (
            call("_C_cache_ops::concat_and_cache_mla", "bf16[4,16] bf16[4,8] u8[9,64,36] i64[3]"),
            0,
            3 * (48 + 8),
            3 * 36,
            "",
        ),
        (
            call("_C_cache_ops::indexer_k_quant_and_cache", "bf16[4,16] u8[9,64,20] i64[4] 16"),
            128,
            4 * (32 + 8),
            80,
            "",
        ),
        (call("aten::topk", "f32[4,8] 2 -1 True*2"), 0, 128, 8 * 12, ""),
        (
            call(
                "aten::native_layer_norm_backward",
                "bf16[4,8]*2 [8] f32[4,1]*2 bf16[8]*2 [True,True,True]",
            ),
            13 * 32,
            64 + 64 + 16,
            64 + 16,
            "",
        ),
        (
            call("aten::_fused_rms_norm_backward", "bf16[4,8]*2 [8] f32[4,1] bf16[8] [True,True]"),
            9 * 32,
            64 + 64 + 16,
            64 + 16,
            "",
        ),
        (call("aten::native_batch_norm", "bf16[2,4,3,3] f32[4]*4 True"), 7 * 72, 144, 144, ""),
        (call("aten::miopen_batch_norm_backward", "bf16[2,4,3,3]*2 f32[4]"), 13 * 72, 288, 144, ""),
        # windows of 3 x 3 over 6 x 6 with stride 2 and padding 1: 3 x 3 results, with a place of 8
        # bytes each
        (
            call("aten::max_pool2d_with_indices", "bf16[2,4,6,6] [3,3] [2,2] [1,1]*2 False"),
            72 * 9,
            576,
            72 * 10,
            "",
        ),
        (
            call(
                "aten::max_pool2d_with_indices_backward",
                "bf16[2,4,3,3] bf16[2,4,6,6] 2 2 0 1 False i64[2,4,3,3]",
            ),
            72,
            144 + 576,
            576,
            "",
        ),
        (call("aten::mse_loss", "f32[4,8]*2 1"), 96, 256, 4, ""),
        (call("aten::mse_loss", "f32[4,8]*2 0"), 96, 256, 128, ""),
        (call("aten::mse_loss_backward", "f32[] f32[4,8]*2 1"), 96, 260, 128, ""),
        (call("aten::_index_put_impl_", "bf16[9,8] None bf16[3,8] False*2"), 0, 48, 48, ""),
        (call("aten::_index_put_impl_", "bf16[9,8] None bf16[3,8] True False"), 24, 96, 48, ""),
        (call("_C::per_token_group_fp8_quant", "bf16[4,8] f8[4,8] f32[4,2] 4"), 64, 64, 64, ""),
        (call("aten::_grouped_mm", "bf16[6,8] bf16[3,8,4] i32[3]"), 384, 96 + 3 * 64, 48, "bf16"),
        # one row can meet one group only
        (call("aten::_grouped_mm", "bf16[1,8] bf16[3,8,4] i32[3]"), 64, 16 + 64, 8, "bf16"),
        # two sequences of a state of 8 x 4 in 16 bits
        (
            call(
                "_C::selective_scan_fwd",
                "bf16[8,5]*2 f32[8,4] bf16[1,4,5]*2 f32[8] bf16[8,5] f32[8] True i32[3] i32[2] bool[2] bf16[9,8,4]",
            ),
            8 * 160,
            3 * 80 + 128 + 2 * 40 + 128,
            80 + 128,
            "",
        ),
        (
            call(
                "ChunkGatedDeltaRuleFunction",
                "bf16[1,5,2,4]*2 bf16[1,5,2,6] f32[1,5,2]*2 0.5 bf16[3,2,6,4]",
            ),
            6 * 5 * 2 * 24,
            80 + 80 + 120 + 40 + 40 + 288,
            120 + 288,
            "bf16",
        ),
        (
            call(
                "sglang_profiler::attention_paged_attention_ragged_100",
                "bf16[6,4,8] u8[99] bf16[6,4,8] bf16[50,1,2,8]*2",
                lengths=Lengths(6, 20, 25),
            ),
            2 * 4 * 16 * 25,
            384 + 20 * 64,
            384,
            "bf16",
        ),
        # latent attention: queries of 8 meet keys of 8, and others of 16 the values
        (
            call(
                "_vllm_fa3_C::fwd",
                "bf16[6,4,8] bf16[50,16,1,8] bf16[50,16,1,16] None*2 bf16[6,4,16]",
                lengths=Lengths(6, 20, 25),
            ),
            2 * 4 * (8 + 16 + 16) * 25,
            384 + 768 + 20 * 24 * 2,
            768,
            "bf16",
        ),
    ],
)
def test_work_by_hand(given, flops, read, written, matrix):
    found = work_of(given)
    assert (found.flops, found.read, found.written, found.matrix) == (flops, read, written, matrix)


def test_compiled_kernels_move_each_tensor_once_and_read_only_places_of_a_table():
    found = work_of(call("triton_poi_fused_add_0", "bf16[4,8] bf16[999,8] bf16[4,8] 32"))
    assert (found.flops, found.read, found.written) == (None, 64 + 64, 64)
    assert found.assumed


def paged(ends, longest, most, lengths=None):
    given = "bf16[6,4,8] bf16[50,16,2,8]*2 None*3 bf16[6,4,8]"
    given += f" i32[{ends}] None*3 i32[3] {longest} {most} i32[3,9]"
    return work_of(call("_vllm_fa3_C::fwd", given, lengths=lengths))


def test_lengths_of_a_paged_cache_come_from_the_call_or_the_step():
    one = paged(
        2, 6, 10
    )  # one sequence: 6 queries see 4 keys before them, and half of their square
    assert (one.flops, one.read, one.source) == (
        2 * 4 * 16 * (60 - 18),
        384 + 10 * 2 * 16 * 2,
        "shapes",
    )
    equal = paged(4, 2, 2)  # three prompts of two tokens
    assert (equal.flops, equal.read) == (2 * 4 * 16 * 3 * 2, 384 + 6 * 2 * 16 * 2)
    with pytest.raises(NoWorkError):
        paged(4, 3, 9)
    said = paged(4, 3, 9, Lengths(6, 20, 25))
    assert (said.flops, said.read, said.source) == (
        2 * 4 * 16 * 25,
        384 + 20 * 64,
        "shapes and step label",
    )
    with pytest.raises(NoWorkError):
        paged(4, 3, 9, Lengths(7, 20, 25))  # the label of another step


CHOSEN = call("_moe_C::topk_softmax", "f32[4,2]*3 bf16[4,8] True")
SUM = call("_moe_C::moe_sum", "bf16[4,2,10] bf16[4,10]")
GATE = call("_C::silu_and_mul", "bf16[8,16] bf16[8,32]")
SHARED_GATE = call("_C::silu_and_mul", "bf16[4,99] bf16[4,198]")
PLAIN = call("aten::relu_", "bf16[8,16]")


def allocated(*sizes):
    return parse_call("aten::empty", None, None, None, json.dumps([str(list(sizes)), "15"]))


@pytest.mark.parametrize(
    ("inside", "columns"),
    [
        ((CHOSEN, GATE), 2),
        ((SUM, SHARED_GATE, GATE), 2),
        ((CHOSEN, SUM, PLAIN), 1),
        ((allocated(4, 2), GATE), 2),
    ],
)
def test_experts_take_their_sizes_from_the_calls_inside(inside, columns):
    found = work_of(call("vllm::moe_forward", "bf16[4,10] bf16[4,8] None", inside=inside))
    experts = 8 * (1 - 0.75**4)
    assert found.flops == 2 * 8 * (columns + 1) * 16 * 10
    assert found.read == pytest.approx(
        experts * (columns + 1) * 16 * 10 * 2 + 4 * 10 * 2 + 8 * 16 * 2
    )
    assert found.written == 8 * (columns * 16 + 10) * 2
    assert found.assumed


def test_an_index_in_a_list_is_found_inside_of_a_call_that_takes_whole_rows():
    rows, kernel = (call("aten::index", "bf16[100,16] None"), "vectorized_gather_kernel<16, long>")
    inside = (call("aten::reshape", "i64[5] None"),)
    found = work_of(replace(rows, inside=inside, kernel=kernel))
    assert (found.read, found.written) == (5 * 16 * 2 + 5 * 8, 5 * 16 * 2)
    for other in ({"inside": inside}, {"kernel": kernel}, {"inside": inside * 2, "kernel": kernel}):
        with pytest.raises(NoWorkError):
            work_of(replace(rows, **other))


def test_experts_are_counted_where_the_tokens_are_routed():
    routed_inside = "bf16[4,10]*2 None"  # the router is inside of the call
    found = work_of(call("vllm::moe_forward", routed_inside, inside=(CHOSEN, GATE)))
    assert found == work_of(
        call("vllm::moe_forward", "bf16[4,10] bf16[4,8] None", inside=(CHOSEN, GATE))
    )
    with pytest.raises(NoWorkError):
        work_of(call("vllm::moe_forward", routed_inside, inside=(SUM, GATE)))


MAP = call("aten::index", "i32[8] None")


def test_experts_that_are_a_part_of_all_have_no_work():
    assert (
        work_of(
            call(
                "vllm::inplace_fused_experts",
                "bf16[4,10] bf16[4,32,10] bf16[4,10,16] f32[4,2] i32[4,2] False -1",
            )
        ).flops
        == 2 * 8 * 3 * 16 * 10
    )
    align = call("_moe_C::moe_align_block_size", "i32[4,2]*6 i32[8]")
    for spread in (
        *(
            call("vllm::moe_forward", "bf16[4,10] bf16[4,8] None", inside=(CHOSEN, GATE, each))
            for each in (MAP, align)
        ),
        call(
            "vllm::inplace_fused_experts",
            "bf16[4,10] bf16[4,32,10] bf16[4,10,16] f32[4,2] i32[4,2] False 8",
        ),
        call(
            "vllm::inplace_fused_experts",
            "bf16[4,10] bf16[4,32,10] bf16[4,10,16] f32[4,2] i32[4,2] False None i32[8]",
        ),
        call(
            "sglang::inplace_fused_experts",
            "bf16[4,10] bf16[4,32,10] bf16[4,10,16] f32[4,2] i32[4,2] 2.5 True",
        ),
    ):
        with pytest.raises(NoWorkError, match="expert parallel"):
            work_of(spread)


def test_experts_of_four_bits_by_the_name_of_their_kernel():
    # rows are filled up to 12 for both products of 8 routed tokens
    inside = (allocated(4, 2), allocated(4, 10), allocated(12, 16), allocated(12, 10), allocated(8))
    ogs = (
        allocated(4, 2),
        allocated(1, 8, 16),
        allocated(1, 1, 8, 10),
    )  # matrices in batches of one
    found = work_of(
        call(
            "vllm::moe_forward",
            "bf16[4,10] bf16[4,8] None",
            inside=ogs,
            kernel="_matmul_ogs_bf16xbf16xmxfp4_swiglu",
        )
    )
    assert (found.flops, found.matrix) == (2 * 8 * 3 * 16 * 10, "bf16")
    kernel = "bmm_MxE4m3_MxE2m1MxE4m3_Fp32_t128x16x256u2_swiGlu_sm100"
    found = work_of(
        call("vllm::moe_forward", "bf16[4,10] bf16[4,8] None", inside=inside, kernel=kernel)
    )
    assert (found.flops, found.matrix) == (2 * 8 * 3 * 16 * 10, "fp8")
    weights = 8 * (1 - 0.75**4) * 3 * 16 * 10 * 17 / 32
    assert found.read == pytest.approx(weights + 4 * 10 * 2 + 8 * 16 * 2)


@pytest.mark.parametrize(
    "inside",
    [(), (CHOSEN,), (GATE,), (CHOSEN, SHARED_GATE), (allocated(4, 2), allocated(4, 3), GATE)],
)
def test_experts_without_all_sizes_have_no_work(inside):
    with pytest.raises(NoWorkError):
        work_of(call("vllm::moe_forward", "bf16[4,10] bf16[4,8] None", inside=inside))


def test_a_mixer_takes_the_sizes_of_its_states_from_inside():
    given = "bf16[5,30] bf16[5,12] None"  # 12 is 3 heads of 4, each with 2 states
    taps = call("aten::transpose", "bf16[9,3,16] 1 2")
    put = call("aten::_index_put_impl_", "bf16[9,3,4,2] None bf16[2,3,4,2] False*2")
    prompts = work_of(call("vllm::mamba_mixer2", given, inside=(taps, put)))
    flops, states = 5 * (6 * 24 + 2 * 4 * 16), 24 * 2 + 3 * 16 * 2
    assert (prompts.flops, prompts.read, prompts.written) == (
        flops,
        5 * 19 * 2,
        5 * 12 * 2 + 2 * states,
    )
    last = call("aten::_index_put_impl_", "bf16[9,3,4,2] None bf16[3,4,2] False*2")
    assert (
        work_of(call("vllm::mamba_mixer2", given, inside=(taps, last))).written
        == 5 * 12 * 2 + states
    )
    one_each = work_of(
        call("vllm::mamba_mixer2", given, inside=(taps, call("aten::to", "f32[3,4,2]")))
    )
    assert (one_each.flops, one_each.read) == (flops, 5 * 19 * 2 + 5 * states)
    with pytest.raises(NoWorkError):
        work_of(call("vllm::mamba_mixer2", given, inside=(taps,)))


def test_delta_attention_of_kimi():
    given = "bf16[5,12]*3 bf16[1,5,3,4] f32[1,5,3] bf16[1,5,3,4] None"
    put = call("aten::_index_put_impl_", "f32[9,3,4,4] None f32[2,3,4,4] False*2")
    found = work_of(call("vllm::kda_attention", given, inside=(put,)))
    assert (found.flops, found.read, found.written) == (6 * 5 * 3 * 16, 4 * 120 + 60, 120 + 384)
    assert work_of(call("vllm::kda_attention", given)).written == 120 + 5 * 3 * 16 * 4


@pytest.mark.parametrize(
    ("operator", "shapes", "types"),
    [
        ("aten::mm", None, None),
        ("aten::mm", "[[4, 8], [8, 2]]", None),
        ("aten::mm", "{", "["),
        ("aten::mm", "[[4, 8], [8, 2]]", '["float"]'),
        ("aten::mm", "[[4, 8], [7, 2]]", '["float", "float"]'),
        ("aten::mm", "[[4, 8, 1], [8, 2]]", '["float", "float"]'),
        ("aten::mm", '[["s0", 8], [8, 2]]', '["float", "float"]'),
        ("aten::mm", "[[-4, 8], [8, 2]]", '["float", "float"]'),
        ("aten::mm", "[[4, 8], [8, 2]]", '["float", "acme::int3"]'),
        ("aten::mm", "[[[4, 8], [8, 2]]]", '["TensorList"]'),
        ("aten::mm", "[[], []]", '["", ""]'),
        ("aten::add", "[[4, 8], [3, 8]]", '["float", "float"]'),
        ("aten::cat", "[[[4, 8], [2, 8]], []]", '["TensorList", "Scalar"]'),
        ("aten::index_select", "[[4, 8], [], [3]]", '["float", "Scalar", "long int"]'),
        ("aten::convolution", "[[2, 4, 6, 6], [8, 4, 3, 3], [8]]", '["float", "float", "float"]'),
        ("aten::convolution", "[[2, 4, 6, 6], [8, 4]]", '["float", "float"]'),
        (
            "aten::_flash_attention_forward",
            "[[6, 4, 8], [6, 4, 8], [6, 4, 8]]",
            '["float", "float", "float"]',
        ),
        # a mask, or what may be one; weights of other sizes; experts that do not fit
        ("aten::index", "[[4, 8], [[4]]]", '["float", ["bool"]]'),
        ("aten::index", "[[4, 8], [[4]]]", '["float", "TensorList"]'),
        ("aten::index", "[[4, 8], []]", '["float", "TensorList"]'),
        (
            "_C::awq_gemm",
            "[[3, 64], [64, 4], [2, 30], [2, 4]]",
            '["c10::Half", "int", "c10::Half", "int"]',
        ),
        ("_C::awq_gemm", "[[3, 64], [64, 4]]", '["c10::Half", "c10::Half"]'),
        (
            "_moe_C::moe_wna16_gemm",
            "[[2, 16], [2, 1, 8], [4, 8, 5], [4, 8, 1]]",
            '["c10::Half", "c10::Half", "unsigned char", "c10::Half"]',
        ),
        (
            "vllm::inplace_fused_experts",
            "[[2, 8], [4, 6, 4], [4, 8, 3], [2, 1], [2, 1]]",
            '["c10::Half", "c10::Half", "c10::Half", "float", "int"]',
        ),
        ("acme::mine", "[[4, 8]]", '["float"]'),
    ],
)
def test_what_a_recording_does_not_say_has_no_work(operator, shapes, types):
    with pytest.raises(NoWorkError):
        work_of(parse_call(operator, shapes, types))


def test_an_operator_can_be_registered_and_may_fail():
    before = list(calls.OPERATORS)
    mine = call("acme::mine", "bf16[4,8]")
    calls.register_operator(
        Operator("norm", "acme::mine", lambda given: CallWork(7, given.tensor(0).bytes, 0))
    )
    calls.register_operator(Operator("broken", "acme::broken", lambda given: 1 / 0))
    try:
        assert work_of(mine) == CallWork(7, 64, 0)
        assert calls.operator_categories(pl.Series(["acme::mine"])).to_list() == ["norm"]
        with pytest.raises(NoWorkError, match="ZeroDivisionError"):
            work_of(call("acme::broken", "bf16[4,8]"))
        with pytest.raises(LlmprofError):
            calls.register_operator(Operator("empty", " "))
    finally:
        calls.OPERATORS[:] = before
        calls.forget_operators()


def test_each_line_says_where_its_signature_is_published():
    names = [name for line in calls.OPERATORS for name in line.names.split()]
    assert len(names) == len(set(names))
    assert all(all(line.signatures.split("; ")) for line in calls.OPERATORS)
    for cost in (line.work for line in calls.OPERATORS if line.work):
        inspect.signature(cost.rule).bind(None, *cost.places, **cost.named)


COUNTED = """
import json, torch
from torch.profiler import profile
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count
F = torch.nn.functional
r = torch.randn
runs = {
    "aten::mm": lambda: r(5, 7) @ r(7, 3),
    "aten::addmm": lambda: F.linear(r(5, 7), r(3, 7), r(3)),
    "aten::bmm": lambda: torch.bmm(r(2, 5, 7), r(2, 7, 3)),
    "aten::baddbmm": lambda: torch.baddbmm(r(2, 5, 3), r(2, 5, 7), r(2, 7, 3)),
    "aten::convolution": lambda: F.conv2d(r(2, 4, 9, 8), r(6, 2, 3, 2), r(6), (2, 1), (1, 0), (1, 2), groups=2),
    "aten::_scaled_dot_product_flash_attention_for_cpu": lambda: F.scaled_dot_product_attention(*[r(2, 3, 8, 16)] * 3),
}
out = []
for name, run in runs.items():
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        run()
    with profile(record_shapes=True) as made, torch.no_grad():
        run()
    made.export_chrome_trace("trace.json")
    events = [e for e in json.load(open("trace.json"))["traceEvents"] if e.get("name") == name]
    keys = ("Input Dims", "Input type", "Input Strides", "Concrete Inputs")
    flops = counter.get_total_flops()
    if "attention" in name:  # the counter does not know the operator of the CPU, but has its formula
        flops = sdpa_flop_count(*[(2, 3, 8, 16)] * 3)
    out.append([name, flops, *(json.dumps(events[0]["args"].get(key)) for key in keys)])
print(json.dumps(out))
"""


@pytest.mark.slow
def test_flops_are_those_of_torch(engine_python, tmp_path):
    """Of an addend torch counts no addition, llmprof one an element of the result."""
    said = subprocess.run(
        [engine_python, "-c", COUNTED], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    rows = json.loads(said.stdout.splitlines()[-1])
    assert len(rows) == 6
    addends = {"aten::addmm": 5 * 3, "aten::baddbmm": 2 * 5 * 3}
    for name, flops, *texts in rows:
        assert work_of(parse_call(name, *texts)).flops == flops + addends.get(name, 0), name
