"""Replay of a recording from its dependencies."""
