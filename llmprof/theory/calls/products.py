"""Work of matrix products and convolutions."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Final

from llmprof.theory.calls.call import CallTensor, NoWorkError, OperatorCall
from llmprof.theory.calls.work import CallWork, OperatorKind

_RESULTS: Final = {5: 2, 6: 4, 7: 8, 15: 2}
"""Bytes of torch's numbers of element types: half, float, double, bfloat16."""

_HALF_IN: Final = {"fp8", "fp4", "int8", "uint8"}
"""Formats whose products have results of 16 bits unless the call says otherwise."""


def _matrix_format(call: OperatorCall, tensor: CallTensor) -> str:
    """Format that the matrix unit computes in; products of fp32 are those of tf32 where the
    kernel's name says so.
    """
    if tensor.format == "fp32" and re.search(
        r"tf32|_s1688gemm_f32|3xbf16", call.kernel, re.IGNORECASE
    ):
        return "tf32"
    return tensor.format


def _product(
    call: OperatorCall,
    a: CallTensor,
    b: CallTensor,
    mnk: tuple[int, int, int],
    *,
    batch: int = 1,
    bias: CallTensor | None = None,
    width: float = 0,
    more: float = 0,
) -> CallWork:
    """``batch`` products of m x k with k x n, with an addend of the result; ``more`` bytes are
    read besides.
    """
    m, n, k = mnk
    added = bias.bytes if bias else 0.0
    out = width or (2 if a.format in _HALF_IN else a.width)
    flops = batch * m * n * (2.0 * k + (1 if bias else 0))
    return CallWork(
        flops,
        a.bytes + b.bytes + added + more,
        batch * m * n * out,
        _matrix_format(call, a),
        result=(batch, m, n),
    )


def _agree(call: OperatorCall, one: int, other: int) -> int:
    if one != other:
        raise NoWorkError(f"the inner sizes {one} and {other} of {call.operator} differ")
    return one


def _mm(call: OperatorCall) -> CallWork:
    """``a @ b``, with ``a`` and ``b`` at the places 0 and 1."""
    a, b = call.tensor(0, 2), call.tensor(1, 2)
    width = 4 if call.operator == "aten::_int_mm" else 0
    return _product(
        call, a, b, (a.shape[0], b.shape[1], _agree(call, a.shape[1], b.shape[0])), width=width
    )


def _addmm(call: OperatorCall) -> CallWork:
    """``bias + a @ b``."""
    a, b = call.tensor(1, 2), call.tensor(2, 2)
    sizes = (a.shape[0], b.shape[1], _agree(call, a.shape[1], b.shape[0]))
    return _product(call, a, b, sizes, bias=call.tensor(0) if call.number(3, 1) else None)


def _bmm(call: OperatorCall) -> CallWork:
    """Products of batches."""
    place = 1 if call.operator.startswith("aten::baddbmm") else 0
    a, b = call.tensor(place, 3), call.tensor(place + 1, 3)
    sizes = (a.shape[1], b.shape[2], _agree(call, a.shape[2], b.shape[1]))
    bias = call.tensor(0) if place and call.number(3, 1) else None
    return _product(call, a, b, sizes, batch=_agree(call, a.shape[0], b.shape[0]), bias=bias)


def _mv(call: OperatorCall) -> CallWork:
    """A matrix times a vector."""
    a, x = call.tensor(0, 2), call.tensor(1, 1)
    return _product(call, a, x, (a.shape[0], 1, _agree(call, a.shape[1], x.shape[0])))


def _linear(call: OperatorCall) -> CallWork:
    """``x @ weight.T + bias``, with a weight of n x k."""
    x, weight = call.tensor(0), call.tensor(1, 2)
    k = _agree(call, x.shape[-1] if x.shape else 0, weight.shape[1])
    return _product(
        call,
        x,
        weight,
        (math.prod(x.shape[:-1]), weight.shape[0], k),
        bias=call.optional(2),
        width=_RESULTS.get(int(call.number(3, 0)), 0),
    )


