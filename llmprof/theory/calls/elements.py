"""Work of operators that read and write elements: elementwise, copies, gathers, caches, compiled kernels."""

from __future__ import annotations

import itertools
import math
import re
from typing import Final

from llmprof.theory.calls.call import Call, NoWorkError, Tensor, widest
from llmprof.theory.calls.work import Kind, Work

_COMPARES: Final = tuple(
    f"aten::{name}"
    for name in (
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "logical_not",
        "logical_and",
        "logical_or",
        "isnan",
        "isinf",
        "isfinite",
    )
)


_OF_ONE: Final = re.compile(
    r"aten::(?:nan_to_num|sqrt|rsqrt|square|neg|abs|expm?\d?|log\w{0,2}|sin|cos|reciprocal|\w+_not|erf|floor|ceil|round|trunc|sign|silu|"
    r"gelu|relu|sigmoid|tanh|hardswish|hardsigmoid|mish)"
)
"""Functions of one tensor: another one of its shape is where the result goes."""


_DIVIDES: Final = re.compile(r"aten::(?:div|sqrt|rsqrt|exp|log|sin|cos|reciprocal|sigmoid|tanh|erf)")
"""Functions whose results of whole numbers are of 32 bits; a rounding is another argument of a division."""


def broadcast(shapes: list[tuple[int, ...]]) -> tuple[int, ...]:
    """Shape of an elementwise result."""
    turned = itertools.zip_longest(*(shape[::-1] for shape in shapes), fillvalue=1)
    sizes = [next((size for size in axis if size != 1), 1) for axis in turned]
    if any(size not in (1, whole) for shape in shapes for size, whole in zip(shape[::-1], sizes, strict=False)):
        raise NoWorkError(f"the shapes {', '.join(str(list(shape)) for shape in shapes)} do not broadcast")
    return tuple(sizes[::-1])


_OF_THREE: Final = frozenset(f"aten::{name}" for name in ("where", "lerp", "addcmul", "addcdiv", "clamp"))
"""Functions that take three tensors."""


def _inputs(call: Call) -> list[Tensor]:
    """Tensors that a function reads: one after two arguments is where the result of a function of two goes."""
    if not any(isinstance(each, tuple) or (isinstance(each, Tensor) and each.shape) for each in call.arguments):
        scalars = [each for each in call.arguments if isinstance(each, Tensor)]  # tensors without axes: an element each
        return scalars or call.tensors()
    third = call.optional(2) or call.optional(3)
    if third is None or call.operator.removesuffix("_") in _OF_THREE or call.optional(0) is None:
        return call.tensors()
    given = [each for place in range(2) if (each := call.optional(place)) is not None]
    return given if broadcast([each.shape for each in given]) == third.shape else call.tensors()


def elementwise(call: Call) -> Work:
    """One operation for each element of the result; a function such as exp counts as one."""
    inputs = _inputs(call)
    of_one = _OF_ONE.fullmatch(call.operator) or (call.operator == "aten::pow" and call.optional(1) is None)
    if of_one and len(inputs) == 2 and inputs[1].shape == inputs[0].shape:
        inputs = inputs[:1]
    own = call.operator.endswith("_") and not call.operator.endswith("__")
    shape = call.tensor(0).shape if own else broadcast([each.shape for each in inputs])
    width = call.tensor(0).width if own else 1 if call.operator in _COMPARES else widest(_values(call, inputs))[1]
    elements = math.prod(shape)
    floats = any(each.format.startswith(("fp", "bf")) for each in inputs)
    if not (floats or own) and _DIVIDES.fullmatch(call.operator) and len(call.arguments) <= 2:
        floats, width = True, 4
    return Work(float(elements) if floats else 0.0, sum(each.bytes for each in inputs), elements * width)


def _values(call: Call, inputs: list[Tensor]) -> list[Tensor]:
    """The tensors whose types decide that of the result: not the condition of a choice."""
    return [each for each in inputs if each.format != "bool"] or inputs


def copy(call: Call) -> Work:
    """From the second argument into the first."""
    target, source = call.tensor(0), call.tensor(1)
    return Work(0.0, source.bytes, target.elements * target.width)


