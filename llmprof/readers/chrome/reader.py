"""Reader of Chrome trace JSON, written by any version of the PyTorch profiler and by tools with the
same format.

The events come in batches, which are sorted by kind and turned into columns; several processes can
share the batches of one file.
"""

from __future__ import annotations

import gc
import json
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final

import msgspec
import polars as pl

from llmprof.errors import ReadError, listed
from llmprof.readers.chrome.batches import (
    NO_PHASE,
    Batches,
    DistinctTexts,
    EventBatch,
    LaneName,
    rank_numbers,
    split_ranks,
)
from llmprof.readers.chrome.events import EventDecoder, in_one_form
from llmprof.readers.common.event_stream import BLOCK_BYTES, EventStream
from llmprof.readers.common.flows import linked_by_flows, unlinked
from llmprof.readers.common.helpers import Done, Job, JobShare, is_worth_it, shared
from llmprof.readers.common.lanes import DEVICE_NAME, REPEATS, frames_by_lane
from llmprof.readers.common.reader import FilePart, Frames, Probe, Reader
from llmprof.readers.common.repair import BAD_JSON
from llmprof.text import Progress

_COPY_KIND: Final = re.compile(
    r"\b(?:copy|memcpy)?_?([HDP])(?:ost|evice|eer)?\s*(?:to|2)\s*([HDP])(?:ost|evice|eer)?\b",
    re.IGNORECASE,
)
_COPY_ENDS: Final = re.compile(r"\((\w+)\s*->\s*(\w+)\)")
_FILL: Final = re.compile(r"^(?:memset|fill)", re.IGNORECASE)

_DMA: Final = "dma_request"
_SIGNALS: Final = ("event_wait", "event_record")
_DIRECTIONS: Final = {
    "HOST_TO_DEVICE": "HtoD",
    "DEVICE_TO_HOST": "DtoH",
    "DEVICE_TO_DEVICE": "DtoD",
}

_MOST_DEVICES: Final = 1 << 12

_DESCRIPTION: Final = (
    "collective",
    "in_elements",
    "out_elements",
    "world",
    "dtype",
    "group",
    "group_ranks",
    "peer",
)
"""Columns of kernels that describe a collective, if the profiler wrote them."""


def _tables(
    frames: Mapping[str, pl.DataFrame], lane_names: Sequence[LaneName], texts: DistinctTexts
) -> Frames:
    """Tables of one file."""
    by_kind = {kind: _named(frame, texts) for kind, frame in frames.items()}
    for more in (
        _told_apart(by_kind.pop("process", None), lane_names),
        _of_queue(by_kind.pop("queue", None)),
    ):
        for kind, frame in more.items():
            by_kind[kind] = (
                pl.concat([by_kind[kind], frame], how="diagonal_relaxed")
                if kind in by_kind
                else frame
            )
    kernels = by_kind.get("kernel")
    if kernels is not None and "torch_annotation" in kernels.columns:
        by_kind |= {kind: _lanes(by_kind[kind]) for kind in ("kernel", "copy") if kind in by_kind}
        kernels = by_kind["kernel"]
    runtime = _concat(
        *(_with(by_kind.get(api), api=pl.lit(api)) for api in ("runtime", "driver", "os"))
    )
    if (markers := by_kind.get("device_marker")) is not None and "sync_kind" in markers.columns:
        runtime = _with_waits(runtime, markers)
        by_kind["device_marker"] = markers.drop(
            "sync_kind", "correlation", "wait_on_stream", "wait_on_record"
        )
    out = {
        "kernels": None if kernels is None else kernels.drop(_DESCRIPTION, strict=False),
        "copies": label_copies(by_kind.get("copy")),
        "runtime": runtime,
        "ops": _concat(
            _with(by_kind.get("op"), kind=pl.lit("op")),
            _with(by_kind.get("python"), kind=pl.lit("python")),
        ),
        "markers": _concat(
            _with(by_kind.get("marker"), on_device=pl.lit(False)),
            _with(by_kind.get("module"), on_device=pl.lit(False)),
            _with(by_kind.get("device_marker"), on_device=pl.lit(True)),
        ),
        "collectives": _collectives(kernels),
        "memory": None if (memory := by_kind.get("memory")) is None else memory.drop("name"),
        "counters": by_kind.get("counter"),
        "tasks": by_kind.get("tasks"),
        REPEATS: by_kind.get(REPEATS),
    }
    return {name: frame for name, frame in out.items() if frame is not None}


