"""Where a model's parameters, FLOPs and least time are, and its operators under the roofs of a device."""

from __future__ import annotations

import altair as alt
import polars as pl

from llmprof import hardware
from llmprof.charts.base.data import inline, nothing, number, require
from llmprof.charts.base.theme import (
    INK,
    NUMBER,
    PADDING,
    TEXT_PX,
    WIDTH,
    colours,
    finish,
    heading,
    layered,
    percent,
)
from llmprof.charts.roofline import roofline
from llmprof.charts.theory.structure import MADE_BY, amount

_NEEDED = ("phase", "stage", "flops", "weight_bytes", "latency_s")
_SPACE, _ROW = 30, 22
_LEAST = 0.005
"""Share below which a stage is counted among the rest."""


def theory_shares(components: pl.DataFrame, *, title: str | None = None) -> alt.HConcatChart:
    """Shares of the stages in weights read, FLOPs and least time, prefill beside decode.

    Parameters
    ----------
    components : polars.DataFrame
        ``theory.profile(...).components``.
    title : str, optional
        Title instead of the one that names the largest stage.

    Returns
    -------
    altair.HConcatChart
        900 px wide; a panel for each quantity, with a bar for each stage and phase.

    Raises
    ------
    AnalysisError
        A column is missing, or there are no rows.
    """
    require(components, _NEEDED, chart="theory_shares", made_by=MADE_BY)
    if components.is_empty():
        raise nothing("theory_shares", "the frame has no rows", MADE_BY)
    panels = {"weight_bytes": ("weights read", "B"), "flops": ("FLOPs", "FLOP"), "latency_s": ("least time", "s")}
    sums = components.group_by("phase", "stage", maintain_order=True).agg(pl.col(list(panels)).sum())
    large = pl.lit(value=False)
    for name in panels:
        large |= (pl.col(name) > _LEAST * pl.col(name).sum().over("phase")).fill_null(value=False)
    stages = sums.filter(large)["stage"].unique(maintain_order=True).to_list()
    table = colours("stage", stages)
    order = list(table)
    plot = (WIDTH - 2 * PADDING - 96 - 2 * _SPACE) // 3
    drawn = []
    for n, (name, (label, unit)) in enumerate(panels.items()):
        rows = sums.filter(pl.col("stage").is_in(order)).select("phase", "stage", value=name)
        whole = pl.col("value").sum().over("phase")
        rows = rows.with_columns(share=(100 * pl.col("value") / whole).fill_nan(0.0))
        rows = rows.with_columns(
            label=pl.col("share").map_elements(percent, return_dtype=pl.String),
            amount=pl.Series([f"{amount(value)}{unit}" for value in rows["value"]], dtype=pl.String),
        )
        drawn.append(_bars(rows, order, table, plot, label, names=n == 0))
    chart: alt.HConcatChart = alt.hconcat(*drawn, spacing=_SPACE).resolve_scale(color="shared")
    most = sums.filter(pl.col("phase") == sums["phase"][-1]).sort("latency_s", descending=True).row(0, named=True)
    total = number(sums.filter(pl.col("phase") == sums["phase"][-1])["latency_s"].sum())
    said = f"{most['stage']} takes {percent(100 * most['latency_s'] / total)} of the least time of {most['phase']}"
    notes = f"Dark: {sums['phase'][0]}; light: {sums['phase'][-1]}. Stages of less than 0.5 % are left out."
    return finish(chart, title or said, f"{notes} Shares of what one rank does.")


def _bars(
    rows: pl.DataFrame, order: list[str], table: dict[str, str], width: float, label: str, *, names: bool
) -> alt.LayerChart:
    phases = rows["phase"].unique(maintain_order=True).to_list()
    axis = alt.Axis(title=None, ticks=False, domain=False, labelFontWeight="bold", labels=names)
    y = alt.Y("stage:N", sort=None, scale=alt.Scale(domain=order), axis=axis)
    top = max(number(rows["share"].max()), 1.0)
    x = alt.X(
        "share:Q",
        scale=alt.Scale(domain=[0, top * 1.25]),
        axis=alt.Axis(title=f"{label} (%)", format=NUMBER, tickCount=4),
    )
    tips = [alt.Tooltip(f"{name}:N") for name in ("stage", "phase", "amount", "label")]
    shade = alt.Color("stage:N", scale=alt.Scale(domain=order, range=list(table.values())), legend=None)
    marks: list[alt.Chart] = []
    for n, phase in enumerate(phases):
        some = inline(rows.filter(pl.col("phase") == phase))
        # moved by the mark: an offset channel would write names into an expression
        place = (n - (len(phases) - 1) / 2) * _ROW / 2
        opacity = 1.0 if n == 0 else 0.55
        bar = alt.Chart(some).mark_bar(size=_ROW / 2 - 1, yOffset=place, opacity=opacity)
        marks.append(bar.encode(x=x, y=y, color=shade, tooltip=tips))
        text = alt.Chart(some).mark_text(align="left", baseline="middle", dx=4, dy=place, fontSize=11, color=INK)
        marks.append(text.encode(x=x, y=y, text="label:N"))
    height = (_ROW + 6) * len(order)
    return layered(*marks).properties(width=width, height=height, title=heading(label))


