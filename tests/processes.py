"""Processes that a test started and whose end it waits for."""

import contextlib
import time

import psutil


def still_running(processes, seconds=180):
    """Those of some processes that have not ended after a while; one that nobody waits for (a
    zombie) has ended.
    """
    until = time.monotonic() + seconds
    left = list(processes)
    while (left := [process for process in left if _runs(process)]) and time.monotonic() < until:
        time.sleep(0.05)
    return left


def _runs(process):
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def is_running(pid):
    """Whether a process is there and not only its remains."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return _runs(psutil.Process(pid))
    return False


def gone(pid):
    """Whether a process ends; a busy machine may need a while."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return not still_running([psutil.Process(pid)], 300)
    return True
