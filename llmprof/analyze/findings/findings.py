"""Findings: ranked statements about where the time goes, each with its figure, its evidence and what to try."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import polars as pl

from llmprof.analyze.catalog import Analysis
from llmprof.analyze.findings import waiting, work
from llmprof.analyze.findings.gain import Gain, gains_of
from llmprof.analyze.findings.scope import Measure, Scope, scope_of
from llmprof.analyze.findings.waiting import CUSTOM_ALL_REDUCE_BYTES
from llmprof.analyze.operator_times import refuse_samples
from llmprof.analyze.requests.spans import FIRST_TOKENS, first_token_finding
from llmprof.errors import NotCapturedError
from llmprof.trace import Trace
from llmprof.units import format_bytes, format_ns, format_share


@dataclass(frozen=True)
class Rule:
    """Rule: a measurement, the threshold for a finding, and its sentences."""

    name: str
    measure: Callable[[Scope], Measure | None]
    title: str
    detail: str
    suggestion: str
    evidence: str
    minimum_share: float = 0.01
    info: bool = False
    last: bool = False
    """Whether it is about labels and not about the run; such findings come last."""
    any_program: str = ""
    """Suggestion if nothing recorded shows PyTorch, where the usual one names its functions or parts of a model."""


RULES: tuple[Rule, ...] = (
    Rule(
        "arrival_skew",
        waiting.arrival_skew,
        "{time} of {part} ({share}) is waiting for the last rank: {who_is_late} of the "
        "{kind}s, the other ranks spend {waited} of theirs waiting, and the transfer itself takes {transfer} where "
        "their durations suggest {seen}.",
        "{calls} calls; the first and the last rank arrive {skew} apart, and all leave a call within {spread} of each "
        "other (medians): {clocks}{sure}.{within}",
        "Find out why that rank is late before touching communication: compare its host time and idle causes with "
        "the others', {pin}, look for other processes on those cores, and "
        "take the launches off the critical path with {graphs}.",
        "collectives",
    ),
    Rule(
        "pipeline_wait",
        waiting.pipeline_wait,
        "{time} of {part} ({share}) is waiting of one pipeline stage for another: in its {kind}s a rank waits {waited} "
        "of their duration, the transfer itself takes {transfer} where the durations suggest {seen}.",
        "{calls} calls; rank {late} arrives last in {late_share}, {skew} after the first (median).",
        "In a pipeline, one batch in flight leaves every stage but one idle: keep as many batches in flight as there "
        "are stages, or use tensor parallelism inside a host.",
        "collectives",
    ),
    Rule(
        "host_bound",
        waiting.host_bound,
        "{time} of {part} ({share}) the device is idle because the host is late: on {who} the next kernel was not "
        "launched yet, and the launching thread was longest in {doing}.",
        "{launching} of it are the launching calls themselves; {calls} launch calls for {kernels} kernels in {part}"
        "{replayed}.{host}",
        "Launch earlier, or with fewer calls.",
        "idle",
    ),
    Rule(
        "device_held",
        waiting.device_held,
        "{time} of {part} ({share}) the device stands still with work launched, while the host is in {call} ({by_call} "
        "of it).",
        "{pauses} in {part}, the longest of {longest}.",
        "Take that call out of the step.",
        "idle",
    ),
    Rule(
        "synchronisation",
        waiting.synchronisation,
        "{time} of {part} ({share}) the device is idle after a synchronising call, mostly {call}, until the next "
        "launch.",
        "{pauses} in {part}; the launching thread is then longest in {doing}.",
        "Find the .item(), .cpu() or synchronize() (its operator is around the call) and take it out of the step, so "
        "that the host can launch ahead.",
        "idle",
        0.005,
        any_program="Find where the program makes this call, and leave it out where the host does not need the result "
        "at once (asynchronous copies, events between streams), so that the host can launch ahead.",
    ),
    Rule(
        "exposed_communication",
        waiting.exposed_communication,
        "{what} with no compute beside it takes {time} of {part} ({share}); {hidden} of it is hidden.",
        "{calls} calls in {part}, most time in {kinds}.{why}",
        "Fewer or fused collectives, {fuse_communication}, sequence parallelism, compute beside it, or a "
        "smaller tensor-parallel size.",
        "collectives",
        0.005,
    ),
    Rule(
        "copies",
        work.copies,
        "Copies with nothing beside them take {time} of {part} ({share}), {by_name} of it {name}.",
        "{count} of these in {part}{size}.",
        "Copy less, or beside compute.",
        "attribute",
    ),
    Rule(
        "unexplained_idle",
        waiting.unexplained,
        "{time} of {part} ({share}) the device is idle and nothing recorded says why.",
        "{pauses} in {part}; {launched}.",
        "Record the host's calls of all threads ({record_host}), and look for other processes "
        "on the device and for events that the profiler dropped.",
        "idle",
    ),
    Rule(
        "idle_at_the_ends",
        waiting.outside,
        "{time} of {part} ({share}) the device runs nothing before its first event and after its last.",
        "{before} before and {after} after them.",
        "Start the profiler after loading and warm-up, or look at what the host does there: this time is no part of a "
        "steady run.",
        "activity",
        0.05,
    ),
    Rule(
        "between_operators",
        waiting.between_operators,
        "{time} of {part} ({share}) no operator runs.",
        "{count} pauses in {part}, {median} each (median): {doing} that is not an operator.",
        "Record Python functions (with_stack=True) to see what runs there.",
        "idle",
    ),
    Rule(
        "nccl_for_small_messages",
        waiting.nccl_for_small,
        "{time} of {part} ({share}) is transfer of all-reduces of {size} through {communication} ({algorithm}): "
        "{transfer} each, at {bus} on the bus.",
        "{calls} in {part}; vLLM's custom all-reduce takes messages up to "
        f"{format_bytes(CUSTOM_ALL_REDUCE_BYTES)} between {{device}}s with peer access.",
        "Compare a run with the custom all-reduce (no disable_custom_all_reduce); if it is off by itself, check peer "
        "access between the {device}s.",
        "collectives",
        0.002,
    ),
    Rule(
        "between_queued_events",
        waiting.between_queued,
        "{time} of {part} ({share}) passes between events that were launched in time, {by_kind} of it {kind}.",
        "{count} pauses in {part}, {median} each (median).",
        "Fewer and larger kernels: each costs the device such a pause.",
        "idle",
    ),
    Rule(
        "short_kernels",
        work.short_kernels,
        "{time} of {part} ({share}) goes to kernels shorter than {limit} that are neither GEMM, attention nor "
        "communication: {many} of all kernels ({count} of {of} in {part}).",
        "The median of all kernels is {median}; each costs a launch or a graph node besides.",
        "Fuse them ({fuse}) or raise the batch, so that a launch does more work.",
        "attribute",
        0.0,
        any_program="Fuse them with their neighbours, or give each more work.",
    ),
    Rule(
        "split_k",
        work.split_k,
        "{time} of {part} ({share}) is split-K reductions: {count} extra kernels, {of_gemms} of the time of the GEMMs.",
        "{gemm} splits the inner dimension of a GEMM that is too small to fill the {device}, and adds a kernel for the "
        "sum.",
        "A larger batch needs no split; smaller tensor parallelism makes GEMMs wider; or tune the algorithm choice.",
        "attribute",
        0.001,
    ),
    Rule(
        "ai_cpu_operators",
        work.ai_cpu,
        "{time} of {part} ({share}) goes to operators on the AI CPUs and not on the AI cores: {count} of them in "
        "{part}, longest in sum {name}.",
        "An operator falls back to the AI CPUs where CANN has no kernel for its types or shapes.",
        "Give it types that the AI cores compute (int32 for int64, float32 or bfloat16 for float64), or take another "
        "operator: msprof-analyze lists the types that each supports.",
        "attribute",
        0.005,
    ),
    Rule(
        "format_changes",
        work.format_changes,
        "{time} of {part} ({share}) goes to changes of format (TransData): {count} of them in {part}, longest in sum "
        "{name}.",
        "CANN puts them between operators that want their tensors in different formats, such as ND and NZ.",
        "Keep one format: torch.npu.config.allow_internal_format = False keeps ND throughout; weights that stay can be "
        "turned to NZ once, with npu_format_cast after loading.",
        "attribute",
        0.005,
    ),
    Rule(
        "uneven_compute",
        work.uneven_compute,
        "Rank {most} computes {time} longer in {part} ({share}), {ratio} times as long as rank {least}.",
        "Compute time without communication, copies and idle, mean over the scope.",
        "Look for uneven sharding, experts or stages, and for a slower or throttled {device}.",
        "overlap",
        0.02,
        any_program="Look for an uneven division of the work, and for a slower or throttled {device}.",
    ),
    Rule(
        "heaviest_stage",
        work.heaviest_stage,
        "{time} of {part} ({share}) is compute of {stage}, {of_compute} of all compute{next}.",
        "Compute is {compute} of the time; {kernels} of this {group} in {part}, longest in sum {kernel}.",
        "Compare this stage with its bound (bytes of its weights over the memory bandwidth) before optimising it.",
        "attribute",
        0.0,
        info=True,
    ),
    Rule(
        "ai_core_units",
        work.core_units,
        "{time} of {part} ({share}) is kernels whose AI cores were measured: in that time {units} are at work.",
        "{count} kernels in {part}; the rest of their time the cores move data or wait.",
        "See them by category: the cube units compute MatMul and attention, the vector units the rest.",
        "core_time",
        0.0,
        info=True,
    ),
    Rule(
        "unnamed_time",
        work.unnamed,
        "{time} of {part} ({share}) is compute without a known stage: {of_events} of the time of all events ({count}).",
        "Longest in sum is {name}. Shares by stage leave it out.",
        'Teach llmprof the kernels: llmprof.names.register("attention", r"name of yours").',
        "attribute",
        0.01,
        info=True,
        last=True,
    ),
)
"""All rules; their order decides between findings of equal weight."""


SCHEMA = {
    "order": pl.Int32,
    "rule": pl.String,
    "severity": pl.String,
    "title": pl.String,
    "figure": pl.Float64,
    "unit": pl.String,
    "share_of_time": pl.Float64,
    "gain_ns": pl.Float64,
    "predicted_ns": pl.Float64,
    "predicted_low_ns": pl.Float64,
    "predicted_high_ns": pl.Float64,
    "predicted_tokens_per_s": pl.Float64,
    "change": pl.String,
    "prediction": pl.String,
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

_PREDICTED = ("predicted_ns", "predicted_low_ns", "predicted_high_ns", "predicted_tokens_per_s", "change", "prediction")

_LEAST_SHARES = {"high": 0.2, "medium": 0.05, "low": 0.0}
"""Severities, each with the least share of time that it needs, in order."""


class Findings(pl.DataFrame):
    """The frame of :func:`findings`, which shows itself as sentences in a notebook."""

    def _repr_html_(self, **kwargs: Any) -> str:
        if not set(SCHEMA) <= set(self.columns):
            plain: str = super()._repr_html_(**kwargs)
            return plain
        # imported by name: lower layers do not know the report
        shown: str = import_module("llmprof.report.cards").of_findings(self)
        return shown


@Analysis(
    question="What takes the time, and what can be done about it?",
    help="what takes the time, most important first, and what to try",
    view="findings",
    reported=True,
    first=("steps", "steady_state", "step_windows", "recorded_windows"),
)
def findings(trace: Trace, *, step: int | None = None, requests: pl.DataFrame | None = None) -> pl.DataFrame:
    """Ranked findings: what takes the time, and what its remedy would gain, the largest gain first.

    Every rule measures the time that something takes. A rule gives no finding if its figure is unknown or below its
    threshold. All shares of a trace have one denominator, which ``denominator`` states: the time from step to step of
    the steady decode steps (of all steps if there is no steady state), summed over the devices, or the recorded time of
    host and device if there are no steps. Idle time by cause, waiting, transfer, copies and compute do not overlap. The
    other rules (short kernels, split-K, NCCL for small messages, uneven ranks, names) measure parts of these again. A
    late rank makes others wait, so removing one loss may move another. A recording of graph captures alone has no
    findings.

    Parameters
    ----------
    trace : Trace
        Any trace with device activity or operators.
    step : int, optional
        Findings of this step, on every rank that has it, in place of the run: why was it slow?
    requests : polars.DataFrame, optional
        Rows of ``analyze.requests(run)``. A finding about the slowest first tokens then comes first; its share has a
        different denominator.

    Returns
    -------
    polars.DataFrame
        One row for each finding, sorted by the predicted gain of its remedy, or by its time if there is no prediction
        (findings about labels come last):

        - ``order`` (from 1), ``rule``, ``severity`` (high from 20 % of the time, medium from 5 %, low below, info if it
          is not a fault), ``title`` (one sentence with the figure);
        - ``figure`` (ns a step and device, or a device), ``unit`` (ns a step, ns a rank or ns a request),
          ``share_of_time``; ``gain_ns``: the most that removing it could gain if nothing else changed, in the same
          unit;
        - ``predicted_ns, predicted_low_ns, predicted_high_ns``: what :func:`what_if` predicts with the remedy, in the
          same unit, and its interval (below 0: slower); ``predicted_tokens_per_s``: the same as more tokens a second
          on a replica of the model; ``change``: the remedy as ``llmprof what-if`` takes it; ``prediction``: in words.
          Null without a prediction; ``prediction`` then says why. The prediction is below ``gain_ns`` if something else
          sets the pace, and above it if the change also removes other losses;
        - ``scope`` (steady decode steps, steps, a step, whole recording), ``denominator`` (what shares are of, in
          words);
        - where to look: ``evidence`` (the analysis whose frame shows it), ``where`` (an SQL condition for its rows:
          ``frame.filter(pl.sql_expr(where))``), ``rank`` (with most of it) and ``start_ns, end_ns`` (when it is worst
          there; null where no moment stands out);
        - ``detail`` and ``suggestion``.

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
    return ranked(scope_of(trace, step=step), requests)


