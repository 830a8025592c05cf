"""Storage of traces:

Parquet folders, SQLite databases, Arrow streams, whole files, and pseudonyms for texts.
"""

from llmprof import interrupts

interrupts.end_waits()  # frames are waited for: all that works on them imports this package
