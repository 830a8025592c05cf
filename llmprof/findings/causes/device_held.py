"""A call of the host holds the device: launched work waits."""

from __future__ import annotations

from typing import Final

from llmprof.findings.cause import Cause, Context, Figures, Measurement, longest_in
from llmprof.findings.host import CALLS, advice_on, first_match
from llmprof.findings.scope import Scope, change_without, heaviest, max_of, whole_pauses
from llmprof.text import counted
from llmprof.units import format_ns, format_share


class DeviceHeld(Figures, frozen=True):
    """Pauses are of one step or rank."""

    call: str
    by_call_share: float
    pauses: float
    max_ns: float | None
    kind: str | None = None

    def title(self, of: Context) -> str:
        call = longest_in(self.call, self.by_call_share)
        return f"{of.device_is} idle {of.amount}: launched work waits for the host, {call}."

    def detail(self, of: Context) -> str:
        return (
            f"{counted(self.pauses, 'such pause')} {of.per}, the longest of"
            f" {format_ns(self.max_ns)}; {format_share(self.by_call_share)} of it is in"
            f" {self.call}."
        )

    def advice(self, of: Context) -> str:
        return advice_on(self.kind, of) if self.kind else "Take that call out of the step."


def _measure(scope: Scope) -> Measurement | None:
    gaps = scope.idle("queued").filter(waited_kind="call")
    if not gaps.height:
        return None
    call, share = heaviest(gaps, "waited_name")
    whole = whole_pauses(gaps)
    figures = DeviceHeld(
        call, share, whole.height / scope.parts, max_of(whole, "dur_ns"), first_match(call, CALLS)
    )
    where = "cause = 'queued' AND waited_kind = 'call'"
    return Measurement.of(whole, figures, where=where, change=change_without(call), about=call)


DEVICE_HELD: Final = Cause("device_held", _measure, "idle")
