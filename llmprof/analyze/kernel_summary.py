"""Count and time of each kernel, as a whole or within groups."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from llmprof.analyze._labelled import labelled
from llmprof.analyze._memo import per_trace
from llmprof.trace import Trace


@per_trace
def kernel_summary(trace: Trace, *, by: Sequence[str] = ()) -> pl.DataFrame:
    """Time of each kernel (and kind of copy) by name.

    Parameters
    ----------
    trace : Trace
        Any trace with device activity; operators of the host stand in on a trace of a run on CPU.
    by : sequence of str
        Columns of :func:`~llmprof.analyze.attribute` to group by first, such as ``("rank",)`` or ``("phase",)``.

    Returns
    -------
    polars.DataFrame
        ``<by...>, name, category, count``, ``total_ns`` (sum of durations), ``share`` (of the summed duration of
        all events of the group; overlapping kernels count in full), ``mean_ns, median_ns, min_ns, max_ns`` and
        ``std_ns`` (sample standard deviation, null for a single run), in ns. Groups in order, nulls last, in each
        the longest first.

    Raises
    ------
    NotCapturedError
        The trace holds no device activity and no operators.
    AnalysisError
        ``by`` names an unknown column.
    """
    return kernel_summary_of(labelled(trace, by), by)


def kernel_summary_of(events: pl.DataFrame, by: Sequence[str] = ()) -> pl.DataFrame:
    """The analysis of :func:`kernel_summary` on a frame of device events.

    Parameters
    ----------
    events : polars.DataFrame
        ``dur_ns`` (ns), ``name``, ``category`` and the columns of ``by``.
    by : sequence of str
        Columns to group by first.

    Returns
    -------
    polars.DataFrame
        As :func:`kernel_summary` returns it.
    """
    groups = [column for column in by if column not in ("name", "category")]
    dur = pl.col("dur_ns")
    texts = pl.col("name", "category")
    summary = (
        events.select(*groups, "dur_ns", texts.cast(pl.Categorical))  # groups by number, several times as fast
        .group_by(*groups, "name", "category")
        .agg(
            count=pl.len(),
            total_ns=dur.sum(),
            mean_ns=dur.mean(),
            median_ns=dur.median(),
            min_ns=dur.min(),
            max_ns=dur.max(),
            std_ns=dur.std(),
        )
        .with_columns(texts.cast(pl.String))
    )
    whole = pl.col("total_ns").sum()
    whole = whole.over(groups) if groups else whole
    order = [*groups, "total_ns", "name", "category"]
    return summary.sort(order, descending=[name == "total_ns" for name in order], nulls_last=True).select(
        *groups,
        "name",
        "category",
        "count",
        "total_ns",
        pl.when(whole > 0).then(pl.col("total_ns") / whole).alias("share"),
        "mean_ns",
        "median_ns",
        "min_ns",
        "max_ns",
        "std_ns",
    )
