"""Idle time of a device and its causes: each gap is split at the call that launched the next
event.
"""

from llmprof.analyze.idle.gaps import idle, idle_of, stream_gaps, stream_gaps_of
from llmprof.analyze.idle.host import is_synchronising, launch_delay, launch_delay_of

__all__ = [
    "idle",
    "idle_of",
    "is_synchronising",
    "launch_delay",
    "launch_delay_of",
    "stream_gaps",
    "stream_gaps_of",
]
