"""The list of analyses: a new one is its own file, and one line here.

The command line's views, the report's sections, figures and files, and the page ``docs/analyses.md`` follow from it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import polars as pl

from llmprof import plugins
from llmprof.analyze.analysis import Analysis
from llmprof.errors import AnalysisError, LlmprofError

BUILT_IN: Final = (
    "llmprof.analyze.findings.findings:ANALYSIS",
    "llmprof.analyze.steps.steps:ANALYSIS",
    "llmprof.analyze.steps.summary:ANALYSIS",
    "llmprof.analyze.steps.summary:STEP_TIME",
    "llmprof.analyze.layers.layers:ANALYSIS",
    "llmprof.analyze.layers.layers:GAPS",
    "llmprof.analyze.overlap:ANALYSIS",
    "llmprof.analyze.collectives.collectives:ANALYSIS",
    "llmprof.analyze.collectives.collectives:SIZES",
    "llmprof.analyze.collectives.collectives:ARRIVALS",
    "llmprof.analyze.idle.gaps:ANALYSIS",
    "llmprof.analyze.idle.gaps:STREAMS_ANALYSIS",
    "llmprof.analyze.idle.host:ANALYSIS",
    "llmprof.analyze.kernels:ANALYSIS",
    "llmprof.analyze.kernels:OPERATORS_ANALYSIS",
    "llmprof.analyze.activity:ANALYSIS",
    "llmprof.analyze.memory:ANALYSIS",
    "llmprof.analyze.hotspots:HOTSPOTS",
    "llmprof.analyze.hotspots:TOTALS",
    "llmprof.analyze.coverage:ANALYSIS",
    "llmprof.analyze.layers.attribution:ANALYSIS",
    "llmprof.analyze.npu.waits:PATH_ANALYSES",
    "llmprof.analyze.npu.waits:ANALYSES",
    "llmprof.analyze.npu.cores:ANALYSES",
    "llmprof.analyze.nsys.views:ANALYSES",
)
"""Analyses of llmprof in the order of the command line and of the report, written as an entry point is."""


@functools.cache
def analyses() -> tuple[Analysis, ...]:
    """All analyses: those of llmprof, then those of plug-ins.

    Returns
    -------
    tuple of Analysis
        In the order of the command line and of the report.

    Warns
    -----
    PluginWarning
        A plug-in cannot be loaded, is no analysis, or has the name or the view of another one.
    """
    own = plugins.listed(BUILT_IN, Analysis)
    others = plugins.added(plugins.ANALYSES, Analysis, own, lambda one: one.name, "analysis")
    out = list(own)
    for plugin, one in others:
        if any(one.view == other.view for other in out):
            plugins.left_out(
                f"{plugin.name!r} of {plugin.package}", plugins.ANALYSES, f"the view {one.view!r} is taken"
            )
            continue
        out.append(replace(one, function=_guarded(one.function, plugin.package), package=plugin.package))
    return tuple(out)


def views() -> dict[str, Analysis]:
    """Analyses by their name on the command line.

    >>> list(views())[:3]
    ['findings', 'steps', 'steady']
    """
    return {one.view: one for one in analyses()}


def analysis(name: str) -> Analysis:
    """An analysis by its name or its name on the command line.

    Raises
    ------
    LlmprofError
        There is no such analysis.

    Examples
    --------
    >>> analysis("steady_state").view
    'steady'
    """
    for one in analyses():
        if name in (one.name, one.view):
            return one
    raise LlmprofError(f"there is no analysis {name!r}", expected=f"one of {[one.name for one in analyses()]}")


def markdown() -> str:
    """The list as a page of documentation; ``docs/analyses.md`` is made of it.

    Returns
    -------
    str
        Markdown: a table of llmprof's own analyses.
    """
    rows = [
        f"| {one.question} | `analyze.{one.name}` | `{one.view}` | {one.help} |"
        for one in plugins.listed(BUILT_IN, Analysis)
    ]
    head = [
        "# Analyses",
        "",
        "Made from `llmprof.analyze.catalog` by "
        "`python -c 'from llmprof.analyze import catalog; print(catalog.markdown(), end=\"\")'`. Each takes a trace "
        "and returns a frame; `llmprof analyze PATH --what NAME` prints it.",
        "",
        "| question | function | on the command line | a row is |",
        "|---|---|---|---|",
    ]
    return "\n".join([*head, *rows]) + "\n"


def _guarded(function: Callable[..., pl.DataFrame], package: str) -> Callable[..., pl.DataFrame]:
    """A plug-in's function; whatever it raises that is no error of llmprof becomes one that names the plug-in."""

    @functools.wraps(function)
    def call(*args: object, **options: object) -> pl.DataFrame:
        try:
            return function(*args, **options)
        except LlmprofError:
            raise
        except Exception as error:
            raise AnalysisError(
                f"the analysis {function.__name__!r} of {package} failed: {type(error).__name__}: {error}",
                hint="tell its authors",
            ) from error

    return call
