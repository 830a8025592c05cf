"""Recordings read with ``json``, ``sqlite3`` and ``csv`` alone, to check what llmprof says of them.

Nothing here uses llmprof: an error in its readers or analyses must not repeat itself in what they
are compared with.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple


class Span(NamedTuple):
    """Something with a begin and an end (ns); ``kind``: call, op, python, range, or on a device
    kernel, copy, fill.
    """

    rank: int
    lane: Any
    start: int
    end: int
    name: str
    kind: str
    link: Any = None
    bytes: int = 0


@dataclass
class Raw:
    """Events of the devices and of the host, and the launching call of a device event by its
    link.
    """

    device: list[Span] = field(default_factory=list)
    host: list[Span] = field(default_factory=list)
    launches: dict[Any, Span] = field(default_factory=dict)
    on_host: bool = False


DEVICE = {
    "kernel": "kernel",
    "Kernel": "kernel",
    "gpu_memcpy": "copy",
    "Memcpy": "copy",
    "gpu_memset": "fill",
    "Memset": "fill",
    "cuda": "kernel",
    "mtia_ccp_events": "kernel",
}
HOST = {
    "cuda_runtime": "call",
    "cuda_driver": "call",
    "Runtime": "call",
    "cuda_api": "call",
    "mtia_runtime": "call",
    "osrt": "call",
    "cpu_op": "op",
    "Operator": "op",
    "python_function": "python",
    "user_annotation": "range",
    "nvtx": "range",
    "Session": "range",
    "enqueue": "call",
    "dequeue": "call",
    "Node": "op",
}
COPIES = r"(?i)^(?:\[CUDA )?mem(?:cpy|ory_copy)|^CopyHost|^CopyDevice|^MEMORY_COPY|^hip\w*Memcpy"


def read(path: Path) -> Raw:
    """A recording of any of the formats of this benchmark."""
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    databases = [
        p
        for p in files
        if p.suffix in (".sqlite", ".db", ".rpd", ".nvvp") and p.name != "analysis.db"
    ]
    details = [p for p in files if p.name.endswith("kernel_details.csv")]
    raw = Raw()
    if databases:
        for number, file in enumerate(databases):
            _database(raw, file, number)
    elif details:
        for number, file in enumerate(details):
            _kernel_details(raw, file, number)
    elif path.suffix == ".csv":
        _rocprofv3(raw, path)
    else:
        if path.is_dir() and any("PROF_" in part for p in files for part in p.parts):
            files = [p for p in files if p.name.startswith("msprof_")]
        traces = [
            p
            for p in files
            if re.search(r"\.json(\.gz)?$", p.name)
            and (path.is_file() or re.search("trace|megatron|msprof_", p.name))
        ]
        for number, file in enumerate(traces):
            one = file.name.startswith("msprof_")  # iterations of one device
            _chrome(raw, file, 0 if one else number, {e.rank for e in raw.device})
    if not raw.device:
        _operators_as_device(raw)
    raw.device.sort(key=lambda e: (e.rank, e.start))
    return raw


def _ns(value: Any) -> int:
    """Microseconds as a number or a text to ns, without a float in between."""
    whole, _, rest = str(value).strip().partition(".")
    if "e" in str(value):
        return round(float(value) * 1000)
    digits = (rest + "000")[:4]
    return int(whole) * 1000 + (-1 if whole.startswith("-") else 1) * round(
        int(digits.ljust(4, "0")) / 10
    )


def _chrome(raw: Raw, file: Path, number: int, taken: set[int]) -> None:
    with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as stream:
        found = json.load(stream)
    if isinstance(found, dict) and "rocprofiler-sdk-tool" in found:
        for tool in found["rocprofiler-sdk-tool"]:
            _rocprof_json(raw, tool)
        return
    events = found if isinstance(found, list) else found["traceEvents"]
    rank = (found.get("distributedInfo") or {}).get("rank") if isinstance(found, dict) else None
    own = number if rank is None or rank in taken else rank
    names = {
        e["pid"]: e["args"].get("name", "")
        for e in events
        if e.get("ph") == "M" and e["name"] == "process_name"
    }
    for e in events:
        if e.get("ph") != "X" or e.get("dur") is None:
            continue
        cat, args = e.get("cat"), e.get("args") or {}
        of = args.get("rank", own) if rank is None else own
        start = _ns(e["ts"])
        end = start + _ns(e["dur"])
        name, link = (
            e["name"],
            args.get("correlation", args.get("correlationId", args.get("External id"))),
        )
        if cat is None:
            cat = _without_category(names.get(e.get("pid"), ""), e)
        if cat in DEVICE:
            kind = DEVICE[cat]
            if kind == "kernel" and re.search(COPIES, name):
                kind = "copy"
            lane = args.get("device", args.get("device id", e["pid"] if cat == "cuda" else 0))
            raw.device.append(Span(of, lane, start, end, name, kind, (of, link)))
        elif cat in HOST:
            span = Span(of, e["tid"], start, end, name, HOST[cat], (of, link))
            raw.host.append(span)
            if HOST[cat] == "call" and link is not None:
                raw.launches.setdefault((of, link), span)


def _without_category(process: str, event: dict[str, Any]) -> str | None:
    """What an event without a category is, by the name of its process (Ascend, rpd)."""
    if "Ascend Hardware" in process or re.search(r"(?i)^gpu\d+|GPU", process):
        return "kernel" if "EVENT" not in event["name"] else None
    if process == "HCCL":
        return (
            "kernel"
            if re.search(r"All\w+-op|Broadcast-op|ReduceScatter-op", event["name"])
            else None
        )
    if process in ("Python", "CANN") or not process:
        return "cuda_api"
    return None


def _rocprof_json(raw: Raw, tool: dict[str, Any]) -> None:
    symbols = {s["kernel_id"]: s["formatted_kernel_name"] for s in tool["kernel_symbols"]}
    for row in tool["buffer_records"]["kernel_dispatch"]:
        info = row["dispatch_info"]
        agent = info["agent_id"]["handle"]
        raw.device.append(
            Span(
                0,
                agent,
                row["start_timestamp"],
                row["end_timestamp"],
                symbols.get(info["kernel_id"], ""),
                "kernel",
            )
        )
    for row in tool["buffer_records"].get("memory_copy", []):
        raw.device.append(Span(0, 0, row["start_timestamp"], row["end_timestamp"], "copy", "copy"))


def _rows(
    database: sqlite3.Connection, table: str, columns: str, where: str = ""
) -> Iterator[tuple[Any, ...]]:
    there = {
        r[0]
        for r in database.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")
    }
    if table in there:
        yield from database.execute(f"SELECT {columns} FROM {table} {where}")


def _database(raw: Raw, file: Path, number: int) -> None:
    database = sqlite3.connect(f"file:{file}?mode=ro", uri=True)
    database.text_factory = lambda data: data.decode(errors="replace")
    tables = {
        r[0]
        for r in database.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")
    }
    if "rocpd_op" in tables:
        _rpd(raw, database)
    elif "CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL" in tables:
        _nvvp(raw, database)
    elif "TASK" in tables and "COMPUTE_TASK_INFO" in tables:
        _ascend(raw, database, number)
    else:
        _nsys(raw, database)
    database.close()


def _nsys(raw: Raw, database: sqlite3.Connection) -> None:
    texts = dict(_rows(database, "StringIds", "id, value"))
    columns = {r[1] for r in database.execute("PRAGMA table_info(CUPTI_ACTIVITY_KIND_KERNEL)")}
    process = "globalPid" if "globalPid" in columns else "0"
    by_process: dict[int, int] = {}
    for start, end, device, link, name, pid in _rows(
        database,
        "CUPTI_ACTIVITY_KIND_KERNEL",
        f"start, end, deviceId, correlationId, demangledName, {process}",
    ):
        by_process.setdefault(pid >> 24, device)
        raw.device.append(
            Span(
                device, device, start, end, texts.get(name, str(name)), "kernel", (pid >> 24, link)
            )
        )
    for table, kind in (
        ("CUPTI_ACTIVITY_KIND_MEMCPY", "copy"),
        ("CUPTI_ACTIVITY_KIND_MEMSET", "fill"),
    ):
        some = {r[1] for r in database.execute(f"PRAGMA table_info({table})")}
        pid_of = "globalPid" if "globalPid" in some else "0"
        for start, end, device, link, size, pid in _rows(
            database, table, f"start, end, deviceId, correlationId, bytes, {pid_of}"
        ):
            by_process.setdefault(pid >> 24, device)
            raw.device.append(Span(device, device, start, end, kind, kind, (pid >> 24, link), size))
    for table in (
        "CUPTI_ACTIVITY_KIND_RUNTIME",
        "OSRT_API",
        "MPI_P2P_EVENTS",
        "MPI_COLLECTIVES_EVENTS",
        "MPI_OTHER_EVENTS",
    ):
        some = {r[1] for r in database.execute(f"PRAGMA table_info({table})")}
        if not some:
            continue
        name_of = "nameId" if "nameId" in some else "textId"
        link_of = "correlationId" if table.endswith("RUNTIME") else "NULL"
        for start, end, thread, name, link in _rows(
            database, table, f"start, end, globalTid, {name_of}, {link_of}"
        ):
            of = (
                by_process.get(thread >> 24)
                if process != "0"
                else next(iter(by_process.values()), 0)
            )
            if of is None or end is None:
                continue
            key = ((thread >> 24) if process != "0" else 0, link)
            span = Span(of, thread, start, end, texts.get(name, str(name)), "call", key)
            raw.host.append(span)
            if link is not None:
                raw.launches.setdefault(key, span)
    for start, end, thread, text, text_id in _rows(
        database,
        "NVTX_EVENTS",
        "start, end, globalTid, text, textId",
        "WHERE end IS NOT NULL AND eventType IN (59, 60, 70, 71)",
    ):
        of = by_process.get((thread or 0) >> 24)
        if of is not None:
            raw.host.append(Span(of, thread, start, end, text or texts.get(text_id, ""), "range"))


def _nvvp(raw: Raw, database: sqlite3.Connection) -> None:
    texts = dict(_rows(database, "StringTable", "_id_, value"))
    for table in ("CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL", "CUPTI_ACTIVITY_KIND_KERNEL"):
        for start, end, device, link, name in _rows(
            database, table, "start, end, deviceId, correlationId, name"
        ):
            raw.device.append(Span(0, device, start, end, texts.get(name, ""), "kernel", (0, link)))
    for table, kind in (
        ("CUPTI_ACTIVITY_KIND_MEMCPY", "copy"),
        ("CUPTI_ACTIVITY_KIND_MEMSET", "fill"),
    ):
        for start, end, device, link in _rows(
            database, table, "start, end, deviceId, correlationId"
        ):
            raw.device.append(Span(0, device, start, end, kind, kind, (0, link)))
    for table in ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_DRIVER"):
        for start, end, thread, link in _rows(
            database, table, "start, end, threadId, correlationId"
        ):
            raw.host.append(Span(0, thread, start, end, table, "call", (0, link)))
            raw.launches.setdefault((0, link), raw.host[-1])


def _rpd(raw: Raw, database: sqlite3.Connection) -> None:
    calls = {
        i: (s, e, n, t) for i, s, e, n, t in _rows(database, "api", "id, start, end, apiName, tid")
    }
    for start, end, name, thread in calls.values():
        raw.host.append(Span(0, thread, start, end, name, "call"))
    of_op = dict(_rows(database, "rocpd_api_ops", "op_id, api_id"))
    kinds = {
        "KernelExecution": "kernel",
        "CopyHostToDevice": "copy",
        "CopyDeviceToHost": "copy",
        "CopyDeviceToDevice": "copy",
    }
    for number, device, start, end, name, what in _rows(
        database, "op", "id, gpuId, start, end, description, opType"
    ):
        kind = kinds.get(what, "copy" if "Copy" in what else "fill" if "Fill" in what else None)
        if kind is None:
            continue
        raw.device.append(Span(0, device, start, end, name or what, kind, number))
        if (call := calls.get(of_op.get(number))) is not None:
            raw.launches[number] = Span(0, call[3], call[0], call[1], call[2], "call")


def _ascend(raw: Raw, database: sqlite3.Connection, number: int) -> None:
    """Compute tasks and communication operators, and host calls of the CANN layer, of a database
    of torch_npu.
    """
    texts = dict(_rows(database, "STRING_IDS", "id, value"))
    computing = dict(_rows(database, "COMPUTE_TASK_INFO", "globalTaskId, name"))
    for start, end, task, link in _rows(
        database, "TASK", "startNs, endNs, globalTaskId, connectionId"
    ):
        if task in computing:
            raw.device.append(
                Span(
                    number, 0, start, end, texts.get(computing[task], ""), "kernel", (number, link)
                )
            )
    for start, end, name, link in _rows(
        database, "COMMUNICATION_OP", "startNs, endNs, opName, connectionId"
    ):
        raw.device.append(
            Span(number, 0, start, end, texts.get(name, ""), "kernel", (number, link))
        )
    for table, kind in (("CANN_API", "call"), ("PYTORCH_API", "op")):
        for start, end, name, link, thread in _rows(
            database, table, "startNs, endNs, name, connectionId, globalTid"
        ):
            raw.host.append(
                Span(
                    number, thread, int(start), int(end), texts.get(name, ""), kind, (number, link)
                )
            )
            if kind == "call" and link is not None:
                raw.launches[(number, link)] = raw.host[-1]


def _kernel_details(raw: Raw, file: Path, number: int) -> None:
    """Kernels and communication of Ascend's CSV, and, where it is there, the timeline beside it."""
    with file.open(newline="") as stream:
        for row in csv.DictReader(stream):
            start = _ns(row["Start Time(us)"])
            end = start + _ns(row["Duration(us)"])
            raw.device.append(Span(number, 0, start, end, row["Name"], "kernel"))
    timeline = file.with_name("trace_view.json")
    if timeline.exists():
        with timeline.open() as stream:
            events = json.load(stream)
        for e in events:
            if e.get("ph") == "X":
                start = _ns(e["ts"])
                raw.host.append(
                    Span(
                        number,
                        (e["pid"], e["tid"]),
                        start,
                        start + _ns(e["dur"]),
                        e["name"],
                        "range",
                    )
                )


def _rocprofv3(raw: Raw, file: Path) -> None:
    with file.open(newline="") as stream:
        for row in csv.DictReader(stream):
            kind = "copy" if row["Kind"] == "MEMORY_COPY" else "kernel"
            name = row.get("Kernel_Name") or row.get("Direction") or ""
            raw.device.append(
                Span(
                    0,
                    row.get("Agent_Id", 0),
                    int(row["Start_Timestamp"]),
                    int(row["End_Timestamp"]),
                    name,
                    kind,
                )
            )


def _operators_as_device(raw: Raw) -> None:
    """Outermost operators of each thread stand in for a device; gloo lasts as long as its range."""
    raw.on_host = True
    by_thread = defaultdict(list)
    for e in raw.host:
        if e.kind == "op":
            by_thread[e.rank, e.lane].append(e)
        elif e.name.startswith("gloo:"):
            raw.device.append(e._replace(lane=0, kind="kernel"))
    for rows in by_thread.values():
        reach = -1
        for e in sorted(rows, key=lambda e: (e.start, -e.end)):
            if e.start >= reach:
                raw.device.append(e._replace(lane=0, kind="kernel"))
                reach = e.end
