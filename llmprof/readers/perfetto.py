"""Reader of Perfetto's binary traces (``.pftrace``, ``.perfetto-trace``): track events of any
program that writes them.

The file is a protocol buffer: a list of packets. They are decoded with the classes of the package
``perfetto``, and their names and tracks are resolved here; Perfetto's trace processor, which would
have to be downloaded, is not needed. A file that llmprof exported also contains the tables of the
trace, which are then read instead of the slices. Slices of rocprofv3 and Kineto become kernels,
copies, calls and operators by their category, and so do stages that a driver renders; all other
slices become markers. Device and stream are those in the names of their track. Packets of other
data sources (ftrace, heap profiles) are counted and left out. Of files that were joined, each
sequence of packets with a device of its own is a rank.

Source of the format: Perfetto's ``trace_packet.proto`` and ``track_event.proto``.
"""

import importlib
import math
import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import polars as pl

from llmprof.errors import ReadError
from llmprof.readers.common.reader import (
    MOST_NS,
    FilePart,
    Probe,
    Reader,
    Request,
    bytes_of,
    combine,
    trace_of,
)
from llmprof.readers.common.wire import wire_fields
from llmprof.text import left_out
from llmprof.trace import Trace
from llmprof.trace.storage.parquet import unpack_trace

_MESSAGES: Final = "perfetto.protos.perfetto.trace.perfetto_trace_pb2"
_PACKET: Final = 0x0A
"""Tag of field 1 of a trace: a packet, with its length."""

_BEGIN, _END, _INSTANT, _COUNTER = 1, 2, 3, 4
_CLEARED: Final = 1
_KERNEL: Final = ("kernel", "kernel_dispatch", "gpu_kernel")
_COPY: Final = ("memory_copy", "memcpy", "gpu_memcpy", "gpu_memset", "copy")
_OPERATOR: Final = ("cpu_op", "python_function")
_CALL: Final = (
    r"^(?:hip|hsa|cuda|rccl|nccl)\w*api|^(?:cuda|hip|xpu|mtia|privateuse1)_(?:runtime|driver)$"
    r"|runtime_api$"
)
_MOVES: Final = r"(?i)^\W*(?:\w+ )?(?:memcpy|memset|copy)"
_NAMED: Final = ("name", "kernel", "kernel name")
"""Keys under which a driver writes the name of what it renders."""
_GPU: Final = re.compile(r"\bgpu ?#?(\d{1,4})\b", re.IGNORECASE)
_STREAM: Final = re.compile(r"\bstream ?#?(\d{1,9})\b", re.IGNORECASE)
_RENDERED: Final = ("sequence", "device", "stream", "start_ns", "dur_ns", "name")
_UNITS: Final = {1: "ns", 2: "1", 3: "B"}
_OWN: Final = 60_451
"""Number of the field of a packet with a piece of an exported trace's tables.

The numbers of Perfetto's fields are below 2,000, and every program skips a field that it does not
know.
"""

_PIECE: Final = 1 << 20
_SNIFFED: Final = 4
_MOST_UNPACKED: Final = 1 << 30


def _packets(data: bytes) -> Iterator[bytes]:
    """Packets of a trace."""
    for number, end, start in wire_fields(data, 0, len(data)):
        if number != 1 or not start:
            raise IndexError("the following bytes are not a packet")
        yield data[start:end]


