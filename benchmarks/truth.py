"""How often the findings name a cause that is known, since it was planted.

``python benchmarks/truth.py`` edits copies of recordings (samples, and one of ROCm and one of Ascend
where ``../shared`` is at hand): it inserts time into them where
a cause of that kind would have cost it (everything after it comes later, what runs then is longer),
adds the calls or kernels that a profiler would have recorded, and asks llmprof for its findings. The
table tells for each cause and size whether a finding of it stands first or among the first three,
what it costs as planted and as said, and which findings above low stand before it that the recording
did not have before. ``--gpu FOLDER`` scores recordings that ``truth_gpu.py`` made with real causes.

Controls are recordings without a planted cause whose pauses of the device were cut out; with
``--controls FILES`` these are scored alone: any finding above low is a false alarm there.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import shutil
import sqlite3
import tempfile
import warnings
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

import llmprof

ROOT: Final = Path(__file__).resolve().parent.parent
SAMPLES: Final = ROOT / "sample_traces"
STEP: Final = re.compile(r"execute_context_\d+\((\d+)\)_generation_\d+\((\d+)\)")
PRODUCT: Final = "gemm|nvjet|Cijk|MatMul|Conv2D"
ATTENTION: Final = "flash|paged_attention"
NORM: Final = "norm"
DEVICE: Final = ("kernel", "copy", "task")
PAUSE: Final = 1_000
"""What is left of the pauses of a device, in nanoseconds."""
SIZES: Final = (0.3, 1.0, 3.0)
"""Sizes of a planted cause, over the device's busy time of a step."""


@dataclass
class Event:
    """An event of a recording, in nanoseconds; ``row`` is what the recording's file has of it."""

    start: int
    end: int
    name: str
    kind: str
    row: dict[str, Any]


@dataclass
class Rank:
    """Events of a rank in the order of their start."""

    events: list[Event]
    stretches: list[tuple[int, int, int]] = field(default_factory=list)
    of_host: list[tuple[int, int, int]] = field(default_factory=list)
    """Stretches of time that get another length, on the device and on the host."""
    added: list[Event] = field(default_factory=list)
    after_pause: list[Event] = field(default_factory=list)
    """The event after the longest pause of all devices in each step of decoding."""
    named: str = ""
    """Ranges of which each begins a step; those of vLLM's steps of decoding by default."""

    def device(self) -> list[Event]:
        """Kernels, copies and memsets."""
        return [event for event in self.events if event.kind in ("kernel", "copy")]

    def steps(self) -> list[tuple[int, int]]:
        """Starts and ends on the host of the steps of decoding."""
        found = [
            (event.start, event.end)
            for event in self.events
            if event.kind == "range"
            and (
                (self.named and self.named in event.name)
                or ((names := STEP.match(event.name)) and names[1] == "0" and names[2] != "0")
            )
        ]
        starts = sorted(set(found))
        ends = [start for start, _ in starts[1:]] + [self.events[-1].start] * bool(starts)
        return [(start, end) for (start, _), end in zip(starts, ends, strict=True)]

    def moved(self, times: np.ndarray[Any, Any], of_host: bool = False) -> np.ndarray[Any, Any]:
        """Where times are after stretches were made longer or shorter."""
        stretches = np.array(self.of_host if of_host else self.stretches, dtype=np.float64)
        if not stretches.size:
            return times
        starts, ends, lengths = stretches.T
        slope = lengths / (ends - starts) - 1
        edges, slopes = np.concatenate([starts, ends]), np.concatenate([slope, -slope])
        order = np.argsort(edges, kind="stable")
        edges = edges[order]
        moved = np.cumsum(np.cumsum(slopes[order])[:-1] * np.diff(edges))
        return np.rint(times + np.interp(times, edges, [0, *moved])).astype(np.int64)

    def insert(self, time: int, ns: float) -> None:
        """Insert time; what begins then comes after it, what runs then is longer."""
        self.stretches.append((time - 1, time, 1 + round(ns)))
        self.of_host.append((time - 1, time, 1 + round(ns)))

    def finish(self) -> None:
        """Move all events by what was inserted; what was added has its times already."""
        on_device = np.array([event.kind in DEVICE for event in self.events])
        edges = []
        for times in ([event.start for event in self.events], [event.end for event in self.events]):
            known = np.array(times, dtype=np.int64)
            moved = np.where(on_device, self.moved(known), self.moved(known, of_host=True))
            edges.append(moved.tolist())
        for event, start, end in zip(self.events, *edges, strict=True):
            event.start, event.end = start, end
        self.events += self.added
        self.stretches.clear()
        self.of_host.clear()


