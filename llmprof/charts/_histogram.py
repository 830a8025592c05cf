"""Histograms on a logarithmic axis of time."""

from __future__ import annotations

import math

import altair as alt
import polars as pl

from llmprof.charts._data import constant, number
from llmprof.charts._palette import INK
from llmprof.charts._theme import NUMBER, Unit, time_unit


def log_bins(
    values: pl.DataFrame, column: str, unit: Unit, *, by: str | None = None, per_decade: int = 20
) -> pl.DataFrame:
    """Counts and sums of positive durations in bins of equal width on a logarithmic axis.

    Returns
    -------
    polars.DataFrame
        ``<by>, start, end`` (in the unit), ``n, sum_ns``.
    """
    keys = [by] if by else []
    place = (pl.col(column).log10() * per_decade + 1e-9).floor().alias("place")
    bins = values.filter(pl.col(column) > 0).group_by(*keys, place)
    counts = bins.agg(n=pl.len(), sum_ns=pl.col(column).sum()).sort("place", *keys)
    edge = pl.lit(10.0).pow(pl.col("place") / per_decade) / unit.ns
    step = 10 ** (1 / per_decade)
    return counts.select(*keys, start=edge, end=edge * step, n=pl.col("n").cast(pl.Int64), sum_ns="sum_ns")


def log_unit(values: pl.Series) -> Unit:
    """Unit for a logarithmic axis: the one that fits the middle between the least and the greatest value."""
    positive = values.filter(values > 0)
    return time_unit((number(positive.quantile(0.01)) * number(positive.max())) ** 0.5)


def domain_of(bins: pl.DataFrame) -> tuple[float, float]:
    """First and last edge, with a little air on both sides."""
    return number(bins["start"].min()) / 1.15, number(bins["end"].max()) * 1.15


def log_ticks(low: float, high: float) -> list[float]:
    """Tick values of a logarithmic axis: powers of ten, with 2 and 5 between them where they are few."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if math.log10(high / low) < 2.2 else (1,)
    ticks = [float(f"{step}e{power}") for power in decades for step in steps]
    return [tick for tick in ticks if low <= tick <= high]


def log_axis(domain: tuple[float, float], title: str | None, *, labels: bool = True) -> alt.X:
    """Logarithmic axis of time over the bins from ``start`` to ``end``."""
    return alt.X(
        "start:Q",
        scale=alt.Scale(type="log", domain=list(domain), nice=False),
        axis=alt.Axis(title=title, format=NUMBER, values=log_ticks(*domain), labels=labels, ticks=labels),
    )


def rule(x: alt.X, at: float) -> alt.Chart:
    """Dashed vertical line at a value."""
    data = constant({"start": at})
    line: alt.Chart = alt.Chart(data).mark_rule(color=INK, strokeDash=[4, 2], strokeWidth=1.5).encode(x=x)
    return line