def _with_waits(calls: pl.DataFrame | None, markers: pl.DataFrame) -> pl.DataFrame | None:
    """Runtime calls, with the streams and the event record that the profiler's wait markers
    name.
    """
    if calls is None:
        return None
    kind, none = pl.col("sync_kind"), (-1, 2**32 - 1)
    stream_ids = {
        c: pl.when(~pl.col(c).is_in(none)).then(c)
        for c in ("stream", "wait_on_stream", "wait_on_record")
    }
    waits = markers.filter(kind.is_not_null() & pl.col("correlation").is_not_null()).select(
        "correlation",
        torch_waiting_stream=pl.when(kind == "Stream Wait Event").then(stream_ids["stream"]),
        torch_awaited_stream=pl.when(kind == "Stream Sync")
        .then(stream_ids["stream"])
        .otherwise(stream_ids["wait_on_stream"]),
        torch_awaited_call=stream_ids["wait_on_record"],
    )
    return calls.join(
        waits.unique("correlation"), on="correlation", how="left", maintain_order="left"
    )


def _of_queue(queue: pl.DataFrame | None) -> Frames:
    """Commands of an MTIA device: programs as kernels, DMA requests as copies, waits and signals
    as tasks.
    """
    if queue is None:
        return {}
    copies = pl.col("name") == _DMA
    tasks = pl.col("name").is_in(_SIGNALS)
    return {
        "kernel": queue.filter(~copies & ~tasks).drop("bytes", "direction"),
        "copy": queue.filter(copies),
        "tasks": (
            queue.filter(tasks).drop("bytes", "direction", "graph_node").with_columns(kind="name")
        ),
    }


def _lanes(frame: pl.DataFrame) -> pl.DataFrame:
    """Events with a null stream in CUDA graphs: if there are annotations, PyTorch puts them on
    lanes, not streams.
    """
    in_graph = pl.col("graph_node").is_not_null()
    lane = pl.when(in_graph).then("stream").cast(pl.Int64)
    return frame.with_columns(stream=pl.when(~in_graph).then("stream"), torch_lane=lane)


def _collectives(kernels: pl.DataFrame | None) -> pl.DataFrame | None:
    """Kernels that the profiler describes as collectives; None if it describes none."""
    if kernels is None or "collective" not in kernels.columns:
        return None
    described = kernels.filter(
        pl.col("collective").is_not_null() | pl.col("in_elements").is_not_null()
    )
    return described.select(
        "device",
        "stream",
        "start_ns",
        "dur_ns",
        "name",
        "correlation",
        "op_id",
        *(c for c in _DESCRIPTION[1:] if c in described.columns),
        recorded_as="collective",
        evidence=pl.lit("metadata"),
        on_device=pl.lit(True),
    )


def _named(frame: pl.DataFrame, texts: DistinctTexts) -> pl.DataFrame:
    """Frame with texts instead of codes, and with null for numbers that are not devices."""
    for place, column in enumerate(frame.columns):
        if column in _TEXTS:
            frame.replace_column(
                place, texts.texts(column, frame[column], _TEXTS[column]).alias(column)
            )
    if "device" in frame.columns:  # an identifier of the operating system is not a device
        frame = frame.with_columns(
            pl.when(pl.col("device").is_between(0, _MOST_DEVICES)).then("device").cast(pl.Int32)
        )
    return frame


def _told_apart(events: pl.DataFrame | None, lane_names: Sequence[LaneName]) -> Frames:
    """Events without a known category as frames by kind, which depends on the names of their
    process and lane.
    """
    if events is None:
        return {}
    schema = {"process": pl.Int64, "thread": pl.Int64, "lane": pl.String}
    names = pl.DataFrame(lane_names, schema=schema, orient="row")
    of_process = names.filter(pl.col("thread").is_null()).select("process", process_name="lane")
    events = events.join(of_process, on="process", how="left", maintain_order="left")
    events = events.join(names, on=["process", "thread"], how="left", maintain_order="left")
    return frames_by_lane(events)


