"""Work of attention and of products of libraries, by hand:

FlashAttention, AITER, vLLM, SGLang and others.
"""

import pytest

from llmprof.theory.calls import Lengths, NoWorkError, work_of
from llmprof.theory.calls.attention import seen
from tests.theory.notation import call

DENSE = 2 * 4 * 16  # operations for each pair of one sequence, of all heads
MOVED = 2 * 6 * 4 * 8 * 2, 2 * 2 * 6 * 2 * 8 * 2  # bytes of the queries; of keys and values
KERNEL = "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<8, Flash_kernel_traits<8> >, false, true, false>(x)"


def three(causal, left, *, ends, longest, most, pages):
    """A call of FlashAttention 3."""
    cache = "bf16[50,16,2,8]*2" if pages else "bf16[12,2,8]*2"
    rest = f"None*4 i32[{ends}]*2 None*3 {longest} {most} {'i32[3,9]' if pages else None} None*8"
    return call("flash_attn_3::fwd", "bf16[12,4,8]", cache, rest, f"0.1 {causal} {left} -1")


@pytest.mark.parametrize(
    ("queries", "keys", "before", "behind", "pairs"),
    [
        (6, 10, None, None, 60),
        (6, 10, None, 0, 6 * 10 - 18),  # the last query sees all keys
        (10, 10, None, 0, 50),
        (10, 6, None, 0, 18),  # the first four queries see none
        (1, 10, None, 0, 10),
        (1, 10, 3, 0, 4),
        (4, 10, 3, 0, 12),
        (10, 10, 3, 0, 50 - 49 / 2),  # a triangle of 7 is out of the window
        (10, 10, 3, 2, 100 - 64 / 2 - 49 / 2),
        (10, 10, 100, 0, 50),
    ],
)
def test_pairs_that_masks_and_windows_leave(queries, keys, before, behind, pairs):
    assert seen(queries, keys, before, behind) == pairs


