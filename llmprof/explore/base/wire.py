"""Frames as packed arrays: what a widget sends to its browser's side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

NOTHING = 0xFFFFFFFF
"""Code of a text that is null."""

Buffers = list[bytes | memoryview]


def array(values: Any, dtype: str) -> memoryview:
    """Values as bytes of little-endian numbers, ready to be sent.

    Parameters
    ----------
    values : array_like or polars.Series
        Numbers.
    dtype : str
        ``f8``, ``f4``, ``u4``, ``i4``, ``u2`` or ``u1``.
    """
    raw = values.to_numpy() if isinstance(values, pl.Series) else values
    return np.ascontiguousarray(raw, dtype=f"<{dtype}").data.cast("B")


def pack(frame: pl.DataFrame, columns: Sequence[str] | None = None) -> tuple[list[dict[str, Any]], Buffers]:
    """Columns of a frame as one buffer each; ``table(msg.columns, buffers)`` of ``wire.mjs`` reads them.

    Numbers and times become doubles (null: NaN), booleans bytes, and texts codes into their distinct values.

    Parameters
    ----------
    frame : polars.DataFrame
        Columns of numbers, booleans and texts.
    columns : sequence of str, optional
        Columns to send; all if not given.

    Returns
    -------
    columns : list of dict
        Of each column its ``name``, ``dtype`` (f8, u1 or u4) and, for texts, the distinct ``values``.
    buffers : list of bytes
        One a column.
    """
    described: list[dict[str, Any]] = []
    buffers: Buffers = []
    for name in columns if columns is not None else frame.columns:
        series = frame[name]
        if series.dtype == pl.Boolean:
            described.append({"name": name, "dtype": "u1"})
            buffers.append(array(series.fill_null(value=False), "u1"))
        elif series.dtype.is_numeric():
            described.append({"name": name, "dtype": "f8"})
            buffers.append(array(series.cast(pl.Float64), "f8"))
        else:
            texts = series.cast(pl.String)
            values = texts.drop_nulls().unique(maintain_order=True)
            codes = texts.replace_strict(values, pl.int_range(values.len(), eager=True), return_dtype=pl.UInt32)
            described.append({"name": name, "dtype": "u4", "values": values.to_list()})
            buffers.append(array(codes.fill_null(NOTHING), "u4"))
    return described, buffers
