"""Findings: ranked statements about where the time goes, each with its figure, its evidence and what to try."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import polars as pl

from llmprof.analyze.analysis import Analysis
from llmprof.analyze.findings.measures import Measure
from llmprof.analyze.findings.rules import RULES, Rule
from llmprof.analyze.findings.scope import Scope, scope_of
from llmprof.analyze.memo import per_trace
from llmprof.errors import NotCapturedError
from llmprof.trace import Trace
from llmprof.units import format_ns, format_share

SCHEMA = {
    "order": pl.Int32,
    "rule": pl.String,
    "severity": pl.String,
    "title": pl.String,
    "figure": pl.Float64,
    "unit": pl.String,
    "share_of_time": pl.Float64,
    "gain_ns": pl.Float64,
    "scope": pl.String,
    "denominator": pl.String,
    "evidence": pl.String,
    "where": pl.String,
    "rank": pl.Int32,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "detail": pl.String,
    "suggestion": pl.String,
}

_LEAST_SHARES = {"high": 0.2, "medium": 0.05, "low": 0.0}
"""Severities by the share of time from which on they hold, in order."""


class Findings(pl.DataFrame):
    """The frame of :func:`findings`, which shows itself as sentences in a notebook."""

    def _repr_html_(self, **kwargs: Any) -> str:
        if not set(SCHEMA) <= set(self.columns):
            plain: str = super()._repr_html_(**kwargs)
            return plain
        # by name: the layers below know nothing of pages
        shown: str = import_module("llmprof.report.cards").of_findings(self)
        return shown


@per_trace
def findings(trace: Trace) -> pl.DataFrame:
    """What takes the time, the most first.

    Every rule measures the time that something takes; a rule without its figure, or whose figure is below its
    threshold, says nothing. All shares of a trace have one denominator, which ``denominator`` states: the time from
    step to step of the steady decode steps (of all steps where there is no steady state), summed over the devices, or
    the recorded time of host and device where there are no steps. Idle time by cause, waiting, transfer, copies and
    compute do not overlap; the other rules (short kernels, split-K, NCCL for small messages, uneven ranks, names) look
    at parts of these again. A late rank makes others wait, so removing one loss may move another. A recording of
    nothing but graph captures has no findings.

    Parameters
    ----------
    trace : Trace
        Any trace with device activity or operators.

    Returns
    -------
    polars.DataFrame
        One row a finding, by the time it is about (what speaks of labels and not of the run comes last):

        - ``order`` (from 1), ``rule``, ``severity`` (high from 20 % of the time, medium from 5 %, low below, info for
          what is no fault), ``title`` (one sentence with the figure);
        - ``figure`` (ns a step and device, or a device: what it is ranked by), ``unit`` (ns a step or ns a rank),
          ``share_of_time``; ``gain_ns``: the most that removing it could gain, in the same unit;
        - ``scope`` (steady decode steps, steps, whole recording), ``denominator`` (what shares are of, in words);
        - where to look: ``evidence`` (the analysis whose frame shows it), ``where`` (an SQL condition for its rows:
          ``frame.filter(pl.sql_expr(where))``), ``rank`` (with most of it) and ``start_ns, end_ns`` (when it is worst
          there; null where no moment stands out);
        - ``detail`` and ``suggestion``.

    Raises
    ------
    NotCapturedError
        The trace has neither kernels nor copies nor operators.

    Examples
    --------
    >>> found = analyze.findings(trace)
    >>> found["order"].to_list() == list(range(1, found.height + 1))
    True
    """
    scope = scope_of(trace)
    rows = [_sentence(rule, measure, scope) for rule in RULES if (measure := _measured(rule, scope)) is not None]
    found = pl.DataFrame(rows, schema={k: v for k, v in SCHEMA.items() if k != "order"})
    last = pl.col("rule").is_in([rule.name for rule in RULES if rule.last])
    return Findings(
        found.sort(last, "share_of_time", descending=[False, True], maintain_order=True)
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
    if measure is None or measure.ns <= 0 or measure.ns < rule.minimum_share * scope.span_ns:
        return None
    return measure


def _sentence(rule: Rule, measure: Measure, scope: Scope) -> dict[str, object]:
    share = min(1.0, measure.ns / scope.span_ns)
    figure = measure.ns / scope.parts
    severity = next(s for s, least in _LEAST_SHARES.items() if share >= least)
    words = {
        **measure.words,
        "time": format_ns(figure),
        "share": format_share(share),
        "part": scope.part if scope.steps is not None else "the recorded time",
    }
    gain = measure.ns if measure.gain_ns is None else measure.gain_ns
    first, last = measure.window_ns or (None, None)
    title = rule.title.format(**words)
    return {
        "rule": rule.name,
        "severity": "info" if rule.info else severity,
        "title": title[:1].upper() + title[1:],
        "figure": figure,
        "unit": "ns a rank" if scope.steps is None else "ns a step",
        "share_of_time": share,
        "gain_ns": min(gain, measure.ns) / scope.parts,
        "scope": scope.words,
        "denominator": scope.denominator,
        "evidence": rule.evidence,
        "where": measure.where,
        "rank": measure.rank,
        "start_ns": first,
        "end_ns": last,
        "detail": rule.detail.format(**words),
        "suggestion": measure.suggestion or rule.suggestion,
    }


ANALYSIS = Analysis(
    function=findings,
    question="What takes the time, and what can be done about it?",
    help="what takes the time, most important first, and what to try",
    view="findings",
    reported=True,
)
