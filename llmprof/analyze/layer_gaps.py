"""Layers against the typical layer of their step, and the communication of each that nothing hides."""

from __future__ import annotations

from typing import Literal

import polars as pl

from llmprof.analyze._memo import per_trace
from llmprof.analyze.attribution import attribute
from llmprof.analyze.intervals import length_within, merge
from llmprof.analyze.layers import layers
from llmprof.analyze.overlap import COMMUNICATION, COPY
from llmprof.analyze.steady_state import MAD_TO_SIGMA, MAX_DEVIATIONS
from llmprof.errors import AnalysisError
from llmprof.trace import Trace

Measure = Literal["dur_ns", "busy_ns", "exposed_communication_ns", "host_dur_ns"]

MEASURES: tuple[Measure, ...] = ("dur_ns", "busy_ns", "exposed_communication_ns", "host_dur_ns")
"""What layers can be compared by."""

LEAST_SHARE = 0.1
"""An outlier is off the typical layer by more than this share of it, however alike the others are."""

_KEY = ("rank", "step", "layer")


@per_trace
def layer_gaps(trace: Trace, *, stage: str | None = None, measure: Measure = "dur_ns") -> pl.DataFrame:
    """Layers of every step, each with its gap to the typical layer of the same rank and step.

    The typical layer is the median over the layers of one rank in one step, so a slow step has no outliers for
    being slow. An outlier is off it by more than four robust standard deviations (1.4826 times the median absolute
    deviation) and by more than 10 % of it.

    Parameters
    ----------
    trace : Trace
        Any trace whose steps and attention kernels are found.
    stage : str, optional
        Look at one stage only; several of them in a layer are added up.
    measure : {"dur_ns", "busy_ns", "exposed_communication_ns", "host_dur_ns"}
        What is compared.

    Returns
    -------
    polars.DataFrame
        ``rank, step, phase, layer, start_ns, end_ns`` (first start and last end on the device), ``dur_ns, busy_ns,
        host_dur_ns`` as :func:`~llmprof.analyze.layers` gives them, ``communication_ns`` (union of the layer's
        collectives), ``exposed_communication_ns`` (the part beside which no compute of the rank runs, be it of this
        layer or of another), all in ns; then of ``measure`` ``typical_ns, gap_ns`` (its value minus the typical
        one) and ``outlier``, which are null where the value is.

    Raises
    ------
    NotCapturedError
        The trace has neither kernels nor copies nor operators.
    AnalysisError
        There is no such measure.
    """
    if measure not in MEASURES:
        raise AnalysisError(f"layers have no measure {measure!r}", expected=f"one of {', '.join(MEASURES)}")
    if stage is None:
        found = layers(trace, by="layer").with_columns(end_ns=pl.col("start_ns") + pl.col("dur_ns"))
    else:
        found = _stage(layers(trace), stage)
    found = found.join(_communication(trace, stage), on=list(_KEY), how="left", maintain_order="left")
    found = found.with_columns(pl.col("communication_ns", "exposed_communication_ns").fill_null(0))
    value, group = pl.col(measure), ["rank", "step"]
    found = found.with_columns(typical_ns=value.median().over(group)).with_columns(gap_ns=value - pl.col("typical_ns"))
    off = pl.col("gap_ns").abs()
    limit = pl.max_horizontal(
        off.median().over(group) * MAD_TO_SIGMA * MAX_DEVIATIONS, pl.col("typical_ns") * LEAST_SHARE
    )
    return found.select(
        "rank",
        "step",
        "phase",
        "layer",
        "start_ns",
        "end_ns",
        "dur_ns",
        "busy_ns",
        "host_dur_ns",
        "communication_ns",
        "exposed_communication_ns",
        pl.when(value.is_not_null()).then("typical_ns").alias("typical_ns"),
        "gap_ns",
        outlier=off > limit,
    )


def _stage(found: pl.DataFrame, stage: str) -> pl.DataFrame:
    """One stage of each layer, its occurrences added up; host time is null if that of one is."""
    host = pl.col("host_dur_ns")
    return (
        found.filter(pl.col("stage") == stage)
        .group_by(*_KEY, maintain_order=True)
        .agg(
            pl.col("phase").first(),
            pl.col("start_ns").min(),
            pl.col("dur_ns", "busy_ns").sum(),
            end_ns=(pl.col("start_ns") + pl.col("dur_ns")).max(),
            host_dur_ns=pl.when(host.is_not_null().all()).then(host.sum()),
        )
    )


def _communication(trace: Trace, stage: str | None) -> pl.DataFrame:
    """``rank, step, layer, communication_ns, exposed_communication_ns`` of the layers that have collectives."""
    events = attribute(trace)
    collective = pl.col("category").is_in(COMMUNICATION)
    mine = events.filter(collective & pl.col("layer").is_not_null())
    if stage is not None:
        mine = mine.filter(pl.col("stage") == stage)
    compute = events.filter(~pl.col("category").is_in([*COMMUNICATION, *COPY]))
    parts = length_within(merge(mine, _KEY), compute, ["rank"], name="hidden_ns")
    return parts.group_by(_KEY).agg(
        communication_ns=pl.col("dur_ns").sum(),
        exposed_communication_ns=(pl.col("dur_ns") - pl.col("hidden_ns")).sum(),
    )
