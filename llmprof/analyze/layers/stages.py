"""Stages: names for the parts of a layer, and for the parts before and after the layers."""

from __future__ import annotations

from functools import cache

import polars as pl

from llmprof import names
from llmprof.analyze import nesting
from llmprof.analyze.groups import Grouped, distinct_keys

_IN_LAYER = (
    "norm", "qkv_proj", "rope", "kv_cache_write", "attention", "o_proj", "gate_up_proj", "activation", "down_proj",
    "residual", "router", "expert_dispatch", "experts", "combine",
)  # fmt: skip
_OUTSIDE = ("prepare_inputs", "embedding", "final_norm", "lm_head", "sampling", "draft", "copy", "other")

STAGE = pl.Enum(list(dict.fromkeys((*_IN_LAYER, *_OUTSIDE, *names.COLLECTIVE_KINDS))))
"""Type of a stage during labelling: numbers in place of texts, for millions of events."""

_LEAST_OF_A_NORM = 3
"""A norm that the framework computes kernel by kernel (square, mean, root, product) has more than this."""

_MOST_OF_ANGLES = 4
"""Most kernels between the last sine of rope's angles and the first norm."""

_PLACE = pl.Enum(["body", "prologue", "after", "before"])


@cache
def stage(name: str) -> pl.Expr:
    """A stage as a literal."""
    return pl.lit(name, dtype=STAGE)


@cache
def _place(name: str) -> pl.Expr:
    return pl.lit(name, dtype=_PLACE)


def name_stages(frame: pl.DataFrame) -> pl.DataFrame:
    """Layer and stage of the rows of :func:`llmprof.analyze.layers.ends.find_layer_ends`.

    Parameters
    ----------
    frame : polars.DataFrame
        Rows in order with the bounds of their layer.

    Returns
    -------
    polars.DataFrame
        ``event, layer, stage, confidence``.
    """
    frame = _places(frame)
    place = pl.col("place")
    in_next = place == "prologue"
    layer = pl.when(place == "body").then("layer").when(in_next).then(pl.col("layer") + 1)
    stages = _with_what_follows(frame.select("stretch", "place", "prepares", "attends", stage=_stages()))
    # a layer's confidence also applies to its prologue, which is in the stretch before it
    next_confidence = pl.when(pl.col("layer") < 0).then(1.0).otherwise("confidence")
    return frame.select(
        "event",
        "group",
        layer.cast(pl.Int32).alias("layer"),
        stages,
        pl.when(place == "body").then("confidence").when(in_next).then(next_confidence).alias("confidence"),
        category="category",
    )


@cache  # building an expression this large takes as long as evaluating it for thousands of rows
def _stages() -> pl.Expr:
    """Stage of each row, by its place."""
    place = pl.col("place")
    return (
        pl.when(pl.col("category") == "collective")
        .then(_collective())
        .when((pl.col("source") == "copy") & (pl.col("category").shift(-1) == "collective"))
        .then(pl.col("kind").shift(-1))
        .when(_copied_back())
        .then(pl.col("kind").shift(1))
        .when(place == "body")
        .then(_body())
        .when(place == "prologue")
        .then(_prologue())
        .when(place == "after")
        .then(_after())
        .otherwise(_before())
    )


def _with_what_follows(frame: pl.DataFrame) -> pl.Series:
    """Stages; rows that only prepare the next row get its stage, unless they follow an attention."""
    inside = pl.col("place").is_in(["body", "prologue", "after"])
    prepares = pl.col("prepares") & inside & ~pl.col("attends").shift(1, fill_value=False)
    if not frame["prepares"].any():
        return frame["stage"]
    place = pl.col("stretch").cast(pl.Int64) * 4 + pl.col("place").to_physical()
    following = pl.when(~prepares).then("stage").backward_fill()
    same = pl.when(~prepares).then(place).backward_fill() == place
    return frame.select(stage=pl.when(prepares & same).then(following).otherwise("stage"))["stage"]


