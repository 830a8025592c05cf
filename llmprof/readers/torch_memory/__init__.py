"""Memory of PyTorch's allocator: snapshots, and timelines of the profiler."""
