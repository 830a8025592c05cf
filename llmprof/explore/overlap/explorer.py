"""Explorer of overlap: bars of steps, and the lanes of a window, of one rank or of two sides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl
import traitlets

from llmprof import charts
from llmprof.analyze.activity import activity
from llmprof.analyze.layers.attribution import attribute
from llmprof.analyze.overlap import overlap as overlap_of_trace
from llmprof.analyze.steps.steps import steps
from llmprof.charts.base import theme
from llmprof.explore.base.widget import BUNDLES, COLOURS, Answer, Explorer, answers
from llmprof.explore.base.wire import Buffers, pack
from llmprof.explore.overlap import messages
from llmprof.explore.overlap import windows as data
from llmprof.explore.overlap.windows import lanes
from llmprof.trace import Trace

PART_COLOURS = {
    "compute": theme.COMPUTE,
    "hidden communication": theme.HIDDEN,
    "exposed communication": theme.COMMUNICATION,
    "communication": theme.COMMUNICATION,
    "exposed copy": theme.COPY,
    "copy": theme.COPY,
    "idle": theme.IDLE,
}
_PIXELS = 4_000


class Overlap(Explorer):
    """Compute, communication, copies and idle time. Made by :func:`overlap`."""

    _esm = BUNDLES / "overlap.js"
    _css = BUNDLES / "overlap.css"

    phase = traitlets.Unicode(default_value=None, allow_none=True).tag(sync=True)
    """Phase of the steps whose bars are shown; all if None."""

    against = traitlets.Unicode("").tag(sync=True)
    """What the rank is compared with: ``rank:N`` of the same trace, ``other:N`` of the other one, or nothing."""

    bars = traitlets.Enum(["time", "share"], default_value="time").tag(sync=True)
    """Whether the bars of steps show times or shares."""

    default_rank = traitlets.Int(default_value=None, allow_none=True).tag(sync=True)
    """Rank that is shown while none is chosen."""

    def __init__(self, trace: Trace, other: Trace | None = None, **traits: Any) -> None:
        self.other = other
        super().__init__(trace, **{"colours": COLOURS | {"part": PART_COLOURS}} | traits)

    @property
    def selected(self) -> pl.DataFrame:
        """Device events of the rank in the window, with their ``class``: rows of ``analyze.attribute``."""
        sides = self._sides()
        return data.events_in(*sides[0]) if sides else data.with_class(attribute(self.trace).clear())

    @property
    def summary(self) -> pl.DataFrame:
        """Parts of the window's time: ``part, a_ns, a_share``; with a second side also ``b_ns, b_share, delta_ns``."""
        return data.compared(*(data.summary(*side) for side in self._sides()))

    def picture(self) -> bytes | None:
        """PNG image: overlap of every rank by phase."""
        frame = overlap_of_trace(self.trace, by=("rank", "step", "phase")).drop_nulls("step")
        if frame.is_empty():
            frame = overlap_of_trace(self.trace, by=("rank",))
        return charts.to_png_bytes(charts.overlap(frame))

    def _sides(self) -> list[data.Side]:
        """What is shown, as the traits say."""
        rank = self.rank
        if rank is None:
            ranks = activity(self.trace)["rank"].unique().sort()
            if ranks.is_empty():
                return []
            rank = int(ranks[0])
        return self._sides_of(rank, self.window, self.against, self.step)

    def _sides_of(self, rank: int, window: Sequence[float] | None, against: str, step: int | None) -> list[data.Side]:
        """The rank in the window (all that it ran if None), and what it is compared with; nothing if it ran nothing."""
        chosen = data.whole_ns(window) if window else data.span_of(self.trace, rank)
        if chosen is None:
            return []
        mine = (self.trace, rank, chosen)
        where, _, number = against.partition(":")
        if not number:
            return [mine]
        if where == "rank" or self.other is None:
            return [mine, (self.trace, int(number), chosen)]
        found = data.aligned(chosen, mine[:2], (self.other, int(number)), step)
        return [mine, (self.other, int(number), found)] if found else [mine]

    @answers(messages.CHOICES)
    def _on_choices(self) -> Answer:
        ranks = activity(self.trace)["rank"].unique().sort().to_list()
        others = activity(self.other)["rank"].unique().sort().to_list() if self.other is not None else []
        order = list(theme.PHASES)
        phases = steps(self.trace)["phase"].drop_nulls().unique().to_list()
        if ranks:
            self.default_rank = ranks[0]
        return {
            "ranks": ranks,
            "others": others,
            "phases": sorted(phases, key=lambda p: (order.index(p) if p in order else len(order), p)),
            "parts": list(data.PARTS),
        }, []

    @answers(messages.BARS)
    def _on_bars(self, *, rank: int, phase: str | None, against: str) -> Answer:
        sides = [("A" if against else "", self.trace, rank)]
        where, _, number = against.partition(":")
        if number:
            sides.append(("B", self.other if where == "other" and self.other is not None else self.trace, int(number)))
        message: dict[str, Any] = {"sides": []}
        buffers: Buffers = []
        for label, trace, number_ in sides:
            columns, packed = pack(data.step_bars(trace, rank=number_, phase=phase))
            message["sides"].append({"label": label, "rank": number_, "columns": columns, "buffers": len(packed)})
            buffers += packed
        return message, buffers

    @answers(messages.LANES)
    def _on_lanes(
        self, *, rank: int, window: Sequence[float] | None, against: str, step: int | None, pixels: int
    ) -> Answer:
        sides = self._sides_of(rank, window, against, step)
        message: dict[str, Any] = {
            "sides": [],
            "summary": data.compared(*(data.summary(*side) for side in sides)).to_dicts(),
            "whole": data.span_of(self.trace, rank),
            "chosen": window is not None,
        }
        buffers: Buffers = []
        for side in sides:
            head, packed = lanes(*side, pixels=max(50, min(_PIXELS, int(pixels))))
            of = "other trace" if side[0] is self.other else ""
            message["sides"].append({**head, "of": of, "first": len(buffers)})
            buffers += packed
        return message, buffers

    @answers(messages.STEPS)
    def _on_steps(self, *, rank: int, first: int, last: int) -> Answer:
        """Show the steps from ``first`` to ``last`` of a rank; with another trace beside it, as long as the longer."""
        found = data.steps_window(self.trace, rank=rank, first=first, last=last)
        if found is None:
            return {}, []
        begin, end = found
        where, _, number = self.against.partition(":")
        if where == "other" and self.other is not None:
            theirs = data.steps_window(self.other, rank=int(number), first=first, last=last)
            end = max(end, begin + theirs[1] - theirs[0]) if theirs else end
        with self.hold_sync():
            self.rank, self.step = rank, first
            self.window = [float(begin), float(end)]
        return {}, []


def overlap(trace: Trace, *, other: Trace | None = None, **traits: Any) -> Overlap:
    """Compute, communication, copies and idle time: of each step, and as lanes of the window that is shown.

    Picking a step, dragging over several or over the lanes, and zooming set ``window``. ``.selected`` is the frame of
    the rank's device events in it, ``.summary`` how its time parts. A rank can be compared with another one, or with
    one of ``other``: windows of equal length, that of the other trace aligned at the start of the same step.

    Parameters
    ----------
    trace : Trace
        Any trace; one without device events says so.
    other : Trace, optional
        A trace to compare with.
    **traits
        ``against, phase, bars, rank, step, window, theme`` to begin with.

    Returns
    -------
    Overlap
        A widget.
    """
    return Overlap(trace, other, **traits)
