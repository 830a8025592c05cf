"""Results are kept with the trace they came from: a trace does not change. A column it was read without is named."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

import polars as pl

from llmprof import names
from llmprof.errors import NotCapturedError
from llmprof.trace import Trace

P = ParamSpec("P")
R = TypeVar("R")


def per_trace(function: Callable[Concatenate[Trace, P], R]) -> Callable[Concatenate[Trace, P], R]:
    """Compute once per trace and arguments; patterns registered in between make it compute again."""

    @functools.wraps(function)
    def cached(trace: Trace, /, *args: P.args, **kwargs: P.kwargs) -> R:
        key = (function.__module__, function.__qualname__, args, tuple(sorted(kwargs.items())), names.version())
        try:
            hash(key)
        except TypeError:
            return _explained(function, trace, *args, **kwargs)
        if key not in trace._memo:
            trace._memo[key] = _explained(function, trace, *args, **kwargs)
        result: R = trace._memo[key]
        return result

    return cached


def _explained(function: Callable[Concatenate[Trace, P], R], trace: Trace, /, *args: P.args, **kwargs: P.kwargs) -> R:
    try:
        return function(trace, *args, **kwargs)
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
