"""Charts of counters: samples of the monitors during a run."""

from __future__ import annotations

from typing import Final, NamedTuple

import altair as alt
import polars as pl

from llmprof.charts.base import compose, draw, theme
from llmprof.trace import Trace
from llmprof.units import NS_PER_S

_FIRST: Final = (
    "gpu.utilization",
    "gpu.memory_used",
    "gpu.power",
    "gpu.sm_clock",
    "gpu.temperature",
    "gpu.memory_utilization",
    "gpu.nvlink_received",
    "gpu.nvlink_sent",
    "gpu.pcie_received",
    "gpu.pcie_sent",
    "run.cpu",
    "run.delay",
    "run.memory",
    "cpu.utilization",
    "memory.used",
    "disk.read",
    "disk.written",
    "network.received",
    "network.sent",
)
_QUIET: Final = ("gpu.throttle.gpu_idle", "gpu.throttle_reasons")
"""Counters that are not drawn: the flag of an idle GPU, and a bit mask."""

_SWITCH: Final = "gpu.throttle."
_PREFIXES: Final = {
    "B": ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B")),
    "B/s": ((1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (1, "B/s")),
    "Hz": ((1e6, "MHz"), (1, "Hz")),
    "ns": ((1e9, "s"), (1e6, "ms"), (1e3, "us"), (1, "ns")),
}


class CounterScale(NamedTuple):
    """How the values of a counter are written: divided by ``size``, under a title with the unit."""

    size: float
    title: str
    percent: bool
    switch: bool


def lines_of(frame: pl.DataFrame) -> pl.DataFrame:
    """Samples with the name of their ``line``: the GPU or other device, or the host; devices
    first.
    """
    finite = frame.filter(pl.col("value").is_finite())
    if "device" not in finite.columns:
        finite = finite.with_columns(device=pl.lit(None, pl.Int32))
    what = "GPU" if finite["name"].str.starts_with("gpu.").any() else "device"
    line = (
        pl.when(pl.col("device").is_null())
        .then(pl.lit("host"))
        .otherwise(pl.format(f"{what} {{}}", "device"))
    )
    return finite.with_columns(line=line).sort(
        "device", "time_ns", nulls_last=True, maintain_order=True
    )


def counter_scale(rows: pl.DataFrame) -> CounterScale:
    """Largest unit in which the greatest value of a counter is at least 1."""
    name, unit = str(rows["name"][0]), rows["unit"][0] or ""
    greatest = draw.float_of(rows["value"].abs().max())
    prefixes = _PREFIXES.get(unit, ((1, "" if unit == "1" else unit),))
    size, symbol = next((p for p in prefixes if greatest >= p[0]), prefixes[-1])
    return CounterScale(
        size, f"{name} ({symbol})" if symbol else name, unit == "%", name.startswith(_SWITCH)
    )


def condense(rows: pl.DataFrame, most: int) -> pl.DataFrame:
    """At most ``most`` points a line:

    ``line, time`` (s), and the least, mean and greatest value of each.
    """
    width = max(
        1,
        -(
            -int(draw.float_of(rows["time_ns"].max()) - draw.float_of(rows["time_ns"].min()) + 1)
            // most
        ),
    )
    bins = (pl.col("time_ns") // width).alias("bin")
    if rows.group_by("line").len()["len"].max() <= most:  # type: ignore[operator]
        bins = pl.col("time_ns").alias("bin")
    value = pl.col("value")
    points = rows.group_by("line", bins, maintain_order=True).agg(
        time=pl.mean("time_ns") / NS_PER_S,
        low=value.min(),
        mean=value.mean(),
        high=value.max(),
    )
    return points.drop("bin")


def _throttled(frame: pl.DataFrame) -> str:
    """Reasons for lower clocks with the share of their samples, as text; empty if there is none."""
    reasons = frame.filter(pl.col("name").str.starts_with(_SWITCH) & ~pl.col("name").is_in(_QUIET))
    shares = reasons.group_by("name").agg(share=pl.mean("value")).filter(pl.col("share") > 0)
    words = [
        f"{name.removeprefix(_SWITCH)} ({theme.percent(100 * share)} of the samples)"
        for name, share in shares.sort("share", "name", descending=[True, False]).iter_rows()
    ]
    return ", ".join(words)


def _headline(frame: pl.DataFrame) -> str:
    """How busy GPUs or processors were."""
    for name, who in (("gpu.utilization", "GPU"), ("cpu.utilization", "processors")):
        rows = lines_of(frame.filter(name=name))
        if rows.height:
            means = rows.group_by("line").agg(pl.mean("value"))["value"]
            seconds = (
                draw.float_of(frame["time_ns"].max()) - draw.float_of(frame["time_ns"].min())
            ) / NS_PER_S
            several = rows["line"].n_unique() > 1 or who == "processors"
            subject = (
                f"{who}s are" if who == "GPU" and several else f"{who} {'are' if several else 'is'}"
            )
            return f"The {subject} busy {theme.percents(means)} of the {seconds:,.1f} s sampled"
    count = frame["name"].n_unique()
    return f"{count} counter{'s' * (count > 1)} over the run"


_SPACE, _AXIS, _HEIGHT, _MOST_PANELS = 26, 44, 92, 15
_LINES = (
    theme.COMPUTE,
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#8B6F47",
    theme.CAUSES["sync"],
    "#B2182B",
)


@draw.chart_of(
    "trace.counters of a run with monitor_hz, or of a monitor's file",
    "time_ns name value unit",
)
def counters(frame: Trace | pl.DataFrame, *, title: str | None = None) -> alt.VConcatChart:
    """A small panel for each counter over the time of the run, a line for each device.

    One axis of time for all panels, on which 0 is the start of the trace. Where there are more
    samples than pixels, lines are means and a band goes from the least to the greatest value.

    Parameters
    ----------
    frame : Trace or polars.DataFrame
        Counters of a trace. Those that are always zero, and those beyond the first 15, are named
        below the title instead.
    title : str, optional
        Title of the chart; by default it says what is shown.

    Returns
    -------
    altair.VConcatChart
        900 px wide.

    Raises
    ------
    AnalysisError
        A column is missing, or there is nothing but zeros.
    """
    frame = frame.counters if isinstance(frame, Trace) else frame
    chart, left = counters_panel(frame, theme.inner())
    if chart is None:
        raise draw.nothing("counters", "all counters stay at zero")
    early = "; the dashed line is the start of the trace, before it the engine gets ready"
    notes = [
        f"{frame.height:,} samples{early if draw.float_of(frame['time_ns'].min()) < 0 else ''}."
    ]
    if slowed := _throttled(frame):
        notes.append(f"The clocks were held back by {slowed}.")
    moving = frame.filter(pl.col("value") != 0)["name"]
    if still := sorted(set(frame["name"].unique()) - set(moving.unique())):
        notes.append(f"Always zero: {', '.join(still)}.")
    if left:
        notes.append(f"Not shown: {', '.join(left)}.")
    return theme.finish_chart(chart, title or _headline(frame), notes)


def counters_panel(
    frame: pl.DataFrame, width: int, most: int = _MOST_PANELS
) -> tuple[alt.VConcatChart | None, list[str]]:
    """Panels side by side, and the names of the counters that were left out."""
    finite = frame.filter(
        pl.col("value").is_finite() & (pl.col("value") != 0) & ~pl.col("name").is_in(_QUIET)
    )
    names = theme.in_order(finite["name"], _FIRST)  # the most informative first
    if not names:
        return None, []
    shown, left = names[:most], names[most:]
    rows = lines_of(frame.filter(pl.col("name").is_in(shown)))
    low, high = (
        draw.float_of(rows["time_ns"].min()) / NS_PER_S,
        draw.float_of(rows["time_ns"].max()) / NS_PER_S,
    )
    domain = (low, high if high > low else low + 0.1)
    table = {
        line: _LINES[i % len(_LINES)]
        for i, line in enumerate(rows["line"].unique(maintain_order=True))
    }
    across = 1 if theme.is_narrow() else 3 if len(shown) > 4 else min(2, len(shown))
    plot = (width + _SPACE) // across - _SPACE - _AXIS
    panels = [
        _panel(rows.filter(name=name), plot, domain, table, bottom=i + across >= len(shown))
        for i, name in enumerate(shown)
    ]
    grid = theme.panel_rows(panels, across, spacing=_SPACE + _AXIS)
    return compose.vconcat(*grid, spacing=24), left


def _panel(
    rows: pl.DataFrame,
    plot: int,
    domain: tuple[float, float],
    table: dict[str, str],
    *,
    bottom: bool,
) -> alt.LayerChart:
    scale = counter_scale(rows)
    data = condense(rows, plot).with_columns(pl.col("low", "mean", "high") / scale.size)
    title = "time (s)" if bottom else None
    x_axis = theme.titled_axis(title, labels=bottom, ticks=bottom, tickCount=4, grid=False)
    x = alt.X("time:Q", scale=alt.Scale(domain=list(domain), nice=False), axis=x_axis)
    ends, y_axis = _ends(data, scale)
    y_scale = alt.Scale(domain=list(ends), nice=False)
    shade = theme.colour_encoding("line", table)
    if len(table) > 1:
        for key, value in {
            "symbolType": "stroke",
            "symbolStrokeWidth": 3,
            "symbolOpacity": 1,
        }.items():
            shade["legend"][key] = value
    else:
        shade["legend"] = None
    marks = []
    if domain[0] < 0 < domain[1]:
        rule = alt.Chart(draw.constant({"time": 0})).mark_rule(
            color=theme.MUTED, strokeDash=[3, 3], strokeWidth=1
        )
        marks.append(rule.encode(x=x))
    if not data["low"].equals(data["high"]):
        low = alt.Y("low:Q", scale=y_scale, axis=y_axis)
        band = alt.Chart(draw.inline(data)).mark_area(opacity=0.25)
        marks.append(band.encode(x=x, y=low, y2=alt.Y2("high:Q"), color=shade))
    tips = draw.tips(
        "line:N", *((f"{field}:Q", None, ",.4~r") for field in ("time", "low", "mean", "high"))
    )
    mean = alt.Y("mean:Q", scale=y_scale, axis=y_axis)
    # of two lines that lie on each other both are seen
    over = list(table)[1] if len(table) == 2 else ""
    dash = alt.condition(alt.datum.line == over, alt.value([5, 4]), alt.value([1, 0]))
    line = alt.Chart(draw.inline(data)).mark_line(
        strokeWidth=1.6,
        point=data.height < 8,
        interpolate="step-after" if scale.switch else "linear",
    )
    marks.append(line.encode(x=x, y=mean, color=shade, strokeDash=dash, tooltip=tips))
    return theme.layered(*marks, theme.heading_mark(scale.title)).properties(
        width=plot, height=_HEIGHT
    )


def _ends(data: pl.DataFrame, scale: CounterScale) -> tuple[tuple[float, float], alt.Axis]:
    """Ends of the vertical axis, and the axis; shares go to 100 %, switches are on or off."""
    if scale.switch:
        return (-0.05, 1.05), theme.titled_axis(None, values=[0, 1], minExtent=_AXIS - 8)
    low, high = draw.float_of(data["low"].min()), draw.float_of(data["high"].max())
    if scale.percent and low >= 0 and high <= 100:
        return (0.0, 100.0), theme.titled_axis(None, values=[0, 50, 100], minExtent=_AXIS - 8)
    return (min(0.0, 1.1 * low), 1.1 * high or 1.0), theme.titled_axis(
        None, tickCount=3, minExtent=_AXIS - 8
    )
