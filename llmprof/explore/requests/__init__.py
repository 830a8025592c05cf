"""The explorer of slow requests."""
