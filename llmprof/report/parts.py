"""What a report is made of: sections that ask a question, with figures, tables, and words for what is absent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import polars as pl

from llmprof.analyze.analysis import Analysis
from llmprof.errors import AnalysisError, NotCapturedError
from llmprof.trace import Trace


@dataclass(frozen=True, slots=True)
class Absent:
    """Something that the report cannot show, why, and what would make it possible.

    Attributes
    ----------
    part : str
        What is missing: name of a figure or of an analysis.
    captured : bool
        False where the capture does not hold what is needed; True where it does and there is nothing to show.
    found, hint : str
        What was found, and what to do about it.
    """

    part: str
    captured: bool
    found: str
    hint: str


@dataclass(frozen=True, slots=True)
class Figure:
    """One chart, or the reason why there is none.

    Attributes
    ----------
    name : str
        Stem of its file, and its id in the page.
    shows : str
        What it would show, as a noun.
    spec : str
        Vega-Lite specification as JSON that can stand in a page; empty if there is none.
    note : str
        What was left out to keep the chart small.
    """

    name: str
    shows: str
    spec: str = ""
    note: str = ""
    absent: Absent | None = None


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table: its heading, how its values are written, and what else is drawn in its cells."""

    key: str
    head: str
    kind: Literal["text", "name", "chip", "number", "time", "share"] = "text"


@dataclass(frozen=True, slots=True)
class Table:
    """Rows for people; ``frame`` has the columns that ``columns`` name."""

    name: str
    caption: str
    columns: tuple[Column, ...]
    frame: pl.DataFrame
    sortable: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """A question, how to read the answer, and what shows it."""

    anchor: str
    question: str
    words: str
    blocks: list[Figure | Table | Absent] = field(default_factory=list)
    evidence: tuple[str, ...] = ()

    @property
    def figures(self) -> list[Figure]:
        """The figures among the blocks."""
        return [block for block in self.blocks if isinstance(block, Figure)]


@dataclass(frozen=True, slots=True)
class Contents:
    """All that a report says, before it is written anywhere."""

    title: str
    facts: list[tuple[str, str]]
    files: list[tuple[str, str]]
    warnings: list[str]
    shares: pl.DataFrame
    reading: list[tuple[str, str]]
    findings: pl.DataFrame
    sections: list[Section]
    frames: dict[str, pl.DataFrame]
    absent: list[Absent]
    of_trace: bool = True
    """Whether it is of one trace, which has findings and a coverage."""

    @property
    def figures(self) -> list[Figure]:
        """All figures in the order of the page."""
        return [figure for section in self.sections for figure in section.figures]


def run(analysis: Analysis, trace: Trace) -> pl.DataFrame | Absent:
    """Frame of an analysis, or why there is none."""
    return attempt(analysis.name, lambda: analysis.function(trace, **analysis.options))


def attempt(part: str, make: Callable[[], pl.DataFrame]) -> pl.DataFrame | Absent:
    """What a function returns, or why it cannot: only errors that say so on purpose are taken for an answer."""
    try:
        return make()
    except NotCapturedError as error:
        return Absent(part, captured=False, found=error.found, hint=error.hint)
    except AnalysisError as error:
        return Absent(part, captured=True, found=error.found, hint=error.hint)
