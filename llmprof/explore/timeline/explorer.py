"""Explorer of the timeline: ranks, streams, threads, steps and layers of a trace over time."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import msgspec
import polars as pl
import traitlets

from llmprof.analyze import ncu
from llmprof.analyze.requests.requests import AnyRun, request_spans, run_of
from llmprof.charts.subjects.flame import speedscope_text
from llmprof.errors import AnalysisError, LlmprofError, NotCapturedError, listed
from llmprof.explore.base.messages import Fact, MessageRecord, TimeRange
from llmprof.explore.base.widget import Explorer, Reply, Trait, optional, request_handler
from llmprof.explore.timeline import data
from llmprof.explore.timeline import describe as find
from llmprof.explore.timeline.data import HOST, TimelineData
from llmprof.explore.timeline.describe import (
    MOST,
    By,
    Search,
    SearchScope,
    describe_span,
    flame_of,
    kinds_of,
    span_labels,
    stacks_of,
)
from llmprof.explore.timeline.query import EXPORTED, WORDS, Queries
from llmprof.explore.timeline.rows import KINDS, PATH_KIND, REQUEST_KIND, TimelineRow
from llmprof.explore.timeline.saved import (
    Arrangement,
    Notes,
    fingerprint,
    restored,
    sorted_marks,
    view_of,
    window_file,
)
from llmprof.explore.timeline.view import overview, window_picture, window_view
from llmprof.text import csv
from llmprof.trace import Trace
from llmprof.trace.metrics.data import Metrics
from llmprof.trace.schema import END
from llmprof.units import format_ns, format_share

Colour = Literal["stage", "category"]


class Hit(MessageRecord):
    """A span: its row, level and id there, start and end (ns), name and number of its color."""

    row: int
    level: int
    id: int
    start: int
    end: int
    name: str
    code: int


class ArrowEnd(MessageRecord):
    """One end of an arrow: row, level and time (ns)."""

    row: int
    level: int
    time: float


class Key(MessageRecord):
    """A color: the kind of name that it stands for (stage, category, phase, cause …), and the
    name.
    """

    kind: str
    name: str
    colour: str


class Group(MessageRecord):
    """A rank (the host's is -1), its device, its share of waiting on the device, and whether the
    others wait for it.
    """

    rank: int
    label: str
    detail: str
    waits: float | None
    late: bool


class Described(MessageRecord):
    """A row: its kind and rank, levels of nested spans, number of spans or samples, and a note
    if it has none.
    """

    kind: str
    rank: int
    label: str
    levels: int
    count: int
    note: str
    unit: str
    range: TimeRange | None


class Listed(MessageRecord):
    """A hit of the search, with the rank and the label of its row."""

    hit: Hit
    rank: int
    label: str


class Named(MessageRecord):
    """A name in a selected range: its color, spans, their time inside, mean, median and p99 of
    whole spans (ns).
    """

    name: str
    code: int
    count: int
    total_ns: float
    mean_ns: float
    p50_ns: float
    p99_ns: float
    share: float | None


class RowCount(MessageRecord):
    """A kind of rows in a selected range, and its number of spans, samples or launches there."""

    kind: str
    count: int


class TraceTable(MessageRecord):
    """A table of the trace, and its columns."""

    name: str
    columns: list[str]


class QueryColumn(MessageRecord):
    """A column of the result of a query, and whether it has numbers."""

    name: str
    number: bool


class Counted(MessageRecord):
    """A counter in a selected range; its mean is over time."""

    name: str
    unit: str
    count: int
    least: float | None
    mean: float | None
    most: float | None
    first: float | None
    last: float | None


class Launched(MessageRecord):
    """What calls launched, by name: times from the begin of the call to that of the kernel or
    copy (ns).
    """

    name: str
    count: int
    mean_ns: float
    p50_ns: float
    p99_ns: float
    most_ns: float


_VIEW: Final[dict[str, Any]] = {
    "window": TimeRange,
    "columns": int,
    "lanes": list[tuple[int, int, int, int, int]],
}
"""Window with its margins, columns of the bins, and lanes: row, level, first event, events, bins
or samples (or -1).
"""

_PACKED = (
    "of events start and duration (f4, ns from the window's start), color (u1), name (u4), id (u4);"
    " of bins how busy (u1) and color (u1); of samples least and greatest (f4); of events the share"
    " that waits, of bins the same (u1, of 255)"
)
_DESCRIBED: Final[dict[str, Any]] = {
    "hit": Hit,
    "facts": list[Fact],
    "flows": list[tuple[ArrowEnd, ArrowEnd]],
    "target": Hit | None,
    "kind": str,
    "label": str,
}


def _metrics_by_event(trace: Trace, metrics: Metrics) -> pl.DataFrame:
    """Hardware metrics of the timeline's events that match a profiled launch."""
    joined = (
        ncu.join(trace, metrics)
        .drop_nulls("event")
        .select("kernel_id", "event", "confidence", "other_dur_ns")
    )
    light = ncu.speed_of_light(metrics).drop("kernel_name")
    rows: list[tuple[int, str, str]] = []
    for launch in joined.join(light, on="kernel_id", how="left", maintain_order="left").iter_rows(
        named=True
    ):
        facts = {
            "profiled": f"launch {launch['kernel_id']}, {format_ns(launch['other_dur_ns'])}",
            "match": f"confidence {launch['confidence']:.2f}",
            "compute": _percent(launch["compute_share"]),
            "memory": _percent(launch["memory_share"]),
            "of the roofline": format_share(launch["bound_share"]),
            "bound by": launch["bound_by"],
            "stall": launch["stall"],
        }
        rows += [
            (launch["event"], fact, text)
            for fact, text in facts.items()
            if text not in (None, "unknown")
        ]
    return pl.DataFrame(
        rows, schema={"event": pl.UInt32, "fact": pl.String, "value": pl.String}, orient="row"
    )


def _percent(value: float | None) -> str | None:
    return None if value is None else f"{100 * value:.1f} % of peak"


class Timeline(Explorer, room="timeline"):
    """Timeline of a trace; :func:`timeline` says how it is used."""

    selection: Trait = optional(traitlets.Dict)
    """Selected span: its ``row`` and its ``id`` in this row."""

    span: Trait = traitlets.List(traitlets.Float(), default_value=None, allow_none=True).tag(
        sync=True, pair=True
    )
    """Range of time (ns) that was selected by dragging."""

    span_rows: Trait = traitlets.List(traitlets.Int(), default_value=None, allow_none=True).tag(
        sync=True
    )
    """Numbers of the rows that the range was dragged over; all streams if None."""

    span_kind = optional(traitlets.Unicode)
    """Kind of rows of the range that is selected, where the rows are of several: a kind of row,
    or ``flows``.
    """

    height = optional(traitlets.Int)
    """Greatest height of the overview and the rows (px); the height of the screen if None."""

    color_by = traitlets.Enum(["stage", "category"], default_value="stage").tag(sync=True)
    """Meaning of the colour of a kernel: stage or category."""

    search = traitlets.Unicode("").tag(sync=True)
    """Search text: spans whose names contain it are highlighted."""

    arrangement: Trait = optional(traitlets.Dict)
    """How the rows are arranged:

    ``open`` and ``hidden`` ranks, ``folded`` and ``pinned`` rows, hidden ``kinds``, what rows are
    ``named``, ``devices`` alone, the ``order`` of the ranks, the rows that were ``moved``, and
    whether the critical ``path`` is shown; it is computed when it is first.
    """

    marks: Trait = traitlets.List(traitlets.Dict(), default_value=[]).tag(sync=True)
    """Marks with notes, each ``{"time": ns, "text": note}``, in the order of time; stored in the
    notes file.
    """

    notes_problem = traitlets.Unicode("").tag(sync=True)
    """Reason why the notes could not be read or written; empty if there is none."""

    def __init__(
        self,
        trace: Trace,
        *,
        metrics: Metrics | None = None,
        run: AnyRun | None = None,
        view: Mapping[str, Any] | str | None = None,
        notes: str | os.PathLike[str] | None = None,
        host_above: bool = False,
        **traits: Any,
    ) -> None:
        requests = None if run is None else request_spans(run_of(run))
        self._data = TimelineData(trace, requests)
        self._search = Search(self._data)
        self._queries = Queries(self._data)
        self._metrics = metrics
        self._own_kernel: str | None = None
        self._joined: pl.DataFrame | None = None
        self._trace_id = fingerprint(self._data)
        self._notes = Notes(self._trace_id, notes)
        problem = ""
        try:
            traits = {"marks": self._notes.load(), **traits}
        except LlmprofError as error:
            problem = str(error)
        restoring = {} if view is None else restored(view, self._trace_id, len(self._data.drawn))
        if requests is not None and requests.height:  # monitors run from the start of the engine on
            ends = requests.select(pl.min("start_ns"), last=END.max()).row(0)
            restoring = {"window": [float(ns) for ns in ends]} | restoring
        if host_above:
            restoring["arrangement"] = {"moved": self._data.host_above}
        for text in restoring.pop("queries", ()):
            self._queries.restore(text)
        super().__init__(trace, notes_problem=problem, **{**restoring, **traits})
        self._kept = self.marks
        self.observe(self._keep_marks, "marks")

    @property
    def view(self) -> dict[str, Any]:
        """The present view, for ``explore.timeline(trace, view=…)`` of the same trace; it can be
        written as JSON.
        """
        return view_of(self, self._trace_id)

    @property
    def queries(self) -> list[str]:
        """Statements of the rows that queries have made, in their order."""
        return list(self._queries.drawn)

    @property
    def notes(self) -> str:
        """File of the marks."""
        return str(self._notes.path)

    def show(
        self,
        window: Sequence[float] | None = None,
        *,
        rank: int | None = None,
        search: str = "",
        thread: int | None = None,
    ) -> None:
        """Show and select a range of time on a rank, open the rank's rows, and highlight names.

        The range is selected on the streams of the rank, or, with ``thread``, in what that thread
        of its host did.
        """
        if rank is not None and rank not in self.trace.ranks:
            raise AnalysisError(
                f"there is no rank {rank}", expected=f"one of {listed(self.trace.ranks)}"
            )
        own = [(n, row) for n, row in enumerate(self._data.drawn) if row.rank == rank]
        chosen = [
            n for n, row in own if row.kind in HOST and thread is not None and row.thread == thread
        ]
        chosen = chosen or [n for n, row in own if row.kind == "stream"]
        with self.hold_trait_notifications():
            self.selection = None
            self.search = search
            self.span = None if window is None else list(window)
            self.span_rows = chosen or None
            if rank is not None:
                now = self.arrangement or {}
                shown = [
                    hidden_rank for hidden_rank in now.get("hidden", []) if hidden_rank != rank
                ]
                self.arrangement = {
                    **now,
                    "open": sorted({*(now.get("open") or []), rank}),
                    "hidden": shown,
                }
                self.rank = rank
            if window is None:
                self.window = None
            else:
                around = 0.05 * max(window[1] - window[0], 1.0)
                self.window = [float(window[0]) - around, float(window[1]) + around]

    def mark(self, time: float, text: str = "") -> None:
        """Set a mark with a note.

        It is stored for this trace, and shown with the distance to the mark before.
        """
        marks = sorted_marks([*self.marks, {"time": time, "text": text}])
        self._notes.save(marks)
        self._kept = marks
        self.marks = marks

    def _keep_marks(self, change: Mapping[str, Any]) -> None:
        """Write marks that the browser or an assignment has set."""
        if change["new"] == self._kept:
            return
        self._kept = change["new"]
        try:
            self._notes.save(change["new"])
        except LlmprofError as error:
            self.notes_problem = str(error)
        else:
            self.notes_problem = ""

    @property
    def selected(self) -> pl.DataFrame:
        """The selection: the row of one span, or all spans that touch the selected range of time in
        the selected rows.

        A kernel or copy is a row of ``trace.events``, an operator, runtime call or
        marker one of the trace's table, a sample of a counter one with ``rank, time_ns, name,
        value, unit``, a step, layer, collective or idle gap one of the analysis of its name, and a
        span of a request one of ``analyze.requests(run, by="span")``. ``span_kind`` says which of
        several kinds of rows is meant.
        """
        if self.selection:
            kind = self._data.row(self.selection["row"]).kind
            return self._data.frame(kind)[int(self.selection["id"])]
        if not self._data.event_count:
            return self._data.events
        if self.span is None:
            return self._data.frame("stream").clear()
        return data.visible_events(self._data, self.span, self.span_rows, self.span_kind)

    def stacks(self, by: By = "stage") -> pl.DataFrame:
        """Stacks of the selected kernels and copies, for a flame graph; of all if nothing is
        selected.

        Of a selected step, layer, collective or gap they are those of the kernels and copies in its
        time on its rank. ``by="host"`` gives the operators, calls and functions of a selection on
        the host, each with its own time. ``charts.flame(w.stacks("python"))`` draws them,
        ``charts.speedscope`` writes them for speedscope.
        """
        rows, within, level = self._chosen()
        if by == "host":
            return find.nested(self._data, [row for row in rows if row.kind in HOST], within, level)
        if rows and rows[0].kind in (*KINDS, REQUEST_KIND, PATH_KIND, *self._data.queried):
            ranks = {row.rank for row in rows if row.rank >= 0} or set(self.trace.ranks)
            inside = (
                pl.col("rank").is_in(list(ranks))
                & (pl.col("start_ns") < within[1])
                & (within[0] < END)
            )
            chosen = self._data.frame("stream").filter(inside)
        else:
            chosen = self.selected if rows else self._data.frame("stream")
        if "launch_start_ns" not in chosen.columns or "stage" not in chosen.columns:
            found = "the selection is not of kernels"
            raise NotCapturedError(
                found, hint="drag over streams, or select nothing", table="kernels"
            )
        return stacks_of(self._data, chosen, by)

    def _chosen(self) -> tuple[list[TimelineRow], tuple[float, float], int]:
        """Rows, range of time and first level of what is selected; no rows if nothing is."""
        if self.selection:
            row = self._data.row(self.selection["row"])
            hit = find.locate(self._data, self.selection["row"], self.selection["id"])
            if hit is not None:
                return [row], (hit["start"], hit["end"]), hit["level"]
        if self.span is not None:
            return (
                data.chosen_rows(self._data, self.span_rows, self.span_kind),
                (self.span[0], self.span[1]),
                0,
            )
        return [], self._data.whole, 0

    def select(self, event: int) -> None:
        """Select a kernel or copy by its number in ``trace.events``."""
        for number, row in enumerate(self._data.drawn):
            if row.kind == "stream" and find.locate(self._data, number, event) is not None:
                self.selection = {"row": number, "id": event}
                return
        raise AnalysisError(
            f"there is no event {event}", expected=f"0 to {self._data.event_count - 1}"
        )

    def go(
        self, *, step: int | None = None, layer: int | None = None, rank: int | None = None
    ) -> None:
        """Show a step, or a layer of a step."""
        rank = self.rank if rank is None else rank
        self.window = find.find_window(self.trace, rank=rank, step=step, layer=layer)

    def picture(self) -> bytes | None:
        """PNG image of the window as in the widget; None if the trace has no events."""
        arranged = self.arrangement or {}
        return (
            window_picture(
                self._data,
                self.window,
                self.color_by,
                path=bool(arranged.get("path")),
                order=arranged.get("moved") or (),
            )
            if self._data.drawn
            else None
        )

    @traitlets.observe("selection")
    def _selected(self, change: Mapping[str, Any]) -> None:
        """Set rank, step, layer, stage and kernel of the selected span, so that linked explorers
        follow.
        """
        if change["new"]:
            labels = span_labels(self._data, change["new"]["row"], change["new"]["id"])
            self._own_kernel = labels.get("kernel")
            for name, value in labels.items():
                setattr(self, name, value)

    @traitlets.observe("kernel")
    def _picked_kernel(self, change: Mapping[str, Any]) -> None:
        """Highlight the launches of a kernel that was picked in another explorer."""
        if change["new"] != self._own_kernel:
            self.search = change["new"] or ""

    @traitlets.validate("selection")
    def _valid_selection(self, proposal: Mapping[str, Any]) -> dict[str, int] | None:
        value = proposal["value"]
        if value is None:
            return None
        if (
            set(value) != {"row", "id"}
            or find.locate(self._data, int(value["row"]), int(value["id"])) is None
        ):
            raise traitlets.TraitError(
                f"selection is {value!r}; expected None or the row and id of a span"
            )
        return {name: int(value[name]) for name in ("row", "id")}

    @traitlets.validate("arrangement")
    def _valid_arrangement(self, proposal: Mapping[str, Any]) -> dict[str, Any] | None:
        value = proposal["value"]
        try:
            return (
                None
                if value is None
                else dict(msgspec.to_builtins(msgspec.convert(value, Arrangement)))
            )
        except msgspec.ValidationError as error:
            raise traitlets.TraitError(f"arrangement is {value!r}: {error}") from error

    @traitlets.validate("marks")
    def _valid_marks(self, proposal: Mapping[str, Any]) -> list[dict[str, Any]]:
        try:
            return sorted_marks(proposal["value"])
        except LlmprofError as error:
            raise traitlets.TraitError(str(error)) from error

    @request_handler(
        whole=TimeRange,
        found=bool,
        missing=str,
        keys=list[Key],
        present=dict[str, list[int]],
        groups=list[Group],
        rows=list[Described],
        names=list[str],
        version=int,
        trace=str,
        queries=list[str],
    )
    def _on_rows(self) -> Reply:
        names = [name[:100] for name in self._data.names.short[:1000]]
        return {
            **self._data.described(),
            "names": names,
            "version": len(self._data.names.short),
            "trace": self._trace_id,
            "queries": self.queries,
        }, []

    @request_handler(busy="finding steps and layers", found=bool)
    def _on_find(self) -> Reply:
        self._data.find(lambda text: self._progress("find", text))
        self._data.fill(lambda text: self._progress("find", text))
        if self._metrics is not None and self._joined is None:
            self._progress("find", "joining metrics of kernels")
            self._joined = _metrics_by_event(self.trace, self._metrics)
        return {"found": True}, []

    @request_handler(busy="following the critical path", found=bool)
    def _on_follow(self) -> Reply:
        self._data.follow(lambda text: self._progress("follow", text))
        return {"found": True}, []

    @request_handler(buffers=_PACKED, **_VIEW)
    def _on_view(self, window: TimeRange, width: float, rows: list[int], color_by: Colour) -> Reply:
        return window_view(self._data, window, width, rows, color_by)

    @request_handler(buffers=_PACKED, **_VIEW)
    def _on_overview(self, width: float, color_by: Colour) -> Reply:
        return overview(self._data, width, color_by)

    @request_handler(
        title=str,
        facts=list[Fact],
        kinds=list[RowCount],
        kind=str,
        rows=list[Named],
        counters=list[Counted],
        flows=list[Launched],
        total=int,
    )
    def _on_span(
        self,
        span: TimeRange,
        rows: list[int] | None,
        kind: str | None = None,
        color_by: Colour | None = None,
    ) -> Reply:
        return data.area(self._data, span, rows, kind, color_by or "stage"), []

    @request_handler(names=dict[str, str])
    def _on_names(self, numbers: list[int]) -> Reply:
        short = self._data.names.short
        return {
            "names": {
                number: short[number] for number in numbers[:5000] if 0 <= number < len(short)
            }
        }, []

    @request_handler(**_DESCRIBED)
    def _on_describe(self, row: int, id: int) -> Reply:  # noqa: A002
        return describe_span(self._data, row, id, self._joined), []

    @request_handler(**_DESCRIBED)
    def _on_hover(self, row: int, id: int) -> Reply:  # noqa: A002
        return self._on_describe(row, id)

    @request_handler(hit=Hit | None)
    def _on_pick(self, row: int, level: int, time: float, reach: float) -> Reply:
        return {"hit": find.pick(self._data, row, level, time, reach)}, []

    @request_handler(hit=Hit | None)
    def _on_neighbour(self, row: int, level: int, id: int, by: int) -> Reply:  # noqa: A002
        return {"hit": find.neighbour(self._data, row, level, id, by)}, []

    @request_handler(count=int, index=int, hit=Hit | None, names=list[int])
    def _on_search(self, text: str, after: float, index: int | None = None) -> Reply:
        return self._search.find(text, after=after, index=index), []

    @request_handler(total=int, names=int, sum_ns=float, ranks=list[int], rows=list[Listed])
    def _on_list(
        self,
        text: str,
        first: int = 0,
        count: int = MOST,
        *,
        where: SearchScope = "everywhere",
        rank: int | None = None,
        window: TimeRange | None = None,
        sort: str = "start",
    ) -> Reply:
        filters: dict[str, Any] = {"where": where, "rank": rank, "window": window, "sort": sort}
        return self._search.listed(text, first=first, count=count, **filters), []

    @request_handler(
        busy="putting stacks together",
        by=By,
        kinds=list[By],
        of=str,
        problem=str,
        total=int,
        events=int,
        trunk=list[str],
        names=list[str],
        name=list[int],
        level=list[int],
        start=list[int],
        value=list[int],
        left_out=int,
    )
    def _on_flame(self, by: By) -> Reply:
        chosen = "the selection" if self.span is not None or self.selection else "the whole trace"
        problem, stacks = "", None
        kinds = kinds_of(self._data)
        if any(row.kind in HOST for row in self._chosen()[0]):
            kinds = ["host"]
        by = by if by in kinds else kinds[0]
        try:
            stacks = self.stacks(by)
        except NotCapturedError as error:
            problem = str(error)
        return {"by": by, "kinds": kinds, "of": chosen, "problem": problem, **flame_of(stacks)}, []

    @request_handler(file=str, content=str)
    def _on_speedscope(self, by: By) -> Reply:
        content = speedscope_text(self.stacks(by), name=f"llmprof, by {by}")
        return {"file": f"{self._trace_id}-{by}.speedscope.json", "content": content}, []

    @request_handler(busy="writing the window", file=str, buffers="the file")
    def _on_export(self, window: TimeRange) -> Reply:
        return {"file": f"{self._trace_id}.json.gz"}, [window_file(self.trace, window)]

    @property
    def queried(self) -> pl.DataFrame:
        """Result of the last query of the query box; ``trace.sql`` gives the same."""
        return self._queries.frame

    @request_handler(tables=list[TraceTable], words=list[str])
    def _on_tables(self) -> Reply:
        return {"tables": self._queries.tables(), "words": list(WORDS)}, []

    @request_handler(
        busy="running the query",
        problem=str,
        line=int | None,
        column=int | None,
        python=str,
        columns=list[QueryColumn],
        total=int,
        rows=list[list[str]],
        places=bool,
        spans=bool,
    )
    def _on_query(self, text: str) -> Reply:
        return self._queries.run(text), []

    @request_handler(rows=list[list[str]])
    def _on_queried(self, first: int, count: int, sort: str) -> Reply:
        return {"rows": self._queries.rows(first, count, sort)}, []

    @request_handler(file=str, content=str)
    def _on_csv(self, sort: str) -> Reply:
        rows = self._queries.ordered(sort).head(EXPORTED)
        return {"file": "query.csv", "content": csv(rows)}, []

    @request_handler()
    def _on_place(self, row: int, sort: str) -> None:
        rank, window = self._queries.place(row, sort)
        self.show(window, rank=rank)

    @request_handler(row=int)
    def _on_track(self) -> Reply:
        return {"row": self._queries.track()}, []

    @request_handler(window=TimeRange)
    def _on_goto(
        self, step: int | None = None, layer: int | None = None, rank: int | None = None
    ) -> Reply:
        return {"window": find.find_window(self.trace, rank=rank, step=step, layer=layer)}, []


def timeline(
    trace: Trace,
    *,
    metrics: Metrics | None = None,
    run: AnyRun | None = None,
    view: Mapping[str, Any] | str | None = None,
    notes: str | os.PathLike[str] | None = None,
    host_above: bool = False,
    **traits: Any,
) -> Timeline:
    """Timeline of a trace in which you can zoom, search and select; the selection is a frame.

    Rows: for each rank its steps, layers with their stages, collectives, idle time, streams,
    counters and host threads. With several ranks each is one strip at first; click on its name to
    open it. Ctrl + wheel or W and S zoom, A and D pan, a click selects, dragging selects a range of
    time in the rows that it covers, M sets a mark; ``?`` shows the keys.

    Parameters
    ----------
    trace : Trace
        Any trace.
    metrics : Metrics, optional
        Hardware metrics of some kernels (``llmprof.read_metrics``), shown with them.
    run : Run, optional
        The run of the trace (``launch.open_run``): its requests are on top, each in one row with
        what it waited for, its prefill and its decode.
    view : mapping or str, optional
        A view of this trace to show again, from ``.view`` or "Copy as Python".
    notes : path, optional
        JSON file of the marks and their notes, for example beside the run; by default one for each
        trace in ``$LLMPROF_NOTES`` or the user's data folder. A damaged file is reported and not
        changed.
    host_above : bool
        Whether the threads of a rank stand above its streams, as what they launch is below them.
    **traits
        Initial values of ``window`` (first and last ns), ``height`` (px), ``color_by`` (stage or
        category), ``search``, ``marks`` and ``theme``.

    Returns
    -------
    Timeline
        ``.selected`` is the selection as a frame, ``.window`` the visible range of time in ns,
        ``.span`` the selected range; setting ``window`` moves the view. ``.show(window, rank=…,
        search=…)`` goes to a place, ``.view`` is the present view, ``.marks`` are the marks.

    Raises
    ------
    LlmprofError
        An argument is of another kind, the view is of another trace, or the requests of the run
        cannot be joined to the trace.

    Examples
    --------
    >>> from llmprof import explore
    >>> w = explore.timeline(trace)
    >>> w.show((0, 2_000_000), search="gemm")
    >>> explore.timeline(trace, view=w.view).search
    'gemm'
    """
    return Timeline(
        trace, metrics=metrics, run=run, view=view, notes=notes, host_above=host_above, **traits
    )
