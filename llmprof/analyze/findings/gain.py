"""Predicted gain of a finding's remedy, from a replay of the recording."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl

from llmprof.analyze.changes import NOT_WHOLE_GRAPHS
from llmprof.analyze.findings.scope import Measure, Scope
from llmprof.analyze.replay.part import replayed_part
from llmprof.analyze.replay.what_if import change_of, replayed
from llmprof.errors import LlmprofError
from llmprof.sentences import GAIN, say
from llmprof.trace import Trace
from llmprof.units import format_share

NOTHING: Final = 0.01
"""A gain below this share of the time counts as none, since steps of one recording differ by more."""


@dataclass(frozen=True, slots=True)
class Gain:
    """A predicted gain, in ns of the unit of its finding."""

    ns: float
    low_ns: float
    high_ns: float
    tokens_per_s: float | None
    """Gain in tokens a second on a replica of the model; None if the tokens of the steps are unknown."""
    words: str
    plain: bool
    """Whether it is time without the profiler."""
    slowed: float
    """How many times as long the profiler makes a step of which this is the gain."""


def gains_of(scope: Scope, measures: Sequence[Measure], limits: Sequence[float], trace: Trace) -> list[Gain | str]:
    """Gain of the remedy of each measure alone, in the scope of the findings; at most its limit (ns of the unit)."""
    changes = [item.change if item.ns >= NOTHING * scope.of(item.own).span_ns else "" for item in measures]
    replays: dict[str, pl.DataFrame | LlmprofError] = {}
    predicted = tuple(sorted({change for change in changes if change}))
    pairs = zip(measures, changes, strict=True)
    named = tuple(sorted({item.rank for item, change in pairs if change and item.rank is not None}))
    of_part = ""
    if predicted:
        try:
            replays, of_part = replayed(trace, predicted, named), replayed_part(trace, named).words
        except LlmprofError as error:
            replays = dict.fromkeys(predicted, error)
    return [
        _gain(scope, limit, change, None if change is None else replays.get(change), of_part)
        for limit, change in zip(limits, changes, strict=True)
    ]


def _gain(
    scope: Scope, limit: float, change: str | None, rows: pl.DataFrame | LlmprofError | None, of_part: str
) -> Gain | str:
    if change is None:
        return "No prediction: a replay cannot make this change."
    if not change or rows is None:
        return f"No prediction: it is below {format_share(NOTHING)} of the time."
    if isinstance(rows, LlmprofError):
        return f"No prediction: {rows.found}."
    if scope.steps is not None:
        rows = rows.join(scope.windows.select("rank", "step").unique(), on=["rank", "step"], how="semi")
    if not rows.height and change.startswith("no-host-delay") and scope.windows["phase"].is_in(NOT_WHOLE_GRAPHS).all():
        return "No prediction: engines run no whole graph for steps that read prompts."
    if not rows.height:
        return "No prediction: these steps have none before them."
    plain = not rows["plain_recorded_ns"].null_count()
    names = [f"{'plain_' if plain else ''}{name}_ns" for name in ("recorded", "middle", "low", "high")]
    times = [pl.col(name) for name in ("recorded_ns", *names)]
    means = rows.select(
        (time * pl.col("weight")).sum().alias(str(n)) / pl.col("weight").sum() for n, time in enumerate(times)
    )
    profiled, recorded, *after = means.row(0)
    slowed = profiled / recorded if recorded else 1.0
    replayed_ns = recorded - after[0]
    after = [max(value, recorded - limit / slowed, 0.0) for value in after]
    ns, low, high = recorded - after[0], recorded - max(after), recorded - min(after)
    tokens = _tokens(scope, rows)
    more = None if tokens is None or min(after) <= 0 else tokens * 1e9 * (1 / after[0] - 1 / recorded)
    words = say(
        GAIN,
        words=change_of(change).words,
        change=change,
        unit="all from the first to the last event" if scope.steps is None else scope.part,
        of_steps=scope.steps is not None,
        recorded_ns=recorded,
        ns=ns,
        low_ns=low,
        high_ns=high,
        changed=max(abs(low), abs(high)) >= NOTHING * recorded,
        interval=high - low >= NOTHING * recorded,
        tokens_per_s=more,
        of_part=of_part,
        replayed=_steps_of(rows),
        steps=_steps_of(scope.windows),
        plain=plain,
        mean_ns=scope.span_ns / scope.parts,
        beyond_ns=replayed_ns if replayed_ns - ns >= NOTHING * recorded else None,
    )
    return Gain(ns, low, high, more, words, plain, slowed)


def _steps_of(rows: pl.DataFrame) -> int:
    return rows["step"].n_unique() if "step" in rows.columns else 1


def _tokens(scope: Scope, rows: pl.DataFrame) -> float | None:
    """Mean number of tokens that a step generates; None if a step does not state it or also reads prompts."""
    if scope.steps is None:
        return None
    steps = scope.steps.join(rows, on=["rank", "step"], how="semi")
    made = steps["generation_tokens"]
    if not made.len() or made.null_count() or steps["context_tokens"].fill_null(0).sum():
        return None
    return float(made.mean())  # type: ignore[arg-type]
