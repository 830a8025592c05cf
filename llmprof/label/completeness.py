"""Whether what was launched was also recorded: launches of each step beside the events on the
device that belong to them.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import polars as pl

from llmprof.errors import IncompleteError
from llmprof.label.activity import LAUNCHES_GRAPH
from llmprof.label.groups import last_before
from llmprof.label.steps.steps import steps_of
from llmprof.names.matching import by_distinct, remembered
from llmprof.trace import Trace
from llmprof.trace.kept import per_trace, results_of
from llmprof.trace.schema import END

_KERNEL: Final = (
    r"(?i)launch_?(?:cooperative_?)?kernel|kernel_?launch|^(?:cu|hip)Launch|^Node@launch"
)
_NO_KERNEL: Final = r"(?i)graph|host_?func|callback"
"""Calls whose names hold "launch", but which launch no kernel of their own."""

_BEGINS_CAPTURE, _ENDS_CAPTURE = r"(?i)StreamBeginCapture", r"(?i)StreamEndCapture"

MAX_MISSING: Final = 0.01
"""Share of its launches that a complete step may lack: profilers lose single events."""

SAMPLED, MOST_APART = 25, 1 << 16
"""Ids by which the ids of calls are usually apart: from this on in a sample, and below this where
ids count calls; 1 to 14 in what a profiler writes. A quarter may be half as far apart.
"""

_PART_OF_GRAPH: Final = 0.5
"""A replay with fewer events than another is a part of the same graph from this share on."""


@remembered
def _kind_of_call(distinct: tuple[str, ...]) -> pl.Series:
    """For each name of a call: kernel, graph, begin or end (of a capture), or null."""
    name = pl.col("name")
    return (
        pl.DataFrame({"name": pl.Series(distinct, dtype=pl.String)})
        .select(
            pl.when(name.str.contains(LAUNCHES_GRAPH))
            .then(pl.lit("graph"))
            .when(name.str.contains(_KERNEL) & ~name.str.contains(_NO_KERNEL))
            .then(pl.lit("kernel"))
            .when(name.str.contains(_BEGINS_CAPTURE))
            .then(pl.lit("begin"))
            .when(name.str.contains(_ENDS_CAPTURE))
            .then(pl.lit("end"))
        )
        .to_series()
    )


def _launch_counts(trace: Trace) -> pl.DataFrame:
    """Calls that launch work: ``rank, step, start_ns, expected, recorded`` (events on the device),
    ``ended``: nothing that was launched later was recorded.
    """
    schema = {
        "rank": pl.Int32,
        "step": pl.Int32,
        "start_ns": pl.Int64,
        "expected": pl.UInt32,
        "recorded": pl.UInt32,
        "ended": pl.Boolean,
    }
    if not trace.has("runtime"):
        return pl.DataFrame(schema=schema)
    key = ["rank", "correlation"]
    calls = trace.runtime.select(*key, "thread", "start_ns", "dur_ns", "name")
    calls = calls.with_columns(kind=by_distinct(calls["name"], _kind_of_call))
    calls = calls.drop_nulls("kind").sort("rank", "start_ns")
    # what is launched while a graph is captured runs at its replays only
    opened = (pl.col("kind") == "begin").cum_sum() - (pl.col("kind") == "end").cum_sum()
    calls = calls.filter(opened.over("rank", "thread") <= 0).filter(
        pl.col("kind").is_in(["kernel", "graph"]), pl.col("correlation").is_not_null()
    )
    calls = calls.join(_events_by_call(trace, key), on=key, how="left", maintain_order="left")
    if trace.has("kernels") and not calls["recorded"].count():
        calls = calls.clear()  # no event names its launch
    calls = _add_steps(_outermost(calls), steps_of(trace))
    calls = calls.with_columns(
        expected=pl.when(pl.col("kind") == "graph").then(_nodes()).otherwise(1),
        recorded=pl.col("recorded").fill_null(0),
    )
    last = pl.col("start_ns").filter(pl.col("recorded") > 0).max().over("rank")
    calls = calls.with_columns(ended=(pl.col("start_ns") > last).fill_null(False))
    return calls.select(pl.col(name).cast(dtype) for name, dtype in schema.items())


def _outermost(calls: pl.DataFrame) -> pl.DataFrame:
    """Calls of the runtime, each with what the calls of the driver inside of it launched."""
    counts = pl.col("recorded", "names").fill_null(0)
    ended = END.cum_max().shift(1).over("rank", "thread").fill_null(-1)
    begun = pl.col("start_ns").shift(1).over("rank", "thread").fill_null(-1)
    alone = (ended < END) & (begun < pl.col("start_ns"))
    if calls.select(alone.all(ignore_nulls=False)).item():
        return calls.with_columns(counts)  # none is inside another one
    calls = calls.sort("rank", "thread", "start_ns", END, descending=[False, False, False, True])
    return (
        calls.with_columns(outer=(ended < END).cum_sum())
        .group_by("rank", "thread", "outer", maintain_order=True)
        .agg(
            pl.first("start_ns", "kind"),
            pl.sum("recorded", "names"),
            pl.max("nodes"),
        )
        .sort("rank", "start_ns")
    )


def _events_by_call(trace: Trace, key: list[str]) -> pl.DataFrame:
    """``recorded``: number of events of each call; ``names``: a hash of their names; ``nodes``:
    number of nodes of its graph, where the recording names the nodes.
    """
    tables = [
        trace.table(name).select(*key, "graph_node", name=pl.col("name").hash() // 65536)
        for name in ("kernels", "copies")
        if trace.has(name)
    ]
    if not tables:
        counts = {"recorded": pl.UInt32, "names": pl.UInt64, "nodes": pl.UInt32}
        return pl.DataFrame(schema={"rank": pl.Int32, "correlation": pl.Int64, **counts})
    events = pl.concat(tables).drop_nulls("correlation")
    calls = events.group_by(key).agg(recorded=pl.len(), names=pl.sum("name"))
    return calls.join(_graph_sizes(events, key), on=key, how="left")


def _graph_sizes(events: pl.DataFrame, key: list[str]) -> pl.DataFrame:
    """Number of nodes of the graph that each call replays: replays that share a node are of one
    graph.
    """
    pairs = events.drop_nulls("graph_node").select(*key, "graph_node", graph="correlation").unique()
    for _ in range(3):
        pairs = pairs.with_columns(graph=pl.min("graph").over("rank", "graph_node"))
        pairs = pairs.with_columns(graph=pl.min("graph").over(key))
    nodes = pl.n_unique("graph_node").over("rank", "graph")
    return pairs.with_columns(nodes=nodes).group_by(key).agg(pl.first("nodes"))


def _nodes() -> pl.Expr:
    """Events of a whole replay: the nodes of its graph, or, where these are not named, the events
    of the largest replay, for one that no other replay equals: of at most twice its events, or of
    any size where each is the only launch of its step.
    """
    count, graph = pl.col("recorded").fill_null(0), pl.col("kind") == "graph"
    only = pl.col("step").is_not_null() & (pl.len().over("rank", "step") == 1)
    largest = count.filter(graph).max().over("rank")
    typical = count.filter(graph & (count > 0)).median()
    alone = pl.len().over("rank", "kind", "names", "recorded") == 1
    same = only & (count.filter(graph & only).max().over("rank") == largest)
    is_part = alone & (count < largest) & (same | (count >= _PART_OF_GRAPH * largest))
    return (
        pl.when(count == 0)
        .then(pl.max_horizontal(typical.fill_null(1), 1))
        .when(pl.col("nodes").is_not_null())
        .then(pl.max_horizontal("nodes", count))
        .when(is_part)
        .then(largest)
        .otherwise(count)
    )


def _add_steps(calls: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """The step of each call, by the labels of the host."""
    begun = rows.drop_nulls("host_start_ns").select("rank", "step", start_ns="host_start_ns")
    mark = last_before(calls, begun, ["rank"], at="start_ns")
    return calls.with_columns(begun["step"].gather(mark))


def _overwritten(trace: Trace) -> pl.DataFrame:
    """Events of each rank that others wrote over, as calls without a time: no step of such a rank
    is known to be complete.
    """
    lost = [
        (file["rank"], file["overwritten"], 0, False)
        for file in trace.coverage.get("files", ())
        if file.get("overwritten")
    ]
    schema = {"rank": pl.Int32, "expected": pl.UInt32, "recorded": pl.UInt32, "ended": pl.Boolean}
    return pl.DataFrame(lost, schema=schema, orient="row")


@per_trace
def completeness(trace: Trace) -> pl.DataFrame:
    """What was launched in each step, and what of it was recorded.

    Returns
    -------
    polars.DataFrame
        ``rank, step`` (null: outside of steps), ``launched, missing`` (events on the device),
        ``missing_at_end`` (launched after all that was recorded), ``first_ns`` (first launch that
        lacks its events; null without one), ``begins`` (its first launch has its events),
        ``complete``.
    """
    calls = _launch_counts(trace)
    missing = pl.col("expected") - pl.min_horizontal("expected", "recorded")
    lost = missing > 0
    over = _overwritten(trace)
    return (
        pl.concat([calls, over], how="diagonal_relaxed")
        .sort("rank", "start_ns")
        .group_by("rank", "step")
        .agg(
            launched=pl.sum("expected"),
            missing=missing.sum(),
            missing_at_end=missing.filter("ended").sum(),
            first_ns=pl.col("start_ns").filter(lost).min(),
            begins=~lost.first(),
        )
        .with_columns(
            complete=(pl.col("missing") <= MAX_MISSING * pl.col("launched"))
            & ~pl.col("rank").is_in(over["rank"].implode())
        )
        .sort("rank", "step")
    )


@per_trace
def incomplete_steps(trace: Trace) -> pl.DataFrame:
    """``rank, step`` of steps that cannot be judged: those that lack events on one of the ranks,
    those before a step whose first event was not recorded, since its start is their end, and
    those before any of these on several ranks, which may wait for each other's next step; but for
    a step that lacks its end alone.
    """
    at_end = (pl.col("missing") == pl.col("missing_at_end")) & pl.col("begins")
    found = completeness(trace).select("rank", "step", "complete", "begins", at_end=at_end)
    rows = steps_of(trace).filter(pl.col("phase") != "empty")[["rank", "step"]]
    rows = rows.join(found, on=["rank", "step"], how="left").sort("rank", "step")
    rows = rows.with_columns(pl.col("complete", "begins", "at_end").fill_null(True))
    known = pl.col("begins") if len(trace.ranks) == 1 else pl.col("at_end")
    unknown_end = ~(pl.col("complete") | known).shift(-1).over("rank")
    bad = rows.filter(~pl.col("complete") | unknown_end.fill_null(False))["step"].unique()
    return rows.filter(pl.col("step").is_in(bad.implode()))[["rank", "step"]]


class LostEvents(NamedTuple):
    """Events of a whole recording, as :func:`completeness` counts them for each step."""

    launched: int
    missing: int
    missing_at_end: int


def lost_events(trace: Trace) -> LostEvents:
    """What was launched in all, and what of it was not recorded."""
    return LostEvents(*completeness(trace).select(pl.col(LostEvents._fields).sum()).row(0))


@per_trace
def left_out(trace: Trace) -> int:
    """Calls of the host that a sample left out, by their ids, which count those of a process; 0 in
    what a profiler has written.
    """
    # of ranks that workers analyse, some calls are here alone
    if not trace.has("runtime") or results_of(trace).made_elsewhere:
        return 0
    number = pl.col("correlation")
    calls = trace.runtime.drop_nulls("correlation").sort("rank", "correlation")
    apart = calls.select(number.diff().over("rank")).to_series()
    few, usual = (apart.quantile(at) or 0 for at in (0.25, 0.5))
    if few < SAMPLED / 2 or not SAMPLED <= usual < MOST_APART:
        return 0
    of_rank = calls.group_by("rank").agg(number.max() - number.min() + 1 - number.n_unique())
    return int(of_rank["correlation"].sum())


def refuse_lost(trace: Trace, name: str) -> None:
    """Refuse a comparison of a recording that lacks much of what was launched."""
    if not has_lost(trace):
        return
    lost = lost_events(trace)
    whole = steps_of(trace).join(incomplete_steps(trace), on=["rank", "step"], how="anti")["step"]
    part = f"compare complete steps: select(step={whole.unique().sort().to_list()[:3]}…)"
    raise IncompleteError(
        f"{name} lacks {lost.missing:,} of {lost.launched:,} launched events on the device",
        expected="recordings with all that was launched",
        hint=part if whole.len() else "record it again, in fewer steps or with a larger buffer",
    )


def has_lost(trace: Trace, *, at_end: bool = False) -> bool:
    """Whether the recording lacks more than single events of what was launched before its end,
    or, with ``at_end``, also after all that was recorded.
    """
    lost = lost_events(trace)
    missing = lost.missing - (0 if at_end else lost.missing_at_end)
    return bool(lost.launched) and missing > MAX_MISSING * lost.launched
