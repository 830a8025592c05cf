"""Work of operators along rows: norms, softmax, reductions, top-k."""

from __future__ import annotations

import math
from typing import Final

from llmprof.theory.calls.call import Call, NoWorkError
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
    """``(input, taps, stride, padding, dilation, ceil)``: the largest of each window, and its place."""
    x = call.tensor(0)
    taps, stride, padding, dilation = (call.numbers(place) for place in range(1, 5))
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
    assumed = "" if call.get(5) in (False, 0) else "windows that begin inside of the input only"
    return Work(float(out * math.prod(taps)), x.bytes, out * (x.width + 8), "", assumed)


def pooled_backward(call: Call) -> Work:
    """``(gradient, input, …, places)`` into the gradient of the input."""
    grad, x = call.tensor(0), call.tensor(1)
    return Work(float(grad.elements), grad.bytes + grad.elements * 8, x.elements * x.width)


def squared_error(call: Call) -> Work:
    """Difference, square and sum; the sum or mean of all unless the call asks for none."""
    x, target = call.tensor(0), call.tensor(1)
    out = x.elements if call.number(2, 1) == 0 else 1
    return Work(3.0 * x.elements, x.bytes + target.bytes, out * x.width)


def squared_error_backward(call: Call) -> Work:
    """``(gradient, input, target)``: twice the difference times the gradient."""
    x, target = call.tensor(1), call.tensor(2)
    grad = call.optional(0)
    return Work(3.0 * x.elements, x.bytes + target.bytes + (grad.bytes if grad else 0), x.elements * x.width)


def softmax(call: Call) -> Work:
    """Maximum, difference, exp, sum and quotient of each element."""
    x, said = call.tensor(0), call.get(2)
    width = (4 if said else x.width) if isinstance(said, bool) else _width(call, 2, x.width)
    return Work(5.0 * x.elements, x.bytes, x.elements * width)


def _width(call: Call, place: int, usual: float) -> float:
    """Bytes of an element of the result by the type that is asked for at a place; a usual one if none is."""
    asked = call.get(place)
    return _WIDTHS.get(int(asked), usual) if isinstance(asked, int | float) and not isinstance(asked, bool) else usual


_SUMS: Final = ("aten::sum", "aten::prod", "aten::cumsum", "aten::cumprod")
"""Sums of whole numbers are of 64 bits."""


def reduction(call: Call) -> Work:
    """One operation an element of the input; the result has an element for each of the other axes."""
    x = call.tensor(0)
    everything = call.operator in ("aten::sum", "aten::prod", "aten::mean") and len(call.arguments) == 2
    axes = None if everything else call.get(2 if "norm" in call.operator else 1)
    count = len(x.shape)
    given = axes if isinstance(axes, tuple) else (axes,)
    gone = {int(axis) % count for axis in given if isinstance(axis, int | float) and count}
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
    return Work(float(x.elements) if floats else 0.0, x.bytes, out * width)


def scan(call: Call) -> Work:
    """A result for each element."""
    x = call.tensor(0)
    floats = x.format.startswith(("fp", "bf"))
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
    Kind("norm", "aten::native_batch_norm aten::cudnn_batch_norm aten::miopen_batch_norm aten::_batch_norm_with_update",
         batch_norm, "7 an element; input and result once", "its definition"),
    Kind("norm backward", "aten::native_batch_norm_backward aten::cudnn_batch_norm_backward "
         "aten::miopen_batch_norm_backward aten::batch_norm_backward", batch_norm_backward,
         "13 an element; input, gradient, and the gradient of the input once", "its definition"),
    Kind("pooling", "aten::max_pool2d_with_indices aten::max_pool3d_with_indices", pooled,
         "an operation for each tap of each result; input, results and places once", "its definition"),
    Kind("pooling", "aten::max_pool2d_with_indices_backward aten::max_pool3d_with_indices_backward", pooled_backward,
         "1 a result; its gradient, places, and the gradient of the input once", "its definition"),
    Kind("loss", "aten::mse_loss", squared_error, "3 an element; input, target and result once", "its definition"),
    Kind("loss", "aten::mse_loss_backward", squared_error_backward,
         "3 an element; input, target, gradient and the gradient of the input once", "its definition"),
    Kind("softmax", "aten::_softmax aten::softmax aten::_log_softmax aten::log_softmax ScaledUpperTriangMaskedSoftmax "
         "aten::_masked_softmax", softmax, "5 an element; input and result once", "its definition"),
    Kind("reduction", "aten::mean aten::sum aten::amax aten::amin aten::max aten::min aten::argmax aten::argmin "
         "aten::prod aten::any aten::all aten::var aten::std aten::norm aten::linalg_vector_norm", reduction,
         "1 an element of the input, where numbers are floats; input and result once", "its definition"),
    Kind("reduction", "aten::cumsum aten::cumprod", scan, "1 an element; input and result once", "its definition"),
    Kind("top-k", "aten::topk aten::sort", chosen, "0; input, values and places once", "its definition"),
]  # fmt: skip
