"""Heat maps of layers and ranks over steps and of devices over time, and how often groups of
ranks are late.
"""

from __future__ import annotations

from typing import Final, Literal

import altair as alt
import polars as pl

from llmprof import analyze
from llmprof.charts.base import compose, draw, theme
from llmprof.text import distinct, numbers_in_words, shorten
from llmprof.trace import Trace
from llmprof.trace.schema import END
from llmprof.units import format_ns, format_share

_MEANING = {
    "dur_ns": "from the start of the layer's first kernel to the end of its last",
    "busy_ns": "time in which a kernel of the layer ran",
    "host_dur_ns": "span of the layer's operators on the host",
}
MAX_RANKS, MAX_COLUMNS = 16, 120
_AXIS, _PHASE_PX = 40, 18


@draw.chart_of(
    "llmprof.analyze.layers(trace)",
)
def layers(
    frame: Trace | pl.DataFrame, *, value: str = "dur_ns", title: str | None = None
) -> alt.VConcatChart:
    """Heat map of layers over steps, a panel for each rank, with the phase of each step above it.

    If the frame has a column ``kind`` and the layers are not all of one kind, a note says which are
    of which.

    All ranks share one scale of colours; it ends at the 95th percentile if a few cells are far
    longer, and is logarithmic if it ends above eight times the median. Of more than 120 steps a
    column is a median of several.

    Parameters
    ----------
    frame : Trace or polars.DataFrame
        What was recorded, or rows of ``analyze.layers(trace)``.
    value : {"dur_ns", "busy_ns", "host_dur_ns"}
        What the colour shows.
    title : str, optional
        Title of the chart; by default it says what is shown.

    Returns
    -------
    altair.VConcatChart
        900 px wide.

    Raises
    ------
    AnalysisError
        A column is missing, or no value is known, or a layer has several rows in a step.

    Examples
    --------
    >>> chart = charts.layers(analyze.layers(trace))
    """
    frame = draw.chart_frame(frame, analyze.layers)
    draw.check_choice(value, _MEANING, chart="layers", option="value")
    draw.require(frame, ("rank", "step", "phase", "layer", value), chart="layers")
    rows = frame.drop_nulls(["step", "layer"])
    if rows.is_empty() or rows[value].drop_nulls().is_empty():
        raise draw.nothing("layers", f"no row has a step, a layer and {value}")
    if rows.select("rank", "step", "layer").is_duplicated().any():
        raise draw.nothing("layers", "a layer has several rows in a step")
    rows, shown_ranks, left_out = draw.ranks_shown(rows, MAX_RANKS)
    rows, condensed = _columns(rows, value)
    times = rows[value].drop_nulls()
    cap = end_of_scale(times)
    unit = theme.time_unit(cap)
    # every combination of step and layer of each rank, also those without a row
    steps = rows.group_by("step").agg(pl.col("phase").mode().sort().first())
    every = (
        rows.select("rank", "layer").unique().join(steps, how="cross").sort("rank", "step", "layer")
    )
    known = rows.select("rank", "step", "layer", value, time=pl.col(value) / unit.ns)
    cells = every.join(known, on=["rank", "step", "layer"], how="left")
    few = len(shown_ranks) == 1 or (theme.is_narrow() and len(shown_ranks) <= 4)
    across = 1 if few else 2 if len(shown_ranks) <= 8 or theme.is_narrow() else 4
    plot = (theme.inner() - (0 if theme.is_narrow() else 90)) // across - _AXIS
    shade = _colour_of_time(times, cap, unit, rows["layer"].n_unique())
    panels = [
        _panel(
            cells.filter(rank=rank),
            rank,
            shade,
            plot,
            left=i % across == 0,
            low=i + across >= len(shown_ranks),
        )
        for i, rank in enumerate(shown_ranks)
    ]
    lines = theme.panel_rows(panels, across, spacing=_AXIS)
    notes = [f"Colour: {_MEANING[value]}."]
    notes += filter(None, [kinds_in_words(frame)])
    if beyond := times.filter(times > cap).len():
        longest = format_ns(draw.float_of(times.max()))
        notes.append(
            f"Darkest: {format_ns(cap)} and more ({beyond:,} of {times.len():,} cells, up to"
            f" {longest})."
        )
    if gaps := cells["time"].null_count():
        notes.append(f"Grey and crossed: not captured ({gaps:,} of {cells.height:,} cells).")
    notes += filter(None, (condensed, left_out))
    return theme.finish_chart(
        compose.vconcat(*lines, spacing=30), title or _headline(cells, value), notes
    )


