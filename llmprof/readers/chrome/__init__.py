"""Reader of Chrome trace JSON: PyTorch profiler of any year on any device, and tools that write the same format."""