class Chrome:
    """The PyTorch profiler's files of a folder, one a rank."""

    names: Mapping[str, str] = {}
    """Other names of calls than CUDA's."""

    def __init__(self, folder: Path, pattern: str = "*.json.gz", named: str = "") -> None:
        self.files = sorted(folder.glob(pattern))
        self.documents = [
            json.loads(gzip.decompress(data) if file.suffix == ".gz" else data)
            for file in self.files
            for data in [file.read_bytes()]
        ]
        self.origin = int(
            min(
                row["ts"]
                for document in self.documents
                for row in document["traceEvents"]
                if "dur" in row
            )
        )
        self.ranks = [
            Rank(list(self._events(document)), named=named) for document in self.documents
        ]

    def _events(self, document: dict[str, Any]) -> Iterator[Event]:
        kinds = {
            "kernel": "kernel",
            "gpu_memcpy": "copy",
            "gpu_memset": "copy",
            "cuda_runtime": "call",
            "cuda_driver": "call",
            "user_annotation": "range",
            "cpu_op": "operator",
        }
        for row in document["traceEvents"]:
            if "ts" not in row or not isinstance(row["ts"], int | float):
                continue
            start = round((row["ts"] - self.origin) * 1000)
            yield Event(
                start,
                start + round(row.get("dur", 0) * 1000),
                str(row.get("name")),
                kinds.get(row.get("cat", ""), "other"),
                row,
            )

    def link(self, event: Event) -> int | None:
        """The number that a launch shares with what it launched."""
        return event.row.get("args", {}).get("correlation")

    def call(self, like: Event, name: str, start: int, end: int, **args: object) -> Event:
        """A call of the host beside another one's thread."""
        row = {key: like.row[key] for key in ("pid", "tid")}
        row |= {
            "ph": "X",
            "cat": "cuda_runtime",
            "name": name,
            "args": {"correlation": 10**6 + start % 10**8} | args,
        }
        return Event(start, end, name, "call", row)

    def range(self, like: Event, name: str, start: int, end: int) -> Event:
        """A range that a program has marked, on the thread of a call."""
        row = {key: like.row[key] for key in ("pid", "tid")}
        row |= {"ph": "X", "cat": "user_annotation", "name": name}
        return Event(start, end, name, "range", row)

    def kernel(self, like: Event, name: str, start: int, end: int) -> Event:
        """A kernel that the launch of another one launched, too."""
        return Event(start, end, name, "kernel", like.row | {"name": name})

    def copy(self, like: Event, call: Event, start: int, end: int, way: str) -> Event:
        """A copy that a call asked for, such as ``DtoH``."""
        args = {
            key: value
            for key, value in like.row["args"].items()
            if key in ("device", "context", "stream")
        }
        args |= {"correlation": call.row["args"]["correlation"], "bytes": (end - start) * 10}
        places = {"D": "Device", "H": "Pageable"}
        name = f"Memcpy {way} ({places[way[0]]} -> {places[way[-1]]})"
        row = like.row | {"name": name, "cat": "gpu_memcpy", "args": args}
        return Event(start, end, name, "copy", row)

    def write(self, folder: Path) -> Path:
        """Write the recording into a folder."""
        for file, document, rank in zip(self.files, self.documents, self.ranks, strict=True):
            rows = [
                event.row
                | {"ts": self.origin + event.start / 1000}
                | ({"dur": (event.end - event.start) / 1000} if event.row.get("ph") == "X" else {})
                for event in rank.events
            ]
            rows += [row for row in document["traceEvents"] if "ts" not in row]
            text = json.dumps(document | {"traceEvents": rows})
            (folder / f"{file.name.removesuffix('.gz')}.gz").write_bytes(
                gzip.compress(text.encode(), 1)
            )
        return folder


class Nsys:
    """An export of Nsight Systems, whose processes are the ranks."""

    TABLES: Final = {
        "CUPTI_ACTIVITY_KIND_KERNEL": "kernel",
        "CUPTI_ACTIVITY_KIND_MEMCPY": "copy",
        "CUPTI_ACTIVITY_KIND_MEMSET": "copy",
        "CUPTI_ACTIVITY_KIND_RUNTIME": "call",
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": "other",
        "NVTX_EVENTS": "range",
    }
    names: Mapping[str, str] = {}

    def __init__(self, folder: Path) -> None:
        self.file = next(folder.glob("*.sqlite"))
        with sqlite3.connect(f"file:{self.file}?mode=ro", uri=True) as base:
            base.row_factory = sqlite3.Row
            self.strings = dict(map(tuple, base.execute("SELECT id, value FROM StringIds")))
            ranks: dict[int, list[Event]] = {}
            for table, kind in self.TABLES.items():
                for row in map(dict, base.execute(f"SELECT rowid AS row_id, * FROM {table}")):
                    process = (row.get("globalPid") or row.get("globalTid") or 0) >> 24
                    names = (
                        row.get("text"),
                        row.get("demangledName"),
                        row.get("nameId"),
                        row.get("textId"),
                    )
                    name = next((value for value in names if value is not None), "")
                    end = row["start"] if row["end"] is None else row["end"]
                    ranks.setdefault(process, []).append(
                        Event(
                            row["start"],
                            end,
                            str(self.strings.get(name, name)),
                            kind,
                            row | {"table": table},
                        )
                    )
        self.ranks = [
            Rank(sorted(events, key=lambda event: event.start))
            for events in ranks.values()
            if any(event.kind == "kernel" for event in events)
        ]

    def _name(self, name: str) -> int:
        number = max(self.strings) + 1
        self.strings[number] = name
        return number

    def link(self, event: Event) -> int | None:
        """The number that a launch shares with what it launched."""
        return event.row.get("correlationId")

    def call(self, like: Event, name: str, start: int, end: int) -> Event:
        """A call of the host beside another one's thread."""
        row = like.row | {
            "row_id": None,
            "nameId": self._name(name),
            "correlationId": 10**6 + start % 10**8,
        }
        return Event(start, end, name, "call", row)

    def range(self, like: Event, name: str, start: int, end: int) -> Event:
        """A range that a program has marked, on the thread of a call."""
        row = next(
            event.row
            for rank in self.ranks
            for event in rank.events
            if event.row["table"] == "NVTX_EVENTS" and event.row["eventType"] == 59
        )
        row = row | {"row_id": None, "text": name, "textId": None}
        return Event(start, end, name, "range", row | {"globalTid": like.row["globalTid"]})

    def kernel(self, like: Event, name: str, start: int, end: int) -> Event:
        """A kernel that the launch of another one launched, too."""
        number = self._name(name)
        row = like.row | {"row_id": None, "demangledName": number, "shortName": number}
        return Event(start, end, name, "kernel", row)

    def copy(self, like: Event, call: Event, start: int, end: int, way: str) -> Event:
        """A copy that a call asked for, such as ``DtoH``."""
        row = next(
            event.row
            for rank in self.ranks
            for event in rank.events
            if event.row["table"] == "CUPTI_ACTIVITY_KIND_MEMCPY"
        )
        row = row | {
            "row_id": None,
            "correlationId": call.row["correlationId"],
            "copyKind": {"HtoD": 1, "DtoH": 2, "DtoD": 8}[way],
            "bytes": (end - start) * 10,
        }
        row |= {key: like.row[key] for key in ("deviceId", "contextId", "streamId", "globalPid")}
        places = {"D": 2, "H": 0}
        row |= {"graphNodeId": None, "srcKind": places[way[0]], "dstKind": places[way[-1]]}
        return Event(start, end, "copy", "copy", row)

    def write(self, folder: Path) -> Path:
        """Write the recording into a folder."""
        path = folder / self.file.name
        shutil.copyfile(self.file, path)
        with sqlite3.connect(path) as base:
            known = {row[0] for row in base.execute("SELECT id FROM StringIds")}
            new = [(number, name) for number, name in self.strings.items() if number not in known]
            base.executemany("INSERT INTO StringIds VALUES (?, ?)", new)
            kept = {name: set[int]() for name in self.TABLES}
            for event in (event for rank in self.ranks for event in rank.events):
                kept[event.row["table"]].add(event.row["row_id"])
            for table, rows in kept.items():
                for (number,) in base.execute(f"SELECT rowid FROM {table}").fetchall():
                    if number not in rows:
                        base.execute(f"DELETE FROM {table} WHERE rowid = ?", (number,))
            for event in (event for rank in self.ranks for event in rank.events):
                row = {
                    key: value for key, value in event.row.items() if key not in ("table", "row_id")
                }
                row |= {"start": event.start, "end": None if row["end"] is None else event.end}
                table = event.row["table"]
                if event.row["row_id"] is None:
                    marks = ", ".join("?" * len(row))
                    base.execute(
                        f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})", [*row.values()]
                    )
                else:
                    base.execute(
                        f"UPDATE {table} SET start = ?, end = ? WHERE rowid = ?",
                        (row["start"], row["end"], event.row["row_id"]),
                    )
        return path


