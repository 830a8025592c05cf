"""Explorer of many ranks: which ranks are slow, which wait, and when."""
