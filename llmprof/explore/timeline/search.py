"""Search for spans of a timeline by name: one hit after another, or a list with totals and filters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

import numpy as np
import polars as pl

from llmprof.explore.timeline.data import HOST, TimelineData
from llmprof.explore.timeline.describe import hit
from llmprof.explore.timeline.lanes import Lane
from llmprof.explore.timeline.path import PATH_KIND
from llmprof.explore.timeline.rows import KINDS

Where = Literal["everywhere", "device", "host", "found"]
PLACES: Final[dict[str, tuple[str, ...]]] = {"device": ("stream",), "host": HOST, "found": tuple(KINDS)}
"""Kinds of rows by place: on the device, on the host, and results of analyses."""

ORDERS: Final = ("start", "-start", "dur", "-dur", "name", "-name")
MOST: Final = 500
"""Most hits of one answer."""

_HITS = pl.Schema({"start": pl.Int64, "dur": pl.Int64, "name": pl.UInt32, "row": pl.Int64, "level": pl.Int64,
                   "at": pl.Int64})  # fmt: skip


class Search:
    """Spans whose name contains a text, over all rows in the order of time."""

    def __init__(self, data: TimelineData) -> None:
        self._data = data
        self._text: tuple[str, bool] | None = None
        self._hits = pl.DataFrame(schema=_HITS)
        self._names: list[int] = []

    def find(self, text: str, *, after: float = 0, index: int | None = None) -> dict[str, Any]:
        """Count of hits, and one of them."""
        hits = self._look(text)
        if not hits.height:
            return {"count": 0, "index": -1, "hit": None, "names": []}
        if index is None:
            index = int(hits["start"].search_sorted(after, side="left"))
        row, level, span = hits.select("row", "level", "at").row(index % hits.height)
        chosen = hit(self._data, row, level, span)
        return {"count": hits.height, "index": index % hits.height, "hit": chosen, "names": self._names}

    def listed(
        self,
        text: str,
        *,
        first: int = 0,
        count: int = MOST,
        where: Where = "everywhere",
        rank: int | None = None,
        window: Sequence[float] | None = None,
        sort: str = "start",
    ) -> dict[str, Any]:
        """Some of the hits in an order, and totals of all that pass the filters."""
        hits = self._look(text)
        rows = self._data.rows
        ranks = sorted({rows[number].rank for number in hits["row"].unique()})
        kinds = PLACES.get(where)
        rows_shown = [
            number
            for number, row in enumerate(rows)
            if (kinds is None or row.kind in kinds) and (rank is None or row.rank == rank)
        ]
        if kinds is not None or rank is not None:
            hits = hits.filter(pl.col("row").is_in(rows_shown))
        if window is not None:
            hits = hits.filter(pl.col("start") < window[1], pl.col("start") + pl.col("dur") > window[0])
        column, down = (sort if sort in ORDERS else "start").removeprefix("-"), sort.startswith("-")
        key = pl.col(column)
        if column == "name":
            numbers = hits["name"].unique()
            order = sorted(numbers, key=lambda number: self._data.names.full[number].casefold())
            places = {number: place for place, number in enumerate(order)}
            key = key.replace_strict(places, return_dtype=pl.UInt32) if places else key
        some = hits.sort(key, descending=down, maintain_order=True).slice(max(first, 0), min(max(count, 0), MOST))
        return {
            "total": hits.height,
            "names": hits["name"].n_unique(),
            "sum_ns": float(hits["dur"].sum()),
            "ranks": ranks,
            "rows": [
                {"hit": hit(self._data, row, level, span), "rank": rows[row].rank, "label": rows[row].label}
                for row, level, span in some.select("row", "level", "at").iter_rows()
            ],
        }

    def _look(self, text: str) -> pl.DataFrame:
        """Hits in the order of time; kept for the next request."""
        key = text.casefold().strip(), self._data.found
        if key == self._text:
            return self._hits
        names = self._data.names
        matching = np.array([key[0] in full.casefold() or key[0] in short.casefold()
                           for full, short in zip(names.full, names.short, strict=True)], dtype=bool)  # fmt: skip
        self._names = np.flatnonzero(matching).tolist() if key[0] else []
        parts = [pl.DataFrame(schema=_HITS)]
        if self._names:
            parts += [
                _matches(lane, matching, number, level)
                for number, row in enumerate(self._data.rows)
                if row.kind != PATH_KIND  # whose parts are named as the events that they are
                for level, lane in enumerate(row.lanes)
            ]
        self._hits = pl.concat(parts).sort("start", maintain_order=True)
        self._text = key
        return self._hits


def _matches(lane: Lane, matching: np.ndarray, row: int, level: int) -> pl.DataFrame:
    spans = np.flatnonzero(matching[lane.name])
    start = lane.start[spans]
    place = {"row": np.full(len(spans), row), "level": np.full(len(spans), level)}
    columns = {"start": start, "dur": lane.end[spans] - start, "name": lane.name[spans], **place, "at": spans}
    return pl.DataFrame(columns, schema_overrides=_HITS)
