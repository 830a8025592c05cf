"""Reader of ``.xplane.pb``, what the profilers of JAX, TensorFlow and PyTorch/XLA write: a file for
each host, in ``plugins/profile/DATE`` of a folder.

The file is a protocol buffer (``xplane.proto`` of tsl): planes of devices and hosts, lines of
planes, events of lines. Its wire format is read here, without the package of its classes: lines
one after the other, the fields of all events of a line at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl

from llmprof.errors import ReadError
from llmprof.readers.common.lanes import REPEATS, frames_by_lane
from llmprof.readers.common.reader import FilePart, Probe, Reader, Request, bytes_of
from llmprof.readers.common.wire import BYTES, FIXED, FIXED_32, FIXED_64, VARINT, wire_fields

_PLANE: Final = re.compile(
    rb"\x0a[\x80-\xff]{0,5}[\x00-\x7f](?:\x08[\x80-\xff]{0,9}[\x00-\x7f])?\x12[\x01-\x7f]"
    rb"(?:/device:|/host:|Task Environment|Custom:)",
    re.DOTALL,
)
"""The first plane, with its name."""
_INSTRUCTION: Final = r"^%?([\w.\-]+) = "
_COPY: Final = r"(?i)([HDP])(?:ost|evice|eer)?(?:2|to)([HDP])"


def _varints(data: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A number at each place, and the places behind them."""
    value, open_ = np.zeros(len(at), dtype=np.uint64), np.ones(len(at), dtype=bool)
    at = at.copy()
    for shift in range(0, 70, 7):
        byte = data[at[open_]]
        value[open_] |= (byte & 0x7F).astype(np.uint64) << np.uint64(min(shift, 63))
        at[open_] += 1
        open_[open_] = byte >= 0x80
        if not open_.any():
            return value.view(np.int64), at
    raise IndexError("a number is too long")


