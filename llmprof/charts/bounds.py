"""What a step would gain from operators nearer to their bounds, and what of it remains."""

from __future__ import annotations

import altair as alt
import polars as pl

from llmprof.charts.base import compose, draw, theme
from llmprof.charts.compare import waterfall
from llmprof.text import shorten
from llmprof.units import format_ns

_COLUMNS = ("phase", "part", "kind", "time_ns", "bound_ns", "target_share", "gap_ns", "gain_ns")
_REMAINS = {"at target": theme.COMPUTE, "no bound": theme.COPY, "idle": theme.IDLE}
_TABLE = {"time of a step": theme.MUTED, "beyond the target": theme.FASTER, **_REMAINS}
_SMALLER, _LEAST = "smaller ones", 0.01
"""Kinds with less than this share of all gaps are one row."""


@draw.chart_of(
    "llmprof.analyze.opportunities(trace)", refuses="no operator has a bound, or all are at their target", runs=False
)
def opportunities(frame: pl.DataFrame, *, phase: str | None = None, title: str | None = None) -> alt.VConcatChart:
    """Waterfall from the time of a step to that with every operator at its target, by kind; and what then remains.

    Below is the time that the replay predicts: it is longer where something else, such as the host, sets the pace.

    Parameters
    ----------
    phase : str, optional
        Phase whose steps are meant; the one with most time if not given.

    Examples
    --------
    >>> trace = llmprof.sample("torch_transformers_generate")
    >>> chart = charts.opportunities(analyze.opportunities(trace))
    """
    draw.require(frame, _COLUMNS, chart="opportunities")
    chosen = frame["phase"][0] if phase is None and frame.height else phase
    rows = frame.filter(pl.col("phase").eq_missing(pl.lit(chosen, dtype=pl.String)))
    step = rows.filter(part="step")
    gaps = rows.filter(pl.col("part").is_in(["opportunity", "others"]) & (pl.col("gap_ns") > 0))
    if gaps.is_empty():
        raise draw.nothing("opportunities", "no operator has a bound, or all are at their target")
    whole, gap, gain = (draw.number(step[name][0]) for name in ("time_ns", "gap_ns", "gain_ns"))
    targets = gaps["target_share"].drop_nulls().unique()
    target = f"{theme.percent(100 * targets[0])} of its bound" if len(targets) == 1 else "its target"
    kinds = gaps.with_columns(row=pl.when(pl.col("part") == "opportunity").then("kind").fill_null(_SMALLER))
    small = pl.col("gap_ns").sum().over("row") < _LEAST * gap
    kinds = kinds.with_columns(row=pl.when(small).then(pl.lit(_SMALLER)).otherwise("row"))
    sums = kinds.group_by("row").agg(pl.col("time_ns", "bound_ns", "gap_ns").sum())
    sums = sums.sort(pl.col("row") == _SMALLER, "gap_ns", "row", descending=[False, True, False])
    left = whole - sums["gap_ns"].cum_sum()
    parts = sums.select(
        pl.col("row").map_elements(lambda name: shorten(name, 44), return_dtype=pl.String),
        from_ns=left + sums["gap_ns"], to_ns=left, group=pl.lit("part"), way=pl.lit("beyond the target"),
        text=pl.Series([f"−{format_ns(ns)}" for ns in sums["gap_ns"]]),
        both=pl.Series([
            f"{format_ns(time)} a step, at {theme.percent(100 * bound / time)} of the bound"
            for time, bound in sums.select("time_ns", "bound_ns").iter_rows()
        ]),
    )  # fmt: skip
    totals = [
        pl.DataFrame([(name, 0.0, ns, "total", "time of a step", format_ns(ns), "")], schema=parts.schema, orient="row")
        for name, ns in (("a step", whole), ("without these", whole - gap), ("by the replay", whole - gain))
    ]
    name = pl.col("part").cast(pl.String).replace(["opportunity", "others"], "at target")
    left_over = pl.col("time_ns").sum() - pl.col("gap_ns").fill_null(0).sum()
    parts_left = rows.with_columns(part=name).filter(pl.col("part").is_in(list(_REMAINS)))
    remaining = parts_left.group_by("part").agg(ns=left_over).with_columns(row=pl.lit("what remains"))
    table = {name: shade for name, shade in _TABLE.items() if name not in _REMAINS or name in remaining["part"]}
    panel, least = waterfall(pl.concat([totals[0], parts, *totals[1:]]), "time of a step", table)
    width = theme.inner() - 24 - round(theme.text_px("what remains", theme.TEXT_PX))
    bar = draw.stacked_bars(remaining, table, width=width, title="time of a step")
    panels = [panel, theme.layered(*bar).properties(width=width, height=30)]
    subject = "The recording" if chosen is None else f"A step of {chosen}" if chosen != "other" else "A step"
    then = format_ns(whole - gain) if gain >= 0.005 * whole else "as long"
    said = f"{subject}: {format_ns(whole)}, and {then} with every operator at {target}"
    notes = [f"What each kind of operator takes beyond {target}; a replay of the recording says what a step gains."]
    if least:
        notes.append(f"The axis begins at {format_ns(least)}.")
    beside = -draw.number(rows.filter(part="beside other work")["time_ns"].sum())
    if beside > 0.005 * whole:
        notes.append(f"Work at the same time counts twice below: {format_ns(beside)}.")
    return theme.finish(compose.rows(*panels, spacing=20), title or said, " ".join(notes))
