"""Explorer of overlap: bars of steps, and lanes of a window, for one rank or for two sides."""

from collections.abc import Sequence
from typing import Any, Literal

import polars as pl
import traitlets

from llmprof import charts
from llmprof.analyze.edge import whole_steps
from llmprof.analyze.overlap import COMMUNICATION, overlap_within, transferring, with_waits
from llmprof.analyze.overlap import overlap as overlap_of_trace
from llmprof.charts.base import theme
from llmprof.charts.base.draw import extent
from llmprof.explore.base.messages import (
    Buffers,
    FrameColumn,
    FrameRow,
    MessageRecord,
    TimeRange,
    array,
    pack,
)
from llmprof.explore.base.widget import COLOURS, Explorer, Reply, optional, request_handler
from llmprof.label.intervals import clip_intervals, gaps, length_within, merge
from llmprof.label.steps.steps import steps_of
from llmprof.trace import Trace
from llmprof.trace.schema import END


class Bars(MessageRecord):
    """Bars of a side: its label, its rank, the packed columns and the number of their buffers."""

    label: str
    rank: int
    columns: list[FrameColumn]
    buffers: int


class OverlapLane(MessageRecord):
    """A lane: what it shows, as spans or as bins of classes, and which buffers of its side it
    has.
    """

    name: str
    stream: bool
    count: int
    total_ns: int
    kind: Literal["spans", "bins"]
    buffers: list[int]
    classes: list[str] | None = None


class Side(MessageRecord):
    """Lanes of a rank in a window; ``first`` is the index of its first buffer."""

    rank: int
    window: TimeRange
    lanes: list[OverlapLane]
    names: list[str]
    of: str
    first: int


CLASSES = ("compute", "communication", "copy")
"""Classes of device events, as in :func:`llmprof.analyze.overlap`."""

PARTS = {
    "compute": pl.col("compute_ns") - pl.col("hidden_communication_ns"),
    "hidden communication": pl.col("hidden_communication_ns"),
    "exposed waiting for ranks": pl.col("exposed_wait_ns"),
    "exposed transfer": pl.col("exposed_transfer_ns"),
    "exposed transfer or waiting": pl.col("exposed_unknown_ns"),
    "exposed copy": pl.col("exposed_copy_ns").fill_null(0),
    "idle": pl.col("idle_ns"),
}
"""Parts of a bar in order; they add up to its total. Three of them are exposed communication."""

_USED = sorted({column for part in PARTS.values() for column in part.meta.root_names()})

MAX_BARS = 300
"""Most bars of steps."""

Span = tuple[int, int]
OverlapSide = tuple[Trace, int, Span]
"""A trace, one of its ranks, and a window of it."""


def _with_class(events: pl.DataFrame) -> pl.DataFrame:
    """Device events with ``class``, from their category and source."""
    communication = pl.when(pl.col("category").is_in(COMMUNICATION)).then(pl.lit("communication"))
    kind = communication.when(transferring()).then(pl.lit("copy")).otherwise(pl.lit("compute"))
    return events.with_columns(kind.alias("class"))


def _span_of(trace: Trace, rank: int) -> Span | None:
    """First start and last end on the device of a rank (ns); None if nothing ran."""
    mine = trace.events.filter(rank=rank)
    if mine.is_empty():
        return None
    first, last = extent(mine)
    return first, max(last, first + 1)