def ranked(scope: Scope, requests: pl.DataFrame | None = None, *, whole: Trace | None = None) -> Findings:
    """Findings of the rules in a scope, the largest first."""
    measures = [(rule, measure) for rule in RULES if (measure := _measured(rule, scope)) is not None]
    losses = [pair for pair in measures if not pair[0].info]
    predicted = gains_of(scope, [change for _, change in losses], scope.trace if whole is None else whole)
    gains = dict(zip((rule.name for rule, _ in losses), predicted, strict=True))
    rows = [_sentence(rule, measure, scope, gains.get(rule.name)) for rule, measure in measures]
    frame = pl.DataFrame(rows, schema={k: v for k, v in SCHEMA.items() if k != "order"})
    last = pl.col("rule").is_in([rule.name for rule in RULES if rule.last])
    if requests is not None and (waited := first_token_finding(requests)) is not None:
        waited |= dict.fromkeys(_PREDICTED)
        frame = pl.concat([pl.DataFrame([waited], schema=frame.schema), frame])
    own = pl.col("rule") == FIRST_TOKENS
    gain = pl.coalesce(pl.col("predicted_ns").clip(0), "figure")
    own_fault = own & (pl.col("severity") != "info")
    return Findings(
        frame.sort(~own_fault, last | own, gain, descending=[False, False, True], maintain_order=True)
        .with_columns(order=pl.int_range(1, pl.len() + 1, dtype=pl.Int32))
        .select(list(SCHEMA))
    )


