"""Data of the timeline: its rows, and the events of a selected range of time as frames."""

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from llmprof.analyze.collectives.collectives import collectives
from llmprof.analyze.idle.host import innermost_within
from llmprof.errors import AnalysisError, NotCapturedError
from llmprof.explore.timeline import rows as timeline_rows
from llmprof.explore.timeline.rows import (
    CALLS,
    NO_EVENTS,
    PATH_KIND,
    QUERY_GROUP,
    REQUEST_GROUP,
    REQUEST_KIND,
    Keys,
    Lane,
    SpanNames,
    TimelineRow,
    counter_rows,
    host_rows,
    path_row,
    request_rows,
    stream_rows,
    timeline_events,
    waiting_rows,
    whole_ns,
)
from llmprof.label.intervals import union_length
from llmprof.names import kernels as names_kernels
from llmprof.trace import Trace
from llmprof.trace.platforms import UNKNOWN
from llmprof.trace.schema import END
from llmprof.units import format_ns

MOST_WAITING: Final = 0.1
"""The late rank is named if another rank waits for at least this share of its time."""

LATER: Final = 1_000_000
"""Spans on the host from which on they are put into rows after the first picture, which does not
show them.
"""

MOST_FOUND: Final = 30_000_000
"""Most rows of a dataset that are loaded without being asked for (7 GB); of a larger one only
the streams are shown.
"""

_TABLES: Final = ("markers", "ops", "runtime")

NOT_LOADED: Final = "not loaded"

HOST = ("markers", *CALLS, "ops", "runtime")
"""Kinds of rows of a thread, from the top."""


