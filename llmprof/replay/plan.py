"""Plan of a replay: a recording's dependency graph whose weights a change may rewrite."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import polars as pl
from msgspec.structs import replace
from numpy.typing import NDArray

from llmprof.analyze.collectives.collectives import bus_factor, collectives
from llmprof.errors import AnalysisError
from llmprof.names.matching import contains
from llmprof.replay.contraction import contract_graph, stack_variants
from llmprof.replay.graph import (
    COLLECTIVE,
    HANDED_OVER,
    LAUNCH,
    LOADING,
    SCHEDULED,
    Graph,
    graph,
)
from llmprof.replay.recording import RowMask
from llmprof.replay.schedule import NEVER, Chains, NodeNumbers, earliest
from llmprof.replay.targets import ANY_STAGE
from llmprof.trace import Trace
from llmprof.trace.kept import per_trace

GuessLevel = Literal["low", "middle", "high"]

LEVELS: Final[tuple[GuessLevel, ...]] = ("low", "middle", "high")
"""Levels of values that a change cannot know: for a short step, an expected step, and a long
step.
"""


class ReplayPlan:
    """The graph of a recording with weights that changes may rewrite."""

    def __init__(self, built: Graph, level: GuessLevel) -> None:
        self.built = built
        self.level = level
        self.guessed = False
        """Whether a change chose a value that it cannot know: without one, all levels give the
        same times.
        """
        self.left_out: set[str] = set()
        """Phases that a change predicts nothing for."""
        self.events = built.events
        self.weight: NodeNumbers = built.weight.copy()
        self.rest: NodeNumbers = built.rest.copy()
        self.delay: NodeNumbers = built.delay.copy()
        self.kept = np.ones(len(built.source), dtype=bool)
        self.device: RowMask = (self.events["where"] == "device").to_numpy()
        self.dur: NodeNumbers = self.events["dur_ns"].to_numpy().astype(np.int64)

    def choose(self, low: float, middle: float, high: float) -> float:
        """One of three values, by the level."""
        self.guessed = True
        return {"low": low, "middle": middle, "high": high}[self.level]

    def work(self, what: str) -> RowMask:
        """Device events that a word selects: a stage, a category, or a regular expression on the
        kernel's name.
        """
        rows = self.events
        stages, categories = (
            set(rows["stage"].drop_nulls().unique()),
            set(rows["category"].drop_nulls().unique()),
        )
        # the stage of a copy says where no other stage is known; the category is of all copies
        if what in stages and not (what in categories and what in ANY_STAGE):
            mask = rows["stage"] == what
        elif what in categories:
            mask = rows["category"] == what
        else:
            mask = self._name_matches(
                what, f"{what!r} is no stage, no category and no regular expression"
            )
        chosen: RowMask = mask.fill_null(False).to_numpy() & self.device
        if not chosen.any():
            raise AnalysisError(
                f"the change {what!r} matches nothing in this recording",
                expected=f"a stage ({', '.join(sorted(stages)) or 'none known'}), a category "
                f"({', '.join(sorted(categories)) or 'none known'}), or part of a kernel's name",
            )
        return chosen

    def calls(self, name: str) -> RowMask:
        """Calls of the host whose name matches a regular expression."""
        mask = self._name_matches(name, f"{name!r} is no regular expression")
        chosen: RowMask = mask.fill_null(False).to_numpy() & ~self.device
        if not chosen.any():
            found = f"no call of the host in this recording is named {name!r}"
            raise AnalysisError(found, expected="part of the name of a call")
        return chosen

    def _name_matches(self, pattern: str, otherwise: str) -> pl.Series:
        """Events whose name matches a pattern; each distinct name is looked at once."""
        names = self.events["name"]
        distinct = names.unique()
        try:
            re.compile(pattern)
            return names.is_in(distinct.filter(distinct.str.contains(f"(?i){pattern}")).implode())
        except (re.error, pl.exceptions.ComputeError) as error:
            raise AnalysisError(
                otherwise, expected="part of a name, as a regular expression"
            ) from error

    def call_gone(self, rows: RowMask) -> None:
        """Make calls of the host take no time, wait for nothing, and hold no work on their
        rank's devices.
        """
        self.weight[1::2][rows] = 0
        self.rest[1::2][rows] = 0
        self.kept &= ~((self.built.target % 2 == 1) & rows[self.built.target // 2])
        late = self.device & (self.rest[0::2] > 0)
        start, ranks = self.built.time[0::2], self.events["rank"].to_numpy()
        for rank in np.unique(ranks[rows]):
            held = np.flatnonzero(late & (ranks == rank))
            calls = np.flatnonzero(rows & (ranks == rank))
            inside = _covered(start[calls], self.built.time[1::2][calls])
            until = start[held]
            self.rest[0::2][held] -= inside(until) - inside(until - self.rest[0::2][held])

    def collectives(self) -> RowMask:
        """Events of the devices that are collectives matched over the ranks."""
        chosen = np.zeros(self.events.height, dtype=bool)
        chosen[self.built.target[self.built.kind == COLLECTIVE] // 2] = True
        return chosen

    def set_duration(self, rows: RowMask, dur: NodeNumbers | NDArray[np.floating[Any]]) -> None:
        """Give events another duration; that of a matched collective is its transfer, after its
        last rank arrived.
        """
        self.weight[1::2][rows] = np.maximum(np.asarray(dur), 0).astype(np.int64)[rows]
        ends = (self.built.kind == COLLECTIVE) & rows[self.built.target // 2]
        self.delay[ends] = self.weight[self.built.target[ends]]

    def own_duration(self) -> NodeNumbers:
        """Duration of each event without waiting for others."""
        return np.array(self.weight[1::2], dtype=np.int64)

    def launching(self, rows: RowMask) -> NodeNumbers:
        """Row of the host's call that launched each of the events, as far as it is known."""
        edges = (self.built.kind == LAUNCH) & rows[self.built.target // 2]
        calls: NodeNumbers = self.built.source[edges] // 2
        return calls

    def set_gap(self, rows: RowMask, gap_ns: float) -> None:
        """Limit the gap before events on their stream."""
        self.weight[0::2][rows] = np.minimum(self.weight[0::2][rows], int(gap_ns))

    def launches_by_step(self, rows: RowMask) -> pl.DataFrame:
        """First and last host call that launched some of the events of each step, by thread."""
        edges = (self.built.kind == LAUNCH) & rows[self.built.target // 2]
        target, source = self.built.target[edges] // 2, self.built.source[edges] // 2
        calls: pl.DataFrame = self.events[source][["chain", "row"]].with_columns(
            step=self.events["step"][target]
        )
        first, last = pl.min("row").cast(pl.Int64), pl.max("row").cast(pl.Int64)
        spans = calls.group_by("chain", "step").agg(first=first, last=last).sort("chain", "first")
        return spans.with_columns(following=pl.col("first").shift(-1).over("chain"))

    def one_launch(self, calls: pl.DataFrame, launch_ns: int) -> RowMask:
        """Replace all calls from the first to the last by one call; a single call does not
        change.
        """
        # The launched work begins when this call has ended and its stream allows it, as in a graph.
        within = np.zeros(self.events.height + 1, dtype=np.int64)
        calls = calls.filter(pl.col("first") < pl.col("last"))
        for first, last in calls[["first", "last"]].iter_rows():
            part = slice(2 * first + 1, 2 * last + 2)
            taken = int(self.weight[part].sum())
            self.weight[part], self.rest[part] = 0, 0
            self.weight[2 * first + 1] = min(launch_ns, taken)
            within[first] += 1
            within[last + 1] -= 1
        call = self.built.source // 2
        inside = np.cumsum(within[:-1]) > 0
        self.kept &= ~((self.built.kind == LOADING) & inside[self.built.target // 2])
        edges = (self.built.kind == LAUNCH) & inside[call]
        self.delay[edges] = 0
        edges_of_first = edges & np.isin(call, calls["first"].to_numpy())
        self.delay[edges_of_first] = self.weight[2 * call[edges_of_first] + 1]
        rows = np.zeros(self.events.height, dtype=bool)
        rows[self.built.target[edges] // 2] = True
        self.rest[0::2][rows] = 0
        return rows

    def host_after(self, calls: pl.DataFrame, factor: float) -> None:
        """Scale the host's time from the last of the calls of each step to the first of those of
        the next.
        """
        of_last = self.built.chains[
            np.searchsorted(self.built.chains, calls["last"].to_numpy(), side="right")
        ]
        ends = pl.coalesce("following", pl.Series("_end", of_last))
        for last, end in (
            calls.select("last", end=ends).filter(pl.col("last") < pl.col("end")).iter_rows()
        ):
            part = slice(2 * last + 2, min(2 * end + 1, len(self.weight)))
            self.weight[part] = (self.weight[part] * factor).astype(np.int64)
        self.other_threads(factor)

    def host(self, factor: float) -> None:
        """Scale all of the host's time."""
        for part in (self.weight[0::2], self.weight[1::2]):
            part[~self.device] = (part[~self.device] * factor).astype(np.int64)
        self.other_threads(factor)

    def other_threads(self, factor: float) -> None:
        """Scale the host's time to pass work between threads, and to schedule the next step."""
        edges = np.isin(self.built.kind, (HANDED_OVER, SCHEDULED))
        self.delay[edges] = (self.delay[edges] * factor).astype(np.int64)

    def before(self, rows: RowMask, pattern: str) -> RowMask:
        """Events whose name matches a pattern and that are directly before one of some events in
        their chain.
        """
        named = contains(self.events["name"], pattern).fill_null(False).to_numpy() & rows
        chain = self.events["chain"].to_numpy()
        out = np.zeros(len(rows), dtype=bool)
        out[:-1] = named[1:] & (chain[1:] == chain[:-1])
        return out

    def without_call(self, rows: RowMask) -> None:
        """Remove the calls that launch only these events, and the host's time that prepares
        them.
        """
        launching, gone = np.zeros((2, len(rows)), dtype=bool)
        launching[self.launching(self.device)] = True
        gone[self.launching(rows)] = True
        gone[self.launching(~rows & self.device)] = False
        calls = np.flatnonzero(gone)
        self.weight[2 * calls + 1] = 0
        if len(calls):
            # what the host does for one launch is not more than it does before a usual one
            usual = int(np.median(self.built.weight[0::2][launching]))
            prepared = np.minimum(self.weight[2 * calls], usual)
            self.weight[2 * calls] -= (prepared * self.choose(1.0, 0.5, 0.0)).astype(np.int64)

    def make_one(self, rows: RowMask, follows: RowMask) -> None:
        """Merge each run of rows into one kernel; ``follows`` are the rows that join the row
        before in their chain.
        """
        dur = self.own_duration()
        head = np.flatnonzero(rows & ~follows)
        group = np.searchsorted(head, np.arange(len(rows)), side="right") - 1
        chosen = np.flatnonzero(rows)
        total, most = np.zeros(len(head)), np.zeros(len(head))
        np.add.at(total, group[chosen], dur[chosen])
        np.maximum.at(most, group[chosen], dur[chosen])
        new = dur.astype(np.float64)
        new[follows] = 0
        new[head] = self.choose(most, (most + total) / 2, total)  # type: ignore[arg-type]
        self.set_duration(rows, new)
        self.set_gap(follows, 0)
        self.rest[0::2][follows] = 0
        self.without_call(follows)

    def times(self) -> NodeNumbers:
        """Times of all nodes under the changes, in ns."""
        return times_of([self])[:, 0]

    def chains(self) -> Chains:
        """The changed graph for the scheduler; a removed edge has no effective delay."""
        built, kept = self.built, self.kept
        changed = replace(built, weight=self.weight, rest=self.rest, delay=self.delay).schedule()
        if kept.all():
            return changed
        led_to = replace(built, target=built.target[kept])
        return replace(changed, delay=np.where(kept, changed.delay, NEVER), origin=led_to.origin())


def _covered(start: NodeNumbers, end: NodeNumbers) -> Callable[[NodeNumbers], NodeNumbers]:
    """How much of the time before some times lies in any of some intervals, in ns."""
    order = np.argsort(start)
    begin, last = start[order], np.maximum.accumulate(end[order])
    own = np.maximum(last - np.maximum(begin, np.append(begin[:1], last[:-1])), 0)
    before = np.append(0, np.cumsum(own))

    def inside(time: NodeNumbers) -> NodeNumbers:
        place = np.searchsorted(begin, time, side="right")
        # of what began before, the interval that reaches furthest covers all from this time to its
        # end
        beyond = np.where(place > 0, np.maximum(last[np.maximum(place - 1, 0)] - time, 0), 0)
        return np.asarray(before[place] - beyond, dtype=np.int64)

    return inside


def times_of(plans: list[ReplayPlan]) -> NodeNumbers:
    """Times of all nodes (rows) under several plans of one graph (columns), in ns: scheduled at
    once.
    """
    each = [plan.chains() for plan in plans]
    return earliest(each[0])[:, np.newaxis] if len(each) == 1 else earliest(stack_variants(each))


@per_trace
def recorded_periods(trace: Trace) -> pl.DataFrame:
    """Time of every step of every rank as recorded."""
    return each_periods(trace, graph(trace).time[:, np.newaxis])[0]


def each_periods(trace: Trace, times: NodeNumbers) -> list[pl.DataFrame]:
    """Time of every step of every rank under each column of times of the nodes."""
    # The time of a step is that from its start on the rank's devices to the start of the next one,
    # of the last one to its own end. The last one before a cut is left out, unless no step of the
    # rank follows another.
    steps = _steps(trace)
    nodes = 2 * np.argsort(steps.number, kind="stable")[(steps.number < 0).sum() :]
    return steps.periods(nodes, times[nodes], nodes + 1, times[nodes + 1])


def periods_below(trace: Trace, least: ReplayPlan, group: NodeNumbers) -> list[pl.DataFrame]:
    """Times of the steps under a plan that lengthens nothing, and with each group of its events
    alone.

    ``group`` is the number of each event's group, from 0, or -1. A group alone has what the plan
    changes for its events and the recording for all others.
    """
    steps, built = _steps(trace), least.built
    low, most = least.chains(), built.schedule()
    begin, end = steps.asked(low.weight)
    part = contract_graph(low, most, np.concatenate([begin, end]), built.time)
    times = earliest(part.vary_groups(low, most, np.repeat(group, 2)))
    return steps.periods(begin, times[part.places(begin)], end, times[part.places(end)])


class _Steps(NamedTuple):
    """The steps of a graph on its devices."""

    built: Graph
    frame: pl.DataFrame
    """``rank, step, phase``, ``block`` of steps that follow each other, ``last`` of it, and
    ``alone``: nothing was cut, or no step of the rank follows another.
    """
    number: NodeNumbers
    """By event, the row of its step in the frame; -1 for events of none."""

    def asked(self, weight: NodeNumbers) -> tuple[NodeNumbers, NodeNumbers]:
        """Nodes among which, by step, are its first start and its last end, where no weight is
        less than these.
        """
        number, start, dur = self.number, weight[2::2], weight[1::2]
        chain = self.built.events["chain"].to_numpy()
        follows = (number[1:] == number[:-1]) & (chain[1:] == chain[:-1])
        begin = 2 * self._sorted(~np.append(False, follows & (dur[:-1] + start >= 0)))
        end = 2 * self._sorted(~np.append(follows & (start + dur[1:] >= 0), False)) + 1
        return begin, end

    def _sorted(self, chosen: RowMask) -> NodeNumbers:
        rows = np.flatnonzero(chosen & (self.number >= 0))
        return rows[np.argsort(self.number[rows], kind="stable")]

    def periods(
        self, begin: NodeNumbers, starts: NodeNumbers, end: NodeNumbers, ends: NodeNumbers
    ) -> list[pl.DataFrame]:
        """The frame of the steps for each column of the times of nodes, in the order of steps."""
        steps = self.frame
        kept = ~steps["last"] | steps["alone"]
        named = steps.filter(kept)[["rank", "step", "phase", "block"]]
        if not steps.height:
            nothing = pl.Series(dtype=pl.Int64)
            return [named.with_columns(period_ns=nothing, end_ns=nothing)] * starts.shape[1]
        every = np.arange(steps.height)
        start = np.minimum.reduceat(starts, np.searchsorted(self.number[begin // 2], every), axis=0)
        until = np.maximum.reduceat(ends, np.searchsorted(self.number[end // 2], every), axis=0)
        last = steps["last"].to_numpy()[:, np.newaxis]
        until = np.where(last, until, np.roll(start, -1, axis=0))
        mask = kept.to_numpy()
        return [
            named.with_columns(pl.Series("period_ns", lasted), pl.Series("end_ns", ended))
            for lasted, ended in zip((until - start)[mask].T, until[mask].T, strict=True)
        ]


@per_trace
def _steps(trace: Trace) -> _Steps:
    """The steps of the graph of a trace."""
    built = graph(trace)
    work = built.events.filter(where="device")[["rank", "step", "phase", "row"]]
    if work["step"].null_count() == work.height:
        work = work.with_columns(step=pl.lit(0, dtype=pl.Int32), phase=pl.lit(None, pl.String))
    work = work.drop_nulls("step")
    steps = (
        work.group_by("rank", "step").agg(pl.col("phase").drop_nulls().first()).sort("rank", "step")
    )
    follows = pl.struct("rank", "block") == pl.struct("rank", "block").shift(-1)
    steps = built.add_blocks(steps).with_columns(last=~follows.fill_null(False))
    cut = pl.lit(built.blocks is not None)
    steps = steps.with_columns(alone=~cut | pl.col("last").all().over("rank"))
    named = steps.select("rank", "step", number=pl.int_range(pl.len()))
    number = np.full(built.events.height, -1, dtype=np.int64)
    number[work["row"].to_numpy()] = work.join(named, on=["rank", "step"], maintain_order="left")[
        "number"
    ]
    return _Steps(built, steps, number)


def calls_of_rows(plan: ReplayPlan, trace: Trace) -> pl.DataFrame:
    """Matched collectives with their row, kind, size and own transfer."""
    calls = collectives(trace)[
        ["rank", "start_ns", "dur_ns", "name", "kind", "bytes", "world", "ranks"]
    ]
    rows = plan.events.filter(pl.Series(plan.collectives())).select(
        "rank", "dur_ns", "name", "row", start_ns="recorded_ns"
    )
    own = plan.own_duration()
    matched = rows.join(calls, on=["rank", "start_ns", "dur_ns", "name"], how="left").unique("row")
    return matched.with_columns(own_ns=pl.Series(own[matched["row"].to_numpy()], dtype=pl.Int64))


def new_transfer(
    rows: pl.DataFrame, bandwidth: float | None, latency: float | None, like: Trace | None
) -> pl.DataFrame:
    """Rows of :func:`calls_of_rows` with ``new_ns``, the time on a link or in another recording;
    null if unknown.
    """
    if like is not None:
        other = (
            collectives(like)
            .filter(pl.col("transfer_ns").is_not_null() & pl.col("wait_ns").is_not_null())
            .group_by("call", "kind", "bytes")
            .agg(pl.min("transfer_ns"))
            .group_by("kind", "bytes")
            .agg(new_ns=pl.median("transfer_ns"))
        )
        return rows.join(other, on=["kind", "bytes"], how="left", nulls_equal=True)
    factor = bus_factor(pl.coalesce("world", "ranks"))
    smallest = (
        pl.col("own_ns").quantile(0.1).over("kind") if latency is None else pl.lit(latency * 1e3)
    )
    if bandwidth is None:
        # the size-dependent part stays as it is
        return rows.with_columns(
            new_ns=pl.lit(latency) * 1e3
            + (pl.col("own_ns") - pl.col("own_ns").quantile(0.1).over("kind")).clip(0)
        )
    return rows.with_columns(new_ns=smallest + factor * pl.col("bytes") / bandwidth)
