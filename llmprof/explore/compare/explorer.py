"""Explorer that compares runs: step times, parts of the change, timelines, and kernels."""

import contextlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import polars as pl
import traitlets

from llmprof import analyze, charts
from llmprof.analyze.compare.story import (
    WORDS,
    compared_phases,
    diff_context,
    diff_words,
    parts_of_step,
    run_names,
    waterfall_rows,
)
from llmprof.analyze.compare.times import diff_events, diff_times, has_steps
from llmprof.analyze.overlap import COMMUNICATION, COPY
from llmprof.analyze.step_times import recorded_windows, step_windows
from llmprof.charts.base import theme
from llmprof.errors import AnalysisError, ArgumentError, LlmprofError, NotCapturedError, listed
from llmprof.explore.base.messages import (
    Buffers,
    FrameColumn,
    FrameRow,
    MessageRecord,
    TimeRange,
    pack,
)
from llmprof.explore.base.widget import (
    COLOURS,
    Explorer,
    Reply,
    optional,
    request_handler,
    sorted_by,
)
from llmprof.explore.kernels.explorer import nothing_of
from llmprof.label.intervals import union_length
from llmprof.names.readable import distinct_labels, readable
from llmprof.text import PART_WORDS, step_of
from llmprof.trace import Trace
from llmprof.trace.schema import END

LANES: Final = ("layers", "compute", "communication", "copies", "idle")
"""Rows of a timeline; the column ``lane`` is their number."""

MOST_EVENTS: Final = 4_000
"""Most events of a side that are sent one by one; with more, short events near each other are
merged.
"""

_CAUSES: Final = {part: words for (kind, part), (_, words) in WORDS.items() if kind == "idle"}
_PIECES: Final = 1_500
_MARGIN: Final = 0.02

SCHEMA: Final = {
    "lane": pl.Int32,
    "start_ns": pl.Float64,
    "dur_ns": pl.Float64,
    "label": pl.String,
    "name": pl.String,
    "events": pl.Int64,
}


@dataclass(frozen=True)
class Aligned:
    """A run, its name, and the rank that is shown (the first one if None)."""

    name: str
    trace: Trace
    rank: int | None = None


@dataclass
class Tracks:
    """Timelines of the runs; times are in ns from the point of alignment."""

    sides: list[dict[str, Any]] = field(default_factory=list)
    rows: list[pl.DataFrame] = field(default_factory=list)
    window: tuple[float, float] = (0.0, 1.0)
    whole: tuple[float, float] = (0.0, 1.0)
    place: int | None = None
    places: int = 0
    layers: list[int] = field(default_factory=list)


def align(
    runs: Sequence[Aligned],
    *,
    phase: str | None = None,
    place: int | None = None,
    layer: int | None = None,
    window: Sequence[float] | None = None,
) -> Tracks:
    """Timelines of a step of each run, aligned at its start or at the start of one of its
    layers.
    """
    tracks = Tracks()
    steps = [_steps(run, phase) for run in runs]
    tracks.places = min((frame.height for frame in steps if frame.height), default=0)
    if phase is not None and steps:
        if place is None:  # the step whose length is nearest to the median
            lengths = next((frame for frame in steps if frame.height), steps[0])["span_ns"]
            place = int((lengths - lengths.median()).abs().arg_min() or 0) if lengths.len() else 0
        tracks.place = min(place, max(0, tracks.places - 1)) if tracks.places else None
    events = [_events(run, frame, tracks.place) for run, frame in zip(runs, steps, strict=True)]
    spans = [_span(run, frame, tracks.place) for run, frame in zip(runs, steps, strict=True)]
    tracks.layers = sorted(
        {layer for rows in events for layer in rows.filter(lane=0)["layer"].drop_nulls()}
    )
    ends, shown = [], []
    for run, rows, span in zip(runs, events, spans, strict=True):
        side, origin, length = _side(run, rows, span, phase=phase, layer=layer)
        tracks.sides.append(side)
        shown.append((rows, origin))
        if origin is not None and span is not None:
            ends.append((float(span[0] - origin), float(span[1] - origin), length))
    if ends:
        first, last = min(e[0] for e in ends), max(e[1] for e in ends)
        tracks.whole = (first - _MARGIN * (last - first), last + _MARGIN * (last - first) + 1.0)
        near = max(e[2] for e in ends)
        close = tracks.whole if layer is None else (-0.15 * near, 1.15 * near + 1.0)
        tracks.window = close
        if window is not None:
            low, high = float(window[0]), float(window[1])
            inside = high > max(low, tracks.whole[0]) and low < tracks.whole[1]
            tracks.window = (low, high) if inside else tracks.whole
    tracks.rows = [_reduced(rows, origin, tracks.window) for rows, origin in shown]
    return tracks


