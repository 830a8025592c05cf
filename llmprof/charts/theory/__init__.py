"""Charts of theory: a model's structure and costs, its latencies over a range, and measured time against its bound."""
