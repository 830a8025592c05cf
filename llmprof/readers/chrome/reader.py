"""Reader of Chrome trace JSON, written by any version of the PyTorch profiler and by tools with the same format.

The events come in batches, which are sorted by kind and turned into columns; several processes can share the batches of
one file.
"""

from __future__ import annotations

import gc
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import polars as pl

from llmprof.errors import ReadError
from llmprof.progress import Progress
from llmprof.readers.chrome.batches import NO_PHASE, Batch, Batches, ranks, split
from llmprof.readers.chrome.events import EventDecoder, in_one_form
from llmprof.readers.chrome.tables import base_ns, describe, tables
from llmprof.readers.common.event_stream import BLOCK_BYTES, EventStream
from llmprof.readers.common.helpers import Done, Job, Share, is_worth_it, shared
from llmprof.readers.common.reader import Part, Probe, Reader
from llmprof.readers.common.repair import BAD_JSON

_LANES: Final = (
    "kernels of CUDA graphs carry annotations; their streams are lanes of the program, not streams of the device: "
    "stream is null there, and the lane is in torch_lane"
)


def read(
    path: Path,
    *,
    python_functions: bool = True,
    block_bytes: int = BLOCK_BYTES,
    progress: Progress | None = None,
    workers: int = 1,
) -> list[Part]:
    """Read one Chrome trace file."""
    reading = _Reading(path, python_functions, block_bytes, progress)
    with _without_collections():
        if workers > 1 and is_worth_it([path]):
            description = {"path": str(path), "python_functions": python_functions, "block_bytes": block_bytes}
            with shared(f"{__name__}:help_read", description, workers) as job:
                _read_together(reading, job)
        else:
            reading.all()
    return _parts(reading)


def _parts(reading: _Reading) -> list[Part]:
    stream, by_label = reading.stream, reading.by_label
    if by_label.keys() <= {""}:
        if not by_label[""].total and (stream.lost_pieces or stream.truncated):
            why = f": {stream.truncated}" if stream.truncated else ""
            raise ReadError(f"{stream.path.name} holds no whole event{why}", hint="record the trace again")
        part = _part(stream, by_label[""])
        _tell_of_file(part.coverage, reading)
        return [part]
    rest = by_label.pop("", None)
    parts = [_part(stream, by_label[label], rank=rank) for label, rank in ranks(by_label).items()]
    _tell_of_file(parts[0].coverage, reading)
    if rest is not None:  # flows, which were not decoded
        parts[0].coverage["events"] += rest.total
        parts[0].coverage["skipped"]["event without a rank"] = rest.total
    return parts


