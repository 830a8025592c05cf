"""Work of operators along rows: norms, softmax, reductions, top-k."""

from __future__ import annotations

import math
from typing import Final

from llmprof.theory.calls.call import NoWorkError, OperatorCall
from llmprof.theory.calls.elements import movement, placed, rounded
from llmprof.theory.calls.work import CallWork, OperatorKind

_RMS: Final = 4.0
"""Operations an element of an RMS norm: square, sum, times the inverse root, times the weight."""

_LAYER: Final = 7.0
"""Operations an element of a layer norm: sum, difference, square, sum, times the inverse root,
weight, bias.
"""


_WIDTHS: Final = {0: 1, 1: 1, 2: 2, 3: 4, 4: 8, 5: 2, 6: 4, 7: 8, 11: 1, 15: 2}
"""Bytes of an element by torch's number of its type."""

_LAYER_BACKWARD: Final = 13.0
"""Difference and inverse root (2), times the weight, two sums (3), their terms (4), sums for
weight and bias (3).
"""

_RMS_BACKWARD: Final = 9.0
"""Inverse root, times the weight, a sum (2), its term (3), the sum for the weight (2)."""


def _rms_norm(call: OperatorCall) -> CallWork:
    """``(out, input, weight)`` of vLLM and SGLang; ``(input, weight)`` where the second is the
    weight.
    """
    out, second = call.tensor(0), call.tensor(1)
    x, weight = (out, second) if len(second.shape) == 1 else (second, call.optional(2))
    return CallWork(
        _RMS * x.elements, x.bytes + (weight.bytes if weight else 0), x.elements * out.width
    )


def _layer_norm_backward(call: OperatorCall) -> CallWork:
    """``(gradient, input, …, weight)``: gradients of input, weight and bias."""
    grad, x = call.tensor(0), call.tensor(1)
    weights = [
        each for each in call.tensors()[2:] if len(each.shape) == 1 and each.shape[0] < x.elements
    ]
    weight = max((each.bytes for each in weights), default=0)
    work = _RMS_BACKWARD if "rms" in call.operator else _LAYER_BACKWARD
    return CallWork(work * x.elements, grad.bytes + x.bytes + weight, x.elements * x.width + weight)


