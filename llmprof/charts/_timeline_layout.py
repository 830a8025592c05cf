"""Where the marks of a timeline go: lanes, bars and time slices.

Everything is computed in Polars and in pixels of the figure, so that the chart itself only draws.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from llmprof.charts._bars import fitting
from llmprof.charts._palette import ink_on
from llmprof.charts._theme import Unit, shorten
from llmprof.units import format_ns

STRIP, LANE, TALL, THIN, GAP, SPACE = 17, 30, 56, 22, 3, 14
SPARSE, SPARSE_LANE = 0.02, 14
"""A stream that works less than this share of the window gets a lane of this height."""

CROWDED = 0.1
"""Share of the window by which bars may make a lane look busier before slices are the honest picture."""

SLICE_ROWS, SLICE_PX = 9_000, (2, 8)
"""Rows that slices should stay below, and the least and greatest width of one (px)."""

NAME_LIMIT = 120


@dataclass(frozen=True, slots=True)
class Window:
    """Part of the time axis that is drawn."""

    start_ns: int
    end_ns: int
    unit: Unit
    plot_px: int

    @property
    def px_ns(self) -> float:
        """Time that a pixel stands for (ns)."""
        return (self.end_ns - self.start_ns) / self.plot_px

    def at(self, ns: pl.Expr) -> pl.Expr:
        """Position on the axis of a time, in the unit of the chart from the start of the window."""
        return (ns - self.start_ns) / self.unit.ns


def clip(frame: pl.DataFrame, window: tuple[int, int]) -> pl.DataFrame:
    """Events that lie in a window at least in part, with ``from_ns`` and ``to_ns`` cut to it."""
    lo, hi = window
    end = pl.col("start_ns") + pl.col("dur_ns")
    inside = frame.filter((pl.col("start_ns") < hi) & (end > lo) | (pl.col("start_ns").is_between(lo, hi - 1)))
    return inside.with_columns(from_ns=pl.col("start_ns").clip(lo, hi), to_ns=end.clip(lo, hi))


def survey(frame: pl.DataFrame, window: Window, max_bars: int) -> pl.DataFrame:
    """How busy each lane is, and whether bars of at least a pixel would make it look much busier.

    Parameters
    ----------
    frame : polars.DataFrame
        ``rank, key, from_ns, to_ns``: the events of the window.
    window : Window
        What is drawn.
    max_bars : int
        Most bars of the figure; with more events all lanes are too crowded.

    Returns
    -------
    polars.DataFrame
        ``rank, key, busy`` (share of the window), ``crowded``, ``events``; one row a lane.
    """
    wide = pl.max_horizontal("to_ns", pl.col("from_ns") + round(window.px_ns))
    lane = frame.sort("from_ns").group_by("rank", "key", maintain_order=True)
    out = lane.agg(_covered(pl.col("to_ns")).alias("busy"), _covered(wide).alias("drawn"), events=pl.len())
    span = max(1, window.end_ns - window.start_ns)
    crowded = (pl.col("drawn") - pl.col("busy") > CROWDED * span) | pl.lit(frame.height > max_bars)
    return out.select("rank", "key", "events", busy=pl.col("busy") / span, crowded=crowded).sort("rank")


def _covered(end: pl.Expr) -> pl.Expr:
    """Length of the union of intervals that are sorted by ``from_ns``."""
    before = end.cum_max().shift().fill_null(-1)
    return (end - pl.max_horizontal("from_ns", before)).clip(0).sum()


def place_lanes(lanes: pl.DataFrame, lane: str, order: list[str], *, rows: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Vertical places of the lanes and of the strips above each rank.

    Returns
    -------
    lanes : polars.DataFrame
        ``rank, key, crowded, label, top, bottom``: one row a lane.
    heads : polars.DataFrame
        ``rank, label, top, bottom``: one row a rank, from its first strip to its last lane.
    """
    placed, heads, y = [], [], 0
    for (rank,), group in lanes.group_by("rank", maintain_order=True):
        top = y
        y += rows * (STRIP + GAP)
        columns = group.select("key", "busy", "crowded").iter_rows()
        for key, busy, crowded in sorted(columns, key=lambda row: _lane_order(row[0], order)):
            height = THIN if lane != "stream" else SPARSE_LANE if busy < SPARSE else TALL if crowded else LANE
            placed.append((rank, key, crowded, lane_label(key, lane), y, y + height))
            y += height + GAP
        heads.append((rank, f"rank {rank}", top, y - GAP))
        y += SPACE
    lane_columns = ["rank", "key", "crowded", "label", "top", "bottom"]
    types: dict[str, type[pl.DataType]] = {"rank": pl.Int32, "key": pl.String}
    placed_lanes = pl.DataFrame(placed, schema=lane_columns, schema_overrides=types, orient="row")
    return placed_lanes, pl.DataFrame(
        heads, schema=["rank", "label", "top", "bottom"], schema_overrides={"rank": pl.Int32}, orient="row"
    )


