"""A run: its passes, processes, folder and results."""
