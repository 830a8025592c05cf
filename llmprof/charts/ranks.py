"""Charts of many ranks: heat maps of their steps and of their use over time, and how often each group arrives last."""

from __future__ import annotations

from typing import Final

import altair as alt
import polars as pl

from llmprof.charts.base import compose, draw, theme
from llmprof.charts.layers import colour_of_time, end_of_scale, phase_strip
from llmprof.text import distinct, shorten
from llmprof.units import format_ns, format_share

MEANING: Final = {
    "step_ns": ("A step takes", "from the first to the last event of the rank's step"),
    "wait_ns": ("Waiting in a step", "waiting in collectives for ranks that came later"),
    "idle_ns": ("Idle time in a step", "time in which nothing of the rank runs"),
    "exposed_communication_ns": ("Exposed communication in a step", "communication with no compute beside it"),
}
"""Values that the heat map can show, each with the beginning of its title and its meaning."""

MAX_ROWS, MAX_COLUMNS = 128, 75
MOST_LINES, MOST_NAMES = 32, 16
"""Most nodes whose lines can be told apart, and whose names fit below each other."""
_OFFSET: Final = 84


@draw.chart_of("llmprof.analyze.rank_steps(trace)", refuses="no value is known")
def rank_heatmap(
    frame: pl.DataFrame, *, value: str = "step_ns", groups: pl.DataFrame | None = None, title: str | None = None
) -> alt.LayerChart:
    """Heat map of ranks over steps: which ranks are slow, which wait, and when.

    Of more than 128 ranks a row shows the largest value of several, so that a single late rank stays visible; of more
    than 75 steps a column is a median of several. The scale of colours is that of :func:`layer_heatmap`.

    Parameters
    ----------
    value : {"step_ns", "wait_ns", "idle_ns", "exposed_communication_ns"}
        What the colour shows.
    groups : polars.DataFrame, optional
        Rows of ``rank_groups(trace)``: lines divide the known nodes, and tooltips name them.
    """
    draw.check_choice(value, MEANING, chart="rank_heatmap", option="value")
    draw.require(frame, ("rank", "step", "phase", value), chart="rank_heatmap")
    if frame[value].drop_nulls().is_empty():
        raise draw.nothing("rank_heatmap", f"{value} is not known of any step")
    cells, size, width = _cells(frame, value)
    times = cells["ns"].drop_nulls()
    cap = end_of_scale(times)
    unit = theme.time_unit(cap)
    nodes = None if groups is None else groups.select(row=pl.col("rank") // size * size, node="node").drop_nulls()
    ranks = pl.col("row").cast(pl.String)
    if size > 1:
        last = (pl.col("row") + size - 1).clip(0, int(draw.number(frame["rank"].max())))
        ranks = pl.format("{} to {}", "row", last)
    cells = cells.with_columns(time=pl.col("ns") / unit.ns, ranks=ranks)
    if nodes is not None:
        names = nodes.group_by("row").agg(pl.col("node").unique(maintain_order=True).str.join(", "))
        cells = cells.join(names, on="row", how="left", maintain_order="left")
    count = 0 if nodes is None else nodes["node"].n_unique()
    lined, named = 1 < count <= MOST_LINES, 1 < count <= MOST_NAMES
    notes = [f"Colour: {MEANING[value][1]}."]
    if size > 1:
        notes.append(f"A row is {size} consecutive ranks, and shows the largest of them.")
    if width > 1:
        notes.append(f"A column is the median of {width} consecutive steps.")
    if gaps := cells["ns"].null_count():
        notes.append(f"Grey: not known ({gaps:,} of {cells.height:,} cells).")
    chart = _drawn(
        cells.drop("ns"),
        colour_of_time(times, cap, unit, 24, offset=_OFFSET if named else 18),
        nodes if lined else None,
    )
    return theme.finish(chart, title or _headline(frame, value), notes)


def _cells(frame: pl.DataFrame, value: str) -> tuple[pl.DataFrame, int, int]:
    """``row, step, phase, ns``, the ranks of a row and the steps of a column."""
    size = 1
    while draw.number(frame["rank"].max()) >= size * MAX_ROWS:
        size *= 2  # so that nodes stay together
    steps = frame["step"].unique().sort()
    width = -(-steps.len() // (MAX_COLUMNS // 3 if theme.is_narrow() else MAX_COLUMNS))
    place = pl.DataFrame({"step": steps, "column": steps.gather(pl.arange(steps.len(), eager=True) // width * width)})
    placed = frame.join(place, on="step").with_columns(row=pl.col("rank") // size * size)
    of_rank = placed.group_by("row", "rank", "column").agg(pl.col(value).median())
    cells = of_rank.group_by("row", "column").agg(ns=pl.col(value).max())
    phases = placed.group_by("column").agg(pl.col("phase").fill_null("other").mode().sort().first())
    every = cells.select("row").unique().join(phases, how="cross")
    cells = every.join(cells, on=["row", "column"], how="left").rename({"column": "step"})
    return cells.sort("row", "step").select("row", "step", "phase", "ns"), size, width


def _drawn(cells: pl.DataFrame, shade: alt.Color, nodes: pl.DataFrame | None) -> alt.LayerChart:
    steps, rows = cells["step"].unique().sort().to_list(), cells["row"].unique().sort().to_list()
    legend = 0 if theme.is_narrow() else 104
    plot, height = theme.inner() - 46 - legend - (0 if nodes is None else 66), min(640, max(120, 8 * len(rows)))
    step_axis = alt.Axis(title="step", labelAngle=0, labelOverlap=True)
    x = alt.X("step:O", sort=None, axis=step_axis, scale=alt.Scale(domain=steps, padding=0))
    every = rows[:: max(1, -(-len(rows) // 16))]
    axis = alt.Axis(title="rank", values=every, ticks=False, labelPadding=6)
    y = alt.Y("row:O", sort=None, axis=axis, scale=alt.Scale(domain=rows, padding=0))
    tips = draw.tips(("ranks:N", "rank"), "step:O", "phase:N")
    tips += draw.tips("node:N") if "node" in cells.columns else []
    tips.append(alt.Tooltip("time:Q", format=theme.NUMBER))
    timed, missing = cells.filter(pl.col("time").is_not_null()), cells.filter(pl.col("time").is_null())
    marks: list[alt.Chart] = [alt.Chart(draw.inline(timed)).mark_rect().encode(x=x, y=y, color=shade, tooltip=tips)]
    if missing.height:
        marks.append(
            alt.Chart(draw.inline(missing.select("step", "row"))).mark_rect(color=theme.MISSING).encode(x=x, y=y)
        )
    marks += phase_strip(cells, x, plot / len(steps))
    if nodes is not None:
        marks += _borders(nodes, y, plot)
    return theme.layered(*marks).properties(width=plot, height=height)


def _borders(nodes: pl.DataFrame, y: alt.Y, plot: float) -> list[alt.Chart]:
    """Lines between nodes, and their names at the side; only for nodes that share no row with another node."""
    rows = nodes.group_by("row").agg(pl.col("node").unique().sort()).filter(pl.col("node").list.len() == 1)
    first = rows.with_columns(pl.col("node").list.first()).sort("row")
    first = first.filter(pl.col("node").ne_missing(pl.col("node").shift())).with_columns(
        text=pl.col("node").map_elements(lambda name: shorten(name, 10), pl.String)
    )
    base = alt.Chart(draw.inline(first)).encode(y=y)
    lines = base.mark_rule(color=theme.INK, strokeWidth=1, opacity=0.6, yOffset=0).encode(
        y=alt.Y("row:O", sort=None, bandPosition=0), x=alt.XValue(0), x2=alt.X2Value(plot)
    )
    names = base.mark_text(align="left", baseline="top", color=theme.MUTED, fontSize=theme.LABEL_PX).encode(
        y=alt.Y("row:O", sort=None, bandPosition=0), x=alt.XValue(plot + 6), text="text:N"
    )
    return [lines, *([names] if first.height <= MOST_NAMES else [])]


def _headline(frame: pl.DataFrame, value: str) -> str:
    """Sentence on the most frequent phase: median of all ranks, and the ranks with the largest and smallest value."""
    phase = frame["phase"].drop_nulls().mode().sort()
    rows = frame if phase.is_empty() else frame.filter(pl.col("phase") == phase[0])
    by_rank = rows.group_by("rank").agg(pl.col(value).median()).drop_nulls().sort(value, "rank")
    if not by_rank.height:
        return MEANING[value][0].removesuffix(" takes")
    middle = format_ns(draw.number(rows[value].median()))
    (low, least), (high, most) = by_rank.row(0), by_rank.row(-1)
    text = f"{MEANING[value][0]}{'' if value == 'step_ns' else ':'} {middle}"
    text += f" in {phase[0]}" if phase.len() else ""
    if by_rank.height == 1 or format_ns(least) == format_ns(most):
        return f"{text} (median)"
    return f"{text}: most on rank {high} ({format_ns(most)}), least on rank {low} ({format_ns(least)}; medians)"


@draw.chart_of("llmprof.analyze.gpu_time_util_map(trace, bins=150)", "rank device start_ns dur_ns share", runs=False)
def utilisation(frame: pl.DataFrame, *, title: str | None = None) -> alt.LayerChart:
    """Heat map of ranks over time: the share of each bin of time in which the device of a rank runs something.

    Of more than 128 ranks a row shows the least busy of several.

    Examples
    --------
    >>> chart = charts.utilisation(analyze.gpu_time_util_map(trace, bins=150))
    """
    size = 1
    while draw.number(frame["rank"].max()) >= size * MAX_ROWS:
        size *= 2
    unit = theme.time_unit(draw.number((frame["start_ns"] + frame["dur_ns"]).max()))
    cells = (
        frame.group_by("start_ns", "dur_ns", row=pl.col("rank") // size * size)
        .agg(pl.col("share").min())
        .select(
            "row", "share", begin=pl.col("start_ns") / unit.ns, end=(pl.col("start_ns") + pl.col("dur_ns")) / unit.ns
        )
        .sort("row", "begin")
    )
    rows = cells["row"].unique().sort().to_list()
    axis = alt.Axis(title="rank", values=rows[:: max(1, -(-len(rows) // 16))], ticks=False, labelPadding=6)
    small = theme.is_narrow()
    key = alt.Legend(title="busy", format="%", orient="top" if small else "right", gradientLength=120, tickCount=4)
    scale = alt.Scale(scheme="viridis", domain=[0, 1])
    marks = (
        alt.Chart(draw.inline(cells))
        .mark_rect()
        .encode(
            x=alt.X("begin:Q", axis=alt.Axis(title=f"time ({unit.symbol})"), scale=alt.Scale(nice=False, zero=False)),
            x2="end:Q",
            y=alt.Y("row:O", sort=None, axis=axis, scale=alt.Scale(domain=rows, padding=0)),
            color=alt.Color("share:Q", scale=scale, legend=key),
            tooltip=draw.tips(("row:O", "rank"), ("begin:Q", None, theme.NUMBER), ("share:Q", None, ".1%")),
        )
    )
    busy = frame.group_by("rank").agg((pl.col("share") * pl.col("dur_ns")).sum() / pl.col("dur_ns").sum())
    low, high = draw.number(busy["share"].min()), draw.number(busy["share"].max())
    shown = theme.spread(theme.percent(100 * low), theme.percent(100 * high))
    notes = ["Colour: share of the time in which the device runs something."]
    notes += [f"A row is {size} consecutive ranks, and shows the least busy of them."] if size > 1 else []
    plot = theme.inner() - 46 - (0 if small else 104)
    chart = theme.layered(marks).properties(width=plot, height=min(640, max(120, 8 * len(rows))))
    return theme.finish(chart, title or f"Devices are busy {shown} of the time", notes)


_BY: Final = {
    "node": "nodes",
    "dp": "replicas (data parallel)",
    "pp": "pipeline stages",
    "tp": "places in tensor parallelism",
    "ep": "places in expert parallelism",
}
MAX_GROUPS = 12


@draw.chart_of("llmprof.analyze.late_groups(trace)", "by group ranks calls share_last expected_share late_median_ns")
def late_groups(frame: pl.DataFrame, *, title: str | None = None) -> alt.VConcatChart:
    """How often each node or parallel group arrives last, compared with chance.

    A panel for each kind of group, the twelve latest groups in each.

    Examples
    --------
    >>> late = analyze.late_groups(ranks, ranks_per_node=2)
    >>> chart = charts.late_groups(late)
    """
    panels, cut = [], False
    for by in frame["by"].unique(maintain_order=True):
        rows = frame.filter(pl.col("by") == by).sort("share_last", "group", descending=[True, False])
        cut = cut or rows.height > MAX_GROUPS
        panels.append(_shares(rows.head(MAX_GROUPS), by))
    worst = frame.sort(pl.col("share_last") - pl.col("expected_share"), descending=True).row(0, named=True)
    share, chance = format_share(worst["share_last"]), format_share(worst["expected_share"])
    name = f"Node {worst['group']}" if worst["by"] == "node" else f"{worst['by'].upper()} {worst['group']}"
    name = name.removeprefix("Node ") if worst["group"].lower().startswith("node") else name
    text = f"{name} arrives last in {share} of the calls; by chance it would be {chance}"
    notes = ["Bar: share of the collectives over several groups in which a rank of the group arrives last."]
    notes.append("Line: the group's part of the ranks of these calls.")
    notes += ["The twelve latest of each kind are shown."] if cut else []
    return theme.finish(compose.rows(*panels, spacing=24), title or text, notes)


def _shares(rows: pl.DataFrame, by: str) -> alt.LayerChart:
    room = 110 if theme.is_narrow() else 150
    drawn = rows.with_columns(
        pl.col("ranks").list.eval(pl.element().cast(pl.String)).list.join(", ").str.slice(0, 60),
        label=pl.Series(distinct([shorten(name, 17 if theme.is_narrow() else 24) for name in rows["group"]])),
    )
    axis = alt.Axis(title=None, ticks=False, labelPadding=6, labelLimit=room, minExtent=room)
    y = alt.Y("label:N", sort=None, scale=alt.Scale(domain=drawn["label"].to_list()), axis=axis)
    x = alt.X("share_last:Q", axis=alt.Axis(title="arrives last", format="%"), scale=alt.Scale(domain=[0, 1]))
    tips = draw.tips(
        "group:N", "ranks:N", ("share_last:Q", None, ".1%"), ("expected_share:Q", None, ".1%"), ("calls:Q", None, ",")
    )
    base = alt.Chart(draw.inline(drawn)).encode(y=y)
    bars = base.mark_bar(color=theme.COMMUNICATION, height={"band": 0.7}).encode(x=x, tooltip=tips)
    lines = base.mark_tick(color=theme.INK, thickness=2, size=18).encode(
        x=alt.X("expected_share:Q", title="arrives last")
    )
    return theme.layered(bars, lines).properties(
        width=theme.inner() - room - 20, height=24 * rows.height, title=theme.heading(f"By {_BY.get(by, by)}")
    )
