"""Descriptions of the spans of a timeline, and of the spans that they are connected to."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from llmprof.analyze.layers.layers import layers
from llmprof.analyze.steps.steps import steps
from llmprof.errors import AnalysisError
from llmprof.explore.timeline.data import HOST, TimelineData
from llmprof.explore.timeline.path import PATH_KIND, led_to, path_facts
from llmprof.explore.timeline.rows import REQUEST_KIND, Row
from llmprof.trace import Trace
from llmprof.units import format_bytes, format_ns

Hit = dict[str, Any]


def hit(data: TimelineData, row: int, level: int, index: int) -> Hit:
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


def locate(data: TimelineData, row: int, number: int) -> Hit | None:
    """First span of a row that has an id."""
    for level, lane in enumerate(data.row(row).lanes):
        if len(places := np.flatnonzero(lane.id == number)):
            return hit(data, row, level, int(places[0]))
    return None


def pick(data: TimelineData, row: int, level: int, time: float, reach: float) -> Hit | None:
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
    return hit(data, row, level, span)


def neighbour(data: TimelineData, row: int, level: int, number: int, by: int) -> Hit | None:
    """Span before (-1) or after (1) another one of its lane."""
    lane = data.row(row).lanes[level]
    places = np.flatnonzero(lane.id == number)
    span = int(places[0 if by < 0 else -1]) + by if len(places) else -1
    return hit(data, row, level, span) if 0 <= span < len(lane) else None


def place_of(trace: Trace, *, rank: int | None, step: int | None, layer: int | None) -> list[float]:
    """Window of a step, or of a layer of a step, on a rank; by default on the first rank and in the first step."""
    if layer is None:
        frame = steps(trace).select(
            "rank", "step", start_ns=pl.coalesce("start_ns", "host_start_ns"),
            dur_ns=pl.coalesce("dur_ns", "host_dur_ns"),
        ).drop_nulls()  # fmt: skip
    else:
        frame = layers(trace, per="layer")
    for column, value in {"rank": rank, "step": step, "layer": layer}.items():
        if column in frame.columns:
            frame = _narrowed(frame, column, value, {"rank": rank, "step": step, "layer": layer})
    start, dur = frame.select("start_ns", "dur_ns").row(0)
    return [float(start), float(start + max(dur, 1))]


def _narrowed(
    frame: pl.DataFrame, column: str, value: int | None, conditions: Mapping[str, int | None]
) -> pl.DataFrame:
    numbers: Sequence[int] = frame[column].drop_nulls().unique().sort().to_list()
    if not numbers:
        raise AnalysisError(f"no {column} was found in this trace")
    if value is not None and value not in numbers:
        words = ", ".join(f"{name} {number}" for name, number in conditions.items() if number is not None)
        raise AnalysisError(f"there is no {words}", expected=f"a {column} from {numbers[0]} to {numbers[-1]}")
    return frame.filter(pl.col(column) == (numbers[0] if value is None else value))


FLOWS = 40
"""Most arrows from one call."""

Fact = tuple[str, str]


def describe(data: TimelineData, row: int, number: int, metrics: pl.DataFrame | None = None) -> dict[str, Any]:
    """Facts about a span, and arrows to the call that launched it or to the events that it launched."""
    drawn = data.row(row)
    span = locate(data, row, number)
    if span is None:
        raise AnalysisError(f"row {row} ({drawn.label}) has no span {number}")
    source = data.events if drawn.kind == "stream" and not data.found else data.frame(drawn.kind)
    record = source.row(number, named=True)
    facts = [("duration", format_ns(record.get("dur_ns"))), ("start", f"{record.get('start_ns') or 0:,} ns")]
    target = None
    if drawn.kind == "stream":
        facts = [*facts, *_device_facts(data, record, metrics)]
        flows = _launch_of(data, record, row, span)
    elif drawn.kind in HOST:
        facts = [
            *facts,
            *_source(record),
            *_pairs(record, {"api": "API", "domain": "domain", "shapes": "shapes", "dtypes": "types"}),
        ]
        flows = _launched_by(data, record, drawn, row, span) if drawn.kind != "markers" else []
    elif drawn.kind == PATH_KIND:
        facts = [*facts, *path_facts(source, number)]
        flows, target = [], _target(data, record)
    else:
        facts = [*facts, *_found_facts(record)]
        flows = []
    words = [list(fact) for fact in facts]
    return {"hit": span, "facts": words, "flows": flows, "target": target, "kind": drawn.kind, "label": drawn.label}


def place(data: TimelineData, row: int, number: int) -> dict[str, Any]:
    """Rank, step, layer and stage of a span, as far as they are known."""
    drawn = data.row(row)
    if drawn.kind == REQUEST_KIND:
        step = data.frame(drawn.kind)["step"][number]
        return {} if step is None else {"step": step}
    if drawn.kind in HOST or drawn.kind == "counter" or (drawn.kind == "stream" and not data.found):
        return {"rank": drawn.rank}
    record = data.frame(drawn.kind).row(number, named=True)
    labels = {name: record.get(name) for name in ("step", "layer", "stage") if record.get(name) is not None}
    return {"rank": record["rank"] if drawn.kind == PATH_KIND else drawn.rank, **labels}


def _device_facts(data: TimelineData, record: Mapping[str, Any], metrics: pl.DataFrame | None) -> list[Fact]:
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
        facts += [(f"ncu: {name}", str(value)) for name, value in zip(joined["fact"], joined["value"], strict=True)]
    return facts


def _operator(data: TimelineData, record: Mapping[str, Any]) -> list[Fact]:
    """Operator that launched a kernel, with its shapes: by id, or else the innermost one around the launch."""
    if not data.trace.has("ops") or record.get("source") == "op":
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
    """File, line and function of a Python function, as torch's profiler names it: ``file.py(12): function``."""
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
        inside = [(lane, span) for lane in (row[1].lanes if row else []) if (span := lane.at(launch)) is not None]
        if inside:
            lane, span = inside[-1]
            facts.append((label, data.names.full[int(lane.name[span])].removeprefix("nn.Module: ")))
    return facts


