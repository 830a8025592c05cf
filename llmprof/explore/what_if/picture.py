"""Picture of a prediction: the time of a step of each phase, recorded and predicted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import altair as alt
import polars as pl

from llmprof.charts.base.draw import inline, number
from llmprof.charts.base.theme import INK, MUTED, TEXT_PX, finish, inner, layered, row_axis, text_px, time_unit
from llmprof.units import format_ns

RECORDED, PREDICTED = "recorded", "predicted"
_COLOURS: Final = {RECORDED: MUTED, PREDICTED: "#6FB1E8"}
_ROW: Final = 46
"""Height of a phase (px)."""

_LABEL: Final = 76
"""Room for a time behind a bar (px)."""


def step_times(frame: pl.DataFrame, *, title: str, changes: Sequence[str]) -> alt.LayerChart:
    """Bars of the recorded and the predicted time of a step, by phase; a line is the interval of the prediction."""
    named = frame.with_columns(row=pl.col("phase").fill_null("the recording"))
    unit = time_unit(number(frame.select(pl.max_horizontal("recorded_ns", "predicted_ns", "high_ns")).max().item()))
    parts = [
        named.select(
            "row", what=pl.lit(what), time=pl.col(f"{what}_ns") / unit.ns, low=low / unit.ns, high=high / unit.ns,
            text=pl.col(f"{what}_ns").map_elements(format_ns, return_dtype=pl.String),
        )
        for what, low, high in (
            (RECORDED, pl.lit(None, pl.Float64), pl.lit(None, pl.Float64)),
            (PREDICTED, pl.col("low_ns"), pl.col("high_ns")),
        )
    ]  # fmt: skip
    rows = list(named["row"].unique(maintain_order=True))
    width = inner() - 20 - _LABEL - round(max(text_px(row, TEXT_PX) for row in rows))
    base = alt.Chart(inline(pl.concat(parts))).encode(
        y=row_axis(rows), yOffset=alt.YOffset("what:N", scale=alt.Scale(domain=[RECORDED, PREDICTED]))
    )
    times = alt.X("time:Q", title=f"median time of a step ({unit.symbol})", axis=alt.Axis(grid=True, tickCount=8))
    colour = alt.Color(
        "what:N",
        scale=alt.Scale(domain=list(_COLOURS), range=list(_COLOURS.values())),
        sort=None,
        legend=alt.Legend(title=None, orient="top", direction="horizontal", symbolType="square"),
    )
    bars = base.mark_bar(height=14).encode(x=times, color=colour)
    between = base.transform_filter("isValid(datum.low) && datum.high > datum.low").mark_rule(color=INK, strokeWidth=2)
    ends = base.mark_text(align="left", dx=6, color=INK, fontSize=TEXT_PX).transform_calculate(
        end="max(datum.time, isValid(datum.high) ? datum.high : 0)"
    )
    chart = layered(
        bars, between.encode(x="low:Q", x2="high:Q"), ends.encode(x="end:Q", text="text:N")
    ).properties(width=width, height=_ROW * len(rows))  # fmt: skip
    how = "Predicted by replaying the recorded dependencies; the line is the interval of the prediction."
    made = f"Changes: {'; '.join(changes)}." if changes else "Without any change."
    return finish(chart, title, [made, how])
