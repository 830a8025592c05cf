"""Kernels of a run: sums, places, and the operators that launched them."""