def _concat(*frames: pl.DataFrame | None) -> pl.DataFrame | None:
    present = [frame for frame in frames if frame is not None]
    return (
        pl.concat(present, how="diagonal_relaxed")
        if len(present) > 1
        else present[0]
        if present
        else None
    )


def _with(frame: pl.DataFrame | None, **columns: pl.Expr) -> pl.DataFrame | None:
    return None if frame is None else frame.with_columns(**columns)


def label_copies(copies: pl.DataFrame | None) -> pl.DataFrame | None:
    """Copies with their kind and the kind of memory at both ends, as far as their name or
    direction shows them.
    """
    if copies is None:
        return None
    rows = [(name, *_copy_kind(name)) for name in copies["name"].unique()]
    schema = {"name": pl.String, "kind": pl.String, "src_kind": pl.String, "dst_kind": pl.String}
    named = copies.join(
        pl.DataFrame(rows, schema=schema, orient="row"),
        on="name",
        how="left",
        maintain_order="left",
    )
    if "direction" not in named.columns:
        return named
    by_direction = pl.col("direction").replace_strict(
        _DIRECTIONS, default=None, return_dtype=pl.String
    )
    return named.with_columns(kind=pl.coalesce(by_direction, "kind")).drop("direction")


def _copy_kind(name: str) -> tuple[str, str | None, str | None]:
    kind, ends = _COPY_KIND.search(name), _COPY_ENDS.search(name)
    moved = f"{kind[1].upper()}to{kind[2].upper()}" if kind else "unknown"
    source, target = (ends[1].lower(), ends[2].lower()) if ends else (None, None)
    return "memset" if _FILL.match(name) else moved, source, target


def _json_list(value: bytes | None, of_object: Callable[[dict[str, Any]], Any]) -> str | None:
    """Shapes or types as a JSON list on one line, also from the list of objects that ONNX
    Runtime writes.
    """
    if value is None:
        return None
    if _AS_DUMPED.fullmatch(value):
        return value.decode("ascii")
    document = msgspec.json.decode(value)
    if not isinstance(document, list):
        return None
    if any(isinstance(entry, dict) for entry in document):
        document = [of_object(entry) for entry in document if isinstance(entry, dict)]
    return json.dumps(document)


_AS_DUMPED: Final = re.compile(rb'\[(?:[\[\]]|, |(?:0|-?[1-9]\d{0,17})(?!\d)|"[ !#-\[\]-~]*")*+')
"""Valid JSON of lists, whole numbers and texts in ASCII that ``json.dumps`` would write the
same.
"""


def _annotation(value: Any) -> str | None:
    """Text of an annotation, which is JSON."""
    return None if value is None else str(msgspec.json.decode(value))


_TEXTS: Final[dict[str, Callable[[Any], str | None]]] = {
    **dict.fromkeys(("name", "domain", "unit", "rocm_kernel", "ort_op"), lambda value: value),
    **dict.fromkeys(
        ("shapes", "torch_strides"),
        lambda value: _json_list(value, lambda entry: next(iter(entry.values()), [])),
    ),
    **dict.fromkeys(
        ("dtypes", "torch_inputs"),
        lambda value: _json_list(value, lambda entry: next(iter(entry), "")),
    ),
    **dict.fromkeys(("torch_annotation", "rocm_grid", "rocm_block"), _annotation),
}


_OPTIONS: Final = ("record_shapes", "with_stack", "profile_memory", "with_flops", "with_modules")


def _base_ns(head: Mapping[str, msgspec.Raw]) -> int:
    """Origin of the times in the document (ns since the epoch); 0 if the document does not state
    it.
    """
    base = _decoded(head, "baseTimeNanoseconds")
    try:
        epoch_ns = int(base)
    except (TypeError, ValueError, OverflowError):
        return 0
    return epoch_ns if 0 <= epoch_ns < 2**61 else 0


