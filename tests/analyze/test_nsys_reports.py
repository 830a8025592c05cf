"""Summaries in the form of nsys, by hand; against nsys itself they are in
tests/readers/test_nsys_stats.py.
"""

import polars as pl
import pytest

from llmprof.analyze import nsys
from llmprof.errors import AnalysisError, NotCapturedError
from llmprof.trace import Trace
from tests.building import table_of

KERNELS = table_of(
    "rank device start_ns dur_ns name correlation",
    [
        (0, 0, 100, 10, "gemm", 1),
        (0, 0, 120, 20, "gemm", 2),
        (0, 0, 150, 60, "gemm", 3),
        (0, 0, 210, 10, "rms", 4),
        (1, 1, 100, 30, "rms", 1),
    ],
)
RUNTIME = table_of(
    "rank process thread start_ns dur_ns name api correlation",
    [
        (0, 7, 70, 95, 3, "cudaLaunchKernel", "runtime", 1),  # returns at 98, 2 before the kernel
        (0, 7, 70, 100, 5, "cudaLaunchKernel", "runtime", 2),  # returns at 105, 15 before
        (
            0,
            7,
            70,
            140,
            15,
            "cudaLaunchKernel",
            "runtime",
            3,
        ),  # returns at 155, 5 after the kernel's start
        (
            0,
            7,
            71,
            200,
            40,
            "cuLaunchKernelEx",
            "driver",
            4,
        ),  # returns at 240, after the kernel's end
        (0, 7, 71, 0, 1000, "poll", "os", None),
    ],
)
STATS = ["mean_ns", "median_ns", "min_ns", "max_ns", "std_ns"]


def copies(rows):
    schema = ["kind", "name", "start_ns", "dur_ns", "bytes", "src_kind"]
    return Trace(
        {"copies": pl.DataFrame(rows, schema=schema, orient="row").with_columns(rank=pl.lit(0))}
    )


COPIES = copies(
    [
        ("HtoD", "Memcpy HtoD (Pinned -> Device)", 0, 10, 100, "pinned"),
        ("HtoD", "Memcpy HtoD (Pageable -> Device)", 20, 30, 300, "pageable"),
        ("DtoD", "[CUDA memcpy Unified Device-to-Device]", 60, 100, 64, "managed"),
        ("memset", "Memset (Device)", 200, 5, None, None),
    ]
)


def test_copies_by_size():
    got = nsys.cuda_gpu_mem_size_sum(COPIES)
    assert got.columns == [
        "total_bytes",
        "count",
        "mean_bytes",
        "median_bytes",
        "min_bytes",
        "max_bytes",
        "std_bytes",
        "kind",
    ]
    host, unified, fill = got.rows()
    assert host == (
        400,
        2,
        200.0,
        200.0,
        100,
        300,
        pytest.approx(20000**0.5),
        "[CUDA memcpy Host-to-Device]",
    )
    assert unified[:2] == (64, 1)
    assert fill == (0, 1, None, None, None, None, None, "[CUDA memset]")  # size not recorded


MARKERS = table_of(
    "name start_ns dur_ns domain on_device nsys_style",
    [
        ("step", 0, 100, "nvtx", False, "PushPop"),
        ("step", 200, 300, "nvtx", False, "PushPop"),
        ("all_reduce", 10, 40, "NCCL", False, "PushPop"),
        ("step", 0, 60, "nvtx", False, "StartEnd"),
        ("a mark", 5, 0, "nvtx", False, "Mark"),
        ("flush", 5, 1000, "overhead", False, None),
        ("step", 0, 1000, "gpu_user_annotation", True, None),
    ],
).with_columns(rank=0, process=7, thread=70)


def test_projection():
    markers = MARKERS.filter(pl.col("nsys_style") == "PushPop")
    trace = Trace(
        {"markers": markers, "runtime": RUNTIME.with_columns(thread=70), "kernels": KERNELS}
    )
    got = nsys.nvtx_gpu_proj_sum(trace)
    assert got.columns == [
        "name",
        "kind",
        "total_ns",
        "host_total_ns",
        "count",
        "mean_ns",
        "median_ns",
        "min_ns",
        "max_ns",
        "std_ns",
        "launches",
        "mean_launches",
        "mean_depth",
    ]
    # step 0-100 launches the first kernel (100-110; the second call ends after it), step 200-500
    # the last (210-220)
    assert got.rows() == [("step", "PushPop", 20, 400, 2, 10.0, 10.0, 10, 10, 0.0, 2, 1.0, 0.0)]


