"""Short pauses between events that were launched in time."""

from __future__ import annotations

from typing import Final

import polars as pl

from llmprof.findings.cause import FUSED, Cause, Context, Figures, Measurement
from llmprof.findings.scope import Scope, heaviest, median_of, sum_of, worst_ranks
from llmprof.units import format_ns, format_share

_KINDS: Final = {
    "graph": "between events of one launch",
    "stream": "between events of one stream",
    "copy": "after a copy on the same stream",
    "event": "in an event wait of a stream for another one",
}


class BetweenQueued(Figures, frozen=True):
    """Pauses are of one step or rank."""

    kind: str
    by_kind_share: float
    pauses: float
    median_ns: float | None
    by_profiler: bool = False
    """Whether the profiler makes most of them."""

    def title(self, of: Context) -> str:
        if self.by_profiler:
            return f"The profiler's own pauses between nodes of graphs add up to {of.amount}."
        return f"Gaps between events that were launched in time add up to {of.amount}{of.where}."

    def detail(self, of: Context) -> str:
        mean = format_ns(of.time_ns / self.pauses if self.pauses else None)
        return (
            f"{format_share(self.by_kind_share)} of it is {_KINDS[self.kind]}. {self.pauses:,.0f}"
            f" gaps {of.per}, {mean} on average, {format_ns(self.median_ns)} in the median."
        )

    def advice(self, of: Context) -> str:
        if self.by_profiler:
            return (
                "Time the step without the profiler: on AMD devices it parts the nodes of a graph."
            )
        return "Fewer and larger kernels: each costs the device such a pause."


def _measure(scope: Scope) -> Measurement | None:
    gaps = scope.idle("queued").filter(pl.col("waited_kind").is_in(list(_KINDS)))
    if not gaps.height:
        return None
    of, own = worst_ranks(scope, gaps)
    kind, share = heaviest(own, "waited_kind")
    # rocprofiler takes the nodes of a replayed graph apart to time each
    by_profiler = kind == "graph" and scope.trace.capture.platform.name == "amd"
    figures = BetweenQueued(
        kind, share, own.height / of.parts, median_of(own, "dur_ns"), by_profiler
    )
    where = "cause = 'queued' AND waited_kind IN ('graph', 'stream', 'copy', 'event')"
    ns = sum_of(gaps, "dur_ns")
    return Measurement.of(own, figures, ns=ns, where=where, by_rank=gaps, is_fact=by_profiler)


BETWEEN_QUEUED_EVENTS: Final = Cause("between_queued_events", _measure, "idle", potential=FUSED)