class TimelineData:
    """Rows of a trace. Rows of its tables are made at once, rows of analyses by :meth:`find`."""

    def __init__(self, trace: Trace, requests: pl.DataFrame | None = None) -> None:
        self.trace, self.requests = trace, requests
        self._filling, self._host_span = threading.Lock(), [np.inf, -np.inf]
        self.keys, self.names = Keys(), SpanNames()
        self.device = timeline_events(trace)
        self.event_count = sum(part.rows.height for part in self.device)
        self.found = not self.event_count
        self.missing: str = ""
        self._computing = threading.Lock()
        self.queried: dict[str, pl.DataFrame] = {}
        """Results of queries that are rows, by their kind."""
        self.drawn: list[TimelineRow] = (
            [] if requests is None else request_rows(requests, self.keys, self.names)
        )
        """The rows; those of the host may still wait for their spans."""
        capture = trace.capture
        library = "communication" if capture.platform is UNKNOWN else capture.words["communication"]
        streams = list(
            stream_rows(
                self.device, self.keys, self.names, on_host=capture.on_host, library=library
            )
        )
        counters, host = list(counter_rows(trace)), self._host(len({row.rank for row in streams}))
        for rank in sorted(trace.ranks, key=_last_is_the_host):
            device = [row for row in streams if row.rank == rank]
            if device:
                self.drawn += timeline_rows.pending(rank)
            self.drawn += sorted(device, key=lambda row: -row.count)
            self.drawn += [row for row in counters if row.rank == rank]
            self.drawn += _by_thread([row for row in host if row.rank == rank])
        self.whole = self._span()

    @cached_property
    def events(self) -> pl.DataFrame:
        """Kernels and copies as they are known without labels, numbered as in ``trace.events``."""
        parts = [part.ordered for part in self.device]
        return pl.concat([NO_EVENTS, *parts]).with_row_index("event")

    @property
    def host_above(self) -> list[int]:
        """Numbers of the rows, markers, operators and calls above the device of their rank; call
        stacks are too deep for that.
        """
        places = {"steps": 0, "layers": 0, "markers": 1, "ops": 1, "runtime": 1}
        ranks = list(dict.fromkeys(row.rank for row in self.drawn))
        return sorted(
            range(len(self.drawn)),
            key=lambda n: (ranks.index(self.drawn[n].rank), places.get(self.drawn[n].kind, 2)),
        )

    @cached_property
    def too_large(self) -> str:
        """What is left out of a dataset that does not fit into memory; empty if nothing is."""
        rows = sum(map(self.trace.capture.height, ("kernels", "copies", *_TABLES)))
        if rows <= MOST_FOUND or "dataset" not in self.trace.meta:
            return ""
        return (
            f"{rows:,} rows: only the streams are shown. Of some ranks"
            " explore.timeline(trace.select(rank=[…])) shows steps, layers and the host, too, up"
            f" to {MOST_FOUND:,} rows."
        )

    @cached_property
    def launch_known(self) -> NDArray[np.bool_]:
        """Whether the call that launched it is known, by device event."""
        frame = self.frame("stream")
        if "launch_start_ns" not in frame.columns:
            return np.zeros(frame.height, np.bool_)
        known: NDArray[np.bool_] = frame["launch_start_ns"].is_not_null().to_numpy()
        return known

    @property
    def rows(self) -> list[TimelineRow]:
        """The rows, all with their spans."""
        self.fill()
        return self.drawn

    def _host(self, ranks: int) -> list[TimelineRow]:
        """Rows of the host; without their lanes where they are many and of several ranks, which
        are closed at first.
        """
        recorded = sum(map(self.trace.capture.height, _TABLES))
        if (ranks < 2 or recorded < LATER) and not self.too_large:
            return list(host_rows(self.trace, self.keys, self.names))
        rows, *self._host_span = waiting_rows(self.trace)
        return rows

    def fill(self, say: Callable[[str], None] = lambda _: None) -> None:
        """Put the spans of the host into their rows, where they wait for it."""
        with self._filling:
            waiting = {(row.kind, row.rank, row.thread): row for row in self.drawn if row.waiting}
            if not waiting:
                return
            if self.too_large:
                for row in waiting.values():
                    row.note = NOT_LOADED
                return
            say("putting what ran on the host into rows")
            for made in host_rows(self.trace, self.keys, self.names):
                row = waiting[made.kind, made.rank, made.thread]
                row.lanes, row.waiting, row.note = made.lanes, 0, ""

    def find(self, say: Callable[[str], None] = lambda _: None) -> None:
        """Fill the rows of steps, layers, collectives and idle time, and colour the streams by
        stage.
        """
        with self._computing:
            if not self.found:
                self._find(say)

    def _find(self, say: Callable[[str], None]) -> None:
        if self.too_large:
            for row in self.drawn:
                row.note = NOT_LOADED if row.kind in timeline_rows.KINDS else row.note
            self.missing, self.found = self.too_large, True
            return
        listed_rows = {
            (row.kind, row.rank): row for row in self.drawn if row.kind in timeline_rows.KINDS
        }
        try:
            for kind, of_rank in timeline_rows.found_rows(self.trace, self.keys, self.names, say):
                for (row_kind, rank), row in listed_rows.items():
                    if row_kind == kind:
                        row.lanes = of_rank.get(rank, [])
                        row.note = "" if row.count else timeline_rows.NONE[kind]
            of_stage = self.keys.codes("stage", self.trace.events["stage"])
            of_category = self.keys.codes("category", self.trace.events["category"])
            unknown = self.trace.events["stage"].fill_null("other") == "other"
            stages = of_category.zip_with(unknown, of_stage).to_numpy()
            waits = timeline_rows.wait_shares(self.trace, self.events)
            for row in self.drawn:
                if row.kind == "stream":
                    for lane in row.lanes:
                        lane.recolour("stage", stages)
                        lane.wait(waits[lane.id])
        except NotCapturedError as error:
            self.missing = str(error)
        self.found = True

    def follow(self, say: Callable[[str], None] = lambda _: None) -> None:
        """Add the row of the critical path behind all others, whose numbers stay."""
        with self._computing:
            if not any(row.kind == PATH_KIND for row in self.drawn):
                self.drawn.append(path_row(self.trace, self.keys, self.names, say))

    def described(self) -> dict[str, Any]:
        """Description of the rows that the browser needs before it asks for views."""
        return {
            "whole": list(self.whole),
            "found": (
                self.found and (bool(self.too_large) or not any(row.waiting for row in self.drawn))
            ),
            "missing": self.missing,
            "keys": self.keys.described(),
            "present": self._present(),
            "groups": self.groups(),
            "rows": [
                {
                    name: getattr(row, name)
                    for name in ("kind", "rank", "label", "count", "note", "unit")
                }
                | {"levels": max(1, len(row.lanes)), "range": _range(row)}
                for row in self.drawn
            ],
        }

    def row(self, number: int, *, filled: bool = True) -> TimelineRow:
        """A row by number; it may wait for its spans if that is said."""
        if not 0 <= number < len(self.drawn):
            raise AnalysisError(f"there is no row {number}", expected=f"0 to {len(self.drawn) - 1}")
        return (self.rows if filled else self.drawn)[number]

    def frame(self, kind: str) -> pl.DataFrame:
        """Frame in which the ids of a kind of row are row numbers."""
        from llmprof import analyze

        if kind == "stream" and self.too_large:
            return self.events
        if kind == "stream":
            try:
                return self.trace.events
            except AnalysisError:
                return self.trace.events
        if kind in HOST:
            return self.trace.table("ops" if kind in CALLS else kind)
        if kind in self.queried:
            return self.queried[kind]
        if kind == REQUEST_KIND and self.requests is not None:
            return self.requests
        frame: pl.DataFrame = getattr(analyze, kind)(self.trace)
        if kind == "layers":  # and their stages, on the line below
            frame = pl.concat([frame, analyze.layers(self.trace, stages=True)], how="diagonal")
        return frame

    def _present(self) -> dict[str, list[int]]:
        """Colours of the streams by their meaning, and of collectives and idle time, as in the
        palette.
        """
        lanes = [lane for row in self.drawn if row.kind == "stream" for lane in row.lanes]
        lost = [
            lane
            for row in self.drawn
            if row.kind in (REQUEST_KIND, "collectives", "idle")
            for lane in row.lanes
        ]
        present = {
            by: sorted({n for lane in lanes for n in lane.present(by)})
            for by in ("stage", "category")
        }
        parts = [lane for row in self.drawn if row.kind == PATH_KIND for lane in row.lanes[:1]]
        present["path"] = sorted({n for lane in parts for n in lane.present("path")})
        return present | {"lost": sorted({n for lane in lost for n in lane.present("own")})}

    def groups(self) -> list[dict[str, Any]]:
        """Groups of ranks: those with rows, and those of the run that the trace lacks."""
        devices = {part.get("rank"): part for part in self.trace.meta.get("ranks", [])}
        name = self.trace.meta.get("device") or ""
        waits = self._waits()
        late = self._late(waits)
        ranks = self.trace.ranks
        gone = [rank for rank in self.trace.meta.get("missing_ranks") or [] if rank not in ranks]
        gone += [rank for rank in devices if rank is not None and rank not in [*ranks, *gone]]
        count = sum(row.kind == REQUEST_KIND for row in self.drawn)

        def group(rank: int, detail: str) -> dict[str, Any]:
            lost = {"waits": waits.get(rank), "late": rank == late}
            return {"rank": rank, "label": _group(rank), "detail": detail, **lost}

        groups = [group(QUERY_GROUP, f"{len(self.queried):,}")] if self.queried else []
        groups += [group(REQUEST_GROUP, f"{count:,}")] if count else []
        groups += [group(rank, str(name) if rank >= 0 else "") for rank in ranks]
        groups += [group(rank, "not in this trace") for rank in gone]
        return sorted(groups, key=lambda one: _last_is_the_host(one["rank"]))

    def _waits(self) -> dict[int, float]:
        """Share of each rank's time on the device, first start to last end, in which a call
        waits for another rank.
        """
        if not self.found or self.missing or not self.event_count:
            return {}
        calls = collectives(self.trace).drop_nulls("wait_ns")
        if calls.is_empty():
            return {}
        waiting = union_length(calls.select("rank", "start_ns", dur_ns="wait_ns"), ["rank"])
        end = END.max()
        spans = self.events.group_by("rank").agg(whole_ns=(end - pl.min("start_ns")).clip(1))
        shares = spans.join(waiting, on="rank").select(
            "rank", pl.col("busy_ns") / pl.col("whole_ns")
        )
        return dict(shares.iter_rows())

    def _late(self, waits: Mapping[int, float]) -> int | None:
        """The rank that the others wait for: last in more than half of the waiting time, if they
        wait long enough.
        """
        others = {rank: share for rank, share in waits.items() if share >= MOST_WAITING}
        if not others:
            return None
        calls = collectives(self.trace).filter(pl.col("wait_ns") > 0).drop_nulls("last_rank")
        by_last = (
            calls.group_by("last_rank").agg(pl.sum("wait_ns")).sort("wait_ns", descending=True)
        )
        if by_last.is_empty() or 2 * by_last["wait_ns"][0] <= by_last["wait_ns"].sum():
            return None
        return int(by_last["last_rank"][0])

    def _span(self) -> tuple[float, float]:
        first: list[float] = []
        last: list[float] = []
        for lane in (lane for row in self.drawn for lane in row.lanes if len(lane)):
            first.append(lane.start[0])
            last.append(lane.reach)
        if any(row.waiting for row in self.drawn):
            first.append(self._host_span[0])
            last.append(self._host_span[1])
        # counters alone; beside events, samples from before and after them leave the window empty
        if not first:
            samples = [row.samples[0] for row in self.drawn if row.samples]
            first, last = [times[0] for times in samples], [times[-1] for times in samples]
        lo, hi = (float(min(first)), float(max(last))) if first else (0.0, 0.0)
        return lo, max(hi, lo + 1.0)


