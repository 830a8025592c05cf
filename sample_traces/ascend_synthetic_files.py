"""What torch_npu writes of a run, from the run that ``ascend_synthetic`` placed: text files and databases of a rank."""

from __future__ import annotations

import csv
import json
import sqlite3
from collections import defaultdict
from pathlib import Path
from typing import Any

from ascend_synthetic import COMMUNICATION_STREAM, GROUP, PEAK_FLOPS, RANKS, Placed, Run, ns, overlap

MAIN, QUEUE = 4001, 4002
PROCESS = {"Python": 4001, "CANN": 900_000, "Ascend Hardware": 900_032, "AI Core Freq": 900_064, "HBM": 900_096,
           "Communication": 900_128, "NPU MEM": 900_160, "Overlap Analysis": 900_192, "LLC": 900_224,
           "QoS": 900_256}  # fmt: skip
NONE = 4294967295
CYCLES_PER_US, CORES = 1800, 24
MODEL_BYTES = 24 << 30
DEVICE_NAME = "Ascend910C (synthetic)"
DATA_TYPE = "BFP16"


def us(at: float) -> str:
    """Absolute time as the decimal text that torch_npu writes."""
    value = ns(at)
    return f"{value // 1000}.{value % 1000:03d}"


def host_events(p: Placed) -> list[dict[str, Any]]:
    """Operator, item of the task queue and calls of CANN that launched a kernel."""
    begin = p.queued - 2.6
    aclnn = f"hcom_{p.kernel.op[5:]}" if p.kernel.is_call else p.kernel.name.split("_")[0]
    level, name = ("hccl", "Launch_Ffts") if p.kernel.is_call else ("node", "launch")
    prefix = {"hccl": "Hccl", "node": "Node"}[level]
    return [
        {"kind": "op", "name": p.kernel.host_op, "start": p.host, "dur": 4.5, "thread": MAIN},
        {"kind": "Enqueue", "name": "Enqueue", "start": p.host + 2.5, "dur": 1.0, "thread": MAIN},
        {"kind": "Dequeue", "name": f"Dequeue@{aclnn}", "start": begin, "dur": 2.5, "thread": QUEUE},
        {"kind": "acl", "name": f"AscendCL@{aclnn}", "start": begin + 0.2, "dur": 2.2, "thread": QUEUE},
        {"kind": level, "name": f"{prefix}@{name}", "start": begin + 0.6, "dur": 1.6, "thread": QUEUE},
    ]


def pieces(p: Placed) -> list[dict[str, Any]]:
    """Tasks of a collective call: tell the other rank, wait for it, move the data."""
    other = 1 - p.rank
    moved = int(p.kernel.moved)
    wait = max(0.02, p.arrived - p.start)
    first = p.start + wait + 2.0
    base = {"src": p.rank, "dst": other, "task": p.task}
    return [
        {**base, "name": "Notify_Record", "start": p.start, "dur": 0.02, "plane": 1, "size": 0, "link": "HCCS"},
        {**base, "name": "Notify_Wait", "start": p.start + 0.04, "dur": wait, "plane": 1, "size": 0, "link": None},
        {**base, "name": "Memcpy", "start": first, "dur": round(p.end - first - 0.5, 2), "plane": 1, "size": moved,
         "link": "HCCS"},
        {**base, "name": "Reduce_Inline", "start": p.end - 0.4, "dur": 0.4, "plane": 0, "size": 32, "link": "ON_CHIP",
         "dst": NONE},
    ]  # fmt: skip


def waits(p: Placed) -> list[dict[str, Any]]:
    """The wait for an event before a kernel, and the record on the stream that it waited for."""
    if p.waited_from is None or p.waited_to - p.waited_from < 0.1:
        return []
    end = round(min(p.waited_to, p.start) + 0.04, 2)  # the record and the end of the wait follow what was waited for
    return [
        {"name": "EVENT_RECORD", "stream": p.waited_stream, "start": end - 0.02, "dur": 0.02},
        {"name": "EVENT_WAIT", "stream": p.stream, "start": round(p.waited_from, 2), "dur": round(end - p.waited_from, 2)},
    ]


