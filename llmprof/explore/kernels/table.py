"""Rows of the explorer of kernels: filtered, sorted, cut into blocks, and as text where a cell lists places."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import polars as pl

from llmprof.analyze import attribute, ops_to_kernels
from llmprof.analyze.kernels import PLACES
from llmprof.arguments import Window
from llmprof.errors import NotCapturedError
from llmprof.explore.base.wire import Buffers, array, pack
from llmprof.names import functions
from llmprof.trace import Trace

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
    made = pl.DataFrame({"name": names, "short": functions.comparable(names)})
    cpp = pl.col("name").str.contains(r"^(?:void|std::\S+) |\w<.*>") & (pl.col("short").str.len_chars() > 0)
    return made.select(pl.when(cpp).then("short").otherwise("name").alias("short"))["short"]


def _finite(cell: Any) -> Any:
    return None if isinstance(cell, float) and not math.isfinite(cell) else cell


MOST_POINTS: Final = 8_000
"""Launches that are drawn one by one; more are drawn as the range of each part of the time."""

PARTS: Final = 600
_MOST_ROWS: Final = 50
_GRID: Final = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "registers", "shared_bytes")


def launches(events: pl.DataFrame) -> tuple[dict[str, Any], Buffers]:
    """Launches over time, packed: one by one, or least, middle and longest of each part of the time.

    Parameters
    ----------
    events : polars.DataFrame
        Rows of :func:`~llmprof.analyze.attribute` of one kernel.

    Returns
    -------
    message : dict
        ``condensed``, ``columns`` as of :func:`~llmprof.explore.base.wire.pack`, ``span`` (first start, last end; ns).
    buffers : list of bytes
        ``event, rank, step, layer, start_ns, dur_ns``; condensed ``start_ns, end_ns, least_ns, middle_ns, most_ns,
        count``.
    """
    if events.is_empty():
        return {"condensed": False, "columns": [], "span": None}, []
    ends = pl.col("start_ns") + pl.col("dur_ns")
    span = events.select(pl.col("start_ns").min(), end_ns=ends.max()).row(0)
    if events.height <= MOST_POINTS:
        frame = events.select("event", "rank", "step", "layer", "stage", "start_ns", "dur_ns")
    else:
        length = max(1, -(-(span[1] - span[0]) // PARTS))
        dur = pl.col("dur_ns")
        frame = (
            events.group_by(part=(pl.col("start_ns") - span[0]) // length)
            .agg(least_ns=dur.min(), middle_ns=dur.median(), most_ns=dur.max(), count=pl.len())
            .sort("part")
            .with_columns(start_ns=span[0] + pl.col("part") * length, end_ns=span[0] + (pl.col("part") + 1) * length)
            .drop("part")
        )
    columns, buffers = pack(frame)
    return {"condensed": events.height > MOST_POINTS, "columns": columns, "span": list(span)}, buffers


def shapes(trace: Trace, name: str, rank: int | None) -> dict[str, Any]:
    """Operators and shapes that a kernel was launched from: ``rows``, or ``why`` there are none.

    The rows are those of :func:`~llmprof.analyze.ops_to_kernels`, of all ranks together if none is given.
    """
    try:
        frame = ops_to_kernels(trace)
    except NotCapturedError as error:
        return {"rows": [], "why": str(error)}
    found = frame.filter((pl.col("kernel") == name) & (pl.lit(rank is None) | (pl.col("rank") == (rank or 0))))
    rows = (
        found.group_by("op", "shapes")
        .agg(pl.col("count").sum(), pl.col("total_ns").sum())
        .with_columns(mean_ns=pl.col("total_ns") / pl.col("count"))
        .sort("total_ns", "op", "shapes", descending=[True, False, False], nulls_last=True)
    )
    why = "" if rows.height else "No operator was recorded for its launches."
    return {"rows": rows.head(_MOST_ROWS).to_dicts(), "why": why, "total": rows.height}


def grids(trace: Trace, events: pl.DataFrame) -> list[dict[str, Any]]:
    """Grids and blocks that launches ran with: ``grid, block, registers, shared_bytes, count, mean_ns``."""
    if not trace.has("kernels") or events.is_empty():
        return []
    key = ["rank", "stream", "start_ns", "name"]
    known = trace.kernels.select(*key, *_GRID).drop_nulls(["grid_x"]).unique(key, keep="first")
    found = events.select(*key, "dur_ns").join(known, on=key, nulls_equal=True)
    triple = [
        pl.format("{} x {} x {}", *(pl.col(f"{side}_{axis}").fill_null(1) for axis in "xyz")).alias(side)
        for side in ("grid", "block")
    ]
    return (
        found.group_by("registers", "shared_bytes", *triple)
        .agg(count=pl.len(), mean_ns=pl.col("dur_ns").mean())
        .sort("count", "grid", "block", descending=[True, False, False])
        .head(_MOST_ROWS)
        .to_dicts()
    )


def nothing_of(trace: Trace) -> pl.DataFrame:
    """No row of :func:`~llmprof.analyze.attribute`; no columns either where the trace has no events at all."""
    try:
        return attribute(trace).clear()
    except NotCapturedError:
        return pl.DataFrame()
