"""Readers of what monitors print: nvidia-smi, gpustat, dstat, dool, sar and sadf."""