def _by_thread(rows: list[TimelineRow]) -> list[TimelineRow]:
    """Rows of one thread beside each other, the busiest thread first; threads are named where
    there are several.
    """
    threads = {row.thread for row in rows}
    count = {thread: sum(row.count for row in rows if row.thread == thread) for thread in threads}
    if len(threads) > 1:
        for row in rows:
            row.label = f"{row.label} · {'?' if row.thread is None else row.thread}"
    return sorted(rows, key=lambda row: (-count[row.thread], str(row.thread), HOST.index(row.kind)))


def _last_is_the_host(rank: int) -> tuple[bool, int]:
    return rank < 0 and rank not in (REQUEST_GROUP, QUERY_GROUP), rank


def _group(rank: int) -> str:
    return {REQUEST_GROUP: "requests", QUERY_GROUP: "my rows", -1: "host"}.get(rank, f"rank {rank}")


def _range(row: TimelineRow) -> list[float] | None:
    if row.samples is None:
        return None
    values = row.samples[1]
    return [min(0.0, float(np.nanmin(values))), float(np.nanmax(values))]


MOST: Final = 500
"""Most names in the table, those with the most time."""

QUANTILE: Final = 0.99


OWN: Final = "own"
"""The part of an area that has what its host threads did, each moment once."""

