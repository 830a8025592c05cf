"""Traces of Perfetto in its own binary form."""
