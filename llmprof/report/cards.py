"""Cards: short HTML views of a trace, a run, hardware metrics and findings in a notebook, and
the head of a report.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import jinja2
import polars as pl
from markupsafe import Markup

from llmprof import analyze
from llmprof.analyze import catalog
from llmprof.analyze.coverage import OF_OPERATORS
from llmprof.charts import bars
from llmprof.errors import AnalysisError, LlmprofError
from llmprof.findings.card import chain_findings, headline_number, so, times_in_words
from llmprof.findings.case import case_card
from llmprof.findings.facts import facts_in_words, run_facts, where_the_time_went
from llmprof.findings.frame import Findings
from llmprof.text import counted, plain, sentence, shorten
from llmprof.trace import schema
from llmprof.units import format_bytes, format_ns, format_share

if TYPE_CHECKING:
    from llmprof.run.launch import Run
    from llmprof.trace import Trace
    from llmprof.trace.metrics.data import Metrics

MEASURES = {
    "step": "a step",
    "stage": "a named stage",
    "category": "a named category",
    "launch": "its launch call",
    "operator": "an operator",
}
"""Meaning of each measure of ``llmprof.analyze.coverage``: what the covered device time has."""


def headline(trace: Trace) -> str:
    """Default title of a report."""
    count = len([rank for rank in trace.ranks if rank >= 0])
    device = trace.meta.get("device")
    return f"Where the time goes: {number_of_ranks(count)}" + (f" on {device}" if device else "")


SPAN: Final = "Recorded span"
"""Name of the fact how long a recording is, over all its ranks."""


def trace_facts(trace: Trace) -> list[tuple[str, str]]:
    """Facts about the run as names and values; unknown values say so."""
    low, high = trace.span_ns
    meta = trace.meta
    ranks = [rank for rank in trace.ranks if rank >= 0]
    world = meta.get("world_size")
    out = [
        ("Device", str(meta.get("device") or "not recorded")),
        ("Ranks", f"{_runs(ranks)} ({len(ranks)} of {world})" if world else _runs(ranks) or "none"),
        (SPAN, format_ns(high - low) if high > low else "nothing with a time"),
        ("Clock", str(meta.get("clock") or "not recorded")),
    ]
    out += [
        (_label(key), version_in_words(key, value))
        for key, value in dict(meta.get("versions") or {}).items()
    ]
    if trace.capture.on_host:
        out.insert(
            1, ("Device activity", "none recorded: outermost operators of the host stand in for it")
        )
    options = ", ".join(f"{key}={value}" for key, value in dict(meta.get("options") or {}).items())
    if options:
        out.append(("Profiler options", options))
    backends = sorted({str(r["backend"]) for r in _list(meta.get("ranks")) if r.get("backend")})
    if backends:
        out.append(("Backend", ", ".join(backends)))
    return out


def files_read(trace: Trace) -> list[tuple[str, str]]:
    """List the files that were read, with how many of their events were kept."""
    out = []
    for file in _list(trace.coverage.get("files")):
        kept, events = file.get("kept"), file.get("events")
        counts = (
            f"events: {_kept(events, kept)}"
            if isinstance(kept, int) and isinstance(events, int)
            else ""
        )
        size = format_bytes(file["bytes"]) if isinstance(file.get("bytes"), int) else ""
        out.append(
            (
                str(file.get("file", "")),
                ", ".join(filter(None, (f"rank {file.get('rank')}", size, counts))),
            )
        )
    return out


def _kept(events: int, kept: int) -> str:
    """Say how many events were kept; a reader that makes several rows of an event keeps more
    than there are.
    """
    if kept > events:
        return f"{events:,}, which gave {kept:,} rows"
    return f"{events:,}, all kept" if kept == events else f"{events:,}, of which {kept:,} were kept"


def trace_reading(trace: Trace) -> list[tuple[str, str]]:
    """Say what was kept and what was left out when the files were read."""
    coverage = trace.coverage
    if not coverage:
        return [("Reading", "nothing is known of how this trace was read")]
    out = []
    if isinstance(coverage.get("events"), int):
        out.append(("Events read", _kept(coverage["events"], coverage.get("kept", 0))))
    if coverage.get("matched"):
        out.append(("In two files, counted once", counted(coverage["matched"], "event")))
    skipped: dict[str, int] = {}
    for file in _list(coverage.get("files")):
        for kind, count in dict(file.get("skipped") or {}).items():
            skipped[kind] = skipped.get(kind, 0) + int(count)
    if skipped:
        words = ", ".join(
            f"{count:,} {kind.replace('_', ' ')}"
            for kind, count in sorted(skipped.items(), key=lambda i: -i[1])
        )
        out.append(("Left aside on purpose", words))
    lost, pieces = coverage.get("lost_bytes", 0), counted(coverage.get("lost_pieces", 0), "event")
    return [
        *out,
        ("Lost to damage", f"{counted(lost, 'byte')}, about {pieces}" if lost else "nothing"),
    ]


def warnings(trace: Trace) -> list[str]:
    """Warnings that a reader must know before trusting the figures."""
    out = []
    if missing := _list(trace.meta.get("missing_ranks")):
        world = trace.meta.get("world_size")
        ranks = (
            f"Rank {missing[0]} of {world} is"
            if len(missing) == 1
            else f"Ranks {_runs(missing)} of {world} are"
        )
        out.append(
            f"{ranks} missing: waiting for {'it' if len(missing) == 1 else 'them'} cannot be seen."
        )
    for file in _list(trace.coverage.get("files")):
        if file.get("truncated") or file.get("lost_bytes"):
            reason = file.get("truncated") or "some events are not valid JSON"
            out.append(
                f"{file.get('file')}: {reason}; {file.get('lost_bytes', 0):,} bytes were lost."
            )
    return out


def shares(coverage: pl.DataFrame | None) -> pl.DataFrame:
    """Coverage over all ranks:

    ``kind, share, least, rank, denominator``, ``least`` being the worst rank's share.
    """
    if coverage is None or not coverage.height:
        return pl.DataFrame(
            schema={
                "kind": pl.String,
                "share": pl.Float64,
                "least": pl.Float64,
                "rank": pl.Int32,
                "denominator": pl.String,
            }
        )
    whole = pl.sum("total_ns")
    if coverage["denominator"][0] == OF_OPERATORS:  # each is an operator, and was not launched
        coverage = coverage.filter(~pl.col("kind").is_in(["launch", "operator"]))
    return coverage.group_by("kind", maintain_order=True).agg(
        share=pl.when(whole > 0).then((pl.col("share") * pl.col("total_ns")).sum() / whole),
        least=pl.min("share"),
        rank=pl.col("rank").sort_by("share", nulls_last=True).first(),
        denominator=pl.first("denominator"),
    )


_UNKNOWN: Final = ("other", "unknown", "unexplained")
MOST_UNKNOWN: Final = 0.9
"""A chart with this share of its time unknown explains nothing."""

_HINTS: Final = {
    "stage": "stages are parts of a transformer's layers",
    "category": "categories follow from names",
    "cause": "record the calls of the host (CPU activity)",
    "part": "record the calls of the host (CPU activity)",
}


def some_known(frame: pl.DataFrame, column: str, *, ns: str = "dur_ns") -> pl.DataFrame:
    """The frame, unless its parts are known in no row but copies, or for hardly any of its time."""
    if frame.height and frame[column].drop_nulls().is_in([*_UNKNOWN, "copy"]).all():
        raise AnalysisError(f"no event has a known {column}", hint=_HINTS[column])
    unknown = (
        pl.col(ns).filter(pl.col(column).fill_null("other").is_in(_UNKNOWN)).sum()
        / pl.col(ns).sum()
    )
    share = frame.select(unknown.fill_nan(0).fill_null(0)).item() if frame.height else 0.0
    if share >= MOST_UNKNOWN:
        words = f"{format_share(share)} of the time has no known {column}"
        if (
            column == "part"
        ):  # of a path, whose pauses may well have a cause: idle time is judged by more than order
            words = (
                f"for {format_share(share)} of the time the order of events does not say what the"
                " next waits for"
            )
        raise AnalysisError(words, hint=_HINTS[column])
    return frame


def version_in_words(key: str, value: Any) -> str:
    """Format a version as people write it (CUDA's 13000 is 13.0, HIP's 60443483 is 6.4.43483)."""
    text = str(value)
    for start, digits, written in _VERSIONS:
        if key.startswith(start) and (found := re.fullmatch(digits, text)):
            return written.format(*map(int, found.groups()))
    return text


_VERSIONS: Final = (
    (("cuda_", "cupti_"), r"(\d\d)(\d\d)\d", "{}.{}"),
    (("cuda_", "cupti_"), r"(\d\d)(\d\d)(\d\d)", "{}.{}.{}"),
    ("hip_", r"(\d+)(\d\d)(\d{5})", "{}.{}.{}"),
)


def _label(key: str) -> str:
    if key == "torch_npu":
        return key
    names = {
        "cuda": "CUDA",
        "cupti": "CUPTI",
        "vllm": "vLLM",
        "hip": "HIP",
        "nccl": "NCCL",
        "cann": "CANN",
    }
    names["nsys"] = "Nsight Systems"
    words = [names.get(word, word) for word in key.removesuffix("_version").split("_")]
    return " ".join([words[0] if words[0] in names.values() else words[0].capitalize(), *words[1:]])


def _runs(ranks: list[int]) -> str:
    """Format numbers, with consecutive ones as a range (``0-3, 6``)."""
    out: list[list[int]] = []
    for rank in ranks:
        if out and rank == out[-1][-1] + 1:
            out[-1].append(rank)
        else:
            out.append([rank])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in out)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


MOST_EVENTS: Final = 1_000_000
"""Most kernels and copies for which the card of a trace shows steps, since it should appear at
once.
"""

MOST_FOUND: Final = 200_000
"""Most kernels and copies for which the card of a trace shows findings."""

_QUESTIONS: Final = 6
_LAUNCHES: Final = 5


@dataclass(frozen=True, slots=True)
class CardTable:
    """A small table in a card; its first column is aligned to the left."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[object]]
    note: str = ""


