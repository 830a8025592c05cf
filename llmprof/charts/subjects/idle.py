"""Charts of idle time of the device: by cause and rank, and by length of the gaps."""

from __future__ import annotations

from typing import Any

import altair as alt
import polars as pl

from llmprof import analyze
from llmprof.charts.base import compose, draw, theme
from llmprof.text import PART_MEANINGS, PART_WORDS
from llmprof.trace import Trace
from llmprof.units import format_ns

_SPACE = 80


@draw.chart_of("llmprof.analyze.idle(trace)", "rank dur_ns cause")
def idle(frame: Trace | pl.DataFrame, *, title: str | None = None) -> alt.VConcatChart:
    """Idle time of each rank by cause, and the gaps by length: how many, and how much time they
    hold.

    Parameters
    ----------
    frame : Trace or polars.DataFrame
        What was recorded, or rows of ``analyze.idle(trace)``.
    title : str, optional
        Title of the chart; by default it says what is shown.

    Returns
    -------
    altair.VConcatChart
        900 px wide.

    Raises
    ------
    AnalysisError
        A column is missing, or there is no gap.

    Examples
    --------
    >>> chart = charts.idle(analyze.idle(trace))
    """
    frame = draw.chart_frame(frame, analyze.idle)
    rows = frame.filter(pl.col("dur_ns") > 0).with_columns(pl.col("cause").fill_null("unknown"))
    if rows.is_empty():
        raise draw.nothing("idle", "no gap is longer than zero")
    shades = theme.colours("cause", rows["cause"].unique())
    palette = {PART_WORDS.get(cause, cause): shade for cause, shade in shades.items()}
    rows = rows.with_columns(pl.col("cause").replace(PART_WORDS))
    sums = rows.group_by("rank", part="cause").agg(ns=pl.sum("dur_ns"), gaps=pl.len()).sort("rank")
    sums = sums.with_columns(row=pl.format("rank {}", "rank"))
    plot = theme.inner() - 76
    bars = theme.layered(
        *draw.stacked_bars(sums, palette, width=plot, title="idle time", extra=("gaps",))
    )
    height = 34 * sums["row"].n_unique()
    by_rank = bars.properties(
        width=plot, height=height, title=theme.panel_heading("By cause and rank")
    )
    meanings = "; ".join(
        f"{PART_WORDS[cause]}: {PART_MEANINGS[cause].removeprefix('idle: ')}"
        for cause in shades
        if cause in PART_WORDS
    )
    what = (
        "A gap counts when no stream of the device runs anything; it is split at the call that"
        " launched what ends it."
    )
    notes = [what, f"{meanings}."]
    chart = compose.vconcat(by_rank, *_lengths(rows, palette), spacing=36)
    return theme.finish_chart(chart, title or _headline(rows), notes)


def _headline(rows: pl.DataFrame) -> str:
    causes = (
        rows.group_by("cause")
        .agg(pl.sum("dur_ns"))
        .sort("dur_ns", "cause", descending=[True, False])
    )
    ranks = rows.group_by("rank").agg(pl.sum("dur_ns"))["dur_ns"]
    figures = theme.range_text(
        format_ns(draw.float_of(ranks.min())), format_ns(draw.float_of(ranks.max()))
    )
    cause, longest = causes.row(0)
    share = theme.percent(100 * longest / draw.float_of(ranks.sum()))
    return (
        f"The device is idle for {figures}{' a rank' if ranks.len() > 1 else ''}; {share} of that"
        f" is {cause}"
    )


def _lengths(rows: pl.DataFrame, palette: dict[str, str]) -> list[Any]:
    """Gaps by length on one axis: their number, and their time."""
    unit, total = (
        draw.log_unit(rows["dur_ns"]),
        theme.time_unit(draw.float_of(rows["dur_ns"].sum())),
    )
    places = {cause: i for i, cause in enumerate(palette)}
    bins = draw.log_bins(rows, "dur_ns", unit, by="cause", per_decade=12).with_columns(
        time=pl.col("sum_ns") / total.ns
    )
    bins = bins.sort("start", pl.col("cause").replace_strict(places, return_dtype=pl.Int64))
    many = _columns(bins, "n", "parts", unit=unit, palette=palette, title="Number of parts of gaps")
    axis = f"time ({total.symbol})"
    long = _columns(
        bins, "time", axis, unit=unit, palette=palette, title="Time in parts of that length"
    )
    return theme.panel_rows([many, long], 1 if theme.is_narrow() else 2, spacing=_SPACE)