def _describe(head: Mapping[str, msgspec.Raw]) -> dict[str, Any]:
    """Facts about the run from the keys of the document."""
    distributed, properties = _decoded(head, "distributedInfo"), _decoded(head, "deviceProperties")
    distributed = distributed if isinstance(distributed, dict) else {}
    properties = properties if isinstance(properties, list) else []
    groups = distributed.get("pg_config")
    groups = [groups] if isinstance(groups, dict) else groups if isinstance(groups, list) else []
    groups = [g for g in groups if isinstance(g, dict)]
    versions = {key: _decoded(head, key) for key in head if key.endswith("_version")}
    return {
        "rank": _rank_of(head),
        "world_size": _natural(distributed.get("world_size")) or None,
        "backend": distributed.get("backend"),
        "devices": [
            str(name) for d in properties if isinstance(d, dict) and (name := d.get("name"))
        ],
        "device_count": len(properties),
        "groups": {str(g.get("pg_name")): g.get("ranks") for g in groups},
        "group_descriptions": {
            str(g.get("pg_name")): text
            for g in groups
            if isinstance(text := g.get("pg_desc"), str) and text not in _SAYS_NOTHING
        },
        "versions": {key: value for key, value in versions.items() if isinstance(value, str | int)},
        "options": {key: bool(_decoded(head, key)) for key in _OPTIONS if key in head},
    }


def _rank_of(head: Mapping[str, msgspec.Raw]) -> int | None:
    """Rank that a document states."""
    distributed = _decoded(head, "distributedInfo")
    return _natural(distributed.get("rank")) if isinstance(distributed, dict) else None


_SAYS_NOTHING: Final = ("", "undefined", "default_pg")


def _decoded(head: Mapping[str, msgspec.Raw], key: str) -> Any:
    try:
        return msgspec.json.decode(head[key]) if key in head else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _natural(value: Any) -> int | None:
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    return (
        value
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31
        else None
    )


_LANES: Final = (
    "kernels of CUDA graphs carry annotations; their streams are lanes of the program, not streams"
    " of the device: stream is null there, and the lane is in torch_lane"
)


def read(
    path: Path,
    *,
    python_functions: bool = True,
    block_bytes: int = BLOCK_BYTES,
    progress: Progress | None = None,
    workers: int = 1,
) -> list[FilePart]:
    """Read one Chrome trace file."""
    reading = _Reading(path, python_functions, block_bytes, progress)
    with _without_collections():
        if workers > 1 and is_worth_it([path]):
            description = {
                "path": str(path),
                "python_functions": python_functions,
                "block_bytes": block_bytes,
            }
            with shared(f"{__name__}:{read_units.__name__}", description, workers) as job:
                _read_together(reading, job)
        else:
            reading.all()
    return _parts(reading)


def _parts(reading: _Reading) -> list[FilePart]:
    stream, by_label = reading.stream, reading.by_label
    if by_label.keys() <= {""}:
        if not by_label[""].total and (stream.lost_pieces or stream.truncated):
            why = f": {stream.truncated}" if stream.truncated else ""
            raise ReadError(
                f"{stream.path.name} holds no whole event{why}", hint="record the trace again"
            )
        parts = [_part(reading, key) for key in ("", *reading.others)]
        world = max((part.head["world_size"] or 0 for part in parts), default=0) or None
        for part in parts:
            part.head["world_size"] = world
        _tell_of_file(parts[0].coverage, reading)
        return parts
    rest = by_label.pop("", None)
    parts = [_part(reading, label, rank) for label, rank in rank_numbers(by_label).items()]
    _tell_of_file(parts[0].coverage, reading)
    if rest is not None:  # flows, which were not decoded
        parts[0].coverage["events"] += rest.total
        parts[0].coverage["skipped"]["event without a rank"] = rest.total
    return parts


