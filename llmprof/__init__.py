"""Profiler toolkit for LLM inference: read traces, split them into steps and layers, see where the time goes.

>>> import llmprof
>>> trace = llmprof.sample("torch_tp4_eager_nccl")  # or llmprof.read("folder of rank files")
>>> overlap = llmprof.analyze.overlap(trace)

Modules are imported at their first use, so that ``import llmprof`` takes almost no time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmprof.lazy import attach
from llmprof.version import __version__ as __version__

__all__ = [
    "BatchRunner",
    "ConfigManager",
    "ExperimentConfig",
    "ExperimentRunner",
    "Metrics",
    "Trace",
    "Visualizer",
    "analyze",
    "charts",
    "convert",
    "errors",
    "explore",
    "hardware",
    "launch",
    "map",
    "metrics",
    "names",
    "open",
    "profile",
    "read",
    "read_metrics",
    "read_requests",
    "read_source",
    "replay",
    "report",
    "sample",
    "sample_metrics",
    "samples",
    "schema",
    "theory",
    "units",
]

if TYPE_CHECKING:
    from llmprof.batch import BatchRunner
    from llmprof.bundled import sample, sample_metrics, samples
    from llmprof.dataset import convert, map, open  # noqa: A004
    from llmprof.launch import ConfigManager, ExperimentConfig, ExperimentRunner
    from llmprof.metrics.data import Metrics
    from llmprof.notebook.cell import profile
    from llmprof.operator_replay import replay
    from llmprof.readers import read
    from llmprof.readers.ncu.reader import read_metrics
    from llmprof.readers.ncu.source import read_source
    from llmprof.readers.otlp import read_requests
    from llmprof.report import Visualizer
    from llmprof.trace import Trace
else:
    __getattr__, __dir__ = attach(
        __name__,
        {
            "BatchRunner": "llmprof.batch",
            "ConfigManager": "llmprof.launch",
            "ExperimentConfig": "llmprof.launch",
            "ExperimentRunner": "llmprof.launch",
            "Metrics": "llmprof.metrics.data",
            "Trace": "llmprof.trace",
            "Visualizer": "llmprof.report",
            "convert": "llmprof.dataset",
            "map": "llmprof.dataset",
            "open": "llmprof.dataset",
            "profile": "llmprof.notebook.cell",
            "read": "llmprof.readers",
            "read_metrics": "llmprof.readers.ncu.reader",
            "read_requests": "llmprof.readers.otlp",
            "read_source": "llmprof.readers.ncu.source",
            "replay": "llmprof.operator_replay",
            "sample": "llmprof.bundled",
            "sample_metrics": "llmprof.bundled",
            "samples": "llmprof.bundled",
            "analyze": None,
            "charts": None,
            "errors": None,
            "explore": None,
            "hardware": None,
            "launch": None,
            "metrics": None,
            "names": None,
            "report": None,
            "schema": None,
            "theory": None,
            "units": None,
        },
    )


def load_ipython_extension(shell: object) -> None:
    """Add the cell magic ``%%profile``: ``%load_ext llmprof``."""
    import importlib

    # imported by name, so that an import of llmprof for its version does not need IPython
    importlib.import_module("llmprof.notebook.cell").register(shell)
