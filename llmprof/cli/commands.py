"""The commands of the command line: options in, text or JSON out. Printing is left to ``main``."""

from __future__ import annotations

from llmprof.cli.analyze import analysis, diff, findings, info
from llmprof.cli.experiment import add_experiment_options, experiment
from llmprof.cli.make import demo, explore, export, mcp, notebook, parameter, redact, report, samples
from llmprof.cli.output import Terminal
from llmprof.cli.run import add_config_options, config, doctor, run, runs, sweep
from llmprof.cli.theory import add_theory_options, theory

__all__ = [
    "Terminal",
    "add_config_options",
    "add_experiment_options",
    "add_theory_options",
    "analysis",
    "config",
    "demo",
    "diff",
    "doctor",
    "experiment",
    "explore",
    "export",
    "findings",
    "info",
    "mcp",
    "notebook",
    "parameter",
    "redact",
    "report",
    "run",
    "runs",
    "samples",
    "sweep",
    "theory",
]
