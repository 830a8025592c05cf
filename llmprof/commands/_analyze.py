"""``llmprof analyze``: one analysis as a table, JSON or CSV; findings as sentences."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from typing import Any

import polars as pl

from llmprof import analyze, text
from llmprof.commands._open import open_trace
from llmprof.commands._output import Terminal, rows_of, to_csv, to_json, wrapped
from llmprof.commands._views import VIEWS, View
from llmprof.errors import AnalysisError, LlmprofError
from llmprof.trace import Trace
from llmprof.units import format_share

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
    return {"by": by if view.by == "layer" else tuple(name.strip() for name in by.split(","))}


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