class Hip(Chrome):
    """A file of the PyTorch profiler on ROCm; its steps of decoding begin after the gathered logits."""

    names: Mapping[str, str] = {
        "cudaMemcpyAsync": "hipMemcpyWithStream",
        "cudaMalloc": "hipMalloc",
        "cudaFree": "hipFree",
        "cudaHostAlloc": "hipHostMalloc",
        "cuMemCreate": "hipMemCreate",
        "cuModuleLoadData": "hipModuleLoadData",
        "cuLinkComplete": "hiprtcCompileProgram",
    }

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "tracemap_mi300x*.json.gz", "nccl:_all_gather_base")
        gathers = [event for event in self.ranks[0].events if event.kind == "range"]
        max(gathers, key=lambda event: event.start).kind = "other"  # nothing decodes after it


class Ascend:
    """Databases of torch_npu, one a rank, with their one step several times."""

    STEPS: Final = 8
    TABLES: Final = {
        "TASK": (("connectionId", "globalTaskId"), "task"),
        "COMMUNICATION_OP": (("connectionId", "opId"), "kernel"),
        "CANN_API": (("connectionId",), "call"),
        "PYTORCH_API": (("connectionId",), "operator"),
        "STEP_TIME": ((), "range"),
        "COMPUTE_TASK_INFO": (("globalTaskId",), ""),
        "COMMUNICATION_TASK_INFO": (("globalTaskId", "opId"), ""),
        "CONNECTION_IDS": (("id", "connectionId"), ""),
    }
    """Columns that hold an identifier of the step, and what the rows with times are."""
    KEPT: Final = ("STRING_IDS", "NPU_INFO", "RANK_DEVICE_MAP", "META_DATA", "PYTORCH_CALLCHAINS")
    MANY: Final = 10**6
    names: Mapping[str, str] = {
        "cudaMemcpyAsync": "aclrtMemcpy",
        "cudaMalloc": "aclrtMalloc",
        "cudaFree": "aclrtFree",
        "cudaHostAlloc": "aclrtMallocHost",
        "cuMemCreate": "aclrtMallocPhysical",
        "cuModuleLoadData": "aclrtBinaryLoadFromFile",
        "cuLinkComplete": "opCompile",
    }

    def __init__(self, folder: Path) -> None:
        self.folders = sorted(folder.glob("*_ascend_pt"))
        self.tables: list[dict[str, list[dict[str, Any]]]] = []
        self.strings: list[dict[int, str]] = []
        for path in self.folders:
            with sqlite3.connect(f"file:{self._database(path)}?mode=ro", uri=True) as base:
                base.row_factory = sqlite3.Row
                rows = {name: base.execute(f"SELECT * FROM {name}") for name in self.TABLES}
                self.tables.append({name: list(map(dict, found)) for name, found in rows.items()})
                found = base.execute("SELECT id, value FROM STRING_IDS")
                self.strings.append(dict(map(tuple, found)))
        steps = [tables["STEP_TIME"][0] for tables in self.tables]
        self.origin = min(row["startNs"] for row in steps)
        self.period = max(row["endNs"] for row in steps) - self.origin
        self.ranks = [
            Rank(sorted(self._events(*of), key=lambda event: event.start), named="step")
            for of in zip(self.tables, self.strings, strict=True)
        ]
        self._without_first_use()

    @staticmethod
    def _database(folder: Path) -> Path:
        return next(folder.glob("ASCEND_PROFILER_OUTPUT/ascend_pytorch_profiler*.db"))

    def _events(
        self, tables: dict[str, list[dict[str, Any]]], strings: dict[int, str]
    ) -> Iterator[Event]:
        computing = {row["globalTaskId"]: row["name"] for row in tables["COMPUTE_TASK_INFO"]}
        for step in range(self.STEPS):
            for table, (columns, kind) in self.TABLES.items():
                for row in self._of_step(tables[table], columns, step) if kind else ():
                    name = strings.get(row.get("name", row.get("opName", -1)), "step")
                    what = kind
                    if table == "TASK":
                        number = row["globalTaskId"] - step * self.MANY
                        name = strings.get(computing.get(number, row["taskType"]), "")
                        what = (
                            "kernel"
                            if number in computing
                            else "copy"
                            if "MEMCPY" in name
                            else "task"
                        )
                    if name.startswith("Dequeue@"):
                        what = "queue"
                    if table == "COMMUNICATION_OP":
                        name = re.sub(r"(__\d+_)(\d+)_", rf"\g<1>{step}0\2_", name)
                    if name == "ProfilerStep#50":
                        name = f"ProfilerStep#{50 + step}"
                    start, end = (
                        int(row[key]) - self.origin + step * self.period
                        for key in ("startNs", "endNs")
                    )
                    yield Event(start, end, name, what, row | {"table": table})

    def _of_step(
        self, rows: list[dict[str, Any]], columns: Sequence[str], step: int
    ) -> Iterator[dict[str, Any]]:
        for row in rows:
            known = {key: row[key] for key in columns if row[key] not in (None, 0xFFFF_FFFF)}
            yield row | {key: value + step * self.MANY for key, value in known.items()}

    def _without_first_use(self) -> None:
        """Cut what the first collective of a step waits for between kernels and after them."""
        cut = []
        begins = [rank.steps() for rank in self.ranks]
        for step in range(self.STEPS):
            kernels = [
                event
                for rank, steps in zip(self.ranks, begins, strict=True)
                for event in rank.events
                if event.kind == "kernel" and steps[step][0] <= event.start < steps[step][1]
            ]
            first = [e for e in kernels if _is_collective(e) and e.name.endswith("00_1")]
            begin, end = max(e.start for e in first), min(e.end for e in first)
            reach = begin
            inside = sorted(
                (e for e in kernels if not _is_collective(e) and begin < e.start < end),
                key=lambda event: event.start,
            )
            for event in inside:
                if event.start - reach > PAUSE:
                    cut.append((reach, event.start, PAUSE))
                reach = max(reach, event.end)
            cut.append((reach, end - 1, 500_000))
        for rank in self.ranks:
            rank.stretches += cut
            rank.of_host += cut
            rank.finish()

    def link(self, event: Event) -> int | None:
        """The number that a launch shares with what it launched."""
        number: int | None = event.row.get("connectionId")
        return None if number == 0xFFFF_FFFF else number

    def call(self, like: Event, name: str, start: int, end: int) -> Event:
        """A call of the host beside another one's thread."""
        number = 10**9 + start % 10**9
        row = like.row | {"connectionId": number, "type": 20000}  # AscendCL's level
        return Event(start, end, name, "call", row)

    def range(self, like: Event, name: str, start: int, end: int) -> Event:
        """A range that a program has marked, on the thread of a call."""
        row = next(e.row for e in self.ranks[0].events if e.kind == "operator")
        row = row | {"globalTid": like.row["globalTid"], "type": 50004, "connectionId": None}
        return Event(start, end, name, "range", row)

    def kernel(self, like: Event, name: str, start: int, end: int) -> Event:
        """A kernel that the launch of another one launched, too."""
        row = {"table": "TASK", "connectionId": like.row["connectionId"], "like": "Mul"}
        return Event(start, end, "aclnnMul_MulAiCore_Mul", "kernel", row)

    def copy(self, like: Event, call: Event, start: int, end: int, way: str) -> Event:
        """A copy that a call asked for, such as ``DtoH``."""
        number = call.row["connectionId"]
        places = {"D": "device", "H": "host"}
        row = like.row | {"connectionId": number, "globalTaskId": number}
        row["way"] = f"{places[way[0]]} to {places[way[-1]]}"
        return Event(start, end, "copy", "copy", row)

    def write(self, folder: Path) -> Path:
        """Write the recording into a folder."""
        for path, *of in zip(self.folders, self.tables, self.strings, self.ranks, strict=True):
            source = self._database(path)
            target = folder / source.relative_to(path.parent)
            target.parent.mkdir(parents=True)
            shutil.copyfile(source, target)
            with closing(sqlite3.connect(target)) as base:
                self._fill(base, *of)
                base.commit()
        return folder

    def _fill(
        self,
        base: sqlite3.Connection,
        tables: dict[str, list[dict[str, Any]]],
        strings: dict[int, str],
        rank: Rank,
    ) -> None:
        found = base.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        for (name,) in found:
            if name in self.TABLES:
                base.execute(f"DELETE FROM {name}")
            elif name not in self.KEPT and not name.startswith(("ENUM", "sqlite")):
                base.execute(f"DROP TABLE {name}")
        base.execute("CREATE TABLE MEMCPY_INFO (globalTaskId, size, memcpyOperation)")
        base.execute("CREATE TABLE ENUM_MEMCPY_OPERATION (id, name)")
        ways = ("host to device", "device to host", "device to device")
        base.executemany("INSERT INTO ENUM_MEMCPY_OPERATION VALUES (?, ?)", enumerate(ways))
        filled: dict[str, list[dict[str, Any]]] = {
            name: [] for name in (*self.TABLES, "MEMCPY_INFO")
        }
        for table, (columns, kind) in self.TABLES.items():
            for step in range(self.STEPS) if not kind else ():
                filled[table] += self._of_step(tables[table], columns, step)
        numbers = {name: number for number, name in strings.items()}
        tasks = [event for event in rank.events if event.row["table"] == "TASK"]
        short = next(
            event.row for event in tasks if event.kind == "kernel" and "MulAiCore" in event.name
        )
        for event in rank.events:
            row = event.row | {
                "startNs": event.start + self.origin,
                "endNs": event.end + self.origin,
            }
            if row.pop("like", None):
                row = short | row
            for key in row.keys() & {"name", "opName"}:
                row[key] = numbers.setdefault(event.name, max(strings) + 1 + len(numbers))
            if way := row.pop("way", None):
                size = (event.end - event.start) * 10
                copied = {"globalTaskId": row["globalTaskId"], "size": size}
                filled["MEMCPY_INFO"].append(copied | {"memcpyOperation": ways.index(way)})
            if row["table"] == "STEP_TIME":
                row["id"] = len(filled["STEP_TIME"])
            filled[row.pop("table")].append(row)
        new = [(number, name) for name, number in numbers.items() if number not in strings]
        base.executemany("INSERT INTO STRING_IDS VALUES (?, ?)", new)
        for table, rows in filled.items():
            if rows:
                marks = ", ".join(f":{key}" for key in rows[0])
                base.executemany(
                    f"INSERT OR REPLACE INTO {table} ({', '.join(rows[0])}) VALUES ({marks})", rows
                )


