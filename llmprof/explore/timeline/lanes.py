"""Level of detail of a timeline's lane: single events if there are few, bins if there are many."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Codes = NDArray[np.uint8]
Numbers = NDArray[np.uint32]

BLOCK = 8
"""Events between two running sums that are kept; what lies between is counted event by event."""

COARSE = 64
"""Events between two of which the longest is kept."""

VISIBLE = 40
"""Least height (of 255) of a bin in which anything began."""


class _Paint:
    """Colours of the spans of a lane, and values that are computed from them once."""

    def __init__(self, code: Codes, dur: Ints) -> None:
        self.code, self._dur = code, dur

    @cached_property
    def few(self) -> tuple[Codes, Codes]:
        """The colours that occur, and the index of each span's colour among them."""
        present = np.flatnonzero(np.bincount(self.code, minlength=1)).astype(np.uint8)
        place = np.zeros(256, np.uint8)
        place[present] = np.arange(len(present))
        return present, place[self.code]

    @cached_property
    def sums(self) -> Floats:
        """Time of each colour in all spans before each block of them."""
        present, code = self.few
        count, colours = len(code) // BLOCK, len(present)
        block = np.repeat(np.arange(count), BLOCK)
        of_block = np.bincount(block * colours + code[: len(block)], self._dur[: len(block)], minlength=count * colours)
        before = np.zeros((count + 1, colours))
        np.cumsum(of_block.reshape(count, colours), axis=0, out=before[1:])
        return before


class Lane:
    """Spans in the order of their start, each with a colour, a name and an id."""

    def __init__(self, start: Ints, end: Ints, codes: Mapping[str, Codes], name: Numbers, id: Numbers) -> None:  # noqa: A002
        self.start, self.end, self.name, self.id = start, end, name, id
        self._paints = {by: _Paint(code, end - start) for by, code in codes.items()}
        self._reach = np.maximum.accumulate(end) if len(end) else end

    def __len__(self) -> int:
        return len(self.start)

    @property
    def reach(self) -> int:
        """Last end (ns); the lane has spans."""
        return int(self._reach[-1])

    def _paint(self, by: str) -> _Paint:
        return self._paints.get(by) or next(iter(self._paints.values()))

    def code(self, by: str) -> Codes:
        """Colour of each span if colours show ``by``."""
        return self._paint(by).code

    def present(self, by: str) -> list[int]:
        """Colours that the lane has."""
        colours: list[int] = self._paint(by).few[0].tolist()
        return colours

    def recolour(self, by: str, codes: Codes) -> None:
        """Set the colours of one meaning, by the ids of the spans."""
        self._paints[by] = _Paint(codes[self.id], self.end - self.start)

    def within(self, lo: float, hi: float) -> tuple[int, int]:
        """First and last (exclusive) span that touches a window."""
        first = int(np.searchsorted(self._reach, whole(np.floor(lo)), "right"))
        return first, max(first, int(np.searchsorted(self.start, whole(np.ceil(hi)), "left")))

    @cached_property
    def _longest(self) -> Ints:
        longest: Ints = np.maximum.reduceat(self.end - self.start, np.arange(0, len(self), COARSE))
        return longest

    def longer(self, first: int, stop: int, least: float) -> Ints:
        """Spans from first to stop (exclusive) that last at least so long (ns)."""
        if first >= stop:
            return np.empty(0, np.int64)
        blocks = first // COARSE + np.flatnonzero(self._longest[first // COARSE : -(-stop // COARSE)] >= least)
        k: Ints = (blocks[:, None] * COARSE + np.arange(COARSE)).ravel()
        k = k[(k >= first) & (k < stop)]
        return k[self.end[k] - self.start[k] >= least]

    def at(self, time: float) -> int | None:
        """Span that covers a time, or None."""
        k = int(np.searchsorted(self.start, whole(np.floor(time)), "right")) - 1
        return k if k >= 0 and time < self.end[k] else None

    def bins(self, lo: float, hi: float, columns: int, by: str) -> tuple[Codes, Codes]:
        """Busy share of each of the equal columns of a window, and the colour that fills most of it."""
        edges = np.linspace(lo, hi, columns + 1)
        begun = np.searchsorted(self.start, whole(np.ceil(edges)), "left")
        paint = self._paint(by)
        of_lane, code = paint.few
        total = np.maximum(np.diff(self._until(edges, begun, paint), axis=0), 0)
        began = np.diff(begun) > 0
        first = code[np.minimum(begun[:-1], len(self) - 1)]
        main = np.where(total.max(axis=1) > 0, total.argmax(axis=1), first)
        busy = np.clip(total.sum(axis=1) / max((hi - lo) / columns, 1e-9), 0, 1) * 255
        return np.maximum(np.ceil(busy), np.where(began, VISIBLE, 0)).astype(np.uint8), of_lane[main]

    def _until(self, edges: Floats, begun: Ints, paint: _Paint) -> Floats:
        """Time of each colour (columns) before each edge (rows), before which ``begun`` spans begin."""
        column, code = np.arange(len(edges)), paint.few[1]
        block = begun // BLOCK
        total = paint.sums[block]
        between = block[:, None] * BLOCK + np.arange(BLOCK - 1)
        row, _ = counted = np.nonzero(between < begun[:, None])
        k = between[counted]
        width = total.shape[1]
        some = np.bincount(row * width + code[k], self.end[k] - self.start[k], minlength=total.size)
        total += some.reshape(total.shape)
        last = np.maximum(begun - 1, 0)
        beyond = np.where(begun > 0, np.maximum(self.end[last] - edges, 0.0), 0.0)
        total[column, code[last]] -= beyond
        return total


def whole(times: Any) -> Ints:
    """Times as the whole numbers that starts and ends are: numpy copies them all to compare them with fractions."""
    numbers: Ints = np.clip(times, -(2.0**62), 2.0**62).astype(np.int64)
    return numbers


def levels(start: Ints, end: Ints, *, slack: int = 0, most: int = 24) -> NDArray[np.int64]:
    """Depth of nested spans: the number of spans that are open when each span begins."""
    over = np.sort(np.maximum(end - slack, start))
    depth: Ints = np.arange(len(start)) - np.searchsorted(over, start, "right")
    return depth.clip(0, most - 1)
