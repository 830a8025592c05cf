"""Sorts the events of a Chrome trace by kind and by rank, batch by batch, and turns them into columns."""

from __future__ import annotations

import functools
import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import polars as pl

from llmprof.readers.chrome import columns
from llmprof.readers.chrome import events as kinds
from llmprof.readers.chrome.columns import Texts, ids
from llmprof.readers.chrome.events import OtherPhase, in_ns
from llmprof.readers.common.reader import MOST_RANKS, NO_TIME
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
    "osrt": "os",
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
    "os": (kinds.LaunchArgs, columns.calls),
    "op": (kinds.OpArgs, columns.ops),
    "python": (None, columns.python_functions),
    "marker": (kinds.Args, columns.markers),
    "module": (None, columns.modules),
    "device_marker": (kinds.DeviceMarkerArgs, columns.device_markers),
    "process": (kinds.CallArgs, columns.by_process),
    "memory": (kinds.MemoryArgs, columns.memory),
    "counter": (None, columns.counters),
}
"""For each kind of event: class of its arguments (None if there are none, or no fixed class), and the function that
converts events to columns."""

_WORTH_AN_ATTEMPT: Final = 256
_PYTHON: Final = "python_function"
_MODULE: Final = "nn.Module: "
"""Prefix of the name of a Python function that is the call of a torch module; such calls are kept as markers."""
_GLOO: Final = "gloo:"
"""Prefix of the name of a range in which a thread of a process group communicates: work, and so an operator."""

_LEFT_OUT: Final = {"s": "flow", "t": "flow", "f": "flow", "M": "metadata", "i": "instant", "I": "instant"}

NO_PHASE: Final = "ph ''"
"""Reason for leaving out an entry without a phase, which is no event."""


@dataclass(slots=True)
class Batch:
    """Columns and counts of one batch of events."""

    unit: int
    """Position of the batch in the file."""
    total: int = 0
    kept: int = 0
    wrong_types: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    process_names: list[tuple[int, str]] = field(default_factory=list)
    frames: dict[str, pl.DataFrame] = field(default_factory=dict)

    def facts(self) -> list[Any]:
        """All but the columns, as another process can take it."""
        names = [list(pair) for pair in self.process_names]
        return [self.total, self.kept, self.wrong_types, self.skipped, names, list(self.frames)]

    @classmethod
    def of(cls, unit: int, facts: list[Any]) -> Batch:
        """The batch that another process told :meth:`facts` of, without its columns."""
        total, kept, wrong_types, skipped, names, _ = facts
        return cls(unit, total, kept, wrong_types, skipped, [(process, name) for process, name in names])


