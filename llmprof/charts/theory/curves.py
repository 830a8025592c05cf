"""Least latency, throughput and memory over a range of batches, lengths or ranks, with measured points."""

from __future__ import annotations

import altair as alt
import polars as pl

from llmprof.charts.base.data import inline, nothing, number, require
from llmprof.charts.base.theme import (
    COMMUNICATION,
    COMPUTE,
    INK,
    MUTED,
    NUMBER,
    PADDING,
    STAGES,
    TEXT_PX,
    WIDTH,
    finish,
    heading,
    layered,
    time_unit,
)
from llmprof.units import format_ns

MADE_BY = "llmprof.theory.sweep(model, device)"
OVER = {
    "batch_size": "requests (log scale)",
    "seq_len": "prompt tokens (log scale)",
    "generate_len": "output tokens (log scale)",
    "tp_size": "tensor-parallel ranks (log scale)",
}
KINDS = {"least time": COMPUTE, "predicted": "#009E73", "measured": COMMUNICATION}
_NEEDED = ("over", "value", "prefill_s", "decode_s", "tokens_per_s")
_SPACE, _HEIGHT = 40, 240


def theory_curves(
    sweep: pl.DataFrame, *, measured: pl.DataFrame | None = None, title: str | None = None
) -> alt.HConcatChart:
    """Least prefill and decode times and the highest throughput over a range.

    Parameters
    ----------
    sweep : polars.DataFrame
        ``theory.sweep(model, device)``; predicted times are drawn where it has them.
    measured : polars.DataFrame, optional
        ``value`` and any of ``prefill_s, decode_s, tokens_per_s``: points of a trace or run.
    title : str, optional
        Title instead of the one that says the range.

    Returns
    -------
    altair.HConcatChart
        900 px wide; logarithmic axes. A line for the least time, one for predicted times (no bounds), measured points.

    Raises
    ------
    AnalysisError
        A column is missing, or there are no rows.
    """
    require(sweep, _NEEDED, chart="theory_curves", made_by=MADE_BY)
    if sweep.is_empty():
        raise nothing("theory_curves", "the frame has no rows", MADE_BY)
    over = OVER.get(str(sweep["over"][0]), "value (log scale)")
    panels = [
        _panel(_long(sweep, measured, "prefill_s"), "first token", over, time=True),
        _panel(_long(sweep, measured, "decode_s"), "decode step", over, time=True),
        _panel(_long(sweep, measured, "tokens_per_s"), "output tokens a second", over, time=False),
    ]
    low, high = (format_ns(1e9 * number(sweep["decode_s"][at])) for at in (0, -1))
    first, last = int(sweep["value"][0]), int(sweep["value"][-1])
    what = over.removesuffix(" (log scale)")
    said = f"A decode step takes at least {low} at {first:,} and {high} at {last:,} {what}"
    kinds = [kind for kind in KINDS if kind == "least time" or _has(sweep, measured, kind)]
    notes = "Blue: least time at the device's stated peaks."
    notes += " Green: predicted by a calibration, no bound." if "predicted" in kinds else ""
    notes += " Orange points: measured." if "measured" in kinds else ""
    return finish(alt.hconcat(*panels, spacing=_SPACE), title or said, notes)


def _has(sweep: pl.DataFrame, measured: pl.DataFrame | None, kind: str) -> bool:
    if kind == "measured":
        return measured is not None and measured.height > 0
    return "predicted_decode_s" in sweep.columns and sweep["predicted_decode_s"].is_not_null().any()


def _long(sweep: pl.DataFrame, measured: pl.DataFrame | None, column: str) -> pl.DataFrame:
    """``value, y, kind`` of one quantity."""
    parts = [sweep.select("value", y=pl.col(column).cast(pl.Float64), kind=pl.lit("least time"))]
    predicted = f"predicted_{column}"
    if column == "tokens_per_s" and "predicted_decode_s" in sweep.columns and "batch_size" in sweep.columns:
        made = pl.col("batch_size") / pl.col("predicted_decode_s")
        parts.append(sweep.select("value", y=made, kind=pl.lit("predicted")))
    elif predicted in sweep.columns:
        parts.append(sweep.select("value", y=pl.col(predicted).cast(pl.Float64), kind=pl.lit("predicted")))
    if measured is not None and column in measured.columns:
        parts.append(
            measured.select(pl.col("value").cast(pl.Int64), y=pl.col(column).cast(pl.Float64), kind=pl.lit("measured"))
        )
    return pl.concat(parts).drop_nulls("y").filter(pl.col("y") > 0)


