"""Catalogue of analyses (a new one needs its own file and one line here), their record type, and cached results.

The command line's views, the report's sections, figures and files, and the page ``docs/analyses.md`` follow from it.
"""

from __future__ import annotations

import functools
import inspect
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Concatenate, Final, Literal, ParamSpec, TypeVar

import polars as pl

from llmprof import names, plugins
from llmprof.errors import AnalysisError, LlmprofError, NotCapturedError, listed
from llmprof.plugins import Place
from llmprof.storage.deferred import Deferred
from llmprof.trace import Trace


@dataclass(frozen=True, slots=True)
class Section:
    """A section of the report: the question that it answers, and how to read the answer."""

    anchor: str
    """Its id in the page, by which other analyses join it."""
    question: str
    """Its heading."""
    words: str
    """One to three sentences below the heading."""
    without: Without | None = None
    """Heading and sentences for a recording that lacks what the section asks about."""


@dataclass(frozen=True, slots=True)
class Without:
    """Heading and sentences of a section if an analysis of it has no rows."""

    analysis: str
    """Name of the analysis: ``steps``, ``collectives``."""
    question: str
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """An analysis of a trace.

    It is the constant ``ANALYSIS`` of the module of its function, and has one line in :mod:`llmprof.analyze.catalog`.
    Another package names it in its entry points, in the group ``llmprof.analyses``.
    """

    function: Callable[..., pl.DataFrame]
    """Takes a trace and keyword options. Its name is that of the analysis, and of its CSV file in a report."""
    question: str
    """The question that it answers."""
    help: str
    """Content of its frame in a few words: its line in ``llmprof analyze --help``."""
    view: str
    """Its name on the command line, ``llmprof analyze --what``."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the function that its view and the report use."""
    columns: tuple[str, ...] = ()
    """Columns that the command line shows, as far as the frame has them; all columns if empty."""
    largest_first: str = ""
    """Column by which the command line sorts, largest first; if empty, rows keep the order of the frame."""
    needs: tuple[str, ...] = ()
    """Required arguments besides the trace, such as ``model``: ``--model`` on the command line. Reports, exports and
    agents, which run all analyses of a trace, leave such an analysis out."""
    grouped_by: Literal["", "by", "per"] = ""
    """Option that ``--by`` sets: ``by`` takes several columns, ``per`` one word."""
    reported: bool = False
    """Whether a report computes it and writes its frame."""
    section: Section | str = ""
    """Section of the report for its results, or the anchor of the section that it joins; none if empty."""
    table: Place = ""
    """Function that makes the table of its section. It takes its frame and the name of the device's events
    (``"kernels and copies"``) and returns a :class:`llmprof.report.page.Table`."""
    figures: tuple[Place, ...] = ()
    """Figures of the section: each a :class:`llmprof.report.figures.Drawing`."""
    only_with: str = ""
    """Table that the analysis needs: without it a report leaves the analysis out, and does not say why."""
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


P = ParamSpec("P")
R = TypeVar("R")

LEAST_KEPT: Final = 1 << 30
"""Results of a trace are kept up to this size in bytes …"""

KEPT_OF_TRACE: Final = 4
"""… or up to this multiple of the size of its tables, if that is more; least recently used results are dropped
first."""


class Results:
    """Results of analyses of one trace, by function and arguments.

    Parameters
    ----------
    most_bytes : int
        Most bytes that are kept. A larger result is not kept at all. Frames that share columns each count in full.
    """

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.bytes = 0
        self._kept: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> Any:
        """The result, or None."""
        with self._lock:
            if key not in self._kept:
                return None
            self._kept.move_to_end(key)
            return self._kept[key][0]

    def put(self, key: Hashable, result: Any) -> None:
        """Keep a result, and drop the least recently used ones until all fit."""
        size = int(result.estimated_size()) if isinstance(result, pl.DataFrame) else 0
        if size > self.most_bytes:
            return
        with self._lock:
            self.bytes += size - self._kept.pop(key, (None, 0))[1]
            self._kept[key] = (result, size)
            while self.bytes > self.most_bytes:
                self.bytes -= self._kept.popitem(last=False)[1][1]

    def __len__(self) -> int:
        return len(self._kept)


def results_of(trace: Trace) -> Results:
    """Cached results of a trace."""
    if trace._results is None:
        tables = trace._tables
        size = 0 if isinstance(tables, Deferred) else sum(int(frame.estimated_size()) for frame in tables.values())
        trace._results = Results(max(LEAST_KEPT, KEPT_OF_TRACE * size))
    results: Results = trace._results
    return results


