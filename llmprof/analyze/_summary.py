"""Count, total and spread of a quantity by name, as the summaries of Nsight Systems give them."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from llmprof.errors import AnalysisError


def statistics(value: pl.Expr, unit: str, prefix: str = "") -> list[pl.Expr]:
    """Mean, median, smallest, largest and sample standard deviation, as aggregations.

    Parameters
    ----------
    value : polars.Expr
        The quantity; nulls are left out.
    unit : str
        Ending of the columns.
    prefix : str
        Beginning of the columns.

    Returns
    -------
    list of polars.Expr
        ``<prefix>mean_<unit>, median, min, max, std``; as in nsys a single value has the deviation 0.
    """
    several = pl.when(value.count() == 1).then(0.0).otherwise(value.std())
    measures = {"mean": value.mean(), "median": value.median(), "min": value.min(), "max": value.max(), "std": several}
    return [measure.alias(f"{prefix}{name}_{unit}") for name, measure in measures.items()]


def summarise(
    rows: pl.DataFrame, names: Sequence[str], *, value: str, unit: str, count: str, by: Sequence[str] = ()
) -> pl.DataFrame:
    """Rows grouped by name.

    Parameters
    ----------
    rows : polars.DataFrame
        The quantity and the columns of ``by`` and ``names``.
    names : sequence of str
        Text columns that name a group; they come last, as in nsys.
    value : str
        Column of the quantity, an integer.
    unit : str
        Ending of the columns: ``ns`` or ``bytes``.
    count : str
        What the number of rows is called.
    by : sequence of str
        Columns to group by first, such as ``("rank",)``.

    Returns
    -------
    polars.DataFrame
        ``<by...>, share`` (of the total of all rows of the group of ``by``), ``total_<unit>, <count>, mean_<unit>,
        median_<unit>, min_<unit>, max_<unit>, std_<unit>, <names...>``, the largest total first within ``by``.

    Raises
    ------
    AnalysisError
        ``by`` names an unknown column.
    """
    if missing := [column for column in by if column not in rows.columns]:
        raise AnalysisError(f"the table has no column {missing}", expected=f"some of {rows.columns}")
    by = [column for column in by if column not in names]
    total, quantity = f"total_{unit}", pl.col(value)
    groups = (
        rows.select(*by, value, pl.col(names).cast(pl.Categorical))  # groups by number, several times as fast
        .group_by(*by, *names)
        .agg(quantity.sum().alias(total), pl.len().alias(count), *statistics(quantity, unit))
        .with_columns(pl.col(names).cast(pl.String))
    )
    whole = pl.col(total).sum().over(by) if by else pl.col(total).sum()
    order = [*by, total, count, *names]
    descending = [column == total for column in order]
    return groups.sort(order, descending=descending, nulls_last=True).select(
        *by,
        pl.when(whole > 0).then(pl.col(total) / whole).alias("share"),
        total,
        count,
        *(f"{name}_{unit}" for name in ("mean", "median", "min", "max", "std")),
        *names,
    )
