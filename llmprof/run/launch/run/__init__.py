"""A run of an engine: its passes, processes, folder and results."""
