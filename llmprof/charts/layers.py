"""Heat map of the time of every layer in every step."""

from __future__ import annotations

from typing import Literal

import altair as alt
import polars as pl

from llmprof.charts.base import compose, draw, theme
from llmprof.text import numbers_in_words
from llmprof.units import format_ns

_MEANING = {
    "dur_ns": "from the start of the layer's first kernel to the end of its last",
    "busy_ns": "time in which a kernel of the layer ran",
    "host_dur_ns": "span of the layer's operators on the host",
}
MAX_RANKS, MAX_COLUMNS = 16, 120
_AXIS, _PHASE_PX = 40, 18


@draw.chart_of(
    'llmprof.analyze.layers(trace, per="layer")', refuses="no value is known, or a layer has several rows in a step"
)
def layer_heatmap(frame: pl.DataFrame, *, value: str = "dur_ns", title: str | None = None) -> alt.VConcatChart:
    """Heat map of layers over steps, a panel for each rank, with the phase of each step above it.

    If the frame has a column ``kind`` and the layers are not all of one kind, a note says which are of which.

    All ranks share one scale of colours; it ends at the 99th percentile if a few cells are far longer, and is
    logarithmic if it ends above eight times the median. Of more than 120 steps a column is a median of several.

    Parameters
    ----------
    value : {"dur_ns", "busy_ns", "host_dur_ns"}
        What the colour shows.
    """
    draw.check_choice(value, _MEANING, chart="layer_heatmap", option="value")
    draw.require(frame, ("rank", "step", "phase", "layer", value), chart="layer_heatmap")
    rows = frame.drop_nulls(["step", "layer"])
    if rows.is_empty() or rows[value].drop_nulls().is_empty():
        raise draw.nothing("layer_heatmap", f"no row has a step, a layer and {value}")
    if rows.select("rank", "step", "layer").is_duplicated().any():
        raise draw.nothing("layer_heatmap", "a layer has several rows in a step")
    rows, ranks, left_out = draw.ranks_shown(rows, MAX_RANKS)
    rows, condensed = _columns(rows, value)
    times = rows[value].drop_nulls()
    cap = end_of_scale(times)
    unit = theme.time_unit(cap)
    cells = _grid(rows, value).with_columns((pl.col(value) / unit.ns).alias("time"))
    across = (
        1
        if len(ranks) == 1 or (theme.is_narrow() and len(ranks) <= 4)
        else 2
        if len(ranks) <= 8 or theme.is_narrow()
        else 4
    )
    plot = (theme.inner() - (0 if theme.is_narrow() else 90)) // across - _AXIS
    shade = colour_of_time(times, cap, unit, rows["layer"].n_unique())
    panels = [
        _panel(cells.filter(rank=rank), rank, shade, plot, left=i % across == 0, low=i + across >= len(ranks))
        for i, rank in enumerate(ranks)
    ]
    lines = theme.rows_of(panels, across, spacing=_AXIS)
    notes = [f"Colour: {_MEANING[value]}."]
    notes += filter(None, [kinds_in_words(frame)])
    if beyond := times.filter(times > cap).len():
        longest = format_ns(draw.number(times.max()))
        notes.append(f"Darkest: {format_ns(cap)} and more ({beyond:,} of {times.len():,} cells, up to {longest}).")
    if gaps := cells["time"].null_count():
        notes.append(f"Grey and crossed: not captured ({gaps:,} of {cells.height:,} cells).")
    return theme.finish(
        compose.rows(*lines, spacing=30),
        title or _headline(cells, value),
        [*notes, *filter(None, (condensed, left_out))],
    )


def kinds_in_words(frame: pl.DataFrame) -> str:
    """Which layers are of which kind, in a sentence; nothing if they are all alike or the frame has no kinds."""
    if "kind" not in frame.columns or frame["kind"].n_unique() < 2:
        return ""
    of_layer = frame.group_by("layer").agg(pl.col("kind").mode().sort().first()).sort("layer")
    by_kind = of_layer.group_by("kind", maintain_order=True).agg("layer").rows()
    texts = [f"{kind or 'unknown'}: layer{'s' * (len(of) > 1)} {numbers_in_words(of)}" for kind, of in by_kind]
    return f"{'; '.join(texts)}."


def end_of_scale(times: pl.Series) -> float:
    """End of the scale of colours (ns): the longest time, or the 99th percentile if that is far below."""
    longest, nearly = draw.number(times.max()), draw.number(times.quantile(0.99))
    return nearly if 0 < 1.5 * nearly < longest else longest


def colour_of_time(times: pl.Series, cap: float, unit: theme.Unit, rows: int, *, offset: int = 18) -> alt.Color:
    """Colour of the field ``time``, logarithmic if its end is far above its middle; ``rows``: height of its legend."""
    least, small = draw.number(times.min()), theme.is_narrow()
    log = least > 0 and cap > 8 * draw.number(times.median())
    kind: Literal["log", "linear"] = "log" if log else "linear"
    domain = [least / unit.ns, cap / unit.ns]
    scale = alt.Scale(scheme="viridis", reverse=True, type=kind, domain=domain, clamp=True, nice=False)
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
    figures = [f"{format_ns(ns)}{'' if phase == 'other' else f' in {phase}'}" for phase, ns in phases]
    what = "The host spends on a layer" if value == "host_dur_ns" else "A layer takes"
    return f"{what} {', '.join(figures)} (median{'s' if len(figures) > 1 else ''})"


