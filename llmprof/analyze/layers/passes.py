"""Forward passes within a step, and the layers that the modules of events name."""

from __future__ import annotations

from functools import cache

import polars as pl

from llmprof import names
from llmprof.analyze import nesting
from llmprof.analyze.activity import CAPTURED, EVIDENCE
from llmprof.analyze.layers.stages import STAGE, stage

REASONS = pl.Enum(
    [
        "no step",
        "no attention",
        "draft model",
        "several passes in one step",
        "several models in one step",
        "convolutions: an image model",
        "unlike the other layers",
    ]
)
"""Reasons why an event has no layer although it may be part of one."""

_MOST_SEAMS = 0.5
"""If more than this share of the stretches between attentions has sampling or embeddings, these do not mark passes."""

_MOST_CONVOLUTIONS = 4
"""Most convolutions of a language model: those for patches of an image or frames of sound in its input."""

_UNLIKE = 2.5
"""A layer has at most this multiple of the events of the usual layer …"""

_OFTEN = 0.1
"""… unless at least this share of the layers is as large: then it is another kind of layer."""

_MOST_UNLIKE = 0.25
"""If more than this share of a step's layers is unlike the others, no layer of the step is known."""


_SAY_THEIR_STAGE = ("norm", "rope", "kv_cache_write", "attention", "activation", "embedding", "sampling", "copy")
"""Categories that are stages in every model."""


def starts_of_passes(frame: pl.DataFrame) -> pl.Series:
    """Rows at which another pass begins within a step.

    Parameters
    ----------
    frame : polars.DataFrame
        Rows in order: ``row, first`` (of a step), ``attention_start, category, embeds``.

    Returns
    -------
    polars.Series
        Row numbers.
    """
    row = pl.col("row")
    marks = frame.select(
        "row",
        "attention_start",
        "first",
        sampled=pl.when(pl.col("category") == "sampling").then(row),
        embedded=pl.when("embeds").then(row),
    ).with_columns(stretch=(pl.col("first") | pl.col("attention_start")).cum_sum(), step=pl.col("first").cum_sum())
    marked = marks.filter(pl.col("sampled").is_not_null() | pl.col("embedded").is_not_null())
    if not marked.height:
        return pl.Series("row", dtype=pl.Int64)
    begins = marks.filter(pl.col("first") | pl.col("attention_start")).select("stretch", "step", "attention_start")
    inner = begins.filter(pl.col("attention_start") & (pl.col("step") == pl.col("step").shift(-1)))
    embedded = pl.col("embedded").min()
    sampled = pl.col("sampled").filter(pl.col("sampled") < embedded.fill_null(1 << 62)).max()
    seams = (
        marked.join(inner.select("stretch"), on="stretch", how="semi")
        .group_by("stretch", "step")
        .agg(start=pl.coalesce(sampled + 1, embedded))
    )
    counts = inner.group_by("step").agg(stretches=pl.len()).join(seams.group_by("step").agg(seams=pl.len()), on="step")
    few = counts.filter(pl.col("seams") <= _MOST_SEAMS * pl.col("stretches"))
    return seams.join(few, on="step", how="semi")["start"].sort().alias("row")


def judge(named: pl.DataFrame, sequence: pl.DataFrame, engine: pl.DataFrame | None) -> pl.DataFrame:
    """Remove wrong layers, with a reason.

    Parameters
    ----------
    named : polars.DataFrame
        ``event, group, layer, stage, confidence`` of the rows of ``sequence``.
    sequence : polars.DataFrame
        ``event, rank, sequence, step, group`` (pass), ``attention_start, category, convolves``.
    engine : polars.DataFrame or None
        ``rank, step`` of the steps that an engine labelled: one pass of one model each, and of its draft model.

    Returns
    -------
    polars.DataFrame
        ``event, layer, stage, confidence, reason``.
    """
    key = ["rank", "sequence", "step"]
    passes = sequence.group_by("group", maintain_order=True).agg(
        pl.col(key).first(), layers=pl.col("attention_start").sum(), convolutions=pl.col("convolves").sum()
    )
    passes = passes.with_columns(
        most=pl.col("layers").max().over(key),
        main=(pl.col("layers") > 0) & (pl.col("layers") == pl.col("layers").max()).over(key),
        convolutions=pl.col("convolutions").sum().over(key),
    ).with_columns(
        first_main=pl.col("group").filter("main").min().over(key),
        with_layers=(pl.col("layers") > 0).sum().over(key),
        mains=pl.col("main").sum().over(key),
        earliest=pl.col("group").filter(pl.col("layers") > 0).min().over(key),
    )
    if engine is None:
        passes = passes.with_columns(engine=pl.lit(value=False))
    else:
        known = engine.with_columns(engine=pl.lit(value=True))
        passes = passes.join(known, on=["rank", "step"], how="left", maintain_order="left")
    passes = passes.with_columns(reason=_reason())
    named = named.with_columns(nesting.column(passes, c, "group").alias(c) for c in ("rank", "step", "reason"))
    named = _without_unlike(named)
    return named.select("event", *_of_passes())


