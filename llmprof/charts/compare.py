"""Difference of two traces: what got faster, what got slower, what is only in one."""

from __future__ import annotations

from typing import Any

import altair as alt
import polars as pl

from llmprof.arguments import AtLeastOne
from llmprof.charts.base.data import constant, inline, nothing, number, require
from llmprof.charts.base.theme import (
    FASTER,
    INK,
    MUTED,
    NUMBER,
    PADDING,
    PHASES,
    SAME,
    SLOWER,
    TEXT_PX,
    WIDTH,
    Unit,
    colour,
    finish,
    heading,
    layered,
    row_axis,
    shorten,
    text_px,
    time_unit,
)
from llmprof.units import format_ns

_SOURCE = "llmprof.analyze.diff(a, b)"
_COLUMNS = ("phase", "stage", "category", "a_ns", "b_ns", "delta_ns", "status")
_ROW = 24
MIN_PX = 2
"""Least length of a bar, so that its colour shows."""

MIN_SHARE = 0.002
"""Share of a phase's time, in the trace where it is shorter, below which a change goes into ``other (n)``."""


def diff(
    frame: pl.DataFrame, *, names: tuple[str, str] = ("a", "b"), top: AtLeastOne = 12, title: str | None = None
) -> alt.VConcatChart:
    """Diverging bars of the change from a to b, the largest first, a panel a phase.

    Parameters
    ----------
    frame : polars.DataFrame
        Rows of ``diff(a, b)``, of which the parts of a step are drawn, or of ``diff_events(a, b)``.
    names : (str, str)
        What the two traces are called.
    top : int
        Bars a phase; the rest, and changes below 0.2 % of the phase, are gathered in ``other (n)``.
    title : str, optional
        Title instead of the one that says what is shown.

    Returns
    -------
    altair.VConcatChart
        900 px wide. Each phase has a time axis of its own, all in one unit.

    Raises
    ------
    AnalysisError
        A column is missing, or nothing differs.

    Examples
    --------
    >>> chart = charts.diff(analyze.diff(llmprof.sample("torch_tp1_eager"), trace))
    """
    require(frame, _COLUMNS, chart="diff", made_by=_SOURCE)
    by_part = "level" in frame.columns
    if by_part:
        frame = _parts(frame)
    first, second = (shorten(name, 40) for name in names)
    rows = frame.with_columns(pl.col("phase").fill_null("no phase"), row=_row_name(frame))
    known = rows.drop_nulls("delta_ns")
    if (known["delta_ns"] == 0).all():
        raise nothing("diff", "no time differs in a phase that both traces have", _SOURCE)
    unit = time_unit(number(known["delta_ns"].abs().max()))
    table = {f"faster in {second}": FASTER, f"slower in {second}": SLOWER, "about the same": SAME}
    places = {name: i for i, name in enumerate(PHASES)}
    phases = sorted(known["phase"].unique(), key=lambda p: (places.get(p, len(places)), p))
    phases = [phase for phase in phases if (known.filter(phase=phase)["delta_ns"] != 0).any()]
    width = WIDTH - 2 * PADDING - 24 - min(250, round(max(text_px(row, TEXT_PX) for row in known["row"])))
    panels = []
    for phase in phases:
        part = known.filter(phase=phase)
        a, b = (format_ns(number(part[column].sum())) for column in ("a_ns", "b_ns"))
        head = f"{phase}: {a} in {first}, {b} in {second}"
        panel = _panel(
            _gather(part, top, by_part=by_part), table, unit, width, (first, second), last=phase == phases[-1]
        )
        panels.append(panel.properties(title=heading(head)))
    what = "Time from step to step on a rank" if by_part else "Device time a step and rank"
    notes = [f"{what}: {second} minus {first}, in brackets the factor. Each phase has its own axis."]
    if alone := sorted(set(rows["phase"]) - set(known["phase"])):
        notes.append(f"In one trace only, and not compared: {', '.join(alone)}.")
    return finish(
        alt.vconcat(*panels, spacing=20), title or _headline(known, phases, first, second, by_part=by_part), notes
    )


def _parts(frame: pl.DataFrame) -> pl.DataFrame:
    """Parts of the steps, and the time to the next one, in the columns of events."""
    rows = frame.filter(pl.col("level").is_in(["part", "between"]))
    part = pl.when(pl.col("level") == "between").then(pl.lit("until the next step")).otherwise("part")
    idle = pl.col("kind") == "idle"
    named = pl.when(idle).then(pl.format("idle: {}", part.str.replace("_", " "))).otherwise(part)
    return rows.with_columns(stage=named, category="kind")


def _row_name(frame: pl.DataFrame) -> pl.Expr:
    """Stage; with its category where a stage has several."""
    stage, category = pl.col("stage").fill_null("other"), pl.col("category").fill_null("other")
    several = category.n_unique().over(pl.col("phase"), stage) > 1
    return pl.when(several & (stage != category)).then(pl.format("{} ({})", stage, category)).otherwise(stage)