def _skinny(call: OperatorCall) -> CallWork:
    """AMD's kernels for few rows, whose weight comes first."""
    weight, x = call.tensor(0, 2), call.tensor(1, 2)
    k = _agree(call, x.shape[1], weight.shape[1])
    return _product(call, x, weight, (x.shape[0], weight.shape[0], k))


def _matmul(call: OperatorCall) -> CallWork:
    """``a @ b`` of any axes, with broadcast batches."""
    a, b = call.tensor(0), call.tensor(1)
    if len(a.shape) < 2 or len(b.shape) < 2:
        raise NoWorkError("a product with a vector")
    batch = math.prod(max(pair) for pair in _broadcast(a.shape[:-2], b.shape[:-2]))
    sizes = (a.shape[-2], b.shape[-1], _agree(call, a.shape[-1], b.shape[-2]))
    return _product(call, a, b, sizes, batch=batch)


def _broadcast(one: tuple[int, ...], other: tuple[int, ...]) -> list[tuple[int, int]]:
    most = max(len(one), len(other))
    first, second = ((1,) * (most - len(each)) + each for each in (one, other))
    return list(zip(first, second, strict=True))


def _scaled_mm(call: OperatorCall) -> CallWork:
    """``(a * scale_a) @ (b * scale_b) + bias`` of 8 bits."""
    out_first = call.operator.startswith("_C::")
    place = 1 if out_first else 0
    a, b = call.tensor(place, 2), call.tensor(place + 1, 2)
    scales = sum(found.bytes for at in (place + 2, place + 3) if (found := call.optional(at)))
    sizes = (a.shape[0], b.shape[1], _agree(call, a.shape[1], b.shape[0]))
    width = call.tensor(0).width if out_first else 0
    if not out_first:
        said = [
            each for each in call.arguments[4:] if isinstance(each, float) and int(each) in _RESULTS
        ]
        width = _RESULTS[int(said[0])] if said else 2
    bias = call.optional(place + 4)
    return _product(call, a, b, sizes, bias=bias, width=width, more=scales)


def _quantized(call: OperatorCall) -> CallWork:
    """``x @ weight.T`` of narrow numbers:

    ``x`` (…, k) and ``weight`` (n, k) in order, scales and a result anywhere.

    Where the format is of 4 bits, or unsigned bytes stand for it, an element holds two numbers.
    """
    given = [each for each in call.tensors() if len(each.shape) > 1]
    x, rest = given[0], given[1:]
    k = row_of(x)
    weight = next((each for each in rest if k in (each.shape[-1], row_of(each))), None)
    if weight is None or len(weight.shape) != 2:
        raise NoWorkError(
            f"no weight of {k} columns was recorded among the arguments of {call.operator}"
        )
    m, n = math.prod(x.shape[:-1]), weight.shape[0]
    out = next((each for each in rest if each is not weight and each.shape[-2:] == (m, n)), None)
    others = [
        each for each in call.tensors() if each is not x and each is not weight and each is not out
    ]
    usual = 4 if call.operator == "bitsandbytes::int8_linear_matmul" else 2
    work = _product(
        call,
        x,
        weight,
        (m, n, k),
        width=out.width if out else usual,
        more=sum(each.bytes for each in others),
    )
    return replace(work, matrix="fp4") if k != x.shape[-1] else work


def row_of(tensor: CallTensor) -> int:
    """Numbers of a row; two of 4 bits are in an element, for which unsigned bytes may stand."""
    return tensor.shape[-1] * (2 if tensor.format in ("fp4", "uint8") else 1)


def _into(call: OperatorCall) -> CallWork:
    """``(result, a, b, …)``, of narrow numbers also with scales: m, n and k follow from the
    sizes of the three.
    """
    out, a, b = call.tensor(0, 2), call.tensor(1, 2), call.tensor(2, 2)
    (m, n), k = out.shape, row_of(a)
    if a.shape[0] != m or b.shape[0] * row_of(b) != n * k:
        raise NoWorkError(
            f"the sizes {list(out.shape)}, {list(a.shape)} and {list(b.shape)} do not fit"
        )
    scales = sum(each.bytes for place in (3, 4) if (each := call.optional(place)))
    work = _product(call, a, b, (m, n, k), width=out.width, more=scales)
    return replace(work, matrix="fp4") if k != a.shape[1] else work


