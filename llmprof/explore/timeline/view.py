"""Views of the timeline as packed arrays, whose size depends on the pixels, and as an image."""

import html
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import vl_convert as vlc
from numpy.typing import NDArray

from llmprof.charts.base.dark import on_any
from llmprof.charts.base.theme import INK, MUTED, RULE, ink_on
from llmprof.explore.base.messages import Buffers, array
from llmprof.explore.timeline.data import TimelineData
from llmprof.explore.timeline.rows import KINDS, PATH_GROUP, PATH_KIND, Lane, TimelineRow, whole_ns
from llmprof.explore.timeline.rows import REQUEST_GROUP as REQUESTS
from llmprof.explore.timeline.rows import REQUEST_KIND as REQUEST
from llmprof.theory.familiar import quantity
from llmprof.units import format_ns, format_share

MARGIN = 0.25
"""Margin on either side of the window, as a share of it, so that panning shows data at once."""

ROOM_PX = 4
"""Average pixels that an event needs to be sent singly, and the least width of an event drawn
above bins.
"""

LIMIT = 800_000
"""Most bytes of a view; lanes get less detail until it fits."""

BYTES_EVENT = 18
MOST_COLUMNS = 6_000
MOST_LINES = 16
"""Most ranks of the overview."""


def window_view(
    data: TimelineData, window: Sequence[float], width: float, rows: Sequence[int], by: str
) -> tuple[dict[str, Any], Buffers]:
    """Spans, bins and samples of some rows in a window."""
    margin = max(window[1] - window[0], 1.0) * MARGIN
    lo, hi = float(window[0]) - margin, float(window[1]) + margin
    columns = int(
        min(MOST_COLUMNS, max(1, round(width * (hi - lo) / max(window[1] - window[0], 1e-9))))
    )
    lanes_shown = [
        (number, level, lane)
        for number in rows
        for level, lane in enumerate(data.row(number, filled=False).lanes)
    ]
    room = ROOM_PX
    while True:
        chosen = [_choose(lane, lo, hi, columns, room) for _, _, lane in lanes_shown]
        of_events = sum(len(events) for events, _ in chosen) * BYTES_EVENT
        of_bins = sum(binned for _, binned in chosen) * 3 * columns
        if of_events + of_bins <= LIMIT:
            break
        if of_events > of_bins:
            room *= 2
        else:
            columns = max(1, columns // 2)
    lanes: list[list[int]] = []
    parts: list[tuple[Lane, NDArray[np.int64]]] = []
    busy: list[NDArray[np.uint8]] = []
    main: list[NDArray[np.uint8]] = []
    held: list[NDArray[np.uint8]] = []
    first = 0
    for (number, level, lane), (events, binned) in zip(lanes_shown, chosen, strict=True):
        if binned:
            bins = lane.bins(lo, hi, columns, by)
            busy.append(bins[0])
            main.append(bins[1])
            waiting = lane.waiting
            held.append(
                np.zeros(columns, np.uint8)
                if waiting is None
                else waiting.bins(lo, hi, columns, "waits")[0]
            )
        if binned or len(events):
            lanes.append([number, level, first, len(events), len(busy) - 1 if binned else -1])
            parts.append((lane, events))
            first += len(events)
    samples: list[NDArray[np.float64]] = []
    for number in rows:
        if data.row(number, filled=False).samples is not None:
            lanes.append([number, 0, first, 0, len(samples)])
            samples.append(_samples(data.row(number, filled=False), lo, hi, columns))
    message = {"window": [lo, hi], "columns": columns, "lanes": lanes}
    return message, [
        array(_joined([lane.start[i] - lo for lane, i in parts]), "f4"),
        array(_joined([lane.end[i] - lane.start[i] for lane, i in parts]), "f4"),
        array(_joined([lane.code(by)[i] for lane, i in parts]), "u1"),
        array(_joined([lane.name[i] for lane, i in parts]), "u4"),
        array(_joined([lane.id[i] for lane, i in parts]), "u4"),
        array(_joined(busy), "u1"),
        array(_joined(main), "u1"),
        array(_joined(samples), "f4"),
        array(_joined([_waits(lane, i) for lane, i in parts]), "u1"),
        array(_joined(held), "u1"),
    ]


def overview(data: TimelineData, width: float, by: str) -> tuple[dict[str, Any], Buffers]:
    """The whole trace as one line of bins for each rank: its busiest stream, or else the busiest
    row of its threads.
    """
    columns = int(min(MOST_COLUMNS, max(1, round(width))))
    best: dict[int, int] = {}
    for number, row in enumerate(data.drawn):
        if row.lanes and row.kind in ("stream", "ops", "runtime"):
            rank = best.setdefault(row.rank, number)
            if (row.kind == "stream", row.count) > (
                data.drawn[rank].kind == "stream",
                data.drawn[rank].count,
            ):
                best[row.rank] = number
    shown = list(best.items())[:MOST_LINES]
    bins = [data.drawn[number].lanes[0].bins(*data.whole, columns, by) for _, number in shown]
    lanes = [[number, 0, 0, 0, n] for n, (_, number) in enumerate(shown)]
    empty = array(np.empty(0), "u4")
    busy, main = (array(_joined([b[side] for b in bins]), "u1") for side in (0, 1))
    message = {"window": list(data.whole), "columns": columns, "lanes": lanes}
    return message, [empty, empty, empty, empty, empty, busy, main, empty, empty, empty]


def _waits(lane: Lane, some: NDArray[np.int64]) -> NDArray[np.uint8]:
    return np.zeros(len(some), np.uint8) if lane.waits is None else lane.waits[some]


def _choose(
    lane: Lane, lo: float, hi: float, columns: int, room: int
) -> tuple[NDArray[np.int64], bool]:
    """Spans of a lane to send singly, and whether bins are sent, too."""
    first, stop = lane.within(lo, hi)
    if stop - first <= columns / room:
        return np.arange(first, stop), False
    return lane.longer(first, stop, room * (hi - lo) / columns), True


def _samples(row: TimelineRow, lo: float, hi: float, columns: int) -> NDArray[np.float64]:
    """Least and greatest value of a counter in each column; a sample holds until the next one."""
    times, values = row.samples if row.samples is not None else (np.empty(0, np.int64), np.empty(0))
    edges = np.linspace(lo, hi, columns + 1)
    before = np.searchsorted(times, whole_ns(np.ceil(edges)), "left")
    held = np.where(before[:-1] > 0, values[np.maximum(before[:-1] - 1, 0)], np.nan)
    least, most = held.copy(), held.copy()
    some = np.flatnonzero(np.diff(before))
    if len(some):
        stop = before[some[-1] + 1]
        least[some] = np.fmin(least[some], np.minimum.reduceat(values[:stop], before[some]))
        most[some] = np.fmax(most[some], np.maximum.reduceat(values[:stop], before[some]))
    return np.concatenate([least, most])


def _joined(parts: list[Any]) -> Any:
    return np.concatenate(parts) if parts else np.empty(0)


WIDTH, GUTTER, MOST_HEIGHT = 1000, 150, 640
HEAD, GROUP, GAP, FOOT = 30, 20, 4, 26
HEIGHTS = {"critical_path": 18, "stream": 24, "counter": 30, "idle": 11, "requests": 12}
MOST_REQUESTS = 16
"""Most requests in a picture, the first ones; the live timeline has all."""
LEVEL, COLUMN_PX, LEVELS = 16, 2, 8
FEW_RANKS = 8
STRIPS = {False: (16, 24, 9), True: (0, 16, 8)}
"""Heights (px) of steps, busiest stream and lost time in a rank's strip, by whether there are
many ranks.
"""

FEW = 50_000
"""Most device events for which steps and layers are found before the first picture is drawn."""

FEW_OF_MANY = 250_000
"""The same with many ranks, since their picture shows first the rank that the others wait for."""

_LARGE: Final = 1e6
COUNTED = "#BCD6EA"
"""Fill colour of counters, light enough for text on it."""

HATCH_LEAST = 3
"""Least width (px) of a part that waits for another rank to be hatched."""

_HATCH = (
    '<defs><pattern id="waits" width="6" height="6" patternUnits="userSpaceOnUse"'
    ' patternTransform="rotate(45)"><rect width="1.6" height="6" fill="#FFFFFF"'
    ' fill-opacity="0.6"/></pattern></defs>'
)

_FONT = 'font-family="Liberation Sans, Arial, sans-serif" font-size="11"'


def window_picture(
    data: TimelineData,
    window: Sequence[float] | None,
    by: str,
    *,
    path: bool = False,
    order: Sequence[int] = (),
) -> bytes:
    """PNG image of a window of the timeline, with two pixels for each pixel of the widget; one
    for a large trace. Rows stand in the ``order`` of their numbers where it has all.
    """
    few = data.event_count <= FEW
    many = len({row.rank for row in data.drawn if row.kind == "stream"}) > FEW_RANKS
    if few or (many and data.event_count <= FEW_OF_MANY):
        data.find()
    if path and few:
        data.follow()
    # The live widget is shown after the picture is painted, so this must not take long for a large
    # trace.
    drawn = _svg(data, window or data.whole, by, path=path, order=order)
    return vlc.svg_to_png(on_any(drawn), scale=2 if few else 1)


@dataclass(frozen=True)
class LevelPlace:
    """Where a level of a row is drawn: its top and height (px)."""

    row: int
    level: int
    top: int
    height: int


@dataclass(frozen=True)
class RowLabel:
    """Label beside the rows: the name of a rank, or of one of its rows (number; None for a
    rank).
    """

    rank: int
    row: int | None
    top: int
    height: int


def _most(value: float, unit: str | None) -> str:
    """The largest value of a counter in words; large ones with a prefix: ``419.40 GB/s``."""
    words = quantity(value, unit or "") if value >= _LARGE else f"{value:,.4g} {unit or ''}"
    return f"up to {words.strip()}"


def _svg(
    data: TimelineData, window: Sequence[float], by: str, *, path: bool, order: Sequence[int]
) -> str:
    several = len({row.rank for row in data.drawn if row.kind == "stream"}) > 1
    places, labels = _strips(data, path=path) if several else _rows(data, order, path=path)
    height = max(label.top + label.height for label in labels) + GAP + FOOT
    parts = [
        _HATCH,
        *_axis(window, height - FOOT),
    ]
    wide = WIDTH - GUTTER
    shown = list(dict.fromkeys(place.row for place in places))
    message, buffers = window_view(data, window, wide / COLUMN_PX, shown, by)
    start, dur, code, name, _, busy, main, samples, waits, _held = (
        np.frombuffer(raw, dtype)
        for raw, dtype in zip(
            buffers, ("<f4", "<f4", "u1", "<u4", "<u4", "u1", "u1", "<f4", "u1", "u1"), strict=True
        )
    )
    colours = [key["colour"] for key in data.keys.described()]
    columns, at_level = message["columns"], {(place.row, place.level): place for place in places}
    inside = slice(
        round(columns * MARGIN / (1 + 2 * MARGIN)), round(columns * (1 + MARGIN) / (1 + 2 * MARGIN))
    )
    scale = wide / (window[1] - window[0])
    for number, level, first, count, binned in message["lanes"]:
        if (place := at_level.get((number, level))) is None:
            continue
        row, y, high = data.drawn[number], place.top, place.height
        if row.samples is not None:
            most = samples[(2 * binned + 1) * columns : (2 * binned + 2) * columns]
            parts.append(_line(most[inside], row, y, high))
            continue
        if binned >= 0:
            columns_of_lane = slice(binned * columns, (binned + 1) * columns)
            parts += _bins(
                busy[columns_of_lane][inside], main[columns_of_lane][inside], y, high, colours
            )
        for i in range(first, first + count):
            left = (message["window"][0] + float(start[i]) - window[0]) * scale
            a, b = max(0.0, left), min(float(wide), left + float(dur[i]) * scale)
            if b > 0 and a < wide:
                text = data.names.short[name[i]]
                parts += _bar(
                    GUTTER + a, y, max(b - a, 0.7), high, colour=colours[code[i]], name=text
                )
                waited = min(b, left + float(dur[i]) * scale * float(waits[i]) / 255)
                if waited - a > HATCH_LEAST:
                    area = f'x="{GUTTER + a:.1f}" y="{y}" width="{waited - a:.1f}" height="{high}"'
                    parts.append(f'<rect {area} fill="url(#waits)"/>')
    groups = {group["rank"]: group for group in data.groups()}
    for label in labels:
        parts += _label(data, label, groups.get(label.rank, {}))
    extent = f"{format_ns(window[1] - window[0])} from {format_ns(window[0])} into the trace"
    parts.append(_text(GUTTER, height - 8, f"{extent}; run the cell for the live timeline"))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0'
        f' {WIDTH} {height}">'
        f"{''.join(parts)}</svg>"
    )


