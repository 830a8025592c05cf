"""The part of a large recording that is replayed: some groups of its ranks, or some of its steps."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Final

import polars as pl

from llmprof.analyze.catalog import per_trace
from llmprof.analyze.collectives.collectives import collectives
from llmprof.analyze.replay.graph import MOST_EVENTS, events_of
from llmprof.analyze.steps.steps import steps
from llmprof.errors import NotCapturedError
from llmprof.trace import Trace

MOST_FOR_FINDINGS: Final = 300_000
"""Of a larger recording with several groups of ranks, findings replay groups with about so many events: some seconds of
work on one core. A part of this size stands for the other groups, which do the same work."""

BLOCK: Final = 8
"""Successive steps that are replayed together: the first one only begins them, since its time needs the one before."""


@dataclass(frozen=True, slots=True)
class Part:
    """What of a recording is replayed."""

    trace: Trace
    """All of it, or some of its ranks or steps."""
    numbers: pl.DataFrame | None = None
    """``rank, step`` (as the part numbers it) and ``number`` (as the recording does), where they differ."""
    weights: pl.DataFrame | None = None
    """``rank, weight``: the number of ranks that each one stands for, where it is not one."""
    words: str = ""
    """Which ranks or steps, where it is not all of it."""

    def numbered(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Rows with the steps' numbers of the recording, and the number of ranks that each stands for as ``weight``."""
        if self.numbers is not None:
            joined = rows.join(self.numbers, on=["rank", "step"], how="inner", maintain_order="left")
            rows = joined.with_columns(step="number").drop("number")
        if self.weights is None:
            return rows.with_columns(weight=1.0)
        return rows.join(self.weights, on="rank", how="left", maintain_order="left")


@per_trace
def replayed_part(trace: Trace, named: tuple[int, ...] | None = None) -> Part:
    """All of a recording, or, if it has more events than are replayed, some of its ranks or steps."""
    # Ranks whose collectives are matched with each other are one group. The groups of the named ranks are always in the
    # part and stand for themselves; the others are chosen evenly and stand for the rest. If there is one group only, or
    # it alone has too many events, the part has as many steps from the middle as have the events that are replayed.
    events = events_of(trace)
    most = MOST_EVENTS if named is None else MOST_FOR_FINDINGS
    if events <= most:
        return Part(trace)
    weights = _chosen(groups_of(trace), set(named or ()), len(trace.ranks) * most // events)
    if len(weights) == len(trace.ranks):
        return Part(trace) if events <= MOST_EVENTS else _some_steps(trace)
    part = trace.select(ranks=sorted(weights))
    words = (
        f"only {len(weights):,} of {len(trace.ranks):,} ranks were replayed, which wait for no other rank, since there "
        f"are more than {most:,} events"
    )
    some = _some_steps(part) if events_of(part) > MOST_EVENTS else Part(part)
    kept = pl.DataFrame({"rank": list(weights), "weight": list(weights.values())}, schema_overrides={"rank": pl.Int32})
    return Part(some.trace, some.numbers, kept, "; ".join(filter(None, (words, some.words))))


def groups_of(trace: Trace) -> list[list[int]]:
    """Ranks that wait for each other: those whose collectives are matched, directly or by way of others."""
    first = {rank: rank for rank in trace.ranks}  # another rank of its group, at last the first one of it

    def of(rank: int) -> int:
        while first[rank] != rank:
            rank = first[rank]
        return rank

    calls = None
    if len(trace.ranks) > 1:
        with contextlib.suppress(NotCapturedError):
            calls = collectives(trace).filter(pl.col("call").is_not_null())
    if calls is not None:
        pairs = calls.select("rank", other=pl.col("rank").min().over("call")).unique().sort("rank", "other")
        for rank, other in pairs.iter_rows():
            low, high = sorted((of(rank), of(other)))
            first[high] = low
    groups: dict[int, list[int]] = {}
    for rank in sorted(first):
        groups.setdefault(of(rank), []).append(rank)
    return list(groups.values())


def _chosen(groups: list[list[int]], named: set[int], count: int) -> dict[int, float]:
    """Ranks of some groups, and how many ranks each stands for: at least one group, and about ``count`` ranks."""
    own = [group for group in groups if not named.isdisjoint(group)]
    rest = [group for group in groups if group not in own]
    left = count - sum(map(len, own))
    most = max(1, len(rest) * left // max(1, sum(map(len, rest)))) if rest else 0
    some = [rest[(2 * n + 1) * len(rest) // (2 * most)] for n in range(most)]
    stand = sum(map(len, rest)) / max(1, sum(map(len, some)))
    return dict(sorted([(r, 1.0) for group in own for r in group] + [(r, stand) for group in some for r in group]))


def _some_steps(trace: Trace) -> Part:
    """As many steps from the middle of a recording as have the events that are replayed."""
    numbers = _numbers(steps(trace))
    count = max(3, len(numbers) * MOST_EVENTS // events_of(trace))
    if count >= len(numbers):
        return Part(trace)
    first = (len(numbers) - count) // 2
    words = f"only {count:,} of {len(numbers):,} steps were replayed, since there are more than {MOST_EVENTS:,} events"
    return Part(*_of_steps(trace, numbers[first : first + count]), words=words)


def spread_steps(part: Part, events: int) -> Part:
    """Blocks of successive steps with about so many events, from beginning to end, and a step of each phase."""
    trace = part.trace
    labels = steps(trace)
    numbers = _numbers(labels)
    blocks = max(2, len(numbers) * events // (events_of(trace) * BLOCK))
    if blocks * BLOCK >= len(numbers):
        return part
    chosen = {round(n * (len(numbers) - BLOCK) / (blocks - 1)) + k for n in range(blocks) for k in range(BLOCK)}
    phases = labels.select("phase", at=pl.col("step").replace_strict(numbers, range(len(numbers)), default=None))
    for _, rows in phases.drop_nulls("at").group_by("phase"):
        if chosen.isdisjoint(rows["at"]):
            middle = rows["at"].sort()[rows.height // 2]
            chosen |= {n for n in range(middle - 1, middle + 2) if 0 <= n < len(numbers)}
    some, found = _of_steps(trace, [numbers[n] for n in sorted(chosen)])
    if found.height < labels.filter(pl.col("step").is_in([numbers[n] for n in chosen])).height:
        return part  # its steps are not found again in so little of the recording
    return Part(some, found, part.weights, part.words)


def _numbers(labels: pl.DataFrame) -> list[int]:
    return labels.filter(pl.col("start_ns").is_not_null())["step"].unique().sort().to_list()


def _of_steps(trace: Trace, numbers: list[int]) -> tuple[Trace, pl.DataFrame]:
    """Some steps of a recording, and :attr:`Part.numbers`."""
    part = trace.select(steps=numbers)
    at = pl.coalesce("host_start_ns", "start_ns").alias("_at")
    recorded = steps(trace).select("rank", at, number="step")
    return part, steps(part).select("rank", "step", at).join(recorded, on=["rank", "_at"]).drop("_at")
