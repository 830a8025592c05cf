"""Results are kept with the trace they came from: a trace does not change."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from llmprof import names
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
            return function(trace, *args, **kwargs)
        if key not in trace._memo:
            trace._memo[key] = function(trace, *args, **kwargs)
        result: R = trace._memo[key]
        return result

    return cached
