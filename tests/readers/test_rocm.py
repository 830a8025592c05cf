"""Recordings of ROCm: rocprofv3's CSV, rpd, rocpd; by hand, on real files, and damaged."""

import json
import shutil
import sqlite3
from contextlib import closing

import polars as pl
import pytest

import llmprof
from llmprof import analyze
from llmprof.errors import ReadError, TraceWarning
from llmprof.readers.registry import detect
from tests.readers.databases import as_view

KERNELS = """"Kind","Agent_Id","Queue_Id","Stream_Id","Thread_Id","Kernel_Name","Correlation_Id","Start_Timestamp",\
"End_Timestamp","LDS_Block_Size","Workgroup_Size_X","Workgroup_Size_Y","Workgroup_Size_Z","Grid_Size_X","Grid_Size_Y",\
"Grid_Size_Z"
"KERNEL_DISPATCH","Agent 4",1,2,69,"void gemm<float, 4>(float*)",7,1000,1500,512,256,1,1,1000,2,1
"KERNEL_DISPATCH","Agent 4",1,2,69,"copy",8,1600,1500,0,64,1,1,64,1,1
"""
CALLS = """"Domain","Function","Process_Id","Thread_Id","Correlation_Id","Start_Timestamp","End_Timestamp"
"HIP_RUNTIME_API_EXT","hipLaunchKernel",5,6,7,900,950
"MARKER_CORE_API","decode",5,6,9,800,2000
"""


@pytest.fixture
def real(shared):
    return shared / "real" / "rocm"


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "host"
    folder.mkdir()
    (folder / "12_kernel_trace.csv").write_text(KERNELS)
    (folder / "12_hip_api_trace.csv").write_text(CALLS)
    return folder


def test_a_folder_of_one_process_by_hand(run):
    with pytest.warns(TraceWarning):
        trace = llmprof.read(run)
    assert trace.coverage["impossible"] == 1
    kernel = trace.kernels.row(0, named=True)
    assert (kernel["device"], kernel["stream"], kernel["start_ns"], kernel["dur_ns"]) == (
        4,
        2,
        200,
        500,
    )
    assert (kernel["grid_x"], kernel["grid_y"], kernel["block_x"]) == (
        4,
        2,
        256,
    )  # 1000 work items in groups of 256
    assert kernel["shared_bytes"] == 512
    assert trace.runtime.select("name", "start_ns", "dur_ns", "correlation").rows() == [
        ("hipLaunchKernel", 100, 50, 7)
    ]
    assert trace.markers.select("name", "start_ns", "dur_ns", "domain").rows() == [
        ("decode", 0, 1200, "roctx")
    ]
    assert analyze.launch_delay(trace).height >= 0


def test_two_processes_are_two_ranks(run):
    for name in ("kernel", "hip_api"):
        text = (run / f"12_{name}_trace.csv").read_text()
        (run / f"13_{name}_trace.csv").write_text(text.replace("7,1000,1500", "7,1000,1499"))
    with pytest.warns(TraceWarning):
        trace = llmprof.read(run)
    assert trace.ranks == [0, 1]
    assert trace.kernels.group_by("rank").len().sort("rank").rows() == [(0, 1), (1, 1)]


def test_real_csv(real):
    with pytest.warns(
        TraceWarning, match="1 event"
    ):  # the documentation's example ends with an empty row
        kernels = llmprof.read(real / "rocprofv3_docs_kernel_trace.csv").kernels
    assert kernels.height == 7
    assert kernels["start_ns"][0] == 0
    assert kernels["dur_ns"][0] == 8819330200116308 - 8819330200067564
    assert kernels.select("grid_x", "grid_y", "block_x").row(0) == (16, 1024, 64)
    copies = llmprof.read(real / "rocprofv3_docs_memory_copy_trace.csv").copies
    assert copies.select("kind", "device", "dur_ns").rows() == [
        ("HtoD", 1, 563880),
        ("DtoH", 1, 581800),
    ]
    assert llmprof.read(real / "rocprofv3_docs_hsa_api_trace.csv").runtime.height == 10
    totals = llmprof.read(real / "rocprofv3_docs_hip_api_stats.csv").totals
    assert totals.height == 17
    assert totals["kind"].unique().to_list() == ["call"]
    assert totals.filter(name="hipFree").select("count", "total_ns", "min_ns", "max_ns").row(0) == (
        12,
        1994421,
        7790,
        1036046,
    )