FLOWS: Final = "flows"
"""The part of an area that has the ways from host calls to what they launched."""


def chosen_rows(
    data: TimelineData, rows: Sequence[int] | None, kind: str | None = None
) -> list[TimelineRow]:
    """Rows of a selection: those of a kind; by default all streams, if there are any, else those
    of the first kind.
    """
    chosen = data.rows if rows is None else [data.row(number) for number in rows]
    if kind not in (None, FLOWS, OWN):
        return [row for row in chosen if row.kind == kind]
    streams = [row for row in chosen if row.kind == "stream"]
    if streams or rows is None:
        return streams
    spans = [row for row in chosen if row.lanes]
    kinds = list(dict.fromkeys(row.kind for row in spans))
    return [row for row in spans if row.kind == kinds[0]] if kinds else []


def visible_events(
    data: TimelineData, span: Sequence[float], rows: Sequence[int] | None, kind: str | None
) -> pl.DataFrame:
    """Events that touch a range of time, as rows of the frame behind the timeline's rows."""
    if kind == FLOWS:
        return _launched(data, span, rows)
    chosen = chosen_rows(data, rows, kind)
    if not chosen:
        return data.events.clear()
    if chosen[0].samples is not None:
        return pl.concat(_sampled(row, span) for row in chosen)
    touched = [
        lane.id[slice(*lane.within(span[0], span[1]))] for row in chosen for lane in _own_lanes(row)
    ]
    numbers = np.unique(np.concatenate(touched)) if touched else np.empty(0, np.uint32)
    frame = data.frame(chosen[0].kind)
    frame = frame[pl.Series(numbers)] if len(numbers) else frame.clear()
    return frame.cast({pl.Categorical: pl.String})


