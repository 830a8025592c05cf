"""Timing operations of your own inside a model that runs in mode ``ops``: a name around a block of code.

It needs Python alone, so code that runs inside the engine can import it there; outside a timed step it does nothing.
"""

from __future__ import annotations

import contextlib
import sys
from contextlib import AbstractContextManager
from typing import Any

_WORKER = "llmprof_worker"


def time(name: str) -> AbstractContextManager[None]:
    """Time what is done inside, under a name.

    Parameters
    ----------
    name : str
        The operation is called so in the timings, with kind ``user``.

    Returns
    -------
    context manager
        It does nothing where no timing is open, or where this step or layer is not sampled.

    Examples
    --------
    >>> with time("my_op"):
    ...     pass
    """
    timers = _timers()
    if not timers:
        return contextlib.nullcontext()
    timing: AbstractContextManager[None] = timers[0].named(name)
    return timing


def _timers() -> list[Any]:
    """Timers whose window is open in this process: at most one, in the module that a run gives to the workers."""
    active: list[Any] = getattr(sys.modules.get(_WORKER), "ACTIVE", [])
    return active
