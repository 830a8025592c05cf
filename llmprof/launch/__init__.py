"""Launches profiled runs: configuration, command lines, the run's folder and its results.

>>> from llmprof.launch import ExperimentConfig, ExperimentRunner
>>> run = ExperimentRunner(ExperimentConfig(model="random:tiny", profile_mode="torch")).run()  # doctest: +SKIP
>>> run.trace, run.requests, run.summary  # doctest: +SKIP

The engine never runs in this process. Everything loads on first use.
"""  # noqa: E501

from llmprof.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__, extra="launch")
