"""The reports against saved answers of ``nsys stats``, and against SQL."""

import csv
import functools
import warnings
from pathlib import Path

import polars as pl
import pytest

import llmprof
from llmprof import analyze
from llmprof.analyze.nsys.nvtx import LABEL
from llmprof.errors import TraceWarning
from llmprof.readers.common.reader import combine
from llmprof.readers.nsys import reader
from llmprof.trace.storage import sqlite
from tests.readers.test_nsys import PID_A, TABLES, write

SHARED = Path(__file__).resolve().parents[3] / "shared"
FILES = sorted([*SHARED.glob("captures/nsys_*/report.sqlite"), *SHARED.glob("real/nsys/*.sqlite")])

needs_files = pytest.mark.skipif(not FILES, reason="there are no recordings beside this checkout")


@functools.cache
def trace_of(path):
    with warnings.catch_warnings(
        action="ignore", category=TraceWarning
    ):  # a single rank of several
        return combine(reader.read(path), "nsys")


def label(path):
    return path.parent.name if path.name == "report.sqlite" else path.stem


def first_event(path):
    """Where our times begin, in nsys's: both count from the first thing that they know."""
    trace = trace_of(path)
    kernels = sqlite.query(path, "SELECT min(start) AS start FROM CUPTI_ACTIVITY_KIND_KERNEL")[
        "start"
    ].item()
    return int(kernels) - int(trace.kernels["start_ns"].min())


def report_of(trace, name):
    return getattr(analyze.nsys, name)(trace)


def read_csv(path):
    with path.open(newline="") as file:
        return [row for row in csv.DictReader(file) if any(row.values())]


@pytest.mark.parametrize(
    ("name", "count", "texts"),
    [
        ("cuda_gpu_kern_sum", "Instances", {"Name": "name"}),
        ("cuda_api_sum", "Num Calls", {"Name": "name"}),
        ("cuda_gpu_mem_time_sum", "Count", {"Operation": "kind"}),
        ("nvtx_sum", "Instances", {"Style": "kind", "Range": "name"}),
    ],
)
def test_saved_answers(shared, name, count, texts):
    """Every row and every cell: counts and totals are equal, and what nsys rounds rounds to the
    same.
    """
    stem = "gpubootcamp_mpi_report4"
    spread = {"Avg": "mean", "Med": "median", "Min": "min", "Max": "max", "StdDev": "std"}
    numbers = {"Time (%)": "share", "Total Time (ns)": "total_ns", count: "count"}
    numbers |= {f"{theirs} (ns)": f"{ours}_ns" for theirs, ours in spread.items()}
    rows = read_csv(shared / f"real/nsys/stats/{stem}_{name}.csv")
    assert list(rows[0]) == [*numbers, *texts]
    theirs = sorted(rows, key=lambda r: ([r[c] for c in texts], float(r["Total Time (ns)"])))
    ours = report_of(trace_of(shared / f"real/nsys/{stem}.sqlite"), name).sort(
        *texts.values(), "total_ns"
    )
    assert ours.select(*texts.values()).rows() == [tuple(r[c] for c in texts) for r in theirs]
    for column, mine in numbers.items():
        for value, row in zip(ours[mine], theirs, strict=True):
            if value is None:  # a deviation of one instance; nsys writes 0
                assert (column, row[column]) == ("StdDev (ns)", "0.0")
            elif isinstance(value, int):
                assert value == int(float(row[column]))
            else:
                places = len(row[column].partition(".")[2])
                shown = value * 100 if column == "Time (%)" else value
                assert shown == pytest.approx(
                    float(row[column]), abs=0.5001 * 10**-places, rel=1e-12
                )


def test_saved_projection(shared):
    """Each instance of a range, told apart by thread, host start and name."""
    path = shared / "real/nsys/gpubootcamp_mpi_report4.sqlite"
    theirs = read_csv(shared / "real/nsys/stats/gpubootcamp_mpi_report4_nvtx_gpu_proj_trace.csv")
    columns = {
        "Projected Start (ns)": "start_ns",
        "Projected Duration (ns)": "dur_ns",
        "Orig Start (ns)": "host_start_ns",
        "Orig Duration (ns)": "host_dur_ns",
        "PID": "process",
        "TID": "thread",
        "NumGPUOps": "launches",
        "Lvl": "depth",
        "NumChild": "children",
    }
    ours = analyze.nsys.nvtx_kernels(trace_of(path))
    children = ours.group_by(range="parent").agg(children=pl.len())
    ours = ours.join(children, on="range", how="left").with_columns(pl.col("children").fill_null(0))
    absolute = ours.with_columns(
        pl.col("start_ns", "host_start_ns") + first_event(path), name=LABEL
    )
    want = sorted(
        (*(int(r[c]) for c in columns), r["Name"], r["Style"]) for r in theirs if r["Style"]
    )
    assert sorted(absolute.select(*columns.values(), "name", "kind").rows()) == want


