"""Labels of device events: step, phase, layer and stage. Most analyses use this frame.

Layers are found in each step from the order of the kernels on the compute stream. Whatever the engine fuses, attention
occurs once in every layer, so each attention starts a stretch that reaches to the next one. (Two attentions with only
GEMMs between them are parts of one: a batch's prefill and its decode.) A stretch holds the rest of one layer and the
beginning of the next. The layer ends with the GEMM after the activation (or with the last expert GEMM and its combine)
and the collective that follows it. The rest of the stretch belongs to the next layer, up to its attention. Stages
inside a layer follow from the kernels' categories or, if the name says nothing (``triton_poi_fused_2``), from the
place. Nothing here loops over events.

There are no layers if attention or the GEMMs around it are not recognised, and on ranks that also run attention
backward (training).
"""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache

import numpy as np
import polars as pl

from llmprof import names
from llmprof.analyze import nesting
from llmprof.analyze.activity import EVIDENCE, activity, coded_names
from llmprof.analyze.catalog import Analysis, Section
from llmprof.analyze.groups import first_of_runs, is_sorted, of_groups
from llmprof.analyze.layers.ends import find_layer_ends
from llmprof.analyze.layers.passes import REASONS, by_captures, by_modules, convolves, judge, starts_of_passes
from llmprof.analyze.layers.stages import STAGE, beside, name_stages, stage
from llmprof.analyze.modules import modules_of
from llmprof.analyze.nesting import innermost
from llmprof.analyze.steps.steps import events_with_steps, steps
from llmprof.arguments import refuse_unknown
from llmprof.trace import Trace

_CALL_RANGE = r"^nccl:"
"""Ranges that torch's process groups open around their calls."""

_NO_STEP = -1
"""Step number, during labelling, of events without a step."""

IN_SEQUENCE = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all")
"""Collectives that belong to the order of the compute stream although they may run on another stream."""

_LEAST_GEMMS = 2
"""A layer has more GEMMs than this (projections before and after attention, feed-forward part or experts)."""

_RECOGNISED = 0.1
"""If separators are recognised, they are between at least this share of neighbouring attentions."""

_SEPARATORS = ("norm", "activation", "moe_experts", "moe_routing", "collective")
"""Kinds of kernels between the attentions of two layers."""

_ADDS = r"(?i)CUDAFunctor_add|\bAddFunctor|aten::add_?$|residual|^triton_poi_fused_add_\d|_Add(?:AiCore)?$|^Add\d+$"
_MULTIPLIES = r"(?i)MulFunctor|aten::mul_?$|^triton_poi_fused_mul_\d|_Muls?(?:AiCore)?$|^Mul\d+$"
_CHOOSES = r"(?i)gatherTopK|bitonicSort|radixSort|\btopk"
"""Choices among values; between GEMMs they choose experts."""
_SINGLE = r"(?i)sgemm|gemm_f32f32|Cijk_\w+?_S_?B_"
"""GEMMs in single precision, which compute the angles of rope."""
_ROTATES = r"(?i)\b(?:cos|sin)_kernel"
_BENDS = r"(?i)\b(?:tanh|erf|sigmoid)_kernel"
"""Activations that the framework computes kernel by kernel."""
_ROOTS, _POWERS = r"(?i)rsqrt", r"(?i)\bpow_|PowFunctor|\bsquare"
"""Parts of a norm that the framework computes kernel by kernel."""
_FUSES_ADD = r"(?i)add_?rms|add_?layer|fused_add|AddRMS|addRms"
_LATENT = r"(?i)\bmla|_mla|mla_|BatchMLA|[a-z]Mla[A-Z]"
"""Kernels of latent attention that multiply with the absorbed projections of k and v."""
_READIES = r"(?i)prepare_varlen|get_scheduler_metadata|get_mla_metadata"
_ROUTES = "(?i)topk|gating|softmax|routing|gate"
_MOVES = "(?i)init_?routing|finali[sz]e|permute|re_?routing"
"""Kernels of a mixture of experts that bring tokens to the experts or back, and do not choose."""
_CACHES = "(?i)CatArray|index_copy|index_put|aten::cat$"
_PREPARES = (
    r"^aten::(?:view|reshape|empty|empty_like|empty_strided|new_empty|slice|select|narrow|split|split_with_sizes|chunk|"
    r"unbind|as_strided|expand|permute|transpose|t|squeeze|unsqueeze|flatten|unflatten|detach|alias|lift_fresh|"
    r"resolve_conj|resolve_neg|movedim)$"
)
"""Operators that only bring tensors into the form that the next operator needs."""


