"""Reports of many runs: of a sweep, of a study (its best point, settings and points) and of a
trial (its effects).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import polars as pl

from llmprof import charts
from llmprof.charts.subjects.compare import diff_waterfall
from llmprof.charts.subjects.sweep import (
    sweep_latency,
    sweep_scaling,
    sweep_throughput,
    sweep_time,
)
from llmprof.report.figures import Drawing, make_figure
from llmprof.report.folder import Report, write_sections
from llmprof.report.page import ReportColumn, ReportTable, Section, columns_of_kind
from llmprof.text import METRIC_WORDS, Progress
from llmprof.units import format_metric, format_ns

_COLUMNS = (
    *columns_of_kind(
        "text", state="state", output_tokens_per_s="output tokens per s", ttft_ns="first token"
    ),
    *columns_of_kind(
        "text", tpot_ns="each further token", e2e_ns="end to end", overhead="profiler's overhead"
    ),
    ReportColumn("joules_per_output_token", "J per output token", "number"),
    *columns_of_kind(
        "share",
        share_compute="compute",
        share_exposed_communication="exposed communication",
        share_idle="idle",
    ),
    ReportColumn("run", "run", "name"),
)


class SweepFrames(NamedTuple):
    """Data of the figures of a sweep."""

    comparison: pl.DataFrame
    where: pl.DataFrame
    parameters: list[str]


def _of(name: str, chart: Callable[..., Any]) -> Drawing:
    return Drawing(
        name, name, lambda points: chart(points.comparison, parameters=points.parameters)
    )


THROUGHPUT = _of("throughput", sweep_throughput)
LATENCY = _of("latency", sweep_latency)
SCALING = _of("scaling", sweep_scaling)
WHERE_TIME = Drawing("where_time", "where the time went", lambda points: sweep_time(points.where))


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
        ``index.html``, ``comparison.csv``, ``where.csv`` and the charts ``throughput.png,
        latency.png, scaling.png, where_time.png`` as far as the points allow them.
    """
    names = list(parameters)
    points = SweepFrames(comparison, where, names)
    drawn = (THROUGHPUT, LATENCY, SCALING, WHERE_TIME)
    figures = {drawing.name: make_figure(points, drawing) for drawing in drawn}
    sections = [
        Section(
            "points",
            "What did each point come to?",
            "Latencies and rates are means over the repeats without profiler; shares are of the"
            " time of the steps in the trace.",
            [_table(comparison, names)],
            ("comparison",),
        ),
        Section(
            "speed",
            "How fast, and how many at once?",
            "",
            [figures["throughput"], figures["latency"]],
        ),
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
    reading = (
        "Points",
        f"{comparison.filter(state='finished').height} of {comparison.height} finished",
    )
    frames = {"comparison": comparison, "where": where}
    return write_sections(
        folder,
        title,
        sections,
        frames,
        facts=facts,
        warnings=warnings,
        reading=reading,
        progress=progress,
    )


def _table(comparison: pl.DataFrame, parameters: list[str]) -> ReportTable:
    compared = [column for column in _COLUMNS if column.key in comparison.columns]
    shown = [
        column for column in compared if comparison[column.key].null_count() < comparison.height
    ]
    chosen: list[ReportColumn] = [
        ReportColumn(
            name,
            name.replace("_", " "),
            "number" if comparison.schema[name].is_numeric() else "text",
        )
        for name in parameters
    ]
    every = (*chosen, *shown)
    with_texts = comparison.with_columns(
        pl.Series(
            name,
            [with_interval(row, name) for row in comparison.iter_rows(named=True)],
            dtype=pl.String,
        )
        for name in _WITH_INTERVALS
        if name in comparison.columns
    ).with_columns(
        pl.Series(
            "overhead",
            [overhead_in_words(row) for row in comparison.iter_rows(named=True)],
            dtype=pl.String,
        )
    )
    rows = with_texts.select(column.key for column in every)
    return ReportTable(
        "points",
        f"{comparison.height} points; comparison.csv has all columns",
        every,
        rows,
        sortable=True,
    )


_WITH_INTERVALS = ("output_tokens_per_s", "ttft_ns", "tpot_ns", "e2e_ns")


def with_interval(row: Mapping[str, Any], name: str) -> str | None:
    """A mean with half of its 95 % interval, as text: ``4.60 ms ± 120 us``."""
    if row[name] is None:
        return None
    write = format_ns if name.endswith("_ns") else "{:,.4g}".format
    low, high = row.get(f"{name}_ci95_low"), row.get(f"{name}_ci95_high")
    return write(row[name]) + (
        "" if low is None or high is None else f" ± {write((high - low) / 2)}"
    )


def overhead_in_words(row: Mapping[str, Any]) -> str | None:
    """Cost of the profiler as text; without a figure if it is within the noise of the repeats."""
    if row["overhead"] is None:
        return None
    clear = row.get("overhead_clear")
    if clear is None:
        return "not known (one repeat)"
    return f"{100 * row['overhead']:+.1f} %" if clear else "within the noise"


WHY = Drawing("why", "the way from one step to the other", diff_waterfall)
_MOST_EXCLUDED = 50


def write_study(
    frames: Mapping[str, pl.DataFrame],
    folder: str | os.PathLike[str],
    *,
    objective: str,
    axes: tuple[str, str],
    settings: Sequence[str],
    title: str,
    says: str,
    facts: Sequence[tuple[str, str]] = (),
    notes: Sequence[str] = (),
    excluded: Sequence[tuple[str, str]] = (),
) -> Report:
    """Write the page of a study; ``axes`` names what its Pareto front has as latency and rate.

    The frames have ``rates`` if its objective is the goodput, and ``why``, the bars from a step of
    the start to one of the best point, if both were recorded.
    """
    points, importance, why = frames["points"], frames["importance"], frames.get("why")
    front = Drawing(
        "pareto",
        "latency and throughput",
        lambda rows: charts.study_pareto(
            rows,
            latency=axes[0],
            rate="requests" if axes[1] == "goodput" else axes[1].removesuffix("_per_s"),
        ),
    )
    alone = Drawing(
        "slices", "each setting alone", lambda one: charts.study_slices(one, objective=objective)
    )
    shares = ReportTable(
        "importance",
        "Share of the difference between good and other points that a setting explains (PED-ANOVA"
        " of Optuna); of few points it is rough",
        (ReportColumn("setting", "setting", "name"), ReportColumn("share", "importance", "share")),
        importance,
    )
    sections = [
        Section(
            "best",
            "Which configuration is best?",
            says,
            [make_figure(frames["pareto"], front)],
            ("pareto",),
        ),
        Section(
            "settings",
            "What did each setting do?",
            "One setting changed, all others as at the start.",
            [make_figure(frames["slices"], alone), *([shares] if importance.height else [])],
            ("slices",),
        ),
    ]
    if "rates" in frames:
        words = (
            "Rates in the order in which they were measured; without a rate: all requests at once."
        )
        table = _rates(frames["rates"])
        sections.append(
            Section("rates", "At which rates does the SLO hold?", words, [table], ("rates",))
        )
    if why is not None:
        words = "From a step of the start to a step of the best point, from one recording of each."
        sections.append(
            Section("why", "Why is it better?", words, [make_figure(why, WHY)], ("why",))
        )
    words, table = "In the order in which they ran.", _points_table(points, settings)
    sections.append(Section("points", "What was measured?", words, [table], ("points",)))
    if excluded:
        rows = pl.DataFrame(
            list(excluded)[:_MOST_EXCLUDED],
            schema={"point": pl.String, "why": pl.String},
            orient="row",
        )
        shown = (ReportColumn("point", "point", "name"), ReportColumn("why", "why"))
        words = f"{len(excluded)} points that the data sheet of the device rules out."
        more = (
            f"The first {_MOST_EXCLUDED} of {len(excluded)}"
            if len(excluded) > _MOST_EXCLUDED
            else "All of them"
        )
        sections.append(
            Section(
                "excluded",
                "What was not measured, and why?",
                words,
                [ReportTable("excluded", more, shown, rows)],
            )
        )
    reading = ("Points", str(points.height))
    return write_sections(
        folder, title, sections, frames, facts=facts, warnings=notes, reading=reading
    )


def points_in_words(points: pl.DataFrame) -> pl.DataFrame:
    """Points with their figures as text."""
    after = points.columns.index("error") + 1
    figures = points.columns[after : points.columns.index("holds")]
    texts = {
        name: [None if value is None else _text(name, value) for value in points[name].to_list()]
        for name in figures
    }
    return points.with_columns(
        pl.Series(name, values, dtype=pl.String) for name, values in texts.items()
    )


def _text(name: str, value: float) -> str:
    if name in {"goodput", "rate", "answered"} or name.endswith("_per_s"):
        return format_metric("output_tokens_per_s", value)
    return format_ns(value)


def _rates(rates: pl.DataFrame) -> ReportTable:
    figures = rates.columns[1 : rates.columns.index("holds")]
    words = rates.with_columns(
        pl.Series(
            name,
            [None if one is None else _text(name, one) for one in rates[name]],
            dtype=pl.String,
        )
        for name in figures
    ).with_columns(holds=_yes("holds"))
    shown = (
        ReportColumn("label", "point", "name"),
        *columns_of_kind("text", rate="requests a second", answered="answered a second"),
        *(ReportColumn(name, name.replace("_", " ")) for name in figures[2:]),
        ReportColumn("holds", "SLO holds"),
        ReportColumn("run", "run", "name"),
    )
    return ReportTable(
        "rates", "A run folder for each", shown, words.select(one.key for one in shown)
    )


def _yes(column: str) -> pl.Expr:
    return pl.col(column).replace_strict(
        {True: "yes", False: "no"}, default=None, return_dtype=pl.String
    )


def _points_table(points: pl.DataFrame, settings: Sequence[str]) -> ReportTable:
    after = points.columns.index("error") + 1
    figures = points.columns[after : points.columns.index("holds")]
    words = points_in_words(points).with_columns(holds=_yes("holds"))
    possible = (
        ReportColumn("point", "#", "number"),
        *(ReportColumn(name, name.rpartition(".")[2].replace("_", " ")) for name in settings),
        ReportColumn("state", "state"),
        *(ReportColumn(name, name.replace("_", " ")) for name in figures),
        ReportColumn("holds", "SLO holds"),
        ReportColumn("predicted", "predicted gain", "share"),
        ReportColumn("error", "error"),
        ReportColumn("run", "run", "name"),
    )
    shown = tuple(
        column
        for column in possible
        if column.key in {"point", *settings} or words[column.key].null_count() < words.height
    )
    rows = words.select(column.key for column in shown).with_columns(
        pl.col(list(settings)).cast(pl.String).fill_null("default")
    )
    return ReportTable(
        "points", f"{points.height} points; points.csv has all columns", shown, rows, sortable=True
    )


def write_trial(
    pairs: pl.DataFrame,
    effects: pl.DataFrame,
    difference: pl.DataFrame | None,
    folder: str | os.PathLike[str],
    *,
    title: str,
    says: str,
    objective: str,
    facts: Sequence[tuple[str, str]] = (),
    notes: Sequence[str] = (),
) -> Report:
    """Write the page of a trial; ``difference`` has the bars from one step to the other, if both
    were recorded.
    """
    words = effects.with_columns(
        pl.Series(
            name,
            [format_metric(row["metric"], row[name]) for row in effects.iter_rows(named=True)],
            dtype=pl.String,
        )
        for name in ("before", "after")
    ).with_columns(
        pl.col("metric").replace_strict(
            METRIC_WORDS, default=pl.col("metric"), return_dtype=pl.String
        )
    )
    shown = (
        *columns_of_kind("text", metric="metric", before="as it is", after="with the change"),
        *columns_of_kind("share", gain="time saved", gain_low="from", gain_high="to"),
        ReportColumn("verdict", "verdict"),
    )
    drawing = Drawing(
        "effects", "effects", lambda rows: charts.trial_effects(rows, objective=objective)
    )
    effect = make_figure(effects, drawing)
    of_effects = ReportTable(
        "effects",
        "Of a rate, the time of one token or request",
        shown,
        words.select(c.key for c in shown),
    )
    sections = [
        Section(
            "effects", "What did the change do?", says, [effect, of_effects], ("effects", "pairs")
        )
    ]
    frames = {"effects": effects, "pairs": pairs}
    if difference is not None:
        words_of = "From a step as it is to a step with the change, from one recording of each."
        sections.append(
            Section(
                "why",
                "Which parts of a step shrank or grew?",
                words_of,
                [make_figure(difference, WHY)],
                ("why",),
            )
        )
        frames["why"] = difference
    reading = ("Pairs", str(pairs["pair"].n_unique()))
    return write_sections(
        folder, title, sections, frames, facts=facts, warnings=notes, reading=reading
    )
