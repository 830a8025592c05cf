"""Which operator of the host ran which kernels."""

from __future__ import annotations

import polars as pl

from llmprof.analyze.analysis import Analysis
from llmprof.analyze.intervals.nesting import innermost
from llmprof.analyze.layers.attribution import labelled
from llmprof.analyze.memo import per_trace
from llmprof.trace import Trace


@per_trace
def ops_to_kernels(trace: Trace) -> pl.DataFrame:
    """Kernels and copies of each operator and the shapes it was called with.

    An event belongs to the operator that it carries the id of, else to the innermost operator of the launching
    thread during the launch. Under CUDA graphs all kernels of a graph belong to whatever replayed it, if anything.

    Parameters
    ----------
    trace : Trace
        A trace with kernels and operators.

    Returns
    -------
    polars.DataFrame
        ``rank, op`` (null where no operator was recorded for it), ``shapes`` (JSON, null where not recorded),
        ``kernel, category, match`` (how the operator was found: ``id``, ``time`` or null), ``count``, ``total_ns``
        (sum of durations), ``mean_ns``, and ``share`` (of the summed duration of all the rank's kernels and
        copies). By rank, the longest first.

    Raises
    ------
    NotCapturedError
        The trace holds no kernels or no operators.

    Examples
    --------
    >>> analyze.ops_to_kernels(trace).columns[:5]
    ['rank', 'op', 'shapes', 'kernel', 'category']
    """
    trace.table("kernels")
    return ops_to_kernels_of(labelled(trace, ()), trace.ops)


def ops_to_kernels_of(events: pl.DataFrame, ops: pl.DataFrame) -> pl.DataFrame:
    """The analysis of :func:`ops_to_kernels` on frames.

    Parameters
    ----------
    events : polars.DataFrame
        Device events: ``rank, dur_ns, name, source, category, op_id, launch_start_ns, launch_thread``.
    ops : polars.DataFrame
        Operators: ``rank, thread, start_ns, dur_ns, name, kind, op_id, shapes``.

    Returns
    -------
    polars.DataFrame
        As :func:`ops_to_kernels` returns it.
    """
    texts = ["op", "shapes", "kernel", "category", "match"]
    summary = (
        operators_of(events.filter(pl.col("source") != "op"), ops)
        .rename({"name": "kernel"})
        .with_columns(pl.col(texts).cast(pl.Categorical))  # groups by number, five times as fast
        .group_by("rank", *texts)
        .agg(count=pl.len(), total_ns=pl.col("dur_ns").sum(), mean_ns=pl.col("dur_ns").mean())
        .with_columns(pl.col(texts).cast(pl.String))
    )
    whole = pl.col("total_ns").sum().over("rank")
    order = ["rank", "total_ns", "op", "kernel", "shapes", "category", "match"]
    return summary.with_columns(share=pl.when(whole > 0).then(pl.col("total_ns") / whole)).sort(
        order, descending=[name == "total_ns" for name in order], nulls_last=True
    )


def operators_of(events: pl.DataFrame, ops: pl.DataFrame) -> pl.DataFrame:
    """Device events in their order with the operator that ran them.

    Parameters
    ----------
    events : polars.DataFrame
        Device events: ``rank, op_id, launch_start_ns, launch_thread`` and any others.
    ops : polars.DataFrame
        Operators: ``rank, thread, start_ns, dur_ns, name, kind, op_id, shapes``.

    Returns
    -------
    polars.DataFrame
        The events with ``op, shapes`` and ``match`` (``id``, ``time`` or null).
    """
    ops = ops.filter(pl.col("kind") == "op").with_columns(pl.col("thread").fill_null(-1))
    numbered = events.with_row_index("_row")
    by_id = numbered.join(
        ops.sort("start_ns", maintain_order=True).select("rank", "op_id", op="name", shapes="shapes"),
        on=["rank", "op_id"],
        how="left",
        maintain_order="left_right",
    )
    if by_id.height > numbered.height:  # one id, several operators: the last to begin is the innermost
        by_id = by_id.unique("_row", keep="last", maintain_order=True)
    found = by_id.filter(pl.col("op").is_not_null()).with_columns(match=pl.lit("id"))
    if found.height == numbered.height:
        return found.drop("_row")
    rest = by_id.filter(pl.col("op").is_null()).drop("op", "shapes")
    launches = rest.with_columns(thread=pl.col("launch_thread").fill_null(-1))
    at = innermost(
        launches.filter(pl.col("launch_start_ns").is_not_null()),
        ops,
        ["rank", "thread"],
        at="launch_start_ns",
        name="_op",
    )
    by_time = rest.join(at.select("_row", "_op"), on="_row", how="left", maintain_order="left").join(
        ops.select(op="name", shapes="shapes").with_row_index("_op"), on="_op", how="left", maintain_order="left"
    )
    by_time = by_time.drop("_op").with_columns(match=pl.when(pl.col("op").is_not_null()).then(pl.lit("time")))
    return pl.concat([found, by_time]).sort("_row").drop("_row")


ANALYSIS = Analysis(
    function=ops_to_kernels,
    question="Which operator launched which kernels, with which shapes?",
    help="operators of the host, their kernels and shapes",
    view="ops",
    columns=("rank", "total_ns", "share", "count", "op", "kernel", "shapes"),
    reported=True,
    section="kernels",
)
