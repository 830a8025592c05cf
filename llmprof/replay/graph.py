"""Dependency graph of a recording over all ranks: the conditions for the start and end of each
event.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import polars as pl
from msgspec import Struct, field
from numpy.typing import NDArray

from llmprof.analyze.collectives.collectives import collectives
from llmprof.analyze.idle.host import call_kinds
from llmprof.analyze.operator_times import refuse_samples
from llmprof.errors import NotCapturedError
from llmprof.label.groups import group_values, last_before
from llmprof.label.steps.steps import CUTS, steps_of
from llmprof.replay.recording import Recording, RowMask, clock_offsets, recording
from llmprof.replay.schedule import NEVER, Chains, NodeNumbers, Order
from llmprof.replay.waits import (
    MAX_AFTER_NS,
    USUAL_GAP_NS,
    awaited_last,
    first_launches,
    loading_calls,
    recorded_waits,
    waits_of_calls,
)
from llmprof.trace import Trace
from llmprof.trace.kept import per_trace
from llmprof.trace.schema import END

MAX_EVENTS: Final = 3_000_000
"""So many kernels, copies and calls are replayed by themselves: the graph of more would need
gigabytes.
"""

BACK_TO_BACK_NS: Final = 20_000
"""A kernel that was launched at least this long (ns) before its stream was free began as soon as
the stream allowed.
"""

MAX_GAP_NS: Final = 5_000
"""Longest gap (ns) that the device itself needs between two kernels of a stream; their order
explains no longer gap.
"""

MAX_LATENCY_NS: Final = 50_000
"""Longest time (ns) from the end of a launching call to the start on an idle device; the call
explains no longer time.
"""

MIN_PAUSE_NS: Final = 500_000
"""Least time (ns) between two calls of a launching thread in which it may have waited for
another one.
"""

MIN_SAMPLES: Final = 20
"""Least number of gaps between back-to-back kernels for a median."""


LAUNCH, SYNCHRONISE, COLLECTIVE, ASSUMED, HANDED_OVER, SCHEDULED, STREAM_WAIT, LOADING = range(8)
"""Kinds of edges between chains: the codes in :attr:`Graph.kind`."""

EVIDENCE: Final = ("recorded", "matched", "assumed")
"""Evidence of an edge, by its code in :attr:`Graph.evidence`: the recording names both ends; calls
of several ranks were matched by their order; or only the times of the events suggest it.
"""

BY_RECORD, BY_MATCH, BY_TIMES = range(3)

WAITS_FOR_ALL: Final = r"(?i)(?:device|ctx|context)synchroni[sz]e|synchroni[sz]edevice"
"""Names of calls that wait for all streams of a device."""

Kinds = NDArray[np.int8]


class Graph(Struct, frozen=True):
    """Events of a recording as nodes, and the chains and edges that order them.

    Every event has two nodes, its start (``2 * row``) and its end (``2 * row + 1``). Its chain is
    the stream, or the thread of the host, that it ran on.
    """

    events: pl.DataFrame
    """``row, chain, rank, where`` (host or device), ``thread, device, stream, start_ns, dur_ns``
    (on the clock that the ranks share), ``recorded_ns`` (start as the trace has it), ``shift_ns``
    (between the two), ``name, source, category, step, phase, layer, stage, event, launch_start_ns,
    issued`` (the same, the start where it is unknown, and :data:`~.schedule.NEVER` where it was
    before the recording), ``launch_thread, launches`` (whether a thread of the host launches work),
    in the order of chains and time.
    """
    chains: NodeNumbers
    """First row of each chain, and the number of rows."""
    time: NodeNumbers
    """Recorded time of each node, in ns."""
    weight: NodeNumbers
    """Time between the node before and this one that the chain itself explains, in ns."""
    rest: NodeNumbers
    """Unexplained time: ns between the recorded time of a node and the end of everything that it is
    known to wait for.
    """
    source: NodeNumbers
    """Node that each edge comes from."""
    target: NodeNumbers
    """Node that each edge leads to."""
    delay: NodeNumbers
    """Least time over each edge, in ns."""
    kind: Kinds
    """Kind of each edge, such as :data:`LAUNCH`."""
    evidence: Kinds
    """Evidence of each edge: an index into :data:`EVIDENCE`."""
    order: list[Order] = field(default_factory=list)
    """See :class:`~.schedule.Chains`."""
    blocks: pl.DataFrame | None = None
    """``rank, step, block`` of steps that follow each other, where others between them were cut
    out, and ``since_ns``, before which nothing of the block was kept; both are null where nothing
    was cut out before.
    """

    def add_blocks(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Rows with ``rank, step``, and their ``block, since_ns``: 0 and
        :data:`~.schedule.NEVER` before any cut.
        """
        if self.blocks is None:
            return rows.with_columns(block=0, since_ns=int(NEVER))
        found = rows.join(self.blocks, on=["rank", "step"], how="left", maintain_order="left")
        return found.with_columns(
            pl.col("block").fill_null(0), pl.col("since_ns").fill_null(int(NEVER))
        )

    def schedule(self) -> Chains:
        """The graph for the scheduler, with unexplained time added to everything that leads to a
        node.
        """
        return Chains(
            bounds=2 * self.chains,
            weight=self.weight + self.rest,
            origin=self.origin(),
            source=self.source,
            target=self.target,
            delay=self.delay + self.rest[self.target],
            order=self.order,
        )

    def origin(self) -> NodeNumbers:
        """Recorded times of the nodes that nothing leads to, and :data:`~.schedule.NEVER` for
        all others.
        """
        origin = np.full(len(self.time), NEVER)
        first = 2 * self.chains[:-1]
        led_to = np.zeros(len(self.time), dtype=bool)
        led_to[self.target] = True
        free = first[~led_to[first]]
        origin[free] = self.time[free]
        return origin


