"""Results are kept with the trace that they came from, which does not change, and each caller gets a copy.

A copy of a frame shares its columns, so it costs microseconds and no memory.
"""

from __future__ import annotations

import functools
import inspect
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

import polars as pl

from llmprof import names
from llmprof.errors import NotCapturedError
from llmprof.trace import Trace

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
