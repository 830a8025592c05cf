"""Labels of device events: step, phase, layer and stage. Most analyses use this frame."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import polars as pl

from llmprof import names
from llmprof.analyze.activity import activity, coded_names
from llmprof.analyze.catalog import Analysis, Section
from llmprof.analyze.layers.evidence import with_captures, with_modules
from llmprof.analyze.layers.sequences import label
from llmprof.analyze.modules import modules_of
from llmprof.analyze.nesting import innermost
from llmprof.analyze.steps.steps import events_with_steps, steps
from llmprof.arguments import refuse_unknown
from llmprof.trace import Trace

_CALL_RANGE: Final = r"^nccl:"
"""Ranges that torch's process groups open around their calls."""
_ENGINES: Final = ("vllm", "sglang", "capture")
"""Sources of steps in which each step is one pass of one model, and of its draft model."""


@Analysis(
    question="Which step, layer and stage does each event belong to?",
    help="every device event with its step, layer and stage",
    view="events",
    columns="rank stream step phase layer stage start_ns dur_ns name",
    section=Section(
        "timeline",
        "One lane for each {stream}, grey where nothing runs on it. Point at a bar to see its {event} and length.",
        question="What does one step look like?",
    ),
    figures=("llmprof.report.figures:STEP_TIMELINE", "llmprof.report.figures:LAYER_TIMELINE"),
    apart=(),
)
def attribute(trace: Trace) -> pl.DataFrame:
    """Device activity with step, phase, layer and stage.

    Parameters
    ----------
    trace : Trace
        Any trace with device activity or operators.

    Returns
    -------
    polars.DataFrame
        The columns of :func:`~llmprof.analyze.activity.activity`, then ``step`` and ``phase`` (null where no
        step is known), ``layer`` (from 0 in each step, null outside the layers), ``stage`` and ``confidence``
        (null outside the layers). Stages inside a layer: norm, qkv_proj, rope, kv_cache_write, attention,
        o_proj, all_reduce, gate_up_proj, activation, down_proj, residual, for mixtures of experts router,
        expert_dispatch, experts, combine, shared_experts (those that every token goes to), for sparse attention
        indexer (scores of keys) and top_k (their choice), and where a state space or linear attention takes the place
        of attention in_proj, conv, scan, gate_norm, out_proj; lora: products with adapters. In models where only some
        of these have a feed-forward part, that part is a layer of its own (Nemotron-H). Outside: prepare_inputs,
        embedding, final_norm, lm_head, sampling, draft, encoder (of images or sound, before the language model),
        kv_transfer (keys and values to or from another engine or memory), copy, other, and the kind of a collective. An
        event that only prepares the next one (a cleared workspace, the quantization of a GEMM's input) has the stage of
        that event. The confidence is 1 if the end of the layer follows from its activation or experts and its number of
        GEMMs is that of most layers of the rank, 0.8 if this number differs, and 0.5 if the end was taken from other
        layers. A layer's events before its attention have the confidence of the end before them. ``evidence`` of the
        stage is module (the launch was in it; the layer is then the module's, too), operator, metadata (of a copy),
        name (of the kernel) or position (its place among the others). ``reason`` says why an event that may belong to a
        layer has none: no step, draft model (its passes have the stage ``draft``), encoder (its passes have the stage
        ``encoder``), several passes or several models in one step, convolutions (an image model), unlike the other
        layers.

    Raises
    ------
    NotCapturedError
        The trace has neither kernels nor copies nor operators.

    Examples
    --------
    >>> analyze.attribute(trace).select("rank", "step", "layer", "stage", "category", "evidence").columns
    ['rank', 'step', 'layer', 'stage', 'category', 'evidence']
    """
    events = events_with_steps(trace)
    engine = steps(trace).filter(pl.col("source").is_in(_ENGINES)).select("rank", "step")
    named = label(events, _described_kinds(events, trace), engine, coded_names(trace))
    attributed = with_modules(named, modules_of(named, trace))
    return with_captures(attributed, trace.kernels) if trace.has("kernels") else attributed


def _described_kinds(events: pl.DataFrame, trace: Trace) -> pl.DataFrame | None:
    """``event, kind`` of collectives whose description differs from their kernels' names."""
    # The description comes from the profiler's metadata, or else from the operator or the range of torch's process
    # group around the call (`nccl:all_to_all`): NCCL runs an all-to-all with send and receive kernels, RCCL has a
    # kernel for any kind.
    parts = [p for p in (_kinds_of_metadata(events, trace), _kinds_of_calls(events, trace)) if p is not None]
    return pl.concat(parts).unique("event", keep="first", maintain_order=True) if parts else None


def _kinds_of_calls(events: pl.DataFrame, trace: Trace) -> pl.DataFrame | None:
    kernels = events.filter((pl.col("category") == "collective") & pl.col("launch_start_ns").is_not_null())
    vague = kernels.filter(names.collective_kinds(kernels["name"]).is_in(["send_recv", "other"]))
    if not vague.height:
        return None
    columns = ("rank", "thread", "start_ns", "dur_ns", "name")
    calls = []
    if trace.has("markers"):
        calls.append(trace.markers.filter(~pl.col("on_device") & pl.col("name").str.contains(_CALL_RANGE)))
    if trace.has("ops"):
        calls.append(trace.ops.filter(names.operator_categories(trace.ops["name"]).fill_null("") == "collective"))
    around = pl.concat(frame.select(columns) for frame in calls) if calls else pl.DataFrame(schema=events.schema)
    kinds = names.collective_kinds(around["name"])
    around = around.with_columns(kind=kinds, thread=pl.col("thread").fill_null(-1)).filter(pl.col("kind") != "other")
    if not around.height:
        return None
    points = vague.select("event", "rank", "launch_start_ns", thread=pl.col("launch_thread").fill_null(-1))
    placed = innermost(points, around, ["rank", "thread"], at="launch_start_ns", name="_call")
    said = placed.select("event", kind=pl.lit(around["kind"]).gather(pl.col("_call")))
    own = vague.select("event", own=names.collective_kinds(vague["name"]))
    return said.drop_nulls().join(own, on="event").filter(pl.col("kind") != pl.col("own")).select("event", "kind")


def _kinds_of_metadata(events: pl.DataFrame, trace: Trace) -> pl.DataFrame | None:
    if not trace.has("collectives"):
        return None
    key = ["rank", "stream", "start_ns", "name"]
    rows = trace.collectives.filter("on_device").select(*key, "kind")
    other = rows["kind"] != names.collective_kinds(rows["name"])
    if not other.any():
        return None
    rows = rows.with_columns(_other=other).unique(key, keep="first", maintain_order=True).filter("_other")
    return events.join(rows, on=key, nulls_equal=True).select("event", "kind") if rows.height else None


def labelled(trace: Trace, columns: Collection[str]) -> pl.DataFrame:
    """Device events with at least these columns: the cheapest frame that has them."""
    for frame_of in (activity, events_with_steps, attribute):
        events = frame_of(trace)
        if set(columns) <= set(events.columns):
            return events
    refuse_unknown(columns, events.columns, "by")
    return events
