"""Notebook support: the cell magic ``%%profile``, progress, sentences, and execution of the tutorials."""
