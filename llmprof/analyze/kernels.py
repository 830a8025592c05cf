"""Summaries of kernels: count and time of each kernel, in total or by group, and the operators
that launched it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import polars as pl

from llmprof import names
from llmprof.analyze.catalog import Analysis
from llmprof.errors import (
    AnalysisError,
    Columns,
    NotNegative,
    Window,
    described,
    listed,
    refuse_unknown,
)
from llmprof.trace import Trace
from llmprof.trace.kept import per_trace
from llmprof.trace.schema import END


@Analysis(
    question="Which kernels are hot?",
    help="time of each kernel",
    view="kernels",
    recorded="device activity or operators",
)
def kernels(trace: Trace, *, by: Columns = ()) -> pl.DataFrame:
    """Time of each kernel (and kind of copy) by name.

    Parameters
    ----------
    trace : Trace
        A trace with device activity or operators.
    by : str or sequence of str
        Columns of :attr:`llmprof.Trace.events` to group by first, such as ``("rank",)`` or
        ``("phase",)``.

    Returns
    -------
    polars.DataFrame
        ``<by...>, name, category, count``, ``total_ns`` (sum of durations), ``share`` (of the
        summed duration of all events of the group; overlapping kernels count in full), ``mean_ns,
        median_ns, min_ns, max_ns`` and ``std_ns`` (sample standard deviation, null for a single
        run), in ns, and ``readable``, the name as people read it (:func:`llmprof.names.readable`).
        Groups in order, nulls last, in each the longest first.

    Raises
    ------
    NotCapturedError
        The trace holds no device activity or operators.
    AnalysisError
        ``by`` names an unknown column.

    Examples
    --------
    >>> frame = analyze.kernels(trace)
    """
    events = trace.events
    refuse_unknown(by, events.columns, "by")
    return sums_of_kernels(events, by)


def sums_of_kernels(events: pl.DataFrame, by: Sequence[str] = ()) -> pl.DataFrame:
    """The analysis of :func:`kernels` on a frame of device events."""
    groups = [column for column in by if column not in ("name", "category")]
    dur = pl.col("dur_ns")
    texts = pl.col("name", "category")
    summary = (
        events.select(
            *groups, "dur_ns", texts.cast(pl.Categorical)
        )  # groups by number, several times as fast
        .group_by(*groups, "name", "category")
        .agg(
            count=pl.len(),
            total_ns=dur.sum(),
            mean_ns=dur.mean(),
            median_ns=dur.median(),
            min_ns=dur.min(),
            max_ns=dur.max(),
            std_ns=dur.std(),
        )
        .with_columns(texts.cast(pl.String))
    )
    whole = pl.sum("total_ns")
    whole = whole.over(groups) if groups else whole
    order = [*groups, "total_ns", "name", "category"]
    summary = summary.with_columns(readable=names.readable(summary["name"]))
    return summary.sort(
        order, descending=[name == "total_ns" for name in order], nulls_last=True
    ).select(
        *groups,
        "name",
        "category",
        "count",
        "total_ns",
        pl.when(whole > 0).then(pl.col("total_ns") / whole).alias("share"),
        "mean_ns",
        "median_ns",
        "min_ns",
        "max_ns",
        "std_ns",
        "readable",
    )


LABELS: Final = (
    "rank",
    "device",
    "stream",
    "step",
    "phase",
    "layer",
    "stage",
    "category",
    "source",
    "name",
)

NUMBERS: Final = ("rank", "device", "stream", "step", "layer")

_Labels = Mapping[str, int | str | None]


def events_within(
    trace: Trace,
    *,
    where: _Labels | None = None,
    window: Window | None = None,
    absent: bool = False,
) -> pl.DataFrame:
    """Labelled events of the device in a window, or with some labels; ``absent``: of ranks that
    are not there, none.
    """
    _check(trace, where, window, absent=absent)
    return trace.events.filter(_conditions(where, window))


def _check(trace: Trace, where: _Labels | None, window: Window | None, *, absent: bool) -> None:
    """Check labels and window, and unless they may be absent, that the ranks, steps and layers
    exist.
    """
    refuse_unknown(where or {}, LABELS, "where")
    for name, value in (where or {}).items():
        if value is not None and isinstance(value, str) == (name in NUMBERS):
            expected = "a whole number" if name in NUMBERS else "a string"
            raise AnalysisError(f"where[{name!r}] is {described(value)}", expected=expected)
    if window is not None and window[1] < window[0]:
        raise AnalysisError(
            f"the window {listed(window)} ends before it starts", expected="(start_ns, end_ns)"
        )
    events = trace.events
    for name in () if absent else ("rank", "step", "layer"):
        value = (where or {}).get(name)
        if value is not None and value not in events[name]:
            numbers: list[int] = events[name].drop_nulls().unique().sort().to_list()
            expected = (
                f"one from {numbers[0]} to {numbers[-1]}"
                if numbers
                else f"nothing: no {name} is known"
            )
            raise AnalysisError(
                f"where: there is no {name} {value}", expected=expected, argument="where"
            )


def _conditions(where: _Labels | None, window: Window | None) -> list[pl.Expr]:
    """Conditions for events with these labels in this window."""
    kept = [pl.col(name) == value for name, value in (where or {}).items() if value is not None]
    if window is not None:
        start, end = window
        kept += [pl.col("start_ns") < end, (start < END) | (pl.col("start_ns") == start)]
    return kept or [pl.lit(True)]


PLACES: Final = {
    "phase": "phases",
    "stage": "stages",
    "layer": "layers",
    "stream": "streams",
    "rank": "ranks",
}
"""Labels whose values are listed, and the columns of these lists."""

_TEXTS: Final = ("name", "category", "phase", "stage", "source")
_KEPT: Final = ("rank", "device", "stream", "start_ns", "dur_ns", "step", "layer", *_TEXTS)
_MOST_BINS: Final = 4096


def kernels_within(
    trace: Trace,
    *,
    by: Columns = (),
    where: _Labels | None = None,
    window: Window | None = None,
    bins: NotNegative = 0,
    absent: bool = False,
) -> pl.DataFrame:
    """Time of each kernel among the :func:`events_within`, and its launches over time."""
    _check(trace, where, window, absent=absent)
    refuse_unknown(by, LABELS, "by")
    if not 0 <= bins <= _MOST_BINS:
        raise AnalysisError(f"bins is {bins}", expected=f"0 to {_MOST_BINS}")
    every = _compact(trace)
    span = window or _span(every)
    groups = [label for label in LABELS if label in by and label not in ("name", "category")]
    keys = [*groups, "name", "category"]
    events = every.filter(_conditions(where, window))
    dur = pl.col("dur_ns")
    rows = events.group_by(keys).agg(
        count=pl.len(),
        total_ns=dur.sum(),
        mean_ns=dur.mean(),
        median_ns=dur.median(),
        p99_ns=dur.quantile(0.99, "linear"),
        min_ns=dur.min(),
        max_ns=dur.max(),
        **{plural: pl.col(label).drop_nulls().unique() for label, plural in PLACES.items()},
    )
    if bins:
        rows = rows.join(_series(events, keys, span, bins), on=keys, how="left", nulls_equal=True)
    texts = [column for column in _TEXTS if column in keys]
    element = pl.element()
    lists = [
        pl.col(plural)
        .list.eval(element.cast(pl.String) if label in _TEXTS else element)
        .list.sort()
        for label, plural in PLACES.items()
    ]
    whole = pl.sum("total_ns")
    rows = rows.with_columns(pl.col(texts).cast(pl.String), *lists)
    order = ["total_ns", "name", "category", *groups]
    return rows.sort(order, descending=[c == "total_ns" for c in order], nulls_last=True).select(
        *keys,
        "count",
        "total_ns",
        pl.when(whole > 0).then(pl.col("total_ns") / whole).alias("share"),
        *("mean_ns", "median_ns", "p99_ns", "min_ns", "max_ns"),
        *PLACES.values(),
        *(["series"] if bins else []),
    )


@per_trace
def _compact(trace: Trace) -> pl.DataFrame:
    """Labelled events with numbers in place of texts, so that grouping for another filter is
    fast.
    """
    events = trace.events.select(_KEPT)
    return events.with_columns(pl.col(_TEXTS).cast(pl.Categorical))


def _span(events: pl.DataFrame) -> Window:
    if events.is_empty():
        return 0, 0
    start, end = events.select(pl.min("start_ns"), end_ns=END.max()).row(0)
    return start, end


def _series(events: pl.DataFrame, keys: list[str], span: Window, bins: int) -> pl.DataFrame:
    """``<keys>, series``: time by part of the span."""
    start, end = span
    part = (
        ((pl.col("start_ns") - start).cast(pl.Float64) * (bins / max(1, end - start)))
        .floor()
        .clip(0, bins - 1)
    )
    numbered = events.select(keys).unique(maintain_order=True).with_row_index("_row")
    sums = (
        events.select(*keys, "dur_ns", part=part.cast(pl.UInt32))
        .join(numbered, on=keys, nulls_equal=True)
        .group_by("_row", "part")
        .agg(pl.sum("dur_ns"))
    )
    places = pl.DataFrame({"_row": numbered["_row"]}).join(
        pl.DataFrame({"part": range(bins)}, schema={"part": pl.UInt32}), how="cross"
    )
    filled = places.join(sums, on=["_row", "part"], how="left").sort("_row", "part")
    series = filled.group_by("_row", maintain_order=True).agg(series=pl.col("dur_ns").fill_null(0))
    return numbered.join(series, on="_row").drop("_row")
