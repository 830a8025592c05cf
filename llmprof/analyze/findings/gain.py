"""Predicted gain of a finding's remedy, from a replay of the recording."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import polars as pl

from llmprof.analyze.findings.scope import Measure, Scope
from llmprof.analyze.replay.part import replayed_part
from llmprof.analyze.replay.what_if import change_of, replayed
from llmprof.errors import LlmprofError
from llmprof.trace import Trace
from llmprof.units import format_ns, format_share

MORE: Final = 1.05
"""A gain above this multiple of the finding's time is explained."""

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


def gains_of(scope: Scope, measures: Sequence[Measure], trace: Trace) -> list[Gain | str]:
    """Gain of the remedy of each measure alone, in the scope of the findings."""
    changes = [item.change if item.ns >= NOTHING * scope.span_ns else "" for item in measures]
    replays: dict[str, pl.DataFrame | LlmprofError] = {}
    predicted = tuple(sorted({change for change in changes if change}))
    pairs = zip(measures, changes, strict=True)
    named = tuple(sorted({item.rank for item, change in pairs if change and item.rank is not None}))
    words = ""
    if predicted:
        try:
            replays, words = replayed(trace, predicted, named), replayed_part(trace, named).words
        except LlmprofError as error:
            replays = dict.fromkeys(predicted, error)
    gains = [
        _gain(scope, item, change, None if change is None else replays.get(change))
        for item, change in zip(measures, changes, strict=True)
    ]
    if words:
        more = f" {words[:1].upper()}{words[1:]}."
        gains = [replace(item, words=item.words + more) if isinstance(item, Gain) else item for item in gains]
    return gains


def _gain(scope: Scope, measure: Measure, change: str | None, rows: pl.DataFrame | LlmprofError | None) -> Gain | str:
    if change is None:
        return "No prediction: a replay cannot make this change."
    if not change or rows is None:
        return f"No prediction: it is below {format_share(NOTHING)} of the time."
    if isinstance(rows, LlmprofError):
        return f"No prediction: {rows.found}."
    if scope.steps is not None:
        rows = rows.join(scope.windows.select("rank", "step").unique(), on=["rank", "step"], how="semi")
    if not rows.height:
        return "No prediction: these steps have none before them."
    times = pl.col("recorded_ns", "middle_ns", "low_ns", "high_ns")
    recorded, *after = rows.select((times * pl.col("weight")).sum() / pl.col("weight").sum()).row(0)
    ns, low, high = recorded - after[0], recorded - max(after), recorded - min(after)
    tokens = _tokens(scope, rows)
    more = None if tokens is None or min(after) <= 0 else tokens * 1e9 * (1 / after[0] - 1 / recorded)
    sentence = _sentence(scope, change, recorded, ns=ns, low=low, high=high, more=more)
    own = measure.ns / scope.parts
    if ns > MORE * own and ns >= NOTHING * recorded:
        sentence = f"{sentence} {_why_more(scope, change, own)}"
    return Gain(ns, low, high, more, sentence)


def _why_more(scope: Scope, change: str, own: float) -> str:
    """Why a change gains more than the time that its finding names."""
    name = change.partition(":")[0]
    waited = scope.time("communication", "wait") / scope.parts
    also = (
        [f"ranks wait less for the last one ({format_ns(waited)} is such waiting)"]
        if waited and name != "balance"
        else []
    )
    also.append(_ALSO.get(name, "the change reaches further"))
    return f"That is more than the {format_ns(own)} that this finding names, since {' and '.join(also)}."


_ALSO: Final = {
    "no-host-delay": "the pauses between kernels and the calls beside the device's work go, too",
    "scale": "the host is faster in all that it does",
    "without-call": "what the host does after the call begins earlier",
    "remove": "the launches and the host's preparations of it go, too",
    "balance": "what follows the collectives begins earlier, too",
}
"""What else a change takes away, beside the time that its finding is about."""


def _tokens(scope: Scope, rows: pl.DataFrame) -> float | None:
    """Mean number of tokens that a step generates; None if a step does not state it or also reads prompts."""
    if scope.steps is None:
        return None
    steps = scope.steps.join(rows, on=["rank", "step"], how="semi")
    made = steps["generation_tokens"]
    if not made.len() or made.null_count() or steps["context_tokens"].fill_null(0).sum():
        return None
    return float(made.mean())  # type: ignore[arg-type]


def _sentence(
    scope: Scope, change: str, recorded: float, *, ns: float, low: float, high: float, more: float | None
) -> str:
    made = change_of(change)
    if max(abs(low), abs(high)) < NOTHING * recorded:
        same = f"{scope.part} takes as long as before, something else sets the pace"
        return f"Replayed with “{made.words}” ({change}): {same}."
    less = f"{format_ns(abs(ns))} {scope.part} {'less' if ns >= 0 else 'more'}"
    between = f" ({_signed(low)} to {_signed(high)})" if high - low >= NOTHING * recorded else ""
    tokens = f", {more:+,.0f} tokens/s" if more is not None else ""
    return f"Replayed with “{made.words}” ({change}): {less}{between} of {format_ns(recorded)}{tokens}."


def _signed(ns: float) -> str:
    return format_ns(ns) if ns >= 0 else f"-{format_ns(-ns)}"
