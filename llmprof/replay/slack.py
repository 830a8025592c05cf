"""Slack of kernels where the recording shows all that waits for them, and the least of groups of
kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import polars as pl

from llmprof.analyze.catalog import Analysis
from llmprof.analyze.collectives.collectives import collectives
from llmprof.errors import Columns, LlmprofError, NotCapturedError, refuse_unknown
from llmprof.names.matching import first_true
from llmprof.replay.critical_path import WORKS, path_of_events, slack_of_recorded
from llmprof.replay.graph import MAX_EVENTS, graph, graph_events
from llmprof.trace import Trace
from llmprof.trace.kept import per_trace
from llmprof.trace.schema import END


@Analysis(
    question="Which kernels could take longer without changing anything, and which set the pace?",
    help="how much longer each event may take before a step ends later",
    view="slack",
    recorded="device activity",
)
def slack(trace: Trace, *, by: Columns = ()) -> pl.DataFrame:
    """Slack of each device event: how much longer it may take without delaying a step, or without
    changing the pace; or of groups of events, with their time on the critical path.

    It is unknown where the calls of the host were not recorded, and for all that ran on a rank
    before the end of its last collective that was not matched over the ranks: another rank may wait
    for it.

    Parameters
    ----------
    trace : Trace
        A trace with device activity.
    by : str or sequence of str
        Columns of :func:`~llmprof.analyze.events` to group by, such as ``layer``, ``stage`` or
        ``name``.

    Returns
    -------
    polars.DataFrame
        ``event`` (as :func:`~llmprof.label.activity.activity` numbers them), ``rank, step, name,
        layer, stage, start_ns, dur_ns``, ``slack_ns`` (no step ends later), ``pace_slack_ns`` (the
        last step ends no later, nor does one after which others were left out: if the host sets the
        pace, a kernel may delay its own step without delaying the last one) and ``reason`` (why
        the slack is not known, in which case both are null; null where it is known).

        With ``by``: its columns, ``count`` (events), ``total_ns`` (their time on the devices),
        ``path_ns`` (of it on the path of :func:`~llmprof.analyze.critical_path`), ``path_share``
        (path over total), ``slack_ns`` and ``pace_slack_ns`` (least over the events; null where
        that of one is unknown), the most on the path first.

    Raises
    ------
    NotCapturedError
        The trace has no device activity.
    AnalysisError
        ``by`` names an unknown column.

    Examples
    --------
    >>> free = analyze.slack(trace)
    >>> bool((free["slack_ns"] <= free["pace_slack_ns"]).all())
    True
    >>> shares = analyze.slack(trace, by="stage")
    >>> bool(shares["path_share"].drop_nulls().is_between(0, 1).all())
    True
    """
    if by:
        return _slack_of_groups(trace, by)
    free = slack_of_recorded(trace)
    calls = trace.runtime if trace.has("runtime") else None
    heard = [] if calls is None else calls["rank"].unique().to_list()
    several = pl.col("world").is_null() | (pl.col("world") > 1)
    unmatched = collectives(trace).filter(pl.col("wait_ns").is_null() & several)
    last = unmatched.group_by("rank").agg(until_ns=END.max())
    silent = "the host's calls were not recorded, so what waits for it is not known"
    not_matched = (
        "a collective after it was not matched over the ranks, so another rank may wait for it"
    )
    free = free.join(last, on="rank", how="left", maintain_order="left").with_columns(
        reason=first_true(
            {
                silent: ~pl.col("rank").is_in(heard),
                not_matched: pl.col("start_ns") < pl.col("until_ns"),
            }
        )
    )
    replayed = pl.col("reason").is_null()
    return free.with_columns(pl.when(replayed).then(name).alias(name) for name in _SLACK).drop(
        "until_ns"
    )


_SLACK: Final = ("slack_ns", "pace_slack_ns")


@per_trace
def known_slack(trace: Trace) -> pl.DataFrame:
    """Slack of each event of a device as :func:`slack` has it, also where the dependencies
    cannot be found.
    """
    nothing = pl.DataFrame(schema={"event": pl.UInt32, "slack_ns": pl.Int64, "reason": pl.String})
    try:
        return slack(trace).select(nothing.columns)
    except NotCapturedError:
        return nothing
    except LlmprofError as error:
        events = graph(trace).events["event"].drop_nulls().sort()
        return pl.concat(
            [nothing, pl.DataFrame({"event": events, "reason": error.found})],
            how="diagonal_relaxed",
        )


def _slack_of_groups(trace: Trace, by: Sequence[str]) -> pl.DataFrame:
    """Least slack and time on the critical path of groups of device events."""
    events = trace.events
    refuse_unknown(by, events.columns, "by")
    on_device = pl.col("part").is_in(WORKS) & pl.col("event").is_not_null()
    path = path_of_events(trace).filter(on_device).group_by("event").agg(path_ns=pl.sum("dur_ns"))
    return (
        slack(trace)
        .select("event", "dur_ns", *_SLACK)
        .join(events.select(pl.col(by).name.prefix("_"), "event"), on="event", how="left")
        .join(path, on="event", how="left")
        .group_by(pl.col(f"_{name}").alias(name) for name in by)
        .agg(
            count=pl.len(),
            total_ns=pl.sum("dur_ns"),
            path_ns=pl.sum("path_ns"),
            **{
                name: pl.when(pl.col(name).null_count() == 0).then(pl.col(name).min())
                for name in _SLACK
            },
        )
        .with_columns(
            path_share=pl.when(pl.col("total_ns") > 0).then(pl.col("path_ns") / pl.col("total_ns"))
        )
        .select(*by, "count", "total_ns", "path_ns", "path_share", *_SLACK)
        .sort("path_ns", *by, descending=[True, *[False] * len(by)], nulls_last=True)
    )


def unknown_slack(trace: Trace) -> str:
    """Why no kernel has a slack that is known; empty where some have.

    A large recording is not replayed for it.
    """
    if (events := graph_events(trace)) > MAX_EVENTS:
        return (
            f"not looked for: {events:,} events, by itself of {MAX_EVENTS:,} at most"
            " (analyze.slack computes it)"
        )
    free = known_slack(trace)
    if not free.height:
        return "nothing ran on a device"
    reasons = free["reason"].value_counts(sort=True)["reason"]
    return "" if free["slack_ns"].count() else str(reasons[0])


def add_slack(
    frame: pl.DataFrame, trace: Trace, events: pl.DataFrame, keys: Sequence[str]
) -> pl.DataFrame:
    """A frame of groups of device events with ``slack_ns``, the least of a group; null where
    that of one is unknown.
    """
    every = pl.col("slack_ns").null_count() == 0
    least = (
        events.select(*keys, "event")
        .join(known_slack(trace)[["event", "slack_ns"]], on="event", how="left")
        .group_by(*keys)
        .agg(slack_ns=pl.when(every).then(pl.min("slack_ns")))
    )
    return frame.join(least, on=list(keys), how="left", nulls_equal=True, maintain_order="left")
