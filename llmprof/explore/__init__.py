"""Explorers: widgets for JupyterLab, Notebook and VS Code that show a trace and return selections as Polars frames.

Each function returns a widget; show it as the last line of a cell. Explorers need ``llmprof[notebook]``, and no
network.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmprof.lazy import attach

__all__ = [
    "all_reduce",
    "compare",
    "kernels",
    "layers",
    "link",
    "open",
    "overlap",
    "ranks",
    "requests",
    "theory",
    "timeline",
    "what_if",
]

if TYPE_CHECKING:
    from llmprof.explore.base.widget import link
    from llmprof.explore.collectives.explorer import all_reduce
    from llmprof.explore.compare.explorer import compare
    from llmprof.explore.kernels.explorer import kernels
    from llmprof.explore.layers.explorer import layers
    from llmprof.explore.overlap.explorer import overlap
    from llmprof.explore.ranks.explorer import ranks
    from llmprof.explore.requests.explorer import requests
    from llmprof.explore.tabs import open  # noqa: A004
    from llmprof.explore.theory import theory
    from llmprof.explore.timeline.explorer import timeline
    from llmprof.explore.what_if.explorer import what_if
else:
    __getattr__, __dir__ = attach(
        __name__,
        {
            "all_reduce": "llmprof.explore.collectives.explorer",
            "compare": "llmprof.explore.compare.explorer",
            "kernels": "llmprof.explore.kernels.explorer",
            "layers": "llmprof.explore.layers.explorer",
            "link": "llmprof.explore.base.widget",
            "open": "llmprof.explore.tabs",
            "overlap": "llmprof.explore.overlap.explorer",
            "ranks": "llmprof.explore.ranks.explorer",
            "requests": "llmprof.explore.requests.explorer",
            "theory": "llmprof.explore.theory",
            "timeline": "llmprof.explore.timeline.explorer",
            "what_if": "llmprof.explore.what_if.explorer",
        },
        extra="notebook",
    )
