"""Experiments: measure the bandwidth of the hardware, and the scaling of a model with length and
devices.
"""
