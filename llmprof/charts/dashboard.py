"""Dashboard: a run on one page, from its requests down to its kernels and its monitors."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import polars as pl

from llmprof.charts.base.data import nothing, number, stacked_bars, tiles
from llmprof.charts.base.theme import PADDING, PHASES, TEXT_PX, WIDTH, finish, heading, layered, text_px, time_unit
from llmprof.charts.breakdown import PARTS
from llmprof.charts.counters import counters_panel
from llmprof.charts.kernels import kernel_panel, kernel_rows
from llmprof.charts.requests import requests_panel

_SOURCE = "a finished run: llmprof.Visualizer(folder)"
_WIDTH = WIDTH - 2 * PADDING
_KERNELS, _ROW, _TILES, _COUNTERS = 8, 30, 6, 6


def dashboard(
    *,
    figures: Sequence[tuple[str, str]] = (),
    requests: pl.DataFrame | None = None,
    where: pl.DataFrame | None = None,
    kernels: pl.DataFrame | None = None,
    counters: pl.DataFrame | None = None,
    title: str = "A run at a glance",
    subtitle: str | Sequence[str] = "",
) -> alt.VConcatChart:
    """Panels of a run; one without data is left out.

    Parameters
    ----------
    figures : sequence of (str, str)
        Names and figures for the tiles on top.
    requests : polars.DataFrame, optional
        Rows of ``launch.run.requests.summarize(run.requests)``.
    where : polars.DataFrame, optional
        Time of the steps: ``phase, part, ns`` with the parts of an overlap, and ``steps, ranks``.
    kernels : polars.DataFrame, optional
        Rows of ``kernel_summary(trace)``.
    counters : polars.DataFrame, optional
        Counters of the trace.
    title : str
        What ran.
    subtitle : str or sequence of str
        How.

    Returns
    -------
    altair.VConcatChart
        900 px wide.

    Raises
    ------
    AnalysisError
        There is nothing to show.
    """
    panels: list[alt.LayerChart | alt.VConcatChart] = []
    rows = [list(figures[i : i + _TILES]) for i in range(0, len(figures), _TILES)]
    panels += [tiles(row, _WIDTH) for row in rows]
    if requests is not None and (latencies := requests_panel(requests, _WIDTH)) is not None:
        panels.append(
            _indented(latencies).properties(title=heading("Latencies of the requests: median, and up to p99"))
        )
    if where is not None and number(where["ns"].sum()) > 0:
        panels.append(_where(where))
    if kernels is not None and number(kernels["total_ns"].sum()) > 0:
        words = "Longest kernels: total over ranks and steps, share, count"
        bars = kernel_panel(kernel_rows(kernels, _KERNELS), _WIDTH, None)
        panels.append(_indented(bars).properties(title=heading(words)))
    if counters is not None and counters.height:
        chart, _ = counters_panel(counters, _WIDTH - 34, _COUNTERS)
        if chart is not None:
            panels.append(
                chart.properties(title=heading("Monitors over the time of the run (s; 0: start of the recording)"))
            )
    if not panels:
        raise nothing("dashboard", "the run has neither metrics nor a trace", _SOURCE)
    page: alt.VConcatChart = alt.vconcat(*panels, spacing=26).resolve_scale(color="independent")
    return finish(page, title, subtitle)


def _where(where: pl.DataFrame) -> alt.LayerChart:
    """Bars of the phases: time a step and rank."""
    places = {name: i for i, name in enumerate(PHASES)}
    ordered = where.sort(pl.col("phase").replace_strict(places, default=len(places), return_dtype=pl.Int64))
    named = pl.format(
        "{} ({} step{})", "phase", "steps", pl.when(pl.col("steps") == 1).then(pl.lit("")).otherwise(pl.lit("s"))
    )
    parts = ordered.select("part", row=named, ns=pl.col("ns") / (pl.col("steps") * pl.col("ranks")))
    names = parts["row"].unique(maintain_order=True)
    width = _WIDTH - 20 - round(max(text_px(name, TEXT_PX) for name in names))
    unit = time_unit(number(parts.group_by("row").agg(pl.col("ns").sum())["ns"].max()))
    table = {name: fill for name, fill in PARTS.items() if number(parts.filter(part=name)["ns"].sum()) > 0}
    bars = layered(*stacked_bars(parts, table, width=width, title="time of one step", unit=unit))
    bars = bars.properties(width=width, height=_ROW * len(names))
    return _indented(bars).properties(title=heading("Where the time of a step goes"))


def _indented(panel: alt.LayerChart) -> alt.LayerChart:
    """A panel whose names are inside it, so that all panels and their headings begin at the left edge."""
    left = _WIDTH - int(panel.width)
    for mark in panel.layer:
        mark.encoding.x["scale"]["range"] = [left, _WIDTH]
        if "axis" in mark.encoding.y.to_dict():
            mark.encoding.y["axis"]["offset"] = -left
    indented: alt.LayerChart = panel.properties(width=_WIDTH)
    return indented
