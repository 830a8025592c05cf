"""Reader of Chrome trace JSON, written by any version of the PyTorch profiler and by tools with the same format.

The events come in batches, which are sorted by kind and turned into columns.
"""

from __future__ import annotations

import gc
import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import polars as pl

from llmprof.errors import ReadError
from llmprof.progress import Progress
from llmprof.readers.chrome import columns
from llmprof.readers.chrome import events as kinds
from llmprof.readers.chrome.columns import Texts, ids
from llmprof.readers.chrome.events import COMPLETE, PHASES, EventDecoder, in_ns, in_one_form
from llmprof.readers.chrome.tables import base_ns, describe, tables
from llmprof.readers.common.event_stream import BLOCK_BYTES, EventStream
from llmprof.readers.common.reader import MOST_RANKS, NO_TIME, Part, Probe, Reader, Request
from llmprof.readers.common.repair import ListDecoder

KINDS: Final[dict[str, str]] = {
    "kernel": "kernel",
    "gpu_memcpy": "copy",
    "memcpy": "copy",
    "gpu_memset": "copy",
    "memset": "copy",
    "cuda_runtime": "runtime",
    "runtime": "runtime",
    "hip_runtime": "runtime",
    "xpu_runtime": "runtime",
    "mtia_runtime": "runtime",
    "glow_runtime": "runtime",
    "privateuse1_runtime": "runtime",
    "cuda_api": "runtime",
    "cuda_driver": "driver",
    "xpu_driver": "driver",
    "privateuse1_driver": "driver",
    "cpu_op": "op",
    "operator": "op",
    "node": "op",
    "python_function": "python",
    "user_annotation": "marker",
    "overhead": "marker",
    "nvtx": "marker",
    "graph_host_node": "marker",
    "session": "marker",
    "enqueue": "marker",
    "dequeue": "marker",
    "gpu_user_annotation": "device_marker",
    "cuda_sync": "device_marker",
    "nvtx-kernel": "device_marker",
    "cuda": "kernel",
    "mtia_ccp_events": "queue",
    "hpu_op": "kernel",
    "trace": "",
    "llmprof": "",
}
"""Category (lower case) -> kind of event; empty means not used. The kind of other categories depends on the process."""

_COLUMNS: Final[dict[str, tuple[type[Any] | None, columns.Build]]] = {
    "kernel": (kinds.KernelArgs, columns.kernels),
    "copy": (kinds.CopyArgs, columns.copies),
    "queue": (kinds.QueueArgs, columns.queue),
    "runtime": (kinds.LaunchArgs, columns.calls),
    "driver": (kinds.LaunchArgs, columns.calls),
    "op": (kinds.OpArgs, columns.ops),
    "python": (None, columns.python_functions),
    "marker": (kinds.Args, columns.markers),
    "module": (None, columns.modules),
    "device_marker": (kinds.DeviceMarkerArgs, columns.device_markers),
    "process": (kinds.CallArgs, columns.by_process),
    "memory": (kinds.MemoryArgs, columns.memory),
    "counter": (None, columns.counters),
}
"""Kind of event -> class of its arguments (None: none, or no fixed class) and the function that makes columns of it."""

_PYTHON: Final = "python_function"
_MODULE: Final = "nn.Module: "
"""Prefix of the name of a Python function that is the call of a torch module; such calls are kept as markers."""

_LEFT_OUT: Final = {"s": "flow", "t": "flow", "f": "flow", "M": "metadata", "i": "instant", "I": "instant"}


