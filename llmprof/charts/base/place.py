"""Places for labels beside points, so that no text lies on another text, on a point or on a line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

Segment = tuple[float, float, float, float]
"""Two ends of a line: x, y, x, y (px)."""

_GAP = 4
"""Space between a point and its text (px)."""

_AWAY = (0, 12, 24, 40, 60, 85, 110)
"""Further distances from the point that are tried (px)."""

_AROUND = (0, 8, 4, 12, 2, 6, 14, 10, 1, 15, 3, 5, 7, 9, 11, 13)
"""Directions that are tried, in sixteenths of a turn: right, left, under, above, then what is between."""


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle of the plot (px), from the upper left."""

    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: Box) -> bool:
        """Whether two rectangles share a point."""
        across = self.left < other.right and other.left < self.right
        return across and self.top < other.bottom and other.top < self.bottom

    def within(self, width: float, height: float) -> bool:
        """Whether it lies in a plot of this size."""
        return self.left >= 0 and self.top >= 0 and self.right <= width and self.bottom <= height


def around(x: float, y: float, radius: float) -> Box:
    """The square around a point."""
    return Box(x - radius, y - radius, x + radius, y + radius)


def along(start: tuple[float, float], end: tuple[float, float], every: float = 6) -> list[Box]:
    """Small squares along a line."""
    count = max(1, math.ceil(math.dist(start, end) / every))
    (x0, y0), (x1, y1) = start, end
    return [around(x0 + (x1 - x0) * i / count, y0 + (y1 - y0) * i / count, every / 2) for i in range(count + 1)]


def place(
    point: tuple[float, float],
    radius: float,
    size: tuple[float, float],
    plot: tuple[float, float],
    taken: Sequence[Box],
) -> tuple[Box, Segment | None] | None:
    """First free place for a text: beside the point, under or above it, at its corners, then further away.

    Parameters
    ----------
    point : tuple of float
        Middle of the point (px).
    radius : float
        Its radius (px).
    size : tuple of float
        Width and height of the text (px).
    plot : tuple of float
        Width and height of the plot (px).
    taken : sequence of Box
        What must stay free, the point itself left out.

    Returns
    -------
    tuple of Box and Segment, or None
        Where the text goes, and a line to it from the point where it is away from that; None if it has no place.
    """
    for away in _AWAY:
        for box in _beside(point, radius + away, size):
            ends = _leader(point, radius, box) if away else None
            covered = [box, *along(ends[:2], ends[2:], every=2)] if ends else [box]
            if box.within(*plot) and not any(mine.meets(other) for mine in covered for other in taken):
                return box, ends
    return None


def _beside(point: tuple[float, float], radius: float, size: tuple[float, float]) -> list[Box]:
    """A text all around a point."""
    (x, y), (width, height), far = point, size, radius + _GAP
    boxes = []
    for sixteenth in _AROUND:
        right, down = math.cos(sixteenth * math.pi / 8), math.sin(sixteenth * math.pi / 8)
        left = x + right * far - width * (0.5 - _side(right) / 2)
        top = y + down * far - height * (0.5 - _side(down) / 2)
        boxes.append(Box(left, top, left + width, top + height))
    return boxes


def _side(share: float) -> int:
    """Which side of a text is next to the point: 1 and -1 for the ends, 0 for the middle."""
    return 0 if abs(share) < 0.3 else int(math.copysign(1, share))


def _leader(point: tuple[float, float], radius: float, box: Box) -> Segment:
    """Line from the edge of a point to the nearest place of a text."""
    x, y = point
    end = (min(max(x, box.left), box.right), min(max(y, box.top), box.bottom))
    share = radius / max(radius, math.dist(point, end))
    return x + (end[0] - x) * share, y + (end[1] - y) * share, *end
