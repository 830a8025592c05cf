"""The frame of device events that has the columns an analysis groups by."""

from __future__ import annotations

from collections.abc import Collection

import polars as pl

from llmprof.analyze.activity import activity
from llmprof.analyze.attribution import attribute
from llmprof.analyze.steps import events_with_steps
from llmprof.errors import AnalysisError
from llmprof.trace import Trace


def labelled(trace: Trace, columns: Collection[str]) -> pl.DataFrame:
    """Device events with at least these columns: the frame that takes the least work of those that have them.

    Raises
    ------
    AnalysisError
        None has all of them.
    """
    for frame_of in (activity, events_with_steps, attribute):
        events = frame_of(trace)
        if not (missing := [c for c in columns if c not in events.columns]):
            return events
    raise AnalysisError(f"device events have no column {missing}", expected=f"some of {events.columns}")
