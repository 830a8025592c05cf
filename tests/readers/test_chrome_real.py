"""Real files against plain ``json`` with decimal numbers: every event in its table, every time
exact to the ns.
"""

from collections import Counter

import pytest

from tests.readers.traces import decimal_ns, document_of, read_one, real_files

pytestmark = pytest.mark.slow

FILES = real_files()
SLOW_BYTES = 1_000_000

TABLE_OF = {
    "mtia_runtime": "runtime",
    "kernel": "kernels",
    "cuda": "kernels",
    "gpu_memcpy": "copies",
    "memcpy": "copies",
    "gpu_memset": "copies",
    "memset": "copies",
    "cuda_runtime": "runtime",
    "cuda_driver": "runtime",
    "runtime": "runtime",
    "cuda_api": "runtime",
    "cpu_op": "ops",
    "operator": "ops",
    "node": "ops",
    "user_annotation": "markers",
    "gpu_user_annotation": "markers",
    "overhead": "markers",
    "nvtx": "markers",
    "nvtx-kernel": "markers",
    "session": "markers",
    "enqueue": "markers",
    "dequeue": "markers",
    "python_function": "python",
    "trace": None,
}


COLUMNS = ("name", "start_ns", "dur_ns")
COUNTER_COLUMNS = ("time_ns", "value")
MEMORY_COLUMNS = ("time_ns", "bytes")


def table_of(event, processes):
    """Where an event belongs, worked out apart from the reader."""
    category = (event.get("cat") or "").lower()
    if category == "mtia_ccp_events":
        return {"dma_request": "copies", "event_wait": "tasks", "event_record": "tasks"}.get(
            event["name"], "kernels"
        )
    if category in TABLE_OF:
        communicates = TABLE_OF[category] == "markers" and event["name"].startswith("gloo:")
        return "ops" if communicates else TABLE_OF[category]
    process, name = processes.get(event["pid"], ""), event["name"]
    if process.startswith("GPU"):
        return (
            "copies"
            if name.lower().startswith(("copy", "memcpy", "memset", "fillbuffer"))
            else "kernels"
        )
    return "runtime" if name.startswith("hip") else "markers"


def expected(path):
    """Rows ``(name, start_ns, dur_ns)`` by table, and how often each."""
    events, keys = document_of(path)
    base = int(keys.get("baseTimeNanoseconds", 0))
    processes = {
        e["pid"]: e["args"]["name"]
        for e in events
        if e.get("ph") == "M" and e["name"] == "process_name"
    }
    out = {}
    for event in events:
        if event.get("ph") == "X":
            row = (
                event["name"],
                base + decimal_ns(event["ts"]),
                max(0, decimal_ns(event.get("dur", 0))),
            )
            out.setdefault(table_of(event, processes), Counter())[row] += 1
            if table_of(event, processes) == "python" and event["name"].startswith("nn.Module: "):
                out.setdefault("markers", Counter())[row] += 1  # calls of modules are ranges, too
        elif event.get("ph") == "i" and event["name"] == "[memory]":
            out.setdefault("memory", Counter())[
                base + decimal_ns(event["ts"]), event["args"]["Bytes"]
            ] += 1
        elif event.get("ph") == "C":
            for value in event["args"].values():
                out.setdefault("counters", Counter())[
                    base + decimal_ns(event["ts"]), float(value)
                ] += 1
    out.pop(None, None)
    return out


@pytest.mark.skipif(not FILES, reason="there is no folder of recordings beside this checkout")
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(p, marks=[pytest.mark.slow] if p.stat().st_size > SLOW_BYTES else [])
        for p in FILES
    ],
    ids=lambda p: f"{p.parent.name}-{p.name}"[:60],
)
def test_every_event_is_in_its_table_with_its_exact_times(path):
    wanted = expected(path)
    part = read_one(path, python_functions=True)
    assert part.coverage["events"] == len(document_of(path)[0])
    assert part.coverage["events"] == part.coverage["kept"] + sum(part.coverage["skipped"].values())
    assert not [loss for loss in part.losses() if "none of its" not in loss]
    found = {table: rows(frame) for table, frame in part.tables.items() if table != "collectives"}
    if (ops := part.tables.get("ops")) is not None:
        found |= {"ops": rows(ops.filter(kind="op")), "python": rows(ops.filter(kind="python"))}
    assert {table: count for table, count in found.items() if count} == wanted


def rows(frame):
    columns = next(
        c for c in (COLUMNS, COUNTER_COLUMNS, MEMORY_COLUMNS) if {*c} <= {*frame.columns}
    )
    return Counter(frame.select(columns).rows())
