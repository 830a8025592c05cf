"""Runs of engines: launched, swept, tried, recorded where they serve, and timed by operator."""
