"""What an analysis is: a record with its function, the question it answers, its command-line view and its charts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import polars as pl

from llmprof.plugins import Place


@dataclass(frozen=True, slots=True)
class Section:
    """A section of the report: the question that it answers, and how to read the answer."""

    anchor: str
    """Its id in the page, by which other analyses join it."""
    question: str
    """Its heading."""
    words: str
    """One to three sentences below the heading."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """An analysis of a trace.

    Its place is ``ANALYSIS`` in the module of its function, and one line in :mod:`llmprof.analyze.catalog`; another
    package names it in the group ``llmprof.analyses`` of its entry points.
    """

    function: Callable[..., pl.DataFrame]
    """Takes a trace and keyword options. Its name is that of the analysis, and of its CSV file in a report."""
    question: str
    """The question that it answers."""
    help: str
    """What its frame holds, in a few words: its line in ``llmprof analyze --help``."""
    view: str
    """Its name on the command line, ``llmprof analyze --what``."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the function that its view and the report use."""
    columns: tuple[str, ...] = ()
    """Columns that the command line shows, as far as the frame has them; all of them if there are none here."""
    largest_first: str = ""
    """Column by which the command line shows the largest rows first; in the frame's own order if it is empty."""
    grouped_by: Literal["", "by", "per"] = ""
    """Option that ``--by`` sets: ``by`` takes several columns, ``per`` one word."""
    reported: bool = False
    """Whether a report computes it and writes its frame."""
    section: Section | str = ""
    """Section of the report that it opens, or the anchor of the one that it joins; it has none if it is empty."""
    table: Place = ""
    """What makes the section's table of it: a function that takes its frame and what device time is made of
    (``"kernels and copies"``) and returns a :class:`llmprof.report.parts.Table`."""
    figures: tuple[Place, ...] = ()
    """Figures of the section: each a :class:`llmprof.report.figures.Drawing`."""
    package: str = ""
    """Name and version of the package that a plug-in is in; set by the catalogue."""

    @property
    def name(self) -> str:
        """Name of the function."""
        return self.function.__name__

    @property
    def anchor(self) -> str:
        """Anchor of its section of the report; empty where it has none."""
        return self.section if isinstance(self.section, str) else self.section.anchor
