"""Batches of Chrome trace events, sorted by kind and turned into columns."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any, Final

import polars as pl

from llmprof.readers.chrome import columns
from llmprof.readers.chrome import events as kinds
from llmprof.readers.chrome.columns import Texts, ids
from llmprof.readers.chrome.events import COMPLETE, PHASES
from llmprof.readers.chrome.times import in_ns
from llmprof.readers.common.fitting import ListDecoder
from llmprof.readers.common.part import NO_TIME

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
    "mtia_ccp_events": "kernel",
    "hpu_op": "kernel",
    "trace": "",
}
"""Category (lower case) -> kind of event; empty means of no use here. What is not listed goes by its process."""

_COLUMNS: Final[dict[str, tuple[type[Any] | None, columns.Build]]] = {
    "kernel": (kinds.KernelArgs, columns.kernels),
    "copy": (kinds.CopyArgs, columns.copies),
    "runtime": (kinds.CallArgs, columns.calls),
    "driver": (kinds.CallArgs, columns.calls),
    "op": (kinds.OpArgs, columns.ops),
    "python": (None, columns.python_functions),
    "marker": (kinds.Args, columns.markers),
    "module": (None, columns.modules),
    "device_marker": (kinds.DeviceMarkerArgs, columns.device_markers),
    "process": (kinds.ProcessArgs, columns.by_process),
    "memory": (kinds.MemoryArgs, columns.memory),
    "counter": (None, columns.counters),
}
"""Kind of event -> its arguments (None: none, or of no fixed kind) and what makes columns of it."""

_PYTHON: Final = "python_function"
_MODULE: Final = "nn.Module: "
"""How the name of a Python function begins that is the call of a torch module; such calls are kept as markers."""

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
        Events seen, and those of them that a table holds.
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
        """Sort a batch of events by their kind and make columns of them."""
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
        """Make calls of modules a group of their own, beside the Python functions where those are kept."""
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
        """One frame a kind, of the events that have a time and a name; the batches are given up on the way.

        Parameters
        ----------
        base_ns : int
            What the times of the file count from.
        """
        out = {}
        for kind in list(self._frames):
            alike = itertools.groupby(self._frames.pop(kind), key=lambda frame: frame.schema)
            frame = pl.concat([in_ns(pl.concat(list(group)), base_ns) for _, group in alike], how="diagonal_relaxed")
            at = "time_ns" if "time_ns" in frame.columns else "start_ns"
            out[kind] = frame.filter(pl.col(at).is_not_null() & (pl.col("name") != self.texts.code_of_none("name")))
            if kind != "counter":  # where one event has several rows
                self.skipped[NO_TIME] += frame.height - out[kind].height
                self.kept += out[kind].height
        return out


class _Appending(dict[str | None, Callable[[Any], None]]):
    """What appends an event of a category to the group of its kind."""

    def __init__(self, kinds: _Kinds, groups: dict[str, list[Any]]) -> None:
        super().__init__()
        self._kinds = kinds
        self._groups = groups

    def __missing__(self, category: str | None) -> Callable[[Any], None]:
        self[category] = append = self._groups[self._kinds[category]].append
        return append


class _Kinds(dict[str | None, str]):
    """Kind of event by category as the file writes it."""

    def __init__(self, *, python_functions: bool) -> None:
        super().__init__()
        self._python = "python" if python_functions else _PYTHON

    def __missing__(self, category: str | None) -> str:
        lower = (category or "").lower()
        kind = KINDS.get(lower, "process")
        self[category] = found = self._python if kind == "python" else kind or lower
        return found
