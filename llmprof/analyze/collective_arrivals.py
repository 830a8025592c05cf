"""Who is late at the collectives, and who waits for it."""

from __future__ import annotations

import polars as pl

from llmprof.analyze._memo import per_trace
from llmprof.analyze.collectives import collectives
from llmprof.trace import Trace


@per_trace
def collective_arrivals(trace: Trace) -> pl.DataFrame:
    """How late each rank arrives at the collectives that it takes part in.

    Parameters
    ----------
    trace : Trace
        A trace with collectives of several ranks.

    Returns
    -------
    polars.DataFrame
        As :func:`collective_arrivals_of` returns it.

    Raises
    ------
    NotCapturedError
        The trace has no device activity and no operators, so communication was not recorded.
    """
    return collective_arrivals_of(collectives(trace))


def lateness(calls: pl.DataFrame) -> pl.DataFrame:
    """Rows of :func:`~llmprof.analyze.collectives` with ``late_ns``: how long after the first rank each one starts.

    It is null where a call was not seen on all of its ranks. Clocks are corrected.
    """
    start = pl.col("start_ns") - pl.col("clock_offset_ns")
    complete = pl.col("arrival_skew_ns").is_not_null() & pl.col("call").is_not_null()
    return calls.with_columns(late_ns=pl.when(complete).then(start - start.min().over("call")))


def collective_arrivals_of(calls: pl.DataFrame) -> pl.DataFrame:
    """The analysis of :func:`collective_arrivals` on rows of :func:`~llmprof.analyze.collectives`.

    Parameters
    ----------
    calls : polars.DataFrame
        ``rank, call, kind, start_ns, clock_offset_ns, arrival_skew_ns, last_rank, wait_ns, transfer_ns``; all rows of
        a call.

    Returns
    -------
    polars.DataFrame
        ``kind, rank, calls`` (calls that were seen on all of their ranks; the others do not count), ``last`` (how
        often this rank was the last to arrive), ``share_last`` (of ``calls``), ``late_median_ns, late_p90_ns,
        late_max_ns`` (start after that of the first rank), ``wait_ns, transfer_ns`` (sums). By kind and rank.
    """
    late = pl.col("late_ns")
    return (
        lateness(calls)
        .filter(late.is_not_null())
        .group_by("kind", "rank")
        .agg(
            calls=pl.len(),
            last=(pl.col("last_rank") == pl.col("rank")).sum(),
            late_median_ns=late.median(),
            late_p90_ns=late.quantile(0.9, "linear"),
            late_max_ns=late.max(),
            wait_ns=pl.col("wait_ns").sum(),
            transfer_ns=pl.col("transfer_ns").sum(),
        )
        .with_columns(share_last=pl.col("last") / pl.col("calls"))
        .select(
            "kind", "rank", "calls", "last", "share_last", "late_median_ns", "late_p90_ns", "late_max_ns", "wait_ns",
            "transfer_ns",
        )
        .sort("kind", "rank")
    )  # fmt: skip
