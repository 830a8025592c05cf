"""How an analysis is declared, the catalogue of all of them, and results that a trace keeps.

A new analysis needs its own file, and one line in ``llmprof/analyze/__init__.pyi``. The command line's views, the
report's sections, figures and files, its work on the ranks of a dataset, and the docs follow from its declaration.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Concatenate, Final, Literal, ParamSpec, TypeVar, cast

import polars as pl

from llmprof import names, plugins, schema
from llmprof.docstrings import completed
from llmprof.errors import AnalysisError, LlmprofError, NotCapturedError, listed
from llmprof.plugins import Place
from llmprof.storage.deferred import Deferred
from llmprof.trace import Trace


@dataclass(frozen=True, slots=True)
class Section:
    """A section of the report: the question that it answers, and how to read the answer."""

    anchor: str
    words: str
    """One to three sentences below the heading."""
    question: str = ""
    """Its heading; if empty, the question of the analysis that opens it."""
    without: Without | None = None
    """Heading and sentences for a recording that lacks what the section asks about."""


@dataclass(frozen=True, slots=True)
class Without:
    """Heading and sentences of a section if an analysis of it has no rows."""

    analysis: str
    question: str
    words: str


_IN_SAMPLE: Final = {"device activity", "kernels", "operators", "runtime calls", "markers"}

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., pl.DataFrame])


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """The declaration of an analysis, as a decorator of its function, which takes a trace and keyword options.

    The function's results are kept with the trace (:func:`per_trace`). A line in ``llmprof/analyze/__init__.pyi``
    exports it; another package names it in its entry points, in the group ``llmprof.analyses``.
    """

    question: str
    """The question that it answers."""
    help: str
    """Content of its frame in a few words: its line in ``llmprof analyze --help``."""
    view: str
    """Its name on the command line, ``llmprof analyze --what``."""
    recorded: str = ""
    """What its trace must hold ("kernels and operators"), for the docstring; if empty, the docstring says it."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the function that its view and the report use."""
    columns: str = ""
    """Columns that the command line shows, separated by spaces, as far as the frame has them; all if empty."""
    largest_first: str = ""
    """Column by which the command line sorts, largest first; if empty, rows keep the order of the frame."""
    needs: tuple[str, ...] = ()
    """Required arguments besides the trace, such as ``model``: ``--model`` on the command line. Reports, exports and
    agents, which run all analyses of a trace, leave such an analysis out."""
    takes: tuple[str, ...] = ()
    """Optional arguments besides the trace that the command line sets by options of the same names."""
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
    apart: tuple[str, ...] | None = None
    """Options with which the rows of a rank depend on that rank alone, so that each rank of a dataset has its worker;
    None if they never do."""
    with_calls: tuple[str, ...] | None = None
    """Options with which they depend on that rank and its matched collective calls."""
    first: tuple[str, ...] | None = None
    """What the workers of the ranks run for an analysis of all ranks, beside finding the collective calls."""
    cached: bool = True
    """Whether the trace keeps its results: not where they depend on files."""
    package: str = ""
    """Name and version of the package that a plug-in is in; set by the catalogue."""
    function: Callable[..., pl.DataFrame] = field(init=False, repr=False)
    """The function; its name is that of the analysis, and of its CSV file in a report."""

    def __call__(self, function: F) -> F:
        """Declare a function as this analysis."""
        declared: Any = per_trace(function) if self.cached else function
        declared.__record__ = self._of(declared)
        if self.recorded:
            lacks = self.recorded.replace(" and ", " or ")
            recorded = set(re.split(", | or | and ", self.recorded))
            package = "nsys." * (".nsys." in function.__module__)
            errors = {"NotCapturedError": f"NotCapturedError\n    The trace holds no {lacks}."}
            if "by" in inspect.signature(function).parameters:
                errors["AnalysisError"] = "AnalysisError\n    ``by`` names an unknown column."
            declared.__doc__ = completed(
                function,
                {"trace": f"trace : Trace\n    A trace with {self.recorded}."},
                errors,
                example=f">>> frame = analyze.{package}{function.__name__}(trace)" if recorded <= _IN_SAMPLE else "",
            )
        return cast("F", declared)

    def _of(self, function: Callable[..., pl.DataFrame]) -> Analysis:
        record = replace(self)
        object.__setattr__(record, "function", function)
        return record

    @property
    def name(self) -> str:
        """Name of the function."""
        return self.function.__name__

    @property
    def anchor(self) -> str:
        """Anchor of its section of the report; empty where it has none."""
        return self.section if isinstance(self.section, str) else self.section.anchor


