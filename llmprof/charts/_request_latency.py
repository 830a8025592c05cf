"""Distribution of the latencies of single requests."""

from __future__ import annotations

import altair as alt
import polars as pl

from llmprof.charts._data import inline, nothing, number, require
from llmprof.charts._palette import COMMUNICATION, COMPUTE
from llmprof.charts._requests import LATENCIES
from llmprof.charts._theme import NUMBER, PADDING, WIDTH, beside, colour, finish, layered, time_unit
from llmprof.units import format_ns

_SOURCE = "run.metrics, or llmprof.launch.metrics.request_metrics(worker)"
_SHOWN = ("ttft_ns", "tpot_ns", "itl_ns", "e2e_ns")
_PHASES = {"plain": ("without profiler", COMPUTE), "profiled": ("under the profiler", COMMUNICATION)}
_WARM_UP = "warmup"
_SPACE, _AXIS, _HEIGHT, _MOST_POINTS, _DOTS = 30, 34, 190, 400, 60


def request_latency(frame: pl.DataFrame, *, title: str | None = None) -> alt.VConcatChart:
    """Share of the requests that are at most so slow, for each latency that the engine told.

    Parameters
    ----------
    frame : polars.DataFrame
        Rows of ``run.metrics``: a request each. Warm-up is left out; all repeats of a phase are put together.
    title : str, optional
        Title instead of the one that says what is shown.

    Returns
    -------
    altair.VConcatChart
        900 px wide; a panel for each of time to first token, time per output token, inter-token latency and end to
        end, a line with and one without profiler. Up to 60 requests, each is a dot.

    Raises
    ------
    AnalysisError
        A column is missing, or the engine told none of the latencies.
    """
    require(frame, ("phase", "ttft_ns", "tpot_ns", "e2e_ns"), chart="request_latency", made_by=_SOURCE)
    rows = frame.filter(pl.col("phase") != _WARM_UP)
    values = {name: found for name in _SHOWN if (found := _values(rows, name)).height}
    if not values:
        raise nothing("request_latency", "the engine told no latency of a request", _SOURCE)
    phases = _phases(pl.concat(values.values())["phase"].unique().to_list())
    across = len(values) if len(values) < 4 else 2
    plot = (WIDTH - 2 * PADDING - _AXIS + _SPACE) // across - _SPACE
    panels = [
        _panel(found, name, plot, phases, first=i % across == 0) for i, (name, found) in enumerate(values.items())
    ]
    grid = [alt.hconcat(*panels[i : i + across], spacing=_SPACE, bounds="flush") for i in range(0, len(panels), across)]
    counts = rows.group_by("phase").agg(requests=pl.len(), repeats=_repeats(rows))
    said = {phase: (requests, repeats) for phase, requests, repeats in counts.iter_rows()}
    notes = [
        f"{part}: {said[phase][0]:,} request{'s' * (said[phase][0] > 1)} in {_times(said[phase][1])}"
        for phase, (part, _) in phases.items()
    ]
    note = f"{'; '.join(notes)}. Warm-up is left out."
    return finish(alt.vconcat(*grid, spacing=30), title or _headline(values, phases), note[0].upper() + note[1:])


def _phases(found: list[str]) -> dict[str, tuple[str, str]]:
    """Name and colour of each phase, in order."""
    known = {phase: shown for phase, shown in _PHASES.items() if phase in found}
    spare = ("#009E73", "#CC79A7", "#8B6F47", "#56B4E9")
    others = sorted(set(found) - set(_PHASES))
    return known | {phase: (phase, spare[i % len(spare)]) for i, phase in enumerate(others)}


def _values(rows: pl.DataFrame, name: str) -> pl.DataFrame:
    """``phase, ns`` of a latency, without nulls; a list has a row an element."""
    if name not in rows.columns:
        return pl.DataFrame(schema={"phase": pl.String, "ns": pl.Float64})
    column = rows.select("phase", ns=pl.col(name))
    if isinstance(column.schema["ns"], pl.List):
        column = column.explode("ns")
    return column.drop_nulls().with_columns(pl.col("ns").cast(pl.Float64))