def _rank(run: Aligned) -> int | None:
    ranks = sorted(rank for rank in run.trace.capture.device_ranks or run.trace.ranks if rank >= 0)
    return run.rank if run.rank in ranks else next(iter(ranks), None)


def _steps(run: Aligned, phase: str | None) -> pl.DataFrame:
    """Steps of a phase on the chosen rank, or its whole recording."""
    try:
        windows = recorded_windows(run.trace) if phase is None else step_windows(run.trace)
    except LlmprofError:
        return pl.DataFrame(schema={"step": pl.Int32, "start_ns": pl.Int64, "span_ns": pl.Int64})
    own = (
        windows.filter(pl.col("rank") == _rank(run))
        .unique("start_ns", keep="first")
        .sort("start_ns")
    )
    return own if phase is None else own.filter(phase=phase)


def _span(run: Aligned, steps: pl.DataFrame, place: int | None) -> tuple[int, int] | None:
    """First and last time of the visible step (ns), or of all events of the recording."""
    if not steps.height or (place or 0) >= steps.height:
        return None
    row = steps.row(place or 0, named=True)
    if place is not None:
        return int(row["start_ns"]), int(row["start_ns"] + row["span_ns"])
    events = run.trace.events.filter(pl.col("rank") == _rank(run))
    if not events.height:
        return None
    return int(events["start_ns"].min()), int((events["start_ns"] + events["dur_ns"]).max())  # type: ignore[arg-type]


def _events(run: Aligned, steps: pl.DataFrame, place: int | None) -> pl.DataFrame:
    """Events of the step: ``lane, start_ns, dur_ns, label, name, layer``."""
    span = _span(run, steps, place)
    empty = pl.DataFrame(schema={**SCHEMA, "layer": pl.Int32}).drop("events")
    if span is None:
        return empty
    first, last = span
    inside = (pl.col("rank") == _rank(run)) & (pl.col("start_ns") < last)
    inside &= first < END
    own = run.trace.events.filter(inside)
    moves = pl.col("category").is_in(COMMUNICATION).fill_null(False)
    copies = pl.col("category").is_in(COPY).fill_null(False)
    unknown = pl.col("stage").is_null() | (pl.col("stage") == "other")
    lane = pl.when(moves).then(2).when(copies).then(3).otherwise(1)
    kind = pl.when(moves).then(pl.lit("transfer")).when(copies).then(pl.lit("copies"))
    label = kind.when(unknown).then("category").otherwise("stage")
    columns = ["lane", "start_ns", "dur_ns", "label", "name", "layer"]
    rows = own.with_columns(lane=lane.cast(pl.Int32), label=label).select(columns)
    end = END.max()
    layers = (
        own.drop_nulls("layer")
        .group_by("layer")
        .agg(pl.min("start_ns"), dur_ns=end - pl.min("start_ns"))
    )
    named = pl.format("layer {}", "layer")
    layers = layers.sort("start_ns").with_columns(
        lane=pl.lit(0, dtype=pl.Int32), label=pl.lit("layer"), name=named
    )
    gaps = analyze.idle(run.trace).filter(inside)
    gaps = gaps.select(
        pl.lit(4, dtype=pl.Int32).alias("lane"),
        "start_ns",
        "dur_ns",
        label="cause",
        name=pl.col("cause").replace(_CAUSES),
        layer=pl.lit(None, pl.Int32),
    )
    parts = [layers.select(columns), rows, _waits(run, inside), gaps]
    return pl.concat(parts, how="diagonal_relaxed").with_columns(pl.col("layer").cast(pl.Int32))


