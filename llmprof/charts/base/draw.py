"""Data of a chart from a frame: checks, inline values, and stacked bars with their labels."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar, cast

import altair as alt
import numpy as np
import polars as pl

from llmprof.charts.base import theme
from llmprof.charts.base.theme import Unit
from llmprof.errors import AnalysisError
from llmprof.names import without_common_start
from llmprof.text import distinct
from llmprof.trace.schema import END
from llmprof.units import format_ns

MAX_ROWS = 60_000
"""Most rows that a chart may carry as inline data (about 10 MB); charts condense larger frames
before.
"""


def extent(events: pl.DataFrame) -> tuple[int, int]:
    """First start and last end of events (ns); there must be at least one."""
    low, high = events.select(pl.min("start_ns"), end=END.max()).row(0)
    return int(low), int(high)


_MADE_BY: Final[dict[str, str]] = {}
F = TypeVar("F", bound=Callable[..., Any])


def chart_of(made_by: str, columns: str = "") -> Callable[[F], F]:
    """Declare a chart: the call that makes its frame, and the columns that it needs."""

    def declare(function: F) -> F:
        name = function.__name__
        first = next(iter(inspect.signature(function).parameters))
        _MADE_BY[name] = made_by

        @functools.wraps(function)
        def chart(*args: Any, **options: Any) -> Any:
            data = args[0] if args else options[first]
            if columns and isinstance(data, pl.DataFrame):
                require(data, columns.split(), chart=name)
            return function(*args, **options)

        return cast("F", chart)

    return declare


def chart_frame(
    data: object, analysis: Callable[..., pl.DataFrame], *other: object, **options: object
) -> pl.DataFrame:
    """The frame of a chart: as it was given, or as an analysis makes it of a trace."""
    if isinstance(data, pl.DataFrame):
        return data
    frame = analysis(data, *other, **options)
    if frame.is_empty():
        name = analysis.__name__
        raise nothing(name, NO_ROWS, f"analyze.{name}(trace)")
    return frame


def require(frame: pl.DataFrame, columns: Iterable[str], *, chart: str, made_by: str = "") -> None:
    """Check that a frame has the columns and rows that a chart needs."""
    needed = list(columns)
    if missing := [c for c in needed if c not in frame.columns]:
        found = (
            f"the chart {chart}() got a frame without the column{'s' * (len(missing) > 1)}"
            f" {', '.join(missing)}"
        )
        hint = f"make the frame with {made_by or _MADE_BY[chart]}"
        raise AnalysisError(
            found,
            expected=f"the columns {', '.join(needed)}",
            hint=hint,
            chart=chart,
            missing=missing,
        )
    if frame.is_empty():
        raise nothing(chart, NONE.get(chart, NO_ROWS), made_by)


NO_ROWS: Final = "there is none in this recording"
NONE: Final = {
    "layers": "no layers were found: no kernel is known as attention, or it is training",
    "collectives": "no communication was recorded",
    "idle": "no idle time was found",
    "ranks": "nothing to compare was found: no steps, or one rank alone",
}
"""Why a frame of an analysis has no rows."""


def nothing(chart: str, why: str, made_by: str = "") -> AnalysisError:
    """The error for a chart that would show nothing; ``facts["why"]`` is the reason without the
    name of a function.
    """
    hint = f"look at the rows of {made_by or _MADE_BY[chart]}"
    return AnalysisError(
        f"there is nothing to draw in {chart}(): {why}", hint=hint, chart=chart, why=why
    )


def check_choice(value: str, allowed: Iterable[str], *, chart: str, option: str) -> None:
    """Check an option against its values."""
    names = list(allowed)
    if value not in names:
        raise AnalysisError(
            f"{chart}() got {option}={value!r}", expected=f"one of {', '.join(names)}"
        )


def inline(frame: pl.DataFrame) -> dict[str, Any]:
    """Rows of a frame as data inside the chart; values that JSON cannot hold (NaN, infinities)
    become null.
    """
    if frame.height > MAX_ROWS:
        found = f"the chart would carry {frame.height:,} rows"
        raise AnalysisError(
            found, expected=f"at most {MAX_ROWS:,}", hint="select fewer ranks or a shorter window"
        )
    if not all(np.isfinite(one.to_numpy()).all() for one in frame if one.dtype.is_float()):
        floats = pl.selectors.float()
        frame = frame.with_columns(pl.when(floats.is_finite()).then(floats).name.keep())
    return constant(*frame.iter_rows(named=True))


def constant(*rows: Mapping[str, Any]) -> dict[str, Any]:
    """Rows as data inside the chart."""
    # A tuple, because Altair copies lists and checks every row of an InlineData each time a mark is
    # changed.
    return {"values": rows}


def float_of(value: object) -> float:
    """A statistic of a column of numbers as a float; 0 if the column is empty."""
    return float(value) if isinstance(value, int | float) else 0.0


def ranks_shown(frame: pl.DataFrame, limit: int) -> tuple[pl.DataFrame, list[int], str]:
    """Rows of the first ranks, these ranks, and a note if some were left out."""
    ranks: list[int] = frame["rank"].unique().sort().to_list()
    if len(ranks) <= limit:
        return frame, ranks, ""
    shown = ranks[:limit]
    return (
        frame.filter(pl.col("rank").is_in(shown)),
        shown,
        f"The first {limit} of {len(ranks)} ranks are shown.",
    )


def log_bins(
    values: pl.DataFrame, column: str, unit: Unit, *, by: str | None = None, per_decade: int = 20
) -> pl.DataFrame:
    """Counts and sums of positive durations in bins of equal width on a logarithmic axis."""
    keys = [by] if by else []
    place = (pl.col(column).log10() * per_decade + 1e-9).floor().alias("place")
    bins = values.filter(pl.col(column) > 0).group_by(*keys, place)
    counts = bins.agg(n=pl.len(), sum_ns=pl.col(column).sum()).sort("place", *keys)
    edge = pl.lit(10.0).pow(pl.col("place") / per_decade) / unit.ns
    step = 10 ** (1 / per_decade)
    return counts.select(
        *keys, start=edge, end=edge * step, n=pl.col("n").cast(pl.Int64), sum_ns="sum_ns"
    )


def log_unit(values: pl.Series) -> Unit:
    """Unit of a logarithmic axis: the one that fits the middle of the axis."""
    positive = values.filter(values > 0)
    return theme.time_unit((float_of(positive.quantile(0.01)) * float_of(positive.max())) ** 0.5)


def domain_of(bins: pl.DataFrame) -> tuple[float, float]:
    """First and last edge of the axis, with a small margin on both sides."""
    return float_of(bins["start"].min()) / 1.15, float_of(bins["end"].max()) * 1.15


def log_ticks(low: float, high: float) -> list[float]:
    """Tick values of a logarithmic axis: powers of ten, with 2 and 5 between them if there are
    few.
    """
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if math.log10(high / low) < 2.2 else (1,)
    ticks = [float(f"{step}e{power}") for power in decades for step in steps]
    return [tick for tick in ticks if low <= tick <= high]


def log_axis(domain: tuple[float, float], title: str | None, *, labels: bool = True) -> alt.X:
    """Logarithmic axis of time over the bins from ``start`` to ``end``."""
    return alt.X(
        "start:Q",
        scale=alt.Scale(type="log", domain=list(domain), nice=False),
        axis=theme.titled_axis(title, values=log_ticks(*domain), labels=labels, ticks=labels),
    )


def rule(x: alt.X, value: float) -> alt.Chart:
    """Dashed vertical line at a value of the column that the axis shows."""
    data = constant({str(x.shorthand).partition(":")[0]: value})
    line: alt.Chart = (
        alt.Chart(data).mark_rule(color=theme.INK, strokeDash=[4, 2], strokeWidth=1.5).encode(x=x)
    )
    return line


TOTAL_PX = 68
"""Space behind the longest bar for its total."""


def stack(parts: pl.DataFrame, table: Mapping[str, str], unit: Unit) -> pl.DataFrame:
    """Start and end of each part on its bar."""
    rows = {row: i for i, row in enumerate(parts["row"].unique(maintain_order=True))}
    places = {part: i for i, part in enumerate(table)}
    ordered = parts.sort(
        pl.col("row").replace_strict(rows, return_dtype=pl.Int64),
        pl.col("part").replace_strict(places, return_dtype=pl.Int64),
    )
    end = pl.col("ns").cum_sum().over("row")
    return ordered.with_columns(
        start=(end - pl.col("ns")) / unit.ns,
        end=end / unit.ns,
        percent=100 * pl.col("ns") / pl.sum("ns").over("row"),
        time=duration("ns"),
    )


def stacked_bars(
    parts: pl.DataFrame,
    table: Mapping[str, str],
    *,
    width: int,
    title: str | None,
    unit: Unit | None = None,
    inside: bool = True,
    extra: tuple[str, ...] = (),
) -> list[alt.Chart]:
    """Marks of stacked bars of time: parts, labels that fit into them, and totals."""
    filled = parts.filter(pl.col("ns") > 0)
    unit = unit or theme.time_unit(float_of(filled.group_by("row").agg(pl.sum("ns"))["ns"].max()))
    data = stack(filled, table, unit)
    room = float_of(data["end"].max()) * width / (width - TOTAL_PX)
    axis = theme.titled_axis(
        title and f"{title} ({unit.symbol})",
        tickCount=8 if width > 500 else 5 if width > 260 else 4,
        grid=False,
    )
    x = alt.X("start:Q", scale=theme.exact_scale(0, room), axis=axis)
    y = theme.row_axis(parts["row"].unique(maintain_order=True))
    marks = [bars_of(data, table, x, y, extra)]
    if inside:
        marks += within(data, table, x, y, width / room)
    ends = data.group_by("row", maintain_order=True).agg(start=pl.max("end"), ns=pl.sum("ns"))
    ends = ends.with_columns(label=duration("ns"))
    return [*marks, behind(ends, x, y)]


def bars_of(
    data: pl.DataFrame, table: Mapping[str, str], x: alt.X, y: alt.Y, extra: Iterable[str] = ()
) -> alt.Chart:
    """Parts of bars from ``start`` to ``end``, with their times and shares as tooltips."""
    more = (f"{name}:Q" for name in extra)
    shown = tips(("row:N", "bar"), "part:N", "time:N", ("percent:Q", "share (%)", ".2f"), *more)
    bars = alt.Chart(inline(data)).mark_bar(stroke=theme.PAPER, strokeWidth=0.7)
    drawn: alt.Chart = bars.encode(
        x=x, x2=alt.X2("end:Q"), y=y, color=theme.colour_encoding("part", table), tooltip=shown
    )
    return drawn


def duration(column: str) -> pl.Expr:
    """A column of times (ns) in words."""
    return pl.col(column).map_elements(format_ns, return_dtype=pl.String)


def tips(*fields: str | tuple[str, str | None] | tuple[str, str | None, str]) -> list[alt.Tooltip]:
    """Tooltips: the fields, those with more to say with their title and format."""
    made = []
    for name, *more in ((one,) if isinstance(one, str) else one for one in fields):
        options: dict[str, Any] = {
            key: value for key, value in zip(("title", "format"), more, strict=False) if value
        }
        made.append(alt.Tooltip(name, **options))
    return made


def text_marks(rows: pl.DataFrame, x: Any, y: Any, text: str = "label:N", **mark: Any) -> alt.Chart:
    """Texts of a column at their places."""
    drawn: alt.Chart = (
        alt.Chart(inline(rows)).mark_text(**mark).encode(x=x, y=y, text=alt.Text(text))
    )
    return drawn


def behind(rows: pl.DataFrame, x: alt.X, y: alt.Y) -> alt.Chart:
    """The ``label`` of each row behind its bar."""
    return text_marks(
        rows, x, y, align="left", baseline="middle", dx=6, fontSize=theme.TEXT_PX, color=theme.INK
    )


def within(
    data: pl.DataFrame, table: Mapping[str, str], x: alt.X, y: alt.Y, px: float
) -> list[alt.Chart]:
    """Text in the middle of a part: its name and share, its share alone, or nothing, as space
    allows (px a unit).
    """
    columns = data.select("part", "percent", pl.col("end") - pl.col("start")).iter_rows()
    labels = [
        fitting_text((f"{part} {theme.percent(share)}", theme.percent(share)), length * px)
        for part, share, length in columns
    ]
    inks = {name: theme.ink_on(shade) for name, shade in table.items()}
    ink = pl.col("part").replace_strict(inks, return_dtype=pl.String)
    middle = (pl.col("start") + pl.col("end")) / 2
    texts = data.select("row", start=middle, label=pl.Series(labels, dtype=pl.String), ink=ink)
    return centred(texts.drop_nulls("label"), x, y)


def centred(texts: pl.DataFrame, x: alt.X, y: alt.Y) -> list[alt.Chart]:
    """Texts centred at their places: ``label, ink`` and what the axes need."""
    groups = texts.group_by("ink", maintain_order=True)
    return [
        text_marks(group.drop("ink"), x, y, clip=True, baseline="middle", color=str(ink))
        for (ink,), group in groups
    ]


def fitting_text(texts: tuple[str, ...], room: float, margin: float = 8) -> str | None:
    """First of the texts that fits into the width (px) with a margin."""
    return next(
        (text for text in texts if theme.text_px(text, theme.LABEL_PX) + margin <= room), None
    )


ROW = 24
MAX_NAME = 44
MAX_NAME_PX = 320


def ranked_bars(
    rows: pl.DataFrame, *, width: int, title: str | None, table: dict[str, str]
) -> alt.LayerChart:
    """Bars in the order of the rows."""
    small = theme.is_narrow()
    names = distinct(without_common_start(rows["row"].to_list(), MAX_NAME))
    unit = theme.time_unit(float_of(rows["ns"].max()))
    data = rows.with_columns(row=pl.Series(names, dtype=pl.String), time=pl.col("ns") / unit.ns)
    widest = min(
        MAX_NAME_PX, round(max(theme.text_px(name, theme.TEXT_PX) * 1.06 for name in names))
    )
    across = width - (8 if small else 16 + widest)
    label_px = max(theme.text_px(label) for label in rows["label"]) + 16
    room = float_of(data["time"].max()) * across / max(across / 3, across - label_px)
    axis = theme.titled_axis(title and f"{title} ({unit.symbol})", tickCount=4 if small else 6)
    x = alt.X("time:Q", scale=theme.exact_scale(0, room or 1), axis=axis)
    names_axis = alt.Axis(
        title=None,
        ticks=False,
        domain=False,
        labelFontWeight="bold",
        labelPadding=8,
        labelLimit=MAX_NAME_PX,
    )
    y = alt.Y("row:N", sort=None, scale=alt.Scale(domain=names), axis=None if small else names_axis)
    shown = tips(*(f"{name}:N" for name in rows.columns if name != "ns"))
    shade = theme.colour_encoding("part", table)
    size: dict[str, Any] = {"height": ROW - 10, "yOffset": 8} if small else {}
    drawn = alt.Chart(inline(data)).mark_bar(**size).encode(x=x, y=y, color=shade, tooltip=shown)
    beside = {"align": "left", "baseline": "middle", "color": theme.INK}
    marks = [
        drawn,
        text_marks(data.select("row", "time", "label"), x, y, dx=6, dy=8 if small else 0, **beside),
    ]
    if small:  # a name has no room beside its bar: it stands above it
        above: dict[str, Any] = {"dy": -9, "fontWeight": "bold", "limit": across}
        marks.append(text_marks(data.select("row"), alt.XValue(0), y, "row:N", **beside, **above))
    return theme.layered(*marks).properties(
        width=across, height=(ROW + 16 if small else ROW) * len(names)
    )


_HEIGHT, _GAP, _LARGE, _SMALL = 62, 10, 21, 12
_FILL = "#F4F6F8"


def figure_tiles(figures: Sequence[tuple[str, str]], width: int) -> alt.LayerChart:
    """Figures as tiles of equal width."""
    each = (width + _GAP) / len(figures) - _GAP
    lefts = [i * (each + _GAP) for i in range(len(figures))]
    boxes, heads, values = [], [], []
    for left, (name, figure) in zip(lefts, figures, strict=True):
        boxes.append({"x": left, "end": left + each})
        heads.append({"x": left + 12, "text": name})
        fitting = _LARGE * (each - 20) / max(theme.text_px(figure, _LARGE), 1)
        values.append({"x": left + 12, "text": figure, "size": min(_LARGE, fitting)})
    x = alt.X("x:Q", scale=theme.exact_scale(0, width), axis=None)
    box = alt.Chart(constant(*boxes)).mark_rect(color=_FILL, cornerRadius=5)
    head = alt.Chart(constant(*heads)).mark_text(
        align="left", baseline="middle", fontSize=_SMALL, color=theme.MUTED
    )
    value = alt.Chart(constant(*values)).mark_text(
        align="left", baseline="middle", fontWeight="bold", color=theme.INK
    )
    size = alt.Size("size:Q", scale=None)
    return theme.layered(
        box.encode(x=x, x2=alt.X2("end:Q"), y=alt.YValue(0), y2=alt.Y2Value(_HEIGHT)),
        head.encode(x=x, y=alt.YValue(17), text=alt.Text("text:N")),
        value.encode(x=x, y=alt.YValue(42), text=alt.Text("text:N"), size=size),
    ).properties(width=width, height=_HEIGHT)
