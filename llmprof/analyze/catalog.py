"""How an analysis is declared, the catalogue of all of them, and results that a trace keeps.

A new analysis needs its own file, and one line in ``llmprof/analyze/__init__.py``. How it is shown
stands with who shows it: ``llmprof/cli/listings.py``, ``llmprof/report/sections.py`` and, for the
ranks of a dataset, ``llmprof/report/dataset/plans.py``.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any, Final, TypeVar, cast

import polars as pl

from llmprof import plugins
from llmprof.errors import AnalysisError, LlmprofError, listed
from llmprof.trace.kept import per_trace

F = TypeVar("F", bound=Callable[..., pl.DataFrame])


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """The declaration of an analysis, as a decorator of its function, which takes a trace and
    keyword options.

    The function's results are kept with the trace (:func:`per_trace`). A line in
    ``llmprof/analyze/__init__.py`` exports it; another package names it in its entry points, in
    the group ``llmprof.analyses``.
    """

    question: str
    """The question that it answers."""
    help: str
    """Content of its frame in a few words: its line in ``llmprof analyze --help``."""
    view: str
    """Its name on the command line, ``llmprof analyze --what``."""
    recorded: str
    """What its trace must hold: ``kernels and operators``."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the function that its view and the report use."""
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
    def room(self) -> str:
        """Where :mod:`llmprof.analyze` has it: ``npu.``, ``nsys.`` or empty."""
        room = re.search(r"analyze\.(n\w+\.)", self.function.__module__)
        return room[1] if room else ""

    @property
    def grouped(self) -> bool:
        """Whether it takes ``by``."""
        return "by" in inspect.signature(self.function).parameters

    @property
    def needs(self) -> tuple[str, ...]:
        """Required arguments besides the trace, such as ``model``: ``--model`` on the command line.

        Reports, exports and agents, which run all analyses of a trace, leave such an analysis out.
        """
        _, *others = inspect.signature(self.function).parameters.values()
        return tuple(p.name for p in others if p.default is p.empty and p.kind < p.VAR_POSITIONAL)


def declaration(function: Callable[..., pl.DataFrame]) -> Analysis:
    """The declaration of an analysis, from its function."""
    record: Analysis = vars(function)["__record__"]
    return record


SUBJECTS: Final = {
    "Findings and differences": "findings diff",
    "Steps and layers": "steps step_time speculation layers layer_gaps",
    "Communication and overlap": "overlap collectives expert_exchange ranks",
    "Idle time and the host": "idle stream_gaps launch_delay host_pauses host_synchronisation"
    " queue_length",
    "What would be gained": "critical_path opportunities slack what_if",
    "Kernels": "kernels operators operator_calls add_operators fusion concurrency counters"
    " tensor_cores spikes modules",
    "Memory": "memory copies",
    "Call stacks, and sums of a profiler": "hotspots totals stacks",
    "Coverage, and measured time against its bound": "coverage roofline events",
    "Requests": "requests transfer",
}
"""Names of :mod:`llmprof.analyze` by subject, in the order of the catalogue; others follow."""


def _declared() -> Iterator[Analysis]:
    """The analyses that are exported, and those of the rooms for an NPU and Nsight Systems."""
    package = import_module(__package__)
    exported = dict.fromkeys(" ".join(SUBJECTS.values()).split() + package.__all__)
    doors = [(package, exported), *((room, room.__all__) for room in (package.npu, package.nsys))]
    for room, names in doors:
        for name in names:
            if record := getattr(getattr(room, name), "__record__", None):
                yield record


@functools.cache
def analyses() -> tuple[Analysis, ...]:
    """All analyses: those of llmprof, then those of plug-ins that can be loaded, in the order of
    the report.
    """
    own = tuple(_declared())
    others = plugins.new_records(
        plugins.ANALYSES, Analysis, own, lambda added: added.name, "analysis"
    )
    out = list(own)
    for plugin, added in others:
        if any(added.view == other.view for other in out):
            plugins.warn_left_out(
                f"{plugin.name!r} of {plugin.package}",
                plugins.ANALYSES,
                f"the view {added.view!r} is taken",
            )
            continue
        out.append(
            replace(added, package=plugin.package)._of(_guarded(added.function, plugin.package))
        )
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
    """A plug-in's function; errors that are not llmprof's become an error that names the
    plug-in.
    """

    @functools.wraps(function)
    def call(*args: object, **options: object) -> pl.DataFrame:
        try:
            with plugins.foreign():
                return function(*args, **options)
        except plugins.FailedError as error:
            found = f"the analysis {function.__name__!r} of {package} failed: {error}"
            raise AnalysisError(found, hint="report this to its authors") from error

    return call
