"""Device events of a part of a run: of some labels, in a window of time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import polars as pl

from llmprof.analyze.attribution import attribute
from llmprof.errors import AnalysisError
from llmprof.trace import Trace

LABELS: Final = ("rank", "device", "stream", "step", "phase", "layer", "stage", "category", "source", "name")
"""Columns of :func:`~llmprof.analyze.attribution.attribute` that say what and where an event is."""

Where = Mapping[str, int | str | None]
Window = tuple[float, float]


def events_within(trace: Trace, *, where: Where | None = None, window: Window | None = None) -> pl.DataFrame:
    """Rows of :func:`~llmprof.analyze.attribution.attribute` that have some labels and touch a window.

    Parameters
    ----------
    trace : Trace
        Any trace with device activity; operators of the host stand in on a trace of a run on CPU.
    where : mapping, optional
        Value by label (``rank, device, stream, step, phase, layer, stage, category, source, name``); None stands for
        any value.
    window : (start_ns, end_ns), optional
        Keeps events of which some part lies in it, and those without duration that start in it (ns from the start
        of the trace).

    Returns
    -------
    polars.DataFrame
        The columns of :func:`~llmprof.analyze.attribution.attribute`, in its order.

    Raises
    ------
    NotCapturedError
        The trace holds no device activity and no operators.
    AnalysisError
        There is no such label, or the window ends before it starts.
    """
    check(where, window)
    return attribute(trace).filter(conditions(where, window))


def check(where: Where | None, window: Window | None) -> None:
    """Check labels and window.

    Raises
    ------
    AnalysisError
        A label is unknown, or the window ends before it starts.
    """
    if unknown := [name for name in where or {} if name not in LABELS]:
        raise AnalysisError(f"device events have no label {unknown}", expected=f"some of {list(LABELS)}")
    if window is not None and window[1] < window[0]:
        raise AnalysisError(f"the window {list(window)} ends before it starts", expected="(start_ns, end_ns)")


def conditions(where: Where | None, window: Window | None) -> list[pl.Expr]:
    """What an event of these labels and this window fulfils."""
    kept = [pl.col(name) == value for name, value in (where or {}).items() if value is not None]
    if window is not None:
        start, end = window
        ends = pl.col("start_ns") + pl.col("dur_ns")
        kept += [pl.col("start_ns") < end, (ends > start) | (pl.col("start_ns") == start)]
    return kept or [pl.lit(value=True)]
