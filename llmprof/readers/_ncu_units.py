"""Units of Nsight Compute in base units, and numbers as it writes them."""

from __future__ import annotations

import re
from typing import Final

import polars as pl

_PREFIX: Final = {"": 1.0, "K": 1e3, "k": 1e3, "M": 1e6, "m": 1e6, "G": 1e9, "g": 1e9, "T": 1e12, "t": 1e12, "P": 1e15}
_TIME_NS: Final = {"s": 1e9, "ms": 1e6, "us": 1e3, "ns": 1.0}
_TIME_NAMES: Final = {"second": "s", "msecond": "ms", "usecond": "us", "nsecond": "ns", "sec": "s", "msec": "ms"}
_TIME_NAMES_MORE: Final = {"usec": "us", "nsec": "ns"}
_SCALED: Final = re.compile(r"([KkMmGgTtP]?)(bytes?|hz|Hz|HZ)")
_NUMBER: Final = r"[+-]?(?:\d{1,3}(?:,\d{3})+|\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?"


def base_unit(unit: str) -> tuple[str, float]:
    """Base unit of a unit, and what to multiply a value by to get there.

    Sizes become bytes (``B``), times nanoseconds (``ns``), frequencies ``Hz``, anything per time ``…/s``; prefixes are
    decimal, as Nsight Compute's are. No unit is ``1``. What is not known stays as it is.

    >>> base_unit("Kbyte/block"), base_unit("cycle/nsecond"), base_unit("usecond")
    (('B/block', 1000.0), ('Hz', 1000000000.0), ('ns', 1000.0))
    """
    above, slash, below = unit.strip().partition("/")
    if not slash:
        return _one(above)
    name, factor = _one(above)
    time = _time(below)
    if time is not None:
        factor = factor * 1e9 / _TIME_NS[time]
        return ("Hz", factor) if name == "cycle" else (f"{name}/s", factor)
    below, divisor = _one(below)
    return f"{name}/{below}", factor / divisor


def _one(unit: str) -> tuple[str, float]:
    if not unit:
        return "1", 1.0
    time = _time(unit)
    if time is not None:
        return "ns", _TIME_NS[time]
    if scaled := _SCALED.fullmatch(unit):
        return "B" if scaled[2].startswith("byte") else "Hz", _PREFIX[scaled[1]]
    return unit, 1.0


def _time(unit: str) -> str | None:
    unit = (_TIME_NAMES | _TIME_NAMES_MORE).get(unit, unit)
    return unit if unit in _TIME_NS else None


def in_base_units(frame: pl.DataFrame) -> pl.DataFrame:
    """Values as written become numbers in base units.

    Parameters
    ----------
    frame : polars.DataFrame
        ``raw, unit`` as text, and other columns.

    Returns
    -------
    polars.DataFrame
        The other columns, and ``unit, value`` (null for what is no number, NaN and infinity among them) and ``text``
        (what is no number, or says more than a number).
    """
    raw = pl.col("raw").str.strip_chars()
    number = raw.str.extract(rf"^({_NUMBER})\s*(?:\(.*\))?$", 1).str.replace_all(",", "")
    units = frame["unit"].fill_null("").unique().to_list()
    bases = [base_unit(unit) for unit in units]
    table = pl.DataFrame(
        {"unit": units, "_base": [name for name, _ in bases], "_factor": [factor for _, factor in bases]},
        schema={"unit": pl.String, "_base": pl.String, "_factor": pl.Float64},
    )
    return (
        frame.with_columns(pl.col("unit").fill_null(""), value=number.cast(pl.Float64, strict=False))
        .join(table, on="unit", how="left", maintain_order="left")
        .with_columns(
            unit=pl.col("_base"),
            value=pl.col("value") * pl.col("_factor"),
            text=pl.when(pl.col("value").is_null() | raw.str.ends_with(")")).then(raw),
        )
        .drop("raw", "_base", "_factor")
    )
