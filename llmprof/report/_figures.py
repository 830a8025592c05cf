"""The figures of a report: each picks its rows, keeps them few enough for a page, and draws them or says why not."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import polars as pl

from llmprof import analyze, charts
from llmprof.errors import AnalysisError, NotCapturedError
from llmprof.report import _choose, _vega
from llmprof.report._parts import Absent, Figure
from llmprof.trace import Trace
from llmprof.units import format_ns

if TYPE_CHECKING:
    import altair as alt

Drawn = tuple["alt.TopLevelMixin", str]


def breakdown(trace: Trace) -> Drawn:
    """Device time of each phase by stage."""
    return charts.breakdown(_without_empty_steps(analyze.attribute(trace))), ""


def breakdown_by_category(trace: Trace) -> Drawn:
    """Device time of each rank by category of kernel."""
    frame = analyze.kernel_summary(trace, by=("rank",))
    frame, note = _choose.fewer_ranks(frame, 1, _MOST_RANKS, "kernel_summary.csv")
    return charts.breakdown(frame, rows="rank", by="category"), note


def layer_heatmap(trace: Trace) -> Drawn:
    """Time of every layer in every step."""
    frame = analyze.layers(trace, by="layer").drop_nulls(["step", "layer"])
    cells = min(frame["step"].n_unique(), 120) * max(1, frame["layer"].n_unique())
    frame, note = _choose.fewer_ranks(frame, cells, _choose.MAX_CELLS, "layers.csv")
    return charts.layer_heatmap(frame), note


def overlap(trace: Trace) -> Drawn:
    """Compute, communication, copies and idle time by rank and phase."""
    frame = analyze.overlap(trace, by=("rank", "step", "phase")).drop_nulls("step")
    frame = _without_empty_steps(frame)
    if not frame.height:
        frame = analyze.overlap(trace, by=("rank",))
    frame, note = _choose.fewer_ranks(
        frame, frame["phase"].n_unique() if "phase" in frame.columns else 1, 64, "overlap.csv"
    )
    return charts.overlap(frame), note


def all_reduce(trace: Trace) -> Drawn:
    """The kind of collective that takes most time: waiting and transfer."""
    frame = analyze.collectives(trace)
    if not frame.height:
        raise AnalysisError(
            "the capture holds no collective",
            hint="a run on one device has none; otherwise pass the files of all ranks",
        )
    kinds = frame.group_by("kind").agg(pl.col("dur_ns").sum()).sort("dur_ns", "kind", descending=[True, False])
    kind = "all_reduce" if "all_reduce" in kinds["kind"] else kinds["kind"][0]
    return charts.all_reduce(frame, kind=kind), ""


def idle(trace: Trace) -> Drawn:
    """Idle time of the device by cause, and the gaps by length."""
    frame, note = _choose.fewer_ranks(analyze.idle(trace), 1, _MOST_RANKS, "idle.csv")
    return charts.idle(frame), note


def launch_delay(trace: Trace) -> Drawn:
    """How far the host is ahead of the device in each step."""
    frame, note = _choose.fewer_steps(analyze.launch_delay(trace), _choose.MAX_POINTS, "launch_delay.csv")
    return charts.launch_delay(frame), note


def step_timeline(trace: Trace) -> Drawn:
    """Timeline of the step that represents the run."""
    events, words = _step(trace)
    ranks = events["rank"].unique().sort()
    events, note = _choose.fewer_ranks(events, 1, 16, "the trace")
    low, high = _choose.extent(events)
    title = f"Step {events['step'][0]}, {words}, takes {format_ns(high - low)} on {_ranks(ranks.len())}"
    return charts.timeline(events, max_bars=_choose.MAX_BARS, title=title), note


def layer_timeline(trace: Trace) -> Drawn:
    """Timeline of one layer of that step, close enough to read its kernels."""
    events, _ = _step(trace)
    found = _choose.middle_layer(events)
    if found is None:
        raise AnalysisError("no layer was found in this step", hint="layers are found by their attention kernels")
    layer, low, high = found
    seen = events.filter((pl.col("start_ns") < high) & (pl.col("start_ns") + pl.col("dur_ns") > low))
    seen, note = _choose.fewer_ranks(seen, 1, 8, "the trace")
    title = f"Layer {layer} of that step: {format_ns(high - low)} from its first kernel to its last"
    return charts.timeline(seen, window_ns=(low, high), max_bars=_choose.MAX_BARS, title=title), note


FIGURES: dict[str, tuple[str, Callable[[Trace], Drawn]]] = {
    "breakdown": ("device time by phase and stage", breakdown),
    "categories": ("device time by rank and category of kernel", breakdown_by_category),
    "layers": ("time of every layer in every step", layer_heatmap),
    "overlap": ("overlap of compute, communication and copies", overlap),
    "all_reduce": ("waiting and transfer of collectives", all_reduce),
    "idle": ("idle time of the device and its causes", idle),
    "launch_delay": ("delay from launch call to kernel start", launch_delay),
    "step_timeline": ("timeline of one step", step_timeline),
    "layer_timeline": ("timeline of one layer", layer_timeline),
}
"""Figures by the name of their file: what each shows, and how it is drawn."""

_MOST_RANKS = 64


def figure(trace: Trace, name: str) -> Figure:
    """A figure of :data:`FIGURES`, or the reason why the capture does not allow it."""
    shows, draw = FIGURES[name]
    try:
        chart, note = draw(trace)
    except NotCapturedError as error:
        return Figure(name, shows, absent=Absent(shows, captured=False, found=error.found, hint=error.hint))
    except AnalysisError as error:
        return Figure(name, shows, absent=Absent(shows, captured=True, found=error.found, hint=error.hint))
    return Figure(name, shows, spec=_vega.specification(chart), note=note)


def _step(trace: Trace) -> tuple[pl.DataFrame, str]:
    chosen = _choose.representative_step(trace)
    if chosen is None:
        raise AnalysisError("no step with work on the device was found", hint="see the coverage of steps above")
    step, words = chosen
    return _choose.step_window(trace, step), words


def _without_empty_steps(frame: pl.DataFrame) -> pl.DataFrame:
    """Rows of steps that computed something, where there are any: an empty step is a few us of bookkeeping."""
    full = frame.filter(pl.col("phase").ne_missing("empty"))
    return full if full.height else frame


def _ranks(count: int) -> str:
    return f"{count} ranks" if count > 1 else "one rank"
