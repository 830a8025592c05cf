"""The record of an analysis (its question, view and charts), and its results, which are kept with the trace."""

from __future__ import annotations

import functools
import inspect
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, Concatenate, Final, Literal, ParamSpec, TypeVar

import polars as pl

from llmprof import names
from llmprof.errors import NotCapturedError
from llmprof.plugins import Place
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
    only_with: str = ""
    """Table without which a report leaves the analysis out, where others say that it was not recorded."""
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
"""Results of a trace are kept up to so many bytes …"""

KEPT_OF_TRACE: Final = 4
"""… or up to so many times the size of its tables, if that is more; what was not used for longest goes first."""


class Results:
    """Results of analyses of one trace, by function and arguments.

    Parameters
    ----------
    most_bytes : int
        How much is kept. A result that is larger is not kept at all. Frames that share columns count in full each.
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
        """Keep a result, and drop those that were not used for longest until all fit."""
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
    """What is kept of a trace."""
    if trace._results is None:
        size = sum(int(frame.estimated_size()) for frame in trace._tables.values())
        trace._results = Results(max(LEAST_KEPT, KEPT_OF_TRACE * size))
    results: Results = trace._results
    return results


def per_trace(function: Callable[Concatenate[Trace, P], R]) -> Callable[Concatenate[Trace, P], R]:
    """Compute once for each trace and arguments; names registered in between make it compute again.

    Arguments count as equal however they are given: by position, by keyword or left out. A frame is returned as a
    copy that the caller may change.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def cached(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        trace, *others = bound.arguments.values()
        try:
            key = (function.__module__, function.__qualname__, tuple(map(_frozen, others)), names.version())
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


def _frozen(value: Any) -> Any:
    """A value as part of a key: lists as tuples, mappings as their items."""
    if isinstance(value, list | tuple):
        return tuple(map(_frozen, value))
    if isinstance(value, Mapping):
        return tuple((key, _frozen(value[key])) for key in sorted(value))
    return value


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
