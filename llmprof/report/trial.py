"""Page of a trial: the verdict, the effect on each metric, and every pair of measurements."""

from __future__ import annotations

import os
from collections.abc import Sequence

import polars as pl

from llmprof import charts
from llmprof.report.figures import Drawing, figure
from llmprof.report.folder import Report, write_sections
from llmprof.report.page import Column, Section, Table, columns
from llmprof.sentences import METRIC_WORDS
from llmprof.units import format_metric

WHY = Drawing("why", "the way from one step to the other", charts.diff_waterfall)


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
