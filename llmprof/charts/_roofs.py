"""The roofs of a roofline: which are known, and how they are drawn on logarithmic axes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import altair as alt
import polars as pl

from llmprof import hardware
from llmprof.charts._data import constant, number
from llmprof.charts._palette import MUTED
from llmprof.charts._place import Box, Segment, along, around
from llmprof.charts._theme import TEXT_PX, text_px

_EXACT = 1e-6
"""Relative difference below which two rates are one."""


@dataclass(frozen=True, slots=True)
class Roofs:
    """Bandwidth (B/s), and peaks (FLOP/s) by type of number, as far as they are known."""

    bandwidth: float | None
    peaks: dict[str, float]


@dataclass(frozen=True, slots=True)
class Plane:
    """A plot with logarithmic axes: its size (px), the ranges of both, and the FLOP/s of a vertical unit."""

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
    """Roofs of a device for the types of number that occur."""
    types = rows["dtype"].drop_nulls().unique().sort()
    return Roofs(device.memory_bytes_per_s, {t: rate for t in types if (rate := device.flop_per_s.get(t))})


def found(rows: pl.DataFrame) -> Roofs:
    """Roofs that follow from those of the launches.

    The roof of a launch is the lower of the peak of its type and intensity x bandwidth. So roof / intensity is at most
    the bandwidth, and where it is less than that of another launch, the roof is a peak. The greatest is the bandwidth
    itself where launches of two intensities agree on it, or a launch that has it stays below the peak of its type.
    """
    known = rows.drop_nulls(["roof_flop_per_s", "dtype"]).filter(pl.col("roof_flop_per_s") > 0)
    slope = pl.col("roof_flop_per_s") / pl.col("arithmetic_intensity")
    steepest = number(known.select(slope.max()).item())
    flat = known.filter(slope < steepest * (1 - _EXACT)).group_by("dtype").agg(pl.col("roof_flop_per_s").max())
    peaks = {str(dtype): float(rate) for dtype, rate in flat.sort("dtype").iter_rows()}
    top = known.filter(slope >= steepest * (1 - _EXACT))
    roofs = top.select("dtype", "roof_flop_per_s").rows()
    below = any(rate < peaks.get(dtype, 0.0) * (1 - _EXACT) for dtype, rate in roofs)
    rates = [rate for _, rate in roofs]
    agree = bool(rates) and min(rates) < max(rates) * (1 - _EXACT)
    return Roofs(steepest if below or agree else None, peaks)


def lines(roofs: Roofs, plane: Plane) -> tuple[list[alt.Chart], list[Box]]:
    """Marks of the roofs with their names, and what they cover."""
    marks: list[alt.Chart] = []
    taken: list[Box] = []
    by_rate: dict[float, list[str]] = {}
    for dtype, rate in roofs.peaks.items():
        by_rate.setdefault(rate, []).append(dtype)
    for rate, types in by_rate.items():
        ridge = rate / roofs.bandwidth if roofs.bandwidth else plane.x[0]
        start, end = plane.at(max(ridge, plane.x[0]), rate), plane.at(plane.x[1], rate)
        name = f"{', '.join(types)}: {rate / 1e12:,.4g} TFLOP/s"
        marks.append(segment((*start, *end), MUTED, 1.5))
        marks.append(_name(name, (end[0] - 4, end[1] - 5), align="right", baseline="bottom"))
        width = text_px(name, TEXT_PX)
        taken += [*along(start, end), Box(end[0] - 4 - width, end[1] - 20, end[0], end[1])]
    if by_rate:
        taken.append(Box(0, 0, plane.width, plane.at(plane.x[0], max(by_rate))[1]))  # nothing has a place above
    if roofs.bandwidth:
        highest = max(roofs.peaks.values(), default=plane.y[1] * plane.unit)
        first = max(plane.x[0], plane.y[0] * plane.unit / roofs.bandwidth)
        last = min(plane.x[1], highest / roofs.bandwidth)
        if last > first:
            start, end = plane.at(first, first * roofs.bandwidth), plane.at(last, last * roofs.bandwidth)
            angle = math.degrees(math.atan2(end[1] - start[1], end[0] - start[0]))
            at = (start[0] + (end[0] - start[0]) * 0.4, start[1] + (end[1] - start[1]) * 0.4)
            marks.append(segment((*start, *end), MUTED, 1.5))
            name = f"memory: {roofs.bandwidth / 1e12:,.4g} TB/s"
            lean = math.radians(angle)
            above = (at[0] + 9 * math.sin(lean), at[1] - 9 * math.cos(lean))
            marks.append(_name(name, above, align="center", baseline="middle", angle=angle % 360))
            half = text_px(name, TEXT_PX) / 2
            ends = [(above[0] + s * half * math.cos(lean), above[1] + s * half * math.sin(lean)) for s in (-1, 1)]
            taken += [*along(start, end), *(around(b.left + 3, b.top + 3, 8) for b in along(ends[0], ends[1]))]
    return marks, taken


def segment(ends: Segment, colour: str, width: float) -> alt.Chart:
    """A straight line between two places of the plot (x, y, x, y in px)."""
    x, y, x2, y2 = (alt.value(end) for end in ends)
    rule = alt.Chart(constant({})).mark_rule(color=colour, strokeWidth=width)
    drawn: alt.Chart = rule.encode(x=x, y=y, x2=x2, y2=y2)
    return drawn


def _name(
    text: str,
    at: tuple[float, float],
    *,
    align: Literal["right", "center"],
    baseline: Literal["bottom", "middle"],
    angle: float = 0,
) -> alt.Chart:
    mark = alt.Chart(constant({})).mark_text(align=align, baseline=baseline, angle=angle, fontSize=TEXT_PX, color=MUTED)
    named: alt.Chart = mark.encode(x=alt.value(at[0]), y=alt.value(at[1]), text=alt.value(text))
    return named
