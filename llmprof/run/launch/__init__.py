"""Launches profiled runs: configuration, command lines, the run's folder and its results.

>>> from llmprof.run.launch import ExperimentConfig, ExperimentRunner
>>> run = ExperimentRunner(ExperimentConfig(model="random:tiny", profile_mode="torch")).run()  # doctest: +SKIP
>>> run.trace, run.requests, run.summary  # doctest: +SKIP

The engine never runs in this process. Everything loads on first use.
"""  # noqa: E501

from typing import TYPE_CHECKING

from llmprof.errors import door
from llmprof.run.launch.config.options import ConfigManager, ExperimentConfig
from llmprof.run.launch.run.folder import RunFolder, clean, runs
from llmprof.run.launch.run.passes import plan
from llmprof.run.launch.run.runner import ExperimentRunner, Run, open_run, resume

if TYPE_CHECKING:
    from llmprof.run.launch.run.requests import overhead, summarize

door(globals(), {"run.launch.run.requests": "overhead summarize"})