def _columns(rows: pl.DataFrame, value: str) -> tuple[pl.DataFrame, str]:
    """Steps as columns; if there are more steps than pixels allow, medians of consecutive steps."""
    steps = rows["step"].unique().sort()
    rows = rows.with_columns(pl.col("phase").fill_null("other"))
    most = MAX_COLUMNS // 3 if theme.is_narrow() else MAX_COLUMNS
    if steps.len() <= most:
        return rows, ""
    size = -(-steps.len() // most)
    place = pl.DataFrame({"step": steps, "column": steps.gather(pl.arange(steps.len(), eager=True) // size * size)})
    merged = rows.join(place, on="step").group_by("rank", "column", "layer", maintain_order=True)
    out = merged.agg(pl.col(value).median(), pl.col("phase").mode().sort().first()).rename({"column": "step"})
    return out, f"A column is the median of {size} consecutive steps."


def _grid(rows: pl.DataFrame, value: str) -> pl.DataFrame:
    """Every combination of step and layer of each rank, also those without a row."""
    steps = rows.group_by("step").agg(pl.col("phase").mode().sort().first())
    layers = rows.select("rank", "layer").unique()
    full = layers.join(steps, how="cross").sort("rank", "step", "layer")
    return full.join(rows.select("rank", "step", "layer", value), on=["rank", "step", "layer"], how="left")


def _panel(cells: pl.DataFrame, rank: int, shade: alt.Color, plot: int, *, left: bool, low: bool) -> alt.LayerChart:
    steps, layers = cells["step"].unique().sort().to_list(), cells["layer"].unique().sort().to_list()
    height = min(420, max(140, 8 * len(layers)))
    step_axis = alt.Axis(title="step" if low else None, labelAngle=0, labelOverlap=True)
    x = alt.X("step:O", sort=None, axis=step_axis, scale=alt.Scale(domain=steps, padding=0))
    every = layers[:: max(1, -(-len(layers) // 8))]
    layer_axis = alt.Axis(title="layer" if left else None, values=every, ticks=False, labelPadding=6)
    y = alt.Y("layer:O", sort=None, axis=layer_axis, scale=alt.Scale(domain=layers, padding=0))
    tips = draw.tips("step:O", "phase:N", "layer:O", ("time:Q", None, theme.NUMBER))
    timed = cells.filter(pl.col("time").is_not_null()).drop("rank")
    gone = cells.filter(pl.col("time").is_null()).select("step", "layer")
    marks: list[alt.Chart] = [alt.Chart(draw.inline(timed)).mark_rect().encode(x=x, y=y, color=shade, tooltip=tips)]
    if gone.height:
        base = alt.Chart(draw.inline(gone)).encode(x=x, y=y)
        marks += [
            base.mark_rect(color=theme.MISSING),
            base.mark_text(text="×", color=theme.MUTED, fontSize=theme.LABEL_PX),
        ]
    marks += [
        *phase_strip(cells, x, plot / len(steps)),
        theme.beside(f"rank {rank}").encode(y=alt.YValue(-_PHASE_PX - 10)),
    ]
    return theme.layered(*marks).properties(width=plot, height=height)


def phase_strip(cells: pl.DataFrame, x: alt.X, width: float) -> list[alt.Chart]:
    """Strip above the cells that names the phase of each run of steps."""
    by_step = cells.group_by("step").agg(pl.col("phase").first()).sort("step")
    palette = theme.colours("phase", by_step["phase"].unique())
    filled = by_step.with_columns(colour=pl.col("phase").replace_strict(palette, return_dtype=pl.String))
    fill = alt.Fill("colour:N", scale=None)
    strip = (
        alt.Chart(draw.inline(filled))
        .mark_rect()
        .encode(x=x, y=alt.YValue(-_PHASE_PX - 3), y2=alt.Y2Value(-3), fill=fill, tooltip=draw.tips("phase:N"))
    )
    runs = by_step.group_by(pl.col("phase").rle_id().alias("run"), maintain_order=True).agg(
        pl.col("phase").first(), "step"
    )
    marks: list[alt.Chart] = [strip]
    for phase, steps in runs.select("phase", "step").iter_rows():
        label = draw.fitting((phase, phase[:3], phase[:1]), len(steps) * width, margin=1)
        data = draw.constant({"step": steps[(len(steps) - 1) // 2], "label": label})
        shift = 0.0 if len(steps) % 2 else width / 2  # a run of an even number has its middle between two steps
        text = alt.Chart(data).mark_text(baseline="middle", color=theme.ink_on(palette[phase]), xOffset=shift)
        if label:
            marks.append(text.encode(x=x, y=alt.YValue(-_PHASE_PX / 2 - 3), text="label:N"))
    return marks
