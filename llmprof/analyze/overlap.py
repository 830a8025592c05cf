"""Overlap: hidden and exposed communication and copies, compute, and idle time of the device."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from llmprof.analyze.catalog import Analysis
from llmprof.analyze.collectives.collectives import collectives
from llmprof.analyze.edge import events_of_steps, whole_steps
from llmprof.analyze.operator_times import refuse_samples
from llmprof.errors import AnalysisError, Columns, Window, listed, refuse_unknown
from llmprof.label.intervals import clip_intervals, length_within, union_lengths
from llmprof.trace import Trace

COMMUNICATION = ("collective",)
COPY = ("copy", "fill")


def transferring() -> pl.Expr:
    """Whether an event is a copy or fill of a copy engine, or of the host: kernels that copy are
    compute.
    """
    return (pl.col("category").is_in(COPY) & (pl.col("source") != "kernel")).fill_null(False)


EXPOSED = ("exposed_wait_ns", "exposed_transfer_ns", "exposed_unknown_ns")
"""Parts of exposed communication, which add up to it."""


@Analysis(
    question="How much communication is hidden behind compute?",
    help="compute, exposed and hidden communication, copies and idle time",
    view="overlap",
    recorded="device activity or operators",
    options={"by": ("rank", "step", "phase"), "waits": True},
)
def overlap(
    trace: Trace, *, by: Columns = (), waits: bool = False, window: Window | None = None
) -> pl.DataFrame:
    """Compute, communication, copies and idle time of the device as lengths of unions of intervals.

    Communication is the category ``collective``, copies are the copies and fills of copy engines;
    everything else is compute, kernels that copy or fill too, which take the place of other
    kernels. Events of a class that run at the same time count once.

    Parameters
    ----------
    trace : Trace
        A trace with device activity or operators.
    by : str or sequence of str
        Columns of :func:`~llmprof.analyze.events` that divide the events into groups: rank and step
        if not given. ``rank`` is added in front if it is missing. Without ``step`` the idle time
        between steps counts. A rank with several devices is busy while any of them is; add
        ``device`` to see each.
    waits : bool
        Also tell waiting from transfer in the exposed communication, by matching the collectives
        over the ranks.
    window : (start_ns, end_ns), optional
        Only the parts of events inside it, in ns from the start of the trace, by rank. Its length
        is ``total_ns``, and what lies before the first event in it and after the last is idle.

    Returns
    -------
    polars.DataFrame
        ``<by...>`` and, in ns:

        - ``total_ns``: from the first start to the last end of the group, of a step until the next
          one starts, without ``other_ns``;
        - ``compute_ns, communication_ns, copy_ns``: union of each class;
        - ``exposed_communication_ns, hidden_communication_ns``: communication without and with
          concurrent compute;
        - ``exposed_wait_ns, exposed_transfer_ns, exposed_unknown_ns`` (with ``waits``): its exposed
          parts in which a collective waits for its last rank, does not, and has unknown ranks
          (:func:`~llmprof.analyze.collectives` says why);
        - ``exposed_copy_ns``: copies without concurrent compute or communication;
        - ``idle_ns``: nothing of the rank runs. Groups that interleave share the gaps, so theirs do
          not add up;
        - ``other_ns``: only events of other groups of the rank run between the group's first start
          and last end.

        ``compute_ns + exposed_communication_ns + exposed_copy_ns + idle_ns = total_ns``. The
        columns of copies are null where the capture did not record copies. Sorted by ``by``, nulls
        last.

    Raises
    ------
    NotCapturedError
        The trace holds no device activity or operators.
    AnalysisError
        ``by`` names an unknown column.

    Examples
    --------
    >>> overlap = analyze.overlap(trace, by=("rank",))
    >>> parts = ("compute_ns", "exposed_communication_ns", "exposed_copy_ns", "idle_ns")
    >>> overlap.select(pl.sum_horizontal(parts) == pl.col("total_ns")).item()
    True
    """
    refuse_samples(trace, "what overlapped")
    if window is not None:
        if wrong := [name for name in by if name != "rank"]:
            found = f"by={wrong[0]!r} with a window"
            raise AnalysisError(found, expected="by='rank': a window has one row a rank")
        return overlap_within(trace, window, waits=waits)
    by = by or ("rank", "step")
    by = by if "rank" in by else ("rank", *by)
    events = events_of_steps(trace) if "step" in by else trace.events
    refuse_unknown(by, events.columns, "by")
    if waits:
        events = with_waits(trace, events)
    rows = overlap_of(events, by, copies_recorded=_has_copies(trace, events))
    if not {"step"} < {*by} <= {"rank", "step", "phase"}:
        return rows
    steps = whole_steps(trace).select("rank", "step", until_next="dur_ns")
    rows = rows.join(steps, on=["rank", "step"], how="left", maintain_order="left")
    between = (pl.col("until_next") - pl.col("total_ns") - pl.col("other_ns")).clip(0).fill_null(0)
    return rows.with_columns(pl.col("total_ns", "idle_ns") + between).drop("until_next")


def _has_copies(trace: Trace, events: pl.DataFrame) -> bool:
    return "copies" in trace.table_names or (events["source"] == "op").any()


def with_waits(trace: Trace, events: pl.DataFrame) -> pl.DataFrame:
    """Device events, followed by rows for waiting and transfer of their collectives."""
    calls = events.filter(pl.col("category").is_in(COMMUNICATION))
    events = events.with_columns(communicates=pl.lit(None, _COMMUNICATES))
    if calls.is_empty():
        return events
    keys = ["rank", "start_ns", "name"]
    matched = collectives(trace).drop_nulls("wait_ns").select(*keys, _wait="wait_ns").unique(keys)
    calls = calls.join(matched, on=keys, how="inner", maintain_order="left")
    transfers = calls.with_columns(communicates=pl.lit("transfer", dtype=_COMMUNICATES)).drop(
        "_wait"
    )
    waits = calls.filter(pl.col("_wait") > 0).with_columns(
        dur_ns=pl.min_horizontal("_wait", "dur_ns"),
        communicates=pl.lit("wait", dtype=_COMMUNICATES),
    )
    return pl.concat([events, transfers, waits.drop("_wait")])


_COMMUNICATES = pl.Enum(["wait", "transfer"])


def overlap_of(
    events: pl.DataFrame, by: Sequence[str] = ("rank", "step"), *, copies_recorded: bool = True
) -> pl.DataFrame:
    """The analysis of :func:`overlap` on a frame of device events."""
    if "rank" not in by:
        found = f"overlap by {listed(by)} would mix the ranks"
        raise AnalysisError(
            found, expected="'rank' among the columns of by: each rank has a device of its own"
        )
    communication = pl.col("category").is_in(COMMUNICATION).fill_null(False)
    copy = transferring()
    parted = "communicates" in events.columns
    kind = pl.col("communicates")
    upto = (
        {}
        if not parted
        else {
            "_with_wait": ~(communication | copy) | (kind == "wait"),
            "_with_transfer": ~(communication | copy) | kind.is_not_null(),
        }
    )
    lengths = union_lengths(
        events,
        by,
        **upto,
        compute_ns=~(communication | copy),
        communication_ns=communication,
        copy_ns=copy,
        _without_copies=~copy,
        _busy=pl.lit(True),
    )
    lengths = lengths.with_columns(
        start_ns="first_ns", dur_ns=pl.col("last_ns") - pl.col("first_ns")
    )
    timeline = [column for column in ("rank", "device") if column in by]
    if set(timeline) == set(by):
        lengths = lengths.with_columns(other_ns=pl.lit(0, dtype=pl.Int64))
    else:
        lengths = length_within(lengths, events, timeline, name="_rank_busy")
        lengths = lengths.with_columns(other_ns=pl.col("_rank_busy") - pl.col("_busy"))
    copies = pl.when(pl.lit(copies_recorded))
    exposed = (
        []
        if not parted
        else [
            (pl.col(after) - pl.col(before)).alias(name)
            for name, before, after in zip(
                EXPOSED, ("compute_ns", *upto), (*upto, "_without_copies"), strict=True
            )
        ]
    )
    return lengths.select(
        *by,
        (pl.col("dur_ns") - pl.col("other_ns")).alias("total_ns"),
        "compute_ns",
        "communication_ns",
        copies.then("copy_ns").alias("copy_ns"),
        (pl.col("_without_copies") - pl.col("compute_ns")).alias("exposed_communication_ns"),
        *exposed,
        (pl.col("compute_ns") + pl.col("communication_ns") - pl.col("_without_copies")).alias(
            "hidden_communication_ns"
        ),
        copies.then(pl.col("_busy") - pl.col("_without_copies")).alias("exposed_copy_ns"),
        (pl.col("dur_ns") - pl.col("other_ns") - pl.col("_busy")).alias("idle_ns"),
        "other_ns",
    )


def overlap_within(
    trace: Trace, window: Window, *, rank: int | None = None, waits: bool = False
) -> pl.DataFrame:
    """The analysis of :func:`overlap` in a window, of all ranks or one."""
    first, last = round(window[0]), round(window[1])
    if last <= first:
        raise AnalysisError(
            f"the window [{first}, {last}) ns is empty", expected="an end after the start"
        )
    events = trace.events
    recorded = _has_copies(trace, events)
    if rank is not None:
        events = events.filter(rank=rank)
    if waits:
        events = with_waits(trace, events)
    found_ranks = events[["rank"]].unique().sort("rank")
    windows = found_ranks.with_columns(
        start_ns=pl.lit(first, dtype=pl.Int64), dur_ns=pl.lit(last - first, dtype=pl.Int64)
    )
    inside = clip_intervals(
        events.select("rank", "category", "source", "start_ns", "dur_ns", "^communicates$"),
        windows,
        ["rank"],
    )
    rows = overlap_of(inside, ["rank"], copies_recorded=recorded).drop(
        "total_ns", "idle_ns", "other_ns"
    )
    rows = found_ranks.join(rows, on="rank", how="left", maintain_order="left")
    copies = [c for c in rows.columns if "copy" in c]
    rows = rows.with_columns(pl.exclude("rank", *copies).fill_null(0))
    if recorded:
        rows = rows.with_columns(pl.col(copies).fill_null(0))
    exposed_copy = pl.col("exposed_copy_ns").fill_null(0)
    busy = pl.col("compute_ns") + pl.col("exposed_communication_ns") + exposed_copy
    total = pl.lit(last - first, dtype=pl.Int64)
    zero = pl.lit(0, dtype=pl.Int64)
    return rows.select(
        "rank", total.alias("total_ns"), pl.exclude("rank"), idle_ns=total - busy, other_ns=zero
    )
