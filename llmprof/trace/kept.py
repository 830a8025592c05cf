"""Results that a trace keeps: what was computed of it once is not computed again."""

from __future__ import annotations

import functools
import inspect
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Concatenate, Final, ParamSpec, TypeVar, cast

import polars as pl

from llmprof import names
from llmprof.errors import NotCapturedError
from llmprof.trace import schema
from llmprof.trace.storage.deferred import Deferred
from llmprof.trace.trace import Trace

P = ParamSpec("P")
R = TypeVar("R")

LEAST_KEPT: Final = 1 << 30
"""Results of a trace are kept up to this size in bytes …"""

KEPT_OF_TRACE: Final = 4
"""… or up to this multiple of the size of its tables, if that is more; least recently used results
are dropped first.
"""


class KeptResults:
    """Results of analyses of one trace, up to ``most_bytes``; frames that share columns each
    count in full.
    """

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.bytes = 0
        self.made_elsewhere = False
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
        parts = result if isinstance(result, tuple) else (result,)
        size = sum(
            int(part.estimated_size())
            for part in parts
            if isinstance(part, pl.DataFrame | pl.Series)
        )
        if size > self.most_bytes:
            return
        with self._lock:
            self.bytes += size - self._kept.pop(key, (None, 0))[1]
            self._kept[key] = (result, size)
            while self.bytes > self.most_bytes:
                self.bytes -= self._kept.popitem(last=False)[1][1]

    def __len__(self) -> int:
        return len(self._kept)


def results_of(trace: Trace) -> KeptResults:
    """Cached results of a trace."""
    if trace._results is None:
        tables = trace._tables
        size = (
            0
            if isinstance(tables, Deferred)
            else sum(int(frame.estimated_size()) for frame in tables.values())
        )
        trace._results = KeptResults(max(LEAST_KEPT, KEPT_OF_TRACE * size))
    results: KeptResults = trace._results
    return results


def per_trace(function: Callable[Concatenate[Trace, P], R]) -> Callable[Concatenate[Trace, P], R]:
    """Decorator: compute once for a trace and arguments, and again after names were registered;
    return copies.
    """
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
    return trace, (
        function.__module__,
        function.__qualname__,
        tuple(map(frozen, others)),
        names.table_fingerprint(),
    )


def frozen(value: Any) -> Any:
    """A value as part of a key: lists as tuples, mappings as their items."""
    if isinstance(value, list | tuple):
        return tuple(map(frozen, value))
    return (
        tuple((key, frozen(value[key])) for key in sorted(value))
        if isinstance(value, Mapping)
        else value
    )


def keep(trace: Trace, function: Callable[..., Any], result: pl.DataFrame, **options: Any) -> None:
    """Keep a result that was computed elsewhere, as if :func:`per_trace` had computed it."""
    _, key = _key(function, inspect.signature(function).bind(trace, **options))
    results_of(trace).put(key, result)
    results_of(trace).made_elsewhere = True


def _explained(function: Callable[..., R], trace: Trace, bound: inspect.BoundArguments) -> R:
    try:
        result = function(*bound.args, **bound.kwargs)
    except pl.exceptions.ColumnNotFoundError as error:
        if not any(columns is not None for columns in (trace.capture.asked or {}).values()):
            raise
        named = re.search(r'"(\w+)"', str(error))
        raise NotCapturedError(
            f"this trace was read without the column {named[1] if named else error}",
            expected=f"what {function.__name__} needs beside {trace.capture.asked}",
            hint="read the file again with that column among tables=, or without tables=",
            table="",
        ) from error
    return cast("R", schema.compact(result)) if isinstance(result, pl.DataFrame) else result
