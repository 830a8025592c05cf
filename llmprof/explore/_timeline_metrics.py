"""Hardware metrics of kernels as facts of the timeline's events."""

from __future__ import annotations

import polars as pl

from llmprof.analyze.ncu_join import ncu_join
from llmprof.analyze.speed_of_light import speed_of_light
from llmprof.metrics_data import Metrics
from llmprof.trace import Trace
from llmprof.units import format_ns, format_share


def metrics_by_event(trace: Trace, metrics: Metrics) -> pl.DataFrame:
    """What a kernel profiler measured, for the events of the timeline that it fits.

    Parameters
    ----------
    trace : Trace
        A timeline with kernels.
    metrics : Metrics
        Hardware metrics of some launches.

    Returns
    -------
    polars.DataFrame
        ``event, fact, value``: several rows an event, as text.

    Raises
    ------
    LlmprofError
        The trace has no kernels, or the metrics name no device.
    """
    joined = ncu_join(trace, metrics).drop_nulls("event").select("kernel_id", "event", "confidence", "profiled_ns")
    light = speed_of_light(metrics).drop("kernel_name")
    rows: list[tuple[int, str, str]] = []
    for launch in joined.join(light, on="kernel_id", how="left", maintain_order="left").iter_rows(named=True):
        facts = {
            "profiled": f"launch {launch['kernel_id']}, {format_ns(launch['profiled_ns'])}",
            "match": f"confidence {launch['confidence']:.2f}",
            "compute": _percent(launch["compute_pct"]),
            "memory": _percent(launch["memory_pct"]),
            "of the roofline": format_share(launch["roof_share"]),
            "bound by": launch["bound"],
            "stall": launch["stall"],
        }
        rows += [(launch["event"], fact, text) for fact, text in facts.items() if text not in (None, "unknown")]
    return pl.DataFrame(rows, schema={"event": pl.UInt32, "fact": pl.String, "value": pl.String}, orient="row")


def _percent(value: float | None) -> str | None:
    return None if value is None else f"{value:.1f} % of peak"
