"""Counters of the device: frequency of the AI cores, HBM, LLC, memory, QoS and links, in base units."""

from __future__ import annotations

from typing import Final

import polars as pl

from llmprof.readers.ascend.timeline import Timeline

_UNITS: Final = {
    "MHz": (1e6, "Hz"),
    "KB": (1024.0, "B"),
    "MB": (1024.0**2, "B"),
    "MB/s": (1024.0**2, "B/s"),
    "GB/s": (1024.0**3, "B/s"),
    "%": (1.0, "%"),
    "us": (1000.0, "ns"),
}
"""Factor and base unit of the units that stand in the names of series; msprof counts in powers of 1024."""


def of_timeline(found: Timeline) -> pl.DataFrame | None:
    """Counters of timeline files in the form of the table of counters.

    Rates of hits, which msprof writes as fractions although it calls them per cent, become per cent.
    """
    samples = found.counters
    if not samples.height:
        return None
    unit = pl.col("series").str.extract(r"\(([^()]+)\)\s*$").fill_null(pl.col("series"))
    factor = unit.replace_strict({u: f for u, (f, _) in _UNITS.items()}, default=1.0, return_dtype=pl.Float64)
    base = unit.replace_strict({u: b for u, (_, b) in _UNITS.items()}, default=None, return_dtype=pl.String)
    plain = pl.col("series").is_in(["value", *_UNITS]) | pl.col("name").str.contains(pl.col("series"), literal=True)
    stem = pl.col("series").str.replace(r"\([^()]*\)\s*$", "")
    plain = plain | pl.col("name").str.ends_with(stem)
    named = pl.when(plain).then("name").otherwise(pl.format("{} {}", "name", "series"))
    samples = samples.with_columns(_factor=factor, unit=base, name=named)
    most = pl.col("value").max().over("name")
    as_share = (pl.col("unit") == "%") & (most <= 1)
    return samples.select(
        "time_ns",
        "name",
        value=pl.when(as_share)
        .then(pl.col("value") * 100)
        .otherwise(pl.col("value") * pl.col("_factor")),
        unit="unit",
    )
