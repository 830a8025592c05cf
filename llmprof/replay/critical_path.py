"""Critical path of every step, and how much later each event could end by the dependencies that
were recorded.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import polars as pl

from llmprof.analyze.catalog import Analysis
from llmprof.analyze.collectives.collectives import collectives
from llmprof.analyze.idle.gaps import idle
from llmprof.analyze.idle.host import host_spans, innermost_within, longest_spans
from llmprof.errors import LlmprofError, listed
from llmprof.label.steps import labels
from llmprof.names.matching import first_true
from llmprof.replay import graph as replay
from llmprof.replay.schedule import NEVER, NodeNumbers, latest
from llmprof.trace import Trace
from llmprof.trace.kept import per_trace
from llmprof.trace.schema import END

WORKS: Final = ("compute", "copy", "transfer", "communication")
"""Parts of a critical path in which a device works."""

PARTS: Final = (
    *WORKS,
    *("device gap", "stream wait", "launch", "host call", "host"),
    *("synchronise", "scheduler", "device held", "unexplained"),
)
"""Parts of a critical path; :func:`critical_path` explains each."""

CHAIN: Final = -1
"""Value in place of the kind of an edge: the node before in the same chain."""

MIN_SHARE: Final = 0.5
"""An operator names a piece of the host, and a call the piece of a held device, if it ran for at
least this share.
"""

_SCHEMA = {
    "step": pl.Int32(),
    "phase": pl.String(),
    "rank": pl.Int32(),
    "part": pl.Enum(PARTS),
    "name": pl.String(),
    "layer": pl.Int32(),
    "stage": pl.String(),
    "thread": pl.Int64(),
    "stream": pl.Int64(),
    "event": pl.UInt32(),
    "start_ns": pl.Int64(),
    "dur_ns": pl.Int64(),
    "evidence": pl.Enum(replay.EVIDENCE),
}


@Analysis(
    question="What sets the pace?",
    help="the chain of events that each step waits for, in pieces that add up to it",
    view="critical-path",
    recorded="device activity",
)
def critical_path(trace: Trace, *, rank: int | None = None) -> pl.DataFrame:
    """The chain of events that sets the time of each step, over all ranks.

    The path is followed backwards from the end of the last step's work on a device to the beginning
    of the recording: from each event to the one that ended last of those that it had to wait for
    (:mod:`llmprof.replay.graph`). Events on the path set the pace: if the path is on a host
    that runs ahead of its devices, faster kernels change nothing. The pieces of a step add up to
    the time from the end of the step before to its own end; if the step before was left out of a
    part of a recording, from its own first work on a device. If an event began later than
    everything that it is known to wait for allows, the difference is an ``unexplained`` piece. If
    no collective is matched over the ranks (their clocks do not agree, or there is none), the path
    stays on one rank.

    Parameters
    ----------
    trace : Trace
        A trace with device activity. Without calls of the host the path runs over the devices
        alone.
    rank : int, optional
        Follow the path from the end of the last step on this rank; on the rank that ends last if
        None.

    Returns
    -------
    polars.DataFrame
        In the order of time: ``step, phase`` and ``rank`` (on which the piece lies), ``part``:
        ``compute`` (a kernel), ``copy``, ``transfer`` (a collective, after its last rank arrived),
        ``communication`` (the same where the waiting of no collective is known), ``device gap``
        (between two kernels of a stream), ``stream wait`` (for another stream), ``launch`` (from
        the host's call to the start on the device), ``host call`` (a call of the device runtime),
        ``host`` (between two such calls), ``synchronise`` (from the end of work to the return of
        the call that waited for it), ``scheduler`` (from the arrival of a result to the first call
        of a later step), ``device held`` (:func:`idle` names the call of the host that held
        launched work) and ``unexplained``; ``name`` (kernel, call, or the operator that the host
        spent at least half of the time in, on this thread or else on any; null if none was
        recorded), ``layer, stage, thread, stream, event``, ``start_ns, dur_ns``, and ``evidence``:
        how it is known that the piece waited for the one before: ``recorded`` (the order of a
        stream or thread, a launch, an event that a stream or the host waited for), ``matched``
        (calls of several ranks in their order), ``assumed`` (from the times alone), null for what
        is unexplained.

    Raises
    ------
    NotCapturedError
        The trace has no device activity.
    LlmprofError
        There is no such rank in the trace.

    Examples
    --------
    >>> path = analyze.critical_path(trace)
    >>> path.group_by("step").agg(pl.sum("dur_ns")).height
    17
    """
    if rank is not None and rank not in trace.ranks:
        raise LlmprofError(
            f"there is no rank {rank} in the trace", expected=f"one of {listed(trace.ranks)}"
        )
    return _node_names(trace, path_without_names(trace, rank)).select(*_SCHEMA).cast(_SCHEMA)  # type: ignore[arg-type]


@per_trace
def path_without_names(trace: Trace, rank: int | None = None) -> pl.DataFrame:
    """The critical path without what the host did between its calls, which takes most of the
    time to find out.
    """
    return _held(trace, path_of_events(trace, rank))


@per_trace
def path_of_events(trace: Trace, rank: int | None = None) -> pl.DataFrame:
    """The critical path by its events alone: the calls that held the device are unexplained
    time.
    """
    built = replay.graph(trace)
    ends = step_ends(built)
    if rank is None and ends.height and not (built.kind == replay.COLLECTIVE).any():
        rank = ends.sort("end_ns")["rank"][-1]
    if rank is not None:
        ends = ends.filter(rank=rank)
    last = (
        ends.sort("end_ns")
        .group_by("step", maintain_order=True)
        .agg(pl.last("rank", "block", "node", "end_ns"), pl.min("start_ns", "since_ns"))
        .sort("end_ns")
    )
    bound = last_waits(built)
    blocks = last.partition_by("block", maintain_order=True) or [last]
    rows = pl.concat([_pieces(built, bound, block) for block in blocks]).join(
        ends[["step", "phase"]].unique("step"), on="step", how="left", maintain_order="left"
    )
    if not collectives(trace)["wait_ns"].is_not_null().any():
        rows = rows.with_columns(pl.col("part").replace("transfer", "communication"))
    return rows


def _begin(built: replay.Graph, last: pl.DataFrame) -> int:
    """Beginning of a path: of its first step's work if the step before was cut out, else of the
    recording.
    """
    if last.height and last["since_ns"][0] > NEVER:
        return int(last["start_ns"][0])
    # of the rank on which the path ends, where nothing ties the ranks to each other
    start = built.events["start_ns"]
    if last.height and not (built.kind == replay.COLLECTIVE).any():
        start = start.filter(built.events["rank"] == last["rank"][-1])
    return int(start.min())  # type: ignore[arg-type]


@per_trace
def slack_of_recorded(trace: Trace) -> pl.DataFrame:
    """Slack of each device event as the recorded dependencies allow it, whatever was not
    recorded.
    """
    built = replay.graph(trace)
    scheduled = built.schedule()
    ends = step_ends(built)
    ends = ends.with_columns(pl.max("end_ns").over("step"), last=pl.max("end_ns").over("block"))
    work = built.add_blocks(built.events.filter(where="device")[["rank", "step", "chain", "row"]])
    cut = ends.filter(pl.col("block") < pl.max("block"))[["block", "last"]].unique("block")
    work = work.group_by("chain", "block").agg(pl.last("row")).join(cut, on="block")
    free = []
    for some in (ends, ends.filter(pl.col("end_ns") == pl.col("last"))):
        bounds = np.full(len(built.time), -NEVER)
        # the last event of a chain may end when the recording ends, or the last step before a cut
        bounds[2 * built.chains[1:] - 1] = built.time.max()
        bounds[2 * work["row"].to_numpy() + 1] = work["last"].to_numpy()
        bounds[some["node"].to_numpy()] = some["end_ns"].to_numpy()
        later = latest(scheduled, bounds)[1::2] - built.time[1::2]
        free.append(pl.Series(np.maximum(later, 0), dtype=pl.Int64))
    return (
        built.events.with_columns(slack_ns=free[0], pace_slack_ns=free[1], start_ns="recorded_ns")
        .filter(where="device")[
            [
                "event",
                "rank",
                "step",
                "name",
                "layer",
                "stage",
                "start_ns",
                "dur_ns",
                "slack_ns",
                "pace_slack_ns",
            ]
        ]
        .sort("event")
    )


def step_ends(built: replay.Graph) -> pl.DataFrame:
    """The node at which each step of each rank ends on its devices."""
    work = built.events.filter(where="device")
    if work["step"].null_count() == work.height:
        work = work.with_columns(step=pl.lit(0, dtype=pl.Int32))
    ends = (
        work.drop_nulls("step")
        .with_columns(end_ns=END)
        .sort("end_ns")
        .group_by("rank", "step", maintain_order=True)
        .agg(
            pl.last("phase"),
            pl.min("start_ns"),
            node=2 * pl.last("row").cast(pl.Int64) + 1,
            end_ns=pl.last("end_ns"),
        )
        .sort("step", "rank")
    )
    return built.add_blocks(ends)


class Binding(NamedTuple):
    """What each node waited for last."""

    before: NodeNumbers
    """The node that it waited for; -1 if none is known."""
    kind: NodeNumbers
    """The kind of edge, or :data:`CHAIN`."""
    evidence: NodeNumbers
    """The evidence of the edge."""
    first: NodeNumbers
    """The first of the consecutive nodes up to it that each waited for the node before."""


def nodes_on_path(built: replay.Graph, bound: Binding, ends: pl.DataFrame) -> NodeNumbers:
    """Nodes of the critical path to the last of some steps that follow each other, in their
    order.
    """
    since = ends["since_ns"].to_numpy().min(initial=-NEVER)
    node, pieces = [-1, *ends.sort("end_ns")["node"]][-1], [np.empty(0, dtype=np.int64)]
    while node >= 0 and built.time[node] >= since:
        first = int(bound.first[node])
        pieces.append(np.arange(first, node + 1))
        node = int(bound.before[first])
    path: NodeNumbers = np.concatenate(pieces[::-1])
    return np.asarray(path[built.time[path] >= since])


def last_waits(built: replay.Graph) -> Binding:
    """For each node, the node that it waited for last, and the kind of edge."""
    times = built.time
    nodes = len(times)
    before = np.arange(nodes) - 1
    bound = np.full(nodes, NEVER)
    bound[1:] = times[:-1] + built.weight[1:]
    first = 2 * built.chains[:-1]
    before[first], bound[first] = -1, NEVER
    kind = np.full(nodes, CHAIN, dtype=np.int64)
    arrival = times[built.source] + built.delay
    order = np.lexsort((arrival, built.target))
    target = built.target[order]
    final = np.append(target[1:] != target[:-1], True) if len(target) else np.zeros(0, dtype=bool)
    best = order[final]
    came, went = built.source[best], built.target[best]
    # at one instant in the order of the nodes: what waits for each other there would have no end
    earlier = (times[came] < times[went]) | ((times[came] == times[went]) & (came < went))
    best = best[(arrival[best] > bound[went]) & earlier]
    before[built.target[best]] = built.source[best]
    kind[built.target[best]] = built.kind[best]
    evidence = np.full(nodes, replay.BY_RECORD, dtype=np.int64)
    evidence[built.target[best]] = built.evidence[best]
    led_to = kind != CHAIN
    led_to[first] = True
    return Binding(
        before, kind, evidence, np.maximum.accumulate(np.where(led_to, np.arange(nodes), 0))
    )


def _pieces(built: replay.Graph, bound: Binding, last: pl.DataFrame) -> pl.DataFrame:
    """Pieces between the nodes of the path, cut at the ends of the steps."""
    path = nodes_on_path(built, bound, last)
    begin = _begin(built, last) if last.height else 0
    since = np.append(begin, np.maximum(last["end_ns"].to_numpy(), begin))
    begins, ends = since[:-1], since[1:]
    times = np.maximum.accumulate(built.time[path])
    # pieces by the node at their end: of each step those from the first node after its beginning to
    # the first at its end or later; nothing leads to the very first node, so the time before it is
    # unknown
    low, high = (
        np.searchsorted(times, begins, side="right"),
        np.searchsorted(times, ends, side="left"),
    )
    count = np.where(ends > begins, np.minimum(high + 1, len(path)) - low, 0)
    number = np.repeat(np.arange(len(count)), count)
    at = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count) + low[number]
    node, begin_of, end_of = path[at], begins[number], ends[number]
    start = np.where(at > 0, np.clip(times[np.maximum(at - 1, 0)], begin_of, end_of), begin_of)
    end = np.clip(times[at], begin_of, end_of)
    rest = np.where(at > 0, np.minimum(built.rest[node], end - start), end - start)
    row = node // 2
    events = built.events[row][
        [
            "rank",
            "where",
            "thread",
            "stream",
            "name",
            "source",
            "category",
            "layer",
            "stage",
            "event",
            "shift_ns",
        ]
    ]
    base = events.with_columns(
        step=last["step"].gather(number).cast(pl.Int32),
        kind=pl.Series(bound.kind[node]),
        evidence=pl.Series(np.asarray(replay.EVIDENCE)[bound.evidence[node]], dtype=pl.String),
        ends=pl.Series(node % 2 == 1),
        start_ns=pl.Series(start),
        dur_ns=pl.Series(end - start),
        rest=pl.Series(rest),
    )
    explained = base.with_columns(part=_part(), dur_ns=pl.col("dur_ns") - pl.col("rest"))
    unknown = base.filter(pl.col("rest") > 0).with_columns(
        part=pl.lit("unexplained"),
        evidence=pl.lit(None, pl.String),
        start_ns=END - pl.col("rest"),
        dur_ns="rest",
    )
    both: pl.DataFrame = pl.concat([explained, unknown])
    return both.filter(pl.col("dur_ns") > 0).sort("step", "start_ns", maintain_order=True)


def _held(trace: Trace, rows: pl.DataFrame) -> pl.DataFrame:
    """Unexplained time before work that a call of the host held, by the call."""
    unknown = (pl.col("part") == "unexplained") & (pl.col("where") == "device")
    if not rows.select(unknown.any()).item():
        return rows
    held = (
        idle(trace)
        .filter(waited_kind="call")
        .select(event="next_event", call="waited_name", held="dur_ns")
    )
    rows = rows.join(held, on="event", how="left", maintain_order="left", validate="m:1")
    by_call = unknown & (pl.col("held") >= MIN_SHARE * pl.col("dur_ns"))
    assumed = pl.lit(replay.EVIDENCE[replay.BY_TIMES])
    return rows.with_columns(
        part=pl.when(by_call).then(pl.lit("device held")).otherwise("part"),
        name=pl.when(by_call).then("call").otherwise("name"),
        evidence=pl.when(by_call).then(assumed).otherwise("evidence"),
    ).drop("call", "held")


def _part() -> pl.Expr:
    device, ends, kind = pl.col("where") == "device", pl.col("ends"), pl.col("kind")
    cases = {
        "transfer": (
            device & ends & ((kind == replay.COLLECTIVE) | (pl.col("category") == "collective"))
        ),
        "copy": device & ends & (pl.col("source") == "copy"),
        "compute": device & ends,
        "launch": device & (kind == replay.LAUNCH),
        "stream wait": device & kind.is_in([replay.ASSUMED, replay.STREAM_WAIT]),
        "device gap": device,
        "synchronise": kind.is_in([replay.LOADING, replay.SYNCHRONISE]),
        "scheduler": kind == replay.SCHEDULED,
        "host call": ends,
    }
    return first_true(cases, "host")


def _node_names(trace: Trace, rows: pl.DataFrame) -> pl.DataFrame:
    """Names of the pieces of the host in which no call ran: the operator with most of the time."""
    rows = rows.with_columns(start_ns=pl.col("start_ns") + pl.col("shift_ns"))
    host = (pl.col("part") == "host") | (
        (pl.col("part") == "unexplained") & (pl.col("where") == "host")
    )
    between = rows.filter(host)
    # functions of Python are not read from a dataset; modules among them are ranges, too
    spans = host_spans(trace).filter(~pl.col("kind").is_in(["call", "python"]))
    spans = spans.filter(~pl.col("name").str.contains(labels.ANY))  # a step is not what ran
    if between.height and spans.height:
        # the thread that the path is on may be idle, while another thread works for it
        named = []
        for thread, some in (
            (pl.col("thread"), spans),
            (
                pl.lit(0, dtype=pl.Int64).alias("thread"),
                spans.filter(pl.col("kind") != "range"),
            ),
        ):
            windows = between.select("rank", thread, "start_ns", "dur_ns")
            inside = innermost_within(windows, some.with_columns(thread), ["rank", "thread"])
            most = longest_spans(windows, *inside)
            name = pl.when(pl.col("host_share") >= MIN_SHARE).then("host_name")
            named.append(most.select(name).to_series())
        between = between.with_columns(name=named[0].zip_with(named[0].is_not_null(), named[1]))
    else:
        between = between.with_columns(name=pl.lit(None, pl.String))
    return pl.concat([rows.filter(~host), between]).sort("step", "start_ns", maintain_order=True)
