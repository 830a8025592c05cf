"""The trace of a run: its tables, how they are stored and queried, and its metadata."""

from llmprof.trace.trace import META_FILE, Trace
