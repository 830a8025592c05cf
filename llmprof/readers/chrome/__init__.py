"""Reader of Chrome trace JSON, written by any version of the PyTorch profiler and by tools with
the same format.
"""
