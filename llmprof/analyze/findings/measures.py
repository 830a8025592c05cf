"""What a rule measures, and small sums over columns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import polars as pl


@dataclass(frozen=True)
class Measure:
    """Time that a finding is about, and where to look.

    Attributes
    ----------
    ns : float
        Time of the scope that it is about, summed over ranks and steps (ns): what it is ranked by.
    words : dict
        What goes into the sentences.
    gain_ns : float, optional
        Most that removing it could gain, if that is less than its time.
    where : str
        SQL condition for the rows of the evidence that show it.
    rank : int, optional
        Rank on which most of it happens.
    window_ns : (int, int), optional
        When it is at its worst: from, to (ns).
    suggestion : str, optional
        Advice that the evidence calls for, in place of the rule's.
    """

    ns: float
    words: dict[str, Any] = field(default_factory=dict)
    gain_ns: float | None = None
    where: str = "true"
    rank: int | None = None
    window_ns: tuple[int, int] | None = None
    suggestion: str | None = None


def total(frame: pl.DataFrame, column: str) -> float:
    """Sum of a column; 0 where it has no value."""
    return float(frame[column].cast(pl.Float64).sum())


def middle(frame: pl.DataFrame, column: str) -> float | None:
    """Median of a column; None where it has no value."""
    value = frame[column].cast(pl.Float64).median()
    return float(value) if isinstance(value, int | float) else None


def largest(frame: pl.DataFrame, column: str) -> float | None:
    """Largest value of a column; None where it has none."""
    value = frame[column].cast(pl.Float64).max()
    return float(value) if isinstance(value, int | float) else None


def worst(rows: pl.DataFrame) -> tuple[int | None, tuple[int, int] | None]:
    """Rank with most of the time of some rows (``rank, start_ns, dur_ns``), and the longest of its rows as a window."""
    if not rows.height:
        return None, None
    sums = rows.group_by("rank").agg(pl.col("dur_ns").sum()).sort("dur_ns", "rank", descending=[True, False])
    rank = int(sums["rank"][0])
    longest = rows.filter(pl.col("rank") == rank).sort("dur_ns", descending=True).row(0, named=True)
    return rank, (longest["start_ns"], longest["start_ns"] + longest["dur_ns"])


def most(rows: pl.DataFrame, by: str, weight: str = "dur_ns") -> tuple[Any, float]:
    """Value of a column with the largest sum of another, null left out, and its share of the whole sum."""
    sums = rows.filter(pl.col(by).is_not_null()).group_by(by).agg(pl.col(weight).sum())
    whole = total(rows, weight)
    if not sums.height or not whole:
        return None, 0.0
    value, ns = sums.sort(weight, by, descending=[True, False]).row(0)
    return value, float(ns) / whole
