"""Rows of an analysis summed by its columns: what ``by`` asks for."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from llmprof.errors import refuse_unknown


def sums_of_groups(frame: pl.DataFrame, by: Sequence[str], *more: pl.Expr) -> pl.DataFrame:
    """Count and durations of the rows of each group, nulls last; ``share`` is of all durations."""
    refuse_unknown(by, frame.columns, "by")
    dur, whole = pl.col("dur_ns"), pl.sum("total_ns")
    return (
        frame.group_by(*by)
        .agg(
            *more,
            count=pl.len(),
            total_ns=dur.sum(),
            mean_ns=dur.mean(),
            median_ns=dur.median(),
            min_ns=dur.min(),
            max_ns=dur.max(),
        )
        .with_columns(share=pl.when(whole > 0).then(pl.col("total_ns") / whole))
        .select(*by, "count", "total_ns", "share", pl.exclude(*by, "count", "total_ns", "share"))
        .sort(*by, nulls_last=True)
    )
