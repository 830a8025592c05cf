"""Collectives by message size: time and bandwidth, against the peak of the link."""

from __future__ import annotations

import polars as pl

from llmprof.analyze._memo import per_trace
from llmprof.analyze.collectives import collectives
from llmprof.errors import LlmprofError
from llmprof.hardware import device
from llmprof.trace import Trace

_KEY = ["kind", "algorithm", "bytes"]
_TIMES = {"dur": "dur_ns", "transfer": "transfer_ns"}


def link_peak_gbps(trace: Trace) -> float | None:
    """Peak of the link of the trace's device in one direction (GB/s), None where it is not known or there is none.

    Vendors state both directions together; the bus bandwidth of a collective is that of one.
    """
    name = trace.meta.get("device")
    try:
        peak = device(name).link_bytes_per_s if isinstance(name, str) else None
    except LlmprofError:
        return None
    return peak / 2 / 1e9 if peak else None


@per_trace
def collective_sizes(trace: Trace) -> pl.DataFrame:
    """Time and bandwidth of the collectives by kind, algorithm and message size.

    Parameters
    ----------
    trace : Trace
        A trace with collectives.

    Returns
    -------
    polars.DataFrame
        As :func:`collective_sizes_of` returns it.

    Raises
    ------
    NotCapturedError
        The trace has no device activity and no operators, so communication was not recorded.
    """
    return collective_sizes_of(collectives(trace), peak_gbps=link_peak_gbps(trace))


def collective_sizes_of(calls: pl.DataFrame, *, peak_gbps: float | None = None) -> pl.DataFrame:
    """The analysis of :func:`collective_sizes` on rows of :func:`~llmprof.analyze.collectives`.

    Parameters
    ----------
    calls : polars.DataFrame
        ``kind, algorithm, bytes, dur_ns, transfer_ns, algorithm_gbps, bus_gbps``.
    peak_gbps : float, optional
        Peak of the link in one direction (GB/s).

    Returns
    -------
    polars.DataFrame
        ``kind, algorithm, bytes`` (null where not captured), ``count`` (kernels over all ranks), ``dur_p10_ns,
        dur_median_ns, dur_p90_ns`` and likewise ``transfer_…`` (null where no wait is known), ``algorithm_gbps,
        bus_gbps`` (medians, GB/s; null without transfer or bytes), ``peak_gbps`` and ``share_of_peak`` (bus bandwidth
        over it). Sorted by kind, algorithm and bytes, nulls last.
    """
    quantiles = {
        f"{name}_{label}_ns": pl.col(column).quantile(share, "linear")
        for name, column in _TIMES.items()
        for label, share in (("p10", 0.1), ("median", 0.5), ("p90", 0.9))
    }
    return (
        calls.group_by(_KEY)
        .agg(count=pl.len(), **quantiles, algorithm_gbps=pl.col("algorithm_gbps").median(),
             bus_gbps=pl.col("bus_gbps").median())
        .with_columns(peak_gbps=pl.lit(peak_gbps, dtype=pl.Float64))
        .with_columns(share_of_peak=pl.col("bus_gbps") / pl.col("peak_gbps"))
        .sort(_KEY, nulls_last=True)
    )  # fmt: skip
