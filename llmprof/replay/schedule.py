"""Scheduler: times of the nodes of a graph in which chains (host threads, streams) run in order
and wait for others.
"""

from __future__ import annotations

import bisect
import sys
from collections import deque
from typing import Final, TypeAlias

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from llmprof.errors import AnalysisError

NodeNumbers = NDArray[np.int64]

NEVER: Final = np.int64(-(2**61))
"""A time before all others: the bound of a node without a constraint."""

Order: TypeAlias = tuple[NodeNumbers, list[tuple[int, int, int, int, bool]]]
"""Edges by their targets, and stretches: first node, end, first edge, end of the edges, whether
a node is before it.
"""


class Chains(Struct, frozen=True):
    """Nodes that run one after another in chains, and edges between chains.

    ``weight, origin`` and ``delay`` may have a second axis: variants of the same graph, scheduled
    at once.

    The time of a node is at least that of the node before it in its chain plus its own weight, and
    at least what each edge into it requires.
    """

    bounds: NodeNumbers
    """First node of each chain, and the number of nodes: chain ``c`` holds ``bounds[c]`` to
    ``bounds[c + 1]``.
    """
    weight: NodeNumbers
    """Nanoseconds from the node before in the chain to this one."""
    origin: NodeNumbers
    """Earliest time of each node by itself, in ns; :data:`NEVER` for all that follow from
    others.
    """
    source: NodeNumbers
    """Node that an edge comes from."""
    target: NodeNumbers
    """Node that an edge leads to."""
    delay: NodeNumbers
    """Nanoseconds from the source of an edge to its target, at the least."""
    order: list[Order] = field(default_factory=list)
    """The order of the stretches, once it is known: graphs with the same nodes and edges share
    the list.
    """


def earliest(graph: Chains) -> NodeNumbers:
    """Earliest time of every node (and variant): a longest path, computed for a stretch of a
    chain at a time.
    """
    if not graph.order:
        graph.order.append(_order(graph))
    edges, stretches = graph.order[0]
    source, target, delay = graph.source[edges], graph.target[edges], graph.delay[edges]
    times = np.array(np.broadcast_to(graph.origin, graph.weight.shape))
    for begin, end, low, high, follows in stretches:
        bound = times[begin:end]
        if high > low:
            np.maximum.at(
                bound, target[low:high] - begin, times[source[low:high]] + delay[low:high]
            )
        if follows:
            bound[0] = np.maximum(bound[0], times[begin - 1] + graph.weight[begin])
        if end - begin > 1:
            passed = graph.weight[begin:end].cumsum(axis=0)
            bound -= passed
            np.maximum.accumulate(bound, axis=0, out=bound)
            bound += passed
    return times


def _order(graph: Chains) -> Order:
    """Order in which the times of stretches become known, whatever the weights are."""
    # A chain advances at once as far as the times that it waits for are known. So the number of
    # rounds depends on the alternations between chains (synchronisations, collectives), not on the
    # number of nodes.
    bounds: list[int] = graph.bounds.tolist()
    count = len(bounds) - 1
    order = np.argsort(graph.target, kind="stable")
    source, target = graph.source[order], graph.target[order]
    chain_of_source = np.searchsorted(graph.bounds, source, side="right") - 1
    edges_of_chain: list[int] = np.searchsorted(target, graph.bounds).tolist()
    needs = [
        _needs(source, target, chain_of_source, *edges_of_chain[c : c + 2]) for c in range(count)
    ]
    wakes: list[list[int]] = [[] for _ in range(count)]
    for c, needed in enumerate(needs):
        for need in needed:
            wakes[need.chain].append(c)
    edge = edges_of_chain[:-1]

    stretches = []
    done = bounds[:-1]
    ready = deque(range(count))
    queued = set(ready)
    while ready:
        c = ready.popleft()
        queued.discard(c)
        begin, limit = done[c], bounds[c + 1]
        for need in needs[c]:
            limit = min(limit, need.allows(done[need.chain]))
        if limit <= begin:
            continue
        low, edge[c] = edge[c], int(target.searchsorted(limit))
        stretches.append((begin, limit, low, edge[c], begin > bounds[c]))
        done[c] = limit
        for other in wakes[c]:
            if other not in queued:
                queued.add(other)
                ready.append(other)
    stuck = sum(done[c] < bounds[c + 1] for c in range(count))
    if stuck:
        found = (
            f"the order of events forms a cycle: {stuck} of {count} threads and streams wait for"
            " each other"
        )
        hint = (
            "the clocks of host and device, or of the ranks, disagree: look at one rank, or at the"
            " device alone"
        )
        raise AnalysisError(
            found,
            expected="an order in which everything happens after what it waits for",
            hint=hint,
        )
    return order, stretches


def latest(graph: Chains, bounds: NodeNumbers) -> NodeNumbers:
    """Latest time of every node at which no node is later than its bound."""
    nodes = int(graph.bounds[-1])
    weight = np.zeros(nodes, dtype=np.int64)
    weight[1:] = graph.weight[:0:-1]
    back = Chains(
        bounds=nodes - graph.bounds[::-1],
        weight=weight,
        origin=-bounds[::-1],
        source=nodes - 1 - graph.target,
        target=nodes - 1 - graph.source,
        delay=graph.delay,
    )
    return -earliest(back)[::-1]


class _Need:
    """Dependencies of a chain on one other chain."""

    def __init__(self, chain: int, targets: list[int], required: list[int]) -> None:
        self.chain = chain
        self._targets = targets
        self._required = required
        self._met = 0

    def allows(self, done: int) -> int:
        """First node that cannot be computed yet, given the finished part of the other chain."""
        self._met = bisect.bisect_left(self._required, done, lo=self._met)
        return self._targets[self._met] if self._met < len(self._targets) else sys.maxsize


def _needs(
    source: NodeNumbers, target: NodeNumbers, chain: NodeNumbers, low: int, high: int
) -> list[_Need]:
    """For each chain that a chain waits for: nodes with an edge, and how far the other chain
    must be finished.
    """
    out = []
    for other in np.unique(chain[low:high]):
        chosen = np.flatnonzero(chain[low:high] == other) + low
        required = np.maximum.accumulate(source[chosen])
        out.append(_Need(int(other), target[chosen].tolist(), required.tolist()))
    return out
