"""How the workers of a dataset share each analysis of many ranks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Final

from llmprof import plugins


@dataclass(frozen=True, slots=True)
class RankPlan:
    """How workers share an analysis of a dataset."""

    analysis: str
    """Name of the analysis."""
    apart: tuple[str, ...] | None = None
    """Options with which the rows of a rank depend on that rank alone, so that each rank has its
    worker; None if they never do.
    """
    with_calls: tuple[str, ...] | None = None
    """Options with which they depend on that rank and its matched collective calls."""
    first: tuple[str, ...] | None = None
    """What the workers run for an analysis of all ranks, beside finding the collective calls."""


PLANS: Final = (
    RankPlan("findings", first=("steps", "steady_steps", "step_windows", "recorded_windows")),
    RankPlan("steps", apart=("steady",), first=("steps",)),
    RankPlan("step_time", first=("steps", "overlap")),
    RankPlan("layers", apart=("stages",), first=("layers",)),
    RankPlan("layer_gaps", apart=(), with_calls=("stage", "measure")),
    RankPlan("overlap", apart=("by",), with_calls=("by", "waits")),
    RankPlan("collectives", first=()),
    RankPlan("expert_exchange", first=("events",)),
    RankPlan("ranks", first=("steps", "overlap", "events")),
    RankPlan("idle", apart=("min_ns",), first=("idle",)),
    RankPlan("stream_gaps", apart=("min_ns",)),
    RankPlan("launch_delay", apart=()),
    RankPlan("host_pauses", apart=("by",)),
    RankPlan("host_synchronisation", apart=()),
    RankPlan("queue_length", apart=("by", "full")),
    RankPlan("concurrency", apart=("by", "top")),
    RankPlan("spikes", apart=("by", "min_ratio")),
    RankPlan("modules", apart=("by",)),
    RankPlan("copies", apart=()),
    RankPlan("coverage", apart=()),
    RankPlan("events", apart=()),
    RankPlan("launch_path", apart=()),
)
"""The plans; an analysis without one loads the tables of all ranks in one process."""


@cache
def plans() -> dict[str, RankPlan]:
    """Plans by the name of their analysis: those of llmprof, then those of plug-ins."""
    added = (one for _, one in plugins.records(plugins.RANK_PLANS, RankPlan))
    return {one.analysis: one for one in (*added, *PLANS)}


def plan_of(analysis: str) -> RankPlan:
    """The plan of an analysis."""
    return plans().get(analysis, RankPlan(analysis))
