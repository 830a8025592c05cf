"""The timeline as an image, for notebooks that are looked at without a kernel."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence

import numpy as np
import vl_convert as vlc

from llmprof.charts.base.theme import INK, MUTED, RULE, ink_on
from llmprof.explore.timeline.data import TimelineData
from llmprof.explore.timeline.rows import KINDS, Row
from llmprof.explore.timeline.view import MARGIN, view
from llmprof.units import format_ns

WIDTH, GUTTER, MOST_HEIGHT = 1000, 150, 640
HEAD, GROUP, GAP, FOOT = 30, 20, 4, 26
HEIGHTS = {"stream": 24, "counter": 30, "idle": 11}
LEVEL, COLUMN_PX, LEVELS = 16, 2, 8
FEW = 50_000
"""Most device events for which steps and layers are found before the first picture is drawn."""

COUNTED = "#BCD6EA"
"""Fill of counters, light enough for text."""

_FONT = 'font-family="Liberation Sans, Arial, sans-serif" font-size="11"'


def picture(data: TimelineData, window: Sequence[float] | None, by: str) -> bytes:
    """PNG image of a window of the timeline, two pixels for each of the widget, of a large trace one.

    Parameters
    ----------
    data : TimelineData
        The rows; at least one.
    window : (float, float), optional
        First and last time (ns); the whole trace if not given.
    by : str
        What the colour of a kernel means.
    """
    few = data.events.height <= FEW
    if few:
        data.find()
    # It is painted before the live widget is shown, which a large trace must not wait for.
    return vlc.svg_to_png(_svg(data, window or data.whole, by), scale=2 if few else 1)


def _svg(data: TimelineData, window: Sequence[float], by: str) -> str:
    placed = list(_placed(data))
    shown = [(number, row, top) for number, row, top in placed if row is not None]
    bottom = max(top + _height(row) if row is not None else top + GROUP for _, row, top in placed)
    height = bottom + GAP + FOOT
    parts = [f'<rect width="{WIDTH}" height="{height}" fill="#FFFFFF"/>', *_axis(window, height - FOOT)]
    wide = WIDTH - GUTTER
    message, buffers = view(data, window, wide / COLUMN_PX, [number for number, _, _ in shown], by)
    start, dur, code, name, _, busy, main, samples = (
        np.frombuffer(raw, dtype)
        for raw, dtype in zip(buffers, ("<f4", "<f4", "u1", "<u4", "<u4", "u1", "u1", "<f4"), strict=True)
    )
    colours = [key["colour"] for key in data.keys.described()]
    columns, tops = message["columns"], {number: top for number, _, top in shown}
    inside = slice(round(columns * MARGIN / (1 + 2 * MARGIN)), round(columns * (1 + MARGIN) / (1 + 2 * MARGIN)))
    scale = wide / (window[1] - window[0])
    for number, level, first, count, binned in message["lanes"]:
        row = data.rows[number]
        high = HEIGHTS.get(row.kind, LEVEL)
        y = tops[number] + level * (high + 1)
        if row.samples is not None:
            most = samples[(2 * binned + 1) * columns : (2 * binned + 2) * columns]
            parts.append(_line(most[inside], row, y, high))
            continue
        if binned >= 0:
            at = slice(binned * columns, (binned + 1) * columns)
            parts += _bins(busy[at][inside], main[at][inside], y, high, colours)
        for i in range(first, first + count):
            left = (message["window"][0] + float(start[i]) - window[0]) * scale
            a, b = max(0.0, left), min(float(wide), left + float(dur[i]) * scale)
            if b > 0 and a < wide:
                text = data.names.short[name[i]]
                parts += _bar(GUTTER + a, y, max(b - a, 0.7), high, colour=colours[code[i]], name=text)
    for number, place, top in placed:
        parts += _label(data, number, place, top)
    extent = f"{format_ns(window[1] - window[0])} from {format_ns(window[0])} into the trace"
    parts.append(_text(GUTTER, height - 8, f"{extent}; run the cell for the live timeline"))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}">'
        f"{''.join(parts)}</svg>"
    )


def _placed(data: TimelineData) -> Iterator[tuple[int, Row | None, int]]:
    """Rows with their tops, a head (None) above each rank's, as many as fit."""
    y, rank = HEAD, None
    for number, row in enumerate(data.rows):
        if row.kind in KINDS and not data.found:
            continue
        head = GROUP if row.rank != rank else 0
        if y + head + _height(row) > MOST_HEIGHT and number:
            return
        if head:
            yield row.rank, None, y
            rank, y = row.rank, y + GROUP
        yield number, row, y
        y += _height(row) + GAP


