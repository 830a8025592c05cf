"""Time of decode steps without the profiler: how fast the host then is, by the time of a token in the run."""

from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from llmprof.analyze.catalog import per_trace
from llmprof.analyze.replay.graph import graph
from llmprof.analyze.replay.plan import LEVELS, Level, Plan, periods, times_of
from llmprof.trace import Trace

PHASE: Final = "decode"
"""Phase whose time without the profiler a run measures: that of a further token of its requests."""

HOST: Final = np.linspace(0.2, 1.0, 9)
"""Speeds of the host that are replayed, as shares of its recorded time."""

AS_GOOD: Final = 0.005
"""Speeds of the host whose step is by this share further from the measured time than the best one are possible, too."""

SAME: Final = 0.15
"""A token under the profiler must take the time of a recorded step within this share: else it is no step that a token
waits for (speculation, prefills of others in between)."""

REST: Final = 0.2
"""Most by which the step of the best replay may differ from the measured time: else it is not the host that the
profiler slows down."""


@dataclass(frozen=True, slots=True)
class Plain:
    """How steps run without the profiler, by the level of the guess."""

    host: dict[Level, float]
    """Time of the host, as a share of what was recorded."""
    steps: dict[Level, pl.DataFrame]
    """Every step of a replay with this host."""
    rest: dict[Level, float]
    """Time of a step of decode, as a share of that replay's."""


@per_trace
def plain(trace: Trace) -> Plain | None:
    """How fast the host is without the profiler, so that a replay gives the measured time; None if unknown."""
    # If the devices set the pace, many speeds give the same time: the guesses are the lowest, the middle and the
    # highest.
    measured = trace.meta.get("without_profiler")
    if not measured:
        return None
    built = graph(trace)
    recorded = _step(periods(built, built.time))
    if recorded is None or abs(measured["profiled_ns"] / recorded - 1) > SAME:
        return None
    wanted = recorded * measured["plain_ns"] / measured["profiled_ns"]
    steps = [_step(rows) or 0.0 for rows in _with_host(trace, HOST.tolist())]
    factors = np.linspace(HOST[0], HOST[-1], 161)
    apart = np.abs(np.interp(factors, HOST, steps) / wanted - 1)
    if apart.min() > REST:
        return None
    possible = factors[apart <= apart.min() + AS_GOOD]
    host = dict(zip(LEVELS, map(float, (possible[0], np.median(possible), possible[-1])), strict=True))
    replays = dict(zip(LEVELS, _with_host(trace, list(host.values())), strict=True))
    return Plain(host, replays, {level: wanted / (_step(rows) or wanted) for level, rows in replays.items()})


def _with_host(trace: Trace, factors: list[float]) -> list[pl.DataFrame]:
    """Steps of replays in which the host takes so many times as long."""
    built = graph(trace)
    plans = [Plan(built, "middle") for _ in factors]
    for plan, factor in zip(plans, factors, strict=True):
        plan.host(factor)
    return [periods(built, times) for times in times_of(plans).T]


def _step(steps: pl.DataFrame) -> float | None:
    """Median time of a step of decode."""
    median = steps.filter(phase=PHASE)["period_ns"].median()
    return median if isinstance(median, float) and median > 0 else None
