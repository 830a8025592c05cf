"""Types of elements by the names that profilers write: number format, and bytes of an element."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple


class ElementType(NamedTuple):
    """A type of elements."""

    format: str
    """Number format, as ``bf16``."""
    bytes: int
    """Of an element."""
    number: int | None
    """Torch's number of the type, where arguments of operators name it."""
    torch: str
    """Name in torch of a type that random numbers can be made of, else empty."""
    others: tuple[str, ...] = ()
    """Names in lower case, without ``c10::``: those of torch's profiler, of NCCL's metadata and of
    HCCL's calls.
    """


TYPES: Final = (
    ElementType("bool", 1, 11, "bool"),
    ElementType("uint8", 1, 0, "uint8", ("unsigned char", "byte")),
    ElementType("int8", 1, 1, "int8", ("signed char", "char")),
    ElementType("int16", 2, 2, "int16", ("short", "short int")),
    ElementType("uint16", 2, None, "", ("uint16", "unsigned short", "short unsigned int")),
    ElementType("int32", 4, 3, "int32", ("int",)),
    ElementType("uint32", 4, None, "", ("uint32", "unsigned int")),
    ElementType("int64", 8, 4, "int64", ("long", "long int", "long long")),
    ElementType("uint64", 8, None, "", ("uint64", "unsigned long", "long unsigned int")),
    ElementType("fp4", 1, None, "", ("float4_e2m1fn_x2",)),
    ElementType("fp8", 1, None, "float8_e4m3fn"),
    ElementType("fp8", 1, None, "float8_e5m2"),
    ElementType("fp8", 1, None, "", ("float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")),
    ElementType("fp16", 2, 5, "float16", ("half", "fp16")),
    ElementType("bf16", 2, 15, "bfloat16", ("bfp16", "bf16")),
    ElementType("fp32", 4, 6, "float32", ("float", "fp32")),
    ElementType("fp64", 8, 7, "float64", ("double", "fp64")),
    ElementType("complex", 4, None, "", ("complex<half>",)),
    ElementType("complex", 8, None, "complex64", ("complex<float>",)),
    ElementType("complex", 16, None, "complex128", ("complex<double>",)),
)
"""In the order of type promotion."""

_NAMED: Final[Mapping[str, ElementType]] = {
    name: each for each in TYPES for name in (each.torch, *each.others) if name
}

SIZES: Final[Mapping[str, int]] = {name: each.bytes for name, each in _NAMED.items()}
"""Bytes of an element, by the name of the type in lower case, without ``c10::``."""

NUMBERED: Final[Mapping[int, int]] = {
    each.number: each.bytes for each in TYPES if each.number is not None
}
"""Bytes of an element, by torch's number of the type."""

FLOAT_WIDTHS: Final[Mapping[int, int]] = {
    each.number: each.bytes
    for each in TYPES
    if each.number is not None and each.format.startswith(("fp", "bf"))
}
"""The same of floats."""


PROMOTED: Final = tuple(dict.fromkeys(each.format for each in TYPES))
"""Number formats in the order of type promotion."""


PRECISIONS: Final = [
    ("fp4", r"fp4|e2m1"),
    ("fp8", r"fp8(?:[^k]|$)|float8|e4m3|e5m2"),  # vllm::Fp8KVCacheDataType is of any format
    ("quantized weights", r"marlin|awq|gptq|exl[23]_|dequantize\d*_|mul_mat_(?:vec_)?q\b"),
    ("int8", r"int8|_i8i8|w8a8"),
    ("bf16", r"bf16|bfloat16|bfp16"),
    ("fp16", r"fp16|half|[^b]f16|float16|_h(?:884|1688|16816)"),
    ("fp32", r"fp32|float|[^t]f32|sgemm"),
]
"""Ordered patterns of number formats in the names of kernels and of the types of operators."""


def element_type(text: str) -> ElementType | None:
    """Type of elements by a name that a profiler writes; None for an unknown one."""
    return _NAMED.get(text.lower().removeprefix("c10::"))


def type_format(text: str) -> tuple[str, int]:
    """Number format and bytes of an element of a type; the format is empty for an unknown type."""
    found = element_type(text)
    return (found.format, found.bytes) if found else ("", 0)
