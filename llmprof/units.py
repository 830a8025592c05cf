"""Units, and text for times, sizes and shares."""

from __future__ import annotations

import math

from llmprof.errors import checked

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000
SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
"""Seconds of each unit of time that a duration may be written with."""

_TIMES = ((1, "ns"), (NS_PER_US, "us"), (NS_PER_MS, "ms"), (NS_PER_S, "s"))
_LEAST_SHARE = 0.0005
"""Smaller shares would be written as ``0.0 %``, which means that there is nothing."""
_SIZES = ((1, "B"), (2**10, "KiB"), (2**20, "MiB"), (2**30, "GiB"), (2**40, "TiB"))


@checked
def format_ns(ns: float | None, digits: int = 3) -> str:
    """Text of a duration in ns, with a fitting unit:

    ``4.20 us``, ``58.1 ms``; ``unknown`` for None and NaN.
    """
    return _with_unit(ns, _TIMES, 1000, digits)


@checked
def format_bytes(n: float | None, digits: int = 3) -> str:
    """Text of a size in bytes, with a binary unit: ``28.0 KiB``; ``unknown`` for None and NaN."""
    return _with_unit(n, _SIZES, 1024, digits)


@checked
def format_share(share: float | None) -> str:
    """Text of a share (1 is the whole) as a percentage.

    Examples
    --------
    >>> format_share(0.981), format_share(0.0001), format_share(0), format_share(None)
    ('98.1 %', '< 0.1 %', '0.0 %', 'unknown')
    """
    if share is None or not math.isfinite(share):
        return "unknown"
    if 0 < abs(share) < _LEAST_SHARE:
        return "< 0.1 %" if share > 0 else "> -0.1 %"
    return f"{100 * share:.1f} %"


@checked
def format_metric(name: str, value: float) -> str:
    """Text of a metric of runs by its name: a time if the name ends in ``_ns``, else a number of
    its unit.

    Examples
    --------
    >>> format_metric("ttft_ns", 4.2e6), format_metric("output_tokens_per_s", 11933.4)
    ('4.20 ms', '11,933')
    """
    if name.endswith("_ns"):
        return format_ns(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:,.4g}"


def _with_unit(
    value: float | None, units: tuple[tuple[int, str], ...], step: int, digits: int
) -> str:
    """Write a value in the first unit in which it stays below ``step`` after rounding, else in
    the last.
    """
    if value is None or not math.isfinite(value):
        return "unknown"
    size, unit = next((u for u in units if round(abs(value) / u[0]) < step), units[-1])
    if value == 0:
        return f"0 {unit}"
    shown = value / size
    decimals = (1 if size == 1 and value == int(value) else digits) - len(str(int(abs(shown))))
    return f"{shown:,.{max(0, decimals)}f} {unit}"
