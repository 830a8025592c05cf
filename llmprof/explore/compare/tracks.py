"""Timelines of runs one above the other, aligned at a step or at a layer of a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import polars as pl

from llmprof.analyze import attribute, collectives, idle
from llmprof.analyze.compare.story import WORDS
from llmprof.analyze.overlap import COMMUNICATION, COPY
from llmprof.analyze.steps.summary import recorded_windows, step_windows
from llmprof.errors import LlmprofError
from llmprof.trace import Trace

LANES: Final = ("layers", "compute", "communication", "copies", "idle")
"""Rows of a timeline; the column ``lane`` is their number."""

MOST_EVENTS: Final = 4_000
"""Most events of a side that are sent one by one; with more, short events near each other are merged."""

_CAUSES: Final = {part: words for (kind, part), (_, words) in WORDS.items() if kind == "idle"}
_PIECES: Final = 1_500
_MARGIN: Final = 0.02

SCHEMA: Final = {
    "lane": pl.Int32,
    "start_ns": pl.Float64,
    "dur_ns": pl.Float64,
    "label": pl.String,
    "name": pl.String,
    "events": pl.Int64,
}


@dataclass(frozen=True)
class Aligned:
    """A run, its name, and the rank that is shown (the first one if None)."""

    name: str
    trace: Trace
    rank: int | None = None


@dataclass
class Tracks:
    """Timelines of the runs; times are in ns from the point of alignment."""

    sides: list[dict[str, Any]] = field(default_factory=list)
    rows: list[pl.DataFrame] = field(default_factory=list)
    window: tuple[float, float] = (0.0, 1.0)
    whole: tuple[float, float] = (0.0, 1.0)
    place: int | None = None
    places: int = 0
    layers: list[int] = field(default_factory=list)


def align(
    runs: Sequence[Aligned],
    *,
    phase: str | None = None,
    place: int | None = None,
    layer: int | None = None,
    window: Sequence[float] | None = None,
) -> Tracks:
    """Timelines of a step of each run, aligned at its start or at the start of one of its layers."""
    tracks = Tracks()
    steps = [_steps(run, phase) for run in runs]
    tracks.places = min((frame.height for frame in steps if frame.height), default=0)
    if phase is not None and steps:
        tracks.place = _typical(next((frame for frame in steps if frame.height), steps[0])) if place is None else place
        tracks.place = min(tracks.place, max(0, tracks.places - 1)) if tracks.places else None
    events = [_events(run, frame, tracks.place) for run, frame in zip(runs, steps, strict=True)]
    spans = [_span(run, frame, tracks.place) for run, frame in zip(runs, steps, strict=True)]
    tracks.layers = sorted({layer for rows in events for layer in rows.filter(lane=0)["layer"].drop_nulls()})
    ends, shown = [], []
    for run, rows, span in zip(runs, events, spans, strict=True):
        side, origin, length = _side(run, rows, span, phase=phase, layer=layer)
        tracks.sides.append(side)
        shown.append((rows, origin))
        if origin is not None and span is not None:
            ends.append((float(span[0] - origin), float(span[1] - origin), length))
    if ends:
        first, last = min(e[0] for e in ends), max(e[1] for e in ends)
        tracks.whole = (first - _MARGIN * (last - first), last + _MARGIN * (last - first) + 1.0)
        near = max(e[2] for e in ends)
        close = tracks.whole if layer is None else (-0.15 * near, 1.15 * near + 1.0)
        tracks.window = close if window is None else _inside(window, tracks.whole)
    for rows, origin in shown:
        tracks.rows.append(_reduced(rows, origin, tracks.window))
    return tracks


def _inside(window: Sequence[float], whole: tuple[float, float]) -> tuple[float, float]:
    first, last = float(window[0]), float(window[1])
    return (first, last) if last > first and last > whole[0] and first < whole[1] else whole


def _rank(run: Aligned) -> int | None:
    ranks = sorted(rank for rank in run.trace.device_ranks or run.trace.ranks if rank >= 0)
    return run.rank if run.rank in ranks else next(iter(ranks), None)


def _steps(run: Aligned, phase: str | None) -> pl.DataFrame:
    """Steps of a phase on the chosen rank, or its whole recording."""
    try:
        windows = recorded_windows(run.trace) if phase is None else step_windows(run.trace)
    except LlmprofError:
        return pl.DataFrame(schema={"step": pl.Int32, "start_ns": pl.Int64, "span_ns": pl.Int64})
    own = windows.filter(pl.col("rank") == _rank(run)).unique("start_ns", keep="first").sort("start_ns")
    return own if phase is None else own.filter(pl.col("phase") == phase)


def _typical(steps: pl.DataFrame) -> int:
    """Place of the step whose length is nearest to the median."""
    if not steps.height:
        return 0
    away = (steps["span_ns"] - steps["span_ns"].median()).abs()
    return int(away.arg_min() or 0)


def _span(run: Aligned, steps: pl.DataFrame, place: int | None) -> tuple[int, int] | None:
    """First and last time of the visible step (ns), or of all events of the recording."""
    if not steps.height or (place or 0) >= steps.height:
        return None
    row = steps.row(place or 0, named=True)
    if place is not None:
        return int(row["start_ns"]), int(row["start_ns"] + row["span_ns"])
    events = attribute(run.trace).filter(pl.col("rank") == _rank(run))
    if not events.height:
        return None
    return int(events["start_ns"].min()), int((events["start_ns"] + events["dur_ns"]).max())  # type: ignore[arg-type]


def _events(run: Aligned, steps: pl.DataFrame, place: int | None) -> pl.DataFrame:
    """Events of the step: ``lane, start_ns, dur_ns, label, name, layer``."""
    span = _span(run, steps, place)
    empty = pl.DataFrame(schema={**SCHEMA, "layer": pl.Int32}).drop("events")
    if span is None:
        return empty
    first, last = span
    inside = (pl.col("rank") == _rank(run)) & (pl.col("start_ns") < last)
    inside &= pl.col("start_ns") + pl.col("dur_ns") > first
    own = attribute(run.trace).filter(inside)
    moves = pl.col("category").is_in(COMMUNICATION).fill_null(value=False)
    copies = pl.col("category").is_in(COPY).fill_null(value=False)
    unknown = pl.col("stage").is_null() | (pl.col("stage") == "other")
    lane = pl.when(moves).then(2).when(copies).then(3).otherwise(1)
    kind = pl.when(moves).then(pl.lit("transfer")).when(copies).then(pl.lit("copies"))
    label = kind.when(unknown).then("category").otherwise("stage")
    columns = ["lane", "start_ns", "dur_ns", "label", "name", "layer"]
    rows = own.with_columns(lane=lane.cast(pl.Int32), label=label).select(columns)
    end = (pl.col("start_ns") + pl.col("dur_ns")).max()
    layers = (
        own.filter(pl.col("layer").is_not_null())
        .group_by("layer")
        .agg(pl.col("start_ns").min(), dur_ns=end - pl.col("start_ns").min())
    )
    named = pl.format("layer {}", "layer")
    layers = layers.sort("start_ns").with_columns(lane=pl.lit(0, dtype=pl.Int32), label=pl.lit("layer"), name=named)
    gaps = idle(run.trace).filter(inside)
    gaps = gaps.select(
        pl.lit(4, dtype=pl.Int32).alias("lane"), "start_ns", "dur_ns", label="cause",
        name=pl.col("cause").replace(_CAUSES), layer=pl.lit(None, dtype=pl.Int32),
    )  # fmt: skip
    parts = [layers.select(columns), rows, _waits(run, inside), gaps]
    return pl.concat(parts, how="diagonal_relaxed").with_columns(pl.col("layer").cast(pl.Int32))


def _waits(run: Aligned, inside: pl.Expr) -> pl.DataFrame:
    """Waiting inside collectives, drawn over them; collectives with unknown waiting are marked."""
    calls = collectives(run.trace).filter(inside)
    unknown = calls.filter(pl.col("wait_ns").is_null())
    waiting = calls.filter(pl.col("wait_ns") > 0)
    lane = pl.lit(2, dtype=pl.Int32).alias("lane")
    return pl.concat(
        [
            waiting.select(
                lane, "start_ns", dur_ns="wait_ns", label=pl.lit("waiting"), name=pl.lit("waiting for a rank")
            ),
            unknown.select(lane, "start_ns", "dur_ns", "name", label=pl.lit("communication")),
        ],
        how="diagonal_relaxed",
    )


def _side(
    run: Aligned, rows: pl.DataFrame, span: tuple[int, int] | None, *, phase: str | None, layer: int | None
) -> tuple[dict[str, Any], int | None, float]:
    """Header of a run, its point of alignment, and the length of its layer or step."""
    side: dict[str, Any] = {"name": run.name, "rank": _rank(run), "step": None, "origin_ns": None, "note": ""}
    if span is None:
        side["note"] = f"{run.name} has no such step of {phase}" if phase else f"{run.name} has no events"
        return side, None, 0.0
    origin, length = span[0], float(span[1] - span[0])
    if layer is not None:
        own = rows.filter((pl.col("lane") == 0) & (pl.col("layer") == layer))
        if not own.height:
            side["note"] = f"{run.name} has no layer {layer} in this step"
            return side, None, 0.0
        origin, length = int(own["start_ns"][0]), float(own["dur_ns"][0])
    if phase is not None:
        first = step_windows(run.trace).filter((pl.col("rank") == _rank(run)) & (pl.col("start_ns") == span[0]))
        side["step"] = int(first["step"][0]) if first.height else None
    side["origin_ns"] = origin
    return side, origin, length


def _reduced(rows: pl.DataFrame, origin: int | None, window: tuple[float, float]) -> pl.DataFrame:
    """Rows of a window, with times from the point of alignment; of many, short ones near each other are merged."""
    if origin is None:
        return pl.DataFrame(schema=SCHEMA)
    start = (pl.col("start_ns") - origin).cast(pl.Float64)
    rows = rows.with_columns(start_ns=start, dur_ns=pl.col("dur_ns").cast(pl.Float64), events=pl.lit(1, dtype=pl.Int64))
    rows = rows.filter((pl.col("start_ns") < window[1]) & (pl.col("start_ns") + pl.col("dur_ns") > window[0]))
    if rows.height > MOST_EVENTS:
        piece = (window[1] - window[0]) / _PIECES
        short = rows.filter(pl.col("dur_ns") < piece)
        longest = pl.col("label").sort_by("dur_ns", descending=True).first()
        gathered = short.group_by("lane", (pl.col("start_ns") // piece).alias("_piece")).agg(
            pl.col("start_ns").min(),
            pl.col("dur_ns").sum().clip(upper_bound=2 * piece),
            label=longest,
            name=pl.format("{} events", pl.len()),
            events=pl.len().cast(pl.Int64),
        )
        rows = pl.concat([rows.filter(pl.col("dur_ns") >= piece).select(list(SCHEMA)), gathered.select(list(SCHEMA))])
    return rows.select(list(SCHEMA)).cast(SCHEMA).sort("lane", "start_ns", maintain_order=True)  # type: ignore[arg-type]
