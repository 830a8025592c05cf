"""Findings: ranked statements about where the time goes, each with its figure, its evidence and what to try."""

from __future__ import annotations

import polars as pl

from llmprof.analyze.analysis import Analysis
from llmprof.analyze.findings.rules import RULES, Measure, Rule
from llmprof.analyze.findings.scope import Scope, scope_of
from llmprof.analyze.memo import per_trace
from llmprof.errors import NotCapturedError
from llmprof.trace import Trace

SCHEMA = {
    "order": pl.Int32,
    "rule": pl.String,
    "severity": pl.String,
    "title": pl.String,
    "figure": pl.Float64,
    "unit": pl.String,
    "share_of_time": pl.Float64,
    "scope": pl.String,
    "evidence": pl.String,
    "detail": pl.String,
    "suggestion": pl.String,
}

_LEAST_SHARES = {"high": 0.2, "medium": 0.05, "low": 0.0}
"""Severities by the share of time from which on they hold, in order."""


@per_trace
def findings(trace: Trace) -> pl.DataFrame:
    """What takes the time, most important first.

    Every rule measures something; a rule without its figure, or whose figure is below its threshold, says nothing.
    Shares are of the device span of the steady decode steps, summed over ranks (of all steps where there is no
    steady state, of the whole recording where there are no steps): ``scope`` names which. Shares of different rules
    can overlap: a late rank makes others wait. A recording of nothing but graph captures has no findings.

    Parameters
    ----------
    trace : Trace
        Any trace with device activity or operators.

    Returns
    -------
    polars.DataFrame
        ``order`` (from 1), ``rule, severity`` (high from 20 % of the time, medium from 5 %, low below, info for what
        is no fault), ``title`` (one sentence with the figure), ``figure, unit, share_of_time, scope``, ``evidence``
        (the analysis whose frame shows it), ``detail`` and ``suggestion``.

    Raises
    ------
    NotCapturedError
        The trace has neither kernels nor copies nor operators.
    """
    scope = scope_of(trace)
    rows = [_sentence(rule, measure, scope) for rule in RULES if (measure := _measured(rule, scope)) is not None]
    found = pl.DataFrame(rows, schema={k: v for k, v in SCHEMA.items() if k != "order"})
    rank = {severity: n for n, severity in enumerate((*_LEAST_SHARES, "info"))}
    return (
        found.with_columns(_rank=pl.col("severity").replace_strict(rank, return_dtype=pl.Int8))
        .sort("_rank", "share_of_time", descending=[False, True], maintain_order=True)
        .with_columns(order=pl.int_range(1, pl.len() + 1, dtype=pl.Int32))
        .select(list(SCHEMA))
    )


def _measured(rule: Rule, scope: Scope) -> Measure | None:
    """What a rule measures, if it was captured and is worth saying."""
    if not scope.span_ns:
        return None
    try:
        measure = rule.measure(scope)
    except NotCapturedError:
        return None
    return measure if measure is not None and measure.share >= rule.minimum_share else None


def _sentence(rule: Rule, measure: Measure, scope: Scope) -> dict[str, object]:
    severity = next(s for s, least in _LEAST_SHARES.items() if measure.share >= least)
    return {
        "rule": rule.name,
        "severity": "info" if rule.info else severity,
        "title": rule.title.format(**measure.words),
        "figure": float(measure.figure),
        "unit": rule.unit,
        "share_of_time": measure.share,
        "scope": scope.words,
        "evidence": rule.evidence,
        "detail": rule.detail.format(**measure.words),
        "suggestion": rule.suggestion,
    }


ANALYSIS = Analysis(
    function=findings,
    question="What takes the time, and what can be done about it?",
    help="what takes the time, most important first, and what to try",
    view="findings",
    reported=True,
)
