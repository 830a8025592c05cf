"""When one stream waits, and how much of that the other streams of the device work."""

from __future__ import annotations

import polars as pl

from llmprof.analyze.analysis import Analysis
from llmprof.analyze.intervals.intervals import gaps, length_within
from llmprof.analyze.layers.attribution import labelled
from llmprof.analyze.memo import per_trace
from llmprof.arguments import NotNegative
from llmprof.trace import Trace


@per_trace
def stream_gaps(trace: Trace, *, min_ns: NotNegative = 0) -> pl.DataFrame:
    """Gaps of each single stream, and how much of each the other streams of the device worked.

    Parameters
    ----------
    trace : Trace
        Any trace with device activity.
    min_ns : int
        Shortest gap to report (ns).

    Returns
    -------
    polars.DataFrame
        ``rank, device, stream``, ``step`` (of the event that ends the gap), ``start_ns, dur_ns, next_event,
        next_name``, ``busy_elsewhere_ns`` (part of the gap during which another stream of the device was busy) and
        ``share_busy_elsewhere`` (of ``dur_ns``). One row a gap, by stream and time.

    Raises
    ------
    NotCapturedError
        The trace holds no device activity and no operators.

    Examples
    --------
    >>> analyze.stream_gaps(trace).columns[:4]
    ['rank', 'device', 'stream', 'step']
    """
    return stream_gaps_of(labelled(trace, ["step"]), min_ns=min_ns)


def stream_gaps_of(events: pl.DataFrame, *, min_ns: int = 0) -> pl.DataFrame:
    """The analysis of :func:`stream_gaps` on a frame of device events.

    Parameters
    ----------
    events : polars.DataFrame
        ``event, rank, device, stream, step, start_ns, dur_ns, name``.
    min_ns : int
        Shortest gap to report (ns).

    Returns
    -------
    polars.DataFrame
        As :func:`stream_gaps` returns it.
    """
    following = {"step": pl.col("step"), "next_event": pl.col("event"), "next_name": pl.col("name")}
    found = gaps(events, ["rank", "device", "stream"], **following).filter(pl.col("dur_ns") >= min_ns)
    found = length_within(found, events, ["rank", "device"], name="busy_elsewhere_ns")
    return found.select(
        "rank",
        "device",
        "stream",
        "step",
        "start_ns",
        "dur_ns",
        "next_event",
        "next_name",
        "busy_elsewhere_ns",
        share_busy_elsewhere=pl.col("busy_elsewhere_ns") / pl.col("dur_ns"),
    )


ANALYSIS = Analysis(
    function=stream_gaps,
    question="When does one stream wait while others work?",
    help="gaps of single streams, and how much others worked meanwhile",
    view="stream-gaps",
    columns=("rank", "stream", "step", "start_ns", "dur_ns", "share_busy_elsewhere", "next_name"),
    largest_first="dur_ns",
)
