"""Measured time against its bound, stage by stage; and predicted against measured."""

from __future__ import annotations

import altair as alt
import polars as pl

from llmprof.charts.base.data import constant, inline, nothing, number, require
from llmprof.charts.base.theme import (
    CAUSES,
    COMPUTE,
    INK,
    MUTED,
    NUMBER,
    PADDING,
    REST,
    TEXT_PX,
    WAIT,
    WIDTH,
    finish,
    heading,
    layered,
    percent,
    shorten,
    time_unit,
)
from llmprof.units import format_ns

MADE_BY = "llmprof.analyze.roofline_join(trace, model)"
REASONS = {
    "least time": COMPUTE,
    "kernel below the roof": "#8FB8DE",
    "fixed cost of kernels": "#D9B300",
    "wait for others": WAIT,
    "launch gap": CAUSES["host_bound"],
    "at the roof": "#C7DCEF",
    "no bound": REST,
}
"""What a step's time is: its least time, and the reasons of what goes beyond."""

_NEEDED = ("phase", "step", "stage", "measured_ns", "bound_ns", "why")
_MOST = 14


def bound_gap(joined: pl.DataFrame, *, title: str | None = None) -> alt.VConcatChart:
    """Where the time of a step goes beyond its bound.

    Parameters
    ----------
    joined : polars.DataFrame
        ``analyze.roofline_join(trace, model)`` by stage.
    title : str, optional
        Title instead of the one that says how near the steps come to their bound.

    Returns
    -------
    altair.VConcatChart
        900 px wide; a panel for each phase. A bar is the mean time of a stage in a step and rank; its first part is
        the least time, the rest the gap in the colour of its reason.

    Raises
    ------
    AnalysisError
        A column is missing, or there are no rows.
    """
    require(joined, _NEEDED, chart="bound_gap", made_by=MADE_BY)
    if joined.is_empty():
        raise nothing("bound_gap", "the frame has no rows", MADE_BY)
    present = set(joined["phase"].drop_nulls())
    phases = [p for p in ("prefill", "mixed", "decode") if p in present]
    phases += sorted(present - set(phases))
    panels = [_panel(joined.filter(pl.col("phase") == phase), phase) for phase in phases]
    reasons = set(joined["why"])
    table = {name: shade for name, shade in REASONS.items() if name == "least time" or name in reasons}
    chart = alt.vconcat(_legend(table), *panels, spacing=16)
    last = joined.filter(pl.col("phase") == phases[-1])
    measured, bound = number(last["measured_ns"].sum()), number(last["bound_ns"].sum())
    reached = percent(100 * bound / measured) if measured else "0 %"
    said = f"The least time is {reached} of the measured {shorten(str(phases[-1]), 40)} steps"
    notes = (
        "Mean of a step and rank (us, ms). Least time: at the stated peaks of the device. The rest of a bar is the gap."
    )
    return finish(chart, title or said, notes)


def _panel(rows: pl.DataFrame, phase: str) -> alt.LayerChart:
    steps = rows.select("rank", "step").n_unique() if "rank" in rows.columns else rows["step"].n_unique()
    sums = rows.group_by("stage").agg(
        pl.col("measured_ns", "bound_ns").sum() / steps, why=pl.col("why").sort_by("measured_ns").last()
    )
    sums = sums.sort("measured_ns", "stage", descending=[True, False])
    shown = sums.head(_MOST)
    if sums.height > _MOST:
        rest = sums.tail(-_MOST).select(
            stage=pl.lit(f"{sums.height - _MOST} more"),
            measured_ns=pl.col("measured_ns").sum(),
            bound_ns=pl.col("bound_ns").sum(),
            why=pl.lit("no bound"),
        )
        shown = pl.concat([shown, rest.head(1)])
    unit = time_unit(number(shown["measured_ns"].max()))
    bound = pl.min_horizontal("bound_ns", "measured_ns")
    data = pl.concat(
        [
            shown.select("stage", part=pl.lit("least time"), start=pl.lit(0.0), end=bound / unit.ns),
            shown.select("stage", part="why", start=bound / unit.ns, end=pl.col("measured_ns") / unit.ns),
        ],
        how="vertical_relaxed",
    ).filter(pl.col("end") > pl.col("start"))
    share = (100 * pl.col("bound_ns") / pl.col("measured_ns")).fill_nan(0.0)
    known = pl.when(pl.col("bound_ns") > 0).then(
        pl.concat_str(pl.lit(", "), share.map_elements(percent, return_dtype=pl.String), pl.lit(" of it least time"))
    )
    labels = shown.select(
        "stage",
        end=pl.col("measured_ns") / unit.ns,
        label=pl.concat_str(
            pl.col("measured_ns").map_elements(format_ns, return_dtype=pl.String), known.fill_null(pl.lit(""))
        ),
    )
    order = shown["stage"].to_list()
    axis = alt.Axis(title=None, ticks=False, domain=False, labelFontWeight="bold")
    y = alt.Y("stage:N", sort=None, scale=alt.Scale(domain=order), axis=axis)
    scale = alt.Scale(domain=[0, number(labels["end"].max()) * 1.38 or 1.0])
    x = alt.X("start:Q", scale=scale, axis=alt.Axis(title=f"time ({unit.symbol})", format=NUMBER, tickCount=8))
    colour = alt.Color("part:N", scale=alt.Scale(domain=list(REASONS), range=list(REASONS.values())), legend=None)
    tips = [alt.Tooltip("stage:N"), alt.Tooltip("part:N")]
    bars = alt.Chart(inline(data)).mark_bar().encode(x=x, x2="end:Q", y=y, color=colour, tooltip=tips)
    text = alt.Chart(inline(labels)).mark_text(align="left", baseline="middle", dx=6, fontSize=TEXT_PX, color=INK)
    texts = text.encode(x=alt.X("end:Q", scale=scale), y=y, text="label:N")
    named = f"{phase}: {steps} step{'s' if steps != 1 else ''} of a rank"
    return layered(bars, texts).properties(
        width=WIDTH - 2 * PADDING - 120, height=24 * len(order), title=heading(named)
    )


