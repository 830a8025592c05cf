"""Work of the products of experts and of scans, against figures computed by hand."""

import pytest
from msgspec.structs import replace

from llmprof.theory.calls import NoWorkError, work_of
from tests.theory.notation import call

# 5 tokens, each to 2 of 4 experts: 4 (1 - (1/2)^5) = 3.875 of them; 64 numbers a token, inner size
# 32 with a gate
TOUCHED = 3.875
BOTH = 2 * 10 * (64 + 32) * 64
TOKENS, RESULT = 5 * 64 * 2, 5 * 64 * 2


@pytest.mark.parametrize(
    ("operator", "given", "flops", "read", "written", "matrix"),
    [
        # activations between both products are written and read
        (
            "vllm::fused_experts",
            "bf16[5,64] bf16[4,64,64] bf16[4,64,32] f32[5,2] i64[5,2] None*4 -1",
            BOTH,
            TOUCHED * 64 * (64 + 32) * 2 + TOKENS + 80 + 10 * 32 * 2,
            10 * (64 + 64) * 2,
            "bf16",
        ),
        # AITER, weights of 8 bits with a scale for each column
        (
            "aiter::fused_moe_",
            "bf16[5,64] f8[4,64,64] f8[4,64,32] f32[5,2] i32[5,2] None*4 f32[4,64,1]*2",
            BOTH,
            TOUCHED * (64 * (64 + 32) + 2 * 64 * 4) + TOKENS + 40,
            RESULT,
            "fp8",
        ),
        # of 4 bits, two in an element
        (
            "vllm::rocm_aiter_fused_moe",
            "bf16[5,64] f4[4,64,32] f4[4,64,16] f32[5,2] i32[5,2]",
            BOTH,
            TOUCHED * 64 * (64 + 32) / 2 + TOKENS + 40,
            RESULT,
            "fp4",
        ),
        # of 4 bits, eight in an element, without a gate
        (
            "aiter::fused_moe_",
            "bf16[5,64] u32[4,32,8] u32[4,64,4] f32[5,2] i32[5,2]",
            2 * 10 * 64 * 64,
            TOUCHED * 64 * 64 / 2 + TOKENS + 40,
            RESULT,
            "bf16",
        ),
        (
            "aiter::fmoe_fp8_blockscale_g1u1",
            "bf16[5,64] f8[5,64] f8[4,64,64] f8[4,64,32] i32[99] f32[99] i32[9] i32[2] 2",
            BOTH,
            TOUCHED * 64 * (64 + 32) + 5 * 64,
            RESULT,
            "fp8",
        ),
        # packed tokens and weights of NVFP4, sixteen in an element
        (
            "trtllm::fused_moe",
            "u8[5,32] i32[5,2] f32[5,2] i64[4,64,4] None i64[4,64,2] None 15 None*6 1 0 1",
            BOTH,
            TOUCHED * 64 * (64 + 32) / 2 + 5 * 32 + 40,
            RESULT,
            "fp4",
        ),
        (
            "trtllm::fused_moe",
            "bf16[5,64] i32[5,2] f32[5,2] bf16[4,64,64] bf16[4,64,32] 15 None*2 4 3 1",
            BOTH,
            TOUCHED * 64 * (64 + 32) * 2 + TOKENS + 40,
            RESULT,
            "bf16",
        ),
        (
            "trtllm::fp8_block_scale_moe_runner",
            "f32[5,4] bf16[4] f8[5,64] f32[1,5] f8[4,64,64] f32[4,1,1] f8[4,64,32] f32[4,1,1] 4 2 None*2 32 0 4",
            BOTH,
            TOUCHED * (64 * (64 + 32) + 2 * 4) + 5 * 64,
            RESULT,
            "fp8",
        ),
        # biases of the first weights stand before the second weights: 64 numbers of 4 bytes an
        # expert
        (
            "trtllm::fp4_block_scale_moe_runner",
            "f32[5,4] None u8[5,32] f8[20] u8[4,64,32] f8[4,64,4] f32[4,64] None*3 u8[4,64,16] f8[4,64,2] None*4 4 2 None*2 32 0 4",
            BOTH,
            TOUCHED * (64 * (64 + 32) * 9 / 16 + 64 * 4) + 5 * 32,
            RESULT,
            "fp4",
        ),
        (
            "vllm::flashinfer_fused_moe_bf16",
            "f32[5,4] bf16[4] bf16[5,64] bf16[4,64,64] bf16[4,64,32] 4 2 None*2 32 0 4",
            BOTH,
            TOUCHED * 64 * (64 + 32) * 2 + TOKENS,
            RESULT,
            "bf16",
        ),
        # the first product of SGLang's kernel, and the second, whose rows are those of the tokens
        # for each expert
        (
            "sglang_profiler::fused_moe_triton_kernels_invoke_fused_moe_kernel_427",
            "bf16[5,64] bf16[4,64,64] None bf16[10,64] None*3 f32[5,2] i32[5,2]",
            2 * 10 * 64 * 64,
            TOKENS + TOUCHED * 64 * 64 * 2,
            10 * 64 * 2,
            "bf16",
        ),
        (
            "sglang_profiler::fused_moe_triton_kernels_invoke_fused_moe_kernel",
            "bf16[10,32] f8[4,64,32] None bf16[5,2,64] None*3 f32[5,2] i32[5,2]",
            2 * 10 * 64 * 32,
            10 * 32 * 2 + TOUCHED * 64 * 32,
            10 * 64 * 2,
            "fp8",
        ),
        # AITER's two stages: the gate's result has half the columns
        (
            "aiter::ck_moe_stage1",
            "f8[5,64] f8[4,64,64] f8[4,64,32] i32[99] i32[9] i32[2] bf16[5,2,32] 2",
            2 * 10 * 64 * 64,
            5 * 64 + TOUCHED * 64 * 64,
            10 * 32 * 2,
            "fp8",
        ),
        (
            "aiter::ck_moe_stage2",
            "f8[5,2,32] f8[4,64,64] f8[4,64,32] i32[99] i32[9] i32[2] bf16[5,64] 2",
            2 * 10 * 64 * 32,
            10 * 32 + TOUCHED * 64 * 32,
            RESULT,
            "fp8",
        ),
        # scales of 32 numbers in 128 rows of each of 4 experts: 256 x 2 of a byte
        (
            "aiter::moe_cktile2stages_gemm1_ck",
            "bf16[5,64] f4[4,64,32] bf16[5,2,32] i32[99] i32[9] i32[2] 2 None*4 f8e8[256,2]",
            2 * 10 * 64 * 64,
            TOKENS + TOUCHED * (64 * 32 + 64 * 2),
            10 * 32 * 2,
            "fp4",
        ),
        (
            "aiter::moe_cktile2stages_gemm2_ck",
            "bf16[5,2,32] f4[4,64,16] bf16[5,64] i32[99] i32[9] i32[2] 2",
            2 * 10 * 64 * 32,
            10 * 32 * 2 + TOUCHED * 64 * 16,
            RESULT,
            "fp4",
        ),
        # 8 rows for all 4 groups; sizes of the products are no scales
        (
            "_C::cutlass_moe_mm",
            "bf16[8,64] f8[8,64] f8[4,64,64] f32[8,1] f32[4,64,1] i32[4] i32[4,3] i64[4]*3",
            2 * 8 * 64 * 64,
            8 * 64 + 4 * 64 * (64 + 4),
            8 * 64 * 2,
            "fp8",
        ),
        (
            "_C::cutlass_fp4_group_mm",
            "bf16[8,64] u8[8,32] u8[4,64,32] f8[512,4] f8[4,64,4] f32[4] i32[4,3] i32[4]*2",
            2 * 8 * 64 * 64,
            8 * 32 + 4 * 64 * (32 + 4),
            8 * 64 * 2,
            "fp4",
        ),
        # 3 rows can meet 3 groups; weights with a row for each input
        (
            "sgl_kernel::fp8_blockwise_scaled_grouped_mm",
            "bf16[3,16] i64[4]*5 f8[3,64] f8[4,64,16]",
            2 * 3 * 64 * 16,
            3 * 64 + 3 * 64 * 16,
            3 * 16 * 2,
            "fp8",
        ),
        (
            "sgl_kernel::cutlass_w4a8_moe_mm",
            "bf16[8,64] f8[8,64] i8[4,64,32]",
            2 * 8 * 64 * 64,
            8 * 64 + 4 * 64 * 32,
            8 * 64 * 2,
            "fp8",
        ),
        (
            "aten::_scaled_grouped_mm",
            "f8[8,64] f8[4,64,16] f32[8] f32[4,16] i32[4]",
            2 * 8 * 64 * 16,
            8 * 64 + 4 * 16 * (64 + 4),
            8 * 16 * 2,
            "fp8",
        ),
        # gradients of the weights of 4 groups
        (
            "aten::_grouped_mm",
            "bf16[16,8] bf16[8,64] i32[4]",
            2 * 8 * 64 * 16,
            (8 * 16 + 8 * 64) * 2,
            4 * 16 * 64 * 2,
            "bf16",
        ),
        (
            "primus_turbo::grouped_gemm_variable_k_impl",
            "bf16[8,16] bf16[8,64] i64[4] i64[5]",
            2 * 8 * 64 * 16,
            (8 * 16 + 8 * 64) * 2,
            4 * 16 * 64 * 2,
            "bf16",
        ),
        (
            "fbgemm::f8f8bf16_rowwise_grouped_stacked",
            "f8[8,64] f8[4,16,64] f32[8] f32[4,16] i64[4]",
            2 * 8 * 64 * 16,
            8 * 64 + 4 * 16 * (64 + 4),
            8 * 16 * 2,
            "fp8",
        ),
        (
            "GroupedGemm",
            "bf16[8,64] bf16[4,16,64] i64[4] True",
            2 * 8 * 64 * 16,
            (8 * 64 + 4 * 16 * 64) * 2,
            8 * 16 * 2,
            "bf16",
        ),
        (
            "primus_turbo::grouped_gemm_impl",
            "bf16[8,64] bf16[4,16,64] i64[4] i64[5]",
            2 * 8 * 64 * 16,
            (8 * 64 + 4 * 16 * 64) * 2,
            8 * 16 * 2,
            "bf16",
        ),
    ],
)
def test_work_of_experts(operator, given, flops, read, written, matrix):  # noqa: PLR0917
    found = work_of(call(operator, given))
    assert (found.flops, found.read, found.written, found.matrix) == (
        flops,
        pytest.approx(read),
        written,
        matrix,
    )


