"""Layout of a timeline's marks in pixels: lanes, bars and time slices."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from llmprof.charts.base.draw import fitting_text, float_of
from llmprof.charts.base.theme import PHASES, Unit, ink_on, text_px
from llmprof.text import shorten
from llmprof.trace.schema import END
from llmprof.units import format_ns

STRIP, LANE, TALL, THIN, GAP, SPACE = 17, 30, 56, 22, 3, 14
SPARSE, SPARSE_LANE = 0.02, 14
"""A stream that is busy for less than this share of the window gets a lane of this height."""

CROWDED = 0.1
"""If bars would make a lane look busier by more than this share of the window, it is drawn as
slices.
"""

SLICE_ROWS, SLICE_PX = 9_000, (2, 8)
"""Most rows of slices, and the least and greatest width of a slice (px)."""

NAME_LIMIT = 120


@dataclass(frozen=True, slots=True)
class DrawnWindow:
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


def clip_events(frame: pl.DataFrame, window: tuple[int, int]) -> pl.DataFrame:
    """Events that overlap a window, with ``from_ns`` and ``to_ns`` cut to it."""
    lo, hi = window
    inside = frame.filter(
        (pl.col("start_ns") < hi) & (lo < END) | (pl.col("start_ns").is_between(lo, hi - 1))
    )
    return inside.with_columns(from_ns=pl.col("start_ns").clip(lo, hi), to_ns=END.clip(lo, hi))


def survey(frame: pl.DataFrame, window: DrawnWindow, max_bars: int) -> pl.DataFrame:
    """Busy share of each lane, and whether bars of at least a pixel would make it look much
    busier.
    """
    wide = pl.max_horizontal("to_ns", pl.col("from_ns") + round(window.px_ns))
    lane = frame.sort("from_ns").group_by("rank", "key", maintain_order=True)
    out = lane.agg(busy=_covered(pl.col("to_ns")), drawn=_covered(wide), events=pl.len())
    span = max(1, window.end_ns - window.start_ns)
    crowded = (pl.col("drawn") - pl.col("busy") > CROWDED * span) | pl.lit(frame.height > max_bars)
    return out.select("rank", "key", "events", busy=pl.col("busy") / span, crowded=crowded).sort(
        "rank"
    )


def _covered(end: pl.Expr) -> pl.Expr:
    """Length of the union of intervals that are sorted by ``from_ns``."""
    before = end.cum_max().shift().fill_null(-1)
    return (end - pl.max_horizontal("from_ns", before)).clip(0).sum()


def place_lanes(
    lanes: pl.DataFrame, lane: str, order: list[str], *, rows: int, stream: str = "stream"
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Vertical places of the lanes and of the strips above each rank."""
    placed, heads, y = [], [], 0
    for (rank,), group in lanes.group_by("rank", maintain_order=True):
        top = y
        y += rows * (STRIP + GAP)
        columns = group.select("key", "busy", "crowded").iter_rows()
        for key, busy, crowded in sorted(columns, key=lambda row: _lane_order(row[0], order)):
            height = (
                THIN
                if lane != "stream"
                else SPARSE_LANE
                if busy < SPARSE
                else TALL
                if crowded
                else LANE
            )
            placed.append((rank, key, crowded, lane_label(key, lane, stream), y, y + height))
            y += height + GAP
        heads.append((rank, f"rank {rank}", top, y - GAP))
        y += SPACE
    lane_columns = ["rank", "key", "crowded", "label", "top", "bottom"]
    types: dict[str, type[pl.DataType]] = {"rank": pl.Int32, "key": pl.String}
    placed_lanes = pl.DataFrame(placed, schema=lane_columns, schema_overrides=types, orient="row")
    return placed_lanes, pl.DataFrame(
        heads,
        schema=["rank", "label", "top", "bottom"],
        schema_overrides={"rank": pl.Int32},
        orient="row",
    )


def lane_label(key: str | None, lane: str, stream: str = "stream") -> str:
    """Name of a lane, as written beside it; ``stream`` is the word for one, which may be a
    thread of the host.
    """
    if lane == "stream":
        return "host" if key is None else f"{stream} {key}"
    return shorten(key or "none", 20)


def _lane_order(key: str | None, order: list[str]) -> tuple[int, int, str]:
    if key is None:
        return (-1, 0, "")
    if key in order:
        return (0, order.index(key), "")
    return (1, int(key), "") if key.lstrip("-").isdigit() else (2, 0, key)


