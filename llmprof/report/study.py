"""Page of a study: the best point and how it compares, what each setting did, and every point."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import polars as pl

from llmprof import charts
from llmprof.report.figures import Drawing, figure
from llmprof.report.folder import Report, write_contents
from llmprof.report.page import Column, Contents, Section, Table
from llmprof.report.trial import WHY
from llmprof.units import format_metric, format_ns

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
    """Write ``index.html``, the charts and the tables of a study.

    Parameters
    ----------
    frames : mapping of str to polars.DataFrame
        ``points, pareto, slices, importance`` of a :class:`llmprof.trials.Study`; ``rates``, if its objective is the
        goodput; and ``why``, the bars from a step of
        the start to one of the best point, if both were recorded.
    folder : path
        Folder to write to.
    objective : str
        Name of the objective.
    axes : (str, str)
        Names of the figures that ``pareto`` has as ``latency`` and ``rate``.
    settings : sequence of str
        Settings that were searched.
    title, says : str
        Heading, and the result in words.
    facts : sequence of (str, str)
        Facts of the study.
    notes : sequence of str
        What the reader has to know about it.
    excluded : sequence of (str, str)
        Points that were not measured, and why.

    Returns
    -------
    Report
        ``index.html``, ``points.csv``, ``pareto.csv``, ``slices.csv`` and the charts as PNG.

    Raises
    ------
    OutputError
        The folder cannot be written.
    """
    points, importance, why = frames["points"], frames["importance"], frames.get("why")
    front = Drawing(
        "pareto",
        "latency and throughput",
        lambda rows: (charts.study_pareto(rows, latency=axes[0], rate=_noun(axes[1])), ""),
    )
    alone = Drawing("slices", "each setting alone", lambda one: (charts.study_slices(one, objective=objective), ""))
    drawn = [figure(frames["pareto"], front), figure(frames["slices"], alone)]
    shares = Table(
        "importance",
        "Share of the difference between good and other points that a setting explains (PED-ANOVA of Optuna); of few "
        "points it is rough",
        (Column("setting", "setting", "name"), Column("share", "importance", "share")),
        importance,
    )
    sections = [
        Section("best", "Which configuration is best?", says, [drawn[0]], ("pareto",)),
        Section(
            "settings",
            "What did each setting do?",
            "One setting changed, all others as at the start.",
            [drawn[1], *([shares] if importance.height else [])],
            ("slices",),
        ),
    ]
    if "rates" in frames:
        words = "Rates in the order in which they were measured; without a rate: all requests at once."
        table = _rates(frames["rates"])
        sections.append(Section("rates", "At which rates does the SLO hold?", words, [table], ("rates",)))
    if why is not None:
        drawn.append(figure(why, WHY))
        words = "From a step of the start to a step of the best point, from one recording of each."
        sections.append(Section("why", "Why is it better?", words, [drawn[-1]], ("why",)))
    sections.append(
        Section(
            "points", "What was measured?", "In the order in which they ran.", [_table(points, settings)], ("points",)
        )
    )
    if excluded:
        rows = pl.DataFrame(
            list(excluded)[:_MOST_EXCLUDED], schema={"point": pl.String, "why": pl.String}, orient="row"
        )
        columns = (Column("point", "point", "name"), Column("why", "why"))
        words = f"{len(excluded)} points that the data sheet of the device rules out."
        more = f"The first {_MOST_EXCLUDED} of {len(excluded)}" if len(excluded) > _MOST_EXCLUDED else "All of them"
        sections.append(
            Section("excluded", "What was not measured, and why?", words, [Table("excluded", more, columns, rows)])
        )
    contents = Contents(
        title=title,
        facts=list(facts),
        warnings=list(notes),
        reading=[("Points", str(points.height))],
        sections=sections,
        frames=dict(frames),
        absent=[one.absent for one in drawn if one.absent],
        of_trace=False,
    )
    return write_contents(contents, folder)


def _noun(rate: str) -> str:
    return "requests" if rate == "goodput" else rate.removesuffix("_per_s")


def in_words(points: pl.DataFrame) -> pl.DataFrame:
    """Points with their figures as text."""
    after = points.columns.index("error") + 1
    figures = points.columns[after : points.columns.index("holds")]
    texts = {
        name: [None if value is None else _text(name, value) for value in points[name].to_list()] for name in figures
    }
    return points.with_columns(pl.Series(name, values, dtype=pl.String) for name, values in texts.items())


def _text(name: str, value: float) -> str:
    if name in {"goodput", "rate", "answered"} or name.endswith("_per_s"):
        return format_metric("output_tokens_per_s", value)
    return format_ns(value)


def _rates(rates: pl.DataFrame) -> Table:
    figures = rates.columns[1 : rates.columns.index("holds")]
    words = rates.with_columns(
        pl.Series(name, [None if one is None else _text(name, one) for one in rates[name]], dtype=pl.String)
        for name in figures
    ).with_columns(holds=_yes("holds"))
    columns = (
        Column("label", "point", "name"),
        Column("rate", "requests a second"),
        Column("answered", "answered a second"),
        *(Column(name, name.replace("_", " ")) for name in figures[2:]),
        Column("holds", "SLO holds"),
        Column("run", "run", "name"),
    )
    return Table("rates", "A run folder for each", columns, words.select(one.key for one in columns))


def _yes(column: str) -> pl.Expr:
    return pl.col(column).replace_strict({True: "yes", False: "no"}, default=None, return_dtype=pl.String)


def _table(points: pl.DataFrame, settings: Sequence[str]) -> Table:
    after = points.columns.index("error") + 1
    figures = points.columns[after : points.columns.index("holds")]
    words = in_words(points).with_columns(holds=_yes("holds"))
    columns = (
        Column("point", "#", "number"),
        *(Column(name, name.rpartition(".")[2].replace("_", " ")) for name in settings),
        Column("state", "state"),
        *(Column(name, name.replace("_", " ")) for name in figures),
        Column("holds", "SLO holds"),
        Column("predicted", "predicted gain", "share"),
        Column("error", "error"),
        Column("run", "run", "name"),
    )
    shown = tuple(
        column
        for column in columns
        if column.key in {"point", *settings} or words[column.key].null_count() < words.height
    )
    rows = words.select(column.key for column in shown).with_columns(
        pl.col(list(settings)).cast(pl.String).fill_null("default")
    )
    return Table("points", f"{points.height} points; points.csv has all columns", shown, rows, sortable=True)
