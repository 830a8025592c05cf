"""Replay of operators: a script runs an operator of a recording alone; its time is compared with the recorded one."""

from llmprof.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