def _strips(data: TimelineData, *, path: bool = False) -> tuple[list[LevelPlace], list[RowLabel]]:
    """A strip for each rank, as many as fit: its steps, its busiest stream, and its waiting and
    idle time.
    """
    ranks = sorted({row.rank for row in data.drawn if row.kind == "stream"})
    many = len(ranks) > FEW_RANKS
    if many:
        late = {group["rank"] for group in data.groups() if group["late"]}
        ranks.sort(key=lambda rank: (rank not in late, rank))
    steps, stream, lost = STRIPS[many]
    places, labels, y = _top_rows(data, path=path)
    for rank in ranks:
        mine = [
            (number, row) for number, row in enumerate(data.drawn) if row.rank == rank and row.count
        ]
        busiest = next(number for number, row in mine if row.kind == "stream")
        strips = (
            (steps, [number for number, row in mine if row.kind == "steps"]),
            (stream, [busiest]),
            (lost, [number for number, row in mine if row.kind in ("collectives", "idle")]),
        )
        parts = [(high, numbers) for high, numbers in strips if high and numbers]
        height = sum(high + 1 for high, _ in parts) + 8
        if y + height > MOST_HEIGHT and any(label.rank >= 0 for label in labels):
            break
        labels.append(RowLabel(rank, None, y, height - 3))
        top = y + 3
        for high, numbers in parts:
            places += [LevelPlace(number, 0, top, high) for number in numbers]
            top += high + 1
        y += height
    return places, labels


