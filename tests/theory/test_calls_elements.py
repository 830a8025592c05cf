"""Work of operators on elements and rows by their places: numbers computed by hand, and bytes of
real tensors.
"""

import json
import subprocess

import pytest

from llmprof.theory.calls import NoWorkError, parse_call, work_of
from tests.theory.notation import call

LISTS = "multi_tensor_apply_kernel<TensorListMetadata<2>, at::native::BinaryOpListAlphaFunctor<float, 2, 2, 0>>"
COPIES = "multi_tensor_apply_kernel<TensorListMetadata<2>, at::native::CopyFunctor<c10::BFloat16, float, 2, 1, 1>>"
ADAM = "multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata<4>, FusedAdamMathFunctor<float, 4, 1, false>>"

ROWS = [
    # 4 rows of 8 logits: gradient and result in 32 bits, the gradient of the input in 16 (type 15)
    (call("aten::_softmax_backward_data", "f32[4,8]*2 1 15"), 128, 256, 64),
    (call("aten::_log_softmax_backward_data", "bf16[4,8]*2 1 15"), 128, 128, 64),
    # a mask of a byte an element
    (call("aten::native_dropout", "bf16[4,8] 0.1 True"), 32, 64, 64 + 32),
    (call("aten::native_dropout_backward", "bf16[4,8] bool[4,8] 1.1"), 32, 64 + 32, 64),
    # 5 targets, each names one of 8 logarithms; the mean is a number, without it each has one
    (call("aten::nll_loss_forward", "f32[5,8] i64[5] None 1 -100"), 5, 5 * 12, 4),
    (call("aten::nll_loss_forward", "f32[5,8] i64[5] None 0 -100"), 5, 5 * 12, 20),
    (call("aten::nll_loss_backward", "f32[] f32[5,8] i64[5] None 1 -100 f32[]"), 5, 4 + 40, 20),
    # 3 gradients of 8 into rows of a table of 100, and 3 into one of 2
    (call("aten::embedding_dense_backward", "bf16[3,8] i64[3] 100 -1 False"), 24, 48 + 24, 48),
    (call("aten::embedding_dense_backward", "bf16[3,8] i64[3] 2 -1 False"), 24, 48 + 24, 32),
    (call("aten::scatter_", "bf16[4,8] 1 i64[4,2] bf16[4,2]"), 0, 64 + 16, 16),
    (call("aten::scatter_", "bf16[4,8] 1 i64[4,2] 1"), 0, 64, 16),
    (call("aten::scatter_add_", "bf16[4,8] 1 i64[4,2] bf16[4,2]"), 8, 64 + 16 + 16, 16),
    (call("aten::index_add_", "f32[9,8] 0 i64[3] f32[3,8] 1"), 24, 24 + 96 + 96, 96),
    (call("aten::index_copy_", "f32[9,8] 0 i32[3] f32[3,8]"), 0, 12 + 96, 96),
    (call("aten::index_fill_", "f32[9,8] 1 i64[3] 0"), 0, 24, 4 * 27),
    # two bags of 5 rows of 8 out of 100
    (
        call("aten::_embedding_bag", "f32[100,8] i64[5] i64[2] False 0 False None False -1"),
        40,
        160 + 40 + 16,
        64,
    ),
    (call("aten::masked_select", "f32[4,8] bool[4,8]"), 0, 128 + 32, 0),
    (call("aten::bernoulli_", "f32[4,8]*2"), 0, 128, 128),
    (call("aten::exponential_", "f32[4,8] 1."), 0, 0, 128),
    (call("aten::linspace", "0 1 7 f32[0]"), 0, 0, 28),
    (call("aten::multinomial", "f32[4,8] 2 False"), 32, 128, 64),
    (call("aten::bucketize", "f32[5] f32[3] True False"), 0, 20 + 12, 20),
    (call("aten::searchsorted", "f32[3] f32[5] False*2"), 0, 20 + 12, 40),
    (call("aten::glu", "bf16[4,8] -1"), 32, 64, 32),
    (call("aten::glu_backward", "bf16[4,4] bf16[4,8] -1"), 64, 32 + 64, 64),
    # windows of 3 x 3 with stride 2 and padding 1 of 6 x 6 are 3 x 3
    (
        call("aten::avg_pool2d", "f32[2,4,6,6] [3,3] [2,2] [1,1] False True None"),
        72 * 9,
        4 * 288,
        4 * 72,
    ),
    (call("aten::_adaptive_avg_pool2d", "f32[2,4,6,6] [2,1]"), 288, 4 * 288, 4 * 16),
    (call("aten::adaptive_max_pool2d", "f32[2,4,6,6] [2,1]"), 288, 4 * 288, 12 * 16),
    (call("aten::avg_pool2d_backward", "f32[2,4,3,3] f32[2,4,6,6] [2,2]"), 72, 288, 4 * 288),
    (call("aten::upsample_nearest2d", "f32[2,4,3,3] [6,6] None*2"), 0, 288, 4 * 288),
    (call("aten::upsample_bilinear2d", "f32[2,4,3,3] [6,6] False None*2"), 8 * 288, 288, 4 * 288),
    (call("aten::upsample_nearest2d_backward", "f32[2,4,6,6] [6,6] [2,4,3,3]"), 0, 4 * 288, 288),
    (call("aten::var_mean", "f32[4,8] [1] None True"), 32, 128, 2 * 16),
    (call("aten::var_mean", "f32[4,8] True"), 32, 128, 2 * 4),
    (call("aten::nansum", "f32[4,8] [1] False None"), 32, 128, 16),
    (call("aten::cummax", "f32[4,8] 1"), 32, 128, 32 * 12),
    (call("aten::smooth_l1_loss", "f32[4,8]*2 1 1."), 96, 256, 4),
    (call("aten::binary_cross_entropy", "f32[4,8]*2 None 0"), 96, 256, 128),
    (call("aten::hardtanh_backward", "bf16[4,8]*2 -1 1"), 32, 128, 64),
    (call("aten::elu_backward", "f32[8] 1*3 False f32[8]"), 8, 64, 32),
    (call("aten::tan", "i64[4,8]"), 32, 256, 128),
    (call("aten::isposinf", "bf16[4,8]"), 32, 64, 32),
    (call("aten::_upsample_bilinear2d_aa", "f32[2,4,6,6] [1,1] False None*2"), 64, 4 * 288, 32),
    # 5 x 4 with one before and two after the last axis, and one after the other
    (call("aten::reflection_pad2d", "f32[2,5,4] [1,2,0,1]"), 0, 160, 4 * 2 * 6 * 7),
    (call("aten::grid_sampler_2d", "f32[2,3,9,9] f32[2,2,2,2] 0*2 False"), 192, 384 + 64, 96),
    (call("aten::polar", "f32[4,8]*2"), 32, 256, 256),
    (call("aten::split_with_sizes_copy", "bf16[8,4] [2,2] 1 None"), 0, 64, 64),
    (call("aten::_chunk_cat", ([[2, 4], [3]], "TensorList"), "0 2 f32[2,6]"), 0, 44, 48),
    (call("aten::_masked_softmax_backward", "bf16[4,8]*2 bool[4,8] 1"), 128, 160, 64),
    # a result that is not yet of its size
    (call("aten::abs", "bf16[4,8] bf16[0]"), 32, 64, 64),
    # 4 rows of 8 in 16 bits, a weight of 8; results of a byte with a scale of 32 bits a tensor, a
    # row, or 4 numbers
    (call("_C::rms_norm", "bf16[4,8]*2 None 1e-6"), 128, 64, 64),
    (
        call("_C::rms_norm_static_fp8_quant", "f8[4,8] bf16[4,8] bf16[8] f32[1] 1e-6"),
        192,
        64 + 16 + 4,
        32,
    ),
    (
        call("_C::fused_add_rms_norm_static_fp8_quant", "f8[4,8] bf16[4,8]*2 bf16[8] f32[1]"),
        224,
        128 + 16 + 4,
        32 + 64,
    ),
    (
        call(
            "_C::rms_norm_per_block_quant", "f8[4,8] bf16[4,8] bf16[8] f32[4,2] 1e-6 None bf16[4,8]"
        ),
        192,
        64 + 16 + 64,
        32 + 32 + 64,
    ),
    (
        call("aiter::rmsnorm2d_fwd_with_dynamicquant", "f8[4,8] bf16[4,8] f32[4,1] bf16[8] 1e-6"),
        192,
        64 + 16,
        32 + 16,
    ),
    (
        call("aiter::add_rmsnorm_quant", "f8[4,8] bf16[4,8]*3 f32[4,1] bf16[8]"),
        224,
        128 + 16,
        32 + 64 + 16,
    ),
    (call("aiter::layernorm2d_fwd", "bf16[4,8] bf16[8]*2"), 224, 64 + 32, 64),
    (
        call("vllm::rocm_aiter_rmsnorm_fp8_group_quant", "bf16[4,8] bf16[8] 1e-6 4"),
        192,
        64 + 16,
        32 + 32,
    ),
    (
        call("vllm::rocm_aiter_rmsnorm_fused_add_dynamic_quant", "bf16[4,8]*2 bf16[8] 1e-6 23"),
        224,
        128 + 16,
        64 + 32 + 16,
    ),
    (
        call("vllm::fused_mla_dual_rms_norm", "bf16[4,8] bf16[8] bf16[4,2] bf16[2]"),
        4 * 40,
        64 + 16 + 16 + 4,
        64 + 16,
    ),
    (call("flashinfer::fused_add_rmsnorm", "bf16[4,8]*2 bf16[8]"), 160, 128 + 16, 128),
    # 8 and 8 into 8, with scales of 4
    (call("vllm::rocm_aiter_act_mul_and_fp8_group_quant", "bf16[4,16] 4"), 128, 128, 32 + 32),
    (call("_C::silu_and_mul_per_block_quant", "f8[4,8] bf16[4,16] f32[4,2] 4"), 128, 128, 32 + 32),
    (call("trtllm::flashinfer_silu_and_mul", "bf16[4,16]"), 64, 128, 64),
    (call("vllm::triton_per_token_group_quant_fp8", "bf16[4,8] 4"), 64, 64, 32 + 32),
    (call("sgl_kernel::sgl_per_token_quant_fp8", "bf16[4,8] f8[4,8] f32[4,1]"), 64, 64, 32 + 16),
    (
        call("aiter::dynamic_per_token_scaled_quant", "f8[4,8] bf16[4,8] f32[4,1] None False None"),
        64,
        64,
        32 + 16,
    ),
    # half a byte an element, a byte for each 16; in three forms of the call
    (call("_C::scaled_fp4_quant", "bf16[4,32] f32[1] True"), 256, 256, 64 + 8),
    (call("_C::scaled_fp4_quant", "bf16[4,32] f32[1] True u8[4,16] f8[128,4]"), 256, 256, 72),
    (call("sgl_kernel::scaled_fp4_quant", "u8[4,16] bf16[4,32] f8[128,4] f32[1]"), 256, 256, 72),
    (call("fbgemm::FloatToFP8RowwiseQuantized", "f32[4,32] True"), 128, 512, 4 * 40),
    (call("fbgemm::FP8RowwiseQuantizedToFloat", "u8[4,40] True"), 160, 160, 4 * 32 * 4),
    (call("fbgemm::HFP8QuantizedToFloat", "u8[40] 4 7"), 40, 40, 160),
    # 4 tokens, 4 heads of 8 and one of keys, of which 4 numbers are turned: half of 4 x 40 in 16
    # bits, rows of 4
    (
        call("_C::rotary_embedding", "i64[4] bf16[4,32] bf16[4,8] 8 bf16[99,4] True"),
        3 * 80,
        160 + 32 + 32,
        160,
    ),
    # 2 heads of queries, one of keys, one of values
    (call("_C::fused_qk_norm_rope", "bf16[4,32] 2 1*2 8"), 7 * 96, 192, 192),
    (
        call(
            "sgl_kernel::apply_rope_pos_ids_cos_sin_cache",
            "bf16[4,2,8] bf16[4,1,8] bf16[4,2,8] bf16[4,1,8] f32[99,8] i64[4] False",
        ),
        3 * 96,
        192 + 32,
        192,
    ),
    (
        call(
            "aiter::rope_cached_positions_2c_fwd_impl",
            "bf16[1,4,2,8] bf16[1,4,1,8] bf16[1,4,2,8] bf16[1,4,1,8] bf16[99,1,1,4]*2 i64[1,4] 0",
        ),
        3 * 96,
        192 + 32,
        192,
    ),
    (
        call(
            "aiter::fused_qk_rope_concat_and_cache_mla",
            "bf16[4,2,16] bf16[4,2,8] bf16[4,16] bf16[4,8] f8[99,24] f8[4,2,24]",
        ),
        3 * 96,
        2 * 288,
        288,
    ),
    (
        call(
            "aiter::reshape_and_cache_with_pertoken_quant",
            "bf16[4,1,8]*2 f8[9,1,16,8]*2 f32[1,99]*2 i64[4] True",
        ),
        0,
        128 + 32,
        64,
    ),
    (call("_C_cache_ops::concat_mla_q", "bf16[4,2,8] bf16[4,2,4] bf16[4,2,12]"), 0, 192, 192),
    (call("sgl_kernel::store_kv_cache", "bf16[99,8]*2 i64[4] bf16[4,8]*2"), 0, 128 + 32, 128),
    # 4 tokens to 2 of 8 experts
    (call("_moe_C::topk_sigmoid", "f32[4,2] i32[4,2]*2 f32[4,8]"), 160, 128, 96),
    (call("sgl_kernel::topk_softmax", "f32[4,2] i32[4,2] bf16[4,8] True"), 160, 64, 64),
    (
        call("aiter::biased_grouped_topk_hip", "bf16[4,8] bf16[8] f32[4,2] i32[4,2] 4 2"),
        160,
        64 + 16,
        64,
    ),
    (call("_moe_C::grouped_topk", "f32[4,8] 4 2*2 True 1.0 f32[8] 0"), 160, 160, 64),
    (call("sgl_kernel::moe_fused_gate", "f32[4,8] f32[8] 4 2*2 0"), 160, 160, 64),
    (call("_moe_C::moe_align_block_size", "i32[4,2] 8 16 i32[99] i32[7] i32[1]"), 0, 32, 32),
    (call("_moe_C::shuffle_rows", "bf16[4,8] i32[6] bf16[6,8]"), 0, 64 + 24, 96),
    (call("sgl_kernel::top_k_renorm_probs", "f32[4,8]*2 i32[4] 0"), 32, 128 + 16, 128),
    (
        call(
            "_C::merge_attn_states",
            "bf16[4,2,8] f32[2,4] bf16[4,2,8] f32[2,4] bf16[4,2,8] f32[2,4]",
        ),
        192,
        256 + 64,
        128 + 32,
    ),
    # 32 whole numbers of eight numbers of four bits
    (call("_C::awq_dequantize", "i32[8,4] bf16[2,32] i32[2,4] 0"), 512, 128 + 128 + 32, 512),
    (
        call("bitsandbytes::dequantize_4bit", "u8[128,1] f32[4] 64 nf4 [16,16] 15"),
        512,
        128 + 16,
        512,
    ),
]


