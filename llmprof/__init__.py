"""Profiler toolkit for LLM inference: read traces, split them into steps and layers, see where the time goes.

>>> import llmprof
>>> trace = llmprof.sample("torch_tp4_eager_nccl")  # or llmprof.read("folder of rank files")
>>> llmprof.analyze.overlap(trace)

Everything loads on first use, so that ``import llmprof`` costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"

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
    "errors",
    "explore",
    "hardware",
    "launch",
    "metrics",
    "names",
    "profile",
    "read",
    "read_metrics",
    "report",
    "sample",
    "sample_metrics",
    "samples",
    "schema",
    "units",
]

if TYPE_CHECKING:
    from llmprof import analyze, charts, errors, explore, hardware, launch, metrics, names, report, schema, units
    from llmprof.batch import BatchRunner
    from llmprof.bundled import sample, sample_metrics, samples
    from llmprof.cells import profile
    from llmprof.launch import ConfigManager, ExperimentConfig, ExperimentRunner
    from llmprof.metrics_data import Metrics
    from llmprof.readers import read
    from llmprof.readers.ncu import read_metrics
    from llmprof.report import Visualizer
    from llmprof.trace import Trace
else:
    _HOMES = {
        "BatchRunner": "llmprof.batch",
        "ConfigManager": "llmprof.launch",
        "ExperimentConfig": "llmprof.launch",
        "ExperimentRunner": "llmprof.launch",
        "Metrics": "llmprof.metrics_data",
        "Trace": "llmprof.trace",
        "Visualizer": "llmprof.report",
        "profile": "llmprof.cells",
        "read": "llmprof.readers",
        "read_metrics": "llmprof.readers.ncu",
        "sample": "llmprof.bundled",
        "sample_metrics": "llmprof.bundled",
        "samples": "llmprof.bundled",
    }

    def __getattr__(name: str) -> object:
        # PEP 562; the name is kept, so this runs once for each.
        import importlib

        if name in _HOMES:
            value = getattr(importlib.import_module(_HOMES[name]), name)
        elif name in __all__:
            value = importlib.import_module(f"llmprof.{name}")
        else:
            raise AttributeError(f"module 'llmprof' has no attribute {name!r}")
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return [*__all__, "__version__"]


def load_ipython_extension(shell: object) -> None:
    """Add the cell magic ``%%profile``: ``%load_ext llmprof``."""
    import importlib

    # by name, so that nothing that imports llmprof for its version depends on IPython
    importlib.import_module("llmprof.cells").register(shell)
