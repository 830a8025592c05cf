"""What holds for the replay of any recording: it agrees with its critical path and its slack,
and work costs time.
"""

import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import llmprof
from llmprof.analyze import critical_path
from llmprof.errors import LlmprofError
from llmprof.replay.critical_path import step_ends
from llmprof.replay.graph import graph
from llmprof.replay.part import replayed_part
from llmprof.replay.plan import ReplayPlan, times_of
from llmprof.replay.schedule import NEVER, latest
from llmprof.replay.what_if import replay_changes
from tests.samples import sample

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import same

LARGEST = 20 << 20
EVENTS = 12
"""Number of events on the critical path that are made shorter, each by itself."""


def least_slack_beside(built, last, rows):
    """Rows of a device on the longest path to a node, and for each the least slack of all that
    happens beside it.

    In the middle of an event, every path to the node crosses exactly one edge of the graph. If all
    others have more than ``x`` ns of slack, the event alone holds the node back by ``x``.
    """
    chains, time = built.schedule(), built.time
    bounds = np.full(len(time), -NEVER)
    bounds[last] = time[last]
    late = latest(chains, bounds)
    inner = np.ones(len(time), dtype=bool)
    inner[chains.bounds[:-1]] = False
    target = np.flatnonzero(inner)
    free = np.flatnonzero(chains.origin > NEVER)
    none = np.full(len(chains.source) + len(free), -1)
    begin = np.concatenate([time[target - 1], time[chains.source], np.full(len(free), NEVER)])
    end = np.concatenate([time[target], time[chains.target], time[free]])
    slack = np.concatenate(
        [
            late[target] - time[target - 1] - chains.weight[target],
            late[chains.target] - time[chains.source] - chains.delay,
            late[free] - chains.origin[free],
        ]
    )
    own = np.concatenate([target, none])
    ends = 2 * rows + 1
    critical = rows[
        (late[ends] == time[ends]) & (late[ends] == time[ends - 1] + chains.weight[ends])
    ]
    some = np.random.default_rng(0).permutation(critical)[:EVENTS]
    beside = []
    for row in some:
        middle = (time[2 * row] + time[2 * row + 1]) // 2
        over = (begin <= middle) & (end > middle) & (own != 2 * row + 1)
        beside.append(slack[over].min(initial=-NEVER))
    return some, np.array(beside, dtype=np.int64)


def shorter(built, row, ns):
    plan = ReplayPlan(built, "middle")
    chosen = np.arange(built.events.height) == row
    plan.set_duration(chosen, plan.own_duration() - ns)
    return plan


def check_one_event_alone(trace):
    """Removing ``x`` ns of work without slack gains at most ``x``, and exactly ``x`` if it is
    alone on the path.
    """
    built = graph(trace)
    unchanged = ReplayPlan(built, "middle")
    assert (unchanged.times() == built.time).all()
    last = int(step_ends(built).sort("end_ns")["node"][-1])
    dur = unchanged.own_duration()
    rows, beside = least_slack_beside(built, last, np.flatnonzero(unchanged.device & (dur > 0)))
    removed = [
        (row, ns, free)
        for row, free in zip(rows, beside, strict=True)
        for ns in (dur[row] // 2, dur[row])
    ]
    if not removed:
        return
    times = times_of([shorter(built, row, ns) for row, ns, _ in removed])
    for (row, ns, free), new in zip(removed, times.T, strict=True):
        gain = built.time[last] - new[last]
        assert (built.time >= new).all()
        assert gain <= ns
        if free >= ns:
            assert gain == ns, built.events.row(int(row), named=True)


def check_every_kind(trace):
    """No removal lengthens a step, and a kind of work gains at most its time on the critical
    path of its rank.
    """
    events = graph(trace).events.filter(pl.col("where") == "device")
    stages, kinds = (
        set(events["stage"].drop_nulls()),
        events["category"].drop_nulls().unique().sort().to_list(),
    )
    found = replay_changes(
        trace,
        tuple(
            f"{make}:{kind}{to}" for kind in kinds for make, to in (("scale", ":0"), ("remove", ""))
        ),
    )
    # what overlaps on a stream counts once on the path, and twice where it is removed
    after = pl.col("start_ns") - (pl.col("start_ns") + pl.col("dur_ns")).shift(1).over("chain")
    twice = (
        events.select("rank", after=after)
        .group_by("rank")
        .agg(-pl.col("after").clip(upper_bound=0).sum())
    )
    twice_of = dict(twice.iter_rows())
    paths = {}
    for rank in trace.ranks:
        parts = critical_path(trace, rank=rank).filter(pl.col("event").is_not_null())
        own = events.select("event", "category", of="stage").join(parts, on="event")
        paths[rank] = own
    for change, rows in found.items():
        assert isinstance(rows, pl.DataFrame), change
        assert (rows["middle_ns"] <= rows["recorded_ns"]).all(), change
        assert (rows["middle_ns"] >= 0).all(), change
        make, kind, *_ = change.split(":")
        # words that say nothing of the stage select by category
        column = "of" if kind in stages - {"other", "copy"} else "category"
        gains = rows.group_by("rank").agg((pl.col("recorded_ns") - pl.col("middle_ns")).sum())
        for rank, gain in gains.iter_rows() if make == "scale" else ():
            on_path = paths[rank].filter(pl.col(column) == kind)["dur_ns"].sum()
            assert gain <= on_path + twice_of[rank], (change, rank)


def check(trace):
    trace = replayed_part(trace).trace
    check_one_event_alone(trace)
    check_every_kind(trace)


@pytest.mark.parametrize(
    "name",
    ["torch_tp1_cudagraph", "run_torch_tp1", "torch_pp2_eager", "nsys_transformers_generate"],
)
def test_a_replay_agrees_with_its_critical_path(name):
    check(sample(name))


def test_a_replay_of_steps_agrees_with_its_critical_path():
    check(sample("torch_pp2_eager").select(step=[3, 4, 5, 9, 10]))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::llmprof.errors.TraceWarning")
@pytest.mark.parametrize("name", same.recordings(LARGEST, ""))
def test_every_replay_agrees_with_its_critical_path(name):
    try:
        trace = llmprof.read(same.ROOT / name)
        graph(trace)
    except LlmprofError as error:
        pytest.skip(error.found)
    check(trace)