Recording = Chrome | Nsys | Ascend


@dataclass(frozen=True)
class Planted:
    """What was planted: the time that it costs a step (of decoding, on the rank that loses it) and
    what a finding of it has: one of these rules, and these words in its title, detail or advice.
    """

    ns: float
    rules: tuple[str, ...]
    words: tuple[str, ...] = ()
    rank: int | None = None
    every: float = 1
    """Steps of which one has it."""
    is_alone: bool = True
    """Whether the finding measures nothing else, so that its gain can be compared."""


def busy(recording: Recording) -> float:
    """Busy time of the device in a step of decoding, of the first rank."""
    rank = recording.ranks[0]
    steps = rank.steps()
    device = rank.device()
    return sum(e.end - e.start for e in device if steps[0][0] <= e.start < steps[-1][1]) / len(
        steps
    )


def without_pauses(recording: Recording) -> None:
    """Cut out the pauses of all devices at one time, and all that comes before decoding."""
    ranks = recording.ranks
    device = sorted(
        (event for rank in ranks for event in rank.device()), key=lambda event: event.start
    )
    reach = device[0].end
    cut = []
    for event in device:
        if event.start - reach > PAUSE:
            cut.append((reach, event.start, PAUSE))
        reach = max(reach, event.end)
    last = min(max(event.start for event in rank.device()) for rank in ranks)
    after = [e for e in _after_pauses(device, ranks[0].steps()) if e.start <= last]
    for rank in ranks:
        rank.stretches += cut
        rank.of_host += cut
        rank.finish()
    begin = after[0].start - PAUSE + 1 if after else 0
    for rank in ranks if after else ():
        rank.after_pause = after
        _only_decoding(rank, recording, begin)