LEAST_KEPT: Final = 1 << 30
"""Results of a trace are kept up to this size in bytes …"""

KEPT_OF_TRACE: Final = 4
"""… or up to this multiple of the size of its tables, if that is more; least recently used results are dropped
first."""


class Results:
    """Results of analyses of one trace, up to ``most_bytes``; frames that share columns each count in full."""

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
        size = int(result.estimated_size()) if isinstance(result, pl.DataFrame | pl.Series) else 0
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
    """Decorator: compute once for a trace and arguments, and again after names were registered; return copies."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def cached(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        trace, key = _key(function, bound)
        try:
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


def _key(function: Callable[..., Any], bound: inspect.BoundArguments) -> tuple[Trace, Hashable]:
    bound.apply_defaults()
    trace, *others = bound.arguments.values()
    return trace, (function.__module__, function.__qualname__, tuple(map(frozen, others)), names.version())


def frozen(value: Any) -> Any:
    """A value as part of a key: lists as tuples, mappings as their items."""
    if isinstance(value, list | tuple):
        return tuple(map(frozen, value))
    return tuple((key, frozen(value[key])) for key in sorted(value)) if isinstance(value, Mapping) else value


def keep(trace: Trace, function: Callable[..., Any], result: pl.DataFrame, **options: Any) -> None:
    """Keep a result that was computed elsewhere, as if :func:`per_trace` had computed it."""
    _, key = _key(function, inspect.signature(function).bind(trace, **options))
    results_of(trace).put(key, result)


def _explained(function: Callable[..., R], trace: Trace, bound: inspect.BoundArguments) -> R:
    try:
        result = function(*bound.args, **bound.kwargs)
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
    return cast("R", schema.compact(result)) if isinstance(result, pl.DataFrame) else result


def declaration(function: Callable[..., pl.DataFrame]) -> Analysis:
    """The declaration of an analysis, from its function."""
    record: Analysis = vars(function)["__record__"]
    return record


def exported(package: ModuleType) -> dict[str, list[str]]:
    """The names that a package exports, under the headings (comments) of its ``__init__.pyi``."""
    groups: dict[str, list[str]] = {}
    names_here = groups.setdefault("", [])
    for line in Path(str(package.__file__)).with_suffix(".pyi").read_text("utf-8").splitlines():
        if line.startswith("# "):
            names_here = groups.setdefault(line[2:], [])
        names_here += re.findall(r"\bas (\w+)", line)
    return groups


def _declared(package: ModuleType) -> Iterator[Analysis]:
    """The analyses among the exported functions of a package, and of the packages that it exports."""
    for name in itertools.chain.from_iterable(exported(package).values()):
        value = getattr(package, name)
        if hasattr(value, "__path__"):
            yield from _declared(value)
        elif record := getattr(value, "__record__", None):
            yield record


@functools.cache
def analyses() -> tuple[Analysis, ...]:
    """All analyses: those of llmprof, then those of plug-ins that can be loaded, in the order of the report."""
    own = tuple(_declared(import_module(__package__)))
    others = plugins.added(plugins.ANALYSES, Analysis, own, lambda added: added.name, "analysis")
    out = list(own)
    for plugin, added in others:
        if any(added.view == other.view for other in out):
            plugins.left_out(
                f"{plugin.name!r} of {plugin.package}", plugins.ANALYSES, f"the view {added.view!r} is taken"
            )
            continue
        out.append(replace(added, package=plugin.package)._of(_guarded(added.function, plugin.package)))
    return tuple(out)


def views() -> dict[str, Analysis]:
    """Analyses by their name on the command line."""
    return {entry.view: entry for entry in analyses()}


def analysis(name: str) -> Analysis:
    """An analysis by its name or its name on the command line."""
    for entry in analyses():
        if name in (entry.name, entry.view):
            return entry
    found = f"there is no analysis {name!r}"
    raise LlmprofError(found, expected=f"one of {listed([entry.name for entry in analyses()])}")


def _guarded(function: Callable[..., pl.DataFrame], package: str) -> Callable[..., pl.DataFrame]:
    """A plug-in's function; errors that are not llmprof's become an error that names the plug-in."""

    @functools.wraps(function)
    def call(*args: object, **options: object) -> pl.DataFrame:
        try:
            with plugins.foreign():
                return function(*args, **options)
        except plugins.FailedError as error:
            found = f"the analysis {function.__name__!r} of {package} failed: {error}"
            raise AnalysisError(found, hint="report this to its authors") from error

    return call
