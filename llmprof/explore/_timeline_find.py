"""Finding spans of the timeline: by place, by name, by step and layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from llmprof.analyze.layers import layers
from llmprof.analyze.steps import steps
from llmprof.errors import AnalysisError
from llmprof.explore._lanes import Lane
from llmprof.explore._timeline_data import TimelineData
from llmprof.trace import Trace

Hit = dict[str, Any]


def hit(data: TimelineData, row: int, level: int, index: int) -> Hit:
    """A span for the browser: row, level, id, start, end (ns) and name."""
    lane = data.row(row).lanes[level]
    return {
        "row": row,
        "level": level,
        "id": int(lane.id[index]),
        "start": int(lane.start[index]),
        "end": int(lane.end[index]),
        "name": data.names.full[int(lane.name[index])],
        "code": int(lane.code("stage")[index]),
    }


def locate(data: TimelineData, row: int, number: int) -> Hit | None:
    """First span of a row that has an id."""
    for level, lane in enumerate(data.row(row).lanes):
        if len(found := np.flatnonzero(lane.id == number)):
            return hit(data, row, level, int(found[0]))
    return None


def pick(data: TimelineData, row: int, level: int, time: float, reach: float) -> Hit | None:
    """Span at a time, else the nearest one within a reach (ns); the longest where several are nearer than that."""
    lanes = data.row(row).lanes
    if not 0 <= level < len(lanes) or not len(lanes[level]):
        return None
    lane = lanes[level]
    at = lane.at(time)
    if at is None:
        first, stop = lane.within(time - reach, time + reach)
        if stop <= first:
            return None
        at = first + int(np.argmax(lane.end[first:stop] - lane.start[first:stop]))
    return hit(data, row, level, at)


def neighbour(data: TimelineData, row: int, level: int, number: int, by: int) -> Hit | None:
    """Span before (-1) or after (1) another one of its lane."""
    lane = data.row(row).lanes[level]
    found = np.flatnonzero(lane.id == number)
    at = int(found[0 if by < 0 else -1]) + by if len(found) else -1
    return hit(data, row, level, at) if 0 <= at < len(lane) else None


class Search:
    """Spans whose name contains a text, over all rows in the order of time."""

    def __init__(self, data: TimelineData) -> None:
        self._data = data
        self._text: tuple[str, bool] | None = None
        self._hits = pl.DataFrame()
        self._names: list[int] = []

    def find(self, text: str, *, after: float = 0, index: int | None = None) -> dict[str, Any]:
        """Count of hits, and one of them.

        Parameters
        ----------
        text : str
            What a name contains, whatever the case; not a pattern.
        after : float
            Time (ns) from which the first hit is looked for, if no index is given.
        index : int, optional
            Number of the hit; counted round at the ends.

        Returns
        -------
        dict
            ``count``, ``index``, ``hit`` (None if there is none) and ``names``, the numbers of the names.
        """
        key = text.casefold().strip(), self._data.found
        if key != self._text:
            self._text = key
            self._look(key[0])
        count = self._hits.height
        if not count:
            return {"count": 0, "index": -1, "hit": None, "names": []}
        if index is None:
            index = int(self._hits["start"].search_sorted(after, side="left"))
        row, level, at = self._hits.select("row", "level", "at").row(index % count)
        return {"count": count, "index": index % count, "hit": hit(self._data, row, level, at), "names": self._names}

    def _look(self, text: str) -> None:
        names = self._data.names
        wanted = np.array([text in full.casefold() or text in short.casefold()
                           for full, short in zip(names.full, names.short, strict=True)], dtype=bool)  # fmt: skip
        self._names = np.flatnonzero(wanted).tolist() if text else []
        parts = [pl.DataFrame(schema={"start": pl.Int64, "row": pl.Int64, "level": pl.Int64, "at": pl.Int64})]
        for number, row in enumerate(self._data.rows):
            for level, lane in enumerate(row.lanes):
                parts.append(_matches(lane, wanted, number, level) if self._names else parts[0])
        self._hits = pl.concat(parts).sort("start", maintain_order=True)


def _matches(lane: Lane, wanted: np.ndarray, row: int, level: int) -> pl.DataFrame:
    at = np.flatnonzero(wanted[lane.name])
    place = {"row": np.full(len(at), row), "level": np.full(len(at), level)}
    return pl.DataFrame({"start": lane.start[at], **place, "at": at})


def place_of(trace: Trace, *, rank: int | None, step: int | None, layer: int | None) -> list[float]:
    """Window of a step, or of a layer of a step, on a rank (the first one, the first step if not given).

    Raises
    ------
    AnalysisError
        There is no such step or layer.
    """
    if layer is None:
        frame = steps(trace).select(
            "rank", "step", start_ns=pl.coalesce("device_start_ns", "start_ns"),
            dur_ns=pl.coalesce("device_dur_ns", "dur_ns"),
        ).drop_nulls()  # fmt: skip
    else:
        frame = layers(trace, by="layer")
    for column, value in {"rank": rank, "step": step, "layer": layer}.items():
        if column in frame.columns:
            frame = _narrowed(frame, column, value, {"rank": rank, "step": step, "layer": layer})
    start, dur = frame.select("start_ns", "dur_ns").row(0)
    return [float(start), float(start + max(dur, 1))]


def _narrowed(frame: pl.DataFrame, column: str, value: int | None, asked: Mapping[str, int | None]) -> pl.DataFrame:
    there: Sequence[int] = frame[column].drop_nulls().unique().sort().to_list()
    if not there:
        raise AnalysisError(f"no {column} was found in this trace")
    if value is not None and value not in there:
        words = ", ".join(f"{name} {number}" for name, number in asked.items() if number is not None)
        raise AnalysisError(f"there is no {words}", expected=f"a {column} from {there[0]} to {there[-1]}")
    return frame.filter(pl.col(column) == (there[0] if value is None else value))
