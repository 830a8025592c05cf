"""Analyses: functions that take a trace and return a Polars frame, which the caller may change.

``docs/analyses.md`` lists them with the questions that they answer. Summaries under the names of
Nsight Systems are in :mod:`llmprof.analyze.nsys`, changes for :func:`what_if` in
:mod:`llmprof.analyze.changes`.
"""

from __future__ import annotations

import pkgutil

from llmprof.lazy import attach

_own, __dir__, __all__ = attach(__name__, __file__)


def __getattr__(name: str) -> object:
    """An analysis of llmprof, or one that a plug-in adds, by the name of its function."""
    others = name.isidentifier() and not name.startswith(
        "_"
    )  # than what Python and its tools ask of each module
    if (
        name not in __all__
        and others
        and name not in {module.name for module in pkgutil.iter_modules(__path__)}
    ):
        from llmprof.analyze.catalog import analyses

        for entry in analyses():
            if entry.name == name:
                return entry.function
    return _own(name)