def lane_label(key: str | None, lane: str) -> str:
    """Name of a lane as it stands beside it."""
    if lane == "stream":
        return "host" if key is None else f"stream {key}"
    return shorten(key or "none", 20)


def _lane_order(key: str | None, order: list[str]) -> tuple[int, int, str]:
    if key is None:
        return (-1, 0, "")
    if key in order:
        return (0, order.index(key), "")
    return (1, int(key), "") if key.lstrip("-").isdigit() else (2, 0, key)


def slice_ns(lanes: pl.DataFrame, window: Window) -> int:
    """Length of a time slice: a few whole pixels, more where many lanes are busy."""
    busy = lanes.filter(pl.col("crowded") & (pl.col("busy") >= SPARSE)).height
    least, most = SLICE_PX
    px = -(-6 * busy * window.plot_px // SLICE_ROWS)  # a slice holds about six stages
    return max(1, round(min(most, max(least, px)) * window.px_ns))


def bars(frame: pl.DataFrame, window: Window, colours: dict[str, str], by: str) -> pl.DataFrame:
    """One bar an event, at least a pixel wide, with a label where one fits inside."""
    first, last = window.at(pl.col("from_ns")), window.at(pl.col("to_ns"))
    pixel = window.px_ns / window.unit.ns
    out = frame.select(
        "rank",
        by,
        "step",
        "phase",
        "layer",
        "top",
        "bottom",
        "dur_ns",
        name=pl.col("name").map_elements(lambda n: shorten(n, NAME_LIMIT), return_dtype=pl.String),
        start=first,
        end=pl.max_horizontal(last, first + pixel),
        px=(pl.col("to_ns") - pl.col("from_ns")) / window.px_ns,
    )
    columns = out.select(by, "dur_ns", "px").iter_rows()
    labels = [fitting((f"{name} {format_ns(ns)}", name), px) if px > 20 else None for name, ns, px in columns]
    inks = {name: ink_on(fill) for name, fill in colours.items()}
    return out.with_columns(
        pl.Series("label", labels, dtype=pl.String), ink=pl.col(by).replace_strict(inks, return_dtype=pl.String)
    )


def slices(frame: pl.DataFrame, window: Window, by: str, order: list[str], width: int) -> pl.DataFrame:
    """Time slices of ``width`` ns: how the time of each lane divides over the names in ``by``.

    Each event adds to a slice what of it lies inside. A slice is as high as the share of its time that was busy;
    where events of a lane overlap and come to more than the slice, the parts are scaled down to it.

    Returns
    -------
    polars.DataFrame
        ``rank, <by>, busy_ns, share, start, end, top, bottom``: one row a lane, slice and name.
    """
    first = (pl.col("from_ns") - window.start_ns) // width
    last = (pl.max_horizontal("to_ns", pl.col("from_ns") + 1) - 1 - window.start_ns) // width
    columns = "rank", "top", "bottom", by, "from_ns", "to_ns"
    parts = frame.select(*columns, slice=pl.int_ranges(first, last + 1)).explode("slice").filter(pl.col("slice") >= 0)
    left = window.start_ns + pl.col("slice") * width
    inside = pl.min_horizontal("to_ns", left + width) - pl.max_horizontal("from_ns", left)
    lane = ["rank", "top", "bottom", "slice"]
    total = parts.group_by(*lane, by).agg(busy_ns=inside.sum()).filter(pl.col("busy_ns") > 0)
    rank_of = {name: i for i, name in enumerate(order)}
    total = total.with_columns(place=pl.col(by).replace_strict(rank_of, default=len(order), return_dtype=pl.Int64))
    total = total.sort(*lane, "place", by)
    height = pl.col("bottom") - pl.col("top")
    scale = pl.max_horizontal(pl.col("busy_ns").sum().over(lane), pl.lit(width))
    upper = pl.col("busy_ns").cum_sum().over(lane)
    end = pl.min_horizontal(left + width, pl.lit(window.end_ns))
    return total.select(
        "rank",
        by,
        "busy_ns",
        share=(pl.col("busy_ns") / scale).round(4),
        start=window.at(left),
        end=window.at(end),
        top=(pl.col("bottom") - height * upper / scale).round(2),
        bottom=(pl.col("bottom") - height * (upper - pl.col("busy_ns")) / scale).round(2),
    )