def overlap_bars(trace: Trace, *, rank: int, phase: str | None = None) -> pl.DataFrame:
    """Bars of the steps of a rank, means where there are many; a rank without steps has one,
    with step -1.
    """
    where = whole_steps(trace).select("rank", "step", "phase", "start_ns", end_ns=END)
    rows = overlap_of_trace(trace, waits=True).filter(
        pl.col("rank") == rank, pl.col("step").is_not_null()
    )
    rows = rows.join(where, on=["rank", "step"], how="left", maintain_order="left")
    if rows.is_empty():
        first, last = _span_of(trace, rank) or (0, 0)
        whole = overlap_of_trace(trace, by=("rank",), waits=True).filter(rank=rank)
        rows = whole.with_columns(
            step=pl.lit(-1, pl.Int32), phase=pl.lit(None, pl.String), start_ns=first, end_ns=last
        )
    if phase is not None:
        rows = rows.filter(phase=phase)
    size = max(1, -(-rows.height // MAX_BARS))
    bars = rows.with_columns(bar=pl.int_range(pl.len()) // size, **PARTS).group_by(
        "bar", maintain_order=True
    )
    number, phase_of = pl.col("step"), pl.col("phase").drop_nulls().mode().sort().first()
    times = (pl.min("start_ns"), pl.max("end_ns"), pl.col("total_ns", *PARTS).mean())
    return bars.agg(number.min().alias("first"), number.max().alias("last"), phase_of, *times).drop(
        "bar"
    )


def _step_window(trace: Trace, *, rank: int, step: int) -> Span | None:
    """Device span of a step (ns); None if the rank has no such step or ran nothing in it."""
    step_rows = (
        whole_steps(trace)
        .filter(pl.col("rank") == rank, pl.col("step") == step)
        .drop_nulls("start_ns")
    )
    if step_rows.is_empty():
        return None
    first, length = step_rows.select("start_ns", "dur_ns").row(0)
    return int(first), int(first) + max(1, int(length))


def _steps_window(trace: Trace, *, rank: int, first: int, last: int) -> Span | None:
    """Span from the start of one step to the end of another; of one step if only that ran; None
    if neither ran.
    """
    windows = [_step_window(trace, rank=rank, step=step) for step in (first, last)]
    spans = [span for span in windows if span is not None]
    return (min(span[0] for span in spans), max(span[1] for span in spans)) if spans else None


def _aligned(
    window: Span, mine: tuple[Trace, int], theirs: tuple[Trace, int], step: int | None = None
) -> Span | None:
    """Window of another trace and rank that begins equally far into the same step, or else into
    its recording.
    """
    spans = [
        _step_window(trace, rank=rank, step=step) if step is not None else None
        for trace, rank in (mine, theirs)
    ]
    if None in spans:
        spans = [_span_of(trace, rank) for trace, rank in (mine, theirs)]
    own, other = spans
    if own is None or other is None:
        return None
    return window[0] + other[0] - own[0], window[1] + other[0] - own[0]


def _events_in(trace: Trace, rank: int, window: Span) -> pl.DataFrame:
    """Rows of ``attribute`` of a rank that overlap a window, with their ``class``."""
    first, last = window
    inside = (pl.col("start_ns") < last) & (first < END)
    events = trace.events.filter(pl.col("rank") == rank, inside)
    return _with_class(events)


def window_summary(trace: Trace, rank: int, window: Span) -> pl.DataFrame:
    """Parts of the time of a rank in a window:

    ``part, ns, share`` (of the window), then ``total``.
    """
    parts = overlap_within(trace, window, rank=rank, waits=True)
    wide = parts.select(**PARTS, total="total_ns")
    long = wide.unpivot(variable_name="part", value_name="ns")
    return long.with_columns(share=(pl.col("ns") / (window[1] - window[0])).round(9))


def _compared(*sides: pl.DataFrame) -> pl.DataFrame:
    """One summary, or two side by side:

    ``part, a_ns, a_share``, and ``b_ns, b_share, delta_ns`` (b - a).
    """
    if not sides:
        return pl.DataFrame()
    both = sides[0].select("part", a_ns="ns", a_share="share")
    if len(sides) > 1:
        right = sides[1].select("part", b_ns="ns", b_share="share")
        both = both.join(right, on="part", how="left", maintain_order="left")
        both = both.with_columns(delta_ns=pl.col("b_ns") - pl.col("a_ns"))
    return both


def lanes(trace: Trace, rank: int, window: Span, *, pixels: int) -> tuple[dict[str, Any], Buffers]:
    """Lanes of a window: first the classes and idle time, then the streams; fuller lanes as
    shares of each pixel.
    """
    events = _events_in(trace, rank, window)
    cut = events.select("stream", "class", "name", "start_ns", "dur_ns").with_columns(_cut(window))
    calls = with_waits(trace, events).drop_nulls("communicates").with_columns(_cut(window))
    matched = {kind: merge(calls.filter(communicates=kind)) for kind in ("wait", "transfer")}
    made = [
        _class_lane(name, rows, window, pixels)
        for name, rows in _classes(cut, matched, window).items()
    ]
    names = cut["name"].unique(maintain_order=True)
    for (stream,), rows in cut.sort("stream", nulls_last=True).group_by(
        "stream", maintain_order=True
    ):
        made.append(_stream_lane(stream, rows, names, window, pixels))
    buffers: Buffers = []
    heads = []
    for head, parts in made:
        heads.append({**head, "buffers": list(range(len(buffers), len(buffers) + len(parts)))})
        buffers += parts
    shown = any(head["kind"] == "spans" and head["stream"] for head in heads)
    whole = {
        "rank": rank,
        "window": list(window),
        "lanes": heads,
        "names": names.to_list() if shown else [],
    }
    return whole, buffers


def _cut(window: Span) -> list[pl.Expr]:
    first, last = window
    start, end = pl.col("start_ns"), END
    begin = start.clip(first, last)
    return [begin.alias("start_ns"), (end.clip(first, last) - begin).alias("dur_ns")]


def _classes(
    cut: pl.DataFrame, matched: dict[str, pl.DataFrame], window: Span
) -> dict[str, pl.DataFrame]:
    """Disjoint intervals of compute, exposed and hidden communication, copies, and idle time."""
    union = {name: merge(cut.filter(pl.col("class") == name)) for name in CLASSES}
    whole = pl.DataFrame({"start_ns": [window[0]], "dur_ns": [window[1] - window[0]]})
    exposed = {
        "exposed waiting for ranks": _without(matched["wait"], union["compute"], window),
        "exposed transfer": _without(
            matched["transfer"], pl.concat([union["compute"], matched["wait"]]), window
        ),
        "exposed transfer or waiting": _without(
            union["communication"], pl.concat([union["compute"], matched["transfer"]]), window
        ),
    }
    return {
        "compute": union["compute"],
        **{name: rows for name, rows in exposed.items() if rows.height},
        "hidden communication": clip_intervals(union["communication"], union["compute"]).drop(
            "window"
        ),
        "copy": union["copy"],
        "idle": _without(whole, cut.select("start_ns", "dur_ns"), window),
    }


def _without(whole: pl.DataFrame, part: pl.DataFrame, window: Span) -> pl.DataFrame:
    """Parts of ``whole`` that no interval of ``part`` covers; all lie in the window."""
    beyond = pl.DataFrame({"start_ns": [window[0] - 1, window[1]], "dur_ns": [1, 1]})
    free = gaps(pl.concat([part, beyond]))
    return clip_intervals(whole, free).drop("window")


def _head(name: str, rows: pl.DataFrame, *, stream: bool) -> dict[str, Any]:
    return {
        "name": name,
        "stream": stream,
        "count": rows.height,
        "total_ns": int(rows["dur_ns"].sum()),
    }


def _class_lane(
    name: str, rows: pl.DataFrame, window: Span, pixels: int
) -> tuple[dict[str, Any], Buffers]:
    head = _head(name, rows, stream=False)
    if rows.height <= pixels:
        return {**head, "kind": "spans"}, [_pairs(rows, window)]
    return {**head, "kind": "bins", "classes": [name]}, [
        array(_covered(rows, window, pixels), "f4")
    ]


def _stream_lane(
    stream: object, rows: pl.DataFrame, names: pl.Series, window: Span, pixels: int
) -> tuple[dict[str, Any], Buffers]:
    head = _head("host" if stream is None else f"stream {stream}", rows, stream=True)
    if rows.height <= pixels:
        rows = rows.sort("start_ns", maintain_order=True)
        index = pl.DataFrame({"name": names}).with_row_index("_name")
        which = rows.select("name").join(index, on="name", how="left", maintain_order="left")[
            "_name"
        ]
        kinds = rows["class"].replace_strict(
            {c: n for n, c in enumerate(CLASSES)}, return_dtype=pl.UInt8
        )
        return {**head, "kind": "spans"}, [
            _pairs(rows, window),
            array(which, "u4"),
            array(kinds, "u1"),
        ]
    parts = [_covered(rows.filter(pl.col("class") == name), window, pixels) for name in CLASSES]
    return {**head, "kind": "bins", "classes": list(CLASSES)}, [array(pl.concat(parts), "f4")]


def _pairs(rows: pl.DataFrame, window: Span) -> memoryview:
    begin = pl.col("start_ns") - window[0]
    both = rows.select(pl.concat_list(begin, begin + pl.col("dur_ns")).explode().cast(pl.Float64))
    return array(both.to_series(), "f8")


def _covered(rows: pl.DataFrame, window: Span, pixels: int) -> pl.Series:
    """Share of each pixel that the intervals cover."""
    length = window[1] - window[0]
    edge = (
        (pl.int_range(pixels + 1, eager=True).cast(pl.Float64) * (length / pixels))
        .round()
        .cast(pl.Int64)
    )
    bins = pl.DataFrame({"start_ns": edge[:-1] + window[0], "dur_ns": edge.diff()[1:]})
    covered = length_within(bins, rows.select("start_ns", "dur_ns"))
    return covered.select((pl.col("busy_ns") / pl.col("dur_ns")).fill_nan(0.0)).to_series()


PART_COLOURS = {
    "compute": theme.COMPUTE,
    "hidden communication": theme.HIDDEN,
    "exposed waiting for ranks": theme.WAIT,
    "exposed transfer": theme.COMMUNICATION,
    "exposed transfer or waiting": theme.UNMATCHED,
    "communication": theme.COMMUNICATION,
    "exposed copy": theme.COPY,
    "copy": theme.COPY,
    "idle": theme.IDLE,
}
_PIXELS = 4_000


class Overlap(Explorer, room="overlap"):
    """Compute, communication, copies and idle time. Made by :func:`overlap`."""

    narrows = ("phase",)

    phase = optional(traitlets.Unicode)
    """Phase of the steps whose bars are shown; all if None."""

    against = traitlets.Unicode("").tag(sync=True)
    """Rank to compare with:

    ``rank:N`` of the same trace, ``other:N`` of the other one, or empty.
    """

    bars = traitlets.Enum(["time", "share"], default_value="time").tag(sync=True)
    """Whether the bars of steps show times or shares."""

    default_rank = optional(traitlets.Int)
    """Rank that is shown while none is chosen."""

    def __init__(self, trace: Trace, other: Trace | None = None, **traits: Any) -> None:
        self.other = other
        super().__init__(trace, **{"colours": COLOURS | {"part": PART_COLOURS}} | traits)

    @property
    def selected(self) -> pl.DataFrame:
        """Device events of the rank in the window, with their ``class``: rows of
        ``trace.events``.
        """
        sides = self._sides()
        return _events_in(*sides[0]) if sides else _with_class(self.trace.events.clear())

    @property
    def summary(self) -> pl.DataFrame:
        """Parts of the window's time:

        ``part, a_ns, a_share``; with a second side also ``b_ns, b_share, delta_ns``.
        """
        return _compared(*(window_summary(*side) for side in self._sides()))

    def picture(self) -> bytes | None:
        """PNG image: overlap of every rank by phase."""
        frame = overlap_of_trace(self.trace, by=("rank", "step", "phase"), waits=True).drop_nulls(
            "step"
        )
        if frame.is_empty():
            frame = overlap_of_trace(self.trace, by=("rank",), waits=True)
        return charts.to_png_bytes(
            charts.overlap(frame, work=self.trace.capture.words["events"]), theme="any"
        )

    def _parts(self) -> list[str]:
        """Parts that one of the traces has, in order; only these are in the legend."""
        traces = [
            trace
            for trace in (self.trace, self.other)
            if trace is not None and not trace.events.is_empty()
        ]
        sums = [
            overlap_of_trace(trace, by=("rank",), waits=True).select(pl.sum(*_USED))
            for trace in traces
        ]
        sums_of_parts = pl.concat(sums).select(**PARTS).sum().row(0, named=True) if sums else {}
        return [name for name in PARTS if name in ("compute", "idle") or sums_of_parts.get(name)]

    def _sides(self) -> list[OverlapSide]:
        """The visible sides, from the traits."""
        rank = self.rank
        if rank is None:
            ranks = self.trace.events["rank"].unique().sort()
            if ranks.is_empty():
                return []
            rank = int(ranks[0])
        return self._sides_of(rank, self.window, self.against, self.step)

    def _sides_of(
        self, rank: int, window: Sequence[float] | None, against: str, step: int | None
    ) -> list[OverlapSide]:
        """The rank in the window (or its whole time), and the side to compare with; empty if it
        ran nothing.
        """
        chosen = _span_of(self.trace, rank)
        if window:
            chosen = round(window[0]), max(round(window[1]), round(window[0]) + 1)
        if chosen is None:
            return []
        mine = (self.trace, rank, chosen)
        where, _, number = against.partition(":")
        if not number:
            return [mine]
        if where == "rank" or self.other is None:
            return [mine, (self.trace, int(number), chosen)]
        matching = _aligned(chosen, mine[:2], (self.other, int(number)), step)
        return [mine, (self.other, int(number), matching)] if matching else [mine]

    @request_handler(
        busy="finding steps and overlap",
        ranks=list[int],
        others=list[int],
        phases=list[str],
        parts=list[str],
        events=str,
    )
    def _on_choices(self) -> Reply:
        ranks = self.trace.events["rank"].unique().sort().to_list()
        others = (
            self.other.events["rank"].unique().sort().to_list() if self.other is not None else []
        )
        if ranks:
            self.default_rank = ranks[0]
        return {
            "ranks": ranks,
            "others": others,
            "phases": theme.in_order(steps_of(self.trace)["phase"].drop_nulls(), theme.PHASES),
            "parts": self._parts(),
            "events": self.trace.capture.words["events"],
        }, []

    @request_handler(
        busy="measuring steps",
        buffers="columns of each side after those of the one before",
        sides=list[Bars],
    )
    def _on_bars(self, *, rank: int, phase: str | None, against: str) -> Reply:
        sides = [("A" if against else "", self.trace, rank)]
        where, _, number = against.partition(":")
        if number:
            sides.append(
                (
                    "B",
                    self.other if where == "other" and self.other is not None else self.trace,
                    int(number),
                )
            )
        message: dict[str, Any] = {"sides": []}
        buffers: Buffers = []
        for label, trace, number_ in sides:
            columns, packed = pack(overlap_bars(trace, rank=number_, phase=phase))
            message["sides"].append(
                {"label": label, "rank": number_, "columns": columns, "buffers": len(packed)}
            )
            buffers += packed
        return message, buffers

    @request_handler(
        busy="cutting the window",
        buffers=(
            "of spans pairs (f8, ns from the window's start), of streams also name (u4) and class"
            " (u1); of bins f4"
        ),
        sides=list[Side],
        summary=list[FrameRow],
        whole=TimeRange | None,
        chosen=bool,
    )
    def _on_lanes(
        self, *, rank: int, window: TimeRange | None, against: str, step: int | None, pixels: float
    ) -> Reply:
        sides = self._sides_of(rank, window, against, step)
        message: dict[str, Any] = {
            "sides": [],
            "summary": _compared(*(window_summary(*side) for side in sides)).to_dicts(),
            "whole": _span_of(self.trace, rank),
            "chosen": window is not None,
        }
        buffers: Buffers = []
        for side in sides:
            head, packed = lanes(*side, pixels=max(50, min(_PIXELS, int(pixels))))
            label = "other trace" if side[0] is self.other else ""
            message["sides"].append({**head, "of": label, "first": len(buffers)})
            buffers += packed
        return message, buffers

    @request_handler()
    def _on_steps(self, *, rank: int, first: int, last: int) -> None:
        """Show the steps from ``first`` to ``last`` of a rank; with a second trace, for the
        longer time of both.
        """
        window = _steps_window(self.trace, rank=rank, first=first, last=last)
        if window is None:
            return
        begin, end = window
        where, _, number = self.against.partition(":")
        if where == "other" and self.other is not None:
            theirs = _steps_window(self.other, rank=int(number), first=first, last=last)
            end = max(end, begin + theirs[1] - theirs[0]) if theirs else end
        with self.hold_sync():
            self.rank, self.step = rank, first
            self.window = [float(begin), float(end)]


def overlap(trace: Trace, *, other: Trace | None = None, **traits: Any) -> Overlap:
    """Compute, communication, copies and idle time of each step, and as lanes of the visible
    window.

    Picking a step, dragging over steps or lanes, and zooming set ``window``. ``.selected`` is the
    frame of the rank's device events in this window, ``.summary`` the parts of its time. A rank can
    be compared with another rank, or with a rank of ``other``. Both windows then have the same
    length, and that of the other trace is aligned at the start of the same step.

    Parameters
    ----------
    trace : Trace
        Any trace; the widget says so if it has no device events.
    other : Trace, optional
        A trace to compare with.
    **traits
        Initial values of ``against, phase, bars, rank, step, window, theme``.
    """
    return Overlap(trace, other, **traits)
