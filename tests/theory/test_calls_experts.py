"""Work of the products of experts and of scans, against figures computed by hand."""

import json
from dataclasses import replace

import pytest

from llmprof.theory.calls import NoWorkError, parse_call, work_of

BF16, FP32, I32, I64, FP8, FP4, U8 = (
    "c10::BFloat16",
    "float",
    "int",
    "long int",
    "c10::Float8_e4m3fn",
    "c10::Float4_e2m1fn_x2",
    "unsigned char",
)


def a_call(operator, shapes, types, inputs=None):
    """A call with some numbers by their places; arguments beyond the tensors are numbers, too."""
    inputs = inputs or {}
    size = max(len(shapes), *(place + 1 for place in inputs)) if inputs else len(shapes)
    shapes = shapes + [[]] * (size - len(shapes))
    types = types + [""] * (size - len(types))
    texts = (shapes, types, [[]] * size, [inputs.get(place, "") for place in range(size)])
    return parse_call(operator, *(json.dumps(each) for each in texts))


# 5 tokens, each to 2 of 4 experts: 4 (1 - (1/2)^5) = 3.875 of them; 64 numbers a token, inner size
# 32 with a gate
TOUCHED = 3.875
WEIGHTS = [[4, 64, 64], [4, 64, 32]]
BOTH = 2 * 10 * (64 + 32) * 64
CHOSEN = [[5, 2], [5, 2]]
TOKENS, RESULT = 5 * 64 * 2, 5 * 64 * 2
PACKED = [[4, 64, 32], [4, 64, 16]]
RUNNER = {8: "4", 9: "2", 12: "32", 13: "0", 14: "4"}