@cache
def _reason() -> pl.Expr:
    """Why the events of a pass have no layer."""
    by_engine = pl.col("engine").fill_null(value=False)
    drafts = (pl.col("mains") == 1) & (pl.col("earliest") == pl.col("first_main"))
    # events launched before the recording began are the end of one pass or of several
    whole = pl.col("step") >= 0
    return (
        pl.when((pl.col("convolutions") > _MOST_CONVOLUTIONS) & ~by_engine)
        .then(pl.lit("convolutions: an image model", dtype=REASONS))
        .when(whole & (pl.col("with_layers") > 1) & drafts & ~pl.col("main") & (pl.col("group") > pl.col("first_main")))
        .then(pl.lit("draft model", dtype=REASONS))
        .when(whole & (pl.col("with_layers") > 1) & ~drafts & (pl.col("mains") > 1))
        .then(pl.lit("several passes in one step", dtype=REASONS))
        .when(whole & (pl.col("with_layers") > 1) & ~drafts)
        .then(pl.lit("several models in one step", dtype=REASONS))
        .when(pl.col("step") < 0)
        .then(pl.lit("no step", dtype=REASONS))
    )


@cache
def _of_passes() -> tuple[pl.Expr, ...]:
    """``layer, stage, confidence, reason``; without what the reason rules out."""
    placed = pl.col("reason").is_null()
    collective = pl.col("category") == "collective"
    named = (
        pl.when((pl.col("reason") == "no step") & pl.col("stage").is_in(["embedding", "prepare_inputs"]))
        .then(None)  # the rest of a layer whose beginning was not recorded
        .when(placed | collective | (pl.col("reason") == "no step"))
        .then("stage")
        .when(pl.col("reason") == "draft model")
        .then(stage("draft"))
        .when(pl.col("category").is_in(_SAY_THEIR_STAGE))
        .then(pl.col("category").cast(pl.String).cast(STAGE, strict=False))
        .otherwise(stage("other"))
    )
    return (
        pl.when(placed).then("layer").alias("layer"),
        named.alias("stage"),
        pl.when(placed).then("confidence").alias("confidence"),
        pl.col("reason"),
    )


def _without_unlike(named: pl.DataFrame) -> pl.DataFrame:
    """Give the events of layers that are far larger than the others their reason."""
    inside = named.filter(pl.col("layer").is_not_null() & pl.col("reason").is_null())
    if not inside.height:
        return named
    # there are far fewer runs of one layer than rows
    key = ["rank", "step", "group", "layer"]
    runs = inside.select(*key, _run=pl.struct("group", "layer").rle_id().set_sorted())
    runs = runs.group_by("_run").agg(pl.col(key).first(), size=pl.len())
    sizes = runs.group_by(key).agg(pl.col("size").sum())
    usual = pl.col("size").median().over("rank")
    alike = pl.len().over("rank", pl.col("size").log(1.2).round())
    sizes = sizes.with_columns(
        unlike=(pl.col("size") > _UNLIKE * usual) & (alike < _OFTEN * pl.len().over("rank"))
    ).with_columns(share=pl.col("unlike").mean().over("rank", "step"))
    unlike = sizes.filter(pl.col("unlike") | (pl.col("share") > _MOST_UNLIKE))
    if not unlike.height:
        return named
    named = named.join(
        unlike.select("group", "layer", unlike=pl.lit(value=True)), on=["group", "layer"], how="left",
        maintain_order="left",
    )  # fmt: skip
    new = pl.when(pl.col("unlike") & pl.col("reason").is_null())
    return named.with_columns(
        reason=new.then(pl.lit("unlike the other layers", dtype=REASONS)).otherwise("reason")
    ).drop("unlike")


