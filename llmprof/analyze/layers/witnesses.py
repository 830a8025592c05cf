"""Layers and stages as the modules say them that events were launched in.

Where a trace names modules they decide: the layer exactly, the stage where the module does one thing (a norm, the
projection of q, k and v) or where the kind of the event settles it within a block. What a module leaves open, such as
which of the copies in an attention block write the cache, keeps the stage that follows from its place.
"""

from __future__ import annotations

import polars as pl

from llmprof import names
from llmprof.analyze.layers.passes import REASONS
from llmprof.analyze.layers.stages import STAGE, stage

_PLAIN = ("elementwise", "other", "copy", "fill")
"""Categories of events whose stage follows from what is around them."""

_IN_LAYER = (
    "norm", "qkv_proj", "rope", "kv_cache_write", "attention", "o_proj", "gate_up_proj", "activation", "down_proj",
    "residual", "router", "expert_dispatch", "experts", "combine",
)  # fmt: skip

_OF_EXPERTS = ("router", "expert_dispatch", "experts", "activation", "combine", "gate_up_proj", "down_proj")
_OF_ATTENTION = ("rope", "kv_cache_write", "attention", "norm")


def by_modules(found: pl.DataFrame, modules: pl.DataFrame) -> pl.DataFrame:
    """Layer and stage of events that were launched in a module.

    Parameters
    ----------
    found : polars.DataFrame
        ``event, rank, step, launch_start_ns, category, layer, stage``: the last two follow from names and place.
    modules : polars.DataFrame
        As :func:`~llmprof.analyze.modules.modules_of` gives them.

    Returns
    -------
    polars.DataFrame
        ``event, layer, stage, reason`` and ``layer_known``, ``stage_known``: whether the module says the layer (which
        may be none) and the stage. Rows for the events of steps in which some module is a layer.
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
    said = modules.select("event", *columns).rename({"layer": "module_layer"})
    frame = found.join(said, on="event", how="inner")
    in_model = pl.col("first_layer_ns").is_not_null()
    layered = frame.filter(pl.col("module_layer").is_not_null()).select("rank", "step").unique()
    frame = frame.join(layered, on=["rank", "step"], how="semi", nulls_equal=True)
    attends = pl.col("category") == "attention"
    attention_ns = pl.col("launch_start_ns").filter(attends).min().over("block_call")
    frame = frame.with_columns(after_attention=pl.col("launch_start_ns") > attention_ns)
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
    # an event of no layer cannot keep the stage of a layer, nor one of a layer a stage from outside
    kept = pl.col("stage").cast(STAGE)
    frame = frame.join(_roots(frame), on=["rank", "step", "root"], how="left", nulls_equal=True, maintain_order="left")
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


def _roots(frame: pl.DataFrame) -> pl.DataFrame:
    """``rank, step, root, verdict`` of each model's call in a step: why its layers are not counted, else null."""
    key = ["rank", "step"]
    roots = (
        frame.filter(pl.col("module_layer").is_not_null())
        .group_by(*key, "root")
        .agg(layers=pl.struct("stack", "module_layer").n_unique(), stacks=pl.col("stack").n_unique())
        .filter(pl.col("layers") > 1)  # an outermost call of one layer is a range of its own, not a model's call
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
    """Whether an event is part of a collective: then its stage is the kind of that."""
    kept = pl.col("stage").cast(STAGE)
    return kept.is_in(names.COLLECTIVE_KINDS).fill_null(value=False) & (kept != "other")


def _inside() -> pl.Expr:
    """Stage of an event within a layer, null where its module leaves it open."""
    category, role, block, kept = pl.col("category"), pl.col("role"), pl.col("block"), pl.col("stage").cast(STAGE)
    plain = category.is_in(_PLAIN)
    after = pl.col("after_attention").fill_null(value=False)
    no_attention = pl.col("after_attention").is_null()
    last = pl.col("last_linear")
    linear = (category == "linear") | (plain & pl.col("generic")) | ((category == "quantize") & pl.col("generic"))
    return (
        pl.when(_communicates())
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
        .when((block.is_null() | block.is_in(["o_proj", "down"])) & category.is_in(["elementwise", "other"]))
        .then(pl.when(kept == "norm").then(None).otherwise(stage("residual")))
    )


def _outside() -> pl.Expr:
    """Stage of an event of the model but of none of its layers, null where its module leaves it open."""
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
