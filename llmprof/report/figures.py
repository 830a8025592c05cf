"""Figures of a report: each selects its rows, limits them for a page, and draws them or gives
the reason why not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import polars as pl

from llmprof import analyze, charts, plugins
from llmprof.analyze import catalog
from llmprof.analyze.events import typical_step
from llmprof.analyze.idle.gaps import causes_of, gap_parts
from llmprof.analyze.roofline import coverage_of
from llmprof.analyze.step_times import LONG, step_windows
from llmprof.charts.base.draw import extent
from llmprof.charts.subjects.timeline.timeline import step_window
from llmprof.errors import AnalysisError, LlmprofError, NotCapturedError, OutputError, guarded
from llmprof.findings.scope import scope_of
from llmprof.replay.critical_path import path_without_names
from llmprof.replay.part import replayed_part
from llmprof.report import cards, page
from llmprof.report.page import Absent, ReportFigure, ReportTable, Section
from llmprof.text import counted, shorten
from llmprof.theory import Shape
from llmprof.trace import Trace
from llmprof.trace.kept import per_trace
from llmprof.trace.schema import END
from llmprof.units import format_ns, format_share

if TYPE_CHECKING:
    import altair as alt

_MOST_RANKS = 64

MAX_CELLS = 12_000
"""Most cells of the heat map; the page draws each as a separate shape."""

MAX_POINTS = 4_000
"""Most steps times ranks in the chart of launch delays."""

MAX_BARS = 3_000
"""Most events of a timeline that are drawn one by one."""


def _step_events(trace: Trace, step: int) -> pl.DataFrame:
    """Events of the representative step on the ranks whose clocks agree on its time."""
    events = trace.events.filter(step=step)
    spans = events.group_by("rank").agg(first=pl.min("start_ns"), last=END.max()).sort("rank")
    longest = int(spans.select((pl.col("last") - pl.col("first")).max()).item() or 0)
    near = (pl.col("first") - pl.first("first")).abs() <= max(1, longest)
    return events.filter(pl.col("rank").is_in(spans.filter(near)["rank"].implode()))


def middle_layer(events: pl.DataFrame) -> tuple[int, int, int]:
    """The layer in the middle of a step, and when the first rank and those beside it in time run
    it.
    """
    inside = events.drop_nulls("layer")
    if not inside.height:
        raise AnalysisError(
            "no layer was found in this step", hint="layers are found by their attention kernels"
        )
    first = inside.filter(pl.col("rank") == inside["rank"].min())
    layers = first["layer"].unique().sort()
    layer = int(layers[layers.len() // 2])
    low, high = extent(first.filter(layer=layer))
    spans = inside.filter(layer=layer).group_by("rank").agg(low=pl.min("start_ns"), high=END.max())
    beside = spans.filter((pl.col("low") < high) & (pl.col("high") > low))
    return layer, *beside.select(pl.min("low"), pl.max("high")).row(0)


def fewer_ranks(frame: pl.DataFrame, cells: int, limit: int, file: str) -> tuple[pl.DataFrame, str]:
    """Rows of as many ranks as fit, evenly spread, and a note on the ranks that were left out."""
    ranks = frame["rank"].unique().sort()
    most = max(1, limit // max(1, cells))
    if ranks.len() <= most:
        return frame, ""
    spread = sorted({i * ranks.len() // most for i in range(most)})
    kept = ranks.gather(spread)
    shown = ", ".join(map(str, kept.to_list()))
    note = f"Drawn: {kept.len()} of {ranks.len()} ranks ({shown}); {file} has all."
    return frame.filter(pl.col("rank").is_in(kept.implode())), note


def fewer_steps(frame: pl.DataFrame, limit: int, file: str) -> tuple[pl.DataFrame, str]:
    """Rows of every n-th step, so that at most ``limit`` rows are left, and a note on it."""
    if frame.height <= limit:
        return frame, ""
    every = -(-frame.height // limit)
    kept = frame.filter(pl.col("step") % every == 0)
    return (
        kept,
        f"Drawn: one step in {every}, {kept.height:,} of {frame.height:,} rows; {file} has all.",
    )


Drawn: TypeAlias = "alt.TopLevelMixin | tuple[alt.TopLevelMixin, str]"
"""A chart, or with it a note on the rows that were left out to keep it small."""


@dataclass(frozen=True, slots=True)
class Drawing:
    """A figure of a report: a record next to the function that draws it; its analysis names it."""

    name: str
    """Stem of its PNG file, and its id in the page."""
    shows: str
    """What it shows, as a noun."""
    draw: Callable[[Any], Drawn]
    """Function that draws it from the subject of the report: a trace, a run or a sweep.
    If it raises an error of llmprof, the report shows this error in place of the figure."""
    package: str = ""
    """Name and version of the package that a plug-in is in."""


@dataclass(frozen=True, slots=True)
class ShownAnalysis:
    """How a section of the report shows an analysis."""

    analysis: str
    """Name of the analysis."""
    table: Callable[[pl.DataFrame, Mapping[str, str]], ReportTable | Absent] | None = None
    """Function that makes a table of its frame and the words of the platform
    (:data:`llmprof.trace.platforms.ON_DEVICE`).
    """
    figures: tuple[Drawing, ...] = ()
    """Figures, which stand in for the table of a frame without rows."""
    columns: str = ""
    """In place of a table: columns of which the first rows are shown, separated by spaces."""
    reported: bool = True
    """Whether the report computes it and writes its frame."""
    package: str = ""
    """Name and version of the package that a plug-in is in."""

    @property
    def in_words(self) -> bool:
        """Whether the page needs its frame, beside what its figures draw."""
        return bool(self.table or self.columns or self.package or not self.figures)


@dataclass(frozen=True, slots=True)
class WithoutRows:
    """Heading and sentences of a section if an analysis of it has no rows."""

    analysis: str
    question: str
    words: str


@dataclass(frozen=True, slots=True)
class SectionPlan:
    """A section of the report, before it is made: the question that it answers, and how to read
    the answer.
    """

    anchor: str
    analyses: tuple[ShownAnalysis, ...]
    words: str = ""
    """One to three sentences below the heading."""
    question: str = ""
    """Its heading; if empty, the question of its first analysis."""
    without: WithoutRows | None = None
    """Heading and sentences for a recording that lacks what the section asks about."""
    only_with: str = ""
    """Table without which a report leaves the section out, and does not say why."""


def _breakdown(trace: Trace) -> Drawn:
    frame, note = _of_mean_steps(trace, _without_empty_steps(trace.events))
    named = cards.some_known(frame, "stage")
    return charts.breakdown(named, work=trace.capture.words["events"]), note


def _breakdown_by_category(trace: Trace) -> Drawn:
    frame = analyze.kernels(trace, by=("rank",))
    frame = cards.some_known(frame, "category", ns="total_ns")
    frame, note = fewer_ranks(frame, 1, _MOST_RANKS, "analyze.kernels(trace)")
    whole = "Of the whole recording, with what is outside of steps."
    stepped = analyze.steps(trace)["dur_ns"].null_count() < analyze.steps(trace).height
    chart = charts.breakdown(
        frame, rows="rank", color="category", work=trace.capture.words["events"]
    )
    return chart, " ".join(filter(None, (whole if stepped else "", note)))


def _layers(trace: Trace) -> Drawn:
    frame = analyze.layers(trace).drop_nulls(["step", "layer"])
    if not frame.height:
        raise AnalysisError(
            "no layer of a step was found", hint="layers are found by their attention kernels"
        )
    cells = min(frame["step"].n_unique(), 120) * max(1, frame["layer"].n_unique())
    frame, note = fewer_ranks(frame, cells, MAX_CELLS, "analyze.layers(trace)")
    return charts.layers(frame), note


def _overlap(trace: Trace) -> Drawn:
    frame = analyze.overlap(trace, by=("rank", "step", "phase"), waits=True).drop_nulls("step")
    frame, left_out = _of_mean_steps(trace, _without_empty_steps(frame))
    if not frame.height:
        frame = analyze.overlap(trace, by=("rank",), waits=True)
    frame, note = fewer_ranks(
        frame,
        frame["phase"].n_unique() if "phase" in frame.columns else 1,
        64,
        "analyze.overlap(trace)",
    )
    return charts.overlap(frame, work=trace.capture.words["events"]), " ".join(
        filter(None, (left_out, note))
    )


MANY_RANKS: Final = 8
"""Ranks from which a report draws them as a heat map."""


def _rank_steps(trace: Trace) -> Drawn:
    _many(trace)
    rows, groups = analyze.ranks(trace, by="step"), analyze.ranks(trace, by="place")
    return charts.ranks(rows, groups=groups)


def _rank_waits(trace: Trace) -> Drawn:
    _many(trace)
    rows, groups = analyze.ranks(trace, by="step"), analyze.ranks(trace, by="place")
    if rows["wait_ns"].max() == 0:
        raise AnalysisError(
            "no rank waits for another in a collective", hint="compare the times of their steps"
        )
    return charts.ranks(rows, value="wait_ns", groups=groups)


def _late_groups(trace: Trace) -> Drawn:
    _many(trace)
    late = analyze.ranks(trace, by="group")
    if not late.height:
        found = "the recording does not say which ranks share a node or a parallel group"
        raise AnalysisError(
            found, hint="analyze.ranks(trace, by='group', ranks_per_node=8) takes it from you"
        )
    if late["other_wait_ns"].max() == 0:
        raise AnalysisError(
            "no rank waits for another in a collective", hint="compare the times of their steps"
        )
    return charts.ranks(late)


def _many(trace: Trace) -> None:
    ranks = sum(rank >= 0 for rank in trace.ranks)
    if ranks < MANY_RANKS:
        found = (
            f"the recording has {cards.number_of_ranks(ranks)}, and a map of ranks is drawn from"
            f" {MANY_RANKS}"
        )
        raise AnalysisError(found, hint="the other charts show each rank by itself")


def _collectives(trace: Trace) -> Drawn:
    frame = analyze.collectives(trace)
    if not frame.height:
        found = "the capture holds no collective"
        raise AnalysisError(
            found, hint="a run on one device has none; otherwise pass the files of all ranks"
        )
    kinds = (
        frame.group_by("kind")
        .agg(pl.sum("dur_ns"))
        .sort("dur_ns", "kind", descending=[True, False])
    )
    kind = "all_reduce" if "all_reduce" in kinds["kind"] else kinds["kind"][0]
    return charts.collectives(frame, kind=kind)


def _idle(trace: Trace) -> Drawn:
    if trace.capture.on_host:
        found = "no activity of a device was recorded, and operators of the host stand in for it"
        raise NotCapturedError(
            found, hint="profile the activity of the device as well, if the run uses one"
        )
    parts, *_ = gap_parts(trace)
    parts = parts.select("rank", "step", "dur_ns", causes_of(parts))
    frame, left_out = _of_mean_steps(trace, parts)
    frame, note = fewer_ranks(
        cards.some_known(frame, "cause"), 1, _MOST_RANKS, "analyze.idle(trace)"
    )
    return charts.idle(frame), " ".join(filter(None, (left_out, note)))


def _launch_delay(trace: Trace) -> Drawn:
    frame, note = fewer_steps(
        analyze.launch_delay(trace), MAX_POINTS, "analyze.launch_delay(trace)"
    )
    return charts.launch_delay(frame), note


def _step_timeline(trace: Trace) -> Drawn:
    events, words = _step(trace)
    ranks = events["rank"].unique().sort()
    events, note = fewer_ranks(events, 1, 16, "the trace")
    title = f"Step {events['step'][0]}, {words} of {cards.number_of_ranks(ranks.len())}"
    window = step_window(trace, events["step"][0])
    return charts.timeline(events, window=window, max_bars=MAX_BARS, title=title), note


def _layer_timeline(trace: Trace) -> Drawn:
    events, _ = _step(trace)
    layer, low, high = middle_layer(events)
    seen = events.filter((pl.col("start_ns") < high) & (low < END))
    seen, note = fewer_ranks(seen, 1, 8, "the trace")
    title = (
        f"Layer {layer} of that step: {format_ns(high - low)} from its first {trace.capture.words['event']}"  # noqa: E501
        " to its last"
    )
    return charts.timeline(seen, window=(low, high), max_bars=MAX_BARS, title=title), note


@per_trace
def _by_stage(trace: Trace) -> pl.DataFrame:
    """Operators by stage: the chart is drawn twice, for a desk and for a telephone."""
    return analyze.operators(trace, by=("stage",))


def _operators(trace: Trace) -> Drawn:
    part = replayed_part(trace, ())
    frame = _by_stage(part.trace)
    if frame["bound_ns"].null_count() == frame.height:
        reasons = frame.filter(pl.col("category").ne_missing("collective"))["reason"].drop_nulls()
        raise AnalysisError(": ".join(["no operator has a bound", *reasons.head(1)]))
    return charts.roofline(frame, peaks=trace.meta["device"]), (
        f"Drawn: {part.words}." if part.words else ""
    )


def _opportunities(trace: Trace) -> Drawn:
    found = analyze.opportunities(trace)
    if why := without_bounds(found):
        raise AnalysisError(why)
    return charts.opportunities(found)


def without_bounds(opportunities: pl.DataFrame) -> str:
    """Why no operator has a bound; empty if one has."""
    if not opportunities.height or opportunities["bound_share"].null_count() < opportunities.height:
        return ""
    return f"no operator has a bound: {opportunities.filter(part='step')['reason'][0]}"


def _critical_path(trace: Trace) -> Drawn:
    if trace.capture.on_host:
        raise AnalysisError(
            "no device was recorded, and operators of the host only follow each other"
        )
    frame, note = _of_mean_steps(trace, path_without_names(trace))
    return charts.critical_path(cards.some_known(frame, "part")), note


BREAKDOWN = Drawing("breakdown", "time by phase and stage", _breakdown)
CATEGORIES = Drawing("categories", "time by rank and category", _breakdown_by_category)
LAYERS = Drawing("layers", "time of every layer in every step", _layers)
RANK_STEPS = Drawing("rank_steps", "time of every step on every rank", _rank_steps)
RANK_WAITS = Drawing("rank_waits", "waiting of every rank in every step", _rank_waits)
LATE_GROUPS = Drawing("late_groups", "which nodes and parallel groups arrive last", _late_groups)
OVERLAP = Drawing("overlap", "overlap of compute, communication and copies", _overlap)
COLLECTIVES = Drawing("collectives", "waiting and transfer of collectives", _collectives)
IDLE = Drawing("idle", "idle time of the device and its causes", _idle)
CRITICAL_PATH = Drawing("critical_path", "what sets the pace of a step", _critical_path)
OPERATORS = Drawing("operators", "operators against their bounds", _operators)
GAINS_OF_OPERATORS: Final = "what a step would gain from operators nearer to their bounds"
OPPORTUNITIES = Drawing("opportunities", GAINS_OF_OPERATORS, _opportunities)
LAUNCH_DELAY = Drawing("launch_delay", "delay from launch call to kernel start", _launch_delay)
STEP_TIMELINE = Drawing("step_timeline", "timeline of one step", _step_timeline)
LAYER_TIMELINE = Drawing("layer_timeline", "timeline of one layer", _layer_timeline)


def make_figure(subject: object, drawing: Drawing) -> ReportFigure:
    """A figure of a trace, a run or a sweep, or the reason why the recording does not allow it."""
    name, shows, notes = drawing.name, drawing.shows, []

    def draw() -> alt.TopLevelMixin:
        chart, note = draw_chart(subject, drawing)
        notes.append(note)
        return chart

    try:
        with guarded(f"the figure {name!r}"):
            spec, small = page.twice(draw)
    except LlmprofError as error:
        captured = isinstance(error, AnalysisError | OutputError)
        return ReportFigure(
            name,
            shows,
            absent=Absent(shows, captured=captured, found=reason_in_words(error), hint=error.hint),
        )
    return ReportFigure(name, shows, spec=spec, small=small, note=notes[0])


def reason_in_words(error: LlmprofError) -> str:
    """Reason of an error without the names of functions, which a reader of a report does not
    call.
    """
    return str(error.facts.get("why", error.found))


def draw_chart(subject: object, drawing: Drawing) -> tuple[alt.TopLevelMixin, str]:
    """Chart and note; other errors than those of llmprof become an error that names the plug-in."""
    try:
        with plugins.foreign() if drawing.package else nullcontext():
            made = drawing.draw(subject)
            return made if isinstance(made, tuple) else (made, "")
    except plugins.FailedError as error:
        found = f"the figure {drawing.name!r} of {drawing.package} failed: {error}"
        raise AnalysisError(found, hint="report this to its authors") from error


def _step(trace: Trace) -> tuple[pl.DataFrame, str]:
    steady = analyze.steps(trace, steady=True).height > 0
    words = "a steady decode step" if steady else "the step of median length"
    return _step_events(trace, typical_step(trace)), words


def _without_empty_steps(frame: pl.DataFrame) -> pl.DataFrame:
    """Rows of steps with work, if there are any; an empty step is only a few us of bookkeeping."""
    full = frame.filter(pl.col("phase").ne_missing("empty"))
    return full if full.height else frame


def _of_mean_steps(trace: Trace, frame: pl.DataFrame) -> tuple[pl.DataFrame, str]:
    """Rows without the long first steps, which are no part of the mean step that the findings
    are about.
    """
    scope = scope_of(trace)
    if scope.words != "steps" or scope.steps is None:
        return frame, ""
    usual = scope.steps["step"].unique()
    first = step_windows(trace).filter(pl.col("step") < usual.min())["step"].n_unique()
    if not first:
        return frame, ""
    why = f"longer than {LONG} median steps and no part of a mean"
    kept = frame.filter(pl.col("step").is_null() | (pl.col("step") >= usual.min()))
    return kept, f"Without the first {counted(first, 'step')}, each {why}."


_SHOWS = "measured time against its bound"


def bound_section(
    trace: Trace,
    model: str | Path | Mapping[str, Any] | Shape,
    *,
    tp_size: int | None = None,
    pp_size: int | None = None,
) -> Section:
    """Section that compares the steps of a trace with the least possible time."""
    words = (
        "The least time of a stage follows from the model's shape, the tokens of the step and the"
        " stated peaks of the device; the rest of a bar is the gap, in the colour of its reason."
    )
    try:
        joined = analyze.roofline(trace, model, tp_size=tp_size, pp_size=pp_size)
        share = format_share(coverage_of(joined)["explained_share"])
        spec, small = page.twice(lambda: charts.roofline(joined))
        figure = ReportFigure("bound_gap", _SHOWS, spec=spec, small=small)
        words += f" Theory knows {share} of the device time."
    except LlmprofError as error:
        figure = ReportFigure(
            "bound_gap",
            _SHOWS,
            absent=Absent(_SHOWS, captured=False, found=error.found, hint=error.hint),
        )
    return Section("bound", catalog.declaration(analyze.roofline).question, words, [figure])


def config_in(folder: Path) -> Path | None:
    """The ``config.json`` of the model that a run wrote into its folder, if there is one."""
    paths = sorted(folder.glob("*/config.json"))
    return paths[0] if len(paths) == 1 else None


_MOST_PANELS = 4


def _memory(trace: Trace) -> Drawn:
    held = analyze.memory(trace, by="time")
    device = held.filter("on_device")
    held = device if device.height else held
    places = held.select("rank", "device").unique(maintain_order=True)
    kept = held.join(
        places.head(_MOST_PANELS), on=["rank", "device"], nulls_equal=True, maintain_order="left"
    )
    note = (
        f"Drawn: {_MOST_PANELS} of {places.height} devices." if places.height > _MOST_PANELS else ""
    )
    return charts.memory(kept), note


def _holders(trace: Trace) -> Drawn:
    holders = analyze.memory(trace, by="holder")
    if not holders.height:
        raise NotCapturedError(
            "nothing is known to hold memory", hint="record with profile_memory=True"
        )
    device = holders.filter("on_device")
    holders = device if device.height else holders
    rank = holders["rank"].sort()[0]
    note = (
        ""
        if holders["rank"].n_unique() == 1
        else f"Drawn: rank {rank}; analyze.memory(trace, by='holder') has all."
    )
    return charts.memory(holders.filter(rank=rank)), note


MEMORY = Drawing("memory", "allocated and reserved memory over time", _memory)
HOLDERS = Drawing("memory_holders", "what holds memory at the peak", _holders)


def _flame(trace: Trace) -> Drawn:
    stacks = analyze.stacks(trace, of="samples")
    units = stacks["unit"].unique().sort().to_list()
    note = (
        f"Drawn: what was counted in {units[0]}; analyze.hotspots(trace) has all."
        if len(units) > 1
        else ""
    )
    return charts.flame(stacks.filter(pl.col("unit") == units[0]) if units else stacks), note


def _totals(trace: Trace) -> Drawn:
    totals = analyze.totals(trace)
    if not totals.height:
        raise AnalysisError("the summary holds no row", hint="check that the profiler was active")
    kinds = totals.group_by("kind").agg(pl.sum("total_ns"))
    on_device = kinds.filter(pl.col("kind").is_in(["kernel", "layer"]))
    kind = (on_device if on_device.height else kinds).sort(
        "total_ns", "kind", descending=[True, False]
    )["kind"][0]
    rows = totals.filter(pl.col("kind").is_in(["kernel", "copy"] if kind == "kernel" else [kind]))
    note = (
        ""
        if rows.height == totals.height
        else f"Drawn: what is of the kind {kind}; analyze.totals(trace) has all."
    )
    rows = rows.with_columns(
        pl.col("count").fill_null(0), category=pl.coalesce("category", "scope")
    )
    if kind == "kernel":
        return charts.kernels(rows), note
    first = rows.sort("total_ns", descending=True).row(0, named=True)
    title = (
        f"{shorten(first['name'], 48)} takes {format_share(first['share'])} of the time of all"
        f" {kind}s"
    )
    return charts.kernels(rows, variants=True, title=title), note


FLAME = Drawing("hotspots", "call stacks that the CPU was in", _flame)
TOTALS = Drawing("totals", "names by the sum of their times", _totals)