def _measured(rule: Rule, scope: Scope) -> Measure | None:
    """Measurement of a rule, if it was captured and exceeds the threshold."""
    if not scope.span_ns:
        return None
    try:
        measure = rule.measure(scope)
    except NotCapturedError:
        return None
    if measure is None or measure.ns <= 0 or measure.ns < rule.minimum_share * scope.span_ns:
        return None
    return measure


_RECORDED = {False: "the recorded time", True: "the recorded time of a rank"}
"""What times and counts are of where no steps were found; of several devices they are means."""


def _sentence(rule: Rule, measure: Measure, scope: Scope, predicted: Gain | str | None) -> dict[str, object]:
    share = min(1.0, measure.ns / scope.span_ns)
    figure = measure.ns / scope.parts
    severity = next(s for s, least in _LEAST_SHARES.items() if share >= least)
    words = {
        **scope.platform.words,
        **measure.words,
        "time": format_ns(figure),
        "share": format_share(share),
        "part": scope.part if scope.steps is not None else _RECORDED[scope.parts > 1],
    }
    gain = measure.ns if measure.gain_ns is None else measure.gain_ns
    first, last = measure.window_ns or (None, None)
    title = rule.title.format(**words)
    known_gain = predicted if isinstance(predicted, Gain) else None
    usual = rule.suggestion if scope.of_torch else rule.any_program or rule.suggestion
    return {
        "rule": rule.name,
        "severity": "info" if rule.info else severity,
        "title": title[:1].upper() + title[1:],
        "figure": figure,
        "unit": "ns a rank" if scope.steps is None else "ns a step",
        "share_of_time": share,
        "gain_ns": min(gain, measure.ns) / scope.parts,
        "predicted_ns": known_gain and known_gain.ns,
        "predicted_low_ns": known_gain and known_gain.low_ns,
        "predicted_high_ns": known_gain and known_gain.high_ns,
        "predicted_tokens_per_s": known_gain and known_gain.tokens_per_s,
        "change": known_gain and measure.change,
        "prediction": known_gain.words if known_gain is not None else predicted,
        "scope": scope.words,
        "denominator": scope.denominator,
        "evidence": rule.evidence,
        "where": measure.where,
        "rank": measure.rank,
        "start_ns": first,
        "end_ns": last,
        "detail": rule.detail.format(**words),
        "suggestion": (measure.suggestion or usual).format(**words),
    }
