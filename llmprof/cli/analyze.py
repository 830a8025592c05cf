"""``llmprof analyze``: one analysis as a table, JSON or CSV; findings as sentences."""

from __future__ import annotations

import textwrap
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from llmprof import analyze, text
from llmprof.cli.output import SAMPLE, Terminal, open_trace, rows_of, to_csv, to_json, wrapped
from llmprof.errors import AnalysisError, LlmprofError, NotCapturedError
from llmprof.trace import Trace
from llmprof.units import format_ns, format_share


@dataclass(frozen=True, slots=True)
class View:
    """An analysis as the command line shows it: its name, what it says, the columns that people want, their order."""

    analysis: str
    help: str
    columns: tuple[str, ...] = ()
    longest_first: bool = False
    by: str = ""
    options: dict[str, Any] = field(default_factory=dict)


VIEWS: dict[str, View] = {
    "findings": View("findings", "what takes the time, most important first, and what to try"),
    "steps": View(
        "steps",
        "every step of the engine on every rank",
        (
            "rank", "step", "phase", "start_ns", "dur_ns", "host_dur_ns", "context_tokens",
            "generation_requests", "source",
        ),
    ),
    "steady": View(
        "steady_state",
        "the decode steps that represent the run",
        ("rank", "step", "phase", "start_ns", "dur_ns", "host_dur_ns", "generation_requests", "source"),
    ),
    "layers": View(
        "layers",
        "every layer of every step by stage",
        (
            "rank", "step", "phase", "layer", "stage", "occurrence", "start_ns", "dur_ns", "busy_ns", "kernels",
            "host_dur_ns",
        ),
        by="layer",
    ),
    "overlap": View(
        "overlap",
        "compute, exposed and hidden communication, copies and idle time",
        (
            "rank", "step", "phase", "stage", "total_ns", "compute_ns", "exposed_communication_ns",
            "hidden_communication_ns", "exposed_copy_ns", "idle_ns",
        ),
        by="columns",
        options={"by": ("rank", "step", "phase")},
    ),
    "idle": View(
        "idle",
        "parts of the gaps in which the device does nothing, and their causes",
        ("rank", "step", "start_ns", "dur_ns", "gap_ns", "cause", "doing", "held_by", "next_name"),
        longest_first=True,
    ),
    "stream-gaps": View(
        "stream_gaps",
        "gaps of single streams, and how much others worked meanwhile",
        ("rank", "stream", "step", "start_ns", "dur_ns", "share_busy_elsewhere", "next_name"),
        longest_first=True,
    ),
    "collectives": View(
        "collectives",
        "every collective: waiting, transfer, bandwidth",
        (
            "rank", "step", "layer", "call", "kind", "algorithm", "bytes", "dur_ns", "wait_ns", "transfer_ns",
            "last_rank", "bus_gbps",
        ),
    ),
    "launch-delay": View(
        "launch_delay",
        "from the host's launch call to the start of the kernel",
        (
            "rank", "step", "kernels", "calls", "share_launched", "host_call_ns", "median_ns", "p95_ns", "min_ns",
            "max_ns",
        ),
    ),
    "kernels": View(
        "kernel_summary",
        "time of each kernel",
        ("rank", "step", "phase", "stage", "total_ns", "share", "count", "median_ns", "max_ns", "category", "name"),
        by="columns",
    ),
    "ops": View(
        "ops_to_kernels",
        "operators of the host, their kernels and shapes",
        ("rank", "total_ns", "share", "count", "op", "kernel", "shapes"),
    ),
    "categories": View("kernel_categories", "category of each kernel name"),
    "coverage": View(
        "coverage",
        "share of the device time that has a step, a stage, a launch …",
        ("rank", "measure", "share", "covered_ns", "total_ns", "missing_events", "of"),
    ),
    "events": View(
        "attribute",
        "every device event with its step, layer and stage",
        ("rank", "stream", "step", "phase", "layer", "stage", "start_ns", "dur_ns", "name"),
    ),
}  # fmt: skip
"""What ``llmprof analyze --what`` takes."""


ROWS_SHOWN = 20