class Batches:
    """Columns of the batches read so far, by kind of event.

    Parameters
    ----------
    python_functions : bool
        Whether to keep Python functions.

    Attributes
    ----------
    total, kept : int
        Number of events read, and of those that a table holds.
    skipped : Counter
        Events left out, by reason.
    process_names : dict
        Names of processes by identifier.
    texts : Texts
        Texts of the columns that hold codes.
    """

    def __init__(self, *, python_functions: bool) -> None:
        self.texts = Texts()
        self.process_names: dict[int, str] = {}
        self.total = 0
        self.kept = 0
        self.skipped: Counter[str] = Counter()
        self._kinds = _Kinds(python_functions=python_functions)
        self._frames: dict[str, list[pl.DataFrame]] = defaultdict(list)
        self._args = {kind: ListDecoder(args) for kind, (args, _) in _COLUMNS.items() if args is not None}
        self._names = ListDecoder(kinds.NameArgs)

    @property
    def wrong_types(self) -> int:
        """Arguments that were dropped because of their type."""
        return sum(decoder.wrong_types for decoder in self._args.values())

    def add(self, events: list[Any]) -> None:
        """Sort a batch of events by kind and add them to the columns."""
        self.total += len(events)
        groups: dict[str, list[Any]] = defaultdict(list)
        append = _Appending(self._kinds, groups)
        for event in [e for e in events if type(e) in COMPLETE]:
            append[event.cat](event)
        self._add_others([e for e in events if type(e) not in COMPLETE], groups)
        self._take_modules(groups)
        for kind, group in groups.items():
            if kind in _COLUMNS:
                self._frames[kind].append(self._columns(kind, group))
            else:
                self.skipped[kind] += len(group)

    def _take_modules(self, groups: dict[str, list[Any]]) -> None:
        """Add calls of modules as a group of their own, also where the Python functions are kept."""
        kept = "python" in groups
        functions = groups.get("python" if kept else _PYTHON, [])
        modules = [e for e in functions if e.name is not None and e.name.startswith(_MODULE)]
        if modules:
            groups["module"] = modules
            if kept:
                self.kept -= len(modules)
            else:
                groups[_PYTHON] = [e for e in functions if e.name is None or not e.name.startswith(_MODULE)]

    def _add_others(self, events: list[Any], groups: dict[str, list[Any]]) -> None:
        counts: Counter[type[Any]] = Counter(map(type, events))
        for kind, count in counts.items():
            phase = PHASES.get(kind, "")
            if phase in ("C", "M", "i", "I"):
                group = [e for e in events if type(e) is kind]
                if phase == "C":
                    groups["counter"] += group
                    self.kept += count
                    continue
                if phase == "M":
                    self._name_processes([e for e in group if e.name == "process_name"])
                elif memory := [e for e in group if e.name == "[memory]"]:
                    groups["memory"] += memory
                    count -= len(memory)
            self.skipped[_LEFT_OUT.get(phase, f"ph {phase!r}")] += count

    def _name_processes(self, events: list[Any]) -> None:
        processes = ids([e.pid for e in events])
        for process, args in zip(processes, self._names([e.args for e in events]), strict=True):
            if process is not None and args.name is not None:
                self.process_names[process] = str(args.name)

    def _columns(self, kind: str, events: list[Any]) -> pl.DataFrame:
        args = self._args[kind]([e.args for e in events]) if kind in self._args else []
        return pl.DataFrame(_COLUMNS[kind][1](self.texts, events, args))

    def frames(self, base_ns: int) -> dict[str, pl.DataFrame]:
        """One frame for each kind, with the events that have a time and a name; the batches are freed on the way.

        Parameters
        ----------
        base_ns : int
            Absolute time (ns) that the times of the file count from.
        """
        out = {}
        for kind in list(self._frames):
            alike = itertools.groupby(self._frames.pop(kind), key=lambda frame: frame.schema)
            frame = pl.concat([in_ns(pl.concat(list(group)), base_ns) for _, group in alike], how="diagonal_relaxed")
            at = "time_ns" if "time_ns" in frame.columns else "start_ns"
            out[kind] = frame.filter(pl.col(at).is_not_null() & (pl.col("name") != self.texts.code_of_none("name")))
            if kind != "counter":  # if one event has several rows
                self.skipped[NO_TIME] += frame.height - out[kind].height
                self.kept += out[kind].height
        return out


class _Appending(dict[str | None, Callable[[Any], None]]):
    """For each category, the function that appends an event to the group of its kind."""

    def __init__(self, kinds: _Kinds, groups: dict[str, list[Any]]) -> None:
        super().__init__()
        self._kinds = kinds
        self._groups = groups

    def __missing__(self, category: str | None) -> Callable[[Any], None]:
        self[category] = append = self._groups[self._kinds[category]].append
        return append


class _Kinds(dict[str | None, str]):
    """Kind of event by its category, spelled as in the file."""

    def __init__(self, *, python_functions: bool) -> None:
        super().__init__()
        self._python = "python" if python_functions else _PYTHON

    def __missing__(self, category: str | None) -> str:
        lower = (category or "").lower()
        kind = KINDS.get(lower, "process")
        self[category] = own = self._python if kind == "python" else kind or lower
        return own


_LABEL: Final = re.compile(r"\[((?:[A-Z]{2}\d+-?)+)\] (.*)", re.DOTALL)
_DIMENSION: Final = re.compile(r"([A-Z]{2})(\d+)")
_MERGED_ARGS: Final = b'"pid_raw"'
_ORDER: Final = ("DP", "EP", "PP", "TP")