def test_saved_launches(shared):
    """Sums over nsys's list of launches are those of the summary."""
    rows = read_csv(shared / "real/nsys/stats/gpubootcamp_mpi_report4_cuda_kern_exec_trace.csv")
    ours = report_of(
        trace_of(shared / "real/nsys/gpubootcamp_mpi_report4.sqlite"), "cuda_kern_exec_sum"
    )
    for row in ours.iter_rows(named=True):
        mine = [
            r for r in rows if (r["Kernel Name"], r["API Function"]) == (row["name"], row["call"])
        ]
        queued = [int(r["Queue Dur (ns)"]) for r in mine if r["Queue Dur (ns)"]]
        assert (row["count"], row["queue_count"]) == (len(mine), len(queued))
        assert row["total_mean_ns"] == pytest.approx(
            sum(int(r["Total Dur (ns)"]) for r in mine) / len(mine)
        )
        assert row["kernel_max_ns"] == max(int(r["Kernel Dur (ns)"]) for r in mine)
        assert row["call_min_ns"] == min(int(r["API Dur (ns)"]) for r in mine)
        assert row["queue_mean_ns"] == (
            pytest.approx(sum(queued) / len(queued)) if queued else None
        )
    assert ours["count"].sum() == len(rows)


@needs_files
@pytest.mark.parametrize("path", FILES[::-4], ids=label)
def test_copies_against_sql(path):
    """Bytes exactly: nsys prints them as MB with three places."""
    with sqlite.connect(path) as connection:
        tables = sqlite.database_tables(connection)
    parts = [
        f"SELECT {kind} AS kind, count(*) AS n, sum(bytes) AS bytes, sum(end - start) AS ns FROM {table} GROUP BY 1"
        for table, kind in (
            ("CUPTI_ACTIVITY_KIND_MEMCPY", "copyKind"),
            ("CUPTI_ACTIVITY_KIND_MEMSET", "-1"),
        )
        if table in tables
    ]
    want = [
        row for part in parts for row in sqlite.query(path, part).select("n", "bytes", "ns").rows()
    ]
    trace = trace_of(path)
    sizes = report_of(trace, "cuda_gpu_mem_size_sum").select("kind", "count", "total_bytes")
    times = report_of(trace, "cuda_gpu_mem_time_sum").select("kind", "total_ns")
    assert sorted(sizes.join(times, on="kind").drop("kind").rows()) == sorted(want)


OPENACC = "start INTEGER, end INTEGER, nameId INTEGER, globalTid INTEGER, eventKind INTEGER, lineNo INTEGER, srcFile INTEGER"
OPENMP = "start INTEGER, end INTEGER, eventClass INTEGER, globalTid INTEGER, nameId INTEGER"
LIBRARIES = {
    **TABLES,
    "StringIds": (
        "id INTEGER, value TEXT",
        [
            *TABLES["StringIds"][1],
            (20, "Enqueue Launch"),
            (21, "a.cpp"),
            (22, "Parallel"),
            (23, "MPI_Barrier"),
            (24, "poll"),
            (25, "Wait"),
        ],
    ),
    "CUPTI_ACTIVITY_KIND_OPENACC_LAUNCH": (
        OPENACC,
        [
            (900, 930, 20, PID_A + 100, 1, 7, 21),
            (940, 950, 20, PID_A + 100, 1, 7, 21),
            (950, 955, 20, PID_A + 100, 1, 7, None),
        ],
    ),
    "CUPTI_ACTIVITY_KIND_OPENACC_OTHER": (OPENACC, [(960, 999, 25, PID_A + 100, 1, 9, 21)]),
    "OPENMP_EVENT_KIND_PARALLEL": (
        OPENMP,
        [(900, 950, 1, PID_A + 100, 22), (960, 980, 1, PID_A + 100, 22)],
    ),
    "OPENMP_EVENT_KIND_SYNC_REGION_WAIT": (OPENMP, [(970, 975, 1, PID_A + 100, 25)]),
    "MPI_COLLECTIVES_EVENTS": (
        "start INTEGER, end INTEGER, globalTid INTEGER, textId INTEGER",
        [(900, 990, PID_A + 100, 23)],
    ),
    "OSRT_API": (
        "start INTEGER, end INTEGER, eventClass INTEGER, globalTid INTEGER, correlationId INTEGER, nameId INTEGER",
        [
            (901, 903, 27, PID_A + 100, 1, 24),
            (905, 909, 0, PID_A + 100, 2, 24),
            (910, 910, 31, PID_A + 100, 3, 24),
        ],
    ),
}
"""A made-up export with calls of other libraries."""