@contextmanager
def _without_collections() -> Iterator[None]:
    """Without the collector of garbage: the decoder makes millions of objects without a
    reference cycle.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


class _Reading:
    """One walk through a file.

    The units that are shared are the calls of the decoder, the same in every walk.
    """

    def __init__(
        self,
        path: Path,
        python_functions: bool,
        block_bytes: int,
        progress: Progress | None = None,
        *,
        flows: bool = False,
    ) -> None:
        self._block_bytes = block_bytes
        self.stream = EventStream(path, block_bytes)
        self.by_label: dict[str, Batches] = defaultdict(
            partial(Batches, python_functions=python_functions)
        )
        self.others: dict[Any, tuple[Mapping[str, msgspec.Raw], Batches]] = {}
        """Heads and events of documents of other ranks that follow the first, by rank."""
        self._python_functions = python_functions
        self.exact: dict[int, bool] = {}
        self.wrong_types: dict[int, int] = defaultdict(int)
        self.unit = -1
        self.decoder = EventDecoder(flows=flows)
        self._progress = progress
        self._has_event = False

    @cached_property
    def flows(self) -> _Reading:
        """Another walk through the file, for its flows."""
        path, functions = self.stream.path, self._python_functions
        walk = _Reading(path, functions, self._block_bytes, flows=True)
        walk.all()
        return walk

    def document(self, key: Any) -> tuple[Mapping[str, msgspec.Raw], Batches]:
        """Head and events of a label, or of another rank's document."""
        return self.others.get(key) or (self.stream.head, self.by_label[key])

    def restart(self) -> None:
        """Read the file again from its start; events that were read are kept."""
        path, block_bytes = self.stream.path, self._block_bytes
        self.stream, self.unit, self.decoder = EventStream(path, block_bytes), -1, EventDecoder()
        self.others.clear()
        self.decoder.exact = any(self.exact.values())

    def all(self) -> None:
        """Read everything."""
        for _ in self.own(lambda unit: True):
            pass

    def own(self, is_own: Callable[[int], bool], *, strict: bool = False) -> Iterator[int]:
        """Read the units that a function says are this walk's own; gives each when it is read."""
        # The end of a unit is found without decoding it, which holds as long as all units are
        # sound; `strict` raises `_Damaged` at an own unit that is not.

        def decode(text: bytes) -> list[Any]:
            self.unit += 1
            if not is_own(self.unit):
                return []
            before = self.decoder.wrong_types
            try:
                events = self.decoder(text)
            except BAD_JSON as error:
                if strict and not self.stream.ending:
                    raise _Damaged from error
                raise
            self.exact[self.unit] = self.decoder.exact
            self.wrong_types[self.unit] = self.decoder.wrong_types - before
            return events

        path = self.stream.path
        for events in self.stream.batches(decode):
            if len(self.decoder.forms) > 1:
                events = in_one_form(events)
            head, document = self.stream.head, self.stream.document
            if document is not head and (other := _rank_of(document)) not in (None, _rank_of(head)):
                if other not in self.others:
                    self.others[other] = document, Batches(python_functions=self._python_functions)
                self.others[other][1].add(events, self.unit)
                continue
            for label, some in split_ranks(events).items():
                self.by_label[label].add(some, self.unit)
            newest = [batches.batches[-1] for batches in self.by_label.values() if batches.batches]
            self._has_event |= any(batch.skipped.get(NO_PHASE, 0) < batch.total for batch in newest)
            entries = (
                0 if self._has_event else sum(batches.total for batches in self.by_label.values())
            )
            if entries >= _MOST_EMPTY:
                found = (
                    f"{self.stream.path.name}: none of its first {entries:,} entries is an event"
                )
                raise ReadError(found, expected="Chrome trace events, each with a phase (ph)")
            if self._progress is not None:
                self._progress(path.name, self.stream.blocks.read_bytes, path.stat().st_size)
            yield self.unit

    def told(self, unit: int) -> tuple[list[Any], dict[str, pl.DataFrame]]:
        """Facts and columns of the unit that this process read last, for the process that
        started it.
        """
        labels: list[list[Any]] = []
        frames: dict[str, pl.DataFrame] = {}
        for label, batches in self.by_label.items():
            if batches.batches and batches.batches[-1].unit == unit:
                batch = batches.batches.pop()
                labels.append([label, batch.facts(), batches.texts.new()])
                frames |= {f"{label}/{kind}": frame for kind, frame in batch.frames.items()}
        return [os.getpid(), self.exact[unit], self.wrong_types[unit], labels], frames

    def keep(self, end: int) -> None:
        """Forget the units from one on."""
        for batches in self.by_label.values():
            batches.batches = [batch for batch in batches.batches if batch.unit < end]
        self.exact = {unit: exact for unit, exact in self.exact.items() if unit < end}
        self.wrong_types = defaultdict(
            int, {u: wrong for u, wrong in self.wrong_types.items() if u < end}
        )

    def take_over(self, done: Done, codes: dict[tuple[int, str, str], list[int]]) -> None:
        """Add a unit that a helper read; ``codes`` has our codes of its texts so far, by
        process, label and column.
        """
        unit, (process, exact, wrong, labels), frames = done
        self.exact[unit], self.wrong_types[unit] = exact, wrong
        for label, facts, texts in labels:
            batches = self.by_label[label]
            for column, values in texts.items():
                codes.setdefault((process, label, column), []).extend(
                    batches.texts.codes(column, values)
                )
            batch = EventBatch.of(unit, facts)
            for kind in facts[-1]:
                frame = frames[f"{label}/{kind}"]
                ours = {column: codes.get((process, label, column)) for column in frame.columns}
                batch.frames[kind] = frame.with_columns(
                    pl.Series(column, known, dtype=pl.UInt32).gather(frame[column])
                    for column, known in ours.items()
                    if known is not None
                )
            batches.batches.append(batch)