def test_launch_wait_and_run():
    got = nsys.cuda_kern_exec_sum(Trace({"kernels": KERNELS, "runtime": RUNTIME}))
    parts = ("total", "call", "queue", "kernel")
    assert got.columns == [
        "rank",
        "process",
        "thread",
        "device",
        "count",
        "queue_count",
        *(f"{p}_{s}" for p in parts for s in STATS),
        "call",
        "name",
    ]
    gemm, rms = got.rows(named=True)
    assert (gemm["thread"], gemm["count"], gemm["queue_count"]) == (70, 3, 2)
    # totals 95-110, 100-140 and 140-210; of the waits 2, 15 and -5 the last is none
    assert [gemm[f"total_{s}"] for s in STATS[:4]] == [pytest.approx(125 / 3), 40.0, 15, 70]
    assert [gemm[f"call_{s}"] for s in STATS[:4]] == [pytest.approx(23 / 3), 5.0, 3, 15]
    assert [gemm[f"queue_{s}"] for s in STATS[:4]] == [8.5, 8.5, 2, 15]
    assert gemm["queue_std_ns"] == pytest.approx((2 * 6.5**2) ** 0.5)
    assert [gemm[f"kernel_{s}"] for s in STATS[:4]] == [30.0, 20.0, 10, 60]
    assert (rms["thread"], rms["call"], rms["name"]) == (71, "cuLaunchKernelEx", "rms")
    assert (rms["queue_count"], rms["queue_mean_ns"], rms["queue_std_ns"]) == (0, None, None)
    assert (rms["total_min_ns"], rms["total_std_ns"]) == (
        40,
        0.0,
    )  # the call returns after the kernel's end


def test_pace():
    rows = [(0, 0, 10), (0, 30, 10), (0, 35, 10), (1, 5, 20), (1, 50, 10)]
    kernels = table_of("rank start_ns dur_ns", rows).with_columns(name=pl.lit("ar"))
    alone = pl.DataFrame(
        {"rank": [0], "start_ns": [0], "dur_ns": [1000], "name": ["only on one rank"]}
    )
    trace = Trace({"kernels": pl.concat([kernels, alone], how="diagonal_relaxed")})
    got = nsys.cuda_gpu_kern_pace(trace)
    assert got.columns == [
        "occurrence",
        "rank",
        "start_ns",
        "dur_ns",
        "gap_ns",
        "pace_ns",
        "late_ns",
        "name",
    ]
    assert got.drop("name").rows() == [
        (0, 0, 0, 10, None, None, 0),
        (0, 1, 5, 20, None, None, 5),
        (1, 0, 30, 10, 20, 30, 0),
        (1, 1, 50, 10, 25, 45, 20),
        (2, 0, 35, 10, -5, 5, 0),
    ]
    assert got["name"].unique().to_list() == ["ar"]
    assert nsys.cuda_gpu_kern_pace(trace, name="only on one rank").height == 1
    with pytest.raises(AnalysisError, match="no kernel has the name"):
        nsys.cuda_gpu_kern_pace(trace, name="a")
    with pytest.raises(AnalysisError, match="on all ranks"):
        nsys.cuda_gpu_kern_pace(Trace({"kernels": KERNELS.clear()}))


def test_utilisation_map():
    rows = [(0, 0, 0, 10), (0, 0, 5, 10), (0, 0, 30, 5), (1, 1, 10, 85)]
    kernels = table_of("rank device start_ns dur_ns", rows)
    kernels = kernels.with_columns(name=pl.lit("k"))
    copies = pl.DataFrame(
        {
            "rank": [0],
            "device": [0],
            "start_ns": [90],
            "dur_ns": [5],
            "kind": ["HtoD"],
            "name": ["c"],
        }
    )
    trace = Trace({"kernels": kernels, "copies": copies})
    got = nsys.gpu_time_util_map(trace, bin_ns=40)
    assert got.columns == ["rank", "device", "start_ns", "dur_ns", "busy_ns", "share"]
    assert got.rows() == [
        (0, 0, 0, 40, 20, 0.5),
        (0, 0, 40, 40, 0, 0.0),
        (0, 0, 80, 15, 0, 0.0),
        (1, 1, 0, 40, 30, 0.75),
        (1, 1, 40, 40, 40, 1.0),
        (1, 1, 80, 15, 15, 1.0),
    ]
    assert nsys.gpu_time_util_map(trace, bin_ns=40, kernels_only=False)["busy_ns"].to_list()[
        :3
    ] == [20, 0, 5]
    five = nsys.gpu_time_util_map(trace, bins=5)
    assert five.filter(pl.col("rank") == 0).select("start_ns", "dur_ns").rows() == [
        (19 * i, 19) for i in range(5)
    ]
    assert five["busy_ns"].sum() == 20 + 85
    for bad in ({"bins": 0}, {"bin_ns": 0}):
        with pytest.raises(AnalysisError, match="make no bin"):
            nsys.gpu_time_util_map(trace, **bad)
    with pytest.raises(AnalysisError, match="too many"):
        nsys.gpu_time_util_map(Trace({"kernels": kernels.with_columns(dur_ns=10**9)}), bin_ns=1)


REPORTS = [
    nsys.cuda_gpu_kern_sum,
    nsys.cuda_api_sum,
    nsys.cuda_gpu_mem_time_sum,
    nsys.cuda_gpu_mem_size_sum,
    nsys.nvtx_sum,
    nsys.nvtx_gpu_proj_sum,
    nsys.cuda_kern_exec_sum,
    nsys.gpu_time_util_map,
]


@pytest.mark.parametrize("report", REPORTS, ids=lambda f: f.__name__)
def test_nothing_recorded_and_nothing_there(report):
    with pytest.raises(NotCapturedError):
        report(Trace({}))
    whole = Trace(
        {"kernels": KERNELS, "runtime": RUNTIME, "copies": COPIES.copies, "markers": MARKERS}
    )
    empty = report(Trace({name: frame.clear() for name, frame in whole.tables.items()}))
    assert empty.height == 0
    assert empty.schema == report(whole).schema
