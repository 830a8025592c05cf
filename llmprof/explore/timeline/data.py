"""Data of the timeline: its rows, and the events of a selected range of time as frames."""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import polars as pl

from llmprof.analyze.activity import activity
from llmprof.analyze.collectives.collectives import collectives
from llmprof.analyze.intervals import union_length
from llmprof.errors import AnalysisError, NotCapturedError
from llmprof.explore.timeline import rows as timeline_rows
from llmprof.explore.timeline.rows import (
    CALLS,
    PATH_KIND,
    REQUEST_GROUP,
    REQUEST_KIND,
    Keys,
    Lane,
    Names,
    Row,
    counter_rows,
    device_events,
    host_rows,
    path_row,
    request_rows,
    stream_rows,
    waiting_rows,
)
from llmprof.trace import Trace
from llmprof.units import format_ns

MOST_WAITING: Final = 0.1
"""The late rank is named if another rank waits for at least this share of its time."""

LATER: Final = 1_000_000
"""Spans on the host from which on they are put into rows after the first picture, which does not show them."""

_TABLES: Final = ("markers", "ops", "runtime")

HOST = ("markers", *CALLS, "ops", "runtime")
"""Kinds of rows of a thread, from the top."""


class TimelineData:
    """Rows of a trace. Rows of its tables are made at once, rows of analyses by :meth:`find`."""

    def __init__(self, trace: Trace, requests: pl.DataFrame | None = None) -> None:
        self.trace, self.requests = trace, requests
        self._filling, self._host_span = threading.Lock(), [np.inf, -np.inf]
        self.keys, self.names = Keys(), Names()
        self.events = device_events(trace)
        self.found = not self.events.height
        self.missing: str = ""
        self._computing = threading.Lock()
        self.drawn: list[Row] = [] if requests is None else request_rows(requests, self.keys, self.names)
        """The rows; those of the host may still wait for their spans."""
        streams = list(stream_rows(self.events, self.keys, self.names))
        counters, host = list(counter_rows(trace)), self._host(len({row.rank for row in streams}))
        for rank in sorted(trace.ranks, key=_last_is_the_host):
            device = [row for row in streams if row.rank == rank]
            if device:
                self.drawn += timeline_rows.pending(rank)
            self.drawn += sorted(device, key=lambda row: -row.count)
            self.drawn += [row for row in counters if row.rank == rank]
            self.drawn += _by_thread([row for row in host if row.rank == rank])
        self.whole = self._span()

    @property
    def rows(self) -> list[Row]:
        """The rows, all with their spans."""
        self.fill()
        return self.drawn

    def _host(self, ranks: int) -> list[Row]:
        """Rows of the host; without their lanes where they are many and of several ranks, which are closed at first."""
        recorded = sum(self.trace.table(name).height for name in _TABLES if self.trace.has(name))
        if ranks < 2 or recorded < LATER:
            return list(host_rows(self.trace, self.keys, self.names))
        rows, *self._host_span = waiting_rows(self.trace)
        return rows

    def fill(self, say: Callable[[str], None] = lambda _: None) -> None:
        """Put the spans of the host into their rows, where they wait for it."""
        with self._filling:
            waiting = {(row.kind, row.rank, row.thread): row for row in self.drawn if row.waiting}
            if not waiting:
                return
            say("putting what ran on the host into rows")
            for made in host_rows(self.trace, self.keys, self.names):
                row = waiting[made.kind, made.rank, made.thread]
                row.lanes, row.waiting, row.note = made.lanes, 0, ""

    def find(self, say: Callable[[str], None] = lambda _: None) -> None:
        """Fill the rows of steps, layers, collectives and idle time, and colour the streams by stage."""
        with self._computing:
            if not self.found:
                self._find(say)

    def _find(self, say: Callable[[str], None]) -> None:
        listed_rows = {(row.kind, row.rank): row for row in self.drawn if row.kind in timeline_rows.KINDS}
        try:
            for kind, of_rank in timeline_rows.found_rows(self.trace, self.keys, self.names, say):
                for (row_kind, rank), row in listed_rows.items():
                    if row_kind == kind:
                        row.lanes = of_rank.get(rank, [])
                        row.note = "" if row.count else timeline_rows.empty_note(kind, unfinished=False)
            stages = timeline_rows.stage_codes(self.trace, self.keys)
            for row in self.drawn:
                if row.kind == "stream":
                    for lane in row.lanes:
                        lane.recolour("stage", stages)
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
            "found": self.found and not any(row.waiting for row in self.drawn),
            "missing": self.missing,
            "keys": self.keys.described(),
            "present": self._present(),
            "groups": self.groups(),
            "rows": [
                {
                    "kind": row.kind,
                    "rank": row.rank,
                    "label": row.label,
                    "levels": max(1, len(row.lanes)),
                    "count": row.count,
                    "note": row.note,
                    "unit": row.unit,
                    "range": _range(row),
                }
                for row in self.drawn
            ],
        }

    def row(self, number: int, *, filled: bool = True) -> Row:
        """A row by number; it may wait for its spans if that is said."""
        if not 0 <= number < len(self.drawn):
            raise AnalysisError(f"there is no row {number}", expected=f"0 to {len(self.drawn) - 1}")
        return (self.rows if filled else self.drawn)[number]

    def frame(self, kind: str) -> pl.DataFrame:
        """Frame in which the ids of a kind of row are row numbers."""
        from llmprof import analyze

        if kind == "stream":
            try:
                return analyze.attribute(self.trace)
            except AnalysisError:
                return activity(self.trace)
        if kind in HOST:
            return self.trace.table("ops" if kind in CALLS else kind)
        if kind == REQUEST_KIND and self.requests is not None:
            return self.requests
        frame: pl.DataFrame = getattr(analyze, kind)(self.trace)
        return frame

    def _present(self) -> dict[str, list[int]]:
        """Colours of the streams by their meaning, and of collectives and idle time, as in the palette."""
        lanes = [lane for row in self.drawn if row.kind == "stream" for lane in row.lanes]
        lost = [lane for row in self.drawn if row.kind in (REQUEST_KIND, "collectives", "idle") for lane in row.lanes]
        present = {by: sorted({n for lane in lanes for n in lane.present(by)}) for by in ("stage", "category")}
        parts = [lane for row in self.drawn if row.kind == PATH_KIND for lane in row.lanes[:1]]
        present["path"] = sorted({n for lane in parts for n in lane.present("path")})
        return present | {"lost": sorted({n for lane in lost for n in lane.present("own")})}

    def groups(self) -> list[dict[str, Any]]:
        """Groups of ranks: those with rows, and those of the run that the trace lacks."""
        devices = {part.get("rank"): part for part in self.trace.meta.get("ranks", [])}
        name = self.trace.meta.get("device") or ""
        waits = self._waits()
        late = self._late(waits)
        gone = [rank for rank in self.trace.meta.get("missing_ranks") or [] if rank not in self.trace.ranks]
        gone += [rank for rank in devices if rank is not None and rank not in [*self.trace.ranks, *gone]]
        count = sum(row.kind == REQUEST_KIND for row in self.drawn)

        def group(rank: int, detail: str) -> dict[str, Any]:
            return {
                "rank": rank,
                "label": _group(rank),
                "detail": detail,
                "waits": waits.get(rank),
                "late": rank == late,
            }

        groups = [group(REQUEST_GROUP, f"{count:,}")] if count else []
        groups += [group(rank, str(name) if rank >= 0 else "") for rank in self.trace.ranks]
        groups += [group(rank, "not in this trace") for rank in gone]
        return sorted(groups, key=lambda one: _last_is_the_host(one["rank"]))

    def _waits(self) -> dict[int, float]:
        """Share of each rank's time on the device, first start to last end, in which a call waits for another rank."""
        if not self.found or self.missing or not self.events.height:
            return {}
        calls = collectives(self.trace).drop_nulls("wait_ns")
        if calls.is_empty():
            return {}
        waiting = union_length(calls.select("rank", "start_ns", dur_ns="wait_ns"), ["rank"])
        end = (pl.col("start_ns") + pl.col("dur_ns")).max()
        spans = self.events.group_by("rank").agg(whole_ns=(end - pl.col("start_ns").min()).clip(1))
        shares = spans.join(waiting, on="rank").select("rank", pl.col("busy_ns") / pl.col("whole_ns"))
        return dict(shares.iter_rows())

    def _late(self, waits: Mapping[int, float]) -> int | None:
        """The rank that the others wait for: last in more than half of the waiting time, if they wait long enough."""
        others = {rank: share for rank, share in waits.items() if share >= MOST_WAITING}
        if not others:
            return None
        calls = collectives(self.trace).filter(pl.col("wait_ns") > 0).drop_nulls("last_rank")
        by_last = calls.group_by("last_rank").agg(pl.col("wait_ns").sum()).sort("wait_ns", descending=True)
        if by_last.is_empty() or 2 * by_last["wait_ns"][0] <= by_last["wait_ns"].sum():
            return None
        return int(by_last["last_rank"][0])

    def _span(self) -> tuple[float, float]:
        first = [row.samples[0][0] for row in self.drawn if row.samples]
        last = [row.samples[0][-1] for row in self.drawn if row.samples]
        for lane in (lane for row in self.drawn for lane in row.lanes if len(lane)):
            first.append(lane.start[0])
            last.append(lane.reach)
        if any(row.waiting for row in self.drawn):
            first.append(self._host_span[0])
            last.append(self._host_span[1])
        lo, hi = (float(min(first)), float(max(last))) if first else (0.0, 0.0)
        return lo, max(hi, lo + 1.0)