def slice_ns(lanes: pl.DataFrame, window: DrawnWindow) -> int:
    """Length of a time slice: a few whole pixels, more if many lanes are busy."""
    busy = lanes.filter(pl.col("crowded") & (pl.col("busy") >= SPARSE)).height
    least, most = SLICE_PX
    px = -(-6 * busy * window.plot_px // SLICE_ROWS)  # a slice holds about six stages
    return max(1, round(min(most, max(least, px)) * window.px_ns))


def bars(
    frame: pl.DataFrame, window: DrawnWindow, colours: dict[str, str], by: str
) -> pl.DataFrame:
    """One bar for each event, at least a pixel wide, with a label if it fits inside."""
    first, last = window.at(pl.col("from_ns")), window.at(pl.col("to_ns"))
    pixel = window.px_ns / window.unit.ns
    out = frame.select(
        "rank",
        by,
        *("step", "phase", "layer", "top", "bottom", "dur_ns"),
        name=pl.col("name").map_elements(lambda n: shorten(n, NAME_LIMIT), return_dtype=pl.String),
        start=first,
        end=pl.max_horizontal(last, first + pixel),
        px=(pl.col("to_ns") - pl.col("from_ns")) / window.px_ns,
    )
    columns = out.select(by, "dur_ns", "px").iter_rows()
    labels = [
        fitting_text((f"{name} {format_ns(ns)}", name), px) if px > 20 else None
        for name, ns, px in columns
    ]
    inks = {name: ink_on(fill) for name, fill in colours.items()}
    return out.with_columns(
        pl.Series("label", labels, dtype=pl.String),
        ink=pl.col(by).replace_strict(inks, return_dtype=pl.String),
    )


def slices(
    frame: pl.DataFrame, window: DrawnWindow, by: str, order: list[str], width: int
) -> pl.DataFrame:
    """Time slices of ``width`` ns with the time of each name in ``by`` on each lane, as high as
    their busy share.
    """
    first = (pl.col("from_ns") - window.start_ns) // width
    last = (pl.max_horizontal("to_ns", pl.col("from_ns") + 1) - 1 - window.start_ns) // width
    columns = "rank", "top", "bottom", by, "from_ns", "to_ns"
    parts = (
        frame.select(*columns, slice=pl.int_ranges(first, last + 1))
        .explode("slice")
        .filter(pl.col("slice") >= 0)
    )
    left = window.start_ns + pl.col("slice") * width
    inside = pl.min_horizontal("to_ns", left + width) - pl.max_horizontal("from_ns", left)
    lane = ["rank", "top", "bottom", "slice"]
    total = parts.group_by(*lane, by).agg(busy_ns=inside.sum()).filter(pl.col("busy_ns") > 0)
    rank_of = {name: i for i, name in enumerate(order)}
    total = total.with_columns(
        place=pl.col(by).replace_strict(rank_of, default=len(order), return_dtype=pl.Int64)
    )
    total = total.sort(*lane, "place", by)
    height = pl.col("bottom") - pl.col("top")
    scale = pl.max_horizontal(pl.sum("busy_ns").over(lane), pl.lit(width))
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


LAYERS = ("#C6CDD6", "#DFE4EA")
"""Alternating greys of layers."""

_COLUMNS = ["label", "phase", "start", "end", "top", "bottom"]
UNLABELLED = 0.25
"""If this share of a row of steps has no space for its text, they share one text."""

NARROW = 3
"""If the median width of spans is below this (px), they are merged (steps) or left out (layers)."""


@dataclass(frozen=True, slots=True)
class Strip:
    """Spans (``rank, step, to_step, layer, phase, start, end, top, bottom, colour``) and the
    texts on them.
    """

    spans: pl.DataFrame
    texts: pl.DataFrame


def step_strip(frame: pl.DataFrame, heads: pl.DataFrame, window: DrawnWindow) -> Strip:
    """Steps of each rank, coloured by phase; where they are narrow they share a text, or are
    merged.
    """
    spans = _spans(frame, heads, window, ["step"], row=0).with_columns(
        to_step="step", layer=pl.lit(None, pl.Int32)
    )
    run = (pl.col("phase") != pl.col("phase").shift()).fill_null(True).cum_sum().over("rank")
    spans = spans.with_columns(run=run, label=_own(spans, "step"))
    runs = spans.group_by("rank", "run", maintain_order=True).agg(
        pl.first("phase", "layer", "step", "start", "top", "bottom"),
        pl.last("end", "to_step"),
        unlabelled=pl.col("px").filter(pl.col("label").is_null()).sum() / pl.sum("px"),
        px=pl.sum("px"),
    )
    shared = runs.filter(pl.col("unlabelled") > UNLABELLED)
    columns = shared.select("step", "to_step", "phase", "px").iter_rows()
    labels = [
        fitting_text((f"steps {a} to {b} · {phase}", phase, f"{a}–{b}"), px, margin=4)
        for a, b, phase, px in columns
    ]
    shared = shared.with_columns(label=pl.Series(labels, dtype=pl.String))
    alone = spans.join(shared.select("rank", "run"), on=["rank", "run"], how="anti")
    texts = pl.concat([alone.select(_COLUMNS), shared.select(_COLUMNS)]).drop_nulls("label")
    plates = _plates(shared.drop_nulls("label"), window)
    drawn = (
        runs
        if float_of(spans["px"].median()) < NARROW
        else pl.concat([spans.select(plates.columns), plates])
    )
    return Strip(_coloured(drawn, _phase_colour()), _coloured(texts, _phase_colour()))


def _plates(shared: pl.DataFrame, window: DrawnWindow) -> pl.DataFrame:
    """Boxes behind the shared texts, so that no line between steps crosses them."""
    middle, half = (
        (pl.col("start") + pl.col("end")) / 2,
        pl.col("text_px") * window.px_ns / window.unit.ns / 2,
    )
    sized = shared.with_columns(
        text_px=pl.Series([text_px(t) + 8 for t in shared["label"]], dtype=pl.Float64)
    )
    placed = sized.with_columns(start=middle - half, end=middle + half)
    return placed.select(
        "rank", "step", "to_step", "layer", "phase", "start", "end", "top", "bottom"
    )


def layer_strip(frame: pl.DataFrame, heads: pl.DataFrame, window: DrawnWindow) -> Strip | None:
    """Layers of each step and rank in alternating greys; nothing if they are too narrow."""
    spans = _spans(frame, heads, window, ["step", "layer"], row=1)
    if spans.is_empty() or float_of(spans["px"].median()) < NARROW:
        return None
    spans = spans.with_columns(to_step="step", label=_own(spans, "layer"))
    if spans["label"].null_count() > spans.height / 2:
        spans = spans.with_columns(label=pl.lit(None, pl.String))
    grey = pl.when(pl.col("layer") % 2 == 0).then(pl.lit(LAYERS[0])).otherwise(pl.lit(LAYERS[1]))
    drawn = _coloured(spans, grey)
    return Strip(drawn, drawn.drop_nulls("label"))


def _spans(
    frame: pl.DataFrame, heads: pl.DataFrame, window: DrawnWindow, columns: list[str], *, row: int
) -> pl.DataFrame:
    """Extent of each step, or of each layer of a step, on a rank."""
    rows = frame.drop_nulls(columns).group_by("rank", *columns, maintain_order=True)
    spans = rows.agg(pl.first("phase"), first=pl.min("from_ns"), last=pl.max("to_ns"))
    spans = spans.join(heads.select("rank", head="top"), on="rank").sort("rank", "first", *columns)
    top = pl.col("head") + row * (STRIP + GAP)
    return spans.select(
        "rank",
        *columns,
        pl.col("phase").fill_null("other"),
        start=window.at(pl.col("first")),
        end=window.at(pl.col("last")),
        px=(pl.col("last") - pl.col("first")) / window.px_ns,
        top=top,
        bottom=top + STRIP,
    )


def _own(spans: pl.DataFrame, kind: str) -> pl.Series:
    """Longest text that fits into a span: ``step 3 · decode``, ``step 3`` or ``3``."""
    labels = []
    for name, phase, px in spans.select(kind, "phase", "px").iter_rows():
        texts = (f"{kind} {name}", f"{name}")
        of_phase = (f"step {name} · {phase}",) if kind == "step" and phase != "other" else ()
        labels.append(fitting_text((*of_phase, *texts), px, margin=2))
    return pl.Series("label", labels, dtype=pl.String)


def _phase_colour() -> pl.Expr:
    return pl.col("phase").replace_strict(PHASES, default=PHASES["other"], return_dtype=pl.String)


def _coloured(spans: pl.DataFrame, fill: pl.Expr) -> pl.DataFrame:
    inks = {name: ink_on(name) for name in (*PHASES.values(), *LAYERS)}
    ink = pl.col("colour").replace_strict(inks, return_dtype=pl.String)
    return spans.with_columns(colour=fill).with_columns(ink=ink)