class _Rank(msgspec.Struct, gc=False):
    rank: int | None = None


def split(events: list[Any]) -> dict[str, list[Any]]:
    """Events by the label of their rank; a file of one rank has all of them under the empty label.

    Parameters
    ----------
    events : list
        A batch; the label before the identifier of a process is removed from it.

    Returns
    -------
    dict of str to list
        Events in their order; events that were not decoded, such as flows, are under the empty label.
    """
    first = next((e for e in events if getattr(e, "pid", None) is not None), None)
    if first is None:
        return {"": events}
    by_process = isinstance(first.pid, str) and _LABEL.match(first.pid) is not None
    if not by_process and _MERGED_ARGS not in bytes(first.args):
        return {"": events}
    out: dict[str, list[Any]] = defaultdict(list)
    known = _Labels()
    unlabelled: list[Any] = []
    for event in events:
        if (pid := getattr(event, "pid", None)) is None:
            out[""].append(event)
        elif (label_and_pid := known[pid]) is not None:
            event.pid = label_and_pid[1]
            out[label_and_pid[0]].append(event)
        else:
            unlabelled.append(event)
    for event, args in zip(unlabelled, ListDecoder(_Rank)([e.args for e in unlabelled]), strict=True):
        merged = args.rank is not None and _MERGED_ARGS in bytes(event.args)
        out[str(args.rank) if merged else ""].append(event)
    return out


class _Labels(dict[Any, tuple[str, str] | None]):
    """Identifier of a process -> its label and the rest of it; None if it has no label."""

    def __missing__(self, pid: Any) -> tuple[str, str] | None:
        match = _LABEL.match(pid) if isinstance(pid, str) else None
        self[pid] = label_and_pid = (match[1], match[2]) if match else None
        return label_and_pid


def ranks(labels: Iterable[str]) -> dict[str, int]:
    """Rank of each label: its number if it is one, else its position by data, expert, pipeline and tensor part."""
    ordered = sorted(labels, key=_parts)
    numbers = [_parts(label)[-1] for label in ordered]
    alone = all(label.isdecimal() or re.fullmatch(r"TP\d+", label) for label in ordered)
    alone = alone and max(numbers) < MOST_RANKS
    return dict(zip(ordered, numbers if alone else range(len(ordered)), strict=True))


def _parts(label: str) -> tuple[int, ...]:
    parts = {name: int(number) for name, number in _DIMENSION.findall(label)}
    return (*(parts.get(name, 0) for name in _ORDER[:-1]), int(label) if label.isdecimal() else parts.get("TP", 0))


_LANES: Final = (
    "kernels of CUDA graphs carry annotations; their streams are lanes of the program, not streams of the device: "
    "stream is null there, and the lane is in torch_lane"
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
        Keep the events of Python functions (``with_stack=True``) in ``ops`` with kind ``python``; they are up to
        nine tenths of such a trace.
    block_bytes : int
        Number of bytes of JSON to decode at a time; the result does not depend on it.
    progress : callable, optional
        Called after each batch with the file's name, the bytes read so far and its size.

    Returns
    -------
    list of Part
        Frames with absolute times (ns since the epoch, or since boot if the file does not say): one part, or for a
        file that a tool merged one part per rank.

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
    gc.disable()  # the decoder makes millions of objects without a reference cycle
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
    if rest is not None:  # flows, which were not decoded
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
    frames = tables(batches.frames(base), batches.process_names, batches.texts)
    coverage: dict[str, Any] = {
        "file": stream.path.name,
        "events": batches.total,
        "kept": batches.kept,
        "skipped": {reason: count for reason, count in sorted(batches.skipped.items()) if count},
        "wrong_types": batches.wrong_types,
    }
    head = {**describe(stream.head), "absolute": base != 0}
    if rank is not None:
        head["rank"] = rank
    if "kernels" in frames and "torch_annotation" in frames["kernels"].columns:
        coverage["notes"] = [_LANES]
    return Part(path=stream.path, tables=frames, head=head, coverage=coverage)


def _tell_of_file(coverage: dict[str, Any], stream: EventStream, decoder: EventDecoder) -> None:
    """Add what was lost of the whole file to the coverage."""
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
    """Whether a file is a document with a list of events, which may follow other keys."""
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
    version=7,
    what="Chrome trace JSON (PyTorch profiler and others), plain or gzip",
    sniff=_sniff,
    read=_read,
    suffixes=(".json", ".gz", ".trace", ".txt", ""),
)