def _launched(
    data: TimelineData, span: Sequence[float], rows: Sequence[int] | None
) -> pl.DataFrame:
    """Device events of an area that a recorded call launched: on its streams, or by its host
    threads.
    """
    frame = data.frame("stream")
    if "launch_start_ns" not in frame.columns:
        return frame.clear()
    chosen = chosen_rows(data, rows)
    if not chosen or chosen[0].kind == "stream":
        return visible_events(data, span, rows, "stream").filter(
            pl.col("launch_start_ns").is_not_null()
        )
    threads = {(row.rank, row.thread) for row in chosen if row.kind in HOST}
    mine = [
        (pl.col("rank") == rank) & pl.col("launch_thread").eq_missing(pl.lit(thread, pl.Int64))
        for rank, thread in threads
    ]
    return frame.filter(
        pl.col("launch_start_ns").is_between(span[0], span[1]),
        pl.any_horizontal(*mine, pl.lit(False)),
    )


def _sampled(row: TimelineRow, span: Sequence[float]) -> pl.DataFrame:
    """Samples of a counter in a range of time, with the one that holds at its begin."""
    times, values = row.samples or (np.empty(0, np.int64), np.empty(0))
    first = max(0, int(np.searchsorted(times, whole_ns(np.floor(span[0])), "right")) - 1)
    last = int(np.searchsorted(times, whole_ns(np.ceil(span[1])), "left"))
    some = {"time_ns": times[first:last], "value": values[first:last].astype(np.float64)}
    at = {"rank": pl.lit(row.rank, pl.Int32), "name": pl.lit(row.label), "unit": pl.lit(row.unit)}
    return pl.DataFrame(some).select(
        at["rank"].alias("rank"),
        "time_ns",
        at["name"].alias("name"),
        "value",
        unit=at["unit"],
    )


def area(
    data: TimelineData,
    span: Sequence[float],
    rows: Sequence[int] | None,
    kind: str | None,
    color_by: str = "stage",
) -> dict[str, Any]:
    """What is in an area: its kinds, and of one kind the sums, percentiles and a table."""
    kinds = _kinds(data, span, rows)
    known = [part["kind"] for part in kinds]
    own = chosen_rows(data, rows)
    first = [OWN, *(row.kind for row in own[:1]), *known]
    shown = kind if kind in known else next((one for one in first if one in known), "")
    answer: dict[str, Any] = {
        "kinds": kinds,
        "kind": shown,
        "rows": [],
        "counters": [],
        "flows": [],
        "total": 0,
    }
    length = ["length", format_ns(span[1] - span[0])]
    if shown == "counter":
        counters = [_counted(data, row, span) for row in chosen_rows(data, rows, shown)]
        title = _title(data, chosen_rows(data, rows, shown))
        return answer | {
            "title": title,
            "facts": [length],
            "counters": counters,
            "total": len(counters),
        }
    if shown == FLOWS:
        flows = _flows(_launched(data, span, rows))
        return answer | {"title": "launches", "facts": [length, *flows.pop("facts")], **flows}
    if shown == OWN:
        return answer | _host_table(
            data, span, [row for row in map(data.row, rows or ()) if row.kind in HOST]
        )
    return answer | _table(data, span, chosen_rows(data, rows, shown or None), length, color_by)


def _kinds(
    data: TimelineData, span: Sequence[float], rows: Sequence[int] | None
) -> list[dict[str, Any]]:
    """Kinds of rows in an area that have anything there, streams first, and how much."""
    chosen = (
        [row for row in data.rows if row.kind == "stream"]
        if rows is None
        else [data.row(n) for n in rows]
    )
    found: dict[str, int] = {}
    for row in sorted(chosen, key=lambda row: row.kind != "stream"):
        count = sum(b - a for a, b in (lane.within(span[0], span[1]) for lane in _own_lanes(row)))
        count += 0 if row.samples is None else _sampled(row, span).height
        found[row.kind] = found.get(row.kind, 0) + count
    if data.found and not data.missing and any(kind in found for kind in ("stream", *HOST)):
        streams = [row for row in chosen if row.kind == "stream"]
        known = data.launch_known
        lanes = (lane for row in streams for lane in row.lanes)
        of_streams = sum(
            int(np.count_nonzero(known[lane.id[slice(*lane.within(span[0], span[1]))]]))
            for lane in lanes
        )
        found[FLOWS] = of_streams if streams else _launched(data, span, rows).height
    of_host = sum(count for kind, count in found.items() if kind in HOST)
    if of_host and "stream" not in found:
        found = {OWN: of_host, **found}
    return [{"kind": kind, "count": count} for kind, count in found.items() if count]


