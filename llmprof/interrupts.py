"""Interrupts (Ctrl-C, the stop button of a notebook) while Python waits for a thread, a process or a pipe."""

from __future__ import annotations

import signal

import polars  # noqa: F401 (what it does to interrupts is undone here, so it comes first)


def end_waits() -> None:
    """Let an interrupt end such a wait.

    From its import on, Polars handles the signal in a way that the system goes on waiting (``SA_RESTART``, issue 21739
    of Polars): Python learns of an interrupt only when the wait has ended. Python itself sets its handler without this.
    """
    if hasattr(signal, "siginterrupt"):  # not on Windows
        signal.siginterrupt(signal.SIGINT, True)
