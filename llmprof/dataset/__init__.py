"""Traces of many ranks: a dataset on disk, workers that make and analyse it, and synthetic large runs."""

from llmprof.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
