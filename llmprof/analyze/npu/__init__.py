"""Analyses of NPU recordings, which also work on GPU recordings that hold the same data."""
