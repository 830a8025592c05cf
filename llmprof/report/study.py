"""Pages of a study (the best point, what each setting did, every point) and of a trial (the effect of a change)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import polars as pl

from llmprof import charts
from llmprof.report.figures import Drawing, figure
from llmprof.report.folder import Report, write_sections
from llmprof.report.page import Column, Section, Table, columns
from llmprof.sentences import METRIC_WORDS
from llmprof.units import format_metric, format_ns

WHY = Drawing("why", "the way from one step to the other", charts.diff_waterfall)
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

    The frames have ``rates`` if its objective is the goodput, and ``why``, the bars from a step of the start to one of
    the best point, if both were recorded.
    """
    points, importance, why = frames["points"], frames["importance"], frames.get("why")
    front = Drawing(
        "pareto",
        "latency and throughput",
        lambda rows: charts.study_pareto(
            rows, latency=axes[0], rate="requests" if axes[1] == "goodput" else axes[1].removesuffix("_per_s")
        ),
    )
    alone = Drawing("slices", "each setting alone", lambda one: charts.study_slices(one, objective=objective))
    shares = Table(
        "importance",
        "Share of the difference between good and other points that a setting explains (PED-ANOVA of Optuna); of few "
        "points it is rough",
        (Column("setting", "setting", "name"), Column("share", "importance", "share")),
        importance,
    )
    sections = [
        Section("best", "Which configuration is best?", says, [figure(frames["pareto"], front)], ("pareto",)),
        Section(
            "settings",
            "What did each setting do?",
            "One setting changed, all others as at the start.",
            [figure(frames["slices"], alone), *([shares] if importance.height else [])],
            ("slices",),
        ),
    ]
    if "rates" in frames:
        words = "Rates in the order in which they were measured; without a rate: all requests at once."
        table = _rates(frames["rates"])
        sections.append(Section("rates", "At which rates does the SLO hold?", words, [table], ("rates",)))
    if why is not None:
        words = "From a step of the start to a step of the best point, from one recording of each."
        sections.append(Section("why", "Why is it better?", words, [figure(why, WHY)], ("why",)))
    sections.append(
        Section(
            "points", "What was measured?", "In the order in which they ran.", [_table(points, settings)], ("points",)
        )
    )
    if excluded:
        rows = pl.DataFrame(
            list(excluded)[:_MOST_EXCLUDED], schema={"point": pl.String, "why": pl.String}, orient="row"
        )
        shown = (Column("point", "point", "name"), Column("why", "why"))
        words = f"{len(excluded)} points that the data sheet of the device rules out."
        more = f"The first {_MOST_EXCLUDED} of {len(excluded)}" if len(excluded) > _MOST_EXCLUDED else "All of them"
        sections.append(
            Section("excluded", "What was not measured, and why?", words, [Table("excluded", more, shown, rows)])
        )
    reading = ("Points", str(points.height))
    return write_sections(folder, title, sections, frames, facts=facts, warnings=notes, reading=reading)


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
    shown = (
        Column("label", "point", "name"),
        *columns("text", rate="requests a second", answered="answered a second"),
        *(Column(name, name.replace("_", " ")) for name in figures[2:]),
        Column("holds", "SLO holds"),
        Column("run", "run", "name"),
    )
    return Table("rates", "A run folder for each", shown, words.select(one.key for one in shown))


def _yes(column: str) -> pl.Expr:
    return pl.col(column).replace_strict({True: "yes", False: "no"}, default=None, return_dtype=pl.String)


def _table(points: pl.DataFrame, settings: Sequence[str]) -> Table:
    after = points.columns.index("error") + 1
    figures = points.columns[after : points.columns.index("holds")]
    words = in_words(points).with_columns(holds=_yes("holds"))
    possible = (
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
        for column in possible
        if column.key in {"point", *settings} or words[column.key].null_count() < words.height
    )
    rows = words.select(column.key for column in shown).with_columns(
        pl.col(list(settings)).cast(pl.String).fill_null("default")
    )
    return Table("points", f"{points.height} points; points.csv has all columns", shown, rows, sortable=True)


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
    """Write the page of a trial; ``difference`` has the bars from one step to the other, if both were recorded."""
    words = effects.with_columns(
        pl.Series(
            name, [format_metric(row["metric"], row[name]) for row in effects.iter_rows(named=True)], dtype=pl.String
        )
        for name in ("before", "after")
    ).with_columns(pl.col("metric").replace_strict(METRIC_WORDS, default=pl.col("metric"), return_dtype=pl.String))
    shown = (
        *columns("text", metric="metric", before="as it is", after="with the change"),
        *columns("share", gain="time saved", gain_low="from", gain_high="to"),
        Column("verdict", "verdict"),
    )
    drawing = Drawing("effects", "effects", lambda rows: charts.trial_effects(rows, objective=objective))
    effect = figure(effects, drawing)
    of_effects = Table(
        "effects", "Of a rate, the time of one token or request", shown, words.select(c.key for c in shown)
    )
    sections = [Section("effects", "What did the change do?", says, [effect, of_effects], ("effects", "pairs"))]
    frames = {"effects": effects, "pairs": pairs}
    if difference is not None:
        words_of = "From a step as it is to a step with the change, from one recording of each."
        sections.append(
            Section("why", "Which parts of a step shrank or grew?", words_of, [figure(difference, WHY)], ("why",))
        )
        frames["why"] = difference
    reading = ("Pairs", str(pairs["pair"].n_unique()))
    return write_sections(folder, title, sections, frames, facts=facts, warnings=notes, reading=reading)
