"""Report of hardware metrics without a timeline: kernels by time and limit, roofline, stalls,
rules and hot lines.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import polars as pl

from llmprof import analyze, charts
from llmprof.analyze.ncu.profile import (
    NEEDS_TIMELINE,
    HardwareProfile,
    kernel_limits,
    metrics_headline,
    metrics_reading,
    profile_facts,
)
from llmprof.findings.hardware import file_name, launches_in_a_row
from llmprof.names.kernels import displayed
from llmprof.report.figures import Drawing, make_figure
from llmprof.report.page import (
    Absent,
    Contents,
    ReportColumn,
    ReportFigure,
    ReportTable,
    Section,
    attempt,
    by_share,
    columns_of_kind,
)
from llmprof.trace.metrics.data import Metrics

_MOST_ROWS: Final = 15

NOTE: Final = (
    "Nsight Compute replays each launch alone. When the launches ran, what lay between them and"
    " what the host did is not recorded here."
)
"""Warning that a reader of hardware metrics must know before trusting them."""


def named_stalls(metrics: Metrics) -> pl.DataFrame:
    """Stalls with the names and durations of their launches."""
    names = analyze.ncu.speed_of_light(metrics).select("kernel_id", "kernel_name", "dur_ns")
    return analyze.ncu.stalls(metrics).join(names, on="kernel_id", how="left")


KERNELS = Drawing(
    "kernel_time",
    "kernels by their time",
    lambda metrics: charts.kernels(analyze.kernels(launches_in_a_row(metrics))),
)
ROOFLINE = Drawing(
    "roofline",
    "launches under the roofs of the device",
    lambda metrics: charts.roofline(analyze.ncu.speed_of_light(metrics)),
)
STALLS = Drawing(
    "stalls", "what the warps wait for", lambda metrics: charts.stalls(named_stalls(metrics))
)


def _section(
    anchor: str, question: str, words: str, *blocks: ReportFigure | ReportTable | Absent
) -> Section:
    return Section(anchor, question, words, list(blocks), (anchor,))


def _table(
    part: str,
    name: str,
    caption: str,
    shown_columns: tuple[ReportColumn, ...],
    frame: pl.DataFrame | Absent,
) -> ReportTable | Absent:
    if isinstance(frame, Absent):
        return replace(frame, part=part)
    if not frame.height:
        return Absent(part, captured=True, found=f"there are no {part}", hint="")
    more = (
        f"{frame.height - _MOST_ROWS:,} more are in {name}.csv."
        if frame.height > _MOST_ROWS
        else ""
    )
    shown = frame.head(_MOST_ROWS)
    shown = shown.with_columns(function=displayed(shown["kernel_name"]))
    return ReportTable(name, caption, shown_columns, shown, sortable=True, note=more)


_LIMITS: Final = (
    ReportColumn("function", "kernel", "name", 36, "kernel_name"),
    ReportColumn("count", "launches", "number"),
    ReportColumn("total_ns", "total", "time"),
    ReportColumn("share", "share", "share"),
    ReportColumn("bound_by", "limit"),
    *columns_of_kind("share", compute_share="compute", memory_share="memory"),
    ReportColumn("bound_share", "of its roof", "share"),
    ReportColumn("stall", "warps wait for"),
)
_RULES: Final = (
    ReportColumn("function", "kernel", "name", 30, "kernel_name"),
    ReportColumn("count", "launches", "number"),
    ReportColumn("text", "advice"),
    ReportColumn("estimated_speedup_pct", "at most %", "number"),
    ReportColumn("speedup_scope", "of"),
)
_LINES: Final = (
    ReportColumn("function", "kernel", "name", 40, "kernel_name"),
    ReportColumn("source", "file"),
    *columns_of_kind("number", line="line", count="samples"),
    ReportColumn("share", "share of the kernel", "share"),
    ReportColumn("reason", "warps wait for"),
)


def advice(metrics: Metrics) -> pl.DataFrame:
    """Advice of the profiler's rules for each kernel; the largest estimates of the longest
    launches come first.
    """
    durations = metrics.kernels.select("kernel_id", "kernel_name", "dur_ns")
    estimate = pl.col("estimated_speedup_pct").fill_null(0.0) * pl.col("dur_ns").fill_null(0.0)
    return (
        metrics.rules.filter(pl.col("kind") != "INF")
        .join(durations, on="kernel_id", how="left")
        .sort(
            pl.col("speedup_scope") != "global", estimate, descending=[False, True], nulls_last=True
        )
        .group_by("kernel_name", "section", "rule", "speedup_scope", maintain_order=True)
        .agg(
            pl.n_unique("kernel_id").alias("count"),
            pl.first("text", "estimated_speedup_pct"),
        )
        .select(
            "kernel_name",
            "count",
            "section",
            "rule",
            "text",
            "estimated_speedup_pct",
            "speedup_scope",
        )
    )


def _lines(profile: HardwareProfile) -> pl.DataFrame:
    lines = analyze.ncu.hot_lines(profile.source).filter(pl.col("count") > 0)
    files = pl.Series("source", [file_name(path) for path in lines["file"]], dtype=pl.String)
    return lines.with_columns(files).sort("count", descending=True, maintain_order=True)


def profile_contents(profile: HardwareProfile, *, title: str | None = None) -> Contents:
    """Contents of the report of hardware metrics."""
    metrics = profile.metrics
    makers: dict[str, Callable[[], pl.DataFrame]] = {
        "limits": lambda: kernel_limits(metrics),
        "speed_of_light": lambda: analyze.ncu.speed_of_light(metrics),
        "stalls": lambda: analyze.ncu.stalls(metrics),
        "rules": lambda: advice(metrics),
        "hot_lines": lambda: _lines(profile),
        "findings": lambda: profile.findings,
    }
    made = {name: attempt(name, make) for name, make in makers.items()}
    frames = {name: frame for name, frame in made.items() if isinstance(frame, pl.DataFrame)}
    sections = [
        _section(
            "speed_of_light",
            "Which kernels take the time, and what limits them?",
            "A kernel is limited by the side that is at 60 % of its peak or more, else by latency."
            " Of several limits of its launches, the one with most of their time is named.",
            make_figure(metrics, KERNELS),
            _table("limits of kernels", "limits", "Kernels by their time", _LIMITS, made["limits"]),
        ),
        _section(
            "roofline",
            "How near do the kernels come to the roofs of the device?",
            "Under the slope the memory is the limit, under a flat line the arithmetic.",
            make_figure(metrics, ROOFLINE),
        ),
        _section(
            "stalls",
            "What do the warps wait for?",
            "Shares of the warp cycles in which a warp could not issue, by reason.",
            make_figure(metrics, STALLS),
        ),
        _section(
            "rules",
            "What does the profiler itself advise?",
            "Estimates for the whole kernel (global) come before those for one unit of it (local).",
            _table("results of rules", "rules", "Advice of Nsight Compute", _RULES, made["rules"]),
        ),
        _section(
            "hot_lines",
            "Which lines of the source are hot?",
            "Lines by the samples of their warps.",
            _table("hot lines", "hot_lines", "Lines by samples", _LINES, made["hot_lines"]),
        ),
    ]
    absent = [frame for frame in made.values() if isinstance(frame, Absent)]
    absent += [
        drawn.absent for part in sections for drawn in part.figures if drawn.absent is not None
    ]
    absent.append(
        Absent(
            NEEDS_TIMELINE[0], captured=False, found="there is no timeline", hint=NEEDS_TIMELINE[1]
        )
    )
    return Contents(
        title=title or metrics_headline(metrics),
        facts=profile_facts(metrics),
        warnings=[NOTE, *(str(words) for words in metrics.coverage.get("warnings") or ())],
        reading=[
            *metrics_reading(metrics),
            ("Not in these metrics", f"{NEEDS_TIMELINE[0]}; {NEEDS_TIMELINE[1]}"),
        ],
        findings=frames.get("findings", pl.DataFrame()),
        sections=by_share(sections, frames.get("findings", pl.DataFrame())),
        frames=frames,
        absent=absent,
        path=profile.name,
        of_trace=False,
    )