def _counted(data: TimelineData, row: TimelineRow, span: Sequence[float]) -> dict[str, Any]:
    """A counter in a range of time; its mean weighs each sample with the time for which it
    holds.
    """
    samples = _sampled(row, span)
    time = pl.col("time_ns").cast(pl.Float64).clip(*span)
    held = time.shift(-1, fill_value=span[1]) - time
    value = pl.col("value")
    least, most, first, last, mean, plain = samples.select(
        least=value.min(),
        most=value.max(),
        first=value.first(),
        last=value.last(),
        mean=(value * held).sum() / held.sum(),
        plain=value.mean(),
    ).row(0)
    mean = plain if mean is None or np.isnan(mean) else mean
    values = {"least": least, "mean": mean, "most": most, "first": first, "last": last}
    clean = {
        name: None if value is None or np.isnan(value) else value for name, value in values.items()
    }
    return {"name": _named(row, data), "unit": row.unit, "count": samples.height, **clean}


def _figures(length: pl.Expr) -> dict[str, pl.Expr]:
    """Number, mean, median and 99th percentile of times."""
    quantile = length.quantile(QUANTILE, "linear")
    return {
        "count": pl.len(),
        "mean_ns": length.mean(),
        "p50_ns": length.median(),
        "p99_ns": quantile,
    }


def _flows(chosen: pl.DataFrame) -> dict[str, Any]:
    """Launches by the name of what was launched: how long after the begin of its call each
    began.
    """
    delay = pl.col("start_ns") - pl.col("launch_start_ns")
    figures = _figures(delay) | {"most_ns": delay.max().cast(pl.Float64)}
    names = (
        chosen.group_by("name", maintain_order=True)
        .agg(**figures)
        .sort("count", "name", descending=[True, False])
    )
    facts = [["launches", f"{chosen.height:,}"]]
    if chosen.height:
        whole_ = chosen.select(**figures).row(0, named=True)
        labels = {
            "mean_ns": "mean delay",
            "p50_ns": "median",
            "p99_ns": "p99",
            "most_ns": "longest",
        }
        facts += [[text, format_ns(whole_[name])] for name, text in labels.items()]
    short = names_kernels.function(names["name"]) if names.height else names["name"]
    rows = names.head(MOST).with_columns(name=pl.coalesce(short.head(MOST), "name"))
    return {"facts": facts, "flows": rows.to_dicts(), "total": names.height}


def _table(
    data: TimelineData,
    span: Sequence[float],
    chosen: Sequence[TimelineRow],
    length: Sequence[str] = (),
    color_by: str = "stage",
) -> dict[str, Any]:
    """Names of the spans that touch a range of time, those with the most time first."""
    lo, hi = span
    parts = [
        pl.DataFrame(
            schema={"name": pl.UInt32, "code": pl.UInt8, "start": pl.Int64, "end": pl.Int64}
        )
    ]
    for row in chosen:
        for lane in _own_lanes(row):
            part = slice(*lane.within(lo, hi))
            columns = {"name": lane.name[part], "code": lane.code(color_by)[part]}
            parts.append(pl.DataFrame(columns | {"start": lane.start[part], "end": lane.end[part]}))
    spans = pl.concat(parts)
    inside = pl.min_horizontal("end", pl.lit(hi)) - pl.max_horizontal("start", pl.lit(lo))
    length_ns = pl.col("end") - pl.col("start")
    figures = _figures(length_ns) | {"total_ns": inside.clip(0).sum()}
    names = spans.group_by("name", maintain_order=True).agg(pl.first("code"), **figures)
    names = names.sort("total_ns", "name", descending=[True, False])
    sum_ns = float(names["total_ns"].sum() or 0)
    share = pl.lit(None, pl.Float64) if sum_ns <= 0 else pl.col("total_ns") / sum_ns
    shown = names.head(MOST).with_columns(share=share)
    facts = [list(length), ["spans", f"{spans.height:,}"], ["summed time", format_ns(sum_ns)]]
    if spans.height:
        over = spans.select(**figures, most_ns=length_ns.max()).row(0, named=True)
        labels = {"mean_ns": "mean", "p50_ns": "median", "p99_ns": "p99", "most_ns": "longest"}
        facts += [[text, format_ns(over[name])] for name, text in labels.items()]
    return {
        "title": _title(data, chosen),
        "facts": facts,
        "rows": [row | {"name": data.names.short[row["name"]]} for row in shown.to_dicts()],
        "total": names.height,
    }