@pytest.mark.parametrize(
    ("operator", "shapes", "types", "inputs", "flops", "read", "written", "matrix"),
    [
        # activations between both products are written and read
        (
            "vllm::fused_experts",
            [[5, 64], *WEIGHTS, *CHOSEN],
            [BF16] * 3 + [FP32, I64],
            {9: "-1"},
            BOTH,
            TOUCHED * 64 * (64 + 32) * 2 + TOKENS + 80 + 10 * 32 * 2,
            10 * (64 + 64) * 2,
            "bf16",
        ),
        # AITER, weights of 8 bits with a scale for each column
        (
            "aiter::fused_moe_",
            [[5, 64], *WEIGHTS, *CHOSEN, [], [], [], [], [4, 64, 1], [4, 64, 1]],
            [BF16, FP8, FP8, FP32, I32, "", "", "", "", FP32, FP32],
            {},
            BOTH,
            TOUCHED * (64 * (64 + 32) + 2 * 64 * 4) + TOKENS + 40,
            RESULT,
            "fp8",
        ),
        # of 4 bits, two in an element
        (
            "vllm::rocm_aiter_fused_moe",
            [[5, 64], *PACKED, *CHOSEN],
            [BF16, FP4, FP4, FP32, I32],
            {},
            BOTH,
            TOUCHED * 64 * (64 + 32) / 2 + TOKENS + 40,
            RESULT,
            "fp4",
        ),
        # of 4 bits, eight in an element, without a gate
        (
            "aiter::fused_moe_",
            [[5, 64], [4, 32, 8], [4, 64, 4], *CHOSEN],
            [BF16, "unsigned int", "unsigned int", FP32, I32],
            {},
            2 * 10 * 64 * 64,
            TOUCHED * 64 * 64 / 2 + TOKENS + 40,
            RESULT,
            "bf16",
        ),
        (
            "aiter::fmoe_fp8_blockscale_g1u1",
            [[5, 64], [5, 64], *WEIGHTS, [99], [99], [9], [2]],
            [BF16, FP8, FP8, FP8, I32, FP32, I32, I32],
            {8: "2"},
            BOTH,
            TOUCHED * 64 * (64 + 32) + 5 * 64,
            RESULT,
            "fp8",
        ),
        # packed tokens and weights of NVFP4, sixteen in an element
        (
            "trtllm::fused_moe",
            [[5, 32], *CHOSEN, [4, 64, 4], [], [4, 64, 2]],
            [U8, I32, FP32, I64, "", I64],
            {7: "15", 14: "1", 15: "0", 16: "1"},
            BOTH,
            TOUCHED * 64 * (64 + 32) / 2 + 5 * 32 + 40,
            RESULT,
            "fp4",
        ),
        (
            "trtllm::fused_moe",
            [[5, 64], *CHOSEN, *WEIGHTS],
            [BF16, I32, FP32, BF16, BF16],
            {5: "15", 8: "4", 9: "3", 10: "1"},
            BOTH,
            TOUCHED * 64 * (64 + 32) * 2 + TOKENS + 40,
            RESULT,
            "bf16",
        ),
        (
            "trtllm::fp8_block_scale_moe_runner",
            [[5, 4], [4], [5, 64], [1, 5], WEIGHTS[0], [4, 1, 1], WEIGHTS[1], [4, 1, 1]],
            [FP32, BF16, FP8, FP32, FP8, FP32, FP8, FP32],
            RUNNER,
            BOTH,
            TOUCHED * (64 * (64 + 32) + 2 * 4) + 5 * 64,
            RESULT,
            "fp8",
        ),
        # biases of the first weights stand before the second weights: 64 numbers of 4 bytes an
        # expert
        (
            "trtllm::fp4_block_scale_moe_runner",
            [
                [5, 4],
                [],
                [5, 32],
                [20],
                PACKED[0],
                [4, 64, 4],
                [4, 64],
                [],
                [],
                [],
                PACKED[1],
                [4, 64, 2],
            ],
            [FP32, "", U8, FP8, U8, FP8, FP32, "", "", "", U8, FP8],
            {place + 8: text for place, text in RUNNER.items()},
            BOTH,
            TOUCHED * (64 * (64 + 32) * 9 / 16 + 64 * 4) + 5 * 32,
            RESULT,
            "fp4",
        ),
        (
            "vllm::flashinfer_fused_moe_bf16",
            [[5, 4], [4], [5, 64], *WEIGHTS],
            [FP32, BF16] + [BF16] * 3,
            {place - 3: text for place, text in RUNNER.items()},
            BOTH,
            TOUCHED * 64 * (64 + 32) * 2 + TOKENS,
            RESULT,
            "bf16",
        ),
        # the first product of SGLang's kernel, and the second, whose rows are those of the tokens
        # for each expert
        (
            "sglang_profiler::fused_moe_triton_kernels_invoke_fused_moe_kernel_427",
            [[5, 64], WEIGHTS[0], [], [10, 64], [], [], [], *CHOSEN],
            [BF16, BF16, "", BF16, "", "", "", FP32, I32],
            {},
            2 * 10 * 64 * 64,
            TOKENS + TOUCHED * 64 * 64 * 2,
            10 * 64 * 2,
            "bf16",
        ),
        (
            "sglang_profiler::fused_moe_triton_kernels_invoke_fused_moe_kernel",
            [[10, 32], WEIGHTS[1], [], [5, 2, 64], [], [], [], *CHOSEN],
            [BF16, FP8, "", BF16, "", "", "", FP32, I32],
            {},
            2 * 10 * 64 * 32,
            10 * 32 * 2 + TOUCHED * 64 * 32,
            10 * 64 * 2,
            "fp8",
        ),
        # AITER's two stages: the gate's result has half the columns
        (
            "aiter::ck_moe_stage1",
            [[5, 64], *WEIGHTS, [99], [9], [2], [5, 2, 32]],
            [FP8] * 3 + [I32] * 3 + [BF16],
            {7: "2"},
            2 * 10 * 64 * 64,
            5 * 64 + TOUCHED * 64 * 64,
            10 * 32 * 2,
            "fp8",
        ),
        (
            "aiter::ck_moe_stage2",
            [[5, 2, 32], *WEIGHTS, [99], [9], [2], [5, 64]],
            [FP8] * 3 + [I32] * 3 + [BF16],
            {7: "2"},
            2 * 10 * 64 * 32,
            10 * 32 + TOUCHED * 64 * 32,
            RESULT,
            "fp8",
        ),
        # scales of 32 numbers in 128 rows of each of 4 experts: 256 x 2 of a byte
        (
            "aiter::moe_cktile2stages_gemm1_ck",
            [[5, 64], PACKED[0], [5, 2, 32], [99], [9], [2], [], [], [], [], [], [256, 2]],
            [BF16, FP4, BF16, I32, I32, I32, "", "", "", "", "", "c10::Float8_e8m0fnu"],
            {6: "2"},
            2 * 10 * 64 * 64,
            TOKENS + TOUCHED * (64 * 32 + 64 * 2),
            10 * 32 * 2,
            "fp4",
        ),
        (
            "aiter::moe_cktile2stages_gemm2_ck",
            [[5, 2, 32], PACKED[1], [5, 64], [99], [9], [2]],
            [BF16, FP4, BF16, I32, I32, I32],
            {6: "2"},
            2 * 10 * 64 * 32,
            10 * 32 * 2 + TOUCHED * 64 * 16,
            RESULT,
            "fp4",
        ),
        # 8 rows for all 4 groups; sizes of the products are no scales
        (
            "_C::cutlass_moe_mm",
            [[8, 64], [8, 64], WEIGHTS[0], [8, 1], [4, 64, 1], [4], [4, 3], [4], [4], [4]],
            [BF16, FP8, FP8, FP32, FP32, I32, I32, I64, I64, I64],
            {},
            2 * 8 * 64 * 64,
            8 * 64 + 4 * 64 * (64 + 4),
            8 * 64 * 2,
            "fp8",
        ),
        (
            "_C::cutlass_fp4_group_mm",
            [[8, 64], [8, 32], PACKED[0], [512, 4], [4, 64, 4], [4], [4, 3], [4], [4]],
            [BF16, U8, U8, FP8, FP8, FP32, I32, I32, I32],
            {},
            2 * 8 * 64 * 64,
            8 * 32 + 4 * 64 * (32 + 4),
            8 * 64 * 2,
            "fp4",
        ),
        # 3 rows can meet 3 groups; weights with a row for each input
        (
            "sgl_kernel::fp8_blockwise_scaled_grouped_mm",
            [[3, 16], [4], [4], [4], [4], [4], [3, 64], [4, 64, 16]],
            [BF16] + [I64] * 5 + [FP8] * 2,
            {},
            2 * 3 * 64 * 16,
            3 * 64 + 3 * 64 * 16,
            3 * 16 * 2,
            "fp8",
        ),
        (
            "sgl_kernel::cutlass_w4a8_moe_mm",
            [[8, 64], [8, 64], PACKED[0]],
            [BF16, FP8, "signed char"],
            {},
            2 * 8 * 64 * 64,
            8 * 64 + 4 * 64 * 32,
            8 * 64 * 2,
            "fp8",
        ),
        (
            "aten::_scaled_grouped_mm",
            [[8, 64], [4, 64, 16], [8], [4, 16], [4]],
            [FP8, FP8, FP32, FP32, I32],
            {},
            2 * 8 * 64 * 16,
            8 * 64 + 4 * 16 * (64 + 4),
            8 * 16 * 2,
            "fp8",
        ),
        # gradients of the weights of 4 groups
        (
            "aten::_grouped_mm",
            [[16, 8], [8, 64], [4]],
            [BF16, BF16, I32],
            {},
            2 * 8 * 64 * 16,
            (8 * 16 + 8 * 64) * 2,
            4 * 16 * 64 * 2,
            "bf16",
        ),
        (
            "primus_turbo::grouped_gemm_variable_k_impl",
            [[8, 16], [8, 64], [4], [5]],
            [BF16, BF16, I64, I64],
            {},
            2 * 8 * 64 * 16,
            (8 * 16 + 8 * 64) * 2,
            4 * 16 * 64 * 2,
            "bf16",
        ),
        (
            "fbgemm::f8f8bf16_rowwise_grouped_stacked",
            [[8, 64], [4, 16, 64], [8], [4, 16], [4]],
            [FP8, FP8, FP32, FP32, I64],
            {},
            2 * 8 * 64 * 16,
            8 * 64 + 4 * 16 * (64 + 4),
            8 * 16 * 2,
            "fp8",
        ),
        (
            "GroupedGemm",
            [[8, 64], [4, 16, 64], [4]],
            [BF16, BF16, I64],
            {3: "True"},
            2 * 8 * 64 * 16,
            (8 * 64 + 4 * 16 * 64) * 2,
            8 * 16 * 2,
            "bf16",
        ),
        (
            "primus_turbo::grouped_gemm_impl",
            [[8, 64], [4, 16, 64], [4], [5]],
            [BF16, BF16, I64, I64],
            {},
            2 * 8 * 64 * 16,
            (8 * 64 + 4 * 16 * 64) * 2,
            8 * 16 * 2,
            "bf16",
        ),
    ],
)
def test_work_of_experts(  # noqa: PLR0917
    operator,
    shapes,
    types,
    inputs,
    flops,
    read,
    written,
    matrix,
):
    found = work_of(a_call(operator, shapes, types, inputs))
    assert (found.flops, found.read, found.written, found.matrix) == (
        flops,
        pytest.approx(read),
        written,
        matrix,
    )


