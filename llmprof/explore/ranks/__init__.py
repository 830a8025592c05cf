"""Explorer of many ranks: who is slow, who waits, and when."""
