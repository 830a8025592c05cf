"""Rows of the timeline: streams, host threads, counters, requests, and rows of analyses."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from llmprof import names
from llmprof.analyze.collectives.collectives import collectives
from llmprof.analyze.edge import whole_steps
from llmprof.analyze.idle import idle, is_synchronising
from llmprof.analyze.layers import layers
from llmprof.analyze.memory import memory
from llmprof.charts.base import draw, theme
from llmprof.errors import LlmprofError
from llmprof.label.groups import first_of_runs, groups_of
from llmprof.names import kernels as names_kernels
from llmprof.names.matching import by_distinct
from llmprof.replay.critical_path import WORKS, critical_path
from llmprof.replay.graph import MAX_EVENTS, graph, graph_events
from llmprof.text import PART_WORDS
from llmprof.trace import Trace
from llmprof.trace.platforms import UNKNOWN
from llmprof.trace.schema import END
from llmprof.trace.storage import dataset
from llmprof.trace.storage.deferred import Deferred
from llmprof.units import format_share

IntArray = NDArray[np.int64]
Floats = NDArray[np.float64]
Codes = NDArray[np.uint8]
Numbers = NDArray[np.uint32]

BLOCK = 8
"""Events between two running sums that are kept; what lies between is counted event by event."""

COARSE = 64
"""Events between two of which the longest is kept."""

VISIBLE = 40
"""Least height (of 255) of a bin in which anything began."""


class _Paint:
    """Colours of the spans of a lane, and values that are computed from them once."""

    def __init__(self, code: Codes, start: IntArray, end: IntArray) -> None:
        self.code, self._start, self._end = code, start, end

    @cached_property
    def few(self) -> tuple[Codes, Codes]:
        """The colours that occur, and the index of each span's colour among them."""
        present = np.flatnonzero(np.bincount(self.code, minlength=1)).astype(np.uint8)
        place = np.zeros(256, np.uint8)
        place[present] = np.arange(len(present))
        return present, place[self.code]

    @cached_property
    def sums(self) -> Floats:
        """Time of each colour in all spans before each block of them."""
        present, code = self.few
        count, colours = len(code) // BLOCK, len(present)
        some = slice(count * BLOCK)
        place = np.repeat(np.arange(0, count * colours, colours), BLOCK) + code[some]
        of_block = np.bincount(place, (self._end - self._start)[some], minlength=count * colours)
        before = np.zeros((count + 1, colours))
        np.cumsum(of_block.reshape(count, colours), axis=0, out=before[1:])
        return before


