"""Flows link device events to the host calls that launched them, where no number does."""

import json

import polars as pl
import pytest

from llmprof.analyze import idle
from tests.readers.traces import ROOT, content, event, kernel, launch, text_of, write
from tests.readers.traces import read_quietly as read


def flow(number, begin, end, cat="ac2g", name="ac2g"):
    """Both ends of a flow, each at (process, thread, time in us)."""
    return [
        {"ph": ph, "cat": cat, "name": name, "id": number, "pid": pid, "tid": tid, "ts": ts}
        | ({"bp": "e"} if ph == "f" else {})
        for ph, (pid, tid, ts) in zip("sf", (begin, end), strict=True)
    ]


def named(kind, name, pid, tid=0):
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}


def launchers(trace, table="kernels"):
    """Name and start in us of the call that launched each event; None if none is known."""
    calls = trace.runtime.select("rank", "correlation", call="name", at=pl.col("start_ns") // 1000)
    events = trace.table(table).join(calls, on=["rank", "correlation"], how="left")
    return {row["name"]: row["call"] and (row["call"], row["at"]) for row in events.to_dicts()}


@pytest.mark.parametrize("write_ts", [int, float, str, lambda us: 1_700_000_000_000_000.5 + us])
def test_flows_of_a_torch_trace_without_correlations(tmp_path, write_ts):
    events = [
        launch("outer", 0, 100),
        launch("inner", 10, 20),
        launch("next", 100, 10),
        launch("short", 100, 0),
        kernel("of_inner", 50, 10),
        kernel("of_outer", 60, 10),
        kernel("of_next", 110, 10),
        kernel("of_nothing", 150, 10),
        kernel("of_two", 170, 10),
        kernel("of_both_ends", 190, 10),
        *flow(1, (100, 101, 15), (0, 7, 50)),
        *flow(2, (100, 101, 40), (0, 7, 60)),  # after the inner call, in the outer one
        *flow(3, (100, 101, 100), (0, 7, 110)),  # where a call ends and the next begins
        *flow(4, (100, 101, 130), (0, 7, 150)),  # begins in no call
        *flow(5, (100, 101, 15), (0, 7, 170)),
        *flow(6, (100, 101, 105), (0, 7, 170)),  # two calls for one event
        *flow(7, (100, 101, 15), (0, 7, 190)),
        *flow(7, (100, 101, 105), (0, 7, 195)),  # a number that is used again
        *flow(1, (100, 101, 105), (0, 7, 55), cat="fwdbwd"),  # a category counts its own numbers
    ]
    events = [e | {"ts": write_ts(e["ts"])} for e in events]
    trace = read(write(tmp_path / "trace.json", text_of(events)))
    assert launchers(trace) == {
        "of_inner": ("inner", 10),
        "of_outer": ("outer", 0),
        "of_next": ("next", 100),
        "of_nothing": None,
        "of_two": None,
        "of_both_ends": None,
    }


def test_flows_say_what_correlations_say(tmp_path):
    """A recording gives every launch, also without the numbers that its flows repeat."""
    file = next((ROOT / "sample_traces/torch_tp1_cudagraph").glob("*.json.gz"))
    document = json.loads(content(file))
    for each in document["traceEvents"]:
        each.get("args", {}).pop("correlation", None)
    told = read(write(tmp_path / "trace.json", json.dumps(document).encode()))
    columns = ["name", "start_ns", "launch_start_ns", "launch_end_ns", "launch_thread"]
    known = read(file).events.select(columns)
    assert known["launch_start_ns"].null_count() == 0
    assert told.events.select(columns).equals(known)


def test_a_correlation_counts_more_than_a_flow(tmp_path):
    """A number that no call has is none: then the flow gives it, and calls keep their own."""
    events = [
        launch("first", 0, 10, correlation=3),
        launch("second", 20, 10, correlation=5),
        launch("third", 40, 10),
        kernel("by_number", 12, 1, correlation=3),
        kernel("by_flow", 32, 1, correlation=4),
        kernel("numberless", 52, 1),
        kernel("of_none", 54, 1, correlation=6),
        *flow(1, (100, 101, 25), (0, 7, 12)),
        *flow(2, (100, 101, 25), (0, 7, 32)),
        *flow(3, (100, 101, 45), (0, 7, 52)),
    ]
    trace = read(write(tmp_path / "trace.json", text_of(events)))
    assert launchers(trace) == {
        "by_number": ("first", 0),
        "by_flow": ("second", 20),
        "numberless": ("third", 40),
        "of_none": None,
    }
    assert trace.runtime["correlation"].to_list()[:2] == [3, 5]
    assert trace.kernels.filter(name="of_none")["correlation"].to_list() == [6]


def test_flows_between_threads_and_devices_that_only_names_tell(tmp_path):
    """As rpd2tracing writes: texts for numbers, no categories, devices as processes."""
    events = [
        named("process_name", "GPU1", "1"),
        named("process_name", "GPU4", "4"),
        event(None, "hipLaunchKernel", 0, 10, pid="77", tid="77"),
        event(None, "hipMemcpyAsync", 0, 10, pid="77", tid="78"),
        event(None, "hipFree", 40, 10, pid="77", tid="77"),
        event(None, "gemm", 30, 20, pid="1", tid="0"),
        event(None, "CopyHostToDevice", 30, 5, pid="4", tid="0"),
        *flow("1", ("77", "77", 4), ("1", "0", 30), "api_op", "api_op"),
        *flow("2", ("77", "78", 4), ("4", "0", 30), "api_op", "api_op"),
    ]
    events = [{k: str(v) if k in ("ts", "dur") else v for k, v in e.items()} for e in events]
    trace = read(write(tmp_path / "rpd.json", text_of(events)))
    assert launchers(trace) == {"gemm": ("hipLaunchKernel", 0)}
    assert launchers(trace, "copies") == {"CopyHostToDevice": ("hipMemcpyAsync", 0)}
    assert trace.runtime["correlation"].null_count() == 1


@pytest.mark.parametrize("together", ["labels", "documents"])
def test_each_rank_has_its_own_flows(tmp_path, together):
    """Ranks in one file count their flows alike."""
    ranks = [
        [
            launch("cudaLaunchKernel", 10 * rank, 5),
            kernel(f"k{rank}", 30, 5),
            *flow(1, (100, 101, 10 * rank + 2), (0, 7, 30)),
        ]
        for rank in (0, 1)
    ]
    if together == "labels":
        text = text_of(
            e | {"pid": f"[TP0{rank}] {e['pid']}"} for rank in (0, 1) for e in ranks[rank]
        )
    else:
        info = [{"rank": rank, "world_size": 2} for rank in (0, 1)]
        text = b"\n".join(text_of(ranks[r], distributedInfo=info[r]) for r in (0, 1))
    assert launchers(read(write(tmp_path / "both.json", text))) == {
        "k0": ("cudaLaunchKernel", 0),
        "k1": ("cudaLaunchKernel", 10),
    }


HOST, CANN, NPU, HCCL = 500, 9001, 9002, 9003


def timeline(*events):
    """A timeline as torch_npu writes it: layers as processes, times as texts."""
    layers = {HOST: "Python", CANN: "CANN", NPU: "Ascend Hardware", HCCL: "HCCL"}
    names = [named("process_name", name, pid) for pid, name in layers.items()]
    names.append(named("thread_name", "Group 0 Communication", HCCL))
    return json.dumps([*names, *({**e, "ts": f"{e['ts']}.000"} for e in events)]).encode()


def on_npu(name, ts, dur, kind="AI_CORE", **args):
    args = {"Task Type": kind, "Stream Id": 2, "Task Id": ts, **args}
    return event(None, name, ts, dur, pid=NPU, tid=2, args=args)


def to_npu(number, ts, at, lane=(NPU, 2)):
    name = f"HostToDevice{number}"
    return flow(number, (CANN, 12, ts), (*lane, at), "HostToDevice", name)


def test_an_npu_whose_numbers_match_no_call(tmp_path):
    """Calls and tasks have numbers of different levels; some calls have none (level 0)."""
    events = [
        event("cpu_op", "aten::add", 0, 8, pid=HOST, tid=11),
        event("dequeue", "Dequeue@aclnnAdd", 10, 20, pid=HOST, tid=12, args={"correlation_id": 1}),
        event(None, "AscendCL@aclnnAdd", 12, 10, pid=CANN, tid=12, args={"connection_id": 7}),
        event("dequeue", "Dequeue@acl_memcpy_host_to_device", 100, 10, pid=HOST, tid=12),
        event("dequeue", "Dequeue@HcclAllreduce", 300, 10, pid=HOST, tid=12),
        on_npu("Add", 40, 10, connection_id=6),
        on_npu("MEMCPY_ASYNC", 130, 10, "MEMCPY_ASYNC", connection_id=8),
        event(None, "hcom_allReduce__1_0_1", 320, 30, pid=HCCL, tid=0, args={"connection_id": 9}),
        *to_npu(1, 15, 40),
        *to_npu(2, 105, 130),
        *to_npu(3, 302, 320, (HCCL, 0)),
    ]
    trace = read(write(tmp_path / "trace_view.json", timeline(*events)))
    assert launchers(trace) == {
        "Add": ("AscendCL@aclnnAdd", 12),
        "hcom_allReduce__1_0_1": ("Dequeue@HcclAllreduce", 300),
    }
    copied = launchers(trace, "copies")
    assert copied == {"MEMCPY_ASYNC": ("Dequeue@acl_memcpy_host_to_device", 100)}
    assert trace.copies["kind"].to_list() == ["HtoD"]
    # idle from 50 to 130 us: the copy's call begins at 100; and from 140 to 320: at 300
    sums = idle(trace, by=("cause",)).select("cause", "total_ns").rows()
    assert dict(sums) == {"host_bound": 50_000 + 160_000, "launch": 30_000 + 20_000}


def test_an_npu_whose_numbers_match(tmp_path):
    """Where a call has a task's number, it launched the task, wherever a flow begins."""
    call = event(None, "Node@launch", 0, 5, pid=CANN, tid=12, args={"connection_id": 6})
    other = event(None, "AscendCL@aclnnAdd", 10, 5, pid=CANN, tid=12, args={"connection_id": 7})
    add = on_npu("Add", 40, 10, connection_id=6)
    trace = read(
        write(tmp_path / "trace_view.json", timeline(call, other, add, *to_npu(1, 11, 40)))
    )
    assert launchers(trace) == {"Add": ("Node@launch", 0)}