def kinds_in_words(frame: pl.DataFrame) -> str:
    """Which layers are of which kind, in a sentence; nothing if they are all alike or the frame
    has no kinds.
    """
    if "kind" not in frame.columns or frame["kind"].n_unique() < 2:
        return ""
    of_layer = frame.group_by("layer").agg(pl.col("kind").mode().sort().first()).sort("layer")
    by_kind = of_layer.group_by("kind", maintain_order=True).agg("layer").rows()
    texts = [
        f"{kind or 'unknown'}: layer{'s' * (len(of) > 1)} {numbers_in_words(of)}"
        for kind, of in by_kind
    ]
    return f"{'; '.join(texts)}."


def end_of_scale(times: pl.Series) -> float:
    """End of the scale of colours (ns): the longest time, or the 95th percentile if that is far
    below: the first layer of a model, which is often longer, does not set it.
    """
    longest, nearly = draw.float_of(times.max()), draw.float_of(times.quantile(0.95))
    return nearly if 0 < 1.5 * nearly < longest else longest


def _colour_of_time(
    times: pl.Series, cap: float, unit: theme.Unit, rows: int, *, offset: int = 18
) -> alt.Color:
    """Colour of the field ``time``, logarithmic if its end is far above its middle; ``rows``:
    height of its legend.
    """
    least, small = draw.float_of(times.min()), theme.is_narrow()
    log = least > 0 and cap > 8 * draw.float_of(times.median())
    kind: Literal["log", "linear"] = "log" if log else "linear"
    domain = [least / unit.ns, cap / unit.ns]
    scale = alt.Scale(
        scheme="viridis", reverse=True, type=kind, domain=domain, clamp=True, nice=False
    )
    title: str | list[str] = f"time ({unit.symbol})"
    if log:
        title = f"{title}, log scale" if small else [f"{title},", "log scale"]
    key = alt.Legend(
        title=title,
        format=theme.NUMBER,
        orient="top" if small else "right",
        direction="horizontal" if small else "vertical",
        offset=34 if small else offset,
        gradientLength=theme.inner() - 90 if small else min(180, 8 * rows + 20),
        tickCount=4 if small else 5,
    )
    return alt.Color("time:Q", scale=scale, legend=key)


def _headline(cells: pl.DataFrame, value: str) -> str:
    """Median time of a layer in each phase."""
    medians = cells.group_by("phase").agg(pl.col(value).median(), n=pl.len()).drop_nulls(value)
    medians = medians.sort("n", "phase", descending=[True, False])
    phases = medians.select("phase", value).head(3).rows()
    figures = [
        f"{format_ns(ns)}{'' if phase == 'other' else f' in {phase}'}" for phase, ns in phases
    ]
    what = "The host spends on a layer" if value == "host_dur_ns" else "A layer takes"
    return f"{what} {', '.join(figures)} (median{'s' if len(figures) > 1 else ''})"


