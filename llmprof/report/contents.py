"""Contents of the report of a trace: results of the analyses, figures, tables and sections."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, Literal

import polars as pl

from llmprof import plugins
from llmprof.analyze.catalog import Analysis, analyses
from llmprof.analyze.findings.facts import facts_in_words, run_facts, where_the_time_went
from llmprof.errors import LlmprofError
from llmprof.platforms import ON_DEVICE
from llmprof.progress import Progress
from llmprof.report import cards
from llmprof.report.figures import Drawing, drawings, figure
from llmprof.report.page import Absent, Column, Contents, Figure, Section, Table, by_share, run
from llmprof.trace import Trace
from llmprof.units import format_ns

MOST_KERNELS = 25


def sections(
    figures: Mapping[str, Figure], frames: Mapping[str, pl.DataFrame | Absent], words: Mapping[str, str] = ON_DEVICE
) -> list[Section]:
    """Sections of the page: those of the catalogue's analyses, each with the results of the analyses that join it."""
    members: dict[str, list[Analysis]] = {}
    for analysis in analyses():
        if analysis.anchor and (not analysis.only_with or analysis.name in frames):
            members.setdefault(analysis.anchor, []).append(analysis)
    out = []
    for anchor, joined in members.items():
        opened = next((member.section for member in joined if not isinstance(member.section, str)), None)
        blocks = [block for member in joined for block in _tables(member, frames.get(member.name), words)]
        drawn = [figures[drawing.name] for member in joined for drawing in drawings(member)]
        evidence = tuple(member.name for member in joined if member.reported)
        head = (opened.question or joined[0].question, opened.words) if opened is not None else (joined[0].question, "")
        if opened is not None and opened.without is not None:
            frame = frames.get(opened.without.analysis)
            if not isinstance(frame, pl.DataFrame) or frame.is_empty():
                head = (opened.without.question, opened.without.words)
        question, text = (part.format_map(words) for part in head)
        out.append(Section(anchor, question, text, [*blocks, *drawn], evidence))
    return out


def _tables(analysis: Analysis, frame: pl.DataFrame | Absent | None, words: Mapping[str, str]) -> list[Table | Absent]:
    """Make the table of an analysis, or give the reason why there is none, unless a figure of it does."""
    plain = not isinstance(analysis.section, str) and not (analysis.table or analysis.figures)
    if frame is None or not (analysis.table or analysis.package or plain):
        return []
    if isinstance(frame, Absent):
        return [] if analysis.figures and not analysis.package else [replace(frame, part=analysis.help)]
    if plain:
        return [_plain_table(analysis, frame)]
    if not analysis.table or (not frame.height and analysis.figures):
        return []
    if not analysis.package:
        return [plugins.at(analysis.table)(frame, words)]
    try:
        with plugins.foreign():
            return [plugins.at(analysis.table)(frame, words)]
    except (plugins.FailedError, LlmprofError) as error:
        failed = f"the table of {analysis.name!r} of {analysis.package} failed: {error}"
        return [Absent(analysis.help, captured=True, found=failed, hint="report this to its authors")]


def _plain_table(analysis: Analysis, frame: pl.DataFrame) -> Table:
    """The first rows of an analysis that has a section of its own, and neither a table nor a figure."""
    columns: list[Column] = []
    kind: Literal["name", "number", "time", "share"]
    for name in analysis.columns.split() or frame.columns:
        kind = "number" if frame[name].dtype.is_numeric() else "name"
        kind = "time" if name.endswith("_ns") else "share" if name.endswith("share") else kind
        columns.append(Column(name, name.removesuffix("_ns").replace("_", " "), kind))
    return Table(analysis.name, analysis.help, tuple(columns), frame.head(MOST_KERNELS), sortable=True)


def steps_table(steps: pl.DataFrame, words: Mapping[str, str] = ON_DEVICE) -> Table:
    """Steps by phase: their number, size and length."""
    span = pl.col("dur_ns")
    phases = {name: i for i, name in enumerate(("prefill", "mixed", "decode", "empty", "other"))}
    rows = (
        steps.group_by("phase")
        .agg(
            steps=pl.col("step").n_unique(),
            context_tokens=pl.col("context_tokens").median(),
            generation_requests=pl.col("generation_requests").median(),
            median=span.median(),
            least=span.min(),
            most=span.max(),
            host=pl.col("host_dur_ns").median(),
        )
        .sort(pl.col("phase").replace_strict(phases, default=len(phases), return_dtype=pl.Int32), "phase")
    )
    columns = (
        Column("phase", "phase"),
        Column("steps", "steps", "number"),
        Column("context_tokens", "prompt tokens", "number"),
        Column("generation_requests", "decode requests", "number"),
        Column("median", words["time"], "time"),
        Column("least", "least", "time"),
        Column("most", "most", "time"),
        Column("host", "host time", "time"),
    )
    sources = steps["source"].unique().sort()
    note = "Known from " + ", ".join(_SOURCES.get(source, source) for source in sources) + "."
    caption = "Steps by phase: medians over steps and ranks; {time} is from the first {event} to the end of the last"
    caption = caption.format_map(words)
    return Table("steps", caption, columns, rows, note=note)


_SOURCES = {
    "vllm": "vLLM's labels",
    "sglang": "SGLang's labels",
    "capture": "labels of graph captures",
    "profiler_step": "the profiler's ProfilerStep labels",
    "execute_model": "ranges around vLLM's execute_model",
    "optimizer": "the Optimizer.step ranges, each of which ends a step",
    "inferred": "the repetition of kernels, because the capture has no labels",
}