def _columns(
    bins: pl.DataFrame,
    field: str,
    axis: str,
    *,
    unit: theme.Unit,
    palette: dict[str, str],
    title: str,
) -> alt.LayerChart:
    upper = pl.col(field).cum_sum().over("start")
    stacked = bins.with_columns(bottom=upper - pl.col(field), top=upper)
    x = draw.log_axis(draw.domain_of(bins), f"length of the part ({unit.symbol}, log scale)")
    y = alt.Y("bottom:Q", axis=theme.titled_axis(axis, tickCount=4))
    figures = (
        ("start:Q", f"from ({unit.symbol})"),
        ("end:Q", f"to ({unit.symbol})"),
        (f"{field}:Q", axis),
    )
    tips = draw.tips("cause:N", *((name, title, ",.4~r") for name, title in figures))
    bars = alt.Chart(draw.inline(stacked)).mark_rect(stroke=theme.PAPER, strokeWidth=0.5)
    drawn = bars.encode(
        x=x,
        x2=alt.X2("end:Q"),
        y=y,
        y2=alt.Y2("top:Q"),
        color=theme.colour_encoding("cause", palette),
        tooltip=tips,
    )
    whole = theme.inner() - 76
    half = whole if theme.is_narrow() else (whole - _SPACE) // 2
    return theme.layered(drawn, theme.heading_mark(title)).properties(width=half, height=150)


MAX_RANKS = 16
_LAUNCH_DELAY_SPACE, _LOG_RATIO = 26, 30
_TABLE = {"median": theme.COMPUTE, "least to 95th percentile": theme.BAND}


@draw.chart_of(
    "llmprof.analyze.launch_delay(trace)",
    "rank step median_ns p95_ns max_ns min_ns",
)
def launch_delay(frame: Trace | pl.DataFrame, *, title: str | None = None) -> alt.VConcatChart:
    """Time from the host's launch call to the start of the kernel over the steps, a panel for each
    rank.

    One scale of time for all ranks.

    Parameters
    ----------
    frame : Trace or polars.DataFrame
        Rows of ``launch_delay(trace)``; those outside steps are left out.
    title : str, optional
        Title of the chart; by default it says what is shown.

    Returns
    -------
    altair.VConcatChart
        900 px wide.

    Raises
    ------
    AnalysisError
        A column is missing, or no step has a launch.

    Examples
    --------
    >>> chart = charts.launch_delay(analyze.launch_delay(trace))
    """
    frame = draw.chart_frame(frame, analyze.launch_delay)
    rows, ranks, left_out = draw.ranks_shown(frame.drop_nulls(["step", "median_ns"]), MAX_RANKS)
    if rows.is_empty():
        raise draw.nothing("launch_delay", "no step has a kernel whose launch was captured")
    unit = theme.time_unit(draw.float_of(rows["median_ns"].max()))
    measures = (
        pl.col(f"{name}_ns").truediv(unit.ns).alias(name) for name in ("median", "p95", "min")
    )
    data = rows.select("rank", "step", *measures)
    medians = rows.group_by("rank").agg(pl.median("median_ns"))["median_ns"]
    scale, axis = _scale(
        data, unit, draw.float_of(medians.max()) / max(1.0, draw.float_of(medians.min()))
    )
    quiet = alt.Axis(title=None, labels=False, ticks=False, domain=False, values=axis.values)
    across = min(2 if theme.is_narrow() else 4, len(ranks))
    plot = (theme.inner() - 64 + _LAUNCH_DELAY_SPACE) // across - _LAUNCH_DELAY_SPACE
    panels = []
    for i, rank in enumerate(ranks):
        y, title_x = (
            (axis if i % across == 0 else quiet),
            ("step" if i + across >= len(ranks) else None),
        )
        panels.append(
            _panel(data.filter(rank=rank), alt.Y("min:Q", axis=y, scale=scale), plot, title_x, rank)
        )
    lines = theme.panel_rows(panels, across, spacing=_LAUNCH_DELAY_SPACE)
    between = theme.range_text(
        format_ns(draw.float_of(medians.min())), format_ns(draw.float_of(medians.max()))
    )
    who = "median, by rank" if len(ranks) > 1 else "median"
    notes = [
        "A long delay: the host is ahead and work is queued. A few us: the device waits for the"
        " host."
    ]
    if (
        "launched_share" in rows.columns
        and (share := draw.float_of(rows["launched_share"].mean())) < 0.995
    ):
        notes.append(
            f"Of the kernels in these steps {theme.percent(100 * share)} have a launch in the"
            " capture."
        )
    text = title or f"A kernel starts {between} after its launch call ({who})"
    return theme.finish_chart(compose.vconcat(*lines, spacing=30), text, [*notes, left_out])


def _scale(data: pl.DataFrame, unit: theme.Unit, ratio: float) -> tuple[alt.Scale, alt.Axis]:
    """Vertical scale of all panels; logarithmic if the ranks differ by orders of magnitude."""
    low, high = draw.float_of(data["min"].min()), draw.float_of(data["p95"].max())
    if low > 0 and ratio > _LOG_RATIO:
        low, high = low / 1.3, high * 1.3
        ticks = draw.log_ticks(low, high)
        axis = theme.titled_axis(f"launch to start ({unit.symbol}, log scale)", values=ticks)
        return theme.exact_scale(low, high, type="log"), axis
    axis = theme.titled_axis(f"launch to start ({unit.symbol})", tickCount=5)
    return alt.Scale(domain=[min(0.0, low), high], nice=True), axis


