"""Findings: ranked statements about where the time goes, each with its figure, its evidence and
what to try.
"""

from __future__ import annotations

import polars as pl

from llmprof.analyze.catalog import Analysis
from llmprof.analyze.operator_times import refuse_samples
from llmprof.findings.facts import mean_step_parts, where_the_time_went
from llmprof.findings.first_tokens import first_token_finding
from llmprof.findings.frame import Findings
from llmprof.findings.gain import replay_ahead
from llmprof.findings.incomplete import incomplete_finding
from llmprof.findings.kv_transfer import kv_transfer_finding
from llmprof.findings.ranking import rank_findings
from llmprof.findings.rows import losses_of, measured_causes, scope_findings
from llmprof.findings.scope import scopes_of
from llmprof.trace import Trace
from llmprof.trace.kept import per_trace, results_of


@Analysis(
    question="What takes the time, and what can be done about it?",
    help="what takes the time, most important first, and what to try",
    view="findings",
    recorded="device activity or operators",
)
def findings(
    trace: Trace, *, step: int | None = None, requests: pl.DataFrame | None = None
) -> pl.DataFrame:
    """Ranked findings: what takes the time, and what its remedy would gain, the largest gain first.

    Every rule measures the time that something takes. A rule gives no finding if its figure is
    unknown or below its threshold. Each phase with 10 % of the time of all steps has findings
    of its own (its steps are the scope; the steady decode steps stand for decode if they take
    the time of all its steps within 10 %, and steps that take 1.5 times as long or more have
    findings of their own); without steps the scope is the time from the first to the last event
    of each device. ``denominator`` says what a share is of: the time from step to step of the
    scope, summed over the devices, or over the ranks that a finding names
    alone. Idle time by cause, waiting, transfer, copies and compute of a scope do not overlap.
    The other rules (short kernels, split-K, NCCL for small messages, uneven ranks, names)
    measure parts of these again. What follows from another finding names it in
    ``follows_from``, stands after it and has no gain of its own: ranks that wait for one whose
    host is late, for example. Facts (severity ``info``) come after all losses, but for the
    heaviest stage: without a bound, it is ranked as if a fifth of it could be gained. A
    recording of graph captures alone has no findings.

    Parameters
    ----------
    trace : Trace
        Any trace with device activity or operators.
    step : int, optional
        Findings of this step, on every rank that has it, in place of the run: why was it slow?
    requests : polars.DataFrame, optional
        Rows of ``analyze.requests(run)``. A finding about the slowest first tokens then stands in
        its place by the share of the time of all requests; its own share has a different
        denominator.

    Returns
    -------
    polars.DataFrame
        One row for each finding. Losses come first, by the gain that is predicted for their remedy
        (the mean of the least and the expected one), or by half of their time if there is no
        prediction, in proportion to that of their phase:

        - ``order`` (from 1), ``rule``, ``severity`` (high from 20 % of the time, medium from 5 %,
          low below or where the recording cannot tell, info if it is not a fault), ``title``
          (one sentence with the figure);
        - ``figure`` (ns a step and device, or a device), ``unit`` (ns a step, ns a rank or ns a
          request), ``share``; ``recorded_share``: of all recorded time, if all steps of
          the phase are like those of the scope; ``follows_from``: the rule of the finding that is
          its cause; ``gain_ns``: the most that removing it could gain if nothing else changed, in
          the same unit;
        - ``predicted_ns, predicted_low_ns, predicted_high_ns``: what :func:`what_if` predicts with
          the remedy, in the same unit, and its interval (below 0: slower);
          ``predicted_tokens_per_s``: the same as more tokens a second on a replica of the model;
          ``predicted_plain``: whether these are time without the profiler, which is told of decode
          steps in a run that also measured it; ``change``: the remedy as ``llmprof what-if`` takes
          it; ``prediction``: in words. Null without a prediction; ``prediction`` then says why. The
          prediction is below ``gain_ns`` if something else sets the pace, and above it if the
          change also removes other losses;
        - ``scope`` (steady, usual or slow decode steps, mixed steps, steps, a step, request pauses:
          no request runs in them, whole recording), ``denominator`` (what shares are of, in words);
        - where to look: ``evidence`` (the analysis whose frame shows it), ``where`` (an SQL
          condition for its rows: ``frame.filter(pl.sql_expr(where))``), ``rank`` (with most of it)
          and ``start_ns, end_ns`` (when it is worst there; null where no moment stands out);
        - ``detail``, ``suggestion`` and ``about`` (full name of the kernel, call or function that
          the sentences name).

    Raises
    ------
    NotCapturedError
        The trace has neither kernels nor copies nor operators.
    AnalysisError
        There is no such step.

    Examples
    --------
    >>> found = analyze.findings(trace)
    >>> found["order"].to_list() == list(range(1, found.height + 1))
    True
    """
    refuse_samples(trace, "what takes the time of a step")
    return rank_findings(
        [found for _, found, _ in _each_scope(trace, step=step)],
        None if requests is None else first_token_finding(trace, requests),
        kv_transfer_finding(trace) if step is None else None,
        incomplete_finding(trace),
    )


@per_trace
def _each_scope(
    trace: Trace, *, step: int | None = None
) -> list[tuple[str, pl.DataFrame, pl.DataFrame | None]]:
    """The words, the findings and the parts of a mean step of each scope."""
    measured = [(scope, measured_causes(scope)) for scope in scopes_of(trace, step=step)]
    replay_ahead(trace, [(scope, [*losses_of(causes).values()]) for scope, causes in measured])
    return [
        (scope.words, found, mean_step_parts(scope) if found.height else None)
        for scope, causes in measured
        for found in [scope_findings(scope, causes)]
    ]


def scope_parts(trace: Trace, scope: str, *, step: int | None = None) -> pl.DataFrame | None:
    """What a mean step of each rank is made of in the scope with these words; None if it has no
    steps, or if workers analysed the ranks, whose events are not loaded here.
    """
    if results_of(trace).made_elsewhere:
        return None
    scopes = _each_scope(trace, step=step)
    return next((parts for words, _, parts in scopes if words == scope), None)


def shown_findings(
    trace: Trace, *, step: int | None = None, requests: pl.DataFrame | None = None
) -> Findings:
    """The findings, with what stands beside them in a notebook."""
    found = findings(trace, step=step, requests=requests)
    parts = scope_parts(trace, found["scope"][0], step=step) if found.height else None
    return Findings(found, where_the_time_went(trace, requests), parts)
