"""Summaries of Nsight Systems from any trace, with the names that ``nsys stats`` and its recipes
use.

Columns have the order and meaning of nsys's, with three differences: shares are fractions and not
percentages, means are not rounded, and sizes are in bytes. ``by=("rank",)`` groups by columns of
the summed rows first.
"""

from llmprof.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
