"""Work of kernels of CANN from the shapes of their own inputs and results, against numbers
computed by hand.
"""

import json

import pytest

from llmprof.theory.calls import NoWorkError, parse_call, work_of

BF16, FP32, I64, NONE = "bfloat16", "float", "int64", "uint8"
Sides = tuple[list[tuple[list[int], str]], list[tuple[list[int], str]]]


def kernel(kind, inputs, results):
    sides = (inputs, results)
    shapes = json.dumps([[shape for shape, _ in side] for side in sides])
    return parse_call(
        f"cann::{kind}", shapes, json.dumps([[kind for _, kind in side] for side in sides])
    )


ABSENT = ([0], NONE)
MASK = ([2048, 2048], "bool")
Q, K, SUMS = (
    ([4096, 1, 16], BF16),
    ([4096, 1, 8], BF16),
    ([1, 2, 4096, 8], FP32),
)  # two heads of queries, one of keys


@pytest.mark.parametrize(
    ("given", "flops", "read", "written", "matrix"),
    [
        # 4 x 8 times 8 x 2; either operand may lie transposed
        (
            kernel("MatMulV3", [([4, 8], BF16), ([8, 2], BF16)], [([4, 2], BF16)]),
            128,
            64 + 32,
            16,
            "bf16",
        ),
        (
            kernel("MatMulV3", [([8, 4], BF16), ([2, 8], BF16)], [([4, 2], BF16)]),
            128,
            64 + 32,
            16,
            "bf16",
        ),
        (
            kernel("MatMulV2", [([4, 8], BF16), ([8, 2], BF16), ([2], BF16)], [([4, 2], FP32)]),
            128,
            100,
            32,
            "bf16",
        ),
        (
            kernel("BatchMatMul", [([3, 4, 8], BF16), ([3, 8, 2], BF16)], [([3, 4, 2], BF16)]),
            384,
            288,
            48,
            "bf16",
        ),
        # the cube does not compute in IEEE fp32
        (kernel("MatMulV3", [([4, 8], FP32), ([8, 2], FP32)], [([4, 2], FP32)]), 128, 192, 32, ""),
        (kernel("Add", [([5, 2], FP32), ([2], FP32)], [([5, 2], FP32)]), None, 48, 40, ""),
        (
            kernel(
                "RmsNorm", [([4, 1, 8], BF16), ([8], BF16)], [([4, 1, 8], BF16), ([4, 1, 1], FP32)]
            ),
            None,
            80,
            80,
            "",
        ),
        (kernel("SwiGlu", [([4, 6], BF16)], [([4, 3], BF16)]), None, 48, 24, ""),
        (kernel("ZerosLike", [([10], FP32)], [([10], FP32)]), 0, 0, 40, ""),
        (
            kernel("Slice", [([4, 8, 512], BF16), ([3], I64), ([3], I64)], [([4, 8, 2], BF16)]),
            0,
            128,
            128,
            "",
        ),
        (
            kernel("GatherV2", [([100, 8], BF16), ([1, 5], I64), ([1], I64)], [([1, 5, 8], BF16)]),
            0,
            40 + 80,
            80,
            "",
        ),
        (
            kernel("GatherV2", [([3, 8], BF16), ([1, 5], I64), ([1], I64)], [([1, 5, 8], BF16)]),
            0,
            40 + 48,
            80,
            "",
        ),
        # weights, two moments and gradient of 10 floats; three are written in place
        (kernel("ApplyAdamWV2", [([10], FP32)] * 4 + [([1], I64)], []), None, 168, 120, ""),
        # 4096 queries see half of 4096 keys: 2 x 2 heads x 8,388,608 pairs x (8 + 8)
        (
            kernel(
                "FlashAttentionScore",
                [Q, K, K, ABSENT, ABSENT, ABSENT, MASK],
                [SUMS, SUMS, ABSENT, Q],
            ),
            536_870_912,
            131_072 + 2 * 65_536,
            2 * 262_144 + 131_072,
            "bf16",
        ),
        (
            kernel("FlashAttentionScore", [Q, K, K], [SUMS, SUMS, ABSENT, Q]),
            2 * 536_870_912,
            131_072 + 2 * 65_536,
            2 * 262_144 + 131_072,
            "bf16",
        ),
        # 2 x 2 heads x pairs x (3 x 8 + 2 x 8)
        (
            kernel("FlashAttentionScoreGrad", [Q, K, K, Q, MASK, SUMS, SUMS, ABSENT, Q], [Q, K, K]),
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


@pytest.mark.parametrize("shape", [[1, 4096, 16], [1, 2, 4096, 8], [1, 4096, 2, 8]])
def test_attention_of_every_layout(shape):
    keys = [4096 if size == 4096 else size for size in shape]
    keys = [8 if size == 16 else 1 if size == 2 else size for size in keys]
    given = kernel(
        "FlashAttentionScore", [(shape, BF16), (keys, BF16), (keys, BF16)], [SUMS, SUMS, ABSENT, Q]
    )
    assert work_of(given).flops == 2 * 536_870_912


@pytest.mark.parametrize(
    "given",
    [
        kernel(
            "MatMulV3", [([1, 4, 16, 16], BF16), ([8, 2], BF16)], [([4, 2], BF16)]
        ),  # a tiled format
        kernel("MatMulV3", [([4, 8], BF16), ([7, 2], BF16)], [([4, 2], BF16)]),
        kernel("Add", [ABSENT, ABSENT], [ABSENT]),
        kernel(
            "FlashAttentionScore", [Q, K, K, ABSENT, ABSENT, ABSENT, ([4096, 4096], "bool")], [SUMS]
        ),
        kernel(
            "FlashAttentionScore", [([4096, 2, 8], BF16), K, K], [([4096, 2, 8], FP32)]
        ),  # several lengths
        kernel("GatherV2", [([100, 8], BF16)], [([5, 8], BF16)]),
    ],
)
def test_what_was_not_recorded_is_not_guessed(given):
    with pytest.raises(NoWorkError):
        work_of(given)
