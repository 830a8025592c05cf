"""Explorer of kernels: a table of all kernels of a trace, and the details of the picked one."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any, Final

import polars as pl
import traitlets

from llmprof.analyze import attribute, ncu_command
from llmprof.analyze.kernels import events_within, kernels_within
from llmprof.analyze.replay.slack import unknown_slack, with_slack
from llmprof.errors import LlmprofError, NotCapturedError, listed
from llmprof.explore.base.messages import Column, Message, Record, Row, Window
from llmprof.explore.base.widget import BUNDLES, Answer, Explorer, answers
from llmprof.explore.kernels import table as details
from llmprof.explore.kernels.table import (
    BINS,
    FILTERS,
    SORTABLE,
    SPLITS,
    Profiled,
    View,
    arranged,
    block,
    glossary,
    options,
    profiled,
    short,
    shown,
    values,
)
from llmprof.metrics.data import Metrics
from llmprof.text import shorten
from llmprof.trace import Trace

Labels = dict[str, Any]
"""Values of the labels that divide launches into rows: ``{"phase": "decode"}``."""


class Shown(Record):
    """View of the table: filters, labels that divide launches into rows, a search text, an order, a window."""

    rank: int | None = None
    step: int | None = None
    phase: str | None = None
    layer: int | None = None
    stage: str | None = None
    stream: int | None = None
    category: str | None = None
    by: tuple[str, ...] = ()
    search: str = ""
    sort: str = "-total_ns"
    window: Window | None = None
    in_window: bool = False


class Bar(Record):
    """Share of a peak (%), and the metric whose glossary text explains it."""

    label: str
    pct: float | None
    metric: str


class Roofline(Record):
    """Profiled launches on the roofline of a device."""

    points: list[Row]
    bandwidth: float | None
    peaks: dict[str, float]
    device: str | None


_SERIES = "time over the trace of each row (u1), the same number of points a row"

TABLE: Final = Message(
    "table",
    asks={"view": Shown, "count": int, "kernel": str | None},
    answers={
        "rows": list[Row],
        "total": int,
        "at": int | None,
        "launches": int,
        "total_ns": int,
        "options": dict[str, list[int | str]],
        "unmatched": int,
    },
    buffers=_SERIES,
    busy="adding up kernels",
)
ROWS: Final = Message(
    "rows",
    asks={"view": Shown, "offset": int, "count": int},
    answers={"rows": list[Row], "offset": int},
    buffers=_SERIES,
)
PICK: Final = Message("pick", asks={"view": Shown, "row": int})
LAUNCH: Final = Message("launch", asks={"event": int})
KERNEL: Final = Message(
    "kernel",
    asks={"view": Shown, "kernel": str, "of": Labels},
    answers={
        "name": str,
        "label": str,
        "category": str | None,
        "count": int,
        "total_ns": float,
        "mean_ns": float | None,
        "least_ns": float | None,
        "most_ns": float | None,
        "condensed": bool,
        "columns": list[Column],
        "span": Window | None,
        "grids": list[Row],
    },
    buffers="the launches' columns",
)
SHAPES: Final = Message(
    "shapes",
    asks={"kernel": str, "rank": int | None},
    answers={"rows": list[Row], "why": str, "total": int | None},
    busy="finding the operators",
)
METRICS: Final = Message(
    "metrics",
    asks={"kernel": str, "kernel_id": int | None},
    answers={
        "launches": list[Row],
        "note": str,
        "chosen": int | None,
        "speed": Row | None,
        "bars": list[Bar] | None,
        "roofline": Roofline | None,
        "stalls": list[Row] | None,
        "rules": list[Row] | None,
    },
    busy="matching the hardware metrics",
)
SLACK: Final = Message("slack", answers={"why": str}, busy="finding what each kernel delays")
VALUES: Final = Message("values", asks={"kernel_id": int, "search": str}, answers={"rows": list[Row], "total": int})
EXPLAIN: Final = Message(
    "explain",
    asks={"metric": str},
    answers={"title": str, "meaning": str, "good": str, "action": str, "source": str},
)
COMMAND: Final = Message(
    "command",
    asks={"program": str, "view": Shown, "kernel": str, "of": Labels},
    answers={"command": str},
)

MESSAGES: Final = (TABLE, ROWS, PICK, LAUNCH, KERNEL, SHAPES, METRICS, SLACK, VALUES, EXPLAIN, COMMAND)


RowLabels = Mapping[str, Any]

PROGRAM: Final = ("python", "program.py")
_TOP: Final = 18
_MOST_TITLE: Final = 90


class Kernels(Explorer):
    """Widget of :func:`kernels`."""

    _esm = BUNDLES / "kernels.js"
    _css = BUNDLES / "kernels.css"

    phase = traitlets.Unicode(default_value=None, allow_none=True).tag(sync=True)
    category = traitlets.Unicode(default_value=None, allow_none=True).tag(sync=True)
    stream = traitlets.Int(default_value=None, allow_none=True).tag(sync=True)
    search = traitlets.Unicode("").tag(sync=True)
    """Text to search for in names, regardless of case."""

    by = traitlets.List(traitlets.Enum(SPLITS)).tag(sync=True)
    """Labels that divide the launches of a kernel into rows."""

    sort = traitlets.Unicode("-total_ns").tag(sync=True)
    """Column that the table is sorted by; with ``-`` the largest value comes first."""

    in_window = traitlets.Bool(default_value=False).tag(sync=True)
    """Whether only the launches of the window count."""

    kernel = traitlets.Unicode(default_value=None, allow_none=True).tag(sync=True)
    """Name of the kernel that is picked."""

    of = traitlets.Dict().tag(sync=True)
    """Labels of the picked row, if the table divides launches by labels."""

    event = traitlets.Int(default_value=None, allow_none=True).tag(sync=True)
    """Row number of the picked launch in ``attribute(trace)``."""

    has_metrics = traitlets.Bool(default_value=False).tag(sync=True)
    program = traitlets.Unicode(shlex.join(PROGRAM)).tag(sync=True)
    """The program and its arguments, for the ``ncu`` command."""

    def __init__(self, trace: Trace, metrics: Metrics | None = None, **traits: Any) -> None:
        self.metrics = metrics if trace.has("kernels") else None  # metrics belong to kernels, not to operators
        self._profiled: Profiled | None = None
        self._kept: tuple[Any, pl.DataFrame] = (None, pl.DataFrame())
        self._slack = False
        super().__init__(trace, has_metrics=self.metrics is not None, **traits)

    @traitlets.validate("sort")
    def _known_column(self, proposal: Mapping[str, Any]) -> str:
        if proposal["value"].lstrip("-") not in SORTABLE:
            raise traitlets.TraitError(
                f"sort is {proposal['value']!r}; expected one of {listed(SORTABLE)}, with - or not"
            )
        return str(proposal["value"])

    @traitlets.observe("kernel", "of")
    def _another(self, _change: object) -> None:
        self.event = None

    @property
    def table(self) -> pl.DataFrame:
        """Rows of the table in its order: those of :func:`llmprof.analyze.kernels.kernels_within`.

        A widget that is shown finds ``slack_ns``, too, soon after its first picture.
        """
        return self._rows(self._view)

    @property
    def selected(self) -> pl.DataFrame:
        """Launches of the picked kernel, or the picked launch alone: rows of :func:`llmprof.analyze.attribute`."""
        if self.event is not None:
            return attribute(self.trace).filter(pl.col("event") == self.event)
        return self.launches

    @property
    def launches(self) -> pl.DataFrame:
        """All launches of the picked kernel that pass the filters; no rows if none is picked."""
        return self._launches(self._view, self.kernel, self.of)

    def picture(self) -> bytes | None:
        """PNG image of the longest kernels of the table."""
        from llmprof import charts

        return charts.to_png_bytes(charts.kernels(self.table, top=_TOP, variants=True), scale=1.25)

    @property
    def _view(self) -> View:
        return View.of(
            {name: getattr(self, name) for name in (*FILTERS, "by", "search", "sort", "window", "in_window")}
        )

    def _rows(self, view: View) -> pl.DataFrame:
        key, frame = self._kept  # another request may replace it meanwhile
        if key != view.key:
            frame = kernels_within(self.trace, by=view.by, where=view.where, window=view.window, bins=BINS, absent=True)
            if self.metrics is not None:
                limits = self._matched().limits()
                frame = frame.join(limits, on="name", how="left", maintain_order="left")
            if self._slack:
                events = events_within(self.trace, where=view.where, window=view.window, absent=True)
                frame = with_slack(frame, self.trace, events, [*view.by, "name", "category"])
            self._kept = (view.key, frame)
        return arranged(frame, view)

    def _launches(self, view: View, kernel: str | None, of: RowLabels) -> pl.DataFrame:
        if kernel is None:
            return details.nothing_of(self.trace)
        where = {**view.where, **of, "name": kernel}
        return events_within(self.trace, where=where, window=view.window, absent=True)

    def _matched(self) -> Profiled:
        if self._profiled is None:
            if self.metrics is None:
                raise NotCapturedError("there are no hardware metrics", hint="give them: kernels(trace, metrics)")
            self._profiled = profiled(self.trace, self.metrics)
        return self._profiled

    @answers(TABLE)
    def _on_table(self, view: RowLabels, count: int = 60, kernel: str | None = None) -> Answer:
        frame, events = self._rows(View.of(view)), attribute(self.trace)
        rows, buffers = block(frame, 0, count)
        message = {
            "rows": rows,
            "total": frame.height,
            "at": None if kernel is None else frame["name"].index_of(kernel),
            "launches": int(frame["count"].sum()),
            "total_ns": int(frame["total_ns"].sum()),
            "options": options(events),
            "unmatched": self._matched().unmatched if self.metrics is not None else 0,
        }
        return message, buffers

    @answers(SLACK)
    def _on_slack(self) -> Answer:
        """Find the slack of all kernels, which the rows have from then on, or say why it is unknown."""
        why = unknown_slack(self.trace)
        if not self._slack and not why:
            self._slack, self._kept = True, (None, pl.DataFrame())
        return {"why": why}, []

    @answers(ROWS)
    def _on_rows(self, view: RowLabels, offset: int, count: int) -> Answer:
        rows, buffers = block(self._rows(View.of(view)), offset, min(count, 200))
        return {"rows": rows, "offset": offset}, buffers

    @answers(PICK)
    def _on_pick(self, view: RowLabels, row: int) -> Answer:
        table_view = View.of(view)
        frame = self._rows(table_view)
        if 0 <= row < frame.height:
            picked = frame.row(row, named=True)
            with self.hold_sync():
                self.of = {label: picked[label] for label in table_view.by if picked[label] is not None}
                self.kernel = picked["name"]
        return {}, []

    @answers(LAUNCH)
    def _on_launch(self, event: int) -> Answer:
        """Pick a launch, and set the window around it; linked explorers then show this window."""
        rows = attribute(self.trace).filter(pl.col("event") == event)
        if rows.height:
            start, length = rows.select("start_ns", "dur_ns").row(0)
            around = max(4 * length, 5_000)
            self.event = event
            if not self.in_window:
                self.window = [float(start - around), float(start + length + around)]
        return {}, []

    @answers(KERNEL)
    def _on_kernel(self, view: RowLabels, kernel: str, of: RowLabels) -> Answer:
        events = self._launches(View.of(view), kernel, of)
        message, buffers = details.launches(events)
        length = events["dur_ns"] if events.width else pl.Series([], dtype=pl.Int64)
        about = {
            "name": kernel,
            "label": shorten(short(pl.Series([kernel]))[0], _MOST_TITLE),
            "category": events["category"][0] if events.height else None,
            "count": events.height,
            "total_ns": length.sum(),
            "mean_ns": length.mean(),
            "least_ns": length.min(),
            "most_ns": length.max(),
        }
        return message | about | {"grids": details.grids(self.trace, events)}, buffers

    @answers(SHAPES)
    def _on_shapes(self, kernel: str, rank: int | None) -> Answer:
        return details.shapes(self.trace, kernel, rank), []

    @answers(METRICS)
    def _on_metrics(self, kernel: str, kernel_id: int | None = None) -> Answer:
        return shown(self._matched(), kernel, kernel_id), []

    @answers(VALUES)
    def _on_values(self, kernel_id: int, search: str = "") -> Answer:
        return values(self._matched(), kernel_id, search), []

    @answers(EXPLAIN)
    def _on_explain(self, metric: str) -> Answer:
        return glossary(metric), []

    @answers(COMMAND)
    def _on_command(self, program: str, view: RowLabels, kernel: str, of: RowLabels) -> Answer:
        self.program = program
        where = {**View.of(view).where, **of}
        kept = {label: where[label] for label in ("layer", "stage", "step", "phase", "rank") if label in where}
        try:
            words = shlex.split(program)
        except ValueError as error:
            raise LlmprofError(f"the program cannot be read: {error}", expected="words as in a shell") from error
        return {"command": shlex.join(ncu_command(self.trace, words, kernel=kernel, **kept))}, []


def kernels(trace: Trace, *, metrics: Metrics | None = None, **traits: Any) -> Kernels:
    """Table of all kernels, with launches, shapes and hardware metrics of the picked one.

    Rows can be filtered by rank, step, phase, layer, stage, stream, category, text and window, divided by some of these
    labels, and sorted by any column. A click (or Enter) picks a kernel.

    Parameters
    ----------
    trace : Trace
        Any trace with device activity. In the trace of a CPU run, operators of the host take the place of kernels.
    metrics : Metrics, optional
        What Nsight Compute measured of its kernels (:func:`llmprof.read_metrics`).
    **traits
        Initial values of ``rank, step, phase, layer, stage, stream, category, search, by, sort, window, in_window,
        kernel, program`` and ``theme``.

    Returns
    -------
    Explorer
        The widget. ``.selected``: launches of the picked kernel; ``.table``: the visible rows.
    """
    return Kernels(trace, metrics, **traits)
