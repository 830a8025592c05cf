"""Charts of kernels: their time and number of launches, and what their warps wait for."""

from __future__ import annotations

import altair as alt
import polars as pl

from llmprof import analyze, names
from llmprof.charts.base import compose, draw, theme
from llmprof.errors import AtLeastOne
from llmprof.names import kernels as names_kernels
from llmprof.text import shorten
from llmprof.trace import Trace
from llmprof.trace.metrics.data import Metrics
from llmprof.units import format_ns


@draw.chart_of(
    "llmprof.analyze.kernels(trace)",
    "name category total_ns count",
)
def kernels(
    frame: Trace | pl.DataFrame,
    *,
    top: AtLeastOne = 15,
    variants: bool = False,
    title: str | None = None,
) -> alt.VConcatChart:
    """Bars of the kernels with the longest total time, with their share, launches and mean.

    Coloured by category.

    Parameters
    ----------
    frame : Trace or polars.DataFrame
        Rows of ``kernels(trace)`` or ``kernels_within(trace)``.
    top : int
        Most bars; one more bar sums up all other kernels.
    variants : bool
        Draw one bar for each row of the frame; otherwise all variants of a kernel function share
        one bar.
    title : str, optional
        Title of the chart; by default it says what is shown.

    Returns
    -------
    altair.VConcatChart
        900 px wide.

    Raises
    ------
    AnalysisError
        A column is missing, or there is no row, or all times are zero.

    Examples
    --------
    >>> chart = charts.kernels(analyze.kernels(trace))
    """
    frame = draw.chart_frame(frame, analyze.kernels)
    rows = kernel_rows(frame, top, variants=variants)
    if rows.is_empty():
        raise draw.nothing("kernels", "the times add up to zero")
    total = draw.float_of(frame["total_ns"].sum())
    first = rows.row(0, named=True)
    head = (
        f"{shorten(first['row'], 48)} takes {theme.percent(100 * first['ns'] / total)} of the"
        " kernels' time"
    )
    note = (
        f"Sum of the durations of all launches ({format_ns(total)}): kernels that overlap count in"
        " full, a collective with its waiting."
    )
    table = theme.colours("category", rows["part"])
    bars = draw.ranked_bars(rows, width=theme.inner() - 8, title="total time", table=table)
    return theme.finish_chart(compose.vconcat(bars), title or head, note, at_edge=True)


def kernel_rows(frame: pl.DataFrame, top: int, *, variants: bool = False) -> pl.DataFrame:
    """The longest kernels, and one row for all others: ``row, name, part, ns, count, label``."""
    named = frame.select(
        "name",
        "count",
        row=names.readable(frame["name"]).fill_null("unnamed"),
        part=pl.col("category").fill_null("other"),
        ns="total_ns",
    )
    if variants:
        sums = named.with_columns(pl.col("count").cast(pl.Int64))
    else:
        sums = named.group_by("row", "part").agg(
            pl.col("name").sort_by("ns", "name", descending=[True, False]).first(),
            pl.sum("count").cast(pl.Int64),
            pl.sum("ns"),
        )
    sums = sums.filter(pl.col("ns") > 0).sort("ns", "row", "name", descending=[True, False, False])
    sums = sums.select("row", "name", "part", "ns", "count")
    rest, kept = sums.slice(top), sums.head(top)
    if rest.height:
        name = pl.lit(f"{rest.height} others")
        kept = pl.concat(
            [
                kept,
                rest.select(
                    row=name,
                    name=name,
                    part=pl.lit("other"),
                    ns=pl.sum("ns"),
                    count=pl.sum("count"),
                ),
            ]
        )
    total = draw.float_of(sums["ns"].sum())
    labels = [
        f"{theme.percent(100 * ns / total)}, {count:,} ×"
        f" {format_ns(ns / count) if count else '0 ns'}"
        for ns, count in kept.select("ns", "count").rows()
    ]
    return kept.with_columns(label=pl.Series(labels, dtype=pl.String))


KINDS = {
    "launch": "#2F7F86",
    "wait": theme.CAUSES["sync"],
    "copy": theme.COPY,
    "memory": theme.CAUSES["queued"],
    "other": theme.REST,
}

