"""Report of a sweep: latency, throughput, scaling, and where the time went at each point."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import polars as pl

from llmprof import charts, plugins
from llmprof.progress import Progress
from llmprof.report.figures import OF_SWEEPS, Drawing, figure
from llmprof.report.folder import Report, write_sections
from llmprof.report.page import Column, Section, Table, columns
from llmprof.units import format_ns

_COLUMNS = (
    *columns("text", state="state", output_tokens_per_s="output tokens per s", ttft_ns="first token"),
    *columns("text", tpot_ns="each further token", e2e_ns="end to end", overhead="profiler's overhead"),
    Column("joules_per_output_token", "J per output token", "number"),
    *columns("share", share_compute="compute", share_exposed_communication="exposed communication", share_idle="idle"),
    Column("run", "run", "name"),
)


class Points(NamedTuple):
    """Data of the figures of a sweep."""

    comparison: pl.DataFrame
    where: pl.DataFrame
    parameters: list[str]


def _of(name: str, chart: Callable[..., Any]) -> Drawing:
    return Drawing(name, name, lambda points: chart(points.comparison, parameters=points.parameters))


THROUGHPUT = _of("throughput", charts.sweep_throughput)
LATENCY = _of("latency", charts.sweep_latency)
SCALING = _of("scaling", charts.sweep_scaling)
WHERE_TIME = Drawing("where_time", "where the time went", lambda points: charts.sweep_time(points.where))


def write_sweep(
    comparison: pl.DataFrame,
    where: pl.DataFrame,
    folder: str | os.PathLike[str],
    *,
    parameters: Sequence[str],
    title: str,
    facts: Sequence[tuple[str, str]] = (),
    failed: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> Report:
    """Write the report of a sweep.

    Parameters
    ----------
    comparison, where : polars.DataFrame
        ``sweep.comparison`` and ``sweep.where``.
    folder, title, progress
        As for :func:`llmprof.report.write`.
    parameters : sequence of str
        Parameters of the sweep; the first one is the horizontal axis.
    facts : sequence of (str, str)
        Facts that all points share.
    failed : mapping of str to str, optional
        Error messages, by point.

    Returns
    -------
    Report
        ``index.html``, ``comparison.csv``, ``where.csv`` and the charts ``throughput.png, latency.png, scaling.png,
        where_time.png`` as far as the points allow them.
    """
    names = list(parameters)
    points = Points(comparison, where, names)
    figures = {drawing.name: figure(points, drawing) for drawing in plugins.listed(OF_SWEEPS, Drawing)}
    sections = [
        Section(
            "points",
            "What did each point come to?",
            "Latencies and rates are means over the repeats without profiler; shares are of the time of the steps in "
            "the trace.",
            [_table(comparison, names)],
            ("comparison",),
        ),
        Section("speed", "How fast, and how many at once?", "", [figures["throughput"], figures["latency"]]),
        Section("scaling", "What does more of it buy?", "", [figures["scaling"]]),
        Section(
            "time",
            "Where did the time go?",
            "Bars of one step, mean over ranks and steps, from the traces of the runs.",
            [figures["where_time"]],
            ("where",),
        ),
    ]
    warnings = [f"{label} failed: {error}" for label, error in (failed or {}).items()]
    reading = ("Points", f"{comparison.filter(state='finished').height} of {comparison.height} finished")
    frames = {"comparison": comparison, "where": where}
    return write_sections(
        folder, title, sections, frames, facts=facts, warnings=warnings, reading=reading, progress=progress
    )


def _table(comparison: pl.DataFrame, parameters: list[str]) -> Table:
    compared = [column for column in _COLUMNS if column.key in comparison.columns]
    shown = [column for column in compared if comparison[column.key].null_count() < comparison.height]
    chosen: list[Column] = [
        Column(name, name.replace("_", " "), "number" if comparison.schema[name].is_numeric() else "text")
        for name in parameters
    ]
    every = (*chosen, *shown)
    with_texts = comparison.with_columns(
        pl.Series(name, [with_interval(row, name) for row in comparison.iter_rows(named=True)], dtype=pl.String)
        for name in _WITH_INTERVALS
        if name in comparison.columns
    ).with_columns(
        pl.Series("overhead", [overhead_in_words(row) for row in comparison.iter_rows(named=True)], dtype=pl.String)
    )
    rows = with_texts.select(column.key for column in every)
    return Table("points", f"{comparison.height} points; comparison.csv has all columns", every, rows, sortable=True)


_WITH_INTERVALS = ("output_tokens_per_s", "ttft_ns", "tpot_ns", "e2e_ns")


def with_interval(row: Mapping[str, Any], name: str) -> str | None:
    """A mean with half of its 95 % interval, as text: ``4.60 ms ± 120 us``."""
    if row[name] is None:
        return None
    write = format_ns if name.endswith("_ns") else "{:,.4g}".format
    low, high = row.get(f"{name}_ci95_low"), row.get(f"{name}_ci95_high")
    return write(row[name]) + ("" if low is None or high is None else f" ± {write((high - low) / 2)}")


def overhead_in_words(row: Mapping[str, Any]) -> str | None:
    """Cost of the profiler as text; without a figure if it is within the noise of the repeats."""
    if row["overhead"] is None:
        return None
    clear = row.get("overhead_clear")
    if clear is None:
        return "not known (one repeat)"
    return f"{100 * row['overhead']:+.1f} %" if clear else "within the noise"
