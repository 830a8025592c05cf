"""Charts of requests: their latencies, what each waited for over time, and a dashboard of a run."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import polars as pl

from llmprof import analyze
from llmprof.analyze.requests.requests import AnyRun, slowest
from llmprof.charts.base import compose, draw, theme
from llmprof.charts.subjects.breakdown import PARTS
from llmprof.charts.subjects.counters import counters_panel
from llmprof.charts.subjects.kernels import kernel_rows
from llmprof.units import format_ns

LATENCIES = {
    "ttft_ns": "time to first token",
    "tpot_ns": "time per output token",
    "itl_ns": "inter-token latency",
    "queue_ns": "queue",
    "prefill_ns": "prefill",
    "decode_ns": "decode",
    "e2e_ns": "end to end",
}
"""Metrics of a request in the order of the chart, and what they are called."""

_PHASES = {
    "plain": ("without profiler", theme.COMPUTE),
    "profiled": ("under the profiler", theme.COMMUNICATION),
}
_ROW = 42


def _summed(frame: pl.DataFrame, title: str | None) -> alt.VConcatChart:
    """Median and 99th percentile of each latency, on a logarithmic axis of time."""
    draw.require(frame, ("phase", "mean", "p50", "p99", "n"), chart="latencies")
    chart = _requests_panel(frame, theme.inner() - 8)
    if chart is None:
        raise draw.nothing("latencies", "the engine reported no latency of a request")
    shown = frame.filter(pl.col("metric").is_in(list(LATENCIES)))
    words = [
        f"{name} {format_ns(draw.float_of(rows['p50'][0]))}"
        for metric, name in (
            ("ttft_ns", "first token"),
            ("tpot_ns", "each further one"),
            ("e2e_ns", "end to end"),
        )
        if (rows := shown.filter(metric=metric).sort("phase")).height
    ]
    head = f"Median latencies: {', '.join(words)}" if words else "Latencies of the requests"
    counts = ", ".join(
        f"{draw.float_of(rows['n'].min()):,.0f} requests {name}"
        for phase, (name, _) in _PHASES.items()
        if (
            rows := shown.filter((pl.col("phase") == phase) & (pl.col("metric") != "itl_ns"))
        ).height
    )
    note = f"Dot: median; line: to the 99th percentile. {counts}."
    return theme.finish_chart(compose.vconcat(chart), title or head, note, at_edge=True)


def _requests_panel(frame: pl.DataFrame, width: int) -> alt.LayerChart | None:
    """Dots and lines of the latencies; None if none is above zero."""
    rows = frame.filter(
        pl.col("metric").is_in(list(LATENCIES))
        & pl.col("phase").is_in(list(_PHASES))
        & (pl.col("p50") > 0)
    )
    if rows.is_empty():
        return None
    names = [name for metric, name in LATENCIES.items() if metric in rows["metric"].to_list()]
    table = {
        name: fill for phase, (name, fill) in _PHASES.items() if phase in rows["phase"].to_list()
    }
    unit = theme.time_unit(draw.float_of(rows["p50"].median()))
    data = rows.select(
        row=pl.col("metric").replace_strict(LATENCIES, return_dtype=pl.String),
        part=pl.col("phase").replace_strict(
            {p: n for p, (n, _) in _PHASES.items()}, return_dtype=pl.String
        ),
        middle=pl.col("p50") / unit.ns,
        high=pl.max_horizontal("p50", "p99") / unit.ns,
        label=draw.duration("p50"),
    )
    across = width - 20 - round(max(theme.text_px(name, theme.TEXT_PX) for name in names))
    low, high = (
        draw.float_of(data["middle"].min()) / 1.6,
        draw.float_of(data["high"].max()) * 2.2,
    )
    scale = theme.exact_scale(low, high, type="log")
    axis = theme.titled_axis(f"time ({unit.symbol}, log scale)", values=draw.log_ticks(low, high))
    x, y, shade = (
        alt.X("middle:Q", scale=scale, axis=axis),
        theme.row_axis(names),
        theme.colour_encoding("part", table),
    )
    shade["legend"]["symbolOpacity"] = 1
    shade["legend"]["symbolType"] = "circle"
    shift = alt.YOffset("part:N", sort=None, scale=alt.Scale(domain=list(table), paddingOuter=0.3))
    tips = draw.tips("row:N", "part:N", ("label:N", "median"))
    base = alt.Chart(draw.inline(data))
    lines = base.mark_rule(strokeWidth=3, opacity=0.5).encode(
        x=x, x2=alt.X2("high:Q"), y=y, yOffset=shift, color=shade
    )
    dots = base.mark_circle(size=80, opacity=1).encode(
        x=x, y=y, yOffset=shift, color=shade, tooltip=tips
    )
    texts = base.mark_text(align="left", baseline="middle", dx=8, color=theme.INK)
    labels = texts.encode(
        x=alt.X("high:Q", scale=scale), y=y, yOffset=shift, text=alt.Text("label:N")
    )
    return theme.layered(lines, dots, labels).properties(width=across, height=_ROW * len(names))


_SHOWN = ("ttft_ns", "tpot_ns", "itl_ns", "e2e_ns")
_WARM_UP = "warmup"
_SPACE, _AXIS, _HEIGHT, _MOST_POINTS, _DOTS = 30, 34, 190, 400, 60


@draw.chart_of(
    "run.requests, or llmprof.run.launch.run.requests.requests_of(worker)",
)
def latencies(frame: pl.DataFrame, *, title: str | None = None) -> alt.VConcatChart:
    """Cumulative distribution of each latency that the engine reported, without and under the
    profiler; of sums, their medians and 99th percentiles.

    A panel for each of time to first token, time per output token, inter-token latency and end to
    end, one line with and one without the profiler. With up to 60 requests each request is a dot.

    Parameters
    ----------
    frame : polars.DataFrame
        Rows of ``run.requests``, one for each request, or their sums
        (``llmprof.run.launch.run.requests.summarize(run.requests)``). Warm-up is left out; all
        repeats of a phase are merged.
    title : str, optional
        Title of the chart; by default it says what is shown.

    Returns
    -------
    altair.VConcatChart
        900 px wide.

    Raises
    ------
    AnalysisError
        A column is missing, or the engine reported none of the latencies.
    """
    if "metric" in frame.columns:
        return _summed(frame, title)
    draw.require(frame, ("phase", "ttft_ns", "tpot_ns", "e2e_ns"), chart="latencies")
    rows = frame.filter(pl.col("phase") != _WARM_UP)
    values = {name: points for name in _SHOWN if (points := _values(rows, name)).height}
    if not values:
        raise draw.nothing("latencies", "the engine reported no latency of a request")
    phases = _phases(pl.concat(values.values())["phase"].unique().to_list())
    across = 1 if theme.is_narrow() else len(values) if len(values) < 4 else 2
    plot = (theme.inner() - _AXIS + _SPACE) // across - _SPACE
    panels = [
        _panel(points, name, plot, phases, first=i % across == 0)
        for i, (name, points) in enumerate(values.items())
    ]
    grid = theme.panel_rows(panels, across, spacing=_SPACE)
    repeats = pl.n_unique("repeat") if "repeat" in rows.columns else pl.lit(1)
    counts = rows.group_by("phase").agg(pl.len(), repeats=repeats)
    counted = {phase: row for phase, *row in counts.iter_rows()}
    notes = [
        f"{part}: {n:,} request{'s' * (n > 1)} in"
        f" {f'{times} repeats' if times > 1 else 'one repeat'}"
        for part, (n, times) in ((part, counted[phase]) for phase, (part, _) in phases.items())
    ]
    note = f"{'; '.join(notes)}. Warm-up is left out."
    return theme.finish_chart(
        compose.vconcat(*grid, spacing=30),
        title or _headline(values, phases),
        note[0].upper() + note[1:],
    )


def _phases(recorded: list[str]) -> dict[str, tuple[str, str]]:
    """Name and colour of each phase, in order."""
    named = {phase: shown for phase, shown in _PHASES.items() if phase in recorded}
    spare = ("#009E73", "#CC79A7", "#8B6F47", "#56B4E9")
    others = sorted(set(recorded) - set(_PHASES))
    return named | {phase: (phase, spare[i % len(spare)]) for i, phase in enumerate(others)}


def _values(rows: pl.DataFrame, name: str) -> pl.DataFrame:
    """``phase, ns`` of a latency, without nulls; a list has a row for each element."""
    if name not in rows.columns:
        return pl.DataFrame(schema={"phase": pl.String, "ns": pl.Float64})
    column = rows.select("phase", ns=pl.col(name))
    if isinstance(column.schema["ns"], pl.List):
        column = column.explode("ns")
    return column.drop_nulls().with_columns(pl.col("ns").cast(pl.Float64))


def _panel(
    values: pl.DataFrame, name: str, plot: int, phases: dict[str, tuple[str, str]], *, first: bool
) -> alt.LayerChart:
    unit = theme.time_unit(draw.float_of(values["ns"].max()))
    table = dict(phases.values())
    data = _steps(values, phases).with_columns(value=pl.col("ns") / unit.ns)
    low, high = draw.float_of(data["value"].min()), draw.float_of(data["value"].max())
    air = (high - low) * 0.06 or high * 0.1 or 1.0
    x = alt.X(
        "value:Q",
        scale=theme.exact_scale(max(0.0, low - air), high + air),
        axis=theme.titled_axis(f"time ({unit.symbol})", tickCount=5, grid=False),
    )
    quiet = {"labels": first, "ticks": first, "domain": first}
    axis = alt.Axis.from_dict(
        {"title": None, "values": [0, 50, 90, 100], "labelExpr": "datum.value + ' %'", **quiet}
    )
    y = alt.Y("share:Q", scale=theme.exact_scale(0, 104), axis=axis)
    shade = theme.colour_encoding("part", table)
    for key, value in {"symbolType": "stroke", "symbolStrokeWidth": 3}.items():
        shade["legend"][key] = value
    tips = draw.tips("part:N", ("value:Q", None, ",.4~r"), ("share:Q", None, ",.3~r"))
    line = (
        alt.Chart(draw.inline(data))
        .mark_line(interpolate="step-after", strokeWidth=1.8)
        .encode(x=x, y=y, color=shade)
    )
    marks = [line]
    if values.height <= _DOTS * len(table):
        dots = alt.Chart(draw.inline(data.filter(pl.col("share") > 0))).mark_point(
            filled=True, size=26, opacity=1
        )
        marks.append(dots.encode(x=x, y=y, color=shade, tooltip=tips))
    return theme.layered(*marks, theme.heading_mark(LATENCIES[name].capitalize())).properties(
        width=plot, height=_HEIGHT
    )


def _steps(values: pl.DataFrame, phases: dict[str, tuple[str, str]]) -> pl.DataFrame:
    """Points of the cumulative distribution: ``part, ns, share``; at most 400 of each phase."""
    parts = []
    for phase, (part, _) in phases.items():
        ns = values.filter(phase=phase)["ns"].sort()
        if not ns.len():
            continue
        places = sorted({round(i * (ns.len() - 1) / _MOST_POINTS) for i in range(_MOST_POINTS + 1)})
        shares = [100 * (place + 1) / ns.len() for place in places]
        points = pl.DataFrame(
            {"ns": ns.gather(places), "share": pl.Series(shares, dtype=pl.Float64)}
        )
        begin = pl.DataFrame({"ns": ns[:1], "share": [0.0]})
        parts.append(pl.concat([begin, points]).select(part=pl.lit(part), ns="ns", share="share"))
    return pl.concat(parts)


def _headline(values: dict[str, pl.DataFrame], phases: dict[str, tuple[str, str]]) -> str:
    """Sentence with the medians of the latencies that a user notices."""
    phase, (part, _) = next(iter(phases.items()))
    words = []
    for name, what in (
        ("ttft_ns", "first token after"),
        ("tpot_ns", "a token every"),
        ("e2e_ns", "end after"),
    ):
        ns = (
            values[name].filter(phase=phase)["ns"]
            if name in values
            else pl.Series([], dtype=pl.Float64)
        )
        if ns.len():
            words.append(f"{what} {format_ns(draw.float_of(ns.median()))}")
    return f"Median {part}: {', '.join(words)}" if words else "Time from token to token"


_KERNELS, _DASHBOARD_ROW, _TILES, _COUNTERS = 8, 30, 6, 6


def dashboard(
    *,
    figures: Sequence[tuple[str, str]] = (),
    request_summary: pl.DataFrame | None = None,
    where: pl.DataFrame | None = None,
    kernels: pl.DataFrame | None = None,
    counters: pl.DataFrame | None = None,
    title: str = "A run at a glance",
    subtitle: str | Sequence[str] = "",
) -> alt.VConcatChart:
    """Dashboard of a run: panels of its latencies, steps, kernels and monitors; panels without data
    are left out.

    Parameters
    ----------
    figures : sequence of (str, str)
        Names and figures for the tiles on top.
    request_summary : polars.DataFrame, optional
        Rows of ``launch.run.requests.summarize(run.requests)``.
    where : polars.DataFrame, optional
        Time of the steps: ``phase, part, ns`` with the parts of an overlap, and ``steps, ranks``.
    kernels : polars.DataFrame, optional
        Rows of ``kernels(trace)``.
    counters : polars.DataFrame, optional
        Counters of the trace.
    title, subtitle : str
        What ran, and how.

    Raises
    ------
    AnalysisError
        There is nothing to show.
    """
    panels: list[alt.LayerChart | alt.VConcatChart] = []
    rows = [list(figures[i : i + _TILES]) for i in range(0, len(figures), _TILES)]
    panels += [draw.figure_tiles(row, theme.inner()) for row in rows]
    if (
        request_summary is not None
        and (panel := _requests_panel(request_summary, theme.inner())) is not None
    ):
        panels.append(
            _indented(panel).properties(
                title=theme.panel_heading("Latencies of the requests: median, and up to p99")
            )
        )
    if where is not None and draw.float_of(where["ns"].sum()) > 0:
        panels.append(_where(where))
    if kernels is not None and draw.float_of(kernels["total_ns"].sum()) > 0:
        words = "Longest kernels: total over ranks and steps, share, count"
        longest = kernel_rows(kernels, _KERNELS)
        bars = draw.ranked_bars(
            longest,
            width=theme.inner(),
            title=None,
            table=theme.colours("category", longest["part"]),
        )
        panels.append(_indented(bars).properties(title=theme.panel_heading(words)))
    if counters is not None and counters.height:
        chart, _ = counters_panel(counters, theme.inner() - 34, _COUNTERS)
        if chart is not None:
            words = "Monitors over the time of the run (s; 0: start of the recording)"
            panels.append(chart.properties(title=theme.panel_heading(words)))
    if not panels:
        source = "a finished run: llmprof.Visualizer(folder)"
        raise draw.nothing("dashboard", "the run has neither metrics nor a trace", source)
    page: alt.VConcatChart = compose.vconcat(*panels, spacing=26).resolve_scale(color="independent")
    return theme.finish_chart(page, title, subtitle)


def _where(where: pl.DataFrame) -> alt.LayerChart:
    """Bars of the phases: time a step and rank."""
    places = {name: i for i, name in enumerate(theme.PHASES)}
    ordered = where.sort(
        pl.col("phase").replace_strict(places, default=len(places), return_dtype=pl.Int64)
    )
    named = pl.format(
        "{} ({} step{})",
        "phase",
        "steps",
        pl.when(pl.col("steps") == 1).then(pl.lit("")).otherwise(pl.lit("s")),
    )
    parts = ordered.select("part", row=named, ns=pl.col("ns") / (pl.col("steps") * pl.col("ranks")))
    names = parts["row"].unique(maintain_order=True)
    width = theme.inner() - 20 - round(max(theme.text_px(name, theme.TEXT_PX) for name in names))
    table = {
        name: fill
        for name, fill in PARTS.items()
        if draw.float_of(parts.filter(part=name)["ns"].sum()) > 0
    }
    bars = theme.layered(*draw.stacked_bars(parts, table, width=width, title="time of one step"))
    bars = bars.properties(width=width, height=_DASHBOARD_ROW * len(names))
    return _indented(bars).properties(title=theme.panel_heading("Where the time of a step goes"))


def _indented(panel: alt.LayerChart) -> alt.LayerChart:
    """A panel whose names are inside it, so that all panels and their headings begin at the left
    edge.
    """
    if theme.is_narrow():  # names stand above their bars, or are short
        return panel
    left = theme.inner() - int(panel.width)
    for mark in panel.layer:
        mark.encoding.x["scale"]["range"] = [left, theme.inner()]
        if "axis" in mark.encoding.y.to_dict():
            mark.encoding.y["axis"]["offset"] = -left
    indented: alt.LayerChart = panel.properties(width=theme.inner())
    return indented


_WATERFALL_COLUMNS = (
    *(
        "request",
        "start_ns",
        "first_step_ns",
        "first_token_ns",
        "end_ns",
        "ttft_ns",
        "queue_prefill_ns",
    ),
    *("queue_decode_ns", "queue_other_ns", "prefill_ns", "ttft_other_ns", "e2e_ns", "reason"),
)
_TABLE = {
    "waits behind prefill of others": theme.COMMUNICATION,
    "waits behind decode of others": theme.WAIT,
    "waits, no step runs": theme.REST,
    "prefill": theme.PHASES["prefill"],
    "decode": theme.PHASES["decode"],
}
_WATERFALL_ROW, _MOST = 15, 60


@draw.chart_of("llmprof.analyze.requests(run)")
def requests(frame: AnyRun | pl.DataFrame, *, title: str | None = None) -> alt.VConcatChart:
    """Requests over time, one in each row: waiting, prefill and decode.

    A row for each request in the order of arrival; if there are more than 60, the 60 with the
    latest first token. The parts of the waiting are drawn in a fixed order, not at the times at
    which they happened; prefill ends with the first token.

    Parameters
    ----------
    frame : AnyRun or polars.DataFrame
        What was recorded, or rows of ``analyze.requests(run)``.
    title : str, optional
        Title of the chart; by default it says what is shown.

    Returns
    -------
    altair.VConcatChart
        900 px wide.

    Raises
    ------
    AnalysisError
        A column is missing, or there are no requests.
    """
    frame = draw.chart_frame(frame, analyze.requests)
    draw.require(frame, _WATERFALL_COLUMNS, chart="requests")
    shown = frame.sort("ttft_ns", descending=True).head(_MOST).sort("start_ns", "request")
    first = int(draw.float_of(shown["start_ns"].min()))
    unit = theme.time_unit(draw.float_of(shown["end_ns"].max()) - first)
    rows = [f"request {one}" for one in shown["request"]]
    bars = _bars(shown, first).with_columns(
        start=pl.col("start") / unit.ns, end=pl.col("end") / unit.ns
    )
    colours = {name: fill for name, fill in _TABLE.items() if name in set(bars["part"])}
    width = theme.inner() - 20 - round(max(theme.text_px(row, theme.TEXT_PX) for row in rows))
    top = draw.float_of(bars["end"].max())
    scale = theme.exact_scale(0, top * 1.02 or 1)
    axis = theme.titled_axis(
        f"time since the first arrival ({unit.symbol})", tickCount=4 if theme.is_narrow() else 8
    )
    x, y = alt.X("start:Q", scale=scale, axis=axis), theme.row_axis(rows)
    tips = draw.tips(("row:N", "request"), "part:N", ("long:N", "time"), ("reason:N", "mostly"))
    base = alt.Chart(draw.inline(bars))
    marks = base.mark_bar(height=_WATERFALL_ROW - 5).encode(
        x=x, x2=alt.X2("end:Q"), y=y, color=theme.colour_encoding("part", colours), tooltip=tips
    )
    tokens = pl.DataFrame(
        {"row": rows, "at": ((shown["first_token_ns"] - first) / unit.ns).to_list()}
    )
    ticks = alt.Chart(draw.inline(tokens)).mark_tick(
        color=theme.INK, thickness=2, height=_WATERFALL_ROW - 3
    )
    ticks = ticks.encode(x=alt.X("at:Q", scale=scale, axis=axis), y=y)
    chart = theme.layered(marks, ticks).properties(
        width=width, height=_WATERFALL_ROW * len(rows) + 6
    )
    note = (
        "Black: the first token. The parts of the waiting stand in one order, not when they were."
    )
    if frame.height > _MOST:
        note += f" The {_MOST} of {frame.height} requests with the latest first token are shown."
    return theme.finish_chart(
        compose.vconcat(chart), title or slowest(frame)["title"], note, at_edge=True
    )


def _bars(shown: pl.DataFrame, first: int) -> pl.DataFrame:
    """Bars of each request, one after the other: ``row, part, start, end, long, reason``."""
    names = list(_TABLE)
    bars = []
    for row in shown.iter_rows(named=True):
        start = min(row["start_ns"], row["first_step_ns"]) - first
        parts = [row["queue_prefill_ns"], row["queue_decode_ns"], row["queue_other_ns"]]
        parts += [
            row["first_token_ns"] - row["first_step_ns"],
            row["end_ns"] - row["first_token_ns"],
        ]
        for name, part in zip(names, parts, strict=True):
            if part > 0:
                text = format_ns(part)
                bars.append(
                    (f"request {row['request']}", name, start, start + part, text, row["reason"])
                )
            start += max(0, part)
    return pl.DataFrame(
        bars, schema=["row", "part", "start", "end", "long", "reason"], orient="row"
    )
