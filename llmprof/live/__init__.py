"""Servers that run already: a window of one recorded, the bad moment waited for, and what changed
since a good one.

>>> import llmprof
>>> run = llmprof.record("http://127.0.0.1:8000", seconds=3)  # doctest: +SKIP
>>> llmprof.watch("http://127.0.0.1:8000", "ttft_p99 > 500ms for 30s")  # doctest: +SKIP
"""

from llmprof.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__, extra="watch")