def registered(call: Call) -> Work:
    """The second argument of vLLM's own all-reduce into a buffer that all ranks see; the reduction is a row apart."""
    source = call.tensor(1)
    return Work(0.0, source.bytes, source.elements * source.width)


def scalar(call: Call) -> Work:
    """One element."""
    width = call.tensor(0).width
    return Work(0.0, width, width)


def arange(call: Call) -> Work:
    """``(start, end, step, out)``: a number for each step."""
    start, end, step = (call.number(place) for place in range(3))
    if not step:
        raise NoWorkError(f"the step of {call.operator} is 0")
    return Work(0.0, 0.0, max(0, math.ceil((end - start) / step)) * call.tensor(3).width)


def clone(call: Call) -> Work:
    """A copy of one tensor; another type is a number of torch that is not always recorded."""
    source = call.tensor(0)
    return Work(0.0, source.bytes, source.elements * source.width)


def fill(call: Call) -> Work:
    """A number into every element."""
    target = call.tensor(0)
    return Work(0.0, 0.0, target.elements * target.width)


_WIDTH_IN_NAME: Final = re.compile(r"OpaqueType<(?:\(unsigned int\)|\(unsigned\))?(\d+)u?>")


def cat(call: Call) -> Work:
    """Tensors one after another; profilers do not write their types, but the kernel's name has their width."""
    parts = [each for each in call.tensors() if each.elements]
    assumed = ""
    if any(not each.width for each in parts):
        named = _WIDTH_IN_NAME.search(call.kernel)
        if named is None:
            raise NoWorkError("types of the tensors in a list are not recorded")
        parts = [Tensor(each.shape, each.format, int(named[1])) for each in parts]
        assumed = "width of an element from the kernel's name"
    read = sum(each.elements * each.width for each in parts)
    formats = {each.format for each in parts}
    width = widest(parts)[1] if len(formats) > 1 and all(formats) else max((each.width for each in parts), default=0)
    return Work(0.0, read, sum(each.elements for each in parts) * width, "", assumed)


def gather(call: Call) -> Work:
    """Elements of a tensor by an index for each (aten::gather), or rows by an index."""
    source = call.tensor(0)
    place = 1 if call.operator == "aten::embedding" else 2
    index = call.get(place)
    if not isinstance(index, Tensor):
        raise NoWorkError("the index was not recorded as a tensor")
    if call.operator == "aten::gather":
        elements = index.elements
    else:
        axis = 0 if place == 1 else int(call.number(1))
        if not -len(source.shape) <= axis < len(source.shape):
            raise NoWorkError(f"there is no axis {axis} of {list(source.shape)}")
        elements = index.elements * math.prod(source.shape) // max(1, source.shape[axis])
    moved = elements * source.width
    return Work(0.0, min(moved, source.bytes) + index.bytes, moved)


def indexed(call: Call) -> Work:
    """``source[indices]``, with an index for each of the first axes; other axes whole.

    Types in a list are not recorded: an index that could be a mask, of which the number of results depends on its
    values, has no work.
    """
    source, given = call.tensor(0), call.get(1)
    lists = tuple(each for each in given if isinstance(each, Tensor)) if isinstance(given, tuple) else ()
    if not lists and len(call.inside) == 1 and "vectorized_gather" in call.kernel:
        # the kernel takes whole rows by one index, whose shape is changed inside of the call
        index = call.inside[0].tensor(0)
        moved = index.elements * math.prod(source.shape[1:]) * source.width
        assumed = "one index of the first axis by the kernel's name, as long as in the first of these calls"
        return Work(0.0, min(moved, source.bytes) + index.bytes, moved, "", assumed, "shapes inside")
    if not lists or any(not each.shape for each in lists):
        raise NoWorkError("the indices are a list of tensors whose shapes were not all recorded")
    if len(lists) > len(source.shape) or any(each.format in ("bool", "uint8") for each in lists):
        raise NoWorkError("an index is a mask, whose values say how many elements it names")
    if any(not each.format and each.shape == source.shape[at : at + len(each.shape)] for at, each in enumerate(lists)):
        raise NoWorkError("an index may be a mask, whose values say how many elements it names")
    named = math.prod(broadcast([each.shape for each in lists]))
    moved = named * math.prod(source.shape[len(lists) :]) * source.width
    places = sum(each.elements * (each.width or _INDEX) for each in lists)
    assumed = "" if all(each.width for each in lists) else "indices of 8 bytes, one for each of the first axes"
    return Work(0.0, min(moved, source.bytes) + places, moved, "", assumed)


