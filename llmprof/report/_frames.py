"""Frames of the analyses that a report writes as CSV, and what could not be answered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl

from llmprof import analyze
from llmprof.errors import AnalysisError, NotCapturedError
from llmprof.report._parts import Absent
from llmprof.trace import Trace

ANALYSES: dict[str, dict[str, Any]] = {
    "findings": {},
    "coverage": {},
    "steps": {},
    "layers": {},
    "overlap": {"by": ("rank", "step", "phase")},
    "collectives": {},
    "idle": {},
    "launch_delay": {},
    "kernel_summary": {},
    "ops_to_kernels": {},
}
"""Options of each analysis by its name, which is also that of its file; in the order of the page."""


def run(name: str, trace: Trace) -> pl.DataFrame | Absent:
    """Frame of an analysis of :data:`ANALYSES`, or why there is none."""
    analysis: Callable[..., pl.DataFrame] = getattr(analyze, name)
    return attempt(name, lambda: analysis(trace, **ANALYSES[name]))


def attempt(part: str, make: Callable[[], pl.DataFrame]) -> pl.DataFrame | Absent:
    """What a function returns, or why it cannot: only errors that say so on purpose are taken for an answer."""
    try:
        return make()
    except NotCapturedError as error:
        return Absent(part, captured=False, found=error.found, hint=error.hint)
    except AnalysisError as error:
        return Absent(part, captured=True, found=error.found, hint=error.hint)