def _panel(
    data: pl.DataFrame, y: alt.Y, plot: int, title_x: str | None, rank: int
) -> alt.LayerChart:
    axis = alt.Axis(
        title=title_x,
        format="d",
        tickMinStep=1,
        tickCount=3 if theme.is_narrow() else 5,
        grid=False,
    )
    x = alt.X("step:Q", axis=axis, scale=alt.Scale(nice=False, zero=False, padding=12))
    tips = draw.tips(
        "step:Q", ("min:Q", None, ",.4~r"), ("median:Q", None, ",.4~r"), ("p95:Q", None, ",.4~r")
    )
    shade = theme.colour_encoding("part", _TABLE)
    bars = data.select("step", "min", "p95", part=pl.lit(list(_TABLE)[1]))
    middle = data.select("step", "min", "median", "p95", part=pl.lit("median"))
    size = max(6.0, min(32.0, 700 / data.height))
    thick = max(1.5, min(8.0, plot / data.height * 0.45))
    band = (
        alt.Chart(draw.inline(bars))
        .mark_rule(strokeWidth=thick)
        .encode(x=x, y=y, y2=alt.Y2("p95:Q"), color=shade)
    )
    line = alt.Chart(draw.inline(middle)).mark_line(
        point=alt.OverlayMarkDef(size=size), strokeWidth=2
    )
    drawn = line.encode(x=x, y=alt.Y("median:Q"), color=shade, tooltip=tips)
    return theme.layered(band, drawn, theme.heading_mark(f"rank {rank}")).properties(
        width=plot, height=180
    )


@draw.chart_of("llmprof.analyze.critical_path(trace)", "step phase part dur_ns")
def critical_path(frame: Trace | pl.DataFrame, *, title: str | None = None) -> alt.VConcatChart:
    """Parts of the critical path, which set the time of a step, as a mean step of each phase.

    One bar for each phase.

    Parameters
    ----------
    frame : Trace or polars.DataFrame
        What was recorded, or rows of ``analyze.critical_path(trace)``.
    title : str, optional
        Title of the chart; by default it says what is shown.

    Returns
    -------
    altair.VConcatChart
        900 px wide.

    Raises
    ------
    AnalysisError
        A column is missing, or there is no path.

    Examples
    --------
    >>> chart = charts.critical_path(analyze.critical_path(trace))
    """
    frame = draw.chart_frame(frame, analyze.critical_path)
    rows = frame.filter(pl.col("dur_ns") > 0).with_columns(pl.col("part").cast(pl.String))
    if rows.is_empty():
        raise draw.nothing("critical_path", "no step ends on a device")
    whole = rows["phase"].null_count() == rows.height and rows["step"].n_unique() == 1
    steps = pl.n_unique("step").over("phase")
    named = rows.with_columns(
        steps=steps,
        phase=pl.col("phase")
        .fill_null("the recording" if whole else "unknown")
        .replace("other", theme.STEPS),
    )
    sums = named.group_by("phase", "part").agg(
        ns=pl.sum("dur_ns") / pl.first("steps"), steps=pl.first("steps")
    )
    order = (
        named.group_by("phase")
        .agg(pl.sum("dur_ns"))
        .sort("dur_ns", descending=True)["phase"]
        .to_list()
    )
    many = pl.when(pl.col("steps") == 1).then(pl.lit("step")).otherwise(pl.lit("steps"))
    row = pl.when(whole).then("phase").otherwise(pl.format("{} ({} {})", "phase", "steps", many))
    sums = sums.with_columns(
        row=row, at=pl.col("phase").replace_strict({p: i for i, p in enumerate(order)})
    )
    palette = theme.colours("path", sums["part"].unique())
    plot = (
        theme.inner()
        - 20
        - round(max(theme.text_px(name, theme.TEXT_PX) * 1.06 for name in sums["row"]))
    )
    bars = theme.layered(
        *draw.stacked_bars(
            sums.sort("at", "part"),
            palette,
            width=plot,
            title="time" if whole else "time of a step",
        )
    )
    about = theme.panel_heading(
        "The recording, by part" if whole else "Mean step of each phase, by part"
    )
    chart = bars.properties(width=plot, height=34 * len(order), title=about)
    ends = (
        ""
        if whole
        else (
            "; the parts of a step add up to the time from the end of the step before to its"
            " own end"
        )
    )
    notes = [
        f"Each part is what the next one waited for longest{ends}.",
        (
            "Making something faster that is not on the path changes nothing; unexplained: nothing"
            " recorded leads to it."
        ),
    ]
    parts = (
        rows.group_by("part").agg(pl.sum("dur_ns")).sort("dur_ns", "part", descending=[True, False])
    )
    part, longest = parts.row(0)
    share = theme.percent(100 * longest / draw.float_of(parts["dur_ns"].sum()))
    head = title or f"What sets the pace: {share} of the critical path is {part}"
    return theme.finish_chart(compose.vconcat(chart), head, notes)