def _waits(run: Aligned, inside: pl.Expr) -> pl.DataFrame:
    """Waiting inside collectives, drawn over them; collectives with unknown waiting are marked."""
    calls = analyze.collectives(run.trace).filter(inside)
    unknown = calls.filter(pl.col("wait_ns").is_null())
    waiting = calls.filter(pl.col("wait_ns") > 0)
    lane, words = pl.lit(2, dtype=pl.Int32).alias("lane"), pl.lit(PART_WORDS["wait"])
    waits = waiting.select(lane, "start_ns", dur_ns="wait_ns", label=pl.lit("waiting"), name=words)
    others = unknown.select(lane, "start_ns", "dur_ns", "name", label=pl.lit("communication"))
    return pl.concat([waits, others], how="diagonal_relaxed")


def _side(
    run: Aligned,
    rows: pl.DataFrame,
    span: tuple[int, int] | None,
    *,
    phase: str | None,
    layer: int | None,
) -> tuple[dict[str, Any], int | None, float]:
    """Header of a run, its point of alignment, and the length of its layer or step."""
    side: dict[str, Any] = {
        "name": run.name,
        "rank": _rank(run),
        "step": None,
        "origin_ns": None,
        "note": "",
    }
    if span is None:
        side["note"] = (
            f"{run.name} has no such {step_of(phase)}" if phase else f"{run.name} has no events"
        )
        return side, None, 0.0
    origin, length = span[0], float(span[1] - span[0])
    if layer is not None:
        own = rows.filter((pl.col("lane") == 0) & (pl.col("layer") == layer))
        if not own.height:
            side["note"] = f"{run.name} has no layer {layer} in this step"
            return side, None, 0.0
        origin, length = int(own["start_ns"][0]), float(own["dur_ns"][0])
    if phase is not None:
        first = step_windows(run.trace).filter(
            (pl.col("rank") == _rank(run)) & (pl.col("start_ns") == span[0])
        )
        side["step"] = int(first["step"][0]) if first.height else None
    side["origin_ns"] = origin
    return side, origin, length


def _reduced(rows: pl.DataFrame, origin: int | None, window: tuple[float, float]) -> pl.DataFrame:
    """Rows of a window, with times from the point of alignment; of many, short ones near each
    other are merged.
    """
    if origin is None:
        return pl.DataFrame(schema=SCHEMA)
    start = (pl.col("start_ns") - origin).cast(pl.Float64)
    rows = rows.with_columns(
        start_ns=start, dur_ns=pl.col("dur_ns").cast(pl.Float64), events=pl.lit(1, dtype=pl.Int64)
    )
    rows = rows.filter((pl.col("start_ns") < window[1]) & (window[0] < END))
    if rows.height > MOST_EVENTS:
        piece = (window[1] - window[0]) / _PIECES
        short = rows.filter(pl.col("dur_ns") < piece)
        longest = pl.col("label").sort_by("dur_ns", descending=True).first()
        gathered = short.group_by("lane", _piece=pl.col("start_ns") // piece).agg(
            pl.min("start_ns"),
            pl.sum("dur_ns").clip(upper_bound=2 * piece),
            label=longest,
            name=pl.format("{} events", pl.len()),
            events=pl.len().cast(pl.Int64),
        )
        rows = pl.concat(
            [
                rows.filter(pl.col("dur_ns") >= piece).select(list(SCHEMA)),
                gathered.select(list(SCHEMA)),
            ]
        )
    return rows.select(list(SCHEMA)).cast(SCHEMA).sort("lane", "start_ns", maintain_order=True)  # type: ignore[arg-type]


ComparedLabels = dict[str, Any]
"""Labels of a row: ``{"phase": "decode", "stage": "norm"}``."""

RunPair = tuple[int, int]
"""Numbers of the two runs that are compared in detail."""