def kernels_table(kernels: pl.DataFrame, words: Mapping[str, str] = ON_DEVICE) -> Table:
    """The kernels with the largest sums."""
    top = kernels.head(MOST_KERNELS)
    columns = (
        Column("name", words["event"], "name"),
        Column("category", "category", "chip"),
        Column("count", "runs", "number"),
        Column("total_ns", "total", "time"),
        Column("share", "share", "share"),
        Column("median_ns", "median", "time"),
        Column("min_ns", "least", "time"),
        Column("max_ns", "most", "time"),
    )
    rest = kernels.height - top.height
    covered, whole = (format_ns(frame.select(pl.col("total_ns").sum()).item()) for frame in (top, kernels))
    caption = f"All {kernels.height} names of {words['events']}, {whole} in all"
    if rest:
        caption = f"{top.height} of {kernels.height:,} names of {words['events']}, {covered} of {whole} in all"
    note = f"{rest:,} more are in kernel_summary.csv." if rest else ""
    return Table("kernels", caption, columns, top, sortable=True, note=note)


_MOST_CHAINS: Final = 12


def fusion_table(chains_found: pl.DataFrame, _words: Mapping[str, str] = ON_DEVICE) -> Table | Absent:
    """The chains of short kernels that would save most, or the sentence that there are none."""
    if not chains_found.height:
        words = "no short kernels always follow each other on a stream"
        return Absent("chains of kernels that would be one", captured=True, found=words, hint="")
    best = chains_found.sort("gain_ns", "total_ns", descending=True, nulls_last=True).head(_MOST_CHAINS)
    named = pl.col("fusion").is_not_null() & (pl.col("fusion") != pl.col("categories"))
    rows = best.select(
        "phase",
        "length",
        "a_step",
        "share",
        "bytes_saved",
        "gain_ns",
        "kernels",
        chain=pl.when(named).then(pl.format("{}: {}", "fusion", "categories")).otherwise("categories"),
        launches=pl.col("a_step") * (pl.col("length") - 1),
        gain_share=pl.col("gain_ns") / pl.col("recorded_ns"),
    )
    columns = (
        Column("chain", "chain", "name", width=30, full="kernels"),
        Column("phase", "phase"),
        Column("a_step", "chains a step", "number"),
        Column("launches", "launches saved a step", "number"),
        Column("share", "time of all kernels", "share"),
        Column("gain_ns", "gain a step", "time"),
        Column("gain_share", "of the step", "share"),
    )
    number = (
        f"{rows.height} of {chains_found.height:,}"
        if chains_found.height > rows.height
        else f"All {chains_found.height}"
    )
    chains = f"{number} chains" if chains_found.height > 1 else "The only chain"
    caption = f"{chains} of short kernels, by what one kernel in its place would gain"
    note = "A dash: not replayed, or not known." if rows["gain_ns"].null_count() else ""
    rest = (
        ""
        if rows.height == chains_found.height
        else f" {chains_found.height - rows.height} more are in fusion_candidates.csv."
    )
    return Table("fusion_candidates", caption, columns, rows, sortable=True, note=(note + rest).strip())


def contents(
    trace: Trace,
    *,
    title: str | None = None,
    progress: Progress | None = None,
    drawn: Callable[[Figure], object] | None = None,
    first: Sequence[Section] = (),
    more: Sequence[tuple[str, str]] = (),
    path: str = "PATH",
    requests: pl.DataFrame | None = None,
) -> Contents:
    """Run the analyses and draw the figures."""
    tell = progress or (lambda *_: None)
    results: dict[str, pl.DataFrame | Absent] = {}
    possible = [analysis for analysis in analyses() if not analysis.only_with or trace.has(analysis.only_with)]
    reported = [analysis for analysis in possible if analysis.reported]
    for done, analysis in enumerate(reported):
        tell(f"analysing: {analysis.name}", done, len(reported))
        of_requests = {"requests": requests} if analysis.name == "findings" else {}
        results[analysis.name] = run(analysis, trace, **of_requests)
    frames = {name: result for name, result in results.items() if isinstance(result, pl.DataFrame)}
    absent = [result for result in results.values() if isinstance(result, Absent)]
    figures = {}
    if drawn is not None:
        for given in [one for section in first for one in section.figures]:
            drawn(given)
    to_draw: dict[str, Drawing] = {}
    for drawing in (drawing for analysis in possible for drawing in drawings(analysis)):
        to_draw.setdefault(drawing.name, drawing)
    for done, drawing in enumerate(to_draw.values()):
        tell(f"drawing: {drawing.shows}", done, len(to_draw))
        figures[drawing.name] = figure(trace, drawing)
        if drawn is not None:
            drawn(figures[drawing.name])
    absent += [part.absent for part in figures.values() if part.absent is not None]
    stated = {"Device", *(name for name, _ in more)}
    found, of_trace = frames.get("findings", pl.DataFrame()), sections(figures, results, trace.words)
    overview = [section for section in of_trace if section.anchor == OVERVIEW]
    others = by_share([section for section in of_trace if section.anchor != OVERVIEW], found)
    return Contents(
        title=title or cards.headline(trace),
        facts=[
            *more,
            *(pair for pair in facts_in_words(run_facts(trace, recorded=False)) if pair[0] not in stated),
            *cards.facts(trace),
        ],
        files=cards.files(trace),
        warnings=cards.warnings(trace),
        shares=cards.shares(frames.get("coverage")),
        reading=cards.reading(trace),
        findings=found,
        time_went=where_the_time_went(trace, requests),
        sections=[*first, *overview, *others],
        frames=frames,
        absent=absent,
        path=path,
    )


OVERVIEW: Final = "steps"
"""Anchor of the overview of a step, which comes before the other sections of a trace."""
