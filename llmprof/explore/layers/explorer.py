"""Explorer of layers: a heat map of layers over steps, and what is inside a cell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl
import traitlets

from llmprof import charts
from llmprof.analyze.layers.layers import layers as layers_of
from llmprof.explore.base.widget import BUNDLES, Answer, Explorer, answers
from llmprof.explore.layers import cells as data
from llmprof.explore.layers import cells as inside
from llmprof.explore.layers import messages
from llmprof.trace import Trace

_MAX_KERNELS = 60


class Layers(Explorer):
    """Heat map of layers over steps. Made by :func:`layers`."""

    _esm = BUNDLES / "layers.js"
    _css = BUNDLES / "layers.css"

    measure = traitlets.Enum(list(data.MEASURES), default_value="time").tag(sync=True)
    """What the colour shows: time, busy, exposed (communication), gap (to the typical layer) or host."""

    phase = traitlets.Unicode(default_value=None, allow_none=True).tag(sync=True)
    """Phase of the steps that are shown: prefill, decode …; all if None."""

    default_rank = traitlets.Int(default_value=None, allow_none=True).tag(sync=True)
    """Rank that is shown while none is chosen."""

    @property
    def selected(self) -> pl.DataFrame:
        """Device events of the picked cell (of its stage, if one is chosen): rows of ``analyze.attribute``.

        Without a layer those of the step, without a step those of the layer in every step.
        """
        rank = self.rank if self.rank is not None else self.default_rank
        return inside.events_of(self.trace, rank=rank, step=self.step, layer=self.layer, stage=self.stage)

    def picture(self) -> bytes | None:
        """PNG image of the heat map of the chosen ranks and phase."""
        rows = layers_of(self.trace, per="layer")
        chosen = {"rank": self.rank, "phase": self.phase}
        rows = rows.filter(*(pl.col(name) == value for name, value in chosen.items() if value is not None))
        column = {"busy": "busy_ns", "host": "host_dur_ns"}.get(self.measure, "dur_ns")
        return charts.to_png_bytes(charts.layer_heatmap(rows, value=column))

    @answers(messages.CHOICES)
    def _on_choices(self) -> Answer:
        found = data.choices(self.trace)
        self.default_rank = found["ranks"][0] if found["ranks"] else None
        return found, []

    @answers(messages.CELLS)
    def _on_cells(
        self, *, measure: str, rank: int, stage: str | None, phase: str | None, steps: Sequence[int] | None
    ) -> Answer:
        window = (int(steps[0]), int(steps[1])) if steps else None
        found = data.cells(self.trace, measure=measure, rank=rank, stage=stage, phase=phase, steps=window)
        return found.head, [found.values, found.outliers]

    @answers(messages.PICK)
    def _on_pick(self, *, rank: int, step: int, layer: int) -> Answer:
        cell = inside.cell_of(self.trace, rank=rank, step=step, layer=layer)
        with self.hold_sync():
            self.rank, self.step, self.layer = rank, step, layer
            if cell is not None:
                self.window = [float(cell["start_ns"]), float(cell["end_ns"])]
        return {}, []

    @answers(messages.CELL)
    def _on_cell(self, *, rank: int, step: int, layer: int, stage: str | None) -> Answer:
        events = inside.events_of(self.trace, rank=rank, step=step, layer=layer, stage=stage)
        kernels = inside.kernels_of(self.trace, events)
        message: dict[str, Any] = {
            "rank": rank,
            "step": step,
            "layer": layer,
            "stage": stage,
            "cell": inside.cell_of(self.trace, rank=rank, step=step, layer=layer, stage=stage),
            "stages": inside.stages_of(self.trace, rank=rank, step=step, layer=layer).to_dicts(),
            "kernels": kernels.head(_MAX_KERNELS).to_dicts(),
            "more": max(0, kernels.height - _MAX_KERNELS),
        }
        return message, []


def layers(trace: Trace, **traits: Any) -> Layers:
    """Heat map of layers over steps, one rank at a time; a picked cell shows its stages, kernels and operators.

    Picking a cell sets ``rank, step, layer`` and ``window``, so that a linked timeline moves there; ``.selected`` is
    the frame of its device events. Dragging over steps shows them alone.

    Parameters
    ----------
    trace : Trace
        Any trace; one without layers says so.
    **traits
        ``measure, phase, rank, step, layer, stage, window, theme`` to begin with.

    Returns
    -------
    Layers
        A widget.
    """
    return Layers(trace, **traits)
