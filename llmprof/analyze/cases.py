"""Texts for the cases that a row can be."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl


def first_true(cases: Mapping[str, pl.Expr], otherwise: str | None = None) -> pl.Expr:
    """The first text whose condition holds for a row."""
    texts = [pl.when(condition).then(pl.lit(text)) for text, condition in cases.items()]
    return pl.coalesce(*texts, pl.lit(otherwise, dtype=pl.String))