def convolves() -> pl.Expr:
    """Whether the kernel of a linear category is a convolution, by its name."""
    return pl.col("name").str.contains(r"(?i)conv|winograd|igemm_(?:fwd|bwd)|im2col") & ~pl.col("name").str.contains(
        r"(?i)convert|causal_conv"
    )


_PLAIN = ("elementwise", "other", "copy", "fill")
"""Categories of events whose stage follows from what is around them."""

_IN_LAYER = (
    "norm", "qkv_proj", "rope", "kv_cache_write", "attention", "o_proj", "gate_up_proj", "activation", "down_proj",
    "residual", "router", "expert_dispatch", "experts", "combine",
)  # fmt: skip

_OF_EXPERTS = ("router", "expert_dispatch", "experts", "activation", "combine", "gate_up_proj", "down_proj")
_OF_ATTENTION = ("rope", "kv_cache_write", "attention", "norm")


def by_modules(events: pl.DataFrame, modules: pl.DataFrame) -> pl.DataFrame:
    """Layer and stage of events that were launched in a module.

    Parameters
    ----------
    events : polars.DataFrame
        ``event, rank, step, launch_start_ns, category, layer, stage``: the last two follow from names and place.
    modules : polars.DataFrame
        As :func:`~llmprof.analyze.modules.modules_of` gives them.

    Returns
    -------
    polars.DataFrame
        ``event, layer, stage, reason`` and ``layer_known``, ``stage_known``: whether the module determines the layer
        (which may be none) and the stage. Rows for the events of steps in which a module is a layer.
    """
    columns = (
        "layer",
        "stack",
        "root",
        "role",
        "block",
        "block_call",
        "generic",
        "last_linear",
        "before_layers",
        "first_layer_ns",
    )
    rows = modules.select("event", *columns).rename({"layer": "module_layer"})
    frame = events.join(rows, on="event", how="inner")
    in_model = pl.col("first_layer_ns").is_not_null()
    layered = frame.filter(pl.col("module_layer").is_not_null()).select("rank", "step").unique()
    frame = frame.join(layered, on=["rank", "step"], how="semi", nulls_equal=True)
    attends = pl.col("category") == "attention"
    attention_ns = pl.col("launch_start_ns").filter(attends).min().over("block_call")
    # a layer computes only the residual outside of its modules, if these were recorded
    parted = (pl.col("block").is_not_null() | pl.col("role").is_not_null()).any().over("rank", "module_layer")
    frame = frame.with_columns(after_attention=pl.col("launch_start_ns") > attention_ns, parted=parted)
    # the experts' module sends the tokens before its first matrix product, and the results after its last one
    experts, sent_at = pl.col("role") == "experts", pl.col("launch_start_ns")
    products = sent_at.filter(experts & pl.col("category").is_in(["linear", "moe_experts"]))
    frame = frame.with_columns(
        exchanged=experts & (pl.col("category") == "collective") & (pl.col("stage") != "all_reduce"),
        first_expert_ns=products.min().over("block_call"),
        last_expert_ns=products.max().over("block_call"),
    )
    inside = pl.col("module_layer").is_not_null()
    named = (
        pl.when(inside)
        .then(_inside())
        .when(in_model)
        .then(_outside())
        .when(_communicates() | (pl.col("stage") == "draft"))
        .then(None)
        .when(pl.col("role").is_in(["sampling", "lm_head"]))
        .then(pl.col("role").cast(STAGE, strict=False))
    )
    frame = frame.with_columns(named=named)
    # an event outside of layers cannot keep the stage of a layer, and an event in a layer no stage from outside
    kept = pl.col("stage").cast(STAGE)
    frame = frame.join(_roots(frame), on=["rank", "step", "root"], how="left", nulls_equal=True, maintain_order="left")
    # passes without labels between them do not count as several in one step
    frame = frame.with_columns(
        verdict=pl.when(pl.col("step").is_null() & pl.col("verdict").is_not_null())
        .then(pl.lit("no step", dtype=REASONS))
        .otherwise("verdict")
    )
    drafted = (pl.col("verdict") == "draft model").fill_null(value=False)
    fallback = (
        pl.when(inside & ~kept.is_in(_IN_LAYER) & ~_communicates())
        .then(stage("other"))
        .when(~inside & in_model & kept.is_in(_IN_LAYER))
        .then(pl.when("before_layers").then(stage("prepare_inputs")).otherwise(stage("other")))
        .otherwise(kept)
    )
    said_stage = pl.when(drafted & (pl.col("category") != "collective")).then(stage("draft")).otherwise("named")
    return frame.select(
        "event",
        layer=pl.when((inside | in_model) & pl.col("verdict").is_null()).then("module_layer"),
        stage=pl.coalesce(said_stage, fallback),
        layer_known=inside | in_model,
        stage_known=said_stage.is_not_null(),
        reason=pl.when(inside | drafted).then("verdict"),
    )