def _length(number: int) -> bytes:
    """A number as a varint."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


_OWN_TAG: Final = _length(_OWN << 3 | 2)


def own_packets(data: bytes) -> Iterator[bytes]:
    """Packets, with their tags, for the tables of a trace; they are at the beginning of an
    exported file.
    """
    # The first packet is empty, so that a reader that looks only at the beginning of the file sees
    # a complete packet.
    for piece in (b"", *(data[start : start + _PIECE] for start in range(0, len(data), _PIECE))):
        packet = _OWN_TAG + _length(len(piece)) + piece
        yield bytes([_PACKET]) + _length(len(packet)) + packet


def _own_tables(data: bytes) -> bytes | None:
    """Tables in the packets of :func:`own_packets` at the start of a file; None if llmprof did
    not write the file.
    """
    pieces = []
    for packet in _packets(data):
        if not packet.startswith(_OWN_TAG):
            break
        pieces += [packet[start:end] for _, end, start in wire_fields(packet, 0, len(packet))]
    return b"".join(pieces) if pieces else None


def _sniff(probe: Probe) -> bool:
    """Whether a file begins with packets, each of which begins with a field of a protocol
    buffer.
    """
    if probe.is_folder or probe.start[:1] != bytes([_PACKET]):
        return False
    seen = 0
    try:
        for packet in _packets(probe.start):
            try:
                next(wire_fields(packet, 0, len(packet)), None)
            except IndexError:
                return False
            seen += 1
            if seen >= _SNIFFED:
                return True
    except IndexError as error:
        return seen > 0 and "cut off" in str(error) and len(probe.start) >= 1 << 16
    return seen > 0


def _messages(path: Path) -> Any:
    try:
        return importlib.import_module(_MESSAGES)
    except ImportError as error:
        found = (
            f"{path.name} is a binary trace of Perfetto; it needs the package perfetto, which is"
            " not installed"
        )
        hint = "pip install 'llmprof[perfetto]'; or convert it: traceconv json FILE FILE.json"
        raise ReadError(
            found, expected="the package perfetto, or the trace as JSON", hint=hint
        ) from error


def _read(path: Path, request: Request) -> Trace:
    messages = _messages(path)
    decode_error = importlib.import_module("google.protobuf.message").DecodeError
    data, damage = bytes_of(path)
    events = _TrackEvents()
    damaged = 0
    unread = ""
    try:
        if (own := _own_tables(data)) is not None:
            return Trace(*unpack_trace(own))
    except (IndexError, ReadError) as error:
        unread = (
            f"the tables of the exported trace cannot be read ({error}), so the slices of its"
            " tracks are read"
        )
    try:
        for packet in _packets(data):
            try:
                events.add(messages.TracePacket.FromString(packet), messages)
            except (decode_error, zlib.error):
                damaged += 1
    except IndexError as error:
        damage = damage or str(error)
    tables, notes = events.tables()
    if unread:
        notes.append(unread)
    if damaged:
        notes.append(left_out(damaged, "damaged packet"))
    if not tables:
        found = f"{path.name} has no track event"
        hint = (
            "data of ftrace and heap profilers can be opened in Perfetto's own page:"
            " ui.perfetto.dev"
        )
        raise ReadError(found, expected="slices, instants or counters of a program", hint=hint)
    ranks = _ranks(tables)
    if len(ranks) == 1:
        return trace_of(
            path,
            "perfetto",
            {name: frame.drop("sequence", strict=False) for name, frame in tables.items()},
            head={"absolute": False},
            events=events.count,
            notes=notes,
            damage=damage,
        )
    parts = []
    for rank, sequence in enumerate(ranks):
        of_rank = {
            name: frame.filter(sequence=sequence).drop("sequence")
            for name, frame in tables.items()
            if "sequence" in frame.columns
        }
        kept = sum(frame.height for frame in of_rank.values())
        coverage = {"file": path.name, "events": kept, "kept": kept}
        parts.append(FilePart(path, of_rank, {"rank": rank, "absolute": False}, coverage))
    parts[0].tables |= {name: tables[name] for name in ("counters",) if name in tables}
    parts[0].coverage["notes"] = [*notes, *([f"the file ends early: {damage}"] if damage else [])]
    return combine(parts, "perfetto")


def _ranks(tables: dict[str, pl.DataFrame]) -> list[int]:
    """Sequences of packets that are ranks, by their devices: each has calls or other slices of a
    host, and a device of its own.
    """
    if "kernels" not in tables:
        return [0]
    devices = tables["kernels"].group_by("sequence").agg(pl.col("device").unique())
    hosts = [
        set(tables[name]["sequence"]) for name in ("runtime", "ops", "markers") if name in tables
    ]
    alone = devices.explode("device")["device"].is_unique().all()
    if devices.height < 2 or not alone or not set(devices["sequence"]) <= set().union(*hosts):
        return [0]
    return devices.sort(pl.col("device").list.min())["sequence"].to_list()


class _TrackEvents:
    """Collects slices and counters from packets."""

    def __init__(self) -> None:
        self.count = 0
        self.others: Counter[str] = Counter()
        self.rows: list[tuple[int, int, int, int, str, str]] = []
        self._rendered: list[tuple[int, int, int, int, int, str]] = []
        self._stages: dict[tuple[int, str], dict[int, str]] = defaultdict(dict)
        self.samples: list[tuple[int, int, float]] = []
        self._tracks: dict[int, Any] = {}
        self._lanes: dict[int, int] = {}
        self._open: dict[int, list[tuple[int, str, str]]] = defaultdict(list)
        self._names: dict[int, dict[int, str]] = defaultdict(dict)
        self._categories: dict[int, dict[int, str]] = defaultdict(dict)
        self._defaults: dict[int, int] = {}
        self._sums: dict[int, float] = defaultdict(float)
        self.unmatched = 0

    def add(self, packet: Any, messages: Any, *, nested: bool = False) -> None:
        """Add one packet."""
        sequence = packet.trusted_packet_sequence_id
        if packet.sequence_flags & _CLEARED:
            for names_of in (self._names, self._categories):
                names_of.pop(sequence, None)
            self._stages.pop((sequence, "iid"), None)
            self._defaults.pop(sequence, None)
        if packet.HasField("interned_data"):
            for name in packet.interned_data.event_names:
                self._names[sequence][name.iid] = name.name
            for category in packet.interned_data.event_categories:
                self._categories[sequence][category.iid] = category.name
            for stage in packet.interned_data.gpu_specifications:
                self._stages[sequence, "iid"][stage.iid] = stage.name
        if packet.HasField("trace_packet_defaults"):
            self._defaults[sequence] = packet.trace_packet_defaults.track_event_defaults.track_uuid
        kind = packet.WhichOneof("data")
        if kind == "track_descriptor":
            self._tracks[packet.track_descriptor.uuid] = packet.track_descriptor
        elif kind == "track_event":
            self.count += 1
            self._event(packet, packet.track_event, sequence)
        elif kind == "gpu_render_stage_event":
            self._render(packet, packet.gpu_render_stage_event, sequence)
        elif kind == "compressed_packets" and not nested:
            inflated = zlib.decompressobj().decompress(packet.compressed_packets, _MOST_UNPACKED)
            for inner in _packets(inflated):
                self.add(messages.TracePacket.FromString(inner), messages, nested=True)
        elif kind is not None and kind not in {
            "clock_snapshot",
            "trace_config",
            "trace_stats",
            "trace_uuid",
        }:
            self.others[kind] += 1

    def _event(self, packet: Any, event: Any, sequence: int) -> None:
        track = (
            event.track_uuid if event.HasField("track_uuid") else self._defaults.get(sequence, 0)
        )
        time_ns = packet.timestamp
        if not time_ns and event.HasField("timestamp_absolute_us"):
            time_ns = event.timestamp_absolute_us * 1000
        if not 0 <= time_ns < MOST_NS:
            self.unmatched += 1
            return
        if event.type == _COUNTER:
            value = (
                event.double_counter_value
                if event.HasField("double_counter_value")
                else event.counter_value
            )
            self.samples.append((time_ns, track, self._counted(track, float(value))))
            return
        if event.type == _END:
            if not self._open[track]:
                self.unmatched += 1
                return
            start, name, category = self._open[track].pop()
            self.rows.append((sequence, track, start, time_ns - start, name, category))
            return
        name = event.name or self._names[sequence].get(event.name_iid, "unnamed")
        categories = [
            *event.categories,
            *(self._categories[sequence].get(iid, "") for iid in event.category_iids),
        ]
        category = next((one for one in categories if one), "track event")
        if event.type == _BEGIN:
            self._open[track].append((time_ns, name, category))
        elif event.type == _INSTANT:
            self.rows.append((sequence, track, time_ns, 0, name, category))

    def _render(self, packet: Any, event: Any, sequence: int) -> None:
        """A stage that a driver renders on a queue of a device: of LLMs, a kernel or a copy."""
        queues, stages = (self._stages[sequence, key] for key in ("queue", "stage"))
        if event.HasField("specifications"):
            for found, said in (
                (queues, event.specifications.hw_queue),
                (stages, event.specifications.stage),
            ):
                found.update(enumerate((one.name for one in said), len(found)))
        if not event.duration or not 0 <= packet.timestamp < MOST_NS:
            return
        self.count += 1
        interned = self._stages[sequence, "iid"]
        queue, stage = (
            interned.get(iid, "") if iid else found.get(number, "")
            for iid, found, number in (
                (event.hw_queue_iid, queues, event.hw_queue_id),
                (event.stage_iid, stages, event.stage_id),
            )
        )
        said = {one.name.lower(): one.value for one in event.extra_data}
        name = getattr(event, "name", "") or next(filter(None, map(said.get, _NAMED)), stage)
        number = _STREAM.search(queue)
        stream = int(number[1]) if number else event.hw_queue_iid or event.hw_queue_id
        self._rendered.append(
            (sequence, event.gpu_id, stream, packet.timestamp, event.duration, name or "unnamed")
        )

    def _counted(self, track: int, value: float) -> float:
        """A value in the base unit; increments are added up."""
        counter = self._tracks[track].counter if track in self._tracks else None
        if counter is None:
            return value
        value *= counter.unit_multiplier or 1
        if counter.is_incremental:
            self._sums[track] += value
            return self._sums[track]
        return value

    def tables(self) -> tuple[dict[str, pl.DataFrame], list[str]]:
        """Tables of the slices and counters, and notes on packets that were left out."""
        notes = []
        still = sum(map(len, self._open.values()))
        if still:
            notes.append(left_out(still, "slice", "without an end"))
        if self.unmatched:
            notes.append(left_out(self.unmatched, "event", "without a begin or a time"))
        if self.others:
            kinds = ", ".join(f"{kind} {count:,}" for kind, count in self.others.most_common(4))
            notes.append(
                left_out(self.others.total(), "packet", f"of other data sources ({kinds})")
            )
        schema = {
            "sequence": pl.Int64,
            "track": pl.UInt64,
            "start_ns": pl.Int64,
            "dur_ns": pl.Int64,
            "name": pl.String,
            "domain": pl.String,
        }
        slices = pl.DataFrame(self.rows, schema=schema, orient="row")
        places = [
            (uuid, *self._thread(uuid)) for uuid in dict.fromkeys(row[1] for row in self.rows)
        ]
        of_tracks = {
            "track": pl.UInt64,
            "process": pl.Int64,
            "thread": pl.Int64,
            "stream": pl.Int64,
            "device": pl.Int32,
        }
        rows = slices.join(
            pl.DataFrame(places, schema=of_tracks, orient="row"), on="track", how="left"
        )
        category = pl.col("domain").str.to_lowercase()
        kernel, copy = category.is_in(_KERNEL), category.is_in(_COPY)
        call, operator = category.str.contains(_CALL), category.is_in(_OPERATOR)
        host = ("sequence", "start_ns", "dur_ns", "name", "process", "thread")
        device = ("sequence", "start_ns", "dur_ns", "name", "stream", "device")
        in_order = {name: schema.get(name) or of_tracks[name] for name in _RENDERED}
        rendered = pl.DataFrame(self._rendered, schema=in_order, orient="row").select(device)
        moves = pl.col("name").str.contains(_MOVES)
        copies = pl.concat([rows.filter(copy).select(device), rendered.filter(moves)])
        tables = {
            "kernels": pl.concat([rows.filter(kernel).select(device), rendered.filter(~moves)]),
            "copies": copies.with_columns(
                kind=pl.coalesce(
                    pl.col("name").str.extract(r"\b([HDP]to[HDP])\b"),
                    pl.when(pl.col("name").str.contains("(?i)memset")).then(pl.lit("memset")),
                    pl.lit("unknown"),
                )
            ),
            "runtime": rows.filter(call).select(*host, api=pl.lit("runtime")),
            "ops": rows.filter(operator).select(
                *host,
                kind=pl.when(category == "cpu_op").then(pl.lit("op")).otherwise(pl.lit("python")),
            ),
            "markers": (
                rows.filter(~(kernel | copy | call | operator)).select(
                    *host, "domain", on_device=pl.lit(False)
                )
            ),
        }
        counters = [
            (time, value, *self._counter(track))
            for time, track, value in self.samples
            if math.isfinite(value)
        ]
        columns = {"time_ns": pl.Int64, "value": pl.Float64, "name": pl.String, "unit": pl.String}
        tables["counters"] = pl.DataFrame(counters, schema=columns, orient="row")
        return {name: frame for name, frame in tables.items() if frame.height}, notes

    def _thread(self, uuid: int) -> tuple[int | None, int | None, int, int]:
        """Process and thread of a track, its stream (else a number for the track) and device."""
        process = thread = None
        seen, names = set(), []
        current = uuid
        while current in self._tracks and current not in seen:
            seen.add(current)
            track = self._tracks[current]
            names += [track.name or track.static_name, track.thread.thread_name]
            names += [track.process.process_name, *track.process.process_labels]
            if track.HasField("thread"):
                process, thread = process or track.thread.pid, thread or track.thread.tid
            if track.HasField("process"):
                process = process or track.process.pid
            current = track.parent_uuid
        device, stream = (pattern.search(" ".join(names)) for pattern in (_GPU, _STREAM))
        lane = self._lanes.setdefault(uuid, len(self._lanes))
        number = int(device[1]) if device else 0
        return process, thread, int(stream[1]) if stream else lane, number

    def _counter(self, uuid: int) -> tuple[str, str | None]:
        """Name and unit of a counter."""
        track = self._tracks.get(uuid)
        name = "" if track is None else track.name or track.static_name
        counter = track.counter if track is not None and track.HasField("counter") else None
        return name or "unnamed counter", counter and (
            _UNITS.get(counter.unit) or counter.unit_name or None
        )


READER: Final = Reader(
    name="perfetto",
    version=4,
    what="a binary trace of Perfetto",
    sniff=_sniff,
    read=_read,
    alone=True,
)
