"""Bundled samples for the tests that only look at them: read once in a process, so that analyses
of them are kept.
"""

import functools
import warnings

import llmprof
from llmprof.errors import TraceWarning


@functools.cache
def sample(name):
    with warnings.catch_warnings():  # samples of several engines are read as such
        warnings.filterwarnings("ignore", r".* beside each other", TraceWarning)
        return llmprof.sample(name)