class ComparisonView(MessageRecord):
    """View of the table: two runs, labels that rows are aligned by, filters, a search text and
    an order.
    """

    pair: RunPair
    by: list[str]
    tolerance: float
    phase: str | None = None
    rank: int | None = None
    status: str | None = None
    search: str = ""
    sort: str = "-delta_ns"


class StepPart(MessageRecord):
    """Part of the time of a step (ns): its group, its words, and the stage of compute or cause
    of idle time.
    """

    group: str
    label: str
    part: str | None
    ns: float


class RunBar(MessageRecord):
    """A run: its name, its steps of the phase, the time of a step and until the next (ns), and
    its parts.
    """

    name: str
    steps: int
    step_ns: float | None
    parts: list[StepPart]


class WaterfallBar(MessageRecord):
    """Bar of a waterfall: :func:`llmprof.analyze.compare.story.waterfall_rows`; null where a run
    does not have it.
    """

    group: str
    label: str
    part: str | None
    a_ns: float | None
    b_ns: float | None
    delta_ns: float
    from_ns: float
    to_ns: float
    beyond_noise: bool | None


class Way(MessageRecord):
    """Waterfall from one run to another: their numbers and its bars."""

    a: int
    b: int
    bars: list[WaterfallBar]


class Track(MessageRecord):
    """Timeline of a run: rank, step, point of alignment (ns from its start), columns and their
    first buffer.
    """

    name: str
    rank: int | None
    step: int | None
    origin_ns: int | None
    columns: list[FrameColumn]
    first: int
    note: str


class KernelPage(MessageRecord):
    """Kernels of a row in both traces, and how many there are in all."""

    rows: list[FrameRow]
    total: int


STATUSES: Final = {
    "slower": "slower",
    "faster": "faster",
    "more_time": "more time",
    "less_time": "less time",
    "only_b": "appeared",
    "only_a": "vanished",
    "same": "about the same",
}
"""Statuses of :func:`llmprof.analyze.compare.times.diff_events` in words."""

ALIGNED: Final = (
    ("stage", "name"),
    ("name",),
    ("stage", "category"),
    ("layer", "stage"),
    ("category",),
)
"""Labels that rows can be aligned by, in addition to the phase."""

NUMBERS: Final = ("a_ns", "b_ns", "delta_ns", "ratio", "a_count", "b_count", "a_steps", "b_steps")
_MOST_KERNELS: Final = 60
_MOST_TEXT: Final = 400
_PAIR: Final = 2


def _arranged(
    frame: pl.DataFrame, *, search: str, phase: str | None, status: str | None, sort: str
) -> pl.DataFrame:
    """Rows of a phase and a status with a text in one of their labels, sorted by a column
    (``-``: descending).
    """
    labels = [c for c in ("stage", "category", "layer", "name") if c in frame.columns]
    words = pl.concat_str(
        [pl.col(c).cast(pl.String).fill_null("") for c in labels], separator=" "
    ).str.to_lowercase()
    kept = frame.filter(words.str.contains(search.strip().lower(), literal=True))
    if phase is not None:
        kept = kept.filter(phase=phase)
    if status is not None:
        kept = kept.filter(status=status)
    column, falling = sort.lstrip("-"), sort.startswith("-")
    if column not in kept.columns:
        return kept
    key = pl.col(column).abs() if column == "delta_ns" else pl.col(column)
    return kept.sort(key, descending=falling, nulls_last=True, maintain_order=True)


def _block(frame: pl.DataFrame, offset: int, count: int) -> list[dict[str, Any]]:
    """Some of the rows as JSON, with texts shortened, and names of kernels also as people read
    them.
    """
    rows = frame.slice(max(0, offset), max(0, count))
    if "name" in rows.columns:
        known = rows["name"].fill_null("")
        rows = rows.with_columns(
            readable=pl.Series(distinct_labels(known, readable(known)), dtype=pl.String)
        )
    return [{key: _plain(cell) for key, cell in row.items()} for row in rows.iter_rows(named=True)]


