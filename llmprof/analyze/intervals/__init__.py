"""Arithmetic on sets of time intervals."""
