"""Launches profiled runs: configuration, command lines, the run's folder and its results.

>>> from llmprof.launch import ExperimentConfig, ExperimentRunner
>>> run = ExperimentRunner(ExperimentConfig(model="random:tiny", profile_mode="torch")).run()  # doctest: +SKIP
>>> run.trace, run.requests, run.summary  # doctest: +SKIP

The engine never runs in this process. Everything loads on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmprof.lazy import attach

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
    from llmprof.launch.config.options import ConfigManager, ExperimentConfig
    from llmprof.launch.run.folder import RunFolder, clean, runs
    from llmprof.launch.run.passes import plan
    from llmprof.launch.run.runner import ExperimentRunner, Run, open_run, resume
else:
    __getattr__, __dir__ = attach(
        __name__,
        {
            "ConfigManager": "llmprof.launch.config.options",
            "ExperimentConfig": "llmprof.launch.config.options",
            "RunFolder": "llmprof.launch.run.folder",
            "clean": "llmprof.launch.run.folder",
            "runs": "llmprof.launch.run.folder",
            "ExperimentRunner": "llmprof.launch.run.runner",
            "Run": "llmprof.launch.run.runner",
            "open_run": "llmprof.launch.run.runner",
            "resume": "llmprof.launch.run.runner",
            "plan": "llmprof.launch.run.passes",
        },
        extra="launch",
    )
