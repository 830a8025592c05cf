"""Timeline of the ranks that were picked in another explorer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from llmprof.errors import LlmprofError
from llmprof.trace import Trace

if TYPE_CHECKING:
    from llmprof.explore.timeline.explorer import Timeline


def timeline_of(trace: Trace, ranks: Sequence[int], window: Sequence[float] | None, *, hint: str) -> Timeline:
    """Timeline of some ranks alone.

    Parameters
    ----------
    trace : Trace
        The trace of all ranks.
    ranks : sequence of int
        The picked ranks.
    window : (float, float), optional
        First and last time to show (ns from the start of the trace); the whole trace if not given.
    hint : str
        How ranks are picked, for the error.

    Returns
    -------
    Timeline
        A widget.

    Raises
    ------
    LlmprofError
        No rank is picked.
    """
    from llmprof.explore.timeline.explorer import timeline

    if not ranks:
        raise LlmprofError("no rank is picked", hint=hint)
    return timeline(trace.select(ranks=list(ranks)), window=window)