def _statuses_of(runs: Sequence[Trace]) -> dict[str, str]:
    """Statuses that a comparison of two of the runs can have, in words."""
    stepped = 0
    for run in runs:
        with contextlib.suppress(NotCapturedError):
            stepped += has_steps(run)
    without = set() if stepped >= _PAIR else {"slower", "faster"}
    without |= {"more_time", "less_time"} if stepped == len(runs) else set()
    return {status: words for status, words in STATUSES.items() if status not in without}


def _matching(labels: ComparedLabels) -> list[pl.Expr]:
    """Condition for the events of a row: every label is equal, and null equals null."""
    return [pl.col(name).eq_missing(pl.lit(value)) for name, value in labels.items()] or [
        pl.lit(True)
    ]


def _of_rank(events: pl.DataFrame, rank: int | None) -> pl.DataFrame:
    """Rows of a rank; all if none is chosen."""
    return events if rank is None else events.filter(rank=rank)


def _events_of(trace: Trace, labels: ComparedLabels, rank: int | None = None) -> pl.DataFrame:
    """Events of a row that belong to a step: those that
    :func:`llmprof.analyze.compare.times.diff_events` compares.
    """
    return _of_rank(trace.events, rank).filter(pl.col("step").is_not_null(), *_matching(labels))


def compared_steps(trace: Trace, labels: ComparedLabels, rank: int | None = None) -> pl.DataFrame:
    """Time of a row in each step of its phase, as the mean over ranks."""
    events = _of_rank(trace.events, rank)
    phase = labels.get("phase")
    cells = events.filter(pl.col("step").is_not_null(), pl.col("phase").eq_missing(pl.lit(phase)))
    every = cells.group_by("rank", "step").agg(pl.min("start_ns"))
    busy = union_length(_events_of(trace, labels, rank), ["rank", "step"])
    joined = every.join(busy, on=["rank", "step"], how="left").with_columns(
        pl.col("busy_ns").fill_null(0)
    )
    steps = (
        joined.group_by("step").agg(pl.mean("busy_ns"), pl.min("start_ns")).sort("start_ns", "step")
    )
    return steps.with_row_index("place").select("step", "place", "busy_ns")


def _kernels_of(
    a: Trace, b: Trace, labels: ComparedLabels, tolerance: float, rank: int | None = None
) -> dict[str, Any]:
    """Kernels of a row in both traces, the largest change first:

    ``rows`` as JSON, and their ``total``.
    """
    by = [*_keys_of(label for label in labels if label != "name"), "name"]
    ranks = None if rank is None else [rank]
    frame = diff_events(a, b, tolerance=tolerance, by=by, ranks=ranks).filter(_matching(labels))
    frame = frame.sort(pl.col("delta_ns").abs(), "name", descending=[True, False], nulls_last=True)
    shown = frame.select(
        "name", "status", "a_ns", "b_ns", "delta_ns", "ratio", "a_count", "b_count"
    )
    return {"rows": _block(shown, 0, _MOST_KERNELS), "total": frame.height}


def _keys_of(by: Iterable[str]) -> list[str]:
    """Columns that rows are aligned by: the phase, and the requested ones."""
    return list(dict.fromkeys(["phase", *by]))


def _plain(cell: Any) -> Any:
    if isinstance(cell, float) and not math.isfinite(cell):
        return None
    return cell[:_MOST_TEXT] if isinstance(cell, str) else cell


_VIEW = ("pair", "by", "tolerance", "phase", "status", "search", "sort")

PARTS: Final = {
    "waiting": theme.WAIT,
    "transfer": theme.COMMUNICATION,
    "communication": theme.STAGES["all_gather"],
    "copies": theme.COPY,
    "unexplained": theme.REST,
    "compute": theme.COMPUTE,
    "idle": theme.DURATION,
}
"""Colours of groups of parts that have no colour by stage or cause."""


