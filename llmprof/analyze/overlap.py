"""How much of the communication and of the copies hides behind compute, and how long the device is idle."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from llmprof.analyze._labelled import labelled
from llmprof.analyze._memo import per_trace
from llmprof.analyze.intervals import length_within, union_lengths
from llmprof.errors import AnalysisError
from llmprof.trace import Trace

COMMUNICATION = ("collective",)
COPY = ("copy", "fill")


@per_trace
def overlap(trace: Trace, *, by: Sequence[str] = ("rank", "step")) -> pl.DataFrame:
    """Compute, communication, copies and idle time of the device as lengths of unions of intervals.

    Kernels that run at the same time count once in a class. Communication is what has the category ``collective``;
    copies are ``copy`` and ``fill``, be it a copy engine or a kernel that moves the data; compute is all the rest.

    Parameters
    ----------
    trace : Trace
        Any trace with device activity; operators of the host stand in on a trace of a run on CPU.
    by : sequence of str
        Columns of :func:`~llmprof.analyze.attribute` that part the events into groups, ``rank`` among them. Without
        ``step`` the idle time between steps counts. A rank that drives several devices is busy while any of them
        is; add ``device`` to look at each.

    Returns
    -------
    polars.DataFrame
        ``<by...>`` and, in ns:

        - ``total_ns``: from the first start to the last end of the group, without ``other_ns``;
        - ``compute_ns, communication_ns, copy_ns``: union of each class;
        - ``exposed_communication_ns, hidden_communication_ns``: communication without and with compute beside it;
        - ``exposed_copy_ns``: copies without compute or communication beside them;
        - ``idle_ns``: nothing of the rank runs. Groups that interleave share the gaps, so theirs do not add up;
        - ``other_ns``: only events of other groups of the rank run between the group's first start and last end.

        ``compute_ns + exposed_communication_ns + exposed_copy_ns + idle_ns = total_ns``. The columns of copies are
        null where the capture did not record copies. Sorted by ``by``, nulls last.

    Raises
    ------
    NotCapturedError
        The trace holds no device activity and no operators.
    AnalysisError
        ``by`` lacks ``rank`` or names an unknown column.
    """
    events = labelled(trace, by)
    recorded = "copies" in trace.tables or (events["source"] == "op").any()
    return overlap_of(events, by, copies_recorded=recorded)


def overlap_of(
    events: pl.DataFrame, by: Sequence[str] = ("rank", "step"), *, copies_recorded: bool = True
) -> pl.DataFrame:
    """The analysis of :func:`overlap` on a frame of device events.

    Parameters
    ----------
    events : polars.DataFrame
        ``start_ns, dur_ns`` (ns), ``category`` and the columns of ``by``.
    by : sequence of str
        Columns that part the events into groups, ``rank`` among them.
    copies_recorded : bool
        Whether copies would be among the events if there had been any.

    Returns
    -------
    polars.DataFrame
        As :func:`overlap` returns it.
    """
    if "rank" not in by:
        raise AnalysisError(
            f"overlap by {list(by)} would mix the ranks",
            expected="'rank' among the columns of by: each rank has a device of its own",
        )
    communication = pl.col("category").is_in(COMMUNICATION).fill_null(value=False)
    copy = pl.col("category").is_in(COPY).fill_null(value=False)
    lengths = union_lengths(
        events,
        by,
        compute_ns=~(communication | copy),
        communication_ns=communication,
        copy_ns=copy,
        _without_copies=~copy,
        _busy=pl.lit(True),
    )
    lengths = lengths.with_columns(start_ns="first_ns", dur_ns=pl.col("last_ns") - pl.col("first_ns"))
    timeline = [column for column in ("rank", "device") if column in by]
    if set(timeline) == set(by):
        lengths = lengths.with_columns(other_ns=pl.lit(0, dtype=pl.Int64))
    else:
        lengths = length_within(lengths, events, timeline, name="_rank_busy")
        lengths = lengths.with_columns(other_ns=pl.col("_rank_busy") - pl.col("_busy"))
    copies = pl.when(pl.lit(copies_recorded))
    return lengths.select(
        *by,
        (pl.col("dur_ns") - pl.col("other_ns")).alias("total_ns"),
        "compute_ns",
        "communication_ns",
        copies.then("copy_ns").alias("copy_ns"),
        (pl.col("_without_copies") - pl.col("compute_ns")).alias("exposed_communication_ns"),
        (pl.col("compute_ns") + pl.col("communication_ns") - pl.col("_without_copies")).alias(
            "hidden_communication_ns"
        ),
        copies.then(pl.col("_busy") - pl.col("_without_copies")).alias("exposed_copy_ns"),
        (pl.col("dur_ns") - pl.col("other_ns") - pl.col("_busy")).alias("idle_ns"),
        "other_ns",
    )
