"""Explorer of two traces."""