def _places(steps: pl.Series, size: int) -> pl.DataFrame:
    """Steps, and the ``column`` of each if one stands for so many."""
    return pl.DataFrame(
        {"step": steps, "column": steps.gather(pl.arange(steps.len(), eager=True) // size * size)}
    )


def _columns(rows: pl.DataFrame, value: str) -> tuple[pl.DataFrame, str]:
    """Steps as columns; if there are more steps than pixels allow, medians of consecutive steps."""
    steps = rows["step"].unique().sort()
    rows = rows.with_columns(pl.col("phase").fill_null("other"))
    most = MAX_COLUMNS // 3 if theme.is_narrow() else MAX_COLUMNS
    if steps.len() <= most:
        return rows, ""
    size = -(-steps.len() // most)
    merged = rows.join(_places(steps, size), on="step").group_by(
        "rank", "column", "layer", maintain_order=True
    )
    out = merged.agg(pl.col(value).median(), pl.col("phase").mode().sort().first()).rename(
        {"column": "step"}
    )
    return out, f"A column is the median of {size} consecutive steps."


def _panel(
    cells: pl.DataFrame, rank: int, shade: alt.Color, plot: int, *, left: bool, low: bool
) -> alt.LayerChart:
    steps, layer_numbers = (
        cells["step"].unique().sort().to_list(),
        cells["layer"].unique().sort().to_list(),
    )
    height = min(420, max(140, 8 * len(layer_numbers)))
    step_axis = alt.Axis(
        title="step" if low else None, labelAngle=0, labelOverlap=True, labelSeparation=4
    )
    x = alt.X("step:O", sort=None, axis=step_axis, scale=alt.Scale(domain=steps, padding=0))
    every = layer_numbers[:: max(1, -(-len(layer_numbers) // 8))]
    layer_axis = alt.Axis(
        title="layer" if left else None, values=every, ticks=False, labelPadding=6
    )
    y = alt.Y(
        "layer:O", sort=None, axis=layer_axis, scale=alt.Scale(domain=layer_numbers, padding=0)
    )
    tips = draw.tips("step:O", "phase:N", "layer:O", ("time:Q", None, theme.NUMBER))
    timed = cells.drop_nulls("time").drop("rank")
    gone = cells.filter(pl.col("time").is_null()).select("step", "layer")
    marks: list[alt.Chart] = [
        alt.Chart(draw.inline(timed)).mark_rect().encode(x=x, y=y, color=shade, tooltip=tips)
    ]
    if gone.height:
        base = alt.Chart(draw.inline(gone)).encode(x=x, y=y)
        cross = base.mark_text(text="×", color=theme.MUTED, fontSize=theme.LABEL_PX)
        marks += [base.mark_rect(color=theme.MISSING), cross]
    name = theme.heading_mark(f"rank {rank}").encode(y=alt.YValue(-_PHASE_PX - 10))
    marks += [*_phase_strip(cells, x, plot / len(steps)), name]
    return theme.layered(*marks).properties(width=plot, height=height)


def _phase_strip(cells: pl.DataFrame, x: alt.X, width: float) -> list[alt.Chart]:
    """Strip above the cells that names the phase of each run of steps."""
    by_step = cells.group_by("step").agg(pl.first("phase")).sort("step")
    palette = theme.colours("phase", by_step["phase"].unique())
    filled = by_step.with_columns(
        colour=pl.col("phase").replace_strict(palette, return_dtype=pl.String)
    )
    fill = alt.Fill("colour:N", scale=None)
    base = alt.Chart(draw.inline(filled)).mark_rect()
    high = {"y": alt.YValue(-_PHASE_PX - 3), "y2": alt.Y2Value(-3)}
    strip = base.encode(x=x, fill=fill, tooltip=draw.tips("phase:N"), **high)
    runs = by_step.group_by(run=pl.col("phase").rle_id(), maintain_order=True).agg(
        pl.first("phase"), "step"
    )
    marks: list[alt.Chart] = [strip]
    for phase, steps in runs.select("phase", "step").iter_rows():
        label = draw.fitting_text((phase, phase[:3], phase[:1]), len(steps) * width, margin=1)
        data = draw.constant({"step": steps[(len(steps) - 1) // 2], "label": label})
        shift = (
            0.0 if len(steps) % 2 else width / 2
        )  # a run of an even number has its middle between two steps
        text = alt.Chart(data).mark_text(
            baseline="middle", color=theme.ink_on(palette[phase]), xOffset=shift
        )
        if label:
            marks.append(
                text.encode(x=x, y=alt.YValue(-_PHASE_PX / 2 - 3), text=alt.Text("label:N"))
            )
    return marks


MEANING: Final = {
    "dur_ns": ("A step takes", "from the first event of the rank's step to that of the next one"),
    "wait_ns": ("Waiting in a step", "waiting in collectives for ranks that came later"),
    "idle_ns": ("Idle time in a step", "time in which nothing of the rank runs"),
    "exposed_communication_ns": (
        "Exposed communication in a step",
        "communication with no compute beside it",
    ),
}
"""Values that the heat map can show, each with the beginning of its title and its meaning."""

MAX_ROWS, MAX_STEPS = 128, 75
MOST_LINES, MOST_NAMES = 32, 16
"""Most nodes whose lines can be told apart, and whose names fit below each other."""
_OFFSET: Final = 84


@draw.chart_of('llmprof.analyze.ranks(trace, by="step")')
def ranks(
    frame: Trace | pl.DataFrame,
    *,
    value: str = "dur_ns",
    groups: pl.DataFrame | None = None,
    title: str | None = None,
) -> alt.LayerChart | alt.VConcatChart:
    """Heat map of ranks over steps: which ranks are slow, which wait, and when; of groups, how
    often each arrives last, compared with chance.

    Of more than 128 ranks a row shows the largest value of several, so that a single late rank
    stays visible; of more than 75 steps a column is a median of several. The scale of colours is
    that of :func:`layers`. Of groups there is a panel for each kind, with the twelve latest.

    Parameters
    ----------
    frame : Trace or polars.DataFrame
        What was recorded, or rows of ``analyze.ranks(trace, by="step")``.
    value : {"dur_ns", "wait_ns", "idle_ns", "exposed_communication_ns"}
        What the colour shows.
    groups : polars.DataFrame, optional
        Rows of ``rank_places(trace)``: lines divide the known nodes, and tooltips name them.
    title : str, optional
        Title of the chart; by default it says what is shown.

    Returns
    -------
    altair.LayerChart | altair.VConcatChart
        900 px wide.

    Raises
    ------
    AnalysisError
        A column is missing, or no value is known.

    Examples
    --------
    >>> chart = charts.ranks(analyze.ranks(trace, by="step"))
    """
    frame = draw.chart_frame(frame, analyze.ranks, by="step")
    if "last_share" in frame.columns:
        return _late(frame, title)
    draw.check_choice(value, MEANING, chart="ranks", option="value")
    draw.require(frame, ("rank", "step", "phase", value), chart="ranks")
    if frame[value].drop_nulls().is_empty():
        raise draw.nothing("ranks", f"{value} is not known of any step")
    cells, size, width = _cells(frame, value)
    times = cells["ns"].drop_nulls()
    cap = end_of_scale(times)
    unit = theme.time_unit(cap)
    nodes = (
        None
        if groups is None
        else groups.select(row=pl.col("rank") // size * size, node="node").drop_nulls()
    )
    rank_numbers = pl.col("row").cast(pl.String)
    if size > 1:
        last = (pl.col("row") + size - 1).clip(0, int(draw.float_of(frame["rank"].max())))
        rank_numbers = pl.format("{} to {}", "row", last)
    cells = cells.with_columns(time=pl.col("ns") / unit.ns, ranks=rank_numbers)
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
    shade = _colour_of_time(times, cap, unit, 24, offset=_OFFSET if named else 18)
    chart = _drawn(cells.drop("ns"), shade, nodes if lined else None)
    return theme.finish_chart(chart, title or _headline_of_ranks(frame, value), notes)


def _cells(frame: pl.DataFrame, value: str) -> tuple[pl.DataFrame, int, int]:
    """``row, step, phase, ns``, the ranks of a row and the steps of a column."""
    size = 1
    while draw.float_of(frame["rank"].max()) >= size * MAX_ROWS:
        size *= 2  # so that nodes stay together
    steps = frame["step"].unique().sort()
    width = -(-steps.len() // (MAX_STEPS // 3 if theme.is_narrow() else MAX_STEPS))
    placed = frame.join(_places(steps, width), on="step").with_columns(
        row=pl.col("rank") // size * size
    )
    of_rank = placed.group_by("row", "rank", "column").agg(pl.col(value).median())
    cells = of_rank.group_by("row", "column").agg(ns=pl.col(value).max())
    phases = placed.group_by("column").agg(pl.col("phase").fill_null("other").mode().sort().first())
    every = cells.select("row").unique().join(phases, how="cross")
    cells = every.join(cells, on=["row", "column"], how="left").rename({"column": "step"})
    return cells.sort("row", "step").select("row", "step", "phase", "ns"), size, width


def _drawn(cells: pl.DataFrame, shade: alt.Color, nodes: pl.DataFrame | None) -> alt.LayerChart:
    steps, rows = cells["step"].unique().sort().to_list(), cells["row"].unique().sort().to_list()
    legend = 0 if theme.is_narrow() else 104
    plot, height = (
        theme.inner() - 46 - legend - (0 if nodes is None else 66),
        min(640, max(120, 8 * len(rows))),
    )
    step_axis = alt.Axis(title="step", labelAngle=0, labelOverlap=True, labelSeparation=4)
    x = alt.X("step:O", sort=None, axis=step_axis, scale=alt.Scale(domain=steps, padding=0))
    every = rows[:: max(1, -(-len(rows) // 16))]
    axis = alt.Axis(title="rank", values=every, ticks=False, labelPadding=6)
    y = alt.Y("row:O", sort=None, axis=axis, scale=alt.Scale(domain=rows, padding=0))
    tips = draw.tips(("ranks:N", "rank"), "step:O", "phase:N")
    tips += draw.tips("node:N") if "node" in cells.columns else []
    tips.append(alt.Tooltip("time:Q", format=theme.NUMBER))
    timed, missing = (
        cells.drop_nulls("time"),
        cells.filter(pl.col("time").is_null()),
    )
    marks: list[alt.Chart] = [
        alt.Chart(draw.inline(timed)).mark_rect().encode(x=x, y=y, color=shade, tooltip=tips)
    ]
    if missing.height:
        marks.append(
            alt.Chart(draw.inline(missing.select("step", "row")))
            .mark_rect(color=theme.MISSING)
            .encode(x=x, y=y)
        )
    marks += _phase_strip(cells, x, plot / len(steps))
    if nodes is not None:
        marks += _borders(nodes, y, plot)
    return theme.layered(*marks).properties(width=plot, height=height)


def _borders(nodes: pl.DataFrame, y: alt.Y, plot: float) -> list[alt.Chart]:
    """Lines between nodes, and their names at the side; only for nodes that share no row with
    another node.
    """
    rows = (
        nodes.group_by("row")
        .agg(pl.col("node").unique().sort())
        .filter(pl.col("node").list.len() == 1)
    )
    first = rows.with_columns(pl.col("node").list.first()).sort("row")
    first = first.filter(pl.col("node").ne_missing(pl.col("node").shift())).with_columns(
        text=pl.col("node").map_elements(lambda name: shorten(name, 10), pl.String)
    )
    base = alt.Chart(draw.inline(first)).encode(y=y)
    lines = base.mark_rule(color=theme.INK, strokeWidth=1, opacity=0.6, yOffset=0).encode(
        y=alt.Y("row:O", sort=None, bandPosition=0), x=alt.XValue(0), x2=alt.X2Value(plot)
    )
    names = base.mark_text(
        align="left", baseline="top", color=theme.MUTED, fontSize=theme.LABEL_PX
    ).encode(
        y=alt.Y("row:O", sort=None, bandPosition=0), x=alt.XValue(plot + 6), text=alt.Text("text:N")
    )
    return [lines, *([names] if first.height <= MOST_NAMES else [])]


def _headline_of_ranks(frame: pl.DataFrame, value: str) -> str:
    """Sentence on the most frequent phase: median of all ranks, and the ranks with the largest
    and smallest value.
    """
    phase = frame["phase"].drop_nulls().mode().sort()
    rows = frame if phase.is_empty() else frame.filter(pl.col("phase") == phase[0])
    by_rank = rows.group_by("rank").agg(pl.col(value).median()).drop_nulls().sort(value, "rank")
    if not by_rank.height:
        return MEANING[value][0].removesuffix(" takes")
    middle = format_ns(draw.float_of(rows[value].median()))
    (low, least), (high, most) = by_rank.row(0), by_rank.row(-1)
    text = f"{MEANING[value][0]}{'' if value == 'dur_ns' else ':'} {middle}"
    text += f" in {phase[0]}" if phase.len() and phase[0] != "other" else ""
    if by_rank.height == 1 or format_ns(least) == format_ns(most):
        return f"{text} (median)"
    return (
        f"{text}: most on rank {high} ({format_ns(most)}), least on rank {low} ({format_ns(least)};"
        " medians)"
    )


@draw.chart_of(
    "llmprof.analyze.nsys.gpu_time_util_map(trace, bins=150)",
    "rank device start_ns dur_ns share",
)
def utilization(frame: Trace | pl.DataFrame, *, title: str | None = None) -> alt.LayerChart:
    """Heat map of ranks over time: the share of each bin of time in which the device of a rank runs
    something.

    Of more than 128 ranks a row shows the least busy of several.

    Parameters
    ----------
    frame : Trace or polars.DataFrame
        What was recorded, or rows of ``analyze.nsys.gpu_time_util_map(trace, bins=150)``.
    title : str, optional
        Title of the chart; by default it says what is shown.

    Returns
    -------
    altair.LayerChart
        900 px wide.

    Raises
    ------
    AnalysisError
        A column is missing, or there are no rows.

    Examples
    --------
    >>> chart = charts.utilization(analyze.nsys.gpu_time_util_map(trace, bins=150))
    """
    frame = draw.chart_frame(frame, analyze.nsys.gpu_time_util_map, bins=150)
    size = 1
    while draw.float_of(frame["rank"].max()) >= size * MAX_ROWS:
        size *= 2
    unit = theme.time_unit(draw.float_of((frame["start_ns"] + frame["dur_ns"]).max()))
    cells = frame.group_by("start_ns", "dur_ns", row=pl.col("rank") // size * size).agg(
        pl.min("share")
    )
    end = END / unit.ns
    cells = cells.select("row", "share", begin=pl.col("start_ns") / unit.ns, end=end).sort(
        "row", "begin"
    )
    rows = cells["row"].unique().sort().to_list()
    axis = alt.Axis(
        title="rank", values=rows[:: max(1, -(-len(rows) // 16))], ticks=False, labelPadding=6
    )
    small = theme.is_narrow()
    key = alt.Legend(
        title="busy",
        format="%",
        orient="top" if small else "right",
        gradientLength=120,
        tickCount=4,
    )
    scale = alt.Scale(scheme="viridis", domain=[0, 1])
    x = alt.X(
        "begin:Q",
        axis=alt.Axis(title=f"time ({unit.symbol})"),
        scale=alt.Scale(nice=False, zero=False),
    )
    y = alt.Y("row:O", sort=None, axis=axis, scale=alt.Scale(domain=rows, padding=0))
    shade = alt.Color("share:Q", scale=scale, legend=key)
    tips = draw.tips(("row:O", "rank"), ("begin:Q", None, theme.NUMBER), ("share:Q", None, ".1%"))
    marks = (
        alt.Chart(draw.inline(cells))
        .mark_rect()
        .encode(x=x, x2=alt.X2("end:Q"), y=y, color=shade, tooltip=tips)
    )
    busy = frame.group_by("rank").agg((pl.col("share") * pl.col("dur_ns")).sum() / pl.sum("dur_ns"))
    shown = theme.percents(100 * busy["share"])
    notes = ["Colour: share of the time in which the device runs something."]
    notes += (
        [f"A row is {size} consecutive ranks, and shows the least busy of them."]
        if size > 1
        else []
    )
    plot = theme.inner() - 46 - (0 if small else 104)
    chart = theme.layered(marks).properties(width=plot, height=min(640, max(120, 8 * len(rows))))
    return theme.finish_chart(chart, title or f"Devices are busy {shown} of the time", notes)


_BY: Final = {
    "node": "nodes",
    "dp": "replicas (data parallel)",
    "pp": "pipeline stages",
    "tp": "places in tensor parallelism",
    "ep": "places in expert parallelism",
}
MAX_GROUPS = 12


def _late(frame: pl.DataFrame, title: str | None) -> alt.VConcatChart:
    """How often each node or parallel group arrives last."""
    columns = ("kind", "group", "ranks", "count", "expected_share", "late_median_ns")
    draw.require(frame, columns, chart="ranks")
    panels, cut = [], False
    for kind in frame["kind"].unique(maintain_order=True):
        rows = frame.filter(kind=kind).sort("last_share", "group", descending=[True, False])
        cut = cut or rows.height > MAX_GROUPS
        panels.append(_shares(rows.head(MAX_GROUPS), kind))
    worst = frame.sort(pl.col("last_share") - pl.col("expected_share"), descending=True).row(
        0, named=True
    )
    share, chance = format_share(worst["last_share"]), format_share(worst["expected_share"])
    name = (
        f"Node {worst['group']}"
        if worst["kind"] == "node"
        else f"{worst['kind'].upper()} {worst['group']}"
    )
    name = name.removeprefix("Node ") if worst["group"].lower().startswith("node") else name
    text = f"{name} arrives last in {share} of the calls; by chance it would be {chance}"
    notes = [
        "Bar: share of the collectives over several groups in which a rank of the group arrives"
        " last."
    ]
    notes.append("Line: the group's part of the ranks of these calls.")
    notes += ["The twelve latest of each kind are shown."] if cut else []
    return theme.finish_chart(compose.vconcat(*panels, spacing=24), title or text, notes)


def _shares(rows: pl.DataFrame, by: str) -> alt.LayerChart:
    room = 110 if theme.is_narrow() else 150
    drawn = rows.with_columns(
        pl.col("ranks").list.eval(pl.element().cast(pl.String)).list.join(", ").str.slice(0, 60),
        label=pl.Series(
            distinct([shorten(name, 17 if theme.is_narrow() else 24) for name in rows["group"]])
        ),
    )
    axis = alt.Axis(title=None, ticks=False, labelPadding=6, labelLimit=room, minExtent=room)
    y = alt.Y("label:N", sort=None, scale=alt.Scale(domain=drawn["label"].to_list()), axis=axis)
    x = alt.X(
        "last_share:Q",
        axis=alt.Axis(title="arrives last", format="%"),
        scale=alt.Scale(domain=[0, 1]),
    )
    tips = draw.tips(
        "group:N",
        "ranks:N",
        ("last_share:Q", None, ".1%"),
        ("expected_share:Q", None, ".1%"),
        ("count:Q", "calls", ","),
    )
    base = alt.Chart(draw.inline(drawn)).encode(y=y)
    bars = base.mark_bar(color=theme.COMMUNICATION, height={"band": 0.7}).encode(x=x, tooltip=tips)
    lines = base.mark_tick(color=theme.INK, thickness=2, size=18).encode(
        x=alt.X("expected_share:Q", title="arrives last")
    )
    return theme.layered(bars, lines).properties(
        width=theme.inner() - room - 20,
        height=24 * rows.height,
        title=theme.panel_heading(f"By {_BY.get(by, by)}"),
    )
