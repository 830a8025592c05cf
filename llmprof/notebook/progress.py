"""Saying in a notebook how far something is."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from html import escape
from typing import Any

from llmprof.progress import Progress

EVERY_S = 0.2
"""Least time between two showings of the same words."""


@contextlib.contextmanager
def told(name: str) -> Iterator[Progress | None]:
    """Progress as one output of the cell that changes; None outside a notebook.

    Parameters
    ----------
    name : str
        What is being done.

    Yields
    ------
    callable or None
        Called with what is being done, how much is done, and of how much (0: unknown).
    """
    if not in_notebook():
        yield None
        return
    from IPython.display import HTML, DisplayHandle

    handle: Any = DisplayHandle()  # type: ignore[no-untyped-call]
    begun = time.monotonic()
    shown, at = "", 0.0

    def show(words: str, bar: str = "", *, first: bool = False) -> None:
        text = f"{name}: {words} ({time.monotonic() - begun:.0f} s)"
        bundle = HTML(f'<span role="status">{bar}{escape(text)}</span>')  # type: ignore[no-untyped-call]
        (handle.display if first else handle.update)(bundle)

    def tell(what: str, done: int, total: int) -> None:
        nonlocal shown, at
        now = time.monotonic()
        if what != shown or now - at >= EVERY_S:
            shown, at = what, now
            bar = f'<progress max="{total}" value="{done}" aria-hidden="true"></progress> ' if total > 1 else ""
            show(f"{what}{f', {done:,} of {total:,}' if total > 1 else ''}", bar)

    show("starting", first=True)
    try:
        yield tell
    except BaseException as error:
        show("interrupted" if isinstance(error, KeyboardInterrupt) else "failed")
        raise
    show("finished")


def in_notebook() -> bool:
    """Whether this is a kernel, whose output can be replaced."""
    shell = sys.modules.get("IPython")
    active = shell.get_ipython() if shell is not None else None
    return active is not None and hasattr(active, "kernel")
