"""Readers of the output of monitors: nvidia-smi, gpustat, dstat, dool, sar and sadf."""
