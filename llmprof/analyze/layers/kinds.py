"""Kinds of layers: how a layer mixes its tokens and what follows, by the kernels that it runs."""

from __future__ import annotations

from typing import Final

import polars as pl

from llmprof.analyze.catalog import per_trace
from llmprof.analyze.layers.attribution import attribute
from llmprof.names.operators import by_distinct
from llmprof.trace import Trace

_FLAG, _SET = r"(?:\(bool\))?(?:true|false|[01]), ", r"(?:\(bool\))?(?:true|1), "
_LOCAL: Final = (
    rf"arch::Sm\d+, {_FLAG}{_SET}|flash_fwd_splitkv_kernel<.*?> ?>, {_FLAG}{_SET}|"
    rf"flash_fwd_kernel<.*?> ?>, {_FLAG}{_FLAG}{_SET}|SlidingOrChunked"
)
"""FlashAttention 3 and 2 with ``Is_local``, TensorRT-LLM: a window that is shorter than the context."""
_ABSORBED: Final = rf"arch::Sm\d+, (?:{_FLAG}){{6}}{_SET}"
"""FlashAttention 3 with ``HasQv``: queries that multiply with a latent cache."""

_MIXERS: Final[tuple[tuple[str, str], ...]] = (
    (
        "sparse attention",
        r"(?i)mqa_logits|topk_transform|topKPerRow|topk_index|index_(?:block_)?score|indexer|_sparse_(?:fwd|decode|att|mla)",
    ),
    ("latent attention", rf"(?i)\bmla|_mla|mla_|BatchMLA|[a-z]Mla[A-Z]|{_ABSORBED}"),
    ("sliding attention", _LOCAL),
    ("KDA", r"(?i)\bkda_|_kda_|_kda\b"),
    ("gated delta net", r"(?i)gated_delta|chunk_delta|gdn_|gating_delta"),
    ("lightning attention", r"(?i)lightning|_fwd_(?:none_)?diag_kernel|_fwd_kv_(?:parallel|reduce)|linear_attn_decode"),
    ("Mamba-2", r"(?i)_chunk_(?:scan|state|cumsum)_fwd|_state_passing_fwd|_bmm_chunk_fwd"),
    ("Mamba-1", r"(?i)selective_scan_fwd"),
    ("state space", r"(?i)selective_(?:scan|state)_update"),
)  # fmt: skip
_ATTENTIONS: Final = ("sparse attention", "latent attention", "sliding attention", "attention")
_SCANS: Final = (
    "KDA",
    "gated delta net",
    "lightning attention",
    "Mamba-2",
    "Mamba-1",
    "state space",
    "linear attention",
)
_VAGUE: Final = ("attention", "state space", "linear attention")
"""What a mixer is called by kernels that several kinds share; another step of the same layer may say more."""
_MIXING: Final = ("attention", "scan", "conv", "kv_cache_write", "rope", "indexer", "top_k")
_LEAST_SURE: Final = 0.5
_KEY: Final = ("rank", "step", "layer")


@per_trace
def kinds(trace: Trace) -> pl.DataFrame:
    """``rank, step, layer, kind`` of every layer; null if its kernels do not tell."""
    # A kind is a mixer of tokens, a feed-forward part (MLP or MoE), or both, joined by " + ".
    events = attribute(trace).filter(pl.col("layer").is_not_null(), pl.col("step").is_not_null())
    said = by_distinct(events["name"], _said)
    category, at = pl.col("category"), pl.col("start_ns")
    attends, scans = category == "attention", (category == "scan") & (pl.col("stage") != "conv")
    feeds = pl.col("stage").is_in(["gate_up_proj", "down_proj", "experts"])
    frame = events.with_columns(said=said).group_by(_KEY).agg(
        said=pl.col("said").filter(pl.col("stage").is_in(_MIXING)).drop_nulls().unique(),
        attends=attends.any(),
        scans=scans.any(),
        convolves=(pl.col("stage") == "conv").any(),
        experts=pl.col("stage").is_in(["experts", "router"]).any(),
        feeds=feeds.any(),
        between=(at.filter(feeds).min() < pl.max_horizontal(at.filter(attends).min(), at.filter(scans).min())),
        sure=pl.col("confidence").min(),
    )  # fmt: skip
    frame = frame.with_columns(
        attention=_first(_ATTENTIONS, pl.col("attends"), "attention"),
        scan=_first(_SCANS, pl.col("scans"), "linear attention"),
    )
    frame = frame.with_columns(_agreed(column) for column in ("attention", "scan"))
    windows = (pl.col("attention") == "sliding attention").any().over("rank", "step")
    attention = (
        pl.when(windows & (pl.col("attention") == "attention")).then(pl.lit("full attention")).otherwise("attention")
    )
    both = pl.col("attends") & pl.col("scans")
    mixer = (
        pl.when(both & pl.col("between")).then(pl.lit(""))
        .when(both).then(pl.lit("parallel hybrid"))
        .when("attends").then(attention)
        .when("scans").then("scan")
        .when("convolves").then(pl.lit("short convolution"))
    )  # fmt: skip
    feed = pl.when("experts").then(pl.lit("MoE")).when("feeds").then(pl.lit("MLP"))
    kind = pl.concat_str(mixer, feed, separator=" + ", ignore_nulls=True)
    known = (pl.col("sure") > _LEAST_SURE) & (mixer.fill_null("none") != "") & (kind != "")
    return frame.select(*_KEY, kind=pl.when(known).then(kind)).sort(_KEY)


def _said(names: tuple[str, ...]) -> pl.Series:
    """The first mixer that each name speaks for."""
    name = pl.col("name")
    said = pl.coalesce(pl.when(name.str.contains(pattern)).then(pl.lit(kind)) for kind, pattern in _MIXERS)
    return pl.DataFrame({"name": names}, schema={"name": pl.String}).select(said).to_series()


def _first(kinds_: tuple[str, ...], there: pl.Expr, otherwise: str) -> pl.Expr:
    """The most telling of some kinds that the kernels of a layer speak for."""
    named = pl.coalesce(pl.when(pl.col("said").list.contains(kind)).then(pl.lit(kind)) for kind in kinds_)
    return pl.when(there).then(named.fill_null(otherwise))


def _agreed(column: str) -> pl.Expr:
    """A vague kind becomes the one that all other steps of the layer agree on."""
    vague = pl.col(column).is_in(_VAGUE)
    others = pl.col(column).filter(~vague)
    layer = ("rank", "layer")
    return (
        pl.when(vague & (others.n_unique().over(layer) == 1))
        .then(others.first().over(layer))
        .otherwise(column)
        .alias(column)
    )
