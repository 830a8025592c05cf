"""Scripts of experiments that run by themselves with the Python that has PyTorch; llmprof is not imported there."""
