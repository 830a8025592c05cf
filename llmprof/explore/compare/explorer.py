"""``explore.compare``: two traces side by side, and what got faster, slower, appeared or vanished."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import polars as pl
import traitlets

from llmprof.analyze import attribute, diff_events
from llmprof.analyze.intervals import union_length
from llmprof.charts.base.theme import PHASES
from llmprof.explore.base.messages import Column, Message, Record, Row, pack
from llmprof.explore.base.widget import BUNDLES, Answer, Explorer, answers
from llmprof.explore.kernels.table import nothing_of
from llmprof.trace import Trace

Labels = dict[str, Any]
"""Labels of a row: ``{"phase": "decode", "stage": "norm"}``."""


class Shown(Record):
    """What the table shows: labels that rows are aligned by, filters, a text and an order."""

    by: list[str]
    tolerance: float
    phase: str | None = None
    status: str | None = None
    search: str = ""
    sort: str = "-delta_ns"


class Phase(Record):
    """Bars of a phase: numbers of steps and the time by stage (ns) in both traces."""

    phase: str
    a_steps: int | None
    b_steps: int | None
    stages: list[Row]


class Kernels(Record):
    """Kernels of a row in both traces, and how many there are in all."""

    rows: list[Row]
    total: int


TABLE: Final = Message(
    "table",
    asks={"view": Shown, "count": int},
    answers={
        "rows": list[Row],
        "total": int,
        "all": int,
        "largest": float | None,
        "counts": dict[str, int],
        "phases": list[str],
        "bars": list[Phase],
    },
    busy="comparing the traces",
)
ROWS: Final = Message(
    "rows", asks={"view": Shown, "offset": int, "count": int}, answers={"rows": list[Row], "offset": int}
)
PICK: Final = Message("pick", asks={"view": Shown, "row": int})
DETAILS: Final = Message(
    "details",
    asks={"picked": Labels, "tolerance": float},
    answers={"steps": list[list[Column]], "kernels": Kernels},
    buffers="columns of the steps of both traces",
    busy="looking into both traces",
)

MESSAGES: Final = (TABLE, ROWS, PICK, DETAILS)


RowLabels = Mapping[str, Any]

STATUSES: Final = {
    "slower": "slower",
    "faster": "faster",
    "only_b": "appeared",
    "only_a": "vanished",
    "same": "about the same",
}
"""Statuses of :func:`llmprof.analyze.diff_events` in words."""

ALIGNED: Final = (("stage", "category"), ("layer", "stage"), ("category",), ("stage", "name"), ("name",))
"""Labels that rows can be aligned by, beside the phase."""

NUMBERS: Final = ("a_ns", "b_ns", "delta_ns", "ratio", "a_count", "b_count", "a_steps", "b_steps")
_MOST_KERNELS: Final = 60
_MOST_TEXT: Final = 400


def arranged(frame: pl.DataFrame, *, search: str, phase: str | None, status: str | None, sort: str) -> pl.DataFrame:
    """Rows with a text in one of their labels, of a phase and a status, in the order of a column (``-``: falling).

    The order by change is that of its size.
    """
    labels = [c for c in ("stage", "category", "layer", "name") if c in frame.columns]
    words = pl.concat_str([pl.col(c).cast(pl.String).fill_null("") for c in labels], separator=" ").str.to_lowercase()
    kept = frame.filter(words.str.contains(search.strip().lower(), literal=True))
    if phase is not None:
        kept = kept.filter(pl.col("phase") == phase)
    if status is not None:
        kept = kept.filter(pl.col("status") == status)
    column, falling = sort.lstrip("-"), sort.startswith("-")
    if column not in kept.columns:
        return kept
    key = pl.col(column).abs() if column == "delta_ns" else pl.col(column)
    return kept.sort(key, descending=falling, nulls_last=True, maintain_order=True)


def block(frame: pl.DataFrame, offset: int, count: int) -> list[dict[str, Any]]:
    """Some of the rows as JSON, texts cut."""
    rows = frame.slice(max(0, offset), max(0, count)).iter_rows(named=True)
    return [{key: _plain(cell) for key, cell in row.items()} for row in rows]


def counts(frame: pl.DataFrame) -> dict[str, int]:
    """Rows of each status."""
    found = dict(frame.group_by("status").len().iter_rows())
    return {status: found.get(status, 0) for status in STATUSES}


def bars(frame: pl.DataFrame) -> list[dict[str, Any]]:
    """Of each phase the time by stage in both traces, from rows aligned by stage and category; the longest first."""
    phases = []
    places = {name: i for i, name in enumerate(PHASES)}
    known = frame.drop_nulls("phase")
    order = sorted(known["phase"].unique(), key=lambda phase: (places.get(phase, len(places)), phase))
    for phase in order:
        part = known.filter(pl.col("phase") == phase)
        stages = part.group_by("stage").agg(pl.col("a_ns", "b_ns").sum())
        stages = stages.sort(pl.max_horizontal("a_ns", "b_ns"), "stage", descending=[True, False], nulls_last=True)
        steps = part.select(pl.col("a_steps", "b_steps").max()).row(0)
        phases.append({"phase": phase, "a_steps": steps[0], "b_steps": steps[1], "stages": stages.to_dicts()})
    return phases


def matching(labels: RowLabels) -> list[pl.Expr]:
    """What events of a row fulfil: each label equal, null equal to null."""
    return [pl.col(name).eq_missing(pl.lit(value)) for name, value in labels.items()] or [pl.lit(value=True)]


def events_of(trace: Trace, labels: RowLabels) -> pl.DataFrame:
    """Events of a row that lie in a step: those that :func:`llmprof.analyze.diff_events` compares."""
    return attribute(trace).filter(pl.col("step").is_not_null(), *matching(labels))


def steps_of(trace: Trace, labels: RowLabels) -> pl.DataFrame:
    """Time of a row in each step of its phase, mean of the ranks.

    Returns
    -------
    polars.DataFrame
        ``step, place`` (of the step among those of its phase, from 0), ``busy_ns`` (0 where a step has no such event).
    """
    events = attribute(trace)
    phase = labels.get("phase")
    cells = events.filter(pl.col("step").is_not_null(), pl.col("phase").eq_missing(pl.lit(phase)))
    every = cells.group_by("rank", "step").agg(pl.col("start_ns").min())
    busy = union_length(events_of(trace, labels), ["rank", "step"])
    joined = every.join(busy, on=["rank", "step"], how="left").with_columns(pl.col("busy_ns").fill_null(0))
    steps = joined.group_by("step").agg(pl.col("busy_ns").mean(), pl.col("start_ns").min()).sort("start_ns", "step")
    return steps.with_row_index("place").select("step", "place", "busy_ns")


def kernels_of(a: Trace, b: Trace, labels: RowLabels, tolerance: float) -> dict[str, Any]:
    """Kernels of a row in both traces, the largest change first: ``rows`` as JSON, and their ``total``."""
    by = ["phase", *(label for label in labels if label not in ("phase", "name")), "name"]
    frame = diff_events(a, b, tolerance=tolerance, by=by).filter(matching(labels))
    frame = frame.sort(pl.col("delta_ns").abs(), "name", descending=[True, False], nulls_last=True)
    shown = frame.select("name", "status", "a_ns", "b_ns", "delta_ns", "ratio", "a_count", "b_count")
    return {"rows": block(shown, 0, _MOST_KERNELS), "total": frame.height}


def keys_of(by: Sequence[str]) -> list[str]:
    """Columns that a row is aligned by: the phase, and those that were asked for."""
    return ["phase", *(label for label in by if label != "phase")]


def _plain(cell: Any) -> Any:
    if isinstance(cell, float) and not math.isfinite(cell):
        return None
    return cell[:_MOST_TEXT] if isinstance(cell, str) else cell


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
    status = traitlets.Enum([*STATUSES, None], default_value=None, allow_none=True).tag(sync=True)
    search = traitlets.Unicode("").tag(sync=True)
    sort = traitlets.Unicode("-delta_ns").tag(sync=True)

    picked: Any = traitlets.Dict(default_value=None, allow_none=True).tag(sync=True)
    """Labels of the row that is picked, such as ``{"phase": "decode", "stage": "norm"}``."""

    statuses = traitlets.Dict(STATUSES).tag(sync=True)

    def __init__(self, a: Trace, b: Trace, **traits: Any) -> None:
        self.other = b
        self._kept: dict[tuple[tuple[str, ...], float], pl.DataFrame] = {}
        super().__init__(a, **traits)

    @traitlets.validate("sort")
    def _known_column(self, proposal: Mapping[str, Any]) -> str:
        known = ["phase", "stage", "category", "layer", "name", "status", *NUMBERS]
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
        return pl.concat([events_of(t, self.picked).select(pl.lit(n).alias("trace"), pl.all()) for n, t in sides])

    def picture(self) -> bytes | None:
        """PNG image of the largest changes."""
        from llmprof import charts

        first, second = self.names
        chart = charts.diff(self._diff(ALIGNED[0], self.tolerance), names=(first, second))
        return charts.to_png_bytes(chart, scale=1.25)

    def _diff(self, by: tuple[str, ...], tolerance: float) -> pl.DataFrame:
        if (by, tolerance) not in self._kept:
            self._kept[by, tolerance] = diff_events(self.trace, self.other, tolerance=tolerance, by=keys_of(by))
        return self._kept[by, tolerance]

    def _rows(self, view: Mapping[str, Any]) -> pl.DataFrame:
        frame = self._diff(tuple(view["by"]), view["tolerance"])
        chosen = {name: view[name] for name in ("search", "phase", "status", "sort")}
        return arranged(frame, **chosen)

    @answers(TABLE)
    def _on_table(self, view: Mapping[str, Any], count: int = 60) -> Answer:
        whole = self._diff(tuple(view["by"]), view["tolerance"])
        aligned, frame = self._diff(ALIGNED[0], view["tolerance"]), self._rows(view)
        in_phase = whole if view["phase"] is None else whole.filter(pl.col("phase") == view["phase"])
        return {
            "rows": block(frame, 0, count),
            "total": frame.height,
            "all": in_phase.height,
            "largest": frame["delta_ns"].abs().max(),
            "counts": counts(in_phase),
            "phases": aligned["phase"].drop_nulls().unique().sort().to_list(),
            "bars": bars(aligned),
        }, []

    @answers(ROWS)
    def _on_rows(self, view: Mapping[str, Any], offset: int, count: int) -> Answer:
        return {"rows": block(self._rows(view), offset, min(count, 200)), "offset": offset}, []

    @answers(PICK)
    def _on_pick(self, view: Mapping[str, Any], row: int) -> Answer:
        frame = self._rows(view)
        if 0 <= row < frame.height:
            self.picked = frame.select(keys_of(view["by"])).row(row, named=True)
        return {}, []

    @answers(DETAILS)
    def _on_details(self, picked: Mapping[str, Any], tolerance: float) -> Answer:
        described, buffers = [], []
        for trace in (self.trace, self.other):
            columns, packed = pack(steps_of(trace, picked))
            described.append(columns)
            buffers += packed
        kernels = kernels_of(self.trace, self.other, picked, tolerance)
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
