"""Names for the parts of a layer and for what surrounds the layers."""

from __future__ import annotations

import polars as pl

from llmprof import names
from llmprof.analyze import nesting

_IN_LAYER = (
    "norm", "qkv_proj", "rope", "kv_cache_write", "attention", "o_proj", "gate_up_proj", "activation", "down_proj",
    "residual", "router", "expert_dispatch", "experts", "combine",
)  # fmt: skip
_OUTSIDE = ("prepare_inputs", "embedding", "final_norm", "lm_head", "sampling", "draft", "copy", "other")

STAGE = pl.Enum(list(dict.fromkeys((*_IN_LAYER, *_OUTSIDE, *names.COLLECTIVE_KINDS))))
"""Type of a stage while events are labelled: a number in place of a text for each of millions of events."""

_LEAST_OF_A_NORM = 3
"""A norm that the framework computes kernel by kernel (square, mean, root, product) has more than this."""

_PLACE = pl.Enum(["body", "prologue", "after", "before"])


def stage(name: str) -> pl.Expr:
    """A stage as a literal."""
    return pl.lit(name, dtype=STAGE)


def _place(name: str) -> pl.Expr:
    return pl.lit(name, dtype=_PLACE)


def name_stages(frame: pl.DataFrame) -> pl.DataFrame:
    """Layer and stage of the rows of :func:`llmprof.analyze.layers.stages.find_layer_ends`.

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
    named = (
        pl.when(pl.col("category") == "collective")
        .then(_collective())
        .when((pl.col("source") == "copy") & (pl.col("category").shift(-1) == "collective"))
        .then(pl.col("kind").shift(-1))
        .when(_copied_back())
        .then(pl.col("kind").shift(1))
        .when(place == "body")
        .then(_body())
        .when(in_next)
        .then(_prologue())
        .when(place == "after")
        .then(_after())
        .otherwise(_before())
    )
    stages = _with_what_follows(frame.select("stretch", "place", "prepares", "attends", stage=named))
    # a layer's confidence also stands for its prologue, which lies in the stretch before it
    next_confidence = pl.when(pl.col("layer") < 0).then(1.0).otherwise("confidence")
    return frame.select(
        "event",
        "group",
        layer.cast(pl.Int32).alias("layer"),
        stages,
        pl.when(place == "body").then("confidence").when(in_next).then(next_confidence).alias("confidence"),
        category="category",
    )


def _with_what_follows(frame: pl.DataFrame) -> pl.Series:
    """Stages, those of rows that only prepare the next one taken from it, unless they follow an attention."""
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

    And of each stretch ``embedding_row``, its first embedding, ``last_rope``, ``last_compute``, its last row that is
    neither a copy nor the cache's, and ``norms_qk``, whether q and k are normed between their projection and rope.
    """
    row, category = pl.col("row"), pl.col("category")
    first_qkv = pl.col("gemm_count") - pl.col("qkv") + 1
    projected_in = (category == "linear") & (pl.col("gemm_no") < first_qkv) & ~pl.col("has_attention")
    before_qkv, projected = pl.col("gemm_no") < first_qkv, pl.col("gemm_no") == pl.col("gemm_count")
    bounds = frame.group_by("stretch", maintain_order=True).agg(
        qkv_row=row.filter(pl.col("gemm") & (pl.col("gemm_no") == first_qkv)).min(),
        embedded=row.filter((category == "embedding") & before_qkv).max(),
        gathered=row.filter((category == "collective") & before_qkv).min(),
        norm_row=row.filter((category == "norm") & before_qkv).min(),
        lead=pl.col("lead").first(),
        # images have a convolution or a projection of their patches in place of a look-up
        embedding_row=pl.coalesce(
            row.filter("embeds").min(), row.filter(category == "embedding").min(), row.filter(projected_in).min()
        ),
        last_rope=row.filter(category == "rope").max(),
        last_compute=row.filter(~category.is_in(["copy", "kv_cache_write"])).max(),
        first_norm_qk=row.filter(
            projected & category.is_in(["norm", "other", "elementwise"]) & ~pl.col("prepares")
        ).min(),
    )
    # the embedding's own collective comes before the first norm; one after that is the first layer's
    gathered = pl.when((pl.col("gathered") < pl.col("norm_row")).fill_null(value=True)).then("gathered")
    bounds = bounds.with_columns(
        begin=pl.max_horizontal(
            pl.col("qkv_row") - pl.col("lead"), pl.col("embedded").fill_null(-1) + 1, gathered.fill_null(-1) + 1
        ),
        norms_qk=(pl.col("first_norm_qk") < pl.col("last_rope")).fill_null(value=False),
    )
    keep = ["begin", "embedding_row", "last_rope", "last_compute", "norms_qk"]
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
    """Stage of a collective: its kind, but dispatch and combine where experts live on several ranks."""
    exchanged = (
        pl.col("kind").is_in(["all_to_all", "all_gather", "reduce_scatter"]) & pl.col("first_expert").is_not_null()
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
        .when(n <= pl.col("out_gemms"))
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
    # without a rope kernel the unnamed ones are the rope; with one, what comes before it norms q and k
    later_rope = (pl.col("row") <= pl.col("last_rope")).fill_null(value=False)
    return (
        pl.when(category == "norm")
        .then(stage("norm"))
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
    """After the last layer: final norm, lm_head and sampling."""
    n, head = pl.col("gemm_no"), pl.col("last_gemm") + 1
    has_head = pl.col("gemm_count") >= head
    # a norm out of many kernels, as between the layers
    norm_of_many = (pl.col("lead") >= _LEAST_OF_A_NORM) & (pl.col("row") <= pl.col("end_row") + pl.col("lead"))
    return (
        pl.when((n < head) & (has_head | (pl.col("category") == "norm")))
        .then(stage("final_norm"))
        .when((n == head) & (pl.col("category") == "linear"))
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
    """Before the first layer: inputs and embedding; all of a step that has no layer."""
    return (
        pl.when(pl.col("is_last") & (pl.col("source") == "copy"))
        .then(stage("copy"))
        .when("is_last")
        .then(stage("other"))
        .when(pl.col("row") >= pl.col("embedding_row"))
        .then(stage("embedding"))
        .otherwise(stage("prepare_inputs"))
    )


def find_layer_ends(frame: pl.DataFrame) -> pl.DataFrame:
    """Add to the rows of stretches what the naming of stages needs.

    Parameters
    ----------
    frame : polars.DataFrame
        Rows in order, with ``stretch`` (dense, from 0), ``group`` and the running counts ``gemms, attentions``.

    Returns
    -------
    polars.DataFrame
        With ``gemm_no`` (GEMMs of the stretch up to here), and per stretch ``has_attention, is_last, layer`` (of its
        attention), ``gemm_count, last_gemm`` (number of the GEMM that ends the layer), ``first_expert, last_expert,
        activation_at, out_gemms`` (GEMMs between attention and feed-forward part), ``end_row`` (last row of the
        layer), ``lead`` (rows between a layer's end and its next GEMM, as in most layers of the step), ``qkv`` (GEMMs
        before an attention, as in most layers of the rank) and ``confidence``.
    """
    stretches = frame.group_by("stretch", maintain_order=True).agg(
        pl.col("group", "rank").first(),
        has_attention=pl.col("attention_start").first(),
        gemms_before=pl.col("gemms").first() - pl.col("gemm").first(),
        attentions=pl.col("attentions").first(),
        first_row=pl.col("row").first(),
    )
    frame = frame.with_columns(
        gemm_no=pl.col("gemms") - nesting.column(stretches, "gemms_before", "stretch"),
    )
    category, n = pl.col("category"), pl.col("gemm_no")
    experts, activates = category == "moe_experts", category == "activation"
    ends_attention = category.is_in(["norm", "collective", "moe_routing"]) | pl.col("adds")
    counts = frame.group_by("stretch", maintain_order=True).agg(
        gemm_count=n.max(),
        activation_at=n.filter(activates).max(),
        first_activation=n.filter(activates).min(),
        first_expert=n.filter(experts).min(),
        last_expert=n.filter(experts).max(),
        out_gemms=n.filter(ends_attention & (n > 0)).min(),
    )
    frame = frame.with_columns(
        nesting.column(counts, "activation_at", "stretch").alias("activation_at"),
    )
    stretches = stretches.join(counts, on="stretch", maintain_order="left", how="left").with_columns(
        gated_apart=_up_after_activation(frame),
        is_last=(pl.col("group") != pl.col("group").shift(-1)).fill_null(value=True),
        layer=pl.col("attentions")
        - pl.col("attentions").first().over("group")
        + pl.col("has_attention").first().over("group").cast(pl.Int32)
        - 1,
    )
    stretches = _last_gemms(stretches)
    frame = frame.with_columns(nesting.column(stretches, "last_gemm", "stretch").alias("last_gemm"))
    stretches = _end_rows(frame, stretches)
    keep = [
        "has_attention", "is_last", "layer", "gemm_count", "first_expert", "last_expert", "out_gemms", "end_row",
        "lead", "qkv", "confidence", "first_row",
    ]  # fmt: skip
    return frame.with_columns(nesting.column(stretches, c, "stretch").alias(c) for c in keep)


def _up_after_activation(frame: pl.DataFrame) -> pl.Series:
    """Whether, in each stretch, the gate's activation comes before the up projection, as where the two are separate.

    Then the GEMM after the activation is followed by the product of both and not by a norm or a collective.
    """
    after = pl.col("activation_at") + 1
    between = (pl.col("gemm_no") == after) & ~pl.col("gemm") & (pl.col("category") != "linear")
    ends_part = pl.col("category").is_in(["norm", "collective", "moe_routing"]) | pl.col("adds")
    seen = (
        frame.select(
            "stretch",
            between=between,
            multiplies=between & pl.col("multiplies"),
            ends_part=between & ends_part,
            goes_on=pl.col("gemm_no") > after,
        )
        .group_by("stretch", maintain_order=True)
        .agg(pl.col("between").sum(), pl.col("multiplies", "ends_part", "goes_on").any())
    )
    return seen.select(
        pl.col("multiplies") & ~pl.col("ends_part") & (pl.col("between") <= 3) & pl.col("goes_on")
    ).to_series()


def _last_gemms(stretches: pl.DataFrame) -> pl.DataFrame:
    """Number of the GEMM that ends each layer, from activation and experts, else from the other layers."""
    seen = pl.max_horizontal(pl.col("last_expert"), pl.col("activation_at") + 1 + pl.col("gated_apart").cast(pl.Int32))
    seen = pl.when(pl.col("has_attention") & seen.is_not_null()).then(pl.min_horizontal(seen, "gemm_count"))
    inner = pl.col("has_attention") & ~pl.col("is_last")
    # after the last layer a head may follow with an activation of its own: the layer ends where its siblings do
    most = seen.filter(inner).max().over("group")
    stretches = stretches.with_columns(
        seen=pl.when(pl.col("is_last") & seen.is_not_null()).then(pl.min_horizontal(seen, most)).otherwise(seen)
    )
    by_rank = stretches.group_by("rank").agg(
        usual_end=pl.col("seen").filter("has_attention").drop_nulls().mode().min(),
        qkv=(pl.col("gemm_count") - pl.col("seen")).filter(inner).drop_nulls().mode().min(),
        usual_count=pl.col("gemm_count").filter(inner).mode().min(),
        qkv_of_first=pl.col("gemm_count").filter(~pl.col("has_attention")).mode().min(),
    )
    stretches = stretches.join(by_rank, on="rank", how="left", maintain_order="left").with_columns(
        qkv=pl.coalesce("qkv", "qkv_of_first", 1),
    )
    guess = pl.coalesce(
        "usual_end", pl.when(inner).then(pl.col("gemm_count") - pl.col("qkv")), pl.col("usual_count") - pl.col("qkv")
    ).clip(0)
    # a norm after the activation is not the one between attention and feed-forward part
    known = (pl.col("out_gemms") < pl.coalesce("first_activation", "first_expert", "gemm_count")).fill_null(value=False)
    return stretches.with_columns(
        out_gemms=pl.when(known).then("out_gemms").otherwise(1),
        last_gemm=pl.when("has_attention").then(pl.coalesce("seen", pl.min_horizontal(guess, "gemm_count"))),
        confidence=pl.when(~pl.col("has_attention"))
        .then(None)
        .when(pl.col("seen").is_null())
        .then(0.5)
        .when(inner & (pl.col("gemm_count") != pl.col("usual_count")))
        .then(0.8)
        .otherwise(1.0),
    )


def _end_rows(frame: pl.DataFrame, stretches: pl.DataFrame) -> pl.DataFrame:
    """Last row of each layer, and how many rows stand between it and the next GEMM in most layers of the step."""
    same_stretch = pl.col("stretch") == pl.col("stretch").shift(1)
    before, after = pl.col("category").shift(1), pl.col("category").shift(-1)
    part_of_end = (
        pl.col("gemm")
        | pl.col("category").is_in(["linear", "collective", "moe_routing", "moe_experts"])
        | ((pl.col("source") == "copy") & ((after == "collective") | before.is_in(["moe_routing", "collective"])))
    )
    closes = part_of_end | (
        pl.col("adds")
        & same_stretch
        & (pl.col("gemm").shift(1) | before.is_in(["linear", "collective", "moe_routing"]))
    )
    at_end = pl.col("gemm_no") == pl.col("last_gemm")
    # the next layer begins with its norm, even if a collective comes between that and the next GEMM
    norms = frame.group_by("stretch", maintain_order=True).agg(
        norm_row=pl.col("row").filter(at_end & (pl.col("category") == "norm")).min()
    )
    norm_row = nesting.column(norms, "norm_row", "stretch")
    own = at_end & closes & (pl.col("row") < norm_row).fill_null(value=True)
    next_gemm = pl.col("row").filter(pl.col("gemm") & (pl.col("gemm_no") == pl.col("last_gemm") + 1)).min()
    ends = (
        frame.with_columns(own=own)
        .group_by("stretch", maintain_order=True)
        .agg(end_row=pl.col("row").filter("own").max(), next_gemm=next_gemm)
    )
    stretches = stretches.join(ends, on="stretch", how="left", maintain_order="left").with_columns(
        end_row=pl.when("has_attention").then(pl.coalesce("end_row", "first_row")),
    )
    inner = pl.col("has_attention") & ~pl.col("is_last")
    lead = (pl.col("next_gemm") - pl.col("end_row") - 1).filter(inner).drop_nulls()
    usual = stretches.group_by("group").agg(lead=lead.mode().min())
    return stretches.join(usual, on="group", how="left", maintain_order="left").with_columns(
        lead=pl.coalesce("lead", 1)
    )
