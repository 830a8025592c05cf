"""Operators that can be run alone from their recorded arguments, and the content that these
arguments need.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Literal

TimedKind = Literal[
    "gemm",
    "attention",
    "norm",
    "activation",
    "rope",
    "kv_cache_write",
    "moe_routing",
    "quantize",
    "all_reduce",
    "embedding",
    "elementwise",
    "reduction",
    "copy",
]

Content = tuple[str, int, int] | tuple[str, int] | tuple[str]
"""Content of a tensor of integers.

``("below", argument, axis)``: indices below the size of an axis of another argument;
``("below_axis", argument, number)``: the same, for the axis that a recorded number names;
``("below_value", argument)``: indices below a recorded number;
``("slots", argument)``: distinct slots of a paged cache;
``("pages", argument)``: pages of a paged cache;
``("ends", argument, longest)``: ends of the parts of an argument's first axis;
``("value", argument)``: a recorded number in every place;
``("ones",)``: ones; ``("fa3_metadata",)``: the plan of FlashAttention 3."""


@dataclass(frozen=True, slots=True)
class Timeable:
    """An operator that can be called alone with tensors of random numbers."""

    kind: TimedKind
    stored: tuple[int, ...] = ()
    """Arguments that stay in memory between steps: weights and caches."""
    holds: Mapping[int, Content] = field(default_factory=lambda: MappingProxyType({}))
    """Content of arguments that cannot be filled with arbitrary random numbers."""
    usual: Mapping[int, float | int | bool | str] = field(
        default_factory=lambda: MappingProxyType({})
    )
    """Values of arguments that recordings lack, such as texts, which profilers do not write."""
    pages: tuple[int, ...] = ()
    """Arguments whose first axis is the number of pages of a cache; fewer pages are enough for a
    run.
    """
    assumed: str = ""
    """Assumption about facts that the recording lacks."""


_LENGTHS: Final = (
    "lengths of sequences are not recorded: as many as possible are assumed to be as long as the"
    " longest"
)
_ROUTED: Final = "the experts of each token are not recorded: random ones are used"

_SEVERAL: Final[tuple[tuple[TimedKind, str], ...]] = (
    (
        "reduction",
        (
            "aten::mean aten::sum aten::amax aten::amin aten::max aten::min aten::argmax"
            " aten::argmin aten::prod aten::any aten::all aten::cumsum aten::_softmax aten::softmax"
            " aten::log_softmax aten::_log_softmax aten::topk aten::sort aten::var aten::std"
            " aten::norm aten::linalg_vector_norm"
        ),
    ),
    (
        "elementwise",
        (
            "aten::add aten::add_ aten::sub aten::sub_ aten::rsub aten::mul aten::mul_ aten::div"
            " aten::div_ aten::pow aten::sqrt aten::rsqrt aten::square aten::neg aten::abs"
            " aten::exp aten::log aten::sin aten::cos aten::reciprocal aten::clamp aten::clamp_min"
            " aten::clamp_max aten::maximum aten::minimum aten::where aten::masked_fill"
            " aten::masked_fill_ aten::eq aten::ne aten::lt aten::le aten::gt aten::ge"
            " aten::bitwise_not aten::bitwise_and aten::bitwise_or aten::logical_not"
            " aten::logical_and aten::logical_or aten::floor_divide aten::remainder aten::addcmul"
            " aten::triu aten::tril aten::erf aten::floor aten::round aten::isnan"
        ),
    ),
    (
        "activation",
        (
            "aten::silu aten::silu_ aten::gelu aten::relu aten::relu_ aten::sigmoid aten::tanh"
            " aten::hardswish aten::mish aten::glu aten::leaky_relu aten::softplus _C::silu_and_mul"
            " _C::mul_and_silu _C::gelu_and_mul _C::gelu_tanh_and_mul _C::gelu_new _C::gelu_fast"
            " _C::gelu_quick sgl_kernel::silu_and_mul sgl_kernel::gelu_and_mul"
            " sgl_kernel::gelu_tanh_and_mul"
        ),
    ),
    (
        "copy",
        (
            "aten::copy_ aten::clone aten::contiguous aten::_to_copy aten::cat aten::stack"
            " aten::fill_ aten::zero_ aten::repeat aten::repeat_interleave aten::flip aten::roll"
            " aten::constant_pad_nd aten::_unsafe_view"
        ),
    ),
    ("moe_routing", "_moe_C::moe_sum sgl_kernel::moe_sum"),
    ("gemm", "aten::bmm aten::dot"),
    (
        "attention",
        (
            "aten::scaled_dot_product_attention aten::_scaled_dot_product_flash_attention"
            " aten::_scaled_dot_product_efficient_attention"
            " aten::_scaled_dot_product_cudnn_attention"
            " aten::_scaled_dot_product_flash_attention_for_cpu"
        ),
    ),
)

_EPSILON: Final = 1e-6

OPERATORS: Final[Mapping[str, Timeable]] = MappingProxyType(
    {
        **{name: Timeable(kind) for kind, names in _SEVERAL for name in names.split()},
        "aten::mm": Timeable("gemm", stored=(1,)),
        "aten::matmul": Timeable("gemm", stored=(1,)),
        "aten::mv": Timeable("gemm", stored=(0,)),
        "aten::addmm": Timeable("gemm", stored=(0, 2), usual={3: 1, 4: 1}),
        "aten::baddbmm": Timeable("gemm", usual={3: 1, 4: 1}),
        "aten::linear": Timeable("gemm", stored=(1, 2)),
        "aten::_scaled_mm": Timeable("gemm", stored=(1,), holds={2: ("ones",), 3: ("ones",)}),
        "aten::_int_mm": Timeable("gemm", stored=(1,)),
        "_C::cutlass_scaled_mm": Timeable("gemm", stored=(2,), holds={3: ("ones",), 4: ("ones",)}),
        "_C::weight_packed_linear": Timeable("gemm", stored=(1,)),
        "_C::rms_norm": Timeable("norm", usual={3: _EPSILON}),
        "_C::fused_add_rms_norm": Timeable("norm", usual={3: _EPSILON}),
        "sgl_kernel::rmsnorm": Timeable("norm", usual={3: _EPSILON}),
        "sgl_kernel::fused_add_rmsnorm": Timeable("norm", usual={3: _EPSILON}),
        "aten::native_layer_norm": Timeable("norm", usual={4: 1e-5}),
        "aten::layer_norm": Timeable("norm", usual={4: 1e-5}),
        "aten::_fused_rms_norm": Timeable("norm"),
        "_C::rms_norm_static_fp8_quant": Timeable(
            "norm", holds={3: ("ones",)}, usual={4: _EPSILON}
        ),
        "_C::fused_add_rms_norm_static_fp8_quant": Timeable(
            "norm", holds={4: ("ones",)}, usual={5: _EPSILON}
        ),
        "_C::static_scaled_fp8_quant": Timeable("quantize", holds={2: ("ones",)}),
        "_C::dynamic_scaled_fp8_quant": Timeable("quantize"),
        "_C::dynamic_per_token_scaled_fp8_quant": Timeable("quantize"),
        "_C::rotary_embedding": Timeable("rope", holds={0: ("below", 4, 0)}),
        "_C_cache_ops::reshape_and_cache_flash": Timeable(
            "kv_cache_write",
            stored=(2, 3),
            pages=(2, 3),
            usual={5: "auto"},
            holds={4: ("slots", 2), 6: ("ones",), 7: ("ones",)},
        ),
        "_vllm_fa3_C::fwd": Timeable(
            "attention",
            stored=(1, 2),
            pages=(1, 2),
            assumed=_LENGTHS,
            holds={
                7: ("ends", 0, 12),
                8: ("ends", 1, 13),
                11: ("value", 13),
                14: ("pages", 1),
                20: ("ones",),
                21: ("ones",),
                22: ("ones",),
                29: ("fa3_metadata",),
            },
        ),
        "_vllm_fa2_C::varlen_fwd": Timeable(
            "attention",
            stored=(1, 2),
            pages=(1, 2),
            assumed=_LENGTHS,
            holds={4: ("ends", 0, 10), 5: ("ends", 1, 11), 6: ("value", 11), 8: ("pages", 1)},
        ),
        "aten::embedding": Timeable("embedding", stored=(0,), holds={1: ("below", 0, 0)}),
        "aten::index_select": Timeable("embedding", stored=(0,), holds={2: ("below_axis", 0, 1)}),
        "aten::gather": Timeable("embedding", holds={2: ("below_axis", 0, 1)}),
        "_moe_C::topk_softmax": Timeable("moe_routing"),
        "_moe_C::moe_align_block_size": Timeable(
            "moe_routing", holds={0: ("below_value", 1)}, assumed=_ROUTED
        ),
        "c10d::allreduce_": Timeable("all_reduce"),
        "vllm::all_reduce": Timeable("all_reduce"),
        "_C_custom_ar::all_reduce": Timeable("all_reduce"),
        "_C::shm_allreduce": Timeable("all_reduce"),
    }
)
"""Operators that can be run alone, by their name in a trace of PyTorch. A script calls no other."""

REASONS: Final[tuple[tuple[str, str], ...]] = (
    (
        r"^(?:c10d::|nccl:|record_param_comms|_c10d_functional::|symm_mem::|vllm::all_gather|vllm::reduce_scatter|_C::shm_)",
        "the all-reduce is the only collective that is run alone",
    ),
    (
        r"moe_forward|fused_moe|fused_experts|grouped_mm",
        (
            "the weights of the experts are not arguments of the recorded "
            "operator; parts of it that are operators themselves can be run"
        ),
    ),
    (
        r"unified_(?:mla_)?attention|unified_kv_cache_update|cpu_attention|^_C::paged_attention",
        "the cache and the lengths are in the engine's context, not among the recorded arguments",
    ),
    (
        r"^(?:triton_|Triton|CompiledFunction|Torch-Compiled|## Call Compiled)",
        "a compiler generated the kernel: its code is not in the recording",
    ),
    (
        r"(?i)backward|^autograd::|Backward\d*$",
        "gradients need what the forward pass kept, which is not recorded",
    ),
    (
        r"^aten::(?:index|index_put_?|_index_put_impl_|nonzero|masked_select|unique\w*)$",
        "the indices are a list of tensors, of which a recording has neither shape nor values",
    ),
    (
        r"^aten::(?:item|_local_scalar_dense|is_nonzero|_pin_memory|pin_memory)$",
        "it waits for the device or moves host memory: it has no work of its own on the device",
    ),
    (
        r"get_scheduler_metadata|compute_slot_mapping",
        "it plans from lengths of sequences that are not recorded",
    ),
)

NOT_LISTED: Final = "llmprof does not know the arguments of this operator"
NO_OPERATOR: Final = "no operator was recorded for it: the program launches the kernel itself"
BETWEEN: Final = (
    "it copies between host and device, and a recording does not say which tensor is where"
)
IN_GRAPH: Final = (
    "launched by a CUDA graph, whose operators ran when it was captured: record without graphs"
)

DTYPES: Final[Mapping[str, tuple[str, int]]] = MappingProxyType(
    {
        "float": ("float32", 4),
        "double": ("float64", 8),
        "c10::BFloat16": ("bfloat16", 2),
        "c10::Half": ("float16", 2),
        "long int": ("int64", 8),
        "long": ("int64", 8),
        "long long": ("int64", 8),
        "int": ("int32", 4),
        "short": ("int16", 2),
        "short int": ("int16", 2),
        "signed char": ("int8", 1),
        "unsigned char": ("uint8", 1),
        "bool": ("bool", 1),
        "c10::Float8_e4m3fn": ("float8_e4m3fn", 1),
        "c10::Float8_e5m2": ("float8_e5m2", 1),
        "c10::complex<float>": ("complex64", 8),
        "c10::complex<double>": ("complex128", 16),
    }
)
"""Types of tensors as PyTorch's profiler writes them, with the name in torch and the bytes of an
element.
"""
