"""Charts of device memory: over time, and its holders at the peak."""

from __future__ import annotations

from typing import Final, Literal

import altair as alt
import polars as pl

from llmprof import analyze
from llmprof.charts.base import compose, draw, theme
from llmprof.errors import AtLeastOne
from llmprof.text import shorten
from llmprof.trace import Trace
from llmprof.units import format_bytes

_MOST_POINTS: Final = 3000
_PARTS: Final = {
    "KV cache": "#D55E00",
    "weights": "#0072B2",
    "activations": "#009E73",
    "CUDA graphs": "#CC79A7",
    "temporary": "#8FD3B6",
    "inputs": "#E69F00",
    "gradients": "#56B4E9",
    "optimizer state": "#9C755F",
    "before the recording": "#C3CAD3",
    "unknown": "#7B8794",
}
_OVER_TIME: Final = ("rank", "device", "time_ns", "allocated_bytes", "reserved_bytes")
_SIZES: Final = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B"))


@draw.chart_of(
    'llmprof.analyze.memory(trace, by="time"), or by="holder"',
)
def memory(
    frame: Trace | pl.DataFrame,
    *,
    by: Literal["time", "holder"] = "time",
    top: AtLeastOne = 15,
    title: str | None = None,
) -> alt.VConcatChart | alt.LayerChart:
    """Allocated and reserved memory over time, a panel for each device of each rank; or bars of the
    holders of memory at one moment, coloured by purpose.

    In a long recording each pixel shows the largest value of its time.

    Parameters
    ----------
    frame : Trace or polars.DataFrame
        What was recorded, or rows of ``analyze.memory(trace, by="time"), or by="holder"``.
    by : {"time", "holder"}
        What is drawn of a trace; a frame says it itself.
    top : int
        Most bars of holders; one more bar sums up all others.
    title : str, optional
        Title of the chart; by default it says what is shown.

    Returns
    -------
    altair.VConcatChart | altair.LayerChart
        900 px wide.

    Raises
    ------
    AnalysisError
        A column is missing, or nothing is allocated.
    """
    frame = draw.chart_frame(frame, analyze.memory, by=by)
    if "holder" in frame.columns:
        return _held(frame, top, title)
    draw.require(frame, _OVER_TIME, chart="memory")
    highest = frame["allocated_bytes"].max()
    if not draw.float_of(highest):
        raise draw.nothing("memory", "nothing is allocated at any time")
    size, symbol = _unit(
        max(draw.float_of(highest), draw.float_of(frame["reserved_bytes"].max() or 0))
    )
    first, last = (
        draw.float_of(frame["time_ns"].min()),
        draw.float_of(frame["time_ns"].max()),
    )
    unit = theme.time_unit(last - first)
    whole = alt.Scale(
        domain=[0, (last - first) / unit.ns or 1], nice=False
    )  # of all panels, so that they compare
    panels = []
    for part in frame.partition_by("rank", "device", maintain_order=True):
        rank, device = part.select("rank", "device").row(0)
        where = f"rank {rank}" + ("" if device is None else f", device {device}")
        rows = _thinned(part)
        until = rows.tail(1).with_columns(time_ns=pl.lit(last).cast(rows["time_ns"].dtype))
        drawn = pl.concat([rows, until]).with_columns(
            t=(pl.col("time_ns") - first) / unit.ns,
            allocated=pl.col("allocated_bytes") / size,
            reserved=pl.col("reserved_bytes") / size,
        )
        base = alt.Chart(draw.inline(drawn.select("t", "allocated", "reserved")))
        x = alt.X(
            "t:Q", title=f"time ({unit.symbol})", scale=whole, axis=alt.Axis(format=theme.NUMBER)
        )
        y = alt.Y("allocated:Q", title=symbol, stack=None, axis=alt.Axis(format=theme.NUMBER))
        area = base.mark_area(
            interpolate="step-after",
            color=theme.COMPUTE,
            opacity=0.35,
            line={"color": theme.COMPUTE, "size": 1},
        )
        marks = [area.encode(x=x, y=y)]
        if drawn["reserved"].count():
            line = base.mark_line(
                interpolate="step-after", color=theme.DURATION, strokeDash=[4, 3], size=1.4
            )
            marks.append(line.encode(x=x, y=alt.Y("reserved:Q", title=symbol)))
        peak = part.row(int(draw.float_of(part["allocated_bytes"].arg_max())), named=True)
        at_peak = pl.DataFrame(
            {
                "t": [(peak["time_ns"] - first) / unit.ns],
                "v": [peak["allocated_bytes"] / size],
                "label": ["peak"],
            }
        )
        dot = alt.Chart(draw.inline(at_peak))
        marks.append(
            dot.mark_point(filled=True, color=theme.INK, size=40).encode(
                x=alt.X("t:Q"), y=alt.Y("v:Q")
            )
        )
        text = f"{where}: at most {format_bytes(peak['allocated_bytes'])}"
        panels.append(
            theme.layered(*marks).properties(
                width=theme.inner() - 60, height=150, title=theme.panel_heading(text)
            )
        )
    chart = compose.vconcat(*panels, spacing=22)
    head = f"At most {format_bytes(draw.float_of(highest))} are allocated"
    held = frame["reserved_bytes"].max()
    if held is not None:
        head += f", and {format_bytes(draw.float_of(held))} reserved"
    words = "Filled: what is allocated."
    if held is not None:
        words += " Dashed: what the allocator has taken from the device."
    return theme.finish_chart(chart, title or head, words)


