"""Slack of kernels where the recording shows all that waits for them, and the least of groups of kernels."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from llmprof.analyze.catalog import per_trace
from llmprof.analyze.collectives.collectives import collectives
from llmprof.analyze.replay.critical_path import slack
from llmprof.analyze.replay.graph import MOST_EVENTS, events_of, graph
from llmprof.errors import LlmprofError, NotCapturedError
from llmprof.trace import Trace


@per_trace
def known_slack(trace: Trace) -> pl.DataFrame:
    """Slack of each event of a device as far as the recording shows what waits for it.

    It is unknown where the calls of the host were not recorded, where the clocks contradict each other, and for all
    that ran on a rank before the end of its last collective that was not matched over the ranks: another rank may wait
    for it.

    Parameters
    ----------
    trace : Trace
        Any trace.

    Returns
    -------
    polars.DataFrame
        ``event``, ``slack_ns`` (as of :func:`slack`; null where it is unknown) and ``unknown`` (why; null where it is
        known). No rows where nothing ran on a device.

    Examples
    --------
    >>> known_slack(trace).columns
    ['event', 'slack_ns', 'unknown']
    """
    nothing = pl.DataFrame(schema={"event": pl.UInt32, "slack_ns": pl.Int64, "unknown": pl.String})
    try:
        free = slack(trace)
    except NotCapturedError:
        return nothing
    except LlmprofError as error:
        events = graph(trace).events["event"].drop_nulls().sort()
        return pl.concat([nothing, pl.DataFrame({"event": events, "unknown": error.found})], how="diagonal_relaxed")
    calls = trace.runtime if trace.has("runtime") else None
    heard = [] if calls is None else calls["rank"].unique().to_list()
    several = pl.col("world").is_null() | (pl.col("world") > 1)
    unmatched = collectives(trace).filter(pl.col("wait_ns").is_null() & several)
    last = unmatched.group_by("rank").agg(until_ns=(pl.col("start_ns") + pl.col("dur_ns")).max())
    silent = "the host's calls were not recorded, so what waits for it is not known"
    apart = "a collective after it was not matched over the ranks, so another rank may wait for it"
    free = free.join(last, on="rank", how="left", maintain_order="left").with_columns(
        unknown=pl.when(~pl.col("rank").is_in(heard))
        .then(pl.lit(silent))
        .when(pl.col("start_ns") < pl.col("until_ns"))
        .then(pl.lit(apart))
    )
    return free.select("event", pl.when(pl.col("unknown").is_null()).then("slack_ns"), "unknown")


def unknown_slack(trace: Trace) -> str:
    """Why no kernel has a slack that is known; empty where some have. A large recording is not replayed for it."""
    if (events := events_of(trace)) > MOST_EVENTS:
        return f"not looked for: {events:,} events, by itself of {MOST_EVENTS:,} at most (analyze.slack computes it)"
    free = known_slack(trace)
    if not free.height:
        return "nothing ran on a device"
    reasons = free["unknown"].value_counts(sort=True)["unknown"]
    return "" if free["slack_ns"].count() else str(reasons[0])


def with_slack(frame: pl.DataFrame, trace: Trace, events: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    """A frame of groups of device events with ``slack_ns``, the least of a group; null where that of one is unknown.

    Parameters
    ----------
    frame : polars.DataFrame
        One row a group, with the columns ``keys``.
    trace : Trace
        The trace.
    events : polars.DataFrame
        ``event`` and ``keys`` of the events of the groups.
    keys : sequence of str
        What a group is told by.
    """
    every = pl.col("slack_ns").null_count() == 0
    least = (
        events.select(*keys, "event")
        .join(known_slack(trace).select("event", "slack_ns"), on="event", how="left")
        .group_by(*keys)
        .agg(slack_ns=pl.when(every).then(pl.col("slack_ns").min()))
    )
    return frame.join(least, on=list(keys), how="left", nulls_equal=True, maintain_order="left")