_PATTERNS = (
    ("launch", r"(?i)launch|graphlaunch"),
    ("wait", r"(?i)synchronize|streamwait|eventquery|streamquery"),
    ("copy", r"(?i)memcpy|memset"),
    (
        "memory",
        r"(?i)malloc|free|mem(alloc|map|unmap|create|release|address)|hostregister|hostalloc",
    ),
)


@draw.chart_of(
    "llmprof.analyze.nsys.cuda_api_sum(trace)",
    "name total_ns count median_ns",
)
def cuda_api(
    frame: Trace | pl.DataFrame,
    *,
    top: AtLeastOne = 15,
    title: str | None = None,
) -> alt.VConcatChart:
    """Bars of the API calls with the longest total time, coloured by purpose.

    Parameters
    ----------
    frame : Trace or polars.DataFrame
        What was recorded, or rows of ``analyze.nsys.cuda_api_sum(trace)``.
    top : int
        Bars.
    title : str, optional
        Title of the chart; by default it says what is shown.

    Returns
    -------
    altair.VConcatChart
        900 px wide.

    Raises
    ------
    AnalysisError
        A column is missing, or all times are zero.

    Examples
    --------
    >>> chart = charts.cuda_api(analyze.nsys.cuda_api_sum(trace))
    """
    frame = draw.chart_frame(frame, analyze.nsys.cuda_api_sum)
    named = frame.with_columns(
        pl.col("name").str.replace(r"_v\d{4,}$", "")
    )  # nsys adds the version of the call
    sums = named.group_by("name").agg(
        ns=pl.sum("total_ns"),
        count=pl.sum("count").cast(pl.Int64),
        median_ns=pl.max("median_ns"),
    )
    sums = sums.filter(pl.col("ns") > 0).sort("ns", "name", descending=[True, False])
    if sums.is_empty():
        raise draw.nothing("cuda_api", "the times add up to zero")
    total, kept = draw.float_of(sums["ns"].sum()), sums.head(top)
    labels = [
        f"{format_ns(ns)}, {theme.percent(100 * ns / total)}, {count:,} × {format_ns(median)}"
        for ns, count, median in kept.select("ns", "count", "median_ns").rows()
    ]
    kind = pl.lit("other")
    for name, pattern in reversed(_PATTERNS):
        kind = pl.when(pl.col("name").str.contains(pattern)).then(pl.lit(name)).otherwise(kind)
    rows = kept.select(
        "ns", "count", row="name", part=kind, label=pl.Series(labels, dtype=pl.String)
    )
    table = {name: fill for name, fill in KINDS.items() if name in rows["part"].to_list()}
    chart = draw.ranked_bars(rows, width=theme.inner() - 8, title="total time", table=table)
    first = rows.row(0, named=True)
    head = (
        f"{shorten(first['row'], 48)} takes {theme.percent(100 * first['ns'] / total)} of the time"
        " in API calls"
    )
    notes = (
        f"Sums over all host threads and ranks, {format_ns(total)} in total; count and median of"
        " one call."
    )
    if (left := sums.height - kept.height) > 0:
        notes += f" {left} shorter calls are not shown."
    return theme.finish_chart(compose.vconcat(chart), title or head, notes, at_edge=True)


READY = "could run"
"""Part of a bar in which warps did not wait."""

REASONS = {
    "long_scoreboard": "#332288",
    "short_scoreboard": "#88CCEE",
    "barrier": "#CC6677",
    "warpgroup_arrive": "#117733",
    "math_pipe_throttle": "#44AA99",
    "mio_throttle": "#DDCC77",
    "lg_throttle": "#AA4499",
    "tex_throttle": "#661100",
    "wait": "#BFA6D9",
    "no_instructions": "#999933",
    "imc_miss": "#E8A87C",
    "branch_resolving": "#6699CC",
    "dispatch_stall": "#AA4466",
    "membar": "#8C6D46",
    "drain": "#77AADD",
    "sleeping": "#9AA5B1",
}

_MIN_SHARE, _MAX_ROWS, _MAX_NAME, _ROW = 0.1, 16, 34, 27
_MAX_NAME_NARROW = 14
_LEAST = 1e-4


