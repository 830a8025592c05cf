"""A real trace, repeated in time: as a file of any size, as frames with any number of kernels, and as a
dataset of many ranks.

Every repetition starts after the one before it has ended and has ids of its own, so steps, launches
and operators belong together as in the original.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from llmprof import open as open_dataset
from llmprof import read, sample
from llmprof.trace import Trace
from llmprof.trace.storage.dataset import (
    MANIFEST,
    Manifest,
    Partition,
    write_manifest,
    write_partition,
)
from llmprof.trace.storage.places import Place

GAP_US = 1000
_NUMBER = re.compile(rb'"(ts|correlation|[Ee]xternal id|id)"\s*:\s*"?(\d+)')
_NO_ID = 1 << 31
"""Larger numbers are marks such as "none", not ids."""


class _Document(msgspec.Struct):
    traceEvents: msgspec.Raw  # noqa: N815


class _Span(msgspec.Struct, gc=False):
    ts: float | None = None
    dur: float | None = None


def repeated_file(source: Path, target: Path, size: int) -> int:
    """Write ``source`` again and again to ``target`` (gzip) up to about ``size`` bytes of JSON; the
    bytes written.

    Memory holds one repetition at a time.
    """
    from isal import igzip

    text = source.read_bytes()
    text = igzip.decompress(text) if text[:2] == b"\x1f\x8b" else text
    events = bytes(msgspec.json.decode(text, type=_Document).traceEvents)
    at = text.index(events)
    head, tail = text[: at + 1], text[at + len(events) - 1 :]
    spans = [s for s in msgspec.json.decode(events, type=list[_Span]) if s.ts is not None]
    first, last = min(s.ts for s in spans), max(s.ts + (s.dur or 0) for s in spans)
    del spans
    fixed, times, numbers = _parts(events[1:-1].strip())
    shift_us = int(last - first) + GAP_US
    shift_id = (
        max(n for n, is_time in zip(numbers, times, strict=True) if not is_time and n < _NO_ID) + 1
    )
    written = len(head) + len(tail)
    with igzip.open(target, "wb", compresslevel=1) as out:
        out.write(head)
        turn = 0
        while written < size:
            moved = [
                b"%d"
                % (n + turn * shift_us if is_time else n + turn * shift_id if n < _NO_ID else n)
                for n, is_time in zip(numbers, times, strict=True)
            ]
            pieces = [
                fixed[0],
                *(part for pair in zip(moved, fixed[1:], strict=True) for part in pair),
            ]
            block = (b",\n" if turn else b"") + b"".join(pieces)
            out.write(block)
            written += len(block)
            turn += 1
        out.write(tail)
    return written


def _parts(text: bytes) -> tuple[list[bytes], list[bool], list[int]]:
    """The text between the numbers that move, whether each number is a time, and the numbers."""
    fixed, times, numbers, end = [], [], [], 0
    for match in _NUMBER.finditer(text):
        fixed.append(text[end : match.start(2)])
        times.append(match[1] == b"ts")
        numbers.append(int(match[2]))
        end = match.end(2)
    return [*fixed, text[end:]], times, numbers


def repeated_dataset(trace: Trace, folder: Path, ranks: int) -> int:
    """Write a dataset of ranks that all recorded what one did; its rows."""
    place = Place.of(str(folder))
    frames = {name: frame for name, frame in trace.tables.items() if name != "collectives"}
    parts = []
    for rank in range(ranks):
        number = pl.lit(rank, dtype=pl.Int32)
        about = Partition(f"part-{rank}", rank, f"rank{rank}.json", "", trace.span_ns)
        own = {name: frame.with_columns(rank=number) for name, frame in frames.items()}
        parts.append(write_partition(place, about, own))
    of_ranks = [trace.meta["ranks"][0] | {"rank": rank} for rank in range(ranks)]
    meta = trace.meta | {"ranks": of_ranks, "world_size": ranks}
    manifest = Manifest("chrome", 0, tuple(frames), meta, trace.coverage, tuple(parts))
    write_manifest(place, manifest)
    return ranks * sum(frame.height for frame in frames.values())


def repeated_trace(source: str, kernels: int) -> Trace:
    """A trace (path or name of a sample) repeated until it has at least this many kernels; a
    dataset as it is.
    """
    if (Path(source) / MANIFEST).exists():
        return open_dataset(source)
    trace = read(source, cache=False) if Path(source).exists() else sample(source)
    times = -(-kernels // trace.kernels.height)
    first, last = trace.span_ns
    period = last - first + GAP_US * 1000
    highest = {
        column: max(_highest(frame, column) for frame in trace.tables.values()) + 1
        for column in ("correlation", "op_id")
    }
    tables = {}
    for name, frame in trace.tables.items():
        turn = pl.int_range(pl.len(), dtype=pl.Int64) // frame.height
        moves: dict[str, Any] = {
            c: pl.col(c) + turn * by for c, by in highest.items() if c in frame.columns
        }
        at = "time_ns" if "time_ns" in frame.columns else "start_ns"
        moves[at] = pl.col(at) + turn * period
        tables[name] = pl.concat([frame] * times).with_columns(**moves) if frame.height else frame
    return Trace(tables, trace.meta, trace.coverage)


def _highest(frame: pl.DataFrame, column: str) -> int:
    top = frame[column].max() if column in frame.columns else None
    return top if isinstance(top, int) else 0
