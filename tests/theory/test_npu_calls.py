"""Work of kernels of CANN from the shapes of their own inputs and results, against numbers
computed by hand.
"""

import pytest

from llmprof.theory.calls import NoWorkError, work_of
from tests.theory.notation import kernel


@pytest.mark.parametrize(
    ("given", "flops", "read", "written", "matrix"),
    [
        # 4 x 8 times 8 x 2; either operand may lie transposed
        (kernel("MatMulV3", "bf16[4,8] bf16[8,2]", "bf16[4,2]"), 128, 64 + 32, 16, "bf16"),
        (kernel("MatMulV3", "bf16[8,4] bf16[2,8]", "bf16[4,2]"), 128, 64 + 32, 16, "bf16"),
        (kernel("MatMulV2", "bf16[4,8] bf16[8,2] bf16[2]", "f32[4,2]"), 128, 100, 32, "bf16"),
        (kernel("BatchMatMul", "bf16[3,4,8] bf16[3,8,2]", "bf16[3,4,2]"), 384, 288, 48, "bf16"),
        # the cube does not compute in IEEE fp32
        (kernel("MatMulV3", "f32[4,8] f32[8,2]", "f32[4,2]"), 128, 192, 32, ""),
        (kernel("Add", "f32[5,2] f32[2]", "f32[5,2]"), None, 48, 40, ""),
        (kernel("RmsNorm", "bf16[4,1,8] bf16[8]", "bf16[4,1,8] f32[4,1,1]"), None, 80, 80, ""),
        (kernel("SwiGlu", "bf16[4,6]", "bf16[4,3]"), None, 48, 24, ""),
        (kernel("ZerosLike", "f32[10]", "f32[10]"), 0, 0, 40, ""),
        (kernel("Slice", "bf16[4,8,512] i64[3]*2", "bf16[4,8,2]"), 0, 128, 128, ""),
        (kernel("GatherV2", "bf16[100,8] i64[1,5] i64[1]", "bf16[1,5,8]"), 0, 40 + 80, 80, ""),
        (kernel("GatherV2", "bf16[3,8] i64[1,5] i64[1]", "bf16[1,5,8]"), 0, 40 + 48, 80, ""),
        # weights, two moments and gradient of 10 floats; three are written in place
        (kernel("ApplyAdamWV2", "f32[10]*4 i64[1]", ""), None, 168, 120, ""),
        # two heads of 4096 queries, one of keys; they see half of 4096 keys: 2 x 2 heads x 8,388,608 pairs x (8 + 8)
        (
            kernel(
                "FlashAttentionScore",
                "bf16[4096,1,16] bf16[4096,1,8]*2 u8[0]*3 bool[2048,2048]",
                "f32[1,2,4096,8]*2 u8[0] bf16[4096,1,16]",
            ),
            536_870_912,
            131_072 + 2 * 65_536,
            2 * 262_144 + 131_072,
            "bf16",
        ),
        (
            kernel(
                "FlashAttentionScore",
                "bf16[4096,1,16] bf16[4096,1,8]*2",
                "f32[1,2,4096,8]*2 u8[0] bf16[4096,1,16]",
            ),
            2 * 536_870_912,
            131_072 + 2 * 65_536,
            2 * 262_144 + 131_072,
            "bf16",
        ),
        # 2 x 2 heads x pairs x (3 x 8 + 2 x 8)
        (
            kernel(
                "FlashAttentionScoreGrad",
                "bf16[4096,1,16] bf16[4096,1,8]*2 bf16[4096,1,16] bool[2048,2048] f32[1,2,4096,8]*2 u8[0] bf16[4096,1,16]",
                "bf16[4096,1,16] bf16[4096,1,8]*2",
            ),
            1_342_177_280,
            3 * 131_072 + 2 * 65_536 + 2 * 262_144,
            131_072 + 2 * 65_536,
            "bf16",
        ),
    ],
)
def test_work(given, flops, read, written, matrix):
    found = work_of(given)
    assert (found.flops, found.read, found.written, found.matrix) == (flops, read, written, matrix)


@pytest.mark.parametrize(
    ("queries", "keys"),
    [("1,4096,16", "1,4096,8"), ("1,2,4096,8", "1,1,4096,8"), ("1,4096,2,8", "1,4096,1,8")],
)
def test_attention_of_every_layout(queries, keys):
    results = "f32[1,2,4096,8]*2 u8[0] bf16[4096,1,16]"
    given = kernel("FlashAttentionScore", f"bf16[{queries}] bf16[{keys}]*2", results)
    assert work_of(given).flops == 2 * 536_870_912


@pytest.mark.parametrize(
    "given",
    [
        kernel("MatMulV3", "bf16[1,4,16,16] bf16[8,2]", "bf16[4,2]"),  # a tiled format
        kernel("MatMulV3", "bf16[4,8] bf16[7,2]", "bf16[4,2]"),
        kernel("Add", "u8[0]*2", "u8[0]"),
        kernel(
            "FlashAttentionScore",
            "bf16[4096,1,16] bf16[4096,1,8]*2 u8[0]*3 bool[4096,4096]",
            "f32[1,2,4096,8]",
        ),
        kernel(
            "FlashAttentionScore", "bf16[4096,2,8] bf16[4096,1,8]*2", "f32[4096,2,8]"
        ),  # several lengths
        kernel("GatherV2", "bf16[100,8]", "bf16[5,8]"),
    ],
)
def test_what_was_not_recorded_is_not_guessed(given):
    with pytest.raises(NoWorkError):
        work_of(given)
