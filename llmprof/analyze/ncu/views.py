"""Views of a report of Nsight Compute: ``llmprof analyze report.ncu-rep --what speed-of-light`` and the like."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import polars as pl

from llmprof.analyze.ncu.lines import hot_lines
from llmprof.analyze.ncu.speed_of_light import speed_of_light, stalls
from llmprof.metrics.data import Metrics


class View(NamedTuple):
    """A view: what makes its frame, of metrics or of the instructions in a report."""

    help: str
    of_metrics: Callable[[Metrics], pl.DataFrame] | None = None
    of_source: Callable[[pl.DataFrame], pl.DataFrame] | None = None


VIEWS: Final = {
    "speed-of-light": View("ncu: how near each kernel comes to the peaks, and what bounds it", speed_of_light),
    "stalls": View("ncu: what the warps of each kernel wait for", stalls),
    "rules": View("ncu: what the profiler's own rules said", lambda metrics: metrics.rules),
    "launches": View("ncu: the launches that were measured", lambda metrics: metrics.kernels),
    "metrics": View("ncu: every metric of every launch", lambda metrics: metrics.metrics),
    "hot-lines": View("ncu: lines of each kernel by samples of its warps", of_source=hot_lines),
}
"""Views by their name on the command line."""
