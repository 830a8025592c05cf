"""Bundled samples for the tests that only look at them: read once in a process, so that analyses
of them are kept.
"""

import functools
import warnings

import llmprof
from llmprof.errors import TraceWarning

_read_sample = llmprof.sample
"""Of this module's import: notebooks in tests have the function below in its place."""


@functools.cache
def sample(name):
    with warnings.catch_warnings():  # samples of several engines are read as such
        warnings.filterwarnings("ignore", r".* beside each other", TraceWarning)
        return _read_sample(name)
