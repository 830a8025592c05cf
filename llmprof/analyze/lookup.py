"""Values of a small frame with dense keys, looked up by the key column of a big one."""

from __future__ import annotations

import polars as pl


def column(small: pl.DataFrame, name: str, key: str) -> pl.Expr:
    """Expression that takes ``name`` from the row of ``small`` that the column ``key`` names (dense, from 0)."""
    return pl.lit(small[name]).gather(pl.col(key))
