"""Work of operators along rows: norms, softmax, reductions, top-k."""

from __future__ import annotations

import math
from typing import Final

from llmprof.theory.calls.call import Call, NoWorkError
from llmprof.theory.calls.elements import placed
from llmprof.theory.calls.work import Kind, Work

_RMS: Final = 4.0
"""Operations an element of an RMS norm: square, sum, times the inverse root, times the weight."""

_LAYER: Final = 7.0
"""Operations an element of a layer norm: sum, difference, square, sum, times the inverse root, weight, bias."""


_WIDTHS: Final = {0: 1, 1: 1, 2: 2, 3: 4, 4: 8, 5: 2, 6: 4, 7: 8, 11: 1, 15: 2}
"""Bytes of an element by torch's number of its type."""

_LAYER_BACKWARD: Final = 13.0
"""Difference and inverse root (2), times the weight, two sums (3), their terms (4), sums for weight and bias (3)."""

_RMS_BACKWARD: Final = 9.0
"""Inverse root, times the weight, a sum (2), its term (3), the sum for the weight (2)."""


def layer_norm(call: Call) -> Work:
    """Input, weight and bias at the places 0, 2 and 3; mean and deviation of each row are left out."""
    x = call.tensor(0)
    more = sum(each.bytes for place in (2, 3) if (each := call.optional(place)))
    return Work(_LAYER * x.elements, x.bytes + more, x.elements * x.width)


def rms_norm(call: Call) -> Work:
    """``(out, input, weight)`` of vLLM and SGLang; ``(input, weight)`` where the second is the weight."""
    second = call.tensor(1)
    if len(second.shape) == 1:
        x, out, weight = call.tensor(0), call.tensor(0), second
    else:
        out, x, weight = call.tensor(0), second, call.tensor(2)
    return Work(_RMS * x.elements, x.bytes + weight.bytes, x.elements * out.width)


def torch_rms_norm(call: Call) -> Work:
    """``(input, sizes, weight)``."""
    x, weight = call.tensor(0), call.optional(2)
    return Work(_RMS * x.elements, x.bytes + (weight.bytes if weight else 0), x.elements * x.width)


def add_rms_norm(call: Call) -> Work:
    """``(input, residual, weight)``, both in place: the sum becomes the residual."""
    x, residual, weight = call.tensor(0), call.tensor(1), call.tensor(2)
    written = x.elements * x.width + residual.elements * residual.width
    return Work((_RMS + 1) * x.elements, x.bytes + residual.bytes + weight.bytes, written)


def add_rms_norm_out(call: Call) -> Work:
    """``(out, input, residual, residual out, weight)``."""
    out, x, residual, kept, weight = (call.tensor(place) for place in range(5))
    written = out.elements * out.width + kept.elements * kept.width
    return Work((_RMS + 1) * x.elements, x.bytes + residual.bytes + weight.bytes, written)


def layer_norm_backward(call: Call) -> Work:
    """``(gradient, input, …, weight)``: gradients of input, weight and bias."""
    grad, x = call.tensor(0), call.tensor(1)
    weights = [each for each in call.tensors()[2:] if len(each.shape) == 1 and each.shape[0] < x.elements]
    weight = max((each.bytes for each in weights), default=0)
    work = _RMS_BACKWARD if "rms" in call.operator else _LAYER_BACKWARD
    return Work(work * x.elements, grad.bytes + x.bytes + weight, x.elements * x.width + weight)


def batch_norm(call: Call) -> Work:
    """Input and result; what belongs to a channel is left out."""
    x = call.tensor(0)
    return Work(_LAYER * x.elements, x.bytes, x.elements * x.width)


def batch_norm_backward(call: Call) -> Work:
    """Input and gradient, in whichever order, and the gradient of the input."""
    one, other = call.tensor(0), call.tensor(1)
    return Work(_LAYER_BACKWARD * one.elements, one.bytes + other.bytes, one.elements * one.width)


def pooled(call: Call) -> Work:
    """``(input, taps, stride, padding, dilation if the largest, ceil)``: a result for each window, or its place too."""
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
    assumed = "" if call.get(5 if largest else 4) in (False, 0) else "windows that begin inside of the input only"
    return Work(float(out * math.prod(each[0])), x.bytes, out * (x.width + 8 * largest), "", assumed)


