"""Launching profiled runs: configuration, command lines, the run's folder, and what comes out.

>>> from llmprof.launch import ExperimentConfig, ExperimentRunner
>>> run = ExperimentRunner(ExperimentConfig(model="random:tiny", profile_mode="torch")).run()
>>> run.trace, run.metrics, run.summary

The engine never runs in this process. Everything loads on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = [
    "ConfigManager",
    "ExperimentConfig",
    "ExperimentRunner",
    "Run",
    "RunFolder",
    "clean",
    "open_run",
    "plan",
    "resume",
    "runs",
]

if TYPE_CHECKING:
    from llmprof.launch._listing import clean, runs
    from llmprof.launch.config import ConfigManager, ExperimentConfig
    from llmprof.launch.folder import RunFolder
    from llmprof.launch.run import ExperimentRunner, Run, open_run, plan, resume
else:
    _HOMES = {
        "ConfigManager": "config",
        "ExperimentConfig": "config",
        "ExperimentRunner": "run",
        "Run": "run",
        "RunFolder": "folder",
        "clean": "_listing",
        "open_run": "run",
        "plan": "run",
        "resume": "run",
        "runs": "_listing",
    }

    def __getattr__(name: str) -> object:
        import importlib

        if name not in _HOMES:
            raise AttributeError(f"module 'llmprof.launch' has no attribute {name!r}")
        value = getattr(importlib.import_module(f"llmprof.launch.{_HOMES[name]}"), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return list(__all__)
