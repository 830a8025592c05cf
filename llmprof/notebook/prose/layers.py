"""Sentences about layers: their number, their stages, and their times."""

from __future__ import annotations

from math import isfinite
from typing import Final

import polars as pl

from llmprof import analyze, names
from llmprof.analyze.activity import operators_stand_in
from llmprof.notebook.prose.words import events_called, kind_in_words, number
from llmprof.text import counted, joined
from llmprof.trace import Trace
from llmprof.units import format_ns


def of_layers_found(trace: Trace, rank: int, step: int | None) -> list[str]:
    """Number of layers in a step of a rank, by its attention kernels.

    Examples
    --------
    >>> of_layers_found(trace, 0, 5)
    ['Step 5 of rank 0 has 362 kernels and copies and attention in **28 layers**.']
    """
    events = analyze.attribute(trace).filter((pl.col("rank") == rank) & pl.col("step").eq_missing(_step(step)))
    where = f"Step {step} of rank {rank}" if step is not None else f"Rank {rank}"
    has = f"{where} has {events.height:,} {events_called(trace)}"
    attention = events.filter((pl.col("stage") == "attention") & (pl.col("category") == "attention"))
    layers = attention["layer"].drop_nulls().n_unique()
    if layers:
        return [f"{has} and attention in **{counted(layers, 'layer')}**."]
    if attention.height or (events["category"] == "attention").any():
        many = (events["category"] == "attention").sum()
        return [f"{has}, of them {many:,} of attention, but no layers were found."]
    return [f"{has}, and none of them is known as attention, so there are no layers to be found by it."]


_STAGES: Final = {
    "norm": "brings the hidden states to one scale",
    "qkv_proj": "query, key and value in one projection, split afterwards",
    "rope": "turns q and k by their position",
    "kv_cache_write": "puts k and v of the new tokens into the cache",
    "attention": "new queries against all keys and values",
    "o_proj": "from the heads back to the hidden size",
    "all_reduce": "adds up the partial sums of the ranks",
    "gate_up_proj": "gate and up projection of the feed-forward part",
    "activation": "bends what the projection before it gives, and multiplies it with the gate where there is one",
    "down_proj": "back to the hidden size",
    "residual": "adds what came in",
    "router": "chooses the experts of each token",
    "expert_dispatch": "brings tokens to the ranks of their experts",
    "experts": "the feed-forward parts of the chosen experts",
    "combine": "brings the results back and adds them up",
}


def stages_of_layer(trace: Trace, rank: int, step: int | None, layer: int) -> pl.DataFrame:
    """Stages of a layer in order, with their meaning and the weight matrix of their GEMM.

    Parameters
    ----------
    trace : Trace
        Any trace.
    rank, layer : int
        Which layer of which rank.
    step : int or None
        In which step.

    Returns
    -------
    polars.DataFrame
        ``stage``, ``kernels`` (events), ``us`` (their sum, in us), ``weight`` (the shape of the second matrix of the
        operator; null if shapes were not recorded) and ``meaning``; no rows if the layer was not found.

    Examples
    --------
    >>> stages_of_layer(trace, 0, 5, 3).columns
    ['stage', 'kernels', 'us', 'weight', 'meaning']
    """
    rows = _layer(trace, rank, step).filter(pl.col("layer") == layer).sort("start_ns")
    rows = _with_operators(trace, rows)
    matrices = pl.col("shapes").str.extract_all(r"\[\d+, ?\d+\]").list.last().str.strip_chars("[]")
    weight = pl.when(pl.col("category") == "linear").then(matrices.str.replace(", ?", " x "))
    run = (pl.col("stage") != pl.col("stage").shift(1)).fill_null(value=True).cum_sum()
    return (
        rows.with_columns(weight=weight, run=run)
        .group_by("run", maintain_order=True)
        .agg(
            pl.col("stage").first(),
            kernels=pl.len(),
            us=pl.col("dur_ns").sum() / 1e3,
            weight=pl.col("weight").drop_nulls().first(),
        )
        .with_columns(meaning=pl.col("stage").replace_strict(_STAGES, default="", return_dtype=pl.String))
        .drop("run")
    )


def _layer(trace: Trace, rank: int, step: int | None) -> pl.DataFrame:
    return analyze.attribute(trace).filter(
        (pl.col("rank") == rank) & pl.col("step").eq_missing(_step(step)) & pl.col("layer").is_not_null()
    )


def _step(step: int | None) -> pl.Expr:
    return pl.lit(step, dtype=pl.Int32)


def _with_operators(trace: Trace, rows: pl.DataFrame) -> pl.DataFrame:
    if not trace.has("ops"):
        return rows.with_columns(operator=pl.lit(None, pl.String), shapes=pl.lit(None, pl.String))
    ops = trace.ops.select("rank", "op_id", operator="name", shapes="shapes").unique(["rank", "op_id"], keep="first")
    return rows.join(ops, on=["rank", "op_id"], how="left", maintain_order="left")


