"""What the commands of the command line do: options in, text or JSON out. Printing is left to ``cli``."""

from __future__ import annotations

from llmprof.commands._analyze import analysis
from llmprof.commands._diff import diff
from llmprof.commands._explore import explore
from llmprof.commands._info import info
from llmprof.commands._launch_options import add_config_options
from llmprof.commands._make import demo, notebook, parameter, report, samples
from llmprof.commands._output import Terminal
from llmprof.commands._redact import redact
from llmprof.commands._run import doctor, run, runs
from llmprof.commands._sweep import sweep
from llmprof.commands._views import VIEWS

__all__ = [
    "VIEWS",
    "Terminal",
    "add_config_options",
    "analysis",
    "demo",
    "diff",
    "doctor",
    "explore",
    "info",
    "notebook",
    "parameter",
    "redact",
    "report",
    "run",
    "runs",
    "samples",
    "sweep",
]
