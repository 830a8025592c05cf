"""Explorers: widgets for JupyterLab, Notebook and VS Code that show a trace and return selections
as Polars frames.

Each function returns a widget; show it as the last line of a cell. Explorers need
``llmprof[notebook]``, and no network.
"""

from llmprof.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__, extra="notebook")
