"""Cards: how a trace, a run, hardware metrics and findings show themselves in a notebook.

They are plain HTML without scripts, in the colours of the page around them, light or dark. Every name is escaped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import jinja2
import polars as pl
from markupsafe import Markup

from llmprof import analyze, schema
from llmprof.analyze import catalog
from llmprof.errors import LlmprofError
from llmprof.report import about
from llmprof.text import plain, shorten
from llmprof.units import format_ns, format_share

if TYPE_CHECKING:
    from llmprof.launch import Run
    from llmprof.metrics.data import Metrics
    from llmprof.trace import Trace

MOST_EVENTS: Final = 1_000_000
"""A card of a trace with more kernels and copies does not look for steps: it is there at once."""

_QUESTIONS: Final = 6
_LAUNCHES: Final = 5
_FINDINGS: Final = ("title", "detail", "suggestion", "severity", "evidence")


@dataclass(frozen=True, slots=True)
class Rows:
    """A small table of a card: texts, the first column to the left."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[object]]
    note: str = ""


def card(
    title: str,
    subtitle: str = "",
    *,
    facts: Sequence[tuple[str, str]] = (),
    tables: Sequence[Rows | None] = (),
    warnings: Sequence[str] = (),
    findings: Sequence[dict[str, Any]] = (),
    following: Sequence[tuple[str, str]] = (),
) -> str:
    """A card as HTML.

    Parameters
    ----------
    title, subtitle : str
        Its head.
    facts : sequence of (str, str)
        Names and values.
    tables : sequence of Rows
        Small tables; None is left out.
    warnings : sequence of str
        What to know before believing the figures.
    findings : sequence of dict
        Rows of ``analyze.findings``.
    following : sequence of (str, str)
        What to ask next: an expression, and the question that it answers.

    Returns
    -------
    str
        HTML; all texts are escaped.
    """
    return _template().render(
        title=title,
        subtitle=subtitle,
        facts=facts,
        tables=[table for table in tables if table is not None and table.rows],
        warnings=warnings,
        findings=findings,
        next=following,
    )