def by_captures(events: pl.DataFrame, kernels: pl.DataFrame) -> pl.DataFrame:
    """Layer and stage of replayed kernels whose module was recorded when their graph was captured.

    Parameters
    ----------
    events : polars.DataFrame
        ``rank, stream, start_ns, name, layer, stage, confidence, evidence, reason``.
    kernels : polars.DataFrame
        Kernels of the trace.

    Returns
    -------
    polars.DataFrame
        The frame with the labels of the capture, if its modules determine them.
    """
    if f"{CAPTURED}layer" not in kernels.columns:
        return events
    key = ["rank", "stream", "start_ns", "name"]
    rows = kernels.filter(pl.col(f"{CAPTURED}evidence") == "module").select(
        *key, *(pl.col(f"{CAPTURED}{c}").alias(f"_{c}") for c in ("layer", "stage", "confidence"))
    )
    events = events.join(rows.unique(key, keep="first"), on=key, how="left", nulls_equal=True, maintain_order="left")
    by_module = pl.col("_stage").is_not_null() & (pl.col("_stage") != "other")
    sure = pl.when(pl.col("_layer").is_not_null()).then("_confidence")
    return events.with_columns(
        layer=pl.when(by_module).then("_layer").otherwise("layer"),
        stage=pl.when(by_module).then("_stage").otherwise("stage"),
        confidence=pl.when(by_module).then(sure).otherwise("confidence"),
        evidence=pl.when(by_module).then(pl.lit("module", dtype=EVIDENCE)).otherwise("evidence"),
        reason=pl.when(~by_module).then("reason"),
    ).drop("_layer", "_stage", "_confidence")


def _roots(frame: pl.DataFrame) -> pl.DataFrame:
    """``rank, step, root, verdict`` of each model's call in a step: reason why its layers do not count, or null."""
    key = ["rank", "step"]
    roots = (
        frame.filter(pl.col("module_layer").is_not_null())
        .group_by(*key, "root")
        .agg(layers=pl.struct("stack", "module_layer").n_unique(), stacks=pl.col("stack").n_unique())
        .filter(pl.col("layers") > 1)  # an outermost call with one layer is a range of a layer, not a model's call
        .sort(*key, "root")
        .with_columns(
            calls=pl.len().over(key),
            main=pl.col("layers") == pl.col("layers").max().over(key),
            first=pl.col("root") == pl.col("root").min().over(key),
        )
    )
    mains = pl.col("main").sum().over(key)
    drafts = (mains == 1) & (pl.col("main") & pl.col("first")).any().over(key)
    return roots.select(
        *key,
        "root",
        verdict=pl.when(pl.col("calls") == 1)
        .then(None)
        .when(drafts & ~pl.col("main"))
        .then(pl.lit("draft model", dtype=REASONS))
        .when(drafts)
        .then(None)
        .when(mains > 1)
        .then(pl.lit("several passes in one step", dtype=REASONS))
        .otherwise(pl.lit("several models in one step", dtype=REASONS)),
    )


