"""``llmprof diff``: two traces compared."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import polars as pl

from llmprof import analyze, text
from llmprof.commands._analyze import ROWS_SHOWN
from llmprof.commands._open import SAMPLE, open_trace
from llmprof.commands._output import Terminal, rows_of, to_csv, to_json
from llmprof.units import format_ns


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