@draw.chart_of("llmprof.analyze.ncu.stalls(metrics)", "kernel_id reason share")
def stalls(frame: Metrics | pl.DataFrame, *, title: str | None = None) -> alt.VConcatChart:
    """Bars of 100 % for each kernel: the reasons why its warps waited, and the share of time in
    which they could run.

    All launches of a kernel (and stage) share one bar: their mean, weighted by duration. At most 16
    bars. Reasons of less than 10 % in every bar are merged.

    Parameters
    ----------
    frame : Metrics or polars.DataFrame
        Rows of ``stalls(metrics)``. With ``kernel_name`` and ``dur_ns`` (of
        ``speed_of_light(metrics)``, joined by ``kernel_id``) the longest kernels come first; with
        ``stage`` (of ``ncu.layers(metrics)``) they name the bars. Without names each launch has a
        bar.
    title : str, optional
        Title of the chart; by default it says what is shown.

    Returns
    -------
    altair.VConcatChart
        900 px wide.

    Raises
    ------
    AnalysisError
        A column is missing, or no share is known.

    Examples
    --------
    >>> chart = charts.stalls(analyze.ncu.stalls(metrics))
    """
    frame = draw.chart_frame(frame, analyze.ncu.stalls)
    valid = frame.filter(((pl.col("share") > 0) & pl.col("share").is_finite()).fill_null(False))
    if valid.is_empty():
        raise draw.nothing("stalls", "no launch has a share of a warp state")
    states = _named(valid)
    timed = states["ns"].null_count() == 0
    bars = _bars(states).head(_MAX_ROWS)
    parts = _gathered(_means(states.join(bars, on="bar", how="semi"), "bar"))
    table = _palette(parts)
    places = {bar: i for i, bar in enumerate(bars["bar"])}
    ordered = parts.join(bars.select("bar", "row"), on="bar").sort(
        pl.col("bar").replace_strict(places, return_dtype=pl.Int64)
    )
    data = draw.stack(
        ordered.with_columns(ns=100 * pl.col("share")), table, theme.Unit("%", 1)
    ).drop("ns", "time")
    width = (
        theme.inner() - 72 - round(max(theme.text_px(row, theme.TEXT_PX) for row in bars["row"]))
    )
    chart = theme.layered(*_marks(data, bars, table, width, timed=timed))
    chart = chart.properties(width=width, height=_ROW * bars.height)
    top = _means(states.with_columns(bar=pl.lit("")), "bar").sort(
        "share", "reason", descending=[True, False]
    )
    reason, share = str(top["reason"][0]), theme.percent(100 * draw.float_of(top["share"][0]))
    notes = ["Shares of the time between two instructions of a warp."]
    what = "kernels" if {"stage", "kernel_name"} & set(frame.columns) else "launches"
    if (count := states["bar"].n_unique()) > bars.height:
        notes[0] += (
            f" The {'longest ' if timed else 'first '}{bars.height} of {count:,} {what} are shown."
        )
    from llmprof.trace.metrics import explain

    if reason in REASONS and (entry := explain(f"smsp__pcsamp_warps_issue_stalled_{reason}")).known:
        notes.append(f"{reason}: {entry.meaning[:1].lower()}{entry.meaning[1:]}")
    headline = title or f"Warps wait longest for {shorten(reason, 40)}: {share} of their time"
    return theme.finish_chart(compose.vconcat(chart), headline, notes, at_edge=True)


def _named(valid: pl.DataFrame) -> pl.DataFrame:
    """``kernel_id, reason, share, bar, stage, ns, weight``: the bar of a launch is its stage and
    function.
    """
    has = [name for name in ("stage", "kernel_name") if name in valid.columns]
    texts = {"stage": pl.col("stage")}
    if "kernel_name" in has:
        function = names_kernels.displayed(valid["kernel_name"])
        texts["kernel_name"] = pl.lit(function)
    launch = pl.format("launch {}", "kernel_id")
    bar = (
        pl.concat_str([texts[name] for name in has], separator=": ", ignore_nulls=True)
        if has
        else launch
    )
    ns = pl.col("dur_ns") if "dur_ns" in valid.columns else pl.lit(None)
    return valid.select(
        *("kernel_id", "reason", "share"),
        bar=pl.when(bar == "").then(launch).otherwise(bar),
        stage=texts["stage"].fill_null("") if "stage" in has else pl.lit(""),
        ns=ns.cast(pl.Float64),
    ).with_columns(weight=pl.when(pl.col("ns").is_null().any()).then(1.0).otherwise("ns"))


