"""Traces of many ranks: a dataset on disk, and workers that make and analyse it."""

from llmprof.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
