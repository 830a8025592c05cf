"""Charts of the difference of two traces, and of what a step would gain from operators nearer to
their bounds.
"""

from __future__ import annotations

from typing import Any

import altair as alt
import polars as pl

from llmprof import analyze
from llmprof.analyze.compare.story import GROUPS, compared_phases, names_in, part_words
from llmprof.analyze.compare.story import waterfall_rows as diff_waterfall_of
from llmprof.charts.base import compose, draw, theme
from llmprof.errors import AtLeastOne
from llmprof.text import shorten, step_of
from llmprof.trace import Trace
from llmprof.units import format_ns

WHOLE = "whole recording"
_COLUMNS = ("phase", "stage", "category", "a_ns", "b_ns", "delta_ns", "status")
_ROW = 24
MIN_PX = 2
"""Least length of a bar, so that its colour shows."""

AXIS_FROM = 0.7
"""The axis of a waterfall does not begin at 0 if all bars lie above this share of the longer
step.
"""

MIN_SHARE = 0.002
"""Share of a phase's time, in the trace where it is shorter, below which a change goes into
``other (n)``.
"""


@draw.chart_of(
    "llmprof.analyze.diff(a, b)",
    "phase stage category a_ns b_ns delta_ns status",
)
def diff(
    frame: Trace | pl.DataFrame,
    other: Trace | None = None,
    *,
    names: tuple[str, str] | None = None,
    top: AtLeastOne = 12,
    title: str | None = None,
) -> alt.VConcatChart:
    """Diverging bars of the change from a to b, the largest first, a panel for each phase.

    Each phase has its own time axis; all have the same unit.

    Parameters
    ----------
    frame : Trace or polars.DataFrame
        Rows of ``diff(a, b)``, of which the parts of a step are drawn, or of ``diff_events(a, b)``.
    names : (str, str), optional
        What the two traces are called; by default as the frame says.
    top : int
        Most bars of a phase; other changes, and those below 0.2 % of the phase, are merged into
        ``other (n)``.
    title : str, optional
        Title of the chart; by default it says what is shown.

    Returns
    -------
    altair.VConcatChart
        900 px wide.

    Raises
    ------
    AnalysisError
        A column is missing, or nothing differs.

    Examples
    --------
    >>> chart = charts.diff(analyze.diff(llmprof.sample("torch_tp1_eager"), trace))
    """
    frame = draw.chart_frame(frame, analyze.diff, other)
    by_part = "level" in frame.columns
    if by_part:
        frame = _parts(frame)
    first, second = (shorten(name, 40) for name in names or names_in(frame))
    stage, category = pl.col("stage").fill_null("other"), pl.col("category").fill_null("other")
    several = category.n_unique().over(pl.col("phase"), stage) > 1
    rows = frame.with_columns(
        pl.col("phase").fill_null(WHOLE),
        row=pl.when(several & (stage != category))
        .then(pl.format("{} ({})", stage, category))
        .otherwise(stage),
    )
    compared = rows.drop_nulls("delta_ns")
    if (compared["delta_ns"] == 0).all():
        raise draw.nothing("diff", "no time differs in a phase that both traces have")
    unit = theme.time_unit(draw.float_of(compared["delta_ns"].abs().max()))
    whole = frame["phase"].null_count() == frame.height
    less, more = ("less time", "more time") if whole else ("faster", "slower")
    table = {
        f"{less} in {second}": theme.FASTER,
        f"{more} in {second}": theme.SLOWER,
        "about the same": theme.SAME,
    }
    phases = [
        phase
        for phase in theme.in_order(compared["phase"], theme.PHASES)
        if (compared.filter(phase=phase)["delta_ns"] != 0).any()
    ]
    width = (
        theme.inner()
        - 24
        - min(250, round(max(theme.text_px(row, theme.TEXT_PX) for row in compared["row"])))
    )
    axis = f"change of the time{'' if whole else ' of a step'} ({unit.symbol})"
    panels = []
    for phase in phases:
        part = compared.filter(phase=phase)
        a, b = (format_ns(draw.float_of(part[column].sum())) for column in ("a_ns", "b_ns"))
        head = f"{phase}: {a} ({first}), {b} ({second})"
        panel = _panel(
            _gather(part, top, by_part=by_part),
            table,
            unit,
            width,
            (first, second),
            title=axis if phase == phases[-1] else None,
        )
        panels.append(panel.properties(title=theme.panel_heading(head)))
    what = "Time from step to step on a rank" if by_part else "Device time a step and rank"
    notes = [
        f"{what}: {second} minus {first}, in brackets the factor. Each phase has its own axis."
    ]
    if whole:
        notes = [
            f"Sums over the whole recording, a rank: {second} minus {first}, in brackets the"
            " factor."
        ]
    if alone := sorted(set(rows["phase"]) - set(compared["phase"])):
        notes.append(f"In one trace only, and not compared: {', '.join(alone)}.")
    return theme.finish_chart(
        compose.vconcat(*panels, spacing=20),
        title or _headline(compared, phases, first, second, by_part=by_part),
        notes,
    )