def _height(row: Row) -> int:
    return max(1, len(row.lanes)) * (HEIGHTS.get(row.kind, LEVEL) + 1) - 1


def _axis(window: Sequence[float], bottom: int) -> Iterator[str]:
    digits = max(3, 1 + len(str(int(window[1] / max(window[1] - window[0], 1)))))
    for tenth in range(0, 11, 2):
        x = GUTTER + (WIDTH - GUTTER) * tenth / 10
        at = window[0] + (window[1] - window[0]) * tenth / 10
        side, text = "start" if tenth < 10 else "end", format_ns(at, digits + 1)
        yield f'<path d="M{x:.1f} {HEAD - 8}V{bottom}" stroke="{RULE}" stroke-width="0.6"/>'
        yield _text(x + (3 if tenth < 10 else -3), 14, text, anchor=side)


def _label(data: TimelineData, number: int, row: Row | None, top: int) -> Iterator[str]:
    if row is None:
        name = "host" if number < 0 else f"rank {number}"
        yield f'<rect y="{top}" width="{GUTTER - 6}" height="{GROUP - 3}" fill="#E9EDF1"/>'
        yield _text(6, top + 13, name, ink=INK)
    else:
        text = row.label if len(row.label) < 24 else f"{row.label[:22]}…"
        note = row.note or (f"up to {row.samples[1].max():,.4g} {row.unit}" if row.samples is not None else "")
        yield _text(GUTTER - 10, top + 12, text, anchor="end")
        if note:
            yield _text(GUTTER + 6, top + 12, note)


def _text(x: float, y: float, text: str, *, ink: str = MUTED, anchor: str = "start") -> str:
    text = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)  # XML has no control characters
    return f'<text x="{x:.1f}" y="{y:.1f}" {_FONT} fill="{ink}" text-anchor="{anchor}">{html.escape(text)}</text>'


def _box(x: float, y: float, width: float, height: float, colour: str) -> str:
    return f'<rect x="{x:.2f}" y="{y:.1f}" width="{width:.2f}" height="{height:.1f}" fill="{colour}"/>'


def _bar(x: float, y: float, width: float, height: float, *, colour: str, name: str) -> Iterator[str]:
    yield _box(x, y, width - (0.7 if width > 4 else 0), height, colour)
    room = int((width - 6) / 6.2)
    if room >= 3 and height >= 14:
        text = name if len(name) <= room else f"{name[: room - 1]}…"
        yield _text(x + 3, y + height / 2 + 4, text, ink=ink_on(colour))


def _line(values: np.ndarray, row: Row, y: float, height: float) -> str:
    """Greatest value of a counter in each column, as an area from its least value on, or from zero."""
    every = row.samples[1] if row.samples is not None else values
    least = min(0.0, float(np.nanmin(every)))
    span = max(float(np.nanmax(every)) - least, 1e-12)
    known = np.flatnonzero(np.isfinite(values))
    up = [f"L{GUTTER + n * COLUMN_PX} {y + height * (1 - (values[n] - least) / span):.1f}" for n in known]
    if not up:
        return ""
    first, last = (GUTTER + int(known[n]) * COLUMN_PX for n in (0, -1))
    return f'<path d="M{first} {y + height}{"".join(up)}L{last} {y + height}Z" fill="{COUNTED}"/>'


def _bins(busy: np.ndarray, main: np.ndarray, y: float, height: float, colours: Sequence[str]) -> Iterator[str]:
    """Columns as high as they were busy; neighbours that look alike are one."""
    steps = -(-busy.astype(int) * LEVELS // 255)
    key = np.where(steps > 0, steps * 256 + main, 0)
    edges = np.flatnonzero(np.diff(key)) + 1
    for a, b in zip([0, *edges], [*edges, len(key)], strict=True):
        if key[a]:
            high = height * int(steps[a]) / LEVELS
            yield _box(GUTTER + a * COLUMN_PX, y + height - high, (b - a) * COLUMN_PX, high, colours[main[a]])
