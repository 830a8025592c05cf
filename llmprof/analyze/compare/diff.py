"""Comparison of two runs: their timelines part by part, or their profiles of Nsight Compute kernel by kernel."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from llmprof.analyze.compare.story import run_names
from llmprof.analyze.compare.times import KEYS, diff_events, diff_times
from llmprof.analyze.ncu.speed_of_light import speed_of_light
from llmprof.errors import AnalysisError
from llmprof.metrics.data import Metrics
from llmprof.trace import Trace

_TYPES = {"bound": pl.String, "stall": pl.String}

_MEASURES = {
    "duration_ns": "ns",
    "dram_bytes": "dram_bytes",
    "flops": "flops",
    "compute_pct": "compute_pct",
    "memory_pct": "memory_pct",
    "bound": "bound",
    "stall": "stall",
}
"""Columns of ``speed_of_light`` that are compared, and their names behind ``a_`` and ``b_``."""


def diff_reports(a: Metrics, b: Metrics, *, tolerance: float = 0.05) -> pl.DataFrame:
    """What changed from one profile of kernels to another.

    Launches are the same if they have the same kernel name, grid and block and are the n-th of these in their profile;
    where a grid or block changed, the n-th launches of the same name are compared. Where a report does not name its
    device, only durations are.

    Parameters
    ----------
    a, b : Metrics
        What ``llmprof.read_metrics`` read; ``a`` is the reference.
    tolerance : float
        Change of the duration relative to ``a`` up to which the status is ``same``.

    Returns
    -------
    polars.DataFrame
        ``kernel_name, occurrence`` (from 0), ``a_kernel_id, b_kernel_id`` (null where the other profile alone has the
        launch), ``a_ns, b_ns, delta_ns, ratio`` (duration), and with ``a_`` and ``b_`` in front ``dram_bytes`` (B),
        ``flops``, ``compute_pct, memory_pct`` (% of the peak), ``bound`` and ``stall`` (as
        :func:`~llmprof.analyze.speed_of_light` gives them; null where not measured), ``same_launch`` (whether grid and
        block agree) and ``status`` (faster, slower, same, only_a, only_b). The largest change first.

    Raises
    ------
    AnalysisError
        The tolerance is negative.
    """
    if tolerance < 0:
        raise AnalysisError(f"the tolerance is {tolerance}", expected="a share of at least 0, such as 0.05")
    left, right = _launches(a, "a"), _launches(b, "b")
    exact = left.join(right, on=["kernel_name", "grid", "block", "same"], how="inner").with_columns(
        same_launch=pl.lit(value=True)
    )
    rest = [
        side.join(exact, on=f"{name}_kernel_id", how="anti").with_columns(
            nth=pl.int_range(pl.len()).over("kernel_name")
        )
        for side, name in ((left, "a"), (right, "b"))
    ]
    others = (
        rest[0]
        .join(rest[1].drop("grid", "block", "same"), on=["kernel_name", "nth"], how="full", coalesce=True)
        .with_columns(same_launch=pl.lit(value=False))
    )
    both = pl.concat([exact, others.drop("nth")], how="diagonal_relaxed")
    before, after = pl.col("a_ns"), pl.col("b_ns")
    status = (
        pl.when(pl.col("b_kernel_id").is_null())
        .then(pl.lit("only_a"))
        .when(pl.col("a_kernel_id").is_null())
        .then(pl.lit("only_b"))
        .when(after > before * (1 + tolerance))
        .then(pl.lit("slower"))
        .when(after < before * (1 - tolerance))
        .then(pl.lit("faster"))
        .otherwise(pl.lit("same"))
    )
    measures = [f"{side}_{name}" for name in list(_MEASURES.values())[1:] for side in ("a", "b")]
    place = pl.coalesce("a_kernel_id", "b_kernel_id")
    return (
        both.with_columns(
            delta_ns=after - before, ratio=pl.when(before > 0).then(after / before), status=status, _place=place
        )
        .sort("_place", "kernel_name")
        .with_columns(occurrence=pl.int_range(pl.len()).over("kernel_name"))
        .sort(pl.col("delta_ns").abs(), "_place", "kernel_name", descending=[True, False, False], nulls_last=True)
        .select(
            "kernel_name", "occurrence", "a_kernel_id", "b_kernel_id", "a_ns", "b_ns", "delta_ns", "ratio", *measures,
            "same_launch", "status",
        )
    )  # fmt: skip


def _launches(metrics: Metrics, side: str) -> pl.DataFrame:
    """Launches of a profile with what is compared, and the how manieth of its kind each one is."""
    try:
        rows = speed_of_light(metrics).select("kernel_id", *_MEASURES)
    except AnalysisError:  # of a device that the report does not name, only durations are compared
        own = metrics.kernels
        missing = {
            name: pl.lit(None, dtype=_TYPES.get(name, pl.Float64)) for name in _MEASURES if name != "duration_ns"
        }
        rows = own.select("kernel_id", "duration_ns", **missing).select("kernel_id", *_MEASURES)
    launches = metrics.kernels.select("kernel_id", pl.col("kernel_name").fill_null(""), "grid", "block")
    joined = launches.join(rows, on="kernel_id", how="left", maintain_order="left")
    joined = joined.with_columns(same=pl.int_range(pl.len()).over("kernel_name", "grid", "block"))
    names = {name: f"{side}_{short}" for name, short in _MEASURES.items()}
    return joined.rename({**names, "kernel_id": f"{side}_kernel_id"})


def diff(
    a: Trace | Sequence[Trace] | Metrics,
    b: Trace | Sequence[Trace] | Metrics,
    *,
    tolerance: float = 0.05,
    by: str | Sequence[str] = KEYS,
    ranks: Sequence[int] | None = None,
    names: tuple[str, str] | None = None,
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
    ranks : sequence of int, optional
        Ranks whose steps and events count, on both sides; all if not given. Waiting is found with all ranks either way.
    names : (str, str), optional
        What the runs are called; by default as :func:`run_names` calls them.

    Returns
    -------
    polars.DataFrame
        ``level`` (step or recording, part, between: the time to the next step, kernels), ``phase``, ``kind, part``
        (null for kernels), the other columns of ``by`` (null above the kernels), ``a_ns, b_ns, delta_ns`` (ns a step
        and rank), ``ratio``, ``low_ns, high_ns, beyond_noise`` (95 % interval of the change; null for kernels),
        ``a_count, b_count`` (events a step and rank; null above the kernels), ``a_steps, b_steps``, ``status`` and
        ``a_run, b_run`` (what the runs are called). The
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
    times = diff_times(*sides, tolerance=tolerance, ranks=ranks)
    events = diff_events(*sides, tolerance=tolerance, by=by, ranks=ranks)
    first, second = names or run_names(*(side[0] for side in sides))
    labels = [c for c in events.columns[: events.columns.index("a_ns")] if c != "phase"]
    both = pl.concat([times, events.with_columns(level=pl.lit("kernels"))], how="diagonal_relaxed")
    return both.select(
        "level", "phase", "kind", "part", *labels, "a_ns", "b_ns", "delta_ns", "ratio", "low_ns", "high_ns",
        "beyond_noise", "a_count", "b_count", "a_steps", "b_steps", "status", a_run=pl.lit(first), b_run=pl.lit(second),
    )  # fmt: skip
