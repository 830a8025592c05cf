"""Roofline: how fast each kernel computes, over how much it computes for each byte of memory."""

from __future__ import annotations

import math

import altair as alt
import polars as pl

from llmprof import hardware, kernel_names
from llmprof.charts._data import inline, nothing, number, require
from llmprof.charts._histogram import log_ticks
from llmprof.charts._palette import COMPUTE, INK, REST, colours
from llmprof.charts._place import Box, along, around, place
from llmprof.charts._roofs import Plane, Roofs, found, given, lines, segment
from llmprof.charts._theme import NUMBER, PADDING, TEXT_PX, WIDTH, colour, finish, layered, percent, shorten, text_px
from llmprof.units import format_ns

_SOURCE = "llmprof.analyze.speed_of_light(metrics)"
_RATES = ("arithmetic_intensity", "flop_per_s", "duration_ns")
_COLUMNS = ("kernel_name", "dtype", "roof_flop_per_s", "roof_share", "bound", *_RATES)
BOUNDS = {"compute": COMPUTE, "memory": "#882255", "latency": "#DDAA33"}
"""What limits a kernel, and its colour."""

_PLOT, _HEIGHT = WIDTH - 2 * PADDING - 64, 430
_MAX_LABELS, _MAX_LABEL, _MAX_NAMED, _MAX_NAME = 12, 26, 3, 40
_LARGEST, _LEAST = 900.0, 36.0
"""Areas of points (square px)."""

_MAX_AVOIDED, _APART, _ASIDE = 400, 3, 60
"""Longest launches that labels avoid, by how much, and room between the last point and its label (px)."""


def roofline(
    frame: pl.DataFrame, *, peaks: str | hardware.Device | None = None, title: str | None = None
) -> alt.LayerChart:
    """Every profiled launch under the roofs of its device, on logarithmic axes.

    A point under the slope can at most use the whole bandwidth of the memory; one under a flat roof, the whole
    arithmetic of its type of number. Launches without floating-point operations have no place here and are named in
    the subtitle.

    Parameters
    ----------
    frame : polars.DataFrame
        Rows of ``speed_of_light(metrics)``. With a column ``stage`` (of ``name_layers(metrics)``, joined by
        ``kernel_id``) points have the colours and names of stages, else the colours of their bounds.
    peaks : str or Device, optional
        The device; its roofs are then drawn for all types of number in the frame. If not given, those are drawn that
        follow from ``roof_flop_per_s``: a type has its flat roof where a launch of it lies under that.
    title : str, optional
        Title instead of the one that says what is shown.

    Returns
    -------
    altair.LayerChart
        900 px wide. The area of a point is its duration.

    Raises
    ------
    AnalysisError
        A column is missing, or no launch has operations and memory traffic.
    LlmprofError
        The device is unknown.
    """
    require(frame, _COLUMNS, chart="roofline", made_by=_SOURCE)
    by, missing = ("stage", "other") if "stage" in frame.columns else ("bound", "unknown")
    named = frame.with_columns(
        function=kernel_names.function(frame["kernel_name"].fill_null("unnamed")),
        group=pl.col(by).fill_null(missing),
        drawable=pl.all_horizontal(((pl.col(c) > 0) & pl.col(c).is_finite()).fill_null(value=False) for c in _RATES),
    )
    rows = named.filter("drawable").sort("duration_ns", "function", descending=[True, False], maintain_order=True)
    if rows.is_empty():
        raise nothing("roofline", "no launch has floating-point operations and memory traffic", _SOURCE)
    rows = rows.with_columns(label=pl.col("group" if by == "stage" else "function"))
    present = rows["group"].unique().sort().to_list()
    known = {name: shade for name, shade in BOUNDS.items() if name in present}
    table = colours("stage", present) if by == "stage" else known | {n: REST for n in present if n not in known}
    roofs = found(rows) if peaks is None else given(hardware.device(peaks), rows)
    plane = _plane(rows, roofs)
    drawn, taken = lines(roofs, plane)
    marks = [*drawn, _points(rows, plane, table), *_labels(rows, plane, taken)]
    chart = layered(*marks).properties(width=_PLOT, height=_HEIGHT)
    longest = format_ns(number(rows["duration_ns"].max()))
    notes = [f"A point is a launch; its area is its duration, at most {longest}."]
    if not roofs.bandwidth and not roofs.peaks:
        notes.append("The roofs are not known.")
    left_out = _left_out(named.filter(~pl.col("drawable")))
    return finish(chart, title or _headline(rows), [" ".join(notes), left_out] if left_out else notes)


def _plane(rows: pl.DataFrame, roofs: Roofs) -> Plane:
    """Ranges that hold all points and, where both are known, the ridges; to the right is room for a label."""
    intensity, rate = rows["arithmetic_intensity"], rows["flop_per_s"]
    ridges = [peak / roofs.bandwidth for peak in roofs.peaks.values()] if roofs.bandwidth else []
    left, right = min(number(intensity.min()), *ridges, math.inf) / 2.5, max(number(intensity.max()), *ridges, 0.0)
    widest = max(text_px(shorten(label, _MAX_LABEL), TEXT_PX) for label in rows["label"].unique())
    x = (left, left * (right / left) ** (_PLOT / (_PLOT - widest - _ASIDE)))
    low, high = number(rate.min()) / 3, max(number(rate.max()), *roofs.peaks.values(), 0.0) * 2
    unit = next((u for u in (1e12, 1e9, 1e6) if high >= u), 1.0)
    return Plane(_PLOT, _HEIGHT, x, (low / unit, high / unit), unit)


