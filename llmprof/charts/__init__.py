"""Charts: a frame of an analysis goes in, an Altair chart comes out.

Charts do no analysis, and only :func:`save` writes a file. A frame without rows, or without the
columns that a chart needs, raises :class:`~llmprof.errors.AnalysisError`. Altair is imported with
the first chart.
"""

from llmprof.lazy import attach, put_off_formats

__getattr__, __dir__, __all__ = attach(__name__, __file__)

put_off_formats()  # Altair, which each chart imports, imports jsonschema
