"""``explore.compare``: two traces side by side, and what got faster, slower, appeared or vanished."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl
import traitlets

from llmprof.analyze import diff_events
from llmprof.explore.base.widget import BUNDLES, Answer, Explorer, answers
from llmprof.explore.base.wire import pack
from llmprof.explore.compare import data, messages
from llmprof.explore.kernels.table import nothing_of
from llmprof.trace import Trace

_VIEW = ("by", "tolerance", "phase", "status", "search", "sort")


class Compare(Explorer):
    """Widget of :func:`compare`."""

    _esm = BUNDLES / "compare.js"
    _css = BUNDLES / "compare.css"

    names = traitlets.List(traitlets.Unicode(), ["a", "b"], minlen=2, maxlen=2).tag(sync=True)
    """What the two traces are called."""

    by = traitlets.List(traitlets.Enum(["stage", "category", "layer", "name"]), ["stage", "category"]).tag(sync=True)
    """Labels that rows are aligned by, beside the phase."""

    tolerance = traitlets.Float(0.05, min=0).tag(sync=True)
    """Change up to which the status is ``same``."""

    phase = traitlets.Unicode(default_value=None, allow_none=True).tag(sync=True)
    status = traitlets.Enum([*data.STATUSES, None], default_value=None, allow_none=True).tag(sync=True)
    search = traitlets.Unicode("").tag(sync=True)
    sort = traitlets.Unicode("-delta_ns").tag(sync=True)

    picked: Any = traitlets.Dict(default_value=None, allow_none=True).tag(sync=True)
    """Labels of the row that is picked, such as ``{"phase": "decode", "stage": "norm"}``."""

    statuses = traitlets.Dict(data.STATUSES).tag(sync=True)

    def __init__(self, a: Trace, b: Trace, **traits: Any) -> None:
        self.other = b
        self._kept: dict[tuple[tuple[str, ...], float], pl.DataFrame] = {}
        super().__init__(a, **traits)

    @traitlets.validate("sort")
    def _known_column(self, proposal: Mapping[str, Any]) -> str:
        known = ["phase", "stage", "category", "layer", "name", "status", *data.NUMBERS]
        if proposal["value"].lstrip("-") not in known:
            raise traitlets.TraitError(f"sort is {proposal['value']!r}; expected one of {known}, with - or not")
        return str(proposal["value"])

    @property
    def changes(self) -> pl.DataFrame:
        """All rows of :func:`llmprof.analyze.diff_events`, aligned as ``by`` says.

        Raises
        ------
        NotCapturedError
            A trace holds no device activity and no operators.
        """
        return self._diff(tuple(self.by), self.tolerance)

    @property
    def table(self) -> pl.DataFrame:
        """The rows that the table shows, in its order."""
        return self._rows({name: getattr(self, name) for name in _VIEW})

    @property
    def selected(self) -> pl.DataFrame:
        """Events of the picked row in both traces: ``trace`` (which one), and the columns of ``attribute``."""
        if self.picked is None:
            return nothing_of(self.trace)
        sides = zip(self.names, (self.trace, self.other), strict=True)
        return pl.concat([data.events_of(t, self.picked).select(pl.lit(n).alias("trace"), pl.all()) for n, t in sides])

    def picture(self) -> bytes | None:
        """PNG image of the largest changes."""
        from llmprof import charts

        first, second = self.names
        chart = charts.diff(self._diff(data.ALIGNED[0], self.tolerance), names=(first, second))
        return charts.to_png_bytes(chart, scale=1.25)

    def _diff(self, by: tuple[str, ...], tolerance: float) -> pl.DataFrame:
        if (by, tolerance) not in self._kept:
            self._kept[by, tolerance] = diff_events(self.trace, self.other, tolerance=tolerance, by=data.keys_of(by))
        return self._kept[by, tolerance]

    def _rows(self, view: Mapping[str, Any]) -> pl.DataFrame:
        frame = self._diff(tuple(view["by"]), view["tolerance"])
        chosen = {name: view[name] for name in ("search", "phase", "status", "sort")}
        return data.arranged(frame, **chosen)

    @answers(messages.TABLE)
    def _on_table(self, view: Mapping[str, Any], count: int = 60) -> Answer:
        whole = self._diff(tuple(view["by"]), view["tolerance"])
        aligned, frame = self._diff(data.ALIGNED[0], view["tolerance"]), self._rows(view)
        in_phase = whole if view["phase"] is None else whole.filter(pl.col("phase") == view["phase"])
        return {
            "rows": data.block(frame, 0, count),
            "total": frame.height,
            "all": in_phase.height,
            "largest": frame["delta_ns"].abs().max(),
            "counts": data.counts(in_phase),
            "phases": aligned["phase"].drop_nulls().unique().sort().to_list(),
            "bars": data.bars(aligned),
        }, []

    @answers(messages.ROWS)
    def _on_rows(self, view: Mapping[str, Any], offset: int, count: int) -> Answer:
        return {"rows": data.block(self._rows(view), offset, min(count, 200)), "offset": offset}, []

    @answers(messages.PICK)
    def _on_pick(self, view: Mapping[str, Any], row: int) -> Answer:
        frame = self._rows(view)
        if 0 <= row < frame.height:
            self.picked = frame.select(data.keys_of(view["by"])).row(row, named=True)
        return {}, []

    @answers(messages.DETAILS)
    def _on_details(self, picked: Mapping[str, Any], tolerance: float) -> Answer:
        described, buffers = [], []
        for trace in (self.trace, self.other):
            columns, packed = pack(data.steps_of(trace, picked))
            described.append(columns)
            buffers += packed
        kernels = data.kernels_of(self.trace, self.other, picked, tolerance)
        return {"steps": described, "kernels": kernels}, buffers


def compare(a: Trace, b: Trace, *, names: tuple[str, str] = ("a", "b"), **traits: Any) -> Compare:
    """Two traces aligned by phase, stage and category (or layer, or kernel): what got faster, what slower.

    Above, each phase as a bar of its stages in both traces; below, a row for each part, the largest change first. A
    click on either picks it: its time in every step of both traces, and its kernels.

    Parameters
    ----------
    a, b : Trace
        The traces; ``a`` is the reference.
    names : (str, str)
        What they are called.
    **traits
        To begin with: ``by, tolerance, phase, status, search, sort, picked`` and ``theme``.

    Returns
    -------
    Explorer
        The widget. ``.selected``: events of the picked row in both traces; ``.changes``: all rows; ``.table``: those
        that are shown.
    """
    return Compare(a, b, names=list(names), **traits)
