"""Explorer of slow requests."""
