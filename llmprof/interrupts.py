"""Interrupts (Ctrl-C, the stop button of a notebook) while Python waits for a thread, a process
or a pipe.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator

import polars  # noqa: F401 (what it does to interrupts is undone here, so it comes first)


def end_waits() -> None:
    """Let an interrupt end such a wait."""
    # From its import on, Polars handles the signal in a way that the system goes on waiting
    # (`SA_RESTART`, issue 21739 of Polars): Python learns of an interrupt only when the wait has
    # ended. Python itself sets its handler without this.
    if hasattr(signal, "siginterrupt"):  # not on Windows
        signal.siginterrupt(signal.SIGINT, True)


@contextlib.contextmanager
def noticed() -> Iterator[Callable[[], bool]]:
    """Yield a function that tells whether a signal came since, as opposed to code that raises
    ``KeyboardInterrupt``.
    """
    # Python writes the number of each signal that arrives to a file descriptor. A handler would
    # displace that of Polars, by which an interrupt stops a query.
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False  # Python raises what a signal causes in the main thread only
        return
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        arrived = bytearray()

        def interrupted() -> bool:
            with contextlib.suppress(BlockingIOError):
                arrived.extend(ours.recv(4096))
            return not {signal.SIGINT, signal.SIGTERM}.isdisjoint(arrived)

        before = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
        try:
            yield interrupted
        finally:
            signal.set_wakeup_fd(before)
            interrupted()
            if before != -1 and arrived:
                with contextlib.suppress(OSError):
                    os.write(before, arrived)