class Lane:
    """Spans in the order of their start, each with a colour, a name and an id."""

    def __init__(
        self,
        start: IntArray,
        end: IntArray,
        codes: Mapping[str, Codes],
        name: Numbers,
        id: Numbers,  # noqa: A002
    ) -> None:
        self.start, self.end, self.name, self.id = start, end, name, id
        self.waits: Codes | None = None
        """Share of each span, from its start, that waits for another rank (of 255); None where
        none does.
        """

        self.waiting: Lane | None = None
        """These parts as spans."""

        self._paints = {by: _Paint(code, start, end) for by, code in codes.items()}
        in_order = (end[1:] >= end[:-1]).all()  # mostly, and then there is no second array
        self._reach = end if in_order else np.maximum.accumulate(end)

    def __len__(self) -> int:
        return len(self.start)

    @property
    def reach(self) -> int:
        """Last end (ns); the lane has spans."""
        return int(self._reach[-1])

    def overlaps(self, slack: int) -> int:
        """Number of spans that begin before an earlier one ends, by more than this (ns)."""
        return int(np.count_nonzero(self._reach[:-1] - self.start[1:] > slack))

    def _paint(self, by: str) -> _Paint:
        return self._paints.get(by) or next(iter(self._paints.values()))

    def code(self, by: str) -> Codes:
        """Colour of each span if colours show ``by``."""
        return self._paint(by).code

    def present(self, by: str) -> list[int]:
        """Colours that the lane has."""
        colours: list[int] = self._paint(by).few[0].tolist()
        return colours

    def recolour(self, by: str, codes: Codes) -> None:
        """Set the colours of one meaning, by the ids of the spans."""
        self._paints[by] = _Paint(codes[self.id], self.start, self.end)

    def wait(self, shares: Codes) -> None:
        """Set the share of each span (of 255) that waits for another rank, from its start on."""
        if not shares.any():
            return
        self.waits = shares
        some = np.flatnonzero(shares)
        until = self.start[some] + (
            (self.end[some] - self.start[some]) * (shares[some] / 255)
        ).astype(np.int64)
        plain = {"waits": np.zeros(len(some), np.uint8)}
        self.waiting = Lane(self.start[some], until, plain, self.name[some], self.id[some])

    def within(self, lo: float, hi: float) -> tuple[int, int]:
        """First and last (exclusive) span that touches a window."""
        first = int(np.searchsorted(self._reach, whole_ns(np.floor(lo)), "right"))
        return first, max(first, int(np.searchsorted(self.start, whole_ns(np.ceil(hi)), "left")))

    @cached_property
    def _longest(self) -> IntArray:
        longest: IntArray = np.maximum.reduceat(
            self.end - self.start, np.arange(0, len(self), COARSE)
        )
        return longest

    def longer(self, first: int, stop: int, least: float) -> IntArray:
        """Spans from first to stop (exclusive) that last at least so long (ns)."""
        if first >= stop:
            return np.empty(0, np.int64)
        blocks = first // COARSE + np.flatnonzero(
            self._longest[first // COARSE : -(-stop // COARSE)] >= least
        )
        k: IntArray = (blocks[:, None] * COARSE + np.arange(COARSE)).ravel()
        k = k[(k >= first) & (k < stop)]
        return k[self.end[k] - self.start[k] >= least]

    def at(self, time: float) -> int | None:
        """Span that covers a time, or None."""
        k = int(np.searchsorted(self.start, whole_ns(np.floor(time)), "right")) - 1
        return k if k >= 0 and time < self.end[k] else None

    def bins(self, lo: float, hi: float, columns: int, by: str) -> tuple[Codes, Codes]:
        """Busy share of each of the equal columns of a window, and the colour that fills most of
        it.
        """
        edges = np.linspace(lo, hi, columns + 1)
        begun = np.searchsorted(self.start, whole_ns(np.ceil(edges)), "left")
        paint = self._paint(by)
        of_lane, code = paint.few
        total = np.maximum(np.diff(self._until(edges, begun, paint), axis=0), 0)
        began = np.diff(begun) > 0
        first = code[np.minimum(begun[:-1], len(self) - 1)]
        main = np.where(total.max(axis=1) > 0, total.argmax(axis=1), first)
        busy = np.clip(total.sum(axis=1) / max((hi - lo) / columns, 1e-9), 0, 1) * 255
        return (
            np.maximum(np.ceil(busy), np.where(began, VISIBLE, 0)).astype(np.uint8),
            of_lane[main],
        )

    def _until(self, edges: Floats, begun: IntArray, paint: _Paint) -> Floats:
        """Time of each colour (columns) before each edge (rows), before which ``begun`` spans
        begin.
        """
        column, code = np.arange(len(edges)), paint.few[1]
        block = begun // BLOCK
        total = paint.sums[block]
        between = block[:, None] * BLOCK + np.arange(BLOCK - 1)
        row, _ = counted = np.nonzero(between < begun[:, None])
        k = between[counted]
        width = total.shape[1]
        some = np.bincount(row * width + code[k], self.end[k] - self.start[k], minlength=total.size)
        total += some.reshape(total.shape)
        last = np.maximum(begun - 1, 0)
        beyond = np.where(begun > 0, np.maximum(self.end[last] - edges, 0.0), 0.0)
        total[column, code[last]] -= beyond
        return total


def whole_ns(times: Any) -> IntArray:
    """Times as the whole numbers that starts and ends are: numpy copies them all to compare them
    with fractions.
    """
    numbers: IntArray = np.clip(times, -(2.0**62), 2.0**62).astype(np.int64)
    return numbers


def levels(start: IntArray, end: IntArray, *, slack: int = 0, most: int = 24) -> NDArray[np.int64]:
    """Depth of nested spans: the number of spans that are open when each span begins."""
    over = np.maximum(end - slack, start)
    over.sort()
    depth: IntArray = np.arange(len(start)) - np.searchsorted(over, start, "right")
    return depth.clip(0, most - 1)


PATH_GROUP: Final = -3
"""Number of the group of the critical path, which runs over all ranks, where ranks have theirs."""

PATH_KIND: Final = "critical_path"

ON_HOST: Final = ("host call", "host", "device held")
"""Parts in which the host does; they are called as the call or operator is, and all others as
the part.
"""

_MEANS: Final = {
    "compute": "a kernel",
    "copy": "a copy",
    "transfer": "a collective, after its last rank arrived",
    "communication": "a collective whose waiting for other ranks is not known",
    "device gap": "between two kernels of a stream",
    "stream wait": "for work on another stream",
    "launch": "from the host's call to the start on the device",
    "host call": "a call of the device runtime",
    "host": "between two such calls",
    "synchronise": "from the end of work to the return of the call that waited for it",
    "scheduler": "from the arrival of a result to the first call of a later step",
    "device held": "launched, but a call of the host held the device",
    "unexplained": "nothing that was recorded leads to it",
}
_KNOWN: Final = {
    "recorded": "recorded",
    "matched": "matched by the order of calls",
    "assumed": "assumed from times alone",
}