def _repeats(rows: pl.DataFrame) -> pl.Expr:
    return pl.col("repeat").n_unique() if "repeat" in rows.columns else pl.lit(1)


def _times(repeats: int) -> str:
    return f"{repeats} repeats" if repeats > 1 else "one repeat"


def _panel(
    values: pl.DataFrame, name: str, plot: int, phases: dict[str, tuple[str, str]], *, first: bool
) -> alt.LayerChart:
    unit = time_unit(number(values["ns"].max()))
    table = dict(phases.values())
    data = _steps(values, phases).with_columns(value=pl.col("ns") / unit.ns)
    low, high = number(data["value"].min()), number(data["value"].max())
    air = (high - low) * 0.06 or high * 0.1 or 1.0
    x = alt.X(
        "value:Q",
        scale=alt.Scale(domain=[max(0.0, low - air), high + air], nice=False),
        axis=alt.Axis(title=f"time ({unit.symbol})", format=NUMBER, tickCount=5, grid=False),
    )
    quiet = {"labels": first, "ticks": first, "domain": first}
    axis = alt.Axis.from_dict({"title": None, "values": [0, 50, 90, 100], "labelExpr": "datum.value + ' %'", **quiet})
    y = alt.Y("share:Q", scale=alt.Scale(domain=[0, 104], nice=False), axis=axis)
    shade = colour("part", table)
    for key, value in {"symbolType": "stroke", "symbolStrokeWidth": 3}.items():
        shade["legend"][key] = value
    tips = [alt.Tooltip("part:N"), alt.Tooltip("value:Q", format=",.4~r"), alt.Tooltip("share:Q", format=",.3~r")]
    line = alt.Chart(inline(data)).mark_line(interpolate="step-after", strokeWidth=1.8).encode(x=x, y=y, color=shade)
    marks = [line]
    if values.height <= _DOTS * len(table):
        dots = alt.Chart(inline(data.filter(pl.col("share") > 0))).mark_point(filled=True, size=26, opacity=1)
        marks.append(dots.encode(x=x, y=y, color=shade, tooltip=tips))
    return layered(*marks, beside(LATENCIES[name].capitalize())).properties(width=plot, height=_HEIGHT)


def _steps(values: pl.DataFrame, phases: dict[str, tuple[str, str]]) -> pl.DataFrame:
    """Points of the share of values that are at most so large: ``part, ns, share``; at most 400 a phase."""
    parts = []
    for phase, (part, _) in phases.items():
        ns = values.filter(phase=phase)["ns"].sort()
        if not ns.len():
            continue
        places = sorted({round(i * (ns.len() - 1) / _MOST_POINTS) for i in range(_MOST_POINTS + 1)})
        shares = [100 * (place + 1) / ns.len() for place in places]
        points = pl.DataFrame({"ns": ns.gather(places), "share": pl.Series(shares, dtype=pl.Float64)})
        begin = pl.DataFrame({"ns": ns[:1], "share": [0.0]})
        parts.append(pl.concat([begin, points]).select(part=pl.lit(part), ns="ns", share="share"))
    return pl.concat(parts)


def _headline(values: dict[str, pl.DataFrame], phases: dict[str, tuple[str, str]]) -> str:
    """Medians of what a user feels."""
    phase, (part, _) = next(iter(phases.items()))
    words = []
    for name, what in (("ttft_ns", "first token after"), ("tpot_ns", "a token every"), ("e2e_ns", "end after")):
        ns = values[name].filter(phase=phase)["ns"] if name in values else pl.Series([], dtype=pl.Float64)
        if ns.len():
            words.append(f"{what} {format_ns(number(ns.median()))}")
    return f"Median {part}: {', '.join(words)}" if words else "Time from token to token"
