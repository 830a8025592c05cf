"""Explorer of layers: a heat map of layers over steps, and the details of a cell."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import polars as pl
import traitlets

from llmprof.analyze.kernels import sums_of_kernels
from llmprof.analyze.layers import GapMeasure as TimeColumn
from llmprof.analyze.layers import layer_gaps
from llmprof.analyze.layers import layers as layers_of
from llmprof.charts.base.theme import PHASES, STAGES, in_order
from llmprof.charts.subjects.heatmaps import kinds_in_words
from llmprof.explore.base.messages import ColourScale, FrameRow, MessageRecord, array
from llmprof.explore.base.ranks import colour_scale, placed_in_columns, scales_of
from llmprof.explore.base.widget import Explorer, Reply, optional, request_handler
from llmprof.explore.layers.picture import MOST_RANKS, CellsPanel, cells_picture
from llmprof.names import readable
from llmprof.replay.slack import add_slack, unknown_slack
from llmprof.text import are
from llmprof.trace import Trace
from llmprof.units import format_ns

LayerMeasure = Literal["time", "busy", "exposed", "gap", "host"]


class LayerOption(MessageRecord):
    """A measure that the color can show."""

    name: LayerMeasure
    title: str
    meaning: str


MAX_COLUMNS = 1_000
"""Most columns of a picture; more steps are condensed."""

MEASURES: dict[str, tuple[str, TimeColumn, str, str]] = {
    "time": ("Time", "dur_ns", "dur_ns", "from the first start to the last end of its kernels"),
    "busy": ("Busy", "busy_ns", "busy_ns", "time in which one of its kernels runs"),
    "exposed": (
        "Exposed communication",
        "exposed_communication_ns",
        "exposed_communication_ns",
        "communication beside which no compute of the rank runs",
    ),
    "gap": (
        "Gap to the typical layer",
        "dur_ns",
        "gap_ns",
        "its time minus the median layer of the same step and kind",
    ),
    "host": (
        "Time on the host",
        "host_dur_ns",
        "host_dur_ns",
        "span of the operators that launched it",
    ),
}
"""Name of a measure to its title, the measure and column of ``layer_gaps``, and its meaning."""


@dataclass(frozen=True)
class Cells:
    """A heat map: values by column and layer, columns after each other; NaN where there is none."""

    head: dict[str, Any]
    values: memoryview
    outliers: memoryview


def layer_choices(trace: Trace) -> dict[str, Any]:
    """Ranks, stages and phases that can be chosen, and the measures."""
    rows = trace.events.drop_nulls("layer").select("rank", "stage", "phase").unique()
    return {
        "ranks": rows["rank"].unique().sort().to_list(),
        "stages": in_order(rows["stage"].drop_nulls(), STAGES),
        "phases": in_order(rows["phase"].drop_nulls(), PHASES),
        "measures": [
            {"name": name, "title": row[0], "meaning": row[3]} for name, row in MEASURES.items()
        ],
    }


def layer_cells(
    trace: Trace,
    *,
    measure: str,
    rank: int,
    stage: str | None = None,
    phase: str | None = None,
    steps: tuple[int, int] | None = None,
) -> Cells:
    """Cells of one rank; ``head`` describes their columns (steps), layers and scales of colours."""
    title, name, column, meaning = MEASURES[measure]
    rows = layer_gaps(trace, stage=stage, measure=name).with_columns(
        value=pl.col(column).cast(pl.Float64)
    )
    rows = rows.filter(pl.col("rank") == rank, phase is None or pl.col("phase") == phase)
    first_last = (rows["step"].min(), rows["step"].max())
    if steps is not None:
        rows = rows.filter(pl.col("step").is_between(*steps))
    placed, columns, phases, size = placed_in_columns(rows, MAX_COLUMNS)
    by_layer = placed.group_by("column", "layer").agg(pl.median("value"), pl.col("outlier").any())
    levels = rows.group_by("layer").agg(pl.col("kind").mode().sort().first()).sort("layer")
    every = columns.select("column", "phase").join(levels.select("layer"), how="cross")
    full = every.join(by_layer, on=["column", "layer"], how="left").sort("column", "layer")
    head = {
        "measure": measure,
        "title": title,
        "meaning": meaning,
        "rank": rank,
        "columns": columns.select("first", "last", "scale").rows(),
        "layers": levels["layer"].to_list(),
        "kinds": levels["kind"].to_list(),
        "condensed": size,
        "outliers": int(by_layer["outlier"].sum()),
        "missing": full["value"].null_count(),
        "steps": first_last,
        "diverging": measure == "gap",
        "scales": scales_of(full, phases, diverging=measure == "gap"),
    }
    values = full["value"].fill_null(float("nan"))
    return Cells(head, array(values, "f4"), array(full["outlier"].fill_null(False), "u1"))


def cell_events(
    trace: Trace, *, rank: int | None, step: int | None, layer: int | None, stage: str | None = None
) -> pl.DataFrame:
    """Rows of ``attribute`` in a cell, in a step, or in a layer of every step; no rows if
    neither is given.
    """
    events = trace.events
    if step is None and layer is None:
        return events.clear()
    chosen = {"rank": rank, "step": step, "layer": layer, "stage": stage}
    within = [pl.col(name) == value for name, value in chosen.items() if value is not None]
    return events.filter(*within)


def _stages_of(trace: Trace, *, rank: int, step: int, layer: int) -> pl.DataFrame:
    """Stages of a cell in their order, and of the typical layer: the median of the same kind,
    rank and step.
    """
    rows = layers_of(trace, stages=True).filter(pl.col("rank") == rank, pl.col("step") == step)
    alike = pl.col("kind").eq_missing(pl.col("kind").filter(layer=layer).first())
    rows = rows.filter(alike)
    sums = rows.group_by("layer", "stage").agg(
        pl.min("start_ns"), pl.sum("dur_ns", "busy_ns"), pl.sum("kernels")
    )
    typical = sums.group_by("stage").agg(typical_ns=pl.median("dur_ns"))
    mine = sums.filter(layer=layer).sort("start_ns", "stage")
    mine = mine.join(typical, on="stage", how="left", maintain_order="left")
    return mine.select(
        "stage",
        "dur_ns",
        "busy_ns",
        "kernels",
        "typical_ns",
        gap_ns=pl.col("dur_ns") - pl.col("typical_ns"),
    )


def kernels_of(trace: Trace, events: pl.DataFrame, *, slack: bool = False) -> pl.DataFrame:
    """Kernels of device events and their operators:

    ``stage, op, name, category, count, total_ns, share``.
    """
    events = events.rename({"operator": "op"})
    summary = sums_of_kernels(events, ("stage", "op"))
    summary = (
        add_slack(summary, trace, events, ["stage", "op", "name", "category"]) if slack else summary
    )
    whole = pl.sum("total_ns")
    return (
        summary.with_columns(share=pl.when(whole > 0).then(pl.col("total_ns") / whole))
        .sort(
            "total_ns",
            "stage",
            "op",
            "name",
            descending=[True, False, False, False],
            nulls_last=True,
        )
        .select(
            "stage",
            "op",
            "name",
            "category",
            "count",
            "total_ns",
            "share",
            *(["slack_ns"] if slack else []),
        )
    )


def _cell_of(
    trace: Trace, *, rank: int, step: int, layer: int, stage: str | None = None
) -> dict[str, Any] | None:
    """Row of ``layer_gaps`` of a cell; None if there is none."""
    rows = layer_gaps(trace, stage=stage, measure="dur_ns").filter(
        pl.col("rank") == rank, pl.col("step") == step, pl.col("layer") == layer
    )
    return rows.row(0, named=True) if rows.height else None


_MAX_KERNELS = 60


class Layers(Explorer, room="layers"):
    """Heat map of layers over steps. Made by :func:`layers`."""

    measure = traitlets.Enum(list(MEASURES), default_value="time").tag(sync=True)
    """Measure that the colour shows: time, busy, exposed (communication), gap (to the typical
    layer) or host.
    """

    phase = optional(traitlets.Unicode)
    """Phase of the steps that are shown: prefill, decode …; all if None."""

    default_rank = optional(traitlets.Int)
    """Rank that is shown while none is chosen."""

    narrows = ("stage", "phase")

    _slack = False

    @property
    def selected(self) -> pl.DataFrame:
        """Device events of the picked cell (of its stage, if one is chosen): rows of
        ``trace.events``.

        If only a step is chosen, all events of the step; if only a layer is chosen, its events in
        every step.
        """
        rank = self.rank if self.rank is not None else self.default_rank
        stage = self.only.get("stage") if self.stage is None else self.stage
        return cell_events(self.trace, rank=rank, step=self.step, layer=self.layer, stage=stage)

    def picture(self) -> bytes | None:
        """PNG image of the heat map of the chosen ranks, stage and phase; None if there are no
        layers.
        """
        ranks, stage = layer_choices(self.trace)["ranks"], self.only.get("stage")
        ranks_drawn = ranks if self.rank is None else [rank for rank in ranks if rank == self.rank]
        made = [
            layer_cells(self.trace, measure=self.measure, rank=rank, stage=stage, phase=self.phase)
            for rank in ranks_drawn[:MOST_RANKS]
        ]
        panels = []
        for one in made:
            columns = [
                (first, one.head["scales"][scale]["phase"])
                for first, _, scale in one.head["columns"]
            ]
            values = np.frombuffer(one.values, "<f4").reshape(
                (len(columns), len(one.head["layers"]))
            )
            panels += (
                [CellsPanel(one.head["rank"], columns, one.head["layers"], values)]
                if columns
                else []
            )
        if not panels:
            return None
        phases = dict.fromkeys(scale["phase"] for one in made for scale in one.head["scales"])
        diverging = self.measure == "gap"
        scales: dict[str | None, dict[str, Any]] = {}
        for phase in phases:
            parts = [
                panel.values[[own == phase for _, own in panel.columns]].ravel() for panel in panels
            ]
            known = pl.Series(np.concatenate(parts)).drop_nans().cast(pl.Float64)
            scales[phase] = {**colour_scale(known, diverging=diverging), "diverging": diverging}
        title, _, _, meaning = MEASURES[self.measure]
        notes = [f"Colour: {meaning}."]
        types = {"layer": pl.Int32, "kind": pl.String}
        heads = ({"layer": one.head["layers"], "kind": one.head["kinds"]} for one in made)
        notes += filter(
            None, [kinds_in_words(pl.concat(pl.DataFrame(head, schema=types) for head in heads))]
        )
        if len(ranks_drawn) > len(made):
            notes.append(f"{len(made)} of {len(ranks_drawn)} ranks {are(len(made))} shown.")
        if (steps := max(one.head["condensed"] for one in made)) > 1:
            notes.append(f"A column is the median of up to {steps} steps.")
        if beyond := [scale["most"] for scale in scales.values() if scale["most"] > scale["high"]]:
            notes.append(f"≥: the 99th percentile; the greatest value is {format_ns(max(beyond))}.")
        if missing := sum(one.head["missing"] for one in made):
            notes.append(f"Grey: not captured ({missing:,} cells).")
        return cells_picture(
            panels,
            scales,
            f"{title} of {f'{stage} in ' if stage else ''}each layer",
            notes,
        )

    @request_handler(
        busy="finding steps and layers",
        ranks=list[int],
        stages=list[str],
        phases=list[str],
        measures=list[LayerOption],
    )
    def _on_choices(self) -> Reply:
        offered = layer_choices(self.trace)
        self.default_rank = offered["ranks"][0] if offered["ranks"] else None
        return offered, []

    @request_handler(
        busy="measuring layers",
        buffers="values (f4, columns after each other, NaN where there is none) and outliers (u1)",
        measure=LayerMeasure,
        title=str,
        meaning=str,
        rank=int,
        columns=list[tuple[int, int, int]],
        layers=list[int],
        kinds=list[str | None],
        condensed=int,
        outliers=int,
        missing=int,
        steps=tuple[int | None, int | None],
        diverging=bool,
        scales=list[ColourScale],
    )
    def _on_cells(
        self,
        *,
        measure: LayerMeasure,
        rank: int,
        stage: str | None,
        phase: str | None,
        steps: tuple[int, int] | None,
    ) -> Reply:
        window = (int(steps[0]), int(steps[1])) if steps else None
        matrix = layer_cells(
            self.trace, measure=measure, rank=rank, stage=stage, phase=phase, steps=window
        )
        return matrix.head, [matrix.values, matrix.outliers]

    @request_handler()
    def _on_pick(self, *, rank: int, step: int, layer: int) -> None:
        cell = _cell_of(self.trace, rank=rank, step=step, layer=layer)
        with self.hold_sync():
            self.rank, self.step, self.layer = rank, step, layer
            if cell is not None:
                self.window = [float(cell["start_ns"]), float(cell["end_ns"])]

    @request_handler(
        busy="looking into the cell",
        rank=int,
        step=int,
        layer=int,
        stage=str | None,
        slack_ns=int | None,
        cell=FrameRow | None,
        stages=list[FrameRow],
        kernels=list[FrameRow],
        more=int,
    )
    def _on_cell(self, *, rank: int, step: int, layer: int, stage: str | None) -> Reply:
        events = cell_events(self.trace, rank=rank, step=step, layer=layer, stage=stage)
        kernels = kernels_of(self.trace, events, slack=self._slack)
        least = (
            add_slack(events.head(1), self.trace, events, ["rank"])
            if self._slack and events.height
            else None
        )
        shown = kernels.head(_MAX_KERNELS)
        where: dict[str, Any] = {"rank": rank, "step": step, "layer": layer}
        message: dict[str, Any] = {
            **where,
            "stage": stage,
            "slack_ns": None if least is None else least["slack_ns"][0],
            "cell": _cell_of(self.trace, **where, stage=stage),
            "stages": _stages_of(self.trace, **where).to_dicts(),
            "kernels": shown.with_columns(readable=readable(shown["name"])).to_dicts(),
            "more": max(0, kernels.height - _MAX_KERNELS),
        }
        return message, []

    @request_handler(busy="finding what each kernel delays", why=str)
    def _on_slack(self) -> Reply:
        """Find the slack of all kernels, which cells have from then on, or say why it is
        unknown.
        """
        why = unknown_slack(self.trace)
        self._slack = not why
        return {"why": why}, []


def layers(trace: Trace, **traits: Any) -> Layers:
    """Heat map of layers over steps, for one rank at a time, with stages, kernels and operators of
    the picked cell.

    Picking a cell sets ``rank, step, layer`` and ``window``, so that a linked timeline moves there;
    ``.selected`` is the frame of its device events. Dragging over steps shows them alone.

    Parameters
    ----------
    trace : Trace
        Any trace; the widget says so if it has no layers.
    **traits
        Initial values of ``measure, phase, only, rank, step, layer, stage, window, theme``.
    """
    return Layers(trace, **traits)
