"""Readers of PyTorch's memory: snapshots of the allocator, and memory timelines of the profiler."""
