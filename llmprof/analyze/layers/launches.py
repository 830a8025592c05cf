"""Layers and stages of profiled kernel launches, by their order and names."""

from __future__ import annotations

import polars as pl

from llmprof import names
from llmprof.analyze.layers.attribution import label
from llmprof.metrics.data import Metrics
from llmprof.names import functions

_EDGE_CONFIDENCE = 0.5

_Row = tuple[int, int | None, str, float, dict[str, str]]
"""Run, layer, stage, confidence, and what a launch is compared by."""


def name_layers(metrics: Metrics) -> pl.DataFrame:
    """Layer and stage of each profiled launch, found as :func:`~llmprof.analyze.layers.attribution.attribute` does.

    Launches are taken in their order, each run and process by itself, as one step. A profile usually begins and ends
    in the middle of a layer: what precedes the first whole layer, or follows the last one, is compared with the end
    or the beginning of the layers in between, and where name, grid and block agree it gets their stage.

    Parameters
    ----------
    metrics : Metrics
        Hardware metrics of consecutive launches, collectives left out or not.

    Returns
    -------
    polars.DataFrame
        ``kernel_id, kernel_name, category, layer, stage, confidence``. ``layer`` counts the whole layers of a run from
        0 and is null in the pieces at the ends and outside the layers; ``confidence`` is that of
        :func:`~llmprof.analyze.layers.attribution.attribute`, and 0.5 in the pieces at the ends.

    Examples
    --------
    >>> named = analyze.name_layers(metrics)
    >>> named["layer"].drop_nulls().n_unique()
    2
    """
    kernels = metrics.kernels
    runs = kernels.select("run", "process").fill_null(-1)
    events = kernels.select(
        event=pl.int_range(pl.len(), dtype=pl.UInt32),
        rank=runs.select(pl.struct("run", "process").rank("dense"))["run"].cast(pl.Int32) - 1
        if kernels.height
        else None,
        stream="stream",
        start_ns=pl.col("kernel_id").cast(pl.Int64),
        name=pl.col("kernel_name").fill_null(""),
        source=pl.lit("kernel"),
        step=pl.lit(0, dtype=pl.Int32),
    ).with_columns(pl.col("rank").cast(pl.Int32))
    events = events.with_columns(names.categories(events["name"]))
    found = (
        label(events)
        if events.height
        else events.with_columns(
            layer=pl.lit(None, pl.Int32), stage=pl.lit(None, pl.String), confidence=pl.lit(None, pl.Float64)
        )
    )
    key = kernels.select(function=functions.function(kernels["kernel_name"]), grid="grid", block="block")
    rows = found.select("rank", "layer", "stage", "confidence").hstack(key.select(key=pl.struct(pl.all()))).rows()
    ends = [
        stage for rank in dict.fromkeys(row[0] for row in rows) for stage in _ends([r for r in rows if r[0] == rank])
    ]
    extra = pl.Series("end", ends, dtype=pl.String)
    order = found.with_row_index("_row").sort("rank", maintain_order=True).select("_row").hstack([extra]).sort("_row")
    at_end = order["end"].is_not_null()
    return kernels.select(
        "kernel_id",
        "kernel_name",
        found["category"],
        found["layer"],
        pl.Series("stage", pl.select(pl.coalesce(order["end"], found["stage"])).to_series()),
        pl.Series(
            "confidence", pl.select(pl.when(at_end).then(_EDGE_CONFIDENCE).otherwise(found["confidence"])).to_series()
        ),
    )


def _ends(rows: list[_Row]) -> list[str | None]:
    """Stages of the pieces of layers at both ends of a run; None for what is no such piece."""
    stages: list[str | None] = [None] * len(rows)
    inside = [i for i, row in enumerate(rows) if row[1] is not None]
    if not inside:
        return stages
    layers = {layer: [row for row in rows if row[1] == layer] for layer in dict.fromkeys(rows[i][1] for i in inside)}
    before, after = rows[: inside[0]], rows[inside[-1] + 1 :]
    for layer in layers.values():
        if _agree(before, layer[len(layer) - len(before) :]):
            stages[: len(before)] = [row[2] for row in layer[len(layer) - len(before) :]]
        if _agree(after, layer[: len(after)]):
            stages[len(rows) - len(after) :] = [row[2] for row in layer[: len(after)]]
    return stages


def _agree(
    piece: list[_Row],
    of_layer: list[_Row],
) -> bool:
    return bool(piece) and [row[4] for row in piece] == [row[4] for row in of_layer]
