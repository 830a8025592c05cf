"""Charts: a frame of an analysis goes in, an Altair chart comes out.

Nothing is analysed here, and nothing is read or written except by :func:`save`. A frame without rows, or without
the columns that a chart needs, raises :class:`~llmprof.errors.AnalysisError`. Altair is imported when the first
chart is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llmprof.charts._all_reduce import all_reduce
    from llmprof.charts._breakdown import breakdown
    from llmprof.charts._counters import counters
    from llmprof.charts._cuda_api import cuda_api
    from llmprof.charts._dashboard import dashboard
    from llmprof.charts._diff import diff
    from llmprof.charts._idle import idle
    from llmprof.charts._kernel_time import kernel_time
    from llmprof.charts._kernels import kernels
    from llmprof.charts._launch_delay import launch_delay
    from llmprof.charts._layer_heatmap import layer_heatmap
    from llmprof.charts._overlap import overlap
    from llmprof.charts._request_latency import request_latency
    from llmprof.charts._requests import requests
    from llmprof.charts._roofline import roofline
    from llmprof.charts._save import save, to_html, to_png_bytes
    from llmprof.charts._stalls import stalls
    from llmprof.charts._sweep import sweep_latency, sweep_throughput
    from llmprof.charts._sweep_scaling import sweep_scaling
    from llmprof.charts._sweep_time import sweep_time
    from llmprof.charts._timeline import timeline

__all__ = [
    "all_reduce",
    "breakdown",
    "counters",
    "cuda_api",
    "dashboard",
    "diff",
    "idle",
    "kernel_time",
    "kernels",
    "launch_delay",
    "layer_heatmap",
    "overlap",
    "request_latency",
    "requests",
    "roofline",
    "save",
    "stalls",
    "sweep_latency",
    "sweep_scaling",
    "sweep_throughput",
    "sweep_time",
    "timeline",
    "to_html",
    "to_png_bytes",
]

_HOMES = {"to_html": "_save", "to_png_bytes": "_save", "sweep_latency": "_sweep", "sweep_throughput": "_sweep"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES.get(name, f'_{name}')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