def pooled_backward(call: Call) -> Work:
    """``(gradient, input, …, places)`` into the gradient of the input."""
    grad, x = call.tensor(0), call.tensor(1)
    return Work(float(grad.elements), grad.bytes + grad.elements * 8, x.elements * x.width)


def _sized(call: Call, place: int) -> int:
    """Elements with the sizes of the last axes at a place, and the others of the first argument."""
    shape, sizes = call.tensor(0).shape, call.numbers(place)
    if not sizes or len(sizes) > len(shape):
        raise NoWorkError(f"the sizes of the result of {call.operator} were not recorded")
    return math.prod(shape[: len(shape) - len(sizes)]) * int(math.prod(sizes))


def pooled_to(call: Call) -> Work:
    """``(input, sizes)``: each element of the input counts in a result; the largest has a place."""
    x, out = call.tensor(0), _sized(call, 1)
    return Work(float(x.elements), x.bytes, out * (x.width + 8 * ("max" in call.operator)))


def upsampled(call: Call) -> Work:
    """``(input, sizes, …)``, or backward ``(gradient, sizes, sizes of the input, …)``: two operations a neighbour."""
    x = call.tensor(0)
    back = "backward" in call.operator
    out = int(math.prod(call.numbers(2))) if back else _sized(call, 1)
    taps = next((taps for name, taps in _NEIGHBOURS.items() if name in call.operator), 0)
    read = x.elements if back else min(x.elements, max(taps, 1) * out)
    return Work(2.0 * taps * (x.elements if back else out), read * x.width, out * x.width)


_NEIGHBOURS: Final = {"bilinear": 4, "trilinear": 8, "bicubic": 16, "linear": 2}
"""Elements of the input that a result lies between."""


def squared_error(call: Call) -> Work:
    """Difference, square and sum; the sum or mean of all unless the call asks for none."""
    x, target = call.tensor(0), call.tensor(1)
    out = x.elements if call.number(3 if "entropy" in call.operator else 2, 1) == 0 else 1
    return Work(3.0 * x.elements, x.bytes + target.bytes, out * x.width)


def squared_error_backward(call: Call) -> Work:
    """``(gradient, input, target)``: twice the difference times the gradient."""
    x, target = call.tensor(1), call.tensor(2)
    grad = call.optional(0)
    return Work(3.0 * x.elements, x.bytes + target.bytes + (grad.bytes if grad else 0), x.elements * x.width)


def picked(call: Call) -> Work:
    """``(logarithms, targets, weights, reduction)``: the one that each target names; their mean unless told not to."""
    x, target = call.tensor(0), call.tensor(1)
    out = target.elements if call.number(3, 1) == 0 else 1
    return Work(float(target.elements), target.bytes + target.elements * x.width, out * x.width)


def picked_backward(call: Call) -> Work:
    """``(gradient, logarithms, targets, …)``: one element for each target; the zeros are another operator's."""
    grad, x, target = (call.tensor(place) for place in range(3))
    return Work(float(target.elements), grad.bytes + target.bytes, target.elements * x.width)


def softmax_backward(call: Call) -> Work:
    """``(gradient, result, axis, type of the input)``: product, sum, difference and product of each element."""
    grad, out = call.tensor(0), call.tensor(1)
    width = _width(call, 3, grad.width)
    return Work(4.0 * grad.elements, grad.bytes + out.bytes, grad.elements * width)


def softmax(call: Call) -> Work:
    """Maximum, difference, exp, sum and quotient of each element."""
    x, said = call.tensor(0), call.get(2)
    width = (4 if said else x.width) if isinstance(said, bool) else _width(call, 2, x.width)
    return Work(5.0 * x.elements, x.bytes, x.elements * width)


def _width(call: Call, place: int, usual: float) -> float:
    """Bytes of an element of the result by the type that is asked for at a place; a usual one if none is."""
    asked = call.get(place)
    return _WIDTHS.get(int(asked), usual) if isinstance(asked, int | float) and not isinstance(asked, bool) else usual