class Compare(Explorer, room="compare"):
    """Widget of :func:`compare`."""

    names = traitlets.List(traitlets.Unicode(), ["a", "b"], minlen=2).tag(sync=True)
    """Names of the runs."""

    pair = traitlets.List(traitlets.Int(min=0), [0, 1], minlen=2, maxlen=2).tag(
        sync=True, pair=True
    )
    """Numbers of the two runs that are compared; the first is the reference."""

    by = traitlets.List(
        traitlets.Enum(["stage", "category", "layer", "name"]), list(ALIGNED[0])
    ).tag(sync=True)
    """Labels that rows are aligned by, in addition to the phase."""

    tolerance = traitlets.Float(0.05, min=0).tag(sync=True)
    """Largest relative change with the status ``same``."""

    phase = optional(traitlets.Unicode)
    """Phase whose steps are compared; the one with the most time, once the widget is shown."""

    status = traitlets.Enum([*STATUSES, None], default_value=None, allow_none=True).tag(sync=True)
    search = traitlets.Unicode("").tag(sync=True)
    sort = traitlets.Unicode("-delta_ns").tag(sync=True)

    picked: Any = optional(traitlets.Dict)
    """Labels of the row that is picked, such as ``{"phase": "decode", "stage": "norm"}``."""

    place = traitlets.Int(default_value=None, allow_none=True, min=0).tag(sync=True)
    """Step of the phase that the timelines show, counted from 0; the most typical one if None."""

    zoom: Any = traitlets.List(traitlets.Float(), default_value=None, allow_none=True).tag(
        sync=True, pair=True
    )
    """Part of the timelines in view, in ns from the point where they are aligned; the whole step
    if None.
    """

    statuses = traitlets.Dict(STATUSES).tag(sync=True)
    colours = traitlets.Dict(default_value={**COLOURS, "part": PARTS}).tag(sync=True)

    def __init__(self, *runs: Trace, **traits: Any) -> None:
        self.runs = runs
        self._kept: dict[tuple[Any, ...], pl.DataFrame] = {}
        super().__init__(runs[0], statuses=_statuses_of(runs), **traits)

    narrows = ("rank", "status", "search")

    @property
    def only_rank(self) -> int | None:
        """The only rank that is compared; None if all are."""
        return self.only.get("rank")

    _known_column = sorted_by(["phase", "stage", "category", "layer", "name", "status", *NUMBERS])

    @traitlets.validate("pair")
    def _known_runs(self, proposal: Mapping[str, Any]) -> list[int]:
        pair = [int(number) for number in proposal["value"]]
        if max(pair) >= len(self.runs) or pair[0] == pair[1]:
            raise traitlets.TraitError(
                f"pair is {listed(pair)}; expected two numbers from 0 to {len(self.runs) - 1}"
            )
        return pair

    @property
    def changes(self) -> pl.DataFrame:
        """All rows of :func:`llmprof.analyze.compare.times.diff_events`, aligned as ``by`` says."""
        return self._diff(
            (self.pair[0], self.pair[1]), tuple(self.by), self.tolerance, self.only_rank
        )

    @property
    def table(self) -> pl.DataFrame:
        """The rows that the table shows, in its order."""
        return self._rows({name: getattr(self, name) for name in _VIEW} | {"rank": self.only_rank})

    @property
    def waterfall(self) -> pl.DataFrame:
        """Parts of the change of the step time:

        ``analyze.diff(a, b, part="waterfall")`` of the two runs.
        """
        return waterfall_rows(
            self._times((self.pair[0], self.pair[1]), self.only_rank), phase=self.phase
        )

    @property
    def selected(self) -> pl.DataFrame:
        """Events of the picked row in both traces:

        ``trace`` (which one), and the columns of ``trace.events``.
        """
        if self.picked is None:
            return nothing_of(self.trace)
        sides = [(self.names[number], self.runs[number]) for number in self.pair]
        return pl.concat(
            _events_of(t, self.picked, self._rank(t, self.only_rank)).select(
                pl.lit(n).alias("trace"), pl.all()
            )
            for n, t in sides
        )

    def picture(self) -> bytes | None:
        """PNG image of the waterfall from one step time to the other."""
        frame = self._times((self.pair[0], self.pair[1]), self.only_rank)
        return charts.to_png_bytes(
            charts.diff_waterfall(frame, phase=self.phase), scale=1.25, theme="any"
        )

    def _rank(self, trace: Trace, rank: int | None) -> int | None:
        """The requested rank, if the trace has it."""
        return rank if rank in trace.ranks else None

    def _ranks(self, pair: RunPair, rank: int | None) -> list[int] | None:
        both = {r for number in pair for r in self.runs[number].ranks}
        return [rank] if rank is not None and rank in both else None

    def _diff(
        self, pair: RunPair, by: tuple[str, ...], tolerance: float, rank: int | None
    ) -> pl.DataFrame:
        key = ("events", tuple(pair), by, tolerance, rank)
        if key not in self._kept:
            a, b = (self.runs[number] for number in pair)
            self._kept[key] = diff_events(
                a, b, tolerance=tolerance, by=_keys_of(by), ranks=self._ranks(pair, rank)
            )
        return self._kept[key]

    def _times(self, pair: RunPair, rank: int | None) -> pl.DataFrame:
        key = ("times", tuple(pair), rank)
        if key not in self._kept:
            a, b = ([self.runs[number]] for number in pair)
            names = {
                f"{side}_run": pl.lit(self.names[number])
                for side, number in zip("ab", pair, strict=True)
            }
            self._kept[key] = diff_times(a, b, ranks=self._ranks(pair, rank)).with_columns(**names)
        return self._kept[key]

    def _rows(self, view: Mapping[str, Any]) -> pl.DataFrame:
        frame = self._diff(
            tuple(view["pair"]), tuple(view["by"]), view["tolerance"], view.get("rank")
        )
        chosen = {name: view[name] for name in ("search", "phase", "status", "sort")}
        return _arranged(frame, **chosen)

    @request_handler(
        busy="comparing steps",
        phases=list[str],
        phase=str | None,
        ranks=list[int],
        words=list[str],
        context=list[str],
        runs=list[RunBar],
        ways=list[Way],
    )
    def _on_story(self, pair: RunPair, phase: str | None = None, rank: int | None = None) -> Reply:
        frame = self._times(pair, rank)
        shared = compared_phases(frame)
        every = [
            one
            for one in [*shared, *frame["phase"].drop_nulls().unique().sort()]
            if one is not None
        ]
        phases = list(dict.fromkeys(every))
        if phase not in phases:
            phase = phases[0] if phases else None
            self.phase = phase
        ways, bars = [], []
        for number in range(len(self.runs)):
            against = pair[0] if number != pair[0] else pair[1]
            times = self._times((against, number), rank)
            bars.append({"name": self.names[number], **parts_of_step(times, side="b", phase=phase)})
            if number != pair[0] and (number == pair[1] or len(self.runs) > 2):
                try:
                    rows = waterfall_rows(times, phase=phase).to_dicts()
                except AnalysisError:
                    rows = []
                ways.append({"a": pair[0], "b": number, "bars": rows})
        ways.sort(key=lambda way: way["b"] != pair[1])
        names = (self.names[pair[0]], self.names[pair[1]])
        context = (
            diff_context(self.runs[pair[0]], self.runs[pair[1]], names=names)["words"]
            .drop_nulls()
            .to_list()
        )
        sentences = dict(zip(shared, diff_words(frame), strict=False))
        own = [sentences[phase]] if phase in sentences else []
        return {
            "phases": phases,
            "phase": phase,
            "ranks": sorted({r for number in pair for r in self.runs[number].ranks if r >= 0}),
            "words": own + diff_words(frame)[len(shared) :],
            "context": context,
            "runs": bars,
            "ways": ways,
        }, []

    @request_handler(
        busy="aligning the timelines",
        buffers="columns of the timeline of each side after those of the one before",
        sides=list[Track],
        lanes=list[str],
        window=TimeRange,
        whole=TimeRange,
        place=int | None,
        places=int,
        layers=list[int],
    )
    def _on_tracks(  # noqa: PLR0917 - the fields of the message
        self,
        pair: RunPair,
        phase: str | None = None,
        rank: int | None = None,
        place: int | None = None,
        layer: int | None = None,
        window: TimeRange | None = None,
    ) -> Reply:
        runs = [Aligned(self.names[n], self.runs[n], self._rank(self.runs[n], rank)) for n in pair]
        shown = align(runs, phase=phase, place=place, layer=layer, window=window)
        sides: list[FrameRow] = []
        buffers: Buffers = []
        for side, rows in zip(shown.sides, shown.rows, strict=True):
            columns, packed = pack(rows)
            sides.append({**side, "columns": columns, "first": len(buffers)})
            buffers += packed
        of_all = {
            name: getattr(shown, name) for name in ("window", "whole", "place", "places", "layers")
        }
        return {"sides": sides, "lanes": list(LANES), **of_all}, buffers

    @request_handler(
        asks={"view": ComparisonView},
        busy="comparing kernels",
        rows=list[FrameRow],
        total=int,
        all=int,
        largest=float | None,
        counts=dict[str, int],
    )
    def _on_table(self, view: Mapping[str, Any], count: int = 60) -> Reply:
        whole = self._diff(
            tuple(view["pair"]), tuple(view["by"]), view["tolerance"], view.get("rank")
        )
        frame = self._rows(view)
        in_phase = (
            whole if view["phase"] is None else whole.filter(pl.col("phase") == view["phase"])
        )
        found = dict(in_phase.group_by("status").len().iter_rows())
        return {
            "rows": _block(frame, 0, count),
            "total": frame.height,
            "all": in_phase.height,
            "largest": frame["delta_ns"].abs().max(),
            "counts": {status: found.get(status, 0) for status in STATUSES},
        }, []

    @request_handler(asks={"view": ComparisonView}, rows=list[FrameRow], offset=int)
    def _on_rows(self, view: Mapping[str, Any], offset: int, count: int) -> Reply:
        return {"rows": _block(self._rows(view), offset, min(count, 200)), "offset": offset}, []

    @request_handler(asks={"view": ComparisonView})
    def _on_pick(self, view: Mapping[str, Any], row: int) -> None:
        frame = self._rows(view)
        if 0 <= row < frame.height:
            self.picked = frame.select(_keys_of(view["by"])).row(row, named=True)

    @request_handler(
        busy="looking into both traces",
        buffers="columns of the steps of both traces",
        steps=list[list[FrameColumn]],
        kernels=KernelPage,
    )
    def _on_details(
        self,
        picked: ComparedLabels,
        tolerance: float,
        pair: RunPair = (0, 1),
        rank: int | None = None,
    ) -> Reply:
        described, buffers = [], []
        for number in pair:
            trace = self.runs[number]
            columns, packed = pack(compared_steps(trace, picked, self._rank(trace, rank)))
            described.append(columns)
            buffers += packed
        only = rank if self._ranks(pair, rank) else None
        kernels = _kernels_of(self.runs[pair[0]], self.runs[pair[1]], picked, tolerance, only)
        return {"steps": described, "kernels": kernels}, buffers


