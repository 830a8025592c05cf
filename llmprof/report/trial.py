"""Page of a trial: the verdict, the effect on each metric, and every pair of measurements."""

from __future__ import annotations

import os
from collections.abc import Sequence

import polars as pl

from llmprof import charts
from llmprof.report.figures import Drawing, figure
from llmprof.report.folder import Report, write_contents
from llmprof.report.page import Column, Contents, Section, Table
from llmprof.sentences import METRIC_WORDS
from llmprof.units import format_metric

WHY = Drawing("why", "the way from one step to the other", lambda bars: (charts.diff_waterfall(bars), ""))


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
    """Write ``index.html``, the chart and the tables of a trial.

    Parameters
    ----------
    pairs, effects : polars.DataFrame
        ``verdict.pairs`` and ``verdict.effects``.
    difference : polars.DataFrame, optional
        ``verdict.why``, the bars from one step to the other.
    folder : path
        Folder to write to.
    title, says : str
        Heading, and the verdict in words.
    objective : str
        Metric that decides.
    facts : sequence of (str, str)
        Facts of the trial.
    notes : sequence of str
        What the reader has to know about the measurement.

    Returns
    -------
    Report
        ``index.html``, ``effects.csv``, ``pairs.csv`` and ``effects.png``.

    Raises
    ------
    OutputError
        The folder cannot be written.
    """
    words = effects.with_columns(
        pl.Series(
            name, [format_metric(row["metric"], row[name]) for row in effects.iter_rows(named=True)], dtype=pl.String
        )
        for name in ("before", "after")
    ).with_columns(pl.col("metric").replace_strict(METRIC_WORDS, default=pl.col("metric"), return_dtype=pl.String))
    columns = (
        Column("metric", "metric"),
        Column("before", "as it is"),
        Column("after", "with the change"),
        Column("gain", "time saved", "share"),
        Column("gain_low", "from", "share"),
        Column("gain_high", "to", "share"),
        Column("verdict", "verdict"),
    )
    drawing = Drawing("effects", "effects", lambda rows: (charts.trial_effects(rows, objective=objective), ""))
    effect = figure(effects, drawing)
    of_effects = Table(
        "effects", "Of a rate, the time of one token or request", columns, words.select(c.key for c in columns)
    )
    sections = [Section("effects", "What did the change do?", says, [effect, of_effects], ("effects", "pairs"))]
    frames = {"effects": effects, "pairs": pairs}
    figures = [effect]
    if difference is not None:
        figures.append(figure(difference, WHY))
        words_of = "From a step as it is to a step with the change, from one recording of each."
        sections.append(Section("why", "Which parts of a step shrank or grew?", words_of, [figures[-1]], ("why",)))
        frames["why"] = difference
    contents = Contents(
        title=title,
        facts=list(facts),
        warnings=list(notes),
        reading=[("Pairs", str(pairs["pair"].n_unique()))],
        sections=sections,
        frames=frames,
        absent=[one.absent for one in figures if one.absent],
        of_trace=False,
    )
    return write_contents(contents, folder)