def graph_events(trace: Trace) -> int:
    """Number of kernels, copies and calls of the device runtime, which the graph is made of."""
    return sum(map(trace.capture.height, ("kernels", "copies", "runtime")))


@per_trace
def graph(trace: Trace) -> Graph:
    """Build the dependency graph of a trace."""
    refuse_samples(trace, "what ran between them")
    recorded = recording(trace)
    if not recorded.rows.height:
        expected = "kernels or copies, which a replay is made of"
        hint = f"record {trace.capture.how_to_record('kernels')}"
        raise NotCapturedError(
            "the trace holds no work on a device", expected=expected, hint=hint, table="kernels"
        )
    waits, streams = (
        _synchronisation_edges(recorded),
        _edges(*recorded_waits(trace, recorded), STREAM_WAIT),
    )
    streams = _join_edges(streams, _edges(*waits_of_calls(trace, recorded), ASSUMED, BY_TIMES))
    loading = _edges(*loading_calls(recorded), LOADING, BY_TIMES)
    edges = _join_edges(
        _launches(recorded, streams), _collectives(trace, recorded), waits, streams, loading
    )
    weight = _weights(recorded, edges)
    unrecorded, least = first_launches(recorded)
    weight[unrecorded.target] = least
    edges = _join_edges(edges, _edges(*unrecorded, LOADING, BY_TIMES))
    edges = _join_edges(
        edges,
        _handed_over(recorded, weight, waits),
        _schedule_graph(trace, recorded, weight, waits),
    )
    edges = _join_edges(edges, _passed_on(recorded, weight))
    rest = _unexplained_edges(recorded, weight, edges)
    late = _edges(*awaited_last(recorded, rest), ASSUMED, BY_TIMES)
    # of what is unexplained
    np.minimum.at(
        rest, late.target, recorded.time[late.target] - recorded.time[late.source] - late.delay
    )
    return Graph(
        recorded.rows,
        recorded.chains,
        recorded.time,
        weight,
        rest,
        *_join_edges(edges, late),
        blocks=_blocks(trace),
    )


def _blocks(trace: Trace) -> pl.DataFrame | None:
    """See :attr:`Graph.blocks`."""
    if not (cuts := trace.meta.get(CUTS)):
        return None
    until = pl.coalesce(pl.col("host_start_ns") + pl.col("host_dur_ns"), END)
    rows = steps_of(trace).select("rank", "step", time=until)
    marks = pl.DataFrame(cuts, schema={"rank": pl.Int32, "time": pl.Int64}, orient="row").sort(
        "rank", "time"
    )
    [shift] = group_values(marks, clock_offsets(trace), ["rank"])
    marks = marks.with_columns(shift.fill_null(0), block=1 + pl.int_range(pl.len()).over("rank"))
    at = last_before(rows, marks, ["rank"], at="time")
    since = marks.select(pl.col("time") - pl.col("shift_ns")).to_series()
    return rows.select("rank", "step", block=marks["block"].gather(at), since_ns=since.gather(at))