@pytest.mark.parametrize(
    ("operator", "given"),
    [
        # a mask of the experts here, tokens beside others, a part of the experts, parallel experts
        ("aiter::fused_moe_", "bf16[5,64] bf16[4,64,64] bf16[4,64,32] f32[5,2] i32[5,2] i32[9]"),
        ("aiter::fused_moe_", "bf16[5,64] bf16[4,64,64] bf16[4,64,32] f32[6,2] i32[6,2]"),
        (
            "trtllm::fp8_block_scale_moe_runner",
            "f32[5,8] bf16[4] f8[5,64] f32[1,5] f8[4,64,64] f32[4,1,1] f8[4,64,32] None 8 2 None*2 32 0 4",
        ),
        (
            "trtllm::fused_moe",
            "bf16[5,64] i32[5,2] f32[5,2] bf16[4,64,64] bf16[4,64,32] 15 None*2 1 0 2",
        ),
        # how many experts a token has, sizes that do not fit, groups
        (
            "aiter::ck_moe_stage1",
            "f8[5,64] f8[4,64,64] f8[4,64,32] i32[99] i32[9] i32[2] bf16[5,2,32]",
        ),
        ("_C::cutlass_moe_mm", "bf16[8,16] f8[8,64] f8[4,64,64]"),
        (
            "trtllm::fp8_block_scale_moe_runner",
            "f32[5,4] bf16[4] f8[5,64] f32[1,5] f8[4,64,64] f32[4,1,1] f8[4,64,32] None 4 2 None*2 48 0 4",
        ),
        ("aten::_grouped_mm", "bf16[16,8] bf16[8,64]"),
        ("GroupedGemm", "bf16[8,64] bf16[4,16,64] i64[4] 2"),
        ("aten::_grouped_mm", "bf16[16,8] bf16[9,64] i32[4]"),
    ],
)
def test_experts_that_a_recording_does_not_say(operator, given):
    with pytest.raises(NoWorkError):
        work_of(call(operator, given))


