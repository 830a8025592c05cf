"""Collectives over the ranks: matched calls, waiting, transfer and message sizes."""