class Edges(NamedTuple):
    """Edges between nodes, as the columns of a :class:`Graph`."""

    source: NodeNumbers
    target: NodeNumbers
    delay: NodeNumbers
    kind: Kinds
    evidence: Kinds


def _join_edges(*edges: Edges) -> Edges:
    source, target, delay, kind, evidence = (
        np.concatenate(column) for column in zip(*edges, strict=True)
    )
    return Edges(source, target, delay, kind, evidence)


def _edges(
    source: NodeNumbers,
    target: NodeNumbers,
    delay: NodeNumbers,
    kind: int,
    evidence: int | RowMask = BY_RECORD,
) -> Edges:
    return Edges(
        source.astype(np.int64),
        target.astype(np.int64),
        delay.astype(np.int64),
        np.full(len(source), kind, dtype=np.int8),
        np.broadcast_to(np.asarray(evidence, dtype=np.int8), source.shape),
    )


def _none() -> Edges:
    nothing = np.empty(0, dtype=np.int64)
    return _edges(nothing, nothing, nothing, 0)


def _launches(recorded: Recording, streams: Edges) -> Edges:
    """Edges from the start of each launching call to the start of the launched work."""
    time, call = recorded.time, recorded.call
    row = np.flatnonzero(call >= 0)
    latency = time[2 * row] - time[2 * call[row]]
    row, latency = row[latency >= 0], latency[latency >= 0]
    issued = time[2 * call[row]]
    inside = time[2 * call[row] + 1] - issued
    held = np.zeros(len(call), dtype=bool)
    held[streams.target[time[streams.target] - time[streams.source] <= MAX_AFTER_NS] // 2] = True
    # a long call (of a graph) that returns after its stream was free, just before the work begins,
    # held it; a blocking copy returns after the work
    before = recorded.before[row]
    returned = inside <= latency
    held_by_call = (before < issued + inside) & returned & (latency - inside <= MAX_LATENCY_NS)
    free = ((before <= issued) | held_by_call) & ~held[row]
    quick = int(np.quantile(latency[free], 0.1)) if free.any() else 0
    # on a free stream the launch set the start; otherwise it is only known that the launch was
    # early enough, and that the work came after the call
    early = np.where(returned, np.maximum(inside, quick), quick)
    delay = np.minimum(latency, np.where(free, inside + MAX_LATENCY_NS, early))
    return _edges(2 * call[row], 2 * row, delay, LAUNCH)


def _weights(recorded: Recording, edges: Edges) -> NodeNumbers:
    """Times that a chain explains: durations, gaps of the host, and the device's own gaps
    between kernels.
    """
    start, end, before, call = recorded.start, recorded.end, recorded.before, recorded.call
    gap = np.where(before == NEVER, 0, start - before)
    queued = recorded.on_device & (before != NEVER) & (gap >= 0) & (gap <= MAX_GAP_NS) & (call >= 0)
    queued[queued] = before[queued] - start[call[queued]] >= BACK_TO_BACK_NS
    usual = int(np.median(gap[queued])) if queued.sum() >= MIN_SAMPLES else USUAL_GAP_NS
    ready = np.where(call >= 0, start[call], NEVER)
    most = np.where(before >= ready, MAX_GAP_NS, usual)
    weight = np.empty(len(recorded.time), dtype=np.int64)
    weight[0::2] = np.where(recorded.on_device, np.minimum(gap, most), gap)
    weight[1::2] = end - start
    # a collective ends its transfer after the arrivals; a call that waits takes at least its own
    # time
    at_end = edges.target % 2 == 1
    row = edges.target[at_end] // 2
    alone = np.minimum(end - start, recorded.own)[row]
    weight[edges.target[at_end]] = np.where(recorded.on_device[row], edges.delay[at_end], alone)
    return weight


def _collectives(trace: Trace, recorded: Recording) -> Edges:
    """Edges from the start of a collective on every rank to its end on every rank."""
    time = recorded.time
    calls = collectives(trace)
    matched = pl.col("call").is_not_null() & pl.col("wait_ns").is_not_null()
    calls = calls.filter(matched).select(
        "rank",
        "call",
        "name",
        "dur_ns",
        start_ns=pl.col("start_ns") - pl.col("clock_offset_ns").fill_null(0),
    )
    some = recorded.work.filter(pl.col("start_ns").is_in(calls["start_ns"].implode()))
    member = calls.join(
        some.select("rank", "start_ns", "dur_ns", "name", "row").collect(),
        on=["rank", "start_ns", "dur_ns", "name"],
    ).unique("row")
    if not member.height:
        return _none()
    last = member.group_by("call").agg(last=pl.max("start_ns"), count=pl.len())
    member = member.join(last.filter(pl.col("count") > 1), on="call")
    pairs = member[["call", "row", "last"]].join(member.select("call", other="row"), on="call")
    pairs = pairs.filter(pl.col("row") != pl.col("other"))
    source, target = (
        2 * pairs["other"].to_numpy().astype(np.int64),
        2 * pairs["row"].to_numpy().astype(np.int64) + 1,
    )
    transfer = time[target] - pairs["last"].to_numpy()
    good = transfer >= 0
    return _edges(source[good], target[good], transfer[good], COLLECTIVE, BY_MATCH)


def _synchronisation_edges(recorded: Recording) -> Edges:
    """Edges from the end of work on a device to the end of the host's calls that waited for it."""
    rows, time, call, own = recorded.rows, recorded.time, recorded.call, recorded.own
    synchronises = call_kinds(recorded.names)["synchronises"].fill_null(False).to_numpy()
    waits = rows[np.flatnonzero(synchronises & ~recorded.on_device)].select(
        "row",
        "rank",
        "launches",
        "start_ns",
        "awaited_stream",
        end_ns=END,
        noted=pl.coalesce(pl.col("awaited_ns"), "start_ns"),
        recorded=pl.col("wait_recorded").fill_null(False)
        | pl.col("name").str.contains(WAITS_FOR_ALL),
    )
    copies = np.flatnonzero((call >= 0) & (rows["source"] == "copy").to_numpy())
    within = copies[time[2 * copies + 1] <= time[2 * call[copies] + 1]]
    within = within[
        (time[2 * call[within] + 1] - time[2 * call[within]]) > 3 * np.maximum(own[call[within]], 1)
    ]
    edges = [_none()]
    if len(within):
        lag = time[2 * call[within] + 1] - time[2 * within + 1]
        edges.append(_edges(2 * within + 1, 2 * call[within] + 1, lag, SYNCHRONISE, BY_TIMES))
    source, target, is_recorded = _awaited_nodes(recorded, waits)
    late = time[source] < time[target - 1]
    lag = time[target] - np.where(late, time[target - 1], time[source])
    edges.append(
        _edges(source, target, lag, SYNCHRONISE, np.where(is_recorded, BY_RECORD, BY_TIMES))
    )
    return _join_edges(*edges)


def _awaited_nodes(
    recorded: Recording, waits: pl.DataFrame
) -> tuple[NodeNumbers, NodeNumbers, RowMask]:
    """Work that synchronising calls waited for: node that ended, node of the call's end, and
    whether it is recorded.
    """
    # It is the latest work on the awaited stream (of the rank, if the stream is unknown) that was
    # launched before the call began, or before the event was recorded, and that had ended when the
    # call returned. On a thread that launches work itself, it must also have been running when the
    # call began.
    work = recorded.work.select("rank", "chain", "stream", "row", "issued", end_ns=END).collect()
    best = np.full(waits.height, NEVER)
    awaited = np.full(waits.height, -1, dtype=np.int64)
    rank, begin, end, noted = (waits[c].to_numpy() for c in ("rank", "start_ns", "end_ns", "noted"))
    named = waits["awaited_stream"]
    for stream in work.partition_by("chain", maintain_order=True):
        number = stream["stream"][0]
        this = named.is_null() if number is None else (named == number).fill_null(True)
        here = np.flatnonzero((rank == stream["rank"][0]) & this.to_numpy())
        issued = np.maximum.accumulate(stream["issued"].to_numpy())
        ended = np.maximum.accumulate(stream["end_ns"].to_numpy())
        issued_before = np.searchsorted(issued, noted[here], side="right")
        last = np.minimum(issued_before, np.searchsorted(ended, end[here], side="right")) - 1
        here, last = here[last >= 0], last[last >= 0]
        later = ended[last] > best[here]
        here, last = here[later], last[later]
        best[here] = ended[last]
        awaited[here] = stream["row"].to_numpy()[last]
    # a thread that only waits may get results long after they arrived
    ordered = (awaited >= 0) & ((best >= begin) | ~waits["launches"].to_numpy())
    return (
        2 * awaited[ordered] + 1,
        2 * waits["row"].to_numpy()[ordered].astype(np.int64) + 1,
        waits["recorded"].to_numpy()[ordered],
    )


def _handed_over(recorded: Recording, weight: NodeNumbers, waits: Edges) -> Edges:
    """Edges to threads that only wait: from the launch of the awaited work to the beginning of
    the wait.
    """
    # If the thread was still in an earlier wait at this launch, its next wait began when the
    # earlier one ended, not a fixed time after the launch. The edge then has only the shortest
    # delay of the other waits.
    rows, time, call = recorded.rows, recorded.time, recorded.call
    source, target = waits.source // 2, waits.target // 2
    only_waits = (rows["launches"] == False).fill_null(False).to_numpy()  # noqa: E712
    chosen = only_waits[target] & (call[source] >= 0)
    source, target = call[source[chosen]], target[chosen]
    delay = time[2 * target] - time[2 * source]
    source, target, delay = source[delay >= 0], target[delay >= 0], delay[delay >= 0]
    busy = recorded.before[target] > time[2 * source]
    quick = int(np.quantile(delay[~busy] if (~busy).any() else delay, 0.1)) if len(delay) else 0
    delay = np.where(busy, np.minimum(delay, quick), delay)
    weight[2 * target[~busy]] = 0
    return _edges(2 * source, 2 * target, delay, HANDED_OVER, BY_TIMES)


def _passed_on(recorded: Recording, weight: NodeNumbers) -> Edges:
    """Edges between launching threads that take turns, as the main thread and that of the
    backward pass do.
    """
    # A thread waited for another one in a pause, or before its first call, if the other made its
    # last call before a pause of its own in it.
    place = pl.col("row").cast(pl.Int64)
    calls = (
        recorded.rows.lazy()
        .filter(pl.col("launches"))
        .select("rank", "chain", row=place, start="start_ns", end=END)
        .collect()
    )
    before = pl.col("end").shift(1).over("chain").fill_null(-(2**61))
    after = pl.col("start").shift(-1).over("chain")
    calls = calls.with_columns(before=before, pause_after=after - pl.col("end")).sort("end")
    found = (
        calls.filter(pl.col("start") - pl.col("before") >= MIN_PAUSE_NS)
        .sort("start")
        .join_asof(
            calls.filter(pl.col("pause_after").fill_null(MIN_PAUSE_NS) >= MIN_PAUSE_NS),
            left_on="start",
            right_on="end",
            by="rank",
            suffix="_other",
            check_sortedness=False,
            coalesce=False,
        )
        .filter(
            (pl.col("chain") != pl.col("chain_other"))
            & (pl.col("end_other") > pl.col("before"))
            & (pl.col("end_other") + pl.col("pause_after_other").fill_null(2**61) > pl.col("start"))
        )
    )
    row, other = found["row"].to_numpy(), found["row_other"].to_numpy()
    weight[2 * row] = 0
    return _edges(
        2 * other + 1, 2 * row, recorded.start[row] - recorded.end[other], HANDED_OVER, BY_TIMES
    )


def _schedule_graph(trace: Trace, recorded: Recording, weight: NodeNumbers, waits: Edges) -> Edges:
    """Edges through the scheduler: from the arrival of a step's result to the first call of a
    later step.
    """
    # If a worker's launching thread never waits for the device, the scheduler tells it when to
    # begin the next step, and the scheduler waits for the results of an earlier step. The recording
    # shows how far it runs ahead: the largest number of steps that began before the results of
    # earlier steps had arrived.
    rows, time, previous_end = recorded.rows, recorded.time, recorded.before
    labels = steps_of(trace).drop_nulls("host_start_ns")
    if not labels.height or not len(waits.target):
        return _none()
    launching = (
        rows.lazy()
        .filter(pl.col("launches"))
        .select("rank", "chain", "row", "name", "start_ns")
        .collect()
    )
    arrivals = (
        pl.DataFrame({"arrival": waits.target // 2, "work": waits.source // 2})
        .with_columns(rows[waits.source // 2].select(output="step"))
        .with_columns(rows[waits.target // 2].select("chain", time=END))
        .with_columns(rows[waits.target // 2][["launches"]])
        .drop_nulls("output")
        # if there is a thread that only waits, the scheduler gets its results
        .filter(~pl.col("launches") | pl.col("launches").all())
    )
    own = (
        launching.filter(call_kinds(launching["name"])["synchronises"])
        .group_by("chain")
        .agg(own=pl.len())
    )
    arrivals = arrivals.sort("time").unique("output", keep="first", maintain_order=True)
    first = (
        labels.join(clock_offsets(trace), on="rank", how="left")
        .select("rank", "step", time=pl.col("host_start_ns") - pl.col("shift_ns").fill_null(0))
        .sort("time")
        .join_asof(
            launching.select("rank", "chain", "row", time="start_ns").sort("time"),
            on="time",
            by="rank",
            strategy="forward",
            check_sortedness=False,
            coalesce=False,
        )
        .drop_nulls("row")
        .unique("row")
        .join(own, on="chain", how="left")
        # a thread that waits for results itself does not need the scheduler, even if they have
        # always arrived
        .filter(pl.col("own").fill_null(0) < pl.len().over("chain") / 2)
        .select("chain", "step", "row", time="time_right")
    )
    if not first.height or not arrivals.height:
        return _none()
    # a step that began before the result of the one before it had arrived shows how far the
    # scheduler runs ahead
    latest = first.sort("time").join_asof(
        arrivals.select("time", newest=pl.col("output").cum_max()),
        on="time",
        check_sortedness=False,
    )
    ahead = int(latest.select((pl.col("step") - pl.col("newest")).max()).item() or 1)
    matched = first.with_columns(output=pl.col("step") - ahead).join(
        arrivals.select("output", "arrival", arrived="time"), on="output"
    )
    if ahead < 1 or not matched.height:
        return _none()
    row = matched["row"].to_numpy().astype(np.int64)
    matched = matched.with_columns(
        gap=pl.Series(np.where(previous_end[row] == NEVER, 0, time[2 * row] - previous_end[row])),
        lag=pl.col("time") - pl.col("arrived"),
    ).filter(pl.col("lag") >= 0)
    quick = (
        pl.col("gap").quantile(0.1).over("chain").cast(pl.Int64),
        pl.col("lag").quantile(0.1).cast(pl.Int64),
    )
    matched = matched.with_columns(
        least_gap=pl.min_horizontal("gap", quick[0]), least_lag=pl.min_horizontal("lag", quick[1])
    )
    # of the two, the one closer to the usual delay explains the beginning of the step
    by_scheduler = pl.col("lag") - pl.col("least_lag") <= pl.col("gap") - pl.col("least_gap")
    matched = matched.with_columns(
        delay=pl.when(by_scheduler).then("lag").otherwise("least_lag"),
        own_gap=pl.when(by_scheduler).then("least_gap").otherwise("gap"),
    )
    row = matched["row"].to_numpy().astype(np.int64)
    weight[2 * row] = matched["own_gap"].to_numpy()
    return _edges(
        2 * matched["arrival"].to_numpy() + 1,
        2 * row,
        matched["delay"].to_numpy(),
        SCHEDULED,
        BY_TIMES,
    )


def _unexplained_edges(recorded: Recording, weight: NodeNumbers, edges: Edges) -> NodeNumbers:
    """Delay of each node's recorded time after everything that leads to it."""
    time = recorded.time
    bound = np.full(len(time), NEVER)
    bound[1:] = time[:-1] + weight[1:]
    bound[2 * recorded.chains[:-1]] = NEVER
    np.maximum.at(bound, edges.target, time[edges.source] + edges.delay)
    return np.where(bound == NEVER, 0, time - bound)