def _only_decoding(rank: Rank, recording: Recording, begin: int) -> None:
    """Drop what comes before decoding: events of the device, and the host before their launches."""
    kept = {recording.link(event) for event in rank.device() if event.start >= begin}
    launches = [e.start for e in rank.events if e.kind == "call" and recording.link(e) in kept]
    before = min(begin, *launches)
    rank.events = [
        event for event in rank.events if event.start >= (begin if event.kind in DEVICE else before)
    ]


def _launch(rank: Rank) -> Event:
    """A call of the host that launches, in decoding."""
    start = rank.steps()[0][0]
    return next(
        event
        for event in rank.events
        if event.kind == "call" and event.start >= start and "launch" in event.name.lower()
    )


def _pauses(rank: Rank) -> list[int]:
    """Where the longest pause of all devices in each step of decoding began in the recording."""
    return [event.start - PAUSE + 1 for event in rank.after_pause]


def _after_pauses(device: Sequence[Event], steps: Sequence[tuple[int, int]]) -> list[Event]:
    """What follows the longest pause of all devices in each step of decoding."""
    starts = np.array([event.start for event in device])
    reach = np.maximum.accumulate([event.end for event in device])
    found = []
    for start, end in steps[1:]:
        low, high = np.searchsorted(starts, [start, end])
        if 0 < low < high:
            gaps = starts[low:high] - reach[low - 1 : high - 1]
            found.append(device[low + int(np.argmax(gaps))])
    return found