def card(
    title: str, subtitle: str = "", *, tables: Sequence[CardTable | None] = (), **parts: Any
) -> str:
    """A card as HTML; the further parts are those of its template, each of which may lack."""
    shown = [table for table in tables if table is not None and table.rows]
    return _template().render(_PARTS | parts, title=title, subtitle=subtitle, tables=shown)


_PARTS: Final = dict.fromkeys(
    ("about", "sentences", "picture", "actions", "folded"), ""
) | dict.fromkeys(("warnings", "facts", "findings", "known", "lines", "next"), ())


@cache
def _template() -> jinja2.Template:
    """Load the template of a card without importing the other modules of a report, which takes a
    second.
    """

    def visible(value: object) -> object:
        return plain(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    loader = jinja2.PackageLoader("llmprof.report", "templates")
    options: dict[str, Any] = {
        "loader": loader,
        "finalize": visible,
        "undefined": jinja2.StrictUndefined,
    }
    return jinja2.Environment(autoescape=True, **options).get_template("card.html")


@dataclass(frozen=True)
class Card:
    """What a notebook shows of an object, and a terminal."""

    text: str
    html: str

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return self.html

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {"text/plain": self.text, "text/html": self.html}


def of_trace(trace: Trace) -> str:
    """Card of a trace: its first finding with the mean step of each rank, what to do next, and
    folded, what was recorded.
    """
    rows = trace.rows
    events = sum(rows.get(name, 0) for name in ("kernels", "copies"))
    small = events <= MOST_EVENTS
    found = _findings(trace) if events <= MOST_FOUND else None
    case = case_card(trace, found)
    times = where_the_time_went(trace) if small else []
    said, *others = [*warnings(trace), *map(str, trace.coverage.get("warnings") or ())] or [""]
    return card(
        trace.name or "Trace",
        about=case.about,
        warnings=[said] if said else [],
        sentences=case.sentences or times,
        picture=_step_picture(found.parts, case.lead) if found else "",
        actions=case.actions,
        folded="What was recorded",
        facts=[*_recorded_facts(trace), *(("Warning", other) for other in others)],
        tables=[_steps(trace), _coverage(trace)] if small else [],
        lines=times if case.sentences else (),
        next=_questions(trace),
    )


def _recorded_facts(trace: Trace) -> list[tuple[str, str]]:
    """What ran and what was kept of it, as names and values."""
    rows = trace.rows
    counts = ", ".join(f"{number:,} {name}" for name, number in rows.items() if number)
    absent = [name for name in schema.TABLES if name not in rows]
    return [
        *facts_in_words(run_facts(trace, recorded=False)),
        *(fact for fact in trace_facts(trace) if fact[0] != "Device"),
        ("Rows", counts or "none"),
        *([("Not recorded", ", ".join(absent))] if absent else ()),
        *trace_reading(trace),
    ]


def _findings(trace: Trace) -> Findings | None:
    try:
        found: Findings = trace.findings()
    except LlmprofError:
        return None
    return found


def _step_picture(parts: pl.DataFrame | None, lead: Mapping[str, Any], ranks: int = 4) -> Markup:
    """Bars of the mean step of the ranks, and of the step that a finding's remedy would give."""
    picture = bars.step_bars(parts, lead, ranks)
    return Markup(picture)  # noqa: S704 - it escapes its texts


def number_of_ranks(number: int) -> str:
    """Text for how many ranks there are."""
    return {0: "no rank", 1: "one rank"}.get(number, f"{number:,} ranks")


_SPAN: Final = pl.col("dur_ns")
LENGTHS: Final = (
    _SPAN.mean().alias("mean"),
    _SPAN.median().alias("median"),
    _SPAN.min().alias("least"),
    _SPAN.max().alias("most"),
)
"""Lengths of some steps."""

_ALIKE: Final = 0.05


def length_columns(lengths: pl.DataFrame) -> list[str]:
    """The columns that say how long a step is: the mean, as in findings, and the median where it
    is another time.
    """
    other = (pl.col("median") - pl.col("mean")).abs() > _ALIKE * pl.col("mean")
    return ["mean", "median"] if lengths.select(other.any()).item() else ["mean"]


def phase_in_words(phase: str | None) -> str:
    """A phase for a table; steps of a program without phases have none."""
    return "unknown" if phase in (None, "other") else str(phase)


def _steps(trace: Trace) -> CardTable | None:
    try:
        steps = analyze.steps(trace)
    except LlmprofError:
        return None
    phases = steps.group_by("phase", maintain_order=True).agg(
        pl.n_unique("step").alias("steps"), *LENGTHS
    )
    typical = length_columns(phases)
    rows = [
        (
            phase_in_words(phase),
            f"{count:,}",
            *("-" if value is None else format_ns(value) for value in spans),
        )
        for phase, count, *spans in phases.select(
            "phase", "steps", *typical, "least", "most"
        ).iter_rows()
    ]
    inferred = "inferred" in steps["source"]
    note = f"From step to step, over {counted(steps['rank'].n_unique(), 'rank')}."
    note += (
        " No labels of the engine: steps were inferred from the repetition of kernels."
        if inferred
        else ""
    )
    where = "Steps" if trace.capture.on_host else "Steps on the device"
    return CardTable(where, ("phase", "steps", *typical, "shortest", "longest"), rows, note)


def _coverage(trace: Trace) -> CardTable | None:
    try:
        explained = shares(analyze.coverage(trace))
    except LlmprofError:
        return None
    rows = [
        (MEASURES.get(measure, measure), format_share(share), format_share(least))
        for measure, share, least in explained.select("kind", "share", "least").iter_rows()
    ]
    denominator = explained["denominator"][0] if explained.height else ""
    return CardTable(
        "Coverage: how much of the time has …",
        ("", "share", "worst rank"),
        rows,
        f"Of the {denominator}.",
    )


_ASKED: Final = (
    *("steps", "layers", "overlap", "collectives", "ranks", "idle", "launch_delay"),
    *("critical_path", "opportunities"),
)


def _questions(trace: Trace) -> list[tuple[str, str]]:
    """The first questions for what was recorded."""
    if not any(trace.has(name) for name in ("kernels", "copies", "ops")):
        return [("trace.tables", "What was recorded?")]
    without = {
        "collectives": not trace.has("collectives"),
        "idle": trace.capture.on_host,  # of a device
        "ranks": len(trace.ranks) < 2,
    }
    asked = ["findings", *[name for name in _ASKED if not without.get(name)][:_QUESTIONS]]
    return [
        *((f"analyze.{name}(trace)", catalog.analysis(name).question) for name in asked),
        ("explore.open(trace)", "All of it, to look at"),
        ('trace.sql("select …")', "Your own question"),
    ]


def of_metrics(metrics: Metrics) -> str:
    """Card of hardware metrics: the longest launches, the measured metrics, and questions to ask
    next.
    """
    kernels = metrics.kernels
    devices = (
        ", ".join(sorted(set(kernels["device_name"].drop_nulls().to_list())))
        or "device not recorded"
    )
    longest = kernels.sort("dur_ns", descending=True, nulls_last=True).head(_LAUNCHES)
    rows = [
        (shorten(name or "unnamed", 70), number, format_ns(duration))
        for number, name, duration in longest.select(
            "kernel_id", "kernel_name", "dur_ns"
        ).iter_rows()
    ]
    facts = [
        ("Metrics", f"{metrics.metrics['metric'].n_unique():,} for {kernels.height:,} launches"),
        ("Rules", f"{metrics.rules.height:,} results of the profiler's own rules"),
    ]
    following = [
        ("analyze.ncu.speed_of_light(metrics)", "How near is each kernel to the device's limits?"),
        ("analyze.ncu.stalls(metrics)", "What do its warps wait for?"),
        ("analyze.ncu.layers(metrics)", "Which layer and stage is it of?"),
        ("explore.kernels(trace, metrics=metrics)", "Where is it in the timeline?"),
        ('llmprof.trace.metrics.explain("…")', "What does a metric mean?"),
    ]
    launches = {1: "one launch"}.get(kernels.height, f"{kernels.height:,} launches")
    return card(
        f"Hardware metrics of {launches}",
        devices,
        facts=facts,
        tables=[CardTable("Longest launches", ("kernel", "kernel_id", "duration"), rows)],
        warnings=[str(warning) for warning in metrics.coverage.get("warnings") or ()],
        next=following,
    )


def of_run(run: Run) -> str:
    """Card of a run: its state, its main figures, warnings, and questions to ask next."""
    config, summary = run.config, run.summary
    facts = [
        ("Model", config.model),
        ("Mode", config.profile_mode),
        (
            "Engine",
            " ".join(str(summary[key]) for key in ("engine", "engine_version") if summary.get(key)),
        ),
        (
            "Ranks",
            (
                f"tensor parallel {config.tensor_parallel_size}, pipeline parallel"
                f" {config.pipeline_parallel_size}"
            ),
        ),
        ("Folder", run.folder.path.name),
    ]
    rows = [
        (
            row["phase"],
            str(row["metric"]).removesuffix("_ns"),
            format_ns(row["mean"]),
            format_ns(row["p99"]),
        )
        for row in summary.get("metrics") or []
        if row.get("unit") == "ns"
    ]
    following = [("run.requests", "How long did each request take?")]
    if config.profile_mode in ("torch", "nsys", "nsys_ncu", "ops"):
        following.append(
            ("run.trace.findings()", "What takes the time, and what can be done about it?")
        )
    if config.profile_mode in ("ncu", "nsys_ncu"):
        following.append(
            (
                "analyze.ncu.speed_of_light(run.metrics)",
                "How near is each kernel to the device's limits?",
            )
        )
    following.append(("llmprof.report.Visualizer(run.folder.path)", "Charts and a page of it"))
    return card(
        f"Run {config.name}: {run.state}",
        facts=[fact for fact in facts if fact[1]],
        tables=[CardTable("Requests", ("phase", "latency", "mean", "p99"), rows)],
        warnings=[str(warning) for warning in summary.get("warnings") or ()],
        next=following,
    )


def of_findings(found: Findings) -> str:
    """Card of findings, most important first."""
    causes, effects, known = chain_findings(found.frame)
    for row in causes:
        row["number"], row["meaning"] = headline_number(row)
        row["effects"] = [(effect["order"], so(effect)) for effect in effects.get(row["order"], ())]
    lead = next(iter([*causes, *known]), {})
    return card(
        f"{len(causes)} findings" if len(causes) != 1 else "One finding",
        picture=_step_picture(found.parts, lead, bars.MOST_RANKS),
        lines=[sentence(line) for line in times_in_words(found.frame, found.time_went)],
        findings=causes,
        known=known,
        facts=(
            []
            if causes or known
            else [("", "No rule found anything worth saying in this recording.")]
        ),
    )
