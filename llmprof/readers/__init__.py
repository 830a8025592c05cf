"""Readers of all formats, and :func:`read`, which chooses the reader by the content and joins
the ranks.
"""

from llmprof.readers.reading import read

__all__ = ["read"]