@pytest.mark.parametrize(("given", "flops", "read", "written"), ROWS)
def test_work_by_hand(given, flops, read, written):
    found = work_of(given)
    assert (found.flops, found.read, found.written) == (flops, read, written)


def test_rows_that_a_tensor_counts_have_no_work():
    given = "f8[4,8] bf16[4,8] f32[4,1] None False i32[1]"
    with pytest.raises(NoWorkError):
        work_of(call("aiter::dynamic_per_token_scaled_quant", given))


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


@pytest.mark.parametrize(
    ("operator", "needed"),
    [
        ("aten::_softmax_backward_data", "f32[4,8] None 1 15"),
        ("_C_cache_ops::reshape_and_cache_flash", "bf16[4,2,8]*2 bf16[9,16,2,8] None None"),
        ("aten::bucketize", "f32[4] None"),
        ("sgl_kernel::lightning_attention_decode", "bf16[2,4,1,8]*2 None f32[2,4,8,8]"),
    ],
)
def test_a_cost_is_not_told_without_an_argument_that_it_needs(operator, needed):
    with pytest.raises(NoWorkError):
        work_of(call(operator, needed))


def test_an_argument_that_may_be_missing_costs_nothing():
    assert work_of(call("aten::bernoulli_", "f32[4,8] 0.5")).read == 0
    assert work_of(call("aten::bernoulli_", "f32[4,8] f32[4,8]")).read == 128
    assert work_of(call("aten::layer_norm", "f32[4,8] 8 None None")).read == 128


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