def analysis(args: Namespace, terminal: Terminal) -> str:
    """One analysis of a trace as a table, JSON or CSV."""
    view = VIEWS[args.what]
    trace = open_trace(args.paths, args, terminal)
    if missing := [rank for rank in args.rank or () if rank not in trace.ranks]:
        raise LlmprofError(f"there is no rank {missing[0]}", expected=f"one of {trace.ranks}")
    frame = _ranked(view, trace, args)
    if args.sort:
        _chosen(frame, args.sort)
        frame = frame.sort(args.sort, descending=not args.ascending, nulls_last=True, maintain_order=True)
    elif view.longest_first and not (args.json or args.csv):
        frame = frame.sort("dur_ns", descending=True, maintain_order=True)
    columns = _chosen(frame, args.columns)
    if args.csv or args.json:
        frame = frame.select(columns or frame.columns)
        kept = frame.head(args.limit) if args.limit else frame
        return to_csv(kept, args.csv) if args.csv else to_json(rows_of(kept))
    limit = ROWS_SHOWN if args.limit is None else args.limit
    kept = frame.head(limit) if limit else frame
    if args.what == "findings" and not columns:
        return findings_text(kept, terminal.width)
    shown = columns or [name for name in view.columns if name in frame.columns] or None
    lines = [text.table(kept, width=terminal.width, columns=shown)] if frame.height else ["no rows"]
    if kept.height < frame.height:
        order = ", the longest" if view.longest_first and not args.sort else ""
        lines.append(f"{kept.height:,} of {frame.height:,} rows{order}; --limit 0 shows all, --csv FILE writes them")
    return "\n".join(lines)


def _ranked(view: View, trace: Trace, args: Namespace) -> pl.DataFrame:
    """The frame of a view; of the wanted ranks only, but computed with all of them where it has ranks."""
    function: Callable[..., pl.DataFrame] = getattr(analyze, view.analysis)
    options = dict(view.options) | _by(view, args.by)
    frame = function(trace, **options)
    if not args.rank:
        return frame
    if "rank" in frame.columns:
        return frame.filter(pl.col("rank").is_in(args.rank))
    return function(trace.select(ranks=args.rank), **options)


def _by(view: View, by: str | None) -> dict[str, Any]:
    if not by:
        return {}
    if not view.by:
        raise AnalysisError(f"{view.analysis} takes no --by", expected="--by with layers, overlap or kernels")
    if view.by == "layer":
        return {"per": by}
    return {"by": tuple(name.strip() for name in by.split(","))}


def _chosen(frame: pl.DataFrame, columns: str | None) -> list[str]:
    names = [name.strip() for name in columns.split(",")] if columns else []
    if names == ["all"]:
        return frame.columns
    if missing := [name for name in names if name not in frame.columns]:
        raise AnalysisError(f"there is no column {missing[0]!r}", expected=f"some of {', '.join(frame.columns)}")
    return names


def findings_text(findings: pl.DataFrame, width: int | None) -> str:
    """Findings as numbered paragraphs."""
    if not findings.height:
        return "No rule found anything worth saying in this capture."
    scopes = findings["scope"].unique().to_list() if "scope" in findings.columns else []
    out = [wrapped(f"Shares of the time are of {scopes[0]}.", width, "", "")] if len(scopes) == 1 and scopes[0] else []
    for row in findings.iter_rows(named=True):
        number = f"{row['order']}. "
        about = f"[{row['severity']}, {format_share(row['share_of_time'])} of the time]"
        out.append(wrapped(f"{row['title']} {about}", width, number, " " * len(number)))
        for words, label in ((row["detail"], ""), (row["suggestion"], "Try: "), (row["evidence"], "See: ")):
            if words:
                said = f"llmprof analyze --what {_view_of(words)}" if label == "See: " else words
                out.append(wrapped(label + said, width, " " * len(number), " " * len(number)))
    return "\n".join(out)


def _view_of(analysis_name: str) -> str:
    return next((name for name, view in VIEWS.items() if view.analysis == analysis_name), analysis_name)


