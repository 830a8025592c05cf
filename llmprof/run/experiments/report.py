"""Saved results of experiments: reads a folder, makes suggestions, and writes a report with
plots.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import polars as pl

from llmprof import text, theory
from llmprof.analyze.operator_times import layer_times
from llmprof.charts.base.save import png
from llmprof.errors import LlmprofError, ReadError
from llmprof.readers import read
from llmprof.report.page import (
    Contents,
    ReportColumn,
    ReportFigure,
    ReportTable,
    Section,
    columns_of_kind,
    page,
)
from llmprof.run.experiments.bandwidth import Bandwidth, read_bandwidth
from llmprof.run.experiments.layouts import predicted_layouts
from llmprof.run.experiments.scaling import (
    GRADES,
    MOST_EFFICIENCY,
    Grades,
    median,
    parallelism,
    read_communication,
    read_points,
    sequence_length,
)
from llmprof.run.experiments.tables import hardware_section, layout_sections, length_section
from llmprof.trace import Trace
from llmprof.trace.storage import files, typed
from llmprof.units import format_share


@dataclass(frozen=True)
class Evidence:
    """Measurements on which suggestions are based; a measurement that is missing is None."""

    bandwidth: Bandwidth | None = None
    lengths: pl.DataFrame | None = None
    layouts: pl.DataFrame | None = None
    layers: pl.DataFrame | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True)
class Rule:
    """A rule: its condition and its suggestion."""

    name: str
    look: Callable[[Evidence], tuple[str, float] | None]
    """Function that returns a sentence and its figure; None if the rule does not apply or its
    data are missing.
    """
    suggestion: str
    evidence: str


def suggestions(evidence: Evidence) -> pl.DataFrame:
    """Suggestions for faster runs, from measurements only."""
    rows = [
        (rule.name, reason[0], reason[1], rule.suggestion, rule.evidence)
        for rule in RULES
        if (reason := rule.look(evidence)) is not None
    ]
    schema = dict.fromkeys(("rule", "title", "figure", "suggestion", "evidence"), pl.String) | {
        "figure": pl.Float64
    }
    return pl.DataFrame(rows, schema=schema, orient="row")


def _layout(evidence: Evidence, phase: str, *, tp: bool) -> float | None:
    """Median efficiency of TP (without PP) or of PP (without TP) in a phase."""
    if evidence.layouts is None:
        return None
    layout = (
        (pl.col("pp") == 1) & (pl.col("tp") > 1) if tp else (pl.col("tp") == 1) & (pl.col("pp") > 1)
    )
    has_grade = pl.col("grade") != "unknown"
    return median(
        evidence.layouts.filter(layout & has_grade & (pl.col("phase") == phase)), "efficiency"
    )


def _better(evidence: Evidence, *, tp: bool) -> tuple[str, float] | None:
    """TP if it is more efficient in decode than PP, or PP if it is more efficient than TP."""
    mine, other = _layout(evidence, "decode", tp=tp), _layout(evidence, "decode", tp=not tp)
    if mine is None or other is None or mine <= other:
        return None
    names = ("TP", "PP") if tp else ("PP", "TP")
    words = (
        f"In decode {names[0]} reaches an efficiency of {format_share(mine)}, {names[1]}"
        f" {format_share(other)}."
    )
    return words, mine / other


_tp_first, _pp_first = functools.partial(_better, tp=True), functools.partial(_better, tp=False)


def _mixed(evidence: Evidence) -> tuple[str, float] | None:
    decode = _layout(evidence, "decode", tp=True)
    if evidence.layouts is None or decode is None:
        return None
    pipelines = evidence.layouts.filter(
        (pl.col("tp") == 1) & (pl.col("pp") > 1) & (pl.col("phase") == "prefill")
    )
    best = median(pipelines.sort(pl.col("prompt") * pl.col("batch")).tail(1), "efficiency")
    if best is None or best < 0.6:
        return None
    words = (
        f"PP reaches {format_share(best)} efficiency in the largest prefill, TP"
        f" {format_share(decode)} in decode."
    )
    return words, best


def _batch(evidence: Evidence) -> tuple[str, float] | None:
    if evidence.lengths is None:
        return None
    single = evidence.lengths.filter(
        (pl.col("tp") == 1) & (pl.col("pp") == 1) & (pl.col("out") == pl.min("out"))
    )
    series = single.filter(
        pl.col("prompt") == pl.col("prompt").filter(pl.col("batch") > 1).min()
    ).sort("batch")
    if series.height < 2:
        return None
    first, last = series.row(0, named=True), series.row(-1, named=True)
    grown, slower = last["batch"] / first["batch"], last["decode_step_s"] / first["decode_step_s"]
    if slower > grown / 2:
        return None
    words = (
        f"A decode step of {last['batch']} requests takes {slower:.2f} times as long as one of"
        f" {first['batch']}"
    )
    return f"{words} (prompts of {first['prompt']} tokens).", grown / slower


def _weights(evidence: Evidence) -> tuple[str, float] | None:
    """A decode time near its bound that does not depend on batch and length is the time to read
    the weights.
    """
    if (
        evidence.lengths is None
        or evidence.lengths["decode_share"].null_count() == evidence.lengths.height
    ):
        return None
    single = evidence.lengths.filter(
        (pl.col("batch") == 1) & (pl.col("tp") == 1) & (pl.col("pp") == 1)
    )
    share = median(single, "decode_share")
    if share is None or share < 0.5:
        return None
    return (
        (
            f"A decode step of one request takes {1 / share:.2f} times as long as reading the"
            " weights needs."
        ),
        share,
    )


def _launch_bound(evidence: Evidence) -> tuple[str, float] | None:
    if evidence.layers is None or evidence.layers["waiting"].null_count() == evidence.layers.height:
        return None
    share = median(evidence.layers.filter(phase="decode"), "waiting")
    if share is None or share < 0.5:
        return None
    return (
        (
            f"In {format_share(share)} of the timed decode calls the device had caught up with the"
            " host."
        ),
        share,
    )


def _headroom(evidence: Evidence) -> tuple[str, float] | None:
    if (
        evidence.lengths is None
        or evidence.memory_bytes is None
        or evidence.lengths["peak_bytes"].null_count()
    ):
        return None
    peak: Any = evidence.lengths["peak_bytes"].max()
    unused = 1 - float(peak) / evidence.memory_bytes
    return (
        (f"{format_share(unused)} of a device's memory was never used.", unused)
        if unused > 0.2
        else None
    )


RULES: Final = (
    Rule(
        "tensor_parallel_first",
        _tp_first,
        "Split layers before the stack: TP inside a host.",
        "parallelism",
    ),
    Rule(
        "pipeline_parallel_first",
        _pp_first,
        "Use pipeline stages: the links do not carry TP.",
        "parallelism",
    ),
    Rule(
        "mixed",
        _mixed,
        "For long prompts try TP × PP: stages overlap in the prefill.",
        "parallelism",
    ),
    Rule(
        "larger_batch",
        _batch,
        "Raise the batch: decode reads the weights once for all requests.",
        "sequence_length",
    ),
    Rule(
        "quantize",
        _weights,
        "Weights dominate: 8-bit weights halve the bytes of a step.",
        "sequence_length",
    ),
    Rule(
        "launch_bound",
        _launch_bound,
        "Use CUDA graphs (no eager), or fewer and larger kernels.",
        "ops",
    ),
    Rule(
        "memory_headroom",
        _headroom,
        "Give the cache more memory, or run a larger batch.",
        "sequence_length",
    ),
)
"""Rules in the order of their suggestions."""


_BANDWIDTHS, _POINTS = "bandwidth_test_*.json", "latency_analysis_*.json"


@dataclass(frozen=True)
class ExperimentResults:
    """Saved results of experiments."""

    bandwidth: Bandwidth | None
    points: pl.DataFrame | None
    model: dict[str, Any] | str | None
    communication: pl.DataFrame | None = None
    timings: Trace | None = None
    left_out: str = ""
    device: str | None = None


def saved(folder: str | Path) -> ExperimentResults:
    """Read the results in a folder.

    Results are ``bandwidth_test_*.json`` and ``latency_analysis_*.json`` (or ``points.json`` below
    the folder). The timings of a run in mode ``ops`` are read from anywhere below the folder.
    """
    place = Path(folder)
    bandwidth = sorted(place.glob(_BANDWIDTHS))
    points = sorted(place.glob(_POINTS)) or sorted(place.glob("**/points.json"))
    if not bandwidth and not points:
        raise ReadError(f"{place.name} holds no results", expected=f"{_BANDWIDTHS} or {_POINTS}")
    timed = sorted(place.glob("**/ops_rank*.json.gz"))
    timings = read(timed[0].parent) if timed else None
    if not points:
        return ExperimentResults(read_bandwidth(bandwidth[-1]), None, None, timings=timings)
    frame, document = read_points(*points), typed.read(points[0], typed.PointsJson)
    return ExperimentResults(
        read_bandwidth(bandwidth[-1]) if bandwidth else None,
        frame,
        _model(document),
        read_communication(*points),
        timings,
        str(document.get("left_out") or ""),
        document.get("gpu"),
    )


def _model(document: Mapping[str, Any]) -> dict[str, Any] | str | None:
    """Model of the points as the theory takes it: its configuration, or a name that the theory
    knows.
    """
    if isinstance(config := document.get("config"), dict):
        return config
    name = str(document.get("model", "")).removeprefix("random:")
    try:
        theory.shape(name)
    except LlmprofError:
        return None
    return name


def write_performance_report(
    folder: str | Path,
    *,
    out: str | Path | None = None,
    device: Any = None,
    grades: Grades = GRADES,
) -> list[Path]:
    """Write ``performance_report.md`` and ``.html``, and ``plots/``, from saved results."""
    results, place = saved(folder), Path(out if out is not None else folder)
    plots = place / "plots"
    files.made(plots)
    measured, points, model = results.bandwidth, results.points, results.model
    peaks = device
    if peaks is None and measured is not None and measured.document["platform"] == "cuda":
        peaks = measured.measured()
    written, sections, lengths, layouts = [], [], None, None
    notes = [_ON_CPU] if results.device == "CPU" else []
    title = "Performance report"
    if points is not None:
        lengths = sequence_length(points, model=model, device=peaks if model else None)
        try:
            layouts = parallelism(points, grades=grades, communication=results.communication)
        except LlmprofError as error:
            sections.append(
                Section(
                    "layouts", "Is more than one GPU worth it?", f"Not compared: {error.found}."
                )
            )
        else:
            found = _predicted(results, device)
            title = "Is more than one GPU worth it?"
            sections += layout_sections(points, layouts, found, _limits(grades))
            frames = {"layouts": layouts} | ({} if isinstance(found, str) else {"predicted": found})
            rows = {name: frame.to_dicts() for name, frame in frames.items()}
            overhead = place / "parallelism_overhead_report.json"
            written.append(files.write_json(overhead, {"grades": dict(grades), **rows}))
        sections.append(length_section(points, lengths, results.left_out))
    if measured is not None:
        sections.append(hardware_section(measured, grades))
    memory = (
        measured.document["devices"][0]["memory_bytes"]
        if measured and measured.document["devices"]
        else None
    )
    layers = None if results.timings is None else layer_times(results.timings)
    advice = suggestions(Evidence(measured, lengths, layouts, layers, memory))
    if advice.height:
        shown = (
            ReportColumn("title", "measured"),
            *columns_of_kind("text", suggestion="try", evidence="from"),
        )
        table = ReportTable("suggestions", "Suggestions", shown, advice)
        sections.append(Section("try", "What to try", "", [table]))
    facts = _facts(results)
    written += [
        files.write(plots / f"{figure.name}.png", png(figure.spec))
        for section in sections
        for figure in section.figures
        if figure.spec
    ]
    content = Contents(title, facts, sections, {}, warnings=notes, of_trace=False)
    written.append(files.write(place / "performance_report.html", page(content)))
    return [*written, files.write(place / "performance_report.md", _markdown(content))]


_ON_CPU: Final = "Measured on a CPU: these figures say nothing about a GPU."


def _predicted(results: ExperimentResults, device: Any) -> pl.DataFrame | str:
    """What the theory predicts for the layouts, or why it predicts nothing."""
    name = device or results.device
    if results.points is None or results.model is None:
        return "the theory does not know the model"
    if name is None:
        return "the points do not name their device; --gpu does"
    try:
        return predicted_layouts(results.points, results.model, name)
    except LlmprofError as error:
        return error.found


def _facts(results: ExperimentResults) -> list[tuple[str, str]]:
    """What was measured, and on what."""
    model, device = results.model, results.device
    if isinstance(model, dict):
        model = theory.shape(model).name
    if device is None and results.bandwidth is not None:
        device = results.bandwidth.device
    facts = [("Model", model), ("Device", device)]
    if results.points is not None:
        facts.append(("Repeats", text.joined(sorted(set(results.points["repeats"])))))
    return [(name, str(value)) for name, value in facts if value]


def _limits(grades: Grades) -> str:
    (tp_good, tp_fair), (pp_good, pp_fair) = grades["tp_efficiency"], grades["pp_efficiency"]
    return (
        f"Efficiency is speed-up over devices. Grades: TP good above {tp_good:.0%}, fair from"
        f" {tp_fair:.0%}; PP good above {pp_good:.0%}, fair from {pp_fair:.0%}; below that, or not"
        f" faster than one device, poor. Above {MOST_EFFICIENCY:.0%} it is unknown: something else"
        " than the layout differed, such as threads, caches or other work on the machine. In decode"
        " a pipeline with one batch in flight gains nothing by itself: its efficiency is at most"
        " one over its stages."
    )


def _markdown(content: Contents) -> str:
    """The contents of a report as Markdown."""
    lines = [f"# {content.title}", "", *(f"{note}\n" for note in content.warnings)]
    for section in content.sections:
        lines += [f"## {section.question}", "", *([section.words, ""] if section.words else [])]
        for block in section.blocks:
            if isinstance(block, ReportTable):
                heads = [column.head for column in block.columns]
                rows = block.frame.select(column.key for column in block.columns).rows()
                cells = [
                    ["" if value is None else text.plain(value) for value in row] for row in rows
                ]
                table = [f"| {' | '.join(row)} |" for row in (heads, *cells)]
                lines += [f"{block.caption}:", "", table[0], "|" + "---|" * len(heads), *table[1:]]
            elif isinstance(block, ReportFigure) and block.spec:
                lines += [f"![{block.shows}](plots/{block.name}.png)"]
            lines += [""]
    lines += [f"- {name}: {value}" for name, value in content.facts]
    return "\n".join(lines) + "\n"
