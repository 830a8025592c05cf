"""Reader for Chrome trace JSON: the PyTorch profiler of any year on any device, and tools that write the same form.

Events go by category into the tables of the schema. Flow arrows are not kept: the correlation id says the same.
"""

from __future__ import annotations

import gc
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from llmprof.errors import ReadError
from llmprof.progress import Progress
from llmprof.readers.chrome.batches import Batches
from llmprof.readers.chrome.events import EventDecoder, in_one_form
from llmprof.readers.chrome.tables import base_ns, describe, tables
from llmprof.readers.common.blocks import BLOCK_BYTES
from llmprof.readers.common.event_stream import EventStream
from llmprof.readers.common.part import MOST_RANKS, Part
from llmprof.readers.common.reader import Probe, Reader, Request

_LABEL: Final = re.compile(r"\[((?:[A-Z]{2}\d+-?)+)\] (.*)", re.DOTALL)
_DIMENSION: Final = re.compile(r"([A-Z]{2})(\d+)")
_MERGED_ARGS: Final = b'"pid_raw"'
_ORDER: Final = ("DP", "EP", "PP", "TP")


class _Rank(msgspec.Struct, gc=False):
    rank: int | None = None


_RANK: Final = msgspec.json.Decoder(_Rank)


def split(events: list[Any]) -> dict[str, list[Any]]:
    """Events by the label of their rank; all of them under the empty label in a file of one rank.

    Parameters
    ----------
    events : list
        A batch; a label in front of a process is taken off.

    Returns
    -------
    dict of str to list
        Events in their order; those of which nothing was decoded, such as flows, have the empty label.
    """
    first = next((e for e in events if getattr(e, "pid", None) is not None), None)
    if first is None or not (
        (isinstance(first.pid, str) and _LABEL.match(first.pid)) or _MERGED_ARGS in bytes(first.args)
    ):
        return {"": events}
    out: dict[str, list[Any]] = defaultdict(list)
    for event in events:
        out[_label(event)].append(event)
    return out


def _label(event: Any) -> str:
    pid = getattr(event, "pid", None)
    if isinstance(pid, str) and (match := _LABEL.match(pid)):
        event.pid = match[2]
        return match[1]
    if pid is None or _MERGED_ARGS not in bytes(event.args):
        return ""
    try:
        return str(_RANK.decode(event.args).rank)
    except msgspec.DecodeError:
        return ""


def ranks(labels: Iterable[str]) -> dict[str, int]:
    """Rank by label: its number where it is one, else its place by data, expert, pipeline and tensor part."""
    found = sorted(labels, key=_parts)
    numbers = [_parts(label)[-1] for label in found]
    alone = all(label.isdecimal() or re.fullmatch(r"TP\d+", label) for label in found)
    alone = alone and max(numbers) < MOST_RANKS
    return dict(zip(found, numbers if alone else range(len(found)), strict=True))


def _parts(label: str) -> tuple[int, ...]:
    parts = {name: int(number) for name, number in _DIMENSION.findall(label)}
    return (*(parts.get(name, 0) for name in _ORDER[:-1]), int(label) if label.isdecimal() else parts.get("TP", 0))


_LANES: Final = (
    "kernels of CUDA graphs carry annotations; their streams are lanes of the program, not streams of the device"
)