def _each_step(
    recording: Recording,
    ns: float,
    call: str | None = None,
    *,
    way: str | None = None,
    every: int = 1,
    is_range: bool = False,
) -> float:
    """Time in which the host does something else before it launches and the device waits, in the
    longest pause of each step, on all ranks.
    """
    pauses = _pauses(recording.ranks[0])  # the first one is at the edge
    places = pauses[(len(pauses) + 1) // 2 :][:1] if every == len(pauses) else pauses[1::every]
    halts = [[_halt(rank, recording, place, ns) for place in places] for rank in recording.ranks]
    _wait_for_each_other(recording)
    for rank, of_rank in zip(recording.ranks, halts, strict=True):
        for place, halt in zip(places, of_rank, strict=True) if call else ():
            begin = int(rank.moved(np.array([halt - 1]), of_host=True)[0])
            start = int(rank.moved(np.array([place - 1]))[0])
            end = start + round(ns)
            add = recording.range if is_range else recording.call
            rank.added.append(add(_launch(rank), str(call), begin + 500, begin - 500 + round(ns)))
            if way:
                one = next(event for event in rank.device() if event.kind == "copy")
                copied = recording.copy(one, rank.added[-1], start + 5000, end - 2000, way)
                rank.added.append(copied)
    _finish(recording)
    return ns * len(places) / len(rank.after_pause)


def _launched(rank: Rank, recording: Recording, place: int) -> int:
    """When the host launches what the device does next from a place on; the place if unknown."""
    first = min((e for e in rank.device() if e.start >= place), key=lambda event: event.start)
    link = recording.link(first)
    calls = [event for event in rank.events if event.kind in ("call", "queue")]
    call = next((e for e in calls if e.kind == "call" and recording.link(e) == link), None)
    if call is None:
        return place
    thread = call.row.get("globalTid", call.row.get("tid"))
    return min(
        event.start
        for event in calls
        if event.start <= call.start
        and event.end >= call.end
        and thread == event.row.get("globalTid", event.row.get("tid"))
    )


def launches_ahead(recording: Recording) -> bool:
    """Whether the host of a rank launches ahead of the device, so that its pauses cost nothing."""
    return any(
        np.median([place - _launched(rank, recording, place) for place in _pauses(rank)]) > PAUSE
        for rank in recording.ranks
    )


def _halt(rank: Rank, recording: Recording, place: int, ns: float) -> int:
    """Let host and device wait before the launch of what the device does from a place on."""
    launch = max(place, _launched(rank, recording, place))
    rank.stretches.append((place - 1, place, 1 + round(ns)))
    rank.of_host.append((launch - 1, launch, 1 + round(ns)))
    return launch


def _wait_for_each_other(recording: Recording) -> None:
    """Make collectives longer on the ranks that have to wait for another one now."""
    ranks = recording.ranks
    ends = [
        np.array(sorted(e.end for e in rank.events if e.kind == "kernel" and _is_collective(e)))
        for rank in ranks
    ]
    number = min(len(of_rank) for of_rank in ends) if len(ranks) > 1 else 0
    ends = [of_rank[:number] for of_rank in ends]
    late = np.array(
        [rank.moved(of_rank) - of_rank for rank, of_rank in zip(ranks, ends, strict=True)]
    )
    later = np.diff(late, axis=1, prepend=0)
    for rank, of_rank, waits in zip(ranks, ends, later.max(axis=0) - later, strict=True):
        for end, wait in zip(of_rank.tolist(), waits.tolist(), strict=True):
            if wait > 5:
                rank.insert(end - 3, wait)


def _finish(recording: Recording) -> None:
    """Move all events of all ranks by what was inserted, with what they wait for each other."""
    _wait_for_each_other(recording)
    for rank in recording.ranks:
        rank.finish()


def _kernels(rank: Rank, chosen: Callable[[Event], bool]) -> list[Event]:
    """Kernels in steps of decoding."""
    begin = _pauses(rank)[0]
    return [
        event
        for event in rank.events
        if event.kind == "kernel" and event.start >= begin and chosen(event)
    ]


def _is_collective(event: Event) -> bool:
    return re.search(r"nccl|all_?reduce|cross_device_reduce", event.name, re.IGNORECASE) is not None


def _slower(
    recording: Recording,
    ns: float,
    chosen: Callable[[Event], bool],
    every: int = 1,
) -> float:
    """Make kernels take longer in every so many steps, and return by how much in the mean step."""
    mean_ns = 0.0
    for rank in recording.ranks:
        found = _kernels(rank, chosen)
        steps = np.array(_pauses(rank))
        inside = np.searchsorted(steps, [event.start for event in found], side="right") - 1
        slow = range(int(every > 1), len(steps), every)  # the first one is at the edge
        mean_ns = ns * every * len(slow) / len(steps)
        for step in slow:
            events = [event for event, own in zip(found, inside, strict=True) if own == step]
            total = sum(event.end - event.start for event in events)
            for event in events:
                more = round(ns * every * (event.end - event.start) / total)
                rank.stretches.append((event.end - 2, event.end - 1, 1 + more))
            # the host goes on, and waits for the device in the last call of the step that does
            until = int(steps[step + 1]) if step + 1 < len(steps) else rank.events[-1].end
            waits = [
                event.end
                for event in rank.events
                if event.kind == "call"
                and "Synchronize" in event.name
                and event.start < until + PAUSE
            ]
            wait = max(waits, default=until)
            rank.of_host.append((wait - 2, wait - 1, 1 + round(ns * every)))
    _finish(recording)
    return mean_ns


def _heaviest(recording: Recording) -> str:
    times: dict[str, int] = {}
    for event in _kernels(
        recording.ranks[0], lambda event: re.search(PRODUCT, event.name) is not None
    ):
        times[event.name] = times.get(event.name, 0) + event.end - event.start
    return max(times, key=lambda name: times[name])


def _begins(rank: Rank, recording: Recording) -> list[int]:
    """When the device, which did nothing, begins with what was launched in each step of decoding."""
    device = sorted(rank.device(), key=lambda event: event.start)
    first: dict[int | None, int] = {}
    for event in device:
        first.setdefault(recording.link(event), event.start)
    calls = [(e.start, recording.link(e)) for e in rank.events if e.kind == "call"]
    ends = np.maximum.accumulate([event.end for event in device])
    free = [e.start for e, end in zip(device[1:], ends[:-1], strict=True) if end < e.start]
    begun = []
    for start, end in rank.steps():
        own = [first[link] for at, link in calls if start <= at < end and link in first]
        begun += free[bisect_left(free, min(own)) :][:1] if own else []
    return begun


def late_rank(recording: Recording, ns: float, every: int = 1) -> Planted:
    """The last rank launches late, and the others wait in their first all-reduce of the step."""
    last = len(recording.ranks) - 1
    begins = _begins(recording.ranks[last], recording)
    late = begins[int(every > 1) :: every]
    for place in late:
        recording.ranks[last].insert(place, ns * every)
    _finish(recording)
    mean_ns = ns * every * len(late) / len(begins)
    rules = ("arrival_skew", "host_bound", "unexplained_idle")
    return Planted(mean_ns, rules, rank=last, every=ns * every / mean_ns)


def uneven_work(recording: Recording, ns: float, names: str = PRODUCT) -> Planted | None:
    """Kernels of the last rank take longer, and the others wait in the next all-reduce."""
    last = len(recording.ranks) - 1
    rank = recording.ranks[last]
    chosen = _kernels(rank, _named(names))
    if not chosen:
        return None
    total = sum(event.end - event.start for event in chosen) / len(rank.after_pause)
    for event in chosen:
        rank.insert(event.end - 1, ns * (event.end - event.start) / total)
    _finish(recording)
    # what can be shared is shared by all ranks
    shared = 1 if names == ".*" else 1 - 1 / len(recording.ranks)
    return Planted(ns * shared, ("uneven_compute", "slow_device", "arrival_skew"), rank=last)


def _named(names: str) -> Callable[[Event], bool]:
    """Whether the name of an event holds one of these, and it is no collective."""
    return lambda e: not _is_collective(e) and re.search(names, e.name, re.IGNORECASE) is not None


def short_kernels(recording: Recording, ns: float) -> Planted:
    """Many short kernels that a compiler would have put into one."""
    places = _pauses(recording.ranks[0])
    for rank in recording.ranks:
        for place in places:
            rank.insert(place, ns)
    _wait_for_each_other(recording)
    for rank in recording.ranks:
        device = sorted(
            (e for e in rank.device() if e.kind == "kernel"), key=lambda event: event.start
        )
        starts = np.array([event.start for event in device])
        for place in places:
            start = int(rank.moved(np.array([place - 1]))[0])
            like = device[int(np.searchsorted(starts, place))]
            for begin in range(start + 500, start + round(ns) - 3000, 2500):
                rank.added.append(
                    recording.kernel(
                        like,
                        "vectorized_elementwise_kernel<4, MulFunctor<float>>",
                        begin,
                        begin + 2000,
                    )
                )
    _finish(recording)
    return Planted(ns, ("short_kernels",), is_alone=False)


Cause = Callable[[Recording, float], Planted | None]
"""Plants a cause of so many nanoseconds a step; None if the recording has no kernel of its kind."""


def in_each_step(
    rules: tuple[str, ...], words: str = "", call: str | None = None, **more: Any
) -> Cause:
    """A cause for which the device waits in each step, or in one of so many."""

    def plant(recording: Recording, ns: float) -> Planted:
        every = more.get("every", 1) or len(recording.ranks[0].after_pause)
        own = None if call is None else recording.names.get(call, call)
        mean_ns = _each_step(recording, ns * every, own, **more | {"every": every})
        named = str(own) if words == call else words
        return Planted(mean_ns, rules, (named,), every=ns * every / mean_ns)

    return plant


def slower(rules: tuple[str, ...], names: str = "", every: int = 1, words: str = "") -> Cause:
    """Kernels take longer in each step, or in one of so many; those with most time by default."""

    def plant(recording: Recording, ns: float) -> Planted | None:
        chosen = _named(names or re.escape(_heaviest(recording)))
        if rules == LINK:
            chosen = _is_collective
        if not _kernels(recording.ranks[0], chosen):
            return None
        mean_ns = _slower(recording, ns, chosen, every)
        return Planted(mean_ns, rules, (words,), is_alone=rules != LINK)

    return plant


LATE: Final = ("host_bound", "host_work", "unexplained_idle")
COPIED: Final = ("copies", "synchronisation", "host_bound", "device_held")
HEAVY: Final = ("heaviest_stage", "below_bound")
UNSTEADY: Final = ("unsteady_kernels",)
LINK: Final = ("exposed_communication", "nccl_for_small_messages")
COMPILED: Final = ("compilation", "loading")
ALLOCATED: Final = ("allocation",)
PREPARED: Final = ("input_preparation",)

OF_HOST: Final[dict[str, Cause]] = {
    "host_sleeps": in_each_step(LATE),
    "pauses_now_and_then": in_each_step(LATE, every=4),
    "pauses_once": in_each_step(LATE, every=0),
    "synchronising_copy": in_each_step(COPIED, "cop", "cudaMemcpyAsync", way="DtoH"),
    "copies_there": in_each_step(COPIED, "cop", "cudaMemcpyAsync", way="HtoD"),
    "copies_on_device": in_each_step(COPIED, "cop", "cudaMemcpyAsync", way="DtoD"),
    "allocates": in_each_step(ALLOCATED, "cudaMalloc", "cudaMalloc"),
    "frees": in_each_step(ALLOCATED, "cudaFree", "cudaFree"),
    "pins_memory": in_each_step(ALLOCATED, "cudaHostAlloc", "cudaHostAlloc"),
    "grows_now_and_then": in_each_step(ALLOCATED, "cuMemCreate", "cuMemCreate", every=4),
    "loads_code": in_each_step(COMPILED, "cuModuleLoadData", "cuModuleLoadData", every=0),
    "links_code": in_each_step(COMPILED, "cuLinkComplete", "cuLinkComplete", every=0),
    "compiles": in_each_step(
        COMPILED, "compile", "triton.compile(add_kernel)", every=0, is_range=True
    ),
    "tokenizes": in_each_step(PREPARED, "tokenizer", "tokenizer.encode", is_range=True),
    "prepares_images": in_each_step(
        PREPARED, "image", "image_processor.preprocess", every=4, is_range=True
    ),
    "loads_data": in_each_step(("data_loading",), "DataLoader", "DataLoader.next", is_range=True),
    "marked_work": in_each_step(LATE, "write_log", "write_log", is_range=True),
}
"""Causes that cost time only where the host launches when the device is free."""

OF_DEVICE: Final[dict[str, Cause]] = {
    "slow_product": slower(HEAVY),
    "slow_attention": slower(HEAVY, ATTENTION, words="attention"),
    "slow_norm": slower(HEAVY, NORM, words="norm"),
    "unsteady_product": slower(UNSTEADY, every=3),
    "unsteady_attention": slower(UNSTEADY, ATTENTION, every=3),
    "unsteady_norm": slower(UNSTEADY, NORM, every=5),
    "neighbour": slower(UNSTEADY, ".*", every=3),
    "short_kernels": short_kernels,
}

OF_RANKS: Final[dict[str, Cause]] = {
    "slow_link": slower(LINK),
    "late_rank": late_rank,
    "late_now_and_then": lambda recording, ns: late_rank(recording, ns, every=4),
    "uneven_work": uneven_work,
    "uneven_attention": lambda recording, ns: uneven_work(recording, ns, ATTENTION),
    "slow_device": lambda recording, ns: uneven_work(recording, ns, ".*"),
}
SHARED: Final = ROOT.parent / "shared"
BASES: Final[dict[str, tuple[Callable[[Path], Recording], Path]]] = {
    # whose other pauses can be cut out: eager ranks wait for each other in kernels
    "torch_tp1_cudagraph": (Chrome, SAMPLES / "torch_tp1_cudagraph"),
    "torch_tp4_cudagraph": (Chrome, SAMPLES / "torch_tp4_cudagraph"),
    "nsys_tp2_cudagraph": (Nsys, SAMPLES / "nsys_tp2_cudagraph"),
    "torch_tp1_eager": (Chrome, SAMPLES / "torch_tp1_eager"),
    "rocm": (Hip, SHARED / "strangers/chrome"),
    "ascend": (Ascend, SHARED / "real/ascend/msinsight_level1/db"),
}
"""Classes and folders; those of others are left out where they are not at hand."""
ABOVE_LOW: Final = ("medium", "high")


@dataclass(frozen=True)
class Score:
    """How a recording was explained."""

    base: str
    cause: str
    size: float
    place: int | None
    planted_ns: float
    said_ns: float | None
    false: tuple[str, ...]
    first: str


def findings(path: Path) -> list[dict[str, Any]]:
    """The findings of a recording, in their order."""
    return list(llmprof.read(path).findings().to_dicts())


def _names(row: dict[str, Any], planted: Planted) -> bool:
    text = " ".join(str(row[key]) for key in ("title", "detail", "suggestion", "about")).lower()
    return (
        row["rule"] in planted.rules
        and all(word.lower() in text for word in planted.words)
        and (
            planted.rank is None
            or row["rank"] in (None, planted.rank)
            or f"rank {planted.rank}" in text
        )
    )


Usual = dict[tuple[str, str, str], dict[str, Any]]
"""Findings of a recording without a planted cause, by rule, scope and stage."""


def _key(row: dict[str, Any], scope: str | None = None) -> tuple[str, str, str]:
    return row["rule"], scope or row["scope"], row["where"] if row["rule"] in HEAVY else ""


def usual_of(rows: Sequence[dict[str, Any]], usual: Usual) -> None:
    """Add the findings of a recording without a planted cause."""
    for row in rows:
        known = usual.setdefault(_key(row), row)
        if row["figure"] > known["figure"]:
            usual[_key(row)] = row


def score(
    named: tuple[str, str, float],
    rows: list[dict[str, Any]],
    planted: Planted,
    usual: Usual,
    before: Set[str] = frozenset(),
) -> Score:
    """Compare findings with what was planted.

    What the recording has without it, too, at half as much again or less, is no answer and no false
    alarm; of what grew, the rest is its gain.
    """
    left = []
    for row in rows:
        # slow steps that are new are compared with all
        of = usual.get(_key(row), usual.get(_key(row, "steady decode steps"), {}))
        if row["figure"] > 1.5 * of.get("figure", 0.0):
            # a rank that waited for another one now waits for this one
            same = planted.rank is None or f"ank {planted.rank}" in of.get("title", "")
            left.append(row | {"gain_ns": row["gain_ns"] - same * of.get("gain_ns", 0.0)})
    rows = left
    places = [place for place, row in enumerate(rows) if _names(row, planted)]
    first = rows[places[0]] if places else None
    false = tuple(
        row["rule"]
        for row in rows[: places[0] if places else 3]
        if row["severity"] in ABOVE_LOW and row["rule"] not in before | set(planted.rules)
    )
    return Score(
        *named,
        places[0] + 1 if places else None,
        planted.ns,
        None
        if first is None or first["severity"] == "info" or not planted.is_alone
        else first["gain_ns"] / (planted.every if first["scope"].startswith("slow") else 1),
        false,
        rows[0]["title"] if rows else "",
    )


def edited(bases: Sequence[str], causes: Sequence[str], sizes: Sequence[float]) -> Iterator[Score]:
    """Scores of planted causes in copies of the samples."""
    for base in bases:
        of_class, folder = BASES[base]
        if not folder.exists():
            continue
        with tempfile.TemporaryDirectory() as name:
            control = of_class(folder)
            without_pauses(control)
            ns = busy(control)
            is_ahead = launches_ahead(control)
            rows = findings(control.write(Path(name)))
        before = {row["rule"] for row in rows if row["severity"] in ABOVE_LOW}
        usual: Usual = {}
        usual_of(rows, usual)
        yield Score(
            base,
            "control",
            0,
            None,
            0,
            None,
            tuple(sorted(before)),
            rows[0]["title"] if rows else "",
        )
        several = OF_RANKS if len(control.ranks) > 1 else {}
        planted_causes = ({} if is_ahead else OF_HOST) | OF_DEVICE | several
        for cause, plant in planted_causes.items():
            for size in sizes if not causes or cause in causes else ():
                recording = of_class(folder)
                without_pauses(recording)
                planted = plant(recording, ns * size)
                if planted is None:
                    continue
                with tempfile.TemporaryDirectory() as name:
                    rows = findings(recording.write(Path(name)))
                yield score((base, cause, size), rows, planted, usual, before)


OF_GPU: Final[dict[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "host_works": (("host_bound", "unexplained_idle"), ()),
    "host_pauses": (("host_bound", "unexplained_idle"), ("slow decode step",)),
    "copies_back": (("copies", "synchronisation"), ("DtoH",)),
    "copies_there": (("copies", "synchronisation"), ("HtoD",)),
    "copies_on_device": (("copies",), ("DtoD",)),
    "waits_for_device": (("synchronisation",), ("cudaDeviceSynchronize",)),
    "small_kernels": (("short_kernels",), ()),
    "extra_product": (("heaviest_stage", "below_bound", "unnamed_time"), ()),
    "unsteady_product": (("heaviest_stage", "unsteady_kernels"), ("gemm",)),
    "allocates": (("allocation",), ("cuda",)),
    "compiles": (("compilation", "loading"), ()),
    "graphs_off": (("host_bound",), ("graph",)),
    "long_prompts": (("host_bound", "below_bound", "heaviest_stage"), ("mixed step",)),
    "slow_tokenizer": (("input_preparation",), ("tokenizer.encode",)),
    "neighbour": (("unsteady_kernels",), ()),
    "late_rank": (("host_bound", "arrival_skew"), ("rank 1",)),
    "slow_rank": (("uneven_compute", "arrival_skew"), ("ank 1",)),
}
"""Rules and words of a finding that names a cause which ``truth_gpu.py`` planted."""


def recorded(folder: Path) -> Iterator[Score]:
    """Scores of recordings with causes that were planted for real; the time that each costs is
    measured by runs without the profiler.
    """
    runs = json.loads((folder / "planted.json").read_text())
    plain = [run["plain_s"] for run in runs if run["cause"] == "control"]
    usual: Usual = {}
    for run in runs:
        paths = sorted(folder.glob(f"{run['cause']}.{run['size']}*.json.gz"))
        rows = list(llmprof.read(paths).findings().to_dicts())
        if run["cause"] == "control":
            usual_of(rows, usual)
            continue
        ns = (run["plain_s"] - float(np.median(plain))) / TOKENS * 1e9
        for cause in run["cause"].split("+"):
            planted = Planted(ns, *OF_GPU[cause], is_alone=False)
            yield score(("GPU", run["cause"], run["size"]), rows, planted, usual)


TOKENS: Final = 24
"""Tokens of each request of those recordings, and so their steps."""


def control(path: Path) -> Score:
    """What is said above low of a recording of the PyTorch profiler without its pauses."""
    with tempfile.TemporaryDirectory() as name, tempfile.TemporaryDirectory() as copied:
        shutil.copy(path, copied)
        recording = Chrome(Path(copied), "*")
        without_pauses(recording)
        rows = findings(recording.write(Path(name)))
    alarms = tuple(row["rule"] for row in rows if row["severity"] in ABOVE_LOW)
    first = rows[0]["title"] if rows else ""
    return Score(path.name, "control", 0, None, 0, None, alarms, first)


def main() -> None:
    """Print a line a planted cause, and the sums."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bases", nargs="*", default=list(BASES))
    parser.add_argument("--causes", nargs="*", default=[])
    parser.add_argument("--sizes", nargs="*", type=float, default=SIZES)
    parser.add_argument("--controls", nargs="*", type=Path, help="files, in place of samples")
    parser.add_argument("--gpu", type=Path, help="recordings of truth_gpu.py, in place of samples")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    scores = []
    given = (
        map(control, args.controls)
        if args.controls
        else edited(args.bases, args.causes, args.sizes)
    )
    for one in recorded(args.gpu) if args.gpu else given:
        scores.append(one)
        said = "-" if one.said_ns is None else f"{one.said_ns / 1e6:.3f}"
        print(
            f"{one.base:22} {one.cause:20} {one.size:4} place {one.place} planted {one.planted_ns / 1e6:.3f} ms said {said} {one.false} | {one.first}",
            flush=True,
        )
    planted = [one for one in scores if one.cause != "control"]
    told = [one for one in planted if one.said_ns]
    near = [one for one in told if abs(one.said_ns / one.planted_ns - 1) < 0.1]
    print(
        f"{len(planted)} planted: first {sum(one.place == 1 for one in planted)}, among three "
        f"{sum(one.place is not None and one.place <= 3 for one in planted)}, gain within 10 % {len(near)} of {len(told)}; "
        f"false alarms {sum(bool(one.false) for one in scores)}"
    )


if __name__ == "__main__":
    main()
