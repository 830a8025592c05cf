"""Events of two runs compared by phase, stage and kernel category."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from llmprof.analyze.compare.times import has_steps
from llmprof.analyze.intervals.intervals import union_length
from llmprof.analyze.layers.attribution import labelled
from llmprof.errors import AnalysisError
from llmprof.trace import Trace

KEYS = ("phase", "stage", "category")

RANKS_APART = 1 << 20
"""Ranks of one repeat are so far from those of the next."""


def diff_events(
    a: Trace | Sequence[Trace],
    b: Trace | Sequence[Trace],
    *,
    tolerance: float = 0.05,
    by: str | Sequence[str] = KEYS,
) -> pl.DataFrame:
    """Device time per step and rank of two runs, aligned by phase, stage and category.

    The time of a step is the union of its events of one stage and category; a step without any counts as zero. Of
    each rank the median over the steps of the phase is taken, and of the ranks and repeats the mean. Events outside
    steps are left out; where not all traces have steps, whole recordings are compared, with all their events.

    Parameters
    ----------
    a, b : Trace or sequence of Trace
        The runs, one trace or several repeats each; ``a`` is the reference.
    tolerance : float
        Change relative to ``a`` up to which the status is ``same`` (0.05: 5 %).
    by : str or sequence of str
        Labels of :func:`~llmprof.analyze.attribute` by which events are aligned, such as ``("layer", "stage")`` or
        ``"name"``. The phase is always one of them, and the first.

    Returns
    -------
    polars.DataFrame
        The columns of ``by`` (``phase, stage, category``); ``a_ns, b_ns`` (device time per step and rank, ns),
        ``delta_ns`` (b - a), ``ratio`` (b / a, null where a is 0 or unknown); ``a_count, b_count`` (events per step
        and rank, taken likewise); ``a_steps, b_steps`` (steps of the phase over all ranks); ``status`` (faster,
        slower, same: b against a; only_a, only_b: no event of the other trace). Times and counts are null where that
        trace has no step of the phase. By phase, the largest change first.

    Raises
    ------
    NotCapturedError
        A trace holds no device activity and no operators.
    AnalysisError
        The tolerance is negative, or ``by`` names an unknown column.

    Examples
    --------
    >>> change = analyze.diff(llmprof.sample("torch_tp1_eager"), trace)
    >>> change.height > 0
    True
    """
    labels = [by] if isinstance(by, str) else list(by)
    keys = ["phase", *(label for label in labels if label != "phase")]
    sides = [[side] if isinstance(side, Trace) else list(side) for side in (a, b)]
    whole = not all(has_steps(trace) for side in sides for trace in side)
    before, after = (_events(side, keys, whole=whole) for side in sides)
    return diff_of(before, after, tolerance=tolerance, by=keys)


def _events(repeats: Sequence[Trace], keys: list[str], *, whole: bool) -> pl.DataFrame:
    """Labelled events of all repeats, each with ranks of its own; of whole recordings as one step without a phase."""
    parts = []
    for repeat, trace in enumerate(repeats):
        events = labelled(trace, ["step", *keys]).with_columns(pl.col("rank") + RANKS_APART * repeat)
        if whole:
            events = events.with_columns(
                step=pl.lit(0, dtype=pl.Int32), **{"phase": pl.lit(None, dtype=pl.String)} if "phase" in keys else {}
            )
        parts.append(events)
    return pl.concat(parts, how="diagonal_relaxed")


def diff_of(a: pl.DataFrame, b: pl.DataFrame, *, tolerance: float = 0.05, by: Sequence[str] = KEYS) -> pl.DataFrame:
    """The analysis of :func:`diff_events` on two frames of device events.

    Parameters
    ----------
    a, b : polars.DataFrame
        ``rank, step, start_ns, dur_ns`` and the columns of ``by``.
    tolerance : float
        Change relative to ``a`` up to which the status is ``same``.
    by : sequence of str
        Columns by which events are aligned, the phase first.

    Returns
    -------
    polars.DataFrame
        As :func:`diff_events` returns it.
    """
    if tolerance < 0:
        raise AnalysisError(f"the tolerance is {tolerance}", expected="a share of at least 0, such as 0.05")
    keys = list(by)
    both = _per_step(a, "a", keys).join(_per_step(b, "b", keys), on=keys, how="full", coalesce=True, nulls_equal=True)
    for side, events in (("a", a), ("b", b)):
        steps = _steps(events).group_by("phase").agg(pl.len().alias(f"{side}_steps"))
        both = both.join(steps, on="phase", how="left", nulls_equal=True)
        none = pl.when(pl.col(f"{side}_steps") > 0).then(0.0)  # the phase ran and had no such event
        both = both.with_columns(
            pl.col(f"{side}_ns").is_not_null().alias(f"_in_{side}"),
            pl.col(f"{side}_ns", f"{side}_count").fill_null(none),
            pl.col(f"{side}_steps").fill_null(0),
        )
    a_ns, b_ns = pl.col("a_ns"), pl.col("b_ns")
    status = (
        pl.when(~pl.col("_in_b"))
        .then(pl.lit("only_a"))
        .when(~pl.col("_in_a"))
        .then(pl.lit("only_b"))
        .when(b_ns > a_ns * (1 + tolerance))
        .then(pl.lit("slower"))
        .when(b_ns < a_ns * (1 - tolerance))
        .then(pl.lit("faster"))
        .otherwise(pl.lit("same"))
    )
    return (
        both.with_columns(delta_ns=b_ns - a_ns, ratio=pl.when(a_ns > 0).then(b_ns / a_ns), status=status)
        .sort(
            "phase",
            pl.col("delta_ns").abs(),
            *keys[1:],
            descending=[False, True, *(False for _ in keys[1:])],
            nulls_last=True,
        )
        .select(*keys, "a_ns", "b_ns", "delta_ns", "ratio", "a_count", "b_count", "a_steps", "b_steps", "status")
    )


def _steps(events: pl.DataFrame) -> pl.DataFrame:
    return events.filter(pl.col("step").is_not_null()).select("rank", "step", "phase").unique()


def _per_step(events: pl.DataFrame, side: str, keys: list[str]) -> pl.DataFrame:
    """Time and events per step: median over the steps of each rank, mean over the ranks."""
    within = events.filter(pl.col("step").is_not_null()).select("rank", "step", *keys, "start_ns", "dur_ns")
    texts = [key for key in keys if within.schema[key] == pl.String]
    within = within.with_columns(pl.col(texts).cast(pl.Categorical))  # groups by number, five times as fast
    cell = ["rank", "step", *keys]
    counts = within.group_by(cell).agg(count=pl.len())
    cells = union_length(within, cell).join(counts, on=cell, nulls_equal=True)
    every = _steps(within).join(within.select(keys).unique(), on="phase", nulls_equal=True)
    padded = every.join(cells, on=cell, how="left", nulls_equal=True).with_columns(
        pl.col("busy_ns", "count").fill_null(0)
    )
    return (
        padded.group_by("rank", *keys)
        .agg(pl.col("busy_ns", "count").median())
        .group_by(keys)
        .agg(pl.col("busy_ns").mean().alias(f"{side}_ns"), pl.col("count").mean().alias(f"{side}_count"))
        .with_columns(pl.col(texts).cast(pl.String))
    )
