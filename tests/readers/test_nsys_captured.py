"""What a capture of Nsight Systems did not ask for is not captured; what it asked for and did
not meet is empty.
"""

import pytest

import llmprof
from llmprof import analyze
from llmprof.errors import NotCapturedError, TraceWarning
from tests.readers.test_nsys import PID_A, PID_B, TABLES, write

NO_COPIES = {"CUPTI_ACTIVITY_KIND_MEMCPY": None, "CUPTI_ACTIVITY_KIND_MEMSET": None}
OVERHEAD = {
    "PROFILER_OVERHEAD": (
        "start INTEGER, end INTEGER, globalTid INTEGER, nameId INTEGER",
        [(5, 9, PID_A + 100, 1)],
    )
}


def captured(*events, **options):
    rows = [*(("CAPTURE_EVENT_TYPE", event) for event in events), *options.items()]
    return {**TABLES, "META_DATA_CAPTURE": ("name TEXT, value TEXT", rows)}


@pytest.fixture
def read(tmp_path):
    def read(tables, **changes):
        place = tmp_path / f"{len(list(tmp_path.iterdir()))}.sqlite"
        return llmprof.read(write(place, tables, **changes), cache=False)

    return read


def test_what_was_asked_for_and_did_not_happen_is_empty(read):
    tables = captured("Cuda", "NvtxEvents", COLLECT_GPU_MEMORY_USAGE="true")
    trace = read(tables, **NO_COPIES, NVTX_EVENTS=None)
    assert [trace.table(name).height for name in ("copies", "markers", "memory")] == [0, 0, 0]
    assert analyze.nsys.nvtx_sum(trace).is_empty()
    assert trace.meta["options"] == {"trace": "cuda,nvtx"}
    trace = read(captured("Cuda"), NVTX_EVENTS=None)
    with pytest.raises(NotCapturedError, match="this capture holds no markers"):
        _ = trace.markers
    with pytest.raises(NotCapturedError, match="this capture holds no memory"):
        _ = trace.memory


def test_an_export_that_does_not_say_what_was_asked_for(read):
    trace = read(TABLES, **NO_COPIES, NVTX_EVENTS=None)
    assert set(trace.capture.recorded) == {"kernels", "runtime", "collectives"}
    for name in ("copies", "markers"):
        with pytest.raises(NotCapturedError, match=f"this capture holds no {name}"):
            trace.table(name)


def test_tables_asked_for_by_name_tell_the_same(tmp_path):
    path = write(tmp_path / "report.sqlite", captured("Cuda"), NVTX_EVENTS=None, **NO_COPIES)
    trace = llmprof.read(path, tables=("copies", "markers"), cache=False)
    assert trace.copies.is_empty()
    with pytest.raises(NotCapturedError):
        _ = trace.markers


def test_overhead_without_ranges_is_read_and_is_no_range(read):
    trace = read({**captured("Cuda"), **OVERHEAD}, NVTX_EVENTS=None)
    assert trace.markers.select("rank", "name", "domain", "dur_ns").rows() == [
        (0, "gemm_kernel", "overhead", 4)
    ]
    with pytest.raises(NotCapturedError, match="NVTX"):
        analyze.nsys.nvtx_sum(trace)
    asked = read({**captured("Cuda", "NvtxEvents"), **OVERHEAD}, NVTX_EVENTS=None)
    assert analyze.nsys.nvtx_sum(asked).is_empty()


def test_work_that_names_no_process_is_of_the_process_that_launched_it(tmp_path):
    """Two processes, correlations of their own, and kernels without a column ``globalPid``."""
    columns, rows = TABLES["CUPTI_ACTIVITY_KIND_KERNEL"]
    without = columns.replace("globalPid INTEGER, ", "")
    kernels = [
        (*row[:4], correlation, *row[6:])
        for row, correlation in zip(rows, (21, 22, 23), strict=True)
    ]
    path = write(
        tmp_path / "report.sqlite",
        {**TABLES, "CUPTI_ACTIVITY_KIND_KERNEL": (without, kernels)},
        CUPTI_ACTIVITY_KIND_RUNTIME=[
            (900, 950, PID_B + 101, 21, 3),
            (905, 955, PID_A + 100, 22, 4),
            (1900, 1950, PID_A + 100, 23, 3),
        ],
        **NO_COPIES,
    )
    with pytest.warns(TraceWarning, match="it is that of the call with the same correlation"):
        trace = llmprof.read(path, cache=False)
    assert trace.kernels.select("rank", "correlation").sort("correlation").rows() == [
        (1, 21),
        (0, 22),
        (0, 23),
    ]