def _title(data: TimelineData, chosen: Sequence[TimelineRow]) -> str:
    more = f" and {len(chosen) - 2} more" if len(chosen) > 2 else ""
    return ", ".join(_named(row, data) for row in chosen[:2]) + more


def _host_table(
    data: TimelineData, span: Sequence[float], threads: Sequence[TimelineRow]
) -> dict[str, Any]:
    """What threads of the host did: at each moment only the innermost call, operator or range
    counts.
    """
    lo, hi = span
    parts = [pl.DataFrame(schema=_OF_HOST)]
    for row in threads:
        group, kind = (
            _threads_of(threads).index((row.rank, row.thread)),
            "range" if row.kind == "markers" else row.kind,
        )
        for lane in row.lanes:
            part = slice(*lane.within(lo, hi))
            columns = {"start_ns": lane.start[part], "dur_ns": lane.end[part] - lane.start[part]}
            parts.append(
                pl.DataFrame(columns | {"name": lane.name[part], "code": lane.code("stage")[part]})
                .select(
                    pl.lit(group).alias("thread"),
                    "start_ns",
                    "dur_ns",
                    "name",
                    "code",
                    kind=pl.lit(kind),
                )
                .cast(_OF_HOST)
            )
    every = pl.concat(parts)
    start, end = int(lo), max(int(lo) + 1, int(hi))
    numbers = list(range(len(_threads_of(threads))))
    windows = pl.DataFrame({"thread": numbers, "start_ns": start, "dur_ns": end - start}).cast(
        pl.Int64
    )
    pieces, spans = innermost_within(windows, every, ["thread"])
    own = spans[pieces["span"]].select("name").hstack(pieces.select(total_ns="dur_ns"))
    own = own.group_by("name").agg(pl.sum("total_ns"))
    each = spans.group_by("name").agg(pl.first("code"), **_figures(pl.col("dur_ns")))
    names = each.join(own, on="name", how="left").with_columns(pl.col("total_ns").fill_null(0))
    whole = (end - start) * len(numbers)
    names = names.sort("total_ns", "name", descending=[True, False]).with_columns(
        share=pl.col("total_ns") / whole
    )
    listed = [row | {"name": data.names.short[row["name"]]} for row in names.head(MOST).to_dicts()]
    rest = whole - int(names["total_ns"].sum())
    if rest > 0:
        unknown: dict[str, Any] = dict.fromkeys(("total_ns", "mean_ns", "p50_ns", "p99_ns"), rest)
        unknown |= {"name": NOT_RECORDED, "code": 0, "count": 0, "share": rest / whole}
        listed = sorted([*listed, unknown], key=lambda row: -row["total_ns"])
    facts = [
        ["length", format_ns(end - start)],
        ["spans", f"{spans.height:,}"],
        ["own time", format_ns(whole - rest)],
    ]
    return {"title": _title(data, threads), "facts": facts, "rows": listed, "total": len(listed)}


NOT_RECORDED: Final = "(code that was not recorded)"

_OF_HOST: Final = pl.Schema(
    {
        "thread": pl.Int64(),
        "start_ns": pl.Int64(),
        "dur_ns": pl.Int64(),
        "name": pl.UInt32(),
        "code": pl.UInt8(),
        "kind": pl.String(),
    }
)


def _threads_of(rows: Sequence[TimelineRow]) -> list[tuple[int, int | None]]:
    """Threads of the host that some rows are of."""
    return list(dict.fromkeys((row.rank, row.thread) for row in rows if row.kind in HOST))


def _own_lanes(row: TimelineRow) -> list[Lane]:
    """Lanes whose spans count; the second level of the critical path only says on which rank it
    is.
    """
    return row.lanes[:1] if row.kind == PATH_KIND else row.lanes


def _named(row: TimelineRow, data: TimelineData) -> str:
    several = len(data.trace.ranks) > 1
    if row.kind in (REQUEST_KIND, PATH_KIND):
        return row.label
    place = _group(row.rank)
    return f"{place} · {row.label}" if several else row.label