@pytest.mark.parametrize(
    ("operator", "shapes", "types", "inputs"),
    [
        # a mask of the experts here, tokens beside others, a part of the experts, parallel experts
        ("aiter::fused_moe_", [[5, 64], *WEIGHTS, *CHOSEN, [9]], [BF16] * 3 + [FP32, I32, I32], {}),
        ("aiter::fused_moe_", [[5, 64], *WEIGHTS, [6, 2], [6, 2]], [BF16] * 3 + [FP32, I32], {}),
        (
            "trtllm::fp8_block_scale_moe_runner",
            [[5, 8], [4], [5, 64], [1, 5], WEIGHTS[0], [4, 1, 1], WEIGHTS[1]],
            [FP32, BF16, FP8, FP32, FP8, FP32, FP8],
            RUNNER | {8: "8"},
        ),
        (
            "trtllm::fused_moe",
            [[5, 64], *CHOSEN, *WEIGHTS],
            [BF16, I32, FP32, BF16, BF16],
            {5: "15", 8: "1", 9: "0", 10: "2"},
        ),
        # how many experts a token has, sizes that do not fit, groups
        (
            "aiter::ck_moe_stage1",
            [[5, 64], *WEIGHTS, [99], [9], [2], [5, 2, 32]],
            [FP8] * 3 + [I32] * 3 + [BF16],
            {},
        ),
        ("_C::cutlass_moe_mm", [[8, 16], [8, 64], WEIGHTS[0]], [BF16, FP8, FP8], {}),
        (
            "trtllm::fp8_block_scale_moe_runner",
            [[5, 4], [4], [5, 64], [1, 5], WEIGHTS[0], [4, 1, 1], WEIGHTS[1]],
            [FP32, BF16, FP8, FP32, FP8, FP32, FP8],
            RUNNER | {12: "48"},
        ),
        ("aten::_grouped_mm", [[16, 8], [8, 64]], [BF16, BF16], {}),
        ("GroupedGemm", [[8, 64], [4, 16, 64], [4]], [BF16, BF16, I64], {3: "2"}),
        ("aten::_grouped_mm", [[16, 8], [9, 64], [4]], [BF16, BF16, I32], {}),
    ],
)
def test_experts_that_a_recording_does_not_say(operator, shapes, types, inputs):
    with pytest.raises(NoWorkError):
        work_of(a_call(operator, shapes, types, inputs))


