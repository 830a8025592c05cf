"""Charts of sweeps and studies: latencies and rates over the values of a parameter, of all
points, of each setting.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt
import polars as pl

from llmprof.charts.base import compose, draw, theme
from llmprof.charts.subjects.breakdown import PARTS
from llmprof.errors import AnalysisError
from llmprof.text import METRIC_WORDS, SLO_WORDS, shorten
from llmprof.units import format_metric, format_ns

_COLOURS = (
    *(
        "#0072B2",
        "#D55E00",
        "#009E73",
        "#CC79A7",
        "#8B6F47",
        "#56B4E9",
        "#332288",
        "#B2182B",
        "#999933",
        "#44AA99",
    ),
)


@dataclass(frozen=True, slots=True)
class Axes:
    """Rows with ``x`` and ``series``, the channel of x, and the colours of the series."""

    data: pl.DataFrame
    x: alt.X
    table: dict[str, str]


def _swept(frame: pl.DataFrame, parameters: Sequence[str] | None) -> list[str]:
    """Parameters of a sweep: those given, or the columns between the label and the state of a
    point.
    """
    columns = frame.columns
    chosen = list(parameters or ())
    if not chosen and {"label", "state"} <= set(columns):
        chosen = columns[columns.index("label") + 1 : columns.index("state")]
    if not chosen or (missing := [name for name in chosen if name not in columns]):
        what = f"has no parameter {missing[0]!r}" if chosen else "has no parameters"
        raise AnalysisError(
            f"the sweep {what}", expected="columns of sweep.comparison, such as batch_size"
        )
    return chosen


def _axes(frame: pl.DataFrame, parameters: Sequence[str]) -> Axes:
    """The first parameter along the axis, each value in the order of the sweep; the others as
    lines.
    """
    first, others = parameters[0], list(parameters[1:])
    text = pl.col(first).cast(pl.String).fill_null("none")
    names = [
        pl.concat_str(
            pl.lit(name.replace("_", " ") + " "), pl.col(name).cast(pl.String).fill_null("no")
        )
        for name in others
    ]
    series = pl.concat_str(names, separator=", ") if names else pl.lit("")
    data = frame.with_columns(x=text, series=series)
    places = data["x"].unique(maintain_order=True).to_list()
    listed = data["series"].unique(maintain_order=True).to_list()
    table = {name: _COLOURS[i % len(_COLOURS)] for i, name in enumerate(listed)}
    axis = alt.Axis(title=first.replace("_", " "), labelAngle=0, grid=False)
    x = alt.X(
        "x:N", sort=None, scale=alt.Scale(type="point", domain=places, padding=0.5), axis=axis
    )
    return Axes(data, x, table)


def _series_colour(over: Axes) -> alt.Color:
    """Colour of the lines, with a legend above where there are several."""
    scale = alt.Scale(domain=list(over.table), range=list(over.table.values()))
    if len(over.table) < 2:
        return alt.Color("series:N", scale=scale, legend=None)
    legend = alt.Legend(
        title=None,
        orient="top",
        direction="horizontal",
        symbolType="circle",
        symbolOpacity=1,
        columns=4,
    )
    return alt.Color("series:N", scale=scale, sort=None, legend=legend)


_LATENCIES = {"ttft": "time to first token", "tpot": "time per output token", "e2e": "end to end"}
_RATES = {"output_tokens_per_s": "output tokens a second", "requests_per_s": "requests a second"}
_SPACE, _HEIGHT = 34, 230


@draw.chart_of(
    "llmprof.BatchRunner(config).run_parameter_sweep(...).comparison",
)
def sweep_latency(
    frame: pl.DataFrame, *, parameters: Sequence[str] | None = None, title: str | None = None
) -> alt.HConcatChart:
    """Latencies over the first parameter, a line for each combination of the others.

    A panel with its own axis for each latency that the engine reported.

    Parameters
    ----------
    frame : polars.DataFrame
        Rows of ``BatchRunner(config).run_parameter_sweep(...).comparison``.
    parameters : sequence of str, optional
        Parameters in another order, or some of them; all of the sweep if not given.
    title : str, optional
        Title of the chart; by default it says what is shown.

    Returns
    -------
    altair.HConcatChart
        900 px wide.

    Raises
    ------
    AnalysisError
        A column is missing, or no point has a latency.
    """
    columns = [f"{name}_ns" for name in _LATENCIES]
    draw.require(frame, ["label", *columns], chart="sweep_latency")
    shown = [name for name in _LATENCIES if draw.float_of(frame[f"{name}_ns"].max()) > 0]
    if not shown:
        raise draw.nothing("sweep_latency", "no point has a latency")
    over = _axes(frame, _swept(frame, parameters))
    panels = []
    plot = (theme.inner() + _SPACE) // (1 if theme.is_narrow() else len(shown)) - _SPACE - 44
    for name in shown:
        unit = theme.time_unit(draw.float_of(over.data[f"{name}_ns"].max()))
        tail = f"{name}_p99_ns" if f"{name}_p99_ns" in frame.columns else f"{name}_ns"
        data = over.data.drop_nulls(f"{name}_ns").with_columns(
            value=pl.col(f"{name}_ns") / unit.ns,
            tail=pl.max_horizontal(f"{name}_ns", tail) / unit.ns,
        )
        data, banded = _banded(data, f"{name}_ns", unit.ns)
        y_title = f"time ({unit.symbol})"
        panels.append(_panel(data, over, plot, _LATENCIES[name], y_title, tail=True, banded=banded))
    first = shown[-1]
    best = frame.drop_nulls(f"{first}_ns").sort(f"{first}_ns")
    least, most = best.row(0, named=True), best.row(-1, named=True)
    low, high = _with_interval(least, f"{first}_ns"), _with_interval(most, f"{first}_ns")
    apart = best.height < 2 or _beyond(most, least, f"{first}_ns") is not False
    words = (
        f"{low} at best, {high} at most"
        if apart
        else "the points do not differ beyond the noise of the repeats"
    )
    head = title or f"{_LATENCIES[first].capitalize()}: {words}"
    notes = (
        f"{_measured(frame)}; thick bars: 95 % confidence interval of the mean over the repeats,"
        " where there are several; thin lines go up to the 99th percentile. Each panel has its own"
        " axis."
    )
    return theme.finish_chart(_beside(panels, _SPACE), head, notes)


@draw.chart_of(
    "llmprof.BatchRunner(config).run_parameter_sweep(...).comparison",
)
def sweep_throughput(
    frame: pl.DataFrame, *, parameters: Sequence[str] | None = None, title: str | None = None
) -> alt.HConcatChart:
    """Tokens and requests a second over the first parameter, a line for each combination of the
    others.

    Time is in s.

    Parameters
    ----------
    frame : polars.DataFrame
        Rows of ``BatchRunner(config).run_parameter_sweep(...).comparison``.
    parameters : sequence of str, optional
        Parameters in another order, or some of them; by default all of the sweep.
    title : str, optional
        Title of the chart; by default it says what is shown.

    Returns
    -------
    altair.HConcatChart
        900 px wide.

    Raises
    ------
    AnalysisError
        A column is missing, or no point has a throughput.
    """
    draw.require(frame, ["label", *_RATES], chart="sweep_throughput")
    if not draw.float_of(frame["output_tokens_per_s"].max()) > 0:
        raise draw.nothing("sweep_throughput", "no point has a throughput")
    over = _axes(frame, _swept(frame, parameters))
    plot = (theme.inner() + _SPACE) // (1 if theme.is_narrow() else 2) - _SPACE - 50
    panels = []
    for name, words in _RATES.items():
        data = over.data.drop_nulls(name).with_columns(value=pl.col(name))
        data, banded = _banded(data, name, 1)
        panels.append(_panel(data, over, plot, words, "per s", tail=False, banded=banded))
    ordered = frame.sort("output_tokens_per_s", descending=True, nulls_last=True).drop_nulls(
        "output_tokens_per_s"
    )
    top = ordered.row(0, named=True)
    rest = [row for row in ordered.iter_rows(named=True) if row is not top][1:]
    equal = [row for row in rest if _beyond(top, row, "output_tokens_per_s") is False]
    also = f", within the noise of {len(equal)} other{'s' * (len(equal) > 1)}" if equal else ""
    head = (
        title
        or f"Most output tokens: {_with_interval(top, 'output_tokens_per_s')} a second at {top['label']}{also}"  # noqa: E501
    )
    note = f"{_measured(frame)}; thick bars: 95 % confidence interval of the mean over the repeats."
    return theme.finish_chart(_beside(panels, _SPACE), head, note)


def _beside(panels: list[alt.LayerChart], space: int) -> alt.HConcatChart:
    """Panels side by side, below each other on a telephone."""
    if not theme.is_narrow():
        return compose.hconcat(*panels, spacing=space)
    return compose.hconcat(compose.vconcat(*panels, spacing=24))


def _banded(data: pl.DataFrame, name: str, unit: float) -> tuple[pl.DataFrame, bool]:
    """Rows with ``low, high``, the interval of the mean of a column, and whether any interval is
    known.
    """
    low, high = f"{name}_ci95_low", f"{name}_ci95_high"
    if not {low, high} <= set(data.columns) or data[low].null_count() == data.height:
        return data, False
    return (
        data.with_columns(low=pl.max_horizontal(pl.col(low), 0) / unit, high=pl.col(high) / unit),
        True,
    )


def _with_interval(row: Mapping[str, Any], name: str) -> str:
    """A figure with half of the 95 % interval of its mean, where that is known."""
    write = format_ns if name.endswith("_ns") else "{:,.0f}".format
    low, high = row.get(f"{name}_ci95_low"), row.get(f"{name}_ci95_high")
    spread = "" if low is None or high is None else f" ± {write((high - low) / 2)}"
    return f"{write(row[name])}{spread}"


def _beyond(larger: Mapping[str, Any], smaller: Mapping[str, Any], name: str) -> bool | None:
    """Whether the intervals of two figures are disjoint; None if one is not known."""
    low, high = larger.get(f"{name}_ci95_low"), smaller.get(f"{name}_ci95_high")
    return None if low is None or high is None else low > high


def _measured(frame: pl.DataFrame) -> str:
    plain = "measured" in frame.columns and set(frame["measured"].drop_nulls()) == {"plain"}
    return f"Means over requests and repeats{', without the profiler' if plain else ''}"


def _panel(
    data: pl.DataFrame,
    over: Axes,
    plot: int,
    name: str,
    y_title: str,
    *,
    tail: bool,
    banded: bool = False,
) -> alt.LayerChart:
    reach = [name for name, shown in (("value", True), ("tail", tail), ("high", banded)) if shown]
    top = max(draw.float_of(data[name].max()) for name in reach)
    scale = theme.exact_scale(0, top * 1.12 or 1, clamp=True)
    y = alt.Y("value:Q", scale=scale, axis=theme.titled_axis(y_title, tickCount=5))
    shade = _series_colour(over)
    columns = [
        "x",
        "series",
        "label",
        "value",
        *(["tail"] if tail else []),
        *(["low", "high"] if banded else []),
    ]
    base = alt.Chart(draw.inline(data.select(columns)))
    tips = draw.tips(("label:N", "point"), ("value:Q", None, ",.4~r"))
    lines = base.mark_line(strokeWidth=2).encode(
        x=over.x, y=y, color=shade, detail=alt.Detail("series:N")
    )
    dots = base.mark_circle(size=55, opacity=1).encode(x=over.x, y=y, color=shade, tooltip=tips)
    marks = [lines, dots]
    if tail:
        marks.insert(
            0,
            base.mark_rule(strokeWidth=1.2).encode(x=over.x, y=y, y2=alt.Y2("tail:Q"), color=shade),
        )
    if banded:
        low = alt.Y("low:Q", scale=scale)
        interval = base.mark_rule(strokeWidth=6, opacity=0.35)
        marks.insert(0, interval.encode(x=over.x, y=low, y2=alt.Y2("high:Q"), color=shade))
    return theme.layered(
        *marks, theme.heading_mark(name).encode(color=alt.ColorValue(theme.INK))
    ).properties(width=plot, height=_HEIGHT)


_PREFERRED = ("tensor_parallel_size", "pipeline_parallel_size", "batch_size", "max_tokens")
_SWEEP_SCALING_SPACE, _SWEEP_SCALING_HEIGHT = 34, 230


@draw.chart_of(
    "llmprof.BatchRunner(config).run_parameter_sweep(...).comparison",
    "label output_tokens_per_s",
)
def sweep_scaling(
    frame: pl.DataFrame,
    *,
    parameters: Sequence[str] | None = None,
    over: str | None = None,
    title: str | None = None,
) -> alt.HConcatChart:
    """Speed-up of the output tokens a second over its value at the smallest parameter, and the
    efficiency.

    With ``r(v)`` the rate at a value ``v`` of the parameter and ``v0`` its smallest, the speed-up
    is ``r(v) / r(v0)`` and the efficiency ``speed-up / (v / v0)``.

    Parameters
    ----------
    frame : polars.DataFrame
        Rows of ``BatchRunner(config).run_parameter_sweep(...).comparison``.
    parameters : sequence of str, optional
        Some of the parameters of the sweep; all if not given.
    over : str, optional
        The parameter that scales, which must be a number; by default tensor or pipeline parallel
        size, batch size, or the first parameter that is a number.
    title : str, optional
        Title of the chart; by default it says what is shown.

    Returns
    -------
    altair.HConcatChart
        900 px wide.

    Raises
    ------
    AnalysisError
        A column is missing, or no parameter is a number with two values that ran.
    """
    names = _swept(frame, parameters)
    measured = frame.filter(pl.col("output_tokens_per_s") > 0)
    numbers = [
        name for name in names if frame.schema[name].is_numeric() and measured[name].n_unique() > 1
    ]
    ordered = [over] if over else [*(name for name in _PREFERRED if name in numbers), *numbers]
    scaled = next((name for name in ordered if name in numbers), None)
    if scaled is None:
        raise draw.nothing("sweep_scaling", "no parameter is a number with two values that ran")
    shared = _axes(measured.sort(scaled), [scaled, *(name for name in names if name != scaled)])
    data = _speedups(shared.data, scaled)
    plot = (
        (theme.inner() + _SWEEP_SCALING_SPACE) // (1 if theme.is_narrow() else 2)
        - _SWEEP_SCALING_SPACE
        - 50
    )
    words = scaled.replace("_", " ")
    shade = _series_colour(shared)
    panels = []
    for column, name, unit in (("speedup", "Speed-up", "times"), ("efficiency", "Efficiency", "%")):
        most = draw.float_of(data[column].max())
        top = max(most, draw.float_of(data["ideal"].max()) if column == "speedup" else 100.0) * 1.1
        scale = theme.exact_scale(0, top)
        axis = theme.titled_axis(unit, tickCount=5)
        y = alt.Y(f"{column}:Q", scale=scale, axis=axis)
        ideal = (
            data.select("x", "ideal").unique(maintain_order=True).with_columns(full=pl.lit(100.0))
        )
        against = alt.Y(f"{'ideal' if column == 'speedup' else 'full'}:Q", scale=scale, axis=axis)
        dashed = alt.Chart(draw.inline(ideal)).mark_line(
            strokeDash=[5, 4], strokeWidth=1.4, color=theme.MUTED
        )
        base = alt.Chart(draw.inline(data.select("x", "series", "label", column)))
        tips = draw.tips(("label:N", "point"), (f"{column}:Q", None, ",.3~r"))
        lines = base.mark_line(strokeWidth=2).encode(
            x=shared.x, y=y, color=shade, detail=alt.Detail("series:N")
        )
        dots = base.mark_circle(size=55, opacity=1).encode(
            x=shared.x, y=y, color=shade, tooltip=tips
        )
        title_mark = theme.heading_mark(name).encode(color=alt.ColorValue(theme.INK))
        panel = theme.layered(dashed.encode(x=shared.x, y=against), lines, dots, title_mark)
        panels.append(panel.properties(width=plot, height=_SWEEP_SCALING_HEIGHT))
    last = (
        data.filter(pl.col(scaled) == pl.col(scaled).max())
        .sort("speedup", descending=True)
        .row(0, named=True)
    )
    head = f"At {words} {last['x']}: {_times(last)}"
    note = f"Against the smallest {words} of each line; dashed: growing in step with it."
    return theme.finish_chart(_beside(panels, _SWEEP_SCALING_SPACE), title or head, note)


def _speedups(data: pl.DataFrame, scaled: str) -> pl.DataFrame:
    """Rows with ``speedup, ideal, efficiency`` (%) against the smallest value of the same line."""
    value, rate = pl.col(scaled), pl.col("output_tokens_per_s")
    ratio = rate / rate.sort_by(value).first().over("series")
    ideal = value / value.min().over("series")
    has_interval = {f"output_tokens_per_s_ci95_{end}" for end in ("low", "high")} <= set(
        data.columns
    )
    low, high = (
        pl.col(f"output_tokens_per_s_ci95_{end}") if has_interval else pl.lit(None)
        for end in ("low", "high")
    )
    # the ends of the interval of a ratio, from those of both means; a mean whose interval reaches 0
    # has none
    least, most = (
        (end.sort_by(value).first().over("series") for end in (low, high))
        if has_interval
        else (low, high)
    )
    return data.with_columns(
        speedup=ratio,
        ideal=ideal,
        efficiency=100 * ratio / ideal,
        speedup_low=pl.when(low > 0).then(low / most) if has_interval else pl.lit(None, pl.Float64),
        speedup_high=(
            pl.when(least > 0).then(high / least) if has_interval else pl.lit(None, pl.Float64)
        ),
    )


def _times(last: Mapping[str, Any]) -> str:
    """A speed-up in words; without a figure if the repeats differ too much."""
    low, high, ideal = last["speedup_low"], last["speedup_high"], last["ideal"]
    rate = "the output tokens a second"
    if last.get("output_tokens_per_s_ci95_low") is None:
        share = theme.percent(last["efficiency"])
        return (
            f"{last['speedup']:.2f} times {rate}, an efficiency of {share} (of one repeat: the"
            " noise is not known)"
        )
    if low is None or high is None or high > _OPEN * low:
        return f"the repeats disagree too much to say how many times {rate}"
    ends = f"{theme.percent(100 * low / ideal)} to {theme.percent(100 * high / ideal)}"
    return f"{low:.2f} to {high:.2f} times {rate}, an efficiency of {ends}"


_OPEN = 3.0
"""If the ends of an interval differ by this ratio, no speed-up is stated."""


_ROW, _MAX_NAME = 28, 36
MAX_POINTS = 40


@draw.chart_of(
    "llmprof.BatchRunner(config).run_parameter_sweep(...).where",
    "point label phase part ns steps ranks",
)
def sweep_time(frame: pl.DataFrame, *, title: str | None = None) -> alt.VConcatChart:
    """Bars of one step at each point: compute, communication, copies and idle time, a panel for
    each phase.

    Each phase has its own time axis. At most 40 points.

    Parameters
    ----------
    frame : polars.DataFrame
        Rows of ``BatchRunner(config).run_parameter_sweep(...).where``.
    title : str, optional
        Title of the chart; by default it says what is shown.

    Returns
    -------
    altair.VConcatChart
        900 px wide.

    Raises
    ------
    AnalysisError
        A column is missing, or all times are zero.
    """
    each = pl.col("ns") / (pl.col("steps") * pl.col("ranks"))
    points = frame["point"].unique().sort().head(MAX_POINTS)
    shown = (
        pl.col("point").is_in(points.implode())
        & pl.col("part").is_in(list(PARTS))
        & (pl.col("steps") > 0)
    )
    rows = frame.filter(shown).with_columns(
        ns=each, row=pl.col("label").replace(_varying(frame["label"].unique().to_list()))
    )
    if not draw.float_of(rows["ns"].sum()) > 0:
        raise draw.nothing("sweep_time", "the times add up to zero")
    phases = theme.in_order(rows["phase"], theme.PHASES)
    table = {
        name: fill
        for name, fill in PARTS.items()
        if draw.float_of(rows.filter(part=name)["ns"].sum()) > 0
    }
    width = (
        theme.inner() - 20 - round(max(theme.text_px(row, theme.TEXT_PX) for row in rows["row"]))
    )
    panels = []
    for phase in phases:
        part = rows.filter(phase=phase).sort("point").select("row", "part", "ns")
        bars = theme.layered(*draw.stacked_bars(part, table, width=width, title="time of one step"))
        panels.append(
            bars.properties(
                width=width, height=_ROW * part["row"].n_unique(), title=theme.panel_heading(phase)
            )
        )
    notes = [
        "Mean over the ranks and steps of a phase, under the profiler. Time between steps is not"
        " in it."
    ]
    if frame["point"].n_unique() > len(points):
        notes.append(f"The first {len(points)} of {frame['point'].n_unique()} points are shown.")
    return theme.finish_chart(
        compose.vconcat(*panels, spacing=20), title or _headline(rows, phases), notes, at_edge=True
    )


def _varying(labels: list[str]) -> dict[str, str]:
    """Labels of points without the values that all points share."""
    parts = {label: label.split(", ") for label in labels}
    shared = set.intersection(*map(set, parts.values())) if len(parts) > 1 else set()
    varying = {label: [part for part in own if part not in shared] for label, own in parts.items()}
    return {label: shorten(", ".join(own), _MAX_NAME) for label, own in varying.items()}


def _headline(rows: pl.DataFrame, phases: list[str]) -> str:
    phase = "decode" if "decode" in phases else phases[-1]
    steps = rows.filter(phase=phase)
    total = pl.sum("ns").over("point")
    idle = steps.with_columns(share=100 * pl.col("ns") / total).filter(part="idle").sort("point")
    if idle.is_empty():
        return "Where the time of a step goes at each point"
    low, high = idle.sort("share").row(0, named=True), idle.sort("share").row(-1, named=True)
    if low["point"] == high["point"] or theme.percent(low["share"]) == theme.percent(high["share"]):
        return f"Idle for {theme.percent(high['share'])} of a {phase} step at every point"
    least, most = (
        f"{theme.percent(low['share'])} of a {phase} step at {low['row']}",
        theme.percent(high["share"]),
    )
    return f"Idle for {least}, for {most} at {high['row']}"


_VERDICTS = {"better": "#009E73", "worse": "#D55E00", "no effect": "#6B7280", "unknown": "#9CA3AF"}


@draw.chart_of(
    "llmprof.trial(...).effects",
    "metric pairs gain gain_low gain_high verdict",
)
def trial_effects(
    frame: pl.DataFrame, *, objective: str | None = None, title: str | None = None
) -> alt.LayerChart:
    """Time that a change saves, by metric, with its 95 % interval.

    In per cent; for rates it is the time of a token or request. Right of zero is better.

    Parameters
    ----------
    frame : polars.DataFrame
        Rows of ``trial(...).effects``.
    objective : str, optional
        Metric that the heading tells of; the first one if not given.
    title : str, optional
        Title of the chart; by default it says what is shown.

    Returns
    -------
    altair.LayerChart
        900 px wide.

    Raises
    ------
    AnalysisError
        A column is missing, or no metric has an interval.
    """
    known = frame.drop_nulls(["gain_low", "gain_high"])
    if known.is_empty():
        raise draw.nothing("trial_effects", "no metric has an interval")
    data = known.with_columns(
        row=pl.col("metric").replace_strict(
            METRIC_WORDS, default=pl.col("metric"), return_dtype=pl.String
        ),
        place=pl.col("metric").replace_strict(
            {name: k for k, name in enumerate(METRIC_WORDS)}, default=99
        ),
        low=100 * pl.col("gain_low"),
        high=100 * pl.col("gain_high"),
        gain=100 * pl.col("gain"),
    ).sort("place")
    rows = data["row"].to_list()
    width = theme.inner() - 20 - round(max(theme.text_px(row, theme.TEXT_PX) for row in rows))
    ends = [draw.float_of(data["low"].min()), draw.float_of(data["high"].max()), 0.0]
    room = 0.06 * (max(ends) - min(ends)) or 1.0
    scale = theme.exact_scale(min(ends) - room, max(ends) + room)
    x = alt.X("gain:Q", scale=scale, axis=theme.titled_axis("time saved (%); right of 0 is better"))
    y = alt.Y(
        "row:N",
        sort=rows,
        axis=alt.Axis(title=None, grid=False, ticks=False, domain=False, labelLimit=400),
    )
    shade = theme.colour_encoding(
        "verdict",
        {name: _VERDICTS[name] for name in _VERDICTS if name in data["verdict"].to_list()},
        opaque=True,
    )
    base = alt.Chart(draw.inline(data.select("row", "gain", "low", "high", "verdict", "pairs")))
    ends_of = ((f"{name}:Q", name, ",.3~r") for name in ("gain", "low", "high"))
    tips = draw.tips(("row:N", "metric"), *ends_of, "verdict:N", "pairs:Q")
    intervals = base.mark_rule(strokeWidth=6, opacity=0.4).encode(
        x=alt.X("low:Q", scale=scale), x2=alt.X2("high:Q"), y=y, color=shade
    )
    dots = base.mark_circle(size=90, opacity=1).encode(x=x, y=y, color=shade, tooltip=tips)
    chart = theme.layered(draw.rule(x, 0.0), intervals, dots).properties(
        width=width, height=34 * len(rows)
    )
    told = data.filter(metric=objective) if objective in data["metric"].to_list() else data
    gain, low, high = (draw.float_of(told[name][0]) for name in ("gain", "low", "high"))
    head = (
        f"{str(told['row'][0]).capitalize()}: {gain:.1f} % of the time saved ({low:.1f} to"
        f" {high:.1f} %)"
    )
    pairs = draw.float_of(data["pairs"].max())
    note = (
        f"Bars: 95 % interval over {pairs:.0f} pairs of measurements, taken in turn without a"
        " profiler."
    )
    return theme.finish_chart(chart, title or head, note)


_PICKED = "chosen"
_KINDS = {"best": "#0072B2", "start": "#D55E00", _PICKED: "#CC79A7"} | dict(
    zip(SLO_WORDS.values(), ("#56B4E9", "#9CA3AF", "#56B4E9"), strict=True)
)
_STUDY_HEIGHT = 300
_LONGEST = 40


@draw.chart_of("study.pareto", "label latency rate kind front")
def study_pareto(
    frame: pl.DataFrame,
    *,
    latency: str = "latency",
    rate: str = "requests",
    picked: Sequence[int] = (),
    title: str | None = None,
) -> alt.LayerChart:
    """Latency against throughput of the points of a study; the line joins those that no other one
    betters in both.

    Up and to the left is better.

    Parameters
    ----------
    frame : polars.DataFrame
        Rows of ``study.pareto``.
    latency, rate : str
        What the columns ``latency`` (ns) and ``rate`` (1/s) are, for the axes.
    picked : sequence of int
        Points (column ``point``) that stand out with their names.
    title : str, optional
        Title of the chart; by default it says what is shown.

    Returns
    -------
    altair.LayerChart
        900 px wide.

    Raises
    ------
    AnalysisError
        A column is missing, or no point has a latency and a rate.
    """
    if picked:
        chosen = pl.col("point").is_in(list(picked)) & ~pl.col("kind").is_in(["best", "start"])
        frame = frame.with_columns(kind=pl.when(chosen).then(pl.lit(_PICKED)).otherwise("kind"))
    known = frame.drop_nulls(["latency", "rate"])
    if known.is_empty():
        raise draw.nothing("study_pareto", "no point has a latency and a rate")
    unit = theme.time_unit(draw.float_of(known["latency"].max()))
    data = known.with_columns(x=pl.col("latency") / unit.ns, text=draw.duration("latency"))
    most, top = draw.float_of(data["x"].max()), draw.float_of(data["rate"].max())
    x_title = f"{latency.removesuffix('_ns').replace('_', ' ')} ({unit.symbol})"
    y_title = f"{rate.replace('_', ' ')} a second"
    x = alt.X("x:Q", scale=theme.exact_scale(0, 1.1 * most or 1), axis=theme.titled_axis(x_title))
    y = alt.Y(
        "rate:Q", scale=theme.exact_scale(0, 1.12 * top or 1), axis=theme.titled_axis(y_title)
    )
    shade = theme.colour_encoding(
        "kind", {name: _KINDS[name] for name in _KINDS if name in data["kind"].to_list()}
    )
    base = alt.Chart(draw.inline(data.select("label", "x", "rate", "kind", "text")))
    tips = draw.tips(("label:N", "point"), ("rate:Q", y_title, ",.4~r"), ("text:N", latency))
    dots = base.mark_circle(size=90, opacity=1).encode(x=x, y=y, color=shade, tooltip=tips)
    front = data.filter(pl.col("front")).sort("x")
    line = alt.Chart(draw.inline(front.select("x", "rate"))).mark_line(
        strokeWidth=1.4, color=theme.MUTED
    )
    named = data.filter(pl.col("kind").is_in(["best", "start", _PICKED])).with_columns(
        short=pl.col("label").map_elements(lambda text: shorten(text, _LONGEST), pl.String)
    )
    words = []
    for rows, right in (
        (named.filter(pl.col("x") <= 0.35 * most), False),
        (named.filter(pl.col("x") > 0.35 * most), True),
    ):
        text = alt.Chart(draw.inline(rows.select("x", "rate", "short"))).mark_text(
            align="right" if right else "left",
            dx=-7 if right else 7,
            dy=-9,
            fontSize=theme.TEXT_PX,
            color=theme.INK,
        )
        words += [text.encode(x=x, y=y, text=alt.Text("short:N"))] if rows.height else []
    chart = theme.layered(line.encode(x=x, y=y), dots, *words).properties(
        width=theme.inner() - 44, height=_STUDY_HEIGHT
    )
    best = data.filter(kind="best")
    shown = (best if best.height else data.sort("rate", descending=True)).row(0, named=True)
    head = f"{shown['label']}: {format_metric('rate', shown['rate'])} {y_title} at {shown['text']}"
    note = (
        "Each dot is a measured point; up and to the left is better. Line: no other point is better"
        " in both."
    )
    return theme.finish_chart(chart, title or head, note)


@draw.chart_of("study.slices", "setting value objective holds")
def study_slices(
    frame: pl.DataFrame, *, objective: str = "objective", title: str | None = None
) -> alt.VConcatChart:
    """Objective over the values of each setting, all others as at the start.

    A time is in ns, a rate per s.

    Parameters
    ----------
    frame : polars.DataFrame
        Rows of ``study.slices``.
    objective : str
        What the column ``objective`` is; a name that ends in ``_ns`` or a quantile of a latency is
        a time.
    title : str, optional
        Title of the chart; by default it says what is shown.

    Returns
    -------
    altair.VConcatChart
        900 px wide.

    Raises
    ------
    AnalysisError
        A column is missing, or no setting was measured alone.
    """
    known = frame.drop_nulls("objective")
    if known.is_empty():
        raise draw.nothing("study_slices", "no setting was measured alone")
    rate = objective.endswith("_per_s") or objective in {"goodput", "objective"}
    top = draw.float_of(known["objective"].max())
    unit = None if rate else theme.time_unit(top)
    size, symbol = (1.0, "a second") if unit is None else (float(unit.ns), f"({unit.symbol})")
    name = f"{objective.removesuffix('_per_s').removesuffix('_ns').replace('_', ' ')} {symbol}"
    scale = theme.exact_scale(0, 1.12 * top / size or 1)
    x = alt.X("amount:Q", scale=scale, axis=theme.titled_axis(name))
    data = known.with_columns(
        amount=pl.col("objective") / size,
        kind=pl.col("holds").replace_strict(SLO_WORDS, return_dtype=pl.String),
        row=pl.col("value").map_elements(lambda text: shorten(text, _LONGEST), pl.String),
    )
    kinds = {one: _KINDS[one] for one in _KINDS if one in data["kind"].to_list()}
    widest = max(theme.text_px(row, theme.TEXT_PX) for row in data["row"])
    width = theme.inner() - 30 - round(widest)
    panels = []
    for setting in data["setting"].unique(maintain_order=True):
        rows = data.filter(setting=setting).with_row_index("place")
        y = theme.row_axis(rows["row"].to_list())
        base = alt.Chart(draw.inline(rows.select("row", "amount", "kind")))
        tips = draw.tips(("row:N", setting), ("amount:Q", name, ",.4~r"))
        shade = theme.colour_encoding("kind", kinds, opaque=True)
        bars = base.transform_calculate(zero="0").mark_rule(strokeWidth=3, opacity=0.4)
        bars = bars.encode(x=alt.X("zero:Q", scale=scale), x2=alt.X2("amount:Q"), y=y, color=shade)
        dots = base.mark_circle(size=90, opacity=1).encode(x=x, y=y, color=shade, tooltip=tips)
        panel = theme.layered(bars, dots).properties(
            width=width, height=28 * rows.height, title=theme.panel_heading(setting)
        )
        panels.append(panel)
    by = data.group_by("setting", maintain_order=True).agg(
        apart=(pl.max("amount") - pl.min("amount")) / pl.max("amount")
    )
    most = by.sort("apart", descending=True).row(0, named=True)
    head = title or f"{most['setting']} alone changes it by up to {100 * most['apart']:.0f} %"
    return theme.finish_chart(
        compose.vconcat(*panels, spacing=18),
        head,
        "One setting changed, all others as at the start; one run for each.",
    )