def _panel(rows: pl.DataFrame, label: str, over: str, *, time: bool) -> alt.LayerChart:
    width = (WIDTH - 2 * PADDING - 2 * _SPACE) // 3 - 46
    if time:
        unit = time_unit(1e9 * number(rows["y"].max()))
        rows = rows.with_columns(
            y=pl.col("y") * 1e9 / unit.ns, said=(pl.col("y") * 1e9).map_elements(format_ns, return_dtype=pl.String)
        )
        axis = f"{unit.symbol} (log scale)"
    else:
        rows = rows.with_columns(said=pl.col("y").map_elements(lambda v: f"{v:,.0f}", return_dtype=pl.String))
        axis = "tokens/s (log scale)"
    ticks = rows["value"].unique().sort().to_list()
    few = [tick for n, tick in enumerate(ticks) if n % (1 + (len(ticks) - 1) // 5) == 0]
    x = alt.X(
        "value:Q", scale=alt.Scale(type="log", base=2, nice=False),
        axis=alt.Axis(title=over, values=few, format=NUMBER, grid=False),
    )  # fmt: skip
    y = alt.Y("y:Q", scale=alt.Scale(type="log", nice=True), axis=alt.Axis(title=axis, format=NUMBER, tickCount=4))
    tips = [alt.Tooltip("kind:N"), alt.Tooltip("value:Q", title=over), alt.Tooltip("said:N", title=label)]
    marks: list[alt.Chart] = []
    for kind, shade in KINDS.items():
        some = rows.filter(pl.col("kind") == kind)
        if some.is_empty():
            continue
        base = alt.Chart(inline(some))
        if kind != "measured":
            dash = [1, 0] if kind == "least time" else [5, 3]
            marks.append(base.mark_line(color=shade, strokeWidth=2, strokeDash=dash).encode(x=x, y=y))
        shape = "circle" if kind != "measured" else "diamond"
        size = 30 if kind != "measured" else 80
        point = base.mark_point(filled=True, opacity=1, color=shade, shape=shape, size=size)
        marks.append(point.encode(x=x, y=y, tooltip=tips))
    return layered(*marks).properties(width=width, height=_HEIGHT, title=heading(label))


def theory_memory(sweep: pl.DataFrame, *, title: str | None = None) -> alt.LayerChart:
    """Memory of a rank over a range: weights, KV cache, activations, and what the device has.

    Parameters
    ----------
    sweep : polars.DataFrame
        ``theory.sweep(model, device)``.
    title : str, optional
        Title instead of the one that says what fits.

    Returns
    -------
    altair.LayerChart
        900 px wide.

    Raises
    ------
    AnalysisError
        A column is missing, or there are no rows.
    """
    parts = {"weights_bytes": "weights", "kv_cache_bytes": "KV cache", "activations_bytes": "activations"}
    require(sweep, ["over", "value", "device_bytes", *parts], chart="theory_memory", made_by=MADE_BY)
    if sweep.is_empty():
        raise nothing("theory_memory", "the frame has no rows", MADE_BY)
    table = {"weights": STAGES["gate_up_proj"], "KV cache": STAGES["attention"], "activations": STAGES["norm"]}
    rows = sweep.sort("value").select("value", *parts).unpivot(index="value", variable_name="part", value_name="bytes")
    rows = rows.with_columns(
        part=pl.col("part").replace_strict(parts), gb=pl.col("bytes") / 1e9, at=pl.col("value").cast(pl.String)
    )
    end = pl.col("gb").cum_sum().over("value")
    order = {name: n for n, name in enumerate(table)}
    rows = rows.sort("value", pl.col("part").replace_strict(order, return_dtype=pl.Int64)).with_columns(
        start=end - pl.col("gb"), end=end
    )
    over = OVER.get(str(sweep["over"][0]), "value").removesuffix(" (log scale)")
    names = rows["at"].unique(maintain_order=True).to_list()
    x = alt.X("at:N", sort=None, scale=alt.Scale(domain=names), axis=alt.Axis(title=over, labelAngle=0, ticks=False))
    limit = sweep["device_bytes"][0]
    top = max(number(rows["end"].max()), number(limit) / 1e9 if limit else 0.0)
    y = alt.Y("start:Q", scale=alt.Scale(domain=[0, top * 1.08]), axis=alt.Axis(title="GB on a rank", format=NUMBER))
    legend = alt.Legend(title=None, orient="top", direction="horizontal", symbolType="square")
    shade = alt.Color(
        "part:N", scale=alt.Scale(domain=list(table), range=list(table.values())), sort=None, legend=legend
    )
    tips = [alt.Tooltip("part:N"), alt.Tooltip("at:N", title=over), alt.Tooltip("gb:Q", format=",.2f", title="GB")]
    bars = alt.Chart(inline(rows)).mark_bar().encode(x=x, y=y, y2="end:Q", color=shade, tooltip=tips)
    marks = [bars]
    fit = sweep.filter(pl.col("fits").fill_null(value=False)) if "fits" in sweep.columns else sweep.clear()
    if limit:
        line = pl.DataFrame(
            {"limit": [number(limit) / 1e9], "label": [f"the device has {number(limit) / 1e9:,.0f} GB"]}
        )
        level = alt.Y("limit:Q", scale=alt.Scale(domain=[0, top * 1.08]))
        marks.append(alt.Chart(inline(line)).mark_rule(color=INK, strokeWidth=1.5, strokeDash=[6, 4]).encode(y=level))
        text = alt.Chart(inline(line)).mark_text(align="left", baseline="bottom", dy=-4, fontSize=TEXT_PX, color=MUTED)
        marks.append(text.encode(x=alt.value(4), y=level, text="label:N"))
    said = "Memory of a rank"
    if limit and fit.height:
        most = fit.sort("value").row(-1, named=True)
        said = f"{int(most['value']):,} {over} is the most drawn here that fits"
    elif limit:
        said = "Nothing drawn here fits the device"
    chart = layered(*marks).properties(width=WIDTH - 2 * PADDING - 70, height=300)
    return finish(
        chart, title or said, "Cache of whole requests to their ends; activations of a step of at most 16,384 tokens."
    )