def diff(args: Namespace, terminal: Terminal) -> str:
    """Compare two traces by phase, stage and category."""
    a, b = (open_trace([path], args, terminal) for path in (args.a, args.b))
    frame = analyze.diff(a, b, tolerance=args.tolerance)
    if args.chart:
        from llmprof import charts

        charts.save(charts.diff(frame, names=(_name(args.a), _name(args.b))), args.chart)
    if args.csv or args.json:
        kept = frame.head(args.limit) if args.limit else frame
        return to_csv(kept, args.csv) if args.csv else to_json(rows_of(kept))
    lines = [f"a: {text.plain(args.a)}", f"b: {text.plain(args.b)}", "Device time a step and rank:"]
    totals = frame.group_by("phase", maintain_order=True).agg(
        pl.col("a_ns").sum(), pl.col("b_ns").sum(), pl.col("a_steps").first(), pl.col("b_steps").first()
    )
    lines += [_change(row) for row in totals.iter_rows(named=True)]
    limit = ROWS_SHOWN if args.limit is None else args.limit
    size = pl.col("delta_ns").abs()
    kept = frame.sort(size, descending=True, nulls_last=True, maintain_order=True)
    kept = kept.head(limit) if limit else kept
    shown = ["phase", "stage", "category", "a_ns", "b_ns", "delta_ns", "ratio", "a_count", "b_count", "status"]
    lines += ["", text.table(kept, width=terminal.width, columns=shown)]
    if kept.height < frame.height:
        lines.append(f"{kept.height:,} of {frame.height:,} rows, the largest changes; --limit 0 shows all")
    if args.chart:
        lines.append(f"Chart: {args.chart}")
    return "\n".join(lines)


def _change(row: dict[str, Any]) -> str:
    phase = row["phase"] or "no phase"
    for side, other in (("a", "b"), ("b", "a")):
        if not row[f"{side}_steps"]:
            return f"  {phase}: only in {other} ({row[f'{other}_steps']} steps)"
    ratio = f" (x {row['b_ns'] / row['a_ns']:.2f})" if row["a_ns"] else ""
    return f"  {phase}: {format_ns(row['a_ns'])} in a, {format_ns(row['b_ns'])} in b{ratio}"


def _name(path: str) -> str:
    return path.removeprefix(SAMPLE) if path.startswith(SAMPLE) else Path(path).name.split(".")[0] or path


def info(args: Namespace, terminal: Terminal) -> str:
    """What a trace holds."""
    from llmprof.report import about

    trace = open_trace(args.paths, args, terminal)
    steps = _phases(trace)
    if args.json:
        tables = {name: trace.tables[name].height if name in trace.tables else None for name in _tables()}
        low, high = trace.span_ns
        said = {"meta": trace.meta, "ranks": trace.ranks, "span_ns": high - low, "tables": tables}
        said["steps"] = steps if isinstance(steps, str) else rows_of(steps)
        return to_json(said | {"reading": trace.coverage})
    parts = [about.headline(trace).partition(": ")[2], text.pairs(about.facts(trace))]
    rows = []
    for name, table in _tables().items():
        if name in trace.tables:
            rows.append((name, f"{trace.tables[name].height:>12,}  {table.row}"))
        else:
            rows.append((name, f"{'-':>12}  not captured: {table.recorded_by}"))
    width = terminal.width or 10_000
    parts += ["Tables", "\n".join(text.shorten(line, width) for line in text.pairs(rows).splitlines())]
    parts += ["Steps", steps if isinstance(steps, str) else _indented(text.table(steps, width=_inner(terminal)))]
    parts += ["Reading", text.pairs(about.reading(trace))]
    parts += [f"Note: {text.plain(warning)}" for warning in about.warnings(trace)]
    return "\n".join(parts)


def _phases(trace: Trace) -> pl.DataFrame | str:
    try:
        steps = analyze.steps(trace)
    except NotCapturedError as error:
        return f"  not captured: {text.plain(error)}"
    spans = pl.col("dur_ns")
    return steps.group_by("phase", maintain_order=True).agg(
        steps=pl.col("step").n_unique(), median_ns=spans.median(), least_ns=spans.min(), most_ns=spans.max()
    )


def _tables() -> dict[str, Any]:
    from llmprof.schema import TABLES

    return TABLES


def _indented(lines: str) -> str:
    return textwrap.indent(lines, "  ")


def _inner(terminal: Terminal) -> int | None:
    return None if terminal.width is None else terminal.width - 2