def counters_of(p: Placed) -> dict[str, float]:
    """Counters of the cores: the cube's share follows from the FLOPs, the vector's is an assumption."""
    time = p.end - p.start
    cube = p.kernel.flops / (PEAK_FLOPS * time * 1e-6)
    is_cube = p.kernel.core in ("AI_CORE", "MIX_AIC")
    return {
        "aicore_time(us)": round(0.95 * time, 3) if is_cube else 0.0,
        "aic_total_cycles": int(0.95 * time * CYCLES_PER_US * CORES) if is_cube else 0,
        "aic_mac_time(us)": round(cube * time, 3),
        "aic_mac_ratio": round(min(1.0, cube), 3),
        "aic_mte2_time(us)": round(0.7 * time, 3) if is_cube else 0.0,
        "aic_mte2_ratio": 0.7 if is_cube else 0.0,
        "aiv_time(us)": 0.0 if is_cube else round(0.9 * time, 3),
        "aiv_total_cycles": 0 if is_cube else int(0.9 * time * CYCLES_PER_US * CORES * 2),
        "aiv_vec_time(us)": 0.0 if is_cube else round(0.25 * time, 3),
        "aiv_vec_ratio": 0.0 if is_cube else 0.25,
        "cube_utilization(%)": round(100 * min(1.0, cube), 3),
    }


def sampled(p: Placed) -> dict[str, float]:
    """What the counters of the device say while a kernel runs: assumptions, in MB/s but for the hit rate."""
    read = 400_000.0 if p.kernel.core == "AI_CORE" else 90_000.0
    hit = 0.4 if p.kernel.core == "AI_CORE" else 0.8
    return {"HBM": read, "LLC": read / (1 - hit), "hit": hit, "QoS": read / 64}


def stack_of(p: Placed) -> list[str]:
    """Call stack of the operator of a kernel, innermost frame first."""
    where = "head" if p.kernel.layer is None else "decoder_layer"
    return [
        f"model.py(30): {p.kernel.stage}", f"model.py(20): {where}",
        "model.py(10): forward", "engine.py(10): execute_model",
    ]  # fmt: skip


def steps_of(run: Run, rank: int) -> list[dict[str, Any]]:
    """Rows of step_trace_time.csv."""
    rows = []
    for _, step, _, begin, _ in (s for s in run.steps if s[0] == rank):
        mine = [p for p in run.placed if p.rank == rank and p.step == step]
        found = overlap(mine)
        rows.append(
            {
                "Step": step, "Computing": round(found["computing"], 3),
                "Communication(Not Overlapped)": round(found["communication_not_overlapped"], 3),
                "Overlapped": round(found["overlapped"], 3), "Communication": round(found["communication"], 3),
                "Free": round(found["free"], 3), "Stage": round(found["stage"], 3), "Bubble": 0.0,
                "Communication(Not Overlapped and Exclude Receive)": round(found["communication_not_overlapped"], 3),
                "Preparing": round(min(p.start for p in mine) - begin, 3),
            }
        )  # fmt: skip
    return rows


