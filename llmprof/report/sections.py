"""Sections of the report: which analyses each shows, in which tables and figures, and its words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import polars as pl

from llmprof import plugins
from llmprof.analyze.catalog import Analysis, analyses, analysis
from llmprof.errors import LlmprofError
from llmprof.report import figures
from llmprof.report.figures import SectionPlan, ShownAnalysis, WithoutRows
from llmprof.report.page import (
    Absent,
    CellKind,
    ReportColumn,
    ReportFigure,
    ReportTable,
    Section,
    attempt,
)
from llmprof.report.tables import (
    MOST_KERNELS,
    fusion_table,
    kernels_table,
    opportunities_table,
    steps_table,
)
from llmprof.trace.platforms import ON_DEVICE

SECTIONS: Final = (
    SectionPlan(
        "steps",
        (
            ShownAnalysis("steps", steps_table, (figures.BREAKDOWN, figures.CATEGORIES)),
            ShownAnalysis("coverage"),
        ),
        "A step is one forward pass over one batch; in training, one iteration. Its time is summed"
        " over {events}, so work on two {stream}s at once counts twice.",
        without=WithoutRows(
            "steps",
            "Where does the {time} go?",
            "No steps were found, so these are sums over the recording. Work on two {stream}s at"
            " once counts twice.",
        ),
    ),
    SectionPlan(
        "layers",
        (ShownAnalysis("layers", figures=(figures.LAYERS, figures.LAYER_TIMELINE)),),
        "A layer reaches from its first {event} to its last. Even rows are the normal case; a dark"
        " row is a layer that differs, a dark column a step that was held up.",
    ),
    SectionPlan(
        "communication",
        (
            ShownAnalysis("overlap", figures=(figures.OVERLAP,)),
            ShownAnalysis("collectives", figures=(figures.COLLECTIVES,)),
        ),
        "A collective ends when its last rank has arrived: on all the others its {event} mostly"
        " waits. Communication is hidden while compute runs beside it.",
        question="How much of the communication is waiting?",
        without=WithoutRows(
            "collectives",
            "What runs at the same time?",
            "Each moment counts once: as compute if any runs, else as a copy, else as idle.",
        ),
    ),
    SectionPlan(
        "ranks",
        (
            ShownAnalysis(
                "ranks",
                figures=(figures.RANK_STEPS, figures.RANK_WAITS, figures.LATE_GROUPS),
                reported=False,
            ),
        ),
        "A row is a rank, a column a step. Ranks that work together end a step together: the late"
        " one is the row that waits least.",
    ),
    SectionPlan(
        "idle",
        (
            ShownAnalysis("idle", figures=(figures.IDLE,)),
            ShownAnalysis("launch_delay", figures=(figures.LAUNCH_DELAY,)),
        ),
        "A gap counts only when no stream of the device runs anything; a gap on one stream is not"
        " an idle device.",
    ),
    SectionPlan(
        "critical_path",
        (ShownAnalysis("critical_path", figures=(figures.CRITICAL_PATH,), reported=False),),
        "The critical path is the chain of events in which each waits for the one before it. Only"
        " what is on it can make a step faster.",
    ),
    SectionPlan(
        "bounds",
        (
            ShownAnalysis(
                "opportunities", opportunities_table, (figures.OPERATORS, figures.OPPORTUNITIES)
            ),
        ),
        "The work of each operator follows from its recorded shapes, its bound from that and the"
        " peaks of the device. An operator under the slope is limited by memory, under a flat roof"
        " by arithmetic. The gain is the time that a step would save with the operator at 80 % of"
        " its bound; what has no bound, is idle or is near its bound stays.",
        question="Which operators are far from their bound, and what would they gain?",
        only_with="ops",
    ),
    SectionPlan(
        "kernels",
        (ShownAnalysis("kernels", kernels_table),),
        "Sums over all ranks and steps.",
        question="Which {event}s are hot?",
    ),
    SectionPlan(
        "fusion",
        (ShownAnalysis("fusion", fusion_table),),
        "Kernels that always follow each other on a stream and mostly move memory. The gain is of a"
        " step (median, end to end), replayed with one kernel in place of each chain. Whether the"
        " results in between are needed elsewhere is not recorded.",
        question="Which short kernels would be one kernel?",
    ),
    SectionPlan(
        "memory",
        (ShownAnalysis("memory", figures=(figures.MEMORY, figures.HOLDERS)),),
        "Allocated is what tensors hold, reserved what the allocator took from the device. Who"
        " holds memory follows from the call stack of the allocation, the profiler's category, or"
        " how long it lives; the rest is unknown.",
        only_with="memory",
    ),
    SectionPlan(
        "hotspots",
        (ShownAnalysis("hotspots", figures=(figures.FLAME,)),),
        "A sampler looked at the call stack at fixed intervals. Self is the time in the function"
        " itself, total includes what it calls; waiting threads are seen only by samplers that"
        " record them.",
        only_with="samples",
    ),
    SectionPlan(
        "totals",
        (ShownAnalysis("totals", figures=(figures.TOTALS,)),),
        "The file holds sums, not single times: there are no steps, no order and no overlap in it.",
        only_with="totals",
    ),
    SectionPlan(
        "timeline",
        (ShownAnalysis("events", figures=(figures.STEP_TIMELINE,), reported=False),),
        "One lane for each {stream}, grey where nothing runs on it. Point at a bar to see its"
        " {event} and length.",
        question="What does one step look like?",
    ),
)
"""The sections of a trace; the findings stand before them."""


def report_sections() -> list[SectionPlan]:
    """The sections of llmprof, then those of plug-ins, of analyses that there are."""
    planned, known = list(SECTIONS), {entry.name for entry in analyses()}
    for plugin, section in plugins.records(plugins.SECTIONS, SectionPlan):
        if missing := [one.analysis for one in section.analyses if one.analysis not in known]:
            which = f"{plugin.name!r} of {plugin.package}"
            plugins.warn_left_out(which, plugins.SECTIONS, f"there is no analysis {missing[0]!r}")
            continue
        shown = tuple(
            replace(
                one,
                package=plugin.package,
                figures=tuple(replace(drawing, package=plugin.package) for drawing in one.figures),
            )
            for one in section.analyses
        )
        planned.append(replace(section, analyses=shown))
    return planned


def page_sections(
    planned: Sequence[SectionPlan],
    drawn: Mapping[str, ReportFigure],
    frames: Mapping[str, pl.DataFrame | Absent],
    words: Mapping[str, str] = ON_DEVICE,
) -> list[Section]:
    """Sections of the page; one with the anchor of an earlier one joins it."""
    joined: dict[str, list[SectionPlan]] = {}
    for section in planned:
        joined.setdefault(section.anchor, []).append(section)
    out = []
    for anchor, parts in joined.items():
        first, shown = parts[0], [one for part in parts for one in part.analyses]
        tables = [block for one in shown for block in _tables(one, frames.get(one.analysis), words)]
        charts = [drawn[drawing.name] for one in shown for drawing in one.figures]
        evidence = dict.fromkeys(one.analysis for one in shown if one.reported)
        head = first.question or analysis(shown[0].analysis).question, first.words
        if first.without is not None:
            frame = frames.get(first.without.analysis)
            if not isinstance(frame, pl.DataFrame) or frame.is_empty():
                head = first.without.question, first.without.words
        question, text = (part.format_map(words) for part in head)
        out.append(Section(anchor, question, text, [*tables, *charts], tuple(evidence)))
    return out


def _tables(
    shown: ShownAnalysis, frame: pl.DataFrame | Absent | None, words: Mapping[str, str]
) -> list[ReportTable | Absent]:
    """The table of an analysis, or the reason why there is none, unless a figure of it does."""
    make, about = shown.table, analysis(shown.analysis)
    if frame is None or not (make or shown.columns or shown.package):
        return []
    if isinstance(frame, Absent):
        gives = shown.figures and not shown.package
        return [] if gives else [replace(frame, part=about.help)]
    if shown.columns:
        return [_first_rows(about, shown.columns.split(), frame)]
    if make is None or (not frame.height and shown.figures):
        return []
    if not shown.package:
        return [attempt(about.help, lambda: make(frame, words))]
    try:
        with plugins.foreign():
            return [make(frame, words)]
    except (plugins.FailedError, LlmprofError) as error:
        failed = f"the table of {about.name!r} of {shown.package} failed: {error}"
        return [Absent(about.help, captured=True, found=failed, hint="report this to its authors")]


def _first_rows(about: Analysis, names: Sequence[str], frame: pl.DataFrame) -> ReportTable:
    """The first rows of some columns, as far as the frame has them."""
    columns: list[ReportColumn] = []
    kind: CellKind
    for name in (name for name in names if name in frame.columns):
        kind = "number" if frame[name].dtype.is_numeric() else "name"
        kind = "time" if name.endswith("_ns") else "share" if name.endswith("share") else kind
        columns.append(ReportColumn(name, name.removesuffix("_ns").replace("_", " "), kind))
    return ReportTable(
        about.name, about.help, tuple(columns), frame.head(MOST_KERNELS), sortable=True
    )
