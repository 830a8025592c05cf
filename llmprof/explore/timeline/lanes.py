"""Level of detail of a timeline's lane: single events if there are few, bins if there are many.

A lane holds consecutive spans. The cost of a view depends on its pixels and not on the number of events: positions come
from binary searches and times from running sums, and with very many events from sums of blocks.
"""

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
"""Events of a block."""

EXACT = 60_000
"""Most events of a view that are summed one by one; more are summed in blocks."""

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
    def blocks(self) -> Codes:
        """Which colour fills most of each block of spans."""
        present, code = self.few
        count, colours = len(code) // BLOCK, len(present)
        block = np.repeat(np.arange(count), BLOCK)
        total = np.bincount(block * colours + code[: len(block)], self._dur[: len(block)], minlength=count * colours)
        return np.append(total.reshape(-1, colours).argmax(axis=1).astype(np.uint8), code[-1:])


class Lane:
    """Spans in the order of their start, each with a colour, a name and an id.

    Parameters
    ----------
    start, end : array of int64
        Times (ns), sorted by start.
    codes : mapping of str to array of uint8
        Colour of each span, by the meaning of colours (``stage``, ``category`` or ``own``).
    name, id : array of uint32
        Number of the name, and row number of the span in its frame.
    """

    def __init__(self, start: Ints, end: Ints, codes: Mapping[str, Codes], name: Numbers, id: Numbers) -> None:  # noqa: A002
        self.start, self.end, self.name, self.id = start, end, name, id
        self._paints = {by: _Paint(code, end - start) for by, code in codes.items()}
        self._reach = np.maximum.accumulate(end) if len(end) else end
        self._before: Floats | None = None

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
        first = int(np.searchsorted(self._reach, lo, "right"))
        return first, max(first, int(np.searchsorted(self.start, hi, "left")))

    def at(self, time: float) -> int | None:
        """Span that covers a time, or None."""
        k = int(np.searchsorted(self.start, time, "right")) - 1
        return k if k >= 0 and time < self.end[k] else None

    def bins(self, lo: float, hi: float, columns: int, by: str) -> tuple[Codes, Codes]:
        """Busy share of each of the equal columns of a window, and the colour that fills most of it.

        Returns
        -------
        busy : array of uint8
            Share of 255; at least ``VISIBLE`` where a span begins.
        code : array of uint8
            The colour.
        """
        edges = np.linspace(lo, hi, columns + 1)
        last = np.searchsorted(self.start, edges, "left") - 1
        known = np.maximum(last, 0)
        start, end = self.start[known], self.end[known]
        inside = np.where(last >= 0, np.clip(edges - start, 0, end - start), 0.0)
        done = np.where(last >= 0, self._sums()[known], 0.0) + inside
        width = (hi - lo) / columns
        paint = self._paint(by)
        of_lane, code = paint.few
        colours = len(of_lane)
        column, ns, of = self._begun(last, edges, paint)
        total = np.bincount(column * colours + of, ns, minlength=columns * colours).astype(np.float64)
        total = total.reshape(columns, colours)
        # the span that covers the left edge of a column reaches into it
        carried = np.where(last[:-1] >= 0, np.minimum(end[:-1], edges[1:]) - edges[:-1], 0.0)
        total[np.arange(columns), code[known[:-1]]] += np.maximum(carried, 0.0)
        begun = np.diff(last) > 0
        nothing = total.max(axis=1) <= 0
        main = np.where(nothing, code[np.minimum(last[:-1] + 1, len(self) - 1)], total.argmax(axis=1))
        busy = np.clip(np.diff(done) / max(width, 1e-9), 0, 1) * 255
        return np.maximum(np.ceil(busy), np.where(begun, VISIBLE, 0)).astype(np.uint8), of_lane[main]

    def _sums(self) -> Floats:
        """Time of all spans before each one."""
        if self._before is None:
            self._before = np.concatenate([[0.0], np.cumsum(self.end - self.start, dtype=np.float64)[:-1]])
        return self._before

    def _begun(self, last: Ints, edges: Floats, paint: _Paint) -> tuple[Any, Any, Codes]:
        """Column, time in it and colour of the spans that begin in the window, one by one or in blocks."""
        first, stop = int(last[0]) + 1, int(last[-1]) + 1
        columns = np.arange(len(edges) - 1, dtype=np.int64)
        if stop - first <= EXACT:
            column = np.repeat(columns, np.diff(last))
            inside: Floats = np.minimum(self.end[first:stop], edges[1:][column]) - self.start[first:stop]
            return column, inside, paint.few[1][first:stop]
        step = BLOCK * -(-(stop - first) // (EXACT * BLOCK))
        blocks = np.arange(first // BLOCK, stop // BLOCK, step // BLOCK)
        at = blocks * BLOCK
        column = np.searchsorted(edges[1:-1], self.start[at], "right")
        sums = self._sums()
        ns = sums[np.minimum(at + step, len(self) - 1)] - sums[at]
        return column, ns, paint.blocks[blocks]


def levels(start: Ints, end: Ints, *, slack: int = 0, most: int = 24) -> NDArray[np.int64]:
    """Depth of nested spans: the number of spans that are open when each span begins.

    Parameters
    ----------
    start, end : array of int64
        Times (ns), sorted by start; of spans with the same start the longest comes first.
    slack : int
        Overlaps up to this length (ns) do not count.
    most : int
        Deepest level.
    """
    over = np.sort(np.maximum(end - slack, start))
    depth: Ints = np.arange(len(start)) - np.searchsorted(over, start, "right")
    return depth.clip(0, most - 1)
