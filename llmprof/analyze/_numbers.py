"""Single numbers out of frames, as plain floats."""

from __future__ import annotations

import polars as pl


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