_SUMS: Final = ("aten::sum", "aten::nansum", "aten::prod", "aten::cumsum", "aten::cumprod")
"""Sums of whole numbers are of 64 bits."""

_PAIRS: Final = ("aten::var_mean", "aten::std_mean", "aten::aminmax")
"""Reductions to two numbers."""


def reduction(call: Call) -> Work:
    """One operation an element of the input; the result has an element for each of the other axes."""
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
    return Work(float(x.elements) if floats else 0.0, x.bytes, out * width)


def scan(call: Call) -> Work:
    """A result for each element."""
    x = call.tensor(0)
    floats = x.format.startswith(("fp", "bf"))
    if call.operator in ("aten::cummax", "aten::cummin"):
        width = x.width + 8  # and its place
    else:
        width = _width(call, 2, x.width if floats else 8)
    return Work(float(x.elements) if floats else 0.0, x.bytes, x.elements * width)


def chosen(call: Call) -> Work:
    """The largest values of each row and their places."""
    x = call.tensor(0)
    many = call.number(1) if call.operator == "aten::topk" else x.shape[-1] if x.shape else 1
    axis = call.number(2, -1) if call.operator == "aten::topk" else -1
    along = x.shape[int(axis)] if -len(x.shape) <= axis < len(x.shape) else 1
    out = x.elements / max(1, along) * many
    return Work(0.0, x.bytes, out * (x.width + 8))


def drawn(call: Call) -> Work:
    """``(weights of each row, number)``: places that are drawn by chance."""
    x = call.tensor(0)
    rows = x.elements // max(1, x.shape[-1]) if x.shape else 1
    return Work(float(x.elements), x.bytes, rows * call.number(1) * 8)


def looked_up(call: Call) -> Work:
    """Places of values among sorted boundaries, ``(values, boundaries)`` or the other way."""
    sort = "search" in call.operator
    x, bounds = call.tensor(1 if sort else 0), call.tensor(0 if sort else 1)
    return Work(0.0, x.bytes + bounds.bytes, x.elements * (4 if call.get(2) is True else 8))


_UPSAMPLES: Final = "nearest1d nearest2d nearest3d linear1d bilinear2d trilinear3d bicubic2d"

