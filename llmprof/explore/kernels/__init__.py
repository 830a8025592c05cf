"""Explorer of kernels."""