class Batches:
    """Columns of the batches read so far, by kind of event."""

    def __init__(self, *, python_functions: bool) -> None:
        self.texts = Texts()
        self.batches: list[Batch] = []
        self.kept = 0
        self.skipped: Counter[str] = Counter()
        self._kinds = _Kinds(python_functions=python_functions)
        self._args = {kind: ListDecoder(args) for kind, (args, _) in _COLUMNS.items() if args is not None}
        self._names = ListDecoder(kinds.NameArgs)
        self._attempts = 2  # at arguments that repeat

    @property
    def total(self) -> int:
        """Number of events read."""
        return sum(batch.total for batch in self.batches)

    @property
    def wrong_types(self) -> int:
        """Arguments that were dropped because of their type."""
        return sum(batch.wrong_types for batch in self.batches)

    @property
    def process_names(self) -> dict[int, str]:
        """Names of processes by identifier."""
        return {process: name for batch in self._in_order() for process, name in batch.process_names}

    def _in_order(self) -> list[Batch]:
        return sorted(self.batches, key=lambda batch: batch.unit)

    def add(self, events: list[Any], unit: int = 0) -> None:
        """Sort a batch of events by kind and add them to the columns."""
        batch = Batch(unit, total=len(events))
        skipped: Counter[str] = Counter()
        groups: dict[str, list[Any]] = defaultdict(list)
        others: dict[str, list[Any]] = defaultdict(list)
        append = _Appending(self._kinds, groups, others)
        wrong = self._wrong_types()
        for event in events:
            append[event.cat](event)
        self._add_others(others, groups, batch, skipped)
        self._take_modules(groups, batch)
        if gloo := [e for e in groups.get("marker", ()) if e.name is not None and e.name.startswith(_GLOO)]:
            groups["marker"] = [e for e in groups["marker"] if e.name is None or not e.name.startswith(_GLOO)]
            groups["op"] += gloo
        for kind, group in groups.items():
            if kind in _COLUMNS:
                batch.frames[kind] = self._columns(kind, group)
            else:
                skipped[kind] += len(group)
        batch.skipped = dict(skipped)
        batch.wrong_types = self._wrong_types() - wrong
        self.batches.append(batch)

    def _wrong_types(self) -> int:
        return sum(decoder.wrong_types for decoder in self._args.values())

    def _take_modules(self, groups: dict[str, list[Any]], batch: Batch) -> None:
        """Add calls of modules as a group of their own, also where the Python functions are kept."""
        kept = "python" in groups
        functions = groups.get("python" if kept else _PYTHON, [])
        modules = [e for e in functions if e.name is not None and e.name.startswith(_MODULE)]
        if modules:
            groups["module"] = modules
            if kept:
                batch.kept -= len(modules)
            else:
                groups[_PYTHON] = [e for e in functions if e.name is None or not e.name.startswith(_MODULE)]

    def _add_others(
        self, others: dict[str, list[Any]], groups: dict[str, list[Any]], batch: Batch, skipped: Counter[str]
    ) -> None:
        """Add the events of other phases than that of complete events; ``others`` has them by phase."""
        for phase, events in others.items():
            left_out = len(events)
            if phase == "C":
                groups["counter"] += events
                batch.kept += left_out
                continue
            if phase == "M":
                batch.process_names += self._names_of([e for e in events if e.name == "process_name"])
            elif phase in ("i", "I") and (memory := [e for e in events if e.name == "[memory]"]):
                groups["memory"] += memory
                left_out -= len(memory)
            skipped[_LEFT_OUT.get(phase, f"ph {phase!r}" if phase else NO_PHASE)] += left_out

    def _names_of(self, events: list[Any]) -> list[tuple[int, str]]:
        """Processes and their names."""
        processes = ids([e.pid for e in events])
        named = zip(processes, self._names([e.args for e in events]), strict=True)
        return [(pid, str(args.name)) for pid, args in named if pid is not None and args.name is not None]

    def _columns(self, kind: str, events: list[Any]) -> pl.DataFrame:
        written = [e.args for e in events] if kind in self._args else []
        if kind == "op" and self._attempts and len(events) >= _WORTH_AN_ATTEMPT:
            if (args := columns.repeated(written)) is not None:
                return pl.DataFrame(columns.repeated_ops(self.texts, events, args))
            self._attempts -= 1
        return pl.DataFrame(_COLUMNS[kind][1](self.texts, events, self._args[kind](written) if written else []))

    def frames(self, base_ns: int) -> dict[str, pl.DataFrame]:
        """One frame for each kind, with the events that have a time and a name; the batches are freed on the way."""
        by_kind: dict[str, list[pl.DataFrame]] = defaultdict(list)
        for batch in self._in_order():
            self.kept += batch.kept
            self.skipped.update(batch.skipped)
            for kind in list(batch.frames):
                by_kind[kind].append(batch.frames.pop(kind))
        alike = [
            (kind, pl.concat(list(group)))
            for kind in list(by_kind)
            for _, group in itertools.groupby(by_kind.pop(kind), key=lambda frame: frame.schema)
        ]
        converted: dict[str, list[pl.DataFrame]] = defaultdict(list)
        for (kind, _), frame in zip(alike, in_ns([frame for _, frame in alike], base_ns), strict=True):
            converted[kind].append(frame)
        del alike
        out = {}
        for kind in list(converted):
            frame = pl.concat(converted.pop(kind), how="diagonal_relaxed")
            out[kind] = self._complete(frame)
            if kind != "counter":  # if one event has several rows
                self.skipped[NO_TIME] += frame.height - out[kind].height
                self.kept += out[kind].height
        return out

    def _complete(self, frame: pl.DataFrame) -> pl.DataFrame:
        """The events that have a time and a name."""
        at, nameless = "time_ns" if "time_ns" in frame.columns else "start_ns", self.texts.code_of_none("name")
        if not frame[at].null_count() and not (frame["name"] == nameless).any():
            return frame
        return frame.filter(pl.col(at).is_not_null() & (pl.col("name") != nameless))


class _Appending(dict[str | OtherPhase | None, Callable[[Any], None]]):
    """For each category, the function that appends an event to the group of its kind, or to those of its phase."""

    def __init__(self, kinds: _Kinds, groups: dict[str, list[Any]], others: dict[str, list[Any]]) -> None:
        super().__init__()
        self._kinds = kinds
        self._groups = groups
        self._others = others

    def __missing__(self, category: str | OtherPhase | None) -> Callable[[Any], None]:
        if isinstance(category, OtherPhase):
            group = self._others[category.phase]
        else:
            group = self._groups[self._kinds[category]]
        self[category] = append = group.append
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
    """Events by the label of their rank; a file of one rank has all of them under the empty label."""
    first = next((e for e in events if getattr(e, "pid", None) is not None), None)
    if first is None:
        return {"": events}
    by_process = isinstance(first.pid, str) and _LABEL.match(first.pid) is not None
    if not by_process and _MERGED_ARGS not in bytes(first.args):
        return {"": events}
    out: dict[str, list[Any]] = defaultdict(list)
    known = functools.cache(_label)
    unlabelled: list[Any] = []
    for event in events:
        if (pid := getattr(event, "pid", None)) is None:
            out[""].append(event)
        elif (label_and_pid := known(pid)) is not None:
            event.pid = label_and_pid[1]
            out[label_and_pid[0]].append(event)
        else:
            unlabelled.append(event)
    for event, args in zip(unlabelled, ListDecoder(_Rank)([e.args for e in unlabelled]), strict=True):
        merged = args.rank is not None and _MERGED_ARGS in bytes(event.args)
        out[str(args.rank) if merged else ""].append(event)
    return out


def _label(pid: Any) -> tuple[str, str] | None:
    """Label in the identifier of a process, and the rest of the identifier; None if it has no label."""
    match = _LABEL.match(pid) if isinstance(pid, str) else None
    return (match[1], match[2]) if match else None


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
