"""Times of operators alone: a script runs operators of a recording, and its times are compared
with the recorded.
"""

from llmprof.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