def theory_parameters(parameters: pl.DataFrame, *, title: str | None = None) -> alt.LayerChart:
    """Parameters of each part of a model.

    Parameters
    ----------
    parameters : polars.DataFrame
        ``theory.profile(...).parameter_table``.
    title : str, optional
        Title instead of the one that says how many there are.

    Returns
    -------
    altair.LayerChart
        900 px wide.

    Raises
    ------
    AnalysisError
        A column is missing, or there are no rows.
    """
    made_by = "llmprof.theory.profile(model, device).parameter_table"
    needed = ("component", "stage", "parameters", "active_parameters")
    require(parameters, needed, chart="theory_parameters", made_by=made_by)
    if parameters.is_empty():
        raise nothing("theory_parameters", "the frame has no rows", made_by)
    rows = parameters.group_by("component", "stage", maintain_order=True).agg(
        pl.col("parameters", "active_parameters").sum()
    )
    rows = rows.sort("parameters", descending=True)
    total, used = number(rows["parameters"].sum()), number(rows["active_parameters"].sum())
    rows = rows.with_columns(
        label=pl.Series([f"{_count(n)} ({percent(100 * n / total)})" for n in rows["parameters"]], dtype=pl.String),
        value=pl.col("parameters") / 1e9,
        active=pl.col("active_parameters") / 1e9,
    )
    table = colours("stage", rows["stage"].unique().to_list())
    order = rows["component"].unique(maintain_order=True).to_list()
    axis = alt.Axis(title=None, ticks=False, domain=False, labelFontWeight="bold")
    y = alt.Y("component:N", sort=None, scale=alt.Scale(domain=order), axis=axis)
    scale = alt.Scale(domain=[0, number(rows["value"].max()) * 1.2])
    x = alt.X("value:Q", scale=scale, axis=alt.Axis(title="parameters (billions)", format=NUMBER))
    shade = alt.Color("stage:N", scale=alt.Scale(domain=list(table), range=list(table.values())), legend=None)
    tips = [alt.Tooltip(f"{name}:N") for name in ("component", "stage", "label")]
    bars = alt.Chart(inline(rows)).mark_bar().encode(x=x, y=y, color=shade, tooltip=tips)
    text = alt.Chart(inline(rows)).mark_text(align="left", baseline="middle", dx=6, fontSize=TEXT_PX, color=INK)
    chart = layered(bars, text.encode(x=x, y=y, text="label:N"))
    chart = chart.properties(width=WIDTH - 2 * PADDING - 130, height=26 * len(order))
    said = f"{_count(total)} parameters"
    if used < total * 0.999:
        said += f", of which a token goes through {_count(used)}"
    return finish(chart, title or said, "Weights and biases of all layers together.")


def _count(number: float) -> str:
    """A count of parameters for people: ``30.5 billion``."""
    for scale, word in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million"), (1e3, "thousand")):
        if number >= scale:
            return f"{number / scale:,.3g} {word}"
    return f"{number:,.0f}"


def theory_roofline(
    components: pl.DataFrame, device: str | hardware.Device, *, dtype: str = "bf16", title: str | None = None
) -> alt.LayerChart:
    """Operators of a model under the roofs of a device, each at the rate that its least time allows.

    Parameters
    ----------
    components : polars.DataFrame
        ``theory.profile(...).components``.
    device : str or Device
        Whose roofs.
    dtype : str
        Type of number of the products.
    title : str, optional
        Title instead of the one that names the longest operator.

    Returns
    -------
    altair.LayerChart
        900 px wide; a point for each operator with FLOPs and phase. The intensity counts the bytes that have to cross
        the device memory; operators without such bytes have no place.

    Raises
    ------
    AnalysisError
        A column is missing, or no operator has FLOPs and bytes.
    """
    needed = ("phase", "component", "stage", "flops", "memory_bytes", "latency_s", "bound")
    require(components, needed, chart="theory_roofline", made_by=MADE_BY)
    found = hardware.device(device)
    peak = found.flop_per_s.get(dtype)
    band = found.memory_bytes_per_s
    rows = components.filter((pl.col("flops") > 0) & (pl.col("memory_bytes") > 0) & (pl.col("latency_s") > 0))
    if rows.is_empty() or not peak or not band:
        raise nothing("theory_roofline", "no operator has FLOPs and bytes under known roofs", MADE_BY)
    intensity = pl.col("flops") / pl.col("memory_bytes")
    frame = rows.with_columns(arithmetic_intensity=intensity).select(
        "stage",
        "arithmetic_intensity",
        "bound",
        kernel_name=pl.concat_str("component", pl.lit(" ("), "phase", pl.lit(")")),
        duration_ns=pl.col("latency_s") * 1e9,
        dtype=pl.lit(dtype),
        flop_per_s=pl.col("flops") / pl.col("latency_s"),
        roof_flop_per_s=pl.min_horizontal(pl.lit(peak), pl.col("arithmetic_intensity") * band),
        roof_share=pl.lit(1.0),
    )
    longest = frame.sort("duration_ns", descending=True).row(0, named=True)
    said = title or f"{longest['kernel_name']} takes the most time, and is bound by {longest['bound']}"
    chart = roofline(frame, peaks=found, title=said)
    return finish(chart, said, "A point is an operator over all layers on a rank; its area is its least time.")
