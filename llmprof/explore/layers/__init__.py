"""Explorer of layers over steps."""
