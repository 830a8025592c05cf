"""Bundled samples for the tests that only look at them: read once in a process, so that analyses
of them are kept.
"""

import functools

import llmprof

sample = functools.cache(llmprof.sample)
