"""Device time without a stage."""

from __future__ import annotations

from typing import Final

import polars as pl

from llmprof.analyze.edge import LANE
from llmprof.findings.cause import (
    NAME_THEM,
    POTENTIAL,
    Cause,
    Context,
    Figures,
    Measurement,
    longest_in,
    readable_name,
)
from llmprof.findings.scope import Scope, heaviest, heaviest_name, sum_of
from llmprof.label.intervals import union_length
from llmprof.text import counted
from llmprof.units import format_share


class UnnamedTime(Figures, frozen=True):
    """Events are all of the scope."""

    events: int
    of_events_share: float
    by_name_share: float
    name: str | None = None
    """The event with most of the time."""

    def title(self, of: Context) -> str:
        most = longest_in(readable_name(self.name), self.by_name_share)
        return f"Compute without a known stage takes {of.amount}{of.where}, {most}."

    def detail(self, of: Context) -> str:
        return (
            f"{counted(self.events, 'event')} in all, {format_share(self.of_events_share)} of the"
            f" summed time of compute, communication and copies. {readable_name(self.name)} is"
            f" {format_share(self.by_name_share)} of it. Shares by stage leave it out."
        )

    def advice(self, of: Context) -> str:
        return NAME_THEM


def _measure(scope: Scope) -> Measurement | None:
    if not scope.has_layers:  # stages are parts of layers
        return None
    named = pl.col("stage").is_not_null() & (pl.col("stage") != "other")
    moved = pl.col("category").is_in(["collective", "copy", "fill"])
    part, _ = heaviest(scope.times.filter(kind="compute"), "part", "ns")
    if not (scope.events["stage"] == part).any():  # the heaviest has no stage, and is told
        return None
    missing = scope.events.filter(~named & ~moved)
    if not missing.height:
        return None
    name, share = heaviest_name(missing)
    of_events = sum_of(missing, "dur_ns") / max(1.0, sum_of(scope.events, "dur_ns"))
    figures = UnnamedTime(missing.height, of_events, share, name)
    busy = min(float(union_length(missing, LANE)["busy_ns"].sum()), scope.span_ns)
    where = "stage IS NULL OR stage = 'other'"
    return Measurement.of(missing, figures, ns=busy, gain_ns=0.0, where=where, about=name)


UNNAMED_TIME: Final = Cause("unnamed_time", _measure, "events", info=True, potential=POTENTIAL)
