"""Work of operators on elements and rows by their places: numbers computed by hand, and bytes of
real tensors.
"""

import json
import subprocess
from typing import Any

import pytest

from llmprof.theory.calls import NoWorkError, parse_call, work_of

BF16, FP32, FP8, I64, INT, U8, BOOL = (
    "c10::BFloat16",
    "float",
    "c10::Float8_e4m3fn",
    "long int",
    "int",
    "unsigned char",
    "bool",
)
LISTS = "multi_tensor_apply_kernel<TensorListMetadata<2>, at::native::BinaryOpListAlphaFunctor<float, 2, 2, 0>>"
COPIES = "multi_tensor_apply_kernel<TensorListMetadata<2>, at::native::CopyFunctor<c10::BFloat16, float, 2, 1, 1>>"
ADAM = "multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata<4>, FusedAdamMathFunctor<float, 4, 1, false>>"

Row = tuple[str, list[Any], list[str], list[str], float | None, float, float]


def of(name, *given):
    """Name, shapes, types and values of a call: a tensor is its shape and type, a text is a
    value.
    """
    return (
        name,
        [each[0] if isinstance(each, tuple) else [] for each in given],
        [
            each[1] if isinstance(each, tuple) else "" if each is None else "Scalar"
            for each in given
        ],
        [each if isinstance(each, str) else "" for each in given],
    )


