r"""What an ``.ncu-rep`` report says it holds, so that a damaged one is not taken for a whole one.

The programs that open reports leave out what they cannot parse without a word. A report has no
checksum and states neither its length nor how many kernels it has: a cut between two blocks, or a
changed digit of a value, cannot be seen.

After ``NVR\0`` and a file header come blocks: the length of a header (4 bytes, little endian), the
header, and its payload. Headers and the parts of a payload are messages of Protocol Buffers
(https://protobuf.dev/programming-guides/encoding), whose fields the files
``extras/FileFormat/*.proto`` of an Nsight Compute name. A part begins with its length, too.
"""

import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from llmprof.readers.common.wire import wire_fields

_RESULTS: Final = 2
_STRINGS: Final = 4
_PAYLOAD: Final = 5
_PARTS: Final = (1, _RESULTS, 7)
"""Fields of a block's header: how many sources, results and results of ranges follow, in this
order.
"""
_METRIC: Final = 13
"""Field of a result: one metric, whose field 1 is the number of its name among the strings."""


@dataclass
class Stated:
    """What a report states, as far as it can be followed."""

    kernels: list[set[str]] = field(default_factory=list)
    """Names of the metrics of each kernel, without those that only group others."""
    damage: str = ""
    """Where it cannot be followed."""
    sound: list[slice] = field(default_factory=list)
    """Places of the file's header and of each block whose parts have the lengths that it states."""

    def write(self, data: bytes, path: Path) -> None:
        """Write the sound blocks alone: NVIDIA's package ends the process on some of the others."""
        path.write_bytes(b"".join(data[place] for place in self.sound) if self.damage else data)


def stated(data: bytes) -> Stated:
    """Kernels and metrics that a report states, as far as the blocks can be followed."""
    found, names = Stated(), list[str]()
    place = 4
    try:
        place = _sized(data, place, len(data))[1]
        found.sound.append(slice(0, place))
        while place < len(data):
            place = _block(data, place, names, found)
    except IndexError:
        found.damage = found.damage or _at(data, place)
    return found


def _at(data: bytes, place: int) -> str:
    return (
        f"its parts do not have the lengths that it states, from byte {place:,} of {len(data):,} on"
    )


def _block(data: bytes, first: int, names: list[str], found: Stated) -> int:
    """Follow a block, and return its end.

    One with broken parts is passed over, unless later ones need its strings.
    """
    begin, place = _sized(data, first, len(data))
    counts: dict[int, int] = {}
    known = len(names)
    for number, value, start in wire_fields(data, begin, place):
        if not start:
            counts[number] = value
        elif number == _STRINGS:
            texts = [data[at:to] for _, to, at in wire_fields(data, start, value) if at]
            names += [text.decode("utf-8", errors="replace") for text in texts]
    end = place + counts.get(_PAYLOAD, 0)
    try:
        for kind in _PARTS:
            for _ in range(counts.get(kind, 0)):
                if kind == _RESULTS:
                    found.kernels.append(set())
                    _metrics(data, place, names, found)
                place = _sized(data, place, min(end, len(data)))[1]
        if place != end:
            raise IndexError("the parts have another length")
    except IndexError:
        found.damage = found.damage or _at(data, place)
        if end > len(data) or len(names) > known:
            raise
        return end
    found.sound.append(slice(first, end))
    return end


def _metrics(data: bytes, place: int, names: list[str], found: Stated) -> None:
    """Add the metrics of a result, also of one that is cut; damage inside it does not hide the
    parts after it.
    """
    try:
        size = struct.unpack_from("<I", data[place : place + 4].ljust(4, b"\0"))[0]
        for number, end, start in wire_fields(data, place + 4, min(place + 4 + size, len(data))):
            if number == _METRIC and start:
                inside = wire_fields(data, start, end)
                name = next((names[i] for n, i, at in inside if n == 1 and not at), "")
                if ":" not in name:
                    found.kernels[-1].add(name)
    except IndexError:
        found.damage = found.damage or f"the result of kernel {len(found.kernels)} is damaged"


def _sized(data: bytes, place: int, end: int) -> tuple[int, int]:
    """Begin and end of a message after its length; none is empty."""
    if place + 4 > end:
        raise IndexError("a message is cut off")
    size = struct.unpack_from("<I", data, place)[0]
    if not size or place + 4 + size > end:
        raise IndexError("a message is cut off")
    return place + 4, place + 4 + size