def _values(
    data: np.ndarray, at: np.ndarray, end: np.ndarray, wanted: dict[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """Values of the numbers of all messages at once, a row for each of ``wanted`` (defaults by
    field), and their fields with bytes: rows of message, number, start and end.
    """
    found = np.repeat([[default] for default in wanted.values()], len(at), axis=1)
    rows = {number: row for row, number in enumerate(wanted)}
    held, at, open_ = [np.zeros((4, 0), dtype=np.int64)], at.copy(), np.flatnonzero(at < end)
    while len(open_):
        tag, place = _varints(data, at[open_])
        kind, number = tag & 7, tag >> 3
        if (~np.isin(kind, (VARINT, BYTES, *FIXED))).any():
            raise IndexError("the following bytes are no field")
        sized = np.isin(kind, (VARINT, BYTES))
        value = np.zeros(len(open_), dtype=np.int64)
        value[sized], place[sized] = _varints(data, place[sized])
        for field, row in rows.items():
            here = (kind == VARINT) & (number == field)
            found[row, open_[here]] = value[here]
        inner = kind == BYTES
        if inner.any():
            begin = place[inner]
            place[inner] += value[inner]
            held.append(np.array([open_[inner], number[inner], begin, place[inner]]))
        place += np.where(kind == FIXED_64, 8, np.where(kind == FIXED_32, 4, 0))
        if ((place > end[open_]) | (place <= at[open_])).any():
            raise IndexError("a field is cut off")
        at[open_] = place
        open_ = open_[place < end[open_]]
    return found, np.concatenate(held, axis=1)


class _Plane:
    """A plane: a device, or the host."""

    def __init__(self, data: bytes, start: int, end: int) -> None:
        self._data = data
        self.name = ""
        self.lines: list[tuple[int, int]] = []
        self.events: dict[int, str] = {}
        self.stats: dict[int, str] = {}
        self.about: list[tuple[int, int]] = []
        for number, value, begin in wire_fields(data, start, end):
            if number == 2 and begin:
                self.name = self._text(begin, value)
            elif number == 3 and begin:
                self.lines.append((begin, value))
            elif number == 4 and begin:
                self._name(self.events, begin, value, shown=4)
            elif number == 5 and begin:
                self._name(self.stats, begin, value, shown=0)
            elif number == 6 and begin:
                self.about.append((begin, value))

    def _text(self, start: int, end: int) -> str:
        return self._data[start:end].decode("utf-8", "replace")

    def _name(self, names: dict[int, str], start: int, end: int, *, shown: int) -> None:
        """Add the entry of a map from identifiers to metadata."""
        key, name, display = 0, "", ""
        for entry in wire_fields(self._data, start, end):
            if entry.number == 1 and not entry.start:
                key = entry.value
            elif entry.number == 2 and entry.start:
                for number, value, begin in wire_fields(self._data, entry.start, entry.value):
                    if number == 2 and begin:
                        name = self._text(begin, value)
                    elif number == shown and begin:
                        display = self._text(begin, value)
        names[key] = display or name

    def device(self) -> str | None:
        """Name of the kind of device."""
        for begin, end in self.about:
            fields = {
                number: (value, start)
                for number, value, start in wire_fields(self._data, begin, end)
            }
            said = self.stats.get(fields.get(1, (0, 0))[0], "")
            if said in ("device_type_string", "gpu_device_name", "device_name"):
                value, start = fields.get(5, (0, 0))
                return (
                    self._text(start, value) if start else self.stats.get(fields.get(7, (0, 0))[0])
                )
        return None

    def frames(self, data: np.ndarray) -> Iterator[pl.DataFrame]:
        """Events of each line."""
        for begin, end in self.lines:
            number, name, shown, since, places = 0, "", "", 0, []
            for field, value, start in wire_fields(self._data, begin, end):
                if field == 4 and start:
                    places.append((start, value))
                elif field == 1 and not start:
                    number = value
                elif field == 3 and not start:
                    since = value
                elif field == 2 and start:
                    name = self._text(start, value)
                elif field == 11 and start:
                    shown = self._text(start, value)
            if places:
                yield self._line(data, np.array(places), since).with_columns(
                    thread=pl.lit(number, dtype=pl.Int64), lane=pl.lit(shown or name)
                )

    def _line(self, data: np.ndarray, places: np.ndarray, since: int) -> pl.DataFrame:
        """Events of a line that began at a time (ns)."""
        (kind, offset, length, count), held = _values(
            data, places[:, 0], places[:, 1], {1: 0, 2: 0, 3: 0, 5: -1}
        )
        frame = pl.DataFrame(
            {
                "kind": kind,
                "start_ns": since + (offset + 500) // 1000,
                "dur_ns": (length + 500) // 1000,
                "correlation": self._correlations(data, held, len(kind)),
            }
        )
        names = pl.DataFrame(
            {"kind": list(self.events), "name": list(self.events.values())},
            schema={"kind": pl.Int64, "name": pl.String},
        )
        frame = frame.filter(count < 0)  # others are sums over several events
        frame = frame.join(names, on="kind", how="left", maintain_order="left")
        name = pl.coalesce(pl.col("name").str.extract(_INSTRUCTION), "name")
        return frame.select("start_ns", "dur_ns", "correlation", name=name.fill_null("unnamed"))

    def _correlations(self, data: np.ndarray, held: np.ndarray, count: int) -> pl.Series:
        """Identifier of the call that launched each event."""
        found = np.full(count, -1)
        key = next((i for i, name in self.stats.items() if name == "correlation_id"), None)
        event, number, start, end = held
        if key is not None and (stats := number == 4).any():
            defaults = {1: 0, 3: -1, 4: -1}
            (said, unsigned, signed), _ = _values(data, start[stats], end[stats], defaults)
            found[event[stats][said == key]] = np.maximum(unsigned, signed)[said == key]
        return pl.Series(found).replace(-1, None)


def _read(path: Path, request: Request) -> list[FilePart]:
    if path.is_dir():
        return [part for file in _files(path) for part in _read(file, request)]
    data, damage = bytes_of(path)
    array = np.frombuffer(data, dtype=np.uint8)
    parts: list[pl.DataFrame] = []
    devices: list[str] = []
    try:
        for number, end, start in wire_fields(data, 0, len(data)):
            if number != 1 or not start:
                continue
            plane = _Plane(data, start, end)
            devices += [name] if (name := plane.device()) else []
            parts += [
                frame.with_columns(
                    process=pl.lit(len(parts), dtype=pl.Int64), process_name=pl.lit(plane.name)
                )
                for frame in plane.frames(array)
            ]
    except IndexError as error:
        damage = damage or str(error)
    if not parts:
        found = f"{path.name} has no event{f': {damage}' if damage else ''}"
        raise ReadError(found, expected="a profile of XLA with events", hint="record it again")
    events = pl.concat(parts).with_columns(
        stream="thread",
        domain=pl.lit("annotation"),
        op_id=pl.lit(None, pl.Int64),
        process=pl.col("process_name").rank("dense").cast(pl.Int64),
    )
    frames = frames_by_lane(events)
    repeats = frames.pop(REPEATS, events.clear())
    ends = pl.col("name").str.extract_groups(_COPY)
    kinds = pl.format("{}to{}", ends.struct[0], ends.struct[1]).str.to_uppercase()
    tables = {
        "kernels": frames.get("kernel"),
        "copies": None
        if (copies := frames.get("copy")) is None
        else copies.with_columns(kind=kinds.str.replace("TO", "to").fill_null("unknown")),
        "runtime": None
        if (calls := frames.get("runtime")) is None
        else calls.with_columns(api=pl.lit("runtime")),
        "markers": pl.concat(
            [
                frame.with_columns(on_device=pl.lit(kind == "device_marker"))
                for kind in ("marker", "device_marker")
                if (frame := frames.get(kind)) is not None
            ]
            or [pl.DataFrame(schema={"name": pl.String})],
            how="diagonal_relaxed",
        ),
    }
    recorded = {name: frame for name, frame in tables.items() if frame is not None and frame.height}
    coverage = {
        "file": path.name,
        "events": events.height,
        "kept": events.height - repeats.height,
        "skipped": {REPEATS: repeats.height} if repeats.height else {},
        "bytes": path.stat().st_size,
        "truncated": damage,
    }
    head = {"devices": sorted(set(devices)), "absolute": bool((events["start_ns"] > 2**59).all())}
    return [FilePart(path, recorded, head, coverage)]


def _files(folder: Path) -> list[Path]:
    """The files of the last profile in a folder."""
    for pattern in ("*.xplane.pb", "plugins/profile/*/*.xplane.pb", "profile/*/*.xplane.pb"):
        if found := sorted(folder.glob(pattern)):
            return [file for file in found if file.parent == found[-1].parent]
    return []


def _sniff(probe: Probe) -> bool:
    """Whether a file begins with a plane, or a folder has such files."""
    return bool(_files(probe.path)) if probe.is_folder else bool(_PLANE.match(probe.start))


READER: Final = Reader(
    name="xplane",
    version=1,
    what="a profile of XLA (xplane.pb of JAX, TensorFlow or PyTorch/XLA)",
    sniff=_sniff,
    read=_read,
    suffixes=(".pb",),
)
