"""A device is idle after a synchronising call of the launching thread, until the next launch."""

from __future__ import annotations

from typing import Final

from msgspec import field

from llmprof.findings.cause import Cause, Context, Figures, Measurement
from llmprof.findings.host import HostActivity, host_activity
from llmprof.findings.scope import (
    Scope,
    change_without,
    heaviest,
    sum_of,
    whole_pauses,
    worst_ranks,
)
from llmprof.text import counted


class Synchronisation(Figures, frozen=True):
    """Pauses are of one step or rank."""

    call: str
    """The call with most of it."""
    pauses: float
    host: HostActivity = field(default_factory=HostActivity)

    def title(self, of: Context) -> str:
        return (
            f"{of.device_is} idle {of.amount} after synchronising calls, longest after {self.call}."
        )

    def detail(self, of: Context) -> str:
        return (
            f"{counted(self.pauses, 'such pause')} {of.per}, each until the next launch, but at"
            " most as long as the call held the host. The launching thread is then longest in"
            f" {self.host}."
        )

    def advice(self, of: Context) -> str:
        if of.of_torch:
            return (
                "Find the .item(), .cpu() or synchronize(), whose operator is around the call. Take"
                " it out of the step, so that the host can launch ahead."
            )
        return (
            "Leave this call out where the host does not need its result at once, so that the host"
            " can launch ahead. Use asynchronous copies, and events between streams."
        )


def _measure(scope: Scope) -> Measurement | None:
    gaps = scope.idle("sync")
    if not gaps.height:
        return None
    of, own = worst_ranks(scope, gaps)
    call, _ = heaviest(own, "call")
    whole = whole_pauses(own)
    figures = Synchronisation(call, whole.height / of.parts, host_activity(scope, own))
    ns, change = sum_of(gaps, "dur_ns"), change_without(call)
    return Measurement.of(
        whole, figures, ns=ns, where="cause = 'sync'", change=change, by_rank=gaps, about=call
    )


SYNCHRONISATION: Final = Cause("synchronisation", _measure, "idle", min_share=0.005)