def test_counters_without_times_are_refused(real, tmp_path):
    with pytest.raises(ReadError, match="file of counters has no times"):
        llmprof.read(real / "rocprofv3_docs_counter_collection.csv")
    for name in ("counter_collection", "memory_copy_trace"):
        shutil.copy(real / f"rocprofv3_docs_{name}.csv", tmp_path)
    with pytest.warns(
        TraceWarning,
        match=r"counter_collection\.csv: the file of counters has no times, so it is left",
    ):
        trace = llmprof.read(tmp_path, cache=False)
    assert trace.copies.height == 2


def test_a_real_rpd_against_its_own_views_and_its_chrome_trace(real):
    path = real / "rpd_matmul_result.rpd"
    trace = llmprof.read(path)
    with closing(sqlite3.connect(f"file:{path}?immutable=1", uri=True)) as file:
        whole, count = file.execute(
            "SELECT sum(end - start), count(*) FROM op WHERE opType = 'KernelExecution'"
        ).fetchone()
        moved = file.execute("SELECT count(*), sum(size) FROM copyop").fetchone()
        calls = file.execute("SELECT count(*) FROM rocpd_api").fetchone()[0]
    assert (trace.kernels.height, trace.kernels["dur_ns"].sum()) == (count, whole)
    assert trace.runtime.height + trace.markers.height == calls == 125
    assert (trace.copies["bytes"].drop_nulls().len(), trace.copies["bytes"].sum()) == moved
    assert trace.copies.group_by("kind").len().sort("kind").rows() == [
        ("DtoH", 53),
        ("HtoD", 2),
        ("memset", 1),
    ]
    assert trace.kernels["correlation"].is_in(trace.runtime["correlation"].implode()).all()
    assert not trace.kernels["name"].str.contains("^KernelExecution").any()
    events = json.loads((real / "rpd_matmul_result.json").read_text())
    names = {e["name"] for e in events if e.get("args", {}).get("desc") == "KernelExecution"}
    assert set(trace.kernels["name"]) == names
    # a Tensile GEMM is launched with a grid of work items, a kernel of PyTorch with one of blocks
    gemm = trace.kernels.filter(pl.col("name").str.starts_with("Cijk")).row(0, named=True)
    assert (gemm["grid_x"], gemm["grid_y"], gemm["block_x"]) == (7, 782, 256)
    assert analyze.kernels(trace)["count"].sum() == 85


