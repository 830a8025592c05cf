"""Length of the queue of each stream: work that was launched and has not begun."""

from __future__ import annotations

from typing import Literal

import polars as pl

from llmprof.analyze.catalog import Analysis
from llmprof.errors import AtLeastOne
from llmprof.label.intervals import length_within, merge
from llmprof.trace import Trace

_STREAM = ["rank", "device", "stream"]


@Analysis(
    question="How much work waits in the queue of each stream?",
    help="launches in the queue of each stream, and the time in which it is full",
    view="queues",
    recorded="device activity and runtime calls",
)
def queue_length(
    trace: Trace, *, by: Literal["stream", "time"] = "stream", full: AtLeastOne = 1024
) -> pl.DataFrame:
    """Launches of each stream whose work has not begun, over time or in sum.

    A launch enters the queue when the call of the host begins and leaves it when its work begins. A
    graph is one launch for each stream that it runs on, until its first kernel there begins.

    Parameters
    ----------
    trace : Trace
        A trace with device activity and runtime calls.
    by : {"stream", "time"}
        A row for each stream, or for each moment at which a length changes.
    full : int
        Length from which on a queue counts as full. CUDA holds 1024 launches; then the next
        launching call waits.

    Returns
    -------
    polars.DataFrame
        ``rank, device, stream`` and, per time, ``time_ns, length`` (from then on). Per stream:
        ``count`` (launches), ``missing_count`` (events whose launch is not in the capture: they are
        in no length), ``mean_length`` (over the time from the first launch to the last start),
        ``max_length, full_ns`` (time with at least ``full`` launches) and ``wait_ns`` (time that
        launching calls of the stream spend while it is full). Times in ns.

    Raises
    ------
    NotCapturedError
        The trace holds no device activity or runtime calls.
    AnalysisError
        ``by`` names an unknown column.

    Examples
    --------
    >>> frame = analyze.queue_length(trace)
    """
    trace.table("runtime")
    events = trace.events.filter(pl.col("source") != "op", pl.col("stream").is_not_null())
    call = [*_STREAM, "launch_thread", "launch_start_ns", "launch_end_ns"]
    launched = events.drop_nulls("launch_start_ns").group_by(call).agg(pl.min("start_ns"))
    begin = pl.col("launch_start_ns")
    launched = launched.with_columns(
        pl.max_horizontal("start_ns", begin)
    )  # clocks may disagree by a little
    changes = pl.concat(
        [
            launched.select(*_STREAM, time_ns=begin, change=pl.lit(1, dtype=pl.Int64)),
            launched.select(*_STREAM, time_ns="start_ns", change=pl.lit(-1, dtype=pl.Int64)),
        ]
    )
    lengths = (
        changes.group_by(*_STREAM, "time_ns")
        .agg(pl.sum("change"))
        .sort(*_STREAM, "time_ns", nulls_last=True)
        .select(*_STREAM, "time_ns", length=pl.col("change").cum_sum().over(_STREAM))
    )
    if by == "time":
        return lengths
    lasting = lengths.with_columns(
        start_ns="time_ns",
        dur_ns=(pl.col("time_ns").shift(-1) - pl.col("time_ns")).over(_STREAM).fill_null(0),
    )
    is_full = pl.col("length") >= full
    sums = lasting.group_by(_STREAM).agg(
        mean_length=(pl.col("length") * pl.col("dur_ns")).sum() / pl.sum("dur_ns"),
        max_length=pl.max("length"),
        full_ns=pl.col("dur_ns").filter(is_full).sum(),
    )
    calls = launched.select(*_STREAM, start_ns=begin, dur_ns=pl.col("launch_end_ns") - begin)
    blocked = length_within(merge(calls, _STREAM), lasting.filter(is_full), _STREAM, name="wait_ns")
    counts = events.group_by(_STREAM).agg(missing_count=begin.null_count())
    return (
        counts.join(
            launched.group_by(_STREAM).agg(count=pl.len()),
            on=_STREAM,
            how="left",
            nulls_equal=True,
        )
        .join(sums, on=_STREAM, how="left", nulls_equal=True)
        .join(
            blocked.group_by(_STREAM).agg(pl.sum("wait_ns")),
            on=_STREAM,
            how="left",
            nulls_equal=True,
        )
        .with_columns(pl.col("count", "full_ns", "wait_ns").fill_null(0))
        .select(
            *_STREAM,
            "count",
            "missing_count",
            pl.col("mean_length").fill_nan(None),
            "max_length",
            "full_ns",
            "wait_ns",
        )
        .sort(_STREAM, nulls_last=True)
    )
