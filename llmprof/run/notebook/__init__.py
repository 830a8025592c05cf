"""Notebook support: the cell magic ``%%profile``, progress, and execution of the tutorials."""
