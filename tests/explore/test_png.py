"""Images of widgets: smaller, and the same to the pixel."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest

from llmprof import charts
from llmprof.explore.base.png import png_of, smaller
from tests.charts import frames
from tests.charts.specs import pixels


def plain_pixels(image: bytes) -> np.ndarray:
    """Pixels (height, width, 3) of a PNG of one chunk of data whose rows have no filter."""
    width, height, depth, colour = struct.unpack(">IIBB", image[16:26])
    (length,) = struct.unpack_from(">I", image, 33)
    assert (depth, colour, image[37:41]) == (8, 2, b"IDAT")
    rows = np.frombuffer(zlib.decompress(image[41 : 41 + length]), np.uint8).reshape(height, 1 + 3 * width)
    assert not rows[:, 0].any()
    return rows[:, 1:].reshape(height, width, 3)


@pytest.fixture(scope="module")
def chart() -> bytes:
    return charts.to_png_bytes(charts.kernels(frames.summed()), scale=1)


def test_the_same_picture_in_fewer_bytes(chart: bytes) -> None:
    made = smaller(chart)
    assert len(made) < 0.6 * len(chart)
    assert np.array_equal(pixels(made), pixels(chart))
    assert smaller(made) == made


def test_what_is_no_such_png_stays(chart: bytes) -> None:
    for image in (b"", b"no image", chart[:8], chart[:40]):
        assert smaller(image) == image


def test_pixels_become_an_image() -> None:
    made = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    image = png_of(made)
    assert plain_pixels(image).tolist() == made.tolist()
    at = 8
    while at < len(image):
        (length,) = struct.unpack_from(">I", image, at)
        assert struct.unpack_from(">I", image, at + 8 + length)[0] == zlib.crc32(image[at + 4 : at + 8 + length])
        at += 12 + length
