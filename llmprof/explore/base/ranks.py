"""Timeline of the ranks that were picked in another explorer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from llmprof.errors import LlmprofError
from llmprof.trace import Trace

if TYPE_CHECKING:
    from llmprof.explore.timeline.explorer import Timeline


def timeline_of(trace: Trace, ranks: Sequence[int], window: Sequence[float] | None, *, hint: str) -> Timeline:
    """Timeline of some ranks alone."""
    from llmprof.explore.timeline.explorer import timeline

    if not ranks:
        raise LlmprofError("no rank is picked", hint=hint)
    return timeline(trace.select(ranks=list(ranks)), window=window)
