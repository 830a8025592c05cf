"""Trials: make a change that a finding advises, measure it fairly, and say whether the prediction
was right.

>>> trials.remedies(run)  # what can be tried, and why the rest cannot  # doctest: +SKIP
>>> verdict = llmprof.trial(run, "graphs", until=0.02)  # two engines, measured in turn  # doctest: +SKIP
>>> verdict.says, verdict.effects  # in words, and by metric  # doctest: +SKIP
"""  # noqa: E501

from llmprof.errors import door
from llmprof.run.trials.capacity import Goodput, goodput
from llmprof.run.trials.gains import effects, tokens_equal
from llmprof.run.trials.measure import trial
from llmprof.run.trials.settings import REMEDIES, Remedy, remedies
from llmprof.run.trials.study import Study, open_study
from llmprof.run.trials.tuning import tune
from llmprof.run.trials.verdict import Verdict, calibration, open_trial

door(globals())
