"""CSV reports of Intel VTune Profiler."""