def _shape(data: TimelineData, record: Mapping[str, Any]) -> list[Fact]:
    """Grid and block of a kernel, size of a copy."""
    table = {"kernel": "kernels", "copy": "copies"}.get(record.get("source", ""), "")
    if table not in data.trace.tables:
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
    grid, block = (" x ".join(str(row[f"{side}_{axis}"]) for axis in "xyz") for side in ("grid", "block"))
    return [("grid", grid), ("block", block), *_pairs(row, {"registers": "registers a thread"})]


_DURATIONS = {"busy_ns": "busy", "wait_ns": "waiting", "transfer_ns": "transfer", "arrival_skew_ns": "arrival skew",
              "host_dur_ns": "on the host", "gap_ns": "whole gap"}  # fmt: skip
_FOUND = {"part": "part", "id": "identifier", "tokens": "its tokens",
          "phase": "phase", "step": "step", "layer": "layer", "stage": "stage", "kernels": "kernels", "kind": "kind",
          "algorithm": "algorithm", "world": "ranks in the group", "last_rank": "last rank", "cause": "cause",
          "next_name": "next event", "after_name": "event before", "doing": "the host is in",
          "held_by": "held by", "sync_name": "waits in", "context_tokens": "prompt tokens",
          "generation_tokens": "generated tokens", "generation_requests": "requests in decode",
          "confidence": "confidence", "source": "label of", "name": "label"}  # fmt: skip


def _found_facts(record: Mapping[str, Any]) -> list[Fact]:
    facts = _pairs(record, _FOUND)
    facts += [(text, format_ns(record[name])) for name, text in _DURATIONS.items() if record.get(name) is not None]
    if record.get("bytes") is not None:
        facts.append(("message", format_bytes(record["bytes"])))
    if record.get("bus_gbps") is not None:
        facts.append(("bus bandwidth", f"{record['bus_gbps']:,.1f} GB/s"))
    return facts


def _pairs(record: Mapping[str, Any], labels: Mapping[str, str]) -> list[Fact]:
    return [(text, str(record[name])) for name, text in labels.items() if record.get(name) not in (None, "")]


def _host_row(data: TimelineData, kind: str, rank: int, thread: int | None) -> tuple[int, Row] | None:
    for number, row in enumerate(data.rows):
        if (row.kind, row.rank, row.thread) == (kind, rank, thread):
            return number, row
    return None


def _launch_of(data: TimelineData, record: Mapping[str, Any], row: int, span: Hit) -> list[Any]:
    """Arrow from the host call that launched a device event."""
    launch = record.get("launch_start_ns")
    host = _host_row(data, "runtime", record["rank"], record.get("launch_thread")) if launch is not None else None
    if host is None or launch is None:
        return []
    level = next((n for n, lane in enumerate(host[1].lanes) if lane.at(launch) is not None), 0)
    return [[{"row": host[0], "level": level, "time": launch}, _end(row, span["level"], record["start_ns"])]]


def _launched_by(data: TimelineData, record: Mapping[str, Any], drawn: Row, row: int, span: Hit) -> list[Any]:
    """Arrows to the device events that a host call, or an operator, launched."""
    if not data.found:
        return []
    events = data.frame("stream").filter(pl.col("rank") == drawn.rank)
    if drawn.kind == "runtime" and record["correlation"] is not None:
        launched = events.filter(pl.col("correlation") == record["correlation"])
    else:
        until = record["start_ns"] + record["dur_ns"]
        inside = pl.col("launch_start_ns").is_between(record["start_ns"], until, closed="left")
        launched = events.filter(inside & (pl.col("source") != "op"), pl.col("launch_thread").eq_missing(drawn.thread))
    streams = {(r.rank, r.stream): n for n, r in enumerate(data.rows) if r.kind == "stream"}
    flows = []
    for event in launched.head(FLOWS).iter_rows(named=True):
        number = streams.get((event["rank"], (event["device"], event["stream"])))
        if number is not None:
            start = event["launch_start_ns"]
            flows.append([_end(row, span["level"], start), _end(number, 0, event["start_ns"])])
    return flows


def _target(data: TimelineData, record: Mapping[str, Any]) -> Hit | None:
    """The event that a part of the critical path is or leads to; None where it has no row."""
    rank, event = record["rank"], record["event"]
    if event is not None:
        device, stream = data.events.select("device", "stream").row(event)
        streams = (n for n, row in enumerate(data.rows) if (row.rank, row.stream) == (rank, (device, stream)))
        number = next(streams, None)
        return None if number is None else locate(data, number, event)
    for kind, time in led_to(record):
        if (host := _host_row(data, kind, rank, record["thread"])) is None:
            continue
        number, row = host
        inside = [(n, lane, span) for n, lane in enumerate(row.lanes) if (span := lane.at(time)) is not None]
        named = [
            candidate for candidate in inside if data.names.full[int(candidate[1].name[candidate[2]])] == record["name"]
        ]
        if inside:
            level, _, span = (named or inside)[-1]
            return hit(data, number, level, span)
    return None


def _end(row: int, level: int, time: float) -> dict[str, Any]:
    return {"row": row, "level": level, "time": time}