class _Damaged(Exception):  # noqa: N818 (no error: the place from which on one process reads alone)
    """A unit cannot be decoded as it is."""


def _read_together(reading: _Reading, job: Job) -> None:
    """Read a file with helpers; from the first unit on that is not sound, this process reads
    alone.
    """
    if not job.is_shared:
        reading.all()
        return
    at_the_end: list[int] = []

    def is_own(unit: int) -> bool:
        if reading.stream.ending:
            at_the_end.append(unit)
            return True
        return job.take(unit)

    try:
        for _ in reading.own(is_own, strict=True):
            pass
    except _Damaged:
        count, sound = reading.unit, False
    else:
        count, sound = (at_the_end or [reading.unit + 1])[0], True
    done = job.others(count)
    known = dict(reading.exact) | {one.unit: one.facts[1] for one in done}
    missing = [unit for unit in range(count) if unit not in known]
    first_exact = min((unit for unit, exact in known.items() if exact), default=count)
    numbers = [
        unit for unit, exact in known.items() if unit > first_exact and not exact
    ]  # read too early
    end = min([count, *missing, *numbers])
    codes: dict[tuple[int, str, str], list[int]] = {}
    for one in done:
        reading.take_over(one, codes)
    if missing or numbers or not sound:
        reading.keep(end)
        reading.restart()
        for _ in reading.own(lambda unit: unit >= end):
            pass


def read_units(of: dict[str, Any], share: JobShare) -> None:
    """Work of a helper: reads the units of a file that nobody has taken, but not the end of the
    file.
    """
    reading = _Reading(Path(of["path"]), of["python_functions"], of["block_bytes"])
    with _without_collections():
        for unit in reading.own(
            lambda unit: not reading.stream.ending and share.take(unit), strict=True
        ):
            share.give(unit, *reading.told(unit))


def _part(reading: _Reading, key: Any, rank: int | None = None) -> FilePart:
    """Events of one label of a rank, or of a further document."""
    stream = reading.stream
    stated, batches = reading.document(key)
    base = _base_ns(stated)
    frames = _tables(batches.frames(base), batches.lane_names, batches.texts)
    if _mostly_unlinked(frames):
        _link_by_flows(frames, reading.flows.document(key)[1], base)
    if (repeats := frames.pop(REPEATS, None)) is not None:
        batches.skipped[REPEATS] = repeats.height
        batches.kept -= repeats.height
    coverage: dict[str, Any] = {
        "file": stream.path.name,
        "events": batches.total,
        "kept": batches.kept,
        "skipped": {reason: count for reason, count in sorted(batches.skipped.items()) if count},
        "wrong_types": batches.wrong_types,
    }
    facts = {**_describe(stated), "absolute": base != 0}
    if rank is not None:
        facts["rank"] = rank
    elif facts["rank"] is not None or stream.lost_bytes:
        _leave_out_others(frames, coverage)
    if "kernels" in frames and "torch_annotation" in frames["kernels"].columns:
        coverage.setdefault("notes", []).append(_LANES)
    return FilePart(stream.path, frames, facts, coverage)


def _mostly_unlinked(frames: Frames) -> bool:
    """Whether few device events name their call: only then are the flows worth another walk."""
    if (calls := frames.get("runtime")) is None:
        return False
    found = [unlinked(frames[name], calls) for name in _EVENTS & frames.keys()]
    return 2 * sum(map(pl.Series.sum, found)) > sum(map(len, found))


