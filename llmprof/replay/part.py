"""The part of a large recording that is replayed: some groups of its ranks, or some of its
steps.
"""

from __future__ import annotations

import contextlib
from typing import Final

import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from llmprof.analyze.collectives.collectives import called_together
from llmprof.errors import NotCapturedError
from llmprof.label.steps.steps import host_labels, steps_of, surround_steps
from llmprof.replay.graph import MAX_EVENTS, graph_events
from llmprof.trace import Trace
from llmprof.trace.kept import per_trace

MAX_FOR_FINDINGS: Final = 300_000
"""Of a larger recording findings replay some groups of ranks with about so many events, or some
steps with :data:`ENOUGH`: some seconds of work on one core. The other groups do the same work, and
the other steps are alike.
"""

ENOUGH: Final = 25_000
"""Of the steps of a larger recording so many events are replayed, or one :data:`BLOCK` of up to
four times as many.
"""

FEW_RANKS: Final = 8
"""Of a recording of so many ranks some steps are replayed rather than some ranks: they need no
matched collectives.
"""

BLOCK: Final = 8
"""Successive steps that are replayed together: the last one only ends them, since a step lasts
until the next one begins.
"""


class ReplayedPart(Struct, frozen=True):
    """What of a recording is replayed."""

    trace: Trace
    """All of it, or some of its ranks or steps."""
    words: str = ""
    """Which ranks or steps, where it is not all of it."""
    numbers: pl.DataFrame | None = None
    """``rank, step`` (as the part numbers it) and ``number`` (as the recording does), where they
    differ.
    """
    weights: pl.DataFrame | None = None
    """``rank, weight``: the number of ranks that each one stands for, where it is not one."""
    steps: pl.DataFrame | None = None
    """``rank, step, phase`` of all steps of these ranks, where some are replayed."""

    def numbered(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Rows with the steps' numbers of the recording, and the number of ranks that each
        stands for as ``weight``.
        """
        if self.numbers is not None:
            joined = rows.join(
                self.numbers, on=["rank", "step"], how="inner", maintain_order="left"
            )
            rows = joined.with_columns(step="number").drop("number")
        if self.weights is None:
            return rows.with_columns(weight=1.0)
        return rows.join(self.weights, on="rank", how="left", maintain_order="left")


@per_trace
def replayed_part(trace: Trace, named: tuple[int, ...] | None = None) -> ReplayedPart:
    """All of a recording, or, if it has more events than are replayed, some of its ranks or
    steps.
    """
    # Of a few ranks some steps are replayed. Of more, ranks whose collectives are matched with each
    # other are a group: the groups of the named ranks are always in the part and stand for
    # themselves, the others are chosen evenly and stand for the rest. If there is one group only,
    # or the chosen ones still have too many events, the part has some of the steps.
    events = graph_events(trace)
    limit, some = (MAX_EVENTS, MAX_EVENTS) if named is None else (MAX_FOR_FINDINGS, ENOUGH)
    if events <= limit:
        return ReplayedPart(trace)
    if (
        len(trace.ranks) <= FEW_RANKS
        and (by_step := _some_steps(trace, limit, some)).trace is not trace
    ):
        return by_step
    weights = _chosen(waiting_groups(trace), set(named or ()), len(trace.ranks) * limit // events)
    if len(weights) == len(trace.ranks):
        return _some_steps(trace, limit, some)
    part = trace.select(rank=sorted(weights))
    words = (
        f"only {len(weights):,} of {len(trace.ranks):,} ranks"
        f" {'was replayed, which waits' if len(weights) == 1 else 'were replayed, which wait'} for"
        f" no other rank, since there are more than {limit:,} events"
    )
    some_steps = (
        _some_steps(part, limit, some) if graph_events(part) > limit else ReplayedPart(part)
    )
    kept = pl.DataFrame(
        {"rank": list(weights), "weight": list(weights.values())},
        schema_overrides={"rank": pl.Int32},
    )
    return replace(
        some_steps, words="; ".join(filter(None, (words, some_steps.words))), weights=kept
    )


def waiting_groups(trace: Trace) -> list[list[int]]:
    """Ranks that wait for each other: those whose collectives are matched, directly or by way of
    others.
    """
    first = {
        rank: rank for rank in trace.ranks
    }  # another rank of its group, at last the first one of it

    def of(rank: int) -> int:
        while first[rank] != rank:
            rank = first[rank]
        return rank

    calls = None
    if len(trace.ranks) > 1:
        with contextlib.suppress(NotCapturedError):
            calls = called_together(trace).drop_nulls("call")
    if calls is not None:
        pairs = (
            calls.select("rank", other=pl.min("rank").over("call")).unique().sort("rank", "other")
        )
        for rank, other in pairs.iter_rows():
            low, high = sorted((of(rank), of(other)))
            first[high] = low
    groups: dict[int, list[int]] = {}
    for rank in sorted(first):
        groups.setdefault(of(rank), []).append(rank)
    return list(groups.values())


def _chosen(groups: list[list[int]], named: set[int], count: int) -> dict[int, float]:
    """Ranks of some groups, and how many ranks each stands for: at least one group, and about
    ``count`` ranks.
    """
    own = [group for group in groups if not named.isdisjoint(group)]
    rest = [group for group in groups if group not in own]
    left = count - sum(map(len, own))
    most = max(1, len(rest) * left // max(1, sum(map(len, rest)))) if rest else 0
    some = [rest[(2 * n + 1) * len(rest) // (2 * most)] for n in range(most)]
    stand = sum(map(len, rest)) / max(1, sum(map(len, some)))
    return dict(
        sorted(
            [(r, 1.0) for group in own for r in group]
            + [(r, stand) for group in some for r in group]
        )
    )


@per_trace
def _some_steps(trace: Trace, limit: int, events: int) -> ReplayedPart:
    """Steps with about so many events, of a recording with more than a limit."""
    # Blocks of successive steps from the beginning to the end, since a step needs the next one;
    # if there are too few for two blocks, some from the middle; and a step of each phase.
    on_host = host_labels(trace)
    labels = (
        steps_of(trace).with_columns(worked=pl.col("start_ns").is_not_null())
        if on_host is None
        else on_host
    )
    worked = labels.filter("worked")
    numbers = worked["step"].unique().sort()
    each = max(1, graph_events(trace) // max(1, len(numbers)))
    count = max(3, events // each, min(BLOCK, 4 * events // each, limit // each))
    if count >= len(numbers):
        return ReplayedPart(trace)
    size = min(count, BLOCK) if count >= 2 * BLOCK else count
    last = len(numbers) - size
    begins = (
        [last // 2]
        if size == count
        else [n * last // (count // size - 1) for n in range(count // size)]
    )
    chosen = {begin + n for begin in begins for n in range(size)}
    places = labels.join(numbers.to_frame().with_row_index("place"), on="step")
    for _, rows in places.group_by("phase", maintain_order=True):
        if chosen.isdisjoint(rows["place"]):
            middle = min(rows["place"].sort()[rows.height // 2], len(numbers) - 2)
            chosen |= {middle, middle + 1}
    some = numbers.gather(sorted(chosen))
    part = (trace if on_host is None else surround_steps(trace, on_host, some)).select(
        step=some.to_list()
    )
    start = pl.coalesce("host_start_ns", "start_ns").alias("_at")
    recorded = labels.select("rank", start, number="step")
    both = (
        steps_of(part).select("rank", "step", start).join(recorded, on=["rank", "_at"]).drop("_at")
    )
    words = (
        f"only {len(chosen):,} of {len(numbers):,} steps were replayed, since there are more than"
        f" {limit:,} events"
    )
    return ReplayedPart(part, words, both, steps=worked[["rank", "step", "phase"]])
