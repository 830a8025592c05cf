"""Experiments: what the hardware can do, and how a model scales with length and devices."""