# 2 sequences of 3 tokens: 4 heads of 8 with 16 states; z, x, B, C of one group and delta: 32 + 32 +
# 16 + 16 + 4
# 5 tokens of 2 sequences, 2 heads of keys of 4 and 4 of values of 6
STATE = 4 * 4 * 6
GIVEN, VALUES = 2 * 5 * 2 * 4 * 2 + 5 * 4 * 6 * 2, 5 * 4 * 6 * 2


@pytest.mark.parametrize(
    ("operator", "given", "flops", "read", "written", "matrix"),
    [
        (
            "SelectiveScanFn",
            "bf16[2,8,5]*2 f32[8,4] bf16[2,4,5]*2 f32[8] bf16[2,8,5] None*2 False",
            8 * 80 * 4,
            3 * 160 + 128 + 2 * 80,
            160,
            "",
        ),
        (
            "MambaChunkScanCombinedFn",
            "bf16[2,3,4,8] bf16[2,3,4] f32[4] bf16[2,3,1,16]*2 256 f32[4] bf16[2,3,4,8]",
            4 * 6 * 32 * 16,
            2 * 6 * 32 * 2 + 6 * 4 * 2 + 2 * 6 * 16 * 2,
            6 * 32 * 2,
            "bf16",
        ),
        (
            "MambaSplitConv1dScanCombinedFn",
            "bf16[2,3,100] bf16[64,4] bf16[64] bf16[4] f32[4]*2 256 None*5 1e-06 None*3 1 True",
            4 * 6 * 32 * 16,
            6 * 100 * 2 + 64 * 4 * 2,
            6 * 32 * 2,
            "bf16",
        ),
        (
            "DaoAILab::_causal_conv1d_fwd_cpp",
            "bf16[2,8,5] bf16[8,4] bf16[8] None bf16[2,8,3] bf16[2,8,5] bf16[2,8,3]",
            2 * 80 * 4,
            160 + 64 + 16 + 96,
            160 + 96,
            "",
        ),
        (
            "DaoAILab::_causal_conv1d_bwd_cpp",
            "bf16[2,8,5] bf16[8,4] bf16[8] bf16[2,8,5] None*3 bf16[2,8,5] f32[8,4] f32[8]",
            4 * 80 * 4,
            160 + 64 + 160,
            160 + 128 + 32,
            "",
        ),
        # the last 3 inputs of two sequences one after the other, of 9 that have a place
        (
            "sgl_kernel::causal_conv1d_fwd",
            "bf16[8,5] bf16[8,4] None bf16[9,8,3] i32[3]",
            2 * 40 * 4,
            80 + 64 + 96,
            80 + 96,
            "",
        ),
        (
            "_C::causal_conv1d_update",
            "bf16[5,8] bf16[9,8,3] bf16[8,4] bf16[8]",
            2 * 40 * 4,
            80 + 64 + 16 + 5 * 48,
            80 + 5 * 48,
            "",
        ),
        # vLLM's delta rule with the states of two sequences in a cache of 9, and fla's gated linear
        # attention
        (
            "FusedRecurrentFunction",
            "bf16[1,5,2,4]*2 bf16[1,5,4,6] f32[1,5,4] bf16[1,5,4] 0.5 f32[9,4,4,6] True i32[3] i32[2]",
            6 * 5 * STATE,
            GIVEN + 80 + 40 + 2 * STATE * 4,
            VALUES + 2 * STATE * 4,
            "bf16",
        ),
        (
            "FusedRecurrentFunction",
            "bf16[1,5,2,4]*2 bf16[1,5,4,6] None f32[1,5,4,4] None 0.5",
            4 * 5 * STATE,
            GIVEN + 320,
            VALUES,
            "bf16",
        ),
        (
            "ChunkGLAFunction",
            "bf16[1,5,2,4]*2 bf16[1,5,4,6] f32[1,5,4,4] 0.5 f32[2,4,4,6]",
            4 * 5 * STATE,
            GIVEN + 320 + 2 * STATE * 4,
            VALUES + 2 * STATE * 4,
            "bf16",
        ),
        (
            "ChunkDPLRDeltaRuleFunction",
            "bf16[1,5,2,4]*2 bf16[1,5,4,6] bf16[1,5,4,4]*3 0.5",
            8 * 5 * STATE,
            GIVEN + 3 * 160,
            VALUES,
            "bf16",
        ),
        (
            "sgl_kernel::lightning_attention_decode",
            "bf16[3,2,1,4]*3 f32[3,2,4,4] f32[2] bf16[3,2,1,4] f32[3,2,4,4]",
            4 * 96,
            3 * 48 + 384,
            48 + 384,
            "bf16",
        ),
    ],
)
def test_work_of_scans(operator, given, flops, read, written, matrix):  # noqa: PLR0917
    found = work_of(call(operator, given))
    assert (found.flops, found.read, found.written, found.matrix) == (flops, read, written, matrix)


