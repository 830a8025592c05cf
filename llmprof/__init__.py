"""Profiler toolkit for LLM inference: read traces, split them into steps and layers, see where the
time goes.

>>> import llmprof
>>> trace = llmprof.sample("torch_tp4_eager_nccl")  # or llmprof.read("folder of rank files")
>>> overlap = llmprof.analyze.overlap(trace)

Modules are imported at their first use, so that ``import llmprof`` takes almost no time.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from llmprof import analyze, charts, errors, explore, names, report, theory, units
    from llmprof.readers import read
    from llmprof.readers.bundled import (
        notebook_data,
        sample,
        sample_metrics,
        samples,
        synthetic_npu,
        synthetic_ranks,
    )
    from llmprof.readers.ncu.reader import read_metrics
    from llmprof.readers.ncu.source import read_source
    from llmprof.readers.otlp import read_requests
    from llmprof.report import Visualizer
    from llmprof.report.dataset import convert, map, open  # type: ignore[no-redef]
    from llmprof.run import batch, experiments, launch, operator_timing, ops
    from llmprof.run.batch.runner import BatchRunner, sweep
    from llmprof.run.launch import ConfigManager, ExperimentConfig, ExperimentRunner
    from llmprof.run.launch.doctor.doctor import doctor
    from llmprof.run.live import record, watch
    from llmprof.run.notebook.cell import profile
    from llmprof.run.operator_timing import time_operators
    from llmprof.run.trials import remedies, trial, tune
    from llmprof.theory import hardware
    from llmprof.trace import Trace, metrics, schema
    from llmprof.trace.metrics.data import Metrics

# where each name is, so that `import llmprof` imports none of them
_EXPORTS = {
    "": "analyze charts errors explore names report theory units",
    "readers": "read",
    "readers.bundled": "notebook_data sample sample_metrics samples synthetic_npu synthetic_ranks",
    "readers.ncu.reader": "read_metrics",
    "readers.ncu.source": "read_source",
    "readers.otlp": "read_requests",
    "report": "Visualizer",
    "report.dataset": "convert map open",
    "run": "batch experiments launch operator_timing ops",
    "run.batch.runner": "BatchRunner sweep",
    "run.launch": "ConfigManager ExperimentConfig ExperimentRunner",
    "run.launch.doctor.doctor": "doctor",
    "run.live": "record watch",
    "run.notebook.cell": "profile",
    "run.operator_timing": "time_operators",
    "run.trials": "remedies trial tune",
    "theory": "hardware",
    "trace": "Trace metrics schema",
    "trace.metrics.data": "Metrics",
}
_EXTRAS = {"explore": "notebook", "run.live": "watch", "run.launch": "launch"}
_PLACES = {name: place for place, names in _EXPORTS.items() for name in names.split()}
__all__ = list(_PLACES)  # noqa: PLE0605, RUF100


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module 'llmprof' has no attribute {name!r}")
    place = _PLACES[name]
    room = f"{__name__}.{place}".rstrip(".")
    try:
        value = getattr(import_module(room), name, None) if place else None
        value = import_module(f"{room}.{name}") if value is None else value
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get(place or name)
        if extra is None or (error.name or "").startswith("llmprof"):
            raise
        needs = f"llmprof.{name} needs {error.name}, which is not installed"
        raise ModuleNotFoundError(
            f"{needs}: pip install 'llmprof[{extra}]'", name=error.name
        ) from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__


def load_ipython_extension(shell: object) -> None:
    """Add the cell magic ``%%profile``, and show frames with units: ``%load_ext llmprof``."""
    # imported here, so that an import of llmprof for its version does not need IPython
    from llmprof.run.notebook.cell import register_magic

    register_magic(shell)