def test_calls_of_other_libraries(tmp_path):
    trace = trace_of(write(tmp_path / "report.sqlite", LIBRARIES))
    totals = {
        name: report_of(trace, name).select("name", "count", "total_ns").rows()
        for name in ("openacc_sum", "openmp_sum", "mpi_event_sum", "osrt_sum")
    }
    assert totals == {
        "openacc_sum": [
            ("Enqueue Launch@a.cpp:7", 2, 40),
            ("Wait@a.cpp:9", 1, 39),
            ("Enqueue Launch", 1, 5),
        ],
        "openmp_sum": [("Parallel", 2, 70), ("Wait", 1, 5)],
        "mpi_event_sum": [("MPI_Barrier", 1, 90)],
        "osrt_sum": [("poll", 2, 6)],
    }
    assert report_of(trace, "cuda_api_sum")["count"].sum() == 3


SUMS = """Processing [r.sqlite] with [kern_sum.py]...
Time (%),Total Time (us),Instances,Avg (us),Med (us),Min (us),Max (us),StdDev (us),Name
80.0,8.5,4,2.125,2.0,1.5,3.0,0.1,"void gemm<int, float>(int)"
20.0,2.25,3,0.75,0.75,0.75,0.75,0.0,norm

Time (%),Total Time (us),Num Calls,Avg (us),Med (us),Min (us),Max (us),StdDev (us),Name
100.0,9.0,7,1.3,1.0,1.0,2.0,0.1,cudaLaunchKernel
"""
MEMORY = """Time (%),Total Time (ns),Count,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Operation
100.0,640,2,320.0,320.0,300,340,1.0,[CUDA memcpy Host-to-Device]
"""
EVENTS = """Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Reg/Trd,Device,Strm,Name
1000,50,11,,,,,,,,GPU X (3),7,[CUDA memcpy Device-to-Host]
2000,70,12,4,2,1,128,1,1,32,GPU X (3),7,"gemm(int, int)"
"""


def test_tables_of_nsys_stats_alone(tmp_path):
    """Sums with the unit of their heading; several tables in a file, several files in a folder."""
    for name, text in (("sums", SUMS), ("memory", MEMORY), ("events", EVENTS)):
        (tmp_path / f"{name}.csv").write_text(text)
    trace = llmprof.read(tmp_path)
    assert trace.totals.sort("total_ns").select("kind", "name", "count", "total_ns").rows() == [
        ("copy", "[CUDA memcpy Host-to-Device]", 2, 640),
        ("kernel", "norm", 3, 2250),
        ("kernel", "void gemm<int, float>(int)", 4, 8500),
        ("call", "cudaLaunchKernel", 7, 9000),
    ]
    assert trace.totals["median_ns"].sort().to_list() == [320, 750, 1000, 2000]
    kernels = trace.kernels.select("name", "dur_ns", "stream", "device", "grid_x", "block_x")
    assert kernels.rows() == [("gemm(int, int)", 70, 7, 3, 4, 128)]
    assert trace.copies.select("kind", "dur_ns").rows() == [("DtoH", 50)]
    assert llmprof.read(tmp_path / "sums.csv").totals.height == 3
    assert analyze.totals(trace).height == 4


TEXT = """
 ** CUDA API Summary (cuda_api_sum):

 Time (%)  Total Time (ms)  Num Calls  Avg (ms)        Name
 --------  ---------------  ---------  --------  ----------------
     90.0            0.009          7     0.001  cudaLaunchKernel
     10.0            0.001          1     0.001  cudaMalloc

SKIPPED: r.sqlite does not contain data.
"""


def test_tables_of_nsys_stats_as_text(tmp_path):
    path = tmp_path / "stats.txt"
    path.write_text(TEXT)
    assert llmprof.read(path).totals.select("kind", "name", "count", "total_ns").rows() == [
        ("call", "cudaLaunchKernel", 7, 9000),
        ("call", "cudaMalloc", 1, 1000),
    ]


def test_the_tables_of_a_real_report_sum_to_its_recording(shared):
    folder = shared / "real" / "nsys" / "stats"
    trace, whole = llmprof.read(folder), trace_of(folder.parent / "gpubootcamp_mpi_report4.sqlite")
    sums = dict(trace.totals.group_by("kind").agg(pl.col("total_ns").sum()).iter_rows())
    assert sums["kernel"] == whole.kernels["dur_ns"].sum() == trace.kernels["dur_ns"].sum()
    assert sums["copy"] == whole.copies["dur_ns"].sum()
    text = llmprof.read(folder / "gpubootcamp_mpi_report4.default_table.txt").totals
    assert dict(text.group_by("kind").agg(pl.col("total_ns").sum()).iter_rows()) == sums