_INDEX: Final = 8
"""Bytes of torch's usual index."""


def put(call: Call) -> Work:
    """Values into places of the first argument; of the places a recording has neither number nor type."""
    target, values = call.tensor(0), call.tensor(2)
    accumulates = call.get(3) in (True, 1)
    moved = values.elements * target.width
    read = values.bytes + (moved if accumulates else 0)
    return Work(float(values.elements) if accumulates else 0.0, read, moved, "", "places left out")


def quantize_groups(call: Call) -> Work:
    """``(input, out, scales)``: a scale for each group of elements."""
    source, out, scales = call.tensor(0), call.tensor(1), call.tensor(2)
    written = out.elements * out.width + scales.elements * scales.width
    return Work(2.0 * source.elements, source.bytes, written)


def gated(call: Call) -> Work:
    """The activation of one half times the other half, into the first argument: two operations an element."""
    out, source = call.tensor(0), call.tensor(1)
    return Work(2.0 * out.elements, source.bytes, out.elements * out.width)


def rope(call: Call) -> Work:
    """Rotation of queries and keys in place, with a row of the cache for each position: three operations an element."""
    positions, query, cache = call.tensor(0), call.tensor(1), call.tensor(4, 2)
    key = call.optional(2)
    turned = query.bytes + (key.bytes if key else 0)
    rows = min(positions.elements, cache.shape[0]) * cache.shape[1] * cache.width
    elements = query.elements + (key.elements if key else 0)
    return Work(3.0 * elements, turned + positions.bytes + rows, turned)


def cache_write(call: Call) -> Work:
    """New keys and values into their slots of the cache."""
    key, value, cache, slots = call.tensor(0), call.tensor(1), call.tensor(2), call.tensor(4)
    elements = key.elements + value.elements
    return Work(0.0, key.bytes + value.bytes + slots.bytes, elements * cache.width)


def latent_write(call: Call) -> Work:
    """Latents and turned keys of new tokens, one after the other, into a slot of the cache each."""
    latent, turned, cache, slots = call.tensor(0, 2), call.tensor(1), call.tensor(2, 3), call.tensor(3, 1)
    read = slots.elements * (latent.shape[1] * latent.width + turned.shape[-1] * turned.width + slots.width)
    return Work(0.0, read, slots.elements * cache.shape[2] * cache.width)


def index_write(call: Call) -> Work:
    """Keys of an indexer, rounded, with their scales into a slot of the cache each."""
    key, cache, slots = call.tensor(0, 2), call.tensor(1, 3), call.tensor(2, 1)
    tokens, size = slots.elements, key.shape[1]
    return Work(2.0 * tokens * size, tokens * (size * key.width + slots.width), tokens * cache.shape[2] * cache.width)


def quantize(call: Call) -> Work:
    """Into the first argument, from the second: a scale and a rounding for each element."""
    out, source = call.tensor(0), call.tensor(1)
    return Work(2.0 * source.elements, source.bytes, out.elements * out.width)


def compiled(call: Call) -> Work:
    """A kernel of torch.compile: each of its tensors moves once, the last one is the result.

    A tensor with more elements than the kernel's sizes has room for is an indexed table, of which one element for
    each place is read.
    """
    tensors = call.tensors()
    numbers = [
        each for each in call.arguments if isinstance(each, int | float) and not isinstance(each, bool) and each > 1
    ]
    most = math.prod(int(each) for each in numbers) if numbers else max(each.elements for each in tensors[-1:])
    moved = [min(each.elements, most) * each.width for each in tensors]
    assumed = "each tensor moves once, and the last one is the result"
    return Work(None, sum(moved[:-1]), moved[-1], "", assumed)