@contextmanager
def _without_collections() -> Iterator[None]:
    """Without the collector of garbage: the decoder makes millions of objects without a reference cycle."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


class _Reading:
    """One walk through a file. The units that are shared are the calls of the decoder, the same in every walk."""

    def __init__(self, path: Path, python_functions: bool, block_bytes: int, progress: Progress | None = None) -> None:
        self._block_bytes = block_bytes
        self.stream = EventStream(path, block_bytes)
        self.by_label: dict[str, Batches] = defaultdict(partial(Batches, python_functions=python_functions))
        self.exact: dict[int, bool] = {}
        self.wrong_types: dict[int, int] = defaultdict(int)
        self.unit = -1
        self.decoder = EventDecoder()
        self._progress = progress
        self._has_event = False

    def restart(self) -> None:
        """Read the file again from its start; events that were read are kept."""
        path, block_bytes = self.stream.path, self._block_bytes
        self.stream, self.unit, self.decoder = EventStream(path, block_bytes), -1, EventDecoder()
        self.decoder.exact = any(self.exact.values())

    def all(self) -> None:
        """Read everything."""
        for _ in self.own(lambda unit: True):
            pass

    def own(self, is_own: Callable[[int], bool], *, strict: bool = False) -> Iterator[int]:
        """Read the units that a function says are this walk's own; gives each when it is read.

        The end of a unit is found without decoding it, which holds as long as all units are sound; ``strict`` raises
        ``_Damaged`` at an own unit that is not.
        """

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
            for label, some in split(events).items():
                self.by_label[label].add(some, self.unit)
            self._refuse_other_lists()
            if self._progress is not None:
                self._progress(path.name, self.stream.blocks.read_bytes, path.stat().st_size)
            yield self.unit

    def _refuse_other_lists(self) -> None:
        """Raise if none of many entries is an event: each has at least a phase."""
        newest = [batches.batches[-1] for batches in self.by_label.values() if batches.batches]
        self._has_event |= any(batch.skipped.get(NO_PHASE, 0) < batch.total for batch in newest)
        read = 0 if self._has_event else sum(batches.total for batches in self.by_label.values())
        if read >= _MOST_EMPTY:
            raise ReadError(
                f"{self.stream.path.name}: none of its first {read:,} entries is an event",
                expected="Chrome trace events, each with a phase (ph)",
            )

    def told(self, unit: int) -> tuple[list[Any], dict[str, pl.DataFrame]]:
        """Facts and columns of the unit that this process read last, for the process that started it."""
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
        self.wrong_types = defaultdict(int, {u: wrong for u, wrong in self.wrong_types.items() if u < end})

    def take_over(self, done: Done, codes: dict[tuple[int, str, str], list[int]]) -> None:
        """Add a unit that a helper read; ``codes`` has our codes of its texts so far, by process, label and column."""
        unit, (process, exact, wrong, labels), frames = done
        self.exact[unit], self.wrong_types[unit] = exact, wrong
        for label, facts, texts in labels:
            batches = self.by_label[label]
            for column, values in texts.items():
                codes.setdefault((process, label, column), []).extend(batches.texts.codes(column, values))
            batch = Batch.of(unit, facts)
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
    """Read a file with helpers; from the first unit on that is not sound, this process reads alone."""
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
    numbers = [unit for unit, exact in known.items() if unit > first_exact and not exact]  # read too early
    end = min([count, *missing, *numbers])
    codes: dict[tuple[int, str, str], list[int]] = {}
    for one in done:
        reading.take_over(one, codes)
    if missing or numbers or not sound:
        reading.keep(end)
        reading.restart()
        for _ in reading.own(lambda unit: unit >= end):
            pass


def help_read(of: dict[str, Any], share: Share) -> None:
    """Work of a helper: reads the units of a file that nobody has taken, but not the end of the file."""
    reading = _Reading(Path(of["path"]), of["python_functions"], of["block_bytes"])
    with _without_collections():
        for unit in reading.own(lambda unit: not reading.stream.ending and share.take(unit), strict=True):
            share.give(unit, *reading.told(unit))


def _part(stream: EventStream, batches: Batches, *, rank: int | None = None) -> Part:
    base = base_ns(stream.head)
    events, wrong_types, names = batches.total, batches.wrong_types, batches.process_names
    frames = tables(batches.frames(base), names, batches.texts)
    coverage: dict[str, Any] = {
        "file": stream.path.name,
        "events": events,
        "kept": batches.kept,
        "skipped": {reason: count for reason, count in sorted(batches.skipped.items()) if count},
        "wrong_types": wrong_types,
    }
    head = {**describe(stream.head), "absolute": base != 0}
    if rank is not None:
        head["rank"] = rank
    if "kernels" in frames and "torch_annotation" in frames["kernels"].columns:
        coverage["notes"] = [_LANES]
    return Part(path=stream.path, tables=frames, head=head, coverage=coverage)


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
        if text[:1] == b"[" and ((_OBJECTS.match(text) and _PHASE.search(text)) or _EMPTY_LIST.match(text)):
            return True
        if not _MAY_GO_ON.match(text):
            return False
    return False


READER = Reader(
    name="chrome",
    version=9,
    what="Chrome trace JSON (PyTorch profiler and others), plain or gzip",
    sniff=_sniff,
    read=lambda path, request: read(
        path, python_functions=request.python_functions, progress=request.progress, workers=request.workers
    ),
    suffixes=(".json", ".gz", ".trace", ".txt", ""),
    one_core=True,
)