def _rows(
    data: TimelineData, order: Sequence[int] = (), *, path: bool = False
) -> tuple[list[LevelPlace], list[RowLabel]]:
    """Rows under the head of their rank, as many as fit."""
    rank: int | None = None
    places, labels, y = _top_rows(data, path=path)
    every = range(len(data.drawn))
    for number in order if set(order) == set(every) else every:
        row = data.drawn[number]
        if row.kind in (REQUEST, PATH_KIND) or (row.kind in KINDS and not data.found):
            continue
        head = GROUP if row.rank != rank else 0
        if y + head + _height(row) > MOST_HEIGHT and rank is not None:
            break
        if head:
            labels.append(RowLabel(row.rank, None, y, GROUP - 3))
            rank, y = row.rank, y + GROUP
        labels.append(RowLabel(row.rank, number, y, _height(row)))
        high = HEIGHTS.get(row.kind, LEVEL)
        places += [
            LevelPlace(number, level, y + level * (high + 1), high)
            for level in range(max(1, len(row.lanes)))
        ]
        y += _height(row) + GAP
    return places, labels


def _top_rows(data: TimelineData, *, path: bool) -> tuple[list[LevelPlace], list[RowLabel], int]:
    """The critical path, the rows of the first requests under their heading, and the position of
    the next row.
    """
    places, labels, y = [], [], HEAD
    for number, row in enumerate(data.drawn):
        if row.kind == PATH_KIND and path:
            high = HEIGHTS[PATH_KIND]
            places += [
                LevelPlace(number, level, y + level * (high + 1), high)
                for level in range(max(1, len(row.lanes)))
            ]
            labels.append(RowLabel(PATH_GROUP, number, y, _height(row)))
            y += _height(row) + 2 * GAP
    numbers = [number for number, row in enumerate(data.drawn) if row.kind == REQUEST][
        :MOST_REQUESTS
    ]
    if not numbers:
        return places, labels, y
    high = HEIGHTS[REQUEST]
    tops = [y + GROUP + place * (high + 1) for place in range(len(numbers))]
    labels.append(RowLabel(REQUESTS, None, y, GROUP - 3))
    labels += [
        RowLabel(REQUESTS, number, top, high) for number, top in zip(numbers, tops, strict=True)
    ]
    places += [LevelPlace(number, 0, top, high) for number, top in zip(numbers, tops, strict=True)]
    return places, labels, tops[-1] + high + GAP