def _gather(rows: pl.DataFrame, top: int, *, by_part: bool) -> pl.DataFrame:
    """The largest changes, and one row for all the others: ``row, a_ns, b_ns, delta_ns, status``."""
    columns = ["a_ns", "b_ns", "delta_ns"]
    named = rows.group_by("row").agg(pl.col(columns).sum(), pl.col("status").first())
    named = named.filter(pl.col("delta_ns") != 0).sort(pl.col("delta_ns").abs(), "row", descending=[True, False])
    smaller = min(number(rows["a_ns"].sum()), number(rows["b_ns"].sum()))
    large = pl.col("delta_ns").abs() >= MIN_SHARE * smaller
    matters = large if by_part else large | pl.col("status").is_in(["only_a", "only_b"])
    kept = named.filter(matters).head(top)
    rest = named.join(kept, on="row", how="anti", maintain_order="left")
    if rest.is_empty():
        return kept
    name = pl.lit(f"other ({rest.height})").alias("row")
    return pl.concat([kept, rest.select(name, pl.col(columns).sum(), pl.lit("gathered").alias("status"))])


def _panel(
    rows: pl.DataFrame, table: dict[str, str], unit: Unit, width: int, names: tuple[str, str], *, last: bool
) -> alt.LayerChart:
    faster, slower, same = table
    direction = pl.when(pl.col("delta_ns") < 0).then(pl.lit(faster)).otherwise(pl.lit(slower))
    data = rows.with_columns(
        delta=pl.col("delta_ns") / unit.ns,
        change=pl.when(pl.col("status") == "same").then(pl.lit(same)).otherwise(direction),
        label=pl.Series([_label(row, names) for row in rows.iter_rows(named=True)], dtype=pl.String),
    )
    less, more = data.filter(pl.col("delta_ns") < 0), data.filter(pl.col("delta_ns") >= 0)
    least, most = min(0.0, number(data["delta"].min())), max(0.0, number(data["delta"].max()))
    left, right = (max(map(text_px, part["label"]), default=0) + 12 for part in (less, more))
    per_px = (most - least) / max(200.0, width - left - right)
    scale = alt.Scale(domain=[least - left * per_px, most + right * per_px], nice=False)
    title = f"change of the time of a step ({unit.symbol})" if last else None
    axis = alt.Axis(title=title, format=NUMBER, tickCount=8)
    x = alt.X("delta:Q", scale=scale, axis=axis)
    sign = pl.when(pl.col("delta") < 0).then(-1).otherwise(1)
    data = data.with_columns(drawn=sign * pl.max_horizontal(pl.col("delta").abs(), pl.lit(MIN_PX * per_px)))
    y = row_axis(data["row"])
    tips = [alt.Tooltip("row:N", title="part"), alt.Tooltip("label:N", title="change"), alt.Tooltip("status:N")]
    bars = (
        alt.Chart(inline(data))
        .mark_bar()
        .encode(x=alt.X("drawn:Q", scale=scale, axis=axis), y=y, color=colour("change", table), tooltip=tips)
    )
    zero = alt.Chart(constant({"delta": 0})).mark_rule(color=MUTED).encode(x=x)
    before = alt.Chart(inline(less.select("row", "delta", "label"))).mark_text(align="right", dx=-5, color=INK)
    behind = alt.Chart(inline(more.select("row", "delta", "label"))).mark_text(align="left", dx=5, color=INK)
    texts = [part.encode(x=x, y=y, text="label:N") for part in (before, behind)]
    return layered(bars, zero, *texts).properties(width=width, height=_ROW * data.height)


def _label(row: dict[str, Any], names: tuple[str, str]) -> str:
    a, b, delta, status = (row[column] for column in ("a_ns", "b_ns", "delta_ns", "status"))
    change = ("+" if delta > 0 else "−") + format_ns(abs(delta))
    if status in ("only_a", "only_b"):
        return f"{change}, only in {names[status == 'only_b']}"
    return f"{change} (×{b / a:.2f})" if a and b is not None else change


def _headline(rows: pl.DataFrame, phases: list[str], first: str, second: str, *, by_part: bool) -> str:
    words = []
    for phase in phases:
        a, b = rows.filter(phase=phase).select(pl.col("a_ns").sum(), pl.col("b_ns").sum()).row(0)
        if a:
            words.append(f"{phase}\u00a0{abs(100 * (b - a) / a):.0f}\u00a0%\u00a0{'more' if b > a else 'less'}")
    what = "Step time" if by_part else "Device time"
    return f"{what} of {second} against {first}: {', '.join(words[:3])}" if words else f"{second} against {first}"