_BY_ELEMENT: Final = (
    "add sub rsub mul div pow sqrt rsqrt square neg abs exp exp2 expm1 log log2 log1p sin cos reciprocal clamp "
    "clamp_min clamp_max maximum minimum where masked_fill eq ne lt le gt ge bitwise_not bitwise_and bitwise_or "
    "logical_not logical_and logical_or floor_divide remainder fmod addcmul addcdiv lerp triu tril erf floor ceil "
    "round trunc sign isnan isinf isfinite silu gelu relu sigmoid tanh hardswish hardsigmoid hardtanh mish leaky_relu "
    "softplus elu silu_backward gelu_backward sigmoid_backward tanh_backward threshold_backward bitwise_xor dropout "
    "_conj_physical nan_to_num"
)
_ONCE: Final = "each input and the result once, a broadcast input with its own size"

KINDS: Final = [
    Kind("elementwise", " ".join(f"aten::{name} aten::{name}_" for name in _BY_ELEMENT.split()), elementwise,
         f"1 an element of the result, where numbers are floats; {_ONCE}", "their definition"),
    Kind("activation", "_C::silu_and_mul _C::mul_and_silu _C::gelu_and_mul _C::gelu_tanh_and_mul "
         "_C::swigluoai_and_mul sgl_kernel::silu_and_mul sgl_kernel::gelu_and_mul sgl_kernel::gelu_tanh_and_mul", gated,
         "2 an element of the result; input and result once", "vllm/csrc/activation_kernels.cu"),
    Kind("copy", "aten::copy_", copy, "0; source and target once", "their definition"),
    Kind("copy", "_C_custom_ar::all_reduce", registered,
         "0; the input once, and once the buffer that all ranks see (its reduction is a row apart)",
         "vllm/csrc/custom_all_reduce.cu"),
    Kind("copy", "aten::_local_scalar_dense", scalar, "0; an element read and written", "its definition"),
    Kind("fill", "aten::arange", arange, "0; the result once", "its definition"),
    Kind("copy", "aten::clone aten::contiguous aten::_to_copy aten::flip aten::roll", clone,
         "0; source and result once, of one type", "their definition"),
    Kind("copy", "aten::cat aten::stack aten::_cat", cat, "0; inputs and result once", "their definition"),
    Kind("fill", "aten::fill_ aten::zero_ aten::normal_ aten::uniform_ aten::random_", fill, "0; the target once",
         "their definition"),
    Kind("gather", "aten::embedding aten::index_select aten::gather", gather,
         "0; indices, the elements that they name (at most the whole source) and the result once", "their definition"),
    Kind("gather", "aten::index", indexed, "0; indices, the elements that they name (at most the whole source) and the "
         "result once", "their definition", inside="aten::reshape"),
    Kind("rope", "_C::rotary_embedding sgl_kernel::rotary_embedding", rope,
         "3 an element; positions and rows of the cache once, queries and keys twice (in place)",
         "vllm/csrc/pos_encoding_kernels.cu"),
    Kind("kv_cache_write", "_C_cache_ops::reshape_and_cache_flash _C_cache_ops::reshape_and_cache sglang::store_cache",
         cache_write, "0; keys, values, slots and as many slots of the cache once", "vllm/csrc/cache_kernels.cu"),
    Kind("kv_cache_write", "_C_cache_ops::concat_and_cache_mla", latent_write,
         "0; latents, turned keys and slots of the tokens, and as many slots of the cache once",
         "vllm/csrc/cache_kernels.cu"),
    Kind("kv_cache_write", "_C_cache_ops::indexer_k_quant_and_cache", index_write,
         "2 an element; keys and slots of the tokens, and as many slots of the cache once",
         "vllm/csrc/cache_kernels.cu"),
    Kind("quantize", "_C::static_scaled_fp8_quant _C::dynamic_scaled_fp8_quant _C::dynamic_per_token_scaled_fp8_quant",
         quantize, "2 an element; input and result once", "vllm/csrc/quantization"),
    Kind("quantize", "_C::per_token_group_fp8_quant _C::per_token_group_quant_int8 "
         "sgl_kernel::sgl_per_token_group_quant_fp8", quantize_groups,
         "2 an element; input, result and scales once", "vllm/csrc/quantization"),
    Kind("scatter", "aten::_index_put_impl_ aten::index_put_", put,
         "0, or 1 a value that is added; values and as many elements of the target once", "their definition"),
    Kind("compiled", "triton_poi_* triton_red_* triton_per_*", compiled,
         "not known; each tensor once, at most as many elements as the kernel has places",
         "torch/_inductor/codegen/triton.py"),
]  # fmt: skip