KINDS: Final = [
    Kind("norm", "aten::layer_norm aten::native_layer_norm FusedLayerNormAffineFunction aten::native_group_norm "
         "aten::group_norm aiter::_groupnorm_run", layer_norm, "7 an element; input, weight, bias and result once",
         "its definition"),
    Kind("norm", "_C::rms_norm sgl_kernel::rmsnorm aiter::rmsnorm aiter::rms_norm aiter::rmsnorm2d_fwd_ck", rms_norm,
         "4 an element; input, weight and result once", "vllm/csrc/layernorm_kernels.cu"),
    Kind("norm", "aten::rms_norm aten::_fused_rms_norm", torch_rms_norm, "4 an element; input, weight and result once",
         "its definition"),
    Kind("norm", "_C::fused_add_rms_norm sgl_kernel::fused_add_rmsnorm", add_rms_norm,
         "5 an element; weight once, input and residual twice (in place)", "vllm/csrc/layernorm_kernels.cu"),
    Kind("norm", "aiter::add_rmsnorm aiter::rmsnorm2d_fwd_with_add_ck aiter::rmsnorm2d_fwd_with_add", add_rms_norm_out,
         "5 an element; input, residual, weight and both results once", "aiter/ops/rmsnorm.py"),
    Kind("norm backward", "aten::native_layer_norm_backward aten::native_group_norm_backward "
         "aten::_fused_rms_norm_backward", layer_norm_backward,
         "13 an element (RMS norm: 9); gradient, input, weight, and the gradients of input and weight once",
         "its definition"),
    Kind("norm", "aten::native_batch_norm aten::cudnn_batch_norm aten::miopen_batch_norm aten::_batch_norm_with_update "
         "aten::_native_batch_norm_legit aten::_native_batch_norm_legit_no_training aten::_batch_norm_no_update",
         batch_norm, "7 an element; input and result once", "its definition"),
    Kind("norm backward", "aten::native_batch_norm_backward aten::cudnn_batch_norm_backward "
         "aten::miopen_batch_norm_backward aten::batch_norm_backward", batch_norm_backward,
         "13 an element; input, gradient, and the gradient of the input once", "its definition"),
    placed("norm", "aten::batch_norm_elemt", "0 > 0", 4, "its definition"),
    placed("norm", "aten::batch_norm_stats", "0 >", 4, "its definition"),
    placed("norm backward", "aten::batch_norm_backward_reduce", "0 1 >", 5, "its definition"),
    placed("norm backward", "aten::batch_norm_backward_elemt", "0 1 > 0", 6, "its definition"),
    placed("norm", "aten::_weight_norm_interface", "0 1 > 0 1", 4, "its definition"),
    Kind("pooling", "aten::max_pool2d_with_indices aten::max_pool3d_with_indices aten::avg_pool2d aten::avg_pool3d",
         pooled, "an operation for each tap of each result; input, results and places of the largest once",
         "its definition"),
    Kind("pooling", "aten::_adaptive_avg_pool2d aten::_adaptive_avg_pool3d aten::adaptive_max_pool2d "
         "aten::adaptive_max_pool3d", pooled_to, "1 an element; input, results and places of the largest once",
         "its definition"),
    placed("pooling", "aten::_adaptive_avg_pool2d_backward aten::_adaptive_avg_pool3d_backward "
           "aten::avg_pool2d_backward aten::avg_pool3d_backward", "0 > 1", 1, "its definition"),
    Kind("upsampling", " ".join(f"aten::upsample_{how} aten::upsample_{how}_backward" for how in _UPSAMPLES.split()),
         upsampled, "2 a neighbour of a result (nearest: 0); input and result once", "their definition"),
    Kind("pooling", "aten::max_pool2d_with_indices_backward aten::max_pool3d_with_indices_backward", pooled_backward,
         "1 a result; its gradient, places, and the gradient of the input once", "its definition"),
    Kind("loss", "aten::mse_loss aten::smooth_l1_loss aten::huber_loss aten::binary_cross_entropy", squared_error,
         "3 an element; input, target and result once", "its definition"),
    Kind("loss", "aten::nll_loss_forward aten::nll_loss2d_forward", picked,
         "1 a target; targets, the logarithms that they name, and the result once", "its definition"),
    Kind("loss", "aten::nll_loss_backward aten::nll_loss2d_backward", picked_backward,
         "1 a target; targets and the elements that they name once", "its definition"),
    Kind("loss", "aten::mse_loss_backward aten::smooth_l1_loss_backward aten::huber_loss_backward "
         "aten::binary_cross_entropy_backward", squared_error_backward,
         "3 an element; input, target, gradient and the gradient of the input once", "its definition"),
    Kind("softmax", "aten::_softmax aten::softmax aten::_log_softmax aten::log_softmax ScaledUpperTriangMaskedSoftmax "
         "aten::_masked_softmax", softmax, "5 an element; input and result once", "its definition"),
    Kind("softmax backward", "aten::_softmax_backward_data aten::_log_softmax_backward_data", softmax_backward,
         "4 an element; gradient, result and the gradient of the input once", "its definition"),
    Kind("reduction", "aten::mean aten::sum aten::amax aten::amin aten::max aten::min aten::argmax aten::argmin "
         "aten::prod aten::any aten::all aten::var aten::std aten::norm aten::linalg_vector_norm "
         "aten::nansum aten::var_mean aten::std_mean aten::aminmax", reduction,
         "1 an element of the input, where numbers are floats; input and result once", "its definition"),
    Kind("reduction", "aten::cumsum aten::cumprod aten::logcumsumexp aten::cummax aten::cummin", scan,
         "1 an element; input and result once", "its definition"),
    Kind("top-k", "aten::topk aten::sort", chosen, "0; input, values and places once", "its definition"),
    Kind("sampling", "aten::multinomial", drawn, "1 an element; input and places once", "its definition"),
    Kind("search", "aten::bucketize aten::searchsorted", looked_up, "0; values, boundaries and places once",
         "their definition"),
]  # fmt: skip