_SOURCES = pl.Enum(["kernel", "copy", "op"])


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
        The columns of :func:`~llmprof.analyze.activity.activity`, then ``step`` and ``phase`` (null where no step is
        known), ``layer`` (from 0 in each step, null outside the layers), ``stage`` and ``confidence`` (null outside
        the layers). Stages inside a layer: norm, qkv_proj, rope, kv_cache_write, attention, o_proj, all_reduce,
        gate_up_proj, activation, down_proj, residual, and for mixtures of experts router, expert_dispatch, experts,
        combine. Outside: prepare_inputs, embedding, final_norm, lm_head, sampling, draft, copy, other, and the kind of
        a collective. An event that only prepares the next one (a cleared workspace, the quantization of a GEMM's input)
        has the stage of that event. The confidence is 1 if the end of the layer follows from its activation or experts
        and its number of GEMMs is that of most layers of the rank, 0.8 if this number differs, and 0.5 if the end was
        taken from other layers. A layer's events before its attention have the confidence of the end before them.
        ``evidence`` of the stage is module (the launch was in it; the layer is then the module's, too), operator,
        metadata (of a copy), name (of the kernel) or position (its place among the others). ``reason`` says why an
        event that may belong to a layer has none: no step, draft model (its passes have the stage ``draft``), several
        passes or several models in one step, convolutions (an image model), unlike the other layers.

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
    labelled_events = label(events, _described_kinds(events, trace), engine, coded_names(trace))
    attributed = _with_modules(labelled_events, trace)
    return by_captures(attributed, trace.kernels) if trace.has("kernels") else attributed


_ENGINES = ("vllm", "sglang", "capture")
"""Sources of steps in which each step is one pass of one model, and of its draft model."""


_SAID_BY_CATEGORY = (
    "norm", "attention", "rope", "kv_cache_write", "activation", "embedding", "sampling", "moe_experts", "collective",
    "copy",
)  # fmt: skip
"""Categories that determine the stage; the stage of a GEMM follows from its place."""


def _with_modules(attributed: pl.DataFrame, trace: Trace) -> pl.DataFrame:
    """Replace layers and stages from names and place by those from modules, and add ``evidence``."""
    alone = pl.col("category").is_in(_SAID_BY_CATEGORY)
    alone &= pl.col("stage") != "draft"
    by_category = pl.when(alone).then("category_by").otherwise(pl.lit("position", dtype=EVIDENCE))
    unknown = pl.col("stage").is_null() | (pl.col("reason").is_not_null() & (pl.col("stage") == "other"))
    attributed = attributed.with_columns(evidence=pl.when(~unknown).then(by_category))
    modules = modules_of(attributed, trace)
    if modules is None:
        return attributed
    by_module = by_modules(attributed, modules)
    attributed = attributed.join(
        by_module.rename({"layer": "_layer", "stage": "_stage", "reason": "_reason"}),
        on="event",
        how="left",
        maintain_order="left",
    )
    of_module = pl.col("stage_known").fill_null(value=False)
    layer_known = pl.col("layer_known").fill_null(value=False)
    layer = pl.when(layer_known).then("_layer").otherwise("layer")
    sure = pl.when(layer.is_null()).then(None).when(of_module).then(1.0).otherwise(pl.coalesce("confidence", 1.0))
    return attributed.with_columns(
        layer=layer.cast(pl.Int32),
        stage=pl.coalesce(pl.col("_stage").cast(pl.String), "stage"),
        confidence=sure,
        evidence=pl.when(of_module).then(pl.lit("module", dtype=EVIDENCE)).otherwise("evidence"),
        reason=pl.when(layer_known).then("_reason").otherwise("reason"),
    ).drop("_layer", "_stage", "_reason", "layer_known", "stage_known")


def _described_kinds(events: pl.DataFrame, trace: Trace) -> pl.DataFrame | None:
    """``event, kind`` of collectives whose description differs from their kernels' names.

    The description comes from the profiler's metadata, or else from the range that torch's process group opens around
    the call (``nccl:all_to_all``): NCCL runs an all-to-all with send and receive kernels.
    """
    parts = [p for p in (_kinds_of_metadata(events, trace), _kinds_of_ranges(events, trace)) if p is not None]
    return pl.concat(parts).unique("event", keep="first", maintain_order=True) if parts else None


def _kinds_of_ranges(events: pl.DataFrame, trace: Trace) -> pl.DataFrame | None:
    if not trace.has("markers"):
        return None
    ranges = trace.markers.filter(~pl.col("on_device") & pl.col("name").str.contains(_CALL_RANGE))
    calls = events.filter((pl.col("category") == "collective") & pl.col("launch_start_ns").is_not_null())
    if not ranges.height or not calls.height:
        return None
    ranges = ranges.with_columns(kind=names.collective_kinds(ranges["name"]), thread=pl.col("thread").fill_null(-1))
    calls = calls.select(
        "event", "rank", "launch_start_ns", thread=pl.col("launch_thread").fill_null(-1),
        named=names.collective_kinds(calls["name"]),
    )  # fmt: skip
    placed = innermost(calls, ranges, ["rank", "thread"], at="launch_start_ns", name="_range")
    placed = placed.with_columns(kind=pl.lit(ranges["kind"]).gather(pl.col("_range")))
    vague = pl.col("named").is_in(["send_recv", "other"])
    return placed.filter(vague & (pl.col("kind") != "other") & (pl.col("kind") != pl.col("named"))).select(
        "event", "kind"
    )


def _kinds_of_metadata(events: pl.DataFrame, trace: Trace) -> pl.DataFrame | None:
    if not trace.has("collectives"):
        return None
    key = ["rank", "stream", "start_ns", "name"]
    rows = trace.collectives.filter("on_device").select(*key, "kind")
    other = rows["kind"] != names.collective_kinds(rows["name"])
    if not other.any():
        return None
    rows = (
        rows.with_columns(_other=other).unique(key, keep="first", maintain_order=True).filter("_other").drop("_other")
    )
    return events.join(rows, on=key, nulls_equal=True).select("event", "kind") if rows.height else None


def label(
    events: pl.DataFrame,
    kinds: pl.DataFrame | None = None,
    engine: pl.DataFrame | None = None,
    coded: pl.Series | None = None,
) -> pl.DataFrame:
    """Layer, stage and confidence of events that have a step.

    Parameters
    ----------
    events : polars.DataFrame
        ``event, rank, stream, start_ns, name, source, category, step``, in the order of ``event``.
    kinds : polars.DataFrame, optional
        ``event, kind`` of collectives whose name does not say their kind.
    engine : polars.DataFrame, optional
        ``rank, step`` of the steps that an engine labelled.
    coded : polars.Series, optional
        Names of the events (Categorical), if they are at hand.

    Returns
    -------
    polars.DataFrame
        The frame with ``layer, stage, confidence, reason``.
    """
    roles = _roles(events, kinds, events["name"].cast(pl.Categorical) if coded is None else coded)
    no_step = pl.when(pl.col("step").is_null()).then(pl.lit("no step", dtype=REASONS))
    # events launched before the recording began have no step, but a place among the others of their stream
    with_steps = roles.filter(pl.col("attends") & pl.col("step").is_not_null())["rank"].unique()
    stepless = pl.col("step").is_null() & pl.col("rank").is_in(with_steps.implode())
    in_sequence = pl.col("sequence").is_not_null() & (pl.col("step").is_not_null() | stepless)
    sequence, unknown = _stretches(roles.filter(in_sequence).with_columns(pl.col("step").fill_null(_NO_STEP)))
    in_sequence &= ~pl.col("rank").is_in(unknown)
    nothing = {"layer": pl.lit(None, dtype=pl.Int32), "confidence": pl.lit(None, dtype=pl.Float64)}
    rows = roles.filter(~in_sequence).select("event", stage=_stage_outside(), reason=no_step, **nothing)
    if sequence.height:
        named = judge(name_stages(find_layer_ends(sequence)), sequence, engine)
        rows = pl.concat([named, rows], how="diagonal")
    rows = rows.sort("event").select("layer", pl.col("stage").cast(pl.String), "confidence", "reason")
    return beside(events.hstack(rows))


def _stage_outside() -> pl.Expr:
    """Stage of an event outside of all steps' sequences."""
    return (
        pl.when(pl.col("step").is_null())
        .then(None)
        .when(pl.col("category") == "collective")
        .then("kind")
        .when(pl.col("source") == "copy")
        .then(stage("copy"))
        .otherwise(stage("other"))
    )


def _roles(events: pl.DataFrame, kinds: pl.DataFrame | None, coded: pl.Series) -> pl.DataFrame:
    """Role of each event in a layer, and the sequence that it belongs to.

    Patterns are matched once for each distinct name. Names are joined by number, and categories and stages are numbers
    until the end: with text, ten million events take three times as long.
    """
    launches = [c for c in ("launch_thread", "launch_start_ns") if c in events.columns]
    events = _on_streams(events).select(
        "event",
        "rank",
        "stream",
        "start_ns",
        "step",
        *launches,
        pl.col("source").cast(_SOURCES),
        pl.col("category").cast(pl.Enum(names.CATEGORIES)),
        name=coded,
        _name=coded.to_physical(),
    )
    number = pl.col("_name").cast(pl.Int64) * len(names.CATEGORIES) + pl.col("category").to_physical()
    key = events.select(number * len(_SOURCES.categories) + pl.col("source").to_physical()).to_series()
    distinct = events.select("name", "category", "source", key.alias("_key")).filter(key.is_first_distinct())
    texts = (distinct[column].cast(pl.String).to_list() for column in ("name", "category", "source"))
    about = _roles_of_names(tuple(zip(*texts, strict=True))).with_columns(distinct["_key"])
    roles = events.drop("name", "_name", *launches).with_columns(key.alias("_key"))
    roles = roles.join(about, on="_key", how="left", maintain_order="left").drop("_key")
    if kinds is not None:
        rows = kinds.select("event", said=pl.col("kind").cast(STAGE, strict=False))
        roles = roles.join(rows, on="event", how="left", maintain_order="left")
        roles = roles.with_columns(kind=pl.coalesce("said", "kind")).drop("said")
    streams = (
        roles.filter(pl.col("attends") | pl.col("backward"))
        .group_by("rank", "stream")
        .agg(n=pl.col("attends").sum(), backward=pl.col("backward").any())
        .filter((pl.col("n") > 0) & ~pl.col("backward").any().over("rank"))
    )
    main = streams.sort("n", "stream", descending=[True, False]).unique("rank", keep="first", maintain_order=True)
    (main_stream,) = of_groups(roles, main.select("rank", "stream"), ["rank"])
    attends = streams.select("rank", "stream", attends=pl.lit(value=True))
    (attention_stream,) = of_groups(roles, attends, ["rank", "stream"])
    launched_after = _stream_launched_before(events, attention_stream, streams)
    return roles.with_columns(
        sequence=pl.when(attention_stream)
        .then("stream")
        .when(pl.col("kind").is_in(IN_SEQUENCE))
        .then(pl.coalesce(launched_after, main_stream))
    ).drop("backward")


@lru_cache(maxsize=64)
def _roles_of_names(distinct: tuple[tuple[str, str, str], ...]) -> pl.DataFrame:
    """Roles of events by distinct name, category and source; cached, since this matches many patterns."""
    schema = {"name": pl.String(), "category": pl.Enum(names.CATEGORIES), "source": _SOURCES}
    unique = pl.DataFrame(distinct, schema=schema, orient="row")
    name, category = pl.col("name"), pl.col("category")
    plain = category.is_in(["other", "elementwise"])
    training = name.str.contains(f"(?i){names.OPTIMIZER}")
    backward = ((category == "attention") & name.str.contains(f"(?i){names.BACKWARD}")) | training
    return unique.select(
        kind=pl.when(category == "collective").then(names.collective_kinds(unique["name"]).cast(STAGE)),
        attends=(category == "attention") & ~name.str.contains(f"(?i){names.ATTENTION_HELPERS}") & ~backward,
        backward=backward,
        gemm=((category == "linear") & ~name.str.contains(f"(?i){names.GEMM_HELPERS}")) | (category == "moe_experts"),
        single=(category == "linear") & name.str.contains(_SINGLE),
        rotates=plain & name.str.contains(_ROTATES),
        bends=(category == "elementwise") & name.str.contains(_BENDS),
        roots=(category == "norm") | (plain & name.str.contains(_ROOTS)),
        powers=plain & name.str.contains(_POWERS),
        fuses_add=(category == "norm") & name.str.contains(_FUSES_ADD),
        latent=name.str.contains(_LATENT),
        readies=name.str.contains(_READIES),
        chooses=plain & name.str.contains(_CHOOSES),
        adds=plain & name.str.contains(_ADDS),
        multiplies=plain & name.str.contains(_MULTIPLIES),
        routes=(category == "moe_routing") & name.str.contains(_ROUTES) & ~name.str.contains(_MOVES),
        convolves=(category == "linear") & convolves(),
        embeds=(category == "embedding") & name.str.contains(f"(?i){names.EMBEDDING}"),
        caches=(category == "copy") & name.str.contains(_CACHES),
        prepares=(category == "quantize")
        | ((pl.col("source") == "copy") & (category == "fill"))
        | ((pl.col("source") == "op") & name.str.contains(_PREPARES)),
    )


def _on_streams(events: pl.DataFrame) -> pl.DataFrame:
    """Events of an unknown stream (annotated CUDA graphs), put in order with the busiest stream of their rank."""
    if not events["stream"].null_count():
        return events
    counts = events.filter(pl.col("stream").is_not_null()).group_by("rank", "stream").len()
    busiest = counts.sort("len", "stream", descending=[True, False]).unique("rank", keep="first", maintain_order=True)
    events = events.join(busiest.select("rank", _busiest="stream"), on="rank", how="left", maintain_order="left")
    return events.with_columns(stream=pl.coalesce("stream", "_busiest", 0)).drop("_busiest")


def _stream_launched_before(events: pl.DataFrame, attends: pl.Series, streams: pl.DataFrame) -> pl.Series:
    """Of the streams with attention, the one with the last launch of the same thread before each event.

    If a batch runs in halves on several streams, a collective on another stream belongs to the half that was being
    launched. Null on ranks with one such stream, and if launches were not recorded.
    """
    several = streams.group_by("rank").len().filter(pl.col("len") > 1)["rank"]
    nothing = pl.Series("launched_after", [None], dtype=pl.Int64).new_from_index(0, events.height)
    if not several.len() or "launch_start_ns" not in events.columns:
        return nothing
    frame = events.select("rank", "launch_thread", "launch_start_ns", row=pl.int_range(pl.len()))
    frame = frame.with_columns(at=pl.when(attends.fill_null(value=False)).then(events["stream"]))
    launched = pl.col("rank").is_in(several.implode()) & pl.col("launch_start_ns").is_not_null()
    order = frame.filter(launched).sort("rank", "launch_thread", "launch_start_ns", "row")
    order = order.select("row", launched_after=pl.col("at").forward_fill().over("rank", "launch_thread"))
    joined = frame.select(pl.col("row").cast(pl.Int64)).join(
        order.with_columns(pl.col("row").cast(pl.Int64)), on="row", how="left", maintain_order="left"
    )
    return joined["launched_after"]


def _stretches(sequence: pl.DataFrame) -> tuple[pl.DataFrame, list[int]]:
    """Order the events of each step, and divide them into stretches that begin with an attention.

    Ranks whose GEMMs are not recognised (hardly any follow most attentions) are returned separately and have no rows.
    """
    key = ("rank", "sequence", "step")
    order = (*key, "start_ns", "event")
    frame = sequence if is_sorted(sequence, order) else sequence.sort(order)
    begins = np.zeros(frame.height, dtype=np.bool_)
    begins[first_of_runs(frame, key)] = True
    frame = frame.with_columns(pl.Series("first", begins), row=pl.int_range(pl.len()))
    if frame["rotates"].any():
        frame = frame.with_columns(gemm=pl.col("gemm") & ~_of_angles())
    mark = pl.when("attends").then(1).when(pl.col("gemm") | pl.col("first")).then(2)
    before = mark.forward_fill().shift(1)
    frame = frame.with_columns(
        attention_start=pl.col("attends") & (pl.col("first") | (before != 1)),
        group=pl.col("first").cum_sum() - 1,
        gemms=pl.col("gemm").cum_sum(),
        separators=pl.col("category").is_in(_SEPARATORS).cum_sum(),
    )
    starts = frame.select("rank", "row", "group", "gemms", "separators", "attention_start").filter("attention_start")
    # only GEMMs since the attention before it: another part of the same attention, if separators are recognised
    inner = pl.col("group") == pl.col("group").shift(1)
    apart = pl.when(inner).then(pl.col("separators") != pl.col("separators").shift(1))
    starts = starts.with_columns(apart=apart).with_columns(known=pl.col("apart").mean().over("rank") > _RECOGNISED)
    is_part = (~pl.col("apart") & pl.col("known")).fill_null(value=False)
    parts, starts = starts.filter(is_part)["row"], starts.filter(~is_part)
    if parts.len():
        frame = frame.with_columns(pl.col("attention_start") & ~pl.col("row").is_in(parts.implode()))
    # hardly any GEMM after most attentions: GEMMs are not recognised, so there are no layers
    ends = frame.group_by("group", maintain_order=True).agg(all_gemms=pl.col("gemms").last())
    until = pl.when(pl.col("group") == pl.col("group").shift(-1)).then(pl.col("gemms").shift(-1))
    starts = starts.with_columns(until=pl.coalesce(until, nesting.column(ends, "all_gemms", "group")))
    usual = starts.group_by("rank").agg(gemms=(pl.col("until") - pl.col("gemms")).median())
    unknown = usual.filter(pl.col("gemms") < _LEAST_GEMMS)["rank"]
    if unknown.len():
        frame, _ = _stretches(sequence.filter(~pl.col("rank").is_in(unknown.implode())))
        return frame, unknown.to_list()
    passes = starts_of_passes(frame)
    if passes.len():
        first = pl.col("first") | pl.col("row").is_in(passes.implode())
        frame = frame.with_columns(first=first).with_columns(group=pl.col("first").cum_sum() - 1)
    return frame.drop("separators").with_columns(
        stretch=((pl.col("first") | pl.col("attention_start")).cum_sum() - 1).set_sorted(),
        attentions=pl.col("attention_start").cum_sum(),
    ), []


def _of_angles() -> pl.Expr:
    """Whether a GEMM in single precision multiplies positions by frequencies: a cosine or sine follows, and no GEMM."""
    mark = pl.when("rotates").then(1).when(pl.col("gemm") | pl.col("attends")).then(2)
    return pl.col("single") & (mark.backward_fill().shift(-1) == 1).fill_null(value=False)


def labelled(trace: Trace, columns: Collection[str]) -> pl.DataFrame:
    """Device events with at least these columns: the cheapest frame that has them.

    Raises
    ------
    AnalysisError
        None has all of them.
    """
    for frame_of in (activity, events_with_steps, attribute):
        events = frame_of(trace)
        if set(columns) <= set(events.columns):
            return events
    refuse_unknown(columns, events.columns, "by")
    return events