def _bars(states: pl.DataFrame) -> pl.DataFrame:
    """``bar, stage, ns, row``: longest first; in the order of the frame if some have no
    duration.
    """
    launches = states.unique("kernel_id", keep="first", maintain_order=True)
    bars = launches.group_by("bar", "stage", maintain_order=True).agg(pl.sum("ns"))
    if not states["ns"].null_count():
        bars = bars.sort("ns", descending=True, maintain_order=True)
    alone = pl.n_unique("bar").over("stage") == 1
    name = pl.when((pl.col("stage") != "") & alone).then("stage").otherwise("bar")
    most = _MAX_NAME_NARROW if theme.is_narrow() else _MAX_NAME
    short = bars.select(name)[:, 0].map_elements(
        lambda text: shorten(text, most), return_dtype=pl.String
    )
    nth = pl.int_range(1, pl.len() + 1).over("row")
    once = pl.when(nth == 1).then("row").otherwise(pl.format("{} ({})", "row", nth))
    return bars.with_columns(row=short).with_columns(row=once)


def _means(states: pl.DataFrame, by: str) -> pl.DataFrame:
    """``<by>, reason, share``: mean over the launches, weighted by duration; a launch without a
    reason counts as 0.
    """
    launches = states.unique("kernel_id", keep="first")
    whole = launches.group_by(by).agg(whole=pl.sum("weight"))
    sums = states.group_by(by, "reason").agg(part=(pl.col("share") * pl.col("weight")).sum())
    return (
        sums.join(whole, on=by)
        .select(by, "reason", share=pl.col("part") / pl.col("whole"))
        .sort(by, "reason")
    )


def _gathered(means: pl.DataFrame) -> pl.DataFrame:
    """``bar, part, share``: reasons that are small in every bar are one part, and the rest of
    the bar is another.
    """
    small = (
        means.group_by("reason").agg(pl.max("share")).filter(pl.col("share") < _MIN_SHARE)["reason"]
    )
    name = f"other ({len(small)})" if len(small) > 1 else None
    part = pl.when(pl.col("reason").is_in(small.implode()) & (pl.lit(name).is_not_null())).then(
        pl.lit(name)
    )
    parts = means.group_by("bar", part=part.otherwise("reason")).agg(pl.sum("share"))
    rest = means.group_by("bar").agg(part=pl.lit(READY), share=1 - pl.sum("share"))
    return pl.concat([parts, rest.filter(pl.col("share") > _LEAST)], how="vertical").sort(
        "bar", "part"
    )


def _palette(parts: pl.DataFrame) -> dict[str, str]:
    """Colours of the parts, the largest first; merged reasons and the time without waiting come
    last.
    """
    sums = (
        parts.group_by("part").agg(pl.sum("share")).sort("share", "part", descending=[True, False])
    )
    shown_parts = sums["part"].to_list()
    last = [name for name in shown_parts if name.startswith("other (")] + [READY] * (
        READY in shown_parts
    )
    return {n: REASONS.get(n, theme.REST) for n in shown_parts if n not in last} | {
        n: theme.IDLE if n == READY else theme.REST for n in last
    }


def _marks(
    data: pl.DataFrame, bars: pl.DataFrame, table: dict[str, str], width: int, *, timed: bool
) -> list[alt.Chart]:
    axis = alt.Axis(
        title="share of a warp's time (%)", grid=False, tickCount=5 if theme.is_narrow() else 10
    )
    x = alt.X("start:Q", scale=theme.exact_scale(0, 100, clamp=True), axis=axis)
    y = theme.row_axis(bars["row"])
    tips = draw.tips(("bar:N", "kernel"), ("part:N", "reason"))
    tips.append(alt.Tooltip("percent:Q", format=".2f", title="share (%)"))
    shade = theme.colour_encoding("part", table)  # with a legend that is as wide as the bars
    widest = max(theme.text_px(part, theme.TEXT_PX) for part in table) + 34
    shade["legend"]["columns"] = max(1, min(len(table), int(width / widest)))
    drawn = alt.Chart(draw.inline(data)).mark_bar(stroke=theme.PAPER, strokeWidth=0.7)
    marks = [drawn.encode(x=x, x2=alt.X2("end:Q"), y=y, color=shade, tooltip=tips)]
    marks += draw.within(data, table, x, y, width / 100)
    if timed:
        ends = bars.select("row", start=pl.lit(100.0), label=draw.duration("ns"))
        marks.append(draw.behind(ends, x, y))
    return marks
