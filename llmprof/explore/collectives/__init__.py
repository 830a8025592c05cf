"""Explorer of collectives."""
