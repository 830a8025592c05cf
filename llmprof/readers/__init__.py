"""Readers: one file a format, and :func:`read`, which finds the right one and puts the ranks together."""

from llmprof.readers.reading import read

__all__ = ["read"]
