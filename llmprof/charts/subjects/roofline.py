"""Roofline chart: FLOP/s of each kernel over its FLOPs for each byte of memory traffic."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import altair as alt
import polars as pl

from llmprof import analyze
from llmprof.charts.base import compose, draw, theme
from llmprof.charts.base.save import Box, LineSegment, along, around, free_place
from llmprof.names import kernels
from llmprof.names.dtypes import type_format
from llmprof.replay.targets import ANY_STAGE
from llmprof.text import shorten
from llmprof.theory import hardware
from llmprof.theory.shapes import Shape
from llmprof.trace import Trace
from llmprof.trace.metrics.data import Metrics
from llmprof.units import format_ns

_EXACT = 1e-6
"""Relative difference below which two rates count as equal."""


@dataclass(frozen=True, slots=True)
class Roofs:
    """Bandwidth (B/s), and peaks (FLOP/s) by type of number, as far as they are known."""

    bandwidth: float | None
    peaks: dict[str, float]


@dataclass(frozen=True, slots=True)
class Plane:
    """A plot with logarithmic axes: its size (px), the ranges of both, and the FLOP/s of a
    vertical unit.
    """

    width: float
    height: float
    x: tuple[float, float]
    y: tuple[float, float]
    unit: float

    def at(self, intensity: float, rate: float) -> tuple[float, float]:
        """Place of an intensity (FLOP/B) and a rate (FLOP/s): px from the upper left."""
        right = math.log(intensity / self.x[0]) / math.log(self.x[1] / self.x[0])
        up = math.log(rate / self.unit / self.y[0]) / math.log(self.y[1] / self.y[0])
        return right * self.width, (1 - up) * self.height


def given(device: hardware.Device, rows: pl.DataFrame) -> Roofs:
    """Roofs of a known device for the number types that occur."""
    types = rows["dtype"].drop_nulls().unique().sort()
    return Roofs(
        device.memory_bytes_per_s, {t: rate for t in types if (rate := device.flop_per_s.get(t))}
    )


def derived(rows: pl.DataFrame) -> Roofs:
    """Roofs that follow from the ``bound_flop_per_s`` of the launches.

    The roof of a launch is the lower of the peak of its number type and intensity x bandwidth. So
    roof / intensity is at most the bandwidth. If it is less than that of another launch, the roof
    is a peak. The greatest roof / intensity is the bandwidth itself if launches of two intensities
    agree on it, or if its launch stays below the peak of its type.
    """
    with_roof = rows.drop_nulls(["bound_flop_per_s", "dtype"]).filter(
        pl.col("bound_flop_per_s") > 0
    )
    slope = pl.col("bound_flop_per_s") / pl.col("intensity")
    steepest = draw.float_of(with_roof.select(slope.max()).item())
    flat = (
        with_roof.filter(slope < steepest * (1 - _EXACT))
        .group_by("dtype")
        .agg(pl.max("bound_flop_per_s"))
    )
    peaks = {str(dtype): float(rate) for dtype, rate in flat.sort("dtype").iter_rows()}
    top = with_roof.filter(slope >= steepest * (1 - _EXACT))
    roofs = top.select("dtype", "bound_flop_per_s").rows()
    below = any(rate < peaks.get(dtype, 0.0) * (1 - _EXACT) for dtype, rate in roofs)
    rates = [rate for _, rate in roofs]
    agree = bool(rates) and min(rates) < max(rates) * (1 - _EXACT)
    return Roofs(steepest if below or agree else None, peaks)


def _lines(roofs: Roofs, plane: Plane) -> tuple[list[alt.Chart], list[Box]]:
    """Marks of the roofs with their names, and the areas that they cover."""
    marks: list[alt.Chart] = []
    taken: list[Box] = []
    by_rate: dict[float, list[str]] = {}
    for dtype, rate in roofs.peaks.items():
        by_rate.setdefault(rate, []).append(dtype)
    for rate, types in by_rate.items():
        ridge = rate / roofs.bandwidth if roofs.bandwidth else plane.x[0]
        start, end = plane.at(max(ridge, plane.x[0]), rate), plane.at(plane.x[1], rate)
        name = f"{', '.join(types)}: {rate / 1e12:,.4g} TFLOP/s"
        marks.append(_segment((*start, *end), theme.MUTED, 1.5))
        marks.append(_name(name, (end[0] - 4, end[1] - 5), align="right", baseline="bottom"))
        width = theme.text_px(name, theme.TEXT_PX)
        taken += [*along(start, end), Box(end[0] - 4 - width, end[1] - 20, end[0], end[1])]
    if by_rate:
        taken.append(
            Box(0, 0, plane.width, plane.at(plane.x[0], max(by_rate))[1])
        )  # nothing has a place above
    if roofs.bandwidth:
        highest = max(roofs.peaks.values(), default=plane.y[1] * plane.unit)
        first = max(plane.x[0], plane.y[0] * plane.unit / roofs.bandwidth)
        last = min(plane.x[1], highest / roofs.bandwidth)
        if last > first:
            start, end = (
                plane.at(first, first * roofs.bandwidth),
                plane.at(last, last * roofs.bandwidth),
            )
            angle = math.degrees(math.atan2(end[1] - start[1], end[0] - start[0]))
            start_of_name = (
                start[0] + (end[0] - start[0]) * 0.4,
                start[1] + (end[1] - start[1]) * 0.4,
            )
            marks.append(_segment((*start, *end), theme.MUTED, 1.5))
            name = f"memory: {roofs.bandwidth / 1e12:,.4g} TB/s"
            lean = math.radians(angle)
            above = (start_of_name[0] + 9 * math.sin(lean), start_of_name[1] - 9 * math.cos(lean))
            marks.append(_name(name, above, align="center", baseline="middle", angle=angle % 360))
            half = theme.text_px(name, theme.TEXT_PX) / 2
            ends = [
                (above[0] + s * half * math.cos(lean), above[1] + s * half * math.sin(lean))
                for s in (-1, 1)
            ]
            taken += [
                *along(start, end),
                *(around(b.left + 3, b.top + 3, 8) for b in along(ends[0], ends[1])),
            ]
    return marks, taken


def _segment(ends: LineSegment, colour: str, width: float) -> alt.Chart:
    """A straight line between two places of the plot (x, y, x, y in px)."""
    x, y, x2, y2 = ends
    rule = alt.Chart(draw.constant({})).mark_rule(color=colour, strokeWidth=width, aria=False)
    drawn: alt.Chart = rule.encode(
        x=alt.XValue(x), y=alt.YValue(y), x2=alt.X2Value(x2), y2=alt.Y2Value(y2)
    )
    return drawn


def _name(
    text: str,
    corner: tuple[float, float],
    *,
    align: Literal["right", "center"],
    baseline: Literal["bottom", "middle"],
    angle: float = 0,
) -> alt.Chart:
    mark = alt.Chart(draw.constant({})).mark_text(
        align=align, baseline=baseline, angle=angle, fontSize=theme.TEXT_PX, color=theme.MUTED
    )
    named: alt.Chart = mark.encode(
        x=alt.XValue(corner[0]), y=alt.YValue(corner[1]), text=alt.TextValue(text)
    )
    return named


_RATES = ("intensity", "flop_per_s", "dur_ns")
_OF_OPERATORS = (
    *(
        "operator",
        "kernel",
        "dtypes",
        "flops",
        "bound_ns",
        "bound_by",
        "intensity",
        "flop_per_s",
        "total_ns",
    ),
)
_COLUMNS = ("kernel_name", "dtype", "bound_flop_per_s", "bound_share", "bound_by", *_RATES)
BOUNDS = {"compute": theme.COMPUTE, "memory": "#882255", "latency": "#DDAA33"}
"""What limits a kernel, and its colour."""

_FORMATS = r'"(?:c10::)?(BFloat16|Half|Float8\w*|float|double)"'
"""Types of floating-point tensors, as PyTorch writes them."""

_LEAST_OF_TYPE, _LEAST_DRAWN = 0.005, 0.0005
"""Least share of the time for the type of an operator to have a roof, and for it to be drawn."""

_OF_MATRICES = "gemm|convolution|attention|experts"
"""Kinds of operators that matrix units compute."""

_HEIGHT, _AXIS = 430, 64
_MAX_LABELS, _MAX_LABEL, _MAX_NAMED, _MAX_NAME = 12, 26, 3, 40
_LARGEST, _LEAST = 900.0, 36.0
"""Areas of points (square px)."""

_MAX_AVOIDED, _APART, _ASIDE = 400, 3, 60
"""Longest launches that labels avoid, by how much, and room between the last point and its label
(px).
"""


def _launches(frame: pl.DataFrame) -> pl.DataFrame:
    """Rows of ``analyze.operators`` with the columns of launches."""
    draw.require(frame, _OF_OPERATORS, chart="roofline")
    # other kinds of operators do not use the matrix units, and have no flat roof; nor have types
    # that are hardly used
    much = pl.col("total_ns") >= _LEAST_OF_TYPE * pl.sum("total_ns")
    types = frame.select(
        pl.when(much & pl.col("kind").str.contains(_OF_MATRICES)).then("dtypes")
    ).to_series()
    formats = [type_format(name)[0] if name else None for name in types.str.extract(_FORMATS)]
    rate, by = pl.col("flops") / pl.col("bound_ns") * 1e9, pl.col("bound_by")
    of_unit = ~by.is_in(["memory", "launch"])
    stage = (
        {"stage": pl.when(~pl.col("stage").is_in(ANY_STAGE)).then("stage")}
        if "stage" in frame.columns
        else {}
    )
    drawn = pl.col("total_ns") >= _LEAST_DRAWN * pl.sum("total_ns")
    return frame.with_columns(
        kernel_name=pl.coalesce(pl.col("operator").str.split("::").list.last(), "kernel"),
        dtype=pl.when(of_unit).then(by).otherwise(pl.Series(formats, dtype=pl.String)),
        bound_flop_per_s=pl.when(by != "launch").then(rate),
        bound_by=pl.when(of_unit)
        .then(pl.lit("compute"))
        .otherwise(by.replace("launch", "latency")),
        flop_per_s=pl.when(drawn).then("flop_per_s"),
        dur_ns="total_ns",
        **stage,
    )


@draw.chart_of(
    "llmprof.analyze.operators(trace), roofline(trace, model) or speed_of_light(metrics)",
)
def roofline(
    frame: Trace | Metrics | pl.DataFrame,
    *,
    model: str | Path | Mapping[str, Any] | Shape | None = None,
    peaks: str | hardware.Device | None = None,
    title: str | None = None,
) -> alt.LayerChart | alt.VConcatChart:
    """Every operator of a recording, or every profiled launch, under the roofs of its device, on
    logarithmic axes; of a model, where the time of a step goes beyond its bound.

    Under the slope the memory bandwidth limits a kernel; under a flat roof the peak of its number
    type does. What has no floating-point operations is not drawn; the subtitle names it. The area
    of a point is its time.

    Of a model there is a panel for each phase. A bar is the mean time of a stage in a step and
    rank; its first part is the least time, the rest the gap in the colour of its reason.

    Parameters
    ----------
    frame : Trace, Metrics or polars.DataFrame
        What was recorded, or rows of ``operators(trace)``, of ``roofline(trace, model)`` by stage
        or of ``ncu.speed_of_light(metrics)``. With a column ``stage`` (of ``by=("stage",)``, or of
        ``ncu.layers(metrics)``, joined by ``kernel_id``) points have the colours and names of
        stages, else the colours of their bounds.
    model : str, path, mapping or Shape, optional
        Model whose bounds a trace is compared with, as for :func:`llmprof.analyze.roofline`.
    peaks : str or Device, optional
        The device; the chart then has its roofs for all number types in the frame. By default the
        roofs follow from ``bound_flop_per_s``: a type has its flat roof if a launch of this type
        lies under it.
    title : str, optional
        Title of the chart; by default it says what is shown.

    Returns
    -------
    altair.LayerChart | altair.VConcatChart
        900 px wide.

    Raises
    ------
    AnalysisError
        A column is missing, or nothing has operations and memory traffic.
    LlmprofError
        The device is unknown.
    """
    if isinstance(frame, Metrics):
        frame = analyze.ncu.speed_of_light(frame)
    if model is None:
        frame = draw.chart_frame(frame, analyze.operators)
    else:
        frame = draw.chart_frame(frame, analyze.roofline, model, peaks)
    if "mfu" in frame.columns:
        return _gaps(frame, title)
    of_operators = "operator" in frame.columns
    frame = _launches(frame) if of_operators else frame
    draw.require(frame, _COLUMNS, chart="roofline")
    by, missing = ("stage", "other") if "stage" in frame.columns else ("bound_by", "unknown")
    named = frame.with_columns(
        function=kernels.displayed(frame["kernel_name"]),
        group=pl.col(by).fill_null(missing),
        drawable=pl.all_horizontal(
            ((pl.col(c) > 0) & pl.col(c).is_finite()).fill_null(False) for c in _RATES
        ),
    )
    rows = named.filter("drawable").sort(
        "dur_ns", "function", descending=[True, False], maintain_order=True
    )
    if rows.is_empty():
        raise draw.nothing("roofline", "nothing has floating-point operations and memory traffic")
    own = pl.when(pl.col("group") == missing).then("function").otherwise("group")
    rows = rows.with_columns(label=own if by == "stage" else pl.col("function"))
    present = rows["group"].unique().sort().to_list()
    listed = {name: shade for name, shade in BOUNDS.items() if name in present}
    bounds = listed | dict.fromkeys((name for name in present if name not in listed), theme.REST)
    table = theme.colours("stage", present) if by == "stage" else bounds
    roofs = derived(rows) if peaks is None else given(hardware.device(peaks), rows)
    plane = _plane(rows, roofs)
    drawn, taken = _lines(roofs, plane)
    marks = [*drawn, _points(rows, plane, table), *_labels(rows, plane, taken)]
    chart = theme.layered(*marks).properties(width=plane.width, height=_HEIGHT)
    longest = format_ns(draw.float_of(rows["dur_ns"].max()))
    what = "an operator with its shapes" if of_operators else "a launch"
    notes = [f"A point is {what}; its area is its time, at most {longest}."]
    if not roofs.bandwidth and not roofs.peaks:
        notes.append("The roofs are not known.")
    rest = named.filter(~pl.col("drawable"))
    left_out = _operators_left_out(rest) if of_operators else _left_out(rest)
    among = " of what is drawn" if of_operators and left_out else ""
    return theme.finish_chart(
        chart, title or _headline(rows, among), [" ".join(notes), left_out] if left_out else notes
    )


def _plane(rows: pl.DataFrame, roofs: Roofs) -> Plane:
    """Axis ranges that include all points and, if known, the ridges, with space for a label on
    the right.
    """
    intensity, rate = rows["intensity"], rows["flop_per_s"]
    ridges = [peak / roofs.bandwidth for peak in roofs.peaks.values()] if roofs.bandwidth else []
    left = min(draw.float_of(intensity.min()), *ridges, math.inf) / 2.5
    right = max(draw.float_of(intensity.max()), *ridges, 0.0)
    widest = max(
        theme.text_px(shorten(label, _MAX_LABEL), theme.TEXT_PX) for label in rows["label"].unique()
    )
    plot = theme.inner() - _AXIS
    aside = min(widest + _ASIDE, plot / 3)
    x = (left, left * (right / left) ** (plot / (plot - aside)))
    low, high = (
        draw.float_of(rate.min()) / 3,
        max(draw.float_of(rate.max()), *roofs.peaks.values(), 0.0) * 2,
    )
    unit = next((u for u in (1e12, 1e9, 1e6) if high >= u), 1.0)
    return Plane(plot, _HEIGHT, x, (low / unit, high / unit), unit)


def _points(rows: pl.DataFrame, plane: Plane, table: dict[str, str]) -> alt.Chart:
    symbol = {1e12: "TFLOP/s", 1e9: "GFLOP/s", 1e6: "MFLOP/s"}.get(plane.unit, "FLOP/s")
    data = rows.select(
        *("kernel_name", "group", "dtype", "bound_by", "bound_share", "intensity"),
        *(["kernel"] if "kernel" in rows.columns else []),  # a report finds its row by it
        rate=pl.col("flop_per_s") / plane.unit,
        dur_ns="dur_ns",
        time=draw.duration("dur_ns"),
        area=_area(rows),
    )
    tips = draw.tips(
        ("kernel_name:N", "kernel"),
        "group:N",
        "time:N",
        ("intensity:Q", "FLOP/B", ",.4~r"),
        "dtype:N",
    )
    tips += draw.tips(
        ("rate:Q", symbol, ",.4~r"),
        ("bound_by:N", "bound"),
        ("bound_share:Q", "of its roof", ".1%"),
    )
    mark = alt.Chart(draw.inline(data)).mark_point(
        filled=True, opacity=0.85, stroke=theme.PAPER, strokeWidth=0.8
    )
    points: alt.Chart = mark.encode(
        x=_axis("intensity", "arithmetic intensity (FLOP/B, log scale)", plane.x),
        y=_axis("rate", f"{symbol} (log scale)", plane.y, alt.Y),
        size=alt.Size("area:Q", scale=None, legend=None),
        color=theme.colour_encoding("group", table),
        tooltip=tips,
    )
    return points


def _axis(
    field: str, title: str, domain: tuple[float, float], channel: type[alt.X] | type[alt.Y] = alt.X
) -> alt.X | alt.Y:
    scale = alt.Scale(type="log", domain=list(domain), nice=False)
    return channel(
        f"{field}:Q", scale=scale, axis=theme.titled_axis(title, values=draw.log_ticks(*domain))
    )


def _area(rows: pl.DataFrame) -> pl.Series:
    share = rows["dur_ns"] / draw.float_of(rows["dur_ns"].max())
    return (share * _LARGEST).clip(_LEAST)


def _labels(every: pl.DataFrame, plane: Plane, roofs: list[Box]) -> list[alt.Chart]:
    """Names of the longest launches, each name once, as far as there is space."""
    rows = every.head(_MAX_AVOIDED)
    rates = rows.select("intensity", "flop_per_s").iter_rows()
    radii = [math.sqrt(area / math.pi) for area in _area(rows)]
    points = list(zip(rows["label"], (plane.at(*rate) for rate in rates), radii, strict=True))
    taken, marks = list(roofs), list[alt.Chart]()
    seen: set[str] = set()
    for label, point, radius in points:
        if label in seen or len(seen) == _MAX_LABELS:
            continue
        seen.add(label)
        own = around(*point, radius)
        # A text keeps away from other kernels, so that it is clear whose it is.
        near = [
            (name == label, around(*middle, r if name == label else r + _APART))
            for name, middle, r in points
        ]
        others = [box for same, box in near if not (same and box.meets(own))]
        text = shorten(label, _MAX_LABEL)
        size = (theme.text_px(text, theme.TEXT_PX), theme.TEXT_PX + 2.0)
        spot = free_place(point, radius, size, (plane.width, plane.height), [*taken, *others])
        if spot is None:
            continue
        box, ends = spot
        taken.append(box)
        if ends:
            marks.append(_segment(ends, theme.INK, 0.8))
            taken += along(ends[:2], ends[2:])
        x, y = alt.XValue((box.left + box.right) / 2), alt.YValue((box.top + box.bottom) / 2)
        name = pl.DataFrame({"label": [text]})
        marks.append(
            draw.text_marks(name, x, y, baseline="middle", fontSize=theme.TEXT_PX, color=theme.INK)
        )
    return marks


def _headline(rows: pl.DataFrame, among: str) -> str:
    """The name on which most time is spent, and how near its launches come to their roof."""
    share, ns = pl.col("bound_share"), pl.col("dur_ns")
    finite = share.is_not_null() & share.is_finite()
    sums = rows.group_by("label").agg(
        ns=ns.sum(),
        reached=(share * ns).filter(finite).sum() / ns.filter(finite).sum(),
        known=finite.any(),
    )
    top = sums.sort("ns", "label", descending=[True, False]).row(0, named=True)
    name = shorten(top["label"], _MAX_NAME)
    if not top["known"]:
        return f"{name} takes the most time{among}; its roof is not known"
    return (
        f"{name} takes the most time{among}, and reaches {theme.percent(100 * top['reached'])} of"
        " its roof"
    )


def _left_out(rows: pl.DataFrame) -> str:
    """Sentence on what is not drawn: names, number and time."""
    if rows.is_empty():
        return ""
    none = (pl.col("flop_per_s") == 0).fill_null(False)
    sentences = []
    for why, some in (
        ("without FLOPs", rows.filter(none)),
        ("without known FLOPs or DRAM bytes", rows.filter(~none)),
    ):
        if some.is_empty():
            continue
        sums = some.group_by("function").agg(ns=pl.sum("dur_ns"), n=pl.len())
        sums = sums.sort("ns", "function", descending=[True, False])
        names = [
            f"{shorten(name, _MAX_NAME)}"
            f" ({f'{n:,} launches, ' if n > 1 else ''}{format_ns(draw.float_of(ns))})"
            for name, ns, n in sums.head(_MAX_NAMED).iter_rows()
        ]
        more = [f"{sums.height - _MAX_NAMED} more"] if sums.height > _MAX_NAMED else []
        sentences.append(f"Not drawn, {why}: {', '.join(names + more)}.")
    return " ".join(sentences)


def _operators_left_out(rows: pl.DataFrame) -> str:
    """Sentence on the operators that are not drawn: their time and names by reason."""
    if rows.is_empty():
        return ""
    flops = pl.col("flops")
    least = f"below {100 * _LEAST_DRAWN:g} % of the time each"
    parts = []
    for why, chosen in (
        ("without FLOPs", flops == 0),
        ("without known FLOPs", flops.is_null()),
        (least, flops > 0),
    ):
        sums = rows.filter(chosen).group_by("function").agg(ns=pl.sum("dur_ns"))
        sums = sums.sort("ns", "function", descending=[True, False])
        if sums.height:
            names = [shorten(name, _MAX_LABEL) for name in sums["function"].head(_MAX_NAMED)]
            more = f" and {sums.height - _MAX_NAMED} more" if sums.height > _MAX_NAMED else ""
            parts.append(
                f"{format_ns(draw.float_of(sums['ns'].sum()))} {why} ({', '.join(names)}{more})"
            )
    return f"Not drawn: {'; '.join(parts)}."


REASONS = {
    "least time": theme.COMPUTE,
    "kernel below the roof": "#8FB8DE",
    "fixed cost of kernels": "#D9B300",
    "wait for others": theme.WAIT,
    "idle": theme.CAUSES["host_bound"],
    "at the roof": "#C7DCEF",
    "no bound": theme.REST,
}

_MAX_STAGES = 14


def _gaps(joined: pl.DataFrame, title: str | None) -> alt.VConcatChart:
    """Where the time of a step goes beyond its bound: a panel for each phase."""
    columns = ("phase", "step", "stage", "total_ns", "bound_ns", "reason")
    draw.require(joined, columns, chart="roofline")
    phases = theme.in_order(joined["phase"].drop_nulls(), ("prefill", "mixed", "decode"))
    panels = [_gaps_panel(joined.filter(phase=phase), phase) for phase in phases]
    reasons = set(joined["reason"])
    table = {
        name: shade for name, shade in REASONS.items() if name == "least time" or name in reasons
    }
    chart = compose.vconcat(_legend(table), *panels, spacing=16)
    last = joined.filter(pl.col("phase") == phases[-1])
    measured, bound = (
        draw.float_of(last["total_ns"].sum()),
        draw.float_of(last["bound_ns"].sum()),
    )
    reached = theme.percent(100 * bound / measured) if measured else "0 %"
    sentence = f"The least time is {reached} of the measured {shorten(str(phases[-1]), 40)} steps"
    notes = (
        "Mean of a step, from its first event to the next step's, and rank (us, ms). "
        "Least time: at the stated peaks of the device. The rest of a bar is the gap."
    )
    return theme.finish_chart(chart, title or sentence, notes)


def _gaps_panel(rows: pl.DataFrame, phase: str) -> alt.LayerChart:
    steps = (
        rows.select("rank", "step").n_unique()
        if "rank" in rows.columns
        else rows["step"].n_unique()
    )
    sums = rows.group_by("stage").agg(
        pl.sum("total_ns", "bound_ns") / steps,
        reason=pl.col("reason").sort_by("total_ns").last(),
    )
    sums = sums.sort("total_ns", "stage", descending=[True, False])
    shown = sums.head(_MAX_STAGES)
    if sums.height > _MAX_STAGES:
        more, why = pl.lit(f"{sums.height - _MAX_STAGES} more"), pl.lit("no bound")
        rest = sums.tail(-_MAX_STAGES).select(
            stage=more, total_ns=pl.sum("total_ns"), bound_ns=pl.sum("bound_ns"), reason=why
        )
        shown = pl.concat([shown, rest.head(1)])
    unit = theme.time_unit(draw.float_of(shown["total_ns"].max()))
    bound = pl.min_horizontal("bound_ns", "total_ns")
    least = shown.select("stage", part=pl.lit("least time"), start=pl.lit(0.0), end=bound / unit.ns)
    rest = shown.select(
        "stage", part="reason", start=bound / unit.ns, end=pl.col("total_ns") / unit.ns
    )
    data = pl.concat([least, rest], how="vertical_relaxed").filter(pl.col("end") > pl.col("start"))
    share = (100 * pl.col("bound_ns") / pl.col("total_ns")).fill_nan(0.0)
    of_it = "" if theme.is_narrow() else " of it least time"
    factor = pl.when(pl.col("bound_ns") > 0).then(
        pl.format(
            ", {}{}", share.map_elements(theme.percent, return_dtype=pl.String), pl.lit(of_it)
        )
    )
    words = pl.concat_str(draw.duration("total_ns"), factor.fill_null(pl.lit("")))
    labels = shown.select("stage", end=pl.col("total_ns") / unit.ns, label=words)
    order = shown["stage"].to_list()
    y = names_axis("stage", order)
    scale = alt.Scale(
        domain=[
            0,
            draw.float_of(labels["end"].max()) * (2.6 if theme.is_narrow() else 1.38) or 1.0,
        ]
    )
    x = alt.X(
        "start:Q",
        scale=scale,
        axis=theme.titled_axis(f"time ({unit.symbol})", tickCount=4 if theme.is_narrow() else 8),
    )
    colour = alt.Color("part:N", scale=theme.shades(REASONS), legend=None)
    tips = draw.tips("stage:N", "part:N")
    bars = (
        alt.Chart(draw.inline(data))
        .mark_bar()
        .encode(x=x, x2=alt.X2("end:Q"), y=y, color=colour, tooltip=tips)
    )
    texts = draw.behind(labels, alt.X("end:Q", scale=scale), y)
    named = f"{phase}: {steps} step{'s' if steps != 1 else ''} of a rank"
    return theme.layered(bars, texts).properties(
        width=theme.inner() - 120, height=24 * len(order), title=theme.panel_heading(named)
    )


def _legend(table: dict[str, str]) -> alt.LayerChart:
    """Colours of the reasons in one row."""
    marks: list[alt.Chart] = []
    x, line = 6.0, 0
    for name, shade in table.items():
        wide = 30 + 6.4 * len(name)
        if theme.is_narrow() and x > 6 and x + wide > theme.inner() - 120:
            x, line = 6.0, line + 1
        marks += key(x, 8 + 18 * line, shade, name)
        x += wide
    return theme.layered(*marks).properties(width=theme.inner() - 120, height=16 + 18 * line)


def key(x: float, y: float, shade: str, label: str) -> list[alt.Chart]:
    """A colour and what it means, at a place of the plot (px)."""
    square = alt.Chart(draw.constant({})).mark_point(
        shape="square", filled=True, size=130, color=shade, opacity=1
    )
    text = alt.Chart(draw.constant({})).mark_text(
        align="left", baseline="middle", fontSize=theme.TEXT_PX, color=theme.INK
    )
    return [
        square.encode(x=alt.XValue(x), y=alt.YValue(y)),
        text.encode(x=alt.XValue(x + 11), y=alt.YValue(y), text=alt.TextValue(label)),
    ]


def names_axis(field: str, names: list[str]) -> alt.Y:
    """Channel of horizontal bars in the order of their names."""
    axis = alt.Axis(title=None, ticks=False, domain=False, labelFontWeight="bold")
    return alt.Y(f"{field}:N", sort=None, scale=alt.Scale(domain=names), axis=axis)
