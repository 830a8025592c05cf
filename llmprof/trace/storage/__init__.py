"""Storage of traces:

Parquet folders, SQLite databases, Arrow streams, whole files, and pseudonyms for texts.
"""

import signal

import polars

# From its import on, Polars handles Ctrl-C in a way that the system goes on waiting for a thread,
# a process or a pipe (`SA_RESTART`, issue 21739 of Polars): Python learns of an interrupt only when
# the wait has ended. Python itself sets its handler without this.
if hasattr(signal, "siginterrupt"):  # not on Windows
    signal.siginterrupt(signal.SIGINT, True)
