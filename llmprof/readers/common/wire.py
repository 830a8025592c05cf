"""Messages of Protocol Buffers, field by field, without the classes of their types.

Source of the format: https://protobuf.dev/programming-guides/encoding.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

VARINT, FIXED_64, BYTES, FIXED_32 = 0, 1, 2, 5
FIXED: Final = {FIXED_64: 8, FIXED_32: 4}
"""Bytes of a field by its wire type."""


class WireField(NamedTuple):
    """A field of a message: its number, and its value or the range of its bytes."""

    number: int
    value: int
    """The number, or the end of the bytes."""
    start: int
    """Where the bytes begin; 0 for a number."""


def varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """A number, and the place behind it."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= end:
            raise IndexError("a field is cut off")
        byte, at = data[at], at + 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise IndexError("a number is too long")


def wire_fields(data: bytes, at: int, end: int) -> Iterator[WireField]:
    """Fields of a message; IndexError where the bytes are none."""
    while at < end:
        tag, at = varint(data, at, end)
        kind = tag & 7
        if tag < 8 or kind not in (VARINT, BYTES, *FIXED):
            raise IndexError("the following bytes are no field")
        size = FIXED.get(kind)
        if size is None:
            size, at = varint(data, at, end)
        if kind == VARINT:
            yield WireField(tag >> 3, size, 0)
            continue
        if at + size > end:
            raise IndexError("a field is cut off")
        yield WireField(tag >> 3, at + size, at)
        at += size
