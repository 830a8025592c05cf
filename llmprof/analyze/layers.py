"""Every layer of every step, and its stages."""

from __future__ import annotations

from typing import Literal

import polars as pl

from llmprof.analyze._line import INTERVAL
from llmprof.analyze._memo import per_trace
from llmprof.analyze._stages import STAGE
from llmprof.analyze.activity import outermost_ops
from llmprof.analyze.attribution import attribute
from llmprof.analyze.intervals import union_lengths
from llmprof.errors import AnalysisError
from llmprof.trace import Trace

_LAUNCH = ("correlation", "launch_thread", "launch_start_ns", "launch_end_ns")
_MEASURES = ("start_ns", "dur_ns", "busy_ns", "kernels", "confidence", "host_start_ns", "host_dur_ns")


@per_trace
def layers(trace: Trace, by: Literal["stage", "layer"] = "stage") -> pl.DataFrame:
    """Layers of every step of every rank, one row a stage or one row a layer.

    A stage that occurs twice in a layer (the two norms, the two all-reduces) gives a row each time, told apart by
    ``occurrence``. A layer reaches on the device from the start of its first kernel to the end of its last one.

    On the host a layer reaches from the start of the outermost operator that launched its first kernel to the end of
    the one that launched its last: the Python and dispatch time of the layer. It is null where one launch (a CUDA
    graph) stands for kernels of several layers and where launches were not recorded.

    Parameters
    ----------
    trace : Trace
        Any trace whose steps and attention kernels are found.
    by : {"stage", "layer"}
        What a row is.

    Returns
    -------
    polars.DataFrame
        ``rank, step, phase, layer, stage, occurrence, start_ns, dur_ns, busy_ns, kernels, confidence, host_start_ns,
        host_dur_ns``; ``stage`` and ``occurrence`` are left out with ``by="layer"``. ``dur_ns`` is the span,
        ``busy_ns`` the part of it in which some kernel or copy of it ran, ``kernels`` counts both.

    Raises
    ------
    NotCapturedError
        The trace has neither kernels nor copies nor operators.
    AnalysisError
        ``by`` is neither of the two.
    """
    if by not in ("stage", "layer"):
        raise AnalysisError(f"by={by!r} is not known", expected="'stage' or 'layer'")
    key = ["rank", "step", "layer", *(["stage"] if by == "stage" else [])]
    events = (
        attribute(trace)
        .select(*key, "phase", "confidence", "event", *INTERVAL, *_LAUNCH)
        .filter(pl.col("layer").is_not_null())
        .sort("rank", "step", "layer", "start_ns", "event")
        .with_columns(group=pl.struct(key).rle_id().set_sorted())
    )
    first = pl.col("group") != pl.col("group").shift(1)
    groups = events.filter(first.fill_null(value=True)).select("group", *key, "phase")
    counts = events.group_by("group", maintain_order=True).agg(kernels=pl.len(), confidence=pl.col("confidence").min())
    groups = groups.hstack(counts.drop("group"))
    if by == "stage":
        groups = groups.hstack([_occurrences(groups)])
        key.append("occurrence")
    spans = union_lengths(events, ["group"], busy_ns=pl.lit(value=True)).select(
        "busy_ns", start_ns="first_ns", dur_ns=pl.col("last_ns") - pl.col("first_ns")
    )
    return (
        groups.hstack(spans)
        .join(_host_spans(events, trace), on="group", how="left", maintain_order="left")
        .select("rank", "step", "phase", *key[2:], *_MEASURES)
    )


def _occurrences(groups: pl.DataFrame) -> pl.Series:
    """How many groups before each one have its stage in the same layer; the groups of a layer follow each other."""
    layer = pl.struct("rank", "step", "layer").rle_id()
    row = pl.int_range(pl.len(), dtype=pl.Int32)
    same = groups.select(group="group", layer=layer, stage=pl.col("stage").cast(STAGE)).sort("layer", "stage", "group")
    run = pl.struct("layer", "stage").rle_id()
    begins = pl.when((run != run.shift(1)).fill_null(value=True)).then(row)
    return same.with_columns(occurrence=row - begins.forward_fill()).sort("group")["occurrence"]


def _host_spans(events: pl.DataFrame, trace: Trace) -> pl.DataFrame:
    """Host span of each group, null where one of its launches also stands for another layer."""
    launched = events.select("group", "rank", "layer", *_LAUNCH).filter(pl.col("launch_start_ns").is_not_null())
    shared = (
        launched.filter(pl.col("correlation").is_not_null())
        .group_by("rank", "correlation")
        .agg(shared=pl.col("layer").min() != pl.col("layer").max())
    )
    launched = launched.join(shared, on=["rank", "correlation"], how="left", maintain_order="left")
    alone = launched.group_by("group", maintain_order=True).agg(alone=~pl.col("shared").fill_null(value=False).any())
    launched = (
        launched.join(alone.filter("alone"), on="group", how="semi", maintain_order="left")
        .sort("launch_start_ns")
        .with_columns(begin="launch_start_ns", end="launch_end_ns")
    )
    if trace.has("ops"):
        ops = outermost_ops(trace.ops).select(
            "rank",
            launch_thread="thread",
            launch_start_ns="start_ns",
            op_start_ns="start_ns",
            op_end_ns=pl.col("start_ns") + pl.col("dur_ns"),
        )
        launched = launched.join_asof(
            ops.sort("launch_start_ns"), on="launch_start_ns", by=["rank", "launch_thread"], check_sortedness=False
        )
        inside = pl.col("op_end_ns") >= pl.col("launch_start_ns")
        launched = launched.with_columns(
            begin=pl.when(inside).then("op_start_ns").otherwise("begin"),
            end=pl.when(inside).then("op_end_ns").otherwise("end"),
        )
    spans = launched.sort("group").group_by("group").agg(pl.col("begin").min(), pl.col("end").max())
    return spans.select("group", host_start_ns="begin", host_dur_ns=pl.col("end") - pl.col("begin"))