# 2 sequences of 3 tokens: 4 heads of 8 with 16 states; z, x, B, C of one group and delta: 32 + 32 +
# 16 + 16 + 4
SPLIT = [[2, 3, 100], [64, 4], [64], [4], [4], [4]]
# 5 tokens of 2 sequences, 2 heads of keys of 4 and 4 of values of 6
HEADS = [[1, 5, 2, 4], [1, 5, 2, 4], [1, 5, 4, 6]]
CACHE = [9, 4, 4, 6]
STATE = 4 * 4 * 6
GIVEN, VALUES = 2 * 5 * 2 * 4 * 2 + 5 * 4 * 6 * 2, 5 * 4 * 6 * 2


@pytest.mark.parametrize(
    ("operator", "shapes", "types", "inputs", "flops", "read", "written", "matrix"),
    [
        (
            "SelectiveScanFn",
            [[2, 8, 5], [2, 8, 5], [8, 4], [2, 4, 5], [2, 4, 5], [8], [2, 8, 5]],
            [BF16, BF16, FP32, BF16, BF16, FP32, BF16],
            {9: "False"},
            8 * 80 * 4,
            3 * 160 + 128 + 2 * 80,
            160,
            "",
        ),
        (
            "MambaChunkScanCombinedFn",
            [[2, 3, 4, 8], [2, 3, 4], [4], *[[2, 3, 1, 16]] * 2, [], [4], [2, 3, 4, 8]],
            [BF16, BF16, FP32, BF16, BF16, "", FP32, BF16],
            {5: "256"},
            4 * 6 * 32 * 16,
            2 * 6 * 32 * 2 + 6 * 4 * 2 + 2 * 6 * 16 * 2,
            6 * 32 * 2,
            "bf16",
        ),
        (
            "MambaSplitConv1dScanCombinedFn",
            SPLIT,
            [BF16] * 4 + [FP32] * 2,
            {6: "256", 12: "1e-06", 16: "1", 17: "True"},
            4 * 6 * 32 * 16,
            6 * 100 * 2 + 64 * 4 * 2,
            6 * 32 * 2,
            "bf16",
        ),
        (
            "DaoAILab::_causal_conv1d_fwd_cpp",
            [[2, 8, 5], [8, 4], [8], [], [2, 8, 3], [2, 8, 5], [2, 8, 3]],
            [BF16] * 3 + [""] + [BF16] * 3,
            {},
            2 * 80 * 4,
            160 + 64 + 16 + 96,
            160 + 96,
            "",
        ),
        (
            "DaoAILab::_causal_conv1d_bwd_cpp",
            [[2, 8, 5], [8, 4], [8], [2, 8, 5], [], [], [], [2, 8, 5], [8, 4], [8]],
            [BF16] * 4 + [""] * 3 + [BF16, FP32, FP32],
            {},
            4 * 80 * 4,
            160 + 64 + 160,
            160 + 128 + 32,
            "",
        ),
        # the last 3 inputs of two sequences one after the other, of 9 that have a place
        (
            "sgl_kernel::causal_conv1d_fwd",
            [[8, 5], [8, 4], [], [9, 8, 3], [3]],
            [BF16, BF16, "", BF16, I32],
            {},
            2 * 40 * 4,
            80 + 64 + 96,
            80 + 96,
            "",
        ),
        (
            "_C::causal_conv1d_update",
            [[5, 8], [9, 8, 3], [8, 4], [8]],
            [BF16] * 4,
            {},
            2 * 40 * 4,
            80 + 64 + 16 + 5 * 48,
            80 + 5 * 48,
            "",
        ),
        # vLLM's delta rule with the states of two sequences in a cache of 9, and fla's gated linear
        # attention
        (
            "FusedRecurrentFunction",
            [*HEADS, [1, 5, 4], [1, 5, 4], [], CACHE, [], [3], [2]],
            [BF16] * 3 + [FP32, BF16, "", FP32, "", I32, I32],
            {5: "0.5", 7: "True"},
            6 * 5 * STATE,
            GIVEN + 80 + 40 + 2 * STATE * 4,
            VALUES + 2 * STATE * 4,
            "bf16",
        ),
        (
            "FusedRecurrentFunction",
            [*HEADS, [], [1, 5, 4, 4]],
            [BF16] * 3 + ["", FP32],
            {6: "0.5"},
            4 * 5 * STATE,
            GIVEN + 320,
            VALUES,
            "bf16",
        ),
        (
            "ChunkGLAFunction",
            [*HEADS, [1, 5, 4, 4], [], [2, 4, 4, 6]],
            [BF16] * 3 + [FP32, "", FP32],
            {4: "0.5"},
            4 * 5 * STATE,
            GIVEN + 320 + 2 * STATE * 4,
            VALUES + 2 * STATE * 4,
            "bf16",
        ),
        (
            "ChunkDPLRDeltaRuleFunction",
            [*HEADS, *[[1, 5, 4, 4]] * 3],
            [BF16] * 6,
            {6: "0.5"},
            8 * 5 * STATE,
            GIVEN + 3 * 160,
            VALUES,
            "bf16",
        ),
        (
            "sgl_kernel::lightning_attention_decode",
            [*[[3, 2, 1, 4]] * 3, [3, 2, 4, 4], [2], [3, 2, 1, 4], [3, 2, 4, 4]],
            [BF16] * 3 + [FP32, FP32, BF16, FP32],
            {},
            4 * 96,
            3 * 48 + 384,
            48 + 384,
            "bf16",
        ),
    ],
)
def test_work_of_scans(  # noqa: PLR0917
    operator,
    shapes,
    types,
    inputs,
    flops,
    read,
    written,
    matrix,
):
    found = work_of(a_call(operator, shapes, types, inputs))
    assert (found.flops, found.read, found.written, found.matrix) == (flops, read, written, matrix)