def rocpd(path):
    """A database of rocprofv3 as its schema 3 has it, made by hand: one kernel, one copy, a call
    and a range.
    """
    of = "_00ab"
    tables = {
        "rocpd_string": (
            "id INTEGER, guid TEXT, string TEXT",
            [
                (1, "g", "hipLaunchKernel"),
                (2, "g", "decode"),
                (3, "g", "MEMORY_COPY_HOST_TO_DEVICE"),
            ],
        ),
        "rocpd_info_kernel_symbol": (
            "id INTEGER, kernel_name TEXT, display_name TEXT",
            [(5, "_Z4gemm.kd", "gemm()")],
        ),
        "rocpd_info_agent": (
            "id INTEGER, type TEXT, type_index INTEGER, logical_index INTEGER, name TEXT, "
            "product_name TEXT",
            [(1, "CPU", 0, 0, "EPYC", None), (2, "GPU", 0, 1, "gfx942", "MI300X")],
        ),
        "rocpd_info_process": ("id INTEGER, pid INTEGER", [(1, 4711)]),
        "rocpd_info_thread": ("id INTEGER, tid INTEGER", [(1, 4712)]),
        "rocpd_event": (
            "id INTEGER, stack_id INTEGER, correlation_id INTEGER",
            [(1, 30, 0), (2, 31, 9), (3, 30, 0)],
        ),
        "rocpd_region": (
            "pid INTEGER, tid INTEGER, start INTEGER, end INTEGER, name_id INTEGER, event_id INTEGER",
            [(1, 1, 100, 200, 1, 1), (1, 1, 50, 900, 2, 2)],
        ),
        "rocpd_kernel_dispatch": (
            "agent_id INTEGER, kernel_id INTEGER, stream_id INTEGER, start INTEGER, end INTEGER, event_id INTEGER, "
            "group_segment_size INTEGER, workgroup_size_x INTEGER, grid_size_x INTEGER",
            [(2, 5, 3, 300, 700, 3, 64, 256, 1024)],
        ),
        "rocpd_memory_copy": (
            "start INTEGER, end INTEGER, name_id INTEGER, dst_agent_id INTEGER, "
            "src_agent_id INTEGER, size INTEGER, stream_id INTEGER, event_id INTEGER",
            [(210, 250, 3, 2, 1, 4096, 3, 2)],
        ),
    }
    with closing(sqlite3.connect(path)) as file, file:
        for name, (columns, rows) in tables.items():
            file.execute(f'CREATE TABLE "{name}{of}" ({columns})')
            file.executemany(
                f'INSERT INTO "{name}{of}" VALUES ({", ".join("?" * len(rows[0]))})', rows
            )
    return path


def test_a_database_of_rocprofv3_by_hand(tmp_path):
    trace = llmprof.read(rocpd(tmp_path / "results.db"))
    assert trace.kernels.select(
        "name", "device", "stream", "start_ns", "dur_ns", "grid_x", "block_x"
    ).row(0) == (
        "gemm()",
        0,
        3,
        250,
        400,
        4,
        256,
    )
    assert trace.copies.select("kind", "bytes", "device", "dur_ns").row(0) == ("HtoD", 4096, 0, 40)
    call = trace.runtime.row(0, named=True)
    assert (call["name"], call["process"], call["thread"]) == ("hipLaunchKernel", 4711, 4712)
    assert call["correlation"] == trace.kernels["correlation"][0] == 30
    assert trace.markers["name"].to_list() == ["decode"]
    assert trace.meta["device"] == "MI300X"


def test_a_view_of_a_database_is_named(tmp_path):
    with pytest.warns(TraceWarning, match="rocpd_memory_copy_00ab is a view"):
        assert (
            llmprof.read(as_view(rocpd(tmp_path / "a.db"), "rocpd_memory_copy_00ab")).kernels.height
            == 1
        )
    with pytest.raises(ReadError, match="rocpd_kernel_dispatch_00ab is a view"):
        llmprof.read(as_view(rocpd(tmp_path / "b.db"), "rocpd_kernel_dispatch_00ab"))


