"""Everything a report says of a trace, computed once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import polars as pl

from llmprof.report import about
from llmprof.report._figures import FIGURES, figure
from llmprof.report._frames import ANALYSES, run
from llmprof.report._parts import Absent, Contents, Figure, Section
from llmprof.report._sections import sections
from llmprof.trace import Trace

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how many parts are done, and how many there are."""


def contents(
    trace: Trace,
    *,
    title: str | None = None,
    progress: Progress | None = None,
    drawn: Callable[[Figure], object] | None = None,
    first: Sequence[Section] = (),
    more: Sequence[tuple[str, str]] = (),
) -> Contents:
    """Run the analyses and draw the figures.

    Parameters
    ----------
    trace : Trace
        Any trace.
    title : str, optional
        Heading of the page instead of the one that names ranks and device.
    progress : callable, optional
        Told of every analysis and every figure before it is made.
    drawn : callable, optional
        Given each figure as soon as it is made.
    first : sequence of Section
        Sections before those of the trace.
    more : sequence of (str, str)
        Facts before those of the trace.

    Returns
    -------
    Contents
        What the page, the files and the summary are written from.
    """
    tell = progress or _silent
    results: dict[str, pl.DataFrame | Absent] = {}
    for done, name in enumerate(ANALYSES):
        tell(f"analysing: {name}", done, len(ANALYSES))
        results[name] = run(name, trace)
    found = {name: result for name, result in results.items() if isinstance(result, pl.DataFrame)}
    absent = [result for result in results.values() if isinstance(result, Absent)]
    figures = {}
    if drawn is not None:
        for given in [one for section in first for one in section.figures]:
            drawn(given)
    for done, (name, (shows, _)) in enumerate(FIGURES.items()):
        tell(f"drawing: {shows}", done, len(FIGURES))
        figures[name] = figure(trace, name)
        if drawn is not None:
            drawn(figures[name])
    absent += [part.absent for part in figures.values() if part.absent is not None]
    return Contents(
        title=title or about.headline(trace),
        facts=[*more, *about.facts(trace)],
        files=about.files(trace),
        warnings=about.warnings(trace),
        shares=about.shares(found.get("coverage")),
        reading=about.reading(trace),
        findings=found.get("findings", pl.DataFrame()),
        sections=[*first, *sections(figures, results, about.work(trace))],
        frames=found,
        absent=absent,
    )


def _silent(what: str, done: int, total: int) -> None:
    """Say nothing."""
