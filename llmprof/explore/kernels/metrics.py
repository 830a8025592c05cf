"""What Nsight Compute measured of a kernel of the timeline, ready to be shown."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import polars as pl

from llmprof import hardware
from llmprof.analyze import ncu_join, speed_of_light, stalls
from llmprof.errors import LlmprofError
from llmprof.metrics import explain
from llmprof.metrics.data import Metrics
from llmprof.names import functions
from llmprof.trace import Trace

PEAKS: Final = {
    "compute_pct": ("compute", "sm__throughput.avg.pct_of_peak_sustained_elapsed"),
    "memory_pct": ("memory", "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"),
    "roof_pct": ("of its roof", ""),
}
"""Bars of the speed of light: column, what it is called, and the metric whose glossary text goes with it."""

_SPEED: Final = (
    *("duration_ns", "flops", "dtype", "flop_per_s", "dram_bytes", "bytes_per_s", "arithmetic_intensity"),
    *("roof_flop_per_s", "roof_share", "compute_pct", "memory_pct", "memory_level", "bound", "stall", "stall_share"),
)
_MOST_RULES: Final = 40
MOST_VALUES: Final = 60
"""Metrics that are sent at a time."""


@dataclass(frozen=True)
class Profiled:
    """Hardware metrics of a trace's kernels: which launch is which kernel, and how near each comes to its peaks.

    Attributes
    ----------
    metrics : Metrics
        What was measured.
    launches : polars.DataFrame
        Rows of :func:`~llmprof.analyze.ncu_join`, with ``limit`` and the columns of
        :func:`~llmprof.analyze.speed_of_light`.
    stalls : polars.DataFrame
        Rows of :func:`~llmprof.analyze.stalls`.
    peaks : hardware.Device or None
        The device; None where it is not known.
    note : str
        Why the speed of light is missing; empty if it is there.
    """

    metrics: Metrics
    launches: pl.DataFrame
    stalls: pl.DataFrame
    peaks: hardware.Device | None
    note: str

    @property
    def unmatched(self) -> int:
        """Profiled launches that are no kernel of the trace."""
        return self.launches["name"].null_count()

    def limits(self) -> pl.DataFrame:
        """``name, limit`` of each kernel that was profiled: of its longest launch of those that match best."""
        best = self.launches.drop_nulls("name").sort("confidence", "profiled_ns", descending=True, nulls_last=True)
        return best.unique("name", keep="first", maintain_order=True).select("name", "limit")

    def of(self, name: str) -> pl.DataFrame:
        """Profiled launches of a kernel, those that match best first."""
        return self.launches.filter(pl.col("name") == name).sort(
            "confidence", "kernel_id", descending=[True, False], maintain_order=True
        )


def profiled(trace: Trace, metrics: Metrics) -> Profiled:
    """Match metrics with a trace and rate each launch.

    Parameters
    ----------
    trace : Trace
        A trace with kernels.
    metrics : Metrics
        Hardware metrics of some of its launches.

    Raises
    ------
    NotCapturedError
        The trace has no kernels.
    """
    launches, note, peaks = ncu_join(trace, metrics), "", None
    try:
        speed = speed_of_light(metrics)
        named = metrics.kernels["device_name"].drop_nulls()
        peaks = hardware.device(named[0]) if named.len() else None
    except LlmprofError as error:
        note = str(error)
        nothing = {"bound": pl.String, "dtype": pl.String, "memory_level": pl.String, "stall": pl.String}
        types = {column: nothing.get(column, pl.Float64) for column in _SPEED}
        speed = pl.DataFrame(schema={"kernel_id": pl.Int32, **types})
    joined = launches.join(speed.select("kernel_id", *_SPEED), on="kernel_id", how="left", maintain_order="left")
    said = pl.when(pl.col("roof_share").is_finite()).then(
        pl.format("{} · {} %", "bound", (100 * pl.col("roof_share")).round(0).cast(pl.Int64, strict=False))
    )
    return Profiled(metrics, joined.with_columns(limit=pl.coalesce(said, "bound")), stalls(metrics), peaks, note)


def shown(found: Profiled, name: str, kernel_id: int | None = None) -> dict[str, Any]:
    """What the explorer shows of a profiled kernel, as JSON: empty ``launches`` where it was not profiled."""
    launches = found.of(name)
    columns = ("kernel_id", "grid", "block", "profiled_ns", "dur_ns", "agrees", "confidence")
    out: dict[str, Any] = {"launches": launches.select(columns).to_dicts(), "note": found.note}
    if launches.is_empty():
        return out
    known = launches.filter(pl.col("kernel_id") == (-1 if kernel_id is None else kernel_id))
    row = (known if known.height else launches).row(0, named=True)
    number = row["kernel_id"]
    share = row["roof_share"]
    row["roof_pct"] = 100 * share if share is not None else None
    return out | {
        "chosen": number,
        "speed": {column: _finite(row[column]) for column in _SPEED},
        "bars": [_bar(column, row) for column in PEAKS],
        "roofline": roofline(found, number),
        "stalls": found.stalls.filter(pl.col("kernel_id") == number).select("reason", "share").to_dicts(),
        "rules": found.metrics.rules.filter(pl.col("kernel_id") == number)
        .sort("estimated_speedup_pct", descending=True, nulls_last=True, maintain_order=True)
        .head(_MOST_RULES)
        .drop("kernel_id")
        .to_dicts(),
    }


def values(found: Profiled, kernel_id: int, search: str = "") -> dict[str, Any]:
    """Metrics of a launch whose name or section has a text in it, labels of the details page first, with their titles.

    Returns
    -------
    dict
        ``rows`` (at most 60) of ``section, metric, unit, value, text, title``, and ``total``, how many fit.
    """
    frame = found.metrics.metrics.filter(pl.col("kernel_id") == kernel_id)
    words = pl.concat_str(pl.col("metric"), pl.col("section").fill_null(""), separator=" ").str.to_lowercase()
    fitting = frame.filter(words.str.contains(search.strip().lower(), literal=True))
    fitting = fitting.sort(pl.col("section").is_null(), maintain_order=True)
    rows = fitting.head(MOST_VALUES).select("section", "metric", "unit", "value", "text").to_dicts()
    said = [row | {"value": _finite(row["value"]), "title": glossary(row["metric"])["title"]} for row in rows]
    return {"rows": said, "total": fitting.height}


def roofline(found: Profiled, kernel_id: int) -> dict[str, Any] | None:
    """All launches that have a place on the roofline, the device's roofs, and which of them is meant."""
    x, y = "arithmetic_intensity", "flop_per_s"
    placed = found.launches.filter([(pl.col(c) > 0) & pl.col(c).is_finite() for c in (x, y)])
    if placed.filter(pl.col("kernel_id") == kernel_id).is_empty():
        return None
    types = placed["dtype"].drop_nulls().unique().sort().to_list()
    peaks = found.peaks
    flat = {t: rate for t in types if peaks is not None and (rate := peaks.flop_per_s.get(t))}
    points = placed.select("kernel_id", "dtype", x, y, ns="profiled_ns")
    return {
        "points": points.with_columns(function=functions.function(placed["kernel_name"])).to_dicts(),
        "bandwidth": peaks.memory_bytes_per_s if peaks is not None else None,
        "peaks": flat,
        "device": peaks.name if peaks is not None else None,
    }


@lru_cache(maxsize=4096)
def glossary(metric: str) -> dict[str, Any]:
    """What the glossary says of a metric or warp state, as JSON."""
    try:
        said = explain(metric)
    except LlmprofError as error:
        return {"title": "not in the glossary", "meaning": str(error), "good": "", "action": "", "source": ""}
    meaning = said.meaning or "; ".join(f"{part}: {words}" for part, words in said.parts.items())
    return {
        "title": said.title,
        "meaning": meaning,
        "good": said.good,
        "action": said.action,
        "source": said.source,
    }


def _bar(column: str, row: dict[str, Any]) -> dict[str, Any]:
    label, metric = PEAKS[column]
    level = row["memory_level"]
    if column == "memory_pct" and level:
        label = f"memory ({level.upper()})"
    return {"label": label, "pct": _finite(row[column]), "metric": metric}


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
