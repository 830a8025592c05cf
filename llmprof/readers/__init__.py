"""Readers: one file a format, and :func:`read`, which finds the right one and puts the ranks together."""

from llmprof.readers._read import read

__all__ = ["read"]