def compare(
    a: Trace, b: Trace, *more: Trace, names: Sequence[str] | None = None, **traits: Any
) -> Compare:
    """Runs side by side: the time of a step, the parts of its change, and the kernels behind it.

    At the top is a step of each run. Below are a waterfall from the first run to the second, both
    timelines one above the other, aligned at a step or layer, and a table of kernels, the largest
    change first. A click on a part of a bar or on a row picks it, and shows its time in every step
    of both runs, and its kernels. With more than two runs, two at a time are compared in this way.

    Parameters
    ----------
    a, b, *more : Trace
        The runs; ``a`` is the reference.
    names : sequence of str, optional
        Their names; by default those of the folders or files that were read.
    **traits
        Initial values of ``pair, by, tolerance, phase, only, place, layer, status, search, sort,
        picked`` and ``theme``.

    Returns
    -------
    Explorer
        The widget. ``.selected``: events of the picked row in both runs; ``.changes``: all rows;
        ``.table``: the visible rows; ``.waterfall``: the bars.

    Raises
    ------
    ArgumentError
        There are more or fewer names than runs.
    """
    runs = (a, b, *more)
    called = list(run_names(*runs) if names is None else names)
    if len(called) != len(runs):
        raise ArgumentError(
            f"compare() got {len(called)} names for {len(runs)} runs",
            expected="one name for each run",
        )
    return Compare(*runs, names=called, **traits)
