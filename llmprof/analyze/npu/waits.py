"""Waits of a device's streams for each other, and the links between devices."""

from __future__ import annotations

from typing import Final

import polars as pl

from llmprof.analyze.analysis import Analysis
from llmprof.analyze.memo import per_trace
from llmprof.analyze.steps.steps import events_with_steps
from llmprof.arguments import NotNegative
from llmprof.trace import Trace

SIGNAL_NS: Final = 5_000
"""Longest time from the record of an event to the end of the wait for it: on Ascend 910B about 1 us."""


@per_trace
def event_waits(trace: Trace, *, min_ns: NotNegative = 1_000) -> pl.DataFrame:
    """Waits of streams for events of other streams, and which stream each waited for.

    A wait ends when another stream records the event. The recording names no event, so the stream is taken from the
    time: the last record on another stream that ended at most :data:`SIGNAL_NS` before the wait did. Where no record
    fits, or records of several streams do, the stream is null.

    Parameters
    ----------
    trace : Trace
        A trace with tasks of device queues (Ascend).
    min_ns : int
        Shortest wait to report (ns): most have none.

    Returns
    -------
    polars.DataFrame
        One row a wait, by rank and time: ``rank, device, stream, start_ns, dur_ns``, ``waited_for`` (stream), ``step,
        next_event, next_name, next_category`` of the kernel or copy that the stream runs next, and ``before_name,
        before_category``: what ran last on the stream that was waited for.

    Raises
    ------
    NotCapturedError
        The trace holds no tasks of device queues.
    """
    tasks = trace.table("tasks")
    waits = tasks.filter((pl.col("kind") == "event_wait") & (pl.col("dur_ns") >= min_ns))
    waits = waits.select("rank", "device", "stream", "start_ns", "dur_ns").with_row_index("wait")
    records = tasks.filter(pl.col("kind") == "event_record").select(
        "rank", _stream="stream", _record=pl.col("start_ns") + pl.col("dur_ns")
    )
    ends = waits.with_columns(_end=pl.col("start_ns") + pl.col("dur_ns"))
    signals = ends.select("wait", "rank", "stream", "start_ns", "_end").join(records, on="rank", maintain_order="left")
    fits = pl.col("_record").is_between(pl.col("_end") - SIGNAL_NS, pl.col("_end") + 1)
    signals = signals.filter(fits & (pl.col("_stream") != pl.col("stream")) & (pl.col("_record") >= pl.col("start_ns")))
    told = signals.group_by("wait").agg(
        waited_for=pl.when(pl.col("_stream").n_unique() == 1).then(pl.col("_stream").first())
    )
    waits = waits.join(told, on="wait", how="left", maintain_order="left")
    events = events_with_steps(trace)
    following = events.select(
        "rank", "stream", _at="start_ns", step="step", next_event="event", next_name="name", next_category="category"
    ).sort("_at")
    found = waits.with_columns(_end=pl.col("start_ns") + pl.col("dur_ns")).sort("_end")
    found = found.join_asof(
        following, left_on="_end", right_on="_at", by=["rank", "stream"], strategy="forward", check_sortedness=False
    ).drop("_at", strict=False)
    before = events.select(
        "rank",
        waited_for="stream",
        _done=pl.col("start_ns") + pl.col("dur_ns"),
        before_name="name",
        before_category="category",
    ).sort("_done")
    found = found.sort("_end").join_asof(
        before,
        left_on="_end",
        right_on="_done",
        by=["rank", "waited_for"],
        strategy="backward",
        check_sortedness=False,
    )
    return found.sort("rank", "start_ns", "stream").select(
        "rank", "device", "stream", "start_ns", "dur_ns", "waited_for", "step", "next_event", "next_name",
        "next_category", "before_name", "before_category",
    )  # fmt: skip


@per_trace
def links(trace: Trace) -> pl.DataFrame:
    """What each link between ranks moved and how fast, by the transfers of collective calls.

    Parameters
    ----------
    trace : Trace
        A trace with tasks of device queues (Ascend, profiler level 1 or higher).

    Returns
    -------
    polars.DataFrame
        One row a link, slowest first: ``rank`` (which recorded it), ``src_rank, dst_rank, link`` (HCCS, ROCE …),
        ``count`` (transfers), ``bytes``, ``busy_ns`` (sum of their durations), ``gb_per_s`` (bytes by that time, in
        1e9), ``typical_gb_per_s`` (median over the links of that kind) and ``relative`` (of the two). Bytes that stay
        on a device are left out.

    Raises
    ------
    NotCapturedError
        The trace holds no tasks of device queues.
    """
    moved = trace.table("tasks").filter(
        (pl.col("kind") == "transfer")
        & (pl.col("bytes") > 0)
        & pl.col("dst_rank").is_not_null()
        & (pl.col("src_rank") != pl.col("dst_rank"))
    )
    by_link = moved.group_by("rank", "src_rank", "dst_rank", "link").agg(
        count=pl.len(), bytes=pl.col("bytes").sum(), busy_ns=pl.col("dur_ns").sum()
    )
    rate = pl.when(pl.col("busy_ns") > 0).then(pl.col("bytes") / pl.col("busy_ns"))
    by_link = by_link.with_columns(gb_per_s=rate)
    typical = pl.col("gb_per_s").median().over("link")
    return by_link.with_columns(typical_gb_per_s=typical, relative=pl.col("gb_per_s") / typical).sort(
        "relative", "rank", "src_rank", "dst_rank", nulls_last=True
    )


ANALYSES = (
    Analysis(
        function=event_waits,
        question="Which stream waits for which?",
        help="waits of streams for events of other streams",
        view="event-waits",
        largest_first="dur_ns",
    ),
    Analysis(
        function=links,
        question="How fast is each link between ranks?",
        help="bytes and rates of each link, by the transfers of collectives",
        view="links",
    ),
)