@draw.chart_of("llmprof.analyze.diff(a, b)")
def diff_waterfall(
    frame: Trace | pl.DataFrame,
    other: Trace | None = None,
    *,
    phase: str | None = None,
    names: tuple[str, str] | None = None,
    title: str | None = None,
) -> alt.VConcatChart:
    """Waterfall from the step time of one run to that of the other: a bar for each part; the parts
    add up.

    The first run is above, the second below, between them what became less or more, by group.

    Parameters
    ----------
    frame : Trace or polars.DataFrame
        What was recorded, or rows of ``analyze.diff(a, b)``.
    phase : str, optional
        Phase whose steps are compared; the one with the most time if not given.
    names : (str, str), optional
        What the two runs are called; by default as the frame says.
    title : str, optional
        Title of the chart; by default it says what is shown.

    Returns
    -------
    altair.VConcatChart
        900 px wide.

    Raises
    ------
    AnalysisError
        A column is missing, or the runs share no such phase.

    Examples
    --------
    >>> chart = charts.diff_waterfall(analyze.diff(llmprof.sample("torch_tp1_eager"), trace))
    """
    frame = draw.chart_frame(frame, analyze.diff, other)
    draw.require(frame, _COLUMNS[3:], chart="diff_waterfall")
    if names is not None:
        frame = frame.with_columns(a_run=pl.lit(names[0]), b_run=pl.lit(names[1]))
    bars = _above_each_other(diff_waterfall_of(frame, phase=phase))
    of_steps = bars["group"][0] == "total" and frame["phase"].drop_nulls().len()
    what = "mean time of a step" if of_steps else "recorded time"
    table = {
        "total": theme.MUTED,
        "less": theme.FASTER,
        "more": theme.SLOWER,
        "unexplained": theme.REST,
    }
    shown = {name: fill for name, fill in table.items() if name in set(bars["way"])}
    panel, least_ns = _waterfall(bars, what, shown)
    note = (
        "Each bar begins where the one above ends. Where several things run at once, compute counts"
        " first."
    )
    if least_ns:
        note += f" The axis begins at {format_ns(least_ns)}."
    first, second = (shorten(name, 30) for name in names_in(frame))
    own = phase or next(iter(compared_phases(frame)), None)
    subject = f"A {step_of(own)}" if own else "The recording"
    change = f"{subject}: {bars['text'][0]} ({first}), {bars['text'][-1]} ({second})"
    return theme.finish_chart(compose.vconcat(panel), title or change, note)


def _waterfall(
    bars: pl.DataFrame, what: str, table: dict[str, str]
) -> tuple[alt.LayerChart, float]:
    """Bars from ``from_ns`` to ``to_ns`` with ``row, text, both`` (a tooltip), ``way``; and
    where the axis begins.
    """
    most_ns, least_ns = draw.float_of(bars["to_ns"].max()), _axis_start(bars)
    most_ns = max(most_ns, draw.float_of(bars["from_ns"].max()))
    unit = theme.time_unit(most_ns)
    width = (
        theme.inner()
        - 24
        - min(250, round(max(theme.text_px(row, theme.TEXT_PX) for row in bars["row"])))
    )
    least, most = least_ns / unit.ns, most_ns / unit.ns
    room = max(theme.text_px(text) for text in bars["text"]) + 16
    scale = theme.exact_scale(least, least + (most - least) * width / max(200.0, width - room))
    axis = theme.titled_axis(f"{what} ({unit.symbol})", tickCount=8)
    low, high = (
        fold("from_ns", "to_ns") / unit.ns for fold in (pl.min_horizontal, pl.max_horizontal)
    )
    low = pl.max_horizontal(low, pl.lit(least))
    data = bars.with_columns(
        low=low, high=pl.max_horizontal(high, low + MIN_PX * (most - least) / width)
    )
    y = theme.row_axis(data["row"])
    x = alt.X("low:Q", scale=scale, axis=axis)
    tips = draw.tips(("row:N", "part"), ("text:N", "change"), "both:N")
    marks = alt.Chart(draw.inline(data)).mark_bar(height=_ROW - 8)
    marks = marks.encode(
        x=x, x2=alt.X2("high:Q"), y=y, color=theme.colour_encoding("way", table), tooltip=tips
    )
    end = alt.X("high:Q", scale=scale, axis=axis)
    words = draw.text_marks(
        data.select("row", "high", "text"), end, y, "text:N", align="left", dx=5, color=theme.INK
    )
    panel = theme.layered(marks, words).properties(width=width, height=_ROW * data.height)
    return panel, least_ns


