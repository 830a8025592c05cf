"""Images in the PNG format: of pixels, and in fewer bytes."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

_SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"
_RGB, _RGBA, _SUB = 2, 6, 1
_LEVEL: Final = 7


def smaller(image: bytes) -> bytes:
    """The same image in fewer bytes, since the encoder of vl-convert compresses little."""
    parts = list(_chunks(image))
    if not parts or parts[0][0] != b"IHDR":
        return image
    width, height, depth, colour, *rest = struct.unpack(">IIBBBBB", parts[0][1])
    if (depth, colour, rest) != (8, _RGBA, [0, 0, 0]):
        return image
    try:
        raw = zlib.decompress(b"".join(data for kind, data in parts if kind == b"IDAT"))
        rows = np.frombuffer(raw, dtype=np.uint8).reshape(height, 1 + 4 * width)
    except (zlib.error, ValueError):  # a damaged image is returned unchanged
        return image
    pixels = rows[:, 1:].reshape(height, width, 4)
    alpha = pixels[:, :, 3]
    opaque = (rows[:, 0] == _SUB).all() and (alpha[:, 0] == 255).all() and not alpha[:, 1:].any()
    if opaque:
        colour = _RGB
        raw = np.concatenate([rows[:, :1], pixels[:, :, :3].reshape(height, 3 * width)], axis=1).tobytes()
    made = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, *rest)),
        *((kind, data) for kind, data in parts if kind not in (b"IHDR", b"IDAT", b"IEND")),
        (b"IDAT", zlib.compress(raw, _LEVEL)),
        (b"IEND", b""),
    ]
    packed = _packed(made)
    return packed if len(packed) < len(image) else image


def _chunks(image: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Kind and content of each chunk; nothing if the data are not a PNG."""
    offset = len(_SIGNATURE)
    if not image.startswith(_SIGNATURE):
        return
    while offset + 12 <= len(image):
        (length,) = struct.unpack_from(">I", image, offset)
        yield image[offset + 4 : offset + 8], image[offset + 8 : offset + 8 + length]
        offset += 12 + length


def png_of(pixels: NDArray[np.uint8]) -> bytes:
    """An image as PNG."""
    height, width, _ = pixels.shape
    unfiltered = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, 3 * width)], axis=1)
    head = struct.pack(">IIBBBBB", width, height, 8, _RGB, 0, 0, 0)
    return _packed(((b"IHDR", head), (b"IDAT", zlib.compress(unfiltered.tobytes(), _LEVEL)), (b"IEND", b"")))


def _packed(chunks: Iterable[tuple[bytes, bytes]]) -> bytes:
    return _SIGNATURE + b"".join(_chunk(kind, data) for kind, data in chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
