"""Ends of layers: the GEMM after the activation or the last expert, and the events that belong to it."""

from __future__ import annotations

import numpy as np
import polars as pl

from llmprof.analyze import nesting
from llmprof.analyze.groups import Grouped, first_of_runs

_MOST = 0.5
"""A property of more than this share of a rank's layers counts as a property of its model."""

_MOST_OF_A_PRODUCT = 3
"""The product of gate and up projection has at most this number of kernels."""


def find_layer_ends(frame: pl.DataFrame) -> pl.DataFrame:
    """Add the columns that the naming of stages needs to the rows of stretches.

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
    begins = first_of_runs(frame, ["stretch"])
    stretches = frame.select(
        "stretch",
        "group",
        "rank",
        "attentions",
        has_attention="attention_start",
        gemms_before=pl.col("gemms") - pl.col("gemm"),
        first_row="row",
    )[begins]
    frame = frame.with_columns(
        gemm_no=pl.col("gemms") - nesting.column(stretches, "gemms_before", "stretch"),
        latent_rank=pl.col("latent").any().over("rank") if frame["latent"].any() else pl.lit(value=False),
    )
    frame = frame.with_columns(bends=_bends() if frame["bends"].any() else pl.lit(value=False))
    category, after_gemm = pl.col("category"), pl.col("gemm_no") > 0
    chosen = frame.select(
        activates=(category == "activation") | pl.col("bends"),
        experts=category == "moe_experts",
        ends_attention=after_gemm & (category.is_in(["norm", "collective", "moe_routing"]) | pl.col("adds")),
        chooses=after_gemm & pl.col("chooses"),
    )
    # the number of GEMMs never falls in a stretch: the first row has the least, the last row the most
    groups, gemm_no = Grouped(frame["stretch"], len(begins)), frame["gemm_no"]
    stretches = stretches.with_columns(
        gemm_count=gemm_no.gather(np.append(begins[1:], frame.height) - 1),
        activation_at=groups.last(gemm_no, chosen["activates"]),
        first_activation=groups.first(gemm_no, chosen["activates"]),
        first_expert=groups.first(gemm_no, chosen["experts"]),
        last_expert=groups.last(gemm_no, chosen["experts"]),
        out_gemms=groups.first(gemm_no, chosen["ends_attention"]),
        chosen=groups.first(gemm_no, chosen["chooses"]),
        is_last=(pl.col("group") != pl.col("group").shift(-1)).fill_null(value=True),
        layer=pl.col("attentions")
        - pl.col("attentions").first().over("group")
        + pl.col("has_attention").first().over("group").cast(pl.Int32)
        - 1,
    )
    stretches = stretches.with_columns(gated_apart=_up_after_activation(frame, stretches))
    # a choice among values before the experts chooses them; one after the last GEMM of a layer is sampling
    experts_begin = pl.coalesce("first_expert", pl.col("activation_at") + 1)
    routed = pl.col("has_attention") & (pl.col("chosen") < experts_begin)
    stretches = stretches.with_columns(chosen=pl.when(routed).then("chosen"))
    stretches = _last_gemms(stretches)
    frame = frame.with_columns(nesting.column(stretches, "last_gemm", "stretch").alias("last_gemm"))
    stretches = _end_rows(frame, stretches)
    keep = [
        "has_attention", "is_last", "layer", "gemm_count", "first_expert", "last_expert", "out_gemms", "end_row",
        "lead", "qkv", "confidence", "first_row", "chosen",
    ]  # fmt: skip
    return frame.with_columns(nesting.column(stretches, c, "stretch").alias(c) for c in keep)


def _bends() -> pl.Expr:
    """Whether a row is the main kernel of an activation made of many kernels, on ranks without a fused activation."""
    whole = (pl.col("category") == "activation").any().over("rank")
    return pl.col("bends") & ~whole & (pl.col("gemm_no") > 0)


def _up_after_activation(frame: pl.DataFrame, stretches: pl.DataFrame) -> pl.Series:
    """Whether, in each stretch, the gate's activation comes before the up projection, because the two are separate.

    Then the element-wise product of both follows the GEMM after the activation, and not a norm or a collective.
    """
    after = nesting.column(stretches, "activation_at", "stretch") + 1
    between = frame.filter((pl.col("gemm_no") == after) & ~pl.col("gemm") & (pl.col("category") != "linear"))
    ends_part = pl.col("category").is_in(["norm", "collective", "moe_routing"]) | pl.col("adds")
    seen = between.group_by("stretch").agg(pl.col("multiplies").any(), rows=pl.len(), ends_part=ends_part.any())
    apart = seen.filter(pl.col("multiplies") & ~pl.col("ends_part") & (pl.col("rows") <= _MOST_OF_A_PRODUCT))
    goes_on = pl.col("gemm_count") > pl.col("activation_at") + 1
    return stretches.select(
        pl.col("stretch").is_in(apart["stretch"].implode()) & goes_on.fill_null(value=False)
    ).to_series()


def _last_gemms(stretches: pl.DataFrame) -> pl.DataFrame:
    """Number of the GEMM that ends each layer, from activation and experts, or else from the other layers."""
    seen = pl.max_horizontal(pl.col("last_expert"), pl.col("activation_at") + 1 + pl.col("gated_apart").cast(pl.Int32))
    seen = pl.when(pl.col("has_attention") & seen.is_not_null()).then(pl.min_horizontal(seen, "gemm_count"))
    inner = pl.col("has_attention") & ~pl.col("is_last")
    # a head with its own activation may follow the last layer: this layer ends where the other layers do
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
    plausible = (pl.col("out_gemms") < pl.coalesce("first_activation", "first_expert", "gemm_count")).fill_null(
        value=False
    )
    return stretches.with_columns(
        out_gemms=pl.when(plausible).then("out_gemms").otherwise(1),
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
    """Last row of each layer, and the number of rows between it and the next GEMM in most layers of the step."""
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
    groups, row = Grouped(frame["stretch"], stretches.height), frame["row"]
    at_end = pl.col("gemm_no") == pl.col("last_gemm")
    chosen = frame.select(
        at_end=at_end,
        closes=at_end & closes,
        norm=at_end & (pl.col("category") == "norm"),
        next_gemm=pl.col("gemm") & (pl.col("gemm_no") == pl.col("last_gemm") + 1),
    )
    # the next layer begins with its norm, even if a collective comes between that and the next GEMM
    norm_row = groups.first(row, chosen["norm"])
    own = chosen["closes"] & (row < norm_row.gather(groups.of_row)).fill_null(value=True)
    stretches = stretches.with_columns(
        end_row=groups.last(row, own), next_gemm=groups.first(row, chosen["next_gemm"])
    ).with_columns(end_row=pl.when("has_attention").then(pl.coalesce("end_row", "first_row")))
    if stretches["chosen"].null_count() < stretches.height:
        # the results of the chosen experts are weighted and added after their last GEMM
        added = groups.first(row, chosen["at_end"] & frame["adds"])
        root = groups.first(row, chosen["at_end"] & frame["roots"])
        weighted = pl.col("chosen").is_not_null() & (added < root).fill_null(value=True) & added.is_not_null()
        stretches = stretches.with_columns(end_row=pl.when(weighted).then(added).otherwise("end_row"))
    stretches = _with_norm_at_end(frame, stretches)
    inner = pl.col("has_attention") & ~pl.col("is_last")
    lead = (pl.col("next_gemm") - pl.col("end_row") - 1).filter(inner).drop_nulls()
    usual = stretches.group_by("group").agg(lead=lead.mode().min())
    return stretches.join(usual, on="group", how="left", maintain_order="left").with_columns(
        lead=pl.coalesce("lead", 1)
    )


def _with_norm_at_end(frame: pl.DataFrame, stretches: pl.DataFrame) -> pl.DataFrame:
    """Move the end of a layer behind a norm if two norms follow its last GEMM, or one norm whose result is then added.

    Models that norm the output of a block before they add it (Gemma, OLMo 2) have this norm, and then the next layer's.
    """
    needed = frame.select(
        "stretch", "row", "gemm_no", "last_gemm", "category", "roots", "fuses_add", "powers", "multiplies", "adds"
    )
    end_row = nesting.column(stretches, "end_row", "stretch")
    after = needed.filter((pl.col("gemm_no") == pl.col("last_gemm")) & (pl.col("row") > end_row))
    groups, row, roots, far = Grouped(after["stretch"], stretches.height), after["row"], after["roots"], 1 << 40
    first = groups.first(row, roots)
    if first.null_count() == first.len():
        return stretches
    of_first = first.gather(groups.of_row)
    later = row > of_first
    second = groups.first(row, roots & later)
    between = later & (row < second.fill_null(far).gather(groups.of_row))
    squares = groups.first(row, between & after["powers"])
    own = between & (row < squares.fill_null(far).gather(groups.of_row))
    units = pl.DataFrame(
        {
            "first": first,
            "second": second,
            "fused": groups.first(after["fuses_add"], roots),
            "whole": groups.first(after["category"] == "norm", roots),
            "scaled": groups.last(row, own & after["multiplies"]),
            "added_before": groups.first(row, after["adds"] & (row < of_first)).is_not_null(),
            "added_after": groups.first(row, after["adds"] & own),
            "seen": groups.first(row, row.is_not_null()),
        }
    )
    first_of_two = pl.col("second").is_not_null() & ~pl.col("fused")
    added_later = pl.col("added_after").is_not_null() & ~pl.col("added_before") & ~pl.col("fused")
    stretches = stretches.hstack(
        units.select(
            end=pl.when("whole").then("first").otherwise(pl.coalesce("scaled", "first")),
            own=pl.when(pl.col("seen").is_not_null()).then(first_of_two | added_later),
        )
    )
    inner = pl.col("has_attention") & ~pl.col("is_last")
    usual = (pl.col("own").filter(inner).mean() > _MOST).over("rank")
    mine = stretches.select((usual & pl.col("has_attention") & pl.col("own")).fill_null(value=False)).to_series()
    if not mine.any():
        return stretches.drop("end", "own")
    copies, adds = pl.col("category") == "copy", pl.col("adds")
    ends = stretches.select("stretch", end=pl.when(mine).then("end"))
    # the conversion and the addition that follow it belong to it
    tail = after.join(ends, on="stretch", how="left", maintain_order="left").filter(pl.col("row") > pl.col("end"))
    tail = tail.with_columns(
        nth=pl.int_range(pl.len()).over("stretch"), kind=pl.when(copies).then(1).when(adds).then(2)
    )
    kinds = {f"kind_{n}": pl.col("kind").filter(pl.col("nth") == n).first() for n in (0, 1)}
    tail = (
        tail.group_by("stretch", maintain_order=True)
        .agg(**kinds)
        .with_columns(
            more=pl.when((pl.col("kind_0") == 1) & (pl.col("kind_1") == 2).fill_null(value=False))
            .then(2)
            .when(pl.col("kind_0").is_not_null())
            .then(1)
            .otherwise(0)
        )
    )
    stretches = stretches.join(tail, on="stretch", how="left", maintain_order="left")
    longer = pl.col("end") + pl.col("more").fill_null(0)
    return stretches.with_columns(end_row=pl.when(mine).then(longer).otherwise("end_row")).drop(
        "end", "own", "more", "kind_0", "kind_1"
    )