def per_trace(function: Callable[Concatenate[Trace, P], R]) -> Callable[Concatenate[Trace, P], R]:
    """Decorator: compute once for each trace and arguments, and again after names were registered.

    It does not matter whether arguments are given by position, by keyword or left out. A frame is returned as a copy
    that the caller may change.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def cached(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        trace, *others = bound.arguments.values()
        try:
            key = (function.__module__, function.__qualname__, tuple(map(frozen, others)), names.version())
            hash(key)
        except TypeError:
            return _explained(function, trace, bound)
        kept = results_of(trace)
        result = kept.get(key)
        if result is None:
            result = _explained(function, trace, bound)
            kept.put(key, result)
        return result.clone() if isinstance(result, pl.DataFrame) else result

    return cached


def frozen(value: Any) -> Any:
    """A value as part of a key: lists as tuples, mappings as their items."""
    if isinstance(value, list | tuple):
        return tuple(map(frozen, value))
    if isinstance(value, Mapping):
        return tuple((key, frozen(value[key])) for key in sorted(value))
    return value


def keep(trace: Trace, function: Callable[..., Any], result: pl.DataFrame, **options: Any) -> None:
    """Keep a result that was computed elsewhere, as if :func:`per_trace` had computed it.

    Parameters
    ----------
    trace : Trace
        The trace of the result.
    function : callable
        A function with :func:`per_trace`.
    result : polars.DataFrame
        The result.
    **options
        Options of the function.
    """
    bound = inspect.signature(function).bind(trace, **options)
    bound.apply_defaults()
    _, *others = bound.arguments.values()
    key = (function.__module__, function.__qualname__, tuple(map(frozen, others)), names.version())
    results_of(trace).put(key, result)


def _explained(function: Callable[..., R], trace: Trace, bound: inspect.BoundArguments) -> R:
    try:
        return function(*bound.args, **bound.kwargs)
    except pl.exceptions.ColumnNotFoundError as error:
        if not any(columns is not None for columns in (trace.asked or {}).values()):
            raise
        named = re.search(r'"(\w+)"', str(error))
        raise NotCapturedError(
            f"this trace was read without the column {named[1] if named else error}",
            expected=f"what {function.__name__} needs beside {trace.asked}",
            hint="read the file again with that column among tables=, or without tables=",
            table="",
        ) from error


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
    "llmprof.analyze.balance:ANALYSES",
    "llmprof.analyze.ranks:ANALYSES",
    "llmprof.analyze.idle.gaps:ANALYSIS",
    "llmprof.analyze.idle.gaps:STREAMS_ANALYSIS",
    "llmprof.analyze.idle.host:ANALYSIS",
    "llmprof.analyze.replay.critical_path:ANALYSIS",
    "llmprof.analyze.replay.slack:SLACK",
    "llmprof.analyze.replay.slack:SHARE",
    "llmprof.analyze.kernels:ANALYSIS",
    "llmprof.analyze.kernels:OPERATORS_ANALYSIS",
    "llmprof.analyze.operator_calls:ANALYSIS",
    "llmprof.analyze.fusion:ANALYSIS",
    "llmprof.analyze.activity:ANALYSIS",
    "llmprof.analyze.memory:ANALYSIS",
    "llmprof.analyze.stacks:HOTSPOTS",
    "llmprof.analyze.stacks:TOTALS",
    "llmprof.analyze.coverage:ANALYSIS",
    "llmprof.analyze.roofline:ANALYSIS",
    "llmprof.analyze.layers.attribution:ANALYSIS",
    "llmprof.analyze.npu.waits:PATH_ANALYSES",
    "llmprof.analyze.npu.waits:ANALYSES",
    "llmprof.analyze.npu.cores:ANALYSES",
    "llmprof.analyze.nsys.views:ANALYSES",
)
"""Analyses of llmprof in the order of the command line and of the report, in the form of entry points."""


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
        A plug-in cannot be loaded, is not an analysis, or has the name or the view of another one.
    """
    own = plugins.listed(BUILT_IN, Analysis)
    others = plugins.added(plugins.ANALYSES, Analysis, own, lambda added: added.name, "analysis")
    out = list(own)
    for plugin, added in others:
        if any(added.view == other.view for other in out):
            plugins.left_out(
                f"{plugin.name!r} of {plugin.package}", plugins.ANALYSES, f"the view {added.view!r} is taken"
            )
            continue
        out.append(replace(added, function=_guarded(added.function, plugin.package), package=plugin.package))
    return tuple(out)


def views() -> dict[str, Analysis]:
    """Analyses by their name on the command line.

    >>> list(views())[:3]
    ['findings', 'steps', 'steady']
    """
    return {entry.view: entry for entry in analyses()}


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
    for entry in analyses():
        if name in (entry.name, entry.view):
            return entry
    raise LlmprofError(
        f"there is no analysis {name!r}", expected=f"one of {listed([entry.name for entry in analyses()])}"
    )


def markdown() -> str:
    """The catalogue as a page of documentation, ``docs/analyses.md``.

    Returns
    -------
    str
        Markdown: a table of llmprof's own analyses.
    """
    rows = [
        f"| {entry.question} | `analyze.{entry.name}` | `{' --'.join([entry.view, *entry.needs])}` | {entry.help} |"
        for entry in plugins.listed(BUILT_IN, Analysis)
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
    """A plug-in's function; errors that are not llmprof's become an error that names the plug-in."""

    @functools.wraps(function)
    def call(*args: object, **options: object) -> pl.DataFrame:
        try:
            with plugins.foreign():
                return function(*args, **options)
        except plugins.FailedError as error:
            raise AnalysisError(
                f"the analysis {function.__name__!r} of {package} failed: {error}",
                hint="report this to its authors",
            ) from error

    return call
