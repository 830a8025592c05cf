"""Launches profiled runs: configuration, command lines, the run's folder and its results.

>>> from llmprof.run.launch import ExperimentConfig, ExperimentRunner
>>> run = ExperimentRunner(ExperimentConfig(model="random:tiny", profile_mode="torch")).run()  # doctest: +SKIP
>>> run.trace, run.requests, run.summary  # doctest: +SKIP

The engine never runs in this process. Everything loads on first use.
"""  # noqa: E501

from llmprof.errors import door
from llmprof.run.launch.config.options import ConfigManager, ExperimentConfig
from llmprof.run.launch.run.folder import RunFolder, clean, runs
from llmprof.run.launch.run.passes import plan
from llmprof.run.launch.run.runner import ExperimentRunner, Run, open_run, resume

door(globals())
