"""From frames to the data of a chart: checks, and values that travel inside it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import altair as alt
import polars as pl

from llmprof.charts.base.theme import INK, NUMBER, Unit, time_unit
from llmprof.errors import AnalysisError

MAX_ROWS = 60_000
"""Rows that a chart may carry inside it (about 10 MB); charts condense what is larger before they get here."""


def require(frame: pl.DataFrame, columns: Iterable[str], *, chart: str, made_by: str) -> None:
    """Check that a frame has the columns and rows that a chart needs.

    Raises
    ------
    AnalysisError
        A column is missing, or there is no row to draw.
    """
    needed = list(columns)
    if missing := [c for c in needed if c not in frame.columns]:
        raise AnalysisError(
            f"the chart {chart}() got a frame without the column{'s' * (len(missing) > 1)} {', '.join(missing)}",
            expected=f"the columns {', '.join(needed)}",
            hint=f"make the frame with {made_by}",
            chart=chart,
            missing=missing,
        )
    if frame.is_empty():
        raise nothing(chart, "the frame has no rows", made_by)


def nothing(chart: str, why: str, made_by: str) -> AnalysisError:
    """The error for a chart that would show nothing."""
    return AnalysisError(
        f"there is nothing to draw in {chart}(): {why}", hint=f"look at the rows of {made_by}", chart=chart
    )


def check_choice(value: str, allowed: Iterable[str], *, chart: str, option: str) -> None:
    """Check an option against its values.

    Raises
    ------
    AnalysisError
        The value is none of them.
    """
    names = list(allowed)
    if value not in names:
        raise AnalysisError(f"{chart}() got {option}={value!r}", expected=f"one of {', '.join(names)}")


def inline(frame: pl.DataFrame) -> dict[str, Any]:
    """Rows of a frame as data inside the chart.

    Altair's own limit of 5,000 rows and its global data transformers play no part in it: the size is checked
    here. Values that JSON cannot hold (NaN, infinities) become null.

    Raises
    ------
    AnalysisError
        More than ``MAX_ROWS`` rows.
    """
    if frame.height > MAX_ROWS:
        raise AnalysisError(
            f"the chart would carry {frame.height:,} rows",
            expected=f"at most {MAX_ROWS:,}",
            hint="select fewer ranks or a shorter window",
        )
    floats = pl.selectors.float()
    finite = frame.with_columns(pl.when(floats.is_finite()).then(floats).name.keep())
    return constant(*finite.iter_rows(named=True))


def constant(*rows: Mapping[str, Any]) -> dict[str, Any]:
    """Rows as data inside the chart."""
    # A tuple, because Altair copies lists and checks every row of an InlineData each time a mark is changed.
    return {"values": rows}


def number(value: object) -> float:
    """A statistic of a column of numbers as a float; 0 for that of an empty column."""
    return float(value) if isinstance(value, int | float) else 0.0


def ranks_shown(frame: pl.DataFrame, limit: int) -> tuple[pl.DataFrame, list[int], str]:
    """Rows of the first ranks, these ranks, and a note where some were left out."""
    ranks: list[int] = frame["rank"].unique().sort().to_list()
    if len(ranks) <= limit:
        return frame, ranks, ""
    shown = ranks[:limit]
    return frame.filter(pl.col("rank").is_in(shown)), shown, f"The first {limit} of {len(ranks)} ranks are shown."


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
