"""Types of elements by the names that profilers write: number format, and bytes of an element."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

ELEMENT_TYPES: Final[Mapping[str, tuple[str, int]]] = {
    name: (number_format, size)
    for number_format, size, names in (
        ("fp64", 8, ("double", "float64", "fp64")),
        ("fp32", 4, ("float", "float32", "fp32")),
        ("fp16", 2, ("half", "float16", "fp16")),
        ("bf16", 2, ("bfloat16", "bfp16", "bf16")),
        ("fp8", 1, ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")),
        ("fp8", 1, ("float8_e8m0fnu",)),
        ("fp4", 1, ("float4_e2m1fn_x2",)),
        ("bool", 1, ("bool",)),
        ("int8", 1, ("signed char", "char", "int8")),
        ("uint8", 1, ("unsigned char", "byte", "uint8")),
        ("int16", 2, ("short", "short int", "int16")),
        ("uint16", 2, ("unsigned short", "short unsigned int", "uint16")),
        ("int32", 4, ("int", "int32")),
        ("uint32", 4, ("unsigned int", "uint32")),
        ("int64", 8, ("long", "long int", "long long", "int64")),
        ("uint64", 8, ("unsigned long", "long unsigned int", "uint64")),
        ("complex", 4, ("complex<half>",)),
        ("complex", 8, ("complex<float>",)),
        ("complex", 16, ("complex<double>",)),
    )
    for name in names
}
"""Number format and bytes of an element, by the name of the type in lower case, without ``c10::``:
those of torch, of NCCL's metadata and of HCCL's calls.
"""


def type_format(text: str) -> tuple[str, int]:
    """Number format and bytes of an element of a type; the format is empty for an unknown type."""
    return ELEMENT_TYPES.get(text.lower().removeprefix("c10::"), ("", 0))
