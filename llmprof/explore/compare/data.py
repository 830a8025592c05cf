"""What the explorer that compares two traces shows: rows, bars of the phases, steps and kernels of a row."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import polars as pl

from llmprof.analyze import attribute, diff_events
from llmprof.analyze.intervals import union_length
from llmprof.charts.base.theme import PHASES
from llmprof.trace import Trace

Labels = Mapping[str, Any]

STATUSES: Final = {
    "slower": "slower",
    "faster": "faster",
    "only_b": "appeared",
    "only_a": "vanished",
    "same": "about the same",
}
"""Statuses of :func:`llmprof.analyze.diff_events` in words."""

ALIGNED: Final = (("stage", "category"), ("layer", "stage"), ("category",), ("stage", "name"), ("name",))
"""Labels that rows can be aligned by, beside the phase."""

NUMBERS: Final = ("a_ns", "b_ns", "delta_ns", "ratio", "a_count", "b_count", "a_steps", "b_steps")
_MOST_KERNELS: Final = 60
_MOST_TEXT: Final = 400


def arranged(frame: pl.DataFrame, *, search: str, phase: str | None, status: str | None, sort: str) -> pl.DataFrame:
    """Rows with a text in one of their labels, of a phase and a status, in the order of a column (``-``: falling).

    The order by change is that of its size.
    """
    labels = [c for c in ("stage", "category", "layer", "name") if c in frame.columns]
    words = pl.concat_str([pl.col(c).cast(pl.String).fill_null("") for c in labels], separator=" ").str.to_lowercase()
    kept = frame.filter(words.str.contains(search.strip().lower(), literal=True))
    if phase is not None:
        kept = kept.filter(pl.col("phase") == phase)
    if status is not None:
        kept = kept.filter(pl.col("status") == status)
    column, falling = sort.lstrip("-"), sort.startswith("-")
    if column not in kept.columns:
        return kept
    key = pl.col(column).abs() if column == "delta_ns" else pl.col(column)
    return kept.sort(key, descending=falling, nulls_last=True, maintain_order=True)


def block(frame: pl.DataFrame, offset: int, count: int) -> list[dict[str, Any]]:
    """Some of the rows as JSON, texts cut."""
    rows = frame.slice(max(0, offset), max(0, count)).iter_rows(named=True)
    return [{key: _plain(cell) for key, cell in row.items()} for row in rows]


def counts(frame: pl.DataFrame) -> dict[str, int]:
    """Rows of each status."""
    found = dict(frame.group_by("status").len().iter_rows())
    return {status: found.get(status, 0) for status in STATUSES}


def bars(frame: pl.DataFrame) -> list[dict[str, Any]]:
    """Of each phase the time by stage in both traces, from rows aligned by stage and category; the longest first."""
    phases = []
    places = {name: i for i, name in enumerate(PHASES)}
    known = frame.drop_nulls("phase")
    order = sorted(known["phase"].unique(), key=lambda phase: (places.get(phase, len(places)), phase))
    for phase in order:
        part = known.filter(pl.col("phase") == phase)
        stages = part.group_by("stage").agg(pl.col("a_ns", "b_ns").sum())
        stages = stages.sort(pl.max_horizontal("a_ns", "b_ns"), "stage", descending=[True, False], nulls_last=True)
        steps = part.select(pl.col("a_steps", "b_steps").max()).row(0)
        phases.append({"phase": phase, "a_steps": steps[0], "b_steps": steps[1], "stages": stages.to_dicts()})
    return phases


def matching(labels: Labels) -> list[pl.Expr]:
    """What events of a row fulfil: each label equal, null equal to null."""
    return [pl.col(name).eq_missing(pl.lit(value)) for name, value in labels.items()] or [pl.lit(value=True)]


def events_of(trace: Trace, labels: Labels) -> pl.DataFrame:
    """Events of a row that lie in a step: those that :func:`llmprof.analyze.diff_events` compares."""
    return attribute(trace).filter(pl.col("step").is_not_null(), *matching(labels))


def steps_of(trace: Trace, labels: Labels) -> pl.DataFrame:
    """Time of a row in each step of its phase, mean of the ranks.

    Returns
    -------
    polars.DataFrame
        ``step, place`` (of the step among those of its phase, from 0), ``busy_ns`` (0 where a step has no such event).
    """
    events = attribute(trace)
    phase = labels.get("phase")
    cells = events.filter(pl.col("step").is_not_null(), pl.col("phase").eq_missing(pl.lit(phase)))
    every = cells.group_by("rank", "step").agg(pl.col("start_ns").min())
    busy = union_length(events_of(trace, labels), ["rank", "step"])
    joined = every.join(busy, on=["rank", "step"], how="left").with_columns(pl.col("busy_ns").fill_null(0))
    steps = joined.group_by("step").agg(pl.col("busy_ns").mean(), pl.col("start_ns").min()).sort("start_ns", "step")
    return steps.with_row_index("place").select("step", "place", "busy_ns")


def kernels_of(a: Trace, b: Trace, labels: Labels, tolerance: float) -> dict[str, Any]:
    """Kernels of a row in both traces, the largest change first: ``rows`` as JSON, and their ``total``."""
    by = ["phase", *(label for label in labels if label not in ("phase", "name")), "name"]
    frame = diff_events(a, b, tolerance=tolerance, by=by).filter(matching(labels))
    frame = frame.sort(pl.col("delta_ns").abs(), "name", descending=[True, False], nulls_last=True)
    shown = frame.select("name", "status", "a_ns", "b_ns", "delta_ns", "ratio", "a_count", "b_count")
    return {"rows": block(shown, 0, _MOST_KERNELS), "total": frame.height}


def keys_of(by: Sequence[str]) -> list[str]:
    """Columns that a row is aligned by: the phase, and those that were asked for."""
    return ["phase", *(label for label in by if label != "phase")]


def _plain(cell: Any) -> Any:
    if isinstance(cell, float) and not math.isfinite(cell):
        return None
    return cell[:_MOST_TEXT] if isinstance(cell, str) else cell
