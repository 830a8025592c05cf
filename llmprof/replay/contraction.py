"""The nodes of a graph whose order can matter in replays that all lie between two others: exact,
and far fewer.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from llmprof.replay.recording import RowMask
from llmprof.replay.schedule import NEVER, Chains, NodeNumbers, Order, earliest


class Contraction(Struct, frozen=True):
    """The part of a graph that sets the times of some of its nodes, in every replay between two
    others.
    """

    # The time of a node is the latest of what leads to it. What arrives in the latest of all
    # replays no later than the node's time in the earliest of them sets it in none, if what sets it
    # there is kept. What arrives at one time in all of them bounds the node like an origin. Between
    # the nodes that are left a chain only adds its weights. Nodes that lead to no asked one are
    # left as they are without their edges: too early.
    nodes: NodeNumbers
    """Nodes that are kept, the first of each chain among them."""
    edges: NodeNumbers
    """Edges that may set the time of their target, whose source has not the same time in all
    replays.
    """
    bounds: NodeNumbers
    """As :attr:`~.schedule.Chains.bounds`, of the kept nodes; ``source`` and ``target``
    likewise.
    """
    source: NodeNumbers
    target: NodeNumbers
    fixed: NodeNumbers
    """Latest arrival at each kept node of what arrives at one time in all replays."""
    order: list[Order] = field(default_factory=list)

    def of(self, graph: Chains) -> Chains:
        """The contracted graph of a replay."""
        weight = np.add.reduceat(
            graph.weight[: self.nodes[-1] + 1], np.append(0, self.nodes[:-1] + 1)
        )
        weight[self.bounds[:-1]] = 0
        origin, delay = np.maximum(graph.origin[self.nodes], self.fixed), graph.delay[self.edges]
        return Chains(self.bounds, weight, origin, self.source, self.target, delay, self.order)

    def vary_groups(self, least: Chains, most: Chains, group: NodeNumbers) -> Chains:
        """The contracted graphs of several replays, scheduled at once: the least, and each group of
        nodes alone.

        ``group`` is the number of each node's group, from 0, or -1. A replay has the weights of the
        nodes of its group and the delays of the edges that lead to them from the least, and all
        others from the most.
        """
        one = self.of(most)
        count = 1 + int(group.max(initial=-1)) + 1
        weight, delay = (
            np.repeat(values[:, np.newaxis], count, axis=1) for values in (one.weight, one.delay)
        )
        less = least.weight - most.weight
        changed = np.flatnonzero(less[: self.nodes[-1] + 1])
        sooner = (least.delay - most.delay)[self.edges]
        edges = np.flatnonzero(sooner)
        for values, places, by, of in (
            (weight, self.places(changed), less[changed], group[changed]),
            (delay, edges, sooner[edges], group[least.target[self.edges[edges]]]),
        ):
            np.add.at(values[:, 0], places, by)
            np.add.at(values, (places[of >= 0], 1 + of[of >= 0]), by[of >= 0])
        weight[self.bounds[:-1]] = 0
        return replace(one, weight=weight, origin=one.origin[:, np.newaxis], delay=delay)

    def places(self, nodes: NodeNumbers) -> NodeNumbers:
        """Where some of the nodes that were asked for are in the contracted graph."""
        return np.searchsorted(self.nodes, nodes).astype(np.int64)


def contract_graph(
    least: Chains, most: Chains, asked: NodeNumbers, latest: NodeNumbers | None = None
) -> Contraction:
    """Contract a graph to what sets the times of the asked nodes in replays between the least and
    the most.

    Weights, delays and origins of all replays are between theirs. ``latest`` are the times of the
    most, where known.
    """
    source, target = least.source, least.target
    soonest = earliest(least)
    latest = earliest(most) if latest is None else latest
    first = np.zeros(len(soonest), dtype=bool)
    first[least.bounds[:-1]] = True
    by_chain = np.where(first[target], NEVER, soonest[target - 1] + least.weight[target])
    low, high, own = soonest[source] + least.delay, latest[source] + most.delay, soonest[target]
    edges = np.flatnonzero((high > own) | ((low == own) & (own > by_chain)))
    # where its chain never sets the time of a node, nothing before it in the chain matters to what
    # follows
    cut = first.copy()
    cut[1:] |= (latest[:-1] + most.weight[1:] <= soonest[1:]) & (
        soonest[:-1] + least.weight[1:] < soonest[1:]
    )
    constant = low == high
    edges = _that_matter(edges, least, constant, asked, cut)
    moving, still = edges[~constant[edges]], edges[constant[edges]]
    kept = first
    for chosen in (source[moving], target[edges], asked):
        kept[chosen] = True
    nodes = np.flatnonzero(kept)
    fixed = np.full(len(nodes), NEVER)
    np.maximum.at(fixed, np.searchsorted(nodes, target[still]), low[still])
    bounds, begin, end = (
        np.searchsorted(nodes, of) for of in (least.bounds, source[moving], target[moving])
    )
    return Contraction(nodes, moving, bounds, begin, end, fixed)


FEW: Final = 16
"""Edges that do not matter are looked for again until less than this part of them do not."""


def _that_matter(
    edges: NodeNumbers, graph: Chains, constant: RowMask, asked: NodeNumbers, cut: RowMask
) -> NodeNumbers:
    """Edges behind whose target an asked node, or the source of such an edge, follows in its
    chain before a cut.
    """
    count = len(cut)
    cuts = np.append(np.flatnonzero(cut), count)
    dropped = len(edges)
    while dropped > len(edges) // FEW:
        wanted = np.zeros(count, dtype=bool)
        wanted[asked] = True
        wanted[graph.source[edges[~constant[edges]]]] = True
        following, at = np.append(np.flatnonzero(wanted), count), graph.target[edges]
        matters = (
            following[np.searchsorted(following, at)]
            < cuts[np.searchsorted(cuts, at, side="right")]
        )
        dropped, edges = len(edges) - int(matters.sum()), edges[matters]
    return edges


def stack_variants(each: list[Chains]) -> Chains:
    """Variants of one graph as one graph, scheduled at once."""
    weight, origin, delay = (
        np.stack(column, axis=1)
        for column in zip(*((one.weight, one.origin, one.delay) for one in each), strict=True)
    )
    return replace(each[0], weight=weight, origin=origin, delay=delay)