def test_gated_delta_attention_takes_its_states_from_inside():
    mixed, gates = 5 * 40 * 2, 2 * 5 * 4 * 2
    one = call("FusedRecurrentFunction", "bf16[1,5,2,4]*2 bf16[1,5,4,6] None*3 f32[9,4,4,6]")
    put = call("aten::_index_put_impl_", "f32[9,4,4,6] None f32[2,4,4,6]")
    whole = call("vllm::gdn_attention_core", "bf16[5,40] bf16[5,4]*2 bf16[5,4,6]")
    generated, begun = (work_of(replace(whole, inside=(each,))) for each in (one, put))
    assert (generated.flops, generated.read) == (6 * 5 * STATE, mixed + gates + 5 * STATE * 4)
    assert (begun.read, begun.written) == (mixed + gates, VALUES + 2 * STATE * 4)
    with pytest.raises(NoWorkError):
        work_of(whole)


@pytest.mark.parametrize(
    ("operator", "given"),
    [
        ("MambaSplitConv1dScanCombinedFn", "bf16[2,3,100] bf16[64,4] bf16[64] bf16[4] f32[4]*2"),
        (
            "MambaSplitConv1dScanCombinedFn",
            "bf16[2,3,100] bf16[64,4] bf16[64] bf16[4] f32[4]*2 None*10 3",
        ),
        ("_C::causal_conv1d_fwd", "bf16[9,5] bf16[8,4]"),
        ("SelectiveScanFn", "bf16[2,9,5]*2 f32[8,4]"),
    ],
)
def test_scans_that_a_recording_does_not_say(operator, given):
    with pytest.raises(NoWorkError):
        work_of(call(operator, given))
