"""Profiler toolkit for LLM inference: read traces, split them into steps and layers, see where the
time goes.

>>> import llmprof
>>> trace = llmprof.sample("torch_tp4_eager_nccl")  # or llmprof.read("folder of rank files")
>>> overlap = llmprof.analyze.overlap(trace)

Modules are imported at their first use, so that ``import llmprof`` takes almost no time.
"""

from __future__ import annotations

from llmprof.lazy import attach
from llmprof.version import __version__ as __version__

__getattr__, __dir__, __all__ = attach(__name__, __file__)


def load_ipython_extension(shell: object) -> None:
    """Add the cell magic ``%%profile``: ``%load_ext llmprof``."""
    import importlib

    # imported by name, so that an import of llmprof for its version does not need IPython
    importlib.import_module("llmprof.notebook.cell").register(shell)