@pytest.mark.parametrize(
    ("given", "flops", "read", "written", "matrix"),
    [
        (
            call(
                "flash_attn::_flash_attn_forward", "bf16[2,6,4,8] bf16[2,6,2,8]*2 0. 0.1 False -1*2"
            ),
            2 * DENSE * 36,
            sum(MOVED),
            MOVED[0],
            "bf16",
        ),
        (
            call(
                "flash_attn::_flash_attn_forward", "bf16[2,6,4,8] bf16[2,6,2,8]*2 0. 0.1 True -1*2"
            ),
            2 * DENSE * 18,
            sum(MOVED),
            MOVED[0],
            "bf16",
        ),
        # three keys before each query: of the triangle of 6 one of 3 is left out
        (
            call("aiter::mha_fwd", "bf16[2,6,4,8] bf16[2,6,2,8]*2 0. 0.1 True 3 0"),
            2 * DENSE * (18 - 4.5),
            sum(MOVED),
            MOVED[0],
            "bf16",
        ),
        # the autograd function of an older version records its tensors only; the kernel's name says
        # the mask
        (
            call("FlashAttnFunc", "bf16[2,6,4,8] bf16[2,6,2,8]*2", kernel=KERNEL),
            2 * DENSE * 18,
            sum(MOVED),
            MOVED[0],
            "bf16",
        ),
        (
            call("FlashAttnFunc", "bf16[2,6,4,8] bf16[2,6,2,8]*2"),
            2 * DENSE * 36,
            sum(MOVED),
            MOVED[0],
            "bf16",
        ),
        # two packed sequences of 6
        (
            call(
                "flash_attn::_flash_attn_varlen_forward",
                "bf16[12,4,8] bf16[12,2,8]*2 i32[3]*2 6*2 0. 0.1 True -1*2",
            ),
            2 * DENSE * 18,
            sum(MOVED),
            MOVED[0],
            "bf16",
        ),
        (
            call(
                "aiter::mha_varlen_fwd",
                "bf16[12,4,8] bf16[12,2,8]*2 i32[3]*2 6*2 0 0. 0.1 0. False True -1*2",
            ),
            2 * DENSE * 18,
            sum(MOVED),
            MOVED[0],
            "bf16",
        ),
        # one of 8, so that the other has 4
        (
            call(
                "flash_attn::_flash_attn_varlen_forward",
                "bf16[12,4,8] bf16[12,2,8]*2 i32[3]*2 8*2 0. 0.1 True -1*2",
            ),
            DENSE * (32 + 8),
            sum(MOVED),
            MOVED[0],
            "bf16",
        ),
        (
            three("True", "-1", ends=3, longest=6, most=6, pages=False),
            2 * DENSE * 18,
            sum(MOVED),
            MOVED[0],
            "bf16",
        ),
        # a prompt of 12 over a cache of 20 of its tokens; with a window the first 4 are not read
        (
            three("True", "-1", ends=2, longest=12, most=20, pages=True),
            DENSE * (240 - 72),
            MOVED[0] + 20 * 2 * 16 * 2,
            MOVED[0],
            "bf16",
        ),
        (
            three("True", "4", ends=2, longest=12, most=20, pages=True),
            DENSE * 12 * 4,
            MOVED[0] + 16 * 2 * 16 * 2,
            MOVED[0],
            "bf16",
        ),
        # five products in place of two; the result and its gradient are read as well, and three
        # gradients written
        (
            call(
                "flash_attn::_flash_attn_backward",
                "bf16[2,6,4,8]*2 bf16[2,6,2,8]*2 bf16[2,6,4,8] f32[2,4,6] bf16[2,6,4,8] bf16[2,6,2,8]*2 0. 0.1 True -1*2",
            ),
            2 * 2 * 4 * 40 * 18,
            sum(MOVED) + 2 * MOVED[0],
            sum(MOVED),
            "bf16",
        ),
        (
            call(
                "aiter::mha_bwd",
                "bf16[2,6,4,8]*2 bf16[2,6,2,8]*2 bf16[2,6,4,8] f32[2,4,6] 0. 0.1 False -1*2",
            ),
            2 * 2 * 4 * 40 * 36,
            sum(MOVED) + 2 * MOVED[0],
            sum(MOVED),
            "bf16",
        ),
        # 12 sequences with 300 keys, of which a window of 10 shows 120
        (
            call(
                "_vllm_fa3_C::fwd",
                "bf16[12,4,8] bf16[50,16,2,8]*2 None*4 i32[13] None*4 1 99 i32[12,9] None*8 0.1 True 9 0",
                lengths=Lengths(12, 300, 300),
            ),
            DENSE * 120,
            MOVED[0] + 120 * 2 * 16 * 2,
            MOVED[0],
            "bf16",
        ),
        (
            call(
                "_C::paged_attention_v1",
                "bf16[12,4,8]*2 bf16[50,2,1,16,8] bf16[50,2,8,16] 2 0.1",
                lengths=Lengths(12, 300, 300),
            ),
            DENSE * 300,
            MOVED[0] + 300 * 2 * 16 * 2,
            MOVED[0],
            "bf16",
        ),
        # latents of 16, of which 12 are the value; 4 heads
        (
            call(
                "_flashmla_C::fwd_kvcache_mla",
                "bf16[3,1,4,16] bf16[50,64,1,16] 12 i32[3] i32[3,9] 0.1 True i32[8] i32[4] False None",
                lengths=Lengths(3, 90, 90),
            ),
            2 * 4 * 28 * 90,
            3 * 4 * 16 * 2 + 90 * 16 * 2,
            3 * 4 * 12 * 2,
            "bf16",
        ),
        (
            call(
                "sgl_kernel::cutlass_mla_decode",
                "bf16[3,4,12]*2 bf16[3,4,4] bf16[50,64,16] i32[3] i32[3,9] u8[99]",
                lengths=Lengths(3, 90, 90),
            ),
            2 * 4 * 28 * 90,
            3 * 4 * 16 * 2 + 90 * 16 * 2,
            3 * 4 * 12 * 2,
            "bf16",
        ),
        (call("aten::_int_mm", "i8[4,8] i8[8,2]"), 128, 32 + 16, 32, "int8"),
        # 4 x 8 times (2 x 8) turned, of 8 bits, with scales; into 16 bits
        (
            call(
                "vllm::w8a8_triton_block_scaled_mm_func",
                "f8[4,8] f8[2,8] f32[4,1] f32[1,1] [128,128]",
            ),
            128,
            32 + 16 + 16 + 4,
            16,
            "fp8",
        ),
        (
            call("vllm::fp8_gemm_nt_op", "f8[4,8] f32[4,1] f8[2,8] f32[1,1] f32[4,2]"),
            128,
            32 + 16 + 16 + 4,
            32,
            "fp8",
        ),
        (call("bitsandbytes::int8_linear_matmul", "i8[4,8] i8[2,8]"), 128, 48, 32, "int8"),
        # two numbers in an element
        (call("aiter::gemm_a4w4", "u8[4,8] u8[2,8] u8[4,1] u8[2,1]"), 256, 32 + 16 + 6, 16, "fp4"),
        (
            call("_C::cutlass_scaled_fp4_mm", "bf16[4,2] u8[4,8] u8[2,8] f8[4,1] f8[2,1] f32[1]"),
            256,
            32 + 16 + 6,
            16,
            "fp4",
        ),
        (call("sgl_kernel::dsv3_router_gemm", "f32[4,2] bf16[4,8] bf16[2,8]"), 128, 96, 32, "bf16"),
        # a of 8 x 4 turned, b of 2 x 8: the inner size is 8
        (
            call("tex_ts::te_gemm_ts", "f8[4,8] None 0*2 True f8[2,8] None 0*2 False bf16[2,4]"),
            128,
            32 + 16,
            16,
            "fp8",
        ),
        (
            call("aten::_weight_int4pack_mm", "bf16[4,64] i32[1,1,32,4] 32 bf16[2,8,2]"),
            2 * 4 * 8 * 64,
            512 + 512 + 64,
            64,
            "bf16",
        ),
        # each of 3 x 3 inputs over 3 x 3 taps, with stride 2: 5 x 5 results when one is cut at each
        # side
        (
            call(
                "aten::convolution", "bf16[2,8,3,3] bf16[8,4,3,3] None [2,2] [1,1]*2 True [0,0] 1"
            ),
            2 * 2 * 8 * 9 * 36,
            288 + 576,
            2 * 4 * 25 * 2,
            "bf16",
        ),
    ],
)
def test_work_by_hand(given, flops, read, written, matrix):
    found = work_of(given)
    assert (found.flops, found.read, found.written, found.matrix) == (flops, read, written, matrix)


@pytest.mark.parametrize(
    "given",
    [
        three(
            "True", "-1", ends=3, longest=7, most=99, pages=True
        ),  # lengths differ, and no label says them
        call("FlashAttnVarlenFunc", "bf16[12,4,8] bf16[12,2,8]*2 i32[3]*2"),
        call("sgl_kernel::fwd_kvcache_mla", "bf16[3,1,4,16] u8[50,64,1,20] 12 i32[3]"),
        call("vllm::fp8_gemm_nt_op", "f8[4,8] f32[4,1] f8[2,9]"),
        call("_C::cutlass_scaled_fp4_mm", "bf16[4,2] u8[4,8] u8[3,8]"),
        call("tex_ts::te_gemm_ts", "f8[4,8] None 0*2 True f8[2,9] None 0*2 False bf16[2,4]"),
        call("_C::paged_attention_v1", "i64[12,4,8]*2 bf16[50,2,1,16,8] None 2"),
    ],
)
def test_what_a_call_does_not_say_has_no_work(given):
    with pytest.raises(NoWorkError):
        work_of(given)
