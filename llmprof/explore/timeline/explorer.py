"""Explorer of the whole trace: ranks, streams, threads, steps and layers over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import polars as pl
import traitlets

from llmprof.analyze.ncu.hardware import speed_of_light
from llmprof.analyze.ncu.launches import ncu_join
from llmprof.analyze.requests.requests import AnyRun
from llmprof.analyze.requests.spans import request_spans
from llmprof.errors import AnalysisError
from llmprof.explore.base.messages import Message, Record, Window
from llmprof.explore.base.widget import BUNDLES, Answer, Explorer, Trait, answers
from llmprof.explore.timeline import data
from llmprof.explore.timeline import describe as find
from llmprof.explore.timeline.data import TimelineData
from llmprof.explore.timeline.describe import describe, place
from llmprof.explore.timeline.view import overview, picture, view
from llmprof.metrics.data import Metrics
from llmprof.trace import Trace
from llmprof.units import format_ns, format_share

By = Literal["stage", "category"]
Fact = tuple[str, str]
"""Label and value, as text."""


class Hit(Record):
    """A span: its row, level and id there, start and end (ns), name and number of its color."""

    row: int
    level: int
    id: int
    start: int
    end: int
    name: str
    code: int


class End(Record):
    """One end of an arrow: row, level and time (ns)."""

    row: int
    level: int
    time: float


class Key(Record):
    """A color: what kind of name it stands for (stage, category, phase, cause …), and the name."""

    kind: str
    name: str
    colour: str


class Group(Record):
    """A rank (the host's is -1), its device, and the share of its time on the device in which it waits for others."""

    rank: int
    label: str
    detail: str
    waits: float | None


class Described(Record):
    """A row: its kind and rank, levels of nested spans, spans or samples, a note where it has none."""

    kind: str
    rank: int
    label: str
    levels: int
    count: int
    note: str
    unit: str
    range: Window | None


class Named(Record):
    """A name in a selected range: its color, spans, their time inside the range, mean and p99 of whole spans (ns)."""

    name: str
    code: int
    count: int
    total_ns: float
    mean_ns: float
    p99_ns: float
    share: float | None


_VIEW = {"window": Window, "columns": int, "lanes": list[tuple[int, int, int, int, int]]}
"""Window with its margins, columns of the bins, and lanes: row, level, first event, events, bins or samples (or -1)."""

_PACKED = (
    "of events start and duration (f4, ns from the window's start), color (u1), name (u4), id (u4); of bins how busy "
    "(u1) and color (u1); of samples least and greatest (f4)"
)
_DESCRIBED = {
    "hit": Hit,
    "facts": list[Fact],
    "flows": list[tuple[End, End]],
    "kind": str,
    "label": str,
}

ROWS: Final = Message(
    "rows",
    answers={
        "whole": Window,
        "found": bool,
        "missing": str,
        "keys": list[Key],
        "present": dict[str, list[int]],
        "groups": list[Group],
        "rows": list[Described],
        "names": list[str],
        "version": int,
    },
)
FIND: Final = Message("find", answers={"found": bool}, busy="finding steps and layers")
VIEW: Final = Message(
    "view",
    asks={"window": Window, "width": float, "rows": list[int], "colour_by": By},
    answers=_VIEW,
    buffers=_PACKED,
)
OVERVIEW: Final = Message("overview", asks={"width": float, "colour_by": By}, answers=_VIEW, buffers=_PACKED)
SPAN: Final = Message(
    "span",
    asks={"span": Window, "rows": list[int] | None},
    answers={"title": str, "facts": list[Fact], "rows": list[Named], "total": int},
)
NAMES: Final = Message("names", asks={"numbers": list[int]}, answers={"names": dict[str, str]})
DESCRIBE: Final = Message("describe", asks={"row": int, "id": int}, answers=_DESCRIBED)
HOVER: Final = Message("hover", asks={"row": int, "id": int}, answers=_DESCRIBED)
PICK: Final = Message(
    "pick", asks={"row": int, "level": int, "time": float, "reach": float}, answers={"hit": Hit | None}
)
NEIGHBOUR: Final = Message(
    "neighbour", asks={"row": int, "level": int, "id": int, "by": int}, answers={"hit": Hit | None}
)
SEARCH: Final = Message(
    "search",
    asks={"text": str, "after": float, "index": int | None},
    answers={"count": int, "index": int, "hit": Hit | None, "names": list[int]},
)
GOTO: Final = Message(
    "goto", asks={"step": int | None, "layer": int | None, "rank": int | None}, answers={"window": Window}
)

MESSAGES: Final = (
    *(ROWS, FIND, VIEW, OVERVIEW, SPAN, NAMES),
    *(DESCRIBE, HOVER, PICK, NEIGHBOUR, SEARCH, GOTO),
)


def metrics_by_event(trace: Trace, metrics: Metrics) -> pl.DataFrame:
    """What a kernel profiler measured, for the events of the timeline that it fits.

    Parameters
    ----------
    trace : Trace
        A timeline with kernels.
    metrics : Metrics
        Hardware metrics of some launches.

    Returns
    -------
    polars.DataFrame
        ``event, fact, value``: several rows an event, as text.

    Raises
    ------
    LlmprofError
        The trace has no kernels, or the metrics name no device.
    """
    joined = ncu_join(trace, metrics).drop_nulls("event").select("kernel_id", "event", "confidence", "profiled_ns")
    light = speed_of_light(metrics).drop("kernel_name")
    rows: list[tuple[int, str, str]] = []
    for launch in joined.join(light, on="kernel_id", how="left", maintain_order="left").iter_rows(named=True):
        facts = {
            "profiled": f"launch {launch['kernel_id']}, {format_ns(launch['profiled_ns'])}",
            "match": f"confidence {launch['confidence']:.2f}",
            "compute": _percent(launch["compute_pct"]),
            "memory": _percent(launch["memory_pct"]),
            "of the roofline": format_share(launch["roof_share"]),
            "bound by": launch["bound"],
            "stall": launch["stall"],
        }
        rows += [(launch["event"], fact, text) for fact, text in facts.items() if text not in (None, "unknown")]
    return pl.DataFrame(rows, schema={"event": pl.UInt32, "fact": pl.String, "value": pl.String}, orient="row")


def _percent(value: float | None) -> str | None:
    return None if value is None else f"{value:.1f} % of peak"


class Timeline(Explorer):
    """Timeline of a trace; :func:`timeline` says how it is used."""

    _esm = BUNDLES / "timeline.js"
    _css = BUNDLES / "timeline.css"

    selection: Trait = traitlets.Dict(default_value=None, allow_none=True).tag(sync=True)
    """Span that is selected: its ``row`` and its ``id`` there."""

    span: Trait = traitlets.List(traitlets.Float(), default_value=None, allow_none=True).tag(sync=True, pair=True)
    """Range of time (ns) that was selected by dragging."""

    span_rows: Trait = traitlets.List(traitlets.Int(), default_value=None, allow_none=True).tag(sync=True)
    """Numbers of the rows that the range was dragged over; all streams if None."""

    height = traitlets.Int(None, allow_none=True).tag(sync=True)
    """Most height of the overview and the rows (px); as high as the screen if None."""

    colour_by = traitlets.Enum(["stage", "category"], default_value="stage").tag(sync=True)
    """What the colour of a kernel means."""

    def __init__(
        self, trace: Trace, *, metrics: Metrics | None = None, run: AnyRun | None = None, **traits: Any
    ) -> None:
        requests = None if run is None else request_spans(run)
        self._data = TimelineData(trace, requests)
        self._search = find.Search(self._data)
        self._metrics = metrics
        self._joined: pl.DataFrame | None = None
        if requests is not None and requests.height:  # monitors ran since the engine was started
            ends = requests.select(pl.col("start_ns").min(), last=(pl.col("start_ns") + pl.col("dur_ns")).max()).row(0)
            traits = {"window": [float(ns) for ns in ends]} | traits
        super().__init__(trace, **traits)

    @property
    def selected(self) -> pl.DataFrame:
        """What is selected: the row of one span, or what touches the range of time in the rows that were dragged over.

        A kernel or copy is a row of ``analyze.attribute(trace)``, an operator, runtime call or marker one of the
        trace's table, a step, layer, collective or idle gap one of the analysis of its name, and a span of a request
        one of ``analyze.request_spans(run)``.
        """
        if self.selection:
            kind = self._data.row(self.selection["row"]).kind
            return self._data.frame(kind)[int(self.selection["id"])]
        if not self._data.events.height:
            return self._data.events
        if self.span is None:
            return self._data.frame("stream").clear()
        return data.events(self._data, self.span, self.span_rows)

    def select(self, event: int) -> None:
        """Select a kernel or copy by its number in ``analyze.attribute(trace)``.

        Raises
        ------
        AnalysisError
            There is no such event.
        """
        for number, row in enumerate(self._data.rows):
            if row.kind == "stream" and find.locate(self._data, number, event) is not None:
                self.selection = {"row": number, "id": event}
                return
        raise AnalysisError(f"there is no event {event}", expected=f"0 to {self._data.events.height - 1}")

    def go(self, *, step: int | None = None, layer: int | None = None, rank: int | None = None) -> None:
        """Show a step, or a layer of a step.

        Raises
        ------
        AnalysisError
            There is no such step or layer.
        """
        rank = self.rank if rank is None else rank
        self.window = find.place_of(self.trace, rank=rank, step=step, layer=layer)

    def picture(self) -> bytes | None:
        """PNG image of the window as the widget shows it; None where the trace has no events."""
        return picture(self._data, self.window, self.colour_by) if self._data.rows else None

    @traitlets.observe("selection")
    def _selected(self, change: Mapping[str, Any]) -> None:
        """Choose the place of the selected span, so that linked explorers follow."""
        if change["new"]:
            for name, value in place(self._data, change["new"]["row"], change["new"]["id"]).items():
                setattr(self, name, value)

    @traitlets.validate("selection")
    def _valid_selection(self, proposal: Mapping[str, Any]) -> dict[str, int] | None:
        value = proposal["value"]
        if value is None:
            return None
        if set(value) != {"row", "id"} or find.locate(self._data, int(value["row"]), int(value["id"])) is None:
            raise traitlets.TraitError(f"selection is {value!r}; expected None or the row and id of a span")
        return {name: int(value[name]) for name in ("row", "id")}

    @answers(ROWS)
    def _on_rows(self) -> Answer:
        names = [name[:100] for name in self._data.names.short[:1000]]
        return {**self._data.described(), "names": names, "version": len(self._data.names.short)}, []

    @answers(FIND)
    def _on_find(self) -> Answer:
        self._data.find(lambda text: self._progress("find", text))
        if self._metrics is not None and self._joined is None:
            self._progress("find", "joining metrics of kernels")
            self._joined = metrics_by_event(self.trace, self._metrics)
        return {"found": True}, []

    @answers(VIEW)
    def _on_view(self, window: Sequence[float], width: float, rows: Sequence[int], colour_by: str) -> Answer:
        return view(self._data, window, width, rows, colour_by)

    @answers(OVERVIEW)
    def _on_overview(self, width: float, colour_by: str) -> Answer:
        return overview(self._data, width, colour_by)

    @answers(SPAN)
    def _on_span(self, span: Sequence[float], rows: Sequence[int] | None) -> Answer:
        return data.table(self._data, span, rows), []

    @answers(NAMES)
    def _on_names(self, numbers: Sequence[int]) -> Answer:
        short = self._data.names.short
        return {"names": {number: short[number] for number in numbers[:5000] if 0 <= number < len(short)}}, []

    @answers(DESCRIBE)
    def _on_describe(self, row: int, id: int) -> Answer:  # noqa: A002
        return describe(self._data, row, id, self._joined), []

    @answers(HOVER)
    def _on_hover(self, row: int, id: int) -> Answer:  # noqa: A002
        return self._on_describe(row, id)

    @answers(PICK)
    def _on_pick(self, row: int, level: int, time: float, reach: float) -> Answer:
        return {"hit": find.pick(self._data, row, level, time, reach)}, []

    @answers(NEIGHBOUR)
    def _on_neighbour(self, row: int, level: int, id: int, by: int) -> Answer:  # noqa: A002
        return {"hit": find.neighbour(self._data, row, level, id, by)}, []

    @answers(SEARCH)
    def _on_search(self, text: str, after: float, index: int | None = None) -> Answer:
        return self._search.find(text, after=after, index=index), []

    @answers(GOTO)
    def _on_goto(self, step: int | None = None, layer: int | None = None, rank: int | None = None) -> Answer:
        return {"window": find.place_of(self.trace, rank=rank, step=step, layer=layer)}, []


def timeline(trace: Trace, *, metrics: Metrics | None = None, run: AnyRun | None = None, **traits: Any) -> Timeline:
    """Timeline of a trace to zoom, search and select in; what is selected comes back as a frame.

    Rows: for each rank its steps, layers with their stages, collectives, idle time, streams, counters and host
    threads. Of several ranks each is one strip at first; its name opens it. Ctrl + wheel or W and S zoom, A and D pan,
    a click selects, dragging selects a range of time in the rows that it covers; ``?`` shows the keys.

    Parameters
    ----------
    trace : Trace
        Any trace.
    metrics : Metrics, optional
        Hardware metrics of some kernels (``llmprof.read_metrics``), shown with them.
    run : Run, optional
        The run that the trace is of (``launch.open_run``): its requests stand on top, a row each, with what each
        waited for, its prefill and its decode.
    **traits
        ``window`` (first and last ns), ``height`` (px), ``colour_by`` (stage or category), ``theme``, to begin with.

    Returns
    -------
    Timeline
        ``.selected`` is the frame of what is selected, ``.window`` the range of time in ns that is shown, ``.span`` the
        one that was selected; setting ``window`` moves the picture.

    Raises
    ------
    LlmprofError
        An argument is of another kind, or the requests of the run cannot be joined to the trace.
    """
    return Timeline(trace, metrics=metrics, run=run, **traits)