def test_gated_delta_attention_takes_its_states_from_inside():
    shapes, types = [[5, 2 * 2 * 4 + 4 * 6], [5, 4], [5, 4], [5, 4, 6]], [BF16] * 4
    mixed, gates = 5 * 40 * 2, 2 * 5 * 4 * 2
    one = a_call(
        "FusedRecurrentFunction", [*HEADS, [], [], [], CACHE], [BF16] * 3 + [""] * 3 + [FP32]
    )
    put = a_call("aten::_index_put_impl_", [CACHE, [], [2, 4, 4, 6]], [FP32, "", FP32])
    call = a_call("vllm::gdn_attention_core", shapes, types)
    generated, begun = (work_of(replace(call, inside=(each,))) for each in (one, put))
    assert (generated.flops, generated.read) == (6 * 5 * STATE, mixed + gates + 5 * STATE * 4)
    assert (begun.read, begun.written) == (mixed + gates, VALUES + 2 * STATE * 4)
    with pytest.raises(NoWorkError):
        work_of(call)


@pytest.mark.parametrize(
    ("operator", "shapes", "types", "inputs"),
    [
        ("MambaSplitConv1dScanCombinedFn", SPLIT, [BF16] * 4 + [FP32] * 2, {}),
        ("MambaSplitConv1dScanCombinedFn", SPLIT, [BF16] * 4 + [FP32] * 2, {16: "3"}),
        ("_C::causal_conv1d_fwd", [[9, 5], [8, 4]], [BF16] * 2, {}),
        ("SelectiveScanFn", [[2, 9, 5], [2, 9, 5], [8, 4]], [BF16, BF16, FP32], {}),
    ],
)
def test_scans_that_a_recording_does_not_say(operator, shapes, types, inputs):
    with pytest.raises(NoWorkError):
        work_of(a_call(operator, shapes, types, inputs))
