"""Which of the nested spans of a thread is the innermost at a moment."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl


def innermost(points: pl.DataFrame, spans: pl.DataFrame, by: Sequence[str], *, at: str, name: str) -> pl.DataFrame:
    """Innermost span that covers each point.

    Spans of one group nest, as calls of one thread do; where two overlap without nesting, a point may find none.

    Parameters
    ----------
    points : polars.DataFrame
        Moments in the column ``at`` (ns) and the columns of ``by``.
    spans : polars.DataFrame
        ``start_ns, dur_ns`` (ns) and the columns of ``by``; a span covers ``start_ns <= t < start_ns + dur_ns``.
    by : sequence of str
        Columns that part both into groups, such as rank and thread.
    at : str
        Column of the moments.
    name : str
        Name of the new column.

    Returns
    -------
    polars.DataFrame
        The points in their order with the row of the span in ``spans`` (u32), null where none covers the point.
    """
    start, end = pl.col("start_ns"), pl.col("start_ns") + pl.col("dur_ns")
    numbered = spans.select(*by, "start_ns", "dur_ns").with_row_index("_span").filter(pl.col("dur_ns") > 0)
    row = pl.col("_span").cast(pl.Int64)
    # At one moment spans end before others begin; the longer of two begins first and ends last.
    begins = numbered.select(*by, "_span", _time=start, _turn=pl.lit(1), _size=-pl.col("dur_ns"), _tie=row)
    stops = numbered.select(*by, "_span", _time=end, _turn=pl.lit(-1), _size=pl.col("dur_ns"), _tie=-row)
    edges = pl.concat([begins, stops]).sort(*by, "_time", "_turn", "_size", "_tie").with_row_index("_edge")
    edges = edges.with_columns(_depth=pl.col("_turn").cum_sum().over(by))
    opened = edges.filter(pl.col("_turn") == 1).select(*by, "_depth", "_edge", "_span")
    parents = opened.with_columns(_depth=pl.col("_depth") - 1).join_asof(
        opened.rename({"_span": "_parent"}), on="_edge", by=[*by, "_depth"], strategy="backward", check_sortedness=False
    )
    after = (
        edges.join(parents.select("_span", "_parent"), on="_span", how="left")
        .select(*by, "_edge", "_time", pl.when(pl.col("_turn") == 1).then("_span").otherwise("_parent").alias(name))
        .sort("_edge")
        .unique([*by, "_time"], keep="last", maintain_order=True)
        .drop("_edge")
    )
    return (
        points.with_row_index("_point")
        .sort(at)
        .join_asof(
            after.sort("_time"), left_on=at, right_on="_time", by=list(by), strategy="backward", check_sortedness=False
        )
        .sort("_point")
        .drop("_point", "_time", strict=False)
    )
