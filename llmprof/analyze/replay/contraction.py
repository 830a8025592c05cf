"""The nodes of a graph whose order can matter in replays that all lie between two others: exact, and far fewer."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from llmprof.analyze.replay.schedule import NEVER, Chains, Ints, Order, earliest


@dataclass(frozen=True, slots=True)
class Contraction:
    """The part of a graph that sets the times of some of its nodes, in every replay between two others."""

    # The time of a node is the latest of what leads to it. What arrives in the latest of all replays no later than the
    # node's time in the earliest of them sets it in none, if what sets it there is kept. What arrives at one time in
    # all of them bounds the node like an origin. Between the nodes that are left a chain only adds its weights.
    nodes: Ints
    """Nodes that are kept, the first of each chain among them."""
    edges: Ints
    """Edges that may set the time of their target, whose source has not the same time in all replays."""
    bounds: Ints
    """As :attr:`~.schedule.Chains.bounds`, of the kept nodes; ``source`` and ``target`` likewise."""
    source: Ints
    target: Ints
    fixed: Ints
    """Latest arrival at each kept node of what arrives at one time in all replays."""
    order: list[Order] = field(default_factory=list)

    def of(self, graph: Chains) -> Chains:
        """The contracted graph of a replay."""
        weight = np.add.reduceat(graph.weight[: self.nodes[-1] + 1], np.append(0, self.nodes[:-1] + 1))
        weight[self.bounds[:-1]] = 0
        origin, delay = np.maximum(graph.origin[self.nodes], self.fixed), graph.delay[self.edges]
        return Chains(self.bounds, weight, origin, self.source, self.target, delay, self.order)

    def places(self, nodes: Ints) -> Ints:
        """Where some of the nodes that were asked for are in the contracted graph."""
        return np.searchsorted(self.nodes, nodes).astype(np.int64)


def contracted(least: Chains, most: Chains, asked: Ints, latest: Ints | None = None) -> Contraction:
    """Contract a graph to what sets the times of the asked nodes in replays between the least and the most.

    Weights, delays and origins of all replays are between theirs. ``latest`` are the times of the most, where known.
    """
    source, target = least.source, least.target
    soonest = earliest(least)
    latest = earliest(most) if latest is None else latest
    first = np.zeros(len(soonest), dtype=bool)
    first[least.bounds[:-1]] = True
    by_chain = np.where(first[target], NEVER, soonest[target - 1] + least.weight[target])
    low, high, own = soonest[source] + least.delay, latest[source] + most.delay, soonest[target]
    edges = np.flatnonzero((high > own) | ((low == own) & (own > by_chain)))
    constant = low[edges] == high[edges]
    moving, still = edges[~constant], edges[constant]
    kept = first
    for chosen in (source[moving], target[edges], asked):
        kept[chosen] = True
    nodes = np.flatnonzero(kept)
    fixed = np.full(len(nodes), NEVER)
    np.maximum.at(fixed, np.searchsorted(nodes, target[still]), low[still])
    bounds, begin, end = (np.searchsorted(nodes, of) for of in (least.bounds, source[moving], target[moving]))
    return Contraction(nodes, moving, bounds, begin, end, fixed)


def stacked(each: list[Chains]) -> Chains:
    """Variants of one graph as one graph, scheduled at once."""
    weight, origin, delay = (
        np.stack(column, axis=1) for column in zip(*((one.weight, one.origin, one.delay) for one in each), strict=True)
    )
    return replace(each[0], weight=weight, origin=origin, delay=delay)
