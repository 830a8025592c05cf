"""The findings of one scope: each cause measured, told, and its remedy predicted."""

from __future__ import annotations

from typing import Final

import polars as pl
from msgspec.structs import replace

from llmprof.errors import NotCapturedError
from llmprof.findings.card import REQUEST_PAUSES
from llmprof.findings.cause import Cause, Context, Measurement
from llmprof.findings.causes import CAUSES
from llmprof.findings.frame import SCHEMA
from llmprof.findings.gain import Gain, gains_of
from llmprof.findings.reasons import REASONS
from llmprof.findings.scope import Scope, ranks_with_most, sum_of
from llmprof.label.completeness import has_lost, left_out, lost_events
from llmprof.trace import Trace
from llmprof.units import format_ns

SEVERITIES: Final = {"high": 0.2, "medium": 0.05, "low": 0.0}
"""Severities, each with the least share of time that it needs, in order."""

MUCH_LOST: Final = 0.2
"""Share of launched events without which a recording shows no cause for sure."""

MIN_RANKED: Final = 0.1
"""Share of the time from which on a fact has a place among the losses."""

UNPREDICTED: Final = 0.5
"""Part of a loss by which it is ranked if no gain of its remedy is predicted: between nothing and
all of it.
"""

OF_RANKS: Final = ("collectives", "overlap")
"""Evidence of causes that compare ranks."""

UNLIKE: Final = 1.1
"""Times of ranks of which one is this many times another are told beside their mean."""

ALL: Final = "all that was recorded of host and device"
"""Denominator of what lies before the first and after the last event of a device."""

FOLLOWS: Final = "It follows from another finding, which says what its remedy gains."
"""In place of the gain of a finding that has its cause in another one."""


MeasuredCauses = dict[str, tuple[Cause, Measurement]]
"""Causes that are findings of a scope, by name."""


def measured_causes(scope: Scope) -> MeasuredCauses:
    """The causes of a scope that were captured and exceed their thresholds."""
    # while no request runs a device waits for one, unless the host is known to do something else
    causes = CAUSES
    if left_out(scope.trace):  # a sample holds no whole of which anything could be a share
        return {}
    if scope.words == REQUEST_PAUSES:
        causes = tuple(cause for cause in CAUSES if cause.name in REASONS)
    # ranks of which one lacks work cannot be compared, nor their calls be matched in order
    uneven = len(scope.trace.ranks) > 1 and has_lost(scope.trace, at_end=True)
    found = {
        cause.name: (cause, measured)
        for cause in causes
        if not (uneven and cause.evidence in OF_RANKS)
        if (measured := _measure(cause, scope)) is not None
    }
    return {name: (cause, of) for name, (cause, of) in found.items() if _stands(cause, of, found)}


def _stands(cause: Cause, measured: Measurement, found: MeasuredCauses) -> bool:
    """Whether no other cause tells of the same, or more than could be gained by it."""
    if cause.unless not in found:
        return True
    _, other = found[cause.unless]
    return measured.where != other.where and cause.potential * measured.ns > other.ns


def losses_of(found: MeasuredCauses) -> dict[str, Measurement]:
    """Those that are losses, and no facts."""
    return {
        name: measured
        for name, (cause, measured) in found.items()
        if not (cause.info or measured.is_fact)
    }


def scope_findings(
    scope: Scope, found: MeasuredCauses, *, whole: Trace | None = None
) -> pl.DataFrame:
    """Findings of the causes in a scope, not in order."""
    losses = losses_of(found)
    follows = {
        name: of if (of := measured.follows_from or cause.follows_from) in found else None
        for name, (cause, measured) in found.items()
    }
    # a remedy gains at most the time of its finding and of what follows from it
    limits = dict.fromkeys(found, 0.0)
    for name, (_, measured) in found.items():
        for of in {name, follows[name] or name}:
            limits[of] += measured.ns / scope.of(measured.own).parts
    predicted = gains_of(
        scope,
        list(losses.values()),
        [limits[name] for name in losses],
        scope.trace if whole is None else whole,
    )
    gains = dict(zip(losses, predicted, strict=True))
    rows = [
        _row(cause, measured, scope, gains.get(name), follows[name])
        for name, (cause, measured) in found.items()
    ]
    return pl.DataFrame(
        rows,
        schema={k: v for k, v in SCHEMA.items() if k != "order"}
        | {"ranked": pl.Boolean, "weight": pl.Float64},
    )


def severity_of(share: float) -> str:
    """The severity of a loss by its share of the time."""
    return next(name for name, least in SEVERITIES.items() if share >= least)


def _is_doubtful(cause: Cause, measured: Measurement, scope: Scope) -> bool:
    """Whether a cause is inferred, or what is missing in the recording could be it: its kernels,
    much that was launched, or, for an idle device, any work if launches are not known.
    """
    trace = scope.trace
    lost = lost_events(trace)
    if measured.unsure or not (scope.has_kernels or trace.capture.on_host):
        return True
    if lost.launched:
        return lost.missing > MUCH_LOST * lost.launched
    return cause.evidence == "idle" and trace.has("runtime")


