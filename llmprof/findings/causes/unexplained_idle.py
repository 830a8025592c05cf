"""Idle time that nothing recorded explains, and time in which something ran that is not in the
file, or may have run, as none of its kind is.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from llmprof.findings.cause import Cause, Context, Figures, Measurement
from llmprof.findings.host import MOSTLY, RangeAround, range_around
from llmprof.findings.scope import Scope, sum_of, worst_ranks
from llmprof.text import counted
from llmprof.units import format_share

_UNKNOWN: Final = "cause = 'unknown' OR (cause = 'queued' AND waited_kind IS NULL)"


class UnexplainedIdle(Figures, frozen=True):
    """Pauses are of one step or rank."""

    pauses: float
    launched_share: float
    """Share of the time for which the next event had been launched."""
    between_share: float = 0.0
    """Share of it that lies between steps."""
    around: RangeAround | None = None
    calls_known: bool = False
    """Whether calls of the host were recorded."""

    def title(self, of: Context) -> str:
        return f"{of.device_is} idle {of.amount}; its cause is not known."

    def detail(self, of: Context) -> str:
        launched = "when the next events were launched is not known"
        if self.launched_share:
            launched = (
                f"in {format_share(self.launched_share)} of the time the next event had been"
                " launched already"
            )
        text = f"{counted(self.pauses, 'pause')} {of.per}; {launched}."
        if self.between_share >= MOSTLY:
            text += f" {format_share(self.between_share)} of it lies between steps."
        return text if self.around is None else f"{text} {self.around}."

    def advice(self, of: Context) -> str:
        if self.launched_share < MOSTLY and (self.around or self.between_share >= MOSTLY):
            where = "between steps" if self.around is None else f"in {self.around.name}"
            look = f"Look at what the host does {where}: the device may wait for it"
        elif self.launched_share >= MOSTLY:
            look = "The host is not late: it had launched what comes next"
        elif self.calls_known:
            look = "The host's calls are recorded, but not which of them the device waits for"
        else:
            look = f"Record the host's calls of all threads{of.words['record_host']}"
        return (
            f"{look}. Look for other processes on the device, and for events that the profiler"
            " dropped."
        )


class LeftOut(Figures, frozen=True):
    """Pauses are of one step or rank."""

    pauses: float
    copies_only: bool

    def title(self, of: Context) -> str:
        if self.copies_only:
            return f"No copy runs for {of.amount}{of.where}; kernels were not recorded."
        return f"The file shows nothing for {of.amount}{of.where}, but does not hold all that ran."

    def detail(self, of: Context) -> str:
        why = (
            "Whether the device was idle in them is not known."
            if self.copies_only
            else "By the profiler's record the kernels after these pauses waited for less than half"
            " of that time, so something else ran before them."
        )
        return f"{counted(self.pauses, 'pause')} {of.per}. {why}"

    def advice(self, of: Context) -> str:
        return "Read the whole profile to see what ran there."


def _measure_unexplained(scope: Scope) -> Measurement | None:
    gaps, unseen = _gaps(scope)
    gaps = gaps.with_columns(pl.col("dur_ns") - unseen).filter(pl.col("dur_ns") > 0)
    if not gaps.height:
        return None
    of, own = worst_ranks(scope, gaps)
    launched = sum_of(own.filter(cause="queued"), "dur_ns")
    ns, own_ns = sum_of(gaps, "dur_ns"), max(1.0, sum_of(own, "dur_ns"))
    between = own.clear() if scope.steps is None else own.remove("in_step")
    figures = UnexplainedIdle(
        own.height / of.parts,
        launched / own_ns,
        sum_of(between, "dur_ns") / own_ns,
        range_around(scope, own),
        scope.trace.has("runtime"),
    )
    return Measurement.of(own, figures, ns=ns, where=_UNKNOWN, by_rank=gaps, unsure=True)


def _measure_left_out(scope: Scope) -> Measurement | None:
    gaps, unseen = _gaps(scope)
    gaps = gaps.with_columns(dur_ns=unseen).filter(pl.col("dur_ns") > 0)
    if not gaps.height:
        return None
    figures = LeftOut(gaps.height / scope.parts, not scope.has_kernels)
    return Measurement.of(gaps, figures, gain_ns=0.0, where=_UNKNOWN)


def _gaps(scope: Scope) -> tuple[pl.DataFrame, pl.Expr]:
    """Idle time that nothing explains, and the part of it in which the device was not idle, or
    may not have been.
    """
    gaps = scope.idle("queued", "unknown").filter(
        (pl.col("cause") == "unknown") | pl.col("waited_kind").is_null()
    )
    if not scope.has_kernels:
        return gaps, pl.when(pl.col("cause") == "unknown").then("dur_ns").otherwise(0)
    beyond = pl.col("dur_ns") - pl.col("waited_ns")
    # two records of one pause differ by the time that the profiler takes
    return gaps, pl.when(beyond >= pl.col("dur_ns") / 2).then(beyond).otherwise(0)


UNEXPLAINED_IDLE: Final = Cause("unexplained_idle", _measure_unexplained, "idle")
LEFT_OUT: Final = Cause("left_out", _measure_left_out, "idle", info=True)
