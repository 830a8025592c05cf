"""Nesting of intervals: which lie inside which others, and the innermost one at a moment."""

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
    after = _changes(spans, by).rename({"_inner": name})
    return (
        points.with_row_index("_point")
        .sort(at)
        .join_asof(
            after.sort("_time"), left_on=at, right_on="_time", by=list(by), strategy="backward", check_sortedness=False
        )
        .sort("_point")
        .drop("_point", "_time", strict=False)
    )


def innermost_pieces(spans: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Time of each group in pieces, each with the innermost span that covers it.

    Parameters
    ----------
    spans : polars.DataFrame
        ``start_ns, dur_ns`` (ns) and the columns of ``by``; spans of one group nest, as calls of one thread do.
    by : sequence of str
        Columns that part them into groups, such as rank and thread.

    Returns
    -------
    polars.DataFrame
        ``<by...>, start_ns, dur_ns, span`` (row of the span in ``spans``, u32), disjoint, in the order of the groups
        and time. The pieces of a span add up to its self time; where no span is, there is no piece.
    """
    after = _changes(spans, by).sort(*by, "_time")
    until = pl.col("_time").shift(-1).over(by)
    return after.select(*by, start_ns="_time", dur_ns=until - pl.col("_time"), span="_inner").filter(
        pl.col("span").is_not_null() & (pl.col("dur_ns") > 0)
    )


def _changes(spans: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Moments at which the innermost span changes: ``<by...>, _time, _inner`` (null where none covers the time)."""
    edges, parents = _nested(spans, by)
    return (
        edges.join(parents.select("_span", "_parent"), on="_span", how="left")
        .select(*by, "_edge", "_time", pl.when(pl.col("_turn") == 1).then("_span").otherwise("_parent").alias("_inner"))
        .sort("_edge")
        .unique([*by, "_time"], keep="last", maintain_order=True)
        .drop("_edge")
    )


def parents(spans: pl.DataFrame, by: Sequence[str]) -> pl.Series:
    """Row of the span that each span lies in directly, null for the outermost ones and for spans of no length.

    Parameters
    ----------
    spans : polars.DataFrame
        ``start_ns, dur_ns`` (ns) and the columns of ``by``; those of one group nest.
    by : sequence of str
        Columns that part them into groups, such as rank and thread.

    Returns
    -------
    polars.Series
        Row numbers (u32) in the order of ``spans``.
    """
    _, found = _nested(spans, by)
    rows = pl.DataFrame({"_span": pl.Series(range(spans.height), dtype=pl.UInt32)})
    joined = rows.join(found.select("_span", "_parent"), on="_span", how="left", maintain_order="left")
    return joined["_parent"].alias("parent")


def _nested(spans: pl.DataFrame, by: Sequence[str]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Begins and ends of spans in their order, and ``_span, _parent`` of each."""
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
    return edges, parents


def column(small: pl.DataFrame, name: str, key: str) -> pl.Expr:
    """Expression that takes ``name`` from the row of ``small`` that the column ``key`` names (dense, from 0)."""
    return pl.lit(small[name]).gather(pl.col(key))