def _measure(cause: Cause, scope: Scope) -> Measurement | None:
    """Measurement of a cause, if it was captured and exceeds the threshold."""
    if not scope.span_ns:
        return None
    try:
        measured = cause.measure(scope)
    except NotCapturedError:
        return None
    if measured is None or measured.ns <= 0:
        return None
    if measured.by_rank is not None:
        ranks, each_ns = ranks_with_most(scope, measured.by_rank)
        if len(ranks) < len(each_ns):
            own = measured.by_rank.filter(pl.col("rank").is_in(ranks))
            measured = replace(measured, ns=sum_of(own, "dur_ns"), own=ranks)
        measured = replace(measured, each_rank_ns=each_ns)
    span_ns = measured.whole_ns or scope.of(measured.own).span_ns
    return measured if measured.ns >= cause.min_share * span_ns else None


def _context(
    measured: Measurement, scope: Scope, time_ns: float, share: float, follows: str | None
) -> Context:
    is_one = scope.steps is None and scope.parts == 1
    return Context(
        time_ns,
        share,
        "in the recording" if is_one else f"per {scope.part.removeprefix('a ')}",
        scope.platform_words,
        ranks=scope.windows["rank"].n_unique(),
        on=measured.own,
        of_torch=scope.of_torch,
        on_host=scope.trace.capture.on_host,
        follows_from=follows,
    )


def _of_ranks(measured: Measurement) -> str:
    """The times of the ranks that it is about, where they differ, and those of the others."""
    each_ns = measured.each_rank_ns
    ranks = set(each_ns if measured.own is None else measured.own)
    own = sorted(ns for rank, ns in each_ns.items() if rank in ranks)
    others = sorted(ns for rank, ns in each_ns.items() if rank not in ranks)
    text = ""
    if own and own[-1] > UNLIKE * own[0]:
        text = f" It is {_between(own)} on {'these' if others else 'the'} ranks."
    if others:
        text += f" The other ranks lose {_between(others) if others[-1] else 'nothing'}."
    return text


def _between(times: list[float]) -> str:
    least, most = format_ns(times[0]), format_ns(times[-1])
    return least if least == most else f"{least} to {most}"


def _row(
    cause: Cause,
    measured: Measurement,
    scope: Scope,
    predicted: Gain | str | None,
    follows: str | None,
) -> dict[str, object]:
    of = scope.of(measured.own)
    share = min(1.0, measured.ns / (measured.whole_ns or of.span_ns))
    time_ns = measured.ns / of.parts if measured.each_ns is None else measured.each_ns
    context = _context(measured, scope, time_ns, share, follows)
    gain = time_ns if measured.gain_ns is None else measured.gain_ns / of.parts
    first, last = measured.window_ns or (None, None)
    known = predicted if isinstance(predicted, Gain) and not follows else None
    gained = cause.potential or UNPREDICTED
    gained *= measured.ns / of.parts
    if known is not None:
        gained = max(0.0, (known.low_ns + known.ns) / 2 * known.slowed)
    without = FOLLOWS if follows else predicted
    is_fact = cause.info or measured.is_fact
    recorded_share = min(1.0, measured.ns * scope.weight / max(1, scope.recorded_ns))
    # a device that is in use for little of a recording is idle first
    hardly = scope.steps is None and scope.span_ns < MIN_RANKED * scope.recorded_ns
    graded = share * (cause.potential or 1.0)
    if _is_doubtful(cause, measured, scope):
        graded = 0.0
    return {
        "rule": cause.name,
        "severity": "info" if is_fact else severity_of(graded),
        "title": measured.figures.title(context),
        "figure": time_ns,
        "unit": "ns a rank" if scope.steps is None else "ns a step",
        "share": share,
        "recorded_share": recorded_share,
        "follows_from": follows,
        "gain_ns": min(gain, time_ns),
        "predicted_ns": known and known.ns,
        "predicted_low_ns": known and known.low_ns,
        "predicted_high_ns": known and known.high_ns,
        "predicted_tokens_per_s": known and known.tokens_per_s,
        "predicted_plain": known and known.plain,
        "change": known and measured.change,
        "prediction": without if known is None else known.words,
        "scope": scope.words,
        "denominator": ALL if measured.whole_ns else of.denominator,
        "evidence": cause.evidence,
        "where": measured.where,
        "rank": measured.rank,
        "start_ns": first,
        "end_ns": last,
        "detail": (
            f"{measured.figures.detail(context)}{measured.few}{_of_ranks(measured)}{of.of_steps}"
        ),
        "suggestion": measured.figures.advice(context),
        "about": measured.about,
        "ranked": not is_fact or (cause.potential > 0 and share >= MIN_RANKED and not hardly),
        "weight": gained * (of.parts if known is None else scope.parts) * scope.weight,
    }
