"""Theory: parameters, FLOPs, bytes, memory and lower bounds of times of a model on a machine, from
its config alone.

>>> from llmprof import theory
>>> theory.profile("Qwen3-8B", "H200", batch_size=8).decode_latency_s < 0.005
True
"""

from llmprof.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
