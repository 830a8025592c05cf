"""Figures of the report from samples of the CPU, and from sums that a profiler made."""

from __future__ import annotations

import polars as pl

from llmprof import analyze, charts
from llmprof.errors import AnalysisError
from llmprof.report.figures import Drawing, Drawn
from llmprof.text import shorten
from llmprof.trace import Trace
from llmprof.units import format_share


def _flame(trace: Trace) -> Drawn:
    found = analyze.stacks(trace, of="samples")
    units = found["unit"].unique().sort().to_list()
    note = f"Drawn: what was counted in {units[0]}; hotspots.csv has all." if len(units) > 1 else ""
    return charts.flame(found.filter(pl.col("unit") == units[0]) if units else found), note


def _totals(trace: Trace) -> Drawn:
    found = analyze.totals(trace)
    if not found.height:
        raise AnalysisError("the summary holds no row", hint="was the profiler active?")
    kinds = found.group_by("kind").agg(pl.col("total_ns").sum())
    on_device = kinds.filter(pl.col("kind").is_in(["kernel", "layer"]))
    kind = (on_device if on_device.height else kinds).sort("total_ns", "kind", descending=[True, False])["kind"][0]
    rows = found.filter(pl.col("kind").is_in(["kernel", "copy"] if kind == "kernel" else [kind]))
    note = "" if rows.height == found.height else f"Drawn: what is of the kind {kind}; totals.csv has all."
    rows = rows.with_columns(pl.col("count").fill_null(0), category=pl.coalesce("category", "scope"))
    if kind == "kernel":
        return charts.kernels(rows), note
    first = rows.sort("total_ns", descending=True).row(0, named=True)
    title = f"{shorten(first['name'], 48)} takes {format_share(first['share'])} of the time of all {kind}s"
    return charts.kernels(rows, variants=True, title=title), note


FLAME = Drawing("hotspots", "call stacks that the CPU was in", _flame)
TOTALS = Drawing("totals", "names by the sum of their times", _totals)
