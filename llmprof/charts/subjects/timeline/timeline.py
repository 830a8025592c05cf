"""Timeline chart: what each stream of each rank did in a window."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import altair as alt
import polars as pl

from llmprof.analyze.edge import whole_steps
from llmprof.analyze.events import typical_step
from llmprof.charts.base import draw, theme
from llmprof.charts.subjects.timeline import layout
from llmprof.errors import NotNegative, Window
from llmprof.label.intervals import union_length
from llmprof.label.parts import selection
from llmprof.trace import Trace
from llmprof.units import format_ns

_COLUMNS = ("rank", "stream", "start_ns", "dur_ns", "name", "step", "phase", "layer")
MAX_RANKS = 16
_GREY = {
    "stream": "Grey: idle.",
    "stage": "A lane is a stage.",
    "category": "A lane is a kernel category.",
}


@draw.chart_of("trace.events")
def timeline(
    frame: Trace | pl.DataFrame,
    *,
    rank: int | Iterable[int] | None = None,
    step: int | Iterable[int] | Literal["typical"] | None = None,
    phase: str | Iterable[str] | None = None,
    layer: int | Iterable[int] | None = None,
    stage: str | Iterable[str] | None = None,
    window: Window | None = None,
    lane: str = "stream",
    color: str = "stage",
    max_bars: NotNegative = 4_000,
    title: str | None = None,
) -> alt.LayerChart:
    """Timeline of a window: a lane for each stream, a bar for each event, strips for the steps and
    layers.

    A bar has at least one pixel. A lane that would then look much busier than it was, and each lane
    if there are more than ``max_bars`` events, is divided into slices of a few pixels, as high as
    their busy share. The subtitle counts the events that are shown and merged.

    Parameters
    ----------
    frame : Trace or polars.DataFrame
        What was recorded, or rows of ``trace.events``.
    rank, step, phase, layer, stage : optional
        Events to draw, by the values of their columns: one or several of each. Of a trace,
        ``step="typical"`` is the steady decode step of median length. One step is drawn until the
        next one begins, if nothing else is chosen.
    window : (start_ns, end_ns), optional
        What to draw, in ns from the start of the trace; the whole frame if not given.
    lane : {"stream", "stage", "category"}
        What each lane of a rank stands for.
    color : {"stage", "category"}
        What the colour means.
    max_bars : int
        Most events to draw one by one.
    title : str, optional
        Title of the chart; by default it says what is shown.

    Returns
    -------
    altair.LayerChart
        900 px wide.

    Raises
    ------
    AnalysisError
        A column is missing, or no event lies in the window.

    Examples
    --------
    >>> chart = charts.timeline(trace, step=3)
    """
    if isinstance(frame, Trace):
        step = typical_step(frame) if step == "typical" else step
        if isinstance(step, int) and all(one is None for one in (layer, stage, window)):
            window = step_window(frame, step)
        frame = frame.events
    chosen = {"rank": rank, "step": step, "phase": phase, "layer": layer, "stage": stage}
    draw.check_choice(lane, ("stream", "stage", "category"), chart="timeline", option="lane")
    draw.check_choice(color, ("stage", "category"), chart="timeline", option="color")
    draw.require(frame, dict.fromkeys((*_COLUMNS, lane, color)), chart="timeline")
    frame = selection(frame, chosen)
    frame, _, note = draw.ranks_shown(
        frame.with_columns(pl.col(color).fill_null("other")), MAX_RANKS
    )
    lo, hi = draw.extent(frame) if window is None else (round(window[0]), round(window[1]))
    events = layout.clip_events(frame, (lo, hi))
    if hi <= lo or events.is_empty():
        raise draw.nothing("timeline", f"no event lies between {lo:,} and {hi:,} ns")
    events = events.with_columns(key=pl.col(lane).cast(pl.String))
    on_host = "source" in events.columns and (events["source"] == "op").all()
    stream = "thread" if on_host else "stream"  # operators of the host stand in for a device
    labels = [layout.lane_label(key, lane, stream) for key in events["key"].unique()]
    plot = (
        theme.inner()
        - 12
        - round(max(theme.text_px(label, theme.TEXT_PX) for label in (*labels, "rank 00")))
    )
    view = layout.DrawnWindow(lo, hi, theme.time_unit(hi - lo), plot)
    palette = theme.colours(color, events[color].unique())
    seen = layout.survey(events, view, max_bars)
    order = list(theme.STAGES if lane == "stage" else theme.CATEGORIES)
    lanes, heads = layout.place_lanes(seen, lane, order, rows=2, stream=stream)
    layers = layout.layer_strip(events, heads, view)
    if layers is None:
        lanes, heads = layout.place_lanes(seen, lane, order, rows=1, stream=stream)
    keyed = events.join(lanes.drop("label"), on=["rank", "key"], nulls_equal=True)
    few, many = keyed.filter(~pl.col("crowded")), keyed.filter("crowded")
    x = theme.exact_scale(0, (hi - lo) / view.unit.ns, zero=False)
    bottom = draw.float_of(heads["bottom"].max())
    y = theme.exact_scale(0, bottom, reverse=True)
    into = theme.time_unit(lo)
    begin = f"{lo / into.ns:,.3f}".rstrip("0").rstrip(".")
    drawing = _Drawing(
        x, y, plot, f"time from {begin} {into.symbol} into the trace ({view.unit.symbol})"
    )
    parts: list[alt.Chart | alt.LayerChart] = [
        drawing.lanes(lanes),
        drawing.strip(layout.step_strip(events, heads, view)),
    ]
    if layers is not None:
        parts.append(drawing.strip(layers))
    if few.height:
        shown = layout.bars(few, view, palette, color)
        tips = {
            "name": "name",
            "dur_ns": "duration (ns)",
            "step": "step",
            "phase": "phase",
            "layer": "layer",
        }
        parts += [
            drawing.bars(shown, color, palette, tips),
            drawing.centred(shown.drop_nulls("label")),
        ]
    width = layout.slice_ns(seen, view)
    if many.height:
        shown = layout.slices(many, view, color, list(palette), width)
        tips = {"busy_ns": "time in the slice (ns)", "share": "share"}
        parts.append(drawing.bars(shown, color, palette, tips))
    chart = theme.layered(*parts, drawing.names(lanes, heads)).properties(width=plot, height=bottom)
    # dragged along the time, and turned nearer with Shift: without it the wheel is the page's
    nearer = alt.selection_interval(
        name=f"nearer_{abs(lo)}_{abs(hi)}",
        bind="scales",
        encodings=["x"],
        zoom="wheel![event.shiftKey]",
    )
    chart = chart.add_params(nearer)
    first, *more = _counts(few.height, many.height, frame.height, lanes, format_ns(width))
    return theme.finish_chart(
        chart,
        title or _headline(events, color, hi - lo),
        [f"{_GREY[lane]} {first}", *more, note],
    )


def step_window(trace: Trace, step: int) -> Window | None:
    """Time of a step on all ranks, until the next one begins; None if nothing ran in it."""
    rows = whole_steps(trace).filter(step=step).drop_nulls("start_ns")
    return draw.extent(rows) if rows.height else None


def _counts(few: int, many: int, total: int, lanes: pl.DataFrame, width: str) -> list[str]:
    """Sentence on the number of events that are drawn as bars, and that are merged."""
    merged = f"merged into slices of {width}, each as high as its lane was busy."
    if not few:
        return [f"{many:,} of {total:,} events, {merged}"]
    bars = (
        f"{few:,} events, a bar each." if not many else f"{few:,} of {total:,} events, a bar each."
    )
    crowded = int(lanes["crowded"].sum())
    return (
        [bars, f"{many:,} more events, on {crowded} of {lanes.height} lanes, {merged}"]
        if many
        else [bars]
    )


def _headline(events: pl.DataFrame, by: str, span_ns: int) -> str:
    """Sentence on the name that fills most of the window, and its share on the ranks that are
    drawn; on what nothing fills, where that is more on all of them.
    """
    length = pl.col("to_ns") - pl.col("from_ns")
    name = events.group_by(by).agg(ns=length.sum()).sort("ns", by, descending=[True, False])[by][0]
    shares = events.group_by("rank").agg(
        share=100 * length.filter(pl.col(by) == name).sum() / span_ns
    )["share"]
    spans = events.select("rank", start_ns="from_ns", dur_ns=length)
    idle = 100 - 100 * union_length(spans, ["rank"])["busy_ns"] / span_ns
    what = f"{name} fills"
    if draw.float_of(idle.min()) > draw.float_of(shares.max()):
        shares, what = idle, "nothing runs in"
    lowest, highest = (
        theme.percent(draw.float_of(figure)) for figure in (shares.min(), shares.max())
    )
    where = f"{shares.len()} ranks" if shares.len() > 1 else f"rank {events['rank'][0]}"
    steps = events["step"].drop_nulls().unique().sort().to_list()
    when = (
        ""
        if not steps
        else f" in step {steps[0]}"
        if len(steps) == 1
        else f" in steps {steps[0]} to {steps[-1]}"
    )
    whose = "a rank's time" if shares.len() > 1 else "the time"
    return (
        f"{format_ns(span_ns)} of {where}{when}: {what} {theme.range_text(lowest, highest)}"
        f" of {whose}"
    )


class _Drawing:
    """The marks of a timeline on shared scales."""

    def __init__(self, x: alt.Scale, y: alt.Scale, plot: int, axis_title: str) -> None:
        axis = theme.titled_axis(axis_title, grid=False, tickCount=4 if theme.is_narrow() else 10)
        self._x = alt.X("start:Q", scale=x, axis=axis)
        self._y = alt.Y("top:Q", scale=y, axis=None)
        self._box: dict[str, Any] = {
            "x": self._x,
            "x2": alt.X2("end:Q"),
            "y": self._y,
            "y2": alt.Y2("bottom:Q"),
        }
        self._plot = plot

    def lanes(self, lanes: pl.DataFrame) -> alt.Chart:
        """Light background of each lane; where it stays visible, the lane is idle."""
        base = alt.Chart(draw.inline(lanes.select("top", "bottom"))).mark_rect(color=theme.LANE)
        drawn: alt.Chart = base.encode(
            x=alt.XValue(0), x2=alt.X2Value(self._plot), y=self._y, y2=alt.Y2("bottom:Q")
        )
        return drawn

    def bars(
        self, shown: pl.DataFrame, by: str, palette: dict[str, str], tips: dict[str, str]
    ) -> alt.Chart:
        """Bars or slices, coloured."""
        hidden = [c for c in ("label", "ink") if c in shown.columns]
        base = alt.Chart(draw.inline(shown.drop(hidden))).mark_rect(
            clip=True, stroke=theme.PAPER, strokeWidth=0
        )
        tooltip = draw.tips(f"{by}:N", "rank:Q")
        kinds = {field: "Q" if shown.schema[field].is_numeric() else "N" for field in tips}
        tooltip += draw.tips(*((f"{field}:{kinds[field]}", text) for field, text in tips.items()))
        outlined = {"test": "datum.px > 5", "value": 0.7}
        wide = {"strokeWidth": alt.StrokeWidthValue(0, condition=outlined)} if "px" in shown else {}
        drawn: alt.Chart = base.encode(
            **self._box, **wide, color=theme.colour_encoding(by, palette), tooltip=tooltip
        )
        return drawn

    def strip(self, strip: layout.Strip) -> alt.LayerChart:
        """Strip of steps or layers with its texts."""
        fill = alt.Fill("colour:N", scale=None, legend=None)
        columns = ["rank", "step", "to_step", "phase", "start", "end", "top", "bottom", "colour"]
        tooltip = draw.tips("rank:Q", "phase:N", "step:Q")
        if "layer" in strip.spans.columns and strip.spans["layer"].count():
            columns, tooltip = [*columns, "layer"], [*tooltip, alt.Tooltip("layer:Q")]
        else:
            tooltip.append(alt.Tooltip("to_step:Q", title="to step"))
        line = 0.7 if len(strip.texts) else 0.0
        boxes = alt.Chart(draw.inline(strip.spans.select(columns))).mark_rect(
            clip=True, stroke=theme.PAPER, strokeWidth=line
        )
        return theme.layered(
            boxes.encode(**self._box, fill=fill, tooltip=tooltip), self.centred(strip.texts)
        )

    def centred(self, texts: pl.DataFrame) -> alt.LayerChart:
        """Texts in the middle of their spans."""
        middle = [
            ((pl.col(a) + pl.col(b)) / 2).alias(a) for a, b in (("start", "end"), ("top", "bottom"))
        ]
        return theme.layered(*draw.centred(texts.select("label", "ink", *middle), self._x, self._y))

    def names(self, lanes: pl.DataFrame, heads: pl.DataFrame) -> alt.LayerChart:
        """Names of ranks and lanes left of the plot."""
        middle = lanes.select("label", top=(pl.col("top") + pl.col("bottom")) / 2)
        ranks = heads.select("label", top=pl.col("top") + layout.STRIP / 2)
        lane = alt.Chart(draw.inline(middle)).mark_text(
            align="right", baseline="middle", fontSize=theme.TEXT_PX, color=theme.MUTED
        )
        rank = alt.Chart(draw.inline(ranks)).mark_text(
            align="right",
            baseline="middle",
            fontSize=theme.TEXT_PX,
            color=theme.INK,
            fontWeight="bold",
        )
        return theme.layered(
            *(
                mark.encode(x=alt.XValue(-8), y=self._y, text=alt.Text("label:N"))
                for mark in (lane, rank)
            )
        )
