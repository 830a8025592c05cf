"""Samples of call stacks: what Linux perf prints, and folded stacks of any sampler."""
