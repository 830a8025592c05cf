"""Reads the timeline JSON of torch_npu, msprof and MindSpore into columns, with exact times.

The layers of a recording are processes of a Chrome trace. The name of a process says which layer it
is: Python, CANN, Ascend Hardware, HCCL or Communication, Overlap Analysis, and counters.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
import polars as pl

from llmprof.errors import ReadError
from llmprof.names.matching import first_true
from llmprof.readers.ascend.files import ns_of_text
from llmprof.readers.common.event_stream import BLOCK_BYTES, EventStream
from llmprof.readers.common.reader import IMPOSSIBLE
from llmprof.readers.common.repair import ListDecoder, fit_struct, objects
from llmprof.text import Progress

LAYERS: Final[tuple[tuple[str, str], ...]] = (
    ("device", r"^ascend hardware|^task scheduler|^npu$"),
    ("communication", r"^(?:hccl|communication)"),
    ("overlap", r"^overlap analysis"),
    ("cann", r"^cann"),
    ("steps", r"^step trace"),
    ("msproftx", r"mstx|msproftx|^pytorch profiler tx"),
    ("host", r"^python|^pytorch|^torch|^mindspore|^host"),
)
"""Layers, and patterns of the names of their processes (in any case)."""

TO_OPS, TO_CALLS = "async_npu", "HostToDevice"
"""Categories of the flows to device events: from operators of torch, and from calls."""


class _LayerEvent(msgspec.Struct, gc=False):
    ph: Any = None
    cat: Any = None
    name: Any = None
    pid: Any = None
    tid: Any = None
    id: Any = None
    ts: msgspec.Raw = msgspec.Raw(b"")
    dur: msgspec.Raw = msgspec.Raw(b"")
    args: msgspec.Raw = msgspec.Raw(b"{}")


def _arg(*names: str) -> Any:
    return msgspec.field(default=None, name=names[0])


class AscendArgs(msgspec.Struct, gc=False):
    """Arguments of the events of all layers; their types depend on the version."""

    connection: Any = _arg("connection_id")
    queue: Any = _arg("correlation_id")
    level: Any = _arg("level")
    task_type: Any = _arg("Task Type")
    stream: Any = _arg("Stream Id")
    stream_physical: Any = _arg("Physic Stream Id")
    task: Any = _arg("Task Id")
    context: Any = _arg("Subtask Id")
    context_new: Any = _arg("Context Id")
    shapes: Any = _arg("Input Dims")
    shapes_new: Any = _arg("Input Shapes")
    dtypes: Any = _arg("Input type")
    stack: Any = _arg("Call stack")
    hccl_stream: Any = _arg("stream id")
    hccl_task: Any = _arg("task id")
    hccl_context: Any = _arg("context id")
    src_rank: Any = _arg("src rank")
    dst_rank: Any = _arg("dst rank")
    link: Any = _arg("link type")
    transport: Any = _arg("transport type")
    size: Any = _arg("size(Byte)")
    notify: Any = _arg("notify_id")
    count: Any = _arg("count")
    data_type: Any = _arg("data_type")
    algorithm: Any = _arg("alg_type")
    name: Any = _arg("name")
    domain: Any = _arg("domain")


_EVENTS: Final = msgspec.json.Decoder(list[_LayerEvent])
_ELEMENTS: Final = msgspec.json.Decoder(list[msgspec.Raw])
_ARGS: Final = ListDecoder(AscendArgs)

_INTEGERS: Final = (
    "connection",
    "queue",
    "stream",
    "stream_physical",
    "task",
    "context",
    "context_new",
    "hccl_stream",
    "hccl_task",
    "hccl_context",
    "src_rank",
    "dst_rank",
    "size",
    "notify",
    "count",
)
_TEXTS: Final = (
    "level",
    "task_type",
    "shapes",
    "shapes_new",
    "dtypes",
    "stack",
    "link",
    "transport",
    "data_type",
    "algorithm",
    "domain",
)
_MOST: Final = 2**62


@dataclass(slots=True)
class AscendTimeline:
    """Content of one or more timeline files.

    ``events``: ``layer, cat, name, process, thread, thread_name, start_ns, dur_ns`` and the
    arguments; ``counters``: ``layer, name, time_ns, series, value``; ``flows``: ``name``
    (the category), ``id, is_source, process, thread, start_ns``.
    """

    events: pl.DataFrame
    counters: pl.DataFrame
    flows: pl.DataFrame
    coverage: dict[str, Any] = field(default_factory=dict)

    def layer(self, *names: str) -> pl.DataFrame:
        """Events of some layers."""
        return self.events.filter(pl.col("layer").is_in(names))


def read_timelines(
    paths: Sequence[Path], *, python_functions: bool = True, progress: Progress | None = None
) -> AscendTimeline:
    """Read timeline files of one rank."""
    files = [_read(path, python_functions=python_functions, progress=progress) for path in paths]
    coverage = {
        key: sum(part.coverage[key] for part in files)
        for key in ("events", "bytes", "lost_bytes", "lost_pieces")
    }
    coverage["truncated"] = next(
        (part.coverage["truncated"] for part in files if part.coverage["truncated"]), ""
    )
    coverage["repaired"] = any(part.coverage["repaired"] for part in files)
    tables = [
        pl.concat([getattr(part, table) for part in files], how="diagonal_relaxed").unique(
            maintain_order=True
        )
        if len(files) > 1
        else getattr(files[0], table)
        for table in ("events", "counters", "flows")
    ]
    return AscendTimeline(tables[0], tables[1], tables[2], coverage)


def _decode(text: bytes) -> list[Any]:
    try:
        return _EVENTS.decode(text)
    except msgspec.ValidationError:
        return [fit_struct(_LayerEvent, element)[0] for element in _ELEMENTS.decode(text)]


def _read(path: Path, *, python_functions: bool, progress: Progress | None) -> AscendTimeline:
    stream = EventStream(path, BLOCK_BYTES)
    parts: dict[str, list[pl.DataFrame]] = defaultdict(list)
    processes: dict[int, str] = {}
    threads: dict[tuple[int, int], str] = {}
    total = 0
    for batch in stream.batches(_decode):
        total += len(batch)
        by_phase: dict[Any, list[_LayerEvent]] = defaultdict(list)
        for event in batch:
            by_phase[event.ph if isinstance(event.ph, str) else None].append(event)
        for event in by_phase.get("M", ()):
            _describe(event, processes, threads)
        spans = by_phase.get("X", [])
        if not python_functions:
            spans = [event for event in spans if event.cat != "python_function"]
        if spans:
            parts["events"].append(_spans(spans))
        if "C" in by_phase:
            parts["counters"].append(_samples(by_phase["C"]))
        arrows = [e for ph in "stf" for e in by_phase.get(ph, ()) if e.cat in (TO_OPS, TO_CALLS)]
        if arrows:
            parts["flows"].append(_arrows(arrows))
        if progress is not None:
            progress(path.name, stream.blocks.read_bytes, path.stat().st_size)
    if not total and (stream.lost_pieces or stream.truncated):
        found = f"{path.name} has no complete event: {stream.truncated or 'it is not valid JSON'}"
        raise ReadError(
            found,
            hint="export it again: torch_npu.profiler.profiler.analyse, or msprof --export=on",
        )
    coverage = {
        "events": total,
        "bytes": stream.total_bytes,
        "lost_bytes": stream.lost_bytes,
        "lost_pieces": stream.lost_pieces,
        "truncated": stream.truncated,
        "repaired": stream.repaired,
    }
    layer = _layers(processes)
    frames = {name: pl.concat(frames, how="vertical_relaxed") for name, frames in parts.items()}
    events = frames.get("events", _spans([])).join(
        layer, on="process", how="left", maintain_order="left"
    )
    nameless = pl.col("process_name").is_null()
    events = events.with_columns(
        layer=pl.when(nameless).then(_layer_of_events()).otherwise("layer")
    )
    types = {"process": pl.Int64, "thread": pl.Int64, "thread_name": pl.String}
    named = pl.DataFrame(
        [(*key, name) for key, name in threads.items()], schema=types, orient="row"
    )
    events = events.join(named, on=["process", "thread"], how="left", maintain_order="left")
    events = events.filter(pl.col("start_ns").is_not_null() & pl.col("name").is_not_null())
    counters = frames.get("counters", _samples([])).join(
        layer, on="process", how="left", maintain_order="left"
    )
    return AscendTimeline(events, counters, frames.get("flows", _arrows([])), coverage)


def _describe(
    event: _LayerEvent, processes: dict[int, str], threads: dict[tuple[int, int], str]
) -> None:
    """Remember the name of a process or thread."""
    name = objects([event.args])[0].get("name")
    process, thread = _integer(event.pid), _integer(event.tid)
    if not isinstance(name, str) or process is None:
        return
    if event.name == "process_name":
        processes[process] = name
    elif event.name == "thread_name" and thread is not None:
        threads[process, thread] = name


def _layers(processes: dict[int, str]) -> pl.DataFrame:
    rows = []
    for process, name in processes.items():
        layer = next(
            (layer for layer, pattern in LAYERS if re.search(pattern, name, re.IGNORECASE)), None
        )
        rows.append((process, layer, name))
    return pl.DataFrame(
        rows,
        schema={"process": pl.Int64, "layer": pl.String, "process_name": pl.String},
        orient="row",
    )


def _layer_of_events() -> pl.Expr:
    """Layer of events whose process has no name, as in a file that lost its end, where the names
    are.
    """
    name = pl.col("name")
    return first_true(
        {
            "device": pl.col("task_type").is_not_null(),
            "communication": pl.col("hccl_stream").is_not_null() | name.str.starts_with("hcom_"),
            "cann": name.str.contains(r"^(?:AscendCL|Node|Hccl|Model|Runtime)@"),
            "host": pl.col("cat").is_in(["cpu_op", "enqueue", "dequeue", "python_function"]),
            "overlap": name.str.contains(
                r"^(?:Computing|Communication(?:\(Not Overlapped\))?|Free)$"
            ),
        }
    )


def _spans(events: list[_LayerEvent]) -> pl.DataFrame:
    """Complete events with their arguments as columns."""
    args = _ARGS([event.args for event in events])
    columns = {
        "cat": _texts([e.cat for e in events]),
        "name": _texts([e.name for e in events]),
        "process": _integers([e.pid for e in events]),
        "thread": _integers([e.tid for e in events]),
        "start": _decimals([e.ts for e in events]),
        "dur": _decimals([e.dur for e in events]),
        **{name: _integers([getattr(a, name) for a in args]) for name in _INTEGERS},
        **{name: _texts([getattr(a, name) for a in args]) for name in _TEXTS},
    }
    frame = pl.DataFrame(columns)
    return frame.with_columns(
        start_ns=ns_of_text(pl.col("start"), unreadable=IMPOSSIBLE),
        dur_ns=ns_of_text(pl.col("dur"), unreadable=IMPOSSIBLE).fill_null(0),
    ).drop("start", "dur")


def _samples(events: list[_LayerEvent]) -> pl.DataFrame:
    """Counters, with one row for each number of each event."""
    values_of = objects([event.args for event in events])
    of_event, series, numbers = [], [], []
    for number, values in enumerate(values_of):
        for key, value in values.items():
            if isinstance(value, int | float) and key != "acc_id":
                of_event.append(number)
                series.append(key)
                numbers.append(value)
    devices = [values.get("acc_id") for values in values_of]
    names = [event.name if isinstance(event.name, str) else None for event in events]
    both = zip(names, devices, strict=True)
    names = [
        name if name is None or device is None else f"{name} acc {device}" for name, device in both
    ]
    samples = pl.DataFrame(
        {
            "process": _integers([event.pid for event in events]),
            "name": pl.Series(names, dtype=pl.String),
            "time": _decimals([event.ts for event in events]),
        }
    )
    frame = samples[pl.Series(of_event, dtype=pl.UInt32)].with_columns(
        series=pl.Series(series, dtype=pl.String),
        value=pl.Series(numbers, dtype=pl.Float64, strict=False),
    )
    frame = frame.drop_nulls("name").with_columns(time_ns=ns_of_text(pl.col("time"))).drop("time")
    return frame.drop_nulls("time_ns")


def _arrows(events: list[_LayerEvent]) -> pl.DataFrame:
    """Flows from the host to its work on the device."""
    return pl.DataFrame(
        {
            "name": pl.Series([e.cat for e in events], dtype=pl.String),
            "id": pl.Series([None if e.id is None else str(e.id) for e in events], dtype=pl.String),
            "is_source": pl.Series([e.ph == "s" for e in events], dtype=pl.Boolean),
            "process": _integers([e.pid for e in events]),
            "thread": _integers([e.tid for e in events]),
            "start": _decimals([e.ts for e in events]),
        }
    ).select(pl.all().exclude("start"), start_ns=ns_of_text(pl.col("start")))


def _decimals(raws: list[msgspec.Raw]) -> pl.Series:
    """Numbers as text, since a float would round nanoseconds; line breaks separate them, as no
    JSON number has one.
    """
    lines = b"\n".join(raws).decode("ascii", "replace").split("\n") if raws else []
    digits = pl.Series(lines, dtype=pl.String).str.strip_chars(' "\t\\')
    digits = digits.str.strip_suffix("\\t").str.strip_chars()
    return (
        digits.to_frame("digits").select(pl.when(pl.col("digits") != "").then("digits")).to_series()
    )


def _integer(value: Any) -> int | None:
    if type(value) is int:
        return value if -_MOST < value < _MOST else None
    if isinstance(value, str):
        text = value.strip().removeprefix("stream ")
        return (
            _integer(int(text)) if text.removeprefix("-").isdecimal() and len(text) < 20 else None
        )
    return (
        int(value)
        if isinstance(value, float) and value.is_integer() and abs(value) < _MOST
        else None
    )


def _integers(values: list[Any]) -> pl.Series:
    whole = [
        v if v is None or (type(v) is int and -_MOST < v < _MOST) else _integer(v) for v in values
    ]
    return pl.Series(whole, dtype=pl.Int64)


def _texts(values: list[Any]) -> pl.Series:
    return pl.Series(
        [v if v is None or type(v) is str else str(v) for v in values], dtype=pl.String
    )
