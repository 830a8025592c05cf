"""Time of a run on CPU in which none of its operators runs, from the first to the last of them."""

from __future__ import annotations

from typing import Final

from llmprof.analyze.step_times import IDLE_NOT_RECORDED
from llmprof.findings.cause import Cause, Context, Figures, Measurement
from llmprof.findings.scope import Scope, median_of
from llmprof.text import counted
from llmprof.units import format_ns


class BetweenOperators(Figures, frozen=True):
    """Pauses are of one step or rank."""

    pauses: float
    median_ns: float | None
    in_python: bool

    def title(self, of: Context) -> str:
        return f"No operator runs for {of.amount}{of.where}."

    def detail(self, of: Context) -> str:
        mean = format_ns(of.time_ns / self.pauses if self.pauses else None)
        return (
            f"{counted(self.pauses, 'pause')} {of.per}, {mean} on average,"
            f" {format_ns(self.median_ns)} in the median:"
            f" {'Python, or ' if self.in_python else ''}work that is not an operator."
        )

    def advice(self, of: Context) -> str:
        if self.in_python:
            return "Record Python functions (with_stack=True) to see what runs there."
        return "Sample the host's CPU (perf record -g) to see what runs there."


def _measure(scope: Scope) -> Measurement | None:
    if not scope.trace.capture.on_host:
        return None
    gaps = scope.pauses
    in_python = bool(scope.events["name"].str.starts_with("aten::").any())
    figures = BetweenOperators(gaps.height / scope.parts, median_of(gaps, "dur_ns"), in_python)
    # what comes before the first operator and after the last is start-up and end
    ns = scope.time("idle") - scope.time("idle", IDLE_NOT_RECORDED)
    return Measurement.of(gaps, figures, ns=ns)


BETWEEN_OPERATORS: Final = Cause("between_operators", _measure, "idle")