ROWS = [
    # 4 rows of 8 logits: gradient and result in 32 bits, the gradient of the input in 16 (type 15)
    (*of("aten::_softmax_backward_data", ([4, 8], FP32), ([4, 8], FP32), "1", "15"), 128, 256, 64),
    (
        *of("aten::_log_softmax_backward_data", ([4, 8], BF16), ([4, 8], BF16), "1", "15"),
        128,
        128,
        64,
    ),
    # a mask of a byte an element
    (*of("aten::native_dropout", ([4, 8], BF16), "0.1", "True"), 32, 64, 64 + 32),
    (*of("aten::native_dropout_backward", ([4, 8], BF16), ([4, 8], BOOL), "1.1"), 32, 64 + 32, 64),
    # 5 targets, each names one of 8 logarithms; the mean is a number, without it each has one
    (*of("aten::nll_loss_forward", ([5, 8], FP32), ([5], I64), None, "1", "-100"), 5, 5 * 12, 4),
    (*of("aten::nll_loss_forward", ([5, 8], FP32), ([5], I64), None, "0", "-100"), 5, 5 * 12, 20),
    (
        *of(
            "aten::nll_loss_backward",
            ([], FP32),
            ([5, 8], FP32),
            ([5], I64),
            None,
            "1",
            "-100",
            ([], FP32),
        ),
        5,
        4 + 40,
        20,
    ),
    # 3 gradients of 8 into rows of a table of 100, and 3 into one of 2
    (
        *of("aten::embedding_dense_backward", ([3, 8], BF16), ([3], I64), "100", "-1", "False"),
        24,
        48 + 24,
        48,
    ),
    (
        *of("aten::embedding_dense_backward", ([3, 8], BF16), ([3], I64), "2", "-1", "False"),
        24,
        48 + 24,
        32,
    ),
    (*of("aten::scatter_", ([4, 8], BF16), "1", ([4, 2], I64), ([4, 2], BF16)), 0, 64 + 16, 16),
    (*of("aten::scatter_", ([4, 8], BF16), "1", ([4, 2], I64), "1"), 0, 64, 16),
    (
        *of("aten::scatter_add_", ([4, 8], BF16), "1", ([4, 2], I64), ([4, 2], BF16)),
        8,
        64 + 16 + 16,
        16,
    ),
    (
        *of("aten::index_add_", ([9, 8], FP32), "0", ([3], I64), ([3, 8], FP32), "1"),
        24,
        24 + 96 + 96,
        96,
    ),
    (*of("aten::index_copy_", ([9, 8], FP32), "0", ([3], INT), ([3, 8], FP32)), 0, 12 + 96, 96),
    (*of("aten::index_fill_", ([9, 8], FP32), "1", ([3], I64), "0"), 0, 24, 4 * 27),
    # two bags of 5 rows of 8 out of 100
    (
        *of(
            "aten::_embedding_bag",
            ([100, 8], FP32),
            ([5], I64),
            ([2], I64),
            "False",
            "0",
            "False",
            None,
            "False",
            "-1",
        ),
        40,
        160 + 40 + 16,
        64,
    ),
    (*of("aten::masked_select", ([4, 8], FP32), ([4, 8], BOOL)), 0, 128 + 32, 0),
    (*of("aten::bernoulli_", ([4, 8], FP32), ([4, 8], FP32)), 0, 128, 128),
    (*of("aten::exponential_", ([4, 8], FP32), "1."), 0, 0, 128),
    (*of("aten::linspace", "0", "1", "7", ([0], FP32)), 0, 0, 28),
    (*of("aten::multinomial", ([4, 8], FP32), "2", "False"), 32, 128, 64),
    (*of("aten::bucketize", ([5], FP32), ([3], FP32), "True", "False"), 0, 20 + 12, 20),
    (*of("aten::searchsorted", ([3], FP32), ([5], FP32), "False", "False"), 0, 20 + 12, 40),
    (*of("aten::glu", ([4, 8], BF16), "-1"), 32, 64, 32),
    (*of("aten::glu_backward", ([4, 4], BF16), ([4, 8], BF16), "-1"), 64, 32 + 64, 64),
    # windows of 3 x 3 with stride 2 and padding 1 of 6 x 6 are 3 x 3
    (
        *of(
            "aten::avg_pool2d",
            ([2, 4, 6, 6], FP32),
            "[3, 3]",
            "[2, 2]",
            "[1, 1]",
            "False",
            "True",
            None,
        ),
        72 * 9,
        4 * 288,
        4 * 72,
    ),
    (*of("aten::_adaptive_avg_pool2d", ([2, 4, 6, 6], FP32), "[2, 1]"), 288, 4 * 288, 4 * 16),
    (*of("aten::adaptive_max_pool2d", ([2, 4, 6, 6], FP32), "[2, 1]"), 288, 4 * 288, 12 * 16),
    (
        *of("aten::avg_pool2d_backward", ([2, 4, 3, 3], FP32), ([2, 4, 6, 6], FP32), "[2, 2]"),
        72,
        288,
        4 * 288,
    ),
    (*of("aten::upsample_nearest2d", ([2, 4, 3, 3], FP32), "[6, 6]", None, None), 0, 288, 4 * 288),
    (
        *of("aten::upsample_bilinear2d", ([2, 4, 3, 3], FP32), "[6, 6]", "False", None, None),
        8 * 288,
        288,
        4 * 288,
    ),
    (
        *of("aten::upsample_nearest2d_backward", ([2, 4, 6, 6], FP32), "[6, 6]", "[2, 4, 3, 3]"),
        0,
        4 * 288,
        288,
    ),
    (*of("aten::var_mean", ([4, 8], FP32), "[1]", None, "True"), 32, 128, 2 * 16),
    (*of("aten::var_mean", ([4, 8], FP32), "True"), 32, 128, 2 * 4),
    (*of("aten::nansum", ([4, 8], FP32), "[1]", "False", None), 32, 128, 16),
    (*of("aten::cummax", ([4, 8], FP32), "1"), 32, 128, 32 * 12),
    (*of("aten::smooth_l1_loss", ([4, 8], FP32), ([4, 8], FP32), "1", "1."), 96, 256, 4),
    (*of("aten::binary_cross_entropy", ([4, 8], FP32), ([4, 8], FP32), None, "0"), 96, 256, 128),
    (*of("aten::hardtanh_backward", ([4, 8], BF16), ([4, 8], BF16), "-1", "1"), 32, 128, 64),
    (*of("aten::elu_backward", ([8], FP32), "1", "1", "1", "False", ([8], FP32)), 8, 64, 32),
    (*of("aten::tan", ([4, 8], I64)), 32, 256, 128),
    (*of("aten::isposinf", ([4, 8], BF16)), 32, 64, 32),
    (
        *of("aten::_upsample_bilinear2d_aa", ([2, 4, 6, 6], FP32), "[1, 1]", "False", None, None),
        64,
        4 * 288,
        32,
    ),
    # 5 x 4 with one before and two after the last axis, and one after the other
    (*of("aten::reflection_pad2d", ([2, 5, 4], FP32), "[1, 2, 0, 1]"), 0, 160, 4 * 2 * 6 * 7),
    (
        *of("aten::grid_sampler_2d", ([2, 3, 9, 9], FP32), ([2, 2, 2, 2], FP32), "0", "0", "False"),
        192,
        384 + 64,
        96,
    ),
    (*of("aten::polar", ([4, 8], FP32), ([4, 8], FP32)), 32, 256, 256),
    (*of("aten::split_with_sizes_copy", ([8, 4], BF16), "[2, 2]", "1", None), 0, 64, 64),
    (*of("aten::_chunk_cat", ([[2, 4], [3]], "TensorList"), "0", "2", ([2, 6], FP32)), 0, 44, 48),
    (
        *of("aten::_masked_softmax_backward", ([4, 8], BF16), ([4, 8], BF16), ([4, 8], BOOL), "1"),
        128,
        160,
        64,
    ),
    # a result that is not yet of its size
    (*of("aten::abs", ([4, 8], BF16), ([0], BF16)), 32, 64, 64),
    # 4 rows of 8 in 16 bits, a weight of 8; results of a byte with a scale of 32 bits a tensor, a
    # row, or 4 numbers
    (*of("_C::rms_norm", ([4, 8], BF16), ([4, 8], BF16), None, "1e-6"), 128, 64, 64),
    (
        *of(
            "_C::rms_norm_static_fp8_quant",
            ([4, 8], FP8),
            ([4, 8], BF16),
            ([8], BF16),
            ([1], FP32),
            "1e-6",
        ),
        192,
        64 + 16 + 4,
        32,
    ),
    (
        *of(
            "_C::fused_add_rms_norm_static_fp8_quant",
            ([4, 8], FP8),
            *[([4, 8], BF16)] * 2,
            ([8], BF16),
            ([1], FP32),
        ),
        224,
        128 + 16 + 4,
        32 + 64,
    ),
    (
        *of(
            "_C::rms_norm_per_block_quant",
            ([4, 8], FP8),
            ([4, 8], BF16),
            ([8], BF16),
            ([4, 2], FP32),
            "1e-6",
            None,
            ([4, 8], BF16),
        ),
        192,
        64 + 16 + 64,
        32 + 32 + 64,
    ),
    (
        *of(
            "aiter::rmsnorm2d_fwd_with_dynamicquant",
            ([4, 8], FP8),
            ([4, 8], BF16),
            ([4, 1], FP32),
            ([8], BF16),
            "1e-6",
        ),
        192,
        64 + 16,
        32 + 16,
    ),
    (
        *of(
            "aiter::add_rmsnorm_quant",
            ([4, 8], FP8),
            *[([4, 8], BF16)] * 3,
            ([4, 1], FP32),
            ([8], BF16),
        ),
        224,
        128 + 16,
        32 + 64 + 16,
    ),
    (*of("aiter::layernorm2d_fwd", ([4, 8], BF16), ([8], BF16), ([8], BF16)), 224, 64 + 32, 64),
    (
        *of("vllm::rocm_aiter_rmsnorm_fp8_group_quant", ([4, 8], BF16), ([8], BF16), "1e-6", "4"),
        192,
        64 + 16,
        32 + 32,
    ),
    (
        *of(
            "vllm::rocm_aiter_rmsnorm_fused_add_dynamic_quant",
            *[([4, 8], BF16)] * 2,
            ([8], BF16),
            "1e-6",
            "23",
        ),
        224,
        128 + 16,
        64 + 32 + 16,
    ),
    (
        *of(
            "vllm::fused_mla_dual_rms_norm",
            ([4, 8], BF16),
            ([8], BF16),
            ([4, 2], BF16),
            ([2], BF16),
        ),
        4 * 40,
        64 + 16 + 16 + 4,
        64 + 16,
    ),
    (*of("flashinfer::fused_add_rmsnorm", *[([4, 8], BF16)] * 2, ([8], BF16)), 160, 128 + 16, 128),
    # 8 and 8 into 8, with scales of 4
    (*of("vllm::rocm_aiter_act_mul_and_fp8_group_quant", ([4, 16], BF16), "4"), 128, 128, 32 + 32),
    (
        *of(
            "_C::silu_and_mul_per_block_quant", ([4, 8], FP8), ([4, 16], BF16), ([4, 2], FP32), "4"
        ),
        128,
        128,
        32 + 32,
    ),
    (*of("trtllm::flashinfer_silu_and_mul", ([4, 16], BF16)), 64, 128, 64),
    (*of("vllm::triton_per_token_group_quant_fp8", ([4, 8], BF16), "4"), 64, 64, 32 + 32),
    (
        *of("sgl_kernel::sgl_per_token_quant_fp8", ([4, 8], BF16), ([4, 8], FP8), ([4, 1], FP32)),
        64,
        64,
        32 + 16,
    ),
    (
        *of(
            "aiter::dynamic_per_token_scaled_quant",
            ([4, 8], FP8),
            ([4, 8], BF16),
            ([4, 1], FP32),
            None,
            "False",
            None,
        ),
        64,
        64,
        32 + 16,
    ),
    # half a byte an element, a byte for each 16; in three forms of the call
    (*of("_C::scaled_fp4_quant", ([4, 32], BF16), ([1], FP32), "True"), 256, 256, 64 + 8),
    (
        *of(
            "_C::scaled_fp4_quant",
            ([4, 32], BF16),
            ([1], FP32),
            "True",
            ([4, 16], U8),
            ([128, 4], FP8),
        ),
        256,
        256,
        72,
    ),
    (
        *of(
            "sgl_kernel::scaled_fp4_quant",
            ([4, 16], U8),
            ([4, 32], BF16),
            ([128, 4], FP8),
            ([1], FP32),
        ),
        256,
        256,
        72,
    ),
    (*of("fbgemm::FloatToFP8RowwiseQuantized", ([4, 32], FP32), "True"), 128, 512, 4 * 40),
    (*of("fbgemm::FP8RowwiseQuantizedToFloat", ([4, 40], U8), "True"), 160, 160, 4 * 32 * 4),
    (*of("fbgemm::HFP8QuantizedToFloat", ([40], U8), "4", "7"), 40, 40, 160),
    # 4 tokens, 4 heads of 8 and one of keys, of which 4 numbers are turned: half of 4 x 40 in 16
    # bits, rows of 4
    (
        *of(
            "_C::rotary_embedding",
            ([4], I64),
            ([4, 32], BF16),
            ([4, 8], BF16),
            "8",
            ([99, 4], BF16),
            "True",
        ),
        3 * 80,
        160 + 32 + 32,
        160,
    ),
    # 2 heads of queries, one of keys, one of values
    (*of("_C::fused_qk_norm_rope", ([4, 32], BF16), "2", "1", "1", "8"), 7 * 96, 192, 192),
    (
        *of(
            "sgl_kernel::apply_rope_pos_ids_cos_sin_cache",
            ([4, 2, 8], BF16),
            ([4, 1, 8], BF16),
            ([4, 2, 8], BF16),
            ([4, 1, 8], BF16),
            ([99, 8], FP32),
            ([4], I64),
            "False",
        ),
        3 * 96,
        192 + 32,
        192,
    ),
    (
        *of(
            "aiter::rope_cached_positions_2c_fwd_impl",
            *[([1, 4, 2, 8], BF16), ([1, 4, 1, 8], BF16)] * 2,
            *[([99, 1, 1, 4], BF16)] * 2,
            ([1, 4], I64),
            "0",
        ),
        3 * 96,
        192 + 32,
        192,
    ),
    (
        *of(
            "aiter::fused_qk_rope_concat_and_cache_mla",
            ([4, 2, 16], BF16),
            ([4, 2, 8], BF16),
            ([4, 16], BF16),
            ([4, 8], BF16),
            ([99, 24], FP8),
            ([4, 2, 24], FP8),
        ),
        3 * 96,
        2 * 288,
        288,
    ),
    (
        *of(
            "aiter::reshape_and_cache_with_pertoken_quant",
            *[([4, 1, 8], BF16)] * 2,
            *[([9, 1, 16, 8], FP8)] * 2,
            *[([1, 99], FP32)] * 2,
            ([4], I64),
            "True",
        ),
        0,
        128 + 32,
        64,
    ),
    (
        *of("_C_cache_ops::concat_mla_q", ([4, 2, 8], BF16), ([4, 2, 4], BF16), ([4, 2, 12], BF16)),
        0,
        192,
        192,
    ),
    (
        *of(
            "sgl_kernel::store_kv_cache", *[([99, 8], BF16)] * 2, ([4], I64), *[([4, 8], BF16)] * 2
        ),
        0,
        128 + 32,
        128,
    ),
    # 4 tokens to 2 of 8 experts
    (
        *of("_moe_C::topk_sigmoid", ([4, 2], FP32), ([4, 2], INT), ([4, 2], INT), ([4, 8], FP32)),
        160,
        128,
        96,
    ),
    (
        *of("sgl_kernel::topk_softmax", ([4, 2], FP32), ([4, 2], INT), ([4, 8], BF16), "True"),
        160,
        64,
        64,
    ),
    (
        *of(
            "aiter::biased_grouped_topk_hip",
            ([4, 8], BF16),
            ([8], BF16),
            ([4, 2], FP32),
            ([4, 2], INT),
            "4",
            "2",
        ),
        160,
        64 + 16,
        64,
    ),
    (
        *of("_moe_C::grouped_topk", ([4, 8], FP32), "4", "2", "2", "True", "1.0", ([8], FP32), "0"),
        160,
        160,
        64,
    ),
    (
        *of("sgl_kernel::moe_fused_gate", ([4, 8], FP32), ([8], FP32), "4", "2", "2", "0"),
        160,
        160,
        64,
    ),
    (
        *of(
            "_moe_C::moe_align_block_size",
            ([4, 2], INT),
            "8",
            "16",
            ([99], INT),
            ([7], INT),
            ([1], INT),
        ),
        0,
        32,
        32,
    ),
    (*of("_moe_C::shuffle_rows", ([4, 8], BF16), ([6], INT), ([6, 8], BF16)), 0, 64 + 24, 96),
    (
        *of("sgl_kernel::top_k_renorm_probs", ([4, 8], FP32), ([4, 8], FP32), ([4], INT), "0"),
        32,
        128 + 16,
        128,
    ),
    (
        *of("_C::merge_attn_states", *[([4, 2, 8], BF16), ([2, 4], FP32)] * 3),
        192,
        256 + 64,
        128 + 32,
    ),
    # 32 whole numbers of eight numbers of four bits
    (
        *of("_C::awq_dequantize", ([8, 4], INT), ([2, 32], BF16), ([2, 4], INT), "0"),
        512,
        128 + 128 + 32,
        512,
    ),
    (
        *of(
            "bitsandbytes::dequantize_4bit",
            ([128, 1], U8),
            ([4], FP32),
            "64",
            "nf4",
            "[16, 16]",
            "15",
        ),
        512,
        128 + 16,
        512,
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=[f"{row[0]}-{place}" for place, row in enumerate(ROWS)])
def test_work_by_hand(row):
    name, shapes, types, inputs, *expected = row
    found = work_of(parse_call(name, *(json.dumps(each) for each in (shapes, types, None, inputs))))
    assert [found.flops, found.read, found.written] == expected


def test_rows_that_a_tensor_counts_have_no_work():
    _, *texts = of(
        "aiter::dynamic_per_token_scaled_quant",
        ([4, 8], FP8),
        ([4, 8], BF16),
        ([4, 1], FP32),
        None,
        "False",
        ([1], INT),
    )
    with pytest.raises(NoWorkError):
        work_of(
            parse_call(
                "aiter::dynamic_per_token_scaled_quant",
                *(json.dumps(each) for each in (*texts[:2], None, texts[2])),
            )
        )


@pytest.mark.parametrize(
    ("name", "lists", "kernel", "work"),
    [
        # two tensors of 6 and 4 elements
        ("aten::_foreach_add_", 2, LISTS, (10, 80, 40)),
        ("aten::_foreach_sqrt", 1, LISTS, (10, 40, 40)),
        ("aten::_foreach_zero_", 1, LISTS, (0, 0, 40)),
        ("aten::_foreach_norm", 1, LISTS, (10, 40, 8)),
        ("aten::_foreach_sigmoid", 1, LISTS, (10, 40, 40)),
        ("aten::_foreach_copy_", 2, COPIES, (0, 40, 20)),
        # weights, gradients, both moments and the steps
        ("aten::_fused_adam_", 5, ADAM, (None, 160, 120)),
    ],
)
def test_lists_of_tensors(name, lists, kernel, work):
    shapes, types = [[[2, 3], [4]]] * lists, ["TensorList"] * lists
    texts = (json.dumps(shapes), json.dumps(types))
    found = work_of(parse_call(name, *texts, kernel=kernel))
    assert (found.flops, found.read, found.written) == work
    with pytest.raises(NoWorkError):  # no type
        work_of(parse_call(name, *texts, kernel="other"))


COUNTED = """
import json, torch
from torch.profiler import profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
F, r, a = torch.nn.functional, torch.randn, torch.ops.aten
runs = [
    ("_softmax_backward_data", (r(4, 8), r(4, 8), 1, torch.float)),
    ("_log_softmax_backward_data", (r(4, 8), r(4, 8), 1, torch.float)),
    ("native_dropout", (r(4, 8), 0.5, True)),
    ("native_dropout_backward", (r(4, 8), r(4, 8) > 0, 2.0)),
    ("glu", (r(4, 8), -1)),
    ("glu_backward", (r(4, 4), r(4, 8), -1)),
    ("avg_pool2d", (r(2, 4, 7, 6), [3, 3], [2, 1], [1, 0])),
    ("_adaptive_avg_pool2d", (r(2, 4, 6, 6), [2, 3])),
    ("upsample_bilinear2d", (r(2, 4, 3, 3), [6, 5], False)),
    ("upsample_nearest2d_backward", (r(2, 4, 6, 6), [6, 6], [2, 4, 3, 3])),
    ("var_mean", (r(4, 8), [1])),
    ("cummax", (r(4, 8), 1)),
    ("bucketize", (r(5), r(3).sort()[0])),
    ("smooth_l1_loss", (r(4, 8), r(4, 8), 0)),
    ("binary_cross_entropy", (r(4, 8).sigmoid(), r(4, 8).sigmoid(), None, 0)),
    ("scatter_add_", (r(4, 8), 1, torch.zeros(4, 8, dtype=torch.long), r(4, 8))),
    ("index_add_", (r(3, 8), 0, torch.arange(3), r(3, 8))),
    ("embedding_dense_backward", (r(3, 8), torch.arange(3), 3, -1, False)),
    ("multinomial", (r(4, 8).abs(), 2)),
    ("leaky_relu_backward", (r(4, 8), r(4, 8), 0.1, False)),
    ("logaddexp", (r(4, 8), r(8))),
    ("reflection_pad2d", (r(2, 5, 4), [1, 2, 0, 1])),
    ("grid_sampler_2d", (r(2, 3, 2, 2), r(2, 4, 5, 2), 0, 0, False)),
    ("polar", (r(4, 8), r(4, 8))),
    ("_masked_softmax_backward", (r(4, 8), r(4, 8), r(4, 8) > 0, 1)),
    ("_foreach_add_", ([r(2, 3), r(4)], [r(2, 3), r(4)])),
]
calls = {}
class Bytes(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        read, made = (sum(t.numel() * t.element_size() for t in tree_leaves(x) if isinstance(t, torch.Tensor))
                      for x in ((args, kwargs), args[0] if func._schema.name.endswith("foreach_add_") else out))
        calls[func._schema.name] = [read, made]
        return out
out = []
for name, args in runs:
    with Bytes():
        getattr(a, name)(*args)
    with profile(record_shapes=True) as made:
        getattr(a, name)(*args)
    made.export_chrome_trace("trace.json")
    event = next(e for e in json.load(open("trace.json"))["traceEvents"] if e.get("name") == "aten::" + name)
    keys = ("Input Dims", "Input type", "Input Strides", "Concrete Inputs")
    out.append(["aten::" + name, calls["aten::" + name], *(json.dumps(event["args"].get(key)) for key in keys)])
print(json.dumps(out))
"""


@pytest.mark.slow
def test_bytes_are_those_of_real_tensors(engine_python, tmp_path):
    """Operators that move whole arguments, as torch's profiler records them."""
    said = subprocess.run(
        [engine_python, "-c", COUNTED], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    rows = json.loads(said.stdout.splitlines()[-1])
    assert len(rows) == 26
    for name, moved, *texts in rows:
        found = work_of(parse_call(name, *texts, kernel=LISTS))
        assert [found.read, found.written] == moved, name