@cache
def _template() -> jinja2.Template:
    """The card's template, without the rest of a report, which would take a second to import."""

    def visible(value: object) -> object:
        return plain(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    loader = jinja2.PackageLoader("llmprof.report", "templates")
    return jinja2.Environment(loader=loader, autoescape=True, finalize=visible).get_template("card.html")


def of_trace(trace: Trace) -> str:
    """Card of a trace: what ran, steps, coverage, warnings, and what to ask next."""
    tables = trace.tables
    ranks = [rank for rank in trace.ranks if rank >= 0]
    low, high = trace.span_ns
    small = sum(tables[name].height for name in ("kernels", "copies") if name in tables) <= MOST_EVENTS
    counts = ", ".join(f"{frame.height:,} {name}" for name, frame in tables.items() if frame.height)
    absent = [name for name in schema.TABLES if name not in tables]
    note = f"Not recorded: {', '.join(absent)}." if absent else ""
    facts = [
        *(fact for fact in about.facts(trace) if fact[0] not in ("Recorded time", "Device")),
        ("Rows", f"{counts or 'none'}. {note}"),
        *about.reading(trace),
    ]
    return card(
        f"Trace: {_ranks(ranks)}, {format_ns(high - low) if high > low else 'nothing with a time'}",
        str(trace.meta.get("device") or "device not recorded"),
        facts=facts,
        tables=[_steps(trace), _coverage(trace)] if small else [],
        warnings=[*about.warnings(trace), *map(str, trace.coverage.get("warnings") or ())],
        following=_questions(trace),
    )


def _ranks(ranks: Sequence[int]) -> str:
    return {0: "no rank", 1: "one rank"}.get(len(ranks), f"{len(ranks)} ranks")


def _steps(trace: Trace) -> Rows | None:
    try:
        steps = analyze.steps(trace)
    except LlmprofError:
        return None
    spans = pl.col("dur_ns")
    phases = steps.group_by("phase", maintain_order=True).agg(
        steps=pl.col("step").n_unique(), median=spans.median(), least=spans.min(), most=spans.max()
    )
    rows = [
        (phase or "unknown", f"{count:,}", *(format_ns(value) for value in spans))
        for phase, count, *spans in phases.iter_rows()
    ]
    inferred = "inferred" in steps["source"]
    note = "No labels of the engine: steps were inferred from the repetition of kernels." if inferred else ""
    return Rows("Steps on the device", ("phase", "steps", "median", "shortest", "longest"), rows, note)


def _coverage(trace: Trace) -> Rows | None:
    try:
        shares = about.shares(analyze.coverage(trace))
    except LlmprofError:
        return None
    rows = [
        (about.MEASURES.get(measure, measure), format_share(share), format_share(least))
        for measure, share, least in shares.select("measure", "share", "least").iter_rows()
    ]
    of = shares["of"][0] if shares.height else ""
    return Rows("Coverage: how much of the time has …", ("", "share", "worst rank"), rows, f"Of the {of}.")


def _questions(trace: Trace) -> list[tuple[str, str]]:
    """The first analyses of the catalogue for what was recorded."""
    asked = [(f"analyze.{one.name}(trace)", one.question) for one in catalog.analyses() if one.section]
    if not any(trace.has(name) for name in ("kernels", "copies", "ops")):
        return [("trace.tables", "What was recorded?")]
    if not trace.has("collectives"):
        asked = [pair for pair in asked if "collective" not in pair[0]]
    first = ("analyze.findings(trace)", "What takes the time, and what can be done about it?")
    others = [pair for pair in asked if pair[0] != first[0]][:_QUESTIONS]
    return [
        first,
        *others,
        ("explore.open(trace)", "All of it, to look at"),
        ('trace.sql("select …")', "Your own question"),
    ]


def of_metrics(metrics: Metrics) -> str:
    """Card of hardware metrics: the longest launches, what was measured, and what to ask next."""
    kernels = metrics.kernels
    devices = ", ".join(sorted(set(kernels["device_name"].drop_nulls().to_list()))) or "device not recorded"
    longest = kernels.sort("duration_ns", descending=True, nulls_last=True).head(_LAUNCHES)
    rows = [
        (shorten(name or "unnamed", 70), number, format_ns(duration))
        for number, name, duration in longest.select("kernel_id", "kernel_name", "duration_ns").iter_rows()
    ]
    facts = [
        ("Metrics", f"{metrics.metrics['metric'].n_unique():,} for {kernels.height:,} launches"),
        ("Rules", f"{metrics.rules.height:,} results of the profiler's own rules"),
    ]
    following = [
        ("analyze.speed_of_light(metrics)", "How near is each kernel to the limits of the device?"),
        ("analyze.stalls(metrics)", "What do its warps wait for?"),
        ("analyze.name_layers(metrics)", "Which layer and stage is it of?"),
        ("explore.kernels(trace, metrics=metrics)", "Where is it in the timeline?"),
        ('llmprof.metrics.explain("…")', "What does a metric mean?"),
    ]
    launches = {1: "one launch"}.get(kernels.height, f"{kernels.height:,} launches")
    return card(
        f"Hardware metrics of {launches}",
        devices,
        facts=facts,
        tables=[Rows("Longest launches", ("kernel", "kernel_id", "duration"), rows)],
        warnings=[str(warning) for warning in metrics.coverage.get("warnings") or ()],
        following=following,
    )


def of_run(run: Run) -> str:
    """Card of a run: its state, what it came to, warnings, and what to ask next."""
    config, summary = run.config, run.summary
    facts = [
        ("Model", config.model),
        ("Mode", config.profile_mode),
        ("Engine", " ".join(str(summary[key]) for key in ("engine", "engine_version") if summary.get(key))),
        ("Ranks", f"tensor parallel {config.tensor_parallel_size}, pipeline parallel {config.pipeline_parallel_size}"),
        ("Folder", run.folder.path.name),
    ]
    rows = [
        (row["phase"], str(row["metric"]).removesuffix("_ns"), format_ns(row["mean"]), format_ns(row["p99"]))
        for row in summary.get("metrics") or []
        if row.get("unit") == "ns"
    ]
    following = [("run.requests", "How long did each request take?")]
    if config.profile_mode in ("torch", "nsys", "nsys_ncu", "ops"):
        following.append(("analyze.findings(run.trace)", "What takes the time, and what can be done about it?"))
    if config.profile_mode in ("ncu", "nsys_ncu"):
        following.append(("analyze.speed_of_light(run.metrics)", "How near is each kernel to the device's limits?"))
    following.append(("llmprof.report.Visualizer(run.folder.path)", "Charts and a page of it"))
    return card(
        f"Run {config.name}: {run.state}",
        facts=[fact for fact in facts if fact[1]],
        tables=[Rows("Requests", ("phase", "latency", "mean", "p99"), rows)],
        warnings=[str(warning) for warning in summary.get("warnings") or ()],
        following=following,
    )


def of_findings(findings: pl.DataFrame) -> str:
    """Card of findings, most important first."""
    scopes = findings["scope"].unique().to_list() if "scope" in findings.columns else []
    rows = findings.select(_FINDINGS).to_dicts()
    return card(
        f"{len(rows)} findings" if len(rows) != 1 else "One finding",
        f"Shares of the time are of the {scopes[0]}." if len(scopes) == 1 and scopes[0] else "",
        findings=rows,
        facts=[] if rows else [("", "No rule found anything worth saying in this capture.")],
    )
