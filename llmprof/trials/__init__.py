"""Trials: make a change that a finding advises, measure it fairly, and say whether the prediction
was right.

>>> trials.remedies(run)  # what can be tried, and why the rest cannot  # doctest: +SKIP
>>> verdict = llmprof.trial(run, "graphs", until=0.02)  # two engines, measured in turn  # doctest: +SKIP
>>> verdict.says, verdict.effects  # in words, and by metric  # doctest: +SKIP
"""  # noqa: E501

from llmprof.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
