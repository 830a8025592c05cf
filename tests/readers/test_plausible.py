"""Events whose time cannot be true beside those of the same file."""

import json

import pytest

import llmprof

LAUNCHES = 40


def recording(tmp_path, *, kernels=(), more=()):
    """A Chrome trace of kernels that begin 20 us after their launch; ``kernels`` changes some."""
    changed = dict(kernels)
    events = list(more)
    for n in range(LAUNCHES):
        at = 1e9 + 100 * n
        launch = {"ph": "X", "pid": 1, "tid": 1, "ts": at, "dur": 5, "cat": "cuda_runtime"}
        events.append(launch | {"name": "cudaLaunchKernel", "args": {"correlation": n}})
        kernel = {"ph": "X", "pid": 0, "tid": 7, "ts": at + 20, "dur": 50, "cat": "kernel"}
        args = {"correlation": n, "device": 0, "stream": 7}
        events.append(kernel | {"name": "gemm", "args": args} | changed.get(n, {}))
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    return path


@pytest.mark.filterwarnings("ignore::llmprof.errors.TraceWarning")
@pytest.mark.parametrize(
    "wrong",
    [{"ts": 0.0, "dur": 0.0}, {"ts": 1e9 - 5e5}, {"dur": 2e6}],
    ids=["zero", "half a second before its launch", "40,000 times the median"],
)
def test_a_time_that_cannot_be_is_set_aside_and_counted(tmp_path, wrong):
    trace = llmprof.read(recording(tmp_path, kernels={3: wrong, 9: wrong}))
    assert trace.kernels.height == LAUNCHES - 2
    assert trace.coverage["impossible"] == 2
    first, last = trace.span_ns
    assert last - first <= 100_000 * LAUNCHES


def test_a_clock_that_is_wrong_for_all_is_kept(tmp_path):
    early = {n: {"ts": 1e9 - 5e5 + 100 * n} for n in range(LAUNCHES)}
    trace = llmprof.read(recording(tmp_path, kernels=early))
    assert trace.kernels.height == LAUNCHES
    assert not trace.coverage.get("impossible")


def test_collectives_may_wait_for_long(tmp_path):
    name = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    all_reduces = {n: {"name": name} for n in range(LAUNCHES)}
    all_reduces[5] = {"name": name, "dur": 2e6}
    trace = llmprof.read(recording(tmp_path, kernels=all_reduces))
    assert trace.kernels.height == LAUNCHES


@pytest.mark.filterwarnings("ignore::llmprof.errors.TraceWarning")
def test_a_call_of_c_that_never_closed_is_set_aside(tmp_path):
    at = 1e9
    python = {"ph": "X", "pid": 1, "tid": 1, "cat": "python_function"}
    more = [
        python | {"name": "main.py(1): main", "ts": at, "dur": 5000.0},
        python | {"name": "main.py(5): step", "ts": at + 10, "dur": 90.0},
        python | {"name": "<built-in method mm of type>", "ts": at + 20, "dur": 4980.0},
        python | {"name": "main.py(9): last", "ts": at + 4000, "dur": 1000.0},
        python | {"name": "<built-in method item>", "ts": at + 4100, "dur": 900.0},
    ]
    trace = llmprof.read(recording(tmp_path, more=more))
    assert sorted(trace.ops["name"]) == sorted(
        event["name"] for event in more if "mm" not in event["name"]
    )


def test_a_second_document_in_a_file_is_read_or_counted_as_lost(tmp_path):
    path = recording(tmp_path)
    first = json.loads(path.read_text())
    second = json.loads(path.read_text())
    for event in second["traceEvents"]:
        event["ts"] += 1e6
        event["args"]["correlation"] += 1_000
    both = json.dumps({**first, "displayTimeUnit": "ms"}) + "\n" + json.dumps(second)
    path.write_text(both)
    assert llmprof.read(path).kernels.height == 2 * LAUNCHES
    path.write_text(both[:-2000])
    with pytest.warns(llmprof.errors.TraceWarning):
        trace = llmprof.read(path)
    assert trace.kernels.height < 2 * LAUNCHES
    assert trace.coverage["lost_bytes"] > 0


def test_a_number_of_two_launches_links_nothing(tmp_path):
    again = {"ph": "X", "pid": 1, "tid": 1, "ts": 1e9 + 90, "dur": 5, "cat": "cuda_runtime"}
    again |= {"name": "cudaLaunchKernel", "args": {"correlation": 3}}
    trace = llmprof.read(recording(tmp_path, more=[again]))
    assert trace.events["launch_start_ns"].null_count() == 1