def _height(row: TimelineRow) -> int:
    return max(1, len(row.lanes)) * (HEIGHTS.get(row.kind, LEVEL) + 1) - 1


def _axis(window: Sequence[float], bottom: int) -> Iterator[str]:
    digits = max(3, 1 + len(str(int(window[1] / max(window[1] - window[0], 1)))))
    for tenth in range(0, 11, 2):
        x = GUTTER + (WIDTH - GUTTER) * tenth / 10
        time = window[0] + (window[1] - window[0]) * tenth / 10
        side, text = "start" if tenth < 10 else "end", format_ns(time, digits + 1)
        yield f'<path d="M{x:.1f} {HEAD - 8}V{bottom}" stroke="{RULE}" stroke-width="0.6"/>'
        yield _text(x + (3 if tenth < 10 else -3), 14, text, anchor=side)


def _label(data: TimelineData, label: RowLabel, group: Mapping[str, Any]) -> Iterator[str]:
    if label.row is None:
        waits, late = group["waits"], group["late"]
        middle = label.top + label.height / 2 + 4
        yield f'<rect y="{label.top}" width="{GUTTER - 6}" height="{label.height}" fill="#EDF0F3"/>'
        yield _text(6, middle, group["label"], ink=INK)
        if waits is not None:
            yield _text(
                GUTTER - 12, middle, f"{'late, ' * late}waits {format_share(waits)}", anchor="end"
            )
        return
    row = data.drawn[label.row]
    text = row.label if len(row.label) < 24 else f"{row.label[:22]}…"
    note = row.note or (_most(row.samples[1].max(), row.unit) if row.samples is not None else "")
    yield _text(GUTTER - 10, label.top + min(12, label.height - 2), text, anchor="end")
    if note:
        yield _text(GUTTER + 6, label.top + 12, note)