def _by_thread(rows: list[Row]) -> list[Row]:
    """Rows of one thread beside each other, the busiest thread first; threads are named where there are several."""
    threads = {row.thread for row in rows}
    count = {thread: sum(row.count for row in rows if row.thread == thread) for thread in threads}
    if len(threads) > 1:
        for row in rows:
            row.label = f"{row.label} · {'?' if row.thread is None else row.thread}"
    return sorted(rows, key=lambda row: (-count[row.thread], str(row.thread), HOST.index(row.kind)))


def _last_is_the_host(rank: int) -> tuple[bool, int]:
    return rank < 0 and rank != REQUEST_GROUP, rank


def _group(rank: int) -> str:
    return {REQUEST_GROUP: "requests", -1: "host"}.get(rank, f"rank {rank}")


def _range(row: Row) -> list[float] | None:
    if row.samples is None:
        return None
    values = row.samples[1]
    return [min(0.0, float(np.nanmin(values))), float(np.nanmax(values))]


MOST: Final = 500
"""Most names in the table, those with the most time."""

QUANTILE: Final = 0.99


def chosen_rows(data: TimelineData, rows: Sequence[int] | None) -> list[Row]:
    """Rows of a selection: the given rows, or all streams; if the given rows include streams, these alone."""
    chosen = data.rows if rows is None else [data.row(number) for number in rows]
    streams = [row for row in chosen if row.kind == "stream"]
    if streams:
        return streams
    spans = [row for row in chosen if row.lanes]
    kinds = list(dict.fromkeys(row.kind for row in spans))
    return [row for row in spans if row.kind == kinds[0]] if kinds else []