def _of_three(call: OperatorCall) -> CallWork:
    """TransformerEngine's ``(a, …, b, …, result)`` at the places 0, 5 and 10, each of them
    turned or not.
    """
    a, b, out = (call.tensor(place) for place in (0, 5, 10))
    inner = math.isqrt(a.elements * b.elements // max(1, out.elements))
    m, n = math.prod(out.shape[:-1]), out.shape[-1]
    if inner * inner * out.elements != a.elements * b.elements:
        raise NoWorkError(f"the sizes of the three matrices of {call.operator} do not fit")
    return _product(call, a, b, (m, n, inner), width=out.width)


def _packed_scales(call: OperatorCall) -> CallWork:
    """``(a, weights, group, scales and zero points)`` of torch's products with 4 bits, or ``(a,
    weights, scales)``.
    """
    a, weights = call.tensor(0, 2), call.tensor(1)
    scales = call.tensor(3 if "int4" in call.operator else 2)
    n = scales.shape[1] if "int4" in call.operator else scales.shape[0]
    return _product(call, a, weights, (a.shape[0], n, a.shape[1]), more=scales.bytes)


_PACKED: Final = (2, 3, 4, 8)
"""Bits of a weight in the packed matrices of GPTQ, AWQ, Marlin and Machete."""


def _packed(call: OperatorCall) -> CallWork:
    """``a @ unpacked(weights)``: whole numbers hold several weights each, scales have a column for
    each of the result.

    Of the other arguments, matrices (zero points), biases and orders of the inputs are read; a
    workspace is not.
    """
    a = call.tensor(0)
    given = [each for each in call.arguments[1:] if isinstance(each, CallTensor)]
    at = next(
        (n for n, each in enumerate(given) if "int" in each.format and len(each.shape) == 2), None
    )
    k = a.shape[-1] if a.shape else 0
    if at is None or not k:
        raise NoWorkError(f"no packed weights were recorded among the arguments of {call.operator}")
    weights, after = given[at], given[at + 1 :]
    scales = next(
        (each for each in after if len(each.shape) == 2 and "int" not in each.format), None
    )
    n = scales.shape[1] if scales else 0
    if not n or weights.elements * weights.width * 8 / (k * n) not in _PACKED:
        raise NoWorkError(
            f"the packed weights {list(weights.shape)} of {call.operator} are not those of {k}"
            f" x {n}"
        )
    m = math.prod(a.shape[:-1])
    more = sum(each.bytes for each in after if len(each.shape) == 2 or each.shape in ((n,), (k,)))
    return _product(call, a, weights, (m, n, k), more=more)


def _convolution(call: OperatorCall) -> CallWork:
    """A convolution, forward; its places differ by library."""
    x, weight = call.tensor(0), call.tensor(1)
    if len(x.shape) != len(weight.shape) or len(x.shape) < 3:
        raise NoWorkError(f"an input of {len(x.shape)} axes and a weight of {len(weight.shape)}")
    if call.operator in ("aten::convolution", "aten::_convolution"):
        places, transposed, groups = (3, 4, 5), call.number(6, 0), int(call.number(8, 1))
    else:
        after = (
            1 if call.operator == "aten::miopen_convolution" else 0
        )  # its bias stands before the sizes
        places, transposed, groups = (
            (3 + after, 2 + after, 4 + after),
            0,
            int(call.number(5 + after, 1)),
        )
    stride, padding, dilation = (call.numbers(place) for place in places)
    space = len(x.shape) - 2
    more = call.numbers(7) if transposed else (0.0,)
    stride, padding, dilation, more = (
        each * space if len(each) == 1 else each for each in (stride, padding, dilation, more)
    )
    channels = weight.shape[0] if transposed else weight.shape[1] * groups
    if (
        not len(stride) == len(padding) == len(dilation) == len(more) == space
        or x.shape[1] != channels
    ):
        raise NoWorkError("strides, padding, dilation or groups do not fit the shapes")
    bias = call.optional(2) if call.operator != "aten::cudnn_convolution" else None
    sizes = zip(x.shape[2:], weight.shape[2:], stride, padding, dilation, more, strict=True)
    if transposed:  # each element of the input is spread over the taps of a filter
        outs = [
            int((size - 1) * by - 2 * pad + step * (taps - 1) + end + 1)
            for size, taps, by, pad, step, end in sizes
        ]
        elements = x.shape[0] * weight.shape[1] * groups * math.prod(outs)
        read = x.bytes + weight.bytes + (bias.bytes if bias else 0)
        flops = 2.0 * x.elements * math.prod(weight.shape[1:])
        return CallWork(flops, read, elements * x.width, _matrix_format(call, x))
    outs = [
        int((size + 2 * pad - step * (taps - 1) - 1) // by + 1)
        for size, taps, by, pad, step, _ in sizes
    ]
    elements = x.shape[0] * weight.shape[0] * math.prod(outs)
    read = x.bytes + weight.bytes + (bias.bytes if bias else 0)
    result = (groups, elements // weight.shape[0], weight.shape[0] // groups) if elements else None
    return CallWork(
        2.0 * elements * math.prod(weight.shape[1:]),
        read,
        elements * x.width,
        _matrix_format(call, x),
        result=result,
    )


def _convolution_backward(call: OperatorCall) -> CallWork:
    """Gradients of the input and of the weight: each as many products as forward."""
    grad, x, weight = call.tensor(0), call.tensor(1), call.tensor(2)
    masks = call.get(10)
    wanted = masks if isinstance(masks, tuple) and len(masks) == 3 else (1.0, 1.0, 0.0)
    each = 2.0 * grad.elements * math.prod(weight.shape[1:])
    read = grad.bytes + (weight.bytes if wanted[0] else 0) + (x.bytes if wanted[1] else 0)
    written = (x.bytes if wanted[0] else 0) + (weight.bytes if wanted[1] else 0)
    assumed = "" if masks is not None else "both gradients are computed"
    return CallWork(
        each * (bool(wanted[0]) + bool(wanted[1])),
        read,
        written,
        _matrix_format(call, grad),
        assumed,
    )


_TORCH: Final = "torch/utils/flop_counter.py"
_DENSE: Final = "2 m n k, and m n for an addend; a, b, the addend and the result once"

_QUANTIZED: Final = (
    "vllm::w8a8_triton_block_scaled_mm_func",
    "vllm::w8a8_block_fp8_matmul_func",
    "vllm::padded_cutlass",
    "vllm::fp8_gemm_nt_op",
    "vllm::rocm_aiter_gemm_a8w8",
    "vllm::rocm_aiter_gemm_a8w8_blockscale",
    "vllm::rocm_aiter_triton_gemm_a8w8_blockscale",
    "vllm::_rocm_aiter_preshuffled_per_token_w8a8_gemm",
    "aiter::gemm_a8w8_ck",
    "aiter::gemm_a8w8_asm",
    "aiter::gemm_a8w8_bpreshuffle_ck",
    "aiter::gemm_a8w8_blockscale_ck",
    "aiter::gemm_a8w8_blockscale_cktile",
    "aiter::gemm_a8w8_blockscale_bpreshuffle_ck",
    "aiter::gemm_a8w8_blockscale_bpreshuffle_cktile",
    "aiter::flatmm_a8w8_blockscale_asm",
    "aiter::gemm_a4w4",
    "aiter::_gemm_a4w4_asm",
    "aiter::gemm_a4w4_asm",
    "aiter::gemm_a4w4_blockscale",
    "bitsandbytes::int8_linear_matmul",
)

KINDS: Final = [
    OperatorKind("gemm", "aten::mm aten::_int_mm", _mm, _DENSE, _TORCH),
    OperatorKind("gemm", "aten::addmm aten::_addmm_activation", _addmm, _DENSE, _TORCH),
    OperatorKind(
        "gemm",
        "aten::bmm aten::baddbmm aten::baddbmm_",
        _bmm,
        f"{_DENSE}, for each product of the batch",
        _TORCH,
    ),
    OperatorKind("gemm", "aten::mv", _mv, _DENSE, _TORCH),
    OperatorKind("gemm", "aten::matmul", _matmul, f"{_DENSE}, broadcast operands once", _TORCH),
    OperatorKind("gemm", "aten::linear", _linear, _DENSE, _TORCH),
    OperatorKind(
        "gemm",
        "vllm::rocm_unquantized_gemm vllm::rocm_unquantized_gemm_impl aiter::gemm_a16w16",
        _linear,
        _DENSE,
        "vllm/model_executor/layers/utils.py, aiter/tuned_gemm.py",
        whole=True,
    ),
    OperatorKind(
        "gemm",
        "_rocm_C::wvSplitK _rocm_C::LLMM1",
        _skinny,
        _DENSE,
        "vllm/csrc/rocm/skinny_gemms.cu",
    ),
    OperatorKind(
        "gemm",
        "aten::_scaled_mm _C::cutlass_scaled_mm sgl_kernel::fp8_scaled_mm"
        " sgl_kernel::int8_scaled_mm sgl_kernel::fp8_blockwise_scaled_mm trtllm::cublas_scaled_mm",
        _scaled_mm,
        f"{_DENSE}; scales once",
        _TORCH,
    ),
    OperatorKind(
        "gemm",
        " ".join(_QUANTIZED),
        _quantized,
        f"{_DENSE}; scales once",
        "vllm/model_executor/kernels/linear, aiter/ops/gemm_op_a8w8.py, aiter/ops/gemm_op_a4w4.py",
        whole=True,
    ),
    OperatorKind(
        "gemm",
        "_C::cutlass_scaled_fp4_mm sgl_kernel::cutlass_scaled_fp4_mm _C::dsv3_fused_a_gemm "
        "sgl_kernel::dsv3_fused_a_gemm _moe_C::dsv3_router_gemm sgl_kernel::dsv3_router_gemm",
        _into,
        f"{_DENSE}; scales once",
        "vllm/csrc/torch_bindings.cpp, sgl-kernel/csrc/common_extension.cc",
    ),
    OperatorKind(
        "gemm", "tex_ts::te_gemm_ts", _of_three, _DENSE, "transformer_engine/pytorch/csrc"
    ),
    OperatorKind(
        "gemm",
        "aten::_weight_int4pack_mm aten::_weight_int8pack_mm",
        _packed_scales,
        "2 m n k in the type of a; a, packed weights, scales and the result once",
        "their definition",
    ),
    OperatorKind(
        "gemm",
        "_C::marlin_gemm _C::gptq_marlin_gemm _C::gptq_gemm _C::awq_gemm _C::machete_mm"
        " sgl_kernel::gptq_gemm sgl_kernel::awq_gemm sgl_kernel::gptq_marlin_gemm",
        _packed,
        "2 m n k in the type of a; a, packed weights, "
        "scales, zero points, bias, order of the inputs and the result once",
        "vllm/_custom_ops.py",
        whole=True,
    ),
    OperatorKind(
        "convolution",
        "aten::convolution",
        _convolution,
        "2 x elements of the result x taps of a filter; input, weight, bias and result once",
        _TORCH,
        whole=True,
    ),
    OperatorKind(
        "convolution",
        "aten::_convolution aten::cudnn_convolution aten::miopen_convolution",
        _convolution,
        "as aten::convolution",
        _TORCH,
    ),
    OperatorKind(
        "convolution",
        "aten::convolution_backward",
        _convolution_backward,
        "as forward for each gradient; gradients, input and weight once",
        _TORCH,
        whole=True,
    ),
]
