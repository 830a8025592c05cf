"""Measured time against the bound of theory: what each step had to do, and how near each stage came to it."""