def path_row(
    trace: Trace, keys: Keys, span_names: SpanNames, say: Callable[[str], None] = lambda _: None
) -> TimelineRow:
    """The row of the critical path; where several ranks lie on it a second level says which."""
    row = TimelineRow(PATH_KIND, PATH_GROUP, "critical path")
    if (events := graph_events(trace)) > MAX_EVENTS:
        row.note = (
            f"not computed: {events:,} events, by itself of {MAX_EVENTS:,} at most"
            " (analyze.critical_path computes it)"
        )
        return row
    try:
        say("finding what each event waited for")
        graph(trace)
        say("following the critical path")
        path = critical_path(trace)
    except LlmprofError as error:
        row.note = f"no critical path: {error.found}"
        return row
    if not path.height:
        row.note = "no critical path: no step takes any time on a device"
        return row
    row.lanes = _lanes(path, keys, span_names)
    return row


def _lanes(path: pl.DataFrame, keys: Keys, span_names: SpanNames) -> list[Lane]:
    """Parts on one line; below, where there are several, the ranks that they are on."""
    part = path["part"].cast(pl.String)
    works = part.is_in(WORKS)
    of_work = span_names.numbers(path["name"].filter(works), names_kernels.function)
    called = pl.when(part.is_in(ON_HOST)).then("name")
    of_rest = span_names.numbers(path.select(pl.coalesce(called, part)).to_series().filter(~works))
    number = np.empty(path.height, np.uint32)
    number[works.to_numpy()], number[~works.to_numpy()] = of_work.to_numpy(), of_rest.to_numpy()
    made = path.select("rank", "start_ns", "dur_ns").with_columns(
        keys.codes("path", part),
        name=pl.Series(number),
        id=pl.int_range(path.height, dtype=pl.UInt32),
    )
    made = made.sort("start_ns", maintain_order=True)
    lanes = spans(made, slack=1 << 62, by="path")
    if made["rank"].n_unique() == 1:
        return lanes
    run = pl.col("rank").rle_id()
    of_rank = made.group_by(run=run, maintain_order=True).agg(
        pl.first("rank", "start_ns", "id"), end=END.max()
    )
    odd = pl.when(pl.col("rank") % 2 == 1).then(pl.lit("odd")).otherwise(pl.lit("even"))
    ranks = of_rank.with_columns(
        keys.codes("layer", of_rank.select(odd).to_series()),
        span_names.numbers(of_rank.select(pl.format("rank {}", "rank")).to_series()),
        dur_ns=pl.col("end") - pl.col("start_ns"),
    )
    return [*lanes, *spans(ranks, slack=1 << 62, by="path")]


def path_facts(path: pl.DataFrame, number: int) -> list[tuple[str, str]]:
    """What a part of the path is, in words."""
    record = path.row(number, named=True)
    part, step, evidence = record["part"], record["step"], record["evidence"]
    whole = int(path.filter(step=step)["dur_ns"].sum())
    facts = [("part", f"{part}: {_MEANS[part]}")]
    if record["phase"] is not None:
        facts.append(("step", f"{step} · {record['phase']}"))
        facts.append(("of its step", format_share(record["dur_ns"] / whole)))
    else:
        facts.append(("of the path", format_share(record["dur_ns"] / whole)))
    facts.append(("rank", str(record["rank"])))
    if record["name"] is not None and part not in WORKS:  # such a part is called as its work is
        label = "before" if record["event"] is not None else "in" if part == "host" else "call"
        facts.append((label, record["name"]))
    facts += [(name, str(record[name])) for name in ("layer", "stage") if record[name] is not None]
    if evidence is not None:
        facts.append(("evidence", _KNOWN[evidence]))
    return facts


