"""Forward passes within a step, and layers that are none: what cannot be numbered stays unknown, with the reason.

A step of an engine is one pass of the model; with speculative decoding the passes of a draft model follow. A step that
the profiler's schedule or the program marked may hold anything: a text encoder, the repeated passes of an image model,
a whole generation. A pass ends with sampling and begins with the look-up of an embedding, so where one of these lies
between two attentions, another pass begins.
"""

from __future__ import annotations

import polars as pl

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
"""Why an event has no layer although it may be part of one."""

_MOST_SEAMS = 0.5
"""Sampling or embeddings in more of the stretches between attentions than this mark no passes."""

_MOST_CONVOLUTIONS = 4
"""A language model convolves at most the patches of an image or the frames of sound that it is given."""

_UNLIKE = 2.5
"""A layer has at most so many times the events of the usual one …"""

_OFTEN = 0.1
"""… unless this share of the layers is as large: another kind of layer."""

_MOST_UNLIKE = 0.25
"""Where more of a step's layers are unlike the others, none of the step's is known."""


_SAY_THEIR_STAGE = ("norm", "rope", "kv_cache_write", "attention", "activation", "embedding", "sampling", "copy")
"""Categories that are stages, whatever model an event belongs to."""


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
    """Take the layers back that are none.

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
    by_engine = pl.lit(value=False)
    if engine is not None:
        passes = passes.join(engine.with_columns(engine=pl.lit(value=True)), on=["rank", "step"], how="left")
        by_engine = pl.col("engine").fill_null(value=False)
    drafts = (pl.col("mains") == 1) & (pl.col("earliest") == pl.col("first_main"))
    # what was launched before the recording began is the end of one pass, or of several
    whole = pl.col("step") >= 0
    reason = (
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
    passes = passes.with_columns(reason=reason)
    named = named.join(passes.select("group", "rank", "step", "reason"), on="group", how="left", maintain_order="left")
    named = _without_unlike(named)
    known = pl.col("reason").is_null()
    collective = pl.col("category") == "collective"
    return named.select(
        "event",
        layer=pl.when(known).then("layer"),
        stage=pl.when((pl.col("reason") == "no step") & pl.col("stage").is_in(["embedding", "prepare_inputs"]))
        .then(None)  # the rest of a layer whose beginning was not recorded
        .when(known | collective | (pl.col("reason") == "no step"))
        .then("stage")
        .when(pl.col("reason") == "draft model")
        .then(stage("draft"))
        .when(pl.col("category").is_in(_SAY_THEIR_STAGE))
        .then(pl.col("category").cast(pl.String).cast(STAGE, strict=False))
        .otherwise(stage("other")),
        confidence=pl.when(known).then("confidence"),
        reason="reason",
    )


def _without_unlike(named: pl.DataFrame) -> pl.DataFrame:
    """Give the events of layers that are far larger than the others their reason."""
    inside = named.filter(pl.col("layer").is_not_null() & pl.col("reason").is_null())
    sizes = inside.group_by("rank", "step", "group", "layer").agg(size=pl.len())
    if not sizes.height:
        return named
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