def test_damaged_databases(tmp_path, real):
    data = (real / "rpd_matmul_result.rpd").read_bytes()
    for cut in (100, 5000, len(data) // 2):
        path = tmp_path / f"{cut}.rpd"
        path.write_bytes(data[:cut])
        with pytest.raises(ReadError):
            llmprof.read(path)
    empty = tmp_path / "empty.db"
    with closing(sqlite3.connect(empty)) as file, file:
        for table in ("rocpd_op", "rocpd_api", "rocpd_string"):
            file.execute(f"CREATE TABLE {table} (id INTEGER)")
    assert detect(empty) == "rpd"
    with pytest.raises(ReadError, match="has no event"):
        llmprof.read(empty)


def test_a_cut_csv_keeps_its_whole_rows(tmp_path):
    path = tmp_path / "1_kernel_trace.csv"
    path.write_text(KERNELS[: KERNELS.index('"copy"') + 3])
    with pytest.warns(TraceWarning):
        assert llmprof.read(path).kernels.height == 1


def records(**buffers):
    """JSON of rocprofv3 with one processor and one device."""
    operations = {
        "NONE": [],
        "HIP_RUNTIME_API": ["hipMalloc", "hipLaunchKernel"],
        "MEMORY_COPY": ["MEMORY_COPY_NONE", "MEMORY_COPY_HOST_TO_DEVICE"],
    }
    kinds = [{"kind": kind, "operations": named} for kind, named in operations.items()]
    return {
        "rocprofiler-sdk-tool": [
            {
                "metadata": {"pid": 5},
                "agents": [
                    {"id": {"handle": 70}, "type": 1, "product_name": "EPYC"},
                    {
                        "id": {"handle": 71},
                        "type": 2,
                        "product_name": "MI300X",
                        "logical_node_type_id": 0,
                    },
                ],
                "strings": {"buffer_records": kinds, "marker_api": [{"key": 9, "value": "decode"}]},
                "kernel_symbols": [
                    {
                        "kernel_id": 3,
                        "formatted_kernel_name": "void gemm<float>(float*) [clone .kd]",
                    }
                ],
                "buffer_records": buffers,
            }
        ]
    }


def record(start, end, correlation, **more):
    """A record of any buffer."""
    return {
        "start_timestamp": start,
        "end_timestamp": end,
        "correlation_id": {"internal": correlation},
        **more,
    }


def test_json_by_hand(tmp_path):
    info = {
        "agent_id": {"handle": 71},
        "queue_id": {"handle": 1},
        "kernel_id": 3,
        "group_segment_size": 512,
        "workgroup_size": {"x": 256, "y": 1, "z": 1},
        "grid_size": {"x": 1000, "y": 2, "z": 1},
    }
    document = records(
        kernel_dispatch=[
            record(1000, 1500, 7, dispatch_info=info, stream_id={"handle": 2}),
            record(1600, 1500, 8, dispatch_info=info),
        ],
        memory_copy=[
            record(1700, 1800, 10, kind=2, operation=1, dst_agent_id={"handle": 71}, bytes=64)
        ],
        hip_api=[record(900, 950, 7, kind=1, operation=1, thread_id=6)],
        marker_api=[record(800, 2000, 9, kind=7, operation=1, thread_id=6)],
    )
    path = tmp_path / "5_results.json"
    path.write_text(json.dumps(document))
    with pytest.warns(TraceWarning, match="1 event"):
        trace = llmprof.read(path)
    kernel = trace.kernels.row(0, named=True)
    assert (kernel["name"], kernel["device"], kernel["stream"]) == (
        "void gemm<float>(float*)",
        0,
        2,
    )
    assert (kernel["start_ns"], kernel["dur_ns"], kernel["shared_bytes"]) == (200, 500, 512)
    assert (kernel["grid_x"], kernel["grid_y"], kernel["block_x"]) == (4, 2, 256)
    assert trace.copies.select("kind", "bytes", "start_ns", "dur_ns", "device").rows() == [
        ("HtoD", 64, 900, 100, 0)
    ]
    assert trace.runtime.select(
        "name", "process", "thread", "start_ns", "dur_ns", "correlation"
    ).rows() == [("hipLaunchKernel", 5, 6, 100, 50, 7)]
    assert trace.markers.select("name", "start_ns", "dur_ns", "domain").rows() == [
        ("decode", 0, 1200, "roctx")
    ]
    assert trace.meta["device"] == "MI300X"


def test_json_without_events_or_cut_is_refused(tmp_path):
    path = tmp_path / "5_results.json"
    path.write_text(json.dumps(records()))
    with pytest.raises(ReadError, match="no event"):
        llmprof.read(path)
    path.write_text(json.dumps(records())[:-9])
    with pytest.raises(ReadError, match="whole"):
        llmprof.read(path)


def test_json_of_a_training_run(shared):
    trace = llmprof.read(shared / "strangers" / "rocm" / "rocprof__908_results.json.gz")
    assert (trace.kernels.height, trace.kernels["dur_ns"].sum()) == (43_915, 4_441_741_378)
    assert trace.meta["device"] == "AMD Instinct MI350X"
    assert "unnamed kernel" not in trace.kernels["name"].to_list()