def led_to(record: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Where the call or operator stands that a part on the host is, or leads to: kinds of rows
    and times to look at.
    """
    start, end = float(record["start_ns"]), float(record["start_ns"] + record["dur_ns"])
    middle = (start + end) / 2
    if record["part"] == "host call":
        return [("runtime", middle)]
    if record["part"] == "host":
        return [("ops", middle), ("python", middle), ("markers", middle), ("runtime", end)]
    return [("runtime", end - 1), ("runtime", end)]


LIMIT = 160
"""Most characters of a name in a label; the details of a selected event have the full name."""

_HOST = ("#8FA3B8", "#A9B7C6", "#7D93AB", "#B9C4CF", "#96A9A9", "#A7A3B8")
_OWN: dict[tuple[str, str], str] = {
    ("layer", "even"): "#AEB9C5",
    ("layer", "odd"): "#CBD3DC",
    ("collective", PART_WORDS["wait"]): theme.WAIT,
    ("collective", PART_WORDS["transfer"]): theme.COMMUNICATION,
    ("collective", PART_WORDS["wait or transfer"]): "#E39B63",
    ("category", "waits for the device"): theme.CAUSES["sync"],
    ("category", "marker"): "#7FA7A1",
    ("request", "waiting"): theme.WAIT,
    ("request", "prefill"): theme.PHASES["prefill"],
    ("request", "prefill with others"): "#E2A36F",
    ("request", "decode"): theme.PHASES["decode"],
    ("request", "decode beside prefill"): theme.COMMUNICATION,
    ("request", "left out"): theme.REST,
}


class Keys:
    """Colours of the timeline by number: each is for a name of a kind (stage, category, phase,
    cause and others).
    """

    greys = len(_HOST)

    def __init__(self) -> None:
        tables = {
            "stage": theme.STAGES,
            "category": theme.CATEGORIES,
            "phase": theme.PHASES,
            "cause": {PART_WORDS[cause]: colour for cause, colour in theme.CAUSES.items()},
            "path": theme.PATH,
        }
        self.table = {
            (kind, name): colour for kind, table in tables.items() for name, colour in table.items()
        }
        self.table |= {("category", f"host {i}"): colour for i, colour in enumerate(_HOST)} | _OWN
        self._numbers = {key: number for number, key in enumerate(self.table)}

    def __len__(self) -> int:
        return len(self.table)

    def codes(self, kind: str, values: pl.Series) -> pl.Series:
        """Number of the colour of each name; the number of ``other`` if a name is null or
        unknown.
        """
        number_of = {
            name: number
            for (kind_of_name, name), number in self._numbers.items()
            if kind_of_name == kind
        }
        rest = number_of.get("other", 0)
        codes = by_distinct(
            values, lambda each: pl.Series([number_of.get(n, rest) for n in each], dtype=pl.UInt8)
        )
        return codes.fill_null(rest).alias("code")

    def described(self) -> list[dict[str, str]]:
        """Kind, name and colour of each number."""
        return [
            {"kind": kind, "name": name, "colour": colour}
            for (kind, name), colour in self.table.items()
        ]


class SpanNames:
    """Names of spans by number."""

    def __init__(self) -> None:
        self.full: list[str] = []
        self.short: list[str] = []
        self._numbers: dict[str, int] = {}
        self._lock = threading.Lock()  # rows are put together in the background, too

    def numbers(
        self, values: pl.Series, shorten: Callable[[pl.Series], pl.Series] | None = None
    ) -> pl.Series:
        """Number of each name; new names get new numbers, and ``shorten`` makes their labels."""

        def numbered(distinct: tuple[str, ...]) -> pl.Series:
            with self._lock:
                new = [name for name in distinct if name not in self._numbers]
                labels = shorten(pl.Series(new)) if shorten is not None and new else new
                for name, label in zip(new, labels, strict=True):
                    self._numbers[name] = len(self.full)
                    self.full.append(name)
                    self.short.append((label or name)[:LIMIT])
            return pl.Series([self._numbers[name] for name in distinct], dtype=pl.UInt32)

        known = values.fill_null("") if values.null_count() else values
        return by_distinct(known, numbered).alias("name")


SLACK_NS = 200
"""Kernels of one stream that overlap by less than this (ns) are drawn on one line, since
profilers round times.
"""

RARE = 0.01
"""If a smaller share than this of a stream's kernels overlap, all are drawn on one line."""


@dataclass
class TimelineRow:
    """One row of the timeline; ``kind`` says which frame the ids of its spans count, ``lanes``
    are its levels.
    """

    kind: str
    rank: int
    label: str
    lanes: list[Lane] = field(default_factory=list)
    thread: int | None = None
    stream: tuple[int | None, int | None] | None = None
    note: str = ""
    samples: tuple[IntArray, np.ndarray] | None = None
    unit: str = ""
    waiting: int = 0
    """Spans that have still to be put into lanes."""

    @property
    def count(self) -> int:
        """Spans or samples of the row."""
        return (
            self.waiting + sum(map(len, self.lanes)) + (len(self.samples[0]) if self.samples else 0)
        )


class DeviceEvents(NamedTuple):
    """Kernels and copies of some ranks as they were recorded, with categorical texts, and their
    order in ``trace.events``.
    """

    rows: pl.DataFrame
    order: Numbers

    @property
    def ordered(self) -> pl.DataFrame:
        """The rows in this order."""
        return self.rows[self.order]


def timeline_events(trace: Trace) -> list[DeviceEvents]:
    """Kernels and copies by rank, without labels that take time, in the order of
    :func:`~llmprof.label.activity.activity`.
    """
    tables = [name for name in ("kernels", "copies") if name in trace.table_names]
    if not tables:
        coded = pl.col("name", "category").cast(pl.Categorical)
        rows = trace.events if trace.has("ops") else NO_EVENTS
        rows = rows.select(NO_EVENTS.columns).with_columns(coded)
        whole = DeviceEvents(rows, np.arange(rows.height, dtype=np.uint32))
        return [whole] if rows.height else []
    columns = [name for name in NO_EVENTS.columns if name != "category"]
    of_table = [
        _reader_of(trace, name, columns if name == "kernels" else [*columns, "kind"])
        for name in tables
    ]
    count = sum(map(trace.capture.height, tables))
    every = trace.ranks
    at_once = max(1, _AT_ONCE * len(every) // max(1, count))
    ranks = [every[i : i + at_once] for i in range(0, len(every), at_once)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        made = pool.map(lambda some: _of_ranks([read(some) for read in of_table]), ranks)
        return [part for part in made if part.rows.height]


_AT_ONCE: Final = 1 << 20
"""Events of so many ranks are put into rows together, in memory that the next ones use again."""


def _reader_of(
    trace: Trace, table: str, columns: list[str]
) -> Callable[[Sequence[int]], pl.DataFrame]:
    """Some columns of a table of some ranks; from a dataset only these are read."""
    tables = trace._tables
    if isinstance(tables, Deferred) and table not in tables.loaded:
        return lambda ranks: tables.narrow(ranks=ranks).columns(table, columns)
    frame = trace.table(table).select(columns)
    begins = first_of_runs(frame, ["rank"])
    runs = zip(frame["rank"][begins], begins, np.diff(begins, append=frame.height), strict=True)
    part = {rank: frame.slice(begin, length) for rank, begin, length in runs}
    return lambda ranks: pl.concat(part.get(rank, frame.clear()) for rank in ranks)


def _of_ranks(tables: list[pl.DataFrame]) -> DeviceEvents:
    """Kernels and copies of some ranks, with their categories."""
    parts = []
    for frame in tables:
        frame = frame.with_columns(pl.col("name").cast(pl.Categorical))
        if "kind" in frame.columns:
            copied = pl.when(pl.col("kind") == "memset").then(pl.lit("fill"))
            category = copied.otherwise(pl.lit("copy")).cast(pl.Categorical)
            frame = frame.with_columns(category=category).drop("kind")
        else:
            frame = frame.with_columns(by_distinct(frame["name"], _categories))
        parts.append(frame)
    rows = pl.concat(parts, rechunk=True)
    start, rank = rows["start_ns"].to_numpy(), rows["rank"].to_numpy()
    order = np.lexsort((start, rank))  # in time that is linear in rows that are in order
    start, rank = start[order], rank[order]
    same = (start[1:] == start[:-1]) & (rank[1:] == rank[:-1])
    if same.any():  # by stream, an unknown one before others
        tied = np.flatnonzero(np.append(same, False) | np.append(False, same))
        stream = rows["stream"][order[tied]].fill_null(-(2**63)).to_numpy()
        order[tied] = order[tied][np.lexsort((stream, start[tied], rank[tied]))]
    return DeviceEvents(rows, order.astype(np.uint32))


def _categories(distinct: tuple[str, ...]) -> pl.Series:
    """Category of each name of a kernel."""
    return names.categories(pl.Series(distinct, dtype=pl.String)).cast(pl.Categorical)


_COUNTED = pl.Schema(
    {
        "rank": pl.Int32,
        "device": pl.Int32,
        "time_ns": pl.Int64,
        "name": pl.String,
        "value": pl.Float64,
        "unit": pl.String,
    }
)
NO_EVENTS = pl.DataFrame(
    schema={
        "rank": pl.Int32,
        "device": pl.Int32,
        "stream": pl.Int64,
        "start_ns": pl.Int64,
        "dur_ns": pl.Int64,
        "name": pl.Categorical,
        "category": pl.Categorical,
    }
)


def stream_rows(
    events: Sequence[DeviceEvents], keys: Keys, texts: SpanNames, *, on_host: bool, library: str
) -> Iterator[TimelineRow]:
    """A row for each stream of each device (or thread, where operators stand in for it), the
    busiest first; of communication alone it is named for the ``library``.
    """
    word = "thread" if on_host else "stream"
    first, made = 0, []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for rows, order in events:
            name = texts.numbers(rows["name"], None if on_host else names.readable)
            of_ranks = rows.select(
                *_LANE,
                "start_ns",
                "dur_ns",
                name=name,
                code=keys.codes("category", rows["category"]),
                sent=rows["category"] == "collective",
            )
            made.append(pool.submit(_streams, of_ranks, order, first, (word, library)))
            first += rows.height
    for part in made:
        yield from part.result()


_LANE = ["rank", "device", "stream"]


def _streams(
    made: pl.DataFrame, order: Numbers, first: int, words: tuple[str, str]
) -> list[TimelineRow]:
    """Rows of the streams of some ranks, whose first event has the number ``first``."""
    word, library = words
    lane = made[_LANE][order]
    begins, groups, number = groups_of(lane, _LANE)
    of_run = np.arange(len(begins)) if number is None else number
    of_run = of_run.astype(np.min_scalar_type(groups.height))  # numpy sorts short numbers sooner
    lengths = np.diff(begins, append=lane.height)
    places = np.argsort(np.repeat(of_run, lengths), kind="stable").astype(np.uint32)
    stop = np.bincount(of_run, lengths).cumsum().astype(np.int64)
    chosen = sorted(zip(np.split(places, stop[:-1]), groups.rows(), strict=True), key=_first)
    rows = []
    for place, (rank, device, stream) in chosen:
        part = made[order[place]].with_columns(id=place + np.uint32(first))
        label = f"no {word}" if stream is None else f"{word} {stream}"
        if part["sent"].all():
            label = f"{label} · {library}"
        lanes = spans(part, slack=SLACK_NS, by="category")
        rows.append(TimelineRow("stream", rank, label, lanes, stream=(device, stream)))
    return rows


def _first(group: tuple[Numbers, tuple[Any, ...]]) -> int:
    return int(group[0][0])


CALLS = ("modules", "python")
"""Kinds of rows that are Python functions in the table of operators: torch.nn modules, and all
others.
"""

DEPTH = 250
"""Most levels of calls of Python functions; operators and other spans have fewer."""

_LABELS = {"modules": "modules", "python": "Python", "ops": "operators"}


def _label(trace: Trace, kind: str) -> str:
    """A row of a thread, as its platform calls what is in it."""
    platform = trace.capture.platform
    runtime = platform.words["runtime"] if platform is not UNKNOWN else kind
    return f"{runtime} calls" if kind == "runtime" else _LABELS.get(kind, kind)


def _of_host(trace: Trace, kind: str) -> pl.DataFrame:
    """Rows of one kind in a trace's table, with their row number as ``id``."""
    table, which = dataset.HOST_ROWS[kind]
    return trace.table(table).with_row_index("id").filter(which)


def waiting_rows(trace: Trace) -> tuple[list[TimelineRow], float, float]:
    """The rows of :func:`host_rows` without their lanes, and the first start and the last end
    (ns) of their spans.
    """
    tables = trace._tables
    found = tables.threads() if isinstance(tables, Deferred) else dataset.thread_spans(tables)
    rows = [
        TimelineRow(kind, rank, _label(trace, kind), thread=thread, note="…", waiting=count)
        for rank, kind, thread, count, _, _ in found.iter_rows()
    ]
    first, last = found.select(
        pl.min("first_ns").fill_null(np.inf), pl.max("last_ns").fill_null(-np.inf)
    ).row(0)
    return rows, first, last


def host_rows(trace: Trace, keys: Keys, texts: SpanNames) -> Iterator[TimelineRow]:
    """Rows for the markers, modules, Python functions, operators and runtime calls of each
    thread.
    """
    for table in ("markers", *CALLS, "ops", "runtime"):
        if not trace.has("ops" if table in CALLS else table):
            continue
        frame = _of_host(trace, table)
        if not frame.height:
            continue
        number = texts.numbers(frame["name"])
        present = number.unique()
        kinds = pl.Series([texts.full[n] for n in present], dtype=pl.String)
        colours = np.zeros(len(texts.full), np.uint8)
        colours[present.to_numpy()] = _host_colours(table, kinds, keys).to_numpy()
        made = frame.select("rank", "thread", "start_ns", "dur_ns", "id", name=number)
        made = made.with_columns(code=pl.Series(colours[number.to_numpy()]))
        for (rank, thread), part in made.partition_by("rank", "thread", as_dict=True).items():
            ordered = part.sort("start_ns", -pl.col("dur_ns"))
            lanes = spans(ordered, most=DEPTH) if table in CALLS else spans(ordered)
            yield TimelineRow(table, rank, _label(trace, table), lanes, thread=thread)


def counter_rows(trace: Trace) -> Iterator[TimelineRow]:
    """A row for each counter of each device, and for the memory that is allocated and reserved."""
    parts = [pl.DataFrame(schema=_COUNTED)]
    if trace.has("counters"):
        parts.append(trace.counters.select(_COUNTED.names()))
    if trace.has("memory"):
        held = memory(trace, by="time").filter("on_device")
        for name in ("allocated", "reserved"):
            some = held.drop_nulls(f"{name}_bytes")
            parts.append(
                some.select(
                    "rank",
                    "device",
                    "time_ns",
                    name=pl.lit(name),
                    value=f"{name}_bytes",
                    unit=pl.lit("B"),
                ).cast(_COUNTED)
            )
    groups = pl.concat(parts).sort("time_ns", maintain_order=True)
    for part in groups.partition_by("rank", "device", "name", maintain_order=True):
        rank, device, name, unit = part.select("rank", "device", "name", "unit").row(0)
        alone = device is None or groups.filter(rank=rank)["device"].drop_nulls().n_unique() == 1
        label = name if alone else f"{name} · {device}"
        samples = part["time_ns"].to_numpy(), part["value"].to_numpy()
        yield TimelineRow("counter", rank, label, samples=samples, unit=unit or "")


def spans(part: pl.DataFrame, *, slack: int = 0, by: str = "own", most: int = 24) -> list[Lane]:
    """Lanes of a row, one a level: ``start_ns, dur_ns, code, name, id``, sorted by start."""
    start = part["start_ns"].to_numpy()
    end = start + np.maximum(part["dur_ns"].to_numpy(), 0)
    code: Codes = part["code"].to_numpy()
    name: Numbers = part["name"].to_numpy()
    number: Numbers = part["id"].to_numpy()
    lane = Lane(start, end, {by: code}, name, number)
    if lane.overlaps(slack) <= (RARE * len(lane) if slack else 0):
        return [lane]
    depth = levels(start, end, slack=slack, most=most)
    order = np.argsort(depth, kind="stable")
    bounds = np.searchsorted(depth[order], np.arange(int(depth.max()) + 2))
    chosen = [order[a:b] for a, b in pairwise(bounds)]
    return [Lane(start[i], end[i], {by: code[i]}, name[i], number[i]) for i in chosen if len(i)]


def _host_colours(table: str, kinds: pl.Series, keys: Keys) -> pl.Series:
    """Colour of each name on the host: that of its category or of synchronisation, otherwise one
    of a few greys.
    """
    frame = pl.DataFrame({"name": kinds})
    grey = (frame["name"].hash(0) % keys.greys).cast(pl.Int64)
    if table == "ops":
        categories = names.categories(kinds)
        colours = [
            f"host {g}" if c == "other" else c for g, c in zip(grey, categories, strict=True)
        ]
    elif table in CALLS:
        colours = [f"host {g}" for g in grey]
    elif table == "runtime":
        waits = frame.select(is_synchronising(pl.col("name"))).to_series()
        colours = [
            "waits for the device" if w else f"host {g}" for w, g in zip(waits, grey, strict=True)
        ]
    else:
        colours = ["marker"] * kinds.len()
    return keys.codes("category", pl.Series(colours, dtype=pl.String))


KINDS = {"steps": "Steps", "layers": "Layers", "collectives": "Collectives", "idle": "Idle"}
"""Rows by kind, from the top, and their labels."""

NONE = {"steps": "no steps were found", **draw.NONE}
"""Why a row has no spans."""


def found_rows(
    trace: Trace, keys: Keys, texts: SpanNames, say: Callable[[str], None] = lambda _: None
) -> Iterator[tuple[str, dict[int, list[Lane]]]]:
    """Lanes of each kind by rank; ``say`` is called with the description of each computation."""
    for kind, make in (
        ("steps", _steps),
        ("layers", _layers),
        ("collectives", _collectives),
        ("idle", _idle),
    ):
        say(f"finding {KINDS[kind].lower()}")
        yield kind, make(trace, keys, texts)


def wait_shares(trace: Trace, events: pl.DataFrame) -> Codes:
    """Share (of 255) of each device event that waits for the last rank of its collective, by
    event.
    """
    calls = (
        collectives(trace)
        .filter(pl.col("wait_ns") > 0)
        .select("rank", "start_ns", "dur_ns", "wait_ns")
    )
    keys = ["rank", "start_ns", "dur_ns"]
    found = calls.unique(keys).join(events.select("event", *keys), on=keys)
    share = found.select(
        (255 * pl.col("wait_ns") / pl.col("dur_ns")).round().clip(0, 255).fill_nan(0).fill_null(0)
    )
    shares: Codes = np.zeros(events.height, np.uint8)
    shares[found["event"].to_numpy()] = share.to_series().to_numpy()
    return shares


def _steps(trace: Trace, keys: Keys, texts: SpanNames) -> dict[int, list[Lane]]:
    """Steps at their times on the device; on ranks without device events, at their times on the
    host.
    """
    frame = whole_steps(trace).with_row_index("id")
    on_device = pl.col("start_ns").is_not_null()
    frame = frame.filter(on_device | ~on_device.any().over("rank"))
    made = frame.select(
        "rank",
        "id",
        start_ns=pl.coalesce("start_ns", "host_start_ns"),
        dur_ns=pl.when(on_device).then("dur_ns").otherwise("host_dur_ns").fill_null(0),
        name=pl.concat_str(
            pl.format("step {}", "step"),
            pl.col("phase").replace("other", None),
            separator=" · ",
            ignore_nulls=True,
        ),
        code=keys.codes("phase", frame["phase"]),
    ).drop_nulls("start_ns")
    return _by_rank(made, texts, flat=True)


def _layers(trace: Trace, keys: Keys, texts: SpanNames) -> dict[int, list[Lane]]:
    """Layers on one line, their stages on the next."""
    whole = layers(trace).with_row_index("id")
    parity = pl.when(pl.col("layer") % 2 == 0).then(pl.lit("even")).otherwise(pl.lit("odd"))
    of_layer = whole.select(parity).to_series()
    upper = whole.select(
        "rank",
        "id",
        "start_ns",
        "dur_ns",
        name=pl.format("layer {}", "layer"),
        code=keys.codes("layer", of_layer),
    )
    stages = layers(trace, stages=True).with_row_index("id", offset=whole.height)
    lower = stages.select(
        "rank", "id", "start_ns", "dur_ns", name="stage", code=keys.codes("stage", stages["stage"])
    )
    by_rank = _by_rank(upper, texts, flat=True)
    for rank, lanes in _by_rank(lower, texts, flat=True).items():
        by_rank.setdefault(rank, []).extend(lanes)
    return by_rank


def _collectives(trace: Trace, keys: Keys, texts: SpanNames) -> dict[int, list[Lane]]:
    """Collectives, each divided into waiting for the last rank and transfer, if these are known."""
    frame = collectives(trace).with_row_index("id")
    name = pl.col("kind").fill_null("collective")
    wait = frame.filter(pl.col("wait_ns") > 0).select(
        "rank",
        "id",
        "start_ns",
        dur_ns="wait_ns",
        name=pl.format("{}: waits for rank {}", name, "last_rank"),
        part=pl.lit(PART_WORDS["wait"]),
    )
    matched = pl.col("wait_ns").is_not_null()
    rest = frame.filter(~matched | (pl.col("transfer_ns") > 0)).select(
        "rank",
        "id",
        start_ns=pl.col("start_ns") + pl.col("wait_ns").fill_null(0),
        dur_ns=pl.coalesce("transfer_ns", "dur_ns"),
        name=name,
        part=pl.when(matched)
        .then(pl.lit("transfer"))
        .otherwise(pl.lit("wait or transfer"))
        .replace(PART_WORDS),
    )
    both = pl.concat([wait, rest]).sort("rank", "start_ns", maintain_order=True)
    made = _by_rank(both.with_columns(keys.codes("collective", both["part"])), texts)
    waiting = keys.codes("collective", pl.Series([PART_WORDS["wait"]]))[0]
    for lane in (lane for lanes in made.values() for lane in lanes):
        lane.wait(np.where(lane.code("own") == waiting, 255, 0).astype(np.uint8))
    return made


def _idle(trace: Trace, keys: Keys, texts: SpanNames) -> dict[int, list[Lane]]:
    """Gaps of each device, by cause; a host without a device has none."""
    frame = idle(trace).with_row_index("id")
    frame = frame.clear() if trace.capture.on_host else frame
    causes = frame["cause"].replace(PART_WORDS)
    made = frame.select(
        "rank",
        "id",
        "start_ns",
        "dur_ns",
        name=pl.format("{} (idle)", causes),  # a narrow bar shows the beginning
        code=keys.codes("cause", causes),
    )
    return _by_rank(made, texts)


def _by_rank(made: pl.DataFrame, texts: SpanNames, *, flat: bool = False) -> dict[int, list[Lane]]:
    made = made.sort("rank", "start_ns", -pl.col("dur_ns"))
    made = made.with_columns(texts.numbers(made["name"]))
    slack = 1 << 62 if flat else 0
    return {
        rank: spans(part, slack=slack)
        for (rank,), part in made.partition_by("rank", as_dict=True).items()
    }


def pending(rank: int) -> list[TimelineRow]:
    """The rows of a rank before they are found."""
    return [TimelineRow(kind, rank, label, note="…") for kind, label in KINDS.items()]


REQUEST_GROUP: Final = -2
"""Number of the group of requests, in place of a rank (the host's number is -1)."""

REQUEST_KIND: Final = "requests"

QUERY_GROUP: Final = -4
"""Number of the group of rows that are results of queries."""

QUERY_KIND: Final = "query"
"""Their kind is this word and a number."""


def request_rows(frame: pl.DataFrame, keys: Keys, span_names: SpanNames) -> list[TimelineRow]:
    """A row for each request, by arrival."""
    step = (
        pl.when(pl.col("step").is_not_null())
        .then(pl.format(", step {}", "step"))
        .otherwise(pl.lit(""))
    )
    tokens = (
        pl.when(pl.col("tokens") > 1)
        .then(pl.format(" of {} tokens", "tokens"))
        .otherwise(pl.lit(""))
    )
    made = frame.with_row_index("id_").select(
        *("request", "start_ns", "dur_ns"),
        id="id_",
        name=span_names.numbers(
            frame.select(pl.format("{}{}{}", "part", tokens, step)).to_series()
        ),
        code=keys.codes("request", frame["part"]),
    )
    order = made.group_by("request").agg(pl.min("start_ns")).sort("start_ns", "request")["request"]
    parts = made.sort("start_ns", maintain_order=True).partition_by("request", as_dict=True)
    return [
        TimelineRow(
            REQUEST_KIND, REQUEST_GROUP, f"request {request}", spans(parts[request,], slack=1 << 62)
        )
        for request in order
    ]
