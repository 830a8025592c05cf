"""Times of a Chrome trace (microseconds, in several forms) as int64 nanoseconds, exactly.

A batch keeps its times as the decoder gave them; :func:`in_ns` turns whole columns into ns at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from typing import Any, Final

import msgspec
import polars as pl

EXACT_US: Final = 2.0**43
"""Largest time in us (101 days) whose float64 tells nanoseconds.

Below it, float64 numbers are at most 2**-10 us = 0.977 ns apart, so the one nearest to a written time is within
0.489 ns of it. A time of whole ns is the only one so near, and rounding finds it; one with fractions of a ns becomes
one of the two ns around it. At twice the size, neighbouring ns share a number.
"""

MOST_NS: Final = 2**61
"""Times beyond it are no times; two of them add up to an int64."""

_MOST_US: Final = MOST_NS // 1000


def loses_digits(us: Sequence[int | float | None]) -> bool:
    """Whether a float64 among the times cannot tell nanoseconds."""
    return float in set(map(type, us)) and any(type(v) is float and not -EXACT_US < v < EXACT_US for v in us)


def times(start: str, values: Sequence[Any]) -> dict[str, pl.Series]:
    """Times as a column, named for its unit.

    Parameters
    ----------
    start : str
        Beginning of the column's name.
    values : sequence of (int, float, None or msgspec.Raw)
        Times in us as one decoder gave them: numbers, or their text.

    Returns
    -------
    dict of str to polars.Series
        One column: ``{start}_us`` (int64 or float64), or ``{start}_ns`` (int64) if they were text.
    """
    if values and isinstance(values[0], msgspec.Raw):
        return {f"{start}_ns": pl.Series([_exact(bytes(v)) for v in values], dtype=pl.Int64)}
    try:
        return {f"{start}_us": pl.Series(values, dtype=pl.Int64)}
    except (TypeError, OverflowError):
        fitting = [None if v is None or abs(v) > _MOST_US else float(v) for v in values]
        return {f"{start}_us": pl.Series(fitting, dtype=pl.Float64)}


def in_ns(frame: pl.DataFrame, base_ns: int) -> pl.DataFrame:
    """The columns of times as int64 ns: starts from the base, durations not below zero.

    Null stands for what is no number or beyond :data:`MOST_NS`; a duration that is null counts as zero.
    """
    return frame.select(
        _in_ns(column, dtype, base_ns) if column.endswith(("_us", "_ns")) else pl.col(column)
        for column, dtype in frame.schema.items()
    )


def _in_ns(column: str, dtype: pl.DataType, base_ns: int) -> pl.Expr:
    ns = pl.col(column)
    if column.endswith("_us"):
        us = pl.when(ns.is_between(-_MOST_US, _MOST_US)).then(ns)
        if dtype == pl.Float64:
            ns = us.floor().cast(pl.Int64) * 1000 + ((us - us.floor()) * 1000 + 0.5).floor().cast(pl.Int64)
        else:
            ns = us * 1000
    ns = ns.fill_null(0).clip(0) if column.startswith("dur") else ns + base_ns
    return ns.alias(f"{column[:-3]}_ns")


def _exact(text: bytes) -> int | None:
    """Text of a time in us as ns; None where it is no number."""
    digits = text.strip(b'"')
    if digits[-4:-3] == b"." and digits[:-4].isdigit() and digits[-3:].isdigit() and len(digits) < 20:
        return int(digits[:-4] + digits[-3:])  # as Kineto and Ascend write
    try:
        ns = Decimal(str(msgspec.json.decode(text)) if text[:1] == b'"' else text.decode()) * 1000
        if not ns.is_finite() or abs(ns) > MOST_NS:
            return None
        return int(ns.to_integral_value(ROUND_HALF_UP))
    except (InvalidOperation, msgspec.DecodeError, UnicodeDecodeError):
        return None
