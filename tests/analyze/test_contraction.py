"""A contracted graph gives exactly the times of the whole graph, in all replays that it holds
for.
"""

import numpy as np
import pytest
from msgspec.structs import replace

from llmprof.replay.contraction import contract_graph, stack_variants
from llmprof.replay.graph import graph
from llmprof.replay.plan import ReplayPlan, each_periods, periods_below, times_of
from llmprof.replay.schedule import NEVER, Chains, earliest
from tests.samples import sample


def random_graph(random, edges):
    """Chains with edges that lead on in time; some weights are negative, as where kernels
    overlap.
    """
    lengths = random.integers(1, 40, size=random.integers(1, 6))
    bounds = np.append(0, np.cumsum(lengths))
    moment = np.concatenate([np.sort(random.random(length)) for length in lengths])
    source, target = random.integers(0, bounds[-1], size=(2, edges))
    forward = moment[source] < moment[target]
    source, target = source[forward], target[forward]
    weight = random.integers(-3, 20, size=bounds[-1])
    origin = np.full(bounds[-1], NEVER)
    free = np.setdiff1d(bounds[:-1], target)
    origin[free] = random.integers(0, 50, size=len(free))
    return Chains(bounds, weight, origin, source, target, random.integers(0, 80, size=len(source)))


def changed(values, random, sign, share):
    """Some of the values are larger or smaller."""
    return values + sign * random.integers(0, 15, size=values.shape) * (
        random.random(values.shape) < share
    )


def between(low, high, random):
    """Values between two others, often one of them."""
    part = random.choice([0.0, 0.3, 1.0], size=low.shape)
    return np.where(part == 1, high, low + ((high - low) * part).astype(np.int64))


@pytest.mark.parametrize("seed", range(200))
def test_times_of_a_contracted_graph_are_those_of_the_whole_graph(seed):
    random = np.random.default_rng(seed)
    built = random_graph(random, int(random.integers(0, 120)))
    share = random.choice([0.0, 0.1, 0.6])
    least, most = (
        replace(
            built,
            weight=changed(built.weight, random, sign, share),
            delay=changed(built.delay, random, sign, share),
        )
        for sign in (-1, 1)
    )
    gone = random.random(len(built.source)) < random.choice(
        [0.0, 0.2]
    )  # edges that some replays remove
    least = replace(least, delay=np.where(gone, NEVER, least.delay))
    asked = np.flatnonzero(random.random(len(built.weight)) < random.choice([0.0, 0.2]))
    part = contract_graph(least, most, asked)
    replays = [least, most, built if not gone.any() else most]
    for _ in range(5):
        weight, delay = (
            between(least.weight, most.weight, random),
            between(least.delay, most.delay, random),
        )
        replays.append(replace(built, weight=weight, delay=np.where(gone, least.delay, delay)))
    of_all = np.stack([earliest(one) for one in replays], axis=1)
    of_part = earliest(stack_variants([part.of(one) for one in replays]))
    assert (of_part[part.places(asked)] == of_all[asked]).all()


def test_edges_that_never_set_a_time_are_left_out():
    bounds, source, target = np.array([0, 5, 10]), np.array([0, 1]), np.array([6, 8])
    weight, origin = np.full(10, 10), np.full(10, NEVER)
    origin[[0, 5]] = 0
    built = Chains(bounds, weight, origin, source, target, np.array([0, 25]))
    shorter = replace(built, weight=np.where(np.arange(10) == 6, 8, weight))
    # the first edge arrives before its target in any case, the second one after it in one of the
    # replays, but always at the same time
    part = contract_graph(
        replace(built, weight=np.where(np.arange(10) == 7, 1, weight)), built, np.array([9])
    )
    assert part.nodes.tolist() == [0, 5, 8, 9]
    assert part.edges.tolist() == []
    assert earliest(part.of(built)).tolist() == [0, 0, 35, 45]
    assert contract_graph(shorter, built, np.array([9])).nodes.tolist() == [0, 5, 8, 9]


def test_nodes_before_one_that_its_chain_never_sets_are_left_out():
    bounds, source, target = np.array([0, 5, 10]), np.array([0, 4]), np.array([6, 8])
    origin = np.full(10, NEVER)
    origin[[0, 5]] = 0
    built = Chains(bounds, np.full(10, 10), origin, source, target, np.array([15, 60]))
    # node 6 has the time 15 and node 8 that of node 4, 40, and 60: what leads to node 6 does not
    # matter behind it
    part = contract_graph(
        replace(built, weight=np.where(np.arange(10) < 4, 5, 10)), built, np.array([9])
    )
    assert part.nodes.tolist() == [0, 4, 5, 8, 9]
    assert part.edges.tolist() == [1]
    assert earliest(part.of(built)).tolist() == [0, 40, 0, 100, 110]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("torch_tp4_cudagraph", marks=pytest.mark.slow),
        "torch_pp2_eager",
        "torch_tp4_eager_nccl",
        "nsys_tp2_cudagraph",
    ],
)
def test_steps_of_contracted_replays_are_those_of_whole_ones(name):
    trace, random = sample(name), np.random.default_rng(0)
    built = graph(trace)

    def shorter(chosen, share):
        plan = ReplayPlan(built, "middle")
        plan.set_duration(chosen & plan.device, plan.own_duration() * share)
        return plan

    share = random.random(built.events.height)
    groups = random.integers(-1, 4, size=built.events.height)
    least = shorter(groups >= 0, share)
    found = periods_below(trace, least, groups)
    whole = each_periods(
        trace, times_of([least, *(shorter(groups == group, share) for group in range(4))])
    )
    assert found[0].height
    assert [one.to_dict(as_series=False) for one in found] == [
        one.to_dict(as_series=False) for one in whole
    ]
    assert found[0]["end_ns"].sum() < found[1]["end_ns"].sum()
