"""Descriptions of the spans of a timeline, and of the spans that they are connected to."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import numpy as np
import polars as pl

from llmprof.analyze.edge import whole_steps
from llmprof.analyze.layers import layers
from llmprof.charts.subjects.flame import nodes_of, trunk_of
from llmprof.errors import AnalysisError, NotCapturedError
from llmprof.explore.base.messages import Fact
from llmprof.explore.timeline.data import HOST, TimelineData
from llmprof.explore.timeline.rows import (
    KINDS,
    PATH_KIND,
    REQUEST_KIND,
    Lane,
    TimelineRow,
    led_to,
    path_facts,
)
from llmprof.trace import Trace
from llmprof.units import format_bytes, format_ns

SearchScope = Literal["everywhere", "device", "host", "found"]
PLACES: Final[dict[str, tuple[str, ...]]] = {
    "device": ("stream",),
    "host": HOST,
    "found": tuple(KINDS),
}
"""Kinds of rows by place: on the device, on the host, and results of analyses."""

ORDERS: Final = ("start", "-start", "dur", "-dur", "name", "-name")
MOST: Final = 500
"""Most hits of one answer."""

_HITS = pl.Schema(
    {
        "start": pl.Int64,
        "dur": pl.Int64,
        "name": pl.UInt32,
        "row": pl.Int64,
        "level": pl.Int64,
        "at": pl.Int64,
    }
)


class Search:
    """Spans whose name contains a text, over all rows in the order of time."""

    def __init__(self, data: TimelineData) -> None:
        self._data = data
        self._text: tuple[str, bool] | None = None
        self._hits = pl.DataFrame(schema=_HITS)
        self._names: list[int] = []

    def find(self, text: str, *, after: float = 0, index: int | None = None) -> dict[str, Any]:
        """Count of hits, and one of them."""
        hits = self._look(text)
        if not hits.height:
            return {"count": 0, "index": -1, "hit": None, "names": []}
        if index is None:
            index = int(hits["start"].search_sorted(after, side="left"))
        row, level, span = hits.select("row", "level", "at").row(index % hits.height)
        chosen = _hit(self._data, row, level, span)
        return {
            "count": hits.height,
            "index": index % hits.height,
            "hit": chosen,
            "names": self._names,
        }

    def listed(
        self,
        text: str,
        *,
        first: int = 0,
        count: int = MOST,
        where: SearchScope = "everywhere",
        rank: int | None = None,
        window: Sequence[float] | None = None,
        sort: str = "start",
    ) -> dict[str, Any]:
        """Some of the hits in an order, and totals of all that pass the filters."""
        hits = self._look(text)
        rows = self._data.rows
        ranks = sorted({rows[number].rank for number in hits["row"].unique()})
        kinds = PLACES.get(where)
        if kinds is not None or rank is not None:
            fitting = [
                (kinds is None or row.kind in kinds) and rank in (None, row.rank) for row in rows
            ]
            hits = hits.filter(
                pl.col("row").is_in([number for number, fits in enumerate(fitting) if fits])
            )
        if window is not None:
            hits = hits.filter(
                pl.col("start") < window[1], pl.col("start") + pl.col("dur") > window[0]
            )
        column, down = (sort if sort in ORDERS else "start").removeprefix("-"), sort.startswith("-")
        key = pl.col(column)
        if column == "name":
            numbers = hits["name"].unique()
            order = sorted(numbers, key=lambda number: self._data.names.full[number].casefold())
            places = {number: place for place, number in enumerate(order)}
            key = key.replace_strict(places, return_dtype=pl.UInt32) if places else key
        some = hits.sort(key, descending=down, maintain_order=True).slice(
            max(first, 0), min(max(count, 0), MOST)
        )
        return {
            "total": hits.height,
            "names": hits["name"].n_unique(),
            "sum_ns": float(hits["dur"].sum()),
            "ranks": ranks,
            "rows": [
                {
                    "hit": _hit(self._data, row, level, span),
                    "rank": rows[row].rank,
                    "label": rows[row].label,
                }
                for row, level, span in some.select("row", "level", "at").iter_rows()
            ],
        }

    def _look(self, text: str) -> pl.DataFrame:
        """Hits in the order of time; kept for the next request."""
        key = text.casefold().strip(), self._data.found
        if key == self._text:
            return self._hits
        names = self._data.names
        matching = np.array(
            [
                key[0] in full.casefold() or key[0] in short.casefold()
                for full, short in zip(names.full, names.short, strict=True)
            ],
            dtype=bool,
        )
        self._names = np.flatnonzero(matching).tolist() if key[0] else []
        parts = [pl.DataFrame(schema=_HITS)]
        if self._names:
            parts += [
                _matches(lane, matching, number, level)
                for number, row in enumerate(self._data.rows)
                if row.kind != PATH_KIND  # whose parts are named as the events that they are
                for level, lane in enumerate(row.lanes)
            ]
        self._hits = pl.concat(parts).sort("start", maintain_order=True)
        self._text = key
        return self._hits


def _matches(lane: Lane, matching: np.ndarray, row: int, level: int) -> pl.DataFrame:
    spans = np.flatnonzero(matching[lane.name])
    start = lane.start[spans]
    place = {"row": np.full(len(spans), row), "level": np.full(len(spans), level)}
    columns = {
        "start": start,
        "dur": lane.end[spans] - start,
        "name": lane.name[spans],
        **place,
        "at": spans,
    }
    return pl.DataFrame(columns, schema_overrides=_HITS)


By = Literal["stage", "module", "python", "host"]
_ROWS: Final = {"module": "modules", "python": "python"}

DEPTH: Final = 80
"""Most frames of a stack that are sent, counted from the first frame in which stacks differ."""

LEAST: Final = 1 / 20_000
"""Narrowest frame that is sent, as a share of the whole; zooming in shows frames narrower than a
pixel.
"""


def kinds_of(data: TimelineData) -> list[By]:
    """Kinds of stacks: by stage, and by module and Python function if the trace has them."""
    present = {row.kind for row in data.rows}
    return ["stage", *(by for by in ("module", "python") if _ROWS[by] in present)]


def flame_of(stacks: pl.DataFrame | None) -> dict[str, Any]:
    """Frames of stacks for a flame graph."""
    rows = None if stacks is None else stacks.filter(pl.col("value") > 0)
    if stacks is None or rows is None or rows.is_empty():
        empty: dict[str, Any] = {
            key: [] for key in ("trunk", "names", "name", "level", "start", "value")
        }
        return {**empty, "total": 0, "events": 0, "left_out": 0}
    total = int(rows["value"].sum())
    trunk = trunk_of(rows["stack"])
    nodes = nodes_of(rows.with_columns(pl.col("stack").list.slice(len(trunk))), DEPTH)
    nodes = nodes.filter(pl.col("value") >= LEAST * total)
    names = nodes["name"].unique(maintain_order=True)
    places = nodes["name"].replace_strict(
        names, pl.int_range(names.len(), eager=True), return_dtype=pl.Int64
    )
    return {
        "total": total,
        "events": int(stacks["count"].sum()),
        "trunk": trunk,
        "names": names.to_list(),
        "name": places.to_list(),
        **nodes.select("level", "value", start="x").to_dict(as_series=False),
        "left_out": total - int(nodes.filter(level=0)["value"].sum()),
    }


def stacks_of(data: TimelineData, events: pl.DataFrame, by: By) -> pl.DataFrame:
    """Stacks of device events, with the kernel as the innermost frame."""
    names = pl.col("name").fill_null("?")
    if by == "stage":
        around = [pl.col("phase").fill_null("no step"), pl.col("stage").fill_null("other")]
        stack = pl.concat_list(*around, names)
        stacked = events.select("rank", thread="launch_thread", value="dur_ns", stack=stack)
    else:
        rows = [row for row in data.rows if row.kind == _ROWS[by]]
        if not rows:
            raise NotCapturedError(
                f"this trace holds no {'modules' if by == 'module' else 'Python functions'}",
                hint=(
                    "record with with_stack=True (for modules with_modules=True, too), and read the"
                    " trace without python_functions=False"
                ),
                table="ops",
            )
        parts = [_called(data, row, events) for row in rows]
        stacked = pl.concat([part for part in parts if part.height] or parts[:1])
    summed = stacked.group_by("rank", "thread", "stack").agg(pl.sum("value"), count=pl.len())
    text = pl.col("stack").list.join("\n")
    ordered = summed.sort(
        "value", "rank", "thread", text, descending=[True, False, False, False], nulls_last=True
    )
    return ordered.select("rank", "thread", "stack", "value", unit=pl.lit("ns"), count="count")


def nested(
    data: TimelineData, rows: Sequence[TimelineRow], within: Sequence[float], level: int = 0
) -> pl.DataFrame:
    """Stacks of host spans in a range of time, from a level on, each with the time that is not
    of what it calls.
    """
    lo, hi = within
    made = [pl.DataFrame(schema=STACKS)]
    for row in rows:
        nodes: list[
            tuple[int, int]
        ] = []  # of each path the node above (-1: none) and the number of the name
        own: list[Any] = [np.empty(0)]
        count: list[Any] = [np.empty(0, np.int64)]
        above: tuple[Any, Any, Any] | None = None
        for lane in row.lanes[level:]:
            first, stop = lane.within(lo, hi)
            start, end, name = (
                lane.start[first:stop],
                lane.end[first:stop],
                lane.name[first:stop].astype(np.int64),
            )
            inside = np.maximum(np.minimum(end, hi) - np.maximum(start, lo), 0).astype(np.float64)
            parent = np.full(len(start), -1, np.int64)
            if above is not None and len(above[0]):
                at = np.maximum(np.searchsorted(above[0], start, "right") - 1, 0)
                held = (above[0][at] <= start) & (start < above[1][at])
                parent = np.where(held, above[2][at], -1)
                np.subtract.at(own[-1], parent[held] - (len(nodes) - len(own[-1])), inside[held])
            paths, path = np.unique(np.stack([parent, name], axis=1), axis=0, return_inverse=True)
            path = path.reshape(-1)
            own.append(np.bincount(path, inside, minlength=len(paths)))
            count.append(np.bincount(path, minlength=len(paths)))
            above = start, end, path + len(nodes)
            nodes += [(int(up), int(number)) for up, number in paths]
        stacks: list[list[str]] = []
        for up, number in nodes:
            stacks.append([*(stacks[up] if up >= 0 else []), data.names.full[number]])
        values = np.maximum(np.concatenate(own), 0).round().astype(np.int64)
        columns = {
            "rank": row.rank,
            "thread": row.thread,
            "stack": stacks,
            "value": values,
            "unit": "ns",
        }
        made.append(pl.DataFrame(columns | {"count": np.concatenate(count)}, schema=STACKS))
    return pl.concat(made).filter(pl.col("value") > 0).sort("value", descending=True)


STACKS: Final = pl.Schema(
    {
        "rank": pl.Int32(),
        "thread": pl.Int64(),
        "stack": pl.List(pl.String),
        "value": pl.Int64(),
        "unit": pl.String(),
        "count": pl.UInt32(),
    }
)


def _called(data: TimelineData, row: TimelineRow, events: pl.DataFrame) -> pl.DataFrame:
    """Events that a thread launched, with the spans of its row that were open then."""
    own = events.filter(rank=row.rank).filter(pl.col("launch_thread").eq_missing(row.thread))
    own = own.drop_nulls("launch_start_ns")
    times = own["launch_start_ns"].to_numpy()
    frames = [_open(data, row, level, times) for level in range(len(row.lanes))]
    named = own.with_columns(frame.alias(f"frame {level}") for level, frame in enumerate(frames))
    stack = pl.concat_list(
        *(f"frame {level}" for level in range(len(frames))), pl.col("name").fill_null("?")
    )
    return named.select(
        "rank", thread="launch_thread", value="dur_ns", stack=stack.list.drop_nulls()
    )


def _open(data: TimelineData, row: TimelineRow, level: int, times: np.ndarray) -> pl.Series:
    """Name of the span of a level that is open at each time; null where there is none."""
    lane = row.lanes[level]
    before = np.searchsorted(lane.start, times, "right") - 1
    span = np.maximum(before, 0)
    inside = (before >= 0) & (times < lane.end[span])
    texts = pl.Series(data.names.full, dtype=pl.String).gather(lane.name[span])
    return pl.select(pl.when(pl.Series(inside)).then(texts)).to_series()


HitFields = dict[str, Any]


def _hit(data: TimelineData, row: int, level: int, index: int) -> HitFields:
    """A span for the browser: row, level, id, start, end (ns) and name."""
    lane = data.row(row).lanes[level]
    return {
        "row": row,
        "level": level,
        "id": int(lane.id[index]),
        "start": int(lane.start[index]),
        "end": int(lane.end[index]),
        "name": data.names.full[int(lane.name[index])],
        "code": int(lane.code("stage")[index]),
    }


def locate(data: TimelineData, row: int, number: int) -> HitFields | None:
    """First span of a row that has an id."""
    for level, lane in enumerate(data.row(row).lanes):
        if len(places := np.flatnonzero(lane.id == number)):
            return _hit(data, row, level, int(places[0]))
    return None


def pick(data: TimelineData, row: int, level: int, time: float, reach: float) -> HitFields | None:
    """Span at a time, or else near it: of the spans within a reach (ns) the longest."""
    lanes = data.row(row).lanes
    if data.row(row).kind == PATH_KIND:  # its second level says on which rank the first one is
        level = 0
    if not 0 <= level < len(lanes) or not len(lanes[level]):
        return None
    lane = lanes[level]
    span = lane.at(time)
    if span is None:
        first, stop = lane.within(time - reach, time + reach)
        if stop <= first:
            return None
        span = first + int(np.argmax(lane.end[first:stop] - lane.start[first:stop]))
    return _hit(data, row, level, span)


def neighbour(data: TimelineData, row: int, level: int, number: int, by: int) -> HitFields | None:
    """Span before (-1) or after (1) another one of its lane."""
    lane = data.row(row).lanes[level]
    places = np.flatnonzero(lane.id == number)
    span = int(places[0 if by < 0 else -1]) + by if len(places) else -1
    return _hit(data, row, level, span) if 0 <= span < len(lane) else None


def find_window(
    trace: Trace, *, rank: int | None, step: int | None, layer: int | None
) -> list[float]:
    """Window of a step, or of a layer of a step, on a rank; by default on the first rank and in
    the first step.
    """
    if layer is None:
        frame = (
            whole_steps(trace)
            .select(
                "rank",
                "step",
                start_ns=pl.coalesce("start_ns", "host_start_ns"),
                dur_ns=pl.coalesce("dur_ns", "host_dur_ns"),
            )
            .drop_nulls()
        )
    else:
        frame = layers(trace)
    conditions = {"rank": rank, "step": step, "layer": layer}
    for column, value in conditions.items():
        if column in frame.columns:
            numbers: Sequence[int] = frame[column].drop_nulls().unique().sort().to_list()
            if not numbers:
                raise AnalysisError(f"no {column} was found in this trace")
            if value is not None and value not in numbers:
                words = ", ".join(
                    f"{name} {number}" for name, number in conditions.items() if number is not None
                )
                raise AnalysisError(
                    f"there is no {words}",
                    expected=f"a {column} from {numbers[0]} to {numbers[-1]}",
                )
            frame = frame.filter(pl.col(column) == (numbers[0] if value is None else value))
    start, dur = frame.select("start_ns", "dur_ns").row(0)
    return [float(start), float(start + max(dur, 1))]


FLOWS = 40
"""Most arrows from one call."""


def describe_span(
    data: TimelineData, row: int, number: int, metrics: pl.DataFrame | None = None
) -> dict[str, Any]:
    """Facts about a span, and arrows to the call that launched it or to the events that it
    launched.
    """
    drawn = data.row(row)
    span = locate(data, row, number)
    if span is None:
        raise AnalysisError(f"row {row} ({drawn.label}) has no span {number}")
    source = data.events if drawn.kind == "stream" and not data.found else data.frame(drawn.kind)
    record = source.row(number, named=True)
    facts = [
        ("duration", format_ns(record.get("dur_ns"))),
        ("start", f"{record.get('start_ns') or 0:,} ns"),
    ]
    flows, target = [], None
    if drawn.kind == "stream":
        facts += _device_facts(data, record, metrics)
        flows = _launch_of(data, record, row, span)
    elif drawn.kind in HOST:
        facts += _source(record)
        facts += _pairs(
            record, {"api": "API", "domain": "domain", "shapes": "shapes", "dtypes": "types"}
        )
        flows = _launched_by(data, record, drawn, row, span) if drawn.kind != "markers" else []
    elif drawn.kind == PATH_KIND:
        facts += path_facts(source, number)
        target = _target(data, record)
    elif drawn.kind in data.queried:
        facts += [(name, str(value)) for name, value in record.items() if value is not None]
    else:
        facts += _found_facts(record)
    words = [list(fact) for fact in facts]
    return {
        "hit": span,
        "facts": words,
        "flows": flows,
        "target": target,
        "kind": drawn.kind,
        "label": drawn.label,
    }


def span_labels(data: TimelineData, row: int, number: int) -> dict[str, Any]:
    """Rank, step, layer, stage and kernel of a span, as far as they are known."""
    drawn = data.row(row)
    if drawn.kind == REQUEST_KIND:
        step = data.frame(drawn.kind)["step"][number]
        return {} if step is None else {"step": step}
    if drawn.kind in HOST or drawn.kind == "counter":
        return {"rank": drawn.rank}
    if drawn.kind == "stream" and not data.found:
        return {"rank": drawn.rank, "kernel": data.events["name"][number]}
    record = data.frame(drawn.kind).row(number, named=True)
    if drawn.kind in data.queried:
        return {"rank": record["rank"]} if record.get("rank") in data.trace.ranks else {}
    labels = {
        name: record.get(name)
        for name in ("step", "layer", "stage")
        if record.get(name) is not None
    }
    if drawn.kind == "stream":
        labels["kernel"] = record["name"]
    return {"rank": record["rank"] if drawn.kind == PATH_KIND else drawn.rank, **labels}


def _device_facts(
    data: TimelineData, record: Mapping[str, Any], metrics: pl.DataFrame | None
) -> list[Fact]:
    step, phase = record.get("step"), record.get("phase")
    facts = _pairs(record, {"category": "category", "stage": "stage", "layer": "layer"})
    if step is not None:
        facts.insert(0, ("step", f"{step} · {phase}"))
    if record.get("launch_start_ns") is not None and record.get("source") != "op":
        facts.append(("launch delay", format_ns(record["start_ns"] - record["launch_start_ns"])))
    facts += _operator(data, record) + _calls(data, record)
    facts += _shape(data, record)
    if metrics is not None:
        joined = metrics.filter(pl.col("event") == record["event"])
        facts += [
            (f"ncu: {name}", str(value))
            for name, value in zip(joined["fact"], joined["value"], strict=True)
        ]
    return facts


def _operator(data: TimelineData, record: Mapping[str, Any]) -> list[Fact]:
    """Operator that launched a kernel, with its shapes: by id, or else the innermost one around
    the launch.
    """
    if not data.trace.has("ops") or record.get("source") == "op" or data.too_large:
        return []
    ops = data.trace.ops
    number: int | None = None
    if record.get("op_id") is not None:
        of_rank = (ops["rank"] == record["rank"]) & (ops["op_id"] == record["op_id"])
        number = of_rank.arg_max() if of_rank.any() else None
    if number is None and (launch := record.get("launch_start_ns")) is not None:
        row = _host_row(data, "ops", record["rank"], record["launch_thread"])
        for lane in row[1].lanes if row else []:
            inside = lane.at(launch)
            number = number if inside is None else int(lane.id[inside])
    if number is None:
        return []
    op = ops.row(number, named=True)
    return [("operator", op["name"]), *_pairs(op, {"shapes": "shapes"})]


_SOURCE = re.compile(r"^(?P<file>.+)\((?P<line>\d+)\): (?P<function>.+)$")


def _source(record: Mapping[str, Any]) -> list[Fact]:
    """File, line and function of a Python function, as torch's profiler names it:

    ``file.py(12): function``.
    """
    match = _SOURCE.match(record["name"] or "") if record.get("kind") == "python" else None
    return [(name, match[name]) for name in ("file", "line", "function")] if match else []


def _calls(data: TimelineData, record: Mapping[str, Any]) -> list[Fact]:
    """Innermost module and Python function around the launch of a kernel."""
    launch: float | None = record.get("launch_start_ns")
    facts: list[Fact] = []
    if launch is None:
        return facts
    for kind, label in (("modules", "module"), ("python", "Python")):
        row = _host_row(data, kind, record["rank"], record.get("launch_thread"))
        inside = [
            (lane, span)
            for lane in (row[1].lanes if row else [])
            if (span := lane.at(launch)) is not None
        ]
        if inside:
            lane, span = inside[-1]
            facts.append((label, data.names.full[int(lane.name[span])].removeprefix("nn.Module: ")))
    return facts


def _shape(data: TimelineData, record: Mapping[str, Any]) -> list[Fact]:
    """Grid and block of a kernel, size of a copy."""
    table = {"kernel": "kernels", "copy": "copies"}.get(record.get("source", ""), "")
    if table not in data.trace.table_names:
        return []
    frame = data.trace.table(table)
    same = [pl.col(c).eq_missing(pl.lit(record[c])) for c in ("rank", "stream", "start_ns")]
    rows = frame.filter(*same).filter(pl.col("name") == record["name"])
    if not rows.height:
        return []
    row = rows.row(0, named=True)
    if table == "copies":
        return [("size", format_bytes(row["bytes"])), *_pairs(row, {"kind": "direction"})]
    if row["grid_x"] is None:
        return []
    grid, block = (
        " x ".join(str(row[f"{side}_{axis}"]) for axis in "xyz") for side in ("grid", "block")
    )
    return [("grid", grid), ("block", block), *_pairs(row, {"registers": "registers a thread"})]


_DURATIONS = {
    "busy_ns": "busy",
    "wait_ns": "waiting",
    "transfer_ns": "transfer",
    "arrival_skew_ns": "arrival skew",
    "host_dur_ns": "on the host",
    "gap_ns": "whole gap",
}
_FOUND = {
    "part": "part",
    "id": "identifier",
    "tokens": "its tokens",
    "phase": "phase",
    "step": "step",
    "layer": "layer",
    "stage": "stage",
    "kernels": "kernels",
    "kind": "kind",
    "algorithm": "algorithm",
    "world": "ranks in the group",
    "last_rank": "last rank",
    "cause": "cause",
    "next_name": "next event",
    "after_name": "event before",
    "host_name": "the host is in",
    "waited_name": "held by",
    "call": "waits in",
    "prefill_tokens": "prompt tokens",
    "decode_tokens": "generated tokens",
    "decode_requests": "requests in decode",
    "confidence": "confidence",
    "source": "label of",
    "name": "label",
}


def _found_facts(record: Mapping[str, Any]) -> list[Fact]:
    facts = _pairs(record, _FOUND)
    facts += [
        (text, format_ns(record[name]))
        for name, text in _DURATIONS.items()
        if record.get(name) is not None
    ]
    if record.get("bytes") is not None:
        facts.append(("message", format_bytes(record["bytes"])))
    if record.get("bus_gbps") is not None:
        facts.append(("bus bandwidth", f"{record['bus_gbps']:,.1f} GB/s"))
    return facts


def _pairs(record: Mapping[str, Any], labels: Mapping[str, str]) -> list[Fact]:
    return [
        (text, str(record[name]))
        for name, text in labels.items()
        if record.get(name) not in (None, "")
    ]


def _host_row(
    data: TimelineData, kind: str, rank: int, thread: int | None
) -> tuple[int, TimelineRow] | None:
    for number, row in enumerate(data.rows):
        if (row.kind, row.rank, row.thread) == (kind, rank, thread):
            return number, row
    return None


def _launch_of(
    data: TimelineData, record: Mapping[str, Any], row: int, span: HitFields
) -> list[Any]:
    """Arrow from the host call that launched a device event."""
    launch = record.get("launch_start_ns")
    host = (
        _host_row(data, "runtime", record["rank"], record.get("launch_thread"))
        if launch is not None
        else None
    )
    if host is None or launch is None:
        return []
    level = next((n for n, lane in enumerate(host[1].lanes) if lane.at(launch) is not None), 0)
    return [
        [
            {"row": host[0], "level": level, "time": launch},
            _end(row, span["level"], record["start_ns"]),
        ]
    ]


def _launched_by(
    data: TimelineData, record: Mapping[str, Any], drawn: TimelineRow, row: int, span: HitFields
) -> list[Any]:
    """Arrows to the device events that a host call, or an operator, launched."""
    if not data.found:
        return []
    events = data.frame("stream").filter(rank=drawn.rank)
    if drawn.kind == "runtime" and record["correlation"] is not None:
        launched = events.filter(pl.col("correlation") == record["correlation"])
    else:
        until = record["start_ns"] + record["dur_ns"]
        inside = pl.col("launch_start_ns").is_between(record["start_ns"], until, closed="left")
        launched = events.filter(
            inside & (pl.col("source") != "op"), pl.col("launch_thread").eq_missing(drawn.thread)
        )
    streams = {(r.rank, r.stream): n for n, r in enumerate(data.rows) if r.kind == "stream"}
    flows = []
    for event in launched.head(FLOWS).iter_rows(named=True):
        number = streams.get((event["rank"], (event["device"], event["stream"])))
        if number is not None:
            start = event["launch_start_ns"]
            flows.append([_end(row, span["level"], start), _end(number, 0, event["start_ns"])])
    return flows


def _target(data: TimelineData, record: Mapping[str, Any]) -> HitFields | None:
    """The event that a part of the critical path is or leads to; None where it has no row."""
    rank, event = record["rank"], record["event"]
    if event is not None:
        device, stream = data.events.select("device", "stream").row(event)
        streams = (
            n
            for n, row in enumerate(data.rows)
            if (row.rank, row.stream) == (rank, (device, stream))
        )
        number = next(streams, None)
        return None if number is None else locate(data, number, event)
    for kind, time in led_to(record):
        if (host := _host_row(data, kind, rank, record["thread"])) is None:
            continue
        number, row = host
        inside = [
            (n, lane, span)
            for n, lane in enumerate(row.lanes)
            if (span := lane.at(time)) is not None
        ]
        named = [
            one for one in inside if data.names.full[int(one[1].name[one[2]])] == record["name"]
        ]
        if inside:
            level, _, span = (named or inside)[-1]
            return _hit(data, number, level, span)
    return None


def _end(row: int, level: int, time: float) -> dict[str, Any]:
    return {"row": row, "level": level, "time": time}
