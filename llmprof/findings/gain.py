"""What a replay predicts that the remedy of a finding gains."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import polars as pl
from msgspec import Struct

from llmprof.errors import LlmprofError
from llmprof.findings.cause import Measurement
from llmprof.findings.scope import Scope
from llmprof.replay.part import replayed_part
from llmprof.replay.what_if import change_of, replay_changes
from llmprof.text import sentence
from llmprof.trace import Trace
from llmprof.units import format_ns, format_share

NOTHING: Final = 0.01
"""No gain is predicted for a loss below this share of the time."""

TINY: Final = 0.001
"""A replay whose time differs by less than this share of it gains nothing."""


class Gain(Struct, frozen=True):
    """A predicted gain, in ns of the unit of its finding."""

    ns: float
    low_ns: float
    high_ns: float
    tokens_per_s: float | None
    """Gain in tokens a second on a replica of the model; None if the tokens of the steps are
    unknown.
    """
    words: str
    plain: bool
    """Whether it is time without the profiler."""
    slowed: float
    """How many times as long the profiler makes a step of which this is the gain."""


def gains_of(
    scope: Scope, measures: Sequence[Measurement], limits: Sequence[float], trace: Trace
) -> list[Gain | str]:
    """Gain of the remedy of each measure alone, in the scope of the findings; at most its limit
    (ns of the unit).
    """
    changes = [_change(scope, item) for item in measures]
    replays: dict[str, pl.DataFrame | LlmprofError] = {}
    predicted, named = _asked([(scope, measures)])
    of_part = ""
    if predicted:
        try:
            replays, of_part = (
                replay_changes(trace, predicted, named),
                replayed_part(trace, named).words,
            )
        except LlmprofError as error:
            replays = dict.fromkeys(predicted, error)
    return [
        _gain(scope, limit, change, None if change is None else replays.get(change), of_part)
        for limit, change in zip(limits, changes, strict=True)
    ]


def replay_ahead(trace: Trace, measured: Sequence[tuple[Scope, Sequence[Measurement]]]) -> None:
    """Replay the remedies of all scopes at once, where the whole trace is replayed: its calls are
    gone through once, for all of them.
    """
    changes, named = _asked(measured)
    with suppress(LlmprofError):
        if changes and replayed_part(trace, named).trace is trace:
            replay_changes(trace, changes, named)


def _asked(
    measured: Sequence[tuple[Scope, Sequence[Measurement]]],
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """The changes to replay, and the ranks that they are about."""
    items = [
        (item, change)
        for scope, measures in measured
        for item in measures
        if (change := _change(scope, item)) and not _needs_graph(scope, change)
    ]
    ranks = {item.rank for item, _ in items if item.rank is not None}
    return tuple(sorted({change for _, change in items})), tuple(sorted(ranks))


def _change(scope: Scope, item: Measurement) -> str | None:
    """The remedy as a change; empty where the loss is too small for it to be replayed."""
    return item.change if item.ns >= NOTHING * scope.of(item.own).span_ns else ""


def _needs_graph(scope: Scope, change: str) -> bool:
    """Whether a change is a graph of whole steps, which engines do not run for these."""
    return change.startswith("no-host-delay") and scope.reads_prompts


def _gain(
    scope: Scope,
    limit: float,
    change: str | None,
    rows: pl.DataFrame | LlmprofError | None,
    of_part: str,
) -> Gain | str:
    if change is None:
        return "No prediction: a replay cannot make this change."
    if _needs_graph(scope, change):
        return "No prediction: engines run no whole graph for steps that read prompts."
    if not change or rows is None:
        return f"No prediction: it is below {format_share(NOTHING)} of the time."
    if isinstance(rows, LlmprofError):
        return f"No prediction: {rows.found}."
    steps = scope.windows[["rank", "step"]].unique()
    if scope.steps is not None:
        rows = rows.join(steps, on=["rank", "step"], how="semi").sort("rank", "step")
    if not rows.height:
        return "No prediction: these steps have none before them."
    plain = not rows["plain_recorded_ns"].null_count()
    names = [
        f"{'plain_' if plain else ''}{name}_ns" for name in ("recorded", "middle", "low", "high")
    ]
    times = [pl.col(name) for name in ("recorded_ns", *names)]
    means = rows.select(
        (time * pl.col("weight")).sum().alias(str(n)) / pl.sum("weight")
        for n, time in enumerate(times)
    )
    profiled, recorded, *after = means.row(0)
    slowed = profiled / recorded if recorded else 1.0
    if not plain:  # a window may be cut, by a pause or what ran before the recording
        mean_ns = scope.span_ns / scope.parts
        after, recorded = [mean_ns - (recorded - value) for value in after], mean_ns
    replayed_ns = recorded - after[0]
    after = [max(value, recorded - limit / slowed, 0.0) for value in after]
    ns, low, high = recorded - after[0], recorded - max(after), recorded - min(after)
    changed = max(abs(low), abs(high)) >= TINY * recorded
    if not changed:
        ns = low = high = 0.0
    tokens = _tokens(scope, rows) if changed else None
    more = (
        None if tokens is None or min(after) <= 0 else tokens * 1e9 * (1 / after[0] - 1 / recorded)
    )
    unit = "all from the first to the last event" if scope.steps is None else scope.part
    text = f"With {change_of(change).words}, {unit}".replace("With without", "Without", 1)
    if changed:
        after_words, before = format_ns(recorded - ns), format_ns(recorded)
        close = after_words == before
        text += f" would take {'close to' if close else f'about {after_words} instead of'} {before}"
        text += ". This "
        text += _saving(low, high) if high - low >= TINY * recorded else _saving(ns, ns)
        text += "" if more is None else f", {more:+,.0f} tokens/s"
        text += f"{_recorded_scope(scope, rows, plain=plain)}."
    else:
        text += " takes as long as before: something else sets the pace."
    if replayed_ns - ns >= NOTHING * recorded:
        text += (
            f" The replay gains {format_ns(replayed_ns)} in all, since other losses shrink with"
            " this one. Counted here is only its own time and what follows from it."
        )
    if of_part:
        text += f" {sentence(of_part)}"
    return Gain(ns, low, high, more, text, plain, slowed)


def _recorded_scope(scope: Scope, rows: pl.DataFrame, *, plain: bool) -> str:
    """What the recorded time of a prediction is of, where it is not the mean of the scope."""
    mean = scope.span_ns / scope.parts
    steps, replayed_steps = _steps_of(scope.windows), _steps_of(rows)
    if plain:
        return f" (without the profiler; {format_ns(mean)} under it)"
    if replayed_steps < steps:
        return f" (replayed in {replayed_steps} of the {steps} steps)"
    return ""


def _saving(low_ns: float, high_ns: float) -> str:
    low, high = (f"{'-' if ns < 0 else ''}{format_ns(abs(ns))}" for ns in (low_ns, high_ns))
    return f"saves {low}" if low == high else f"saves {low} to {high}"


def _steps_of(rows: pl.DataFrame) -> int:
    return rows["step"].n_unique() if "step" in rows.columns else 1


def _tokens(scope: Scope, rows: pl.DataFrame) -> float | None:
    """Mean number of tokens that a step generates; None if a step does not state it or also
    reads prompts.
    """
    if scope.steps is None:
        return None
    steps = scope.steps.join(rows, on=["rank", "step"], how="semi")
    made = steps["decode_tokens"]
    if not made.len() or made.null_count() or steps["prefill_tokens"].fill_null(0).sum():
        return None
    return float(made.mean())  # type: ignore[arg-type]