def _pooled(call: OperatorCall) -> CallWork:
    """``(input, taps, stride, padding, dilation if the largest, ceil)``: a result for each
    window, or its place too.
    """
    x, largest = call.tensor(0), "max" in call.operator
    taps, stride, padding = (call.numbers(place) for place in range(1, 4))
    dilation = call.numbers(4) if largest else (1.0,)
    stride = stride or taps
    space = len(x.shape) - 2
    each = [one * space if len(one) == 1 else one for one in (taps, stride, padding, dilation)]
    if space < 1 or any(len(one) != space for one in each):
        raise NoWorkError("windows do not fit the input")
    outs = [
        int((size + 2 * pad - wide * (tap - 1) - 1) // step + 1)
        for size, tap, step, pad, wide in zip(x.shape[2:], *each, strict=True)
    ]
    out = math.prod(x.shape[:2]) * math.prod(outs)
    assumed = (
        ""
        if call.get(5 if largest else 4) in (False, 0)
        else "windows that begin inside of the input only"
    )
    return CallWork(
        float(out * math.prod(each[0])), x.bytes, out * (x.width + 8 * largest), "", assumed
    )


def _pooled_backward(call: OperatorCall) -> CallWork:
    """``(gradient, input, …, places)`` into the gradient of the input."""
    grad, x = call.tensor(0), call.tensor(1)
    return CallWork(float(grad.elements), grad.bytes + grad.elements * 8, x.elements * x.width)


def _sized(call: OperatorCall, place: int) -> int:
    """Elements with the sizes of the last axes at a place, and the others of the first argument."""
    shape, sizes = call.tensor(0).shape, call.numbers(place)
    if not sizes or len(sizes) > len(shape):
        raise NoWorkError(f"the sizes of the result of {call.operator} were not recorded")
    return math.prod(shape[: len(shape) - len(sizes)]) * int(math.prod(sizes))


def _pooled_to(call: OperatorCall) -> CallWork:
    """``(input, sizes)``: each element of the input counts in a result; the largest has a place."""
    x, out = call.tensor(0), _sized(call, 1)
    return CallWork(float(x.elements), x.bytes, out * (x.width + 8 * ("max" in call.operator)))


def _upsampled(call: OperatorCall) -> CallWork:
    """``(input, sizes, …)``, or backward ``(gradient, sizes, sizes of the input, …)``: two
    operations a neighbour.
    """
    x = call.tensor(0)
    back = "backward" in call.operator
    out = int(math.prod(call.numbers(2))) if back else _sized(call, 1)
    taps = next((taps for name, taps in _NEIGHBOURS.items() if name in call.operator), 0)
    read = x.elements if back or "_aa" in call.operator else min(x.elements, max(taps, 1) * out)
    return CallWork(2.0 * taps * (x.elements if back else out), read * x.width, out * x.width)


def _padded(call: OperatorCall) -> CallWork:
    """``(input, rows before and after each axis, the last axis first)``."""
    x, around = call.tensor(0), call.numbers(1)
    axes = x.shape[: len(x.shape) - len(around) // 2]
    wide = [
        size + sum(around[2 * at : 2 * at + 2])
        for at, size in enumerate(x.shape[: len(axes) - 1 : -1])
    ]
    return CallWork(0.0, x.bytes, math.prod(axes) * math.prod(wide) * x.width)


def _sampled(call: OperatorCall) -> CallWork:
    """``(input, grid)``: each place of the grid lies between the elements of a cell."""
    x, grid = call.tensor(0), call.tensor(1)
    out = grid.elements // max(1, grid.shape[-1]) * x.shape[1]
    near = 2 ** grid.shape[-1]
    return CallWork(
        2.0 * near * out, min(x.bytes, near * out * x.width) + grid.bytes, out * x.width
    )


_NEIGHBOURS: Final = {"bilinear": 4, "trilinear": 8, "bicubic": 16, "linear": 2}
"""Elements of the input that a result lies between."""


def _squared_error(call: OperatorCall) -> CallWork:
    """Difference, square and sum; the sum or mean of all unless the call asks for none."""
    x, target = call.tensor(0), call.tensor(1)
    out = x.elements if call.number(3 if "entropy" in call.operator else 2, 1) == 0 else 1
    return CallWork(3.0 * x.elements, x.bytes + target.bytes, out * x.width)


def _picked(call: OperatorCall) -> CallWork:
    """``(logarithms, targets, weights, reduction)``: the one that each target names; their mean
    unless told not to.
    """
    x, target = call.tensor(0), call.tensor(1)
    out = target.elements if call.number(3, 1) == 0 else 1
    return CallWork(float(target.elements), target.bytes + target.elements * x.width, out * x.width)


def _picked_backward(call: OperatorCall) -> CallWork:
    """``(gradient, logarithms, targets, …)``: one element for each target; the zeros are another
    operator's.
    """
    grad, x, target = (call.tensor(place) for place in range(3))
    return CallWork(float(target.elements), grad.bytes + target.bytes, target.elements * x.width)


def _softmax_backward(call: OperatorCall) -> CallWork:
    """``(gradient, result, axis, type of the input)``: product, sum, difference and product of
    each element.
    """
    grad, out = call.tensor(0), call.tensor(1)
    width = _width(call, 3, grad.width)
    return CallWork(4.0 * grad.elements, grad.bytes + out.bytes, grad.elements * width)


def _softmax(call: OperatorCall) -> CallWork:
    """Maximum, difference, exp, sum and quotient of each element."""
    x, said = call.tensor(0), call.get(2)
    width = (4 if said else x.width) if isinstance(said, bool) else _width(call, 2, x.width)
    return CallWork(5.0 * x.elements, x.bytes, x.elements * width)


def _width(call: OperatorCall, place: int, usual: float) -> float:
    """Bytes of an element of the result by the type that is asked for at a place; a usual one if
    none is.
    """
    asked = call.get(place)
    return (
        _WIDTHS.get(int(asked), usual)
        if isinstance(asked, int | float) and not isinstance(asked, bool)
        else usual
    )


_SUMS: Final = ("aten::sum", "aten::nansum", "aten::prod", "aten::cumsum", "aten::cumprod")
"""Sums of whole numbers are of 64 bits."""

_PAIRS: Final = ("aten::var_mean", "aten::std_mean", "aten::aminmax")
"""Reductions to two numbers."""


def _reduction(call: OperatorCall) -> CallWork:
    """One operation an element of the input; the result has an element for each of the other
    axes.
    """
    x = call.tensor(0)
    everything = call.operator in (*_SUMS, "aten::mean") and len(call.arguments) == 2
    axes = None if everything else call.get(2 if "norm" in call.operator else 1)
    count = len(x.shape)
    given = axes if isinstance(axes, tuple) else (axes,)
    gone = {
        int(axis) % count
        for axis in given
        if axis is not True and axis is not False and isinstance(axis, int | float) and count
    }
    out = math.prod(size for axis, size in enumerate(x.shape) if gone and axis not in gone)
    out = out if gone else 1
    floats = x.format.startswith(("fp", "bf"))
    width = 8 if "arg" in call.operator or (call.operator in _SUMS and not floats) else x.width
    if call.operator in ("aten::any", "aten::all"):
        width = 1
    elif call.operator in (*_SUMS, "aten::mean"):
        width = _width(call, 1 if everything else 3, width)
    elif call.operator in ("aten::max", "aten::min") and gone:
        width += 8  # and its place
    elif call.operator in _PAIRS:
        width *= 2
    return CallWork(float(x.elements) if floats else 0.0, x.bytes, out * width)


def _scan(call: OperatorCall) -> CallWork:
    """A result for each element."""
    x = call.tensor(0)
    floats = x.format.startswith(("fp", "bf"))
    if call.operator in ("aten::cummax", "aten::cummin"):
        width = x.width + 8  # and its place
    else:
        width = _width(call, 2, x.width if floats else 8)
    return CallWork(float(x.elements) if floats else 0.0, x.bytes, x.elements * width)


def _chosen(call: OperatorCall) -> CallWork:
    """The largest values of each row and their places."""
    x = call.tensor(0)
    many = call.number(1) if call.operator == "aten::topk" else x.shape[-1] if x.shape else 1
    axis = call.number(2, -1) if call.operator == "aten::topk" else -1
    along = x.shape[int(axis)] if -len(x.shape) <= axis < len(x.shape) else 1
    out = x.elements / max(1, along) * many
    return CallWork(0.0, x.bytes, out * (x.width + 8))


def _drawn(call: OperatorCall) -> CallWork:
    """``(weights of each row, number)``: places that are drawn by chance."""
    x = call.tensor(0)
    rows = x.elements // max(1, x.shape[-1]) if x.shape else 1
    return CallWork(float(x.elements), x.bytes, rows * call.number(1) * 8)


def _routed(call: OperatorCall) -> CallWork:
    """``(logits, …)`` into weights of 32 bits and places of 32 bits of the chosen experts, whose
    number is a place.
    """
    x = call.tensor(0, 2)
    biased = call.optional(1) or call.optional(6)
    place = 2 if "kimi" in call.operator else 4 if call.optional(1) else 3
    return CallWork(
        5.0 * x.elements,
        x.bytes + (biased.bytes if biased else 0),
        x.shape[0] * call.number(place) * 8,
    )


def _unpacked(call: OperatorCall) -> CallWork:
    """``(numbers of four bits, scales, …)`` into numbers of the type of the scales, or of one
    that is asked for.
    """
    packed, scales = call.tensor(0), call.tensor(1)
    zeros = call.optional(2)
    width = scales.width if "awq" in call.operator else _WIDTHS.get(int(call.number(5)), 0)
    out = packed.elements * packed.width * 2
    return CallWork(
        2.0 * out, packed.bytes + scales.bytes + (zeros.bytes if zeros else 0), out * width
    )


def _looked_up(call: OperatorCall) -> CallWork:
    """Places of values among sorted boundaries, ``(values, boundaries)`` or the other way."""
    sort = "search" in call.operator
    x, bounds = call.tensor(1 if sort else 0), call.tensor(0 if sort else 1)
    return CallWork(0.0, x.bytes + bounds.bytes, x.elements * (4 if call.get(2) is True else 8))


_VLLM: Final = "vllm/csrc/layernorm_quant_kernels.cu"
_ROCM: Final = "vllm/_aiter_ops.py"
_ROUNDED_NORMS: Final[tuple[tuple[str, str, float, int | None], ...]] = (
    ("rmsnorm_fused_dynamic_quant", "0 1 >", 6, None),
    ("rmsnorm_fused_add_dynamic_quant", "0 1 2 > 1", 7, None),
    ("rmsnorm_fp8_group_quant", "0 1 >", 6, 3),
    ("rmsnorm_with_add_fp8_group_quant", "0 1 2 > 1", 7, 4),
    ("fused_rms_gated_fp8_group_quant", "0 1 2 3 >", 8, 7),
)
_AITER_NORMS: Final[tuple[tuple[str, str, float], ...]] = (
    (
        "rmsnorm2d_fwd_with_dynamicquant rmsnorm2d_fwd_with_dynamicquant_ck rmsnorm_quant",
        "1 3 > 0 2",
        6,
    ),
    (
        (
            "rmsnorm2d_fwd_with_add_dynamicquant rmsnorm2d_fwd_with_add_dynamicquant_ck"
            " add_rmsnorm_quant"
        ),
        "1 2 5 > 0 3 4",
        7,
    ),
    ("rmsnorm2d_fwd_with_smoothquant rmsnorm2d_fwd_with_smoothquant_ck", "1 2 4 > 0 3", 7),
    (
        "rmsnorm2d_fwd_with_add_smoothquant rmsnorm2d_fwd_with_add_smoothquant_ck",
        "1 2 4 6 > 0 3 5",
        8,
    ),
    ("layer_norm layer_norm_ck layernorm2d_fwd layernorm2d_fwd_ck", "0 1 2 > 0", 7),
    ("layernorm2d_fwd_with_add layernorm2d_fwd_with_add_ck", "1 2 4 5 > 0 3", 8),
)
"""Names, places of inputs and results, and operations an element."""

_UPSAMPLES: Final = (
    "upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_linear1d upsample_bilinear2d"
    " upsample_trilinear3d upsample_bicubic2d _upsample_nearest_exact1d _upsample_nearest_exact2d"
    " _upsample_nearest_exact3d _upsample_bilinear2d_aa _upsample_bicubic2d_aa"
)

KINDS: Final = [
    OperatorKind(
        "norm",
        "aten::layer_norm aten::native_layer_norm FusedLayerNormAffineFunction"
        " aten::native_group_norm aten::group_norm aiter::_groupnorm_run",
        movement("0 2 3 > 0", _LAYER),
        "7 an element; input, weight, bias and result once",
        "its definition",
    ),
    OperatorKind(
        "norm",
        "_C::rms_norm sgl_kernel::rmsnorm aiter::rmsnorm aiter::rms_norm aiter::rmsnorm2d_fwd_ck"
        " aiter::rmsnorm2d_fwd aiter::rms_norm_cu sgl_kernel::gemma_rmsnorm flashinfer::rmsnorm"
        " flashinfer::gemma_rmsnorm trtllm::flashinfer_rmsnorm trtllm::flashinfer_gemma_rmsnorm"
        " LigerRMSNormFunction FusedRMSNormAffineFunction",
        _rms_norm,
        "4 an element; input, weight and result once",
        "vllm/csrc/layernorm_kernels.cu",
    ),
    OperatorKind(
        "norm",
        "aten::rms_norm aten::_fused_rms_norm",
        movement("0 2 > 0", _RMS),
        "4 an element; input, weight and result once",
        "its definition",
    ),
    OperatorKind(
        "norm",
        "_C::fused_add_rms_norm sgl_kernel::fused_add_rmsnorm sgl_kernel::gemma_fused_add_rmsnorm"
        " aiter::fused_add_rms_norm_cu flashinfer::fused_add_rmsnorm"
        " flashinfer::gemma_fused_add_rmsnorm trtllm::flashinfer_fused_add_rmsnorm"
        " trtllm::flashinfer_gemma_fused_add_rmsnorm",
        movement("0 1 2 > 0 1", _RMS + 1),
        "5 an element; weight once, input and residual twice (in place)",
        "vllm/csrc/layernorm_kernels.cu",
    ),
    OperatorKind(
        "norm",
        "aiter::add_rmsnorm aiter::rmsnorm2d_fwd_with_add_ck aiter::rmsnorm2d_fwd_with_add",
        movement("1 2 4 > 0 3", _RMS + 1),
        "5 an element; input, residual, weight and both results once",
        "aiter/ops/rmsnorm.py",
    ),
    placed(
        "norm", "_C::rms_norm_static_fp8_quant flashinfer::rmsnorm_quant", "1 2 3 > 0", 6, _VLLM
    ),
    placed(
        "norm",
        "_C::fused_add_rms_norm_static_fp8_quant trtllm::flashinfer_fused_add_rmsnorm_quant "
        "flashinfer::fused_add_rmsnorm_quant",
        "1 2 3 4 > 0 2",
        7,
        _VLLM,
    ),
    placed(
        "norm",
        "_C::rms_norm_dynamic_per_token_quant _C::rms_norm_per_block_quant",
        "1 2 6 > 0 3 6",
        6,
        _VLLM,
    ),
    *(
        placed(
            "norm",
            " ".join(f"aiter::{name}" for name in names.split()),
            places,
            flops,
            "aiter/ops/rmsnorm.py",
        )
        for names, places, flops in _AITER_NORMS
    ),
    placed("norm", "vllm::fused_mla_dual_rms_norm", "0 1 2 3 > 0 2", 4, _ROCM, of="0 2"),
    placed(
        "norm",
        "vllm::rocm_aiter_triton_add_rmsnorm_pad",
        "0 1 3 > 0 3",
        5,
        _ROCM,
        assumed="padding left out",
    ),
    *(
        OperatorKind(
            "norm",
            f"vllm::rocm_aiter_{name}",
            rounded(places, flops, group=group),
            f"{flops:g} an element; inputs, results and scales once",
            _ROCM,
        )
        for name, places, flops, group in _ROUNDED_NORMS
    ),
    OperatorKind(
        "norm backward",
        "aten::native_layer_norm_backward aten::native_group_norm_backward "
        "aten::_fused_rms_norm_backward",
        _layer_norm_backward,
        "13 an element (RMS norm: 9); gradient, input, weight, and the gradients of input and"
        " weight once",
        "its definition",
    ),
    OperatorKind(
        "norm",
        "aten::native_batch_norm aten::cudnn_batch_norm aten::miopen_batch_norm"
        " aten::_batch_norm_with_update aten::_native_batch_norm_legit"
        " aten::_native_batch_norm_legit_no_training aten::_batch_norm_no_update",
        movement("0 > 0", _LAYER),
        "7 an element; input and result once",
        "its definition",
    ),
    OperatorKind(
        "norm backward",
        "aten::native_batch_norm_backward aten::cudnn_batch_norm_backward "
        "aten::miopen_batch_norm_backward aten::batch_norm_backward",
        movement("0 1 > 0", _LAYER_BACKWARD),
        "13 an element; input, gradient, and the gradient of the input once",
        "its definition",
    ),
    placed("norm", "aten::batch_norm_elemt", "0 > 0", 4, "its definition"),
    placed("norm", "aten::batch_norm_stats", "0 >", 4, "its definition"),
    placed("norm backward", "aten::batch_norm_backward_reduce", "0 1 >", 5, "its definition"),
    placed("norm backward", "aten::batch_norm_backward_elemt", "0 1 > 0", 6, "its definition"),
    placed("norm", "aten::_weight_norm_interface", "0 1 > 0 1", 4, "its definition"),
    placed(
        "norm backward",
        "aten::_weight_norm_interface_backward",
        "0 1 2 3 > 1 2",
        6,
        "its definition",
    ),
    OperatorKind(
        "pooling",
        "aten::max_pool2d_with_indices aten::max_pool3d_with_indices aten::avg_pool2d"
        " aten::avg_pool3d",
        _pooled,
        "an operation for each tap of each result; input, results and places of the largest once",
        "its definition",
    ),
    OperatorKind(
        "pooling",
        "aten::_adaptive_avg_pool2d aten::_adaptive_avg_pool3d aten::adaptive_max_pool2d "
        "aten::adaptive_max_pool3d",
        _pooled_to,
        "1 an element; input, results and places of the largest once",
        "its definition",
    ),
    placed(
        "pooling",
        "aten::_adaptive_avg_pool2d_backward aten::_adaptive_avg_pool3d_backward "
        "aten::avg_pool2d_backward aten::avg_pool3d_backward",
        "0 > 1",
        1,
        "its definition",
    ),
    OperatorKind(
        "upsampling",
        " ".join(f"aten::{how} aten::{how}_backward" for how in _UPSAMPLES.split()),
        _upsampled,
        "2 a neighbour of a result (nearest: 0); input and result once",
        "their definition",
    ),
    OperatorKind(
        "copy",
        "aten::reflection_pad1d aten::reflection_pad2d aten::reflection_pad3d"
        " aten::replication_pad1d aten::replication_pad2d aten::replication_pad3d",
        _padded,
        "0; input and result once",
        "their definition",
    ),
    OperatorKind(
        "upsampling",
        "aten::grid_sampler_2d aten::grid_sampler_3d",
        _sampled,
        "2 a neighbour of a result; grid, input and result once",
        "their definition",
    ),
    OperatorKind(
        "pooling",
        "aten::max_pool2d_with_indices_backward aten::max_pool3d_with_indices_backward "
        "aten::adaptive_max_pool2d_backward aten::adaptive_max_pool3d_backward",
        _pooled_backward,
        "1 a result; its gradient, places, and the gradient of the input once",
        "its definition",
    ),
    OperatorKind(
        "loss",
        "aten::mse_loss aten::smooth_l1_loss aten::huber_loss aten::binary_cross_entropy",
        _squared_error,
        "3 an element; input, target and result once",
        "its definition",
    ),
    OperatorKind(
        "loss",
        "aten::nll_loss_forward aten::nll_loss2d_forward",
        _picked,
        "1 a target; targets, the logarithms that they name, and the result once",
        "its definition",
    ),
    OperatorKind(
        "loss",
        "aten::nll_loss_backward aten::nll_loss2d_backward",
        _picked_backward,
        "1 a target; targets and the elements that they name once",
        "its definition",
    ),
    OperatorKind(
        "loss",
        "aten::mse_loss_backward aten::smooth_l1_loss_backward aten::huber_loss_backward "
        "aten::binary_cross_entropy_backward",
        movement("1 2 0 > 1", 3),
        "3 an element; input, target, gradient and the gradient of the input once",
        "its definition",
    ),
    OperatorKind(
        "softmax",
        "aten::_softmax aten::softmax aten::_log_softmax aten::log_softmax"
        " ScaledUpperTriangMaskedSoftmax aten::_masked_softmax",
        _softmax,
        "5 an element; input and result once",
        "its definition",
    ),
    placed("softmax backward", "aten::_masked_softmax_backward", "0 1 2 > 0", 4, "its definition"),
    OperatorKind(
        "softmax backward",
        "aten::_softmax_backward_data aten::_log_softmax_backward_data",
        _softmax_backward,
        "4 an element; gradient, result and the gradient of the input once",
        "its definition",
    ),
    OperatorKind(
        "reduction",
        "aten::mean aten::sum aten::amax aten::amin aten::max aten::min aten::argmax aten::argmin "
        "aten::prod aten::any aten::all aten::var aten::std aten::norm aten::linalg_vector_norm "
        "aten::nansum aten::var_mean aten::std_mean aten::aminmax",
        _reduction,
        "1 an element of the input, where numbers are floats; input and result once",
        "its definition",
    ),
    OperatorKind(
        "reduction",
        "aten::cumsum aten::cumprod aten::logcumsumexp aten::cummax aten::cummin "
        "aten::cumsum_ aten::cumprod_",
        _scan,
        "1 an element; input and result once",
        "its definition",
    ),
    OperatorKind(
        "top-k",
        "aten::topk aten::sort",
        _chosen,
        "0; input, values and places once",
        "its definition",
    ),
    placed(
        "moe_routing",
        "_moe_C::topk_sigmoid _moe_C::topk_softplus_sqrt aiter::topk_softmax "
        "vllm::rocm_aiter_topk_softmax",
        "3 > 0 1 2",
        5,
        "vllm/csrc/moe",
    ),
    placed(
        "moe_routing",
        "sgl_kernel::topk_softmax sgl_kernel::topk_sigmoid aiter::topk_sigmoid aiter::topk_softplus"
        " vllm::rocm_aiter_topk_sigmoid",
        "2 3 > 0 1",
        5,
        "sgl-kernel/csrc/moe",
    ),
    placed(
        "moe_routing",
        "aiter::biased_grouped_topk_hip aiter::biased_grouped_topk aiter::moe_fused_gate "
        "vllm::rocm_aiter_biased_grouped_topk",
        "0 1 > 2 3",
        5,
        "aiter/ops/topk.py",
    ),
    placed(
        "moe_routing",
        "aiter::grouped_topk aiter::grouped_topk_hip vllm::rocm_aiter_grouped_topk",
        "0 > 1 2",
        5,
        "aiter/ops/topk.py",
    ),
    OperatorKind(
        "moe_routing",
        "_moe_C::grouped_topk sgl_kernel::moe_fused_gate sgl_kernel::kimi_k2_moe_fused_gate",
        _routed,
        "5 a logit; logits, bias, weights and places once",
        "vllm/csrc/moe, sgl-kernel/csrc/moe",
    ),
    placed(
        "moe_routing",
        "_moe_C::moe_align_block_size sgl_kernel::moe_align_block_size aiter::moe_align_block_size",
        "0 > 0",
        0,
        "vllm/csrc/moe",
        assumed="rows to fill blocks left out",
    ),
    placed(
        "moe_routing",
        "aiter::moe_sorting_fwd",
        "0 1 > 0 1 6",
        0,
        "aiter/ops/moe_sorting.py",
        assumed="rows to fill blocks left out",
    ),
    placed(
        "moe_routing",
        "_moe_C::shuffle_rows sgl_kernel::shuffle_rows",
        "0 1 > 2",
        0,
        "vllm/csrc/moe",
    ),
    placed(
        "moe_routing",
        "sgl_kernel::moe_sum_reduce aiter::moe_sum",
        "0 > 1",
        1,
        "sgl-kernel/csrc/moe",
    ),
    placed(
        "moe_routing", "sgl_kernel::apply_shuffle_mul_sum", "0 2 3 > 1", 2, "sgl-kernel/csrc/moe"
    ),
    placed("sampling", "_C::apply_repetition_penalties_", "0 1 2 3 > 0", 2, "vllm/csrc/sampler.cu"),
    placed(
        "sampling",
        "sgl_kernel::top_k_renorm_probs sgl_kernel::top_p_renorm_probs"
        " sgl_kernel::top_k_mask_logits sgl_kernel::min_p_sampling_from_probs"
        " sgl_kernel::top_p_sampling_from_probs sgl_kernel::top_k_top_p_sampling_from_probs",
        "0 2 > 1",
        1,
        "sgl-kernel/csrc/common_extension.cc",
    ),
    placed(
        "sampling",
        "aiter::greedy_sample aiter::random_sample aiter::mixed_sample",
        "1 2 > 0",
        1,
        "aiter/ops/sample.py",
    ),
    placed(
        "sampling",
        "aiter::random_sample_outer_exponential aiter::mixed_sample_outer_exponential",
        "1 2 3 > 0",
        3,
        "aiter/ops/sample.py",
    ),
    placed(
        "attention schedule",
        "_vllm_fa3_C::get_scheduler_metadata",
        "8 9 >",
        0,
        "vllm-flash-attention/hopper",
        assumed="results left out",
    ),
    placed(
        "attention merge",
        "_C::merge_attn_states",
        "2 3 4 5 > 0 1",
        3,
        "vllm/csrc/attention/merge_attn_states.cu",
    ),
    placed(
        "attention merge",
        "sgl_kernel::merge_state sgl_kernel::merge_state_v2",
        "0 1 2 3 > 4 5",
        3,
        "sgl-kernel/csrc/attention",
    ),
    OperatorKind(
        "quantize",
        "_C::awq_dequantize sgl_kernel::awq_dequantize bitsandbytes::dequantize_4bit",
        _unpacked,
        "2 an element of the result; packed numbers, scales, zero points and result once",
        "vllm/csrc/quantization/awq, bitsandbytes/_ops.py",
    ),
    OperatorKind(
        "sampling",
        "aten::multinomial",
        _drawn,
        "1 an element; input and places once",
        "its definition",
    ),
    OperatorKind(
        "search",
        "aten::bucketize aten::searchsorted",
        _looked_up,
        "0; values, boundaries and places once",
        "their definition",
    ),
]