def of_layer(trace: Trace, rank: int, step: int | None, layer: int) -> list[str]:
    """Events of a layer, and the communication in it.

    Examples
    --------
    >>> of_layer(trace, 0, 5, 3)[0][:20]
    'Layer 3 has 12 kerne'
    """
    events = _layer(trace, rank, step)
    mine = events.filter(pl.col("layer") == layer)
    if not mine.height:
        numbers = events["layer"].unique().sort()
        if not numbers.len():
            return ["No layers were found, so there is none to take apart."]
        return [
            f"There is no layer {layer} in step {step} of rank {rank}: it has the layers {numbers[0]} to {numbers[-1]}."
        ]
    sentences = [f"Layer {layer} has {mine.height} {events_called(trace)} on rank {rank}."]
    step_events = analyze.attribute(trace).filter((pl.col("rank") == rank) & pl.col("step").eq_missing(_step(step)))
    calls = step_events.filter(pl.col("category") == "collective").sort("start_ns")
    calls = calls.with_columns(kind=names.collective_kinds(calls["name"]))
    inside = calls.filter(pl.col("layer") == layer)
    if not inside.height:
        return sentences
    before = mine.filter(pl.col("category").is_in(["linear", "moe_experts"])).sort("start_ns")
    after = inside.join_asof(before.select("start_ns", follows="stage"), on="start_ns", strategy="backward")
    of_kind = calls.filter(pl.col("kind") == inside["kind"].mode().sort()[0])
    kind = kind_in_words(of_kind["kind"][0])
    follows = [f"`{stage}`" for stage in dict.fromkeys(after["follows"].to_list()) if stage]
    place = f", after {joined(follows)}" if follows else ""
    outside = of_kind.filter(pl.col("layer").is_null()).height
    many = counted(inside.filter(kind=of_kind["kind"][0]).height, kind)
    sentences.append(f"There {'is' if many.startswith('1 ') else 'are'} {many} among them{place}.")
    all_layers = f"The {events['layer'].n_unique()} layers of the step have {counted(of_kind.height - outside, kind)}"
    if outside:
        all_layers += f", and {outside} {'is' if outside == 1 else 'are'} outside of them: **{of_kind.height} a step**"
    return [*sentences, f"{all_layers}."]


def of_small_kernels(trace: Trace, rank: int, step: int | None, layer: int) -> list[str]:
    """Details of a layer: split-K reductions, fills and copies, and how short its kernels are.

    Examples
    --------
    >>> all(isinstance(text, str) for text in of_small_kernels(trace, 0, 5, 3))
    True
    """
    mine = _layer(trace, rank, step).filter(pl.col("layer") == layer)
    if not mine.height or operators_stand_in(trace):
        return []
    sentences = []
    reductions = mine.filter(pl.col("name").str.contains(f"(?i){names.SPLIT_K}"))
    if reductions.height:
        stages = joined([f"`{stage}`" for stage in reductions["stage"].unique(maintain_order=True)])
        sentences.append(
            f"{counted(reductions.height, 'kernel')} only add{'s' if reductions.height == 1 else ''} up parts (split-K "
            f"in {stages}): the GEMM before has too few tiles to fill the {trace.platform.device}, so its library "
            "splits the inner dimension."
        )
    moved = mine.filter(pl.col("category").is_in(["copy", "fill"]))
    if moved.height:
        stages = joined([f"`{stage}`" for stage in moved["stage"].unique(maintain_order=True)])
        sentences.append(f"{counted(moved.height, 'event')} only copy or fill memory, in {stages}.")
    alone = mine.filter(~pl.col("replayed").fill_null(value=False))
    call = number(alone.select(pl.col("launch_end_ns") - pl.col("launch_start_ns")).to_series().median())
    if isfinite(call):
        sentences.append(
            f"Half of its kernels and copies run for {format_ns(number(mine['dur_ns'].median()))} or less; a launch "
            f"call takes the host {format_ns(call)} (median)."
        )
    return sentences


def of_layer_times(trace: Trace, rank: int) -> list[str]:
    """Times of a layer: busy time, span on the device, and time on the host.

    Examples
    --------
    >>> of_layer_times(trace, 0)[0][:31]
    'The kernels of a layer run for '
    """
    rows = analyze.layers(trace, per="layer").filter(pl.col("rank") == rank)
    steady = analyze.steady_state(trace)
    if steady.height:
        rows = rows.join(steady.select("rank", "step"), on=["rank", "step"], how="semi")
    if not rows.height:
        return ["No layers were found, so there are no times of layers."]
    busy, device, host = (number(rows[column].median()) for column in ("busy_ns", "dur_ns", "host_dur_ns"))
    what = "operators" if operators_stand_in(trace) else "kernels"
    text = (
        f"The {what} of a layer run for {format_ns(busy)}; from the start of the first to the end of the last it takes "
        f"{format_ns(device)}"
    )
    if not isfinite(host) or operators_stand_in(trace):
        return [f"{text} (medians of rank {rank})."]
    text += f", and the host needs {format_ns(host)} to issue it (medians of rank {rank})"
    ratio = max(device, host) / busy if busy else 0.0
    return [f"{text}: up to {ratio:.1f} times as long." if ratio >= 1.5 else f"{text}."]