def communication_of(run: Run, rank: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """communication.json and communication_matrix.json."""
    times: dict[str, Any] = {}
    links: dict[str, Any] = {}
    for p in (p for p in run.placed if p.rank == rank and p.kernel.is_call):
        move = next(t for t in pieces(p) if t["name"] == "Memcpy")
        elapse, wait = p.end - p.start, p.arrived - p.start
        label = f"{p.kernel.name}@{GROUP}"
        times.setdefault(f"step{p.step}", {"p2p": {}, "collective": {}})["collective"][label] = {
            "Communication Time Info": {
                "Start Timestamp(us)": ns(p.start) / 1000, "Elapse Time(ms)": elapse / 1000,
                "Transit Time(ms)": move["dur"] / 1000, "Wait Time(ms)": wait / 1000,
                "Synchronization Time(ms)": wait / 1000, "Idle Time(ms)": (elapse - wait - move["dur"]) / 1000,
            }
        }  # fmt: skip
        links.setdefault(f"step{p.step}", {"p2p": {}, "collective": {}})["collective"][label] = {
            f"{rank}-{1 - rank}": {
                "Transport Type": "HCCS", "Transit Size(MB)": move["size"] / 1e6, "Transit Time(ms)": move["dur"] / 1000,
                "Bandwidth(GB/s)": round(move["size"] / move["dur"] / 1e3, 4), "Op Name": p.kernel.name,
            }
        }  # fmt: skip
    return times, links


def memory_of(run: Run, rank: int) -> list[tuple[float, int, int, int]]:
    """Allocations: time of taking and giving back (us), bytes, allocated after it."""
    found = []
    for p in (p for p in run.placed if p.rank == rank and not p.kernel.is_call and p.kernel.core != "AI_VECTOR_CORE"):
        size = 2 * int(p.kernel.shapes[1].split(",")[-1] or 1) * int(p.kernel.shapes[1].split(",")[-2] or 1)
        found.append((p.host + 1.0, p.end, size, MODEL_BYTES + size))
    return found


def write_rank(run: Run, rank: int, folder: Path, form: str) -> None:
    """Write the folder of one rank."""
    output = folder / "ASCEND_PROFILER_OUTPUT"
    output.mkdir(parents=True, exist_ok=True)
    info = {
        "config": {
            "common_config": {"activities": ["ProfilerActivity.CPU", "ProfilerActivity.NPU"], "record_shapes": True},
            "experimental_config": {"_profiler_level": "Level1", "_export_type": form},
        },
        "rank_id": rank,
        "torch_npu_version": "0.0",
        "cann_version": "0.0",
    }
    (folder / f"profiler_info_{rank}.json").write_text(json.dumps(info, indent=1) + "\n")
    metadata = {"distributed_info": {"backend": "hccl", "rank": rank, "world_size": RANKS}, "synthetic": True}
    (folder / "profiler_metadata.json").write_text(json.dumps(metadata, indent=1) + "\n")
    if form in ("text", "both"):
        write_text(run, rank, output)
    if form in ("db", "both"):
        write_database(run, rank, output)


def write_text(run: Run, rank: int, output: Path) -> None:
    """trace_view.json and the CSV and JSON files beside it."""
    mine = [p for p in run.placed if p.rank == rank]
    (output / "trace_view.json").write_text(json.dumps(timeline(run, rank, mine)))
    rows = [kernel_row(p) for p in mine]
    _csv(output / "kernel_details.csv", rows)
    _csv(output / "step_trace_time.csv", steps_of(run, rank))
    times, links = communication_of(run, rank)
    (output / "communication.json").write_text(json.dumps(times))
    (output / "communication_matrix.json").write_text(json.dumps(links))
    sums: dict[tuple[str, str], list[float]] = defaultdict(list)
    for p in mine:
        sums[p.kernel.op, p.kernel.core].append(p.end - p.start)
    total = sum(map(sum, sums.values()))
    _csv(
        output / "op_statistic.csv",
        [
            {
                "OP Type": op, "Core Type": core, "Count": len(t), "Total Time(us)": round(sum(t), 3),
                "Min Time(us)": round(min(t), 3), "Avg Time(us)": round(sum(t) / len(t), 3),
                "Max Time(us)": round(max(t), 3), "Ratio(%)": round(100 * sum(t) / total, 3),
            }
            for (op, core), t in sorted(sums.items(), key=lambda item: -sum(item[1]))
        ],
    )  # fmt: skip
    used = memory_of(run, rank)
    mb = 1 << 20
    _csv(
        output / "operator_memory.csv",
        [
            {
                "Name": "npu::synthetic", "Size(KB)": size / 1024, "Allocation Time(us)": f"{us(a)}\t",
                "Release Time(us)": f"{us(b)}\t", "Allocation Total Allocated(MB)": after / mb,
                "Allocation Total Reserved(MB)": (MODEL_BYTES + (1 << 30)) / mb,
                "Release Total Allocated(MB)": MODEL_BYTES / mb,
                "Release Total Reserved(MB)": (MODEL_BYTES + (1 << 30)) / mb, "Device Type": f"NPU:{rank}",
            }
            for a, b, size, after in used
        ],
    )  # fmt: skip
    _csv(
        output / "memory_record.csv",
        [
            {
                "Component": "PTA", "Timestamp(us)": f"{us(a)}\t", "Total Allocated(MB)": after / mb,
                "Total Reserved(MB)": (MODEL_BYTES + (1 << 30)) / mb, "Device Type": f"NPU:{rank}",
            }
            for a, _, _, after in used
        ],
    )  # fmt: skip


def kernel_row(p: Placed) -> dict[str, Any]:
    """Row of kernel_details.csv."""
    none = p.kernel.is_call
    types = ";".join(["DT_BF16"] * (p.kernel.shapes[0].count(";") + 1))
    row = {
        "Step Id": p.step, "Model ID": NONE, "Task ID": "N/A" if none else p.task,
        "Stream ID": "N/A" if none else p.stream, "Name": p.kernel.name, "Type": p.kernel.op,
        "OP State": "N/A" if none else "dynamic", "Accelerator Core": "COMMUNICATION" if none else p.kernel.core,
        "Start Time(us)": f"{us(p.start)}\t", "Duration(us)": round(p.end - p.start, 3), "Wait Time(us)": 0,
        "Block Dim": 0 if none else CORES, "Input Shapes": "N/A" if none else f'"{p.kernel.shapes[0]}"',
        "Input Data Types": "N/A" if none else types, "Input Formats": "N/A" if none else types.replace("DT_BF16", "ND"),
        "Output Shapes": "N/A" if none else f'"{p.kernel.shapes[1]}"',
        "Output Data Types": "N/A" if none else "DT_BF16", "Output Formats": "N/A" if none else "ND",
    }  # fmt: skip
    return row | {key: "N/A" if none else value for key, value in counters_of(p).items()}


def _csv(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def timeline(run: Run, rank: int, mine: list[Placed]) -> list[dict[str, Any]]:
    """Events of trace_view.json."""
    events: list[dict[str, Any]] = []

    def span(where: str, thread: int, name: str, start: float, dur: float, **more: Any) -> None:
        events.append(
            {"ph": "X", "name": name, "pid": PROCESS[where], "tid": thread, "ts": us(start), "dur": round(dur, 3), **more}
        )

    for _, _, label, begin, end in (s for s in run.steps if s[0] == rank):
        span("Python", MAIN, label, begin, end - begin, cat="cpu_op", args={"Sequence number": -1})
    for _, step, begin, end in (s for s in run.synchronised if s[0] == rank):
        span("Python", MAIN, "aten::to", begin, end - begin, cat="cpu_op", args={"Input Dims": "64"})
        call = {"Thread Id": MAIN, "Mode": "ACL_RTS", "level": "acl", "connection_id": 50 + step}
        span("CANN", MAIN, "AscendCL@aclrtSynchronizeStreamWithTimeout", begin + 1, end - begin - 2, args=call)
    for number, p in enumerate(mine):
        for event in host_events(p):
            level = event["kind"]
            at = (event["thread"], event["name"], event["start"], event["dur"])
            if level == "op":
                dims = p.kernel.shapes[0].replace(";", ";\r\n")
                stack = ";\r\n".join(stack_of(p))
                about = {"Sequence number": -1, "Input Dims": dims, "Call stack": stack}
                span("Python", *at, cat="cpu_op", args=about)
            elif level in ("Enqueue", "Dequeue"):
                span("Python", *at, cat=level.lower(), args={"correlation_id": number})
            else:
                args = {"Thread Id": event["thread"], "level": level}
                span("CANN", *at, args={**args, "connection_id": p.connection} if level in ("node", "hccl") else args)
        where, lane = ("Communication", 0) if p.kernel.is_call else ("Ascend Hardware", p.stream)
        flow = {"cat": "async_npu", "name": "torch_to_npu", "id": f"{ns(p.start)}{p.connection}", "bp": "e"}
        events.append({**flow, "ph": "s", "pid": PROCESS["Python"], "tid": MAIN, "ts": us(p.host)})
        events.append({**flow, "ph": "f", "pid": PROCESS[where], "tid": lane, "ts": us(p.start)})
        for task in waits(p):
            kind = {"Task Type": f"{task['name']}_SQE", "Physic Stream Id": task["stream"], "Task Id": 0}
            span("Ascend Hardware", task["stream"], task["name"], task["start"], task["dur"], args=kind)
        if p.kernel.is_call:
            about = {"connection_id": p.connection, "model id": NONE, "data_type": DATA_TYPE, "alg_type": "MESH",
                     "count": int(p.kernel.shapes[0])}  # fmt: skip
            span("Communication", 0, p.kernel.name, p.start, p.end - p.start, args=about)
            for task in pieces(p):
                about = {
                    "notify_id": "1", "stream id": COMMUNICATION_STREAM, "task id": p.task, "task type": task["name"],
                    "src rank": task["src"], "dst rank": task["dst"], "transport type": "SDMA",
                    "size(Byte)": task["size"], "link type": task["link"] or "INVALID_TYPE",
                }  # fmt: skip
                span("Communication", 1 + task["plane"], task["name"], task["start"], task["dur"], args=about)
        else:
            about = {"Model Id": NONE, "Task Type": p.kernel.core, "Physic Stream Id": p.stream, "Task Id": p.task,
                     "Subtask Id": NONE, "connection_id": p.connection}  # fmt: skip
            span("Ascend Hardware", p.stream, p.kernel.name, p.start, p.end - p.start, args=about)
    for name, start, end in analysis(mine):
        lanes = ("Computing", "Communication", "Communication(Not Overlapped)", "Free")
        span("Overlap Analysis", lanes.index(name), name, start, end - start)
    for p in mine[::4]:
        seen = sampled(p)
        for where, name, value in (
            ("AI Core Freq", "AI Core Freq", {"MHz": CYCLES_PER_US}),
            ("HBM", "HBM 0/Read", {"Read(MB/s)": seen["HBM"]}),
            ("LLC", "LLC 0 Read/Throughput", {"Throughput(MB/s)": seen["LLC"]}),
            ("LLC", "LLC 0 Read/Hit Rate", {"Hit Rate(%)": seen["hit"]}),
            ("QoS", "QoS OTHERS", {"value": seen["QoS"]}),
            ("NPU MEM", "APP/HBM", {"KB": (MODEL_BYTES + (1 << 30)) / 1024}),
        ):
            events.append({"ph": "C", "name": name, "pid": PROCESS[where], "tid": 0, "ts": us(p.start), "args": value})
    for name, process in PROCESS.items():
        events.append({"ph": "M", "name": "process_name", "pid": process, "tid": 0, "args": {"name": name}})
    lanes = {(PROCESS["Communication"], 0): f"Group {GROUP} Communication"}
    lanes |= {(PROCESS["Communication"], 1 + n): f"Plane {n}" for n in range(2)}
    for (process, thread), name in lanes.items():
        events.append({"ph": "M", "name": "thread_name", "pid": process, "tid": thread, "args": {"name": name}})
    return events


def analysis(mine: list[Placed]) -> list[tuple[str, float, float]]:
    """The tool's Overlap Analysis: merged computing and communication, the latter without the former, and free time."""

    def merged(spans: list[tuple[float, float]]) -> list[list[float]]:
        out: list[list[float]] = []
        for a, b in sorted(spans):
            if out and a <= out[-1][1]:
                out[-1][1] = max(out[-1][1], b)
            else:
                out.append([a, b])
        return out

    def without(spans: list[list[float]], taken: list[list[float]]) -> list[tuple[float, float]]:
        out = []
        for a, b in spans:
            at = a
            for c, d in taken:
                if d <= at or c >= b:
                    continue
                if c > at:
                    out.append((at, c))
                at = max(at, d)
            if at < b:
                out.append((at, b))
        return out

    computing = merged([(p.start, p.end) for p in mine if not p.kernel.is_call])
    calls = merged([(p.start, p.end) for p in mine if p.kernel.is_call])
    busy = merged([(a, b) for a, b in (*computing, *calls)])
    free = [(x[1], y[0]) for x, y in zip(busy, busy[1:], strict=False)]
    found = [("Computing", a, b) for a, b in computing] + [("Communication", a, b) for a, b in calls]
    found += [("Communication(Not Overlapped)", a, b) for a, b in without(calls, computing)]
    return found + [("Free", a, b) for a, b in free]


class Writer:
    """A database with the texts of its identifiers."""

    def __init__(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        self.db = sqlite3.connect(path)
        self.ids: dict[str, int] = {}

    def text(self, value: str) -> int:
        return self.ids.setdefault(value, len(self.ids))

    def table(self, name: str, columns: str, rows: list[tuple[Any, ...]]) -> None:
        self.db.execute(f'CREATE TABLE "{name}" ({columns})')
        marks = ", ".join("?" * (columns.count(",") + 1))
        self.db.executemany(f'INSERT INTO "{name}" VALUES ({marks})', rows)  # noqa: S608 (own names)

    def close(self) -> None:
        self.table("STRING_IDS", "id INTEGER, value TEXT", [(number, text) for text, number in self.ids.items()])
        self.db.commit()
        self.db.close()


def write_database(run: Run, rank: int, output: Path) -> None:
    """ascend_pytorch_profiler_N.db and analysis.db."""
    mine = [p for p in run.placed if p.rank == rank]
    out = Writer(output / f"ascend_pytorch_profiler_{rank}.db")
    thread = {MAIN: (PROCESS["Python"] << 32) + MAIN, QUEUE: (PROCESS["Python"] << 32) + QUEUE}
    tasks, compute, calls, parts, api, cann, links, pmu, chains = [], [], [], [], [], [], [], [], []
    number = 0
    for item, p in enumerate(mine):
        number += 1
        connection = p.connection
        if p.kernel.is_call:
            calls.append((out.text(p.kernel.name), ns(p.start), ns(p.end), connection, out.text(GROUP), item, 11,
                          out.text("MESH"), int(p.kernel.shapes[0]), out.text(p.kernel.op)))  # fmt: skip
            for task in pieces(p):
                number += 1
                kind = {"Notify_Wait": "Notify Wait", "Notify_Record": "Write Value"}.get(task["name"], "SDMA")
                tasks.append((ns(task["start"]), ns(task["start"] + task["dur"]), rank, connection, number,
                              out.text(kind), NONE, COMMUNICATION_STREAM, p.task))  # fmt: skip
                parts.append((out.text(p.kernel.name), number, out.text(task["name"]), task["plane"], out.text(GROUP), 1,
                              task["src"], task["dst"], 0, task["size"],
                              {"HCCS": 1, "ON_CHIP": 0, None: 65535}[task["link"]], item))  # fmt: skip
        else:
            tasks.append((ns(p.start), ns(p.end), rank, connection, number, out.text(p.kernel.core), NONE, p.stream, p.task))
            row = kernel_row(p)
            compute.append((out.text(p.kernel.name), number, row["Block Dim"], 0, out.text(p.kernel.core),
                            out.text(p.kernel.op), *(out.text(str(row[c])) for c in (
                                "Input Formats", "Input Data Types", "Input Shapes", "Output Formats",
                                "Output Data Types", "Output Shapes")), 0))  # fmt: skip
            for key, value in counters_of(p).items():
                if key == "cube_utilization(%)":
                    continue
                key = {"aicore_time(us)": "aic_total_time(us)", "aiv_time(us)": "aiv_total_time(us)"}.get(key, key)
                scale = 1000 if key.endswith("(us)") else 1
                pmu.append((number, out.text(key.removesuffix("(us)")), value * scale))
        for task in waits(p):
            number += 1
            tasks.append((ns(task["start"]), ns(task["start"] + task["dur"]), rank, NONE, number,
                          out.text(task["name"]), NONE, task["stream"], 0))  # fmt: skip
        for event in host_events(p):
            span = (ns(event["start"]), ns(event["start"] + event["dur"]))
            if event["kind"] == "op":
                dims = out.text(p.kernel.shapes[0].replace(";", ";\r\n"))
                api.append((*map(str, span), thread[MAIN], item, out.text(event["name"]), None, dims, 50001, item))
                links.append((item, connection))
                chains += [(item, out.text(frame), depth) for depth, frame in enumerate(stack_of(p))]
            elif event["kind"] in ("Enqueue", "Dequeue"):
                api.append((*map(str, span), thread[event["thread"]], item, out.text(event["name"]), None, None, 50002,
                            None))  # fmt: skip
            else:
                level = {"acl": 20000, "node": 10000, "hccl": 5500}[event["kind"]]
                plain = event["name"].partition("@")[2]
                known = connection if level != 20000 else NONE
                cann.append((*span, level, thread[event["thread"]], known, out.text(plain)))
    for _, _, label, begin, end in (s for s in run.steps if s[0] == rank):
        api.append((str(ns(begin)), str(ns(end)), thread[MAIN], None, out.text(label), None, None, 50001, None))
    for _, step, begin, end in (s for s in run.synchronised if s[0] == rank):
        api.append((str(ns(begin)), str(ns(end)), thread[MAIN], None, out.text("aten::to"), None, out.text("64"), 50001,
                    None))  # fmt: skip
        cann.append((ns(begin + 1), ns(end - 1), 20000, thread[MAIN], 50 + step,
                     out.text("aclrtSynchronizeStreamWithTimeout")))  # fmt: skip
    used = memory_of(run, rank)
    reserved = MODEL_BYTES + (1 << 30)
    out.table("NPU_INFO", "id INTEGER, name TEXT", [(rank, DEVICE_NAME)])
    out.table("RANK_DEVICE_MAP", "rankId INTEGER, deviceId INTEGER", [(rank, rank)])
    out.table("META_DATA", "name TEXT, value TEXT", [("SCHEMA_VERSION", "1.0.0"), ("synthetic", "true")])
    out.table("TASK", "startNs INTEGER, endNs INTEGER, deviceId INTEGER, connectionId INTEGER, globalTaskId INTEGER, "
              "taskType INTEGER, contextId INTEGER, streamId INTEGER, taskId INTEGER", tasks)  # fmt: skip
    out.table("COMPUTE_TASK_INFO", "name INTEGER, globalTaskId INTEGER, blockDim INTEGER, mixBlockDim INTEGER, "
              "taskType INTEGER, opType INTEGER, inputFormats INTEGER, inputDataTypes INTEGER, inputShapes INTEGER, "
              "outputFormats INTEGER, outputDataTypes INTEGER, outputShapes INTEGER, waitNs INTEGER", compute)  # fmt: skip
    out.table("COMMUNICATION_OP", "opName INTEGER, startNs INTEGER, endNs INTEGER, connectionId INTEGER, "
              "groupName INTEGER, opId INTEGER, dataType INTEGER, algType INTEGER, count NUMERIC, opType INTEGER",
              calls)  # fmt: skip
    out.table("COMMUNICATION_TASK_INFO", "name INTEGER, globalTaskId INTEGER, taskType INTEGER, planeId INTEGER, "
              "groupName INTEGER, notifyId INTEGER, srcRank INTEGER, dstRank INTEGER, transportType INTEGER, "
              "size INTEGER, linkType INTEGER, opId INTEGER", parts)  # fmt: skip
    out.table("CANN_API", "startNs INTEGER, endNs INTEGER, type INTEGER, globalTid INTEGER, connectionId INTEGER, "
              "name INTEGER", cann)  # fmt: skip
    out.table("PYTORCH_API", "startNs TEXT, endNs TEXT, globalTid INTEGER, connectionId INTEGER, name INTEGER, "
              "inputDtypes INTEGER, inputShapes INTEGER, type INTEGER, callchainId INTEGER", api)  # fmt: skip
    out.table("PYTORCH_CALLCHAINS", "id INTEGER, stack INTEGER, stackDepth INTEGER", chains)
    out.table("CONNECTION_IDS", "id INTEGER, connectionId INTEGER", links)
    out.table("TASK_PMU_INFO", "globalTaskId INTEGER, name INTEGER, value NUMERIC", pmu)
    out.table("ENUM_HCCL_LINK_TYPE", "id INTEGER, name TEXT", [(0, "ON_CHIP"), (1, "HCCS"), (65535, "INVALID_TYPE")])
    out.table("ENUM_HCCL_TRANSPORT_TYPE", "id INTEGER, name TEXT", [(0, "SDMA")])
    out.table("AICORE_FREQ", "deviceId INTEGER, timestampNs NUMERIC, freq INTEGER",
              [(rank, ns(p.start), CYCLES_PER_US) for p in mine[::4]])  # fmt: skip
    read, others, mb = out.text("read"), out.text("OTHERS"), 1 << 20
    seen = [(ns(p.start), sampled(p)) for p in mine[::4]]
    out.table("HBM", "deviceId INTEGER, timestampNs INTEGER, bandwidth NUMERIC, hbmId INTEGER, type INTEGER",
              [(rank, at, now["HBM"] * mb, 0, read) for at, now in seen])  # fmt: skip
    out.table("LLC", "deviceId INTEGER, llcId INTEGER, timestampNs INTEGER, hitRate REAL, throughput INTEGER, "
              "mode INTEGER", [(rank, 0, at, 100 * now["hit"], now["LLC"] * mb, read) for at, now in seen])  # fmt: skip
    out.table("QOS", "deviceId INTEGER, timestampNs INTEGER, eventName INTEGER, bandwidth NUMERIC",
              [(rank, at, others, now["QoS"]) for at, now in seen])  # fmt: skip
    out.table("MEMORY_RECORD", "component INTEGER, timestamp INTEGER, totalAllocated INTEGER, totalReserved INTEGER, "
              "deviceId INTEGER", [(out.text("PTA"), ns(a), after, reserved, rank) for a, _, _, after in used])  # fmt: skip
    out.table("OP_MEMORY", "name INTEGER, size INTEGER, allocationTime INTEGER, releaseTime INTEGER, "
              "allocationTotalAllocated INTEGER, allocationTotalReserved INTEGER, releaseTotalAllocated INTEGER, "
              "releaseTotalReserved INTEGER, deviceId INTEGER",
              [(out.text("npu::synthetic"), size, ns(a), ns(b), after, reserved, MODEL_BYTES, reserved, rank)
               for a, b, size, after in used])  # fmt: skip
    out.close()
    sums = Writer(output / "analysis.db")
    rows = [tuple(str(v) if k == "Step" else v for k, v in row.items()) for row in steps_of(run, rank)]
    sums.table("StepTraceTime", "step TEXT, computing NUMERIC, communication_not_overlapped NUMERIC, "
               "overlapped NUMERIC, communication NUMERIC, free NUMERIC, stage NUMERIC, bubble NUMERIC, "
               "communication_not_overlapped_and_exclude_receive NUMERIC, preparing NUMERIC", rows)  # fmt: skip
    times, links_said = communication_of(run, rank)
    spent, matrix = [], []
    for step, by_kind in times.items():
        for label, info in by_kind["collective"].items():
            name, group = label.split("@")
            about = info["Communication Time Info"]
            spent.append((name, group, *about.values(), step, "collective"))
            for pair, link in links_said[step]["collective"][label].items():
                ends = pair.split("-")
                matrix.append((name, group, *ends, *list(link.values())[:4], step, "collective", name))
    sums.table("CommAnalyzerTime", "hccl_op_name TEXT, group_name TEXT, start_timestamp NUMERIC, elapse_time NUMERIC, "
               "transit_time NUMERIC, wait_time NUMERIC, synchronization_time NUMERIC, idle_time NUMERIC, step TEXT, "
               "type TEXT", spent)  # fmt: skip
    sums.table("CommAnalyzerMatrix", "hccl_op_name TEXT, group_name TEXT, src_rank TEXT, dst_rank TEXT, "
               "transport_type TEXT, transit_size NUMERIC, transit_time NUMERIC, bandwidth NUMERIC, step TEXT, "
               "type TEXT, op_name TEXT", matrix)  # fmt: skip
    sums.close()
