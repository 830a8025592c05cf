"""Flame graph of call stacks, and export of the stacks to a file for speedscope."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final

import altair as alt
import polars as pl

from llmprof import analyze
from llmprof.charts.base.draw import chart_frame, chart_of, float_of, inline, nothing, require, tips
from llmprof.charts.base.theme import (
    BLACK,
    PAPER,
    TEXT_PX,
    exact_scale,
    finish_chart,
    inner,
    layered,
    percent,
)
from llmprof.text import shorten
from llmprof.trace import Trace
from llmprof.trace.storage import files
from llmprof.units import format_ns

_SOURCE: Final = "llmprof.analyze.stacks(trace)"
_COLUMNS: Final = ("stack", "value", "unit")
_ROW: Final = 18
_LEAST_ROWS: Final = 6
_LETTER: Final = 6.8
_TONES: Final = ("#F3D9B1", "#F0C48A", "#EDB873", "#E9A86B", "#F2CFA0", "#E8B98F")


@chart_of(
    "llmprof.analyze.stacks(trace)",
    "stack value unit",
)
def flame(
    frame: Trace | pl.DataFrame,
    *,
    depth: int = 40,
    title: str | None = None,
) -> alt.LayerChart:
    """Flame graph: the width of a frame is the time in it and in its callees; the outermost frames
    are on top.

    Drag to move, and turn the wheel to zoom in. The tooltip has the full name. The frames that all
    stacks begin with are not drawn; the subtitle names them.

    Parameters
    ----------
    frame : Trace or polars.DataFrame
        Rows of ``stacks(trace)``, or some of them.
    depth : int
        Most frames of a stack that are drawn, counted from the first frame in which stacks differ.
    title : str, optional
        Title of the chart; by default it says what is shown.

    Returns
    -------
    altair.LayerChart
        900 px wide.

    Raises
    ------
    AnalysisError
        A column is missing, or there is nothing to draw.
    """
    frame = chart_frame(frame, analyze.stacks)
    rows = frame.filter((pl.col("value") > 0) & (pl.col("stack").list.len() > 0))
    if rows.is_empty():
        raise nothing("flame", "no stack has any time")
    total = float_of(rows["value"].sum())
    unit = rows["unit"][0]
    trunk = trunk_of(rows["stack"])
    nodes = nodes_of(rows.with_columns(pl.col("stack").list.slice(len(trunk))), depth)
    drawn = nodes.filter(pl.col("value") >= total / inner())
    if drawn.is_empty():
        raise nothing("flame", "all stacks are the same frame")

    def amount(value: float) -> str:
        return format_ns(value) if unit == "ns" else f"{value:,.0f} samples"

    labels = [
        _label(name, (inner()) * value / total)
        for name, value in drawn.select("name", "value").rows()
    ]
    data = drawn.select(
        "name",
        x=pl.col("x") / total * 100,
        x2=(pl.col("x") + pl.col("value")) / total * 100,
        middle=(pl.col("x") + pl.col("value") / 2) / total * 100,
        y="level",
        y2=pl.col("level") + 0.94,
        at=pl.col("level") + 0.5,
        tone=(pl.col("name").hash(7) % len(_TONES)).cast(pl.Int64),
        label=pl.Series(labels, dtype=pl.String),
        spent=pl.Series(
            [f"{amount(v)} ({percent(100 * v / total)})" for v in drawn["value"]], dtype=pl.String
        ),
    )
    zoom = alt.selection_interval(bind="scales", encodings=["x"], name="flame_zoom")
    levels = max(_LEAST_ROWS, int(float_of(drawn["level"].max())) + 1)
    base = alt.Chart(inline(data))
    x = alt.X("x:Q", title="share of the whole (%)", scale=exact_scale(0, 100))
    y, tones = (
        alt.Y("y:Q", axis=None, scale=exact_scale(levels, 0)),
        alt.Scale(domain=list(range(len(_TONES))), range=list(_TONES)),
    )
    shade, shown = (
        alt.Color("tone:N", legend=None, scale=tones),
        tips(("name:N", "frame"), ("spent:N", "spent")),
    )
    boxes = base.mark_rect(stroke=PAPER, strokeWidth=0.6, clip=True)
    boxes = boxes.encode(
        x=x, x2=alt.X2("x2:Q"), y=y, y2=alt.Y2("y2:Q"), color=shade, tooltip=shown
    ).add_params(zoom)
    words = base.mark_text(color=BLACK, fontSize=TEXT_PX, clip=True).encode(
        x=alt.X("middle:Q"), y=alt.Y("at:Q"), text=alt.Text("label:N")
    )
    chart = layered(boxes, words).properties(width=inner(), height=_ROW * levels)
    head = f"{amount(total)} in {rows.height:,} call stacks"
    note = (
        "A frame is as wide as what was spent in it and below it. Drag and turn the wheel to look"
        " closer."
    )
    if trunk:
        note += (
            f" All stacks begin with {len(trunk)} frame{'s' * (len(trunk) > 1)}, down to"
            f" {shorten(trunk[-1], 60)}."
        )
    hidden = 1 - float_of(drawn.filter(level=0)["value"].sum()) / total
    if hidden > 0.001:
        note += f" {percent(100 * hidden)} are in frames too narrow to draw."
    return finish_chart(chart, title or head, note)


def _label(name: str, width: float) -> str:
    letters = int((width - 6) / _LETTER)
    short = name.rsplit("/", 1)[-1]
    return "" if letters < 4 else short if len(short) <= letters else short[: letters - 1] + "…"


def trunk_of(stacks: pl.Series) -> list[str]:
    """Frames that all stacks begin with, but never the last one of a stack."""
    shortest = min(stacks, key=len)
    count = 0
    for place in range(max(0, len(shortest) - 1)):
        if stacks.list.get(place).n_unique() > 1:
            break
        count = place + 1
    return list(shortest[:count])


def nodes_of(rows: pl.DataFrame, depth: int) -> pl.DataFrame:
    """``name, level, x, value``: frames of all stacks side by side; equal first frames are
    merged.
    """
    sums = rows.group_by("stack").agg(pl.sum("value"))
    order = sums.with_columns(_text=pl.col("stack").list.join("\x00")).sort("_text")
    order = order.with_columns(x=pl.col("value").cum_sum() - pl.col("value"))
    levels = []
    for level in range(min(depth, int(float_of(order["stack"].list.len().max())))):
        reach = order.filter(pl.col("stack").list.len() > level)
        levels.append(
            reach.with_columns(_head=pl.col("stack").list.head(level + 1).list.join("\x00"))
            .group_by("_head", maintain_order=True)
            .agg(
                name=pl.col("stack").list.get(level).first(),
                x=pl.min("x"),
                value=pl.sum("value"),
            )
            .select("name", "x", "value", level=pl.lit(level))
        )
    return pl.concat(levels)


def speedscope(
    frame: pl.DataFrame,
    path: str | os.PathLike[str],
    *,
    name: str = "llmprof",
    overwrite: bool = False,
) -> Path:
    """Write call stacks as a file for https://www.speedscope.app, which also runs without a
    network; return its path.

    Parameters
    ----------
    frame : polars.DataFrame
        Rows of ``stacks(trace)``; each rank and thread becomes a profile.
    path : path
        File to write, usually ``*.speedscope.json``.
    name : str
        Name of the recording.
    overwrite : bool
        Whether a file that exists is replaced; one that was read as an input never is.

    Raises
    ------
    AnalysisError
        A column is missing, or there is no row.
    OutputError
        The file exists or cannot be written.
    """
    return files.write_output(path, speedscope_text(frame, name=name), overwrite=overwrite)


def speedscope_text(frame: pl.DataFrame, *, name: str = "llmprof") -> str:
    """Content of a file for speedscope, as :func:`speedscope` writes it."""
    require(frame, (*_COLUMNS, "rank", "thread"), chart="speedscope", made_by=_SOURCE)
    frames = (
        frame.select(pl.col("stack").list.explode().unique(maintain_order=True))
        .to_series()
        .to_list()
    )
    number_of = {text: place for place, text in enumerate(frames)}
    profiles: list[dict[str, Any]] = []
    for (rank, thread), rows in frame.partition_by(
        "rank", "thread", as_dict=True, maintain_order=True
    ).items():
        weights = [int(value) for value in rows["value"]]
        profiles.append(
            {
                "type": "sampled",
                "name": (
                    f"rank {rank}, thread {thread}"
                    if thread is not None
                    else f"rank {rank}, all threads"
                ),
                "unit": "nanoseconds" if rows["unit"][0] == "ns" else "none",
                "startValue": 0,
                "endValue": sum(weights),
                "samples": [
                    [number_of[text] for text in stack] for stack in rows["stack"].to_list()
                ],
                "weights": weights,
            }
        )
    document = {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "shared": {"frames": [{"name": text} for text in frames]},
        "profiles": profiles,
        "name": name,
        "exporter": "llmprof",
    }
    return json.dumps(document)
