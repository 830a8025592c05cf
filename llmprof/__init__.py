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
    "Metrics",
    "Trace",
    "analyze",
    "charts",
    "errors",
    "hardware",
    "metrics",
    "names",
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
    from llmprof import analyze, charts, errors, hardware, metrics, names, report, schema, units
    from llmprof.bundled import sample, sample_metrics, samples
    from llmprof.metrics_data import Metrics
    from llmprof.readers import read
    from llmprof.readers.ncu import read_metrics
    from llmprof.trace import Trace
else:
    _HOMES = {
        "Metrics": "llmprof.metrics_data",
        "Trace": "llmprof.trace",
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