_EVENTS: Final = {"kernels", "copies"}


def _link_by_flows(frames: Frames, batches: Batches, base_ns: int) -> None:
    """Give device events the correlation of the call that launched them according to flows."""
    flows = batches.frames(base_ns).get("flow")
    if flows is None:
        return
    devices = {
        lane.process: int(found[1])
        for lane in batches.lane_names
        if lane.thread is None and (found := re.match(DEVICE_NAME, lane.name))
    }
    flows = flows.with_columns(device=pl.col("process").replace(devices), stream="thread")
    names = ("runtime", *_EVENTS, "tasks", "collectives")
    tables = {name: frames[name] for name in names if name in frames}
    lane = ("device", "stream")
    frames |= linked_by_flows(tables, _named(flows, batches.texts), ("process", "thread"), lane)


def _leave_out_others(frames: Frames, coverage: dict[str, Any]) -> None:
    """Leave out what other ranks wrote into the file of one rank: work of another device that
    another process launched.
    """
    kernels, calls = frames.get("kernels"), frames.get("runtime")
    if kernels is None or calls is None:
        return
    found = {
        "device": kernels["device"].drop_nulls().value_counts(sort=True)["device"],
        "process": calls["process"].drop_nulls().value_counts(sort=True)["process"],
    }
    if any(numbers.len() < 2 for numbers in found.values()):
        return
    left: dict[str, int] = {}
    for name, frame in frames.items():
        own = [
            pl.col(column).is_null() | (pl.col(column) == numbers[0])
            for column, numbers in found.items()
            if column in frame.columns
        ]
        frames[name] = frame.filter(own)
        left[name] = frame.height - frames[name].height
    others = sum(left.values())
    devices, processes = (listed(numbers.sort()) for numbers in found.values())
    coverage["kept"] -= others
    coverage["skipped"]["event of another rank"] = others
    coverage["overwritten"] = left["kernels"] + left.get("copies", 0)
    coverage["notes"] = [
        f"devices {devices} and processes {processes} are in the file of one rank: several ranks"
        f" wrote over each other, and what is there of each is incomplete; {others:,} events that"
        f" are not of device {found['device'][0]} are left out"
    ]


def _tell_of_file(coverage: dict[str, Any], reading: _Reading) -> None:
    """Add the losses of the whole file to the coverage."""
    stream = reading.stream
    coverage["wrong_types"] += sum(reading.wrong_types.values())
    coverage |= {
        "bytes": stream.total_bytes,
        "lost_bytes": stream.lost_bytes,
        "lost_pieces": stream.lost_pieces,
        "unread_bytes": stream.path.stat().st_size - stream.blocks.read_bytes,
        "truncated": stream.truncated,
        "repaired": stream.repaired,
    }


_MOST_EMPTY: Final = 1 << 18
"""Number of entries, none of which is an event, after which a file is refused."""
_BEFORE: Final = b"\xef\xbb\xbf \t\r\n"
_OBJECTS: Final = re.compile(rb"\[\s*\{")
_PHASE: Final = re.compile(rb'"ph"\s*:\s*"')
_MAY_GO_ON: Final = re.compile(rb"$|\{|\[\s*\{")
_EMPTY_LIST: Final = re.compile(rb"\[\s*(?:\]|$)")


def _sniff(probe: Probe) -> bool:
    """Whether a file is a document with a list of events, which may follow other keys."""
    for start in probe.growing():
        text = start.lstrip(_BEFORE)
        if text[:1] == b"{" and b'"traceEvents"' in text:
            return True
        if text[:1] == b"[" and (
            (_OBJECTS.match(text) and _PHASE.search(text)) or _EMPTY_LIST.match(text)
        ):
            return True
        if not _MAY_GO_ON.match(text):
            return False
    return False


READER = Reader(
    name="chrome",
    version=12,
    what="Chrome trace JSON (PyTorch profiler and others), plain or gzip",
    sniff=_sniff,
    read=lambda path, request: read(
        path,
        python_functions=request.python_functions,
        progress=request.progress,
        workers=request.workers,
    ),
    suffixes=(".json", ".gz", ".trace", ".txt", ""),
    one_core=True,
)
