"""What a view of the timeline needs, as packed arrays whose size follows from the pixels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmprof.explore.base.wire import Buffers, array
from llmprof.explore.timeline.data import TimelineData
from llmprof.explore.timeline.lanes import Lane
from llmprof.explore.timeline.rows import Row

MARGIN = 0.25
"""Share of the window that is sent on either side of it, so that panning shows something at once."""

ROOM_PX = 4
"""Pixels that an event needs on average to be sent by itself, and the least width of one drawn above bins."""

LIMIT = 800_000
"""Bytes of a view; lanes get less detail until it fits."""

BYTES_EVENT = 17
MOST_COLUMNS = 6_000
MOST_LINES = 16
"""Most ranks of the overview."""


def view(
    data: TimelineData, window: Sequence[float], width: float, rows: Sequence[int], by: str
) -> tuple[dict[str, Any], Buffers]:
    """Spans, bins and samples of some rows in a window.

    Parameters
    ----------
    data : TimelineData
        The rows.
    window : (float, float)
        First and last time (ns).
    width : float
        Pixels of the window.
    rows : sequence of int
        Numbers of the rows that are seen.
    by : str
        What the colour of a kernel means: ``stage`` or ``category``.

    Returns
    -------
    message : dict
        ``window`` (the one that was sent, with its margins), ``columns`` (of the bins) and ``lanes``: row, level,
        first event, number of events, number of the bins or samples (-1: none).
    buffers : list of bytes
        Of events start and duration (f4, ns from the window's start), colour (u1), name (u4), id (u4); of bins
        how busy (u1) and colour (u1), ``columns`` each; of samples least and greatest (f4).
    """
    lo, hi = _widened(window)
    columns = int(min(MOST_COLUMNS, max(1, round(width * (hi - lo) / max(window[1] - window[0], 1e-9)))))
    wanted = [(number, level, lane) for number in rows for level, lane in enumerate(data.row(number).lanes)]
    room = ROOM_PX
    while True:
        chosen = [_choose(lane, lo, hi, columns, room) for _, _, lane in wanted]
        of_events = sum(len(events) for events, _ in chosen) * BYTES_EVENT
        of_bins = sum(binned for _, binned in chosen) * 2 * columns
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
    at = 0
    for (number, level, lane), (events, binned) in zip(wanted, chosen, strict=True):
        if binned:
            found = lane.bins(lo, hi, columns, by)
            busy.append(found[0])
            main.append(found[1])
        if binned or len(events):
            lanes.append([number, level, at, len(events), len(busy) - 1 if binned else -1])
            parts.append((lane, events))
            at += len(events)
    samples: list[NDArray[np.float64]] = []
    for number in rows:
        if data.row(number).samples is not None:
            lanes.append([number, 0, at, 0, len(samples)])
            samples.append(_samples(data.row(number), lo, hi, columns))
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
    ]


def overview(data: TimelineData, width: float, by: str) -> tuple[dict[str, Any], Buffers]:
    """The whole trace as one line of bins for each rank: its busiest stream, or else its busiest row of a thread.

    Returns
    -------
    message, buffers
        As :func:`view` gives them, without margins, events and samples.
    """
    columns = int(min(MOST_COLUMNS, max(1, round(width))))
    best: dict[int, int] = {}
    for number, row in enumerate(data.rows):
        if row.lanes and row.kind in ("stream", "ops", "runtime"):
            rank = best.setdefault(row.rank, number)
            if (row.kind == "stream", row.count) > (data.rows[rank].kind == "stream", data.rows[rank].count):
                best[row.rank] = number
    shown = list(best.items())[:MOST_LINES]
    bins = [data.rows[number].lanes[0].bins(*data.whole, columns, by) for _, number in shown]
    lanes = [[number, 0, 0, 0, n] for n, (_, number) in enumerate(shown)]
    empty = array(np.empty(0), "u4")
    busy, main = (array(_joined([b[side] for b in bins]), "u1") for side in (0, 1))
    message = {"window": list(data.whole), "columns": columns, "lanes": lanes}
    return message, [empty, empty, empty, empty, empty, busy, main, empty]


def _widened(window: Sequence[float]) -> tuple[float, float]:
    lo, hi = float(window[0]), float(window[1])
    margin = max(hi - lo, 1.0) * MARGIN
    return lo - margin, hi + margin


def _choose(lane: Lane, lo: float, hi: float, columns: int, room: int) -> tuple[NDArray[np.int64], bool]:
    """Spans of a lane to send by themselves, and whether bins are sent, too."""
    first, stop = lane.within(lo, hi)
    if stop - first <= columns / room:
        return np.arange(first, stop), False
    wide = (lane.end[first:stop] - lane.start[first:stop]) * columns >= room * (hi - lo)
    return first + np.flatnonzero(wide), True


def _samples(row: Row, lo: float, hi: float, columns: int) -> NDArray[np.float64]:
    """Least and greatest value of a counter in each column; a sample holds until the next one."""
    times, values = row.samples if row.samples is not None else (np.empty(0, np.int64), np.empty(0))
    edges = np.linspace(lo, hi, columns + 1)
    before = np.searchsorted(times, edges, "left")
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