def _communicates() -> pl.Expr:
    """Whether an event is part of a collective: then its stage is the kind of the collective."""
    kept = pl.col("stage").cast(STAGE)
    return kept.is_in(names.COLLECTIVE_KINDS).fill_null(value=False) & (kept != "other")


def _inside() -> pl.Expr:
    """Stage of an event within a layer; null if its module does not determine it."""
    category, role, block, kept = pl.col("category"), pl.col("role"), pl.col("block"), pl.col("stage").cast(STAGE)
    plain = category.is_in(_PLAIN)
    after = pl.col("after_attention").fill_null(value=False)
    no_attention = pl.col("after_attention").is_null()
    last = pl.col("last_linear")
    linear = (category == "linear") | (plain & pl.col("generic")) | ((category == "quantize") & pl.col("generic"))
    return (
        pl.when("exchanged")
        .then(
            pl.when(pl.col("launch_start_ns") < pl.col("first_expert_ns"))
            .then(stage("expert_dispatch"))
            .when(pl.col("launch_start_ns") > pl.col("last_expert_ns"))
            .then(stage("combine"))
        )
        .when(_communicates())
        .then(None)
        .when(role.is_in(["norm", "rope", "qkv_proj", "o_proj", "gate_up_proj", "down_proj", "router"]))
        .then(role.cast(STAGE, strict=False))
        .when(role == "activation")
        .then(stage("activation"))
        .when((role == "attention") & category.is_in(["kv_cache_write", "rope", "norm"]))
        .then(category.cast(STAGE, strict=False))
        .when(role == "attention")
        .then(pl.when(kept == "kv_cache_write").then(kept).otherwise(stage("attention")))
        .when((role == "experts") & (category == "moe_experts"))
        .then(stage("experts"))
        .when(role == "experts")
        .then(pl.when(kept.is_in(_OF_EXPERTS)).then(None).otherwise(stage("experts")))
        .when(category.is_in(["norm", "kv_cache_write"]))
        .then(category.cast(STAGE, strict=False))
        .when((category == "rope") & (block == "attention"))
        .then(stage("rope"))
        .when((block == "attention") & (category == "attention"))
        .then(stage("attention"))
        .when((block == "attention") & linear & (after | (no_attention & last)))
        .then(stage("o_proj"))
        .when((block == "attention") & linear)
        .then(stage("qkv_proj"))
        .when((block == "attention") & plain & after)
        .then(stage("attention"))
        .when((block == "attention") & plain & kept.is_in(_OF_ATTENTION))
        .then(None)
        .when((block == "attention") & plain)
        .then(stage("rope"))
        .when((block == "o_proj") & linear)
        .then(stage("o_proj"))
        .when((block == "up") & linear)
        .then(stage("gate_up_proj"))
        .when((block == "down") & linear)
        .then(stage("down_proj"))
        .when((block == "feed_forward") & linear)
        .then(pl.when(last).then(stage("down_proj")).otherwise(stage("gate_up_proj")))
        .when(block.is_in(["up", "feed_forward"]) & category.is_in(["activation", *_PLAIN]))
        .then(stage("activation"))
        .when((block == "experts") & (category == "moe_experts"))
        .then(stage("experts"))
        .when(
            (block.is_in(["o_proj", "down"]) | (block.is_null() & pl.col("parted")))
            & category.is_in(["elementwise", "other"])
        )
        .then(pl.when(kept == "norm").then(None).otherwise(stage("residual")))
    )


def _outside() -> pl.Expr:
    """Stage of an event of the model outside of its layers; null if its module does not determine it."""
    role, block, before = pl.col("role"), pl.col("block"), pl.col("before_layers")
    return (
        pl.when(_communicates())
        .then(None)
        .when((block == "embeddings") & (role != "rope").fill_null(value=True))
        .then(stage("embedding"))
        .when(role.is_in(["embedding", "rope", "lm_head", "sampling"]))
        .then(role.cast(STAGE, strict=False))
        .when(block == "head")
        .then(stage("lm_head"))
        .when(role == "norm")
        .then(pl.when(before).then(stage("embedding")).otherwise(stage("final_norm")))
        .when((pl.col("category") == "linear") & ~before)
        .then(stage("lm_head"))
    )