def _points(rows: pl.DataFrame, plane: Plane, table: dict[str, str]) -> alt.Chart:
    symbol = {1e12: "TFLOP/s", 1e9: "GFLOP/s", 1e6: "MFLOP/s"}.get(plane.unit, "FLOP/s")
    data = rows.select(
        "kernel_name",
        "group",
        "dtype",
        "bound",
        "roof_share",
        intensity="arithmetic_intensity",
        rate=pl.col("flop_per_s") / plane.unit,
        duration_ns=pl.col("duration_ns"),
        time=pl.col("duration_ns").map_elements(format_ns, return_dtype=pl.String),
        area=_area(rows),
    )
    tips = [alt.Tooltip("kernel_name:N", title="kernel"), alt.Tooltip("group:N"), alt.Tooltip("time:N")]
    tips += [alt.Tooltip("intensity:Q", title="FLOP/B", format=",.4~r"), alt.Tooltip("dtype:N")]
    tips += [alt.Tooltip("rate:Q", title=symbol, format=",.4~r"), alt.Tooltip("bound:N")]
    tips.append(alt.Tooltip("roof_share:Q", title="of its roof", format=".1%"))
    mark = alt.Chart(inline(data)).mark_point(filled=True, opacity=0.85, stroke="#FFFFFF", strokeWidth=0.8)
    points: alt.Chart = mark.encode(
        x=_axis("intensity", "arithmetic intensity (FLOP/B, log scale)", plane.x),
        y=_axis("rate", f"{symbol} (log scale)", plane.y, alt.Y),
        size=alt.Size("area:Q", scale=None, legend=None),
        color=colour("group", table),
        tooltip=tips,
    )
    return points


def _axis(
    field: str, title: str, domain: tuple[float, float], channel: type[alt.X] | type[alt.Y] = alt.X
) -> alt.X | alt.Y:
    scale = alt.Scale(type="log", domain=list(domain), nice=False)
    return channel(f"{field}:Q", scale=scale, axis=alt.Axis(title=title, format=NUMBER, values=log_ticks(*domain)))


def _area(rows: pl.DataFrame) -> pl.Series:
    share = rows["duration_ns"] / number(rows["duration_ns"].max())
    return (share * _LARGEST).clip(_LEAST)


def _labels(every: pl.DataFrame, plane: Plane, roofs: list[Box]) -> list[alt.Chart]:
    """Names of the longest launches, a name once, where they have room."""
    rows = every.head(_MAX_AVOIDED)
    rates = rows.select("arithmetic_intensity", "flop_per_s").iter_rows()
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
        near = [(name == label, around(*at, r if name == label else r + _APART)) for name, at, r in points]
        others = [box for same, box in near if not (same and box.meets(own))]
        text = shorten(label, _MAX_LABEL)
        size = (text_px(text, TEXT_PX), TEXT_PX + 2.0)
        spot = place(point, radius, size, (plane.width, plane.height), [*taken, *others])
        if spot is None:
            continue
        box, ends = spot
        taken.append(box)
        if ends:
            marks.append(segment(ends, INK, 0.8))
            taken += along(ends[:2], ends[2:])
        at = {"x": alt.value((box.left + box.right) / 2), "y": alt.value((box.top + box.bottom) / 2)}
        written = alt.Chart(inline(pl.DataFrame({"label": [text]})))
        marks.append(written.mark_text(baseline="middle", fontSize=TEXT_PX, color=INK).encode(text="label:N", **at))
    return marks


def _headline(rows: pl.DataFrame) -> str:
    """The name on which most time is spent, and how near its launches come to their roof."""
    share, ns = pl.col("roof_share"), pl.col("duration_ns")
    known = share.is_not_null() & share.is_finite()
    sums = rows.group_by("label").agg(
        ns=ns.sum(), reached=(share * ns).filter(known).sum() / ns.filter(known).sum(), known=known.any()
    )
    top = sums.sort("ns", "label", descending=[True, False]).row(0, named=True)
    name = shorten(top["label"], _MAX_NAME)
    if not top["known"]:
        return f"{name} takes the most time; its roof is not known"
    return f"{name} takes the most time, and reaches {percent(100 * top['reached'])} of its roof"


def _left_out(rows: pl.DataFrame) -> str:
    """Launches that have no place: their kernels, launches and time."""
    if rows.is_empty():
        return ""
    none = (pl.col("flop_per_s") == 0).fill_null(value=False)
    said = []
    for why, some in (
        ("without FLOPs", rows.filter(none)),
        ("without known FLOPs or DRAM bytes", rows.filter(~none)),
    ):
        if some.is_empty():
            continue
        sums = some.group_by("function").agg(ns=pl.col("duration_ns").sum(), n=pl.len())
        sums = sums.sort("ns", "function", descending=[True, False])
        names = [
            f"{shorten(name, _MAX_NAME)} ({f'{n:,} launches, ' if n > 1 else ''}{format_ns(number(ns))})"
            for name, ns, n in sums.head(_MAX_NAMED).iter_rows()
        ]
        more = [f"{sums.height - _MAX_NAMED} more"] if sums.height > _MAX_NAMED else []
        said.append(f"Not drawn, {why}: {', '.join(names + more)}.")
    return " ".join(said)
