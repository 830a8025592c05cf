"""Rows of the explorer of kernels: filtered, sorted, cut into blocks, and as text where a cell lists places."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import polars as pl

from llmprof import kernel_names
from llmprof.analyze.events_within import Window
from llmprof.analyze.kernels_within import PLACES
from llmprof.explore._pack import Buffers, array

BINS: Final = 48
"""Points of a sparkline."""

FILTERS: Final = ("rank", "step", "phase", "layer", "stage", "stream", "category")
SPLITS: Final = ("phase", "stage", "layer", "stream", "rank")
"""Labels that the rows can be narrowed to, and those that they can be told apart by."""

NUMBERS: Final[tuple[str, ...]] = ("count", "total_ns", "share", "mean_ns", "median_ns", "p99_ns", "min_ns", "max_ns")
SORTABLE: Final = ("name", "category", "limit", *PLACES, *NUMBERS)

_MOST_TEXT: Final = 2_000
"""Characters of a name that a row carries; the details have all of them."""

_NAMED: Final = 2


@dataclass(frozen=True)
class View:
    """What a table shows: labels it is narrowed to, labels its rows are told apart by, a text, an order, a window."""

    where: Mapping[str, int | str | None] = field(default_factory=dict)
    by: tuple[str, ...] = ()
    search: str = ""
    sort: str = "-total_ns"
    window: Window | None = None

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> View:
        """View that the browser's side described; unknown labels are left out."""
        where = {label: value for label in FILTERS if (value := said.get(label)) is not None}
        by = tuple(label for label in SPLITS if label in said.get("by", ()))
        window = said.get("window") if said.get("in_window") else None
        ends = (float(window[0]), float(window[1])) if window else None
        return cls(where, by, str(said.get("search", "")), str(said.get("sort", "-total_ns")), ends)

    @property
    def key(self) -> tuple[Any, ...]:
        """What the rows depend on, but for their order and the text."""
        return (tuple(self.where.items()), self.by, self.window)


def options(events: pl.DataFrame) -> dict[str, list[int | str]]:
    """Values that each filter can take."""
    return {label: events[label].drop_nulls().unique().sort().to_list() for label in FILTERS}


def places(values: Sequence[int | str] | None, plural: str) -> str:
    """Values of a label in a few words: one or two of them, a range of numbers, or how many there are."""
    if not values:
        return ""
    first, last = values[0], values[-1]
    numbers = isinstance(first, int) and isinstance(last, int)
    if len(values) <= _NAMED:
        return ", ".join(str(value) for value in values)
    return f"{first} to {last}" if numbers and int(last) - int(first) == len(values) - 1 else f"{len(values)} {plural}"


def arranged(frame: pl.DataFrame, view: View) -> pl.DataFrame:
    """Rows whose name has the view's text in it, in any case of letters, in its order (``-column``: falling)."""
    kept = frame.filter(pl.col("name").str.to_lowercase().str.contains(view.search.lower(), literal=True))
    column, falling = view.sort.lstrip("-"), view.sort.startswith("-")
    if column in PLACES and column not in frame.columns:
        key = pl.col(PLACES[column]).list.first()
    elif column in SORTABLE and column in frame.columns:
        key = pl.col(column)
    else:
        return kept
    return kept.sort(key, descending=falling, nulls_last=True, maintain_order=True)


def block(frame: pl.DataFrame, offset: int, count: int) -> tuple[list[dict[str, Any]], Buffers]:
    """Some of the rows, and their sparklines as bytes (the largest part of a row is 255)."""
    rows = frame.slice(max(0, offset), max(0, count))
    labels = dict(zip(rows["name"], short(rows["name"]), strict=True))
    texts = []
    for row in rows.iter_rows(named=True):
        cells: dict[str, Any] = {column: row[column] for column in NUMBERS if column in row}
        cells |= {label: row[label] if label in row else places(row[many], many) for label, many in PLACES.items()}
        cells |= {
            "name": row["name"][:_MOST_TEXT],
            "label": labels[row["name"]][:_MOST_TEXT],
            "category": row["category"],
            "limit": row.get("limit"),
        }
        texts.append({key: _finite(cell) for key, cell in cells.items()})
    series = (
        rows["series"].explode(empty_as_null=False, keep_nulls=False) if rows.height else pl.Series([], dtype=pl.Int64)
    )
    peaks = (
        rows.select(pl.col("series").list.max().clip(1).repeat_by(BINS).explode())["series"] if rows.height else series
    )
    return texts, [array((series * 255 / peaks).round().cast(pl.UInt8), "u1")]


def short(names: pl.Series) -> pl.Series:
    """Names of C++ functions without return type, namespaces and parameters: their beginnings tell them apart."""
    made = pl.DataFrame({"name": names, "short": kernel_names.comparable(names)})
    cpp = pl.col("name").str.contains(r"^(?:void|std::\S+) |\w<.*>") & (pl.col("short").str.len_chars() > 0)
    return made.select(pl.when(cpp).then("short").otherwise("name").alias("short"))["short"]


def _finite(cell: Any) -> Any:
    return None if isinstance(cell, float) and not math.isfinite(cell) else cell