def _axis_start(bars: pl.DataFrame) -> float:
    """Start of the axis of a waterfall (ns): not 0 if the changes would be too small to see."""
    most = draw.float_of(bars.select(pl.max_horizontal("from_ns", "to_ns").max()).item())
    inner = bars.filter(pl.col("group") != "total")
    least = min(
        draw.float_of(inner.select(pl.min_horizontal("from_ns", "to_ns").min()).item()),
        draw.float_of(bars["to_ns"][-1]),
    )
    return max(0.0, least - 0.5 * (most - least)) if least > AXIS_FROM * most else 0.0


def _above_each_other(bars: pl.DataFrame) -> pl.DataFrame:
    """Bars with the name of their row, their text and their direction."""
    total = pl.col("group") == "total"
    rows = [shorten(label, 44) for label in bars["label"]]
    if rows[0] == rows[-1]:
        rows[0], rows[-1] = f"{rows[0]} (first)", f"{rows[-1]} (second)"
    texts, both = [], []
    for group, a, b, delta in bars.select("group", "a_ns", "b_ns", "delta_ns").iter_rows():
        sign = "" if group == "total" or not delta else "+" if delta > 0 else "−"
        texts.append(sign + format_ns(abs(delta)))
        both.append("" if group == "total" else f"{format_ns(a)} → {format_ns(b)}")
    way = pl.when(pl.col("delta_ns") < 0).then(pl.lit("less")).otherwise(pl.lit("more"))
    way = (
        pl.when(total)
        .then(pl.lit("total"))
        .when(pl.col("group") == GROUPS[-1])
        .then(pl.lit(GROUPS[-1]))
        .otherwise(way)
    )
    return bars.with_columns(
        pl.Series("row", rows, dtype=pl.String),
        pl.Series("text", texts, dtype=pl.String),
        pl.Series("both", both, dtype=pl.String),
        way=way,
    )


def _parts(frame: pl.DataFrame) -> pl.DataFrame:
    """Parts of the steps in the columns of events."""
    rows = frame.filter(level="part")
    named = [part_words(kind, part)[1] for kind, part in rows.select("kind", "part").iter_rows()]
    return rows.with_columns(pl.Series("stage", named, dtype=pl.String), category="kind")


def _gather(rows: pl.DataFrame, top: int, *, by_part: bool) -> pl.DataFrame:
    """The largest changes, and one row for all the others:

    ``row, a_ns, b_ns, delta_ns, status``.
    """
    columns = ["a_ns", "b_ns", "delta_ns"]
    named = rows.group_by("row").agg(pl.col(columns).sum(), pl.first("status"))
    named = named.filter(pl.col("delta_ns") != 0).sort(
        pl.col("delta_ns").abs(), "row", descending=[True, False]
    )
    smaller = min(draw.float_of(rows["a_ns"].sum()), draw.float_of(rows["b_ns"].sum()))
    large = pl.col("delta_ns").abs() >= MIN_SHARE * smaller
    matters = large if by_part else large | pl.col("status").is_in(["only_a", "only_b"])
    kept = named.filter(matters).head(top)
    rest = named.join(kept, on="row", how="anti", maintain_order="left")
    if rest.is_empty():
        return kept
    name = pl.lit(f"other ({rest.height})").alias("row")
    return pl.concat([kept, rest.select(name, pl.col(columns).sum(), status=pl.lit("gathered"))])


