"""Attention that the framework computes in steps: a product of queries and keys, a softmax, a product with the values.

Only the softmax tells it from other work, and a softmax also chooses experts and samples. It is attention's where the
last and the next kernel that do more than arithmetic element by element are GEMMs, and the operators of these, where
they are known, multiply batches of matrices.
"""

from __future__ import annotations

import polars as pl

_SOFTMAX = r"(?i)softmax"
_BACKWARD = r"(?i)backward|bwd|log_?softmax"
_CHOOSES = r"(?i)top_?k|sort|radix|argmax|scan|multinomial|nonzero"
"""Kernels of a plain category that choose among values: the softmax before one is not attention's."""

_PLAIN = ("elementwise", "copy", "fill", "other")

_MOST_BETWEEN = 8
"""Kernels at most between the softmax and either product: scale, mask, conversion of the type."""


def softmax_attention(events: pl.DataFrame) -> pl.Series | None:
    """Rows that are parts of an attention which is computed in steps.

    Parameters
    ----------
    events : polars.DataFrame
        ``rank, stream, start_ns, name, source, category`` of device events, in any order.

    Returns
    -------
    polars.Series or None
        True for the two products, the softmax and what lies between them; None where there is none.
    """
    distinct = events["name"].unique()
    softmaxes = distinct.filter(distinct.str.contains(_SOFTMAX) & ~distinct.str.contains(_BACKWARD))
    if not softmaxes.len():
        return None
    chooses = distinct.filter(distinct.str.contains(_CHOOSES))
    frame = (
        events.select("rank", "stream", "start_ns", "name", "source", "category")
        .with_row_index("_row")
        .sort("rank", "stream", "start_ns", maintain_order=True)
        .with_row_index("at")
        .with_columns(
            pl.col("at").cast(pl.Int64),
            softmax=pl.col("name").is_in(softmaxes.implode()) & pl.col("category").is_in(["elementwise", "attention"]),
            solid=~pl.col("category").is_in(_PLAIN) | pl.col("name").is_in(chooses.implode()),
        )
    )
    frame = frame.with_columns(solid=pl.col("solid") & ~pl.col("softmax"))
    lane = ["rank", "stream"]
    at = pl.when("solid").then("at")
    frame = frame.with_columns(
        before=at.forward_fill().over(lane), after=at.backward_fill().over(lane), linear=pl.col("category") == "linear"
    )
    found = frame.filter(
        pl.col("softmax")
        & (pl.col("at") - pl.col("before") <= _MOST_BETWEEN)
        & (pl.col("after") - pl.col("at") <= _MOST_BETWEEN)
    )
    linear = frame["linear"]
    found = found.filter(linear.gather(found["before"]) & linear.gather(found["after"])) if found.height else found
    if not found.height:
        return None
    rows = found.select(at=pl.int_ranges("before", pl.col("after") + 1)).explode("at")["at"].unique()
    inside = frame.filter(pl.col("at").is_in(rows.implode()))["_row"]
    flags = pl.Series("attention", range(events.height), dtype=pl.UInt32)
    return flags.is_in(inside.implode())
