"""Reader for Chrome trace JSON: the PyTorch profiler of any year on any device, and tools that write the same form.

Events go by category into the tables of the schema. Flow arrows are not kept: the correlation id says the same.
"""

from __future__ import annotations

import gc
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from llmprof.errors import ReadError
from llmprof.readers import _fused
from llmprof.readers._blocks import BLOCK_BYTES
from llmprof.readers._chrome_batches import Batches
from llmprof.readers._chrome_head import base_ns, describe
from llmprof.readers._chrome_tables import tables
from llmprof.readers._events import EventDecoder, in_one_form
from llmprof.readers._part import Part
from llmprof.readers._stream import EventStream

VERSION = 3
"""Raised whenever the same file would give other frames: part of the cache key."""

Progress = Callable[[str, int, int], None]
"""Called with the name of a file, the bytes of it that were read, and its size."""


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
            for label, some in _fused.split(in_one_form(events)).items():
                by_label[label].add(some)
            if progress is not None:
                progress(path.name, stream.blocks.read_bytes, path.stat().st_size)
    finally:
        if collecting:
            gc.enable()
    if by_label.keys() <= {""}:
        return [_only_part(stream, decoder, by_label[""])]
    rest = by_label.pop("", None)
    parts = [_part(stream, by_label[label], rank=rank) for label, rank in _fused.ranks(by_label).items()]
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
    coverage = {
        "file": stream.path.name,
        "events": batches.total,
        "kept": batches.kept - sum(left_out.values()),
        "skipped": {reason: count for reason, count in sorted(skipped.items()) if count},
        "wrong_types": batches.wrong_types,
    }
    head = {**describe(stream.head), "absolute": base != 0}
    if rank is not None:
        head["rank"] = rank
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