def _places(frame: pl.DataFrame) -> pl.DataFrame:
    """Add ``place``: body of a layer, prologue of the next one, before the layers or after them.

    Also add for each stretch ``embedding_row``, its first embedding, ``last_rope``, ``last_compute``, its last row that
    is neither a copy nor a cache write, and ``norms_qk``, whether q and k are normed between their projection and rope.
    """
    row, category = pl.col("row"), pl.col("category")
    first_qkv = pl.col("gemm_count") - pl.col("qkv") + 1
    projected_in = (category == "linear") & (pl.col("gemm_no") < first_qkv) & ~pl.col("has_attention")
    before_qkv, projected = pl.col("gemm_no") < first_qkv, pl.col("gemm_no") == pl.col("gemm_count")
    groups = Grouped(frame["stretch"], frame["stretch"][-1] + 1)
    turned = groups.last(frame["row"], frame["rotates"])
    after_turn = row > pl.lit(turned).gather(pl.col("stretch"))
    firsts = {
        "qkv_row": pl.col("gemm") & (pl.col("gemm_no") == first_qkv),
        "gathered": (category == "collective") & before_qkv,
        "norm_row": (category == "norm") & before_qkv,
        "embeds_row": pl.col("embeds"),
        "embedding": category == "embedding",
        "projected_in": projected_in,
        "norm_after_angles": (category == "norm") & after_turn,
        "power_after_angles": pl.col("powers") & after_turn,
        "angles_begin": pl.col("single") & ~pl.col("gemm"),
        "first_norm_qk": projected & category.is_in(["norm", "other", "elementwise"]) & ~pl.col("prepares"),
        "angles": pl.col("rotates"),
    }
    lasts = {
        "embedded": (category == "embedding") & before_qkv,
        "last_rope": category == "rope",
        "cached": category == "kv_cache_write",
        "last_compute": ~category.is_in(["copy", "kv_cache_write"]),
    }
    chosen = frame.select(**(firsts | lasts))
    bounds = pl.DataFrame(
        {
            "lead": groups.first(frame["lead"], frame["row"].is_not_null()),
            **{name: groups.first(frame["row"], chosen[name]) for name in firsts},
            **{name: groups.last(frame["row"], chosen[name]) for name in lasts},
            "angles_end": turned,
        }
    )
    bounds = bounds.with_columns(
        # images have a convolution or a projection of their patches in place of a look-up
        embedding_row=pl.coalesce("embeds_row", "embedding", "projected_in"),
        unit_begin=pl.min_horizontal(pl.col("norm_after_angles") - 1, pl.col("power_after_angles") - 2),
    )
    # the embedding's own collective comes before the first norm; one after that is the first layer's
    gathered = pl.when((pl.col("gathered") < pl.col("norm_row")).fill_null(value=True)).then("gathered")
    # the scale and the types of sine and cosine come after them
    scaled = pl.when(pl.col("unit_begin") - pl.col("angles_end") <= _MOST_OF_ANGLES).then("unit_begin")
    bounds = bounds.with_columns(
        angles=pl.min_horizontal("angles", "angles_begin"), angles_end=pl.coalesce(scaled, "angles_end")
    )
    bounds = bounds.with_columns(
        begin=pl.max_horizontal(
            pl.col("qkv_row") - pl.col("lead"),
            pl.col("embedded").fill_null(-1) + 1,
            gathered.fill_null(-1) + 1,
            pl.col("angles_end").fill_null(-1) + 1,
        ),
        norms_qk=(pl.col("first_norm_qk") < pl.col("last_rope")).fill_null(value=False),
    )
    keep = ["begin", "embedding_row", "last_rope", "last_compute", "norms_qk", "cached", "angles", "angles_end"]
    frame = frame.with_columns(nesting.column(bounds, c, "stretch").alias(c) for c in keep)
    return frame.with_columns(
        place=pl.when(pl.col("has_attention") & (row <= pl.col("end_row")))
        .then(_place("body"))
        .when(pl.col("has_attention") & ~pl.col("is_last"))
        .then(_place("prologue"))
        .when(pl.col("has_attention"))
        .then(_place("after"))
        .when(~pl.col("is_last") & (row >= pl.col("begin")))
        .then(_place("prologue"))
        .otherwise(_place("before")),
    )


def _copied_back() -> pl.Expr:
    """Whether a row copies the result of a collective out of the buffer that the input was copied into."""
    is_copy = pl.col("source") == "copy"
    return is_copy & (pl.col("category").shift(1) == "collective") & is_copy.shift(2).fill_null(value=False)


def _collective() -> pl.Expr:
    """Stage of a collective: its kind, or dispatch and combine if experts are on several ranks."""
    exchanged = (
        pl.col("kind").is_in(["all_to_all", "all_gather", "reduce_scatter", "broadcast", "reduce", "send_recv"])
        & pl.col("first_expert").is_not_null()
    )
    inside = exchanged & (pl.col("place") == "body") & (pl.col("gemm_no") > 0)
    return (
        pl.when(inside & (pl.col("gemm_no") < pl.col("first_expert")))
        .then(stage("expert_dispatch"))
        .when(inside & (pl.col("gemm_no") >= pl.col("last_expert")))
        .then(stage("combine"))
        .otherwise(pl.coalesce("kind", stage("other")))
    )