def _legend(table: dict[str, str]) -> alt.LayerChart:
    """Colours of the reasons in one row."""
    marks: list[alt.Chart] = []
    at = 6.0
    for name, shade in table.items():
        square = alt.Chart(constant({})).mark_point(shape="square", filled=True, size=130, color=shade, opacity=1)
        marks.append(square.encode(x=alt.value(at), y=alt.value(8)))
        text = alt.Chart(constant({})).mark_text(align="left", baseline="middle", fontSize=TEXT_PX, color=INK)
        marks.append(text.encode(x=alt.value(at + 11), y=alt.value(8), text=alt.value(name)))
        at += 30 + 6.4 * len(name)
    return layered(*marks).properties(width=WIDTH - 2 * PADDING - 120, height=16)


def predicted(frame: pl.DataFrame, *, title: str | None = None) -> alt.LayerChart:
    """Predicted against measured times of a calibration, with the bound of each.

    Parameters
    ----------
    frame : polars.DataFrame
        ``calibration.predict(observations)``.
    title : str, optional
        Title instead of the one that says the error.

    Returns
    -------
    altair.LayerChart
        900 px wide; logarithmic axes. On the line, prediction and measurement agree; the band is 25 %.

    Raises
    ------
    AnalysisError
        A column is missing, or there are no rows.
    """
    made_by = "llmprof.theory.calibrated(device).predict(observations)"
    needed = ("model", "kind", "requests", "context", "measured_s", "predicted_s", "bound_s")
    require(frame, needed, chart="predicted", made_by=made_by)
    if frame.is_empty():
        raise nothing("predicted", "the frame has no rows", made_by)
    rows = frame.select(
        "model",
        "kind",
        "requests",
        "context",
        measured=pl.col("measured_s") * 1e3,
        predicted=pl.col("predicted_s") * 1e3,
        bound=pl.col("bound_s") * 1e3,
        error=100 * (pl.col("predicted_s") / pl.col("measured_s") - 1),
    )
    low = 0.7 * min(number(rows["measured"].min()), number(rows["predicted"].min()))
    high = 1.4 * max(number(rows["measured"].max()), number(rows["predicted"].max()))
    scale = alt.Scale(type="log", domain=[low, high], nice=False)
    x = alt.X("measured:Q", scale=scale, axis=alt.Axis(title="measured (ms, log scale)", format=NUMBER, tickCount=6))
    y = alt.Y("predicted:Q", scale=scale, axis=alt.Axis(title="predicted (ms, log scale)", format=NUMBER, tickCount=6))
    ends = pl.DataFrame({"measured": [low, high]}).with_columns(
        predicted="measured", under=pl.col("measured") * 0.75, over=(pl.col("measured") * 1.25)
    )
    band = (
        alt.Chart(inline(ends))
        .mark_area(color="#EDF0F3", clip=True)
        .encode(x=x, y=alt.Y("under:Q", scale=scale), y2="over:Q")
    )
    line = alt.Chart(inline(ends)).mark_line(color=MUTED, strokeWidth=1).encode(x=x, y=y)
    models = rows["model"].unique().sort().to_list()
    shades = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#8B6F47", "#56B4E9", "#332288", "#999933", "#B2182B"]
    colour = alt.Color(
        "model:N",
        scale=alt.Scale(domain=models, range=[shades[n % len(shades)] for n in range(len(models))]),
        legend=alt.Legend(title=None, orient="top", direction="horizontal", symbolType="circle", columns=5),
    )
    shape = alt.Shape(
        "kind:N",
        scale=alt.Scale(domain=["decode", "prefill", "stage"], range=["circle", "square", "triangle-up"]),
        legend=alt.Legend(title=None, orient="top", direction="horizontal"),
    )
    tips = [alt.Tooltip("model:N"), alt.Tooltip("kind:N"), alt.Tooltip("requests:Q"), alt.Tooltip("context:Q")]
    tips += [alt.Tooltip(f"{name}:Q", format=",.3f") for name in ("measured", "predicted", "bound")]
    tips.append(alt.Tooltip("error:Q", format="+.1f", title="error (%)"))
    points = alt.Chart(inline(rows)).mark_point(filled=True, size=70, opacity=0.85, stroke="#FFFFFF", strokeWidth=0.7)
    drawn = points.encode(x=x, y=y, color=colour, shape=shape, tooltip=tips)
    chart = layered(band, line, drawn).properties(width=WIDTH - 2 * PADDING - 70, height=430)
    errors = rows["error"].abs()
    middle, worst = percent(number(errors.median())), percent(number(errors.max()))
    said = f"Predictions are off by {middle} in the median, {worst} at worst"
    notes = "A point is a measured step. The band is 25 % to both sides. Predictions are no bounds."
    return finish(chart, title or said, notes)