def _unit(most: float) -> tuple[int, str]:
    return next((size, symbol) for size, symbol in _SIZES if most >= size or size == 1)


def _thinned(rows: pl.DataFrame) -> pl.DataFrame:
    """The row with most allocated memory in each of some thousand intervals of time."""
    if rows.height <= _MOST_POINTS:
        return rows
    first, last = (
        draw.float_of(rows["time_ns"].min()),
        draw.float_of(rows["time_ns"].max()),
    )
    bins = rows.with_columns(
        _bin=((pl.col("time_ns") - first) * (_MOST_POINTS // 2) // max(1, last - first))
    )
    kept = bins.group_by("_bin", maintain_order=True).agg(
        pl.all().get(pl.col("allocated_bytes").arg_max()), _low=pl.min("allocated_bytes")
    )
    return kept.drop("_bin", "_low").sort("time_ns")


def _held(frame: pl.DataFrame, top: int, title: str | None) -> alt.LayerChart:
    """Bars of the holders of memory."""
    draw.require(frame, ("part", "holder", "bytes", "blocks"), chart="memory")
    rows = frame.with_columns(part=pl.col("part").fill_null("unknown")).filter(pl.col("bytes") > 0)
    if rows.is_empty():
        raise draw.nothing("memory", "nothing is held")
    total = draw.float_of(rows["bytes"].sum())
    named = rows.with_columns(holder=pl.coalesce("holder", "part"))
    sums = named.group_by("part", "holder").agg(pl.sum("bytes"), pl.sum("blocks"))
    sums = sums.sort("bytes", "holder", descending=[True, False])
    kept, rest = sums.head(top), sums.slice(top)
    if rest.height:
        others = {"part": pl.lit("unknown"), "holder": pl.lit(f"{rest.height} others")}
        kept = pl.concat(
            [kept, rest.select(**others, bytes=pl.sum("bytes"), blocks=pl.sum("blocks"))]
        )
    room = 130 if theme.is_narrow() else 340
    size, symbol = _unit(draw.float_of(kept["bytes"].max()))
    labels = [f"{format_bytes(n)}, {theme.percent(100 * n / total)}" for n in kept["bytes"]]
    rows_named = [
        shorten(name, room // 7) + "\u200b" * place for place, name in enumerate(kept["holder"])
    ]
    texts = {
        "row": pl.Series(rows_named, dtype=pl.String),
        "label": pl.Series(labels, dtype=pl.String),
    }
    shown = kept.with_columns(value=pl.col("bytes") / size, **texts)
    present = [name for name in _PARTS if name in set(shown["part"])]
    extra = [name for name in shown["part"].unique().sort() if name not in _PARTS]
    scale = alt.Scale(
        domain=[*present, *extra], range=[_PARTS[n] for n in present] + ["#4E79A7"] * len(extra)
    )
    base = alt.Chart(draw.inline(shown.select("row", "holder", "part", "value", "label", "blocks")))
    y = alt.Y("row:N", sort=None, title=None, axis=alt.Axis(labelLimit=room - 10))
    widest = draw.float_of(shown["value"].max())
    room_of = alt.Scale(domain=[0, widest * (2.4 if theme.is_narrow() else 1.25)])
    x = alt.X("value:Q", title=symbol, scale=room_of, axis=alt.Axis(format=theme.NUMBER))
    legend = alt.Legend(title=None, orient="top", columns=2 if theme.is_narrow() else 5)
    shade, tips = (
        alt.Color("part:N", scale=scale, legend=legend),
        draw.tips("holder:N", "part:N", "label:N", "blocks:Q"),
    )
    bars = base.mark_bar().encode(x=x, y=y, color=shade, tooltip=tips)
    words = base.mark_text(align="left", dx=5, color=theme.INK).encode(
        x=x, y=y, text=alt.Text("label:N")
    )
    by_part = (
        rows.group_by("part").agg(pl.sum("bytes")).sort("bytes", "part", descending=[True, False])
    )
    part, most = by_part.row(0)
    what = {
        "before the recording": "from before the recording",
        "unknown": "of unknown holders",
    }.get(part, part)
    head = f"{theme.percent(100 * most / total)} of {format_bytes(total)} is {what}"
    chart = compose.overlay(bars, words).properties(
        width=theme.inner() - room, height=24 * kept.height
    )
    note = (
        "By who allocated it: the innermost frame of the program, or the operator that was running."
    )
    return theme.finish_chart(chart, title or head, note)
