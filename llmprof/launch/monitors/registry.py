"""The list of monitors: a new one is its own module, and one line here."""

from __future__ import annotations

from typing import Final

from llmprof import plugins
from llmprof.launch.monitors.table import Monitor

BUILT_IN: Final = (
    "llmprof.launch.monitors.nvml:MONITOR",
    "llmprof.launch.monitors.host:HOST",
    "llmprof.launch.monitors.host:PROCESSES",
)
"""Monitors in the order in which they sample, written as an entry point is."""


def monitors() -> tuple[Monitor, ...]:
    """All monitors.

    >>> [one.name for one in monitors()]
    ['GPUs', 'host', 'processes']
    """
    return plugins.listed(BUILT_IN, Monitor)
