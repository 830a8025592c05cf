"""``explore.kernels``: every kernel of a trace in a table, and what is known of the one that is picked."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any, Final

import polars as pl
import traitlets

from llmprof import kernel_names
from llmprof.analyze import attribute, events_within, kernels_within, ncu_command
from llmprof.analyze.events_within import Window
from llmprof.errors import LlmprofError, NotCapturedError
from llmprof.explore import _kernel_details as details
from llmprof.explore._esm import bundle, style
from llmprof.explore._kernel_metrics import Profiled, glossary, profiled, shown, values
from llmprof.explore._kernel_table import BINS, FILTERS, SORTABLE, SPLITS, arranged, block, options
from llmprof.explore._widget import Answer, Explorer, in_background
from llmprof.metrics_data import Metrics
from llmprof.trace import Trace

PROGRAM: Final = ("python", "program.py")
_TOP: Final = 18


class Kernels(Explorer):
    """Widget of :func:`kernels`."""

    _esm = bundle("kernels")
    _css = style("kernels")

    phase = traitlets.Unicode(default_value=None, allow_none=True).tag(sync=True)
    category = traitlets.Unicode(default_value=None, allow_none=True).tag(sync=True)
    stream = traitlets.Int(default_value=None, allow_none=True).tag(sync=True)
    search = traitlets.Unicode("").tag(sync=True)
    """Text in the name, in any case of letters."""

    by = traitlets.List(traitlets.Enum(SPLITS)).tag(sync=True)
    """Labels that a kernel's launches are told apart by."""

    sort = traitlets.Unicode("-total_ns").tag(sync=True)
    """Column of the table's order; with ``-`` the largest first."""

    in_window = traitlets.Bool(default_value=False).tag(sync=True)
    """Whether only the launches of the window count."""

    kernel = traitlets.Unicode(default_value=None, allow_none=True).tag(sync=True)
    """Name of the kernel that is picked."""

    of = traitlets.Dict().tag(sync=True)
    """Labels of the row that is picked, where the table tells launches apart."""

    event = traitlets.Int(default_value=None, allow_none=True).tag(sync=True)
    """The launch that is picked: its row in ``attribute(trace)``."""

    has_metrics = traitlets.Bool(default_value=False).tag(sync=True)
    program = traitlets.Unicode(shlex.join(PROGRAM)).tag(sync=True)
    """The program and its arguments, for the ``ncu`` command."""

    def __init__(self, trace: Trace, metrics: Metrics | None = None, **traits: Any) -> None:
        self.metrics = metrics
        self._profiled: Profiled | None = None
        self._kept: tuple[Any, pl.DataFrame] = (None, pl.DataFrame())
        super().__init__(trace, has_metrics=metrics is not None, **traits)

    @traitlets.validate("sort")
    def _known_column(self, proposal: Mapping[str, Any]) -> str:
        if proposal["value"].lstrip("-") not in SORTABLE:
            raise traitlets.TraitError(
                f"sort is {proposal['value']!r}; expected one of {list(SORTABLE)}, with - or not"
            )
        return str(proposal["value"])

    @traitlets.observe("kernel", "of")
    def _another(self, _change: object) -> None:
        self.event = None

    @property
    def where(self) -> dict[str, int | str | None]:
        """Labels that the table is narrowed to."""
        return {label: value for label in FILTERS if (value := getattr(self, label)) is not None}

    @property
    def table(self) -> pl.DataFrame:
        """The rows that the table shows, in its order: those of :func:`llmprof.analyze.kernels_within`.

        Raises
        ------
        NotCapturedError
            The trace holds no device activity and no operators.
        """
        key = (tuple(self.by), tuple(self.where.items()), self._within)
        if self._kept[0] != key:
            frame = kernels_within(self.trace, by=self.by, where=self.where, window=self._within, bins=BINS)
            if self.metrics is not None:
                limits = self._matched().limits()
                frame = frame.join(limits, on="name", how="left", maintain_order="left")
            self._kept = (key, frame)
        return arranged(self._kept[1], search=self.search, sort=self.sort)

    @property
    def selected(self) -> pl.DataFrame:
        """Launches of the kernel that is picked, or the one launch: rows of :func:`llmprof.analyze.attribute`."""
        if self.event is not None:
            return attribute(self.trace).filter(pl.col("event") == self.event)
        return self.launches

    @property
    def launches(self) -> pl.DataFrame:
        """All launches of the kernel that is picked, within the filters; no rows if none is."""
        if self.kernel is None:
            return details.nothing_of(self.trace)
        where = {**self.where, **self.of, "name": self.kernel}
        return events_within(self.trace, where=where, window=self._within)

    def picture(self) -> bytes | None:
        """PNG image of the longest kernels of the table."""
        from llmprof import charts

        return charts.to_png_bytes(charts.kernels(self.table, top=_TOP), scale=1.5)

    @property
    def _within(self) -> Window | None:
        return (self.window[0], self.window[1]) if self.in_window and self.window else None

    def _matched(self) -> Profiled:
        if self._profiled is None:
            if self.metrics is None:
                raise NotCapturedError("there are no hardware metrics", hint="give them: kernels(trace, metrics)")
            self._profiled = profiled(self.trace, self.metrics)
        return self._profiled

    @in_background("adding up kernels")
    def _on_table(self, count: int = 60) -> Answer:
        frame = self.table
        rows, buffers = block(frame, 0, count)
        asked = options(attribute(self.trace)) if attribute(self.trace).height else {}
        unmatched = self._matched().unmatched if self.metrics is not None else 0
        total = {"launches": int(frame["count"].sum()), "total_ns": int(frame["total_ns"].sum())}
        return {
            "rows": rows,
            "total": frame.height,
            "bins": BINS,
            "options": asked,
            "unmatched": unmatched,
        } | total, buffers

    def _on_rows(self, offset: int, count: int) -> Answer:
        rows, buffers = block(self.table, offset, min(count, 200))
        return {"rows": rows, "offset": offset}, buffers

    def _on_pick(self, row: int) -> Answer:
        frame = self.table
        if 0 <= row < frame.height:
            found = frame.row(row, named=True)
            self.of = {label: found[label] for label in self.by if found[label] is not None}
            self.kernel = found["name"]
        return {}, []

    def _on_launch(self, event: int) -> Answer:
        """Pick a launch, and set the window around it, which explorers that are linked then show."""
        found = attribute(self.trace).filter(pl.col("event") == event)
        if found.height:
            start, length = found.select("start_ns", "dur_ns").row(0)
            around = max(4 * length, 5_000)
            self.event = event
            if not self.in_window:
                self.window = [float(start - around), float(start + length + around)]
        return {}, []

    def _on_kernel(self) -> Answer:
        events = self.launches
        message, buffers = details.launches(events)
        name, length = self.kernel or "", events["dur_ns"] if events.width else pl.Series([], dtype=pl.Int64)
        about = {
            "name": name,
            "function": kernel_names.function(pl.Series([name]))[0],
            "category": events["category"][0] if events.height else None,
            "count": events.height,
            "total_ns": length.sum(),
            "mean_ns": length.mean(),
            "least_ns": length.min(),
            "most_ns": length.max(),
        }
        return message | about | {"grids": details.grids(self.trace, events)}, buffers

    @in_background("finding the operators")
    def _on_shapes(self) -> Answer:
        rank = self.of.get("rank", self.rank)
        return details.shapes(self.trace, self.kernel or "", rank), []

    @in_background("matching the hardware metrics")
    def _on_metrics(self, kernel_id: int | None = None) -> Answer:
        return shown(self._matched(), self.kernel or "", kernel_id), []

    def _on_values(self, kernel_id: int, search: str = "") -> Answer:
        return values(self._matched(), kernel_id, search), []

    def _on_explain(self, metric: str) -> Answer:
        return glossary(metric), []

    def _on_command(self, program: str) -> Answer:
        self.program = program
        where = {**self.where, **self.of}
        kept = {label: where[label] for label in ("layer", "stage", "step", "phase", "rank") if label in where}
        try:
            words = shlex.split(program)
        except ValueError as error:
            raise LlmprofError(f"the program cannot be read: {error}", expected="words as in a shell") from error
        return {"command": shlex.join(ncu_command(self.trace, words, kernel=self.kernel, **kept))}, []


def kernels(trace: Trace, metrics: Metrics | None = None, **traits: Any) -> Kernels:
    """Table of all kernels, and of the one that is picked its launches, shapes and hardware metrics.

    Rows are narrowed by rank, step, phase, layer, stage, stream, category, text and window, told apart by some of
    them, and sorted by any column. A click (or Enter) picks a kernel.

    Parameters
    ----------
    trace : Trace
        Any trace with device activity; operators of the host stand in on a trace of a run on CPU.
    metrics : Metrics, optional
        What Nsight Compute measured of its kernels (:func:`llmprof.read_metrics`).
    **traits
        To begin with: ``rank, step, phase, layer, stage, stream, category, search, by, sort, window, in_window,
        kernel, program`` and ``theme``.

    Returns
    -------
    Explorer
        The widget. ``.selected``: launches of the picked kernel; ``.table``: the rows as they are shown.
    """
    return Kernels(trace, metrics, **traits)