def _panel(
    rows: pl.DataFrame,
    table: dict[str, str],
    unit: theme.Unit,
    width: int,
    names: tuple[str, str],
    *,
    title: str | None,
) -> alt.LayerChart:
    faster, slower, same = table
    direction = pl.when(pl.col("delta_ns") < 0).then(pl.lit(faster)).otherwise(pl.lit(slower))
    data = rows.with_columns(
        delta=pl.col("delta_ns") / unit.ns,
        change=pl.when(pl.col("status") == "same").then(pl.lit(same)).otherwise(direction),
        label=pl.Series(
            [_label(row, names) for row in rows.iter_rows(named=True)], dtype=pl.String
        ),
    )
    less, more = data.filter(pl.col("delta_ns") < 0), data.filter(pl.col("delta_ns") >= 0)
    least, most = (
        min(0.0, draw.float_of(data["delta"].min())),
        max(0.0, draw.float_of(data["delta"].max())),
    )
    left, right = (max(map(theme.text_px, part["label"]), default=0) + 12 for part in (less, more))
    per_px = (most - least) / max(200.0, width - left - right)
    scale = theme.exact_scale(least - left * per_px, most + right * per_px)
    axis = theme.titled_axis(title, tickCount=8)
    x = alt.X("delta:Q", scale=scale, axis=axis)
    sign = pl.when(pl.col("delta") < 0).then(-1).otherwise(1)
    data = data.with_columns(
        drawn=sign * pl.max_horizontal(pl.col("delta").abs(), pl.lit(MIN_PX * per_px))
    )
    y = theme.row_axis(data["row"])
    tips = draw.tips(("row:N", "part"), ("label:N", "change"), "status:N")
    length, shade = alt.X("drawn:Q", scale=scale, axis=axis), theme.colour_encoding("change", table)
    bars = alt.Chart(draw.inline(data)).mark_bar().encode(x=length, y=y, color=shade, tooltip=tips)
    zero = alt.Chart(draw.constant({"delta": 0})).mark_rule(color=theme.MUTED).encode(x=x)
    texts = [
        draw.text_marks(
            part.select("row", "delta", "label"), x, y, align=align, dx=dx, color=theme.INK
        )
        for part, align, dx in ((less, "right", -5), (more, "left", 5))
    ]
    return theme.layered(bars, zero, *texts).properties(width=width, height=_ROW * data.height)


def _label(row: dict[str, Any], names: tuple[str, str]) -> str:
    a, b, delta, status = (row[column] for column in ("a_ns", "b_ns", "delta_ns", "status"))
    change = ("+" if delta > 0 else "−") + format_ns(abs(delta))
    if status in ("only_a", "only_b"):
        return f"{change}, only in {names[status == 'only_b']}"
    return f"{change} (×{b / a:.2f})" if a and b is not None else change


def _headline(
    rows: pl.DataFrame, phases: list[str], first: str, second: str, *, by_part: bool
) -> str:
    words = []
    for phase in phases:
        a, b = rows.filter(phase=phase).select(pl.sum("a_ns"), pl.sum("b_ns")).row(0)
        if a:
            words.append(
                f"{phase}\u00a0{abs(100 * (b - a) / a):.0f}\u00a0%\u00a0{'more' if b > a else 'less'}"  # noqa: E501
            )
    what = ("Recorded time" if phases == [WHOLE] else "Step time") if by_part else "Device time"
    return (
        f"{what} of {second} against {first}: {', '.join(words[:3])}"
        if words
        else f"{second} against {first}"
    )


_OPPORTUNITIES = (
    "phase",
    "part",
    "kind",
    "total_ns",
    "bound_ns",
    "target_share",
    "gap_ns",
    "gain_ns",
)
_REMAINS = {"at target": theme.COMPUTE, "no bound": theme.COPY, "idle": theme.IDLE}
_OF_A_STEP = {"time of a step": theme.MUTED, "beyond the target": theme.FASTER, **_REMAINS}
_SMALLER, _LEAST = "smaller ones", 0.01
"""Kinds with less than this share of all gaps are one row."""


