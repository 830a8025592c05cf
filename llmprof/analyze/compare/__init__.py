"""Comparison of two runs: the change of the step time, by parts and by kernels."""
