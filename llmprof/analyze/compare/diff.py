"""How much faster one run is than another, and why."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from llmprof.analyze.compare.events import KEYS, diff_events
from llmprof.analyze.compare.reports import diff_reports
from llmprof.analyze.compare.times import diff_times
from llmprof.errors import AnalysisError
from llmprof.metrics.data import Metrics
from llmprof.trace import Trace


def diff(
    a: Trace | Sequence[Trace] | Metrics,
    b: Trace | Sequence[Trace] | Metrics,
    *,
    tolerance: float = 0.05,
    by: str | Sequence[str] = KEYS,
) -> pl.DataFrame:
    """How much faster a step is in b than in a, which parts of it that is, and which kernels.

    First the time of a step of each phase, then the parts that add up to it (compute by stage, communication split
    into waiting and transfer, copies, idle time by cause: :func:`diff_times`), and below the events of the device
    aligned by their labels (:func:`diff_events`). Without steps whole recordings are compared. Two profiles of
    Nsight Compute are compared kernel by kernel (:func:`diff_reports`).

    Parameters
    ----------
    a, b : Trace, sequence of Trace, or Metrics
        The runs; ``a`` is the reference. Several traces are repeats of one run and give the interval.
    tolerance : float
        Change relative to ``a`` up to which the status is ``same`` (0.05: 5 %).
    by : str or sequence of str
        Labels of :func:`~llmprof.analyze.attribute` by which events are aligned below the phase, such as ``("layer",
        "stage")`` or ``"name"``.

    Returns
    -------
    polars.DataFrame
        ``level`` (step or recording, part, between: the time to the next step, kernels), ``phase``, ``kind, part``
        (null for kernels), the other columns of ``by`` (null above the kernels), ``a_ns, b_ns, delta_ns`` (ns a step
        and rank), ``ratio``, ``low_ns, high_ns, beyond_noise`` (95 % interval of the change; null for kernels),
        ``a_count, b_count`` (events a step and rank; null above the kernels), ``a_steps, b_steps`` and ``status``. The
        rows of level ``part`` add up to the one of level ``step`` of their phase; those of ``kernels`` need not, since
        kernels overlap. For profiles of Nsight Compute the columns of :func:`diff_reports`.

    Raises
    ------
    NotCapturedError
        A trace holds no device activity and no operators.
    AnalysisError
        The tolerance is negative, ``by`` names an unknown column, or a trace is compared with a profile of kernels.

    Examples
    --------
    >>> import llmprof
    >>> from llmprof.analyze import diff
    >>> eager, graphs = llmprof.sample("torch_tp1_eager"), llmprof.sample("torch_tp1_cudagraph")
    >>> step = diff(eager, graphs).filter(level="step", phase="decode").row(0, named=True)
    >>> print(f"{step['a_ns'] / 1e6:.1f} -> {step['b_ns'] / 1e6:.2f} ms")
    33.0 -> 3.85 ms
    """
    if isinstance(a, Metrics) or isinstance(b, Metrics):
        if isinstance(a, Metrics) and isinstance(b, Metrics):
            return diff_reports(a, b, tolerance=tolerance)
        raise AnalysisError(
            "a trace cannot be compared with a profile of single kernels", expected="two traces or two Metrics"
        )
    sides = [[side] if isinstance(side, Trace) else list(side) for side in (a, b)]
    times = diff_times(*sides, tolerance=tolerance)
    events = diff_events(*sides, tolerance=tolerance, by=by)
    labels = [c for c in events.columns[: events.columns.index("a_ns")] if c != "phase"]
    both = pl.concat([times, events.with_columns(level=pl.lit("kernels"))], how="diagonal_relaxed")
    return both.select(
        "level", "phase", "kind", "part", *labels, "a_ns", "b_ns", "delta_ns", "ratio", "low_ns", "high_ns",
        "beyond_noise", "a_count", "b_count", "a_steps", "b_steps", "status",
    )  # fmt: skip