@draw.chart_of(
    "llmprof.analyze.opportunities(trace)",
)
def opportunities(
    frame: Trace | pl.DataFrame, *, phase: str | None = None, title: str | None = None
) -> alt.VConcatChart:
    """Waterfall from the time of a step to that with every operator at its target, by kind; and
    what then remains.

    Below is the time that the replay predicts: it is longer where something else, such as the host,
    sets the pace.

    Parameters
    ----------
    frame : Trace or polars.DataFrame
        What was recorded, or rows of ``analyze.opportunities(trace)``.
    phase : str, optional
        Phase whose steps are meant; the one with most time if not given.
    title : str, optional
        Title of the chart; by default it says what is shown.

    Returns
    -------
    altair.VConcatChart
        900 px wide.

    Raises
    ------
    AnalysisError
        A column is missing, or no operator has a bound, or all are at their target.

    Examples
    --------
    >>> trace = llmprof.sample("torch_transformers_generate")
    >>> chart = charts.opportunities(analyze.opportunities(trace))
    """
    frame = draw.chart_frame(frame, analyze.opportunities)
    draw.require(frame, _OPPORTUNITIES, chart="opportunities")
    chosen = frame["phase"][0] if phase is None and frame.height else phase
    rows = frame.filter(pl.col("phase").eq_missing(pl.lit(chosen, dtype=pl.String)))
    step = rows.filter(part="step")
    gaps = rows.filter(pl.col("part").is_in(["opportunity", "others"]) & (pl.col("gap_ns") > 0))
    if gaps.is_empty():
        raise draw.nothing("opportunities", "no operator has a bound, or all are at their target")
    whole, gap, gain = (draw.float_of(step[name][0]) for name in ("total_ns", "gap_ns", "gain_ns"))
    targets = gaps["target_share"].drop_nulls().unique()
    target = (
        f"{theme.percent(100 * targets[0])} of its bound" if len(targets) == 1 else "its target"
    )
    kinds = gaps.with_columns(
        row=pl.when(pl.col("part") == "opportunity").then("kind").fill_null(_SMALLER)
    )
    small = pl.sum("gap_ns").over("row") < _LEAST * gap
    kinds = kinds.with_columns(row=pl.when(small).then(pl.lit(_SMALLER)).otherwise("row"))
    sums = kinds.group_by("row").agg(pl.sum("total_ns", "bound_ns", "gap_ns"))
    sums = sums.sort(pl.col("row") == _SMALLER, "gap_ns", "row", descending=[False, True, False])
    left = whole - sums["gap_ns"].cum_sum()
    parts = sums.select(
        pl.col("row").map_elements(lambda name: shorten(name, 44), return_dtype=pl.String),
        from_ns=left + sums["gap_ns"],
        to_ns=left,
        group=pl.lit("part"),
        way=pl.lit("beyond the target"),
        text=pl.Series([f"−{format_ns(ns)}" for ns in sums["gap_ns"]]),
        both=pl.Series(
            [
                f"{format_ns(time)} a step, at {theme.percent(100 * bound / time)} of the bound"
                for time, bound in sums.select("total_ns", "bound_ns").iter_rows()
            ]
        ),
    )
    totals = [
        pl.DataFrame(
            [(name, 0.0, ns, "total", "time of a step", format_ns(ns), "")],
            schema=parts.schema,
            orient="row",
        )
        for name, ns in (
            ("a step", whole),
            ("without these", whole - gap),
            ("by the replay", whole - gain),
        )
    ]
    name = pl.col("part").cast(pl.String).replace(["opportunity", "others"], "at target")
    left_over = pl.sum("total_ns") - pl.col("gap_ns").fill_null(0).sum()
    parts_left = rows.with_columns(part=name).filter(pl.col("part").is_in(list(_REMAINS)))
    remaining = (
        parts_left.group_by("part").agg(ns=left_over).with_columns(row=pl.lit("what remains"))
    )
    table = {
        name: shade
        for name, shade in _OF_A_STEP.items()
        if name not in _REMAINS or name in remaining["part"]
    }
    panel, least = _waterfall(pl.concat([totals[0], parts, *totals[1:]]), "time of a step", table)
    width = theme.inner() - 24 - round(theme.text_px("what remains", theme.TEXT_PX))
    bar = draw.stacked_bars(remaining, table, width=width, title="time of a step")
    panels = [panel, theme.layered(*bar).properties(width=width, height=30)]
    subject = "The recording" if chosen is None else f"A {step_of(chosen)}"
    then = format_ns(whole - gain) if gain >= 0.005 * whole else "as long"
    said = f"{subject}: {format_ns(whole)}, and {then} with every operator at {target}"
    notes = [
        f"What each kind of operator takes beyond {target}; a replay of the recording says what a"
        " step gains."
    ]
    if least:
        notes.append(f"The axis begins at {format_ns(least)}.")
    beside = -draw.float_of(rows.filter(part="beside other work")["total_ns"].sum())
    if beside > 0.005 * whole:
        notes.append(f"Work at the same time counts twice below: {format_ns(beside)}.")
    return theme.finish_chart(compose.vconcat(*panels, spacing=20), title or said, " ".join(notes))
