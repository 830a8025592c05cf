"""Which intervals lie inside which others."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl


def inside(inner: pl.DataFrame, outer: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """All pairs of an interval and one of its group that contains it, ends included.

    Parameters
    ----------
    inner, outer : polars.DataFrame
        Intervals: ``start_ns, dur_ns`` (ns, not null) and the columns of ``by``. They need not nest.
    by : sequence of str
        Columns that part both into groups, such as rank and thread; null is a value like any other.

    Returns
    -------
    polars.DataFrame
        ``inner, outer``: row numbers in the two frames, by outer and the start of inner. Takes memory for each pair
        and for each inner interval that begins in an outer one.
    """
    groups = pl.concat([inner.select(by), outer.select(by)]).unique(maintain_order=True).with_row_index("_group")
    end = pl.col("start_ns") + pl.col("dur_ns").clip(0)
    bounds = pl.concat([f.select("start_ns", end=end) for f in (inner, outer)])
    if not inner.height or not outer.height:
        return pl.DataFrame(schema={"inner": pl.UInt32, "outer": pl.UInt32})
    low, high = bounds.select(pl.col("start_ns").min(), pl.col("end").max()).row(0)
    base = pl.col("_group").cast(pl.Int64) * (high - low + 1) - low

    def on_line(frame: pl.DataFrame, row: str) -> pl.DataFrame:
        placed = frame.select(*by, "start_ns", end=end).with_row_index(row)
        placed = placed.join(groups, on=list(by), how="left", nulls_equal=True, maintain_order="left")
        return placed.select(row, from_=base + pl.col("start_ns"), to=base + pl.col("end"))

    points = on_line(inner, "inner").sort("from_", maintain_order=True)
    spans = on_line(outer, "outer")
    spans = spans.with_columns(
        pl.Series("first", points["from_"].search_sorted(spans["from_"], side="left"), dtype=pl.Int64),
        pl.Series("stop", points["from_"].search_sorted(spans["to"], side="right"), dtype=pl.Int64),
    ).filter(pl.col("first") < pl.col("stop"))
    pairs = spans.select("outer", "to", at=pl.int_ranges("first", "stop")).explode("at")
    at = pairs["at"]
    return (
        pairs.with_columns(points["inner"].gather(at), points["to"].gather(at).alias("inner_to"))
        .filter(pl.col("inner_to") <= pl.col("to"))
        .select("inner", "outer")
    )