def _text(x: float, y: float, text: str, *, ink: str = MUTED, anchor: str = "start") -> str:
    text = "".join(
        c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text
    )  # XML has no control characters
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" {_FONT} fill="{ink}"'
        f' text-anchor="{anchor}">{html.escape(text)}</text>'
    )


def _box(x: float, y: float, width: float, height: float, colour: str) -> str:
    return (
        f'<rect x="{x:.2f}" y="{y:.1f}" width="{width:.2f}" height="{height:.1f}" fill="{colour}"/>'
    )


def _bar(
    x: float, y: float, width: float, height: float, *, colour: str, name: str
) -> Iterator[str]:
    yield _box(x, y, width - (0.7 if width > 4 else 0), height, colour)
    room = int((width - 6) / 6.2)
    if room >= 3 and height >= 14:
        text = name if len(name) <= room else f"{name[: room - 1]}…"
        yield _text(x + 3, y + height / 2 + 4, text, ink=ink_on(colour))


def _line(values: np.ndarray, row: TimelineRow, y: float, height: float) -> str:
    """Greatest value of a counter in each column, as an area above its least value or above
    zero.
    """
    every = row.samples[1] if row.samples is not None else values
    least = min(0.0, float(np.nanmin(every)))
    span = max(float(np.nanmax(every)) - least, 1e-12)
    finite = np.flatnonzero(np.isfinite(values))
    up = [
        f"L{GUTTER + n * COLUMN_PX} {y + height * (1 - (values[n] - least) / span):.1f}"
        for n in finite
    ]
    if not up:
        return ""
    first, last = (GUTTER + int(finite[n]) * COLUMN_PX for n in (0, -1))
    return f'<path d="M{first} {y + height}{"".join(up)}L{last} {y + height}Z" fill="{COUNTED}"/>'


def _bins(
    busy: np.ndarray, main: np.ndarray, y: float, height: float, colours: Sequence[str]
) -> Iterator[str]:
    """Columns whose height is their busy share; equal neighbours are merged."""
    steps = -(-busy.astype(int) * LEVELS // 255)
    key = np.where(steps > 0, steps * 256 + main, 0)
    edges = np.flatnonzero(np.diff(key)) + 1
    for a, b in zip([0, *edges], [*edges, len(key)], strict=True):
        if key[a]:
            high = height * int(steps[a]) / LEVELS
            yield _box(
                GUTTER + a * COLUMN_PX,
                y + height - high,
                (b - a) * COLUMN_PX,
                high,
                colours[main[a]],
            )
