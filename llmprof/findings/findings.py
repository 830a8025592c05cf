"""Findings: ranked statements about where the time goes, each with its figure, its evidence and
what to try.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from importlib import import_module
from typing import Any, Final

import polars as pl

from llmprof import plugins
from llmprof.analyze.catalog import Analysis
from llmprof.analyze.operator_times import refuse_samples
from llmprof.analyze.requests.requests import slowest
from llmprof.analyze.step_times import recorded_windows, step_windows
from llmprof.errors import LlmprofError, NotCapturedError
from llmprof.findings import sentences, waiting, work
from llmprof.findings.facts import step_parts, where_the_time_went
from llmprof.findings.host import MOSTLY, doing
from llmprof.findings.reasons import REASONS
from llmprof.findings.scope import Measure, Rule, Scope, apart, most, scopes_of, total
from llmprof.findings.sentences import FOLLOWS, GAIN, finding, say
from llmprof.label.intervals import clip, length_within
from llmprof.names import readable
from llmprof.replay.changes import NOT_WHOLE_GRAPHS
from llmprof.replay.part import replayed_part
from llmprof.replay.what_if import change_of, replayed
from llmprof.trace import Trace
from llmprof.units import format_ns, format_share

_RULES: Final[tuple[Rule | plugins.Place, ...]] = (
    Rule("arrival_skew", waiting.arrival_skew, "collectives"),
    Rule("pipeline_wait", waiting.pipeline_wait, "collectives"),
    Rule("host_bound", waiting.host_bound, "idle"),
    *(Rule(reason, waiting.by_reason(reason), "idle") for reason in REASONS),
    Rule("device_held", waiting.device_held, "idle"),
    Rule("synchronisation", waiting.synchronisation, "idle", 0.005),
    Rule("exposed_communication", waiting.exposed_communication, "collectives", 0.005),
    Rule("copies", work.copies, "events"),
    Rule("unexplained_idle", waiting.unexplained, "idle"),
    Rule("left_out", waiting.left_out, "idle", info=True),
    Rule("idle_at_the_ends", waiting.outside, "events", 0.05, info=True),
    Rule("between_operators", waiting.between_operators, "idle"),
    Rule(
        "nccl_for_small_messages",
        waiting.nccl_for_small,
        "collectives",
        0.002,
        follows_from="exposed_communication",
    ),
    Rule("between_queued_events", waiting.between_queued, "idle"),
    Rule("short_kernels", work.short_kernels, "events", 0.0),
    Rule("split_k", work.split_k, "events", 0.001),
    Rule("drafting", work.drafting, "events", 0.005, info=True),
    Rule("ai_cpu_operators", work.ai_cpu, "events", 0.005),
    Rule("format_changes", work.format_changes, "events", 0.005),
    *(
        Rule(name, work.uneven(name), "overlap", 0.02)
        for name in ("slow_device", "uneven_experts", "uneven_compute")
    ),
    Rule("below_bound", work.below_bound, "opportunities"),
    Rule("heaviest_stage", work.heaviest_stage, "events", 0.0, info=True, unless="below_bound"),
    Rule("ai_core_units", work.core_units, "core_time", 0.0, info=True),
    Rule("sampled_units", work.sampled_units, "counters", 0.01, info=True),
    Rule("above_bound", work.above_bound, "operators", 0.0, info=True, last=True),
    Rule("unnamed_time", work.unnamed, "events", info=True, last=True),
)
"""All rules, or their places; their order decides between findings of equal weight."""

RULES: Final = plugins.listed(_RULES, Rule)


SCHEMA = {
    "order": pl.Int32,
    **dict.fromkeys(("rule", "severity", "title"), pl.String),
    "figure": pl.Float64,
    "unit": pl.String,
    **dict.fromkeys(("share_of_time", "share_of_recorded"), pl.Float64),
    "follows_from": pl.String,
    **dict.fromkeys(
        ("gain_ns", "predicted_ns", "predicted_low_ns", "predicted_high_ns"), pl.Float64
    ),
    "predicted_tokens_per_s": pl.Float64,
    "predicted_plain": pl.Boolean,
    **dict.fromkeys(
        ("change", "prediction", "scope", "denominator", "evidence", "where"), pl.String
    ),
    "rank": pl.Int32,
    **dict.fromkeys(("start_ns", "end_ns"), pl.Int64),
    **dict.fromkeys(("detail", "suggestion", "about"), pl.String),
}

_PREDICTED = (
    "predicted_ns",
    "predicted_low_ns",
    "predicted_high_ns",
    "predicted_tokens_per_s",
    "predicted_plain",
    "change",
    "prediction",
)

_LEAST_SHARES = {"high": 0.2, "medium": 0.05, "low": 0.0}
"""Severities, each with the least share of time that it needs, in order."""


class Findings(pl.DataFrame):
    """The frame of :func:`findings`, which shows itself as sentences in a notebook.

    Attributes
    ----------
    time_went : list of str
        Where the recorded time went by phase, and that of the requests; frames of some of these
        findings keep it.
    parts : polars.DataFrame, optional
        ``rank, part, ns``: what a mean step of each rank is made of, in the scope of the first
        finding; kept, too.
    """

    time_went: Sequence[str] = ()
    parts: pl.DataFrame | None = None

    def _repr_html_(self, **kwargs: Any) -> str:
        if not set(SCHEMA) <= set(self.columns):
            plain: str = super()._repr_html_(**kwargs)
            return plain
        # imported by name: lower layers do not know the report
        shown: str = import_module("llmprof.report.cards").of_findings(self)
        return shown


def _keeping(name: str) -> Callable[..., Findings]:
    """A method of frames that gives some of its rows, for :class:`Findings`."""
    of_frame = getattr(pl.DataFrame, name)

    @wraps(of_frame)
    def method(self: Findings, *args: Any, **kwargs: Any) -> Findings:
        kept = Findings(of_frame(self, *args, **kwargs))
        kept.time_went, kept.parts = self.time_went, self.parts
        return kept

    return method


for _name in ("clone", "filter", "head", "limit", "slice", "sort", "tail"):
    setattr(Findings, _name, _keeping(_name))


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
    unknown or below its threshold. Each phase with 10 % of the time of all steps has findings of
    its own (its steps are the scope; the steady decode steps stand for decode); without steps the
    scope is the recorded time of host and device. ``denominator`` says what a share is of: the time
    from step to step of the scope, summed over the devices, or over the ranks that a finding names
    alone. Idle time by cause, waiting, transfer, copies and compute of a scope do not overlap. The
    other rules (short kernels, split-K, NCCL for small messages, uneven ranks, names) measure parts
    of these again. What follows from another finding names it in ``follows_from``, stands after it
    and has no gain of its own: ranks that wait for one whose host is late, for example. Facts
    (severity ``info``) come after all losses. A recording of graph captures alone has no findings.

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
        One row for each finding. Losses come first, by the least gain that is predicted for their
        remedy, or by their time if there is no prediction, in proportion to the time of their
        phase:

        - ``order`` (from 1), ``rule``, ``severity`` (high from 20 % of the time, medium from 5 %,
          low below, info if it is not a fault), ``title`` (one sentence with the figure);
        - ``figure`` (ns a step and device, or a device), ``unit`` (ns a step, ns a rank or ns a
          request), ``share_of_time``; ``share_of_recorded``: of all recorded time, if all steps of
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
        - ``scope`` (steady decode steps, mixed steps, steps, a step, whole recording),
          ``denominator`` (what shares are of, in words);
        - where to look: ``evidence`` (the analysis whose frame shows it), ``where`` (an SQL
          condition for its rows: ``frame.filter(pl.sql_expr(where))``), ``rank`` (with most of it)
          and ``start_ns, end_ns`` (when it is worst there; null where no moment stands out);
        - ``detail``, ``suggestion`` and ``about`` (full name of the kernel, call or function that
          the sentences name).

        Its attribute ``time_went`` says where the recorded time went by phase, and that of the
        requests; ``parts`` (``rank, part, ns``) what a mean step of each rank is made of.

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
    scopes = scopes_of(trace, step=step)
    frames = [ranked(scope) for scope in scopes]
    found = combined(frames, None if requests is None else first_token_finding(trace, requests))
    first = [scope for scope in scopes if scope.span_ns and scope.words in found["scope"].head(1)]
    found.parts = step_parts(first[0]) if first else None
    found.time_went = where_the_time_went(trace, requests)
    return found


def ranked(scope: Scope, *, whole: Trace | None = None) -> pl.DataFrame:
    """Findings of the rules in a scope, not in order."""
    found = {
        rule.name: (rule, measure)
        for rule in RULES
        if (measure := _measured(rule, scope)) is not None
    }
    found = {
        name: (rule, measure) for name, (rule, measure) in found.items() if rule.unless not in found
    }
    losses = {name: measure for name, (rule, measure) in found.items() if not rule.info}
    causes = {
        name: of if (of := m.follows_from or rule.follows_from) in found else None
        for name, (rule, m) in found.items()
    }
    limits = dict.fromkeys(found, 0.0)
    for name, (_, measure) in found.items():
        for of in {name, causes[name] or name}:
            limits[of] += measure.ns / scope.of(measure.own).parts
    predicted = gains_of(
        scope,
        list(losses.values()),
        [limits[n] for n in losses],
        scope.trace if whole is None else whole,
    )
    gains = dict(zip(losses, predicted, strict=True))
    rows = [
        _row(rule, measure, scope, gains.get(name), causes[name])
        for name, (rule, measure) in found.items()
    ]
    return pl.DataFrame(
        rows, schema={k: v for k, v in SCHEMA.items() if k != "order"} | {"weight": pl.Float64}
    )


LEAST_OF_OTHERS = 0.02
"""Least share of the recorded time for a finding about a phase that is not the one with most
time.
"""


def combined(
    frames: Sequence[pl.DataFrame], first_tokens: dict[str, Any] | None = None
) -> Findings:
    """Findings of all scopes and of requests in order, the first scope being that of the phase
    with most time.
    """
    much = (pl.col("share_of_recorded") >= LEAST_OF_OTHERS) & (pl.col("severity") != "info")
    frame = pl.concat([rows if n == 0 else rows.filter(much) for n, rows in enumerate(frames)])
    if first_tokens is not None:
        row = dict.fromkeys((*_PREDICTED, "share_of_recorded", "follows_from")) | first_tokens
        frame = pl.concat([pl.DataFrame([row], schema=frame.schema), frame])
    last = pl.col("rule").is_in([rule.name for rule in RULES if rule.last])
    own = pl.col("rule") == FIRST_TOKENS
    fact = pl.col("severity") == "info"
    chain = [pl.col("scope"), pl.coalesce("follows_from", "rule")]
    return Findings(
        frame.with_columns(chain=pl.col("weight").max().over(chain))
        .sort(
            (own & fact) | last,
            fact,
            "chain",
            pl.col("follows_from").is_not_null(),
            "weight",
            descending=[False, False, True, False, True],
            maintain_order=True,
        )
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
    if measure is None or measure.ns <= 0:
        return None
    if measure.by_rank is not None:
        ranks, others_ns = apart(scope, measure.by_rank)
        own = ranks if others_ns else None
        ns = (
            total(measure.by_rank.filter(pl.col("rank").is_in(ranks)), "dur_ns")
            if own
            else measure.ns
        )
        measure = replace(
            measure, ns=ns, own=own, figures=measure.figures | {"on": own, "others_ns": others_ns}
        )
    return measure if measure.ns >= rule.minimum_share * scope.of(measure.own).span_ns else None


_RECORDED = {False: "the recorded time", True: "the recorded time of a rank"}
"""What times and counts are of where no steps were found; of several devices they are means."""


def _row(
    rule: Rule, measure: Measure, scope: Scope, predicted: Gain | str | None, follows: str | None
) -> dict[str, object]:
    of = scope.of(measure.own)
    share = min(1.0, measure.ns / of.span_ns)
    figure = measure.ns / of.parts
    of_recorded = min(1.0, measure.ns * scope.weight / max(1, scope.recorded_ns))
    severity = next(s for s, least in _LEAST_SHARES.items() if share >= least)
    of_scope = {
        "on": None,
        "others_ns": None,
        **measure.figures,
        "time_ns": figure,
        "share": share,
        "part": scope.part if scope.steps is not None else _RECORDED[scope.parts > 1],
        "of_torch": scope.of_torch,
        "on_host": scope.trace.capture.on_host,
    }
    about = next(
        (name for key in ("name", "who", "call") if (name := measure.figures.get(key)) is not None),
        None,
    )
    if "cause" in of_scope:
        of_scope["cause"] = follows  # where it has a finding
    if "name" in of_scope:
        of_scope["name"] = readable(pl.Series([about], dtype=pl.String))[0]
    words = {**scope.trace.capture.words, **of_scope}
    title, detail, suggestion = sentences.finding(rule.name, words, rule.words)
    gain = measure.ns if measure.gain_ns is None else measure.gain_ns
    first, last = measure.window_ns or (None, None)
    known_gain = predicted if isinstance(predicted, Gain) and not follows else None
    gained = figure if known_gain is None else max(0.0, known_gain.low_ns * known_gain.slowed)
    return {
        "rule": rule.name,
        "severity": "info" if rule.info else severity,
        "title": title,
        "figure": figure,
        "unit": "ns a rank" if scope.steps is None else "ns a step",
        "share_of_time": share,
        "share_of_recorded": of_recorded,
        "follows_from": follows,
        "gain_ns": min(gain, measure.ns) / of.parts,
        "predicted_ns": known_gain and known_gain.ns,
        "predicted_low_ns": known_gain and known_gain.low_ns,
        "predicted_high_ns": known_gain and known_gain.high_ns,
        "predicted_tokens_per_s": known_gain and known_gain.tokens_per_s,
        "predicted_plain": known_gain and known_gain.plain,
        "change": known_gain and measure.change,
        "prediction": known_gain.words
        if known_gain is not None
        else FOLLOWS
        if follows
        else predicted,
        "scope": scope.words,
        "denominator": of.denominator,
        "evidence": rule.evidence,
        "where": measure.where,
        "rank": measure.rank,
        "start_ns": first,
        "end_ns": last,
        "detail": detail,
        "suggestion": suggestion,
        "about": about,
        "weight": gained * (of.parts if known_gain is None else scope.parts) * scope.weight,
    }


NOTHING: Final = 0.01
"""No gain is predicted for a loss below this share of the time."""

TINY: Final = 0.001
"""A replay whose time differs by less than this share of it gains nothing."""


@dataclass(frozen=True, slots=True)
class Gain:
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
    scope: Scope, measures: Sequence[Measure], limits: Sequence[float], trace: Trace
) -> list[Gain | str]:
    """Gain of the remedy of each measure alone, in the scope of the findings; at most its limit
    (ns of the unit).
    """
    changes = [
        item.change if item.ns >= NOTHING * scope.of(item.own).span_ns else "" for item in measures
    ]
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
    scope: Scope,
    limit: float,
    change: str | None,
    rows: pl.DataFrame | LlmprofError | None,
    of_part: str,
) -> Gain | str:
    if change is None:
        return "No prediction: a replay cannot make this change."
    if not change or rows is None:
        return f"No prediction: it is below {format_share(NOTHING)} of the time."
    if isinstance(rows, LlmprofError):
        return f"No prediction: {rows.found}."
    if scope.steps is not None:
        rows = rows.join(
            scope.windows.select("rank", "step").unique(), on=["rank", "step"], how="semi"
        )
    if (
        not rows.height
        and change.startswith("no-host-delay")
        and scope.windows["phase"].is_in(NOT_WHOLE_GRAPHS).all()
    ):
        return "No prediction: engines run no whole graph for steps that read prompts."
    if not rows.height:
        return "No prediction: these steps have none before them."
    plain = not rows["plain_recorded_ns"].null_count()
    names = [
        f"{'plain_' if plain else ''}{name}_ns" for name in ("recorded", "middle", "low", "high")
    ]
    times = [pl.col(name) for name in ("recorded_ns", *names)]
    means = rows.select(
        (time * pl.col("weight")).sum().alias(str(n)) / pl.col("weight").sum()
        for n, time in enumerate(times)
    )
    profiled, recorded, *after = means.row(0)
    slowed = profiled / recorded if recorded else 1.0
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
        changed=changed,
        interval=high - low >= TINY * recorded,
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
    """Mean number of tokens that a step generates; None if a step does not state it or also
    reads prompts.
    """
    if scope.steps is None:
        return None
    steps = scope.steps.join(rows, on=["rank", "step"], how="semi")
    made = steps["generation_tokens"]
    if not made.len() or made.null_count() or steps["context_tokens"].fill_null(0).sum():
        return None
    return float(made.mean())  # type: ignore[arg-type]


FIRST_TOKENS: Final = "slow_first_tokens"
"""Rule of :func:`first_token_finding`."""

AT_ONCE: Final = 0.05
"""Requests that arrive within this share of the slowest first token were submitted as one batch."""

IDLE: Final = "an idle device"


def first_token_finding(
    trace: Trace, frame: pl.DataFrame, *, quantile: float = 0.99
) -> dict[str, Any] | None:
    """Parts of slow first tokens, as a row of :func:`llmprof.analyze.findings`; None without
    requests.
    """
    # Its weight is the time of all steps by the share that the part has of the time of all
    # requests.
    if frame.is_empty():
        return None
    windows = recorded_windows(trace)
    scope = Scope(trace, "whole recording", None, windows, int(windows["dur_ns"].sum()))
    idle = None if trace.capture.on_host or not windows.height else _pauses(scope)
    frame = frame if idle is None else _with_idle(frame, idle)
    slow = slowest(frame, quantile=quantile)
    numbers = slow["requests"]
    parts = _parts(slow, frame.filter(pl.col("request").is_in(numbers)))
    ttft = sum(parts.values())
    name, largest = max(parts.items(), key=lambda item: item[1])
    share = largest / ttft if ttft else 0.0
    own = name == "its own prefill"
    worst = frame.sort("ttft_ns", descending=True).row(0, named=True)
    arrived = frame["start_ns"].max() - frame["start_ns"].min()  # type: ignore[operator]
    figures = {
        "percentile": f"p{100 * quantile:g}",
        "part": name,
        "part_ns": largest,
        "ttft_ns": ttft,
        "part_share": share,
        "others": [(other, ns) for other, ns in parts.items() if other != name and ns > 0],
        "at_once": frame.height > 1 and arrived < AT_ONCE * worst["ttft_ns"],
        "slowest": worst["request"],
        "slowest_ns": worst["ttft_ns"],
        **(_why(scope, idle, worst) if idle is not None and name == IDLE else {}),
    }
    words = {**trace.capture.platform.words, "of_torch": scope.of_torch, **figures}
    title, detail, suggestion = finding(FIRST_TOKENS, words)
    mean = float(frame["e2e_ns"].mean() or 0)  # type: ignore[arg-type]
    of_all = _parts(slowest(frame, quantile=0.0), frame)[name] / max(1.0, mean)
    return {
        "rule": FIRST_TOKENS,
        "severity": "info" if own else "high" if share >= 0.2 else "medium",
        "title": title,
        "figure": largest,
        "unit": "ns a request",
        "share_of_time": share,
        "gain_ns": 0.0 if own else largest,
        "scope": f"the {len(numbers)} slowest of {slow['of']} requests",
        "denominator": f"their time to the first token, {format_ns(ttft)} on average",
        "evidence": "requests",
        "where": f"request IN ({', '.join(map(str, numbers))})",
        "rank": None,
        "start_ns": worst["start_ns"],
        "end_ns": worst["first_token_ns"],
        "detail": detail,
        "suggestion": suggestion,
        "about": figures.get("who"),
        "weight": of_all * (int(step_windows(trace)["dur_ns"].sum()) or scope.recorded_ns),
    }


def _pauses(scope: Scope) -> pl.DataFrame:
    """Pauses of the first rank's device, cut to steps, with their ``phase``; those beside steps
    with a known reason.
    """
    rank = min(rank for rank in scope.trace.ranks if rank >= 0)
    pauses = scope.pauses.filter(pl.col("rank") == rank)
    pauses = pauses.filter(pl.col("device") == pl.col("device").min())
    steps = (
        step_windows(scope.trace).filter(pl.col("rank") == rank).unique("start_ns").sort("start_ns")
    )
    steps = steps.with_columns(dur_ns="span_ns").filter(pl.col("dur_ns") > 0)
    inside = clip(pauses, steps, ["rank"])
    inside = inside.with_columns(phase=steps["phase"].gather(inside["window"])).drop("window")
    known = pauses.filter(pl.col("reason").is_not_null())
    return pl.concat(
        [inside, known.with_columns(phase=pl.lit(None, dtype=pl.String)).select(inside.columns)]
    )


def _with_idle(frame: pl.DataFrame, pauses: pl.DataFrame) -> pl.DataFrame:
    """Requests with ``ttft_idle_ns``: an idle device before the first token, taken out of the
    other parts.
    """
    first_step = pl.col("first_step_ns").clip(pl.col("start_ns"), pl.col("first_token_ns"))
    waiting = frame.select("start_ns", dur_ns=first_step - pl.col("start_ns"))
    carried = frame.select(start_ns=first_step, dur_ns=pl.col("first_token_ns") - first_step)
    in_steps = pauses.filter(pl.col("phase").is_not_null())
    decoding = in_steps["phase"] == "decode"

    def within(rows: pl.DataFrame, of: pl.DataFrame) -> pl.Series:
        return length_within(rows, of, name="ns")["ns"]

    known = pauses.filter(pl.col("reason").is_not_null())
    known_in_steps = in_steps.filter(pl.col("reason").is_not_null())
    beside = [within(rows, known) - within(rows, known_in_steps) for rows in (waiting, carried)]
    idle = frame.select(
        behind_prefill=pl.min_horizontal(
            "queue_prefill_ns", within(waiting, in_steps.filter(~decoding))
        ),
        behind_decode=pl.min_horizontal(
            "queue_decode_ns", within(waiting, in_steps.filter(decoding))
        ),
        between=pl.min_horizontal("queue_other_ns", beside[0]),
        own=within(carried, in_steps),
        after=beside[1],
    )
    of_own = pl.col("prefill_ns") / pl.max_horizontal(
        1, pl.col("prefill_ns") + pl.col("prefill_others_ns")
    )
    own = pl.min_horizontal(idle["own"], pl.col("prefill_ns") + pl.col("prefill_others_ns"))
    return frame.with_columns(
        queue_prefill_ns=pl.col("queue_prefill_ns") - idle["behind_prefill"],
        queue_decode_ns=pl.col("queue_decode_ns") - idle["behind_decode"],
        queue_other_ns=pl.col("queue_other_ns") - idle["between"],
        prefill_ns=pl.col("prefill_ns") - own * of_own,
        ttft_others_ns=pl.col("ttft_others_ns") - idle["behind_prefill"] - own * (1 - of_own),
        ttft_idle_ns=idle["behind_prefill"]
        + idle["behind_decode"]
        + idle["between"]
        + own
        + idle["after"],
    )


def _parts(slow: dict[str, Any], rows: pl.DataFrame) -> dict[str, float]:
    """Parts of the time to the first token, that of the idle device taken from the rest."""
    parts: dict[str, float] = dict(slow["parts"])
    if "ttft_idle_ns" in rows.columns:
        parts[IDLE] = min(parts["the rest"], float(rows["ttft_idle_ns"].mean() or 0))  # type: ignore[arg-type]
        parts["the rest"] -= parts[IDLE]
    return parts


def _why(scope: Scope, pauses: pl.DataFrame, worst: dict[str, Any]) -> dict[str, Any]:
    """What the host did while the device was idle before the slowest first token."""
    window = pl.DataFrame(
        {"start_ns": [worst["start_ns"]], "dur_ns": [worst["first_token_ns"] - worst["start_ns"]]}
    )
    gaps = clip(pauses, window)
    known = gaps.filter(pl.col("reason").is_not_null())
    reason, _ = most(known, "reason")
    of_reason = known.filter(pl.col("reason").eq_missing(reason))
    if reason is None or total(of_reason, "dur_ns") < MOSTLY * total(gaps, "dur_ns"):
        return {"who": None, "reason": None, "host": doing(scope, gaps)}
    who, share = most(of_reason, "who")
    return {"who": who, "by_who_share": share, "reason": reason, "first_launches": False}
