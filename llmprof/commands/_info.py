"""``llmprof info``: what a trace holds."""

from __future__ import annotations

import textwrap
from argparse import Namespace
from typing import Any

import polars as pl

from llmprof import analyze, text
from llmprof.commands._open import open_trace
from llmprof.commands._output import Terminal, rows_of, to_json
from llmprof.errors import NotCapturedError
from llmprof.trace import Trace


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
    spans = pl.col("device_dur_ns")
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