def _body() -> pl.Expr:
    """From a layer's attention to its end."""
    category, n = pl.col("category"), pl.col("gemm_no")
    linear = category == "linear"
    first_expert, last_expert = pl.col("first_expert"), pl.col("last_expert")
    has_experts = first_expert.is_not_null()
    before_experts = has_experts & (n < first_expert)
    right_after = pl.col("gemm").shift(1) | pl.col("category").shift(1).is_in(["linear", "collective", "moe_routing"])
    return (
        pl.when(category == "norm")
        .then(stage("norm"))
        .when(category == "kv_cache_write")
        .then(stage("kv_cache_write"))
        .when((category == "attention") | (n == 0))
        .then(stage("attention"))
        .when(linear & pl.col("latent_rank") & (n < pl.col("out_gemms")))
        .then(stage("attention"))
        .when(linear & (n <= pl.col("out_gemms")))
        .then(stage("o_proj"))
        .when(category == "moe_experts")
        .then(stage("experts"))
        .when(pl.col("routes"))
        .then(stage("router"))
        .when(has_experts & (n >= last_expert) & (category != "activation"))
        .then(stage("combine"))
        .when(category == "activation")
        .then(stage("activation"))
        .when((n == pl.col("chosen")) & (linear | category.is_in(["elementwise", "copy", "other"])))
        .then(stage("router"))
        .when((n >= pl.col("last_gemm")) & pl.col("chosen").is_not_null() & ~linear & ~pl.col("adds"))
        .then(stage("combine"))
        .when(before_experts & linear & (n == pl.col("out_gemms") + 1))
        .then(stage("router"))
        .when(linear & has_experts & (category.shift(1) == "activation"))
        .then(stage("down_proj"))
        .when(linear & (n < pl.col("last_gemm")))
        .then(stage("gate_up_proj"))
        .when(linear)
        .then(stage("down_proj"))
        .when(before_experts & (n > pl.col("out_gemms")))
        .then(stage("expert_dispatch"))
        .when(has_experts & (n >= first_expert))
        .then(stage("experts"))
        .when(pl.col("adds") & right_after)
        .then(stage("residual"))
        .when((n >= pl.col("last_gemm")) & pl.col("adds"))
        .then(stage("residual"))
        .when((n <= pl.col("out_gemms")) | (n >= pl.col("last_gemm")))
        .then(stage("norm"))
        .otherwise(stage("activation"))
    )


def _prologue() -> pl.Expr:
    """From the end of a layer to the next attention: norm, projections of q, k and v, rope, cache."""
    category = pl.col("category")
    first_qkv = (
        pl.when("has_attention").then(pl.col("last_gemm") + 1).otherwise(pl.col("gemm_count") - pl.col("qkv") + 1)
    )
    later_compute = pl.col("row") < pl.col("last_compute")
    # without a rope kernel the unnamed kernels are the rope; with one, kernels before it norm q and k
    later_rope = (pl.col("row") <= pl.col("last_rope")).fill_null(value=False)
    absorbed = (category == "linear") & pl.col("latent_rank") & (pl.col("row") > pl.col("cached"))
    return (
        pl.when(category == "norm")
        .then(stage("norm"))
        .when(pl.col("readies") | absorbed)
        .then(stage("attention"))
        .when(category == "linear")
        .then(stage("qkv_proj"))
        .when(category == "rope")
        .then(stage("rope"))
        .when(category == "kv_cache_write")
        .then(stage("kv_cache_write"))
        .when(category == "attention")
        .then(stage("attention"))
        .when(pl.col("gemm_no") < first_qkv)
        .then(stage("norm"))
        .when(later_rope & pl.col("norms_qk"))
        .then(stage("norm"))
        .when(pl.col("caches") & ~later_compute)
        .then(stage("kv_cache_write"))
        .when((category == "copy") & ~later_compute & ~later_rope)
        .then(stage("attention"))
        .otherwise(stage("rope"))
    )


def _after() -> pl.Expr:
    """After the last layer: final_norm, lm_head and sampling."""
    n, head = pl.col("gemm_no"), pl.col("last_gemm") + 1
    has_head = pl.col("gemm_count") >= head
    # a norm made of many kernels, as between the layers
    norm_of_many = (pl.col("lead") >= _LEAST_OF_A_NORM) & (pl.col("row") <= pl.col("end_row") + pl.col("lead"))
    return (
        pl.when((n < head) & (has_head | (pl.col("category") == "norm")))
        .then(stage("final_norm"))
        .when((n >= head) & ((n < pl.col("gemm_count")) | (pl.col("category") == "linear")))
        .then(stage("lm_head"))
        .when(~has_head & norm_of_many & (pl.col("source") != "copy"))
        .then(stage("final_norm"))
        .when(has_head)
        .then(stage("sampling"))
        .when(pl.col("source") == "copy")
        .then(stage("copy"))
        .otherwise(stage("other"))
    )