def events(data: TimelineData, span: Sequence[float], rows: Sequence[int] | None) -> pl.DataFrame:
    """Events that touch a range of time, as rows of the frame behind the timeline's rows."""
    chosen = chosen_rows(data, rows)
    if not chosen:
        return data.events.clear()
    touched = [lane.id[slice(*lane.within(span[0], span[1]))] for row in chosen for lane in _own_lanes(row)]
    numbers = np.unique(np.concatenate(touched)) if touched else np.empty(0, np.uint32)
    frame = data.frame(chosen[0].kind)
    return frame[numbers.tolist()] if len(numbers) else frame.clear()


def table(data: TimelineData, span: Sequence[float], rows: Sequence[int] | None) -> dict[str, Any]:
    """Names of the spans that touch a range of time, those with the most time first."""
    lo, hi = span
    chosen = chosen_rows(data, rows)
    parts = [pl.DataFrame(schema={"name": pl.UInt32, "code": pl.UInt8, "start": pl.Int64, "end": pl.Int64})]
    for row in chosen:
        for lane in _own_lanes(row):
            part = slice(*lane.within(lo, hi))
            columns = {"name": lane.name[part], "code": lane.code("stage")[part]}
            parts.append(pl.DataFrame(columns | {"start": lane.start[part], "end": lane.end[part]}))
    spans = pl.concat(parts)
    inside = pl.min_horizontal(pl.col("end"), pl.lit(hi)) - pl.max_horizontal(pl.col("start"), pl.lit(lo))
    length = pl.col("end") - pl.col("start")
    names = (
        spans.group_by("name", maintain_order=True)
        .agg(
            code=pl.col("code").first(),
            count=pl.len(),
            total_ns=inside.clip(0).sum(),
            mean_ns=length.mean(),
            p99_ns=length.quantile(QUANTILE, "linear"),
        )
        .sort("total_ns", "name", descending=[True, False])
    )
    whole = float(names["total_ns"].sum() or 0)
    shown = names.head(MOST).with_columns(share=pl.lit(None, pl.Float64) if whole <= 0 else pl.col("total_ns") / whole)
    more = f" and {len(chosen) - 2} more" if len(chosen) > 2 else ""
    title = ", ".join(_named(row, data) for row in chosen[:2]) + more
    return {
        "title": title,
        "facts": [["length", format_ns(hi - lo)], ["spans", f"{spans.height:,}"], ["summed time", format_ns(whole)]],
        "rows": [row | {"name": data.names.short[row["name"]]} for row in shown.to_dicts()],
        "total": names.height,
    }


def _own_lanes(row: Row) -> list[Lane]:
    """Lanes whose spans count; the second level of the critical path only says on which rank it is."""
    return row.lanes[:1] if row.kind == PATH_KIND else row.lanes


def _named(row: Row, data: TimelineData) -> str:
    several = len(data.trace.ranks) > 1
    if row.kind in (REQUEST_KIND, PATH_KIND):
        return row.label
    place = _group(row.rank)
    return f"{place} · {row.label}" if several else row.label
