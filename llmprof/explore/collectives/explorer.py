"""Explorer of collectives: how long, how fast, who is late, and the ranks of one call side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl
import traitlets

from llmprof import charts
from llmprof.analyze.collectives.collectives import collectives
from llmprof.charts.base import theme
from llmprof.explore.base.widget import BUNDLES, COLOURS, Answer, Explorer, answers
from llmprof.explore.collectives import messages
from llmprof.explore.collectives import views as data
from llmprof.trace import Trace

_COLOURS = {
    "duration": theme.DURATION,
    "wait": theme.WAIT,
    "transfer": theme.COMMUNICATION,
    "late": theme.COMPUTE,
    "bus bandwidth": theme.COMMUNICATION,
    "algorithm bandwidth": theme.DURATION,
}


class AllReduce(Explorer):
    """Calls of one kind of collective. Made by :func:`all_reduce`."""

    _esm = BUNDLES / "collectives.js"
    _css = BUNDLES / "collectives.css"

    kind = traitlets.Unicode(default_value=None, allow_none=True).tag(sync=True)
    """Kind of collective: all_reduce, all_gather …"""

    phase = traitlets.Unicode(default_value=None, allow_none=True).tag(sync=True)
    """Phase of the steps whose calls are shown; all if None."""

    in_window = traitlets.Bool(default_value=False).tag(sync=True)
    """Whether only the calls in ``window`` are shown."""

    call = traitlets.Int(default_value=None, allow_none=True).tag(sync=True)
    """Number of the picked call, the same on all of its ranks."""

    def __init__(self, trace: Trace, **traits: Any) -> None:
        super().__init__(trace, **{"colours": COLOURS | {"collective": _COLOURS}} | traits)

    @property
    def selected(self) -> pl.DataFrame:
        """Rows of ``analyze.collectives`` of the picked call, with ``late_ns``; those that are shown if none is picked.

        ``late_ns`` is the start after that of the first rank.
        """
        if self.call is not None:
            return data.call_of(self.trace, self.call).drop("aligned_ns")
        rows = self._rows()
        return rows if self.rank is None else rows.filter(pl.col("rank") == self.rank)

    def picture(self) -> bytes | None:
        """PNG image: distribution, sizes, and wait against transfer of the kind that is shown."""
        rows = self._rows()
        kind = self.kind or str(rows["kind"].mode().sort()[0] if rows.height else "all_reduce")
        return charts.to_png_bytes(charts.all_reduce(rows, kind=kind))

    def _rows(self) -> pl.DataFrame:
        window = (round(self.window[0]), round(self.window[1])) if self.in_window and self.window else None
        return data.calls_of(self.trace, kind=self.kind, phase=self.phase, window=window)

    @answers(messages.CHOICES)
    def _on_choices(self) -> Answer:
        found = data.choices(self.trace)
        names = [kind for kind, _ in found["kinds"]]
        if self.kind not in names and names:
            self.kind = "all_reduce" if "all_reduce" in names and self.kind is None else names[0]
        return found, []

    @answers(messages.VIEW)
    def _on_view(self, *, kind: str, phase: str | None, rank: int | None, window: Sequence[float] | None) -> Answer:
        within = (round(window[0]), round(window[1])) if window else None
        return data.view(self.trace, data.calls_of(self.trace, kind=kind, phase=phase, window=within), rank), []

    @answers(messages.CALL)
    def _on_call(self, *, call: int | None, kind: str | None, phase: str | None) -> Answer:
        before, after = data.beside(data.calls_of(self.trace, kind=kind, phase=phase), call)
        rows = data.call_of(self.trace, call).to_dicts() if call is not None else []
        return {"call": call, "rows": rows, "before": before, "after": after}, []

    @answers(messages.PICK)
    def _on_pick(self, *, call: int) -> Answer:
        rows = collectives(self.trace).filter(pl.col("call") == call)
        if rows.height:
            first, last = rows.select(pl.col("start_ns").min(), last=(pl.col("start_ns") + pl.col("dur_ns")).max()).row(
                0
            )
            with self.hold_sync():
                self.call, self.step, self.layer = call, rows["step"][0], rows["layer"][0]
                if not self.in_window:
                    self.window = [float(first), float(last)]
        return {}, []


def all_reduce(trace: Trace, *, kind: str | None = None, **traits: Any) -> AllReduce:
    """Calls of a collective: latencies, sizes, bandwidth against the link's peak, who is late, and how long they wait.

    Picking a call (a bar over time, or a row of the list) shows its ranks aligned and sets ``call, step, layer`` and
    ``window``; ``.selected`` is the frame of its rows.

    Parameters
    ----------
    trace : Trace
        Any trace; one without collectives says so.
    kind : str, optional
        all_reduce (the default, if there is one), all_gather, reduce_scatter, all_to_all, broadcast, send_recv …
    **traits
        ``phase, in_window, call, rank, window, theme`` to begin with.

    Returns
    -------
    AllReduce
        A widget.
    """
    return AllReduce(trace, kind=kind, **traits)
