"""Layers of profiled kernel launches, by their order and names."""

from __future__ import annotations

import polars as pl

from llmprof import names
from llmprof.label.layers.sequences import label_layers
from llmprof.names import kernels as names_kernels
from llmprof.trace.metrics.data import Metrics

_EDGE_CONFIDENCE = 0.5


def layers(metrics: Metrics) -> pl.DataFrame:
    """Layer and stage of each profiled launch, by the rules of
    :attr:`llmprof.Trace.events`.

    The launches of each run and process count in their order as one step. A profile usually begins
    and ends in the middle of a layer. Launches before the first whole layer are compared with the
    end of the other layers, and launches after the last one with their beginning; if name, grid and
    block agree, they get the same stage.

    Parameters
    ----------
    metrics : Metrics
        Hardware metrics of consecutive launches, collectives left out or not.

    Returns
    -------
    polars.DataFrame
        ``kernel_id, kernel_name, category, layer, stage, confidence``. ``layer`` counts the whole
        layers of a run from 0 and is null in the pieces at the ends and outside the layers;
        ``confidence`` is that of :attr:`llmprof.Trace.events`, and 0.5 in
        the pieces at the ends.

    Examples
    --------
    >>> named = analyze.ncu.layers(metrics)
    >>> named["layer"].drop_nulls().n_unique()
    2
    """
    kernels = metrics.kernels
    events = kernels.select(
        event=pl.int_range(pl.len(), dtype=pl.UInt32),
        rank=pl.struct(pl.col("run", "process").fill_null(-1)).rank("dense").cast(pl.Int32) - 1,
        stream="stream",
        start_ns=pl.col("kernel_id").cast(pl.Int64),
        name=pl.col("kernel_name").fill_null(""),
        source=pl.lit("kernel"),
        step=pl.lit(0, dtype=pl.Int32),
    )
    labelled = label_layers(events.with_columns(names.categories(events["name"])))
    function = names_kernels.function(kernels["kernel_name"])
    launches = labelled.with_columns(
        launch=pl.struct(function.alias("function"), kernels["grid"], kernels["block"])
    )
    ends = {
        row: stage for run in launches.partition_by("rank") for row, stage in _ends(run).items()
    }
    at_end = pl.Series(list(ends), dtype=pl.Int64)
    stage = labelled["stage"].scatter(at_end, pl.Series(list(ends.values()), dtype=pl.String))
    return kernels.select(
        "kernel_id",
        "kernel_name",
        labelled["category"],
        labelled["layer"],
        stage=stage,
        confidence=labelled["confidence"].scatter(at_end, _EDGE_CONFIDENCE),
    )


def _ends(run: pl.DataFrame) -> dict[int, str]:
    """Stages of the pieces of layers at both ends of a run, by ``event``."""
    whole = run["layer"].is_not_null().arg_true()
    if not whole.len():
        return {}
    before, after = run[: whole[0]], run[whole[-1] + 1 :]
    found: dict[int, str] = {}
    for layer in run.drop_nulls("layer").partition_by("layer", maintain_order=True):
        for piece, part in ((before, layer.tail(before.height)), (after, layer.head(after.height))):
            if piece.height and piece["launch"].equals(part["launch"]):
                found |= zip(piece["event"], part["stage"], strict=True)
    return found
