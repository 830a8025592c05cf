"""Which kinds of work run beside which, for how long, and how many multiprocessors their grids
can fill.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import polars as pl

from llmprof.analyze.catalog import Analysis
from llmprof.analyze.operator_times import refuse_samples
from llmprof.errors import AtLeastOne, LlmprofError
from llmprof.theory import hardware
from llmprof.trace import Trace

_REST = "(others)"


@Analysis(
    question="Which kernels run beside which?",
    help="pairs of kinds of work, and the time in which both run",
    view="concurrency",
    recorded="device activity or operators",
)
def concurrency(
    trace: Trace,
    *,
    by: Literal["category", "stage", "name", "stream"] = "category",
    top: AtLeastOne = 40,
) -> pl.DataFrame:
    """Time in which two kinds of work run side by side on a device, as a matrix in rows.

    Parameters
    ----------
    trace : Trace
        A trace with device activity or operators.
    by : {"category", "stage", "name", "stream"}
        What makes a kind of work. An event without one counts as ``(none)``.
    top : int
        Kinds that take the most time and have rows of their own; all others are one kind,
        ``(others)``.

    Returns
    -------
    polars.DataFrame
        ``rank, device, first_name, second_name`` (two kinds, each pair once; the same kind twice
        for events of one kind beside each other), ``together_ns`` (time in which both run),
        ``first_ns, second_ns`` (time in which each runs), ``first_share, second_share`` (of that
        time, together) and ``first_sms, second_sms``: the greatest share of the multiprocessors
        that the grids of the kind's kernels can fill, one block on each, as a mean over their time.
        Two kinds whose shares add up to more than 1 compete for multiprocessors. Null without grids
        or an unknown device. Only pairs with time together, by device, the longest first.

    Raises
    ------
    NotCapturedError
        The trace holds no device activity or operators.
    AnalysisError
        ``by`` names an unknown column.

    Examples
    --------
    >>> frame = analyze.concurrency(trace)
    """
    refuse_samples(trace, "what ran beside what")
    events = trace.events.filter(pl.col("dur_ns") > 0)
    events = _with_filled(
        trace, events.with_columns(_kind=pl.col(by).cast(pl.String).fill_null("(none)"))
    )
    rows = [
        (rank, device, *pair)
        for (rank, device), part in events.partition_by(
            "rank", "device", as_dict=True, maintain_order=True
        ).items()
        for pair in _pairs(part, top)
    ]
    found = pl.DataFrame(rows, schema=_PAIRS, orient="row")
    order = ["rank", "device", "together_ns", "first_name", "second_name"]
    found = found.sort(order, descending=[name == "together_ns" for name in order])
    return found.with_columns(
        first_share=pl.col("together_ns") / pl.col("first_ns"),
        second_share=pl.col("together_ns") / pl.col("second_ns"),
    ).select(pl.exclude("first_sms", "second_sms"), "first_sms", "second_sms")


_PAIRS = {
    "rank": pl.Int32,
    "device": pl.Int32,
    "first_name": pl.String,
    "second_name": pl.String,
    "together_ns": pl.Int64,
    "first_ns": pl.Int64,
    "second_ns": pl.Int64,
    "first_sms": pl.Float64,
    "second_sms": pl.Float64,
}


def _pairs(events: pl.DataFrame, top: int) -> list[tuple[object, ...]]:
    """Pairs of kinds of one device with time together."""
    time = (
        events.group_by("_kind")
        .agg(pl.sum("dur_ns"))
        .sort("dur_ns", "_kind", descending=[True, False])
    )
    rest = events["_kind"].is_in(time["_kind"][top:].implode())
    events = events.with_columns(_kind=pl.when(rest).then(pl.lit(_REST)).otherwise("_kind"))
    known = pl.col("_filled").is_not_null()
    filled = (pl.col("_filled") * pl.col("dur_ns")).sum() / pl.col("dur_ns").filter(known).sum()
    kinds = events.group_by("_kind").agg(filled.fill_nan(None)).sort("_kind")
    names, sms = kinds["_kind"].to_list(), kinds["_filled"].to_list()
    code = pl.Series(names, dtype=pl.String).search_sorted(events["_kind"]).to_numpy()
    start, end = events["start_ns"].to_numpy(), (events["start_ns"] + events["dur_ns"]).to_numpy()
    at = np.concatenate([start, end])
    order = np.argsort(at, kind="stable")
    lasts = np.diff(at[order], append=at[order[-1:]])
    changes = np.zeros((len(at), len(names)), dtype=np.int32)
    changes[np.arange(len(at)), np.tile(code, 2)] = np.repeat([1, -1], len(start))
    running = changes[order].cumsum(axis=0)
    some, several = running > 0, lasts @ (running > 1)
    together = [
        lasts[on] @ some[on] for on in some.T
    ]  # integers: exact, and without the threads of a BLAS
    return [
        (names[i], names[j], int(both), int(together[i][i]), int(together[j][j]), sms[i], sms[j])
        for i in range(len(names))
        for j in range(i, len(names))
        if (both := several[i] if i == j else together[i][j]) > 0
    ]


def _with_filled(trace: Trace, events: pl.DataFrame) -> pl.DataFrame:
    """Events with the share of the multiprocessors that the blocks of each can fill, where it is
    known.
    """
    try:
        sms = hardware.device(str(trace.meta.get("device"))).multiprocessors
    except LlmprofError:
        sms = None
    if sms is None or not trace.has("kernels"):
        return events.with_columns(_filled=pl.lit(None, pl.Float64))
    key = ["rank", "device", "stream", "start_ns", "name"]
    blocks = pl.col("grid_x").cast(pl.Float64) * pl.col("grid_y") * pl.col("grid_z")
    grids = trace.kernels.select(*key, _filled=(blocks / sms).clip(upper_bound=1)).unique(key)
    return events.join(grids, on=key, how="left", nulls_equal=True, maintain_order="left")
