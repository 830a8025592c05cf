"""Times blocks of your code inside a model that runs in mode ``ops``, under a name that you choose.

The module needs only Python, so code inside the engine can import it. Outside a timed step it does
nothing.
"""

from __future__ import annotations

import contextlib
import sys
from contextlib import AbstractContextManager
from typing import Any

_WORKER = "llmprof_engine.ops_timer"


def time(name: str) -> AbstractContextManager[None]:
    """Time the code inside a ``with`` block."""
    timers = _timers()
    if not timers:
        return contextlib.nullcontext()
    timing: AbstractContextManager[None] = timers[0].named(name)
    return timing


def _timers() -> list[Any]:
    """Timers of the current step in this process, at most one; they are in a module that workers
    of an engine import.
    """
    active: list[Any] = getattr(sys.modules.get(_WORKER), "ACTIVE", [])
    return active