def read(
    path: Path,
    *,
    python_functions: bool = False,
    block_bytes: int = BLOCK_BYTES,
    progress: Progress | None = None,
) -> list[Part]:
    """Read one Chrome trace file.

    Parameters
    ----------
    path : pathlib.Path
        ``.json`` or ``.json.gz``.
    python_functions : bool
        Keep the events of Python functions (``with_stack=True``) in OPS with kind ``python``; they are up to nine
        tenths of such a trace.
    block_bytes : int
        Bytes of JSON decoded at a time; the result does not depend on it.
    progress : callable, optional
        Called after each batch with the file's name, the bytes read so far and its size.

    Returns
    -------
    list of Part
        Frames with absolute times (ns since the epoch, or since boot where the file says nothing): one part, or one
        a rank for a file that a tool merged.

    Raises
    ------
    ReadError
        The file cannot be read or is empty.
    UnknownFormatError
        It is not a Chrome trace.
    """
    stream = EventStream(path, block_bytes)
    decoder = EventDecoder()
    by_label: dict[str, Batches] = defaultdict(partial(Batches, python_functions=python_functions))
    collecting = gc.isenabled()
    gc.disable()  # the decoder makes millions of objects and no cycle among them
    try:
        for events in stream.batches(decoder):
            for label, some in split(in_one_form(events)).items():
                by_label[label].add(some)
            if progress is not None:
                progress(path.name, stream.blocks.read_bytes, path.stat().st_size)
    finally:
        if collecting:
            gc.enable()
    if by_label.keys() <= {""}:
        return [_only_part(stream, decoder, by_label[""])]
    rest = by_label.pop("", None)
    parts = [_part(stream, by_label[label], rank=rank) for label, rank in ranks(by_label).items()]
    _tell_of_file(parts[0].coverage, stream, decoder)
    if rest is not None:  # flows, of which nothing was decoded
        parts[0].coverage["events"] += rest.total
        parts[0].coverage["skipped"]["event without a rank"] = rest.total
    return parts


def _only_part(stream: EventStream, decoder: EventDecoder, batches: Batches) -> Part:
    if not batches.total and (stream.lost_pieces or stream.truncated):
        why = f": {stream.truncated}" if stream.truncated else ""
        raise ReadError(f"{stream.path.name} holds no whole event{why}", hint="record the trace again")
    part = _part(stream, batches)
    _tell_of_file(part.coverage, stream, decoder)
    return part


def _part(stream: EventStream, batches: Batches, *, rank: int | None = None) -> Part:
    base = base_ns(stream.head)
    found, left_out = tables(batches.frames(base), batches.process_names, batches.texts)
    skipped = batches.skipped + Counter(left_out)
    coverage: dict[str, Any] = {
        "file": stream.path.name,
        "events": batches.total,
        "kept": batches.kept - sum(left_out.values()),
        "skipped": {reason: count for reason, count in sorted(skipped.items()) if count},
        "wrong_types": batches.wrong_types,
    }
    head = {**describe(stream.head), "absolute": base != 0}
    if rank is not None:
        head["rank"] = rank
    if "kernels" in found and "torch_annotation" in found["kernels"].columns:
        coverage["notes"] = [_LANES]
    return Part(path=stream.path, tables=found, head=head, coverage=coverage)


def _tell_of_file(coverage: dict[str, Any], stream: EventStream, decoder: EventDecoder) -> None:
    """Add what was lost of the whole file."""
    coverage["wrong_types"] += decoder.wrong_types
    coverage |= {
        "bytes": stream.total_bytes,
        "lost_bytes": stream.lost_bytes,
        "lost_pieces": stream.lost_pieces,
        "unread_bytes": stream.path.stat().st_size - stream.blocks.read_bytes,
        "truncated": stream.truncated,
        "repaired": stream.repaired,
    }


_BEFORE: Final = b"\xef\xbb\xbf \t\r\n"
_FIRST_EVENT: Final = re.compile(rb'\[\s*(?:\{\s*\}\s*,\s*)*\{.*?"ph"\s*:\s*"', re.DOTALL)
_MAY_GO_ON: Final = re.compile(rb"$|\{|\[\s*\{")
_EMPTY_LIST: Final = re.compile(rb"\[\s*(?:\]|$)")


def _sniff(probe: Probe) -> bool:
    """Whether it is a document with a list of events, which may stand behind its other keys."""
    for start in probe.growing():
        text = start.lstrip(_BEFORE)
        if text[:1] == b"{" and b'"traceEvents"' in text:
            return True
        if text[:1] == b"[" and (_FIRST_EVENT.match(text) or _EMPTY_LIST.match(text)):
            return True
        if not _MAY_GO_ON.match(text):
            return False
    return False


def _read(path: Path, request: Request) -> list[Part]:
    return read(path, python_functions=request.python_functions, progress=request.progress)


READER = Reader(
    name="chrome",
    version=4,
    what="Chrome trace JSON (PyTorch profiler, Ascend trace_view.json), plain or gzip",
    sniff=_sniff,
    read=_read,
    suffixes=(".json", ".gz", ".trace", ".txt", ""),
)