def _before() -> pl.Expr:
    """Stages before the first layer: inputs and embedding; of all events in a step without layers."""
    return (
        pl.when(pl.col("is_last") & (pl.col("source") == "copy"))
        .then(stage("copy"))
        .when("is_last")
        .then(stage("other"))
        .when(pl.col("row").is_between(pl.col("angles"), pl.col("angles_end")))
        .then(stage("rope"))
        .when(pl.col("row") >= pl.col("embedding_row"))
        .then(stage("embedding"))
        .otherwise(stage("prepare_inputs"))
    )


_BESIDE = ("linear", "activation", "norm", "quantize", "moe_experts", "moe_routing", "elementwise")
"""Categories of compute that runs on other streams than the main one: shared experts, the second of two norms."""


def beside(events: pl.DataFrame) -> pl.DataFrame:
    """Give kernels on streams without attention the layer of the kernel that the same thread launched before them.

    Parameters
    ----------
    events : polars.DataFrame
        ``event, rank, stream, start_ns, source, category, step, layer, stage, confidence, reason`` of all events, and
        where known ``launch_start_ns, launch_thread, replayed``.

    Returns
    -------
    polars.DataFrame
        The frame, in its order.
    """
    layered = pl.col("layer").is_not_null()
    lane = ["rank", "stream"]
    streams = distinct_keys(events.select(lane).filter(events["layer"].is_not_null()), lane)
    free = ~layered & pl.col("reason").is_null() & (pl.col("stage") == "other") & (pl.col("source") == "kernel")
    candidates = events.select(free & pl.col("step").is_not_null() & pl.col("category").is_in(_BESIDE)).to_series()
    lanes = distinct_keys(events.select(lane).filter(candidates), lane)
    if not lanes.join(streams, on=lane, how="anti", nulls_equal=True).height:
        return events
    time = pl.col("start_ns")
    if {"launch_start_ns", "replayed"} <= set(events.columns):
        # the order of launches if each kernel of the step has its own, otherwise the order on the device
        launched = (~pl.col("replayed") & pl.col("launch_start_ns").is_not_null()) | (pl.col("source") != "kernel")
        events = events.with_columns(_eager=launched.all().over("rank", "step"))
        time = pl.when("_eager").then("launch_start_ns").otherwise("start_ns")
    main = events.filter(layered & (pl.col("source") == "kernel")).with_columns(at=time)
    attended = pl.col("at").filter(pl.col("stage") == "attention").min().over("rank", "step", "layer")
    of_layer = ["rank", "step", "layer"]
    begin, end = pl.col("at").min().over(of_layer), pl.col("at").max().over(of_layer)
    main = main.with_columns(attended=attended, until=2 * end - begin).drop_nulls("at").sort("at")
    key = ["rank", "step"]
    side = events.filter(candidates).join(streams, on=lane, how="anti", nulls_equal=True)
    side = side.select("event", *key, "stream", "category", at=time).drop_nulls("at").sort("at")
    placed = side.join_asof(
        main.select(*key, "at", "attended", "until", "layer", "confidence"), on="at", by=key, strategy="backward",
        check_sortedness=False,
    ).filter(pl.col("layer").is_not_null() & (pl.col("at") <= pl.col("until")))  # fmt: skip
    # an activation parts the projections up from those down; what runs before the attention is one of its inputs
    parts = ["rank", "step", "layer", "stream"]
    activated = pl.col("at").filter(pl.col("category") == "activation").min().over(parts)
    linear = pl.col("category").is_in(["linear", "quantize"])
    named = (
        pl.when(pl.col("category").is_in(["norm", "activation"]))
        .then("category")
        .when(pl.col("category") == "moe_experts")
        .then(pl.lit("experts"))
        .when(linear & (pl.col("at") < pl.col("attended")))
        .then(pl.lit("qkv_proj"))
        .when(linear & (pl.col("at") < activated))
        .then(pl.lit("gate_up_proj"))
        .when(linear & (pl.col("at") > activated))
        .then(pl.lit("down_proj"))
        .when(pl.col("category") == "moe_routing")
        .then(pl.lit("router"))
    )
    placed = placed.with_columns(stage=named).filter(pl.col("stage").is_not_null())
    rows = placed.select("event", _layer="layer", _stage="stage", _sure=pl.min_horizontal("confidence", 0.8))
    events = events.join(rows, on="event", how="left", maintain_order="left")
    return events.with_columns(
        layer=pl.coalesce("_layer", "layer"),
        stage=pl.coalesce("_stage", "stage"),
        confidence=pl.coalesce("_sure", "confidence"),
    ).drop("_layer", "_stage", "_sure", "_eager", strict=False)
